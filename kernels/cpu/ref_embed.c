/* Plain reference kernels, in double: token embedding. */
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

static void embed_span(const struct kernel_call *c, int64_t begin, int64_t end,
                       int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->in[0]), n_rows = view_rows(&l->in[0]);
    int64_t first = launch_attr_i(l, ATTR_BEGIN, 0);
    double scale = launch_attr_f(l, ATTR_SCALE, 1);
    for (int64_t t = begin; t < end; t++) {
        int64_t row = (int64_t)view_get(&l->in[1], t) - first;
        bool is_here = row >= 0 && row < n_rows;
        for (int64_t i = 0; i < width; i++)
            view_set(&l->out[0], t * width + i,
                     is_here ? scale * view_get(&l->in[0], row * width + i) : 0);
    }
}

static void embed_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_elems(&c->l->in[1]), 4, embed_span);
}

/* Threads take columns; tokens are added in order. The running sum of a row is in the
 * gradient itself, in the gradient's dtype. */
static void embed_dw_span(const struct kernel_call *c, int64_t begin, int64_t end,
                          int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->in[0]), n_tokens = view_elems(&l->in[1]);
    int64_t first = launch_attr_i(l, ATTR_BEGIN, 0), n_rows = view_rows(&l->out[0]);
    double scale = launch_attr_f(l, ATTR_SCALE, 1);
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t row = (int64_t)view_get(&l->in[1], t) - first;
        if (row < 0 || row >= n_rows)
            continue;
        for (int64_t i = begin; i < end; i++) {
            double dx = view_get(&l->in[0], t * width + i);
            int64_t at = row * width + i;
            view_set(&l->out[0], at, view_get(&l->out[0], at) + scale * dx);
        }
    }
}

/* g is copied first when the result is not written in place. */
static void embed_dw_copy_span(const struct kernel_call *c, int64_t begin, int64_t end,
                               int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i, view_get(&c->l->in[2], i));
}

static void embed_dw_run(const struct kernel_call *c)
{
    if (c->l->out[0].data != c->l->in[2].data)
        cpu_run_spans(c, view_elems(&c->l->out[0]), 512, embed_dw_copy_span);
    cpu_run_spans(c, view_cols(&c->l->in[0]), 16, embed_dw_span);
}

static const struct kernel_row rows[] = {
        {.kind = OP_EMBED, .name = "embed_ref", .run = embed_run},
        {.kind = OP_EMBED_DW, .name = "embed_dw_ref", .run = embed_dw_run},
};

const struct kernel_table ref_embed_table = {rows, ARRAY_LEN(rows)};
