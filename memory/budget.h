/* Does it fit? What is missing, and which changes of the run would make it fit. */
#ifndef MEMORY_BUDGET_H
#define MEMORY_BUDGET_H

#include "core/str.h"

/* One change of the run that needs less memory, measured by packing its program. */
struct budget_option {
    const char *change; /* "memory.activations=recompute" */
    int64_t bytes;      /* what the run then needs in all */
};

/* Checks what a run needs against its limit. in: bytes needed and allowed; `whose`, what
 * the limit is of ("this machine"); options[n] tried by the caller.
 * errors: ST_NO_FIT with needed, limit and shortfall; the hint lists the options that
 * fit, the one that needs most (changes least) first, or the one that comes nearest. */
MUST_CHECK enum status budget_check(int64_t needed_bytes, int64_t limit_bytes,
                                    const char *whose,
                                    const struct budget_option *options, int n,
                                    struct diag *diag);

#endif
