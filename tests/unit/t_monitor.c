/* Monitors: what probes read is what the tensors hold, nothing that trains changes, and
 * alarms follow their rules. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "cmd/probe_watch.h"
#include "core/stats.h"
#include "tests/lib/rig.h"
#include "tests/lib/run_child.h"

#define SEQUENCES 2
#define SEQ_LEN   19
#define MICRO     2
#define STEPS     3

static void tiny_model(struct config *c)
{
    static const struct cmd_override set[] = {
            {"model.vocab", "97"},  {"model.layers", "2"}, {"model.hidden", "48"},
            {"model.heads", "4"},   {"model.ffn", "80"},   {"model.kv_heads", "2"},
            {"data.seq_len", "19"}, {"model.bias", "all"}, {"model.tied", "true"}};
    struct diag diag = {0};
    assert_int_equal(load_config_raw(c, NULL, set, ARRAY_LEN(set), &diag), ST_OK);
    assert_int_equal(config_resolve_model(c, &diag), ST_OK);
}

/* The rig behind some steps, still open. */
static void train(struct rig *r, const struct config *c, enum dtype compute,
                  bool monitor, enum memory_activations activations, int n_threads)
{
    struct rig_options o = {.purpose = LOWER_TRAIN,
                            .compute = compute,
                            .sequences = SEQUENCES,
                            .seq_len = SEQ_LEN,
                            .n_micro_batches = MICRO,
                            .activations = activations,
                            .n_threads = n_threads,
                            .check = true,
                            .monitor = monitor};
    rig_create(r, &c->model, &o);
    rig_init_params(r, 5);
    rig_setup(r);
    for (int step = 0; step < STEPS; step++) {
        int32_t b[4][SEQUENCES * SEQ_LEN];
        int64_t trained = 0;
        for (uint32_t mb = 0; mb < MICRO; mb++) {
            trained += rig_random_batch((uint64_t)step * MICRO + mb, SEQUENCES, SEQ_LEN,
                                        c->model.vocab, b[0], b[1], b[2], b[3]);
            rig_write_batch(r, mb, b[0], b[1], b[2], b[3]);
        }
        rig_write_hyper(r, step + 1, 1e-3, 1.0 / (double)trained, 1.0);
        rig_step(r);
    }
}

/* -------------------------------------------------------------------------- equal bits */

static void test_equal_bits(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    static const enum memory_activations modes[] = {
            ACTIVATIONS_KEEP, ACTIVATIONS_SELECTIVE, ACTIVATIONS_RECOMPUTE};
    struct config c;
    tiny_model(&c);
    int n = 0;
    for (size_t d = 0; d < ARRAY_LEN(dtypes); d++)
        for (size_t m = 0; m < ARRAY_LEN(modes); m++) {
            struct rig with, without;
            train(&without, &c, dtypes[d], false, modes[m], 1);
            train(&with, &c, dtypes[d], true, modes[m], 2);
            assert_int_equal(without.low.n_probes, 0);
            assert_true(rig_hash_state(&with) == rig_hash_state(&without));
            assert_true(rig_hash_grads(&with) == rig_hash_grads(&without));
            assert_true(rig_loss_sum(&with) == rig_loss_sum(&without));
            rig_destroy(&with);
            rig_destroy(&without);
            n++;
        }
    print_message("%d pairs of runs, with probes and without: equal bits\n", n);
    config_free(&c);
}

/* ----------------------------------------------------------------------------- figures */

static void read_stats(struct rig *r, uint32_t value, uint32_t copy, double *s)
{
    exec_read(r->exec, value, copy, s);
}

/* What the tensor `value` holds, summed plainly. */
static void assert_stats(struct rig *r, uint32_t value, const double *s)
{
    int64_t n = value_elems(&r->low.program.values.data[value]);
    float *x = mem_alloc((size_t)n * sizeof(*x));
    double top = 0, squares = 0, sum = 0, sizes = 0;
    int64_t zeros = 0;
    rig_get(r, value, x);
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i];
        top = fmax(top, fabs(v));
        squares += v * v;
        sum += v;
        sizes += fabs(v);
        zeros += v == 0;
    }
    mem_free(x);
    assert_true(s[STATS_ABSMAX] == top);
    assert_true(s[STATS_ZEROS] == (double)zeros);
    assert_true(fabs(s[STATS_SQUARES] - squares) <= 1e-12 * squares);
    assert_true(fabs(s[STATS_SUM] - sum) <= 1e-12 * sizes);
}

