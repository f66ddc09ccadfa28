/* Stops on request: at the end of a step, at once, in the midst of a save or an
 * evaluation, before the first step; and signals that must not matter. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/file.h"
#include "tests/lib/run_child.h"

#define STEPS 12

struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *err;
    const char *dir;
    uint64_t want; /* digest of an undisturbed run */
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 8, 20000);
    f->err = tmp_path(&f->tmp, "err");
    f->dir = tmp_path(&f->tmp, "run");
    const char *clean = tmp_path(&f->tmp, "clean");
    struct child c = child_pretrain(&f->tmp, f->corpus, clean, STEPS);
    child_expect(&c, 0);
    f->want = child_digest(clean, STEPS);
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

static struct child make_run(struct fixture *f, const struct run_hooks *hooks)
{
    struct child c = child_pretrain(&f->tmp, f->corpus, f->dir, STEPS);
    c.err = f->err;
    c.hooks = hooks;
    child_arg(&c, "checkpoint.every=4");
    return c;
}

static bool has_step(struct fixture *f, int64_t step)
{
    return access(child_step_path(&f->tmp, f->dir, step, "COMMIT"), F_OK) == 0;
}

/* The run goes on without hooks, to the same end. */
static void goes_on(struct fixture *f, struct child c)
{
    c.hooks = NULL;
    c.prepare = NULL;
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, STEPS), f->want);
}

/* Signals sent to itself before the computation of a step (counted from 0). */
struct sending {
    int64_t step; /* -1: before each */
    int signals[3];
};

static void send_hook(void *arg, struct run *r, int attempt)
{
    const struct sending *s = arg;
    (void)attempt;
    if (s->step >= 0 && r->at.step != s->step)
        return;
    for (int i = 0; i < 3 && s->signals[i] != 0; i++)
        raise(s->signals[i]);
}

