/* Updates that must not be applied: what is not finite, and spikes. A number is put into a
 * weight before a step and taken out after it, as a fault of the machine would do. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/run_guard.h"
#include "core/hyper.h"
#include "core/rng.h"
#include "tests/lib/run_child.h"

/* ---- the guard alone ---- */

static void test_limit(void **state)
{
    struct guard g = {0};
    (void)state;
    for (int i = 0; i < 300; i++) {
        double limit = guard_limit(&g.loss, 3);
        if (i < GUARD_WINDOW_MIN)
            assert_true(limit == 0);
        else if (i == 40) /* 1, 3, 1, 3, ...: mean 2, variance 40/39 */
            assert_true(fabs(limit - (2 + 3 * sqrt(40.0 / 39.0))) < 1e-12);
        guard_accept(&g, i % 2 ? 3 : 1, 5);
    }
    assert_true(guard_limit(&g.loss, 0) == 0);
    /* Of 300 the last 128 count; a flat norm has a spread of a thousandth. */
    assert_true(fabs(guard_limit(&g.loss, 3) - (2 + 3 * sqrt(128.0 / 127.0))) < 1e-12);
    assert_true(fabs(guard_limit(&g.norm, 4) - 5 * 1.004) < 1e-12);
    guard_free(&g);
}

static void expect_refused(const char *text, const char *words)
{
    struct arena a = {0};
    struct json *object;
    struct guard g = {0};
    struct diag diag = {0};
    assert_int_equal(
            json_parse(&a, text, strlen(text), "state", JSON_STRICT, &object, &diag),
            ST_OK);
    assert_int_equal(guard_parse(&g, object, "state", &diag), ST_DATA);
    if (!strstr(diag.text, words))
        fail_msg("'%s' lacks '%s'", diag.text, words);
    guard_free(&g);
    arena_release(&a);
}

static void test_round_trip(void **state)
{
    struct guard g = {0}, back = {0};
    struct str text = {0};
    struct arena a = {0};
    struct json *object;
    struct diag diag = {0};
    (void)state;
    for (int i = 0; i < 200; i++) {
        float x[2];
        rng_normal(1, 2, 2 * i, 2, x);
        guard_accept(&g, (double)x[0] / 3, (double)x[1] / 7);
    }
    guard_skip_step(&g, &(struct guard_skip){12, 176, 16, GUARD_NONFINITE});
    guard_skip_step(&g, &(struct guard_skip){13, 192, 16, GUARD_NORM_SPIKE});
    struct json_writer w = {.out = &text};
    guard_write(&g, &w);
    assert_int_equal(
            json_parse(&a, text.s, text.n, "state", JSON_STRICT, &object, &diag),
            ST_OK);
    assert_int_equal(guard_parse(&back, object, "state", &diag), ST_OK);
    assert_memory_equal(&g.loss, &back.loss, sizeof(g.loss));
    assert_memory_equal(&g.norm, &back.norm, sizeof(g.norm));
    assert_int_equal(back.skips.n, 2);
    assert_int_equal(back.skips_in_row, 2);
    assert_int_equal(back.skips.data[1].first_sample, 192);
    assert_int_equal(back.skips.data[1].reason, GUARD_NORM_SPIKE);
    guard_free(&g);
    guard_free(&back);
    str_free(&text);
    arena_release(&a);
    expect_refused("{\"applied\": 2, \"skips_in_row\": 0, \"loss\": [1], "
                   "\"grad_norm\": [1, 2], \"skipped\": []}",
                   "loss (state): got 1 values, wanted 2 numbers");
    expect_refused(
            "{\"applied\": 1, \"skips_in_row\": 0, \"loss\": [1], "
            "\"grad_norm\": [2], \"skipped\": [{\"step\": 1, \"first_sample\": 0, "
            "\"n_samples\": 4, \"reason\": \"moon\"}]}",
            "got 'moon'");
}

/* ---- runs ---- */

struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *err;
    const char *dir;
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 3, 20000);
    f->err = tmp_path(&f->tmp, "err");
    f->dir = tmp_path(&f->tmp, "run");
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

/* What goes wrong in steps [step, step + steps) (counted from 0), in the first `attempts`
 * computations of each. */
struct fault {
    int64_t step, steps;
    int attempts;   /* 1: not when it is repeated */
    float gradient; /* factor on the gradient and on the loss that the device sees */
    float weight;   /* what the first weight of the last norm becomes; 0: left alone */
    float loss_max; /* the limit of the loss; 0: as it is */
    bool stays;     /* the weight keeps it */
    float was;
    bool is_in, was_last;
    uint64_t hash; /* of the weights before the last computation at fault */
};

static float *first_of_final_norm(struct run *r)
{
    const struct lowered *low = &r->train[0].low;
    for (uint32_t i = 0; i < r->model.n_params; i++)
        if (strcmp(r->model.params[i].name, "final_norm.weight") == 0)
            return exec_view(r->train[0].exec, low->params[i].master, 0).data;
    _exit(98);
}

static uint64_t weights_hash(struct run *r)
{
    const struct lowered *low = &r->train[0].low;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        const float *x = exec_view(r->train[0].exec, low->params[i].master, 0).data;
        for (int64_t j = 0; j < param_elems(&r->model.params[i]); j++) {
            uint32_t bits;
            memcpy(&bits, &x[j], sizeof(bits));
            sum = sum * 31 + bits;
        }
    }
    return sum;
}

static void put_weight(struct run *r, struct fault *f, bool at_fault)
{
    float *w = first_of_final_norm(r);
    if (f->is_in && !f->stays)
        *w = f->was;
    f->is_in = at_fault && f->weight != 0;
    if (!f->is_in)
        return;
    f->was = *w;
    *w = f->weight;
}

/* A factor on 1 / tokens reaches every gradient, and no weight. */
static void put_gradient(struct run *r, const struct fault *f, int attempt,
                         bool at_fault)
{
    static float right;
    float *h = exec_view(r->train[0].exec, r->train[0].low.hyper, 0).data;
    if (attempt == 0)
        right = h[HYPER_INV_TOKENS];
    h[HYPER_INV_TOKENS] = at_fault && f->gradient != 0 ? right * f->gradient : right;
    if (at_fault && f->loss_max > 0)
        h[HYPER_LOSS_MAX] = f->loss_max;
}

static void fault_hook(void *arg, struct run *r, int attempt)
{
    struct fault *f = arg;
    bool at_fault = r->at.step >= f->step && r->at.step < f->step + f->steps &&
                    attempt < f->attempts;
    put_weight(r, f, false);
    /* An update that was at fault to its end was not applied. */
    if (f->was_last && f->attempts > 1 && !f->stays && weights_hash(r) != f->hash)
        _exit(97);
    f->hash = weights_hash(r);
    f->was_last = at_fault;
    put_weight(r, f, at_fault);
    put_gradient(r, f, attempt, at_fault);
}

static struct child make_run(struct fixture *f, const struct run_hooks *hooks,
                             int steps)
{
    struct child c = child_pretrain(&f->tmp, f->corpus, f->dir, steps);
    c.err = f->err;
    c.hooks = hooks;
    return c;
}

static const char *metrics_text(struct fixture *f)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/metrics.jsonl", f->dir);
    return child_text(&f->tmp, path);
}

static void expect_in(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in:\n%s", words, text);
}

static uint64_t clean_digest(struct fixture *f, int steps)
{
    const char *dir = tmp_path(&f->tmp, "clean");
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, steps);
    child_expect(&c, 0);
    return child_digest(dir, steps);
}

/* A fault that does not come back: the step is repeated, and nothing else happened. */
static void test_repeated(void **state)
{
    struct fixture *f = *state;
    struct fault p = {.step = 4, .steps = 1, .attempts = 1, .gradient = (float)NAN};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 8);
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, 8), clean_digest(f, 8));
    child_expect_text(&f->tmp, f->err, "step 5: finite when computed again");
    expect_in(metrics_text(f), "step repeated");
    assert_null(strstr(metrics_text(f), "update skipped"));
}

