/* A temporary folder for a test, and files in it. */
#ifndef TESTS_LIB_TMP_H
#define TESTS_LIB_TMP_H

#include "core/arena.h"

struct tmp {
    char *path;
    struct arena arena; /* owns paths that tmp_path and tmp_write return */
};

/* Makes the folder below $TMPDIR or /tmp; a failure fails the test. */
void tmp_create(struct tmp *t);

/* Removes the folder and all that is in it. */
void tmp_remove(struct tmp *t);

/* The path of a name in the folder; lives until tmp_remove. */
const char *tmp_path(struct tmp *t, const char *name);

/* Writes a file of n bytes (tmp_write_text: of the string), making the folders of its
 * name; returns its path. */
const char *tmp_write(struct tmp *t, const char *name, const void *data, size_t n);
const char *tmp_write_text(struct tmp *t, const char *name, const char *text);

#endif
