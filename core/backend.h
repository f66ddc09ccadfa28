/* What a device must do for core/exec.h: memory, copies, launches, events. The CPU
 * implements it in kernels/cpu/cpu_backend.c; cmd chooses and wires it. No slot is
 * optional. Nothing outside kernels/ knows which backend runs.
 */
#ifndef CORE_BACKEND_H
#define CORE_BACKEND_H

#include "core/comm.h"
#include "core/pool.h"
#include "core/program.h"

/* A value resolved to an address: rows of dim[0] with a pitch of ld elements. */
struct view {
    void *data;
    enum dtype dtype;
    int ndim;
    int64_t dim[VALUE_DIMS_MAX];
    int64_t ld;
};

struct launch;

/* Called before or after an op, on the thread that runs it; for checks, tests and traces.
 * errors: end the run as an op's own failure does. */
typedef enum status (*launch_hook_fn)(void *arg, const struct launch *l,
                                      struct diag *diag);

struct launch_hooks {
    launch_hook_fn before, after; /* either may be NULL */
    void *arg;
};

/* One op with its operands resolved. An absent output has data NULL. */
struct launch {
    const struct program *prog;
    const struct prog_op *op;
    const struct prog_call *call;
    struct view in[OP_IN_MAX];
    struct view out[OP_OUT_MAX];
    const int32_t *predicate; /* device address, or NULL: always run */
    void *scratch;            /* scratch_bytes of the op's stream, 64-byte aligned */
    struct comm *comm;        /* of the op's group, or NULL */
    int64_t *run_ns;          /* the time that the op runs is added to it, or NULL */
    const struct launch_hooks *hooks; /* or NULL */
};

struct backend;

/* The streams and events of one program on a backend. Programs that share a backend have
 * streams each, of which those of one program at a time are in use. */
struct backend_streams;

struct backend_ops {
    const char *name;
    /* Whether the host can read and write device memory through its addresses. */
    bool host_visible;
    /* Device memory for one pool, zeroed, 2 MiB-aligned. errors: ST_NO_FIT. */
    enum status (*pool_alloc)(struct backend *b, enum pool_kind pool, int64_t bytes,
                              void **out, struct diag *diag);
    void (*pool_free)(struct backend *b, enum pool_kind pool, void *p, int64_t bytes);
    /* Chooses a kernel for every op of the program. out: chosen[n_ops], opaque numbers
     * for launch; scratch_bytes[n_streams], the largest scratch of any op of a stream.
     * errors: ST_UNAVAILABLE when no kernel takes an op. */
    enum status (*bind)(struct backend *b, const struct program *prog, uint32_t *chosen,
                        int64_t *scratch_bytes, struct diag *diag);
    /* Name of a chosen kernel, for reports. */
    const char *(*kernel_name)(struct backend *b, uint32_t chosen);
    void (*copy_in)(struct backend *b, void *device, const void *host, size_t bytes);
    void (*copy_out)(struct backend *b, void *host, const void *device, size_t bytes);
    /* Streams and events for a program, which is borrowed. The three calls below and sync
     * come from one thread. errors: ST_UNAVAILABLE. */
    enum status (*streams_open)(struct backend *b, const struct program *prog,
                                struct backend_streams **out, struct diag *diag);
    /* Waits for what was launched. */
    void (*streams_close)(struct backend_streams *s);
    /* Appends an op to its stream, which runs what it was given in order. The launch is
     * copied; what it points to stays until sync. After the first failure of an op or a
     * hook, launches do nothing. */
    void (*launch)(struct backend_streams *s, uint32_t chosen, const struct launch *l);
    void (*event_record)(struct backend_streams *s, uint8_t stream, uint32_t event);
    /* The stream goes on when the most recent record of the event that was appended before
     * this call is done; at once when there was none. */
    void (*event_wait)(struct backend_streams *s, uint8_t stream, uint32_t event);
    /* Waits until everything launched is done. errors: the first failure since
     * streams_open. */
    enum status (*sync)(struct backend_streams *s, struct diag *diag);
    void (*destroy)(struct backend *b);
};

/* Backends embed this as their first member. */
struct backend {
    const struct backend_ops *ops;
};

#endif
