/* Lifetimes: when the bytes of every storage copy are in use.
 *
 * An occurrence is one stretch from the first write to the last use of what was written.
 * A storage copy has several when the schedule runs its segment several times. Lifetimes
 * are compared by vector clocks (core/order.h), never by op index.
 */
#ifndef MEMORY_LIVE_H
#define MEMORY_LIVE_H

#include "core/flow.h"

/* One stretch of use. `clock` indexes live.clocks: n_streams entries of what is surely
 * done before its first access, then n_streams entries of its last access (sequence
 * number on each stream, 0: none). */
struct live_occurrence {
    uint32_t first; /* instance of the first write */
    uint32_t last;  /* instance of the last access */
    uint32_t clock;
};

/* The occurrences of one storage copy, in order: live.occ[occ_begin..occ_end). */
struct live_copy {
    uint32_t storage;
    uint32_t copy;
    uint32_t occ_begin;
    uint32_t occ_end;
};

/* Owns its arrays; live_free releases them. */
struct live {
    uint32_t n_streams;
    uint32_t n_copies; /* as many as the program's offsets, in that order */
    struct live_copy *copies;
    VEC(struct live_occurrence) occ;
    VEC(uint32_t) clocks;
};

/* Finds the lifetimes of all transient storages. in: a verified program and its order.
 * Persistent storages have no occurrences: they are always in use. */
void live_build(struct live *l, const struct program *p, const struct order *o);
void live_free(struct live *l);

/* Whether two storage copies are never in use at the same time: every occurrence of one
 * is over before, or starts after, every occurrence of the other. */
bool live_disjoint(const struct live *l, uint32_t a, uint32_t b);

#endif
