/* Kernel rows: which function runs which op for which operands.
 *
 * Every op kind has one plain reference row that takes everything (kernels/cpu/ref_*.c);
 * tuned rows stand before it and say what they take. The first row that accepts wins; the
 * choice is made once, when a program is bound.
 */
#ifndef KERNELS_KERNEL_H
#define KERNELS_KERNEL_H

#include "core/backend.h"
#include "core/op.h"

/* How a kernel that can fail (one that communicates) says so. */
struct kernel_failure {
    enum status st; /* ST_OK before */
    struct diag diag;
};

/* What a kernel gets. Kernels split their work over `pool` with static shares; results do
 * not depend on the number of threads. Kernels never allocate. */
struct kernel_call {
    const struct launch *l;
    struct pool *pool;
    struct kernel_failure *failure; /* NULL for kernels that cannot fail */
};

typedef void (*kernel_fn)(const struct kernel_call *c);

struct kernel_row {
    enum op_kind kind;
    const char *name; /* e.g. "linear_avx512_f32" */
    /* Instruction sets the row needs: bits of enum cpu_isa. */
    uint32_t isa;
    /* Whether the row takes an op's operands: dtypes, shapes, strides; data is NULL. */
    bool (*accepts)(const struct launch *l);
    /* Bytes of scratch it wants for n_threads; NULL: none. */
    int64_t (*scratch_bytes)(const struct launch *l, int n_threads);
    kernel_fn run;
};

enum cpu_isa {
    ISA_AVX2 = 1u << 0,   /* with FMA */
    ISA_AVX512 = 1u << 1, /* F, BW, DQ, VL */
    ISA_AVX512_BF16 = 1u << 2,
    ISA_AMX_BF16 = 1u << 3, /* with AMX-TILE, and the system's leave to use it */
};

/* A table of rows; each kernels/cpu file exports one. */
struct kernel_table {
    const struct kernel_row *rows;
    size_t n_rows;
};

#endif
