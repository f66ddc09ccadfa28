/* Attention over lane.h, compiled once per instruction set. The including file defines
 * MM_ROWS and MM_VECS, the register tile of the small products (rows by vectors). */
#ifndef KERNELS_CPU_ATTN_BODY_H
#define KERNELS_CPU_ATTN_BODY_H

#include <math.h>

#include "kernels/cpu/attn.h"
#include "kernels/cpu/lane.h"

#define BLK    ATTN_BLOCK
#define LOG2_E 1.44269504f
#define LN_2   0.69314718f
#define M_INIT (-1.7e38f) /* running maximum before the first key */
#define HIDDEN (-3.4e38f) /* score of a key that a query does not see */

/* ------------------------------------------------------------------ small products */

/* C tile of rows x vecs vectors: (add to) sum over k of a(i, k) * b[k]. */
LANE_INLINE void mm_tile(int rows, int vecs, float *c, int64_t ld_c, const float *a,
                         int64_t a_row, int64_t a_k, const float *b, int64_t ld_b,
                         int64_t k_len, bool add)
{
    lane_vec acc[MM_ROWS][MM_VECS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            acc[i][v] = lane_set1(0.0f);
    for (int64_t k = 0; k < k_len; k++) {
        lane_vec bv[MM_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++)
            bv[v] = lane_load(b + k * ld_b + v * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            lane_vec av = lane_set1(a[i * a_row + k * a_k]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++)
                acc[i][v] = lane_fma(av, bv[v], acc[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            float *p = c + i * ld_c + v * LANES;
            if (add)
                acc[i][v] = lane_load(p) + acc[i][v];
            lane_store(p, acc[i][v]);
        }
    }
}

struct mm {
    float *c;
    int64_t ld_c;
    const float *a;
    int64_t ld_a;
    const float *b;
    int64_t ld_b;
    int64_t rows; /* multiple of MM_ROWS */
    int64_t cols; /* multiple of LANES */
    int64_t k;
    bool add;
};

LANE_INLINE void mm_run(const struct mm *m, bool a_is_rows)
{
    int64_t step = MM_VECS * LANES;
    for (int64_t j = 0; j < m->cols; j += step) {
        for (int64_t i = 0; i < m->rows; i += MM_ROWS) {
            float *c = m->c + i * m->ld_c + j;
            const float *a = m->a + (a_is_rows ? i * m->ld_a : i);
            int64_t a_row = a_is_rows ? m->ld_a : 1, a_k = a_is_rows ? 1 : m->ld_a;
            if (j + step <= m->cols)
                mm_tile(MM_ROWS, MM_VECS, c, m->ld_c, a, a_row, a_k, m->b + j, m->ld_b,
                        m->k, m->add);
            else
                for (int64_t jj = 0; jj < m->cols - j; jj += LANES)
                    mm_tile(MM_ROWS, 1, c + jj, m->ld_c, a, a_row, a_k, m->b + j + jj,
                            m->ld_b, m->k, m->add);
        }
    }
}

/* C (+)= A B with A's rows along k. */
static void mm_rows(const struct mm *m)
{
    mm_run(m, true);
}

/* C (+)= A^T B with A's rows across k. */
static void mm_cols(const struct mm *m)
{
    mm_run(m, false);
}

/* ----------------------------------------------------------------------------- tiles */

/* A block of up to 64 queries of one sequence, and what each of them sees. */
struct query_block {
    int64_t token;          /* first token, counted over all sequences */
    int64_t first;          /* its place in the sequence */
    int64_t n;              /* queries */
    float lo[BLK], hi[BLK]; /* first and last key; none past n */
    int64_t lo_min, lo_max; /* over the block */
};

static void query_block_init(struct query_block *b, const struct attn_args *a,
                             int64_t seq, int64_t index)
{
    b->first = index * BLK;
    b->token = seq * a->seq + b->first;
    b->n = MIN(BLK, a->seq - b->first);
    b->lo_min = INT64_MAX;
    b->lo_max = 0;
    for (int64_t i = 0; i < BLK; i++) {
        if (i >= b->n) {
            b->lo[i] = 1e9f;
            b->hi[i] = -1.0f;
            continue;
        }
        int64_t at = b->first + i, lo = MAX(a->doc_start[b->token + i], 0);
        if (a->window > 0)
            lo = MAX(lo, at - a->window + 1);
        b->lo[i] = (float)lo;
        b->hi[i] = (float)at;
        b->lo_min = MIN(b->lo_min, lo);
        b->lo_max = MAX(b->lo_max, lo);
    }
}

/* Whether some query does not see some key of [key, key + n). */
static bool block_is_ragged(const struct query_block *b, int64_t key, int64_t n)
{
    return b->n < BLK || b->lo_max > key || b->first < key + n - 1;
}

static const void *head_at(const struct attn_view *v, int64_t token, int64_t head,
                           int64_t dim)
{
    return (const char *)v->data +
           (size_t)(token * v->ld + head * dim) * dtype_bytes(v->dtype);
}

/* rows tokens of a head as f32 rows; zeros up to the pitch and up to row_end rows. */
static void tile_load(float *dst, const struct attn_args *a, const struct attn_view *v,
                      int64_t token, int64_t head, int64_t rows, int64_t row_end)
{
    int64_t pitch = attn_pitch(a);
    for (int64_t r = 0; r < rows; r++) {
        lane_row_load(dst + r * pitch, head_at(v, token + r, head, a->dim), v->dtype,
                      a->dim);
        for (int64_t d = a->dim; d < pitch; d++)
            dst[r * pitch + d] = 0.0f;
    }
    if (row_end > rows)
        memset(dst + rows * pitch, 0,
               (size_t)((row_end - rows) * pitch) * sizeof(float));
}

static void tile_store(const float *src, const struct attn_args *a,
                       const struct attn_view *v, int64_t token, int64_t head,
                       int64_t rows)
{
    int64_t pitch = attn_pitch(a);
    for (int64_t r = 0; r < rows; r++)
        lane_row_store((void *)(uintptr_t)head_at(v, token + r, head, a->dim), v->dtype,
                       src + r * pitch, a->dim);
}

static void tile_scale(float *x, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        lane_store(x + i, lane_load(x + i) * lane_set1(by));
}

static void tile_zero(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof(float));
}

/* What the queries are multiplied by before the product with the keys: scores come out as
 * powers of two's exponents, or as the soft cap's argument. */
static float query_factor(const struct attn_args *a)
{
    return a->cap > 0.0f ? a->scale / a->cap : a->scale * LOG2_E;
}

/* Scores of a tile row: the cap, in exponents of two, and hidden keys. */
LANE_INLINE lane_vec score_mask(lane_vec s, const struct query_block *b, int64_t lane,
                                float key, float hidden)
{
    lane_vec k = lane_set1(key);
    lane_ivec visible = (lane_ivec)(lane_load(b->lo + lane) <= k) &
                        (lane_ivec)(lane_load(b->hi + lane) >= k);
    return lane_select(visible, s, lane_set1(hidden));
}

/* --------------------------------------------------------------------------- forward */

/* The running softmax of one head's queries. */
struct head_state {
    float *qt;  /* [pitch][BLK], scaled */
    float *ot;  /* [pitch][BLK] */
    float *max; /* [BLK], in exponents of two */
    float *sum; /* [BLK] */
};

/* Scores to probabilities in place, for queries lane.. of a tile of n keys; updates the
 * running maximum and sum and rescales what is accumulated when the maximum moved. */
LANE_INLINE void softmax_lanes(const struct attn_args *a, const struct head_state *h,
                               const struct query_block *b, float *s, int64_t lane,
                               int64_t key, int64_t n, bool ragged)
{
    lane_vec old = lane_load(h->max + lane), top = old;
    lane_vec cap = lane_set1(a->cap * LOG2_E);
    for (int64_t j = 0; j < n; j++) {
        lane_vec x = lane_load(s + j * BLK + lane);
        if (a->cap > 0.0f)
            x = lane_tanh(x) * cap;
        if (ragged)
            x = score_mask(x, b, lane, (float)(key + j), HIDDEN);
        if (ragged || a->cap > 0.0f)
            lane_store(s + j * BLK + lane, x);
        top = lane_max(top, x);
    }
    lane_vec sum = lane_set1(0.0f);
    for (int64_t j = 0; j < n; j++) {
        lane_vec p = lane_exp2(lane_load(s + j * BLK + lane) - top);
        lane_store(s + j * BLK + lane, p);
        sum = sum + p;
    }
    lane_vec keep = lane_exp2(old - top);
    lane_store(h->max + lane, top);
    lane_store(h->sum + lane, lane_fma(lane_load(h->sum + lane), keep, sum));
    int64_t pitch = attn_pitch(a);
    for (int64_t d = 0; d < pitch; d++) {
        float *o = h->ot + d * BLK + lane;
        lane_store(o, lane_load(o) * keep);
    }
}

static void forward_begin(const struct attn_args *a, const struct head_state *h,
                          const struct query_block *b, int64_t head, float *rows)
{
    int64_t pitch = attn_pitch(a);
    tile_load(rows, a, &a->q, b->token, head, b->n, BLK);
    tile_scale(rows, query_factor(a), BLK * pitch);
    lane_transpose_f32(h->qt, BLK, rows, pitch, BLK, pitch);
    tile_zero(h->ot, BLK * pitch);
    for (int64_t i = 0; i < BLK; i++) {
        h->max[i] = M_INIT;
        h->sum[i] = 0.0f;
    }
}

static void forward_end(const struct attn_args *a, const struct head_state *h,
                        const struct query_block *b, int64_t head, float *rows)
{
    int64_t pitch = attn_pitch(a);
    for (int64_t i = 0; i < BLK; i += LANES) {
        lane_vec inv = lane_set1(1.0f) / lane_load(h->sum + i);
        for (int64_t d = 0; d < pitch; d++)
            lane_store(h->ot + d * BLK + i, lane_load(h->ot + d * BLK + i) * inv);
    }
    lane_transpose_f32(rows, pitch, h->ot, BLK, pitch, BLK);
    tile_store(rows, a, &a->o, b->token, head, b->n);
    for (int64_t i = 0; a->lse && i < b->n; i++)
        a->lse[(b->token + i) * a->ld_lse + head] =
                (h->max[i] + log2f(h->sum[i])) * LN_2;
}

struct forward_buffers {
    float *rows;  /* [BLK][pitch] */
    float *k, *v; /* [padded sequence][pitch], of one pair */
    float *s;     /* [BLK][BLK] */
    float *states;
};

static struct head_state head_state_at(const struct attn_args *a,
                                       const struct forward_buffers *f, int64_t g)
{
    int64_t tile = BLK * attn_pitch(a);
    struct head_state h = {.qt = f->states + g * (2 * tile + 2 * BLK)};
    h.ot = h.qt + tile;
    h.max = h.ot + tile;
    h.sum = h.max + BLK;
    return h;
}

static void forward_tile(const struct attn_args *a, const struct forward_buffers *f,
                         const struct head_state *h, const struct query_block *b,
                         int64_t key, int64_t n)
{
    int64_t pitch = attn_pitch(a);
    int64_t n_pad = round_up_i64(n, MM_ROWS);
    mm_rows(&(struct mm){f->s, BLK, f->k + key * pitch, pitch, h->qt, BLK, n_pad, BLK,
                         a->dim, false});
    bool ragged = block_is_ragged(b, key, n);
    for (int64_t i = 0; i < BLK; i += LANES)
        softmax_lanes(a, h, b, f->s, i, key, n, ragged);
    mm_cols(&(struct mm){h->ot, BLK, f->v + key * pitch, pitch, f->s, BLK, pitch, BLK,
                         n, true});
}

/* All heads that share a key/value head, for one block of queries. */
static void forward_block(const struct attn_args *a, const struct forward_buffers *f,
                          int64_t seq, int64_t kv, int64_t block)
{
    struct query_block b;
    query_block_init(&b, a, seq, block);
    int64_t group = a->n_heads / a->n_kv;
    struct head_state h;
    for (int64_t g = 0; g < group; g++) {
        h = head_state_at(a, f, g);
        forward_begin(a, &h, &b, kv * group + g, f->rows);
    }
    for (int64_t key = b.lo_min / BLK * BLK; key < b.first + b.n; key += BLK) {
        int64_t n = MIN(BLK, a->seq - key);
        for (int64_t g = 0; g < group; g++) {
            h = head_state_at(a, f, g);
            forward_tile(a, f, &h, &b, key, n);
        }
    }
    for (int64_t g = 0; g < group; g++) {
        h = head_state_at(a, f, g);
        forward_end(a, &h, &b, kv * group + g, f->rows);
    }
}

/* Query blocks go to the threads back and forth, the long ones first, so that the shares
 * cost about the same. */
static void attn_forward(const struct attn_args *a, int thread, int n_threads)
{
    int64_t pitch = attn_pitch(a), padded = round_up_i64(a->seq, BLK);
    struct forward_buffers f;
    f.rows = (float *)(void *)a->scratch + attn_forward_scratch_elems(a) * thread;
    f.k = f.rows + BLK * pitch;
    f.v = f.k + padded * pitch;
    f.s = f.v + padded * pitch;
    f.states = f.s + BLK * BLK;
    int64_t n_blocks = ceil_div_i64(a->seq, BLK), n_pairs = a->n_seqs * a->n_kv;
    int64_t n_items = n_blocks * n_pairs, loaded = -1;
    for (int64_t round = 0; round * n_threads < n_items; round++) {
        int64_t item =
                round * n_threads + (round & 1 ? n_threads - 1 - thread : thread);
        if (item >= n_items)
            continue;
        int64_t pair = item / n_blocks, block = n_blocks - 1 - item % n_blocks;
        int64_t seq = pair / a->n_kv, kv = pair % a->n_kv;
        if (pair != loaded) {
            tile_load(f.k, a, &a->k, seq * a->seq, kv, a->seq, padded);
            tile_load(f.v, a, &a->v, seq * a->seq, kv, a->seq, padded);
            loaded = pair;
        }
        forward_block(a, &f, seq, kv, block);
    }
}

/* -------------------------------------------------------------------------- backward */

struct backward_buffers {
    float *k, *v, *dk, *dv; /* [padded sequence][pitch] */
    float *q, *d_o;         /* [BLK][pitch] */
    float *qt, *dot, *dqt;  /* [pitch][BLK] */
    float *p, *ds;          /* [BLK][BLK] */
    float *lse, *delta;     /* [BLK] */
};

/* Scores and their gradients' products to probabilities and score gradients, in place. */
LANE_INLINE void backward_lanes(const struct attn_args *a,
                                const struct backward_buffers *f,
                                const struct query_block *b, int64_t lane, int64_t key,
                                int64_t n, bool ragged)
{
    lane_vec lse = lane_load(f->lse + lane), delta = lane_load(f->delta + lane);
    lane_vec scale = lane_set1(a->scale), cap = lane_set1(a->cap * LOG2_E);
    for (int64_t j = 0; j < n; j++) {
        float *ps = f->p + j * BLK + lane, *ds = f->ds + j * BLK + lane;
        lane_vec x = lane_load(ps), slope = scale;
        if (a->cap > 0.0f) {
            lane_vec t = lane_tanh(x);
            x = t * cap;
            slope = scale * (lane_set1(1.0f) - t * t);
        }
        x = x - lse;
        if (ragged)
            x = score_mask(x, b, lane, (float)(key + j), HIDDEN);
        lane_vec p = lane_exp2(x);
        lane_store(ps, p);
        lane_store(ds, p * (lane_load(ds) - delta) * slope);
    }
}

/* Loads a head's queries and output gradients; delta = rowsum(do * o). */
static void backward_begin(const struct attn_args *a, const struct backward_buffers *f,
                           const struct query_block *b, int64_t head)
{
    int64_t pitch = attn_pitch(a);
    float *o = f->p; /* one row at a time: not in use yet */
    tile_load(f->q, a, &a->q, b->token, head, b->n, BLK);
    tile_load(f->d_o, a, &a->d_o, b->token, head, b->n, BLK);
    for (int64_t i = 0; i < BLK; i++) {
        f->lse[i] = f->delta[i] = 0.0f;
        if (i >= b->n)
            continue;
        f->lse[i] = a->lse[(b->token + i) * a->ld_lse + head] * LOG2_E;
        tile_load(o, a, &a->o, b->token + i, head, 1, 1);
        lane_vec sum = lane_set1(0.0f);
        for (int64_t d = 0; d < pitch; d += LANES)
            sum = lane_fma(lane_load(o + d), lane_load(f->d_o + i * pitch + d), sum);
        for (int l = 0; l < LANES; l++)
            f->delta[i] += sum[l];
    }
    lane_transpose_f32(f->qt, BLK, f->q, pitch, BLK, pitch);
    tile_scale(f->qt, query_factor(a), BLK * pitch);
    lane_transpose_f32(f->dot, BLK, f->d_o, pitch, BLK, pitch);
    tile_zero(f->dqt, BLK * pitch);
}

static void backward_tile(const struct attn_args *a, const struct backward_buffers *f,
                          const struct query_block *b, int64_t key, int64_t n)
{
    int64_t pitch = attn_pitch(a), at = key * pitch;
    int64_t n_pad = round_up_i64(n, MM_ROWS);
    mm_rows(&(struct mm){f->p, BLK, f->k + at, pitch, f->qt, BLK, n_pad, BLK, a->dim,
                         false});
    mm_rows(&(struct mm){f->ds, BLK, f->v + at, pitch, f->dot, BLK, n_pad, BLK, a->dim,
                         false});
    bool ragged = block_is_ragged(b, key, n_pad);
    for (int64_t i = 0; i < BLK; i += LANES)
        backward_lanes(a, f, b, i, key, n_pad, ragged);
    mm_rows(&(struct mm){f->dv + at, pitch, f->p, BLK, f->d_o, pitch, n_pad, pitch, BLK,
                         true});
    mm_rows(&(struct mm){f->dk + at, pitch, f->ds, BLK, f->q, pitch, n_pad, pitch, BLK,
                         true});
    mm_cols(&(struct mm){f->dqt, BLK, f->k + at, pitch, f->ds, BLK, pitch, BLK, n,
                         true});
}

/* One key/value head of one sequence, with all query heads that read it. */
static void backward_pair(const struct attn_args *a, const struct backward_buffers *f,
                          int64_t seq, int64_t kv)
{
    int64_t pitch = attn_pitch(a), group = a->n_heads / a->n_kv;
    int64_t n_blocks = ceil_div_i64(a->seq, BLK), padded = n_blocks * BLK;
    int64_t token = seq * a->seq;
    tile_load(f->k, a, &a->k, token, kv, a->seq, padded);
    tile_load(f->v, a, &a->v, token, kv, a->seq, padded);
    tile_zero(f->dk, padded * pitch);
    tile_zero(f->dv, padded * pitch);
    for (int64_t i = 0; i < n_blocks * group; i++) {
        struct query_block b;
        int64_t head = kv * group + i % group;
        query_block_init(&b, a, seq, i / group);
        backward_begin(a, f, &b, head);
        for (int64_t key = b.lo_min / BLK * BLK; key < b.first + b.n; key += BLK)
            backward_tile(a, f, &b, key, MIN(BLK, a->seq - key));
        lane_transpose_f32(f->q, pitch, f->dqt, BLK, pitch, BLK);
        tile_store(f->q, a, &a->dq, b.token, head, b.n);
    }
    tile_store(f->dk, a, &a->dk, token, kv, a->seq);
    tile_store(f->dv, a, &a->dv, token, kv, a->seq);
}

static void attn_backward(const struct attn_args *a, int thread, int n_threads)
{
    int64_t tile = BLK * attn_pitch(a);
    int64_t padded = round_up_i64(a->seq, BLK) * attn_pitch(a);
    float *s = (float *)(void *)a->scratch + attn_backward_scratch_elems(a) * thread;
    struct backward_buffers f;
    f.k = s;
    f.v = f.k + padded;
    f.dk = f.v + padded;
    f.dv = f.dk + padded;
    f.q = f.dv + padded;
    f.d_o = f.q + tile;
    f.qt = f.d_o + tile;
    f.dot = f.qt + tile;
    f.dqt = f.dot + tile;
    f.p = f.dqt + tile;
    f.ds = f.p + BLK * BLK;
    f.lse = f.ds + BLK * BLK;
    f.delta = f.lse + BLK;
    int64_t begin, end;
    pool_share(a->n_seqs * a->n_kv, 1, thread, n_threads, &begin, &end);
    for (int64_t pair = begin; pair < end; pair++)
        backward_pair(a, &f, pair / a->n_kv, pair % a->n_kv);
}

#endif
