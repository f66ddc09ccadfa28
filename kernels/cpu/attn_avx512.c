#define MM_ROWS 8
#define MM_VECS 2
#include "kernels/cpu/attn_body.inc"

const struct attn_isa attn_isa_avx512 = {attn_forward, attn_backward};
