#include "core/zscore.h"

#include <math.h>

double zscore_of(const struct zscore *z, double x)
{
    int n = (int)MIN(z->n, ZSCORE_WINDOW);
    if (n < ZSCORE_MIN)
        return 0;
    if (!isfinite(x))
        return INFINITY;
    double mean = 0, squares = 0;
    for (int i = 0; i < n; i++)
        mean += z->x[i] / n;
    for (int i = 0; i < n; i++)
        squares += (z->x[i] - mean) * (z->x[i] - mean);
    double deviation = fmax(sqrt(squares / n), 1e-3 * fabs(mean));
    return deviation > 0 ? (x - mean) / deviation : 0;
}

void zscore_add(struct zscore *z, double x)
{
    if (isfinite(x))
        z->x[z->n++ % ZSCORE_WINDOW] = x;
}
