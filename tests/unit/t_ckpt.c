/* Checkpoints: round trips, mismatches, damage and fallback, retention, the lock, and a
 * kill or a failure at every point of a save. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/rng.h"
#include "core/str.h"
#include "io/ckpt_format.h"
#include "io/file.h"
#include "tests/lib/run_child.h"

#define N_TENSORS 7
#define ROWS      48
#define COLS      80

/* A model of a few tensors whose numbers say which step they belong to. */
struct params {
    float w[ROWS][COLS];
    uint16_t half[COLS];
    float m[ROWS][COLS];
    float v[ROWS][COLS];
    int32_t counts[3];
    float scalar;
    struct ckpt_tensor t[N_TENSORS];
};

struct fixture {
    struct tmp tmp;
    const char *dir; /* of the checkpoints, in it */
    struct shard_crew *crew;
    struct params model;
    struct params got;
};

static void model_fill(struct params *m, int64_t step)
{
    uint64_t seed = (uint64_t)step;
    rng_normal(seed, 1, 0, ROWS * COLS, &m->w[0][0]);
    rng_normal(seed, 2, 0, ROWS * COLS, &m->m[0][0]);
    for (int i = 0; i < ROWS * COLS; i++)
        (&m->v[0][0])[i] = (&m->m[0][0])[i] * (&m->m[0][0])[i];
    for (int i = 0; i < COLS; i++)
        m->half[i] = bf16_from_f32(m->w[1][i]);
    for (int i = 0; i < 3; i++)
        m->counts[i] = (int32_t)step * 10 + i;
    m->scalar = (float)step;
    const struct ckpt_tensor t[N_TENSORS] = {
            {"embed", CKPT_WEIGHT, DT_F32, 2, {ROWS, COLS}, 0, m->w},
            {"embed", CKPT_EXP_AVG, DT_F32, 2, {ROWS, COLS}, 0, m->m},
            {"embed", CKPT_EXP_AVG_SQ, DT_F32, 2, {ROWS, COLS}, 0, m->v},
            {"norm", CKPT_WEIGHT, DT_BF16, 1, {COLS}, -1, m->half},
            {"counts", CKPT_OTHER, DT_I32, 1, {3}, -1, m->counts},
            {"scale", CKPT_OTHER, DT_F32, 0, {0}, -1, &m->scalar},
            {"nothing", CKPT_WEIGHT, DT_F32, 2, {0, COLS}, 0, NULL},
    };
    memcpy(m->t, t, sizeof(t));
}

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->dir = tmp_path(&f->tmp, "ckpt");
    assert_int_equal(durable_mkdir(NULL, f->dir, NULL), ST_OK);
    f->crew = shard_crew_create(NULL);
    log_set_level(LOG_ERROR);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    shard_crew_destroy(f->crew);
    tmp_remove(&f->tmp);
    mem_free(f);
    log_set_level(LOG_INFO);
    return 0;
}

static void ok(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), diag->text);
}

static enum status save_step(struct fixture *f, int64_t step, int keep,
                             struct durable *d, struct diag *diag)
{
    char state_json[64];
    struct ckpt_saved saved;
    model_fill(&f->model, step);
    snprintf(state_json, sizeof(state_json), "{\"step\": %lld}", (long long)step);
    struct ckpt_save save = {.dir = f->dir,
                             .step = step,
                             .tensors = f->model.t,
                             .n_tensors = N_TENSORS,
                             .state_json = state_json,
                             .tool = "test",
                             .keep = keep,
                             .shard_raw_bytes = 20000,
                             .durable = d};
    return ckpt_write(&save, &saved, diag);
}

/* Reads everything into f->got and compares it with what the step must hold. */
static void check_content(struct fixture *f, const struct ckpt *ck)
{
    struct diag diag = {0};
    const struct ckpt_info *info = ckpt_get_info(ck);
    model_fill(&f->model, info->step);
    ok(ckpt_match(ck, f->model.t, N_TENSORS, &diag), &diag);
    for (int i = 0; i < N_TENSORS; i++) {
        const struct ckpt_tensor *t = &f->model.t[i];
        struct box whole = box_whole(t->ndim, t->shape);
        size_t bytes = (size_t)box_elems(&whole) * dtype_bytes(t->dtype);
        void *dst = mem_alloc(bytes + 1);
        ok(ckpt_read_tensor(ck, t->kind, t->name, f->crew, dst, &diag), &diag);
        if (bytes > 0)
            assert_memory_equal(dst, t->data, bytes);
        mem_free(dst);
    }
    char want[64];
    snprintf(want, sizeof(want), "{\"step\": %lld}", (long long)info->step);
    assert_string_equal(ckpt_state_json(ck), want);
}

