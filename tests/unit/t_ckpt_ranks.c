/* Several writers of one checkpoint: whatever parts of tensors they hold, its chunks are
 * those of one writer; when one of them cannot write, nothing is published. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/vec.h"
#include "io/ckpt.h"
#include "parallel/comm_shm.h"
#include "tests/lib/tmp.h"

#define RANKS_MAX 7
#define TENSORS   6

/* Shapes: larger than a round of 32 MiB, than a chunk; a vector; one element; none. */
static const struct {
    const char *name;
    enum ckpt_kind kind;
    int ndim, split_axis;
    int64_t shape[2];
} shapes[TENSORS] = {
        {"embed", CKPT_WEIGHT, 2, 0, {9001, 1000}},
        {"down", CKPT_WEIGHT, 2, 1, {600, 1600}},
        {"norm", CKPT_WEIGHT, 1, -1, {3001}},
        {"embed", CKPT_EXP_AVG, 2, 0, {9001, 1000}},
        {"scalar", CKPT_OTHER, 0, -1, {0}},
        {"down", CKPT_EXP_AVG_SQ, 2, 1, {600, 1600}},
};

struct fixture {
    struct tmp tmp;
    float *data[TENSORS];
    struct ckpt_tensor tensors[TENSORS];
    uint64_t want; /* digest of what one writer writes */
};

static int64_t elems(int t)
{
    struct box b = box_whole(shapes[t].ndim, shapes[t].shape);
    return box_elems(&b);
}

