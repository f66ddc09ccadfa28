/* The dataset: cutting, order, weights, held-out data, labels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/rng.h"
#include "core/str.h"
#include "io/data.h"
#include "tests/lib/tmp.h"

#define T 8

struct fixture {
    struct arena a;
    const char *dir;
    struct tmp tmp;
    struct diag diag;
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
    arena_release(&f->a);
    return 0;
}

/* A source of n samples of T tokens whose tokens say where they come from. */
static const char *make_source(struct fixture *f, const char *name, int64_t n)
{
    struct str s = {0};
    for (int64_t i = 0; i < n * T; i++)
        str_addc(&s, (char)(1 + rng_u64(3, (uint64_t)name[0], (uint64_t)i) % 255));
    const char *path = tmp_write(&f->tmp, name, s.s, s.n);
    str_free(&s);
    return path;
}

static struct data_options options_of(const struct data_source *train, int64_t n)
{
    return (struct data_options){
            .train = train,
            .n_train = n,
            .tokenizer = tok_bytes(),
            .text_field = "text",
            .seq_len = T,
            .vocab = 512,
            .seed = 1234,
            .shuffle = true,
            .mask_documents = true,
    };
}

static struct data *open_ok(struct fixture *f, const struct data_options *o)
{
    struct data *d = NULL;
    if (data_open(o, &d, &f->diag) != ST_OK)
        fail_msg("%s", f->diag.text);
    return d;
}

static struct data_arrays arrays_of(struct arena *a, int64_t n)
{
    return (struct data_arrays){
            arena_array(a, int32_t, n * T),
            arena_array(a, int32_t, n * T),
            arena_array(a, int32_t, n * T),
            arena_array(a, int32_t, n * T),
    };
}

/* Every sample of every source exactly once an epoch, and another order in the next. */
static void once_per_epoch(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 300), 0},
                              {make_source(f, "b", 7), 0},
                              {make_source(f, "c", 41), 0}};
    struct data_options o = options_of(s, 3);
    struct data *d = open_ok(f, &o);
    int64_t n = data_samples(d, DATA_TRAIN);
    assert_int_equal(n, 348);
    assert_int_equal(data_samples(d, DATA_VALID), 0);
    int64_t same = 0, in_order = 0;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        int seen[3][300] = {{0}};
        for (int64_t i = 0; i < n; i++) {
            struct data_place p = data_locate(d, DATA_TRAIN, epoch * n + i);
            struct data_place q = data_locate(d, DATA_TRAIN, i);
            assert_int_equal(p.epoch, epoch);
            seen[p.source][p.sample]++;
            same += epoch > 0 && p.source == q.source && p.sample == q.sample;
            in_order += p.source == 0 && p.sample == i;
        }
        static const int64_t counts[3] = {300, 7, 41};
        for (int k = 0; k < 3; k++) {
            for (int64_t i = 0; i < 300; i++)
                assert_int_equal(seen[k][i], i < counts[k]);
        }
    }
    print_message("places kept between epochs: %lld of 696\n", (long long)same);
    assert_true(same < 15 && in_order < 20);
    data_close(d);

    o.shuffle = false;
    d = open_ok(f, &o);
    for (int64_t i = 0; i < n; i++) {
        struct data_place p = data_locate(d, DATA_TRAIN, n + i);
        int64_t source = i < 300 ? 0 : i < 307 ? 1 : 2;
        assert_int_equal(p.source, source);
        assert_int_equal(p.sample, i - (source == 0 ? 0 : source == 1 ? 300 : 307));
    }
    data_close(d);
}

/* However a range of samples is cut, the same tokens come. */
static void order_ignores_batches(void **state)
{
    struct fixture *f = *state;
    for (int weighted = 0; weighted < 2; weighted++) {
        struct data_source s[] = {{make_source(f, "a", 90), 0},
                                  {make_source(f, "b", 31), weighted ? 0.25 : 0}};
        struct data_options o = options_of(s, 2);
        struct data *d = open_ok(f, &o);
        int64_t n = 260, whole_trained = 0;
        struct data_arrays whole = arrays_of(&f->a, n), part = arrays_of(&f->a, n);
        assert_int_equal(
                data_fetch(d, DATA_TRAIN, 0, n, &whole, &whole_trained, &f->diag),
                ST_OK);
        for (int64_t cut = 1; cut < 50; cut += 7) {
            int64_t sum = 0;
            for (int64_t i = 0; i < n; i += cut) {
                int64_t m = MIN(cut, n - i), trained = 0;
                assert_int_equal(
                        data_fetch(d, DATA_TRAIN, i, m, &part, &trained, &f->diag),
                        ST_OK);
                size_t bytes = (size_t)(m * T) * sizeof(int32_t);
                assert_memory_equal(part.tokens, whole.tokens + i * T, bytes);
                assert_memory_equal(part.labels, whole.labels + i * T, bytes);
                assert_memory_equal(part.positions, whole.positions + i * T, bytes);
                assert_memory_equal(part.doc_starts, whole.doc_starts + i * T, bytes);
                sum += trained;
            }
            assert_int_equal(sum, whole_trained);
        }
        data_close(d);
    }
}

