/* Happens-before over the ops of a program.
 *
 * An instance is one run of an op by one call of the schedule. Instances of one stream
 * run in sequence; an instance that waits for an event starts after the most recent
 * earlier instance that signals it (a wait before the first signal waits for nothing).
 * Set-up calls end before the first call of a step starts, and steps do not overlap.
 * Each instance carries a vector clock: how many instances of every stream are done
 * before it starts.
 *
 * Repeated blocks of calls (forward, backward, forward, backward, ...) that differ only
 * in the micro-batch are analysed twice, not n times. Two are enough. All copies of a
 * block touch the same storages by the same ops on the same streams, so what the bytes
 * hold after one copy is what they hold after any number of copies, and the second copy
 * stands for all later ones. An access a of copy k that comes before access b of copy
 * k+1 also comes before b of copy k+2, since both b run on one stream; likewise for
 * accesses outside the block. An event that a copy waits for was signalled in the same
 * copy, in the one before, or before the block: two copies show all three. Blocks are
 * not collapsed where an op writes a storage with one copy per micro-batch.
 */
#ifndef CORE_ORDER_H
#define CORE_ORDER_H

#include "core/program.h"

/* The analysed part of the schedule. Owns its arrays; order_free releases them. */
struct order {
    uint32_t n_streams;
    uint32_t n_calls;
    uint32_t *call;       /* [n_calls] index into the program's calls */
    uint32_t *call_first; /* [n_calls + 1] first instance of each call */
    uint32_t n_instances;
    uint32_t *instance_op;   /* [n_instances] op */
    uint32_t *instance_call; /* [n_instances] index into the program's calls */
    uint32_t *seq;           /* [n_instances] place on its own stream, from 1 */
    uint32_t *clock;         /* [n_instances * n_streams] done before it starts */
    uint32_t setup_end;      /* first instance of a step */
};

/* Unrolls the schedule and computes the clocks. in: a program whose segments, calls,
 * streams and events are in range. The order does not refer to the program. */
void order_build(struct order *o, const struct program *p);
void order_free(struct order *o);

/* What is done before the instance starts: clock[n_streams]. */
static inline const uint32_t *order_clock(const struct order *o, uint32_t instance)
{
    return o->clock + (size_t)instance * o->n_streams;
}

/* Whether instance a is done before instance b starts, whatever the timing. */
static inline bool order_before(const struct order *o, const struct program *p,
                                uint32_t a, uint32_t b)
{
    uint32_t stream = p->ops.data[o->instance_op[a]].stream;
    return order_clock(o, b)[stream] >= o->seq[a];
}

/* The copy of a storage that a call works on. */
static inline uint32_t storage_copy(const struct prog_storage *s,
                                    const struct prog_call *c)
{
    return s->slotting == SLOT_CALL          ? c->slot
           : s->slotting == SLOT_MICRO_BATCH ? c->micro_batch
                                             : 0;
}

/* The longest block of calls that is looked for, and the repeats that are kept. */
#define ORDER_BLOCK_CALLS_MAX 512
#define ORDER_BLOCK_COPIES    2

#endif
