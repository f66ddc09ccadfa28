#include "parallel/schedule.h"

static void add(struct schedule *s, enum schedule_part part, uint32_t chunk,
                uint32_t micro_batch)
{
    vec_push(&s->items, ((struct schedule_item){part, chunk, micro_batch, NONE_ID}));
}

/* -------------------------------------------------------------------------- the lists */

static void list_1f1b(struct schedule *s)
{
    uint32_t m = s->n_micro_batches;
    uint32_t ahead = MIN(m, s->n_stages - 1 - s->stage);
    for (uint32_t k = 0; k < m + ahead; k++) {
        if (k < m)
            add(s, PART_FORWARD, 0, k);
        if (k >= ahead)
            add(s, PART_BACKWARD, 0, k - ahead);
    }
}

/* Groups of micro-batches that pass through the chunks together. */
struct groups {
    uint32_t n;
    uint32_t n_large; /* the first ones, of size + 1 */
    uint32_t size;
};

static struct groups groups_of(const struct schedule *s)
{
    uint32_t n = MAX(1, s->n_micro_batches / s->n_stages);
    return (struct groups){n, s->n_micro_batches % n, s->n_micro_batches / n};
}

/* The k-th call of a direction: group by group, in it chunk by chunk, in it micro-batch by
 * micro-batch. out: *turn the chunk, counted in the direction. */
static void group_place(const struct groups *g, uint32_t n_chunks, uint32_t k,
                        uint32_t *turn, uint32_t *micro_batch)
{
    uint32_t large_calls = g->n_large * (g->size + 1) * n_chunks;
    bool in_large = k < large_calls;
    uint32_t size = g->size + in_large;
    uint32_t first = in_large ? 0 : g->n_large * (g->size + 1);
    uint32_t at = in_large ? k : k - large_calls;
    *turn = at / size % n_chunks;
    *micro_batch = first + at / (size * n_chunks) * size + at % size;
}

static void list_interleaved(struct schedule *s)
{
    struct groups g = groups_of(s);
    uint32_t n_calls = s->n_micro_batches * s->n_chunks;
    uint32_t largest = g.size + (g.n_large > 0);
    uint32_t ahead = (s->n_chunks - 1) * largest + 2 * (s->n_stages - 1 - s->stage);
    ahead = MIN(ahead, n_calls);
    for (uint32_t k = 0; k < n_calls + ahead; k++) {
        uint32_t turn, micro_batch;
        if (k < n_calls) {
            group_place(&g, s->n_chunks, k, &turn, &micro_batch);
            add(s, PART_FORWARD, turn, micro_batch);
        }
        if (k >= ahead) {
            group_place(&g, s->n_chunks, k - ahead, &turn, &micro_batch);
            add(s, PART_BACKWARD, s->n_chunks - 1 - turn, micro_batch);
        }
    }
}

static void list_zb_h1(struct schedule *s)
{
    uint32_t m = s->n_micro_batches;
    uint32_t ahead = MIN(m, s->n_stages - 1 - s->stage);
    uint32_t back = MIN(m, s->stage); /* weight parts that wait */
    for (uint32_t k = 0; k < m + ahead + back; k++) {
        if (k < m)
            add(s, PART_FORWARD, 0, k);
        if (k >= ahead && k < m + ahead)
            add(s, PART_BACKWARD_INPUT, 0, k - ahead);
        if (k >= ahead + back)
            add(s, PART_BACKWARD_WEIGHT, 0, k - ahead - back);
    }
}

/* -------------------------------------------------------------------------- the table */

static const struct row {
    const char *name;
    bool many_chunks; /* two or more per stage; else one */
    bool splits_backward;
    void (*list)(struct schedule *s);
} rows[SCHEDULE_KINDS] = {
        [SCHEDULE_1F1B] = {"1f1b", false, false, list_1f1b},
        [SCHEDULE_INTERLEAVED] = {"interleaved", true, false, list_interleaved},
        [SCHEDULE_ZB_H1] = {"zb", false, true, list_zb_h1},
};

static const struct row *row_of(enum schedule_kind kind)
{
    ASSERT((int)kind >= 0 && kind < SCHEDULE_KINDS);
    return &rows[kind];
}

const char *schedule_name(enum schedule_kind kind)
{
    return row_of(kind)->name;
}

