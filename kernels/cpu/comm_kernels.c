/* Communication: each row calls its op's group (core/comm.h) with the op's buffers. The
 * first failure names the op in front of what the group says. */
#include <string.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

#define ADD_UNIT 16384 /* elements a thread takes at least */

/* ------------------------------------------------------------------------ failures */

static const char *const op_words[OP_KIND_COUNT] = {
        [OP_ALL_GATHER] = "all-gather", [OP_REDUCE_SCATTER] = "reduce-scatter",
        [OP_ALL_REDUCE] = "all-reduce", [OP_SEND] = "sending",
        [OP_RECV] = "receiving",
};

static const char *const phase_words[] = {
        [PHASE_SETUP] = "tables",
        [PHASE_FORWARD] = "activations",
        [PHASE_DGRAD] = "gradients of activations",
        [PHASE_WGRAD] = "gradients of weights",
        [PHASE_OPTIM] = "optimizer's values",
};
_Static_assert(ARRAY_LEN(phase_words) == PHASE_COUNT, "one row per phase");

/* "all-reduce of layer 4's gradients of weights: ..." */
static void report(const struct kernel_call *c, enum status st)
{
    const struct prog_op *op = c->l->op;
    if (st == ST_OK)
        return;
    c->failure->st = st;
    if (op->layer >= 0)
        diag_context(&c->failure->diag, "%s of layer %d's %s", op_words[op->kind],
                     (int)op->layer, phase_words[op->phase]);
    else
        diag_context(&c->failure->diag, "%s of the %s", op_words[op->kind],
                     phase_words[op->phase]);
}

/* --------------------------------------------------------------------------- parts */

static int64_t row_elems(const struct view *v)
{
    return v->ndim < 2 ? 1 : view_cols(v);
}

static int64_t n_members(const struct launch *l)
{
    return launch_attr_i(l, ATTR_MEMBERS, 1);
}

static int64_t counts_bytes(const struct launch *l)
{
    return cpu_scratch_part(n_members(l) * (int64_t)sizeof(int64_t));
}

/* Elements of each member's part of `whole`, in scratch. */
static const int64_t *part_counts(const struct launch *l, const struct view *whole)
{
    int64_t *count = l->scratch;
    for (int64_t m = 0; m < n_members(l); m++)
        count[m] = (op_cut(l->prog, l->op, whole->dim[0], m + 1) -
                    op_cut(l->prog, l->op, whole->dim[0], m)) *
                   row_elems(whole);
    return count;
}

/* -------------------------------------------------------------------------- gather */

static int64_t gather_scratch(const struct launch *l, int n_threads)
{
    (void)n_threads;
    return counts_bytes(l);
}

static void all_gather_run(const struct kernel_call *c)
{
    const struct launch *l = c->l;
    struct comm *g = l->comm;
    ASSERT(view_is_contiguous(&l->out[0]));
    report(c, g->ops->all_gather(g, l->in[0].data, l->out[0].data,
                                 part_counts(l, &l->out[0]), l->in[0].dtype,
                                 &c->failure->diag));
}

/* -------------------------------------------------------------------------- reduce */

/* Whether the sum is not yet the result: it is rounded, or added to. */
static bool sum_is_staged(const struct launch *l)
{
    return l->op->n_in > 1 || l->in[0].dtype != l->out[0].dtype;
}

static int64_t reduce_scratch(const struct launch *l, int n_threads)
{
    (void)n_threads;
    int64_t bytes = counts_bytes(l);
    if (sum_is_staged(l))
        bytes += view_elems(&l->out[0]) * (int64_t)dtype_bytes(l->in[0].dtype);
    return bytes;
}