static int64_t count_source(const struct data *d, int64_t first, int64_t n,
                            int64_t source)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += data_locate(d, DATA_TRAIN, first + i).source == source;
    return count;
}

static void weights(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 300), 0},
                              {make_source(f, "b", 50), 0.3},
                              {make_source(f, "c", 100), 0}};
    struct data_options o = options_of(s, 3);
    struct data *d = open_ok(f, &o);
    /* 0.3 * 4096 = 1228.8; the rest, 2867.2, goes 3:1 = 2150.4 and 716.8. */
    static const int64_t quota[3] = {2150, 1229, 717};
    for (int64_t block = 0; block < 4; block++) {
        for (int64_t k = 0; k < 3; k++)
            assert_int_equal(count_source(d, block * 4096, 4096, k), quota[k]);
    }
    /* Inside a block the mixture is even, too: three deviations are 44. */
    int64_t half = count_source(d, 0, 2048, 1);
    print_message("source of weight 0.3: %lld of the first 2048\n", (long long)half);
    assert_true(half > 570 && half < 659);
    assert_true(fabs(data_source_info(d, DATA_TRAIN, 0).share - 0.525) < 1e-12);
    /* Each source goes through all its samples before any comes again. */
    int drawn[3][300] = {{0}};
    static const int64_t counts[3] = {300, 50, 100};
    int64_t total[3] = {0};
    for (int64_t g = 0; g < 4 * 4096; g++) {
        struct data_place p = data_locate(d, DATA_TRAIN, g);
        drawn[p.source][p.sample]++;
        total[p.source]++;
    }
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < counts[k]; i++) {
            int64_t times = drawn[k][i], full = total[k] / counts[k];
            assert_true(times == full || times == full + 1);
        }
    }
    data_close(d);
    /* All weighted: only their ratio counts. */
    struct data_source all[] = {{s[0].path, 3}, {s[1].path, 1}};
    o = options_of(all, 2);
    d = open_ok(f, &o);
    assert_int_equal(count_source(d, 4096, 4096, 0), 3072);
    data_close(d);
}

static void refused_weights(void **state)
{
    struct fixture *f = *state;
    const char *a = make_source(f, "a", 30), *b = make_source(f, "b", 5);
    static const struct {
        double a, b;
        const char *says;
    } cases[] = {{0, 1.0, "leave nothing"},
                 {0, -0.5, "got -0.5"},
                 {NAN, 0, "nan"},
                 {INFINITY, 1, "inf"},
                 {1, 1e-5, "too small"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct data_source s[] = {{a, cases[i].a}, {b, cases[i].b}};
        struct data_options o = options_of(s, 2);
        struct data *d = NULL;
        assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
        assert_null(d);
        if (!strstr(f->diag.text, cases[i].says))
            fail_msg("case %zu: %s", i, f->diag.text);
    }
}

/* The last samples of each source are held out and never trained on. */
static void held_out(void **state)
{
    struct fixture *f = *state;
    for (int weighted = 0; weighted < 2; weighted++) {
        struct data_source s[] = {{make_source(f, "a", 200), weighted ? 0.9 : 0},
                                  {make_source(f, "b", 3), 0}};
        struct data_options o = options_of(s, 2);
        o.valid_fraction = 0.1;
        struct data *d = open_ok(f, &o);
        assert_int_equal(data_samples(d, DATA_TRAIN), 180 + 2);
        assert_int_equal(data_samples(d, DATA_VALID), 20 + 1);
        for (int64_t g = 0; g < 5000; g++) {
            struct data_place p = data_locate(d, DATA_TRAIN, g);
            assert_true(p.sample < (p.source == 0 ? 180 : 2));
        }
        int seen[2][200] = {{0}};
        for (int64_t g = 0; g < 21; g++) {
            struct data_place p = data_locate(d, DATA_VALID, g);
            seen[p.source][p.sample]++;
        }
        for (int64_t i = 180; i < 200; i++)
            assert_int_equal(seen[0][i], 1);
        assert_int_equal(seen[1][2], 1);
        data_close(d);
    }
}

static void separate_validation(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 20), 0}};
    struct data_source v[] = {{make_source(f, "v", 9), 0}};
    struct data_options o = options_of(s, 1);
    o.valid = v;
    o.n_valid = 1;
    struct data *d = open_ok(f, &o);
    assert_int_equal(data_samples(d, DATA_TRAIN), 20);
    assert_int_equal(data_samples(d, DATA_VALID), 9);
    assert_string_equal(data_source_info(d, DATA_VALID, 0).path, v[0].path);
    data_close(d);
    o.valid_fraction = 0.5;
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
}

