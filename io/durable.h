/* Writing that survives a crash: the one place through which a checkpoint reaches the
 * disk.
 *
 * Every change of the file system is a numbered point. A test sets a hook that sees each
 * point before it happens, with all it needs to record, tear or refuse the change, or to
 * end the process there. Without a hook a point costs one comparison.
 */
#ifndef IO_DURABLE_H
#define IO_DURABLE_H

#include "core/status.h"

enum durable_op {
    DURABLE_MKDIR,
    DURABLE_CREATE, /* a new, empty file, or an old one emptied */
    DURABLE_WRITE,
    DURABLE_FSYNC,
    DURABLE_FSYNC_DIR,
    DURABLE_RENAME,
    DURABLE_EXCHANGE, /* two names change places */
    DURABLE_UNLINK,
    DURABLE_RMDIR,
    DURABLE_OP_COUNT
};

/* What is about to happen at one point. */
struct durable_event {
    int64_t number; /* 0, 1, 2, ... in the order they happen */
    enum durable_op op;
    const char *path;
    const char *to;   /* the new name (rename, exchange), else NULL */
    int fd;           /* the open file (write, fsync), else -1 */
    int64_t offset;   /* where the bytes go (write) */
    const void *data; /* the bytes (write) */
    size_t bytes;
};

/* Returns 0 to let the change happen, or an errno value to make it fail instead. */
typedef int (*durable_hook_fn)(void *arg, const struct durable_event *event);

/* The owner's state of a writer; zero-initialise. A NULL pointer means the same as no
 * hook. threads: one at a time. */
struct durable {
    durable_hook_fn hook;
    void *arg;
    int64_t n_points;
};

/* A file being written from its start to its end. */
struct durable_file {
    struct durable *d;
    const char *path; /* the caller's, kept until the file is closed */
    int fd;
    int64_t offset;
};

const char *durable_op_name(enum durable_op op);

/* Makes a directory and those above it that are missing; an existing one is fine.
 * errors: ST_CREATE. */
MUST_CHECK enum status durable_mkdir(struct durable *d, const char *path,
                                     struct diag *diag);

/* Creates (or empties) a file for writing. errors: ST_CREATE. */
MUST_CHECK enum status durable_create(struct durable *d, const char *path,
                                      struct durable_file *out, struct diag *diag);

/* Appends all the bytes. errors: ST_IO with path and reason; with the signal SIGXFSZ
 * ignored that includes a file-size limit. */
MUST_CHECK enum status durable_write(struct durable_file *f, const void *data,
                                     size_t bytes, struct diag *diag);

/* Flushes to the device and closes; the file is closed whatever happens. errors: ST_IO. */
MUST_CHECK enum status durable_finish(struct durable_file *f, struct diag *diag);

/* Closes without flushing: what was written is about to be removed. */
void durable_abandon(struct durable_file *f);

/* Creates a file with these bytes, flushed. errors: ST_CREATE, ST_IO. */
MUST_CHECK enum status durable_write_file(struct durable *d, const char *path,
                                          const void *data, size_t bytes,
                                          struct diag *diag);

/* Flushes a directory, so that names in it survive a power cut. errors: ST_IO. */
MUST_CHECK enum status durable_sync_dir(struct durable *d, const char *path,
                                        struct diag *diag);

/* Renames a file or directory, replacing a file of the new name. errors: ST_IO. */
MUST_CHECK enum status durable_rename(struct durable *d, const char *from,
                                      const char *to, struct diag *diag);

/* Puts the directory `from` at the name `to`; an old directory of that name is then at
 * `from`. One step where the file system can exchange names, else through `aside`, with a
 * moment in which `to` does not exist. errors: ST_IO. */
MUST_CHECK enum status durable_replace_dir(struct durable *d, const char *from,
                                           const char *to, const char *aside,
                                           struct diag *diag);

/* Removes a file, or a directory and all in it (links are removed, not followed); what
 * is missing is fine. errors: ST_IO. */
MUST_CHECK enum status durable_remove_tree(struct durable *d, const char *path,
                                           struct diag *diag);

#endif
