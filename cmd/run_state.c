/* Parameters and position of a run: initial values, checkpoints, resume. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "cmd/load_config.h"
#include "cmd/run.h"
#include "core/hash.h"
#include "core/log.h"
#include "io/file.h"
#include "io/json.h"

#define TENSORS_PER_PARAM 3
#define SHARD_FILE_BYTES  ((int64_t)4 << 30) /* about the largest file of a checkpoint */
#define DATA_SEGMENTS_KEY "data"
#define GUARD_KEY         "guard"

static struct exec *any_exec(const struct run *r)
{
    return r->train[0].exec;
}

static void *host_pointer(const struct run *r, uint32_t value)
{
    ASSERT(r->backend->ops->host_visible);
    return exec_view(any_exec(r), value, 0).data;
}

/* The tensors of a checkpoint: every parameter's master and moments, in table order, all
 * masters first. Owns nothing but the array. */
static struct ckpt_tensor *state_tensors(const struct run *r, int64_t *n)
{
    static const enum ckpt_kind kinds[TENSORS_PER_PARAM] = {CKPT_WEIGHT, CKPT_EXP_AVG,
                                                            CKPT_EXP_AVG_SQ};
    const struct lowered *low = &r->train[0].low;
    *n = (int64_t)r->model.n_params * TENSORS_PER_PARAM;
    struct ckpt_tensor *t = mem_alloc((size_t)*n * sizeof(*t));
    struct ckpt_tensor *at = t;
    for (int k = 0; k < TENSORS_PER_PARAM; k++) {
        for (uint32_t i = 0; i < r->model.n_params; i++, at++) {
            const struct param *row = &r->model.params[i];
            const struct lowered_param *p = &low->params[i];
            const uint32_t value[TENSORS_PER_PARAM] = {p->master, p->exp_avg,
                                                       p->exp_avg_sq};
            *at = (struct ckpt_tensor){.name = row->name,
                                       .kind = kinds[k],
                                       .dtype = DT_F32,
                                       .ndim = row->ndim,
                                       .shape = {row->dim[0], row->dim[1]},
                                       .split_axis = row->parallel_axis,
                                       .data = host_pointer(r, value[k])};
        }
    }
    return t;
}

/* ------------------------------------------------------------------- initial values */

struct init_job {
    const struct run *r;
};

/* Parameters are dealt to threads by number: each value depends on its own index alone. */
static void init_share(void *arg, int thread, int n_threads)
{
    const struct run *r = ((struct init_job *)arg)->r;
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        const struct param *row = &r->model.params[i];
        int64_t begin, end;
        pool_share(param_elems(row), 4, thread, n_threads, &begin, &end);
        float *w = host_pointer(r, r->train[0].low.params[i].master);
        param_init_values(row, (uint64_t)r->config->train.seed, begin, end - begin,
                          w + begin);
    }
}

static void init_random(struct run *r)
{
    struct init_job job = {r};
    pool_run(r->pool, init_share, &job);
}

/* ------------------------------------------------------------------------ loading */

/* Reads tensors [0, n) into place. */
static enum status read_tensors(struct run *r, struct ckpt *ck,
                                const struct ckpt_tensor *want, int64_t n,
                                struct diag *diag)
{
    struct shard_crew *crew = shard_crew_create(r->pool);
    enum status st = ckpt_match(ck, want, n, diag);
    for (int64_t i = 0; st == ST_OK && i < n; i++)
        st = ckpt_read_tensor(ck, want[i].kind, want[i].name, crew,
                              (void *)(uintptr_t)want[i].data, diag);
    shard_crew_destroy(crew);
    return st;
}

/* `init: PATH`: weights alone; moments stay zero. */
static enum status init_from(struct run *r, const char *path, struct diag *diag)
{
    struct ckpt *ck;
    bool searched;
    TRY(ckpt_open_any(path, &ck, &searched, diag));
    int64_t n;
    struct ckpt_tensor *want = state_tensors(r, &n);
    enum status st = read_tensors(r, ck, want, (int64_t)r->model.n_params, diag);
    if (st == ST_OK)
        log_info("weights from %s", ckpt_get_info(ck)->path);
    else
        diag_context(diag, "init");
    mem_free(want);
    ckpt_close(ck);
    return st;
}

