#include "cmd/run_monitor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/probe_watch.h"
#include "core/log.h"
#include "core/stats.h"
#include "io/prometheus.h"
#include "io/tensorboard.h"

#define Z_ALARM       6.0
#define Z_ALARM_REST  32 /* steps after an alarm without another of its kind */
#define ALARMS_SAID   3  /* lines of the log at one look; all are events */
#define FIELDS_MAX    25
#define NO_CHECKPOINT (-1)

/* Seconds of a step, from a toy on many cores to a large model on few. */
static const double step_bounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                     5,    10,    25,   50,  100,  250, 500};

struct run_monitor {
    struct tensorboard *tensorboard;
    struct probe_watch *watch;
    struct probe_figures *figures;              /* [n_probes] */
    struct probe_alarm *alarms;                 /* [n_probes] */
    int64_t loss_quiet_until, norm_quiet_until; /* steps: no z-score alarm before */
    struct prometheus_histogram step_seconds;
    struct run_monitor_step last; /* step and figures, for run_monitor_finish */
    struct run_monitor_figures last_figures;
    int64_t n_not_applied, n_alarms;
    int64_t saved_step; /* last seen; NO_CHECKPOINT */
    double saved_at_s;
    bool tensorboard_failed, prometheus_failed;
};

bool run_monitor_is_due(const struct run *r, int64_t step)
{
    int64_t every = r->monitor_every;
    return every > 0 && (step + 1) % every == 0;
}

/* ------------------------------------------------------------------- the start event */

/* A word that a shell reads as it is, quoted where it must be. */
static void add_word(struct str *out, const char *word)
{
    size_t plain = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_@%+=:,./-");
    str_addc(out, ' ');
    if (*word && !word[plain]) {
        str_add(out, word);
        return;
    }
    str_addc(out, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            str_add(out, "'\\''");
        else
            str_addc(out, *word);
    }
    str_addc(out, '\'');
}

/* The command that goes on with this run. */
static void command_text(const struct run *r, struct str *out)
{
    const struct cmd_args *a = r->args;
    str_printf(out, "angel %s", a->command ? a->command->name : "pretrain");
    for (int i = 0; i < a->n_positional; i++)
        add_word(out, a->positional[i]);
    struct str pair = {0};
    for (int i = 0; i < a->n_overrides; i++) {
        str_clear(&pair);
        str_printf(&pair, "%s=%s", a->overrides[i].key, a->overrides[i].value);
        add_word(out, str_get(&pair));
    }
    for (int i = 0; i < a->allow_changes.n; i++) {
        str_add(out, " --allow-change");
        add_word(out, a->allow_changes.items[i]);
    }
    str_free(&pair);
}

/* What the run is, for those who read the metrics later. */
static void start_event(struct run *r)
{
    struct str command = {0};
    char folder[4096] = ".", host[256] = "localhost", names[SC_COUNT][32];
    struct metrics_field f[FIELDS_MAX];
    size_t n = 0;
    command_text(r, &command);
    if (!getcwd(folder, sizeof(folder)))
        snprintf(folder, sizeof(folder), ".");
    if (gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "localhost");
    f[n++] = METRICS_TEXT("event", "start");
    f[n++] = METRICS_TEXT("command", str_get(&command));
    f[n++] = METRICS_TEXT("folder", folder);
    f[n++] = METRICS_TEXT("host", host);
    f[n++] = METRICS_I64("threads", r->n_threads);
    f[n++] = METRICS_I64("ranks", r->ranks.size);
    f[n++] = METRICS_TEXT("precision", r->config->train.precision == PRECISION_BF16
                                               ? "bf16"
                                               : "fp32");
    f[n++] = METRICS_I64("parameters", r->n_params);
    f[n++] = METRICS_I64("steps", r->config->train.steps);
    f[n++] = METRICS_I64("micro_batch", r->micro_batch);
    f[n++] = METRICS_F64("peak_flops", r->peak_flops);
    const struct mem_pool *pool = &r->train[0].report.pool[POOL_DEVICE];
    f[n++] =
            METRICS_I64("arena_bytes", r->train[0].low.program.pool_bytes[POOL_DEVICE]);
    f[n++] = METRICS_I64("scratch_bytes", r->scratch_bytes);
    f[n++] = METRICS_I64("reader_bytes", run_reader_bytes(r));
    for (int c = 0; c < SC_COUNT; c++) {
        if (pool->class_bytes[c] == 0)
            continue;
        snprintf(names[c], sizeof(names[c]), "%s_bytes",
                 storage_class_name((enum storage_class)c));
        f[n++] = METRICS_I64(names[c], pool->class_bytes[c]);
    }
    ASSERT(n <= FIELDS_MAX);
    run_metric(r, "event", f, n);
    str_free(&command);
}

