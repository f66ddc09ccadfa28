/* A small decoder-only transformer as a program, for tests of what reads programs. */
#ifndef TESTS_LIB_TOY_PROGRAM_H
#define TESTS_LIB_TOY_PROGRAM_H

#include "core/program.h"

struct toy {
    int32_t layers;
    int64_t hidden, heads, kv_heads, head_dim, ffn, vocab;
    int64_t tokens, seq;
    uint32_t micro_batches;
};

/* Two layers of 16 wide, 8 tokens, two micro-batches. */
struct toy toy_small(void);

/* Segments "setup" (rope table), "zero" (gradients, loss sum), "forward" (embedding;
 * norm, fused qkv product, rotation in place, attention, SwiGLU; head and loss),
 * "backward" (derived), "optimizer" (norm, clip, AdamW); all calls; f32; sealed. */
void toy_program(struct program *p, const struct toy *t);

/* The first op of a kind and layer in a segment; ends the test when there is none. */
uint32_t toy_find_op(const struct program *p, const char *segment, enum op_kind kind,
                     int32_t layer);

/* The id of the segment of that name. */
uint32_t toy_find_segment(const struct program *p, const char *name);

#endif
