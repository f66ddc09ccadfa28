#include "core/exec.h"

#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/op.h"

#define PATTERN 0xA5

struct exec {
    const struct program *p;
    struct exec_memory *m;
    struct exec_options o;
    uint32_t *chosen;
    int64_t *op_ns;
    uint64_t *op_runs;
};

enum status exec_memory_create(struct backend *b, const int64_t bytes[POOL_COUNT],
                               int64_t scratch_bytes, struct exec_memory *out,
                               struct diag *diag)
{
    struct exec_memory m = {.backend = b, .scratch_bytes = scratch_bytes};
    for (int i = 0; i < POOL_COUNT; i++) {
        m.bytes[i] = bytes[i];
        if (bytes[i] == 0)
            continue;
        enum status st =
                b->ops->pool_alloc(b, (enum pool_kind)i, bytes[i], &m.base[i], diag);
        if (st != ST_OK) {
            exec_memory_release(&m);
            return st;
        }
    }
    if (scratch_bytes > 0) {
        enum status st =
                b->ops->pool_alloc(b, POOL_DEVICE, scratch_bytes, &m.scratch, diag);
        if (st != ST_OK) {
            exec_memory_release(&m);
            return st;
        }
    }
    *out = m;
    return ST_OK;
}

void exec_memory_release(struct exec_memory *m)
{
    for (int i = 0; i < POOL_COUNT; i++)
        if (m->base[i])
            m->backend->ops->pool_free(m->backend, (enum pool_kind)i, m->base[i],
                                       m->bytes[i]);
    if (m->scratch)
        m->backend->ops->pool_free(m->backend, POOL_DEVICE, m->scratch,
                                   m->scratch_bytes);
    memset(m, 0, sizeof(*m));
}

enum status exec_scratch(struct backend *b, const struct program *p, int64_t *bytes,
                         struct diag *diag)
{
    uint32_t *chosen = mem_alloc(p->ops.n * sizeof(*chosen));
    enum status st = b->ops->bind(b, p, chosen, bytes, diag);
    mem_free(chosen);
    return st;
}

enum status exec_create(const struct program *p, struct exec_memory *m,
                        const struct exec_options *o, struct exec **out,
                        struct diag *diag)
{
    struct exec *e = mem_alloc(sizeof(*e));
    *e = (struct exec){.p = p, .m = m, .o = *o};
    e->chosen = mem_alloc(p->ops.n * sizeof(*e->chosen));
    e->op_ns = mem_alloc(p->ops.n * sizeof(*e->op_ns));
    e->op_runs = mem_alloc(p->ops.n * sizeof(*e->op_runs));
    int64_t scratch;
    enum status st = m->backend->ops->bind(m->backend, p, e->chosen, &scratch, diag);
    if (st != ST_OK) {
        exec_destroy(e);
        return st;
    }
    ASSERT(scratch <= m->scratch_bytes);
    for (int i = 0; i < POOL_COUNT; i++)
        ASSERT(p->pool_bytes[i] <= m->bytes[i]);
    *out = e;
    return ST_OK;
}

void exec_destroy(struct exec *e)
{
    if (!e)
        return;
    mem_free(e->chosen);
    mem_free(e->op_ns);
    mem_free(e->op_runs);
    mem_free(e);
}

/* Address of copy `copy` of a storage. */
static unsigned char *storage_at(const struct exec *e, const struct prog_storage *s,
                                 uint32_t copy)
{
    ASSERT(copy < s->n_copies);
    int64_t offset = e->p->offsets.data[s->offset_first + copy];
    ASSERT(offset >= 0);
    return (unsigned char *)e->m->base[s->pool] + offset;
}

static uint32_t copy_of(const struct prog_storage *s, const struct prog_call *call)
{
    if (s->slotting == SLOT_CALL)
        return call->slot;
    return s->slotting == SLOT_MICRO_BATCH ? call->micro_batch : 0;
}

struct view exec_view(const struct exec *e, uint32_t value, uint32_t copy)
{
    const struct prog_value *v = &e->p->values.data[value];
    const struct prog_storage *s = &e->p->storages.data[v->storage];
    struct view w = {.data = storage_at(e, s, copy) + v->byte_offset,
                     .dtype = (enum dtype)v->dtype,
                     .ndim = v->ndim,
                     .ld = v->ld};
    memcpy(w.dim, v->dim, sizeof(w.dim));
    return w;
}

static struct view view_for(const struct exec *e, uint32_t value,
                            const struct prog_call *call)
{
    const struct prog_value *v = &e->p->values.data[value];
    return exec_view(e, value, copy_of(&e->p->storages.data[v->storage], call));
}

/* Rows of a pitched value to or from a contiguous host array. */
static void copy_rows(struct exec *e, uint32_t value, uint32_t copy, void *host,
                      bool in)
{
    struct backend *b = e->m->backend;
    const struct prog_value *v = &e->p->values.data[value];
    struct view w = exec_view(e, value, copy);
    size_t elem = dtype_bytes(w.dtype);
    int64_t rows = v->ndim < 2 ? 1 : v->dim[0];
    size_t row = elem * (size_t)(v->ndim < 2 ? v->dim[0] : value_row_elems(v));
    size_t pitch = v->ndim < 2 ? row : elem * (size_t)v->ld;
    if (pitch == row) {
        row *= (size_t)rows;
        rows = 1;
    }
    for (int64_t r = 0; r < rows; r++) {
        unsigned char *device = (unsigned char *)w.data + (size_t)r * pitch;
        unsigned char *at = (unsigned char *)host + (size_t)r * row;
        if (in)
            b->ops->copy_in(b, device, at, row);
        else
            b->ops->copy_out(b, at, device, row);
    }
}

