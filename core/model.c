#include "core/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "core/rng.h"

/* Sizes that shapes in the table refer to. */
enum size_name {
    SIZE_ONE,
    SIZE_VOCAB,
    SIZE_POSITIONS,
    SIZE_HIDDEN,
    SIZE_Q,  /* heads * head_dim */
    SIZE_KV, /* kv_heads * head_dim */
    SIZE_FFN,
    SIZE_Q_NORM, /* head_dim, or SIZE_Q when the norm spans the projection */
    SIZE_K_NORM,
    SIZE_COUNT
};

/* When a row exists. */
enum row_if {
    IF_ALWAYS,
    IF_LEARNED, /* learned positions */
    IF_PRE,     /* a norm before the sub-layer */
    IF_POST,    /* a norm after the sub-layer */
    IF_QK_NORM,
    IF_GATED,
    IF_QKV_BIAS,
    IF_ALL_BIAS,
    IF_GATED_BIAS,
    IF_UNTIED,
    IF_COUNT
};

/* Rows that lie in one storage when they follow each other. */
enum fuse_name {
    FUSE_NONE,
    FUSE_QKV,
    FUSE_QKV_BIAS,
    FUSE_GATE_UP,
    FUSE_GATE_UP_BIAS,
};

struct row {
    enum param_role role;
    const char *name; /* "%d" stands for the layer */
    enum row_if when;
    enum size_name rows, cols; /* cols SIZE_ONE: a vector */
    enum param_kind kind;
    int8_t parallel_axis;
    enum fuse_name fuse;
    bool residual_out; /* writes to the residual stream: smaller initial values */
};

static const struct row embed_rows[] = {
        {ROLE_EMBED, "embed.weight", IF_ALWAYS, SIZE_VOCAB, SIZE_HIDDEN,
         PARAM_EMBEDDING, 0, FUSE_NONE, false},
        {ROLE_POS_EMBED, "pos_embed.weight", IF_LEARNED, SIZE_POSITIONS, SIZE_HIDDEN,
         PARAM_EMBEDDING, -1, FUSE_NONE, false},
};

/* NORM(role, name, condition, size) gives the weight's row and the bias's. */
#define NORM(ROLE, name, when, size)                                                   \
    {ROLE, name ".weight", when, size, SIZE_ONE, PARAM_NORM, -1, FUSE_NONE, false},    \
    {                                                                                  \
        ROLE##_BIAS, name ".bias", when, size, SIZE_ONE, PARAM_BIAS, -1, FUSE_NONE,    \
                false                                                                  \
    }

static const struct row layer_rows[] = {
        NORM(ROLE_ATTN_NORM, "layers.%d.attn_norm", IF_PRE, SIZE_HIDDEN),
        {ROLE_Q, "layers.%d.attn.q.weight", IF_ALWAYS, SIZE_Q, SIZE_HIDDEN,
         PARAM_MATRIX, 0, FUSE_QKV, false},
        {ROLE_K, "layers.%d.attn.k.weight", IF_ALWAYS, SIZE_KV, SIZE_HIDDEN,
         PARAM_MATRIX, 0, FUSE_QKV, false},
        {ROLE_V, "layers.%d.attn.v.weight", IF_ALWAYS, SIZE_KV, SIZE_HIDDEN,
         PARAM_MATRIX, 0, FUSE_QKV, false},
        {ROLE_Q_BIAS, "layers.%d.attn.q.bias", IF_QKV_BIAS, SIZE_Q, SIZE_ONE,
         PARAM_BIAS, 0, FUSE_QKV_BIAS, false},
        {ROLE_K_BIAS, "layers.%d.attn.k.bias", IF_QKV_BIAS, SIZE_KV, SIZE_ONE,
         PARAM_BIAS, 0, FUSE_QKV_BIAS, false},
        {ROLE_V_BIAS, "layers.%d.attn.v.bias", IF_QKV_BIAS, SIZE_KV, SIZE_ONE,
         PARAM_BIAS, 0, FUSE_QKV_BIAS, false},
        {ROLE_Q_NORM, "layers.%d.attn.q_norm.weight", IF_QK_NORM, SIZE_Q_NORM, SIZE_ONE,
         PARAM_NORM, -1, FUSE_NONE, false},
        {ROLE_K_NORM, "layers.%d.attn.k_norm.weight", IF_QK_NORM, SIZE_K_NORM, SIZE_ONE,
         PARAM_NORM, -1, FUSE_NONE, false},
        {ROLE_O, "layers.%d.attn.o.weight", IF_ALWAYS, SIZE_HIDDEN, SIZE_Q,
         PARAM_MATRIX, 1, FUSE_NONE, true},
        {ROLE_O_BIAS, "layers.%d.attn.o.bias", IF_ALL_BIAS, SIZE_HIDDEN, SIZE_ONE,
         PARAM_BIAS, -1, FUSE_NONE, false},
        NORM(ROLE_ATTN_POST_NORM, "layers.%d.attn_post_norm", IF_POST, SIZE_HIDDEN),
        NORM(ROLE_FFN_NORM, "layers.%d.ffn_norm", IF_PRE, SIZE_HIDDEN),
        {ROLE_GATE, "layers.%d.ffn.gate.weight", IF_GATED, SIZE_FFN, SIZE_HIDDEN,
         PARAM_MATRIX, 0, FUSE_GATE_UP, false},
        {ROLE_UP, "layers.%d.ffn.up.weight", IF_ALWAYS, SIZE_FFN, SIZE_HIDDEN,
         PARAM_MATRIX, 0, FUSE_GATE_UP, false},
        {ROLE_GATE_BIAS, "layers.%d.ffn.gate.bias", IF_GATED_BIAS, SIZE_FFN, SIZE_ONE,
         PARAM_BIAS, 0, FUSE_GATE_UP_BIAS, false},
        {ROLE_UP_BIAS, "layers.%d.ffn.up.bias", IF_ALL_BIAS, SIZE_FFN, SIZE_ONE,
         PARAM_BIAS, 0, FUSE_GATE_UP_BIAS, false},
        {ROLE_DOWN, "layers.%d.ffn.down.weight", IF_ALWAYS, SIZE_HIDDEN, SIZE_FFN,
         PARAM_MATRIX, 1, FUSE_NONE, true},
        {ROLE_DOWN_BIAS, "layers.%d.ffn.down.bias", IF_ALL_BIAS, SIZE_HIDDEN, SIZE_ONE,
         PARAM_BIAS, -1, FUSE_NONE, false},
        NORM(ROLE_FFN_POST_NORM, "layers.%d.ffn_post_norm", IF_POST, SIZE_HIDDEN),
};

