/* The comparer must fail where it should: these prove it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/compare.h"
#include "tests/lib/tier2.h"

#define ROWS 5
#define COLS 17
#define LD   19

struct pair {
    struct guarded got, want;
};

static struct tol tol_f32(void)
{
    return tol_of(TOL_POINTWISE, DT_F32, DT_F32, 1);
}

static int pair_setup(void **state)
{
    static struct pair p;
    int64_t dim[2] = {ROWS, COLS};
    p.got = guarded_make(DT_F32, 2, dim, LD);
    p.want = guarded_make(DT_F64, 2, dim, 0);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        double x = sin((double)i + 1) * 3;
        dtype_set(p.got.view.data, DT_F32, i / COLS * LD + i % COLS, x);
        dtype_set(p.want.view.data, DT_F64, i, x);
    }
    *state = &p;
    return 0;
}

static int pair_teardown(void **state)
{
    struct pair *p = *state;
    guarded_free(&p->got);
    guarded_free(&p->want);
    return 0;
}

static struct comparison run(const struct pair *p)
{
    return compare_views(&p->got.view, &p->want.view, tol_f32(), false);
}

static void passes_on_rounded_copy(void **state)
{
    struct comparison c = run(*state);
    assert_int_equal(c.verdict, VERDICT_PASS);
    assert_true(c.worst_ratio > 0); /* f32 against f64: rounding was seen */
    assert_int_equal(c.n_elems, ROWS * COLS);
}

static void fails_on_nan(void **state)
{
    struct pair *p = *state;
    float *got = p->got.view.data;
    got[2 * LD + 3] = NAN;
    struct comparison c = run(p);
    assert_int_equal(c.verdict, VERDICT_FAIL);
    assert_int_equal(c.n_nan, 1);
    assert_int_equal(c.worst_index, 2 * COLS + 3);
}

static void fails_on_nan_on_both_sides(void **state)
{
    struct pair *p = *state;
    ((float *)p->got.view.data)[0] = NAN;
    ((double *)p->want.view.data)[0] = NAN;
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
}

static void fails_on_fresh_buffer(void **state)
{
    struct pair *p = *state;
    int64_t dim[2] = {ROWS, COLS};
    struct guarded untouched = guarded_make(DT_F32, 2, dim, 0);
    struct comparison c =
            compare_views(&untouched.view, &p->want.view, tol_f32(), false);
    assert_int_equal(c.verdict, VERDICT_FAIL);
    assert_int_equal(c.n_nan, ROWS * COLS);
    guarded_free(&untouched);
}

static void fails_on_zero_reference(void **state)
{
    struct pair *p = *state;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        dtype_set(p->got.view.data, DT_F32, i / COLS * LD + i % COLS, 0);
        dtype_set(p->want.view.data, DT_F64, i, 0);
    }
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
    struct comparison c = compare_views(&p->got.view, &p->want.view, tol_f32(), true);
    assert_int_equal(c.verdict, VERDICT_PASS);
    ((float *)p->got.view.data)[7] = 1e-30f;
    c = compare_views(&p->got.view, &p->want.view, tol_f32(), true);
    assert_int_equal(c.verdict, VERDICT_FAIL);
}

static void fails_on_zero_result(void **state)
{
    struct pair *p = *state;
    for (int64_t i = 0; i < ROWS * COLS; i++)
        dtype_set(p->got.view.data, DT_F32, i / COLS * LD + i % COLS, 0);
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
}

/* Every element in turn, moved by 20 units in the last place of the largest. */
static void fails_on_any_perturbed_element(void **state)
{
    struct pair *p = *state;
    float *got = p->got.view.data;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        float *x = &got[i / COLS * LD + i % COLS], kept = *x;
        *x += 1e-4f;
        struct comparison c = run(p);
        assert_int_equal(c.verdict, VERDICT_FAIL);
        assert_int_equal(c.n_over, 1);
        assert_int_equal(c.worst_index, i);
        *x = kept;
    }
    assert_int_equal(run(p).verdict, VERDICT_PASS);
}

static void fails_on_infinity(void **state)
{
    struct pair *p = *state;
    ((float *)p->got.view.data)[1] = INFINITY;
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
}

static void fails_on_infinite_reference(void **state)
{
    struct pair *p = *state;
    ((double *)p->want.view.data)[1] = INFINITY;
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
}

static void fails_on_other_shape_and_on_nothing(void **state)
{
    struct pair *p = *state;
    struct view less = p->got.view;
    less.dim[0]--;
    assert_int_equal(compare_views(&less, &p->want.view, tol_f32(), false).verdict,
                     VERDICT_FAIL);
    struct view none = p->got.view;
    none.dim[0] = 0;
    assert_int_equal(compare_views(&none, &none, tol_f32(), true).verdict,
                     VERDICT_FAIL);
}

static void exact_class_takes_equal_bits_only(void **state)
{
    struct pair *p = *state;
    struct tol tol = tol_of(TOL_EXACT, DT_F32, DT_F32, 1);
    struct comparison c = compare_views(&p->got.view, &p->got.view, tol, false);
    assert_int_equal(c.verdict, VERDICT_PASS);
    c = compare_views(&p->got.view, &p->want.view, tol, false);
    assert_int_equal(c.verdict, VERDICT_FAIL);
}

