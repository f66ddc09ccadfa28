/* The equality matrix: every layout trains as one rank does. With no argument a few
 * layouts; `t_layouts all` takes them all (make check-layouts).
 *
 * Tier 1, equal bits: pipeline degree, schedule, recompute and ZeRO stage change nothing
 * beside the same tensor and data degrees and micro-batch. Tier 2, fp32 tolerance, against
 * one rank: the loss of every step within 1e-5, every gradient at the first and the last
 * step within 1e-4 (tests/lib/tier2.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "tests/lib/rank_rig.h"
#include "tests/lib/tier2.h"

#define LOSS_TOL 1e-5
#define GRAD_TOL 1e-4

static bool all_layouts;

static const char *const model_names[LAYOUT_MODELS] = {"gpt2", "llama"};

/* The worst distance of a parameter's gradient from the reference's. */
static double grad_distance(const struct model *m, const float *got, const float *want)
{
    struct tier2 t = {0};
    double worst = 0;
    int64_t at = 0;
    for (uint32_t i = 0; i < m->n_params; i++, at += param_elems(&m->params[i - 1]))
        tier2_add(&t, want + at, param_elems(&m->params[i]));
    at = 0;
    for (uint32_t i = 0; i < m->n_params; i++) {
        int64_t n = param_elems(&m->params[i]);
        double d = tier2_distance(&t, got + at, want + at, n);
        if (!(d <= worst))
            worst = d;
        at += n;
    }
    return worst;
}

struct figures {
    double loss, grad_first, grad_last;
    bool bits; /* equal to the layout that shares its tier 1 */
};

static struct figures compare(const struct model *m, const struct outcome *got,
                              const struct outcome *one, const struct outcome *base)
{
    struct figures f = {.bits = outcome_equal(got, base)};
    for (int i = 0; i < RANK_RIG_STEPS; i++) {
        double d = fabs(got->loss[i] - one->loss[i]) / fabs(one->loss[i]);
        if (!(d <= f.loss))
            f.loss = d;
    }
    f.grad_first = grad_distance(m, got->grads[0], one->grads[0]);
    f.grad_last = grad_distance(m, got->grads[1], one->grads[1]);
    return f;
}

/* The plainest layout that must give the same bits. */
static struct layout_case tier1_base(const struct layout_case *c)
{
    struct layout_case b = *c;
    b.name = "base";
    b.pp = b.chunks = 1;
    b.schedule = SCHEDULE_1F1B;
    b.activations = ACTIVATIONS_KEEP;
    b.chunk_layers = NULL;
    b.zero = c->sharded ? 2 : 0;
    return b;
}

static bool same_layout(const struct layout_case *a, const struct layout_case *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->chunks == b->chunks &&
           a->dp == b->dp && a->zero == b->zero && a->schedule == b->schedule &&
           a->micro_batch == b->micro_batch && a->activations == b->activations &&
           a->sharded == b->sharded && !a->chunk_layers == !b->chunk_layers;
}

/* Outcomes of layouts that others are compared with. */
struct cache {
    struct layout_case layout[64];
    struct outcome outcome[64];
    int n;
};

static const struct outcome *cached(struct cache *k, const struct layout_case *c,
                                    const struct model *m,
                                    const struct rank_rig_options *o)
{
    for (int i = 0; i < k->n; i++)
        if (same_layout(&k->layout[i], c))
            return &k->outcome[i];
    assert_true(k->n < 64);
    k->layout[k->n] = *c;
    rank_rig_run(c, m, o, &k->outcome[k->n]);
    return &k->outcome[k->n++];
}

static void check_model(int which, enum dtype compute, bool tier2)
{
    struct rank_rig_options o = {.compute = compute};
    struct cache k[2] = {{.n = 0}}; /* a tensor degree of 3 has a model of its own */
    struct layout_case one = layout_cases[0];
    int n = 0;
    for (int i = 0; i < n_layout_cases; i++) {
        const struct layout_case *c = &layout_cases[i];
        if (!all_layouts && !c->quick)
            continue;
        struct model m;
        struct outcome got;
        struct cache *cache = &k[c->tp == 3];
        layout_model(c, which, &m);
        struct layout_case base = tier1_base(c);
        const struct outcome *same = cached(cache, &base, &m, &o);
        const struct outcome *ref = cached(cache, &one, &m, &o);
        rank_rig_run(c, &m, &o, &got);
        struct figures f = compare(&m, &got, ref, same);
        print_message("  %-5s %s %-34s loss %.1e grad %.1e %.1e %s\n",
                      model_names[which], dtype_name(compute), c->name, f.loss,
                      f.grad_first, f.grad_last, f.bits ? "bits equal" : "BITS DIFFER");
        assert_true(f.bits);
        if (tier2) {
            assert_true(f.loss <= LOSS_TOL);
            assert_true(f.grad_first <= GRAD_TOL);
            assert_true(f.grad_last <= GRAD_TOL);
        }
        outcome_free(&got);
        model_free(&m);
        n++;
    }
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < k[t].n; i++)
            outcome_free(&k[t].outcome[i]);
    print_message("  %d layouts\n", n);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_model(LAYOUT_GPT2, DT_F32, true);
}

static void test_llama(void **state)
{
    (void)state;
    check_model(LAYOUT_LLAMA, DT_F32, true);
}

static void test_bf16(void **state)
{
    (void)state;
    check_model(LAYOUT_LLAMA, DT_BF16, false);
    if (all_layouts)
        check_model(LAYOUT_GPT2, DT_BF16, false);
}

int main(int argc, char **argv)
{
    all_layouts = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_gpt2),
            cmocka_unit_test(test_llama),
            cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
