#include "core/diff.h"

#include <string.h>

/* Per value of the program: grown as gradient values are added. */
struct node {
    uint32_t grad;     /* the gradient's value, or NONE_ID */
    uint32_t place;    /* where the gradient lives, or NONE_ID: not settled */
    uint32_t weight;   /* accumulator of a weight, or NONE_ID */
    uint32_t producer; /* forward op that wrote it */
    uint32_t n_reads;  /* by forward ops */
    uint32_t now; /* the value that stands for it in the backward pass, or NONE_ID */
    bool needs;
};

struct diff {
    struct program *p;
    VEC(struct node) nodes;
    const struct diff_options *o;
    int32_t layer;
};

static struct node *node(struct diff *d, uint32_t value)
{
    const struct node fresh = {NONE_ID, NONE_ID, NONE_ID, NONE_ID, 0, NONE_ID, false};
    while (d->nodes.n <= value)
        vec_push(&d->nodes, fresh);
    return &d->nodes.data[value];
}

struct program *diff_program(struct diff *d)
{
    return d->p;
}

uint32_t diff_weight(struct diff *d, uint32_t value)
{
    return node(d, value)->weight;
}

uint32_t diff_producer(struct diff *d, uint32_t value)
{
    return node(d, value)->producer;
}

void diff_replace(struct diff *d, uint32_t then, uint32_t now)
{
    uint32_t weight = node(d, then)->weight;
    node(d, then)->now = now;
    node(d, now)->weight = weight;
}

uint32_t diff_now(struct diff *d, uint32_t value)
{
    uint32_t now = node(d, value)->now;
    return now == NONE_ID ? value : now;
}

uint32_t diff_place_given(struct diff *d, uint32_t value)
{
    return value == d->o->input ? d->o->input_grad : NONE_ID;
}

bool diff_sums_wide(struct diff *d, uint32_t weight)
{
    const struct prog_value *w = &d->p->values.data[weight];
    return d->o->wide_partials && w->dtype == DT_BF16 && w->layout[MESH_TP] == 0;
}

/* A view needs a gradient when its base does. */
bool diff_needs(struct diff *d, uint32_t value)
{
    while (d->p->values.data[value].base != NONE_ID && !node(d, value)->needs)
        value = d->p->values.data[value].base;
    return node(d, value)->needs;
}

uint32_t diff_grad(struct diff *d, uint32_t value)
{
    return node(d, value)->grad;
}

struct op_args diff_args(struct diff *d, enum op_kind kind, enum op_phase phase)
{
    bool joined = d->o->within && phase == PHASE_WGRAD;
    return op_args_init(kind, joined ? PHASE_DGRAD : phase, d->layer);
}

/* A value at the bytes of `like`, shaped as `shape`. */
static uint32_t value_like(struct diff *d, uint32_t like, uint32_t shape)
{
    struct prog_value v = d->p->values.data[like];
    const struct prog_value *s = &d->p->values.data[shape];
    v.name = program_name(d->p, "d.%s", prog_name(d->p, s->name));
    vec_push(&d->p->values, v);
    return d->p->values.n - 1;
}

static uint32_t fresh_place(struct diff *d, uint32_t value)
{
    struct program *p = d->p;
    struct prog_value v = p->values.data[value];
    v.ld = value_row_elems(&v);
    uint32_t storage = program_storage(p, SC_WORKSPACE, SLOT_NONE, value_span_bytes(&v),
                                       "d.%s", prog_name(p, v.name));
    uint32_t id = program_value(p, storage, 0, (enum dtype)v.dtype, v.ndim, v.dim,
                                "d.%s", prog_name(p, v.name));
    memcpy(p->values.data[id].layout, v.layout, sizeof(v.layout));
    return id;
}

static uint32_t place(struct diff *d, uint32_t value);

/* The view of the base's gradient that corresponds to `value`; from now on the base has
 * a gradient, which its views fill part by part. */
