/* Communication ops: programs of ranks that are threads, against plain loops; failures
 * and groups that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "core/op.h"
#include "core/rng.h"
#include "core/verify.h"
#include "core/waits.h"
#include "parallel/comm_self.h"
#include "tests/lib/comm_suite.h"
#include "tests/lib/prog_rig.h"

#define ROWS_MAX  24
#define COLS      5
#define RANKS_MAX 4
#define ELEMS_MAX (ROWS_MAX * COLS)

/* ------------------------------------------------------------------- one op's program */

struct comm_case {
    const char *label;
    enum op_kind kind;
    enum dtype in, out;
    bool acc;     /* reduce_scatter: adds to an accumulator, in place */
    bool inplace; /* the part is the rank's place in the whole */
    bool uneven;  /* cuts, one part empty */
    uint8_t stream;
};

static const struct comm_case cases[] = {
        {"all_gather f32", OP_ALL_GATHER, DT_F32, DT_F32, false, false, false, 0},
        {"all_gather bf16 cuts", OP_ALL_GATHER, DT_BF16, DT_BF16, false, false, true,
         1},
        {"all_gather in place", OP_ALL_GATHER, DT_BF16, DT_BF16, false, true, true, 1},
        {"reduce_scatter f32", OP_REDUCE_SCATTER, DT_F32, DT_F32, false, false, false,
         1},
        {"reduce_scatter cuts", OP_REDUCE_SCATTER, DT_F32, DT_F32, false, false, true,
         0},
        {"reduce_scatter own", OP_REDUCE_SCATTER, DT_F32, DT_F32, false, true, true, 1},
        {"reduce_scatter bf16", OP_REDUCE_SCATTER, DT_BF16, DT_BF16, false, false, true,
         0},
        {"reduce_scatter f64", OP_REDUCE_SCATTER, DT_F64, DT_F64, true, false, true, 0},
        {"f32 to bf16", OP_REDUCE_SCATTER, DT_F32, DT_BF16, false, false, false, 0},
        {"f32 to bf16 cuts", OP_REDUCE_SCATTER, DT_F32, DT_BF16, false, false, true, 1},
        {"f32 to bf16 acc", OP_REDUCE_SCATTER, DT_F32, DT_BF16, true, false, true, 0},
        {"f32 acc", OP_REDUCE_SCATTER, DT_F32, DT_F32, true, false, true, 1},
        {"bf16 to f32 acc", OP_REDUCE_SCATTER, DT_BF16, DT_F32, true, false, false, 0},
        {"bf16 acc", OP_REDUCE_SCATTER, DT_BF16, DT_BF16, true, false, true, 2},
        {"all_reduce f32", OP_ALL_REDUCE, DT_F32, DT_F32, false, false, false, 0},
        {"all_reduce in place", OP_ALL_REDUCE, DT_F32, DT_F32, false, true, false, 1},
        {"all_reduce bf16", OP_ALL_REDUCE, DT_BF16, DT_BF16, false, true, false, 0},
        {"all_reduce f64", OP_ALL_REDUCE, DT_F64, DT_F64, false, false, false, 2},
};

/* Rows of the parts: 3, 0, 6, .. or equal ones. */
static int64_t cut(const struct comm_case *c, int m)
{
    return c->uneven ? (int64_t[]){0, 3, 3, 9, 11}[m] : 3 * m;
}

static uint32_t value(struct program *p, enum storage_class cls, enum dtype t,
                      int64_t rows, const char *name)
{
    int64_t dim[2] = {rows, COLS};
    uint32_t s = program_storage(p, cls, SLOT_NONE,
                                 rows * COLS * (int64_t)dtype_bytes(t), "%s", name);
    return program_value(p, s, 0, t, 2, dim, "%s", name);
}

/* Rows [begin, begin + rows) of a value. */
static uint32_t rows_of(struct program *p, uint32_t whole, int64_t begin, int64_t rows)
{
    int64_t dim[2] = {rows, COLS};
    const struct prog_value v = p->values.data[whole];
    return program_value(p, v.storage,
                         begin * COLS * (int64_t)dtype_bytes((enum dtype)v.dtype),
                         (enum dtype)v.dtype, 2, dim, "part");
}

