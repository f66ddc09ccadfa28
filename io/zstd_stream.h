/* Reads a file as a stream of bytes, decompressed when its name ends in ".zst". */
#ifndef IO_ZSTD_STREAM_H
#define IO_ZSTD_STREAM_H

#include "core/status.h"

struct zstd_stream;

/* Opens a plain file, or one of zstd frames. ownership: the caller closes it; `path`
 * must live as long. errors: ST_NOT_FOUND, ST_IO. */
MUST_CHECK enum status zstd_stream_open(const char *path, struct zstd_stream **out,
                                        struct diag *diag);

/* Fills buf with up to n bytes; fewer only at the end. out: *got, 0 at the end. errors:
 * ST_DATA when a compressed file is damaged or cut short. */
MUST_CHECK enum status zstd_stream_read(struct zstd_stream *z, void *buf, size_t n,
                                        size_t *got, struct diag *diag);
void zstd_stream_close(struct zstd_stream *z);

/* Whether the name says that the file is compressed. */
bool zstd_stream_is_name(const char *path);

#endif
