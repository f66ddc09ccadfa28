#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/run.h"
#include "cmd/run_monitor.h"
#include "core/log.h"
#include "core/verify.h"
#include "kernels/cpu/cpu_backend.h"
#include "memory/budget.h"

/* Tokens of a micro-batch that `auto` aims at: enough for the products to run near their
 * best, few enough for the activations to stay small. */
#define AUTO_MICRO_TOKENS 4096

double run_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int64_t machine_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
}

static enum dtype compute_dtype(const struct config *c)
{
    return c->train.precision == PRECISION_BF16 ? DT_BF16 : DT_F32;
}

/* The distinct global batches of the ramp. */
static int distinct_batches(const struct config *c, int64_t *batch)
{
    int n = 0;
    for (int64_t i = 0; i < c->train.global_batch.n; i++) {
        int64_t b = c->train.global_batch.items[i].global_batch;
        bool known = false;
        for (int j = 0; j < n; j++)
            known |= batch[j] == b;
        if (!known)
            batch[n++] = b;
    }
    return n;
}

static bool divides_all(const struct config *c, int64_t micro_batch)
{
    for (int64_t i = 0; i < c->train.global_batch.n; i++)
        if (c->train.global_batch.items[i].global_batch % micro_batch)
            return false;
    return true;
}

/* The largest micro-batch within the target that divides every global batch. */
static int64_t auto_micro_batch(const struct config *c, int64_t at_most)
{
    int64_t best = 1;
    for (int64_t m = 1; m <= at_most && m <= config_global_batch_max(c); m++)
        if (divides_all(c, m))
            best = m;
    return best;
}

static enum status lower_one(struct run *r, enum lower_purpose purpose,
                             int64_t global_batch, bool monitor,
                             struct run_program *out, struct diag *diag)
{
    struct lower_options o = {.purpose = purpose,
                              .compute = compute_dtype(r->config),
                              .sequences = r->micro_batch,
                              .seq_len = r->config->data.seq_len,
                              .n_micro_batches =
                                      (uint32_t)(global_batch / r->micro_batch),
                              .activations = r->activations,
                              .optimizer = r->config->train.optimizer,
                              .monitor = monitor};
    out->global_batch = global_batch;
    TRY(lower_model(&r->model, &o, &out->low, diag));
    out->model_flops = lowered_model_flops(&out->low);
    return program_verify(&out->low.program, diag);
}

static void free_programs(struct run *r)
{
    for (int i = 0; i < r->n_train; i++) {
        lowered_free(&r->train[i].low);
        mem_report_free(&r->train[i].report);
    }
    if (r->has_eval) {
        lowered_free(&r->eval.low);
        mem_report_free(&r->eval.report);
    }
    mem_free(r->train);
    r->train = NULL;
    r->n_train = r->n_plain = 0;
    r->has_eval = false;
}

static bool wants_eval(const struct config *c)
{
    return c->data.valid[0] != '\0' || c->data.valid_fraction > 0;
}

static enum status pack_all(struct run *r, struct diag *diag)
{
    int n = r->n_train + r->has_eval;
    struct program **programs = mem_alloc((size_t)n * sizeof(struct program *));
    struct mem_report *reports = mem_alloc((size_t)n * sizeof(*reports));
    for (int i = 0; i < r->n_train; i++)
        programs[i] = &r->train[i].low.program;
    if (r->has_eval)
        programs[r->n_train] = &r->eval.low.program;
    struct pack_options o = pack_options_default();
#if ANGEL_DEBUG
    o.guard_bytes = 64;
#endif
    enum status st = pack_programs(programs, n, &o, reports, diag);
    for (int i = 0; st == ST_OK && i < n; i++) {
        *(i < r->n_train ? &r->train[i].report : &r->eval.report) = reports[i];
        st = program_verify_packed(programs[i], diag);
    }
    mem_free(programs);
    mem_free(reports);
    return st;
}

