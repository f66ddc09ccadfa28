/* Rates of the matrix products and of attention against the register peak measured in the
 * same run: f32, f32 by AVX2, bf16 without tile registers, bf16 with them where there are
 * any. usage: bench_gemm [threads [repetitions [part of a shape's name]]] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu_table.h"
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
#define N_SETS     4
#define N_REPS_MAX 64

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

/* The first row that takes the launch and needs no instruction set of `without`. */
static const struct kernel_row *row_find(const struct kernel_table *t,
                                         const struct launch *l, uint32_t without)
{
    uint32_t isa = cpu_isa_detect() & ~without;
    for (size_t i = 0; i < t->n_rows; i++) {
        const struct kernel_row *r = &t->rows[i];
        if (r->kind == l->op->kind && !(r->isa & ~isa) && r->accepts(l))
            return r;
    }
    return NULL;
}

static struct view matrix(void *data, enum dtype t, int64_t rows, int64_t cols)
{
    return (struct view){data, t, 2, {rows, cols}, cols};
}

/* What is compared: a dtype and the instruction sets that it goes without. */
struct variant {
    enum dtype dtype;
    uint32_t without;
};

static const struct variant variants[] = {
        {DT_F32, 0},
        {DT_F32, ISA_AVX512},
        {DT_BF16, ISA_AMX_BF16},
        {DT_BF16, 0},
};
#define N_VARIANTS ((int)ARRAY_LEN(variants))

struct product {
    enum op_kind kind;
    const struct shape *s;
    enum dtype dtype;
    void *const *sets;
};

static void product_launch(const struct product *p, struct prog_op *op, int set,
                           struct launch *l)
{
    const struct shape *s = p->s;
    char *base = p->sets[set % N_SETS];
    struct view x = matrix(base, p->dtype, s->t, s->k);
    struct view w = matrix(base + s->t * s->k * 4, p->dtype, s->n, s->k);
    struct view y = matrix((char *)w.data + s->n * s->k * 4, p->dtype, s->t, s->n);
    struct view g = matrix((char *)y.data + s->t * s->n * 4, DT_F32, s->n, s->k);
    *op = (struct prog_op){.kind = (uint16_t)p->kind,
                           .n_in = p->kind == OP_LINEAR_DW ? 3 : 2};
    *l = (struct launch){.op = op};
    if (p->kind == OP_LINEAR) {
        l->in[0] = x, l->in[1] = w, l->out[0] = y;
    } else if (p->kind == OP_LINEAR_DX) {
        l->in[0] = y, l->in[1] = w, l->out[0] = x;
    } else {
        l->in[0] = y, l->in[1] = x, l->in[2] = g, l->out[0] = g;
    }
}

/* Seconds of one run. */
static double product_seconds(const struct bench *b, const struct product *p, int set,
                              uint32_t without, const char **name)
{
    struct prog_op op;
    struct launch l;
    product_launch(p, &op, set, &l);
    const struct kernel_row *row = row_find(&kernels_gemm, &l, without);
    *name = row->name;
    size_t bytes = (size_t)row->scratch_bytes(&l, pool_threads(b->pool));
    l.scratch = pages(bytes);
    memset(l.scratch, 0, bytes);
    double start = now_s();
    row->run(&(struct kernel_call){.l = &l, .pool = b->pool});
    double s = now_s() - start;
    pages_unmap(l.scratch, bytes);
    return s;
}

static void product_print(const struct bench *b, double *secs, double flops,
                          double peak)
{
    qsort(secs, (size_t)b->reps, sizeof(double), by_value);
    double f = flops / secs[b->reps / 2];
    printf("  %6.1f %6.1f %3.0f%%", f * 1e-9, flops / secs[0] * 1e-9,
           100.0 * flops / secs[0] / peak);
}

