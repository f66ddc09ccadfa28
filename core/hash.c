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

#include "core/arena.h"

/* xxHash wants its state aligned to 64; mem_alloc gives 16. */
struct hash128_state {
    XXH3_state_t *xxh;
    uint8_t room[sizeof(XXH3_state_t) + 64];
};

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

struct hash128_state *hash128_begin(void)
{
    struct hash128_state *s = mem_alloc(sizeof(*s));
    uintptr_t at = ((uintptr_t)s->room + 63) & ~(uintptr_t)63;
    s->xxh = (XXH3_state_t *)at;
    XXH3_128bits_reset(s->xxh);
    return s;
}

void hash128_add(struct hash128_state *s, const void *data, size_t bytes)
{
    XXH3_128bits_update(s->xxh, data, bytes);
}

void hash128_end(struct hash128_state *s, uint64_t out[2])
{
    XXH128_hash_t h = XXH3_128bits_digest(s->xxh);
    out[0] = h.low64;
    out[1] = h.high64;
    mem_free(s);
}
