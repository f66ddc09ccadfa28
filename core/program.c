#include "core/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "core/op.h"

static const char *const class_names[] = {
        [SC_PARAM] = "param",         [SC_GRAD] = "grad",
        [SC_OPTIM] = "optim",         [SC_CONST] = "const",
        [SC_PARAMS] = "params",       [SC_INPUT] = "input",
        [SC_OUTPUT] = "output",       [SC_ACTIVATION] = "activation",
        [SC_WORKSPACE] = "workspace", [SC_COMM] = "comm",
};
_Static_assert(ARRAY_LEN(class_names) == SC_COUNT, "one name per storage class");

static const char *const phase_names[] = {
        [PHASE_SETUP] = "setup", [PHASE_FORWARD] = "forward", [PHASE_DGRAD] = "dgrad",
        [PHASE_WGRAD] = "wgrad", [PHASE_OPTIM] = "optim",
};
_Static_assert(ARRAY_LEN(phase_names) == PHASE_COUNT, "one name per phase");

static const struct {
    const char *name;
    bool is_double;
} attr_table[] = {
        [ATTR_EPS] = {"eps", true},
        [ATTR_PLUS_ONE] = {"plus_one", false},
        [ATTR_SCALE] = {"scale", true},
        [ATTR_CAP] = {"cap", true},
        [ATTR_WINDOW] = {"window", false},
        [ATTR_SEQ] = {"seq", false},
        [ATTR_ACT] = {"act", false},
        [ATTR_INVERSE] = {"inverse", false},
        [ATTR_OUT_DTYPE] = {"out_dtype", false},
        [ATTR_DECAY] = {"decay", false},
        [ATTR_DIM] = {"dim", false},
        [ATTR_ROWS] = {"rows", false},
        [ATTR_ROPE_TYPE] = {"rope_type", false},
        [ATTR_ROPE_THETA] = {"rope_theta", true},
        [ATTR_ROPE_FACTOR] = {"rope_factor", true},
        [ATTR_ROPE_LOW] = {"rope_low", true},
        [ATTR_ROPE_HIGH] = {"rope_high", true},
        [ATTR_ROPE_ORIGINAL] = {"rope_original", false},
        [ATTR_ROPE_ATTN_FACTOR] = {"rope_attn_factor", true},
        [ATTR_GROUP] = {"group", false},
        [ATTR_MEMBER] = {"member", false},
        [ATTR_MEMBERS] = {"members", false},
        [ATTR_PEER] = {"peer", false},
        [ATTR_CUTS] = {"cuts", false},
        [ATTR_BEGIN] = {"begin", false},
};
_Static_assert(ARRAY_LEN(attr_table) == ATTR_COUNT, "one row per attribute");

#define DIM(d) (1u << (d))

static const struct {
    const char *name;
    uint32_t dims;
} groups[] = {
        [GROUP_TENSOR] = {"tensor", DIM(MESH_TP)},
        [GROUP_TENSOR_GRAD] = {"tensor gradients", DIM(MESH_TP)},
        [GROUP_KV] = {"key/value replicas", 0},
        [GROUP_DATA] = {"data", DIM(MESH_DP) | DIM(MESH_CP)},
        [GROUP_FORWARD] = {"pipeline forward", DIM(MESH_PP)},
        [GROUP_BACKWARD] = {"pipeline backward", DIM(MESH_PP)},
        [GROUP_TIED] = {"tied embedding", 0},
        [GROUP_WORLD] = {"world",
                         DIM(MESH_TP) | DIM(MESH_CP) | DIM(MESH_DP) | DIM(MESH_PP)},
};
_Static_assert(ARRAY_LEN(groups) == GROUP_COUNT, "one row per group");

static const char *const stream_names[] = {
        [STREAM_COMPUTE] = "compute",
        [STREAM_DATA] = "data",
        [STREAM_SEND_FORWARD] = "send forward",
        [STREAM_RECV_FORWARD] = "receive forward",
        [STREAM_SEND_BACKWARD] = "send backward",
        [STREAM_RECV_BACKWARD] = "receive backward",
};
_Static_assert(ARRAY_LEN(stream_names) == STREAM_COUNT, "one name per stream");

const char *comm_group_name(enum comm_group g)
{
    ASSERT(g < GROUP_COUNT);
    return groups[g].name;
}

uint32_t comm_group_dims(enum comm_group g)
{
    ASSERT(g < GROUP_COUNT);
    return groups[g].dims;
}

