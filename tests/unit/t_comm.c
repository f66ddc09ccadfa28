/* Communicators of ranks that are threads, and the world of one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "parallel/comm_self.h"
#include "tests/lib/comm_suite.h"

#define LARGEST 270011
#define BIG     (1 << 20)

static double now_s(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct comm *open_all(struct comm_world *w, const char *name)
{
    int all[64];
    struct diag diag = {0};
    struct comm *c;
    for (int i = 0; i < w->size; i++)
        all[i] = i;
    SUITE_CHECK(w->ops->group(w, all, w->size, name, &c, &diag) == ST_OK, &diag);
    return c;
}

/* The diagnostic must hold every one of the words. */
#define HAS(diag, ...) has((diag), __LINE__, (const char *const[]){__VA_ARGS__, NULL})
static void has(const struct diag *diag, int line, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(diag->text, *words)) {
            fprintf(stderr, "wanted '%s': ", *words);
            suite_check(false, "the words", __FILE__, line, diag);
        }
}

/* ---- results ---- */

static void run_suite(struct comm_world *w, int rank, void *arg)
{
    uint64_t *hash = arg;
    int64_t largest = w->size == 2 ? LARGEST : 5003;
    hash[rank] = comm_suite(w, SUITE_SHARED, largest);
}

static void all_calls_equal_plain_loops(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        uint64_t hash[8] = {0};
        comm_on_threads(n, run_suite, hash);
        for (int i = 0; i < n; i++)
            assert_true(hash[i] != 0);
    }
}

static void one_rank_equals_one_thread(void **state)
{
    (void)state;
    struct comm_world *w = comm_self_create();
    uint64_t self = comm_suite(w, SUITE_SHARED, 5003), thread = 0;
    w->ops->close(w);
    comm_on_threads(1, run_suite, &thread);
    assert_true(self == thread);
}

static void specials(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float x[4] = {-0.0f, 1e38f, 1.0f, rank == 0 ? NAN : 5.0f};
    SUITE_CHECK(c->ops->all_reduce(c, x, 4, DT_F32, COMM_MAX, &diag) == ST_OK, &diag);
    SUITE_CHECK(signbit(x[0]) && x[1] == 1e38f && x[2] == 1.0f && isnan(x[3]), NULL);
    float y[3] = {-0.0f, 3e38f, rank == 1 ? NAN : 1.0f};
    SUITE_CHECK(c->ops->all_reduce(c, y, 3, DT_F32, COMM_SUM, &diag) == ST_OK, &diag);
    SUITE_CHECK(signbit(y[0]) && isinf(y[1]) && isnan(y[2]), NULL);
    /* bf16: summed in f32, rounded once; a NaN stays one. */
    uint16_t h[2] = {bf16_from_f32(rank == 0 ? 256.0f : 0.5f),
                     rank == 2 ? 0x7f81 : bf16_from_f32(1.0f)};
    SUITE_CHECK(c->ops->all_reduce(c, h, 2, DT_BF16, COMM_SUM, &diag) == ST_OK, &diag);
    float want = 256.0f + 0.5f * (float)(w->size - 1);
    SUITE_CHECK(h[0] == bf16_from_f32(want), NULL);
    SUITE_CHECK(w->size < 3 || isnan(f32_from_bf16(h[1])), NULL);
    int32_t k = INT32_MAX;
    SUITE_CHECK(c->ops->all_reduce(c, &k, 1, DT_I32, COMM_SUM, &diag) == ST_OK, &diag);
    SUITE_CHECK(k == (int32_t)((uint32_t)INT32_MAX * (uint32_t)w->size), NULL);
    c->ops->close(c);
}

static void special_values(void **state)
{
    (void)state;
    comm_on_threads(2, specials, NULL);
    comm_on_threads(5, specials, NULL);
}

static void count_allocations(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float *buf = mem_alloc(BIG * sizeof(float));
    uint64_t before = mem_allocations();
    for (int64_t n = 1; n <= BIG; n *= 16) {
        SUITE_CHECK(c->ops->all_reduce(c, buf, n, DT_F32, COMM_SUM, &diag) == ST_OK,
                    &diag);
        if (rank == 0)
            SUITE_CHECK(c->ops->send(c, buf, n, DT_F32, 1, &diag) == ST_OK, &diag);
        else if (rank == 1)
            SUITE_CHECK(c->ops->recv(c, buf, n, DT_F32, 0, &diag) == ST_OK, &diag);
    }
    SUITE_CHECK(mem_allocations() == before, NULL);
    SUITE_CHECK(c->ops->barrier(c, &diag) == ST_OK, &diag);
    mem_free(buf);
    c->ops->close(c);
}

