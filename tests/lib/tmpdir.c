#include "tests/lib/tmpdir.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/str.h"
#include "io/file.h"

static void must(enum status st, const struct diag *diag)
{
    if (st == ST_OK)
        return;
    log_diag(diag);
    abort();
}

const char *tmpdir_make(struct arena *a)
{
    const char *top = getenv("TMPDIR");
    struct str s = {0};
    str_printf(&s, "%s/angel-test-XXXXXX", top && *top ? top : "/tmp");
    char *path = arena_strdup(a, s.s);
    str_free(&s);
    if (!mkdtemp(path))
        abort();
    return path;
}

const char *tmpdir_path(struct arena *a, const char *folder, const char *name)
{
    struct str s = {0};
    str_printf(&s, "%s/%s", folder, name);
    const char *path = arena_strdup(a, s.s);
    str_free(&s);
    return path;
}

const char *tmpdir_write(struct arena *a, const char *folder, const char *name,
                         const void *data, size_t n)
{
    struct diag diag = {0};
    const char *path = tmpdir_path(a, folder, name);
    int fd = -1;
    must(file_make_folder(file_folder_of(a, path), &diag), &diag);
    must(file_open_write(path, &fd, &diag), &diag);
    must(file_write(fd, path, data, n, &diag), &diag);
    must(file_close(fd, path, &diag), &diag);
    return path;
}

const char *tmpdir_write_text(struct arena *a, const char *folder, const char *name,
                              const char *text)
{
    return tmpdir_write(a, folder, name, text, strlen(text));
}

void tmpdir_remove(const char *folder)
{
    struct diag diag = {0};
    must(file_remove_tree(folder, &diag), &diag);
}