static const struct row head_rows[] = {
        NORM(ROLE_FINAL_NORM, "final_norm", IF_ALWAYS, SIZE_HIDDEN),
        {ROLE_HEAD, "head.weight", IF_UNTIED, SIZE_VOCAB, SIZE_HIDDEN, PARAM_MATRIX, 0,
         FUSE_NONE, false},
};

static bool act_is_gated(enum model_act act)
{
    return act == MODEL_ACT_SWIGLU || act == MODEL_ACT_GEGLU;
}

static void fill_conditions(const struct config_model *c, bool when[IF_COUNT])
{
    bool all = c->bias == BIAS_ALL, gated = act_is_gated(c->act);
    when[IF_ALWAYS] = true;
    when[IF_LEARNED] = c->position == POSITION_LEARNED;
    when[IF_PRE] = c->norm_order == ORDER_PRE || c->norm_order == ORDER_SANDWICH;
    when[IF_POST] = c->norm_order != ORDER_PRE;
    when[IF_QK_NORM] = c->qk_norm != QK_NORM_NONE;
    when[IF_GATED] = gated;
    when[IF_QKV_BIAS] = c->bias != BIAS_NONE;
    when[IF_ALL_BIAS] = all;
    when[IF_GATED_BIAS] = all && gated;
    when[IF_UNTIED] = !c->tied;
}

static void fill_sizes(const struct config_model *c, int64_t size[SIZE_COUNT])
{
    bool full = c->qk_norm == QK_NORM_FULL;
    size[SIZE_ONE] = 1;
    size[SIZE_VOCAB] = c->vocab;
    size[SIZE_POSITIONS] = c->max_positions;
    size[SIZE_HIDDEN] = c->hidden;
    size[SIZE_Q] = c->heads * c->head_dim;
    size[SIZE_KV] = c->kv_heads * c->head_dim;
    size[SIZE_FFN] = c->ffn;
    size[SIZE_Q_NORM] = full ? size[SIZE_Q] : c->head_dim;
    size[SIZE_K_NORM] = full ? size[SIZE_KV] : c->head_dim;
}

struct build {
    struct model *m;
    VEC(struct param) params;
    bool when[IF_COUNT];
    int64_t size[SIZE_COUNT];
    enum fuse_name last_fuse;
    int32_t last_layer;
    uint32_t n_fused;
};

static enum param_init init_of(const struct row *r, const struct config_model *c)
{
    if (r->kind == PARAM_BIAS)
        return INIT_ZERO;
    if (r->kind == PARAM_NORM)
        return c->norm_plus_one ? INIT_ZERO : INIT_ONE;
    return INIT_NORMAL;
}

