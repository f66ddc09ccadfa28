#include "core/flow.h"

#include <string.h>

/* A value as rectangles: a head row, whole rows and a tail row, or two when columns wrap
 * around the end of a row. */
struct rects {
    int n;
    struct flow_piece r[3];
};

static void rects_add(struct rects *out, int64_t row0, int64_t row1, int64_t col0,
                      int64_t col1)
{
    if (row0 >= row1 || col0 >= col1)
        return;
    struct flow_piece *r = &out->r[out->n++];
    memset(r, 0, sizeof(*r));
    r->row[0] = row0;
    r->row[1] = row1;
    r->col[0] = col0;
    r->col[1] = col1;
}

/* Bytes begin..end without gaps. */
static void rects_run(struct rects *out, int64_t begin, int64_t end, int64_t pitch)
{
    int64_t row0 = begin / pitch, row1 = end / pitch;
    int64_t col0 = begin % pitch, col1 = end % pitch;
    if (row0 == row1) {
        rects_add(out, row0, row0 + 1, col0, col1);
        return;
    }
    if (col0 > 0) {
        rects_add(out, row0, row0 + 1, col0, pitch);
        row0++;
    }
    rects_add(out, row0, row1, 0, pitch);
    rects_add(out, row1, row1 + 1, 0, col1);
}

static void rects_of(const struct prog_value *v, int64_t pitch, struct rects *out)
{
    int64_t elem = (int64_t)dtype_bytes((enum dtype)v->dtype);
    out->n = 0;
    if (value_elems(v) == 0)
        return;
    if (value_is_contiguous(v) || v->dim[0] == 1) {
        rects_run(out, v->byte_offset, v->byte_offset + value_elems(v) * elem, pitch);
        return;
    }
    int64_t width = value_row_elems(v) * elem;
    int64_t row = v->byte_offset / pitch, col = v->byte_offset % pitch;
    rects_add(out, row, row + v->dim[0], col, MIN(col + width, pitch));
    rects_add(out, row + 1, row + 1 + v->dim[0], 0, col + width - pitch);
}

static bool value_is_strided(const struct prog_value *v)
{
    return !value_is_contiguous(v) && v->dim[0] > 1;
}

static void find_pitches(struct flow *f)
{
    const struct program *p = f->prog;
    f->pitch = mem_alloc((p->storages.n + (size_t)1) * sizeof(*f->pitch));
    for (uint32_t i = 0; i < p->values.n; i++) {
        const struct prog_value *v = &p->values.data[i];
        if (value_is_strided(v))
            f->pitch[v->storage] = v->ld * (int64_t)dtype_bytes((enum dtype)v->dtype);
    }
    for (uint32_t s = 0; s < p->storages.n; s++)
        if (f->pitch[s] == 0)
            f->pitch[s] = MAX(p->storages.data[s].bytes, 1);
}

static bool class_is_filled_by_host(uint8_t cls)
{
    return cls == SC_PARAM || cls == SC_OPTIM || cls == SC_PARAMS || cls == SC_INPUT;
}

/* Room for the readers of a piece; 0 with one stream, where order needs no record. */
static uint32_t new_readers(struct flow *f, uint32_t from)
{
    uint32_t at = f->readers.n;
    if (f->order->n_streams == 1)
        return 0;
    for (uint32_t s = 0; s < f->order->n_streams; s++)
        vec_push(&f->readers, from == NONE_ID ? NONE_ID : f->readers.data[from + s]);
    return at;
}

void flow_init(struct flow *f, const struct program *p, const struct order *o)
{
    memset(f, 0, sizeof(*f));
    f->prog = p;
    f->order = o;
    f->n_copies = p->offsets.n;
    f->copies = mem_alloc((f->n_copies + (size_t)1) * sizeof(*f->copies));
    find_pitches(f);
    for (uint32_t s = 0; s < p->storages.n; s++) {
        const struct prog_storage *st = &p->storages.data[s];
        struct rects all = {0};
        if (!class_is_filled_by_host(st->cls))
            continue;
        rects_run(&all, 0, st->bytes, f->pitch[s]);
        for (uint32_t c = 0; c < st->n_copies; c++)
            for (int i = 0; i < all.n; i++) {
                struct flow_piece piece = all.r[i];
                piece.value = piece.writer = FLOW_HOST;
                piece.readers = new_readers(f, NONE_ID);
                vec_push(&f->copies[st->offset_first + c].pieces, piece);
            }
    }
}

