/* A source of JSON lines: opened, read whole and in pieces, hashed. */
#include <string.h>

#include "core/arena.h"
#include "io/text_source.h"
#include "tests/fuzz/fuzz.h"

#define TOKENS_MAX ((int64_t)1 << 20)

static void read_all(const struct text_source *s)
{
    struct text_counts counts = text_source_counts(s);
    struct diag diag = {0};
    uint64_t identity;
    if (counts.tokens > TOKENS_MAX)
        return;
    uint32_t *whole = mem_alloc((size_t)counts.tokens * sizeof(*whole));
    uint32_t *parts = mem_alloc((size_t)counts.tokens * sizeof(*parts));
    FUZZ_WANT(text_source_read(s, 0, counts.tokens, whole, &diag) == ST_OK);
    for (int64_t at = 0, n = 1; at < counts.tokens; at += n, n = n % 97 + 1) {
        n = MIN(n, counts.tokens - at);
        int64_t d = text_source_document_at(s, at);
        FUZZ_WANT(text_source_document_begin(s, d) <= at);
        FUZZ_WANT(text_source_document_begin(s, d + 1) > at);
        FUZZ_WANT(text_source_read(s, at, n, parts + at, &diag) == ST_OK);
    }
    FUZZ_WANT(memcmp(whole, parts, (size_t)counts.tokens * sizeof(*whole)) == 0);
    FUZZ_WANT(text_source_identity(s, &identity, &diag) == ST_OK);
    mem_free(whole);
    mem_free(parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"x.jsonl", "x.txt"};
    struct text_options options = {tok_bytes(), "text"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char buf[FUZZ_PATH_BYTES];
        struct text_source *s = NULL;
        struct diag diag = {0};
        const char *path = fuzz_file(names[i], data, n, buf);
        if (text_source_open(path, &options, &s, &diag) != ST_OK) {
            FUZZ_WANT(diag.text[0]);
            continue;
        }
        read_all(s);
        text_source_close(s);
    }
    return 0;
}