/* Local, so that the loops below become wide ones. source: core/dtype.c. */
static inline float widen(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint16_t narrow(float x)
{
    uint32_t u, rounded;
    memcpy(&u, &x, sizeof(u));
    rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}

struct staged {
    const void *sum; /* of in[0]'s dtype */
    const struct view *acc;
    const struct view *out;
};

static inline float load(const void *x, enum dtype t, int64_t i)
{
    return t == DT_F32 ? ((const float *)x)[i] : widen(((const uint16_t *)x)[i]);
}

/* out = sum (+ acc), rounded once; `from` and `to` are constants where it is inlined. */
static inline void finish(const struct staged *s, int64_t begin, int64_t end,
                          enum dtype from, enum dtype to)
{
    const void *acc = s->acc ? s->acc->data : NULL;
    for (int64_t i = begin; i < end; i++) {
        float x = load(s->sum, from, i) + (acc ? load(acc, to, i) : 0);
        if (to == DT_F32)
            ((float *)s->out->data)[i] = x;
        else
            ((uint16_t *)s->out->data)[i] = narrow(x);
    }
}

static void finish_any(const struct staged *s, int64_t begin, int64_t end,
                       enum dtype from)
{
    for (int64_t i = begin; i < end; i++) {
        double x = dtype_get(s->sum, from, i) + (s->acc ? view_get(s->acc, i) : 0);
        view_set(s->out, i, x);
    }
}

static bool is_short(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16;
}

static void finish_span(const struct kernel_call *c, int64_t begin, int64_t end,
                        int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    struct staged s = {(const char *)l->scratch + counts_bytes(l),
                       l->op->n_in > 1 ? &l->in[1] : NULL, &l->out[0]};
    enum dtype from = l->in[0].dtype, to = l->out[0].dtype;
    if (!is_short(from) || !is_short(to))
        finish_any(&s, begin, end, from);
    else if (from == DT_F32 && to == DT_F32)
        finish(&s, begin, end, DT_F32, DT_F32);
    else if (from == DT_F32)
        finish(&s, begin, end, DT_F32, DT_BF16);
    else if (to == DT_F32)
        finish(&s, begin, end, DT_BF16, DT_F32);
    else
        finish(&s, begin, end, DT_BF16, DT_BF16);
}

static void reduce_scatter_run(const struct kernel_call *c)
{
    const struct launch *l = c->l;
    struct comm *g = l->comm;
    bool staged = sum_is_staged(l);
    void *to = staged ? (char *)l->scratch + counts_bytes(l) : l->out[0].data;
    ASSERT(view_is_contiguous(&l->out[0]));
    enum status st =
            g->ops->reduce_scatter(g, l->in[0].data, to, part_counts(l, &l->in[0]),
                                   l->in[0].dtype, &c->failure->diag);
    if (st == ST_OK && staged)
        cpu_run_spans(c, view_elems(&l->out[0]), ADD_UNIT, finish_span);
    report(c, st);
}

static void all_reduce_run(const struct kernel_call *c)
{
    const struct launch *l = c->l;
    const struct view *x = &l->in[0], *y = &l->out[0];
    struct comm *g = l->comm;
    ASSERT(view_is_contiguous(y));
    if (y->data != x->data)
        memcpy(y->data, x->data, (size_t)view_elems(x) * dtype_bytes(x->dtype));
    report(c, g->ops->all_reduce(g, y->data, view_elems(y), y->dtype, COMM_SUM,
                                 &c->failure->diag));
}

/* ------------------------------------------------------------------------ messages */

static void send_run(const struct kernel_call *c)
{
    const struct view *x = &c->l->in[0];
    struct comm *g = c->l->comm;
    report(c, g->ops->send(g, x->data, view_elems(x), x->dtype,
                           (int)launch_attr_i(c->l, ATTR_PEER, 0), &c->failure->diag));
}

static void recv_run(const struct kernel_call *c)
{
    const struct view *y = &c->l->out[0];
    struct comm *g = c->l->comm;
    ASSERT(view_is_contiguous(y));
    report(c, g->ops->recv(g, y->data, view_elems(y), y->dtype,
                           (int)launch_attr_i(c->l, ATTR_PEER, 0), &c->failure->diag));
}

static const struct kernel_row rows[] = {
        {.kind = OP_ALL_GATHER,
         .name = "all_gather_comm",
         .scratch_bytes = gather_scratch,
         .run = all_gather_run},
        {.kind = OP_REDUCE_SCATTER,
         .name = "reduce_scatter_comm",
         .scratch_bytes = reduce_scratch,
         .run = reduce_scatter_run},
        {.kind = OP_ALL_REDUCE, .name = "all_reduce_comm", .run = all_reduce_run},
        {.kind = OP_SEND, .name = "send_comm", .run = send_run},
        {.kind = OP_RECV, .name = "recv_comm", .run = recv_run},
};

const struct kernel_table comm_kernels_table = {rows, ARRAY_LEN(rows)};
