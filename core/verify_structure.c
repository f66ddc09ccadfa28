/* The verifier's first part: what can be seen without running the schedule. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/flow.h"
#include "core/op.h"
#include "core/verify.h"

#define BIT(key)   (1u << (key))
#define COMM_ATTRS (BIT(ATTR_GROUP) | BIT(ATTR_MEMBER) | BIT(ATTR_MEMBERS))

/* Attributes that each kind must and may have. */
static const struct {
    uint32_t required;
    uint32_t optional;
} attr_rules[OP_KIND_COUNT] = {
        [OP_ROPE_TABLE] = {BIT(ATTR_DIM) | BIT(ATTR_ROWS) | BIT(ATTR_ROPE_THETA),
                           BIT(ATTR_ROPE_TYPE) | BIT(ATTR_ROPE_FACTOR) |
                                   BIT(ATTR_ROPE_LOW) | BIT(ATTR_ROPE_HIGH) |
                                   BIT(ATTR_ROPE_ORIGINAL) |
                                   BIT(ATTR_ROPE_ATTN_FACTOR) | BIT(ATTR_OUT_DTYPE)},
        [OP_EMBED] = {0, BIT(ATTR_SCALE) | BIT(ATTR_BEGIN)},
        [OP_EMBED_DW] = {0, BIT(ATTR_SCALE) | BIT(ATTR_BEGIN)},
        [OP_LINEAR] = {0, BIT(ATTR_OUT_DTYPE)},
        [OP_LINEAR_DX] = {0, BIT(ATTR_OUT_DTYPE)},
        [OP_RMSNORM] = {BIT(ATTR_EPS), BIT(ATTR_PLUS_ONE)},
        [OP_RMSNORM_DX] = {0, BIT(ATTR_EPS) | BIT(ATTR_PLUS_ONE)},
        [OP_RMSNORM_DW] = {0, BIT(ATTR_EPS) | BIT(ATTR_PLUS_ONE)},
        [OP_LAYERNORM] = {BIT(ATTR_EPS), 0},
        [OP_LAYERNORM_DX] = {0, BIT(ATTR_EPS)},
        [OP_LAYERNORM_DW] = {0, BIT(ATTR_EPS)},
        [OP_ROPE] = {0, BIT(ATTR_INVERSE)},
        [OP_ATTENTION] = {BIT(ATTR_SEQ) | BIT(ATTR_SCALE),
                          BIT(ATTR_WINDOW) | BIT(ATTR_CAP)},
        [OP_ATTENTION_DX] = {BIT(ATTR_SEQ) | BIT(ATTR_SCALE),
                             BIT(ATTR_WINDOW) | BIT(ATTR_CAP)},
        [OP_GLU] = {BIT(ATTR_ACT), 0},
        [OP_GLU_DX] = {BIT(ATTR_ACT), 0},
        [OP_ACT] = {BIT(ATTR_ACT), 0},
        [OP_ACT_DX] = {BIT(ATTR_ACT), 0},
        [OP_SOFTCAP] = {BIT(ATTR_CAP), 0},
        [OP_SOFTCAP_DX] = {BIT(ATTR_CAP), 0},
        [OP_XENT_STATS] = {BIT(ATTR_BEGIN), 0},
        [OP_XENT] = {0, BIT(ATTR_BEGIN)},
        [OP_XENT_DX] = {0, BIT(ATTR_OUT_DTYPE) | BIT(ATTR_BEGIN)},
        [OP_ALL_GATHER] = {COMM_ATTRS, BIT(ATTR_CUTS)},
        [OP_REDUCE_SCATTER] = {COMM_ATTRS, BIT(ATTR_CUTS) | BIT(ATTR_OUT_DTYPE)},
        [OP_ALL_REDUCE] = {COMM_ATTRS, 0},
        [OP_SEND] = {COMM_ATTRS | BIT(ATTR_PEER), 0},
        [OP_RECV] = {COMM_ATTRS | BIT(ATTR_PEER), 0},
        [OP_CAST] = {BIT(ATTR_OUT_DTYPE), 0},
        [OP_ADAMW] = {0, BIT(ATTR_DECAY)},
};
_Static_assert(ATTR_COUNT <= 32, "a bit per attribute");

