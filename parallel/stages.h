/* Which layers lie on which virtual stage of the pipeline.
 *
 * Virtual stages are counted in the order of the layers (parallel/schedule.h). The first
 * also holds the embedding, the last the head; any of them may have no layers at all.
 */
#ifndef PARALLEL_STAGES_H
#define PARALLEL_STAGES_H

#include "core/status.h"

#define STAGES_LAYERS_MAX  4096
#define STAGES_VIRTUAL_MAX 4096

/* What the parts of a model cost, in any unit that all of them share: measured or
 * modelled time, forward and backward of one micro-batch. Finite, at least 0. */
struct stages_cost {
    const double *layer; /* [n_layers] */
    double embedding;
    double head;
};

/* Cuts the layers into runs, one for each virtual stage, so that the slowest stage is as
 * fast as can be. Among such cuts it takes the least sum of squared stage times; among
 * equal ones the stages at the end get fewer layers, since a slow last stage delays every
 * first micro-batch. Stages stay empty where there are more of them than layers, or where
 * the embedding or the head outweighs layers. out: layers[n_stages * n_chunks]. errors:
 * ST_CONFIG for sizes below 1 or above the limits. */
MUST_CHECK enum status stages_balance(const struct stages_cost *cost, int64_t n_layers,
                                      int64_t n_stages, int64_t n_chunks,
                                      int64_t *layers, struct diag *diag);

/* Checks a cut from elsewhere, list[n]: n_stages * n_chunks numbers of at least 0 that sum
 * to n_layers. errors: ST_CONFIG, naming the number or the sum; the hint gives a balanced
 * cut. */
MUST_CHECK enum status stages_check(const struct stages_cost *cost, int64_t n_layers,
                                    int64_t n_stages, int64_t n_chunks,
                                    const int64_t *list, int64_t n, struct diag *diag);

/* Reads parallel.layers_per_stage: "auto", or a list as in "8,8,7,1" or "[8, 8, 7, 1]"
 * with one number for each virtual stage. out: layers[n_stages * n_chunks]. errors:
 * ST_CONFIG as in stages_check, and for what is no list of whole numbers. */
MUST_CHECK enum status stages_read(const char *text, const struct stages_cost *cost,
                                   int64_t n_layers, int64_t n_stages, int64_t n_chunks,
                                   int64_t *layers, struct diag *diag);

/* The time of every virtual stage under a cut. out: time[n_virtual], in the unit of the
 * cost. Returns the largest. */
double stages_time(const struct stages_cost *cost, const int64_t *layers,
                   int64_t n_virtual, double *time);

#endif
