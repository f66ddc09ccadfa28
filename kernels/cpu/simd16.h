/* Sixteen floats as one register, for AVX-512, AVX2 or any other processor: the tuned
 * kernels are written once with these and compiled for each instruction set. Lane sums
 * are in a fixed order, so AVX-512 and AVX2 (which both fuse multiply-add) give the same
 * bits; the portable form rounds the product and differs in the last place.
 *
 * Loads and stores take element index i of an array of dtype t (f32 or bf16) and the
 * number k of lanes in use, 1..16; unused lanes are zero. With constants for t and k the
 * branches fold away.
 */
#ifndef KERNELS_CPU_SIMD16_H
#define KERNELS_CPU_SIMD16_H

#include <math.h>
#include <string.h>

#include "core/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define VF_LANES  16
#define VF_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__)

struct vf {
    __m512 v;
};

VF_INLINE struct vf vf_set1(float x)
{
    return (struct vf){_mm512_set1_ps(x)};
}

VF_INLINE struct vf vf_load(const void *p, int64_t i, int k, enum dtype t)
{
    __mmask16 m = (__mmask16)(0xffffu >> (VF_LANES - k));
    if (t == DT_F32) {
        const float *f = (const float *)p + i;
        return (struct vf){k == VF_LANES ? _mm512_loadu_ps(f)
                                         : _mm512_maskz_loadu_ps(m, f)};
    }
    const uint16_t *h = (const uint16_t *)p + i;
    __m256i x = k == VF_LANES ? _mm256_loadu_si256((const void *)h)
                              : _mm256_maskz_loadu_epi16(m, h);
    return (struct vf){
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}

VF_INLINE void vf_store(void *p, int64_t i, int k, enum dtype t, struct vf x)
{
    __mmask16 m = (__mmask16)(0xffffu >> (VF_LANES - k));
    if (t == DT_F32) {
        float *f = (float *)p + i;
        if (k == VF_LANES)
            _mm512_storeu_ps(f, x.v);
        else
            _mm512_mask_storeu_ps(f, m, x.v);
        return;
    }
    __m512i u = _mm512_castps_si512(x.v), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    r = _mm512_srli_epi32(r, 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, high, _mm512_set1_epi32(0x40));
    __m256i h = _mm512_cvtepi32_epi16(r);
    uint16_t *out = (uint16_t *)p + i;
    if (k == VF_LANES)
        _mm256_storeu_si256((void *)out, h);
    else
        _mm256_mask_storeu_epi16(out, m, h);
}

VF_INLINE struct vf vf_add(struct vf a, struct vf b)
{
    return (struct vf){_mm512_add_ps(a.v, b.v)};
}

VF_INLINE struct vf vf_sub(struct vf a, struct vf b)
{
    return (struct vf){_mm512_sub_ps(a.v, b.v)};
}

VF_INLINE struct vf vf_mul(struct vf a, struct vf b)
{
    return (struct vf){_mm512_mul_ps(a.v, b.v)};
}

VF_INLINE struct vf vf_div(struct vf a, struct vf b)
{
    return (struct vf){_mm512_div_ps(a.v, b.v)};
}

/* a*b + c */
VF_INLINE struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}

/* c - a*b */
VF_INLINE struct vf vf_fnma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fnmadd_ps(a.v, b.v, c.v)};
}

/* The smaller (larger); b where either is NaN. */
VF_INLINE struct vf vf_min(struct vf a, struct vf b)
{
    return (struct vf){_mm512_min_ps(a.v, b.v)};
}

VF_INLINE struct vf vf_max(struct vf a, struct vf b)
{
    return (struct vf){_mm512_max_ps(a.v, b.v)};
}

VF_INLINE struct vf vf_sqrt(struct vf a)
{
    return (struct vf){_mm512_sqrt_ps(a.v)};
}

/* To the nearest integer, ties to even. */
VF_INLINE struct vf vf_round(struct vf a)
{
    return (struct vf){_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)};
}

VF_INLINE struct vf vf_abs(struct vf a)
{
    return (struct vf){_mm512_abs_ps(a.v)};
}

/* The magnitude of a with the sign of s; a is not negative. */
VF_INLINE struct vf vf_copysign(struct vf a, struct vf s)
{
    __m512i sign =
            _mm512_and_si512(_mm512_castps_si512(s.v), _mm512_set1_epi32(INT32_MIN));
    return (struct vf){
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a.v), sign))};
}

