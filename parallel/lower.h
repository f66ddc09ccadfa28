/* Lowering: from a model and one rank's place to the program of its step.
 *
 * The program has these segments: "setup" (constants; copies of the weights in the
 * compute dtype), "zero" (gradient accumulators), "forward", "backward", "optimizer" (for
 * training), "monitor" (probes, in a program of its own for the steps that monitors look
 * at) or "eval" (forward only). Persistent storages are declared first and in the
 * same order by every program of a run, so that they share one arena.
 */
#ifndef PARALLEL_LOWER_H
#define PARALLEL_LOWER_H

#include "core/model.h"
#include "core/program.h"

enum lower_purpose {
    LOWER_TRAIN,     /* forward, backward, optimizer */
    LOWER_GRADIENTS, /* forward and backward, gradients left in their accumulators */
    LOWER_EVAL,      /* forward, summed loss */
};

struct lower_options {
    enum lower_purpose purpose;
    enum dtype
            compute; /* DT_F32, DT_BF16; DT_F64 (LOWER_GRADIENTS, LOWER_EVAL: tests) */
    int64_t sequences; /* of one micro-batch */
    int64_t seq_len;
    uint32_t n_micro_batches;
    enum memory_activations activations;
    struct config_optimizer optimizer; /* which parameters decay */
    bool monitor; /* LOWER_TRAIN: with probes, for the steps that monitors look at */
};

/* What a probe looks at; parameters first, activations last. */
enum lowered_probe_kind {
    PROBE_PARAM, /* the f32 master, after the step */
    PROBE_GRAD,  /* before clipping */
    PROBE_EXP_AVG,
    PROBE_EXP_AVG_SQ,
    PROBE_UPDATE,   /* lr * m_hat / (sqrt(v_hat) + eps), without weight decay */
    PROBE_RESIDUAL, /* the residual stream behind a layer; -1: the embedding's output */
    PROBE_ATTN_LSE, /* log-sum-exp of a query's scores: at most log(seq) above the
                       largest score */
    PROBE_LOGITS,   /* what the loss reads */
    PROBE_KIND_COUNT
};

/* Statistics (core/stats.h) that the program leaves of one tensor: f64[STATS_COUNT], of
 * activations one copy per micro-batch. */
struct lowered_probe {
    enum lowered_probe_kind kind;
    int32_t index; /* the parameter's row, or the layer */
    uint32_t value;
    int64_t elems; /* of the tensor, in one micro-batch */
};

/* Values of one parameter. In f32 training the master is the weight itself. */
struct lowered_param {
    uint32_t weight;              /* what the model computes with */
    uint32_t master;              /* f32 */
    uint32_t exp_avg, exp_avg_sq; /* f32; NONE_ID without an optimizer */
    uint32_t grad;                /* accumulator, all uses of the parameter summed */
};

struct lowered {
    struct program program;       /* sealed; not packed */
    const struct model *model;    /* borrowed */
    struct lowered_param *params; /* [model->n_params] */
    uint32_t tokens, labels, positions,
            doc_start;  /* i32[T], one copy per micro-batch */
    uint32_t hyper;     /* f32[HYPER_COUNT] */
    uint32_t loss_sum;  /* f64[1]: summed token losses of the global batch */
    uint32_t grad_norm; /* f32[1], before clipping; NONE_ID unless training */
    uint32_t grad_ok;   /* i32[1]: 0 when norm or loss was not finite or above its limit
                            * (update skipped) */
    uint32_t clip_scale; /* f32[1]: the gradient's factor */
    uint32_t loss_stats; /* f64[STATS_COUNT] of token losses, one per micro-batch */
    struct lowered_probe *probes; /* [n_probes]; none without `monitor` */
    uint32_t n_probes;
    uint32_t n_recomputed; /* ops that memory.activations added */
};

/* in: activations must be settled (not auto). errors: ST_CONFIG when sizes overflow. */
MUST_CHECK enum status lower_model(const struct model *m, const struct lower_options *o,
                                   struct lowered *out, struct diag *diag);
void lowered_free(struct lowered *l);

/* "param", "grad", ...; and whether a kind has a copy per micro-batch. */
const char *lowered_probe_name(enum lowered_probe_kind kind);
bool lowered_probe_is_activation(enum lowered_probe_kind kind);

/* Model flops of one step of the program: products and attention of the forward pass
 * once and of the backward pass twice, never recompute. */
double lowered_model_flops(const struct lowered *l);

#endif
