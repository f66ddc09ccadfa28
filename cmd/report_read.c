#include "cmd/report_read.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/file.h"

#define METRICS_BYTES_MAX ((int64_t)4 << 30)

/* Lines that are kept, parsed, until the report is written. */
static bool is_kept(const char *kind, const char *event)
{
    return strcmp(kind, "summary") == 0 || strcmp(event, "start") == 0;
}

static double number(const struct json *line, const char *key)
{
    const struct json *v = json_find(line, key);
    return v && v->type == JSON_NUMBER ? v->f64 : NAN;
}

/* 0 for what is no whole number, and for what no run writes: counts below it. */
static int64_t whole(const struct json *line, const char *key)
{
    const struct json *v = json_find(line, key);
    return v && v->type == JSON_NUMBER && v->is_i64 ? MAX(v->i64, 0) : 0;
}

static const char *text(const struct json *line, const char *key)
{
    const struct json *v = json_find(line, key);
    return v && v->type == JSON_STRING ? v->text : "";
}

static void add_point(struct report_data *d, enum report_curve curve, int64_t step,
                      double y)
{
    vec_push(&d->curve[curve], ((struct svg_point){(double)step, y}));
}

/* A look has a line per tensor: of those that share a step one figure stays. */
static void join_point(struct report_data *d, enum report_curve curve, int64_t step,
                       double y, bool largest)
{
    report_points *p = &d->curve[curve];
    if (p->n == 0 || p->data[p->n - 1].x < (double)step) {
        add_point(d, curve, step, y);
        return;
    }
    double *last = &p->data[p->n - 1].y;
    *last = largest ? fmax(*last, y) : y;
}

/* A new attempt takes back what the one before had beyond the step it begins at. */
static void begin_attempt(struct report_data *d, int64_t step)
{
    vec_push(&d->attempts, (double)step);
    for (int c = 0; c < CURVE_COUNT; c++) {
        report_points *p = &d->curve[c];
        while (p->n > 0 && p->data[p->n - 1].x > (double)step)
            p->n--;
    }
}

static void take_train(struct report_data *d, const struct json *line, int64_t step)
{
    static const struct {
        enum report_curve curve;
        const char *key;
    } keys[] = {
            {CURVE_LOSS, "loss"},           {CURVE_MAX_TOKEN_LOSS, "max_token_loss"},
            {CURVE_GRAD_NORM, "grad_norm"}, {CURVE_LR, "lr"},
            {CURVE_SPEED, "tokens_per_s"},  {CURVE_MFU, "mfu"}};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        add_point(d, keys[i].curve, step, number(line, keys[i].key));
}

static void take_monitor(struct report_data *d, const struct json *line, int64_t step)
{
    const char *tensor = text(line, "tensor");
    if (strcmp(tensor, "residual") == 0)
        join_point(d, CURVE_RESIDUAL, step, number(line, "rms"), false);
    else if (strcmp(tensor, "attn_lse") == 0)
        join_point(d, CURVE_ATTN_LSE, step, number(line, "absmax"), true);
    else if (strcmp(tensor, "logits") == 0)
        join_point(d, CURVE_LOGITS, step, number(line, "absmax"), false);
    else
        join_point(d, CURVE_UPDATE_RATIO, step, number(line, "update_ratio"), true);
}

static const char *alarm_detail(struct report_data *d, const struct json *line)
{
    char buf[512];
    snprintf(buf, sizeof(buf), "%s of %s: %.4g, before %.4g", text(line, "rule"),
             text(line, "tensor"), number(line, "value"), number(line, "before"));
    return arena_strdup(&d->arena, buf);
}

static const char *start_detail(struct report_data *d, const struct json *line)
{
    char buf[512];
    snprintf(buf, sizeof(buf), "on %s, %" PRId64 " threads, %s", text(line, "host"),
             whole(line, "threads"), text(line, "precision"));
    return arena_strdup(&d->arena, buf);
}