bool schedule_splits_backward(enum schedule_kind kind)
{
    return row_of(kind)->splits_backward;
}

const char *schedule_part_name(enum schedule_part part)
{
    static const char *const names[PART_COUNT] = {"forward", "backward",
                                                  "input backward", "weight backward"};
    ASSERT((int)part >= 0 && part < PART_COUNT);
    return names[part];
}

/* --------------------------------------------------------------------------- building */

/* Gives every forward of a chunk the lowest slot that is free, and the backward parts of
 * the micro-batch the same one. */
static void hand_out_slots(struct schedule *s)
{
    enum schedule_part last =
            row_of(s->kind)->splits_backward ? PART_BACKWARD_WEIGHT : PART_BACKWARD;
    uint32_t m = s->n_micro_batches;
    size_t cells = (size_t)s->n_chunks * m;
    uint32_t *slot_of = mem_alloc(cells * sizeof(*slot_of)); /* [chunk][micro-batch] */
    bool *taken = mem_alloc(cells * sizeof(*taken));         /* [chunk][slot] */
    for (uint32_t c = 0; c < s->n_chunks; c++)
        vec_push(&s->n_slots, 0);
    for (uint32_t i = 0; i < s->items.n; i++) {
        struct schedule_item *item = &s->items.data[i];
        bool *free_of = taken + (size_t)item->chunk * m;
        uint32_t *slot = &slot_of[(size_t)item->chunk * m + item->micro_batch];
        if (item->part == PART_FORWARD) {
            *slot = 0;
            while (free_of[*slot])
                ++*slot;
            free_of[*slot] = true;
            uint32_t *n = &s->n_slots.data[item->chunk];
            *n = MAX(*n, *slot + 1);
        }
        item->slot = *slot;
        if (item->part == last)
            free_of[*slot] = false;
    }
    mem_free(slot_of);
    mem_free(taken);
}

static enum status check_chunks(enum schedule_kind kind, int64_t n_chunks,
                                struct diag *diag)
{
    const struct row *row = row_of(kind);
    if (row->many_chunks == (n_chunks > 1))
        return ST_OK;
    diag_set(
            diag, ST_CONFIG,
            "schedule %s does not take these chunks (parallel.vpp): got %lld per stage, "
            "wanted %s",
            row->name, (long long)n_chunks, row->many_chunks ? "at least 2" : "1");
    if (row->many_chunks)
        diag_hint(diag, "parallel.vpp=2, or parallel.schedule=%s with one chunk",
                  rows[SCHEDULE_1F1B].name);
    else
        diag_hint(diag, "parallel.vpp=1, or parallel.schedule=%s with these chunks",
                  rows[SCHEDULE_INTERLEAVED].name);
    return ST_CONFIG;
}

static enum status check_count(const char *what, int64_t got, int64_t most,
                               struct diag *diag)
{
    if (got >= 1 && got <= most)
        return ST_OK;
    return diag_set(
            diag, ST_CONFIG,
            "impossible number of %s (pipeline schedule): got %lld, wanted 1 to "
            "%lld",
            what, (long long)got, (long long)most);
}

enum status schedule_build(enum schedule_kind kind, int64_t n_stages, int64_t n_chunks,
                           int64_t n_micro_batches, int64_t stage, struct schedule *out,
                           struct diag *diag)
{
    *out = (struct schedule){.kind = kind};
    TRY(check_count("pipeline stages", n_stages, SCHEDULE_STAGES_MAX, diag));
    TRY(check_count("chunks per stage", n_chunks, SCHEDULE_CHUNKS_MAX, diag));
    TRY(check_count("micro-batches", n_micro_batches, SCHEDULE_MICRO_BATCHES_MAX,
                    diag));
    TRY(check_count("calls of a direction", n_chunks * n_micro_batches,
                    SCHEDULE_CALLS_MAX, diag));
    TRY(check_chunks(kind, n_chunks, diag));
    ASSERT(stage >= 0 && stage < n_stages);
    out->n_stages = (uint32_t)n_stages;
    out->n_chunks = (uint32_t)n_chunks;
    out->n_micro_batches = (uint32_t)n_micro_batches;
    out->stage = (uint32_t)stage;
    row_of(kind)->list(out);
    hand_out_slots(out);
    return ST_OK;
}

void schedule_free(struct schedule *s)
{
    vec_free(&s->items);
    vec_free(&s->n_slots);
}
