/* The base library: arena, arrays, strings, status, hashes, random numbers, dtypes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/hash.h"
#include "core/rng.h"
#include "core/status.h"
#include "core/str.h"
#include "core/vec.h"

/* ---- memory ---- */

static void arena_is_zeroed_and_aligned(void **state)
{
    (void)state;
    struct arena a = {0};
    static const size_t sizes[] = {1, 3, 16, 17, 1000, 70000, 5 * MIB};
    unsigned char *got[3 * ARRAY_LEN(sizes)];
    for (size_t i = 0; i < ARRAY_LEN(got); i++) {
        size_t n = sizes[i % ARRAY_LEN(sizes)];
        got[i] = arena_alloc(&a, n);
        assert_int_equal((uintptr_t)got[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(got[i][k], 0);
        memset(got[i], (int)i + 1, n);
    }
    for (size_t i = 0; i < ARRAY_LEN(got); i++) {
        size_t n = sizes[i % ARRAY_LEN(sizes)];
        assert_int_equal(got[i][0], i + 1);
        assert_int_equal(got[i][n - 1], i + 1);
    }
    assert_true(a.bytes_total >= 3 * 5 * MIB);
    arena_release(&a);
    assert_int_equal(a.bytes_total, 0);
    int64_t *again = arena_array(&a, int64_t, 10);
    assert_int_equal(again[9], 0);
    arena_release(&a);
}

static void arena_copies_strings(void **state)
{
    (void)state;
    struct arena a = {0};
    char text[] = "hello";
    char *whole = arena_strdup(&a, text), *part = arena_strndup(&a, text, 2);
    text[0] = 'j';
    assert_string_equal(whole, "hello");
    assert_string_equal(part, "he");
    assert_string_equal(arena_strdup(&a, ""), "");
    arena_release(&a);
}

static void vec_grows(void **state)
{
    (void)state;
    VEC(int64_t) v = {0};
    for (int64_t i = 0; i < 10000; i++)
        vec_push(&v, i * i);
    assert_int_equal(v.n, 10000);
    assert_true(v.cap >= v.n);
    for (int64_t i = 0; i < 10000; i++)
        assert_int_equal(v.data[i], i * i);
    vec_free(&v);
    assert_null(v.data);
    assert_int_equal(v.n, 0);
    vec_push(&v, 7);
    assert_int_equal(v.data[0], 7);
    vec_free(&v);
}

static void pages_are_zeroed_and_aligned(void **state)
{
    (void)state;
    struct diag diag = {0};
    void *p = NULL;
    size_t bytes = 3 * MIB + 1;
    assert_int_equal(pages_map(bytes, &p, &diag), ST_OK);
    assert_int_equal((uintptr_t)p % (2 * MIB), 0);
    unsigned char *b = p;
    for (size_t i = 0; i < bytes; i += 1024)
        assert_int_equal(b[i], 0);
    b[0] = b[bytes - 1] = 1;
    pages_unmap(p, bytes);
    assert_int_equal(pages_map((size_t)1 << 62, &p, &diag), ST_NO_FIT);
    print_message("%s\n", diag.text);
    assert_true(strlen(diag.text) > 0);
}

static void arithmetic_is_checked(void **state)
{
    (void)state;
    int64_t out = -1;
    assert_true(mul_i64(3037000499, 3037000499, &out));
    assert_int_equal(out, INT64_C(3037000499) * 3037000499);
    assert_false(mul_i64(3037000500, 3037000500, &out));
    assert_int_equal(out, INT64_C(3037000499) * 3037000499);
    assert_true(add_i64(INT64_MAX, 0, &out));
    assert_int_equal(out, INT64_MAX);
    assert_false(add_i64(INT64_MAX, 1, &out));
    assert_int_equal(ceil_div_i64(0, 4), 0);
    assert_int_equal(ceil_div_i64(1, 4), 1);
    assert_int_equal(ceil_div_i64(4, 4), 1);
    assert_int_equal(ceil_div_i64(5, 4), 2);
    assert_int_equal(round_up_i64(5, 64), 64);
    assert_int_equal(round_up_i64(128, 64), 128);
}

/* ---- strings ---- */

static void str_builds(void **state)
{
    (void)state;
    struct str s = {0};
    assert_string_equal(str_get(&s), "");
    str_add(&s, "");
    for (int i = 0; i < 1000; i++)
        str_printf(&s, "%d,", i);
    str_addc(&s, '!');
    str_add_n(&s, "abc", 2);
    assert_int_equal(s.n, 10 * 2 + 90 * 3 + 900 * 4 + 1 + 2);
    assert_int_equal(strlen(s.s), s.n);
    assert_string_equal(s.s + s.n - 7, "999,!ab");
    str_clear(&s);
    assert_string_equal(str_get(&s), "");
    assert_int_equal(s.n, 0);
    str_add(&s, "x");
    assert_string_equal(s.s, "x");
    str_free(&s);
    assert_null(s.s);
}

/* Lengths around each doubling of the room, in one piece and byte by byte. */
static void str_grows_at_every_length(void **state)
{
    (void)state;
    char text[600];
    memset(text, 'a', sizeof(text));
    for (size_t n = 0; n < sizeof(text); n++) {
        struct str whole = {0}, bytes = {0};
        str_add_n(&whole, text, n);
        for (size_t i = 0; i < n; i++)
            str_addc(&bytes, 'a');
        str_printf(&whole, "%s", "zz");
        str_add(&bytes, "zz");
        assert_int_equal(whole.n, n + 2);
        assert_string_equal(whole.s, bytes.s);
        str_free(&whole);
        str_free(&bytes);
    }
}

static void distance_counts_edits(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int want;
    } rows[] = {
            {"", "", 0},
            {"", "abc", 3},
            {"abc", "abc", 0},
            {"abc", "abd", 1},  /* substitute */
            {"abc", "abxc", 1}, /* insert */
            {"abc", "ac", 1},   /* delete */
            {"abc", "acb", 1},  /* swap */
            {"ca", "abc", 3},   /* aligned: a swap is not edited again */
            {"kitten", "sitting", 3},
            {"model.layers", "model.layer", 1},
            {"pretrian", "pretrain", 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(text_distance(rows[i].a, rows[i].b), rows[i].want);
        assert_int_equal(text_distance(rows[i].b, rows[i].a), rows[i].want);
    }
    char longer[200];
    memset(longer, 'a', sizeof(longer));
    longer[199] = '\0';
    assert_int_equal(text_distance(longer, longer), 0);
    assert_true(text_distance(longer, "") >= 63);
}

static void nearest_offers_what_is_near(void **state)
{
    (void)state;
    static const char *const names[] = {"pretrain", "finetune", "plan", "bench",
                                        "ckpt"};
    size_t n = ARRAY_LEN(names);
    assert_string_equal(text_nearest("pretrian", names, n), "pretrain");
    assert_string_equal(text_nearest("bnech", names, n), "bench");
    assert_string_equal(text_nearest("plan", names, n), "plan");
    assert_null(text_nearest("generate", names, n));
    assert_null(text_nearest("zzzzzzzzzzzz", names, n));
    assert_null(text_nearest("plan", names, 0));
    /* the first of equals, and a nearer one later in the list */
    static const char *const alike[] = {"aaab", "aaac", "aaaa"};
    assert_string_equal(text_nearest("aaad", alike, 2), "aaab");
    assert_string_equal(text_nearest("aaaa", alike, 3), "aaaa");
}

static void sizes_are_readable(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes;
        const char *want;
    } sizes[] = {
            {0, "0 B"},
            {1023, "1023 B"},
            {1024, "1.00 KiB"},
            {1536, "1.50 KiB"},
            {(int64_t)(12.5 * 1048576), "12.5 MiB"},
            {INT64_C(40) << 30, "40.0 GiB"},
            {INT64_C(256) << 30, "256 GiB"},
            {INT64_MAX, "8.00 EiB"},
    };
    char buf[32];
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        assert_string_equal(text_bytes(sizes[i].bytes, buf, sizeof(buf)),
                            sizes[i].want);
    static const struct {
        double count;
        const char *want;
    } counts[] = {
            {0, "0"},           {999, "999"},           {1000, "1.00 k"},
            {12345, "12.3 k"},  {124439808, "124.4 M"}, {405853388800.0, "405.9 B"},
            {1.5e12, "1.50 T"}, {2e15, "2.00 P"},
    };
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        assert_string_equal(text_count(counts[i].count, buf, sizeof(buf)),
                            counts[i].want);
    char small[4];
    text_bytes(123456789, small, sizeof(small));
    assert_int_equal(strlen(small), 3);
}

/* ---- status ---- */

static void status_has_codes_and_names(void **state)
{
    (void)state;
    static const int want[ST_COUNT] = {0,  1,  2,  65, 66, 69, 70,
                                       71, 73, 74, 75, 80, 130};
    for (int i = 0; i < ST_COUNT; i++) {
        assert_int_equal(status_exit_code((enum status)i), want[i]);
        assert_true(strlen(status_name((enum status)i)) > 0);
    }
}

static void diag_is_written_and_cut(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(diag_set(&d, ST_DATA, "bad value (%s): got %d", "f.txt:3", 7),
                     ST_DATA);
    assert_string_equal(d.text, "bad value (f.txt:3): got 7");
    diag_hint(&d, "did you mean %d?", 8);
    assert_string_equal(d.hint, "did you mean 8?");
    diag_context(&d, "source %d", 2);
    assert_string_equal(d.text, "source 2: bad value (f.txt:3): got 7");
    assert_string_equal(d.hint, "did you mean 8?");
    diag_set(&d, ST_IO, "other");
    assert_string_equal(d.hint, "");
    assert_int_equal(diag_set(NULL, ST_IO, "dropped"), ST_IO);
    diag_hint(NULL, "dropped");
    diag_context(NULL, "dropped");

    char longer[3000];
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    diag_set(&d, ST_IO, "%s", longer);
    assert_int_equal(strlen(d.text), sizeof(d.text) - 1);
    diag_context(&d, "front");
    assert_int_equal(strncmp(d.text, "front: xxx", 10), 0);
    assert_int_equal(strlen(d.text), sizeof(d.text) - 1);
    diag_context(&d, "%s", longer);
    assert_int_equal(strlen(d.text), sizeof(d.text) - 1);
}

/* ---- hashes ---- */

/* source: the empty-input values that xxHash's documentation and test-suite give. */
static void hash_has_known_values(void **state)
{
    (void)state;
    assert_true(hash64("", 0) == UINT64_C(0x2d06800538d394c2));
    uint64_t h[2];
    hash128("", 0, h);
    assert_true(h[1] == UINT64_C(0x99aa06d3014798d8));
    assert_true(h[0] == UINT64_C(0x6001c324468d497f));
    assert_true(hash64_text("abc") == hash64("abc", 3));
    assert_true(hash64("abc", 3) != hash64("abd", 3));
}

static void hash_chain_knows_its_cuts(void **state)
{
    (void)state;
    struct hash_chain a = {0}, b = {0}, c = {0};
    hash_chain_add(&a, "ab", 2);
    hash_chain_add(&a, "c", 1);
    hash_chain_add(&b, "ab", 2);
    hash_chain_add(&b, "c", 1);
    hash_chain_add(&c, "a", 1);
    hash_chain_add(&c, "bc", 2);
    assert_true(a.value == b.value);
    assert_true(a.value != c.value);
}

/* ---- random numbers ---- */

/* source: the known-answer vectors of the Random123 library, philox 4x32, 10 rounds. */
static void philox_has_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } rows[] = {
            {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
            {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
             {0xffffffff, 0xffffffff},
             {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
            {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
             {0xa4093822, 0x299f31d0},
             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        uint32_t got[4];
        philox4x32(rows[i].counter, rows[i].key, got);
        assert_memory_equal(got, rows[i].want, sizeof(got));
    }
}

static void rng_is_keyed_by_everything(void **state)
{
    (void)state;
    uint64_t base = rng_u64(1, 2, 3);
    assert_true(base == rng_u64(1, 2, 3));
    assert_true(base != rng_u64(2, 2, 3));
    assert_true(base != rng_u64(1, 3, 3));
    assert_true(base != rng_u64(1, 2, 2));
    assert_true(base != rng_u64(1, 2, 4));
    assert_true(base != rng_u64(UINT64_C(1) << 32 | 1, 2, 3));
    assert_true(base != rng_u64(1, UINT64_C(1) << 32 | 2, 3));
    assert_true(base != rng_u64(1, 2, UINT64_C(1) << 40 | 3));
    /* every bit is set about half of the time: 20,000 draws, six deviations of 71 */
    int64_t ones[64] = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t x = rng_u64(5, 6, i);
        for (int b = 0; b < 64; b++)
            ones[b] += x >> b & 1;
    }
    for (int b = 0; b < 64; b++)
        assert_true(ones[b] > 10000 - 424 && ones[b] < 10000 + 424);
}

static void normals_have_their_moments(void **state)
{
    (void)state;
    enum {
        N = 1 << 18
    };
    float *x = mem_alloc(N * sizeof(*x));
    rng_normal(11, 22, 0, N, x);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        m1 += v / N;
        m2 += v * v / N;
        m3 += v * v * v / N;
        m4 += v * v * v * v / N;
        lag += i ? v * (double)x[i - 1] / N : 0;
    }
    print_message("moments %.5f %.5f %.5f %.5f, neighbours %.5f\n", m1, m2, m3, m4,
                  lag);
    /* six deviations: 1, 2, 15 and 96 over n are the variances of the first four */
    double unit = 6.0 / sqrt(N);
    assert_true(fabs(m1) < unit);
    assert_true(fabs(m2 - 1) < unit * sqrt(2));
    assert_true(fabs(m3) < unit * sqrt(15));
    assert_true(fabs(m4 - 3) < unit * sqrt(96));
    assert_true(fabs(lag) < unit);
    mem_free(x);
}

static void normals_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    float whole[101], part[101];
    rng_normal(1, 2, 7, 101, whole);
    for (int64_t cut = 0; cut <= 101; cut++) {
        memset(part, 0xff, sizeof(part));
        rng_normal(1, 2, 7, cut, part);
        rng_normal(1, 2, 7 + cut, 101 - cut, part + cut);
        assert_memory_equal(whole, part, sizeof(whole));
    }
}

