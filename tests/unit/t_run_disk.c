/* Disks that are full, too small, read-only, and directories that are in use: found before
 * training where that can be, and survived later. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/file.h"
#include "tests/lib/run_child.h"

/* Bytes of one checkpoint of the small model on disk, about: found out by set_up. */
struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *err;
    const char *dir;
    const char *mount; /* where a test mounts its own file system */
    int64_t ckpt_bytes;
};

static bool may_mount;

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 6, 20000);
    f->err = tmp_path(&f->tmp, "err");
    f->dir = tmp_path(&f->tmp, "run");
    f->mount = tmp_path(&f->tmp, "mount");
    assert_int_equal(mkdir(f->mount, 0777), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    while (umount2(f->mount, MNT_DETACH) == 0)
        ;
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

static struct child make_run(struct fixture *f, const char *dir, int steps)
{
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, steps);
    c.err = f->err;
    return c;
}

/* A file system of its own that holds so much; the mount is this process's alone. */
static void mount_small(struct fixture *f, int kib, unsigned long flags)
{
    char option[64];
    if (!may_mount) {
        print_message("SKIPPED: this user may not mount a file system\n");
        skip();
    }
    snprintf(option, sizeof(option), "size=%dk", kib);
    if (mount("none", f->mount, "tmpfs", flags, option) != 0)
        fail_msg("cannot mount: %s", strerror(errno));
}

static const char *below_mount(struct fixture *f, const char *name)
{
    char path[1200];
    snprintf(path, sizeof(path), "%s/%s", f->mount, name);
    return arena_strdup(&f->tmp.arena, path);
}

static void fill_up(const char *path, int64_t leave_bytes)
{
    char block[4096] = {0};
    int64_t n = 0;
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    for (ssize_t w; (w = write(fd, block, sizeof(block))) > 0;)
        n += w;
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(ftruncate(fd, n - leave_bytes), 0);
    close(fd);
}

/* ---- before training ---- */

static void test_full_at_start(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 256, 0);
    fill_up(below_mount(f, "filler"), 0);
    struct child c = make_run(f, below_mount(f, "run"), 4);
    child_expect(&c, 73);
    child_expect_text(&f->tmp, f->err, strerror(ENOSPC));
    child_expect_text(&f->tmp, f->err, f->mount);
    assert_null(strstr(child_text(&f->tmp, f->err), "step 1/4"));
}

static void test_little_room(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 1024, 0);
    fill_up(below_mount(f, "filler"), 60 * 1024);
    struct child c = make_run(f, below_mount(f, "run"), 4);
    child_expect(&c, 74);
    child_expect_text(&f->tmp, f->err,
                      "angel: warning: little room for checkpoints (checkpoint.dir ");
    child_expect_text(&f->tmp, f->err, "step 4/4");
    child_expect_text(&f->tmp, f->err, "free some space");
}

static void test_read_only(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 256, MS_RDONLY);
    struct child c = make_run(f, below_mount(f, "run"), 4);
    child_expect(&c, 73);
    child_expect_text(&f->tmp, f->err, strerror(EROFS));
    child_expect_text(&f->tmp, f->err, "name a directory that this user may write to");
}

/* An earlier run's directory that has become read-only. */
static void test_read_only_later(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 1024, 0);
    struct child c = make_run(f, below_mount(f, "run"), 4);
    child_expect(&c, 0);
    if (mount("none", f->mount, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL) != 0)
        fail_msg("cannot mount again: %s", strerror(errno));
    child_expect(&c, 73);
    child_expect_text(&f->tmp, f->err, strerror(EROFS));
}

static void become_nobody(void *arg)
{
    (void)arg;
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        _exit(96);
}

static void test_unwritable(void **state)
{
    struct fixture *f = *state;
    const char *dir = tmp_path(&f->tmp, "theirs");
    assert_int_equal(chmod(f->tmp.path, 0755), 0);
    assert_int_equal(mkdir(dir, 0555), 0);
    int fd = open(f->err, O_CREAT | O_WRONLY, 0666);
    assert_true(fd >= 0);
    close(fd);
    struct child c = make_run(f, dir, 4);
    c.prepare = become_nobody;
    child_expect(&c, 73);
    child_expect_text(&f->tmp, f->err, strerror(EACCES));
    child_expect_text(&f->tmp, f->err, dir);
}

