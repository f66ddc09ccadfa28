/* Attention in bf16 on Intel's tile registers.
 *
 * Scores and their gradients' products come from the operands as they are. Probabilities
 * and score gradients are f32; they enter the other products as the sum of ATTN_TERMS bf16
 * numbers, the first rounded from the value, the next from what is left, so that the
 * results are those of f32 products but for the last bits. Tiles of 64 queries by 64 keys
 * have queries across the lanes, as in attn_body.inc.
 *
 * Operands lie in panels of 32 rows (or columns) as gemm_isa_amx packs them: blocks of 32
 * inner elements, 2 KiB each. Heads are padded with zeros to a multiple of 32. */
#include <string.h>

#include "kernels/cpu/attn_blocks.inc"
#include "kernels/cpu/gemm.h"

#define LINE_BYTES  64
#define PANEL       32 /* rows of a panel; inner elements of a block */
#define BLOCK_BYTES 2048
#define Q_PANELS    (BLK / PANEL)
/* 64 x 64 bf16 numbers. */
#define PROB_BYTES (BLK * BLK * 2)

#define MEMORY_BARRIER(p) __asm__ volatile("" : : "r"(p) : "memory")

/* ------------------------------------------------------------------------- products */

/* A 32 x 32 product of panels, of n_terms pairs of panels a_term and b_term bytes apart. */
struct panels {
    const char *a, *b;
    int64_t a_term, b_term;
    int n_terms;
    int64_t n_blocks;
};

