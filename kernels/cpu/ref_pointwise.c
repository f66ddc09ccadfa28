/* Plain reference kernels, in double: element-wise ops and rotary embedding. */
#include <math.h>

#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

#define UNIT 512 /* elements a thread takes at least */

static const double pi = 3.14159265358979323846;

/* ------------------------------------------------------------------------ rope_table */

struct rope_params {
    int64_t dim;
    double theta, factor, low, high, original;
};

static double freq_plain(const struct rope_params *r, int64_t i)
{
    return pow(r->theta, -2.0 * (double)i / (double)r->dim);
}

static double freq_linear(const struct rope_params *r, int64_t i)
{
    return freq_plain(r, i) / r->factor;
}

/* Long wavelengths are stretched by `factor`, short ones kept, with a ramp between.
 * source: Llama 3.1 model card, rope scaling. */
static double freq_llama3(const struct rope_params *r, int64_t i)
{
    double f = freq_plain(r, i), wavelength = 2 * pi / f;
    if (wavelength > r->original / r->low)
        return f / r->factor;
    if (wavelength < r->original / r->high)
        return f;
    double keep = (r->original / wavelength - r->low) / (r->high - r->low);
    return (1 - keep) * f / r->factor + keep * f;
}

/* The pair index whose frequency makes `turns` turns over the original context. */
static double yarn_index(const struct rope_params *r, double turns)
{
    return (double)r->dim * log(r->original / (2 * pi * turns)) / (2 * log(r->theta));
}

/* source: Peng et al., "YaRN", section 3.2; `low` is beta_slow, `high` beta_fast. */
static double freq_yarn(const struct rope_params *r, int64_t i)
{
    double begin = fmax(floor(yarn_index(r, r->high)), 0);
    double end = fmin(ceil(yarn_index(r, r->low)), (double)(r->dim - 1));
    double width = end - begin;
    double stretch = ((double)i - begin) / (width == 0 ? 0.001 : width);
    stretch = fmin(fmax(stretch, 0), 1);
    double f = freq_plain(r, i);
    return f / r->factor * stretch + f * (1 - stretch);
}

static double (*const freq_table[])(const struct rope_params *r, int64_t i) = {
        [ROPE_NONE] = freq_plain,
        [ROPE_LINEAR] = freq_linear,
        [ROPE_LLAMA3] = freq_llama3,
        [ROPE_YARN] = freq_yarn,
};
_Static_assert(ARRAY_LEN(freq_table) == ROPE_TYPE_COUNT, "one row per scaling");

static void rope_table_span(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    struct rope_params r = {
            .dim = 2 * l->out[0].dim[1],
            .theta = launch_attr_f(l, ATTR_ROPE_THETA, 10000),
            .factor = launch_attr_f(l, ATTR_ROPE_FACTOR, 1),
            .low = launch_attr_f(l, ATTR_ROPE_LOW, 1),
            .high = launch_attr_f(l, ATTR_ROPE_HIGH, 1),
            .original = (double)launch_attr_i(l, ATTR_ROPE_ORIGINAL, 1),
    };
    double magnitude = launch_attr_f(l, ATTR_ROPE_ATTN_FACTOR, 1);
    int64_t type = launch_attr_i(l, ATTR_ROPE_TYPE, ROPE_NONE);
    ASSERT(type >= 0 && type < ROPE_TYPE_COUNT);
    for (int64_t pair = 0; pair < l->out[0].dim[1]; pair++) {
        double freq = freq_table[type](&r, pair);
        for (int64_t row = begin; row < end; row++) {
            double angle = (double)row * freq;
            int64_t at = (row * l->out[0].dim[1] + pair) * 2;
            view_set(&l->out[0], at, magnitude * cos(angle));
            view_set(&l->out[0], at + 1, magnitude * sin(angle));
        }
    }
}

