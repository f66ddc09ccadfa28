#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "tests/lib/tmp.h"

/* The smallest run there is; tests add lines to it. */
#define MODEL "model: {vocab: 512, layers: 2, hidden: 64, heads: 4, ffn: 128}\n"
#define RUN   MODEL "data: {train: text/}\n"

struct fixture {
    struct config c;
    struct diag diag;
    struct tmp tmp;
};

static int setup(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    config_free(&f->c);
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

static enum status load_text(struct fixture *f, const char *text)
{
    config_free(&f->c);
    return load_config_text(&f->c, text, strlen(text), "run.yaml", &f->diag);
}

static void load_ok(struct fixture *f, const char *text)
{
    if (load_text(f, text) != ST_OK)
        fail_msg("%s", f->diag.text);
}

static void assert_fails(struct fixture *f, const char *text, enum status want,
                         const char *says, const char *hints)
{
    enum status st = load_text(f, text);
    if (st != want || !strstr(f->diag.text, says) || !strstr(f->diag.hint, hints))
        fail_msg("%s: %s '%s' / '%s', wanted '%s' / '%s'", text, status_name(st),
                 f->diag.text, f->diag.hint, says, hints);
}

/* Loads a file with up to four key=value; NULL ends them. */
static enum status load_args(struct fixture *f, const char *file,
                             const char *const (*set)[2], int n)
{
    struct cmd_override overrides[8];
    for (int i = 0; i < n; i++)
        overrides[i] = (struct cmd_override){set[i][0], set[i][1]};
    config_free(&f->c);
    return load_config(&f->c, file, overrides, n, &f->diag);
}

static void test_table(void **state)
{
    struct fixture *f = *state;
    if (opt_table_check(config_table(), &f->diag) != ST_OK)
        fail_msg("%s", f->diag.text);
    print_message("%u options\n", config_table()->n_rows);
}

static void test_derived(void **state)
{
    struct fixture *f = *state;
    load_ok(f, RUN);
    const struct config *c = &f->c;
    assert_int_equal(c->model.kv_heads, 4);
    assert_int_equal(c->model.head_dim, 16);
    assert_true(c->model.attn_scale == 0.25);
    assert_int_equal(c->model.max_positions, c->data.seq_len);
    assert_int_equal(c->train.steps, 1000);
    assert_int_equal(c->train.schedule.warmup, 100);
    assert_true(c->train.schedule.min_lr == c->train.optimizer.lr / 10);
    assert_int_equal(c->train.global_batch.n, 1);
    assert_int_equal(c->train.global_batch.items[0].global_batch, 16);
    assert_int_equal(c->parallel.dp, 0); /* open: the ranks are not known here */
    assert_int_equal(c->parallel.zero, -1);
    assert_string_equal(c->checkpoint.dir, "runs/run");
    assert_string_equal(c->log.jsonl, "runs/run/metrics.jsonl");
    assert_string_equal(c->data.train.items[0].path, "text/");
    load_ok(f, RUN "train: {steps: 30}\n");
    assert_int_equal(f->c.train.schedule.warmup, 3);
    load_ok(f, RUN "train: {schedule: {warmup: 0, min_lr: 0}}\n");
    assert_int_equal(f->c.train.schedule.warmup, 0);
    assert_true(f->c.train.schedule.min_lr == 0);
    load_ok(f, RUN "model.rope_scaling: {type: yarn, factor: 4}\n");
    assert_true(fabs(f->c.model.rope_scaling.attention_factor - 1.13862943611) < 1e-9);
}

static void test_contract_example(void **state)
{
    struct fixture *f = *state;
    load_ok(f, "model: configs/models/llama-60m.yaml\n"
               "data:\n"
               "  train: [corpus/, {path: more.jsonl, weight: 0.3}]\n"
               "  valid: valid.txt\n"
               "  tokenizer: bytes\n"
               "  seq_len: 1024\n"
               "train:\n"
               "  tokens: 2B\n"
               "  global_batch: [{until_tokens: 1B, global_batch: 16}, 64]\n"
               "  micro_batch: 4\n"
               "  precision: bf16\n"
               "  optimizer: {type: adamw, lr: 3e-4, betas: [0.9, 0.95], eps: 1e-8}\n"
               "  schedule: {type: cosine, warmup: 100, min_lr: 3e-5}\n"
               "parallel: auto\n"
               "memory: {activations: selective, device: 40GiB}\n"
               "device: auto\n"
               "checkpoint: {dir: runs/demo, every: 200, keep: 3, resume: auto}\n"
               "log: {every: 10}\n");
    const struct config *c = &f->c;
    assert_int_equal(c->model.layers, 10);
    assert_true(c->data.train.n == 2 && c->data.train.items[1].weight == 0.3);
    assert_int_equal(c->memory.device_bytes, (int64_t)40 << 30);
    assert_int_equal(c->memory.activations, ACTIVATIONS_SELECTIVE);
    assert_string_equal(c->log.jsonl, "runs/demo/metrics.jsonl");
    /* 1B tokens in steps of 16, then the rest of 2B in steps of 64 sequences of 1024.
     * */
    int64_t first = ceil_div_i64(1000000000, 16 * 1024);
    int64_t rest = 2000000000 - first * 16 * 1024;
    assert_int_equal(c->train.steps, first + ceil_div_i64(rest, 64 * 1024));
    assert_int_equal(config_tokens_after(c, first), first * 16 * 1024);
    assert_int_equal(config_tokens_after(c, first + 2),
                     first * 16 * 1024 + 2 * 64 * 1024);
    assert_int_equal(config_global_batch(c, 0), 16);
    assert_int_equal(config_global_batch(c, 999999999), 16);
    assert_int_equal(config_global_batch(c, 1000000000), 64);
    assert_int_equal(config_global_batch_max(c), 64);
    int64_t last = config_tokens_after(c, c->train.steps);
    assert_true(last >= 2000000000 && last - 64 * 1024 < 2000000000);
}

static void test_cross_field(void **state)
{
    struct fixture *f = *state;
    assert_fails(
            f, RUN "model.kv_heads: 3\n", ST_CONFIG,
            "model.kv_heads (run.yaml:3) and model.heads (run.yaml:1): got 3 and 4",
            "model.kv_heads=2 or 4");
    assert_fails(f, RUN "model.kv_heads: 8\n", ST_CONFIG, "got 8 and 4",
                 "model.kv_heads=4");
    assert_fails(f, "model: {vocab: 512, layers: 2, hidden: 66, heads: 4, ffn: 1}\n",
                 ST_CONFIG, "got 66 and 4", "model.heads=3 or 6");
    assert_fails(f, RUN "model.head_dim: 15\n", ST_CONFIG, "an even head_dim",
                 "model.head_dim=14 or 16");
    load_ok(f, RUN "model.head_dim: 15\nmodel.position: none\n");
    assert_fails(
            f, RUN "train: {micro_batch: 3}\n", ST_CONFIG,
            "train.micro_batch (run.yaml:3) and train.global_batch (default): got 3 "
            "and 16",
            "train.micro_batch=2 or 4");
    assert_fails(f, RUN "train: {steps: 10, tokens: 1M}\n", ST_CONFIG, "got both",
                 "leave out train.tokens");
    assert_fails(f, RUN "train: {steps: 10, schedule: {warmup: 11}}\n", ST_CONFIG,
                 "got 11 and 10", "train.schedule.warmup=10");
    assert_fails(f, RUN "train: {schedule: {min_lr: 1}}\n", ST_CONFIG,
                 "min_lr at most lr", "min_lr=0.0003");
    assert_fails(
            f,
            RUN
            "train: {steps: 10, schedule: {type: wsd, warmup: 5, decay_steps: 6}}\n",
            ST_CONFIG, "got 6 and 5", "decay_steps=5");
    assert_fails(f, RUN "model.position: learned\nmodel.max_positions: 100\n",
                 ST_CONFIG,
                 "data.seq_len (default) and model.max_positions (run.yaml:4)",
                 "data.seq_len=100");
    assert_fails(f, RUN "model.position: none\nmodel.rope_scaling.type: yarn\n",
                 ST_CONFIG, "a scaling without rotations", "type=none");
    assert_fails(f, RUN "model.norm: layernorm\nmodel.norm_plus_one: true\n", ST_CONFIG,
                 "wanted rmsnorm", "norm_plus_one=false");
    assert_fails(f,
                 "model: {vocab: 256, layers: 1, hidden: 8, heads: 1, ffn: 8}\n"
                 "data: {train: x}\n",
                 ST_CONFIG,
                 "model.vocab (run.yaml:1) and data.tokenizer (default): got 256",
                 "model.vocab=257");
    assert_fails(f, RUN "model.window_every: 2\n", ST_CONFIG, "wanted a window",
                 "window_every=1");
    assert_fails(f, RUN "data.valid: v\ndata.valid_fraction: 0.1\n", ST_CONFIG,
                 "got both", "");
}

static void test_ramp(void **state)
{
    struct fixture *f = *state;
    assert_fails(f, RUN "train: {global_batch: []}\n", ST_CONFIG, "got an empty list",
                 "");
    assert_fails(f, RUN "train: {global_batch: [8, 16]}\n", ST_CONFIG,
                 "train.global_batch[0] (run.yaml:3): got until_tokens 0, wanted more",
                 "");
    assert_fails(f,
                 RUN "train: {global_batch: [{until_tokens: 2k, global_batch: 8},"
                     " {until_tokens: 1k, global_batch: 8}, 16]}\n",
                 ST_CONFIG, "global_batch[1]", "");
    assert_fails(f,
                 RUN "train: {global_batch: [{until_tokens: 2k, global_batch: 8}]}\n",
                 ST_CONFIG, "it has no end", "");
    assert_fails(f, RUN "train: {global_batch: [{until_tokens: 2k}, 8]}\n", ST_CONFIG,
                 "got no global_batch", "");
    assert_fails(f,
                 RUN "train: {micro_batch: 4, global_batch: [{until_tokens: 2k,"
                     " global_batch: 6}, 8]}\n",
                 ST_CONFIG, "got 4 and 6", "micro_batch=3 or 6");
    assert_fails(f, RUN "data.train: [{weight: 2}]\n", ST_CONFIG, "duplicate key", "");
    assert_fails(f, MODEL "data: {train: [{weight: 2}]}\n", ST_CONFIG,
                 "data.train[0] (run.yaml:2): got no path", "");
}

static void test_missing_and_unknown(void **state)
{
    struct fixture *f = *state;
    assert_fails(f, "data: {train: x}\n", ST_CONFIG, "model.vocab", "llama-tiny.yaml");
    assert_fails(f, MODEL, ST_CONFIG, "data.train", "data.train=FOLDER");
    assert_fails(f, RUN "train: {lr: 1}\n", ST_CONFIG,
                 "unknown key (run.yaml:3): got 'train.lr'", "train.optimizer.lr?");
    assert_fails(f, RUN "trian: {steps: 1}\n", ST_CONFIG, "'trian.steps'",
                 "train.steps?");
    assert_fails(f, RUN "train: 5\n", ST_CONFIG, "train (run.yaml:3): got '5'", "");
    assert_fails(f, RUN "train: [5]\n", ST_CONFIG, "got a list, wanted a mapping", "");
    assert_fails(f, RUN "train: {steps: 0.5}\n", ST_CONFIG, "wanted a count", "");
    assert_fails(f, RUN "train: {steps: -1}\n", ST_CONFIG, "wanted 1 to", "");
    assert_fails(f, RUN "train: {steps: {}}\n", ST_CONFIG, "train.steps (run.yaml:3)",
                 "");
    load_ok(f, RUN "train:\ncheckpoint: {}\n");
}

static void test_not_yet(void **state)
{
    struct fixture *f = *state;
    const char *const lines[] = {
            "parallel: {cp: 2}\n",
            "parallel: {ep: 2}\n",
            "parallel: {etp: 2}\n",
            "parallel: {cp_kind: ring}\n",
            "parallel: {grad_comm: int8}\n",
            "parallel: {param_comm: int8}\n",
            "device: cuda\n",
            "memory: {activations: offload}\n",
            "memory: {disk: /x}\n",
            "model.moe: {experts: 8}\n",
            "cluster: c.yaml\n",
            "data.tokenizer: tokenizer.json\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct str text = {0};
        str_printf(&text, "%s%s", RUN, lines[i]);
        assert_fails(f, text.s, ST_UNAVAILABLE, "(run.yaml:3): ", "");
        str_free(&text);
    }
}

static void test_parallel(void **state)
{
    struct fixture *f = *state;
    load_ok(f,
            RUN "parallel: {tp: 1, pp: auto, zero: 0, cp: 1, deadline_s: 2 min,\n"
                "  schedule: zb, layers_per_stage: [8, 8, 7, 1], order: [pp, tp, cp, "
                "dp],\n  zero_accumulate: sharded, tp_comm: bf16}\n");
    const struct config_parallel *p = &f->c.parallel;
    assert_int_equal(p->tp, 1);
    assert_int_equal(p->pp, 0);
    assert_int_equal(p->zero, 0);
    assert_true(p->deadline_s == 120);
    assert_int_equal(p->schedule, PIPELINE_ZB);
    assert_string_equal(p->layers_per_stage, "8,8,7,1");
    assert_string_equal(p->order, "pp,tp,cp,dp");
    assert_int_equal(p->zero_accumulate, ZERO_ACCUMULATE_SHARDED);
    assert_int_equal(p->tp_comm, TP_COMM_BF16);
    load_ok(f, RUN "parallel: auto\n");
    assert_int_equal(f->c.parallel.zero, -1);
    assert_int_equal(f->c.parallel.schedule, PIPELINE_AUTO);
    assert_int_equal(f->c.parallel.tp_comm, TP_COMM_FP32);
    assert_string_equal(f->c.parallel.layers_per_stage, "");
    assert_fails(f, RUN "parallel: {zero: 4}\n", ST_CONFIG, "wanted 0 to 3", "");
    assert_fails(f, RUN "parallel: {schedule: gpipe}\n", ST_CONFIG, "got 'gpipe'", "");
    assert_fails(f, RUN "parallel: {order: {a: 1}}\n", ST_CONFIG, "parallel.order", "");
}

static void test_layers(void **state)
{
    struct fixture *f = *state;
    tmp_write_text(
            &f->tmp, "models/m.yaml",
            "vocab: 512\nlayers: 2\nhidden: 64\nheads: 4\nffn: 128\nqk_norm: head\n");
    tmp_write_text(&f->tmp, "models/other.yaml",
                   "vocab: 512\nlayers: 3\nhidden: 64\nheads: 4\nffn: 128\n");
    const char *run = tmp_write_text(&f->tmp, "demo.yaml",
                                     "model.layers: 5\nmodel: models/m.yaml\n"
                                     "data: {train: [a, b]}\ntrain: {steps: 7}\n");
    assert_int_equal(load_args(f, run, NULL, 0), ST_OK);
    assert_int_equal(f->c.model.layers, 5); /* over the file that model names */
    assert_int_equal(f->c.model.qk_norm, QK_NORM_HEAD);
    assert_string_equal(f->c.checkpoint.dir, "runs/demo");

    const char *const set[][2] = {{"model.layers", "8"},
                                  {"data.train", "[c, {path: d, weight: 2}, e]"},
                                  {"train.tokens", "1M"},
                                  {"train.optimizer.betas", "[0.5, 0.75]"},
                                  {"train.optimizer", "{lr: 0.5, eps: 1e-6}"},
                                  {"data.train[0].weight", "3"}};
    assert_int_equal(load_args(f, run, set, 6), ST_OK);
    const struct config *c = &f->c;
    assert_int_equal(c->model.layers, 8);
    assert_int_equal(c->model.qk_norm, QK_NORM_HEAD);
    assert_int_equal(c->data.train.n, 3);
    assert_string_equal(c->data.train.items[0].path, "c");
    assert_true(c->data.train.items[0].weight == 3 &&
                c->data.train.items[1].weight == 2);
    assert_true(c->train.tokens == 1000000 &&
                c->train.steps == 123); /* 1M / (16 * 512) */
    assert_true(c->train.optimizer.betas[1] == 0.75 && c->train.optimizer.lr == 0.5);

    /* Another model replaces the whole mapping, wherever it stands among overrides. */
    const char *other = tmp_path(&f->tmp, "models/other.yaml");
    const char *const swap[][2] = {{"model.hidden", "32"}, {"model", other}};
    assert_int_equal(load_args(f, run, swap, 2), ST_OK);
    assert_int_equal(f->c.model.qk_norm, QK_NORM_NONE);
    assert_true(f->c.model.layers == 3 && f->c.model.hidden == 32);
}

static void test_without_run_file(void **state)
{
    struct fixture *f = *state;
    const char *const set[][2] = {{"model", "configs/models/llama3-405b.yaml"},
                                  {"model.layers", "8"},
                                  {"data.train", "x"}};
    assert_int_equal(load_args(f, NULL, set, 3), ST_OK);
    assert_true(f->c.model.layers == 8 && f->c.model.hidden == 16384);
    assert_string_equal(f->c.checkpoint.dir, "runs/llama3-405b");
}

static void test_load_errors(void **state)
{
    struct fixture *f = *state;
    const char *const lama[][2] = {{"model", "configs/models/lama-tiny.yaml"}};
    assert_int_equal(load_args(f, NULL, lama, 1), ST_NOT_FOUND);
    assert_non_null(
            strstr(f->diag.text, "model (command line): got 'configs/models/lama-"));
    assert_string_equal(f->diag.hint, "did you mean configs/models/llama-tiny.yaml?");
    assert_int_equal(load_args(f, tmp_path(&f->tmp, "no.yaml"), NULL, 0), ST_NOT_FOUND);
    const char *const folder[][2] = {{"model", f->tmp.path}};
    assert_int_equal(load_args(f, NULL, folder, 1), ST_UNAVAILABLE);
    const char *const broken[][2] = {{"data.train", "[a, b"}};
    assert_int_equal(load_args(f, NULL, broken, 1), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "not YAML (data.train:"));
    const char *bad = tmp_write_text(&f->tmp, "bad.yaml", "vocab: 512\nlayer: 2\n");
    const char *const reach[][2] = {{"model", bad}};
    assert_int_equal(load_args(f, NULL, reach, 1), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "bad.yaml:2): got 'model.layer'"));
    assert_string_equal(f->diag.hint, "did you mean model.layers?");
    const char *list = tmp_write_text(&f->tmp, "list.yaml", "- a\n");
    assert_int_equal(load_args(f, list, NULL, 0), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "got a list, wanted a mapping"));
    /* A file that names itself ends at a key that is no mapping. */
    const char *self = tmp_write_text(&f->tmp, "self.yaml", "model: self.yaml\n");
    assert_int_equal(load_args(f, self, NULL, 0), ST_CONFIG);
}

