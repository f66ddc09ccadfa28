/* Data parallelism: sums of gradients over the ranks that hold the same weights, and
 * gathering of weights whose parts the ranks have updated. */
#include "parallel/lower_private.h"

static bool is_split(const struct lowering *l, const struct unit *u)
{
    return l->degree[MESH_TP] > 1 && l->m->params[u->first].parallel_axis >= 0;
}

static uint8_t stream_of(const struct lowering *l)
{
    return l->degree[MESH_DP] > 1 ? STREAM_DATA : STREAM_COMPUTE;
}

/* A flat range of a unit's elements in one of its storages, with its layout. */
static uint32_t range(struct lowering *l, const struct unit *u, uint32_t storage,
                      enum dtype dtype, int64_t at, int64_t n, uint8_t tp, uint8_t dp)
{
    uint32_t v = lower_flat(l, storage, dtype, at, n, l->m->params[u->first].name);
    if (l->degree[MESH_TP] > 1)
        l->p->values.data[v].layout[MESH_TP] = is_split(l, u) ? 0 : tp;
    if (l->degree[MESH_DP] > 1)
        l->p->values.data[v].layout[MESH_DP] = dp;
    return v;
}

static struct op_args comm_args(struct lowering *l, enum op_kind kind,
                                enum comm_group g, enum op_phase phase, int32_t layer)
{
    struct op_args a = op_args_init(kind, phase, layer);
    lower_group_attrs(l, &a, g);
    a.stream = stream_of(l);
    return a;
}

/* Elements at .. at + n of a unit's accumulators, summed in place. */
static void reduce_in_place(struct lowering *l, const struct unit *u, int64_t at,
                            int64_t n, enum comm_group g, enum op_phase phase,
                            uint8_t tp_before, uint8_t dp_after)
{
    struct op_args a = comm_args(l, OP_ALL_REDUCE, g, phase, u->layer);
    uint32_t s = u->storage[TENSOR_GRAD];
    enum dtype dtype = lower_grad_dtype(l);
    op_args_in(&a, range(l, u, s, dtype, at, n, tp_before, LAYOUT_PARTIAL));
    a.out[0] = range(l, u, s, dtype, at, n, LAYOUT_REPLICATED, dp_after);
    program_op(l->p, &a);
}

/* Key and value heads that several ranks of a tensor group hold. */
static void reduce_replicas(struct lowering *l, uint32_t unit, enum op_phase phase)
{
    const struct unit u = l->units.data[unit];
    int64_t begin = -1, end = -1;
    for (uint32_t i = u.first; i <= l->m->n_params; i++) {
        bool mine = i < l->m->n_params && l->local[i].here && l->local[i].unit == unit;
        if (i < l->m->n_params && !mine)
            continue;
        const struct local_param *p = &l->local[i];
        bool replica = mine && p->replicated;
        if (begin >= 0 && (!replica || p->at != end)) {
            reduce_in_place(l, &u, begin, end - begin, GROUP_KV, phase,
                            LAYOUT_REPLICATED, LAYOUT_PARTIAL);
            begin = -1;
        }
        if (!replica)
            continue;
        begin = begin < 0 ? p->at : begin;
        end = p->at + p->elems;
    }
}

static void reduce_bucket(struct lowering *l, const struct bucket *b,
                          enum op_phase phase)
{
    const struct unit *u = &l->units.data[b->unit];
    if (!lower_is_sharded(l)) {
        reduce_in_place(l, u, b->begin, b->n, GROUP_DATA, phase, LAYOUT_REPLICATED,
                        LAYOUT_REPLICATED);
        return;
    }
    struct op_args a = comm_args(l, OP_REDUCE_SCATTER, GROUP_DATA, phase, u->layer);
    uint32_t s = u->storage[TENSOR_GRAD];
    op_args_attr_i(&a, ATTR_CUTS, b->cuts);
    op_args_in(&a, range(l, u, s, DT_F32, b->begin, b->n, LAYOUT_REPLICATED,
                         LAYOUT_PARTIAL));
    if (u->owned_grad != NONE_ID) {
        a.out[0] = b->sum;
        op_args_in(&a, b->sum);
    } else {
        a.out[0] = range(l, u, s, DT_F32, b->own_begin, b->own_n, LAYOUT_REPLICATED, 0);
    }
    program_op(l->p, &a);
}

