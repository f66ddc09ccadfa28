#include "kernels/cpu/gemm.h"

/* Rows of one thread's share that are done before B is packed again; bounds the running
 * sums that a bf16 result needs beside it. */
#define ROW_BLOCK   1024
#define K_UNIT      4  /* steps */
#define SLACK_BYTES 64 /* a packing store may run past its panel */

/* How a product is cut. Only the block of the inner dimension matters to the bits, and it
 * follows from K alone. */
struct gemm_plan {
    int threads_m, threads_n;
    int64_t k_block; /* elements */
    int64_t n_block;
    int64_t m_block;
    int64_t a_bytes, b_bytes, run_bytes; /* of one thread */
};

/* Relative cost of the largest share: products, plus packing, which costs about as much
 * as eight products per packed element. */
static double share_cost(const struct gemm_args *g, int tm, int tn)
{
    double m = (double)MIN(round_up_i64(ceil_div_i64(g->m, tm), g->isa->mr), g->m);
    double n = (double)round_up_i64(ceil_div_i64(g->n, tn), g->isa->nr);
    return m * n + 8.0 * (m + n);
}

/* Steps of panels that hold k elements. */
static int64_t panel_steps(const struct gemm_isa *isa, int64_t k)
{
    return round_up_i64(ceil_div_i64(k, isa->k_per_step), MAX(isa->step_unit, 1));
}

static struct gemm_plan gemm_plan(const struct gemm_args *g, int n_threads)
{
    const struct gemm_isa *isa = g->isa;
    struct gemm_plan p = {.threads_m = 1, .threads_n = n_threads};
    double best = share_cost(g, 1, n_threads);
    for (int tm = 2; tm <= n_threads; tm++) {
        if (n_threads % tm)
            continue;
        double cost = share_cost(g, tm, n_threads / tm);
        if (cost < best) {
            best = cost;
            p.threads_m = tm;
            p.threads_n = n_threads / tm;
        }
    }
    int64_t steps = ceil_div_i64(g->k, isa->k_per_step);
    int64_t n_blocks = ceil_div_i64(steps, isa->k_block);
    int64_t k_steps =
            round_up_i64(ceil_div_i64(steps, n_blocks), MAX(K_UNIT, isa->step_unit));
    p.k_block = k_steps * isa->k_per_step;
    int64_t share_m = round_up_i64(ceil_div_i64(g->m, p.threads_m), isa->mr);
    int64_t share_n = round_up_i64(ceil_div_i64(g->n, p.threads_n), isa->nr);
    p.m_block = share_m;
    if (g->out_dtype != DT_F32 && p.k_block < g->k)
        p.m_block = MIN(share_m, round_up_i64(ROW_BLOCK, isa->mr));
    /* Equal blocks, so that none is a sliver. */
    n_blocks = ceil_div_i64(share_n, isa->n_block);
    p.n_block = round_up_i64(ceil_div_i64(share_n, n_blocks), isa->nr);
    p.a_bytes = round_up_i64(isa->mr * k_steps * 4 + SLACK_BYTES, 64);
    p.b_bytes = round_up_i64(p.n_block * k_steps * 4 + SLACK_BYTES, 64);
    if (g->out_dtype != DT_F32 && p.k_block < g->k)
        p.run_bytes = round_up_i64(p.m_block * p.n_block * (int64_t)sizeof(float), 64);
    return p;
}

int64_t gemm_scratch_bytes(const struct gemm_args *g, int n_threads)
{
    struct gemm_plan p = gemm_plan(g, n_threads);
    return (p.a_bytes + p.b_bytes + p.run_bytes) * n_threads;
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
    char *a_panel;
    char *b_panels;
    float *run;
};

static const void *operand_at(const struct gemm_operand *o, int64_t row, int64_t k)
{
    int64_t i = o->k_contiguous ? row * o->ld + k : k * o->ld + row;
    return (const char *)o->data + (size_t)i * dtype_bytes(o->dtype);
}

static void pack_b_block(const struct gemm_thread *t, const struct gemm_block *b)
{
    const struct gemm_operand *o = &t->g->b;
    const struct gemm_isa *isa = t->g->isa;
    gemm_pack_fn pack = isa->pack_b[o->dtype][o->k_contiguous];
    int64_t steps = panel_steps(isa, b->k_len);
    for (int64_t j = 0; j < b->cols; j += isa->nr)
        pack(t->b_panels + j * steps * 4, operand_at(o, b->col + j, b->k), o->ld,
             MIN(isa->nr, b->cols - j), b->k_len);
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
        d.run = t->run + (row - b->row) * t->p->n_block + (col - b->col);
        d.ld_run = t->p->n_block;
    }
    if (g->bias)
        d.bias = g->bias + col;
    if (g->addend)
        d.addend = (const char *)g->addend +
                   (size_t)(row * g->ld_addend + col) * dtype_bytes(g->addend_dtype);
    return d;
}

/* One panel of A stays in the nearest cache while all panels of B pass by. */
static void multiply_block(const struct gemm_thread *t, const struct gemm_block *b)
{
    const struct gemm_operand *o = &t->g->a;
    const struct gemm_isa *isa = t->g->isa;
    gemm_pack_fn pack = isa->pack_a[o->dtype][o->k_contiguous];
    int64_t steps = panel_steps(isa, b->k_len);
    for (int64_t i = 0; i < b->rows; i += isa->mr) {
        int64_t rows = MIN(isa->mr, b->rows - i);
        pack(t->a_panel, operand_at(o, b->row + i, b->k), o->ld, rows, b->k_len);
        gemm_tile_fn tile = isa->tile[rows - 1];
        for (int64_t j = 0; j < b->cols; j += isa->nr) {
            struct gemm_dst d = block_dst(t, b, b->row + i, b->col + j);
            d.n_rows = rows;
            tile(t->a_panel, t->b_panels + j * steps * 4, steps, &d,
                 MIN(isa->nr, b->cols - j));
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
    char *scratch =
            (char *)g->scratch + (p->a_bytes + p->b_bytes + p->run_bytes) * thread;
    struct gemm_thread t = {g, p, scratch, scratch + p->a_bytes,
                            (void *)(scratch + p->a_bytes + p->b_bytes)};
    int64_t m_begin, m_end, n_begin, n_end;
    pool_share(g->m, g->isa->mr, thread % p->threads_m, p->threads_m, &m_begin, &m_end);
    pool_share(g->n, g->isa->nr, thread / p->threads_m, p->threads_n, &n_begin, &n_end);
    if (g->isa->thread_begin)
        g->isa->thread_begin();
    struct gemm_block b;
    for (b.row = m_begin; b.row < m_end; b.row += p->m_block) {
        b.rows = MIN(p->m_block, m_end - b.row);
        for (b.col = n_begin; b.col < n_end; b.col += p->n_block) {
            b.cols = MIN(p->n_block, n_end - b.col);
            for (b.k = 0; b.k < g->k; b.k += p->k_block) {
                b.k_len = MIN(p->k_block, g->k - b.k);
                pack_b_block(&t, &b);
                multiply_block(&t, &b);
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