const char *verify_op_label(const struct program *p, uint32_t op, char *buf, size_t n)
{
    const struct prog_op *o = &p->ops.data[op];
    const char *name =
            o->kind < OP_KIND_COUNT ? op_desc((enum op_kind)o->kind)->name : "?";
    if (o->layer >= 0)
        snprintf(buf, n, "%s@%d", name, (int)o->layer);
    else
        snprintf(buf, n, "%s", name);
    return buf;
}

const char *verify_segment_of(const struct program *p, uint32_t op)
{
    for (uint32_t s = 0; s < p->segments.n; s++)
        if (p->segments.data[s].op_begin <= op && op < p->segments.data[s].op_end)
            return prog_name(p, p->segments.data[s].name);
    return "none";
}

/* "op linear@3 in segment forward <text>". */
static enum status op_wrong(const struct program *p, uint32_t op, struct diag *diag,
                            const char *fmt, ...) PRINTF_LIKE(4, 5);

static enum status op_wrong(const struct program *p, uint32_t op, struct diag *diag,
                            const char *fmt, ...)
{
    char label[64], text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return diag_set(diag, ST_INTERNAL, "op %s in segment %s %s",
                    verify_op_label(p, op, label, sizeof(label)),
                    verify_segment_of(p, op), text);
}

static const char *value_name(const struct program *p, uint32_t value)
{
    return prog_name(p, p->values.data[value].name);
}

/* ------------------------------------------------------------- names and schedule */

static bool name_is_valid(const struct program *p, uint32_t name)
{
    return name < p->names.n && p->names.data[p->names.n - 1] == '\0';
}

static enum status check_segments(const struct program *p, struct diag *diag)
{
    uint32_t at = 0;
    for (uint32_t s = 0; s < p->segments.n; s++) {
        const struct prog_segment *seg = &p->segments.data[s];
        if (!name_is_valid(p, seg->name))
            return diag_set(diag, ST_INTERNAL, "segment %u has no name", s);
        if (seg->op_begin != at || seg->op_end < at || seg->op_end > p->ops.n)
            return diag_set(diag, ST_INTERNAL,
                            "segment %s covers ops %u..%u of %u, wanted it to begin "
                            "at %u",
                            prog_name(p, seg->name), seg->op_begin, seg->op_end,
                            p->ops.n, at);
        at = seg->op_end;
    }
    if (at != p->ops.n)
        return diag_set(diag, ST_INTERNAL,
                        "ops %u..%u belong to no segment, wanted all %u ops in one", at,
                        p->ops.n, p->ops.n);
    return ST_OK;
}

static enum status check_calls(const struct program *p, struct diag *diag)
{
    bool stepping = false;
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_call *call = &p->calls.data[c];
        if (call->segment >= p->segments.n)
            return diag_set(diag, ST_INTERNAL,
                            "call %u runs segment %u, wanted one of %u", c,
                            call->segment, p->segments.n);
        const char *name = prog_name(p, p->segments.data[call->segment].name);
        if (call->phase > CALL_STEP || (call->phase == CALL_SETUP && stepping))
            return diag_set(diag, ST_INTERNAL,
                            "call %u of segment %s has phase %u, wanted set-up calls "
                            "first, then calls of the step",
                            c, name, call->phase);
        stepping = call->phase == CALL_STEP;
        if (call->slot >= p->n_slots || call->micro_batch >= p->n_micro_batches)
            return diag_set(diag, ST_INTERNAL,
                            "call %u of segment %s has slot %u and micro-batch %u, "
                            "wanted below %u and %u",
                            c, name, call->slot, call->micro_batch, p->n_slots,
                            p->n_micro_batches);
    }
    return ST_OK;
}

/* ---------------------------------------------------------------- storages, values */