static void calls_allocate_nothing(void **state)
{
    (void)state;
    comm_on_threads(3, count_allocations, NULL);
}

static void reopen(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    for (int i = 0; i < 1500; i++) {
        struct comm *c = open_all(w, "short-lived group");
        int32_t x = rank + i;
        SUITE_CHECK(c->ops->all_reduce(c, &x, 1, DT_I32, COMM_SUM, &diag) == ST_OK,
                    &diag);
        SUITE_CHECK(x == 3 + 3 * i, NULL);
        c->ops->close(c);
    }
}

static void groups_open_and_close(void **state)
{
    (void)state;
    comm_on_threads(3, reopen, NULL);
}

/* ---- several threads of a rank ---- */

struct lane {
    struct comm_world *w;
    struct comm *c;
    int lane;
};

static void *reduce_lane(void *p)
{
    struct lane *l = p;
    struct diag diag = {0};
    int64_t n = 1 + 3000 * l->lane;
    float *buf = mem_alloc((size_t)n * sizeof(float));
    for (int round = 0; round < 200; round++) {
        for (int64_t i = 0; i < n; i++)
            buf[i] = (float)(l->w->rank + l->lane + round);
        SUITE_CHECK(l->c->ops->all_reduce(l->c, buf, n, DT_F32, COMM_SUM, &diag) ==
                            ST_OK,
                    &diag);
        for (int64_t i = 0; i < n; i++)
            SUITE_CHECK(buf[i] == (float)(3 + 3 * (l->lane + round)), NULL);
    }
    mem_free(buf);
    return NULL;
}

static void many_lanes(struct comm_world *w, int rank, void *arg)
{
    (void)rank, (void)arg;
    enum {
        LANES = 4
    };
    struct lane l[LANES];
    pthread_t t[LANES];
    for (int i = 0; i < LANES; i++)
        l[i] = (struct lane){w, open_all(w, "lane"), i};
    for (int i = 0; i < LANES; i++)
        SUITE_CHECK(pthread_create(&t[i], NULL, reduce_lane, &l[i]) == 0, NULL);
    for (int i = 0; i < LANES; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < LANES; i++)
        l[i].c->ops->close(l[i].c);
}

static void groups_are_independent(void **state)
{
    (void)state;
    comm_on_threads(3, many_lanes, NULL);
}

static void *send_lane(void *p)
{
    struct lane *l = p;
    struct diag diag = {0};
    int next = (l->c->rank + 1) % l->c->size;
    int32_t *buf = mem_alloc(BIG * sizeof(int32_t));
    for (int round = 0; round < 60; round++) {
        int64_t n = round % 3 == 0 ? BIG : round * 7;
        for (int64_t i = 0; i < n; i++)
            buf[i] = (int32_t)(l->w->rank * 1000 + round + i);
        SUITE_CHECK(l->c->ops->send(l->c, buf, n, DT_I32, next, &diag) == ST_OK, &diag);
    }
    mem_free(buf);
    return NULL;
}

static void send_and_receive(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct lane l = {w, open_all(w, "ring"), 0};
    pthread_t t;
    SUITE_CHECK(pthread_create(&t, NULL, send_lane, &l) == 0, NULL);
    int last = (rank + w->size - 1) % w->size;
    int32_t *buf = mem_alloc(BIG * sizeof(int32_t));
    for (int round = 0; round < 60; round++) {
        int64_t n = round % 3 == 0 ? BIG : round * 7;
        SUITE_CHECK(l.c->ops->recv(l.c, buf, n, DT_I32, last, &diag) == ST_OK, &diag);
        for (int64_t i = 0; i < n; i++)
            SUITE_CHECK(buf[i] == (int32_t)(last * 1000 + round + i), NULL);
    }
    pthread_join(t, NULL);
    mem_free(buf);
    l.c->ops->close(l.c);
}

static void one_sends_while_another_receives(void **state)
{
    (void)state;
    comm_on_threads(2, send_and_receive, NULL);
    comm_on_threads(3, send_and_receive, NULL);
}

/* ---- mismatches ---- */

/* What rank `odd` calls instead of the others. */
typedef enum status (*one_call_fn)(struct comm *c, float *buf, struct diag *diag);

static enum status reduce_100(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->all_reduce(c, buf, 100, DT_F32, COMM_SUM, diag);
}

