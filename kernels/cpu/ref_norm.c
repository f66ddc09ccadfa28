/* Plain reference kernels, in double: RMS and layer norm. A row is one norm: the last
 * axis of x; statistics have one element per row. */
#include <math.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

static int64_t norm_count(const struct view *x)
{
    return view_elems(x) / view_width(x);
}

/* The factor of one element: w, or 1 + w. */
static double norm_weight(const struct launch *l, const struct view *w, int64_t i)
{
    return view_get(w, i) + (launch_attr_i(l, ATTR_PLUS_ONE, 0) ? 1 : 0);
}

static void rmsnorm_row(const struct launch *l, int64_t row)
{
    const struct view *x = &l->in[0];
    int64_t width = view_width(x), at = row * width;
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += view_get(x, at + i) * view_get(x, at + i);
    double eps = launch_attr_f(l, ATTR_EPS, 0);
    double rstd = 1 / sqrt(sum / (double)width + eps);
    for (int64_t i = 0; i < width; i++)
        view_set(&l->out[0], at + i,
                 view_get(x, at + i) * rstd * norm_weight(l, &l->in[1], i));
    if (view_is_present(&l->out[1]))
        view_set(&l->out[1], row, rstd);
}

static void rmsnorm_span(const struct kernel_call *c, int64_t begin, int64_t end,
                         int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        rmsnorm_row(c->l, r);
}

static void rmsnorm_run(const struct kernel_call *c)
{
    cpu_run_spans(c, norm_count(&c->l->in[0]), 1, rmsnorm_span);
}

/* With n = x*rstd and d = dy*w: dx = rstd * (d - n * mean(d*n)). */
static void rmsnorm_dx_row(const struct launch *l, int64_t row)
{
    const struct view *dy = &l->in[0], *x = &l->in[1];
    int64_t width = view_width(x), at = row * width;
    double rstd = view_get(&l->in[3], row), dot = 0;
    for (int64_t i = 0; i < width; i++)
        dot += view_get(dy, at + i) * norm_weight(l, &l->in[2], i) *
               view_get(x, at + i) * rstd;
    dot /= (double)width;
    for (int64_t i = 0; i < width; i++) {
        double d = view_get(dy, at + i) * norm_weight(l, &l->in[2], i);
        double dx = rstd * (d - view_get(x, at + i) * rstd * dot);
        if (l->op->n_in > 4)
            dx += view_get(&l->in[4], at + i);
        view_set(&l->out[0], at + i, dx);
    }
}

static void rmsnorm_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        rmsnorm_dx_row(c->l, r);
}

static void rmsnorm_dx_run(const struct kernel_call *c)
{
    cpu_run_spans(c, norm_count(&c->l->in[1]), 1, rmsnorm_dx_span);
}

/* Threads take columns; the order of rows is always the same. */
static void rmsnorm_dw_span(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_width(&l->in[1]), n = norm_count(&l->in[1]);
    for (int64_t i = begin; i < end; i++) {
        double sum = 0;
        for (int64_t r = 0; r < n; r++)
            sum += view_get(&l->in[0], r * width + i) *
                   view_get(&l->in[1], r * width + i) * view_get(&l->in[2], r);
        view_set(&l->out[0], i, view_get(&l->in[3], i) + sum);
    }
}

static void rmsnorm_dw_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_width(&c->l->in[1]), 1, rmsnorm_dw_span);
}

static void layernorm_row(const struct launch *l, int64_t row)
{
    const struct view *x = &l->in[0];
    int64_t width = view_width(x), at = row * width;
    double mean = 0, var = 0;
    for (int64_t i = 0; i < width; i++)
        mean += view_get(x, at + i);
    mean /= (double)width;
    for (int64_t i = 0; i < width; i++) {
        double d = view_get(x, at + i) - mean;
        var += d * d;
    }
    double eps = launch_attr_f(l, ATTR_EPS, 0);
    double rstd = 1 / sqrt(var / (double)width + eps);
    for (int64_t i = 0; i < width; i++) {
        double n = (view_get(x, at + i) - mean) * rstd;
        view_set(&l->out[0], at + i,
                 n * norm_weight(l, &l->in[1], i) + view_get(&l->in[2], i));
    }
    if (view_is_present(&l->out[1]))
        view_set(&l->out[1], row, mean);
    if (view_is_present(&l->out[2]))
        view_set(&l->out[2], row, rstd);
}

