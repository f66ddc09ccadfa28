/* The memory that the ranks of one host share: who is there, who gave up, what groups
 * were opened, and the room for both the communicators' state and the ranks' buffers.
 * For communicators only (comm_shm, comm_mpi).
 *
 * A region belongs to threads of one process (private memory; every address can be read
 * by all) or to processes (a nameless file in memory: nothing is left behind however
 * they end). Other processes see it at another address, so it holds offsets.
 *
 * Waiting: a word that only grows, and a count of sleepers beside it. A waiter spins at
 * most 20 us, then sleeps in slices, and between slices looks for what ends the wait: a
 * rank that gave up, a process that died, the deadline. */
#ifndef PARALLEL_COMM_REGION_H
#define PARALLEL_COMM_REGION_H

#include <stdatomic.h>

#include "core/comm.h"

/* Groups that one rank can open as their first member, closed ones included. */
#define REGION_GROUPS_MAX 4096
#define STOP_TEXT_BYTES   768

/* A futex word that only grows, with those who sleep on it. */
struct region_word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
};

/* A group that its first member opened: the n-th with these members. */
struct region_entry {
    uint64_t members_hash;
    uint64_t ordinal;
    uint64_t offset;
};

enum rank_state {
    RANK_ABSENT, /* not there yet */
    RANK_JOINED,
    RANK_LEFT,
};

struct region_rank {
    struct region_word entries_posted;
    atomic_int pid;
    atomic_uint state; /* enum rank_state */
    int world_rank;
    struct region_entry entries[REGION_GROUPS_MAX];
};

/* At offset 0 of the memory. */
struct region_head {
    uint64_t magic;
    uint64_t bytes;
    int n_ranks;
    bool shared;                   /* between processes */
    atomic_int n_open;             /* threads: worlds that still use it */
    _Alignas(64) atomic_uint stop; /* 0, 1 being written, 2 written */
    int stop_rank;                 /* of the world; -1 for none in particular */
    char stop_text[STOP_TEXT_BYTES];
    _Alignas(64) atomic_ullong used_bytes;
    struct region_rank rank[];
};

struct region_range {
    int64_t offset, bytes;
};

/* One rank's end of the region. */
struct region {
    struct region_head *head;
    char *base;
    int me; /* this rank's place among those of the host */
    int fd; /* -1 for threads */
    int64_t spin_ns;
    int *pidfd;                 /* [n_ranks] of processes, -1 where there is none */
    struct region_range *freed; /* address ranges to use again */
    int n_freed, cap_freed;
    /* Of a world across hosts; NULL without. poll: called between slices of a wait, for
     * what else may end it; on_stop: by the rank that was the first to give up. */
    void (*poll)(void *arg);
    void (*on_stop)(void *arg);
    void *hook_arg;
};

/* Makes the region of n ranks with the given world ranks and joins none of them. out:
 * *head, at an address of this process; *fd, -1 for threads. errors: ST_NO_FIT. */
MUST_CHECK enum status region_create(int n_ranks, const int *world_rank, bool shared,
                                     struct region_head **head, int *fd,
                                     struct diag *diag);

/* Maps the region that process `pid` holds as its file descriptor `fd`. out: *head;
 * *own_fd, to be closed by region_leave. errors: ST_UNAVAILABLE where that process cannot
 * be reached. */
MUST_CHECK enum status region_map(int pid, int fd, struct region_head **head,
                                  int *own_fd, struct diag *diag);

/* Unmaps what was created or mapped and not joined. */
void region_drop(struct region_head *head, int fd);

/* Takes place `me`. ownership: *r holds the mapping and the fd until region_leave. */
void region_join(struct region *r, struct region_head *head, int fd, int me);
void region_leave(struct region *r);

/* Opens the processes of the others, so that their end is noticed. Call when all have
 * joined. */
void region_watch(struct region *r);

/* Room for state, zeroed, aligned to 64; offset 0 where there is no more. */
uint64_t region_take(struct region *r, uint64_t bytes, uint64_t align);

static inline void *region_at(const struct region *r, uint64_t offset)
{
    return r->base + offset;
}

/* What others can read `at` by: an offset (processes) or the address (threads). False
 * where they cannot. */
bool region_share(const struct region *r, const void *at, int64_t bytes, uint64_t *out);
void *region_shared(const struct region *r, uint64_t share);

/* Buffers of ranks, see comm_world_ops. */
void *region_alloc(struct region *r, int64_t bytes);
void region_release(struct region *r, void *at, int64_t bytes);

/* The first reason counts; later ones are dropped. */
void region_stop(struct region *r, int world_rank, const char *why);
bool region_is_stopped(const struct region *r);

/* "rank 5 gave up: why" into text; returns text. */
const char *region_stop_reason(const struct region *r, char *text, size_t n);

enum wait_end {
    WAIT_REACHED,
    WAIT_STOPPED,
    WAIT_DEADLINE,
    WAIT_DIED, /* a process; *died its place */
    WAIT_LEFT, /* a rank that is needed left; *died its place */
};

/* Waits until the word has reached `target` (modulo 2^32). in: needed(arg, place) says
 * whether the rank at a place is one waited for; NULL: none in particular. */
typedef bool (*region_needed_fn)(void *arg, int place);
enum wait_end region_wait(struct region *r, struct region_word *word, unsigned target,
                          double deadline_s, region_needed_fn needed, void *arg,
                          int *died);

static inline bool region_reached(unsigned value, unsigned target)
{
    return (int)(value - target) >= 0;
}

/* The place of a rank whose process ended without leaving, or -1. */
int region_find_dead(const struct region *r);

/* Wakes all sleepers of the word, if any. Call after the word has grown (seq_cst). */
void region_wake(struct region *r, struct region_word *word);

/* Nanoseconds of the monotonic clock. */
int64_t region_now_ns(void);

#endif
