#include "tests/lib/op_case.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/hyper.h"
#include "core/rng.h"

#define SCRATCH_GUARD 256

static int64_t axis_of(const struct op_dims *d, char letter)
{
    switch (letter) {
    case 'T': return d->T;
    case 'S': return d->S;
    case 'H': return d->H;
    case 'N': return d->N;
    case 'A': return d->A;
    case 'K': return d->K;
    case 'D': return d->D;
    case 'F': return d->F;
    case 'V': return d->V;
    case 'G': return 2 * d->F;
    case 'P': return d->D / 2;
    case 'B': return ceil_div_i64(d->T * d->H, NORM_BLOCK_ELEMS);
    case 'U': return HYPER_COUNT;
    case '4': return 4;
    case '3': return 3;
    case '2': return 2;
    case '1': return 1;
    default: BUG("axis '%c'", letter);
    }
}

static enum dtype dtype_of(const struct op_case *c, char letter)
{
    switch (letter) {
    case 'c': return c->dtype;
    case 'f': return DT_F32;
    case 'h': return DT_BF16;
    case 'd': return DT_F64;
    case 'i': return DT_I32;
    default: BUG("dtype '%c'", letter);
    }
}

static struct guarded operand_make(const struct op_case *c, const char *what, bool wide)
{
    int64_t dim[VALUE_DIMS_MAX], cols = 1;
    int ndim = (int)strcspn(what, " ") - 1;
    for (int i = 0; i < ndim; i++) {
        dim[i] = axis_of(&c->dims, what[1 + i]);
        cols *= i ? dim[i] : 1;
    }
    enum dtype t = dtype_of(c, what[0]);
    if (wide && dtype_is_float(t))
        t = DT_F64;
    int64_t ld = ndim < 2 || c->spec->flat ? 0 : cols + c->pitch;
    return guarded_make(t, ndim, dim, ld);
}

static double hyper_value(int64_t i)
{
    static const double value[HYPER_COUNT] = {
            [HYPER_LR] = 3e-3,         [HYPER_BETA1] = 0.9,
            [HYPER_BETA2] = 0.95,      [HYPER_ONE_BETA1] = 1 - 0.9,
            [HYPER_ONE_BETA2] = 0.05,  [HYPER_EPS] = 1e-8,
            [HYPER_DECAY] = 0.1,       [HYPER_CORRECT1] = 1 / (1 - 0.9 * 0.9 * 0.9),
            [HYPER_CORRECT2] = 7.0112, [HYPER_CLIP] = 0.5,
            [HYPER_INV_TOKENS] = 1e-3,
    };
    return value[i];
}

/* Starts of documents: a new one every third of a sequence or so. */
static int64_t doc_start(int64_t token, int64_t seq)
{
    int64_t i = token % seq, doc = MAX(seq / 3, 1) + token / seq;
    return i / doc * doc;
}

struct fill_arg {
    const struct op_dims *dims;
    int64_t i;
    double normal;
    uint64_t bits; /* 53 uniform bits */
};

static double fill_normal(const struct fill_arg *a)
{
    return a->normal;
}

static double fill_wide(const struct fill_arg *a)
{
    return 4 * a->normal;
}

static double fill_offset(const struct fill_arg *a)
{
    return 3 + a->normal;
}

static double fill_positive(const struct fill_arg *a)
{
    return 0.1 + (double)a->bits * 0x1p-53;
}

static double fill_below_v(const struct fill_arg *a)
{
    return (double)(a->bits % (uint64_t)a->dims->V);
}

static double fill_label(const struct fill_arg *a)
{
    return a->i % 7 == 5 ? -1 : fill_below_v(a);
}

static double fill_below_t(const struct fill_arg *a)
{
    return (double)(a->bits % (uint64_t)a->dims->T);
}

/* Near the log-sum-exp of V standard normals. */
static double fill_lse(const struct fill_arg *a)
{
    return log((double)a->dims->V) + 0.5 + 0.01 * a->normal;
}

static double fill_doc(const struct fill_arg *a)
{
    return (double)doc_start(a->i, a->dims->S);
}

static double fill_hyper(const struct fill_arg *a)
{
    return hyper_value(a->i);
}

