/* Little-endian numbers in byte records. */
#ifndef IO_LE_H
#define IO_LE_H

#include <string.h>

#include "core/base.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are written as they lie in memory, little-endian");

static inline void le_put32(uint8_t *at, uint32_t x)
{
    memcpy(at, &x, sizeof(x));
}

static inline void le_put64(uint8_t *at, uint64_t x)
{
    memcpy(at, &x, sizeof(x));
}

static inline uint32_t le_get32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

static inline uint64_t le_get64(const uint8_t *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

#endif
