#include "io/text_source.h"

#include <string.h>

#include "core/arena.h"
#include "core/hash.h"
#include "core/str.h"
#include "io/file.h"
#include "io/json.h"
#include "io/zstd_stream.h"

#define SNIFF_BYTES    ((size_t)4 << 10)
#define PIECE_BYTES    ((size_t)16 << 10)
#define IDENTITY_BYTES ((size_t)1 << 20)
#define LINE_BYTES     ((size_t)256 << 10) /* how much of a JSONL file is read at once */
#define LINE_BYTES_MAX ((size_t)1 << 30)

struct text_source {
    struct arena arena; /* paths */
    const char *path;
    const struct tokenizer *tokenizer;
    struct text_counts counts;
    /* Document d has the bytes text[begin[d]-d .. begin[d+1]-d-1) of the texts joined
     * together, and one token more; begin[documents] is the number of tokens. */
    int64_t *begin;
    int64_t begin_cap;
    const char **files; /* of document d; NULL when all is in `held` */
    struct str held;
};

static void add_document(struct text_source *s, int64_t bytes)
{
    int64_t n = s->counts.documents;
    if (n + 2 > s->begin_cap) {
        s->begin_cap = MAX(2 * s->begin_cap, 64);
        s->begin = mem_realloc(s->begin, (size_t)s->begin_cap * sizeof(*s->begin));
    }
    s->counts.tokens += bytes + 1;
    s->counts.documents++;
    s->begin[0] = 0;
    s->begin[n + 1] = s->counts.tokens;
}

static enum status sniff(const char *path, bool *binary, struct diag *diag)
{
    char head[SNIFF_BYTES];
    size_t got = 0;
    int fd = -1;
    TRY(file_open_read(path, &fd, diag));
    enum status st = file_read(fd, path, head, sizeof(head), &got, diag);
    file_close_read(fd);
    if (st == ST_OK)
        *binary = memchr(head, '\0', got) != NULL;
    return st;
}

static enum status open_file(struct text_source *s, struct diag *diag)
{
    bool binary = false;
    int64_t bytes = 0;
    TRY(sniff(s->path, &binary, diag));
    if (binary) {
        enum status st = diag_set(diag, ST_DATA,
                                  "not a text file (%s): got NUL bytes near its begin, "
                                  "wanted text",
                                  s->path);
        if (zstd_stream_is_name(s->path))
            diag_hint(diag,
                      "compressed JSON lines are recognised by a name that ends in "
                      ".jsonl.zst");
        return st;
    }
    TRY(file_size(s->path, &bytes, diag));
    s->files = arena_array(&s->arena, const char *, 1);
    s->files[0] = s->path;
    if (bytes == 0)
        s->counts.skipped_empty++;
    else
        add_document(s, bytes);
    return ST_OK;
}

static enum status open_folder(struct text_source *s, struct diag *diag)
{
    struct file_list list;
    TRY(file_list_tree(&s->arena, s->path, true, &list, diag));
    s->counts.skipped_hidden = list.n_hidden;
    s->counts.skipped_other = list.n_other;
    s->files = arena_array(&s->arena, const char *, list.n);
    for (int64_t i = 0; i < list.n; i++) {
        bool binary = false;
        TRY(sniff(list.data[i].path, &binary, diag));
        if (binary) {
            s->counts.skipped_binary++;
        } else if (list.data[i].bytes == 0) {
            s->counts.skipped_empty++;
        } else {
            s->files[s->counts.documents] = list.data[i].path;
            add_document(s, list.data[i].bytes);
        }
    }
    return ST_OK;
}

/* One JSONL file being read: lines are put together from pieces of the stream. */
struct line_reader {
    struct text_source *s;
    const char *text_field;
    struct str line;
    int64_t line_number;
    struct diag *diag;
};

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    }
    return true;
}

