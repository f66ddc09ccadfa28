#include "kernels/cpu/peak.h"

#define N_ACC 48

/* The sums live in an array that the compiler keeps in vector registers; what it makes of
 * the loop is what it makes of the portable kernels, too. */
static void run(int64_t n)
{
    float acc[N_ACC] = {0};
    float a = 0.5f;
    for (int64_t t = 0; t < n; t++) {
        __asm__ volatile("" : "+m"(a));
        for (int i = 0; i < N_ACC; i++)
            acc[i] = acc[i] * 0.25f + a;
    }
    __asm__ volatile("" : : "m"(acc));
}

const struct peak_loop peak_loop_portable = {2.0 * N_ACC, run};
