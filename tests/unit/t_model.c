/* The parameter table: published counts of every preset, and what each row promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "cmd/load_config.h"
#include "core/model.h"

/* Loads a preset, with settings on top, and makes its table. */
static void load(struct config *c, struct model *m, const char *preset,
                 const struct cmd_override *more, int n_more)
{
    struct diag diag = {0};
    struct cmd_override all[16] = {{"model", preset}, {"data.train", "text"}};
    assert_true(n_more <= 14);
    for (int i = 0; i < n_more; i++)
        all[2 + i] = more[i];
    enum status st = load_config_raw(c, NULL, all, 2 + n_more, &diag);
    if (st == ST_OK)
        st = config_resolve_model(c, &diag);
    if (st != ST_OK)
        fail_msg("%s: %s", preset, diag.text);
    model_create(&c->model, m);
}

static void unload(struct config *c, struct model *m)
{
    model_free(m);
    config_free(c);
}

static int64_t n_params_of(const struct model *m)
{
    struct diag diag = {0};
    int64_t n = 0;
    assert_int_equal(model_count_params(m, &n, &diag), ST_OK);
    return n;
}

/* source: the counts that the authors' released weights have, norms and position tables
 * included, attention masks and rotation tables not. */
static const struct {
    const char *file;
    int64_t n_params;
    int64_t max_positions;
} presets[] = {
        {"configs/models/gpt2-124m.yaml", 124439808, 1024},
        {"configs/models/gpt2-355m.yaml", 354823168, 1024},
        {"configs/models/gpt2-774m.yaml", 774030080, 1024},
        {"configs/models/gpt2-1.5b.yaml", 1557611200, 1024},
        {"configs/models/llama2-7b.yaml", 6738415616, 0},
        {"configs/models/llama2-13b.yaml", 13015864320, 0},
        {"configs/models/llama2-70b.yaml", 68976648192, 0},
        {"configs/models/llama3-8b.yaml", 8030261248, 0},
        {"configs/models/llama3-70b.yaml", 70553706496, 0},
        {"configs/models/llama3-405b.yaml", 405853388800, 0},
        {"configs/models/qwen3-0.6b.yaml", 596049920, 0},
        {"configs/models/qwen3-8b.yaml", 8190735360, 0},
        {"configs/models/llama-tiny.yaml", 3213568, 0},
        {"configs/models/llama-60m.yaml", 63717120, 0},
};

static void presets_have_published_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(presets); i++) {
        struct config c;
        struct model m;
        load(&c, &m, presets[i].file, NULL, 0);
        print_message("%-34s %lld\n", presets[i].file, (long long)n_params_of(&m));
        assert_true(n_params_of(&m) == presets[i].n_params);
        if (presets[i].max_positions)
            assert_int_equal(c.model.max_positions, presets[i].max_positions);
        unload(&c, &m);
    }
}

/* Names are unique, roles and layers identify rows, shapes agree with the kind, and rows
 * with one fuse number follow each other and have one width. */
static void check_rows(const struct model *m)
{
    for (uint32_t i = 0; i < m->n_params; i++) {
        const struct param *p = &m->params[i];
        assert_ptr_equal(model_param(m, p->role, p->layer), p);
        assert_true(p->ndim == 1 || p->ndim == 2);
        assert_true(p->dim[0] > 0 && p->dim[1] > 0);
        assert_int_equal(p->ndim == 1, p->kind == PARAM_NORM || p->kind == PARAM_BIAS);
        assert_true(p->ndim == 2 || p->dim[1] == 1);
        assert_true(p->parallel_axis < p->ndim);
        assert_true(p->layer >= -1 && p->layer < m->config.layers);
        assert_int_equal(strncmp(p->name, "layers.", 7) == 0, p->layer >= 0);
        for (uint32_t k = 0; k < i; k++)
            assert_string_not_equal(p->name, m->params[k].name);
        if (i == 0)
            continue;
        const struct param *before = &m->params[i - 1];
        assert_true(p->fuse == before->fuse || p->fuse == before->fuse + 1);
        if (p->fuse == before->fuse) {
            assert_int_equal(p->layer, before->layer);
            assert_int_equal(p->dim[1], before->dim[1]);
            assert_int_equal(p->kind, before->kind);
        }
    }
}

#define TINY "configs/models/llama-tiny.yaml"

static void rows_are_in_order(void **state)
{
    (void)state;
    static const struct cmd_override variants[][4] = {
            {{"model.bias", "all"}, {"model.qk_norm", "head"}, {"model.tied", "true"}},
            {{"model.norm", "layernorm"},
             {"model.norm_order", "sandwich"},
             {"model.position", "learned"},
             {"model.max_positions", "512"}},
            {{"model.act", "gelu"},
             {"model.bias", "qkv"},
             {"model.norm_order", "post"}},
            {{"model.qk_norm", "full"}, {"model.norm_order", "residual"}},
    };
    struct config c;
    struct model m;
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        int n = 0;
        while (n < 4 && variants[i][n].key)
            n++;
        load(&c, &m, TINY, variants[i], n);
        check_rows(&m);
        unload(&c, &m);
    }
    load(&c, &m, "configs/models/gpt2-124m.yaml", NULL, 0);
    check_rows(&m);
    assert_int_equal(m.n_params, 2 + 12 * 16 + 2);
    unload(&c, &m);
}

