/* Counter-based random numbers: Philox 4x32-10.
 *
 * Every random number is a pure function of (seed, what, element): no state is carried
 * or saved, and any rank can make its own part of a tensor.
 * source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
 */
#ifndef CORE_RNG_H
#define CORE_RNG_H

#include "core/base.h"

/* The Philox 4x32 block function with ten rounds. */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Element `index` (0..) of the stream (seed, what): 64 uniform bits. */
uint64_t rng_u64(uint64_t seed, uint64_t what, uint64_t index);

/* n standard normals for elements first..first+n-1 of the stream (seed, what), by
 * Box-Muller in double, rounded to float. Element i depends only on (seed, what, i). */
void rng_normal(uint64_t seed, uint64_t what, int64_t first, int64_t n, float *out);

#endif