/* c (+)= the product; c has rows of ld floats. */
static void panels_multiply(float *c, int64_t ld, const struct panels *p, bool add)
{
    int64_t row_bytes = ld * (int64_t)sizeof(float);
    char *top = (char *)c, *low = top + PANEL / 2 * row_bytes;
    if (add) {
        MEMORY_BARRIER(c);
        _tile_loadd(0, top, row_bytes);
        _tile_loadd(1, top + LINE_BYTES, row_bytes);
        _tile_loadd(2, low, row_bytes);
        _tile_loadd(3, low + LINE_BYTES, row_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int t = 0; t < p->n_terms; t++) {
        const char *a = p->a + t * p->a_term, *b = p->b + t * p->b_term;
        for (int64_t i = 0; i < p->n_blocks; i++) {
            MEMORY_BARRIER(a);
            MEMORY_BARRIER(b);
            _tile_loadd(6, b, LINE_BYTES);
            _tile_loadd(4, a, LINE_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + BLOCK_BYTES / 2, LINE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a + BLOCK_BYTES / 2, LINE_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            a += BLOCK_BYTES;
            b += BLOCK_BYTES;
        }
    }
    _tile_stored(0, top, row_bytes);
    _tile_stored(1, top + LINE_BYTES, row_bytes);
    _tile_stored(2, low, row_bytes);
    _tile_stored(3, low + LINE_BYTES, row_bytes);
    MEMORY_BARRIER(c);
}

/* The width of heads in panels, and in f32 tiles. */
static int64_t width_of(const struct attn_args *a)
{
    return round_up_i64(a->dim, PANEL);
}

static int64_t padded_seq(const struct attn_args *a)
{
    return round_up_i64(a->seq, BLK);
}

/* s[BLK keys][BLK queries] = keys at `key` times the queries' columns. */
static void scores(float *s, const struct attn_args *a, const char *keys,
                   const char *queries, int64_t key)
{
    int64_t panel = width_of(a) / PANEL * BLOCK_BYTES;
    for (int64_t i = 0; i < Q_PANELS; i++)
        for (int64_t j = 0; j < Q_PANELS; j++)
            panels_multiply(s + i * PANEL * BLK + j * PANEL, BLK,
                            &(struct panels){keys + (key / PANEL + i) * panel,
                                             queries + j * panel, 0, 0, 1,
                                             width_of(a) / PANEL},
                            false);
}

/* out[width][BLK queries] += the transposed heads, keys from `key` on, times prob. */
static void add_transposed(float *out, const struct attn_args *a, const char *heads_t,
                           const char *prob, int64_t key)
{
    int64_t panel = padded_seq(a) / PANEL * BLOCK_BYTES;
    for (int64_t i = 0; i < width_of(a) / PANEL; i++)
        for (int64_t j = 0; j < Q_PANELS; j++)
            panels_multiply(
                    out + i * PANEL * BLK + j * PANEL, BLK,
                    &(struct panels){heads_t + i * panel + key / PANEL * BLOCK_BYTES,
                                     prob + j * Q_PANELS * BLOCK_BYTES, 0, PROB_BYTES,
                                     ATTN_TERMS, Q_PANELS},
                    true);
}

/* out[BLK keys][width] += prob (rows of keys) times the queries' rows. */
static void add_keys(float *out, const struct attn_args *a, const char *prob,
                     const char *queries)
{
    int64_t width = width_of(a);
    for (int64_t i = 0; i < Q_PANELS; i++)
        for (int64_t j = 0; j < width / PANEL; j++)
            panels_multiply(out + i * PANEL * width + j * PANEL, width,
                            &(struct panels){prob + i * Q_PANELS * BLOCK_BYTES,
                                             queries + j * Q_PANELS * BLOCK_BYTES,
                                             PROB_BYTES, 0, ATTN_TERMS, Q_PANELS},
                            true);
}

/* -------------------------------------------------------------------------- packing */

/* Panels of rows [0, rows) of a head, inner dimension d; zeros up to row_end. */
static void pack_rows_of(char *to, const struct attn_args *a, const struct attn_view *v,
                         int64_t token, int64_t head, int64_t rows, int64_t row_end,
                         gemm_pack_fn pack)
{
    for (int64_t r = 0; r < row_end; r += PANEL) {
        pack(to, head_at(v, token + MIN(r, rows - 1), head, a->dim), v->ld,
             MAX(MIN(PANEL, rows - r), 0), a->dim);
        to += width_of(a) / PANEL * BLOCK_BYTES;
    }
}

/* Panels of columns of a head, inner dimension its rows; zeros up to row_end. */
static void pack_cols_of(char *to, const struct attn_args *a, const struct attn_view *v,
                         int64_t token, int64_t head, int64_t rows, int64_t row_end,
                         gemm_pack_fn pack)
{
    int64_t used = ceil_div_i64(rows, PANEL) * BLOCK_BYTES;
    int64_t panel = row_end / PANEL * BLOCK_BYTES;
    for (int64_t d = 0; d < width_of(a); d += PANEL, to += panel) {
        const uint16_t *from = head_at(v, token, head, a->dim);
        pack(to, from + d, v->ld, MIN(PANEL, a->dim - d), rows);
        memset(to + used, 0, (size_t)(panel - used));
    }
}

/* An f32 vector as ATTN_TERMS bf16 ones. */
struct parts {
    __m256i part[ATTN_TERMS];
};

LANE_INLINE struct parts split(lane_vec x)
{
    struct parts p;
#pragma GCC unroll 4
    for (int t = 0; t < ATTN_TERMS; t++) {
        p.part[t] = (__m256i)_mm512_cvtneps_pbh((__m512)x);
        __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(p.part[t]), 16);
        x = x - (lane_vec)_mm512_castsi512_ps(wide);
    }
    return p;
}

/* Row `key` of prob's A panels, queries lane.. of it. */
LANE_INLINE void row_store(char *prob, int64_t key, int64_t lane, const struct parts *x)
{
    char *to = prob + (key / PANEL * Q_PANELS + lane / PANEL) * BLOCK_BYTES +
               key % PANEL * LINE_BYTES + lane % PANEL * 2;
#pragma GCC unroll 4
    for (int t = 0; t < ATTN_TERMS; t++)
        _mm256_store_si256((void *)(to + t * PROB_BYTES), x->part[t]);
}

/* Rows key and key+1 of prob's B panels, queries lane.. of them, as pairs. */
LANE_INLINE void pair_store(char *prob, int64_t key, int64_t lane,
                            const struct parts *x, const struct parts *y)
{
    char *to = prob + (lane / PANEL * Q_PANELS + key / PANEL) * BLOCK_BYTES +
               lane % PANEL / LANES * (BLOCK_BYTES / 2) + key % PANEL / 2 * LINE_BYTES;
#pragma GCC unroll 4
    for (int t = 0; t < ATTN_TERMS; t++) {
        __m512i lo = _mm512_cvtepu16_epi32(x->part[t]);
        __m512i hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(y->part[t]), 16);
        _mm512_store_si512(to + t * PROB_BYTES, _mm512_or_si512(lo, hi));
    }
}

