/* Writes the seeds of the fuzz targets that are not text: shard files and zstd streams.
 *
 *     fuzz_seeds FOLDER        (tests/fuzz/corpus) */
#include <stdio.h>
#include <string.h>

#include "core/str.h"
#include "io/file.h"
#include "io/le.h"
#include "io/shard.h"

#define LINES "{\"text\": \"one\"}\n\n{\"text\": \"two \\u00e9\"}\n"

static void put(const char *folder, const char *name, const void *data, size_t n)
{
    struct str path = {0};
    struct diag diag = {0};
    str_printf(&path, "%s/%s", folder, name);
    int fd = -1;
    enum status st = file_open_write(path.s, &fd, &diag);
    if (st == ST_OK)
        st = file_write(fd, path.s, data, n, &diag);
    if (st == ST_OK)
        st = file_close(fd, path.s, &diag);
    if (st != ST_OK)
        BUG("%s", diag.text);
    str_free(&path);
}

static void zstd_seeds(const char *folder)
{
    struct codec *c = codec_create();
    uint8_t frame[1024], both[2048];
    static const uint8_t skippable[] = {0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3};
    static const uint8_t repeated[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00,
                                       0x58, 0x03, 0x00, 0x02, 'a'};
    size_t n = frame_encode(c, LINES, strlen(LINES), frame);
    put(folder, "zstd/one-frame", frame, n);
    put(folder, "zstd/cut", frame, n - 5);
    memcpy(both, frame, n);
    memcpy(both + n, skippable, sizeof(skippable));
    memcpy(both + n + sizeof(skippable), frame, n);
    put(folder, "zstd/two-frames", both, 2 * n + sizeof(skippable));
    static const uint8_t short_frame[] = {
            0x28, 0xb5, 0x2f, 0xfd, 0x20,
            0x40, 0x01, 0x00, 0x00}; /* holds 0, says 64 */
    put(folder, "zstd/short-frame", short_frame, sizeof(short_frame));
    n = frame_encode(c, "", 0, frame);
    put(folder, "zstd/empty-frame", frame, n);
    put(folder, "zstd/repeated-byte", repeated, sizeof(repeated));
    codec_destroy(c);
}

/* A file of one tensor, whole and taken apart into records and frames. */
static void shard_seed(const char *folder, const char *name, enum dtype dtype, bool raw)
{
    struct shard_crew *crew = shard_crew_create(NULL);
    struct shard_table table = {0};
    struct shard_writer *w = NULL;
    struct diag diag = {0};
    struct str path = {0}, file = {0}, seed = {0};
    uint8_t data[8 * 24];
    uint64_t hash[2];
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i % 7 * i);
    struct shard_tensor t = {.dtype = dtype, .split_axis = 0, .ndim = 2, {4, 6}, data};
    struct shard_head head = {.n_shards = 1};
    str_printf(&path, "%s/shard/scratch", folder);
    enum status st = shard_create(NULL, path.s, &head, crew, &table, raw, &w, &diag);
    if (st == ST_OK)
        st = shard_add(w, &t, &diag);
    t.id = 1;
    memset(data, 0, sizeof(data));
    if (st == ST_OK)
        st = shard_add(w, &t, &diag);
    if (st == ST_OK)
        st = shard_finish(w, &bytes, hash, &diag);
    if (st == ST_OK)
        st = file_read_all(path.s, MIB, &file, &diag);
    if (st == ST_OK)
        st = file_remove_tree(path.s, &diag);
    if (st != ST_OK)
        BUG("%s", diag.text);
    str_addc(&seed, 0);
    str_addc(&seed, (char)(0x80 | dtype));
    str_add_n(&seed, file.s, file.n);
    str_clear(&path);
    str_printf(&path, "shard/whole-%s", name);
    put(folder, path.s, seed.s, seed.n);
    str_clear(&seed);
    str_addc(&seed, (char)table.n);
    str_addc(&seed, (char)dtype);
    int64_t frames = 0;
    for (uint32_t i = 0; i < table.n; i++) {
        uint8_t record[SHARD_RECORD_BYTES];
        shard_record_put(&table.data[i], record);
        str_add_n(&seed, (const char *)record, sizeof(record));
        frames += shard_chunk_bytes(&table.data[i]);
    }
    str_add_n(&seed, file.s + 64, (size_t)frames);
    str_clear(&path);
    str_printf(&path, "shard/parts-%s", name);
    put(folder, path.s, seed.s, seed.n);
    str_free(&path);
    str_free(&file);
    str_free(&seed);
    vec_free(&table);
    shard_crew_destroy(crew);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    zstd_seeds(argv[1]);
    shard_seed(argv[1], "f32", DT_F32, false);
    shard_seed(argv[1], "bf16", DT_BF16, false);
    shard_seed(argv[1], "f64", DT_F64, false);
    shard_seed(argv[1], "raw", DT_I32, true);
    return 0;
}
