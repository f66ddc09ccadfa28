#include "tests/lib/layouts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "core/arena.h"

static const int32_t uneven2[] = {4, 2}, uneven4[] = {1, 2, 3, 0},
                     one_each[] = {1, 1, 4}, chunks4[] = {2, 1, 1, 2};

#define KEEP ACTIVATIONS_KEEP
#define SEL  ACTIVATIONS_SELECTIVE
#define FULL ACTIVATIONS_RECOMPUTE
#define F1B  SCHEDULE_1F1B
#define INT  SCHEDULE_INTERLEAVED
#define ZB   SCHEDULE_ZB_H1

/* name, tp, pp, chunks, dp, zero, schedule, micro-batch, activations, sharded, layers,
 * quick */
const struct layout_case layout_cases[] = {
        {"one rank", 1, 1, 1, 1, 0, F1B, 2, KEEP, false, NULL, true},
        {"one rank, recompute", 1, 1, 1, 1, 0, F1B, 2, FULL, false, NULL, false},
        {"tp 2", 2, 1, 1, 1, 0, F1B, 2, KEEP, false, NULL, true},
        {"tp 2, selective", 2, 1, 1, 1, 0, F1B, 2, SEL, false, NULL, false},
        {"tp 2, recompute", 2, 1, 1, 1, 0, F1B, 4, FULL, false, NULL, false},
        {"tp 3", 3, 1, 1, 1, 0, F1B, 1, KEEP, false, NULL, false},
        {"tp 4", 4, 1, 1, 1, 0, F1B, 2, KEEP, false, NULL, false},
        {"tp 4, recompute", 4, 1, 1, 1, 0, F1B, 8, FULL, false, NULL, false},
        {"pp 2", 1, 2, 1, 1, 0, F1B, 2, KEEP, false, NULL, true},
        {"pp 2, one micro-batch", 1, 2, 1, 1, 0, F1B, 8, KEEP, false, NULL, false},
        {"pp 2, recompute", 1, 2, 1, 1, 0, F1B, 1, FULL, false, NULL, false},
        {"pp 2, uneven", 1, 2, 1, 1, 0, F1B, 1, KEEP, false, uneven2, false},
        {"pp 2, zb", 1, 2, 1, 1, 0, ZB, 1, KEEP, false, NULL, true},
        {"pp 2, zb, selective", 1, 2, 1, 1, 0, ZB, 2, SEL, false, NULL, false},
        {"pp 2, vpp 2", 1, 2, 2, 1, 0, INT, 1, KEEP, false, NULL, true},
        {"pp 2, vpp 2, uneven", 1, 2, 2, 1, 0, INT, 1, KEEP, false, chunks4, false},
        {"pp 2, vpp 3", 1, 2, 3, 1, 0, INT, 2, KEEP, false, NULL, false},
        {"pp 2, vpp 3, recompute", 1, 2, 3, 1, 0, INT, 2, FULL, false, NULL, false},
        {"pp 3", 1, 3, 1, 1, 0, F1B, 2, KEEP, false, NULL, false},
        {"pp 3, uneven", 1, 3, 1, 1, 0, F1B, 2, KEEP, false, one_each, false},
        {"pp 3, zb", 1, 3, 1, 1, 0, ZB, 2, KEEP, false, NULL, false},
        {"pp 4", 1, 4, 1, 1, 0, F1B, 1, KEEP, false, NULL, false},
        {"pp 4, last stage without layers", 1, 4, 1, 1, 0, F1B, 2, KEEP, false, uneven4,
         false},
        {"pp 4, few micro-batches", 1, 4, 1, 1, 0, F1B, 4, KEEP, false, NULL, false},
        {"pp 4, zb", 1, 4, 1, 1, 0, ZB, 1, KEEP, false, NULL, false},
        {"dp 2", 1, 1, 1, 2, 0, F1B, 2, KEEP, false, NULL, true},
        {"dp 2, zero 1", 1, 1, 1, 2, 1, F1B, 2, KEEP, false, NULL, true},
        {"dp 2, zero 2", 1, 1, 1, 2, 2, F1B, 2, KEEP, false, NULL, false},
        {"dp 2, one micro-batch", 1, 1, 1, 2, 1, F1B, 4, KEEP, false, NULL, false},
        {"dp 2, recompute", 1, 1, 1, 2, 1, F1B, 1, FULL, false, NULL, false},
        {"dp 4", 1, 1, 1, 4, 0, F1B, 1, KEEP, false, NULL, false},
        {"dp 4, zero 1", 1, 1, 1, 4, 1, F1B, 1, KEEP, false, NULL, false},
        {"dp 4, zero 2", 1, 1, 1, 4, 2, F1B, 2, SEL, false, NULL, false},
        {"dp 2, zero 3", 1, 1, 1, 2, 3, F1B, 2, KEEP, false, NULL, true},
        {"dp 2, zero 3, recompute", 1, 1, 1, 2, 3, F1B, 2, FULL, false, NULL, false},
        {"dp 2, zero 3, selective", 1, 1, 1, 2, 3, F1B, 1, SEL, false, NULL, false},
        {"pp 2, dp 2, zero 3, recompute", 1, 2, 1, 2, 3, F1B, 1, FULL, false, NULL,
         false},
        {"pp 2, dp 2, zb, zero 3, recompute", 1, 2, 1, 2, 3, ZB, 1, FULL, false, NULL,
         true},
        {"pp 2, vpp 3, dp 2, zero 3, recompute", 1, 2, 3, 2, 3, INT, 1, FULL, false,
         NULL, false},
        {"tp 2, pp 2, dp 2, zb, zero 3, sharded, recompute", 2, 2, 1, 2, 3, ZB, 1, FULL,
         true, NULL, false},
        {"dp 4, zero 3", 1, 1, 1, 4, 3, F1B, 1, KEEP, false, NULL, false},
        {"dp 2, zero 2, sharded", 1, 1, 1, 2, 2, F1B, 1, KEEP, true, NULL, true},
        {"dp 4, zero 3, sharded", 1, 1, 1, 4, 3, F1B, 1, FULL, true, NULL, false},
        {"pp 2, dp 2, zero 3", 1, 2, 1, 2, 3, F1B, 1, KEEP, false, NULL, false},
        {"tp 2, dp 2, zero 3, sharded", 2, 1, 1, 2, 3, F1B, 2, SEL, true, NULL, false},
        {"pp 2, dp 2, zb, zero 3, sharded", 1, 2, 1, 2, 3, ZB, 1, KEEP, true, NULL,
         false},
        {"tp 2, pp 2", 2, 2, 1, 1, 0, F1B, 2, KEEP, false, NULL, true},
        {"tp 2, pp 2, zb", 2, 2, 1, 1, 0, ZB, 2, KEEP, false, NULL, false},
        {"tp 2, pp 2, vpp 3", 2, 2, 3, 1, 0, INT, 2, SEL, false, NULL, false},
        {"tp 3, pp 2", 3, 2, 1, 1, 0, F1B, 1, KEEP, false, NULL, false},
        {"tp 4, pp 2", 4, 2, 1, 1, 0, F1B, 2, KEEP, false, NULL, false},
        {"tp 2, dp 2", 2, 1, 1, 2, 0, F1B, 2, KEEP, false, NULL, true},
        {"tp 2, dp 2, zero 1", 2, 1, 1, 2, 1, F1B, 2, KEEP, false, NULL, false},
        {"tp 2, dp 2, zero 2, recompute", 2, 1, 1, 2, 2, F1B, 1, FULL, false, NULL,
         false},
        {"tp 4, dp 2, zero 1", 4, 1, 1, 2, 1, F1B, 2, KEEP, false, NULL, false},
        {"pp 2, dp 2", 1, 2, 1, 2, 0, F1B, 1, KEEP, false, NULL, false},
        {"pp 2, dp 2, zero 1", 1, 2, 1, 2, 1, F1B, 1, KEEP, false, NULL, true},
        {"pp 2, dp 2, zb, zero 2", 1, 2, 1, 2, 2, ZB, 1, KEEP, false, NULL, false},
        {"pp 2, vpp 2, dp 2, zero 1", 1, 2, 2, 2, 1, INT, 1, KEEP, false, NULL, false},
        {"pp 4, dp 2, zero 1", 1, 4, 1, 2, 1, F1B, 1, KEEP, false, NULL, false},
        {"pp 3, dp 4", 1, 3, 1, 4, 0, F1B, 1, KEEP, false, NULL, false},
        {"tp 2, pp 2, dp 2", 2, 2, 1, 2, 0, F1B, 2, KEEP, false, NULL, false},
        {"tp 2, pp 2, dp 2, zero 1", 2, 2, 1, 2, 1, F1B, 1, SEL, false, NULL, false},
        {"tp 2, pp 2, dp 2, zb, zero 2", 2, 2, 1, 2, 2, ZB, 1, KEEP, false, NULL,
         false},
        {"tp 2, pp 2, vpp 2, dp 2, zero 1", 2, 2, 2, 2, 1, INT, 1, KEEP, false, NULL,
         false},
        {"tp 4, pp 2, dp 2, zero 1", 4, 2, 1, 2, 1, F1B, 1, KEEP, false, NULL, false},
        {"tp 2, pp 4, dp 2, zero 1", 2, 4, 1, 2, 1, F1B, 1, FULL, false, NULL, false},
        {"tp 2, pp 2, dp 4, zero 2", 2, 2, 1, 4, 2, F1B, 1, KEEP, false, NULL, false},
        {"tp 4, pp 4, zb", 4, 4, 1, 1, 0, ZB, 1, KEEP, false, NULL, false},
};
const int n_layout_cases = (int)ARRAY_LEN(layout_cases);

