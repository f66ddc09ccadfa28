/* The tensors of a rank: which parts of which parameters are here, how they lie in
 * storages, and who of the data group owns which elements. */
#include <string.h>

#include "core/hyper.h"
#include "parallel/lower_private.h"

/* Elements that one reduction of gradients takes at most: 16 MiB of f32. */
#define BUCKET_ELEMS ((int64_t)4 << 20)

static const struct {
    const char *suffix;
    enum storage_class cls;
} tensor_kinds[] = {
        [TENSOR_WEIGHT] = {"", SC_PARAM},
        [TENSOR_MASTER] = {".master", SC_OPTIM},
        [TENSOR_EXP_AVG] = {".exp_avg", SC_OPTIM},
        [TENSOR_EXP_AVG_SQ] = {".exp_avg_sq", SC_OPTIM},
        [TENSOR_GRAD] = {".grad", SC_GRAD},
};
_Static_assert(ARRAY_LEN(tensor_kinds) == TENSOR_KIND_COUNT, "one row per kind");

/* Vectors stay in f32: they are small, and norms and biases want the precision. */
enum dtype lower_weight_dtype(const struct lowering *l, const struct param *row)
{
    if (l->o->compute == DT_F64)
        return DT_F64;
    return row->ndim == 1 ? DT_F32 : l->o->compute;
}

enum dtype lower_grad_dtype(const struct lowering *l)
{
    return l->o->compute == DT_F64 ? DT_F64 : DT_F32;
}

bool lower_is_sharded(const struct lowering *l)
{
    return l->degree[MESH_DP] > 1 && l->o->layout.zero > 0 && l->o->compute != DT_F64;
}

/* ------------------------------------------------------------------------ local parts */

static bool is_kv(enum param_role role)
{
    return role == ROLE_K || role == ROLE_V || role == ROLE_K_BIAS ||
           role == ROLE_V_BIAS;
}

/* Rows (or columns) of part `shard` of `n`: parts differ by at most one. */
static int64_t cut_axis(int64_t dim, int32_t n, int32_t shard)
{
    return dim * shard / n;
}

static int64_t part_elems(const struct param *row, int32_t n, int32_t shard)
{
    if (n == 1)
        return param_elems(row);
    int64_t dim = row->dim[row->parallel_axis];
    return param_elems(row) / dim *
           (cut_axis(dim, n, shard + 1) - cut_axis(dim, n, shard));
}

static int64_t norm_blocks(int64_t elems)
{
    return ceil_div_i64(elems, NORM_BLOCK_ELEMS);
}

static bool stage_has_layer(const struct lowering *l, int32_t layer)
{
    for (int32_t c = 0; c < lower_chunks(l); c++) {
        int32_t begin, end;
        lower_chunk_layers(l, c, &begin, &end);
        if (begin <= layer && layer < end)
            return true;
    }
    return false;
}

static bool is_here(const struct lowering *l, const struct param *row)
{
    if (row->layer >= 0)
        return stage_has_layer(l, row->layer);
    if (row->role == ROLE_POS_EMBED)
        return lower_has_first(l);
    if (row->role == ROLE_EMBED)
        return lower_has_first(l) || (l->m->config.tied && lower_has_last(l));
    return lower_has_last(l);
}

/* The rank's part of row i in its tensor group, and its box. */
static void find_part(struct lowering *l, uint32_t i)
{
    const struct param *row = &l->m->params[i];
    struct local_param *p = &l->local[i];
    struct lowered_param *out = &l->out->params[i];
    int32_t t = l->degree[MESH_TP], r = l->coord[MESH_TP];
    int32_t kv = (int32_t)l->m->config.kv_heads;
    bool copies = is_kv(row->role) && t > kv;
    p->n_shards = row->parallel_axis < 0 ? 1 : copies ? kv : t;
    p->shard = p->n_shards == 1 ? 0 : copies ? r * kv / t : r;
    p->replicated = p->n_shards < t;
    bool lowest = !p->replicated || r == 0 || (copies && (r - 1) * kv / t != p->shard);
    bool first_end = row->role != ROLE_EMBED || lower_has_first(l);
    p->counts = lowest && first_end;
    p->here = is_here(l, row);
    p->elems = part_elems(row, p->n_shards, p->shard);
    out->here = p->here;
    out->first_copy = p->counts;
    for (int a = 0; a < row->ndim; a++) {
        bool split = p->n_shards > 1 && a == row->parallel_axis;
        int32_t n = split ? p->n_shards : 1, s = split ? p->shard : 0;
        out->begin[a] = cut_axis(row->dim[a], n, s);
        out->dim[a] = cut_axis(row->dim[a], n, s + 1) - out->begin[a];
    }
}

