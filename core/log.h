/* The log: lines on stderr. The sink and the level are process-wide (one of the few
 * things that are). Lower case, no full stop, the value after its name. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include "core/status.h"

enum log_level {
    LOG_ERROR,
    LOG_WARN,
    LOG_INFO,
    LOG_DEBUG,
};

/* Lines above `level` are dropped. Default: LOG_INFO. */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);

/* The same for the calling thread alone: ranks that are threads of a process leave it to
 * one of them to log. Default: LOG_DEBUG. */
void log_set_thread_level(enum log_level level);

/* Called before a line is written and after, so that a redrawn progress line can step
 * aside; NULL for none. */
void log_set_hooks(void (*before)(void), void (*after)(void));

/* Writes one line. threads: any; lines do not mix. */
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

/* Lines that the calling thread wrote so far (a debug check that a step logs nothing). */
uint64_t log_lines_written(void);

/* Prints a diagnostic as every error of angel is printed: "angel: text", then the hint. */
void log_diag(const struct diag *diag);

#endif
