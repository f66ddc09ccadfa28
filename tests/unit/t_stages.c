/* The cut of layers into stages: by hand, against all cuts there are, and wrong lists. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "core/rng.h"
#include "parallel/stages.h"

static const double ones[64] = {
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
};

static void balance(const struct stages_cost *cost, int64_t n_layers, int64_t p,
                    int64_t v, int64_t *layers)
{
    struct diag d = {0};
    if (stages_balance(cost, n_layers, p, v, layers, &d) != ST_OK)
        fail_msg("%s", d.text);
}

static void assert_cut(double embedding, double head, int64_t n_layers, int64_t p,
                       int64_t v, const char *want)
{
    struct stages_cost cost = {ones, embedding, head};
    int64_t layers[16];
    char got[64] = "";
    size_t at = 0;
    balance(&cost, n_layers, p, v, layers);
    for (int64_t u = 0; u < p * v; u++)
        at += (size_t)snprintf(got + at, sizeof(got) - at, "%s%lld", u ? "," : "",
                               (long long)layers[u]);
    assert_string_equal(got, want);
}

static void test_by_hand(void **state)
{
    (void)state;
    assert_cut(0, 0, 8, 4, 1, "2,2,2,2");
    assert_cut(0, 0, 10, 4, 1, "3,3,2,2");
    assert_cut(0, 0, 5, 1, 1, "5");
    /* 32 layers and a head of 2.41, as in an 8B model: the head's stage gets less. */
    assert_cut(0, 2.41, 32, 4, 1, "9,9,8,6");
    assert_cut(0, 2.41, 32, 4, 2, "5,5,4,4,4,4,4,2");
    assert_cut(0.1, 2.41, 4, 4, 1, "1,2,1,0");
    /* The head alone is the slowest: the rest is spread over the others. */
    assert_cut(0, 5, 6, 3, 1, "3,3,0");
    assert_cut(2, 0, 6, 2, 1, "2,4");
    assert_cut(3, 3, 6, 3, 1, "1,4,1");
    /* More stages than layers. */
    assert_cut(0, 0, 2, 4, 1, "1,1,0,0");
    assert_cut(0, 1, 3, 4, 1, "1,1,1,0");
    assert_cut(1, 1, 2, 4, 1, "0,1,1,0");
}

static void test_layers_that_differ(void **state)
{
    (void)state;
    static const double layer[] = {3, 1, 1, 1, 1, 5};
    struct stages_cost cost = {layer, 0, 0};
    int64_t layers[3];
    double time[3];
    balance(&cost, 6, 3, 1, layers);
    assert_true(stages_time(&cost, layers, 3, time) == 5);
    assert_int_equal(layers[0], 2); /* 4, 3, 5: as good as 3, 4, 5, and longer early */
    assert_int_equal(layers[1], 3);
    assert_int_equal(layers[2], 1);
    assert_true(time[0] == 4 && time[1] == 3 && time[2] == 5);
}

/* The best (slowest, then sum of squares) over all cuts. */
static void brute(const struct stages_cost *cost, int64_t n_left, int64_t u,
                  int64_t n_virtual, int64_t *layers, double best[2])
{
    if (u == n_virtual - 1) {
        double time[8], sum = 0;
        layers[u] = n_left;
        double slowest = stages_time(cost, layers, n_virtual, time);
        for (int64_t i = 0; i < n_virtual; i++)
            sum += time[i] * time[i];
        if (slowest < best[0] || (slowest == best[0] && sum < best[1])) {
            best[0] = slowest;
            best[1] = sum;
        }
        return;
    }
    for (layers[u] = 0; layers[u] <= n_left; layers[u]++)
        brute(cost, n_left - layers[u], u + 1, n_virtual, layers, best);
}

static void test_all_cuts(void **state)
{
    (void)state;
    int n = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        double layer[10], time[8], sum = 0;
        int64_t layers[8], tried[8];
        int64_t n_layers = 1 + (int64_t)(rng_u64(seed, 0, 0) % 10);
        int64_t p = 1 + (int64_t)(rng_u64(seed, 0, 1) % 5);
        /* Small whole numbers, zero included: exact sums and many ties. */
        for (uint64_t i = 0; i < 10; i++)
            layer[i] = (double)(rng_u64(seed, 1, i) % 8);
        struct stages_cost cost = {layer, (double)(rng_u64(seed, 0, 2) % 6),
                                   (double)(rng_u64(seed, 0, 3) % 20)};
        double best[2] = {INFINITY, INFINITY};
        brute(&cost, n_layers, 0, p, tried, best);
        balance(&cost, n_layers, p, 1, layers);
        assert_true(stages_time(&cost, layers, p, time) == best[0]);
        int64_t total = 0;
        for (int64_t u = 0; u < p; u++) {
            sum += time[u] * time[u];
            total += layers[u];
        }
        assert_int_equal(total, n_layers);
        assert_true(sum == best[1]);
        n++;
    }
    printf("  %d random models against all their cuts\n", n);
}

