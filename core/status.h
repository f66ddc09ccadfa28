/* Status codes and diagnostics.
 *
 * Library code returns `enum status` and writes one diagnostic: the code that detects a
 * problem writes what, where, got and wanted into a `struct diag`; callers pass it on
 * (or put context in front) and never print it again. The program's exit code follows
 * from the status alone (status_exit_code).
 */
#ifndef CORE_STATUS_H
#define CORE_STATUS_H

#include "core/base.h"

enum status {
    ST_OK = 0,
    ST_CHECK,       /* a comparison or check that the user asked for came out false */
    ST_CONFIG,      /* usage or configuration */
    ST_DATA,        /* damaged or malformed input data */
    ST_NOT_FOUND,   /* input not found */
    ST_UNAVAILABLE, /* a device, library or feature is missing here */
    ST_INTERNAL,    /* a bug in angel */
    ST_NO_FIT,      /* does not fit in memory */
    ST_CREATE,      /* cannot create output */
    ST_IO,          /* I/O error */
    ST_STOPPED,     /* stopped in a resumable state */
    ST_DIVERGED,    /* training diverged and was stopped */
    ST_INTERRUPTED, /* left at once on a second Ctrl-C */
    ST_COUNT
};

/* One diagnostic: the line after "angel: ", and an optional second line that names the
 * nearest thing that would work. Caller's storage; zero-initialise. Not thread-safe. */
struct diag {
    char text[1024];
    char hint[512];
};

/* Writes the text and clears the hint; returns `st`, so that detection is one line:
 *     return diag_set(diag, ST_CONFIG, "unknown key (%s:%d): got '%s', wanted ...", ...);
 * `diag` may be NULL (the text is dropped). Text is cut at the buffer's end. */
enum status diag_set(struct diag *diag, enum status st, const char *fmt, ...)
        PRINTF_LIKE(3, 4);

/* Adds the second line. Call after diag_set. */
void diag_hint(struct diag *diag, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Puts "context: " in front of the text. */
void diag_context(struct diag *diag, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The process exit code of a status, as man/angel.1 lists them. */
int status_exit_code(enum status st);

/* A short lower-case name ("config", "data", ...), for logs and tests. */
const char *status_name(enum status st);

/* Returns from the calling function when `expr` is not ST_OK. */
#define TRY(expr)                                                                      \
    do {                                                                               \
        enum status try_st_ = (expr);                                                  \
        if (try_st_ != ST_OK)                                                          \
            return try_st_;                                                            \
    } while (0)

/* The same with a clean-up label; needs a local `enum status st`. */
#define TRY_GOTO(expr, label)                                                          \
    do {                                                                               \
        st = (expr);                                                                   \
        if (st != ST_OK)                                                               \
            goto label;                                                                \
    } while (0)

#endif
