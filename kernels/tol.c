#include "kernels/tol.h"

#include <math.h>

#define ACC_FACTOR 8

double dtype_eps(enum dtype t)
{
    static const int bits[DT_COUNT] = {[DT_F32] = 23, [DT_BF16] = 7, [DT_F64] = 52};
    ASSERT(t < DT_COUNT);
    return dtype_is_float(t) ? ldexp(1, -bits[t]) : 0;
}

struct tol tol_of(enum tol_class cls, enum dtype out, enum dtype acc,
                  int64_t reduce_len)
{
    if (cls == TOL_EXACT)
        return (struct tol){0, 0};
    double n = cls == TOL_REDUCE ? (double)MAX(reduce_len, 1) : 1;
    return (struct tol){2 * dtype_eps(out), ACC_FACTOR * dtype_eps(acc) * sqrt(n)};
}
