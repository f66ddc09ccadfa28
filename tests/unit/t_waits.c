/* Waits between streams: what data needs, and no more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "core/order.h"
#include "core/verify.h"
#include "core/waits.h"

#define ELEMS 64

static uint32_t value(struct program *p, enum storage_class cls, enum slotting slotting,
                      const char *name)
{
    int64_t dim[2] = {4, ELEMS / 4};
    uint32_t s = program_storage(p, cls, slotting, ELEMS * 4, "%s", name);
    return program_value(p, s, 0, DT_F32, 2, dim, "%s", name);
}

/* Rows [begin, begin + 2) of a value. */
static uint32_t half(struct program *p, uint32_t whole, int64_t begin)
{
    int64_t dim[2] = {2, ELEMS / 4};
    return program_value(p, p->values.data[whole].storage, begin * ELEMS, DT_F32, 2,
                         dim, "half");
}

/* Appends act(x) on a stream, written to `to` (or somewhere fresh). Returns the result;
 * the op's index is the program's last. */
static uint32_t act(struct program *p, uint8_t stream, uint32_t x, uint32_t to)
{
    struct op_args a = op_args_init(OP_ACT, PHASE_FORWARD, 0);
    op_args_in(&a, x);
    op_args_attr_i(&a, ATTR_ACT, ACT_SILU);
    a.stream = stream;
    a.out[0] = to;
    program_op(p, &a);
    return a.out[0];
}

static void zero(struct program *p, uint8_t stream, uint32_t to)
{
    struct op_args a = op_args_init(OP_ZERO, PHASE_FORWARD, 0);
    a.stream = stream;
    a.out[0] = to;
    program_op(p, &a);
}

static void finish(struct program *p)
{
    struct diag diag = {0};
    program_seal(p);
    program_add_waits(p);
    if (program_verify(p, &diag) != ST_OK)
        fail_msg("%s", diag.text);
}

static void finish_one_call(struct program *p)
{
    program_call(p, CALL_STEP, program_segment_end(p), 0, 0);
    finish(p);
}

/* Whether op `op` waits for op `other`. */
static bool waits_for(const struct program *p, uint32_t op, uint32_t other)
{
    const struct prog_op *o = &p->ops.data[op];
    for (uint32_t i = 0; i < o->n_waits; i++)
        if (p->waits.data[o->wait_first + i] == p->ops.data[other].signal)
            return true;
    return false;
}

/* Every wait is needed: without it the program is wrong, and verify says so. */
static void check_all_needed(struct program *p)
{
    struct diag diag = {0};
    for (uint32_t o = 0; o < p->ops.n; o++) {
        struct prog_op *op = &p->ops.data[o], whole = *op;
        for (uint32_t i = 0; i < whole.n_waits; i++) {
            uint32_t *wait = &p->waits.data[whole.wait_first];
            uint32_t first = wait[0], removed = wait[i];
            wait[i] = first;
            wait[0] = removed;
            op->wait_first++;
            op->n_waits--;
            if (program_verify(p, &diag) == ST_OK)
                fail_msg("op %u does not need its wait %u", o, i);
            assert_non_null(strstr(diag.text, "a wait is missing"));
            *op = whole;
            wait[0] = first;
            wait[i] = removed;
        }
    }
}

static void reads_wait_for_writes(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_INPUT, SLOT_NONE, "x");
    uint32_t y = value(&p, SC_OUTPUT, SLOT_NONE, "y");
    program_segment_begin(&p, "s");
    uint32_t a = act(&p, 0, x, NONE_ID);
    act(&p, 1, a, y);
    finish_one_call(&p);
    assert_int_equal(p.n_streams, 2);
    assert_int_equal(p.n_events, 1);
    assert_int_equal(p.waits.n, 1);
    assert_true(waits_for(&p, 1, 0));
    check_all_needed(&p);
    program_free(&p);
}

