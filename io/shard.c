#include "io/shard.h"

#include <string.h>

#include "core/arena.h"
#include "core/hash.h"
#include "io/file.h"
#include "io/le.h"

#define MAGIC_HEAD   0x184D2A50u
#define MAGIC_TABLE  0x184D2A5Du
#define MAGIC_FOOTER 0x184D2A5Eu
#define FRAME_HEAD   8 /* magic and length of a skippable frame */
#define HEAD_BYTES   64
#define FOOTER_BYTES 48
#define HASH_BYTES   8
#define CHUNKS_MAX   ((int64_t)1 << 24)

/* Records. */

int64_t shard_chunk_bytes(const struct shard_chunk *k)
{
    int64_t n = 0;
    for (int p = 0; p < k->coding.planes; p++)
        n += k->coding.plane_bytes[p];
    return n;
}

void shard_record_put(const struct shard_chunk *k, uint8_t out[SHARD_RECORD_BYTES])
{
    memset(out, 0, SHARD_RECORD_BYTES);
    le_put32(out, k->tensor);
    out[4] = (uint8_t)k->box.ndim;
    out[5] = k->coding.codec;
    out[6] = k->coding.planes;
    out[7] = k->coding.flags;
    for (int a = 0; a < k->box.ndim; a++) {
        le_put32(out + 8 + 4 * a, (uint32_t)k->box.off[a]);
        le_put32(out + 24 + 4 * a, (uint32_t)k->box.ext[a]);
    }
    le_put64(out + 40, (uint64_t)k->offset);
    for (int p = 0; p < CODEC_MAX_PLANES; p++)
        le_put32(out + 48 + 4 * p, k->coding.plane_bytes[p]);
    le_put64(out + 64, (uint64_t)k->raw_bytes);
    le_put64(out + 72, k->hash);
    le_put32(out + 80, k->file);
    le_put64(out + 88, k->coding.value);
}

/* The box is one of 32-bit numbers with a product that is the raw size over 1..8. */
static bool record_fits(const struct shard_chunk *k)
{
    int64_t elems = 1;
    for (int a = 0; a < k->box.ndim; a++) {
        if (k->box.ext[a] < 1 || k->box.off[a] + k->box.ext[a] > UINT32_MAX ||
            !mul_i64(elems, k->box.ext[a], &elems))
            return false;
    }
    return k->raw_bytes >= 1 && k->raw_bytes <= (int64_t)SHARD_MAX_RAW_BYTES &&
           elems <= k->raw_bytes && k->raw_bytes % elems == 0 &&
           k->raw_bytes / elems <= 8 && k->offset >= HEAD_BYTES &&
           k->coding.planes <= CODEC_MAX_PLANES;
}

enum status shard_record_get(const uint8_t in[SHARD_RECORD_BYTES],
                             struct shard_chunk *out, struct diag *diag)
{
    struct shard_chunk k = {.tensor = le_get32(in), .file = le_get32(in + 80)};
    k.box.ndim = in[4];
    if (k.box.ndim > BOX_MAX_NDIM)
        return diag_set(diag, ST_DATA, "damaged chunk record: got %d axes", k.box.ndim);
    for (int a = 0; a < k.box.ndim; a++) {
        k.box.off[a] = le_get32(in + 8 + 4 * a);
        k.box.ext[a] = le_get32(in + 24 + 4 * a);
    }
    k.coding.codec = in[5];
    k.coding.planes = in[6];
    k.coding.flags = in[7];
    for (int p = 0; p < CODEC_MAX_PLANES; p++)
        k.coding.plane_bytes[p] = le_get32(in + 48 + 4 * p);
    k.offset = (int64_t)le_get64(in + 40);
    k.raw_bytes = (int64_t)le_get64(in + 64);
    k.hash = le_get64(in + 72);
    k.coding.value = le_get64(in + 88);
    if (!record_fits(&k))
        return diag_set(diag, ST_DATA,
                        "damaged chunk record: sizes that contradict each other");
    *out = k;
    return ST_OK;
}

