/* The layout of a job: what `parallel` asks for, settled for the ranks that there are and
 * held against model and batch. The one place that says which layouts are possible. */
#ifndef PARALLEL_LAYOUT_H
#define PARALLEL_LAYOUT_H

#include "core/config.h"
#include "parallel/lower.h"
#include "parallel/mesh.h"

struct layout {
    struct mesh mesh;
    enum schedule_kind schedule;
    int32_t n_chunks;
    int32_t *chunk_layers; /* [pp * vpp] in the order of virtual stages */
};

/* Settles what c->parallel leaves open for `world` ranks, and checks it: degrees against
 * ranks, heads, feed-forward, tokens and vocabulary, stages against layers and schedule,
 * batches against data ranks and micro-batch (unless that is open, too).
 * in: choice, which of the layouts that degrees left open allow, 0 the preferred one: as
 * much data parallelism as the batch divides into, then tensor, then pipeline. out:
 * c->parallel with every field set; *out with arrays of the arena. errors: ST_CONFIG with
 * the rule, what was given and where, and the nearest that works; ST_NOT_FOUND for a
 * choice that there is not. */
MUST_CHECK enum status layout_resolve(struct config *c, int64_t world, int choice,
                                      struct arena *a, struct layout *out,
                                      struct diag *diag);

/* Whether degrees are open, so that there may be more than one choice. */
bool layout_is_open(const struct config *c);

/* Ranks that the degrees ask for where no number of ranks is given: open ones count as
 * 1. */
int64_t layout_ranks_asked(const struct config *c);

/* The part of `rank`. */
void layout_of_rank(const struct layout *l, const struct config *c, int rank,
                    struct lower_layout *out);

/* Sequences that one data rank has of a global batch. */
static inline int64_t layout_share(const struct layout *l, int64_t global_batch)
{
    return global_batch / l->mesh.degree[MESH_DP];
}

/* Whether a micro-batch divides every data rank's share of every global batch, and its
 * tokens the tensor group. */
bool layout_takes_micro_batch(const struct config *c, int64_t micro_batch);

/* Seconds of parallel.deadline_s; 0: none. */
double layout_deadline_s(const struct config *c);

/* "tp 2 x pp 2 x dp 2 (zero 1), schedule 1f1b, layers 5+5"; appended. */
void layout_print(const struct layout *l, const struct config *c, struct str *out);

#endif
