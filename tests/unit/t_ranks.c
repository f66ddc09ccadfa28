/* Runs of several ranks, as threads of a process: layouts end with the bits, or within the
 * limits, that they must; runs that are stopped, resumed under the same and under other
 * layouts; ranks that hang, fail to save, or compute what is not finite. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/hash.h"
#include "io/file.h"
#include "tests/lib/run_child.h"

#define STEPS    6
#define LOSS_TOL 1e-5
#define ARGS_MAX 6

struct fixture {
    struct tmp tmp;
    const char *corpus;
    const char *err;
    int n_dirs;
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->corpus = child_corpus(&f->tmp, "corpus.txt", 3, 30000);
    f->err = tmp_path(&f->tmp, "err");
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

static const char *new_dir(struct fixture *f)
{
    char name[32];
    snprintf(name, sizeof(name), "run-%d", f->n_dirs++);
    return tmp_path(&f->tmp, name);
}

/* A model that 4 stages and 4 tensor ranks can share; an odd vocabulary. */
static struct child make_run(struct fixture *f, const char *dir, int steps,
                             const char *const *layout)
{
    static const char *const fixed[] = {
            "model.layers=4",          "model.heads=4",
            "model.kv_heads=2",        "model.hidden=32",
            "train.global_batch=8",    "train.micro_batch=1",
            "data.valid_fraction=0.1", "train.eval_every=3",
            "train.eval_batches=1",    "checkpoint.every=3",
            "checkpoint.keep=0",       "parallel.deadline_s=60"};
    struct child c = child_pretrain(&f->tmp, f->corpus, dir, steps);
    c.err = f->err;
    for (size_t i = 0; i < ARRAY_LEN(fixed); i++)
        child_arg(&c, fixed[i]);
    for (; *layout; layout++)
        child_arg(&c, *layout);
    return c;
}

/* The losses of all steps and evaluations, in order. */
static int read_losses(struct fixture *f, const char *dir, double *loss, int most)
{
    char path[1200];
    int n = 0;
    snprintf(path, sizeof(path), "%s/metrics.jsonl", dir);
    const char *at = child_text(&f->tmp, path);
    while ((at = strstr(at, "\"loss\":"))) {
        at += strlen("\"loss\":");
        assert_true(n < most);
        loss[n++] = strtod(at, NULL);
    }
    return n;
}

/* ---- layouts ---- */

/* Layouts of one tier 1 class end with the same bits; all are near the one rank. */
static const struct {
    int class;
    const char *args[ARGS_MAX];
} layouts[] = {
        {0, {NULL}},
        {0, {"--threads-ranks=1", NULL}},
        {0, {"--threads-ranks=2", "parallel.pp=2", NULL}},
        {0, {"--threads-ranks=2", "parallel.pp=2", "parallel.vpp=2", NULL}},
        {0, {"--threads-ranks=2", "parallel.pp=2", "parallel.schedule=zb", NULL}},
        {0,
         {"--threads-ranks=3", "parallel.pp=3", "parallel.layers_per_stage=1,0,3",
          NULL}},
        {0,
         {"--threads-ranks=4", "parallel.pp=4", "memory.activations=recompute", NULL}},
        {1, {"--threads-ranks=2", "parallel.dp=2", "parallel.zero=0", NULL}},
        {1, {"--threads-ranks=2", NULL}}, /* auto: dp 2, zero 1 */
        {1, {"--threads-ranks=2", "parallel.zero=2", NULL}},
        {1, {"--threads-ranks=2", "parallel.zero=3", NULL}},
        {1, {"--threads-ranks=4", "parallel.pp=2", "parallel.zero=1", NULL}},
        {2, {"--threads-ranks=2", "parallel.tp=2", NULL}},
        {2, {"--threads-ranks=4", "parallel.tp=2", "parallel.pp=2", NULL}},
        {2,
         {"--threads-ranks=4", "parallel.tp=2", "parallel.pp=2",
          "parallel.order=pp,dp,cp,tp", NULL}},
        {3, {"--threads-ranks=4", "parallel.tp=4", NULL}},
        {4,
         {"--threads-ranks=8", "parallel.tp=2", "parallel.pp=2", "parallel.zero=3",
          NULL}},
        {4, {"--threads-ranks=4", "parallel.tp=2", "parallel.zero=1", NULL}},
        {5,
         {"--threads-ranks=2", "parallel.zero=2", "parallel.zero_accumulate=sharded",
          NULL}},
};

static const char *layout_text(const char *const *args, char *buf, size_t n)
{
    size_t at = 0;
    buf[0] = '\0';
    for (; *args && at < n; args++)
        at += (size_t)snprintf(buf + at, n - at, "%s ", *args);
    return buf;
}

