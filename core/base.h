/* Base definitions every module uses: attributes, checked arithmetic, assertions.
 *
 * Conventions of the whole tree: int64_t for dimensions, element and token counts and
 * file offsets; size_t for host byte sizes; uint32_t for ids, with NONE_ID for "none".
 */
#ifndef CORE_BASE_H
#define CORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)    ((a) < (b) ? (a) : (b))
#define MAX(a, b)    ((a) > (b) ? (a) : (b))

#define MUST_CHECK              __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))
#define NORETURN                __attribute__((noreturn))
#define UNUSED                  __attribute__((unused))

#define NONE_ID UINT32_MAX

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* An impossible state: prints file, line and the message, then exits with code 70. For
 * programming errors only; what a user can cause is a status (core/status.h). */
NORETURN void bug_at(const char *file, int line, const char *fmt, ...)
        PRINTF_LIKE(3, 4);
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)

/* Always on: keep the condition cheap. */
#define ASSERT(cond)                                                                   \
    do {                                                                               \
        if (!(cond))                                                                   \
            BUG("assertion is false: %s", #cond);                                      \
    } while (0)

/* a*b and a+b of non-negative sizes; false (and *out untouched) when it overflows. */
static inline bool mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline int64_t ceil_div_i64(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t round_up_i64(int64_t a, int64_t unit)
{
    return ceil_div_i64(a, unit) * unit;
}

#endif
