#include "memory/pack.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

struct pack_options pack_options_default(void)
{
    return (struct pack_options){.align_bytes = 64};
}

void mem_report_free(struct mem_report *r)
{
    vec_free(&r->layers);
}

static bool is_persistent(const struct prog_storage *s)
{
    return storage_class_is_persistent((enum storage_class)s->cls);
}

/* What a storage copy takes of the arena. */
static int64_t padded_bytes(const struct pack_options *opt, int64_t bytes)
{
    return round_up_i64(bytes + opt->guard_bytes, opt->align_bytes);
}

/* --------------------------------------------------------------------- persistent */

/* A persistent storage of the run, by name and class. */
struct resident {
    const char *name;
    int64_t bytes;  /* of one copy */
    int64_t offset; /* of the first copy */
    uint32_t n_copies;
    uint8_t cls;
    uint8_t pool;
    uint32_t owner; /* the last program that declared it */
};

struct resident_table {
    VEC(struct resident) list;
    uint32_t *slots; /* open addressing: index + 1 into list, 0 free */
    uint32_t n_slots;
};

static uint32_t *resident_slot(struct resident_table *t, const char *name, uint8_t cls)
{
    uint64_t at = hash64_text(name) + cls;
    for (;; at++) {
        uint32_t *slot = &t->slots[at & (t->n_slots - 1)];
        if (*slot == 0)
            return slot;
        const struct resident *r = &t->list.data[*slot - 1];
        if (r->cls == cls && strcmp(r->name, name) == 0)
            return slot;
    }
}

static bool size_may_differ(uint8_t cls)
{
    return cls == SC_INPUT || cls == SC_OUTPUT || cls == SC_PARAMS;
}

static enum status add_resident(struct resident_table *t, const struct program *p,
                                const struct prog_storage *s, uint32_t owner,
                                struct diag *diag)
{
    const char *name = prog_name(p, s->name);
    uint32_t *slot = resident_slot(t, name, s->cls);
    if (*slot == 0) {
        struct resident fresh = {.name = name,
                                 .bytes = s->bytes,
                                 .n_copies = s->n_copies,
                                 .cls = s->cls,
                                 .pool = s->pool,
                                 .owner = owner};
        vec_push(&t->list, fresh);
        *slot = t->list.n;
        return ST_OK;
    }
    struct resident *r = &t->list.data[*slot - 1];
    if (r->owner == owner)
        return diag_set(diag, ST_INTERNAL,
                        "two %s storages have one name (%s): got two, wanted one",
                        storage_class_name((enum storage_class)s->cls), name);
    bool same = r->bytes == s->bytes && r->n_copies == s->n_copies;
    if (r->pool != s->pool || (!same && !size_may_differ(s->cls)))
        return diag_set(diag, ST_INTERNAL,
                        "programs of one run disagree on %s storage %s: got %lld bytes "
                        "x %u, wanted %lld bytes x %u",
                        storage_class_name((enum storage_class)s->cls), name,
                        (long long)s->bytes, s->n_copies, (long long)r->bytes,
                        r->n_copies);
    r->owner = owner;
    r->bytes = MAX(r->bytes, s->bytes);
    r->n_copies = MAX(r->n_copies, s->n_copies);
    return ST_OK;
}

static enum status collect_residents(struct resident_table *t,
                                     struct program *const *programs, int n,
                                     struct diag *diag)
{
    uint32_t total = 1;
    for (int i = 0; i < n; i++)
        total += programs[i]->storages.n;
    for (t->n_slots = 16; t->n_slots < 2 * total;)
        t->n_slots *= 2;
    t->slots = mem_alloc(t->n_slots * sizeof(*t->slots));
    for (int i = 0; i < n; i++)
        for (uint32_t k = 0; k < programs[i]->storages.n; k++) {
            const struct prog_storage *s = &programs[i]->storages.data[k];
            if (is_persistent(s))
                TRY(add_resident(t, programs[i], s, (uint32_t)i, diag));
        }
    return ST_OK;
}

