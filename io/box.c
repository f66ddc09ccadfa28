#include "io/box.h"

#include <stdio.h>
#include <string.h>

#define SPLIT_PARTS     16
#define SPLIT_MIN_BYTES (256 * KIB)

struct box box_whole(int ndim, const int64_t *shape)
{
    struct box b = {.ndim = ndim};
    for (int a = 0; a < ndim; a++)
        b.ext[a] = shape[a];
    return b;
}

int64_t box_elems(const struct box *b)
{
    int64_t n = 1;
    for (int a = 0; a < b->ndim; a++)
        n *= b->ext[a];
    return n;
}

bool box_equal(const struct box *a, const struct box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->off[i] != b->off[i] || a->ext[i] != b->ext[i])
            return false;
    return true;
}

bool box_intersect(const struct box *a, const struct box *b, struct box *out)
{
    struct box r = {.ndim = a->ndim};
    for (int i = 0; i < a->ndim; i++) {
        int64_t begin = MAX(a->off[i], b->off[i]);
        int64_t end = MIN(a->off[i] + a->ext[i], b->off[i] + b->ext[i]);
        if (begin >= end)
            return false;
        r.off[i] = begin;
        r.ext[i] = end - begin;
    }
    *out = r;
    return true;
}

bool box_is_run(const struct box *whole, const struct box *part)
{
    int a = whole->ndim - 1;
    while (a >= 0 && part->ext[a] == whole->ext[a])
        a--;
    for (int i = 0; i < a; i++)
        if (part->ext[i] != 1)
            return false;
    return true;
}

int64_t box_index(const struct box *whole, const struct box *part)
{
    int64_t at = 0;
    for (int a = 0; a < whole->ndim; a++)
        at = at * whole->ext[a] + part->off[a] - whole->off[a];
    return at;
}

/* A box with exactly BOX_MAX_NDIM axes: leading axes of extent 1 are put in front. */
static struct box padded(const struct box *b)
{
    struct box r = {.ndim = BOX_MAX_NDIM};
    int lead = BOX_MAX_NDIM - b->ndim;
    for (int a = 0; a < BOX_MAX_NDIM; a++) {
        r.off[a] = a < lead ? 0 : b->off[a - lead];
        r.ext[a] = a < lead ? 1 : b->ext[a - lead];
    }
    return r;
}

void box_copy(const struct box *part, size_t elem_bytes, const void *src,
              const struct box *src_box, void *dst, const struct box *dst_box)
{
    struct box p = padded(part);
    struct box s = padded(src_box);
    struct box d = padded(dst_box);
    struct box row = p;
    for (int a = 0; a < BOX_MAX_NDIM - 1; a++)
        row.ext[a] = 1;
    size_t row_bytes = (size_t)p.ext[3] * elem_bytes;
    int64_t n_rows = row_bytes > 0 ? p.ext[0] * p.ext[1] * p.ext[2] : 0;
    for (int64_t r = 0; r < n_rows; r++) {
        row.off[0] = p.off[0] + r / (p.ext[1] * p.ext[2]);
        row.off[1] = p.off[1] + r / p.ext[2] % p.ext[1];
        row.off[2] = p.off[2] + r % p.ext[2];
        memcpy((char *)dst + (size_t)box_index(&d, &row) * elem_bytes,
               (const char *)src + (size_t)box_index(&s, &row) * elem_bytes, row_bytes);
    }
}

const char *box_text(const struct box *b, char *buf, size_t n)
{
    size_t at = 0;
    for (int a = 0; a < b->ndim && at < n; a++) {
        int r = snprintf(buf + at, n - at, "%s%lld:%lld", a == 0 ? "[" : ",",
                         (long long)b->off[a], (long long)(b->off[a] + b->ext[a]));
        at += r > 0 ? (size_t)r : 0;
    }
    if (at < n)
        snprintf(buf + at, n - at, "%s", b->ndim == 0 ? "[]" : "]");
    return buf;
}

struct box_grid box_grid_tiles(int ndim, const int64_t *shape, const int64_t *tile)
{
    struct box_grid g = {.ndim = ndim, .n = 1};
    for (int a = 0; a < ndim; a++) {
        g.shape[a] = shape[a];
        g.tile[a] = tile[a];
        g.count[a] = shape[a] > 0 ? ceil_div_i64(shape[a], tile[a]) : 0;
        g.n *= g.count[a];
    }
    return g;
}

/* Cuts axis after axis, the outermost first and `skip` not at all, until a tile has at
 * most `limit` elements. */
static void cut_axes(int ndim, int skip, int64_t limit, int64_t *tile)
{
    struct box b = box_whole(ndim, tile);
    int64_t n = box_elems(&b);
    for (int a = 0; a < ndim && n > limit; a++) {
        if (a == skip)
            continue;
        int64_t rest = n / tile[a]; /* elements of one step along this axis */
        tile[a] = MAX(limit / rest, 1);
        n = rest * tile[a];
    }
}

struct box_grid box_grid_chunks(int ndim, const int64_t *shape, size_t elem_bytes,
                                int split_axis)
{
    int64_t tile[BOX_MAX_NDIM];
    struct box whole = box_whole(ndim, shape);
    int64_t n = box_elems(&whole);
    for (int a = 0; a < ndim; a++)
        tile[a] = MAX(shape[a], 1);
    int64_t limit = (int64_t)(BOX_CHUNK_BYTES / elem_bytes);
    if (n > 0 && split_axis >= 0 && split_axis < ndim) {
        int64_t parts = SPLIT_PARTS;
        int64_t min_elems = (int64_t)(SPLIT_MIN_BYTES / elem_bytes);
        while (parts > 1 && (shape[split_axis] % parts != 0 || n / parts < min_elems))
            parts /= 2;
        tile[split_axis] = shape[split_axis] / parts;
        limit = (int64_t)(BOX_CHUNK_MAX_BYTES / elem_bytes);
        cut_axes(ndim, split_axis, limit, tile);
    }
    cut_axes(ndim, -1, limit, tile);
    return box_grid_tiles(ndim, shape, tile);
}

struct box box_grid_tile(const struct box_grid *g, int64_t i)
{
    struct box b = {.ndim = g->ndim};
    for (int a = g->ndim - 1; a >= 0; a--) {
        b.off[a] = i % g->count[a] * g->tile[a];
        b.ext[a] = MIN(g->tile[a], g->shape[a] - b.off[a]);
        i /= g->count[a];
    }
    return b;
}
