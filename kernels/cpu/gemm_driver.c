#include "kernels/cpu/gemm.h"

/* Rows of one thread's share that are done before B is packed again; bounds the running
 * sums that a bf16 result needs beside it. */
#define ROW_BLOCK   1024
#define K_UNIT      4 /* steps */
#define AHEAD_ROWS  32
#define SLACK_BYTES 64 /* a packing store may run past its panel */

/* How a product is cut. Only the block of the inner dimension matters to the bits, and it
 * follows from K alone. */
struct gemm_plan {
    int threads_m, threads_n;
    int64_t k_block; /* elements that a tile sums up at once */
    int64_t k_chunk; /* elements whose panels of B are packed together: whole blocks */
    int64_t n_block;
    int64_t m_block;
    int64_t run_rows; /* of running sums beside the output; 0: they are in the output */
    int64_t a_group;  /* panels of A that are packed together */
    int64_t a_bytes;  /* of one panel */
    int64_t b_bytes, run_bytes; /* of one thread */
};

/* Steps of panels that hold k elements. */
static int64_t panel_steps(const struct gemm_isa *isa, int64_t k)
{
    return round_up_i64(ceil_div_i64(k, isa->k_per_step), MAX(isa->step_unit, 1));
}

/* Columns of B that are packed at a time, at most. */
static int64_t n_block_max(const struct gemm_args *g, const struct gemm_plan *p)
{
    const struct gemm_isa *isa = g->isa;
    int64_t bytes = panel_steps(isa, p->k_chunk) * 4;
    return MIN(isa->n_block, MAX(isa->b_bytes / bytes / isa->nr * isa->nr, isa->nr));
}

/* Relative cost of the largest share: products, plus packing: of B once, of A once for
 * each block of B. */
static double share_cost(const struct gemm_args *g, const struct gemm_plan *p, int tm,
                         int tn)
{
    int64_t share_n = round_up_i64(ceil_div_i64(g->n, tn), g->isa->nr);
    double m = (double)MIN(round_up_i64(ceil_div_i64(g->m, tm), g->isa->mr), g->m);
    double n = (double)share_n;
    double blocks = (double)ceil_div_i64(share_n, n_block_max(g, p));
    return m * n + g->isa->pack_cost * (m * blocks + n);
}

static struct gemm_plan gemm_plan(const struct gemm_args *g, int n_threads)
{
    const struct gemm_isa *isa = g->isa;
    struct gemm_plan p = {.threads_m = 1, .threads_n = n_threads};
    int64_t steps = ceil_div_i64(g->k, isa->k_per_step);
    int64_t n_blocks = ceil_div_i64(steps, isa->k_block);
    int64_t k_steps =
            round_up_i64(ceil_div_i64(steps, n_blocks), MAX(K_UNIT, isa->step_unit));
    p.k_block = k_steps * isa->k_per_step;
    /* An A that is dear to read is better read once, with more passes over the sums. */
    int64_t n_chunks =
            ceil_div_i64(n_blocks, g->a.k_contiguous ? isa->chunk_blocks : 1);
    p.k_chunk = p.k_block * ceil_div_i64(n_blocks, n_chunks);
    double best = share_cost(g, &p, 1, n_threads);
    for (int tm = 2; tm <= n_threads; tm++) {
        if (n_threads % tm)
            continue;
        double cost = share_cost(g, &p, tm, n_threads / tm);
        if (cost < best) {
            best = cost;
            p.threads_m = tm;
            p.threads_n = n_threads / tm;
        }
    }
    int64_t share_m = round_up_i64(ceil_div_i64(g->m, p.threads_m), isa->mr);
    int64_t share_n = round_up_i64(ceil_div_i64(g->n, p.threads_n), isa->nr);
    /* Equal blocks, so that none is a sliver. */
    n_blocks = ceil_div_i64(share_n, n_block_max(g, &p));
    p.n_block = round_up_i64(ceil_div_i64(share_n, n_blocks), isa->nr);
    p.a_group = g->a.k_contiguous ? 1 : isa->a_group;
    p.a_bytes = round_up_i64(isa->mr * k_steps * 4 + SLACK_BYTES, 64);
    p.b_bytes =
            round_up_i64(p.n_block * panel_steps(isa, p.k_chunk) * 4 + SLACK_BYTES, 64);
    /* Running sums of what no tile finishes: of a panel's rows, or of all of them. */
    p.m_block = share_m;
    if (g->out_dtype != DT_F32 && p.k_block < g->k) {
        p.run_rows = p.a_group * isa->mr;
        if (p.k_chunk < g->k)
            p.run_rows = p.m_block = MIN(share_m, round_up_i64(ROW_BLOCK, isa->mr));
        p.run_bytes = round_up_i64(p.run_rows * p.n_block * (int64_t)sizeof(float), 64);
    }
    return p;
}

