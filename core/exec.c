#include "core/exec.h"

#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/op.h"

#define PATTERN       0xA5
#define SCRATCH_ALIGN 64

struct exec {
    const struct program *p;
    struct exec_memory *m;
    struct exec_options o;
    struct backend_streams *streams;
    struct launch_hooks check; /* of check mode, around those of the options */
    uint32_t *chosen;
    unsigned char **scratch; /* of each stream */
    int64_t *op_ns;
    uint64_t *op_runs;
    int64_t wait_ns;
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

/* The scratch of each stream lies behind that of the one before. in: of_stream[n_streams],
 * bytes wanted; out: their places. Returns the bytes together. */
static int64_t place_scratch(const struct program *p, int64_t *of_stream)
{
    int64_t total = 0;
    for (uint32_t s = 0; s < p->n_streams; s++) {
        int64_t bytes = round_up_i64(of_stream[s], SCRATCH_ALIGN);
        of_stream[s] = total;
        total += bytes;
    }
    return total;
}

enum status exec_scratch(struct backend *b, const struct program *p, int64_t *bytes,
                         struct diag *diag)
{
    uint32_t *chosen = mem_alloc((p->ops.n + (size_t)1) * sizeof(*chosen));
    int64_t *of_stream = mem_alloc(p->n_streams * sizeof(*of_stream));
    enum status st = b->ops->bind(b, p, chosen, of_stream, diag);
    if (st == ST_OK)
        *bytes = place_scratch(p, of_stream);
    mem_free(of_stream);
    mem_free(chosen);
    return st;
}

static enum status bind_program(struct exec *e, struct diag *diag)
{
    struct backend *b = e->m->backend;
    int64_t *at = mem_alloc(e->p->n_streams * sizeof(*at));
    enum status st = b->ops->bind(b, e->p, e->chosen, at, diag);
    if (st == ST_OK) {
        ASSERT(place_scratch(e->p, at) <= e->m->scratch_bytes);
        for (uint32_t s = 0; s < e->p->n_streams && e->m->scratch; s++)
            e->scratch[s] = (unsigned char *)e->m->scratch + at[s];
    }
    mem_free(at);
    return st;
}

/* Every group that the program names is there, and as the program was made for it. */
static enum status check_groups(const struct exec *e, struct diag *diag)
{
    for (uint32_t o = 0; o < e->p->ops.n; o++) {
        const struct prog_op *op = &e->p->ops.data[o];
        if (!op_kind_is_comm((enum op_kind)op->kind))
            continue;
        int64_t g = op_attr_i(e->p, op, ATTR_GROUP, 0);
        int64_t member = op_attr_i(e->p, op, ATTR_MEMBER, 0);
        int64_t members = op_attr_i(e->p, op, ATTR_MEMBERS, 1);
        const struct comm *c = e->o.groups[g];
        const char *name = comm_group_name((enum comm_group)g);
        if (!c)
            return diag_set(
                    diag, ST_INTERNAL,
                    "op %s (layer %d, %s) needs a group that is missing: got no "
                    "%s group, wanted one of %lld ranks",
                    op_desc((enum op_kind)op->kind)->name, (int)op->layer,
                    phase_name((enum op_phase)op->phase), name, (long long)members);
        if (c->size != members || c->rank != member)
            return diag_set(diag, ST_INTERNAL,
                            "op %s (layer %d, %s) is made for another %s group: got "
                            "member %d of %d, wanted member %lld of %lld",
                            op_desc((enum op_kind)op->kind)->name, (int)op->layer,
                            phase_name((enum op_phase)op->phase), name, c->rank,
                            c->size, (long long)member, (long long)members);
    }
    return ST_OK;
}

static enum status check_before(void *arg, const struct launch *l, struct diag *diag);
static enum status check_after(void *arg, const struct launch *l, struct diag *diag);

enum status exec_create(const struct program *p, struct exec_memory *m,
                        const struct exec_options *o, struct exec **out,
                        struct diag *diag)
{
    struct exec *e = mem_alloc(sizeof(*e));
    *e = (struct exec){.p = p, .m = m, .o = *o};
    e->check = (struct launch_hooks){check_before, check_after, e};
    e->chosen = mem_alloc((p->ops.n + (size_t)1) * sizeof(*e->chosen));
    e->scratch = mem_alloc(p->n_streams * sizeof(*e->scratch));
    e->op_ns = mem_alloc((p->ops.n + (size_t)1) * sizeof(*e->op_ns));
    e->op_runs = mem_alloc((p->ops.n + (size_t)1) * sizeof(*e->op_runs));
    enum status st = check_groups(e, diag);
    if (st == ST_OK)
        st = bind_program(e, diag);
    if (st == ST_OK)
        st = m->backend->ops->streams_open(m->backend, p, &e->streams, diag);
    if (st != ST_OK) {
        exec_destroy(e);
        return st;
    }
    for (int i = 0; i < POOL_COUNT; i++)
        ASSERT(p->pool_bytes[i] <= m->bytes[i]);
    *out = e;
    return ST_OK;
}

void exec_destroy(struct exec *e)
{
    if (!e)
        return;
    if (e->streams)
        e->m->backend->ops->streams_close(e->streams);
    mem_free(e->chosen);
    mem_free(e->scratch);
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

/* Check mode: the bytes behind every storage that the op touches. Ops of other streams
 * may touch the same storage elsewhere, and so fill and look at the same bytes. */
static void guards_fill(const struct exec *e, const struct prog_op *op,
                        const struct prog_call *call)
{
    for (int i = 0; i < op->n_in + op->n_out; i++) {
        uint32_t v = op_in(e->p, op, i);
        if (v == NONE_ID)
            continue;
        const struct prog_storage *s =
                &e->p->storages.data[e->p->values.data[v].storage];
        unsigned char *guard = storage_at(e, s, copy_of(s, call)) + s->bytes;
        for (int64_t b = 0; b < e->o.guard_bytes; b++)
            __atomic_store_n(guard + b, PATTERN, __ATOMIC_RELAXED);
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
            if (__atomic_load_n(guard + b, __ATOMIC_RELAXED) != PATTERN)
                return diag_set(diag, ST_INTERNAL,
                                "op %s (layer %d, %s) wrote %lld bytes past the end of "
                                "storage %s of %lld bytes",
                                op_desc((enum op_kind)op->kind)->name, (int)op->layer,
                                phase_name((enum op_phase)op->phase), (long long)b + 1,
                                prog_name(e->p, s->name), (long long)s->bytes);
    }
    return ST_OK;
}

static enum status check_before(void *arg, const struct launch *l, struct diag *diag)
{
    const struct exec *e = arg;
    const struct launch_hooks *h = e->o.hooks;
    guards_fill(e, l->op, l->call);
    return h && h->before ? h->before(h->arg, l, diag) : ST_OK;
}

static enum status check_after(void *arg, const struct launch *l, struct diag *diag)
{
    const struct exec *e = arg;
    const struct launch_hooks *h = e->o.hooks;
    TRY(guards_check(e, l->op, l->call, diag));
    return h && h->after ? h->after(h->arg, l, diag) : ST_OK;
}

static struct launch resolve(struct exec *e, uint32_t op_id,
                             const struct prog_call *call)
{
    const struct prog_op *op = &e->p->ops.data[op_id];
    struct launch l = {.prog = e->p,
                       .op = op,
                       .call = call,
                       .scratch = e->scratch[op->stream],
                       .run_ns = &e->op_ns[op_id],
                       .hooks = e->o.check ? &e->check : e->o.hooks};
    for (int i = 0; i < op->n_in; i++)
        l.in[i] = view_for(e, op_in(e->p, op, i), call);
    for (int i = 0; i < op->n_out; i++)
        if (op_out(e->p, op, i) != NONE_ID)
            l.out[i] = view_for(e, op_out(e->p, op, i), call);
    if (op->predicate != NONE_ID)
        l.predicate = view_for(e, op->predicate, call).data;
    if (op_kind_is_comm((enum op_kind)op->kind))
        l.comm = e->o.groups[op_attr_i(e->p, op, ATTR_GROUP, 0)];
    return l;
}

static void wait_for_events(struct exec *e, const struct prog_op *op)
{
    const struct backend_ops *b = e->m->backend->ops;
    if (op->n_waits == 0)
        return;
    int64_t start = now_ns();
    for (uint32_t i = 0; i < op->n_waits; i++)
        b->event_wait(e->streams, op->stream, e->p->waits.data[op->wait_first + i]);
    if (op->stream == STREAM_COMPUTE)
        e->wait_ns += now_ns() - start;
}

static void run_call(struct exec *e, const struct prog_call *call)
{
    const struct backend_ops *b = e->m->backend->ops;
    const struct prog_segment *seg = &e->p->segments.data[call->segment];
    for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
        const struct prog_op *op = &e->p->ops.data[o];
        struct launch l = resolve(e, o, call);
        wait_for_events(e, op);
        b->launch(e->streams, e->chosen[o], &l);
        if (op->signal != NONE_ID)
            b->event_record(e->streams, op->stream, op->signal);
        e->op_runs[o]++;
    }
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
            run_call(e, call);
    }
    return e->m->backend->ops->sync(e->streams, diag);
}

void exec_op_time(const struct exec *e, uint32_t op, double *seconds, uint64_t *runs)
{
    *seconds = (double)e->op_ns[op] * 1e-9;
    *runs = e->op_runs[op];
}

double exec_wait_time(const struct exec *e)
{
    return (double)e->wait_ns * 1e-9;
}

void exec_times_clear(struct exec *e)
{
    e->wait_ns = 0;
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
