/* Rates of the matrix products and of attention against the register peak measured in the
 * same run. usage: bench_gemm [threads [repetitions]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/rng.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/peak.h"

struct shape {
    const char *name;
    int64_t t, n, k;
};

static const struct shape shapes[] = {
        {"tiny qkv", 2048, 512, 256},     {"tiny gate-up", 2048, 1408, 256},
        {"tiny down", 2048, 256, 704},    {"60m qkv", 1024, 1280, 768},
        {"60m gate-up", 1024, 4096, 768}, {"60m down", 1024, 768, 2048},
        {"60m head", 1024, 512, 768},     {"gpt2 proj", 1024, 768, 768},
        {"gpt2 qkv", 1024, 2304, 768},    {"gpt2 up", 1024, 3072, 768},
        {"gpt2 down", 1024, 768, 3072},   {"gpt2 head", 1024, 50257, 768},
};

/* Sets of operands that are used in turn, so that weights come from memory. */
#define N_SETS 4

struct bench {
    struct pool *pool;
    int reps;
    double peak_flops[2];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *pages(size_t bytes)
{
    void *p;
    struct diag d;
    if (pages_map(bytes, &p, &d) != ST_OK) {
        fprintf(stderr, "%s\n", d.text);
        exit(1);
    }
    return p;
}

static void fill(void *p, enum dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(p, t, i, (double)((i * 2654435761u >> 7) % 2048) / 1024.0 - 1.0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct kernel_row *row_find(const struct launch *l)
{
    for (size_t i = 0; i < kernels_gemm.n_rows; i++) {
        const struct kernel_row *r = &kernels_gemm.rows[i];
        if (r->kind == l->op->kind && r->accepts(l))
            return r;
    }
    return NULL;
}

static struct view matrix(void *data, enum dtype t, int64_t rows, int64_t cols)
{
    return (struct view){data, t, 2, {rows, cols}, cols};
}

/* Median rate of one product over the repetitions. */
static double rate(const struct bench *b, enum op_kind kind, const struct shape *s,
                   enum dtype t, void *const *sets, const char **name)
{
    struct prog_op op = {.kind = (uint16_t)kind, .n_in = kind == OP_LINEAR_DW ? 3 : 2};
    double secs[64];
    void *scratch = NULL;
    int64_t bytes = 0;
    for (int r = -1; r < b->reps; r++) {
        char *base = sets[(r + 1) % N_SETS];
        struct view x = matrix(base, t, s->t, s->k);
        struct view w = matrix(base + s->t * s->k * 4, t, s->n, s->k);
        struct view y = matrix((char *)w.data + s->n * s->k * 4, t, s->t, s->n);
        struct view g = matrix((char *)y.data + s->t * s->n * 4, DT_F32, s->n, s->k);
        struct launch l = {.op = &op};
        if (kind == OP_LINEAR) {
            l.in[0] = x, l.in[1] = w, l.out[0] = y;
        } else if (kind == OP_LINEAR_DX) {
            l.in[0] = y, l.in[1] = w, l.out[0] = x;
        } else {
            l.in[0] = y, l.in[1] = x, l.in[2] = g, l.out[0] = g;
        }
        const struct kernel_row *row = row_find(&l);
        *name = row->name;
        if (!scratch) {
            bytes = row->scratch_bytes(&l, pool_threads(b->pool));
            scratch = pages((size_t)bytes);
            memset(scratch, 0, (size_t)bytes);
        }
        l.scratch = scratch;
        double start = now_s();
        row->run(&(struct kernel_call){&l, b->pool});
        if (r >= 0)
            secs[r] = now_s() - start;
    }
    pages_unmap(scratch, (size_t)bytes);
    qsort(secs, (size_t)b->reps, sizeof(double), by_value);
    return 2.0 * (double)s->t * (double)s->n * (double)s->k / secs[b->reps / 2];
}

static void bench_shape(struct bench *b, const struct shape *s)
{
    static const enum op_kind kinds[] = {OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW};
    size_t bytes = (size_t)(s->t * s->k + 2 * s->n * s->k + s->t * s->n) * 4;
    void *sets[N_SETS];
    for (int i = 0; i < N_SETS; i++)
        sets[i] = i && bytes > 512 * MIB ? sets[0] : pages(bytes);
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++) {
        enum dtype t = dtypes[d];
        for (int i = 0; i < N_SETS; i++)
            fill(sets[i], t, (int64_t)bytes / 4);
        b->peak_flops[d] = cpu_peak_flops(b->pool, t);
        printf("%-13s %5ld %5ld %5ld %-4s", s->name, (long)s->t, (long)s->n, (long)s->k,
               dtype_name(t));
        const char *name = "";
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            double f = rate(b, kinds[i], s, t, sets, &name);
            printf("  %6.1f %5.1f%%", f * 1e-9, 100.0 * f / b->peak_flops[d]);
        }
        printf("  of %6.1f  %s\n", b->peak_flops[d] * 1e-9, name);
        fflush(stdout);
    }
    for (int i = 0; i < N_SETS; i++)
        if (!i || sets[i] != sets[0])
            pages_unmap(sets[i], bytes);
}

int main(int argc, char **argv)
{
    struct bench b = {.reps = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9};
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    if (pool_create(threads, &b.pool, NULL) != ST_OK)
        return 1;
    printf("%-13s %5s %5s %5s %-4s  forward GFLOP/s   dx              dw\n", "shape",
           "T", "N", "K", "type");
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (argc <= 3 || strstr(shapes[i].name, argv[3]))
            bench_shape(&b, &shapes[i]);
    pool_destroy(b.pool);
    return 0;
}
