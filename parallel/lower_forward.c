/* The forward pass of a decoder-only transformer, layer by layer. The backward pass is
 * derived from it (core/diff.h). */
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

/* Registers a weight that the forward pass reads. */
static uint32_t use(struct lowering *l, uint32_t weight, uint32_t grad)
{
    vec_push(&l->weights, weight);
    vec_push(&l->grads, grad);
    return weight;
}

static uint32_t use_param(struct lowering *l, enum param_role role, int32_t layer)
{
    const struct lowered_param *p = &l->out->params[lower_param_id(l, role, layer)];
    return use(l, p->weight, p->grad);
}

static bool has(const struct lowering *l, enum param_role role, int32_t layer)
{
    return model_param(l->m, role, layer) != NULL;
}

/* One value over rows of the table that lie back to back (first .. last role). */
static uint32_t span(struct lowering *l, uint32_t first, uint32_t last, bool grad)
{
    const struct lowered_param *p = l->out->params;
    uint32_t v0 = grad ? p[first].grad : p[first].weight;
    struct prog_value head = l->p->values.data[v0];
    int64_t dim[2] = {0, head.dim[1]};
    for (uint32_t i = first; i <= last; i++)
        dim[0] += l->m->params[i].dim[0];
    return program_value(l->p, head.storage, head.byte_offset, (enum dtype)head.dtype,
                         head.ndim, dim, "%s..", prog_name(l->p, head.name));
}

static uint32_t use_span(struct lowering *l, enum param_role first,
                         enum param_role last, int32_t layer)
{
    uint32_t a = lower_param_id(l, first, layer), b = lower_param_id(l, last, layer);
    if (a == b)
        return use_param(l, first, layer);
    return use(l, span(l, a, b, false), span(l, a, b, true));
}

/* x w^T (+ bias) for rows first..last of the table. */
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
    int64_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    uint32_t qkv = emit_linear(l, layer, x, ROLE_Q, ROLE_V, ROLE_Q_BIAS, ROLE_V_BIAS);
    struct op_args a = args(OP_ATTENTION, layer);
    op_args_in(&a, emit_heads(l, layer, qkv, 0, c->heads, ROLE_Q_NORM, "q"));
    op_args_in(&a, emit_heads(l, layer, qkv, q_width, c->kv_heads, ROLE_K_NORM, "k"));
    op_args_in(&a, view3(l, qkv, q_width + kv_width, c->kv_heads, "v", layer));
    op_args_in(&a, l->out->doc_start);
    op_args_attr_i(&a, ATTR_SEQ, l->o->seq_len);
    op_args_attr_f(&a, ATTR_SCALE, c->attn_scale);
    if (window_of(l, layer))
        op_args_attr_i(&a, ATTR_WINDOW, window_of(l, layer));
    if (c->attn_softcap > 0)
        op_args_attr_f(&a, ATTR_CAP, c->attn_softcap);
    uint32_t o = view2(l, emit(l, &a), 0, q_width, "o", layer);
    lower_probe_activation(l, PROBE_ATTN_LSE, layer, a.out[1]);
    return emit_linear(l, layer, o, ROLE_O, ROLE_O, ROLE_O_BIAS, ROLE_O_BIAS);
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
    uint32_t h = gated ? emit_linear(l, layer, x, ROLE_GATE, ROLE_UP, ROLE_GATE_BIAS,
                                     ROLE_UP_BIAS)
                       : emit_linear(l, layer, x, ROLE_UP, ROLE_UP, ROLE_UP_BIAS,
                                     ROLE_UP_BIAS);
    struct op_args a = args(act_of[act].kind, layer);
    op_args_in(&a, h);
    op_args_attr_i(&a, ATTR_ACT, act_of[act].act);
    return emit_linear(l, layer, emit(l, &a), ROLE_DOWN, ROLE_DOWN, ROLE_DOWN_BIAS,
                       ROLE_DOWN_BIAS);
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

static uint32_t emit_embedding(struct lowering *l)
{
    struct op_args a = args(OP_EMBED, -1);
    op_args_in(&a, use_param(l, ROLE_EMBED, -1));
    op_args_in(&a, l->out->tokens);
    if (cfg(l)->embed_scale != 1.0)
        op_args_attr_f(&a, ATTR_SCALE, cfg(l)->embed_scale);
    uint32_t x = emit(l, &a);
    if (cfg(l)->position != POSITION_LEARNED)
        return x;
    struct op_args b = args(OP_EMBED, -1);
    op_args_in(&b, use_param(l, ROLE_POS_EMBED, -1));
    op_args_in(&b, l->out->positions);
    return emit_add(l, -1, x, emit(l, &b));
}

/* A tied head reads the embedding table as a weight of its own, with its own gradient. */
static uint32_t head_weight(struct lowering *l)
{
    if (!cfg(l)->tied)
        return use_param(l, ROLE_HEAD, -1);
    uint32_t embed = l->out->params[lower_param_id(l, ROLE_EMBED, -1)].weight;
    struct prog_value v = l->p->values.data[embed];
    uint32_t w = program_value(l->p, v.storage, v.byte_offset, (enum dtype)v.dtype,
                               v.ndim, v.dim, "head.weight");
    return use(l, w, l->head_grad);
}

static uint32_t emit_head(struct lowering *l, uint32_t x)
{
    struct op_args a = args(OP_LINEAR, -1);
    op_args_in(&a, emit_norm(l, -1, x, ROLE_FINAL_NORM));
    op_args_in(&a, head_weight(l));
    if (l->o->compute == DT_BF16)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, DT_F32);
    uint32_t logits = emit(l, &a);
    if (cfg(l)->final_softcap > 0) {
        struct op_args s = args(OP_SOFTCAP, -1);
        op_args_in(&s, logits);
        op_args_attr_f(&s, ATTR_CAP, cfg(l)->final_softcap);
        logits = emit(l, &s);
    }
    lower_probe_activation(l, PROBE_LOGITS, -1, logits);
    struct op_args x_ent = args(OP_XENT, -1);
    op_args_in(&x_ent, logits);
    op_args_in(&x_ent, l->out->labels);
    return emit(l, &x_ent);
}

uint32_t lower_forward(struct lowering *l)
{
    uint32_t x = emit_embedding(l);
    lower_probe_activation(l, PROBE_RESIDUAL, -1, x);
    for (int32_t i = 0; i < cfg(l)->layers; i++) {
        x = emit_sublayer(l, i, x, ROLE_ATTN_NORM, ROLE_ATTN_POST_NORM, emit_attention);
        x = emit_sublayer(l, i, x, ROLE_FFN_NORM, ROLE_FFN_POST_NORM, emit_ffn);
        lower_probe_activation(l, PROBE_RESIDUAL, i, x);
    }
    return emit_head(l, x);
}
