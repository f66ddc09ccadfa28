#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/vec.h"

/* Linux moves at most 2 GiB - 4 KiB a call; pieces stay well below. */
#define PIECE_BYTES ((size_t)1 << 30)

static enum status fail_read(struct diag *diag, const char *what, const char *path)
{
    int err = errno;
    bool missing = err == ENOENT || err == ENOTDIR;
    return diag_set(diag, missing ? ST_NOT_FOUND : ST_IO,
                    "cannot %s (%s): system says %s", what, path, strerror(err));
}

static enum status fail_as(struct diag *diag, enum status st, const char *what,
                           const char *path)
{
    return diag_set(diag, st, "cannot %s (%s): system says %s", what, path,
                    strerror(errno));
}

static int open_retry(const char *path, int flags)
{
    int fd = -1;
    do
        fd = open(path, flags | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
}

enum status file_open_read(const char *path, int *fd, struct diag *diag)
{
    /* O_NONBLOCK: a pipe without a writer must not hang the open. */
    int f = open_retry(path, O_RDONLY | O_NONBLOCK);
    if (f < 0)
        return fail_read(diag, "open file", path);
    struct stat s;
    if (fstat(f, &s) != 0) {
        enum status st = fail_read(diag, "read file's state", path);
        close(f);
        return st;
    }
    if (!S_ISREG(s.st_mode)) {
        close(f);
        return diag_set(diag, ST_IO, "cannot read (%s): got a %s, wanted a file", path,
                        S_ISDIR(s.st_mode) ? "folder" : "device or pipe");
    }
    *fd = f;
    return ST_OK;
}

enum status file_open_write(const char *path, int *fd, struct diag *diag)
{
    int f = open_retry(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (f < 0)
        return fail_as(diag, ST_CREATE, "create file", path);
    *fd = f;
    return ST_OK;
}

enum status file_close(int fd, const char *path, struct diag *diag)
{
    /* After EINTR the descriptor is gone on Linux: nothing is left to repeat. */
    if (close(fd) != 0 && errno != EINTR)
        return fail_as(diag, ST_IO, "close file", path);
    return ST_OK;
}

void file_close_read(int fd)
{
    (void)close(fd); /* nothing was written: no error can matter */
}

enum status file_read(int fd, const char *path, void *buf, size_t n, size_t *got,
                      struct diag *diag)
{
    size_t have = 0;
    while (have < n) {
        ssize_t r = read(fd, (char *)buf + have, MIN(n - have, PIECE_BYTES));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return fail_read(diag, "read file", path);
        if (r == 0)
            break;
        have += (size_t)r;
    }
    *got = have;
    return ST_OK;
}

enum status file_read_at(int fd, const char *path, int64_t offset, void *buf, size_t n,
                         struct diag *diag)
{
    size_t have = 0;
    while (have < n) {
        ssize_t r = pread(fd, (char *)buf + have, MIN(n - have, PIECE_BYTES),
                          offset + (int64_t)have);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return fail_read(diag, "read file", path);
        if (r == 0)
            return diag_set(
                    diag, ST_DATA,
                    "file ends early (%s): got %zu bytes at offset %lld, wanted "
                    "%zu",
                    path, have, (long long)offset, n);
        have += (size_t)r;
    }
    return ST_OK;
}

enum status file_write(int fd, const char *path, const void *buf, size_t n,
                       struct diag *diag)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = write(fd, (const char *)buf + done, MIN(n - done, PIECE_BYTES));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return fail_as(diag, ST_IO, "write file", path);
        done += (size_t)r;
    }
    return ST_OK;
}

