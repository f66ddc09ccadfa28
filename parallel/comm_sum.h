/* Sums and maxima over the buffers of a group's members, element by element in the order
 * of the members: the one place that decides the bits of every reduction.
 *
 *     sum: acc = x[0]; acc = acc + x[1]; ...   in f32 for f32 and bf16, f64 for f64
 *     max: acc = x[0]; acc = acc > x[i] or acc is NaN ? acc : x[i]
 *
 * bf16 is rounded once, at the end; i32 sums wrap. */
#ifndef PARALLEL_COMM_SUM_H
#define PARALLEL_COMM_SUM_H

#include "core/comm.h"

/* Reduces n elements of src[n_src] into every one of dst[n_dst]. A dst may be one of the
 * sources, but not overlap one otherwise. The same bits on every machine. */
void comm_reduce(void *const *dst, int n_dst, const void *const *src, int n_src,
                 int64_t n, enum dtype dtype, enum comm_reduction how);

/* Whether there is such a reduction of this type. */
bool comm_can_reduce(enum dtype dtype, enum comm_reduction how);

/* The loops for one instruction set, over blocks of at most SUM_BLOCK_ELEMS: load
 * converts a block to the accumulator's type, add and max fold another in, store converts
 * back. */
#define SUM_BLOCK_ELEMS 1024

typedef void (*sum_fold_fn)(void *acc, const void *x, int64_t n);
typedef void (*sum_two_fn)(void *out, const void *x, const void *y, int64_t n);

struct sum_loops {
    sum_fold_fn load[DT_COUNT];
    sum_fold_fn sum[DT_COUNT];
    sum_fold_fn max[DT_COUNT];
    sum_fold_fn store_bf16;   /* out, acc */
    sum_two_fn two[DT_COUNT]; /* the sum of exactly two, all in one; or NULL */
};

extern const struct sum_loops sum_loops_portable, sum_loops_avx2, sum_loops_avx512;

#endif
