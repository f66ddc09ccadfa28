#include "gold_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the reader copies little-endian data as it is"
#endif

/** Version of the format that this reader understands. */
#define GOLD_VERSION 1u

/** Longest name accepted; a larger value means a damaged file. */
#define MAX_NAME 4096u

/** Size of the magic bytes, the version and the entry count. */
#define HEADER_BYTES 16u

/** Least size of an entry: name length, one name byte, type, ndim. */
#define MIN_ENTRY_BYTES 13u

/** Unread rest of the file in memory. */
struct cursor {
    const unsigned char *at; /**< next byte */
    size_t left;             /**< bytes from at to the end of the file */
};

/** Where to put an error message. */
struct message {
    char *text;       /**< buffer, or NULL */
    size_t bytes;     /**< size of the buffer */
    const char *path; /**< file that the message is about */
};

/** Store a message and return -1. */
__attribute__((format(printf, 2, 3))) static int fail(const struct message *m,
                                                      const char *format, ...)
{
    if (!m->text || m->bytes == 0)
        return -1;
    int used = snprintf(m->text, m->bytes, "%s: ", m->path);
    if (used < 0 || (size_t)used >= m->bytes)
        return -1;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(m->text + used, m->bytes - (size_t)used, format, args);
    va_end(args);
    return -1;
}

/** Take n bytes from the file into to. Return 0, or -1 when fewer are left. */
static int take(struct cursor *c, void *to, size_t n)
{
    if (n > c->left)
        return -1;
    if (n)
        memcpy(to, c->at, n);
    c->at += n;
    c->left -= n;
    return 0;
}

/** Size of an element in bytes, 0 for an unknown type. */
static size_t element_bytes(uint32_t type)
{
    switch (type) {
    case GOLD_F32:
    case GOLD_I32: return 4;
    case GOLD_F64: return 8;
    case GOLD_TEXT: return 1;
    default: return 0;
    }
}

/** Read a file into a new buffer. Return NULL on error, with a message. */
static unsigned char *slurp(const struct message *m, size_t *size)
{
    FILE *f = fopen(m->path, "rb");
    if (!f) {
        fail(m, "cannot open");
        return NULL;
    }
    unsigned char *data = NULL;
    size_t used = 0, room = 0;
    for (;;) {
        if (used == room) {
            size_t more = room ? room * 2 : 65536;
            unsigned char *grown = more > room ? realloc(data, more) : NULL;
            if (!grown) {
                fail(m, "out of memory");
                break;
            }
            data = grown;
            room = more;
        }
        size_t n = fread(data + used, 1, room - used, f);
        used += n;
        if (n > 0)
            continue;
        if (ferror(f)) {
            fail(m, "read error");
            break;
        }
        fclose(f);
        *size = used;
        return data;
    }
    free(data);
    fclose(f);
    return NULL;
}

/** Read the name of entry number index. */
static int read_name(struct cursor *c, struct gold_entry *e, size_t index,
                     const struct message *m)
{
    uint32_t len;
    if (take(c, &len, sizeof(len)))
        return fail(m, "entry %zu: cut short", index);
    if (len == 0 || len > MAX_NAME || len > c->left)
        return fail(m, "entry %zu: bad name length %lu", index, (unsigned long)len);
    e->name = malloc((size_t)len + 1);
    if (!e->name)
        return fail(m, "out of memory");
    (void)take(c, e->name, len);
    e->name[len] = '\0';
    if (strlen(e->name) != len)
        return fail(m, "entry %zu: NUL in the name", index);
    return 0;
}

/** Read type, dimensions and data of an entry whose name is known. */
static int read_array(struct cursor *c, struct gold_entry *e, const struct message *m)
{
    uint32_t type;
    if (take(c, &type, sizeof(type)) || take(c, &e->ndim, sizeof(e->ndim)))
        return fail(m, "%s: cut short", e->name);
    size_t width = element_bytes(type);
    if (width == 0)
        return fail(m, "%s: unknown type %lu", e->name, (unsigned long)type);
    e->type = (enum gold_type)type;
    if (e->ndim > GOLD_MAX_DIMS)
        return fail(m, "%s: %lu dimensions", e->name, (unsigned long)e->ndim);
    if (take(c, e->dims, e->ndim * sizeof(e->dims[0])))
        return fail(m, "%s: cut short", e->name);
    for (uint32_t i = e->ndim; i < GOLD_MAX_DIMS; i++)
        e->dims[i] = 1;

    e->count = 1;
    for (uint32_t i = 0; i < e->ndim; i++) {
        if (e->dims[i] < 0)
            return fail(m, "%s: negative dimension", e->name);
        uint64_t dim = (uint64_t)e->dims[i];
        if (dim != 0 && e->count > SIZE_MAX / dim)
            return fail(m, "%s: too large", e->name);
        e->count *= (size_t)dim;
    }
    if (e->count > c->left / width)
        return fail(m, "%s: data cut short", e->name);
    size_t bytes = e->count * width;
    e->data = malloc(bytes + 1);
    if (!e->data)
        return fail(m, "out of memory");
    (void)take(c, e->data, bytes);
    ((unsigned char *)e->data)[bytes] = '\0';
    return 0;
}

/** Read header and entries into out, which is empty at the start. */
static int parse(struct cursor *c, struct gold *out, const struct message *m)
{
    char magic[8];
    uint32_t version, n;
    if (c->left < HEADER_BYTES)
        return fail(m, "too short for a gold file");
    (void)take(c, magic, sizeof(magic));
    (void)take(c, &version, sizeof(version));
    (void)take(c, &n, sizeof(n));
    if (memcmp(magic, "ANGELGLD", sizeof(magic)) != 0)
        return fail(m, "not a gold file");
    if (version != GOLD_VERSION)
        return fail(m, "version %lu is not supported", (unsigned long)version);
    if (n > c->left / MIN_ENTRY_BYTES)
        return fail(m, "too short for %lu entries", (unsigned long)n);

    out->entries = calloc((size_t)n + 1, sizeof(*out->entries));
    if (!out->entries)
        return fail(m, "out of memory");
    for (size_t i = 0; i < n; i++) {
        struct gold_entry *e = &out->entries[i];
        if (read_name(c, e, i, m)) {
            free(e->name);
            return -1;
        }
        if (gold_find(out, e->name)) {
            int rc = fail(m, "%s: stored twice", e->name);
            free(e->name);
            return rc;
        }
        out->n_entries = i + 1;
        if (read_array(c, e, m))
            return -1;
    }
    if (c->left)
        return fail(m, "%zu bytes after the last entry", c->left);
    return 0;
}

int gold_load(const char *path, struct gold *out, char *err, size_t err_bytes)
{
    struct message m = {.text = err, .bytes = err_bytes, .path = path};
    *out = (struct gold){0};
    size_t size = 0;
    unsigned char *data = slurp(&m, &size);
    if (!data)
        return -1;
    struct cursor c = {.at = data, .left = size};
    int rc = parse(&c, out, &m);
    free(data);
    if (rc)
        gold_free(out);
    return rc;
}

const struct gold_entry *gold_find(const struct gold *g, const char *name)
{
    for (size_t i = 0; i < g->n_entries; i++) {
        if (strcmp(g->entries[i].name, name) == 0)
            return &g->entries[i];
    }
    return NULL;
}

void gold_free(struct gold *g)
{
    for (size_t i = 0; i < g->n_entries; i++) {
        free(g->entries[i].name);
        free(g->entries[i].data);
    }
    free(g->entries);
    *g = (struct gold){0};
}
