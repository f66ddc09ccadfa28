/* Shape rules: what an op accepts, and the dtype and shape of what it makes. */
#include "core/hyper.h"
#include "core/op_rules.h"
#include "core/stats.h"

#define REQUIRE(cond, message)                                                         \
    do {                                                                               \
        if (!(cond))                                                                   \
            return message;                                                            \
    } while (0)

static void set_shape(struct op_shape *o, enum dtype dtype, int ndim, int64_t d0,
                      int64_t d1, int64_t d2)
{
    o->dtype = (uint8_t)dtype;
    o->ndim = (uint8_t)ndim;
    o->dim[0] = d0;
    o->dim[1] = d1;
    o->dim[2] = d2;
}

static void copy_shape(struct op_shape *o, const struct prog_value *v)
{
    o->dtype = v->dtype;
    o->ndim = v->ndim;
    for (int i = 0; i < v->ndim; i++)
        o->dim[i] = v->dim[i];
}

static bool same_shape(const struct prog_value *a, const struct prog_value *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

/* f64 stays f64 (the double-precision reference); everything else accumulates in f32. */
static enum dtype acc_dtype(const struct prog_value *v)
{
    return v->dtype == DT_F64 ? DT_F64 : DT_F32;
}

static bool is_vector(const struct prog_value *v, int64_t n)
{
    return v->ndim == 1 && v->dim[0] == n;
}

static bool is_matrix(const struct prog_value *v, int64_t rows, int64_t cols)
{
    return v->ndim == 2 && v->dim[0] == rows && v->dim[1] == cols;
}

static bool is_ids(const struct prog_value *v, int64_t tokens)
{
    return v->dtype == DT_I32 && is_vector(v, tokens);
}

const char *shape_rope_table(const struct op_ctx *c, struct op_shape *out)
{
    int64_t dim = op_attr_i(c->prog, c->op, ATTR_DIM, 0);
    int64_t rows = op_attr_i(c->prog, c->op, ATTR_ROWS, 0);
    REQUIRE(dim > 0 && dim % 2 == 0, "dim must be even and positive");
    REQUIRE(rows > 0, "rows must be positive");
    set_shape(out, DT_F32, 3, rows, dim / 2, 2);
    if (op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, DT_F32) == DT_F64)
        out->dtype = DT_F64;
    return NULL;
}

const char *shape_embed(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *table = ctx_in(c, 0), *ids = ctx_in(c, 1);
    REQUIRE(table->ndim == 2, "the table must have two axes");
    REQUIRE(ids->ndim == 1 && ids->dtype == DT_I32, "ids must be i32[T]");
    set_shape(out, (enum dtype)table->dtype, 2, ids->dim[0], table->dim[1], 0);
    return NULL;
}

const char *shape_embed_dw(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dx = ctx_in(c, 0), *ids = ctx_in(c, 1), *g = ctx_in(c, 2);
    REQUIRE(dx->ndim == 2 && is_ids(ids, dx->dim[0]), "ids must be i32[T] for dx[T,H]");
    REQUIRE(g->ndim == 2 && g->dim[1] == dx->dim[1], "the gradient must be [V,H]");
    REQUIRE(g->dtype == acc_dtype(dx),
            "the gradient must be of the accumulation dtype");
    copy_shape(out, g);
    return NULL;
}

const char *shape_same1(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(dtype_is_float((enum dtype)ctx_in(c, 0)->dtype),
            "the input must be a float");
    copy_shape(out, ctx_in(c, 0));
    return NULL;
}

const char *shape_same2(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, 1)), "both inputs must have one shape");
    REQUIRE(ctx_in(c, 0)->dtype == ctx_in(c, 1)->dtype,
            "both inputs must have one dtype");
    return shape_same1(c, out);
}

