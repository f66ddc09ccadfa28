#include "parallel/lower.h"

#include <stdio.h>
#include <string.h>

#include "core/hyper.h"
#include "core/op.h"
#include "core/waits.h"
#include "memory/remat.h"
#include "parallel/lower_private.h"

uint32_t lower_param_id(const struct lowering *l, enum param_role role, int32_t layer)
{
    const struct param *row = model_param(l->m, role, layer);
    ASSERT(row);
    return (uint32_t)(row - l->m->params);
}

int32_t lower_chunks(const struct lowering *l)
{
    return MAX(l->o->layout.chunks, 1);
}

static int32_t virtual_stage(const struct lowering *l, int32_t chunk)
{
    return chunk * l->degree[MESH_PP] + l->coord[MESH_PP];
}

static int32_t last_virtual_stage(const struct lowering *l)
{
    return l->degree[MESH_PP] * lower_chunks(l) - 1;
}

bool lower_chunk_is_first(const struct lowering *l, int32_t chunk)
{
    return virtual_stage(l, chunk) == 0;
}

bool lower_chunk_is_last(const struct lowering *l, int32_t chunk)
{
    return virtual_stage(l, chunk) == last_virtual_stage(l);
}

bool lower_has_first(const struct lowering *l)
{
    return l->coord[MESH_PP] == 0;
}

bool lower_has_last(const struct lowering *l)
{
    return l->coord[MESH_PP] == l->degree[MESH_PP] - 1;
}

void lower_chunk_layers(const struct lowering *l, int32_t chunk, int32_t *begin,
                        int32_t *end)
{
    const int32_t *list = l->o->layout.chunk_layers;
    int64_t k = virtual_stage(l, chunk), n = last_virtual_stage(l) + 1;
    int64_t layers = l->m->config.layers;
    *begin = (int32_t)(layers * k / n);
    *end = (int32_t)(layers * (k + 1) / n);
    if (!list)
        return;
    *begin = 0;
    for (int64_t i = 0; i < k; i++)
        *begin += list[i];
    *end = *begin + list[k];
}

void lower_group_attrs(const struct lowering *l, struct op_args *a, enum comm_group g)
{
    const int32_t *d = l->degree, *c = l->coord;
    int32_t member = 0, members = 1;
    if (g == GROUP_TENSOR || g == GROUP_TENSOR_GRAD) {
        member = c[MESH_TP];
        members = d[MESH_TP];
    } else if (g == GROUP_KV) {
        members = d[MESH_TP] / (int32_t)l->m->config.kv_heads;
        member = c[MESH_TP] % members;
    } else if (g == GROUP_DATA) {
        member = c[MESH_DP];
        members = d[MESH_DP];
    } else if (g == GROUP_FORWARD || g == GROUP_BACKWARD) {
        member = c[MESH_PP];
        members = d[MESH_PP];
    } else if (g == GROUP_TIED) {
        member = lower_has_first(l) ? 0 : 1;
        members = 2;
    } else {
        member = c[MESH_TP] + d[MESH_TP] * (c[MESH_DP] + d[MESH_DP] * c[MESH_PP]);
        members = d[MESH_TP] * d[MESH_DP] * d[MESH_PP];
    }
    op_args_attr_i(a, ATTR_GROUP, g);
    op_args_attr_i(a, ATTR_MEMBER, member);
    op_args_attr_i(a, ATTR_MEMBERS, members);
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

/* A sum that every rank has its own terms of. */
static uint32_t partial(struct lowering *l, uint32_t v)
{
    for (int d = 0; d < MESH_DIMS; d++)
        if (l->degree[d] > 1)
            l->p->values.data[v].layout[d] = LAYOUT_PARTIAL;
    return v;
}

/* A micro-batch's tokens, or what belongs to each: this rank's of the data group. */
static uint32_t declare_input(struct lowering *l, const char *name)
{
    uint32_t v = declare_vector(l, SC_INPUT, SLOT_MICRO_BATCH, DT_I32, l->tokens, name);
    if (l->degree[MESH_DP] > 1)
        l->p->values.data[v].layout[MESH_DP] = 0;
    return v;
}

/* Everything else that keeps its bytes. Inputs come last: their number of copies differs
 * between the programs of a run, and nothing behind them may move. */
static void declare_state(struct lowering *l)
{
    const struct config_model *c = &l->m->config;
    struct lowered *out = l->out;
    if (c->position == POSITION_ROPE) {
        int64_t dim[3] = {l->o->seq_len, c->head_dim / 2, 2};
        enum dtype dtype = lower_grad_dtype(l);
        uint32_t s = program_storage(
                l->p, SC_CONST, SLOT_NONE,
                dim[0] * dim[1] * dim[2] * (int64_t)dtype_bytes(dtype), "rope_table");
        l->rope_table = program_value(l->p, s, 0, dtype, 3, dim, "rope_table");
    }
    out->hyper = declare_vector(l, SC_PARAMS, SLOT_NONE, DT_F32, HYPER_COUNT, "hyper");
    out->loss_sum =
            partial(l, declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F64, 1, "loss_sum"));
    out->grad_norm = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F32, 1, "grad_norm");
    out->grad_ok = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_I32, 1, "grad_ok");
    l->norm_partials =
            partial(l, declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F64, l->n_norm_blocks,
                                      "grad_norm.partials"));
    out->clip_scale = declare_vector(l, SC_OUTPUT, SLOT_NONE, DT_F32, 1, "clip_scale");
    lower_monitor_declare(l);
    out->tokens = declare_input(l, "tokens");
    out->labels = declare_input(l, "labels");
    out->positions = declare_input(l, "positions");
    out->doc_start = declare_input(l, "doc_start");
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
    op_args_attr_i(&a, ATTR_OUT_DTYPE, lower_grad_dtype(l));
    a.out[0] = l->rope_table;
    program_op(l->p, &a);
}

