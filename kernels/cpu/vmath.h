/* exp, tanh and the normal distribution for sixteen floats. The polynomials are weighted
 * minimax fits to the functions in double, rounded to float; t_vmath prints the largest
 * error of each against the C library (one to two units in the last place, four in the
 * tail of the distribution). */
#ifndef KERNELS_CPU_VMATH_H
#define KERNELS_CPU_VMATH_H

#include "kernels/cpu/simd16.h"

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
VF_INLINE struct vf vf_poly(struct vf x, const float *c, int n)
{
    struct vf r = vf_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--)
        r = vf_fma(r, x, vf_set1(c[i]));
    return r;
}

/* e^x: x = n ln2 + r with |r| <= ln2/2, e^r = 1 + r + r^2 q(r). Underflows to 0 and
 * overflows to infinity; NaN stays. */
VF_INLINE struct vf vf_exp(struct vf x)
{
    static const float q[] = {0.49999994f, 0.1666652f, 0.041668408f, 0.008368899f,
                              0.0013814219f};
    x = vf_max(vf_set1(-105.0f), vf_min(vf_set1(90.0f), x));
    struct vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    /* ln2 in two parts: the first has few bits, so that n times it is exact. */
    struct vf r = vf_fnma(n, vf_set1(0.693145752f), x);
    r = vf_fnma(n, vf_set1(1.42860677e-6f), r);
    struct vf tail = vf_fma(vf_mul(r, r), vf_poly(r, q, 5), r);
    return vf_scale2(vf_add(tail, vf_set1(1)), n);
}

/* tanh: x + x^3 p(x^2) near zero, 1 - 2/(e^2|x| + 1) elsewhere. */
VF_INLINE struct vf vf_tanh(struct vf x)
{
    static const float p[] = {-0.3333328f, 0.13331442f, -0.053739596f, 0.020638688f,
                              -0.005704522f};
    struct vf a = vf_abs(x), s = vf_mul(x, x);
    struct vf near = vf_fma(vf_mul(x, s), vf_poly(s, p, 5), x);
    struct vf e = vf_add(vf_exp(vf_add(a, a)), vf_set1(1));
    struct vf far = vf_copysign(vf_sub(vf_set1(1), vf_div(vf_set1(2), e)), x);
    return vf_select_lt(a, vf_set1(0.625f), near, far);
}

/* 1 / (1 + e^-x); *other is 1 / (1 + e^x), without cancellation. */
VF_INLINE struct vf vf_sigmoid(struct vf x, struct vf *other)
{
    struct vf e = vf_exp(vf_sub(vf_set1(0), x));
    struct vf s = vf_div(vf_set1(1), vf_add(vf_set1(1), e));
    *other = vf_mul(vf_min(vf_set1(3e38f), e), s);
    return s;
}

/* The normal distribution function: near zero 0.5 + x q(x^2); elsewhere half of erfc(z),
 * z = |x|/sqrt 2, or one minus it, with erfc(z) = e^(-z^2) g(s) / (1 + 2z),
 * s = (z - 3)/(z + 3). *density is the normal density times sqrt(2 pi), e^(-x^2/2). */
VF_INLINE struct vf vf_normal(struct vf x, struct vf *density)
{
    static const float g[] = {1.253008f,       -0.13562115f,   -0.04756241f,
                              0.12964644f,     -0.119270794f,  0.06829575f,
                              -0.023798538f,   0.0025665616f,  0.0020033522f,
                              -0.00077511923f, -0.00026718012f};
    static const float q[] = {0.3989423f,   -0.06649036f,   0.009973323f,
                              -0.00118633f, 0.00011348637f, -7.654207e-06f};
    struct vf a = vf_min(vf_set1(20.0f), vf_abs(x));
    /* x^2/2 with its rounding error, which e^.. would magnify. */
    struct vf half = vf_mul(a, vf_set1(0.5f)), sq = vf_mul(half, a);
    struct vf lost = vf_mul_rest(half, a, sq);
    struct vf e = vf_exp(vf_sub(vf_set1(0), sq));
    e = vf_fnma(e, lost, e);
    *density = e;
    struct vf z = vf_mul(a, vf_set1(0.707106781f));
    struct vf s = vf_div(vf_sub(z, vf_set1(3)), vf_add(z, vf_set1(3)));
    struct vf tail = vf_div(vf_poly(s, g, 11), vf_fma(z, vf_set1(2), vf_set1(1)));
    tail = vf_mul(vf_mul(tail, vf_set1(0.5f)), e);
    struct vf far = vf_select_lt(x, vf_set1(0), tail, vf_sub(vf_set1(1), tail));
    struct vf near = vf_fma(x, vf_poly(vf_mul(x, x), q, 6), vf_set1(0.5f));
    return vf_select_lt(a, vf_set1(1), near, far);
}

#endif
