/* A directory of checkpoints: the lock, listing, the newest valid one, retention. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/log.h"
#include "core/str.h"
#include "core/vec.h"
#include "io/ckpt_format.h"
#include "io/file.h"

#define LOCK_TEXT_BYTES 512

struct ckpt_lock {
    int fd;
};

/* Who holds it, in the words the holder wrote. */
static enum status lock_held(int fd, const char *path, struct diag *diag)
{
    char who[LOCK_TEXT_BYTES + 1] = {0};
    ssize_t n = pread(fd, who, LOCK_TEXT_BYTES, 0);
    who[n > 0 ? n : 0] = '\0';
    who[strcspn(who, "\n")] = '\0';
    diag_set(diag, ST_CREATE,
             "checkpoint directory is in use (%s): locked by %s, wanted one job a "
             "directory",
             path, who[0] ? who : "a process that left no name");
    diag_hint(diag, "end that process, or give this run another checkpoint.dir");
    return ST_CREATE;
}

static enum status lock_failed(const char *what, const char *path, struct diag *diag)
{
    return diag_set(diag, ST_CREATE, "cannot %s (%s): system says %s", what, path,
                    strerror(errno));
}

/* The text serves the other job's message; the lock itself is the kernel's. */
static enum status write_holder(int fd, const char *path, struct diag *diag)
{
    char host[256];
    char text[LOCK_TEXT_BYTES];
    if (gethostname(host, sizeof(host)) != 0)
        host[0] = '\0';
    host[sizeof(host) - 1] = '\0';
    int n = snprintf(text, sizeof(text), "process %ld on host %s\n", (long)getpid(),
                     host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return lock_failed("write lock file", path, diag);
    return ST_OK;
}

/* Removes what a killed job left: unfinished and half-removed checkpoints. */
static enum status clean(const char *dir, struct durable *d, struct diag *diag)
{
    struct arena a = {0};
    char **names = NULL;
    int64_t n = 0;
    enum status st = file_list_folder(&a, dir, &names, &n, diag);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        bool tmp = strncmp(names[i], CKPT_TMP_PREFIX, strlen(CKPT_TMP_PREFIX)) == 0;
        bool trash =
                strncmp(names[i], CKPT_TRASH_PREFIX, strlen(CKPT_TRASH_PREFIX)) == 0;
        if (!tmp && !trash)
            continue;
        log_info("removing what an earlier job left unfinished: %s/%s", dir, names[i]);
        st = durable_remove_tree(d, ckpt_join(&a, dir, names[i]), diag);
    }
    arena_release(&a);
    return st;
}

/* Names of a new directory and those above it reach the disk. Some may not be open to
 * this user, and were there before: no error of theirs matters. */
static void sync_above(struct arena *a, const char *dir)
{
    struct diag unused = {0};
    const char *at = dir;
    for (const char *up; strcmp(up = file_folder_of(a, at), at) != 0; at = up)
        if (file_sync_folder(up, &unused) != ST_OK)
            return;
}

enum status ckpt_lock(const char *dir, struct durable *d, struct ckpt_lock **lock,
                      struct diag *diag)
{
    bool is_new = !file_is_folder(dir);
    TRY(durable_mkdir(d, dir, diag));
    struct arena a = {0};
    if (is_new)
        sync_above(&a, dir);
    const char *path = ckpt_join(&a, dir, ".lock");
    enum status st = ST_OK;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        st = lock_failed("open lock file", path, diag);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        st = errno == EWOULDBLOCK ? lock_held(fd, path, diag)
                                  : lock_failed("lock", path, diag);
    if (st == ST_OK)
        st = write_holder(fd, path, diag);
    if (st == ST_OK)
        st = clean(dir, d, diag);
    arena_release(&a);
    if (st != ST_OK) {
        if (fd >= 0)
            close(fd);
        return st;
    }
    *lock = mem_alloc(sizeof(**lock));
    (*lock)->fd = fd;
    return ST_OK;
}

/* The file stays: removing it would race with a job that has just opened it. */
void ckpt_unlock(struct ckpt_lock *lock)
{
    if (!lock)
        return;
    close(lock->fd);
    mem_free(lock);
}

static int compare_descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

enum status ckpt_list_steps(struct arena *a, const char *dir, int64_t **steps,
                            int64_t *n, struct diag *diag)
{
    char **names = NULL;
    int64_t n_names = 0;
    TRY(file_list_folder(a, dir, &names, &n_names, diag));
    *steps = arena_array(a, int64_t, n_names);
    *n = 0;
    for (int64_t i = 0; i < n_names; i++)
        if (ckpt_step_of(names[i]) >= 0)
            (*steps)[(*n)++] = ckpt_step_of(names[i]);
    qsort(*steps, (size_t)*n, sizeof(**steps), compare_descending);
    return ST_OK;
}

static const char *step_path(struct arena *a, const char *dir, int64_t step)
{
    char name[CKPT_NAME_BYTES];
    return ckpt_join(a, dir, ckpt_step_name(step, name));
}

