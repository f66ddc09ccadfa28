/* Gradient rules: which ops make the gradients of an op's inputs and weights.
 *
 * Rules copy the op they differentiate, since emitting moves the arrays. Weight gradients
 * come before input gradients: they read the output's gradient, over which an
 * accumulating input gradient may write.
 */
#include "core/diff.h"
#include "core/op_rules.h"

/* The op under differentiation, copied, with its operands at hand. */
struct fwd {
    struct prog_op op;
    uint32_t in[OP_IN_MAX];
    uint32_t out[OP_OUT_MAX];
    uint32_t g; /* gradient of output 0 */
};

static struct fwd fwd_load(struct diff *d, uint32_t op_id)
{
    const struct program *p = diff_program(d);
    struct fwd f = {.op = p->ops.data[op_id]};
    for (int i = 0; i < OP_IN_MAX; i++)
        f.in[i] = i < f.op.n_in ? diff_now(d, op_in(p, &f.op, i)) : NONE_ID;
    for (int i = 0; i < OP_OUT_MAX; i++)
        f.out[i] = i < f.op.n_out ? op_out(p, &f.op, i) : NONE_ID;
    f.g = diff_grad(d, f.out[0]);
    return f;
}

/* The gradient op gets the forward op's attributes. */
static struct op_args args_with_attrs(struct diff *d, const struct fwd *f,
                                      enum op_kind kind, enum op_phase phase)
{
    struct op_args a = diff_args(d, kind, phase);
    const struct program *p = diff_program(d);
    for (uint32_t i = 0; i < f->op.n_attrs; i++)
        a.attrs[a.n_attrs++] = p->attrs.data[f->op.attr_first + i];
    return a;
}

static void inputs(struct op_args *a, int n, const uint32_t *in)
{
    for (int i = 0; i < n; i++)
        op_args_in(a, in[i]);
}

static void emit_to(struct diff *d, struct op_args *a, uint32_t to)
{
    diff_emit(d, a, &to);
}

void grad_embed(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t gw = diff_weight(d, f.in[0]);
    if (gw == NONE_ID)
        return;
    struct op_args a = args_with_attrs(d, &f, OP_EMBED_DW, PHASE_WGRAD);
    inputs(&a, 3, (uint32_t[]){f.g, f.in[1], gw});
    diff_emit_weight(d, &a, gw);
}

void grad_add(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    for (int i = 0; i < 2; i++)
        if (diff_needs(d, f.in[i]))
            diff_pass(d, f.in[i], f.g);
}

/* Products take gradients in the weights' dtype: logits in f32 have theirs cast. */
static uint32_t grad_in_dtype(struct diff *d, uint32_t g, uint32_t like)
{
    const struct program *p = diff_program(d);
    uint8_t want = p->values.data[like].dtype;
    if (p->values.data[g].dtype == want)
        return g;
    struct op_args a = diff_args(d, OP_CAST, PHASE_DGRAD);
    op_args_in(&a, g);
    op_args_attr_i(&a, ATTR_OUT_DTYPE, want);
    program_op(diff_program(d), &a);
    return a.out[0];
}

/* The gradient has a dtype of its own, so it cannot live where the value's would. */
static void pass_fresh(struct diff *d, struct op_args *a, uint32_t to)
{
    a->out[0] = diff_place_given(d, to);
    program_op(diff_program(d), a);
    if (diff_place_given(d, to) == NONE_ID)
        diff_pass(d, to, a->out[0]);
}

void grad_linear(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t g = grad_in_dtype(d, f.g, f.in[1]);
    uint32_t gw = diff_weight(d, f.in[1]);
    if (f.op.n_in > 2 && diff_weight(d, f.in[2]) != NONE_ID) {
        uint32_t gb = diff_weight(d, f.in[2]);
        struct op_args a = diff_args(d, OP_LINEAR_DB, PHASE_WGRAD);
        inputs(&a, 2, (uint32_t[]){g, gb});
        diff_emit_weight(d, &a, gb);
    }
    if (gw != NONE_ID) {
        struct op_args a = diff_args(d, OP_LINEAR_DW, PHASE_WGRAD);
        inputs(&a, 3, (uint32_t[]){g, f.in[0], gw});
        diff_emit_weight(d, &a, gw);
    }
    if (diff_needs(d, f.in[0])) {
        struct op_args a = diff_args(d, OP_LINEAR_DX, PHASE_DGRAD);
        inputs(&a, 2, (uint32_t[]){g, f.in[1]});
        if (diff_sums_wide(d, f.in[1])) {
            op_args_attr_i(&a, ATTR_OUT_DTYPE, DT_F32);
            pass_fresh(d, &a, f.in[0]);
        } else {
            emit_to(d, &a, f.in[0]);
        }
    }
}

void grad_add_bias(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t gb = diff_weight(d, f.in[1]);
    if (gb != NONE_ID) {
        struct op_args a = diff_args(d, OP_LINEAR_DB, PHASE_WGRAD);
        inputs(&a, 2, (uint32_t[]){f.g, gb});
        diff_emit_weight(d, &a, gb);
    }
    if (diff_needs(d, f.in[0]))
        diff_pass(d, f.in[0], f.g);
}

/* The ranks' gradients of the whole are parts of a sum (each used it for its own columns
 * or heads), and every rank wants its rows of that sum. */
void grad_all_gather(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    if (!diff_needs(d, f.in[0]))
        return;
    struct op_args a = args_with_attrs(d, &f, OP_REDUCE_SCATTER, PHASE_DGRAD);
    const struct program *p = diff_program(d);
    op_args_in(&a, f.g);
    if (p->values.data[f.g].dtype != p->values.data[f.in[0]].dtype)
        op_args_attr_i(&a, ATTR_OUT_DTYPE, p->values.data[f.in[0]].dtype);
    pass_fresh(d, &a, f.in[0]);
}

