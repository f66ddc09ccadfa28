#include "kernels/cpu/peak.h"

#include <immintrin.h>

#define N_ACC 24

static void run(int64_t n)
{
    __m512 acc[N_ACC];
    __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
#pragma GCC unroll 24
    for (int i = 0; i < N_ACC; i++)
        acc[i] = _mm512_setzero_ps();
    for (int64_t t = 0; t < n; t++) {
#pragma GCC unroll 24
        for (int i = 0; i < N_ACC; i++)
            __asm__ volatile("vfmadd231ps %1, %2, %0" : "+v"(acc[i]) : "v"(a), "v"(b));
    }
}

const struct peak_loop peak_loop_avx512 = {2.0 * 16 * N_ACC, run};
