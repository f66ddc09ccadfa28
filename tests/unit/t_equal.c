/* Tier 1 of the equality contract on one rank: thread counts, recompute modes and kernels'
 * sharing of memory must not change a bit, in fp32 and in bf16. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cmd/load_config.h"
#include "tests/lib/rig.h"

#define SEQUENCES 3
#define SEQ_LEN   37
#ifdef __SANITIZE_THREAD__ /* a race shows in one step as well, and steps take long */
#define STEPS       1
#define THREADS_MIN 2
#define THREADS_MAX 2
#else
#define STEPS       3
#define THREADS_MIN 1
#define THREADS_MAX 3
#endif
#define MICRO 2

static const char *const gpt2_like[] = {"model.vocab=317",
                                        "model.layers=3",
                                        "model.hidden=72",
                                        "model.heads=6",
                                        "model.ffn=200",
                                        "model.act=gelu_tanh",
                                        "model.norm=layernorm",
                                        "model.position=learned",
                                        "model.bias=all",
                                        "model.tied=true",
                                        NULL};
static const char *const llama_like[] = {"model.vocab=317",
                                         "model.layers=3",
                                         "model.hidden=96",
                                         "model.heads=6",
                                         "model.kv_heads=2",
                                         "model.ffn=200",
                                         "model.qk_norm=head",
                                         "model.window=11",
                                         "model.window_every=2",
                                         "model.final_softcap=20",
                                         NULL};

static void load(struct config *c, const char *const *keys)
{
    struct arena arena = {0};
    struct diag diag = {0};
    struct cmd_override set[32] = {{"data.seq_len", "37"}};
    int n = 1;
    for (; *keys; keys++, n++) {
        size_t eq = strcspn(*keys, "=");
        set[n] =
                (struct cmd_override){arena_strndup(&arena, *keys, eq), *keys + eq + 1};
    }
    enum status st = load_config_raw(c, NULL, set, n, &diag);
    if (st == ST_OK)
        st = config_resolve_model(c, &diag);
    if (st != ST_OK)
        fail_msg("%s", diag.text);
    arena_release(&arena);
}

struct outcome {
    uint64_t state, grads;
    double loss;
    uint32_t n_recomputed;
    int64_t pool_bytes;
};

/* A few steps of training; everything that could differ goes into hashes. */
static struct outcome train(const char *const *keys, enum dtype compute, int n_threads,
                            enum memory_activations activations, bool check)
{
    struct config c;
    struct rig r;
    load(&c, keys);
    struct rig_options o = {.purpose = LOWER_TRAIN,
                            .compute = compute,
                            .sequences = SEQUENCES,
                            .seq_len = SEQ_LEN,
                            .n_micro_batches = MICRO,
                            .activations = activations,
                            .n_threads = n_threads,
                            .check = check};
    rig_create(&r, &c.model, &o);
    rig_init_params(&r, 7);
    rig_setup(&r);
    struct outcome out = {.n_recomputed = r.low.n_recomputed,
                          .pool_bytes = r.low.program.pool_bytes[POOL_DEVICE]};
    for (int step = 0; step < STEPS; step++) {
        int32_t b[4][SEQUENCES * SEQ_LEN];
        int64_t trained = 0;
        for (uint32_t mb = 0; mb < MICRO; mb++) {
            trained += rig_random_batch((uint64_t)step * MICRO + mb, SEQUENCES, SEQ_LEN,
                                        c.model.vocab, b[0], b[1], b[2], b[3]);
            rig_write_batch(&r, mb, b[0], b[1], b[2], b[3]);
        }
        rig_write_hyper(&r, step + 1, 1e-3, 1.0 / (double)trained, 1.0);
        rig_step(&r);
        out.loss = rig_loss_sum(&r) / (double)trained;
    }
    out.state = rig_hash_state(&r);
    out.grads = rig_hash_grads(&r);
    rig_destroy(&r);
    config_free(&c);
    return out;
}