/* What config_print writes loads to the same values, and prints the same again. */
static void assert_round_trip(struct fixture *f)
{
    struct str first = {0}, second = {0};
    struct config again;
    uint32_t *rows = mem_alloc(config_table()->n_rows * sizeof(*rows));
    config_print(&f->c, &first);
    if (load_config_text(&again, first.s, first.n, "printed", &f->diag) != ST_OK)
        fail_msg("%s in\n%s", f->diag.text, first.s);
    config_print(&again, &second);
    assert_string_equal(first.s, second.s);
    assert_int_equal(opt_diff(config_table(), &f->c, &again, 0, rows), 0);
    assert_true(opt_hash(config_table(), &f->c, OPT_MATHS) ==
                opt_hash(config_table(), &again, OPT_MATHS));
    mem_free(rows);
    config_free(&again);
    str_free(&first);
    str_free(&second);
}

static void test_round_trip(void **state)
{
    struct fixture *f = *state;
    load_ok(f, RUN);
    assert_round_trip(f);
    load_ok(f, MODEL
            "data: {train: [{path: 'a, \"b\"', weight: 0.1}, 'null', '- x'],"
            " valid: 'v: #1', text_field: \"t\\ty\"}\n"
            "train: {tokens: 12345, global_batch: [{until_tokens: 1k,"
            " global_batch: 8}, 32], seed: 9223372036854775807,"
            " optimizer: {lr: 0.1234567890123456789, betas: [0.123456789, 0.99]}}\n"
            "memory: {device: 3GiB}\n"
            "model.rope_scaling: {type: yarn, factor: 3}\n"
            "checkpoint: {resume: some/path}\ninit: w\n");
    assert_int_equal(f->c.train.seed, INT64_MAX);
    assert_round_trip(f);
}