static void take_event(struct report_data *d, const struct json *line,
                       struct report_event e)
{
    const char *event = text(line, "event");
    if (strcmp(event, "monitor") == 0) {
        take_monitor(d, line, e.step);
        return;
    }
    e.what = arena_strdup(&d->arena, event);
    e.detail = "";
    e.alarm = strcmp(event, "alarm") == 0;
    if (e.alarm)
        e.detail = alarm_detail(d, line);
    if (text(line, "reason")[0])
        e.detail = arena_strdup(&d->arena, text(line, "reason"));
    if (strcmp(event, "start") == 0) {
        e.detail = start_detail(d, line);
        d->start = line;
    }
    d->n_skipped += strncmp(event, "update skipped", 14) == 0;
    vec_push(&d->events, e);
}

/* Notes a line's attempt, position and time. */
static void take_head(struct report_data *d, const struct json *line,
                      const struct report_event *e, bool trains)
{
    if (e->attempt > d->attempt) {
        if (d->attempt > 0)
            begin_attempt(d, trains ? e->step - 1 : e->step);
        d->elapsed_s += d->attempt_s;
        d->attempt_s = 0;
        d->attempt = e->attempt;
    }
    double elapsed = number(line, "elapsed_s");
    if (isfinite(elapsed))
        d->attempt_s = elapsed;
    d->step = e->step;
    d->tokens = whole(line, "tokens");
}

static void take_line(struct report_data *d, const struct json *line)
{
    const char *kind = text(line, "kind");
    struct report_event e = {.step = whole(line, "step"),
                             .attempt = whole(line, "attempt")};
    bool trains = strcmp(kind, "train") == 0;
    take_head(d, line, &e, trains);
    if (trains)
        take_train(d, line, e.step);
    else if (strcmp(kind, "eval") == 0)
        add_point(d, CURVE_EVAL, e.step, number(line, "loss"));
    else if (strcmp(kind, "event") == 0)
        take_event(d, line, e);
    else if (strcmp(kind, "summary") == 0)
        d->summary = line;
    else if (strcmp(kind, "ckpt") == 0)
        vec_push(&d->ckpts,
                 ((struct report_ckpt){e.step, e.attempt, whole(line, "bytes"),
                                       number(line, "save_s"), number(line, "ratio")}));
}

/* Parses a line into an arena of its own, unless it is one that must stay. */
static enum status read_line(struct report_data *d, const char *line, size_t n,
                             const char *path, int64_t number, struct diag *diag)
{
    struct arena once = {0};
    struct json *v;
    enum status st =
            json_parse_lines(&once, line, n, path, number, JSON_STRICT, &v, diag);
    if (st == ST_OK && is_kept(text(v, "kind"), text(v, "event")))
        st = json_parse_lines(&d->arena, line, n, path, number, JSON_STRICT, &v, diag);
    if (st == ST_OK)
        take_line(d, v);
    arena_release(&once);
    return st;
}

static enum status read_lines(struct report_data *d, const struct str *all,
                              const char *path, struct diag *diag)
{
    const char *at = str_get(all), *end = at + all->n;
    for (int64_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop)
            return ST_OK;
        TRY(read_line(d, at, (size_t)(stop - at), path, line, diag));
        at = stop + 1;
    }
    return ST_OK;
}

enum status report_read(const char *path, struct report_data *out, struct diag *diag)
{
    struct str all = {0};
    memset(out, 0, sizeof(*out));
    enum status st = file_read_all(path, METRICS_BYTES_MAX, &all, diag);
    if (st == ST_OK)
        st = read_lines(out, &all, path, diag);
    str_free(&all);
    out->elapsed_s += out->attempt_s;
    if (st != ST_OK)
        report_data_free(out);
    return st;
}

void report_data_free(struct report_data *d)
{
    for (int c = 0; c < CURVE_COUNT; c++)
        vec_free(&d->curve[c]);
    vec_free(&d->events);
    vec_free(&d->ckpts);
    vec_free(&d->attempts);
    arena_release(&d->arena);
    memset(d, 0, sizeof(*d));
}
