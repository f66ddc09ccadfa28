/* bf16 products on Intel's tile registers.
 *
 * TDPBF16PS multiplies a tile of 16 rows by 16 pairs of A with one of 16 pairs by 16
 * columns of B into 16 x 16 sums in f32. It takes numbers under the normal range for zero
 * and makes none, whatever MXCSR says; so does the rounding to bf16 here: results are
 * within 2^-126 per term of those of the other kernels.
 * source: Intel 64 Architectures Software Developer's Manual, vol. 2, TDPBF16PS;
 * vol. 1, chapter 18 "Programming with Intel AMX". */
#include <string.h>

#include "kernels/cpu/gemm_pack512.h"

#define TILE_DIM   16 /* rows of a tile, and its 32-bit columns */
#define MR         (2 * TILE_DIM)
#define NR         (2 * TILE_DIM)
#define LINE_BYTES 64 /* a row of a tile */
#define PAIR       2  /* bf16 in a 32-bit step */

/* The compiler's forms of tile loads do not say all that they read. */
#define MEMORY_BARRIER(p) __asm__ volatile("" : : "r"(p) : "memory")

/* The instructions are written with constant register numbers: sums in tiles 0 to 3, the
 * two tiles of A in 4 and 5, of B in 6 and 7. */
struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void tiles_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = LINE_BYTES;
        c.rows[i] = TILE_DIM;
    }
    MEMORY_BARRIER(&c);
    _tile_loadconfig(&c);
}

/* A thread that keeps tiles has 8 KiB more to save at every switch. */
static void tiles_end(void)
{
    _tile_release();
}

/* ------------------------------------------------------------------------- packing */

/* A panel of A is a sequence of blocks of 16 steps: 32 rows of 64 bytes each. */
static void pack_a_k(void *panel, const void *src, int64_t ld, int64_t width, int64_t k)
{
    char *dst = panel;
    for (int64_t kk = 0; kk < k; kk += PAIR * TILE_DIM) {
        for (int64_t i = 0; i < MR; i++, dst += LINE_BYTES) {
            __m512 v = _mm512_setzero_ps();
            if (i < width)
                v = pack_load_k(PACK_BF16_PAIR, src, i * ld + kk, k - kk);
            _mm512_store_ps(dst, v);
        }
    }
}

/* Sixteen steps of up to 16 neighbours of a source whose inner dimension is the slow one;
 * zeros past `width` and past `k`. */
LANE_INLINE void load_block_m(__m512 *r, const void *src, int64_t i, int64_t ld,
                              int64_t width, int64_t k)
{
    __mmask16 m = width > 0 ? pack_mask(width) : 0;
    const uint16_t *next = (const uint16_t *)src + i + PAIR * TILE_DIM * ld;
    for (int s = 0; s < PAIR * TILE_DIM; s++) /* rows too far apart for the hardware */
        __builtin_prefetch(next + s * ld);
    if (k >= PAIR * TILE_DIM) {
#pragma GCC unroll 16
        for (int s = 0; s < TILE_DIM; s++)
            r[s] = pack_load_m(PACK_BF16_PAIR, src, i + PAIR * s * ld, ld, m, true);
        return;
    }
    for (int s = 0; s < TILE_DIM; s++)
        r[s] = PAIR * s < k ? pack_load_m(PACK_BF16_PAIR, src, i + PAIR * s * ld, ld, m,
                                          PAIR * s + 1 < k)
                            : _mm512_setzero_ps();
}

static void pack_a_m(void *panel, const void *src, int64_t ld, int64_t width, int64_t k)
{
    char *dst = panel;
    for (int64_t kk = 0; kk < k; kk += PAIR * TILE_DIM) {
        for (int64_t c = 0; c < MR; c += TILE_DIM) {
            __m512 r[TILE_DIM];
            load_block_m(r, src, kk * ld + c, ld, width - c, k - kk);
            lane_transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < TILE_DIM; i++, dst += LINE_BYTES)
                _mm512_store_ps(dst, r[i]);
        }
    }
}

