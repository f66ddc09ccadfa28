/* Reading ahead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/str.h"
#include "io/reader.h"
#include "tests/lib/tmp.h"

#define T         16
#define N_SAMPLES 50
#define RAMP      10 /* batches of 2 samples, then of 5 */

struct fixture {
    struct arena a;
    const char *dir;
    struct tmp tmp;
    const char *path;
    struct diag diag;
    struct data *data;
    int64_t n_batches;
    atomic_int delay_ms; /* before each batch */
};

static int set_up(void **state)
{
    static struct fixture f;
    f = (struct fixture){.n_batches = INT64_MAX};
    tmp_create(&f.tmp);
    f.dir = f.tmp.path;
    struct str s = {0};
    for (int i = 0; i < N_SAMPLES * T; i++)
        str_addc(&s, (char)('a' + i % 23));
    f.path = tmp_write(&f.tmp, "x", s.s, s.n);
    str_free(&s);
    struct data_source src[] = {{f.path, 0}};
    struct data_options o = {.train = src,
                             .n_train = 1,
                             .tokenizer = tok_bytes(),
                             .text_field = "text",
                             .seq_len = T,
                             .vocab = 257,
                             .seed = 1,
                             .shuffle = true,
                             .mask_documents = true};
    assert_int_equal(data_open(&o, &f.data, &f.diag), ST_OK);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    data_close(f->data);
    tmp_remove(&f->tmp);
    arena_release(&f->a);
    return 0;
}

static bool ramp(void *arg, int64_t batch, int64_t *first, int64_t *n)
{
    struct fixture *f = arg;
    int ms = atomic_load(&f->delay_ms);
    if (ms > 0)
        usleep((unsigned)ms * 1000);
    *n = batch < RAMP ? 2 : 5;
    *first = batch < RAMP ? 2 * batch : 2 * RAMP + 5 * (batch - RAMP);
    return batch < f->n_batches;
}

static struct reader *make_reader(struct fixture *f, int n_slots, int64_t first_batch)
{
    struct reader_options o = {.data = f->data,
                               .split = DATA_TRAIN,
                               .seq_len = T,
                               .max_samples = 5,
                               .n_slots = n_slots,
                               .first_batch = first_batch,
                               .range = ramp,
                               .range_arg = f};
    struct reader *r = NULL;
    assert_int_equal(reader_create(&o, &r, &f->diag), ST_OK);
    return r;
}

/* The next batch must be number `batch` and hold what a direct fetch gives. */
static void assert_next(struct fixture *f, struct reader *r, int64_t batch)
{
    const struct reader_batch *b = NULL;
    int32_t want[4][5 * T];
    struct data_arrays w = {want[0], want[1], want[2], want[3]};
    int64_t first = 0, n = 0, trained = 0;
    assert_int_equal(reader_next(r, &b, &f->diag), ST_OK);
    assert_non_null(b);
    struct fixture plain = {.n_batches = INT64_MAX};
    ramp(&plain, batch, &first, &n);
    assert_int_equal(b->batch, batch);
    assert_int_equal(b->first_sample, first);
    assert_int_equal(b->n_samples, n);
    assert_int_equal(data_fetch(f->data, DATA_TRAIN, first, n, &w, &trained, &f->diag),
                     ST_OK);
    assert_int_equal(b->n_trained, trained);
    size_t bytes = (size_t)(n * T) * sizeof(int32_t);
    assert_memory_equal(b->arrays.tokens, w.tokens, bytes);
    assert_memory_equal(b->arrays.labels, w.labels, bytes);
    assert_memory_equal(b->arrays.positions, w.positions, bytes);
    assert_memory_equal(b->arrays.doc_starts, w.doc_starts, bytes);
}

static void batches_in_order(void **state)
{
    struct fixture *f = *state;
    for (int slots = 2; slots <= 4; slots++) {
        struct reader *r = make_reader(f, slots, 0);
        for (int64_t i = 0; i < 60; i++)
            assert_next(f, r, i);
        assert_int_equal(reader_stats(r).n_batches, 60);
        reader_destroy(r);
    }
    assert_int_equal(reader_bytes(3, 5, T), 3 * 4 * 5 * T * 4);
}

static void resumes_anywhere(void **state)
{
    struct fixture *f = *state;
    for (int64_t first = 0; first < 30; first++) {
        struct reader *r = make_reader(f, 2, first);
        for (int64_t i = first; i < first + 3; i++)
            assert_next(f, r, i);
        reader_destroy(r);
    }
}

