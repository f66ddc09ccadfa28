#include "core/order.h"

#include <string.h>

/* Whether an op writes a storage that has one copy per micro-batch and is more than an
 * output for the host: the copies of a block of calls then differ in more than what the
 * host fills in and reads. */
static bool writes_per_micro_batch(const struct program *p)
{
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        for (int i = 0; i < op->n_out; i++) {
            uint32_t v = op_out(p, op, i);
            if (v == NONE_ID)
                continue;
            const struct prog_storage *s = &p->storages.data[p->values.data[v].storage];
            if (s->slotting == SLOT_MICRO_BATCH && s->cls != SC_OUTPUT)
                return true;
        }
    }
    return false;
}

static bool calls_alike(const struct prog_call *a, const struct prog_call *b)
{
    return a->segment == b->segment && a->slot == b->slot && a->phase == b->phase;
}

/* How often the `len` calls at `at` are repeated from there on, themselves included. */
static uint32_t count_repeats(const struct program *p, uint32_t at, uint32_t len)
{
    uint32_t same = 0;
    while (at + len + same < p->calls.n &&
           calls_alike(&p->calls.data[at + same], &p->calls.data[at + len + same]))
        same++;
    return same / len + 1;
}

/* The shortest block at `at` that is repeated more often than it is analysed; 0: none. */
static uint32_t find_block(const struct program *p, uint32_t at, uint32_t *repeats)
{
    uint32_t longest = (p->calls.n - at) / (ORDER_BLOCK_COPIES + 1);
    longest = MIN(longest, ORDER_BLOCK_CALLS_MAX);
    for (uint32_t len = 1; len <= longest; len++) {
        *repeats = count_repeats(p, at, len);
        if (*repeats > ORDER_BLOCK_COPIES)
            return len;
    }
    return 0;
}

/* Fills o->call with the calls to analyse: of a repeated block the first copy and the
 * last one. */
static void choose_calls(struct order *o, const struct program *p)
{
    bool collapse = !writes_per_micro_batch(p);
    uint32_t at = 0;
    o->call = mem_alloc((p->calls.n + 1) * sizeof(*o->call));
    while (at < p->calls.n) {
        uint32_t repeats = 1;
        uint32_t len = collapse ? find_block(p, at, &repeats) : 0;
        if (len == 0) {
            o->call[o->n_calls++] = at++;
            continue;
        }
        uint32_t last = at + (repeats - (ORDER_BLOCK_COPIES - 1)) * len;
        for (uint32_t i = 0; i < len; i++)
            o->call[o->n_calls++] = at + i;
        for (uint32_t i = last; i < at + repeats * len; i++)
            o->call[o->n_calls++] = i;
        at += repeats * len;
    }
}

/* Lists the instances of the chosen calls, set-up calls first. */
static void list_instances(struct order *o, const struct program *p)
{
    uint32_t n = 0, c = 0;
    uint32_t *sorted = mem_alloc((o->n_calls + 1) * sizeof(*sorted));
    for (int phase = CALL_SETUP; phase <= CALL_STEP; phase++)
        for (uint32_t i = 0; i < o->n_calls; i++)
            if (p->calls.data[o->call[i]].phase == (uint32_t)phase)
                sorted[c++] = o->call[i];
    mem_free(o->call);
    o->call = sorted;
    o->n_calls = c;
    o->call_first = mem_alloc((c + 1) * sizeof(*o->call_first));
    for (uint32_t i = 0; i < c; i++) {
        const struct prog_segment *s =
                &p->segments.data[p->calls.data[sorted[i]].segment];
        o->call_first[i] = n;
        n += s->op_end - s->op_begin;
        if (p->calls.data[sorted[i]].phase == CALL_SETUP)
            o->setup_end = n;
    }
    o->call_first[c] = n;
    o->n_instances = n;
    o->instance_op = mem_alloc((n + 1) * sizeof(uint32_t));
    o->instance_call = mem_alloc((n + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < c; i++) {
        uint32_t begin = p->segments.data[p->calls.data[sorted[i]].segment].op_begin;
        for (uint32_t k = o->call_first[i]; k < o->call_first[i + 1]; k++) {
            o->instance_op[k] = begin + (k - o->call_first[i]);
            o->instance_call[k] = sorted[i];
        }
    }
}

static void clock_join(uint32_t *into, const uint32_t *from, uint32_t n)
{
    for (uint32_t s = 0; s < n; s++)
        into[s] = MAX(into[s], from[s]);
}

/* Every stream waits for all that ran so far. */
static void barrier(uint32_t *stream_clock, uint32_t n_streams)
{
    for (uint32_t s = 1; s < n_streams; s++)
        clock_join(stream_clock, stream_clock + (size_t)s * n_streams, n_streams);
    for (uint32_t s = 1; s < n_streams; s++)
        memcpy(stream_clock + (size_t)s * n_streams, stream_clock,
               n_streams * sizeof(*stream_clock));
}

static void compute_clocks(struct order *o, const struct program *p)
{
    uint32_t ns = o->n_streams;
    size_t row = ns * sizeof(uint32_t);
    uint32_t *done = mem_alloc(ns * row);                         /* per stream */
    uint32_t *event = mem_alloc((p->n_events + (size_t)1) * row); /* at the signal */
    o->seq = mem_alloc((o->n_instances + (size_t)1) * sizeof(uint32_t));
    o->clock = mem_alloc((o->n_instances + (size_t)1) * row);
    for (uint32_t i = 0; i < o->n_instances; i++) {
        const struct prog_op *op = &p->ops.data[o->instance_op[i]];
        if (i == o->setup_end)
            barrier(done, ns);
        uint32_t *mine = done + (size_t)op->stream * ns;
        for (uint32_t w = 0; w < op->n_waits; w++)
            clock_join(mine, event + (size_t)p->waits.data[op->wait_first + w] * ns,
                       ns);
        memcpy(o->clock + (size_t)i * ns, mine, row);
        o->seq[i] = ++mine[op->stream];
        if (op->signal != NONE_ID)
            memcpy(event + (size_t)op->signal * ns, mine, row);
    }
    mem_free(done);
    mem_free(event);
}

void order_build(struct order *o, const struct program *p)
{
    memset(o, 0, sizeof(*o));
    o->n_streams = p->n_streams;
    choose_calls(o, p);
    list_instances(o, p);
    compute_clocks(o, p);
}

void order_free(struct order *o)
{
    mem_free(o->call);
    mem_free(o->call_first);
    mem_free(o->instance_op);
    mem_free(o->instance_call);
    mem_free(o->seq);
    mem_free(o->clock);
    memset(o, 0, sizeof(*o));
}