static void assert_same(const struct outcome *a, const struct outcome *b,
                        const char *what)
{
    if (a->state != b->state || a->grads != b->grads ||
        memcmp(&a->loss, &b->loss, sizeof(double)) != 0)
        fail_msg("%s: bits differ (loss %.17g and %.17g)", what, a->loss, b->loss);
}

static void check_model(const char *name, const char *const *keys, enum dtype compute)
{
    static const enum memory_activations modes[] = {
            ACTIVATIONS_KEEP, ACTIVATIONS_SELECTIVE, ACTIVATIONS_RECOMPUTE};
    struct outcome base = train(keys, compute, 1, ACTIVATIONS_KEEP, false);
    assert_true(isfinite(base.loss) && base.loss > 0);
    for (size_t m = 0; m < ARRAY_LEN(modes); m++) {
        for (int threads = THREADS_MIN; threads <= THREADS_MAX; threads++) {
            char what[96];
            struct outcome got = train(keys, compute, threads, modes[m], threads == 2);
            snprintf(what, sizeof(what), "%s %s, %d threads, recompute mode %d", name,
                     dtype_name(compute), threads, (int)modes[m]);
            assert_same(&base, &got, what);
            assert_true((modes[m] == ACTIVATIONS_KEEP) == (got.n_recomputed == 0));
            if (threads == THREADS_MIN)
                print_message("  %s: equal bits, %u ops again, arena %.2f MiB\n", what,
                              got.n_recomputed, (double)got.pool_bytes / 1048576.0);
        }
    }
}

static void test_f32(void **state)
{
    (void)state;
    check_model("gpt2-like", gpt2_like, DT_F32);
    check_model("llama-like", llama_like, DT_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    check_model("gpt2-like", gpt2_like, DT_BF16);
    check_model("llama-like", llama_like, DT_BF16);
}

/* The test itself must see a difference: another seed of the data, another precision. */
static void test_can_fail(void **state)
{
    (void)state;
    struct outcome a = train(llama_like, DT_F32, 1, ACTIVATIONS_KEEP, false);
    struct outcome b = train(llama_like, DT_BF16, 1, ACTIVATIONS_KEEP, false);
    assert_int_not_equal(a.state, b.state);
    assert_int_not_equal(a.grads, b.grads);
    assert_true(fabs(a.loss - b.loss) < 0.05 * a.loss);
}

/* What a step touches is what was planned. */
static void test_touched_bytes(void **state)
{
    (void)state;
    struct config c;
    struct rig r;
    load(&c, llama_like);
    struct rig_options o = {.purpose = LOWER_TRAIN,
                            .compute = DT_F32,
                            .sequences = SEQUENCES,
                            .seq_len = SEQ_LEN,
                            .activations = ACTIVATIONS_KEEP,
                            .n_threads = 2,
                            .check = true};
    rig_create(&r, &c.model, &o);
    rig_init_params(&r, 7);
    rig_setup(&r);
    int32_t b[4][SEQUENCES * SEQ_LEN];
    int64_t n = rig_random_batch(1, SEQUENCES, SEQ_LEN, c.model.vocab, b[0], b[1], b[2],
                                 b[3]);
    rig_write_batch(&r, 0, b[0], b[1], b[2], b[3]);
    rig_write_hyper(&r, 1, 1e-3, 1.0 / (double)n, 1.0);
    rig_step(&r);
    int64_t touched = exec_touched_bytes(r.exec, POOL_DEVICE);
    int64_t planned = r.report.pool[POOL_DEVICE].top_bytes;
    print_message("  planned %lld bytes, highest touched byte %lld\n",
                  (long long)planned, (long long)touched);
    assert_true(touched <= planned && planned - touched < 64);
    rig_destroy(&r);
    config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_f32),
            cmocka_unit_test(test_bf16),
            cmocka_unit_test(test_can_fail),
            cmocka_unit_test(test_touched_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
