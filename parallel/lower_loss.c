/* The head and the loss: logits, cross-entropy and their gradients, chunk of tokens by
 * chunk, so that the logits of a whole micro-batch are never held. */
#include <string.h>

#include "core/hyper.h"
#include "core/op.h"
#include "parallel/lower_private.h"

/* Bytes of one chunk's logits. Small enough to be a small part of memory, large enough that
 * reading the head's weights again for every chunk costs little. */
#define CHUNK_BYTES   ((int64_t)128 << 20)
#define CHUNK_ALIGNED 128

static struct op_args args(enum op_kind kind)
{
    return op_args_init(kind, PHASE_FORWARD, -1);
}

static uint32_t emit(struct lowering *l, struct op_args *a)
{
    program_op(l->p, a);
    return a->out[0];
}

static uint32_t head_row(const struct lowering *l)
{
    return lower_param_id(l, l->m->config.tied ? ROLE_EMBED : ROLE_HEAD, -1);
}

/* A tied head reads the embedding table as a weight of its own, with its own gradient. */
static uint32_t head_weight(struct lowering *l)
{
    uint32_t row = head_row(l);
    if (l->head_grad == NONE_ID)
        return lower_use(l, l->weight[row], l->out->params[row].grad, row);
    struct prog_value v = l->p->values.data[l->weight[row]];
    uint32_t w = program_value(l->p, v.storage, v.byte_offset, (enum dtype)v.dtype,
                               v.ndim, v.dim, "head.weight");
    memcpy(l->p->values.data[w].layout, v.layout, sizeof(v.layout));
    return lower_use(l, w, l->head_grad, row);
}

static uint32_t emit_logits(struct lowering *l, uint32_t x, uint32_t w, bool probe)
{
    double cap = l->m->config.final_softcap;
    struct op_args a = args(OP_LINEAR);
    op_args_in(&a, x);
    op_args_in(&a, w);
    if (l->o->compute == DT_BF16)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, DT_F32);
    uint32_t logits = emit(l, &a);
    if (cap > 0) {
        struct op_args s = args(OP_SOFTCAP);
        op_args_in(&s, logits);
        op_args_attr_f(&s, ATTR_CAP, cap);
        logits = emit(l, &s);
    }
    if (probe)
        lower_probe_activation(l, PROBE_LOGITS, -1, logits);
    return logits;
}

/* Token losses, written to `loss`. The ranks of a tensor group hold columns of the logits:
 * each tells what its part of every row's sum is. */
static void emit_xent(struct lowering *l, uint32_t logits, uint32_t labels,
                      uint32_t loss)
{
    struct op_args x = args(OP_XENT);
    op_args_in(&x, logits);
    op_args_in(&x, labels);
    if (l->degree[MESH_TP] > 1) {
        struct op_args s = args(OP_XENT_STATS);
        op_args_in(&s, logits);
        op_args_in(&s, labels);
        lower_vocab_attr(l, &s, head_row(l));
        op_args_in(&x, lower_emit_gather(l, -1, emit(l, &s)));
        lower_vocab_attr(l, &x, head_row(l));
    }
    x.out[0] = loss;
    program_op(l->p, &x);
}

/* The summed loss, and the scale of its gradient: a view of the params block. */
static void emit_loss_sum(struct lowering *l, uint32_t loss)
{
    if (l->coord[MESH_TP] > 0)
        return; /* all ranks of a tensor group have the same loss: one adds it */
    struct op_args a = args(OP_SUM);
    op_args_in(&a, loss);
    op_args_in(&a, l->out->loss_sum);
    a.out[0] = l->out->loss_sum;
    program_op(l->p, &a);
}

static uint32_t inv_tokens_value(struct lowering *l)
{
    const struct prog_value *h = &l->p->values.data[l->out->hyper];
    int64_t one = 1;
    return program_value(l->p, h->storage, HYPER_INV_TOKENS * (int64_t)sizeof(float),
                         DT_F32, 1, &one, "inv_tokens");
}

/* A transient tensor of all tokens that is written chunk by chunk. */
static uint32_t declare_rows(struct lowering *l, enum dtype dtype, int ndim,
                             const int64_t *dim, const char *name)
{
    int64_t bytes = dim[0] * (ndim > 1 ? dim[1] : 1) * (int64_t)dtype_bytes(dtype);
    uint32_t s = program_storage(l->p, SC_WORKSPACE, SLOT_NONE, bytes, "%s", name);
    uint32_t v = program_value(l->p, s, 0, dtype, ndim, dim, "%s", name);
    if (l->degree[MESH_DP] > 1)
        l->p->values.data[v].layout[MESH_DP] = 0;
    return v;
}

/* Terms of a sum over the tensor group, in f32 until they are summed. */
static uint32_t declare_input_grad(struct lowering *l, uint32_t x)
{
    const struct prog_value v = l->p->values.data[x];
    bool parts = l->degree[MESH_TP] > 1;
    bool wide = parts && !l->o->layout.tp_bf16 && v.dtype == DT_BF16;
    uint32_t dx = declare_rows(l, wide ? DT_F32 : (enum dtype)v.dtype, 2, v.dim, "d.x");
    if (parts)
        l->p->values.data[dx].layout[MESH_TP] = LAYOUT_PARTIAL;
    return dx;
}

static int64_t chunk_rows(const struct lowering *l)
{
    int64_t row_bytes = l->out->params[head_row(l)].dim[0] * (int64_t)sizeof(float);
    int64_t rows = CHUNK_BYTES / row_bytes / CHUNK_ALIGNED * CHUNK_ALIGNED;
    return MIN(MAX(rows, CHUNK_ALIGNED), l->tokens);
}

/* One chunk: rows of x, labels and losses, and of the gradient of x (or NONE_ID). */
static void emit_chunk(struct lowering *l, uint32_t x, uint32_t labels, uint32_t loss,
                       uint32_t dx, bool probe)
{
    uint32_t seed = inv_tokens_value(l), first = l->weights.n;
    struct diff_options o = diff_options_init();
    o.within = true;
    o.op_begin = l->p->ops.n;
    uint32_t w = head_weight(l);
    emit_xent(l, emit_logits(l, x, w, probe), labels, loss);
    if (dx == NONE_ID)
        return;
    o.output = &loss;
    o.seed = &seed;
    o.n_outputs = 1;
    o.weight = l->weights.data + first;
    o.grad = l->grads.data + first;
    o.n_weights = l->weights.n - first;
    o.input = x;
    o.input_grad = dx;
    o.wide_partials = !l->o->layout.tp_bf16;
    differentiate(l->p, &o);
}

uint32_t lower_loss(struct lowering *l, uint32_t x, bool trains)
{
    int64_t rows = chunk_rows(l);
    enum dtype acc = l->o->compute == DT_F64 ? DT_F64 : DT_F32;
    lower_zero_gather_row(l, head_row(l));
    uint32_t loss = declare_rows(l, acc, 1, &l->tokens, "loss");
    uint32_t dx = trains ? declare_input_grad(l, x) : NONE_ID;
    for (int64_t at = 0; at < l->tokens; at += rows) {
        int64_t n = MIN(rows, l->tokens - at);
        emit_chunk(l, program_view_rows(l->p, x, at, n, "x.rows"),
                   program_view_rows(l->p, l->out->labels, at, n, "labels.rows"),
                   program_view_rows(l->p, loss, at, n, "loss.rows"),
                   trains ? program_view_rows(l->p, dx, at, n, "d.x.rows") : NONE_ID,
                   at == 0);
    }
    emit_loss_sum(l, loss);
    lower_probe_loss(l, loss);
    return dx;
}
