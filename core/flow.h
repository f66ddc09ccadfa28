/* What the bytes of every storage hold while a program runs: who wrote each of them last,
 * and who read them since.
 *
 * Instances are replayed in order (core/order.h). The bytes of a storage copy are tiled
 * by rectangles of rows and columns, since views are columns of wider rows. Rows have
 * the pitch of the storage's strided values, which must all agree; values without gaps
 * are cut at row borders.
 */
#ifndef CORE_FLOW_H
#define CORE_FLOW_H

#include "core/order.h"

/* The writer of bytes that the host (or an earlier step) filled in. */
#define FLOW_HOST NONE_ID

/* One range of bytes with one history. */
struct flow_piece {
    int64_t row[2];   /* begin, end */
    int64_t col[2];   /* begin, end, in bytes */
    uint32_t value;   /* what was written there, or FLOW_HOST */
    uint32_t writer;  /* its instance, or FLOW_HOST */
    uint32_t readers; /* into flow.readers: last reading instance of each stream */
};

struct flow_copy {
    VEC(struct flow_piece) pieces;
};

struct flow {
    const struct program *prog;
    const struct order *order;
    int64_t *pitch;           /* [storages] bytes of a row */
    struct flow_copy *copies; /* one per entry of the program's offsets */
    uint32_t n_copies;
    VEC(uint32_t) readers; /* n_streams entries per piece; unused with one stream */
};

/* Called for every piece that an access meets, before a write replaces it. */
typedef void (*flow_visit_fn)(void *arg, const struct flow_piece *piece);

/* Starts a replay. in: a sealed program (offsets table made) whose values lie in their
 * storages, and its order; both are borrowed. Bytes of the classes that the host fills
 * (param, optim, params, input) start as written by FLOW_HOST. */
void flow_init(struct flow *f, const struct program *p, const struct order *o);
void flow_free(struct flow *f);

/* The copy of the value's storage that an instance works on, as an index of f->copies
 * and of the program's offsets. */
uint32_t flow_copy_of(const struct flow *f, uint32_t value, uint32_t instance);

/* Reads a value. out: the bytes of it that nothing has written (0: all are there). */
int64_t flow_read(struct flow *f, uint32_t value, uint32_t instance,
                  flow_visit_fn visit, void *arg);

/* The bytes of the value that nothing has written, without reading it. */
int64_t flow_missing(const struct flow *f, uint32_t value, uint32_t instance);

/* Writes a value. */
void flow_write(struct flow *f, uint32_t value, uint32_t instance, flow_visit_fn visit,
                void *arg);

/* Forgets the bytes of all transient storages: they do not outlive the set-up calls. */
void flow_drop_transients(struct flow *f);

/* Whether two values touch a common byte of one storage. Exact when strided values of
 * the storage have one pitch, as verified programs do. */
bool value_bytes_overlap(const struct program *p, uint32_t a, uint32_t b);

/* Whether two values cover exactly the same bytes, row by row, in one dtype size. */
bool value_bytes_equal(const struct program *p, uint32_t a, uint32_t b);

/* Whether every byte of `inner` belongs to `outer` (of one storage). */
bool value_bytes_contain(const struct program *p, uint32_t outer, uint32_t inner);

#endif