/* Costs that are no whole numbers: the slowest stage within rounding of the best. */
static void test_fractions(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        double layer[9], time[8], best[2] = {INFINITY, INFINITY};
        int64_t layers[8], tried[8];
        for (uint64_t i = 0; i < 9; i++)
            layer[i] = (double)(rng_u64(seed, 1, i) % 1000) / 977;
        struct stages_cost cost = {layer, 0.3, 0.7};
        brute(&cost, 9, 0, 4, tried, best);
        balance(&cost, 9, 2, 2, layers);
        assert_true(stages_time(&cost, layers, 4, time) <= best[0] * (1 + 1e-12));
    }
}

static void test_large(void **state)
{
    (void)state;
    double *layer = mem_alloc(STAGES_LAYERS_MAX * sizeof(*layer));
    double *time = mem_alloc(256 * sizeof(*time));
    int64_t *layers = mem_alloc(256 * sizeof(*layers));
    for (int i = 0; i < STAGES_LAYERS_MAX; i++)
        layer[i] = 1;
    struct stages_cost cost = {layer, 0, 2};
    balance(&cost, STAGES_LAYERS_MAX, 64, 4, layers);
    double slowest = stages_time(&cost, layers, 256, time);
    assert_true(slowest == 17); /* 4098 over 256 stages */
    mem_free(layer);
    mem_free(time);
    mem_free(layers);
}

static void assert_read(const char *text, const char *want)
{
    struct stages_cost cost = {ones, 0, 1};
    struct diag d = {0};
    int64_t layers[4];
    char got[64];
    if (stages_read(text, &cost, 7, 2, 2, layers, &d) != ST_OK)
        fail_msg("'%s': %s", text, d.text);
    snprintf(got, sizeof(got), "%lld,%lld,%lld,%lld", (long long)layers[0],
             (long long)layers[1], (long long)layers[2], (long long)layers[3]);
    assert_string_equal(got, want);
}

static void test_read(void **state)
{
    (void)state;
    assert_read("auto", "2,2,2,1");
    assert_read("3,2,2,0", "3,2,2,0");
    assert_read("[0, 0, 7 ,0]", "0,0,7,0");
    assert_read(" 1, 2,2, 2 ", "1,2,2,2");
}

static void test_refused(void **state)
{
    (void)state;
    static const char hint[] =
            "balanced, as auto cuts them: parallel.layers_per_stage=2,2,2,1";
    static const struct {
        const char *text, *want;
    } cases[] = {
            {"3,4", "got 2 numbers, wanted pp 2 x vpp 2 = 4"},
            {"7", "got 1 number, wanted pp 2 x vpp 2 = 4"},
            {"1,2,2,1,1", "got 5 numbers"},
            {"3,-1,3,2", "got -1 as number 2, wanted 0 to 7"},
            {"2,2,2,9000000000000000000", "as number 4, wanted 0 to 7"},
            {"2,2,2,2", "got 8 in all, wanted the model's 7"},
            {"2,2,2,x", "not a list of layers"},
            {"2,2,2,", "not a list of layers"},
            {"[2,2,2,1", "not a list of layers"},
            {"2,2,2,1]", "not a list of layers"},
            {"2,2,2,1.5", "not a list of layers"},
            {"2,2,2,99999999999999999999", "not a list of layers"},
            {"", "not a list of layers"},
            {"automatic", "wanted 'auto' or whole numbers"},
    };
    struct stages_cost cost = {ones, 0, 1};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct diag d = {0};
        int64_t layers[4];
        assert_int_equal(stages_read(cases[i].text, &cost, 7, 2, 2, layers, &d),
                         ST_CONFIG);
        if (!strstr(d.text, cases[i].want) || strcmp(d.hint, hint) != 0)
            fail_msg("'%s': got '%s' / '%s'", cases[i].text, d.text, d.hint);
    }
    struct diag d = {0};
    int64_t one;
    assert_int_equal(stages_balance(&cost, 0, 1, 1, &one, &d), ST_CONFIG);
    assert_int_equal(stages_balance(&cost, 1, 0, 1, &one, &d), ST_CONFIG);
    assert_int_equal(stages_balance(&cost, 1, INT64_MAX, 2, &one, &d), ST_CONFIG);
    assert_int_equal(stages_check(&cost, 64, 65, 1, &one, 1, &d), ST_CONFIG);
    assert_string_equal(d.hint, "parallel.layers_per_stage=auto balances them");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_by_hand),  cmocka_unit_test(test_layers_that_differ),
            cmocka_unit_test(test_all_cuts), cmocka_unit_test(test_fractions),
            cmocka_unit_test(test_large),    cmocka_unit_test(test_read),
            cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
