/* Cost rules: flops and the longest sum of an op. Bytes are counted in core/op.c. */
#include "core/op_rules.h"

void cost_none(const struct op_ctx *c, struct op_cost *cost)
{
    (void)c;
    (void)cost;
}

/* One flop per element written: such ops are bound by bytes. */
void cost_pointwise(const struct op_ctx *c, struct op_cost *cost)
{
    uint32_t out = op_out(c->prog, c->op, 0);
    if (out != NONE_ID)
        cost->flops = (double)value_elems(&c->prog->values.data[out]);
}

void cost_tokens_reduce(const struct op_ctx *c, struct op_cost *cost)
{
    cost->flops = (double)value_elems(ctx_in(c, 0));
    cost->reduce_len = ctx_in(c, 0)->dim[0];
}

void cost_norm(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *x = ctx_in(c, 0);
    cost->flops = 4.0 * (double)value_elems(x);
    cost->reduce_len = x->dim[x->ndim - 1];
}

static void product(struct op_cost *cost, int64_t m, int64_t n, int64_t k)
{
    cost->flops = 2.0 * (double)m * (double)n * (double)k;
    cost->flops_model = cost->flops;
    cost->reduce_len = k;
}

void cost_linear(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *x = ctx_in(c, 0), *w = ctx_in(c, 1);
    product(cost, x->dim[0], w->dim[0], x->dim[1]);
}

void cost_linear_dx(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *dy = ctx_in(c, 0), *w = ctx_in(c, 1);
    product(cost, dy->dim[0], w->dim[1], dy->dim[1]);
}

void cost_linear_dw(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *dy = ctx_in(c, 0), *x = ctx_in(c, 1);
    product(cost, dy->dim[1], x->dim[1], dy->dim[0]);
}

/* Query-key pairs of one sequence and head that causality and the window allow. */
static double visible_pairs(int64_t seq, int64_t window)
{
    double s = (double)seq, w = (double)window;
    if (window == 0 || window >= seq)
        return s * (s + 1) / 2;
    return w * (w + 1) / 2 + (s - w) * w;
}

static double attention_pairs(const struct op_ctx *c, const struct prog_value *q)
{
    int64_t seq = op_attr_i(c->prog, c->op, ATTR_SEQ, 1);
    int64_t window = op_attr_i(c->prog, c->op, ATTR_WINDOW, 0);
    return (double)(q->dim[0] / seq) * (double)q->dim[1] * visible_pairs(seq, window);
}

/* Two products of 2D flops per pair. */
void cost_attention(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *q = ctx_in(c, 0);
    cost->flops = 4.0 * (double)q->dim[2] * attention_pairs(c, q);
    cost->flops_model = cost->flops;
    cost->reduce_len = op_attr_i(c->prog, c->op, ATTR_SEQ, 1);
}

/* Five products: scores again, dP, dV, dQ, dK. The model's share is twice the forward. */
void cost_attention_dx(const struct op_ctx *c, struct op_cost *cost)
{
    const struct prog_value *q = ctx_in(c, 1);
    double pairs = attention_pairs(c, q);
    cost->flops = 10.0 * (double)q->dim[2] * pairs;
    cost->flops_model = 8.0 * (double)q->dim[2] * pairs;
    cost->reduce_len = op_attr_i(c->prog, c->op, ATTR_SEQ, 1);
}

/* Magnitude and comparison, square, sum, zero. */
void cost_stats(const struct op_ctx *c, struct op_cost *cost)
{
    cost->flops = 4.0 * (double)value_elems(ctx_in(c, 0));
    cost->reduce_len = value_elems(ctx_in(c, 0));
}

/* What a rank sends: of a ring's reduce-scatter or all-gather every part but one, of an
 * all-reduce both. source: features of collectives, bytes (n - 1)/n of the whole. */
void cost_comm(const struct op_ctx *c, struct op_cost *cost)
{
    double members = (double)op_attr_i(c->prog, c->op, ATTR_MEMBERS, 1);
    enum op_kind kind = (enum op_kind)c->op->kind;
    double part = (members - 1) / members;
    if (kind == OP_ALL_GATHER) {
        cost->bytes_wire = cost->bytes_written * part;
    } else if (kind != OP_RECV) {
        const struct prog_value *x = ctx_in(c, 0);
        double bytes =
                (double)value_elems(x) * (double)dtype_bytes((enum dtype)x->dtype);
        cost->bytes_wire = kind == OP_SEND         ? bytes
                           : kind == OP_ALL_REDUCE ? 2 * part * bytes
                                                   : part * bytes;
    }
    cost->reduce_len = (int64_t)members;
}