const char *stream_name(enum prog_stream s)
{
    ASSERT(s < STREAM_COUNT);
    return stream_names[s];
}

const char *storage_class_name(enum storage_class c)
{
    ASSERT(c < SC_COUNT);
    return class_names[c];
}

const char *phase_name(enum op_phase p)
{
    ASSERT(p < PHASE_COUNT);
    return phase_names[p];
}

const char *attr_name(enum attr_key key)
{
    ASSERT(key < ATTR_COUNT);
    return attr_table[key].name;
}

bool attr_is_double(enum attr_key key)
{
    ASSERT(key < ATTR_COUNT);
    return attr_table[key].is_double;
}

bool storage_class_is_persistent(enum storage_class c)
{
    return c != SC_ACTIVATION && c != SC_WORKSPACE && c != SC_COMM;
}

void program_init(struct program *p)
{
    memset(p, 0, sizeof(*p));
    p->n_streams = 1;
    p->n_slots = 1;
    p->n_micro_batches = 1;
    for (int i = 0; i < MESH_DIMS; i++)
        p->mesh_degree[i] = 1;
}

void program_free(struct program *p)
{
    vec_free(&p->values);
    vec_free(&p->storages);
    vec_free(&p->ops);
    vec_free(&p->operands);
    vec_free(&p->attrs);
    vec_free(&p->waits);
    vec_free(&p->segments);
    vec_free(&p->calls);
    vec_free(&p->cuts);
    vec_free(&p->offsets);
    vec_free(&p->names);
    memset(p, 0, sizeof(*p));
}

static const struct prog_attr *find_attr(const struct program *p,
                                         const struct prog_op *op, enum attr_key key)
{
    for (uint32_t i = 0; i < op->n_attrs; i++) {
        const struct prog_attr *a = &p->attrs.data[op->attr_first + i];
        if (a->key == (uint32_t)key)
            return a;
    }
    return NULL;
}

int64_t op_attr_i(const struct program *p, const struct prog_op *op, enum attr_key key,
                  int64_t absent)
{
    ASSERT(!attr_is_double(key));
    const struct prog_attr *a = find_attr(p, op, key);
    return a ? a->v.i : absent;
}

double op_attr_f(const struct program *p, const struct prog_op *op, enum attr_key key,
                 double absent)
{
    ASSERT(attr_is_double(key));
    const struct prog_attr *a = find_attr(p, op, key);
    return a ? a->v.f : absent;
}

int64_t op_cut(const struct program *p, const struct prog_op *op, int64_t rows,
               int64_t m)
{
    int64_t first = op_attr_i(p, op, ATTR_CUTS, -1);
    if (first >= 0)
        return p->cuts.data[first + m];
    return rows / op_attr_i(p, op, ATTR_MEMBERS, 1) * m;
}

int64_t value_elems(const struct prog_value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++)
        if (!mul_i64(n, v->dim[i], &n))
            BUG("a value's element count overflows");
    return n;
}

int64_t value_row_elems(const struct prog_value *v)
{
    int64_t n = 1;
    for (int i = 1; i < v->ndim; i++)
        if (!mul_i64(n, v->dim[i], &n))
            BUG("a value's row overflows");
    return n;
}

bool value_is_contiguous(const struct prog_value *v)
{
    return v->ndim < 2 || v->ld == value_row_elems(v);
}

int64_t value_span_bytes(const struct prog_value *v)
{
    int64_t elem = (int64_t)dtype_bytes((enum dtype)v->dtype), n, bytes;
    if (v->ndim < 2)
        return value_elems(v) * elem;
    if (value_elems(v) == 0)
        return 0;
    if (!mul_i64(v->dim[0] - 1, v->ld, &n) || !add_i64(n, value_row_elems(v), &n) ||
        !mul_i64(n, elem, &bytes))
        BUG("a value's byte count overflows");
    return bytes;
}

uint64_t program_hash(const struct program *p)
{
    struct hash_chain h = {0};
#define ADD(array)                                                                     \
    hash_chain_add(&h, p->array.data, p->array.n * sizeof(*p->array.data))
    ADD(values);
    ADD(storages);
    ADD(ops);
    ADD(operands);
    ADD(attrs);
    ADD(waits);
    ADD(segments);
    ADD(calls);
    ADD(cuts);
    ADD(offsets);
    ADD(names);
#undef ADD
    return h.value;
}

