/* Tuned attention, forward and backward, against double loops: documents, windows, soft
 * cap, grouped queries, pitched rows, f32 and bf16, and the same bits for any number of
 * threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "kernels/cpu/attn.h"
#include "kernels/cpu/cpu_table.h"

#define N_POOLS 3

struct fixture {
    struct pool *pool[N_POOLS]; /* of 1, 2, 3 threads */
    uint32_t isa;
    double worst;
    int64_t n_checked;
};

struct config {
    int64_t n_seqs, seq, n_heads, n_kv, dim;
    int64_t window;
    double cap;
    int64_t doc_len; /* tokens of a document; 0: one */
    enum dtype dtype;
    bool fused;     /* q, k, v are columns of one buffer */
    double q_scale; /* size of the queries */
    double q_bias;  /* added to queries and keys with opposite signs */
};

static int setup(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool_create(i + 1, &f->pool[i], NULL), ST_OK);
    f->isa = cpu_isa_detect();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    printf("  worst error %.3f of the tolerance over %ld results\n", f->worst,
           (long)f->n_checked);
    for (int i = 0; i < N_POOLS; i++)
        pool_destroy(f->pool[i]);
    mem_free(f);
    return 0;
}

static double value_at(int64_t i, uint32_t salt)
{
    uint32_t h = (uint32_t)i * 2654435761u + salt * 0x9e3779b9u;
    h ^= h >> 15;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    return (double)(h & 0xffffu) / 32768.0 - 1.0;
}

/* Everything of one case. want_*: doubles, [T][heads][D] or [T][A]. */
struct problem {
    struct config c;
    int64_t tokens;
    struct view q, k, v, d_o, doc, o, lse, dq, dk, dv;
    struct view o_in, lse_in; /* what backward reads: the right ones, rounded */
    void *owned[24];
    int n_owned;
    double *want_o, *want_lse, *want_dq, *want_dk, *want_dv;
    double scale;
};

static void *own(struct problem *p, size_t bytes)
{
    assert_true(p->n_owned < (int)ARRAY_LEN(p->owned));
    void *m = mem_alloc(bytes);
    p->owned[p->n_owned++] = m;
    return m;
}

static struct view heads_view(struct problem *p, int64_t heads, uint32_t salt,
                              double size, double bias)
{
    const struct config *c = &p->c;
    struct view v = {NULL, c->dtype, 3, {p->tokens, heads, c->dim}, heads * c->dim};
    if (c->fused)
        v.ld += 5;
    v.data = own(p, (size_t)(p->tokens * v.ld) * dtype_bytes(c->dtype));
    for (int64_t i = 0; i < p->tokens * v.ld; i++)
        dtype_set(v.data, c->dtype, i, size * value_at(i, salt) + bias);
    return v;
}

static double at(const struct view *v, int64_t token, int64_t head, int64_t d)
{
    return dtype_get(v->data, v->dtype, token * v->ld + head * v->dim[2] + d);
}

static double *doubles(struct problem *p, int64_t n)
{
    return own(p, (size_t)n * sizeof(double));
}

