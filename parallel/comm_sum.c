#include "parallel/comm_sum.h"

#include <string.h>

static const struct sum_loops *loops_of_this_cpu(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &sum_loops_avx512;
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

/* Reduces one block of the sources, `skip` bytes into them. Returns where it lies: in
 * acc or rounded, of SUM_BLOCK_ELEMS. */
static const void *reduce_block(const struct sum_loops *l, const void *const *src,
                                int n_src, size_t skip, int64_t n, enum dtype dtype,
                                enum comm_reduction how, void *acc, void *rounded)
{
    const char *first = (const char *)src[0] + skip;
    if (how == COMM_SUM && n_src == 2 && l->two[dtype]) {
        l->two[dtype](acc, first, (const char *)src[1] + skip, n);
        return acc;
    }
    sum_fold_fn fold = (how == COMM_SUM ? l->sum : l->max)[dtype];
    l->load[dtype](acc, first, n);
    for (int i = 1; i < n_src; i++)
        fold(acc, (const char *)src[i] + skip, n);
    if (dtype != DT_BF16)
        return acc;
    l->store_bf16(rounded, acc, n);
    return rounded;
}

void comm_reduce(void *const *dst, int n_dst, const void *const *src, int n_src,
                 int64_t n, enum dtype dtype, enum comm_reduction how)
{
    _Alignas(64) union {
        float f32[SUM_BLOCK_ELEMS];
        double f64[SUM_BLOCK_ELEMS];
        int32_t i32[SUM_BLOCK_ELEMS];
        uint16_t bf16[SUM_BLOCK_ELEMS];
    } acc;
    _Alignas(64) uint16_t rounded[SUM_BLOCK_ELEMS];
    const struct sum_loops *l = loops_of_this_cpu();
    size_t elem_bytes = dtype_bytes(dtype);
    ASSERT(comm_can_reduce(dtype, how) && n_src >= 1);
    for (int64_t at = 0; at < n; at += SUM_BLOCK_ELEMS) {
        int64_t block = MIN(n - at, (int64_t)SUM_BLOCK_ELEMS);
        size_t skip = (size_t)at * elem_bytes;
        const void *out =
                reduce_block(l, src, n_src, skip, block, dtype, how, &acc, rounded);
        for (int i = 0; i < n_dst; i++)
            memcpy((char *)dst[i] + skip, out, (size_t)block * elem_bytes);
    }
}
