/* A vector of f32 lanes at the width the including file is compiled for: AVX-512 (16),
 * AVX2 with FMA (8), or four lanes that any compiler can lower. Blocked kernels are
 * written once over these and compiled per instruction set. */
#ifndef KERNELS_CPU_LANE_H
#define KERNELS_CPU_LANE_H

#include <string.h>

#include "core/base.h"
#include "core/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANE_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#define LANES 16
typedef __m512 lane_vec;
#elif defined(__AVX2__)
#define LANES 8
typedef __m256 lane_vec;
#else
#define LANES 4
typedef float lane_vec __attribute__((vector_size(16)));
#endif

/* The same lanes as 32-bit integers, and as masks (all bits or none). */
typedef int32_t lane_ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t lane_uvec __attribute__((vector_size(4 * LANES)));

LANE_INLINE lane_vec lane_load(const float *p)
{
    lane_vec v;
    memcpy(&v, p, sizeof(v));
    return v;
}

LANE_INLINE void lane_store(float *p, lane_vec v)
{
    memcpy(p, &v, sizeof(v));
}

#if defined(__AVX512F__)

LANE_INLINE lane_vec lane_set1(float x)
{
    return _mm512_set1_ps(x);
}

/* a*b + c, rounded once. */
LANE_INLINE lane_vec lane_fma(lane_vec a, lane_vec b, lane_vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

LANE_INLINE lane_vec lane_max(lane_vec a, lane_vec b)
{
    return _mm512_max_ps(a, b);
}

LANE_INLINE lane_vec lane_round(lane_vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n where x >= least, 0 elsewhere. n is integral, and -126 <= n <= 127 there. */
LANE_INLINE lane_vec lane_scale2(lane_vec a, lane_vec n, lane_vec x, lane_vec least)
{
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), a, n);
}

#else

#if defined(__AVX2__)

LANE_INLINE lane_vec lane_set1(float x)
{
    return _mm256_set1_ps(x);
}

LANE_INLINE lane_vec lane_fma(lane_vec a, lane_vec b, lane_vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

LANE_INLINE lane_vec lane_max(lane_vec a, lane_vec b)
{
    return _mm256_max_ps(a, b);
}

LANE_INLINE lane_vec lane_round(lane_vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#else

LANE_INLINE lane_vec lane_set1(float x)
{
    return (lane_vec){x, x, x, x};
}

/* Without FMA instructions: two roundings. */
LANE_INLINE lane_vec lane_fma(lane_vec a, lane_vec b, lane_vec c)
{
    return a * b + c;
}

LANE_INLINE lane_vec lane_max(lane_vec a, lane_vec b)
{
    lane_ivec m = a > b;
    return (lane_vec)(((lane_ivec)a & m) | ((lane_ivec)b & ~m));
}

/* For |a| < 2^22: adding 1.5 * 2^23 leaves the integer in the last bit. */
LANE_INLINE lane_vec lane_round(lane_vec a)
{
    return (a + 12582912.0f) - 12582912.0f;
}

#endif

LANE_INLINE lane_vec lane_scale2(lane_vec a, lane_vec n, lane_vec x, lane_vec least)
{
    lane_ivec i = __builtin_convertvector(n, lane_ivec);
    lane_vec f = a * (lane_vec)((i + 127) << 23);
    return (lane_vec)((lane_ivec)f & (lane_ivec)(x >= least));
}

#endif

/* mask ? a : b, lane by lane. */
LANE_INLINE lane_vec lane_select(lane_ivec mask, lane_vec a, lane_vec b)
{
    return (lane_vec)(((lane_ivec)a & mask) | ((lane_ivec)b & ~mask));
}

/* 2^x within 2 ulp, exact where x is integral; 0 below -126, since results under the normal
 * range are slow to make and too small to matter. x must not be a NaN or above 127. The
 * polynomial is the best relative one of degree 6 for 2^r on |r| <= 1/2 (error
 * 2e-9, found by the Remez exchange). */
LANE_INLINE lane_vec lane_exp2(lane_vec x)
{
    lane_vec least = lane_set1(-126.0f);
    lane_vec t = lane_max(x, least);
    lane_vec n = lane_round(t);
    lane_vec r = t - n;
    lane_vec p = lane_set1(1.53458120e-4f);
    p = lane_fma(p, r, lane_set1(1.33999312e-3f));
    p = lane_fma(p, r, lane_set1(9.61848896e-3f));
    p = lane_fma(p, r, lane_set1(5.55032878e-2f));
    p = lane_fma(p, r, lane_set1(2.40226469e-1f));
    p = lane_fma(p, r, lane_set1(6.93147206e-1f));
    p = lane_fma(p, r, lane_set1(1.0f));
    return lane_scale2(p, n, x, least);
}

/* tanh x, to about 1e-7 absolute: 1 - 2/(e^2x + 1). */
LANE_INLINE lane_vec lane_tanh(lane_vec x)
{
    lane_vec e = x * lane_set1(2.88539008f);
    e = -lane_max(-e, lane_set1(-60.0f));
    return lane_set1(1.0f) - lane_set1(2.0f) / (lane_exp2(e) + lane_set1(1.0f));
}

/* LANES elements of a row of f32 or bf16, as f32. */
LANE_INLINE lane_vec lane_load_bf16(const uint16_t *p)
{
#if defined(__AVX512F__)
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
#elif defined(__AVX2__)
    __m128i h = _mm_loadu_si128((const __m128i *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
#else
    lane_vec v;
    for (int i = 0; i < LANES; i++)
        v[i] = f32_from_bf16(p[i]);
    return v;
#endif
}

/* LANES elements rounded to bf16 (nearest, ties to even; NaN stays NaN). */
LANE_INLINE void lane_store_bf16(uint16_t *p, lane_vec v)
{
    lane_uvec u = (lane_uvec)v;
    lane_uvec nan = (lane_uvec)(v != v);
    lane_uvec r = u + 0x7fff + ((u >> 16) & 1);
    r = ((u | 0x400000) & nan) | (r & ~nan);
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)r, 16)));
#else
    for (int i = 0; i < LANES; i++)
        p[i] = (uint16_t)(r[i] >> 16);
#endif
}

