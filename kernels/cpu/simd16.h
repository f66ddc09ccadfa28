/* Sixteen floats as one register, for AVX-512 or AVX2: the tuned kernels are written
 * once with these and compiled for each instruction set. Lane sums are in a fixed order,
 * so both give the same bits. Other processors use the reference kernels: beside the
 * products their share of a step is small there.
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
#include "kernels/cpu/simd16_avx512.inc"
#elif defined(__AVX2__) && defined(__FMA__)
#include "kernels/cpu/simd16_avx2.inc"
#else
#error "these kernels are written for AVX2 and AVX-512; others use the reference"
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
