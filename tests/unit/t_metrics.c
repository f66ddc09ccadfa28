/* metrics.jsonl: every line parses, survives a killed run, and counts attempts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/metrics.h"
#include "tests/lib/tmp.h"

static const struct metrics_head head = {"train", 7, 4096, 1.25};

static struct metrics *open_at(const char *path)
{
    struct diag diag = {0};
    struct metrics *m = NULL;
    if (metrics_open(path, &m, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    return m;
}

static void write_fields(struct metrics *m, const struct metrics_field *fields,
                         size_t n)
{
    struct diag diag = {0};
    if (metrics_write(m, &head, fields, n, &diag) != ST_OK)
        fail_msg("%s", diag.text);
}

/* Parses every line of the file; returns the lines. */
static const struct json **lines_of(struct tmp *t, const char *path, int64_t *n)
{
    struct diag diag = {0};
    const struct json **out = arena_array(&t->arena, const struct json *, 64);
    int64_t bytes;
    int fd;
    assert_int_equal(file_size(path, &bytes, &diag), ST_OK);
    char *text = arena_alloc(&t->arena, (size_t)bytes + 1);
    assert_int_equal(file_open_read(path, &fd, &diag), ST_OK);
    assert_int_equal(file_read_at(fd, path, 0, text, (size_t)bytes, &diag), ST_OK);
    file_close_read(fd);
    *n = 0;
    for (char *p = text, *end; (end = strchr(p, '\n')); p = end + 1) {
        struct json *line;
        if (json_parse(&t->arena, p, (size_t)(end - p), path, JSON_STRICT, &line,
                       &diag) != ST_OK)
            fail_msg("%s", diag.text);
        assert_true(*n < 64);
        out[(*n)++] = line;
        assert_true(end + 1 <= text + bytes);
        if (end[1] == '\0')
            assert_ptr_equal(end + 1, text + bytes);
    }
    return out;
}

static double number(const struct json *line, const char *key)
{
    const struct json *x = json_find(line, key);
    assert_non_null(x);
    assert_int_equal(x->type, JSON_NUMBER);
    return x->f64;
}

static void lines_hold_what_is_written(void **state)
{
    (void)state;
    struct tmp t;
    tmp_create(&t);
    const char *path = tmp_path(&t, "new/folder/metrics.jsonl");
    struct metrics *m = open_at(path);
    const struct metrics_field fields[] = {METRICS_F64("loss", 0.1 + 0.2),
                                           METRICS_I64("big", INT64_MAX),
                                           METRICS_TEXT("note", "a \"b\"\n\t\\c")};
    write_fields(m, fields, ARRAY_LEN(fields));
    write_fields(m, NULL, 0);
    metrics_close(m);
    int64_t n;
    const struct json **line = lines_of(&t, path, &n);
    assert_int_equal(n, 2);
    assert_string_equal(json_find(line[0], "kind")->text, "train");
    assert_true(number(line[0], "step") == 7);
    assert_true(number(line[0], "tokens") == 4096);
    assert_true(number(line[0], "elapsed_s") == 1.25);
    assert_true(number(line[0], "attempt") == 1);
    assert_true(number(line[0], "loss") == 0.1 + 0.2);
    assert_true(json_find(line[0], "big")->i64 == INT64_MAX);
    assert_string_equal(json_find(line[0], "note")->text, "a \"b\"\n\t\\c");
    assert_null(json_find(line[0], "nonfinite"));
    assert_null(json_find(line[1], "loss"));
    tmp_remove(&t);
}

