/* The register tile, written once over lane.h. The including file defines
 *   TILE_ROWS        rows of the tile
 *   TILE_VECS        vectors of LANES columns
 *   TILE_STEP(acc, a, b)  acc plus the product of one 32-bit step
 *   TILE_BROADCAST(p)     the step at p in every lane
 * and gets the function tile_of(rows, ...), to instantiate with constant rows. */
#ifndef KERNELS_CPU_GEMM_TILE_H
#define KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/lane.h"

#define TILE_COLS  (TILE_VECS * LANES)
#define TILE_AHEAD 16 /* steps of B fetched ahead */

/* One row of sums into its place; any combination of what struct gemm_dst asks for. */
static void tile_row_store(const float *sum, const struct gemm_dst *d, int64_t row,
                           int64_t n_cols)
{
    float v[TILE_COLS];
    float init[TILE_COLS];
    const float *add = NULL;
    memcpy(v, sum, sizeof(v));
    if (!d->first) {
        add = d->run + row * d->ld_run;
    } else if (d->addend) {
        size_t skip = (size_t)(row * d->ld_addend) * dtype_bytes(d->addend_dtype);
        lane_row_load(init, (const char *)d->addend + skip, d->addend_dtype, n_cols);
        add = init;
    }
    for (int64_t j = 0; add && j < n_cols; j++)
        v[j] = add[j] + v[j];
    for (int64_t j = 0; d->first && d->bias && j < n_cols; j++)
        v[j] += d->bias[j];
    if (!d->last)
        memcpy(d->run + row * d->ld_run, v, (size_t)n_cols * sizeof(float));
    else
        lane_row_store((char *)d->out +
                               (size_t)(row * d->ld_out) * dtype_bytes(d->out_dtype),
                       d->out_dtype, v, n_cols);
}

LANE_INLINE void tile_of(int rows, const void *a, const void *b, int64_t steps,
                         const struct gemm_dst *d, int64_t n_cols)
{
    const float *ap = a, *bp = b;
    lane_vec acc[TILE_ROWS][TILE_VECS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(d->run + i * d->ld_run, 1);
        __builtin_prefetch(d->run + i * d->ld_run + TILE_COLS - 1, 1);
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECS; v++)
            acc[i][v] = lane_set1(0.0f);
    }
#pragma GCC unroll 2
    for (int64_t k = 0; k < steps; k++) {
        lane_vec bv[TILE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECS; v++) {
            bv[v] = lane_load(bp + v * LANES);
            __builtin_prefetch(bp + TILE_AHEAD * TILE_COLS + v * LANES);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            lane_vec av = TILE_BROADCAST(ap + i);
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECS; v++)
                acc[i][v] = TILE_STEP(acc[i][v], av, bv[v]);
        }
        ap += TILE_ROWS;
        bp += TILE_COLS;
    }
    bool plain = n_cols == TILE_COLS && d->out_dtype == DT_F32 && !d->bias;
    bool add = !d->first || (d->addend && d->addend_dtype == DT_F32);
    const float *from = d->first ? d->addend : d->run;
    int64_t ld_from = d->first ? d->ld_addend : d->ld_run;
    if (plain && add) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
            for (int v = 0; v < TILE_VECS; v++)
                lane_store(d->run + i * d->ld_run + v * LANES,
                           lane_load(from + i * ld_from + v * LANES) + acc[i][v]);
        return;
    }
    float sum[TILE_ROWS][TILE_COLS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < TILE_VECS; v++)
            lane_store(&sum[i][v * LANES], acc[i][v]);
    for (int i = 0; i < rows; i++)
        tile_row_store(sum[i], d, i, n_cols);
}

#define TILE_DEFINE(rows)                                                              \
    static void tile_##rows(const void *a, const void *b, int64_t steps,               \
                            const struct gemm_dst *d, int64_t n_cols)                  \
    {                                                                                  \
        tile_of(rows, a, b, steps, d, n_cols);                                         \
    }

#endif
