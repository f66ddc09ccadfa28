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
#include "core/vec.h"
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

static const enum ckpt_kind state_kinds[TENSORS_PER_PARAM] = {CKPT_WEIGHT, CKPT_EXP_AVG,
                                                              CKPT_EXP_AVG_SQ};

/* The tensors of a checkpoint: every parameter's master and moments, in table order, all
 * masters first. Data are there with one rank only. Owns nothing but the array. */
static struct ckpt_tensor *state_tensors(const struct run *r, int64_t *n)
{
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
                                       .kind = state_kinds[k],
                                       .dtype = DT_F32,
                                       .ndim = row->ndim,
                                       .shape = {row->dim[0], row->dim[1]},
                                       .split_axis = row->parallel_axis};
            if (r->ranks.size == 1)
                at->data = host_pointer(r, value[k]);
        }
    }
    return t;
}

/* ----------------------------------------------------------------------- this rank's */

static float *piece_data(const struct run *r, const struct lowered_piece *p, int kind)
{
    const uint32_t value[TENSORS_PER_PARAM] = {p->master, p->exp_avg, p->exp_avg_sq};
    return host_pointer(r, value[kind]);
}

/* A rectangle of the logical tensor that lies in a row in a piece. */
struct rect {
    struct box box;
    int64_t at; /* its first element in the piece */
};

/* in: off and ext, inside the parameter's box. */
static struct rect make_rect(const struct param *row, const struct lowered_param *p,
                             const int64_t off[2], const int64_t ext[2], int64_t at)
{
    struct rect r = {.box = {.ndim = row->ndim}, .at = at};
    for (int a = 0; a < row->ndim; a++) {
        r.box.off[a] = p->begin[a] + off[a];
        r.box.ext[a] = ext[a];
    }
    return r;
}

/* The elements [first, first + n) of a piece, a run of its box's rows, as rectangles: the
 * end of a row, whole rows, the begin of one. Returns how many. */
static int piece_rects(const struct run *r, const struct lowered_piece *piece,
                       int64_t first, int64_t n, struct rect out[3])
{
    const struct param *row = &r->model.params[piece->param];
    const struct lowered_param *p = &r->train[0].low.params[piece->param];
    int64_t e = piece->first + first, at = first, end = first + n, width = p->dim[1];
    int count = 0;
    if (row->ndim == 1) {
        if (n > 0)
            out[count++] = make_rect(row, p, (int64_t[2]){e}, (int64_t[2]){n}, at);
        return count;
    }
    while (at < end) {
        int64_t col = e % width, rows = 1;
        int64_t cols = MIN(width - col, end - at);
        if (cols == width)
            rows = (end - at) / width;
        out[count++] = make_rect(row, p, (int64_t[2]){e / width, col},
                                 (int64_t[2]){rows, cols}, at);
        at += rows * cols;
        e += rows * cols;
    }
    return count;
}

/* Whether this rank is the one that saves the piece: of copies one rank does. */
static bool saves_piece(const struct run *r, const struct lowered_piece *p)
{
    bool cut = r->place.zero > 0 && r->place.degree[MESH_DP] > 1;
    return r->train[0].low.params[p->param].first_copy &&
           (cut || r->place.coord[MESH_DP] == 0);
}

/* ------------------------------------------------------------------- initial values */

struct init_job {
    const struct run *r;
};

static void init_rect(const struct run *r, const struct lowered_piece *p,
                      const struct rect *rect)
{
    const struct param *row = &r->model.params[p->param];
    const struct box *b = &rect->box;
    float *w = piece_data(r, p, 0) + rect->at;
    int64_t width = row->ndim == 1 ? 0 : row->dim[1];
    int64_t rows = row->ndim == 1 ? 1 : b->ext[0];
    int64_t cols = row->ndim == 1 ? b->ext[0] : b->ext[1];
    int64_t first = row->ndim == 1 ? b->off[0] : b->off[0] * width + b->off[1];
    if (cols == width) {
        cols *= rows;
        rows = 1;
    }
    for (int64_t i = 0; i < rows; i++)
        param_init_values(row, (uint64_t)r->config->train.seed, first + i * width, cols,
                          w + i * cols);
}

