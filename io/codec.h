/* The byte-plane codec of one checkpoint chunk.
 *
 * Trained numbers have predictable exponents and noisy mantissas. A chunk of floats is
 * rotated left by one bit, which moves the sign to the bottom and leaves the exponent as
 * the top byte, and split into byte planes, most significant first. The exponent plane is
 * compressed with order-0 Huffman coding alone (a zstd frame whose matcher finds nothing:
 * accidental matches make it larger and slower); a mantissa plane is stored in raw blocks
 * unless a sample of it shrinks. Every plane is one ordinary zstd frame.
 * source: Hershcovitch et al., "ZipNN: Lossless Compression for AI Models",
 * arXiv 2411.05239, for the separation of exponents and the Huffman-only coding.
 */
#ifndef IO_CODEC_H
#define IO_CODEC_H

#include "core/dtype.h"
#include "core/status.h"

#define CODEC_MAX_PLANES 4

/* How a chunk's bytes are stored; the numbers are part of the format. */
enum codec_id {
    CODEC_RAW = 0,       /* the box's bytes, one frame of raw blocks */
    CODEC_PLANES = 1,    /* byte planes, one frame each */
    CODEC_BYTES = 2,     /* the box's bytes, one compressed frame (8-byte elements) */
    CODEC_MASTER_LO = 3, /* reserved: low halves of fp32 masters beside bf16 weights */
    CODEC_COUNT
};

/* Bits of a chunk's flags; part of the format. DELTA and REF are reserved: readers of
 * this version refuse them. */
enum codec_flag {
    CODEC_ZERO = 1,     /* every byte is zero: no frames */
    CODEC_CONSTANT = 2, /* one element, in `value`, fills the box: no frames */
    CODEC_ROTATED = 4,  /* elements were rotated left by one bit before the split */
    CODEC_DELTA = 8,
    CODEC_REF = 16,
};

/* What the encoder knows of the data. */
struct codec_spec {
    enum dtype dtype;
    bool non_negative; /* second moments: no rotation, and repeats are worth matching */
    bool raw;          /* store, do not compress (storage faster than the processors) */
};

/* What a decoder needs beside the frames. */
struct codec_chunk {
    uint8_t codec;
    uint8_t planes; /* frames that follow each other; 0 for zero and constant chunks */
    uint8_t flags;
    uint32_t plane_bytes[CODEC_MAX_PLANES];
    uint64_t value; /* the element of a constant chunk, its bytes first */
};

struct codec;

/* Compression state and scratch of one thread, freed with codec_destroy. */
struct codec *codec_create(void);
void codec_destroy(struct codec *c);

/* Whether this zstd offers Huffman-only coding; else level 1 stands in for it. */
bool codec_has_huffman_mode(const struct codec *c);

/* Bytes that codec_encode may write for n elements of this type. */
size_t codec_bound(enum dtype dtype, int64_t n_elems);

/* Encodes a chunk. in: src dtype[n_elems], n_elems * dtype_bytes < 4 GiB; dst of
 * codec_bound bytes. out: *out how it is stored; returns the bytes written to dst. */
size_t codec_encode(struct codec *c, const struct codec_spec *spec, const void *src,
                    int64_t n_elems, void *dst, struct codec_chunk *out);

/* Decodes a chunk. in: the frames, src_bytes long in all. out: dst dtype[n_elems].
 * errors: ST_DATA when the record or a frame is damaged (dst is then undefined). */
MUST_CHECK enum status codec_decode(struct codec *c, const struct codec_chunk *chunk,
                                    enum dtype dtype, int64_t n_elems, const void *src,
                                    size_t src_bytes, void *dst, struct diag *diag);

/* A zstd frame of `bytes` bytes of tables or text at a good level (one-off data). dst
 * of frame_bound(bytes) bytes; returns the frame's length. */
size_t frame_bound(size_t bytes);
size_t frame_encode(struct codec *c, const void *src, size_t bytes, void *dst);

/* What a frame says of the length of its content, or -1, also where so few bytes cannot
 * hold it: to be asked before the room for it is allocated. */
int64_t frame_content_bytes(const void *src, size_t src_bytes);

/* Decodes a frame that must hold exactly `bytes` bytes. errors: ST_DATA. */
MUST_CHECK enum status frame_decode(struct codec *c, const void *src, size_t src_bytes,
                                    void *dst, size_t bytes, struct diag *diag);

#endif