static enum status none_valid(const char *dir, int64_t n_damaged, struct diag *diag)
{
    if (n_damaged == 0)
        return diag_set(diag, ST_NOT_FOUND,
                        "no checkpoint found (%s): got no step-... folder, wanted one",
                        dir);
    diag_set(diag, ST_NOT_FOUND, "no valid checkpoint found (%s): %lld damaged", dir,
             (long long)n_damaged);
    diag_hint(diag, "'angel ckpt verify' says what is damaged in each");
    return ST_NOT_FOUND;
}

static enum status open_newest(const char *dir, int64_t below_step, bool loud,
                               struct ckpt **out, struct diag *diag)
{
    struct arena a = {0};
    int64_t *steps = NULL;
    int64_t n = 0;
    int64_t n_damaged = 0;
    struct ckpt *found = NULL;
    enum status st = ckpt_list_steps(&a, dir, &steps, &n, diag);
    for (int64_t i = 0; i < n && st == ST_OK && !found; i++) {
        struct diag why = {0};
        if (steps[i] >= below_step ||
            ckpt_open(step_path(&a, dir, steps[i]), &found, &why) == ST_OK)
            continue;
        n_damaged++;
        if (loud)
            log_warn(
                    "skipping the checkpoint of step %lld, looking for an older one: %s",
                    (long long)steps[i], why.text);
    }
    arena_release(&a);
    if (st == ST_OK && !found)
        st = none_valid(dir, n_damaged, diag);
    if (st == ST_OK)
        *out = found;
    return st;
}

enum status ckpt_open_newest(const char *dir, int64_t below_step, struct ckpt **out,
                             struct diag *diag)
{
    return open_newest(dir, below_step, true, out, diag);
}

static bool is_step_dir(struct arena *a, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *trimmed = arena_strndup(a, path, n);
    const char *slash = strrchr(trimmed, '/');
    return ckpt_step_of(slash ? slash + 1 : trimmed) >= 0 ||
           file_exists(ckpt_join(a, path, "COMMIT")) ||
           file_exists(ckpt_join(a, path, "manifest.json"));
}

enum status ckpt_open_any(const char *path, struct ckpt **out, bool *searched,
                          struct diag *diag)
{
    struct arena a = {0};
    *searched = !is_step_dir(&a, path);
    arena_release(&a);
    return *searched ? ckpt_open_newest(path, INT64_MAX, out, diag)
                     : ckpt_open(path, out, diag);
}

enum status ckpt_open_quietly(const char *path, struct ckpt **out, struct diag *diag)
{
    struct arena a = {0};
    bool one = is_step_dir(&a, path);
    arena_release(&a);
    return one ? ckpt_open(path, out, diag)
               : open_newest(path, INT64_MAX, false, out, diag);
}

enum status ckpt_open_last(const char *path, struct ckpt **out, bool *searched,
                           struct diag *diag)
{
    struct arena a = {0};
    int64_t *steps, n = 0;
    *searched = !is_step_dir(&a, path);
    const char *step = path;
    enum status st = *searched ? ckpt_list_steps(&a, path, &steps, &n, diag) : ST_OK;
    if (st == ST_OK && *searched)
        st = n > 0 ? ST_OK : none_valid(path, 0, diag);
    if (st == ST_OK && *searched)
        step = step_path(&a, path, steps[0]);
    if (st == ST_OK)
        st = ckpt_open(step, out, diag);
    arena_release(&a);
    return st;
}

/* Renamed first: a step's name never stands for half a checkpoint. */
static enum status remove_step(struct arena *a, const char *dir, int64_t step,
                               struct durable *d, struct diag *diag)
{
    char name[CKPT_NAME_BYTES];
    struct str trash = {0};
    str_printf(&trash, CKPT_TRASH_PREFIX "%s", ckpt_step_name(step, name));
    const char *to = ckpt_join(a, dir, str_get(&trash));
    str_free(&trash);
    TRY(durable_remove_tree(d, to, diag));
    TRY(durable_rename(d, step_path(a, dir, step), to, diag));
    return durable_remove_tree(d, to, diag);
}

static bool is_valid(const char *path)
{
    struct ckpt *ck;
    if (ckpt_open(path, &ck, NULL) != ST_OK)
        return false;
    ckpt_close(ck);
    return true;
}

enum status ckpt_prune(const char *dir, int keep, int64_t protect_step,
                       struct durable *d, int64_t *n_removed, struct diag *diag)
{
    ASSERT(keep >= 1);
    struct arena a = {0};
    int64_t *steps = NULL;
    int64_t n = 0;
    int kept = 0;
    *n_removed = 0;
    enum status st = ckpt_list_steps(&a, dir, &steps, &n, diag);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        if (kept < keep) {
            /* Damaged ones among the newest stay, to be looked at. */
            kept += is_valid(step_path(&a, dir, steps[i]));
            continue;
        }
        if (steps[i] == protect_step)
            continue;
        st = remove_step(&a, dir, steps[i], d, diag);
        *n_removed += st == ST_OK;
    }
    arena_release(&a);
    return st;
}
