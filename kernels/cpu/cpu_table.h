/* The rows of the CPU backend: tuned tables first, the plain reference last. */
#ifndef KERNELS_CPU_CPU_TABLE_H
#define KERNELS_CPU_CPU_TABLE_H

#include "kernels/kernel.h"

/* Reference kernels, in double, one per op kind. */
extern const struct kernel_table ref_product_table;
extern const struct kernel_table ref_norm_table;
extern const struct kernel_table ref_attention_table;
extern const struct kernel_table ref_pointwise_table;
extern const struct kernel_table ref_embed_table;
extern const struct kernel_table ref_loss_table;
extern const struct kernel_table ref_optim_table;
extern const struct kernel_table ref_stats_table;

/* Communication: rows that call the op's group, and need no other. */
extern const struct kernel_table comm_kernels_table;

/* Tuned kernels of everything but products and attention, by instruction set. */
extern const struct kernel_table tuned_avx512_table;
extern const struct kernel_table tuned_avx2_table;

/* The first row that takes the launch's operands on a machine with the instruction sets
 * `isa` (bits of enum cpu_isa), or NULL. reference_only: tuned rows are passed over.
 * out: *id names the row for cpu_table_row. */
const struct kernel_row *cpu_table_find(const struct launch *l, uint32_t isa,
                                        bool reference_only, uint32_t *id);

/* The row of an id from cpu_table_find. */
const struct kernel_row *cpu_table_row(uint32_t id);

/* All rows in order of preference: row i, or NULL past the last. For tests and reports;
 * *is_reference says which kind it is. */
const struct kernel_row *cpu_table_at(size_t i, bool *is_reference);

/* Instruction sets that this processor and its system offer: bits of enum cpu_isa. Where
 * the processor has tile registers it asks the system to let this process use them, which
 * holds until the process ends. */
uint32_t cpu_isa_detect(void);

#endif