const char *shape_linear(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *x = ctx_in(c, 0), *w = ctx_in(c, 1);
    REQUIRE(x->ndim == 2 && w->ndim == 2, "x and w must have two axes");
    REQUIRE(x->dim[1] == w->dim[1], "x[T,K] and w[N,K] must share K");
    REQUIRE(x->dtype == w->dtype, "x and w must have one dtype");
    REQUIRE(value_is_contiguous(w), "w must be contiguous");
    if (c->op->n_in > 2)
        REQUIRE(is_vector(ctx_in(c, 2), w->dim[0]), "bias must be [N]");
    int64_t dtype = op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, x->dtype);
    set_shape(out, (enum dtype)dtype, 2, x->dim[0], w->dim[0], 0);
    return NULL;
}

const char *shape_linear_dx(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dy = ctx_in(c, 0), *w = ctx_in(c, 1);
    REQUIRE(dy->ndim == 2 && w->ndim == 2, "dy and w must have two axes");
    REQUIRE(dy->dim[1] == w->dim[0], "dy[T,N] and w[N,K] must share N");
    REQUIRE(dy->dtype == w->dtype, "dy and w must have one dtype");
    int64_t dtype = op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, dy->dtype);
    set_shape(out, (enum dtype)dtype, 2, dy->dim[0], w->dim[1], 0);
    if (c->op->n_in > 2)
        REQUIRE(is_matrix(ctx_in(c, 2), dy->dim[0], w->dim[1]), "acc must be [T,K]");
    return NULL;
}

const char *shape_linear_dw(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dy = ctx_in(c, 0), *x = ctx_in(c, 1), *g = ctx_in(c, 2);
    REQUIRE(dy->ndim == 2 && x->ndim == 2, "dy and x must have two axes");
    REQUIRE(dy->dim[0] == x->dim[0], "dy[T,N] and x[T,K] must share T");
    REQUIRE(dy->dtype == x->dtype, "dy and x must have one dtype");
    REQUIRE(is_matrix(g, dy->dim[1], x->dim[1]), "the gradient must be [N,K]");
    REQUIRE(g->dtype == acc_dtype(x), "the gradient must be of the accumulation dtype");
    copy_shape(out, g);
    return NULL;
}

const char *shape_linear_db(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dy = ctx_in(c, 0), *g = ctx_in(c, 1);
    REQUIRE(dy->ndim == 2 && is_vector(g, dy->dim[1]), "dy[T,N] and g[N] must share N");
    copy_shape(out, g);
    return NULL;
}

const char *shape_add_bias(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *x = ctx_in(c, 0);
    REQUIRE(x->ndim == 2 && is_vector(ctx_in(c, 1), x->dim[1]), "bias must be [N]");
    copy_shape(out, x);
    return NULL;
}

static int64_t last_dim(const struct prog_value *v)
{
    return v->dim[v->ndim - 1];
}

const char *shape_rmsnorm(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *x = ctx_in(c, 0), *w = ctx_in(c, 1);
    REQUIRE(x->ndim == 2 || x->ndim == 3, "x must have two or three axes");
    REQUIRE(is_vector(w, last_dim(x)), "the weight must be as long as the last axis");
    copy_shape(&out[0], x);
    set_shape(&out[1], acc_dtype(x), x->ndim - 1, x->dim[0], x->dim[1], 0);
    return NULL;
}

const char *shape_norm_dx(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dy = ctx_in(c, 0), *x = ctx_in(c, 1), *w = ctx_in(c, 2);
    REQUIRE(same_shape(dy, x), "dy and x must have one shape");
    REQUIRE(is_vector(w, last_dim(x)), "the weight must be as long as the last axis");
    int plain = op_desc((enum op_kind)c->op->kind)->n_in_min;
    if (c->op->n_in > plain)
        REQUIRE(same_shape(ctx_in(c, plain), x), "acc must have the shape of x");
    copy_shape(out, x);
    return NULL;
}

const char *shape_rmsnorm_dw(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, 1)), "dy and x must have one shape");
    REQUIRE(is_vector(ctx_in(c, 3), last_dim(ctx_in(c, 1))),
            "the gradient must be [D]");
    copy_shape(out, ctx_in(c, 3));
    return NULL;
}

