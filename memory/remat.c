#include "memory/remat.h"

#include <string.h>

#include "core/flow.h"
#include "core/op.h"

/* One pair of segments under transformation. Arrays are indexed by the ids that existed
 * at the start; `first` is the forward segment's first op. */
struct remat {
    struct program *p;
    enum remat_mode mode;
    struct prog_segment fwd, bwd;
    uint32_t n_storages;
    uint32_t n_values;
    bool *kept;    /* storages written in the forward segment that stay */
    bool *redo;    /* storages that are made again */
    bool *passing; /* storages of class comm that the backward segment fills itself */
    uint32_t *storage_clone;
    uint32_t *value_clone;
    uint32_t *touch_first; /* [n_storages + 1] into touch */
    uint32_t *touch;       /* forward ops that use each storage, ascending */
    bool *needed;          /* forward ops to clone */
    bool *emitted;
    uint32_t *run; /* forward ops: ops of one layer in a row have one number */
    VEC(uint32_t) todo;
    VEC(struct prog_op) ops; /* the new backward segment */
    uint8_t phase;           /* of the op that needs the clones */
};

static uint32_t storage_of(const struct remat *r, uint32_t value)
{
    return r->p->values.data[value].storage;
}

static bool is_transient(const struct remat *r, uint32_t storage)
{
    uint8_t cls = r->p->storages.data[storage].cls;
    return !storage_class_is_persistent((enum storage_class)cls);
}

static uint32_t operand(const struct program *p, const struct prog_op *op, int i)
{
    return p->operands.data[op->operand_first + (uint32_t)i];
}

/* Everything an op reads: inputs, predicate, extents of its operands; NONE_ID after the
 * last one. `i` counts from 0. */
static uint32_t op_read(const struct program *p, const struct prog_op *op, int i)
{
    if (i < op->n_in)
        return operand(p, op, i);
    i -= op->n_in;
    if (i == 0 && op->predicate != NONE_ID)
        return op->predicate;
    i -= op->predicate != NONE_ID;
    for (int k = 0; k < op->n_in + op->n_out; k++) {
        uint32_t v = operand(p, op, k);
        if (v != NONE_ID && p->values.data[v].extent != NONE_ID && i-- == 0)
            return p->values.data[v].extent;
    }
    return NONE_ID;
}

