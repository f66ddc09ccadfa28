#include "cmd/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/log.h"
#include "core/opt.h"
#include "core/str.h"

#define LINE_BYTES  256
#define SECONDS_MAX 1e10 /* longer times are not told apart */

/* The log's sink is process-wide, and so is the line that shares stderr with it. */
static struct {
    bool quiet;
    bool live;
    bool drawn;
    char line[LINE_BYTES];
} state;

static void erase(void)
{
    if (state.drawn)
        fputs("\r\033[K", stderr);
}

static void redraw(void)
{
    if (state.drawn)
        fputs(state.line, stderr);
    fflush(stderr);
}

void progress_begin(bool quiet)
{
    const char *term = opt_env("TERM");
    state.quiet = quiet;
    state.live =
            !quiet && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
    state.drawn = false;
    if (state.live)
        log_set_hooks(erase, redraw);
}

void progress_end(void)
{
    if (state.drawn)
        fputc('\n', stderr);
    state.drawn = false;
    log_set_hooks(NULL, NULL);
}

bool progress_is_live(void)
{
    return state.live;
}

const char *progress_duration(double seconds, char *buf, size_t n)
{
    if (!(seconds < SECONDS_MAX)) {
        snprintf(buf, n, "years");
        return buf;
    }
    int64_t s = (int64_t)(MAX(seconds, 0) + 0.5);
    if (s >= 3600)
        snprintf(buf, n, "%" PRId64 " h %02" PRId64 " min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(buf, n, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else
        snprintf(buf, n, "%" PRId64 " s", s);
    return buf;
}

static size_t terminal_columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1)
        return w.ws_col;
    return 80;
}

/* A NaN without the sign that some processors give it. */
static double shown(double x)
{
    return isnan(x) ? (double)NAN : x;
}

static void format(const struct progress_step *p, char *line, size_t n)
{
    char rate[32], eta[32], ckpt[48] = "";
    text_count(p->tokens_per_s, rate, sizeof(rate));
    progress_duration(p->eta_s, eta, sizeof(eta));
    if (p->next_ckpt_step >= 0)
        snprintf(ckpt, sizeof(ckpt), "  checkpoint at %" PRId64, p->next_ckpt_step);
    snprintf(line, n,
             "step %" PRId64 "/%" PRId64
             "  loss %.4f  norm %.3f  lr %.2e  %s tokens/s  "
             "MFU %.1f %%  %s left%s",
             p->step, p->steps, shown(p->loss), shown(p->grad_norm), p->lr, rate,
             100.0 * p->mfu, eta, ckpt);
}

/* The redrawn line: what a glance wants comes first and fits 80 columns; a narrower
 * terminal cuts the rest. */
static void format_live(const struct progress_step *p, char *line, size_t n)
{
    char rate[32], eta[32], ckpt[48] = "";
    text_count(p->tokens_per_s, rate, sizeof(rate));
    progress_duration(p->eta_s, eta, sizeof(eta));
    if (p->next_ckpt_step >= 0)
        snprintf(ckpt, sizeof(ckpt), " ckpt %" PRId64, p->next_ckpt_step);
    snprintf(line, n,
             "%" PRId64 "/%" PRId64
             " loss %.4f %s tok/s MFU %.0f %% ETA %s%s norm %.3f "
             "lr %.2e",
             p->step, p->steps, shown(p->loss), rate, 100.0 * p->mfu, eta, ckpt,
             shown(p->grad_norm), p->lr);
}

void progress_show(const struct progress_step *p)
{
    if (state.quiet)
        return;
    if (!state.live) {
        char line[LINE_BYTES];
        format(p, line, sizeof(line));
        log_info("%s", line);
        return;
    }
    erase();
    format_live(p, state.line, sizeof(state.line));
    size_t columns = terminal_columns();
    if (strlen(state.line) >= columns)
        state.line[MIN(columns - 1, sizeof(state.line) - 1)] = '\0';
    state.drawn = true;
    redraw();
}
