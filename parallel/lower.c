#include "parallel/lower.h"

#include <string.h>

#include "core/diff.h"
#include "core/hyper.h"
#include "memory/remat.h"
#include "parallel/lower_private.h"

uint32_t lower_param_id(const struct lowering *l, enum param_role role, int32_t layer)
{
    const struct param *row = model_param(l->m, role, layer);
    ASSERT(row);
    return (uint32_t)(row - l->m->params);
}

/* Vectors stay in f32: they are small, and norms and biases want the precision. */
static enum dtype weight_dtype(const struct lowering *l, const struct param *row)
{
    if (l->o->compute == DT_F64)
        return DT_F64;
    return row->ndim == 1 ? DT_F32 : l->o->compute;
}

static enum dtype grad_dtype(const struct lowering *l)
{
    return l->o->compute == DT_F64 ? DT_F64 : DT_F32;
}

/* Rows first..end-1 share a fuse number: one storage holds them back to back. */
static uint32_t fuse_end(const struct model *m, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < m->n_params && m->params[end].fuse == m->params[first].fuse)
        end++;
    return end;
}

enum tensor_kind {
    TENSOR_WEIGHT,
    TENSOR_MASTER,
    TENSOR_EXP_AVG,
    TENSOR_EXP_AVG_SQ,
    TENSOR_GRAD,
    TENSOR_KIND_COUNT
};

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

static uint32_t *param_slot(struct lowered_param *p, enum tensor_kind kind)
{
    uint32_t *const slot[TENSOR_KIND_COUNT] = {&p->weight, &p->master, &p->exp_avg,
                                               &p->exp_avg_sq, &p->grad};
    return slot[kind];
}

/* One storage for rows first..end-1, with a value per row. */
static enum status declare_rows(struct lowering *l, enum tensor_kind kind,
                                uint32_t first, uint32_t end, struct diag *diag)
{
    const struct param *row = &l->m->params[first];
    enum dtype dtype = kind == TENSOR_WEIGHT ? weight_dtype(l, row)
                       : kind == TENSOR_GRAD ? grad_dtype(l)
                                             : DT_F32;
    int64_t elems = 0, bytes;
    for (uint32_t i = first; i < end; i++)
        elems += param_elems(&l->m->params[i]);
    if (!mul_i64(elems, (int64_t)dtype_bytes(dtype), &bytes))
        return diag_set(diag, ST_CONFIG,
                        "parameter %s is too large: its bytes overflow", row->name);
    uint32_t storage = program_storage(l->p, tensor_kinds[kind].cls, SLOT_NONE, bytes,
                                       "%s%s", row->name, tensor_kinds[kind].suffix);
    int64_t at = 0;
    for (uint32_t i = first; i < end; i++) {
        const struct param *r = &l->m->params[i];
        *param_slot(&l->out->params[i], kind) =
                program_value(l->p, storage, at, dtype, r->ndim, r->dim, "%s%s",
                              r->name, tensor_kinds[kind].suffix);
        at += param_elems(r) * (int64_t)dtype_bytes(dtype);
    }
    return ST_OK;
}

static bool row_has(const struct lowering *l, const struct param *row,
                    enum tensor_kind kind)
{
    bool f64 = l->o->compute == DT_F64;
    if (kind == TENSOR_MASTER)
        return !f64 && weight_dtype(l, row) != DT_F32;
    return kind == TENSOR_WEIGHT || kind == TENSOR_GRAD || !f64;
}

