/* What a device must do for core/exec.h: memory, copies, launches, events. The CPU
 * implements it in kernels/cpu/cpu_backend.c; cmd chooses and wires it. No slot is
 * optional. Nothing outside kernels/ knows which backend runs.
 */
#ifndef CORE_BACKEND_H
#define CORE_BACKEND_H

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

/* One op with its operands resolved. An absent output has data NULL. */
struct launch {
    const struct program *prog;
    const struct prog_op *op;
    struct view in[OP_IN_MAX];
    struct view out[OP_OUT_MAX];
    const int32_t *predicate; /* device address, or NULL: always run */
    void *scratch;            /* scratch_bytes of the op's kernel, 64-byte aligned */
};

struct backend;

struct backend_ops {
    const char *name;
    /* Whether the host can read and write device memory through its addresses. */
    bool host_visible;
    /* Device memory for one pool, zeroed, 2 MiB-aligned. errors: ST_NO_FIT. */
    enum status (*pool_alloc)(struct backend *b, enum pool_kind pool, int64_t bytes,
                              void **out, struct diag *diag);
    void (*pool_free)(struct backend *b, enum pool_kind pool, void *p, int64_t bytes);
    /* Chooses a kernel for every op of the program. in: chosen[n_ops] is filled with an
     * opaque number for launch. out: *scratch_bytes the largest scratch of any op.
     * errors: ST_UNAVAILABLE when no kernel takes an op. */
    enum status (*bind)(struct backend *b, const struct program *prog, uint32_t *chosen,
                        int64_t *scratch_bytes, struct diag *diag);
    void (*launch)(struct backend *b, uint32_t chosen, const struct launch *l);
    /* Name of a chosen kernel, for reports. */
    const char *(*kernel_name)(struct backend *b, uint32_t chosen);
    void (*copy_in)(struct backend *b, void *device, const void *host, size_t bytes);
    void (*copy_out)(struct backend *b, void *host, const void *device, size_t bytes);
    void (*event_record)(struct backend *b, uint8_t stream, uint32_t event);
    void (*event_wait)(struct backend *b, uint8_t stream, uint32_t event);
    /* Waits until everything launched is done. */
    void (*sync)(struct backend *b);
    void (*destroy)(struct backend *b);
};

/* Backends embed this as their first member. */
struct backend {
    const struct backend_ops *ops;
};

#endif
