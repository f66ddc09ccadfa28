/* Kernels of a vocabulary that is cut over ranks: the parts together against the whole,
 * for every row of the tables that takes the operands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "core/rng.h"
#include "kernels/cpu/cpu_table.h"

#define V      1003
#define T      37
#define H      29
#define N_PART 4

/* One part is empty of labels, one is a single row. */
static const int64_t border[N_PART + 1] = {0, 400, 401, 777, V};

struct data {
    struct pool *pool;
    uint32_t isa;
    float table[V * H], dx[T * H], logits[T * V];
    int32_t ids[T], labels[T];
};

static struct view view2(enum dtype t, void *data, int64_t rows, int64_t cols,
                         int64_t ld)
{
    return (struct view){
            .data = data, .dtype = t, .ndim = 2, .dim = {rows, cols}, .ld = ld};
}

static struct view view1(enum dtype t, void *data, int64_t n)
{
    return (struct view){.data = data, .dtype = t, .ndim = 1, .dim = {n}, .ld = n};
}

static int setup(void **state)
{
    struct data *d = mem_alloc(sizeof(*d));
    struct diag diag = {0};
    if (pool_create(2, &d->pool, &diag) != ST_OK)
        return -1;
    d->isa = cpu_isa_detect();
    rng_normal(5, 1, 0, V * H, d->table);
    rng_normal(5, 2, 0, T * H, d->dx);
    rng_normal(5, 3, 0, T * V, d->logits);
    for (int t = 0; t < T; t++) {
        d->ids[t] = (int32_t)(rng_u64(5, 4, (uint64_t)t) % V);
        d->labels[t] = t % 9 == 4 ? -1 : (int32_t)(rng_u64(5, 5, (uint64_t)t) % V);
        for (int i = 0; i < V; i++)
            d->logits[t * V + i] *= 4;
    }
    d->ids[0] = 400; /* the row that is a part of its own */
    d->labels[1] = 400;
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    struct data *d = *state;
    pool_destroy(d->pool);
    mem_free(d);
    return 0;
}

/* The table's i-th row that runs the op here, or NULL past the last. */
static const struct kernel_row *usable_row(const struct data *d, const struct launch *l,
                                           size_t *i)
{
    bool is_reference;
    const struct kernel_row *row;
    for (; (row = cpu_table_at(*i, &is_reference)); ++*i)
        if (row->kind == l->op->kind && !(row->isa & ~d->isa) &&
            (!row->accepts || row->accepts(l))) {
            ++*i;
            return row;
        }
    return NULL;
}

static void run(const struct data *d, const struct kernel_row *row,
                const struct launch *l)
{
    struct kernel_call c = {l, d->pool, NULL};
    assert_null(row->scratch_bytes);
    row->run(&c);
}

/* Sets the op of a launch, and its attribute begin. */
static void name_op(struct launch *l, struct program *p, struct prog_op *op,
                    enum op_kind kind, int n_in, int n_out, int64_t begin)
{
    struct prog_attr a = {.key = ATTR_BEGIN, .v.i = begin};
    p->attrs.n = 0;
    vec_push(&p->attrs, a);
    *op = (struct prog_op){.kind = (uint16_t)kind,
                           .n_in = (uint8_t)n_in,
                           .n_out = (uint8_t)n_out,
                           .n_attrs = 1,
                           .predicate = NONE_ID,
                           .signal = NONE_ID};
    l->prog = p;
    l->op = op;
}

/* Each part alone with every row; fn checks the row's result. */
typedef int (*part_fn)(struct data *d, struct launch *l, struct program *p,
                       struct prog_op *op, int part);

static void each_part(void **state, const char *what, part_fn fn)
{
    struct program p = {0};
    struct prog_op op;
    int n = 0;
    for (int part = 0; part < N_PART; part++) {
        struct launch l = {0};
        n += fn(*state, &l, &p, &op, part);
    }
    print_message("  %s: %d runs\n", what, n);
    assert_true(n >= N_PART);
    program_free(&p);
}

