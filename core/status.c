#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int exit_code;
    const char *name;
} status_table[] = {
        [ST_OK] = {0, "ok"},
        [ST_CHECK] = {1, "check"},
        [ST_CONFIG] = {2, "config"},
        [ST_DATA] = {65, "data"},
        [ST_NOT_FOUND] = {66, "not-found"},
        [ST_UNAVAILABLE] = {69, "unavailable"},
        [ST_INTERNAL] = {70, "internal"},
        [ST_NO_FIT] = {71, "no-fit"},
        [ST_CREATE] = {73, "create"},
        [ST_IO] = {74, "io"},
        [ST_STOPPED] = {75, "stopped"},
        [ST_DIVERGED] = {80, "diverged"},
        [ST_INTERRUPTED] = {130, "interrupted"},
};
_Static_assert(ARRAY_LEN(status_table) == ST_COUNT, "one row per status");

enum status diag_set(struct diag *diag, enum status st, const char *fmt, ...)
{
    if (!diag)
        return st;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(diag->text, sizeof(diag->text), fmt, ap);
    va_end(ap);
    diag->hint[0] = '\0';
    return st;
}

void diag_hint(struct diag *diag, const char *fmt, ...)
{
    if (!diag)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(diag->hint, sizeof(diag->hint), fmt, ap);
    va_end(ap);
}

void diag_context(struct diag *diag, const char *fmt, ...)
{
    if (!diag)
        return;
    char old[sizeof(diag->text)];
    memcpy(old, diag->text, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(diag->text, sizeof(diag->text), fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : MIN((size_t)n, sizeof(diag->text) - 1);
    const char *const piece[] = {": ", old};
    for (size_t i = 0; i < ARRAY_LEN(piece); i++) {
        size_t len = MIN(strlen(piece[i]), sizeof(diag->text) - 1 - at);
        memcpy(diag->text + at, piece[i], len);
        at += len;
    }
    diag->text[at] = '\0';
}

int status_exit_code(enum status st)
{
    ASSERT(st >= ST_OK && st < ST_COUNT);
    return status_table[st].exit_code;
}

const char *status_name(enum status st)
{
    ASSERT(st >= ST_OK && st < ST_COUNT);
    return status_table[st].name;
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "angel: a bug in angel (%s:%d): ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(status_exit_code(ST_INTERNAL));
}
