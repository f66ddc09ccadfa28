#include "io/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/vec.h"
#include "io/file.h"

#define EXACT_F64_MAX 9007199254740992.0 /* 2^53 */

struct parser {
    struct arena *a;
    const char *text;
    size_t n;
    size_t at;
    const char *where;
    int64_t first_line;
    int flags;
    int depth;
    VEC(struct json) open; /* finished values whose array or object is not closed yet */
    struct str scratch;
    struct diag *diag;
};

static enum status parse_value(struct parser *p, struct json *out);

static enum status fail(const struct parser *p, size_t at, const char *got,
                        const char *wanted)
{
    int64_t line = p->first_line;
    for (size_t i = 0; i < at; i++)
        line += p->text[i] == '\n';
    return diag_set(p->diag, ST_DATA,
                    "malformed JSON (%s:%lld, byte %zu): got %s, wanted %s", p->where,
                    (long long)line, at, got, wanted);
}

/* Says what stands at the current place. */
static enum status fail_here(const struct parser *p, const char *wanted)
{
    char got[32] = "the end";
    if (p->at < p->n) {
        unsigned char c = (unsigned char)p->text[p->at];
        if (c > 0x20 && c < 0x7f)
            snprintf(got, sizeof(got), "'%c'", c);
        else
            snprintf(got, sizeof(got), "byte 0x%02x", c);
    }
    return fail(p, p->at, got, wanted);
}

static void skip_space(struct parser *p)
{
    while (p->at < p->n && strchr(" \t\r\n", p->text[p->at]) && p->text[p->at])
        p->at++;
}