/* Lane by lane a < b ? x : y. */
VF_INLINE struct vf vf_select_lt(struct vf a, struct vf b, struct vf x, struct vf y)
{
    return (struct vf){
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

/* x * 2^n, rounded once; n is whole. */
VF_INLINE struct vf vf_scale2(struct vf x, struct vf n)
{
    return (struct vf){_mm512_scalef_ps(x.v, n.v)};
}

VF_INLINE __m256 vf_low_(struct vf a)
{
    return _mm512_castps512_ps256(a.v);
}

VF_INLINE __m256 vf_high_(struct vf a)
{
    return _mm512_extractf32x8_ps(a.v, 1);
}

/* Sixteen running sums in double. */
struct vd {
    __m512d lo, hi;
};

VF_INLINE struct vd vd_zero(void)
{
    return (struct vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

/* acc + x^2: the square of a float is exact in double. */
VF_INLINE struct vd vd_add_square(struct vd acc, struct vf x)
{
    __m512d lo = _mm512_cvtps_pd(vf_low_(x)), hi = _mm512_cvtps_pd(vf_high_(x));
    return (struct vd){_mm512_fmadd_pd(lo, lo, acc.lo),
                       _mm512_fmadd_pd(hi, hi, acc.hi)};
}

VF_INLINE struct vd vd_add(struct vd acc, struct vf x)
{
    return (struct vd){_mm512_add_pd(acc.lo, _mm512_cvtps_pd(vf_low_(x))),
                       _mm512_add_pd(acc.hi, _mm512_cvtps_pd(vf_high_(x)))};
}

VF_INLINE void vd_store(double *out, struct vd x)
{
    _mm512_storeu_pd(out, x.lo);
    _mm512_storeu_pd(out + 8, x.hi);
}

#elif defined(__AVX2__) && defined(__FMA__)

struct vf {
    __m256 lo, hi;
};

VF_INLINE struct vf vf_set1(float x)
{
    return (struct vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

VF_INLINE __m256 vf_widen_(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

VF_INLINE struct vf vf_load(const void *p, int64_t i, int k, enum dtype t)
{
    float part[VF_LANES];
    uint16_t part16[VF_LANES];
    if (t == DT_F32) {
        const float *f = (const float *)p + i;
        if (k != VF_LANES) {
            memset(part, 0, sizeof(part));
            memcpy(part, f, (size_t)k * 4);
            f = part;
        }
        return (struct vf){_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
    }
    const uint16_t *h = (const uint16_t *)p + i;
    if (k != VF_LANES) {
        memset(part16, 0, sizeof(part16));
        memcpy(part16, h, (size_t)k * 2);
        h = part16;
    }
    return (struct vf){vf_widen_(_mm_loadu_si128((const void *)h)),
                       vf_widen_(_mm_loadu_si128((const void *)(h + 8)))};
}

VF_INLINE __m256i vf_narrow_(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    r = _mm256_srli_epi32(r, 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

VF_INLINE void vf_store(void *p, int64_t i, int k, enum dtype t, struct vf x)
{
    float part[VF_LANES];
    uint16_t part16[VF_LANES];
    if (t == DT_F32) {
        float *f = (float *)p + i, *to = k == VF_LANES ? f : part;
        _mm256_storeu_ps(to, x.lo);
        _mm256_storeu_ps(to + 8, x.hi);
        if (k != VF_LANES)
            memcpy(f, part, (size_t)k * 4);
        return;
    }
    uint16_t *h = (uint16_t *)p + i, *to = k == VF_LANES ? h : part16;
    __m256i packed = _mm256_packus_epi32(vf_narrow_(x.lo), vf_narrow_(x.hi));
    _mm256_storeu_si256((void *)to, _mm256_permute4x64_epi64(packed, 0xd8));
    if (k != VF_LANES)
        memcpy(h, part16, (size_t)k * 2);
}

VF_INLINE struct vf vf_add(struct vf a, struct vf b)
{
    return (struct vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_sub(struct vf a, struct vf b)
{
    return (struct vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_mul(struct vf a, struct vf b)
{
    return (struct vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_div(struct vf a, struct vf b)
{
    return (struct vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo),
                       _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

VF_INLINE struct vf vf_fnma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm256_fnmadd_ps(a.lo, b.lo, c.lo),
                       _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}

VF_INLINE struct vf vf_min(struct vf a, struct vf b)
{
    return (struct vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_max(struct vf a, struct vf b)
{
    return (struct vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

VF_INLINE struct vf vf_sqrt(struct vf a)
{
    return (struct vf){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}

VF_INLINE struct vf vf_round(struct vf a)
{
    return (struct vf){
            _mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

VF_INLINE struct vf vf_abs(struct vf a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (struct vf){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

VF_INLINE struct vf vf_copysign(struct vf a, struct vf s)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (struct vf){_mm256_or_ps(a.lo, _mm256_and_ps(sign, s.lo)),
                       _mm256_or_ps(a.hi, _mm256_and_ps(sign, s.hi))};
}

VF_INLINE struct vf vf_select_lt(struct vf a, struct vf b, struct vf x, struct vf y)
{
    return (struct vf){
            _mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

VF_INLINE __m256 vf_power2_(__m256i n)
{
    return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* In two factors, since 2^n itself may leave the range; |n| <= 252. */
VF_INLINE __m256 vf_scale2_half_(__m256 x, __m256 n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    x = _mm256_mul_ps(x, vf_power2_(half));
    return _mm256_mul_ps(x, vf_power2_(_mm256_sub_epi32(i, half)));
}

VF_INLINE struct vf vf_scale2(struct vf x, struct vf n)
{
    return (struct vf){vf_scale2_half_(x.lo, n.lo), vf_scale2_half_(x.hi, n.hi)};
}

VF_INLINE __m256 vf_low_(struct vf a)
{
    return a.lo;
}

VF_INLINE __m256 vf_high_(struct vf a)
{
    return a.hi;
}

struct vd {
    __m256d v[4];
};

VF_INLINE struct vd vd_zero(void)
{
    __m256d z = _mm256_setzero_pd();
    return (struct vd){{z, z, z, z}};
}

VF_INLINE struct vd vd_add_square(struct vd acc, struct vf x)
{
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1));
    __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi));
    __m256d d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1));
    return (struct vd){
            {_mm256_fmadd_pd(a, a, acc.v[0]), _mm256_fmadd_pd(b, b, acc.v[1]),
             _mm256_fmadd_pd(c, c, acc.v[2]), _mm256_fmadd_pd(d, d, acc.v[3])}};
}

VF_INLINE struct vd vd_add(struct vd acc, struct vf x)
{
    __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.lo));
    __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.lo, 1));
    __m256d c = _mm256_cvtps_pd(_mm256_castps256_ps128(x.hi));
    __m256d d = _mm256_cvtps_pd(_mm256_extractf128_ps(x.hi, 1));
    return (struct vd){{_mm256_add_pd(acc.v[0], a), _mm256_add_pd(acc.v[1], b),
                        _mm256_add_pd(acc.v[2], c), _mm256_add_pd(acc.v[3], d)}};
}

VF_INLINE void vd_store(double *out, struct vd x)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(out + 4 * i, x.v[i]);
}

#else

struct vf {
    float v[VF_LANES];
};

#define VF_MAP_(expr)                                                                  \
    struct vf r;                                                                       \
    for (int j = 0; j < VF_LANES; j++)                                                 \
        r.v[j] = (expr);                                                               \
    return r

VF_INLINE struct vf vf_set1(float x)
{
    VF_MAP_(x);
}

VF_INLINE struct vf vf_load(const void *p, int64_t i, int k, enum dtype t)
{
    struct vf r = {{0}};
    if (t == DT_F32) {
        memcpy(r.v, (const float *)p + i, (size_t)k * 4);
        return r;
    }
    uint32_t u[VF_LANES] = {0};
    const uint16_t *h = (const uint16_t *)p + i;
    for (int j = 0; j < k; j++)
        u[j] = (uint32_t)h[j] << 16;
    memcpy(r.v, u, sizeof(u));
    return r;
}

VF_INLINE void vf_store(void *p, int64_t i, int k, enum dtype t, struct vf x)
{
    if (t == DT_F32) {
        memcpy((float *)p + i, x.v, (size_t)k * 4);
        return;
    }
    uint32_t u[VF_LANES];
    memcpy(u, x.v, sizeof(u));
    uint16_t *h = (uint16_t *)p + i;
    for (int j = 0; j < k; j++) {
        uint32_t nan = u[j] >> 16 | 0x40u,
                 near = (u[j] + 0x7fffu + (u[j] >> 16 & 1u)) >> 16;
        h[j] = (uint16_t)((u[j] & 0x7fffffffu) > 0x7f800000u ? nan : near);
    }
}

VF_INLINE struct vf vf_add(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] + b.v[j]);
}

VF_INLINE struct vf vf_sub(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] - b.v[j]);
}

VF_INLINE struct vf vf_mul(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] * b.v[j]);
}

VF_INLINE struct vf vf_div(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] / b.v[j]);
}

/* Rounded twice: without hardware for it a true fused form is a slow library call. */
VF_INLINE struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    VF_MAP_(a.v[j] * b.v[j] + c.v[j]);
}

VF_INLINE struct vf vf_fnma(struct vf a, struct vf b, struct vf c)
{
    VF_MAP_(c.v[j] - a.v[j] * b.v[j]);
}

VF_INLINE struct vf vf_min(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] < b.v[j] ? a.v[j] : b.v[j]);
}

VF_INLINE struct vf vf_max(struct vf a, struct vf b)
{
    VF_MAP_(a.v[j] > b.v[j] ? a.v[j] : b.v[j]);
}

VF_INLINE struct vf vf_sqrt(struct vf a)
{
    VF_MAP_(sqrtf(a.v[j]));
}

/* Adding and taking away 1.5 * 2^23 rounds; |a| < 2^22. */
VF_INLINE struct vf vf_round(struct vf a)
{
    VF_MAP_((a.v[j] + 12582912.0f) - 12582912.0f);
}

VF_INLINE struct vf vf_abs(struct vf a)
{
    VF_MAP_(fabsf(a.v[j]));
}

VF_INLINE struct vf vf_copysign(struct vf a, struct vf s)
{
    VF_MAP_(copysignf(a.v[j], s.v[j]));
}

VF_INLINE struct vf vf_select_lt(struct vf a, struct vf b, struct vf x, struct vf y)
{
    VF_MAP_(a.v[j] < b.v[j] ? x.v[j] : y.v[j]);
}

VF_INLINE float vf_power2_(int32_t n)
{
    uint32_t u = (uint32_t)(n + 127) << 23;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* A NaN comes with n = NaN: any factor keeps it. */
VF_INLINE float vf_scale2_lane_(float x, float n)
{
    int32_t i = n > -260 && n < 260 ? (int32_t)n : 0, half = i >> 1;
    return x * vf_power2_(half) * vf_power2_(i - half);
}

VF_INLINE struct vf vf_scale2(struct vf x, struct vf n)
{
    VF_MAP_(vf_scale2_lane_(x.v[j], n.v[j]));
}

struct vd {
    double v[VF_LANES];
};

VF_INLINE struct vd vd_zero(void)
{
    return (struct vd){{0}};
}

VF_INLINE struct vd vd_add_square(struct vd acc, struct vf x)
{
    for (int j = 0; j < VF_LANES; j++)
        acc.v[j] += (double)x.v[j] * (double)x.v[j];
    return acc;
}

VF_INLINE struct vd vd_add(struct vd acc, struct vf x)
{
    for (int j = 0; j < VF_LANES; j++)
        acc.v[j] += (double)x.v[j];
    return acc;
}

VF_INLINE void vd_store(double *out, struct vd x)
{
    memcpy(out, x.v, sizeof(x.v));
}

#endif

/* The sum (largest) of all lanes: halves are folded 8, 4, 2, 1 lanes apart. */
VF_INLINE float vf_sum(struct vf a)
{
    float lane[VF_LANES];
    vf_store(lane, 0, VF_LANES, DT_F32, a);
    for (int apart = VF_LANES / 2; apart > 0; apart /= 2)
        for (int j = 0; j < apart; j++)
            lane[j] += lane[j + apart];
    return lane[0];
}

VF_INLINE float vf_largest(struct vf a)
{
    float lane[VF_LANES];
    vf_store(lane, 0, VF_LANES, DT_F32, a);
    for (int apart = VF_LANES / 2; apart > 0; apart /= 2)
        for (int j = 0; j < apart; j++)
            lane[j] = lane[j + apart] > lane[j] ? lane[j + apart] : lane[j];
    return lane[0];
}

#endif
