/* Plain reference kernels of the statistics that monitors read. */
#include <math.h>

#include "core/hyper.h"
#include "core/stats.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/cpu_util.h"

/* Element i of what is looked at. */
typedef double (*element_fn)(const struct launch *l, int64_t i);

static double element_of_x(const struct launch *l, int64_t i)
{
    return view_get(&l->in[0], i);
}

/* The step that AdamW makes of its moments, in its arithmetic: f32, one rounding per
 * operation as written. */
static double element_of_adamw(const struct launch *l, int64_t i)
{
    const struct view *h = &l->in[2];
    float m = (float)view_get(&l->in[0], i), v = (float)view_get(&l->in[1], i);
    float d = sqrtf(v * (float)view_get(h, HYPER_CORRECT2));
    float u = (m * (float)view_get(h, HYPER_CORRECT1)) /
              (d + (float)view_get(h, HYPER_EPS));
    return (double)((float)view_get(h, HYPER_LR) * u);
}

/* Adds a block to s: element i of it goes to running sum i % STATS_LANES. */
static void add_block(const struct launch *l, element_fn element, int64_t begin,
                      int64_t end, double *s)
{
    double squares[STATS_LANES] = {0}, sums[STATS_LANES] = {0};
    for (int64_t i = begin; i < end; i++) {
        double x = element(l, i);
        squares[(i - begin) % STATS_LANES] += x * x;
        sums[(i - begin) % STATS_LANES] += x;
        s[STATS_ABSMAX] = fabs(x) > s[STATS_ABSMAX] ? fabs(x) : s[STATS_ABSMAX];
        s[STATS_ZEROS] += x == 0;
    }
    double square = 0, sum = 0;
    for (int i = 0; i < STATS_LANES; i++) {
        square += squares[i];
        sum += sums[i];
    }
    s[STATS_SQUARES] += square;
    s[STATS_SUM] += sum;
}

static void run(const struct kernel_call *c, element_fn element)
{
    double s[STATS_COUNT] = {0};
    int64_t n = view_elems(&c->l->in[0]);
    for (int64_t at = 0; at < n; at += STATS_BLOCK_ELEMS)
        add_block(c->l, element, at, MIN(at + STATS_BLOCK_ELEMS, n), s);
    for (int i = 0; i < STATS_COUNT; i++)
        view_set(&c->l->out[0], i, s[i]);
}

static void stats_run(const struct kernel_call *c)
{
    run(c, element_of_x);
}

static void adamw_stats_run(const struct kernel_call *c)
{
    run(c, element_of_adamw);
}

static const struct kernel_row rows[] = {
        {.kind = OP_STATS, .name = "stats_ref", .run = stats_run},
        {.kind = OP_ADAMW_STATS, .name = "adamw_stats_ref", .run = adamw_stats_run},
};

const struct kernel_table ref_stats_table = {rows, ARRAY_LEN(rows)};