/* Elements are dealt to threads by number: each value depends on its own index alone. */
static void init_share(void *arg, int thread, int n_threads)
{
    const struct run *r = ((struct init_job *)arg)->r;
    const struct lowered *low = &r->train[0].low;
    for (uint32_t i = 0; i < low->n_pieces; i++) {
        int64_t begin, end;
        struct rect rects[3];
        pool_share(low->pieces[i].n, 4, thread, n_threads, &begin, &end);
        int n = piece_rects(r, &low->pieces[i], begin, end - begin, rects);
        for (int k = 0; k < n; k++)
            init_rect(r, &low->pieces[i], &rects[k]);
    }
}

static void init_random(struct run *r)
{
    struct init_job job = {r};
    pool_run(r->pool, init_share, &job);
}

/* ------------------------------------------------------------------------ loading */

/* The parts of a checkpoint's tensors that this rank has, of the first n_kinds kinds. */
static enum status read_parts(struct run *r, struct ckpt *ck, int n_kinds,
                              struct diag *diag)
{
    const struct lowered *low = &r->train[0].low;
    VEC(struct ckpt_part) parts = {0};
    for (uint32_t i = 0; i < low->n_pieces; i++) {
        const struct lowered_piece *p = &low->pieces[i];
        struct rect rects[3];
        int n = piece_rects(r, p, 0, p->n, rects);
        for (int k = 0; k < n_kinds; k++) {
            int64_t id = ckpt_find(ck, state_kinds[k], r->model.params[p->param].name);
            for (int j = 0; j < n; j++) {
                struct ckpt_part part = {id, rects[j].box,
                                         piece_data(r, p, k) + rects[j].at};
                vec_push(&parts, part);
            }
        }
    }
    struct shard_crew *crew = shard_crew_create(r->pool);
    enum status st = ckpt_read(ck, parts.data, parts.n, crew, diag);
    shard_crew_destroy(crew);
    vec_free(&parts);
    return st;
}

/* Reads the first n_kinds kinds of tensors into place. */
static enum status read_tensors(struct run *r, struct ckpt *ck, int n_kinds,
                                struct diag *diag)
{
    int64_t n;
    struct ckpt_tensor *want = state_tensors(r, &n);
    enum status st = ckpt_match(ck, want, n_kinds * (int64_t)r->model.n_params, diag);
    mem_free(want);
    return st == ST_OK ? read_parts(r, ck, n_kinds, diag) : st;
}