struct op_args op_args_init(enum op_kind kind, enum op_phase phase, int32_t layer)
{
    struct op_args a = {
            .kind = kind, .phase = phase, .layer = layer, .predicate = NONE_ID};
    for (int i = 0; i < OP_IN_MAX; i++)
        a.in[i] = NONE_ID;
    for (int i = 0; i < OP_OUT_MAX; i++)
        a.out[i] = NONE_ID;
    return a;
}

void op_args_in(struct op_args *a, uint32_t value)
{
    ASSERT(a->n_in < OP_IN_MAX);
    a->in[a->n_in++] = value;
}

static struct prog_attr *next_attr(struct op_args *a, enum attr_key key)
{
    ASSERT((size_t)a->n_attrs < ARRAY_LEN(a->attrs));
    struct prog_attr *t = &a->attrs[a->n_attrs++];
    memset(t, 0, sizeof(*t));
    t->key = (uint32_t)key;
    return t;
}

void op_args_attr_i(struct op_args *a, enum attr_key key, int64_t v)
{
    ASSERT(!attr_is_double(key));
    next_attr(a, key)->v.i = v;
}

void op_args_attr_f(struct op_args *a, enum attr_key key, double v)
{
    ASSERT(attr_is_double(key));
    next_attr(a, key)->v.f = v;
}

static uint32_t intern(struct program *p, const char *text)
{
    uint32_t at = p->names.n;
    for (const char *c = text; *c; c++)
        vec_push(&p->names, *c);
    vec_push(&p->names, '\0');
    return at;
}

static uint32_t intern_va(struct program *p, const char *fmt, va_list ap)
{
    char text[160];
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    if (n < 0 || (size_t)n >= sizeof(text))
        BUG("a name is too long: %s", text);
    return intern(p, text);
}

uint32_t program_name(struct program *p, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    uint32_t at = intern_va(p, fmt, ap);
    va_end(ap);
    return at;
}

uint32_t program_storage(struct program *p, enum storage_class cls,
                         enum slotting slotting, int64_t bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct prog_storage s = {.name = intern_va(p, fmt, ap),
                             .cls = (uint8_t)cls,
                             .pool = POOL_DEVICE,
                             .slotting = (uint8_t)slotting,
                             .bytes = bytes,
                             .offset_first = NONE_ID};
    va_end(ap);
    ASSERT(bytes >= 0);
    vec_push(&p->storages, s);
    return p->storages.n - 1;
}

static struct prog_value value_plain(enum dtype dtype, int ndim, const int64_t *dim)
{
    struct prog_value v = {.ndim = (uint8_t)ndim,
                           .dtype = (uint8_t)dtype,
                           .base = NONE_ID,
                           .inplace_of = NONE_ID,
                           .extent = NONE_ID};
    ASSERT(ndim >= 1 && ndim <= VALUE_DIMS_MAX);
    memset(v.layout, LAYOUT_REPLICATED, sizeof(v.layout));
    for (int i = 0; i < ndim; i++)
        v.dim[i] = dim[i];
    v.ld = value_row_elems(&v);
    return v;
}

static uint32_t push_value(struct program *p, struct prog_value v)
{
    vec_push(&p->values, v);
    return p->values.n - 1;
}

uint32_t program_value(struct program *p, uint32_t storage, int64_t byte_offset,
                       enum dtype dtype, int ndim, const int64_t *dim, const char *fmt,
                       ...)
{
    struct prog_value v = value_plain(dtype, ndim, dim);
    va_list ap;
    va_start(ap, fmt);
    v.name = intern_va(p, fmt, ap);
    va_end(ap);
    v.storage = storage;
    v.byte_offset = byte_offset;
    ASSERT(byte_offset + value_span_bytes(&v) <= p->storages.data[storage].bytes);
    return push_value(p, v);
}

uint32_t program_view_cols(struct program *p, uint32_t base, int64_t col_begin,
                           int ndim, const int64_t *dim, const char *fmt, ...)
{
    struct prog_value b = p->values.data[base];
    struct prog_value v = value_plain((enum dtype)b.dtype, ndim, dim);
    va_list ap;
    va_start(ap, fmt);
    v.name = intern_va(p, fmt, ap);
    va_end(ap);
    ASSERT(dim[0] == b.dim[0] && ndim >= 2 && b.ndim >= 2);
    ASSERT(col_begin + value_row_elems(&v) <= value_row_elems(&b));
    v.storage = b.storage;
    v.byte_offset =
            b.byte_offset + col_begin * (int64_t)dtype_bytes((enum dtype)b.dtype);
    v.ld = b.ld;
    v.base = base;
    memcpy(v.layout, b.layout, sizeof(v.layout));
    return push_value(p, v);
}

