/* Shard files (.azs): chunks of tensors as zstd frames, with their table.
 *
 *     skippable frame   head: "ANGELSH1", version, checkpoint uuid, which shard, hash
 *     frames            the chunks, one after the other, a frame per byte plane
 *     skippable frame   the chunk table: 96-byte records, zstd-compressed, and its hash
 *     skippable frame   footer: offset, length and records of the table, hash, "ANGELEND"
 *
 * The whole is a sequence of zstd frames that stock tools can test and unpack. All numbers
 * are little-endian. A chunk is a box of a tensor; its record holds the XXH3-64 of its
 * row-major bytes, checked at every read. Nothing of ranks is in a shard.
 */
#ifndef IO_SHARD_H
#define IO_SHARD_H

#include "core/pool.h"
#include "core/vec.h"
#include "io/box.h"
#include "io/codec.h"
#include "io/durable.h"

#define SHARD_VERSION       1
#define SHARD_RECORD_BYTES  96
#define SHARD_UUID_BYTES    16
#define SHARD_MAX_RAW_BYTES (64 * MIB) /* a chunk's raw size that readers accept */

/* One chunk. */
struct shard_chunk {
    uint32_t tensor; /* the tensor's id in the manifest */
    uint32_t file;   /* the shard's id */
    struct box box;
    struct codec_chunk coding;
    int64_t offset; /* of its first frame */
    int64_t raw_bytes;
    uint64_t hash; /* XXH3-64 of the raw bytes */
};

struct shard_table {
    struct shard_chunk *data;
    uint32_t n;
    uint32_t cap;
};

/* Bytes of a chunk's frames. */
int64_t shard_chunk_bytes(const struct shard_chunk *k);

/* A chunk as its 96-byte record. */
void shard_record_put(const struct shard_chunk *k, uint8_t out[SHARD_RECORD_BYTES]);

/* A record as a chunk. errors: ST_DATA when its numbers contradict each other. */
MUST_CHECK enum status shard_record_get(const uint8_t in[SHARD_RECORD_BYTES],
                                        struct shard_chunk *out, struct diag *diag);

/* Compression states and buffers of a pool's threads; bounded, whatever is written. */
struct shard_crew;

/* in: pool, which must outlive the crew, or NULL for the caller's thread alone. */
struct shard_crew *shard_crew_create(struct pool *pool);
void shard_crew_destroy(struct shard_crew *crew);

/* The codec of the caller's thread. */
struct codec *shard_crew_codec(struct shard_crew *crew);

/* Runs fn on every thread of the crew and returns when all are done. */
void shard_crew_run(struct shard_crew *crew, pool_fn fn, void *arg);
int shard_crew_threads(const struct shard_crew *crew);

/* A tensor to be written: a whole, row-major array in memory. */
struct shard_tensor {
    uint32_t id;
    enum dtype dtype;
    bool non_negative;
    int split_axis; /* see box_grid_chunks */
    int ndim;
    int64_t shape[BOX_MAX_NDIM];
    const void *data; /* dtype[shape] */
};

struct shard_head {
    uint8_t uuid[SHARD_UUID_BYTES];
    uint32_t shard;
    uint32_t n_shards;
};

struct shard_writer;

/* Starts a shard file. in: table, to which the chunks are appended; raw, to store without
 * compressing. ownership: path, crew and table are the caller's and must outlive *out.
 * errors: ST_CREATE, ST_IO. */
MUST_CHECK enum status shard_create(struct durable *d, const char *path,
                                    const struct shard_head *head,
                                    struct shard_crew *crew, struct shard_table *table,
                                    bool raw, struct shard_writer **out,
                                    struct diag *diag);

/* Cuts a tensor into chunks and writes them. errors: ST_IO; ST_CONFIG when an extent does
 * not fit 32 bits. */
MUST_CHECK enum status shard_add(struct shard_writer *w, const struct shard_tensor *t,
                                 struct diag *diag);

/* One chunk to be written: a tile of a tensor's grid that lies in memory by itself. */
struct shard_tile {
    uint32_t tensor; /* id */
    enum dtype dtype;
    bool non_negative;
    struct box box;
    const void *data; /* dtype[box], row-major */
};

/* Writes tiles as chunks, in order. errors: ST_IO. */
MUST_CHECK enum status shard_add_tiles(struct shard_writer *w,
                                       const struct shard_tile *tiles, int64_t n,
                                       struct diag *diag);

/* Writes table and footer, flushes, closes and frees, whatever happens. out: the file's
 * bytes and XXH3-128. errors: ST_IO. */
MUST_CHECK enum status shard_finish(struct shard_writer *w, int64_t *bytes,
                                    uint64_t hash[2], struct diag *diag);

/* Closes and frees without finishing. */
void shard_abandon(struct shard_writer *w);

/* What an opened shard file says of itself. */
struct shard_file {
    int fd;
    int64_t bytes;
    struct shard_head head;
    struct shard_table table; /* the chunks, in the order of the file */
};

/* Opens a shard file and checks head, footer and table. ownership: path is the caller's;
 * close with shard_close. errors: ST_DATA naming file and offset; ST_NOT_FOUND; ST_IO. */
MUST_CHECK enum status shard_open(const char *path, struct codec *codec,
                                  struct shard_file *out, struct diag *diag);
void shard_close(struct shard_file *f);

/* Reads, decodes and checks one chunk on thread `lane` of the crew. in: fd and path, the
 * shard file; dtype, the tensor's. out: dst dtype[box], row-major. A damaged chunk is
 * read once more before it is reported. errors: ST_DATA naming file and offset; ST_IO. */
MUST_CHECK enum status shard_read_chunk(struct shard_crew *crew, int lane, int fd,
                                        const char *path, const struct shard_chunk *k,
                                        enum dtype dtype, void *dst, struct diag *diag);

/* The same into the lane's own buffer. out: *raw, valid until the lane's next call. */
MUST_CHECK enum status shard_read_chunk_scratch(struct shard_crew *crew, int lane,
                                                int fd, const char *path,
                                                const struct shard_chunk *k,
                                                enum dtype dtype, const void **raw,
                                                struct diag *diag);

#endif
