/* Executes a packed program on a backend. The program stays const; everything that
 * changes lives here, in arrays beside the program's.
 *
 * One exec_memory (the pools) serves several programs of a run (training, evaluation,
 * batch ramp-up): they declare the same persistent storages, so those lie at the same
 * offsets, and the pools are as large as the largest program needs.
 */
#ifndef CORE_EXEC_H
#define CORE_EXEC_H

#include "core/backend.h"

/* The pools of one rank, obtained once. */
struct exec_memory {
    struct backend *backend;
    void *base[POOL_COUNT];
    int64_t bytes[POOL_COUNT];
    void *scratch;
    int64_t scratch_bytes;
};

struct exec;

/* in: bytes per pool; scratch_bytes the largest scratch of any program (exec_scratch).
 * errors: ST_NO_FIT. */
MUST_CHECK enum status exec_memory_create(struct backend *b,
                                          const int64_t bytes[POOL_COUNT],
                                          int64_t scratch_bytes,
                                          struct exec_memory *out, struct diag *diag);
void exec_memory_release(struct exec_memory *m);

/* Scratch that the backend's kernels want for a program, all streams together. */
MUST_CHECK enum status exec_scratch(struct backend *b, const struct program *p,
                                    int64_t *bytes, struct diag *diag);

struct exec_options {
    /* Checks memory use: fills transient memory with a pattern before it is written and
     * looks, after every op, at the `guard_bytes` that packing left behind each storage.
     * Slow; for tests and debug builds. */
    bool check;
    int64_t guard_bytes;
    /* This rank's ends of the groups that the program's communication names; NULL where
     * it names none. Borrowed for the life of the exec. */
    struct comm *groups[GROUP_COUNT];
    /* Called around every op; borrowed. NULL: none. */
    const struct launch_hooks *hooks;
};

/* `p` and `m` are borrowed for the life of the exec. Several execs may share them; one
 * runs at a time.
 * errors: ST_UNAVAILABLE (no kernel, no thread for a stream); ST_INTERNAL when the program
 * names a group that is missing or of another shape. */
MUST_CHECK enum status exec_create(const struct program *p, struct exec_memory *m,
                                   const struct exec_options *o, struct exec **out,
                                   struct diag *diag);
void exec_destroy(struct exec *e);

/* Runs the calls of one phase, in order, and waits for the end.
 * errors: the first failure of a communication op, named before what happened; ST_INTERNAL
 * when a check finds an op that wrote outside its storage. After a failure ops do nothing,
 * and every later call returns it again. */
MUST_CHECK enum status exec_run(struct exec *e, enum call_phase phase,
                                struct diag *diag);

/* Host copies of a value: copy `copy` of its storage (slot or micro-batch). The host
 * array is contiguous. */
void exec_write(struct exec *e, uint32_t value, uint32_t copy, const void *host);
void exec_read(struct exec *e, uint32_t value, uint32_t copy, void *host);

/* A value's device address and shape. */
struct view exec_view(const struct exec *e, uint32_t value, uint32_t copy);

/* Seconds spent and runs of op `op` since exec_create or exec_times_clear: what its kernel
 * took on the thread of its stream, without waiting for other streams. */
void exec_op_time(const struct exec *e, uint32_t op, double *seconds, uint64_t *runs);
/* Seconds that stream 0 waited for other streams since then: communication that was not
 * hidden behind computation. */
double exec_wait_time(const struct exec *e);
void exec_times_clear(struct exec *e);
const char *exec_kernel_name(const struct exec *e, uint32_t op);

/* In check mode: the number of bytes from the pool's start to past the last byte that is
 * not the fill pattern any more. */
int64_t exec_touched_bytes(const struct exec *e, enum pool_kind pool);

#endif
