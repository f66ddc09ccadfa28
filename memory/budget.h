/* Does it fit? The memory plan in words, and what would make it fit. */
#ifndef MEMORY_BUDGET_H
#define MEMORY_BUDGET_H

#include "core/str.h"
#include "memory/pack.h"

/* One change of the run that needs less memory, measured by packing its program. */
struct budget_option {
    const char *change; /* "memory.activations=recompute" */
    int64_t bytes;      /* what the pool then needs, other bytes included */
};

/* Checks a pool against its limit. in: what the arena needs and what lies beside it
 * (scratch, libraries), limit in bytes (0: none), options[n] tried by the caller.
 * errors: ST_NO_FIT with needed, limit and shortfall; the hint lists the options that
 * fit, the one that needs most (changes least) first, or the one that comes nearest. */
MUST_CHECK enum status budget_check(enum pool_kind pool, int64_t arena_bytes,
                                    int64_t other_bytes, int64_t limit_bytes,
                                    const struct budget_option *options, int n,
                                    struct diag *diag);

/* Appends a table of the pool's bytes by class at the peak, its total, the lower bound
 * and the op of the peak. in: the packed program and its report. */
void budget_table(struct str *out, const struct program *p, const struct mem_report *r,
                  enum pool_kind pool);

const char *pool_kind_name(enum pool_kind pool);

#endif