/* n elements of f32 or bf16 into f32. */
LANE_INLINE void lane_row_load(float *dst, const void *src, enum dtype t, int64_t n)
{
    int64_t i = 0;
    if (t == DT_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    const uint16_t *h = src;
    for (; i + LANES <= n; i += LANES)
        lane_store(dst + i, lane_load_bf16(h + i));
    for (; i < n; i++)
        dst[i] = f32_from_bf16(h[i]);
}

/* n elements of f32 into f32 or bf16. */
LANE_INLINE void lane_row_store(void *dst, enum dtype t, const float *src, int64_t n)
{
    int64_t i = 0;
    if (t == DT_F32) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *h = dst;
    for (; i + LANES <= n; i += LANES)
        lane_store_bf16(h + i, lane_load(src + i));
    for (; i < n; i++)
        h[i] = bf16_from_f32(src[i]);
}

#if defined(__AVX512F__)

/* Transposes 16 rows of 16 lanes in place.
 * Four rounds: pairs of 32-bit lanes, of 64-bit lanes, then of 128-bit quarters twice. */
LANE_INLINE void lane_transpose(__m512 *r)
{
    __m512 t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif

static __attribute__((noinline, unused)) void
lane_transpose_plain(float *dst, int64_t ld_dst, const float *src, int64_t ld_src,
                     int64_t rows, int64_t cols)
{
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++)
            dst[c * ld_dst + r] = src[r * ld_src + c];
}

/* dst[c][r] = src[r][c] for rows x cols elements of f32; pitches in elements. */
LANE_INLINE void lane_transpose_f32(float *dst, int64_t ld_dst, const float *src,
                                    int64_t ld_src, int64_t rows, int64_t cols)
{
#if defined(__AVX512F__)
    int64_t full_rows = rows / 16 * 16, full_cols = cols / 16 * 16;
    for (int64_t r = 0; r < full_rows; r += 16) {
        for (int64_t c = 0; c < full_cols; c += 16) {
            __m512 v[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                v[i] = lane_load(src + (r + i) * ld_src + c);
            lane_transpose(v);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                lane_store(dst + (c + i) * ld_dst + r, v[i]);
        }
    }
    if (full_cols < cols)
        lane_transpose_plain(dst + full_cols * ld_dst, ld_dst, src + full_cols, ld_src,
                             full_rows, cols - full_cols);
    if (full_rows < rows)
        lane_transpose_plain(dst + full_rows, ld_dst, src + full_rows * ld_src, ld_src,
                             rows - full_rows, cols);
#else
    lane_transpose_plain(dst, ld_dst, src, ld_src, rows, cols);
#endif
}

#endif
