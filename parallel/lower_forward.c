/* The forward pass of a decoder-only transformer, layer by layer. The backward pass is
 * derived from it (core/diff.h). */
#include <string.h>

#include "core/op.h"
#include "parallel/lower_private.h"

static const struct config_model *cfg(const struct lowering *l)
{
    return &l->m->config;
}

static struct op_args args(enum op_kind kind, int32_t layer)
{
    return op_args_init(kind, PHASE_FORWARD, layer);
}

static uint32_t emit(struct lowering *l, struct op_args *a)
{
    program_op(l->p, a);
    return a->out[0];
}

static uint32_t emit_add(struct lowering *l, int32_t layer, uint32_t x, uint32_t y)
{
    struct op_args a = args(OP_ADD, layer);
    op_args_in(&a, x);
    op_args_in(&a, y);
    return emit(l, &a);
}

/* Registers a weight that the forward pass reads; `row` is its first row. */
uint32_t lower_use(struct lowering *l, uint32_t weight, uint32_t grad, uint32_t row)
{
    vec_push(&l->weights, weight);
    vec_push(&l->grads, grad);
    vec_push(&l->rows, row);
    return weight;
}

static uint32_t use_param(struct lowering *l, enum param_role role, int32_t layer)
{
    uint32_t row = lower_param_id(l, role, layer);
    return lower_use(l, l->weight[row], l->out->params[row].grad, row);
}

static bool has(const struct lowering *l, enum param_role role, int32_t layer)
{
    return model_param(l->m, role, layer) != NULL;
}

static uint32_t use_span(struct lowering *l, enum param_role first,
                         enum param_role last, int32_t layer)
{
    uint32_t a = lower_param_id(l, first, layer), b = lower_param_id(l, last, layer);
    if (a == b)
        return use_param(l, first, layer);
    return lower_use(l, lower_span(l, a, b, false), lower_span(l, a, b, true), a);
}

/* ------------------------------------------------- between the ranks of a tensor group */

static bool is_tensor_parallel(const struct lowering *l)
{
    return l->degree[MESH_TP] > 1;
}

/* All tokens from the group's shares of them; without a group, x. */
uint32_t lower_emit_gather(struct lowering *l, int32_t layer, uint32_t x)
{
    if (!is_tensor_parallel(l))
        return x;
    struct op_args a = args(OP_ALL_GATHER, layer);
    lower_group_attrs(l, &a, GROUP_TENSOR);
    op_args_in(&a, x);
    return emit(l, &a);
}

/* This rank's share of the tokens of a sum over the group. */
static uint32_t emit_scatter(struct lowering *l, int32_t layer, uint32_t x)
{
    if (!is_tensor_parallel(l))
        return x;
    struct op_args a = args(OP_REDUCE_SCATTER, layer);
    lower_group_attrs(l, &a, GROUP_TENSOR);
    if (l->p->values.data[x].dtype != l->o->compute)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, l->o->compute);
    op_args_in(&a, x);
    return emit(l, &a);
}

/* x w^T (+ bias) for rows first..last of the table; the ranks of a tensor group hold
 * different outputs. */
static uint32_t emit_linear(struct lowering *l, int32_t layer, uint32_t x,
                            enum param_role first, enum param_role last,
                            enum param_role first_bias, enum param_role last_bias)
{
    struct op_args a = args(OP_LINEAR, layer);
    op_args_in(&a, x);
    op_args_in(&a, use_span(l, first, last, layer));
    if (has(l, first_bias, layer))
        op_args_in(&a, use_span(l, first_bias, last_bias, layer));
    return emit(l, &a);
}

/* x w^T (+ bias) where the ranks of a tensor group hold different inputs: each makes a
 * term of the sum, and the bias comes once, after it. */
static uint32_t emit_linear_sum(struct lowering *l, int32_t layer, uint32_t x,
                                enum param_role weight, enum param_role bias)
{
    if (!is_tensor_parallel(l))
        return emit_linear(l, layer, x, weight, weight, bias, bias);
    struct op_args a = args(OP_LINEAR, layer);
    op_args_in(&a, x);
    op_args_in(&a, use_param(l, weight, layer));
    if (l->o->compute == DT_BF16 && !l->o->layout.tp_bf16)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, DT_F32);
    uint32_t y = emit_scatter(l, layer, emit(l, &a));
    if (!has(l, bias, layer))
        return y;
    struct op_args b = args(OP_ADD_BIAS, layer);
    op_args_in(&b, y);
    op_args_in(&b, use_param(l, bias, layer));
    return emit(l, &b);
}

static uint32_t emit_rmsnorm(struct lowering *l, int32_t layer, uint32_t x,
                             enum param_role weight)
{
    struct op_args a = args(OP_RMSNORM, layer);
    op_args_in(&a, x);
    op_args_in(&a, use_param(l, weight, layer));
    op_args_attr_f(&a, ATTR_EPS, cfg(l)->norm_eps);
    if (cfg(l)->norm_plus_one)
        op_args_attr_i(&a, ATTR_PLUS_ONE, 1);
    return emit(l, &a);
}