/* The crew. */

struct lane {
    struct codec *codec;
    uint8_t *raw; /* a chunk's box */
    size_t raw_cap;
    uint8_t *packed; /* its frames */
    size_t packed_cap;
};

struct shard_crew {
    struct pool *pool;
    int n;
    struct lane *lanes;
};

static uint8_t *grow(uint8_t **buf, size_t *cap, size_t bytes)
{
    if (bytes > *cap) {
        mem_free(*buf);
        *buf = mem_realloc(NULL, bytes);
        *cap = bytes;
    }
    return *buf;
}

struct shard_crew *shard_crew_create(struct pool *pool)
{
    struct shard_crew *crew = mem_alloc(sizeof(*crew));
    crew->pool = pool;
    crew->n = pool ? pool_threads(pool) : 1;
    crew->lanes = mem_alloc((size_t)crew->n * sizeof(*crew->lanes));
    for (int i = 0; i < crew->n; i++)
        crew->lanes[i].codec = codec_create();
    return crew;
}

void shard_crew_destroy(struct shard_crew *crew)
{
    if (!crew)
        return;
    for (int i = 0; i < crew->n; i++) {
        codec_destroy(crew->lanes[i].codec);
        mem_free(crew->lanes[i].raw);
        mem_free(crew->lanes[i].packed);
    }
    mem_free(crew->lanes);
    mem_free(crew);
}

struct codec *shard_crew_codec(struct shard_crew *crew)
{
    return crew->lanes[0].codec;
}

int shard_crew_threads(const struct shard_crew *crew)
{
    return crew->n;
}

void shard_crew_run(struct shard_crew *crew, pool_fn fn, void *arg)
{
    if (crew->pool)
        pool_run(crew->pool, fn, arg);
    else
        fn(arg, 0, 1);
}

/* Writing. */

struct shard_writer {
    struct durable_file file;
    struct shard_crew *crew;
    struct shard_table *table;
    uint32_t first_chunk;
    uint32_t shard;
    bool raw;
    struct hash128_state *hash;
};

static enum status put(struct shard_writer *w, const void *data, size_t bytes,
                       struct diag *diag)
{
    hash128_add(w->hash, data, bytes);
    return durable_write(&w->file, data, bytes, diag);
}

static void put_frame_head(uint8_t *at, uint32_t magic, size_t frame_bytes)
{
    le_put32(at, magic);
    le_put32(at + 4, (uint32_t)(frame_bytes - FRAME_HEAD));
}

static void head_bytes(const struct shard_head *head, uint8_t out[HEAD_BYTES])
{
    memset(out, 0, HEAD_BYTES);
    put_frame_head(out, MAGIC_HEAD, HEAD_BYTES);
    memcpy(out + 8, "ANGELSH1", 8);
    le_put32(out + 16, SHARD_VERSION);
    memcpy(out + 24, head->uuid, SHARD_UUID_BYTES);
    le_put32(out + 40, head->shard);
    le_put32(out + 44, head->n_shards);
    le_put64(out + 56, hash64(out, 56));
}

enum status shard_create(struct durable *d, const char *path,
                         const struct shard_head *head, struct shard_crew *crew,
                         struct shard_table *table, bool raw, struct shard_writer **out,
                         struct diag *diag)
{
    struct durable_file file;
    TRY(durable_create(d, path, &file, diag));
    struct shard_writer *w = mem_alloc(sizeof(*w));
    w->file = file;
    w->crew = crew;
    w->table = table;
    w->first_chunk = table->n;
    w->shard = head->shard;
    w->raw = raw;
    w->hash = hash128_begin();
    uint8_t bytes[HEAD_BYTES];
    head_bytes(head, bytes);
    enum status st = put(w, bytes, sizeof(bytes), diag);
    if (st != ST_OK) {
        shard_abandon(w);
        return st;
    }
    *out = w;
    return ST_OK;
}

/* A batch: one chunk for each thread of the crew. */
struct batch {
    struct shard_writer *w;
    const struct shard_tensor *t;
    const struct box_grid *grid;
    int64_t first;
    struct shard_chunk *chunks; /* [threads] */
};

