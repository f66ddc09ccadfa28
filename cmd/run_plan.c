#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/run.h"
#include "cmd/run_monitor.h"
#include "core/arena.h"
#include "core/log.h"
#include "core/verify.h"
#include "kernels/cpu/cpu_backend.h"
#include "memory/budget.h"

/* Tokens of a micro-batch that `auto` aims at: enough for the products to run near their
 * best, few enough for the activations to stay small. */
#define AUTO_MICRO_TOKENS 4096

/* Micro-batches per pipeline stage that `auto` aims at. */
#define PIPELINE_MICRO_BATCHES 4

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

/* The largest micro-batch within the target that divides every global batch, or the
 * smallest that does; 0: none is smaller. */
static int64_t auto_micro_batch(const struct config *c, int64_t at_most)
{
    int64_t best = 0;
    for (int64_t m = 1; m <= config_global_batch_max(c); m++)
        if (layout_takes_micro_batch(c, m) && (m <= at_most || best == 0))
            best = m;
    return best;
}

/* What `auto` aims at: a few thousand tokens, and enough micro-batches for a pipeline to
 * be full most of the time. */
static int64_t micro_batch_aim(const struct config *c)
{
    int64_t aim = MAX(AUTO_MICRO_TOKENS / c->data.seq_len, 1);
    int64_t share = config_global_batch_max(c) / c->parallel.dp;
    if (c->parallel.pp > 1)
        aim = MIN(aim, share / (PIPELINE_MICRO_BATCHES * c->parallel.pp));
    return MAX(aim, 1);
}

/* Micro-batches of this rank in a step. */
static uint32_t micro_batches(const struct run *r, int64_t global_batch)
{
    return (uint32_t)(layout_share(&r->layout, global_batch) / r->micro_batch);
}

/* Flops of the whole model for a step: of one rank that does it all. The program of a part
 * would not count what other ranks do, and count twice what several do. */
static enum status whole_flops(const struct run *r, const struct lower_options *o,
                               int64_t global_batch, double *out, struct diag *diag)
{
    struct lower_options one = *o;
    struct lowered low;
    one.layout = (struct lower_layout){0};
    one.sequences = one.n_micro_batches = 1;
    one.monitor = false;
    TRY(lower_model(&r->model, &one, &low, diag));
    *out = lowered_model_flops(&low) * (double)global_batch;
    lowered_free(&low);
    return ST_OK;
}