/* Programs for the present micro-batch and activations. */
static enum status build_programs(struct run *r, bool monitors, struct diag *diag)
{
    free_programs(r);
    int64_t *batch =
            mem_alloc((size_t)r->config->train.global_batch.n * sizeof(*batch));
    int n_plain = distinct_batches(r->config, batch);
    int n = monitors ? 2 * n_plain : n_plain;
    r->train = mem_alloc((size_t)n * sizeof(*r->train));
    r->n_plain = n_plain;
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < n; i++) {
        r->n_train = i + 1;
        st = lower_one(r, LOWER_TRAIN, batch[i % n_plain], i >= n_plain, &r->train[i],
                       diag);
    }
    mem_free(batch);
    TRY(st);
    if (wants_eval(r->config)) {
        r->has_eval = true;
        TRY(lower_one(r, LOWER_EVAL, r->micro_batch, false, &r->eval, diag));
    }
    TRY(pack_all(r, diag));
    r->scratch_bytes = 0;
    for (int i = 0; i < r->n_train + r->has_eval; i++) {
        struct run_program *p = i < r->n_train ? &r->train[i] : &r->eval;
        int64_t scratch;
        TRY(exec_scratch(r->backend, &p->low.program, &scratch, diag));
        r->scratch_bytes = MAX(r->scratch_bytes, scratch);
    }
    return ST_OK;
}

int64_t run_reader_bytes(const struct run *r)
{
    return reader_bytes(RUN_READER_SLOTS, config_global_batch_max(r->config),
                        r->config->data.seq_len);
}

/* Everything the run will hold: arenas, scratch, and what lies beside them. */
static int64_t total_bytes(const struct run *r)
{
    return r->train[0].low.program.pool_bytes[POOL_DEVICE] + r->scratch_bytes +
           run_reader_bytes(r);
}

static bool fits(const struct run *r)
{
    return total_bytes(r) <= r->device_limit_bytes;
}

/* Whether what persists alone is too much: then no choice of activations helps. */
static bool hopeless(const struct run *r)
{
    return r->train[0].report.pool[POOL_DEVICE].persistent_bytes >
           r->device_limit_bytes;
}

/* Tries the given activations, cheapest in time first, and smaller micro-batches. Without
 * probes it is quicker, and their few bytes hardly ever decide. */
static enum status search(struct run *r, bool probes, struct diag *diag)
{
    static const enum memory_activations order[] = {
            ACTIVATIONS_KEEP, ACTIVATIONS_SELECTIVE, ACTIVATIONS_RECOMPUTE};
    const struct config *c = r->config;
    bool auto_act = c->memory.activations == ACTIVATIONS_AUTO;
    bool auto_micro = c->train.micro_batch == 0;
    int64_t m =
            auto_micro
                    ? auto_micro_batch(c, MAX(AUTO_MICRO_TOKENS / c->data.seq_len, 1))
                    : c->train.micro_batch;
    for (;;) {
        r->micro_batch = m;
        for (size_t i = 0; i < (auto_act ? ARRAY_LEN(order) : 1); i++) {
            r->activations = auto_act ? order[i] : c->memory.activations;
            TRY(build_programs(r, probes, diag));
            if (fits(r))
                return ST_OK;
            if (hopeless(r))
                i = MAX(i, ARRAY_LEN(order) - 2); /* the smallest, for the report */
        }
        if (!auto_micro || m == 1 || hopeless(r))
            return ST_OK; /* run_check_fit tells */
        m = auto_micro_batch(c, m / 2);
    }
}

/* `auto` is settled once: the run keeps its micro-batch when it goes on, whatever memory
 * there is then. */
static void keep_micro_batch(struct run *r)
{
    if (r->config->train.micro_batch != 0)
        return;
    int64_t kept = run_state_micro_batch(r);
    if (kept > 0 && divides_all(r->config, kept))
        r->config->train.micro_batch = kept;
}

static enum status settle(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    keep_micro_batch(r);
    bool monitors = c->log.monitor_every > 0;
    if (c->memory.activations == ACTIVATIONS_AUTO || c->train.micro_batch == 0) {
        TRY(search(r, false, diag));
        if (monitors)
            TRY(build_programs(r, true, diag));
        /* In a very small model the probes can decide after all. */
        return fits(r) || hopeless(r) ? ST_OK : search(r, monitors, diag);
    }
    r->micro_batch = c->train.micro_batch;
    r->activations = c->memory.activations;
    return build_programs(r, monitors, diag);
}

