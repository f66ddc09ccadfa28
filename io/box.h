/* Boxes: rectangular parts of row-major tensors, and the grid of tiles that cuts a tensor
 * into chunks. Sizes are in elements. */
#ifndef IO_BOX_H
#define IO_BOX_H

#include "core/base.h"

#define BOX_MAX_NDIM 4

struct box {
    int ndim; /* 0 for a single element */
    int64_t off[BOX_MAX_NDIM];
    int64_t ext[BOX_MAX_NDIM];
};

/* The box of a whole tensor. */
struct box box_whole(int ndim, const int64_t *shape);

int64_t box_elems(const struct box *b);
bool box_equal(const struct box *a, const struct box *b);

/* The common part of two boxes of equal ndim; false (and *out untouched) if empty. */
bool box_intersect(const struct box *a, const struct box *b, struct box *out);

/* Whether `part`, inside `whole`, is one run of elements of whole's row-major array. */
bool box_is_run(const struct box *whole, const struct box *part);

/* The index of part's first element in whole's row-major array. */
int64_t box_index(const struct box *whole, const struct box *part);

/* Copies the box `part` between arrays of which each holds a box around it, row-major.
 * in: src src_box[elem_bytes], dst dst_box[elem_bytes]. */
void box_copy(const struct box *part, size_t elem_bytes, const void *src,
              const struct box *src_box, void *dst, const struct box *dst_box);

/* "[0:16,32:64]"; writes at most n bytes, returns buf. */
const char *box_text(const struct box *b, char *buf, size_t n);

/* A regular grid of tiles over a tensor; the last tile of an axis may be smaller. */
struct box_grid {
    int ndim;
    int64_t shape[BOX_MAX_NDIM];
    int64_t tile[BOX_MAX_NDIM];
    int64_t count[BOX_MAX_NDIM]; /* tiles along each axis */
    int64_t n;                   /* tiles in all; 0 for a tensor without elements */
};

#define BOX_CHUNK_BYTES     (4 * MIB) /* what a tile is cut down to */
#define BOX_CHUNK_MAX_BYTES (8 * MIB) /* no tile is larger */

/* The chunks of a tensor. in: split_axis, the axis along which the tensor is cut over
 * ranks, or -1: along it tiles are a sixteenth of the tensor (less finely where that would
 * make small tiles), so that a rank's part is whole tiles; other axes are cut where a
 * tile would exceed 8 MiB. Without one the tensor is cut into bands of about 4 MiB. */
struct box_grid box_grid_chunks(int ndim, const int64_t *shape, size_t elem_bytes,
                                int split_axis);

/* The grid with the given tile (extents 1 <= tile <= shape). */
struct box_grid box_grid_tiles(int ndim, const int64_t *shape, const int64_t *tile);

/* Tile i in row-major order of the grid. */
struct box box_grid_tile(const struct box_grid *g, int64_t i);

#endif
