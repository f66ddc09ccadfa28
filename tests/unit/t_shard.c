/* Shard files: boxes and grids, round trips, and damage at every byte and length. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/str.h"
#include "io/file.h"
#include "io/shard.h"
#include "tests/lib/tmp.h"

struct fixture {
    struct tmp tmp;
    const char *path; /* of the shard file */
    struct shard_crew *crew;
};

static int set_up(void **state)
{
    struct fixture *f = mem_alloc(sizeof(*f));
    tmp_create(&f->tmp);
    f->path = tmp_path(&f->tmp, "a.azs");
    f->crew = shard_crew_create(NULL);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    shard_crew_destroy(f->crew);
    tmp_remove(&f->tmp);
    mem_free(f);
    return 0;
}

static void ok(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), diag->text);
}

/* Grids. */

static void check_grid(int ndim, const int64_t *shape, size_t elem, int split_axis)
{
    struct box_grid g = box_grid_chunks(ndim, shape, elem, split_axis);
    struct box whole = box_whole(ndim, shape);
    int64_t sum = 0;
    for (int64_t i = 0; i < g.n; i++) {
        struct box b = box_grid_tile(&g, i);
        struct box in;
        assert_true(box_elems(&b) * (int64_t)elem <= (int64_t)BOX_CHUNK_MAX_BYTES);
        assert_true(box_intersect(&whole, &b, &in));
        assert_true(box_equal(&in, &b));
        sum += box_elems(&b);
        if (i > 0) {
            struct box before = box_grid_tile(&g, i - 1);
            assert_false(box_intersect(&before, &b, &in) && ndim > 0);
        }
    }
    assert_int_equal(sum, box_elems(&whole));
}

static void test_grids(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {
            {0, 0, 0, 0},       {1, 1, 1, 1},         {7, 5, 3, 2},
            {4096, 4096, 1, 1}, {128256, 4096, 1, 1}, {1, 50000000, 1, 1},
            {8, 1024, 4096, 1}, {50257, 768, 1, 1},   {3, 3, 3, 3000001},
            {1, 1, 9000001, 1}, {33554432, 1, 1, 1},
    };
    for (size_t s = 0; s < ARRAY_LEN(shapes); s++)
        for (int ndim = 0; ndim <= 4; ndim++)
            for (int axis = -1; axis < ndim; axis++) {
                check_grid(ndim, shapes[s], 2, axis);
                check_grid(ndim, shapes[s], 4, axis);
            }
    /* A down projection cut over ranks along axis 1: sixteen columns of tiles. */
    struct box_grid g = box_grid_chunks(2, (int64_t[]){4096, 14336}, 2, 1);
    assert_int_equal(g.tile[1], 896);
    assert_int_equal(g.count[1], 16);
}

static void test_box_copy(void **state)
{
    (void)state;
    enum {
        N = 5 * 4 * 3 * 7
    };
    int32_t whole[N];
    int32_t part[N];
    int32_t back[N];
    for (int i = 0; i < N; i++)
        whole[i] = i + 1;
    struct box all = box_whole(4, (int64_t[]){5, 4, 3, 7});
    struct box b = {.ndim = 4, .off = {1, 2, 0, 3}, .ext = {3, 2, 3, 4}};
    memset(back, 0, sizeof(back));
    box_copy(&b, 4, whole, &all, part, &b);
    box_copy(&b, 4, part, &b, back, &all);
    int n = 0;
    for (int i = 0; i < N; i++) {
        int64_t at[4] = {i / 84, i / 21 % 4, i / 7 % 3, i % 7};
        bool inside = true;
        for (int a = 0; a < 4; a++)
            inside = inside && at[a] >= b.off[a] && at[a] < b.off[a] + b.ext[a];
        assert_int_equal(back[i], inside ? whole[i] : 0);
        n += inside;
    }
    assert_int_equal(n, box_elems(&b));
    assert_false(box_is_run(&all, &b));
    struct box rows = {.ndim = 4, .off = {2, 1, 0, 0}, .ext = {1, 2, 3, 7}};
    assert_true(box_is_run(&all, &rows));
    assert_int_equal(box_index(&all, &rows), 2 * 84 + 21);
}

/* A small file: four tensors, one of them constant, one of them empty. */

#define N_TENSORS 4

struct small {
    float a[37][5];
    uint16_t b[300];
    float zero[100];
    struct shard_tensor t[N_TENSORS];
};

static void small_make(struct small *s)
{
    memset(s, 0, sizeof(*s));
    rng_normal(1, 2, 0, 37 * 5, &s->a[0][0]);
    for (int i = 0; i < 300; i++)
        s->b[i] = bf16_from_f32(s->a[i % 37][i % 5] * (float)i);
    s->t[0] = (struct shard_tensor){.id = 0,
                                    .dtype = DT_F32,
                                    .split_axis = -1,
                                    .ndim = 2,
                                    .shape = {37, 5},
                                    .data = s->a};
    s->t[1] = (struct shard_tensor){.id = 1,
                                    .dtype = DT_BF16,
                                    .split_axis = 0,
                                    .ndim = 1,
                                    .shape = {300},
                                    .data = s->b};
    s->t[2] = (struct shard_tensor){.id = 2,
                                    .dtype = DT_F32,
                                    .non_negative = true,
                                    .split_axis = -1,
                                    .ndim = 1,
                                    .shape = {100},
                                    .data = s->zero};
    s->t[3] = (struct shard_tensor){.id = 3,
                                    .dtype = DT_F32,
                                    .split_axis = -1,
                                    .ndim = 2,
                                    .shape = {0, 9},
                                    .data = s->zero};
}