static void writes_wait_for_reads(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_OPTIM, SLOT_NONE, "x");
    uint32_t y = value(&p, SC_OUTPUT, SLOT_NONE, "y");
    program_segment_begin(&p, "s");
    act(&p, 1, x, y);
    zero(&p, 0, x);
    finish_one_call(&p);
    assert_int_equal(p.waits.n, 1);
    assert_true(waits_for(&p, 1, 0));
    check_all_needed(&p);
    program_free(&p);
}

/* The second writer needs only what it overwrites. */
static void writes_wait_for_writes(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_OPTIM, SLOT_NONE, "x");
    program_segment_begin(&p, "s");
    zero(&p, 0, x);
    zero(&p, 1, half(&p, x, 0));
    zero(&p, 2, half(&p, x, 2));
    zero(&p, 1, half(&p, x, 2));
    finish_one_call(&p);
    assert_int_equal(p.waits.n, 3);
    assert_true(waits_for(&p, 1, 0));
    assert_true(waits_for(&p, 2, 0));
    assert_true(waits_for(&p, 3, 2));
    check_all_needed(&p);
    program_free(&p);
}

/* Of one stream, or known by an earlier wait, or by what another stream waited for. */
static void no_wait_where_already_ordered(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_INPUT, SLOT_NONE, "x");
    uint32_t y = value(&p, SC_OUTPUT, SLOT_NONE, "y");
    uint32_t z = value(&p, SC_OUTPUT, SLOT_NONE, "z");
    program_segment_begin(&p, "s");
    uint32_t a = act(&p, 0, x, NONE_ID);
    uint32_t b = act(&p, 0, a, NONE_ID);
    uint32_t c = act(&p, 1, b, NONE_ID); /* waits for b, and so for a */
    act(&p, 1, a, y);
    struct op_args sum = op_args_init(OP_ADD, PHASE_FORWARD, 0);
    op_args_in(&sum, a); /* needs a and c: c alone is enough */
    op_args_in(&sum, c);
    sum.stream = 2;
    sum.out[0] = z;
    program_op(&p, &sum);
    finish_one_call(&p);
    assert_int_equal(p.waits.n, 2);
    assert_true(waits_for(&p, 2, 1));
    assert_true(waits_for(&p, 4, 2));
    check_all_needed(&p);
    program_free(&p);
}

static void one_stream_has_no_waits(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_OPTIM, SLOT_NONE, "x");
    program_segment_begin(&p, "s");
    act(&p, 0, x, x);
    act(&p, 0, x, x);
    finish_one_call(&p);
    assert_int_equal(p.n_streams, 1);
    assert_int_equal(p.n_events + p.waits.n, 0);
    program_free(&p);
}

/* "s": stream 0 makes a of x (op 0), stream 1 adds a to the sum (op 1). */
static uint32_t accumulate(struct program *p, enum slotting slotting)
{
    uint32_t x = value(p, SC_INPUT, SLOT_NONE, "x");
    uint32_t sum = value(p, SC_OPTIM, SLOT_NONE, "sum");
    uint32_t a = value(p, SC_ACTIVATION, slotting, "a");
    program_segment_begin(p, "s");
    act(p, 0, x, a);
    struct op_args add = op_args_init(OP_ADD, PHASE_FORWARD, 0);
    op_args_in(&add, sum);
    op_args_in(&add, a);
    add.stream = 1;
    add.out[0] = sum;
    program_op(p, &add);
    return program_segment_end(p);
}

/* The second call's op 0 writes over what the first call's op 1 reads. */
static void calls_that_are_repeated_wait_for_each_other(void **state)
{
    (void)state;
    struct program p;
    for (uint32_t n_calls = 1; n_calls <= 2; n_calls++) {
        program_init(&p);
        uint32_t s = accumulate(&p, SLOT_NONE);
        for (uint32_t i = 0; i < n_calls; i++)
            program_call(&p, CALL_STEP, s, i, 0);
        finish(&p);
        assert_true(waits_for(&p, 1, 0));
        assert_int_equal(p.waits.n, n_calls);
        if (n_calls == 2)
            assert_true(waits_for(&p, 0, 1));
        check_all_needed(&p);
        program_free(&p);
    }
}