static bool change_is_allowed(const struct cmd_args *args, const char *key)
{
    for (int i = 0; i < args->allow_changes.n; i++)
        if (strcmp(args->allow_changes.items[i], key) == 0)
            return true;
    return false;
}

static bool may_change(const struct run *r, const struct opt *o)
{
    return !(o->flags & OPT_MATHS) || change_is_allowed(r->args, o->key);
}

static void say_change(const struct run *r, const struct opt *o,
                       const struct config *saved)
{
    struct str was = {0}, is = {0};
    opt_print_value(o, saved, &was);
    opt_print_value(o, r->config, &is);
    log_info("changed since the checkpoint: %s from %s to %s", o->key, str_get(&was),
             str_get(&is));
    str_free(&was);
    str_free(&is);
}

static enum status refuse_change(const struct run *r, const struct opt *o,
                                 const struct config *saved, const char *where,
                                 const struct str *allow, struct diag *diag)
{
    struct str was = {0}, is = {0};
    opt_print_value(o, saved, &was);
    opt_print_value(o, r->config, &is);
    diag_set(diag, ST_CONFIG, "%s changed since the checkpoint (%s): got %s, wanted %s",
             o->key, where, str_get(&is), str_get(&was));
    diag_hint(diag,
              "to go on with the change:%s; to start anew: checkpoint.resume=never and "
              "another checkpoint.dir",
              str_get(allow));
    str_free(&was);
    str_free(&is);
    return ST_CONFIG;
}

/* A resumed run must compute what the unbroken one would have: all that differs is said,
 * and what changes the mathematics is refused unless it is allowed by name. */
static enum status compare_config(const struct run *r, const struct config *saved,
                                  const char *where, struct diag *diag)
{
    const struct opt_table *t = config_table();
    uint32_t *rows = mem_alloc(t->n_rows * sizeof(*rows));
    uint32_t n = opt_diff(t, saved, r->config, 0, rows);
    const struct opt *first = NULL;
    struct str allow = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct opt *o = &t->rows[rows[i]];
        say_change(r, o, saved);
        if (may_change(r, o))
            continue;
        first = first ? first : o;
        str_printf(&allow, " --allow-change %s", o->key);
    }
    enum status st =
            first ? refuse_change(r, first, saved, where, &allow, diag) : ST_OK;
    str_free(&allow);
    mem_free(rows);
    return st;
}

/* Text that this build cannot read as a configuration is damage to the reader of a
 * checkpoint, not a mistake of the user. */
static enum status check_config(struct run *r, const char *saved_yaml,
                                const char *where, struct diag *diag)
{
    struct config saved;
    enum status st =
            load_config_text(&saved, saved_yaml, strlen(saved_yaml), where, diag);
    if (st == ST_OK) {
        st = compare_config(r, &saved, where, diag);
    } else {
        diag_context(diag, "configuration in the checkpoint");
        st = ST_DATA;
    }
    config_free(&saved);
    return st;
}

/* The run's position out of the checkpoint's state text. */
static enum status read_state(struct run *r, const struct ckpt *ck, const char **yaml,
                              struct diag *diag)
{
    const char *text = ckpt_state_json(ck), *where = ckpt_get_info(ck)->path;
    struct json *state;
    const struct json *data, *guard;
    struct run_position at = {0};
    TRY(json_parse(&r->arena, text, strlen(text), where, JSON_STRICT, &state, diag));
    TRY(json_get_i64(state, "step", where, &at.step, diag));
    TRY(json_get_i64(state, "tokens", where, &at.tokens, diag));
    TRY(json_get_i64(state, "samples", where, &at.samples, diag));
    TRY(json_get_object(state, DATA_SEGMENTS_KEY, where, &data, diag));
    TRY(json_get_i64(data, "first_sample", where, &at.segment_sample, diag));
    TRY(json_get_u64(data, "id", where, &at.data_id, diag));
    TRY(json_get_object(state, GUARD_KEY, where, &guard, diag));
    TRY(guard_parse(&r->guard, guard, where, diag));
    TRY(json_get_string(state, "config", where, yaml, diag));
    r->at = at;
    return ST_OK;
}

