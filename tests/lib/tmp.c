#include "tests/lib/tmp.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/opt.h"

void tmp_create(struct tmp *t)
{
    const char *base = opt_env("TMPDIR");
    struct str pattern = {0};
    *t = (struct tmp){0};
    str_printf(&pattern, "%s/angel-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(pattern.s))
        BUG("cannot make a folder like %s", pattern.s);
    t->path = arena_strdup(&t->arena, pattern.s);
    str_free(&pattern);
}

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

void tmp_remove(struct tmp *t)
{
    if (nftw(t->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        BUG("cannot remove %s", t->path);
    arena_release(&t->arena);
}

const char *tmp_path(struct tmp *t, const char *name)
{
    struct str path = {0};
    str_printf(&path, "%s/%s", t->path, name);
    const char *out = arena_strdup(&t->arena, path.s);
    str_free(&path);
    return out;
}

static void make_folders(struct tmp *t, const char *path)
{
    for (const char *p = path + strlen(t->path) + 1; (p = strchr(p, '/')); p++) {
        /* One that is there already is as good. */
        (void)mkdir(arena_strndup(&t->arena, path, (size_t)(p - path)), 0777);
    }
}

const char *tmp_write(struct tmp *t, const char *name, const void *data, size_t n)
{
    const char *path = tmp_path(t, name);
    make_folders(t, path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        BUG("cannot write %s", path);
    return path;
}

const char *tmp_write_text(struct tmp *t, const char *name, const char *text)
{
    return tmp_write(t, name, text, strlen(text));
}