static bool op_writes(const struct remat *r, const struct prog_op *op, uint32_t storage)
{
    for (int i = 0; i < op->n_out; i++) {
        uint32_t v = op_out(r->p, op, i);
        if (v != NONE_ID && storage_of(r, v) == storage)
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------------- tables */

/* Counts or fills, for every storage, the forward ops that use it, each op once. */
static void list_touches(struct remat *r, uint32_t *cursor, bool fill)
{
    uint32_t *seen = mem_alloc((r->n_storages + (size_t)1) * sizeof(*seen));
    for (uint32_t o = r->fwd.op_begin; o < r->fwd.op_end; o++) {
        const struct prog_op *op = &r->p->ops.data[o];
        uint32_t v;
        for (int i = 0;; i++) {
            if (i < op->n_out)
                v = op_out(r->p, op, i);
            else if ((v = op_read(r->p, op, i - op->n_out)) == NONE_ID)
                break;
            if (v == NONE_ID || seen[storage_of(r, v)] == o + 1)
                continue;
            uint32_t s = storage_of(r, v);
            seen[s] = o + 1;
            if (fill)
                r->touch[cursor[s]] = o;
            cursor[s]++;
        }
    }
    mem_free(seen);
}

static void build_touches(struct remat *r)
{
    uint32_t *cursor = mem_alloc((r->n_storages + (size_t)1) * sizeof(*cursor));
    r->touch_first = mem_alloc((r->n_storages + (size_t)1) * sizeof(uint32_t));
    list_touches(r, cursor, false);
    uint32_t n = 0;
    for (uint32_t s = 0; s < r->n_storages; s++) {
        r->touch_first[s] = n;
        n += cursor[s];
        cursor[s] = r->touch_first[s];
    }
    r->touch_first[r->n_storages] = n;
    r->touch = mem_alloc((n + (size_t)1) * sizeof(*r->touch));
    list_touches(r, cursor, true);
    mem_free(cursor);
}

static void number_runs(struct remat *r)
{
    uint32_t run = 0;
    for (uint32_t o = r->fwd.op_begin; o < r->fwd.op_end; o++) {
        if (o > r->fwd.op_begin &&
            r->p->ops.data[o].layer != r->p->ops.data[o - 1].layer)
            run++;
        r->run[o - r->fwd.op_begin] = run;
    }
}

static void find_passing(struct remat *r)
{
    for (uint32_t o = r->bwd.op_begin; o < r->bwd.op_end; o++) {
        const struct prog_op *op = &r->p->ops.data[o];
        for (int i = 0; i < op->n_out; i++) {
            uint32_t v = op_out(r->p, op, i);
            if (v != NONE_ID && r->p->storages.data[storage_of(r, v)].cls == SC_COMM)
                r->passing[storage_of(r, v)] = true;
        }
    }
}

static uint32_t *filled_ids(uint32_t n)
{
    uint32_t *ids = mem_alloc((n + (size_t)1) * sizeof(*ids));
    memset(ids, 0xff, n * sizeof(*ids)); /* NONE_ID */
    return ids;
}

static void remat_init(struct remat *r)
{
    uint32_t n_ops = r->fwd.op_end - r->fwd.op_begin;
    r->n_storages = r->p->storages.n;
    r->n_values = r->p->values.n;
    r->kept = mem_alloc(r->n_storages + (size_t)1);
    r->redo = mem_alloc(r->n_storages + (size_t)1);
    r->passing = mem_alloc(r->n_storages + (size_t)1);
    r->storage_clone = filled_ids(r->n_storages);
    r->value_clone = filled_ids(r->n_values);
    r->needed = mem_alloc(n_ops + (size_t)1);
    r->emitted = mem_alloc(n_ops + (size_t)1);
    r->run = mem_alloc((n_ops + (size_t)1) * sizeof(*r->run));
    number_runs(r);
    build_touches(r);
    find_passing(r);
}

static void remat_free(struct remat *r)
{
    mem_free(r->kept);
    mem_free(r->redo);
    mem_free(r->passing);
    mem_free(r->storage_clone);
    mem_free(r->value_clone);
    mem_free(r->touch_first);
    mem_free(r->touch);
    mem_free(r->needed);
    mem_free(r->emitted);
    mem_free(r->run);
    vec_free(&r->todo);
    vec_free(&r->ops);
}

/* ------------------------------------------------------------------- what is kept */

/* An op with an effect beyond its transient outputs must not run twice. */
static bool can_clone(const struct remat *r, const struct prog_op *op)
{
    for (int i = 0; i < op->n_out; i++) {
        uint32_t v = op_out(r->p, op, i);
        if (v != NONE_ID && !is_transient(r, storage_of(r, v)))
            return false;
    }
    return true;
}

static bool mode_keeps(const struct remat *r, const struct prog_op *op)
{
    if (op->layer < 0 || !can_clone(r, op))
        return true;
    return r->mode == REMAT_SELECTIVE &&
           (op->kind == OP_LINEAR || op->kind == OP_ATTENTION || op->kind == OP_EMBED ||
            op->kind == OP_ADD);
}

static bool crosses_layers(const struct remat *r, uint32_t storage)
{
    uint32_t first = r->touch_first[storage], end = r->touch_first[storage + 1];
    for (uint32_t i = first; i < end; i++)
        if (r->run[r->touch[i] - r->fwd.op_begin] !=
            r->run[r->touch[first] - r->fwd.op_begin])
            return true;
    return false;
}

static bool is_kept(const struct remat *r, uint32_t storage)
{
    if (crosses_layers(r, storage))
        return true;
    for (uint32_t i = r->touch_first[storage]; i < r->touch_first[storage + 1]; i++) {
        const struct prog_op *op = &r->p->ops.data[r->touch[i]];
        if (op_writes(r, op, storage) && mode_keeps(r, op))
            return true;
    }
    return false;
}

/* Where a result that an op cannot leave out stays, its other results stay too: they
 * are small, and making them again would make that result again. True on progress. */
static bool keep_siblings(struct remat *r)
{
    bool progress = false;
    for (uint32_t o = r->fwd.op_begin; o < r->fwd.op_end; o++) {
        const struct prog_op *op = &r->p->ops.data[o];
        uint8_t optional = op_desc((enum op_kind)op->kind)->out_optional;
        bool stays = false;
        for (int i = 0; i < op->n_out; i++)
            if (!(optional >> i & 1) && op_out(r->p, op, i) != NONE_ID)
                stays |= r->kept[storage_of(r, op_out(r->p, op, i))];
        for (int i = 0; i < op->n_out && stays; i++) {
            uint32_t v = op_out(r->p, op, i);
            if (v == NONE_ID || r->kept[storage_of(r, v)])
                continue;
            r->kept[storage_of(r, v)] = true;
            progress = true;
        }
    }
    return progress;
}

static void choose_kept(struct remat *r)
{
    for (uint32_t s = 0; s < r->n_storages; s++)
        r->kept[s] = !is_transient(r, s) || r->p->storages.data[s].cls == SC_COMM ||
                     is_kept(r, s);
    while (keep_siblings(r))
        continue;
}

/* ------------------------------------------------------------------ what is redone */

static bool is_written_in_forward(const struct remat *r, uint32_t storage)
{
    for (uint32_t i = r->touch_first[storage]; i < r->touch_first[storage + 1]; i++)
        if (op_writes(r, &r->p->ops.data[r->touch[i]], storage))
            return true;
    return false;
}

static void mark_redo(struct remat *r, uint32_t storage)
{
    if (r->redo[storage])
        return;
    r->redo[storage] = true;
    r->kept[storage] = false;
    vec_push(&r->todo, storage);
}

/* Whether a forward op after `o` writes over the value that `o` reads. */
static bool is_overwritten_after(const struct remat *r, uint32_t value, uint32_t o)
{
    uint32_t s = storage_of(r, value);
    for (uint32_t i = r->touch_first[s]; i < r->touch_first[s + 1]; i++) {
        const struct prog_op *op = &r->p->ops.data[r->touch[i]];
        for (int k = 0; k < op->n_out && r->touch[i] > o; k++) {
            uint32_t v = op_out(r->p, op, k);
            if (v != NONE_ID && value_bytes_overlap(r->p, v, value))
                return true;
        }
    }
    return false;
}

static void need_op(struct remat *r, uint32_t o)
{
    const struct prog_op *op = &r->p->ops.data[o];
    if (r->needed[o - r->fwd.op_begin])
        return;
    if (!can_clone(r, op))
        BUG("op %s@%d writes what outlives the step and cannot be recomputed",
            op_desc((enum op_kind)op->kind)->name, (int)op->layer);
    r->needed[o - r->fwd.op_begin] = true;
    for (int i = 0; i < op->n_out; i++)
        if (op_out(r->p, op, i) != NONE_ID)
            mark_redo(r, storage_of(r, op_out(r->p, op, i)));
    uint32_t v;
    for (int i = 0; (v = op_read(r->p, op, i)) != NONE_ID; i++) {
        uint32_t s = storage_of(r, v);
        if (!is_transient(r, s) || !is_written_in_forward(r, s) || r->passing[s])
            continue;
        if (!r->kept[s] || is_overwritten_after(r, v, o))
            mark_redo(r, s);
    }
}

/* From what the backward segment reads, finds all storages and ops to clone. */
static void choose_redone(struct remat *r)
{
    for (uint32_t o = r->bwd.op_begin; o < r->bwd.op_end; o++) {
        const struct prog_op *op = &r->p->ops.data[o];
        uint32_t v;
        for (int i = 0; (v = op_read(r->p, op, i)) != NONE_ID; i++) {
            uint32_t s = storage_of(r, v);
            if (!r->kept[s] && is_written_in_forward(r, s))
                mark_redo(r, s);
        }
    }
    while (r->todo.n > 0) {
        uint32_t s = r->todo.data[--r->todo.n];
        for (uint32_t i = r->touch_first[s]; i < r->touch_first[s + 1]; i++)
            if (op_writes(r, &r->p->ops.data[r->touch[i]], s))
                need_op(r, r->touch[i]);
    }
}

/* ------------------------------------------------------------------------ cloning */

static uint32_t clone_storage(struct remat *r, uint32_t storage)
{
    if (r->storage_clone[storage] == NONE_ID) {
        struct prog_storage s = r->p->storages.data[storage];
        s.name = program_name(r->p, "re.%s", prog_name(r->p, s.name));
        s.cls = s.cls == SC_ACTIVATION ? SC_WORKSPACE : s.cls;
        s.slotting = SLOT_NONE;
        s.offset_first = NONE_ID;
        vec_push(&r->p->storages, s);
        r->storage_clone[storage] = r->p->storages.n - 1;
    }
    return r->storage_clone[storage];
}

/* The value in the cloned storage; values of other storages stand for themselves. */
static uint32_t clone_value(struct remat *r, uint32_t value)
{
    if (value == NONE_ID || value >= r->n_values)
        return value;
    if (!r->redo[storage_of(r, value)])
        return value;
    if (r->value_clone[value] != NONE_ID)
        return r->value_clone[value];
    struct prog_value v = r->p->values.data[value];
    v.name = program_name(r->p, "re.%s", prog_name(r->p, v.name));
    v.storage = clone_storage(r, v.storage);
    v.base = clone_value(r, v.base);
    v.inplace_of = clone_value(r, v.inplace_of);
    v.extent = clone_value(r, v.extent);
    vec_push(&r->p->values, v);
    r->value_clone[value] = r->p->values.n - 1;
    return r->value_clone[value];
}

static void push_clone(struct remat *r, uint32_t o)
{
    struct prog_op op = r->p->ops.data[o];
    uint32_t first = r->p->operands.n;
    for (int i = 0; i < op.n_in + op.n_out; i++)
        vec_push(&r->p->operands, clone_value(r, operand(r->p, &op, i)));
    op.operand_first = first;
    op.predicate = clone_value(r, op.predicate);
    op.phase = r->phase;
    op.recompute = 1;
    vec_push(&r->ops, op);
}

static void emit(struct remat *r, uint32_t o);

/* Emits the needed ops before `o` that write the storage, or all that use it: what `o`
 * reads is there, and nobody needs any more what it overwrites. */
static void emit_users(struct remat *r, uint32_t storage, uint32_t o, bool all)
{
    for (uint32_t i = r->touch_first[storage]; i < r->touch_first[storage + 1]; i++) {
        uint32_t other = r->touch[i];
        if (other < o && (all || op_writes(r, &r->p->ops.data[other], storage)))
            emit(r, other);
    }
}

/* Emits what must come before an op that reads and writes these storages. */
static void emit_before(struct remat *r, const struct prog_op *op, uint32_t o)
{
    uint32_t v;
    for (int i = 0; (v = op_read(r->p, op, i)) != NONE_ID; i++)
        if (v < r->n_values && r->redo[storage_of(r, v)])
            emit_users(r, storage_of(r, v), o, false);
    for (int i = 0; i < op->n_out; i++) {
        v = op_out(r->p, op, i);
        if (v != NONE_ID && v < r->n_values && !r->passing[storage_of(r, v)])
            emit_users(r, storage_of(r, v), o, true);
    }
}

static void emit(struct remat *r, uint32_t o)
{
    uint32_t i = o - r->fwd.op_begin;
    if (!r->needed[i] || r->emitted[i])
        return;
    r->emitted[i] = true;
    struct prog_op op = r->p->ops.data[o];
    emit_before(r, &op, o);
    push_clone(r, o);
}

/* Builds the new backward segment: clones just before their first use. */
static void build_backward(struct remat *r)
{
    for (uint32_t o = r->bwd.op_begin; o < r->bwd.op_end; o++) {
        struct prog_op op = r->p->ops.data[o];
        r->phase = op.phase;
        emit_before(r, &op, UINT32_MAX);
        for (int i = 0; i < op.n_in + op.n_out; i++) {
            uint32_t v = clone_value(r, operand(r->p, &op, i));
            r->p->operands.data[op.operand_first + (uint32_t)i] = v;
        }
        op.predicate = clone_value(r, op.predicate);
        vec_push(&r->ops, op);
    }
}

/* Puts the new backward segment in the place of the old one. */
static void replace_segment(struct remat *r, uint32_t bwd)
{
    struct program *p = r->p;
    uint32_t old = r->bwd.op_end - r->bwd.op_begin, added = r->ops.n - old;
    const struct prog_op blank = {0};
    for (uint32_t i = 0; i < added; i++)
        vec_push(&p->ops, blank);
    memmove(&p->ops.data[r->bwd.op_end + added], &p->ops.data[r->bwd.op_end],
            (p->ops.n - added - r->bwd.op_end) * sizeof(*p->ops.data));
    memcpy(&p->ops.data[r->bwd.op_begin], r->ops.data, r->ops.n * sizeof(*p->ops.data));
    p->segments.data[bwd].op_end += added;
    for (uint32_t s = bwd + 1; s < p->segments.n; s++) {
        p->segments.data[s].op_begin += added;
        p->segments.data[s].op_end += added;
    }
}

static void apply_pair(struct program *p, enum remat_mode mode, uint32_t fwd,
                       uint32_t bwd)
{
    struct remat r = {.p = p,
                      .mode = mode,
                      .fwd = p->segments.data[fwd],
                      .bwd = p->segments.data[bwd]};
    remat_init(&r);
    choose_kept(&r);
    choose_redone(&r);
    build_backward(&r);
    replace_segment(&r, bwd);
    remat_free(&r);
}

/* Whether the segment has ops of the phases first..last that the program came with. */
static bool has_phase(const struct program *p, uint32_t segment, enum op_phase first,
                      enum op_phase last)
{
    const struct prog_segment *s = &p->segments.data[segment];
    for (uint32_t o = s->op_begin; o < s->op_end; o++) {
        const struct prog_op *op = &p->ops.data[o];
        if (!op->recompute && op->phase >= (uint8_t)first && op->phase <= (uint8_t)last)
            return true;
    }
    return false;
}

/* Saved values that are saved no longer become workspace again; sealing finds out. */
static void reset_classes(struct program *p)
{
    for (uint32_t i = 0; i < p->storages.n; i++) {
        struct prog_storage *s = &p->storages.data[i];
        if (s->cls != SC_ACTIVATION || s->slotting != SLOT_CALL)
            continue;
        s->cls = SC_WORKSPACE;
        s->slotting = SLOT_NONE;
    }
}

void remat_apply(struct program *p, enum remat_mode mode, uint32_t *n_recomputed)
{
    *n_recomputed = 0;
    if (mode == REMAT_KEEP)
        return;
    if (p->n_streams != 1 || p->n_events != 0)
        BUG("recompute comes before streams are assigned");
    for (uint32_t b = 0; b < p->segments.n; b++)
        for (uint32_t f = 0; f < p->segments.n; f++)
            if (f != b && has_phase(p, f, PHASE_FORWARD, PHASE_FORWARD) &&
                has_phase(p, b, PHASE_DGRAD, PHASE_WGRAD))
                apply_pair(p, mode, f, b);
    reset_classes(p);
    program_seal(p);
    for (uint32_t o = 0; o < p->ops.n; o++)
        *n_recomputed += p->ops.data[o].recompute;
}

double remat_flops(const struct program *p)
{
    double flops = 0;
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_segment *s = &p->segments.data[p->calls.data[c].segment];
        for (uint32_t o = s->op_begin; o < s->op_end; o++)
            if (p->ops.data[o].recompute)
                flops += op_cost(p, &p->ops.data[o]).flops;
    }
    return flops;
}

int64_t remat_saved_bytes(const struct program *p)
{
    int64_t bytes = 0;
    for (uint32_t s = 0; s < p->storages.n; s++)
        if (p->storages.data[s].cls == SC_ACTIVATION)
            bytes += p->storages.data[s].bytes;
    return bytes;
}
