#include "io/zstd_stream.h"

#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "core/arena.h"
#include "io/file.h"

#define FRAME_HEAD_BYTES 18 /* at most */

struct zstd_stream {
    const char *path;
    int fd;
    ZSTD_DStream *d; /* NULL: the file is plain */
    char *in;
    size_t in_cap;
    ZSTD_inBuffer piece;
    int64_t file_bytes; /* taken from the file so far */
    bool in_frame;      /* a frame has begun and not ended */
    int64_t frame_want; /* what its head says it holds, or -1 */
    int64_t frame_got;  /* what came of it */
};

bool zstd_stream_is_name(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".zst") == 0;
}

enum status zstd_stream_open(const char *path, struct zstd_stream **out,
                             struct diag *diag)
{
    int fd = -1;
    TRY(file_open_read(path, &fd, diag));
    struct zstd_stream *z = mem_alloc(sizeof(*z));
    z->path = path;
    z->fd = fd;
    if (zstd_stream_is_name(path)) {
        z->d = ZSTD_createDStream();
        if (!z->d) {
            zstd_stream_close(z);
            return diag_set(diag, ST_NO_FIT, "no memory for decompression (%s)", path);
        }
        z->in_cap = ZSTD_DStreamInSize();
        z->in = mem_alloc(z->in_cap);
    }
    *out = z;
    return ST_OK;
}

void zstd_stream_close(struct zstd_stream *z)
{
    if (!z)
        return;
    (void)ZSTD_freeDStream(z->d); /* always succeeds */
    mem_free(z->in);
    file_close_read(z->fd);
    mem_free(z);
}

static enum status refill(struct zstd_stream *z, bool *at_end, struct diag *diag)
{
    size_t got = 0;
    TRY(file_read(z->fd, z->path, z->in, z->in_cap, &got, diag));
    z->piece = (ZSTD_inBuffer){z->in, got, 0};
    z->file_bytes += (int64_t)got;
    *at_end = got == 0;
    return ST_OK;
}

/* Notes what the frame that begins says of its content. */
static enum status begin_frame(struct zstd_stream *z, struct diag *diag)
{
    size_t left = z->piece.size - z->piece.pos, got = 0;
    if (left < FRAME_HEAD_BYTES) {
        memmove(z->in, z->in + z->piece.pos, left);
        TRY(file_read(z->fd, z->path, z->in + left, z->in_cap - left, &got, diag));
        z->piece = (ZSTD_inBuffer){z->in, left + got, 0};
        z->file_bytes += (int64_t)got;
    }
    unsigned long long n = ZSTD_getFrameContentSize(z->in + z->piece.pos,
                                                    z->piece.size - z->piece.pos);
    z->frame_want = n > INT64_MAX ? -1 : (int64_t)n; /* unknown, or no frame */
    z->frame_got = 0;
    return ST_OK;
}

/* zstd itself overlooks, with a small output buffer, a frame that ends before it holds
 * what its head says. */
static enum status check_frame(const struct zstd_stream *z, struct diag *diag)
{
    if (z->frame_want < 0 || z->frame_want == z->frame_got)
        return ST_OK;
    return diag_set(diag, ST_DATA,
                    "damaged zstd file (%s): got a frame of %lld bytes, wanted %lld as "
                    "its head says",
                    z->path, (long long)z->frame_got, (long long)z->frame_want);
}

static enum status inflate(struct zstd_stream *z, ZSTD_outBuffer *out,
                           struct diag *diag)
{
    if (!z->in_frame)
        TRY(begin_frame(z, diag));
    size_t before = out->pos;
    size_t hint = ZSTD_decompressStream(z->d, out, &z->piece);
    if (ZSTD_getErrorCode(hint) == ZSTD_error_memory_allocation)
        return diag_set(diag, ST_NO_FIT, "no memory for decompression (%s)", z->path);
    if (ZSTD_isError(hint))
        return diag_set(
                diag, ST_DATA, "damaged zstd file (%s, near byte %lld): zstd says %s",
                z->path,
                (long long)(z->file_bytes - (int64_t)(z->piece.size - z->piece.pos)),
                ZSTD_getErrorName(hint));
    z->in_frame = hint != 0;
    z->frame_got += (int64_t)(out->pos - before);
    return z->in_frame ? ST_OK : check_frame(z, diag);
}

enum status zstd_stream_read(struct zstd_stream *z, void *buf, size_t n, size_t *got,
                             struct diag *diag)
{
    if (!z->d)
        return file_read(z->fd, z->path, buf, n, got, diag);
    ZSTD_outBuffer out = {buf, n, 0};
    bool at_end = false;
    while (out.pos < n && !at_end) {
        /* What the decoder still holds comes out before more goes in. */
        size_t before = out.pos;
        if (z->in_frame || z->piece.pos < z->piece.size)
            TRY(inflate(z, &out, diag));
        if (out.pos == before && z->piece.pos == z->piece.size)
            TRY(refill(z, &at_end, diag));
    }
    if (at_end && z->in_frame)
        return diag_set(diag, ST_DATA,
                        "zstd file is cut short (%s): got %lld bytes that end inside a "
                        "frame, wanted the whole frame",
                        z->path, (long long)z->file_bytes);
    *got = out.pos;
    return ST_OK;
}
