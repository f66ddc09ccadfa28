/* ZeRO beyond the optimizer's state: weights that are kept in parts and gathered for each
 * use, and gradients that are reduced into parts after every micro-batch.
 *
 * The whole weights and gradients of a layer pass through two storages, in turn. That
 * bounds memory by two layers, and lets the next layer's weights arrive while one
 * computes: waits follow from who uses a storage (core/waits.h).
 *
 * source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
 * Parameter Models", sections 5.2 and 5.3. */
#include <string.h>

#include "core/op.h"
#include "parallel/lower_private.h"

/* Vectors are small: they stay whole. */
bool lower_unit_gathers(const struct lowering *l, const struct unit *u)
{
    return lower_is_sharded(l) && l->o->layout.zero == 3 &&
           l->m->params[u->first].ndim == 2;
}

/* Tied embeddings are complete only when both uses are: they accumulate whole. */
bool lower_unit_sums_sharded(const struct lowering *l, uint32_t unit)
{
    return lower_is_sharded(l) && l->o->layout.zero >= 2 &&
           l->o->layout.accumulate_sharded && !lower_unit_is_late(l, unit);
}

static uint32_t passing(struct lowering *l, int64_t bytes, const char *name)
{
    return program_storage(l->p, SC_COMM, SLOT_NONE, bytes, "%s", name);
}

static bool takes_turns(const struct lowering *l, const struct unit *u)
{
    return u->layer >= 0 && l->m->params[u->first].ndim == 2;
}

/* Where the gradients of a micro-batch are summed before they are reduced. */
static void declare_passing_grads(struct lowering *l, uint32_t unit)
{
    struct unit *u = &l->units.data[unit];
    if (takes_turns(l, u))
        u->storage[TENSOR_GRAD] = l->grad_buffer[u->layer % 2];
    else
        u->storage[TENSOR_GRAD] = passing(l, u->elems * (int64_t)sizeof(float),
                                          l->m->params[u->first].name);
    lower_declare_rows(l, unit, TENSOR_GRAD);
}

void lower_zero_declare(struct lowering *l)
{
    int64_t weights = 0, grads = 0;
    memset(l->weight_buffer, 0xff, sizeof(l->weight_buffer)); /* NONE_ID */
    memset(l->grad_buffer, 0xff, sizeof(l->grad_buffer));
    for (uint32_t i = 0; i < l->units.n; i++) {
        const struct unit *u = &l->units.data[i];
        enum dtype dtype = lower_weight_dtype(l, &l->m->params[u->first]);
        if (takes_turns(l, u) && lower_unit_gathers(l, u))
            weights = MAX(weights, u->elems * (int64_t)dtype_bytes(dtype));
        if (takes_turns(l, u) && lower_unit_sums_sharded(l, i))
            grads = MAX(grads, u->elems * (int64_t)sizeof(float));
    }
    for (int k = 0; k < 2 && weights > 0; k++)
        l->weight_buffer[k] = passing(l, weights, "layer.weights");
    for (int k = 0; k < 2 && grads > 0; k++)
        l->grad_buffer[k] = passing(l, grads, "layer.grads");
    for (uint32_t i = 0; i < l->units.n; i++)
        if (lower_unit_sums_sharded(l, i))
            declare_passing_grads(l, i);
}

void lower_zero_declare_sums(struct lowering *l)
{
    for (uint32_t i = 0; i < l->buckets.n; i++) {
        struct bucket *b = &l->buckets.data[i];
        const struct unit *u = &l->units.data[b->unit];
        const struct param *row = &l->m->params[u->first];
        if (u->owned_grad == NONE_ID)
            continue;
        b->sum = lower_flat(l, u->owned_grad, DT_F32, b->own_at, b->own_n, row->name);
        uint8_t *layout = l->p->values.data[b->sum].layout;
        layout[MESH_DP] = 0;
        if (l->degree[MESH_TP] > 1 && row->parallel_axis >= 0)
            layout[MESH_TP] = 0;
    }
}

/* ---------------------------------------------------------------------- weights */

/* Gathers a unit and returns the storage with its whole weights. */
static uint32_t gather_unit(struct lowering *l, uint32_t unit, enum op_phase phase)
{
    const struct unit u = l->units.data[unit];
    enum dtype dtype = lower_weight_dtype(l, &l->m->params[u.first]);
    uint32_t storage =
            takes_turns(l, &u)
                    ? l->weight_buffer[u.layer % 2]
                    : program_storage(l->p, SC_WORKSPACE, SLOT_NONE,
                                      u.elems * (int64_t)dtype_bytes(dtype),
                                      "%s.gathered", l->m->params[u.first].name);
    for (uint32_t b = u.bucket_first; b < u.bucket_end; b++) {
        const struct bucket bucket = l->buckets.data[b];
        lower_gather_bucket(l, &bucket, lower_owned_weights(l, &bucket), storage,
                            phase);
    }
    return storage;
}

