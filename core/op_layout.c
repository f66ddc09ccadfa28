/* Layout rules: for one mesh dimension, which layouts an op accepts and what comes out.
 *
 * A rule sees one dimension at a time. REPL: every rank holds the same; PART: the ranks'
 * values are to be summed; 0..3: sharded on that axis. Rules say when a result that is
 * only correct after a sum comes out as PART, so that nothing sums it twice or never.
 */
#include "core/op_rules.h"

#define REPL LAYOUT_REPLICATED
#define PART LAYOUT_PARTIAL

#define REQUIRE(cond, message)                                                         \
    do {                                                                               \
        if (!(cond))                                                                   \
            return message;                                                            \
    } while (0)

static void set_all(const struct op_ctx *c, uint8_t *out, uint8_t layout)
{
    for (int i = 0; i < c->op->n_out; i++)
        out[i] = layout;
}

/* No input, or inputs that must be whole. */
const char *layout_const(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < c->op->n_in; i++)
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
    set_all(c, out, c->op->n_in > 0 ? in[0] : REPL);
    return NULL;
}

/* Sums of squares of blocks: sharded like the gradient. */
const char *layout_norm_sq(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    (void)c;
    REQUIRE(in[0] != PART, "a partial sum must be reduced first");
    out[0] = in[0] == REPL ? REPL : 0;
    return NULL;
}

/* Non-linear, element by element: any sharding, the same for all inputs, no partials. */
const char *layout_pointwise(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < c->op->n_in; i++) {
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
        REQUIRE(in[i] == in[0], "the inputs must be laid out alike");
    }
    set_all(c, out, in[0]);
    return NULL;
}

/* Linear, element by element: partial sums pass through when all inputs are partial. */
const char *layout_linear_same(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < c->op->n_in; i++)
        REQUIRE(in[i] == in[0], "the inputs must be laid out alike");
    set_all(c, out, in[0]);
    return NULL;
}

/* Works on each token by itself: sharded on tokens or heads, whole along the last axis of
 * rank-2 inputs; tables and ids follow the tokens or are replicated. */
const char *layout_tokenwise(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < c->op->n_in; i++) {
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
        bool follows = in[i] == in[0] || in[i] == REPL ||
                       (in[i] == 0 && ctx_in(c, i)->ndim == 1);
        REQUIRE(follows, "inputs must follow the first one's layout or be replicated");
    }
    set_all(c, out, in[0]);
    return NULL;
}

/* Table rows may be sharded (vocabulary parallel): the result is then a partial sum. */
const char *layout_embed(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    (void)c;
    REQUIRE(in[0] != PART && in[1] != PART, "a partial sum must be reduced first");
    REQUIRE(in[1] == REPL || in[1] == 0, "ids are replicated or sharded on tokens");
    if (in[0] == 0) {
        REQUIRE(in[1] == REPL, "a vocabulary-parallel table needs all tokens");
        out[0] = PART;
    } else if (in[0] == 1) {
        REQUIRE(in[1] == REPL, "a table sharded on columns needs all tokens");
        out[0] = 1;
    } else {
        out[0] = in[1];
    }
    return NULL;
}

/* y[T,N] = x[T,K] w[N,K]^T. */
const char *layout_linear(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    uint8_t x = in[0], w = in[1];
    bool bias = c->op->n_in > 2;
    REQUIRE(x != PART && w != PART, "a partial sum must be reduced first");
    if (x == 1 || w == 1) {
        REQUIRE(x == 1 && w == 1, "x and w must both be sharded on K");
        REQUIRE(!bias, "a bias would be added by every rank: add it after the sum");
        out[0] = PART;
    } else if (w == 0) {
        REQUIRE(x == REPL, "a column-parallel product needs whole x");
        REQUIRE(!bias || in[2] == 0, "the bias must be sharded like w's rows");
        out[0] = 1;
    } else {
        REQUIRE(!bias || in[2] == REPL, "the bias must be replicated like w");
        out[0] = x;
    }
    return NULL;
}

/* dx[T,K] = dy[T,N] w[N,K] (+ acc). */
const char *layout_linear_dx(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    uint8_t dy = in[0], w = in[1];
    REQUIRE(dy != PART && w != PART, "a partial sum must be reduced first");
    if (dy == 1 || w == 0) {
        REQUIRE(dy == 1 && w == 0, "dy and w must both be sharded on N");
        out[0] = PART;
    } else if (w == 1) {
        REQUIRE(dy == REPL, "a row-parallel product needs whole dy");
        out[0] = 1;
    } else {
        out[0] = dy;
    }
    if (c->op->n_in > 2)
        REQUIRE(in[2] == out[0], "acc must be laid out as the result");
    return NULL;
}

/* Sums over tokens: sharded tokens make a partial gradient; the accumulator is the last
 * input (or the last two) and must expect that. */
const char *layout_wgrad(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    int n = c->op->n_in, n_acc = c->op->n_out;
    bool tokens = false;
    for (int i = 0; i < n - n_acc; i++) {
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
        int last = MAX(ctx_in(c, i)->ndim - 1, 1);
        tokens |= in[i] < last; /* sharded on an axis that is summed away */
    }
    for (int i = 0; i < n_acc; i++) {
        uint8_t acc = in[n - n_acc + i];
        REQUIRE(!tokens || acc == PART, "sharded tokens make a partial gradient");
        REQUIRE(tokens || acc != PART || in[0] == REPL, "nothing here is partial");
        out[i] = acc;
    }
    return NULL;
}