void flow_free(struct flow *f)
{
    for (uint32_t i = 0; i < f->n_copies; i++)
        vec_free(&f->copies[i].pieces);
    mem_free(f->copies);
    mem_free(f->pitch);
    vec_free(&f->readers);
    memset(f, 0, sizeof(*f));
}

uint32_t flow_copy_of(const struct flow *f, uint32_t value, uint32_t instance)
{
    const struct prog_storage *s =
            &f->prog->storages.data[f->prog->values.data[value].storage];
    return s->offset_first +
           storage_copy(s, &f->prog->calls.data[f->order->instance_call[instance]]);
}

/* The common part of two rectangles; false: none. */
static bool intersect(const struct flow_piece *a, const struct flow_piece *b,
                      struct flow_piece *out)
{
    *out = *a;
    out->row[0] = MAX(a->row[0], b->row[0]);
    out->row[1] = MIN(a->row[1], b->row[1]);
    out->col[0] = MAX(a->col[0], b->col[0]);
    out->col[1] = MIN(a->col[1], b->col[1]);
    return out->row[0] < out->row[1] && out->col[0] < out->col[1];
}

static int64_t area(const struct flow_piece *r)
{
    return (r->row[1] - r->row[0]) * (r->col[1] - r->col[0]);
}

/* Appends what is left of `piece` without `hole`, which lies in it. */
static void push_rest(struct flow *f, struct flow_copy *c, struct flow_piece piece,
                      const struct flow_piece *hole)
{
    struct rects rest = {0};
    rects_add(&rest, piece.row[0], hole->row[0], piece.col[0], piece.col[1]);
    rects_add(&rest, hole->row[1], piece.row[1], piece.col[0], piece.col[1]);
    rects_add(&rest, hole->row[0], hole->row[1], piece.col[0], hole->col[0]);
    for (int i = 0; i < rest.n; i++) {
        struct flow_piece part = rest.r[i];
        part.value = piece.value;
        part.writer = piece.writer;
        part.readers = new_readers(f, piece.readers);
        vec_push(&c->pieces, part);
    }
    if (hole->col[1] < piece.col[1]) {
        piece.row[0] = hole->row[0];
        piece.row[1] = hole->row[1];
        piece.col[0] = hole->col[1];
        piece.readers = new_readers(f, piece.readers);
        vec_push(&c->pieces, piece);
    }
}

static uint8_t stream_of(const struct flow *f, uint32_t instance)
{
    return f->prog->ops.data[f->order->instance_op[instance]].stream;
}

/* Cuts out and marks the part of every piece that the reader touches. */
static void mark_readers(struct flow *f, struct flow_copy *c,
                         const struct flow_piece *r, uint32_t instance)
{
    uint32_t n = c->pieces.n;
    for (uint32_t i = 0; i < n; i++) {
        struct flow_piece piece = c->pieces.data[i], common;
        if (!intersect(&piece, r, &common))
            continue;
        push_rest(f, c, piece, &common);
        c->pieces.data[i] = common;
        f->readers.data[common.readers + stream_of(f, instance)] = instance;
    }
}

int64_t flow_read(struct flow *f, uint32_t value, uint32_t instance,
                  flow_visit_fn visit, void *arg)
{
    const struct prog_value *v = &f->prog->values.data[value];
    struct flow_copy *c = &f->copies[flow_copy_of(f, value, instance)];
    struct rects want;
    int64_t missing = 0;
    rects_of(v, f->pitch[v->storage], &want);
    for (int k = 0; k < want.n; k++) {
        missing += area(&want.r[k]);
        for (uint32_t i = 0; i < c->pieces.n; i++) {
            struct flow_piece common;
            if (!intersect(&c->pieces.data[i], &want.r[k], &common))
                continue;
            missing -= area(&common);
            if (visit)
                visit(arg, &common);
        }
        if (f->order->n_streams > 1)
            mark_readers(f, c, &want.r[k], instance);
    }
    return missing;
}

