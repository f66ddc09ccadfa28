#include "io/feistel.h"

#include "core/rng.h"

#define ROUNDS 6

struct feistel feistel_make(int64_t n, uint64_t seed, uint64_t stream, int64_t epoch)
{
    ASSERT(n >= 1 && epoch >= 0);
    struct feistel f = {.n = n, .half_bits = 1};
    while (f.half_bits < 31 && (int64_t)1 << (2 * f.half_bits) < n)
        f.half_bits++;
    if (f.half_bits == 31 && (int64_t)1 << 62 < n)
        f.half_bits = 32;
    uint64_t key = rng_u64(seed, stream, (uint64_t)epoch);
    f.key[0] = (uint32_t)key;
    f.key[1] = (uint32_t)(key >> 32);
    return f;
}

static uint64_t permute(const struct feistel *f, uint64_t x)
{
    uint32_t mask = (uint32_t)(((uint64_t)1 << f->half_bits) - 1);
    uint32_t left = (uint32_t)(x >> f->half_bits), right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t counter[4] = {right, round, (uint32_t)f->n,
                               (uint32_t)((uint64_t)f->n >> 32)};
        uint32_t random[4];
        philox4x32(counter, f->key, random);
        uint32_t next = left ^ (random[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << f->half_bits | right;
}

int64_t feistel_map(const struct feistel *f, int64_t i)
{
    ASSERT(i >= 0 && i < f->n);
    uint64_t x = (uint64_t)i;
    do
        x = permute(f, x);
    while (x >= (uint64_t)f->n);
    return (int64_t)x;
}
