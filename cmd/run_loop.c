/* The steps of a run. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cmd/progress.h"
#include "cmd/run.h"
#include "cmd/run_monitor.h"
#include "cmd/signals.h"
#include "core/hash.h"
#include "core/hyper.h"
#include "core/log.h"
#include "core/lr.h"
#include "io/file.h"
#include "io/tok.h"
#include "kernels/cpu/peak.h"

/* ------------------------------------------------------------------------- opening */

static enum status open_memory(struct run *r, struct diag *diag)
{
    TRY(exec_memory_create(r->backend, r->train[0].low.program.pool_bytes,
                           r->scratch_bytes, &r->memory, diag));
    struct exec_options o = {0};
    memcpy(o.groups, r->ranks.groups, sizeof(o.groups));
#if ANGEL_DEBUG
    o.check = true;
    o.guard_bytes = 64;
#endif
    for (int i = 0; i < r->n_train; i++)
        TRY(exec_create(&r->train[i].low.program, &r->memory, &o, &r->train[i].exec,
                        diag));
    if (r->has_eval)
        TRY(exec_create(&r->eval.low.program, &r->memory, &o, &r->eval.exec, diag));
    return ST_OK;
}

static struct data_source *data_sources_of(struct run *r,
                                           const struct config_sources *s)
{
    struct data_source *out = arena_array(&r->arena, struct data_source, s->n);
    for (int64_t i = 0; i < s->n; i++)
        out[i] = (struct data_source){s->items[i].path, s->items[i].weight};
    return out;
}

/* What decides which sample is which: a run in which this changes opens a new segment. */
static enum status data_fingerprint(struct run *r, uint64_t *out, struct diag *diag)
{
    const struct config *c = r->config;
    struct hash_chain h = {0};
    for (int64_t i = 0; i < data_sources(r->data, DATA_TRAIN); i++) {
        struct data_source_info info = data_source_info(r->data, DATA_TRAIN, i);
        uint64_t id;
        TRY(data_identity(r->data, DATA_TRAIN, i, &id, diag));
        hash_chain_add(&h, &id, sizeof(id));
        hash_chain_add(&h, &info.n_samples, sizeof(info.n_samples));
        hash_chain_add(&h, &info.share, sizeof(info.share));
    }
    const int64_t order[] = {c->data.seq_len, c->train.seed, c->data.shuffle,
                             c->data.mask_documents, c->data.tokenizer};
    hash_chain_add(&h, order, sizeof(order));
    *out = h.value;
    return ST_OK;
}

static enum status open_data(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    struct data_source valid = {c->data.valid, 0};
    struct data_options o = {.train = data_sources_of(r, &c->data.train),
                             .n_train = c->data.train.n,
                             .valid = &valid,
                             .n_valid = c->data.valid[0] ? 1 : 0,
                             .valid_fraction =
                                     c->data.valid[0] ? 0 : c->data.valid_fraction,
                             .tokenizer = tok_bytes(),
                             .text_field = c->data.text_field,
                             .seq_len = c->data.seq_len,
                             .vocab = c->model.vocab,
                             .seed = (uint64_t)c->train.seed,
                             .shuffle = c->data.shuffle,
                             .mask_documents = c->data.mask_documents};
    return data_open(&o, &r->data, diag);
}

/* This rank's samples of step `batch`: the part of its place among the data ranks. Called
 * step by step, from where the run stands: what it trained on before may have had other
 * batch sizes. */
static bool batch_range(void *arg, int64_t batch, int64_t *first, int64_t *n)
{
    struct run *r = arg;
    const struct config *c = r->config;
    if (batch >= c->train.steps)
        return false;
    int64_t global = config_global_batch(c, r->ahead.tokens);
    *n = layout_share(&r->layout, global);
    *first = r->ahead.samples - r->at.segment_sample + r->place.coord[MESH_DP] * *n;
    r->ahead.samples += global;
    r->ahead.tokens += global * c->data.seq_len;
    return true;
}

