#include "core/vec.h"

void *vec_grow(void *data, uint32_t *cap, size_t elem_bytes)
{
    if (*cap > UINT32_MAX / 2)
        BUG("a table grew beyond 2^31 entries");
    uint32_t want = *cap ? *cap * 2 : 16;
    int64_t bytes;
    if (!mul_i64(want, (int64_t)elem_bytes, &bytes))
        BUG("a table's size overflows");
    *cap = want;
    return mem_realloc(data, (size_t)bytes);
}
