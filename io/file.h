/* Files and folders: whole reads and writes, atomic replacement, listing, removal.
 *
 * Every failure's diagnostic names the path and the system's reason. Statuses:
 * ST_NOT_FOUND when an input is not there, ST_CREATE when an output cannot be created,
 * ST_DATA when a file ends before what was to be read, ST_IO otherwise. `path` arguments
 * beside a descriptor serve the diagnostic alone.
 */
#ifndef IO_FILE_H
#define IO_FILE_H

#include "core/arena.h"
#include "core/str.h"

/* Opens a regular file (not a folder) for reading. out: *fd, to be closed by the
 * caller. */
MUST_CHECK enum status file_open_read(const char *path, int *fd, struct diag *diag);

/* Opens for writing, created or cut to nothing. The folder must exist. */
MUST_CHECK enum status file_open_write(const char *path, int *fd, struct diag *diag);

/* Closes a written file; some systems report a failed write only here. */
MUST_CHECK enum status file_close(int fd, const char *path, struct diag *diag);

/* Closes a file that was read, where nothing can be lost. */
void file_close_read(int fd);

/* Reads until n bytes are there or the file ends. out: *got <= n. */
MUST_CHECK enum status file_read(int fd, const char *path, void *buf, size_t n,
                                 size_t *got, struct diag *diag);

/* Reads exactly n bytes at a byte offset. errors: ST_DATA when the file ends before. */
MUST_CHECK enum status file_read_at(int fd, const char *path, int64_t offset, void *buf,
                                    size_t n, struct diag *diag);

/* Writes all n bytes at the file's position, or at a byte offset. */
MUST_CHECK enum status file_write(int fd, const char *path, const void *buf, size_t n,
                                  struct diag *diag);
MUST_CHECK enum status file_write_at(int fd, const char *path, int64_t offset,
                                     const void *buf, size_t n, struct diag *diag);

/* Forces a file's data, or a folder's entries, to the disk. */
MUST_CHECK enum status file_sync(int fd, const char *path, struct diag *diag);
MUST_CHECK enum status file_sync_folder(const char *path, struct diag *diag);

/* Appends a whole file to *out. errors: ST_DATA when it has more than limit_bytes. */
MUST_CHECK enum status file_read_all(const char *path, int64_t limit_bytes,
                                     struct str *out, struct diag *diag);

/* Replaces `path` by n bytes so that a reader, or a machine that lost power, sees the
 * old or the new content: writes "path.tmp", syncs it, renames it, syncs the folder. On
 * failure the old file is untouched and the temporary one removed. */
MUST_CHECK enum status file_write_atomic(const char *path, const void *data, size_t n,
                                         struct diag *diag);

/* Renames, replacing a file that is there, and syncs the folder of the new name. */
MUST_CHECK enum status file_rename(const char *from, const char *to, struct diag *diag);

/* Creates a folder and those above it; one that exists is fine. */
MUST_CHECK enum status file_make_folder(const char *path, struct diag *diag);

/* Removes a file, or a folder with all below it, without following symbolic links. What
 * is not there is fine. */
MUST_CHECK enum status file_remove_tree(const char *path, struct diag *diag);

bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* Size in bytes of a regular file. */
MUST_CHECK enum status file_size(const char *path, int64_t *bytes, struct diag *diag);

/* The folder part of a path ("." when it has none), in the arena. */
const char *file_folder_of(struct arena *a, const char *path);

struct file_entry {
    const char *path; /* root/below */
    const char *name; /* below the root */
    int64_t bytes;
};

/* The regular files below a folder, ordered bytewise by name. */
struct file_list {
    struct file_entry *data; /* [n], in the arena */
    int64_t n;
    int64_t n_hidden; /* files and folders left out: their name begins with a dot */
    int64_t n_other; /* left out: sockets, devices, dangling links, links to a parent */
};

/* Lists recursively, following symbolic links. in: skip_hidden leaves out what begins
 * with a dot. ownership: all memory is the arena's. */
MUST_CHECK enum status file_list_tree(struct arena *a, const char *root,
                                      bool skip_hidden, struct file_list *out,
                                      struct diag *diag);

/* The names in a folder (not below), files and folders, ordered bytewise, without "."
 * and "..". out: (*names)[*n] in the arena. */
MUST_CHECK enum status file_list_folder(struct arena *a, const char *path,
                                        char ***names, int64_t *n, struct diag *diag);

#endif
