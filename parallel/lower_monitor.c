/* Probes: the ops that look at tensors for the monitors. Nothing that trains reads what
 * they write. */
#include <stdio.h>

#include "core/stats.h"
#include "parallel/lower_private.h"

#define PROBES_PER_PARAM 5

static const char *const kind_names[] = {
        [PROBE_PARAM] = "param",       [PROBE_GRAD] = "grad",
        [PROBE_EXP_AVG] = "exp_avg",   [PROBE_EXP_AVG_SQ] = "exp_avg_sq",
        [PROBE_UPDATE] = "update",     [PROBE_RESIDUAL] = "residual",
        [PROBE_ATTN_LSE] = "attn_lse", [PROBE_LOGITS] = "logits",
};
_Static_assert(ARRAY_LEN(kind_names) == PROBE_KIND_COUNT, "one name per kind");

const char *lowered_probe_name(enum lowered_probe_kind kind)
{
    ASSERT((size_t)kind < ARRAY_LEN(kind_names));
    return kind_names[kind];
}

bool lowered_probe_is_activation(enum lowered_probe_kind kind)
{
    return kind >= PROBE_RESIDUAL;
}

static uint32_t stats_storage(struct lowering *l, enum slotting slotting, int64_t n,
                              const char *name)
{
    return program_storage(l->p, SC_OUTPUT, slotting,
                           n * STATS_COUNT * (int64_t)sizeof(double), "%s", name);
}

static uint32_t stats_value(struct lowering *l, uint32_t storage, int64_t i,
                            const char *what, const char *of)
{
    int64_t dim = STATS_COUNT;
    return program_value(l->p, storage, i * STATS_COUNT * (int64_t)sizeof(double),
                         DT_F64, 1, &dim, "%s.%s.stats", of, what);
}

void lower_monitor_declare(struct lowering *l)
{
    if (l->o->purpose != LOWER_TRAIN)
        return;
    uint32_t s = stats_storage(l, SLOT_MICRO_BATCH, 1, "loss.stats");
    l->out->loss_stats = stats_value(l, s, 0, "token", "loss");
    if (!l->o->monitor)
        return;
    /* The embedding's output, the logits, and per layer the residual stream and the
     * attention's log-sum-exp. */
    int64_t n_activations = 2 + 2 * l->m->config.layers;
    int64_t n_params = (int64_t)l->m->n_params * PROBES_PER_PARAM;
    l->out->probes =
            mem_alloc((size_t)(n_activations + n_params) * sizeof(*l->out->probes));
    l->probe_activations =
            stats_storage(l, SLOT_MICRO_BATCH, n_activations, "monitor.activations");
    l->probe_params = stats_storage(l, SLOT_NONE, n_params, "monitor.params");
}

static void emit_stats(struct lowering *l, enum op_phase phase, int32_t layer,
                       uint32_t x, uint32_t out)
{
    struct op_args a = op_args_init(OP_STATS, phase, layer);
    op_args_in(&a, x);
    a.out[0] = out;
    program_op(l->p, &a);
}

void lower_probe_loss(struct lowering *l, uint32_t loss)
{
    if (l->o->purpose == LOWER_TRAIN)
        emit_stats(l, PHASE_FORWARD, -1, loss, l->out->loss_stats);
}

static void add_probe(struct lowering *l, enum lowered_probe_kind kind, int32_t index,
                      uint32_t value, uint32_t of)
{
    l->out->probes[l->out->n_probes++] = (struct lowered_probe){
            kind, index, value, value_elems(&l->p->values.data[of])};
}

void lower_probe_activation(struct lowering *l, enum lowered_probe_kind kind,
                            int32_t layer, uint32_t x)
{
    if (!l->o->monitor)
        return;
    char of[32];
    snprintf(of, sizeof(of), "layer%d", (int)layer);
    uint32_t v = stats_value(l, l->probe_activations, l->out->n_probes,
                             lowered_probe_name(kind), of);
    emit_stats(l, PHASE_FORWARD, layer, x, v);
    add_probe(l, kind, layer, v, x);
}

/* What the moments made of the step that is just done. */
static void emit_update(struct lowering *l, const struct lowered_param *p,
                        int32_t layer, uint32_t out)
{
    struct op_args a = op_args_init(OP_ADAMW_STATS, PHASE_OPTIM, layer);
    op_args_in(&a, p->exp_avg);
    op_args_in(&a, p->exp_avg_sq);
    op_args_in(&a, l->out->hyper);
    a.out[0] = out;
    program_op(l->p, &a);
}

void lower_monitor(struct lowering *l)
{
    program_segment_begin(l->p, "monitor");
    int64_t at = 0;
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        const struct param *row = &l->m->params[i];
        const struct lowered_param *p = &l->out->params[i];
        const uint32_t of[] = {p->master, p->grad, p->exp_avg, p->exp_avg_sq};
        for (int k = 0; k < PROBES_PER_PARAM; k++) {
            enum lowered_probe_kind kind = (enum lowered_probe_kind)(PROBE_PARAM + k);
            uint32_t v = stats_value(l, l->probe_params, at++, lowered_probe_name(kind),
                                     row->name);
            add_probe(l, kind, (int32_t)i, v, p->master);
            if (kind == PROBE_UPDATE)
                emit_update(l, p, row->layer, v);
            else
                emit_stats(l, PHASE_OPTIM, row->layer, of[k], v);
        }
    }
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
}