static int64_t thread_bytes(const struct gemm_plan *p)
{
    return p->a_bytes * p->a_group + p->b_bytes + p->run_bytes;
}

int64_t gemm_scratch_bytes(const struct gemm_args *g, int n_threads)
{
    struct gemm_plan p = gemm_plan(g, n_threads);
    return thread_bytes(&p) * n_threads;
}

/* A block of the result: rows x cols at (row, col), steps from k on. */
struct gemm_block {
    int64_t row, rows;
    int64_t col, cols;
    int64_t k, k_len;
};

struct gemm_thread {
    const struct gemm_args *g;
    const struct gemm_plan *p;
    char *a_panels;
    char *b_panels;
    float *run;
    int64_t row; /* first of the block of rows */
};

static const void *operand_at(const struct gemm_operand *o, int64_t row, int64_t k)
{
    int64_t i = o->k_contiguous ? row * o->ld + k : k * o->ld + row;
    return (const char *)o->data + (size_t)i * dtype_bytes(o->dtype);
}

/* All panels of a chunk, one block of the inner dimension after the other. */
static void pack_b_chunk(const struct gemm_thread *t, const struct gemm_block *b)
{
    const struct gemm_operand *o = &t->g->b;
    const struct gemm_isa *isa = t->g->isa;
    gemm_pack_fn pack = isa->pack_b[o->dtype][o->k_contiguous];
    char *to = t->b_panels;
    for (int64_t k = 0; k < b->k_len; k += t->p->k_block) {
        int64_t k_len = MIN(t->p->k_block, b->k_len - k);
        int64_t steps = panel_steps(isa, k_len);
        for (int64_t j = 0; j < b->cols; j += isa->nr, to += isa->nr * steps * 4)
            pack(to, operand_at(o, b->col + j, b->k + k), o->ld,
                 MIN(isa->nr, b->cols - j), k_len);
    }
}

/* Where element (row, col) goes. */
static struct gemm_dst block_dst(const struct gemm_thread *t,
                                 const struct gemm_block *b, int64_t row, int64_t col)
{
    const struct gemm_args *g = t->g;
    struct gemm_dst d = {
            .ld_addend = g->ld_addend,
            .ld_out = g->ld_out,
            .addend_dtype = g->addend_dtype,
            .out_dtype = g->out_dtype,
            .first = b->k == 0,
            .last = b->k + b->k_len == g->k,
    };
    d.out = (char *)g->out +
            (size_t)(row * g->ld_out + col) * dtype_bytes(g->out_dtype);
    d.run = d.out;
    d.ld_run = g->ld_out;
    if (t->p->run_bytes) {
        d.run = t->run + (row - t->row) % t->p->run_rows * t->p->n_block +
                (col - b->col);
        d.ld_run = t->p->n_block;
    }
    if (g->bias)
        d.bias = g->bias + col;
    if (g->addend)
        d.addend = (const char *)g->addend +
                   (size_t)(row * g->ld_addend + col) * dtype_bytes(g->addend_dtype);
    return d;
}

/* The next panel of A, fetched during this one's tiles: tile `index` of n_tiles takes its
 * part of the 32 rows of each block of 16 steps. Rows are tokens or steps, whichever lie
 * apart in memory. */
static struct gemm_ahead ahead_of(const struct gemm_operand *o, int64_t row, int64_t k,
                                  int64_t index, int64_t n_tiles)
{
    int64_t begin, end, row_bytes = o->ld * (int64_t)dtype_bytes(o->dtype);
    pool_share(AHEAD_ROWS, 1, (int)index, (int)n_tiles, &begin, &end);
    return (struct gemm_ahead){
            .at = (const char *)operand_at(o, row, k) + begin * row_bytes,
            .row_bytes = row_bytes,
            .step_bytes = o->k_contiguous ? 64 : AHEAD_ROWS * row_bytes,
            .n_rows = end - begin,
    };
}

/* Packs the panels of A for a block's rows. Where rows of the source are steps, the panels
 * take turns, so that what lies side by side is read together. */
static void pack_a_group(const struct gemm_thread *t, const struct gemm_block *b)
{
    const struct gemm_operand *o = &t->g->a;
    const struct gemm_isa *isa = t->g->isa;
    gemm_pack_fn pack = isa->pack_a[o->dtype][o->k_contiguous];
    int64_t turn = b->rows > isa->mr ? isa->step_unit * isa->k_per_step : b->k_len;
    for (int64_t k = 0; k < b->k_len; k += turn) {
        char *to = t->a_panels + isa->mr * panel_steps(isa, k) * 4;
        for (int64_t i = 0; i < b->rows; i += isa->mr, to += t->p->a_bytes)
            pack(to, operand_at(o, b->row + i, b->k + k), o->ld,
                 MIN(isa->mr, b->rows - i), MIN(turn, b->k_len - k));
    }
}