static void find_parts(struct lowering *l)
{
    l->local = mem_alloc(l->m->n_params * sizeof(*l->local));
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        find_part(l, i);
        int64_t first = l->n_norm_blocks;
        for (int32_t s = 0; s < l->local[i].n_shards; s++) {
            if (s == l->local[i].shard)
                l->local[i].norm_at = first;
            first += norm_blocks(part_elems(&l->m->params[i], l->local[i].n_shards, s));
        }
        l->n_norm_blocks = first;
    }
}

/* -------------------------------------------------------------------------- units */

/* Whether rows a and b are reduced alike and may lie in one storage. */
static bool same_unit(const struct lowering *l, uint32_t a, uint32_t b)
{
    const struct param *x = &l->m->params[a], *y = &l->m->params[b];
    if (x->fuse == y->fuse)
        return true;
    return l->degree[MESH_DP] > 1 && x->layer >= 0 && x->layer == y->layer &&
           x->ndim == y->ndim && (x->parallel_axis < 0) == (y->parallel_axis < 0);
}

static uint32_t find_unit(const struct lowering *l, uint32_t row)
{
    for (uint32_t u = l->units.n; u-- > 0;)
        if (same_unit(l, l->units.data[u].first, row))
            return u;
    return NONE_ID;
}

static enum status make_units(struct lowering *l, struct diag *diag)
{
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        struct local_param *p = &l->local[i];
        if (!p->here)
            continue;
        uint32_t u = find_unit(l, i);
        if (u == NONE_ID) {
            struct unit fresh = {.first = i, .layer = l->m->params[i].layer};
            memset(fresh.storage, 0xff, sizeof(fresh.storage)); /* NONE_ID */
            fresh.owned_weight = fresh.owned_grad = NONE_ID;
            vec_push(&l->units, fresh);
            u = l->units.n - 1;
        }
        struct unit *unit = &l->units.data[u];
        p->unit = u;
        p->at = unit->elems;
        int64_t bytes;
        if (!add_i64(unit->elems, p->elems, &unit->elems) ||
            !mul_i64(unit->elems, (int64_t)sizeof(double), &bytes))
            return diag_set(diag, ST_CONFIG,
                            "parameter %s is too large: its bytes overflow",
                            l->m->params[i].name);
    }
    return ST_OK;
}

/* ------------------------------------------------------------------------ buckets */

/* Ends a bucket with the blocks whose borders are given (n + 1 of them). */
static void close_bucket(struct lowering *l, uint32_t u, const int64_t *border,
                         uint32_t n)
{
    struct unit *unit = &l->units.data[u];
    int64_t dp = l->degree[MESH_DP], me = l->coord[MESH_DP];
    struct bucket b = {.unit = u,
                       .begin = border[0],
                       .n = border[n] - border[0],
                       .cuts = l->p->cuts.n,
                       .own_at = unit->owned_elems,
                       .sum = NONE_ID};
    for (int64_t r = 0; r <= dp; r++)
        vec_push(&l->p->cuts, border[n * r / dp] - border[0]);
    const int64_t *cut = l->p->cuts.data + b.cuts;
    b.own_begin = b.begin + cut[me];
    b.own_n = cut[me + 1] - cut[me];
    unit->owned_elems += b.own_n;
    vec_push(&l->buckets, b);
}