/* ---- dtypes ---- */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t in;
        uint16_t want;
    } rows[] = {
            {0x3f800000, 0x3f80}, /* 1 */
            {0x80000000, 0x8000}, /* -0 */
            {0x3f807fff, 0x3f80}, /* below the middle */
            {0x3f808000, 0x3f80}, /* the middle, to even: down */
            {0x3f808001, 0x3f81}, /* above the middle */
            {0x3f818000, 0x3f82}, /* the middle, to even: up */
            {0xbf818000, 0xbf82}, /* the same, negative */
            {0x3fffffff, 0x4000}, /* carries into the exponent */
            {0x00000001, 0x0000}, /* the least subnormal */
            {0x00008001, 0x0001}, /* a subnormal, up */
            {0x7f7f7fff, 0x7f7f}, /* the largest that stays finite */
            {0x7f7fffff, 0x7f80}, /* FLT_MAX: to infinity */
            {0x7f800000, 0x7f80}, /* infinity */
            {0xff800000, 0xff80}, /* -infinity */
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(bf16_from_f32(float_of(rows[i].in)), rows[i].want);
    static const uint32_t nans[] = {0x7fc00000, 0x7f800001, 0x7fffffff,
                                    0xffc00001, 0xff80ffff, 0x7f80ffff};
    for (size_t i = 0; i < ARRAY_LEN(nans); i++)
        assert_true(isnan(f32_from_bf16(bf16_from_f32(float_of(nans[i])))));
}

