/* The programs of all ranks of many layouts: each is well-formed, its waits order every
 * use of its bytes, it packs, and the ranks' communication fits together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/verify.h"
#include "memory/pack.h"
#include "tests/lib/layouts.h"

static void check_rank(const struct model *m, const struct layout_case *c, int rank,
                       enum dtype compute)
{
    struct lowered low;
    struct mem_report report;
    struct diag diag = {0};
    struct lower_options o;
    layout_options(c, rank, compute, &o);
    enum status st = lower_model(m, &o, &low, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: lower: %s", c->name, rank, diag.text);
    st = program_verify(&low.program, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: verify: %s", c->name, rank, diag.text);
    struct pack_options po = pack_options_default();
    st = pack_program(&low.program, &po, &report, &diag);
    if (st == ST_OK)
        st = program_verify_packed(&low.program, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: pack: %s", c->name, rank, diag.text);
    mem_report_free(&report);
    lowered_free(&low);
}

static void test_programs(void **state)
{
    (void)state;
    for (int i = 0; i < n_layout_cases; i++) {
        const struct layout_case *c = &layout_cases[i];
        for (int k = 0; k < LAYOUT_MODELS; k++) {
            struct model m;
            layout_model(c, k, &m);
            for (int rank = 0; rank < layout_world(c); rank++) {
                check_rank(&m, c, rank, DT_F32);
                if (rank == 0)
                    check_rank(&m, c, rank, DT_BF16);
            }
            model_free(&m);
        }
    }
    print_message("  %d layouts\n", n_layout_cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