static void problem_init(struct problem *p, const struct config *c)
{
    *p = (struct problem){.c = *c, .tokens = c->n_seqs * c->seq};
    p->scale = 1.0 / sqrt((double)c->dim);
    p->q = heads_view(p, c->n_heads, 1, c->q_scale, c->q_bias);
    p->k = heads_view(p, c->n_kv, 2, 1.0, -c->q_bias);
    p->v = heads_view(p, c->n_kv, 3, 1.0, 0);
    p->d_o = heads_view(p, c->n_heads, 4, 1.0, 0);
    p->o = heads_view(p, c->n_heads, 5, 1.0, 0);
    p->o_in = heads_view(p, c->n_heads, 5, 1.0, 0);
    p->dq = heads_view(p, c->n_heads, 6, 1.0, 0);
    p->dk = heads_view(p, c->n_kv, 7, 1.0, 0);
    p->dv = heads_view(p, c->n_kv, 8, 1.0, 0);
    p->doc = (struct view){own(p, (size_t)p->tokens * 4), DT_I32, 1, {p->tokens}, 1};
    p->lse = (struct view){own(p, (size_t)(p->tokens * c->n_heads) * 4),
                           DT_F32,
                           2,
                           {p->tokens, c->n_heads},
                           c->n_heads};
    p->lse_in = p->lse;
    p->lse_in.data = own(p, (size_t)(p->tokens * c->n_heads) * 4);
    for (int64_t t = 0; t < p->tokens; t++) {
        int64_t i = t % c->seq;
        ((int32_t *)p->doc.data)[t] =
                c->doc_len ? (int32_t)(i / c->doc_len * c->doc_len) : 0;
    }
    int64_t n_q = p->tokens * c->n_heads * c->dim, n_k = p->tokens * c->n_kv * c->dim;
    p->want_o = doubles(p, n_q);
    p->want_dq = doubles(p, n_q);
    p->want_dk = doubles(p, n_k);
    p->want_dv = doubles(p, n_k);
    p->want_lse = doubles(p, p->tokens * c->n_heads);
}

static void problem_free(struct problem *p)
{
    for (int i = 0; i < p->n_owned; i++)
        mem_free(p->owned[i]);
}

/* One query of one head: o, lse and its parts of the gradients, in double. */
static void expect_query(struct problem *p, int64_t token, int64_t head, double *prob,
                         double *slope)
{
    const struct config *c = &p->c;
    int64_t first = token / c->seq * c->seq, i = token - first, dim = c->dim;
    int64_t kv = head / (c->n_heads / c->n_kv);
    int64_t lo = ((int32_t *)p->doc.data)[token];
    if (c->window)
        lo = MAX(lo, i - c->window + 1);
    double top = -INFINITY, sum = 0;
    for (int64_t j = lo; j <= i; j++) {
        double s = 0;
        for (int64_t d = 0; d < dim; d++)
            s += at(&p->q, token, head, d) * at(&p->k, first + j, kv, d);
        s *= p->scale;
        slope[j] = 1.0;
        if (c->cap > 0) {
            double t = tanh(s / c->cap);
            s = c->cap * t;
            slope[j] = 1.0 - t * t;
        }
        prob[j] = s;
        top = fmax(top, s);
    }
    for (int64_t j = lo; j <= i; j++)
        sum += exp(prob[j] - top);
    double lse = top + log(sum);
    p->want_lse[token * c->n_heads + head] = lse;
    double *o = p->want_o + (token * c->n_heads + head) * dim;
    double *dq = p->want_dq + (token * c->n_heads + head) * dim;
    for (int64_t j = lo; j <= i; j++)
        for (int64_t d = 0; d < dim; d++)
            o[d] += exp(prob[j] - lse) * at(&p->v, first + j, kv, d);
    double delta = 0;
    int64_t at_o = token * p->o_in.ld + head * dim;
    for (int64_t d = 0; d < dim; d++) {
        dtype_set(p->o_in.data, c->dtype, at_o + d, o[d]);
        delta += at(&p->o_in, token, head, d) * at(&p->d_o, token, head, d);
    }
    float *lse_in = (float *)p->lse_in.data + token * c->n_heads + head;
    *lse_in = (float)lse;
    for (int64_t j = lo; j <= i; j++) {
        double dp = 0;
        double *dk = p->want_dk + ((first + j) * c->n_kv + kv) * dim;
        double *dv = p->want_dv + ((first + j) * c->n_kv + kv) * dim;
        for (int64_t d = 0; d < dim; d++)
            dp += at(&p->d_o, token, head, d) * at(&p->v, first + j, kv, d);
        prob[j] = exp(prob[j] - (double)*lse_in);
        double ds = prob[j] * (dp - delta) * slope[j] * p->scale;
        for (int64_t d = 0; d < dim; d++) {
            dv[d] += prob[j] * at(&p->d_o, token, head, d);
            dk[d] += ds * at(&p->q, token, head, d);
            dq[d] += ds * at(&p->k, first + j, kv, d);
        }
    }
}

