/* metrics.jsonl: one JSON object a line, appended and flushed line by line.
 *
 * Every line has kind, step, tokens, elapsed_s and attempt; angel-pretrain(1) lists the
 * rest. Numbers that are not finite are null, and their names stand in "nonfinite".
 */
#ifndef IO_METRICS_H
#define IO_METRICS_H

#include "core/status.h"

struct metrics;

/* What every line carries. */
struct metrics_head {
    const char *kind; /* train, eval, ckpt, event, summary */
    int64_t step;     /* completed updates */
    int64_t tokens;   /* trained since the first step of the first attempt */
    double elapsed_s; /* of this attempt */
};

enum metrics_type {
    METRIC_F64,
    METRIC_I64,
    METRIC_TEXT,
};

struct metrics_field {
    const char *name;
    enum metrics_type type;
    double f64;
    int64_t i64;
    const char *text;
};

#define METRICS_F64(field, x)  ((struct metrics_field){field, METRIC_F64, (x), 0, NULL})
#define METRICS_I64(field, x)  ((struct metrics_field){field, METRIC_I64, 0, (x), NULL})
#define METRICS_TEXT(field, s) ((struct metrics_field){field, METRIC_TEXT, 0, 0, (s)})

/* Opens for appending; makes the folder. A last line that a killed run left unfinished is
 * cut off. The attempt is one more than the last line's (1 in a new file).
 * errors: ST_CREATE, ST_IO. */
MUST_CHECK enum status metrics_open(const char *path, struct metrics **out,
                                    struct diag *diag);
void metrics_close(struct metrics *m);
int64_t metrics_attempt(const struct metrics *m);

/* Appends one line. errors: ST_IO; the run may go on without it. */
MUST_CHECK enum status metrics_write(struct metrics *m, const struct metrics_head *head,
                                     const struct metrics_field *fields,
                                     size_t n_fields, struct diag *diag);

#endif