static double worst_loss(const double *a, const double *b, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]) / fabs(b[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static void test_layouts(void **state)
{
    struct fixture *f = *state;
    uint64_t want[8] = {0};
    double one[32], got[32];
    int n_one = 0;
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        char text[256];
        const char *dir = new_dir(f);
        struct child c = make_run(f, dir, STEPS, layouts[i].args);
        layout_text(layouts[i].args, text, sizeof(text));
        print_message("%s", text);
        child_expect(&c, 0);
        int n = read_losses(f, dir, got, ARRAY_LEN(got));
        if (i == 0) {
            n_one = n;
            memcpy(one, got, sizeof(one));
            assert_int_equal(n, STEPS + 2 + 1); /* train, eval, summary */
        }
        assert_int_equal(n, n_one);
        double worst = worst_loss(got, one, n);
        uint64_t digest = child_digest(dir, STEPS);
        print_message("loss %.1e, digest %016llx\n", worst, (unsigned long long)digest);
        assert_true(worst <= LOSS_TOL);
        if (want[layouts[i].class] == 0)
            want[layouts[i].class] = digest;
        assert_int_equal(digest, want[layouts[i].class]);
    }
}

/* ---- resume ---- */

static const char *resume_arg(struct fixture *f, const char *dir, int64_t step)
{
    char text[1300];
    snprintf(text, sizeof(text), "checkpoint.resume=%s",
             child_step_path(&f->tmp, dir, step, ""));
    return arena_strdup(&f->tmp.arena, text);
}

static void test_resume(void **state)
{
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
        if (!layouts[i].args[0])
            continue;
        const char *whole = new_dir(f), *part = new_dir(f);
        struct child a = make_run(f, whole, STEPS, layouts[i].args);
        child_expect(&a, 0);
        struct child b = make_run(f, part, STEPS, layouts[i].args);
        child_arg(&b, resume_arg(f, whole, 3));
        child_expect(&b, 0);
        assert_int_equal(child_digest(part, STEPS), child_digest(whole, STEPS));
    }
    print_message("%zu layouts\n", ARRAY_LEN(layouts) - 1);
}

/* Where element e of a rank's box of a parameter lies in the logical tensor. */
static int64_t logical(const struct run *r, uint32_t param, int64_t e)
{
    const struct lowered_param *p = &r->train[0].low.params[param];
    const struct param *row = &r->model.params[param];
    if (row->ndim == 1)
        return p->begin[0] + e;
    return (p->begin[0] + e / p->dim[1]) * row->dim[1] + p->begin[1] + e % p->dim[1];
}

static void check_piece(const struct run *r, const struct ckpt *ck,
                        const struct lowered_piece *p, struct shard_crew *crew)
{
    static const enum ckpt_kind kinds[] = {CKPT_WEIGHT, CKPT_EXP_AVG, CKPT_EXP_AVG_SQ};
    const uint32_t values[] = {p->master, p->exp_avg, p->exp_avg_sq};
    const struct param *row = &r->model.params[p->param];
    struct diag diag = {0};
    float *whole = mem_alloc((size_t)param_elems(row) * sizeof(*whole));
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        const float *x = exec_view(r->train[0].exec, values[k], 0).data;
        if (ckpt_read_tensor(ck, kinds[k], row->name, crew, whole, &diag) != ST_OK)
            fail_msg("%s", diag.text);
        for (int64_t e = 0; e < p->n; e++)
            if (memcmp(&x[e], &whole[logical(r, p->param, p->first + e)], sizeof(*x)))
                fail_msg("rank %d, %s (%s): element %lld differs", r->ranks.rank,
                         row->name, ckpt_kind_name(kinds[k]), (long long)e);
    }
    mem_free(whole);
}

