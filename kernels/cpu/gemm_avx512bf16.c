#define TILE_ROWS            14
#define TILE_VECS            2
#define TILE_STEP(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b))
#define TILE_BROADCAST(p)    _mm512_set1_ps(*(p))
#include "kernels/cpu/gemm_pack512.h"
#include "kernels/cpu/gemm_tile.inc"

PACK_DEFINE(pack_a_bf16_m, pack_cols, PACK_BF16_PAIR, TILE_ROWS)
PACK_DEFINE(pack_a_bf16_k, pack_rows, PACK_BF16_PAIR, TILE_ROWS)
PACK_DEFINE(pack_b_bf16_n, pack_cols, PACK_BF16_PAIR, TILE_COLS)
PACK_DEFINE(pack_b_bf16_k, pack_rows, PACK_BF16_PAIR, TILE_COLS)

TILE_DEFINE(1)
TILE_DEFINE(2)
TILE_DEFINE(3)
TILE_DEFINE(4)
TILE_DEFINE(5)
TILE_DEFINE(6)
TILE_DEFINE(7)
TILE_DEFINE(8)
TILE_DEFINE(9)
TILE_DEFINE(10)
TILE_DEFINE(11)
TILE_DEFINE(12)
TILE_DEFINE(13)
TILE_DEFINE(14)

static const gemm_tile_fn tiles[TILE_ROWS] = {
        tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6,  tile_7,
        tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14};

const struct gemm_isa gemm_isa_avx512bf16 = {
        .mr = TILE_ROWS,
        .nr = TILE_COLS,
        .k_per_step = 2,
        .k_block = 384,
        .n_block = 768,
        .b_bytes = INT64_MAX,
        .chunk_blocks = 1,
        .a_group = 1,
        .pack_cost = 16,
        .pack_a = {[DT_BF16] = {pack_a_bf16_m, pack_a_bf16_k}},
        .pack_b = {[DT_BF16] = {pack_b_bf16_n, pack_b_bf16_k}},
        .tile = tiles,
};
