/* What the ranks of a run do together beside its programs: groups, words on the host's
 * side, and the comparison before the first step. With one rank all of it does nothing.
 *
 * Every function that talks to the others is called by all ranks, in the same order. */
#ifndef CMD_RUN_RANKS_H
#define CMD_RUN_RANKS_H

#include "core/comm.h"
#include "core/config.h"
#include "core/exec.h"

struct run;

struct run_ranks {
    struct comm_world *world; /* NULL: one rank, without a world */
    struct comm *control;     /* all ranks; words of the host alone */
    struct comm *groups[GROUP_COUNT];
    int rank, size;
    double deadline_s; /* of a step's waits */
    bool agreed;       /* the error that the run ends with is known to all ranks */
};

/* What each rank tells the others at every step, before it computes. */
struct run_word {
    int32_t status;      /* of its batch */
    int32_t stop_signal; /* 0: none */
    int64_t n_trained; /* labels in its part of the batch; 0 of all but one rank of those
                            that have the same part */
};

/* Takes a world (or none) into use. errors: ST_STOPPED. */
MUST_CHECK enum status run_ranks_open(struct run *r, struct comm_world *world,
                                      struct diag *diag);

/* Closes the groups; the world stays. */
void run_ranks_close(struct run *r);

/* The first rank: it prints, logs and records. */
bool run_is_first(const struct run *r);

/* Compares build, configuration and what the ranks count as their number. errors:
 * ST_CONFIG naming what differs and the ranks. */
MUST_CHECK enum status run_ranks_compare(struct run *r, struct diag *diag);

/* Opens the groups of the layout. errors: ST_STOPPED. */
MUST_CHECK enum status run_ranks_groups(struct run *r, struct diag *diag);

/* Compares what the programs of the ranks ask of each other. errors: ST_INTERNAL. */
MUST_CHECK enum status run_ranks_verify(struct run *r, struct diag *diag);

/* comm_agree (core/agree.h) of all ranks, noted in ranks.agreed. */
MUST_CHECK enum status run_agree(struct run *r, enum status st, struct diag *diag);

/* x of rank 0; the sum, and the largest, over all ranks (f64, in order of ranks). */
MUST_CHECK enum status run_broadcast(struct run *r, void *x, size_t bytes,
                                     struct diag *diag);
MUST_CHECK enum status run_sum(struct run *r, double *x, int64_t n, struct diag *diag);
MUST_CHECK enum status run_max(struct run *r, double *x, int64_t n, struct diag *diag);

/* A fixed number of bytes (a multiple of 4) of each rank. out: all[size][bytes]. */
MUST_CHECK enum status run_gather(struct run *r, const void *mine, void *all,
                                  size_t bytes, struct diag *diag);

/* The words of a step: out: *sum of what all say, with the signal of the lowest rank that
 * has one, and the status of the lowest rank that has none that is ST_OK (*from). */
MUST_CHECK enum status run_exchange(struct run *r, const struct run_word *mine,
                                    struct run_word *sum, int *from, struct diag *diag);

/* Waits of steps have the deadline of the configuration; those of the start and of saves,
 * in which ranks have unequal work, ten times as much. */
void run_be_patient(struct run *r, bool patient);

#endif
