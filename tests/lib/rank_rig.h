/* Runs a layout's ranks as threads of the test and collects what they computed, by logical
 * parameter: so that layouts can be compared with each other. */
#ifndef TESTS_LIB_RANK_RIG_H
#define TESTS_LIB_RANK_RIG_H

#include "core/comm.h"
#include "tests/lib/layouts.h"

#define RANK_RIG_STEPS     5
#define RANK_RIG_STEPS_MAX 50

/* What a run computed. Owns its arrays; outcome_free releases them. */
struct outcome {
    double loss[RANK_RIG_STEPS_MAX]; /* mean of the global batch */
    double norm[RANK_RIG_STEPS_MAX];
    float *grads
            [2]; /* after the first and the last step, all parameters in table order */
    float *masters; /* after the last step */
    float *moments[2];
    int64_t n; /* elements of all parameters */
};

void outcome_free(struct outcome *o);

/* Whether two outcomes are the same bits. */
bool outcome_equal(const struct outcome *a, const struct outcome *b);

/* Options of a run beside the layout. */
struct rank_rig_options {
    enum dtype compute;
    bool check;           /* guard bands and fill patterns (core/exec.h) */
    int steps;            /* 0: RANK_RIG_STEPS */
    int batches;          /* after which the data begin again; 0: never */
    uint64_t permutation; /* of each rank's micro-batches; 0: in their order */
    /* What a fault is planted into: called for each rank's program before it is packed.
     * NULL: nothing. */
    void (*spoil)(struct lowered *l, int rank, void *arg);
    void *arg;
};

/* Trains the steps. Fails the test on any error. */
void rank_rig_run(const struct layout_case *c, const struct model *m,
                  const struct rank_rig_options *o, struct outcome *out);

/* The groups that the ranks of a layout need, made in the same order by all. groups:
 * [GROUP_COUNT], NULL where the rank is in no group of the kind. */
enum status rank_rig_groups(const struct layout_case *c, const struct model *m,
                            struct comm_world *w, struct comm **groups,
                            struct diag *diag);

#endif