/* Not finite twice: left out, in the ledger. */
static void test_skipped(void **state)
{
    struct fixture *f = *state;
    struct fault p = {
            .step = 4, .steps = 2, .attempts = 2, .gradient = (float)INFINITY};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 8);
    child_expect(&c, 0);
    child_digest(f->dir, 8); /* all is finite */
    const char *metrics = metrics_text(f);
    assert_int_equal(child_count(metrics, "\"update skipped\""), 2);
    expect_in(metrics, "\"reason\":\"not finite\",\"first_sample\":16,\"n_samples\":4");
    expect_in(metrics, "\"nonfinite\":[\"grad_norm\"]");
    const char *ledger =
            child_text(&f->tmp, child_step_path(&f->tmp, f->dir, 8, "state.json"));
    assert_int_equal(child_count(ledger, "\"not finite\""), 2);
    expect_in(ledger, "\"first_sample\": 20");
    expect_in(ledger, "\"applied\": 6");
    child_expect_text(&f->tmp, f->err, "step 5: update left out, not finite");
}

/* By option the run stops, having saved what came before; and goes on from there. */
static void test_stop(void **state)
{
    struct fixture *f = *state;
    struct fault p = {
            .step = 4, .steps = 1, .attempts = 2, .gradient = (float)INFINITY};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 8);
    child_arg(&c, "train.nonfinite=stop");
    child_expect(&c, 80);
    child_expect_text(&f->tmp, f->err,
                      "training stopped (step 5, train.nonfinite=stop): got loss");
    child_expect_text(&f->tmp, f->err, "saved after step 4");
    child_digest(f->dir, 4);
    c.hooks = NULL;
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, 8), clean_digest(f, 8));
}

/* A weight that is not finite itself: no update can help, nothing is saved. */
static void test_damaged_weight(void **state)
{
    struct fixture *f = *state;
    struct fault p = {
            .step = 4, .steps = 1, .attempts = 2, .weight = (float)NAN, .stays = true};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 8);
    child_arg(&c, "checkpoint.every=3");
    child_expect(&c, 80);
    child_expect_text(&f->tmp, f->err,
                      "the state is damaged (tensor 'final_norm.weight', weight, after "
                      "step 4)");
    child_digest(f->dir, 3);
    assert_true(access(child_step_path(&f->tmp, f->dir, 4, ""), F_OK) != 0);
    c.hooks = NULL;
    child_expect(&c, 0);
    assert_int_equal(child_digest(f->dir, 8), clean_digest(f, 8));
}

/* The same where the loss does not show it: the save finds it. */
static void moment_hook(void *arg, struct run *r, int attempt)
{
    (void)arg;
    (void)attempt;
    const struct lowered *low = &r->train[0].low;
    float *v = exec_view(r->train[0].exec, low->params[0].exp_avg_sq, 0).data;
    if (r->at.step == 7)
        v[0] = (float)INFINITY;
}

static void test_damaged_moment(void **state)
{
    struct fixture *f = *state;
    struct run_hooks hooks = {.before_compute = moment_hook};
    struct child c = make_run(f, &hooks, 8);
    child_arg(&c, "checkpoint.every=3");
    child_expect(&c, 80);
    child_expect_text(&f->tmp, f->err, ", exp_avg_sq, after step 8)");
    assert_true(access(child_step_path(&f->tmp, f->dir, 8, ""), F_OK) != 0);
    child_digest(f->dir, 6);
}

/* Ten in a row end the run; what it had is saved. */
static void test_diverged(void **state)
{
    struct fixture *f = *state;
    struct fault p = {
            .step = 4, .steps = 100, .attempts = 2, .gradient = (float)INFINITY};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 30);
    child_expect(&c, 80);
    child_expect_text(&f->tmp, f->err,
                      "training diverged (step 14): got 10 updates in a row");
    child_digest(f->dir, 14);
}

