/* A run that is stopped and goes on, at every step, ends with the same bits as one that was
 * not; so it does with a batch that grows, several epochs, and updates left out. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "io/file.h"
#include "tests/lib/run_child.h"

#define STEPS 30

struct fixture {
    struct tmp tmp;
    const char *corpus;
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    /* 3000 bytes: 30 steps of up to 8 x 16 tokens read them more than once. */
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 1, 3000);
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

static const char *named(struct fixture *f, const char *what, int i)
{
    char name[128];
    snprintf(name, sizeof(name), "%s-%d", what, i);
    return tmp_path(&f->tmp, name);
}

static struct child make_run(struct fixture *f, const char *dir,
                             const char *const *more, int steps)
{
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, steps);
    for (; *more; more++)
        child_arg(&c, *more);
    return c;
}

/* All checkpoints of one run, and from each of them a run to the end. */
static void resume_everywhere(struct fixture *f, const char *what,
                              const char *const *more)
{
    const char *whole = named(f, what, 0);
    struct child c = make_run(f, whole, more, STEPS);
    c.err = tmp_path(&f->tmp, "err");
    child_arg(&c, "checkpoint.every=1");
    child_arg(&c, "checkpoint.keep=0");
    child_expect(&c, 0);
    uint64_t want = child_digest(whole, STEPS);
    assert_true(child_digest(whole, STEPS - 1) != want);
    for (int step = 1; step < STEPS; step++) {
        char from[1200];
        const char *dir = named(f, what, step);
        snprintf(from, sizeof(from), "checkpoint.resume=%s",
                 child_step_path(&f->tmp, whole, step, ""));
        struct child part = make_run(f, dir, more, STEPS);
        part.err = c.err;
        child_arg(&part, "checkpoint.every=0");
        child_arg(&part, from);
        child_expect(&part, 0);
        if (child_digest(dir, STEPS) != want)
            fail_msg("%s: resumed at step %d: other bits", what, step);
    }
    print_message("%s: resumed at each of %d steps, digest %016llx\n", what, STEPS - 1,
                  (unsigned long long)want);
}

static void test_every_step(void **state)
{
    static const char *const none[] = {NULL};
    resume_everywhere(*state, "plain", none);
}

/* Batches that grow, bfloat16, and a limit so low that it leaves updates out. */
static void test_every_step_ramp(void **state)
{
    struct fixture *f = *state;
    static const char *const ramp[] = {
            "train.global_batch=[{until_tokens: 640, global_batch: 2}, "
            "{global_batch: 8}]",
            "train.precision=bf16", "train.spike_z=0.2", NULL};
    resume_everywhere(f, "ramp", ramp);
    const char *state_json =
            child_step_path(&f->tmp, named(f, "ramp", 29), STEPS, "state.json");
    const char *text = child_text(&f->tmp, state_json);
    int n = child_count(text, "\"reason\"");
    print_message("%d updates left out\n", n);
    assert_true(n >= 1);
    /* The ledger too is that of the unbroken run. */
    const char *whole =
            child_text(&f->tmp, child_step_path(&f->tmp, named(f, "ramp", 0), STEPS,
                                                "state.json"));
    const char *a = strstr(text, "\"guard\""), *b = strstr(whole, "\"guard\"");
    assert_non_null(a);
    assert_non_null(b);
    size_t n_guard = (size_t)(strstr(a, "\"config\"") - a);
    assert_memory_equal(a, b, n_guard);
}

static void stop_now(void *arg, struct run *r, int attempt)
{
    (void)arg;
    (void)r;
    (void)attempt;
    raise(SIGTERM);
}

/* The same directory, one step an attempt. */
static void test_stop_every_step(void **state)
{
    struct fixture *f = *state;
    static const char *const none[] = {NULL};
    const char *whole = tmp_path(&f->tmp, "whole"), *dir = tmp_path(&f->tmp, "bits");
    struct child c = make_run(f, whole, none, STEPS);
    c.err = tmp_path(&f->tmp, "err");
    child_expect(&c, 0);
    struct run_hooks hooks = {.before_compute = stop_now};
    struct child bit = make_run(f, dir, none, STEPS);
    bit.err = c.err;
    bit.hooks = &hooks;
    for (int step = 1; step < STEPS; step++)
        child_expect(&bit, 75);
    child_expect_text(&f->tmp, bit.err, "stopped by Terminated after step 29");
    child_expect(&bit, 0); /* the last step was asked for, and is done */
    assert_int_equal(child_digest(dir, STEPS), child_digest(whole, STEPS));
    child_expect(&bit, 0);
    child_expect_text(&f->tmp, bit.err, "nothing to do");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    child_use_memory();
    const struct CMUnitTest tests[] = {
            TEST(test_every_step),
            TEST(test_every_step_ramp),
            TEST(test_stop_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
