/* Plain reference kernels, in double: matrix products. */
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

static void linear_span(const struct kernel_call *c, int64_t begin, int64_t end,
                        int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t n_inner = view_cols(&l->in[0]), n_outer = view_rows(&l->in[1]);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / n_outer, n = i % n_outer;
        double sum = 0;
        for (int64_t k = 0; k < n_inner; k++)
            sum += view_get(&l->in[0], t * n_inner + k) *
                   view_get(&l->in[1], n * n_inner + k);
        if (l->op->n_in > 2)
            sum += view_get(&l->in[2], n);
        view_set(&l->out[0], i, sum);
    }
}

static void linear_run(const struct kernel_call *c)
{
    int64_t items = view_rows(&c->l->in[0]) * view_rows(&c->l->in[1]);
    cpu_run_spans(c, items, 16, linear_span);
}

static void linear_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                           int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t n_outer = view_rows(&l->in[1]), n_inner = view_cols(&l->in[1]);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / n_inner, k = i % n_inner;
        double sum = 0;
        for (int64_t n = 0; n < n_outer; n++)
            sum += view_get(&l->in[0], t * n_outer + n) *
                   view_get(&l->in[1], n * n_inner + k);
        if (l->op->n_in > 2)
            sum += view_get(&l->in[2], i);
        view_set(&l->out[0], i, sum);
    }
}

static void linear_dx_run(const struct kernel_call *c)
{
    int64_t items = view_rows(&c->l->in[0]) * view_cols(&c->l->in[1]);
    cpu_run_spans(c, items, 16, linear_dx_span);
}

/* Items are elements of the gradient: tokens are added in order for every thread count. */
static void linear_dw_span(const struct kernel_call *c, int64_t begin, int64_t end,
                           int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t n_tokens = view_rows(&l->in[0]);
    int64_t n_outer = view_cols(&l->in[0]), n_inner = view_cols(&l->in[1]);
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i / n_inner, k = i % n_inner;
        double sum = 0;
        for (int64_t t = 0; t < n_tokens; t++)
            sum += view_get(&l->in[0], t * n_outer + n) *
                   view_get(&l->in[1], t * n_inner + k);
        view_set(&l->out[0], i, view_get(&l->in[2], i) + sum);
    }
}

static void linear_dw_run(const struct kernel_call *c)
{
    int64_t items = view_cols(&c->l->in[0]) * view_cols(&c->l->in[1]);
    cpu_run_spans(c, items, 16, linear_dw_span);
}

static void linear_db_span(const struct kernel_call *c, int64_t begin, int64_t end,
                           int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t n_tokens = view_rows(&l->in[0]), n_outer = view_cols(&l->in[0]);
    for (int64_t n = begin; n < end; n++) {
        double sum = 0;
        for (int64_t t = 0; t < n_tokens; t++)
            sum += view_get(&l->in[0], t * n_outer + n);
        view_set(&l->out[0], n, view_get(&l->in[1], n) + sum);
    }
}

static void linear_db_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_cols(&c->l->in[0]), 16, linear_db_span);
}

static const struct kernel_row rows[] = {
        {.kind = OP_LINEAR, .name = "linear_ref", .run = linear_run},
        {.kind = OP_LINEAR_DX, .name = "linear_dx_ref", .run = linear_dx_run},
        {.kind = OP_LINEAR_DW, .name = "linear_dw_ref", .run = linear_dw_run},
        {.kind = OP_LINEAR_DB, .name = "linear_db_ref", .run = linear_db_run},
};

const struct kernel_table ref_product_table = {rows, ARRAY_LEN(rows)};
