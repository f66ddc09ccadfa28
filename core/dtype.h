/* Element types of values, and conversions of single elements. */
#ifndef CORE_DTYPE_H
#define CORE_DTYPE_H

#include "core/base.h"

enum dtype {
    DT_F32,
    DT_BF16,
    DT_F64, /* sums and the double-precision reference */
    DT_I32,
    DT_COUNT
};

size_t dtype_bytes(enum dtype t);
const char *dtype_name(enum dtype t);
bool dtype_is_float(enum dtype t);

/* Round to nearest, ties to even; NaN stays NaN. */
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t x);

/* One element as double, for references and comparers (not for inner loops). */
double dtype_get(const void *data, enum dtype t, int64_t index);
void dtype_set(void *data, enum dtype t, int64_t index, double x);

#endif
