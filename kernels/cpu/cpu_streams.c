#include "kernels/cpu/cpu_streams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/futex.h"
#include "kernels/cpu/cpu_table.h"

#define QUEUE_COMMANDS 256 /* a power of two: places are counted modulo 2^32 */

enum command_kind {
    COMMAND_LAUNCH,
    COMMAND_RECORD,
    COMMAND_WAIT,
    COMMAND_STOP,
};

struct command {
    enum command_kind kind;
    struct backend_streams *streams;
    uint32_t event;
    unsigned count; /* records of the event to wait for */
    uint32_t chosen;
    struct launch launch;
};

/* `pushed` and `done` count commands; both are futex words. Only the caller's thread
 * pushes, only the worker's takes. */
struct cpu_worker {
    pthread_t thread;
    struct pool *pool; /* of this thread alone */
    struct command *queue;
    char pad0[64];
    atomic_uint pushed;
    char pad1[64];
    atomic_uint done;
    char pad2[64];
};

struct event {
    unsigned recorded; /* appended so far; the caller's */
    atomic_uint done;
    char pad[56];
};

enum failure_state {
    FAILURE_NONE,
    FAILURE_TAKEN,
};

struct backend_streams {
    struct cpu_workers *workers;
    struct pool *pool;
    uint32_t n_streams;
    struct event *events;
    atomic_uint failure_state;
    /* Written by the thread that moved the state, read after all threads are done. */
    struct kernel_failure failure;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------- running an op */

static void keep_first(struct backend_streams *s, const struct kernel_failure *f)
{
    unsigned none = FAILURE_NONE;
    if (atomic_compare_exchange_strong(&s->failure_state, &none, FAILURE_TAKEN))
        s->failure = *f;
}

static void run_kernel(uint32_t chosen, const struct launch *l, struct pool *pool,
                       struct kernel_failure *f)
{
    struct kernel_call c = {l, pool, f};
    int64_t start = l->run_ns ? now_ns() : 0;
    if (!l->predicate || *l->predicate != 0)
        cpu_table_row(chosen)->run(&c);
    if (l->run_ns)
        *l->run_ns += now_ns() - start;
}

static void run_launch(struct backend_streams *s, uint32_t chosen,
                       const struct launch *l, struct pool *pool)
{
    struct kernel_failure f;
    const struct launch_hooks *h = l->hooks;
    if (atomic_load_explicit(&s->failure_state, memory_order_relaxed) != FAILURE_NONE)
        return;
    f.st = ST_OK;
    f.diag.text[0] = f.diag.hint[0] = '\0';
    if (h && h->before)
        f.st = h->before(h->arg, l, &f.diag);
    if (f.st == ST_OK)
        run_kernel(chosen, l, pool, &f);
    if (f.st == ST_OK && h && h->after)
        f.st = h->after(h->arg, l, &f.diag);
    if (f.st != ST_OK)
        keep_first(s, &f);
}

static void mark_done(struct event *e)
{
    atomic_fetch_add_explicit(&e->done, 1, memory_order_release);
    futex_wake(&e->done);
}

/* Records are done in order, or, where ops of several streams record one event, in any:
 * `count` of them are done when the last of these is. */
static void wait_done(struct event *e, unsigned count)
{
    unsigned done = atomic_load_explicit(&e->done, memory_order_acquire);
    while ((int)(done - count) < 0)
        done = futex_wait_change(&e->done, done);
}

/* --------------------------------------------------------------------- the threads */

static void *worker_main(void *arg)
{
    struct cpu_worker *w = arg;
    unsigned done = 0, pushed = 0;
    for (;;) {
        while (pushed == done)
            pushed = futex_wait_change(&w->pushed, pushed);
        struct command *c = &w->queue[done % QUEUE_COMMANDS];
        switch (c->kind) {
        case COMMAND_LAUNCH:
            run_launch(c->streams, c->chosen, &c->launch, w->pool);
            break;
        case COMMAND_RECORD: mark_done(&c->streams->events[c->event]); break;
        case COMMAND_WAIT: wait_done(&c->streams->events[c->event], c->count); break;
        case COMMAND_STOP: return NULL;
        }
        atomic_store_explicit(&w->done, ++done, memory_order_release);
        futex_wake(&w->done);
    }
}

/* The next free place of the queue; waits for one. */
static struct command *queue_place(struct cpu_worker *w)
{
    unsigned pushed = atomic_load_explicit(&w->pushed, memory_order_relaxed);
    unsigned done = atomic_load_explicit(&w->done, memory_order_acquire);
    while (pushed - done == QUEUE_COMMANDS)
        done = futex_wait_change(&w->done, done);
    return &w->queue[pushed % QUEUE_COMMANDS];
}

static void queue_push(struct cpu_worker *w)
{
    atomic_fetch_add_explicit(&w->pushed, 1, memory_order_release);
    futex_wake(&w->pushed);
}

static void worker_wait(struct cpu_worker *w)
{
    unsigned pushed = atomic_load_explicit(&w->pushed, memory_order_relaxed);
    unsigned done = atomic_load_explicit(&w->done, memory_order_acquire);
    while (done != pushed)
        done = futex_wait_change(&w->done, done);
}

static void worker_free(struct cpu_worker *w)
{
    pool_destroy(w->pool);
    mem_free(w->queue);
    mem_free(w);
}

static enum status worker_start(uint32_t stream, struct cpu_worker **out,
                                struct diag *diag)
{
    struct cpu_worker *w = mem_alloc(sizeof(*w));
    w->queue = mem_alloc(QUEUE_COMMANDS * sizeof(*w->queue));
    enum status st = pool_create(1, &w->pool, diag);
    if (st == ST_OK) {
        int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err)
            st = diag_set(diag, ST_UNAVAILABLE,
                          "cannot start a thread for stream %u (device cpu): system "
                          "says %s",
                          stream, strerror(err));
    }
    if (st != ST_OK) {
        worker_free(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

static void worker_stop(struct cpu_worker *w)
{
    queue_place(w)->kind = COMMAND_STOP;
    queue_push(w);
    pthread_join(w->thread, NULL);
    worker_free(w);
}

void cpu_workers_release(struct cpu_workers *w)
{
    for (uint32_t i = 1; i < w->n; i++)
        worker_stop(w->worker[i]);
    mem_free(w->worker);
    memset(w, 0, sizeof(*w));
}

static enum status grow_workers(struct cpu_workers *w, uint32_t n, struct diag *diag)
{
    if (n <= w->n)
        return ST_OK;
    w->worker = mem_realloc(w->worker, n * sizeof(*w->worker));
    if (w->n == 0)
        w->worker[w->n++] = NULL;
    while (w->n < n) {
        TRY(worker_start(w->n, &w->worker[w->n], diag));
        w->n++;
    }
    return ST_OK;
}

/* ---------------------------------------------------------------- a program's streams */

enum status cpu_streams_open(struct cpu_workers *w, struct pool *pool,
                             const struct program *prog, struct backend_streams **out,
                             struct diag *diag)
{
    TRY(grow_workers(w, prog->n_streams, diag));
    struct backend_streams *s = mem_alloc(sizeof(*s));
    s->workers = w;
    s->pool = pool;
    s->n_streams = prog->n_streams;
    s->events = mem_alloc((prog->n_events + (size_t)1) * sizeof(*s->events));
    *out = s;
    return ST_OK;
}

void cpu_streams_close(struct backend_streams *s)
{
    for (uint32_t i = 1; i < s->n_streams; i++)
        worker_wait(s->workers->worker[i]);
    mem_free(s->events);
    mem_free(s);
}

void cpu_streams_launch(struct backend_streams *s, uint32_t chosen,
                        const struct launch *l)
{
    ASSERT(l->op->stream < s->n_streams);
    if (l->op->stream == 0) {
        run_launch(s, chosen, l, s->pool);
        return;
    }
    struct cpu_worker *w = s->workers->worker[l->op->stream];
    struct command *c = queue_place(w);
    c->kind = COMMAND_LAUNCH;
    c->streams = s;
    c->chosen = chosen;
    c->launch = *l;
    queue_push(w);
}

static void push_event(struct backend_streams *s, uint8_t stream,
                       enum command_kind kind, uint32_t event)
{
    struct cpu_worker *w = s->workers->worker[stream];
    struct command *c = queue_place(w);
    c->kind = kind;
    c->streams = s;
    c->event = event;
    c->count = s->events[event].recorded;
    queue_push(w);
}

void cpu_streams_record(struct backend_streams *s, uint8_t stream, uint32_t event)
{
    ASSERT(stream < s->n_streams);
    s->events[event].recorded++;
    if (stream == 0)
        mark_done(&s->events[event]);
    else
        push_event(s, stream, COMMAND_RECORD, event);
}

void cpu_streams_wait(struct backend_streams *s, uint8_t stream, uint32_t event)
{
    ASSERT(stream < s->n_streams);
    if (stream == 0)
        wait_done(&s->events[event], s->events[event].recorded);
    else
        push_event(s, stream, COMMAND_WAIT, event);
}

enum status cpu_streams_sync(struct backend_streams *s, struct diag *diag)
{
    for (uint32_t i = 1; i < s->n_streams; i++)
        worker_wait(s->workers->worker[i]);
    if (atomic_load_explicit(&s->failure_state, memory_order_acquire) == FAILURE_NONE)
        return ST_OK;
    if (diag)
        *diag = s->failure.diag;
    return s->failure.st;
}