const char *shape_layernorm(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *x = ctx_in(c, 0);
    REQUIRE(x->ndim == 2, "x must have two axes");
    REQUIRE(is_vector(ctx_in(c, 1), x->dim[1]), "the weight must be [D]");
    REQUIRE(is_vector(ctx_in(c, 2), x->dim[1]), "the bias must be [D]");
    copy_shape(&out[0], x);
    set_shape(&out[1], acc_dtype(x), 1, x->dim[0], 0, 0);
    out[2] = out[1];
    return NULL;
}

const char *shape_layernorm_dw(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, 1)), "dy and x must have one shape");
    REQUIRE(is_vector(ctx_in(c, 4), ctx_in(c, 1)->dim[1]), "the gradient must be [D]");
    REQUIRE(is_vector(ctx_in(c, 5), ctx_in(c, 1)->dim[1]), "the gradient must be [D]");
    copy_shape(&out[0], ctx_in(c, 4));
    copy_shape(&out[1], ctx_in(c, 5));
    return NULL;
}

const char *shape_rope(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *x = ctx_in(c, 0), *table = ctx_in(c, 2);
    REQUIRE(x->ndim == 3, "x must be [T,heads,D]");
    REQUIRE(is_ids(ctx_in(c, 1), x->dim[0]), "positions must be i32[T]");
    REQUIRE(table->ndim == 3 && table->dim[1] * 2 == x->dim[2] && table->dim[2] == 2,
            "the table must be [rows,D/2,2]");
    copy_shape(out, x);
    return NULL;
}

/* q at input `at`, then k and v. */
static const char *check_qkv(const struct op_ctx *c, int at,
                             const struct prog_value *doc)
{
    const struct prog_value *q = ctx_in(c, at), *k = ctx_in(c, at + 1),
                            *v = ctx_in(c, at + 2);
    int64_t seq = op_attr_i(c->prog, c->op, ATTR_SEQ, 0);
    REQUIRE(q->ndim == 3 && k->ndim == 3 && same_shape(k, v),
            "q, k, v must be [T,heads,D]");
    REQUIRE(q->dim[0] == k->dim[0] && q->dim[2] == k->dim[2],
            "q and k must share T and D");
    REQUIRE(k->dim[1] > 0 && q->dim[1] % k->dim[1] == 0,
            "query heads must be a multiple of key/value heads");
    REQUIRE(q->dtype == k->dtype && q->dtype == v->dtype,
            "q, k, v must have one dtype");
    REQUIRE(seq > 0 && q->dim[0] % seq == 0, "T must be a multiple of seq");
    REQUIRE(is_ids(doc, q->dim[0]), "doc_start must be i32[T]");
    return NULL;
}

const char *shape_attention(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = check_qkv(c, 0, ctx_in(c, 3));
    if (wrong)
        return wrong;
    const struct prog_value *q = ctx_in(c, 0);
    copy_shape(&out[0], q);
    set_shape(&out[1], acc_dtype(q), 2, q->dim[0], q->dim[1], 0);
    return NULL;
}

const char *shape_attention_dx(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = check_qkv(c, 1, ctx_in(c, 6));
    if (wrong)
        return wrong;
    REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, 1)), "do and q must have one shape");
    REQUIRE(same_shape(ctx_in(c, 4), ctx_in(c, 1)), "o and q must have one shape");
    for (int i = 0; i < 3; i++)
        copy_shape(&out[i], ctx_in(c, 1 + i));
    return NULL;
}

const char *shape_glu(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *gu = ctx_in(c, 0);
    REQUIRE(gu->ndim == 2 && gu->dim[1] % 2 == 0, "gu must be [T,2F]");
    set_shape(out, (enum dtype)gu->dtype, 2, gu->dim[0], gu->dim[1] / 2, 0);
    return NULL;
}

const char *shape_glu_dx(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *dh = ctx_in(c, 0), *gu = ctx_in(c, 1);
    REQUIRE(gu->ndim == 2 && is_matrix(dh, gu->dim[0], gu->dim[1] / 2),
            "dh must be [T,F] for gu[T,2F]");
    copy_shape(out, gu);
    return NULL;
}