/* A rate that no model survives never reaches a checkpoint. */
static void test_huge_rate(void **state)
{
    struct fixture *f = *state;
    struct child c = make_run(f, NULL, 200);
    child_arg(&c, "train.optimizer.lr=1000");
    child_arg(&c, "train.optimizer.clip=0");
    child_arg(&c, "train.optimizer.weight_decay=1000");
    child_arg(&c, "checkpoint.every=20");
    child_arg(&c, "checkpoint.keep=0");
    child_expect(&c, 80);
    int n = 0;
    for (int step = 1; step <= 200; step++) {
        if (access(child_step_path(&f->tmp, f->dir, step, ""), F_OK) != 0)
            continue;
        child_digest(f->dir, step); /* finite, or the test fails */
        n++;
    }
    print_message("%d checkpoints before it stopped, all finite\n", n);
}

static void run_spike(struct fixture *f, const char *option, float gradient,
                      float weight, int n_skipped)
{
    struct fault p = {.step = 34,
                      .steps = 1,
                      .attempts = n_skipped > 0 ? 2 : 1, /* 2: must not be applied */
                      .gradient = gradient,
                      .weight = weight};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 40);
    child_arg(&c, option);
    child_expect(&c, 0);
    assert_int_equal(child_count(metrics_text(f), "\"update skipped\""), n_skipped);
}

static void expect_ledger(struct fixture *f, const char *reason)
{
    char words[128];
    snprintf(words, sizeof(words),
             "\"reason\":\"%s\",\"first_sample\":136,\"n_samples\":4", reason);
    expect_in(metrics_text(f), words);
    const char *ledger =
            child_text(&f->tmp, child_step_path(&f->tmp, f->dir, 40, "state.json"));
    expect_in(ledger, "\"step\": 35");
    expect_in(ledger, "\"applied\": 39");
    child_expect_text(&f->tmp, f->err, "step 35: update left out, ");
}

static void test_norm_spike(void **state)
{
    run_spike(*state, "train.spike_z=6", 50, 0, 1);
    expect_ledger(*state, "gradient norm spike");
}

/* A weight that makes loss and gradient jump: whichever limit it breaks. */
static void test_weight_spike(void **state)
{
    struct fixture *f = *state;
    run_spike(f, "train.spike_z=6", 0, 60, 1);
    expect_in(metrics_text(f), "spike\",\"first_sample\":136,\"n_samples\":4");
}

/* The limit of the loss alone, which the device compares with the mean loss. */
static void test_loss_limit(void **state)
{
    struct fixture *f = *state;
    struct fault p = {.step = 4, .steps = 3, .attempts = 2, .loss_max = 0.5f};
    struct run_hooks hooks = {.before_compute = fault_hook, .arg = &p};
    struct child c = make_run(f, &hooks, 8);
    child_arg(&c, "train.spike_z=1000");
    child_expect(&c, 0);
    assert_int_equal(child_count(metrics_text(f), "\"reason\":\"loss spike\""), 3);
    struct fault wide = {.step = 4, .steps = 3, .attempts = 1, .loss_max = 50};
    hooks.arg = &wide;
    f->dir = tmp_path(&f->tmp, "wide");
    struct child d = make_run(f, &hooks, 8);
    child_expect(&d, 0);
    assert_null(strstr(metrics_text(f), "update skipped"));
}

static void test_spike_off(void **state)
{
    run_spike(*state, "train.spike_z=0", 50, 0, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_limit),
            cmocka_unit_test(test_round_trip),
            TEST(test_repeated),
            TEST(test_skipped),
            TEST(test_stop),
            TEST(test_damaged_weight),
            TEST(test_damaged_moment),
            TEST(test_diverged),
            TEST(test_huge_rate),
            TEST(test_norm_spike),
            TEST(test_weight_spike),
            TEST(test_loss_limit),
            TEST(test_spike_off),
    };
    child_use_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