static const char *const models[LAYOUT_MODELS][16] = {
        [LAYOUT_GPT2] = {"model.vocab=131", "model.layers=6", "model.hidden=48",
                         "model.heads=12", "model.ffn=96", "model.act=gelu_tanh",
                         "model.norm=layernorm", "model.position=learned",
                         "model.bias=all", "model.tied=true", NULL},
        [LAYOUT_LLAMA] = {"model.vocab=131", "model.layers=6", "model.hidden=48",
                          "model.heads=12", "model.kv_heads=2", "model.ffn=96",
                          "model.qk_norm=head", "model.window=11",
                          "model.window_every=2", "model.final_softcap=20", NULL},
        [LAYOUT_MQA] = {"model.vocab=131", "model.layers=6", "model.hidden=48",
                        "model.heads=12", "model.kv_heads=1", "model.ffn=96",
                        "model.bias=qkv", NULL}};

int layout_world(const struct layout_case *c)
{
    return c->tp * c->pp * c->dp;
}

void layout_model(const struct layout_case *c, int which, struct model *out)
{
    struct config config;
    struct arena arena = {0};
    struct diag diag = {0};
    struct cmd_override set[20] = {{"data.seq_len", "24"}};
    int n = 1;
    for (const char *const *k = models[which]; *k; k++, n++) {
        size_t eq = strcspn(*k, "=");
        set[n] = (struct cmd_override){arena_strndup(&arena, *k, eq), *k + eq + 1};
    }
    if (which == LAYOUT_LLAMA && c->tp == 3) /* 3 divides, or is a multiple of, these */
        set[n++] = (struct cmd_override){"model.kv_heads", "3"};
    enum status st = load_config_raw(&config, NULL, set, n, &diag);
    if (st == ST_OK)
        st = config_resolve_model(&config, &diag);
    if (st != ST_OK)
        fail_msg("%s", diag.text);
    model_create(&config.model, out);
    config_free(&config);
    arena_release(&arena);
}

void layout_options(const struct layout_case *c, int rank, enum dtype compute,
                    struct lower_options *o)
{
    memset(o, 0, sizeof(*o));
    o->purpose = LOWER_TRAIN;
    o->compute = compute;
    o->sequences = c->micro_batch;
    o->seq_len = LAYOUT_SEQ_LEN;
    o->n_micro_batches = (uint32_t)(LAYOUT_SEQUENCES / c->dp / c->micro_batch);
    o->activations = c->activations;
    struct lower_layout *l = &o->layout;
    l->degree[MESH_TP] = c->tp;
    l->degree[MESH_DP] = c->dp;
    l->degree[MESH_PP] = c->pp;
    l->coord[MESH_TP] = rank % c->tp;
    l->coord[MESH_DP] = rank / c->tp % c->dp;
    l->coord[MESH_PP] = rank / c->tp / c->dp;
    l->chunks = c->chunks;
    l->zero = c->zero;
    l->accumulate_sharded = c->sharded;
    l->schedule = c->schedule;
    l->chunk_layers = c->chunk_layers;
}