enum op_phase lower_unit_phase(const struct lowering *l, uint32_t unit)
{
    enum param_role role = l->m->params[l->units.data[unit].first].role;
    return role == ROLE_HEAD ? PHASE_DGRAD : PHASE_WGRAD;
}

bool lower_unit_is_late(const struct lowering *l, uint32_t unit)
{
    return l->m->config.tied &&
           l->m->params[l->units.data[unit].first].role == ROLE_EMBED;
}

void lower_reduce_unit(struct lowering *l, uint32_t unit, enum op_phase phase)
{
    const struct unit u = l->units.data[unit];
    if (is_split(l, &u))
        reduce_replicas(l, unit, phase);
    else if (l->degree[MESH_TP] > 1)
        reduce_in_place(l, &u, 0, u.elems, GROUP_TENSOR_GRAD, phase, LAYOUT_PARTIAL,
                        LAYOUT_PARTIAL);
    for (uint32_t b = u.bucket_first; b < u.bucket_end; b++)
        reduce_bucket(l, &l->buckets.data[b], phase);
}

/* The masters in the compute dtype: as a copy that stays (ZeRO 3), or that passes. */
static uint32_t owned_weights(struct lowering *l, const struct bucket *b,
                              enum op_phase phase)
{
    const struct unit *u = &l->units.data[b->unit];
    enum dtype dtype = lower_weight_dtype(l, &l->m->params[u->first]);
    uint32_t master = range(l, u, u->storage[TENSOR_MASTER], DT_F32, b->own_at,
                            b->own_n, LAYOUT_REPLICATED, 0);
    if (dtype == DT_F32)
        return master;
    if (b->own_n == 0)
        return range(l, u, u->storage[TENSOR_WEIGHT], dtype, 0, 0, LAYOUT_REPLICATED,
                     0);
    struct op_args a = op_args_init(OP_CAST, phase, u->layer);
    op_args_in(&a, master);
    op_args_attr_i(&a, ATTR_OUT_DTYPE, dtype);
    if (u->owned_weight != NONE_ID)
        a.out[0] = range(l, u, u->owned_weight, dtype, b->own_at, b->own_n,
                         LAYOUT_REPLICATED, 0);
    program_op(l->p, &a);
    return a.out[0];
}

void lower_gather_bucket(struct lowering *l, const struct bucket *b, uint32_t own,
                         uint32_t storage, enum op_phase phase)
{
    const struct unit u = l->units.data[b->unit];
    struct op_args a = comm_args(l, OP_ALL_GATHER, GROUP_DATA, phase, u.layer);
    op_args_attr_i(&a, ATTR_CUTS, b->cuts);
    op_args_in(&a, own);
    a.out[0] = range(l, &u, storage, lower_weight_dtype(l, &l->m->params[u.first]),
                     b->begin, b->n, LAYOUT_REPLICATED, LAYOUT_REPLICATED);
    program_op(l->p, &a);
}

uint32_t lower_owned_weights(struct lowering *l, const struct bucket *b)
{
    const struct unit *u = &l->units.data[b->unit];
    bool copy = u->owned_weight != NONE_ID;
    return range(l, u, copy ? u->owned_weight : u->storage[TENSOR_MASTER],
                 lower_weight_dtype(l, &l->m->params[u->first]), b->own_at, b->own_n,
                 LAYOUT_REPLICATED, 0);
}

void lower_gather_weights(struct lowering *l, enum op_phase phase)
{
    for (uint32_t i = 0; i < l->buckets.n; i++) {
        const struct bucket b = l->buckets.data[i];
        const struct unit u = l->units.data[b.unit];
        bool later = lower_unit_gathers(l, &u);
        if (later && (u.owned_weight == NONE_ID || b.own_n == 0))
            continue;
        uint32_t own = owned_weights(l, &b, phase);
        if (!later)
            lower_gather_bucket(l, &b, own, u.storage[TENSOR_WEIGHT], phase);
    }
}
