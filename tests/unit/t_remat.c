/* Recompute: which ops are cloned, that the result still verifies and packs smaller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/verify.h"
#include "memory/pack.h"
#include "memory/remat.h"
#include "tests/lib/toy_program.h"

static struct toy deep(void)
{
    struct toy t = toy_small();
    t.layers = 6;
    t.tokens = 256;
    t.seq = 64;
    return t;
}

static uint32_t count_again(const struct program *p, enum op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < p->ops.n; o++)
        n += p->ops.data[o].recompute && p->ops.data[o].kind == kind;
    return n;
}

static int64_t build(struct program *p, enum remat_mode mode, uint32_t *n)
{
    struct diag d = {0};
    struct mem_report r = {0};
    struct toy t = deep();
    struct pack_options o = pack_options_default();
    toy_program(p, &t);
    remat_apply(p, mode, n);
    enum status st = program_verify(p, &d);
    if (st == ST_OK)
        st = pack_program(p, &o, &r, &d);
    if (st == ST_OK)
        st = program_verify_packed(p, &d);
    if (st != ST_OK)
        fail_msg("mode %d: %s", (int)mode, d.text);
    const struct mem_pool *m = &r.pool[POOL_DEVICE];
    int64_t transient = m->pool_bytes - m->persistent_bytes;
    print_message("mode %d: %u ops again (%.3g flops a step), %lld bytes saved, %lld "
                  "bytes of transients\n",
                  (int)mode, *n, remat_flops(p), (long long)remat_saved_bytes(p),
                  (long long)transient);
    mem_report_free(&r);
    return transient;
}

static void test_keep_changes_nothing(void **state)
{
    (void)state;
    struct program a, b;
    struct toy t = deep();
    uint32_t n;
    toy_program(&a, &t);
    toy_program(&b, &t);
    remat_apply(&b, REMAT_KEEP, &n);
    assert_int_equal(n, 0);
    assert_true(program_hash(&a) == program_hash(&b));
    program_free(&a);
    program_free(&b);
}

static void test_selective(void **state)
{
    (void)state;
    struct program p;
    uint32_t n;
    build(&p, REMAT_SELECTIVE, &n);
    assert_int_equal(count_again(&p, OP_LINEAR), 0);
    assert_int_equal(count_again(&p, OP_ATTENTION), 0);
    assert_int_equal(count_again(&p, OP_ROPE), 0); /* in place of a kept product */
    assert_int_equal(count_again(&p, OP_RMSNORM), 2 * 6);
    assert_int_equal(count_again(&p, OP_GLU), 6);
    assert_int_equal(n, 3 * 6);
    program_free(&p);
}

static void test_full(void **state)
{
    (void)state;
    struct program p;
    uint32_t n;
    build(&p, REMAT_FULL, &n);
    assert_int_equal(count_again(&p, OP_RMSNORM), 2 * 6);
    assert_int_equal(count_again(&p, OP_LINEAR), 3 * 6); /* not down: nobody needs it */
    assert_int_equal(count_again(&p, OP_ROPE), 2 * 6);
    assert_int_equal(count_again(&p, OP_ATTENTION), 6);
    assert_int_equal(count_again(&p, OP_GLU), 6);
    assert_int_equal(count_again(&p, OP_ADD), 6);
    assert_int_equal(count_again(&p, OP_EMBED), 0);
    for (uint32_t s = 0; s < p.storages.n; s++) {
        const char *name = prog_name(&p, p.storages.data[s].name);
        if (p.storages.data[s].cls == SC_ACTIVATION && strchr(name, '@'))
            assert_true(strncmp(name, "add@", 4) == 0 ||
                        strncmp(name, "rmsnorm", 7) == 0);
    }
    program_free(&p);
}

/* Every clone comes right before what needs it: a layer's clones lie between the last
 * gradient op of the layer above and its own. */
static void test_clones_come_late(void **state)
{
    (void)state;
    struct program p;
    uint32_t n;
    build(&p, REMAT_FULL, &n);
    const struct prog_segment *s = &p.segments.data[toy_find_segment(&p, "backward")];
    int32_t layer = INT32_MAX;
    for (uint32_t o = s->op_begin; o < s->op_end; o++) {
        const struct prog_op *op = &p.ops.data[o];
        if (op->layer < 0)
            continue;
        assert_true(op->layer <= layer);
        assert_true(op->phase == PHASE_DGRAD || op->phase == PHASE_WGRAD);
        layer = op->layer;
    }
    assert_int_equal(layer, 0);
    program_free(&p);
}

static void test_memory_shrinks(void **state)
{
    (void)state;
    struct program p[3];
    uint32_t n[3];
    int64_t bytes[3], saved[3];
    for (int i = 0; i < 3; i++) {
        bytes[i] = build(&p[i], (enum remat_mode)i, &n[i]);
        saved[i] = remat_saved_bytes(&p[i]);
        program_free(&p[i]);
    }
    assert_true(bytes[REMAT_FULL] < bytes[REMAT_SELECTIVE]);
    assert_true(bytes[REMAT_SELECTIVE] < bytes[REMAT_KEEP]);
    assert_true(saved[REMAT_FULL] < saved[REMAT_SELECTIVE]);
    assert_true(saved[REMAT_SELECTIVE] < saved[REMAT_KEEP]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_keep_changes_nothing),
            cmocka_unit_test(test_selective),
            cmocka_unit_test(test_full),
            cmocka_unit_test(test_clones_come_late),
            cmocka_unit_test(test_memory_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
