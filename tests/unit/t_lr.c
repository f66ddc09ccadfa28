/* Learning-rate schedules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "core/lr.h"

#define LR     1e-3
#define MIN_LR 1e-4

static double lr_of(enum schedule_type type, int64_t warmup, int64_t decay_steps,
                    int64_t steps, int64_t step)
{
    struct config_optimizer o = {.lr = LR};
    struct config_schedule s = {type, warmup, MIN_LR, decay_steps};
    return lr_at_step(&o, &s, steps, step);
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-15)) {
        print_message("got %.17g, wanted %.17g\n", got, want);
        fail();
    }
}

static const enum schedule_type all_types[] = {SCHEDULE_COSINE, SCHEDULE_LINEAR,
                                               SCHEDULE_CONSTANT, SCHEDULE_WSD};

static void warmup_rises_to_the_full_rate(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(all_types); i++) {
        for (int64_t step = 0; step < 100; step++)
            assert_near(lr_of(all_types[i], 100, 50, 1000, step),
                        LR * (double)(step + 1) / 100);
        /* without a warm-up the first step is a step of the fall already */
        double first = lr_of(all_types[i], 0, 50, 1000000, 0);
        assert_true(first <= LR && first > LR * (1 - 2e-6));
    }
}

static void cosine_falls_to_min(void **state)
{
    (void)state;
    assert_near(lr_of(SCHEDULE_COSINE, 100, 0, 1100, 1099), MIN_LR);
    assert_near(lr_of(SCHEDULE_COSINE, 100, 0, 1100, 599), (LR + MIN_LR) / 2);
    /* a third of the way: cos(pi/3) = 1/2 */
    assert_near(lr_of(SCHEDULE_COSINE, 100, 0, 1000, 399),
                MIN_LR + 0.75 * (LR - MIN_LR));
    assert_near(lr_of(SCHEDULE_COSINE, 100, 0, 1100, 5000), MIN_LR);
}

static void linear_falls_to_min(void **state)
{
    (void)state;
    assert_near(lr_of(SCHEDULE_LINEAR, 100, 0, 1100, 599), (LR + MIN_LR) / 2);
    assert_near(lr_of(SCHEDULE_LINEAR, 100, 0, 1100, 349), LR - 0.25 * (LR - MIN_LR));
    assert_near(lr_of(SCHEDULE_LINEAR, 100, 0, 1100, 1099), MIN_LR);
}

static void constant_stays(void **state)
{
    (void)state;
    for (int64_t step = 99; step < 2000; step += 50)
        assert_near(lr_of(SCHEDULE_CONSTANT, 100, 0, 1100, step), LR);
}

static void wsd_holds_then_falls(void **state)
{
    (void)state;
    for (int64_t step = 99; step < 900; step++)
        assert_near(lr_of(SCHEDULE_WSD, 100, 100, 1000, step), LR);
    assert_near(lr_of(SCHEDULE_WSD, 100, 100, 1000, 949), (LR + MIN_LR) / 2);
    assert_near(lr_of(SCHEDULE_WSD, 100, 100, 1000, 999), MIN_LR);
    /* a fall longer than what the warm-up leaves begins after the warm-up */
    assert_near(lr_of(SCHEDULE_WSD, 100, 5000, 200, 99), LR);
    assert_near(lr_of(SCHEDULE_WSD, 100, 5000, 200, 149), (LR + MIN_LR) / 2);
}

/* In [min, lr] after the warm-up, never rising again; the whole run is warm-up; one step. */
static void never_leaves_its_range(void **state)
{
    (void)state;
    static const int64_t warmups[] = {0, 1, 7, 50};
    for (size_t i = 0; i < ARRAY_LEN(all_types); i++) {
        for (size_t w = 0; w < ARRAY_LEN(warmups); w++) {
            for (int64_t steps = 1; steps <= 60; steps++) {
                double before = INFINITY;
                for (int64_t step = warmups[w]; step < steps; step++) {
                    double got = lr_of(all_types[i], warmups[w], 10, steps, step);
                    assert_true(got >= MIN_LR - 1e-15 && got <= LR + 1e-15);
                    assert_true(got <= before);
                    before = got;
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(warmup_rises_to_the_full_rate),
            cmocka_unit_test(cosine_falls_to_min),
            cmocka_unit_test(linear_falls_to_min),
            cmocka_unit_test(constant_stays),
            cmocka_unit_test(wsd_holds_then_falls),
            cmocka_unit_test(never_leaves_its_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