/* Constants, and the weights in the compute dtype from their masters. */
static void lower_setup(struct lowering *l)
{
    program_segment_begin(l->p, "setup");
    if (l->rope_table != NONE_ID)
        emit_rope_table(l);
    for (uint32_t i = 0; i < l->m->n_params && !lower_is_sharded(l); i++) {
        const struct lowered_param *p = &l->out->params[i];
        if (!p->here || p->master == p->weight)
            continue;
        struct op_args a = op_args_init(OP_CAST, PHASE_SETUP, l->m->params[i].layer);
        op_args_in(&a, p->master);
        op_args_attr_i(&a, ATTR_OUT_DTYPE, l->p->values.data[p->weight].dtype);
        a.out[0] = p->weight;
        program_op(l->p, &a);
    }
    if (lower_is_sharded(l))
        lower_gather_weights(l, PHASE_SETUP);
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
            if (l->out->params[i].here && !lower_unit_sums_sharded(l, l->local[i].unit))
                emit_zero(l, l->out->params[i].grad);
        for (uint32_t b = 0; b < l->buckets.n; b++)
            if (l->buckets.data[b].sum != NONE_ID && l->buckets.data[b].own_n > 0)
                emit_zero(l, l->buckets.data[b].sum);
        if (l->head_grad != NONE_ID)
            emit_zero(l, l->head_grad);
    }
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
}

/* A tied head's gradient accumulates apart and is added once: here, or over the two stages
 * that have the table. */
static void emit_tied_add(struct lowering *l)
{
    if (!l->m->config.tied || (!lower_has_first(l) && !lower_has_last(l)))
        return;
    uint32_t g = l->out->params[lower_param_id(l, ROLE_EMBED, -1)].grad;
    bool both = l->head_grad != NONE_ID;
    struct op_args a = op_args_init(both ? OP_ADD : OP_ALL_REDUCE, PHASE_OPTIM, -1);
    op_args_in(&a, g);
    if (both)
        op_args_in(&a, l->head_grad);
    else
        lower_group_attrs(l, &a, GROUP_TIED);
    a.out[0] = g;
    program_op(l->p, &a);
}

/* ------------------------------------------------------------------ pipeline chunks */

