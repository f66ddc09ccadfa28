/* Which layouts there are: rules, their messages and nearest legal values, and what `auto`
 * picks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "parallel/layout.h"

#define ARGS_MAX 8

/* A model of 8 layers with 8 heads, 2 key/value heads; 16 sequences of 64 tokens. */
static const char *const base[] = {
        "model.vocab=512", "model.layers=8",   "model.hidden=64",
        "model.heads=8",   "model.kv_heads=2", "model.ffn=96",
        "data.seq_len=64", "data.train=x",     "train.global_batch=16"};

static void load(struct config *c, const char *const *args)
{
    struct cmd_override set[ARRAY_LEN(base) + ARGS_MAX];
    struct arena a = {0};
    struct diag diag = {0};
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(base) || *args; i++) {
        const char *text = i < ARRAY_LEN(base) ? base[i] : *args++;
        size_t eq = strcspn(text, "=");
        set[n++] = (struct cmd_override){arena_strndup(&a, text, eq), text + eq + 1};
    }
    if (load_config(c, NULL, set, n, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    arena_release(&a);
}

/* ---- what is legal ---- */

static const struct {
    int64_t world;
    const char *args[ARGS_MAX];
    int tp, pp, dp, zero;
    enum schedule_kind schedule;
} good[] = {
        {1, {NULL}, 1, 1, 1, 0, SCHEDULE_1F1B},
        {2, {NULL}, 1, 1, 2, 1, SCHEDULE_1F1B},
        {16, {NULL}, 1, 1, 16, 1, SCHEDULE_1F1B},
        {4, {"train.micro_batch=8", NULL}, 2, 1, 2, 1, SCHEDULE_1F1B},
        {32, {NULL}, 2, 1, 16, 1, SCHEDULE_1F1B},
        {3, {"model.layers=9", NULL}, 1, 3, 1, 0, SCHEDULE_1F1B},
        {7, {NULL}, 1, 7, 1, 0, SCHEDULE_1F1B},
        {6, {"parallel.pp=3", NULL}, 1, 3, 2, 1, SCHEDULE_1F1B},
        {8,
         {"parallel.tp=2", "parallel.dp=4", "parallel.zero=0", NULL},
         2,
         1,
         4,
         0,
         SCHEDULE_1F1B},
        {8, {"parallel.tp=8", NULL}, 8, 1, 1, 0, SCHEDULE_1F1B},
        {4,
         {"parallel.pp=2", "parallel.vpp=4", NULL},
         1,
         2,
         2,
         1,
         SCHEDULE_INTERLEAVED},
        {2,
         {"parallel.pp=2", "parallel.schedule=zb", NULL},
         1,
         2,
         1,
         0,
         SCHEDULE_ZB_H1},
        {2,
         {"parallel.zero=3", "parallel.zero_accumulate=sharded", NULL},
         1,
         1,
         2,
         3,
         SCHEDULE_1F1B},
};

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct config c;
        struct layout l;
        struct arena a = {0};
        struct diag diag = {0};
        load(&c, good[i].args);
        if (layout_resolve(&c, good[i].world, 0, &a, &l, &diag) != ST_OK)
            fail_msg("layout %zu: %s", i, diag.text);
        assert_int_equal(c.parallel.tp, good[i].tp);
        assert_int_equal(c.parallel.pp, good[i].pp);
        assert_int_equal(c.parallel.dp, good[i].dp);
        assert_int_equal(c.parallel.zero, good[i].zero);
        assert_int_equal(l.schedule, good[i].schedule);
        assert_int_equal(l.mesh.world, good[i].world);
        int64_t layers = 0;
        for (int64_t k = 0; k < c.parallel.pp * c.parallel.vpp; k++)
            layers += l.chunk_layers[k];
        assert_int_equal(layers, c.model.layers);
        arena_release(&a);
        config_free(&c);
    }
}

/* ---- what is refused ---- */

