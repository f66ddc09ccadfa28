/* Where the time of a training step goes, by kind of op, beside what the machine allows:
 *
 *     bench_step STEPS [RUN.yaml] key=value ...
 *     bench_step 8 model=configs/models/gpt2-124m.yaml data.seq_len=256 train.global_batch=4
 *
 * Every op of the program is timed in every step. `fastest` adds up each op's fastest run,
 * which other programs on the machine disturb least; `median` is of whole steps. The floor
 * of an op is the larger of its flops over the peak and its bytes over the bandwidth of a
 * copy that does not fit any cache; what stays in a cache may be under its floor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/load_config.h"
#include "core/arena.h"
#include "core/log.h"
#include "core/op.h"
#include "kernels/cpu/peak.h"
#include "tests/lib/rig.h"

#define STEPS_MAX  64
#define COPY_BYTES ((size_t)256 * MIB)

struct kind_time {
    double fastest_s, floor_s, flops;
    double step_s[STEPS_MAX];
    int n_ops;
};

struct bench {
    struct rig rig;
    int n_steps;
    double peak_flops, bytes_per_s;
    double total_s[STEPS_MAX];
    struct kind_time kinds[OP_KIND_COUNT];
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct copy {
    char *from, *to;
};

static void copy_part(void *arg, int thread, int n_threads)
{
    const struct copy *c = arg;
    int64_t begin, end;
    pool_share(COPY_BYTES, 4096, thread, n_threads, &begin, &end);
    memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* Bytes read and written per second by all threads; the best of five. */
static double copy_bytes_per_s(struct pool *pool)
{
    struct copy c;
    struct diag diag;
    void *p[2];
    for (int i = 0; i < 2; i++)
        if (pages_map(COPY_BYTES, &p[i], &diag) != ST_OK)
            exit(1);
    c = (struct copy){p[0], p[1]};
    double best = 1e9;
    for (int i = 0; i < 6; i++) {
        double t = now_s();
        pool_run(pool, copy_part, &c);
        best = i ? MIN(best, now_s() - t) : best;
    }
    for (int i = 0; i < 2; i++)
        pages_unmap(p[i], COPY_BYTES);
    return 2.0 * (double)COPY_BYTES / best;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *x, int n)
{
    double sorted[STEPS_MAX];
    memcpy(sorted, x, (size_t)n * sizeof(*x));
    qsort(sorted, (size_t)n, sizeof(*x), by_value);
    return sorted[n / 2];
}

/* Small numbers in every master: drawing the true initial values would take longer than
 * what is measured. */
static void fill_params(struct rig *r)
{
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        float *w = exec_view(r->exec, r->low.params[i].master, 0).data;
        int64_t n = param_elems(&r->model.params[i]);
        for (int64_t k = 0; k < n; k++)
            w[k] = (float)((uint32_t)k * 2654435761u >> 22) * 1e-4f - 0.05f;
    }
}

/* Batches of random tokens: what is trained on does not change the time. */
static void write_batches(struct rig *r, const struct config *c, uint32_t n_micro)
{
    int64_t sequences = c->train.global_batch.items[0].global_batch / n_micro;
    int64_t n = sequences * c->data.seq_len;
    int32_t *host = mem_alloc((size_t)n * 4 * sizeof(*host));
    int64_t trained = 0;
    for (uint32_t m = 0; m < n_micro; m++) {
        for (int64_t i = 0; i < n; i++) {
            host[i] = host[n + i] = (int32_t)(i * 2654435761 % c->model.vocab);
            host[2 * n + i] = (int32_t)(i % c->data.seq_len);
            host[3 * n + i] = 0;
        }
        rig_write_batch(r, m, host, host + n, host + 2 * n, host + 3 * n);
        trained += n;
    }
    mem_free(host);
    rig_write_hyper(r, 1, 1e-4, 1.0 / (double)trained, 1.0);
}

static void run_steps(struct bench *b)
{
    const struct program *p = &b->rig.low.program;
    double *fastest = mem_alloc(p->ops.n * sizeof(*fastest));
    rig_step(&b->rig); /* touches everything */
    for (int s = 0; s < b->n_steps; s++) {
        exec_times_clear(b->rig.exec);
        double start = now_s();
        rig_step(&b->rig);
        b->total_s[s] = now_s() - start;
        for (uint32_t o = 0; o < p->ops.n; o++) {
            double t;
            uint64_t runs;
            exec_op_time(b->rig.exec, o, &t, &runs);
            fastest[o] = s ? MIN(fastest[o], t) : t;
            b->kinds[p->ops.data[o].kind].step_s[s] += t;
        }
    }
    for (uint32_t o = 0; o < p->ops.n; o++) {
        double t;
        uint64_t runs;
        exec_op_time(b->rig.exec, o, &t, &runs);
        struct kind_time *k = &b->kinds[p->ops.data[o].kind];
        struct op_cost cost = op_cost(p, &p->ops.data[o]);
        double bytes = cost.bytes_read + cost.bytes_written;
        k->n_ops += runs > 0;
        k->fastest_s += fastest[o];
        k->flops += (double)runs * cost.flops;
        k->floor_s +=
                (double)runs * MAX(cost.flops / b->peak_flops, bytes / b->bytes_per_s);
    }
    mem_free(fastest);
}

