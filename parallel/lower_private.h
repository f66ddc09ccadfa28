/* Shared by the files of lowering. */
#ifndef PARALLEL_LOWER_PRIVATE_H
#define PARALLEL_LOWER_PRIVATE_H

#include "core/diff.h"
#include "core/vec.h"
#include "parallel/lower.h"

enum tensor_kind {
    TENSOR_WEIGHT,
    TENSOR_MASTER,
    TENSOR_EXP_AVG,
    TENSOR_EXP_AVG_SQ,
    TENSOR_GRAD,
    TENSOR_KIND_COUNT
};

/* One parameter as this rank has it. */
struct local_param {
    bool here; /* one of the rank's stages has it */
    uint32_t unit;
    int64_t at; /* first element in the unit */
    int64_t elems;
    int32_t n_shards; /* different parts that the tensor group holds; 1: all alike */
    int32_t shard;    /* the part that is here */
    bool replicated;  /* other ranks of the tensor group have the same part */
    bool counts;      /* this rank's copy is the one that the global norm counts */
    int64_t norm_at;  /* first block of the part among the norm's partial sums */
};

/* Rows of the table that lie in one storage of each kind. Without data parallelism these
 * are the rows that one product reads; with it, those of a layer that are reduced alike,
 * so that buckets are large. */
struct unit {
    uint32_t first; /* row */
    int32_t layer;
    int64_t elems;
    uint32_t bucket_first, bucket_end;
    int64_t owned_elems;                 /* of all its buckets */
    uint32_t storage[TENSOR_KIND_COUNT]; /* whole, or the owned parts; NONE_ID */
    uint32_t owned_weight; /* ZeRO 3: the storage of owned weights, or NONE_ID */
    uint32_t
            owned_grad; /* sharded accumulation: the storage of owned sums; or NONE_ID */
};

/* A range of a unit's elements that is reduced by one call. Cut over the data group at the
 * borders of the norm's blocks. */
struct bucket {
    uint32_t unit;
    int64_t begin, n;         /* of the unit's elements */
    uint32_t cuts;            /* into the program's cuts */
    int64_t own_begin, own_n; /* this rank's part, of the unit's elements */
    int64_t own_at;           /* its first element among the unit's owned ones */
    uint32_t sum; /* sharded accumulation: the value of the owned sums; or NONE_ID */
};

/* A weight that is gathered again in a backward segment. */
struct regathered {
    uint32_t segment, then, now;
};

/* State while a program is built. */
struct lowering {
    const struct model *m;
    const struct lower_options *o;
    struct lowered *out;
    struct program *p;
    int32_t degree[MESH_DIMS], coord[MESH_DIMS];
    struct local_param *local; /* [n_params] */
    VEC(struct unit) units;
    VEC(struct bucket) buckets;
    VEC(struct lowered_piece) pieces;
    uint32_t *weight; /* [n_params] the value that the forward pass reads */
    uint32_t
            head_grad; /* tied, both ends here: the head's own accumulator; or NONE_ID */
    uint32_t rope_table;
    uint32_t norm_partials; /* f64[blocks of all ranks] */
    int64_t n_norm_blocks;
    uint32_t probe_activations; /* storages of what probes write */
    uint32_t probe_params;
    /* Weights that the forward pass of the chunk reads, with their accumulators and the
     * rows they start at. */
    VEC(uint32_t) weights;
    VEC(uint32_t) grads;
    VEC(uint32_t) rows;
    int64_t tokens;            /* of one micro-batch */
    int64_t tokens_local;      /* between the products of a tensor group */
    uint32_t weight_buffer[2]; /* ZeRO 3: layers' weights in turn; or NONE_ID */
    uint32_t grad_buffer[2];   /* sharded accumulation: layers' gradients in turn */
    VEC(struct regathered) regathered;
};

/* Chunks of this rank, and layers of the virtual stage that a chunk is. */
int32_t lower_chunks(const struct lowering *l);
void lower_chunk_layers(const struct lowering *l, int32_t chunk, int32_t *begin,
                        int32_t *end);
bool lower_chunk_is_first(const struct lowering *l, int32_t chunk);
bool lower_chunk_is_last(const struct lowering *l, int32_t chunk);

/* The rank has the embedding / the head. */
bool lower_has_first(const struct lowering *l);
bool lower_has_last(const struct lowering *l);

/* Index of a parameter's row; the row must exist. */
uint32_t lower_param_id(const struct lowering *l, enum param_role role, int32_t layer);

/* Attributes of a communication op. */
void lower_group_attrs(const struct lowering *l, struct op_args *a, enum comm_group g);

/* --------------------------------------------------------------- lower_params.c */

/* Finds the rank's parts of all parameters, and declares their tensors. */
MUST_CHECK enum status lower_declare_params(struct lowering *l, struct diag *diag);
void lower_params_free(struct lowering *l);

/* The values of a unit's rows in its whole storage of this kind. */
void lower_declare_rows(struct lowering *l, uint32_t unit, enum tensor_kind kind);

enum dtype lower_weight_dtype(const struct lowering *l, const struct param *row);
enum dtype lower_grad_dtype(const struct lowering *l);

