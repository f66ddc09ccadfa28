#include "memory/live.h"

#include <string.h>

/* Occurrences of one copy while they are found. */
struct stretch_list {
    VEC(struct live_occurrence) s;
};

struct builder {
    const struct program *prog;
    struct stretch_list *lists; /* one per copy */
    uint32_t copy;              /* what the visited pieces belong to */
    uint32_t instance;
};

/* The reader needs what instance `writer` wrote: one stretch from there to here. */
static void join_from(struct stretch_list *list, uint32_t writer, uint32_t instance)
{
    uint32_t k = list->s.n;
    while (k > 1 && list->s.data[k - 1].first > writer)
        k--;
    ASSERT(k > 0);
    list->s.data[k - 1].last = instance;
    list->s.n = k;
}

static void visit_read(void *arg, const struct flow_piece *piece)
{
    struct builder *b = arg;
    if (piece->writer != FLOW_HOST)
        join_from(&b->lists[b->copy], piece->writer, b->instance);
}

static bool is_transient(const struct program *p, uint32_t value)
{
    uint32_t s = p->values.data[value].storage;
    return !storage_class_is_persistent((enum storage_class)p->storages.data[s].cls);
}

static void note_read(struct builder *b, struct flow *f, uint32_t value)
{
    if (value == NONE_ID || !is_transient(b->prog, value))
        return;
    b->copy = flow_copy_of(f, value, b->instance);
    flow_read(f, value, b->instance, visit_read, b);
}

static void note_write(struct builder *b, struct flow *f, uint32_t value)
{
    if (value == NONE_ID || !is_transient(b->prog, value))
        return;
    struct stretch_list *list = &b->lists[flow_copy_of(f, value, b->instance)];
    flow_write(f, value, b->instance, NULL, NULL);
    if (list->s.n > 0 && list->s.data[list->s.n - 1].last == b->instance)
        return;
    struct live_occurrence fresh = {b->instance, b->instance, 0};
    vec_push(&list->s, fresh);
}

static uint32_t operand(const struct program *p, const struct prog_op *op, int i)
{
    return p->operands.data[op->operand_first + (uint32_t)i];
}

static void note_op(struct builder *b, struct flow *f, const struct prog_op *op)
{
    const struct program *p = b->prog;
    for (int i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t v = operand(p, op, i);
        if (v == NONE_ID)
            continue;
        note_read(b, f, p->values.data[v].extent);
        if (i < op->n_in)
            note_read(b, f, v);
    }
    note_read(b, f, op->predicate);
    for (int i = 0; i < op->n_out; i++)
        note_write(b, f, op_out(p, op, i));
}

static void replay(struct builder *b, const struct order *o)
{
    struct flow f;
    flow_init(&f, b->prog, o);
    for (uint32_t i = 0; i < o->n_instances; i++) {
        if (i == o->setup_end)
            flow_drop_transients(&f);
        b->instance = i;
        note_op(b, &f, &b->prog->ops.data[o->instance_op[i]]);
    }
    flow_free(&f);
}

/* Moves the stretches into the flat table, with clocks that say "never". */
static void flatten(struct live *l, const struct program *p, struct builder *b)
{
    for (uint32_t s = 0; s < p->storages.n; s++) {
        const struct prog_storage *st = &p->storages.data[s];
        for (uint32_t c = 0; c < st->n_copies; c++) {
            struct live_copy *copy = &l->copies[st->offset_first + c];
            struct stretch_list *list = &b->lists[st->offset_first + c];
            *copy = (struct live_copy){s, c, l->occ.n, l->occ.n + list->s.n};
            for (uint32_t k = 0; k < list->s.n; k++) {
                struct live_occurrence occ = list->s.data[k];
                occ.clock = l->clocks.n;
                vec_push(&l->occ, occ);
                for (uint32_t i = 0; i < l->n_streams; i++)
                    vec_push(&l->clocks, UINT32_MAX);
                for (uint32_t i = 0; i < l->n_streams; i++)
                    vec_push(&l->clocks, 0);
            }
        }
    }
}

/* Widens the occurrence of the copy that instance i belongs to. */
static void add_access(struct live *l, const struct program *p, const struct order *o,
                       uint32_t copy, uint32_t i)
{
    const struct live_copy *c = &l->copies[copy];
    uint32_t k = c->occ_begin;
    while (k < c->occ_end && l->occ.data[k].last < i)
        k++;
    if (k == c->occ_end || l->occ.data[k].first > i)
        return;
    uint32_t *begin = l->clocks.data + l->occ.data[k].clock;
    uint32_t *end = begin + l->n_streams;
    const uint32_t *clock = order_clock(o, i);
    uint8_t stream = p->ops.data[o->instance_op[i]].stream;
    for (uint32_t s = 0; s < l->n_streams; s++)
        begin[s] = MIN(begin[s], clock[s]);
    end[stream] = MAX(end[stream], o->seq[i]);
}

static void add_value(struct live *l, const struct flow *f, uint32_t v, uint32_t i)
{
    if (v != NONE_ID && is_transient(f->prog, v))
        add_access(l, f->prog, f->order, flow_copy_of(f, v, i), i);
}

static void find_clocks(struct live *l, const struct program *p, const struct order *o)
{
    const struct flow f = {.prog = p, .order = o}; /* only to find copies */
    for (uint32_t i = 0; i < o->n_instances; i++) {
        const struct prog_op *op = &p->ops.data[o->instance_op[i]];
        for (int k = 0; k < op->n_in + op->n_out; k++) {
            uint32_t v = operand(p, op, k);
            add_value(l, &f, v, i);
            if (v != NONE_ID)
                add_value(l, &f, p->values.data[v].extent, i);
        }
        add_value(l, &f, op->predicate, i);
    }
}

void live_build(struct live *l, const struct program *p, const struct order *o)
{
    struct builder b = {.prog = p};
    memset(l, 0, sizeof(*l));
    l->n_streams = o->n_streams;
    l->n_copies = p->offsets.n;
    l->copies = mem_alloc((l->n_copies + (size_t)1) * sizeof(*l->copies));
    b.lists = mem_alloc((l->n_copies + (size_t)1) * sizeof(*b.lists));
    replay(&b, o);
    flatten(l, p, &b);
    find_clocks(l, p, o);
    for (uint32_t i = 0; i < l->n_copies; i++)
        vec_free(&b.lists[i].s);
    mem_free(b.lists);
}

void live_free(struct live *l)
{
    mem_free(l->copies);
    vec_free(&l->occ);
    vec_free(&l->clocks);
    memset(l, 0, sizeof(*l));
}

/* Whether occurrence a is over before occurrence b starts. */
static bool is_over_before(const struct live *l, const struct live_occurrence *a,
                           const struct live_occurrence *b)
{
    const uint32_t *end = l->clocks.data + a->clock + l->n_streams;
    const uint32_t *begin = l->clocks.data + b->clock;
    for (uint32_t s = 0; s < l->n_streams; s++)
        if (end[s] > begin[s])
            return false;
    return true;
}

bool live_disjoint(const struct live *l, uint32_t a, uint32_t b)
{
    const struct live_copy *ca = &l->copies[a], *cb = &l->copies[b];
    for (uint32_t i = ca->occ_begin; i < ca->occ_end; i++)
        for (uint32_t k = cb->occ_begin; k < cb->occ_end; k++) {
            const struct live_occurrence *x = &l->occ.data[i], *y = &l->occ.data[k];
            if (!is_over_before(l, x, y) && !is_over_before(l, y, x))
                return false;
        }
    return true;
}
