/* The byte-plane codec: exact round trips on every kind of data and size, the measured
 * ratio and speed, and damaged input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/arena.h"
#include "core/rng.h"
#include "io/codec.h"

enum fill {
    FILL_BITS,     /* random bit patterns: NaN, infinities and denormals among them */
    FILL_NORMAL,   /* normal numbers times 0.02, as weights are */
    FILL_SQUARE,   /* their squares with runs of zeros, as second moments are */
    FILL_NAN,      /* NaNs with payloads, signed zeros, infinities in turn */
    FILL_DENORMAL, /* the smallest numbers */
    FILL_CONSTANT,
    FILL_ZERO,
    FILL_ROUNDED, /* fp32 that holds bf16 values */
    FILL_COUNT
};

static double fill_value(enum fill fill, float normal, int64_t i)
{
    switch (fill) {
    case FILL_SQUARE: return i / 100 % 3 == 0 ? 0.0 : 1e-8 * (double)(normal * normal);
    case FILL_CONSTANT: return 1.25;
    case FILL_ZERO: return 0.0;
    case FILL_ROUNDED: return (double)f32_from_bf16(bf16_from_f32(0.02f * normal));
    default: return 0.02 * (double)normal;
    }
}

static void fill_bits(enum fill fill, enum dtype t, int64_t i, uint8_t *at)
{
    static const uint32_t odd[] = {0x7fc00000, 0xffc12345, 0x7f800001, 0x80000000,
                                   0x00000000, 0x7f800000, 0xff800000};
    uint64_t bits = rng_u64(11, 1, (uint64_t)i);
    if (fill == FILL_NAN)
        bits = (uint64_t)odd[i % 7] << 32 | odd[i % 7];
    if (fill == FILL_DENORMAL)
        bits &= 0x803fffff803f003fu;
    size_t n = dtype_bytes(t);
    memcpy(at, (uint8_t *)&bits + (8 - n), n); /* the top bytes: signs and exponents */
}

static void fill_data(enum fill fill, enum dtype t, int64_t n, void *out)
{
    float normal[2];
    for (int64_t i = 0; i < n; i++) {
        uint8_t *at = (uint8_t *)out + (size_t)i * dtype_bytes(t);
        if (fill == FILL_BITS || fill == FILL_NAN || fill == FILL_DENORMAL) {
            fill_bits(fill, t, i, at);
            continue;
        }
        if (i % 2 == 0)
            rng_normal(5, 9, i, 2, normal);
        dtype_set(out, t, i,
                  fill_value(fill, normal[i % 2], i) * (t == DT_I32 ? 1e6 : 1));
    }
}

static size_t round_trip(struct codec *c, const struct codec_spec *spec,
                         const void *src, int64_t n)
{
    size_t bytes = (size_t)n * dtype_bytes(spec->dtype);
    uint8_t *dst = mem_alloc(codec_bound(spec->dtype, n) + 1);
    uint8_t *back = mem_alloc(bytes + 1);
    memset(back, 0xa5, bytes + 1);
    struct codec_chunk chunk;
    size_t r = codec_encode(c, spec, src, n, dst, &chunk);
    assert_true(r <= codec_bound(spec->dtype, n));
    struct diag diag = {0};
    enum status st = codec_decode(c, &chunk, spec->dtype, n, dst, r, back, &diag);
    if (st != ST_OK)
        fail_msg("%s", diag.text);
    assert_memory_equal(back, src, bytes);
    assert_int_equal(back[bytes], 0xa5);
    mem_free(dst);
    mem_free(back);
    return r;
}

static void test_round_trips(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0,     1,     2,     3,      7,
                                    255,   1023,  2048,  2049,   16383,
                                    16384, 16385, 65537, 131072, 131073};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_I32, DT_F64};
    struct codec *c = codec_create();
    int64_t n_max = 131073;
    uint8_t *src = mem_alloc((size_t)n_max * 8);
    int trips = 0;
    for (size_t t = 0; t < ARRAY_LEN(types); t++)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            fill_data((enum fill)fill, types[t], n_max, src);
            for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
                for (int mode = 0; mode < 3; mode++, trips++) {
                    struct codec_spec spec = {types[t], mode == 1, mode == 2};
                    round_trip(c, &spec, src, sizes[s]);
                }
        }
    print_message("%d round trips, Huffman mode %s\n", trips,
                  codec_has_huffman_mode(c) ? "yes" : "no (level 1 instead)");
    mem_free(src);
    codec_destroy(c);
}

