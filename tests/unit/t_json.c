/* The JSON parser and writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "io/json.h"

static struct json *parse_ok(struct arena *a, const char *text)
{
    struct diag diag = {0};
    struct json *v = NULL;
    enum status st =
            json_parse(a, text, strlen(text), "t.json", JSON_STRICT, &v, &diag);
    if (st != ST_OK)
        print_error("%s\n", diag.text);
    assert_int_equal(st, ST_OK);
    return v;
}

static void values(void **state)
{
    (void)state;
    struct arena a = {0};
    struct json *v = parse_ok(&a, " {\"a\": [1, -2.5, 1e3, true, false, null, \"x\"],\n"
                                  "\"b\": {}, \"\": [], \"c\":0} ");
    assert_int_equal(v->type, JSON_OBJECT);
    assert_int_equal(v->n_items, 4);
    assert_string_equal(v->items[0].key, "a");
    assert_string_equal(v->items[2].key, "");
    const struct json *x = v->items[0].items;
    assert_int_equal(v->items[0].n_items, 7);
    assert_true(x[0].is_i64 && x[0].i64 == 1 && x[0].f64 == 1.0);
    assert_true(!x[1].is_i64 && x[1].f64 == -2.5);
    assert_string_equal(x[1].text, "-2.5");
    assert_true(x[2].is_i64 && x[2].i64 == 1000);
    assert_true(x[3].type == JSON_BOOL && x[3].is_true);
    assert_true(x[4].type == JSON_BOOL && !x[4].is_true);
    assert_int_equal(x[5].type, JSON_NULL);
    assert_string_equal(x[6].text, "x");
    assert_null(json_find(v, "d"));
    assert_null(json_find(&x[0], "d"));
    arena_release(&a);
}

static void integers(void **state)
{
    (void)state;
    struct arena a = {0};
    struct diag diag = {0};
    struct json *v =
            parse_ok(&a, "{\"max\":9223372036854775807,\"min\":-9223372036854775808,"
                         "\"over\":9223372036854775808,\"u\":18446744073709551615,"
                         "\"big\":18446744073709551616,\"half\":0.5,\"one\":1.0}");
    int64_t i = 0;
    uint64_t u = 0;
    assert_int_equal(json_get_i64(v, "max", "t", &i, &diag), ST_OK);
    assert_true(i == INT64_MAX);
    assert_int_equal(json_get_i64(v, "min", "t", &i, &diag), ST_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(json_get_i64(v, "over", "t", &i, &diag), ST_DATA);
    assert_int_equal(json_get_u64(v, "u", "t", &u, &diag), ST_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(json_get_u64(v, "big", "t", &u, &diag), ST_DATA);
    assert_int_equal(json_get_u64(v, "min", "t", &u, &diag), ST_DATA);
    assert_int_equal(json_get_i64(v, "half", "t", &i, &diag), ST_DATA);
    assert_non_null(strstr(diag.text, "0.5"));
    assert_int_equal(json_get_i64(v, "one", "t", &i, &diag), ST_OK);
    assert_int_equal(i, 1);
    arena_release(&a);
}

static void strings(void **state)
{
    (void)state;
    struct arena a = {0};
    struct json *v = parse_ok(&a, "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u00e9\\u20ac\","
                                  "\"\\ud83d\\uDE00\", \"\xc3\xa9\", \"a\\u0000b\"]");
    assert_string_equal(v->items[0].text, "\"\\/\b\f\n\r\t");
    assert_string_equal(v->items[1].text, "\xc3\xa9\xe2\x82\xac");
    assert_string_equal(v->items[2].text, "\xf0\x9f\x98\x80");
    assert_string_equal(v->items[3].text, "\xc3\xa9");
    assert_int_equal(v->items[4].n_text, 3);
    assert_memory_equal(v->items[4].text, "a\0b", 4);
    arena_release(&a);
}

/* Each must be refused, with the line and the byte it names. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
            {"", "t.json:1, byte 0"},
            {" \n ", "t.json:2, byte 3"},
            {"{\"a\":1,\n\"a\":2}", "'a' twice"},
            {"{\"a\":1,}", "byte 7"},
            {"[1,\n2,]", "t.json:2, byte 6"},
            {"[1 2]", "byte 3"},
            {"[1", "got the end"},
            {"{\"a\" 1}", "':'"},
            {"{a:1}", "got 'a'"},
            {"01", "leading zero"},
            {"1.", "a digit"},
            {"-", "a digit"},
            {"+1", "a value"},
            {".5", "a value"},
            {"1e", "a digit"},
            {"1e999", "too large"},
            {"tru", "a value"},
            {"NaN", "a value"},
            {"nulls", "the end"},
            {"\"a", "closing quote"},
            {"\"\\x\"", "an escape"},
            {"\"\\u12g4\"", "hexadecimal"},
            {"\"\\ud800\"", "both halves"},
            {"\"\\ud800\\u0041\"", "both halves"},
            {"\"\\udc00\"", "second half"},
            {"\"a\nb\"", "control characters"},
            {"\"\xff\"", "UTF-8"},
            {"\"\xc0\x80\"", "UTF-8"},
            {"\"\xed\xa0\x80\"", "UTF-8"},
            {"\"\xf4\x90\x80\x80\"", "UTF-8"},
            {"\"\xe2\x82\"", "UTF-8"},
            {"1 // no", "the end"},
    };
    struct arena a = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct diag diag = {0};
        struct json *v = NULL;
        enum status st = json_parse(&a, cases[i].text, strlen(cases[i].text), "t.json",
                                    JSON_STRICT, &v, &diag);
        if (st != ST_DATA || !strstr(diag.text, cases[i].says))
            print_error("case %zu: '%s' gave '%s'\n", i, cases[i].text, diag.text);
        assert_int_equal(st, ST_DATA);
        assert_null(v);
        assert_non_null(strstr(diag.text, cases[i].says));
    }
    arena_release(&a);
}

static void depth(void **state)
{
    (void)state;
    struct arena a = {0};
    struct diag diag = {0};
    struct json *v = NULL;
    char text[2 * (JSON_DEPTH_MAX + 1) + 1];
    for (int levels = JSON_DEPTH_MAX; levels <= JSON_DEPTH_MAX + 1; levels++) {
        memset(text, '[', (size_t)levels);
        memset(text + levels, ']', (size_t)levels);
        enum status st = json_parse(&a, text, 2 * (size_t)levels, "t", 0, &v, &diag);
        assert_int_equal(st, levels <= JSON_DEPTH_MAX ? ST_OK : ST_DATA);
    }
    arena_release(&a);
}

/* Every prefix of a text is refused, none is read beyond its end (sanitizers see it). */
static void prefixes(void **state)
{
    (void)state;
    static const char text[] =
            "{\"k\":[1.5e-3,\"\\ud83d\\ude00\xe2\x82\xac\",true,null,{}]}";
    for (size_t n = 0; n < sizeof(text) - 1; n++) {
        struct arena a = {0};
        struct json *v = NULL;
        char *cut = mem_alloc(n);
        memcpy(cut, text, n);
        assert_int_equal(json_parse(&a, cut, n, "t", 0, &v, NULL), ST_DATA);
        mem_free(cut);
        arena_release(&a);
    }
}