static enum status check_storage(const struct program *p, uint32_t id,
                                 struct diag *diag)
{
    const struct prog_storage *s = &p->storages.data[id];
    if (!name_is_valid(p, s->name))
        return diag_set(diag, ST_INTERNAL, "storage %u has no name", id);
    if (s->cls >= SC_COUNT || s->pool >= POOL_COUNT || s->slotting > SLOT_MICRO_BATCH ||
        s->bytes < 0)
        return diag_set(diag, ST_INTERNAL,
                        "storage %s has class %u, pool %u, slotting %u, %" PRId64
                        " bytes: out of range",
                        prog_name(p, s->name), s->cls, s->pool, s->slotting, s->bytes);
    uint32_t copies = s->slotting == SLOT_CALL          ? p->n_slots
                      : s->slotting == SLOT_MICRO_BATCH ? p->n_micro_batches
                                                        : 1;
    if (s->n_copies != copies || s->offset_first > p->offsets.n ||
        p->offsets.n - s->offset_first < copies)
        return diag_set(diag, ST_INTERNAL,
                        "storage %s has %u copies from offset %u, wanted %u copies "
                        "within %u offsets",
                        prog_name(p, s->name), s->n_copies, s->offset_first, copies,
                        p->offsets.n);
    return ST_OK;
}

static bool id_or_none(uint32_t id, uint32_t n)
{
    return id == NONE_ID || id < n;
}

/* Element counts and spans that do not overflow. */
static bool sizes_are_sane(const struct prog_value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++)
        if (v->dim[i] < 0 || !mul_i64(n, MAX(v->dim[i], 1), &n))
            return false;
    if (v->ndim >= 2 && (v->ld < 0 || !mul_i64(MAX(v->dim[0], 1), v->ld, &n)))
        return false;
    return n <= INT64_MAX / 16;
}

static enum status check_value(const struct program *p, uint32_t id, struct diag *diag)
{
    const struct prog_value *v = &p->values.data[id];
    if (!name_is_valid(p, v->name))
        return diag_set(diag, ST_INTERNAL, "value %u has no name", id);
    const char *name = value_name(p, id);
    if (v->storage >= p->storages.n || !id_or_none(v->base, id) ||
        !id_or_none(v->inplace_of, p->values.n) || !id_or_none(v->extent, p->values.n))
        return diag_set(diag, ST_INTERNAL,
                        "value %s refers to storage %u, base %u, in place of %u, "
                        "extent %u: out of range",
                        name, v->storage, v->base, v->inplace_of, v->extent);
    if (v->dtype >= DT_COUNT || v->ndim < 1 || v->ndim > VALUE_DIMS_MAX ||
        !sizes_are_sane(v) || (v->ndim >= 2 && v->ld < value_row_elems(v)))
        return diag_set(diag, ST_INTERNAL,
                        "value %s has dtype %u, %u axes, pitch %" PRId64
                        ": no such tensor",
                        name, v->dtype, v->ndim, v->ld);
    for (int d = 0; d < MESH_DIMS; d++)
        if (v->layout[d] >= v->ndim && v->layout[d] != LAYOUT_REPLICATED &&
            v->layout[d] != LAYOUT_PARTIAL)
            return diag_set(diag, ST_INTERNAL,
                            "value %s is sharded on axis %u over mesh dimension %d, "
                            "wanted one of %u axes",
                            name, v->layout[d], d, v->ndim);
    return ST_OK;
}

/* Values that ops use: bytes inside the storage, the base, and those overwritten. */
static enum status check_bytes(const struct program *p, uint32_t id, struct diag *diag)
{
    const struct prog_value *v = &p->values.data[id];
    const struct prog_storage *s = &p->storages.data[v->storage];
    const char *name = value_name(p, id);
    if (v->byte_offset < 0 || v->byte_offset > s->bytes ||
        value_span_bytes(v) > s->bytes - v->byte_offset)
        return diag_set(diag, ST_INTERNAL,
                        "value %s reaches outside its storage %s: got bytes %" PRId64
                        "..%" PRId64 ", wanted within %" PRId64,
                        name, prog_name(p, s->name), v->byte_offset,
                        v->byte_offset + value_span_bytes(v), s->bytes);
    if (v->base != NONE_ID && !value_bytes_contain(p, v->base, id))
        return diag_set(diag, ST_INTERNAL,
                        "value %s is a view of %s but has bytes outside of it", name,
                        value_name(p, v->base));
    if (v->inplace_of != NONE_ID && !value_bytes_equal(p, v->inplace_of, id))
        return diag_set(diag, ST_INTERNAL,
                        "value %s overwrites %s but does not have the same bytes", name,
                        value_name(p, v->inplace_of));
    if (v->extent != NONE_ID) {
        const struct prog_value *e = &p->values.data[v->extent];
        if (e->dtype != DT_I32 || value_elems(e) != 1)
            return diag_set(diag, ST_INTERNAL,
                            "the extent %s of value %s is not i32[1]",
                            value_name(p, v->extent), name);
    }
    return ST_OK;
}

