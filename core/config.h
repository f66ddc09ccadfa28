/* The configuration of a run: plain data, filled from core/config_options.def.
 *
 * config_init sets defaults, options are set through config_store (files below the
 * command line), config_resolve derives what was left open and checks what spans
 * several fields. After config_resolve every field holds what the run uses, but for
 * those marked "0 =", which only the machine can answer.
 */
#ifndef CORE_CONFIG_H
#define CORE_CONFIG_H

#include "core/opt.h"
#include "core/program.h"

enum model_act {
    MODEL_ACT_SWIGLU,
    MODEL_ACT_GEGLU,
    MODEL_ACT_GELU,
    MODEL_ACT_GELU_TANH
};
enum model_norm {
    NORM_RMSNORM,
    NORM_LAYERNORM
};
enum model_norm_order {
    ORDER_PRE,
    ORDER_POST,
    ORDER_SANDWICH,
    ORDER_RESIDUAL
};
enum model_position {
    POSITION_ROPE,
    POSITION_LEARNED,
    POSITION_NONE
};
enum model_qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,
    QK_NORM_FULL
};
enum model_bias {
    BIAS_NONE,
    BIAS_QKV,
    BIAS_ALL
};

struct rope_scaling {
    enum rope_scaling_type type;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; derived as 0.1 ln(factor) + 1 */
};

/* The model as a user describes it; angel-config(5) tells what each field means. */
struct config_model {
    int64_t vocab, layers, hidden, heads, kv_heads, head_dim, ffn;
    enum model_act act;
    enum model_norm norm;
    double norm_eps;
    bool norm_plus_one;
    enum model_norm_order norm_order;
    enum model_position position;
    int64_t max_positions; /* rows of the learned table */
    double rope_theta;
    struct rope_scaling rope_scaling;
    enum model_qk_norm qk_norm;
    enum model_bias bias;
    bool tied;
    int64_t window; /* keys a query sees, itself included; 0 = all before it */
    int64_t window_every;
    double attn_softcap, final_softcap; /* 0 = none */
    double embed_scale;
    double attn_scale;
    double init_std;
};

struct config_source {
    const char *path;
    double weight; /* share of the samples; 0: none given, in proportion to its size */
};

struct config_sources {
    struct config_source *items;
    int64_t n;
};

enum tokenizer_kind {
    TOKENIZER_BYTES
};

struct config_data {
    struct config_sources train;
    const char *valid;     /* "" for none */
    double valid_fraction; /* of the training data, held out; 0 = none */
    enum tokenizer_kind tokenizer;
    int64_t seq_len;
    const char *text_field;
    bool mask_documents;
    bool shuffle;
};

/* A stage of the batch ramp: global_batch sequences a step until the run has trained
 * until_tokens tokens; 0 in the last stage, which has no end. */
struct config_batch {
    int64_t until_tokens;
    int64_t global_batch;
};

struct config_batches {
    struct config_batch *items;
    int64_t n; /* >= 1 */
};

enum train_precision {
    PRECISION_FP32,
    PRECISION_BF16
};
enum optimizer_type {
    OPTIMIZER_ADAMW
};
enum nonfinite_policy {
    NONFINITE_SKIP,
    NONFINITE_STOP
};
enum schedule_type {
    SCHEDULE_COSINE,
    SCHEDULE_LINEAR,
    SCHEDULE_CONSTANT,
    SCHEDULE_WSD
};

struct config_optimizer {
    enum optimizer_type type;
    double lr;
    double betas[2];
    double eps;
    double weight_decay;
    double clip; /* largest global gradient norm; 0 = no clipping */
    bool decay_norms, decay_biases, decay_embeddings;
};

struct config_schedule {
    enum schedule_type type;
    int64_t warmup;      /* steps from 0 to lr */
    double min_lr;       /* what cosine, linear and wsd end at */
    int64_t decay_steps; /* wsd: the last steps, in which the rate falls */
};

