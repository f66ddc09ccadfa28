/* Whether the ranks of a job fit together: what each one asks of the others, compared
 * before any of them runs.
 *
 * A rank's communication is a list of events, made by walking its program in the order of
 * its calls. Events of one stream run in sequence, and an event starts only when given
 * numbers of events of the other streams are done; all calls block, a send until it is
 * received (no buffering is counted on). A job is accepted when the members of every
 * group make the same collectives in the same order, sends and receives meet in order
 * with equal sizes, and everything ends.
 */
#ifndef PARALLEL_VERIFY_RANKS_H
#define PARALLEL_VERIFY_RANKS_H

#include "core/comm.h"
#include "core/vec.h"

#define RANK_STREAMS_MAX 8

enum comm_event_kind {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_SEND,
    COMM_RECV,
    COMM_EVENT_KINDS
};

/* One communication op of a rank's program. */
struct comm_event {
    uint8_t kind;      /* enum comm_event_kind */
    uint8_t dtype;     /* enum dtype */
    uint8_t reduction; /* enum comm_reduction; of reductions */
    uint8_t stream;
    uint32_t group; /* the job's group */
    int32_t peer;   /* member: other end of send and recv, root of broadcast; else -1 */
    uint32_t call;  /* where in the program, for messages */
    uint32_t op;
    /* Elements of the message or the whole buffer: the same for all members. */
    int64_t count;
    /* Events of each stream that are done before this one starts; rank_events_add fills
     * it. */
    uint32_t after[RANK_STREAMS_MAX];
};

struct rank_clock {
    uint32_t done[RANK_STREAMS_MAX];
};

/* The events of one rank, and what its streams know of each other so far. Zero-initialise;
 * rank_events_free releases it. */
struct rank_events {
    VEC(struct comm_event) events;
    struct rank_clock stream[RANK_STREAMS_MAX];
    VEC(struct rank_clock) signals; /* by event id of the program */
};

/* Walking a program: for each op in order, a wait for each event it waits for, then an add
 * if it communicates, then a signal if it signals. A wait before the first signal of its id
 * waits for nothing, as in core/order.h. */
void rank_events_wait(struct rank_events *r, uint32_t stream, uint32_t signal);
void rank_events_add(struct rank_events *r, const struct comm_event *event);
void rank_events_signal(struct rank_events *r, uint32_t stream, uint32_t signal);
void rank_events_free(struct rank_events *r);

/* A group of the job: its members are world ranks in logical order. */
struct event_group {
    const char *name; /* "tensor group 3" */
    const int *members;
    int n;
};

/* Checks all ranks of a job. in: ranks[n_ranks], groups[n_groups]. errors: ST_INTERNAL for
 * events out of range, a group used from two streams, collectives that differ, messages
 * that do not meet, and waits that never end; the text names the ranks, the group, the
 * position and both sides. */
MUST_CHECK enum status verify_ranks(const struct rank_events *ranks, int n_ranks,
                                    const struct event_group *groups, int n_groups,
                                    struct diag *diag);

/* Hashes that stand for a rank's part of the first two rules, so that ranks that know only
 * their own program can compare. Collectives: equal on all members of the group. */
uint64_t rank_events_hash(const struct rank_events *r, uint32_t group);

/* Messages: that of the sender (COMM_SEND, peer the receiver) equals that of the receiver
 * (COMM_RECV, peer the sender). */
uint64_t rank_events_hash_messages(const struct rank_events *r, uint32_t group,
                                   enum comm_event_kind kind, int32_t peer);

/* "all-reduce"; and an event in words, "all-reduce (sum) of 64 f32". peer: world rank of
 * the other end or the root, if the kind has one. buf[n]. */
const char *comm_event_kind_name(enum comm_event_kind kind);
const char *comm_event_words(const struct comm_event *e, int peer, char *buf, size_t n);

#endif
