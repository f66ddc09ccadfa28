/* The verifier's second part: the schedule is replayed, and every byte that is read must
 * come from the right writer. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/flow.h"
#include "core/op.h"
#include "core/verify.h"

/* Steps of base and in-place chains that are followed. */
#define CHAIN_MAX 256

struct checker {
    const struct program *p;
    struct order order;
    struct flow flow;
    struct diag *diag;
    enum status st;
    bool *written;  /* values that some op has as an output */
    uint32_t *over; /* values: what it overwrites in place, or NONE_ID */
    bool *of_use;   /* ops: a result is read by another op, or outlives the step */
    uint32_t instance;
    uint32_t value; /* of the access under check */
};

static const char *name_of(const struct checker *c, uint32_t value)
{
    return prog_name(c->p, c->p->values.data[value].name);
}

static bool is_persistent(const struct checker *c, uint32_t value)
{
    uint32_t s = c->p->values.data[value].storage;
    return storage_class_is_persistent((enum storage_class)c->p->storages.data[s].cls);
}

static uint32_t op_of(const struct checker *c, uint32_t instance)
{
    return c->order.instance_op[instance];
}

/* -------------------------------------------------------------- who may read what */

/* Which values ops write, and which of them they write over another one. */
static void find_writers(struct checker *c)
{
    const struct program *p = c->p;
    for (uint32_t v = 0; v < p->values.n; v++)
        c->over[v] = p->values.data[v].inplace_of;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        int inplace_in = op_desc((enum op_kind)op->kind)->inplace_in;
        for (int i = 0; i < op->n_out; i++) {
            uint32_t out = op_out(p, op, i);
            if (out == NONE_ID)
                continue;
            c->written[out] = true;
            if (inplace_in < 0 || inplace_in + i >= op->n_in)
                continue;
            uint32_t in = op_in(p, op, inplace_in + i);
            if (in != out && value_bytes_equal(p, in, out))
                c->over[out] = in;
        }
    }
}

static bool has_overwritten(const struct checker *c, uint32_t writer, uint32_t value)
{
    for (int i = 0; i < CHAIN_MAX && c->over[writer] != NONE_ID; i++) {
        writer = c->over[writer];
        if (writer == value)
            return true;
    }
    return false;
}

static bool is_view_of(const struct checker *c, uint32_t value, uint32_t base)
{
    while (value != NONE_ID && value != base)
        value = c->p->values.data[value].base;
    return value == base;
}

/* Storages of many tensors, which are reached one by one and as ranges: persistent ones,
 * and those through which they are communicated. */
static bool is_table(const struct checker *c, uint32_t value)
{
    uint32_t s = c->p->values.data[value].storage;
    return is_persistent(c, value) || c->p->storages.data[s].cls == SC_COMM;
}

/* Whether bytes that were last written as `w` may be read as `v`: as the value itself, as
 * a view of what was written whole, as a whole that was written part by part, and in
 * storages of tables also as a larger or smaller range of the same table. Not when `w`
 * was written in place of what `v` names. */
static bool may_read(const struct checker *c, uint32_t v, uint32_t w)
{
    if (w == FLOW_HOST || w == v)
        return true;
    bool own_writer = false, in_place = false;
    for (uint32_t x = v; x != NONE_ID && !in_place; x = c->p->values.data[x].base) {
        if (x == w)
            return true;
        own_writer |= c->written[x];
        in_place = c->over[x] != NONE_ID;
    }
    if (!own_writer && !in_place)
        return !has_overwritten(c, w, v);
    if (c->over[w] != NONE_ID || value_bytes_equal(c->p, v, w))
        return false;
    if (is_view_of(c, w, v))
        return true;
    return is_table(c, v) &&
           (value_bytes_contain(c->p, v, w) || value_bytes_contain(c->p, w, v));
}

/* ---------------------------------------------------------------------- accesses */