/* The whole text is read by the first rank alone; of the others its extent is compared. */
static enum status agree_on_data(struct run *r, uint64_t *id, struct diag *diag)
{
    enum status st = run_is_first(r) ? data_fingerprint(r, id, diag) : ST_OK;
    int64_t first[2] = {data_samples(r->data, DATA_TRAIN),
                        data_samples(r->data, DATA_VALID)};
    const int64_t mine[2] = {first[0], first[1]};
    TRY(run_agree(r, st, diag));
    TRY(run_broadcast(r, id, sizeof(*id), diag));
    TRY(run_broadcast(r, first, sizeof(first), diag));
    if (first[0] != mine[0] || first[1] != mine[1])
        st = diag_set(
                diag, ST_DATA,
                "the ranks see different data (data.train, data.valid): got %" PRId64
                " and %" PRId64 " samples on rank %d, wanted %" PRId64 " and %" PRId64
                " as on rank 0",
                mine[0], mine[1], r->ranks.rank, first[0], first[1]);
    return run_agree(r, st, diag);
}

static enum status open_reader(struct run *r, struct diag *diag)
{
    uint64_t id = 0;
    TRY(agree_on_data(r, &id, diag));
    if (r->at.step > 0 && id != r->at.data_id) {
        log_info("the training data changed since the checkpoint: a new data segment "
                 "begins at sample %" PRId64,
                 r->at.samples);
        r->at.segment_sample = r->at.samples;
    }
    r->at.data_id = id;
    r->ahead = (struct run_ahead){r->at.samples, r->at.tokens};
    data_set_segment(r->data, (uint64_t)r->at.segment_sample);
    struct reader_options o = {
            .data = r->data,
            .split = DATA_TRAIN,
            .seq_len = r->config->data.seq_len,
            .max_samples = layout_share(&r->layout, config_global_batch_max(r->config)),
            .n_slots = RUN_READER_SLOTS,
            .first_batch = r->at.step,
            .range = batch_range,
            .range_arg = r};
    return reader_create(&o, &r->reader, diag);
}

/* What the first rank alone has: the directory's lock, the metrics. */
static enum status open_outputs(struct run *r, struct diag *diag)
{
    if (!run_is_first(r))
        return ST_OK;
    struct durable *d =
            r->hooks && r->hooks->durable_rank == 0 ? r->hooks->durable : NULL;
    TRY(ckpt_lock(r->config->checkpoint.dir, d, &r->lock, diag));
    TRY(run_probe_output(r, diag));
    return metrics_open(r->config->log.jsonl, &r->metrics, diag);
}

/* Of the processors of all ranks, measured at the same time. */
static enum status measure_peak(struct run *r, struct diag *diag)
{
    bool bf16 = r->config->train.precision == PRECISION_BF16;
    double peak = r->hooks ? r->hooks->peak_flops : 0;
    if (peak == 0)
        peak = cpu_peak_flops(r->pool, bf16 ? DT_BF16 : DT_F32);
    r->peak_flops = peak;
    return run_sum(r, &r->peak_flops, 1, diag);
}

static enum status open_inputs(struct run *r, struct diag *diag)
{
    TRY(run_check_fit(r, diag));
    if (r->config->init[0] && !file_exists(r->config->init))
        return diag_set(diag, ST_NOT_FOUND,
                        "init: no such checkpoint: got %s, wanted one that exists",
                        r->config->init);
    return open_data(r, diag);
}

enum status run_open(struct run *r, struct diag *diag)
{
    TRY(run_agree(r, open_inputs(r, diag), diag));
    TRY(run_agree(r, open_outputs(r, diag), diag));
    TRY(run_ranks_groups(r, diag));
    TRY(run_agree(r, open_memory(r, diag), diag));
    TRY(run_state_begin(r, diag));
    TRY(open_reader(r, diag));
    TRY(exec_run(r->train[0].exec, CALL_SETUP, diag));
    TRY(measure_peak(r, diag));
    return run_agree(r, run_monitor_open(r, diag), diag);
}

/* ------------------------------------------------------------------------- metrics */

void run_metric(struct run *r, const char *kind, const struct metrics_field *fields,
                size_t n)
{
    if (!r->metrics)
        return; /* the first rank alone records */
    struct metrics_head head = {kind, r->at.step, r->at.tokens,
                                run_now_s() - r->start_s};
    struct diag diag = {0};
    if (metrics_write(r->metrics, &head, fields, n, &diag) != ST_OK &&
        r->metrics_lost++ == 0)
        log_warn("lines of metrics are lost, training goes on: %s", diag.text);
}

static void event(struct run *r, const char *what)
{
    const struct metrics_field fields[] = {METRICS_TEXT("event", what)};
    run_metric(r, "event", fields, ARRAY_LEN(fields));
}