static void write_value(struct json_writer *w, const struct json *v)
{
    if (v->type == JSON_OBJECT || v->type == JSON_ARRAY) {
        v->type == JSON_OBJECT ? json_begin_object(w) : json_begin_array(w);
        for (int64_t i = 0; i < v->n_items; i++) {
            if (v->type == JSON_OBJECT)
                json_key(w, v->items[i].key);
            write_value(w, &v->items[i]);
        }
        v->type == JSON_OBJECT ? json_end_object(w) : json_end_array(w);
    } else if (v->type == JSON_STRING) {
        json_string_n(w, v->text, v->n_text);
    } else if (v->type == JSON_NUMBER) {
        v->is_i64 ? json_i64(w, v->i64) : json_f64(w, v->f64);
    } else if (v->type == JSON_BOOL) {
        json_bool(w, v->is_true);
    } else {
        json_null(w);
    }
}

/* Random damage: a text is parsed or refused with a reason, and what is parsed is
 * written and parsed again to the same (sanitizers see the rest). */
static void random_damage(void **state)
{
    (void)state;
    static const char text[] =
            "{\"a\":[1,-2.5e3,\"x\\n\\ud83d\\ude00\",{}],\"b\":{\"c\":null,"
            "\"d\":[true,false]},\"e\":\"\xe2\x82\xac\"}";
    static const char bytes[] = "{}[]\",:\\u0d8e+-.1 tn\xff\xe2";
    enum {
        N = sizeof(text) - 1,
        ROUNDS = 30000
    };
    int64_t parsed = 0;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        char bad[N];
        memcpy(bad, text, N);
        for (uint64_t k = 0; k <= i % 3; k++)
            bad[rng_u64(5, i, 2 * k) % N] =
                    bytes[rng_u64(5, i, 2 * k + 1) % (sizeof(bytes) - 1)];
        struct arena a = {0};
        struct diag diag = {0};
        struct json *v = NULL;
        if (json_parse(&a, bad, N, "t", JSON_STRICT, &v, &diag) == ST_OK) {
            struct str once = {0}, twice = {0};
            struct json_writer w = {.out = &once};
            write_value(&w, v);
            w = (struct json_writer){.out = &twice};
            write_value(&w, parse_ok(&a, once.s));
            assert_string_equal(once.s, twice.s);
            str_free(&once);
            str_free(&twice);
            parsed++;
        } else {
            assert_non_null(strstr(diag.text, "malformed JSON (t:1, byte "));
        }
        arena_release(&a);
    }
    print_message("%lld of %d damaged texts were still JSON\n", (long long)parsed,
                  ROUNDS);
    assert_true(parsed > ROUNDS / 100 && parsed < ROUNDS / 2);
}

