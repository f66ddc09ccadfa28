/* Happens-before: clocks of streams and events, collapsed schedules, and sharing of bytes
 * that needs an ordering, not an op index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/order.h"
#include "memory/live.h"
#include "memory/pack.h"

static const int64_t dim1[1] = {256};

static uint32_t input(struct program *p)
{
    uint32_t s = program_storage(p, SC_INPUT, SLOT_NONE, 1024, "x");
    return program_value(p, s, 0, DT_F32, 1, dim1, "x");
}

/* Appends act(x) on a stream. */
static uint32_t add_act(struct program *p, uint32_t x, uint8_t stream, uint32_t out)
{
    struct op_args a = op_args_init(OP_ACT, PHASE_FORWARD, 0);
    op_args_in(&a, x);
    op_args_attr_i(&a, ATTR_ACT, ACT_SILU);
    a.stream = stream;
    a.out[0] = out;
    program_op(p, &a);
    return a.out[0];
}

static void op_wait(struct program *p, uint32_t op, uint32_t event)
{
    p->ops.data[op].wait_first = p->waits.n;
    p->ops.data[op].n_waits = 1;
    vec_push(&p->waits, event);
}

/* A toy of four ops: stream 0 makes a, stream 0 uses a; stream 1 makes b, stream 1 uses
 * b. By index a is dead before b is born; only a wait makes that true. */
static void two_streams(struct program *p, bool with_wait)
{
    program_init(p);
    p->n_streams = 2;
    uint32_t x = input(p);
    uint32_t s = program_storage(p, SC_OUTPUT, SLOT_NONE, 2048, "y");
    uint32_t y0 = program_value(p, s, 0, DT_F32, 1, dim1, "y0");
    uint32_t y1 = program_value(p, s, 1024, DT_F32, 1, dim1, "y1");
    program_segment_begin(p, "both");
    uint32_t a = add_act(p, x, 0, NONE_ID);
    add_act(p, a, 0, y0);
    uint32_t b = add_act(p, x, 1, NONE_ID);
    add_act(p, b, 1, y1);
    program_call(p, CALL_STEP, program_segment_end(p), 0, 0);
    program_seal(p);
    if (with_wait) {
        p->n_events = 1;
        p->ops.data[1].signal = 0;
        op_wait(p, 2, 0);
    }
}

static void test_streams_are_unordered_without_wait(void **state)
{
    (void)state;
    struct program p;
    struct order o;
    two_streams(&p, false);
    order_build(&o, &p);
    assert_int_equal(o.n_instances, 4);
    assert_true(order_before(&o, &p, 0, 1));
    assert_false(order_before(&o, &p, 1, 0));
    assert_false(order_before(&o, &p, 1, 2));
    assert_false(order_before(&o, &p, 2, 1));
    assert_false(order_before(&o, &p, 0, 0));
    order_free(&o);
    program_free(&p);
}

static void test_wait_orders_streams(void **state)
{
    (void)state;
    struct program p;
    struct order o;
    two_streams(&p, true);
    order_build(&o, &p);
    assert_true(order_before(&o, &p, 1, 2));
    assert_true(order_before(&o, &p, 0, 3));
    assert_false(order_before(&o, &p, 2, 1));
    order_free(&o);
    program_free(&p);
}

/* Offsets of the two transients of the toy. */
static bool shares_bytes(bool with_wait, int64_t *pool_bytes)
{
    struct program p;
    struct diag diag = {0};
    struct pack_options opt = pack_options_default();
    two_streams(&p, with_wait);
    assert_int_equal(pack_program(&p, &opt, NULL, &diag), ST_OK);
    int64_t at[2];
    int n = 0;
    for (uint32_t s = 0; s < p.storages.n; s++)
        if (p.storages.data[s].cls == SC_WORKSPACE)
            at[n++] = p.offsets.data[p.storages.data[s].offset_first];
    assert_int_equal(n, 2);
    *pool_bytes = p.pool_bytes[POOL_DEVICE];
    program_free(&p);
    return at[0] == at[1];
}

