/* The tuned element-wise, norm, loss and optimizer kernels for AVX2 with FMA. */
#include "core/hyper.h"
#include "core/stats.h"
#include "kernels/cpu/cpu_table.h"
#include "kernels/cpu/tuned.h"

#define TUNED_ISA     ISA_AVX2
#define TUNED_NAME(n) n "_avx2"
#define TUNED_TABLE   tuned_avx2_table

#include "kernels/cpu/tuned_pointwise.inc"

#include "kernels/cpu/tuned_norm.inc"

#include "kernels/cpu/tuned_tokens.inc"

#include "kernels/cpu/tuned_optim.inc"

#include "kernels/cpu/tuned_stats.inc"

#include "kernels/cpu/tuned_rows.inc"
