#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "memory/budget.h"

static const struct budget_option options[] = {
        {"train.micro_batch=1", 6 << 20},
        {"memory.activations=recompute", 3 << 20},
        {"memory.activations=selective", 4 << 20},
};

static void test_fits(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(budget_check(100, 100, "m", NULL, 0, &d), ST_OK);
    assert_int_equal(budget_check(101, 100, "m", NULL, 0, &d), ST_NO_FIT);
}

static void test_options_that_fit_come_in_order(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(budget_check(8 << 20, 5 << 20, "memory.device", options, 3, &d),
                     ST_NO_FIT);
    print_message("%s\n%s\n", d.text, d.hint);
    assert_string_equal(d.text,
                        "the run does not fit in memory (memory.device): got 5.00 "
                        "MiB, wanted 8.00 MiB, 3.00 MiB more");
    const char *first = strstr(d.hint, "activations=selective");
    const char *second = strstr(d.hint, "activations=recompute");
    assert_true(first && second && first < second);
    assert_null(strstr(d.hint, "micro_batch"));
}

static void test_nearest_when_nothing_fits(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(budget_check(8 << 20, 1 << 20, "m", options, 3, &d), ST_NO_FIT);
    assert_non_null(strstr(d.hint, "nearest is memory.activations=recompute"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_fits),
            cmocka_unit_test(test_options_that_fit_come_in_order),
            cmocka_unit_test(test_nearest_when_nothing_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