/* The model's norm; its bias, where it has one, is the role behind the weight's. */
static uint32_t emit_norm(struct lowering *l, int32_t layer, uint32_t x,
                          enum param_role weight)
{
    if (cfg(l)->norm == NORM_RMSNORM)
        return emit_rmsnorm(l, layer, x, weight);
    struct op_args a = args(OP_LAYERNORM, layer);
    op_args_in(&a, x);
    op_args_in(&a, use_param(l, weight, layer));
    op_args_in(&a, use_param(l, weight + 1, layer));
    op_args_attr_f(&a, ATTR_EPS, cfg(l)->norm_eps);
    return emit(l, &a);
}

static uint32_t view3(struct lowering *l, uint32_t base, int64_t col, int64_t heads,
                      const char *name, int32_t layer)
{
    int64_t dim[3] = {l->tokens, heads, cfg(l)->head_dim};
    return program_view_cols(l->p, base, col, 3, dim, "%s@%d", name, (int)layer);
}

static uint32_t view2(struct lowering *l, uint32_t base, int64_t col, int64_t width,
                      const char *name, int32_t layer)
{
    int64_t dim[2] = {l->tokens, width};
    return program_view_cols(l->p, base, col, 2, dim, "%s@%d", name, (int)layer);
}

/* Rotates in place: the unrotated values are not needed again. */
static uint32_t emit_rope(struct lowering *l, int32_t layer, uint32_t x,
                          const char *name)
{
    if (cfg(l)->position != POSITION_ROPE)
        return x;
    struct op_args a = args(OP_ROPE, layer);
    op_args_in(&a, x);
    op_args_in(&a, l->out->positions);
    op_args_in(&a, l->rope_table);
    a.out[0] = program_value_inplace(l->p, x, "%s.rope@%d", name, (int)layer);
    return emit(l, &a);
}

/* Queries or keys: columns of the fused product, normalised and rotated. */
static uint32_t emit_heads(struct lowering *l, int32_t layer, uint32_t qkv, int64_t col,
                           int64_t heads, enum param_role norm, const char *name)
{
    enum model_qk_norm mode = cfg(l)->qk_norm;
    uint32_t x;
    if (mode == QK_NORM_FULL) {
        int64_t width = heads * cfg(l)->head_dim;
        uint32_t n =
                emit_rmsnorm(l, layer, view2(l, qkv, col, width, name, layer), norm);
        x = view3(l, n, 0, heads, name, layer);
    } else {
        x = view3(l, qkv, col, heads, name, layer);
        if (mode == QK_NORM_HEAD)
            x = emit_rmsnorm(l, layer, x, norm);
    }
    return emit_rope(l, layer, x, name);
}

/* Of every window_every layers the last one sees all keys. */
static int64_t window_of(const struct lowering *l, int32_t layer)
{
    int64_t every = cfg(l)->window_every;
    bool global = every > 1 && layer % every == every - 1;
    return global ? 0 : cfg(l)->window;
}

static uint32_t emit_attention(struct lowering *l, int32_t layer, uint32_t x)
{
    const struct config_model *c = cfg(l);
    int64_t heads = c->heads / l->degree[MESH_TP];
    int64_t kv_heads = MAX(c->kv_heads / l->degree[MESH_TP], 1);
    int64_t q_width = heads * c->head_dim, kv_width = kv_heads * c->head_dim;
    uint32_t qkv = emit_linear(l, layer, lower_emit_gather(l, layer, x), ROLE_Q, ROLE_V,
                               ROLE_Q_BIAS, ROLE_V_BIAS);
    struct op_args a = args(OP_ATTENTION, layer);
    op_args_in(&a, emit_heads(l, layer, qkv, 0, heads, ROLE_Q_NORM, "q"));
    op_args_in(&a, emit_heads(l, layer, qkv, q_width, kv_heads, ROLE_K_NORM, "k"));
    op_args_in(&a, view3(l, qkv, q_width + kv_width, kv_heads, "v", layer));
    op_args_in(&a, l->out->doc_start);
    op_args_attr_i(&a, ATTR_SEQ, l->o->seq_len);
    op_args_attr_f(&a, ATTR_SCALE, c->attn_scale);
    if (window_of(l, layer))
        op_args_attr_i(&a, ATTR_WINDOW, window_of(l, layer));
    if (c->attn_softcap > 0)
        op_args_attr_f(&a, ATTR_CAP, c->attn_softcap);
    uint32_t o = view2(l, emit(l, &a), 0, q_width, "o", layer);
    lower_probe_activation(l, PROBE_ATTN_LSE, layer, a.out[1]);
    return emit_linear_sum(l, layer, o, ROLE_O, ROLE_O_BIAS);
}