/* `init: PATH`: weights alone; moments stay zero. */
static enum status init_from(struct run *r, const char *path, struct diag *diag)
{
    struct ckpt *ck;
    bool searched;
    TRY(ckpt_open_any(path, &ck, &searched, diag));
    enum status st = read_tensors(r, ck, 1, diag);
    if (st == ST_OK)
        log_info("weights from %s", ckpt_get_info(ck)->path);
    else
        diag_context(diag, "init");
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

/* Another layout sums in another order, as another micro-batch does: who changes the one
 * may need to change the other. */
static bool may_change(const struct run *r, const struct opt *o,
                       const struct config *saved)
{
    const struct config_parallel *a = &r->config->parallel, *b = &saved->parallel;
    bool other_layout = a->tp != b->tp || a->pp != b->pp || a->dp != b->dp;
    return !(o->flags & OPT_MATHS) || change_is_allowed(r->args, o->key) ||
           (other_layout && strcmp(o->key, "train.micro_batch") == 0);
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
        if (may_change(r, o, saved))
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

/* A checkpoint says nothing of a layout where it was saved by a build without any. */
static void settle_one_rank(struct config *saved)
{
    struct layout unused;
    struct arena a = {0};
    struct diag diag = {0};
    if (layout_is_open(saved) &&
        layout_resolve(saved, 1, 0, &a, &unused, &diag) != ST_OK)
        BUG("one rank is no layout: %s", diag.text);
    arena_release(&a);
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
        settle_one_rank(&saved);
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
    enum status st = read_tensors(r, ck, TENSORS_PER_PARAM, diag);
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

/* Opens the newest valid checkpoint below a step: the one that the first rank finds. */
static enum status open_newest(struct run *r, int64_t below, struct ckpt **out,
                               struct diag *diag)
{
    const char *dir = r->config->checkpoint.dir;
    enum status st = ST_OK;
    int64_t step = -1;
    struct str path = {0};
    if (run_is_first(r)) {
        st = ckpt_open_newest(dir, below, out, diag);
        step = st == ST_OK ? ckpt_get_info(*out)->step : -1;
    }
    TRY(run_agree(r, st, diag));
    TRY(run_broadcast(r, &step, sizeof(step), diag));
    if (run_is_first(r))
        return ST_OK;
    str_printf(&path, "%s/step-%012" PRId64, dir, step);
    st = ckpt_open(str_get(&path), out, diag);
    str_free(&path);
    return st;
}

/* One checkpoint, on all ranks or on none. in: opened, the status of opening it. */
static enum status resume_opened(struct run *r, enum status opened, struct ckpt *ck,
                                 struct diag *diag)
{
    enum status st = opened == ST_OK ? resume_from(r, ck, diag) : opened;
    if (opened == ST_OK)
        ckpt_close(ck);
    return run_agree(r, st, diag);
}

/* The newest checkpoint that can be read; damaged ones are named and passed over. */
static enum status resume_newest(struct run *r, bool *resumed, struct diag *diag)
{
    int64_t below = INT64_MAX;
    *resumed = false;
    for (;;) {
        struct ckpt *ck = NULL;
        enum status st = open_newest(r, below, &ck, diag);
        if (st == ST_NOT_FOUND)
            return run_agree(r, none_usable(r, diag), diag);
        if (st != ST_OK && !ck && run_is_first(r))
            return st;
        if (ck)
            below = ckpt_get_info(ck)->step;
        TRY(run_broadcast(r, &below, sizeof(below), diag));
        st = resume_opened(r, st, ck, diag);
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
    struct ckpt *ck = NULL;
    bool searched;
    enum status st = ckpt_open_any(path, &ck, &searched, diag);
    return resume_opened(r, st, ck, diag);
}

/* A fresh run in a directory that has checkpoints would mix two runs: refused. */
static enum status check_no_checkpoint(const struct run *r, struct diag *diag)
{
    struct ckpt *ck;
    struct diag none = {0};
    if (!run_is_first(r) ||
        ckpt_open_newest(r->config->checkpoint.dir, INT64_MAX, &ck, &none) != ST_OK)
        return ST_OK;
    int64_t step = ckpt_get_info(ck)->step;
    ckpt_close(ck);
    diag_set(diag, ST_CONFIG,
             "checkpoint.dir (%s): got a directory with checkpoints (step %" PRId64
             ") and checkpoint.resume=never, wanted an empty one",
             r->config->checkpoint.dir, step);
    diag_hint(diag, "another checkpoint.dir, or checkpoint.resume=auto");
    return ST_CONFIG;
}

/* Sets parameters and position. */
enum status run_state_begin(struct run *r, struct diag *diag)
{
    const char *resume = r->config->checkpoint.resume;
    bool resumed = false;
    r->last_saved_step = -1;
    if (strcmp(resume, "never") == 0) {
        TRY(run_agree(r, check_no_checkpoint(r, diag), diag));
    } else if (strcmp(resume, "auto") == 0) {
        TRY(resume_newest(r, &resumed, diag));
    } else {
        TRY(resume_named(r, resume, diag));
        resumed = true;
    }
    if (resumed)
        return ST_OK;
    init_random(r);
    enum status st = r->config->init[0] ? init_from(r, r->config->init, diag) : ST_OK;
    return run_agree(r, st, diag);
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

static bool is_finite(const struct run *r, const float *x, int64_t n, bool *bad)
{
    struct finite_job job = {x, n, bad};
    pool_run(r->pool, finite_share, &job);
    for (int i = 0; i < r->n_threads; i++)
        if (bad[i])
            return false;
    return true;
}

static enum status check_piece(const struct run *r, const struct lowered_piece *p,
                               int k, bool *bad, struct diag *diag)
{
    if (is_finite(r, piece_data(r, p, k), p->n, bad))
        return ST_OK;
    diag_set(diag, ST_DIVERGED,
             "the state is damaged (tensor '%s', %s, after step %" PRId64
             "): got a number that is not finite, wanted finite ones",
             r->model.params[p->param].name, ckpt_kind_name(state_kinds[k]),
             r->at.step);
    diag_hint(diag, "it is not saved; the same command goes on from the last "
                    "checkpoint, a lower train.optimizer.lr may help");
    return ST_DIVERGED;
}

enum status run_state_check_finite(const struct run *r, struct diag *diag)
{
    const struct lowered *low = &r->train[0].low;
    bool *bad = mem_alloc((size_t)r->n_threads * sizeof(*bad));
    enum status st = ST_OK;
    for (int k = 0; k < TENSORS_PER_PARAM; k++)
        for (uint32_t i = 0; st == ST_OK && i < low->n_pieces; i++)
            st = check_piece(r, &low->pieces[i], k, bad, diag);
    mem_free(bad);
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

/* What this rank gives to a checkpoint. Owns nothing but the array. */
static struct ckpt_piece *state_pieces(const struct run *r, int64_t *n)
{
    const struct lowered *low = &r->train[0].low;
    VEC(struct ckpt_piece) out = {0};
    for (int k = 0; k < TENSORS_PER_PARAM; k++) {
        for (uint32_t i = 0; i < low->n_pieces; i++) {
            const struct lowered_piece *p = &low->pieces[i];
            struct rect rects[3];
            int n_rects = saves_piece(r, p) ? piece_rects(r, p, 0, p->n, rects) : 0;
            for (int j = 0; j < n_rects; j++) {
                struct ckpt_piece piece = {(int64_t)k * r->model.n_params + p->param,
                                           rects[j].box,
                                           piece_data(r, p, k) + rects[j].at};
                vec_push(&out, piece);
            }
        }
    }
    *n = out.n;
    return out.data;
}

static struct durable *durable_of(const struct run *r)
{
    const struct run_hooks *h = r->hooks;
    return h && h->durable_rank == r->ranks.rank ? h->durable : NULL;
}

static enum status write_state(struct run *r, struct ckpt_saved *saved,
                               struct diag *diag)
{
    struct str state = {0};
    bool several = r->ranks.size > 1, first = run_is_first(r);
    if (first)
        state_text(r, &state);
    else
        str_add(&state, "{}"); /* the first rank's is written */
    int64_t n, n_pieces = 0;
    struct ckpt_tensor *tensors = state_tensors(r, &n);
    struct ckpt_piece *pieces = several ? state_pieces(r, &n_pieces) : NULL;
    struct ckpt_save save = {.dir = r->config->checkpoint.dir,
                             .step = r->at.step,
                             .tensors = tensors,
                             .n_tensors = n,
                             .state_json = str_get(&state),
                             .tool = "angel",
                             .keep = (int)r->config->checkpoint.keep,
                             .pool = r->pool,
                             .durable = durable_of(r),
                             .comm = r->ranks.control,
                             .pieces = pieces,
                             .n_pieces = n_pieces};
    enum status st = ckpt_write(&save, saved, diag);
    mem_free(tensors);
    mem_free(pieces);
    str_free(&state);
    return st;
}

enum status run_save(struct run *r, struct diag *diag)
{
    struct ckpt_saved saved;
    double start = run_now_s();
    run_be_patient(r, true);
    TRY(run_agree(r, run_state_check_finite(r, diag), diag));
    enum status st = write_state(r, &saved, diag);
    run_be_patient(r, false);
    r->ranks.agreed = st != ST_OK && st != ST_STOPPED;
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
