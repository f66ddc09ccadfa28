#include "io/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "core/hash.h"
#include "core/str.h"
#include "core/vec.h"

#define SLOTS_MIN     256
#define KEY_BYTES_MAX 256 /* bounds the memory that paths of nested keys take */

/* A mapping or sequence that is open: which item announced it, how long the path to it
 * is, and how many entries it has so far. */
struct level {
    bool is_sequence;
    uint32_t item; /* NONE_ID for the file's own mapping */
    size_t path_bytes;
    int64_t n;
    bool has_key; /* a mapping whose next event is a value */
};

struct reader {
    yaml_parser_t parser;
    const char *name;
    const char *text;
    size_t text_bytes;
    struct yaml_doc *doc;
    uint32_t cap;
    struct str path;
    struct level levels[YAML_DEPTH_MAX];
    int depth;
    int n_documents;
    uint32_t *slots; /* items by hash of their key; NONE_ID for free */
    uint32_t n_slots;
    struct diag *diag;
};

static int line_of(yaml_mark_t mark)
{
    return (int)mark.line + 1;
}

/* True where the line (from 1) is indented with a tab. */
static bool line_has_tab(const struct reader *r, int line)
{
    const char *p = r->text, *end = r->text + r->text_bytes;
    for (int i = 1; i < line && p < end; i++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        p = newline ? newline + 1 : end;
    }
    for (; p < end && (*p == ' ' || *p == '\t'); p++) {
        if (*p == '\t')
            return true;
    }
    return false;
}

static enum status syntax_error(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "unreadable";
    if (p->error == YAML_READER_ERROR)
        return diag_set(r->diag, ST_CONFIG, "not YAML (%s, byte %zu): %s", r->name,
                        p->problem_offset, problem);
    if (p->error == YAML_MEMORY_ERROR)
        return diag_set(r->diag, ST_NO_FIT, "out of memory (YAML reader): %s", r->name);
    int line = line_of(p->problem_mark);
    struct str text = {0};
    str_add(&text, problem);
    if (p->context)
        str_printf(&text, " %s", p->context);
    if (p->context && line_of(p->context_mark) != line)
        str_printf(&text, " that begins on line %d", line_of(p->context_mark));
    diag_set(r->diag, ST_CONFIG, "not YAML (%s:%d): %s", r->name, line, str_get(&text));
    str_free(&text);
    if (line_has_tab(r, line))
        diag_hint(r->diag, "indent with spaces, not with tabs");
    return ST_CONFIG;
}

static enum status refuse(const struct reader *r, const yaml_event_t *e,
                          const char *what)
{
    return diag_set(r->diag, ST_CONFIG,
                    "%s (%s:%d): got one, wanted plain keys and values", what, r->name,
                    line_of(e->start_mark));
}

/* ---- items ---- */

static uint32_t *slot_of(const struct reader *r, const char *key)
{
    uint32_t i = (uint32_t)hash64_text(key) & (r->n_slots - 1);
    while (r->slots[i] != NONE_ID && strcmp(r->doc->items[r->slots[i]].key, key) != 0)
        i = (i + 1) & (r->n_slots - 1);
    return &r->slots[i];
}

static void grow_slots(struct reader *r)
{
    r->n_slots = r->n_slots ? 2 * r->n_slots : SLOTS_MIN;
    r->slots = mem_realloc(r->slots, r->n_slots * sizeof(*r->slots));
    memset(r->slots, 0xff, r->n_slots * sizeof(*r->slots));
    for (uint32_t i = 0; i < r->doc->n; i++)
        *slot_of(r, r->doc->items[i].key) = i;
}

static enum status add_item(struct reader *r, struct yaml_item item)
{
    struct yaml_doc *doc = r->doc;
    if (2 * (doc->n + 1) > r->n_slots)
        grow_slots(r);
    item.key = arena_strndup(&doc->arena, str_get(&r->path), r->path.n);
    uint32_t *slot = slot_of(r, item.key);
    if (*slot != NONE_ID) {
        diag_set(r->diag, ST_CONFIG,
                 "duplicate key (%s:%d): got '%s' again, wanted one; the first is on "
                 "line %d",
                 r->name, item.line, item.key, doc->items[*slot].line);
        return ST_CONFIG;
    }
    *slot = doc->n;
    if (doc->n == r->cap)
        doc->items = vec_grow(doc->items, &r->cap, sizeof(*doc->items));
    doc->items[doc->n++] = item;
    return ST_OK;
}

