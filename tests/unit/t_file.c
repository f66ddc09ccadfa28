/* Files and folders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "tests/lib/tmp.h"

struct fixture {
    struct arena a;
    const char *dir;
    struct tmp tmp;
};

static int set_up(void **state)
{
    static struct fixture f;
    f = (struct fixture){0};
    tmp_create(&f.tmp);
    f.dir = f.tmp.path;
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tmp_remove(&f->tmp);
    assert_false(file_exists(f->dir));
    arena_release(&f->a);
    return 0;
}

static void assert_content(const char *path, const char *want)
{
    struct diag diag = {0};
    struct str s = {0};
    assert_int_equal(file_read_all(path, 1 << 20, &s, &diag), ST_OK);
    assert_string_equal(str_get(&s), want);
    str_free(&s);
}

static void atomic_write(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *path = tmp_path(&f->tmp, "x");
    assert_int_equal(file_write_atomic(path, "one", 3, &diag), ST_OK);
    assert_int_equal(file_write_atomic(path, "second", 6, &diag), ST_OK);
    assert_content(path, "second");
    int64_t bytes = 0;
    assert_int_equal(file_size(path, &bytes, &diag), ST_OK);
    assert_int_equal(bytes, 6);
    char **names = NULL;
    int64_t n = 0;
    assert_int_equal(file_list_folder(&f->a, f->dir, &names, &n, &diag), ST_OK);
    assert_int_equal(n, 1);
    const char *lost = tmp_path(&f->tmp, "none/x");
    assert_int_equal(file_write_atomic(lost, "a", 1, &diag), ST_CREATE);
    assert_non_null(strstr(diag.text, lost));
    assert_non_null(strstr(diag.text, "No such file"));
}

/* A write that fails (here: beyond the size limit) leaves the old file and no other. */
static void failed_write_keeps_old(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *path = tmp_write_text(&f->tmp, "x", "old");
    static char big[64 * 1024];
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = file_write_atomic(path, big, sizeof(big), &diag);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(st, ST_IO);
    assert_non_null(strstr(diag.text, "File too large"));
    assert_content(path, "old");
    assert_false(file_exists(tmp_path(&f->tmp, "x.tmp")));
}

static void reading(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *path = tmp_write_text(&f->tmp, "x", "0123456789");
    struct str s = {0};
    assert_int_equal(file_read_all(path, 9, &s, &diag), ST_DATA);
    str_clear(&s);
    assert_int_equal(file_read_all(path, 10, &s, &diag), ST_OK);
    str_free(&s);
    int fd = -1;
    char buf[16];
    size_t got = 0;
    assert_int_equal(file_open_read(path, &fd, &diag), ST_OK);
    assert_int_equal(file_read(fd, path, buf, sizeof(buf), &got, &diag), ST_OK);
    assert_int_equal(got, 10);
    assert_int_equal(file_read_at(fd, path, 4, buf, 6, &diag), ST_OK);
    assert_memory_equal(buf, "456789", 6);
    assert_int_equal(file_read_at(fd, path, 4, buf, 7, &diag), ST_DATA);
    assert_non_null(strstr(diag.text, "got 6 bytes at offset 4, wanted 7"));
    file_close_read(fd);
    const char *none = tmp_path(&f->tmp, "none");
    assert_int_equal(file_open_read(none, &fd, &diag), ST_NOT_FOUND);
    assert_non_null(strstr(diag.text, none));
    assert_int_equal(file_open_read(f->dir, &fd, &diag), ST_IO);
    assert_non_null(strstr(diag.text, "got a folder"));
    const char *fifo = tmp_path(&f->tmp, "pipe");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(file_open_read(fifo, &fd, &diag), ST_IO);
    int64_t bytes;
    assert_int_equal(file_size(none, &bytes, &diag), ST_NOT_FOUND);
}