static const void *gather(struct lane *lane, const struct shard_tensor *t,
                          const struct box *box, size_t bytes)
{
    size_t elem = dtype_bytes(t->dtype);
    struct box whole = box_whole(t->ndim, t->shape);
    if (box_is_run(&whole, box))
        return (const uint8_t *)t->data + (size_t)box_index(&whole, box) * elem;
    void *raw = grow(&lane->raw, &lane->raw_cap, bytes);
    box_copy(box, elem, t->data, &whole, raw, box);
    return raw;
}

static void encode_lane(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct batch *b = arg;
    int64_t i = b->first + thread;
    if (i >= b->grid->n)
        return;
    struct lane *lane = &b->w->crew->lanes[thread];
    struct shard_chunk *k = &b->chunks[thread];
    const struct shard_tensor *t = b->t;
    *k = (struct shard_chunk){.tensor = t->id, .file = b->w->shard};
    k->box = box_grid_tile(b->grid, i);
    int64_t elems = box_elems(&k->box);
    k->raw_bytes = elems * (int64_t)dtype_bytes(t->dtype);
    const void *raw = gather(lane, t, &k->box, (size_t)k->raw_bytes);
    k->hash = hash64(raw, (size_t)k->raw_bytes);
    void *packed = grow(&lane->packed, &lane->packed_cap, codec_bound(t->dtype, elems));
    struct codec_spec spec = {t->dtype, t->non_negative, b->w->raw};
    codec_encode(lane->codec, &spec, raw, elems, packed, &k->coding);
}

static enum status put_chunks(struct shard_writer *w, struct shard_chunk *chunks,
                              int64_t n, struct diag *diag)
{
    for (int64_t i = 0; i < n; i++) {
        struct shard_chunk *k = &chunks[i];
        k->offset = w->file.offset;
        int64_t bytes = shard_chunk_bytes(k);
        if (bytes > 0)
            TRY(put(w, w->crew->lanes[i].packed, (size_t)bytes, diag));
        vec_push(w->table, *k);
    }
    return ST_OK;
}

enum status shard_add(struct shard_writer *w, const struct shard_tensor *t,
                      struct diag *diag)
{
    for (int a = 0; a < t->ndim; a++)
        if (t->shape[a] >= UINT32_MAX)
            return diag_set(diag, ST_CONFIG,
                            "extent does not fit a checkpoint: got %lld, wanted below "
                            "%lld",
                            (long long)t->shape[a], (long long)UINT32_MAX);
    struct box_grid grid =
            box_grid_chunks(t->ndim, t->shape, dtype_bytes(t->dtype), t->split_axis);
    struct batch b = {.w = w, .t = t, .grid = &grid};
    b.chunks = mem_alloc((size_t)w->crew->n * sizeof(*b.chunks));
    enum status st = ST_OK;
    for (; b.first < grid.n && st == ST_OK; b.first += w->crew->n) {
        shard_crew_run(w->crew, encode_lane, &b);
        st = put_chunks(w, b.chunks, MIN(grid.n - b.first, w->crew->n), diag);
    }
    mem_free(b.chunks);
    return st;
}

/* A batch of tiles: one for each thread of the crew. */
struct tile_batch {
    struct shard_writer *w;
    const struct shard_tile *tiles;
    int64_t n;
    struct shard_chunk *chunks; /* [threads] */
};

static void encode_tile(void *arg, int thread, int n_threads)
{
    (void)n_threads;
    struct tile_batch *b = arg;
    if (thread >= b->n)
        return;
    struct lane *lane = &b->w->crew->lanes[thread];
    struct shard_chunk *k = &b->chunks[thread];
    const struct shard_tile *t = &b->tiles[thread];
    int64_t elems = box_elems(&t->box);
    *k = (struct shard_chunk){.tensor = t->tensor,
                              .file = b->w->shard,
                              .box = t->box,
                              .raw_bytes = elems * (int64_t)dtype_bytes(t->dtype)};
    k->hash = hash64(t->data, (size_t)k->raw_bytes);
    void *packed = grow(&lane->packed, &lane->packed_cap, codec_bound(t->dtype, elems));
    struct codec_spec spec = {t->dtype, t->non_negative, b->w->raw};
    codec_encode(lane->codec, &spec, t->data, elems, packed, &k->coding);
}