static enum status lower_one(struct run *r, enum lower_purpose purpose,
                             int64_t global_batch, bool monitor,
                             struct run_program *out, struct diag *diag)
{
    struct lower_options o = {.purpose = purpose,
                              .compute = compute_dtype(r->config),
                              .sequences = r->micro_batch,
                              .seq_len = r->config->data.seq_len,
                              .n_micro_batches = micro_batches(r, global_batch),
                              .layout = r->place,
                              .activations = r->activations,
                              .optimizer = r->config->train.optimizer,
                              .monitor = monitor};
    out->global_batch = global_batch;
    TRY(lower_model(&r->model, &o, &out->low, diag));
    if (r->ranks.size > 1)
        TRY(whole_flops(r, &o, global_batch, &out->model_flops, diag));
    else
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
        int64_t round = r->micro_batch * r->layout.mesh.degree[MESH_DP];
        TRY(lower_one(r, LOWER_EVAL, round, false, &r->eval, diag));
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
    int64_t most = layout_share(&r->layout, config_global_batch_max(r->config));
    return reader_bytes(RUN_READER_SLOTS, most, r->config->data.seq_len);
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

/* The same of all ranks: of the worst one; and of the ranks of this pipeline stage. */
struct fit {
    bool fits, hopeless, stage_fits;
};

/* Programs for the present choices, and how they fit on all ranks. */
static enum status try_programs(struct run *r, bool monitors, struct fit *out,
                                struct diag *diag)
{
    TRY(run_agree(r, build_programs(r, monitors, diag), diag));
    int stages = r->layout.mesh.degree[MESH_PP], stage = (int)r->place.coord[MESH_PP];
    double *bad = mem_alloc(((size_t)stages + 1) * sizeof(*bad)); /* last: hopeless */
    bad[stage] = !fits(r);
    bad[stages] = hopeless(r);
    enum status st = run_max(r, bad, stages + 1, diag);
    *out = (struct fit){true, bad[stages] > 0, bad[stage] == 0};
    for (int i = 0; i < stages; i++)
        out->fits &= bad[i] == 0;
    mem_free(bad);
    return st;
}

/* Tries the given activations, cheapest in time first, and smaller micro-batches. A stage
 * of a pipeline keeps the first that fits its ranks, whatever the others need. Without
 * probes it is quicker, and their few bytes hardly ever decide. */
static enum status search(struct run *r, bool probes, struct fit *fit,
                          struct diag *diag)
{
    static const enum memory_activations order[] = {
            ACTIVATIONS_KEEP, ACTIVATIONS_SELECTIVE, ACTIVATIONS_RECOMPUTE};
    const struct config *c = r->config;
    bool auto_act = c->memory.activations == ACTIVATIONS_AUTO;
    bool auto_micro = c->train.micro_batch == 0;
    int64_t m =
            auto_micro ? auto_micro_batch(c, micro_batch_aim(c)) : c->train.micro_batch;
    for (;;) {
        r->micro_batch = m;
        fit->stage_fits = false;
        for (size_t i = 0; i < (auto_act ? ARRAY_LEN(order) : 1); i++) {
            if (!fit->stage_fits)
                r->activations = auto_act ? order[i] : c->memory.activations;
            TRY(try_programs(r, probes, fit, diag));
            if (fit->fits)
                return ST_OK;
            if (fit->hopeless)
                i = MAX(i, ARRAY_LEN(order) - 2); /* the smallest, for the report */
        }
        int64_t smaller = auto_micro ? auto_micro_batch(c, m / 2) : m;
        if (smaller >= m || fit->hopeless)
            return ST_OK; /* run_check_fit tells */
        m = smaller;
    }
}

/* `auto` is settled once: the run keeps its micro-batch when it goes on, whatever memory
 * there is then. */
static enum status keep_micro_batch(struct run *r, struct diag *diag)
{
    if (r->config->train.micro_batch != 0)
        return ST_OK;
    int64_t kept = run_is_first(r) ? run_state_micro_batch(r) : 0;
    TRY(run_broadcast(r, &kept, sizeof(kept), diag));
    if (kept > 0 && layout_takes_micro_batch(r->config, kept))
        r->config->train.micro_batch = kept;
    return ST_OK;
}

static enum status settle(struct run *r, struct fit *fit, struct diag *diag)
{
    const struct config *c = r->config;
    TRY(keep_micro_batch(r, diag));
    bool monitors = r->monitor_every > 0;
    if (c->memory.activations == ACTIVATIONS_AUTO || c->train.micro_batch == 0) {
        TRY(search(r, false, fit, diag));
        if (monitors)
            TRY(try_programs(r, true, fit, diag));
        /* In a very small model the probes can decide after all. */
        return fit->fits || fit->hopeless ? ST_OK : search(r, monitors, fit, diag);
    }
    r->micro_batch = c->train.micro_batch;
    r->activations = c->memory.activations;
    return try_programs(r, monitors, fit, diag);
}

/* The settled layout with everything that follows from it. */
static enum status try_layout(struct run *r, int choice, struct fit *fit,
                              struct diag *diag)
{
    struct config *c = r->config;
    enum status st =
            layout_resolve(c, r->ranks.size, choice, &r->arena, &r->layout, diag);
    if (st == ST_NOT_FOUND)
        return st;
    TRY(run_agree(r, st, diag));
    layout_of_rank(&r->layout, c, r->ranks.rank, &r->place);
    return settle(r, fit, diag);
}

/* Degrees left open: the first layout that fits, or the preferred one where none does. */
static enum status settle_layout(struct run *r, struct diag *diag)
{
    struct config *c = r->config;
    const struct config_parallel asked = c->parallel;
    int64_t micro_batch = c->train.micro_batch;
    bool open = layout_is_open(c) && r->ranks.size > 1;
    struct fit fit = {0};
    for (int choice = 0;; choice++) {
        c->parallel = asked;
        c->train.micro_batch = micro_batch;
        enum status st = try_layout(r, choice, &fit, diag);
        if (st == ST_NOT_FOUND && choice > 0)
            break;
        if (st != ST_OK || fit.fits || !open)
            return st;
    }
    c->parallel = asked;
    c->train.micro_batch = micro_batch;
    return try_layout(r, 0, &fit, diag);
}

/* --------------------------------------------------------------------- the machine */

/* Which processors a rank may use, and on which machine. */
struct share {
    char host[256];
    cpu_set_t cpus;
};

/* Ranks of this machine, and those of them that have the same processors. */
static enum status count_neighbours(struct run *r, int *on_host, int *same_cpus,
                                    struct diag *diag)
{
    struct share mine;
    struct share *all = mem_alloc((size_t)r->ranks.size * sizeof(*all));
    memset(&mine, 0, sizeof(mine));
    if (gethostname(mine.host, sizeof(mine.host) - 1) != 0)
        mine.host[0] = '\0';
    if (sched_getaffinity(0, sizeof(mine.cpus), &mine.cpus) != 0)
        CPU_ZERO(&mine.cpus);
    enum status st = run_gather(r, &mine, all, sizeof(mine), diag);
    *on_host = *same_cpus = 0;
    for (int i = 0; i < r->ranks.size; i++) {
        bool host = memcmp(all[i].host, mine.host, sizeof(mine.host)) == 0;
        *on_host += host;
        *same_cpus += host && CPU_EQUAL(&all[i].cpus, &mine.cpus);
    }
    mem_free(all);
    return st;
}

/* The rank's part of the machine: ranks that share processors divide them. */
static enum status open_backend(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    int on_host, same_cpus;
    TRY(count_neighbours(r, &on_host, &same_cpus, diag));
    struct cpu_backend_options o = {.n_threads = (int)c->train.threads,
                                    .isa_mask = CPU_ISA_ALL,
                                    .world = r->ranks.world};
    if (o.n_threads == 0 && r->ranks.size > 1)
        o.n_threads = MAX(pool_cpus_available() / MAX(same_cpus, 1), 1);
    TRY(run_agree(r, cpu_backend_create(&o, &r->backend, diag), diag));
    r->pool = cpu_backend_pool(r->backend);
    r->n_threads = pool_threads(r->pool);
    r->device_limit_given = c->memory.device_bytes > 0;
    r->device_limit_bytes = r->device_limit_given ? c->memory.device_bytes
                                                  : machine_bytes() / MAX(on_host, 1);
    return ST_OK;
}

/* Probes look at whole parameters of one rank. */
static void settle_monitors(struct run *r)
{
    struct opt_store s = config_store(r->config);
    r->monitor_every = r->config->log.monitor_every;
    if (r->ranks.size == 1 || r->monitor_every == 0)
        return;
    if (strcmp(opt_where(&s, "log.monitor_every"), "default") != 0)
        log_warn("log.monitor_every (%s): got %lld, but statistics of parameters and "
                 "activations are taken with one rank only: left out",
                 opt_where(&s, "log.monitor_every"), (long long)r->monitor_every);
    r->monitor_every = 0;
}

static enum status gather_sheets(struct run *r, struct diag *diag)
{
    struct run_sheet mine = {.arena_bytes =
                                     r->train[0].low.program.pool_bytes[POOL_DEVICE],
                             .scratch_bytes = r->scratch_bytes,
                             .reader_bytes = run_reader_bytes(r)};
    const struct mem_pool *best = &r->train[0].report.pool[POOL_DEVICE];
    for (int i = 1; i < r->n_train; i++) {
        const struct mem_pool *p = &r->train[i].report.pool[POOL_DEVICE];
        best = p->top_bytes > best->top_bytes ? p : best;
    }
    memcpy(mine.class_bytes, best->class_bytes, sizeof(mine.class_bytes));
    r->sheets = arena_array(&r->arena, struct run_sheet, r->ranks.size);
    return run_gather(r, &mine, r->sheets, sizeof(mine), diag);
}

const struct run_sheet *run_largest_sheet(const struct run *r, int *rank)
{
    *rank = 0;
    for (int i = 1; i < r->ranks.size; i++) {
        const struct run_sheet *a = &r->sheets[i], *b = &r->sheets[*rank];
        if (a->arena_bytes + a->scratch_bytes + a->reader_bytes >
            b->arena_bytes + b->scratch_bytes + b->reader_bytes)
            *rank = i;
    }
    return &r->sheets[*rank];
}

enum status run_plan(struct run *r, struct diag *diag)
{
    r->ranks.deadline_s = layout_deadline_s(r->config);
    run_be_patient(r, true);
    TRY(run_ranks_compare(r, diag));
    settle_monitors(r);
    model_create(&r->config->model, &r->model);
    TRY(run_agree(r, model_count_params(&r->model, &r->n_params, diag), diag));
    TRY(open_backend(r, diag));
    TRY(settle_layout(r, diag));
    r->config->train.micro_batch = r->micro_batch;
    TRY(gather_sheets(r, diag));
    return run_ranks_verify(r, diag);
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
        if (!layout_takes_micro_batch(r->config, tries[i].micro_batch))
            continue;
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
    bool always = r->monitor_every == 1;
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
    run_ranks_close(r);
    metrics_close(r->metrics);
    if (r->lock)
        ckpt_unlock(r->lock);
    guard_free(&r->guard);
    arena_release(&r->arena);
}
