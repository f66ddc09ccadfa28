/* Tuned matrix products against sums in double: every instruction set, odd shapes, pitched
 * operands, mixed dtypes, and the same bits for any number of threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/peak.h"

#define N_POOLS 3
#define GUARD   7 /* elements of pitch beyond the row, which nothing may touch */

struct fixture {
    struct pool *pool[N_POOLS]; /* of 1, 2, 3 threads */
    uint32_t isa;
    double worst; /* error in units of the tolerance */
    int64_t n_checked;
};

struct dims {
    int64_t t, n, k;
};

static int setup(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    for (int i = 0; i < N_POOLS; i++)
        assert_int_equal(pool_create(i + 1, &f->pool[i], NULL), ST_OK);
    f->isa = cpu_isa_detect();
    if (!(f->isa & ISA_AMX_BF16))
        printf("  no AMX here: its rows are not tested\n");
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

static struct view matrix(enum dtype t, int64_t rows, int64_t cols, bool pitched,
                          uint32_t salt)
{
    struct view v = {NULL, t, 2, {rows, cols}, cols + (pitched ? GUARD : 0)};
    v.data = mem_alloc((size_t)(rows * v.ld) * dtype_bytes(t));
    for (int64_t i = 0; i < rows * v.ld; i++)
        dtype_set(v.data, t, i, value_at(i, salt));
    return v;
}

static size_t view_bytes(const struct view *v)
{
    return (size_t)(v->dim[0] * v->ld) * dtype_bytes(v->dtype);
}

static double at(const struct view *v, int64_t row, int64_t col)
{
    return dtype_get(v->data, v->dtype, row * v->ld + col);
}

/* One product: operands, and what each element of the result is a sum of. */
struct problem {
    struct prog_op op;
    struct view in[3];
    struct view out;
    int64_t m, n, k;
};

static struct problem problem_make(enum op_kind kind, struct dims d, enum dtype in,
                                   enum dtype out, bool pitched, bool third)
{
    struct problem p = {.op = {.kind = (uint16_t)kind}};
    p.op.n_in = third || kind == OP_LINEAR_DW ? 3 : 2;
    if (kind == OP_LINEAR) {
        p.in[0] = matrix(in, d.t, d.k, pitched, 1);
        p.in[1] = matrix(in, d.n, d.k, pitched, 2);
        if (third)
            p.in[2] = matrix(DT_F32, 1, d.n, false, 3);
        p.out = matrix(out, d.t, d.n, pitched, 4);
        p.m = d.t, p.n = d.n, p.k = d.k;
    } else if (kind == OP_LINEAR_DX) {
        p.in[0] = matrix(in, d.t, d.n, pitched, 1);
        p.in[1] = matrix(in, d.n, d.k, pitched, 2);
        if (third)
            p.in[2] = matrix(out, d.t, d.k, pitched, 3);
        p.out = matrix(out, d.t, d.k, pitched, 4);
        p.m = d.t, p.n = d.k, p.k = d.n;
    } else {
        p.in[0] = matrix(in, d.t, d.n, pitched, 1);
        p.in[1] = matrix(in, d.t, d.k, pitched, 2);
        p.in[2] = matrix(DT_F32, d.n, d.k, pitched, 3);
        p.out = matrix(DT_F32, d.n, d.k, pitched, 4);
        p.m = d.n, p.n = d.k, p.k = d.t;
    }
    return p;
}

static void problem_free(struct problem *p)
{
    for (int i = 0; i < 3; i++)
        mem_free(p->in[i].data);
    mem_free(p->out.data);
}

/* The operands as rows of doubles along the inner dimension. */
static double *rows_of(const struct view *v, int64_t rows, int64_t k, bool k_contiguous)
{
    double *r = mem_alloc((size_t)(rows * k) * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t kk = 0; kk < k; kk++)
            r[i * k + kk] = k_contiguous ? at(v, i, kk) : at(v, kk, i);
    return r;
}

static double *expected(const struct problem *p)
{
    enum op_kind kind = p->op.kind;
    double *a = rows_of(&p->in[0], p->m, p->k, kind != OP_LINEAR_DW);
    double *b = rows_of(&p->in[1], p->n, p->k, kind == OP_LINEAR);
    double *y = mem_alloc((size_t)(p->m * p->n) * sizeof(double));
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double s = 0;
            for (int64_t k = 0; k < p->k; k++)
                s += a[i * p->k + k] * b[j * p->k + k];
            if (p->op.n_in > 2)
                s += at(&p->in[2], kind == OP_LINEAR ? 0 : i, j);
            y[i * p->n + j] = s;
        }
    }
    mem_free(a);
    mem_free(b);
    return y;
}

