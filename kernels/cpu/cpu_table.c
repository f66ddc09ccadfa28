#include "kernels/cpu/cpu_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/attn.h"
#include "kernels/cpu/gemm.h"

#define ROW_BITS 16

struct table_entry {
    const struct kernel_table *table;
    bool is_reference;
};

/* In order of preference. */
static const struct table_entry tables[] = {
        {&kernels_gemm, false},       {&kernels_attention, false},
        {&tuned_avx512_table, false}, {&tuned_avx2_table, false},
        {&ref_product_table, true},   {&ref_norm_table, true},
        {&ref_attention_table, true}, {&ref_pointwise_table, true},
        {&ref_embed_table, true},     {&ref_loss_table, true},
        {&ref_optim_table, true},     {&ref_stats_table, true},
        {&comm_kernels_table, true},
};

static bool row_takes(const struct kernel_row *r, const struct launch *l, uint32_t isa)
{
    if (r->kind != l->op->kind || (r->isa & ~isa))
        return false;
    return !r->accepts || r->accepts(l);
}

const struct kernel_row *cpu_table_find(const struct launch *l, uint32_t isa,
                                        bool reference_only, uint32_t *id)
{
    for (size_t t = 0; t < ARRAY_LEN(tables); t++) {
        if (reference_only && !tables[t].is_reference)
            continue;
        const struct kernel_table *table = tables[t].table;
        for (size_t i = 0; i < table->n_rows; i++) {
            if (!row_takes(&table->rows[i], l, isa))
                continue;
            *id = (uint32_t)(t << ROW_BITS | i);
            return &table->rows[i];
        }
    }
    return NULL;
}

const struct kernel_row *cpu_table_row(uint32_t id)
{
    size_t t = id >> ROW_BITS, i = id & ((1u << ROW_BITS) - 1);
    ASSERT(t < ARRAY_LEN(tables) && i < tables[t].table->n_rows);
    return &tables[t].table->rows[i];
}

const struct kernel_row *cpu_table_at(size_t i, bool *is_reference)
{
    for (size_t t = 0; t < ARRAY_LEN(tables); t++) {
        *is_reference = tables[t].is_reference;
        if (i < tables[t].table->n_rows)
            return &tables[t].table->rows[i];
        i -= tables[t].table->n_rows;
    }
    return NULL;
}

#if defined(__x86_64__)

#define CPUID_7_EDX_AMX_BF16 (1u << 22)
#define CPUID_7_EDX_AMX_TILE (1u << 24)
#define ARCH_REQ_XCOMP_PERM  0x1023
#define XFEATURE_XTILEDATA   18

/* The system saves tiles only for processes that have asked for it. The leave is the whole
 * process's, threads that run already included, and asking again changes nothing. */
static bool amx_is_granted(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & CPUID_7_EDX_AMX_BF16) ||
        !(d & CPUID_7_EDX_AMX_TILE))
        return false;
    return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

#endif

uint32_t cpu_isa_detect(void)
{
    uint32_t isa = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* These also ask whether the system saves the wide registers. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        isa |= ISA_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= ISA_AVX512;
    if ((isa & ISA_AVX512) && __builtin_cpu_supports("avx512bf16"))
        isa |= ISA_AVX512_BF16;
    if ((isa & ISA_AVX512_BF16) && amx_is_granted())
        isa |= ISA_AMX_BF16;
#endif
    return isa;
}