static bool take(struct parser *p, char c)
{
    if (p->at >= p->n || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

/* Length of the well-formed UTF-8 sequence at s (1 to 4), or 0 when there is none. */
static size_t utf8_length(const char *text, size_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    }
    /* Overlong forms, surrogates and what lies beyond U+10FFFF. */
    bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : len;
}

static void add_utf8(struct str *out, uint32_t c)
{
    if (c < 0x80) {
        str_addc(out, (char)c);
        return;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    str_addc(out, (char)(lead[more] | c >> (6 * more)));
    for (int i = more - 1; i >= 0; i--)
        str_addc(out, (char)(0x80 | ((c >> (6 * i)) & 0x3f)));
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum status parse_hex4(struct parser *p, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = p->at < p->n ? hex_digit(p->text[p->at]) : -1;
        if (d < 0)
            return fail_here(p, "four hexadecimal digits after \\u");
        v = v << 4 | (uint32_t)d;
        p->at++;
    }
    *out = v;
    return ST_OK;
}

/* After "\u". */
static enum status parse_unicode(struct parser *p)
{
    size_t begin = p->at - 2;
    uint32_t c = 0, low = 0;
    TRY(parse_hex4(p, &c));
    if (c >= 0xdc00 && c <= 0xdfff)
        return fail(p, begin, "the second half of a surrogate pair",
                    "the first before it");
    if (c >= 0xd800 && c <= 0xdbff) {
        if (!take(p, '\\') || !take(p, 'u'))
            return fail(p, begin, "the first half of a surrogate pair", "both halves");
        TRY(parse_hex4(p, &low));
        if (low < 0xdc00 || low > 0xdfff)
            return fail(p, begin, "the first half of a surrogate pair", "both halves");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    add_utf8(&p->scratch, c);
    return ST_OK;
}

static enum status parse_escape(struct parser *p)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (take(p, 'u'))
        return parse_unicode(p);
    const char *hit =
            p->at < p->n && p->text[p->at] ? strchr(from, p->text[p->at]) : NULL;
    if (!hit)
        return fail_here(p, "an escape (one of \"\\/bfnrtu)");
    str_addc(&p->scratch, to[hit - from]);
    p->at++;
    return ST_OK;
}

/* One or more plain characters of a string. */
static enum status parse_plain(struct parser *p)
{
    size_t begin = p->at;
    while (p->at < p->n) {
        unsigned char c = (unsigned char)p->text[p->at];
        if (c == '"' || c == '\\')
            break;
        if (c < 0x20)
            return fail_here(p, "control characters in strings as \\u escapes");
        size_t len = c < 0x80 ? 1 : utf8_length(p->text + p->at, p->n - p->at);
        if (len == 0 && !(p->flags & JSON_ANY_BYTES))
            return fail_here(p, "UTF-8");
        p->at += MAX(len, 1);
    }
    str_add_n(&p->scratch, p->text + begin, p->at - begin);
    return ST_OK;
}

/* The string at the current place, decoded into the arena. */
static enum status parse_string(struct parser *p, const char **out, size_t *n)
{
    if (!take(p, '"'))
        return fail_here(p, "a string");
    str_clear(&p->scratch);
    while (!take(p, '"')) {
        if (p->at >= p->n)
            return fail_here(p, "the closing quote of a string");
        if (take(p, '\\'))
            TRY(parse_escape(p));
        else
            TRY(parse_plain(p));
    }
    *n = p->scratch.n;
    *out = arena_strndup(p->a, str_get(&p->scratch), p->scratch.n);
    return ST_OK;
}

static bool is_digit(const struct parser *p)
{
    return p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9';
}

static enum status skip_digits(struct parser *p)
{
    if (!is_digit(p))
        return fail_here(p, "a digit");
    while (is_digit(p))
        p->at++;
    return ST_OK;
}

/* Sets i64 and is_i64 from the text of a number whose double is known. */
static void set_integer(struct json *v, bool plain_digits)
{
    if (plain_digits) {
        errno = 0;
        char *end;
        long long x = strtoll(v->text, &end, 10);
        v->is_i64 = errno == 0 && *end == '\0';
        v->i64 = v->is_i64 ? (int64_t)x : 0;
        return;
    }
    if (fabs(v->f64) <= EXACT_F64_MAX && trunc(v->f64) == v->f64) {
        v->is_i64 = true;
        v->i64 = (int64_t)v->f64;
    }
}

static enum status parse_number(struct parser *p, struct json *out)
{
    size_t begin = p->at;
    bool plain_digits = true;
    (void)take(p, '-');
    if (!take(p, '0'))
        TRY(skip_digits(p));
    else if (is_digit(p))
        return fail_here(p, "no digit after a leading zero");
    if (take(p, '.')) {
        plain_digits = false;
        TRY(skip_digits(p));
    }
    if (take(p, 'e') || take(p, 'E')) {
        plain_digits = false;
        if (!take(p, '-'))
            (void)take(p, '+');
        TRY(skip_digits(p));
    }
    out->type = JSON_NUMBER;
    out->n_text = p->at - begin;
    out->text = arena_strndup(p->a, p->text + begin, out->n_text);
    out->f64 = strtod(out->text, NULL);
    if (!isfinite(out->f64))
        return fail(p, begin, "a number too large for double", "at most 1.79e308");
    set_integer(out, plain_digits);
    return ST_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const struct json *x = *(const struct json *const *)a;
    const struct json *y = *(const struct json *const *)b;
    int d = memcmp(x->key, y->key, MIN(x->n_key, y->n_key));
    if (d != 0)
        return d;
    return x->n_key < y->n_key ? -1 : x->n_key > y->n_key;
}

/* Sorting finds equal keys in n log n: a hostile text must not cost n^2. */
static const char *duplicate_key(const struct json *object)
{
    int64_t n = object->n_items;
    if (n < 2)
        return NULL;
    const struct json **sorted = mem_alloc((size_t)n * sizeof(*sorted));
    for (int64_t i = 0; i < n; i++)
        sorted[i] = &object->items[i];
    qsort(sorted, (size_t)n, sizeof(*sorted), compare_keys);
    const char *found = NULL;
    for (int64_t i = 1; i < n && !found; i++) {
        if (compare_keys(&sorted[i - 1], &sorted[i]) == 0)
            found = sorted[i]->key;
    }
    mem_free(sorted);
    return found;
}

/* Moves the values from `first` on, which belong to *out, into the arena. */
static void close_items(struct parser *p, uint32_t first, struct json *out)
{
    out->n_items = p->open.n - first;
    out->items = arena_array(p->a, struct json, out->n_items);
    if (out->n_items > 0)
        memcpy(out->items, p->open.data + first,
               (size_t)out->n_items * sizeof(*out->items));
    p->open.n = first;
}

static enum status parse_member(struct parser *p, struct json *v)
{
    const char *key = NULL;
    size_t n_key = 0;
    TRY(parse_string(p, &key, &n_key));
    skip_space(p);
    if (!take(p, ':'))
        return fail_here(p, "':' after a key");
    skip_space(p);
    TRY(parse_value(p, v));
    v->key = key;
    v->n_key = n_key;
    return ST_OK;
}

static enum status parse_items(struct parser *p, bool is_object, struct json *out)
{
    char end = is_object ? '}' : ']';
    uint32_t first = p->open.n;
    size_t begin = p->at - 1;
    skip_space(p);
    bool more = !take(p, end);
    while (more) {
        struct json v = {0};
        TRY(is_object ? parse_member(p, &v) : parse_value(p, &v));
        vec_push(&p->open, v);
        skip_space(p);
        more = take(p, ',');
        if (!more && !take(p, end))
            return fail_here(p, is_object ? "',' or '}'" : "',' or ']'");
        skip_space(p);
    }
    out->type = is_object ? JSON_OBJECT : JSON_ARRAY;
    close_items(p, first, out);
    const char *twice = is_object ? duplicate_key(out) : NULL;
    if (twice) {
        char got[128];
        snprintf(got, sizeof(got), "key '%.64s' twice in the object that begins here",
                 twice);
        return fail(p, begin, got, "each key once");
    }
    return ST_OK;
}

static enum status parse_word(struct parser *p, const char *word, struct json like,
                              struct json *out)
{
    size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->text + p->at, word, n) != 0)
        return fail_here(p, "a value");
    p->at += n;
    *out = like;
    return ST_OK;
}

