/* A keyed bijection on 0..n-1 in constant memory: the shuffle of an epoch.
 *
 * A balanced Feistel network of six rounds, whose round function is Philox 4x32-10, on
 * the smallest even number of bits that holds n; results outside 0..n-1 are mapped again
 * until they fall inside (fewer than four times on average).
 * source: Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom
 * Functions", 1988; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002
 * (cycle walking).
 */
#ifndef IO_FEISTEL_H
#define IO_FEISTEL_H

#include "core/base.h"

struct feistel {
    int64_t n;
    int half_bits;
    uint32_t key[2];
};

/* The bijection of (seed, stream, epoch). in: n >= 1. */
struct feistel feistel_make(int64_t n, uint64_t seed, uint64_t stream, int64_t epoch);

/* The image of i. in: 0 <= i < n. */
int64_t feistel_map(const struct feistel *f, int64_t i);

#endif
