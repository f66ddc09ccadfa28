/* Plain reference kernels, in double: causal attention and its gradient. Each thread
 * holds one row of scores (S doubles); never a matrix of them. */
#include <math.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

struct attn {
    const struct view *q, *k, *v, *doc_start;
    int64_t n_seq_tokens, width, n_heads, n_kv_heads, window;
    double scale, cap;
};

static struct attn attn_read(const struct launch *l, int first)
{
    return (struct attn){
            .q = &l->in[first],
            .k = &l->in[first + 1],
            .v = &l->in[first + 2],
            .doc_start = &l->in[l->op->n_in - 1],
            .n_seq_tokens = launch_attr_i(l, ATTR_SEQ, l->in[first].dim[0]),
            .width = l->in[first].dim[2],
            .n_heads = l->in[first].dim[1],
            .n_kv_heads = l->in[first + 1].dim[1],
            .window = launch_attr_i(l, ATTR_WINDOW, 0),
            .scale = launch_attr_f(l, ATTR_SCALE, 1),
            .cap = launch_attr_f(l, ATTR_CAP, 0),
    };
}

/* The score of query token `tq` and key token `tk`, after the cap; *slope is the factor
 * that the cap puts on its gradient. */
static double attn_score(const struct attn *a, int64_t tq, int64_t head, int64_t tk,
                         double *slope)
{
    int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    int64_t at_q = (tq * a->n_heads + head) * a->width;
    int64_t at_k = (tk * a->n_kv_heads + kv_head) * a->width;
    double dot = 0;
    for (int64_t d = 0; d < a->width; d++)
        dot += view_get(a->q, at_q + d) * view_get(a->k, at_k + d);
    double s = a->scale * dot;
    *slope = 1;
    if (a->cap > 0) {
        double r = tanh(s / a->cap);
        *slope = 1 - r * r;
        s = a->cap * r;
    }
    return s;
}

/* First token that query token t sees, both counted from the micro-batch's start. */
static int64_t attn_first(const struct attn *a, int64_t t)
{
    int64_t i = t % a->n_seq_tokens, base = t - i;
    int64_t first = (int64_t)view_get(a->doc_start, t);
    if (a->window > 0)
        first = MAX(first, i - a->window + 1);
    return base + MAX(first, 0);
}

static double *attn_scratch(const struct kernel_call *c, const struct attn *a,
                            int thread)
{
    int64_t part = cpu_scratch_part((a->n_seq_tokens + 2 * a->width) * 8);
    return (double *)((char *)c->l->scratch + part * thread);
}

static int64_t attn_scratch_bytes(const struct launch *l, int n_threads)
{
    struct attn a = attn_read(l, l->op->kind == OP_ATTENTION ? 0 : 1);
    return cpu_scratch_part((a.n_seq_tokens + 2 * a.width) * 8) * n_threads;
}