/* The segments of one chunk. `last` is of the last micro-batch, whose backward pass also
 * reduces gradients over the data group; the same as the other one where it need not. */
struct chunk {
    int32_t index;
    uint32_t forward, backward, backward_last, weight, weight_last;
};

/* What the hooks of differentiation need. */
struct backward {
    struct lowering *l;
    int32_t chunk;
    uint32_t output; /* of the chunk */
    uint32_t seed;   /* its gradient: that of the loss, or what a message brings */
    bool reduce;
    bool *reduced; /* [units] */
};

/* A residual stream that a message brings. */
static uint32_t declare_message(struct lowering *l, const char *name)
{
    int64_t dim[2] = {l->tokens_local, l->m->config.hidden};
    int64_t bytes = dim[0] * dim[1] * (int64_t)dtype_bytes(l->o->compute);
    uint32_t s = program_storage(l->p, SC_WORKSPACE, SLOT_NONE, bytes, "%s", name);
    uint32_t v = program_value(l->p, s, 0, l->o->compute, 2, dim, "%s", name);
    uint8_t *layout = l->p->values.data[v].layout;
    layout[MESH_TP] = l->degree[MESH_TP] > 1 ? 0 : LAYOUT_REPLICATED;
    layout[MESH_DP] = l->degree[MESH_DP] > 1 ? 0 : LAYOUT_REPLICATED;
    return v;
}

/* A message to or from the virtual stage behind (+1) or before (-1) the rank's. */
static void emit_message(struct lowering *l, enum op_kind kind, enum comm_group g,
                         enum prog_stream stream, int step, uint32_t value)
{
    bool forward = g == GROUP_FORWARD;
    int32_t pp = l->degree[MESH_PP];
    struct op_args a = op_args_init(kind, forward ? PHASE_FORWARD : PHASE_DGRAD, -1);
    lower_group_attrs(l, &a, g);
    op_args_attr_i(&a, ATTR_PEER, (l->coord[MESH_PP] + step + pp) % pp);
    a.stream = (uint8_t)stream;
    if (kind == OP_SEND)
        op_args_in(&a, value);
    else
        a.out[0] = value;
    program_op(l->p, &a);
}

static const char *segment_name(struct lowering *l, const char *what, int32_t chunk,
                                char *buf, size_t n)
{
    if (lower_chunks(l) == 1)
        snprintf(buf, n, "%s", what);
    else
        snprintf(buf, n, "%s.%d", what, (int)chunk);
    return buf;
}

/* The forward segment. out: *x the input that a message brings, or NONE_ID; *y what the
 * head reads, or the output that a message takes on. */
static uint32_t lower_chunk_forward(struct lowering *l, int32_t chunk, const char *what,
                                    uint32_t *x, uint32_t *y)
{
    char name[64];
    l->weights.n = l->grads.n = l->rows.n = 0;
    program_segment_begin(l->p, segment_name(l, what, chunk, name, sizeof(name)));
    *x = NONE_ID;
    if (!lower_chunk_is_first(l, chunk)) {
        *x = declare_message(l, "x.received");
        emit_message(l, OP_RECV, GROUP_FORWARD, STREAM_RECV_FORWARD, -1, *x);
    }
    *y = lower_forward(l, chunk, *x);
    if (!lower_chunk_is_last(l, chunk))
        emit_message(l, OP_SEND, GROUP_FORWARD, STREAM_SEND_FORWARD, 1, *y);
    else if (l->o->purpose == LOWER_EVAL)
        lower_loss(l, *y, false);
    return program_segment_end(l->p);
}

/* Reduces the units that are complete: those of a layer, or all that are left. */
static void reduce_units(struct backward *b, int32_t layer, bool all)
{
    struct lowering *l = b->l;
    if (!b->reduce)
        return;
    for (uint32_t u = 0; u < l->units.n; u++) {
        const struct param *row = &l->m->params[l->units.data[u].first];
        bool front = row->role == ROLE_EMBED || row->role == ROLE_POS_EMBED;
        bool mine = row->layer == layer &&
                    (layer >= 0 || (!front && lower_chunk_is_last(l, b->chunk)));
        if (all) {
            int32_t begin, end;
            lower_chunk_layers(l, b->chunk, &begin, &end);
            mine |= row->layer >= begin && row->layer < end;
            mine |= front && lower_chunk_is_first(l, b->chunk);
            mine |= row->layer < 0 && !front && lower_chunk_is_last(l, b->chunk);
        }
        if (!mine || b->reduced[u] || lower_unit_is_late(l, u))
            continue;
        b->reduced[u] = true;
        lower_reduce_unit(l, u, lower_unit_phase(l, u));
    }
}

