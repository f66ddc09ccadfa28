#include "tests/lib/toy_program.h"

#include <stdio.h>
#include <string.h>

#include "core/diff.h"
#include "core/hyper.h"

struct builder {
    struct program *p;
    const struct toy *t;
    VEC(uint32_t) weights;
    VEC(uint32_t) grads;
    VEC(uint32_t) exp_avg;
    VEC(uint32_t) exp_avg_sq;
    uint32_t tokens, labels, positions, doc_start, table, hyper, loss_sum;
};

struct toy toy_small(void)
{
    return (struct toy){.layers = 2,
                        .hidden = 16,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 4,
                        .ffn = 24,
                        .vocab = 32,
                        .tokens = 8,
                        .seq = 4,
                        .micro_batches = 2};
}

static uint32_t plain(struct builder *b, enum storage_class cls, enum slotting slotting,
                      enum dtype dtype, int ndim, const int64_t *dim, const char *name)
{
    int64_t elems = 1;
    for (int i = 0; i < ndim; i++)
        elems *= dim[i];
    uint32_t s = program_storage(b->p, cls, slotting,
                                 elems * (int64_t)dtype_bytes(dtype), "%s", name);
    return program_value(b->p, s, 0, dtype, ndim, dim, "%s", name);
}

static uint32_t weight(struct builder *b, const char *name, int32_t layer, int64_t d0,
                       int64_t d1)
{
    static const char *const suffix[] = {"", ".m", ".v", ".grad"};
    static const enum storage_class cls[] = {SC_PARAM, SC_OPTIM, SC_OPTIM, SC_GRAD};
    int64_t dim[2] = {d0, d1};
    uint32_t v[4];
    char full[96];
    for (int i = 0; i < 4; i++) {
        snprintf(full, sizeof(full), "%s.%d%s", name, (int)layer, suffix[i]);
        v[i] = plain(b, cls[i], SLOT_NONE, DT_F32, d1 ? 2 : 1, dim, full);
    }
    vec_push(&b->weights, v[0]);
    vec_push(&b->exp_avg, v[1]);
    vec_push(&b->exp_avg_sq, v[2]);
    vec_push(&b->grads, v[3]);
    return v[0];
}

static uint32_t emit2(struct builder *b, enum op_kind kind, int32_t layer, uint32_t x,
                      uint32_t y)
{
    struct op_args a = op_args_init(kind, PHASE_FORWARD, layer);
    op_args_in(&a, x);
    op_args_in(&a, y);
    if (kind == OP_RMSNORM)
        op_args_attr_f(&a, ATTR_EPS, 1e-5);
    program_op(b->p, &a);
    return a.out[0];
}

static uint32_t rotate(struct builder *b, uint32_t x, const char *name, int32_t layer)
{
    struct op_args a = op_args_init(OP_ROPE, PHASE_FORWARD, layer);
    op_args_in(&a, x);
    op_args_in(&a, b->positions);
    op_args_in(&a, b->table);
    a.out[0] = program_value_inplace(b->p, x, "%s.rope@%d", name, (int)layer);
    program_op(b->p, &a);
    return a.out[0];
}

static uint32_t emit_attention(struct builder *b, int32_t layer, uint32_t qkv)
{
    const struct toy *t = b->t;
    int64_t q_dim[3] = {t->tokens, t->heads, t->head_dim};
    int64_t kv_dim[3] = {t->tokens, t->kv_heads, t->head_dim};
    int64_t q_width = t->heads * t->head_dim, kv_width = t->kv_heads * t->head_dim;
    uint32_t q = program_view_cols(b->p, qkv, 0, 3, q_dim, "q@%d", (int)layer);
    uint32_t k = program_view_cols(b->p, qkv, q_width, 3, kv_dim, "k@%d", (int)layer);
    uint32_t v = program_view_cols(b->p, qkv, q_width + kv_width, 3, kv_dim, "v@%d",
                                   (int)layer);
    struct op_args a = op_args_init(OP_ATTENTION, PHASE_FORWARD, layer);
    op_args_in(&a, rotate(b, q, "q", layer));
    op_args_in(&a, rotate(b, k, "k", layer));
    op_args_in(&a, v);
    op_args_in(&a, b->doc_start);
    op_args_attr_i(&a, ATTR_SEQ, t->seq);
    op_args_attr_f(&a, ATTR_SCALE, 0.5);
    program_op(b->p, &a);
    int64_t flat[2] = {t->tokens, q_width};
    return program_view_cols(b->p, a.out[0], 0, 2, flat, "o@%d", (int)layer);
}

