#include "core/hash.h"

#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wcast-align"
#define XXH_INLINE_ALL
#include <xxhash.h>
#pragma GCC diagnostic pop

uint64_t hash64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint64_t hash64_text(const char *s)
{
    return hash64(s, strlen(s));
}

void hash_chain_add(struct hash_chain *h, const void *data, size_t bytes)
{
    h->value = XXH3_64bits_withSeed(data, bytes, h->value + bytes);
}

void hash128(const void *data, size_t bytes, uint64_t out[2])
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    out[0] = h.low64;
    out[1] = h.high64;
}