static void attn_query(const struct kernel_call *c, const struct attn *a, int64_t t,
                       int64_t head, double *score)
{
    const struct launch *l = c->l;
    int64_t first = attn_first(a, t), n = t - first + 1;
    int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    double max = -INFINITY, sum = 0, slope;
    for (int64_t j = 0; j < n; j++) {
        score[j] = attn_score(a, t, head, first + j, &slope);
        max = fmax(max, score[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        score[j] = exp(score[j] - max);
        sum += score[j];
    }
    for (int64_t d = 0; d < a->width; d++) {
        double o = 0;
        for (int64_t j = 0; j < n; j++)
            o += score[j] *
                 view_get(a->v, ((first + j) * a->n_kv_heads + kv_head) * a->width + d);
        view_set(&l->out[0], (t * a->n_heads + head) * a->width + d, o / sum);
    }
    if (view_is_present(&l->out[1]))
        view_set(&l->out[1], t * a->n_heads + head, max + log(sum));
}

static void attention_span(const struct kernel_call *c, int64_t begin, int64_t end,
                           int thread)
{
    struct attn a = attn_read(c->l, 0);
    double *score = attn_scratch(c, &a, thread);
    for (int64_t i = begin; i < end; i++)
        attn_query(c, &a, i / a.n_heads, i % a.n_heads, score);
}

static void attention_run(const struct kernel_call *c)
{
    cpu_run_spans(c, c->l->in[0].dim[0] * c->l->in[0].dim[1], 1, attention_span);
}

/* What the gradient needs of one pair of query and key: p the probability, ds the
 * gradient of the scaled product before the cap. */
struct attn_pair {
    double p, ds;
};

static struct attn_pair attn_pair_grad(const struct launch *l, const struct attn *a,
                                       int64_t tq, int64_t head, int64_t tk)
{
    const struct view *d_out = &l->in[0], *o = &l->in[4], *lse = &l->in[5];
    int64_t at = (tq * a->n_heads + head) * a->width;
    int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    int64_t at_v = (tk * a->n_kv_heads + kv_head) * a->width;
    double slope, s = attn_score(a, tq, head, tk, &slope);
    double p = exp(s - view_get(lse, tq * a->n_heads + head));
    double dp = 0, delta = 0;
    for (int64_t d = 0; d < a->width; d++) {
        dp += view_get(d_out, at + d) * view_get(a->v, at_v + d);
        delta += view_get(d_out, at + d) * view_get(o, at + d);
    }
    return (struct attn_pair){p, p * (dp - delta) * slope * a->scale};
}

static void attention_dq_span(const struct kernel_call *c, int64_t begin, int64_t end,
                              int thread)
{
    struct attn a = attn_read(c->l, 1);
    double *ds = attn_scratch(c, &a, thread);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / a.n_heads, head = i % a.n_heads;
        int64_t first = attn_first(&a, t), n = t - first + 1;
        int64_t kv_head = head / (a.n_heads / a.n_kv_heads);
        for (int64_t j = 0; j < n; j++)
            ds[j] = attn_pair_grad(c->l, &a, t, head, first + j).ds;
        for (int64_t d = 0; d < a.width; d++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++)
                sum += ds[j] *
                       view_get(a.k,
                                ((first + j) * a.n_kv_heads + kv_head) * a.width + d);
            view_set(&c->l->out[0], i * a.width + d, sum);
        }
    }
}

/* Adds what the queries of one head give to the key and value of token tk. */
static void attn_dkv_head(const struct launch *l, const struct attn *a, int64_t tk,
                          int64_t head, double *dk, double *dv)
{
    int64_t seq_end = MIN((tk / a->n_seq_tokens + 1) * a->n_seq_tokens, a->q->dim[0]);
    for (int64_t t = tk; t < seq_end; t++) {
        if (attn_first(a, t) > tk)
            continue;
        struct attn_pair pair = attn_pair_grad(l, a, t, head, tk);
        int64_t at = (t * a->n_heads + head) * a->width;
        for (int64_t d = 0; d < a->width; d++) {
            dk[d] += pair.ds * view_get(a->q, at + d);
            dv[d] += pair.p * view_get(&l->in[0], at + d);
        }
    }
}

static void attention_dkv_span(const struct kernel_call *c, int64_t begin, int64_t end,
                               int thread)
{
    struct attn a = attn_read(c->l, 1);
    double *dk = attn_scratch(c, &a, thread), *dv = dk + a.width;
    int64_t n_group = a.n_heads / a.n_kv_heads;
    for (int64_t i = begin; i < end; i++) {
        int64_t tk = i / a.n_kv_heads, kv_head = i % a.n_kv_heads;
        for (int64_t d = 0; d < 2 * a.width; d++)
            dk[d] = 0;
        for (int64_t h = 0; h < n_group; h++)
            attn_dkv_head(c->l, &a, tk, kv_head * n_group + h, dk, dv);
        for (int64_t d = 0; d < a.width; d++) {
            view_set(&c->l->out[1], i * a.width + d, dk[d]);
            view_set(&c->l->out[2], i * a.width + d, dv[d]);
        }
    }
}

static void attention_dx_run(const struct kernel_call *c)
{
    const struct view *q = &c->l->in[1], *k = &c->l->in[2];
    cpu_run_spans(c, q->dim[0] * q->dim[1], 1, attention_dq_span);
    cpu_run_spans(c, k->dim[0] * k->dim[1], 1, attention_dkv_span);
}

static const struct kernel_row rows[] = {
        {.kind = OP_ATTENTION,
         .name = "attention_ref",
         .scratch_bytes = attn_scratch_bytes,
         .run = attention_run},
        {.kind = OP_ATTENTION_DX,
         .name = "attention_dx_ref",
         .scratch_bytes = attn_scratch_bytes,
         .run = attention_dx_run},
};

const struct kernel_table ref_attention_table = {rows, ARRAY_LEN(rows)};
