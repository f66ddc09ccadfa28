/* Whole models against PyTorch: loss and every gradient, and five AdamW steps on injected
 * gradients. The fixtures and the script that made them are in tests/gold. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "core/hyper.h"
#include "tests/lib/gold_read.h"
#include "tests/lib/rig.h"
#include "tests/lib/tier2.h"

#define TOLERANCE 1e-5

static const char *const variants[] = {"gpt2",     "llama",  "llama3-scaling", "yarn",
                                       "qwen2",    "qwen3",  "olmo2",          "gemma2",
                                       "original", "mistral"};

static void load_gold(const char *variant, struct gold *g)
{
    char path[256], err[256];
    snprintf(path, sizeof(path), "tests/gold/%s.gold", variant);
    if (gold_load(path, g, err, sizeof(err)) != 0)
        fail_msg("%s: %s", path, err);
}

static const struct gold_entry *entry(const struct gold *g, const char *prefix,
                                      const char *name)
{
    char key[128];
    snprintf(key, sizeof(key), "%s%s", prefix, name);
    const struct gold_entry *e = gold_find(g, key);
    if (!e)
        fail_msg("the fixture has no entry %s", key);
    return e;
}

/* The fixture's model description, line by line as a command line would give it. */
static void load_model_config(const struct gold *g, struct config *c)
{
    struct arena arena = {0};
    struct diag diag = {0};
    struct cmd_override set[64] = {{"data.seq_len", "24"}};
    int n_set = 1;
    const char *line = gold_find(g, "config")->data;
    while (*line) {
        size_t n = strcspn(line, "\n"), colon = strcspn(line, ":");
        struct str key = {0};
        str_add(&key, "model.");
        str_add_n(&key, line, colon);
        assert_true((size_t)n_set < ARRAY_LEN(set));
        set[n_set++] = (struct cmd_override){
                arena_strdup(&arena, key.s),
                arena_strndup(&arena, line + colon + 2, n - colon - 2)};
        str_free(&key);
        line += n + (line[n] == '\n');
    }
    enum status st = load_config_raw(c, NULL, set, n_set, &diag);
    if (st == ST_OK)
        st = config_resolve_model(c, &diag);
    if (st != ST_OK)
        fail_msg("%s", diag.text);
    arena_release(&arena);
}

static void set_params(struct rig *r, const struct gold *g)
{
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        const struct param *p = &r->model.params[i];
        const struct gold_entry *e = entry(g, "", p->name);
        assert_int_equal(e->count, param_elems(p));
        rig_set_param(r, i, e->data);
    }
}

struct worst {
    double ratio;
    const char *name;
};

/* Every gradient within the limit of tier 2. */
static struct worst check_grads(struct rig *r, const struct gold *g, double tol)
{
    struct tier2 all = {0};
    struct worst worst = {0, ""};
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        const struct gold_entry *e = entry(g, "grad:", r->model.params[i].name);
        tier2_add(&all, e->data, (int64_t)e->count);
    }
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        const char *name = r->model.params[i].name;
        const struct gold_entry *e = entry(g, "grad:", name);
        float *got = mem_alloc(e->count * sizeof(*got));
        rig_get(r, r->low.params[i].grad, got);
        double ratio = tier2_distance(&all, got, e->data, (int64_t)e->count);
        mem_free(got);
        if (!(ratio <= worst.ratio))
            worst = (struct worst){ratio, name};
        if (!(ratio <= tol))
            print_error("  %s: gradient is off by %.3g of %.3g allowed\n", name, ratio,
                        tol);
    }
    return worst;
}

