/* What keeps bad updates out of a run: limits of loss and gradient norm that follow from
 * the steps before, and the ledger of the samples whose update was left out. All of it is
 * in checkpoints, so that a resumed run leaves out what the unbroken one would have. */
#ifndef CMD_RUN_GUARD_H
#define CMD_RUN_GUARD_H

#include "core/arena.h"
#include "core/vec.h"
#include "io/json.h"

#define GUARD_WINDOW           128 /* steps that the limits look back on */
#define GUARD_WINDOW_MIN       20  /* below as many there is no limit */
#define GUARD_SKIPS_IN_ROW_MAX 10  /* as many left out in a row stop the run */

enum guard_reason {
    GUARD_NONE, /* the update was applied */
    GUARD_NONFINITE,
    GUARD_LOSS_SPIKE,
    GUARD_NORM_SPIKE,
    GUARD_REASON_COUNT
};

/* A step whose update was left out. */
struct guard_skip {
    int64_t step; /* as metrics.jsonl counts: after it */
    int64_t first_sample;
    int64_t n_samples;
    enum guard_reason reason;
};

/* The last values of a ring; the next goes to x[n % GUARD_WINDOW]. */
struct guard_window {
    double x[GUARD_WINDOW];
    int64_t n; /* taken so far */
};

/* Zero-initialise; guard_free. */
struct guard {
    struct guard_window loss, norm; /* of applied updates */
    VEC(struct guard_skip) skips;
    int64_t skips_in_row;
};

void guard_free(struct guard *g);

const char *guard_reason_name(enum guard_reason reason);

/* The greatest value that is no spike: mean + z standard deviations of the window, the
 * deviation taken as at least a thousandth of the mean; 0 for none (z is 0, or the window
 * is too short). */
double guard_limit(const struct guard_window *w, double z);

/* How far x is above the window's mean, in the same deviations: 0 where the window is too
 * short, infinite for an x that is not finite. */
double guard_score(const struct guard_window *w, double x);

/* Takes an applied update into the windows. */
void guard_accept(struct guard *g, double loss, double norm);

/* Enters a step whose update was left out. */
void guard_skip_step(struct guard *g, const struct guard_skip *skip);

/* The guard as a JSON object, and back; guard_parse replaces what *g holds. errors:
 * ST_DATA. */
void guard_write(const struct guard *g, struct json_writer *w);
MUST_CHECK enum status guard_parse(struct guard *g, const struct json *object,
                                   const char *where, struct diag *diag);

#endif
