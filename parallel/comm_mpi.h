/* The world of the ranks that a launcher started, through Open MPI.
 *
 * The library is opened at run time, and only where the environment says that there are
 * several ranks. Ranks of one host share memory (comm_shm); MPI carries what crosses
 * hosts. The sums are those of core/comm.h, bit for bit, whatever the hosts are. */
#ifndef PARALLEL_COMM_MPI_H
#define PARALLEL_COMM_MPI_H

#include "core/comm.h"

struct comm_open_options {
    const char *build; /* what all ranks must have alike: version and flags */
    double deadline_s; /* of the start, and of the world's waits; 0: none */
    int ranks_per_host; /* for tests: so many neighbours count as a host; 0: as they are */
    const char *library; /* file of the MPI library; NULL or "": where it usually is */
};

/* Joins the world that the launcher made: that of one rank where there is none. Call
 * once in a process, before other threads start. out: *out; its close waits for the other
 * ranks to close, too, unless a rank gave up. errors: ST_UNAVAILABLE where a launcher
 * started several ranks and no usable MPI library is here, or another than Open MPI;
 * ST_CONFIG where the ranks' programs differ; ST_STOPPED, ST_NO_FIT. */
MUST_CHECK enum status comm_world_open(const struct comm_open_options *options,
                                       struct comm_world **out, struct diag *diag);

/* Ranks that the environment says a launcher started: 1 for none, 0 where their number
 * is not known yet. */
int comm_launched_ranks(void);

/* Ranks of this host and the place among them, for shares of processors. */
void comm_host_ranks(const struct comm_world *w, int *place, int *n);

#endif
