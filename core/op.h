/* The op table: what each kind of op takes, makes, costs and how its gradient is made.
 * The rows are in core/ops.def; the rules they name are in core/op_*.c. */
#ifndef CORE_OP_H
#define CORE_OP_H

#include "core/program.h"

/* How near two implementations of an op must be; limits are in kernels/tol.c. */
enum tol_class {
    TOL_EXACT,     /* copies, indexing: equal bits */
    TOL_POINTWISE, /* a few roundings per element */
    TOL_REDUCE,    /* a sum over `reduce_len` terms */
};

/* A program and one of its ops; what every rule reads. */
struct op_ctx {
    const struct program *prog;
    const struct prog_op *op;
    int mesh_dim; /* layout rules: the dimension that is asked about */
};

static inline const struct prog_value *ctx_in(const struct op_ctx *c, int i)
{
    return &c->prog->values.data[op_in(c->prog, c->op, i)];
}

/* The shape of one output, as a rule computes it. */
struct op_shape {
    uint8_t dtype;
    uint8_t ndim;
    int64_t dim[VALUE_DIMS_MAX];
};

struct op_cost {
    double flops;       /* what the op executes */
    double flops_model; /* its part of the model's flops: products and attention */
    double bytes_read;
    double bytes_written;
    double bytes_wire;
    int64_t reduce_len; /* terms of its longest sum */
};

/* Checks the inputs and fills the outputs' shapes. Returns NULL, or what is wrong. */
typedef const char *(*op_shape_fn)(const struct op_ctx *c, struct op_shape *out);

/* For one mesh dimension: input layouts to output layouts. NULL, or what is wrong. */
typedef const char *(*op_layout_fn)(const struct op_ctx *c, const uint8_t *in,
                                    uint8_t *out);

/* flops, flops_model and reduce_len; bytes are counted from the operands. */
typedef void (*op_cost_fn)(const struct op_ctx *c, struct op_cost *cost);

struct diff;
/* Emits the gradient ops of a forward op (core/diff.h). NULL: no gradient passes. */
typedef void (*op_grad_fn)(struct diff *d, uint32_t op);

struct op_desc {
    const char *name;
    uint8_t n_in_min;
    uint8_t n_in_max;
    uint8_t n_out;
    uint8_t out_optional; /* bit i: output i may be absent */
    int8_t inplace_in;    /* output i may overwrite input inplace_in + i; -1: never */
    enum tol_class tol;
    op_shape_fn shape;
    op_layout_fn layout;
    op_cost_fn cost;
    op_grad_fn grad;
};

const struct op_desc *op_desc(enum op_kind kind);

/* The cost of an op: its rule plus the bytes of its operands. */
struct op_cost op_cost(const struct program *p, const struct prog_op *op);

/* The kind with this name, or OP_KIND_COUNT. */
enum op_kind op_kind_from_name(const char *name);

#endif