static void comm_attrs(struct program *p, struct op_args *a, const struct comm_case *c,
                       int rank, int n)
{
    op_args_attr_i(a, ATTR_GROUP, GROUP_DATA);
    op_args_attr_i(a, ATTR_MEMBER, rank);
    op_args_attr_i(a, ATTR_MEMBERS, n);
    if (!c->uneven)
        return;
    op_args_attr_i(a, ATTR_CUTS, p->cuts.n);
    for (int m = 0; m <= n; m++)
        vec_push(&p->cuts, cut(c, m));
}

struct one_op {
    struct program p;
    uint32_t in, acc, out;
    int64_t in_rows, out_rows;
};

static void one_op_build(struct one_op *q, const struct comm_case *c, int rank, int n)
{
    int64_t whole = cut(c, n), part = cut(c, rank + 1) - cut(c, rank);
    bool gather = c->kind == OP_ALL_GATHER, scatter = c->kind == OP_REDUCE_SCATTER;
    memset(q, 0, sizeof(*q));
    program_init(&q->p);
    q->in_rows = gather ? part : whole;
    q->out_rows = scatter ? part : whole;
    q->acc = NONE_ID;
    if (c->inplace && gather) {
        q->out = value(&q->p, SC_OPTIM, c->out, whole, "y");
        q->in = rows_of(&q->p, q->out, cut(c, rank), part);
    } else {
        q->in = value(&q->p, SC_OPTIM, c->in, q->in_rows, "x");
        q->out = c->inplace
                         ? scatter ? rows_of(&q->p, q->in, cut(c, rank), part) : q->in
                         : value(&q->p, SC_OUTPUT, c->out, q->out_rows, "y");
    }
    struct op_args a = op_args_init(c->kind, PHASE_WGRAD, 4);
    op_args_in(&a, q->in);
    if (c->acc) {
        q->acc = q->out = value(&q->p, SC_OPTIM, c->out, q->out_rows, "acc");
        op_args_in(&a, q->acc);
    }
    comm_attrs(&q->p, &a, c, rank, n);
    if (scatter && c->in != c->out)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, c->out);
    a.out[0] = q->out;
    a.stream = c->stream;
    program_segment_begin(&q->p, "all");
    program_op(&q->p, &a);
    program_call(&q->p, CALL_STEP, program_segment_end(&q->p), 0, 0);
    program_seal(&q->p);
    program_add_waits(&q->p);
}

/* Element i (of the whole) of rank r's buffer, as its dtype holds it. */
static double element(int r, int64_t i, enum dtype t)
{
    float x;
    double held[1];
    rng_normal(11, (uint64_t)r, i, 1, &x);
    dtype_set(held, t, 0, (double)x);
    return dtype_get(held, t, 0);
}

static double acc_element(int rank, int64_t i, enum dtype t)
{
    return element(100 + rank, i, t);
}

/* What every element must be, rounded as core/comm.h and the op table say. */
static double wanted(const struct comm_case *c, int rank, int n, int64_t i)
{
    int64_t first = cut(c, rank) * COLS;
    if (c->kind == OP_ALL_GATHER) {
        int owner = 0;
        while (i >= cut(c, owner + 1) * COLS)
            owner++;
        return element(owner, i, c->in);
    }
    if (c->kind == OP_ALL_REDUCE)
        first = 0;
    double sum = 0;
    for (int r = 0; r < n; r++) {
        double x = element(r, first + i, c->in);
        sum = c->in == DT_F64 ? sum + x : (double)((float)sum + (float)x);
    }
    double held[1];
    dtype_set(held, c->in, 0, sum);
    sum = dtype_get(held, c->in, 0);
    if (c->acc) {
        sum += acc_element(rank, i, c->out);
        sum = c->in == DT_F64 ? sum : (double)(float)sum;
    }
    dtype_set(held, c->out, 0, sum);
    return dtype_get(held, c->out, 0);
}

static struct comm *data_group(struct comm_world *w)
{
    int all[RANKS_MAX];
    struct diag diag = {0};
    struct comm *c;
    for (int i = 0; i < w->size; i++)
        all[i] = i;
    SUITE_CHECK(w->ops->group(w, all, w->size, "data group 0", &c, &diag) == ST_OK,
                &diag);
    return c;
}