/* --------------------------------------------------------------------------- opening */

/* The first program with probes: all have the same ones. */
static const struct run_program *probed_program(const struct run *r)
{
    for (int i = 0; i < r->n_train; i++)
        if (r->train[i].low.n_probes > 0)
            return &r->train[i];
    return NULL;
}

enum status run_monitor_open(struct run *r, struct diag *diag)
{
    const struct config_log *log = &r->config->log;
    if (!run_is_first(r))
        return ST_OK;
    struct run_monitor *m = mem_alloc(sizeof(*m));
    r->monitor = m;
    m->step_seconds.bounds = step_bounds;
    m->step_seconds.n_bounds = ARRAY_LEN(step_bounds);
    m->saved_step = r->last_saved_step >= 0 ? r->last_saved_step : NO_CHECKPOINT;
    m->saved_at_s = run_now_s();
    const struct run_program *p = probed_program(r);
    if (p) {
        size_t n = p->low.n_probes;
        m->figures = mem_alloc(n * sizeof(*m->figures));
        m->alarms = mem_alloc(n * sizeof(*m->alarms));
        m->watch = probe_watch_create(&r->model, p->low.probes, p->low.n_probes,
                                      r->monitor_every);
    }
    if (log->tensorboard[0])
        TRY(tensorboard_open(log->tensorboard, r->at.step > 0 ? r->at.step : -1,
                             &m->tensorboard, diag));
    if (log->prometheus[0]) {
        struct str empty = {0};
        TRY(prometheus_write(log->prometheus, &empty, diag));
    }
    start_event(r);
    return ST_OK;
}

void run_monitor_close(struct run *r)
{
    struct run_monitor *m = r->monitor;
    if (!m)
        return;
    tensorboard_close(m->tensorboard);
    probe_watch_destroy(m->watch);
    mem_free(m->figures);
    mem_free(m->alarms);
    mem_free(m);
    r->monitor = NULL;
}

/* --------------------------------------------------------------------------- outputs */

static void write_scalars(struct run *r, const struct tensorboard_scalar *s, size_t n)
{
    struct run_monitor *m = r->monitor;
    struct diag diag = {0};
    if (!m->tensorboard)
        return;
    enum status st = tensorboard_write(m->tensorboard, r->at.step, s, n, &diag);
    if (st != ST_OK && !m->tensorboard_failed)
        log_warn("TensorBoard figures lost, training goes on: %s", diag.text);
    m->tensorboard_failed = st != ST_OK;
}

static void gauge(struct str *out, const char *name, double value, const char *help)
{
    prometheus_metric(out, name, PROMETHEUS_GAUGE, help);
    prometheus_sample(out, name, NULL, NULL, value);
}

static void counter(struct str *out, const char *name, double value, const char *help)
{
    prometheus_metric(out, name, PROMETHEUS_COUNTER, help);
    prometheus_sample(out, name, NULL, NULL, value);
}

static void add_memory(const struct run *r, struct str *out)
{
    static const char name[] = "angel_memory_planned_bytes";
    const struct mem_pool *pool = &r->train[0].report.pool[POOL_DEVICE];
    prometheus_metric(out, name, PROMETHEUS_GAUGE,
                      "Bytes planned by class, at the peak.");
    for (int c = 0; c < SC_COUNT; c++)
        if (pool->class_bytes[c] > 0)
            prometheus_sample(out, name, "class",
                              storage_class_name((enum storage_class)c),
                              (double)pool->class_bytes[c]);
}