static enum status take_document(struct line_reader *r, const struct json *v)
{
    struct text_source *s = r->s;
    if (v->type != JSON_OBJECT)
        return diag_set(r->diag, ST_DATA,
                        "malformed JSON line (%s:%lld): got %s, wanted an object",
                        s->path, (long long)r->line_number, json_type_name(v->type));
    const struct json *text = json_find(v, r->text_field);
    if (!text || text->type != JSON_STRING) {
        enum status st = diag_set(
                r->diag, ST_DATA,
                "no text in JSON line (%s:%lld): got %s under key '%s', wanted a string",
                s->path, (long long)r->line_number,
                text ? json_type_name(text->type) : "nothing", r->text_field);
        if (v->n_items > 0 && !text)
            diag_hint(r->diag,
                      "data.text_field names the key; the line's first is '%.64s'",
                      v->items[0].key);
        return st;
    }
    if (text->n_text == 0) {
        s->counts.skipped_empty++;
        return ST_OK;
    }
    str_add_n(&s->held, text->text, text->n_text);
    add_document(s, (int64_t)text->n_text);
    return ST_OK;
}

static enum status take_line(struct line_reader *r, const char *line, size_t n)
{
    r->line_number++;
    if (r->line_number == 1 && n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        n -= 3;
    }
    if (is_blank(line, n))
        return ST_OK;
    struct arena a = {0};
    struct json *v = NULL;
    enum status st = json_parse_lines(&a, line, n, r->s->path, r->line_number,
                                      JSON_ANY_BYTES, &v, r->diag);
    if (st == ST_OK)
        st = take_document(r, v);
    arena_release(&a);
    return st;
}

/* Takes the lines that end in this piece; the rest waits in r->line. */
static enum status take_piece(struct line_reader *r, const char *piece, size_t n)
{
    const char *end = piece + n;
    while (piece < end) {
        const char *nl = memchr(piece, '\n', (size_t)(end - piece));
        size_t len = (size_t)((nl ? nl : end) - piece);
        if (r->line.n + len > LINE_BYTES_MAX)
            return diag_set(r->diag, ST_DATA,
                            "JSON line is too long (%s:%lld): got more than %zu bytes, "
                            "wanted at most that",
                            r->s->path, (long long)r->line_number + 1, LINE_BYTES_MAX);
        if (!nl || r->line.n > 0)
            str_add_n(&r->line, piece, len);
        if (!nl)
            return ST_OK;
        bool joined = r->line.n > 0;
        TRY(take_line(r, joined ? r->line.s : piece, joined ? r->line.n : len));
        str_clear(&r->line);
        piece = nl + 1;
    }
    return ST_OK;
}