/* Every rank's term of the sum has the gradient of the whole. */
void grad_reduce_scatter(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    if (!diff_needs(d, f.in[0]))
        return;
    struct op_args a = diff_args(d, OP_ALL_GATHER, PHASE_DGRAD);
    const struct program *p = diff_program(d);
    for (uint32_t i = 0; i < f.op.n_attrs; i++)
        if (p->attrs.data[f.op.attr_first + i].key != ATTR_OUT_DTYPE)
            a.attrs[a.n_attrs++] = p->attrs.data[f.op.attr_first + i];
    op_args_in(&a, f.g);
    pass_fresh(d, &a, f.in[0]);
}

void grad_rmsnorm(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t gw = diff_weight(d, f.in[1]);
    if (gw != NONE_ID) {
        struct op_args a = args_with_attrs(d, &f, OP_RMSNORM_DW, PHASE_WGRAD);
        inputs(&a, 4, (uint32_t[]){f.g, f.in[0], f.out[1], gw});
        diff_emit_weight(d, &a, gw);
    }
    if (diff_needs(d, f.in[0])) {
        struct op_args a = args_with_attrs(d, &f, OP_RMSNORM_DX, PHASE_DGRAD);
        inputs(&a, 4, (uint32_t[]){f.g, f.in[0], f.in[1], f.out[1]});
        emit_to(d, &a, f.in[0]);
    }
}

void grad_layernorm(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t gw = diff_weight(d, f.in[1]), gb = diff_weight(d, f.in[2]);
    if (gw != NONE_ID && gb != NONE_ID) {
        struct op_args a = args_with_attrs(d, &f, OP_LAYERNORM_DW, PHASE_WGRAD);
        inputs(&a, 6, (uint32_t[]){f.g, f.in[0], f.out[1], f.out[2], gw, gb});
        a.out[1] = gb;
        diff_emit_weight(d, &a, gw);
    }
    if (diff_needs(d, f.in[0])) {
        struct op_args a = args_with_attrs(d, &f, OP_LAYERNORM_DX, PHASE_DGRAD);
        inputs(&a, 5, (uint32_t[]){f.g, f.in[0], f.in[1], f.out[1], f.out[2]});
        emit_to(d, &a, f.in[0]);
    }
}

/* The gradient of a rotation is the rotation back. */
void grad_rope(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    if (!diff_needs(d, f.in[0]))
        return;
    struct op_args a = diff_args(d, OP_ROPE, PHASE_DGRAD);
    inputs(&a, 3, (uint32_t[]){f.g, f.in[1], f.in[2]});
    if (!op_attr_i(diff_program(d), &f.op, ATTR_INVERSE, 0))
        op_args_attr_i(&a, ATTR_INVERSE, 1);
    emit_to(d, &a, f.in[0]);
}

void grad_attention(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    uint32_t to[3];
    for (int i = 0; i < 3; i++)
        to[i] = diff_needs(d, f.in[i]) ? f.in[i] : NONE_ID;
    if (to[0] == NONE_ID && to[1] == NONE_ID && to[2] == NONE_ID)
        return;
    struct op_args a = args_with_attrs(d, &f, OP_ATTENTION_DX, PHASE_DGRAD);
    inputs(&a, 7,
           (uint32_t[]){f.g, f.in[0], f.in[1], f.in[2], f.out[0], f.out[1], f.in[3]});
    diff_emit(d, &a, to);
}

/* Gradients of element-wise functions: d_kind(dy, saved). */
static void grad_pointwise(struct diff *d, const struct fwd *f, enum op_kind d_kind,
                           uint32_t saved)
{
    if (!diff_needs(d, f->in[0]))
        return;
    struct op_args a = args_with_attrs(d, f, d_kind, PHASE_DGRAD);
    inputs(&a, 2, (uint32_t[]){f->g, saved});
    emit_to(d, &a, f->in[0]);
}

void grad_glu(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    grad_pointwise(d, &f, OP_GLU_DX, f.in[0]);
}

void grad_act(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    grad_pointwise(d, &f, OP_ACT_DX, f.in[0]);
}

void grad_softcap(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    grad_pointwise(d, &f, OP_SOFTCAP_DX, f.out[0]);
}

/* Logits that come straight from a product get their gradient in the product's dtype,
 * over the logits themselves where the dtypes agree. */
void grad_xent(struct diff *d, uint32_t op)
{
    struct fwd f = fwd_load(d, op);
    struct program *p = diff_program(d);
    if (!diff_needs(d, f.in[0]))
        return;
    struct op_args a = args_with_attrs(d, &f, OP_XENT_DX, PHASE_DGRAD);
    inputs(&a, 4, (uint32_t[]){f.in[0], f.out[1], f.in[1], f.g});
    uint32_t producer = diff_producer(d, f.in[0]);
    uint8_t dtype = p->values.data[f.in[0]].dtype;
    if (producer != NONE_ID && p->ops.data[producer].kind == OP_LINEAR)
        dtype = p->values.data[op_in(p, &p->ops.data[producer], 1)].dtype;
    if (dtype != p->values.data[f.in[0]].dtype) {
        op_args_attr_i(&a, ATTR_OUT_DTYPE, dtype);
        program_op(p, &a);
        diff_pass(d, f.in[0], a.out[0]);
        return;
    }
    if (diff_may_overwrite(d, f.in[0]))
        diff_place_over(d, f.in[0]);
    emit_to(d, &a, f.in[0]);
}