/* Parameters as published, by the shapes of the architecture alone. */
static int64_t count_parameters(const struct config_model *m)
{
    bool gated = m->act == MODEL_ACT_SWIGLU || m->act == MODEL_ACT_GEGLU;
    int64_t norm = m->hidden * (m->norm == NORM_LAYERNORM ? 2 : 1);
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    int64_t layer =
            2 * norm + 2 * m->hidden * (q + kv) + m->hidden * m->ffn * (2 + gated);
    if (m->bias == BIAS_ALL)
        layer += q + 2 * kv + m->hidden + m->ffn * (1 + gated) + m->hidden;
    if (m->qk_norm == QK_NORM_HEAD)
        layer += 2 * m->head_dim;
    int64_t table = m->vocab * m->hidden;
    int64_t positions =
            m->position == POSITION_LEARNED ? m->max_positions * m->hidden : 0;
    return m->layers * layer + norm + table * (m->tied ? 1 : 2) + positions;
}

static void test_presets(void **state)
{
    struct fixture *f = *state;
    const struct {
        const char *name;
        int64_t parameters;
    } presets[] = {
            {"gpt2-124m", 124439808},    {"gpt2-355m", 354823168},
            {"gpt2-774m", 774030080},    {"gpt2-1.5b", 1557611200},
            {"llama2-7b", 6738415616},   {"llama2-13b", 13015864320},
            {"llama2-70b", 68976648192}, {"llama3-8b", 8030261248},
            {"llama3-70b", 70553706496}, {"llama3-405b", 405853388800},
            {"qwen3-0.6b", 596049920},   {"qwen3-8b", 8190735360},
            {"llama-tiny", 3213568},     {"llama-60m", 63717120},
    };
    for (size_t i = 0; i < ARRAY_LEN(presets); i++) {
        struct str path = {0};
        str_printf(&path, "configs/models/%s.yaml", presets[i].name);
        const char *const set[][2] = {{"model", path.s}, {"data.train", "x"}};
        if (load_args(f, NULL, set, 2) != ST_OK)
            fail_msg("%s", f->diag.text);
        int64_t got = count_parameters(&f->c.model);
        print_message("%-12s %lld parameters\n", presets[i].name, (long long)got);
        assert_int_equal(got, presets[i].parameters);
        assert_round_trip(f);
        str_free(&path);
    }
    assert_int_equal(load_args(f, "configs/runs/tiny-text.yaml", NULL, 0), ST_OK);
    assert_int_equal(f->c.model.hidden, 256);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_table),
            TEST(test_derived),
            TEST(test_contract_example),
            TEST(test_cross_field),
            TEST(test_ramp),
            TEST(test_missing_and_unknown),
            TEST(test_not_yet),
            TEST(test_parallel),
            TEST(test_layers),
            TEST(test_without_run_file),
            TEST(test_load_errors),
            TEST(test_round_trip),
            TEST(test_presets),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
