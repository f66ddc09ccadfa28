/* The layouts that tests train in: the equality matrix. */
#ifndef TESTS_LIB_LAYOUTS_H
#define TESTS_LIB_LAYOUTS_H

#include "parallel/lower.h"

/* One layout. The global batch is always LAYOUT_SEQUENCES sequences. */
struct layout_case {
    const char *name;
    int tp, pp, chunks, dp, zero; /* 0 is 1 (zero: 0) */
    enum schedule_kind schedule;
    int micro_batch; /* sequences of one micro-batch */
    enum memory_activations activations;
    bool sharded;                /* zero_accumulate */
    const int32_t *chunk_layers; /* NULL: even */
    bool quick;                  /* one of the few that are always run */
};

#define LAYOUT_SEQUENCES 8
#define LAYOUT_SEQ_LEN   24
#define LAYOUT_LAYERS    6

enum {
    LAYOUT_GPT2,
    LAYOUT_LLAMA,
    LAYOUT_MQA, /* one key/value head */
    LAYOUT_MODELS
};

extern const struct layout_case layout_cases[];
extern const int n_layout_cases;

int layout_world(const struct layout_case *c);

/* A small model (vocabulary not divisible by a tensor degree, more tensor ranks than
 * key/value heads where the degree is 4). */
void layout_model(const struct layout_case *c, int which, struct model *out);

/* Options of one rank for gradients or training (o->purpose LOWER_TRAIN). */
void layout_options(const struct layout_case *c, int rank, enum dtype compute,
                    struct lower_options *o);

#endif
