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
    uint32_t norm_partials; /* f64[blocks] */
    uint32_t clip_scale;    /* f32[1] */
    /* Weights that the forward pass reads, with their accumulators. */
    VEC(uint32_t) weights;
    VEC(uint32_t) grads;
    int64_t tokens; /* of one micro-batch */
};

/* Index of a parameter's row; the row must exist. */
uint32_t lower_param_id(const struct lowering *l, enum param_role role, int32_t layer);

/* The forward pass in the open segment. Returns the loss f32[T]. */
uint32_t lower_forward(struct lowering *l);

/* The optimizer in the open segment: norm, clipping, AdamW. */
void lower_optimizer(struct lowering *l);

#endif