static void fused_rows_are_one_product(void **state)
{
    (void)state;
    struct config c;
    struct model m;
    load(&c, &m, TINY, NULL, 0);
    assert_int_equal(m.n_params, 1 + 4 * 9 + 2);
    for (int32_t l = 0; l < 4; l++) {
        const struct param *q = model_param(&m, ROLE_Q, l);
        assert_int_equal(q->fuse, model_param(&m, ROLE_K, l)->fuse);
        assert_int_equal(q->fuse, model_param(&m, ROLE_V, l)->fuse);
        assert_int_not_equal(q->fuse, model_param(&m, ROLE_O, l)->fuse);
        uint32_t gate = model_param(&m, ROLE_GATE, l)->fuse;
        assert_int_equal(gate, model_param(&m, ROLE_UP, l)->fuse);
        assert_int_not_equal(gate, model_param(&m, ROLE_DOWN, l)->fuse);
        if (l > 0)
            assert_int_not_equal(q->fuse, model_param(&m, ROLE_Q, l - 1)->fuse);
    }
    assert_null(model_param(&m, ROLE_Q, 4));
    assert_null(model_param(&m, ROLE_Q_BIAS, 0));
    assert_null(model_param(&m, ROLE_POS_EMBED, -1));
    assert_int_equal(model_param(&m, ROLE_K, 0)->dim[0], 128);
    assert_string_equal(model_param(&m, ROLE_K, 3)->name, "layers.3.attn.k.weight");
    unload(&c, &m);
}

static void decay_follows_the_kind(void **state)
{
    (void)state;
    struct config c;
    struct model m;
    static const struct cmd_override bias[] = {{"model.bias", "all"}};
    load(&c, &m, TINY, bias, 1);
    struct config_optimizer plain = {0};
    struct config_optimizer all = {
            .decay_norms = true, .decay_biases = true, .decay_embeddings = true};
    for (uint32_t i = 0; i < m.n_params; i++) {
        const struct param *p = &m.params[i];
        assert_int_equal(param_decays(p, &plain), p->kind == PARAM_MATRIX);
        assert_true(param_decays(p, &all));
    }
    assert_true(param_decays(model_param(&m, ROLE_HEAD, -1), &plain));
    assert_false(param_decays(model_param(&m, ROLE_EMBED, -1), &plain));
    unload(&c, &m);
}

/* Any cut of a parameter gives the values of the whole: ranks initialise their shards. */
static void initial_values_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    enum {
        N = 1000
    };
    struct config c;
    struct model m;
    load(&c, &m, TINY, NULL, 0);
    static float whole[N], part[N];
    for (uint32_t i = 0; i < m.n_params; i++) {
        const struct param *p = &m.params[i];
        int64_t n = MIN(param_elems(p), N);
        param_init_values(p, 1234, 0, n, whole);
        for (int64_t width = 1; width < 300; width = width * 3 + 1) {
            memset(part, 0xff, sizeof(part));
            for (int64_t at = 0; at < n; at += width)
                param_init_values(p, 1234, at, MIN(width, n - at), part + at);
            assert_memory_equal(whole, part, (size_t)n * sizeof(*whole));
        }
    }
    unload(&c, &m);
}

static double deviation(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum / (double)n);
}

static void initial_values_have_their_scale(void **state)
{
    (void)state;
    enum {
        N = 65536
    };
    struct config c;
    struct model m;
    load(&c, &m, TINY, NULL, 0);
    float *x = mem_alloc(N * sizeof(*x)), *y = mem_alloc(N * sizeof(*y));
    param_init_values(model_param(&m, ROLE_Q, 0), 1, 0, N, x);
    assert_true(fabs(deviation(x, N) / 0.02 - 1) < 0.02);
    /* projections into the residual stream: divided by sqrt(2 * 4 layers) */
    param_init_values(model_param(&m, ROLE_O, 0), 1, 0, N, y);
    assert_true(fabs(deviation(y, N) / (0.02 / sqrt(8)) - 1) < 0.02);
    param_init_values(model_param(&m, ROLE_FINAL_NORM, -1), 1, 0, 256, y);
    for (int i = 0; i < 256; i++)
        assert_true(y[i] == 1.0f);
    /* another layer, another seed: other values */
    param_init_values(model_param(&m, ROLE_Q, 1), 1, 0, N, y);
    assert_memory_not_equal(x, y, 64);
    param_init_values(model_param(&m, ROLE_Q, 0), 2, 0, N, y);
    assert_memory_not_equal(x, y, 64);
    mem_free(x);
    mem_free(y);
    unload(&c, &m);
}

static void overflow_is_refused(void **state)
{
    (void)state;
    struct config_model huge = {.vocab = 2147483647,
                                .layers = 100000,
                                .hidden = 16777216,
                                .heads = 65536,
                                .kv_heads = 65536,
                                .head_dim = 65536,
                                .ffn = 16777216,
                                .init_std = 0.02};
    struct model m;
    struct diag diag = {0};
    int64_t n = -1;
    model_create(&huge, &m);
    assert_int_equal(model_count_params(&m, &n, &diag), ST_CONFIG);
    assert_int_equal(n, -1);
    print_message("%s\n", diag.text);
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(presets_have_published_counts),
            cmocka_unit_test(rows_are_in_order),
            cmocka_unit_test(fused_rows_are_one_product),
            cmocka_unit_test(decay_follows_the_kind),
            cmocka_unit_test(initial_values_do_not_depend_on_the_cut),
            cmocka_unit_test(initial_values_have_their_scale),
            cmocka_unit_test(overflow_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