static int check_embed(struct data *d, struct launch *l, struct program *p,
                       struct prog_op *op, int part)
{
    float got[T * H];
    int64_t rows = border[part + 1] - border[part];
    int n = 0;
    name_op(l, p, op, OP_EMBED, 2, 1, border[part]);
    l->in[0] = view2(DT_F32, d->table + border[part] * H, rows, H, H);
    l->in[1] = view1(DT_I32, d->ids, T);
    l->out[0] = view2(DT_F32, got, T, H, H);
    const struct kernel_row *row;
    for (size_t i = 0; (row = usable_row(d, l, &i)); n++) {
        memset(got, 0xff, sizeof(got));
        run(d, row, l);
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < H; k++) {
                bool here = d->ids[t] >= border[part] && d->ids[t] < border[part + 1];
                float want = here ? d->table[d->ids[t] * H + k] : 0;
                if (got[t * H + k] != want)
                    fail_msg("%s, part %d, token %d", row->name, part, (int)t);
            }
    }
    return n;
}

static void embed_parts_add_up(void **state)
{
    each_part(state, "embed", check_embed);
}

static int check_embed_dw(struct data *d, struct launch *l, struct program *p,
                          struct prog_op *op, int part)
{
    static float got[V * H];
    int64_t rows = border[part + 1] - border[part];
    int n = 0;
    name_op(l, p, op, OP_EMBED_DW, 3, 1, border[part]);
    l->in[0] = view2(DT_F32, d->dx, T, H, H);
    l->in[1] = view1(DT_I32, d->ids, T);
    l->in[2] = l->out[0] = view2(DT_F32, got, rows, H, H);
    const struct kernel_row *row;
    for (size_t i = 0; (row = usable_row(d, l, &i)); n++) {
        memset(got, 0, sizeof(got));
        run(d, row, l);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < H; k++) {
                float want = 0;
                for (int64_t t = 0; t < T; t++)
                    want += d->ids[t] == border[part] + r ? d->dx[t * H + k] : 0;
                if (fabsf(got[r * H + k] - want) > 1e-5f)
                    fail_msg("%s, part %d, row %d", row->name, part, (int)r);
            }
    }
    return n;
}

static void embed_gradients_stay_in_their_part(void **state)
{
    each_part(state, "embed_dw", check_embed_dw);
}

/* In double: the log-sum-exp of a whole row. */
static double row_lse(const struct data *d, int64_t t)
{
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < V; i++)
        max = fmax(max, (double)d->logits[t * V + i]);
    for (int64_t i = 0; i < V; i++)
        sum += exp((double)d->logits[t * V + i] - max);
    return max + log(sum);
}

static int check_xent_dx(struct data *d, struct launch *l, struct program *p,
                         struct prog_op *op, int part)
{
    static float got[T * V];
    float lse[T], scale = 0.25f;
    int64_t cols = border[part + 1] - border[part];
    int n = 0;
    for (int64_t t = 0; t < T; t++)
        lse[t] = (float)row_lse(d, t);
    name_op(l, p, op, OP_XENT_DX, 4, 1, border[part]);
    l->in[0] = view2(DT_F32, d->logits + border[part], T, cols, V);
    l->in[1] = view1(DT_F32, lse, T);
    l->in[2] = view1(DT_I32, d->labels, T);
    l->in[3] = view1(DT_F32, &scale, 1);
    l->out[0] = view2(DT_F32, got, T, cols, cols);
    const struct kernel_row *row;
    for (size_t i = 0; (row = usable_row(d, l, &i)); n++) {
        run(d, row, l);
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < cols; k++) {
                int64_t column = border[part] + k;
                double prob = exp((double)d->logits[t * V + column] - (double)lse[t]);
                double want = 0.25 * (prob - (d->labels[t] == column));
                want = d->labels[t] < 0 ? 0 : want;
                if (fabs((double)got[t * cols + k] - want) > 1e-5 * fabs(want) + 1e-9)
                    fail_msg("%s, part %d, token %d, column %d: got %g, wanted %g",
                             row->name, part, (int)t, (int)column,
                             (double)got[t * cols + k], want);
            }
    }
    return n;
}