static enum status reduce_99(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->all_reduce(c, buf, 99, DT_F32, COMM_SUM, diag);
}

static enum status reduce_big(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->all_reduce(c, buf, BIG / 2, DT_F32, COMM_SUM, diag);
}

static enum status reduce_i32(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->all_reduce(c, buf, 100, DT_I32, COMM_SUM, diag);
}

static enum status reduce_max(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->all_reduce(c, buf, 100, DT_F32, COMM_MAX, diag);
}

static enum status bcast_0(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->broadcast(c, buf, 100, DT_F32, 0, diag);
}

static enum status bcast_1(struct comm *c, float *buf, struct diag *diag)
{
    return c->ops->broadcast(c, buf, 100, DT_F32, 1, diag);
}

static enum status gather_a(struct comm *c, float *buf, struct diag *diag)
{
    int64_t count[3] = {10, 20, 30};
    return c->ops->all_gather(c, buf, buf + 1000, count, DT_F32, diag);
}

static enum status gather_b(struct comm *c, float *buf, struct diag *diag)
{
    int64_t count[3] = {20, 10, 30};
    return c->ops->all_gather(c, buf, buf + 1000, count, DT_F32, diag);
}

static enum status only_barrier(struct comm *c, float *buf, struct diag *diag)
{
    (void)buf;
    return c->ops->barrier(c, diag);
}

static const struct mismatch {
    one_call_fn all, odd;
    const char *words[2];
} mismatches[] = {
        {reduce_100, reduce_99, {"all-reduce (sum) of 100 f32", "of 99 f32"}},
        {reduce_100, reduce_big, {"of 100 f32", "of 524288 f32"}},
        {reduce_big, reduce_100, {"of 100 f32", "of 524288 f32"}},
        {reduce_100, reduce_i32, {"of 100 f32", "of 100 i32"}},
        {reduce_100, reduce_max, {"(sum)", "(max)"}},
        {reduce_100, bcast_0, {"all-reduce", "broadcast of 100 f32 from member 0"}},
        {bcast_0, bcast_1, {"from member 0", "from member 1"}},
        {gather_a, gather_b, {"all-gather of 60 f32 in all", "with other counts"}},
        {only_barrier, gather_b, {"barrier", "all-gather"}},
};

static void mismatch(struct comm_world *w, int rank, void *arg)
{
    const struct mismatch *m = arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "tensor group 7");
    float *buf = mem_alloc(BIG * sizeof(float));
    enum status st = (rank == 1 ? m->odd : m->all)(c, buf, &diag);
    SUITE_CHECK(st == ST_INTERNAL, &diag);
    HAS(&diag, m->words[0], m->words[1], "tensor group 7", "rank 1");
    SUITE_CHECK(c->ops->barrier(c, &diag) == ST_STOPPED, &diag);
    mem_free(buf);
    c->ops->close(c);
}

/* An all-to-all is wrong between two; the third is stopped, or it passes. */
static void wrong_pair(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float src[30] = {0}, dst[30];
    int64_t send[3] = {1, 1, 1}, recv[3] = {1, 1, 1};
    if (rank == 0)
        send[1] = 2;
    enum status st = c->ops->all_to_all(c, src, send, dst, recv, DT_F32, &diag);
    SUITE_CHECK(rank != 1 || st == ST_INTERNAL, &diag);
    SUITE_CHECK(c->ops->barrier(c, &diag) == ST_STOPPED, &diag);
    HAS(&diag, "rank 1 gave up: calls do not match");
    c->ops->close(c);
}

/* A message of another size: the receiver finds it, the sender's wait ends. */
static void wrong_message(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "pipeline");
    float *buf = mem_alloc(BIG * sizeof(float));
    if (rank == 0) {
        SUITE_CHECK(c->ops->send(c, buf, BIG, DT_F32, 1, &diag) == ST_STOPPED, &diag);
    } else {
        SUITE_CHECK(c->ops->recv(c, buf, 77, DT_F32, 0, &diag) == ST_INTERNAL, &diag);
    }
    HAS(&diag, "receive of 77 f32 from rank 0", "send of 1048576 f32 to rank 1");
    mem_free(buf);
    c->ops->close(c);
}

static void wrong_order(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c;
    int all[2] = {0, 1};
    enum status st =
            w->ops->group(w, all, 2, rank ? "data group" : "tensor group", &c, &diag);
    if (rank == 1) {
        SUITE_CHECK(st == ST_INTERNAL, &diag);
        HAS(&diag, "data group", "tensor group", "different orders");
        return;
    }
    SUITE_CHECK(st == ST_OK, &diag);
    SUITE_CHECK(c->ops->barrier(c, &diag) == ST_STOPPED, &diag);
    c->ops->close(c);
}

