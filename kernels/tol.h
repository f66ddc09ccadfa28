/* How near two implementations of an op must be.
 *
 * The limit of one element is   rel * |reference| + abs * scale,   where scale is the root
 * mean square of the reference's finite elements.
 *
 *   rel  two units in the last place of the output's dtype: each side rounds its own
 *        nearly exact result, which can put them one unit apart, and a bf16 operand is
 *        never rounded a second time inside an op;
 *   abs  the rounding of the accumulation, which is relative to the terms and not to a
 *        result in which they may have cancelled. A sum of n terms of similar size has
 *        n running sums of root mean square sqrt(k), k = 1..n, each rounded within half
 *        a unit: as a random walk the error is about eps * sqrt(n)/3 of the result's
 *        root mean square, for positive terms as well as for terms of random sign. A
 *        factor of 8 covers the largest of many elements and a few roundings per term.
 *        Element-wise ops take n = 1.
 *   source: Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis",
 *   SIAM J. Sci. Comput. 41 (2019), theorem 2.4 (errors grow with the square root of n).
 */
#ifndef KERNELS_TOL_H
#define KERNELS_TOL_H

#include "core/op.h"

struct tol {
    double rel; /* of the element */
    double abs; /* of the reference's root mean square */
};

/* Distance from 1 to the next larger number: 2^-23, 2^-7, 2^-52; 0 for integers. */
double dtype_eps(enum dtype t);

/* The tolerance of an output of dtype `out` whose op accumulates `reduce_len` terms in
 * `acc` (f32, or f64 for f64 operands). */
struct tol tol_of(enum tol_class cls, enum dtype out, enum dtype acc,
                  int64_t reduce_len);

#endif
