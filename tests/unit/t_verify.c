/* The verifier accepts a good program and rejects it broken in every way of a catalogue,
 * naming the culprit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/op.h"
#include "core/verify.h"
#include "memory/pack.h"
#include "tests/lib/toy_program.h"

static struct prog_op *op_at(struct program *p, const char *segment, enum op_kind kind,
                             int32_t layer)
{
    return &p->ops.data[toy_find_op(p, segment, kind, layer)];
}

static struct prog_value *value_out(struct program *p, const struct prog_op *op, int i)
{
    return &p->values.data[op_out(p, op, i)];
}

static struct prog_value *value_in(struct program *p, const struct prog_op *op, int i)
{
    return &p->values.data[op_in(p, op, i)];
}

static void set_in(struct program *p, const struct prog_op *op, int i, uint32_t value)
{
    p->operands.data[op->operand_first + (uint32_t)i] = value;
}

static void set_out(struct program *p, const struct prog_op *op, int i, uint32_t value)
{
    set_in(p, op, op->n_in + i, value);
}

static struct prog_attr *attr_of(struct program *p, const struct prog_op *op,
                                 enum attr_key key)
{
    for (uint32_t i = 0; i < op->n_attrs; i++)
        if (p->attrs.data[op->attr_first + i].key == (uint32_t)key)
            return &p->attrs.data[op->attr_first + i];
    fail_msg("the op has no such attribute");
    return NULL;
}

/* ---------------------------------------------------------------- the catalogue */

static void break_kind(struct program *p)
{
    op_at(p, "forward", OP_GLU, 0)->kind = OP_KIND_COUNT;
}

static void break_arity(struct program *p)
{
    op_at(p, "forward", OP_GLU, 0)->n_in = 2;
}

static void break_operand_id(struct program *p)
{
    set_in(p, op_at(p, "forward", OP_LINEAR, 0), 0, p->values.n);
}

static void break_missing_output(struct program *p)
{
    set_out(p, op_at(p, "forward", OP_GLU, 1), 0, NONE_ID);
}

static void break_segment_gap(struct program *p)
{
    p->segments.data[toy_find_segment(p, "forward")].op_begin++;
}

static void break_call_segment(struct program *p)
{
    p->calls.data[1].segment = 99;
}

static void break_call_slot(struct program *p)
{
    p->calls.data[2].slot = 7;
}

static void break_call_phase(struct program *p)
{
    p->calls.data[2].phase = CALL_SETUP;
}

static void break_missing_call(struct program *p)
{
    p->calls.data[1] = p->calls.data[2]; /* forward instead of zero */
}

static void break_value_bounds(struct program *p)
{
    value_out(p, op_at(p, "forward", OP_GLU, 0), 0)->byte_offset = 64;
}

static void break_output_shape(struct program *p)
{
    struct prog_value *v = value_out(p, op_at(p, "forward", OP_GLU, 0), 0);
    v->dim[1]--;
    v->ld--;
}

static void break_input_shape(struct program *p)
{
    const struct prog_op *op = op_at(p, "forward", OP_LINEAR, 0);
    set_in(p, op, 0, op_in(p, op_at(p, "forward", OP_GLU, 0), 0));
}

static void break_output_dtype(struct program *p)
{
    value_out(p, op_at(p, "forward", OP_GLU, 0), 0)->dtype = DT_BF16;
}

static void break_attr_missing(struct program *p)
{
    op_at(p, "forward", OP_GLU, 0)->n_attrs = 0;
}

static void break_attr_unknown(struct program *p)
{
    struct prog_op *op = op_at(p, "forward", OP_GLU, 0);
    attr_of(p, op, ATTR_ACT)->key = ATTR_EPS;
}

static void break_attr_twice(struct program *p)
{
    struct prog_op *op = op_at(p, "forward", OP_ATTENTION, 0);
    attr_of(p, op, ATTR_SCALE)->key = ATTR_SEQ;
}

static void break_layout(struct program *p)
{
    p->mesh_degree[MESH_TP] = 2;
    value_out(p, op_at(p, "forward", OP_GLU, 0), 0)->layout[MESH_TP] = LAYOUT_PARTIAL;
}

static void break_layout_input(struct program *p)
{
    p->mesh_degree[MESH_TP] = 2;
    value_in(p, op_at(p, "forward", OP_RMSNORM, 1), 1)->layout[MESH_TP] =
            LAYOUT_PARTIAL;
}

