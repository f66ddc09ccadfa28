/* The equality matrix: every layout trains as one rank does. With no argument a few
 * layouts; `t_layouts all` takes them all (make check-layouts).
 *
 * Tier 1, equal bits: pipeline degree, schedule, recompute and ZeRO stage change nothing
 * beside the same tensor and data degrees and micro-batch. Tier 2, fp32 tolerance, against
 * one rank: the loss of every step within 1e-5, every gradient at the first and the last
 * step within 1e-4 (tests/lib/tier2.h). Tier 3, bf16: the losses of 50 steps are no further
 * from one rank's than twice the largest distance among eight runs of one rank that take
 * their micro-batches in other orders. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "core/op.h"
#include "tests/lib/rank_rig.h"
#include "tests/lib/tier2.h"

#define LOSS_TOL 1e-5
#define GRAD_TOL 1e-4

static bool all_layouts;

static const char *const model_names[LAYOUT_MODELS] = {"gpt2", "llama", "mqa"};

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

static void test_mqa(void **state)
{
    (void)state;
    check_model(LAYOUT_MQA, DT_F32, true);
}

static void test_bf16(void **state)
{
    (void)state;
    check_model(LAYOUT_LLAMA, DT_BF16, false);
    if (all_layouts)
        check_model(LAYOUT_GPT2, DT_BF16, false);
}

/* ------------------------------------------------------------------- faults to plant */

/* Drops the first op of the kind and group from a program; false: there is none. */
static bool drop_op(struct lowered *l, enum op_kind kind, enum comm_group group)
{
    struct program *p = &l->program;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        if (p->ops.data[o].kind != kind ||
            op_attr_i(p, &p->ops.data[o], ATTR_GROUP, -1) != group)
            continue;
        memmove(&p->ops.data[o], &p->ops.data[o + 1],
                (p->ops.n - o - 1) * sizeof(*p->ops.data));
        p->ops.n--;
        for (uint32_t s = 0; s < p->segments.n; s++) {
            p->segments.data[s].op_begin -= p->segments.data[s].op_begin > o;
            p->segments.data[s].op_end -= p->segments.data[s].op_end > o;
        }
        return true;
    }
    return false;
}

static void drop_data_reduction(struct lowered *l, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    drop_op(l, OP_ALL_REDUCE, GROUP_DATA);
}

static void drop_data_reductions(struct lowered *l, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    while (drop_op(l, OP_ALL_REDUCE, GROUP_DATA))
        continue;
}

static void drop_norm_reduction(struct lowered *l, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    drop_op(l, OP_ALL_REDUCE, GROUP_TENSOR_GRAD);
}

/* One rank's attention backward has another scale. */
static void wrong_scale(struct lowered *l, int rank, void *arg)
{
    struct program *p = &l->program;
    (void)arg;
    for (uint32_t o = 0; o < p->ops.n && rank == 1; o++) {
        const struct prog_op *op = &p->ops.data[o];
        for (uint32_t a = 0; a < op->n_attrs && op->kind == OP_ATTENTION_DX; a++) {
            struct prog_attr *t = &p->attrs.data[op->attr_first + a];
            if (t->key == ATTR_SCALE)
                t->v.f *= 1.01;
        }
    }
}

/* Two ranks load each other's part of one weight. */
static void swapped_shard(struct lowered *l, int rank, void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < l->model->n_params; i++) {
        const struct param *row = &l->model->params[i];
        struct lowered_param *p = &l->params[i];
        if (row->role == ROLE_DOWN && row->layer == 1)
            p->begin[1] = rank == 0 ? p->dim[1] : 0;
    }
}

/* ------------------------------------------------------------------------ tier 3 */

#define TIER3_RUNS    8
#define TIER3_BATCHES 2 /* learned by heart in the 50 steps */