static void wrong(struct checker *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void wrong(struct checker *c, const char *fmt, ...)
{
    char label[64], text[640];
    va_list ap;
    if (c->st != ST_OK)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    uint32_t op = op_of(c, c->instance);
    c->st = diag_set(c->diag, ST_INTERNAL, "op %s in segment %s %s",
                     verify_op_label(c->p, op, label, sizeof(label)),
                     verify_segment_of(c->p, op), text);
}

/* The other access must be over, whatever the timing of the streams. */
static void require_before(struct checker *c, uint32_t other, const char *verb,
                           const char *other_verb)
{
    char label[64];
    if (other == FLOW_HOST || other == c->instance ||
        order_before(&c->order, c->p, other, c->instance))
        return;
    wrong(c,
          "%s %s on stream %u, unordered with op %s on stream %u, which %s it: a wait "
          "is missing",
          verb, name_of(c, c->value), c->p->ops.data[op_of(c, c->instance)].stream,
          verify_op_label(c->p, op_of(c, other), label, sizeof(label)),
          c->p->ops.data[op_of(c, other)].stream, other_verb);
}

static void visit_read(void *arg, const struct flow_piece *piece)
{
    struct checker *c = arg;
    if (piece->writer == FLOW_HOST)
        return;
    if (op_of(c, piece->writer) != op_of(c, c->instance))
        c->of_use[op_of(c, piece->writer)] = true;
    require_before(c, piece->writer, "reads", "writes");
    if (!may_read(c, c->value, piece->value))
        wrong(c, "reads %s, whose bytes %s has overwritten", name_of(c, c->value),
              name_of(c, piece->value));
}

static void visit_write(void *arg, const struct flow_piece *piece)
{
    struct checker *c = arg;
    require_before(c, piece->writer, "writes", "writes");
    if (c->order.n_streams == 1)
        return;
    for (uint32_t s = 0; s < c->order.n_streams; s++)
        require_before(c, c->flow.readers.data[piece->readers + s], "writes", "reads");
}

static void check_read(struct checker *c, uint32_t value, const char *as)
{
    if (value == NONE_ID || c->st != ST_OK)
        return;
    c->value = value;
    int64_t missing = flow_read(&c->flow, value, c->instance, visit_read, c);
    const struct prog_value *v = &c->p->values.data[value];
    int64_t all = value_elems(v) * (int64_t)dtype_bytes((enum dtype)v->dtype);
    if (missing == 0)
        return;
    if (missing == all)
        wrong(c, "reads %s%s, which nothing has written", as, name_of(c, value));
    else
        wrong(c,
              "reads %s%s, of which nothing has written %" PRId64 " of %" PRId64
              " bytes",
              as, name_of(c, value), missing, all);
}

static void check_write(struct checker *c, const struct prog_op *op, uint32_t value)
{
    if (value == NONE_ID || c->st != ST_OK)
        return;
    c->value = value;
    if (is_persistent(c, value))
        c->of_use[op_of(c, c->instance)] = true;
    /* What may be skipped does not count as written for the first time. */
    if (op->predicate != NONE_ID && flow_missing(&c->flow, value, c->instance) > 0)
        return;
    flow_write(&c->flow, value, c->instance, visit_write, c);
}

static void check_instance(struct checker *c)
{
    const struct prog_op *op = &c->p->ops.data[op_of(c, c->instance)];
    check_read(c, op->predicate, "its predicate ");
    for (int i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t v = op_in(c->p, op, i);
        if (v != NONE_ID)
            check_read(c, c->p->values.data[v].extent, "the extent ");
    }
    for (int i = 0; i < op->n_in; i++)
        check_read(c, op_in(c->p, op, i), "");
    for (int i = 0; i < op->n_out; i++)
        check_write(c, op, op_out(c->p, op, i));
}

/* Segments that no call runs, and ops whose results nobody reads. */
static void check_use(struct checker *c)
{
    bool *called = mem_alloc(c->p->segments.n + (size_t)1);
    for (uint32_t i = 0; i < c->p->calls.n; i++)
        called[c->p->calls.data[i].segment] = true;
    for (uint32_t s = 0; s < c->p->segments.n && c->st == ST_OK; s++) {
        const struct prog_segment *seg = &c->p->segments.data[s];
        const char *name = prog_name(c->p, seg->name);
        if (!called[s] && seg->op_end > seg->op_begin)
            c->st = diag_set(c->diag, ST_INTERNAL, "no call runs segment %s", name);
        for (uint32_t o = seg->op_begin; o < seg->op_end && c->st == ST_OK; o++) {
            char label[64];
            if (c->of_use[o] || c->p->ops.data[o].n_out == 0)
                continue;
            verify_op_label(c->p, o, label, sizeof(label));
            c->st = diag_set(c->diag, ST_INTERNAL,
                             "nobody reads what op %s in segment %s writes (%s)", label,
                             name, name_of(c, op_out(c->p, &c->p->ops.data[o], 0)));
        }
    }
    mem_free(called);
}

enum status verify_flow(const struct program *p, struct diag *diag)
{
    struct checker c = {.p = p, .diag = diag};
    c.written = mem_alloc(p->values.n + (size_t)1);
    c.over = mem_alloc((p->values.n + (size_t)1) * sizeof(*c.over));
    c.of_use = mem_alloc(p->ops.n + (size_t)1);
    find_writers(&c);
    order_build(&c.order, p);
    flow_init(&c.flow, p, &c.order);
    for (uint32_t i = 0; i < c.order.n_instances && c.st == ST_OK; i++) {
        if (i == c.order.setup_end)
            flow_drop_transients(&c.flow);
        c.instance = i;
        check_instance(&c);
    }
    if (c.st == ST_OK)
        check_use(&c);
    flow_free(&c.flow);
    order_free(&c.order);
    mem_free(c.written);
    mem_free(c.over);
    mem_free(c.of_use);
    return c.st;
}