/* The attention of layer 0 moves in front of the product that it reads. */
static void break_read_before_write(struct program *p)
{
    uint32_t a = toy_find_op(p, "forward", OP_LINEAR, 0);
    uint32_t b = toy_find_op(p, "forward", OP_ATTENTION, 0);
    struct prog_op moved = p->ops.data[b];
    memmove(&p->ops.data[a + 1], &p->ops.data[a], (b - a) * sizeof(moved));
    p->ops.data[a] = moved;
}

/* The optimizer sums one block less than it reads. */
static void break_partly_written(struct program *p)
{
    const struct prog_segment *s = &p->segments.data[toy_find_segment(p, "optimizer")];
    uint32_t clip = toy_find_op(p, "optimizer", OP_CLIP, -1);
    memmove(&p->ops.data[s->op_begin], &p->ops.data[s->op_begin + 1],
            (clip - s->op_begin) * sizeof(struct prog_op));
    p->ops.data[clip] = p->ops.data[clip + 1];
}

/* The attention reads q as it was before the rotation wrote over it. */
static void break_overwritten(struct program *p)
{
    uint32_t rotated = op_in(p, op_at(p, "forward", OP_ATTENTION, 0), 0);
    set_in(p, op_at(p, "forward", OP_ATTENTION, 0), 0,
           p->values.data[rotated].inplace_of);
}

/* The whole fused product is read after its columns were rotated. */
static void break_overwritten_base(struct program *p)
{
    const struct prog_op *dw = op_at(p, "backward", OP_LINEAR_DW, 0);
    for (uint32_t o = (uint32_t)(dw - p->ops.data); o < p->ops.n; o++) {
        struct prog_op *op = &p->ops.data[o];
        uint32_t qkv = op_out(p, op_at(p, "forward", OP_LINEAR, 0), 0);
        if (op->kind == OP_LINEAR_DW && op->layer == 0 &&
            value_in(p, op, 0)->dim[1] == p->values.data[qkv].dim[1]) {
            set_in(p, op, 0, qkv);
            return;
        }
    }
    fail_msg("no gradient of the fused product");
}

static void break_overlap(struct program *p)
{
    const struct prog_op *op = op_at(p, "forward", OP_RMSNORM, 0);
    set_out(p, op, 0, op_in(p, op, 0));
}

static void break_inplace_partly(struct program *p)
{
    struct prog_value *v = value_out(p, op_at(p, "forward", OP_ROPE, 0), 0);
    v->inplace_of = NONE_ID;
    v->base = NONE_ID;
    v->byte_offset += 4;
}

static void break_inplace_claim(struct program *p)
{
    const struct prog_op *glu = op_at(p, "forward", OP_GLU, 0);
    uint32_t other = program_value_inplace(p, op_out(p, glu, 0), "claimed");
    set_out(p, glu, 0, other);
}

static void break_view(struct program *p)
{
    value_in(p, op_at(p, "forward", OP_ATTENTION, 0), 2)->byte_offset += 4;
}

static void break_pitch(struct program *p)
{
    struct prog_value *v = value_in(p, op_at(p, "forward", OP_ATTENTION, 0), 2);
    v->base = NONE_ID;
    v->byte_offset = 0;
    v->ld -= 1;
}

/* The loss sum does not outlive the step any more, and nobody in it reads the sum. */
static void break_unused_op(struct program *p)
{
    /* The clipping reads another f64[1] in place of the loss. */
    uint32_t other = op_out(p, op_at(p, "optimizer", OP_NORM_SQ, -1), 0);
    uint32_t s = value_out(p, op_at(p, "forward", OP_SUM, -1), 0)->storage;
    p->storages.data[s].cls = SC_ACTIVATION;
    set_in(p, op_at(p, "optimizer", OP_CLIP, -1), 2, other);
}

static void break_unused_storage(struct program *p)
{
    uint32_t s = program_storage(p, SC_WORKSPACE, SLOT_NONE, 128, "orphan");
    p->storages.data[s].n_copies = 1;
    p->storages.data[s].offset_first = p->offsets.n;
    vec_push(&p->offsets, (int64_t)-1);
}

static void break_workspace(struct program *p)
{
    const struct prog_op *op = op_at(p, "forward", OP_LINEAR, 0);
    uint32_t s = value_out(p, op, 0)->storage;
    p->storages.data[s].cls = SC_WORKSPACE;
}

