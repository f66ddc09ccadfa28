/* What CPU kernels share: shapes of views, single elements, and spans over threads. */
#ifndef KERNELS_CPU_CPU_UTIL_H
#define KERNELS_CPU_CPU_UTIL_H

#include "kernels/kernel.h"

/* Part [begin, end) of a kernel's items, on thread `thread`. */
typedef void (*cpu_span_fn)(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread);

/* Splits `items` over the threads in units of `unit` items and runs fn on every part that
 * is not empty. One unit or less runs on the caller, without waking anybody. */
void cpu_run_spans(const struct kernel_call *c, int64_t items, int64_t unit,
                   cpu_span_fn fn);

/* Bytes of an aligned part of scratch that holds `bytes`. */
static inline int64_t cpu_scratch_part(int64_t bytes)
{
    return round_up_i64(bytes, 64);
}

/* A view as a matrix: dim[0] rows (one row when it has a single axis) of the rest. */
static inline int64_t view_rows(const struct view *v)
{
    return v->ndim >= 2 ? v->dim[0] : 1;
}

static inline int64_t view_cols(const struct view *v)
{
    int64_t n = 1;
    for (int i = v->ndim >= 2; i < v->ndim; i++)
        n *= v->dim[i];
    return n;
}

static inline int64_t view_elems(const struct view *v)
{
    return view_rows(v) * view_cols(v);
}

/* The last axis. */
static inline int64_t view_width(const struct view *v)
{
    return v->dim[v->ndim - 1];
}

static inline bool view_is_contiguous(const struct view *v)
{
    return v->ndim < 2 || v->ld == view_cols(v) || v->dim[0] <= 1;
}

/* Position of flat element i, counted without the pitch's gaps. */
static inline int64_t view_index(const struct view *v, int64_t i)
{
    if (v->ndim < 2)
        return i;
    int64_t cols = view_cols(v);
    return i / cols * v->ld + i % cols;
}

static inline double view_get(const struct view *v, int64_t i)
{
    return dtype_get(v->data, v->dtype, view_index(v, i));
}

static inline void view_set(const struct view *v, int64_t i, double x)
{
    dtype_set(v->data, v->dtype, view_index(v, i), x);
}

static inline bool view_is_present(const struct view *v)
{
    return v->ndim > 0;
}

/* Attributes of the op of a launch. */
static inline int64_t launch_attr_i(const struct launch *l, enum attr_key key,
                                    int64_t absent)
{
    return op_attr_i(l->prog, l->op, key, absent);
}

static inline double launch_attr_f(const struct launch *l, enum attr_key key,
                                   double absent)
{
    return op_attr_f(l->prog, l->op, key, absent);
}

#endif