/* The largest distance of two runs' losses. */
static double loss_gap(const struct outcome *a, const struct outcome *b)
{
    double worst = 0;
    for (int i = 0; i < RANK_RIG_STEPS_MAX; i++) {
        double d = fabs(a->loss[i] - b->loss[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

/* What the order of micro-batches alone does on one rank: the largest distance of two
 * orders. out: one, the run in their own order. */
static double order_gap(const struct model *m, struct outcome *one)
{
    struct layout_case c = layout_cases[0];
    struct outcome run[TIER3_RUNS];
    double worst = 0;
    c.micro_batch = 1;
    for (int i = 0; i < TIER3_RUNS; i++) {
        struct rank_rig_options o = {.compute = DT_BF16,
                                     .steps = RANK_RIG_STEPS_MAX,
                                     .batches = TIER3_BATCHES,
                                     .permutation = (uint64_t)i};
        rank_rig_run(&c, m, &o, &run[i]);
        for (int k = 0; k < i; k++)
            worst = fmax(worst, loss_gap(&run[i], &run[k]));
    }
    *one = run[0];
    for (int i = 1; i < TIER3_RUNS; i++)
        outcome_free(&run[i]);
    return worst;
}

/* What must be further away than the limit. */
static void check_tier3_fault(const struct model *m, const struct outcome *one,
                              double limit)
{
    const struct layout_case c = {
            .name = "fault", .tp = 1, .pp = 1, .dp = 2, .micro_batch = 2};
    struct rank_rig_options o = {.compute = DT_BF16,
                                 .steps = RANK_RIG_STEPS_MAX,
                                 .batches = TIER3_BATCHES,
                                 .spoil = drop_data_reductions};
    struct outcome got;
    rank_rig_run(&c, m, &o, &got);
    double gap = loss_gap(&got, one);
    print_message("  without data-parallel reductions: gap %.2e\n", gap);
    assert_false(gap <= limit);
    outcome_free(&got);
}

/* Of layouts that share tier 1, one: test_bf16 shows that their bits are equal. */
static void check_tier3(int which)
{
    struct rank_rig_options o = {
            .compute = DT_BF16, .steps = RANK_RIG_STEPS_MAX, .batches = TIER3_BATCHES};
    struct model m;
    struct outcome one;
    int n = 0;
    layout_model(&layout_cases[0], which, &m);
    double limit = 2 * order_gap(&m, &one), worst = 0;
    print_message(
            "  %s bf16: loss %.2f to %.2f, limit %.2e, twice the gap of %d orders\n",
            model_names[which], one.loss[0], one.loss[RANK_RIG_STEPS_MAX - 1], limit,
            TIER3_RUNS);
    assert_true(limit > 0);
    for (int i = 0; i < n_layout_cases; i++) {
        struct layout_case c = tier1_base(&layout_cases[i]);
        struct outcome got;
        bool seen = c.tp == 3; /* which has a model of its own */
        for (int k = 0; k < i && !seen; k++) {
            struct layout_case other = tier1_base(&layout_cases[k]);
            seen = same_layout(&other, &c);
        }
        if (seen || (!all_layouts && !layout_cases[i].quick))
            continue;
        c.name = layout_cases[i].name;
        rank_rig_run(&c, &m, &o, &got);
        double gap = loss_gap(&got, &one);
        print_message("  %-5s bf16 %-34s gap %.2e\n", model_names[which], c.name, gap);
        worst = fmax(worst, gap);
        outcome_free(&got);
        n++;
    }
    print_message("  %d that differ in bits, largest gap %.2e of %.2e\n", n, worst,
                  limit);
    assert_true(worst <= limit);
    check_tier3_fault(&m, &one, limit);
    outcome_free(&one);
    model_free(&m);
}

static void test_tier3(void **state)
{
    (void)state;
    check_tier3(LAYOUT_LLAMA);
    if (all_layouts)
        check_tier3(LAYOUT_GPT2);
}

/* ------------------------------------------------------- the comparison can fail */

static void test_comparer(void **state)
{
    static const struct {
        const char *what;
        struct layout_case c;
        void (*spoil)(struct lowered *l, int rank, void *arg);
    } faults[] = {
            {"a data-parallel reduction is dropped",
             {.name = "fault", .tp = 1, .pp = 1, .dp = 2, .micro_batch = 2},
             drop_data_reduction},
            {"a norm's reduction over the tensor group is dropped",
             {.name = "fault", .tp = 2, .pp = 1, .dp = 1, .micro_batch = 2},
             drop_norm_reduction},
            {"a scale is 1 % off on one rank",
             {.name = "fault", .tp = 2, .pp = 1, .dp = 1, .micro_batch = 2},
             wrong_scale},
            {"two shards are swapped",
             {.name = "fault", .tp = 2, .pp = 1, .dp = 1, .micro_batch = 2},
             swapped_shard},
    };
    struct rank_rig_options plain = {.compute = DT_F32};
    struct outcome one;
    struct model m;
    (void)state;
    layout_model(&layout_cases[0], LAYOUT_LLAMA, &m);
    rank_rig_run(&layout_cases[0], &m, &plain, &one);
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        struct rank_rig_options o = {.compute = DT_F32, .spoil = faults[i].spoil};
        struct outcome got;
        rank_rig_run(&faults[i].c, &m, &o, &got);
        struct figures f = compare(&m, &got, &one, &one);
        print_message("  %-52s loss %.1e grad %.1e %.1e\n", faults[i].what, f.loss,
                      f.grad_first, f.grad_last);
        assert_false(f.grad_first <= GRAD_TOL);
        assert_false(f.bits);
        outcome_free(&got);
    }
    outcome_free(&one);
    model_free(&m);
}

int main(int argc, char **argv)
{
    all_layouts = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_gpt2),  cmocka_unit_test(test_llama),
            cmocka_unit_test(test_mqa),   cmocka_unit_test(test_bf16),
            cmocka_unit_test(test_tier3), cmocka_unit_test(test_comparer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
