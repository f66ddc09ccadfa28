/* Communicators: what one rank asks of the others.
 *
 * A `comm_world` connects all ranks of a job, a `comm` is one rank's end of a group of
 * them. Implementations: self (one rank), shared memory (ranks that are threads of one
 * process, or processes of one host) and Open MPI (across hosts).
 *
 * The members of a group are in logical order. Sums add in that order, in f32 for f32 and
 * bf16 (rounded to bf16 once, at the end), in f64 for f64, so that they are equal bit for
 * bit on every member, in every run and under every implementation; but for groups that
 * were opened with `any_order`.
 *
 * All calls block until the caller's buffers are done with. One thread at a time may use
 * a group, but for send and recv, where one thread may send while another receives.
 * Different groups are independent, also those of the same members.
 *
 * Every wait has a deadline. When it passes, or when another rank gave up, the call
 * returns ST_STOPPED with a diagnostic that names the call, the group and the member
 * that did not arrive; afterwards every call of the world fails at once.
 */
#ifndef CORE_COMM_H
#define CORE_COMM_H

#include "core/dtype.h"
#include "core/status.h"

enum comm_reduction {
    COMM_SUM, /* f32, bf16, f64, i32 */
    COMM_MAX, /* f32, f64, i32; NaN wins */
};

struct comm;

/* Buffers are contiguous. `count` has one entry per member, in elements, and may hold
 * zeros; `n` is in elements. */
struct comm_ops {
    /* buf[n] of every member becomes the sum or maximum. */
    enum status (*all_reduce)(struct comm *c, void *buf, int64_t n, enum dtype dtype,
                              enum comm_reduction how, struct diag *diag);
    /* dst = the members' pieces, one behind the other; src[count[rank]] may be its own
     * place in dst. */
    enum status (*all_gather)(struct comm *c, const void *src, void *dst,
                              const int64_t *count, enum dtype dtype,
                              struct diag *diag);
    /* dst[count[rank]] = the sum of the members' piece `rank` of src (of as many elements
     * as all counts together); dst may be that place in src. */
    enum status (*reduce_scatter)(struct comm *c, const void *src, void *dst,
                                  const int64_t *count, enum dtype dtype,
                                  struct diag *diag);
    /* Piece i of src goes to member i; dst gets the members' pieces in order. send_count
     * and recv_count: elements to and from each member. src and dst do not overlap. */
    enum status (*all_to_all)(struct comm *c, const void *src,
                              const int64_t *send_count, void *dst,
                              const int64_t *recv_count, enum dtype dtype,
                              struct diag *diag);
    enum status (*broadcast)(struct comm *c, void *buf, int64_t n, enum dtype dtype,
                             int root, struct diag *diag);
    /* Messages between two members arrive in the order of sending; their sizes must
     * agree (checked). */
    enum status (*send)(struct comm *c, const void *buf, int64_t n, enum dtype dtype,
                        int to, struct diag *diag);
    enum status (*recv)(struct comm *c, void *buf, int64_t n, enum dtype dtype,
                        int from, struct diag *diag);
    enum status (*barrier)(struct comm *c, struct diag *diag);
    void (*close)(struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    const char *name; /* in messages: "tensor group 3" */
    int rank;         /* this rank's place in the group */
    int size;
};

struct comm_world;

struct comm_world_ops {
    /* A group of the given world ranks, in logical order; this rank is one of them. All
     * members call it with the same arguments, in the same order as other groups that
     * share a member. The group owns a copy of the name. */
    enum status (*group)(struct comm_world *w, const int *members, int n,
                         const char *name, struct comm **out, struct diag *diag);
    /* Memory that ranks of this host can read directly, zeroed; NULL where that cannot
     * be had. Reductions of buffers in it copy less; others work too. */
    void *(*alloc)(struct comm_world *w, int64_t bytes);
    void (*release)(struct comm_world *w, void *at, int64_t bytes);
    /* Tells all ranks that this one gives up: their waits end with ST_STOPPED and the
     * reason. May be called from any thread. */
    void (*give_up)(struct comm_world *w, const char *why);
    /* Leaves the world. Waits for nobody; but MPI ends only when all ranks do, unless one
     * gave up. */
    void (*close)(struct comm_world *w);
};

struct comm_world {
    const struct comm_world_ops *ops;
    int rank;
    int size;
    double deadline_s; /* of one wait; may be changed between calls; 0: none */
    bool any_order; /* groups opened from now on may add in another order, where that is
                       faster: those across hosts */
};

#endif
