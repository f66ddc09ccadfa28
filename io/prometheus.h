/* Figures in Prometheus's text format, for the text-file collector of its node exporter.
 *
 * Text is built in a growing string: a metric's head, then its samples; then the file is
 * replaced in one rename, so that a reader sees the old figures or the new.
 * source: Prometheus documentation, "Exposition formats", text format 0.0.4.
 */
#ifndef IO_PROMETHEUS_H
#define IO_PROMETHEUS_H

#include "core/str.h"

enum prometheus_type {
    PROMETHEUS_GAUGE,
    PROMETHEUS_COUNTER,
};

/* The HELP and TYPE lines. in: name, letters, digits and underscores; help, one
 * sentence. */
void prometheus_metric(struct str *out, const char *name, enum prometheus_type type,
                       const char *help);

/* A sample of the metric begun last. in: label and its value, or NULL for none. */
void prometheus_sample(struct str *out, const char *name, const char *label,
                       const char *label_value, double value);

/* Cumulative counts of observations up to each bound. Zero-initialise but for bounds. */
struct prometheus_histogram {
    const double *bounds; /* [n_bounds], ascending; borrowed */
    int n_bounds;
    int64_t counts[32]; /* [n_bounds + 1] of each interval, not cumulative */
    double sum;
};

void prometheus_observe(struct prometheus_histogram *h, double value);

/* A whole histogram: head, buckets with the +Inf one, sum and count. */
void prometheus_add_histogram(struct str *out, const char *name, const char *help,
                              const struct prometheus_histogram *h);

/* Replaces the file, through "PATH.tmp" and a rename. It is not forced to the disk:
 * figures of before a power cut are of no use. errors: ST_CREATE, ST_IO. */
MUST_CHECK enum status prometheus_write(const char *path, const struct str *text,
                                        struct diag *diag);

#endif