static void rope_table_run(const struct kernel_call *c)
{
    cpu_run_spans(c, c->l->out[0].dim[0], 16, rope_table_span);
}

/* ------------------------------------------------------------------------------ rope */

static void rope_head(const struct launch *l, int64_t token, int64_t head, double sign)
{
    const struct view *x = &l->in[0], *table = &l->in[2];
    int64_t half = x->dim[2] / 2;
    int64_t position = (int64_t)view_get(&l->in[1], token);
    int64_t at = (token * x->dim[1] + head) * x->dim[2];
    for (int64_t i = 0; i < half; i++) {
        double co = view_get(table, (position * half + i) * 2);
        double si = sign * view_get(table, (position * half + i) * 2 + 1);
        double a = view_get(x, at + i), b = view_get(x, at + i + half);
        view_set(&l->out[0], at + i, a * co - b * si);
        view_set(&l->out[0], at + i + half, b * co + a * si);
    }
}

static void rope_span(const struct kernel_call *c, int64_t begin, int64_t end,
                      int thread)
{
    (void)thread;
    double sign = launch_attr_i(c->l, ATTR_INVERSE, 0) ? -1 : 1;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < c->l->in[0].dim[1]; h++)
            rope_head(c->l, t, h, sign);
}

static void rope_run(const struct kernel_call *c)
{
    cpu_run_spans(c, c->l->in[0].dim[0], 4, rope_span);
}

/* ------------------------------------------------------------------- act, glu, others */

struct act_value {
    double f;  /* act(x) */
    double df; /* its derivative */
};

static struct act_value act_silu(double x)
{
    double s = 1 / (1 + exp(-x));
    return (struct act_value){x * s, s * (1 + x * (1 / (1 + exp(x))))};
}

static struct act_value act_gelu(double x)
{
    double below = 0.5 * erfc(-x / sqrt(2));
    double density = exp(-0.5 * x * x) / sqrt(2 * pi);
    return (struct act_value){x * below, below + x * density};
}

/* source: Hendrycks & Gimpel, "Gaussian Error Linear Units", the tanh approximation,
 * with 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)). */
static struct act_value act_gelu_tanh(double x)
{
    double k = sqrt(2 / pi);
    double u = k * (x + 0.044715 * x * x * x);
    double du = k * (1 + 3 * 0.044715 * x * x);
    double s = 1 / (1 + exp(-2 * u)), rest = 1 / (1 + exp(2 * u));
    return (struct act_value){x * s, s + 2 * x * s * rest * du};
}

static struct act_value (*const act_table[])(double x) = {
        [ACT_SILU] = act_silu,
        [ACT_GELU] = act_gelu,
        [ACT_GELU_TANH] = act_gelu_tanh,
};
_Static_assert(ARRAY_LEN(act_table) == ACT_COUNT, "one row per function");

static struct act_value act_eval(const struct launch *l, double x)
{
    int64_t act = launch_attr_i(l, ATTR_ACT, ACT_SILU);
    ASSERT(act >= 0 && act < ACT_COUNT);
    return act_table[act](x);
}

static void glu_span(const struct kernel_call *c, int64_t begin, int64_t end,
                     int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->out[0]);
    for (int64_t i = begin; i < end; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double g = view_get(&l->in[0], gate), u = view_get(&l->in[0], gate + width);
        view_set(&l->out[0], i, act_eval(l, g).f * u);
    }
}

static void glu_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_elems(&c->l->out[0]), UNIT, glu_span);
}

static void glu_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                        int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t width = view_cols(&l->in[0]);
    for (int64_t i = begin; i < end; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double g = view_get(&l->in[1], gate), u = view_get(&l->in[1], gate + width);
        double dh = view_get(&l->in[0], i);
        struct act_value a = act_eval(l, g);
        view_set(&l->out[0], gate, dh * u * a.df);
        view_set(&l->out[0], gate + width, dh * a.f);
    }
}

