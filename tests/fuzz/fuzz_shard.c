/* A shard file. First byte of the input: how many chunk records follow; second: the
 * dtype that chunks are read as (two bits), and in its top bit whether the rest is a whole
 * file instead. Then records, uncompressed, and the bytes of the frames. Hashes of head,
 * table and footer are put right, so that they do not keep mutations out. */
#include <string.h>

#include "core/arena.h"
#include "core/hash.h"
#include "io/file.h"
#include "io/le.h"
#include "io/shard.h"
#include "tests/fuzz/fuzz.h"

#define HEAD_BYTES   64
#define FOOTER_BYTES 48
#define RECORDS_MAX  16
#define DECODE_BYTES ((int64_t)1 << 20)

static struct shard_crew *crew;

static void put_frame(struct str *out, uint32_t magic, const void *data, size_t n)
{
    uint8_t head[8];
    le_put32(head, magic);
    le_put32(head + 4, (uint32_t)n);
    str_add_n(out, (const char *)head, sizeof(head));
    str_add_n(out, data, n);
}

/* The file around records and frames. */
static void build(const uint8_t *records, size_t n_records, const uint8_t *frames,
                  size_t n_frames, struct str *out)
{
    uint8_t head[HEAD_BYTES - 8] = "ANGELSH1", footer[FOOTER_BYTES - 8] = {0};
    size_t raw_bytes = n_records * SHARD_RECORD_BYTES;
    uint8_t *table = mem_alloc(frame_bound(raw_bytes) + 8);
    head[8] = SHARD_VERSION;
    head[36] = 1;
    put_frame(out, 0x184D2A50u, head, sizeof(head));
    str_add_n(out, (const char *)frames, n_frames);
    size_t n = frame_encode(shard_crew_codec(crew), records, raw_bytes, table);
    le_put64(footer, out->n);
    le_put64(footer + 8, n + 16);
    le_put64(footer + 16, n_records);
    memcpy(footer + 32, "ANGELEND", 8);
    put_frame(out, 0x184D2A5Du, table, n + 8);
    put_frame(out, 0x184D2A5Eu, footer, sizeof(footer));
    mem_free(table);
}

static void put_hashes_right(uint8_t *file, size_t n)
{
    if (n < HEAD_BYTES + FOOTER_BYTES)
        return;
    uint8_t *footer = file + n - FOOTER_BYTES;
    uint64_t at = le_get64(footer + 8), bytes = le_get64(footer + 16);
    if (at < n && bytes <= n - at && bytes >= 16)
        le_put64(file + at + bytes - 8, hash64(file + at, bytes - 8));
    le_put64(file + 56, hash64(file, 56));
    le_put64(footer + 32, hash64(footer, 32));
}

static void read_chunks(const struct shard_file *f, const char *path, enum dtype dtype)
{
    int64_t left = DECODE_BYTES;
    for (uint32_t i = 0; i < f->table.n; i++) {
        const struct shard_chunk *k = &f->table.data[i];
        uint8_t record[SHARD_RECORD_BYTES];
        struct shard_chunk again;
        struct diag diag = {0};
        const void *raw;
        char text[128];
        shard_record_put(k, record);
        FUZZ_WANT(shard_record_get(record, &again, &diag) == ST_OK);
        FUZZ_WANT(box_equal(&k->box, &again.box) && k->hash == again.hash);
        FUZZ_WANT(box_text(&k->box, text, sizeof(text))[0] == '[');
        if (k->raw_bytes > left)
            continue;
        left -= k->raw_bytes;
        if (shard_read_chunk_scratch(crew, 0, f->fd, path, k, dtype, &raw, &diag) !=
            ST_OK)
            FUZZ_WANT(diag.text[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char buf[FUZZ_PATH_BYTES];
    struct str file = {0};
    struct shard_file f;
    struct diag diag = {0};
    if (n < 2)
        return 0;
    if (!crew)
        crew = shard_crew_create(NULL);
    size_t n_records =
            MIN((size_t)data[0] % (RECORDS_MAX + 1), (n - 2) / SHARD_RECORD_BYTES);
    size_t n_head = 2 + n_records * SHARD_RECORD_BYTES;
    if (data[1] & 0x80)
        str_add_n(&file, (const char *)data + 2, n - 2);
    else
        build(data + 2, n_records, data + n_head, n - n_head, &file);
    put_hashes_right((uint8_t *)file.s, file.n);
    const char *path = fuzz_file("x.azs", file.s, file.n, buf);
    if (shard_open(path, shard_crew_codec(crew), &f, &diag) == ST_OK) {
        read_chunks(&f, path, (enum dtype)(data[1] & 3));
        shard_close(&f);
    } else {
        FUZZ_WANT(diag.text[0]);
    }
    str_free(&file);
    return 0;
}