static void test_figures(void **state)
{
    (void)state;
    struct config c;
    struct rig r;
    int seen[PROBE_KIND_COUNT] = {0};
    tiny_model(&c);
    train(&r, &c, DT_BF16, true, ACTIVATIONS_KEEP, 2);
    for (uint32_t i = 0; i < r.low.n_probes; i++) {
        const struct lowered_probe *p = &r.low.probes[i];
        double s[STATS_COUNT];
        read_stats(&r, p->value, 0, s);
        seen[p->kind]++;
        if (p->kind > PROBE_EXP_AVG_SQ) {
            assert_true(isfinite(s[STATS_SQUARES]) && s[STATS_ABSMAX] >= 0);
            continue;
        }
        const struct lowered_param *v = &r.low.params[p->index];
        const uint32_t of[] = {v->master, v->grad, v->exp_avg, v->exp_avg_sq};
        assert_stats(&r, of[p->kind], s);
    }
    for (int k = 0; k <= PROBE_UPDATE; k++)
        assert_int_equal(seen[k], r.model.n_params);
    assert_int_equal(seen[PROBE_RESIDUAL], 3);
    assert_int_equal(seen[PROBE_ATTN_LSE], 2);
    assert_int_equal(seen[PROBE_LOGITS], 1);
    double sum = 0;
    for (uint32_t mb = 0; mb < MICRO; mb++) {
        double s[STATS_COUNT];
        read_stats(&r, r.low.loss_stats, mb, s);
        assert_true(s[STATS_ABSMAX] > 3 && s[STATS_ABSMAX] < 10);
        sum += s[STATS_SUM];
    }
    assert_true(fabs(sum - rig_loss_sum(&r)) <= 1e-12 * sum);
    print_message("%u probes hold what a plain sum over the tensors gives\n",
                  r.low.n_probes);
    rig_destroy(&r);
    config_free(&c);
}

/* The update's figures against the difference of the weights before and after. */
static void test_update(void **state)
{
    (void)state;
    struct config c;
    struct rig r;
    tiny_model(&c);
    train(&r, &c, DT_F32, true, ACTIVATIONS_KEEP, 1);
    float *before[64];
    assert_true(r.model.n_params <= ARRAY_LEN(before));
    for (uint32_t i = 0; i < r.model.n_params; i++) {
        before[i] = mem_alloc((size_t)param_elems(&r.model.params[i]) * sizeof(float));
        rig_get(&r, r.low.params[i].master, before[i]);
    }
    rig_write_hyper(&r, STEPS + 1, 1e-3, 1.0 / 60, 1.0);
    rig_step(&r);
    double worst = 0;
    for (uint32_t k = 0; k < r.low.n_probes; k++) {
        const struct lowered_probe *p = &r.low.probes[k];
        if (p->kind != PROBE_UPDATE || r.model.params[p->index].ndim != 1)
            continue; /* matrices decay too */
        int64_t n = param_elems(&r.model.params[p->index]);
        float *after = mem_alloc((size_t)n * sizeof(*after));
        double s[STATS_COUNT], squares = 0;
        rig_get(&r, r.low.params[p->index].master, after);
        for (int64_t i = 0; i < n; i++) {
            double step = (double)after[i] - (double)before[p->index][i];
            squares += step * step;
        }
        mem_free(after);
        read_stats(&r, p->value, 0, s);
        double off = fabs(sqrt(s[STATS_SQUARES]) - sqrt(squares)) / sqrt(squares);
        assert_true(off < 1e-3);
        worst = fmax(worst, off);
    }
    for (uint32_t i = 0; i < r.model.n_params; i++)
        mem_free(before[i]);
    print_message("update norm against the weights' difference: worst %.1e\n", worst);
    rig_destroy(&r);
    config_free(&c);
}

/* ------------------------------------------------------------------------------ alarms */

static void test_alarms(void **state)
{
    (void)state;
    struct config c;
    struct model m;
    tiny_model(&c);
    model_create(&c.model, &m);
    const struct lowered_probe probes[] = {{.kind = PROBE_PARAM, .index = 0},
                                           {.kind = PROBE_RESIDUAL, .index = 1},
                                           {.kind = PROBE_LOGITS, .index = -1}};
    assert_int_equal(m.params[0].ndim, 2);
    struct probe_watch *w = probe_watch_create(&m, probes, 3, 25);
    struct probe_alarm a[3];
    struct probe_figures f[3] = {{.absmax = 2, .rms = 1}, {20, 2, 0, 0}, {5, 1, 0, 0}};
    assert_int_equal(probe_watch_look(w, f, a), 0);
    /* Tenfold growth is looked for over 100 steps, not from look to look. */
    for (int i = 1; i <= 3; i++) {
        f[1].absmax = 20 + 55 * i;
        assert_int_equal(probe_watch_look(w, f, a), 0);
    }
    f[1].absmax = 240;
    assert_int_equal(probe_watch_look(w, f, a), 1);
    assert_int_equal(a[0].probe, 1);
    assert_string_equal(a[0].rule, "growth");
    assert_true(a[0].now == 240 && a[0].before == 20);
    /* Below the floor growth is none. */
    f[2].absmax = 90;
    f[1].absmax = 241;
    assert_int_equal(probe_watch_look(w, f, a), 0);
    f[0].rms = 0.09;
    f[2].rms = 0.01; /* logits may become small */
    assert_int_equal(probe_watch_look(w, f, a), 1);
    assert_int_equal(a[0].probe, 0);
    assert_string_equal(a[0].rule, "collapse");
    /* The same again is not said again. */
    assert_int_equal(probe_watch_look(w, f, a), 0);
    f[0].rms = 1;
    f[2].rms = NAN;
    assert_int_equal(probe_watch_look(w, f, a), 1);
    assert_int_equal(a[0].probe, 2);
    assert_string_equal(a[0].rule, "non-finite");
    probe_watch_destroy(w);
    model_free(&m);
    config_free(&c);
}