static void xent_gradients_of_parts(void **state)
{
    each_part(state, "xent_dx", check_xent_dx);
}

/* Statistics of all parts by the j-th row that takes them; false past the last row. */
static bool all_stats(struct data *d, struct program *p, size_t j, float *stats)
{
    for (int part = 0; part < N_PART; part++) {
        struct launch l = {0};
        struct prog_op op;
        int64_t cols = border[part + 1] - border[part];
        name_op(&l, p, &op, OP_XENT_STATS, 2, 1, border[part]);
        l.in[0] = view2(DT_F32, d->logits + border[part], T, cols, V);
        l.in[1] = view1(DT_I32, d->labels, T);
        l.out[0] = (struct view){.data = stats + part * T * 3,
                                 .dtype = DT_F32,
                                 .ndim = 3,
                                 .dim = {1, T, 3},
                                 .ld = T * 3};
        const struct kernel_row *row = NULL;
        size_t at = 0;
        for (size_t k = 0; k <= j; k++)
            if (!(row = usable_row(d, &l, &at)))
                return false;
        run(d, row, &l);
    }
    return true;
}

/* The logits are not read: they are NaN. */
static void check_loss(struct data *d, struct program *p, float *stats)
{
    static float nan_logits[T * 5];
    float loss[T], lse[T];
    struct launch l = {0};
    struct prog_op op;
    memset(nan_logits, 0xff, sizeof(nan_logits));
    name_op(&l, p, &op, OP_XENT, 3, 2, 77);
    l.in[0] = view2(DT_F32, nan_logits, T, 5, 5);
    l.in[1] = view1(DT_I32, d->labels, T);
    l.in[2] = (struct view){.data = stats,
                            .dtype = DT_F32,
                            .ndim = 3,
                            .dim = {N_PART, T, 3},
                            .ld = T * 3};
    l.out[0] = view1(DT_F32, loss, T);
    l.out[1] = view1(DT_F32, lse, T);
    const struct kernel_row *row;
    for (size_t i = 0; (row = usable_row(d, &l, &i));) {
        run(d, row, &l);
        for (int64_t t = 0; t < T; t++) {
            double want = row_lse(d, t), limit = 1e-6 * fabs(want);
            assert_true(fabs((double)lse[t] - want) <= limit);
            want -= d->labels[t] < 0 ? want : (double)d->logits[t * V + d->labels[t]];
            assert_true(fabs((double)loss[t] - want) <= limit);
        }
    }
}

static void loss_from_statistics(void **state)
{
    struct data *d = *state;
    struct program p = {0};
    static float stats[N_PART * T * 3];
    size_t n = 0;
    for (; all_stats(d, &p, n, stats); n++)
        check_loss(d, &p, stats);
    print_message("  statistics by %d rows\n", (int)n);
    assert_true(n >= 1);
    /* A rank without columns counts for nothing. */
    all_stats(d, &p, 0, stats);
    struct program q = {0};
    float *empty = stats + T * 3; /* the part of one column, which no label is then */
    for (int64_t t = 0; t < T; t++) {
        d->logits[t * V + 400] = -INFINITY;
        d->labels[t] = d->labels[t] == 400 ? 3 : d->labels[t];
    }
    all_stats(d, &p, 0, stats);
    for (int64_t t = 0; t < T; t++) {
        empty[3 * t] = -INFINITY;
        empty[3 * t + 1] = empty[3 * t + 2] = 0;
    }
    check_loss(d, &q, stats);
    program_free(&p);
    program_free(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(embed_parts_add_up),
            cmocka_unit_test(embed_gradients_stay_in_their_part),
            cmocka_unit_test(xent_gradients_of_parts),
            cmocka_unit_test(loss_from_statistics),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