static void save_alone(struct fixture *f)
{
    struct ckpt_save save = {.dir = tmp_path(&f->tmp, "alone"),
                             .step = 7,
                             .tensors = f->tensors,
                             .n_tensors = TENSORS,
                             .state_json = "{}"};
    struct ckpt_saved saved;
    struct diag diag = {0};
    if (ckpt_write(&save, &saved, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    f->want = saved.digest;
}

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    for (int t = 0; t < TENSORS; t++) {
        f->data[t] = mem_alloc((size_t)elems(t) * sizeof(float));
        for (int64_t i = 0; i < elems(t); i++)
            f->data[t][i] =
                    (float)(rng_u64(1, (uint64_t)t, (uint64_t)i / 3) % 1000) + 1;
        f->tensors[t] = (struct ckpt_tensor){.name = shapes[t].name,
                                             .kind = shapes[t].kind,
                                             .dtype = DT_F32,
                                             .ndim = shapes[t].ndim,
                                             .split_axis = shapes[t].split_axis,
                                             .data = f->data[t]};
        memcpy(f->tensors[t].shape, shapes[t].shape, sizeof(shapes[t].shape));
    }
    save_alone(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int t = 0; t < TENSORS; t++)
        mem_free(f->data[t]);
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

/* One writer: a thread. */
struct writer {
    struct fixture *f;
    struct comm_world *world;
    const char *dir;
    int64_t shard_raw_bytes;
    struct durable *durable;
    VEC(struct ckpt_piece) pieces;
    enum status st;
    struct diag diag;
    struct ckpt_saved saved;
};

/* Gives a box of a tensor to a writer, as a copy of its own. */
static void give(struct writer *w, int t, const struct box *box)
{
    struct box whole = box_whole(shapes[t].ndim, shapes[t].shape);
    float *copy = mem_alloc((size_t)box_elems(box) * sizeof(*copy));
    box_copy(box, sizeof(*copy), w->f->data[t], &whole, copy, box);
    struct ckpt_piece p = {t, *box, copy};
    vec_push(&w->pieces, p);
}

/* Cuts a box in two at a random place, again and again, and deals the parts out. */
static void deal(struct writer *w, int n, int t, const struct box *box, int cuts,
                 uint64_t *seed)
{
    uint64_t u = rng_u64(*seed, 5, 1);
    *seed = u;
    int axis = box->ndim > 0 ? (int)(u % (uint64_t)box->ndim) : -1;
    if (cuts == 0 || axis < 0 || box->ext[axis] < 2) {
        give(&w[u / 7 % (uint64_t)n], t, box);
        return;
    }
    struct box a = *box, b = *box;
    a.ext[axis] = 1 + (int64_t)(u / 11 % (uint64_t)(box->ext[axis] - 1));
    b.off[axis] += a.ext[axis];
    b.ext[axis] -= a.ext[axis];
    deal(w, n, t, &a, cuts - 1, seed);
    deal(w, n, t, &b, cuts - 1, seed);
}

static void *write_main(void *arg)
{
    struct writer *w = arg;
    int members[RANKS_MAX];
    struct comm *comm = NULL;
    for (int i = 0; i < w->world->size; i++)
        members[i] = i;
    w->st = w->world->ops->group(w->world, members, w->world->size, "test", &comm,
                                 &w->diag);
    struct ckpt_tensor tensors[TENSORS];
    memcpy(tensors, w->f->tensors, sizeof(tensors));
    for (int t = 0; t < TENSORS; t++)
        tensors[t].data = NULL;
    struct ckpt_save save = {.dir = w->dir,
                             .step = 7,
                             .tensors = tensors,
                             .n_tensors = TENSORS,
                             .state_json = "{}",
                             .shard_raw_bytes = w->shard_raw_bytes,
                             .durable = w->durable,
                             .comm = comm,
                             .pieces = w->pieces.data,
                             .n_pieces = w->pieces.n};
    if (w->st == ST_OK)
        w->st = ckpt_write(&save, &w->saved, &w->diag);
    if (comm)
        comm->ops->close(comm);
    w->world->ops->close(w->world);
    return NULL;
}

/* Writes with n ranks. */
static void write_together(struct writer *w, int n)
{
    struct comm_world *world[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    struct diag diag = {0};
    if (comm_threads_create(n, world, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    for (int i = 0; i < n; i++) {
        w[i].world = world[i];
        world[i]->deadline_s = 60;
        assert_int_equal(pthread_create(&thread[i], NULL, write_main, &w[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}

static void make_writers(struct fixture *f, struct writer *w, int n, const char *dir,
                         int cuts, uint64_t seed)
{
    memset(w, 0, (size_t)n * sizeof(*w));
    for (int i = 0; i < n; i++) {
        w[i].f = f;
        w[i].dir = dir;
    }
    for (int t = 0; t < TENSORS; t++) {
        struct box whole = box_whole(shapes[t].ndim, shapes[t].shape);
        deal(w, n, t, &whole, cuts, &seed);
    }
}

static void free_writers(struct writer *w, int n)
{
    for (int i = 0; i < n; i++) {
        for (uint32_t k = 0; k < w[i].pieces.n; k++)
            mem_free((void *)(uintptr_t)w[i].pieces.data[k].data);
        vec_free(&w[i].pieces);
    }
}

static void check_read(struct fixture *f, const char *dir)
{
    struct ckpt *ck;
    struct diag diag = {0};
    if (ckpt_open_newest(dir, INT64_MAX, &ck, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    struct shard_crew *crew = shard_crew_create(NULL);
    for (int t = 0; t < TENSORS; t++) {
        float *x = mem_alloc((size_t)elems(t) * sizeof(*x));
        if (ckpt_read_tensor(ck, shapes[t].kind, shapes[t].name, crew, x, &diag) !=
            ST_OK)
            fail_msg("%s", diag.text);
        assert_memory_equal(x, f->data[t], (size_t)elems(t) * sizeof(*x));
        mem_free(x);
    }
    int64_t n_damaged;
    assert_int_equal(ckpt_verify(ck, true, crew, NULL, NULL, &n_damaged, &diag), ST_OK);
    shard_crew_destroy(crew);
    ckpt_close(ck);
}

static void test_same_chunks(void **state)
{
    static const struct {
        int ranks, cuts;
        int64_t shard_raw_bytes;
    } cases[] = {{2, 0, 0},
                 {2, 3, 0},
                 {3, 5, 6000000},
                 {RANKS_MAX, 4, 0},
                 {RANKS_MAX, 1, 1}};
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct writer w[RANKS_MAX];
        char name[32];
        int n = cases[i].ranks;
        snprintf(name, sizeof(name), "case-%zu", i);
        const char *dir = tmp_path(&f->tmp, name);
        make_writers(f, w, n, dir, cases[i].cuts, i + 1);
        for (int k = 0; k < n; k++)
            w[k].shard_raw_bytes = cases[i].shard_raw_bytes;
        write_together(w, n);
        for (int k = 0; k < n; k++) {
            if (w[k].st != ST_OK)
                fail_msg("writer %d of %d: %s", k, n, w[k].diag.text);
            assert_int_equal(w[k].saved.digest, f->want);
            assert_int_equal(w[k].saved.file_bytes, w[0].saved.file_bytes);
        }
        check_read(f, dir);
        free_writers(w, n);
    }
}

static int refuse(void *arg, const struct durable_event *e)
{
    const enum durable_op *op = arg;
    return e->op == *op ? ENOSPC : 0;
}

/* Each kind of failure, on the first and on another writer. */
static void test_one_fails(void **state)
{
    static enum durable_op ops[] = {DURABLE_CREATE,   DURABLE_WRITE,
                                    DURABLE_FSYNC,    DURABLE_FSYNC_DIR,
                                    DURABLE_EXCHANGE, DURABLE_RENAME};
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        for (int who = 0; who < 3; who += 2) {
            struct writer w[3];
            char name[32];
            struct durable d = {.hook = refuse, .arg = &ops[i]};
            if (who > 0 && ops[i] > DURABLE_FSYNC)
                continue; /* the first writer's alone */
            snprintf(name, sizeof(name), "fail-%zu-%d", i, who);
            const char *dir = tmp_path(&f->tmp, name);
            make_writers(f, w, 3, dir, 3, 9);
            w[who].durable = &d;
            write_together(w, 3);
            for (int k = 0; k < 3; k++) {
                if (ops[i] == DURABLE_EXCHANGE && w[k].st == ST_OK)
                    continue; /* there was nothing to change places with */
                assert_true(w[k].st == ST_CREATE || w[k].st == ST_IO);
                assert_string_equal(w[k].diag.text, w[0].diag.text);
                assert_non_null(strstr(w[k].diag.text, strerror(ENOSPC)));
                assert_int_equal(w[k].st, w[0].st);
            }
            struct ckpt *ck;
            struct diag diag = {0};
            if (w[0].st != ST_OK)
                assert_int_equal(ckpt_open_newest(dir, INT64_MAX, &ck, &diag),
                                 ST_NOT_FOUND);
            free_writers(w, 3);
        }
    }
}

/* A piece that nobody has. */
static void test_missing_piece(void **state)
{
    struct fixture *f = *state;
    struct writer w[2];
    make_writers(f, w, 2, tmp_path(&f->tmp, "missing"), 2, 4);
    struct writer *last = w[1].pieces.n > 0 ? &w[1] : &w[0];
    mem_free((void *)(uintptr_t)last->pieces.data[--last->pieces.n].data);
    write_together(w, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w[i].st, ST_INTERNAL);
        assert_non_null(strstr(w[i].diag.text, "do not hold a tensor once"));
    }
    free_writers(w, 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
            TEST(test_same_chunks),
            TEST(test_one_fails),
            TEST(test_missing_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
