/* What the tuned kernels share; each tuned_<isa>.c includes the bodies (tuned_*.inc) once
 * and exports their rows. Before that it defines
 *   TUNED_ISA     the bits of enum cpu_isa that the rows need
 *   TUNED_NAME(n) the name of a row, e.g. n "_avx512" */
#ifndef KERNELS_CPU_TUNED_H
#define KERNELS_CPU_TUNED_H

#include "kernels/cpu/cpu_util.h"
#include "kernels/cpu/vmath.h"

static inline bool dtype_is_tuned(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16;
}

/* Index of a dtype in tables of functions: f32, bf16. */
static inline int tuned_index(enum dtype t)
{
    return t == DT_BF16;
}

static inline void *view_at(const struct view *v, int64_t elem)
{
    return (char *)v->data + elem * (int64_t)dtype_bytes(v->dtype);
}

/* Address of element (row, col) of a view as a matrix. */
static inline void *view_row_at(const struct view *v, int64_t row, int64_t col)
{
    return view_at(v, row * v->ld + col);
}

/* Address of the r-th run of the last axis. */
static inline void *view_run_at(const struct view *v, int64_t r)
{
    return view_at(v, view_index(v, r * view_width(v)));
}

/* Sums over tokens are cut into blocks whose number depends on the tokens alone; the
 * blocks are added in order, so no sum depends on the number of threads. */
static inline int64_t token_blocks(int64_t n_rows)
{
    return MAX(1, MIN(32, n_rows / 32));
}

static inline void token_block_share(int64_t n_rows, int64_t block, int64_t *begin,
                                     int64_t *end)
{
    pool_share(n_rows, 1, (int)block, (int)token_blocks(n_rows), begin, end);
}

#endif
