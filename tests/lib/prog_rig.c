#include "tests/lib/prog_rig.h"

#include <string.h>

#include "memory/pack.h"

static enum status open_parts(struct prog_rig *r, struct program *p, int n_threads,
                              const struct exec_options *o, struct diag *diag)
{
    struct cpu_backend_options bo = {.n_threads = n_threads, .isa_mask = CPU_ISA_ALL};
    struct pack_options po = pack_options_default();
    int64_t scratch;
    po.guard_bytes = o->guard_bytes;
    TRY(pack_program(p, &po, NULL, diag));
    TRY(cpu_backend_create(&bo, &r->backend, diag));
    TRY(exec_scratch(r->backend, p, &scratch, diag));
    TRY(exec_memory_create(r->backend, p->pool_bytes, scratch, &r->memory, diag));
    return exec_create(p, &r->memory, o, &r->exec, diag);
}

enum status prog_rig_open(struct prog_rig *r, struct program *p, int n_threads,
                          const struct exec_options *o, struct diag *diag)
{
    memset(r, 0, sizeof(*r));
    enum status st = open_parts(r, p, n_threads, o, diag);
    if (st != ST_OK)
        prog_rig_close(r);
    return st;
}

void prog_rig_close(struct prog_rig *r)
{
    exec_destroy(r->exec);
    if (r->memory.backend)
        exec_memory_release(&r->memory);
    if (r->backend)
        r->backend->ops->destroy(r->backend);
    memset(r, 0, sizeof(*r));
}