static void test_packing_needs_the_wait(void **state)
{
    (void)state;
    int64_t racing, ordered;
    assert_false(shares_bytes(false, &racing));
    assert_true(shares_bytes(true, &ordered));
    assert_int_equal(racing, 1024 + 2048 + 2 * 1024);
    assert_int_equal(ordered, 1024 + 2048 + 1024);
    print_message("two streams: %lld bytes without the wait, %lld with it\n",
                  (long long)racing, (long long)ordered);
}

/* Forward on stream 0 signals, backward on stream 1 waits and signals back. */
static void many_micro_batches(struct program *p, uint32_t n)
{
    program_init(p);
    p->n_streams = 2;
    p->n_events = 2;
    uint32_t x = input(p);
    uint32_t s = program_storage(p, SC_GRAD, SLOT_NONE, 1024, "g");
    uint32_t g = program_value(p, s, 0, DT_F32, 1, dim1, "g");
    program_segment_begin(p, "zero");
    struct op_args zero = op_args_init(OP_ZERO, PHASE_SETUP, -1);
    zero.out[0] = g;
    program_op(p, &zero);
    uint32_t first = program_segment_end(p);
    program_segment_begin(p, "forward");
    uint32_t y = add_act(p, x, 0, NONE_ID);
    uint32_t forward = program_segment_end(p);
    program_segment_begin(p, "backward");
    struct op_args add = op_args_init(OP_ADD, PHASE_WGRAD, 0);
    op_args_in(&add, g);
    op_args_in(&add, y);
    add.out[0] = g;
    add.stream = 1;
    program_op(p, &add);
    uint32_t backward = program_segment_end(p);
    program_call(p, CALL_SETUP, first, 0, 0);
    for (uint32_t i = 0; i < n; i++) {
        program_call(p, CALL_STEP, forward, i, 0);
        program_call(p, CALL_STEP, backward, i, 0);
    }
    program_seal(p);
    p->ops.data[1].signal = 0;
    op_wait(p, 2, 0);
    p->ops.data[2].signal = 1;
    op_wait(p, 1, 1);
}

static void test_repeated_blocks_are_collapsed(void **state)
{
    (void)state;
    struct program p;
    struct order o;
    many_micro_batches(&p, 64);
    order_build(&o, &p);
    assert_int_equal(o.n_calls, 1 + 2 * ORDER_BLOCK_COPIES);
    assert_int_equal(o.n_instances, 5);
    assert_int_equal(o.setup_end, 1);
    assert_int_equal(p.calls.data[o.call[1]].micro_batch, 0);
    assert_int_equal(p.calls.data[o.call[4]].micro_batch, 63);
    for (uint32_t i = 0; i + 1 < o.n_instances; i++)
        assert_true(order_before(&o, &p, i, i + 1));
    order_free(&o);
    program_free(&p);
}

static void test_setup_is_done_before_every_stream(void **state)
{
    (void)state;
    struct program p;
    struct order o;
    many_micro_batches(&p, 1);
    p.ops.data[1].n_waits = p.ops.data[2].n_waits = 0;
    order_build(&o, &p);
    assert_true(order_before(&o, &p, 0, 1));
    assert_true(order_before(&o, &p, 0, 2)); /* stream 1, by the barrier alone */
    assert_false(order_before(&o, &p, 1, 2));
    order_free(&o);
    program_free(&p);
}

/* Blocks stay whole where ops write one copy per micro-batch. */
static void test_per_micro_batch_writes_are_not_collapsed(void **state)
{
    (void)state;
    struct program p;
    struct order o;
    many_micro_batches(&p, 8);
    uint32_t y = op_out(&p, &p.ops.data[1], 0);
    p.storages.data[p.values.data[y].storage].slotting = SLOT_MICRO_BATCH;
    order_build(&o, &p);
    assert_int_equal(o.n_calls, 17);
    order_free(&o);
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_streams_are_unordered_without_wait),
            cmocka_unit_test(test_wait_orders_streams),
            cmocka_unit_test(test_packing_needs_the_wait),
            cmocka_unit_test(test_repeated_blocks_are_collapsed),
            cmocka_unit_test(test_setup_is_done_before_every_stream),
            cmocka_unit_test(test_per_micro_batch_writes_are_not_collapsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