/* Runs a row; the result is a fresh matrix whose gaps hold what they held before. */
static struct view run_row(const struct kernel_row *row, const struct problem *p,
                           struct pool *pool, bool in_place)
{
    struct launch l = {.op = &p->op};
    memcpy(l.in, p->in, sizeof(p->in));
    struct view out = p->out;
    out.data = mem_alloc(view_bytes(&out));
    memcpy(out.data, in_place ? p->in[2].data : p->out.data, view_bytes(&out));
    l.out[0] = out;
    if (in_place)
        l.in[2].data = out.data;
    size_t bytes = (size_t)row->scratch_bytes(&l, pool_threads(pool));
    char *scratch = mem_alloc(bytes + 128);
    char *aligned = scratch + (64 - (uintptr_t)scratch % 64) % 64;
    memset(aligned, 0xff, bytes); /* NaN: what is read must have been written */
    memset(aligned + bytes, 0x5a, 64 - (size_t)(aligned - scratch));
    l.scratch = aligned;
    row->run(&(struct kernel_call){&l, pool, NULL});
    for (size_t i = 0; i < 64 - (size_t)(aligned - scratch); i++)
        assert_int_equal((unsigned char)aligned[bytes + i], 0x5a);
    mem_free(scratch);
    return out;
}

static bool row_takes_dtype(const struct fixture *f, const struct kernel_row *row,
                            enum dtype t)
{
    bool needs_bf16 = row->isa & ISA_AVX512_BF16;
    return !(row->isa & ~f->isa) && (!needs_bf16 || t == DT_BF16);
}

static void check_values(struct fixture *f, const struct kernel_row *row,
                         const struct problem *p, const struct view *got,
                         const double *want)
{
    double eps = ldexp(1.0, -24) * (8.0 + 2.0 * sqrt((double)p->k));
    double scale = sqrt((double)p->k);
    double out_eps = got->dtype == DT_BF16 ? ldexp(1.0, -8) : 0.0;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double w = want[i * p->n + j], g = at(got, i, j);
            double tol = eps * fmax(fabs(w), scale) + out_eps * fabs(w);
            double error = fabs(g - w) / tol;
            if (!(error <= 1.0))
                fail_msg(
                        "%s m %ld n %ld k %ld (%ld, %ld): got %.9g, wanted %.9g +- %.2g",
                        row->name, (long)p->m, (long)p->n, (long)p->k, (long)i, (long)j,
                        g, w, tol);
            f->worst = fmax(f->worst, error);
        }
        for (int64_t j = p->n; j < got->ld; j++)
            assert_true(at(got, i, j) == at(&p->out, i, j));
    }
    f->n_checked += p->m * p->n;
}

static void check_problem(struct fixture *f, const struct problem *p)
{
    double *want = expected(p);
    for (size_t r = 0; r < kernels_gemm.n_rows; r++) {
        const struct kernel_row *row = &kernels_gemm.rows[r];
        bool needs_bf16 = row->isa & ISA_AVX512_BF16;
        if (row->kind != p->op.kind || (row->isa & ~f->isa) ||
            (needs_bf16 && (p->in[0].dtype != DT_BF16 || p->in[1].dtype != DT_BF16)))
            continue;
        struct view got[N_POOLS];
        for (int i = 0; i < N_POOLS; i++)
            got[i] = run_row(row, p, f->pool[i], false);
        check_values(f, row, p, &got[0], want);
        for (int i = 1; i < N_POOLS; i++)
            assert_memory_equal(got[i].data, got[0].data, view_bytes(&got[0]));
        for (int i = 0; i < N_POOLS; i++)
            mem_free(got[i].data);
    }
    mem_free(want);
}

static const enum op_kind kinds[] = {OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW};
static const int64_t odd[] = {1, 2, 3, 5, 17, 63, 64, 65, 255, 257};

