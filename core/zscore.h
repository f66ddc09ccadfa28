/* How far a figure is from what it was lately, in standard deviations. */
#ifndef CORE_ZSCORE_H
#define CORE_ZSCORE_H

#include "core/base.h"

#define ZSCORE_WINDOW 128
#define ZSCORE_MIN    32 /* figures before there is a score */

/* The figures of a window. Zero-initialise. */
struct zscore {
    double x[ZSCORE_WINDOW];
    int64_t n; /* added so far; the newest ZSCORE_WINDOW stay */
};

/* The score of x against the window: (x - mean) / deviation, the deviation at least a
 * thousandth of the mean; 0 while the window holds fewer than ZSCORE_MIN figures;
 * infinite for an x that is not finite. */
double zscore_of(const struct zscore *z, double x);

/* Adds a figure; one that is not finite is left out. */
void zscore_add(struct zscore *z, double x);

#endif
