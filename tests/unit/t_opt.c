#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/opt.h"

struct point {
    const char *name;
    double weight;
};

struct points {
    struct point *items;
    int64_t n;
};

struct sample {
    bool on;
    int64_t count, bytes, degree;
    double rate, pair[2], wait_s;
    unsigned kind;
    const char *text;
    struct points points;
};

static const struct opt point_rows[] = {
        {.key = "name",
         .type = OPT_PATH,
         .flags = OPT_PRIMARY | OPT_NEEDED,
         .offset = offsetof(struct point, name),
         .default_text = "",
         .help = "A name."},
        {.key = "weight",
         .type = OPT_REAL,
         .offset = offsetof(struct point, weight),
         .default_text = "1",
         .min = 0,
         .max = 10,
         .help = "A weight."},
};
static const struct opt_table point_table = {
        .rows = point_rows, .n_rows = 2, .struct_bytes = sizeof(struct point)};

static const struct opt_choice kinds[] = {
        {"red", NULL}, {"green", NULL}, {"violet", "no violet here"}, {0}};

#define AT(member) offsetof(struct sample, member)

static const struct opt rows[] = {
        {.key = "on",
         .type = OPT_BOOL,
         .offset = AT(on),
         .default_text = "no",
         .help = "On."},
        {.key = "size.count",
         .type = OPT_COUNT,
         .flags = OPT_MATHS | OPT_AUTO,
         .offset = AT(count),
         .default_text = "auto",
         .min = 1,
         .max = 1e15,
         .unit = "things",
         .help = "How many."},
        {.key = "size.bytes",
         .type = OPT_BYTES,
         .flags = OPT_AUTO,
         .offset = AT(bytes),
         .default_text = "1GiB",
         .min = 1,
         .max = 1e18,
         .help = "How large."},
        {.key = "size.degree",
         .type = OPT_COUNT,
         .flags = OPT_AUTO | OPT_HIDDEN,
         .offset = AT(degree),
         .default_text = "1",
         .min = 1,
         .max = 1,
         .later = "one rank only"},
        {.key = "rate.peak",
         .type = OPT_REAL,
         .flags = OPT_MATHS,
         .offset = AT(rate),
         .default_text = "0.5",
         .min = 0,
         .max = 1,
         .help = "How fast - roughly."},
        {.key = "rate.pair",
         .type = OPT_REALS,
         .offset = AT(pair),
         .default_text = "[0.25, 0.75]",
         .min = 0,
         .max = 1,
         .n_elems = 2,
         .help = "Two."},
        {.key = "rate.wait",
         .type = OPT_SECONDS,
         .offset = AT(wait_s),
         .default_text = "30s",
         .min = 0,
         .max = 1e9,
         .help = "How long."},
        {.key = "kind",
         .type = OPT_ENUM,
         .offset = AT(kind),
         .default_text = "red",
         .choices = kinds,
         .help = "Which."},
        {.key = "text",
         .type = OPT_TEXT,
         .offset = AT(text),
         .default_text = "",
         .help = "T."},
        {.key = "points",
         .type = OPT_LIST,
         .flags = OPT_MATHS,
         .offset = AT(points),
         .fields = &point_table,
         .help = "Points."},
        {.key = "later", .type = OPT_SUBTREE, .flags = OPT_HIDDEN, .later = "not yet"},
};
static const struct opt_group groups[] = {{"size.", "Size", "how much"},
                                          {"", "Rest", "the others"}};
static const struct opt_table table = {.rows = rows,
                                       .n_rows = ARRAY_LEN(rows),
                                       .groups = groups,
                                       .n_groups = 2,
                                       .struct_bytes = sizeof(struct sample)};

struct fixture {
    struct sample v;
    struct opt_origin origins[ARRAY_LEN(rows)];
    struct arena arena;
    struct opt_store store;
    struct diag diag;
};

static int setup(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    f->store = (struct opt_store){&table, &f->v, &f->arena, f->origins};
    opt_set_defaults(&f->store);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    arena_release(&f->arena);
    mem_free(f);
    return 0;
}

static enum status set(struct fixture *f, const char *key, const char *text)
{
    return opt_set(&f->store, key, text, "run.yaml:7", 1, &f->diag);
}

static void assert_fails(struct fixture *f, const char *key, const char *text,
                         enum status want, const char *says, const char *hints)
{
    assert_int_equal(set(f, key, text), want);
    if (!strstr(f->diag.text, says) || !strstr(f->diag.hint, hints))
        fail_msg("%s=%s: '%s' / '%s', wanted '%s' / '%s'", key, text ? text : "null",
                 f->diag.text, f->diag.hint, says, hints);
}

