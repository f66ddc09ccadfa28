/* Going on from checkpoints that are damaged, of another model, of a newer format, or of
 * another configuration. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/ckpt_format.h"
#include "io/durable.h"
#include "io/file.h"
#include "tests/lib/run_child.h"

/* A run of 6 steps with checkpoints of steps 2, 4 and 6, made once; a test works on a copy
 * and goes on to step 8. */
struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *whole; /* 8 steps, undisturbed */
    const char *dir;   /* the copy */
    const char *err;
    uint64_t want; /* digest of step 8 */
};

static const char *const shards[] = {"model-00000-of-00001.azs",
                                     "optim-00000-of-00001.azs"};
static const char *const small[] = {"COMMIT", "manifest.json", "index.zst",
                                    "state.json"};

static struct child make_run(struct fixture *f, const char *dir, int steps)
{
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, steps);
    c.err = f->err;
    child_arg(&c, "checkpoint.every=2");
    child_arg(&c, "checkpoint.keep=0");
    return c;
}

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 4, 20000);
    f->whole = tmp_path(&f->tmp, "whole");
    f->dir = tmp_path(&f->tmp, "run");
    f->err = tmp_path(&f->tmp, "err");
    struct child c = make_run(f, f->whole, 8);
    child_expect(&c, 0);
    f->want = child_digest(f->whole, 8);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

static void must(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s", diag->text);
}

static void copy_file(const char *from, const char *to)
{
    struct str text = {0};
    struct diag diag = {0};
    must(file_read_all(from, 16 * (int64_t)MIB, &text, &diag), &diag);
    must(durable_write_file(NULL, to, str_get(&text), text.n, &diag), &diag);
    str_free(&text);
}

/* Steps 2, 4 and 6 as the run left them. */
static void start_over(struct fixture *f)
{
    struct diag diag = {0};
    must(file_remove_tree(f->dir, &diag), &diag);
    for (int64_t step = 2; step <= 6; step += 2) {
        must(file_make_folder(child_step_path(&f->tmp, f->dir, step, ""), &diag),
             &diag);
        for (size_t i = 0; i < ARRAY_LEN(shards) + ARRAY_LEN(small); i++) {
            const char *name = i < 2 ? shards[i] : small[i - 2];
            copy_file(child_step_path(&f->tmp, f->whole, step, name),
                      child_step_path(&f->tmp, f->dir, step, name));
        }
    }
}

/* `resume: auto` skips step 6 with a warning, goes on from step 4, and ends as if nothing
 * had been; a run that names step 6 is refused. */
static void expect_skipped(struct fixture *f, const char *words)
{
    char named[1300];
    snprintf(named, sizeof(named), "checkpoint.resume=%s",
             child_step_path(&f->tmp, f->dir, 6, ""));
    struct child refused = make_run(f, f->dir, 8);
    child_arg(&refused, named);
    child_expect(&refused, 65);
    child_expect_text(&f->tmp, f->err, words);
    assert_true(access(child_step_path(&f->tmp, f->dir, 8, ""), F_OK) != 0);
    struct child c = make_run(f, f->dir, 8);
    child_expect(&c, 0);
    child_expect_text(
            &f->tmp, f->err,
            "angel: warning: skipping the checkpoint of step 6, looking for an "
            "older one: ");
    child_expect_text(&f->tmp, f->err, words);
    child_expect_text(&f->tmp, f->err, "step 4 of 8 from ");
    assert_int_equal(child_digest(f->dir, 8), f->want);
}

/* Not by way of io/durable: thousands of flushes would take long. */
static void flip(const char *path, int64_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static int64_t size_of(const char *path)
{
    int64_t bytes = 0;
    struct diag diag = {0};
    must(file_size(path, &bytes, &diag), &diag);
    return bytes;
}

/* Each file: flipped in its middle, cut short, missing. */
static void test_damaged_files(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(shards) + ARRAY_LEN(small); i++)
        for (int how = 0; how < 3; how++) {
            const char *name = i < 2 ? shards[i] : small[i - 2];
            start_over(f);
            const char *path = child_step_path(&f->tmp, f->dir, 6, name);
            if (how == 0)
                flip(path, size_of(path) / 2);
            else if (how == 1)
                assert_int_equal(truncate(path, size_of(path) / 2), 0);
            else
                assert_int_equal(unlink(path), 0);
            /* Without its COMMIT it is a directory that never became a checkpoint. */
            expect_skipped(f, name);
        }
}

