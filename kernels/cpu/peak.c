#include "kernels/cpu/peak.h"

#include <time.h>

#include "kernels/cpu/cpu_table.h"

#define N_ROUNDS      5
#define ROUND_SECONDS 0.01

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const struct peak_loop *peak_loop_f32(uint32_t isa)
{
#if defined(__x86_64__)
    if (isa & ISA_AVX512)
        return &peak_loop_avx512;
    if (isa & ISA_AVX2)
        return &peak_loop_avx2;
#endif
    (void)isa;
    return &peak_loop_portable;
}

struct peak_arg {
    const struct peak_loop *loop;
    int64_t turns;
};

static void peak_thread(void *p, int thread, int n_threads)
{
    (void)thread;
    (void)n_threads;
    const struct peak_arg *arg = p;
    arg->loop->run(arg->turns);
}

static double round_seconds(struct pool *pool, struct peak_arg *arg)
{
    double start = now_s();
    pool_run(pool, peak_thread, arg);
    return now_s() - start;
}

static double loop_flops(struct pool *pool, const struct peak_loop *loop)
{
    struct peak_arg arg = {loop, 1000};
    double s;
    while ((s = round_seconds(pool, &arg)) < ROUND_SECONDS / 10)
        arg.turns *= 4;
    arg.turns = (int64_t)((double)arg.turns * ROUND_SECONDS / s) + 1;
    double best_s = round_seconds(pool, &arg);
    for (int i = 1; i < N_ROUNDS; i++)
        best_s = MIN(best_s, round_seconds(pool, &arg));
    return (double)pool_threads(pool) * (double)arg.turns * loop->flops_per_turn /
           best_s;
}

double cpu_peak_flops(struct pool *pool, enum dtype precision)
{
    uint32_t isa = cpu_isa_detect();
    double flops = loop_flops(pool, peak_loop_f32(isa));
    if (precision != DT_BF16)
        return flops;
#if defined(__x86_64__)
    if (isa & ISA_AMX_BF16)
        return MAX(flops, loop_flops(pool, &peak_loop_amx));
    /* Not every processor's bf16 dot is faster than widening and multiplying in f32. */
    if (isa & ISA_AVX512_BF16)
        flops = MAX(flops, loop_flops(pool, &peak_loop_avx512bf16));
#endif
    return flops;
}
