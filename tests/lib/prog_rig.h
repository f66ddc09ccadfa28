/* Any program packed, on a backend of its own and ready to run. */
#ifndef TESTS_LIB_PROG_RIG_H
#define TESTS_LIB_PROG_RIG_H

#include "core/exec.h"
#include "kernels/cpu/cpu_backend.h"

struct prog_rig {
    struct backend *backend;
    struct exec_memory memory;
    struct exec *exec;
};

/* in: a sealed program, packed here (guard bytes as `o` says); compute threads of stream
 * 0. The program is borrowed. May be called by ranks on threads. */
MUST_CHECK enum status prog_rig_open(struct prog_rig *r, struct program *p,
                                     int n_threads, const struct exec_options *o,
                                     struct diag *diag);
void prog_rig_close(struct prog_rig *r);

#endif
