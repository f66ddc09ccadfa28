#include "io/codec.h"

#include <string.h>

#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode, custom memory */
#include <zstd.h>

#include "core/arena.h"

#define RAW_BLOCK_BYTES  (128 * KIB)
#define RAW_HEAD_BYTES   9 /* magic, descriptor, 4-byte content size */
#define RAW_BLOCK_HEAD   3
#define PROBE_BYTES      (16 * KIB)
#define PROBE_GAIN_DENOM 67 /* a probe must shrink by 1/67 = 1.5 % */
#define SPLIT_ELEMS      2048
#define LEVEL_FAST       1
#define LEVEL_TABLE      3

struct codec {
    ZSTD_CCtx *huffman;
    ZSTD_CCtx *matching;
    ZSTD_CCtx *table;
    ZSTD_DCtx *decoder;
    bool has_huffman;
    uint8_t *planes; /* scratch: the split chunk */
    size_t planes_cap;
};

enum plane_coding {
    PLANE_STORE,   /* raw blocks */
    PLANE_HUFFMAN, /* order-0 */
    PLANE_MATCH,   /* level 1: matches and entropy coding */
    PLANE_PROBE,   /* as a sample says */
};

static void *zstd_alloc(void *opaque, size_t bytes)
{
    (void)opaque;
    return mem_realloc(NULL, bytes);
}

static void zstd_free(void *opaque, void *p)
{
    (void)opaque;
    mem_free(p);
}

static const ZSTD_customMem zstd_memory = {zstd_alloc, zstd_free, NULL};

static ZSTD_CCtx *encoder_create(int level)
{
    ZSTD_CCtx *e = ZSTD_createCCtx_advanced(zstd_memory);
    ASSERT(e);
    size_t r = ZSTD_CCtx_setParameter(e, ZSTD_c_compressionLevel, level);
    ASSERT(!ZSTD_isError(r));
    return e;
}

struct codec *codec_create(void)
{
    struct codec *c = mem_alloc(sizeof(*c));
    c->matching = encoder_create(LEVEL_FAST);
    c->table = encoder_create(LEVEL_TABLE);
    c->huffman = encoder_create(ZSTD_minCLevel());
    /* The parameter is experimental: a library without it gets level 1. Plain negative
     * levels would leave literals uncoded. */
    size_t r = ZSTD_CCtx_setParameter(c->huffman, ZSTD_c_literalCompressionMode,
                                      ZSTD_lcm_huffman);
    c->has_huffman = !ZSTD_isError(r);
    if (!c->has_huffman) {
        ZSTD_freeCCtx(c->huffman);
        c->huffman = encoder_create(LEVEL_FAST);
    }
    c->decoder = ZSTD_createDCtx_advanced(zstd_memory);
    ASSERT(c->decoder);
    return c;
}

void codec_destroy(struct codec *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->huffman);
    ZSTD_freeCCtx(c->matching);
    ZSTD_freeCCtx(c->table);
    ZSTD_freeDCtx(c->decoder);
    mem_free(c->planes);
    mem_free(c);
}

bool codec_has_huffman_mode(const struct codec *c)
{
    return c->has_huffman;
}

static uint8_t *scratch_for(struct codec *c, size_t bytes)
{
    if (bytes > c->planes_cap) {
        mem_free(c->planes);
        c->planes = mem_realloc(NULL, bytes);
        c->planes_cap = bytes;
    }
    return c->planes;
}

/* Frames. */

static size_t raw_frame_bytes(size_t bytes)
{
    size_t blocks = MAX((bytes + RAW_BLOCK_BYTES - 1) / RAW_BLOCK_BYTES, (size_t)1);
    return RAW_HEAD_BYTES + bytes + blocks * RAW_BLOCK_HEAD;
}

static size_t plane_bound(size_t bytes)
{
    return MAX(ZSTD_compressBound(bytes), raw_frame_bytes(bytes));
}