/* The step of the newest valid checkpoint, whose content is checked; -1 for none. */
static int64_t newest(struct fixture *f)
{
    struct ckpt *ck;
    struct diag diag = {0};
    enum status st = ckpt_open_newest(f->dir, INT64_MAX, &ck, &diag);
    if (st == ST_NOT_FOUND)
        return -1;
    ok(st, &diag);
    int64_t step = ckpt_get_info(ck)->step;
    check_content(f, ck);
    ckpt_close(ck);
    return step;
}

static const char *in_step(struct fixture *f, int64_t step, const char *name)
{
    static char path[600];
    char buf[CKPT_NAME_BYTES];
    snprintf(path, sizeof(path), "%s/%s/%s", f->dir, ckpt_step_name(step, buf), name);
    return path;
}

static int64_t count_entries(struct fixture *f, const char *prefix)
{
    struct arena a = {0};
    char **names;
    int64_t n = 0;
    int64_t found = 0;
    ok(file_list_folder(&a, f->dir, &names, &n, NULL), &(struct diag){0});
    for (int64_t i = 0; i < n; i++)
        found += strncmp(names[i], prefix, strlen(prefix)) == 0;
    arena_release(&a);
    return found;
}

static void flip_byte(const char *path, int64_t at)
{
    struct str text = {0};
    struct diag diag = {0};
    ok(file_read_all(path, MIB, &text, &diag), &diag);
    text.s[at < 0 ? (int64_t)text.n + at : at] ^= 0x10;
    ok(durable_write_file(NULL, path, text.s, text.n, &diag), &diag);
    str_free(&text);
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    assert_int_equal(newest(f), -1);
    ok(save_step(f, 5, 0, NULL, &diag), &diag);
    ok(save_step(f, 12, 0, NULL, &diag), &diag);
    assert_int_equal(newest(f), 12);
    assert_int_equal(count_entries(f, ".tmp-"), 0);
    struct str latest = {0};
    char path[512];
    snprintf(path, sizeof(path), "%s/LATEST", f->dir);
    ok(file_read_all(path, 100, &latest, &diag), &diag);
    assert_string_equal(str_get(&latest), "step-000000000012\n");
    str_free(&latest);
    /* Weights lie in their own files; 20 kB a file makes several. */
    assert_true(file_exists(in_step(f, 12, "model-00000-of-00001.azs")));
    assert_true(file_exists(in_step(f, 12, "optim-00001-of-00002.azs")));
}

static void test_boxes(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt *ck;
    ok(save_step(f, 3, 0, NULL, &diag), &diag);
    ok(ckpt_open(in_step(f, 3, ""), &ck, &diag), &diag);
    int64_t id = ckpt_find(ck, CKPT_EXP_AVG_SQ, "embed");
    assert_true(id >= 0);
    assert_int_equal(ckpt_find(ck, CKPT_MASTER, "embed"), -1);
    float dst[10][7];
    struct ckpt_part part = {
            id, {.ndim = 2, .off = {20, 33}, .ext = {10, 7}}, &dst[0][0]};
    ok(ckpt_read(ck, &part, 1, f->crew, &diag), &diag);
    for (int i = 0; i < 10; i++)
        assert_memory_equal(dst[i], &f->model.v[20 + i][33], sizeof(dst[i]));
    ckpt_close(ck);
}

/* A tensor of several chunks, written and read by one, two and three threads: the same
 * bytes on disk, the same numbers back. */
