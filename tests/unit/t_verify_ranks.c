/* Ranks that fit together are accepted; a dropped, swapped, changed or unmatched op, and
 * circles of waits, are refused with both sides in words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/mesh.h"
#include "parallel/schedule.h"
#include "parallel/verify_ranks.h"

enum {
    TEST_COMPUTE,
    TEST_DATA,
    STREAM_FORWARD_SEND,
    STREAM_FORWARD_RECV,
    STREAM_BACKWARD_SEND,
    STREAM_BACKWARD_RECV,
};

/* A job of up to 16 ranks. */
struct job {
    int n_ranks, n_groups;
    struct rank_events ranks[16];
    struct event_group groups[64];
    struct arena arena;
};

static void job_free(struct job *j)
{
    for (int i = 0; i < j->n_ranks; i++)
        rank_events_free(&j->ranks[i]);
    arena_release(&j->arena);
}

static struct comm_event event(enum comm_event_kind kind, uint32_t group, int stream,
                               int peer, int64_t count)
{
    return (struct comm_event){.kind = (uint8_t)kind,
                               .dtype = DT_F32,
                               .stream = (uint8_t)stream,
                               .group = group,
                               .peer = peer,
                               .count = count};
}

/* Adds an event and counts ops, so that places differ. */
static void add(struct job *j, int rank, struct comm_event e)
{
    e.call = 7;
    e.op = j->ranks[rank].events.n;
    rank_events_add(&j->ranks[rank], &e);
}

static void assert_fits(const struct job *j)
{
    struct diag d = {0};
    if (verify_ranks(j->ranks, j->n_ranks, j->groups, j->n_groups, &d) != ST_OK)
        fail_msg("%s", d.text);
}

static void assert_refused(const struct job *j, const char *text, const char *hint)
{
    struct diag d = {0};
    assert_int_equal(verify_ranks(j->ranks, j->n_ranks, j->groups, j->n_groups, &d),
                     ST_INTERNAL);
    if (!strstr(d.text, text) || strcmp(d.hint, hint) != 0)
        fail_msg("got '%s' / '%s', wanted '%s' / '%s'", d.text, d.hint, text, hint);
    printf("  %s\n", d.text);
}

static const int members01[] = {0, 1};
static const int members0123[] = {0, 1, 2, 3};

/* Four ranks in one group: four collectives each, all different. */
static void job_collectives(struct job *j)
{
    *j = (struct job){.n_ranks = 4, .n_groups = 1};
    j->groups[0] = (struct event_group){"data group 0", members0123, 4};
    for (int r = 0; r < 4; r++) {
        add(j, r, event(COMM_ALL_REDUCE, 0, 1, -1, 64));
        add(j, r, event(COMM_ALL_GATHER, 0, 1, -1, 32));
        add(j, r, event(COMM_BROADCAST, 0, 1, 2, 16));
        add(j, r, event(COMM_BARRIER, 0, 1, -1, 0));
    }
}

static void drop(struct rank_events *r, uint32_t index)
{
    r->events.n--;
    for (uint32_t i = index; i < r->events.n; i++)
        r->events.data[i] = r->events.data[i + 1];
}

static void test_collectives(void **state)
{
    (void)state;
    struct job j;
    job_collectives(&j);
    assert_fits(&j);
    for (int r = 1; r < 4; r++)
        assert_int_equal(rank_events_hash(&j.ranks[r], 0),
                         rank_events_hash(&j.ranks[0], 0));
    job_free(&j);
}

/* Hashes see what the comparison sees. */
static void assert_hash_differs(const struct job *j, int rank)
{
    assert_int_not_equal(rank_events_hash(&j->ranks[rank], 0),
                         rank_events_hash(&j->ranks[rank == 3 ? 0 : 3], 0));
}