/* The variants take turns, so that what else the machine does meets them alike. */
static void bench_shape(const struct bench *b, const struct shape *s)
{
    static const enum op_kind kinds[] = {OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW};
    static double secs[ARRAY_LEN(variants)][ARRAY_LEN(kinds)][N_REPS_MAX];
    const char *name[ARRAY_LEN(variants)] = {0};
    size_t bytes = (size_t)(s->t * s->k + 2 * s->n * s->k + s->t * s->n) * 4;
    void *sets[DT_COUNT][N_SETS];
    for (int t = DT_F32; t <= DT_BF16; t++)
        for (int i = 0; i < N_SETS; i++) {
            sets[t][i] = i && bytes > 128 * MIB ? sets[t][0] : pages(bytes);
            fill(sets[t][i], t, (int64_t)bytes / 4);
        }
    for (int r = -1; r < b->reps; r++)
        for (int i = 0; i < 3 * N_VARIANTS; i++) {
            const struct variant *v = &variants[i / 3];
            struct product p = {kinds[i % 3], s, v->dtype, sets[v->dtype]};
            secs[i / 3][i % 3][MAX(r, 0)] =
                    product_seconds(b, &p, r + 1, v->without, &name[i / 3]);
        }
    for (int v = 0; v < N_VARIANTS; v++) {
        printf("%-13s %5ld %5ld %5ld %-4s", s->name, (long)s->t, (long)s->n, (long)s->k,
               dtype_name(variants[v].dtype));
        for (int k = 0; k < 3; k++)
            product_print(b, secs[v][k], 2.0 * (double)s->t * (double)(s->n * s->k),
                          b->peak_flops[variants[v].dtype]);
        printf("  %s\n", name[v]);
    }
    fflush(stdout);
    for (int i = 0; i < 2 * N_SETS; i++)
        if (!(i % N_SETS) || sets[i / N_SETS][i % N_SETS] != sets[i / N_SETS][0])
            pages_unmap(sets[i / N_SETS][i % N_SETS], bytes);
}

struct attn_shape {
    const char *name;
    int64_t seqs, seq, heads, kv, dim;
};

static const struct attn_shape attn_shapes[] = {
        {"tiny attn", 8, 256, 4, 2, 64},
        {"60m attn", 1, 1024, 12, 4, 64},
        {"gpt2 attn", 1, 1024, 12, 12, 64},
        {"attn d128", 1, 2048, 8, 2, 128},
};

static struct view heads_view(void *data, enum dtype t, int64_t tokens, int64_t heads,
                              int64_t dim, int64_t ld)
{
    return (struct view){data, t, 3, {tokens, heads, dim}, ld};
}

/* Median rate of a row; flops counts visible query-key pairs only. */
static double attn_rate(const struct bench *b, const struct launch *l, double flops)
{
    const struct kernel_row *row = row_find(&kernels_attention, l, 0);
    size_t bytes = (size_t)row->scratch_bytes(l, pool_threads(b->pool));
    struct launch with = *l;
    with.scratch = pages(bytes);
    double secs[N_REPS_MAX];
    for (int r = -1; r < b->reps; r++) {
        double start = now_s();
        row->run(&(struct kernel_call){.l = &with, .pool = b->pool});
        if (r >= 0)
            secs[r] = now_s() - start;
    }
    pages_unmap(with.scratch, bytes);
    qsort(secs, (size_t)b->reps, sizeof(double), by_value);
    return flops / secs[b->reps / 2];
}