static void test_defaults(void **state)
{
    struct fixture *f = *state;
    assert_false(f->v.on);
    assert_int_equal(f->v.count, 0);
    assert_int_equal(f->v.bytes, GIB);
    assert_true(f->v.pair[1] == 0.75 && f->v.wait_s == 30);
    assert_string_equal(f->v.text, "");
    assert_string_equal(opt_where(&f->store, "kind"), "default");
}

static void test_numbers(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *text;
        int64_t want; /* -1: not a count */
    } counts[] = {
            {"4k", 4000},
            {"4M", 4000000},
            {"10B", 10000000000},
            {"1.5M", 1500000},
            {"1e6", 1000000},
            {"1.1M", 1100000},
            {"999999999999", 999999999999},
            {"1.5", -1},
            {"", -1},
            {"k", -1},
            {"0x10", -1},
            {"1 000", -1},
            {"99999999999999999999", -1},
            {"1e30", -1},
            {"4 M", 4000000},
            {"+4", -1},
            {"12abc", -1},
            {".", -1},
            {"nan", -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        int64_t got = -1;
        enum status st = opt_parse_count(counts[i].text, &got, &f->diag);
        assert_int_equal(st, counts[i].want < 0 ? ST_CONFIG : ST_OK);
        if (got != counts[i].want)
            fail_msg("'%s' is %lld", counts[i].text, (long long)got);
    }
    int64_t bytes;
    assert_int_equal(opt_parse_bytes("40GiB", &bytes, &f->diag), ST_OK);
    assert_int_equal(bytes, (int64_t)40 << 30);
    assert_int_equal(opt_parse_bytes("1.5KiB", &bytes, &f->diag), ST_OK);
    assert_int_equal(bytes, 1536);
    assert_int_equal(opt_parse_bytes("2TB", &bytes, &f->diag), ST_OK);
    assert_int_equal(bytes, 2000000000000);
    assert_int_equal(opt_parse_bytes("40G", &bytes, &f->diag), ST_CONFIG);
    assert_int_equal(opt_parse_bytes("0.5B", &bytes, &f->diag), ST_CONFIG);
}

static void test_set(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(set(f, "on", "Yes"), ST_OK);
    assert_int_equal(set(f, "size.count", "12k"), ST_OK);
    assert_int_equal(set(f, "rate.peak", "3e-4"), ST_OK);
    assert_int_equal(set(f, "rate.pair", "0.5,0.5"), ST_OK);
    assert_int_equal(set(f, "rate.pair[0]", "0.125"), ST_OK);
    assert_int_equal(set(f, "rate.wait", "2min"), ST_OK);
    assert_int_equal(set(f, "kind", "green"), ST_OK);
    assert_int_equal(set(f, "text", NULL), ST_OK);
    assert_true(f->v.on && f->v.count == 12000 && f->v.rate == 3e-4 && f->v.kind == 1);
    assert_true(f->v.pair[0] == 0.125 && f->v.pair[1] == 0.5 && f->v.wait_s == 120);
    assert_string_equal(opt_where(&f->store, "kind"), "run.yaml:7");
    assert_int_equal(set(f, "size.count", "auto"), ST_OK);
    assert_int_equal(f->v.count, 0);
    assert_int_equal(set(f, "size.count", "0"),
                     ST_CONFIG); /* stored so, not given so */
    assert_int_equal(set(f, "size", "auto"), ST_OK);
    assert_int_equal(f->v.bytes, 0);
}

static void test_errors(void **state)
{
    struct fixture *f = *state;
    assert_fails(f, "on", "maybe", ST_CONFIG,
                 "on (run.yaml:7): got 'maybe', wanted true or", "");
    assert_fails(f, "size.count", "lots", ST_CONFIG, "got 'lots', wanted a count", "");
    assert_fails(f, "size.count", "-3", ST_CONFIG, "wanted 1 to 1e+15 or auto", "");
    assert_fails(f, "rate.peak", "1.5", ST_CONFIG, "got '1.5', wanted 0 to 1", "");
    assert_fails(f, "rate.peak", "nan", ST_CONFIG, "wanted a number", "");
    assert_fails(f, "rate.peak", "inf", ST_CONFIG, "wanted a number", "");
    assert_fails(f, "rate.peak", NULL, ST_CONFIG, "got ''", "");
    assert_fails(f, "rate.pair", "[0.5]", ST_CONFIG, "wanted a list of 2 numbers", "");
    assert_fails(f, "rate.pair[2]", "0.5", ST_CONFIG, "wanted a list of 2 numbers", "");
    assert_fails(f, "kind", "gren", ST_CONFIG, "wanted red or green",
                 "did you mean green?");
    assert_fails(f, "kind", "violet", ST_UNAVAILABLE, "no violet here: got 'violet'",
                 "");
    assert_fails(f, "size.degree", "2", ST_UNAVAILABLE,
                 "one rank only: got '2', wanted 1", "");
    assert_fails(f, "size.degree", "two", ST_CONFIG, "wanted a count", "");
    assert_fails(f, "later", "1", ST_UNAVAILABLE, "not yet", "");
    assert_fails(f, "later.deep[0].key", "1", ST_UNAVAILABLE, "not yet", "");
    assert_fails(f, "size.count.more", "1", ST_CONFIG, "got the key 'size.count.more'",
                 "");
    assert_fails(f, "size", "5", ST_CONFIG, "got '5', wanted a mapping", "size.count");
    /* Whatever the value, the message is one readable line. */
    assert_fails(f, "on", "a\nb\033[1m", ST_CONFIG, "got 'a?b?[1m', wanted", "");
    char longer[300];
    memset(longer, 'x', sizeof(longer));
    longer[299] = '\0';
    assert_fails(f, "on", longer, ST_CONFIG, "xxx...', wanted true or false", "");
    assert_fails(f, longer, "1", ST_CONFIG, "xxx...', wanted a key", "");
    assert_fails(f, "rate", "auto", ST_CONFIG, "wanted a mapping", "");
}

