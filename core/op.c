#include "core/op.h"

#include <string.h>

#include "core/op_rules.h"

static const struct op_desc table[] = {
#define OP(kind, name, in_min, in_max, n_out, out_opt, inplace, tol, shape, layout,    \
           cost, grad)                                                                 \
    [OP_##kind] = {name, in_min, in_max, n_out, out_opt, inplace,                      \
                   tol,  shape,  layout, cost,  grad},
#include "core/ops.def"
#undef OP
};
_Static_assert(ARRAY_LEN(table) == OP_KIND_COUNT, "one row per kind");

const struct op_desc *op_desc(enum op_kind kind)
{
    ASSERT(kind < OP_KIND_COUNT);
    return &table[kind];
}

enum op_kind op_kind_from_name(const char *name)
{
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (strcmp(table[k].name, name) == 0)
            return (enum op_kind)k;
    return OP_KIND_COUNT;
}

bool op_kind_is_comm(enum op_kind kind)
{
    return kind == OP_ALL_GATHER || kind == OP_REDUCE_SCATTER ||
           kind == OP_ALL_REDUCE || kind == OP_SEND || kind == OP_RECV;
}

static double value_bytes(const struct prog_value *v)
{
    return (double)value_elems(v) * (double)dtype_bytes((enum dtype)v->dtype);
}

struct op_cost op_cost(const struct program *p, const struct prog_op *op)
{
    struct op_cost cost = {.reduce_len = 1};
    struct op_ctx c = {p, op, 0};
    for (int i = 0; i < op->n_in; i++)
        cost.bytes_read += value_bytes(ctx_in(&c, i));
    for (int i = 0; i < op->n_out; i++)
        if (op_out(p, op, i) != NONE_ID)
            cost.bytes_written += value_bytes(&p->values.data[op_out(p, op, i)]);
    op_desc((enum op_kind)op->kind)->cost(&c, &cost);
    return cost;
}