uint32_t program_view_rows(struct program *p, uint32_t base, int64_t row_begin,
                           int64_t rows, const char *fmt, ...)
{
    struct prog_value v = p->values.data[base];
    va_list ap;
    va_start(ap, fmt);
    v.name = intern_va(p, fmt, ap);
    va_end(ap);
    ASSERT(row_begin >= 0 && rows >= 0 && row_begin + rows <= v.dim[0]);
    int64_t pitch = v.ndim < 2 ? 1 : v.ld;
    v.byte_offset += row_begin * pitch * (int64_t)dtype_bytes((enum dtype)v.dtype);
    v.dim[0] = rows;
    v.base = base;
    v.inplace_of = NONE_ID;
    return push_value(p, v);
}

uint32_t program_value_inplace(struct program *p, uint32_t of, const char *fmt, ...)
{
    struct prog_value v = p->values.data[of];
    va_list ap;
    va_start(ap, fmt);
    v.name = intern_va(p, fmt, ap);
    va_end(ap);
    v.inplace_of = of;
    return push_value(p, v);
}

void program_segment_begin(struct program *p, const char *name)
{
    ASSERT(p->segments.n == 0 || p->segments.data[p->segments.n - 1].op_end != NONE_ID);
    struct prog_segment s = {intern(p, name), p->ops.n, NONE_ID};
    vec_push(&p->segments, s);
}

uint32_t program_segment_end(struct program *p)
{
    ASSERT(p->segments.n > 0 && p->segments.data[p->segments.n - 1].op_end == NONE_ID);
    p->segments.data[p->segments.n - 1].op_end = p->ops.n;
    return p->segments.n - 1;
}

void program_call(struct program *p, enum call_phase phase, uint32_t segment,
                  uint32_t micro_batch, uint32_t slot)
{
    ASSERT(segment < p->segments.n);
    struct prog_call c = {segment, (uint32_t)phase, micro_batch, slot};
    vec_push(&p->calls, c);
}

uint32_t program_split_weights(struct program *p, uint32_t segment, const char *name)
{
    ASSERT(segment == p->segments.n - 1);
    struct prog_segment *seg = &p->segments.data[segment];
    uint32_t n = seg->op_end - seg->op_begin, kept = seg->op_begin, moved = 0;
    struct prog_op *weights = mem_alloc((n + (size_t)1) * sizeof(*weights));
    for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
        if (p->ops.data[o].phase == PHASE_WGRAD)
            weights[moved++] = p->ops.data[o];
        else
            p->ops.data[kept++] = p->ops.data[o];
    }
    if (moved > 0)
        memcpy(p->ops.data + kept, weights, moved * sizeof(*weights));
    mem_free(weights);
    seg->op_end = kept;
    struct prog_segment fresh = {intern(p, name), kept, p->ops.n};
    vec_push(&p->segments, fresh);
    return p->segments.n - 1;
}

/* A fresh storage and value for output `i` of the op that was just pushed. */
static uint32_t fresh_output(struct program *p, const struct op_args *a, int i,
                             const struct op_shape *s)
{
    const char *op_name = op_desc(a->kind)->name;
    struct prog_value v = value_plain((enum dtype)s->dtype, s->ndim, s->dim);
    char suffix[16] = "";
    if (i > 0)
        snprintf(suffix, sizeof(suffix), ".%d", i);
    if (a->layer >= 0)
        v.name = program_name(p, "%s%s@%d", op_name, suffix, a->layer);
    else
        v.name = program_name(p, "%s%s", op_name, suffix);
    v.storage = program_storage(p, SC_WORKSPACE, SLOT_NONE, value_span_bytes(&v), "%s",
                                prog_name(p, v.name));
    return push_value(p, v);
}

