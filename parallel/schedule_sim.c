#include "parallel/schedule_sim.h"

#include <math.h>
#include <stdio.h>

#include "core/str.h"

struct message {
    uint32_t virtual_stage; /* that takes it */
    uint32_t micro_batch;
    double arrival_s;
};

/* The messages of one direction from one stage to its neighbour. */
struct channel {
    VEC(struct message) sent;
    uint32_t n_taken;
};

enum direction {
    AHEAD, /* activations, to the next virtual stage */
    BACK,  /* gradients, to the one before */
    DIRECTIONS
};

struct sim {
    const struct schedule *stages;
    const struct schedule_cost *cost;
    uint32_t n_stages, n_virtual, m;
    uint32_t *next; /* [n_stages] item that runs next */
    uint32_t *in_flight;
    struct channel *channel; /* [n_stages * DIRECTIONS] by sender */
    double *done_s;          /* [PART_COUNT][n_virtual][m], negative: not done */
    struct schedule_stage_use *use;
};

static uint32_t virtual_of(const struct sim *s, uint32_t stage,
                           const struct schedule_item *item)
{
    return schedule_virtual(s->n_stages, stage, item->chunk);
}

static double *done_at(const struct sim *s, enum schedule_part part, uint32_t u,
                       uint32_t micro_batch)
{
    return &s->done_s[((size_t)part * s->n_virtual + u) * s->m + micro_batch];
}

static const char *words(const struct schedule_item *item, char *buf, size_t n)
{
    snprintf(buf, n, "the %s of micro-batch %u, chunk %u",
             schedule_part_name(item->part), item->micro_batch, item->chunk);
    return buf;
}

/* Where an item's input comes from: the virtual stage, or none at the pipeline's ends. */
static bool input_of(const struct sim *s, uint32_t u, enum schedule_part part,
                     uint32_t *from, enum direction *dir)
{
    *dir = part == PART_FORWARD ? AHEAD : BACK;
    *from = part == PART_FORWARD ? u - 1 : u + 1;
    if (part == PART_BACKWARD_WEIGHT)
        return false;
    return part == PART_FORWARD ? u > 0 : u + 1 < s->n_virtual;
}

/* The time at which the result of virtual stage `from` is here; *ready false: not yet. */
static enum status take_input(struct sim *s, uint32_t stage, uint32_t from,
                              enum direction dir, const struct schedule_item *item,
                              double *at_s, bool *ready, struct diag *diag)
{
    uint32_t sender = schedule_virtual_stage(s->n_stages, from);
    if (sender == stage) {
        bool split = schedule_splits_backward(s->stages->kind);
        enum schedule_part part = dir == AHEAD ? PART_FORWARD
                                  : split      ? PART_BACKWARD_INPUT
                                               : PART_BACKWARD;
        *at_s = *done_at(s, part, from, item->micro_batch);
        *ready = *at_s >= 0;
        return ST_OK;
    }
    struct channel *c = &s->channel[sender * DIRECTIONS + dir];
    *ready = c->n_taken < c->sent.n;
    if (!*ready)
        return ST_OK;
    const struct message *msg = &c->sent.data[c->n_taken];
    char buf[96];
    if (msg->virtual_stage != virtual_of(s, stage, item) ||
        msg->micro_batch != item->micro_batch)
        return diag_set(
                diag, ST_INTERNAL,
                "messages out of order (pipeline): stage %u takes the input of %s "
                "from stage %u, which sent that of micro-batch %u, chunk %u first",
                stage, words(item, buf, sizeof(buf)), sender, msg->micro_batch,
                schedule_virtual_chunk(s->n_stages, msg->virtual_stage));
    c->n_taken++;
    *at_s = msg->arrival_s;
    return ST_OK;
}