void exec_write(struct exec *e, uint32_t value, uint32_t copy, const void *host)
{
    copy_rows(e, value, copy, (void *)(uintptr_t)host, true);
}

void exec_read(struct exec *e, uint32_t value, uint32_t copy, void *host)
{
    copy_rows(e, value, copy, host, false);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Check mode: the bytes behind every storage that the op touches. */
static void guards_fill(const struct exec *e, const struct prog_op *op,
                        const struct prog_call *call)
{
    for (int i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t v = op_in(e->p, op, i);
        if (v == NONE_ID)
            continue;
        const struct prog_storage *s =
                &e->p->storages.data[e->p->values.data[v].storage];
        memset(storage_at(e, s, copy_of(s, call)) + s->bytes, PATTERN,
               (size_t)e->o.guard_bytes);
    }
}

static enum status guards_check(const struct exec *e, const struct prog_op *op,
                                const struct prog_call *call, struct diag *diag)
{
    for (int i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t v = op_in(e->p, op, i);
        if (v == NONE_ID)
            continue;
        const struct prog_storage *s =
                &e->p->storages.data[e->p->values.data[v].storage];
        const unsigned char *guard = storage_at(e, s, copy_of(s, call)) + s->bytes;
        for (int64_t b = 0; b < e->o.guard_bytes; b++)
            if (guard[b] != PATTERN)
                return diag_set(diag, ST_INTERNAL,
                                "op %s (layer %d, %s) wrote %lld bytes past the end of "
                                "storage %s of %lld bytes",
                                op_desc((enum op_kind)op->kind)->name, (int)op->layer,
                                phase_name((enum op_phase)op->phase), (long long)b + 1,
                                prog_name(e->p, s->name), (long long)s->bytes);
    }
    return ST_OK;
}

static void run_op(struct exec *e, uint32_t op_id, const struct prog_call *call)
{
    const struct prog_op *op = &e->p->ops.data[op_id];
    struct backend *b = e->m->backend;
    struct launch l = {.prog = e->p, .op = op, .scratch = e->m->scratch};
    for (int i = 0; i < op->n_in; i++)
        l.in[i] = view_for(e, op_in(e->p, op, i), call);
    for (int i = 0; i < op->n_out; i++)
        if (op_out(e->p, op, i) != NONE_ID)
            l.out[i] = view_for(e, op_out(e->p, op, i), call);
    if (op->predicate != NONE_ID)
        l.predicate = view_for(e, op->predicate, call).data;
    for (uint32_t i = 0; i < op->n_waits; i++)
        b->ops->event_wait(b, op->stream, e->p->waits.data[op->wait_first + i]);
    b->ops->launch(b, e->chosen[op_id], &l);
    if (op->signal != NONE_ID)
        b->ops->event_record(b, op->stream, op->signal);
}

static enum status run_call(struct exec *e, const struct prog_call *call,
                            struct diag *diag)
{
    const struct prog_segment *seg = &e->p->segments.data[call->segment];
    for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
        const struct prog_op *op = &e->p->ops.data[o];
        if (e->o.check)
            guards_fill(e, op, call);
        int64_t start = now_ns();
        run_op(e, o, call);
        e->op_ns[o] += now_ns() - start;
        e->op_runs[o]++;
        if (e->o.check)
            TRY(guards_check(e, op, call, diag));
    }
    return ST_OK;
}

/* Check mode: transient bytes hold the pattern when a step starts. */
static void fill_transients(const struct exec *e)
{
    for (uint32_t i = 0; i < e->p->storages.n; i++) {
        const struct prog_storage *s = &e->p->storages.data[i];
        if (storage_class_is_persistent((enum storage_class)s->cls))
            continue;
        for (uint32_t c = 0; c < s->n_copies; c++)
            if (e->p->offsets.data[s->offset_first + c] >= 0)
                memset(storage_at(e, s, c), PATTERN, (size_t)s->bytes);
    }
}

enum status exec_run(struct exec *e, enum call_phase phase, struct diag *diag)
{
    if (e->o.check)
        fill_transients(e);
    for (uint32_t i = 0; i < e->p->calls.n; i++) {
        const struct prog_call *call = &e->p->calls.data[i];
        if (call->phase == (uint32_t)phase)
            TRY(run_call(e, call, diag));
    }
    e->m->backend->ops->sync(e->m->backend);
    return ST_OK;
}

void exec_op_time(const struct exec *e, uint32_t op, double *seconds, uint64_t *runs)
{
    *seconds = (double)e->op_ns[op] * 1e-9;
    *runs = e->op_runs[op];
}

void exec_times_clear(struct exec *e)
{
    memset(e->op_ns, 0, e->p->ops.n * sizeof(*e->op_ns));
    memset(e->op_runs, 0, e->p->ops.n * sizeof(*e->op_runs));
}

const char *exec_kernel_name(const struct exec *e, uint32_t op)
{
    return e->m->backend->ops->kernel_name(e->m->backend, e->chosen[op]);
}

int64_t exec_touched_bytes(const struct exec *e, enum pool_kind pool)
{
    const unsigned char *base = e->m->base[pool];
    int64_t n = e->p->pool_bytes[pool];
    while (n > 0 && (base[n - 1] == PATTERN || base[n - 1] == 0))
        n--;
    return n;
}
