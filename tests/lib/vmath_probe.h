/* The vector functions of kernels/cpu/vmath.h, compiled for one instruction set each. */
#ifndef TESTS_LIB_VMATH_PROBE_H
#define TESTS_LIB_VMATH_PROBE_H

#include <stdint.h>

/* Sixteen results for sixteen arguments. */
typedef void (*vmath_fn)(const float *x, float *y);

struct vmath_probe {
    const char *isa_name;
    uint32_t isa; /* bits of enum cpu_isa that it needs */
    vmath_fn exp, tanh, sigmoid, normal, density;
};

extern const struct vmath_probe vmath_probe_avx512;
extern const struct vmath_probe vmath_probe_avx2;

#endif
