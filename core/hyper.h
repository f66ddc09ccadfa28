/* The params block: what changes from step to step, as an f32 array that the host writes
 * before each step. Programs read it through a value of class PARAMS. */
#ifndef CORE_HYPER_H
#define CORE_HYPER_H

enum hyper {
    HYPER_LR, /* learning rate of this step */
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_ONE_BETA1, /* 1 - beta1, rounded once from double */
    HYPER_ONE_BETA2,
    HYPER_EPS,
    HYPER_DECAY,      /* weight decay; the step subtracts lr * decay * w */
    HYPER_CORRECT1,   /* 1 / (1 - beta1^t), t counted from 1 */
    HYPER_CORRECT2,   /* 1 / (1 - beta2^t) */
    HYPER_CLIP,       /* limit of the global gradient norm; 0: none */
    HYPER_INV_TOKENS, /* 1 / trained tokens of the global batch */
    HYPER_NORM_MAX,   /* a norm above it is not applied; 0: none */
    HYPER_LOSS_MAX,   /* a mean loss above it is not applied; 0: none */
    HYPER_COUNT
};

/* Elements of one block of the global gradient norm; sharding cuts at block borders. */
#define NORM_BLOCK_ELEMS 16384

#endif
