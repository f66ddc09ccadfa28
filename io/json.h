/* JSON (RFC 8259): a strict parser into an arena-allocated tree, and a writer. */
#ifndef IO_JSON_H
#define IO_JSON_H

#include "core/arena.h"
#include "core/str.h"

enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
};

/* One value. Members of an object and items of an array lie side by side, in the order
 * of the text: items[0..n_items). All strings are UTF-8, NUL-terminated, and may hold
 * NUL bytes of their own (hence the lengths). */
struct json {
    enum json_type type;
    bool is_true;     /* JSON_BOOL */
    bool is_i64;      /* JSON_NUMBER: its value is a whole number that fits int64_t */
    int64_t i64;      /* exact where is_i64 */
    double f64;       /* JSON_NUMBER: the nearest double */
    const char *text; /* JSON_STRING decoded; JSON_NUMBER as it was written */
    size_t n_text;    /* bytes */
    struct json *items;
    int64_t n_items;
    const char *key; /* its name where it is a member of an object */
    size_t n_key;
};

enum json_flags {
    JSON_STRICT = 0,
    JSON_ANY_BYTES =
            1, /* strings may hold bytes that are not UTF-8; kept as they are */
};

#define JSON_DEPTH_MAX 128

/* Parses one JSON text of n bytes with nothing but white space around it. in: `where`
 * (a file name) for the diagnostic. out: *out, in the arena, independent of `text`.
 * errors: ST_DATA with line and byte offset: syntax, duplicate key, deeper than
 * JSON_DEPTH_MAX, a number beyond double, half a surrogate pair, invalid UTF-8. */
MUST_CHECK enum status json_parse(struct arena *a, const char *text, size_t n,
                                  const char *where, int flags, struct json **out,
                                  struct diag *diag);

/* The same for a piece of a file that begins at line first_line. */
MUST_CHECK enum status json_parse_lines(struct arena *a, const char *text, size_t n,
                                        const char *where, int64_t first_line,
                                        int flags, struct json **out,
                                        struct diag *diag);

/* Reads and parses a file of at most limit_bytes. */
MUST_CHECK enum status json_parse_file(struct arena *a, const char *path,
                                       int64_t limit_bytes, struct json **out,
                                       struct diag *diag);

const char *json_type_name(enum json_type t);

/* The member of that name, or NULL when there is none or `object` is no object. */
const struct json *json_find(const struct json *object, const char *key);

/* The member of that name and type. in: `where` for the diagnostic. errors: ST_DATA when
 * it is missing, of another type, or (i64, u64) not a whole number in range. */
MUST_CHECK enum status json_get_object(const struct json *object, const char *key,
                                       const char *where, const struct json **out,
                                       struct diag *diag);
MUST_CHECK enum status json_get_array(const struct json *object, const char *key,
                                      const char *where, const struct json **out,
                                      struct diag *diag);
MUST_CHECK enum status json_get_bool(const struct json *object, const char *key,
                                     const char *where, bool *out, struct diag *diag);
MUST_CHECK enum status json_get_i64(const struct json *object, const char *key,
                                    const char *where, int64_t *out, struct diag *diag);
MUST_CHECK enum status json_get_u64(const struct json *object, const char *key,
                                    const char *where, uint64_t *out,
                                    struct diag *diag);
MUST_CHECK enum status json_get_f64(const struct json *object, const char *key,
                                    const char *where, double *out, struct diag *diag);

/* The text, which must hold no NUL byte (ST_DATA), so that it is a C string. */
MUST_CHECK enum status json_get_string(const struct json *object, const char *key,
                                       const char *where, const char **out,
                                       struct diag *diag);

/* Writes JSON into a growing string. in: out; indent, spaces a level (0: one line).
 * Misuse (a value without its key, an end without its begin) is a BUG. */
struct json_writer {
    struct str *out;
    int indent;
    int depth;
    bool has_key;
    bool has_items[JSON_DEPTH_MAX + 1];
    char kind[JSON_DEPTH_MAX + 1]; /* '{' or '[' of each level */
};

void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);
void json_key(struct json_writer *w, const char *key);

/* Strings are escaped; bytes that are not UTF-8 become U+FFFD. NULL writes null. */
void json_string(struct json_writer *w, const char *s);
void json_string_n(struct json_writer *w, const char *s, size_t n);
void json_i64(struct json_writer *w, int64_t x);
void json_u64(struct json_writer *w, uint64_t x);

/* The fewest digits that read back as the same double; null for NaN and infinities. */
void json_f64(struct json_writer *w, double x);
void json_bool(struct json_writer *w, bool x);
void json_null(struct json_writer *w);

#endif