/* Whether the optimizer's state is cut over the data group. */
bool lower_is_sharded(const struct lowering *l);

/* One value over rows first..last, which lie back to back. grad: of the accumulators. */
uint32_t lower_span(struct lowering *l, uint32_t first, uint32_t last, bool grad);

/* A flat value over elements of a unit's storage. */
uint32_t lower_flat(struct lowering *l, uint32_t storage, enum dtype dtype, int64_t at,
                    int64_t n, const char *name);

/* ------------------------------------------------------------------ lower_data.c */

/* The gradients of a unit: summed over the ranks that hold the same weights. */
void lower_reduce_unit(struct lowering *l, uint32_t unit, enum op_phase phase);

/* After an update: the owned weights in the compute dtype, and but for ZeRO 3 the whole
 * ones, gathered. */
void lower_gather_weights(struct lowering *l, enum op_phase phase);

/* A bucket of weights gathered into a storage of its unit's size from `own`; and the owned
 * weights of a bucket that ZeRO 3 keeps. */
void lower_gather_bucket(struct lowering *l, const struct bucket *b, uint32_t own,
                         uint32_t storage, enum op_phase phase);
uint32_t lower_owned_weights(struct lowering *l, const struct bucket *b);

/* The phase of what happens to a unit's gradients in the backward pass: the head's are made
 * with those of the loss, the others with the gradients of weights. */
enum op_phase lower_unit_phase(const struct lowering *l, uint32_t unit);

/* Whether a unit's gradients are complete when the backward pass leaves a layer; those of
 * tied embeddings only in the optimizer segment. */
bool lower_unit_is_late(const struct lowering *l, uint32_t unit);

/* ------------------------------------------------------------------ lower_zero.c */

/* Whether a unit's weights are kept in parts and gathered for each use (ZeRO 3), and
 * whether its gradients are reduced after every micro-batch. */
bool lower_unit_gathers(const struct lowering *l, const struct unit *u);
bool lower_unit_sums_sharded(const struct lowering *l, uint32_t unit);

/* The storages that layers' weights and gradients pass through. */
void lower_zero_declare(struct lowering *l);

/* The owned sums of all buckets, in storages that are declared by then. */
void lower_zero_declare_sums(struct lowering *l);

/* Gathers what the forward pass reads: of a row without a layer; of a layer. Without
 * ZeRO 3 these emit nothing. */
void lower_zero_gather_row(struct lowering *l, uint32_t row);
void lower_zero_gather_layer(struct lowering *l, int32_t layer);

/* A layer's weights in a backward segment that is being differentiated. */
void lower_zero_regather(struct lowering *l, struct diff *d, int32_t layer);

/* In a segment of weight gradients alone, the weights that recompute reads there. in: the
 * program's last segment; the first layer of its chunk. */
void lower_zero_regather_weights(struct lowering *l, uint32_t segment, int32_t begin);

/* Clears the passing gradients of a layer, or of the units at the head's (-1) end. */
void lower_zero_clear(struct lowering *l, int32_t layer, bool front);

/* After recompute was added: its ops read what the backward segment gathered. */
void lower_zero_redirect(struct lowering *l);

/* --------------------------------------------------------------- lower_forward.c */

/* The forward pass of a chunk in the open segment. in: x of the stage before, or NONE_ID.
 * Returns the residual stream, or, of the last chunk, what the head reads: normalised, of
 * all tokens. */
uint32_t lower_forward(struct lowering *l, int32_t chunk, uint32_t x);

/* ------------------------------------------------------------------ lower_loss.c */

/* The head and the loss in the open segment. in: x c[T,H] as lower_forward leaves it.
 * With `trains` the gradients of the head follow those of its logits at once, chunk of
 * tokens by chunk, so that no logits are kept; returns the gradient of x (or NONE_ID). */
uint32_t lower_loss(struct lowering *l, uint32_t x, bool trains);

/* Shared with it: registers a weight that the forward pass reads (row: its first row);
 * a communication op that the tensor group's ranks gather rows by. */
uint32_t lower_use(struct lowering *l, uint32_t weight, uint32_t grad, uint32_t row);
uint32_t lower_emit_gather(struct lowering *l, int32_t layer, uint32_t x);
void lower_vocab_attr(struct lowering *l, struct op_args *a, uint32_t row);

/* -------------------------------------------------------------- lower_monitor.c */

/* Probes. Those of the loss are in every training program; the others come with the option
 * `monitor`, and without it these emit nothing. */
void lower_monitor_declare(struct lowering *l);
void lower_probe_loss(struct lowering *l, uint32_t loss);
void lower_probe_activation(struct lowering *l, enum lowered_probe_kind kind,
                            int32_t layer, uint32_t x);

/* The segment that looks at parameters, gradients and moments, and its call. */
void lower_monitor(struct lowering *l);

/* ---------------------------------------------------------------- lower_optim.c */

/* The sum of the loss over all ranks, in the open segment. */
void lower_reduce_loss(struct lowering *l);

/* The optimizer in the open segment: norm, clipping, AdamW. */
void lower_optimizer(struct lowering *l);

#endif