static void ends(void **state)
{
    struct fixture *f = *state;
    f->n_batches = 3;
    struct reader *r = make_reader(f, 4, 0);
    for (int64_t i = 0; i < 3; i++)
        assert_next(f, r, i);
    for (int i = 0; i < 2; i++) {
        const struct reader_batch *b = NULL;
        assert_int_equal(reader_next(r, &b, &f->diag), ST_OK);
        assert_null(b);
    }
    reader_destroy(r);
}

/* What was read before the file shrank is still delivered, then the error, twice. */
static void delivers_errors(void **state)
{
    struct fixture *f = *state;
    f->n_batches = 1000;
    struct reader *r = make_reader(f, 2, 0);
    assert_next(f, r, 0);
    assert_int_equal(truncate(f->path, 10), 0);
    enum status st = ST_OK;
    const struct reader_batch *b = NULL;
    int64_t delivered = 1;
    while ((st = reader_next(r, &b, &f->diag)) == ST_OK)
        assert_int_equal(b->batch, delivered++);
    assert_int_equal(st, ST_DATA);
    assert_null(b);
    assert_true(delivered <= 4);
    assert_non_null(strstr(f->diag.text, "got 10 bytes"));
    f->diag = (struct diag){0};
    assert_int_equal(reader_next(r, &b, &f->diag), ST_DATA);
    assert_non_null(strstr(f->diag.text, f->path));
    reader_destroy(r);
}

/* A reader may go at any moment: at once, while full, while it reads, after the end. */
static void shuts_down(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < 200; i++) {
        f->n_batches = i % 5 == 0 ? 2 : INT64_MAX;
        struct reader *r = make_reader(f, 2 + i % 3, i % 7);
        for (int k = 0; k < i % 4; k++) {
            const struct reader_batch *b;
            assert_int_equal(reader_next(r, &b, &f->diag), ST_OK);
        }
        reader_destroy(r);
    }
}

static void sleep_ms(int ms)
{
    struct timespec t = {0, ms * 1000000L};
    nanosleep(&t, NULL);
}

/* A slow trainer never waits; a slow reader is seen in the counters. */
static void counts_waits(void **state)
{
    struct fixture *f = *state;
    struct reader *r = make_reader(f, 3, 0);
    assert_next(f, r, 0);
    for (int64_t i = 1; i < 10; i++) {
        sleep_ms(20);
        assert_next(f, r, i);
    }
    struct reader_stats s = reader_stats(r);
    print_message("slow trainer: %lld waits, first %.3f ms\n", (long long)s.n_waits,
                  (double)s.first_wait_ns * 1e-6);
    assert_int_equal(s.n_waits, 0);
    assert_int_equal(s.wait_ns, 0);
    reader_destroy(r);

    atomic_store(&f->delay_ms, 5);
    r = make_reader(f, 3, 0);
    for (int64_t i = 0; i < 10; i++)
        assert_next(f, r, i);
    s = reader_stats(r);
    print_message("slow reader: %lld waits, %.1f ms\n", (long long)s.n_waits,
                  (double)s.wait_ns * 1e-6);
    assert_true(s.n_waits >= 5 && s.wait_ns >= 20 * 1000000);
    assert_true(s.first_wait_ns > 0);
    reader_destroy(r);
}

static atomic_int signals_seen;
static pthread_t signal_thread;

static void on_signal(int sig)
{
    (void)sig;
    signal_thread = pthread_self();
    atomic_fetch_add(&signals_seen, 1);
}

/* Signals to the process reach the main thread, not the reader's. */
static void signals_reach_main(void **state)
{
    struct fixture *f = *state;
    struct reader *r = make_reader(f, 2, 0);
    struct sigaction act = {.sa_handler = on_signal}, old;
    sigaction(SIGUSR1, &act, &old);
    for (int i = 0; i < 20; i++) {
        kill(getpid(), SIGUSR1);
        while (atomic_load(&signals_seen) <= i)
            sleep_ms(1);
        assert_true(pthread_equal(signal_thread, pthread_self()));
    }
    sigaction(SIGUSR1, &old, NULL);
    assert_next(f, r, 0);
    reader_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(batches_in_order, set_up, tear_down),
            cmocka_unit_test_setup_teardown(resumes_anywhere, set_up, tear_down),
            cmocka_unit_test_setup_teardown(ends, set_up, tear_down),
            cmocka_unit_test_setup_teardown(delivers_errors, set_up, tear_down),
            cmocka_unit_test_setup_teardown(shuts_down, set_up, tear_down),
            cmocka_unit_test_setup_teardown(counts_waits, set_up, tear_down),
            cmocka_unit_test_setup_teardown(signals_reach_main, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("reader", tests, NULL, NULL);
}