/* A panel of B is a sequence of blocks of 16 steps: the first 16 columns of each step,
 * then the other 16, so that a tile is one piece of memory. */
static void pack_b_n(void *panel, const void *src, int64_t ld, int64_t width, int64_t k)
{
    float *dst = panel;
    for (int64_t kk = 0; kk < k; kk += PAIR * TILE_DIM, dst += TILE_DIM * NR) {
        for (int64_t c = 0; c < NR; c += TILE_DIM) {
            __m512 r[TILE_DIM];
            load_block_m(r, src, kk * ld + c, ld, width - c, k - kk);
#pragma GCC unroll 16
            for (int i = 0; i < TILE_DIM; i++)
                _mm512_store_ps(dst + (c + i) * TILE_DIM, r[i]);
        }
    }
}

static void pack_b_k(void *panel, const void *src, int64_t ld, int64_t width, int64_t k)
{
    float *dst = panel;
    for (int64_t kk = 0; kk < k; kk += PAIR * TILE_DIM, dst += TILE_DIM * NR) {
        for (int64_t c = 0; c < NR; c += TILE_DIM) {
            __m512 r[TILE_DIM];
#pragma GCC unroll 16
            for (int i = 0; i < TILE_DIM; i++)
                r[i] = c + i < width ? pack_load_k(PACK_BF16_PAIR, src,
                                                   (c + i) * ld + kk, k - kk)
                                     : _mm512_setzero_ps();
            lane_transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < TILE_DIM; i++)
                _mm512_store_ps(dst + (c + i) * TILE_DIM, r[i]);
        }
    }
}

/* ----------------------------------------------------------------------- the tile */

/* The four tiles of sums from rows at p. */
LANE_INLINE void sums_load(const void *p, int64_t row_bytes)
{
    const char *top = p, *low = top + TILE_DIM * row_bytes;
    MEMORY_BARRIER(p);
    _tile_loadd(0, top, row_bytes);
    _tile_loadd(1, top + LINE_BYTES, row_bytes);
    _tile_loadd(2, low, row_bytes);
    _tile_loadd(3, low + LINE_BYTES, row_bytes);
}

LANE_INLINE void sums_store(void *p, int64_t row_bytes)
{
    char *top = p, *low = top + TILE_DIM * row_bytes;
    _tile_stored(0, top, row_bytes);
    _tile_stored(1, top + LINE_BYTES, row_bytes);
    _tile_stored(2, low, row_bytes);
    _tile_stored(3, low + LINE_BYTES, row_bytes);
    MEMORY_BARRIER(p);
}

/* n_rows x n_cols elements as f32 into a whole block, zeros around them. */
static void block_load(float *block, const void *src, enum dtype t, int64_t ld,
                       int64_t n_rows, int64_t n_cols)
{
    memset(block, 0, MR * NR * sizeof(float));
    for (int64_t i = 0; i < n_rows; i++)
        lane_row_load(block + i * NR, (const char *)src + i * ld * dtype_bytes(t), t,
                      n_cols);
}