/* ------------------------------------------------------------------------- a step */

static void write_hyper(struct run *r, struct run_program *p, int64_t step, double lr,
                        int64_t n_trained)
{
    const struct config_optimizer *o = &r->config->train.optimizer;
    double z = r->config->train.spike_z;
    double t = (double)(step + 1 - r->guard.skips.n); /* updates, this one included */
    float h[HYPER_COUNT];
    h[HYPER_LR] = (float)lr;
    h[HYPER_BETA1] = (float)o->betas[0];
    h[HYPER_BETA2] = (float)o->betas[1];
    h[HYPER_ONE_BETA1] = (float)(1.0 - o->betas[0]);
    h[HYPER_ONE_BETA2] = (float)(1.0 - o->betas[1]);
    h[HYPER_EPS] = (float)o->eps;
    h[HYPER_DECAY] = (float)o->weight_decay;
    h[HYPER_CORRECT1] = (float)(1.0 / (1.0 - pow(o->betas[0], t)));
    h[HYPER_CORRECT2] = (float)(1.0 / (1.0 - pow(o->betas[1], t)));
    h[HYPER_CLIP] = (float)o->clip;
    h[HYPER_INV_TOKENS] = n_trained > 0 ? (float)(1.0 / (double)n_trained) : 0.0f;
    h[HYPER_NORM_MAX] = (float)guard_limit(&r->guard.norm, z);
    h[HYPER_LOSS_MAX] = (float)guard_limit(&r->guard.loss, z);
    exec_write(p->exec, p->low.hyper, 0, h);
}

/* Micro-batch `mb` of a program gets sequences from `at` on of the arrays. */
static void write_inputs(struct run_program *p, uint32_t mb,
                         const struct data_arrays *a, int64_t at)
{
    exec_write(p->exec, p->low.tokens, mb, a->tokens + at);
    exec_write(p->exec, p->low.labels, mb, a->labels + at);
    exec_write(p->exec, p->low.positions, mb, a->positions + at);
    exec_write(p->exec, p->low.doc_start, mb, a->doc_starts + at);
}

struct step_result {
    double loss, grad_norm, lr, step_s;
    int64_t first_sample, n_samples;
    int64_t tokens;
    double mfu;
    enum guard_reason skipped;
    const struct run_program *program;
};

/* Why the device left the update out. */
static enum guard_reason reason_of(const struct run *r, const struct step_result *s)
{
    if (!isfinite(s->loss) || !isfinite(s->grad_norm))
        return GUARD_NONFINITE;
    float limit = (float)guard_limit(&r->guard.norm, r->config->train.spike_z);
    return limit > 0 && (float)s->grad_norm > limit ? GUARD_NORM_SPIKE
                                                    : GUARD_LOSS_SPIKE;
}

/* A step allocates nothing and logs nothing; that it opens no file follows from the
 * floors: neither core nor kernels know io. */
static enum status run_step_program(struct run_program *p, struct diag *diag)
{
#if ANGEL_DEBUG
    uint64_t allocations = mem_allocations(), lines = log_lines_written();
#endif
    TRY(exec_run(p->exec, CALL_STEP, diag));
#if ANGEL_DEBUG
    ASSERT(mem_allocations() == allocations);
    ASSERT(log_lines_written() == lines);
#endif
    return ST_OK;
}

/* Computes the step whose batch and numbers are written. */
static enum status compute(struct run *r, struct run_program *p, int64_t n_trained,
                           int attempt, struct step_result *out, struct diag *diag)
{
    if (r->hooks && r->hooks->before_compute)
        r->hooks->before_compute(r->hooks->arg, r, attempt);
    TRY(run_step_program(p, diag));
    double loss_sum;
    float norm;
    int32_t ok;
    exec_read(p->exec, p->low.loss_sum, 0, &loss_sum);
    exec_read(p->exec, p->low.grad_norm, 0, &norm);
    exec_read(p->exec, p->low.grad_ok, 0, &ok);
    out->loss = n_trained > 0 ? loss_sum / (double)n_trained : 0.0;
    out->grad_norm = (double)norm;
    out->skipped = ok ? GUARD_NONE : reason_of(r, out);
    return ST_OK;
}