/* Strided values of one storage must agree on the pitch: rows are what bytes are
 * followed by. */
static enum status check_pitches(const struct program *p, const bool *used,
                                 struct diag *diag)
{
    uint32_t *seen = mem_alloc((p->storages.n + (size_t)1) * sizeof(*seen));
    enum status st = ST_OK;
    memset(seen, 0xff, p->storages.n * sizeof(*seen));
    for (uint32_t i = 0; i < p->values.n && st == ST_OK; i++) {
        const struct prog_value *v = &p->values.data[i];
        if (!used[i] || value_is_contiguous(v) || v->dim[0] <= 1)
            continue;
        if (seen[v->storage] == NONE_ID)
            seen[v->storage] = i;
        const struct prog_value *w = &p->values.data[seen[v->storage]];
        int64_t pitch = v->ld * (int64_t)dtype_bytes((enum dtype)v->dtype);
        int64_t want = w->ld * (int64_t)dtype_bytes((enum dtype)w->dtype);
        if (pitch != want)
            st = diag_set(diag, ST_INTERNAL,
                          "value %s has rows %" PRId64 " bytes apart, but %s of the "
                          "same storage %" PRId64,
                          value_name(p, i), pitch, value_name(p, seen[v->storage]),
                          want);
    }
    mem_free(seen);
    return st;
}

/* ---------------------------------------------------------------------------- ops */

static enum status check_op_ids(const struct program *p, uint32_t id, struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    if (op->kind >= OP_KIND_COUNT)
        return op_wrong(p, id, diag, "is of kind %u, wanted below %d", op->kind,
                        OP_KIND_COUNT);
    const struct op_desc *d = op_desc((enum op_kind)op->kind);
    if (op->n_in < d->n_in_min || op->n_in > d->n_in_max || op->n_out != d->n_out)
        return op_wrong(p, id, diag,
                        "has %u inputs and %u outputs, wanted %u..%u and %u", op->n_in,
                        op->n_out, d->n_in_min, d->n_in_max, d->n_out);
    if (op->operand_first > p->operands.n ||
        p->operands.n - op->operand_first < (uint32_t)op->n_in + op->n_out)
        return op_wrong(p, id, diag, "has operands outside of the table");
    if (op->attr_first > p->attrs.n || p->attrs.n - op->attr_first < op->n_attrs)
        return op_wrong(p, id, diag, "has attributes outside of the table");
    if (op->wait_first > p->waits.n || p->waits.n - op->wait_first < op->n_waits)
        return op_wrong(p, id, diag, "has waits outside of the table");
    if (op->phase >= PHASE_COUNT || op->stream >= p->n_streams || op->layer < -1)
        return op_wrong(p, id, diag, "has phase %u, stream %u, layer %d: out of range",
                        op->phase, op->stream, (int)op->layer);
    for (int i = 0; i < op->n_in; i++)
        if (op_in(p, op, i) >= p->values.n)
            return op_wrong(p, id, diag,
                            "has no value as input %d: got id %u, "
                            "wanted below %u",
                            i, op_in(p, op, i), p->values.n);
    for (int i = 0; i < op->n_out; i++) {
        uint32_t v = op_out(p, op, i);
        bool absent = v == NONE_ID && (d->out_optional >> i & 1);
        if (!absent && v >= p->values.n)
            return op_wrong(p, id, diag,
                            "has no value as output %d: got id %u, "
                            "wanted below %u",
                            i, v, p->values.n);
    }
    if (!id_or_none(op->predicate, p->values.n))
        return op_wrong(p, id, diag, "has predicate %u, wanted a value below %u",
                        op->predicate, p->values.n);
    return ST_OK;
}

