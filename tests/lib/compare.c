#include "tests/lib/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"

#define CANARY_BYTES 256
#define CANARY       0xa5

static int64_t rows_of(const struct view *v)
{
    return v->ndim >= 2 ? v->dim[0] : 1;
}

static int64_t cols_of(const struct view *v)
{
    int64_t n = 1;
    for (int i = v->ndim >= 2; i < v->ndim; i++)
        n *= v->dim[i];
    return n;
}

static double elem(const struct view *v, int64_t i)
{
    int64_t cols = cols_of(v);
    return dtype_get(v->data, v->dtype,
                     i / cols * (v->ndim < 2 ? 0 : v->ld) + i % cols);
}

static bool same_shape(const struct view *a, const struct view *b)
{
    if (a->ndim != b->ndim || a->ndim < 1)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

static double root_mean_square(const struct view *v, int64_t n)
{
    double sum = 0;
    int64_t n_finite = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = elem(v, i);
        if (isfinite(x)) {
            sum += x * x;
            n_finite++;
        }
    }
    return n_finite ? sqrt(sum / (double)n_finite) : 0;
}

static double ratio_of(double got, double want, double limit)
{
    if (got == want) /* infinities of one sign, too */
        return 0;
    double diff = fabs(got - want);
    return limit > 0 ? diff / limit : INFINITY;
}

static void compare_elem(struct comparison *c, int64_t i, double got, double want,
                         double limit)
{
    double ratio = ratio_of(got, want, limit);
    if (isnan(got) || isnan(want)) {
        c->n_nan++;
        ratio = INFINITY;
    }
    if (!(ratio <= 1))
        c->n_over++;
    if (!(ratio <= c->worst_ratio)) {
        c->worst_ratio = ratio;
        c->worst_index = i;
        c->worst_got = got;
        c->worst_want = want;
    }
}

static struct comparison judge(struct comparison c, const char *reason)
{
    c.reason = reason;
    c.verdict = c.worst_ratio <= 0.5 ? VERDICT_PASS : VERDICT_MARGINAL;
    if (reason[0] || !(c.worst_ratio <= 1))
        c.verdict = VERDICT_FAIL;
    return c;
}

struct comparison compare_views(const struct view *got, const struct view *want,
                                struct tol tol, bool zero_ok)
{
    struct comparison c = {.worst_index = -1};
    if (!same_shape(got, want))
        return judge(c, "shapes differ");
    c.n_elems = rows_of(want) * cols_of(want);
    if (c.n_elems <= 0)
        return judge(c, "nothing was compared");
    c.scale = root_mean_square(want, c.n_elems);
    for (int64_t i = 0; i < c.n_elems; i++) {
        double w = elem(want, i);
        compare_elem(&c, i, elem(got, i), w, tol.rel * fabs(w) + tol.abs * c.scale);
    }
    if (c.n_nan)
        return judge(c, "NaN");
    if (c.scale == 0 && !zero_ok)
        return judge(c, "the reference is all zeros");
    return judge(c, c.n_over ? "over the limit" : "");
}

struct guarded guarded_make(enum dtype dtype, int ndim, const int64_t *dim, int64_t ld)
{
    struct guarded g = {0};
    g.view.dtype = dtype;
    g.view.ndim = ndim;
    for (int i = 0; i < ndim; i++)
        g.view.dim[i] = dim[i];
    int64_t rows = rows_of(&g.view), cols = cols_of(&g.view);
    g.view.ld = ld ? ld : cols;
    ASSERT(g.view.ld >= cols);
    int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t span = rows > 0 ? ((rows - 1) * g.view.ld + cols) * size : 0;
    g.n_bytes = span + 2 * CANARY_BYTES;
    g.bytes = mem_alloc((size_t)g.n_bytes);
    memset(g.bytes, CANARY, (size_t)g.n_bytes);
    g.view.data = g.bytes + CANARY_BYTES;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i++)
            dtype_set(g.view.data, dtype, r * g.view.ld + i,
                      dtype == DT_I32 ? -1000000.0 : (double)NAN);
    return g;
}

void guarded_free(struct guarded *g)
{
    mem_free(g->bytes);
    *g = (struct guarded){0};
}

static bool is_canary(const unsigned char *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (p[i] != CANARY)
            return false;
    return true;
}

bool guarded_is_intact(const struct guarded *g)
{
    int64_t rows = rows_of(&g->view), cols = cols_of(&g->view);
    int64_t size = (int64_t)dtype_bytes(g->view.dtype);
    const unsigned char *data = g->view.data;
    for (int64_t r = 0; r + 1 < rows; r++)
        if (!is_canary(data + (r * g->view.ld + cols) * size,
                       (g->view.ld - cols) * size))
            return false;
    return is_canary(g->bytes, CANARY_BYTES) &&
           is_canary(g->bytes + g->n_bytes - CANARY_BYTES, CANARY_BYTES);
}

void comparison_print(const struct comparison *c, char *text, size_t size)
{
    static const char *const names[] = {"pass", "marginal", "FAIL"};
    snprintf(
            text, size,
            "%s%s%s: %.3g of the limit at element %lld of %lld: got %.9g, wanted %.9g; "
            "%lld over, %lld NaN, rms %.3g",
            names[c->verdict], c->reason[0] ? ", " : "", c->reason, c->worst_ratio,
            (long long)c->worst_index, (long long)c->n_elems, c->worst_got,
            c->worst_want, (long long)c->n_over, (long long)c->n_nan, c->scale);
}