static void fill(struct exec *e, const struct one_op *q, const struct comm_case *c,
                 int rank)
{
    struct view x = exec_view(e, q->in, 0);
    int64_t first = c->kind == OP_ALL_GATHER ? cut(c, rank) * COLS : 0;
    for (int64_t i = 0; i < q->in_rows * COLS; i++)
        dtype_set(x.data, c->in, i, element(rank, first + i, c->in));
    if (q->acc == NONE_ID)
        return;
    struct view acc = exec_view(e, q->acc, 0);
    for (int64_t i = 0; i < q->out_rows * COLS; i++)
        dtype_set(acc.data, c->out, i, acc_element(rank, i, c->out));
}

static void run_case(const struct comm_case *c, struct comm *group)
{
    struct one_op q;
    struct prog_rig rig;
    struct diag diag = {0};
    int rank = group->rank, n = group->size;
    struct exec_options o = {.check = true, .guard_bytes = 64};
    o.groups[GROUP_DATA] = group;
    one_op_build(&q, c, rank, n);
    SUITE_CHECK(verify_structure(&q.p, &diag) == ST_OK, &diag);
    SUITE_CHECK(prog_rig_open(&rig, &q.p, 2, &o, &diag) == ST_OK, &diag);
    for (int step = 0; step < 3; step++) {
        fill(rig.exec, &q, c, rank);
        SUITE_CHECK(exec_run(rig.exec, CALL_STEP, &diag) == ST_OK, &diag);
        struct view y = exec_view(rig.exec, q.out, 0);
        for (int64_t i = 0; i < q.out_rows * COLS; i++) {
            double got = dtype_get(y.data, c->out, i), want = wanted(c, rank, n, i);
            snprintf(diag.text, sizeof(diag.text),
                     "%s, rank %d of %d, element %lld: got %.9g, wanted %.9g", c->label,
                     rank, n, (long long)i, got, want);
            SUITE_CHECK(got == want, &diag);
        }
    }
    prog_rig_close(&rig);
    program_free(&q.p);
}

static void run_cases(struct comm_world *w, int rank, void *arg)
{
    (void)rank;
    (void)arg;
    struct comm *group = data_group(w);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        run_case(&cases[i], group);
    group->ops->close(group);
}

static void collectives_equal_plain_loops(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS_MAX; n++)
        comm_on_threads(n, run_cases, NULL);
    print_message("  %d cases on 1 to %d ranks\n", (int)ARRAY_LEN(cases), RANKS_MAX);
}

/* ------------------------------------------------------------------------- messages */

/* A ring: every rank sends x to the next one on one stream and receives y on another,
 * several times over. */
static void ring_build(struct program *p, int rank, int n, uint32_t *x, uint32_t *y)
{
    program_init(p);
    *x = value(p, SC_INPUT, DT_BF16, 7, "x");
    *y = value(p, SC_OUTPUT, DT_BF16, 7, "y");
    program_segment_begin(p, "ring");
    for (int i = 0; i < 2; i++) {
        struct op_args a = op_args_init(i ? OP_RECV : OP_SEND, PHASE_FORWARD, 2);
        if (i)
            a.out[0] = *y;
        else
            op_args_in(&a, *x);
        op_args_attr_i(&a, ATTR_GROUP, GROUP_FORWARD);
        op_args_attr_i(&a, ATTR_MEMBER, rank);
        op_args_attr_i(&a, ATTR_MEMBERS, n);
        op_args_attr_i(&a, ATTR_PEER, (rank + (i ? n - 1 : 1)) % n);
        a.stream = i ? STREAM_RECV_FORWARD : STREAM_SEND_FORWARD;
        program_op(p, &a);
    }
    program_call(p, CALL_STEP, program_segment_end(p), 0, 0);
    program_seal(p);
    program_add_waits(p);
}

