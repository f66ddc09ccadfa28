/* Shared by the files of lowering. */
#ifndef PARALLEL_LOWER_PRIVATE_H
#define PARALLEL_LOWER_PRIVATE_H

#include "core/vec.h"
#include "parallel/lower.h"

/* State while a program is built. */
struct lowering {
    const struct model *m;
    const struct lower_options *o;
    struct lowered *out;
    struct program *p;
    uint32_t head_grad; /* tied: the head's own accumulator; NONE_ID otherwise */
    uint32_t rope_table;
    uint32_t norm_partials;     /* f64[blocks] */
    uint32_t probe_activations; /* storages of what probes write */
    uint32_t probe_params;
    /* Weights that the forward pass reads, with their accumulators. */
    VEC(uint32_t) weights;
    VEC(uint32_t) grads;
    int64_t tokens; /* of one micro-batch */
};

/* Index of a parameter's row; the row must exist. */
uint32_t lower_param_id(const struct lowering *l, enum param_role role, int32_t layer);

/* The forward pass in the open segment. Returns the loss f32[T]. */
uint32_t lower_forward(struct lowering *l);

/* Probes (lower_monitor.c). Those of the loss are in every training program; the others
 * come with the option `monitor`, and without it these emit nothing. */
void lower_monitor_declare(struct lowering *l);
void lower_probe_loss(struct lowering *l, uint32_t loss);
void lower_probe_activation(struct lowering *l, enum lowered_probe_kind kind,
                            int32_t layer, uint32_t x);

/* The segment that looks at parameters, gradients and moments, and its call. */
void lower_monitor(struct lowering *l);

/* The optimizer in the open segment: norm, clipping, AdamW. */
void lower_optimizer(struct lowering *l);

#endif
