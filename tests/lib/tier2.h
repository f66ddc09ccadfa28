/* The distance of two sets of gradients, as tier 2 of the equality contract measures it:
 *
 *     d = ||a - b|| / max(||b||, 1e-3 * ||G|| * sqrt(n / N))
 *
 * for one tensor of n elements, a the result and b the reference, where G is all reference
 * gradients together and N their elements. */
#ifndef TESTS_LIB_TIER2_H
#define TESTS_LIB_TIER2_H

#include "core/base.h"

/* ||G|| squared and N, summed over the tensors of a reference. Zero-initialise. */
struct tier2 {
    double norm_sq;
    int64_t n_elems;
};

void tier2_add(struct tier2 *t, const float *want, int64_t n);

/* The distance of one tensor. Infinite when anything on either side is not finite, when
 * there is nothing to compare, and when the whole reference is zero: such a comparison
 * proves nothing. */
double tier2_distance(const struct tier2 *t, const float *got, const float *want,
                      int64_t n);

#endif
