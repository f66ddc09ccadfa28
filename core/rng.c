#include "core/rng.h"

#include <math.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define ROUNDS    10

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Block `block` of the stream: 128 bits. `what` and the seed share key and counter. */
static void stream_block(uint64_t seed, uint64_t what, uint64_t block, uint32_t out[4])
{
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)what,
                           (uint32_t)(what >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    philox4x32(counter, key, out);
}

uint64_t rng_u64(uint64_t seed, uint64_t what, uint64_t index)
{
    uint32_t r[4];
    stream_block(seed, what, index / 2, r);
    uint32_t h = (uint32_t)(index % 2) * 2;
    return (uint64_t)r[h + 1] << 32 | r[h];
}

/* Four normals of one block. Uniforms lie strictly between 0 and 1. */
static void block_normals(uint64_t seed, uint64_t what, uint64_t block, double out[4])
{
    const double two_pi = 6.283185307179586476925;
    uint32_t r[4];
    stream_block(seed, what, block, r);
    for (int p = 0; p < 2; p++) {
        double u = ((double)r[2 * p] + 0.5) * 0x1p-32;
        double v = ((double)r[2 * p + 1] + 0.5) * 0x1p-32;
        double radius = sqrt(-2.0 * log(u));
        out[2 * p] = radius * cos(two_pi * v);
        out[2 * p + 1] = radius * sin(two_pi * v);
    }
}

void rng_normal(uint64_t seed, uint64_t what, int64_t first, int64_t n, float *out)
{
    int64_t i = 0;
    while (i < n) {
        int64_t e = first + i;
        double z[4];
        block_normals(seed, what, (uint64_t)(e / 4), z);
        for (int64_t lane = e % 4; lane < 4 && i < n; lane++, i++)
            out[i] = (float)z[lane];
    }
}