static void numbers_that_are_not_finite_are_named(void **state)
{
    (void)state;
    struct tmp t;
    tmp_create(&t);
    const char *path = tmp_path(&t, "m.jsonl");
    struct metrics *m = open_at(path);
    const struct metrics_field fields[] = {METRICS_F64("loss", (double)NAN),
                                           METRICS_F64("lr", 1e-3),
                                           METRICS_F64("grad_norm", (double)-INFINITY)};
    write_fields(m, fields, ARRAY_LEN(fields));
    metrics_close(m);
    int64_t n;
    const struct json *line = lines_of(&t, path, &n)[0];
    assert_int_equal(json_find(line, "loss")->type, JSON_NULL);
    assert_int_equal(json_find(line, "grad_norm")->type, JSON_NULL);
    assert_true(number(line, "lr") == 1e-3);
    const struct json *names = json_find(line, "nonfinite");
    assert_non_null(names);
    assert_int_equal(names->n_items, 2);
    assert_string_equal(names->items[0].text, "loss");
    assert_string_equal(names->items[1].text, "grad_norm");
    tmp_remove(&t);
}

static void attempts_are_counted(void **state)
{
    (void)state;
    struct tmp t;
    tmp_create(&t);
    const char *path = tmp_path(&t, "m.jsonl");
    for (int64_t attempt = 1; attempt <= 3; attempt++) {
        struct metrics *m = open_at(path);
        assert_int_equal(metrics_attempt(m), attempt);
        write_fields(m, NULL, 0);
        metrics_close(m);
    }
    int64_t n;
    const struct json **line = lines_of(&t, path, &n);
    assert_int_equal(n, 3);
    for (int64_t i = 0; i < 3; i++)
        assert_true(number(line[i], "attempt") == (double)(i + 1));
    tmp_remove(&t);
}

/* A run that was killed while writing leaves part of a line, of any length. */
static void an_unfinished_line_is_cut_off(void **state)
{
    (void)state;
    static const char *const parts[] = {"{", "{\"kind\": \"tr",
                                        "{\"kind\": \"train\"}"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct tmp t;
        tmp_create(&t);
        const char *path = tmp_path(&t, "m.jsonl");
        struct metrics *m = open_at(path);
        write_fields(m, NULL, 0);
        metrics_close(m);
        struct diag diag = {0};
        int64_t whole, n;
        assert_int_equal(file_size(path, &whole, &diag), ST_OK);
        char text[512];
        int fd;
        assert_int_equal(file_open_read(path, &fd, &diag), ST_OK);
        assert_int_equal(file_read_at(fd, path, 0, text, (size_t)whole, &diag), ST_OK);
        file_close_read(fd);
        memcpy(text + whole, parts[i], strlen(parts[i]));
        tmp_write(&t, "m.jsonl", text, (size_t)whole + strlen(parts[i]));
        m = open_at(path);
        assert_int_equal(metrics_attempt(m), 2);
        write_fields(m, NULL, 0);
        metrics_close(m);
        lines_of(&t, path, &n);
        assert_int_equal(n, 2);
        tmp_remove(&t);
    }
    struct tmp t;
    tmp_create(&t);
    const char *path = tmp_write_text(&t, "m.jsonl", "no line at all");
    struct metrics *m = open_at(path);
    assert_int_equal(metrics_attempt(m), 1);
    metrics_close(m);
    int64_t n;
    lines_of(&t, path, &n);
    assert_int_equal(n, 0);
    tmp_remove(&t);
}

static void places_that_cannot_be_written_are_said(void **state)
{
    (void)state;
    struct tmp t;
    struct diag diag = {0};
    struct metrics *m = NULL;
    tmp_create(&t);
    tmp_write_text(&t, "file", "x");
    assert_int_equal(metrics_open(tmp_path(&t, "file/m.jsonl"), &m, &diag), ST_CREATE);
    print_message("%s\n", diag.text);
    assert_non_null(strstr(diag.text, "file"));
    assert_int_not_equal(metrics_open(t.path, &m, &diag), ST_OK);
    assert_null(m);
    metrics_close(NULL);
    tmp_remove(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(lines_hold_what_is_written),
            cmocka_unit_test(numbers_that_are_not_finite_are_named),
            cmocka_unit_test(attempts_are_counted),
            cmocka_unit_test(an_unfinished_line_is_cut_off),
            cmocka_unit_test(places_that_cannot_be_written_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
