#include "io/tok.h"

#define BYTE_EOD 256

static int64_t encode_bytes(const struct tokenizer *t, const void *text, int64_t bytes,
                            uint32_t *out)
{
    (void)t; /* bytes need no table */
    const unsigned char *s = text;
    for (int64_t i = 0; i < bytes; i++)
        out[i] = s[i];
    return bytes;
}

const struct tokenizer *tok_bytes(void)
{
    static const struct tokenizer bytes = {
            .name = "bytes",
            .vocab_size = BYTE_EOD + 1,
            .eod = BYTE_EOD,
            .token_per_byte = true,
            .encode = encode_bytes,
    };
    return &bytes;
}