static void writing_at(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *path = tmp_path(&f->tmp, "x");
    int fd = -1;
    assert_int_equal(file_open_write(path, &fd, &diag), ST_OK);
    assert_int_equal(file_write_at(fd, path, 3, "def", 3, &diag), ST_OK);
    assert_int_equal(file_write(fd, path, "abc", 3, &diag), ST_OK);
    assert_int_equal(file_sync(fd, path, &diag), ST_OK);
    assert_int_equal(file_close(fd, path, &diag), ST_OK);
    assert_content(path, "abcdef");
}

static void folders(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *deep = tmp_path(&f->tmp, "a/b//c");
    assert_int_equal(file_make_folder(deep, &diag), ST_OK);
    assert_int_equal(file_make_folder(deep, &diag), ST_OK);
    assert_true(file_is_folder(deep));
    tmp_write_text(&f->tmp, "a/file", "x");
    assert_int_equal(file_make_folder(tmp_path(&f->tmp, "a/file/x"), &diag), ST_CREATE);
    assert_int_equal(file_make_folder(tmp_path(&f->tmp, "a/file"), &diag), ST_CREATE);
    assert_int_equal(file_remove_tree(tmp_path(&f->tmp, "a"), &diag), ST_OK);
    assert_int_equal(file_remove_tree(tmp_path(&f->tmp, "a"), &diag), ST_OK);
    assert_string_equal(file_folder_of(&f->a, "/x"), "/");
    assert_string_equal(file_folder_of(&f->a, "x"), ".");
    assert_string_equal(file_folder_of(&f->a, "a/b/c"), "a/b");
}

/* Removal takes a link away, not what it points to. */
static void remove_does_not_follow(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    const char *kept = tmp_write_text(&f->tmp, "kept/x", "x");
    assert_int_equal(file_make_folder(tmp_path(&f->tmp, "gone"), &diag), ST_OK);
    assert_int_equal(symlink("../kept", tmp_path(&f->tmp, "gone/link")), 0);
    assert_int_equal(file_remove_tree(tmp_path(&f->tmp, "gone"), &diag), ST_OK);
    assert_true(file_exists(kept));
}

static void listing(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    static const char *const names[] = {"b",        "a/z",         "a.txt",    "a/B",
                                        "\xc3\xa9", ".git/config", "a/.hidden"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        tmp_write_text(&f->tmp, names[i], "xy");
    assert_int_equal(symlink("..", tmp_path(&f->tmp, "a/up")), 0);
    assert_int_equal(symlink("nowhere", tmp_path(&f->tmp, "dangling")), 0);
    struct file_list l;
    assert_int_equal(file_list_tree(&f->a, f->dir, true, &l, &diag), ST_OK);
    static const char *const want[] = {"a.txt", "a/B", "a/z", "b", "\xc3\xa9"};
    assert_int_equal(l.n, ARRAY_LEN(want));
    for (int64_t i = 0; i < l.n; i++)
        assert_string_equal(l.data[i].name, want[i]);
    assert_int_equal(l.data[0].bytes, 2);
    assert_true(file_exists(l.data[1].path));
    assert_int_equal(l.n_hidden, 2);
    assert_int_equal(l.n_other, 2);
    assert_int_equal(file_list_tree(&f->a, f->dir, false, &l, &diag), ST_OK);
    assert_int_equal(l.n, 7);
    assert_string_equal(l.data[0].name, ".git/config");
    assert_int_equal(file_list_tree(&f->a, tmp_path(&f->tmp, "none"), true, &l, &diag),
                     ST_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(atomic_write, set_up, tear_down),
            cmocka_unit_test_setup_teardown(failed_write_keeps_old, set_up, tear_down),
            cmocka_unit_test_setup_teardown(reading, set_up, tear_down),
            cmocka_unit_test_setup_teardown(writing_at, set_up, tear_down),
            cmocka_unit_test_setup_teardown(folders, set_up, tear_down),
            cmocka_unit_test_setup_teardown(remove_does_not_follow, set_up, tear_down),
            cmocka_unit_test_setup_teardown(listing, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
