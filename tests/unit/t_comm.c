/* Communicators of ranks that are threads, and the world of one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/comm_suite.h"

#define LARGEST 300007

static void run_suite(struct comm_world *w, int rank, void *arg)
{
    uint64_t *hash = arg;
    hash[rank] = comm_suite(w, SUITE_SHARED, w->size == 2 || w->size == 3 ? LARGEST : 20011);
}

static void all_calls_equal_plain_loops(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        uint64_t hash[8] = {0};
        comm_on_threads(n, run_suite, hash);
        for (int i = 0; i < n; i++)
            assert_true(hash[i] != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(all_calls_equal_plain_loops),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
