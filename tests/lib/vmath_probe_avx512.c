#include "tests/lib/vmath_probe.h"

#include "kernels/cpu/vmath.h"
#include "kernels/kernel.h"

#define PROBE      vmath_probe_avx512
#define PROBE_NAME "avx512"
#define PROBE_ISA  ISA_AVX512

#include "tests/lib/vmath_probe.inc"
