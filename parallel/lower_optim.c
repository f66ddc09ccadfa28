/* The optimizer segment: global gradient norm, clipping, AdamW, and what makes every
 * rank's weights whole again. */
#include <string.h>

#include "core/hyper.h"
#include "parallel/lower_private.h"

static bool is_alone(const struct lowering *l)
{
    for (int d = 0; d < MESH_DIMS; d++)
        if (l->degree[d] > 1)
            return false;
    return true;
}

/* The same bytes as `v`, summed over the world: each rank's terms become everyone's sum. */
static uint32_t sum_over_world(struct lowering *l, uint32_t v)
{
    struct prog_value whole = l->p->values.data[v];
    struct op_args a = op_args_init(OP_ALL_REDUCE, PHASE_OPTIM, -1);
    lower_group_attrs(l, &a, GROUP_WORLD);
    op_args_in(&a, v);
    memset(whole.layout, LAYOUT_REPLICATED, sizeof(whole.layout));
    vec_push(&l->p->values, whole);
    a.out[0] = l->p->values.n - 1;
    program_op(l->p, &a);
    return a.out[0];
}

void lower_reduce_loss(struct lowering *l)
{
    if (!is_alone(l))
        l->out->loss_sum = sum_over_world(l, l->out->loss_sum);
}

/* The sum of squares of every block of elements first.. of row i, at its place among the
 * partial sums of all ranks. */
static void emit_norm_sq(struct lowering *l, uint32_t i, uint32_t grad, int64_t first)
{
    uint32_t storage = l->p->values.data[l->norm_partials].storage;
    int64_t n = value_elems(&l->p->values.data[grad]);
    int64_t blocks = ceil_div_i64(n, NORM_BLOCK_ELEMS);
    int64_t at = l->local[i].norm_at + first / NORM_BLOCK_ELEMS;
    struct op_args a = op_args_init(OP_NORM_SQ, PHASE_OPTIM, l->m->params[i].layer);
    op_args_in(&a, grad);
    a.out[0] = program_value(l->p, storage, at * (int64_t)sizeof(double), DT_F64, 1,
                             &blocks, "%s.norm_sq", l->m->params[i].name);
    program_op(l->p, &a);
}

/* Whole sums are on all ranks of the data group: each takes the blocks that it would own,
 * so that the work is shared and each block is counted once. */
static void emit_norm_shares(struct lowering *l)
{
    for (uint32_t k = 0; k < l->buckets.n; k++) {
        const struct bucket b = l->buckets.data[k];
        const struct unit u = l->units.data[b.unit];
        for (uint32_t i = u.first; i < l->m->n_params; i++) {
            const struct local_param *p = &l->local[i];
            if (!p->here || p->unit != b.unit || !p->counts)
                continue;
            int64_t begin = MAX(b.own_begin, p->at);
            int64_t n = MIN(b.own_begin + b.own_n, p->at + p->elems) - begin;
            if (n <= 0)
                continue;
            uint32_t g = lower_flat(l, u.storage[TENSOR_GRAD], DT_F32, begin, n,
                                    l->m->params[i].name);
            emit_norm_sq(l, i, g, begin - p->at);
        }
    }
}

static void emit_norm_partials(struct lowering *l)
{
    if (!is_alone(l)) {
        struct op_args a = op_args_init(OP_ZERO, PHASE_OPTIM, -1);
        a.out[0] = l->norm_partials;
        program_op(l->p, &a);
    }
    if (l->degree[MESH_DP] > 1 && !lower_is_sharded(l)) {
        emit_norm_shares(l);
        return;
    }
    for (uint32_t k = 0; k < l->pieces.n; k++) {
        const struct lowered_piece piece = l->pieces.data[k];
        if (l->local[piece.param].counts)
            emit_norm_sq(l, piece.param, piece.grad, piece.first);
    }
}

static void emit_clip(struct lowering *l)
{
    uint32_t partials = l->norm_partials;
    if (!is_alone(l))
        partials = sum_over_world(l, partials);
    struct op_args a = op_args_init(OP_CLIP, PHASE_OPTIM, -1);
    op_args_in(&a, partials);
    op_args_in(&a, l->out->hyper);
    op_args_in(&a, l->out->loss_sum);
    a.out[0] = l->out->clip_scale;
    a.out[1] = l->out->grad_norm;
    a.out[2] = l->out->grad_ok;
    program_op(l->p, &a);
}

/* The update runs only when norm and loss are finite and within their limits. */
static void emit_adamw(struct lowering *l, const struct lowered_piece *p)
{
    const struct param *row = &l->m->params[p->param];
    const struct lowered_param *whole = &l->out->params[p->param];
    struct op_args a = op_args_init(OP_ADAMW, PHASE_OPTIM, row->layer);
    op_args_in(&a, p->master);
    op_args_in(&a, p->exp_avg);
    op_args_in(&a, p->exp_avg_sq);
    op_args_in(&a, p->grad);
    op_args_in(&a, l->out->clip_scale);
    op_args_in(&a, l->out->hyper);
    op_args_attr_i(&a, ATTR_DECAY, param_decays(row, &l->o->optimizer));
    a.out[0] = p->master;
    a.out[1] = p->exp_avg;
    a.out[2] = p->exp_avg_sq;
    bool copy = !lower_is_sharded(l) && whole->weight != whole->master;
    a.out[3] = copy ? whole->weight : OUT_ABSENT;
    a.predicate = l->out->grad_ok;
    program_op(l->p, &a);
}

void lower_optimizer(struct lowering *l)
{
    emit_norm_partials(l);
    emit_clip(l);
    for (uint32_t i = 0; i < l->pieces.n; i++) {
        const struct lowered_piece p = l->pieces.data[i];
        emit_adamw(l, &p);
    }
    if (lower_is_sharded(l))
        lower_gather_weights(l, PHASE_OPTIM);
}
