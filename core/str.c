#include "core/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void reserve(struct str *b, size_t more)
{
    if (b->cap - b->n > more)
        return;
    size_t want = b->cap ? b->cap : 64;
    while (want - b->n <= more)
        want *= 2;
    b->s = mem_realloc(b->s, want);
    b->cap = want;
}

void str_add_n(struct str *b, const char *text, size_t n)
{
    reserve(b, n + 1);
    memcpy(b->s + b->n, text, n);
    b->n += n;
    b->s[b->n] = '\0';
}

void str_add(struct str *b, const char *text)
{
    str_add_n(b, text, strlen(text));
}

void str_addc(struct str *b, char c)
{
    str_add_n(b, &c, 1);
}

void str_printf(struct str *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        BUG("bad format '%s'", fmt);
    reserve(b, (size_t)n + 1);
    vsnprintf(b->s + b->n, (size_t)n + 1, fmt, again);
    va_end(again);
    b->n += (size_t)n;
}

void str_clear(struct str *b)
{
    b->n = 0;
    if (b->s)
        b->s[0] = '\0';
}

void str_free(struct str *b)
{
    mem_free(b->s);
    *b = (struct str){0};
}

const char *str_get(const struct str *b)
{
    return b->s ? b->s : "";
}

#define NAME_LEN_MAX 63

int text_distance(const char *a, const char *b)
{
    int n = (int)strnlen(a, NAME_LEN_MAX), m = (int)strnlen(b, NAME_LEN_MAX);
    int d[NAME_LEN_MAX + 1][NAME_LEN_MAX + 1];
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            int cost = a[i - 1] != b[j - 1];
            int best = MIN(d[i - 1][j] + 1, d[i][j - 1] + 1);
            best = MIN(best, d[i - 1][j - 1] + cost);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = MIN(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *text_nearest(const char *got, const char *const *names, size_t n)
{
    const char *best = NULL;
    int limit = MAX((int)strlen(got) / 3, 2);
    for (size_t i = 0; i < n; i++) {
        int d = text_distance(got, names[i]);
        if (d <= limit) {
            best = names[i];
            limit = d - 1;
        }
    }
    return best;
}

const char *text_bytes(int64_t bytes, char *buf, size_t n)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024.0 && u + 1 < ARRAY_LEN(unit)) {
        v /= 1024.0;
        u++;
    }
    int digits = u == 0 ? 0 : v < 10 ? 2 : v < 100 ? 1 : 0;
    snprintf(buf, n, "%.*f %s", digits, v, unit[u]);
    return buf;
}

const char *text_count(double count, char *buf, size_t n)
{
    static const char *const unit[] = {"", " k", " M", " B", " T", " P"};
    size_t u = 0;
    while (count >= 1000.0 && u + 1 < ARRAY_LEN(unit)) {
        count /= 1000.0;
        u++;
    }
    int digits = u == 0 ? 0 : count < 10 ? 2 : 1;
    snprintf(buf, n, "%.*f%s", digits, count, unit[u]);
    return buf;
}