/* --------------------------------------------------------------------------- forward */

/* The running softmax of one head's queries. */
struct amx_state {
    char *q;          /* B panels */
    float *ot;        /* [width][BLK] */
    float *max, *sum; /* [BLK]; max in exponents of two */
};

struct amx_forward {
    char *k, *vt; /* A panels of one pair */
    char *p;      /* B panels, ATTN_TERMS of them */
    float *s;     /* [BLK][BLK] */
    float *rows;  /* [BLK][width] */
    char *states;
};

static struct amx_state state_at(const struct attn_args *a, const struct amx_forward *f,
                                 int64_t g)
{
    int64_t width = width_of(a);
    char *at = f->states + g * attn_amx_state_bytes(a);
    struct amx_state h = {.q = at, .ot = (float *)(void *)(at + width * BLK * 2)};
    h.max = h.ot + width * BLK;
    h.sum = h.max + BLK;
    return h;
}

LANE_INLINE lane_vec score_of(const struct attn_args *a, lane_vec s)
{
    lane_vec x = s * lane_set1(query_factor(a));
    if (a->cap > 0.0f)
        x = lane_tanh(x) * lane_set1(a->cap * LOG2_E);
    return x;
}

LANE_INLINE void softmax_lanes(const struct attn_args *a, const struct amx_forward *f,
                               const struct amx_state *h, const struct query_block *b,
                               int64_t lane, int64_t key, bool ragged)
{
    lane_vec old = lane_load(h->max + lane), top = old;
    float *s = f->s + lane;
    for (int64_t j = 0; j < BLK; j++) {
        lane_vec x = score_of(a, lane_load(s + j * BLK));
        if (ragged)
            x = score_mask(x, b, lane, (float)(key + j), HIDDEN);
        lane_store(s + j * BLK, x);
        top = lane_max(top, x);
    }
    lane_vec sum = lane_set1(0.0f);
    for (int64_t j = 0; j < BLK; j += 2) {
        lane_vec x = lane_exp2(lane_load(s + j * BLK) - top);
        lane_vec y = lane_exp2(lane_load(s + (j + 1) * BLK) - top);
        sum = sum + x;
        sum = sum + y;
        struct parts px = split(x), py = split(y);
        pair_store(f->p, j, lane, &px, &py);
    }
    lane_vec keep = lane_exp2(old - top);
    lane_store(h->max + lane, top);
    lane_store(h->sum + lane, lane_fma(lane_load(h->sum + lane), keep, sum));
    for (int64_t d = 0; d < a->dim; d++) {
        float *o = h->ot + d * BLK + lane;
        lane_store(o, lane_load(o) * keep);
    }
}

static void forward_begin(const struct attn_args *a, const struct amx_state *h,
                          const struct query_block *b, int64_t head)
{
    pack_rows_of(h->q, a, &a->q, b->token, head, b->n, BLK,
                 gemm_isa_amx.pack_b[DT_BF16][1]);
    memset(h->ot, 0, (size_t)(width_of(a) * BLK) * sizeof(float));
    for (int64_t i = 0; i < BLK; i++) {
        h->max[i] = M_INIT;
        h->sum[i] = 0.0f;
    }
}

/* rows[BLK][width] = the transpose of t[width][BLK]. */
static void rows_from(float *rows, const struct attn_args *a, const float *t)
{
    lane_transpose_f32(rows, width_of(a), t, BLK, width_of(a), BLK);
}

static void rows_write(const float *rows, const struct attn_args *a,
                       const struct attn_view *v, int64_t token, int64_t head,
                       int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        lane_row_store((void *)(uintptr_t)head_at(v, token + r, head, a->dim), v->dtype,
                       rows + r * width_of(a), a->dim);
}