static void path_cut(struct reader *r, size_t bytes)
{
    r->path.n = bytes;
    if (r->path.s)
        r->path.s[bytes] = '\0';
}

/* Puts the index of a sequence's next element at the path's end. */
static void begin_value(struct reader *r)
{
    if (r->depth == 0)
        return;
    struct level *l = &r->levels[r->depth - 1];
    if (l->is_sequence)
        str_printf(&r->path, "[%lld]", (long long)l->n);
    l->n++;
}

static void end_value(struct reader *r)
{
    if (r->depth == 0)
        return;
    struct level *l = &r->levels[r->depth - 1];
    l->has_key = false;
    path_cut(r, l->path_bytes);
}

/* ---- events ---- */

static enum status take_key(struct reader *r, const yaml_event_t *e)
{
    struct level *l = &r->levels[r->depth - 1];
    const char *text = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    if (strcmp(text, "<<") == 0)
        return refuse(r, e, "merge key");
    if (n == 0 || n > KEY_BYTES_MAX)
        return diag_set(r->diag, ST_CONFIG,
                        "bad key (%s:%d): got %zu characters, wanted 1 to %d", r->name,
                        line_of(e->start_mark), n, KEY_BYTES_MAX);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] <= ' ' || strchr("[]\x7f", text[i]))
            return diag_set(
                    r->diag, ST_CONFIG,
                    "bad key (%s:%d): got a character that no key has (byte %zu), "
                    "wanted letters, digits, '_' and '.'",
                    r->name, line_of(e->start_mark), i + 1);
    }
    if (r->path.n)
        str_addc(&r->path, '.');
    str_add_n(&r->path, text, n);
    l->has_key = true;
    return ST_OK;
}

static bool is_null(const yaml_event_t *e)
{
    const char *text = (const char *)e->data.scalar.value;
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static enum status take_scalar(struct reader *r, const yaml_event_t *e)
{
    if (e->data.scalar.anchor)
        return refuse(r, e, "anchor");
    if (e->data.scalar.tag)
        return refuse(r, e, "tag");
    const char *text = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    bool is_key = r->depth && !r->levels[r->depth - 1].is_sequence &&
                  !r->levels[r->depth - 1].has_key;
    if (is_key)
        return take_key(r, e);
    if (memchr(text, '\0', n))
        return diag_set(r->diag, ST_CONFIG,
                        "bad value (%s:%d): got a zero byte, wanted text", r->name,
                        line_of(e->start_mark));
    begin_value(r);
    struct yaml_item item = {.kind = YAML_NULL, .line = line_of(e->start_mark)};
    if (!is_null(e)) {
        item.kind = YAML_SCALAR;
        item.value = arena_strndup(&r->doc->arena, text, n);
    }
    TRY(add_item(r, item));
    end_value(r);
    return ST_OK;
}

static enum status open_level(struct reader *r, const yaml_event_t *e)
{
    bool is_sequence = e->type == YAML_SEQUENCE_START_EVENT;
    if (is_sequence ? e->data.sequence_start.anchor : e->data.mapping_start.anchor)
        return refuse(r, e, "anchor");
    if (is_sequence ? e->data.sequence_start.tag : e->data.mapping_start.tag)
        return refuse(r, e, "tag");
    if (r->depth && !r->levels[r->depth - 1].is_sequence &&
        !r->levels[r->depth - 1].has_key)
        return refuse(r, e, "list or mapping as a key");
    if (r->depth == YAML_DEPTH_MAX)
        return diag_set(
                r->diag, ST_CONFIG,
                "nested too deeply (%s:%d): got more than %d levels, wanted fewer",
                r->name, line_of(e->start_mark), YAML_DEPTH_MAX);
    begin_value(r);
    struct level level = {.is_sequence = is_sequence, .item = NONE_ID};
    level.path_bytes = r->path.n;
    if (r->depth || is_sequence) {
        level.item = r->doc->n;
        TRY(add_item(r, (struct yaml_item){.kind = is_sequence ? YAML_SEQUENCE
                                                               : YAML_MAPPING,
                                           .line = line_of(e->start_mark)}));
    }
    r->levels[r->depth++] = level;
    return ST_OK;
}

static enum status close_level(struct reader *r)
{
    const struct level *l = &r->levels[--r->depth];
    if (l->item != NONE_ID)
        r->doc->items[l->item].n = l->n;
    end_value(r);
    return ST_OK;
}

static enum status take_event(struct reader *r, const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++r->n_documents > 1)
            return diag_set(r->diag, ST_CONFIG,
                            "several documents (%s:%d): got a second, wanted one",
                            r->name, line_of(e->start_mark));
        return ST_OK;
    case YAML_ALIAS_EVENT: return refuse(r, e, "alias");
    case YAML_SCALAR_EVENT: return take_scalar(r, e);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT: return open_level(r, e);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: return close_level(r);
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT: break;
    }
    return ST_OK;
}

