/* The HTML report: well-formed, self-contained, and with the figures of the metrics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/report_html.h"
#include "cmd/report_read.h"
#include "tests/lib/run_child.h"

#define HEAD(kind, step, attempt)                                                      \
    "{\"kind\":\"" kind "\",\"step\":" #step ",\"tokens\":" #step                      \
    ",\"elapsed_s\":1.5,\"attempt\":" #attempt

#define TRAIN(step, attempt, loss) HEAD("train", step, attempt) ",\"loss\":" loss "}\n"
#define START                      ",\"event\":\"start\",\"command\":\"angel pretrain 'a<b'\",\"steps\":20,"
#define LOOK                       ",\"event\":\"monitor\",\"tensor\":\"residual\","

/* clang-format off */
static const char metrics[] =
        HEAD("event", 0, 1) START "\"arena_bytes\":1048576,\"grad_bytes\":4096}\n"
        TRAIN(1, 1, "6.5") TRAIN(5, 1, "null") TRAIN(10, 1, "4.25") TRAIN(15, 1, "4")
        HEAD("event", 10, 2) START "\"arena_bytes\":1048576}\n"
        TRAIN(15, 2, "3.875") TRAIN(20, 2, "3.5")
        HEAD("event", 20, 2) LOOK "\"layer\":0,\"rms\":1}\n"
        HEAD("event", 20, 2) LOOK "\"layer\":1,\"rms\":2}\n"
        HEAD("event", 20, 2) ",\"event\":\"alarm\",\"rule\":\"growth\",\"tensor\":"
                             "\"param of <x>\",\"value\":9,\"before\":0.5}\n"
        HEAD("ckpt", 20, 2) ",\"save_s\":0.5,\"bytes\":2097152,\"ratio\":0.8}\n"
        HEAD("summary", 20, 2) ",\"status\":\"ok\"}\n"
        "{\"kind\":\"tra";
/* clang-format on */

/* Elements open and close in order; scripts and styles are skipped, and so are elements
 * without an end. */
static void assert_well_formed(const char *html)
{
    static const char *const empty[] = {"!DOCTYPE", "meta"};
    char stack[32][16];
    int depth = 0;
    for (const char *at = strchr(html, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        bool closes = at[1] == '/';
        char name[16] = "";
        size_t n = strcspn(at + 1 + closes, " >/");
        assert_true(n > 0 && n < sizeof(name));
        memcpy(name, at + 1 + closes, n);
        bool is_empty = end[-1] == '/' || strcmp(name, empty[0]) == 0 ||
                        strcmp(name, empty[1]) == 0;
        if (closes) {
            assert_true(depth > 0);
            assert_string_equal(stack[--depth], name);
        } else if (!is_empty) {
            assert_true(depth < (int)ARRAY_LEN(stack));
            memcpy(stack[depth++], name, sizeof(name));
        }
        if (!closes && (strcmp(name, "script") == 0 || strcmp(name, "style") == 0))
            at = strstr(at, "</") - 1;
    }
    assert_int_equal(depth, 0);
}

static void assert_self_contained(const char *html)
{
    static const char *const outside[] = {
            "http:", "https:", "src=", "href=", "@import", "url(", "fetch("};
    for (size_t i = 0; i < ARRAY_LEN(outside); i++)
        if (strstr(html, outside[i]))
            fail_msg("the page refers to something else: %s", outside[i]);
}

static void assert_has(const char *html, const char *words)
{
    if (!strstr(html, words))
        fail_msg("the page lacks '%s':\n%s", words, html);
}

static void test_reading(void **state)
{
    struct tmp *tmp = *state;
    struct report_data d;
    struct diag diag = {0};
    const char *path = tmp_write_text(tmp, "a/metrics.jsonl", metrics);
    assert_int_equal(report_read(path, &d, &diag), ST_OK);
    /* Step 15 of the first attempt was done again. */
    const report_points *loss = &d.curve[CURVE_LOSS];
    assert_int_equal(loss->n, 5);
    static const double x[] = {1, 5, 10, 15, 20}, y[] = {6.5, NAN, 4.25, 3.875, 3.5};
    for (size_t i = 0; i < ARRAY_LEN(x); i++) {
        assert_true(loss->data[i].x == x[i]);
        assert_true(loss->data[i].y == y[i] || (isnan(y[i]) && isnan(loss->data[i].y)));
    }
    assert_int_equal(d.attempts.n, 1);
    assert_true(d.attempts.data[0] == 10);
    assert_int_equal(d.curve[CURVE_RESIDUAL].n, 1);
    assert_true(d.curve[CURVE_RESIDUAL].data[0].y == 2);
    assert_true(d.elapsed_s == 3);
    report_data_free(&d);
}

static void test_page(void **state)
{
    struct tmp *tmp = *state;
    struct str html = {0};
    struct diag diag = {0};
    tmp_write_text(tmp, "b/metrics.jsonl", metrics);
    assert_int_equal(report_html(tmp_path(tmp, "b"), &html, &diag), ST_OK);
    assert_well_formed(html.s);
    assert_self_contained(html.s);
    assert_has(html.s, "angel pretrain &#39;a&lt;b&#39;");
    assert_has(html.s, "growth of param of &lt;x&gt;: 9, before 0.5");
    assert_has(html.s, "20 / 20");
    assert_has(html.s, "data-v=\"1:6.5,10:4.25,15:3.875,20:3.5\"");
    assert_has(html.s, "attempt 2 begins at step 10");
    assert_has(html.s, "<td class=\"n\">2.00 MiB</td>");
    assert_has(html.s, "prefers-color-scheme:dark");
    assert_has(html.s, "No checkpoint of this folder tells it");
    str_free(&html);
}

/* Many points: the page stays small, and the highest one stays on it. */
static void test_many(void **state)
{
    (void)state;
    enum {
        N = 200000
    };
    struct svg_point *p = mem_alloc(N * sizeof(*p));
    for (int i = 0; i < N; i++)
        p[i] = (struct svg_point){i, i == 123457 ? 77 : sin(i)};
    const struct svg_series s = {"x", p, N, false};
    const struct svg_chart c = {
            .title = "t", .unit = "", .series = &s, .n_series = 1, .x_max = N};
    struct str out = {0};
    assert_true(svg_chart_add(&out, &c));
    assert_has(out.s, ":77,");
    print_message("a chart of %d points: %zu bytes\n", N, out.n);
    assert_true(out.n < 100000);
    const struct svg_chart none = {
            .title = "t", .unit = "", .series = &s, .n_series = 0, .x_max = N};
    assert_false(svg_chart_add(&out, &none));
    str_free(&out);
    mem_free(p);
}

/* Numbers that no run has: the page is made, in bounded time and size. */
static void test_extremes(void **state)
{
    static const char *const lines[] = {
            "{\"kind\":\"train\",\"step\":1,\"loss\":1e16}\n"
            "{\"kind\":\"train\",\"step\":2,\"loss\":10000000000000002}\n",
            "{\"kind\":\"train\",\"step\":1,\"loss\":1e308}\n"
            "{\"kind\":\"train\",\"step\":9223372036854775807,\"loss\":-1e308}\n",
            "{\"kind\":\"train\",\"step\":-9223372036854775808,\"attempt\":2,"
            "\"loss\":5e-324}\n{\"kind\":\"train\",\"step\":2,\"loss\":1e300}\n",
            "{\"kind\":\"summary\",\"step\":2,\"elapsed_s\":1e308}\n"};
    struct tmp *tmp = *state;
    struct diag diag = {0};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct str html = {0};
        tmp_write_text(tmp, "e/metrics.jsonl", lines[i]);
        assert_int_equal(report_html(tmp_path(tmp, "e"), &html, &diag), ST_OK);
        assert_well_formed(html.s);
        assert_true(html.n < 40000);
        str_free(&html);
    }
}