/* Layouts of the outputs follow from those of the inputs. */
static void set_output_layouts(struct program *p, const struct prog_op *op)
{
    const struct op_desc *desc = op_desc((enum op_kind)op->kind);
    struct op_ctx c = {p, op, 0};
    if (op->n_in == 0)
        return; /* as the builder declared them */
    for (int d = 0; d < MESH_DIMS; d++) {
        uint8_t in[OP_IN_MAX] = {0}, out[OP_OUT_MAX];
        memset(out, LAYOUT_REPLICATED, sizeof(out));
        if (p->mesh_degree[d] == 1)
            continue;
        c.mesh_dim = d;
        for (int i = 0; i < op->n_in; i++)
            in[i] = p->values.data[op_in(p, op, i)].layout[d];
        const char *wrong = desc->layout(&c, in, out);
        if (wrong)
            BUG("op %s: layout over mesh dimension %d: %s", desc->name, d, wrong);
        for (int i = 0; i < op->n_out; i++)
            if (op_out(p, op, i) != NONE_ID)
                p->values.data[op_out(p, op, i)].layout[d] = out[i];
    }
}

void program_op(struct program *p, struct op_args *a)
{
    const struct op_desc *desc = op_desc(a->kind);
    ASSERT(a->n_in >= desc->n_in_min && a->n_in <= desc->n_in_max);
    struct prog_op op = {.kind = (uint16_t)a->kind,
                         .phase = (uint8_t)a->phase,
                         .stream = a->stream,
                         .layer = a->layer,
                         .operand_first = p->operands.n,
                         .n_in = (uint8_t)a->n_in,
                         .n_out = desc->n_out,
                         .attr_first = p->attrs.n,
                         .n_attrs = (uint8_t)a->n_attrs,
                         .wait_first = p->waits.n,
                         .signal = NONE_ID,
                         .predicate = a->predicate};
    for (int i = 0; i < a->n_attrs; i++)
        vec_push(&p->attrs, a->attrs[i]);
    for (int i = 0; i < a->n_in; i++)
        vec_push(&p->operands, a->in[i]);
    for (int i = 0; i < desc->n_out; i++)
        vec_push(&p->operands, NONE_ID);
    struct op_shape shape[OP_OUT_MAX] = {{0}};
    struct op_ctx c = {p, &op, 0};
    const char *wrong = desc->shape ? desc->shape(&c, shape) : NULL;
    if (wrong)
        BUG("op %s: %s", desc->name, wrong);
    for (int i = 0; i < desc->n_out; i++) {
        if (a->out[i] == NONE_ID)
            a->out[i] = fresh_output(p, a, i, &shape[i]);
        uint32_t id = a->out[i] == OUT_ABSENT ? NONE_ID : a->out[i];
        p->operands.data[op.operand_first + op.n_in + (uint32_t)i] = id;
    }
    set_output_layouts(p, &op);
    vec_push(&p->ops, op);
}

/* ------------------------------------------------------------------------- sealing */

/* Whether the value's bytes are read by someone outside the program or in a later step. */
static bool storage_escapes(const struct program *p, uint32_t storage)
{
    return storage_class_is_persistent(
            (enum storage_class)p->storages.data[storage].cls);
}

/* A storage counts as read when any op reads any value in it: views share storages. */
static void count_reads(const struct program *p, const bool *dead, uint32_t *reads)
{
    memset(reads, 0, sizeof(*reads) * p->storages.n);
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        if (dead[o])
            continue;
        for (int i = 0; i < op->n_in; i++)
            reads[p->values.data[op_in(p, op, i)].storage]++;
        if (op->predicate != NONE_ID)
            reads[p->values.data[op->predicate].storage]++;
    }
}

/* Reads of `storage` by the op itself do not keep it alive. */
static uint32_t own_reads(const struct program *p, const struct prog_op *op,
                          uint32_t storage)
{
    uint32_t n = 0;
    for (int i = 0; i < op->n_in; i++)
        n += p->values.data[op_in(p, op, i)].storage == storage;
    return n;
}

static bool output_is_read(const struct program *p, const struct prog_op *op,
                           const uint32_t *reads, uint32_t value)
{
    uint32_t s = p->values.data[value].storage;
    return storage_escapes(p, s) || reads[s] > own_reads(p, op, s);
}