/* The tiles of one panel of A: it stays in the nearest cache while panels of B pass by.
 * in: b, the panel's rows and one block of the inner dimension; next, the panels to be
 * packed after this one, or no rows. */
static void multiply_panel(const struct gemm_thread *t, const struct gemm_block *b,
                           const char *a_panel, const char *b_panels,
                           const struct gemm_block *next)
{
    const struct gemm_isa *isa = t->g->isa;
    gemm_tile_fn tile = isa->tile[b->rows - 1];
    int64_t steps = panel_steps(isa, b->k_len);
    int64_t n_tiles = ceil_div_i64(b->cols, isa->nr);
    for (int64_t j = 0; j < n_tiles; j++) {
        int64_t col = j * isa->nr;
        struct gemm_dst d = block_dst(t, b, b->row, b->col + col);
        d.n_rows = b->rows;
        if (next->rows)
            d.ahead = ahead_of(&t->g->a, next->row, next->k, j, n_tiles);
        tile(a_panel, b_panels + col * steps * 4, steps, &d,
             MIN(isa->nr, b->cols - col));
    }
}

/* One group of panels of A and one block of the inner dimension. */
static void multiply_group(const struct gemm_thread *t, const struct gemm_block *b,
                           const char *b_panels, const struct gemm_block *next)
{
    const struct gemm_isa *isa = t->g->isa;
    const char *a_panel = t->a_panels;
    struct gemm_block panel = *b;
    pack_a_group(t, b);
    for (int64_t i = 0; i < b->rows; i += isa->mr, a_panel += t->p->a_bytes) {
        panel.row = b->row + i;
        panel.rows = MIN(isa->mr, b->rows - i);
        multiply_panel(t, &panel, a_panel, b_panels, next);
    }
}

/* All rows of a block against one packed chunk of B. */
static void multiply_chunk(const struct gemm_thread *t, const struct gemm_block *b)
{
    int64_t k_end = b->k + b->k_len, row_end = b->row + b->rows;
    int64_t group_rows = t->p->a_group * t->g->isa->mr;
    struct gemm_block group = *b;
    for (group.row = b->row; group.row < row_end; group.row += group_rows) {
        group.rows = MIN(group_rows, row_end - group.row);
        const char *b_panels = t->b_panels;
        for (group.k = b->k; group.k < k_end; group.k += t->p->k_block) {
            group.k_len = MIN(t->p->k_block, k_end - group.k);
            struct gemm_block next = group;
            next.k += t->p->k_block;
            if (next.k >= k_end) {
                next.k = b->k;
                next.row += group_rows;
                next.rows = MAX(row_end - next.row, 0);
            }
            if (t->p->a_group > 1) /* read in turns: nothing to fetch ahead */
                next.rows = 0;
            multiply_group(t, &group, b_panels, &next);
            b_panels += round_up_i64(b->cols, t->g->isa->nr) *
                        panel_steps(t->g->isa, group.k_len) * 4;
        }
    }
}

struct gemm_job {
    const struct gemm_args *g;
    struct gemm_plan plan;
};

static void gemm_thread(void *arg, int thread, int n_threads)
{
    const struct gemm_job *job = arg;
    const struct gemm_args *g = job->g;
    const struct gemm_plan *p = &job->plan;
    ASSERT(p->threads_m * p->threads_n == n_threads);
    char *scratch = (char *)g->scratch + thread_bytes(p) * thread;
    struct gemm_thread t = {.g = g, .p = p, .a_panels = scratch};
    t.b_panels = t.a_panels + p->a_bytes * p->a_group;
    t.run = (void *)(t.b_panels + p->b_bytes);
    int64_t m_begin, m_end, n_begin, n_end;
    pool_share(g->m, g->isa->mr, thread % p->threads_m, p->threads_m, &m_begin, &m_end);
    pool_share(g->n, g->isa->nr, thread / p->threads_m, p->threads_n, &n_begin, &n_end);
    if (g->isa->thread_begin)
        g->isa->thread_begin();
    struct gemm_block b;
    for (b.row = m_begin; b.row < m_end; b.row += p->m_block) {
        b.rows = MIN(p->m_block, m_end - b.row);
        t.row = b.row;
        for (b.col = n_begin; b.col < n_end; b.col += p->n_block) {
            b.cols = MIN(p->n_block, n_end - b.col);
            for (b.k = 0; b.k < g->k; b.k += p->k_chunk) {
                b.k_len = MIN(p->k_chunk, g->k - b.k);
                pack_b_chunk(&t, &b);
                multiply_chunk(&t, &b);
            }
        }
    }
    if (g->isa->thread_end)
        g->isa->thread_end();
}

void gemm_run(const struct gemm_args *g, struct pool *pool)
{
    struct gemm_job job = {g, gemm_plan(g, pool_threads(pool))};
    pool_run(pool, gemm_thread, &job);
}