/* Every bf16 comes back, and a float goes to the nearer of its two neighbours. */
static void bf16_is_nearest(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 65536; b++) {
        float x = f32_from_bf16((uint16_t)b);
        assert_int_equal(bits_of(x), b << 16);
        if (!isnan(x))
            assert_int_equal(bf16_from_f32(x), b);
    }
    for (uint64_t i = 0; i < 200000; i++) {
        float x = float_of((uint32_t)rng_u64(3, 4, i));
        if (!isfinite(x) || fabsf(x) > 1e38f)
            continue;
        float low = float_of(bits_of(x) & 0xffff0000u);
        float high = float_of((bits_of(x) & 0xffff0000u) + 0x10000u);
        float got = f32_from_bf16(bf16_from_f32(x));
        double to_low = fabs((double)x - (double)low);
        double to_high = fabs((double)high - (double)x);
        assert_true(got == (to_low < to_high ? low : to_high < to_low ? high : got));
        assert_true(got == low || got == high);
    }
}

static void dtypes_are_read_and_written(void **state)
{
    (void)state;
    static const size_t bytes[DT_COUNT] = {4, 2, 8, 4};
    double room[4];
    for (int t = 0; t < DT_COUNT; t++) {
        assert_int_equal(dtype_bytes((enum dtype)t), bytes[t]);
        assert_int_equal(dtype_is_float((enum dtype)t), t != DT_I32);
        memset(room, 0, sizeof(room));
        dtype_set(room, (enum dtype)t, 1, -3.0);
        dtype_set(room, (enum dtype)t, 2, 96.0);
        assert_true(dtype_get(room, (enum dtype)t, 0) == 0.0);
        assert_true(dtype_get(room, (enum dtype)t, 1) == -3.0);
        assert_true(dtype_get(room, (enum dtype)t, 2) == 96.0);
        assert_true(dtype_get(room, (enum dtype)t, 3) == 0.0);
    }
    assert_string_equal(dtype_name(DT_BF16), "bf16");
    assert_string_equal(dtype_name(DT_I32), "i32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(arena_is_zeroed_and_aligned),
            cmocka_unit_test(arena_copies_strings),
            cmocka_unit_test(vec_grows),
            cmocka_unit_test(pages_are_zeroed_and_aligned),
            cmocka_unit_test(arithmetic_is_checked),
            cmocka_unit_test(str_builds),
            cmocka_unit_test(str_grows_at_every_length),
            cmocka_unit_test(distance_counts_edits),
            cmocka_unit_test(nearest_offers_what_is_near),
            cmocka_unit_test(sizes_are_readable),
            cmocka_unit_test(status_has_codes_and_names),
            cmocka_unit_test(diag_is_written_and_cut),
            cmocka_unit_test(hash_has_known_values),
            cmocka_unit_test(hash_chain_knows_its_cuts),
            cmocka_unit_test(philox_has_known_answers),
            cmocka_unit_test(rng_is_keyed_by_everything),
            cmocka_unit_test(normals_have_their_moments),
            cmocka_unit_test(normals_do_not_depend_on_the_cut),
            cmocka_unit_test(bf16_rounds_to_nearest_even),
            cmocka_unit_test(bf16_is_nearest),
            cmocka_unit_test(dtypes_are_read_and_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
