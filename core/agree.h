/* Ranks agree on how something went: no rank goes on alone after another one failed. */
#ifndef CORE_AGREE_H
#define CORE_AGREE_H

#include "core/comm.h"

/* The status of the lowest member that has one that is not ST_OK, with its diagnostic, on
 * all members; from a member other than the first, the text names it. Every member calls
 * it. in: c, or NULL for a rank alone. A status of ST_STOPPED is not shared: the world
 * ended, and nobody listens. out: *shared (may be NULL), whether all members know the
 * error that is returned. */
MUST_CHECK enum status comm_agree(struct comm *c, enum status st, bool *shared,
                                  struct diag *diag);

/* `bytes` (a multiple of 4) of each member. out: all[size][bytes]. */
MUST_CHECK enum status comm_gather(struct comm *c, const void *mine, void *all,
                                   size_t bytes, struct diag *diag);

#endif