/* A difference between half of the limit and the limit is marginal. */
static void marginal_between(void **state)
{
    struct pair *p = *state;
    struct comparison c = run(p);
    double limit = tol_f32().abs * c.scale + tol_f32().rel * fabs(sin(1.0) * 3);
    ((double *)p->want.view.data)[0] =
            (double)((float *)p->got.view.data)[0] + 0.8 * limit;
    assert_int_equal(run(p).verdict, VERDICT_MARGINAL);
    ((double *)p->want.view.data)[0] =
            (double)((float *)p->got.view.data)[0] + 1.2 * limit;
    assert_int_equal(run(p).verdict, VERDICT_FAIL);
}

static void canary_damage_is_seen(void **state)
{
    struct pair *p = *state;
    struct guarded *g = &p->got;
    assert_true(guarded_is_intact(g));
    float *data = g->view.data;
    int64_t last = (ROWS - 1) * LD + COLS;
    int64_t at[] = {-1, -64, last, last + 60, COLS, COLS + 1, 3 * LD + COLS};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        float kept = data[at[i]];
        data[at[i]] = 0;
        assert_false(guarded_is_intact(g));
        data[at[i]] = kept;
        assert_true(guarded_is_intact(g));
    }
}

static void printed_line_names_the_worst(void **state)
{
    struct pair *p = *state;
    ((float *)p->got.view.data)[4] = 9;
    struct comparison c = run(p);
    char text[256];
    comparison_print(&c, text, sizeof(text));
    print_message("%s\n", text);
    assert_non_null(strstr(text, "FAIL"));
    assert_non_null(strstr(text, "element 4 of 85"));
}

static void tolerances_grow_as_documented(void **state)
{
    (void)state;
    assert_true(dtype_eps(DT_F32) == ldexp(1, -23));
    assert_true(dtype_eps(DT_BF16) == ldexp(1, -7));
    struct tol a = tol_of(TOL_REDUCE, DT_BF16, DT_F32, 100);
    struct tol b = tol_of(TOL_REDUCE, DT_BF16, DT_F32, 400);
    assert_true(a.rel == b.rel && b.abs == 2 * a.abs);
    assert_true(tol_of(TOL_POINTWISE, DT_F32, DT_F32, 400).abs ==
                tol_of(TOL_POINTWISE, DT_F32, DT_F32, 1).abs);
}

#define PAIR_TEST(f) cmocka_unit_test_setup_teardown(f, pair_setup, pair_teardown)

/* The tier 2 distance must see each of these, and nothing must pass by default. */
static void tier2_fails_when_it_must(void **state)
{
    (void)state;
    float want[100], got[100], zero[100] = {0};
    struct tier2 t = {0}, nothing = {0};
    for (int i = 0; i < 100; i++)
        want[i] = got[i] = (float)(i % 7 - 3) * 0.25f;
    tier2_add(&t, want, 100);
    assert_true(tier2_distance(&t, got, want, 100) == 0);
    for (int i = 0; i < 100; i++) {
        got[i] += 1e-3f;
        assert_false(tier2_distance(&t, got, want, 100) <= 1e-5);
        got[i] = (float)NAN;
        assert_false(tier2_distance(&t, got, want, 100) <= 1e30);
        got[i] = want[i];
    }
    assert_false(tier2_distance(&t, zero, want, 100) <= 0.5);
    tier2_add(&nothing, zero, 100);
    assert_false(tier2_distance(&nothing, zero, zero, 100) <= 1e30);
    assert_false(tier2_distance(&t, got, want, 0) <= 1e30);
}

/* A tensor whose gradient is zero is measured against all others, not against itself. */
static void tier2_has_a_floor(void **state)
{
    (void)state;
    float want[100], got[4] = {1e-7f, 0, 0, 0}, none[4] = {0};
    struct tier2 t = {0};
    for (int i = 0; i < 100; i++)
        want[i] = 1.0f;
    tier2_add(&t, want, 100);
    tier2_add(&t, none, 4);
    double d = tier2_distance(&t, got, none, 4);
    assert_true(d > 1e-6 && d <= 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(tier2_fails_when_it_must),
            cmocka_unit_test(tier2_has_a_floor),
            PAIR_TEST(passes_on_rounded_copy),
            PAIR_TEST(fails_on_nan),
            PAIR_TEST(fails_on_nan_on_both_sides),
            PAIR_TEST(fails_on_fresh_buffer),
            PAIR_TEST(fails_on_zero_reference),
            PAIR_TEST(fails_on_zero_result),
            PAIR_TEST(fails_on_any_perturbed_element),
            PAIR_TEST(fails_on_infinity),
            PAIR_TEST(fails_on_infinite_reference),
            PAIR_TEST(fails_on_other_shape_and_on_nothing),
            PAIR_TEST(exact_class_takes_equal_bits_only),
            PAIR_TEST(marginal_between),
            PAIR_TEST(canary_damage_is_seen),
            PAIR_TEST(printed_line_names_the_worst),
            cmocka_unit_test(tolerances_grow_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
