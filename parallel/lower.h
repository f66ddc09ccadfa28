/* Lowering: from a model and one rank's place to the program of its step.
 *
 * With several ranks every rank has its own program: its stages, its shards, and the
 * communication with the others, which core/ops.def lists.
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
#include "parallel/schedule.h"

enum lower_purpose {
    LOWER_TRAIN,     /* forward, backward, optimizer */
    LOWER_GRADIENTS, /* forward and backward, gradients left in their accumulators */
    LOWER_EVAL,      /* forward, summed loss */
};

/* The layout of the job and the rank's place in it. All zeros: one rank. */
struct lower_layout {
    int32_t degree[MESH_DIMS]; /* 0 is 1 */
    int32_t coord[MESH_DIMS];
    int32_t chunks; /* virtual stages of a rank; 0 is 1 */
    int32_t zero;   /* 0: whole states; 1 to 3: states, gradients, weights are cut */
    bool accumulate_sharded; /* ZeRO 2, 3: every micro-batch's gradients are reduced */
    bool tp_bf16;            /* partial products are rounded before they are summed */
    enum schedule_kind schedule;
    const int32_t *chunk_layers; /* [stages * chunks], in the order of virtual stages;
                                    NULL: even */
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
    struct lower_layout layout;
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

/* One parameter's part on this rank. */
struct lowered_param {
    bool here;                /* otherwise nothing below is set */
    int64_t begin[2], dim[2]; /* its box in the logical tensor */
    bool first_copy; /* of the ranks that hold this box, the one with the lowest place
                              in tensor order; of a tied embedding the first stage's */
    uint32_t weight; /* what the model computes with; NONE_ID where ZeRO 3 gathers */
    uint32_t grad;   /* accumulator, all uses of the parameter summed */
    /* f32, of the whole box; NONE_ID where they are cut, and without an optimizer. In f32
     * training the master is the weight itself. */
    uint32_t master, exp_avg, exp_avg_sq;
};

/* A range of one parameter's elements on this rank (of its box, in row-major order) whose
 * optimizer state is here. Without ZeRO each box is one piece. */
struct lowered_piece {
    uint32_t param;
    int64_t first, n;
    uint32_t master, exp_avg, exp_avg_sq; /* f32[n] */
    uint32_t grad; /* summed over all ranks when the step is done */
    uint32_t
            owned_weight; /* the compute dtype's copy, where ZeRO 3 keeps it; or NONE_ID */
};

struct lowered {
    struct program program;       /* sealed; not packed */
    const struct model *model;    /* borrowed */
    struct lowered_param *params; /* [model->n_params] */
    struct lowered_piece *pieces; /* [n_pieces], in table order */
    uint32_t n_pieces;
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
