/* Plain reference kernels, in double: cross entropy and sums of losses. */
#include <math.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

/* Of some columns of one row of logits. */
struct row_stats {
    double max;   /* the largest logit; -inf without columns */
    double sum;   /* of exp(logit - max) */
    double label; /* the label's logit, or 0 when it is not here */
};

/* in: the row's label, or -1; `first`, the first column's place in the vocabulary. */
static struct row_stats row_stats(const struct view *x, int64_t row, int64_t label,
                                  int64_t first)
{
    struct row_stats s = {-INFINITY, 0, 0};
    int64_t width = view_cols(x), own = label - first;
    for (int64_t i = 0; i < width; i++)
        s.max = fmax(s.max, view_get(x, row * width + i));
    for (int64_t i = 0; i < width; i++)
        s.sum += exp(view_get(x, row * width + i) - s.max);
    if (label >= 0 && own >= 0 && own < width)
        s.label = view_get(x, row * width + own);
    return s;
}

/* The same of all ranks' columns: stats [ranks, T, 3], in order. A rank without columns
 * has the largest logit -inf and counts for nothing. */
static struct row_stats merge_stats(const struct view *stats, int64_t row)
{
    struct row_stats s = {-INFINITY, 0, 0};
    int64_t n_rows = stats->dim[1];
    for (int64_t r = 0; r < stats->dim[0]; r++)
        s.max = fmax(s.max, view_get(stats, (r * n_rows + row) * 3));
    for (int64_t r = 0; r < stats->dim[0]; r++) {
        int64_t at = (r * n_rows + row) * 3;
        double max = view_get(stats, at);
        s.sum += view_get(stats, at + 1) * exp(max - s.max);
        s.label += view_get(stats, at + 2);
    }
    return s;
}

static void xent_stats_span(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t first = launch_attr_i(l, ATTR_BEGIN, 0);
    for (int64_t t = begin; t < end; t++) {
        int64_t label = (int64_t)view_get(&l->in[1], t);
        struct row_stats s = row_stats(&l->in[0], t, label, first);
        view_set(&l->out[0], 3 * t, s.max);
        view_set(&l->out[0], 3 * t + 1, s.sum);
        view_set(&l->out[0], 3 * t + 2, s.label);
    }
}

static void xent_stats_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_rows(&c->l->in[0]), 1, xent_stats_span);
}

static void xent_span(const struct kernel_call *c, int64_t begin, int64_t end,
                      int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t first = launch_attr_i(l, ATTR_BEGIN, 0);
    for (int64_t t = begin; t < end; t++) {
        int64_t label = (int64_t)view_get(&l->in[1], t);
        struct row_stats s = l->op->n_in > 2 ? merge_stats(&l->in[2], t)
                                             : row_stats(&l->in[0], t, label, first);
        double lse = s.max + log(s.sum);
        view_set(&l->out[0], t, label < 0 ? 0 : lse - s.label);
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
    int64_t width = view_cols(&l->in[0]), first = launch_attr_i(l, ATTR_BEGIN, 0);
    double scale = view_get(&l->in[3], 0);
    for (int64_t t = begin; t < end; t++) {
        int64_t label = (int64_t)view_get(&l->in[2], t);
        double lse = view_get(&l->in[1], t);
        for (int64_t i = 0; i < width; i++) {
            double p = exp(view_get(&l->in[0], t * width + i) - lse);
            double d = label < 0 ? 0 : scale * (p - (i == label - first));
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
        {.kind = OP_XENT_STATS, .name = "xent_stats_ref", .run = xent_stats_run},
        {.kind = OP_XENT, .name = "xent_ref", .run = xent_run},
        {.kind = OP_XENT_DX, .name = "xent_dx_ref", .run = xent_dx_run},
        {.kind = OP_SUM, .name = "sum_ref", .run = sum_run},
};

const struct kernel_table ref_loss_table = {rows, ARRAY_LEN(rows)};
