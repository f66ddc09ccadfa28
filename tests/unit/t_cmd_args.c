#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/cmd.h"

struct fixture {
    struct cmd_args args;
    struct diag diag;
};

#define PARSE(f, ...)                                                                  \
    parse((f), (const char *[]){__VA_ARGS__},                                          \
          (int)ARRAY_LEN(((const char *[]){__VA_ARGS__})))

static enum status parse(struct fixture *f, const char **argv, int argc)
{
    char *copy[16];
    for (int i = 0; i < argc; i++)
        copy[i] = (char *)(uintptr_t)argv[i];
    cmd_args_free(&f->args);
    return cmd_args_parse(argc, copy, &f->args, &f->diag);
}

static int setup(void **state)
{
    *state = mem_alloc(sizeof(struct fixture));
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    cmd_args_free(&f->args);
    mem_free(f);
    return 0;
}

static void test_options(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(PARSE(f, "pretrain", "run.yaml", "--dry-run", "train.steps=5",
                           "--set", "data.train=[a,b=c]", "--set=log.every=1", "-v",
                           "--json", "--", "--odd"),
                     ST_OK);
    assert_string_equal(f->args.command->name, "pretrain");
    assert_true(f->args.dry_run && f->args.verbose && f->args.json && !f->args.quiet);
    assert_int_equal(f->args.n_positional, 2);
    assert_string_equal(f->args.positional[0], "run.yaml");
    assert_string_equal(f->args.positional[1], "--odd");
    assert_int_equal(f->args.n_overrides, 3);
    assert_string_equal(f->args.overrides[1].key, "data.train");
    assert_string_equal(f->args.overrides[1].value, "[a,b=c]");
    assert_string_equal(f->args.overrides[2].value, "1");
    /* A path is a path to commands that take no configuration. */
    assert_int_equal(PARSE(f, "ckpt", "verify", "runs/a=b"), ST_OK);
    assert_int_equal(f->args.n_positional, 2);
    assert_int_equal(PARSE(f, "--version"), ST_OK);
    assert_true(f->args.version && !f->args.command);
    assert_int_equal(PARSE(f, "help", "--man-options"), ST_OK);
    assert_true(f->args.man_options);
}

static void test_errors(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(PARSE(f, "pretrian"), ST_CONFIG);
    assert_string_equal(f->diag.hint, "did you mean angel pretrain?");
    assert_int_equal(PARSE(f, "run.yaml"), ST_CONFIG);
    assert_string_equal(f->diag.hint, "did you mean angel pretrain run.yaml?");
    assert_int_equal(PARSE(f, "pretrain", "--dry-rum"), ST_CONFIG);
    assert_string_equal(f->diag.hint, "did you mean --dry-run?");
    assert_int_equal(PARSE(f, "ckpt", "--dry-run"), ST_CONFIG);
    assert_int_equal(PARSE(f, "pretrain", "--json=1"), ST_CONFIG);
    assert_int_equal(PARSE(f, "pretrain", "--set"), ST_CONFIG);
    assert_int_equal(PARSE(f, "pretrain", "--set", "novalue"), ST_CONFIG);
    assert_int_equal(PARSE(f, "pretrain", "--set", "=5"), ST_CONFIG);
    assert_int_equal(PARSE(f, "plan", "x.yaml"), ST_UNAVAILABLE);
    assert_int_equal(PARSE(f, "finetune"), ST_UNAVAILABLE);
    assert_int_equal(PARSE(f, "bench", "all"), ST_UNAVAILABLE);
    assert_int_equal(PARSE(f, "pretrain", "--profile", "3"), ST_UNAVAILABLE);
}

/* Help shows what works, and nothing else. */
static void test_help(void **state)
{
    (void)state;
    int n;
    const struct cmd *table = cmd_table(&n);
    struct str out = {0};
    cmd_print_short_help(&out);
    for (int i = 0; i < n; i++) {
        struct str line = {0};
        str_printf(&line, "\n  %s ", table[i].name);
        assert_true(!strstr(out.s, line.s) == !!table[i].later);
        str_free(&line);
        assert_true(table[i].later ||
                    (table[i].run && table[i].usage && table[i].about));
    }
    str_clear(&out);
    cmd_print_command_help(&table[0], &out);
    assert_non_null(strstr(out.s, "--set KEY=VALUE"));
    assert_non_null(strstr(out.s, "train.optimizer.lr"));
    assert_null(strstr(out.s, "--profile"));
    assert_non_null(strstr(out.s, "parallel.tp"));
    assert_null(strstr(out.s, "parallel.cp"));
    str_free(&out);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_options), TEST(test_errors),
                                       TEST(test_help)};
    return cmocka_run_group_tests_name("cmd_args", tests, NULL, NULL);
}
