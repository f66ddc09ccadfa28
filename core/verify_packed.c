/* The verifier's third part: offsets. The schedule is replayed over the arenas' bytes,
 * independently of how packing compared lifetimes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/order.h"
#include "core/verify.h"

/* Bytes that one storage copy holds, from `begin` to `end`. The clocks are rows of
 * arena.clocks: the last accesses of this owner by stream, and of all owners before. */
struct holding {
    int64_t begin;
    int64_t end;
    uint32_t copy; /* index of the program's offsets */
    uint32_t mine;
    uint32_t before;
};

/* One pool. Holdings are sorted and do not overlap. */
struct arena_map {
    VEC(struct holding) held;
    VEC(uint32_t) clocks;
    uint32_t n_streams;
};

struct replay {
    const struct program *p;
    struct order order;
    struct arena_map pool[POOL_COUNT];
    uint32_t *storage_of; /* [offsets] */
    struct diag *diag;
};

static const char *copy_name(const struct replay *r, uint32_t copy)
{
    return prog_name(r->p, r->p->storages.data[r->storage_of[copy]].name);
}

static bool is_persistent(const struct prog_storage *s)
{
    return storage_class_is_persistent((enum storage_class)s->cls);
}

/* ------------------------------------------------------------------ fixed offsets */

struct extent {
    int64_t begin;
    int64_t end;
    uint32_t copy;
    bool persistent;
};

static int by_begin(const void *pa, const void *pb)
{
    const struct extent *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->copy > b->copy) - (a->copy < b->copy);
}

/* Every copy of the pool that has bytes. errors: one that lies outside of the pool. */
static enum status list_extents(const struct replay *r, int pool, struct extent *out,
                                uint32_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < r->p->storages.n; i++) {
        const struct prog_storage *s = &r->p->storages.data[i];
        for (uint32_t c = 0; c < s->n_copies && s->pool == pool; c++) {
            uint32_t copy = s->offset_first + c;
            int64_t at = r->p->offsets.data[copy];
            if (at < 0 && !is_persistent(s))
                continue; /* no call uses it; an access is an error of the replay */
            if (at < 0 || at > r->p->pool_bytes[pool] ||
                s->bytes > r->p->pool_bytes[pool] - at)
                return diag_set(
                        r->diag, ST_INTERNAL,
                        "storage %s copy %u lies outside of its pool: got bytes "
                        "%" PRId64 "..%" PRId64 ", wanted within %" PRId64,
                        copy_name(r, copy), c, at, at + s->bytes,
                        r->p->pool_bytes[pool]);
            if (s->bytes > 0)
                out[(*n)++] =
                        (struct extent){at, at + s->bytes, copy, is_persistent(s)};
        }
    }
    return ST_OK;
}

/* Persistent copies overlap with no other copy. */
static enum status check_fixed(const struct replay *r, int pool)
{
    struct extent *e = mem_alloc((r->p->offsets.n + (size_t)1) * sizeof(*e));
    uint32_t n, fixed = NONE_ID, any = NONE_ID; /* those that reach furthest */
    enum status st = list_extents(r, pool, e, &n);
    if (st == ST_OK)
        qsort(e, n, sizeof(*e), by_begin);
    for (uint32_t i = 0; i < n && st == ST_OK; i++) {
        uint32_t other = e[i].persistent ? any : fixed;
        if (other != NONE_ID && e[other].end > e[i].begin)
            st = diag_set(r->diag, ST_INTERNAL,
                          "storages %s and %s share bytes at %" PRId64
                          ", but one of them is persistent",
                          copy_name(r, e[other].copy), copy_name(r, e[i].copy),
                          e[i].begin);
        if (any == NONE_ID || e[i].end > e[any].end)
            any = i;
        if (e[i].persistent && (fixed == NONE_ID || e[i].end > e[fixed].end))
            fixed = i;
    }
    mem_free(e);
    return st;
}

/* ------------------------------------------------------------------------- replay */

static uint32_t clock_row(struct arena_map *m, uint32_t from_a, uint32_t from_b)
{
    uint32_t row = m->clocks.n;
    for (uint32_t s = 0; s < m->n_streams; s++) {
        uint32_t a = from_a == NONE_ID ? 0 : m->clocks.data[from_a + s];
        uint32_t b = from_b == NONE_ID ? 0 : m->clocks.data[from_b + s];
        vec_push(&m->clocks, MAX(a, b));
    }
    return row;
}