static void test_once(void **state)
{
    struct fixture *f = *state;
    static const struct {
        struct sending send;
        const char *name;
    } cases[] = {{{1, {SIGINT}}, "Interrupt"},
                 {{2, {SIGTERM}}, "Terminated"},
                 {{4, {SIGHUP}}, "Hangup"},
                 {{5, {SIGTERM, SIGTERM, SIGHUP}}, "Hangup"},
                 {{6, {SIGINT, SIGTERM}}, "Terminated"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct run_hooks hooks = {.before_compute = send_hook,
                                  .arg = (void *)(uintptr_t)&cases[i].send};
        struct child c = make_run(f, &hooks);
        char words[128];
        child_expect(&c, 75);
        snprintf(words, sizeof(words), "angel: stopped by %s after step %d; saved in ",
                 cases[i].name, (int)cases[i].send.step + 1);
        child_expect_text(&f->tmp, f->err, words);
        child_expect_text(&f->tmp, f->err, "the same command goes on from there");
        assert_true(has_step(f, cases[i].send.step + 1));
    }
    goes_on(f, make_run(f, NULL));
}

static void test_twice(void **state)
{
    struct fixture *f = *state;
    static const struct sending cases[] = {{6, {SIGINT, SIGINT}},
                                           {7, {SIGTERM, SIGINT}}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct run_hooks hooks = {.before_compute = send_hook,
                                  .arg = (void *)(uintptr_t)&cases[i]};
        struct child c = make_run(f, &hooks);
        child_expect(&c, 130);
        child_expect_text(&f->tmp, f->err, "left at once on a second interrupt");
        assert_true(has_step(f, 4));
        assert_false(has_step(f, cases[i].step + 1));
    }
    goes_on(f, make_run(f, NULL));
}

/* ---- in the midst of a save ---- */

struct save_stop {
    int64_t number;
    int signals[2];
    int err; /* what the change fails with, and all after it */
};

static int save_hook(void *arg, const struct durable_event *e)
{
    const struct save_stop *s = arg;
    if (e->number >= s->number && s->err != 0)
        return s->err;
    if (e->number != s->number)
        return 0;
    for (int i = 0; i < 2 && s->signals[i] != 0; i++)
        raise(s->signals[i]);
    return 0;
}

static int stop_in_save(struct fixture *f, struct save_stop s)
{
    struct durable d = {.hook = save_hook, .arg = &s};
    struct run_hooks hooks = {.durable = &d};
    struct child c = make_run(f, &hooks);
    return child_run(&c);
}

/* The save is finished, whatever its point. */
static void test_in_save(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    for (int64_t number = 1; number < 60; number += 9) {
        assert_int_equal(file_remove_tree(f->dir, &diag), ST_OK);
        assert_int_equal(stop_in_save(f, (struct save_stop){number, {SIGTERM}, 0}), 75);
        child_expect_text(&f->tmp, f->err, "stopped by Terminated after step 4; saved");
        child_digest(f->dir, 4);
    }
    goes_on(f, make_run(f, NULL));
}

static void test_twice_in_save(void **state)
{
    struct fixture *f = *state;
    for (int64_t number = 10; number < 40; number += 9)
        assert_int_equal(
                stop_in_save(f, (struct save_stop){number, {SIGINT, SIGINT}, 0}), 130);
    assert_false(has_step(f, 4));
    goes_on(f, make_run(f, NULL));
}

/* A stop that cannot be saved says so, and is no success. */
static void test_stop_unsaved(void **state)
{
    struct fixture *f = *state;
    struct sending send = {5, {SIGTERM}};
    struct save_stop s = {.number = 90, .err = ENOSPC};
    struct durable d = {.hook = save_hook, .arg = &s};
    struct run_hooks hooks = {.durable = &d, .before_compute = send_hook, .arg = &send};
    struct child c = make_run(f, &hooks);
    int code = child_run(&c);
    assert_true(code == 73 || code == 74);
    child_expect_text(&f->tmp, f->err,
                      "stopped by Terminated after step 6, not saved: ");
    child_expect_text(&f->tmp, f->err, strerror(ENOSPC));
    child_digest(f->dir, 4);
    goes_on(f, c);
}

/* ---- in an evaluation, and before the first step ---- */

static void send_later(double s)
{
    timer_t timer;
    struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
    struct itimerspec t = {.it_value = {.tv_nsec = (long)(s * 1e9)}};
    if (timer_create(CLOCK_MONOTONIC, &e, &timer) != 0 ||
        timer_settime(timer, 0, &t, NULL) != 0)
        _exit(96);
}

/* 40 ms after the computation of a step begins, its evaluation is under way. */
static void late_hook(void *arg, struct run *r, int attempt)
{
    (void)attempt;
    if (r->at.step == *(const int64_t *)arg)
        send_later(0.04);
}

static void stop_in_evaluation(struct fixture *f, int64_t step)
{
    char valid[1200];
    snprintf(valid, sizeof(valid), "data.valid=%s",
             child_corpus(&f->tmp, "valid.txt", 9, 8 * (int64_t)MIB));
    int64_t before = step - 1;
    struct run_hooks hooks = {.before_compute = late_hook, .arg = &before};
    struct child c = make_run(f, &hooks);
    child_arg(&c, valid);
    child_arg(&c, "train.eval_every=6");
    child_arg(&c, "train.eval_batches=1000000000");
    double start = run_now_s();
    child_expect(&c, 75);
    double took_s = run_now_s() - start;
    char words[128];
    snprintf(words, sizeof(words), "stopped by Terminated after step %d; saved in ",
             (int)step);
    child_expect_text(&f->tmp, f->err, words);
    assert_null(strstr(child_text(&f->tmp, f->err), "held-out loss"));
    child_digest(f->dir, step);
    print_message("left %.0f ms after the start, in an evaluation of 130 thousand "
                  "micro-batches\n",
                  took_s * 1e3);
}

static void test_in_evaluation(void **state)
{
    struct fixture *f = *state;
    stop_in_evaluation(f, 6);
    goes_on(f, make_run(f, NULL));
}

/* The last evaluation: all is trained and saved, though not all was done. */
static void test_in_last_evaluation(void **state)
{
    struct fixture *f = *state;
    struct child c = make_run(f, NULL);
    child_arg(&c, "train.steps=12");
    stop_in_evaluation(f, 6);
    stop_in_evaluation(f, 12);
    assert_int_equal(child_digest(f->dir, STEPS), f->want);
    goes_on(f, c); /* nothing is left to do */
}

static void test_before_first_step(void **state)
{
    struct fixture *f = *state;
    /* Point 0 makes the directory: data are open, memory is not. */
    assert_int_equal(stop_in_save(f, (struct save_stop){0, {SIGTERM}, 0}), 75);
    child_expect_text(&f->tmp, f->err, "stopped by Terminated before the first step");
    goes_on(f, make_run(f, NULL));
}

/* ---- what must not matter ---- */

static void test_window_change(void **state)
{
    struct fixture *f = *state;
    struct sending send = {-1, {SIGWINCH, SIGCHLD, SIGCONT}};
    struct run_hooks hooks = {.before_compute = send_hook, .arg = &send};
    struct child c = make_run(f, &hooks);
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, STEPS), f->want);
}

static void ignore_hangup(void *arg)
{
    (void)arg;
    signal(SIGHUP, SIG_IGN);
}

/* As nohup sets it. */
static void test_hangup_ignored(void **state)
{
    struct fixture *f = *state;
    struct sending send = {3, {SIGHUP}};
    struct run_hooks hooks = {.before_compute = send_hook, .arg = &send};
    struct child c = make_run(f, &hooks);
    c.prepare = ignore_hangup;
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, STEPS), f->want);
}

static void break_pipes(void *arg)
{
    int ends[2];
    (void)arg;
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0 ||
        dup2(ends[1], STDERR_FILENO) < 0)
        _exit(96);
    close(ends[0]);
    close(ends[1]);
}

static void test_broken_pipes(void **state)
{
    struct fixture *f = *state;
    struct child c = make_run(f, NULL);
    c.prepare = break_pipes;
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, STEPS), f->want);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_once),
            TEST(test_twice),
            TEST(test_in_save),
            TEST(test_twice_in_save),
            TEST(test_stop_unsaved),
            TEST(test_in_evaluation),
            TEST(test_in_last_evaluation),
            TEST(test_before_first_step),
            TEST(test_window_change),
            TEST(test_hangup_ignored),
            TEST(test_broken_pipes),
    };
    child_use_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