static void calls_that_do_not_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(mismatches); i++)
        comm_on_threads(3, mismatch, (void *)(uintptr_t)&mismatches[i]);
    comm_on_threads(3, wrong_pair, NULL);
    comm_on_threads(2, wrong_message, NULL);
    comm_on_threads(2, wrong_order, NULL);
}

/* ---- waits that end ---- */

static void late_rank(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "data group 3");
    float x = 1;
    w->deadline_s = 0.3;
    double begin = now_s(CLOCK_MONOTONIC);
    if (rank == 2) {
        struct timespec pause = {0, 900000000};
        nanosleep(&pause, NULL);
        begin = now_s(CLOCK_MONOTONIC);
    }
    SUITE_CHECK(c->ops->all_reduce(c, &x, 1, DT_F32, COMM_SUM, &diag) == ST_STOPPED,
                &diag);
    double took = now_s(CLOCK_MONOTONIC) - begin;
    HAS(&diag, "all-reduce (sum) of 1 f32", "data group 3", "rank 2 did not arrive",
        "within 0.3 s");
    SUITE_CHECK(rank == 2 ? took < 0.1 : took >= 0.3 && took < 0.8, &diag);
    c->ops->close(c);
}

static void late_peer(struct comm_world *w, int rank, void *arg)
{
    bool sends = *(bool *)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "stages");
    float *buf = mem_alloc(BIG * sizeof(float));
    if (rank == 0) {
        w->deadline_s = 0.2;
        enum status st = sends ? c->ops->send(c, buf, BIG, DT_F32, 1, &diag)
                               : c->ops->recv(c, buf, 5, DT_F32, 1, &diag);
        SUITE_CHECK(st == ST_STOPPED, &diag);
        HAS(&diag,
            sends ? "send of 1048576 f32 to rank 1" : "receive of 5 f32 from rank 1",
            "stages", "rank 1 did not arrive within 0.2 s");
    } else {
        SUITE_CHECK(c->ops->recv(c, buf, 1, DT_F32, 3 - rank, &diag) == ST_STOPPED,
                    &diag);
        HAS(&diag, "rank 0 gave up");
    }
    mem_free(buf);
    c->ops->close(c);
}

static void a_deadline_names_who_is_late(void **state)
{
    (void)state;
    bool sends = false;
    comm_on_threads(3, late_rank, NULL);
    comm_on_threads(3, late_peer, &sends);
    sends = true;
    comm_on_threads(3, late_peer, &sends);
}

/* Rank 0 leaves; that is an error only for who needs it. */
static void early_leaver(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float x = 1;
    if (rank == 1) {
        SUITE_CHECK(c->ops->recv(c, &x, 1, DT_F32, 2, &diag) == ST_OK, &diag);
        SUITE_CHECK(c->ops->recv(c, &x, 1, DT_F32, 0, &diag) == ST_STOPPED, &diag);
        HAS(&diag, "rank 0 did not arrive: rank 0 left");
    } else if (rank == 2) {
        struct timespec pause = {0, 600000000};
        nanosleep(&pause, NULL);
        SUITE_CHECK(c->ops->send(c, &x, 1, DT_F32, 1, &diag) == ST_OK, &diag);
    }
    c->ops->close(c);
}

static void a_rank_that_left_is_named(void **state)
{
    (void)state;
    comm_on_threads(3, early_leaver, NULL);
}

static void giving_up(struct comm_world *w, int rank, void *arg)
{
    static atomic_llong given_up_ns;
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float x[100] = {0};
    enum status st = ST_OK;
    if (rank == 3) {
        struct timespec pause = {0, 150000000};
        nanosleep(&pause, NULL);
        atomic_store(&given_up_ns, (long long)(now_s(CLOCK_MONOTONIC) * 1e9));
        w->ops->give_up(w, "the disk is full");
        st = c->ops->barrier(c, &diag);
    } else if (rank == 0) {
        st = c->ops->all_reduce(c, x, 100, DT_F32, COMM_SUM, &diag);
    } else if (rank == 1) {
        st = c->ops->recv(c, x, 1, DT_F32, 2, &diag);
    } else {
        struct comm *other;
        int pair[2] = {3, 2};
        st = w->ops->group(w, pair, 2, "pair", &other, &diag);
    }
    double late = now_s(CLOCK_MONOTONIC) - 1e-9 * (double)atomic_load(&given_up_ns);
    SUITE_CHECK(st == ST_STOPPED, &diag);
    HAS(&diag, "rank 3 gave up: the disk is full");
    SUITE_CHECK(late >= 0 && late < 0.2, &diag);
    if (rank == 1)
        printf("a rank that waits sees another give up after %.0f ms\n", 1e3 * late);
    c->ops->close(c);
}