static void test_dropped(void **state)
{
    (void)state;
    struct job j;
    job_collectives(&j);
    drop(&j.ranks[2], 1);
    assert_hash_differs(&j, 2);
    assert_refused(&j,
                   "members disagree (data group 0, its collective 2): rank 0: "
                   "all-gather of 32 f32 (call 7, op 1); rank 2: broadcast of 16 f32 "
                   "from rank 2 (call 7, op 2)",
                   "rank 2 lacks this one, and agrees after it");
    job_free(&j);
    /* The first rank is the odd one: it is named as such. */
    job_collectives(&j);
    drop(&j.ranks[0], 0);
    assert_refused(&j, "its collective 1): rank 1: all-reduce (sum) of 64 f32",
                   "rank 0 lacks this one, and agrees after it");
    job_free(&j);
    job_collectives(&j);
    drop(&j.ranks[3], 3);
    assert_refused(&j, "rank 0: barrier (call 7, op 3); rank 3: nothing more",
                   "rank 3 lacks this one, and agrees after it");
    job_free(&j);
    job_collectives(&j);
    add(&j, 1, event(COMM_BARRIER, 0, 1, -1, 0));
    assert_refused(&j, "rank 0: nothing more; rank 1: barrier (call 7, op 4)",
                   "rank 1 has one too many there, and agrees after it");
    job_free(&j);
    job_collectives(&j);
    j.ranks[1].events.n = 0;
    assert_refused(&j,
                   "its collective 1): rank 0: all-reduce (sum) of 64 f32 (call 7, op "
                   "0); rank 1: nothing more",
                   "");
    job_free(&j);
}

static void test_swapped(void **state)
{
    (void)state;
    struct job j;
    job_collectives(&j);
    struct comm_event *e = j.ranks[3].events.data, first = e[0];
    e[0] = e[1];
    e[1] = first;
    assert_hash_differs(&j, 3);
    assert_refused(&j,
                   "its collective 1): rank 0: all-reduce (sum) of 64 f32 (call 7, op "
                   "0); rank 3: all-gather of 32 f32 (call 7, op 1)",
                   "rank 3 has this one and the next the other way round");
    job_free(&j);
}