static void test_score(void **state)
{
    (void)state;
    struct guard g = {0};
    assert_true(guard_score(&g.loss, 100) == 0);
    for (int i = 0; i < 64; i++)
        guard_accept(&g, i % 2 ? 3.1 : 2.9, 1);
    double z = guard_score(&g.loss, 3.7);
    assert_true(z > 6.8 && z < 7.1);
    assert_true(guard_score(&g.loss, NAN) == INFINITY);
    assert_true(guard_score(&g.norm, 1.006) > 5.9);
    assert_true(fabs(guard_limit(&g.loss, z) - 3.7) < 1e-12);
    guard_free(&g);
}

/* --------------------------------------------------------------------------- whole runs */

/* Two programs in turns, in the same memory: the end is that of one alone. */
static void test_run(void **state)
{
    (void)state;
    static const char *const every[] = {"0", "1", "3"};
    struct tmp tmp;
    tmp_create(&tmp);
    const char *corpus = child_corpus(&tmp, "corpus.txt", 1, 3000);
    uint64_t digest[ARRAY_LEN(every)];
    for (size_t i = 0; i < ARRAY_LEN(every); i++) {
        char arg[64];
        const char *dir = tmp_path(&tmp, every[i]);
        struct child c = child_pretrain(&tmp, corpus, dir, 12);
        snprintf(arg, sizeof(arg), "log.monitor_every=%s", every[i]);
        child_arg(&c, arg);
        child_expect(&c, 0);
        digest[i] = child_digest(dir, 12);
        const char *lines =
                child_text(&tmp, tmp_path(&tmp, i == 0   ? "0/metrics.jsonl"
                                                : i == 1 ? "1/metrics.jsonl"
                                                         : "3/metrics.jsonl"));
        int looks = child_count(lines, "\"tensor\":\"logits\"");
        assert_int_equal(looks, i == 0 ? 0 : i == 1 ? 12 : 4);
        assert_int_equal(child_count(lines, "\"event\":\"start\""), 1);
        assert_true(child_count(lines, "\"max_token_loss\"") >= 2);
    }
    assert_true(digest[0] == digest[1]);
    assert_true(digest[0] == digest[2]);
    print_message("monitors never, always, every third step: digest %016llx\n",
                  (unsigned long long)digest[0]);
    tmp_remove(&tmp);
}

/* The outputs of a run, and what is said where they cannot be made. */
static void test_outputs(void **state)
{
    (void)state;
    struct tmp tmp;
    tmp_create(&tmp);
    const char *corpus = child_corpus(&tmp, "corpus.txt", 1, 3000);
    char arg[4][512];
    snprintf(arg[0], sizeof(arg[0]), "log.prometheus=%s", tmp_path(&tmp, "a.prom"));
    snprintf(arg[1], sizeof(arg[1]), "log.tensorboard=%s", tmp_path(&tmp, "r/tb"));
    struct child c = child_pretrain(&tmp, corpus, tmp_path(&tmp, "r"), 10);
    child_arg(&c, arg[0]);
    child_arg(&c, arg[1]);
    child_expect(&c, 0);
    child_expect_text(&tmp, tmp_path(&tmp, "a.prom"), "\nangel_step 10\n");
    child_expect_text(&tmp, tmp_path(&tmp, "a.prom"), "\nangel_checkpoint_step 10\n");
    child_expect_text(&tmp, tmp_path(&tmp, "a.prom"), "angel_step_seconds_count 10\n");
    snprintf(arg[2], sizeof(arg[2]), "log.prometheus=%s", tmp_path(&tmp, "no/a.prom"));
    snprintf(arg[3], sizeof(arg[3]), "log.tensorboard=%s/tb", corpus);
    for (int i = 2; i < 4; i++) {
        struct child bad = child_pretrain(&tmp, corpus, tmp_path(&tmp, "bad"), 10);
        child_arg(&bad, arg[i]);
        child_expect(&bad, 73);
    }
    tmp_remove(&tmp);
}

int main(void)
{
    child_use_memory();
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_equal_bits), cmocka_unit_test(test_figures),
            cmocka_unit_test(test_update),     cmocka_unit_test(test_alarms),
            cmocka_unit_test(test_score),      cmocka_unit_test(test_run),
            cmocka_unit_test(test_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