static void gather_forward(struct lowering *l, uint32_t unit)
{
    l->units.data[unit].storage[TENSOR_WEIGHT] = gather_unit(l, unit, PHASE_FORWARD);
    lower_declare_rows(l, unit, TENSOR_WEIGHT);
    for (uint32_t i = 0; i < l->m->n_params; i++)
        if (l->local[i].here && l->local[i].unit == unit)
            l->weight[i] = l->out->params[i].weight;
}

void lower_zero_gather_row(struct lowering *l, uint32_t row)
{
    uint32_t u = l->local[row].unit;
    if (lower_unit_gathers(l, &l->units.data[u]))
        gather_forward(l, u);
}

void lower_zero_gather_layer(struct lowering *l, int32_t layer)
{
    for (uint32_t u = 0; u < l->units.n; u++)
        if (l->units.data[u].layer == layer && lower_unit_gathers(l, &l->units.data[u]))
            gather_forward(l, u);
}

/* What was read in the forward pass, as a value of the storage gathered now. */
static void replace(struct lowering *l, struct diff *d, uint32_t then, uint32_t row,
                    uint32_t storage)
{
    struct prog_value v = l->p->values.data[then];
    v.storage = storage;
    v.byte_offset = l->local[row].at * (int64_t)dtype_bytes((enum dtype)v.dtype);
    vec_push(&l->p->values, v);
    struct regathered r = {l->p->segments.n - 1, then, l->p->values.n - 1};
    vec_push(&l->regathered, r);
    if (d)
        diff_replace(d, then, r.now);
}

/* in: d, of the segment that is being differentiated, or NULL. */
static void regather(struct lowering *l, struct diff *d, int32_t layer,
                     enum op_phase phase)
{
    for (uint32_t u = 0; u < l->units.n; u++) {
        const struct unit *unit = &l->units.data[u];
        if (unit->layer != layer || !lower_unit_gathers(l, unit))
            continue;
        uint32_t storage = gather_unit(l, u, phase);
        for (uint32_t i = 0; i < l->weights.n; i++)
            if (l->local[l->rows.data[i]].unit == u)
                replace(l, d, l->weights.data[i], l->rows.data[i], storage);
    }
}

void lower_zero_regather(struct lowering *l, struct diff *d, int32_t layer)
{
    regather(l, d, layer, PHASE_DGRAD);
}

/* Its ops come in runs of one layer each, the last layer first. */
void lower_zero_regather_weights(struct lowering *l, uint32_t segment, int32_t begin)
{
    struct program *p = l->p;
    if (!lower_is_sharded(l) || l->o->layout.zero < 3 ||
        l->o->activations != ACTIVATIONS_RECOMPUTE)
        return;
    ASSERT(segment == p->segments.n - 1);
    uint32_t first = p->segments.data[segment].op_begin, n = p->ops.n - first;
    struct prog_op *ops = mem_alloc((n + (size_t)1) * sizeof(*ops));
    if (n > 0)
        memcpy(ops, p->ops.data + first, n * sizeof(*ops));
    p->ops.n = first;
    int32_t gathered = INT32_MAX; /* layers from this one on are */
    for (uint32_t i = 0; i < n; i++) {
        int32_t ahead = MAX(ops[i].layer - 1, begin);
        if (ops[i].layer >= 0 && gathered == INT32_MAX)
            gathered = ops[i].layer + 1;
        while (ops[i].layer >= 0 && gathered > ahead)
            regather(l, NULL, --gathered, PHASE_WGRAD);
        vec_push(&p->ops, ops[i]);
    }
    mem_free(ops);
    p->segments.data[segment].op_end = p->ops.n;
}

void lower_zero_redirect(struct lowering *l)
{
    for (uint32_t k = 0; k < l->regathered.n; k++) {
        const struct regathered *r = &l->regathered.data[k];
        const struct prog_segment *s = &l->p->segments.data[r->segment];
        for (uint32_t o = s->op_begin; o < s->op_end; o++) {
            const struct prog_op *op = &l->p->ops.data[o];
            for (int i = 0; i < op->n_in && op->recompute; i++)
                if (op_in(l->p, op, i) == r->then)
                    l->p->operands.data[op->operand_first + (uint32_t)i] = r->now;
        }
    }
}

/* -------------------------------------------------------------------- gradients */

void lower_zero_clear(struct lowering *l, int32_t layer, bool front)
{
    for (uint32_t u = 0; u < l->units.n; u++) {
        const struct unit unit = l->units.data[u];
        enum param_role role = l->m->params[unit.first].role;
        bool is_front = role == ROLE_EMBED || role == ROLE_POS_EMBED;
        if (unit.layer != layer || (layer < 0 && is_front != front) ||
            !lower_unit_sums_sharded(l, u))
            continue;
        for (uint32_t i = unit.first; i < l->m->n_params; i++) {
            if (!l->local[i].here || l->local[i].unit != u)
                continue;
            struct op_args a = op_args_init(OP_ZERO, lower_unit_phase(l, u), layer);
            a.out[0] = l->out->params[i].grad;
            program_op(l->p, &a);
        }
    }
}