/* The configuration that a checkpoint keeps. False: it cannot be read. */
static bool saved_config(const struct ckpt *ck, struct config *out)
{
    const char *text = ckpt_state_json(ck), *yaml;
    struct arena a = {0};
    struct diag unused = {0};
    struct json *state;
    *out = (struct config){0};
    bool ok = json_parse(&a, text, strlen(text), "state", JSON_STRICT, &state,
                         &unused) == ST_OK &&
              json_get_string(state, "config", "state", &yaml, &unused) == ST_OK &&
              load_config_text(out, yaml, strlen(yaml), "state", &unused) == ST_OK;
    arena_release(&a);
    return ok;
}

int64_t run_state_micro_batch(const struct run *r)
{
    const char *resume = r->config->checkpoint.resume;
    bool by_name = strcmp(resume, "auto") != 0;
    const char *dir = by_name ? resume : r->config->checkpoint.dir;
    struct diag unused = {0};
    struct ckpt *ck;
    struct config saved;
    if (strcmp(resume, "never") == 0 || !file_exists(dir) ||
        ckpt_open_quietly(dir, &ck, &unused) != ST_OK)
        return 0;
    int64_t micro_batch = saved_config(ck, &saved) ? saved.train.micro_batch : 0;
    config_free(&saved);
    ckpt_close(ck);
    return micro_batch;
}

static enum status resume_from(struct run *r, struct ckpt *ck, struct diag *diag)
{
    const char *yaml;
    const char *where = arena_strdup(&r->arena, ckpt_get_info(ck)->path);
    TRY(read_state(r, ck, &yaml, diag));
    TRY(check_config(r, yaml, where, diag));
    int64_t n;
    struct ckpt_tensor *want = state_tensors(r, &n);
    enum status st = read_tensors(r, ck, want, n, diag);
    mem_free(want);
    if (st == ST_OK) {
        r->resumed_from = where;
        r->last_saved_step = r->at.step;
    }
    return st;
}

/* Checkpoints are there, and none can be read: to begin anew would bury them. */
static enum status none_usable(const struct run *r, struct diag *diag)
{
    struct arena a = {0};
    int64_t *steps, n = 0;
    struct diag unused = {0};
    enum status st =
            ckpt_list_steps(&a, r->config->checkpoint.dir, &steps, &n, &unused);
    int64_t newest = n > 0 ? steps[0] : 0;
    arena_release(&a);
    if (st != ST_OK || n == 0)
        return ST_OK;
    diag_set(diag, ST_DATA,
             "no checkpoint can be used (%s): got %" PRId64
             ", the newest of step %" PRId64 ", wanted a whole one of this model",
             r->config->checkpoint.dir, n, newest);
    diag_hint(diag, "'angel ckpt verify' says what is damaged; to start anew: another "
                    "checkpoint.dir");
    return ST_DATA;
}

/* The newest checkpoint that can be read; damaged ones are named and passed over. */
static enum status resume_newest(struct run *r, bool *resumed, struct diag *diag)
{
    int64_t below = INT64_MAX;
    *resumed = false;
    for (;;) {
        struct ckpt *ck;
        enum status st = ckpt_open_newest(r->config->checkpoint.dir, below, &ck, diag);
        if (st == ST_NOT_FOUND)
            return none_usable(r, diag);
        TRY(st);
        below = ckpt_get_info(ck)->step;
        st = resume_from(r, ck, diag);
        ckpt_close(ck);
        if (st == ST_OK)
            *resumed = true;
        if (st != ST_DATA)
            return st;
        log_warn("skipping the checkpoint of step %" PRId64
                 ", looking for an older one: %s",
                 below, diag->text);
        r->at = (struct run_position){0};
    }
}

