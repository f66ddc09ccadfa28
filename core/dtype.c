#include "core/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} dtype_table[] = {
        [DT_F32] = {"f32", 4, true},
        [DT_BF16] = {"bf16", 2, true},
        [DT_F64] = {"f64", 8, true},
        [DT_I32] = {"i32", 4, false},
};
_Static_assert(ARRAY_LEN(dtype_table) == DT_COUNT, "one row per dtype");

size_t dtype_bytes(enum dtype t)
{
    ASSERT(t < DT_COUNT);
    return dtype_table[t].bytes;
}

const char *dtype_name(enum dtype t)
{
    ASSERT(t < DT_COUNT);
    return dtype_table[t].name;
}

bool dtype_is_float(enum dtype t)
{
    ASSERT(t < DT_COUNT);
    return dtype_table[t].is_float;
}

uint16_t bf16_from_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u); /* NaN: keep it quiet and a NaN */
    u += 0x7fffu + (u >> 16 & 1u);
    return (uint16_t)(u >> 16);
}

float f32_from_bf16(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

double dtype_get(const void *data, enum dtype t, int64_t index)
{
    switch (t) {
    case DT_F32: return (double)((const float *)data)[index];
    case DT_BF16: return (double)f32_from_bf16(((const uint16_t *)data)[index]);
    case DT_F64: return ((const double *)data)[index];
    case DT_I32: return (double)((const int32_t *)data)[index];
    case DT_COUNT: break;
    }
    BUG("dtype %d", (int)t);
}

void dtype_set(void *data, enum dtype t, int64_t index, double x)
{
    switch (t) {
    case DT_F32: ((float *)data)[index] = (float)x; return;
    case DT_BF16: ((uint16_t *)data)[index] = bf16_from_f32((float)x); return;
    case DT_F64: ((double *)data)[index] = x; return;
    case DT_I32: ((int32_t *)data)[index] = (int32_t)x; return;
    case DT_COUNT: break;
    }
    BUG("dtype %d", (int)t);
}