/* All parameters' tensors, kind by kind, in table order. */
static enum status declare_params(struct lowering *l, struct diag *diag)
{
    for (int kind = 0; kind < TENSOR_KIND_COUNT; kind++) {
        for (uint32_t i = 0; i < l->m->n_params; i = fuse_end(l->m, i)) {
            if (row_has(l, &l->m->params[i], (enum tensor_kind)kind))
                TRY(declare_rows(l, (enum tensor_kind)kind, i, fuse_end(l->m, i),
                                 diag));
        }
    }
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        struct lowered_param *p = &l->out->params[i];
        if (p->master == NONE_ID)
            p->master = p->weight;
    }
    if (l->m->config.tied) {
        const struct param *embed = &l->m->params[lower_param_id(l, ROLE_EMBED, -1)];
        int64_t bytes = param_elems(embed) * (int64_t)dtype_bytes(grad_dtype(l));
        uint32_t s =
                program_storage(l->p, SC_GRAD, SLOT_NONE, bytes, "head.weight.grad");
        l->head_grad = program_value(l->p, s, 0, grad_dtype(l), 2, embed->dim,
                                     "head.weight.grad");
    }
    return ST_OK;
}

/* A vector in a storage of its own. */
static uint32_t declare_vector(struct lowering *l, enum storage_class cls,
                               enum slotting slotting, enum dtype dtype, int64_t n,
                               const char *name)
{
    uint32_t s = program_storage(l->p, cls, slotting, n * (int64_t)dtype_bytes(dtype),
                                 "%s", name);
    return program_value(l->p, s, 0, dtype, 1, &n, "%s", name);
}

static int64_t norm_blocks(const struct param *row)
{
    return ceil_div_i64(param_elems(row), NORM_BLOCK_ELEMS);
}

/* Everything else that keeps its bytes. Inputs come last: their number of copies differs
 * between the programs of a run, and nothing behind them may move. */
static void declare_state(struct lowering *l)
{
    const struct config_model *c = &l->m->config;
    struct lowered *out = l->out;
    int64_t blocks = 0;
    for (uint32_t i = 0; i < l->m->n_params; i++)
        blocks += norm_blocks(&l->m->params[i]);
    if (c->position == POSITION_ROPE) {
        int64_t dim[3] = {l->o->seq_len, c->head_dim / 2, 2};
        enum dtype dtype = grad_dtype(l);
        uint32_t s = program_storage(
                l->p, SC_CONST, SLOT_NONE,
                dim[0] * dim[1] * dim[2] * (int64_t)dtype_bytes(dtype), "rope_table");
        l->rope_table = program_value(l->p, s, 0, dtype, 3, dim, "rope_table");
    }
    out->hyper = declare_vector(l, SC_PARAMS, SLOT_NONE, DT_F32, HYPER_COUNT, "hyper");
    out->loss_sum = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F64, 1, "loss_sum");
    out->grad_norm = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F32, 1, "grad_norm");
    out->grad_ok = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_I32, 1, "grad_ok");
    l->norm_partials = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F64, blocks,
                                      "grad_norm.partials");
    out->clip_scale = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F32, 1, "clip_scale");
    lower_monitor_declare(l);
    enum slotting mb = SLOT_MICRO_BATCH;
    out->tokens = declare_vector(l, SC_INPUT, mb, DT_I32, l->tokens, "tokens");
    out->labels = declare_vector(l, SC_INPUT, mb, DT_I32, l->tokens, "labels");
    out->positions = declare_vector(l, SC_INPUT, mb, DT_I32, l->tokens, "positions");
    out->doc_start = declare_vector(l, SC_INPUT, mb, DT_I32, l->tokens, "doc_start");
}

static void emit_rope_table(struct lowering *l)
{
    const struct config_model *c = &l->m->config;
    const struct rope_scaling *r = &c->rope_scaling;
    bool yarn = r->type == ROPE_YARN;
    struct op_args a = op_args_init(OP_ROPE_TABLE, PHASE_SETUP, -1);
    op_args_attr_i(&a, ATTR_DIM, c->head_dim);
    op_args_attr_i(&a, ATTR_ROWS, l->o->seq_len);
    op_args_attr_i(&a, ATTR_ROPE_TYPE, r->type);
    op_args_attr_f(&a, ATTR_ROPE_THETA, c->rope_theta);
    op_args_attr_f(&a, ATTR_ROPE_FACTOR, r->factor);
    op_args_attr_f(&a, ATTR_ROPE_LOW, yarn ? r->beta_slow : r->low_freq_factor);
    op_args_attr_f(&a, ATTR_ROPE_HIGH, yarn ? r->beta_fast : r->high_freq_factor);
    op_args_attr_i(&a, ATTR_ROPE_ORIGINAL, r->original_max_positions);
    op_args_attr_f(&a, ATTR_ROPE_ATTN_FACTOR, r->attention_factor);
    op_args_attr_i(&a, ATTR_OUT_DTYPE, grad_dtype(l));
    a.out[0] = l->rope_table;
    program_op(l->p, &a);
}

