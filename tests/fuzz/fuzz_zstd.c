/* A compressed stream, read in pieces of several sizes: the bytes, or the error, are the
 * same; and as a source of JSON lines. */
#include <string.h>

#include "core/arena.h"
#include "core/hash.h"
#include "io/text_source.h"
#include "io/zstd_stream.h"
#include "tests/fuzz/fuzz.h"

#define BUF_BYTES    ((size_t)1 << 16)
#define OUTPUT_BYTES ((uint64_t)1 << 24) /* looked at: tiny inputs hold a lot */

static enum status read_stream(const char *path, size_t piece, uint64_t *bytes,
                               uint64_t hash[2])
{
    struct zstd_stream *z = NULL;
    struct diag diag = {0};
    size_t got = 0;
    FUZZ_WANT(zstd_stream_open(path, &z, &diag) == ST_OK);
    char *buf = mem_alloc(BUF_BYTES);
    struct hash128_state *h = hash128_begin();
    enum status st;
    do {
        st = zstd_stream_read(z, buf, piece, &got, &diag);
        if (st == ST_OK) {
            hash128_add(h, buf, got);
            *bytes += got;
        }
    } while (st == ST_OK && got > 0 && *bytes < OUTPUT_BYTES);
    FUZZ_WANT(st == ST_OK || diag.text[0]);
    hash128_end(h, hash);
    mem_free(buf);
    zstd_stream_close(z);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char buf[FUZZ_PATH_BYTES];
    const char *path = fuzz_file("x.jsonl.zst", data, n, buf);
    uint64_t bytes[2] = {0}, hash[2][2];
    enum status a = read_stream(path, BUF_BYTES, &bytes[0], hash[0]);
    if (bytes[0] >= OUTPUT_BYTES)
        return 0;
    enum status b = read_stream(path, 1 + n % 4096, &bytes[1], hash[1]);
    FUZZ_WANT(a == b);
    FUZZ_WANT(a != ST_OK || memcmp(hash[0], hash[1], sizeof(hash[0])) == 0);
    struct text_options options = {tok_bytes(), "text"};
    struct text_source *s = NULL;
    struct diag diag = {0};
    if (text_source_open(path, &options, &s, &diag) == ST_OK)
        text_source_close(s);
    return 0;
}