static void test_threads(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    int64_t rows = 1500;
    int64_t cols = 4096;
    size_t bytes = (size_t)(rows * cols) * sizeof(float);
    float *x = mem_alloc(bytes);
    float *y = mem_alloc(bytes);
    rng_normal(3, 4, 0, rows * cols, x);
    struct ckpt_tensor t = {"w", CKPT_WEIGHT, DT_F32, 2, {rows, cols}, 1, x};
    struct ckpt_saved first = {0};
    for (int n = 1; n <= 3; n++) {
        struct pool *pool;
        struct ckpt_saved saved;
        struct ckpt *ck;
        ok(pool_create(n, &pool, &diag), &diag);
        struct ckpt_save save = {.dir = f->dir,
                                 .step = n,
                                 .tensors = &t,
                                 .n_tensors = 1,
                                 .state_json = "{}",
                                 .pool = pool};
        ok(ckpt_write(&save, &saved, &diag), &diag);
        ok(ckpt_open(in_step(f, n, ""), &ck, &diag), &diag);
        struct shard_crew *crew = shard_crew_create(pool);
        memset(y, 0xff, bytes);
        ok(ckpt_read_tensor(ck, CKPT_WEIGHT, "w", crew, y, &diag), &diag);
        assert_memory_equal(x, y, bytes);
        if (n == 1)
            first = saved;
        assert_int_equal(saved.digest, first.digest);
        assert_int_equal(saved.file_bytes, first.file_bytes);
        shard_crew_destroy(crew);
        pool_destroy(pool);
        ckpt_close(ck);
    }
    print_message("%lld chunks, %.1f %% of raw\n", (long long)first.n_chunks,
                  100.0 * (double)first.file_bytes / (double)first.raw_bytes);
    assert_int_equal(first.n_chunks, 16);
    mem_free(x);
    mem_free(y);
}

static void expect_mismatch(const struct ckpt *ck, const struct ckpt_tensor *t, int n,
                            const char *words)
{
    struct diag diag = {0};
    assert_int_equal(ckpt_match(ck, t, n, &diag), ST_DATA);
    if (!strstr(diag.text, words))
        fail_msg("'%s' lacks '%s'", diag.text, words);
}

static void test_mismatch(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt *ck;
    ok(save_step(f, 1, 0, NULL, &diag), &diag);
    ok(ckpt_open(in_step(f, 1, ""), &ck, &diag), &diag);
    struct ckpt_tensor t[N_TENSORS + 1];
    memcpy(t, f->model.t, sizeof(f->model.t));
    t[0].shape[1]++;
    expect_mismatch(ck, t, N_TENSORS,
                    "'embed' (weight): got f32[48,80], wanted f32[48,81]");
    t[0].shape[1]--;
    t[3].dtype = DT_F32;
    expect_mismatch(ck, t, N_TENSORS, "'norm' (weight): got bf16[80], wanted f32[80]");
    t[3].dtype = DT_BF16;
    t[N_TENSORS] = t[3];
    t[N_TENSORS].name = "more";
    expect_mismatch(ck, t, N_TENSORS + 1, "lacks tensor 'more' (weight)");
    expect_mismatch(ck, t, N_TENSORS - 1, "that the model lacks, 'nothing' (weight)");
    /* Weights alone: the moments are not left over. */
    struct ckpt_tensor weights[] = {t[0], t[3], t[6]};
    ok(ckpt_match(ck, weights, 3, &diag), &diag);
    float x;
    assert_int_equal(ckpt_read_tensor(ck, CKPT_MASTER, "norm", f->crew, &x, &diag),
                     ST_DATA);
    ckpt_close(ck);
    t[1] = t[0];
    struct ckpt_saved saved;
    struct ckpt_save twice = {
            .dir = f->dir, .step = 9, .tensors = t, .n_tensors = 2, .state_json = "{}"};
    assert_int_equal(ckpt_write(&twice, &saved, &diag), ST_CONFIG);
    assert_false(file_exists(in_step(f, 9, "COMMIT")));
}