static enum status resume_named(struct run *r, const char *path, struct diag *diag)
{
    struct ckpt *ck;
    bool searched;
    TRY(ckpt_open_any(path, &ck, &searched, diag));
    enum status st = resume_from(r, ck, diag);
    ckpt_close(ck);
    return st;
}

/* Sets parameters and position. A fresh run in a directory that has checkpoints would
 * mix two runs: refused. */
enum status run_state_begin(struct run *r, struct diag *diag)
{
    const char *resume = r->config->checkpoint.resume;
    bool resumed = false;
    r->last_saved_step = -1;
    if (strcmp(resume, "never") == 0) {
        struct ckpt *ck;
        struct diag none = {0};
        if (ckpt_open_newest(r->config->checkpoint.dir, INT64_MAX, &ck, &none) ==
            ST_OK) {
            int64_t step = ckpt_get_info(ck)->step;
            ckpt_close(ck);
            diag_set(
                    diag, ST_CONFIG,
                    "checkpoint.dir (%s): got a directory with checkpoints (step %" PRId64
                    ") and checkpoint.resume=never, wanted an empty one",
                    r->config->checkpoint.dir, step);
            diag_hint(diag, "another checkpoint.dir, or checkpoint.resume=auto");
            return ST_CONFIG;
        }
    } else if (strcmp(resume, "auto") == 0) {
        TRY(resume_newest(r, &resumed, diag));
    } else {
        TRY(resume_named(r, resume, diag));
        resumed = true;
    }
    if (resumed)
        return ST_OK;
    init_random(r);
    return r->config->init[0] ? init_from(r, r->config->init, diag) : ST_OK;
}

/* ------------------------------------------------------------------------- checks */

struct finite_job {
    const float *x;
    int64_t n;
    bool *bad; /* [threads] */
};