enum status shard_add_tiles(struct shard_writer *w, const struct shard_tile *tiles,
                            int64_t n, struct diag *diag)
{
    struct tile_batch b = {.w = w};
    b.chunks = mem_alloc((size_t)w->crew->n * sizeof(*b.chunks));
    enum status st = ST_OK;
    for (int64_t first = 0; first < n && st == ST_OK; first += w->crew->n) {
        b.tiles = tiles + first;
        b.n = MIN(n - first, w->crew->n);
        shard_crew_run(w->crew, encode_tile, &b);
        st = put_chunks(w, b.chunks, b.n, diag);
    }
    mem_free(b.chunks);
    return st;
}

static enum status put_table(struct shard_writer *w, uint32_t n, size_t *frame_bytes,
                             struct diag *diag)
{
    size_t raw_bytes = (size_t)n * SHARD_RECORD_BYTES;
    uint8_t *raw = mem_alloc(raw_bytes + 1);
    for (uint32_t i = 0; i < n; i++)
        shard_record_put(&w->table->data[w->first_chunk + i],
                         raw + (size_t)i * SHARD_RECORD_BYTES);
    uint8_t *frame = mem_alloc(FRAME_HEAD + frame_bound(raw_bytes) + HASH_BYTES);
    size_t z =
            frame_encode(shard_crew_codec(w->crew), raw, raw_bytes, frame + FRAME_HEAD);
    *frame_bytes = FRAME_HEAD + z + HASH_BYTES;
    put_frame_head(frame, MAGIC_TABLE, *frame_bytes);
    le_put64(frame + FRAME_HEAD + z, hash64(frame, FRAME_HEAD + z));
    enum status st = put(w, frame, *frame_bytes, diag);
    mem_free(raw);
    mem_free(frame);
    return st;
}

static enum status put_end(struct shard_writer *w, struct diag *diag)
{
    uint32_t n = w->table->n - w->first_chunk;
    int64_t table_offset = w->file.offset;
    size_t table_bytes = 0;
    TRY(put_table(w, n, &table_bytes, diag));
    uint8_t footer[FOOTER_BYTES];
    put_frame_head(footer, MAGIC_FOOTER, FOOTER_BYTES);
    le_put64(footer + 8, (uint64_t)table_offset);
    le_put64(footer + 16, table_bytes);
    le_put64(footer + 24, n);
    le_put64(footer + 32, hash64(footer, 32));
    memcpy(footer + 40, "ANGELEND", 8);
    return put(w, footer, sizeof(footer), diag);
}

enum status shard_finish(struct shard_writer *w, int64_t *bytes, uint64_t hash[2],
                         struct diag *diag)
{
    enum status st = put_end(w, diag);
    *bytes = w->file.offset;
    if (st == ST_OK)
        st = durable_finish(&w->file, diag);
    hash128_end(w->hash, hash);
    w->hash = NULL;
    shard_abandon(w);
    return st;
}

void shard_abandon(struct shard_writer *w)
{
    uint64_t unused[2];
    if (!w)
        return;
    durable_abandon(&w->file);
    if (w->hash)
        hash128_end(w->hash, unused);
    mem_free(w);
}

/* Reading. */

static enum status damaged(const char *path, int64_t offset, const char *what,
                           struct diag *diag)
{
    return diag_set(diag, ST_DATA, "damaged shard file (%s at byte %lld): %s", path,
                    (long long)offset, what);
}