/* Two documents by hand: "abc" and "defgh" are the stream a b c | d e f g h |. */
static void labels_and_documents(void **state)
{
    struct fixture *f = *state;
    const char *path = tmp_write_text(&f->tmp, "x.jsonl",
                                      "{\"text\":\"abc\"}\n{\"text\":\"defgh\"}\n");
    struct data_source s[] = {{path, 0}};
    struct data_options o = options_of(s, 1);
    struct data *d = open_ok(f, &o);
    assert_int_equal(data_samples(d, DATA_TRAIN), 1);
    struct data_arrays a = arrays_of(&f->a, 1);
    int64_t trained = 0;
    assert_int_equal(data_fetch(d, DATA_TRAIN, 0, 1, &a, &trained, &f->diag), ST_OK);
    static const int32_t tokens[T] = {'a', 'b', 'c', 256, 'd', 'e', 'f', 'g'};
    static const int32_t masked[T] = {'b', 'c', 256, -1, 'e', 'f', 'g', 'h'};
    static const int32_t positions[T] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const int32_t starts[T] = {0, 0, 0, 0, 4, 4, 4, 4};
    assert_memory_equal(a.tokens, tokens, sizeof(tokens));
    assert_memory_equal(a.labels, masked, sizeof(masked));
    assert_memory_equal(a.positions, positions, sizeof(positions));
    assert_memory_equal(a.doc_starts, starts, sizeof(starts));
    assert_int_equal(trained, 7);
    data_close(d);

    o.mask_documents = false;
    d = open_ok(f, &o);
    assert_int_equal(data_fetch(d, DATA_TRAIN, 0, 1, &a, &trained, &f->diag), ST_OK);
    static const int32_t labels[T] = {'b', 'c', 256, 'd', 'e', 'f', 'g', 'h'};
    static const int32_t plain[T] = {0, 1, 2, 3, 4, 5, 6, 7}, zeros[T] = {0};
    assert_memory_equal(a.tokens, tokens, sizeof(tokens));
    assert_memory_equal(a.labels, labels, sizeof(labels));
    assert_memory_equal(a.positions, plain, sizeof(plain));
    assert_memory_equal(a.doc_starts, zeros, sizeof(zeros));
    assert_int_equal(trained, 8);
    data_close(d);
}

/* Without shuffling and masking, samples side by side are the stream itself. */
static void samples_tile_the_stream(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 25), 0}};
    struct data_options o = options_of(s, 1);
    o.shuffle = o.mask_documents = false;
    o.seq_len = T;
    struct data *d = open_ok(f, &o);
    struct text_source *src = NULL;
    struct text_options to = {tok_bytes(), "text"};
    assert_int_equal(text_source_open(s[0].path, &to, &src, &f->diag), ST_OK);
    int64_t n = 25 * T + 1, trained = 0;
    assert_int_equal(text_source_counts(src).tokens, n);
    uint32_t *stream = arena_array(&f->a, uint32_t, n);
    assert_int_equal(text_source_read(src, 0, n, stream, &f->diag), ST_OK);
    struct data_arrays a = arrays_of(&f->a, 25);
    assert_int_equal(data_fetch(d, DATA_TRAIN, 0, 25, &a, &trained, &f->diag), ST_OK);
    assert_memory_equal(a.tokens, stream, (size_t)(n - 1) * sizeof(*stream));
    assert_memory_equal(a.labels, stream + 1, (size_t)(n - 1) * sizeof(*stream));
    assert_int_equal(trained, n - 1);
    uint64_t id = 0, id2 = 0;
    assert_int_equal(data_identity(d, DATA_TRAIN, 0, &id, &f->diag), ST_OK);
    assert_int_equal(text_source_identity(src, &id2, &f->diag), ST_OK);
    assert_true(id == id2);
    text_source_close(src);
    data_close(d);
}