static void expect_all(struct problem *p)
{
    double *prob = doubles(p, p->c.seq), *slope = doubles(p, p->c.seq);
    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->c.n_heads; h++)
            expect_query(p, t, h, prob, slope);
}

static void run_row(const struct kernel_row *row, const struct problem *p,
                    struct pool *pool)
{
    struct program prog;
    program_init(&prog);
    struct op_args args = op_args_init(OP_ATTENTION, PHASE_FORWARD, 0);
    op_args_attr_i(&args, ATTR_SEQ, p->c.seq);
    op_args_attr_f(&args, ATTR_SCALE, p->scale);
    op_args_attr_i(&args, ATTR_WINDOW, p->c.window);
    op_args_attr_f(&args, ATTR_CAP, p->c.cap);
    for (int i = 0; i < args.n_attrs; i++)
        vec_push(&prog.attrs, args.attrs[i]);
    struct prog_op op = {.kind = (uint16_t)row->kind, .n_attrs = (uint8_t)args.n_attrs};
    struct launch l = {.prog = &prog, .op = &op};
    if (row->kind == OP_ATTENTION) {
        op.n_in = 4, op.n_out = 2;
        memcpy(l.in, (struct view[]){p->q, p->k, p->v, p->doc},
               4 * sizeof(struct view));
        l.out[0] = p->o, l.out[1] = p->lse;
    } else {
        op.n_in = 7, op.n_out = 3;
        memcpy(l.in,
               (struct view[]){p->d_o, p->q, p->k, p->v, p->o_in, p->lse_in, p->doc},
               7 * sizeof(struct view));
        l.out[0] = p->dq, l.out[1] = p->dk, l.out[2] = p->dv;
    }
    assert_true(row->accepts(&l));
    size_t bytes = (size_t)row->scratch_bytes(&l, pool_threads(pool));
    char *scratch = mem_alloc(bytes + 128);
    char *aligned = scratch + (64 - (uintptr_t)scratch % 64) % 64;
    memset(aligned, 0xff, bytes); /* NaN: what is read must have been written */
    memset(aligned + bytes, 0x5a, 64);
    l.scratch = aligned;
    row->run(&(struct kernel_call){&l, pool, NULL});
    for (size_t i = 0; i < 64; i++)
        assert_int_equal((unsigned char)aligned[bytes + i], 0x5a);
    mem_free(scratch);
    program_free(&prog);
}

static void check_values(struct fixture *f, const char *row, const char *what,
                         const struct view *got, const double *want, double tol,
                         double least)
{
    int64_t heads = got->dim[1], dim = got->dim[2];
    double out_eps = got->dtype == DT_BF16 ? ldexp(1.0, -8) : 0.0;
    double norm = 0;
    for (int64_t i = 0; i < got->dim[0] * heads * dim; i++)
        norm += want[i] * want[i];
    norm = fmax(sqrt(norm / (double)(got->dim[0] * heads * dim)), least);
    for (int64_t i = 0; i < got->dim[0] * heads * dim; i++) {
        double g = at(got, i / (heads * dim), i / dim % heads, i % dim);
        double limit = tol * (fabs(want[i]) + norm) + out_eps * fabs(want[i]) + 1e-30;
        double error = fabs(g - want[i]) / limit;
        if (!(error <= 1.0))
            fail_msg("%s %s token %ld head %ld d %ld: got %.9g, wanted %.9g +- %.2g",
                     row, what, (long)(i / (heads * dim)), (long)(i / dim % heads),
                     (long)(i % dim), g, want[i], limit);
        f->worst = fmax(f->worst, error);
    }
    f->n_checked += got->dim[0] * heads * dim;
}