enum status run_plan(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    model_create(&c->model, &r->model);
    TRY(model_count_params(&r->model, &r->n_params, diag));
    struct cpu_backend_options o = {.n_threads = (int)c->train.threads,
                                    .isa_mask = CPU_ISA_ALL};
    TRY(cpu_backend_create(&o, &r->backend, diag));
    r->pool = cpu_backend_pool(r->backend);
    r->n_threads = pool_threads(r->pool);
    r->device_limit_given = c->memory.device_bytes > 0;
    r->device_limit_bytes =
            r->device_limit_given ? c->memory.device_bytes : machine_bytes();
    TRY(settle(r, diag));
    r->config->train.micro_batch = r->micro_batch;
    return ST_OK;
}

/* Bytes of the whole run with another micro-batch and other activations: its largest
 * program is lowered and packed for the answer, and forgotten. */
static enum status measure(const struct run *r, int64_t micro_batch,
                           enum memory_activations activations, int64_t *bytes,
                           struct diag *diag)
{
    struct run other = *r;
    struct run_program p = {0};
    struct pack_options o = pack_options_default();
    other.micro_batch = micro_batch;
    other.activations = activations;
    enum status st = lower_one(&other, LOWER_TRAIN, config_global_batch_max(r->config),
                               false, &p, diag);
    if (st == ST_OK)
        st = pack_program(&p.low.program, &o, &p.report, diag);
    if (st == ST_OK)
        *bytes = p.low.program.pool_bytes[POOL_DEVICE] + r->scratch_bytes +
                 run_reader_bytes(r);
    lowered_free(&p.low);
    mem_report_free(&p.report);
    return st;
}

enum status run_check_fit(const struct run *r, struct diag *diag)
{
    const struct {
        const char *change;
        int64_t micro_batch;
        enum memory_activations activations;
    } tries[] = {
            {"memory.activations=selective", r->micro_batch, ACTIVATIONS_SELECTIVE},
            {"memory.activations=recompute", r->micro_batch, ACTIVATIONS_RECOMPUTE},
            {"train.micro_batch=1", 1, r->activations},
            {"train.micro_batch=1 memory.activations=recompute", 1,
             ACTIVATIONS_RECOMPUTE},
    };
    if (fits(r))
        return ST_OK;
    struct budget_option options[ARRAY_LEN(tries)];
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(tries) && !hopeless(r); i++) {
        options[n].change = tries[i].change;
        TRY(measure(r, tries[i].micro_batch, tries[i].activations, &options[n].bytes,
                    diag));
        n += options[n].bytes < total_bytes(r);
    }
    const char *whose = r->device_limit_given ? "memory.device" : "this machine";
    enum status st = budget_check(total_bytes(r), r->device_limit_bytes, whose, options,
                                  n, diag);
    char state[32];
    if (hopeless(r))
        diag_hint(diag,
                  "parameters, gradients and optimizer alone need %s: a smaller model "
                  "(model.layers, model.hidden), or more memory",
                  text_bytes(r->train[0].report.pool[POOL_DEVICE].persistent_bytes,
                             state, sizeof(state)));
    return st;
}

struct run_program *run_program_next(struct run *r)
{
    int64_t b = config_global_batch(r->config, r->at.tokens);
    int first = run_monitor_is_due(r, r->at.step) ? r->n_plain : 0;
    for (int i = first; i < first + r->n_plain; i++)
        if (r->train[i].global_batch == b)
            return &r->train[i];
    BUG("no program for a global batch of %lld", (long long)b);
}

const struct run_program *run_main_program(const struct run *r)
{
    bool always = r->config->log.monitor_every == 1;
    return &r->train[(always ? r->n_train : r->n_plain) - 1];
}

void run_close(struct run *r)
{
    run_monitor_close(r);
    reader_destroy(r->reader);
    data_close(r->data);
    for (int i = 0; i < r->n_train; i++)
        exec_destroy(r->train[i].exec);
    if (r->has_eval)
        exec_destroy(r->eval.exec);
    if (r->memory.backend)
        exec_memory_release(&r->memory);
    free_programs(r);
    model_free(&r->model);
    if (r->backend)
        r->backend->ops->destroy(r->backend);
    metrics_close(r->metrics);
    if (r->lock)
        ckpt_unlock(r->lock);
    guard_free(&r->guard);
    arena_release(&r->arena);
}
