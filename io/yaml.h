/* YAML as a flat list of values: "train.optimizer.lr", "data.train[1].path".
 *
 * A strict reader for configuration: no anchors, aliases, tags or merge keys, no key
 * twice, one document, at most YAML_BYTES_MAX bytes and YAML_DEPTH_MAX levels.
 */
#ifndef IO_YAML_H
#define IO_YAML_H

#include "core/arena.h"

#define YAML_BYTES_MAX ((int64_t)1 << 20)
#define YAML_DEPTH_MAX 16

enum yaml_kind {
    YAML_SCALAR,
    YAML_NULL,     /* `key:`, `~` or `null`, unquoted */
    YAML_SEQUENCE, /* announces n elements, which follow */
    YAML_MAPPING,  /* announces n entries, which follow; none for the file's own */
};

struct yaml_item {
    const char *key; /* full path; "" where the text is not a mapping */
    enum yaml_kind kind;
    const char *value; /* YAML_SCALAR, else NULL */
    int64_t n;
    int line; /* from 1 */
};

/* Zero-initialise; yaml_doc_free at the end. */
struct yaml_doc {
    struct yaml_item *items;
    uint32_t n;
    struct arena arena; /* owns keys and values */
};

/* Reads a file. out: doc, in the file's order. errors: ST_NOT_FOUND, ST_IO; ST_CONFIG
 * with file and line for what is not accepted. */
MUST_CHECK enum status yaml_doc_read_file(const char *path, struct yaml_doc *doc,
                                          struct diag *diag);

/* The same for n bytes of text; `name` stands for the file in messages. */
MUST_CHECK enum status yaml_doc_read_text(const char *text, size_t n, const char *name,
                                          struct yaml_doc *doc, struct diag *diag);

void yaml_doc_free(struct yaml_doc *doc);

#endif
