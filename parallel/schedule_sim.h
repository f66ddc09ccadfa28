/* Simulation of a pipeline schedule: how long it takes, where it waits, what it holds.
 *
 * Stages run their calls in order. A call starts when its stage is free and its input is
 * there: the message from the neighbouring virtual stage, the forward before its backward,
 * the input part before the weight part. Sends do not block. Messages of one direction
 * between two stages travel one at a time and arrive in the order of sending.
 */
#ifndef PARALLEL_SCHEDULE_SIM_H
#define PARALLEL_SCHEDULE_SIM_H

#include "parallel/schedule.h"

/* Times by virtual stage, [n_stages * n_chunks] each; a whole backward takes the sum of
 * its parts. */
struct schedule_cost {
    const double *forward_s;
    const double *backward_input_s;
    const double *backward_weight_s;
    double message_s;
};

struct schedule_stage_use {
    double busy_s;
    double end_s;
    uint32_t peak_in_flight; /* micro-batches times chunks that hold activations */
};

/* Owns its array; schedule_result_free releases it. */
struct schedule_result {
    double makespan_s;
    double bubble_fraction; /* of all stages' time together, what they do not work */
    VEC(struct schedule_stage_use) stages;
};

/* Runs the schedules of all stages. in: stages[n_stages] of one kind and size. errors:
 * ST_INTERNAL for a deadlock, a message that is taken out of order or never, a call that is
 * missing, there twice, or before what it needs on its own stage, all named in words.
 * ownership: schedule_result_free(out), also after an error. */
MUST_CHECK enum status schedule_simulate(const struct schedule *stages,
                                         const struct schedule_cost *cost,
                                         struct schedule_result *out,
                                         struct diag *diag);
void schedule_result_free(struct schedule_result *r);

#endif