/* The gaps of pitched rows hold what they held. */
static void check_gaps(const struct view *v, uint32_t salt)
{
    int64_t row = v->dim[1] * v->dim[2];
    for (int64_t t = 0; t < v->dim[0]; t++) {
        for (int64_t i = t * v->ld + row; i < (t + 1) * v->ld; i++) {
            uint16_t h = bf16_from_f32((float)value_at(i, salt));
            double was =
                    v->dtype == DT_BF16 ? (double)f32_from_bf16(h) : value_at(i, salt);
            assert_true(dtype_get(v->data, v->dtype, i) == was);
        }
    }
}

static size_t bytes_of(const struct view *v)
{
    return (size_t)(v->dim[0] * v->ld) * dtype_bytes(v->dtype);
}

/* Runs a row with every number of threads: all give the bits of one thread. */
static void run_pools(struct fixture *f, const struct kernel_row *row,
                      const struct problem *p, const struct view *const *out, int n_out)
{
    void *one[3];
    for (int i = 0; i < N_POOLS; i++) {
        run_row(row, p, f->pool[i]);
        for (int k = 0; k < n_out; k++) {
            if (i == 0)
                one[k] = memcpy(mem_alloc(bytes_of(out[k])), out[k]->data,
                                bytes_of(out[k]));
            else
                assert_memory_equal(out[k]->data, one[k], bytes_of(out[k]));
        }
    }
    for (int k = 0; k < n_out; k++)
        mem_free(one[k]);
}

/* Rows for tile registers take bf16 only. */
static bool row_takes(const struct fixture *f, const struct kernel_row *row,
                      enum dtype t)
{
    bool needs_bf16 = row->isa & ISA_AMX_BF16;
    return !(row->isa & ~f->isa) && (!needs_bf16 || t == DT_BF16);
}

static void check_problem(struct fixture *f, const struct config *c)
{
    struct problem p;
    problem_init(&p, c);
    expect_all(&p);
    double top = 0;
    for (int64_t i = 0; i < p.tokens * c->n_heads; i++)
        top = fmax(top, fabs(p.want_lse[i]));
    /* Errors of scores, hence relative errors of probabilities, grow with the scores. */
    double score = ldexp(1.0, -24) * (4.0 + 4.0 * (double)c->q_scale + 4.0 * top);
    double tol =
            score + ldexp(1.0, -24) * (16.0 + 4.0 * sqrt((double)(c->seq + c->dim)));
    for (size_t r = 0; r + 1 < kernels_attention.n_rows; r += 2) {
        const struct kernel_row *fwd = &kernels_attention.rows[r];
        const struct kernel_row *bwd = &kernels_attention.rows[r + 1];
        assert_int_equal(bwd->kind, OP_ATTENTION_DX);
        if (!row_takes(f, fwd, c->dtype))
            continue;
        run_pools(f, fwd, &p, (const struct view *[]){&p.o, &p.lse}, 2);
        check_values(f, fwd->name, "o", &p.o, p.want_o, tol, 0.1);
        check_gaps(&p.o, 5);
        for (int64_t i = 0; i < p.tokens * c->n_heads; i++) {
            double error = fabs((double)((float *)p.lse.data)[i] - p.want_lse[i]);
            assert_true(error <= tol * fmax(1.0, fabs(p.want_lse[i])));
        }
        double tol_b = 4.0 * tol;
        /* Score gradients of a row cancel; queries and keys multiply what is left. */
        double least = 0.1 * (c->q_scale + c->q_bias);
        run_pools(f, bwd, &p, (const struct view *[]){&p.dq, &p.dk, &p.dv}, 3);
        check_values(f, bwd->name, "dq", &p.dq, p.want_dq, tol_b, least);
        check_values(f, bwd->name, "dk", &p.dk, p.want_dk, tol_b, least);
        check_values(f, bwd->name, "dv", &p.dv, p.want_dv, tol_b, least);
        check_gaps(&p.dq, 6);
        check_gaps(&p.dk, 7);
        check_gaps(&p.dv, 8);
    }
    problem_free(&p);
}

