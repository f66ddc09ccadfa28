#include "tests/lib/vmath_probe.h"

#include "kernels/cpu/vmath.h"
#include "kernels/kernel.h"

#define PROBE      vmath_probe_portable
#define PROBE_NAME "portable"
#define PROBE_ISA  0

#include "tests/lib/vmath_probe.inc"
