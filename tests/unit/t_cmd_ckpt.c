/* The answers of `angel ckpt`: inspect, verify, diff and prune. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/cmd_ckpt.h"
#include "core/log.h"
#include "core/rng.h"
#include "io/json.h"
#include "tests/lib/tmp.h"

#define N 1000

struct fixture {
    struct tmp tmp;
    struct shard_crew *crew;
    struct str out;
    struct diag diag;
    float w[N];
    float m[N];
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->crew = shard_crew_create(NULL);
    rng_normal(1, 1, 0, N, f->w);
    rng_normal(1, 2, 0, N, f->m);
    log_set_level(LOG_ERROR);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    shard_crew_destroy(f->crew);
    str_free(&f->out);
    tmp_remove(&f->tmp);
    mem_free(f);
    log_set_level(LOG_INFO);
    return 0;
}

static const char *save(struct fixture *f, const char *dir, int64_t step, int n_tensors)
{
    struct ckpt_tensor t[] = {
            {"embed", CKPT_WEIGHT, DT_F32, 2, {10, N / 10}, 0, f->w},
            {"embed", CKPT_EXP_AVG, DT_F32, 2, {10, N / 10}, 0, f->m},
            {"counts", CKPT_OTHER, DT_I32, 1, {N}, -1, f->m},
    };
    struct ckpt_saved saved;
    char name[64];
    struct ckpt_save s = {.dir = tmp_path(&f->tmp, dir),
                          .step = step,
                          .tensors = t,
                          .n_tensors = n_tensors,
                          .tool = "angel test",
                          .state_json = "{\"step\": 7, \"note\": \"hello\", "
                                        "\"data\": {\"seen\": [1, 2.5]}}"};
    assert_int_equal(ckpt_write(&s, &saved, &f->diag), ST_OK);
    snprintf(name, sizeof(name), "%s/step-%012lld", dir, (long long)step);
    return tmp_path(&f->tmp, name);
}

static enum status ask(struct fixture *f, struct ckpt_request r, const char *a,
                       const char *b)
{
    const char *paths[] = {a, b};
    r.paths = paths;
    r.n_paths = b ? 2 : 1;
    r.crew = f->crew;
    str_clear(&f->out);
    memset(&f->diag, 0, sizeof(f->diag));
    return ckpt_answer(&r, &f->out, &f->diag);
}

static void has(struct fixture *f, const char *words)
{
    if (!strstr(str_get(&f->out), words))
        fail_msg("lacks '%s':\n%s", words, str_get(&f->out));
}

static struct json *parsed(struct fixture *f)
{
    struct json *j;
    enum status st = json_parse(&f->tmp.arena, str_get(&f->out), f->out.n, "out",
                                JSON_STRICT, &j, &f->diag);
    if (st != ST_OK)
        fail_msg("%s\n%s", f->diag.text, str_get(&f->out));
    return j;
}

static void flip(const char *step, const char *name, long at)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", step, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    int c = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(c ^ 4, file);
    fclose(file);
}

static void test_inspect(void **state)
{
    struct fixture *f = *state;
    save(f, "a", 3, 3);
    const char *path = save(f, "a", 7, 3);
    const char *dir = tmp_path(&f->tmp, "a");
    assert_int_equal(ask(f, (struct ckpt_request){.verb = "inspect"}, dir, NULL),
                     ST_OK);
    print_message("%s", str_get(&f->out));
    has(f, "step        7\n");
    has(f, "exp_avg");
    has(f, "note                 hello\n");
    assert_null(strstr(str_get(&f->out), "embed"));
    struct ckpt_request r = {.verb = "inspect", .tensors = true};
    assert_int_equal(ask(f, r, path, NULL), ST_OK);
    has(f, "embed [10,100]\n");
    r.json = true;
    assert_int_equal(ask(f, r, path, NULL), ST_OK);
    const struct json *j = parsed(f);
    assert_int_equal(json_find(j, "step")->i64, 7);
    assert_int_equal(json_find(j, "tensors")->n_items, 3);
    const struct json *seen =
            json_find(json_find(json_find(j, "state"), "data"), "seen");
    assert_true(seen->items[1].f64 == 2.5);
}

static void test_verify(void **state)
{
    struct fixture *f = *state;
    const char *path = save(f, "a", 7, 3);
    for (int deep = 0; deep < 2; deep++) {
        struct ckpt_request r = {.verb = "verify", .deep = deep};
        assert_int_equal(ask(f, r, path, NULL), ST_OK);
        has(f, "agree with their hashes");
    }
    flip(path, "optim-00000-of-00001.azs", 500);
    for (int json = 0; json < 2; json++) {
        struct ckpt_request r = {.verb = "verify", .json = json};
        assert_int_equal(ask(f, r, path, NULL), ST_DATA);
        has(f, "tensor 'embed' (exp_avg) [0:10,0:100]");
        has(f, "optim-00000-of-00001.azs at byte 64");
        if (json)
            assert_int_equal(json_find(parsed(f), "damage")->n_items, 1);
    }
    flip(path, "manifest.json", 99);
    assert_int_equal(ask(f, (struct ckpt_request){.verb = "verify"}, path, NULL),
                     ST_DATA);
    assert_non_null(strstr(f->diag.text, "manifest.json"));
    assert_int_equal(ask(f, (struct ckpt_request){.verb = "verify"},
                         tmp_path(&f->tmp, "none"), NULL),
                     ST_NOT_FOUND);
}

static void test_diff(void **state)
{
    struct fixture *f = *state;
    const char *a = save(f, "a", 1, 3);
    const char *same = save(f, "b", 2, 3);
    struct ckpt_request r = {.verb = "diff"};
    assert_int_equal(ask(f, r, a, same), ST_OK);
    has(f, "3 of 3 tensors equal");

    f->w[500] += 0.25f;
    const char *near = save(f, "b", 3, 3);
    assert_int_equal(ask(f, r, a, near), ST_CHECK);
    has(f, "0.25 ");
    has(f, "1/1000");
    print_message("%s%s\n", str_get(&f->out), f->diag.text);
    r.tolerance = 0.24;
    assert_int_equal(ask(f, r, a, near), ST_CHECK);
    r.tolerance = 0.26;
    assert_int_equal(ask(f, r, a, near), ST_OK);
    has(f, "within tolerance");
    r.json = true;
    assert_int_equal(ask(f, r, a, near), ST_OK);
    const struct json *row = &json_find(parsed(f), "tensors")->items[0];
    assert_true(fabs(json_find(row, "max_abs")->f64 - 0.25) < 1e-6);
    r.json = false;

    /* A NaN fails whatever the tolerance, also against itself, also among others. */
    r.tolerance = 1e30;
    f->w[3] = NAN;
    const char *nan = save(f, "b", 4, 3);
    assert_int_equal(ask(f, r, a, nan), ST_CHECK);
    assert_int_equal(ask(f, r, nan, nan), ST_CHECK);
    f->w[3] = INFINITY;
    const char *inf = save(f, "b", 5, 3);
    assert_int_equal(ask(f, r, inf, inf), ST_OK);
    assert_int_equal(ask(f, r, inf, a), ST_CHECK);

    const char *fewer = save(f, "b", 6, 2);
    assert_int_equal(ask(f, r, inf, fewer), ST_CHECK);
    has(f, "counts (other): only in the first");
    assert_int_equal(ask(f, r, fewer, inf), ST_CHECK);
    has(f, "counts (other): only in the second");
}

static void test_prune_and_usage(void **state)
{
    struct fixture *f = *state;
    for (int64_t step = 1; step <= 4; step++)
        save(f, "a", step, 3);
    const char *dir = tmp_path(&f->tmp, "a");
    assert_int_equal(ask(f, (struct ckpt_request){.verb = "prune"}, dir, NULL),
                     ST_CONFIG);
    struct ckpt_request r = {.verb = "prune", .keep = 1};
    assert_int_equal(ask(f, r, dir, NULL), ST_OK);
    has(f, "3 checkpoints removed");
    assert_int_equal(ask(f, r, f->tmp.path, NULL), ST_NOT_FOUND);
    r.verb = "inspcet";
    assert_int_equal(ask(f, r, dir, NULL), ST_CONFIG);
    assert_non_null(strstr(f->diag.hint, "inspect"));
    r.verb = "inspect";
    assert_int_equal(ask(f, r, dir, dir), ST_CONFIG);
    r.verb = "convert";
    assert_int_equal(ask(f, r, dir, NULL), ST_UNAVAILABLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(test_inspect, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_verify, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_diff, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_prune_and_usage, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
