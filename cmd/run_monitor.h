/* What a run tells beside its train lines: convergence monitors and their alarms,
 * TensorBoard files, the Prometheus file, and the events that a report is made of. */
#ifndef CMD_RUN_MONITOR_H
#define CMD_RUN_MONITOR_H

#include "cmd/run.h"

/* A step that is done. */
struct run_monitor_step {
    const struct run_program *program; /* that ran */
    double loss, grad_norm, lr, tokens_per_s, mfu, step_s;
    bool ok;  /* the update was applied */
    bool due; /* the step has a line in the metrics */
};

/* Figures of every step that the program leaves or the monitor derives. */
struct run_monitor_figures {
    double max_token_loss; /* the largest loss of a token */
    double clip_factor;    /* what clipping multiplied the gradient by */
    double loss_z;         /* against the updates before (cmd/run_guard.h) */
    double grad_norm_z;
};

/* Opens the outputs and writes the event "start" (command, configuration and plan).
 * errors: ST_CREATE, ST_IO for outputs that cannot be made. */
MUST_CHECK enum status run_monitor_open(struct run *r, struct diag *diag);
void run_monitor_close(struct run *r);

/* Whether the step after `step` completed ones is one that probes look at. */
bool run_monitor_is_due(const struct run *r, int64_t step);

/* Reads what the step left on all ranks, looks for alarms, writes events and the outputs. A
 * failed output is said once and the run goes on. errors: those of a lost rank. */
MUST_CHECK enum status run_monitor_after_step(struct run *r,
                                              const struct run_monitor_step *s,
                                              struct diag *diag);

/* The figures of the last step. */
struct run_monitor_figures run_monitor_figures(const struct run *r);

/* The held-out loss is new. */
void run_monitor_after_eval(struct run *r);

/* The run ends: the Prometheus file gets the last state. */
void run_monitor_finish(struct run *r);

#endif