/* A single-segment frame of raw blocks, as RFC 8878 lays it out. */
static size_t store_frame(const uint8_t *src, size_t bytes, uint8_t *dst)
{
    uint8_t *at = dst;
    const uint8_t head[5] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0};
    memcpy(at, head, sizeof(head));
    at += sizeof(head);
    for (int i = 0; i < 4; i++)
        *at++ = (uint8_t)(bytes >> (8 * i));
    bool last;
    do {
        size_t n = MIN(bytes, RAW_BLOCK_BYTES);
        last = n == bytes;
        uint32_t block = (uint32_t)last | (uint32_t)n << 3; /* type 0: raw */
        for (int i = 0; i < RAW_BLOCK_HEAD; i++)
            *at++ = (uint8_t)(block >> (8 * i));
        if (n > 0)
            memcpy(at, src, n);
        at += n;
        src += n;
        bytes -= n;
    } while (!last);
    return (size_t)(at - dst);
}

/* The compressed length, or SIZE_MAX when it is no gain. */
static size_t compress_frame(ZSTD_CCtx *e, const uint8_t *src, size_t bytes,
                             uint8_t *dst, size_t cap)
{
    size_t r = ZSTD_compress2(e, dst, cap, src, bytes);
    return ZSTD_isError(r) || r >= raw_frame_bytes(bytes) ? SIZE_MAX : r;
}

/* Decides for a mantissa plane. Planes that shrink to half hold repeats (numbers that
 * were rounded, rows that never moved), which matching turns into almost nothing. */
static enum plane_coding probe_plane(struct codec *c, const uint8_t *src, size_t bytes)
{
    uint8_t out[PROBE_BYTES + KIB];
    size_t n = MIN(bytes, PROBE_BYTES);
    const uint8_t *sample = src + (bytes - n) / 2;
    size_t r = compress_frame(c->huffman, sample, n, out, sizeof(out));
    if (r > n - n / PROBE_GAIN_DENOM)
        return PLANE_STORE;
    return r < n / 2 ? PLANE_MATCH : PLANE_HUFFMAN;
}

static size_t encode_plane(struct codec *c, enum plane_coding coding,
                           const uint8_t *src, size_t bytes, uint8_t *dst)
{
    if (coding == PLANE_PROBE)
        coding = probe_plane(c, src, bytes);
    size_t r = SIZE_MAX;
    if (coding != PLANE_STORE)
        r = compress_frame(coding == PLANE_HUFFMAN ? c->huffman : c->matching, src,
                           bytes, dst, plane_bound(bytes));
    return r == SIZE_MAX ? store_frame(src, bytes, dst) : r;
}

/* Splitting and merging. Blocks stay in the first-level cache; the pass over one plane at
 * a time is what the compiler turns into packed narrowing. */

static void split16(const uint8_t *src, size_t n, bool rotate, uint8_t *planes)
{
    uint16_t x[SPLIT_ELEMS];
    for (size_t at = 0; at < n; at += SPLIT_ELEMS) {
        size_t m = MIN(n - at, (size_t)SPLIT_ELEMS);
        memcpy(x, src + at * 2, m * 2);
        if (rotate)
            for (size_t i = 0; i < m; i++)
                x[i] = (uint16_t)(x[i] << 1 | x[i] >> 15);
        for (size_t i = 0; i < m; i++)
            planes[at + i] = (uint8_t)(x[i] >> 8);
        for (size_t i = 0; i < m; i++)
            planes[n + at + i] = (uint8_t)x[i];
    }
}

static void split32(const uint8_t *src, size_t n, bool rotate, uint8_t *planes)
{
    uint32_t x[SPLIT_ELEMS];
    for (size_t at = 0; at < n; at += SPLIT_ELEMS) {
        size_t m = MIN(n - at, (size_t)SPLIT_ELEMS);
        memcpy(x, src + at * 4, m * 4);
        if (rotate)
            for (size_t i = 0; i < m; i++)
                x[i] = x[i] << 1 | x[i] >> 31;
        for (int p = 0; p < 4; p++) {
            uint8_t *to = planes + (size_t)p * n + at;
            int shift = 24 - 8 * p;
            for (size_t i = 0; i < m; i++)
                to[i] = (uint8_t)(x[i] >> shift);
        }
    }
}

static void merge16(const uint8_t *planes, size_t n, bool rotated, uint8_t *dst)
{
    uint16_t x[SPLIT_ELEMS];
    for (size_t at = 0; at < n; at += SPLIT_ELEMS) {
        size_t m = MIN(n - at, (size_t)SPLIT_ELEMS);
        const uint8_t *hi = planes + at;
        const uint8_t *lo = hi + n;
        for (size_t i = 0; i < m; i++)
            x[i] = (uint16_t)(hi[i] << 8 | lo[i]);
        if (rotated)
            for (size_t i = 0; i < m; i++)
                x[i] = (uint16_t)(x[i] >> 1 | x[i] << 15);
        memcpy(dst + at * 2, x, m * 2);
    }
}