/* Reads all of the checkpoint of step 6. Returns whether it is as it was. */
static bool reads_well(struct fixture *f, struct shard_crew *crew, bool *refused)
{
    struct ckpt *ck;
    struct diag diag = {0};
    static float x[1 << 16];
    enum status st = ckpt_open(child_step_path(&f->tmp, f->dir, 6, ""), &ck, &diag);
    *refused = st != ST_OK;
    if (st != ST_OK) {
        assert_int_equal(st, ST_DATA);
        return false;
    }
    const struct ckpt_info *info = ckpt_get_info(ck);
    for (int64_t i = 0; i < info->n_tensors && st == ST_OK; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
        st = ckpt_read_tensor(ck, t->kind, t->name, crew, x, &diag);
    }
    *refused = st != ST_OK;
    if (st != ST_OK)
        assert_int_equal(st, ST_DATA);
    ckpt_close(ck);
    return st == ST_OK;
}

/* Every byte of the small files, every 7th of the shards. What reading does not notice
 * lies between the tensors, and then verifying does. */
static void test_any_byte(void **state)
{
    struct fixture *f = *state;
    struct shard_crew *crew = shard_crew_create(NULL);
    int64_t n = 0, n_refused = 0, n_verified = 0;
    start_over(f);
    for (size_t i = 0; i < ARRAY_LEN(shards) + ARRAY_LEN(small); i++) {
        const char *path =
                child_step_path(&f->tmp, f->dir, 6, i < 2 ? shards[i] : small[i - 2]);
        int64_t bytes = size_of(path);
        for (int64_t at = 0; at < bytes; at += i < 2 ? 7 : 1, n++) {
            bool refused;
            flip(path, at);
            if (reads_well(f, crew, &refused)) {
                struct ckpt *ck;
                struct diag diag = {0};
                int64_t n_damaged;
                must(ckpt_open(child_step_path(&f->tmp, f->dir, 6, ""), &ck, &diag),
                     &diag);
                assert_int_equal(
                        ckpt_verify(ck, false, crew, NULL, NULL, &n_damaged, &diag),
                        ST_DATA);
                ckpt_close(ck);
                n_verified++;
            }
            n_refused += refused;
            flip(path, at);
        }
    }
    print_message("%lld bytes flipped one by one: %lld found in reading, %lld in "
                  "verifying\n",
                  (long long)n, (long long)n_refused, (long long)n_verified);
    assert_int_equal(n, n_refused + n_verified);
    assert_true(n_verified * 20 < n);
    shard_crew_destroy(crew);
}

static void test_newer_version(void **state)
{
    struct fixture *f = *state;
    struct str text = {0};
    struct diag diag = {0};
    struct ckpt_commit commit;
    start_over(f);
    const char *path = child_step_path(&f->tmp, f->dir, 6, "COMMIT");
    must(file_read_all(path, 64, &text, &diag), &diag);
    assert_true(ckpt_commit_get((uint8_t *)text.s, &commit));
    commit.version_major++;
    ckpt_commit_put(&commit, (uint8_t *)text.s);
    must(durable_write_file(NULL, path, text.s, text.n, &diag), &diag);
    str_free(&text);
    expect_skipped(f, "newer format");
}

/* All damaged: to begin anew would bury the work of weeks. */
static void test_all_damaged(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    for (int64_t step = 2; step <= 6; step += 2)
        flip(child_step_path(&f->tmp, f->dir, step, shards[0]), 200);
    struct child c = make_run(f, f->dir, 8);
    child_expect(&c, 65);
    child_expect_text(&f->tmp, f->err, "no checkpoint can be used (");
    child_expect_text(&f->tmp, f->err,
                      "got 3, the newest of step 6, wanted a whole one");
    assert_int_equal(
            child_count(child_text(&f->tmp, f->err), "looking for an older one"), 3);
}

