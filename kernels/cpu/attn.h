/* Tuned attention, forward and backward, in tiles of 64 queries by 64 keys.
 *
 * Tiles are held with queries across the lanes, so that maxima, sums and scalings of a
 * query's row are lane by lane, and the probabilities feed the next product without being
 * packed again. bf16 operands are widened to f32 tiles, or go to the tile registers as
 * they are where there are any (attn_amx.c). Forward shares query blocks over
 * the threads; backward shares whole (sequence, key/value head) pairs, whose gradients are
 * summed in one order: any number of threads gives the same bits.
 * source: Dao, "FlashAttention-2", algorithms 1 and 2. */
#ifndef KERNELS_CPU_ATTN_H
#define KERNELS_CPU_ATTN_H

#include "kernels/kernel.h"

extern const struct kernel_table kernels_attention;

/* Queries and keys of a tile. */
#define ATTN_BLOCK 64

/* bf16 numbers that stand for an f32 probability in products on tile registers. */
#define ATTN_TERMS 2

/* Rows of heads: head h of token t begins at element t*ld + h*D. */
struct attn_view {
    void *data;
    int64_t ld;
    enum dtype dtype; /* DT_F32 or DT_BF16 */
};

struct attn_args {
    int64_t n_seqs, seq;   /* sequences and tokens of each */
    int64_t n_heads, n_kv; /* query heads A, key/value heads G */
    int64_t dim;           /* D */
    int64_t window;        /* keys a query sees; 0: all */
    float scale, cap;      /* cap 0: none */
    const int32_t *doc_start;
    struct attn_view q, k, v, o;
    struct attn_view d_o, dq, dk, dv; /* backward */
    float *lse;                       /* f32[T,A], or NULL in forward */
    int64_t ld_lse;
    char *scratch;
};

/* Forward or backward of one thread; scratch is all threads' together. */
typedef void (*attn_fn)(const struct attn_args *a, int thread, int n_threads);

struct attn_isa {
    attn_fn forward;
    attn_fn backward;
};

extern const struct attn_isa attn_isa_portable;
extern const struct attn_isa attn_isa_avx2;
extern const struct attn_isa attn_isa_avx512;
extern const struct attn_isa attn_isa_amx;

/* Floats of one thread's scratch. */
int64_t attn_forward_scratch_elems(const struct attn_args *a);
int64_t attn_backward_scratch_elems(const struct attn_args *a);

/* Bytes of one thread's scratch on tile registers, and of one head's running softmax. */
int64_t attn_amx_forward_bytes(const struct attn_args *a);
int64_t attn_amx_backward_bytes(const struct attn_args *a);
int64_t attn_amx_state_bytes(const struct attn_args *a);

/* Pitch of the rows of f32 tiles that hold heads. */
static inline int64_t attn_pitch(const struct attn_args *a)
{
    return round_up_i64(a->dim, 16);
}

#endif