static void forward_end(const struct attn_args *a, const struct amx_forward *f,
                        const struct amx_state *h, const struct query_block *b,
                        int64_t head)
{
    for (int64_t i = 0; i < BLK; i += LANES) {
        lane_vec inv = lane_set1(1.0f) / lane_load(h->sum + i);
        for (int64_t d = 0; d < a->dim; d++)
            lane_store(h->ot + d * BLK + i, lane_load(h->ot + d * BLK + i) * inv);
    }
    rows_from(f->rows, a, h->ot);
    rows_write(f->rows, a, &a->o, b->token, head, b->n);
    for (int64_t i = 0; a->lse && i < b->n; i++)
        a->lse[(b->token + i) * a->ld_lse + head] =
                (h->max[i] + log2f(h->sum[i])) * LN_2;
}

static void forward_tile(const struct attn_args *a, const struct amx_forward *f,
                         const struct amx_state *h, const struct query_block *b,
                         int64_t key)
{
    scores(f->s, a, f->k, h->q, key);
    bool ragged = block_is_ragged(b, key, BLK);
    for (int64_t i = 0; i < BLK; i += LANES)
        softmax_lanes(a, f, h, b, i, key, ragged);
    add_transposed(h->ot, a, f->vt, f->p, key);
}

/* All heads that share a key/value head, for one block of queries. */
static void forward_block(const struct attn_args *a, const struct amx_forward *f,
                          int64_t seq, int64_t kv, int64_t block)
{
    struct query_block b;
    query_block_init(&b, a, seq, block);
    int64_t group = a->n_heads / a->n_kv;
    for (int64_t g = 0; g < group; g++) {
        struct amx_state h = state_at(a, f, g);
        forward_begin(a, &h, &b, kv * group + g);
    }
    for (int64_t key = b.lo_min / BLK * BLK; key < b.first + b.n; key += BLK) {
        for (int64_t g = 0; g < group; g++) {
            struct amx_state h = state_at(a, f, g);
            forward_tile(a, f, &h, &b, key);
        }
    }
    for (int64_t g = 0; g < group; g++) {
        struct amx_state h = state_at(a, f, g);
        forward_end(a, f, &h, &b, kv * group + g);
    }
}

/* Query blocks go to the threads back and forth, the long ones first, so that the shares
 * cost about the same. */
static void attn_forward(const struct attn_args *a, int thread, int n_threads)
{
    int64_t width = width_of(a), padded = padded_seq(a);
    struct amx_forward f;
    f.k = a->scratch + attn_amx_forward_bytes(a) * thread;
    f.vt = f.k + padded * width * 2;
    f.p = f.vt + padded * width * 2;
    f.s = (float *)(void *)(f.p + ATTN_TERMS * PROB_BYTES);
    f.rows = f.s + BLK * BLK;
    f.states = (char *)(f.rows + BLK * width);
    int64_t n_blocks = ceil_div_i64(a->seq, BLK), n_pairs = a->n_seqs * a->n_kv;
    int64_t n_items = n_blocks * n_pairs, loaded = -1;
    gemm_isa_amx.thread_begin();
    for (int64_t round = 0; round * n_threads < n_items; round++) {
        int64_t item =
                round * n_threads + (round & 1 ? n_threads - 1 - thread : thread);
        if (item >= n_items)
            continue;
        int64_t pair = item / n_blocks, block = n_blocks - 1 - item % n_blocks;
        int64_t seq = pair / a->n_kv, kv = pair % a->n_kv;
        if (pair != loaded) {
            pack_rows_of(f.k, a, &a->k, seq * a->seq, kv, a->seq, padded,
                         gemm_isa_amx.pack_a[DT_BF16][1]);
            pack_cols_of(f.vt, a, &a->v, seq * a->seq, kv, a->seq, padded,
                         gemm_isa_amx.pack_a[DT_BF16][0]);
            loaded = pair;
        }
        forward_block(a, &f, seq, kv, block);
    }
    gemm_isa_amx.thread_end();
}

/* -------------------------------------------------------------------------- backward */