static uint32_t view_place(struct diff *d, uint32_t value)
{
    struct prog_value v = d->p->values.data[value];
    uint32_t base_grad = place(d, v.base);
    int64_t col = (v.byte_offset - d->p->values.data[v.base].byte_offset) /
                  (int64_t)dtype_bytes((enum dtype)v.dtype);
    node(d, v.base)->grad = base_grad;
    return program_view_cols(d->p, base_grad, col, v.ndim, v.dim, "d.%s",
                             prog_name(d->p, v.name));
}

static uint32_t place(struct diff *d, uint32_t value)
{
    if (node(d, value)->place != NONE_ID)
        return node(d, value)->place;
    const struct prog_value *v = &d->p->values.data[value];
    uint32_t at;
    if (v->inplace_of != NONE_ID)
        at = value_like(d, place(d, v->inplace_of), value);
    else if (v->base != NONE_ID)
        at = view_place(d, value);
    else
        at = fresh_place(d, value);
    node(d, value)->place = at;
    return at;
}

bool diff_may_overwrite(struct diff *d, uint32_t value)
{
    uint32_t producer = diff_producer(d, value);
    const struct prog_value *v = &d->p->values.data[value];
    return producer != NONE_ID && node(d, value)->n_reads == 1 && v->base == NONE_ID &&
           v->inplace_of == NONE_ID && node(d, value)->place == NONE_ID &&
           d->p->ops.data[producer].kind == OP_LINEAR;
}

void diff_place_over(struct diff *d, uint32_t value)
{
    uint32_t at = value_like(d, value, value);
    node(d, value)->place = at;
}

/* Whether the op can add its result to one more input, over which it writes. */
static bool can_accumulate(const struct op_args *a)
{
    const struct op_desc *desc = op_desc(a->kind);
    return desc->n_out == 1 && a->n_in == desc->n_in_min &&
           desc->n_in_max == desc->n_in_min + 1 && desc->inplace_in == desc->n_in_min;
}

/* Whether one of the op's inputs lives in the storage of `value`. */
static bool reads_storage_of(struct diff *d, const struct op_args *a, uint32_t value)
{
    uint32_t s = d->p->values.data[value].storage;
    for (int i = 0; i < a->n_in; i++)
        if (d->p->values.data[a->in[i]].storage == s)
            return true;
    return false;
}

/* grad = old + more, over old. */
static uint32_t add_grads(struct diff *d, uint32_t old, uint32_t more)
{
    struct op_args a = diff_args(d, OP_ADD, PHASE_DGRAD);
    op_args_in(&a, old);
    op_args_in(&a, more);
    if (!d->o->out_of_place)
        a.out[0] = value_like(d, old, old);
    program_op(d->p, &a);
    return a.out[0];
}

static void emit_accumulating(struct diff *d, struct op_args *a, uint32_t to)
{
    uint32_t old = node(d, to)->grad;
    bool over = !d->o->out_of_place && !reads_storage_of(d, a, old);
    op_args_in(a, old);
    a->out[0] = over ? value_like(d, old, to) : NONE_ID;
    program_op(d->p, a);
    node(d, to)->grad = a->out[0];
}

void diff_emit(struct diff *d, struct op_args *a, const uint32_t *to)
{
    int n_out = op_desc(a->kind)->n_out;
    if (to[0] != NONE_ID && node(d, to[0])->grad != NONE_ID && can_accumulate(a)) {
        emit_accumulating(d, a, to[0]);
        return;
    }
    for (int i = 0; i < n_out; i++)
        if (to[i] != NONE_ID && node(d, to[i])->grad == NONE_ID)
            a->out[i] = place(d, to[i]);
    program_op(d->p, a);
    for (int i = 0; i < n_out; i++) {
        if (to[i] == NONE_ID)
            continue;
        uint32_t old = node(d, to[i])->grad;
        node(d, to[i])->grad =
                old == NONE_ID ? a->out[i] : add_grads(d, old, a->out[i]);
    }
}

void diff_emit_weight(struct diff *d, struct op_args *a, uint32_t grad)
{
    a->out[0] = grad;
    program_op(d->p, a);
}