enum status file_write_at(int fd, const char *path, int64_t offset, const void *buf,
                          size_t n, struct diag *diag)
{
    size_t done = 0;
    while (done < n) {
        ssize_t r = pwrite(fd, (const char *)buf + done, MIN(n - done, PIECE_BYTES),
                           offset + (int64_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return fail_as(diag, ST_IO, "write file", path);
        done += (size_t)r;
    }
    return ST_OK;
}

static int sync_retry(int fd)
{
    int r;
    do
        r = fsync(fd);
    while (r != 0 && errno == EINTR);
    return r;
}

enum status file_sync(int fd, const char *path, struct diag *diag)
{
    if (sync_retry(fd) != 0)
        return fail_as(diag, ST_IO, "sync file to disk", path);
    return ST_OK;
}

enum status file_sync_folder(const char *path, struct diag *diag)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail_read(diag, "open folder", path);
    /* Some network file systems refuse to sync a folder: they have nothing to sync. */
    if (sync_retry(fd) != 0 && errno != EINVAL && errno != ENOTSUP) {
        enum status st = fail_as(diag, ST_IO, "sync folder to disk", path);
        close(fd);
        return st;
    }
    close(fd);
    return ST_OK;
}

static enum status read_to_end(int fd, const char *path, int64_t limit_bytes,
                               struct str *out, struct diag *diag)
{
    char *buf = mem_alloc(256 * KIB);
    int64_t total = 0;
    enum status st = ST_OK;
    for (;;) {
        size_t got = 0;
        TRY_GOTO(file_read(fd, path, buf, 256 * KIB, &got, diag), done);
        total += (int64_t)got;
        if (total > limit_bytes) {
            st = diag_set(diag, ST_DATA,
                          "file is too large (%s): got more than %lld bytes, wanted at "
                          "most that",
                          path, (long long)limit_bytes);
            goto done;
        }
        str_add_n(out, buf, got);
        if (got < 256 * KIB)
            goto done;
    }
done:
    mem_free(buf);
    return st;
}

enum status file_read_all(const char *path, int64_t limit_bytes, struct str *out,
                          struct diag *diag)
{
    int fd = -1;
    TRY(file_open_read(path, &fd, diag));
    enum status st = read_to_end(fd, path, limit_bytes, out, diag);
    file_close_read(fd);
    return st;
}

const char *file_folder_of(struct arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return ".";
    if (slash == path)
        return "/";
    return arena_strndup(a, path, (size_t)(slash - path));
}

static enum status write_new(const char *path, const void *data, size_t n,
                             struct diag *diag)
{
    int fd = -1;
    TRY(file_open_write(path, &fd, diag));
    enum status st = file_write(fd, path, data, n, diag);
    if (st == ST_OK)
        st = file_sync(fd, path, diag);
    if (st != ST_OK) {
        close(fd); /* the first failure is the one to report */
        return st;
    }
    return file_close(fd, path, diag);
}

enum status file_write_atomic(const char *path, const void *data, size_t n,
                              struct diag *diag)
{
    struct str tmp = {0};
    str_printf(&tmp, "%s.tmp", path);
    enum status st = write_new(tmp.s, data, n, diag);
    if (st == ST_OK)
        st = file_rename(tmp.s, path, diag);
    if (st != ST_OK)
        (void)unlink(tmp.s); /* may not exist */
    str_free(&tmp);
    return st;
}

enum status file_rename(const char *from, const char *to, struct diag *diag)
{
    if (rename(from, to) != 0)
        return diag_set(diag, ST_CREATE, "cannot rename (%s to %s): system says %s",
                        from, to, strerror(errno));
    struct arena a = {0};
    enum status st = file_sync_folder(file_folder_of(&a, to), diag);
    arena_release(&a);
    return st;
}

static enum status make_one(const char *path, struct diag *diag)
{
    if (mkdir(path, 0777) == 0)
        return ST_OK;
    if (errno == EEXIST && file_is_folder(path))
        return ST_OK;
    return fail_as(diag, ST_CREATE, "create folder", path);
}

enum status file_make_folder(const char *path, struct diag *diag)
{
    struct str part = {0};
    enum status st = ST_OK;
    for (const char *p = path; *p && st == ST_OK; p++) {
        if (*p == '/' && part.n > 0 && !file_is_folder(part.s))
            st = make_one(part.s, diag);
        str_addc(&part, *p);
    }
    if (st == ST_OK)
        st = make_one(path, diag);
    str_free(&part);
    return st;
}

bool file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool file_is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

enum status file_size(const char *path, int64_t *bytes, struct diag *diag)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return fail_read(diag, "read file's state", path);
    if (!S_ISREG(s.st_mode))
        return diag_set(diag, ST_IO,
                        "no size (%s): got a folder or device, wanted a file", path);
    *bytes = (int64_t)s.st_size;
    return ST_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status file_list_folder(struct arena *a, const char *path, char ***names,
                             int64_t *n, struct diag *diag)
{
    DIR *d = opendir(path);
    if (!d)
        return fail_read(diag, "open folder", path);
    VEC(char *) v = {0};
    struct dirent *e;
    errno = 0;
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            vec_push(&v, arena_strdup(a, e->d_name));
        errno = 0;
    }
    enum status st = errno ? fail_read(diag, "read folder", path) : ST_OK;
    closedir(d);
    if (st == ST_OK) {
        *names = arena_array(a, char *, v.n);
        if (v.n > 0)
            memcpy(*names, v.data, v.n * sizeof(char *));
        *n = v.n;
        qsort(*names, v.n, sizeof(char *), compare_names);
    }
    vec_free(&v);
    return st;
}