struct amx_backward {
    char *k, *v, *kt;        /* A panels of one pair: rows, rows, columns */
    float *dk, *dv;          /* [padded sequence][width] */
    char *q, *d_o;           /* B panels, inner dimension d */
    char *q_rows, *d_o_rows; /* B panels, inner dimension the queries */
    char *p, *ds, *ds_pairs; /* A, A and B panels, ATTN_TERMS of each */
    float *s, *dp;           /* [BLK][BLK] */
    float *dqt, *rows;       /* [width][BLK], [BLK][width] */
    float *lse, *delta;      /* [BLK] */
};

/* The probability and the score's gradient of one key for queries lane.. */
LANE_INLINE lane_vec backward_key(const struct attn_args *a,
                                  const struct amx_backward *f,
                                  const struct query_block *b, int64_t lane, int64_t j,
                                  int64_t key, bool ragged, lane_vec *ds)
{
    lane_vec x = lane_load(f->s + j * BLK + lane) * lane_set1(query_factor(a));
    lane_vec slope = lane_set1(a->scale);
    if (a->cap > 0.0f) {
        lane_vec t = lane_tanh(x);
        x = t * lane_set1(a->cap * LOG2_E);
        slope = slope * (lane_set1(1.0f) - t * t);
    }
    x = x - lane_load(f->lse + lane);
    if (ragged)
        x = score_mask(x, b, lane, (float)(key + j), HIDDEN);
    lane_vec p = lane_exp2(x);
    *ds = p * (lane_load(f->dp + j * BLK + lane) - lane_load(f->delta + lane)) * slope;
    return p;
}

LANE_INLINE void backward_lanes(const struct attn_args *a, const struct amx_backward *f,
                                const struct query_block *b, int64_t lane, int64_t key,
                                bool ragged)
{
    for (int64_t j = 0; j < BLK; j += 2) {
        lane_vec ds0, ds1;
        lane_vec p0 = backward_key(a, f, b, lane, j, key, ragged, &ds0);
        lane_vec p1 = backward_key(a, f, b, lane, j + 1, key, ragged, &ds1);
        struct parts p[2] = {split(p0), split(p1)};
        struct parts ds[2] = {split(ds0), split(ds1)};
        for (int i = 0; i < 2; i++) {
            row_store(f->p, j + i, lane, &p[i]);
            row_store(f->ds, j + i, lane, &ds[i]);
        }
        pair_store(f->ds_pairs, j, lane, &ds[0], &ds[1]);
    }
}

/* delta = rowsum(do * o) of one query; row holds two rows of the width. */
static float backward_delta(const struct attn_args *a, int64_t token, int64_t head,
                            float *row)
{
    int64_t width = width_of(a);
    memset(row, 0, (size_t)(2 * width) * sizeof(float));
    lane_row_load(row, head_at(&a->o, token, head, a->dim), a->o.dtype, a->dim);
    lane_row_load(row + width, head_at(&a->d_o, token, head, a->dim), a->d_o.dtype,
                  a->dim);
    lane_vec sum = lane_set1(0.0f);
    for (int64_t d = 0; d < width; d += LANES)
        sum = lane_fma(lane_load(row + d), lane_load(row + width + d), sum);
    float delta = 0;
    for (int l = 0; l < LANES; l++)
        delta += sum[l];
    return delta;
}

/* Loads a head's queries and output gradients. */
static void backward_begin(const struct attn_args *a, const struct amx_backward *f,
                           const struct query_block *b, int64_t head)
{
    gemm_pack_fn by_dim = gemm_isa_amx.pack_b[DT_BF16][1];
    gemm_pack_fn by_row = gemm_isa_amx.pack_b[DT_BF16][0];
    pack_rows_of(f->q, a, &a->q, b->token, head, b->n, BLK, by_dim);
    pack_rows_of(f->d_o, a, &a->d_o, b->token, head, b->n, BLK, by_dim);
    pack_cols_of(f->q_rows, a, &a->q, b->token, head, b->n, BLK, by_row);
    pack_cols_of(f->d_o_rows, a, &a->d_o, b->token, head, b->n, BLK, by_row);
    memset(f->dqt, 0, (size_t)(width_of(a) * BLK) * sizeof(float));
    for (int64_t i = 0; i < BLK; i++) {
        f->lse[i] = f->delta[i] = 0.0f;
        if (i >= b->n)
            continue;
        f->lse[i] = a->lse[(b->token + i) * a->ld_lse + head] * LOG2_E;
        f->delta[i] = backward_delta(a, b->token + i, head, f->rows);
    }
}

