/* Packing with AVX-512, sixteen 32-bit steps by sixteen rows at a time. */
#ifndef KERNELS_CPU_GEMM_PACK512_H
#define KERNELS_CPU_GEMM_PACK512_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lane.h"

/* What one packed 32-bit step is made of. */
enum pack_kind {
    PACK_F32,       /* an f32 */
    PACK_BF16_WIDE, /* a bf16, widened to f32 */
    PACK_BF16_PAIR, /* two bf16 that follow each other in the inner dimension */
};

LANE_INLINE __mmask16 pack_mask(int64_t n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

/* Up to 16 steps of one row whose inner dimension is contiguous; `k` elements remain. */
LANE_INLINE __m512 pack_load_k(enum pack_kind kind, const void *src, int64_t i,
                               int64_t k)
{
    if (kind == PACK_F32)
        return _mm512_maskz_loadu_ps(pack_mask(k), (const float *)src + i);
    const uint16_t *p = (const uint16_t *)src + i;
    if (kind == PACK_BF16_PAIR) {
        __mmask32 m = k >= 32 ? 0xffffffffu : (1u << k) - 1;
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(m, p));
    }
    __m256i h = _mm256_maskz_loadu_epi16(pack_mask(k), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Up to 16 neighbours of one step (for pairs: of rows k and k+1 of the source). */
LANE_INLINE __m512 pack_load_m(enum pack_kind kind, const void *src, int64_t i,
                               int64_t ld, __mmask16 m, bool has_second)
{
    if (kind == PACK_F32)
        return _mm512_maskz_loadu_ps(m, (const float *)src + i);
    const uint16_t *p = (const uint16_t *)src + i;
    __m512i lo = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p));
    if (kind == PACK_BF16_WIDE)
        return _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16));
    if (!has_second)
        return _mm512_castsi512_ps(lo);
    __m512i hi = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p + ld));
    return _mm512_castsi512_ps(_mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
}

/* Rows of a k-contiguous source, transposed. Stores write a whole vector where the panel
 * is narrower: the next step's store, or the panel's slack, takes the rest. */
LANE_INLINE void pack_rows(enum pack_kind kind, float *panel, int panel_width,
                           const void *src, int64_t ld, int64_t width, int64_t k)
{
    int64_t per = kind == PACK_BF16_PAIR ? 2 : 1;
    for (int64_t kk = 0; kk < k; kk += 16 * per) {
        int64_t steps = MIN(ceil_div_i64(k - kk, per), 16);
        for (int c = 0; c < panel_width; c += 16) {
            __m512 r[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                r[i] = c + i < width ? pack_load_k(kind, src, (c + i) * ld + kk, k - kk)
                                     : _mm512_setzero_ps();
            lane_transpose(r);
            float *dst = panel + kk / per * panel_width + c;
            if (steps == 16) {
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++)
                    lane_store(dst + i * panel_width, r[i]);
            } else {
                for (int64_t i = 0; i < steps; i++)
                    lane_store(dst + i * panel_width, r[i]);
            }
        }
    }
}

/* A source whose panel dimension is contiguous: copied step by step. */
LANE_INLINE void pack_cols(enum pack_kind kind, float *panel, int panel_width,
                           const void *src, int64_t ld, int64_t width, int64_t k)
{
    int64_t per = kind == PACK_BF16_PAIR ? 2 : 1;
    for (int64_t kk = 0; kk < k; kk += per) {
        for (int c = 0; c < panel_width; c += 16) {
            __mmask16 m = c < width ? pack_mask(width - c) : 0;
            lane_store(panel + kk / per * panel_width + c,
                       pack_load_m(kind, src, kk * ld + c, ld, m, kk + 1 < k));
        }
    }
}

#define PACK_DEFINE(name, how, kind, panel_width)                                      \
    static void name(void *panel, const void *src, int64_t ld, int64_t width,          \
                     int64_t k)                                                        \
    {                                                                                  \
        how(kind, panel, panel_width, src, ld, width, k);                              \
    }

#endif