static enum status check_op_attrs(const struct program *p, uint32_t id,
                                  struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    uint32_t seen = 0;
    for (uint32_t i = 0; i < op->n_attrs; i++) {
        uint32_t key = p->attrs.data[op->attr_first + i].key;
        if (key >= ATTR_COUNT)
            return op_wrong(p, id, diag, "has attribute %u, wanted below %d", key,
                            ATTR_COUNT);
        const char *name = attr_name((enum attr_key)key);
        if (!((attr_rules[op->kind].required | attr_rules[op->kind].optional) >> key &
              1))
            return op_wrong(p, id, diag, "has attribute %s, which it does not know",
                            name);
        if (seen >> key & 1)
            return op_wrong(p, id, diag, "has attribute %s twice", name);
        seen |= BIT(key);
    }
    for (uint32_t key = 0; key < ATTR_COUNT; key++)
        if (attr_rules[op->kind].required >> key & ~seen >> key & 1)
            return op_wrong(p, id, diag, "lacks attribute %s",
                            attr_name((enum attr_key)key));
    return ST_OK;
}

static void shape_text(char *buf, size_t n, uint8_t dtype, int ndim, const int64_t *dim)
{
    size_t at = (size_t)snprintf(buf, n, "%s[", dtype_name((enum dtype)dtype));
    for (int i = 0; i < ndim && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64, i ? "," : "", dim[i]);
    if (at < n)
        snprintf(buf + at, n - at, "]");
}

static enum status check_op_shapes(const struct program *p, uint32_t id,
                                   struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    const struct op_desc *d = op_desc((enum op_kind)op->kind);
    struct op_ctx c = {p, op, 0};
    struct op_shape want[OP_OUT_MAX] = {{0}};
    if (!d->shape)
        return ST_OK;
    const char *wrong = d->shape(&c, want);
    if (wrong)
        return op_wrong(p, id, diag, "cannot take its inputs (%s..): %s",
                        op->n_in ? value_name(p, op_in(p, op, 0)) : "none", wrong);
    for (int i = 0; i < op->n_out; i++) {
        if (op_out(p, op, i) == NONE_ID)
            continue;
        const struct prog_value *v = &p->values.data[op_out(p, op, i)];
        bool same = v->dtype == want[i].dtype && v->ndim == want[i].ndim;
        for (int k = 0; k < v->ndim && same; k++)
            same = v->dim[k] == want[i].dim[k];
        if (same)
            continue;
        char got_text[96], want_text[96];
        shape_text(got_text, sizeof(got_text), v->dtype, v->ndim, v->dim);
        shape_text(want_text, sizeof(want_text), want[i].dtype, want[i].ndim,
                   want[i].dim);
        return op_wrong(p, id, diag, "writes %s: got %s, wanted %s",
                        value_name(p, op_out(p, op, i)), got_text, want_text);
    }
    return ST_OK;
}

static enum status check_op_layouts(const struct program *p, uint32_t id,
                                    struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    struct op_ctx c = {p, op, 0};
    if (op->n_in == 0)
        return ST_OK; /* as the builder declared them */
    for (int d = 0; d < MESH_DIMS; d++) {
        uint8_t in[OP_IN_MAX] = {0}, want[OP_OUT_MAX];
        if (p->mesh_degree[d] <= 1)
            continue;
        c.mesh_dim = d;
        memset(want, LAYOUT_REPLICATED, sizeof(want));
        for (int i = 0; i < op->n_in; i++)
            in[i] = p->values.data[op_in(p, op, i)].layout[d];
        const char *wrong = op_desc((enum op_kind)op->kind)->layout(&c, in, want);
        if (wrong)
            return op_wrong(p, id, diag, "over mesh dimension %d: %s", d, wrong);
        for (int i = 0; i < op->n_out; i++) {
            uint32_t v = op_out(p, op, i);
            if (v != NONE_ID && p->values.data[v].layout[d] != want[i])
                return op_wrong(p, id, diag,
                                "writes %s with layout %u over mesh dimension %d, "
                                "wanted %u",
                                value_name(p, v), p->values.data[v].layout[d], d,
                                want[i]);
        }
    }
    return ST_OK;
}

