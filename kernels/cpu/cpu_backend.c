#include "kernels/cpu/cpu_backend.h"

#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "kernels/cpu/cpu_streams.h"
#include "kernels/cpu/cpu_table.h"

#define PAGE_BYTES 4096
#define SHARED_MAX 16 /* pools that lie in a world's memory */

/* `base` is first: backend pointers are cast to this. */
struct cpu_backend {
    struct backend base;
    struct pool *pool;
    struct cpu_workers workers;
    uint32_t isa;
    bool reference_only;
    struct comm_world *world;
    void *shared[SHARED_MAX];
    int n_shared;
};

static struct cpu_backend *cpu_of(struct backend *b)
{
    return (struct cpu_backend *)b;
}

struct touch {
    volatile unsigned char *p;
    int64_t bytes;
};

/* Pages go to the memory node of the thread that touches them first. */
static void touch_part(void *arg, int thread, int n_threads)
{
    const struct touch *t = arg;
    int64_t begin, end;
    pool_share(t->bytes, (int64_t)(2 * MIB), thread, n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i += PAGE_BYTES)
        t->p[i] = 0;
}

/* Memory that other ranks can read, or NULL. */
static void *shared_alloc(struct cpu_backend *c, int64_t bytes)
{
    if (!c->world || c->n_shared == SHARED_MAX)
        return NULL;
    void *p = c->world->ops->alloc(c->world, bytes);
    if (p)
        c->shared[c->n_shared++] = p;
    return p;
}

static enum status cpu_pool_alloc(struct backend *b, enum pool_kind pool, int64_t bytes,
                                  void **out, struct diag *diag)
{
    if (pool == POOL_FILE)
        return diag_set(diag, ST_UNAVAILABLE,
                        "no file pool (device cpu): got a plan with %lld bytes of it, "
                        "wanted pools in memory",
                        (long long)bytes);
    *out = shared_alloc(cpu_of(b), bytes);
    if (!*out)
        TRY(pages_map((size_t)bytes, out, diag));
    struct touch t = {*out, bytes};
    pool_run(cpu_of(b)->pool, touch_part, &t);
    return ST_OK;
}

static void cpu_pool_free(struct backend *b, enum pool_kind pool, void *p,
                          int64_t bytes)
{
    (void)pool;
    struct cpu_backend *c = cpu_of(b);
    for (int i = 0; i < c->n_shared; i++) {
        if (c->shared[i] != p)
            continue;
        c->shared[i] = c->shared[--c->n_shared];
        c->world->ops->release(c->world, p, bytes);
        return;
    }
    pages_unmap(p, (size_t)bytes);
}

static void view_describe(const struct program *prog, uint32_t value, struct view *out)
{
    *out = (struct view){0};
    if (value >= prog->values.n) /* an absent optional output */
        return;
    const struct prog_value *v = &prog->values.data[value];
    out->dtype = v->dtype;
    out->ndim = v->ndim;
    out->ld = v->ld;
    memcpy(out->dim, v->dim, sizeof(out->dim));
}

/* "f32, bf16": the dtypes an op is given, for the diagnostic. */
static void describe_operands(const struct launch *l, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < l->op->n_in && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 dtype_name(l->in[i].dtype));
}

static enum status bind_op(const struct cpu_backend *b, const struct program *prog,
                           uint32_t op, uint32_t *chosen, int64_t *scratch,
                           struct diag *diag)
{
    struct launch l = {.prog = prog, .op = &prog->ops.data[op]};
    for (int i = 0; i < l.op->n_in; i++)
        view_describe(prog, op_in(prog, l.op, i), &l.in[i]);
    for (int i = 0; i < l.op->n_out; i++)
        view_describe(prog, op_out(prog, l.op, i), &l.out[i]);
    const struct kernel_row *row =
            cpu_table_find(&l, b->isa, b->reference_only, chosen);
    if (!row) {
        char operands[256];
        describe_operands(&l, operands, sizeof(operands));
        return diag_set(diag, ST_UNAVAILABLE,
                        "no kernel for op %u '%s' (device cpu): got operands of %s", op,
                        op_desc(l.op->kind)->name, operands);
    }
    int n_threads = l.op->stream == 0 ? pool_threads(b->pool) : 1;
    int64_t *most = &scratch[l.op->stream];
    if (row->scratch_bytes)
        *most = MAX(*most, row->scratch_bytes(&l, n_threads));
    return ST_OK;
}

static enum status cpu_bind(struct backend *b, const struct program *prog,
                            uint32_t *chosen, int64_t *scratch_bytes, struct diag *diag)
{
    memset(scratch_bytes, 0, prog->n_streams * sizeof(*scratch_bytes));
    for (uint32_t i = 0; i < prog->ops.n; i++)
        TRY(bind_op(cpu_of(b), prog, i, &chosen[i], scratch_bytes, diag));
    return ST_OK;
}

static const char *cpu_kernel_name(struct backend *b, uint32_t chosen)
{
    (void)b;
    return cpu_table_row(chosen)->name;
}

static void cpu_copy_in(struct backend *b, void *device, const void *host, size_t bytes)
{
    (void)b;
    memcpy(device, host, bytes);
}

static void cpu_copy_out(struct backend *b, void *host, const void *device,
                         size_t bytes)
{
    (void)b;
    memcpy(host, device, bytes);
}

static enum status cpu_open(struct backend *b, const struct program *prog,
                            struct backend_streams **out, struct diag *diag)
{
    struct cpu_backend *c = cpu_of(b);
    return cpu_streams_open(&c->workers, c->pool, prog, out, diag);
}

static void cpu_destroy(struct backend *b)
{
    cpu_workers_release(&cpu_of(b)->workers);
    pool_destroy(cpu_of(b)->pool);
    mem_free(b);
}

static const struct backend_ops cpu_ops = {
        .name = "cpu",
        .host_visible = true,
        .pool_alloc = cpu_pool_alloc,
        .pool_free = cpu_pool_free,
        .bind = cpu_bind,
        .kernel_name = cpu_kernel_name,
        .copy_in = cpu_copy_in,
        .copy_out = cpu_copy_out,
        .streams_open = cpu_open,
        .streams_close = cpu_streams_close,
        .launch = cpu_streams_launch,
        .event_record = cpu_streams_record,
        .event_wait = cpu_streams_wait,
        .sync = cpu_streams_sync,
        .destroy = cpu_destroy,
};

enum status cpu_backend_create(const struct cpu_backend_options *o,
                               struct backend **out, struct diag *diag)
{
    if (o->n_threads < 0)
        return diag_set(
                diag, ST_CONFIG,
                "wrong number of compute threads (device cpu): got %d, wanted 1 "
                "or more, or 0 for all processors",
                o->n_threads);
    struct cpu_backend *b = mem_alloc(sizeof(*b));
    b->base.ops = &cpu_ops;
    b->isa = cpu_isa_detect() & o->isa_mask;
    b->reference_only = o->reference_only;
    b->world = o->world;
    int n = o->n_threads ? o->n_threads : pool_cpus_available();
    enum status st = pool_create(n, &b->pool, diag);
    if (st != ST_OK) {
        mem_free(b);
        return st;
    }
    *out = &b->base;
    return ST_OK;
}

struct pool *cpu_backend_pool(struct backend *b)
{
    return cpu_of(b)->pool;
}