static void print_kinds(struct bench *b, double model_flops, int64_t tokens)
{
    double fastest = 0, floor_s = 0, step = median(b->total_s, b->n_steps);
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        fastest += b->kinds[k].fastest_s;
        floor_s += b->kinds[k].floor_s;
    }
    printf("peak %.0f Gflop/s, copy %.1f GB/s\n", b->peak_flops * 1e-9,
           b->bytes_per_s * 1e-9);
    printf("%-14s %5s %9s %9s %9s %7s %7s\n", "kind", "ops", "fastest", "median",
           "floor", "share", "/floor");
    for (;;) {
        int best = 0;
        for (int k = 1; k < OP_KIND_COUNT; k++)
            if (b->kinds[k].fastest_s > b->kinds[best].fastest_s)
                best = k;
        struct kind_time *k = &b->kinds[best];
        if (k->fastest_s <= 0.001 * fastest)
            break;
        printf("%-14s %5d %7.2fms %7.2fms %7.2fms %6.1f%% %7.2f\n",
               op_desc((enum op_kind)best)->name, k->n_ops, 1e3 * k->fastest_s,
               1e3 * median(k->step_s, b->n_steps), 1e3 * k->floor_s,
               100 * k->fastest_s / fastest, k->fastest_s / k->floor_s);
        k->fastest_s = 0;
    }
    printf("%-14s %5s %7.2fms %7.2fms %7.2fms %7s %7.2f\n", "step", "", 1e3 * fastest,
           1e3 * step, 1e3 * floor_s, "", fastest / floor_s);
    printf("MFU %.1f%% of fastest runs, %.1f%% of the median step; %.0f, %.0f "
           "tokens/s\n",
           100 * model_flops / fastest / b->peak_flops,
           100 * model_flops / step / b->peak_flops, (double)tokens / fastest,
           (double)tokens / step);
}

static void bench_run(struct bench *b, const struct config *c)
{
    bool bf16 = c->train.precision == PRECISION_BF16;
    int64_t batch = c->train.global_batch.items[0].global_batch;
    int64_t micro = c->train.micro_batch ? c->train.micro_batch : batch;
    struct rig_options o = {.purpose = LOWER_TRAIN,
                            .compute = bf16 ? DT_BF16 : DT_F32,
                            .sequences = micro,
                            .seq_len = c->data.seq_len,
                            .n_micro_batches = (uint32_t)(batch / micro),
                            .activations = ACTIVATIONS_KEEP,
                            .n_threads = pool_cpus_available()};
    rig_create(&b->rig, &c->model, &o);
    struct pool *pool = cpu_backend_pool(b->rig.backend);
    b->peak_flops = cpu_peak_flops(pool, o.compute);
    b->bytes_per_s = copy_bytes_per_s(pool);
    fill_params(&b->rig);
    rig_setup(&b->rig);
    write_batches(&b->rig, c, o.n_micro_batches);
    run_steps(b);
    b->peak_flops = MAX(b->peak_flops, cpu_peak_flops(pool, o.compute));
    print_kinds(b, lowered_model_flops(&b->rig.low), batch * c->data.seq_len);
    rig_destroy(&b->rig);
}

int main(int argc, char **argv)
{
    struct cmd_args args;
    struct config c;
    struct diag diag = {0};
    int n_steps = argc > 1 ? atoi(argv[1]) : 0;
    if (n_steps < 1 || n_steps > STEPS_MAX) {
        fprintf(stderr, "usage: bench_step STEPS [RUN.yaml] key=value ...\n");
        return status_exit_code(ST_CONFIG);
    }
    char command[] = "pretrain";
    argv[1] = command;
    enum status st = cmd_args_parse(argc - 1, argv + 1, &args, &diag);
    if (st == ST_OK)
        st = load_config_args(&c, &args, &diag);
    if (st == ST_OK) {
        struct bench *b = mem_alloc(sizeof(*b));
        b->n_steps = n_steps;
        bench_run(b, &c);
        mem_free(b);
    } else {
        log_diag(&diag);
    }
    config_free(&c);
    cmd_args_free(&args);
    return status_exit_code(st);
}