static void break_predicate_type(struct program *p)
{
    op_at(p, "optimizer", OP_ADAMW, -1)->predicate =
            op_out(p, op_at(p, "optimizer", OP_CLIP, -1), 0);
}

static void break_predicate_unwritten(struct program *p)
{
    struct prog_op *clip = op_at(p, "optimizer", OP_CLIP, -1);
    clip->predicate = op_out(p, clip, 2);
}

static void break_event(struct program *p)
{
    struct prog_op *op = op_at(p, "forward", OP_GLU, 0);
    p->n_events = 1;
    op->wait_first = p->waits.n;
    op->n_waits = 1;
    vec_push(&p->waits, 0u);
}

static void break_stream(struct program *p)
{
    p->n_streams = 2;
    op_at(p, "forward", OP_GLU, 0)->stream = 1;
}

static void break_stream_range(struct program *p)
{
    op_at(p, "forward", OP_GLU, 0)->stream = 1;
}

static void break_setup_transient(struct program *p)
{
    uint32_t s = value_out(p, op_at(p, "setup", OP_ROPE_TABLE, -1), 0)->storage;
    p->storages.data[s].cls = SC_ACTIVATION;
}

static void break_copies(struct program *p)
{
    uint32_t s = value_in(p, op_at(p, "forward", OP_EMBED, -1), 1)->storage;
    p->storages.data[s].n_copies = 1;
}

static const struct {
    const char *what;
    void (*broken)(struct program *p);
    const char *says[2]; /* both must be in the message */
} catalogue[] = {
        {"unknown kind", break_kind, {"op ?@0 in segment forward", "of kind"}},
        {"wrong arity", break_arity, {"op glu@0", "2 inputs"}},
        {"operand out of range", break_operand_id, {"op linear@0", "input 0"}},
        {"required output absent", break_missing_output, {"op glu@1", "output 0"}},
        {"gap between segments", break_segment_gap, {"segment forward", "begin at"}},
        {"call of no segment", break_call_segment, {"call 1", "segment 99"}},
        {"slot out of range", break_call_slot, {"segment forward", "slot 7"}},
        {"set-up after a step", break_call_phase, {"call 2", "set-up"}},
        {"zero segment never called", break_missing_call, {"reads loss_sum", "op sum"}},
        {"value outside storage", break_value_bounds, {"glu@0", "outside its storage"}},
        {"wrong output shape", break_output_shape, {"op glu@0", "wanted f32[8,24]"}},
        {"wrong input shape", break_input_shape, {"op linear@0", "must share K"}},
        {"wrong output dtype", break_output_dtype, {"op glu@0", "got bf16"}},
        {"attribute missing", break_attr_missing, {"op glu@0", "lacks attribute act"}},
        {"attribute unknown", break_attr_unknown, {"op glu@0", "attribute eps"}},
        {"attribute twice", break_attr_twice, {"op attention@0", "seq twice"}},
        {"wrong output layout", break_layout, {"op glu@0", "layout 254"}},
        {"wrong input layout", break_layout_input, {"op rmsnorm@1", "partial sum"}},
        {"read before write",
         break_read_before_write,
         {"op attention@0 in segment forward reads", "nothing has written"}},
        {"read of partly written", break_partly_written, {"op clip", "reads partials"}},
        {"read of an overwritten value",
         break_overwritten,
         {"op attention@0", "whose bytes q.rope@0 has overwritten"}},
        {"read of an overwritten base",
         break_overwritten_base,
         {"op linear_dw@0", "has overwritten"}},
        {"output over an input", break_overlap, {"op rmsnorm@0", "may not overwrite"}},
        {"in place but shifted", break_inplace_partly, {"op rope@0", "may not"}},
        {"in place of no input", break_inplace_claim, {"op glu@0", "in place of"}},
        {"view outside its base", break_view, {"value v@0", "linear@0"}},
        {"two pitches", break_pitch, {"v@0", "bytes apart"}},
        {"result that nobody reads",
         break_unused_op,
         {"nobody reads", "op sum in segment forward"}},
        {"storage that nobody uses", break_unused_storage, {"orphan", "no op"}},
        {"workspace of two segments",
         break_workspace,
         {"workspace q.rope@0", "segment forward"}},
        {"predicate of a wrong type", break_predicate_type, {"op adamw", "i32[1]"}},
        {"predicate unwritten",
         break_predicate_unwritten,
         {"op clip in segment optimizer", "predicate"}},
        {"wait for no signal", break_event, {"op glu@0", "nothing signals"}},
        {"streams without a wait", break_stream, {"op glu@0", "wait is missing"}},
        {"stream out of range", break_stream_range, {"op glu@0", "stream 1"}},
        {"transient of the set-up",
         break_setup_transient,
         {"rope_table", "nothing has written"}},
        {"copies that do not match", break_copies, {"storage tokens", "2 copies"}},
};