/* Gives every resident its offset; bytes[pool] is where the transients begin. */
static void place_residents(struct resident_table *t, const struct pack_options *opt,
                            int64_t bytes[POOL_COUNT])
{
    for (uint32_t i = 0; i < t->list.n; i++) {
        struct resident *r = &t->list.data[i];
        r->offset = bytes[r->pool];
        bytes[r->pool] += r->n_copies * padded_bytes(opt, r->bytes);
    }
}

static void write_residents(struct resident_table *t, const struct pack_options *opt,
                            struct program *p)
{
    for (uint32_t k = 0; k < p->storages.n; k++) {
        const struct prog_storage *s = &p->storages.data[k];
        if (!is_persistent(s))
            continue;
        uint32_t *slot = resident_slot(t, prog_name(p, s->name), s->cls);
        const struct resident *r = &t->list.data[*slot - 1];
        for (uint32_t c = 0; c < s->n_copies; c++)
            p->offsets.data[s->offset_first + c] =
                    r->offset + c * padded_bytes(opt, r->bytes);
    }
}

/* ---------------------------------------------------------------------- transients */

struct item {
    int64_t bytes; /* padded */
    int64_t offset;
    double weight;  /* bytes x time in use */
    uint32_t copy;  /* index of the program's offsets */
    uint32_t first; /* first instance that uses it */
};

struct packer {
    const struct live *live;
    const struct pack_options *opt;
    int64_t base; /* where transients begin */
    struct item *items;
    uint32_t n;
    struct item *placed; /* by offset */
    uint32_t n_placed;
};

static int cmp_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_copy(const struct item *a, const struct item *b)
{
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return (a->copy > b->copy) - (a->copy < b->copy);
}

static int by_size(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    int c = cmp_i64(b->bytes, a->bytes);
    return c ? c : by_copy(a, b);
}

static int by_weight(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return by_size(pa, pb);
}

static int by_start(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    int c = by_copy(a, b);
    return c ? c : cmp_i64(b->bytes, a->bytes);
}

/* The smallest hole between conflicting neighbours that holds the item, else the lowest
 * place after them. */
static int64_t best_offset(const struct packer *k, const struct item *it)
{
    int64_t cursor = k->base, best = -1, best_gap = INT64_MAX;
    for (uint32_t i = 0; i < k->n_placed; i++) {
        const struct item *other = &k->placed[i];
        int64_t end = other->offset + other->bytes;
        if (end <= cursor ||
            (!k->opt->isolate && live_disjoint(k->live, it->copy, other->copy)))
            continue;
        int64_t gap = other->offset - cursor;
        if (gap >= it->bytes && gap < best_gap) {
            best = cursor;
            best_gap = gap;
        }
        cursor = end;
    }
    return best >= 0 ? best : cursor;
}

static void insert_placed(struct packer *k, const struct item *it)
{
    uint32_t lo = 0, hi = k->n_placed;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (k->placed[mid].offset <= it->offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(&k->placed[lo + 1], &k->placed[lo], (k->n_placed - lo) * sizeof(*it));
    k->placed[lo] = *it;
    k->n_placed++;
}

/* Places all items in the given order. out: where the last one ends. */
static int64_t place_in_order(struct packer *k, int (*cmp)(const void *, const void *))
{
    int64_t end = k->base;
    qsort(k->items, k->n, sizeof(*k->items), cmp);
    k->n_placed = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        k->items[i].offset = best_offset(k, &k->items[i]);
        end = MAX(end, k->items[i].offset + k->items[i].bytes);
        insert_placed(k, &k->items[i]);
    }
    return end;
}

/* Tries the orders until one reaches the lower bound; writes the best one's offsets.
 * Placing is quadratic, so large programs get one order only. */
static void place_items(struct packer *k, struct program *p, int64_t bound)
{
    static int (*const orders[])(const void *, const void *) = {by_size, by_weight,
                                                                by_start};
    const uint32_t large = 4096;
    int64_t best = INT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(orders) && best > bound; i++) {
        if (i > 0 && k->n > large)
            break;
        int64_t end = place_in_order(k, orders[i]);
        if (end >= best)
            continue;
        best = end;
        for (uint32_t m = 0; m < k->n; m++)
            p->offsets.data[k->items[m].copy] = k->items[m].offset;
    }
}

