/* A checkpoint's manifest and index, around a shard file that is in order.
 *
 * The input is the text of manifest.json, in which @NAME@ stands for what the files at
 * hand have (below), so that hashes do not keep mutations out. After a zero byte may
 * follow the records of index.zst, uncompressed; else it is the shard's own table. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/arena.h"
#include "core/hash.h"
#include "io/ckpt_format.h"
#include "tests/fuzz/fuzz.h"

#define STATE         "{\"step\": 7}"
#define DECODE_BYTES  (1 * MIB) /* tensors in all that are decoded */
#define VERIFY_BYTES  (4 * MIB)
#define RECORDS_BYTES (SHARD_RECORD_BYTES * 16)

/* What stays the same between inputs. */
static struct {
    struct shard_crew *crew;
    struct shard_table table;
    int64_t shard_bytes;
    uint64_t shard_hash[2];
} fixed;

static void make_shard(void)
{
    char buf[FUZZ_PATH_BYTES], folder[FUZZ_PATH_BYTES];
    float w[8][8];
    uint16_t half[16] = {0};
    for (int i = 0; i < 64; i++)
        w[i / 8][i % 8] = (float)i * 0.37f - 5;
    struct shard_tensor t[] = {
            {.id = 0, .dtype = DT_F32, .split_axis = 0, .ndim = 2, {8, 8}, w},
            {.id = 1, .dtype = DT_BF16, .split_axis = -1, .ndim = 1, {16}, half}};
    struct shard_head head = {.n_shards = 1};
    struct shard_writer *s;
    struct diag diag;
    snprintf(folder, sizeof(folder), "%s/step", fuzz_folder());
    FUZZ_WANT(mkdir(folder, 0777) == 0);
    fixed.crew = shard_crew_create(NULL);
    const char *path = fuzz_file("step/model.azs", "", 0, buf);
    FUZZ_WANT(shard_create(NULL, path, &head, fixed.crew, &fixed.table, false, &s,
                           &diag) == ST_OK);
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        FUZZ_WANT(shard_add(s, &t[i], &diag) == ST_OK);
    FUZZ_WANT(shard_finish(s, &fixed.shard_bytes, fixed.shard_hash, &diag) == ST_OK);
    (void)fuzz_file("step/state.json", STATE, strlen(STATE), buf);
}

/* The index of this input. */
struct index {
    size_t raw_bytes, bytes;
    uint64_t hash[2], digest;
};

static void write_index(const uint8_t *records, size_t n, struct index *x)
{
    char buf[FUZZ_PATH_BYTES];
    uint8_t own[RECORDS_BYTES];
    uint8_t *frame = mem_alloc(frame_bound(MAX(n, sizeof(own))));
    if (!records) {
        for (uint32_t i = 0; i < fixed.table.n; i++)
            shard_record_put(&fixed.table.data[i], own + i * SHARD_RECORD_BYTES);
        records = own;
        n = fixed.table.n * SHARD_RECORD_BYTES;
    }
    *x = (struct index){.raw_bytes = n};
    for (size_t at = 0; at + SHARD_RECORD_BYTES <= n; at += SHARD_RECORD_BYTES) {
        uint64_t hash;
        memcpy(&hash, records + at + 72, sizeof(hash));
        x->digest += hash;
    }
    x->bytes = frame_encode(shard_crew_codec(fixed.crew), records, n, frame);
    hash128(frame, x->bytes, x->hash);
    (void)fuzz_file("step/index.zst", frame, x->bytes, buf);
    mem_free(frame);
}

