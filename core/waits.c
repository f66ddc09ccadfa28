#include "core/waits.h"

#include <string.h>

#include "core/flow.h"
#include "core/op.h"

/* The ops whose events one op has been given to wait for. */
struct wait_list {
    VEC(uint32_t) ops;
};

/* An instance that must be done before the visited one starts. */
struct need {
    uint32_t instance;
    uint32_t event; /* the instance that a wait for its op means: the op's latest */
};

struct waiter {
    struct program *p;
    struct order order;
    struct flow flow;
    uint32_t *done;  /* [streams * streams] what each stream has seen done */
    uint32_t *clock; /* [instances * streams] the same, when the instance is done */
    uint32_t *last;  /* [ops] the latest instance so far, or NONE_ID */
    struct wait_list *lists; /* [ops] */
    VEC(struct need) needs;  /* of the visited instance */
    uint32_t instance;
    uint32_t stream;
};

static uint32_t op_of(const struct waiter *w, uint32_t instance)
{
    return w->order.instance_op[instance];
}

static void join(uint32_t *into, const uint32_t *from, uint32_t n)
{
    for (uint32_t s = 0; s < n; s++)
        into[s] = MAX(into[s], from[s]);
}

static uint32_t *seen_by(const struct waiter *w, uint32_t stream)
{
    return w->done + (size_t)stream * w->order.n_streams;
}

/* Whether the visited instance starts after `other` is done, by what it waits for. */
static bool is_ordered(const struct waiter *w, uint32_t other)
{
    uint32_t s = w->p->ops.data[op_of(w, other)].stream;
    return s == w->stream || seen_by(w, w->stream)[s] >= w->order.seq[other];
}

static void take_over(struct waiter *w, uint32_t other)
{
    uint32_t n = w->order.n_streams;
    join(seen_by(w, w->stream), w->clock + (size_t)other * n, n);
}

static void need(struct waiter *w, uint32_t other)
{
    if (other == FLOW_HOST || other == w->instance || is_ordered(w, other))
        return;
    struct need new = {other, w->last[op_of(w, other)]};
    vec_push(&w->needs, new);
}

static void add_wait(struct waiter *w, uint32_t other)
{
    struct prog_op *from = &w->p->ops.data[op_of(w, other)];
    if (from->signal == NONE_ID)
        from->signal = w->p->n_events++;
    vec_push(&w->lists[op_of(w, w->instance)].ops, op_of(w, other));
    take_over(w, other);
}

/* Latest first: what a later instance has waited for needs no wait of its own. */
static void add_waits(struct waiter *w)
{
    while (w->needs.n > 0) {
        uint32_t latest = 0;
        for (uint32_t i = 1; i < w->needs.n; i++)
            if (w->needs.data[i].event > w->needs.data[latest].event)
                latest = i;
        struct need next = w->needs.data[latest];
        w->needs.data[latest] = w->needs.data[--w->needs.n];
        if (!is_ordered(w, next.instance))
            add_wait(w, next.event);
    }
}

static void visit_read(void *arg, const struct flow_piece *piece)
{
    need(arg, piece->writer);
}

static void visit_write(void *arg, const struct flow_piece *piece)
{
    struct waiter *w = arg;
    need(w, piece->writer);
    for (uint32_t s = 0; s < w->order.n_streams; s++)
        need(w, w->flow.readers.data[piece->readers + s]);
}

static void read_value(struct waiter *w, uint32_t value)
{
    if (value != NONE_ID)
        flow_read(&w->flow, value, w->instance, visit_read, w);
}

/* An instance starts with the waits that earlier instances of its op were given. */
static void take_given(struct waiter *w, uint32_t op)
{
    for (uint32_t k = 0; k < w->lists[op].ops.n; k++)
        take_over(w, w->last[w->lists[op].ops.data[k]]);
}

static void visit_instance(struct waiter *w, uint32_t i)
{
    uint32_t id = w->order.instance_op[i], n = w->order.n_streams;
    const struct prog_op op = w->p->ops.data[id];
    w->instance = i;
    w->stream = op.stream;
    take_given(w, id);
    read_value(w, op.predicate);
    for (int k = 0; k < op.n_in + op.n_out; k++) {
        uint32_t v = op_in(w->p, &op, k);
        if (v != NONE_ID)
            read_value(w, w->p->values.data[v].extent);
    }
    for (int k = 0; k < op.n_in; k++)
        read_value(w, op_in(w->p, &op, k));
    for (int k = 0; k < op.n_out; k++)
        if (op_out(w->p, &op, k) != NONE_ID)
            flow_write(&w->flow, op_out(w->p, &op, k), i, visit_write, w);
    add_waits(w);
    uint32_t *mine = seen_by(w, op.stream);
    mine[op.stream] = w->order.seq[i];
    memcpy(w->clock + (size_t)i * n, mine, n * sizeof(*mine));
    w->last[id] = i;
}

/* Set-up calls are over before a step starts. */
static void finish_setup(struct waiter *w)
{
    uint32_t n = w->order.n_streams;
    flow_drop_transients(&w->flow);
    for (uint32_t s = 1; s < n; s++)
        join(w->done, w->done + (size_t)s * n, n);
    for (uint32_t s = 1; s < n; s++)
        memcpy(w->done + (size_t)s * n, w->done, n * sizeof(*w->done));
}

static void write_waits(struct waiter *w)
{
    struct program *p = w->p;
    p->waits.n = 0;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        struct wait_list *list = &w->lists[o];
        ASSERT(list->ops.n <= UINT8_MAX);
        p->ops.data[o].wait_first = p->waits.n;
        p->ops.data[o].n_waits = (uint8_t)list->ops.n;
        for (uint32_t i = 0; i < list->ops.n; i++)
            vec_push(&p->waits, p->ops.data[list->ops.data[i]].signal);
        vec_free(&list->ops);
    }
}

void program_add_waits(struct program *p)
{
    struct waiter w = {.p = p};
    for (uint32_t o = 0; o < p->ops.n; o++)
        p->n_streams = MAX(p->n_streams, p->ops.data[o].stream + 1u);
    if (p->n_streams == 1)
        return;
    ASSERT(p->n_events == 0);
    size_t n = p->n_streams;
    order_build(&w.order, p);
    flow_init(&w.flow, p, &w.order);
    w.done = mem_alloc(n * n * sizeof(uint32_t));
    w.clock = mem_alloc((w.order.n_instances + (size_t)1) * n * sizeof(uint32_t));
    w.lists = mem_alloc((p->ops.n + (size_t)1) * sizeof(*w.lists));
    w.last = mem_alloc((p->ops.n + (size_t)1) * sizeof(*w.last));
    memset(w.last, 0xff, p->ops.n * sizeof(*w.last)); /* NONE_ID */
    for (uint32_t i = 0; i < w.order.n_instances; i++) {
        if (i == w.order.setup_end)
            finish_setup(&w);
        visit_instance(&w, i);
    }
    write_waits(&w);
    flow_free(&w.flow);
    order_free(&w.order);
    mem_free(w.done);
    mem_free(w.clock);
    mem_free(w.lists);
    mem_free(w.last);
    vec_free(&w.needs);
}
