#include "io/prometheus.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"

/* Escapes backslash and line feed, and in label values the quote. */
static void add_escaped(struct str *out, const char *text, bool quoted)
{
    for (; *text; text++) {
        if (*text == '\n') {
            str_add(out, "\\n");
            continue;
        }
        if (*text == '\\' || (quoted && *text == '"'))
            str_addc(out, '\\');
        str_addc(out, *text);
    }
}

static void add_value(struct str *out, double value)
{
    if (isnan(value))
        str_add(out, "NaN");
    else if (isinf(value))
        str_add(out, value > 0 ? "+Inf" : "-Inf");
    else
        str_printf(out, "%.17g", value);
}

static void add_head(struct str *out, const char *name, const char *type,
                     const char *help)
{
    str_printf(out, "# HELP %s ", name);
    add_escaped(out, help, false);
    str_printf(out, "\n# TYPE %s %s\n", name, type);
}

void prometheus_metric(struct str *out, const char *name, enum prometheus_type type,
                       const char *help)
{
    add_head(out, name, type == PROMETHEUS_COUNTER ? "counter" : "gauge", help);
}

void prometheus_sample(struct str *out, const char *name, const char *label,
                       const char *label_value, double value)
{
    str_add(out, name);
    if (label) {
        str_printf(out, "{%s=\"", label);
        add_escaped(out, label_value, true);
        str_add(out, "\"}");
    }
    str_addc(out, ' ');
    add_value(out, value);
    str_addc(out, '\n');
}

void prometheus_observe(struct prometheus_histogram *h, double value)
{
    ASSERT(h->n_bounds < (int)ARRAY_LEN(h->counts));
    int i = 0;
    while (i < h->n_bounds && !(value <= h->bounds[i]))
        i++;
    h->counts[i]++;
    h->sum += value;
}

void prometheus_add_histogram(struct str *out, const char *name, const char *help,
                              const struct prometheus_histogram *h)
{
    add_head(out, name, "histogram", help);
    int64_t n = 0;
    for (int i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        str_printf(out, "%s_bucket{le=\"%g\"} %" PRId64 "\n", name, h->bounds[i], n);
    }
    n += h->counts[h->n_bounds];
    str_printf(out, "%s_bucket{le=\"+Inf\"} %" PRId64 "\n", name, n);
    str_printf(out, "%s_sum ", name);
    add_value(out, h->sum);
    str_printf(out, "\n%s_count %" PRId64 "\n", name, n);
}

static enum status write_text(const char *path, const struct str *text,
                              struct diag *diag)
{
    int fd;
    TRY(file_open_write(path, &fd, diag));
    enum status st = file_write(fd, path, str_get(text), text->n, diag);
    if (st != ST_OK) {
        file_close_read(fd);
        return st;
    }
    return file_close(fd, path, diag);
}

enum status prometheus_write(const char *path, const struct str *text,
                             struct diag *diag)
{
    struct str tmp = {0};
    str_printf(&tmp, "%s.tmp", path);
    enum status st = write_text(str_get(&tmp), text, diag);
    if (st == ST_OK && rename(str_get(&tmp), path) != 0)
        st = diag_set(diag, ST_IO, "cannot replace (%s): %s", path, strerror(errno));
    if (st != ST_OK)
        unlink(str_get(&tmp));
    str_free(&tmp);
    return st;
}