static void collect_items(struct packer *k, const struct program *p, int pool)
{
    k->n = 0;
    for (uint32_t c = 0; c < k->live->n_copies; c++) {
        const struct live_copy *lc = &k->live->copies[c];
        const struct prog_storage *s = &p->storages.data[lc->storage];
        if (s->pool != pool || is_persistent(s) || lc->occ_begin == lc->occ_end)
            continue;
        uint32_t time = 0;
        for (uint32_t o = lc->occ_begin; o < lc->occ_end; o++)
            time += k->live->occ.data[o].last - k->live->occ.data[o].first + 1;
        struct item it = {.bytes = padded_bytes(k->opt, s->bytes),
                          .weight = (double)s->bytes * time,
                          .copy = c,
                          .first = k->live->occ.data[lc->occ_begin].first};
        k->items[k->n++] = it;
    }
}

/* ------------------------------------------------------------------------- reports */

/* The layer of the first op that uses each storage. */
static int32_t *storage_layers(const struct program *p)
{
    int32_t *layer = mem_alloc((p->storages.n + (size_t)1) * sizeof(*layer));
    for (uint32_t s = 0; s < p->storages.n; s++)
        layer[s] = -1;
    for (uint32_t o = p->ops.n; o-- > 0;) {
        const struct prog_op *op = &p->ops.data[o];
        for (int i = 0; i < op->n_in + op->n_out; i++) {
            uint32_t v = p->operands.data[op->operand_first + (uint32_t)i];
            if (v != NONE_ID && op->layer >= 0)
                layer[p->values.data[v].storage] = op->layer;
        }
    }
    return layer;
}

/* The instance at which most bytes of the pool's transients are in use, and how many. */
static uint32_t find_peak(const struct program *p, const struct live *l,
                          const struct pack_options *opt, int pool,
                          uint32_t n_instances, int64_t *peak_bytes)
{
    int64_t *delta = mem_alloc((n_instances + (size_t)2) * sizeof(*delta));
    int64_t now = 0;
    uint32_t at = NONE_ID;
    for (uint32_t c = 0; c < l->n_copies; c++) {
        const struct live_copy *lc = &l->copies[c];
        const struct prog_storage *s = &p->storages.data[lc->storage];
        if (s->pool != pool)
            continue;
        for (uint32_t o = lc->occ_begin; o < lc->occ_end; o++) {
            delta[l->occ.data[o].first] += padded_bytes(opt, s->bytes);
            delta[l->occ.data[o].last + 1] -= padded_bytes(opt, s->bytes);
        }
    }
    *peak_bytes = 0;
    for (uint32_t i = 0; i < n_instances; i++) {
        now += delta[i];
        if (now > *peak_bytes) {
            *peak_bytes = now;
            at = i;
        }
    }
    mem_free(delta);
    return at;
}

static bool is_live_at(const struct live *l, uint32_t copy, uint32_t instance)
{
    const struct live_copy *lc = &l->copies[copy];
    for (uint32_t o = lc->occ_begin; o < lc->occ_end; o++)
        if (l->occ.data[o].first <= instance && instance <= l->occ.data[o].last)
            return true;
    return false;
}

static int by_layer(const void *pa, const void *pb)
{
    const struct mem_layer *a = pa, *b = pb;
    return (a->layer > b->layer) - (a->layer < b->layer);
}

static void add_layer(struct mem_report *r, int32_t layer, int64_t bytes)
{
    for (uint32_t i = r->layers.n; i-- > 0;)
        if (r->layers.data[i].layer == layer) {
            r->layers.data[i].bytes += bytes;
            return;
        }
    struct mem_layer fresh = {layer, bytes};
    vec_push(&r->layers, fresh);
}