static void run_ring(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct program p;
    struct prog_rig rig;
    struct diag diag = {0};
    uint32_t x, y;
    struct exec_options o = {0};
    o.groups[GROUP_FORWARD] = data_group(w);
    ring_build(&p, rank, w->size, &x, &y);
    SUITE_CHECK(prog_rig_open(&rig, &p, 1, &o, &diag) == ST_OK, &diag);
    for (int step = 0; step < 50; step++) {
        uint16_t out[7 * COLS], in[7 * COLS];
        for (int i = 0; i < 7 * COLS; i++)
            out[i] = (uint16_t)(1000 * rank + 40 * step + i);
        exec_write(rig.exec, x, 0, out);
        SUITE_CHECK(exec_run(rig.exec, CALL_STEP, &diag) == ST_OK, &diag);
        exec_read(rig.exec, y, 0, in);
        int from = (rank + w->size - 1) % w->size;
        for (int i = 0; i < 7 * COLS; i++)
            SUITE_CHECK(in[i] == (uint16_t)(1000 * from + 40 * step + i), NULL);
    }
    prog_rig_close(&rig);
    program_free(&p);
    o.groups[GROUP_FORWARD]->ops->close(o.groups[GROUP_FORWARD]);
}

static void messages_go_round(void **state)
{
    (void)state;
    comm_on_threads(2, run_ring, NULL);
    comm_on_threads(4, run_ring, NULL);
}

/* ------------------------------------------------------------------------- failures */

/* Rank 1 gives up instead of taking part. The status and the words come out of exec_run,
 * the ops behind the failure leave their results alone, and it stays that way. */
static void run_failure(struct comm_world *w, int rank, void *arg)
{
    static const struct comm_case c = {"",    OP_ALL_REDUCE, DT_F32, DT_F32,
                                       false, false,         false,  1};
    struct one_op q;
    struct prog_rig rig;
    struct diag diag = {0};
    struct exec_options o = {0};
    struct comm_case mine = c;
    mine.stream = *(uint8_t *)arg;
    o.groups[GROUP_DATA] = data_group(w);
    if (rank == 1) {
        w->ops->give_up(w, "the disk is full");
        o.groups[GROUP_DATA]->ops->close(o.groups[GROUP_DATA]);
        return;
    }
    one_op_build(&q, &mine, rank, w->size);
    SUITE_CHECK(prog_rig_open(&rig, &q.p, 1, &o, &diag) == ST_OK, &diag);
    for (int i = 0; i < 2; i++) {
        memset(&diag, 0, sizeof(diag));
        SUITE_CHECK(exec_run(rig.exec, CALL_STEP, &diag) == ST_STOPPED, &diag);
        SUITE_CHECK(
                strstr(diag.text, "all-reduce of layer 4's gradients of weights: ") ==
                        diag.text,
                &diag);
        SUITE_CHECK(strstr(diag.text, "data group 0"), &diag);
    }
    if (rank == 0)
        print_message("  %s\n", diag.text);
    prog_rig_close(&rig);
    program_free(&q.p);
    o.groups[GROUP_DATA]->ops->close(o.groups[GROUP_DATA]);
}

static void failures_end_the_run_in_words(void **state)
{
    (void)state;
    for (uint8_t stream = 0; stream < 2; stream++)
        comm_on_threads(3, run_failure, &stream);
}

static void groups_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct one_op q;
    struct prog_rig rig;
    struct diag diag = {0};
    struct exec_options o = {0};
    struct comm_world *w = comm_self_create();
    one_op_build(&q, &cases[0], 1, 3);
    assert_int_equal(prog_rig_open(&rig, &q.p, 1, &o, &diag), ST_INTERNAL);
    assert_non_null(strstr(diag.text, "got no data group, wanted one of 3 ranks"));
    o.groups[GROUP_DATA] = data_group(w);
    assert_int_equal(prog_rig_open(&rig, &q.p, 1, &o, &diag), ST_INTERNAL);
    assert_non_null(strstr(diag.text, "member 0 of 1, wanted member 1 of 3"));
    o.groups[GROUP_DATA]->ops->close(o.groups[GROUP_DATA]);
    w->ops->close(w);
    program_free(&q.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(collectives_equal_plain_loops),
            cmocka_unit_test(messages_go_round),
            cmocka_unit_test(failures_end_the_run_in_words),
            cmocka_unit_test(groups_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
