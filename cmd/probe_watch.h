/* The rules by which statistics of tensors raise alarms.
 *
 *   growth      the largest magnitude is more than ten times what it was at a look at
 *               most 100 steps ago, and above a floor (tensors that begin at zero grow)
 *   collapse    the root mean square of a matrix or of the residual stream is less than
 *               a tenth of what it was then
 *   non-finite  some element is not finite
 *
 * A probe that raised one is quiet for the next WATCH_STEPS steps.
 */
#ifndef CMD_PROBE_WATCH_H
#define CMD_PROBE_WATCH_H

#include "parallel/lower.h"

#define WATCH_STEPS  100
#define WATCH_FACTOR 10.0

/* Statistics of one probe, over all micro-batches. */
struct probe_figures {
    double absmax, rms, mean;
    double zeros; /* share of the elements, 0..1 */
};

struct probe_alarm {
    uint32_t probe;
    const char *rule; /* "growth", "collapse", "non-finite" */
    double now, before;
};

/* Looks of the last WATCH_STEPS steps. */
struct probe_watch;

/* in: monitor_every, steps between looks. */
struct probe_watch *probe_watch_create(const struct model *m,
                                       const struct lowered_probe *probes, uint32_t n,
                                       int64_t monitor_every);
void probe_watch_destroy(struct probe_watch *w);

/* Takes a look and compares it with the oldest one of at most WATCH_STEPS steps ago (the
 * last one where looks are further apart). in: now[n]. out: alarms[n]; returns how
 * many. */
uint32_t probe_watch_look(struct probe_watch *w, const struct probe_figures *now,
                          struct probe_alarm *alarms);

#endif