static void too_little(void **state)
{
    struct fixture *f = *state;
    struct data *d = NULL;
    const char *empty = tmp_path(&f->tmp, "sub");
    tmp_write(&f->tmp, "sub/binary", "\0", 1);
    struct data_source s[] = {{empty, 0}};
    struct data_options o = options_of(s, 1);
    assert_int_equal(data_open(&o, &d, &f->diag), ST_DATA);
    assert_non_null(strstr(f->diag.text, "got 0 tokens, wanted at least 9"));
    assert_non_null(strstr(f->diag.text, empty));
    assert_non_null(strstr(f->diag.hint, "1 binary"));
    s[0].path = tmp_write_text(&f->tmp, "short", "1234567");
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "got 8 tokens, wanted at least 9"));
    assert_string_equal(f->diag.hint, "data.seq_len=7 is the longest that fits");
    o.seq_len = 7;
    d = open_ok(f, &o);
    assert_int_equal(data_samples(d, DATA_TRAIN), 1);
    data_close(d);
    o.valid_fraction = 0.01;
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
    assert_string_equal(f->diag.hint, "data.seq_len=3 is the longest that fits");
    o.seq_len = 3;
    d = open_ok(f, &o);
    data_close(d);
    o.vocab = 256;
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
    assert_non_null(strstr(f->diag.text, "got 256, wanted at least 257"));
    o.vocab = 257;
    o.seq_len = 0;
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
    o = options_of(s, 0);
    assert_int_equal(data_open(&o, &d, &f->diag), ST_CONFIG);
}

/* A new data segment has every sample once an epoch too, in another order. */
static void segments_have_orders_of_their_own(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 90), 0}};
    struct data_options o = options_of(s, 1);
    struct data *d = open_ok(f, &o);
    int64_t n = data_samples(d, DATA_TRAIN), moved = 0, sum = 0;
    int64_t *first = arena_array(&f->a, int64_t, n);
    for (int64_t i = 0; i < n; i++)
        first[i] = data_locate(d, DATA_TRAIN, i).sample;
    data_set_segment(d, 640);
    for (int64_t i = 0; i < n; i++) {
        int64_t sample = data_locate(d, DATA_TRAIN, i).sample;
        moved += sample != first[i];
        sum += sample;
    }
    assert_true(moved > n / 2);
    assert_int_equal(sum, n * (n - 1) / 2);
    data_set_segment(d, 0);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(data_locate(d, DATA_TRAIN, i).sample, first[i]);
    data_close(d);
}

/* What a run reads is pinned: a changed order would change every resumed run. */
static void known_order(void **state)
{
    struct fixture *f = *state;
    struct data_source s[] = {{make_source(f, "a", 100), 0},
                              {make_source(f, "b", 40), 0.5}};
    struct data_options o = options_of(s, 2);
    struct data *d = open_ok(f, &o);
    struct str got = {0};
    for (int64_t g = 4090; g < 4102; g++) {
        struct data_place p = data_locate(d, DATA_TRAIN, g);
        str_printf(&got, "%lld:%lld ", (long long)p.source, (long long)p.sample);
    }
    data_close(d);
    s[1].weight = 0;
    d = open_ok(f, &o);
    for (int64_t g = 136; g < 144; g++) {
        struct data_place p = data_locate(d, DATA_TRAIN, g);
        str_printf(&got, "%lld:%lld ", (long long)p.source, (long long)p.sample);
    }
    data_close(d);
    assert_string_equal(got.s, "1:9 1:30 0:11 0:63 1:2 1:36 1:22 1:37 0:29 0:40 "
                               "1:8 1:5 0:67 0:83 0:97 0:42 1:1 1:27 0:25 1:2 ");
    str_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(once_per_epoch, set_up, tear_down),
            cmocka_unit_test_setup_teardown(order_ignores_batches, set_up, tear_down),
            cmocka_unit_test_setup_teardown(weights, set_up, tear_down),
            cmocka_unit_test_setup_teardown(refused_weights, set_up, tear_down),
            cmocka_unit_test_setup_teardown(held_out, set_up, tear_down),
            cmocka_unit_test_setup_teardown(separate_validation, set_up, tear_down),
            cmocka_unit_test_setup_teardown(labels_and_documents, set_up, tear_down),
            cmocka_unit_test_setup_teardown(samples_tile_the_stream, set_up, tear_down),
            cmocka_unit_test_setup_teardown(too_little, set_up, tear_down),
            cmocka_unit_test_setup_teardown(segments_have_orders_of_their_own, set_up,
                                            tear_down),
            cmocka_unit_test_setup_teardown(known_order, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