static void backward_begin(void *arg, struct diff *d)
{
    struct backward *b = arg;
    int32_t begin, end;
    lower_chunk_layers(b->l, b->chunk, &begin, &end);
    if (!lower_chunk_is_last(b->l, b->chunk)) {
        emit_message(b->l, OP_RECV, GROUP_BACKWARD, STREAM_RECV_BACKWARD, 1, b->seed);
    } else {
        lower_zero_clear(b->l, -1, false);
        b->seed = lower_loss(b->l, b->output, true);
    }
    if (end > begin)
        lower_zero_regather(b->l, d, end - 1);
}

static void backward_change_layer(void *arg, struct diff *d, int32_t from, int32_t to)
{
    struct backward *b = arg;
    int32_t begin, end;
    lower_chunk_layers(b->l, b->chunk, &begin, &end);
    reduce_units(b, from, false);
    if (to > begin)
        lower_zero_regather(b->l, d, to - 1);
    lower_zero_clear(b->l, to, true);
}

static void backward_end(void *arg, struct diff *d, uint32_t input_grad)
{
    struct backward *b = arg;
    (void)d;
    if (!lower_chunk_is_first(b->l, b->chunk))
        emit_message(b->l, OP_SEND, GROUP_BACKWARD, STREAM_SEND_BACKWARD, -1,
                     input_grad);
    reduce_units(b, -1, true);
}

static uint32_t lower_chunk_backward(struct lowering *l, const struct chunk *c,
                                     uint32_t x, uint32_t y, bool reduce)
{
    char name[64];
    bool last = lower_chunk_is_last(l, c->index);
    struct backward b = {.l = l, .chunk = c->index, .output = y, .reduce = reduce};
    if (!last)
        b.seed = declare_message(l, "d.y.received");
    b.reduced = mem_alloc(l->units.n + (size_t)1);
    struct diff_options o = {
            .segment = c->forward,
            .name = segment_name(l, reduce ? "backward.reduce" : "backward", c->index,
                                 name, sizeof(name)),
            .output = &y,
            .seed = &b.seed,
            .n_outputs = 1,
            .weight = l->weights.data,
            .grad = l->grads.data,
            .n_weights = l->weights.n,
            .input = x,
            .input_grad = NONE_ID,
            .out_of_place = schedule_splits_backward(l->o->layout.schedule),
            .wide_partials = !l->o->layout.tp_bf16,
            .begin = backward_begin,
            .change_layer = backward_change_layer,
            .end = backward_end,
            .arg = &b};
    uint32_t segment = differentiate(l->p, &o);
    mem_free(b.reduced);
    return segment;
}

static uint32_t split_weights(struct lowering *l, const struct chunk *c,
                              uint32_t segment, const char *name)
{
    int32_t begin, end;
    uint32_t weights = program_split_weights(l->p, segment, name);
    lower_chunk_layers(l, c->index, &begin, &end);
    lower_zero_regather_weights(l, weights, begin);
    return weights;
}

/* The backward segments of a chunk: for all micro-batches but the last, and for the last;
 * in one part or two. */
