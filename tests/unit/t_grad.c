/* Derived gradients against central differences, in double: small networks of every
 * differentiable op, through differentiate() and the reference kernels. Every element of
 * every weight's gradient is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "core/diff.h"
#include "core/exec.h"
#include "core/rng.h"
#include "kernels/cpu/cpu_backend.h"
#include "memory/pack.h"

#define SEQ       5
#define TOKENS    10 /* two sequences */
#define HIDDEN    8
#define HEADS     4
#define KV_HEADS  2
#define WIDTH     4
#define VOCAB     11
#define W_MAX     12
#define STEP      1e-4
#define REL_LIMIT 1e-6
#define SEED      0.7 /* gradient of every token's loss */

/* A network under construction. */
struct net {
    struct program p;
    uint32_t weight[W_MAX], grad[W_MAX];
    uint32_t n_weights;
    uint32_t ids, labels, positions, doc_start, rope, seed, loss;
};

static uint32_t net_value(struct net *n, enum storage_class cls, enum dtype t, int ndim,
                          const int64_t *dim, const char *name)
{
    int64_t elems = 1;
    for (int i = 0; i < ndim; i++)
        elems *= dim[i];
    uint32_t s = program_storage(&n->p, cls, SLOT_NONE, elems * (int64_t)dtype_bytes(t),
                                 "%s", name);
    return program_value(&n->p, s, 0, t, ndim, dim, "%s", name);
}

static uint32_t net_weight(struct net *n, int ndim, int64_t d0, int64_t d1)
{
    char name[32], name_g[32];
    snprintf(name, sizeof(name), "w%u", n->n_weights);
    snprintf(name_g, sizeof(name_g), "g%u", n->n_weights);
    uint32_t i = n->n_weights++;
    n->weight[i] = net_value(n, SC_PARAM, DT_F64, ndim, (int64_t[]){d0, d1}, name);
    n->grad[i] = net_value(n, SC_GRAD, DT_F64, ndim, (int64_t[]){d0, d1}, name_g);
    return n->weight[i];
}

static struct op_args net_op(enum op_kind kind, int n_in, const uint32_t *in)
{
    struct op_args a = op_args_init(kind, PHASE_FORWARD, 0);
    for (int i = 0; i < n_in; i++)
        op_args_in(&a, in[i]);
    return a;
}

static uint32_t net_emit(struct net *n, struct op_args *a)
{
    program_op(&n->p, a);
    return a->out[0];
}

static uint32_t net_linear(struct net *n, uint32_t x, int64_t k, int64_t outer)
{
    struct op_args a =
            net_op(OP_LINEAR, 2, (uint32_t[]){x, net_weight(n, 2, outer, k)});
    return net_emit(n, &a);
}

/* --------------------------------------------------------------- the middle of a net */

/* in: x f64[T,H]; out: f64[T, *width]. `arg` is the case's. */
typedef uint32_t (*middle_fn)(struct net *n, uint32_t x, int64_t arg, int64_t *width);

static uint32_t middle_none(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)n;
    (void)arg;
    (void)width;
    return x;
}

static uint32_t middle_bias(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)arg;
    *width = 6;
    uint32_t w = net_weight(n, 2, 6, HIDDEN), b = net_weight(n, 1, 6, 0);
    struct op_args a = net_op(OP_LINEAR, 3, (uint32_t[]){x, w, b});
    return net_emit(n, &a);
}

/* A bias that is not part of the product. */
static uint32_t middle_add_bias(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)arg;
    *width = 6;
    uint32_t y = net_linear(n, x, HIDDEN, 6);
    struct op_args a = net_op(OP_ADD_BIAS, 2, (uint32_t[]){y, net_weight(n, 1, 6, 0)});
    return net_emit(n, &a);
}

/* x + linear(x): the residual's two gradients are added. */
static uint32_t middle_residual(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)arg;
    (void)width;
    uint32_t y = net_linear(n, x, HIDDEN, HIDDEN);
    struct op_args a = net_op(OP_ADD, 2, (uint32_t[]){x, y});
    return net_emit(n, &a);
}

/* A weight that is read twice. */
static uint32_t middle_twice(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)arg;
    (void)width;
    uint32_t w = net_weight(n, 2, HIDDEN, HIDDEN);
    struct op_args a = net_op(OP_LINEAR, 2, (uint32_t[]){x, w});
    struct op_args b = net_op(OP_LINEAR, 2, (uint32_t[]){net_emit(n, &a), w});
    return net_emit(n, &b);
}