static void merge32(const uint8_t *planes, size_t n, bool rotated, uint8_t *dst)
{
    uint32_t x[SPLIT_ELEMS];
    for (size_t at = 0; at < n; at += SPLIT_ELEMS) {
        size_t m = MIN(n - at, (size_t)SPLIT_ELEMS);
        const uint8_t *p0 = planes + at;
        const uint8_t *p1 = p0 + n;
        const uint8_t *p2 = p1 + n;
        const uint8_t *p3 = p2 + n;
        for (size_t i = 0; i < m; i++)
            x[i] = (uint32_t)p0[i] << 24 | (uint32_t)p1[i] << 16 |
                   (uint32_t)p2[i] << 8 | p3[i];
        if (rotated)
            for (size_t i = 0; i < m; i++)
                x[i] = x[i] >> 1 | x[i] << 31;
        memcpy(dst + at * 4, x, m * 4);
    }
}

/* Chunks. */

static bool has_planes(enum dtype dtype)
{
    return dtype_bytes(dtype) == 2 || dtype_bytes(dtype) == 4;
}

size_t codec_bound(enum dtype dtype, int64_t n_elems)
{
    size_t elem = dtype_bytes(dtype);
    size_t n = (size_t)n_elems;
    return MAX(has_planes(dtype) ? elem * plane_bound(n) : 0, plane_bound(n * elem));
}

/* The coding of the top plane and of those below it. */
static void choose_coding(const struct codec_spec *spec, enum plane_coding *top,
                          enum plane_coding *rest)
{
    if (!dtype_is_float(spec->dtype)) {
        *top = *rest = PLANE_MATCH;
        return;
    }
    *top = spec->non_negative ? PLANE_MATCH : PLANE_HUFFMAN;
    *rest = PLANE_PROBE;
}

static size_t encode_planes(struct codec *c, const struct codec_spec *spec,
                            const uint8_t *src, size_t n, uint8_t *dst,
                            struct codec_chunk *out)
{
    int planes = (int)dtype_bytes(spec->dtype);
    bool rotate = dtype_is_float(spec->dtype) && !spec->non_negative;
    uint8_t *split = scratch_for(c, n * (size_t)planes);
    if (planes == 2)
        split16(src, n, rotate, split);
    else
        split32(src, n, rotate, split);

    enum plane_coding top;
    enum plane_coding rest;
    choose_coding(spec, &top, &rest);
    out->codec = CODEC_PLANES;
    out->planes = (uint8_t)planes;
    out->flags = rotate ? CODEC_ROTATED : 0;
    size_t total = 0;
    for (int p = 0; p < planes; p++) {
        size_t r = encode_plane(c, p == 0 ? top : rest, split + (size_t)p * n, n,
                                dst + total);
        out->plane_bytes[p] = (uint32_t)r;
        total += r;
    }
    return total;
}

/* Every element equal to the first: memcmp against itself one element on, which stops at
 * the first difference. */
static bool is_constant(const uint8_t *src, size_t bytes, size_t elem)
{
    return bytes <= elem || memcmp(src, src + elem, bytes - elem) == 0;
}

size_t codec_encode(struct codec *c, const struct codec_spec *spec, const void *src,
                    int64_t n_elems, void *dst, struct codec_chunk *out)
{
    size_t elem = dtype_bytes(spec->dtype);
    size_t n = (size_t)n_elems;
    size_t bytes = n * elem;
    ASSERT(n_elems >= 0 && bytes <= UINT32_MAX / 2);
    memset(out, 0, sizeof(*out));
    if (is_constant(src, bytes, elem)) {
        if (n > 0)
            memcpy(&out->value, src, elem);
        out->flags = out->value == 0 ? CODEC_ZERO : CODEC_CONSTANT;
        return 0;
    }
    if (!spec->raw && has_planes(spec->dtype))
        return encode_planes(c, spec, src, n, dst, out);
    out->codec = spec->raw ? CODEC_RAW : CODEC_BYTES;
    out->planes = 1;
    size_t r = encode_plane(c, spec->raw ? PLANE_STORE : PLANE_MATCH, src, bytes, dst);
    out->plane_bytes[0] = (uint32_t)r;
    return r;
}

