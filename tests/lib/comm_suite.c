#include "tests/lib/comm_suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/hash.h"
#include "parallel/comm_shm.h"

#define RANKS_MAX 64

void suite_check(bool ok, const char *what, const char *file, int line,
                 const struct diag *diag)
{
    if (ok)
        return;
    fprintf(stderr, "%s:%d: wanted %s: %s\n", file, line, what, diag ? diag->text : "");
    abort();
}

struct rank_arg {
    struct comm_world *w;
    int rank;
    rank_fn fn;
    void *arg;
};

static void *rank_main(void *p)
{
    struct rank_arg *a = p;
    a->fn(a->w, a->rank, a->arg);
    a->w->ops->close(a->w);
    return NULL;
}

void comm_on_threads(int n, rank_fn fn, void *arg)
{
    struct comm_world *w[RANKS_MAX];
    struct rank_arg a[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    struct diag diag = {0};
    SUITE_CHECK(n <= RANKS_MAX, NULL);
    SUITE_CHECK(comm_threads_create(n, w, &diag) == ST_OK, &diag);
    for (int i = 0; i < n; i++) {
        a[i] = (struct rank_arg){w[i], i, fn, arg};
        SUITE_CHECK(pthread_create(&thread[i], NULL, rank_main, &a[i]) == 0, NULL);
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}

/* ---- data ---- */

struct suite {
    struct comm_world *w;
    struct comm *c;
    const int *members; /* world ranks */
    int n, me;          /* of the group */
    enum dtype dtype;
    size_t elem_bytes;
    uint32_t seed; /* of the next call's data */
    void *src, *dst, *want;
    struct hash_chain hash;
    struct diag diag;
};

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Element i of a rank's data: of very different sizes, so that the order of a sum shows
 * in its bits. */
static double value_at(const struct suite *s, int world_rank, int64_t i)
{
    uint32_t h = mix(mix(s->seed * 977u + (uint32_t)world_rank) + (uint32_t)i);
    if (s->dtype == DT_I32)
        return (double)(int)(h % 2000001u) - 1000000.0;
    double x = (double)(h & 0xffffu) / 32768.0 - 1.0;
    return x * (double)(1u << (h >> 16 & 15u));
}

static void fill(const struct suite *s, void *at, int world_rank, int64_t first,
                 int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(at, s->dtype, i, value_at(s, world_rank, first + i));
}

/* What the reduction of element i must be, by the definition. */
static void reduce_reference(const struct suite *s, void *out, int64_t place, int64_t i,
                             enum comm_reduction how)
{
    double one;
    void *elem = &one;
    double acc = 0;
    for (int m = 0; m < s->n; m++) {
        dtype_set(elem, s->dtype, 0, value_at(s, s->members[m], i));
        double x = dtype_get(elem, s->dtype, 0);
        if (m == 0)
            acc = x;
        else if (how == COMM_MAX)
            acc = acc > x ? acc : x;
        else if (s->dtype == DT_F32 || s->dtype == DT_BF16)
            acc = (double)((float)acc + (float)x);
        else
            acc = acc + x;
    }
    dtype_set(out, s->dtype, place, acc);
}

/* Sums in another order are as near as rounding lets them be: the terms are below 32768
 * in size. Puts what is wanted in their place. */
static void forgive(const struct suite *s, void *got, const void *want, int64_t n)
{
    double unit = s->dtype == DT_F32 ? 0x1p-24 : 0x1p-53;
    double limit = unit * 32768 * s->n * s->n;
    for (int64_t i = 0; i < n; i++) {
        double w = dtype_get(want, s->dtype, i), d = dtype_get(got, s->dtype, i) - w;
        if (d <= limit && d >= -limit)
            dtype_set(got, s->dtype, i, w);
    }
}

/* What a sum left. */
static void forgive_sum(const struct suite *s, void *got, const void *want, int64_t n)
{
    if (s->w->any_order && (s->dtype == DT_F32 || s->dtype == DT_F64))
        forgive(s, got, want, n);
}

static void expect(struct suite *s, const void *got, const void *want, int64_t n,
                   const char *what, int line)
{
    size_t bytes = (size_t)n * s->elem_bytes;
    if (bytes && memcmp(got, want, bytes) != 0) {
        int64_t at = 0;
        while (memcmp((const char *)got + (size_t)at * s->elem_bytes,
                      (const char *)want + (size_t)at * s->elem_bytes,
                      s->elem_bytes) == 0)
            at++;
        fprintf(stderr,
                "line %d: %s of %lld %s in %s, member %d: element %lld: got %.17g, "
                "wanted %.17g\n",
                line, what, (long long)n, dtype_name(s->dtype), s->c->name, s->me,
                (long long)at, dtype_get(got, s->dtype, at),
                dtype_get(want, s->dtype, at));
        abort();
    }
    hash_chain_add(&s->hash, got, bytes);
}
#define EXPECT(s, got, want, n, what) expect((s), (got), (want), (n), (what), __LINE__)
#define CALL(s, call)                 SUITE_CHECK((call) == ST_OK, &(s)->diag)

/* ---- calls ---- */

static void test_all_reduce(struct suite *s, int64_t n, enum comm_reduction how)
{
    s->seed++;
    fill(s, s->src, s->w->rank, 0, n);
    for (int64_t i = 0; i < n; i++)
        reduce_reference(s, s->want, i, i, how);
    CALL(s, s->c->ops->all_reduce(s->c, s->src, n, s->dtype, how, &s->diag));
    if (how == COMM_SUM)
        forgive_sum(s, s->src, s->want, n);
    EXPECT(s, s->src, s->want, n, "all-reduce");
}

static int64_t sum_of(const int64_t *count, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += count[i];
    return sum;
}

static void *elem(struct suite *s, void *base, int64_t i)
{
    return (char *)base + (size_t)i * s->elem_bytes;
}

static void test_all_gather(struct suite *s, const int64_t *count, bool in_place)
{
    s->seed++;
    int64_t total = sum_of(count, s->n);
    for (int m = 0; m < s->n; m++)
        fill(s, elem(s, s->want, sum_of(count, m)), s->members[m], 0, count[m]);
    memset(s->dst, 0x55, (size_t)total * s->elem_bytes);
    void *src = in_place ? elem(s, s->dst, sum_of(count, s->me)) : s->src;
    fill(s, src, s->w->rank, 0, count[s->me]);
    CALL(s, s->c->ops->all_gather(s->c, src, s->dst, count, s->dtype, &s->diag));
    EXPECT(s, s->dst, s->want, total, "all-gather");
}

static void test_reduce_scatter(struct suite *s, const int64_t *count, bool in_place)
{
    s->seed++;
    int64_t total = sum_of(count, s->n), first = sum_of(count, s->me);
    fill(s, s->src, s->w->rank, 0, total);
    for (int64_t i = 0; i < count[s->me]; i++)
        reduce_reference(s, s->want, i, first + i, COMM_SUM);
    void *dst = in_place ? elem(s, s->src, first) : s->dst;
    CALL(s, s->c->ops->reduce_scatter(s->c, s->src, dst, count, s->dtype, &s->diag));
    forgive_sum(s, dst, s->want, count[s->me]);
    EXPECT(s, dst, s->want, count[s->me], "reduce-scatter");
}

/* Elements from member a to member b. */
static int64_t pair_count(int a, int b, int64_t scale)
{
    return (a * 3 + b * 5) % 4 == 0 ? 0 : scale * (1 + (a + 2 * b) % 3);
}

static void test_all_to_all(struct suite *s, int64_t scale)
{
    s->seed++;
    int64_t send[RANKS_MAX], recv[RANKS_MAX], at = 0;
    for (int m = 0; m < s->n; m++) {
        send[m] = pair_count(s->me, m, scale);
        recv[m] = pair_count(m, s->me, scale);
        int64_t before = 0;
        for (int k = 0; k < s->me; k++)
            before += pair_count(m, k, scale);
        fill(s, elem(s, s->want, at), s->members[m], before, recv[m]);
        at += recv[m];
    }
    fill(s, s->src, s->w->rank, 0, sum_of(send, s->n));
    memset(s->dst, 0x55, (size_t)at * s->elem_bytes);
    CALL(s,
         s->c->ops->all_to_all(s->c, s->src, send, s->dst, recv, s->dtype, &s->diag));
    EXPECT(s, s->dst, s->want, at, "all-to-all");
}

static void test_broadcast(struct suite *s, int64_t n, int root)
{
    s->seed++;
    fill(s, s->want, s->members[root], 0, n);
    memset(s->src, 0x55, (size_t)n * s->elem_bytes);
    if (s->me == root)
        fill(s, s->src, s->w->rank, 0, n);
    CALL(s, s->c->ops->broadcast(s->c, s->src, n, s->dtype, root, &s->diag));
    EXPECT(s, s->src, s->want, n, "broadcast");
}

/* Three messages to the next member, of different sizes. */
static void send_three(struct suite *s, int64_t n)
{
    int next = (s->me + 1) % s->n;
    for (int k = 0; k < 3; k++) {
        int64_t size = k == 1 ? n / 3 : n;
        fill(s, s->src, s->w->rank, k * 7, size);
        CALL(s, s->c->ops->send(s->c, s->src, size, s->dtype, next, &s->diag));
    }
}

static void recv_three(struct suite *s, int64_t n)
{
    int last = (s->me + s->n - 1) % s->n;
    for (int k = 0; k < 3; k++) {
        int64_t size = k == 1 ? n / 3 : n;
        fill(s, s->want, s->members[last], k * 7, size);
        memset(s->dst, 0x55, (size_t)size * s->elem_bytes);
        CALL(s, s->c->ops->recv(s->c, s->dst, size, s->dtype, last, &s->diag));
        EXPECT(s, s->dst, s->want, size, "message");
    }
}

/* Around a ring; the first member receives after it has sent. */
static void test_messages(struct suite *s, int64_t n)
{
    if (s->n < 2)
        return;
    s->seed++;
    if (s->me == 0) {
        send_three(s, n);
        recv_three(s, n);
    } else {
        recv_three(s, n);
        send_three(s, n);
    }
}

static void test_size(struct suite *s, int64_t n)
{
    int64_t even[RANKS_MAX], uneven[RANKS_MAX], one[RANKS_MAX];
    for (int m = 0; m < s->n; m++) {
        even[m] = n / s->n;
        uneven[m] = m % 3 == 1 ? 0 : n / s->n + (m % 3) * (n % 7) - (n / s->n) / 2;
        one[m] = m == s->n - 1 ? n : 0;
    }
    test_all_reduce(s, n, COMM_SUM);
    if (s->dtype != DT_BF16)
        test_all_reduce(s, n, COMM_MAX);
    const int64_t *counts[] = {even, uneven, one};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        test_all_gather(s, counts[i], i & 1);
        test_all_gather(s, counts[i], !(i & 1));
        test_reduce_scatter(s, counts[i], i & 1);
        test_reduce_scatter(s, counts[i], !(i & 1));
    }
    test_all_to_all(s, n / 3 / s->n);
    test_broadcast(s, n, s->n - 1);
    test_broadcast(s, n, 0);
    test_messages(s, n);
    CALL(s, s->c->ops->barrier(s->c, &s->diag));
}

static void *get(struct suite *s, int64_t bytes, bool shared)
{
    void *p = shared ? s->w->ops->alloc(s->w, bytes) : mem_alloc((size_t)bytes);
    SUITE_CHECK(p, NULL);
    return p;
}

static void put(struct suite *s, void *p, int64_t bytes, bool shared)
{
    if (shared)
        s->w->ops->release(s->w, p, bytes);
    else
        mem_free(p);
}

static void test_group(struct suite *s, const int *members, int n, const char *name,
                       enum suite_memory memory, int64_t largest)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F64, DT_I32};
    bool shared =
            memory == SUITE_SHARED || (memory == SUITE_MIXED && s->w->rank % 2 == 0);
    int64_t bytes = (largest + 64) * 8 * 2;
    s->members = members;
    s->n = n;
    s->seed = (uint32_t)n * 1000; /* the members may have made other calls before */
    CALL(s, s->w->ops->group(s->w, members, n, name, &s->c, &s->diag));
    s->me = s->c->rank;
    SUITE_CHECK(members[s->me] == s->w->rank && s->c->size == n, NULL);
    SUITE_CHECK(strcmp(s->c->name, name) == 0, NULL);
    s->src = get(s, bytes, shared);
    s->dst = get(s, bytes, shared);
    s->want = mem_alloc((size_t)bytes);
    const int64_t sizes[] = {0, 1, 3, 17, 600, 5000, largest};
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        s->dtype = dtypes[d];
        s->elem_bytes = dtype_bytes(s->dtype);
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            if (sizes[i] < largest || i == ARRAY_LEN(sizes) - 1)
                test_size(s, sizes[i]);
    }
    put(s, s->src, bytes, shared);
    put(s, s->dst, bytes, shared);
    mem_free(s->want);
    s->c->ops->close(s->c);
}

uint64_t comm_suite(struct comm_world *w, enum suite_memory memory, int64_t largest)
{
    struct suite s = {.w = w};
    int n = w->size, all[RANKS_MAX], back[RANKS_MAX], some[RANKS_MAX], n_some = 0;
    for (int i = 0; i < n; i++) {
        all[i] = i;
        back[i] = (n - i) % n;
        if (i % 2 == w->rank % 2)
            some[n_some++] = i;
    }
    test_group(&s, all, n, "all ranks", memory, largest);
    if (n > 2)
        test_group(&s, back, n, "all ranks, turned", memory, largest);
    test_group(&s, some, n_some, w->rank % 2 ? "odd ranks" : "even ranks", memory,
               largest);
    if (w->rank / 2 * 2 + 1 < n) {
        int pair[2] = {w->rank / 2 * 2 + 1, w->rank / 2 * 2};
        test_group(&s, pair, 2, "a pair", memory, largest);
    }
    return s.hash.value;
}