static enum status read_head(struct shard_file *f, const char *path, struct diag *diag)
{
    uint8_t got[HEAD_BYTES];
    TRY(file_read_at(f->fd, path, 0, got, sizeof(got), diag));
    if (memcmp(got + 8, "ANGELSH1", 8) != 0)
        return damaged(path, 8, "no shard file of angel: wanted \"ANGELSH1\"", diag);
    if (le_get64(got + 56) != hash64(got, 56))
        return damaged(path, 0, "the head's hash differs", diag);
    if (le_get32(got + 16) > SHARD_VERSION)
        return diag_set(diag, ST_DATA,
                        "shard file is of a newer version (%s): got %u, wanted at most "
                        "%d",
                        path, le_get32(got + 16), SHARD_VERSION);
    memcpy(f->head.uuid, got + 24, SHARD_UUID_BYTES);
    f->head.shard = le_get32(got + 40);
    f->head.n_shards = le_get32(got + 44);
    return ST_OK;
}

struct footer {
    int64_t table_offset;
    int64_t table_bytes;
    int64_t n_chunks;
};

static enum status read_footer(struct shard_file *f, const char *path,
                               struct footer *out, struct diag *diag)
{
    uint8_t got[FOOTER_BYTES];
    int64_t at = f->bytes - FOOTER_BYTES;
    if (at < HEAD_BYTES)
        return damaged(path, f->bytes, "the file is cut short", diag);
    TRY(file_read_at(f->fd, path, at, got, sizeof(got), diag));
    uint8_t frame_head[FRAME_HEAD];
    put_frame_head(frame_head, MAGIC_FOOTER, FOOTER_BYTES);
    if (memcmp(got, frame_head, FRAME_HEAD) != 0 ||
        memcmp(got + 40, "ANGELEND", 8) != 0)
        return damaged(path, at, "no footer: the file is cut short or overwritten",
                       diag);
    if (le_get64(got + 32) != hash64(got, 32))
        return damaged(path, at, "the footer's hash differs", diag);
    out->table_offset = (int64_t)le_get64(got + 8);
    out->table_bytes = (int64_t)le_get64(got + 16);
    out->n_chunks = (int64_t)le_get64(got + 24);
    if (out->table_offset < HEAD_BYTES || out->table_offset > at ||
        out->table_bytes != at - out->table_offset ||
        out->table_bytes < FRAME_HEAD + HASH_BYTES || out->n_chunks < 0 ||
        out->n_chunks > CHUNKS_MAX)
        return damaged(path, at, "the footer contradicts the file's size", diag);
    return ST_OK;
}

/* Records in file order, frames without a gap between head and table. */
static enum status parse_table(struct shard_file *f, const char *path,
                               const struct footer *foot, const uint8_t *raw,
                               struct diag *diag)
{
    int64_t at = HEAD_BYTES;
    for (int64_t i = 0; i < foot->n_chunks; i++) {
        struct shard_chunk k;
        enum status st = shard_record_get(raw + i * SHARD_RECORD_BYTES, &k, diag);
        if (st != ST_OK) {
            diag_context(diag, "%s, record %lld", path, (long long)i);
            return st;
        }
        if (k.offset != at || k.file != f->head.shard)
            return damaged(path, at, "the chunk table does not match the file", diag);
        at += shard_chunk_bytes(&k);
        vec_push(&f->table, k);
    }
    if (at != foot->table_offset)
        return damaged(path, at, "the chunk table does not match the file", diag);
    return ST_OK;
}

static enum status read_table(struct shard_file *f, const char *path,
                              const struct footer *foot, struct codec *codec,
                              struct diag *diag)
{
    size_t n = (size_t)foot->table_bytes;
    size_t raw_bytes = (size_t)foot->n_chunks * SHARD_RECORD_BYTES;
    uint8_t *frame = mem_realloc(NULL, n);
    uint8_t *raw = NULL;
    uint8_t frame_head[FRAME_HEAD];
    put_frame_head(frame_head, MAGIC_TABLE, n);
    enum status st = file_read_at(f->fd, path, foot->table_offset, frame, n, diag);
    if (st == ST_OK &&
        (memcmp(frame, frame_head, FRAME_HEAD) != 0 ||
         le_get64(frame + n - HASH_BYTES) != hash64(frame, n - HASH_BYTES) ||
         frame_content_bytes(frame + FRAME_HEAD, n - FRAME_HEAD) != (int64_t)raw_bytes))
        st = damaged(path, foot->table_offset, "the chunk table's hash differs", diag);
    if (st == ST_OK)
        raw = mem_realloc(NULL, raw_bytes + 1);
    if (st == ST_OK)
        st = frame_decode(codec, frame + FRAME_HEAD, n - FRAME_HEAD - HASH_BYTES, raw,
                          raw_bytes, diag);
    if (st == ST_OK)
        st = parse_table(f, path, foot, raw, diag);
    mem_free(frame);
    mem_free(raw);
    return st;
}