static const struct {
    const char *word;
    double (*fn)(const struct fill_arg *a);
} fill_table[] = {
        {"", fill_normal},            /* mean 0, deviation 1 */
        {" wide", fill_wide},         /* deviation 4 */
        {" offset", fill_offset},     /* mean 3, deviation 1 */
        {" positive", fill_positive}, /* 0.1 .. 1.1 */
        {" below-V", fill_below_v},   /* integers below V */
        {" label", fill_label},       /* integers below V, every seventh is -1 */
        {" below-T", fill_below_t},   /* integers below T */
        {" doc", fill_doc},           /* starts of documents */
        {" lse", fill_lse},           /* log-sum-exp of V standard normals */
        {" hyper", fill_hyper},       /* a params block */
};

static size_t fill_find(const char *what)
{
    const char *word = what + strcspn(what, " ");
    for (size_t i = 0; i < ARRAY_LEN(fill_table); i++)
        if (strcmp(word, fill_table[i].word) == 0)
            return i;
    BUG("operand '%s'", what);
}

static int64_t cols_of(const struct view *v)
{
    int64_t n = 1;
    for (int i = v->ndim >= 2; i < v->ndim; i++)
        n *= v->dim[i];
    return n;
}

static int64_t rows_of(const struct view *v)
{
    return v->ndim >= 2 ? v->dim[0] : 1;
}

static void operand_fill(const struct op_case *c, struct view *v, size_t fill,
                         uint64_t what)
{
    int64_t cols = cols_of(v);
    for (int64_t i = 0; i < rows_of(v) * cols; i++) {
        float normal;
        rng_normal(7, what, i, 1, &normal);
        struct fill_arg a = {&c->dims, i, (double)normal,
                             rng_u64(8, what, (uint64_t)i) >> 11};
        dtype_set(v->data, v->dtype, i / cols * v->ld + i % cols,
                  fill_table[fill].fn(&a));
    }
}

struct op_case op_case_make(const struct op_spec *s, const struct op_dims *d,
                            enum dtype dtype, int64_t pitch)
{
    struct op_case c = {.spec = s, .dims = *d, .dtype = dtype, .pitch = pitch};
    program_init(&c.prog);
    for (int i = 0; i < s->n_attrs; i++) {
        const struct op_attr_spec *spec = &s->attr[i];
        struct prog_attr a = {.key = spec->key};
        if (spec->is_double)
            a.v.f = spec->value;
        else
            a.v.i = spec->key == ATTR_SEQ ? d->S : (int64_t)spec->value;
        vec_push(&c.prog.attrs, a);
    }
    for (; s->in[c.n_in]; c.n_in++) {
        const char *what = s->in[c.n_in];
        c.in[c.n_in] = operand_make(&c, what, false);
        operand_fill(&c, &c.in[c.n_in].view, fill_find(what),
                     (uint64_t)s->kind * 16 + (uint64_t)c.n_in);
    }
    while (s->out[c.n_out])
        c.n_out++;
    c.op = (struct prog_op){
            .kind = (uint16_t)s->kind,
            .n_in = (uint8_t)c.n_in,
            .n_out = (uint8_t)c.n_out,
            .n_attrs = (uint8_t)s->n_attrs,
            .predicate = NONE_ID,
            .signal = NONE_ID,
    };
    return c;
}

void op_case_release(struct op_case *c)
{
    for (int i = 0; i < c->n_in; i++)
        guarded_free(&c->in[i]);
    program_free(&c->prog);
}

struct launch op_case_describe(const struct op_case *c)
{
    struct launch l = {.prog = &c->prog, .op = &c->op};
    for (int i = 0; i < c->n_in; i++) {
        l.in[i] = c->in[i].view;
        l.in[i].data = NULL;
    }
    for (int i = 0; i < c->n_out; i++) {
        struct guarded g = operand_make(c, c->spec->out[i], false);
        l.out[i] = g.view;
        l.out[i].data = NULL;
        guarded_free(&g);
    }
    return l;
}

/* A copy of input i with the bytes that guarded_make gave it. */
static struct guarded input_copy(const struct op_case *c, int i)
{
    struct guarded g = operand_make(c, c->spec->in[i], false);
    memcpy(g.bytes, c->in[i].bytes, (size_t)g.n_bytes);
    return g;
}

static bool is_in_place(const struct op_case *c, int out)
{
    return out < c->spec->n_inplace;
}

/* Scratch, 64-byte aligned, as large as the row asked for, and a canary behind it. */
struct scratch {
    unsigned char *raw, *data;
    int64_t bytes;
};

