/* Line charts as inline SVG, for the report. Colours and fonts are the page's: series
 * have the classes s0, s1, ... */
#ifndef CMD_SVG_CHART_H
#define CMD_SVG_CHART_H

#include "core/str.h"

struct svg_point {
    double x, y; /* a y that is not finite, or beyond 1e300, leaves a gap */
};

struct svg_series {
    const char *name;
    const struct svg_point *points; /* x ascending */
    size_t n;
    bool dots; /* few points: marked one by one */
};

struct svg_chart {
    const char *title;
    const char *unit; /* of y; "" for none */
    const struct svg_series *series;
    size_t n_series;
    const double *marks; /* x of vertical lines: where attempts begin */
    size_t n_marks;
    double x_max;
    bool percent; /* y is a ratio, shown in percent */
    bool may_log; /* a logarithmic y axis where values span a factor of fifty */
};

/* Appends a figure with title, axes, series, marks, and legend where there are several
 * series. At most a few points per pixel column are written, extremes kept. A chart
 * without a finite point is left out; returns whether it was written. */
bool svg_chart_add(struct str *out, const struct svg_chart *c);

/* Appends text with the characters that HTML reads as its own replaced. */
void svg_text(struct str *out, const char *text);

#endif