static void add_name(const char *name, size_t n, const struct index *x, struct str *out)
{
    char index_hash[CKPT_HASH_TEXT], state_hash[CKPT_HASH_TEXT],
            shard_hash[CKPT_HASH_TEXT];
    uint64_t hash[2];
    hash128(STATE, strlen(STATE), hash);
    ckpt_hash_text(x->hash, index_hash);
    ckpt_hash_text(hash, state_hash);
    ckpt_hash_text(fixed.shard_hash, shard_hash);
    const struct {
        const char *name;
        const char *text; /* NULL: the number */
        int64_t number;
    } names[] = {{"index_hash", index_hash, 0},
                 {"state_hash", state_hash, 0},
                 {"shard_hash", shard_hash, 0},
                 {"index_bytes", NULL, (int64_t)x->bytes},
                 {"state_bytes", NULL, (int64_t)strlen(STATE)},
                 {"shard_bytes", NULL, fixed.shard_bytes},
                 {"chunks", NULL, (int64_t)(x->raw_bytes / SHARD_RECORD_BYTES)}};
    if (n == 6 && memcmp(name, "digest", 6) == 0)
        str_printf(out, "%016llx", (unsigned long long)x->digest);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strlen(names[i].name) != n || memcmp(names[i].name, name, n) != 0)
            continue;
        if (names[i].text)
            str_add(out, names[i].text);
        else
            str_printf(out, "%lld", (long long)names[i].number);
    }
}

static void expand(const char *text, size_t n, const struct index *x, struct str *out)
{
    const char *end = text + n;
    while (text < end) {
        const char *at = memchr(text, '@', (size_t)(end - text));
        const char *close = at ? memchr(at + 1, '@', (size_t)(end - at - 1)) : NULL;
        str_add_n(out, text, (size_t)((close ? at : end) - text));
        if (close)
            add_name(at + 1, (size_t)(close - at - 1), x, out);
        text = close ? close + 1 : end;
    }
}

static void write_commit(const struct str *manifest)
{
    char buf[FUZZ_PATH_BYTES];
    uint8_t record[CKPT_COMMIT_BYTES];
    struct ckpt_commit c = {.version_major = CKPT_VERSION_MAJOR,
                            .manifest_bytes = (int64_t)manifest->n,
                            .step = 7};
    hash128(str_get(manifest), manifest->n, c.manifest_hash);
    ckpt_commit_put(&c, record);
    (void)fuzz_file("step/manifest.json", str_get(manifest), manifest->n, buf);
    (void)fuzz_file("step/COMMIT", record, sizeof(record), buf);
}

static void read_tensors(const struct ckpt *ck)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    int64_t left = DECODE_BYTES, chunk_bytes = 0, n_damaged, n;
    struct diag diag = {0};
    for (int64_t i = 0; i < info->n_tensors; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
        struct box whole = box_whole(t->ndim, t->shape);
        int64_t bytes = box_elems(&whole) * (int64_t)dtype_bytes(t->dtype);
        const struct shard_chunk *k = ckpt_tensor_chunks(ck, i, &n);
        for (int64_t j = 0; j < n; j++)
            chunk_bytes += k[j].raw_bytes;
        FUZZ_WANT(ckpt_find(ck, t->kind, t->name) == i);
        if (bytes > left)
            continue;
        left -= bytes;
        void *dst = mem_alloc((size_t)bytes);
        if (ckpt_read_tensor(ck, t->kind, t->name, fixed.crew, dst, &diag) != ST_OK)
            FUZZ_WANT(diag.text[0]);
        mem_free(dst);
    }
    if (chunk_bytes <= (int64_t)VERIFY_BYTES &&
        ckpt_verify(ck, true, fixed.crew, NULL, NULL, &n_damaged, &diag) != ST_OK)
        FUZZ_WANT(diag.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[FUZZ_PATH_BYTES];
    struct index index;
    struct str manifest = {0};
    struct ckpt *ck = NULL;
    struct diag diag = {0};
    if (!fixed.crew)
        make_shard();
    const uint8_t *zero = n ? memchr(data, 0, n) : NULL;
    size_t n_text = zero ? (size_t)(zero - data) : n;
    write_index(zero ? zero + 1 : NULL, zero ? n - n_text - 1 : 0, &index);
    expand((const char *)data, n_text, &index, &manifest);
    write_commit(&manifest);
    snprintf(path, sizeof(path), "%s/step", fuzz_folder());
    if (ckpt_open(path, &ck, &diag) == ST_OK) {
        read_tensors(ck);
        ckpt_close(ck);
    } else {
        FUZZ_WANT(diag.text[0]);
    }
    str_free(&manifest);
    return 0;
}