/* What is not finite is computed once more: a fault of the machine does not come back. */
static enum status compute_twice(struct run *r, struct run_program *p,
                                 int64_t n_trained, struct step_result *out,
                                 struct diag *diag)
{
    TRY(compute(r, p, n_trained, 0, out, diag));
    if (out->skipped != GUARD_NONFINITE)
        return ST_OK;
    log_warn("step %" PRId64 ": loss or gradient is not finite; computing it again",
             r->at.step + 1);
    TRY(compute(r, p, n_trained, 1, out, diag));
    if (out->skipped == GUARD_NONFINITE)
        return run_agree(r, run_state_check_finite(r, diag), diag);
    log_warn("step %" PRId64 ": finite when computed again from the same data; this "
             "machine's memory or processor may be at fault",
             r->at.step + 1);
    event(r, "step repeated: not finite the first time");
    return ST_OK;
}

static enum status stop_nonfinite(const struct run *r, const struct step_result *s,
                                  struct diag *diag)
{
    diag_set(diag, ST_DIVERGED,
             "training stopped (step %" PRId64
             ", train.nonfinite=stop): got loss %g and "
             "gradient norm %g, wanted finite numbers",
             r->at.step + 1, s->loss, s->grad_norm);
    diag_hint(diag, "a lower train.optimizer.lr, or train.nonfinite=skip to leave such "
                    "updates out");
    return ST_DIVERGED;
}

/* Ranks with the same data index have the same sequences: one of them counts. */
static bool counts_data(const struct run *r)
{
    return r->place.coord[MESH_TP] == 0 && r->place.coord[MESH_PP] == 0;
}

/* This rank's part of the next batch, and what all ranks say. With one rank a stop does not
 * wait for data. out: *n_trained of the whole batch. r->stop_signal may be set. */
static enum status next_batch(struct run *r, const struct reader_batch **b,
                              int64_t *n_trained, struct diag *diag)
{
    struct run_word mine = {.stop_signal = signals_stop_requested()}, all;
    int from;
    if (r->ranks.size == 1 && mine.stop_signal) {
        r->stop_signal = mine.stop_signal;
        return ST_OK;
    }
    mine.status = (int32_t)reader_next(r->reader, b, diag);
    if (mine.status == ST_OK && counts_data(r))
        mine.n_trained = (*b)->n_trained;
    TRY(run_exchange(r, &mine, &all, &from, diag));
    r->stop_signal = all.stop_signal;
    *n_trained = all.n_trained;
    return all.status == ST_OK ? ST_OK : run_agree(r, (enum status)mine.status, diag);
}

static enum status run_step(struct run *r, struct step_result *out, struct diag *diag)
{
    const struct reader_batch *b = NULL;
    double start = run_now_s();
    int64_t n_trained = 0;
    TRY(next_batch(r, &b, &n_trained, diag));
    if (r->stop_signal)
        return ST_OK;
    ASSERT(b && b->batch == r->at.step);
    struct run_program *p = run_program_next(r);
    out->program = p;
    int64_t micro_tokens = r->micro_batch * r->config->data.seq_len;
    for (uint32_t mb = 0; mb < p->low.program.n_micro_batches; mb++)
        write_inputs(p, mb, &b->arrays, mb * micro_tokens);
    out->lr = lr_at_step(&r->config->train.optimizer, &r->config->train.schedule,
                         r->config->train.steps, r->at.step);
    write_hyper(r, p, r->at.step, out->lr, n_trained);
    TRY(compute_twice(r, p, n_trained, out, diag));
    if (out->skipped == GUARD_NONFINITE &&
        r->config->train.nonfinite == NONFINITE_STOP) {
        r->ranks.agreed = true; /* loss and norm are the same on all */
        return stop_nonfinite(r, out, diag);
    }
    out->first_sample = r->at.samples;
    out->n_samples = p->global_batch;
    out->tokens = out->n_samples * r->config->data.seq_len;
    out->step_s = run_now_s() - start;
    out->mfu = p->model_flops / out->step_s / r->peak_flops;
    r->at.step++;
    r->at.samples += out->n_samples;
    r->at.tokens += out->tokens;
    r->train_s += out->step_s;
    r->train_tokens += out->tokens;
    r->last_loss = out->loss;
    run_be_patient(r, false); /* the first step is done */
    return ST_OK;
}

