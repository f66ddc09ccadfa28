#include "core/waits.h"

#include <string.h>

#include "core/flow.h"
#include "core/op.h"

/* The waits that one op has been given. */
struct wait_list {
    VEC(uint32_t) events;
};

struct waiter {
    struct program *p;
    struct order order;
    struct flow flow;
    uint32_t *done;  /* [streams * streams] what each stream has seen done */
    uint32_t *clock; /* [instances * streams] the same, when the instance is done */
    struct wait_list *lists; /* [ops] */
    uint32_t instance;
    uint32_t stream;
};

static uint32_t stream_of(const struct waiter *w, uint32_t instance)
{
    return w->p->ops.data[w->order.instance_op[instance]].stream;
}

static void join(uint32_t *into, const uint32_t *from, uint32_t n)
{
    for (uint32_t s = 0; s < n; s++)
        into[s] = MAX(into[s], from[s]);
}

/* The last instance before this one of the same op as `other`: what its event means. */
static uint32_t most_recent(const struct waiter *w, uint32_t other)
{
    uint32_t op = w->order.instance_op[other], found = other;
    for (uint32_t i = other + 1; i < w->instance; i++)
        if (w->order.instance_op[i] == op)
            found = i;
    return found;
}

static void add_wait(struct waiter *w, uint32_t other)
{
    struct prog_op *from = &w->p->ops.data[w->order.instance_op[other]];
    if (from->signal == NONE_ID)
        from->signal = w->p->n_events++;
    struct wait_list *list = &w->lists[w->order.instance_op[w->instance]];
    for (uint32_t i = 0; i < list->events.n; i++)
        if (list->events.data[i] == from->signal)
            return;
    vec_push(&list->events, from->signal);
}

/* Instance `other` must be done before this one starts. */
static void need(struct waiter *w, uint32_t other)
{
    uint32_t n = w->order.n_streams, s;
    if (other == FLOW_HOST || other == w->instance)
        return;
    s = stream_of(w, other);
    uint32_t *mine = w->done + (size_t)w->stream * n;
    if (s == w->stream || mine[s] >= w->order.seq[other])
        return;
    other = most_recent(w, other);
    add_wait(w, other);
    join(mine, w->clock + (size_t)other * n, n);
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
    uint32_t n = w->order.n_streams;
    for (uint32_t k = 0; k < w->lists[op].events.n; k++)
        for (uint32_t i = w->instance; i-- > 0;) {
            const struct prog_op *from = &w->p->ops.data[w->order.instance_op[i]];
            if (from->signal != w->lists[op].events.data[k])
                continue;
            join(w->done + (size_t)w->stream * n, w->clock + (size_t)i * n, n);
            break;
        }
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
    uint32_t *mine = w->done + (size_t)op.stream * n;
    mine[op.stream] = w->order.seq[i];
    memcpy(w->clock + (size_t)i * n, mine, n * sizeof(*mine));
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
        ASSERT(list->events.n <= UINT8_MAX);
        p->ops.data[o].wait_first = p->waits.n;
        p->ops.data[o].n_waits = (uint8_t)list->events.n;
        for (uint32_t i = 0; i < list->events.n; i++)
            vec_push(&p->waits, list->events.data[i]);
        vec_free(&list->events);
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
}