static enum status parse_nested(struct parser *p, struct json *out)
{
    if (p->depth == JSON_DEPTH_MAX)
        return fail(p, p->at, "more than 128 levels", "at most 128");
    p->depth++;
    bool is_object = p->text[p->at++] == '{';
    enum status st = parse_items(p, is_object, out);
    p->depth--;
    return st;
}

static enum status parse_value(struct parser *p, struct json *out)
{
    char c = p->at < p->n ? p->text[p->at] : '\0';
    switch (c) {
    case '{':
    case '[': return parse_nested(p, out);
    case '"': out->type = JSON_STRING; return parse_string(p, &out->text, &out->n_text);
    case 't':
        return parse_word(p, "true", (struct json){.type = JSON_BOOL, .is_true = true},
                          out);
    case 'f': return parse_word(p, "false", (struct json){.type = JSON_BOOL}, out);
    case 'n': return parse_word(p, "null", (struct json){.type = JSON_NULL}, out);
    default: break;
    }
    if (c == '-' || is_digit(p))
        return parse_number(p, out);
    return fail_here(p, "a value");
}

enum status json_parse(struct arena *a, const char *text, size_t n, const char *where,
                       int flags, struct json **out, struct diag *diag)
{
    return json_parse_lines(a, text, n, where, 1, flags, out, diag);
}

enum status json_parse_lines(struct arena *a, const char *text, size_t n,
                             const char *where, int64_t first_line, int flags,
                             struct json **out, struct diag *diag)
{
    struct parser p = {.a = a,
                       .text = text,
                       .n = n,
                       .where = where,
                       .first_line = first_line,
                       .flags = flags,
                       .diag = diag};
    struct json *root = arena_alloc(a, sizeof(*root));
    skip_space(&p);
    enum status st = parse_value(&p, root);
    skip_space(&p);
    if (st == ST_OK && p.at < n)
        st = fail_here(&p, "the end");
    vec_free(&p.open);
    str_free(&p.scratch);
    if (st == ST_OK)
        *out = root;
    return st;
}