static void test_fallback(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    static const char *const files[] = {"COMMIT", "manifest.json", "index.zst",
                                        "state.json", "model-00000-of-00001.azs"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        for (int how = 0; how < 3; how++) {
            ok(save_step(f, 1, 0, NULL, &diag), &diag);
            ok(save_step(f, 2, 0, NULL, &diag), &diag);
            const char *path = in_step(f, 2, files[i]);
            bool shard = i == 4;
            if (how == 0)
                unlink(path);
            else if (how == 1)
                assert_int_equal(truncate(path, 20), 0);
            else if (!shard)
                flip_byte(path, 30 % (i == 3 ? 7 : 64));
            struct ckpt *ck;
            enum status st = ckpt_open(in_step(f, 2, ""), &ck, &diag);
            if (st ==
                ST_OK) { /* state.json of 20 bytes or less, or a shard untouched */
                ckpt_close(ck);
                assert_true((shard && how == 2) || (i == 3 && how == 1));
                continue;
            }
            assert_int_equal(st, ST_DATA);
            assert_int_equal(newest(f), 1);
        }
    print_message("e.g. %s\n", diag.text);
}

struct damage_text {
    int n;
    char first[1024];
};

static void keep_first(void *arg, const char *text)
{
    struct damage_text *d = arg;
    if (d->n++ == 0)
        snprintf(d->first, sizeof(d->first), "%s", text);
}

/* A flip inside a shard: opening cannot see it, reading and verifying do, and name it. */
static void test_flipped_chunk(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt *ck;
    int64_t n_damaged = 0;
    ok(save_step(f, 1, 0, NULL, &diag), &diag);
    ok(ckpt_open(in_step(f, 1, ""), &ck, &diag), &diag);
    ok(ckpt_verify(ck, true, f->crew, NULL, NULL, &n_damaged, &diag), &diag);
    ckpt_close(ck);
    flip_byte(in_step(f, 1, "model-00000-of-00001.azs"), 9000);
    ok(ckpt_open(in_step(f, 1, ""), &ck, &diag), &diag);
    assert_int_equal(
            ckpt_read_tensor(ck, CKPT_WEIGHT, "embed", f->crew, f->got.w, &diag),
            ST_DATA);
    print_message("%s\n", diag.text);
    assert_non_null(strstr(diag.text, "'embed' (weight) [0:48,0:80]"));
    assert_non_null(strstr(diag.text, "model-00000-of-00001.azs at byte 64"));
    ok(ckpt_read_tensor(ck, CKPT_WEIGHT, "norm", f->crew, f->got.half, &diag), &diag);
    for (int deep = 0; deep < 2; deep++) {
        struct damage_text text = {0};
        assert_int_equal(
                ckpt_verify(ck, deep, f->crew, keep_first, &text, &n_damaged, &diag),
                ST_DATA);
        assert_int_equal(n_damaged, 1);
        assert_int_equal(text.n, 1);
        assert_non_null(strstr(text.first, "tensor 'embed' (weight)"));
    }
    ckpt_close(ck);
    /* In the shard's footer: found though no chunk is touched. */
    flip_byte(in_step(f, 1, "model-00000-of-00001.azs"), 9000);
    flip_byte(in_step(f, 1, "model-00000-of-00001.azs"), -20);
    ok(ckpt_open(in_step(f, 1, ""), &ck, &diag), &diag);
    assert_int_equal(ckpt_verify(ck, false, f->crew, NULL, NULL, &n_damaged, &diag),
                     ST_DATA);
    assert_int_equal(n_damaged, 1);
    ckpt_close(ck);
}

static void test_newer_version(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt *ck;
    ok(save_step(f, 1, 0, NULL, &diag), &diag);
    ok(save_step(f, 2, 0, NULL, &diag), &diag);
    struct str text = {0};
    struct ckpt_commit commit;
    const char *path = in_step(f, 2, "COMMIT");
    ok(file_read_all(path, 64, &text, &diag), &diag);
    assert_true(ckpt_commit_get((uint8_t *)text.s, &commit));
    commit.version_major = 2;
    ckpt_commit_put(&commit, (uint8_t *)text.s);
    ok(durable_write_file(NULL, path, text.s, text.n, &diag), &diag);
    str_free(&text);
    assert_int_equal(ckpt_open(in_step(f, 2, ""), &ck, &diag), ST_DATA);
    assert_non_null(strstr(diag.text, "newer format"));
    assert_int_equal(newest(f), 1);
}

static void test_retention(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    for (int64_t step = 1; step <= 5; step++)
        ok(save_step(f, step * 10, 3, NULL, &diag), &diag);
    assert_int_equal(count_entries(f, "step-"), 3);
    assert_int_equal(count_entries(f, ".trash-"), 0);
    /* Damage the two newest: keep-last 1 keeps the newest valid one and them. */
    unlink(in_step(f, 50, "COMMIT"));
    unlink(in_step(f, 40, "state.json"));
    int64_t n_removed = 0;
    ok(ckpt_prune(f->dir, 1, -1, NULL, &n_removed, &diag), &diag);
    assert_int_equal(n_removed, 0);
    assert_int_equal(newest(f), 30);
    /* A step below what is there is not removed by the save that wrote it. */
    ok(save_step(f, 20, 1, NULL, &diag), &diag);
    assert_true(file_exists(in_step(f, 20, "COMMIT")));
    assert_int_equal(newest(f), 30);
    /* The same step again replaces the damaged one. */
    ok(save_step(f, 50, 1, NULL, &diag), &diag);
    assert_int_equal(newest(f), 50);
    assert_int_equal(count_entries(f, "step-"), 1);
    assert_int_equal(count_entries(f, ".t"), 0);
    struct ckpt *ck;
    assert_int_equal(ckpt_open_newest(f->dir, 50, &ck, &diag), ST_NOT_FOUND);
}

static void test_lock(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt_lock *a;
    struct ckpt_lock *b;
    char tmp[512];
    snprintf(tmp, sizeof(tmp), "%s/.tmp-step-000000000001-ab", f->dir);
    ok(durable_mkdir(NULL, tmp, &diag), &diag);
    ok(ckpt_lock(f->dir, NULL, &a, &diag), &diag);
    assert_false(file_exists(tmp)); /* what a killed job left is gone */
    assert_int_equal(ckpt_lock(f->dir, NULL, &b, &diag), ST_CREATE);
    print_message("%s\n", diag.text);
    char pid[32];
    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_non_null(strstr(diag.text, pid));
    ckpt_unlock(a);
    ok(ckpt_lock(f->dir, NULL, &b, &diag), &diag);
    ckpt_unlock(b);
}

/* Points. */

struct stop_at {
    int64_t number;
    int err;   /* 0: end the process */
    bool torn; /* of a write, half is done first */
};

static int stop_hook(void *arg, const struct durable_event *e)
{
    const struct stop_at *stop = arg;
    if (e->number != stop->number)
        return 0;
    if (stop->torn && e->op == DURABLE_WRITE &&
        pwrite(e->fd, e->data, e->bytes / 2, e->offset) < 0)
        _exit(99);
    if (stop->err == 0)
        _exit(42);
    return stop->err;
}

static int count_hook(void *arg, const struct durable_event *e)
{
    (void)arg;
    (void)e;
    return 0;
}

/* The world before each trial: steps 10 and 20, of which `step` may be saved again. */
static void start_over(struct fixture *f)
{
    struct diag diag = {0};
    ok(file_remove_tree(f->dir, &diag), &diag);
    ok(save_step(f, 10, 0, NULL, &diag), &diag);
    ok(save_step(f, 20, 0, NULL, &diag), &diag);
}

static int64_t count_points(struct fixture *f, int64_t step, int keep)
{
    struct diag diag = {0};
    struct durable d = {.hook = count_hook};
    start_over(f);
    ok(save_step(f, step, keep, &d, &diag), &diag);
    return d.n_points;
}

static void kill_at(struct fixture *f, int64_t step, int keep, struct stop_at stop)
{
    struct diag diag = {0};
    start_over(f);
    pid_t pid = child_fork();
    if (pid == 0) {
        struct durable d = {.hook = stop_hook, .arg = &stop};
        _exit(save_step(f, step, keep, &d, &diag) == ST_OK ? 0 : 1);
    }
    assert_int_equal(child_wait(pid), 42);
    int64_t found = newest(f);
    if (found != 20 && found != step)
        fail_msg("killed at point %lld: newest is %lld", (long long)stop.number,
                 (long long)found);
    /* The next job starts, cleans up and saves. */
    struct ckpt_lock *lock;
    ok(ckpt_lock(f->dir, NULL, &lock, &diag), &diag);
    assert_int_equal(count_entries(f, ".t"), 0);
    assert_int_equal(newest(f), found);
    ok(save_step(f, step, keep, NULL, &diag), &diag);
    assert_int_equal(newest(f), step);
    ckpt_unlock(lock);
}

/* A kill before every change of a save, and in the middle of every write: of a new step,
 * of a step that is there already, with and without retention. */
static void test_killed_anywhere(void **state)
{
    struct fixture *f = *state;
    static const struct {
        int64_t step;
        int keep;
    } saves[] = {{30, 1}, {20, 2}};
    int64_t trials = 0;
    for (size_t s = 0; s < ARRAY_LEN(saves); s++) {
        int64_t n = count_points(f, saves[s].step, saves[s].keep);
        for (int64_t i = 0; i < n; i++)
            for (int torn = 0; torn < 2; torn++, trials++)
                kill_at(f, saves[s].step, saves[s].keep,
                        (struct stop_at){.number = i, .torn = torn});
        print_message("step %lld, keep %d: killed at each of %lld points\n",
                      (long long)saves[s].step, saves[s].keep, (long long)n);
    }
    assert_true(trials > 100);
}

/* A refused change: the save fails with path and reason and leaves nothing, or it had
 * been published already. */
static void test_refused_anywhere(void **state)
{
    struct fixture *f = *state;
    static const int errors[] = {ENOSPC, EIO};
    int64_t n = count_points(f, 30, 2);
    int64_t n_failed = 0;
    for (size_t e = 0; e < ARRAY_LEN(errors); e++)
        for (int64_t i = 0; i < n; i++) {
            struct diag diag = {0};
            struct stop_at stop = {.number = i, .err = errors[e], .torn = true};
            struct durable d = {.hook = stop_hook, .arg = &stop};
            start_over(f);
            log_set_level(LOG_ERROR);
            enum status st = save_step(f, 30, 2, &d, &diag);
            if (st == ST_OK) {
                assert_int_equal(newest(f), 30);
                continue;
            }
            n_failed++;
            assert_true(st == ST_IO || st == ST_CREATE);
            assert_non_null(strstr(diag.text, f->dir));
            assert_non_null(strstr(diag.text, strerror(errors[e])));
            assert_int_equal(count_entries(f, ".tmp-"), 0);
            int64_t found = newest(f);
            assert_true(found == 20 || found == 30);
            assert_true(file_exists(in_step(f, 10, "COMMIT")));
        }
    print_message("%lld points: %lld failures reported\n", (long long)n,
                  (long long)n_failed);
    assert_true(n_failed > n);
}

/* The system's own refusal: a limit on the size of files. */
static void test_file_size_limit(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    start_over(f);
    pid_t pid = child_fork();
    if (pid == 0) {
        struct rlimit limit = {10000, 10000};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(9);
        enum status st = save_step(f, 30, 1, NULL, &diag);
        _exit(st == ST_IO && strstr(diag.text, strerror(EFBIG)) ? 42 : 1);
    }
    assert_int_equal(child_wait(pid), 42);
    assert_int_equal(count_entries(f, ".t"), 0);
    assert_int_equal(newest(f), 20);
}

static void test_unwritable(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct ckpt_lock *lock;
    char path[512];
    snprintf(path, sizeof(path), "%s/file", f->dir);
    ok(durable_write_file(NULL, path, "x", 1, &diag), &diag);
    snprintf(path, sizeof(path), "%s/file/ckpt", f->dir);
    assert_int_equal(ckpt_lock(path, NULL, &lock, &diag), ST_CREATE);
    print_message("%s\n", diag.text);
    *strrchr(path, '/') = '\0'; /* what is in the way is named */
    assert_non_null(strstr(diag.text, path));
}

static void test_stock_zstd(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    char command[2048];
    if (system("command -v zstd >/dev/null 2>&1") != 0) {
        print_message("SKIPPED: no zstd program here to try the files with\n");
        skip();
    }
    ok(save_step(f, 1, 0, NULL, &diag), &diag);
    snprintf(
            command, sizeof(command),
            "for f in %s/step-*/*.azs %s/step-*/index.zst; do zstd -q -t <$f || exit 1; "
            "done",
            f->dir, f->dir);
    assert_int_equal(system(command), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_round_trip),
            TEST(test_boxes),
            TEST(test_threads),
            TEST(test_mismatch),
            TEST(test_fallback),
            TEST(test_flipped_chunk),
            TEST(test_newer_version),
            TEST(test_retention),
            TEST(test_lock),
            TEST(test_killed_anywhere),
            TEST(test_refused_anywhere),
            TEST(test_file_size_limit),
            TEST(test_unwritable),
            TEST(test_stock_zstd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
