/* Communicators through memory that all ranks can read: ranks that are threads of a
 * process, or processes of one host.
 *
 * A collective is a meeting (all members post what they call and where their data lies,
 * and see that all have), work on the others' data in place, and a second meeting after
 * which buffers are free again. Small data travels in the post itself, and then the
 * second meeting falls away. Data that others cannot read goes through bounded windows of
 * the shared memory, with a meeting each. Messages are posted in a ring for each pair.
 *
 * A call that ends early (a rank gave up, the deadline) first lets those finish who work
 * on this rank's buffers. */
#ifndef PARALLEL_COMM_SHM_H
#define PARALLEL_COMM_SHM_H

#include "parallel/comm_region.h"

/* The worlds of n ranks that are threads of this process. out: world[n]; each is used
 * from its rank's threads and closed by one. Close groups before their world; the last
 * world that is closed frees the shared memory. errors: ST_NO_FIT. */
MUST_CHECK enum status comm_threads_create(int n, struct comm_world **world,
                                           struct diag *diag);

/* The world of place `place` of a region of processes (region_create, region_map), with
 * the places as ranks; messages name the region's world ranks. Waits until all have
 * joined. in: deadline_s of that and of the world. ownership: takes the mapping and the
 * fd, also on failure. errors: ST_STOPPED. */
MUST_CHECK enum status comm_shm_join(struct region_head *head, int fd, int place,
                                     double deadline_s, struct comm_world **out,
                                     struct diag *diag);

/* The rank's end of the region. */
struct region *comm_shm_region(struct comm_world *world);

/* Makes its waits follow the deadline of the world that it is part of. */
void comm_shm_follow_deadline(struct comm_world *world, const double *deadline_s);

#endif
