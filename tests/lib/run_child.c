#include "tests/lib/run_child.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/opt.h"
#include "core/rng.h"
#include "io/ckpt_format.h"
#include "io/file.h"

#define SHOWN_BYTES 900

void child_use_memory(void)
{
    if (!opt_env("TMPDIR") && access("/dev/shm", W_OK | X_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
}

const char *child_corpus(struct tmp *t, const char *name, uint64_t seed, int64_t bytes)
{
    static const char words[] = "the cat sat on a mat and ate rice. ";
    char *text = mem_alloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) {
        uint64_t u = rng_u64(seed, 9, (uint64_t)(i / 5));
        text[i] = words[(u + (uint64_t)i % 5) % (sizeof(words) - 1)];
    }
    const char *path = tmp_write(t, name, text, (size_t)bytes);
    mem_free(text);
    return path;
}

static const char *printed(struct tmp *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

static const char *printed(struct tmp *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return arena_strdup(&t->arena, text);
}

void child_arg(struct child *c, const char *arg)
{
    assert_true(c->n_args < CHILD_ARGS_MAX);
    c->args[c->n_args++] = arg;
}

struct child child_pretrain(struct tmp *t, const char *corpus, const char *dir,
                            int steps)
{
    static const char *const fixed[] = {"pretrain",
                                        "model.vocab=257",
                                        "model.layers=1",
                                        "model.hidden=16",
                                        "model.heads=2",
                                        "model.kv_heads=1",
                                        "model.ffn=24",
                                        "data.seq_len=16",
                                        "train.global_batch=4",
                                        "train.micro_batch=2",
                                        "train.schedule.warmup=2",
                                        "train.optimizer.lr=3e-3",
                                        "train.threads=1",
                                        "log.every=1"};
    struct child c = {0};
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        child_arg(&c, fixed[i]);
    child_arg(&c, printed(t, "data.train=%s", corpus));
    child_arg(&c, printed(t, "checkpoint.dir=%s", dir));
    child_arg(&c, printed(t, "train.steps=%d", steps));
    return c;
}

static void redirect(const char *path, int to)
{
    int fd = open(path ? path : "/dev/null", O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || dup2(fd, to) < 0)
        _exit(99);
    close(fd);
}

static int pretrain(const struct child *c)
{
    struct cmd_args args;
    struct diag diag = {0};
    enum status st =
            cmd_args_parse(c->n_args, (char **)(uintptr_t)c->args, &args, &diag);
    struct run_hooks hooks = c->hooks ? *c->hooks : (struct run_hooks){0};
    hooks.peak_flops = 1e9;
    int code = st == ST_OK ? run_pretrain(&args, &hooks) : cmd_fail(st, &diag);
    cmd_args_free(&args);
    fflush(stdout);
    fflush(stderr);
    return code;
}

pid_t child_fork(void)
{
    static const int defaults[] = {SIGINT,  SIGTERM, SIGHUP, SIGPIPE, SIGALRM, SIGABRT,
                                   SIGSEGV, SIGBUS,  SIGFPE, SIGILL,  SIGSYS};
    fflush(stdout);
    fflush(stderr);
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    /* The test library's handlers, and its failing assertions, would jump into this copy
     * of the test program, which would run the tests that follow. */
    for (size_t i = 0; i < ARRAY_LEN(defaults); i++)
        signal(defaults[i], SIG_DFL);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(98);
    alarm(CHILD_LIMIT_S);
    return 0;
}

pid_t child_start(const struct child *c)
{
    pid_t pid = child_fork();
    if (pid > 0)
        return pid;
    redirect(c->out, STDOUT_FILENO);
    redirect(c->err, STDERR_FILENO);
    log_set_level(LOG_INFO);
    if (c->prepare)
        c->prepare(c->prepare_arg);
    _exit(pretrain(c));
}

int child_wait(pid_t pid)
{
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        ;
    assert_int_equal(got, pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int child_run(const struct child *c)
{
    return child_wait(child_start(c));
}

static void show(const char *path)
{
    struct str text = {0};
    struct diag diag = {0};
    /* Its end, where errors are: cmocka prints so much and no more. */
    if (path && file_read_all(path, 16 * (int64_t)MIB, &text, &diag) == ST_OK)
        print_message("%s", str_get(&text) + text.n - MIN(text.n, SHOWN_BYTES));
    str_free(&text);
}

void child_expect(const struct child *c, int code)
{
    int got = child_run(c);
    if (got == code)
        return;
    show(c->err);
    fail_msg("the run ended with %d, not %d", got, code);
}

const char *child_text(struct tmp *t, const char *path)
{
    struct str text = {0};
    struct diag diag = {0};
    if (file_read_all(path, 64 * (int64_t)MIB, &text, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    const char *out = arena_strndup(&t->arena, str_get(&text), text.n);
    str_free(&text);
    return out;
}

void child_expect_text(struct tmp *t, const char *path, const char *words)
{
    if (strstr(child_text(t, path), words))
        return;
    show(path);
    fail_msg("the text above lacks '%s'", words);
}

int child_count(const char *text, const char *words)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, words)); at += strlen(words))
        n++;
    return n;
}

const char *child_step_path(struct tmp *t, const char *dir, int64_t step,
                            const char *name)
{
    char step_name[CKPT_NAME_BYTES];
    return printed(t, "%s/%s%s%s", dir, ckpt_step_name(step, step_name),
                   *name ? "/" : "", name);
}

static void check_finite(const struct ckpt *ck, int64_t i, struct shard_crew *crew)
{
    struct diag diag = {0};
    const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
    struct box whole = box_whole(t->ndim, t->shape);
    int64_t n = box_elems(&whole);
    float *x = mem_alloc((size_t)n * sizeof(*x));
    assert_int_equal(t->dtype, DT_F32);
    if (ckpt_read_tensor(ck, t->kind, t->name, crew, x, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    for (int64_t j = 0; j < n; j++)
        if (!isfinite(x[j]))
            fail_msg("%s: element %lld is not finite", t->name, (long long)j);
    mem_free(x);
}

uint64_t child_digest(const char *dir, int64_t step)
{
    struct ckpt *ck;
    struct diag diag = {0};
    char path[1024], name[CKPT_NAME_BYTES];
    snprintf(path, sizeof(path), "%s/%s", dir, ckpt_step_name(step, name));
    if (ckpt_open(path, &ck, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    struct shard_crew *crew = shard_crew_create(NULL);
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (int64_t i = 0; i < info->n_tensors; i++)
        check_finite(ck, i, crew);
    uint64_t digest = info->digest;
    shard_crew_destroy(crew);
    ckpt_close(ck);
    return digest;
}
