#include "tests/lib/tier2.h"

#include <math.h>

void tier2_add(struct tier2 *t, const float *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        t->norm_sq += (double)want[i] * (double)want[i];
    t->n_elems += n;
}

double tier2_distance(const struct tier2 *t, const float *got, const float *want,
                      int64_t n)
{
    double diff_sq = 0, want_sq = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        diff_sq += d * d;
        want_sq += (double)want[i] * (double)want[i];
    }
    double share = (double)n / (double)t->n_elems;
    double scale = fmax(sqrt(want_sq), 1e-3 * sqrt(t->norm_sq * share));
    double distance = sqrt(diff_sq) / scale;
    bool proves = n > 0 && t->norm_sq > 0 && isfinite(t->norm_sq) && isfinite(want_sq);
    return proves && isfinite(distance) ? distance : (double)INFINITY;
}
