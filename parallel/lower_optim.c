/* The optimizer segment: global gradient norm, clipping, AdamW per parameter. */
#include "core/hyper.h"
#include "parallel/lower_private.h"

/* Sums of squares of every block of every gradient, side by side in table order. */
static void emit_norm_partials(struct lowering *l)
{
    uint32_t storage = l->p->values.data[l->norm_partials].storage;
    int64_t at = 0;
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        const struct param *row = &l->m->params[i];
        int64_t blocks = ceil_div_i64(param_elems(row), NORM_BLOCK_ELEMS);
        struct op_args a = op_args_init(OP_NORM_SQ, PHASE_OPTIM, row->layer);
        op_args_in(&a, l->out->params[i].grad);
        a.out[0] = program_value(l->p, storage, at * (int64_t)sizeof(double), DT_F64, 1,
                                 &blocks, "%s.norm_sq", row->name);
        program_op(l->p, &a);
        at += blocks;
    }
}

static void emit_clip(struct lowering *l)
{
    struct op_args a = op_args_init(OP_CLIP, PHASE_OPTIM, -1);
    op_args_in(&a, l->norm_partials);
    op_args_in(&a, l->out->hyper);
    op_args_in(&a, l->out->loss_sum);
    a.out[0] = l->out->clip_scale;
    a.out[1] = l->out->grad_norm;
    a.out[2] = l->out->grad_ok;
    program_op(l->p, &a);
}

/* The update runs only when norm and loss are finite and within their limits. */
static void emit_adamw(struct lowering *l, uint32_t i)
{
    const struct lowered_param *p = &l->out->params[i];
    const struct param *row = &l->m->params[i];
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
    a.out[3] = p->weight == p->master ? OUT_ABSENT : p->weight;
    a.predicate = l->out->grad_ok;
    program_op(l->p, &a);
}

void lower_optimizer(struct lowering *l)
{
    emit_norm_partials(l);
    emit_clip(l);
    for (uint32_t i = 0; i < l->m->n_params; i++)
        emit_adamw(l, i);
}
