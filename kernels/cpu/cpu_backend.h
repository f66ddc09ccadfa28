/* The CPU as a backend of core/exec.h: an own thread pool, kernels by table, memory from
 * pages_map, streams as in kernels/cpu/cpu_streams.h. */
#ifndef KERNELS_CPU_CPU_BACKEND_H
#define KERNELS_CPU_CPU_BACKEND_H

#include "core/backend.h"
#include "core/comm.h"

/* Every instruction set the machine has. */
#define CPU_ISA_ALL UINT32_MAX

struct cpu_backend_options {
    int n_threads;       /* compute threads; 0: all processors this process may use */
    bool reference_only; /* the plain kernels in double, for tests */
    uint32_t isa_mask;   /* bits of enum cpu_isa that may be used, or CPU_ISA_ALL */
    /* Pools lie in memory that the ranks of this host read directly, where that can be had.
     * Must outlive the backend. NULL: private memory. */
    struct comm_world *world;
};

/* A CPU backend; ends with (*out)->ops->destroy. errors: ST_CONFIG for a negative number
 * of threads, ST_UNAVAILABLE when a thread cannot be started. */
MUST_CHECK enum status cpu_backend_create(const struct cpu_backend_options *o,
                                          struct backend **out, struct diag *diag);

/* The backend's compute threads, for host work between steps. threads: one caller. */
struct pool *cpu_backend_pool(struct backend *b);

#endif