/* Constants, and the weights in the compute dtype from their masters. */
static void lower_setup(struct lowering *l)
{
    program_segment_begin(l->p, "setup");
    if (l->rope_table != NONE_ID)
        emit_rope_table(l);
    for (uint32_t i = 0; i < l->m->n_params; i++) {
        const struct lowered_param *p = &l->out->params[i];
        if (p->master == p->weight)
            continue;
        struct op_args a = op_args_init(OP_CAST, PHASE_SETUP, l->m->params[i].layer);
        op_args_in(&a, p->master);
        op_args_attr_i(&a, ATTR_OUT_DTYPE, l->p->values.data[p->weight].dtype);
        a.out[0] = p->weight;
        program_op(l->p, &a);
    }
    program_call(l->p, CALL_SETUP, program_segment_end(l->p), 0, 0);
}

static void emit_zero(struct lowering *l, uint32_t value)
{
    struct op_args a = op_args_init(OP_ZERO, PHASE_OPTIM, -1);
    a.out[0] = value;
    program_op(l->p, &a);
}

static void lower_zero(struct lowering *l)
{
    program_segment_begin(l->p, "zero");
    emit_zero(l, l->out->loss_sum);
    if (l->o->purpose != LOWER_EVAL) {
        for (uint32_t i = 0; i < l->m->n_params; i++)
            emit_zero(l, l->out->params[i].grad);
        if (l->head_grad != NONE_ID)
            emit_zero(l, l->head_grad);
    }
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
}

/* The summed loss, and the scale of its gradient: a view of the params block. */
static void emit_loss_sum(struct lowering *l, uint32_t loss)
{
    struct op_args a = op_args_init(OP_SUM, PHASE_FORWARD, -1);
    op_args_in(&a, loss);
    op_args_in(&a, l->out->loss_sum);
    a.out[0] = l->out->loss_sum;
    program_op(l->p, &a);
}

static uint32_t inv_tokens_value(struct lowering *l)
{
    const struct prog_value *h = &l->p->values.data[l->out->hyper];
    int64_t one = 1;
    return program_value(l->p, h->storage, HYPER_INV_TOKENS * (int64_t)sizeof(float),
                         DT_F32, 1, &one, "inv_tokens");
}

/* A tied head's gradient accumulates apart and is added once. */
static void emit_tied_add(struct lowering *l)
{
    uint32_t g = l->out->params[lower_param_id(l, ROLE_EMBED, -1)].grad;
    struct op_args a = op_args_init(OP_ADD, PHASE_OPTIM, -1);
    op_args_in(&a, g);
    op_args_in(&a, l->head_grad);
    a.out[0] = g;
    program_op(l->p, &a);
}