static void write_prometheus(struct run *r)
{
    struct run_monitor *m = r->monitor;
    const struct run_monitor_step *s = &m->last;
    const struct run_monitor_figures *f = &m->last_figures;
    struct str t = {0};
    struct diag diag = {0};
    gauge(&t, "angel_step", (double)r->at.step, "Completed updates.");
    gauge(&t, "angel_steps_planned", (double)r->config->train.steps,
          "Updates of the whole run.");
    counter(&t, "angel_tokens_total", (double)r->at.tokens,
            "Trained tokens since the first attempt.");
    gauge(&t, "angel_loss", s->loss, "Mean loss of a token of the step.");
    gauge(&t, "angel_token_loss_max", f->max_token_loss,
          "Largest loss of a token of the step.");
    if (r->has_eval && r->evaluated)
        gauge(&t, "angel_eval_loss", r->last_eval_loss, "Held-out loss.");
    gauge(&t, "angel_grad_norm", s->grad_norm, "Gradient norm before clipping.");
    gauge(&t, "angel_clip_factor_ratio", f->clip_factor,
          "What clipping multiplied the gradient by.");
    gauge(&t, "angel_learning_rate", s->lr, "Learning rate of the step.");
    gauge(&t, "angel_tokens_per_second", s->tokens_per_s, "Trained tokens a second.");
    gauge(&t, "angel_mfu_ratio", s->mfu, "Model flops over the peak of the device.");
    prometheus_add_histogram(&t, "angel_step_seconds", "Duration of steps.",
                             &m->step_seconds);
    counter(&t, "angel_updates_not_applied_total", (double)m->n_not_applied,
            "Steps of this attempt whose update was left out.");
    counter(&t, "angel_alarms_total", (double)m->n_alarms,
            "Alarms of the monitors in this attempt.");
    if (m->saved_step != NO_CHECKPOINT) {
        gauge(&t, "angel_checkpoint_step", (double)m->saved_step,
              "Step of the newest checkpoint.");
        gauge(&t, "angel_checkpoint_age_seconds", run_now_s() - m->saved_at_s,
              "Time since the newest checkpoint, or since the start.");
    }
    gauge(&t, "angel_attempt", (double)metrics_attempt(r->metrics),
          "Times the run was started.");
    add_memory(r, &t);
    enum status st = prometheus_write(r->config->log.prometheus, &t, &diag);
    if (st != ST_OK && !m->prometheus_failed)
        log_warn("figures for Prometheus lost, training goes on: %s", diag.text);
    m->prometheus_failed = st != ST_OK;
    str_free(&t);
}

/* Notes a checkpoint that is new since the last step; it was saved `ago_s` ago. */
static void note_checkpoint(const struct run *r, double ago_s)
{
    struct run_monitor *m = r->monitor;
    if (r->last_saved_step < 0 || r->last_saved_step == m->saved_step)
        return;
    m->saved_step = r->last_saved_step;
    m->saved_at_s = run_now_s() - ago_s;
}

void run_monitor_finish(struct run *r)
{
    note_checkpoint(r, 0);
    if (r->monitor->last.program && r->config->log.prometheus[0])
        write_prometheus(r);
}

void run_monitor_after_eval(struct run *r)
{
    if (!r->monitor)
        return;
    const struct tensorboard_scalar s[] = {{"loss/eval", r->last_eval_loss}};
    write_scalars(r, s, ARRAY_LEN(s));
}

/* ---------------------------------------------------------------------------- alarms */

static void alarm_event(struct run *r, const char *rule, const char *tensor, int layer,
                        double now, double before)
{
    const struct metrics_field f[] = {
            METRICS_TEXT("event", "alarm"), METRICS_TEXT("rule", rule),
            METRICS_TEXT("tensor", tensor), METRICS_I64("layer", layer),
            METRICS_F64("value", now),      METRICS_F64("before", before),
    };
    r->monitor->n_alarms++;
    run_metric(r, "event", f, ARRAY_LEN(f));
}

/* The score of a step's figure, with an alarm when it is far above the others. */
static double score_step(struct run *r, const char *name, const struct guard_window *w,
                         double x, int64_t *quiet_until)
{
    double z = guard_score(w, x);
    if (z > Z_ALARM && r->at.step >= *quiet_until) {
        *quiet_until = r->at.step + Z_ALARM_REST;
        log_warn("step %" PRId64 ": %s %.4g is %.1f standard deviations above the last "
                 "%d updates' (alarm above %g)",
                 r->at.step, name, x, z, GUARD_WINDOW, Z_ALARM);
        alarm_event(r, "z-score", name, -1, x, z);
    }
    return z;
}

static const char *probe_text(const struct run *r, const struct lowered_probe *p,
                              char *buf, size_t n)
{
    const char *kind = lowered_probe_name(p->kind);
    if (!lowered_probe_is_activation(p->kind))
        snprintf(buf, n, "%s of %s", kind, r->model.params[p->index].name);
    else if (p->index >= 0)
        snprintf(buf, n, "%s of layer %d", kind, (int)p->index);
    else
        snprintf(buf, n, "%s",
                 p->kind == PROBE_RESIDUAL ? "residual of the embedding" : kind);
    return buf;
}