static void run_variant(const char *variant, bool reference, enum dtype compute,
                        enum memory_activations activations)
{
    struct gold g;
    struct config c;
    struct rig r;
    load_gold(variant, &g);
    load_model_config(&g, &c);
    struct rig_options o = {.purpose = LOWER_GRADIENTS,
                            .compute = compute,
                            .sequences = *(const int32_t *)entry(&g, "", "batch")->data,
                            .seq_len = *(const int32_t *)entry(&g, "", "seq")->data,
                            .activations = activations,
                            .n_threads = 2,
                            .reference = reference,
                            .check = true};
    rig_create(&r, &c.model, &o);
    set_params(&r, &g);
    rig_setup(&r);
    const int32_t *labels = entry(&g, "", "labels")->data;
    size_t n = entry(&g, "", "labels")->count, trained = 0;
    for (size_t i = 0; i < n; i++)
        trained += labels[i] >= 0;
    rig_write_batch(&r, 0, entry(&g, "", "tokens")->data, labels,
                    entry(&g, "", "positions")->data, entry(&g, "", "doc_start")->data);
    rig_write_hyper(&r, 1, 0, 1.0 / (double)trained, 0);
    rig_step(&r);
    double loss = rig_loss_sum(&r) / (double)trained;
    double want = *(const double *)entry(&g, "", "loss64")->data;
    double loss_off = fabs(loss - want) / fabs(want);
    struct worst w = check_grads(&r, &g, TOLERANCE);
    print_message("  %-14s %-9s %-4s loss off by %.2g, worst gradient %.2g (%s)\n",
                  variant, reference ? "reference" : "tuned", dtype_name(compute),
                  loss_off, w.ratio, w.name);
    assert_true(loss_off <= TOLERANCE);
    assert_true(w.ratio <= TOLERANCE);
    rig_destroy(&r);
    config_free(&c);
    gold_free(&g);
}

static void test_tuned(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++)
        run_variant(variants[i], false, DT_F32, ACTIVATIONS_KEEP);
}

static void test_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++)
        run_variant(variants[i], true, DT_F32, ACTIVATIONS_KEEP);
}

static void test_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++)
        run_variant(variants[i], true, DT_F64, ACTIVATIONS_RECOMPUTE);
}

/* The gradient that the fixtures' AdamW steps inject into every tensor. */
static void injected_grad(int step, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(sin(0.37 * (step + 1) + 0.011 * (double)i) * 0.05);
}

static double check_state(struct rig *r, const struct gold *g, const char *prefix,
                          const char *name, uint32_t value)
{
    const struct gold_entry *e = entry(g, prefix, name);
    struct tier2 alone = {0};
    float *got = mem_alloc(e->count * sizeof(*got));
    rig_get(r, value, got);
    tier2_add(&alone, e->data, (int64_t)e->count);
    double ratio = tier2_distance(&alone, got, e->data, (int64_t)e->count);
    mem_free(got);
    if (!(ratio <= TOLERANCE))
        fail_msg("%s%s is off by %.3g", prefix, name, ratio);
    return ratio;
}

static void run_adamw(const char *variant)
{
    struct gold g;
    struct config c;
    struct rig r;
    load_gold(variant, &g);
    load_model_config(&g, &c);
    struct rig_options o = {.purpose = LOWER_TRAIN,
                            .compute = DT_F32,
                            .sequences = 1,
                            .seq_len = 24,
                            .n_threads = 2,
                            .optimizer_only = true};
    rig_create(&r, &c.model, &o);
    set_params(&r, &g);
    rig_setup(&r);
    const double *lr = entry(&g, "adamw.", "lr")->data;
    for (int step = 0; step < 5; step++) {
        for (uint32_t i = 0; i < r.model.n_params; i++) {
            int64_t n = param_elems(&r.model.params[i]);
            float *grad = mem_alloc((size_t)n * sizeof(*grad));
            injected_grad(step, grad, n);
            rig_set(&r, r.low.params[i].grad, grad);
            mem_free(grad);
        }
        rig_write_hyper(&r, step + 1, lr[step], 1.0, 0);
        rig_step(&r);
    }
    double worst = 0;
    for (uint32_t i = 0; i < r.model.n_params; i++) {
        const char *name = r.model.params[i].name;
        const struct lowered_param *p = &r.low.params[i];
        worst = fmax(worst, check_state(&r, &g, "adamw.param:", name, p->master));
        worst = fmax(worst, check_state(&r, &g, "adamw.m:", name, p->exp_avg));
        worst = fmax(worst, check_state(&r, &g, "adamw.v:", name, p->exp_avg_sq));
    }
    print_message("  %-14s five AdamW steps, worst tensor off by %.2g\n", variant,
                  worst);
    rig_destroy(&r);
    config_free(&c);
    gold_free(&g);
}

static void test_adamw(void **state)
{
    (void)state;
    run_adamw("gpt2");
    run_adamw("llama");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_tuned),
            cmocka_unit_test(test_reference),
            cmocka_unit_test(test_double),
            cmocka_unit_test(test_adamw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