/* A reduce-scatter may leave its part of the sum where the part was, an all-gather may find
 * its part where it goes. */
static bool is_own_part(const struct program *p, const struct prog_op *op, uint32_t in,
                        uint32_t out)
{
    bool gather = op->kind == OP_ALL_GATHER;
    const struct prog_value *whole = &p->values.data[gather ? out : in];
    const struct prog_value *part = &p->values.data[gather ? in : out];
    int64_t row =
            value_row_elems(whole) * (int64_t)dtype_bytes((enum dtype)whole->dtype);
    int64_t begin = op_cut(p, op, whole->dim[0], op_attr_i(p, op, ATTR_MEMBER, 0));
    return (gather || op->kind == OP_REDUCE_SCATTER) && op->n_in == 1 &&
           whole->dtype == part->dtype && whole->storage == part->storage &&
           part->byte_offset == whole->byte_offset + begin * row;
}

/* An output may have the bytes of the one input that the op's row names, all of them;
 * no others, and none of another output. */
static enum status check_op_overlap(const struct program *p, uint32_t id,
                                    struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    int inplace_in = op_desc((enum op_kind)op->kind)->inplace_in;
    for (int o = 0; o < op->n_out; o++) {
        uint32_t out = op_out(p, op, o);
        if (out == NONE_ID)
            continue;
        bool takes_over = p->values.data[out].inplace_of == NONE_ID;
        for (int i = 0; i < op->n_in; i++) {
            uint32_t in = op_in(p, op, i);
            bool allowed = inplace_in >= 0 && i == inplace_in + o &&
                           value_bytes_equal(p, in, out);
            takes_over |= allowed && p->values.data[out].inplace_of == in;
            if (!allowed && !is_own_part(p, op, in, out) &&
                value_bytes_overlap(p, in, out))
                return op_wrong(p, id, diag,
                                "writes %s over bytes of its input %s, which it may "
                                "not overwrite",
                                value_name(p, out), value_name(p, in));
        }
        if (!takes_over && p->values.data[out].inplace_of != out)
            return op_wrong(p, id, diag,
                            "writes %s in place of %s, which is not the input that it "
                            "may overwrite",
                            value_name(p, out),
                            value_name(p, p->values.data[out].inplace_of));
        for (int k = 0; k < o; k++) {
            uint32_t other = op_out(p, op, k);
            if (other != NONE_ID && value_bytes_overlap(p, other, out))
                return op_wrong(p, id, diag,
                                "writes its outputs %s and %s over each "
                                "other",
                                value_name(p, other), value_name(p, out));
        }
    }
    return ST_OK;
}

static enum status check_op_events(const struct program *p, uint32_t id,
                                   const bool *signalled, struct diag *diag)
{
    const struct prog_op *op = &p->ops.data[id];
    if (!id_or_none(op->signal, p->n_events))
        return op_wrong(p, id, diag, "signals event %u, wanted below %u", op->signal,
                        p->n_events);
    for (uint32_t i = 0; i < op->n_waits; i++) {
        uint32_t event = p->waits.data[op->wait_first + i];
        if (event >= p->n_events || !signalled[event])
            return op_wrong(p, id, diag, "waits for event %u, which nothing signals",
                            event);
    }
    if (op->predicate == NONE_ID)
        return ST_OK;
    const struct prog_value *v = &p->values.data[op->predicate];
    if (v->dtype != DT_I32 || value_elems(v) != 1)
        return op_wrong(p, id, diag, "has the predicate %s, wanted i32[1]",
                        value_name(p, op->predicate));
    return ST_OK;
}