struct config_train {
    int64_t steps;  /* after config_resolve always the run's number of steps */
    int64_t tokens; /* 0 = the length was given in steps */
    struct config_batches global_batch;
    int64_t micro_batch; /* sequences; 0 = chosen to fit memory */
    int64_t seed;
    enum train_precision precision;
    struct config_optimizer optimizer;
    struct config_schedule schedule;
    enum nonfinite_policy nonfinite;
    double spike_z;     /* standard deviations; 0 = off */
    int64_t eval_every; /* steps; 0 = never */
    int64_t eval_batches;
    int64_t threads; /* 0 = every processor this process may use */
};

enum zero_accumulate {
    ZERO_ACCUMULATE_LOCAL,
    ZERO_ACCUMULATE_SHARDED
};
enum pipeline_schedule {
    PIPELINE_AUTO,
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED,
    PIPELINE_ZB
};
enum tp_comm {
    TP_COMM_FP32,
    TP_COMM_BF16
};
enum reductions {
    REDUCTIONS_ORDERED,
    REDUCTIONS_FAST
};

/* What is open here (0 of a degree, -1 of zero, "" of a text) is settled when the ranks are
 * known (parallel/layout.h). */
struct config_parallel {
    int64_t tp, pp, vpp, cp, ep, etp, dp;
    int64_t zero; /* -1 = auto */
    enum zero_accumulate zero_accumulate;
    enum pipeline_schedule schedule;
    const char *layers_per_stage; /* "" = auto */
    enum tp_comm tp_comm;
    enum reductions reductions;
    const char *order; /* "" = auto */
    double deadline_s; /* -1 = auto, 0 = none */
};

enum memory_activations {
    ACTIVATIONS_KEEP,
    ACTIVATIONS_SELECTIVE,
    ACTIVATIONS_RECOMPUTE,
    ACTIVATIONS_AUTO,
    ACTIVATIONS_OFFLOAD, /* recognised, never resolved */
};

struct config_memory {
    enum memory_activations activations;
    int64_t device_bytes; /* limit; 0 = what the machine has */
};

enum device_kind {
    DEVICE_AUTO,
    DEVICE_CPU,
    DEVICE_CUDA
};

struct config_checkpoint {
    const char *dir;
    int64_t every;      /* steps; 0 = only at the end */
    int64_t keep;       /* newest checkpoints that stay; 0 = all */
    const char *resume; /* "auto", "never", or the path of a checkpoint */
};

struct config_log {
    int64_t every; /* steps */
    const char *jsonl;
    const char *tensorboard; /* folder; "" = none */
    const char *prometheus;  /* file; "" = none */
    int64_t monitor_every;   /* steps; 0 = never */
};

struct config {
    struct config_model model;
    struct config_data data;
    struct config_train train;
    const char *init; /* "" = random */
    struct config_parallel parallel;
    struct config_memory memory;
    enum device_kind device;
    struct config_checkpoint checkpoint;
    struct config_log log;

    const char
            *name; /* base name of the run file (or of the model's), for output paths */
    struct opt_origin *origins; /* [config_table()->n_rows] */
    struct arena arena;         /* owns every string and list above */
};

/* The rows of core/config_options.def. */
const struct opt_table *config_table(void);

/* Sets every field to its default; frees what the configuration holds. */
void config_init(struct config *c);
void config_free(struct config *c);

/* For the functions of core/opt.h. Valid while c stays where it is. */
struct opt_store config_store(struct config *c);

/* Derives what was left open (kv_heads, head_dim, attn_scale, steps of tokens, paths of
 * output...) and checks fields against each other; idempotent. errors: ST_CONFIG naming
 * the fields, where they were given, and the nearest choice that works. */
MUST_CHECK enum status config_resolve(struct config *c, struct diag *diag);

/* The model part of config_resolve alone, for those that need no data (ckpt, plan). */
MUST_CHECK enum status config_resolve_model(struct config *c, struct diag *diag);

/* The configuration as YAML; fed back, it is the same run. */
void config_print(const struct config *c, struct str *out);

/* Sequences of the step that begins after `tokens` trained tokens. */
int64_t config_global_batch(const struct config *c, int64_t tokens);

/* The first step of a run, counted from 0, is at 0 trained tokens: tokens that are
 * trained when `step` steps are done. */
int64_t config_tokens_after(const struct config *c, int64_t step);

/* The largest global batch of the run. */
int64_t config_global_batch_max(const struct config *c);

#endif
