/* Plain reference kernels: gradient norm, clipping, AdamW. Their arithmetic is fixed to
 * the last bit, so that every backend and every thread count gives the same weights. */
#include <math.h>

#include "core/hyper.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

#define NORM_LANES 16

/* Element i of a block goes to lane i % 16; the lanes are added in order at the end. */
static double block_sum_squares(const struct view *g, int64_t begin, int64_t end)
{
    double lane[NORM_LANES] = {0};
    for (int64_t i = begin; i < end; i++) {
        double x = view_get(g, i);
        lane[(i - begin) % NORM_LANES] += x * x;
    }
    double sum = 0;
    for (int i = 0; i < NORM_LANES; i++)
        sum += lane[i];
    return sum;
}

static void norm_sq_span(const struct kernel_call *c, int64_t begin, int64_t end,
                         int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    int64_t n = view_elems(&l->in[0]);
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * NORM_BLOCK_ELEMS;
        int64_t last = MIN(first + NORM_BLOCK_ELEMS, n);
        view_set(&l->out[0], b, block_sum_squares(&l->in[0], first, last));
    }
}

static void norm_sq_run(const struct kernel_call *c)
{
    cpu_run_spans(c, ceil_div_i64(view_elems(&c->l->in[0]), NORM_BLOCK_ELEMS), 1,
                  norm_sq_span);
}

/* Whether an update may be applied. A comparison with NaN is false, hence the form. */
static bool update_is_sane(const struct view *hyper, float norm, double loss_sum)
{
    float norm_max = (float)view_get(hyper, HYPER_NORM_MAX);
    float loss_max = (float)view_get(hyper, HYPER_LOSS_MAX);
    double loss = loss_sum * view_get(hyper, HYPER_INV_TOKENS);
    return isfinite(norm) && isfinite(loss) && !(norm_max > 0 && norm > norm_max) &&
           !(loss_max > 0 && loss > (double)loss_max);
}

static void clip_run(const struct kernel_call *c)
{
    const struct launch *l = c->l;
    double total = 0;
    int64_t n = view_elems(&l->in[0]);
    for (int64_t i = 0; i < n; i++)
        total += view_get(&l->in[0], i);
    float norm = (float)sqrt(total);
    float clip = (float)view_get(&l->in[1], HYPER_CLIP);
    bool cut = clip > 0 && norm > clip;
    view_set(&l->out[0], 0, cut ? (double)clip / (double)norm : 1);
    view_set(&l->out[1], 0, (double)norm);
    view_set(&l->out[2], 0, update_is_sane(&l->in[1], norm, view_get(&l->in[2], 0)));
}

struct adamw_step {
    float scale, lr, beta1, beta2, one_beta1, one_beta2, eps, decay, correct1, correct2;
    bool decays;
};

static struct adamw_step adamw_step_read(const struct launch *l)
{
    const struct view *h = &l->in[5];
    return (struct adamw_step){
            .scale = (float)view_get(&l->in[4], 0),
            .lr = (float)view_get(h, HYPER_LR),
            .beta1 = (float)view_get(h, HYPER_BETA1),
            .beta2 = (float)view_get(h, HYPER_BETA2),
            .one_beta1 = (float)view_get(h, HYPER_ONE_BETA1),
            .one_beta2 = (float)view_get(h, HYPER_ONE_BETA2),
            .eps = (float)view_get(h, HYPER_EPS),
            .decay = (float)view_get(h, HYPER_DECAY),
            .correct1 = (float)view_get(h, HYPER_CORRECT1),
            .correct2 = (float)view_get(h, HYPER_CORRECT2),
            .decays = launch_attr_i(l, ATTR_DECAY, 0) != 0,
    };
}

/* In fp32, each line one rounding per operation as written. */
static void adamw_span(const struct kernel_call *c, int64_t begin, int64_t end,
                       int thread)
{
    (void)thread;
    const struct launch *l = c->l;
    struct adamw_step s = adamw_step_read(l);
    for (int64_t i = begin; i < end; i++) {
        float w = (float)view_get(&l->in[0], i);
        float m = (float)view_get(&l->in[1], i);
        float v = (float)view_get(&l->in[2], i);
        float gs = (float)view_get(&l->in[3], i) * s.scale;
        m = fmaf(s.beta1, m, s.one_beta1 * gs);
        v = fmaf(s.beta2, v, s.one_beta2 * (gs * gs));
        float d = sqrtf(v * s.correct2) + s.eps;
        float u = (m * s.correct1) / d;
        float w1 = s.decays ? fmaf(-(s.lr * s.decay), w, w) : w;
        w = fmaf(-s.lr, u, w1);
        view_set(&l->out[0], i, (double)w);
        view_set(&l->out[1], i, (double)m);
        view_set(&l->out[2], i, (double)v);
        if (view_is_present(&l->out[3]))
            view_set(&l->out[3], i, (double)w);
    }
}

static void adamw_run(const struct kernel_call *c)
{
    cpu_run_spans(c, view_elems(&c->l->in[0]), 512, adamw_span);
}

static const struct kernel_row rows[] = {
        {.kind = OP_NORM_SQ, .name = "norm_sq_ref", .run = norm_sq_run},
        {.kind = OP_CLIP, .name = "clip_ref", .run = clip_run},
        {.kind = OP_ADAMW, .name = "adamw_ref", .run = adamw_run},
};

const struct kernel_table ref_optim_table = {rows, ARRAY_LEN(rows)};
