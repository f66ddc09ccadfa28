/* Compares a tensor with its reference, element by element. A comparison can only pass
 * when every element was proven near: NaN on either side, an all-zero reference that was
 * not announced, and an empty comparison all fail. */
#ifndef TESTS_LIB_COMPARE_H
#define TESTS_LIB_COMPARE_H

#include "core/backend.h"
#include "kernels/tol.h"

enum verdict {
    VERDICT_PASS,     /* within half of the limit */
    VERDICT_MARGINAL, /* within the limit */
    VERDICT_FAIL,
};

struct comparison {
    enum verdict verdict;
    const char *reason;  /* of a failure; "" otherwise */
    double worst_ratio;  /* of |difference| to the limit */
    int64_t worst_index; /* flat, without the pitch's gaps */
    double worst_got, worst_want;
    int64_t n_elems, n_nan, n_over;
    double scale; /* root mean square of the reference */
};

/* Compares `got` with `want` (same shape; any dtypes). zero_ok: the reference may be all
 * zeros, and then the result must be, too. */
struct comparison compare_views(const struct view *got, const struct view *want,
                                struct tol tol, bool zero_ok);

/* A buffer for a view of the given shape and pitch (0: contiguous), with canary bytes
 * before, after and in the pitch's gaps. The elements start as NaN (or a large negative
 * integer). guarded_free releases it. */
struct guarded {
    unsigned char *bytes;
    int64_t n_bytes;
    struct view view;
};

struct guarded guarded_make(enum dtype dtype, int ndim, const int64_t *dim, int64_t ld);
void guarded_free(struct guarded *g);

/* Whether every byte that is no element still is as guarded_make left it. */
bool guarded_is_intact(const struct guarded *g);

/* One line of a comparison into `text`. */
void comparison_print(const struct comparison *c, char *text, size_t size);

#endif