const char *shape_xent(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *logits = ctx_in(c, 0);
    REQUIRE(logits->ndim == 2 && is_ids(ctx_in(c, 1), logits->dim[0]),
            "labels must be i32[T] for logits[T,V]");
    if (c->op->n_in > 2)
        REQUIRE(ctx_in(c, 2)->ndim == 3 && ctx_in(c, 2)->dim[1] == logits->dim[0] &&
                        ctx_in(c, 2)->dim[2] == 3,
                "stats must be [t,T,3]");
    set_shape(&out[0], acc_dtype(logits), 1, logits->dim[0], 0, 0);
    out[1] = out[0];
    return NULL;
}

const char *shape_xent_stats(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *logits = ctx_in(c, 0);
    REQUIRE(logits->ndim == 2 && is_ids(ctx_in(c, 1), logits->dim[0]),
            "labels must be i32[T] for logits[T,V]");
    set_shape(out, acc_dtype(logits), 3, 1, logits->dim[0], 3);
    return NULL;
}

const char *shape_xent_dx(const struct op_ctx *c, struct op_shape *out)
{
    const struct prog_value *logits = ctx_in(c, 0);
    REQUIRE(logits->ndim == 2 && is_vector(ctx_in(c, 1), logits->dim[0]),
            "lse must be [T]");
    REQUIRE(is_ids(ctx_in(c, 2), logits->dim[0]), "labels must be i32[T]");
    REQUIRE(is_vector(ctx_in(c, 3), 1), "scale must be [1]");
    copy_shape(out, logits);
    out->dtype = (uint8_t)op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, logits->dtype);
    return NULL;
}

const char *shape_sum(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(ctx_in(c, 0)->ndim == 1, "x must be [T]");
    REQUIRE(is_vector(ctx_in(c, 1), 1) && ctx_in(c, 1)->dtype == DT_F64,
            "the total must be f64[1]");
    copy_shape(out, ctx_in(c, 1));
    return NULL;
}

const char *shape_cast(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = shape_same1(c, out);
    if (!wrong)
        out->dtype = (uint8_t)op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, DT_F32);
    return wrong;
}

const char *shape_norm_sq(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(value_is_contiguous(ctx_in(c, 0)), "the gradient must be contiguous");
    set_shape(out, DT_F64, 1, ceil_div_i64(value_elems(ctx_in(c, 0)), NORM_BLOCK_ELEMS),
              0, 0);
    return NULL;
}

const char *shape_clip(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(ctx_in(c, 0)->dtype == DT_F64 && ctx_in(c, 0)->ndim == 1,
            "partial sums must be f64[n]");
    REQUIRE(is_vector(ctx_in(c, 1), HYPER_COUNT), "hyper must be [HYPER_COUNT]");
    REQUIRE(ctx_in(c, 2)->dtype == DT_F64 && is_vector(ctx_in(c, 2), 1),
            "the summed loss must be f64[1]");
    set_shape(&out[0], DT_F32, 1, 1, 0, 0);
    out[1] = out[0];
    set_shape(&out[2], DT_I32, 1, 1, 0, 0);
    return NULL;
}

const char *shape_adamw(const struct op_ctx *c, struct op_shape *out)
{
    for (int i = 1; i < 4; i++)
        REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, i)),
                "w, m, v, g must have one shape");
    for (int i = 0; i < 4; i++)
        REQUIRE(ctx_in(c, i)->dtype == DT_F32, "w, m, v, g must be f32");
    REQUIRE(is_vector(ctx_in(c, 5), HYPER_COUNT), "hyper must be [HYPER_COUNT]");
    for (int i = 0; i < 4; i++)
        copy_shape(&out[i], ctx_in(c, 0));
    out[3].dtype = DT_BF16;
    return NULL;
}

const char *shape_stats(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(dtype_is_float((enum dtype)ctx_in(c, 0)->dtype), "x must be of floats");
    set_shape(out, DT_F64, 1, STATS_COUNT, 0, 0);
    return NULL;
}