static void mark_used(const struct program *p, bool *used, uint32_t value)
{
    while (value != NONE_ID && !used[value]) {
        used[value] = true;
        if (p->values.data[value].base != NONE_ID)
            mark_used(p, used, p->values.data[value].base);
        if (p->values.data[value].inplace_of != NONE_ID)
            mark_used(p, used, p->values.data[value].inplace_of);
        value = p->values.data[value].extent;
    }
}

/* Storages: workspace lives in one segment; transients that take bytes are used. */
static enum status check_storage_use(const struct program *p, struct diag *diag)
{
    uint32_t *seen = mem_alloc((p->storages.n + (size_t)1) * sizeof(*seen));
    enum status st = ST_OK;
    memset(seen, 0xff, p->storages.n * sizeof(*seen));
    for (uint32_t s = 0; s < p->segments.n && st == ST_OK; s++) {
        const struct prog_segment *seg = &p->segments.data[s];
        for (uint32_t o = seg->op_begin; o < seg->op_end && st == ST_OK; o++) {
            const struct prog_op *op = &p->ops.data[o];
            for (int i = 0; i < op->n_in + op->n_out; i++) {
                uint32_t v = op_in(p, op, i);
                if (v == NONE_ID)
                    continue;
                uint32_t at = p->values.data[v].storage;
                if (p->storages.data[at].cls == SC_WORKSPACE && seen[at] != NONE_ID &&
                    seen[at] != s)
                    st = op_wrong(p, o, diag,
                                  "uses workspace %s, which segment %s uses too",
                                  value_name(p, v),
                                  prog_name(p, p->segments.data[seen[at]].name));
                seen[at] = s;
            }
            if (op->predicate != NONE_ID)
                seen[p->values.data[op->predicate].storage] = s;
        }
    }
    for (uint32_t s = 0; s < p->storages.n && st == ST_OK; s++) {
        const struct prog_storage *t = &p->storages.data[s];
        if (seen[s] == NONE_ID && t->bytes > 0 &&
            !storage_class_is_persistent((enum storage_class)t->cls))
            st = diag_set(diag, ST_INTERNAL,
                          "%s storage %s of %" PRId64 " bytes is used by no op",
                          storage_class_name((enum storage_class)t->cls),
                          prog_name(p, t->name), t->bytes);
    }
    mem_free(seen);
    return st;
}

/* `used` and `signalled` are scratch, one entry per value and event. */
static enum status check_ops(const struct program *p, bool *used, bool *signalled,
                             struct diag *diag)
{
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        TRY(check_op_ids(p, o, diag));
        for (int i = 0; i < op->n_in + op->n_out; i++)
            mark_used(p, used, op_in(p, op, i));
        mark_used(p, used, op->predicate);
        if (op->signal < p->n_events)
            signalled[op->signal] = true;
    }
    for (uint32_t v = 0; v < p->values.n; v++)
        if (used[v])
            TRY(check_bytes(p, v, diag));
    TRY(check_pitches(p, used, diag));
    for (uint32_t o = 0; o < p->ops.n; o++) {
        TRY(check_op_attrs(p, o, diag));
        TRY(check_op_shapes(p, o, diag));
        TRY(check_op_layouts(p, o, diag));
        TRY(check_op_overlap(p, o, diag));
        TRY(check_op_events(p, o, signalled, diag));
    }
    return check_storage_use(p, diag);
}

enum status verify_structure(const struct program *p, struct diag *diag)
{
    TRY(check_segments(p, diag));
    TRY(check_calls(p, diag));
    for (uint32_t i = 0; i < p->storages.n; i++)
        TRY(check_storage(p, i, diag));
    for (uint32_t i = 0; i < p->values.n; i++)
        TRY(check_value(p, i, diag));
    bool *used = mem_alloc(p->values.n + (size_t)1);
    bool *signalled = mem_alloc(p->n_events + (size_t)1);
    enum status st = check_ops(p, used, signalled, diag);
    mem_free(used);
    mem_free(signalled);
    return st;
}

enum status program_verify(const struct program *p, struct diag *diag)
{
    TRY(verify_structure(p, diag));
    return verify_flow(p, diag);
}