static uint32_t emit_layer(struct builder *b, int32_t i, uint32_t x)
{
    const struct toy *t = b->t;
    int64_t qkv = (t->heads + 2 * t->kv_heads) * t->head_dim;
    uint32_t h = emit2(b, OP_RMSNORM, i, x, weight(b, "norm1", i, t->hidden, 0));
    h = emit2(b, OP_LINEAR, i, h, weight(b, "qkv", i, qkv, t->hidden));
    h = emit_attention(b, i, h);
    h = emit2(b, OP_LINEAR, i, h, weight(b, "o", i, t->hidden, t->heads * t->head_dim));
    x = emit2(b, OP_ADD, i, x, h);
    h = emit2(b, OP_RMSNORM, i, x, weight(b, "norm2", i, t->hidden, 0));
    h = emit2(b, OP_LINEAR, i, h, weight(b, "gate_up", i, 2 * t->ffn, t->hidden));
    struct op_args a = op_args_init(OP_GLU, PHASE_FORWARD, i);
    op_args_in(&a, h);
    op_args_attr_i(&a, ATTR_ACT, ACT_SILU);
    program_op(b->p, &a);
    h = emit2(b, OP_LINEAR, i, a.out[0], weight(b, "down", i, t->hidden, t->ffn));
    return emit2(b, OP_ADD, i, x, h);
}

static uint32_t emit_forward(struct builder *b)
{
    const struct toy *t = b->t;
    uint32_t x = emit2(b, OP_EMBED, -1, weight(b, "embed", -1, t->vocab, t->hidden),
                       b->tokens);
    for (int32_t i = 0; i < t->layers; i++)
        x = emit_layer(b, i, x);
    x = emit2(b, OP_RMSNORM, -1, x, weight(b, "norm", -1, t->hidden, 0));
    x = emit2(b, OP_LINEAR, -1, x, weight(b, "head", -1, t->vocab, t->hidden));
    uint32_t loss = emit2(b, OP_XENT, -1, x, b->labels);
    struct op_args a = op_args_init(OP_SUM, PHASE_FORWARD, -1);
    op_args_in(&a, loss);
    op_args_in(&a, b->loss_sum);
    a.out[0] = b->loss_sum;
    program_op(b->p, &a);
    return loss;
}

static void declare(struct builder *b)
{
    const struct toy *t = b->t;
    int64_t table[3] = {t->seq, t->head_dim / 2, 2}, one = 1, n_hyper = HYPER_COUNT;
    enum slotting mb = SLOT_MICRO_BATCH;
    b->tokens = plain(b, SC_INPUT, mb, DT_I32, 1, &t->tokens, "tokens");
    b->labels = plain(b, SC_INPUT, mb, DT_I32, 1, &t->tokens, "labels");
    b->positions = plain(b, SC_INPUT, mb, DT_I32, 1, &t->tokens, "positions");
    b->doc_start = plain(b, SC_INPUT, mb, DT_I32, 1, &t->tokens, "doc_start");
    b->table = plain(b, SC_CONST, SLOT_NONE, DT_F32, 3, table, "rope_table");
    b->hyper = plain(b, SC_PARAMS, SLOT_NONE, DT_F32, 1, &n_hyper, "hyper");
    b->loss_sum = plain(b, SC_OUTPUT, SLOT_NONE, DT_F64, 1, &one, "loss_sum");
}

static uint32_t setup_segment(struct builder *b)
{
    struct op_args a = op_args_init(OP_ROPE_TABLE, PHASE_SETUP, -1);
    op_args_attr_i(&a, ATTR_DIM, b->t->head_dim);
    op_args_attr_i(&a, ATTR_ROWS, b->t->seq);
    op_args_attr_f(&a, ATTR_ROPE_THETA, 10000);
    a.out[0] = b->table;
    program_segment_begin(b->p, "setup");
    program_op(b->p, &a);
    return program_segment_end(b->p);
}

static uint32_t zero_segment(struct builder *b)
{
    program_segment_begin(b->p, "zero");
    for (uint32_t i = 0; i <= b->grads.n; i++) {
        struct op_args a = op_args_init(OP_ZERO, PHASE_OPTIM, -1);
        a.out[0] = i < b->grads.n ? b->grads.data[i] : b->loss_sum;
        program_op(b->p, &a);
    }
    return program_segment_end(b->p);
}