const char *shape_adamw_stats(const struct op_ctx *c, struct op_shape *out)
{
    REQUIRE(same_shape(ctx_in(c, 0), ctx_in(c, 1)), "m and v must have one shape");
    for (int i = 0; i < 2; i++)
        REQUIRE(ctx_in(c, i)->dtype == DT_F32, "m and v must be f32");
    REQUIRE(is_vector(ctx_in(c, 2), HYPER_COUNT), "hyper must be [HYPER_COUNT]");
    set_shape(out, DT_F64, 1, STATS_COUNT, 0, 0);
    return NULL;
}

/* ------------------------------------------------------------------ communication */

static const char *check_group(const struct op_ctx *c)
{
    int64_t members = op_attr_i(c->prog, c->op, ATTR_MEMBERS, 0);
    int64_t member = op_attr_i(c->prog, c->op, ATTR_MEMBER, -1);
    int64_t group = op_attr_i(c->prog, c->op, ATTR_GROUP, -1);
    int64_t cuts = op_attr_i(c->prog, c->op, ATTR_CUTS, -1);
    REQUIRE(group >= 0 && group < GROUP_COUNT, "there is no such group");
    REQUIRE(members > 0 && member >= 0 && member < members, "the rank is no member");
    REQUIRE(cuts < 0 || cuts + members < (int64_t)c->prog->cuts.n,
            "the cuts are outside of the table");
    for (int i = 0; i < c->op->n_in; i++)
        REQUIRE(value_is_contiguous(ctx_in(c, i)), "buffers must be contiguous");
    return NULL;
}

/* Rows of this member's part of a whole of `rows`. */
static int64_t part_rows(const struct op_ctx *c, int64_t rows)
{
    int64_t m = op_attr_i(c->prog, c->op, ATTR_MEMBER, 0);
    return op_cut(c->prog, c->op, rows, m + 1) - op_cut(c->prog, c->op, rows, m);
}

const char *shape_all_gather(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = check_group(c);
    if (wrong)
        return wrong;
    const struct prog_value *x = ctx_in(c, 0);
    int64_t members = op_attr_i(c->prog, c->op, ATTR_MEMBERS, 1), rows;
    REQUIRE(mul_i64(x->dim[0], members, &rows), "the whole is too large");
    if (op_attr_i(c->prog, c->op, ATTR_CUTS, -1) >= 0)
        rows = op_cut(c->prog, c->op, 0, members);
    REQUIRE(part_rows(c, rows) == x->dim[0], "x must be this member's part");
    copy_shape(out, x);
    out->dim[0] = rows;
    return NULL;
}

const char *shape_reduce_scatter(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = check_group(c);
    if (wrong)
        return wrong;
    const struct prog_value *x = ctx_in(c, 0);
    int64_t members = op_attr_i(c->prog, c->op, ATTR_MEMBERS, 1);
    bool cuts = op_attr_i(c->prog, c->op, ATTR_CUTS, -1) >= 0;
    REQUIRE(cuts ? op_cut(c->prog, c->op, 0, members) == x->dim[0]
                 : x->dim[0] % members == 0,
            "the parts must make up x");
    copy_shape(out, x);
    out->dim[0] = part_rows(c, x->dim[0]);
    out->dtype = (uint8_t)op_attr_i(c->prog, c->op, ATTR_OUT_DTYPE, x->dtype);
    if (c->op->n_in > 1) {
        const struct prog_value *acc = ctx_in(c, 1);
        REQUIRE(acc->dtype == out->dtype && acc->dim[0] == out->dim[0] &&
                        acc->ndim == x->ndim,
                "acc must be as the result");
    }
    return NULL;
}

const char *shape_all_reduce(const struct op_ctx *c, struct op_shape *out)
{
    const char *wrong = check_group(c);
    if (!wrong)
        copy_shape(out, ctx_in(c, 0));
    return wrong;
}

const char *shape_send(const struct op_ctx *c, struct op_shape *out)
{
    (void)out;
    return check_group(c);
}