static void lower_chunk_backwards(struct lowering *l, struct chunk *c, uint32_t x,
                                  uint32_t y)
{
    bool reduce = l->degree[MESH_DP] > 1, split;
    bool always = lower_is_sharded(l) && l->o->layout.zero >= 2 &&
                  l->o->layout.accumulate_sharded;
    split = schedule_splits_backward(l->o->layout.schedule);
    c->backward = c->weight = NONE_ID;
    if (!reduce || (!always && l->o->n_micro_batches > 1)) {
        c->backward = lower_chunk_backward(l, c, x, y, false);
        if (split)
            c->weight = split_weights(l, c, c->backward, "weights");
    }
    c->backward_last = c->backward;
    c->weight_last = c->weight;
    if (!reduce)
        return;
    c->backward_last = lower_chunk_backward(l, c, x, y, true);
    if (split)
        c->weight_last = split_weights(l, c, c->backward_last, "weights.reduce");
    if (always) {
        c->backward = c->backward_last;
        c->weight = c->weight_last;
    }
}

static void emit_schedule(struct lowering *l, const struct chunk *chunks,
                          const struct schedule *s)
{
    for (uint32_t i = 0; i < s->items.n; i++) {
        const struct schedule_item *it = &s->items.data[i];
        const struct chunk *c = &chunks[it->chunk];
        bool last = it->micro_batch == l->o->n_micro_batches - 1;
        const uint32_t segment[PART_COUNT] = {
                [PART_FORWARD] = c->forward,
                [PART_BACKWARD] = last ? c->backward_last : c->backward,
                [PART_BACKWARD_INPUT] = last ? c->backward_last : c->backward,
                [PART_BACKWARD_WEIGHT] = last ? c->weight_last : c->weight};
        program_call(l->p, CALL_STEP, segment[it->part], it->micro_batch, it->slot);
    }
}

/* With more micro-batches than stages, and not a multiple of them, the groups of an
 * interleaved schedule differ in size, and stages whose sends wait to be taken can wait for
 * each other. */
static enum status check_interleaved(const struct lowering *l, struct diag *diag)
{
    uint32_t m = l->o->n_micro_batches, pp = (uint32_t)l->degree[MESH_PP];
    if (l->o->layout.schedule != SCHEDULE_INTERLEAVED || m <= pp || m % pp == 0)
        return ST_OK;
    diag_set(
            diag, ST_CONFIG,
            "parallel.schedule interleaved: got %u micro-batches on %u stages, wanted at "
            "most as many as stages, or a multiple of them",
            m, pp);
    diag_hint(diag,
              "nearest that work: %u or %u micro-batches (train.global_batch, "
              "train.micro_batch), or parallel.vpp=1",
              m / pp * pp, (m / pp + 1) * pp);
    return ST_CONFIG;
}

static enum status lower_train(struct lowering *l, struct diag *diag)
{
    TRY(check_interleaved(l, diag));
    struct schedule s;
    enum status st =
            schedule_build(l->o->layout.schedule, l->degree[MESH_PP], lower_chunks(l),
                           l->o->n_micro_batches, l->coord[MESH_PP], &s, diag);
    if (st != ST_OK) {
        schedule_free(&s);
        return st;
    }
    int32_t n = lower_chunks(l);
    struct chunk *chunks = mem_alloc((size_t)n * sizeof(*chunks));
    for (int32_t i = 0; i < n; i++) {
        uint32_t x, y;
        chunks[i].index = i;
        chunks[i].forward = lower_chunk_forward(l, i, "forward", &x, &y);
        lower_chunk_backwards(l, &chunks[i], x, y);
    }
    emit_schedule(l, chunks, &s);
    mem_free(chunks);
    schedule_free(&s);
    program_segment_begin(l->p, "optimizer");
    emit_tied_add(l);
    for (uint32_t u = 0; u < l->units.n; u++)
        if (l->degree[MESH_DP] == 1 || lower_unit_is_late(l, u))
            lower_reduce_unit(l, u, PHASE_OPTIM);
    lower_reduce_loss(l);
    if (l->o->purpose == LOWER_TRAIN)
        lower_optimizer(l);
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
    if (l->o->monitor)
        lower_monitor(l);
    return ST_OK;
}

