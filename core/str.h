/* Growing strings and small text helpers. */
#ifndef CORE_STR_H
#define CORE_STR_H

#include "core/arena.h"

/* A growing, always NUL-terminated string. Zero-initialise; str_free at the end. */
struct str {
    char *s; /* NULL until the first append */
    size_t n;
    size_t cap;
};

void str_add(struct str *b, const char *text);
void str_add_n(struct str *b, const char *text, size_t n);
void str_addc(struct str *b, char c);
void str_printf(struct str *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_clear(struct str *b); /* keeps the memory */
void str_free(struct str *b);

/* "" for an empty string, so that it can always be printed. */
const char *str_get(const struct str *b);

/* Optimal-string-alignment distance (insert, delete, substitute, swap neighbours). */
int text_distance(const char *a, const char *b);

/* The nearest of n names to `got`, or NULL when none is near (distance above a third of
 * its length, at least 2): what "did you mean" offers. */
const char *text_nearest(const char *got, const char *const *names, size_t n);

/* Bytes with a binary unit and about four digits: "12.5 MiB". Writes at most n bytes. */
const char *text_bytes(int64_t bytes, char *buf, size_t n);

/* A count with a decimal unit: "124.4 M". */
const char *text_count(double count, char *buf, size_t n);

#endif