static uint32_t middle_rmsnorm(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)width;
    uint32_t w = net_weight(n, 1, HIDDEN, 0);
    struct op_args a = net_op(OP_RMSNORM, 2, (uint32_t[]){x, w});
    op_args_attr_f(&a, ATTR_EPS, 1e-3);
    op_args_attr_i(&a, ATTR_PLUS_ONE, arg);
    uint32_t y = net_emit(n, &a);
    struct op_args sum = net_op(OP_ADD, 2, (uint32_t[]){x, y});
    return net_emit(n, &sum);
}

static uint32_t middle_layernorm(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)arg;
    (void)width;
    uint32_t w = net_weight(n, 1, HIDDEN, 0), b = net_weight(n, 1, HIDDEN, 0);
    struct op_args a = net_op(OP_LAYERNORM, 3, (uint32_t[]){x, w, b});
    op_args_attr_f(&a, ATTR_EPS, 1e-3);
    uint32_t y = net_emit(n, &a);
    struct op_args sum = net_op(OP_ADD, 2, (uint32_t[]){x, y});
    return net_emit(n, &sum);
}

static uint32_t middle_act(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)width;
    struct op_args a = net_op(OP_ACT, 1, &x);
    op_args_attr_i(&a, ATTR_ACT, arg);
    return net_emit(n, &a);
}

static uint32_t middle_glu(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    *width = 5;
    uint32_t gu = net_linear(n, x, HIDDEN, 10);
    struct op_args a = net_op(OP_GLU, 1, &gu);
    op_args_attr_i(&a, ATTR_ACT, arg);
    return net_emit(n, &a);
}

static uint32_t middle_softcap(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    (void)width;
    struct op_args a = net_op(OP_SOFTCAP, 1, &x);
    op_args_attr_f(&a, ATTR_CAP, (double)arg);
    return net_emit(n, &a);
}

/* Heads of a [T, n*WIDTH] view, normed and rotated. */
static uint32_t net_head(struct net *n, uint32_t v)
{
    struct op_args norm =
            net_op(OP_RMSNORM, 2, (uint32_t[]){v, net_weight(n, 1, WIDTH, 0)});
    op_args_attr_f(&norm, ATTR_EPS, 1e-3);
    uint32_t y = net_emit(n, &norm);
    struct op_args rope = net_op(OP_ROPE, 3, (uint32_t[]){y, n->positions, n->rope});
    return net_emit(n, &rope);
}

/* Attention as a model has it: views into one product, head norms, rotation.
 * arg: 0 plain, 1 window, 2 soft cap, 3 both. */
static uint32_t middle_attention(struct net *n, uint32_t x, int64_t arg, int64_t *width)
{
    *width = HEADS * WIDTH;
    int64_t q_cols = HEADS * WIDTH, kv_cols = KV_HEADS * WIDTH;
    uint32_t qkv = net_linear(n, x, HIDDEN, q_cols + 2 * kv_cols);
    int64_t q_dim[3] = {TOKENS, HEADS, WIDTH}, kv_dim[3] = {TOKENS, KV_HEADS, WIDTH};
    uint32_t q = program_view_cols(&n->p, qkv, 0, 3, q_dim, "q");
    uint32_t k = program_view_cols(&n->p, qkv, q_cols, 3, kv_dim, "k");
    uint32_t v = program_view_cols(&n->p, qkv, q_cols + kv_cols, 3, kv_dim, "v");
    q = net_head(n, q);
    k = net_head(n, k);
    struct op_args a = net_op(OP_ATTENTION, 4, (uint32_t[]){q, k, v, n->doc_start});
    op_args_attr_i(&a, ATTR_SEQ, SEQ);
    op_args_attr_f(&a, ATTR_SCALE, 0.7);
    op_args_attr_i(&a, ATTR_WINDOW, arg & 1 ? 2 : 0);
    op_args_attr_f(&a, ATTR_CAP, arg & 2 ? 1.5 : 0);
    uint32_t o = net_emit(n, &a);
    return program_view_cols(&n->p, o, 0, 2, (int64_t[]){TOKENS, q_cols}, "o");
}

/* ------------------------------------------------------------------------ the network */

struct grad_case {
    const char *label;
    middle_fn middle;
    int64_t arg;
    bool by_stats; /* the loss from statistics of the logits */
};

