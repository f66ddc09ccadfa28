/* All calls of a communicator against plain loops, run by every rank of a world, however
 * the ranks are connected. A wrong result aborts with a line on stderr. */
#ifndef TESTS_LIB_COMM_SUITE_H
#define TESTS_LIB_COMM_SUITE_H

#include "core/comm.h"

enum suite_memory {
    SUITE_PRIVATE, /* buffers that other processes cannot read */
    SUITE_SHARED,  /* from world->alloc */
    SUITE_MIXED,   /* even ranks shared, odd ones private */
};

/* Runs everything on groups of all ranks, in both orders, of some and of pairs. in:
 * largest, the elements of the longest buffers. Returns a hash of every result of this
 * rank, equal under every implementation; of a world of any order sums are compared with
 * the limits of rounding, and hashed as they are in order. */
uint64_t comm_suite(struct comm_world *w, enum suite_memory memory, int64_t largest);

/* Runs fn(world[i], i, arg) on a thread of its own for each of n ranks and closes the
 * worlds. */
typedef void (*rank_fn)(struct comm_world *w, int rank, void *arg);
void comm_on_threads(int n, rank_fn fn, void *arg);

/* Aborts with file, line and diagnostic unless the condition holds: for ranks on threads
 * and in processes, where a failed assertion of cmocka cannot be told. */
#define SUITE_CHECK(cond, diag) suite_check((cond), #cond, __FILE__, __LINE__, (diag))
void suite_check(bool ok, const char *what, const char *file, int line,
                 const struct diag *diag);

#endif