static int probe_layer(const struct run *r, const struct lowered_probe *p)
{
    return lowered_probe_is_activation(p->kind) ? (int)p->index
                                                : (int)r->model.params[p->index].layer;
}

static void raise_alarms(struct run *r, const struct lowered *low, uint32_t n)
{
    char text[256];
    for (uint32_t i = 0; i < n; i++) {
        const struct probe_alarm *a = &r->monitor->alarms[i];
        const struct lowered_probe *p = &low->probes[a->probe];
        probe_text(r, p, text, sizeof(text));
        alarm_event(r, a->rule, text, probe_layer(r, p), a->now, a->before);
        if (i < ALARMS_SAID)
            log_warn("step %" PRId64 ": %s: %s of %s is %.4g, was %.4g", r->at.step,
                     a->rule,
                     strcmp(a->rule, "growth") == 0 ? "largest magnitude"
                                                    : "root mean square",
                     text, a->now, a->before);
    }
    if (n > ALARMS_SAID)
        log_warn("step %" PRId64 ": %u more alarms in %s", r->at.step, n - ALARMS_SAID,
                 r->config->log.jsonl);
}

/* ---------------------------------------------------------------------------- probes */

/* Joins the copies of all micro-batches. */
static struct probe_figures read_probe(const struct run_program *p, uint32_t value,
                                       int64_t elems, uint32_t n_copies)
{
    double all[STATS_COUNT] = {0}, s[STATS_COUNT];
    for (uint32_t i = 0; i < n_copies; i++) {
        exec_read(p->exec, value, i, s);
        all[STATS_ABSMAX] = fmax(all[STATS_ABSMAX], s[STATS_ABSMAX]);
        for (int k = STATS_SQUARES; k < STATS_COUNT; k++)
            all[k] += s[k];
    }
    double n = (double)elems * n_copies;
    return (struct probe_figures){.absmax = all[STATS_ABSMAX],
                                  .rms = sqrt(all[STATS_SQUARES] / n),
                                  .mean = all[STATS_SUM] / n,
                                  .zeros = all[STATS_ZEROS] / n};
}

static void read_probes(struct run *r, const struct run_program *p)
{
    for (uint32_t i = 0; i < p->low.n_probes; i++) {
        const struct lowered_probe *probe = &p->low.probes[i];
        bool activation = lowered_probe_is_activation(probe->kind);
        r->monitor->figures[i] =
                read_probe(p, probe->value, probe->elems,
                           activation ? p->low.program.n_micro_batches : 1);
    }
}

static void activation_event(struct run *r, const struct lowered_probe *p,
                             const struct probe_figures *f)
{
    const struct metrics_field fields[] = {
            METRICS_TEXT("event", "monitor"),
            METRICS_TEXT("tensor", lowered_probe_name(p->kind)),
            METRICS_I64("layer", p->index),
            METRICS_F64("absmax", f->absmax),
            METRICS_F64("rms", f->rms),
            METRICS_F64("mean", f->mean),
            METRICS_F64("zeros", f->zeros),
    };
    run_metric(r, "event", fields, ARRAY_LEN(fields));
}

/* f: the figures of the parameter's probes, in the order of their kinds. */
static void param_event(struct run *r, const struct param *row,
                        const struct probe_figures *f)
{
    double ratio =
            f[PROBE_PARAM].rms > 0 ? f[PROBE_UPDATE].rms / f[PROBE_PARAM].rms : 0;
    const struct metrics_field fields[] = {
            METRICS_TEXT("event", "monitor"),
            METRICS_TEXT("tensor", row->name),
            METRICS_I64("layer", row->layer),
            METRICS_F64("absmax", f[PROBE_PARAM].absmax),
            METRICS_F64("rms", f[PROBE_PARAM].rms),
            METRICS_F64("mean", f[PROBE_PARAM].mean),
            METRICS_F64("zeros", f[PROBE_PARAM].zeros),
            METRICS_F64("grad_absmax", f[PROBE_GRAD].absmax),
            METRICS_F64("grad_rms", f[PROBE_GRAD].rms),
            METRICS_F64("exp_avg_absmax", f[PROBE_EXP_AVG].absmax),
            METRICS_F64("exp_avg_sq_absmax", f[PROBE_EXP_AVG_SQ].absmax),
            METRICS_F64("update_rms", f[PROBE_UPDATE].rms),
            METRICS_F64("update_ratio", ratio),
    };
    run_metric(r, "event", fields, ARRAY_LEN(fields));
}

