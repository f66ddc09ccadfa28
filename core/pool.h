/* A small pool of compute threads that belongs to one rank.
 *
 * pool_run hands the same function to every thread with its index; shares are static
 * (pool_share), so what a thread does never depends on timing. The caller is thread 0.
 * Waiting spins at most 20 us, then sleeps. Results must not depend on n_threads.
 */
#ifndef CORE_POOL_H
#define CORE_POOL_H

#include "core/status.h"

struct pool;

typedef void (*pool_fn)(void *arg, int thread, int n_threads);

/* in: n_threads >= 1. errors: ST_UNAVAILABLE when a thread cannot be started. */
MUST_CHECK enum status pool_create(int n_threads, struct pool **out, struct diag *diag);
void pool_destroy(struct pool *p);
int pool_threads(const struct pool *p);

/* Runs fn(arg, i, n) for every i and returns when all are done. threads: one caller at a
 * time; not from inside fn. */
void pool_run(struct pool *p, pool_fn fn, void *arg);

/* The half-open share [*begin, *end) of thread i out of n over `items` items, in units
 * of `unit` items (all but the last share are multiples of it). */
void pool_share(int64_t items, int64_t unit, int thread, int n_threads, int64_t *begin,
                int64_t *end);

/* Processors this process may use. */
int pool_cpus_available(void);

#endif
