#include "tests/lib/vmath_probe.h"

#include "kernels/cpu/vmath.h"
#include "kernels/kernel.h"

#define PROBE      vmath_probe_avx2
#define PROBE_NAME "avx2"
#define PROBE_ISA  ISA_AVX2

#include "tests/lib/vmath_probe.inc"
