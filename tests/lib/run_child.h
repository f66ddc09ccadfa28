/* Training runs in processes of their own, with a model so small that a run takes a
 * fraction of a second: to be killed, stopped, starved, and compared by their digests. */
#ifndef TESTS_LIB_RUN_CHILD_H
#define TESTS_LIB_RUN_CHILD_H

#include <sys/types.h>

#include "cmd/run.h"
#include "tests/lib/tmp.h"

#define CHILD_ARGS_MAX 64

/* No child lives longer: SIGALRM ends one that hangs, and its waiting parent sees that. */
#define CHILD_LIMIT_S 240

/* What a child is to do: `angel pretrain` with these arguments. */
struct child {
    const char *args[CHILD_ARGS_MAX];
    int n_args;
    const struct run_hooks *hooks; /* NULL: none */
    const char *out, *err;         /* files of stdout and stderr; NULL: /dev/null */
    void (*prepare)(void *arg);    /* in the new process, before it runs; may be NULL */
    void *prepare_arg;
};

/* Puts the folders of tests into memory, where that is possible and TMPDIR is not set:
 * many saves, each flushed, take long on a disk. */
void child_use_memory(void);

/* Text of `bytes` bytes, the same for the same seed, in a file of the folder. */
const char *child_corpus(struct tmp *t, const char *name, uint64_t seed, int64_t bytes);

/* A run of the small model on `corpus` with checkpoints in `dir`: `steps` steps on one
 * thread, without evaluation. More arguments may be added and replace these. */
struct child child_pretrain(struct tmp *t, const char *corpus, const char *dir,
                            int steps);
void child_arg(struct child *c, const char *arg);

/* fork() for tests: the child is no test. It has the signals' defaults, so that a crash
 * ends it; a failed assertion aborts it; it ends with its parent, or after CHILD_LIMIT_S.
 * It must leave by _exit(). Fails the test where there is no new process. */
pid_t child_fork(void);

pid_t child_start(const struct child *c);

/* The exit code, or the negative number of the signal that ended it. */
int child_wait(pid_t pid);

/* Both. */
int child_run(const struct child *c);

/* Runs and fails the test, showing stderr, unless it ends with `code`. */
void child_expect(const struct child *c, int code);

/* The text of a file, in the folder's arena. */
const char *child_text(struct tmp *t, const char *path);

/* Fails the test where the file `path` lacks `words`. */
void child_expect_text(struct tmp *t, const char *path, const char *words);

/* How often `words` stand in `text`. */
int child_count(const char *text, const char *words);

/* Sum of the hashes of all tensors in the checkpoint of `step`, every one of which must
 * decode and be finite. Fails the test where there is none. */
uint64_t child_digest(const char *dir, int64_t step);

/* Path of a file in the checkpoint of `step`, in the folder's arena; name "" for its own. */
const char *child_step_path(struct tmp *t, const char *dir, int64_t step,
                            const char *name);

#endif