void diff_pass(struct diff *d, uint32_t value, uint32_t g)
{
    const struct prog_value *v = &d->p->values.data[value];
    struct node *n = node(d, value);
    if (n->grad != NONE_ID) {
        uint32_t sum = add_grads(d, n->grad, g);
        node(d, value)->grad = sum;
        return;
    }
    if (v->base == NONE_ID && v->inplace_of == NONE_ID) {
        n->grad = g;
        return;
    }
    /* The gradient has a fixed place: copy it there. */
    struct op_args a = diff_args(d, OP_CAST, PHASE_DGRAD);
    op_args_in(&a, g);
    op_args_attr_i(&a, ATTR_OUT_DTYPE, v->dtype);
    a.out[0] = place(d, value);
    program_op(d->p, &a);
    node(d, value)->grad = a.out[0];
}

/* Which values a gradient must flow into: those computed from a weight. */
static void mark_needs(struct diff *d, const struct prog_segment *seg)
{
    for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
        const struct prog_op *op = &d->p->ops.data[o];
        bool needs = false;
        for (int i = 0; i < op->n_in; i++) {
            uint32_t v = op_in(d->p, op, i);
            needs |= diff_needs(d, v) || diff_weight(d, v) != NONE_ID;
            node(d, v)->n_reads += op_desc((enum op_kind)op->kind)->grad != NULL;
        }
        for (int i = 0; i < op->n_out; i++) {
            uint32_t v = op_out(d->p, op, i);
            if (v == NONE_ID)
                continue;
            node(d, v)->producer = o;
            node(d, v)->needs = needs || v == d->o->input;
        }
    }
}

static bool has_grad(struct diff *d, const struct prog_op *op)
{
    for (int i = 0; i < op->n_out; i++) {
        uint32_t v = op_out(d->p, op, i);
        if (v != NONE_ID && diff_grad(d, v) != NONE_ID)
            return true;
    }
    return false;
}

static void change_layer(struct diff *d, int32_t to)
{
    if (to != d->layer && d->o->change_layer)
        d->o->change_layer(d->o->arg, d, d->layer, to);
    d->layer = to;
}

static void walk_back(struct diff *d, const struct prog_segment *seg)
{
    for (uint32_t o = seg->op_end; o-- > seg->op_begin;) {
        const struct prog_op *op = &d->p->ops.data[o];
        op_grad_fn rule = op_desc((enum op_kind)op->kind)->grad;
        if (!rule || !has_grad(d, op))
            continue;
        change_layer(d, op->layer);
        rule(d, o);
    }
}

struct diff_options diff_options_init(void)
{
    return (struct diff_options){
            .segment = NONE_ID, .input = NONE_ID, .input_grad = NONE_ID};
}

static void init_nodes(struct diff *d)
{
    const struct diff_options *o = d->o;
    for (uint32_t i = 0; i < o->n_weights; i++)
        node(d, o->weight[i])->weight = o->grad[i];
    if (o->input == NONE_ID)
        return;
    node(d, o->input)->needs = true;
    node(d, o->input)->place = o->input_grad;
}

uint32_t differentiate(struct program *p, const struct diff_options *o)
{
    struct diff d = {.p = p, .o = o, .layer = -1};
    struct prog_segment ops = {.op_begin = o->op_begin, .op_end = p->ops.n};
    if (!o->within)
        ops = p->segments.data[o->segment];
    init_nodes(&d);
    mark_needs(&d, &ops);
    if (!o->within)
        program_segment_begin(p, o->name);
    if (o->begin)
        o->begin(o->arg, &d);
    for (uint32_t i = 0; i < o->n_outputs; i++)
        node(&d, o->output[i])->grad = o->seed[i];
    walk_back(&d, &ops);
    if (o->end)
        o->end(o->arg, &d, o->input == NONE_ID ? NONE_ID : diff_grad(&d, o->input));
    vec_free(&d.nodes);
    return o->within ? NONE_ID : program_segment_end(p);
}