static void test_catalogue(void **state)
{
    (void)state;
    struct toy t = toy_small();
    int n_wrong = 0;
    for (size_t i = 0; i < ARRAY_LEN(catalogue); i++) {
        struct program p;
        struct diag d = {0};
        toy_program(&p, &t);
        catalogue[i].broken(&p);
        enum status st = program_verify(&p, &d);
        bool ok = st == ST_INTERNAL && strstr(d.text, catalogue[i].says[0]) &&
                  strstr(d.text, catalogue[i].says[1]);
        print_message("%-30s %s%s\n", catalogue[i].what, ok ? "" : "WRONG: ", d.text);
        n_wrong += !ok;
        program_free(&p);
    }
    assert_int_equal(n_wrong, 0);
}

static void test_good(void **state)
{
    (void)state;
    for (uint32_t mb = 1; mb <= 9; mb += 4) {
        struct program p;
        struct diag d = {0};
        struct toy t = toy_small();
        t.micro_batches = mb;
        toy_program(&p, &t);
        if (program_verify(&p, &d) != ST_OK)
            fail_msg("%s", d.text);
        program_free(&p);
    }
}

/* ------------------------------------------------------------------------- packed */

static void pack(struct program *p)
{
    struct diag d = {0};
    struct toy t = toy_small();
    struct pack_options o = pack_options_default();
    toy_program(p, &t);
    assert_int_equal(pack_program(p, &o, NULL, &d), ST_OK);
    assert_int_equal(program_verify_packed(p, &d), ST_OK);
}

static int64_t *offset_of(struct program *p, uint32_t value)
{
    const struct prog_storage *s = &p->storages.data[p->values.data[value].storage];
    return &p->offsets.data[s->offset_first];
}

static void expect_packed(struct program *p, const char *a, const char *b)
{
    struct diag d = {0};
    assert_int_equal(program_verify_packed(p, &d), ST_INTERNAL);
    print_message("%s\n", d.text);
    assert_non_null(strstr(d.text, a));
    assert_non_null(strstr(d.text, b));
    program_free(p);
}

static void test_packed_over_a_live_value(void **state)
{
    (void)state;
    struct program p;
    pack(&p);
    const struct prog_op *glu = op_at(&p, "forward", OP_GLU, 0);
    *offset_of(&p, op_out(&p, glu, 0)) = *offset_of(&p, op_in(&p, glu, 0));
    expect_packed(&p, "op glu@0", "last owner of its bytes");
}

static void test_packed_over_a_parameter(void **state)
{
    (void)state;
    struct program p;
    pack(&p);
    *offset_of(&p, op_out(&p, op_at(&p, "forward", OP_GLU, 0), 0)) =
            *offset_of(&p, op_in(&p, op_at(&p, "forward", OP_EMBED, -1), 0));
    expect_packed(&p, "glu@0", "persistent");
}

static void test_packed_outside_the_pool(void **state)
{
    (void)state;
    struct program p;
    pack(&p);
    *offset_of(&p, op_out(&p, op_at(&p, "forward", OP_GLU, 0), 0)) =
            p.pool_bytes[POOL_DEVICE];
    expect_packed(&p, "glu@0", "outside of its pool");
}

static void test_not_packed(void **state)
{
    (void)state;
    struct program p;
    pack(&p);
    *offset_of(&p, op_out(&p, op_at(&p, "forward", OP_GLU, 0), 0)) = -1;
    expect_packed(&p, "glu@0", "unpacked");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_good),
            cmocka_unit_test(test_catalogue),
            cmocka_unit_test(test_packed_over_a_live_value),
            cmocka_unit_test(test_packed_over_a_parameter),
            cmocka_unit_test(test_packed_outside_the_pool),
            cmocka_unit_test(test_not_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
