/* What a member of a group calls, in a form that can be compared and printed: how all
 * communicators find calls that do not match. */
#ifndef PARALLEL_COMM_CALL_H
#define PARALLEL_COMM_CALL_H

#include "core/comm.h"
#include "core/str.h"

enum call_kind {
    CALL_NONE,
    CALL_BARRIER,
    CALL_ALL_REDUCE,
    CALL_ALL_GATHER,
    CALL_REDUCE_SCATTER,
    CALL_ALL_TO_ALL,
    CALL_BROADCAST,
    CALL_SEND,
    CALL_RECV,
    CALL_GROUP,
    CALL_KIND_COUNT
};

/* Plain bytes that other processes read: no pointers. */
struct call {
    uint16_t kind;   /* enum call_kind */
    uint16_t dtype;  /* enum dtype */
    uint16_t how;    /* enum comm_reduction */
    int16_t pad;     /* zero */
    int32_t root;    /* of a broadcast: member; of a message: the other's world rank */
    int32_t pad2;    /* zero */
    int64_t n;       /* elements of the buffer; of an all-to-all, those sent */
    uint64_t counts; /* hash of the counts that all members must give alike, or 0 */
};

/* Longest text of call_print, with its NUL. */
#define CALL_TEXT_BYTES 96

/* "all-reduce (sum) of 1024 f32" into text[CALL_TEXT_BYTES]; returns text. */
const char *call_print(const struct call *c, char *text);

/* "rank 5", "ranks 1, 5": appends the ranks that a message names, at most so many. */
#define CALL_RANKS_NAMED 16
void call_name_ranks(const int *rank, int n, struct str *out);

/* Whether two members' calls belong together: the same kind and arguments, but for the
 * elements of an all-to-all, which differ by member. */
bool call_matches(const struct call *a, const struct call *b);

/* A call over pieces: adds up count[n_members] into .n and hashes it into .counts. */
struct call call_of_pieces(enum call_kind kind, enum dtype dtype, const int64_t *count,
                           int n_members);

#endif