/* Calls of their own slots do not meet; a slot that is used again does. */
static void slots_are_apart(void **state)
{
    (void)state;
    struct program p;
    for (uint32_t n_calls = 2; n_calls <= 3; n_calls++) {
        program_init(&p);
        uint32_t s = accumulate(&p, SLOT_CALL);
        for (uint32_t i = 0; i < n_calls; i++)
            program_call(&p, CALL_STEP, s, i, i % 2);
        finish(&p);
        assert_int_equal(p.waits.n, n_calls - 1);
        assert_true(waits_for(&p, 1, 0));
        if (n_calls == 3)
            assert_true(waits_for(&p, 0, 1));
        check_all_needed(&p);
        program_free(&p);
    }
}

/* Set-up calls are over before a step starts: nothing waits for them. */
static void nothing_waits_for_setup(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    uint32_t x = value(&p, SC_OPTIM, SLOT_NONE, "x");
    uint32_t y = value(&p, SC_OUTPUT, SLOT_NONE, "y");
    program_segment_begin(&p, "setup");
    zero(&p, 0, x);
    program_call(&p, CALL_SETUP, program_segment_end(&p), 0, 0);
    program_segment_begin(&p, "step");
    act(&p, 1, x, y);
    program_call(&p, CALL_STEP, program_segment_end(&p), 0, 0);
    finish(&p);
    assert_int_equal(p.waits.n, 0);
    program_free(&p);
}

/* A long schedule of equal blocks is looked at in part, and gets the waits of one that is
 * looked at whole. */
static void collapsed_schedules_get_the_same_waits(void **state)
{
    (void)state;
    struct program p[2];
    for (int i = 0; i < 2; i++) {
        program_init(&p[i]);
        uint32_t s = accumulate(&p[i], SLOT_CALL);
        for (uint32_t k = 0; k < (i ? 400u : 4u); k++)
            program_call(&p[i], CALL_STEP, s, k, k % 2);
        finish(&p[i]);
    }
    struct order o;
    order_build(&o, &p[1]);
    print_message("  400 calls, %u analysed\n", o.n_calls);
    assert_true(o.n_calls < 10);
    order_free(&o);
    assert_int_equal(p[0].n_events, p[1].n_events);
    assert_int_equal(p[0].waits.n, p[1].waits.n);
    for (uint32_t a = 0; a < 2; a++)
        for (uint32_t b = 0; b < 2; b++)
            assert_int_equal(waits_for(&p[0], a, b), waits_for(&p[1], a, b));
    check_all_needed(&p[1]);
    program_free(&p[0]);
    program_free(&p[1]);
}

/* The op that a predicate or an extent comes from is waited for too. */
static void predicates_are_reads(void **state)
{
    (void)state;
    struct program p;
    program_init(&p);
    int64_t one = 1;
    uint32_t s = program_storage(&p, SC_OPTIM, SLOT_NONE, 4, "flag");
    uint32_t flag = program_value(&p, s, 0, DT_I32, 1, &one, "flag");
    uint32_t x = value(&p, SC_OPTIM, SLOT_NONE, "x");
    program_segment_begin(&p, "s");
    zero(&p, 0, flag);
    struct op_args a = op_args_init(OP_ZERO, PHASE_FORWARD, 0);
    a.stream = 1;
    a.out[0] = x;
    a.predicate = flag;
    program_op(&p, &a);
    finish_one_call(&p);
    assert_int_equal(p.waits.n, 1);
    assert_true(waits_for(&p, 1, 0));
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(reads_wait_for_writes),
            cmocka_unit_test(writes_wait_for_reads),
            cmocka_unit_test(writes_wait_for_writes),
            cmocka_unit_test(no_wait_where_already_ordered),
            cmocka_unit_test(one_stream_has_no_waits),
            cmocka_unit_test(calls_that_are_repeated_wait_for_each_other),
            cmocka_unit_test(slots_are_apart),
            cmocka_unit_test(nothing_waits_for_setup),
            cmocka_unit_test(collapsed_schedules_get_the_same_waits),
            cmocka_unit_test(predicates_are_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