static void make_unit_buckets(struct lowering *l, uint32_t u)
{
    static const int64_t blocks_max = BUCKET_ELEMS / NORM_BLOCK_ELEMS;
    int64_t *border = mem_alloc((size_t)(blocks_max + 1) * sizeof(*border));
    uint32_t n = 0;
    l->units.data[u].bucket_first = l->buckets.n;
    for (uint32_t i = l->units.data[u].first; i < l->m->n_params; i++) {
        const struct local_param *p = &l->local[i];
        if (!p->here || p->unit != u)
            continue;
        for (int64_t at = 0; at < p->elems; at += NORM_BLOCK_ELEMS) {
            border[n++] = p->at + at;
            border[n] = p->at + MIN(at + NORM_BLOCK_ELEMS, p->elems);
            if (n == blocks_max) {
                close_bucket(l, u, border, n);
                n = 0;
            }
        }
    }
    if (n > 0)
        close_bucket(l, u, border, n);
    l->units.data[u].bucket_end = l->buckets.n;
    mem_free(border);
}

/* ----------------------------------------------------------------------- tensors */

static bool unit_has(const struct lowering *l, const struct unit *u,
                     enum tensor_kind kind)
{
    bool f64 = l->o->compute == DT_F64;
    const struct param *row = &l->m->params[u->first];
    if (kind == TENSOR_MASTER)
        return !f64 && (lower_weight_dtype(l, row) != DT_F32 || lower_is_sharded(l));
    return kind == TENSOR_WEIGHT || kind == TENSOR_GRAD || !f64;
}

static enum dtype kind_dtype(const struct lowering *l, const struct unit *u,
                             enum tensor_kind kind)
{
    return kind == TENSOR_WEIGHT ? lower_weight_dtype(l, &l->m->params[u->first])
           : kind == TENSOR_GRAD ? lower_grad_dtype(l)
                                 : DT_F32;
}

static bool is_state(enum tensor_kind kind)
{
    return kind == TENSOR_MASTER || kind == TENSOR_EXP_AVG || kind == TENSOR_EXP_AVG_SQ;
}

static uint32_t *param_slot(struct lowered_param *p, enum tensor_kind kind)
{
    uint32_t *const slot[TENSOR_KIND_COUNT] = {&p->weight, &p->master, &p->exp_avg,
                                               &p->exp_avg_sq, &p->grad};
    return slot[kind];
}

/* How a row's tensors are laid out over the mesh. Accumulators hold this rank's terms of
 * sums over the data group, and over the tensor group where all its ranks have the
 * weight and use it for tokens or heads of their own. */
static void set_layout(struct lowering *l, uint32_t value, const struct param *row,
                       enum tensor_kind kind)
{
    uint8_t *layout = l->p->values.data[value].layout;
    if (l->degree[MESH_TP] > 1)
        layout[MESH_TP] = row->parallel_axis >= 0 ? (uint8_t)row->parallel_axis
                          : kind == TENSOR_GRAD   ? LAYOUT_PARTIAL
                                                  : LAYOUT_REPLICATED;
    if (l->degree[MESH_DP] > 1 && kind == TENSOR_GRAD)
        layout[MESH_DP] = LAYOUT_PARTIAL;
}

/* The values of a unit's rows in one storage. */
void lower_declare_rows(struct lowering *l, uint32_t u, enum tensor_kind kind)
{
    const struct unit *unit = &l->units.data[u];
    enum dtype dtype = kind_dtype(l, unit, kind);
    for (uint32_t i = unit->first; i < l->m->n_params; i++) {
        const struct local_param *p = &l->local[i];
        const struct param *row = &l->m->params[i];
        if (!p->here || p->unit != u)
            continue;
        uint32_t v = program_value(l->p, unit->storage[kind],
                                   p->at * (int64_t)dtype_bytes(dtype), dtype,
                                   row->ndim, l->out->params[i].dim, "%s%s", row->name,
                                   tensor_kinds[kind].suffix);
        set_layout(l, v, row, kind);
        *param_slot(&l->out->params[i], kind) = v;
    }
}