/* Before the first step, what each rank holds is what the checkpoint `arg` holds. */
static void check_loaded(void *arg, struct run *r, int attempt)
{
    struct ckpt *ck;
    struct diag diag = {0};
    if (r->at.step != 3 || attempt > 0)
        return;
    if (ckpt_open(arg, &ck, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    struct shard_crew *crew = shard_crew_create(NULL);
    for (uint32_t i = 0; i < r->train[0].low.n_pieces; i++)
        check_piece(r, ck, &r->train[0].low.pieces[i], crew);
    shard_crew_destroy(crew);
    ckpt_close(ck);
}

/* From layouts' checkpoints to one rank, and to others: the state that is loaded is the one
 * that was saved, whatever the ranks. */
static void test_resume_elsewhere(void **state)
{
    static const char *const to[][ARGS_MAX] = {
            {NULL},
            {"--threads-ranks=8", "parallel.tp=2", "parallel.pp=2", NULL},
            {"--threads-ranks=4", "parallel.zero=3", NULL}};
    struct fixture *f = *state;
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(layouts); i += 3) {
        const char *from = new_dir(f);
        struct child a = make_run(f, from, STEPS, layouts[i].args);
        child_expect(&a, 0);
        struct run_hooks hooks = {
                .before_compute = check_loaded,
                .arg = (void *)(uintptr_t)child_step_path(&f->tmp, from, 3, "")};
        for (size_t k = 0; k < ARRAY_LEN(to); k++, n++) {
            struct child b = make_run(f, new_dir(f), STEPS, to[k]);
            b.hooks = &hooks;
            child_arg(&b, resume_arg(f, from, 3));
            child_expect(&b, 0);
        }
    }
    print_message("%d changes of layout\n", n);
}

/* ---- data ---- */

/* What all ranks of all runs add to: the samples that were trained, by number. */
struct seen {
    atomic_ullong sum, n;
};

/* Adds the hash of (number, tokens) of each of this rank's sequences. */
static void see_samples(void *arg, struct run *r, int attempt)
{
    struct seen *s = arg;
    struct run_program *p = run_program_next(r);
    int64_t len = r->config->data.seq_len, m = r->micro_batch;
    uint32_t n_mb = p->low.program.n_micro_batches;
    if (attempt > 0 || r->place.coord[MESH_TP] > 0 || r->place.coord[MESH_PP] > 0)
        return;
    int64_t number = r->at.samples + r->place.coord[MESH_DP] * n_mb * m;
    int32_t *tokens = mem_alloc((size_t)(m * len) * sizeof(*tokens));
    for (uint32_t mb = 0; mb < n_mb; mb++) {
        exec_read(p->exec, p->low.tokens, mb, tokens);
        for (int64_t i = 0; i < m; i++, number++) {
            struct hash_chain h = {0};
            hash_chain_add(&h, &number, sizeof(number));
            hash_chain_add(&h, tokens + i * len, (size_t)len * sizeof(*tokens));
            atomic_fetch_add(&s->sum, h.value);
            atomic_fetch_add(&s->n, 1);
        }
    }
    mem_free(tokens);
}

static struct seen *shared_seen(void)
{
    struct seen *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    return s;
}

/* Two steps with each layout, one behind the other: every sample once, as one rank sees
 * them. */
static void test_samples_once(void **state)
{
    static const char *const parts[][ARGS_MAX] = {
            {"--threads-ranks=2", "parallel.dp=2", NULL},
            {"--threads-ranks=4", "parallel.dp=4", NULL},
            {NULL},
            {"--threads-ranks=4", "parallel.tp=2", "parallel.dp=2", NULL},
            {"--threads-ranks=4", "parallel.pp=2", "parallel.dp=2", NULL}};
    struct fixture *f = *state;
    struct seen *s = shared_seen();
    struct run_hooks hooks = {.before_compute = see_samples, .arg = s};
    const char *whole = new_dir(f), *dir = new_dir(f);
    struct child one = make_run(f, whole, 2 * ARRAY_LEN(parts), parts[2]);
    one.hooks = &hooks;
    child_expect(&one, 0);
    uint64_t want = s->sum, n = s->n;
    s->sum = s->n = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct child c = make_run(f, dir, 2 * (int)(i + 1), parts[i]);
        c.hooks = &hooks;
        child_arg(&c, "--allow-change");
        child_arg(&c, "train.steps");
        child_arg(&c, "train.schedule.warmup=1");
        child_arg(&c, "train.schedule.type=constant");
        child_expect(&c, 0);
    }
    print_message("%llu samples\n", (unsigned long long)n);
    assert_int_equal(n, 8 * 2 * ARRAY_LEN(parts));
    assert_int_equal(s->n, n);
    assert_int_equal(s->sum, want);
    munmap(s, sizeof(*s));
}

/* ---- trouble ---- */

struct trouble {
    int rank;
    int64_t step;
};

static bool is_here(const struct trouble *t, const struct run *r)
{
    return r->ranks.rank == t->rank && r->at.step == t->step;
}