size_t frame_bound(size_t bytes)
{
    return plane_bound(bytes);
}

size_t frame_encode(struct codec *c, const void *src, size_t bytes, void *dst)
{
    size_t r = ZSTD_compress2(c->table, dst, frame_bound(bytes), src, bytes);
    ASSERT(!ZSTD_isError(r));
    return r;
}

int64_t frame_content_bytes(const void *src, size_t src_bytes)
{
    unsigned long long n = ZSTD_getFrameContentSize(src, src_bytes);
    /* A block of at least three bytes and its head hold at most 128 KiB. */
    return n / RAW_BLOCK_BYTES > src_bytes ? -1 : (int64_t)n;
}

enum status frame_decode(struct codec *c, const void *src, size_t src_bytes, void *dst,
                         size_t bytes, struct diag *diag)
{
    size_t r = ZSTD_decompressDCtx(c->decoder, dst, bytes, src, src_bytes);
    if (ZSTD_isError(r))
        return diag_set(diag, ST_DATA, "damaged zstd frame: %s", ZSTD_getErrorName(r));
    if (r != bytes)
        return diag_set(diag, ST_DATA,
                        "damaged zstd frame: got %zu bytes, wanted %zu bytes", r,
                        bytes);
    return ST_OK;
}

static void fill_constant(uint64_t value, size_t elem, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++)
        memcpy(dst + i * elem, &value, elem);
}

/* The frames' number and lengths agree with the codec and the bytes at hand. */
static enum status check_chunk(const struct codec_chunk *k, enum dtype dtype,
                               size_t src_bytes, struct diag *diag)
{
    if (k->flags & ~(CODEC_ZERO | CODEC_CONSTANT | CODEC_ROTATED) ||
        k->codec > CODEC_BYTES)
        return diag_set(diag, ST_DATA, "unknown chunk coding: got codec %d, flags %#x",
                        k->codec, k->flags);
    bool empty = k->flags & (CODEC_ZERO | CODEC_CONSTANT);
    int want = 1;
    if (empty)
        want = 0;
    else if (k->codec == CODEC_PLANES)
        want = has_planes(dtype) ? (int)dtype_bytes(dtype) : -1;
    if (k->planes != want)
        return diag_set(diag, ST_DATA, "damaged chunk record: got %d planes for %s",
                        k->planes, dtype_name(dtype));
    uint64_t total = 0;
    for (int p = 0; p < k->planes; p++)
        total += k->plane_bytes[p];
    if (total != src_bytes)
        return diag_set(diag, ST_DATA,
                        "damaged chunk record: got %zu bytes of frames, wanted %llu",
                        src_bytes, (unsigned long long)total);
    return ST_OK;
}

static enum status decode_planes(struct codec *c, const struct codec_chunk *k, size_t n,
                                 const uint8_t *src, uint8_t *dst, struct diag *diag)
{
    uint8_t *split = scratch_for(c, n * k->planes);
    for (int p = 0; p < k->planes; p++) {
        TRY(frame_decode(c, src, k->plane_bytes[p], split + (size_t)p * n, n, diag));
        src += k->plane_bytes[p];
    }
    if (k->planes == 2)
        merge16(split, n, k->flags & CODEC_ROTATED, dst);
    else
        merge32(split, n, k->flags & CODEC_ROTATED, dst);
    return ST_OK;
}

enum status codec_decode(struct codec *c, const struct codec_chunk *chunk,
                         enum dtype dtype, int64_t n_elems, const void *src,
                         size_t src_bytes, void *dst, struct diag *diag)
{
    size_t elem = dtype_bytes(dtype);
    size_t n = (size_t)n_elems;
    TRY(check_chunk(chunk, dtype, src_bytes, diag));
    if (chunk->flags & CODEC_ZERO) {
        if (n > 0)
            memset(dst, 0, n * elem);
        return ST_OK;
    }
    if (chunk->flags & CODEC_CONSTANT) {
        fill_constant(chunk->value, elem, n, dst);
        return ST_OK;
    }
    if (chunk->codec == CODEC_PLANES)
        return decode_planes(c, chunk, n, src, dst, diag);
    return frame_decode(c, src, src_bytes, dst, n * elem, diag);
}