static void test_other_model(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    child_arg(&c, "model.layers=2");
    child_expect(&c, 2);
    child_expect_text(&f->tmp, f->err, "model.layers changed since the checkpoint (");
    child_expect_text(&f->tmp, f->err, "): got 2, wanted 1\n");
    /* Allowed, it still is not this model's state. */
    child_arg(&c, "--allow-change");
    child_arg(&c, "model.layers");
    child_expect(&c, 65);
    child_expect_text(&f->tmp, f->err, "checkpoint lacks tensor 'layers.1.");
    char named[1300];
    snprintf(named, sizeof(named), "checkpoint.resume=%s",
             child_step_path(&f->tmp, f->dir, 6, ""));
    child_arg(&c, named);
    child_expect(&c, 65);
}

/* ---- another configuration ---- */

static void test_changed_config(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    static const char *const more[] = {"train.optimizer.lr=1e-3",
                                       "train.optimizer.clip=0.5", "log.every=2",
                                       "checkpoint.keep=5"};
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        child_arg(&c, more[i]);
    child_expect(&c, 2);
    /* All that differs is said, what is refused with it. */
    static const char *const said[] = {
            "changed since the checkpoint: train.optimizer.lr from 0.003 to 0.001",
            "changed since the checkpoint: train.optimizer.clip from 1 to 0.5",
            "changed since the checkpoint: log.every from 1 to 2",
            "changed since the checkpoint: checkpoint.keep from 0 to 5",
            "angel: train.optimizer.lr changed since the checkpoint (",
            "): got 0.001, wanted 0.003\n",
            "--allow-change train.optimizer.lr --allow-change train.optimizer.clip"};
    for (size_t i = 0; i < ARRAY_LEN(said); i++)
        child_expect_text(&f->tmp, f->err, said[i]);
    child_arg(&c, "--allow-change=train.optimizer.lr");
    child_expect(&c, 2);
    child_expect_text(&f->tmp, f->err, "angel: train.optimizer.clip changed since");
    child_arg(&c, "--allow-change=train.optimizer.clip");
    /* It follows from the rate, and is a key of its own. */
    child_arg(&c, "--allow-change=train.schedule.min_lr");
    child_expect(&c, 0);
    assert_true(child_digest(f->dir, 8) != f->want);
}

/* What does not change the mathematics changes no bit. */
static void test_harmless_change(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    child_arg(&c, "train.threads=2");
    child_arg(&c, "memory.activations=recompute");
    child_arg(&c, "train.nonfinite=stop");
    child_expect(&c, 0);
    child_expect_text(&f->tmp, f->err,
                      "changed since the checkpoint: train.threads from 1 to 2");
    assert_int_equal(child_digest(f->dir, 8), f->want);
}

static void test_unknown_allowed_key(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    child_arg(&c, "--allow-change=train.optimiser.lr");
    child_expect(&c, 2);
    child_expect_text(&f->tmp, f->err, "did you mean train.optimizer.lr?");
}

/* Other data: allowed by name, and a new segment of the data begins. */
static void test_other_data(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    char data[1300];
    snprintf(data, sizeof(data), "data.train=%s",
             child_corpus(&f->tmp, "other.txt", 5, 20000));
    child_arg(&c, data);
    child_expect(&c, 2);
    child_arg(&c, "--allow-change=data.train");
    child_expect(&c, 0);
    child_expect_text(&f->tmp, f->err, "a new data segment begins at sample 24");
    assert_true(child_digest(f->dir, 8) != f->want);
}

/* A fresh run must not mix with what is there. */
static void test_never(void **state)
{
    struct fixture *f = *state;
    start_over(f);
    struct child c = make_run(f, f->dir, 8);
    child_arg(&c, "checkpoint.resume=never");
    child_expect(&c, 2);
    child_expect_text(&f->tmp, f->err, "got a directory with checkpoints (step 6)");
}

#define TEST(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_damaged_files),   TEST(test_any_byte),
            TEST(test_newer_version),   TEST(test_all_damaged),
            TEST(test_other_model),     TEST(test_changed_config),
            TEST(test_harmless_change), TEST(test_unknown_allowed_key),
            TEST(test_other_data),      TEST(test_never),
    };
    child_use_memory();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
