#include "io/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/str.h"

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

static enum status fail(enum status st, const char *what, const char *path,
                        struct diag *diag)
{
    int err = errno;
    diag_set(diag, st, "cannot %s (%s): %s", what, path, strerror(err));
    if (err == ENOSPC || err == EDQUOT)
        diag_hint(diag, "free some space, or put the directory on another file system");
    else if (err == EFBIG)
        diag_hint(diag, "raise the file size limit (ulimit -f)");
    else if (err == EACCES || err == EPERM || err == EROFS)
        diag_hint(diag, "name a directory that this user may write to");
    return st;
}

enum status durable_mkdir(struct durable *d, const char *path, struct diag *diag)
{
    struct stat s;
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        return ST_OK;
    if (!point_path(d, DURABLE_MKDIR, path, NULL) || mkdir(path, 0777) != 0)
        return fail(ST_CREATE, "create directory", path, diag);
    return ST_OK;
}

enum status durable_mkdir_all(struct durable *d, const char *path, struct diag *diag)
{
    struct str part = {0};
    enum status st = ST_OK;
    for (const char *at = path; st == ST_OK && *at;) {
        size_t n = strspn(at, "/");
        n += strcspn(at + n, "/");
        str_add_n(&part, at, n);
        at += n;
        if (str_get(&part)[strspn(str_get(&part), "/")] != '\0')
            st = durable_mkdir(d, str_get(&part), diag);
    }
    str_free(&part);
    return st;
}

enum status durable_create(struct durable *d, const char *path,
                           struct durable_file *out, struct diag *diag)
{
    *out = (struct durable_file){.d = d, .path = path, .fd = -1};
    if (point_path(d, DURABLE_CREATE, path, NULL))
        out->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return out->fd < 0 ? fail(ST_CREATE, "create file", path, diag) : ST_OK;
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
        return fail(ST_IO, "write", f->path, diag);
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(f->fd, at, MIN(bytes, GIB));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return fail(ST_IO, "write", f->path, diag);
        at += n;
        bytes -= (size_t)n;
        f->offset += n;
    }
    return ST_OK;
}

enum status durable_finish(struct durable_file *f, struct diag *diag)
{
    struct durable_event e = {.op = DURABLE_FSYNC, .path = f->path, .fd = f->fd};
    enum status st = ST_OK;
    if (!point(f->d, &e) || fsync(f->fd) != 0)
        st = fail(ST_IO, "flush", f->path, diag);
    if (close(f->fd) != 0 && st == ST_OK)
        st = fail(ST_IO, "close", f->path, diag);
    f->fd = -1;
    return st;
}

void durable_abandon(struct durable_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
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
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail(ST_IO, "open directory", path, diag);
    enum status st = ST_OK;
    struct durable_event e = {.op = DURABLE_FSYNC_DIR, .path = path, .fd = fd};
    /* Some network file systems cannot flush directories and say EINVAL. */
    if (!point(d, &e) || (fsync(fd) != 0 && errno != EINVAL))
        st = fail(ST_IO, "flush directory", path, diag);
    close(fd);
    return st;
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

static enum status remove_entries(struct durable *d, const char *path, DIR *dir,
                                  int depth, struct diag *diag)
{
    enum status st = ST_OK;
    struct dirent *e;
    while (st == ST_OK && (e = readdir(dir)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        struct str child = {0};
        str_printf(&child, "%s/%s", path, e->d_name);
        st = remove_at(d, str_get(&child), depth + 1, diag);
        str_free(&child);
    }
    return st;
}

static enum status remove_dir(struct durable *d, const char *path, int depth,
                              struct diag *diag)
{
    DIR *dir = opendir(path);
    if (!dir)
        return fail(ST_IO, "open directory", path, diag);
    enum status st = remove_entries(d, path, dir, depth, diag);
    closedir(dir);
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
