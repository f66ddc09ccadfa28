#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "memory/budget.h"
#include "tests/lib/toy_program.h"

static const struct budget_option options[] = {
        {"train.micro_batch=1", 6 << 20},
        {"memory.activations=recompute", 3 << 20},
        {"memory.activations=selective", 4 << 20},
};

static void test_fits(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(budget_check(POOL_DEVICE, 90, 10, 100, NULL, 0, &d), ST_OK);
    assert_int_equal(budget_check(POOL_DEVICE, 90, 10, 0, NULL, 0, &d), ST_OK);
    assert_int_equal(budget_check(POOL_DEVICE, 90, 11, 100, NULL, 0, &d), ST_NO_FIT);
}

static void test_options_that_fit_come_in_order(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(
            budget_check(POOL_DEVICE, 7 << 20, 1 << 20, 5 << 20, options, 3, &d),
            ST_NO_FIT);
    print_message("%s\n%s\n", d.text, d.hint);
    assert_string_equal(d.text, "device memory does not suffice: got 5.00 MiB, wanted "
                                "8.00 MiB (3.00 MiB more)");
    const char *first = strstr(d.hint, "activations=selective");
    const char *second = strstr(d.hint, "activations=recompute");
    assert_true(first && second && first < second);
    assert_null(strstr(d.hint, "micro_batch"));
}

static void test_nearest_when_nothing_fits(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(budget_check(POOL_DEVICE, 8 << 20, 0, 1 << 20, options, 3, &d),
                     ST_NO_FIT);
    assert_non_null(strstr(d.hint, "nearest is memory.activations=recompute"));
}

static void test_table(void **state)
{
    (void)state;
    struct program p;
    struct diag d = {0};
    struct mem_report r = {0};
    struct toy t = toy_small();
    struct pack_options o = pack_options_default();
    struct str s = {0};
    toy_program(&p, &t);
    assert_int_equal(pack_program(&p, &o, &r, &d), ST_OK);
    budget_table(&s, &p, &r, POOL_DEVICE);
    print_message("%s", str_get(&s));
    assert_non_null(strstr(str_get(&s), "activation"));
    assert_non_null(strstr(str_get(&s), "of segment"));
    str_free(&s);
    mem_report_free(&r);
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_fits),
            cmocka_unit_test(test_options_that_fit_come_in_order),
            cmocka_unit_test(test_nearest_when_nothing_fits),
            cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