static void small_write(struct fixture *f, const struct small *s, bool raw)
{
    struct diag diag = {0};
    struct shard_table table = {0};
    struct shard_head head = {.uuid = "0123456789abcde", .shard = 0, .n_shards = 1};
    struct shard_writer *w;
    int64_t bytes = 0;
    uint64_t hash[2];
    ok(shard_create(NULL, f->path, &head, f->crew, &table, raw, &w, &diag), &diag);
    for (int i = 0; i < N_TENSORS; i++)
        ok(shard_add(w, &s->t[i], &diag), &diag);
    ok(shard_finish(w, &bytes, hash, &diag), &diag);
    assert_int_equal(table.n, 3);
    vec_free(&table);
}

/* Opens and reads all; ST_OK only when every chunk came with the right data. */
static enum status small_read(struct fixture *f, const struct small *s,
                              struct diag *diag)
{
    struct shard_file in;
    TRY(shard_open(f->path, shard_crew_codec(f->crew), &in, diag));
    enum status st = ST_OK;
    for (uint32_t i = 0; i < in.table.n && st == ST_OK; i++) {
        const struct shard_chunk *k = &in.table.data[i];
        assert_in_range(k->tensor, 0, N_TENSORS - 1);
        const struct shard_tensor *t = &s->t[k->tensor];
        const void *raw;
        st = shard_read_chunk_scratch(f->crew, 0, in.fd, f->path, k, t->dtype, &raw,
                                      diag);
        if (st == ST_OK)
            assert_memory_equal(raw, t->data, (size_t)k->raw_bytes);
    }
    if (st == ST_OK)
        assert_int_equal(in.table.n, 3);
    shard_close(&in);
    return st;
}

static void write_bytes(const char *path, const char *data, size_t n)
{
    int fd;
    struct diag diag = {0};
    ok(file_open_write(path, &fd, &diag), &diag);
    ok(file_write(fd, path, data, n, &diag), &diag);
    ok(file_close(fd, path, &diag), &diag);
}

static void test_damage(void **state)
{
    struct fixture *f = *state;
    struct small s;
    small_make(&s);
    for (int raw = 0; raw < 2; raw++) {
        struct diag diag = {0};
        struct str file = {0};
        small_write(f, &s, raw);
        ok(small_read(f, &s, &diag), &diag);
        ok(file_read_all(f->path, MIB, &file, &diag), &diag);
        int harmless = 0;
        for (size_t i = 0; i < file.n; i++) {
            static const char flips[] = {0x01, (char)0x80, (char)0xff};
            for (size_t j = 0; j < ARRAY_LEN(flips); j++) {
                file.s[i] ^= flips[j];
                write_bytes(f->path, file.s, file.n);
                file.s[i] ^= flips[j];
                enum status st = small_read(f, &s, &diag);
                assert_true(st == ST_OK || st == ST_DATA);
                harmless += st == ST_OK;
            }
        }
        for (size_t n = 0; n < file.n; n++) {
            write_bytes(f->path, file.s, n);
            assert_int_equal(small_read(f, &s, &diag), ST_DATA);
        }
        str_addc(&file, 'x');
        write_bytes(f->path, file.s, file.n);
        assert_int_equal(small_read(f, &s, &diag), ST_DATA);
        print_message(
                "%zu bytes: %zu flips, all detected but %d that leave the data as "
                "they are; %zu truncations detected\n",
                file.n - 1, 3 * (file.n - 1), harmless, file.n - 1);
        assert_true(harmless * 50 < (int)file.n);
        str_free(&file);
    }
}

static void test_not_a_shard(void **state)
{
    struct fixture *f = *state;
    struct diag diag = {0};
    struct shard_file in;
    assert_int_equal(
            shard_open("/nonexistent.azs", shard_crew_codec(f->crew), &in, &diag),
            ST_NOT_FOUND);
    write_bytes(f->path,
                "not a shard file, but long enough to hold a head and a footer "
                "of one, which are 64 and 48 bytes long, so 112 in all",
                100);
    assert_int_equal(shard_open(f->path, shard_crew_codec(f->crew), &in, &diag),
                     ST_DATA);
    assert_non_null(strstr(diag.text, f->path));
}

/* The whole file is a stream of zstd frames: stock tools take it. */
static void test_stock_zstd(void **state)
{
    struct fixture *f = *state;
    struct small s;
    char command[1024];
    if (system("command -v zstd >/dev/null 2>&1") != 0) {
        print_message("SKIPPED: no zstd program here to try the file with\n");
        skip();
    }
    small_make(&s);
    for (int raw = 0; raw < 2; raw++) {
        small_write(f, &s, raw);
        snprintf(command, sizeof(command), "zstd -q -t <%s", f->path);
        assert_int_equal(system(command), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_grids),
            cmocka_unit_test(test_box_copy),
            cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_not_a_shard, set_up, tear_down),
            cmocka_unit_test_setup_teardown(test_stock_zstd, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