enum status shard_open(const char *path, struct codec *codec, struct shard_file *out,
                       struct diag *diag)
{
    struct shard_file f = {.fd = -1};
    struct footer foot = {0};
    TRY(file_open_read(path, &f.fd, diag));
    enum status st;
    TRY_GOTO(file_size(path, &f.bytes, diag), fail);
    TRY_GOTO(read_footer(&f, path, &foot, diag), fail);
    TRY_GOTO(read_head(&f, path, diag), fail);
    TRY_GOTO(read_table(&f, path, &foot, codec, diag), fail);
    *out = f;
    return ST_OK;
fail:
    shard_close(&f);
    return st;
}

void shard_close(struct shard_file *f)
{
    if (f->fd >= 0)
        file_close_read(f->fd);
    f->fd = -1;
    vec_free(&f->table);
}

static enum status read_once(struct lane *lane, int fd, const char *path,
                             const struct shard_chunk *k, enum dtype dtype, void *dst,
                             struct diag *diag)
{
    size_t bytes = (size_t)shard_chunk_bytes(k);
    if (bytes > codec_bound(dtype, box_elems(&k->box)))
        return diag_set(diag, ST_DATA, "frames longer than their content");
    uint8_t *packed = grow(&lane->packed, &lane->packed_cap, bytes + 1);
    if (bytes > 0)
        TRY(file_read_at(fd, path, k->offset, packed, bytes, diag));
    TRY(codec_decode(lane->codec, &k->coding, dtype, box_elems(&k->box), packed, bytes,
                     dst, diag));
    uint64_t got = hash64(dst, (size_t)k->raw_bytes);
    if (got != k->hash)
        return diag_set(diag, ST_DATA, "hash differs: got %016llx, wanted %016llx",
                        (unsigned long long)got, (unsigned long long)k->hash);
    return ST_OK;
}

enum status shard_read_chunk(struct shard_crew *crew, int lane, int fd,
                             const char *path, const struct shard_chunk *k,
                             enum dtype dtype, void *dst, struct diag *diag)
{
    int64_t want = box_elems(&k->box) * (int64_t)dtype_bytes(dtype);
    if (k->raw_bytes != want)
        return diag_set(
                diag, ST_DATA,
                "damaged chunk (%s at byte %lld): got %lld raw bytes, wanted %lld",
                path, (long long)k->offset, (long long)k->raw_bytes, (long long)want);
    /* Once more: a flip in memory or on a network path is gone at the second read. */
    enum status st = read_once(&crew->lanes[lane], fd, path, k, dtype, dst, diag);
    if (st == ST_DATA)
        st = read_once(&crew->lanes[lane], fd, path, k, dtype, dst, diag);
    if (st == ST_DATA)
        diag_context(diag, "damaged chunk (%s at byte %lld)", path,
                     (long long)k->offset);
    return st;
}

enum status shard_read_chunk_scratch(struct shard_crew *crew, int lane, int fd,
                                     const char *path, const struct shard_chunk *k,
                                     enum dtype dtype, const void **raw,
                                     struct diag *diag)
{
    struct lane *l = &crew->lanes[lane];
    void *dst = grow(&l->raw, &l->raw_cap, (size_t)k->raw_bytes);
    *raw = dst;
    return shard_read_chunk(crew, lane, fd, path, k, dtype, dst, diag);
}
