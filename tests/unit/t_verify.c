#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/verify.h"
#include "memory/pack.h"
#include "tests/lib/toy_program.h"

static void test_good(void **state)
{
    (void)state;
    struct program p;
    struct diag d = {0};
    struct toy t = toy_small();
    toy_program(&p, &t);
    enum status st = program_verify(&p, &d);
    print_message("%s\n", d.text);
    assert_int_equal(st, ST_OK);
    program_free(&p);
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