static void declare_unit(struct lowering *l, uint32_t u, enum tensor_kind kind)
{
    struct unit *unit = &l->units.data[u];
    if (!unit_has(l, unit, kind))
        return;
    if (kind == TENSOR_WEIGHT && lower_unit_gathers(l, unit)) {
        if (kind_dtype(l, unit, kind) != DT_F32)
            unit->owned_weight = program_storage(
                    l->p, SC_PARAM, SLOT_NONE,
                    unit->owned_elems * (int64_t)dtype_bytes(kind_dtype(l, unit, kind)),
                    "%s.owned", l->m->params[unit->first].name);
        return;
    }
    if (kind == TENSOR_GRAD && lower_unit_sums_sharded(l, u))
        unit->owned_grad = program_storage(
                l->p, SC_GRAD, SLOT_NONE, unit->owned_elems * (int64_t)sizeof(float),
                "%s.owned_grad", l->m->params[unit->first].name);
    if (kind == TENSOR_GRAD && lower_unit_sums_sharded(l, u))
        return;
    bool cut = lower_is_sharded(l) && is_state(kind);
    int64_t elems = cut ? unit->owned_elems : unit->elems;
    unit->storage[kind] = program_storage(
            l->p, tensor_kinds[kind].cls, SLOT_NONE,
            elems * (int64_t)dtype_bytes(kind_dtype(l, unit, kind)), "%s%s",
            l->m->params[unit->first].name, tensor_kinds[kind].suffix);
    if (!cut)
        lower_declare_rows(l, u, kind);
}

/* ------------------------------------------------------------------------- pieces */

uint32_t lower_flat(struct lowering *l, uint32_t storage, enum dtype dtype, int64_t at,
                    int64_t n, const char *name)
{
    return program_value(l->p, storage, at * (int64_t)dtype_bytes(dtype), dtype, 1, &n,
                         "%s", name);
}

/* A flat value of a piece, laid out as the ranks hold it once gradients are summed. */
static uint32_t piece_value(struct lowering *l, uint32_t storage, int64_t at, int64_t n,
                            const struct param *row, bool cut)
{
    if (storage == NONE_ID)
        return NONE_ID;
    uint32_t v = lower_flat(l, storage, DT_F32, at, n, row->name);
    uint8_t *layout = l->p->values.data[v].layout;
    if (l->degree[MESH_TP] > 1 && row->parallel_axis >= 0)
        layout[MESH_TP] = 0;
    if (cut)
        layout[MESH_DP] = 0;
    return v;
}

/* The part of row i that bucket b's owned range covers. */
static void add_owned_piece(struct lowering *l, uint32_t i, const struct bucket *b)
{
    const struct local_param *p = &l->local[i];
    const struct unit *u = &l->units.data[b->unit];
    const struct param *row = &l->m->params[i];
    int64_t begin = MAX(b->own_begin, p->at);
    int64_t n = MIN(b->own_begin + b->own_n, p->at + p->elems) - begin;
    if (n <= 0)
        return;
    int64_t at = b->own_at + begin - b->own_begin;
    struct lowered_piece piece = {
            .param = i,
            .first = begin - p->at,
            .n = n,
            .master = piece_value(l, u->storage[TENSOR_MASTER], at, n, row, true),
            .exp_avg = piece_value(l, u->storage[TENSOR_EXP_AVG], at, n, row, true),
            .exp_avg_sq =
                    piece_value(l, u->storage[TENSOR_EXP_AVG_SQ], at, n, row, true),
            .grad = u->owned_grad != NONE_ID
                            ? piece_value(l, u->owned_grad, at, n, row, true)
                            : piece_value(l, u->storage[TENSOR_GRAD], begin, n, row,
                                          true)};
    vec_push(&l->pieces, piece);
}