static void bench_attn(const struct bench *b, const struct attn_shape *s, enum dtype t)
{
    struct program prog = {0};
    struct prog_attr seq = {.key = ATTR_SEQ, .v.i = s->seq};
    struct prog_attr scale = {.key = ATTR_SCALE, .v.f = 0.125};
    vec_push(&prog.attrs, seq);
    vec_push(&prog.attrs, scale);
    struct prog_op fwd = {.kind = OP_ATTENTION, .n_in = 4, .n_out = 2, .n_attrs = 2};
    struct prog_op bwd = {.kind = OP_ATTENTION_DX, .n_in = 7, .n_out = 3, .n_attrs = 2};
    int64_t tokens = s->seqs * s->seq, h = s->heads, g = s->kv, d = s->dim;
    int64_t ld = (h + 2 * g) * d;
    size_t bytes = (size_t)(tokens * (2 * ld + 2 * h * d + 2 * h)) * 4;
    float *base = pages(bytes);
    float *dbase = base + tokens * ld, *o = dbase + tokens * ld,
          *lse = o + 2 * tokens * h * d;
    fill(base, t, tokens * ld);
    fill(o, t, 2 * tokens * h * d);
    char *c = (char *)base, *dc = (char *)dbase;
    int64_t e = (int64_t)dtype_bytes(t);
    struct view q = heads_view(c, t, tokens, h, d, ld);
    struct view k = heads_view(c + h * d * e, t, tokens, g, d, ld);
    struct view v = heads_view(c + (h + g) * d * e, t, tokens, g, d, ld);
    struct view out = heads_view(o, t, tokens, h, d, h * d);
    struct view d_o = heads_view(o + tokens * h * d / 2, t, tokens, h, d, h * d);
    struct view lv = {lse, DT_F32, 2, {tokens, h}, h};
    struct view doc = {lse + tokens * h, DT_I32, 1, {tokens}, 1};
    struct launch lf = {
            .prog = &prog, .op = &fwd, .in = {q, k, v, doc}, .out = {out, lv}};
    struct launch lb = {.prog = &prog, .op = &bwd, .in = {d_o, q, k, v, out, lv, doc}};
    lb.out[0] = heads_view(dc, t, tokens, h, d, ld);
    lb.out[1] = heads_view(dc + h * d * e, t, tokens, g, d, ld);
    lb.out[2] = heads_view(dc + (h + g) * d * e, t, tokens, g, d, ld);
    double flops = 2.0 * (double)(tokens * (s->seq + 1) * h * d);
    double peak = cpu_peak_flops(b->pool, t);
    double rf = attn_rate(b, &lf, flops), rb = attn_rate(b, &lb, 2.5 * flops);
    printf("%-13s %5ld heads %ld/%ld d %ld %-4s forward %6.1f %5.1f%%  backward %6.1f %5.1f%%"
           "  of %6.1f\n",
           s->name, (long)s->seq, (long)h, (long)g, (long)d, dtype_name(t), rf * 1e-9,
           100.0 * rf / peak, rb * 1e-9, 100.0 * rb / peak, peak * 1e-9);
    fflush(stdout);
    pages_unmap(base, bytes);
    vec_free(&prog.attrs);
}

int main(int argc, char **argv)
{
    struct bench b = {.reps = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9};
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    const char *only = argc > 3 ? argv[3] : "";
    b.reps = MIN(MAX(b.reps, 1), N_REPS_MAX);
    if (pool_create(MAX(threads, 1), &b.pool, NULL) != ST_OK)
        return 1;
    for (int t = DT_F32; t <= DT_BF16; t++)
        b.peak_flops[t] = cpu_peak_flops(b.pool, (enum dtype)t);
    printf("peak of %d threads: f32 %.1f, bf16 %.1f GFLOP/s\n", pool_threads(b.pool),
           b.peak_flops[DT_F32] * 1e-9, b.peak_flops[DT_BF16] * 1e-9);
    printf("GFLOP/s: median, best, best of the peak\n");
    printf("%-13s %5s %5s %5s %-4s  %-18s  %-18s  %-18s\n", "shape", "T", "N", "K",
           "type", "forward", "dx", "dw");
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        if (strstr(shapes[i].name, only))
            bench_shape(&b, &shapes[i]);
    for (size_t i = 0; i < ARRAY_LEN(attn_shapes); i++)
        for (int t = DT_F32; t <= DT_BF16; t++)
            if (strstr(attn_shapes[i].name, only))
                bench_attn(&b, &attn_shapes[i], t);
    pool_destroy(b.pool);
    return 0;
}
