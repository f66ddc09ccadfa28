/* One source of training text as a stream of tokens.
 *
 * A source is a text file (one document), a folder (every text file below it, one
 * document each, ordered bytewise by path), or a .jsonl or .jsonl.zst file (one document
 * a line). Every document is followed by the tokenizer's end-of-document token; empty
 * documents are left out. Bytes are bytes: nothing is normalised, text need not be UTF-8.
 *
 * In a folder, hidden files and folders and files with a NUL byte among their first
 * 4 KiB are left out and counted; .jsonl files there are text like any other, since a
 * folder is not searched for data of other forms: name them as sources of their own.
 *
 * Text files are read when tokens are asked for (with read calls: a file that shrinks
 * or changes its size is an error); the text of JSON lines is held in memory.
 */
#ifndef IO_TEXT_SOURCE_H
#define IO_TEXT_SOURCE_H

#include "core/status.h"
#include "io/tok.h"

struct text_source;

struct text_options {
    const struct tokenizer *tokenizer;
    const char *text_field; /* of a JSON line, for instance "text" */
};

/* What a source consists of, and what was left out of a folder. */
struct text_counts {
    int64_t tokens; /* with one end-of-document token per document */
    int64_t documents;
    int64_t skipped_binary; /* files */
    int64_t skipped_hidden; /* files and folders */
    int64_t skipped_other;  /* devices, dangling links, links to a parent */
    int64_t skipped_empty;  /* documents without a byte */
};

/* Opens a source. in: options, read during the call but for the tokenizer, which must
 * live as long as the source. errors: ST_NOT_FOUND; ST_DATA for a binary file, a
 * malformed JSON line or one without the text field (file and line named), a damaged or
 * cut .zst; ST_UNAVAILABLE for a tokenizer that is not token_per_byte; ST_IO. */
MUST_CHECK enum status text_source_open(const char *path,
                                        const struct text_options *options,
                                        struct text_source **out, struct diag *diag);
void text_source_close(struct text_source *s);

const char *text_source_path(const struct text_source *s);
struct text_counts text_source_counts(const struct text_source *s);

/* Reads tokens offset..offset+n-1 of the stream. out: out[n] ids. errors: ST_DATA when a
 * file changed its size, ST_NOT_FOUND when it is gone, ST_IO. threads: any number. */
MUST_CHECK enum status text_source_read(const struct text_source *s, int64_t offset,
                                        int64_t n, uint32_t *out, struct diag *diag);

/* The document that token `offset` belongs to, and the token at which document d begins
 * (d = number of documents: the number of tokens). */
int64_t text_source_document_at(const struct text_source *s, int64_t offset);
int64_t text_source_document_begin(const struct text_source *s, int64_t d);

/* A fingerprint of the token stream: XXH3-64 over the documents' lengths and bytes,
 * whatever files they come from. Reads everything once; the caller keeps the result. */
MUST_CHECK enum status text_source_identity(const struct text_source *s, uint64_t *out,
                                            struct diag *diag);

#endif