static struct scratch scratch_make(int64_t bytes)
{
    struct scratch s = {.bytes = bytes};
    s.raw = mem_alloc((size_t)bytes + SCRATCH_GUARD + 64);
    s.data = s.raw + (64 - (uintptr_t)s.raw % 64) % 64;
    memset(s.data, 0xff, (size_t)bytes); /* NaN in every float dtype */
    memset(s.data + bytes, 0xa5, SCRATCH_GUARD);
    return s;
}

static bool scratch_is_intact(const struct scratch *s)
{
    for (int64_t i = 0; i < SCRATCH_GUARD; i++)
        if (s->data[s->bytes + i] != 0xa5)
            return false;
    return true;
}

struct op_result op_case_run(const struct op_case *c, const struct kernel_row *row,
                             struct pool *pool, bool wide, bool in_place)
{
    struct op_result r = {0};
    struct launch l = {.prog = &c->prog, .op = &c->op};
    struct guarded before[OP_IN_MAX];
    for (int i = 0; i < c->n_in; i++) {
        l.in[i] = c->in[i].view;
        before[i] = input_copy(c, i);
    }
    for (int i = 0; i < c->n_out; i++) {
        if (in_place && is_in_place(c, i)) {
            r.out[i] = input_copy(c, c->spec->inplace + i);
            l.in[c->spec->inplace + i] = r.out[i].view;
        } else {
            r.out[i] = operand_make(c, c->spec->out[i], wide);
        }
        l.out[i] = r.out[i].view;
    }
    int64_t bytes = row->scratch_bytes ? row->scratch_bytes(&l, pool_threads(pool)) : 0;
    struct scratch s = scratch_make(bytes);
    l.scratch = s.data;
    struct kernel_call call = {&l, pool, NULL};
    row->run(&call);
    r.intact = scratch_is_intact(&s);
    mem_free(s.raw);
    for (int i = 0; i < c->n_out; i++)
        r.intact = r.intact && guarded_is_intact(&r.out[i]);
    for (int i = 0; i < c->n_in; i++) {
        size_t n = (size_t)before[i].n_bytes;
        r.intact = r.intact && memcmp(before[i].bytes, c->in[i].bytes, n) == 0;
        guarded_free(&before[i]);
    }
    return r;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double view_bytes(const struct view *v)
{
    return (double)(rows_of(v) * cols_of(v)) * (double)dtype_bytes(v->dtype);
}

double op_case_time(const struct op_case *c, const struct kernel_row *row,
                    struct pool *pool, int n_runs, double *bytes)
{
    struct op_result r = {0};
    struct launch l = {.prog = &c->prog, .op = &c->op};
    *bytes = 0;
    for (int i = 0; i < c->n_in; i++) {
        l.in[i] = c->in[i].view;
        *bytes += view_bytes(&l.in[i]);
    }
    for (int i = 0; i < c->n_out; i++) {
        r.out[i] = operand_make(c, c->spec->out[i], false);
        l.out[i] = r.out[i].view;
        *bytes += view_bytes(&l.out[i]);
    }
    int64_t n = row->scratch_bytes ? row->scratch_bytes(&l, pool_threads(pool)) : 0;
    struct scratch s = scratch_make(n);
    l.scratch = s.data;
    struct kernel_call call = {&l, pool, NULL};
    double best = INFINITY;
    for (int i = 0; i < n_runs; i++) {
        double t = now_s();
        row->run(&call);
        best = fmin(best, now_s() - t);
    }
    mem_free(s.raw);
    op_result_release(c, &r);
    return best;
}

void op_result_release(const struct op_case *c, struct op_result *r)
{
    for (int i = 0; i < c->n_out; i++)
        guarded_free(&r->out[i]);
}

bool op_results_equal_bits(const struct op_case *c, const struct op_result *a,
                           const struct op_result *b)
{
    for (int i = 0; i < c->n_out; i++) {
        const struct guarded *x = &a->out[i], *y = &b->out[i];
        if (x->n_bytes != y->n_bytes || memcmp(x->bytes, y->bytes, (size_t)x->n_bytes))
            return false;
    }
    return true;
}

struct tol op_case_tol(const struct op_case *c, int i)
{
    enum dtype out = dtype_of(c, c->spec->out[i][0]);
    if (c->spec->exact)
        return tol_of(TOL_EXACT, out, DT_F32, 1);
    if (!c->spec->reduce)
        return tol_of(TOL_POINTWISE, out, DT_F32, 1);
    return tol_of(TOL_REDUCE, out, DT_F32, axis_of(&c->dims, c->spec->reduce));
}