static void lower_eval(struct lowering *l)
{
    int32_t n = lower_chunks(l);
    uint32_t *eval = mem_alloc((size_t)n * sizeof(*eval)), x, y;
    for (int32_t i = 0; i < n; i++)
        eval[i] = lower_chunk_forward(l, i, "eval", &x, &y);
    for (uint32_t mb = 0; mb < l->o->n_micro_batches; mb++)
        for (int32_t i = 0; i < n; i++)
            program_call(l->p, CALL_STEP, eval[i], mb, 0);
    mem_free(eval);
    program_segment_begin(l->p, "sum");
    lower_reduce_loss(l);
    program_call(l->p, CALL_STEP, program_segment_end(l->p), 0, 0);
}

static enum remat_mode remat_mode_of(enum memory_activations a)
{
    ASSERT(a == ACTIVATIONS_KEEP || a == ACTIVATIONS_SELECTIVE ||
           a == ACTIVATIONS_RECOMPUTE);
    return a == ACTIVATIONS_KEEP        ? REMAT_KEEP
           : a == ACTIVATIONS_SELECTIVE ? REMAT_SELECTIVE
                                        : REMAT_FULL;
}

static void lowering_free(struct lowering *l)
{
    lower_params_free(l);
    vec_free(&l->weights);
    vec_free(&l->grads);
    vec_free(&l->rows);
}

/* The body of lower_model, on a program that is empty. */
static enum status lower_all(struct lowering *l, struct diag *diag)
{
    const struct lower_options *o = l->o;
    if (!mul_i64(o->sequences, o->seq_len, &l->tokens) || l->tokens > INT32_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "a micro-batch is too large: %lld sequences of %lld tokens, wanted "
                "at most 2147483647 tokens",
                (long long)o->sequences, (long long)o->seq_len);
    l->tokens_local = l->tokens / l->degree[MESH_TP];
    TRY(lower_declare_params(l, diag));
    declare_state(l);
    lower_setup(l);
    lower_zero(l);
    if (o->purpose == LOWER_EVAL)
        lower_eval(l);
    else
        TRY(lower_train(l, diag));
    program_seal(l->p);
    if (o->purpose != LOWER_EVAL)
        remat_apply(l->p, remat_mode_of(o->activations), &l->out->n_recomputed);
    lower_zero_redirect(l);
    program_add_waits(l->p);
    return ST_OK;
}

enum status lower_model(const struct model *m, const struct lower_options *o,
                        struct lowered *out, struct diag *diag)
{
    memset(out, 0, sizeof(*out));
    out->model = m;
    out->params = mem_alloc(m->n_params * sizeof(*out->params));
    ASSERT(!o->monitor || o->purpose == LOWER_TRAIN);
    program_init(&out->program);
    for (uint32_t i = 0; i < m->n_params; i++)
        out->params[i] = (struct lowered_param){.weight = NONE_ID,
                                                .grad = NONE_ID,
                                                .master = NONE_ID,
                                                .exp_avg = NONE_ID,
                                                .exp_avg_sq = NONE_ID};
    struct lowering l = {.m = m,
                         .o = o,
                         .out = out,
                         .p = &out->program,
                         .head_grad = NONE_ID,
                         .rope_table = NONE_ID};
    for (int d = 0; d < MESH_DIMS; d++) {
        l.degree[d] = MAX(o->layout.degree[d], 1);
        l.coord[d] = o->layout.coord[d];
        out->program.mesh_degree[d] = l.degree[d];
    }
    enum status st = lower_all(&l, diag);
    lowering_free(&l);
    if (st != ST_OK)
        lowered_free(out);
    return st;
}

void lowered_free(struct lowered *l)
{
    program_free(&l->program);
    mem_free(l->params);
    mem_free(l->pieces);
    mem_free(l->probes);
    memset(l, 0, sizeof(*l));
}

double lowered_model_flops(const struct lowered *l)
{
    const struct program *p = &l->program;
    double flops = 0;
    bool trains = false;
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_segment *seg = &p->segments.data[p->calls.data[c].segment];
        for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
            const struct prog_op *op = &p->ops.data[o];
            trains |= op->phase == PHASE_DGRAD || op->phase == PHASE_WGRAD;
            if (op->phase == PHASE_FORWARD && !op->recompute)
                flops += op_cost(p, op).flops_model;
        }
    }
    return trains ? 3.0 * flops : flops;
}
