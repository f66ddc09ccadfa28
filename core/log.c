#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level level_max = LOG_INFO;
static _Thread_local enum log_level thread_max = LOG_DEBUG;
static void (*hook_before)(void);
static void (*hook_after)(void);
static _Thread_local uint64_t n_lines;

void log_set_level(enum log_level level)
{
    level_max = level;
}

void log_set_thread_level(enum log_level level)
{
    thread_max = level;
}

enum log_level log_get_level(void)
{
    return level_max;
}

void log_set_hooks(void (*before)(void), void (*after)(void))
{
    hook_before = before;
    hook_after = after;
}

static void write_line(const char *prefix, const char *text)
{
    pthread_mutex_lock(&sink_lock);
    if (hook_before)
        hook_before();
    fprintf(stderr, "%s%s\n", prefix, text);
    if (hook_after)
        hook_after();
    n_lines++;
    pthread_mutex_unlock(&sink_lock);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const prefix[] = {"angel: ", "angel: warning: ", "", "debug: "};
    if (level > level_max || level > thread_max)
        return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    write_line(prefix[level], text);
}

uint64_t log_lines_written(void)
{
    return n_lines;
}

void log_diag(const struct diag *diag)
{
    write_line("angel: ", diag->text[0] ? diag->text : "an error without a message");
    if (diag->hint[0])
        write_line("  ", diag->hint);
}
