#include "kernels/cpu/peak.h"

#include <immintrin.h>

#define N_ACC 12

static void run(int64_t n)
{
    __m256 acc[N_ACC];
    __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
#pragma GCC unroll 12
    for (int i = 0; i < N_ACC; i++)
        acc[i] = _mm256_setzero_ps();
    for (int64_t t = 0; t < n; t++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_ACC; i++)
            __asm__ volatile("vfmadd231ps %1, %2, %0" : "+x"(acc[i]) : "x"(a), "x"(b));
    }
}

const struct peak_loop peak_loop_avx2 = {2.0 * 8 * N_ACC, run};