/* A third of the cube of odd sizes, each with some choice of the other options. */
static void test_odd_shapes(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < 1000; i++) {
        size_t a = i % 10, b = i / 10 % 10, c = i / 100;
        if ((a + b + c) % 3)
            continue;
        struct dims d = {odd[a], odd[b], odd[c]};
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
            enum dtype in = (i / 3 + k) % 2 ? DT_BF16 : DT_F32;
            enum dtype out = (i / 6) % 3 ? in : in == DT_F32 ? DT_BF16 : DT_F32;
            struct problem p = problem_make(kinds[k], d, in, out, i & 1, i & 2);
            check_problem(f, &p);
            problem_free(&p);
        }
    }
}

/* Sizes beyond the blocks of every dimension. */
static void test_many_blocks(void **state)
{
    struct fixture *f = *state;
    static const struct dims big[] = {
            {40, 50, 771},  {771, 33, 70},  {70, 1539, 40},  {1100, 37, 30},
            {30, 1601, 64}, {45, 60, 1025}, {1025, 60, 400}, {100, 100, 1537},
    };
    for (size_t i = 0; i < ARRAY_LEN(big) * 4; i++) {
        enum dtype in = i & 1 ? DT_BF16 : DT_F32;
        enum dtype out = i & 2 ? DT_BF16 : DT_F32;
        for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
            struct problem p = problem_make(kinds[k], big[i / 4], in, out, true, true);
            check_problem(f, &p);
            problem_free(&p);
        }
    }
}

/* The addend's bytes are the output's. */
static void test_in_place(void **state)
{
    struct fixture *f = *state;
    static const struct dims some[] = {{70, 800, 65}, {800, 17, 33}, {65, 64, 900}};
    for (size_t i = 0; i < ARRAY_LEN(some) * 4; i++) {
        enum op_kind kind = i & 1 ? OP_LINEAR_DX : OP_LINEAR_DW;
        enum dtype t = i & 2 ? DT_BF16 : DT_F32;
        struct problem p = problem_make(kind, some[i / 4], t, t, true, true);
        for (size_t r = 0; r < kernels_gemm.n_rows; r++) {
            const struct kernel_row *row = &kernels_gemm.rows[r];
            if (row->kind != kind || !row_takes_dtype(f, row, t))
                continue;
            struct view apart = run_row(row, &p, f->pool[0], false);
            struct view same = run_row(row, &p, f->pool[1], true);
            for (int64_t m = 0; m < p.m; m++)
                for (int64_t n = 0; n < p.n; n++)
                    assert_true(at(&apart, m, n) == at(&same, m, n));
            mem_free(apart.data);
            mem_free(same.data);
        }
        problem_free(&p);
    }
}

static void *element(const struct view *v, int64_t i)
{
    return (char *)v->data + (size_t)i * dtype_bytes(v->dtype);
}

static void check_position(const struct fixture *f, enum dtype t)
{
    struct problem p =
            problem_make(OP_LINEAR, (struct dims){81, 97, 901}, t, DT_F32, false, true);
    for (size_t r = 0; r < kernels_gemm.n_rows; r++) {
        const struct kernel_row *row = &kernels_gemm.rows[r];
        if (row->kind != OP_LINEAR || !row_takes_dtype(f, row, t))
            continue;
        struct view whole = run_row(row, &p, f->pool[0], false);
        struct problem part = p;
        part.in[0].data = element(&p.in[0], 9 * p.in[0].ld);
        part.in[1].data = element(&p.in[1], 40 * p.in[1].ld);
        part.in[2].data = element(&p.in[2], 40);
        part.in[0].dim[0] = part.out.dim[0] = part.m = 40;
        part.in[1].dim[0] = part.out.dim[1] = part.n = 41;
        struct view cut = run_row(row, &part, f->pool[0], false);
        for (int64_t i = 0; i < part.m; i++)
            for (int64_t j = 0; j < part.n; j++)
                assert_true(at(&cut, i, j) == at(&whole, i + 9, j + 40));
        mem_free(whole.data);
        mem_free(cut.data);
    }
    problem_free(&p);
}

/* What a row of the result holds does not depend on which rows and columns are with it. */
static void test_position(void **state)
{
    check_position(*state, DT_F32);
    check_position(*state, DT_BF16);
}

