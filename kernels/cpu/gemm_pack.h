/* Packing in plain C, for any panel width: panel[k][i] from either orientation. */
#ifndef KERNELS_CPU_GEMM_PACK_H
#define KERNELS_CPU_GEMM_PACK_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lane.h"

LANE_INLINE float pack_get(const void *src, enum dtype t, int64_t i)
{
    return t == DT_F32 ? ((const float *)src)[i]
                       : f32_from_bf16(((const uint16_t *)src)[i]);
}

LANE_INLINE void pack_plain(float *panel, const void *src, enum dtype t,
                            bool k_contiguous, int panel_width, int64_t ld,
                            int64_t width, int64_t k)
{
    int64_t step_i = k_contiguous ? ld : 1;
    int64_t step_k = k_contiguous ? 1 : ld;
    for (int64_t kk = 0; kk < k; kk++) {
        for (int64_t i = 0; i < width; i++)
            panel[kk * panel_width + i] = pack_get(src, t, i * step_i + kk * step_k);
        for (int64_t i = width; i < panel_width; i++)
            panel[kk * panel_width + i] = 0.0f;
    }
}

#define PACK_DEFINE(name, dtype, k_contiguous, panel_width)                            \
    static void name(void *panel, const void *src, int64_t ld, int64_t width,          \
                     int64_t k)                                                        \
    {                                                                                  \
        pack_plain(panel, src, dtype, k_contiguous, panel_width, ld, width, k);        \
    }

#define PACK_DEFINE_ALL(mr, nr)                                                        \
    PACK_DEFINE(pack_a_f32_m, DT_F32, false, mr)                                       \
    PACK_DEFINE(pack_a_f32_k, DT_F32, true, mr)                                        \
    PACK_DEFINE(pack_a_bf16_m, DT_BF16, false, mr)                                     \
    PACK_DEFINE(pack_a_bf16_k, DT_BF16, true, mr)                                      \
    PACK_DEFINE(pack_b_f32_n, DT_F32, false, nr)                                       \
    PACK_DEFINE(pack_b_f32_k, DT_F32, true, nr)                                        \
    PACK_DEFINE(pack_b_bf16_n, DT_BF16, false, nr)                                     \
    PACK_DEFINE(pack_b_bf16_k, DT_BF16, true, nr)

#define PACK_A                                                                         \
    {                                                                                  \
        {pack_a_f32_m, pack_a_f32_k},                                                  \
        {                                                                              \
            pack_a_bf16_m, pack_a_bf16_k                                               \
        }                                                                              \
    }
#define PACK_B                                                                         \
    {                                                                                  \
        {pack_b_f32_n, pack_b_f32_k},                                                  \
        {                                                                              \
            pack_b_bf16_n, pack_b_bf16_k                                               \
        }                                                                              \
    }

#endif
