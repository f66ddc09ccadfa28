#define TILE_ROWS            4
#define TILE_VECS            2
#define TILE_STEP(acc, a, b) lane_fma(a, b, acc)
#define TILE_BROADCAST(p)    lane_set1(*(p))
#include "kernels/cpu/gemm_pack.h"
#include "kernels/cpu/gemm_tile.inc"

PACK_DEFINE_ALL(TILE_ROWS, TILE_COLS)

TILE_DEFINE(1)
TILE_DEFINE(2)
TILE_DEFINE(3)
TILE_DEFINE(4)

static const gemm_tile_fn tiles[TILE_ROWS] = {tile_1, tile_2, tile_3, tile_4};

const struct gemm_isa gemm_isa_portable = {
        .mr = TILE_ROWS,
        .nr = TILE_COLS,
        .k_per_step = 1,
        .k_block = 512,
        .n_block = 256,
        .b_bytes = INT64_MAX,
        .chunk_blocks = 1,
        .a_group = 1,
        .pack_cost = 4,
        .pack_a = PACK_A,
        .pack_b = PACK_B,
        .tile = tiles,
};
