/* Tuned matrix products: the rows of linear, linear_dx and linear_dw.
 *
 * One blocked driver serves all three. Operands are packed into panels; a micro-kernel
 * keeps a tile of the result in registers over a block of the inner dimension. Threads
 * share the result's rows and columns, never the inner dimension, whose blocks depend on
 * its length alone: every element is summed in one order for any number of threads.
 * source: Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication";
 * Van Zee & van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS". */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include "kernels/kernel.h"

extern const struct kernel_table kernels_gemm;

/* What a tile fetches while its products go on, so that packing finds it in a near cache:
 * in every block of 16 steps, lines row 0 .. n_rows - 1 of that block. */
struct gemm_ahead {
    const char *at;     /* or NULL */
    int64_t row_bytes;  /* from row to row */
    int64_t step_bytes; /* from one block of 16 steps to the next */
    int64_t n_rows;
};

/* One tile's place in the result. The first block of the inner dimension adds the bias or
 * the addend; the last one rounds to the output. */
struct gemm_dst {
    float *run; /* running sums; the output itself when it is f32 */
    int64_t ld_run;
    const float *bias;  /* one per column, or NULL */
    const void *addend; /* or NULL */
    int64_t ld_addend;
    void *out;
    int64_t ld_out;
    enum dtype addend_dtype;
    enum dtype out_dtype;
    int64_t n_rows;
    bool first;
    bool last;
    struct gemm_ahead ahead;
};

/* Packs `width` rows (or columns) by `k` inner elements into a panel; columns past `width`
 * of a B panel are zeros, and so is what fills the last steps up to step_unit. in: src, the first element; ld, its pitch in elements. */
typedef void (*gemm_pack_fn)(void *panel, const void *src, int64_t ld, int64_t width,
                             int64_t k);

/* One tile: `steps` 32-bit inner steps of packed panels; d->n_rows rows and n_cols columns
 * are stored. */
typedef void (*gemm_tile_fn)(const void *a, const void *b, int64_t steps,
                             const struct gemm_dst *d, int64_t n_cols);

/* A set of kernels for one instruction set. A step is one f32 or a pair of bf16 in each
 * panel, so 4 bytes. Packing is indexed by dtype (DT_F32, DT_BF16) and by whether the
 * inner dimension is the contiguous one. */
struct gemm_isa {
    int mr;               /* rows of a tile */
    int nr;               /* columns of a tile */
    int k_per_step;       /* 1, or 2 for bf16 pairs */
    int step_unit;        /* steps of a panel are a multiple of this; 0: of 1 */
    int64_t k_block;      /* steps at most */
    int64_t n_block;      /* columns of B packed at a time, at most */
    int64_t b_bytes;      /* of those columns' panels, at most */
    int64_t chunk_blocks; /* blocks of steps of B that are packed at a time, at most */
    int64_t a_group; /* panels packed together of an A whose inner dimension is the slow one */
    double pack_cost; /* of an element, in products of one by one */
    gemm_pack_fn pack_a[2][2];
    gemm_pack_fn pack_b[2][2];
    const gemm_tile_fn *tile; /* tile[r - 1] stores r rows */
    /* What every thread does before its share and after it, or NULL. */
    void (*thread_begin)(void);
    void (*thread_end)(void);
};

extern const struct gemm_isa gemm_isa_portable;
extern const struct gemm_isa gemm_isa_avx2;
extern const struct gemm_isa gemm_isa_avx512;
extern const struct gemm_isa gemm_isa_avx512bf16;
extern const struct gemm_isa gemm_isa_amx;

/* An operand seen as [rows, K]: element (r, k) is at r*ld + k when k_contiguous, else at
 * k*ld + r. */
struct gemm_operand {
    const void *data;
    int64_t ld;
    enum dtype dtype;
    bool k_contiguous;
};

/* out[M,N] = A[M,K] B[N,K]^T (+ bias) (+ addend). The addend may be the output. */
struct gemm_args {
    const struct gemm_isa *isa;
    int64_t m, n, k;
    struct gemm_operand a, b;
    const float *bias;
    const void *addend;
    int64_t ld_addend;
    enum dtype addend_dtype;
    void *out;
    int64_t ld_out;
    enum dtype out_dtype;
    void *scratch; /* gemm_scratch_bytes, 64-byte aligned */
};

int64_t gemm_scratch_bytes(const struct gemm_args *g, int n_threads);

/* Runs the product on all threads of the pool. */
void gemm_run(const struct gemm_args *g, struct pool *pool);

#endif