static void any_bytes(void **state)
{
    (void)state;
    struct arena a = {0};
    struct json *v = NULL;
    assert_int_equal(json_parse(&a, "\"\xff\xfe\"", 4, "t", JSON_ANY_BYTES, &v, NULL),
                     ST_OK);
    assert_memory_equal(v->text, "\xff\xfe", 3);
    arena_release(&a);
}

static void getters(void **state)
{
    (void)state;
    struct arena a = {0};
    struct diag diag = {0};
    struct json *v =
            parse_ok(&a, "{\"s\":\"x\",\"z\":\"a\\u0000\",\"b\":true,\"f\":2.5,"
                         "\"o\":{},\"l\":[]}");
    const char *s = NULL;
    bool b = false;
    double f = 0;
    const struct json *sub = NULL;
    assert_int_equal(json_get_string(v, "s", "t", &s, &diag), ST_OK);
    assert_string_equal(s, "x");
    assert_int_equal(json_get_string(v, "z", "t", &s, &diag), ST_DATA);
    assert_int_equal(json_get_bool(v, "b", "t", &b, &diag), ST_OK);
    assert_true(b);
    assert_int_equal(json_get_f64(v, "f", "t", &f, &diag), ST_OK);
    assert_true(f == 2.5);
    assert_int_equal(json_get_object(v, "o", "t", &sub, &diag), ST_OK);
    assert_int_equal(json_get_array(v, "l", "t", &sub, &diag), ST_OK);
    assert_int_equal(json_get_array(v, "o", "t", &sub, &diag), ST_DATA);
    assert_string_equal(diag.text,
                        "wrong type of 'o' (t): got an object, wanted an array");
    assert_int_equal(json_get_bool(v, "none", "m.json", &b, &diag), ST_DATA);
    assert_string_equal(diag.text, "missing key 'none' (m.json): wanted true or false");
    arena_release(&a);
}

static void writer_text(void **state)
{
    (void)state;
    struct str s = {0};
    struct json_writer w = {.out = &s};
    json_begin_object(&w);
    json_key(&w, "a\"b");
    json_begin_array(&w);
    json_i64(&w, INT64_MIN);
    json_u64(&w, UINT64_MAX);
    json_f64(&w, 0.1);
    json_f64(&w, NAN);
    json_f64(&w, -INFINITY);
    json_bool(&w, true);
    json_null(&w);
    json_string(&w, NULL);
    json_string(&w, "\t\x01\\\xc3\xa9\xff");
    json_end_array(&w);
    json_key(&w, "e");
    json_begin_object(&w);
    json_end_object(&w);
    json_end_object(&w);
    assert_string_equal(
            s.s, "{\"a\\\"b\":[-9223372036854775808,18446744073709551615,0.1,"
                 "null,null,true,null,null,\"\\t\\u0001\\\\\xc3\xa9\xef\xbf\xbd\"],"
                 "\"e\":{}}");
    str_clear(&s);
    w = (struct json_writer){.out = &s, .indent = 2};
    json_begin_object(&w);
    json_key(&w, "a");
    json_begin_array(&w);
    json_i64(&w, 1);
    json_i64(&w, 2);
    json_end_array(&w);
    json_key(&w, "b");
    json_begin_array(&w);
    json_end_array(&w);
    json_end_object(&w);
    assert_string_equal(s.s, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}");
    str_free(&s);
}

/* Doubles of random bits come back bit by bit, in at most 24 characters. */
static void doubles_round_trip(void **state)
{
    (void)state;
    struct str s = {0};
    size_t longest = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t bits = rng_u64(7, 1, i);
        double x;
        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x))
            continue;
        str_clear(&s);
        struct json_writer w = {.out = &s};
        json_f64(&w, x);
        struct arena a = {0};
        struct json *v = parse_ok(&a, s.s);
        assert_memory_equal(&v->f64, &x, sizeof(x));
        longest = MAX(longest, s.n);
        arena_release(&a);
    }
    print_message("longest double: %zu characters\n", longest);
    assert_true(longest <= 24);
    str_free(&s);
}

/* 200,000 members: duplicates must be found without comparing all pairs. */
static void many_members(void **state)
{
    (void)state;
    struct str s = {0};
    str_addc(&s, '{');
    for (int i = 0; i < 200000; i++)
        str_printf(&s, "\"k%d\":%d,", i, i);
    str_add(&s, "\"k777\":0}");
    struct arena a = {0};
    struct diag diag = {0};
    struct json *v = NULL;
    assert_int_equal(json_parse(&a, s.s, s.n, "t", 0, &v, &diag), ST_DATA);
    assert_non_null(strstr(diag.text, "'k777' twice"));
    arena_release(&a);
    str_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(values),
            cmocka_unit_test(integers),
            cmocka_unit_test(strings),
            cmocka_unit_test(refusals),
            cmocka_unit_test(depth),
            cmocka_unit_test(prefixes),
            cmocka_unit_test(random_damage),
            cmocka_unit_test(any_bytes),
            cmocka_unit_test(getters),
            cmocka_unit_test(writer_text),
            cmocka_unit_test(doubles_round_trip),
            cmocka_unit_test(many_members),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
