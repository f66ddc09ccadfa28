/* Folders for a test's files, under $TMPDIR or /tmp. */
#ifndef TESTS_LIB_TMPDIR_H
#define TESTS_LIB_TMPDIR_H

#include "core/arena.h"

/* A new, empty folder; its path is the arena's. */
const char *tmpdir_make(struct arena *a);

/* The path of `name` in the folder. */
const char *tmpdir_path(struct arena *a, const char *folder, const char *name);

/* Writes n bytes to `name` in the folder, with the folders above it; returns its path. */
const char *tmpdir_write(struct arena *a, const char *folder, const char *name,
                         const void *data, size_t n);

/* The same with a C string. */
const char *tmpdir_write_text(struct arena *a, const char *folder, const char *name,
                              const char *text);

/* Removes the folder with all that is in it. */
void tmpdir_remove(const char *folder);

#endif