static void skip_event(struct run *r, const struct guard_skip *s)
{
    const struct metrics_field fields[] = {
            METRICS_TEXT("event", "update skipped"),
            METRICS_TEXT("reason", guard_reason_name(s->reason)),
            METRICS_I64("first_sample", s->first_sample),
            METRICS_I64("n_samples", s->n_samples)};
    run_metric(r, "event", fields, ARRAY_LEN(fields));
}

/* An update that was left out is said and entered in the ledger; too many in a row stop
 * the run. */
static enum status guard_step(struct run *r, const struct step_result *s,
                              struct diag *diag)
{
    if (s->skipped == GUARD_NONE) {
        guard_accept(&r->guard, s->loss, s->grad_norm);
        return ST_OK;
    }
    const struct guard_skip skip = {r->at.step, s->first_sample, s->n_samples,
                                    s->skipped};
    guard_skip_step(&r->guard, &skip);
    log_warn("step %" PRId64
             ": update left out, %s (loss %g, gradient norm %g, samples "
             "%" PRId64 " to %" PRId64 ")",
             r->at.step, guard_reason_name(s->skipped), s->loss, s->grad_norm,
             s->first_sample, s->first_sample + s->n_samples - 1);
    skip_event(r, &skip);
    if (r->guard.skips_in_row < GUARD_SKIPS_IN_ROW_MAX)
        return ST_OK;
    r->ranks.agreed = true;
    diag_set(diag, ST_DIVERGED,
             "training diverged (step %" PRId64
             "): got %d updates in a row that had to "
             "be left out (%s), wanted less",
             r->at.step, GUARD_SKIPS_IN_ROW_MAX, guard_reason_name(s->skipped));
    diag_hint(diag, "a lower train.optimizer.lr, from an earlier checkpoint of %s",
              r->config->checkpoint.dir);
    return ST_DIVERGED;
}

/* ------------------------------------------------------------------------ reports */

static int64_t next_checkpoint(const struct run *r)
{
    int64_t every = r->config->checkpoint.every, steps = r->config->train.steps;
    if (every == 0)
        return steps;
    return MIN((r->at.step / every + 1) * every, steps);
}

static bool is_reported(const struct run *r)
{
    const struct config *c = r->config;
    return r->at.step % c->log.every == 0 || r->at.step == c->train.steps ||
           r->at.step == 1;
}

static enum status monitor_step(struct run *r, const struct step_result *s,
                                struct diag *diag)
{
    const struct run_monitor_step m = {.program = s->program,
                                       .loss = s->loss,
                                       .grad_norm = s->grad_norm,
                                       .lr = s->lr,
                                       .tokens_per_s = (double)s->tokens / s->step_s,
                                       .mfu = s->mfu,
                                       .step_s = s->step_s,
                                       .ok = s->skipped == GUARD_NONE,
                                       .due = is_reported(r)};
    return run_monitor_after_step(r, &m, diag);
}

static void report_step(struct run *r, const struct step_result *s)
{
    const struct config *c = r->config;
    double rate = (double)s->tokens / s->step_s;
    bool due = is_reported(r);
    if (due || s->skipped != GUARD_NONE) {
        const struct run_monitor_figures f = run_monitor_figures(r);
        const struct metrics_field fields[] = {
                METRICS_F64("loss", s->loss),
                METRICS_F64("grad_norm", s->grad_norm),
                METRICS_F64("lr", s->lr),
                METRICS_F64("step_s", s->step_s),
                METRICS_F64("tokens_per_s", rate),
                METRICS_F64("mfu", s->mfu),
                METRICS_F64("max_token_loss", f.max_token_loss),
                METRICS_F64("clip_factor", f.clip_factor),
                METRICS_F64("loss_z", f.loss_z),
                METRICS_F64("grad_norm_z", f.grad_norm_z)};
        run_metric(r, "train", fields, ARRAY_LEN(fields));
    }
    if ((!due && !progress_is_live()) || !run_is_first(r))
        return;
    double mean_s = r->train_s / (double)r->train_tokens * (double)s->tokens;
    struct progress_step p = {.step = r->at.step,
                              .steps = c->train.steps,
                              .loss = s->loss,
                              .grad_norm = s->grad_norm,
                              .lr = s->lr,
                              .tokens_per_s = rate,
                              .mfu = s->mfu,
                              .eta_s = mean_s * (double)(c->train.steps - r->at.step),
                              .next_ckpt_step = next_checkpoint(r)};
    progress_show(&p);
}