static void test_changed(void **state)
{
    (void)state;
    static const struct {
        uint32_t index;
        struct comm_event to;
        const char *text;
    } cases[] = {
            {0,
             {COMM_ALL_REDUCE, DT_F32, COMM_SUM, 1, 0, -1, 7, 0, 65, {0}},
             "of 65 f32"},
            {0,
             {COMM_ALL_REDUCE, DT_BF16, COMM_SUM, 1, 0, -1, 7, 0, 64, {0}},
             "64 bf16"},
            {0, {COMM_ALL_REDUCE, DT_F32, COMM_MAX, 1, 0, -1, 7, 0, 64, {0}}, "(max)"},
            {1,
             {COMM_REDUCE_SCATTER, DT_F32, COMM_SUM, 1, 0, -1, 7, 1, 32, {0}},
             "rank 2: reduce-scatter (sum) of 32 f32"},
            {2,
             {COMM_BROADCAST, DT_F32, COMM_SUM, 1, 0, 1, 7, 2, 16, {0}},
             "from rank 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct job j;
        job_collectives(&j);
        memcpy(&j.ranks[2].events.data[cases[i].index], &cases[i].to,
               offsetof(struct comm_event, after));
        assert_hash_differs(&j, 2);
        assert_refused(&j, cases[i].text, "");
        job_free(&j);
    }
}

/* Two ranks: rank 0 sends 8 and then 4, rank 1 answers 2. */
static void job_messages(struct job *j)
{
    *j = (struct job){.n_ranks = 2, .n_groups = 1};
    j->groups[0] = (struct event_group){"pipeline group 0", members01, 2};
    add(j, 0, event(COMM_SEND, 0, 2, 1, 8));
    add(j, 0, event(COMM_SEND, 0, 2, 1, 4));
    add(j, 0, event(COMM_RECV, 0, 5, 1, 2));
    add(j, 1, event(COMM_RECV, 0, 3, 0, 8));
    add(j, 1, event(COMM_SEND, 0, 4, 0, 2));
    add(j, 1, event(COMM_RECV, 0, 3, 0, 4));
}

static void test_messages(void **state)
{
    (void)state;
    struct job j;
    job_messages(&j);
    assert_fits(&j);
    assert_int_equal(rank_events_hash_messages(&j.ranks[0], 0, COMM_SEND, 1),
                     rank_events_hash_messages(&j.ranks[1], 0, COMM_RECV, 0));
    assert_int_equal(rank_events_hash_messages(&j.ranks[0], 0, COMM_RECV, 1),
                     rank_events_hash_messages(&j.ranks[1], 0, COMM_SEND, 0));
    assert_int_not_equal(rank_events_hash_messages(&j.ranks[0], 0, COMM_SEND, 1),
                         rank_events_hash_messages(&j.ranks[0], 0, COMM_RECV, 1));

    j.ranks[1].events.data[2].count = 5;
    assert_int_not_equal(rank_events_hash_messages(&j.ranks[0], 0, COMM_SEND, 1),
                         rank_events_hash_messages(&j.ranks[1], 0, COMM_RECV, 0));
    assert_refused(
            &j,
            "send and receive do not meet (pipeline group 0, message 2 from rank 0 "
            "to rank 1): rank 0: send of 4 f32 to rank 1 (call 7, op 1); rank 1: "
            "receive of 5 f32 from rank 0 (call 7, op 2)",
            "");
    job_free(&j);

    job_messages(&j);
    drop(&j.ranks[1], 2);
    assert_refused(&j,
                   "rank 0: send of 4 f32 to rank 1 (call 7, op 1); rank 1: no "
                   "receive from rank 0",
                   "");
    job_free(&j);

    job_messages(&j);
    drop(&j.ranks[1], 1);
    assert_refused(&j,
                   "message 1 from rank 1 to rank 0): rank 1: no send to rank 0; "
                   "rank 0: receive of 2 f32 from rank 1",
                   "");
    job_free(&j);

    job_messages(&j);
    j.ranks[0].events.data[0].count = 4;
    j.ranks[0].events.data[1].count = 8;
    assert_refused(&j, "message 1 from rank 0 to rank 1): rank 0: send of 4 f32", "");
    job_free(&j);

    job_messages(&j);
    j.ranks[1].events.data[0].dtype = DT_BF16;
    assert_refused(&j, "receive of 8 bf16 from rank 0", "");
    job_free(&j);
}

/* Each rank sends before it receives, on one stream: nothing is buffered, so both wait. */
static void test_circle_of_two(void **state)
{
    (void)state;
    struct job j = {.n_ranks = 2, .n_groups = 1};
    j.groups[0] = (struct event_group){"pipeline group 0", members01, 2};
    for (int r = 0; r < 2; r++) {
        add(&j, r, event(COMM_SEND, 0, 0, 1 - r, 8));
        add(&j, r, event(COMM_RECV, 0, 0, 1 - r, 8));
    }
    assert_refused(
            &j,
            "ranks wait for each other (a circle of 2): rank 0: send of 8 f32 to "
            "rank 1 (call 7, op 0) of pipeline group 0 on stream 0 waits for rank "
            "1; rank 1: send of 8 f32 to rank 0 (call 7, op 0) of pipeline group 0 "
            "on stream 0 waits for rank 0",
            "");
    job_free(&j);
    /* The same on two streams each goes through. */
    for (int r = 0; r < 2; r++) {
        add(&j, r, event(COMM_SEND, 0, 0, 1 - r, 8));
        add(&j, r, event(COMM_RECV, 0, 1, 1 - r, 8));
    }
    assert_fits(&j);
    job_free(&j);
}

/* A ring of sixteen that sends before it receives: the message stays one line. */
static void test_long_circle(void **state)
{
    (void)state;
    static const int members[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct job j = {.n_ranks = 16, .n_groups = 1};
    j.groups[0] = (struct event_group){"context group 0", members, 16};
    for (int r = 0; r < 16; r++) {
        add(&j, r, event(COMM_SEND, 0, 0, (r + 1) % 16, 8));
        add(&j, r, event(COMM_RECV, 0, 0, (r + 15) % 16, 8));
    }
    assert_refused(&j, "(a circle of 16): rank 0: send of 8 f32 to rank 1", "");
    job_free(&j);
}

/* Two groups of the same ranks, in another order on each rank. */
static void test_circle_of_groups(void **state)
{
    (void)state;
    struct job j = {.n_ranks = 2, .n_groups = 2};
    j.groups[0] = (struct event_group){"tensor group 0", members01, 2};
    j.groups[1] = (struct event_group){"data group 0", members01, 2};
    for (int r = 0; r < 2; r++)
        for (uint32_t g = 0; g < 2; g++)
            add(&j, r, event(COMM_ALL_REDUCE, r ? 1 - g : g, 0, -1, 8));
    assert_refused(&j, "a circle of 2", "");
    job_free(&j);
}

/* Rank 0 waits on its data stream for what its compute stream does after it, by an event
 * of the program; the circle passes through both streams and rank 1. */
static void test_circle_of_streams(void **state)
{
    (void)state;
    struct job j = {.n_ranks = 2, .n_groups = 2};
    j.groups[0] = (struct event_group){"tensor group 0", members01, 2};
    j.groups[1] = (struct event_group){"data group 0", members01, 2};
    add(&j, 0, event(COMM_ALL_REDUCE, 0, 0, -1, 8));
    rank_events_signal(&j.ranks[0], 0, 3);
    rank_events_wait(&j.ranks[0], 1, 3);
    add(&j, 0, event(COMM_ALL_REDUCE, 1, 1, -1, 9));
    add(&j, 1, event(COMM_ALL_REDUCE, 1, 1, -1, 9));
    add(&j, 1, event(COMM_ALL_REDUCE, 0, 0, -1, 8));
    assert_fits(&j);
    drop(&j.ranks[1], 1);
    drop(&j.ranks[1], 0);
    j.ranks[1].stream[0] = j.ranks[1].stream[1] = (struct rank_clock){{0}};
    add(&j, 1, event(COMM_ALL_REDUCE, 1, 1, -1, 9));
    rank_events_signal(&j.ranks[1], 1, 3);
    rank_events_wait(&j.ranks[1], 0, 2); /* never signalled: waits for nothing */
    rank_events_wait(&j.ranks[1], 0, 3);
    add(&j, 1, event(COMM_ALL_REDUCE, 0, 0, -1, 8));
    assert_refused(&j, "ranks wait for each other (a circle of 4): ", "");
    job_free(&j);
}

/* Waits pass on what the other stream knows of a third one. */
static void test_waits_are_transitive(void **state)
{
    (void)state;
    struct rank_events r = {0};
    struct comm_event e = event(COMM_BARRIER, 0, 0, -1, 0);
    rank_events_add(&r, &e);
    rank_events_add(&r, &e);
    rank_events_signal(&r, 0, 0);
    rank_events_wait(&r, 1, 0);
    rank_events_signal(&r, 1, 5);
    rank_events_wait(&r, 2, 5);
    e.stream = 2;
    rank_events_add(&r, &e);
    assert_int_equal(r.events.data[0].after[0], 0);
    assert_int_equal(r.events.data[1].after[0], 1);
    assert_int_equal(r.events.data[2].after[0], 2);
    assert_int_equal(r.events.data[2].after[1], 0);
    assert_int_equal(r.events.data[2].after[2], 0);
    rank_events_free(&r);
}

static void test_malformed(void **state)
{
    (void)state;
    struct job j;
    job_collectives(&j);
    j.ranks[1].events.data[2].stream = 2;
    assert_refused(&j,
                   "a group is used from two streams (data group 0): stream 1, rank 1: "
                   "all-gather",
                   "");
    job_free(&j);
    static const struct {
        size_t at;
        uint8_t byte;
        const char *text;
    } bytes[] = {
            {offsetof(struct comm_event, kind), COMM_EVENT_KINDS,
             "kind 8, wanted 0 to 7"},
            {offsetof(struct comm_event, dtype), DT_COUNT, "dtype"},
            {offsetof(struct comm_event, reduction), 2, "reduction 2"},
            {offsetof(struct comm_event, stream), RANK_STREAMS_MAX, "stream 8"},
            {offsetof(struct comm_event, group), 1, "group 1, wanted 0 to 0"},
            {offsetof(struct comm_event, peer), 1, "got member"},
            {offsetof(struct comm_event, after), 5, "wait for 5, wanted 0 to 0"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++) {
        job_collectives(&j);
        memcpy((unsigned char *)j.ranks[1].events.data + bytes[i].at, &bytes[i].byte,
               1);
        assert_refused(&j, bytes[i].text, "");
        job_free(&j);
    }
    job_messages(&j);
    j.ranks[0].events.data[0].peer = 2;
    assert_refused(&j, "got member 2, wanted 0 to 1", "");
    j.ranks[0].events.data[0].peer = 0;
    assert_refused(&j, "a message to oneself (pipeline group 0)", "");
    j.ranks[0].events.data[0].peer = 1;
    j.n_ranks = 3;
    add(&j, 2, event(COMM_SEND, 0, 2, 1, 8));
    assert_refused(
            &j, "a rank in a group that is not its own (pipeline group 0): rank 2", "");
    job_free(&j);
}

/* ------------------------------------------------- programs of whole layouts, in short */

/* Events of the program, by what they guard and the slot of the chunk. */
static uint32_t signal_id(uint32_t what, const struct schedule_item *item)
{
    return (what * 8 + item->chunk) * 64 + item->slot;
}

enum {
    SIGNAL_GOT, /* a message is in its buffer: what + direction */
    SIGNAL_USED = 2,
    SIGNAL_SENT = 4,
    SIGNAL_MADE = 6,
    SIGNAL_END = 8 * 8 * 64, /* beyond the ids above */
};

/* One call: take the input, a tensor-parallel sum as the work, give the result away. A
 * buffer is written again only when its last use is over. */
static void walk_call(struct job *j, int rank, const struct schedule *s,
                      const struct schedule_item *item, uint32_t tensor, uint32_t pipe)
{
    struct rank_events *r = &j->ranks[rank];
    uint32_t p = s->n_stages, n_virtual = p * s->n_chunks;
    uint32_t u = schedule_virtual(p, s->stage, item->chunk);
    bool forward = item->part == PART_FORWARD;
    bool weight = item->part == PART_BACKWARD_WEIGHT;
    bool takes = !weight && p > 1 && (forward ? u > 0 : u + 1 < n_virtual);
    bool gives = !weight && p > 1 && (forward ? u + 1 < n_virtual : u > 0);
    uint32_t back = !forward, before = (u + n_virtual - 1) % p, after = (u + 1) % p;
    int recv = forward ? STREAM_FORWARD_RECV : STREAM_BACKWARD_RECV;
    int send = forward ? STREAM_FORWARD_SEND : STREAM_BACKWARD_SEND;
    if (takes) {
        rank_events_wait(r, (uint32_t)recv, signal_id(SIGNAL_USED + back, item));
        add(j, rank,
            event(COMM_RECV, pipe + back, recv, (int)(forward ? before : after),
                  100 + item->micro_batch));
        rank_events_signal(r, (uint32_t)recv, signal_id(SIGNAL_GOT + back, item));
        rank_events_wait(r, TEST_COMPUTE, signal_id(SIGNAL_GOT + back, item));
    }
    if (gives)
        rank_events_wait(r, TEST_COMPUTE, signal_id(SIGNAL_SENT + back, item));
    add(j, rank, event(COMM_ALL_REDUCE, tensor, TEST_COMPUTE, -1, 16 + item->part));
    rank_events_signal(r, TEST_COMPUTE, signal_id(SIGNAL_USED + back, item));
    if (gives) {
        rank_events_signal(r, TEST_COMPUTE, signal_id(SIGNAL_MADE + back, item));
        rank_events_wait(r, (uint32_t)send, signal_id(SIGNAL_MADE + back, item));
        add(j, rank,
            event(COMM_SEND, pipe + back, send, (int)(forward ? after : before),
                  100 + item->micro_batch));
        rank_events_signal(r, (uint32_t)send, signal_id(SIGNAL_SENT + back, item));
    }
}

static uint32_t add_group(struct job *j, const struct mesh_group *g)
{
    j->groups[j->n_groups] =
            (struct event_group){arena_strdup(&j->arena, g->name), g->members, g->n};
    return (uint32_t)j->n_groups++;
}

/* The number of rank's group among the job's, made where it is new. Pipelines have two:
 * forward and backward. */
static uint32_t group_of(struct job *j, const struct mesh *m, unsigned dims, int rank)
{
    struct mesh_group g;
    mesh_group(m, dims, rank, &j->arena, &g);
    for (int i = 0; i < j->n_groups; i++)
        if (strcmp(j->groups[i].name, g.name) == 0)
            return (uint32_t)i;
    uint32_t id = add_group(j, &g);
    if (dims == MESH_PIPELINE)
        add_group(j, &g);
    return id;
}

static void job_layout(struct job *j, enum schedule_kind kind, int t, int n, int p,
                       int v, int micro_batches)
{
    struct mesh m;
    struct diag d = {0};
    int64_t degree[MESH_DIMS] = {t, 1, n, p, 1, 1};
    *j = (struct job){.n_ranks = t * n * p};
    assert_int_equal(mesh_create(&m, degree, j->n_ranks, NULL, &d), ST_OK);
    for (int rank = 0; rank < j->n_ranks; rank++) {
        int coord[MESH_PLACES];
        struct schedule s;
        uint32_t tensor = group_of(j, &m, MESH_TENSOR, rank);
        uint32_t pipe = group_of(j, &m, MESH_PIPELINE, rank);
        uint32_t data = group_of(j, &m, MESH_DATA, rank);
        mesh_place(&m, rank, coord);
        if (schedule_build(kind, p, v, micro_batches, coord[MESH_PP], &s, &d) != ST_OK)
            fail_msg("%s", d.text);
        for (uint32_t i = 0; i < s.items.n; i++)
            walk_call(j, rank, &s, &s.items.data[i], tensor, pipe);
        rank_events_signal(&j->ranks[rank], TEST_COMPUTE, SIGNAL_END);
        rank_events_wait(&j->ranks[rank], TEST_DATA, SIGNAL_END);
        add(j, rank, event(COMM_REDUCE_SCATTER, data, TEST_DATA, -1, 4096));
        add(j, rank, event(COMM_ALL_GATHER, data, TEST_DATA, -1, 4096));
        schedule_free(&s);
    }
}

/* Every schedule goes through with blocking sends, on the streams that programs have. */
static void test_layouts(void **state)
{
    (void)state;
    int n_jobs = 0;
    uint32_t n_events = 0;
    for (enum schedule_kind kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (int p = 1; p <= 4; p++)
            for (int m = 1; m <= 11; m++)
                for (int v = 2; v <= 3; v++) {
                    struct job j;
                    bool one = kind != SCHEDULE_INTERLEAVED;
                    job_layout(&j, kind, 2, p < 3 ? 2 : 1, p, one ? 1 : v, m);
                    assert_fits(&j);
                    for (int r = 0; r < j.n_ranks; r++)
                        n_events += j.ranks[r].events.n;
                    n_jobs++;
                    job_free(&j);
                }
    printf("  %d jobs, %u events\n", n_jobs, n_events);
}

/* Any one event dropped from any rank of a layout is seen. */
static void test_any_drop_is_seen(void **state)
{
    (void)state;
    struct job j;
    int n = 0;
    job_layout(&j, SCHEDULE_ZB_H1, 2, 2, 2, 1, 3);
    for (int r = 0; r < j.n_ranks; r++)
        for (uint32_t i = 0; i < j.ranks[r].events.n; i++, n++) {
            struct job k;
            struct diag d = {0};
            job_layout(&k, SCHEDULE_ZB_H1, 2, 2, 2, 1, 3);
            drop(&k.ranks[r], i);
            assert_int_equal(verify_ranks(k.ranks, k.n_ranks, k.groups, k.n_groups, &d),
                             ST_INTERNAL);
            job_free(&k);
        }
    printf("  %d drops\n", n);
    job_free(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_collectives),
            cmocka_unit_test(test_dropped),
            cmocka_unit_test(test_swapped),
            cmocka_unit_test(test_changed),
            cmocka_unit_test(test_messages),
            cmocka_unit_test(test_circle_of_two),
            cmocka_unit_test(test_long_circle),
            cmocka_unit_test(test_circle_of_groups),
            cmocka_unit_test(test_circle_of_streams),
            cmocka_unit_test(test_waits_are_transitive),
            cmocka_unit_test(test_malformed),
            cmocka_unit_test(test_layouts),
            cmocka_unit_test(test_any_drop_is_seen),
    };
    return cmocka_run_group_tests_name("verify_ranks", tests, NULL, NULL);
}