static void test_constant_chunks_cost_nothing(void **state)
{
    (void)state;
    struct codec *c = codec_create();
    float x[777];
    uint8_t dst[8192];
    struct codec_chunk chunk;
    struct codec_spec spec = {.dtype = DT_F32};
    for (size_t i = 0; i < ARRAY_LEN(x); i++)
        x[i] = 0.0f;
    assert_int_equal(codec_encode(c, &spec, x, 777, dst, &chunk), 0);
    assert_int_equal(chunk.flags, CODEC_ZERO);
    for (size_t i = 0; i < ARRAY_LEN(x); i++)
        x[i] = -0.0f; /* not the same bits as zero */
    assert_int_equal(codec_encode(c, &spec, x, 777, dst, &chunk), 0);
    assert_int_equal(chunk.flags, CODEC_CONSTANT);
    assert_int_equal(round_trip(c, &spec, x, 777), 0);
    x[776] = 0.0f;
    assert_true(codec_encode(c, &spec, x, 777, dst, &chunk) > 0);
    codec_destroy(c);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Encodes and decodes 4 MiB chunks for a while; prints and returns the size in percent. */
static double measure(struct codec *c, const char *what, enum fill fill,
                      const struct codec_spec *spec)
{
    size_t bytes = 4 * MIB;
    int64_t n = (int64_t)(bytes / dtype_bytes(spec->dtype));
    uint8_t *src = mem_alloc(bytes);
    uint8_t *back = mem_alloc(bytes);
    uint8_t *dst = mem_alloc(codec_bound(spec->dtype, n));
    fill_data(fill, spec->dtype, n, src);
    struct codec_chunk chunk;
    size_t r = codec_encode(c, spec, src, n, dst, &chunk);
    int rounds = 12;
    double t0 = cpu_seconds();
    for (int i = 0; i < rounds; i++)
        r = codec_encode(c, spec, src, n, dst, &chunk);
    double t1 = cpu_seconds();
    for (int i = 0; i < rounds; i++)
        assert_int_equal(codec_decode(c, &chunk, spec->dtype, n, dst, r, back, NULL),
                         ST_OK);
    double t2 = cpu_seconds();
    assert_memory_equal(src, back, bytes);
    double mb = (double)bytes * rounds / 1e6;
    double percent = 100.0 * (double)r / (double)bytes;
    print_message("%-22s %5.1f %% of raw (%.2fx), encode %.0f MB/s, decode %.0f MB/s\n",
                  what, percent, 100.0 / percent, mb / (t1 - t0), mb / (t2 - t1));
    mem_free(src);
    mem_free(back);
    mem_free(dst);
    return percent;
}

static void test_ratio(void **state)
{
    (void)state;
    struct codec *c = codec_create();
    struct codec_spec bf16 = {.dtype = DT_BF16};
    struct codec_spec f32 = {.dtype = DT_F32};
    struct codec_spec square = {.dtype = DT_F32, .non_negative = true};
    assert_true(measure(c, "bf16 normal", FILL_NORMAL, &bf16) < 67.0);
    assert_true(measure(c, "fp32 normal", FILL_NORMAL, &f32) < 83.5);
    assert_true(measure(c, "fp32 squares, zeros", FILL_SQUARE, &square) < 82.0);
    assert_true(measure(c, "fp32 holding bf16", FILL_ROUNDED, &f32) < 36.0);
    /* What cannot shrink costs the frames' heads only. */
    assert_true(measure(c, "fp32 random bits", FILL_BITS, &f32) < 100.01);
    codec_destroy(c);
}

/* Flipping any byte of the frames is an error or gives data that differ (which the
 * chunk's hash finds), and cutting them short is an error; nothing is written outside. */
static void test_damage(void **state)
{
    (void)state;
    enum {
        N = 600
    };
    struct codec *c = codec_create();
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F64};
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        size_t bytes = N * dtype_bytes(types[t]);
        uint8_t *src = mem_alloc(bytes);
        uint8_t *back = mem_alloc(bytes + 64);
        uint8_t *dst = mem_alloc(codec_bound(types[t], N));
        fill_data(FILL_NORMAL, types[t], N, src);
        struct codec_spec spec = {.dtype = types[t]};
        struct codec_chunk chunk;
        size_t r = codec_encode(c, &spec, src, N, dst, &chunk);
        memset(back + bytes, 0x77, 64);
        for (size_t i = 0; i < r; i++) {
            dst[i] ^= 0x41;
            enum status st = codec_decode(c, &chunk, types[t], N, dst, r, back, NULL);
            dst[i] ^= 0x41;
            assert_true(st == ST_OK || st == ST_DATA);
            for (size_t j = 0; j < 64; j++)
                assert_int_equal(back[bytes + j], 0x77);
        }
        for (size_t n = 0; n < r; n++)
            assert_int_equal(codec_decode(c, &chunk, types[t], N, dst, n, back, NULL),
                             ST_DATA);
        struct codec_chunk bad = chunk;
        bad.planes = 3;
        assert_int_equal(codec_decode(c, &bad, types[t], N, dst, r, back, NULL),
                         ST_DATA);
        bad = chunk;
        bad.codec = CODEC_MASTER_LO;
        assert_int_equal(codec_decode(c, &bad, types[t], N, dst, r, back, NULL),
                         ST_DATA);
        bad = chunk;
        bad.flags |= CODEC_DELTA;
        assert_int_equal(codec_decode(c, &bad, types[t], N, dst, r, back, NULL),
                         ST_DATA);
        mem_free(src);
        mem_free(back);
        mem_free(dst);
    }
    codec_destroy(c);
}

/* A head that promises more than its bytes can hold is no reason to allocate. */
static void test_frame_content(void **state)
{
    (void)state;
    struct codec *c = codec_create();
    size_t n = 1 * MIB;
    uint8_t *zeros = mem_alloc(n), *frame = mem_alloc(frame_bound(n));
    size_t bytes = frame_encode(c, zeros, n, frame);
    assert_int_equal(frame_content_bytes(frame, bytes), (int64_t)n);
    static const uint8_t huge[] = {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0xff, 0xff, 0xff,
                                   0xff, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00};
    assert_int_equal(frame_content_bytes(huge, sizeof(huge)), -1);
    assert_int_equal(frame_content_bytes(huge, 3), -1);
    mem_free(zeros);
    mem_free(frame);
    codec_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_round_trips),
            cmocka_unit_test(test_constant_chunks_cost_nothing),
            cmocka_unit_test(test_damage),
            cmocka_unit_test(test_frame_content),
            cmocka_unit_test(test_ratio),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