static void backward_tile(const struct attn_args *a, const struct amx_backward *f,
                          const struct query_block *b, int64_t key)
{
    int64_t at = key * width_of(a);
    scores(f->s, a, f->k, f->q, key);
    scores(f->dp, a, f->v, f->d_o, key);
    bool ragged = block_is_ragged(b, key, BLK);
    for (int64_t i = 0; i < BLK; i += LANES)
        backward_lanes(a, f, b, i, key, ragged);
    add_keys(f->dv + at, a, f->p, f->d_o_rows);
    add_keys(f->dk + at, a, f->ds, f->q_rows);
    add_transposed(f->dqt, a, f->kt, f->ds_pairs, key);
}

/* One key/value head of one sequence, with all query heads that read it. */
static void backward_pair(const struct attn_args *a, const struct amx_backward *f,
                          int64_t seq, int64_t kv)
{
    gemm_pack_fn by_dim = gemm_isa_amx.pack_a[DT_BF16][1];
    int64_t group = a->n_heads / a->n_kv, padded = padded_seq(a), token = seq * a->seq;
    size_t bytes = (size_t)(padded * width_of(a)) * sizeof(float);
    pack_rows_of(f->k, a, &a->k, token, kv, a->seq, padded, by_dim);
    pack_rows_of(f->v, a, &a->v, token, kv, a->seq, padded, by_dim);
    pack_cols_of(f->kt, a, &a->k, token, kv, a->seq, padded,
                 gemm_isa_amx.pack_a[DT_BF16][0]);
    memset(f->dk, 0, bytes);
    memset(f->dv, 0, bytes);
    for (int64_t i = 0; i < padded / BLK * group; i++) {
        struct query_block b;
        int64_t head = kv * group + i % group;
        query_block_init(&b, a, seq, i / group);
        backward_begin(a, f, &b, head);
        for (int64_t key = b.lo_min / BLK * BLK; key < b.first + b.n; key += BLK)
            backward_tile(a, f, &b, key);
        rows_from(f->rows, a, f->dqt);
        rows_write(f->rows, a, &a->dq, b.token, head, b.n);
    }
    rows_write(f->dk, a, &a->dk, token, kv, a->seq);
    rows_write(f->dv, a, &a->dv, token, kv, a->seq);
}

static void attn_backward(const struct attn_args *a, int thread, int n_threads)
{
    int64_t width = width_of(a), padded = padded_seq(a);
    int64_t heads = padded * width * 2, block = BLK * width * 2;
    struct amx_backward f;
    f.k = a->scratch + attn_amx_backward_bytes(a) * thread;
    f.v = f.k + heads;
    f.kt = f.v + heads;
    f.q = f.kt + heads;
    f.d_o = f.q + block;
    f.q_rows = f.d_o + block;
    f.d_o_rows = f.q_rows + block;
    f.p = f.d_o_rows + block;
    f.ds = f.p + ATTN_TERMS * PROB_BYTES;
    f.ds_pairs = f.ds + ATTN_TERMS * PROB_BYTES;
    f.s = (float *)(void *)(f.ds_pairs + ATTN_TERMS * PROB_BYTES);
    f.dp = f.s + BLK * BLK;
    f.dk = f.dp + BLK * BLK;
    f.dv = f.dk + padded * width;
    f.dqt = f.dv + padded * width;
    f.rows = f.dqt + BLK * width;
    f.lse = f.rows + BLK * width;
    f.delta = f.lse + BLK;
    int64_t begin, end;
    pool_share(a->n_seqs * a->n_kv, 1, thread, n_threads, &begin, &end);
    gemm_isa_amx.thread_begin();
    for (int64_t pair = begin; pair < end; pair++)
        backward_pair(a, &f, pair / a->n_kv, pair % a->n_kv);
    gemm_isa_amx.thread_end();
}

const struct attn_isa attn_isa_amx = {attn_forward, attn_backward};