static void test_suggestions(void **state)
{
    struct fixture *f = *state;
    assert_fails(f, "size.cuont", "1", ST_CONFIG,
                 "unknown key (run.yaml:7): got 'size.cuont'",
                 "did you mean size.count?");
    assert_fails(f, "peak", "1", ST_CONFIG, "unknown key", "did you mean rate.peak?");
    assert_fails(f, "siz.count", "1", ST_CONFIG, "unknown key",
                 "did you mean size.count?");
    assert_fails(f, "peek", "1", ST_CONFIG, "unknown key", "did you mean rate.peak?");
    assert_fails(f, "xyzzyplugh", "1", ST_CONFIG, "unknown key", "angel help options");
    /* A hidden key is never offered. */
    assert_int_equal(set(f, "size.degre", "1"), ST_CONFIG);
    assert_null(strstr(f->diag.hint, "degree"));
}

static void test_lists(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(set(f, "points", "solo"), ST_OK);
    assert_int_equal(f->v.points.n, 1);
    assert_true(f->v.points.items[0].weight == 1);
    assert_int_equal(opt_begin_sequence(&f->store, "points", 5, "x", 2, &f->diag),
                     ST_OK);
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof(key), "points[%d].name", i);
        assert_int_equal(set(f, key, key), ST_OK);
    }
    assert_int_equal(f->v.points.n, 5);
    assert_string_equal(f->v.points.items[0].name, "points[0].name");
    assert_string_equal(f->v.points.items[4].name, "points[4].name");
    assert_int_equal(set(f, "points[1].weight", "2"), ST_OK);
    assert_true(f->v.points.items[1].weight == 2);
    assert_fails(f, "points[7]", "far", ST_CONFIG, "at most 5", "");
    assert_fails(f, "points[0].wieght", "2", ST_CONFIG, "unknown key",
                 "did you mean points[0].weight?");
    assert_fails(f, "points[1].weight", "11", ST_CONFIG, "wanted 0 to 10", "");
    assert_fails(f, "points.name", "a", ST_CONFIG,
                 "wanted a list of mappings with name", "");
    assert_int_equal(opt_check_lists(&f->store, &f->diag), ST_OK);
    assert_int_equal(set(f, "points[5].weight", "1"), ST_OK);
    assert_int_equal(opt_check_lists(&f->store, &f->diag), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "points[5] (run.yaml:7): got no name"));
}

static void test_sequences(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(opt_begin_sequence(&f->store, "rate.pair", 3, "x:1", 1, &f->diag),
                     ST_CONFIG);
    assert_non_null(
            strstr(f->diag.text, "got a list of 3, wanted a list of 2 numbers"));
    assert_int_equal(opt_begin_sequence(&f->store, "on", 1, "x:1", 1, &f->diag),
                     ST_CONFIG);
    assert_int_equal(opt_begin_sequence(&f->store, "size", 1, "x:1", 1, &f->diag),
                     ST_CONFIG);
    assert_int_equal(opt_begin_sequence(&f->store, "later", 1, "x:1", 1, &f->diag),
                     ST_UNAVAILABLE);
}