static struct config config_make(int64_t seq, int64_t n_heads, int64_t n_kv,
                                 int64_t dim)
{
    return (struct config){.n_seqs = 2,
                           .seq = seq,
                           .n_heads = n_heads,
                           .n_kv = n_kv,
                           .dim = dim,
                           .dtype = DT_F32,
                           .q_scale = 1.0};
}

static void test_lengths(void **state)
{
    static const int64_t seqs[] = {1, 2, 3, 5, 17, 63, 64, 65, 127, 128, 129, 255, 257};
    for (size_t i = 0; i < ARRAY_LEN(seqs) * 2; i++) {
        struct config c = config_make(seqs[i / 2], 3, 1, 16);
        c.dtype = i & 1 ? DT_BF16 : DT_F32;
        c.fused = i / 2 & 1;
        check_problem(*state, &c);
    }
}

static void test_dims(void **state)
{
    static const int64_t dims[] = {8,  10, 16,  20,  32,  40, 64,
                                   80, 96, 128, 192, 256, 1,  3};
    for (size_t i = 0; i < ARRAY_LEN(dims); i++) {
        struct config c = config_make(70, 2, 2, dims[i]);
        c.dtype = i & 1 ? DT_BF16 : DT_F32;
        check_problem(*state, &c);
    }
}

static void test_masks(void **state)
{
    static const int64_t docs[] = {0, 1, 7, 64, 100}, windows[] = {0, 1, 5, 64, 90};
    static const double caps[] = {0, 2.0};
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {5, 5}, {6, 1}};
    for (size_t i = 0; i < 5 * 5 * 2 * 4; i += 3) {
        size_t h = i / 50;
        struct config c = config_make(135, heads[h][0], heads[h][1], 24);
        c.doc_len = docs[i % 5];
        c.window = windows[i / 5 % 5];
        c.cap = caps[i / 25 % 2];
        c.dtype = i % 3 == 0 ? DT_BF16 : DT_F32;
        c.fused = i % 2;
        c.q_scale = 3.0;
        c.n_seqs = 1 + (int64_t)(i % 2);
        check_problem(*state, &c);
    }
}

/* A query that sees only itself has o = v and lse = its own score. */
static void test_only_self(void **state)
{
    struct fixture *f = *state;
    struct config c = config_make(130, 2, 1, 32);
    c.window = 1;
    struct problem p;
    problem_init(&p, &c);
    for (size_t r = 0; r < kernels_attention.n_rows; r += 2) {
        const struct kernel_row *row = &kernels_attention.rows[r];
        if (!row_takes(f, row, c.dtype))
            continue;
        run_row(row, &p, f->pool[1]);
        for (int64_t t = 0; t < p.tokens; t++)
            for (int64_t d = 0; d < c.dim; d++)
                assert_true(fabs(at(&p.o, t, 1, d) - at(&p.v, t, 0, d)) <=
                            2e-7 * fabs(at(&p.v, t, 0, d)));
    }
    problem_free(&p);
}

/* Scores of some -thousand and some +thousand: finite, and still right. */
static void test_large_scores(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct config c = config_make(100, 2, 2, 16);
        c.q_scale = i & 1 ? 300.0 : 1.0;
        c.q_bias = i & 2 ? 20.0 : 0.0;
        c.cap = i == 3 ? 30.0 : 0.0;
        check_problem(*state, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_lengths),      cmocka_unit_test(test_dims),
            cmocka_unit_test(test_masks),        cmocka_unit_test(test_only_self),
            cmocka_unit_test(test_large_scores),
    };
    return cmocka_run_group_tests_name("attn", tests, setup, teardown);
}