enum status file_remove_tree(const char *path, struct diag *diag)
{
    struct stat s;
    if (lstat(path, &s) != 0)
        return errno == ENOENT ? ST_OK : fail_read(diag, "read state", path);
    if (!S_ISDIR(s.st_mode)) {
        if (unlink(path) != 0 && errno != ENOENT)
            return fail_as(diag, ST_IO, "remove file", path);
        return ST_OK;
    }
    struct arena a = {0};
    struct str child = {0};
    char **names = NULL;
    int64_t n = 0;
    enum status st = file_list_folder(&a, path, &names, &n, diag);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        str_clear(&child);
        str_printf(&child, "%s/%s", path, names[i]);
        st = file_remove_tree(child.s, diag);
    }
    if (st == ST_OK && rmdir(path) != 0 && errno != ENOENT)
        st = fail_as(diag, ST_IO, "remove folder", path);
    str_free(&child);
    arena_release(&a);
    return st;
}

/* The folders from the root down to the one being listed: a link back to one of them
 * would never end. */
struct ancestor {
    const struct ancestor *above;
    dev_t dev;
    ino_t ino;
};

struct lister {
    struct arena *a;
    bool skip_hidden;
    struct file_list *out;
    VEC(struct file_entry) files;
    struct diag *diag;
};

static bool is_ancestor(const struct ancestor *up, const struct stat *s)
{
    for (; up; up = up->above) {
        if (up->dev == s->st_dev && up->ino == s->st_ino)
            return true;
    }
    return false;
}

static enum status list_below(struct lister *l, const char *path, const char *name,
                              const struct ancestor *above);

static enum status list_one(struct lister *l, const char *path, const char *name,
                            const struct ancestor *above)
{
    struct stat s;
    if (stat(path, &s) != 0) {
        if (errno != ENOENT && errno != ELOOP)
            return fail_read(l->diag, "read state", path);
        l->out->n_other++;
        return ST_OK;
    }
    if (S_ISREG(s.st_mode)) {
        struct file_entry e = {path, name, (int64_t)s.st_size};
        vec_push(&l->files, e);
        return ST_OK;
    }
    if (!S_ISDIR(s.st_mode) || is_ancestor(above, &s)) {
        l->out->n_other++;
        return ST_OK;
    }
    struct ancestor here = {above, s.st_dev, s.st_ino};
    return list_below(l, path, name, &here);
}

static char *join(struct arena *a, const char *folder, const char *name)
{
    struct str s = {0};
    size_t n = strlen(folder);
    bool slash = n > 0 && folder[n - 1] != '/';
    str_printf(&s, "%s%s%s", folder, slash ? "/" : "", name);
    char *copy = arena_strdup(a, s.s);
    str_free(&s);
    return copy;
}

static enum status list_below(struct lister *l, const char *path, const char *name,
                              const struct ancestor *above)
{
    char **names = NULL;
    int64_t n = 0;
    TRY(file_list_folder(l->a, path, &names, &n, l->diag));
    for (int64_t i = 0; i < n; i++) {
        if (l->skip_hidden && names[i][0] == '.') {
            l->out->n_hidden++;
            continue;
        }
        const char *below = join(l->a, path, names[i]);
        TRY(list_one(l, below, join(l->a, name, names[i]), above));
    }
    return ST_OK;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct file_entry *)a)->name,
                  ((const struct file_entry *)b)->name);
}

enum status file_list_tree(struct arena *a, const char *root, bool skip_hidden,
                           struct file_list *out, struct diag *diag)
{
    *out = (struct file_list){0};
    struct lister l = {.a = a, .skip_hidden = skip_hidden, .out = out, .diag = diag};
    struct stat s;
    if (stat(root, &s) != 0)
        return fail_read(diag, "open folder", root);
    struct ancestor here = {NULL, s.st_dev, s.st_ino};
    enum status st = list_below(&l, root, "", &here);
    if (st == ST_OK) {
        out->data = arena_array(a, struct file_entry, l.files.n);
        out->n = l.files.n;
        if (out->n > 0)
            memcpy(out->data, l.files.data, l.files.n * sizeof(*out->data));
        qsort(out->data, (size_t)out->n, sizeof(*out->data), compare_entries);
    }
    vec_free(&l.files);
    return st;
}