static void test_print(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(set(f, "text", "a \"b\": #c\n"), ST_OK);
    assert_int_equal(set(f, "points", "p"), ST_OK);
    assert_int_equal(set(f, "points[1].name", "q, r"), ST_OK);
    assert_int_equal(set(f, "points[1].weight", "0.1"), ST_OK);
    struct str out = {0};
    opt_print_yaml(&table, &f->v, &out);
    assert_string_equal(str_get(&out), "on: false\n"
                                       "size:\n"
                                       "  count: auto\n"
                                       "  bytes: 1GiB\n"
                                       "rate:\n"
                                       "  peak: 0.5\n"
                                       "  pair: [0.25, 0.75]\n"
                                       "  wait: 30\n"
                                       "kind: red\n"
                                       "text: \"a \\\"b\\\": #c\\x0a\"\n"
                                       "points: [p, {name: \"q, r\", weight: 0.1}]\n");
    str_free(&out);
}

static void test_help(void **state)
{
    (void)state;
    struct str out = {0};
    assert_int_equal(opt_print_help(&table, "", &out), 9);
    assert_non_null(strstr(str_get(&out), "Size: how much\n  size.count"));
    assert_non_null(
            strstr(str_get(&out), "How many. (count or auto, things, 1 to 1e+15,"));
    assert_non_null(strstr(str_get(&out), "(red|green, default red)"));
    assert_null(strstr(str_get(&out), "degree"));
    for (const char *line = str_get(&out); *line;) {
        size_t n = strcspn(line, "\n");
        assert_true(n <= 88);
        line += n + (line[n] == '\n');
    }
    str_clear(&out);
    assert_int_equal(opt_print_help(&table, "size.", &out), 2);
    str_clear(&out);
    opt_print_roff(&table, &out);
    assert_non_null(
            strstr(str_get(&out), ".TP\n.B rate.peak\nHow fast \\- roughly.\n"));
    str_free(&out);
}

static void test_diff_and_hash(void **state)
{
    struct fixture *f = *state;
    struct sample before = f->v;
    uint32_t found[ARRAY_LEN(rows)];
    uint64_t hash = opt_hash(&table, &f->v, OPT_MATHS);
    assert_int_equal(opt_diff(&table, &before, &f->v, 0, found), 0);
    assert_int_equal(set(f, "on", "true"), ST_OK);
    assert_int_equal(opt_diff(&table, &before, &f->v, OPT_MATHS, found), 0);
    assert_true(opt_hash(&table, &f->v, OPT_MATHS) == hash);
    assert_int_equal(set(f, "rate.peak", "0.25"), ST_OK);
    assert_int_equal(set(f, "points", "p"), ST_OK);
    assert_int_equal(opt_diff(&table, &before, &f->v, OPT_MATHS, found), 2);
    assert_string_equal(rows[found[0]].key, "rate.peak");
    assert_string_equal(rows[found[1]].key, "points");
    assert_int_equal(opt_diff(&table, &before, &f->v, 0, found), 3);
    assert_true(opt_hash(&table, &f->v, OPT_MATHS) != hash);
}

/* The check finds each fault that it is there to find. */
static void test_table_check(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(opt_table_check(&table, &f->diag), ST_OK);
    struct opt bad[ARRAY_LEN(rows)];
    struct opt_table t = table;
    t.rows = bad;
    struct {
        int row;
        struct opt with;
        const char *says;
    } faults[] = {
            {1, rows[0], "two rows"},         {4, rows[4], "wanted 0 to 1"},
            {4, rows[4], "help sentence"},    {4, rows[4], "least above most"},
            {4, rows[4], "wanted a default"}, {9, rows[4], "apart from"},
            {7, rows[7], "no choices"},       {7, rows[7], "wanted red or green"},
    };
    faults[1].with.default_text = "2";
    faults[2].with.help = "No full stop";
    faults[3].with.min = 5;
    faults[4].with.default_text = NULL;
    faults[5].with.key = "size.apart";
    faults[6].with.choices = NULL;
    faults[7].with.default_text = "blue";
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        memcpy(bad, rows, sizeof(bad));
        bad[faults[i].row] = faults[i].with;
        assert_int_equal(opt_table_check(&t, &f->diag), ST_INTERNAL);
        if (!strstr(f->diag.text, faults[i].says))
            fail_msg("fault %zu: '%s'", i, f->diag.text);
    }
}

static void test_env(void **state)
{
    (void)state;
    assert_int_equal(setenv("ANGEL_T_OPT", "x", 1), 0);
    assert_string_equal(opt_env("ANGEL_T_OPT"), "x");
    assert_int_equal(setenv("ANGEL_T_OPT", "", 1), 0);
    assert_null(opt_env("ANGEL_T_OPT"));
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_defaults),      TEST(test_numbers),     TEST(test_set),
            TEST(test_errors),        TEST(test_suggestions), TEST(test_lists),
            TEST(test_sequences),     TEST(test_print),       TEST(test_help),
            TEST(test_diff_and_hash), TEST(test_table_check), TEST(test_env),
    };
    return cmocka_run_group_tests_name("opt", tests, NULL, NULL);
}