/* Norms (and losses) need the whole last axis. */
static const char *whole_rows(const struct op_ctx *c, const uint8_t *in)
{
    for (int i = 0; i < c->op->n_in; i++) {
        const struct prog_value *v = ctx_in(c, i);
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
        bool row = v->ndim == ctx_in(c, 0)->ndim; /* statistics have no such axis */
        REQUIRE(!row || in[i] == REPL || in[i] < v->ndim - 1 || v->ndim == 1,
                "the last axis must be whole");
    }
    return NULL;
}

const char *layout_norm(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    const char *wrong = whole_rows(c, in);
    if (wrong)
        return wrong;
    for (int i = 1; i < c->op->n_in; i++)
        REQUIRE(in[i] == REPL, "norm weights must be replicated");
    set_all(c, out, in[0]);
    return NULL;
}

const char *layout_norm_dx(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    const char *wrong = whole_rows(c, in);
    if (wrong)
        return wrong;
    REQUIRE(in[0] == in[1], "dy and x must be laid out alike");
    REQUIRE(in[2] == REPL, "norm weights must be replicated");
    set_all(c, out, in[1]);
    return NULL;
}

/* Sharded on heads (axis 1), or on tokens when whole sequences stay together. */
const char *layout_attention(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    REQUIRE(in[0] == REPL || in[0] == 0 || in[0] == 1,
            "q is sharded on tokens or heads");
    REQUIRE(in[1] == in[2], "k and v must be laid out alike");
    REQUIRE(in[0] == in[1] || (in[0] == 1 && in[1] == REPL), "k and v must follow q");
    REQUIRE(in[3] == REPL || in[3] == in[0], "doc_start follows the tokens");
    set_all(c, out, in[0]);
    return NULL;
}

const char *layout_attention_dx(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    REQUIRE(in[0] == in[1] && in[4] == in[1], "do, q and o must be laid out alike");
    REQUIRE(in[0] != PART && in[2] == in[3], "k and v must be laid out alike");
    (void)c;
    out[0] = in[1];
    out[1] = out[2] = in[1] == 1 && in[2] == REPL ? PART : in[2];
    return NULL;
}

/* Labels follow the tokens; the vocabulary must be whole. */
const char *layout_xent(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    if (c->op->n_in > 2) { /* a rank's columns, and what all ranks found in theirs */
        REQUIRE(in[1] != PART && in[2] != PART, "a partial sum must be reduced first");
        REQUIRE(in[0] != 1 || in[2] == REPL, "sharded logits need the stats of all");
        REQUIRE(in[2] != 0, "the stats must be of all ranks");
        set_all(c, out, in[0] == 1 ? REPL : in[0]);
        return NULL;
    }
    const char *wrong = whole_rows(c, in);
    if (wrong)
        return wrong;
    REQUIRE(in[1] == in[0] || in[1] == REPL, "labels follow the tokens");
    set_all(c, out, in[0]);
    return NULL;
}

/* lse is of the whole row: a rank's columns are enough. */
const char *layout_xent_dx(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    for (int i = 0; i < c->op->n_in; i++)
        REQUIRE(in[i] != PART, "a partial sum must be reduced first");
    REQUIRE(in[0] != 1 || (in[1] == REPL && in[2] == REPL),
            "sharded logits need the lse and labels of all tokens");
    set_all(c, out, in[0]);
    return NULL;
}

const char *layout_xent_stats(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    (void)c;
    REQUIRE(in[0] != PART && in[1] != PART, "a partial sum must be reduced first");
    REQUIRE(in[0] != 1 || in[1] == REPL,
            "sharded logits need the labels of all tokens");
    out[0] = in[0] == 1 ? 0 : in[0] == 0 ? 1 : in[0];
    return NULL;
}

const char *layout_add_bias(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    (void)c;
    REQUIRE(in[0] != PART, "a partial sum must be reduced first");
    REQUIRE(in[0] == 1 ? in[1] == 0 : in[1] == REPL,
            "the bias must follow x's columns");
    out[0] = in[0];
    return NULL;
}

/* ------------------------------------------------------------------ communication */

/* Whether the op's group joins ranks of the dimension that is asked about. */
static bool spans(const struct op_ctx *c)
{
    enum comm_group g = (enum comm_group)op_attr_i(c->prog, c->op, ATTR_GROUP, 0);
    return comm_group_dims(g) >> c->mesh_dim & 1;
}

const char *layout_all_gather(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    out[0] = in[0];
    if (!spans(c))
        return NULL;
    REQUIRE(in[0] == 0, "only what is sharded on its first axis can be gathered");
    out[0] = REPL;
    return NULL;
}

const char *layout_reduce_scatter(const struct op_ctx *c, const uint8_t *in,
                                  uint8_t *out)
{
    out[0] = in[0];
    if (spans(c)) {
        REQUIRE(in[0] == PART, "nothing here is partial: the sum would be too large");
        out[0] = 0;
    }
    REQUIRE(c->op->n_in < 2 || in[1] == out[0], "acc must be laid out as the result");
    return NULL;
}

const char *layout_all_reduce(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    out[0] = in[0];
    if (!spans(c))
        return NULL;
    REQUIRE(in[0] == PART, "nothing here is partial: the sum would be too large");
    out[0] = REPL;
    return NULL;
}

const char *layout_send(const struct op_ctx *c, const uint8_t *in, uint8_t *out)
{
    (void)c;
    (void)in;
    (void)out;
    return NULL;
}