static void test_file_in_the_way(void **state)
{
    struct fixture *f = *state;
    tmp_write_text(&f->tmp, "file", "x");
    struct child c = make_run(f, tmp_path(&f->tmp, "file"), 4);
    child_expect(&c, 73);
    struct child below = make_run(f, tmp_path(&f->tmp, "file/run"), 4);
    child_expect(&below, 73);
    child_expect_text(&f->tmp, f->err, "/file");
}

static void test_metrics_unwritable(void **state)
{
    struct fixture *f = *state;
    struct child c = make_run(f, f->dir, 4);
    char option[1200];
    snprintf(option, sizeof(option), "log.jsonl=%s", f->mount); /* a folder */
    child_arg(&c, option);
    child_expect(&c, 73);
    child_expect_text(&f->tmp, f->err, f->mount);
}

/* ---- later ---- */

/* Fills the file system before one step and makes room again before another. */
struct filler {
    const char *path;
    int64_t full_at, free_at;
};

static void filler_hook(void *arg, struct run *r, int attempt)
{
    const struct filler *x = arg;
    (void)attempt;
    if (r->at.step == x->full_at)
        fill_up(x->path, 0);
    if (r->at.step == x->free_at)
        unlink(x->path);
}

/* Full from step 4 to 10: saves and metrics fail, said once each; then all is well. */
static void test_full_for_a_while(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 2048, 0);
    const char *dir = below_mount(f, "run");
    struct filler x = {below_mount(f, "filler"), 4, 10};
    struct run_hooks hooks = {.before_compute = filler_hook, .arg = &x};
    struct child c = make_run(f, dir, 14);
    c.hooks = &hooks;
    child_arg(&c, "checkpoint.every=2");
    char tensorboard[1300], prometheus[1300];
    snprintf(tensorboard, sizeof(tensorboard), "log.tensorboard=%s",
             below_mount(f, "tb"));
    snprintf(prometheus, sizeof(prometheus), "log.prometheus=%s",
             below_mount(f, "figures.prom"));
    child_arg(&c, tensorboard);
    child_arg(&c, prometheus);
    child_expect(&c, 0);
    const char *err = child_text(&f->tmp, f->err);
    assert_int_equal(child_count(err, "not saved, training goes on"), 1);
    assert_int_equal(child_count(err, "checkpoint saved again (step 12)"), 1);
    assert_true(child_count(err, "lines of metrics are lost") <= 1);
    assert_int_equal(child_count(err, "lines of metrics that were lost"),
                     child_count(err, "lines of metrics are lost"));
    assert_non_null(strstr(err, strerror(ENOSPC)));
    struct child clean = make_run(f, f->dir, 14);
    child_expect(&clean, 0);
    assert_int_equal(child_digest(dir, 14), child_digest(f->dir, 14));
    /* No line of metrics is half there. */
    char metrics[1300];
    snprintf(metrics, sizeof(metrics), "%s/metrics.jsonl", dir);
    const char *text = child_text(&f->tmp, metrics);
    assert_int_equal(child_count(text, "\n{"), child_count(text, "}\n") - 1);
    assert_true(strlen(text) > 0 && text[strlen(text) - 1] == '\n');
}

/* Full to the end: the last save's error is the run's, what was saved before stays. */
static void test_full_to_the_end(void **state)
{
    struct fixture *f = *state;
    mount_small(f, 2048, 0);
    const char *dir = below_mount(f, "run");
    struct filler x = {below_mount(f, "filler"), 4, -1};
    struct run_hooks hooks = {.before_compute = filler_hook, .arg = &x};
    struct child c = make_run(f, dir, 6);
    c.hooks = &hooks;
    child_arg(&c, "checkpoint.every=3");
    child_expect(&c, 74);
    child_digest(dir, 3);
    assert_true(access(child_step_path(&f->tmp, dir, 6, ""), F_OK) != 0);
    unlink(x.path);
    c.hooks = NULL;
    child_expect(&c, 0);
    child_digest(dir, 6);
}

static void limit_files(void *arg)
{
    const struct rlimit limit = {*(const rlim_t *)arg, *(const rlim_t *)arg};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        _exit(96);
}

/* A limit on the size of files (a quota says EDQUOT or EFBIG alike): warned of, not killed
 * by its signal. */
