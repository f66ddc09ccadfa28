#include "kernels/cpu/peak.h"

#include <string.h>

#include <immintrin.h>

/* Products of two tiles of A with two of B, as in the kernels of gemm_amx.c. */
static void run(int64_t n)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    /* The compiler's form of the instruction does not say all that it reads. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config); /* also zeroes the tiles */
    for (int64_t t = 0; t < n; t++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

const struct peak_loop peak_loop_amx = {2.0 * 16 * 16 * 32 * 4, run};
