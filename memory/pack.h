/* Packing: every storage copy gets its offset in the arena of its pool.
 *
 * Persistent storages come first, in table order, at offsets that do not depend on the
 * transient ones; transients then share bytes wherever their lifetimes allow it
 * (memory/live.h). Nothing is allocated here: the arenas' sizes are the result.
 */
#ifndef MEMORY_PACK_H
#define MEMORY_PACK_H

#include "memory/live.h"

struct pack_options {
    int64_t align_bytes; /* of every offset; a power of two */
    int64_t guard_bytes; /* a gap after every storage copy that nothing else uses */
    bool isolate; /* every storage copy has bytes of its own: nothing is shared */
};

/* Aligned to 64 bytes, no guards, shared. */
struct pack_options pack_options_default(void);

struct mem_layer {
    int32_t layer; /* -1: none */
    int64_t bytes;
};

/* The memory of one pool of one program. */
struct mem_pool {
    int64_t pool_bytes;       /* what the arena needs, padding and guards included */
    int64_t top_bytes;        /* past the highest byte of any storage copy */
    int64_t persistent_bytes; /* where transients begin */
    int64_t bound_bytes;      /* no packing needs less: the most bytes live at once */
    int64_t class_bytes[SC_COUNT];    /* live when most bytes are live */
    int64_t unshared_bytes[SC_COUNT]; /* if nothing shared bytes */
    uint32_t peak_op;   /* the op that runs when most bytes are live, or NONE_ID */
    uint32_t peak_call; /* and its call */
};

/* Memory by pool, and by layer at the device pool's peak (a storage counts for the layer
 * of the first op that uses it). Owns `layers`; mem_report_free releases it. */
struct mem_report {
    struct mem_pool pool[POOL_COUNT];
    VEC(struct mem_layer) layers; /* by layer, ascending */
};

void mem_report_free(struct mem_report *r);

/* Packs one program: fills its offsets and pool_bytes. Storage copies that no call uses
 * keep the offset -1. in: a sealed program that program_verify accepts. out: *report
 * (may be NULL). errors: ST_INTERNAL when two persistent storages share a name. */
MUST_CHECK enum status pack_program(struct program *p, const struct pack_options *opt,
                                    struct mem_report *report, struct diag *diag);

/* Packs the programs of one run into the same arenas: persistent storages of the same
 * name and class lie at the same offset in all of them (a program that lacks one leaves
 * its bytes alone), and every program's pool_bytes is the largest. Storages of the
 * classes input, output and params may differ in size and number of copies; others must
 * agree. in: programs[n]. out: reports[n], or NULL. errors: ST_INTERNAL, naming the
 * storage that differs. */
MUST_CHECK enum status pack_programs(struct program *const *programs, int n,
                                     const struct pack_options *opt,
                                     struct mem_report *reports, struct diag *diag);

#endif
