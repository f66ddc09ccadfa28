/* A run that is killed goes on from its last checkpoint and ends with the same bits: killed
 * at every change of the disk that its saves make, and at random moments.
 *
 *   t_run_killed [KILLS]    kills at random moments (40) */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/rng.h"
#include "io/file.h"
#include "io/json.h"
#include "tests/lib/run_child.h"

static int64_t n_kills = 40;

struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *err;
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 2, 20000);
    f->err = tmp_path(&f->tmp, "err");
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

static void remove_dir(const char *dir)
{
    struct diag diag = {0};
    if (file_remove_tree(dir, &diag) != ST_OK)
        fail_msg("%s", diag.text);
}

/* Entries of a directory whose name begins so; -1 where it is not there. */
static int64_t count_entries(const char *dir, const char *prefix)
{
    struct arena a = {0};
    char **names = NULL;
    int64_t n = 0, found = 0;
    if (file_list_folder(&a, dir, &names, &n, NULL) != ST_OK)
        found = -1;
    for (int64_t i = 0; i < n; i++)
        found += strncmp(names[i], prefix, strlen(prefix)) == 0;
    arena_release(&a);
    return found;
}

/* The newest valid checkpoint's step, 0 for none; its every number is read. */
static int64_t newest_step(const char *dir)
{
    struct ckpt *ck;
    struct diag diag = {0};
    enum status st = ckpt_open_newest(dir, INT64_MAX, &ck, &diag);
    if (st == ST_NOT_FOUND)
        return 0;
    if (st != ST_OK)
        fail_msg("%s", diag.text);
    int64_t step = ckpt_get_info(ck)->step;
    ckpt_close(ck);
    child_digest(dir, step);
    return step;
}

/* ---- at every point of the saves ---- */

struct kill_at {
    int64_t number; /* -1: never */
    bool torn;      /* of a write, half is done first */
    int fd;         /* gets a byte for each point of a run that is not killed */
};

static int kill_hook(void *arg, const struct durable_event *e)
{
    const struct kill_at *k = arg;
    if (e->number != k->number)
        return 0;
    if (k->torn && e->op == DURABLE_WRITE &&
        pwrite(e->fd, e->data, e->bytes / 2, e->offset) < 0)
        _exit(99);
    raise(SIGKILL);
    return 0;
}

/* Tells a pipe of each point: the run is another process. */
static int count_hook(void *arg, const struct durable_event *e)
{
    const struct kill_at *k = arg;
    if (write(k->fd, e->op == DURABLE_WRITE ? "w" : "x", 1) != 1)
        _exit(99);
    return 0;
}

/* The points of a run that is not killed, in order: 'w' for writes. */
static size_t list_points(struct child *c, char *points, size_t cap)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct kill_at k = {.fd = ends[1]};
    struct durable d = {.hook = count_hook, .arg = &k};
    struct run_hooks hooks = {.durable = &d};
    c->hooks = &hooks;
    child_expect(c, 0);
    c->hooks = NULL;
    close(ends[1]);
    size_t n_all = 0;
    for (ssize_t n; (n = read(ends[0], points + n_all, cap - n_all)) > 0;)
        n_all += (size_t)n;
    close(ends[0]);
    assert_true(n_all < cap);
    return n_all;
}

static void kill_and_go_on(struct child *c, const char *dir, struct kill_at k,
                           uint64_t want, int64_t seen[4])
{
    struct durable d = {.hook = kill_hook, .arg = &k};
    struct run_hooks hooks = {.durable = &d};
    remove_dir(dir);
    c->hooks = &hooks;
    child_expect(c, -SIGKILL);
    int64_t step = newest_step(dir);
    seen[step]++;
    c->hooks = NULL;
    child_expect(c, 0);
    if (child_digest(dir, 3) != want)
        fail_msg("killed at point %lld: other bits", (long long)k.number);
    assert_int_equal(count_entries(dir, ".t"), 0);
    /* Nothing more is saved where step 3 is there: the oldest may not be gone yet. */
    int64_t left = count_entries(dir, "step-");
    assert_true(left == 2 || (left == 3 && step == 3));
}

/* Three saves: the first of all, one more, and one that removes the oldest. */
static void test_every_point(void **state)
{
    struct fixture *f = *state;
    const char *dir = tmp_path(&f->tmp, "run");
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, 3);
    c.err = f->err;
    child_arg(&c, "checkpoint.every=1");
    child_arg(&c, "checkpoint.keep=2");
    static char points[4096];
    int64_t n = (int64_t)list_points(&c, points, sizeof(points)), seen[4] = {0};
    int64_t trials = 0;
    uint64_t want = child_digest(dir, 3);
    for (int64_t i = 0; i < n; i++)
        for (int torn = 0; torn <= (points[i] == 'w'); torn++, trials++)
            kill_and_go_on(&c, dir, (struct kill_at){.number = i, .torn = torn}, want,
                           seen);
    print_message(
            "%lld kills at %lld points; newest checkpoint then: none %lld, step 1 "
            "%lld, step 2 %lld, step 3 %lld\n",
            (long long)trials, (long long)n, (long long)seen[0], (long long)seen[1],
            (long long)seen[2], (long long)seen[3]);
    assert_true(n > 60);
    for (int i = 0; i < 4; i++)
        assert_true(seen[i] > 0);
}