static void giving_up_ends_all_waits(void **state)
{
    (void)state;
    comm_on_threads(4, giving_up, NULL);
}

/* Ranks give up in the middle of work on each other's buffers, which are unmapped as soon
 * as their call returns: a copy that goes on would fault. */
static void give_up_midway(struct comm_world *w, int rank, void *arg)
{
    int round = *(int *)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    size_t bytes = 4 * BIG * sizeof(float);
    void *buf, *dst;
    SUITE_CHECK(pages_map(bytes, &buf, &diag) == ST_OK, &diag);
    SUITE_CHECK(pages_map(bytes, &dst, &diag) == ST_OK, &diag);
    enum status st = ST_OK;
    int64_t count[3] = {BIG, 2 * BIG, BIG / 2};
    for (int i = 0; st == ST_OK; i++) {
        if (rank == round % 3 && i == 2 + round % 5) {
            struct timespec pause = {0, 100000 * (round % 7)};
            nanosleep(&pause, NULL);
            w->ops->give_up(w, "enough");
            st = c->ops->barrier(c, &diag);
        } else if (round % 2) {
            st = c->ops->all_gather(c, buf, dst, count, DT_F32, &diag);
        } else if (rank == 0) {
            st = c->ops->send(c, buf, 4 * BIG, DT_F32, 1, &diag);
        } else if (rank == 1) {
            st = c->ops->recv(c, dst, 4 * BIG, DT_F32, 0, &diag);
        } else if (round % 3 != 2) {
            st = c->ops->recv(c, dst, 1, DT_F32, 0, &diag);
        }
    }
    SUITE_CHECK(st == ST_STOPPED, &diag);
    pages_unmap(buf, bytes);
    pages_unmap(dst, bytes);
    c->ops->close(c);
}

static void buffers_are_free_after_a_stop(void **state)
{
    (void)state;
    for (int round = 0; round < 24; round++)
        comm_on_threads(3, give_up_midway, &round);
}

/* ---- waiting costs nothing ---- */

static void idle_rank(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    if (rank == 0) {
        struct timespec pause = {0, 500000000};
        nanosleep(&pause, NULL);
    }
    SUITE_CHECK(c->ops->barrier(c, &diag) == ST_OK, &diag);
    c->ops->close(c);
}

static void busy_ranks(struct comm_world *w, int rank, void *arg)
{
    (void)rank, (void)arg;
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float x[64] = {0};
    for (int i = 0; i < 300; i++)
        SUITE_CHECK(c->ops->all_reduce(c, x, 64, DT_F32, COMM_SUM, &diag) == ST_OK,
                    &diag);
    c->ops->close(c);
}

static void sixteen_ranks_share_the_processors(void **state)
{
    (void)state;
    double cpu = now_s(CLOCK_PROCESS_CPUTIME_ID);
    comm_on_threads(16, idle_rank, NULL);
    cpu = now_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("16 ranks wait 0.5 s: %.1f ms of processor time\n", 1e3 * cpu);
    assert_true(cpu < 0.15);
    double wall = now_s(CLOCK_MONOTONIC);
    comm_on_threads(16, busy_ranks, NULL);
    wall = now_s(CLOCK_MONOTONIC) - wall;
    printf("16 ranks: %.1f us an all-reduce of 256 bytes\n", 1e6 * wall / 300);
    assert_true(wall < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(all_calls_equal_plain_loops),
            cmocka_unit_test(one_rank_equals_one_thread),
            cmocka_unit_test(special_values),
            cmocka_unit_test(calls_allocate_nothing),
            cmocka_unit_test(groups_open_and_close),
            cmocka_unit_test(groups_are_independent),
            cmocka_unit_test(one_sends_while_another_receives),
            cmocka_unit_test(calls_that_do_not_match),
            cmocka_unit_test(a_deadline_names_who_is_late),
            cmocka_unit_test(a_rank_that_left_is_named),
            cmocka_unit_test(giving_up_ends_all_waits),
            cmocka_unit_test(buffers_are_free_after_a_stop),
            cmocka_unit_test(sixteen_ranks_share_the_processors),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