static void send_result(struct sim *s, uint32_t stage, uint32_t u,
                        const struct schedule_item *item, double end_s)
{
    bool ahead = item->part == PART_FORWARD;
    if (item->part == PART_BACKWARD_WEIGHT || (ahead ? u + 1 == s->n_virtual : u == 0))
        return;
    uint32_t to = ahead ? u + 1 : u - 1;
    if (schedule_virtual_stage(s->n_stages, to) == stage)
        return;
    struct channel *c = &s->channel[stage * DIRECTIONS + (ahead ? AHEAD : BACK)];
    double start_s = end_s;
    if (c->sent.n)
        start_s = fmax(start_s, c->sent.data[c->sent.n - 1].arrival_s);
    vec_push(&c->sent,
             ((struct message){to, item->micro_batch, start_s + s->cost->message_s}));
}

static double item_cost(const struct sim *s, uint32_t u, enum schedule_part part)
{
    switch (part) {
    case PART_FORWARD: return s->cost->forward_s[u];
    case PART_BACKWARD:
        return s->cost->backward_input_s[u] + s->cost->backward_weight_s[u];
    case PART_BACKWARD_INPUT: return s->cost->backward_input_s[u];
    case PART_BACKWARD_WEIGHT: return s->cost->backward_weight_s[u];
    case PART_COUNT: break;
    }
    BUG("no such part: %d", (int)part);
}

/* What a call needs of its own stage must come before it in the list. */
static enum status check_item(const struct sim *s, uint32_t stage, uint32_t u,
                              const struct schedule_item *item, struct diag *diag)
{
    static const enum schedule_part needs[PART_COUNT] = {
            [PART_FORWARD] = PART_COUNT,
            [PART_BACKWARD] = PART_FORWARD,
            [PART_BACKWARD_INPUT] = PART_FORWARD,
            [PART_BACKWARD_WEIGHT] = PART_BACKWARD_INPUT,
    };
    char buf[96];
    enum schedule_part need = needs[item->part];
    if (*done_at(s, item->part, u, item->micro_batch) >= 0)
        return diag_set(diag, ST_INTERNAL, "a call twice (pipeline): %s on stage %u",
                        words(item, buf, sizeof(buf)), stage);
    if (need != PART_COUNT && *done_at(s, need, u, item->micro_batch) < 0)
        return diag_set(
                diag, ST_INTERNAL,
                "a call too early (pipeline): %s on stage %u, wanted after the %s",
                words(item, buf, sizeof(buf)), stage, schedule_part_name(need));
    return ST_OK;
}

/* Runs the stage's next call if its input is there. out: *ran. */
static enum status run_item(struct sim *s, uint32_t stage, bool *ran, struct diag *diag)
{
    const struct schedule *list = &s->stages[stage];
    *ran = false;
    if (s->next[stage] == list->items.n)
        return ST_OK;
    const struct schedule_item *item = &list->items.data[s->next[stage]];
    uint32_t u = virtual_of(s, stage, item), from;
    struct schedule_stage_use *use = &s->use[stage];
    enum direction dir;
    double at_s = 0;
    bool ready = true;
    TRY(check_item(s, stage, u, item, diag));
    if (input_of(s, u, item->part, &from, &dir))
        TRY(take_input(s, stage, from, dir, item, &at_s, &ready, diag));
    if (!ready)
        return ST_OK;
    double cost_s = item_cost(s, u, item->part);
    use->end_s = fmax(use->end_s, at_s) + cost_s;
    use->busy_s += cost_s;
    *done_at(s, item->part, u, item->micro_batch) = use->end_s;
    if (item->part == PART_FORWARD)
        s->in_flight[stage]++;
    use->peak_in_flight = MAX(use->peak_in_flight, s->in_flight[stage]);
    if (item->part == PART_BACKWARD || item->part == PART_BACKWARD_WEIGHT)
        s->in_flight[stage]--;
    send_result(s, stage, u, item, use->end_s);
    s->next[stage]++;
    *ran = true;
    return ST_OK;
}