/* ---- at random moments ---- */

#define STEPS 40

static void sleep_s(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* Waits for the end of the run, at most `s`. */
static void wait_at_most(pid_t pid, double s)
{
    double end = run_now_s() + s;
    for (double left = s; left > 0; left = end - run_now_s()) {
        siginfo_t info = {0};
        int err = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
        if (err != 0 || info.si_pid == pid)
            return;
        sleep_s(left < 1e-3 ? left : 1e-3);
    }
}

/* Every line is an object, whatever was cut off; a step that was computed again had the
 * same loss. */
static void check_metrics(struct fixture *f, const char *dir)
{
    double loss[STEPS + 1] = {0};
    struct arena a = {0};
    char path[600];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", dir);
    const char *text = child_text(&f->tmp, path);
    int64_t n_lines = 0;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1, n_lines++) {
        struct json *line;
        struct diag diag = {0};
        int64_t step = 0;
        double x = 0;
        if (json_parse(&a, text, (size_t)(end - text), path, JSON_STRICT, &line,
                       &diag) != ST_OK)
            fail_msg("%s", diag.text);
        if (strcmp(json_find(line, "kind")->text, "train") != 0)
            continue;
        assert_int_equal(json_get_i64(line, "step", path, &step, &diag), ST_OK);
        assert_int_equal(json_get_f64(line, "loss", path, &x, &diag), ST_OK);
        assert_in_range(step, 1, STEPS);
        if (loss[step] != 0)
            assert_true(loss[step] == x);
        loss[step] = x;
    }
    assert_true(*text == '\0' && n_lines > STEPS);
    arena_release(&a);
}

/* Kills the run again and again until it comes to its end. Returns how often. `whole_s`
 * becomes smaller where a whole run took less: measured on a busy machine and too long, it
 * would have all later kills come too late. */
static int64_t kill_until_done(struct fixture *f, const struct child *c,
                               const char *dir, double *whole_s, uint64_t *draw,
                               int64_t *in_save)
{
    int64_t kills = 0;
    remove_dir(dir);
    for (;;) {
        double u = (double)(rng_u64(7, 1, (*draw)++) >> 11) * 0x1p-53;
        double start = run_now_s();
        pid_t pid = child_start(c);
        wait_at_most(pid, u * *whole_s * 1.2);
        kill(pid, SIGKILL);
        int code = child_wait(pid);
        double took_s = run_now_s() - start;
        if (code == 0 && kills == 0 && took_s < *whole_s)
            *whole_s = took_s;
        if (code == 0)
            break;
        if (code != -SIGKILL) {
            print_message("%s", child_text(&f->tmp, f->err));
            fail_msg("the run ended with %d", code);
        }
        kills++;
        *in_save += count_entries(dir, ".t") > 0;
    }
    return kills;
}

static void test_random_moments(void **state)
{
    struct fixture *f = *state;
    const char *dir = tmp_path(&f->tmp, "run");
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, STEPS);
    c.err = f->err;
    static const char *const more[] = {"model.hidden=64",         "model.ffn=96",
                                       "model.layers=2",          "data.seq_len=32",
                                       "data.valid_fraction=0.1", "train.eval_every=7",
                                       "train.eval_batches=2",    "checkpoint.every=3"};
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        child_arg(&c, more[i]);
    double start = run_now_s();
    child_expect(&c, 0);
    double whole_s = run_now_s() - start;
    uint64_t want = child_digest(dir, STEPS), draw = 0;
    int64_t kills = 0, runs = 0, in_save = 0;
    /* Where computing is slow next to saving, a save is met more rarely. */
    for (; kills < n_kills || (in_save == 0 && kills < 10 * n_kills); runs++) {
        kills += kill_until_done(f, &c, dir, &whole_s, &draw, &in_save);
        if (child_digest(dir, STEPS) != want)
            fail_msg("run %lld ended with other bits", (long long)runs);
        check_metrics(f, dir);
    }
    print_message("%lld kills in %lld runs of %.0f ms, %lld of them in the midst of a "
                  "save: all ended with the same bits\n",
                  (long long)kills, (long long)runs, whole_s * 1e3, (long long)in_save);
    assert_true(in_save > 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
            TEST(test_every_point),
            TEST(test_random_moments),
    };
    if (argc > 1)
        n_kills = strtoll(argv[1], NULL, 10);
    child_use_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