enum status json_parse_file(struct arena *a, const char *path, int64_t limit_bytes,
                            struct json **out, struct diag *diag)
{
    struct str text = {0};
    enum status st = file_read_all(path, limit_bytes, &text, diag);
    if (st == ST_OK)
        st = json_parse(a, str_get(&text), text.n, path, JSON_STRICT, out, diag);
    str_free(&text);
    return st;
}

const char *json_type_name(enum json_type t)
{
    static const char *const names[] = {"null",     "true or false", "a number",
                                        "a string", "an array",      "an object"};
    return names[t];
}

const struct json *json_find(const struct json *object, const char *key)
{
    if (!object || object->type != JSON_OBJECT)
        return NULL;
    size_t n = strlen(key);
    for (int64_t i = 0; i < object->n_items; i++) {
        const struct json *v = &object->items[i];
        if (v->n_key == n && memcmp(v->key, key, n) == 0)
            return v;
    }
    return NULL;
}

static enum status get(const struct json *object, const char *key, enum json_type type,
                       const char *where, const struct json **out, struct diag *diag)
{
    const struct json *v = json_find(object, key);
    if (!v)
        return diag_set(diag, ST_DATA, "missing key '%s' (%s): wanted %s", key, where,
                        json_type_name(type));
    if (v->type != type)
        return diag_set(diag, ST_DATA, "wrong type of '%s' (%s): got %s, wanted %s",
                        key, where, json_type_name(v->type), json_type_name(type));
    *out = v;
    return ST_OK;
}

enum status json_get_object(const struct json *object, const char *key,
                            const char *where, const struct json **out,
                            struct diag *diag)
{
    return get(object, key, JSON_OBJECT, where, out, diag);
}

enum status json_get_array(const struct json *object, const char *key,
                           const char *where, const struct json **out,
                           struct diag *diag)
{
    return get(object, key, JSON_ARRAY, where, out, diag);
}

enum status json_get_bool(const struct json *object, const char *key, const char *where,
                          bool *out, struct diag *diag)
{
    const struct json *v = NULL;
    TRY(get(object, key, JSON_BOOL, where, &v, diag));
    *out = v->is_true;
    return ST_OK;
}

enum status json_get_i64(const struct json *object, const char *key, const char *where,
                         int64_t *out, struct diag *diag)
{
    const struct json *v = NULL;
    TRY(get(object, key, JSON_NUMBER, where, &v, diag));
    if (!v->is_i64)
        return diag_set(diag, ST_DATA,
                        "wrong value of '%s' (%s): got %.64s, wanted a whole number",
                        key, where, v->text);
    *out = v->i64;
    return ST_OK;
}

enum status json_get_u64(const struct json *object, const char *key, const char *where,
                         uint64_t *out, struct diag *diag)
{
    const struct json *v = NULL;
    TRY(get(object, key, JSON_NUMBER, where, &v, diag));
    if (v->is_i64 && v->i64 >= 0) {
        *out = (uint64_t)v->i64;
        return ST_OK;
    }
    errno = 0;
    char *end;
    unsigned long long x = strtoull(v->text, &end, 10);
    if (v->text[0] == '-' || errno != 0 || *end != '\0')
        return diag_set(
                diag, ST_DATA,
                "wrong value of '%s' (%s): got %.64s, wanted a whole number from "
                "0 to 2^64 - 1",
                key, where, v->text);
    *out = (uint64_t)x;
    return ST_OK;
}

enum status json_get_f64(const struct json *object, const char *key, const char *where,
                         double *out, struct diag *diag)
{
    const struct json *v = NULL;
    TRY(get(object, key, JSON_NUMBER, where, &v, diag));
    *out = v->f64;
    return ST_OK;
}