static void lower_train(struct lowering *l)
{
    program_segment_begin(l->p, "forward");
    uint32_t loss = lower_forward(l);
    emit_loss_sum(l, loss);
    lower_probe_loss(l, loss);
    uint32_t forward = program_segment_end(l->p);
    uint32_t seed = inv_tokens_value(l);
    struct diff_options d = {.segment = forward,
                             .name = "backward",
                             .output = &loss,
                             .seed = &seed,
                             .n_outputs = 1,
                             .weight = l->weights.data,
                             .grad = l->grads.data,
                             .n_weights = l->weights.n,
                             .input = NONE_ID};
    uint32_t backward = differentiate(l->p, &d);
    for (uint32_t mb = 0; mb < l->o->n_micro_batches; mb++) {
        program_call(l->p, CALL_STEP, forward, mb, 0);
        program_call(l->p, CALL_STEP, backward, mb, 0);
    }
    program_segment_begin(l->p, "optimizer");
    if (l->head_grad != NONE_ID)
        emit_tied_add(l);
    if (l->o->purpose == LOWER_TRAIN)
        lower_optimizer(l);
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
    if (l->o->monitor)
        lower_monitor(l);
}

static void lower_eval(struct lowering *l)
{
    program_segment_begin(l->p, "eval");
    emit_loss_sum(l, lower_forward(l));
    uint32_t eval = program_segment_end(l->p);
    for (uint32_t mb = 0; mb < l->o->n_micro_batches; mb++)
        program_call(l->p, CALL_STEP, eval, mb, 0);
}

static enum remat_mode remat_mode_of(enum memory_activations a)
{
    ASSERT(a == ACTIVATIONS_KEEP || a == ACTIVATIONS_SELECTIVE ||
           a == ACTIVATIONS_RECOMPUTE);
    return a == ACTIVATIONS_KEEP        ? REMAT_KEEP
           : a == ACTIVATIONS_SELECTIVE ? REMAT_SELECTIVE
                                        : REMAT_FULL;
}

enum status lower_model(const struct model *m, const struct lower_options *o,
                        struct lowered *out, struct diag *diag)
{
    memset(out, 0, sizeof(*out));
    out->model = m;
    out->params = mem_alloc(m->n_params * sizeof(*out->params));
    ASSERT(!o->monitor || o->purpose == LOWER_TRAIN);
    memset(out->params, 0xff, m->n_params * sizeof(*out->params)); /* NONE_ID */
    program_init(&out->program);
    struct lowering l = {.m = m,
                         .o = o,
                         .out = out,
                         .p = &out->program,
                         .head_grad = NONE_ID,
                         .rope_table = NONE_ID};
    enum status st = ST_OK;
    if (!mul_i64(o->sequences, o->seq_len, &l.tokens) || l.tokens > INT32_MAX)
        st = diag_set(
                diag, ST_CONFIG,
                "a micro-batch is too large: %lld sequences of %lld tokens, wanted "
                "at most 2147483647 tokens",
                (long long)o->sequences, (long long)o->seq_len);
    if (st == ST_OK)
        st = declare_params(&l, diag);
    if (st != ST_OK) {
        lowered_free(out);
        return st;
    }
    declare_state(&l);
    lower_setup(&l);
    lower_zero(&l);
    if (o->purpose == LOWER_EVAL)
        lower_eval(&l);
    else
        lower_train(&l);
    vec_free(&l.weights);
    vec_free(&l.grads);
    program_seal(&out->program);
    if (o->purpose != LOWER_EVAL)
        remat_apply(&out->program, remat_mode_of(o->activations), &out->n_recomputed);
    return ST_OK;
}

void lowered_free(struct lowered *l)
{
    program_free(&l->program);
    mem_free(l->params);
    mem_free(l->probes);
    memset(l, 0, sizeof(*l));
}

double lowered_model_flops(const struct lowered *l)
{
    const struct program *p = &l->program;
    double flops = 0;
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_segment *seg = &p->segments.data[p->calls.data[c].segment];
        for (uint32_t o = seg->op_begin; o < seg->op_end; o++)
            if (p->ops.data[o].phase == PHASE_FORWARD && !p->ops.data[o].recompute)
                flops += op_cost(p, &p->ops.data[o]).flops_model;
    }
    for (uint32_t s = 0; s < p->segments.n; s++)
        if (strcmp(prog_name(p, p->segments.data[s].name), "backward") == 0)
            return 3.0 * flops;
    return flops;
}
