/* A run's metrics, read back for a report. */
#ifndef CMD_REPORT_READ_H
#define CMD_REPORT_READ_H

#include "cmd/svg_chart.h"
#include "core/vec.h"
#include "io/json.h"

/* What is charted by step. */
enum report_curve {
    CURVE_LOSS,
    CURVE_MAX_TOKEN_LOSS,
    CURVE_EVAL,
    CURVE_GRAD_NORM,
    CURVE_LR,
    CURVE_SPEED,
    CURVE_MFU,
    CURVE_UPDATE_RATIO, /* the largest of a look's matrices */
    CURVE_RESIDUAL,     /* root mean square behind the last layer */
    CURVE_ATTN_LSE,     /* the largest of a look's layers */
    CURVE_LOGITS,
    CURVE_COUNT
};

typedef VEC(struct svg_point) report_points;

/* A line of the tables; strings are the arena's. */
struct report_event {
    int64_t step, attempt;
    const char *what, *detail;
    bool alarm;
};

struct report_ckpt {
    int64_t step, attempt, bytes;
    double save_s, ratio;
};

struct report_data {
    report_points curve[CURVE_COUNT];
    VEC(struct report_event) events;
    VEC(struct report_ckpt) ckpts;
    VEC(double) attempts;          /* steps at which attempts after the first begin */
    const struct json *start;      /* the newest start event, or NULL */
    const struct json *summary;    /* the newest summary, or NULL */
    int64_t step, tokens, attempt; /* of the last line */
    int64_t n_skipped;             /* updates that were not applied */
    double elapsed_s;              /* of all attempts */
    double attempt_s;              /* of the last attempt */
    struct arena arena;
};

/* Reads metrics.jsonl. Of steps that two attempts have, the newer one's count. errors:
 * ST_NOT_FOUND, ST_IO, ST_DATA with file and line; an unfinished last line is left out. */
MUST_CHECK enum status report_read(const char *path, struct report_data *out,
                                   struct diag *diag);
void report_data_free(struct report_data *d);

#endif