static void test_file_size_limit(void **state)
{
    struct fixture *f = *state;
    rlim_t limit = 30000;
    struct child c = make_run(f, f->dir, 4);
    child_arg(&c, "checkpoint.every=1");
    c.prepare = limit_files;
    c.prepare_arg = &limit;
    child_expect(&c, 74);
    const char *err = child_text(&f->tmp, f->err);
    assert_non_null(strstr(err, "files may not grow as large as a checkpoint's"));
    assert_int_equal(child_count(err, "not saved, training goes on"), 1);
    assert_non_null(strstr(err, strerror(EFBIG)));
    assert_non_null(strstr(err, "ulimit -f"));
    assert_non_null(strstr(err, "step 4/4"));
}

/* ---- two jobs ---- */

static void wait_hook(void *arg, struct run *r, int attempt)
{
    const int *ends = arg;
    char c = 'x';
    (void)attempt;
    if (r->at.step != 1)
        return;
    if (write(ends[0], &c, 1) != 1 || read(ends[1], &c, 1) != 1)
        _exit(96);
}

struct pipes {
    int ready[2], go[2];
};

/* Each side keeps its ends alone, so that it sees the other's end. */
static void close_other_ends(void *arg)
{
    const struct pipes *p = arg;
    close(p->ready[0]);
    close(p->go[1]);
}

static void test_two_jobs(void **state)
{
    struct fixture *f = *state;
    struct pipes p;
    char c;
    assert_int_equal(pipe(p.ready), 0);
    assert_int_equal(pipe(p.go), 0);
    int ends[2] = {p.ready[1], p.go[0]};
    struct run_hooks hooks = {.before_compute = wait_hook, .arg = ends};
    struct child first = make_run(f, f->dir, 4);
    first.err = tmp_path(&f->tmp, "err-first");
    first.hooks = &hooks;
    first.prepare = close_other_ends;
    first.prepare_arg = &p;
    pid_t pid = child_start(&first);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(read(p.ready[0], &c, 1), 1); /* it trains */
    struct child second = make_run(f, f->dir, 4);
    child_expect(&second, 73);
    char words[64];
    snprintf(words, sizeof(words), "locked by process %ld on host ", (long)pid);
    child_expect_text(&f->tmp, f->err, "checkpoint directory is in use (");
    child_expect_text(&f->tmp, f->err, words);
    child_expect_text(&f->tmp, f->err, "another checkpoint.dir");
    assert_int_equal(write(p.go[1], "x", 1), 1);
    assert_int_equal(child_wait(pid), 0); /* and was not disturbed */
    child_digest(f->dir, 4);
    close(p.ready[0]);
    close(p.go[1]);
}

/* ---- data that goes away ---- */

static void cut_hook(void *arg, struct run *r, int attempt)
{
    (void)attempt;
    if (r->at.step == 5 && truncate(arg, 300) != 0)
        _exit(96);
}

/* The text shrinks while it is read: what was trained is saved, the file is named. */
static void test_shrinking_data(void **state)
{
    struct fixture *f = *state;
    const char *text = child_corpus(&f->tmp, "shrinks.txt", 7, 20000);
    struct run_hooks hooks = {.before_compute = cut_hook,
                              .arg = (void *)(uintptr_t)text};
    struct child c = child_pretrain(&f->tmp, text, f->dir, 200);
    c.err = f->err;
    c.hooks = &hooks;
    child_arg(&c, "data.shuffle=false");
    int code = child_run(&c);
    const char *err = child_text(&f->tmp, f->err);
    if (code != 65 && code != 74)
        fail_msg("ended with %d: %s", code, err);
    assert_non_null(strstr(err, text));
    assert_non_null(strstr(err, "saved after step "));
    print_message("%s", strstr(err, "angel: "));
}

static bool try_mounts(void)
{
    uid_t uid = geteuid();
    if (unshare(CLONE_NEWNS) != 0) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            return false;
        int n = snprintf(map, sizeof(map), "0 %u 1", (unsigned)uid);
        int fd = open("/proc/self/uid_map", O_WRONLY);
        bool mapped = fd >= 0 && write(fd, map, (size_t)n) == n;
        if (fd >= 0)
            close(fd);
        if (!mapped)
            return false;
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_full_at_start),      TEST(test_little_room),
            TEST(test_read_only),          TEST(test_read_only_later),
            TEST(test_unwritable),         TEST(test_file_in_the_way),
            TEST(test_metrics_unwritable), TEST(test_full_for_a_while),
            TEST(test_full_to_the_end),    TEST(test_file_size_limit),
            TEST(test_two_jobs),           TEST(test_shrinking_data),
    };
    child_use_memory();
    may_mount = try_mounts();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