static void block_store(const float *block, void *dst, enum dtype t, int64_t ld,
                        int64_t n_rows, int64_t n_cols)
{
    __mmask32 m = n_cols >= NR ? 0xffffffffu : (1u << n_cols) - 1;
    for (int64_t i = 0; i < n_rows; i++, block += NR) {
        if (t == DT_F32) {
            memcpy((float *)dst + i * ld, block, (size_t)n_cols * sizeof(float));
            continue;
        }
        __m512 lo = _mm512_load_ps(block), hi = _mm512_load_ps(block + TILE_DIM);
        _mm512_mask_storeu_epi16((uint16_t *)dst + i * ld, m,
                                 (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
}

/* Where the sums start: at the running sums, the addend, the bias or zero. */
static void sums_begin(const struct gemm_dst *d, float *block, int64_t n_cols)
{
    const void *from = d->first ? d->addend : d->run;
    int64_t ld = d->first ? d->ld_addend : d->ld_run;
    enum dtype t = d->first ? d->addend_dtype : DT_F32;
    if (from && t == DT_F32 && d->n_rows == MR && n_cols == NR) {
        sums_load(from, ld * (int64_t)sizeof(float));
    } else if (from) {
        block_load(block, from, t, ld, d->n_rows, n_cols);
        sums_load(block, NR * sizeof(float));
    } else if (d->first && d->bias) {
        memset(block, 0, NR * sizeof(float));
        memcpy(block, d->bias, (size_t)n_cols * sizeof(float));
        sums_load(block, 0);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

static void sums_end(const struct gemm_dst *d, float *block, int64_t n_cols)
{
    void *to = d->last ? d->out : d->run;
    int64_t ld = d->last ? d->ld_out : d->ld_run;
    enum dtype t = d->last ? d->out_dtype : DT_F32;
    if (t == DT_F32 && d->n_rows == MR && n_cols == NR) {
        sums_store(to, ld * (int64_t)sizeof(float));
        return;
    }
    sums_store(block, NR * sizeof(float));
    block_store(block, to, t, ld, d->n_rows, n_cols);
}

/* The neighbour's place in the result, while the products of this one go on. */
static void next_fetch(const struct gemm_dst *d)
{
    if (d->last && d->out_dtype != DT_F32) {
        for (int64_t i = 0; i < d->n_rows; i++)
            __builtin_prefetch((uint16_t *)d->out + i * d->ld_out + NR, 1);
        return;
    }
    for (int64_t i = 0; i < d->n_rows; i++) {
        __builtin_prefetch(d->run + i * d->ld_run + NR, 1);
        __builtin_prefetch(d->run + i * d->ld_run + NR + TILE_DIM, 1);
    }
}

static void tile(const void *a, const void *b, int64_t steps, const struct gemm_dst *d,
                 int64_t n_cols)
{
    _Alignas(LINE_BYTES) float block[MR * NR];
    const char *ap = a, *bp = b;
    const char *ahead = d->ahead.at;
    sums_begin(d, block, n_cols);
    next_fetch(d);
    for (int64_t s = 0; s < steps; s += TILE_DIM) {
        _tile_loadd(6, bp, LINE_BYTES);
        _tile_loadd(4, ap, LINE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, bp + TILE_DIM * LINE_BYTES, LINE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, ap + TILE_DIM * LINE_BYTES, LINE_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        ap += MR * LINE_BYTES;
        bp += NR * LINE_BYTES;
        for (int64_t i = 0; i < d->ahead.n_rows; i++)
            _mm_prefetch(ahead + i * d->ahead.row_bytes, _MM_HINT_T1);
        ahead += d->ahead.step_bytes;
    }
    sums_end(d, block, n_cols);
}

#define TILES_4 tile, tile, tile, tile

/* The number of rows matters at the edges of a tile only. */
static const gemm_tile_fn tiles[MR] = {TILES_4, TILES_4, TILES_4, TILES_4,
                                       TILES_4, TILES_4, TILES_4, TILES_4};

const struct gemm_isa gemm_isa_amx = {
        .mr = MR,
        .nr = NR,
        .k_per_step = PAIR,
        .step_unit = TILE_DIM,
        .k_block = 384,
        .n_block = 1024,
        .b_bytes = 9 * MIB / 8,
        .chunk_blocks = 3,
        .a_group = 8,
        .pack_cost = 64,
        .pack_a = {[DT_BF16] = {pack_a_m, pack_a_k}},
        .pack_b = {[DT_BF16] = {pack_b_n, pack_b_k}},
        .tile = tiles,
        .thread_begin = tiles_begin,
        .thread_end = tiles_end,
};