static uint32_t emit_ffn(struct lowering *l, int32_t layer, uint32_t x)
{
    static const struct {
        enum op_kind kind;
        enum act_kind act;
    } act_of[] = {
            [MODEL_ACT_SWIGLU] = {OP_GLU, ACT_SILU},
            [MODEL_ACT_GEGLU] = {OP_GLU, ACT_GELU_TANH},
            [MODEL_ACT_GELU] = {OP_ACT, ACT_GELU},
            [MODEL_ACT_GELU_TANH] = {OP_ACT, ACT_GELU_TANH},
    };
    enum model_act act = cfg(l)->act;
    bool gated = act_of[act].kind == OP_GLU;
    x = lower_emit_gather(l, layer, x);
    uint32_t h = gated ? emit_linear(l, layer, x, ROLE_GATE, ROLE_UP, ROLE_GATE_BIAS,
                                     ROLE_UP_BIAS)
                       : emit_linear(l, layer, x, ROLE_UP, ROLE_UP, ROLE_UP_BIAS,
                                     ROLE_UP_BIAS);
    struct op_args a = args(act_of[act].kind, layer);
    op_args_in(&a, h);
    op_args_attr_i(&a, ATTR_ACT, act_of[act].act);
    return emit_linear_sum(l, layer, emit(l, &a), ROLE_DOWN, ROLE_DOWN_BIAS);
}

/* One sub-layer f with its norms and the residual connection. */
static uint32_t emit_sublayer(struct lowering *l, int32_t layer, uint32_t x,
                              enum param_role norm, enum param_role post_norm,
                              uint32_t (*f)(struct lowering *, int32_t, uint32_t))
{
    enum model_norm_order order = cfg(l)->norm_order;
    uint32_t h = x;
    if (order == ORDER_PRE || order == ORDER_SANDWICH)
        h = emit_norm(l, layer, h, norm);
    h = f(l, layer, h);
    if (order == ORDER_POST || order == ORDER_SANDWICH)
        h = emit_norm(l, layer, h, post_norm);
    x = emit_add(l, layer, x, h);
    return order == ORDER_RESIDUAL ? emit_norm(l, layer, x, post_norm) : x;
}

/* The positions of the tokens that this rank has between products. */
static uint32_t local_positions(struct lowering *l)
{
    if (!is_tensor_parallel(l))
        return l->out->positions;
    const struct prog_value all = l->p->values.data[l->out->positions];
    int64_t at = l->coord[MESH_TP] * l->tokens_local * (int64_t)sizeof(int32_t);
    uint32_t v = program_value(l->p, all.storage, at, DT_I32, 1, &l->tokens_local,
                               "positions.local");
    memcpy(l->p->values.data[v].layout, all.layout, sizeof(all.layout));
    l->p->values.data[v].layout[MESH_TP] = 0;
    return v;
}

/* The first row of the vocabulary that is here, for ops that look tokens up in it. */
void lower_vocab_attr(struct lowering *l, struct op_args *a, uint32_t row)
{
    if (is_tensor_parallel(l))
        op_args_attr_i(a, ATTR_BEGIN, l->out->params[row].begin[0]);
}

static uint32_t emit_embedding(struct lowering *l)
{
    lower_zero_gather_row(l, lower_param_id(l, ROLE_EMBED, -1));
    struct op_args a = args(OP_EMBED, -1);
    op_args_in(&a, use_param(l, ROLE_EMBED, -1));
    op_args_in(&a, l->out->tokens);
    if (cfg(l)->embed_scale != 1.0)
        op_args_attr_f(&a, ATTR_SCALE, cfg(l)->embed_scale);
    lower_vocab_attr(l, &a, lower_param_id(l, ROLE_EMBED, -1));
    uint32_t x = emit_scatter(l, -1, emit(l, &a));
    if (cfg(l)->position != POSITION_LEARNED)
        return x;
    lower_zero_gather_row(l, lower_param_id(l, ROLE_POS_EMBED, -1));
    struct op_args b = args(OP_EMBED, -1);
    op_args_in(&b, use_param(l, ROLE_POS_EMBED, -1));
    op_args_in(&b, local_positions(l));
    return emit_add(l, -1, x, emit(l, &b));
}

uint32_t lower_forward(struct lowering *l, int32_t chunk, uint32_t x)
{
    int32_t begin, end;
    lower_chunk_layers(l, chunk, &begin, &end);
    if (lower_chunk_is_first(l, chunk)) {
        x = emit_embedding(l);
        lower_probe_activation(l, PROBE_RESIDUAL, -1, x);
    }
    if (begin < end)
        lower_zero_gather_layer(l, begin);
    for (int32_t i = begin; i < end; i++) {
        if (i + 1 < end)
            lower_zero_gather_layer(l, i + 1);
        x = emit_sublayer(l, i, x, ROLE_ATTN_NORM, ROLE_ATTN_POST_NORM, emit_attention);
        x = emit_sublayer(l, i, x, ROLE_FFN_NORM, ROLE_FFN_POST_NORM, emit_ffn);
        lower_probe_activation(l, PROBE_RESIDUAL, i, x);
    }
    if (!lower_chunk_is_last(l, chunk))
        return x;
    return lower_emit_gather(l, -1, emit_norm(l, -1, x, ROLE_FINAL_NORM));
}