enum status json_get_string(const struct json *object, const char *key,
                            const char *where, const char **out, struct diag *diag)
{
    const struct json *v = NULL;
    TRY(get(object, key, JSON_STRING, where, &v, diag));
    if (strlen(v->text) != v->n_text)
        return diag_set(diag, ST_DATA,
                        "wrong value of '%s' (%s): got a NUL character, wanted none",
                        key, where);
    *out = v->text;
    return ST_OK;
}

static void new_line(struct json_writer *w)
{
    if (w->indent == 0)
        return;
    str_addc(w->out, '\n');
    for (int i = 0; i < w->depth * w->indent; i++)
        str_addc(w->out, ' ');
}

/* What stands between the value before and the one (or the key) that comes. */
static void separate(struct json_writer *w)
{
    if (w->has_items[w->depth])
        str_addc(w->out, ',');
    w->has_items[w->depth] = true;
    if (w->depth > 0)
        new_line(w);
}

static void before_value(struct json_writer *w)
{
    if (w->depth > 0 && w->kind[w->depth] == '{') {
        ASSERT(w->has_key);
        w->has_key = false;
        return;
    }
    ASSERT(w->depth > 0 || !w->has_items[0]);
    separate(w);
}

static void begin(struct json_writer *w, char kind)
{
    before_value(w);
    ASSERT(w->depth < JSON_DEPTH_MAX);
    w->depth++;
    w->kind[w->depth] = kind;
    w->has_items[w->depth] = false;
    str_addc(w->out, kind);
}

static void end(struct json_writer *w, char kind, char closing)
{
    ASSERT(w->depth > 0 && w->kind[w->depth] == kind && !w->has_key);
    bool any = w->has_items[w->depth];
    w->depth--;
    if (any)
        new_line(w);
    str_addc(w->out, closing);
}

void json_begin_object(struct json_writer *w)
{
    begin(w, '{');
}

void json_end_object(struct json_writer *w)
{
    end(w, '{', '}');
}

void json_begin_array(struct json_writer *w)
{
    begin(w, '[');
}

void json_end_array(struct json_writer *w)
{
    end(w, '[', ']');
}

static void add_escaped(struct str *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        str_addc(out, '\\');
        str_addc(out, to[hit - from]);
    } else {
        str_printf(out, "\\u%04x", c);
    }
}

static void add_string(struct str *out, const char *s, size_t n)
{
    str_addc(out, '"');
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        size_t len = utf8_length(s + i, n - i);
        if (c < 0x20 || c == '"' || c == '\\')
            add_escaped(out, c);
        else if (len == 0)
            str_add(out, "\xef\xbf\xbd");
        else
            str_add_n(out, s + i, len);
        i += MAX(len, 1);
    }
    str_addc(out, '"');
}

void json_key(struct json_writer *w, const char *key)
{
    ASSERT(w->depth > 0 && w->kind[w->depth] == '{' && !w->has_key);
    separate(w);
    add_string(w->out, key, strlen(key));
    str_add(w->out, w->indent ? ": " : ":");
    w->has_key = true;
}

void json_string_n(struct json_writer *w, const char *s, size_t n)
{
    before_value(w);
    add_string(w->out, s, n);
}

void json_string(struct json_writer *w, const char *s)
{
    if (s)
        json_string_n(w, s, strlen(s));
    else
        json_null(w);
}

void json_i64(struct json_writer *w, int64_t x)
{
    before_value(w);
    str_printf(w->out, "%lld", (long long)x);
}

void json_u64(struct json_writer *w, uint64_t x)
{
    before_value(w);
    str_printf(w->out, "%llu", (unsigned long long)x);
}

void json_f64(struct json_writer *w, double x)
{
    if (!isfinite(x)) {
        json_null(w);
        return;
    }
    before_value(w);
    char buf[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, sizeof(buf), "%.*g", digits, x);
        if (strtod(buf, NULL) == x)
            break;
    }
    str_add(w->out, buf);
}

void json_bool(struct json_writer *w, bool x)
{
    before_value(w);
    str_add(w->out, x ? "true" : "false");
}

void json_null(struct json_writer *w)
{
    before_value(w);
    str_add(w->out, "null");
}
