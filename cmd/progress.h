/* The progress of a run for people, on stderr: one redrawn line on a terminal, plain lines
 * elsewhere. Never parsed: metrics.jsonl is for programs. */
#ifndef CMD_PROGRESS_H
#define CMD_PROGRESS_H

#include "core/base.h"

/* What a step reports. */
struct progress_step {
    int64_t step;
    int64_t steps;
    double loss;
    double grad_norm;
    double lr;
    double tokens_per_s;
    double mfu; /* 0..1 */
    double eta_s;
    int64_t next_ckpt_step; /* -1: none to come */
};

/* Looks whether stderr is a terminal; quiet prints nothing. Takes the log's hooks, so that
 * log lines and the redrawn line do not mix. */
void progress_begin(bool quiet);
void progress_show(const struct progress_step *p);

/* Leaves the cursor on a new line and gives the hooks back. */
void progress_end(void);

/* Whether the line is redrawn (a terminal), rather than printed every log.every steps. */
bool progress_is_live(void);

/* "2 h 05 min", "3 min 20 s", "12 s"; "years" for what is not finite too. Writes at most n bytes. */
const char *progress_duration(double seconds, char *buf, size_t n);

#endif
