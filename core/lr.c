#include "core/lr.h"

#include <math.h>

static double lr_decayed(double lr, double min_lr, enum schedule_type type, double t)
{
    const double pi = 3.14159265358979323846;
    switch (type) {
    case SCHEDULE_COSINE: return min_lr + (lr - min_lr) * 0.5 * (1.0 + cos(pi * t));
    case SCHEDULE_LINEAR:
    case SCHEDULE_WSD: return lr + (min_lr - lr) * t;
    case SCHEDULE_CONSTANT: return lr;
    }
    BUG("schedule %d", (int)type);
}

double lr_at_step(const struct config_optimizer *o, const struct config_schedule *s,
                  int64_t steps, int64_t step)
{
    if (step < s->warmup)
        return o->lr * (double)(step + 1) / (double)s->warmup;
    int64_t begin = s->warmup;
    if (s->type == SCHEDULE_WSD)
        begin = MAX(begin, steps - s->decay_steps);
    if (step < begin)
        return o->lr;
    double t = (double)(step + 1 - begin) / (double)MAX(steps - begin, 1);
    return lr_decayed(o->lr, s->min_lr, s->type, MIN(t, 1.0));
}
