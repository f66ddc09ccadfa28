#include "io/reader.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"

#define SLOTS_MAX 8
#define ARRAYS    4 /* tokens, labels, positions, document starts */

/* The thread alone writes slot n_filled mod n_slots, the trainer alone reads slots
 * n_taken .. n_filled-1; the counters and the state beside them are under the lock. */
struct reader {
    struct reader_options options;
    struct reader_batch slots[SLOTS_MAX];
    int32_t *memory;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t n_filled; /* batches the thread has finished */
    int64_t n_taken;  /* batches the trainer has given back */
    bool holds_one;   /* the trainer has batch n_taken in use */
    bool ended;       /* the thread fills no more: an error, or no more batches */
    bool stop;
    enum status status;
    struct diag diag;
    struct reader_stats stats;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Waits for a slot the trainer does not need; NULL when the reader is to stop. */
static struct reader_batch *wait_slot(struct reader *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->stop && r->n_filled - r->n_taken == r->options.n_slots)
        pthread_cond_wait(&r->changed, &r->lock);
    struct reader_batch *slot = &r->slots[r->n_filled % r->options.n_slots];
    if (r->stop)
        slot = NULL;
    pthread_mutex_unlock(&r->lock);
    return slot;
}

static void publish(struct reader *r, bool filled, bool ended, enum status st,
                    const struct diag *diag)
{
    pthread_mutex_lock(&r->lock);
    r->n_filled += filled;
    r->ended = ended;
    r->status = st;
    if (st != ST_OK)
        r->diag = *diag;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    const struct reader_options *o = &r->options;
    struct diag diag = {0};
    for (int64_t batch = o->first_batch;; batch++) {
        struct reader_batch *slot = wait_slot(r);
        if (!slot)
            return NULL;
        slot->batch = batch;
        if (!o->range(o->range_arg, batch, &slot->first_sample, &slot->n_samples)) {
            publish(r, false, true, ST_OK, &diag);
            return NULL;
        }
        ASSERT(slot->n_samples >= 1 && slot->n_samples <= o->max_samples);
        enum status st =
                data_fetch(o->data, o->split, slot->first_sample, slot->n_samples,
                           &slot->arrays, &slot->n_trained, &diag);
        publish(r, st == ST_OK, st != ST_OK, st, &diag);
        if (st != ST_OK)
            return NULL;
    }
}

/* Signals are for the main thread: the reader's is started with all of them blocked. */
static int start_thread(struct reader *r)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&r->thread, NULL, reader_main, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}

static int64_t slot_elems(int64_t max_samples, int64_t seq_len)
{
    int64_t n = 0;
    if (!mul_i64(max_samples, seq_len, &n))
        BUG("a batch of %lld sequences of %lld tokens", (long long)max_samples,
            (long long)seq_len);
    return n;
}

int64_t reader_bytes(int n_slots, int64_t max_samples, int64_t seq_len)
{
    int64_t bytes = 0;
    if (!mul_i64(slot_elems(max_samples, seq_len),
                 (int64_t)n_slots * ARRAYS * (int64_t)sizeof(int32_t), &bytes))
        BUG("too large a batch to read ahead");
    return bytes;
}

static void free_reader(struct reader *r)
{
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->memory);
    mem_free(r);
}

enum status reader_create(const struct reader_options *options, struct reader **out,
                          struct diag *diag)
{
    ASSERT(options->n_slots >= 2 && options->n_slots <= SLOTS_MAX);
    ASSERT(options->max_samples >= 1 && options->first_batch >= 0);
    struct reader *r = mem_alloc(sizeof(*r));
    r->options = *options;
    int64_t n = slot_elems(options->max_samples, options->seq_len);
    r->memory = mem_alloc((size_t)reader_bytes(options->n_slots, options->max_samples,
                                               options->seq_len));
    for (int i = 0; i < options->n_slots; i++) {
        int32_t *m = r->memory + i * ARRAYS * n;
        r->slots[i].arrays = (struct data_arrays){m, m + n, m + 2 * n, m + 3 * n};
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    int err = start_thread(r);
    if (err) {
        free_reader(r);
        return diag_set(diag, ST_UNAVAILABLE,
                        "cannot start the thread that reads data: system says %s",
                        strerror(err));
    }
    *out = r;
    return ST_OK;
}

/* Under the lock: waits until a batch is ready or none will come. */
static void wait_batch(struct reader *r)
{
    bool is_first = r->stats.n_batches == 0;
    if (r->n_filled > r->n_taken || r->ended)
        return;
    int64_t begin = now_ns();
    while (r->n_filled == r->n_taken && !r->ended)
        pthread_cond_wait(&r->changed, &r->lock);
    if (r->n_filled == r->n_taken)
        return; /* the end was waited for, or an error: not data */
    int64_t waited = now_ns() - begin;
    if (is_first) {
        r->stats.first_wait_ns = waited;
    } else {
        r->stats.n_waits++;
        r->stats.wait_ns += waited;
    }
}

enum status reader_next(struct reader *r, const struct reader_batch **out,
                        struct diag *diag)
{
    pthread_mutex_lock(&r->lock);
    if (r->holds_one) {
        r->n_taken++;
        r->holds_one = false;
        pthread_cond_broadcast(&r->changed);
    }
    wait_batch(r);
    enum status st = ST_OK;
    *out = NULL;
    if (r->n_filled > r->n_taken) {
        *out = &r->slots[r->n_taken % r->options.n_slots];
        r->holds_one = true;
        r->stats.n_batches++;
    } else if (r->status != ST_OK) {
        st = r->status;
        if (diag)
            *diag = r->diag;
    }
    pthread_mutex_unlock(&r->lock);
    return st;
}

/* The trainer's own numbers: only reader_next changes them. */
struct reader_stats reader_stats(const struct reader *r)
{
    return r->stats;
}

void reader_destroy(struct reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    free_reader(r);
}
