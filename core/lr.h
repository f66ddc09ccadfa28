/* Learning-rate schedules: the rate of a step as a function of the step alone. */
#ifndef CORE_LR_H
#define CORE_LR_H

#include "core/config.h"

/* The rate of step `step` (counted from 0) of `steps`. Warm-up rises linearly and reaches
 * the full rate at step warmup-1; after it, with t running over (0, 1] up to the last
 * step:
 *   cosine    min_lr + (lr - min_lr) * (1 + cos(pi t)) / 2
 *   linear    lr + (min_lr - lr) * t
 *   constant  lr
 *   wsd       lr, then linear to min_lr over the last decay_steps steps
 * source: Loshchilov & Hutter, "SGDR", eq. 5; Hu et al., "MiniCPM", section 4 (wsd). */
double lr_at_step(const struct config_optimizer *o, const struct config_schedule *s,
                  int64_t steps, int64_t step);

#endif
