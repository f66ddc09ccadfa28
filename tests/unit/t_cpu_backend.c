/* The CPU backend's shell: options, binding, predicates, memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_table.h"

static struct backend *backend_new(bool reference_only, uint32_t isa_mask)
{
    struct cpu_backend_options o = {2, reference_only, isa_mask, NULL};
    struct backend *b;
    struct diag diag = {0};
    assert_int_equal(cpu_backend_create(&o, &b, &diag), ST_OK);
    return b;
}

/* A program with one add of two [n] values of dtype t. */
static void program_of_add(struct program *p, enum dtype t, int64_t n)
{
    program_init(p);
    uint32_t s = program_storage(p, SC_INPUT, SLOT_NONE,
                                 3 * n * (int64_t)dtype_bytes(t), "s");
    program_segment_begin(p, "forward");
    struct op_args a = op_args_init(OP_ADD, PHASE_FORWARD, 0);
    for (int64_t i = 0; i < 3; i++) {
        uint32_t v = program_value(p, s, i * n * (int64_t)dtype_bytes(t), t, 1, &n,
                                   "v%d", (int)i);
        if (i < 2)
            op_args_in(&a, v);
        else
            a.out[0] = v;
    }
    program_op(p, &a);
    program_segment_end(p);
}

static const char *bound_name(struct backend *b, const struct program *p)
{
    uint32_t chosen[1];
    int64_t scratch;
    struct diag diag = {0};
    assert_int_equal(b->ops->bind(b, p, chosen, &scratch, &diag), ST_OK);
    return b->ops->kernel_name(b, chosen[0]);
}

static void first_row_that_takes_it_is_bound(void **state)
{
    (void)state;
    struct program p32, p64;
    program_of_add(&p32, DT_F32, 4);
    program_of_add(&p64, DT_F64, 4);
    struct backend *tuned = backend_new(false, CPU_ISA_ALL);
    struct backend *no_isa = backend_new(false, 0);
    struct backend *plain = backend_new(true, CPU_ISA_ALL);
    uint32_t isa = cpu_isa_detect();
    const char *best = isa & ISA_AVX512 ? "add_avx512"
                       : isa & ISA_AVX2 ? "add_avx2"
                                        : "add_ref";
    assert_string_equal(bound_name(tuned, &p32), best);
    assert_string_equal(bound_name(no_isa, &p32), "add_ref");
    assert_string_equal(bound_name(plain, &p32), "add_ref");
    assert_string_equal(bound_name(tuned, &p64), "add_ref");
    tuned->ops->destroy(tuned);
    no_isa->ops->destroy(no_isa);
    plain->ops->destroy(plain);
    program_free(&p32);
    program_free(&p64);
}

static void every_op_has_a_reference(void **state)
{
    (void)state;
    bool has[OP_KIND_COUNT] = {false}, is_reference;
    const struct kernel_row *row;
    for (size_t i = 0; (row = cpu_table_at(i, &is_reference)); i++)
        has[row->kind] = has[row->kind] || (is_reference && !row->accepts && !row->isa);
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (!has[k])
            fail_msg("no reference kernel for '%s'", op_desc((enum op_kind)k)->name);
}

static void predicate_skips_the_op(void **state)
{
    (void)state;
    struct program p;
    program_of_add(&p, DT_F32, 4);
    struct backend *b = backend_new(false, CPU_ISA_ALL);
    uint32_t chosen[1];
    int64_t scratch;
    struct diag diag = {0};
    assert_int_equal(b->ops->bind(b, &p, chosen, &scratch, &diag), ST_OK);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    struct view v = {.data = x, .dtype = DT_F32, .ndim = 1, .dim = {4}, .ld = 4};
    struct launch l = {.prog = &p, .op = &p.ops.data[0], .in = {v, v}, .out = {v}};
    l.out[0].data = y;
    int32_t flag = 0;
    l.predicate = &flag;
    struct backend_streams *s;
    assert_int_equal(b->ops->streams_open(b, &p, &s, &diag), ST_OK);
    b->ops->launch(s, chosen[0], &l);
    assert_int_equal(b->ops->sync(s, &diag), ST_OK);
    assert_true(y[3] == 0);
    flag = 2;
    b->ops->launch(s, chosen[0], &l);
    assert_int_equal(b->ops->sync(s, &diag), ST_OK);
    assert_true(y[3] == 8);
    b->ops->streams_close(s);
    b->ops->destroy(b);
    program_free(&p);
}

static void memory_is_zeroed_and_aligned(void **state)
{
    (void)state;
    struct backend *b = backend_new(false, CPU_ISA_ALL);
    struct diag diag = {0};
    void *memory;
    int64_t bytes = (int64_t)(5 * MIB) + 7;
    assert_int_equal(b->ops->pool_alloc(b, POOL_DEVICE, bytes, &memory, &diag), ST_OK);
    assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
    const unsigned char *c = memory;
    for (int64_t i = 0; i < bytes; i++)
        if (c[i])
            fail_msg("byte %lld is %d", (long long)i, c[i]);
    b->ops->pool_free(b, POOL_DEVICE, memory, bytes);
    assert_int_equal(b->ops->pool_alloc(b, POOL_FILE, bytes, &memory, &diag),
                     ST_UNAVAILABLE);
    assert_non_null(strstr(diag.text, "file pool"));
    b->ops->destroy(b);
}

static void wrong_threads_are_refused(void **state)
{
    (void)state;
    struct cpu_backend_options o = {-1, false, CPU_ISA_ALL, NULL};
    struct backend *b = NULL;
    struct diag diag = {0};
    assert_int_equal(cpu_backend_create(&o, &b, &diag), ST_CONFIG);
    assert_null(b);
    assert_non_null(strstr(diag.text, "got -1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(first_row_that_takes_it_is_bound),
            cmocka_unit_test(every_op_has_a_reference),
            cmocka_unit_test(predicate_skips_the_op),
            cmocka_unit_test(memory_is_zeroed_and_aligned),
            cmocka_unit_test(wrong_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
