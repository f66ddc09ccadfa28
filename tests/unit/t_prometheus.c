/* The Prometheus text format, read back by its rules. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/file.h"
#include "io/prometheus.h"
#include "tests/lib/tmp.h"

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

/* The value of the sample line that begins with `begin`; fails where there is not just
 * one. */
static double sample(const char *text, const char *begin)
{
    const char *found = NULL;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (strncmp(line, begin, strlen(begin)) != 0 || line[strlen(begin)] != ' ')
            continue;
        assert_null(found);
        found = line;
    }
    if (!found)
        fail_msg("no sample %s in:\n%s", begin, text);
    return strtod(found + strlen(begin), NULL);
}

/* Every sample stands below the TYPE line of its metric, every line ends, every value
 * reads as a number. Returns the number of samples. */
static int check_lines(const char *text)
{
    char metric[128] = "";
    int n = 0;
    for (const char *line = text; *line;) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        if (strncmp(line, "# TYPE ", 7) == 0) {
            size_t k = strspn(line + 7, NAME_CHARS);
            assert_true(k > 0 && k < sizeof(metric));
            memcpy(metric, line + 7, k);
            metric[k] = 0;
        } else if (line[0] != '#') {
            assert_int_equal(strncmp(line, metric, strlen(metric)), 0);
            char *stop;
            const char *value = end;
            while (value[-1] != ' ')
                value--;
            strtod(value, &stop);
            assert_ptr_equal(stop, end);
            n++;
        } else {
            assert_int_equal(strncmp(line, "# HELP ", 7), 0);
        }
        line = end + 1;
    }
    return n;
}

static void samples(void **state)
{
    (void)state;
    struct str t = {0};
    prometheus_metric(&t, "angel_x_bytes", PROMETHEUS_GAUGE, "Back\\slash\nline.");
    prometheus_sample(&t, "angel_x_bytes", "kind", "a\"b\\c\nd", 1.5);
    prometheus_sample(&t, "angel_x_bytes", NULL, NULL, NAN);
    prometheus_metric(&t, "angel_n_total", PROMETHEUS_COUNTER, "Count.");
    prometheus_sample(&t, "angel_n_total", NULL, NULL, 9007199254740991.0);
    assert_string_equal(t.s, "# HELP angel_x_bytes Back\\\\slash\\nline.\n"
                             "# TYPE angel_x_bytes gauge\n"
                             "angel_x_bytes{kind=\"a\\\"b\\\\c\\nd\"} 1.5\n"
                             "angel_x_bytes NaN\n"
                             "# HELP angel_n_total Count.\n"
                             "# TYPE angel_n_total counter\n"
                             "angel_n_total 9007199254740991\n");
    assert_int_equal(check_lines(t.s), 3);
    str_free(&t);
}

static void histogram(void **state)
{
    (void)state;
    static const double bounds[] = {0.5, 1, 2};
    struct prometheus_histogram h = {.bounds = bounds, .n_bounds = 3};
    static const double seen[] = {0.1, 0.5, 0.7, 1.5, 3, 4};
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        prometheus_observe(&h, seen[i]);
    struct str t = {0};
    prometheus_add_histogram(&t, "angel_step_seconds", "Steps.", &h);
    assert_int_equal(check_lines(t.s), 6);
    assert_true(sample(t.s, "angel_step_seconds_bucket{le=\"0.5\"}") == 2);
    assert_true(sample(t.s, "angel_step_seconds_bucket{le=\"1\"}") == 3);
    assert_true(sample(t.s, "angel_step_seconds_bucket{le=\"2\"}") == 4);
    assert_true(sample(t.s, "angel_step_seconds_bucket{le=\"+Inf\"}") == 6);
    assert_true(sample(t.s, "angel_step_seconds_count") == 6);
    assert_true(fabs(sample(t.s, "angel_step_seconds_sum") - 9.8) < 1e-12);
    str_free(&t);
}

static void replaces(void **state)
{
    struct tmp *tmp = *state;
    struct diag diag = {0};
    struct str t = {0}, back = {0};
    const char *path = tmp_write_text(tmp, "a.prom", "old text that is longer\n");
    str_add(&t, "angel_step 1\n");
    assert_int_equal(prometheus_write(path, &t, &diag), ST_OK);
    assert_int_equal(file_read_all(path, 1000, &back, &diag), ST_OK);
    assert_string_equal(back.s, t.s);
    assert_false(file_exists(tmp_path(tmp, "a.prom.tmp")));
    assert_int_equal(prometheus_write(tmp_path(tmp, "no/a.prom"), &t, &diag),
                     ST_CREATE);
    assert_non_null(strstr(diag.text, "no/a.prom"));
    str_free(&t);
    str_free(&back);
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
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(samples),
            cmocka_unit_test(histogram),
            cmocka_unit_test(replaces),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