/* Only layer norm has a bias. */
static bool is_norm_bias_without_layernorm(const struct row *r,
                                           const struct config_model *c)
{
    return r->kind == PARAM_BIAS && strstr(r->name, "norm.bias") &&
           c->norm != NORM_LAYERNORM;
}

static void add_row(struct build *b, const struct row *r, int32_t layer)
{
    const struct config_model *c = &b->m->config;
    if (!b->when[r->when] || is_norm_bias_without_layernorm(r, c))
        return;
    char name[96];
    size_t layer_at = strcspn(r->name, "%");
    if (r->name[layer_at])
        snprintf(name, sizeof(name), "%.*s%d%s", (int)layer_at, r->name, (int)layer,
                 r->name + layer_at + 2);
    else
        snprintf(name, sizeof(name), "%s", r->name);
    bool joins =
            r->fuse != FUSE_NONE && r->fuse == b->last_fuse && layer == b->last_layer;
    b->n_fused += !joins;
    b->last_fuse = r->fuse;
    b->last_layer = layer;
    /* Projections into the residual stream start smaller, so that its variance does not
     * grow with depth. source: Radford et al., GPT-2, section 2.3. */
    double std = c->init_std;
    if (r->residual_out)
        std /= sqrt(2.0 * (double)c->layers);
    struct param p = {.name = arena_strdup(&b->m->arena, name),
                      .role = r->role,
                      .layer = layer,
                      .ndim = r->cols == SIZE_ONE ? 1 : 2,
                      .dim = {b->size[r->rows], b->size[r->cols]},
                      .kind = r->kind,
                      .init = init_of(r, c),
                      .init_std = std,
                      .parallel_axis = r->parallel_axis,
                      .expert_axis = -1,
                      .replica = REPLICA_DENSE,
                      .fuse = b->n_fused - 1};
    vec_push(&b->params, p);
}

void model_create(const struct config_model *config, struct model *out)
{
    memset(out, 0, sizeof(*out));
    out->config = *config;
    struct build b = {.m = out, .last_layer = -1};
    fill_conditions(config, b.when);
    fill_sizes(config, b.size);
    for (size_t i = 0; i < ARRAY_LEN(embed_rows); i++)
        add_row(&b, &embed_rows[i], -1);
    for (int32_t l = 0; l < config->layers; l++)
        for (size_t i = 0; i < ARRAY_LEN(layer_rows); i++)
            add_row(&b, &layer_rows[i], l);
    for (size_t i = 0; i < ARRAY_LEN(head_rows); i++)
        add_row(&b, &head_rows[i], -1);
    out->n_params = b.params.n;
    out->params = arena_array(&out->arena, struct param, b.params.n);
    memcpy(out->params, b.params.data, b.params.n * sizeof(*out->params));
    vec_free(&b.params);
}

void model_free(struct model *m)
{
    arena_release(&m->arena);
    memset(m, 0, sizeof(*m));
}

const struct param *model_param(const struct model *m, enum param_role role,
                                int32_t layer)
{
    for (uint32_t i = 0; i < m->n_params; i++)
        if (m->params[i].role == role && m->params[i].layer == layer)
            return &m->params[i];
    return NULL;
}

int64_t param_elems(const struct param *p)
{
    int64_t n;
    if (!mul_i64(p->dim[0], p->dim[1], &n))
        BUG("parameter %s overflows", p->name);
    return n;
}

enum status model_count_params(const struct model *m, int64_t *out, struct diag *diag)
{
    int64_t total = 0;
    for (uint32_t i = 0; i < m->n_params; i++) {
        int64_t n;
        if (!mul_i64(m->params[i].dim[0], m->params[i].dim[1], &n) ||
            !add_i64(total, n, &total) || total > INT64_MAX / 32)
            return diag_set(diag, ST_CONFIG,
                            "the model is too large (%s): its parameters do not fit in "
                            "64-bit byte counts",
                            m->params[i].name);
    }
    *out = total;
    return ST_OK;
}

bool param_decays(const struct param *p, const struct config_optimizer *o)
{
    const bool decays[PARAM_KIND_COUNT] = {[PARAM_MATRIX] = true,
                                           [PARAM_EMBEDDING] = o->decay_embeddings,
                                           [PARAM_NORM] = o->decay_norms,
                                           [PARAM_BIAS] = o->decay_biases};
    return decays[p->kind];
}

void param_init_values(const struct param *p, uint64_t seed, int64_t first, int64_t n,
                       float *out)
{
    if (p->init != INIT_NORMAL) {
        for (int64_t i = 0; i < n; i++)
            out[i] = p->init == INIT_ONE ? 1.0f : 0.0f;
        return;
    }
    rng_normal(seed, hash64_text(p->name), first, n, out);
    float std = (float)p->init_std;
    for (int64_t i = 0; i < n; i++)
        out[i] *= std;
}
