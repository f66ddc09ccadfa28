#include "core/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/futex.h"

/* `round` counts the runs: workers wait for it to move. `n_left` counts workers that
 * have not finished the current run. Both are futex words. */
struct pool {
    int n_threads;
    pthread_t *threads;
    pool_fn fn;
    void *arg;
    char pad0[64]; /* keeps the words on cache lines of their own */
    atomic_uint round;
    char pad1[64];
    atomic_uint n_left;
    char pad2[64];
    atomic_bool stop;
};

struct worker_arg {
    struct pool *pool;
    int thread;
};

static void *worker_main(void *p)
{
    struct worker_arg w = *(struct worker_arg *)p;
    mem_free(p);
    struct pool *pool = w.pool;
    unsigned seen = 0;
    for (;;) {
        seen = futex_wait_change(&pool->round, seen);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return NULL;
        pool->fn(pool->arg, w.thread, pool->n_threads);
        if (atomic_fetch_sub_explicit(&pool->n_left, 1, memory_order_acq_rel) == 1)
            futex_wake(&pool->n_left);
    }
}

enum status pool_create(int n_threads, struct pool **out, struct diag *diag)
{
    ASSERT(n_threads >= 1);
    struct pool *p = mem_alloc(sizeof(*p));
    p->n_threads = 1;
    p->threads = mem_alloc(sizeof(pthread_t) * (size_t)n_threads);
    for (int i = 1; i < n_threads; i++) {
        struct worker_arg *w = mem_alloc(sizeof(*w));
        *w = (struct worker_arg){p, i};
        int err = pthread_create(&p->threads[i], NULL, worker_main, w);
        if (err) {
            mem_free(w);
            pool_destroy(p);
            return diag_set(diag, ST_UNAVAILABLE,
                            "cannot start compute thread %d of %d: system says %s", i,
                            n_threads, strerror(err));
        }
        p->n_threads = i + 1;
    }
    *out = p;
    return ST_OK;
}

void pool_destroy(struct pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    futex_wake(&p->round);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    mem_free(p->threads);
    mem_free(p);
}

int pool_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_run(struct pool *p, pool_fn fn, void *arg)
{
    if (p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->n_left, (unsigned)p->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    futex_wake(&p->round);
    fn(arg, 0, p->n_threads);
    unsigned left;
    while ((left = atomic_load_explicit(&p->n_left, memory_order_acquire)) != 0)
        futex_wait_change(&p->n_left, left);
}

void pool_share(int64_t items, int64_t unit, int thread, int n_threads, int64_t *begin,
                int64_t *end)
{
    int64_t units = ceil_div_i64(items, unit);
    int64_t base = units / n_threads, extra = units % n_threads;
    int64_t first = base * thread + MIN(extra, thread);
    int64_t count = base + (thread < extra);
    *begin = MIN(first * unit, items);
    *end = MIN((first + count) * unit, items);
}

int pool_cpus_available(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return MAX(CPU_COUNT(&set), 1);
    return (int)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
}