static enum status read_events(struct reader *r)
{
    for (bool done = false; !done;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&r->parser, &event))
            return syntax_error(r);
        enum status st = take_event(r, &event);
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        TRY(st);
    }
    return ST_OK;
}

enum status yaml_doc_read_text(const char *text, size_t n, const char *name,
                               struct yaml_doc *doc, struct diag *diag)
{
    struct reader r = {
            .name = name, .text = text, .text_bytes = n, .doc = doc, .diag = diag};
    *doc = (struct yaml_doc){0};
    if (n > (size_t)YAML_BYTES_MAX)
        return diag_set(diag, ST_CONFIG,
                        "too large for a configuration (%s): got more than %lld bytes, "
                        "wanted at most that",
                        name, (long long)YAML_BYTES_MAX);
    if (!yaml_parser_initialize(&r.parser))
        return diag_set(diag, ST_NO_FIT, "out of memory (YAML reader): %s", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    enum status st = read_events(&r);
    yaml_parser_delete(&r.parser);
    str_free(&r.path);
    mem_free(r.slots);
    if (st != ST_OK)
        yaml_doc_free(doc);
    return st;
}

/* Reads until the end, but not more than one byte above the limit. */
static enum status read_limited(int fd, const char *path, struct str *out,
                                struct diag *diag)
{
    char buf[16384];
    while (out->n <= (size_t)YAML_BYTES_MAX) {
        ssize_t n = read(fd, buf, sizeof(buf));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return diag_set(diag, ST_IO, "cannot read (%s): system says %s", path,
                            strerror(errno));
        if (n == 0)
            return ST_OK;
        str_add_n(out, buf, (size_t)n);
    }
    return ST_OK;
}

enum status yaml_doc_read_file(const char *path, struct yaml_doc *doc,
                               struct diag *diag)
{
    *doc = (struct yaml_doc){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return diag_set(diag,
                        errno == ENOENT || errno == ENOTDIR ? ST_NOT_FOUND : ST_IO,
                        "cannot open (%s): system says %s", path, strerror(errno));
    struct stat info = {0};
    struct str text = {0};
    enum status st = ST_OK;
    if (fstat(fd, &info) != 0)
        st = diag_set(diag, ST_IO, "cannot read (%s): system says %s", path,
                      strerror(errno));
    else if (S_ISDIR(info.st_mode))
        st = diag_set(diag, ST_CONFIG, "not a file (%s): got a folder, wanted YAML",
                      path);
    else if (info.st_size > YAML_BYTES_MAX)
        st = diag_set(
                diag, ST_CONFIG,
                "too large for a configuration (%s): got %lld bytes, wanted at most "
                "%lld",
                path, (long long)info.st_size, (long long)YAML_BYTES_MAX);
    if (st == ST_OK)
        st = read_limited(fd, path, &text, diag);
    close(fd);
    if (st == ST_OK)
        st = yaml_doc_read_text(str_get(&text), text.n, path, doc, diag);
    str_free(&text);
    return st;
}

void yaml_doc_free(struct yaml_doc *doc)
{
    mem_free(doc->items);
    arena_release(&doc->arena);
    *doc = (struct yaml_doc){0};
}