static const struct {
    int64_t world;
    const char *args[ARGS_MAX];
    const char *text, *hint;
} bad[] = {
        {1,
         {"parallel.tp=2", NULL},
         "a layout of 2 ranks (parallel)",
         "--threads-ranks 2"},
        {4, {"parallel.tp=2", "parallel.dp=1", NULL}, "= 2, wanted 4 ranks", "nearest"},
        {3, {"parallel.tp=2", NULL}, "wanted a divisor of 3", "nearest for 3 ranks"},
        {3, {"parallel.tp=3", NULL}, "attention cannot be split", "parallel.tp=2 or 4"},
        {16, {"parallel.tp=16", NULL}, "attention cannot be split", "parallel.tp=8"},
        {8,
         {"parallel.tp=8", "model.ffn=100", NULL},
         "parallel.tp (command line) and model.ffn (command line): got 8 and 100",
         "parallel.tp=4"},
        {2,
         {"parallel.tp=2", "model.qk_norm=full", NULL},
         "got 2 and full",
         "parallel.tp=1"},
        {4,
         {"parallel.tp=4", "data.seq_len=6", "train.micro_batch=1", NULL},
         "wanted tp to divide the tokens of a micro-batch",
         "parallel.tp=2"},
        {3,
         {"parallel.dp=3", NULL},
         "wanted dp to divide global_batch",
         "parallel.dp=2 or 4"},
        {32, {"parallel.dp=32", NULL}, "got 32 and 16", "parallel.dp=16"},
        {8,
         {"parallel.dp=8", "train.micro_batch=4", NULL},
         "got 8, 4 and 16, wanted dp x micro_batch to divide global_batch",
         "parallel.dp=4"},
        {4,
         {"parallel.dp=4",
          "train.global_batch=[{until_tokens: 640, global_batch: 6}, {global_batch: 8}]",
          NULL},
         "got 4 and 6",
         "parallel.dp=2"},
        {16,
         {"parallel.pp=16", NULL},
         "wanted at least one layer for each",
         "parallel.pp=8"},
        {4,
         {"parallel.pp=4", "parallel.vpp=3", NULL},
         "got 4, 3 and 8",
         "parallel.vpp=2"},
        {2,
         {"parallel.vpp=2", "parallel.dp=2", NULL},
         "wanted virtual stages of a pipeline",
         "parallel.vpp=1"},
        {2,
         {"parallel.pp=2", "parallel.schedule=interleaved", NULL},
         "wanted vpp of at least 2",
         "parallel.vpp=2"},
        {2,
         {"parallel.pp=2", "parallel.vpp=2", "parallel.schedule=zb", NULL},
         "got zb and 2",
         "parallel.schedule=interleaved"},
        {2,
         {"parallel.pp=2", "parallel.layers_per_stage=5,4", NULL},
         "parallel.layers_per_stage (command line)",
         "balanced"},
        {2,
         {"parallel.pp=2", "parallel.layers_per_stage=8", NULL},
         "got 1 number",
         "balanced"},
        {2,
         {"parallel.pp=2", "parallel.layers_per_stage=a,b", NULL},
         "not a list of layers",
         "balanced"},
        {2,
         {"parallel.zero=1", "parallel.zero_accumulate=sharded", NULL},
         "got sharded and 1",
         "parallel.zero=2"},
        {2, {"parallel.dp=2", "parallel.order=tp,dp", NULL}, "parallel.order", ""},
        {11, {NULL}, "no layout for 11 ranks: parallel.dp", "parallel.dp=8"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config c;
        struct layout l;
        struct arena a = {0};
        struct diag diag = {0};
        load(&c, bad[i].args);
        enum status st = layout_resolve(&c, bad[i].world, 0, &a, &l, &diag);
        if (st != ST_CONFIG || !strstr(diag.text, bad[i].text) ||
            !strstr(diag.hint, bad[i].hint))
            fail_msg("layout %zu: status %d, '%s', '%s'; wanted '%s', '%s'", i, (int)st,
                     diag.text, diag.hint, bad[i].text, bad[i].hint);
        arena_release(&a);
        config_free(&c);
    }
    print_message("%zu layouts refused\n", ARRAY_LEN(bad));
}

/* A refused degree's nearest values are legal, and so is every choice of `auto`. */
static void test_choices(void **state)
{
    static const char *const none[] = {NULL};
    (void)state;
    int n = 0;
    for (int64_t world = 2; world <= 24; world++) {
        for (int choice = 0;; choice++, n++) {
            struct config c;
            struct layout l, again;
            struct arena a = {0};
            struct diag diag = {0};
            load(&c, none);
            enum status st = layout_resolve(&c, world, choice, &a, &l, &diag);
            if (st == ST_OK) {
                assert_int_equal(c.parallel.tp * c.parallel.pp * c.parallel.dp, world);
                assert_int_equal(layout_resolve(&c, world, 0, &a, &again, &diag),
                                 ST_OK);
                assert_memory_equal(&l.mesh, &again.mesh, sizeof(l.mesh));
            }
            arena_release(&a);
            config_free(&c);
            if (st != ST_OK) {
                assert_true(st == ST_NOT_FOUND || choice == 0);
                break;
            }
        }
    }
    print_message("%d choices\n", n);
    assert_true(n > 50);
}

/* Every rank's place, and each place once. */
static void test_places(void **state)
{
    static const char *const args[] = {"parallel.tp=2", "parallel.pp=3",
                                       "parallel.order=pp,dp,cp,tp", NULL};
    (void)state;
    struct config c;
    struct layout l;
    struct arena a = {0};
    struct diag diag = {0};
    bool seen[2][3][4] = {{{false}}};
    load(&c, args);
    assert_int_equal(layout_resolve(&c, 24, 0, &a, &l, &diag), ST_OK);
    for (int rank = 0; rank < 24; rank++) {
        struct lower_layout p;
        layout_of_rank(&l, &c, rank, &p);
        assert_int_equal(p.degree[MESH_DP], 4);
        bool *at = &seen[p.coord[MESH_TP]][p.coord[MESH_PP]][p.coord[MESH_DP]];
        assert_false(*at);
        *at = true;
        assert_int_equal(p.coord[MESH_PP], rank % 3);
    }
    arena_release(&a);
    config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_good),
            cmocka_unit_test(test_bad),
            cmocka_unit_test(test_choices),
            cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