/* A row of NaN stays a row of NaN: what fills the edges of panels does not spread it, and
 * nothing swallows it. */
static void test_nan_stays_in_its_row(void **state)
{
    struct fixture *f = *state;
    struct problem p = problem_make(OP_LINEAR, (struct dims){37, 41, 45}, DT_BF16,
                                    DT_BF16, true, false);
    for (int64_t k = 0; k < p.in[0].ld; k++)
        dtype_set(p.in[0].data, DT_BF16, 17 * p.in[0].ld + k, NAN);
    for (size_t r = 0; r < kernels_gemm.n_rows; r++) {
        const struct kernel_row *row = &kernels_gemm.rows[r];
        if (row->kind != OP_LINEAR || !row_takes_dtype(f, row, DT_BF16))
            continue;
        struct view y = run_row(row, &p, f->pool[1], false);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t j = 0; j < p.n; j++)
                assert_int_equal(!isfinite(at(&y, i, j)), i == 17);
        mem_free(y.data);
    }
    problem_free(&p);
}

/* Tile registers take numbers under the normal range for zero: no result is further off
 * than that. */
static void test_tiny_numbers(void **state)
{
    struct fixture *f = *state;
    struct problem p = problem_make(OP_LINEAR, (struct dims){33, 35, 70}, DT_BF16,
                                    DT_F32, false, false);
    for (int64_t i = 0; i < p.m * p.k; i++)
        dtype_set(p.in[0].data, DT_BF16, i, ldexp(value_at(i, 1), -126));
    double *want = expected(&p);
    for (size_t r = 0; r < kernels_gemm.n_rows; r++) {
        const struct kernel_row *row = &kernels_gemm.rows[r];
        if (row->kind != OP_LINEAR || !row_takes_dtype(f, row, DT_BF16))
            continue;
        struct view y = run_row(row, &p, f->pool[0], false);
        double worst = 0;
        for (int64_t i = 0; i < p.m * p.n; i++)
            worst = fmax(worst, fabs(dtype_get(y.data, DT_F32, i) - want[i]));
        printf("  %s: off by %.2g * 2^-126 at most for %ld terms under 2^-126\n",
               row->name, ldexp(worst, 126), (long)p.k);
        assert_true(worst <= ldexp((double)p.k, -126));
        mem_free(y.data);
    }
    mem_free(want);
    problem_free(&p);
}

static void test_accepts(void **state)
{
    (void)state;
    struct problem p = problem_make(OP_LINEAR, (struct dims){2, 3, 4}, DT_F32, DT_F32,
                                    false, true);
    struct launch l = {.op = &p.op};
    memcpy(l.in, p.in, sizeof(p.in));
    l.out[0] = p.out;
    const struct kernel_row *last = &kernels_gemm.rows[kernels_gemm.n_rows - 3];
    assert_string_equal(last->name, "linear_portable");
    assert_true(last->accepts(&l));
    l.in[0].dtype = DT_F64;
    assert_false(last->accepts(&l));
    l.in[0].dtype = DT_F32;
    l.in[2].dtype = DT_BF16;
    assert_false(last->accepts(&l));
    problem_free(&p);
}

/* A peak is a rate: it grows with the threads, and bf16 has at least f32's. */
static void test_peak(void **state)
{
    struct fixture *f = *state;
    double f32 = cpu_peak_flops(f->pool[0], DT_F32);
    double bf16 = cpu_peak_flops(f->pool[0], DT_BF16);
    printf("  peak of one thread: f32 %.1f, bf16 %.1f GFLOP/s\n", f32 * 1e-9,
           bf16 * 1e-9);
    assert_true(f32 > 1e8 && f32 < 1e13);
    assert_true(bf16 > 0.5 * f32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_odd_shapes),
            cmocka_unit_test(test_many_blocks),
            cmocka_unit_test(test_in_place),
            cmocka_unit_test(test_position),
            cmocka_unit_test(test_nan_stays_in_its_row),
            cmocka_unit_test(test_tiny_numbers),
            cmocka_unit_test(test_accepts),
            cmocka_unit_test(test_peak),
    };
    return cmocka_run_group_tests_name("gemm", tests, setup, teardown);
}