static const struct grad_case cases[] = {
        {"embed, linear, xent", middle_none, 0, false},
        {"xent by statistics", middle_none, 0, true},
        {"linear with bias", middle_bias, 0, false},
        {"add_bias", middle_add_bias, 0, false},
        {"residual add", middle_residual, 0, false},
        {"weight read twice", middle_twice, 0, false},
        {"rmsnorm", middle_rmsnorm, 0, false},
        {"rmsnorm 1 + w", middle_rmsnorm, 1, false},
        {"layernorm", middle_layernorm, 0, false},
        {"silu", middle_act, ACT_SILU, false},
        {"gelu", middle_act, ACT_GELU, false},
        {"gelu tanh", middle_act, ACT_GELU_TANH, false},
        {"glu silu", middle_glu, ACT_SILU, false},
        {"glu gelu", middle_glu, ACT_GELU, false},
        {"glu gelu tanh", middle_glu, ACT_GELU_TANH, false},
        {"softcap", middle_softcap, 2, false},
        {"attention", middle_attention, 0, false},
        {"attention, window", middle_attention, 1, false},
        {"attention, soft cap", middle_attention, 2, false},
        {"attention, both", middle_attention, 3, false},
};

static void net_build(struct net *n, const struct grad_case *c)
{
    *n = (struct net){0};
    program_init(&n->p);
    int64_t tokens[1] = {TOKENS}, one[1] = {1};
    n->ids = net_value(n, SC_INPUT, DT_I32, 1, tokens, "ids");
    n->labels = net_value(n, SC_INPUT, DT_I32, 1, tokens, "labels");
    n->positions = net_value(n, SC_INPUT, DT_I32, 1, tokens, "positions");
    n->doc_start = net_value(n, SC_INPUT, DT_I32, 1, tokens, "doc_start");
    n->rope = net_value(n, SC_INPUT, DT_F64, 3, (int64_t[]){SEQ, WIDTH / 2, 2}, "rope");
    n->seed = net_value(n, SC_PARAMS, DT_F64, 1, one, "seed");
    n->loss = net_value(n, SC_OUTPUT, DT_F64, 1, tokens, "loss");
    program_segment_begin(&n->p, "forward");
    struct op_args e =
            net_op(OP_EMBED, 2, (uint32_t[]){net_weight(n, 2, VOCAB, HIDDEN), n->ids});
    op_args_attr_f(&e, ATTR_SCALE, 1.3);
    int64_t width = HIDDEN;
    uint32_t x = c->middle(n, net_emit(n, &e), c->arg, &width);
    uint32_t logits = net_linear(n, x, width, VOCAB);
    struct op_args l = net_op(OP_XENT, 2, (uint32_t[]){logits, n->labels});
    if (c->by_stats) {
        struct op_args st = net_op(OP_XENT_STATS, 2, (uint32_t[]){logits, n->labels});
        op_args_attr_i(&st, ATTR_BEGIN, 0);
        op_args_in(&l, net_emit(n, &st));
        op_args_attr_i(&l, ATTR_BEGIN, 0);
    }
    l.out[0] = n->loss;
    program_op(&n->p, &l);
    uint32_t forward = program_segment_end(&n->p);
    struct diff_options o = diff_options_init();
    o.segment = forward;
    o.name = "backward";
    o.output = &n->loss;
    o.seed = &n->seed;
    o.n_outputs = 1;
    o.weight = n->weight;
    o.grad = n->grad;
    o.n_weights = n->n_weights;
    uint32_t backward = differentiate(&n->p, &o);
    program_call(&n->p, CALL_STEP, forward, 0, 0);
    program_call(&n->p, CALL_STEP, backward, 0, 0);
    program_seal(&n->p);
}

/* ------------------------------------------------------------------------------- runs */

struct run {
    struct backend *backend;
    struct exec_memory memory;
    struct exec *exec;
};

static void check_status(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), diag->text);
}

static void run_open(struct run *r, struct net *n)
{
    struct diag diag = {0};
    struct cpu_backend_options o = {
            .n_threads = 1, .reference_only = true, .isa_mask = CPU_ISA_ALL};
    check_status(cpu_backend_create(&o, &r->backend, &diag), &diag);
    struct pack_options pack = pack_options_default();
    check_status(pack_program(&n->p, &pack, NULL, &diag), &diag);
    int64_t scratch;
    check_status(exec_scratch(r->backend, &n->p, &scratch, &diag), &diag);
    check_status(
            exec_memory_create(r->backend, n->p.pool_bytes, scratch, &r->memory, &diag),
            &diag);
    struct exec_options eo = {0};
    check_status(exec_create(&n->p, &r->memory, &eo, &r->exec, &diag), &diag);
}

static void run_close(struct run *r)
{
    exec_destroy(r->exec);
    exec_memory_release(&r->memory);
    r->backend->ops->destroy(r->backend);
}

/* Inputs a network has no use for are gone from its program. */
static void write_if_used(struct run *r, uint32_t value, const void *host)
{
    if (exec_view(r->exec, value, 0).data)
        exec_write(r->exec, value, 0, host);
}