static void emit_adamw(struct builder *b, uint32_t i, uint32_t scale, uint32_t ok)
{
    struct op_args a = op_args_init(OP_ADAMW, PHASE_OPTIM, -1);
    op_args_in(&a, b->weights.data[i]);
    op_args_in(&a, b->exp_avg.data[i]);
    op_args_in(&a, b->exp_avg_sq.data[i]);
    op_args_in(&a, b->grads.data[i]);
    op_args_in(&a, scale);
    op_args_in(&a, b->hyper);
    for (int k = 0; k < 3; k++)
        a.out[k] = a.in[k];
    a.out[3] = OUT_ABSENT;
    a.predicate = ok;
    program_op(b->p, &a);
}

static uint32_t optimizer_segment(struct builder *b)
{
    int64_t blocks = 0, one = 1;
    struct op_args clip = op_args_init(OP_CLIP, PHASE_OPTIM, -1);
    for (uint32_t i = 0; i < b->grads.n; i++)
        blocks += ceil_div_i64(value_elems(&b->p->values.data[b->grads.data[i]]),
                               NORM_BLOCK_ELEMS);
    op_args_in(&clip,
               plain(b, SC_WORKSPACE, SLOT_NONE, DT_F64, 1, &blocks, "partials"));
    op_args_in(&clip, b->hyper);
    op_args_in(&clip, b->loss_sum);
    clip.out[1] = plain(b, SC_OUTPUT, SLOT_NONE, DT_F32, 1, &one, "grad_norm");
    program_segment_begin(b->p, "optimizer");
    int64_t at = 0;
    for (uint32_t i = 0; i < b->grads.n; i++) {
        struct op_args a = op_args_init(OP_NORM_SQ, PHASE_OPTIM, -1);
        int64_t n = ceil_div_i64(value_elems(&b->p->values.data[b->grads.data[i]]),
                                 NORM_BLOCK_ELEMS);
        op_args_in(&a, b->grads.data[i]);
        a.out[0] = program_value(b->p, b->p->values.data[clip.in[0]].storage, at * 8,
                                 DT_F64, 1, &n, "partials.%u", i);
        program_op(b->p, &a);
        at += n;
    }
    program_op(b->p, &clip);
    for (uint32_t i = 0; i < b->grads.n; i++)
        emit_adamw(b, i, clip.out[0], clip.out[2]);
    return program_segment_end(b->p);
}

void toy_program(struct program *p, const struct toy *t)
{
    struct builder b = {.p = p, .t = t};
    program_init(p);
    declare(&b);
    uint32_t setup = setup_segment(&b);
    program_segment_begin(p, "forward");
    uint32_t loss = emit_forward(&b);
    uint32_t forward = program_segment_end(p);
    int64_t one = 1;
    uint32_t storage = p->values.data[b.hyper].storage;
    uint32_t seed = program_value(p, storage, HYPER_INV_TOKENS * (int64_t)sizeof(float),
                                  DT_F32, 1, &one, "inv_tokens");
    struct diff_options o = diff_options_init();
    o.segment = forward;
    o.name = "backward";
    o.output = &loss;
    o.seed = &seed;
    o.n_outputs = 1;
    o.weight = b.weights.data;
    o.grad = b.grads.data;
    o.n_weights = b.weights.n;
    uint32_t backward = differentiate(p, &o);
    uint32_t zero = zero_segment(&b);
    uint32_t optimizer = optimizer_segment(&b);
    program_call(p, CALL_SETUP, setup, 0, 0);
    program_call(p, CALL_STEP, zero, 0, 0);
    for (uint32_t i = 0; i < t->micro_batches; i++) {
        program_call(p, CALL_STEP, forward, i, 0);
        program_call(p, CALL_STEP, backward, i, 0);
    }
    program_call(p, CALL_STEP, optimizer, 0, 0);
    program_seal(p);
    vec_free(&b.weights);
    vec_free(&b.grads);
    vec_free(&b.exp_avg);
    vec_free(&b.exp_avg_sq);
}

uint32_t toy_find_segment(const struct program *p, const char *name)
{
    for (uint32_t s = 0; s < p->segments.n; s++)
        if (strcmp(prog_name(p, p->segments.data[s].name), name) == 0)
            return s;
    BUG("no segment %s", name);
}

uint32_t toy_find_op(const struct program *p, const char *segment, enum op_kind kind,
                     int32_t layer)
{
    const struct prog_segment *s = &p->segments.data[toy_find_segment(p, segment)];
    for (uint32_t o = s->op_begin; o < s->op_end; o++)
        if (p->ops.data[o].kind == kind && p->ops.data[o].layer == layer)
            return o;
    BUG("no op %d in segment %s", (int)kind, segment);
}