static void finite_share(void *arg, int thread, int n_threads)
{
    const struct finite_job *job = arg;
    int64_t begin, end;
    uint32_t bad = 0;
    pool_share(job->n, 16, thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        uint32_t bits;
        memcpy(&bits, &job->x[i], sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    job->bad[thread] = bad != 0;
}

static bool is_finite(const struct run *r, const struct ckpt_tensor *t, bool *bad)
{
    struct box whole = box_whole(t->ndim, t->shape);
    struct finite_job job = {t->data, box_elems(&whole), bad};
    pool_run(r->pool, finite_share, &job);
    for (int i = 0; i < r->n_threads; i++)
        if (bad[i])
            return false;
    return true;
}

enum status run_state_check_finite(const struct run *r, struct diag *diag)
{
    int64_t n;
    struct ckpt_tensor *t = state_tensors(r, &n);
    bool *bad = mem_alloc((size_t)r->n_threads * sizeof(*bad));
    enum status st = ST_OK;
    for (int64_t i = 0; st == ST_OK && i < n; i++) {
        if (is_finite(r, &t[i], bad))
            continue;
        st = diag_set(diag, ST_DIVERGED,
                      "the state is damaged (tensor '%s', %s, after step %" PRId64
                      "): got a number that is not finite, wanted finite ones",
                      t[i].name, ckpt_kind_name(t[i].kind), r->at.step);
        diag_hint(diag, "it is not saved; the same command goes on from the last "
                        "checkpoint, a lower train.optimizer.lr may help");
    }
    mem_free(bad);
    mem_free(t);
    return st;
}

static int64_t state_bytes(const struct run *r)
{
    return r->n_params * TENSORS_PER_PARAM * (int64_t)sizeof(float);
}

/* Sizes before compression, of which little is gained: what is short of them is told, and
 * may yet be enough. */
static void warn_of_space(const struct run *r)
{
    const char *dir = r->config->checkpoint.dir;
    char have[32], want[32];
    struct statvfs fs;
    struct rlimit limit;
    int64_t file = MIN(state_bytes(r), SHARD_FILE_BYTES);
    if (statvfs(dir, &fs) == 0 &&
        (double)fs.f_bavail * (double)fs.f_frsize < (double)state_bytes(r))
        log_warn("little room for checkpoints (checkpoint.dir %s): got %s free, wanted "
                 "%s for one",
                 dir,
                 text_bytes((int64_t)((double)fs.f_bavail * (double)fs.f_frsize), have,
                            sizeof(have)),
                 text_bytes(state_bytes(r), want, sizeof(want)));
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < (rlim_t)file)
        log_warn("files may not grow as large as a checkpoint's (ulimit -f): got %s, "
                 "wanted %s",
                 text_bytes((int64_t)limit.rlim_cur, have, sizeof(have)),
                 text_bytes(file, want, sizeof(want)));
}

enum status run_probe_output(const struct run *r, struct diag *diag)
{
    static const char bytes[4096] = {0};
    struct str path = {0};
    str_printf(&path, "%s/.tmp-probe", r->config->checkpoint.dir);
    struct diag unused = {0};
    enum status st =
            durable_write_file(NULL, str_get(&path), bytes, sizeof(bytes), diag);
    enum status removed = durable_remove_tree(NULL, str_get(&path), &unused);
    str_free(&path);
    if (st == ST_OK && removed != ST_OK)
        st = removed;
    if (st != ST_OK) {
        diag_context(diag, "checkpoint.dir");
        return ST_CREATE;
    }
    warn_of_space(r);
    return ST_OK;
}

/* ------------------------------------------------------------------------- saving */

static void state_text(const struct run *r, struct str *out)
{
    struct str yaml = {0};
    config_print(r->config, &yaml);
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_object(&w);
    json_key(&w, "step");
    json_i64(&w, r->at.step);
    json_key(&w, "tokens");
    json_i64(&w, r->at.tokens);
    json_key(&w, "samples");
    json_i64(&w, r->at.samples);
    json_key(&w, "attempt");
    json_i64(&w, metrics_attempt(r->metrics));
    json_key(&w, DATA_SEGMENTS_KEY);
    json_begin_object(&w);
    json_key(&w, "first_sample");
    json_i64(&w, r->at.segment_sample);
    json_key(&w, "id");
    json_u64(&w, r->at.data_id);
    json_end_object(&w);
    json_key(&w, GUARD_KEY);
    guard_write(&r->guard, &w);
    json_key(&w, "config");
    json_string(&w, str_get(&yaml));
    json_end_object(&w);
    str_free(&yaml);
}

enum status run_save(struct run *r, struct diag *diag)
{
    TRY(run_state_check_finite(r, diag));
    struct str state = {0};
    state_text(r, &state);
    int64_t n;
    struct ckpt_tensor *tensors = state_tensors(r, &n);
    struct ckpt_save save = {.dir = r->config->checkpoint.dir,
                             .step = r->at.step,
                             .tensors = tensors,
                             .n_tensors = n,
                             .state_json = str_get(&state),
                             .tool = "angel",
                             .keep = (int)r->config->checkpoint.keep,
                             .pool = r->pool,
                             .durable = r->hooks ? r->hooks->durable : NULL};
    struct ckpt_saved saved;
    double start = run_now_s();
    enum status st = ckpt_write(&save, &saved, diag);
    mem_free(tensors);
    str_free(&state);
    TRY(st);
    r->last_saved_step = r->at.step;
    const struct metrics_field fields[] = {
            METRICS_F64("save_s", run_now_s() - start),
            METRICS_I64("bytes", saved.file_bytes),
            METRICS_F64("ratio",
                        (double)saved.file_bytes / (double)MAX(saved.raw_bytes, 1))};
    run_metric(r, "ckpt", fields, ARRAY_LEN(fields));
    return ST_OK;
}