static void write_inputs(struct run *r, const struct net *n)
{
    int32_t ids[TOKENS], labels[TOKENS], positions[TOKENS], start[TOKENS];
    double rope[SEQ][WIDTH / 2][2], seed = SEED;
    for (int t = 0; t < TOKENS; t++) {
        ids[t] = (int32_t)(rng_u64(1, 1, (uint64_t)t) % VOCAB);
        labels[t] = t == 6 ? -1 : (int32_t)(rng_u64(1, 2, (uint64_t)t) % VOCAB);
        positions[t] = t % SEQ;
        start[t] = t >= 8 ? 3 : 0; /* a document begins in the second sequence */
    }
    for (int i = 0; i < SEQ * WIDTH / 2; i++) {
        double angle = (double)(i / (WIDTH / 2)) / (1 + 4 * (i % (WIDTH / 2)));
        rope[i / (WIDTH / 2)][i % (WIDTH / 2)][0] = cos(angle);
        rope[i / (WIDTH / 2)][i % (WIDTH / 2)][1] = sin(angle);
    }
    write_if_used(r, n->ids, ids);
    write_if_used(r, n->labels, labels);
    write_if_used(r, n->positions, positions);
    write_if_used(r, n->doc_start, start);
    write_if_used(r, n->rope, rope);
    write_if_used(r, n->seed, &seed);
}

static double run_loss(struct run *r, const struct net *n)
{
    struct diag diag = {0};
    double loss[TOKENS], sum = 0;
    check_status(exec_run(r->exec, CALL_STEP, &diag), &diag);
    exec_read(r->exec, n->loss, 0, loss);
    for (int t = 0; t < TOKENS; t++)
        sum += loss[t];
    return SEED * sum;
}

#define ELEMS_MAX 512

struct weights {
    double w[W_MAX][ELEMS_MAX], g[W_MAX][ELEMS_MAX];
    int64_t n[W_MAX];
};

static void weights_fill(struct weights *ws, struct run *r, const struct net *n)
{
    for (uint32_t i = 0; i < n->n_weights; i++) {
        ws->n[i] = value_elems(&n->p.values.data[n->weight[i]]);
        assert_true(ws->n[i] <= ELEMS_MAX);
        for (int64_t j = 0; j < ws->n[i]; j++) {
            float x;
            rng_normal(3, i, j, 1, &x);
            ws->w[i][j] = 0.6 * (double)x;
        }
        exec_write(r->exec, n->weight[i], 0, ws->w[i]);
    }
}

static double difference(struct weights *ws, struct run *r, const struct net *n,
                         uint32_t i, int64_t j)
{
    double kept = ws->w[i][j], loss[2];
    for (int side = 0; side < 2; side++) {
        ws->w[i][j] = kept + (side ? STEP : -STEP);
        exec_write(r->exec, n->weight[i], 0, ws->w[i]);
        loss[side] = run_loss(r, n);
    }
    ws->w[i][j] = kept;
    exec_write(r->exec, n->weight[i], 0, ws->w[i]);
    return (loss[1] - loss[0]) / (2 * STEP);
}

static void check_case(const struct grad_case *c)
{
    struct net n;
    struct run r = {0};
    net_build(&n, c);
    run_open(&r, &n);
    write_inputs(&r, &n);
    struct weights *ws = mem_alloc(sizeof(*ws));
    weights_fill(ws, &r, &n);
    run_loss(&r, &n); /* accumulators start as zeros */
    for (uint32_t i = 0; i < n.n_weights; i++)
        exec_read(r.exec, n.grad[i], 0, ws->g[i]);
    double worst = 0;
    int64_t n_checked = 0;
    for (uint32_t i = 0; i < n.n_weights; i++) {
        double largest = 0;
        for (int64_t j = 0; j < ws->n[i]; j++)
            largest = fmax(largest, fabs(ws->g[i][j]));
        if (!(largest > 1e-3))
            fail_msg("%s: weight %u has no gradient", c->label, i);
        for (int64_t j = 0; j < ws->n[i]; j++, n_checked++) {
            double want = difference(ws, &r, &n, i, j), got = ws->g[i][j];
            double err = fabs(got - want) / fmax(fabs(want), largest);
            worst = fmax(worst, err);
            if (!(err <= REL_LIMIT))
                fail_msg("%s: weight %u, element %lld: got %.12g, difference %.12g",
                         c->label, i, (long long)j, got, want);
        }
    }
    print_message("%-22s %u weights, %4lld elements, worst %.1e\n", c->label,
                  n.n_weights, (long long)n_checked, worst);
    mem_free(ws);
    run_close(&r);
    program_free(&n.p);
}

static void gradients_match_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_case(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(gradients_match_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