/* --------------------------------------------------------------------- evaluation */

struct eval_sum {
    double loss;
    int64_t tokens;
};

/* One micro-batch of `n` held-out sequences, maybe none; the rest of the micro-batch is
 * padding without labels. */
static enum status eval_micro_batch(struct run *r, const struct data_arrays *a,
                                    int64_t first, int64_t n, struct eval_sum *sum,
                                    struct diag *diag)
{
    int64_t seq = r->config->data.seq_len, trained = 0;
    enum status st =
            n > 0 ? data_fetch(r->data, DATA_VALID, first, n, a, &trained, diag)
                  : ST_OK;
    struct run_word mine = {.status = (int32_t)st,
                            .stop_signal = signals_stop_requested()};
    struct run_word all;
    int from;
    mine.n_trained = counts_data(r) ? trained : 0;
    TRY(run_exchange(r, &mine, &all, &from, diag));
    if (all.status != ST_OK)
        return run_agree(r, st, diag);
    r->stop_signal = all.stop_signal;
    if (r->stop_signal)
        return ST_OK;
    size_t pad = (size_t)((r->micro_batch - n) * seq) * sizeof(int32_t);
    memset(a->tokens + n * seq, 0, pad);
    memset(a->positions + n * seq, 0, pad);
    memset(a->doc_starts + n * seq, 0, pad);
    memset(a->labels + n * seq, 0xff, pad);
    write_inputs(&r->eval, 0, a, 0);
    TRY(exec_run(r->eval.exec, CALL_STEP, diag));
    double loss;
    exec_read(r->eval.exec, r->eval.low.loss_sum, 0, &loss);
    sum->loss += loss;
    sum->tokens += all.n_trained;
    return ST_OK;
}

/* The data ranks take micro-batches in turn. out: *done, sequences that were reached. */
static enum status eval_rounds(struct run *r, int64_t total, int64_t *done,
                               struct eval_sum *sum, struct diag *diag)
{
    int64_t n = r->micro_batch * r->config->data.seq_len, at = 0;
    int64_t mine = r->place.coord[MESH_DP] * r->micro_batch;
    int32_t *host = mem_alloc((size_t)n * 4 * sizeof(*host));
    struct data_arrays a = {host, host + n, host + 2 * n, host + 3 * n};
    enum status st = ST_OK;
    while (st == ST_OK && at < total) {
        int64_t left = MAX(total - at - mine, 0);
        st = eval_micro_batch(r, &a, at + mine, MIN(r->micro_batch, left), sum, diag);
        if (r->stop_signal)
            break;
        at += r->micro_batch * r->layout.mesh.degree[MESH_DP];
    }
    mem_free(host);
    *done = at;
    return st;
}

/* The same held-out sequences every time: the first of the split. */
static enum status evaluate(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    int64_t total = MIN(c->train.eval_batches * config_global_batch_max(c),
                        data_samples(r->data, DATA_VALID));
    struct eval_sum sum = {0};
    double start = run_now_s();
    int64_t at = 0;
    enum status st = eval_rounds(r, total, &at, &sum, diag);
    r->eval_unfinished = at < total;
    if (st != ST_OK || r->eval_unfinished)
        return st;
    r->last_eval_loss = sum.tokens > 0 ? sum.loss / (double)sum.tokens : 0.0;
    const struct metrics_field fields[] = {METRICS_F64("loss", r->last_eval_loss),
                                           METRICS_I64("eval_tokens", sum.tokens),
                                           METRICS_F64("eval_s", run_now_s() - start)};
    run_metric(r, "eval", fields, ARRAY_LEN(fields));
    r->evaluated = true;
    run_monitor_after_eval(r);
    log_info("step %" PRId64 "/%" PRId64 "  held-out loss %.4f  (%" PRId64 " tokens)",
             r->at.step, c->train.steps, r->last_eval_loss, sum.tokens);
    return ST_OK;
}

static enum status maybe_evaluate(struct run *r, struct diag *diag)
{
    const struct config *c = r->config;
    if (!r->has_eval || c->train.eval_every == 0)
        return ST_OK;
    bool due = r->at.step % c->train.eval_every == 0;
    return due || r->at.step == c->train.steps ? evaluate(r, diag) : ST_OK;
}

/* --------------------------------------------------------------------- the loop */

/* A save that does not work never stops training: it is said once and tried again at the
 * next one. At the end there is no next one. */
