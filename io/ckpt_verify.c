#include <string.h>

#include "core/hash.h"
#include "io/ckpt_format.h"
#include "io/ckpt_read.h"
#include "io/file.h"

#define HASH_PIECE_BYTES (4 * MIB)

struct verify_run {
    const struct ckpt *ck;
    struct shard_crew *crew;
    bool *file_bad;   /* [n_files]; each entry is written by one thread */
    bool *file_deep;  /* [n_files]: decode its chunks */
    bool *chunk_bad;  /* [n_chunks] */
    bool *deep_found; /* [n_files]: a chunk of it is damaged */
    ckpt_damage_fn fn;
    void *arg;
    int64_t n_damaged;
};

/* true when the bytes of a shard have the manifest's hash. */
static bool file_hash_agrees(const struct ckpt *ck, int64_t i)
{
    const struct ckpt_file *f = &ck->files[i];
    uint8_t *buf = mem_realloc(NULL, HASH_PIECE_BYTES);
    struct hash128_state *h = hash128_begin();
    enum status st = ST_OK;
    for (int64_t at = 0; at < f->bytes && st == ST_OK;) {
        size_t n = (size_t)MIN(f->bytes - at, (int64_t)HASH_PIECE_BYTES);
        st = file_read_at(ck->fds[i], ck->paths[i], at, buf, n, NULL);
        if (st == ST_OK)
            hash128_add(h, buf, n);
        at += (int64_t)n;
    }
    uint64_t got[2];
    hash128_end(h, got);
    mem_free(buf);
    return st == ST_OK && got[0] == f->hash[0] && got[1] == f->hash[1];
}

static void hash_lane(void *arg, int thread, int n_threads)
{
    struct verify_run *v = arg;
    for (int64_t i = thread; i < v->ck->info.n_files; i += n_threads)
        if (v->ck->files[i].is_shard)
            v->file_bad[i] = !file_hash_agrees(v->ck, i);
}

static enum status check_chunk(const struct verify_run *v, int lane, int64_t i,
                               struct diag *diag)
{
    const struct shard_chunk *k = &v->ck->chunks[i];
    const void *raw;
    enum status st = shard_read_chunk_scratch(
            v->crew, lane, v->ck->fds[k->file], v->ck->paths[k->file], k,
            v->ck->tensors[k->tensor].dtype, &raw, diag);
    return st == ST_OK ? ST_OK : ckpt_chunk_error(v->ck, k, st, diag);
}

static void deep_lane(void *arg, int thread, int n_threads)
{
    struct verify_run *v = arg;
    for (int64_t i = thread; i < v->ck->info.n_chunks; i += n_threads)
        if (v->file_deep[v->ck->chunks[i].file])
            v->chunk_bad[i] = check_chunk(v, thread, i, NULL) != ST_OK;
}

static void found(struct verify_run *v, const char *text)
{
    v->n_damaged++;
    if (v->fn)
        v->fn(v->arg, text);
}

static void report_chunks(struct verify_run *v)
{
    for (int64_t i = 0; i < v->ck->info.n_chunks; i++) {
        if (!v->chunk_bad[i])
            continue;
        struct diag diag = {0};
        v->deep_found[v->ck->chunks[i].file] = true;
        if (check_chunk(v, 0, i, &diag) == ST_OK)
            diag_set(&diag, ST_DATA, "read differently twice");
        found(v, diag.text);
    }
}

/* The shard's own head, table and footer, and its table against the index. */
static enum status check_shard_tables(const struct verify_run *v, int64_t file,
                                      struct diag *diag)
{
    const struct ckpt *ck = v->ck;
    struct shard_file f;
    TRY(shard_open(ck->paths[file], shard_crew_codec(v->crew), &f, diag));
    enum status st = ST_OK;
    int64_t n = 0;
    for (int64_t i = 0; i < ck->info.n_chunks; i++) {
        uint8_t a[SHARD_RECORD_BYTES];
        uint8_t b[SHARD_RECORD_BYTES];
        if (ck->chunks[i].file != file)
            continue;
        shard_record_put(&ck->chunks[i], a);
        if (n < f.table.n)
            shard_record_put(&f.table.data[n], b);
        if (n++ >= f.table.n || memcmp(a, b, sizeof(a)) != 0)
            st = ST_DATA;
    }
    if (st != ST_OK || n != f.table.n)
        st = diag_set(diag, ST_DATA,
                      "damaged checkpoint (%s): its table differs from "
                      "index.zst",
                      ck->paths[file]);
    shard_close(&f);
    return st;
}

static void report_files(struct verify_run *v)
{
    for (int64_t i = 0; i < v->ck->info.n_files; i++) {
        struct diag diag = {0};
        if (!v->ck->files[i].is_shard)
            continue; /* checked when the checkpoint was opened */
        if (check_shard_tables(v, i, &diag) != ST_OK) {
            found(v, diag.text);
        } else if (v->file_bad[i] && !v->deep_found[i]) {
            diag_set(
                    &diag, ST_DATA,
                    "damaged checkpoint (%s): its content differs from its hash, though "
                    "every chunk decodes to the right data",
                    v->ck->paths[i]);
            found(v, diag.text);
        }
    }
}

enum status ckpt_verify(const struct ckpt *ck, bool deep, struct shard_crew *crew,
                        ckpt_damage_fn fn, void *arg, int64_t *n_damaged,
                        struct diag *diag)
{
    struct arena a = {0};
    struct verify_run v = {.ck = ck, .crew = crew, .fn = fn, .arg = arg};
    v.file_bad = arena_array(&a, bool, ck->info.n_files);
    v.file_deep = arena_array(&a, bool, ck->info.n_files);
    v.deep_found = arena_array(&a, bool, ck->info.n_files);
    v.chunk_bad = arena_array(&a, bool, ck->info.n_chunks);
    shard_crew_run(crew, hash_lane, &v);
    for (int64_t i = 0; i < ck->info.n_files; i++)
        v.file_deep[i] = deep || v.file_bad[i];
    shard_crew_run(crew, deep_lane, &v);
    report_chunks(&v);
    report_files(&v);
    arena_release(&a);
    *n_damaged = v.n_damaged;
    if (v.n_damaged == 0)
        return ST_OK;
    return diag_set(diag, ST_DATA, "damaged checkpoint (%s): %lld finding%s",
                    ck->info.path, (long long)v.n_damaged, v.n_damaged == 1 ? "" : "s");
}