/* At the end, with nothing left to run: why a stage is not through. */
static enum status check_end(const struct sim *s, struct diag *diag)
{
    struct str stuck = {0};
    char buf[96];
    enum status st = ST_OK;
    int n = 0;
    for (uint32_t i = 0; i < s->n_stages; i++) {
        const struct schedule *list = &s->stages[i];
        if (s->next[i] == list->items.n)
            continue;
        if (n++ < 4)
            str_printf(&stuck, "%sstage %u waits for the input of %s",
                       n > 1 ? "; " : "", i,
                       words(&list->items.data[s->next[i]], buf, sizeof(buf)));
    }
    if (n)
        st = diag_set(diag, ST_INTERNAL, "the schedule cannot go on (pipeline): %s%s",
                      str_get(&stuck), n > 4 ? "; ..." : "");
    str_free(&stuck);
    for (uint32_t i = 0; st == ST_OK && i < s->n_stages * DIRECTIONS; i++) {
        const struct channel *c = &s->channel[i];
        if (c->n_taken < c->sent.n)
            st = diag_set(
                    diag, ST_INTERNAL,
                    "a message that nobody takes (pipeline): stage %u sent it for "
                    "micro-batch %u",
                    i / DIRECTIONS, c->sent.data[c->n_taken].micro_batch);
    }
    for (uint32_t i = 0; st == ST_OK && i < s->n_stages; i++) {
        uint32_t parts = schedule_splits_backward(s->stages[i].kind) ? 3 : 2;
        uint32_t want = parts * s->m * s->stages[i].n_chunks;
        if (s->stages[i].items.n != want)
            st = diag_set(diag, ST_INTERNAL,
                          "calls are missing (pipeline): stage %u has %u, wanted %u", i,
                          s->stages[i].items.n, want);
    }
    return st;
}

static enum status run_all(struct sim *s, struct diag *diag)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < s->n_stages; i++) {
            bool ran = true;
            while (ran) {
                TRY(run_item(s, i, &ran, diag));
                moved = moved || ran;
            }
        }
    }
    return check_end(s, diag);
}

enum status schedule_simulate(const struct schedule *stages,
                              const struct schedule_cost *cost,
                              struct schedule_result *out, struct diag *diag)
{
    uint32_t p = stages->n_stages;
    struct sim s = {
            .stages = stages,
            .cost = cost,
            .n_stages = p,
            .n_virtual = p * stages->n_chunks,
            .m = stages->n_micro_batches,
    };
    size_t cells = (size_t)PART_COUNT * s.n_virtual * s.m;
    *out = (struct schedule_result){0};
    for (uint32_t i = 0; i < p; i++)
        vec_push(&out->stages, (struct schedule_stage_use){0});
    s.use = out->stages.data;
    s.next = mem_alloc(p * sizeof(*s.next));
    s.in_flight = mem_alloc(p * sizeof(*s.in_flight));
    s.channel = mem_alloc((size_t)p * DIRECTIONS * sizeof(*s.channel));
    s.done_s = mem_alloc(cells * sizeof(*s.done_s));
    for (size_t i = 0; i < cells; i++)
        s.done_s[i] = -1;
    enum status st = run_all(&s, diag);
    double busy_s = 0;
    for (uint32_t i = 0; i < p; i++) {
        out->makespan_s = fmax(out->makespan_s, s.use[i].end_s);
        busy_s += s.use[i].busy_s;
    }
    if (out->makespan_s > 0)
        out->bubble_fraction = 1 - busy_s / ((double)p * out->makespan_s);
    for (uint32_t i = 0; i < p * DIRECTIONS; i++)
        vec_free(&s.channel[i].sent);
    mem_free(s.next);
    mem_free(s.in_flight);
    mem_free(s.channel);
    mem_free(s.done_s);
    return st;
}

void schedule_result_free(struct schedule_result *r)
{
    vec_free(&r->stages);
}
