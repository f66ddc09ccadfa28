/* Reader of test fixtures in the gold format (see make_gold.py). */
#ifndef GOLD_READ_H
#define GOLD_READ_H

#include <stddef.h>
#include <stdint.h>

/** Most dimensions that an entry may have. */
#define GOLD_MAX_DIMS 8

/** Type of the elements of an entry, as stored in the file. */
enum gold_type {
    GOLD_F32 = 0,  /**< float */
    GOLD_I32 = 1,  /**< int32_t */
    GOLD_F64 = 2,  /**< double */
    GOLD_TEXT = 3, /**< bytes of text; a NUL follows them in memory */
};

/** One named array. */
struct gold_entry {
    char *name;                  /**< NUL-terminated, unique in the file */
    enum gold_type type;         /**< element type */
    uint32_t ndim;               /**< number of dimensions, 0 for a scalar */
    int64_t dims[GOLD_MAX_DIMS]; /**< sizes; those past ndim are 1 */
    size_t count;                /**< number of elements */
    void *data;                  /**< row-major elements, aligned for any type */
};

/** Contents of a file. */
struct gold {
    struct gold_entry *entries; /**< in the order of the file */
    size_t n_entries;           /**< number of entries */
};

/**
 * Read a whole file into memory.
 *
 * Every length in the file is checked before it is used: a file that is cut
 * short, has bytes after its last entry, or contradicts itself is an error.
 *
 * @param path       file to read
 * @param out        receives the contents; emptied on error
 * @param err        receives a message on error, cut to fit; may be NULL
 * @param err_bytes  size of err
 * @return 0, or -1 on error
 */
int gold_load(const char *path, struct gold *out, char *err, size_t err_bytes);

/**
 * Look up an entry by its exact name.
 *
 * @return the entry, or NULL when there is none
 */
const struct gold_entry *gold_find(const struct gold *g, const char *name);

/** Release what gold_load() allocated and empty g. A second call is harmless. */
void gold_free(struct gold *g);

#endif