/* Bytes by class and layer at the peak. */
static void count_classes(struct mem_report *r, const struct program *p,
                          const struct live *l, const uint32_t peak[POOL_COUNT])
{
    int32_t *layer = storage_layers(p);
    for (uint32_t c = 0; c < l->n_copies; c++) {
        const struct prog_storage *s = &p->storages.data[l->copies[c].storage];
        struct mem_pool *m = &r->pool[s->pool];
        bool live = is_persistent(s) ||
                    (peak[s->pool] != NONE_ID && is_live_at(l, c, peak[s->pool]));
        bool used = is_persistent(s) || l->copies[c].occ_begin < l->copies[c].occ_end;
        if (used) {
            m->unshared_bytes[s->cls] += s->bytes;
            m->top_bytes = MAX(m->top_bytes, p->offsets.data[c] + s->bytes);
        }
        if (!live)
            continue;
        m->class_bytes[s->cls] += s->bytes;
        if (s->pool == POOL_DEVICE)
            add_layer(r, layer[l->copies[c].storage], s->bytes);
    }
    qsort(r->layers.data, r->layers.n, sizeof(*r->layers.data), by_layer);
    mem_free(layer);
}

/* ------------------------------------------------------------------------- packing */

/* Places the transients of one program. out: pool_bytes of the program alone. */
static void pack_transients(struct program *p, const struct pack_options *opt,
                            const int64_t base[POOL_COUNT], struct mem_report *report)
{
    struct order o;
    struct live l;
    uint32_t peak[POOL_COUNT];
    order_build(&o, p);
    live_build(&l, p, &o);
    struct packer k = {.live = &l, .opt = opt};
    k.items = mem_alloc((l.n_copies + (size_t)1) * sizeof(*k.items));
    k.placed = mem_alloc((l.n_copies + (size_t)1) * sizeof(*k.placed));
    for (int pool = 0; pool < POOL_COUNT; pool++) {
        struct mem_pool *m = &report->pool[pool];
        int64_t most;
        peak[pool] = find_peak(p, &l, opt, pool, o.n_instances, &most);
        m->persistent_bytes = base[pool];
        m->bound_bytes = base[pool] + most;
        m->peak_op = m->peak_call = NONE_ID;
        if (peak[pool] != NONE_ID) {
            m->peak_op = o.instance_op[peak[pool]];
            m->peak_call = o.instance_call[peak[pool]];
        }
        k.base = base[pool];
        collect_items(&k, p, pool);
        place_items(&k, p, m->bound_bytes);
        m->pool_bytes = base[pool];
        for (uint32_t i = 0; i < k.n; i++) {
            int64_t end = p->offsets.data[k.items[i].copy] + k.items[i].bytes;
            m->pool_bytes = MAX(m->pool_bytes, end);
        }
        p->pool_bytes[pool] = m->pool_bytes;
    }
    count_classes(report, p, &l, peak);
    mem_free(k.items);
    mem_free(k.placed);
    live_free(&l);
    order_free(&o);
}

enum status pack_programs(struct program *const *programs, int n,
                          const struct pack_options *opt, struct mem_report *reports,
                          struct diag *diag)
{
    struct resident_table t = {0};
    int64_t base[POOL_COUNT] = {0}, most[POOL_COUNT] = {0};
    ASSERT(opt->align_bytes > 0 && (opt->align_bytes & (opt->align_bytes - 1)) == 0);
    enum status st = collect_residents(&t, programs, n, diag);
    if (st == ST_OK)
        place_residents(&t, opt, base);
    for (int i = 0; i < n && st == ST_OK; i++) {
        struct mem_report mine = {0};
        for (uint32_t c = 0; c < programs[i]->offsets.n; c++)
            programs[i]->offsets.data[c] = -1;
        write_residents(&t, opt, programs[i]);
        pack_transients(programs[i], opt, base, &mine);
        for (int k = 0; k < POOL_COUNT; k++)
            most[k] = MAX(most[k], programs[i]->pool_bytes[k]);
        if (reports)
            reports[i] = mine;
        else
            mem_report_free(&mine);
    }
    for (int i = 0; i < n && st == ST_OK; i++)
        memcpy(programs[i]->pool_bytes, most, sizeof(most));
    mem_free(t.slots);
    vec_free(&t.list);
    return st;
}

enum status pack_program(struct program *p, const struct pack_options *opt,
                         struct mem_report *report, struct diag *diag)
{
    return pack_programs(&p, 1, opt, report, diag);
}
