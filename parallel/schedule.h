/* Pipeline schedules: which part of which chunk runs when, for which micro-batch.
 *
 * The layers are cut into n_stages * n_chunks virtual stages; virtual stage u lies on stage
 * u % n_stages as its chunk u / n_stages. A schedule is the list of calls of one stage,
 * in order; the program builder turns each into a call of a segment. In every schedule
 *
 *   - each chunk does its forwards, backwards and weight parts in micro-batch order, so that
 *     gradients accumulate in the same order, and are equal bit for bit, under all of them;
 *   - the messages from one stage to another, of one direction (forward or backward), are
 *     sent in the order in which they are taken.
 *
 * A schedule is one row of the table in schedule.c: a name, limits, and the function that
 * lists the calls.
 */
#ifndef PARALLEL_SCHEDULE_H
#define PARALLEL_SCHEDULE_H

#include "core/vec.h"

enum schedule_kind {
    SCHEDULE_1F1B,        /* one forward, one backward */
    SCHEDULE_INTERLEAVED, /* 1F1B over several chunks per stage */
    SCHEDULE_ZB_H1,       /* backward in two parts; the weight part fills the bubble */
    SCHEDULE_KINDS
};

enum schedule_part {
    PART_FORWARD,
    PART_BACKWARD,       /* both parts at once */
    PART_BACKWARD_INPUT, /* gradient of the chunk's input: what the stage before needs */
    PART_BACKWARD_WEIGHT, /* gradients of the chunk's weights */
    PART_COUNT
};

/* Slots number the copies of a chunk's saved activations, from 0 for each chunk. A slot is
 * taken by a forward and free after the micro-batch's last backward part. */
struct schedule_item {
    enum schedule_part part;
    uint32_t chunk; /* of this stage */
    uint32_t micro_batch;
    uint32_t slot;
};

/* The calls of one stage. Owns its arrays; schedule_free releases them. */
struct schedule {
    enum schedule_kind kind;
    uint32_t n_stages;
    uint32_t n_chunks; /* per stage */
    uint32_t n_micro_batches;
    uint32_t stage;
    VEC(struct schedule_item) items;
    VEC(uint32_t) n_slots; /* [n_chunks] */
};

#define SCHEDULE_STAGES_MAX        (1 << 16)
#define SCHEDULE_CHUNKS_MAX        (1 << 12)
#define SCHEDULE_MICRO_BATCHES_MAX (1 << 20)
#define SCHEDULE_CALLS_MAX         (1 << 24) /* forwards of one stage */

/* Lists the calls of one stage. Any number of micro-batches from 1, any number of stages
 * from 1; interleaved takes two or more chunks per stage, the others one.
 *
 * 1f1b: stage i runs min(m, p-1-i) forwards ahead (Narayanan et al. 2021, "Efficient
 * large-scale language model training on GPU clusters", section 2.2.1).
 *
 * interleaved: micro-batches pass through the chunks in groups of p (the same paper,
 * section 2.2.2). Where p does not divide m, m is cut into floor(m/p) groups that differ
 * by at most one, the larger ones first: the bubble stays (p-1)/(v*m), and more
 * micro-batches are in flight than in the classic form. With m < p there is one group
 * of m, and stages wait for each other's chunks.
 *
 * zb: ZB-H1 (Qi et al. 2023, "Zero bubble pipeline parallelism", section 2.1): the order of
 * 1f1b, with stage i keeping its weight parts back by i micro-batches, so that every stage
 * has at most p micro-batches in flight and the late stages fill the end.
 *
 * errors: ST_CONFIG for counts below 1 or above the limits, and chunks that the schedule
 * does not take. ownership: schedule_free(out), also after an error. */
MUST_CHECK enum status schedule_build(enum schedule_kind kind, int64_t n_stages,
                                      int64_t n_chunks, int64_t n_micro_batches,
                                      int64_t stage, struct schedule *out,
                                      struct diag *diag);
void schedule_free(struct schedule *s);

/* "1f1b", "interleaved", "zb": the values of parallel.schedule. */
const char *schedule_name(enum schedule_kind kind);
const char *schedule_part_name(enum schedule_part part);

/* Whether the schedule runs backward as an input and a weight part. */
bool schedule_splits_backward(enum schedule_kind kind);

/* Virtual stages: the order in which the chunks of all stages lie in the model. */
static inline uint32_t schedule_virtual(uint32_t n_stages, uint32_t stage,
                                        uint32_t chunk)
{
    return chunk * n_stages + stage;
}

static inline uint32_t schedule_virtual_stage(uint32_t n_stages, uint32_t virtual_stage)
{
    return virtual_stage % n_stages;
}

static inline uint32_t schedule_virtual_chunk(uint32_t n_stages, uint32_t virtual_stage)
{
    return virtual_stage / n_stages;
}

#endif
