/* Printed programs: text for people, JSON for tools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/dump.h"
#include "io/json.h"

/* y = silu(x + x), twice a step. */
static void build(struct program *p, int64_t rows, enum act_kind act)
{
    program_init(p);
    int64_t dim[2] = {rows, 8};
    uint32_t in = program_storage(p, SC_INPUT, SLOT_NONE, rows * 32, "x");
    uint32_t x = program_value(p, in, 0, DT_F32, 2, dim, "x");
    uint32_t out = program_storage(p, SC_OUTPUT, SLOT_NONE, rows * 32, "y");
    uint32_t y = program_value(p, out, 0, DT_F32, 2, dim, "y");
    program_segment_begin(p, "double");
    struct op_args add = op_args_init(OP_ADD, PHASE_FORWARD, 3);
    op_args_in(&add, x);
    op_args_in(&add, x);
    program_op(p, &add);
    struct op_args a = op_args_init(OP_ACT, PHASE_FORWARD, 3);
    op_args_in(&a, add.out[0]);
    op_args_attr_i(&a, ATTR_ACT, act);
    a.out[0] = y;
    program_op(p, &a);
    uint32_t segment = program_segment_end(p);
    program_call(p, CALL_STEP, segment, 0, 0);
    program_call(p, CALL_STEP, segment, 1, 0);
    program_seal(p);
}

static void text_names_everything(void **state)
{
    (void)state;
    struct program p;
    struct str text = {0};
    build(&p, 4, ACT_SILU);
    program_dump_text(&p, &text);
    print_message("%s", text.s);
    static const char *const wanted[] = {": 2 ops, 3 values,",
                                         "segment double\n",
                                         " = add %0:x, %0:x",
                                         "f32[4,8]",
                                         ":y ",
                                         "layer 3",
                                         "schedule\n",
                                         "micro_batch 1",
                                         "storages "};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        if (!strstr(text.s, wanted[i]))
            fail_msg("no '%s' in the text", wanted[i]);
    str_free(&text);
    program_free(&p);
}

/* Equal programs print equal text; one shape or one attribute changes it. */
static void text_is_a_fingerprint(void **state)
{
    (void)state;
    struct program p[4];
    struct str text[4] = {{0}};
    build(&p[0], 4, ACT_SILU);
    build(&p[1], 4, ACT_SILU);
    build(&p[2], 5, ACT_SILU);
    build(&p[3], 4, ACT_GELU);
    for (int i = 0; i < 4; i++)
        program_dump_text(&p[i], &text[i]);
    assert_string_equal(text[0].s, text[1].s);
    assert_true(program_hash(&p[0]) == program_hash(&p[1]));
    for (int i = 2; i < 4; i++) {
        assert_string_not_equal(text[0].s, text[i].s);
        assert_true(program_hash(&p[0]) != program_hash(&p[i]));
    }
    for (int i = 0; i < 4; i++) {
        str_free(&text[i]);
        program_free(&p[i]);
    }
}

static const struct json *array_of(const struct json *object, const char *key,
                                   int64_t n)
{
    const struct json *x = json_find(object, key);
    assert_non_null(x);
    assert_int_equal(x->type, JSON_ARRAY);
    assert_int_equal(x->n_items, n);
    return x;
}

static void json_holds_the_program(void **state)
{
    (void)state;
    struct program p;
    struct str text = {0};
    struct arena a = {0};
    struct json *doc;
    struct diag diag = {0};
    build(&p, 4, ACT_SILU);
    program_dump_json(&p, &text);
    if (json_parse(&a, text.s, text.n, "dump", JSON_STRICT, &doc, &diag) != ST_OK)
        fail_msg("%s\n%s", diag.text, text.s);
    char hash[32];
    snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)program_hash(&p));
    assert_string_equal(json_find(doc, "hash")->text, hash);
    const struct json *ops = array_of(doc, "ops", 2);
    assert_string_equal(json_find(&ops->items[0], "kind")->text, "add");
    assert_string_equal(json_find(&ops->items[1], "kind")->text, "act");
    assert_int_equal(json_find(&ops->items[0], "layer")->i64, 3);
    array_of(&ops->items[0], "in", 2);
    const struct json *out = array_of(&ops->items[0], "out", 1);
    const struct json *in = array_of(&ops->items[1], "in", 1);
    assert_int_equal(out->items[0].i64, in->items[0].i64);
    /* two operands of 4 x 8 floats are read, one is written */
    assert_true(json_find(&ops->items[0], "bytes_written")->f64 == 128);
    const struct json *values = array_of(doc, "values", 3);
    const struct json *shape = array_of(&values->items[0], "shape", 2);
    assert_int_equal(shape->items[0].i64, 4);
    assert_int_equal(shape->items[1].i64, 8);
    array_of(doc, "storages", p.storages.n);
    array_of(doc, "segments", 1);
    const struct json *calls = array_of(doc, "calls", 2);
    assert_int_equal(json_find(&calls->items[1], "micro_batch")->i64, 1);
    str_free(&text);
    arena_release(&a);
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(text_names_everything),
            cmocka_unit_test(text_is_a_fingerprint),
            cmocka_unit_test(json_holds_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