static double squares(const struct probe_figures *f, const struct lowered_probe *p)
{
    return f->rms * f->rms * (double)p->elems;
}

/* Whole-model figures of a look, as charts: what a glance should show. */
static void look_scalars(struct run *r, const struct lowered *low)
{
    const struct probe_figures *f = r->monitor->figures;
    double update = 0, weight = 0, residual = 0, lse = 0, logits = 0;
    for (uint32_t i = 0; i < low->n_probes; i++) {
        const struct lowered_probe *p = &low->probes[i];
        if (p->kind == PROBE_UPDATE)
            update += squares(&f[i], p);
        else if (p->kind == PROBE_PARAM)
            weight += squares(&f[i], p);
        else if (p->kind == PROBE_RESIDUAL)
            residual = f[i].rms; /* the last layer's stays */
        else if (p->kind == PROBE_ATTN_LSE)
            lse = fmax(lse, f[i].absmax);
        else if (p->kind == PROBE_LOGITS)
            logits = f[i].absmax;
    }
    const struct tensorboard_scalar s[] = {
            {"monitor/update_ratio", weight > 0 ? sqrt(update / weight) : 0},
            {"monitor/last_residual_rms", residual},
            {"monitor/attn_lse_absmax", lse},
            {"monitor/logits_absmax", logits}};
    write_scalars(r, s, ARRAY_LEN(s));
}

static void look(struct run *r, const struct run_program *p)
{
    struct run_monitor *m = r->monitor;
    read_probes(r, p);
    for (uint32_t i = 0; i < p->low.n_probes; i++) {
        const struct lowered_probe *probe = &p->low.probes[i];
        if (lowered_probe_is_activation(probe->kind))
            activation_event(r, probe, &m->figures[i]);
        else if (probe->kind == PROBE_PARAM)
            param_event(r, &r->model.params[probe->index], &m->figures[i]);
    }
    look_scalars(r, &p->low);
    raise_alarms(r, &p->low, probe_watch_look(m->watch, m->figures, m->alarms));
}

/* ---------------------------------------------------------------------------- a step */

/* Token losses are where the last stage is, of each data rank its own. */
static enum status read_figures(struct run *r, const struct run_program *p,
                                struct run_monitor_figures *out, struct diag *diag)
{
    float factor;
    exec_read(p->exec, p->low.clip_scale, 0, &factor);
    bool last = r->place.coord[MESH_PP] == r->layout.mesh.degree[MESH_PP] - 1;
    struct probe_figures loss = {0};
    if (last)
        loss = read_probe(p, p->low.loss_stats, 1, p->low.program.n_micro_batches);
    *out = (struct run_monitor_figures){.max_token_loss = loss.absmax,
                                        .clip_factor = (double)factor};
    return run_max(r, &out->max_token_loss, 1, diag);
}

enum status run_monitor_after_step(struct run *r, const struct run_monitor_step *s,
                                   struct diag *diag)
{
    struct run_monitor *m = r->monitor;
    struct run_monitor_figures f;
    TRY(read_figures(r, s->program, &f, diag));
    if (!m)
        return ST_OK; /* the first rank alone records */
    f.loss_z = score_step(r, "loss", &r->guard.loss, s->loss, &m->loss_quiet_until);
    f.grad_norm_z = score_step(r, "gradient norm", &r->guard.norm, s->grad_norm,
                               &m->norm_quiet_until);
    m->n_not_applied += !s->ok;
    prometheus_observe(&m->step_seconds, s->step_s);
    note_checkpoint(r, s->step_s);
    m->last = *s;
    m->last_figures = f;
    if (s->program->low.n_probes > 0)
        look(r, s->program);
    if (!s->due)
        return ST_OK;
    const struct tensorboard_scalar scalars[] = {
            {"loss/train", s->loss},
            {"train/grad_norm", s->grad_norm},
            {"train/lr", s->lr},
            {"speed/tokens_per_s", s->tokens_per_s},
            {"speed/mfu", s->mfu}};
    write_scalars(r, scalars, ARRAY_LEN(scalars));
    if (r->config->log.prometheus[0])
        write_prometheus(r);
    return ST_OK;
}

struct run_monitor_figures run_monitor_figures(const struct run *r)
{
    return r->monitor ? r->monitor->last_figures : (struct run_monitor_figures){0};
}