static void glu_dx_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_elems(&c->l->in[0]), UNIT, glu_dx_span);
}

static void act_span(const struct kernel_call *c, int64_t begin, int64_t end,
                     int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i, act_eval(c->l, view_get(&c->l->in[0], i)).f);
}

static void act_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                        int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        double dy = view_get(&c->l->in[0], i), x = view_get(&c->l->in[1], i);
        view_set(&c->l->out[0], i, dy * act_eval(c->l, x).df);
    }
}

static void add_span(const struct kernel_call *c, int64_t begin, int64_t end,
                     int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i,
                 view_get(&c->l->in[0], i) + view_get(&c->l->in[1], i));
}

static void add_bias_span(const struct kernel_call *c, int64_t begin, int64_t end,
                          int thread)
{
    (void)thread;
    int64_t width = view_cols(&c->l->in[0]);
    for (int64_t i = begin; i < end; i++) {
        double bias = view_get(&c->l->in[1], i % width);
        view_set(&c->l->out[0], i, view_get(&c->l->in[0], i) + bias);
    }
}

static void softcap_span(const struct kernel_call *c, int64_t begin, int64_t end,
                         int thread)
{
    (void)thread;
    double cap = launch_attr_f(c->l, ATTR_CAP, 1);
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i, cap * tanh(view_get(&c->l->in[0], i) / cap));
}

static void softcap_dx_span(const struct kernel_call *c, int64_t begin, int64_t end,
                            int thread)
{
    (void)thread;
    double cap = launch_attr_f(c->l, ATTR_CAP, 1);
    for (int64_t i = begin; i < end; i++) {
        double dy = view_get(&c->l->in[0], i), r = view_get(&c->l->in[1], i) / cap;
        view_set(&c->l->out[0], i, dy * (1 - r * r));
    }
}

static void cast_span(const struct kernel_call *c, int64_t begin, int64_t end,
                      int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i, view_get(&c->l->in[0], i));
}

static void zero_span(const struct kernel_call *c, int64_t begin, int64_t end,
                      int thread)
{
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        view_set(&c->l->out[0], i, 0);
}

#define RUN_ELEMENTS(name)                                                             \
    static void name##_run(const struct kernel_call *c)                                \
    {                                                                                  \
        cpu_run_spans(c, view_elems(&c->l->out[0]), UNIT, name##_span);                \
    }
RUN_ELEMENTS(act)
RUN_ELEMENTS(act_dx)
RUN_ELEMENTS(add)
RUN_ELEMENTS(add_bias)
RUN_ELEMENTS(softcap)
RUN_ELEMENTS(softcap_dx)
RUN_ELEMENTS(cast)
RUN_ELEMENTS(zero)

static const struct kernel_row rows[] = {
        {.kind = OP_ROPE_TABLE, .name = "rope_table_ref", .run = rope_table_run},
        {.kind = OP_ROPE, .name = "rope_ref", .run = rope_run},
        {.kind = OP_GLU, .name = "glu_ref", .run = glu_run},
        {.kind = OP_GLU_DX, .name = "glu_dx_ref", .run = glu_dx_run},
        {.kind = OP_ACT, .name = "act_ref", .run = act_run},
        {.kind = OP_ACT_DX, .name = "act_dx_ref", .run = act_dx_run},
        {.kind = OP_ADD, .name = "add_ref", .run = add_run},
        {.kind = OP_ADD_BIAS, .name = "add_bias_ref", .run = add_bias_run},
        {.kind = OP_SOFTCAP, .name = "softcap_ref", .run = softcap_run},
        {.kind = OP_SOFTCAP_DX, .name = "softcap_dx_ref", .run = softcap_dx_run},
        {.kind = OP_CAST, .name = "cast_ref", .run = cast_run},
        {.kind = OP_ZERO, .name = "zero_ref", .run = zero_run},
};

const struct kernel_table ref_pointwise_table = {rows, ARRAY_LEN(rows)};