int64_t flow_missing(const struct flow *f, uint32_t value, uint32_t instance)
{
    const struct prog_value *v = &f->prog->values.data[value];
    const struct flow_copy *c = &f->copies[flow_copy_of(f, value, instance)];
    struct rects want;
    int64_t missing = 0;
    rects_of(v, f->pitch[v->storage], &want);
    for (int k = 0; k < want.n; k++) {
        missing += area(&want.r[k]);
        for (uint32_t i = 0; i < c->pieces.n; i++) {
            struct flow_piece common;
            if (intersect(&c->pieces.data[i], &want.r[k], &common))
                missing -= area(&common);
        }
    }
    return missing;
}

void flow_write(struct flow *f, uint32_t value, uint32_t instance, flow_visit_fn visit,
                void *arg)
{
    const struct prog_value *v = &f->prog->values.data[value];
    struct flow_copy *c = &f->copies[flow_copy_of(f, value, instance)];
    struct rects mine;
    rects_of(v, f->pitch[v->storage], &mine);
    for (int k = 0; k < mine.n; k++) {
        for (uint32_t i = 0; i < c->pieces.n;) {
            struct flow_piece piece = c->pieces.data[i], common;
            if (!intersect(&piece, &mine.r[k], &common)) {
                i++;
                continue;
            }
            if (visit)
                visit(arg, &common);
            c->pieces.data[i] = c->pieces.data[--c->pieces.n];
            push_rest(f, c, piece, &common);
        }
        struct flow_piece fresh = mine.r[k];
        fresh.value = value;
        fresh.writer = instance;
        fresh.readers = new_readers(f, NONE_ID);
        vec_push(&c->pieces, fresh);
    }
}

void flow_drop_transients(struct flow *f)
{
    for (uint32_t s = 0; s < f->prog->storages.n; s++) {
        const struct prog_storage *st = &f->prog->storages.data[s];
        if (storage_class_is_persistent((enum storage_class)st->cls))
            continue;
        for (uint32_t c = 0; c < st->n_copies; c++)
            f->copies[st->offset_first + c].pieces.n = 0;
    }
}

/* Bytes of a row for a pair of values: the pitch of either one that is strided. */
static int64_t pair_pitch(const struct prog_value *a, const struct prog_value *b)
{
    const struct prog_value *v = value_is_strided(a) ? a : b;
    if (value_is_strided(v))
        return v->ld * (int64_t)dtype_bytes((enum dtype)v->dtype);
    return MAX(MAX(a->byte_offset + value_span_bytes(a),
                   b->byte_offset + value_span_bytes(b)),
               1);
}

static int64_t common_bytes(const struct program *p, uint32_t a, uint32_t b)
{
    const struct prog_value *va = &p->values.data[a], *vb = &p->values.data[b];
    struct rects ra, rb;
    int64_t bytes = 0, pitch = pair_pitch(va, vb);
    if (va->storage != vb->storage)
        return 0;
    rects_of(va, pitch, &ra);
    rects_of(vb, pitch, &rb);
    for (int i = 0; i < ra.n; i++)
        for (int k = 0; k < rb.n; k++) {
            struct flow_piece common;
            if (intersect(&ra.r[i], &rb.r[k], &common))
                bytes += area(&common);
        }
    return bytes;
}

static int64_t value_bytes(const struct prog_value *v)
{
    return value_elems(v) * (int64_t)dtype_bytes((enum dtype)v->dtype);
}

bool value_bytes_overlap(const struct program *p, uint32_t a, uint32_t b)
{
    return common_bytes(p, a, b) > 0;
}

bool value_bytes_contain(const struct program *p, uint32_t outer, uint32_t inner)
{
    return common_bytes(p, outer, inner) == value_bytes(&p->values.data[inner]);
}

bool value_bytes_equal(const struct program *p, uint32_t a, uint32_t b)
{
    const struct prog_value *va = &p->values.data[a], *vb = &p->values.data[b];
    bool strided = value_is_strided(va) || value_is_strided(vb);
    return va->storage == vb->storage && va->byte_offset == vb->byte_offset &&
           value_bytes(va) == value_bytes(vb) &&
           dtype_bytes((enum dtype)va->dtype) == dtype_bytes((enum dtype)vb->dtype) &&
           (!strided || (va->ld == vb->ld && va->dim[0] == vb->dim[0]));
}