static void hang(void *arg, struct run *r, int attempt)
{
    (void)attempt;
    while (is_here(arg, r))
        pause();
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_hang(void **state)
{
    struct fixture *f = *state;
    static const char *const args[] = {"--threads-ranks=3", "parallel.pp=3",
                                       "parallel.deadline_s=1", NULL};
    for (int rank = 0; rank < 3; rank += 2) {
        struct trouble t = {rank, 2};
        struct run_hooks hooks = {.before_compute = hang, .arg = &t};
        struct child c = make_run(f, new_dir(f), STEPS, args);
        c.hooks = &hooks;
        double start = seconds();
        child_expect(&c, 75);
        char words[64];
        double took = seconds() - start;
        print_message("rank %d hangs: %.1f s\n", rank, took);
        assert_true(took < 60); /* of which 1 s and 5 s are waits */
        snprintf(words, sizeof(words), "angel: rank %d: does not answer", rank);
        child_expect_text(&f->tmp, f->err, words);
        for (int i = 0; i < 3; i++) {
            snprintf(words, sizeof(words), "angel: rank %d: ", i);
            child_expect_text(&f->tmp, f->err, words);
        }
        child_expect_text(&f->tmp, f->err, "did not arrive within 1 s");
    }
}

/* A signal that one rank alone has seen at this step. */
static void signal_once(void *arg, struct run *r, int attempt)
{
    (void)attempt;
    if (is_here(arg, r))
        kill(getpid(), SIGTERM); /* this thread blocks it */
}

static void test_stop(void **state)
{
    struct fixture *f = *state;
    static const char *const args[] = {"--threads-ranks=4", "parallel.tp=2",
                                       "parallel.zero=2", NULL};
    const char *whole = new_dir(f), *dir = new_dir(f);
    struct child a = make_run(f, whole, STEPS, args);
    child_expect(&a, 0);
    for (int step = 0; step < 4; step += 3) {
        struct trouble t = {3, step};
        struct run_hooks hooks = {.before_compute = signal_once, .arg = &t};
        struct child c = make_run(f, dir, STEPS, args);
        c.hooks = &hooks;
        child_expect(&c, 75);
        const char *text = child_text(&f->tmp, f->err);
        assert_int_equal(child_count(text, "angel: stopped by Terminated after"), 1);
        assert_int_equal(child_count(text, "saved in"), 1);
    }
    struct child b = make_run(f, dir, STEPS, args);
    child_expect(&b, 0);
    assert_int_equal(child_digest(dir, STEPS), child_digest(whole, STEPS));
}

/* No room on the disk of one rank, at its first save. */
static int full_once(void *arg, const struct durable_event *e)
{
    int *left = arg;
    if (e->op != DURABLE_WRITE || *left == 0)
        return 0;
    (*left)--;
    return ENOSPC;
}

static void test_full_disk(void **state)
{
    struct fixture *f = *state;
    static const char *const args[] = {"--threads-ranks=2", "parallel.zero=0",
                                       "parallel.tp=2", NULL};
    for (int rank = 0; rank < 2; rank++) {
        int left = 1;
        struct durable d = {.hook = full_once, .arg = &left};
        struct run_hooks hooks = {.durable = &d, .durable_rank = rank};
        const char *dir = new_dir(f);
        struct child c = make_run(f, dir, STEPS, args);
        c.hooks = &hooks;
        child_expect(&c, 0);
        child_expect_text(&f->tmp, f->err,
                          "checkpoint of step 3 not saved, training goes on: ");
        child_expect_text(&f->tmp, f->err, strerror(ENOSPC));
        assert_int_equal(access(child_step_path(&f->tmp, dir, 3, "COMMIT"), F_OK), -1);
        assert_true(child_digest(dir, STEPS) != 0);
    }
}

/* A number that is not finite, in a weight of one rank. */
static void poison(void *arg, struct run *r, int attempt)
{
    const struct lowered *low = &r->train[0].low;
    (void)attempt;
    if (!is_here(arg, r))
        return;
    float *x = exec_view(r->train[0].exec, low->pieces[0].master, 0).data;
    x[0] = NAN;
}

static void test_damaged_state(void **state)
{
    struct fixture *f = *state;
    static const char *const args[] = {"--threads-ranks=2", "parallel.pp=2", NULL};
    struct trouble t = {1, 3};
    struct run_hooks hooks = {.before_compute = poison, .arg = &t};
    const char *dir = new_dir(f);
    struct child c = make_run(f, dir, STEPS, args);
    c.hooks = &hooks;
    child_expect(&c, 80);
    const char *text = child_text(&f->tmp, f->err);
    assert_int_equal(child_count(text, "the state is damaged"), 1);
    assert_non_null(strstr(text, "angel: rank 1: the state is damaged"));
    assert_true(child_digest(dir, 3) != 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    child_use_memory();
    const struct CMUnitTest tests[] = {
            TEST(test_layouts),
            TEST(test_resume),
            TEST(test_resume_elsewhere),
            TEST(test_samples_once),
            TEST(test_hang),
            TEST(test_stop),
            TEST(test_full_disk),
            TEST(test_damaged_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