static enum status save(struct run *r, bool last, struct diag *diag)
{
    if (r->last_saved_step == r->at.step)
        return ST_OK;
    r->save_tried_step = r->at.step;
    enum status st = run_save(r, diag);
    if (st == ST_OK) {
        if (r->save_failed)
            log_info("checkpoint saved again (step %" PRId64 ")", r->at.step);
        r->save_failed = false;
        return ST_OK;
    }
    if (last || st == ST_DIVERGED || (st == ST_STOPPED && r->ranks.size > 1))
        return st;
    r->ranks.agreed = false;
    if (!r->save_failed)
        log_warn("checkpoint of step %" PRId64 " not saved, training goes on: %s",
                 r->at.step, diag->text);
    r->save_failed = true;
    event(r, "checkpoint not saved");
    return ST_OK;
}

static enum status after_step(struct run *r, const struct step_result *s,
                              struct diag *diag)
{
    TRY(monitor_step(r, s, diag));
    TRY(guard_step(r, s, diag));
    report_step(r, s);
    TRY(maybe_evaluate(r, diag));
    int64_t every = r->config->checkpoint.every;
    if (every > 0 && r->at.step % every == 0 && r->at.step < r->config->train.steps)
        TRY(save(r, false, diag));
    return ST_OK;
}

static enum status stop(struct run *r, struct diag *diag)
{
    const char *by = strsignal(r->stop_signal);
    event(r, "stopped by a signal");
    if (r->at.step == 0) {
        r->ranks.agreed = true;
        diag_set(diag, ST_STOPPED, "stopped by %s before the first step", by);
        diag_hint(diag, "the same command starts again");
        return ST_STOPPED;
    }
    enum status st = save(r, true, diag);
    if (st != ST_OK) {
        diag_context(diag, "stopped by %s after step %" PRId64 ", not saved", by,
                     r->at.step);
        return st;
    }
    r->ranks.agreed = true;
    diag_set(diag, ST_STOPPED, "stopped by %s after step %" PRId64 "; saved in %s", by,
             r->at.step, r->config->checkpoint.dir);
    diag_hint(diag, "the same command goes on from there");
    return ST_STOPPED;
}

static enum status steps(struct run *r, struct diag *diag)
{
    while (r->at.step < r->config->train.steps) {
        struct step_result s;
        TRY(run_step(r, &s, diag));
        if (r->stop_signal)
            return stop(r, diag);
        TRY(after_step(r, &s, diag));
    }
    return r->eval_unfinished ? stop(r, diag) : save(r, true, diag);
}

/* An error costs no step that was trained: parameters are as the last update left them. */
static void save_before_leaving(struct run *r, enum status st)
{
    struct diag diag = {0};
    bool kept = st == ST_OK || st == ST_STOPPED || st == ST_INTERNAL;
    /* Several ranks save together, or not at all. */
    bool agreed = r->ranks.agreed;
    if (r->ranks.size > 1 && !agreed)
        return;
    if (kept || r->at.step == 0 || r->save_tried_step == r->at.step)
        return;
    enum status saved = save(r, true, &diag);
    r->ranks.agreed = agreed;
    if (saved == ST_OK)
        log_info("saved after step %" PRId64 " in %s", r->at.step,
                 r->config->checkpoint.dir);
    else if (saved != ST_DIVERGED) /* else it is what the run ends with */
        log_warn("not saved: %s", diag.text);
}

enum status run_train(struct run *r, struct diag *diag)
{
    bool first = run_is_first(r);
    if (first)
        progress_begin(r->args->quiet);
    enum status st = steps(r, diag);
    save_before_leaving(r, st);
    if (!first)
        return st;
    progress_end();
    run_monitor_finish(r);
    bool trained = r->train_tokens > 0; /* in this attempt: else there is no loss */
    const struct metrics_field fields[] = {
            METRICS_TEXT("status", status_name(st)),
            METRICS_F64("tokens_per_s",
                        trained ? (double)r->train_tokens / r->train_s : 0.0),
            METRICS_F64("loss", r->last_loss)};
    run_metric(r, "summary", fields, ARRAY_LEN(fields) - !trained);
    if (r->metrics_lost > 0)
        log_warn("lines of metrics that were lost (%s): %" PRId64, r->config->log.jsonl,
                 r->metrics_lost);
    return st;
}
