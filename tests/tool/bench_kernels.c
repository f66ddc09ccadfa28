/* Speed of the tuned memory-bound kernels, each beside a memcpy that moves the same bytes
 * with the same threads.
 *
 *     bench_kernels [threads]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "kernels/cpu/cpu_table.h"
#include "tests/lib/op_case.h"

#define RUNS 15

static const struct op_dims dims = {.T = 256,
                                    .S = 256,
                                    .H = 2048,
                                    .N = 2048,
                                    .A = 16,
                                    .D = 128,
                                    .F = 4096,
                                    .V = 8192};

static const struct op_spec specs[] = {
        {.label = "glu silu", .kind = OP_GLU, .in = {"cTG"}, .out = {"cTF"}},
        {.label = "glu_dx silu",
         .kind = OP_GLU_DX,
         .in = {"cTF", "cTG"},
         .out = {"cTG"}},
        {.label = "gelu",
         .kind = OP_ACT,
         .in = {"cTF"},
         .out = {"cTF"},
         .attr = {{ATTR_ACT, false, ACT_GELU}},
         .n_attrs = 1},
        {.label = "add", .kind = OP_ADD, .in = {"cTF", "cTF"}, .out = {"cTF"}},
        {.label = "rope",
         .kind = OP_ROPE,
         .in = {"cTAD", "iT below-T", "fTP2"},
         .out = {"cTAD"}},
        {.label = "rmsnorm",
         .kind = OP_RMSNORM,
         .in = {"cTH", "fH"},
         .out = {"cTH", "fT"}},
        {.label = "rmsnorm_dx",
         .kind = OP_RMSNORM_DX,
         .in = {"cTH", "cTH", "fH", "fT positive", "cTH"},
         .out = {"cTH"}},
        {.label = "rmsnorm_dw",
         .kind = OP_RMSNORM_DW,
         .in = {"cTH", "cTH", "fT positive", "fH"},
         .out = {"fH"}},
        {.label = "layernorm",
         .kind = OP_LAYERNORM,
         .in = {"cTH", "fH", "fH"},
         .out = {"cTH", "fT", "fT"}},
        {.label = "linear_db",
         .kind = OP_LINEAR_DB,
         .in = {"cTN", "fN"},
         .out = {"fN"}},
        {.label = "xent",
         .kind = OP_XENT,
         .in = {"fTV", "iT label"},
         .out = {"fT", "fT"}},
        {.label = "xent_dx",
         .kind = OP_XENT_DX,
         .in = {"fTV", "fT lse", "iT label", "f1"},
         .out = {"cTV"}},
        {.label = "norm_sq", .kind = OP_NORM_SQ, .in = {"fTH"}, .out = {"dB"}},
        {.label = "adamw",
         .kind = OP_ADAMW,
         .in = {"fTH", "fTH", "fTH positive", "fTH", "f1", "fU hyper"},
         .out = {"fTH", "fTH", "fTH", "cTH"}},
};

struct copy {
    char *from, *to;
    int64_t bytes;
};

static void copy_part(void *arg, int thread, int n_threads)
{
    const struct copy *c = arg;
    int64_t begin, end;
    pool_share(c->bytes, 4096, thread, n_threads, &begin, &end);
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A memcpy reads and writes, so half of the bytes are copied. */
static double copy_time(struct pool *pool, double bytes)
{
    struct copy c = {.bytes = (int64_t)(bytes / 2)};
    c.from = mem_alloc((size_t)c.bytes);
    c.to = mem_alloc((size_t)c.bytes);
    memset(c.from, 1, (size_t)c.bytes);
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        double t = now_s();
        pool_run(pool, copy_part, &c);
        best = fmin(best, now_s() - t);
    }
    mem_free(c.from);
    mem_free(c.to);
    return best;
}

static void bench(const struct op_spec *s, enum dtype t, struct pool *pool)
{
    struct op_case c = op_case_make(s, &dims, t, 0);
    struct launch l = op_case_describe(&c);
    uint32_t id;
    const struct kernel_row *row = cpu_table_find(&l, cpu_isa_detect(), false, &id);
    double bytes, kernel = op_case_time(&c, row, pool, RUNS, &bytes);
    double copy = copy_time(pool, bytes);
    printf("%-12s %-5s %-18s %6.1f MB %8.3f ms %6.1f GB/s, memcpy %6.1f GB/s: %3.0f %%\n",
           s->label, dtype_name(t), row->name, bytes * 1e-6, kernel * 1e3,
           bytes / kernel * 1e-9, bytes / copy * 1e-9, 100 * copy / kernel);
    op_case_release(&c);
}

int main(int argc, char **argv)
{
    int n_threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : pool_cpus_available();
    struct diag diag = {0};
    struct pool *pool;
    if (n_threads < 1 || pool_create(n_threads, &pool, &diag) != ST_OK) {
        fprintf(stderr, "bench_kernels: %s\n", diag.text);
        return 1;
    }
    printf("%d threads, fastest of %d runs\n", n_threads, RUNS);
    for (size_t i = 0; i < ARRAY_LEN(specs) * 2; i++)
        bench(&specs[i / 2], i % 2 ? DT_BF16 : DT_F32, pool);
    pool_destroy(pool);
    return 0;
}
