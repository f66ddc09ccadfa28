/* Tokenizers: text to token ids. */
#ifndef IO_TOK_H
#define IO_TOK_H

#include "core/status.h"

struct tokenizer {
    const char *name;
    int64_t vocab_size; /* ids are below it */
    uint32_t eod;       /* the token that ends every document */

    /* Token i of a text comes from its byte i alone: the text can then be read from any
     * byte on without an index of tokens. */
    bool token_per_byte;

    /* Encodes `bytes` bytes; out has room for as many ids. Returns how many it wrote. */
    int64_t (*encode)(const struct tokenizer *t, const void *text, int64_t bytes,
                      uint32_t *out);
};

/* Ids 0-255 are the bytes, 256 ends a document. Lives forever. */
const struct tokenizer *tok_bytes(void);

#endif