/* Marks ops without a reader and drops optional outputs without one; true on progress. */
static bool prune_once(struct program *p, bool *dead, uint32_t *reads)
{
    bool progress = false;
    count_reads(p, dead, reads);
    for (uint32_t o = p->ops.n; o-- > 0;) {
        struct prog_op *op = &p->ops.data[o];
        bool any = op->n_out == 0; /* done for its effect */
        if (dead[o])
            continue;
        for (int i = 0; i < op->n_out; i++) {
            uint32_t *id =
                    &p->operands.data[op->operand_first + op->n_in + (uint32_t)i];
            if (*id == NONE_ID)
                continue;
            bool read = output_is_read(p, op, reads, *id);
            any |= read;
            if (!read && (op_desc((enum op_kind)op->kind)->out_optional >> i & 1)) {
                *id = NONE_ID;
                progress = true;
            }
        }
        if (!any) {
            dead[o] = true;
            progress = true;
        }
    }
    return progress;
}

static void remove_dead_ops(struct program *p, const bool *dead)
{
    uint32_t *moved = mem_alloc((p->ops.n + 1) * sizeof(*moved));
    uint32_t to = 0;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        moved[o] = to;
        if (!dead[o])
            p->ops.data[to++] = p->ops.data[o];
    }
    moved[p->ops.n] = to;
    for (uint32_t s = 0; s < p->segments.n; s++) {
        struct prog_segment *seg = &p->segments.data[s];
        seg->op_begin = moved[seg->op_begin];
        seg->op_end = moved[seg->op_end];
    }
    p->ops.n = to;
    mem_free(moved);
}

static void prune(struct program *p)
{
    bool *dead = mem_alloc(p->ops.n * sizeof(*dead));
    uint32_t *reads = mem_alloc(p->storages.n * sizeof(*reads));
    while (prune_once(p, dead, reads))
        continue;
    remove_dead_ops(p, dead);
    mem_free(dead);
    mem_free(reads);
}

/* Transient storages that two segments touch are activations, one copy per slot. */
static void class_transients(struct program *p)
{
    uint32_t *seen = mem_alloc(p->storages.n * sizeof(*seen));
    for (uint32_t i = 0; i < p->storages.n; i++)
        seen[i] = NONE_ID;
    for (uint32_t s = 0; s < p->segments.n; s++) {
        const struct prog_segment *seg = &p->segments.data[s];
        for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
            const struct prog_op *op = &p->ops.data[o];
            for (int i = 0; i < op->n_in + op->n_out; i++) {
                uint32_t v = op_in(p, op, i);
                if (v == NONE_ID)
                    continue;
                uint32_t st = p->values.data[v].storage;
                struct prog_storage *storage = &p->storages.data[st];
                if (storage->cls == SC_WORKSPACE && seen[st] != NONE_ID &&
                    seen[st] != s) {
                    storage->cls = SC_ACTIVATION;
                    storage->slotting = SLOT_CALL;
                }
                seen[st] = s;
            }
        }
    }
    mem_free(seen);
}

/* Transient storages that no op uses any more take no bytes. */
static void empty_untouched(struct program *p)
{
    bool *touched = mem_alloc((p->storages.n + (size_t)1) * sizeof(*touched));
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        for (int i = 0; i < op->n_in + op->n_out; i++)
            if (op_in(p, op, i) != NONE_ID)
                touched[p->values.data[op_in(p, op, i)].storage] = true;
        if (op->predicate != NONE_ID)
            touched[p->values.data[op->predicate].storage] = true;
    }
    for (uint32_t s = 0; s < p->storages.n; s++)
        if (!touched[s] && !storage_escapes(p, s))
            p->storages.data[s].bytes = 0;
    mem_free(touched);
}

static void make_offsets(struct program *p)
{
    p->n_slots = 1;
    p->n_micro_batches = 1;
    for (uint32_t i = 0; i < p->calls.n; i++) {
        p->n_slots = MAX(p->n_slots, p->calls.data[i].slot + 1);
        p->n_micro_batches = MAX(p->n_micro_batches, p->calls.data[i].micro_batch + 1);
    }
    p->offsets.n = 0;
    for (uint32_t i = 0; i < p->storages.n; i++) {
        struct prog_storage *s = &p->storages.data[i];
        s->n_copies = s->slotting == SLOT_CALL          ? p->n_slots
                      : s->slotting == SLOT_MICRO_BATCH ? p->n_micro_batches
                                                        : 1;
        s->offset_first = p->offsets.n;
        for (uint32_t c = 0; c < s->n_copies; c++)
            vec_push(&p->offsets, (int64_t)-1);
    }
}

void program_seal(struct program *p)
{
    prune(p);
    class_transients(p);
    empty_untouched(p);
    make_offsets(p);
}