/* A column of pixels that begins with a gap still shows what else it has. */
static void test_gap(void **state)
{
    (void)state;
    const struct svg_point p[] = {{1000, NAN}, {1001, 3}, {1002, 7}, {1003, 5}};
    const struct svg_series s = {"x", p, ARRAY_LEN(p), false};
    const struct svg_chart c = {
            .title = "t", .unit = "", .series = &s, .n_series = 1, .x_max = 1e6};
    struct str out = {0};
    assert_true(svg_chart_add(&out, &c));
    assert_has(out.s, "1001:3,1002:7,1003:5");
    str_free(&out);
}

static void test_faults(void **state)
{
    struct tmp *tmp = *state;
    struct str html = {0};
    struct diag diag = {0};
    assert_int_equal(report_html(tmp_path(tmp, "none"), &html, &diag), ST_NOT_FOUND);
    assert_true(diag.hint[0]);
    tmp_write_text(tmp, "c/metrics.jsonl", TRAIN(1, 1, "2") "{\"kind\" 3}\n");
    assert_int_equal(report_html(tmp_path(tmp, "c"), &html, &diag), ST_DATA);
    assert_non_null(strstr(diag.text, "metrics.jsonl:2"));
    tmp_write_text(tmp, "d/metrics.jsonl", "");
    assert_int_equal(report_html(tmp_path(tmp, "d"), &html, &diag), ST_OK);
    assert_well_formed(html.s);
    str_free(&html);
}

/* The report of a run, by the command, with its configuration. */
static void test_run(void **state)
{
    struct tmp *tmp = *state;
    const char *corpus = child_corpus(tmp, "corpus.txt", 1, 3000);
    const char *dir = tmp_path(tmp, "run");
    struct child c = child_pretrain(tmp, corpus, dir, 10);
    child_arg(&c, "log.monitor_every=5");
    child_expect(&c, 0);
    struct child report = {.args = {"pretrain", "--report", dir},
                           .n_args = 3,
                           .out = tmp_path(tmp, "out"),
                           .err = tmp_path(tmp, "err")};
    child_expect(&report, 0);
    child_expect_text(tmp, report.out, "run/report.html");
    const char *html = child_text(tmp, tmp_path(tmp, "run/report.html"));
    assert_well_formed(html);
    assert_self_contained(html);
    assert_has(html, "<td>train.steps</td><td>10</td>");
    assert_has(html, "Finished");
    assert_has(html, "Residual stream");
    assert_has(html, "<td>activation</td>");
}

static int set_up(void **state)
{
    static struct tmp tmp;
    tmp_create(&tmp);
    *state = &tmp;
    return 0;
}

static int tear_down(void **state)
{
    tmp_remove(*state);
    return 0;
}

int main(void)
{
    child_use_memory();
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_reading), cmocka_unit_test(test_page),
            cmocka_unit_test(test_many),    cmocka_unit_test(test_extremes),
            cmocka_unit_test(test_gap),     cmocka_unit_test(test_faults),
            cmocka_unit_test(test_run),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