static void layernorm_span(const struct kernel_call *c, int64_t begin, int64_t end,
                           int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        layernorm_row(c->l, r);
}

static void layernorm_run(const struct kernel_call *c)
{
    cpu_run_spans(c, norm_count(&c->l->in[0]), 1, layernorm_span);
}

/* With n = (x - mean)*rstd and d = dy*w: dx = rstd * (d - mean(d) - n * mean(d*n)). */
static void layernorm_dx_row(const struct launch *l, int64_t row)
{
    const struct view *dy = &l->in[0], *x = &l->in[1];
    int64_t width = view_width(x), at = row * width;
    double mean = view_get(&l->in[3], row), rstd = view_get(&l->in[4], row);
    double mean_d = 0, mean_dn = 0;
    for (int64_t i = 0; i < width; i++) {
        double d = view_get(dy, at + i) * norm_weight(l, &l->in[2], i);
        mean_d += d;
        mean_dn += d * (view_get(x, at + i) - mean) * rstd;
    }
    mean_d /= (double)width;
    mean_dn /= (double)width;
    for (int64_t i = 0; i < width; i++) {
        double d = view_get(dy, at + i) * norm_weight(l, &l->in[2], i);
        double n = (view_get(x, at + i) - mean) * rstd;
        double dx = rstd * (d - mean_d - n * mean_dn);
        if (l->op->n_in > 5)
            dx += view_get(&l->in[5], at + i);
        view_set(&l->out[0], at + i, dx);
    }
}

static void layernorm_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                              int thread)
{
    (void)thread;
    for (int64_t r = begin; r < end; r++)
        layernorm_dx_row(c->l, r);
}

static void layernorm_dx_run(const struct kernel_call *c)
{
    cpu_run_spans(c, norm_count(&c->l->in[1]), 1, layernorm_dx_span);
}

static void layernorm_dw_span(const struct kernel_call *c, int64_t begin, int64_t end,
                              int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_width(&l->in[1]), n = norm_count(&l->in[1]);
    for (int64_t i = begin; i < end; i++) {
        double gw = 0, gb = 0;
        for (int64_t r = 0; r < n; r++) {
            double dy = view_get(&l->in[0], r * width + i);
            double x = view_get(&l->in[1], r * width + i) - view_get(&l->in[2], r);
            gw += dy * x * view_get(&l->in[3], r);
            gb += dy;
        }
        view_set(&l->out[0], i, view_get(&l->in[4], i) + gw);
        view_set(&l->out[1], i, view_get(&l->in[5], i) + gb);
    }
}

static void layernorm_dw_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_width(&c->l->in[1]), 1, layernorm_dw_span);
}

static const struct kernel_row rows[] = {
        {.kind = OP_RMSNORM, .name = "rmsnorm_ref", .run = rmsnorm_run},
        {.kind = OP_RMSNORM_DX, .name = "rmsnorm_dx_ref", .run = rmsnorm_dx_run},
        {.kind = OP_RMSNORM_DW, .name = "rmsnorm_dw_ref", .run = rmsnorm_dw_run},
        {.kind = OP_LAYERNORM, .name = "layernorm_ref", .run = layernorm_run},
        {.kind = OP_LAYERNORM_DX, .name = "layernorm_dx_ref", .run = layernorm_dx_run},
        {.kind = OP_LAYERNORM_DW, .name = "layernorm_dw_ref", .run = layernorm_dw_run},
};

const struct kernel_table ref_norm_table = {rows, ARRAY_LEN(rows)};
