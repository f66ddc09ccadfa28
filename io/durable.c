#include "io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"

static const char *const op_names[] = {
        [DURABLE_MKDIR] = "mkdir",         [DURABLE_CREATE] = "create",
        [DURABLE_WRITE] = "write",         [DURABLE_FSYNC] = "fsync",
        [DURABLE_FSYNC_DIR] = "fsync-dir", [DURABLE_RENAME] = "rename",
        [DURABLE_EXCHANGE] = "exchange",   [DURABLE_UNLINK] = "unlink",
        [DURABLE_RMDIR] = "rmdir",
};
_Static_assert(ARRAY_LEN(op_names) == DURABLE_OP_COUNT, "one name per operation");

const char *durable_op_name(enum durable_op op)
{
    ASSERT(op < DURABLE_OP_COUNT);
    return op_names[op];
}

/* True when the change may happen; else errno is what the hook wants. */
static bool point(struct durable *d, const struct durable_event *event)
{
    if (!d || !d->hook)
        return true;
    struct durable_event e = *event;
    e.number = d->n_points++;
    int err = d->hook(d->arg, &e);
    if (err != 0)
        errno = err;
    return err == 0;
}

static bool point_path(struct durable *d, enum durable_op op, const char *path,
                       const char *to)
{
    struct durable_event e = {.op = op, .path = path, .to = to, .fd = -1};
    return point(d, &e);
}

/* Says what helps against the reason of the last failed call. */
static enum status with_hint(enum status st, struct diag *diag)
{
    if (st == ST_OK)
        return st;
    if (errno == ENOSPC || errno == EDQUOT)
        diag_hint(diag, "free some space, or put the directory on another file system");
    else if (errno == EFBIG)
        diag_hint(diag, "raise the limit on the size of files (ulimit -f)");
    else if (errno == EACCES || errno == EPERM || errno == EROFS)
        diag_hint(diag, "name a directory that this user may write to");
    return st;
}

static enum status fail(enum status st, const char *what, const char *path,
                        struct diag *diag)
{
    diag_set(diag, st, "cannot %s (%s): system says %s", what, path, strerror(errno));
    return with_hint(st, diag);
}

enum status durable_mkdir(struct durable *d, const char *path, struct diag *diag)
{
    if (file_is_folder(path))
        return ST_OK;
    if (!point_path(d, DURABLE_MKDIR, path, NULL))
        return fail(ST_CREATE, "create directory", path, diag);
    return with_hint(file_make_folder(path, diag), diag);
}

enum status durable_create(struct durable *d, const char *path,
                           struct durable_file *out, struct diag *diag)
{
    *out = (struct durable_file){.d = d, .path = path, .fd = -1};
    if (!point_path(d, DURABLE_CREATE, path, NULL))
        return fail(ST_CREATE, "create file", path, diag);
    return with_hint(file_open_write(path, &out->fd, diag), diag);
}

enum status durable_write(struct durable_file *f, const void *data, size_t bytes,
                          struct diag *diag)
{
    struct durable_event e = {.op = DURABLE_WRITE,
                              .path = f->path,
                              .fd = f->fd,
                              .offset = f->offset,
                              .data = data,
                              .bytes = bytes};
    if (!point(f->d, &e))
        return fail(ST_IO, "write file", f->path, diag);
    TRY(with_hint(file_write(f->fd, f->path, data, bytes, diag), diag));
    f->offset += (int64_t)bytes;
    return ST_OK;
}

enum status durable_finish(struct durable_file *f, struct diag *diag)
{
    struct durable_event e = {.op = DURABLE_FSYNC, .path = f->path, .fd = f->fd};
    enum status st = ST_OK;
    if (!point(f->d, &e))
        st = fail(ST_IO, "flush file", f->path, diag);
    else
        st = with_hint(file_sync(f->fd, f->path, diag), diag);
    if (st != ST_OK) {
        durable_abandon(f);
        return st;
    }
    int fd = f->fd;
    f->fd = -1;
    return with_hint(file_close(fd, f->path, diag), diag);
}

void durable_abandon(struct durable_file *f)
{
    if (f->fd >= 0)
        file_close_read(f->fd); /* what it holds is of no use: no error can matter */
    f->fd = -1;
}

enum status durable_write_file(struct durable *d, const char *path, const void *data,
                               size_t bytes, struct diag *diag)
{
    struct durable_file f;
    TRY(durable_create(d, path, &f, diag));
    enum status st = durable_write(&f, data, bytes, diag);
    if (st == ST_OK)
        return durable_finish(&f, diag);
    durable_abandon(&f);
    return st;
}

enum status durable_sync_dir(struct durable *d, const char *path, struct diag *diag)
{
    if (!point_path(d, DURABLE_FSYNC_DIR, path, NULL))
        return fail(ST_IO, "flush directory", path, diag);
    return with_hint(file_sync_folder(path, diag), diag);
}

enum status durable_rename(struct durable *d, const char *from, const char *to,
                           struct diag *diag)
{
    if (!point_path(d, DURABLE_RENAME, from, to) || rename(from, to) != 0)
        return fail(ST_IO, "rename", from, diag);
    return ST_OK;
}

enum status durable_replace_dir(struct durable *d, const char *from, const char *to,
                                const char *aside, struct diag *diag)
{
    if (access(to, F_OK) != 0)
        return durable_rename(d, from, to, diag);
    if (!point_path(d, DURABLE_EXCHANGE, from, to))
        return fail(ST_IO, "exchange", from, diag);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return ST_OK;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return fail(ST_IO, "exchange", from, diag);
    TRY(durable_rename(d, to, aside, diag));
    TRY(durable_rename(d, from, to, diag));
    return durable_rename(d, aside, from, diag);
}

/* Trees of a checkpoint are two deep; the limit stops a loop of mounts. */
#define TREE_DEPTH_MAX 16

static enum status remove_at(struct durable *d, const char *path, int depth,
                             struct diag *diag);

static enum status remove_dir(struct durable *d, const char *path, int depth,
                              struct diag *diag)
{
    struct arena arena = {0};
    struct str child = {0};
    char **names = NULL;
    int64_t n = 0;
    enum status st = file_list_folder(&arena, path, &names, &n, diag);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        str_clear(&child);
        str_printf(&child, "%s/%s", path, names[i]);
        st = remove_at(d, str_get(&child), depth + 1, diag);
    }
    str_free(&child);
    arena_release(&arena);
    TRY(st);
    if (!point_path(d, DURABLE_RMDIR, path, NULL) || rmdir(path) != 0)
        return fail(ST_IO, "remove directory", path, diag);
    return ST_OK;
}

static enum status remove_at(struct durable *d, const char *path, int depth,
                             struct diag *diag)
{
    struct stat s;
    if (lstat(path, &s) != 0)
        return errno == ENOENT ? ST_OK : fail(ST_IO, "read", path, diag);
    if (S_ISDIR(s.st_mode) && depth < TREE_DEPTH_MAX)
        return remove_dir(d, path, depth, diag);
    if (!point_path(d, DURABLE_UNLINK, path, NULL) || unlink(path) != 0)
        return fail(ST_IO, "remove", path, diag);
    return ST_OK;
}

enum status durable_remove_tree(struct durable *d, const char *path, struct diag *diag)
{
    return remove_at(d, path, 0, diag);
}
