/* The pool of compute threads: shares, and runs in numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/pool.h"

/* The shares of all threads follow each other without gaps and cover the items; borders
 * inside are multiples of the unit, and no thread has two units more than another. */
static void shares_cover_exactly(void **state)
{
    (void)state;
    static const int64_t items[] = {0, 1, 2, 7, 63, 64, 65, 1000, 4096, 100003};
    static const int64_t units[] = {1, 3, 16, 64, 5000};
    for (size_t a = 0; a < ARRAY_LEN(items); a++) {
        for (size_t b = 0; b < ARRAY_LEN(units); b++) {
            for (int n = 1; n <= 9; n++) {
                int64_t at = 0, most = 0, least = INT64_MAX;
                for (int t = 0; t < n; t++) {
                    int64_t begin, end;
                    pool_share(items[a], units[b], t, n, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin);
                    assert_true(begin % units[b] == 0 || begin == items[a]);
                    at = end;
                    int64_t size = ceil_div_i64(end - begin, units[b]);
                    most = MAX(most, size);
                    least = MIN(least, size);
                }
                assert_int_equal(at, items[a]);
                assert_true(most - least <= 1);
            }
        }
    }
}

#define ITEMS 1000

struct work {
    int64_t *out; /* [ITEMS], each written by one thread */
    int64_t round;
    int n_seen[16]; /* calls of each thread */
    int wrong;      /* written by the caller's thread only */
};

static void add_round(void *arg, int thread, int n_threads)
{
    struct work *w = arg;
    int64_t begin, end;
    pool_share(ITEMS, 8, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        w->out[i] += w->round * i;
    w->n_seen[thread]++;
}

/* Plain memory, so that the thread sanitizer sees a missing hand-over: what threads wrote
 * is read by the caller after each run, and what the caller wrote by the threads. */
static void many_runs_give_one_result(void **state)
{
    (void)state;
    enum {
        RUNS = 5000
    };
    for (int n = 1; n <= 4; n++) {
        struct diag diag = {0};
        struct pool *pool;
        assert_int_equal(pool_create(n, &pool, &diag), ST_OK);
        assert_int_equal(pool_threads(pool), n);
        int64_t out[ITEMS] = {0};
        struct work w = {.out = out};
        int64_t sum = 0;
        for (int r = 1; r <= RUNS; r++) {
            w.round = r;
            pool_run(pool, add_round, &w);
            sum += r;
            w.wrong += out[ITEMS - 1] != sum * (ITEMS - 1);
            w.wrong += out[1] != sum;
        }
        assert_int_equal(w.wrong, 0);
        for (int64_t i = 0; i < ITEMS; i++)
            assert_int_equal(out[i], sum * i);
        for (int t = 0; t < 16; t++)
            assert_int_equal(w.n_seen[t], t < n ? RUNS : 0);
        pool_destroy(pool);
    }
}

static void rest_ms(int ms)
{
    struct timespec t = {0, (long)ms * 1000000};
    nanosleep(&t, NULL);
}

static void sleep_on_odd(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    int *done = arg;
    if (thread % 2)
        rest_ms(2);
    done[thread]++;
}

/* Pauses longer than the spin: threads sleep and are woken, on both sides. */
static void sleepers_wake(void **state)
{
    (void)state;
    struct diag diag = {0};
    struct pool *pool;
    assert_int_equal(pool_create(4, &pool, &diag), ST_OK);
    int done[4] = {0};
    for (int r = 1; r <= 50; r++) {
        pool_run(pool, sleep_on_odd, done);
        for (int t = 0; t < 4; t++)
            assert_int_equal(done[t], r);
        if (r % 5 == 0)
            rest_ms(2);
    }
    pool_destroy(pool);
}

static void pools_come_and_go(void **state)
{
    (void)state;
    struct diag diag = {0};
    for (int i = 0; i < 100; i++) {
        struct pool *a, *b;
        assert_int_equal(pool_create(1 + i % 4, &a, &diag), ST_OK);
        assert_int_equal(pool_create(3, &b, &diag), ST_OK);
        int64_t out[ITEMS] = {0};
        struct work w = {.out = out, .round = 1};
        if (i % 2)
            pool_run(a, add_round, &w);
        pool_run(b, add_round, &w);
        assert_int_equal(out[7], 7 * (1 + i % 2));
        pool_destroy(a);
        pool_destroy(b);
    }
    pool_destroy(NULL);
    assert_true(pool_cpus_available() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(shares_cover_exactly),
            cmocka_unit_test(many_runs_give_one_result),
            cmocka_unit_test(sleepers_wake),
            cmocka_unit_test(pools_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
