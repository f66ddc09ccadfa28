#include "parallel/comm_sum.h"

#include <string.h>

static const struct sum_loops *loops_of_this_cpu(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &sum_loops_avx2;
#endif
    return &sum_loops_portable;
}

bool comm_can_reduce(enum dtype dtype, enum comm_reduction how)
{
    const struct sum_loops *l = &sum_loops_portable;
    return dtype < DT_COUNT && (how == COMM_SUM ? l->sum : l->max)[dtype];
}

void comm_reduce(void *const *dst, int n_dst, const void *const *src, int n_src,
                 int64_t n, enum dtype dtype, enum comm_reduction how)
{
    _Alignas(64) union {
        float f32[SUM_BLOCK_ELEMS];
        double f64[SUM_BLOCK_ELEMS];
        int32_t i32[SUM_BLOCK_ELEMS];
    } acc;
    _Alignas(64) uint16_t rounded[SUM_BLOCK_ELEMS];
    const struct sum_loops *l = loops_of_this_cpu();
    sum_fold_fn fold = (how == COMM_SUM ? l->sum : l->max)[dtype];
    size_t elem_bytes = dtype_bytes(dtype);
    ASSERT(fold && n_src >= 1);
    for (int64_t at = 0; at < n; at += SUM_BLOCK_ELEMS) {
        int64_t block = MIN(n - at, (int64_t)SUM_BLOCK_ELEMS);
        size_t skip = (size_t)at * elem_bytes;
        l->load[dtype](&acc, (const char *)src[0] + skip, block);
        for (int i = 1; i < n_src; i++)
            fold(&acc, (const char *)src[i] + skip, block);
        const void *out = &acc;
        if (dtype == DT_BF16) {
            l->store_bf16(rounded, &acc, block);
            out = rounded;
        }
        for (int i = 0; i < n_dst; i++)
            memcpy((char *)dst[i] + skip, out, (size_t)block * elem_bytes);
    }
}
