#include "io/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"

#define LINE_BYTES_MAX 65536

struct metrics {
    char *path;
    int fd;
    int64_t attempt;
    struct str line;
    struct arena arena;
};

/* Reads the end of an earlier file: where its last whole line ends, and its attempt. */
static enum status read_tail(struct metrics *m, int64_t bytes, int64_t *end,
                             struct diag *diag)
{
    int64_t from = MAX(bytes - LINE_BYTES_MAX, 0);
    size_t n = (size_t)(bytes - from);
    char *text = arena_alloc(&m->arena, n + 1);
    int fd;
    TRY(file_open_read(m->path, &fd, diag));
    enum status st = file_read_at(fd, m->path, from, text, n, diag);
    file_close_read(fd);
    TRY(st);
    while (n > 0 && text[n - 1] != '\n')
        n--;
    *end = n > 0 ? from + (int64_t)n : from == 0 ? 0 : bytes;
    if (n == 0)
        return ST_OK;
    size_t begin = n - 1;
    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    struct json *line;
    struct diag unused = {0};
    if (json_parse(&m->arena, text + begin, n - 1 - begin, m->path, JSON_STRICT, &line,
                   &unused) == ST_OK) {
        const struct json *attempt = json_find(line, "attempt");
        if (attempt && attempt->type == JSON_NUMBER && attempt->is_i64)
            m->attempt = attempt->i64 + 1;
    }
    return ST_OK;
}

static enum status open_at_end(struct metrics *m, struct diag *diag)
{
    TRY(file_make_folder(file_folder_of(&m->arena, m->path), diag));
    if (file_is_folder(m->path))
        return diag_set(
                diag, ST_CREATE,
                "cannot open the metrics file (%s): got a folder, wanted a file",
                m->path);
    if (file_exists(m->path)) {
        int64_t bytes, end;
        TRY(file_size(m->path, &bytes, diag));
        TRY(read_tail(m, bytes, &end, diag));
        if (end < bytes && truncate(m->path, end) != 0)
            return diag_set(diag, ST_IO, "cannot cut an unfinished line (%s): %s",
                            m->path, strerror(errno));
    }
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0)
        return diag_set(diag, ST_CREATE, "cannot open the metrics file (%s): %s",
                        m->path, strerror(errno));
    return ST_OK;
}

enum status metrics_open(const char *path, struct metrics **out, struct diag *diag)
{
    struct metrics *m = mem_alloc(sizeof(*m));
    m->path = arena_strdup(&m->arena, path);
    m->fd = -1;
    m->attempt = 1;
    enum status st = open_at_end(m, diag);
    if (st != ST_OK) {
        metrics_close(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    if (m->fd >= 0)
        file_close_read(m->fd);
    str_free(&m->line);
    arena_release(&m->arena);
    mem_free(m);
}

int64_t metrics_attempt(const struct metrics *m)
{
    return m->attempt;
}

static void add_field(struct json_writer *w, const struct metrics_field *f)
{
    json_key(w, f->name);
    if (f->type == METRIC_F64)
        json_f64(w, f->f64);
    else if (f->type == METRIC_I64)
        json_i64(w, f->i64);
    else
        json_string(w, f->text);
}

static void add_nonfinite(struct json_writer *w, const struct metrics_field *fields,
                          size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (fields[i].type != METRIC_F64 || isfinite(fields[i].f64))
            continue;
        if (!any) {
            json_key(w, "nonfinite");
            json_begin_array(w);
        }
        json_string(w, fields[i].name);
        any = true;
    }
    if (any)
        json_end_array(w);
}

/* A line that does not fit on the disk leaves no part of itself for the next to run into. */
static enum status append(struct metrics *m, struct diag *diag)
{
    off_t end = lseek(m->fd, 0, SEEK_END);
    enum status st = file_write(m->fd, m->path, m->line.s, m->line.n, diag);
    if (st != ST_OK && end >= 0 && ftruncate(m->fd, end) != 0)
        diag_context(diag, "part of a line stays");
    return st;
}

enum status metrics_write(struct metrics *m, const struct metrics_head *head,
                          const struct metrics_field *fields, size_t n_fields,
                          struct diag *diag)
{
    str_clear(&m->line);
    struct json_writer w = {.out = &m->line};
    json_begin_object(&w);
    add_field(&w, &METRICS_TEXT("kind", head->kind));
    add_field(&w, &METRICS_I64("step", head->step));
    add_field(&w, &METRICS_I64("tokens", head->tokens));
    add_field(&w, &METRICS_F64("elapsed_s", head->elapsed_s));
    add_field(&w, &METRICS_I64("attempt", m->attempt));
    for (size_t i = 0; i < n_fields; i++)
        add_field(&w, &fields[i]);
    add_nonfinite(&w, fields, n_fields);
    json_end_object(&w);
    str_addc(&m->line, '\n');
    return append(m, diag);
}
