/* 64-bit hashing of bytes (xxHash's XXH3-64) for fingerprints and integrity checks. */
#ifndef CORE_HASH_H
#define CORE_HASH_H

#include "core/base.h"

uint64_t hash64(const void *data, size_t bytes);
uint64_t hash64_text(const char *s);

/* A running hash over pieces; zero-initialise, add, then read. Equal sequences of pieces
 * give equal values; the same bytes cut differently do not. */
struct hash_chain {
    uint64_t value;
};
void hash_chain_add(struct hash_chain *h, const void *data, size_t bytes);

/* XXH3-128 of a stream of pieces: the value of hash128 over all of them in a row.
 * ownership: hash128_end frees the state. */
struct hash128_state;
struct hash128_state *hash128_begin(void);
void hash128_add(struct hash128_state *s, const void *data, size_t bytes);
void hash128_end(struct hash128_state *s, uint64_t out[2]);

/* XXH3-128 as two little-endian halves: out[0] low, out[1] high. */
void hash128(const void *data, size_t bytes, uint64_t out[2]);

#endif
