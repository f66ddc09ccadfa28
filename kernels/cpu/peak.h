/* What the processor can do at most: the register-only rate of multiply-adds, which is the
 * denominator of the flops utilisation that runs report. */
#ifndef KERNELS_CPU_PEAK_H
#define KERNELS_CPU_PEAK_H

#include "core/dtype.h"
#include "core/pool.h"

/* Flops per second of all threads of the pool together on independent multiply-adds that
 * never leave the registers, in the fastest form this processor has for the precision: for
 * bf16 tiles or the dot instruction, or f32 after widening where that is faster. Takes about 50 ms
 * per form; the best of five rounds counts. in: precision DT_F32 or DT_BF16. threads: one
 * caller of the pool. */
double cpu_peak_flops(struct pool *pool, enum dtype precision);

/* One register-only loop: `run` does `flops_per_turn` flops in each of n turns. */
struct peak_loop {
    double flops_per_turn;
    void (*run)(int64_t n);
};

extern const struct peak_loop peak_loop_portable;
extern const struct peak_loop peak_loop_avx2;
extern const struct peak_loop peak_loop_avx512;
extern const struct peak_loop peak_loop_avx512bf16;
extern const struct peak_loop peak_loop_amx;

#endif