static enum status open_json_lines(struct text_source *s, const char *text_field,
                                   struct diag *diag)
{
    struct zstd_stream *z = NULL;
    TRY(zstd_stream_open(s->path, &z, diag));
    struct line_reader r = {.s = s, .text_field = text_field, .diag = diag};
    char *piece = mem_alloc(LINE_BYTES);
    enum status st = ST_OK;
    size_t got = 0;
    do {
        TRY_GOTO(zstd_stream_read(z, piece, LINE_BYTES, &got, diag), done);
        TRY_GOTO(take_piece(&r, piece, got), done);
    } while (got > 0);
    if (r.line.n > 0)
        st = take_line(&r, r.line.s, r.line.n);
done:
    mem_free(piece);
    str_free(&r.line);
    zstd_stream_close(z);
    return st;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static enum status open_any(struct text_source *s, const struct text_options *options,
                            struct diag *diag)
{
    if (file_is_folder(s->path))
        return open_folder(s, diag);
    if (ends_with(s->path, ".jsonl") || ends_with(s->path, ".jsonl.zst"))
        return open_json_lines(s, options->text_field, diag);
    return open_file(s, diag);
}

enum status text_source_open(const char *path, const struct text_options *options,
                             struct text_source **out, struct diag *diag)
{
    if (!options->tokenizer->token_per_byte)
        return diag_set(
                diag, ST_UNAVAILABLE,
                "text cannot be read with this tokenizer (%s): got '%s', wanted "
                "one with a token per byte",
                path, options->tokenizer->name);
    struct text_source *s = mem_alloc(sizeof(*s));
    s->path = arena_strdup(&s->arena, path);
    s->tokenizer = options->tokenizer;
    enum status st = open_any(s, options, diag);
    if (st != ST_OK) {
        text_source_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void text_source_close(struct text_source *s)
{
    if (!s)
        return;
    mem_free(s->begin);
    str_free(&s->held);
    arena_release(&s->arena);
    mem_free(s);
}

const char *text_source_path(const struct text_source *s)
{
    return s->path;
}

struct text_counts text_source_counts(const struct text_source *s)
{
    return s->counts;
}

int64_t text_source_document_begin(const struct text_source *s, int64_t d)
{
    ASSERT(d >= 0 && d <= s->counts.documents);
    return s->begin ? s->begin[d] : 0;
}

int64_t text_source_document_at(const struct text_source *s, int64_t offset)
{
    ASSERT(offset >= 0 && offset < s->counts.tokens);
    int64_t low = 0,
            high = s->counts.documents; /* begin[low] <= offset < begin[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (s->begin[middle] <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Opens document d's file and makes sure that it is still as long as it was. */
static enum status open_document(const struct text_source *s, int64_t d, int *fd,
                                 struct diag *diag)
{
    int64_t want = s->begin[d + 1] - s->begin[d] - 1, now = 0;
    TRY(file_size(s->files[d], &now, diag));
    if (now != want)
        return diag_set(
                diag, ST_DATA,
                "file changed while it is trained on (%s): got %lld bytes, wanted "
                "%lld as at the start",
                s->files[d], (long long)now, (long long)want);
    return file_open_read(s->files[d], fd, diag);
}

/* Receives a document's bytes piece by piece. */
typedef void (*piece_fn)(void *arg, const void *bytes, size_t n);

/* Hands bytes first..first+n-1 of document d to `take` in pieces of piece_bytes. */
static enum status each_piece(const struct text_source *s, int64_t d, int64_t first,
                              int64_t n, void *buf, size_t piece_bytes, piece_fn take,
                              void *arg, struct diag *diag)
{
    int fd = -1;
    enum status st = ST_OK;
    if (s->files)
        TRY(open_document(s, d, &fd, diag));
    for (int64_t at = first; at < first + n && st == ST_OK;) {
        size_t part = (size_t)MIN((int64_t)piece_bytes, first + n - at);
        const void *bytes = buf;
        if (s->files)
            st = file_read_at(fd, s->files[d], at, buf, part, diag);
        else
            bytes = s->held.s + (s->begin[d] - d) + at;
        if (st == ST_OK)
            take(arg, bytes, part);
        at += (int64_t)part;
    }
    if (s->files)
        file_close_read(fd);
    return st;
}

struct encoder {
    const struct tokenizer *tokenizer;
    uint32_t *out;
};

static void encode_piece(void *arg, const void *bytes, size_t n)
{
    struct encoder *e = arg;
    e->out += e->tokenizer->encode(e->tokenizer, bytes, (int64_t)n, e->out);
}

enum status text_source_read(const struct text_source *s, int64_t offset, int64_t n,
                             uint32_t *out, struct diag *diag)
{
    ASSERT(offset >= 0 && n >= 0 && n <= s->counts.tokens - offset);
    if (n == 0)
        return ST_OK;
    char buf[PIECE_BYTES];
    struct encoder e = {s->tokenizer, out};
    int64_t end = offset + n;
    for (int64_t d = text_source_document_at(s, offset); offset < end; d++) {
        int64_t eod = s->begin[d + 1] - 1;
        int64_t text = MIN(end, eod) - offset;
        if (text > 0)
            TRY(each_piece(s, d, offset - s->begin[d], text, buf, sizeof(buf),
                           encode_piece, &e, diag));
        offset += MAX(text, 0);
        if (offset < end) {
            *e.out++ = s->tokenizer->eod;
            offset++;
        }
    }
    return ST_OK;
}

static void hash_piece(void *arg, const void *bytes, size_t n)
{
    hash_chain_add(arg, bytes, n);
}

enum status text_source_identity(const struct text_source *s, uint64_t *out,
                                 struct diag *diag)
{
    struct hash_chain h = {0};
    char *buf = mem_alloc(IDENTITY_BYTES);
    enum status st = ST_OK;
    for (int64_t d = 0; d < s->counts.documents && st == ST_OK; d++) {
        int64_t bytes = s->begin[d + 1] - s->begin[d] - 1;
        hash_chain_add(&h, &bytes, sizeof(bytes));
        st = each_piece(s, d, 0, bytes, buf, IDENTITY_BYTES, hash_piece, &h, diag);
    }
    mem_free(buf);
    *out = h.value;
    return st;
}