/* The first holding that ends after `at`. */
static uint32_t find_holding(const struct arena_map *m, int64_t at)
{
    uint32_t lo = 0, hi = m->held.n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (m->held.data[mid].end <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Replaces held[at .. at + n_old) by `n_new` holdings. */
static void splice(struct arena_map *m, uint32_t at, uint32_t n_old,
                   const struct holding *fresh, uint32_t n_new)
{
    const struct holding blank = {0};
    uint32_t tail = m->held.n - at - n_old;
    for (uint32_t i = n_old; i < n_new; i++)
        vec_push(&m->held, blank);
    memmove(&m->held.data[at + n_new], &m->held.data[at + n_old],
            tail * sizeof(*m->held.data));
    memcpy(&m->held.data[at], fresh, n_new * sizeof(*fresh));
    m->held.n = at + n_new + tail;
}

/* The copy takes its bytes over from whoever holds them. Returns its holding. */
static struct holding *take_over(struct arena_map *m, uint32_t copy, int64_t begin,
                                 int64_t end)
{
    uint32_t at = find_holding(m, begin), n_old = 0, n_new = 0;
    struct holding fresh[3];
    uint32_t before = clock_row(m, NONE_ID, NONE_ID);
    struct holding mine = {begin, end, copy, clock_row(m, NONE_ID, NONE_ID), before};
    for (; at + n_old < m->held.n && m->held.data[at + n_old].begin < end; n_old++) {
        const struct holding *h = &m->held.data[at + n_old];
        for (uint32_t s = 0; s < m->n_streams; s++) {
            uint32_t seen =
                    MAX(m->clocks.data[h->mine + s], m->clocks.data[h->before + s]);
            m->clocks.data[before + s] = MAX(m->clocks.data[before + s], seen);
        }
    }
    if (n_old > 0 && m->held.data[at].begin < begin) {
        fresh[n_new] = m->held.data[at];
        fresh[n_new++].end = begin;
    }
    uint32_t place = at + n_new;
    fresh[n_new++] = mine;
    if (n_old > 0 && m->held.data[at + n_old - 1].end > end) {
        fresh[n_new] = m->held.data[at + n_old - 1];
        fresh[n_new].mine = clock_row(m, fresh[n_new].mine, NONE_ID);
        fresh[n_new++].begin = end;
    }
    splice(m, at, n_old, fresh, n_new);
    return &m->held.data[place];
}

static enum status access_wrong(const struct replay *r, uint32_t instance,
                                uint32_t copy, const char *what)
{
    char label[64];
    uint32_t op = r->order.instance_op[instance];
    return diag_set(r->diag, ST_INTERNAL, "op %s in segment %s %s %s",
                    verify_op_label(r->p, op, label, sizeof(label)),
                    verify_segment_of(r->p, op), what, copy_name(r, copy));
}

static enum status access(struct replay *r, uint32_t value, uint32_t instance,
                          bool write)
{
    if (value == NONE_ID)
        return ST_OK;
    const struct program *p = r->p;
    const struct prog_storage *s = &p->storages.data[p->values.data[value].storage];
    if (is_persistent(s) || s->bytes == 0)
        return ST_OK;
    uint32_t call = r->order.instance_call[instance];
    uint32_t copy = s->offset_first + storage_copy(s, &p->calls.data[call]);
    int64_t begin = p->offsets.data[copy], end = begin + s->bytes;
    if (begin < 0)
        return access_wrong(r, instance, copy, "uses an unpacked storage:");
    struct arena_map *m = &r->pool[s->pool];
    uint32_t at = find_holding(m, begin);
    struct holding *h = at < m->held.n ? &m->held.data[at] : NULL;
    bool holds = h && h->copy == copy && h->begin == begin && h->end == end;
    if (!holds && !write)
        return access_wrong(r, instance, copy,
                            "reads bytes that another storage has taken over from");
    if (!holds)
        h = take_over(m, copy, begin, end);
    const uint32_t *clock = order_clock(&r->order, instance);
    for (uint32_t k = 0; k < m->n_streams; k++)
        if (m->clocks.data[h->before + k] > clock[k])
            return access_wrong(r, instance, copy,
                                "may run while the last owner of its bytes is in use:");
    uint8_t stream = p->ops.data[r->order.instance_op[instance]].stream;
    uint32_t *last = &m->clocks.data[h->mine + stream];
    *last = MAX(*last, r->order.seq[instance]);
    return ST_OK;
}

static enum status replay_instance(struct replay *r, uint32_t i)
{
    const struct program *p = r->p;
    const struct prog_op *op = &p->ops.data[r->order.instance_op[i]];
    TRY(access(r, op->predicate, i, false));
    for (int k = 0; k < op->n_in + op->n_out; k++)
        if (op_in(p, op, k) != NONE_ID)
            TRY(access(r, p->values.data[op_in(p, op, k)].extent, i, false));
    for (int k = 0; k < op->n_in; k++)
        TRY(access(r, op_in(p, op, k), i, false));
    for (int k = 0; k < op->n_out; k++)
        TRY(access(r, op_out(p, op, k), i, true));
    for (int k = 0; k < op->n_in + op->n_out;
         k++) /* nothing took another one's bytes */
        TRY(access(r, op_in(p, op, k), i, false));
    return ST_OK;
}

enum status program_verify_packed(const struct program *p, struct diag *diag)
{
    struct replay r = {.p = p, .diag = diag};
    enum status st = ST_OK;
    r.storage_of = mem_alloc((p->offsets.n + (size_t)1) * sizeof(*r.storage_of));
    for (uint32_t s = 0; s < p->storages.n; s++)
        for (uint32_t c = 0; c < p->storages.data[s].n_copies; c++)
            r.storage_of[p->storages.data[s].offset_first + c] = s;
    order_build(&r.order, p);
    for (int k = 0; k < POOL_COUNT && st == ST_OK; k++) {
        r.pool[k].n_streams = p->n_streams;
        st = check_fixed(&r, k);
    }
    for (uint32_t i = 0; i < r.order.n_instances && st == ST_OK; i++)
        st = replay_instance(&r, i);
    for (int k = 0; k < POOL_COUNT; k++) {
        vec_free(&r.pool[k].held);
        vec_free(&r.pool[k].clocks);
    }
    order_free(&r.order);
    mem_free(r.storage_of);
    return st;
}
