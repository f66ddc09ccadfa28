/* Plain reference kernels, in double: cross entropy and sums of losses. */
#include <math.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

static double row_log_sum_exp(const struct view *x, int64_t row)
{
    int64_t width = view_cols(x);
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < width; i++)
        max = fmax(max, view_get(x, row * width + i));
    for (int64_t i = 0; i < width; i++)
        sum += exp(view_get(x, row * width + i) - max);
    return max + log(sum);
}

static void xent_span(const struct kernel_call *c, int64_t begin, int64_t end,
                      int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->in[0]);
    for (int64_t t = begin; t < end; t++) {
        int64_t label = (int64_t)view_get(&l->in[1], t);
        double lse = row_log_sum_exp(&l->in[0], t);
        double loss = label < 0 ? 0 : lse - view_get(&l->in[0], t * width + label);
        view_set(&l->out[0], t, loss);
        if (view_is_present(&l->out[1]))
            view_set(&l->out[1], t, lse);
    }
}

static void xent_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_rows(&c->l->in[0]), 1, xent_span);
}

static void xent_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                         int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->in[0]);
    double scale = view_get(&l->in[3], 0);
    for (int64_t t = begin; t < end; t++) {
        int64_t label = (int64_t)view_get(&l->in[2], t);
        double lse = view_get(&l->in[1], t);
        for (int64_t i = 0; i < width; i++) {
            double p = exp(view_get(&l->in[0], t * width + i) - lse);
            double d = label < 0 ? 0 : scale * (p - (i == label));
            view_set(&l->out[0], t * width + i, d);
        }
    }
}

static void xent_dx_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_rows(&c->l->in[0]), 1, xent_dx_span);
}

static void sum_run(const struct kernel_call *c)
{
    const struct launch *l = c->l;
    double total = view_get(&l->in[1], 0);
    int64_t n = view_elems(&l->in[0]);
    for (int64_t i = 0; i < n; i++)
        total += view_get(&l->in[0], i);
    view_set(&l->out[0], 0, total);
}

static const struct kernel_row rows[] = {
        {.kind = OP_XENT, .name = "xent_ref", .run = xent_run},
        {.kind = OP_XENT_DX, .name = "xent_dx_ref", .run = xent_dx_run},
        {.kind = OP_SUM, .name = "sum_ref", .run = sum_run},
};

const struct kernel_table ref_loss_table = {rows, ARRAY_LEN(rows)};