static void add_whole_piece(struct lowering *l, uint32_t i)
{
    const struct lowered_param *out = &l->out->params[i];
    struct lowered_piece piece = {.param = i,
                                  .n = l->local[i].elems,
                                  .master = out->master,
                                  .exp_avg = out->exp_avg,
                                  .exp_avg_sq = out->exp_avg_sq,
                                  .grad = out->grad};
    if (l->degree[MESH_DP] > 1 || l->degree[MESH_TP] > 1) {
        /* The sum is in the accumulator's bytes, and no longer partial. */
        struct prog_value v = l->p->values.data[out->grad];
        for (int d = 0; d < MESH_DIMS; d++)
            if (v.layout[d] == LAYOUT_PARTIAL)
                v.layout[d] = LAYOUT_REPLICATED;
        vec_push(&l->p->values, v);
        piece.grad = l->p->values.n - 1;
    }
    vec_push(&l->pieces, piece);
}

static void make_pieces(struct lowering *l)
{
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        if (!l->local[i].here)
            continue;
        if (!lower_is_sharded(l)) {
            add_whole_piece(l, i);
            continue;
        }
        const struct unit *u = &l->units.data[l->local[i].unit];
        for (uint32_t b = u->bucket_first; b < u->bucket_end; b++)
            add_owned_piece(l, i, &l->buckets.data[b]);
    }
    l->out->n_pieces = l->pieces.n;
    l->out->pieces = mem_alloc((l->pieces.n + (size_t)1) * sizeof(*l->out->pieces));
    if (l->pieces.n > 0)
        memcpy(l->out->pieces, l->pieces.data, l->pieces.n * sizeof(*l->out->pieces));
}

/* A tied head on the embedding's rank has an accumulator of its own. */
static void declare_head_grad(struct lowering *l)
{
    if (!l->m->config.tied || !lower_has_first(l) || !lower_has_last(l))
        return;
    uint32_t e = lower_param_id(l, ROLE_EMBED, -1);
    const struct prog_value like = l->p->values.data[l->out->params[e].grad];
    uint32_t s = program_storage(l->p, SC_GRAD, SLOT_NONE, value_span_bytes(&like),
                                 "head.weight.grad");
    l->head_grad = program_value(l->p, s, 0, (enum dtype)like.dtype, 2, like.dim,
                                 "head.weight.grad");
    memcpy(l->p->values.data[l->head_grad].layout, like.layout, sizeof(like.layout));
}

enum status lower_declare_params(struct lowering *l, struct diag *diag)
{
    find_parts(l);
    TRY(make_units(l, diag));
    if (l->degree[MESH_DP] > 1)
        for (uint32_t u = 0; u < l->units.n; u++)
            make_unit_buckets(l, u);
    lower_zero_declare(l);
    for (int kind = 0; kind < TENSOR_KIND_COUNT; kind++)
        for (uint32_t u = 0; u < l->units.n; u++)
            declare_unit(l, u, (enum tensor_kind)kind);
    lower_zero_declare_sums(l);
    l->weight = mem_alloc(l->m->n_params * sizeof(*l->weight));
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        struct lowered_param *p = &l->out->params[i];
        if (p->master == NONE_ID && !lower_is_sharded(l))
            p->master = p->weight;
        l->weight[i] = p->weight;
    }
    declare_head_grad(l);
    make_pieces(l);
    return ST_OK;
}

void lower_params_free(struct lowering *l)
{
    mem_free(l->local);
    mem_free(l->weight);
    vec_free(&l->units);
    vec_free(&l->buckets);
    vec_free(&l->pieces);
    vec_free(&l->regathered);
}

uint32_t lower_span(struct lowering *l, uint32_t first, uint32_t last, bool grad)
{
    const struct lowered_param *p = l->out->params;
    uint32_t v0 = grad ? p[first].grad : l->weight[first];
    struct prog_value head = l->p->values.data[v0];
    int64_t dim[2] = {0, head.dim[1]};
    for (uint32_t i = first; i <= last; i++)
        dim[0] += p[i].dim[0];
    uint32_t v =
            program_value(l->p, head.storage, head.byte_offset, (enum dtype)head.dtype,
                          head.ndim, dim, "%s..", prog_name(l->p, head.name));
    memcpy(l->p->values.data[v].layout, head.layout, sizeof(head.layout));
    return v;
}
