#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/str.h"
#include "core/vec.h"
#include "io/ckpt_format.h"
#include "io/ckpt_read.h"
#include "io/file.h"
#include "io/json.h"

static enum status damaged(const char *path, const char *what, struct diag *diag)
{
    return diag_set(diag, ST_DATA, "damaged checkpoint (%s): %s", path, what);
}

/* COMMIT and the manifest's text. */

static enum status newer_version(const char *path, uint32_t major, struct diag *diag)
{
    diag_set(diag, ST_DATA,
             "checkpoint is of a newer format (%s): got version %u, wanted at most %d",
             path, major, CKPT_VERSION_MAJOR);
    diag_hint(diag, "read it with the angel that wrote it; manifest.json names it");
    return ST_DATA;
}

static enum status read_commit(struct ckpt *ck, const char *path,
                               struct ckpt_commit *commit, struct diag *diag)
{
    if (!file_is_folder(path))
        return diag_set(diag, ST_NOT_FOUND, "no checkpoint (%s): wanted a directory",
                        path);
    const char *name = ckpt_join(&ck->arena, path, "COMMIT");
    if (!file_exists(name))
        return diag_set(diag, ST_DATA, "unfinished checkpoint (%s): it has no COMMIT",
                        path);
    struct str text = {0};
    enum status st = file_read_all(name, CKPT_COMMIT_BYTES, &text, diag);
    if (st == ST_OK && (text.n != CKPT_COMMIT_BYTES ||
                        !ckpt_commit_get((const uint8_t *)text.s, commit)))
        st = damaged(name, "no valid record of 64 bytes", diag);
    str_free(&text);
    TRY(st);
    if (commit->version_major > CKPT_VERSION_MAJOR)
        return newer_version(path, commit->version_major, diag);
    return ST_OK;
}

/* A file of the checkpoint, whole, with its hash checked; it must be there. */
static enum status read_checked(const char *path, int64_t bytes, const uint64_t hash[2],
                                struct str *out, struct diag *diag)
{
    if (!file_exists(path))
        return damaged(path, "the file is missing", diag);
    int64_t size = 0;
    TRY(file_size(path, &size, diag));
    if (size != bytes)
        return diag_set(diag, ST_DATA,
                        "damaged checkpoint (%s): got %lld bytes, wanted %lld", path,
                        (long long)size, (long long)bytes);
    TRY(file_read_all(path, bytes, out, diag));
    uint64_t got[2];
    hash128(str_get(out), out->n, got);
    if ((int64_t)out->n != bytes || got[0] != hash[0] || got[1] != hash[1])
        return damaged(path, "its content differs from its hash", diag);
    return ST_OK;
}

/* The manifest. */

static enum status parse_hash(const char *text, const char *path, uint64_t out[2],
                              struct diag *diag)
{
    if (strlen(text) != CKPT_HASH_TEXT - 1 ||
        strspn(text, "0123456789abcdef") != CKPT_HASH_TEXT - 1)
        return damaged(path, "a hash is no 32 hexadecimal digits", diag);
    char high[17];
    memcpy(high, text, 16);
    high[16] = '\0';
    out[1] = strtoull(high, NULL, 16);
    out[0] = strtoull(text + 16, NULL, 16);
    return ST_OK;
}

static enum status parse_file(const struct json *j, const char *path,
                              struct ckpt_file *out, struct diag *diag)
{
    const char *hash;
    TRY(json_get_string(j, "name", path, &out->name, diag));
    TRY(json_get_i64(j, "bytes", path, &out->bytes, diag));
    TRY(json_get_string(j, "xxh3_128", path, &hash, diag));
    TRY(parse_hash(hash, path, out->hash, diag));
    out->is_shard = json_find(j, "chunks") != NULL;
    if (out->name[0] == '\0' || out->name[0] == '.' || strchr(out->name, '/') ||
        out->bytes < 0)
        return damaged(path, "a file's name or size cannot be", diag);
    return ST_OK;
}

static enum status parse_files(struct ckpt *ck, const struct json *m, const char *path,
                               struct diag *diag)
{
    const struct json *list;
    TRY(json_get_array(m, "files", path, &list, diag));
    ck->info.n_files = list->n_items;
    ck->files = arena_array(&ck->arena, struct ckpt_file, list->n_items);
    ck->fds = arena_array(&ck->arena, int, list->n_items);
    ck->paths = arena_array(&ck->arena, const char *, list->n_items);
    ck->info.files = ck->files;
    for (int64_t i = 0; i < list->n_items; i++)
        ck->fds[i] = -1;
    for (int64_t i = 0; i < list->n_items; i++) {
        TRY(parse_file(&list->items[i], path, &ck->files[i], diag));
        ck->paths[i] = ckpt_join(&ck->arena, ck->info.path, ck->files[i].name);
        if (!add_i64(ck->info.file_bytes, ck->files[i].bytes, &ck->info.file_bytes))
            return damaged(path, "the sum of the files' sizes cannot be", diag);
    }
    return ST_OK;
}

static enum status parse_shape(const struct json *j, const char *path,
                               struct ckpt_tensor *t, struct diag *diag)
{
    const struct json *shape;
    TRY(json_get_array(j, "shape", path, &shape, diag));
    if (shape->n_items > BOX_MAX_NDIM)
        return damaged(path, "a tensor has more than four axes", diag);
    t->ndim = (int)shape->n_items;
    int64_t bytes = (int64_t)dtype_bytes(t->dtype);
    for (int a = 0; a < t->ndim; a++) {
        const struct json *x = &shape->items[a];
        if (x->type != JSON_NUMBER || !x->is_i64 || x->i64 < 0 ||
            x->i64 >= UINT32_MAX || !mul_i64(bytes, x->i64, &bytes))
            return damaged(path, "a tensor's shape cannot be", diag);
        t->shape[a] = x->i64;
    }
    return ST_OK;
}

static enum status parse_tensor(const struct json *j, int64_t id, const char *path,
                                struct ckpt_tensor *t, struct diag *diag)
{
    const char *kind;
    const char *dtype;
    int64_t got_id = 0;
    int64_t axis = -1;
    TRY(json_get_i64(j, "id", path, &got_id, diag));
    TRY(json_get_string(j, "name", path, &t->name, diag));
    TRY(json_get_string(j, "kind", path, &kind, diag));
    TRY(json_get_string(j, "dtype", path, &dtype, diag));
    if (got_id != id)
        return damaged(path, "tensors are not in the order of their ids", diag);
    if (!ckpt_kind_find(kind, &t->kind) || !ckpt_dtype_find(dtype, &t->dtype))
        return diag_set(diag, ST_DATA,
                        "unknown kind or dtype of tensor '%s' (%s): got %s, %s",
                        t->name, path, kind, dtype);
    TRY(parse_shape(j, path, t, diag));
    if (json_find(j, "split_axis"))
        TRY(json_get_i64(j, "split_axis", path, &axis, diag));
    t->split_axis = axis >= 0 && axis < t->ndim ? (int)axis : -1;
    return ST_OK;
}

static enum status parse_tensors(struct ckpt *ck, const struct json *m,
                                 const char *path, struct diag *diag)
{
    const struct json *list;
    TRY(json_get_array(m, "tensors", path, &list, diag));
    ck->info.n_tensors = list->n_items;
    ck->tensors = arena_array(&ck->arena, struct ckpt_tensor, list->n_items);
    for (int64_t i = 0; i < list->n_items; i++)
        TRY(parse_tensor(&list->items[i], i, path, &ck->tensors[i], diag));
    return ST_OK;
}

static enum status parse_version(const struct json *m, const char *path,
                                 struct diag *diag)
{
    const char *format;
    const struct json *version;
    TRY(json_get_string(m, "format", path, &format, diag));
    TRY(json_get_array(m, "version", path, &version, diag));
    if (strcmp(format, "azc") != 0 || version->n_items < 1 || !version->items[0].is_i64)
        return damaged(path, "it describes no checkpoint of angel", diag);
    if (version->items[0].i64 > CKPT_VERSION_MAJOR)
        return newer_version(path, (uint32_t)version->items[0].i64, diag);
    return ST_OK;
}

static enum status parse_manifest(struct ckpt *ck, const struct str *text,
                                  const char *path, struct diag *diag)
{
    struct json *m;
    const char *digest;
    TRY(json_parse(&ck->arena, str_get(text), text->n, path, JSON_STRICT, &m, diag));
    TRY(parse_version(m, path, diag));
    TRY(json_get_i64(m, "step", path, &ck->info.step, diag));
    TRY(json_get_string(m, "uuid", path, &ck->info.uuid, diag));
    TRY(json_get_string(m, "created", path, &ck->info.created, diag));
    TRY(json_get_string(m, "tool", path, &ck->info.tool, diag));
    TRY(json_get_i64(m, "raw_bytes", path, &ck->info.raw_bytes, diag));
    TRY(json_get_i64(m, "chunks", path, &ck->info.n_chunks, diag));
    TRY(json_get_string(m, "tensor_digest", path, &digest, diag));
    ck->info.digest = strtoull(digest, NULL, 16);
    TRY(parse_files(ck, m, path, diag));
    return parse_tensors(ck, m, path, diag);
}

static enum status read_manifest(struct ckpt *ck, const char *path, struct diag *diag)
{
    struct ckpt_commit commit = {0};
    TRY(read_commit(ck, path, &commit, diag));
    const char *name = ckpt_join(&ck->arena, path, "manifest.json");
    if (commit.manifest_bytes > CKPT_MANIFEST_MAX)
        return damaged(name, "it would be larger than 1 GiB", diag);
    struct str text = {0};
    enum status st = read_checked(name, commit.manifest_bytes, commit.manifest_hash,
                                  &text, diag);
    if (st == ST_OK)
        st = parse_manifest(ck, &text, name, diag);
    if (st == ST_OK && ck->info.step != commit.step)
        st = damaged(name, "its step differs from COMMIT's", diag);
    str_free(&text);
    return st;
}

/* The files and the index. */

static enum status open_shard(struct ckpt *ck, int64_t i, struct diag *diag)
{
    const char *path = ck->paths[i];
    int64_t size = 0;
    if (!file_exists(path))
        return damaged(path, "the file is missing", diag);
    TRY(file_open_read(path, &ck->fds[i], diag));
    TRY(file_size(path, &size, diag));
    if (size != ck->files[i].bytes)
        return diag_set(diag, ST_DATA,
                        "damaged checkpoint (%s): got %lld bytes, wanted %lld", path,
                        (long long)size, (long long)ck->files[i].bytes);
    return ST_OK;
}

static enum status parse_index(struct ckpt *ck, const char *path, const uint8_t *raw,
                               struct diag *diag)
{
    uint64_t digest = 0;
    ck->chunks = arena_array(&ck->arena, struct shard_chunk, ck->info.n_chunks);
    for (int64_t i = 0; i < ck->info.n_chunks; i++) {
        struct shard_chunk *k = &ck->chunks[i];
        enum status st = shard_record_get(raw + i * SHARD_RECORD_BYTES, k, diag);
        if (st != ST_OK) {
            diag_context(diag, "%s, record %lld", path, (long long)i);
            return st;
        }
        digest += k->hash;
        int64_t room = k->file < ck->info.n_files ? ck->files[k->file].bytes : 0;
        if (k->file >= ck->info.n_files || !ck->files[k->file].is_shard ||
            k->offset > room - shard_chunk_bytes(k))
            return damaged(path, "a chunk lies outside its file", diag);
    }
    if (digest != ck->info.digest)
        return damaged(path,
                       "the sum of the chunks' hashes differs from the manifest's",
                       diag);
    return ST_OK;
}

static enum status decode_index(struct ckpt *ck, const char *path,
                                const struct str *text, struct diag *diag)
{
    if (ck->info.n_chunks < 0 || ck->info.n_chunks > UINT32_MAX / SHARD_RECORD_BYTES ||
        frame_content_bytes(str_get(text), text->n) !=
                ck->info.n_chunks * SHARD_RECORD_BYTES)
        return damaged(path, "the number of chunks cannot be", diag);
    size_t bytes = (size_t)ck->info.n_chunks * SHARD_RECORD_BYTES;
    uint8_t *raw = mem_realloc(NULL, bytes + 1);
    struct codec *codec = codec_create();
    enum status st = frame_decode(codec, str_get(text), text->n, raw, bytes, diag);
    if (st == ST_OK)
        st = parse_index(ck, path, raw, diag);
    else
        diag_context(diag, "damaged checkpoint (%s)", path);
    codec_destroy(codec);
    mem_free(raw);
    return st;
}

static enum status open_file(struct ckpt *ck, int64_t i, struct diag *diag)
{
    const struct ckpt_file *f = &ck->files[i];
    if (f->is_shard)
        return open_shard(ck, i, diag);
    struct str text = {0};
    enum status st = read_checked(ck->paths[i], f->bytes, f->hash, &text, diag);
    if (st == ST_OK && strcmp(f->name, "index.zst") == 0)
        st = decode_index(ck, ck->paths[i], &text, diag);
    else if (st == ST_OK && strcmp(f->name, "state.json") == 0)
        ck->state = arena_strndup(&ck->arena, str_get(&text), text.n);
    str_free(&text);
    return st;
}

/* The chunks from *at on must be the tiles of one grid over the tensor, in order: then
 * they cover it exactly once. */
static bool take_chunks(struct ckpt *ck, int64_t id, int64_t *at)
{
    const struct ckpt_tensor *t = &ck->tensors[id];
    struct box whole = box_whole(t->ndim, t->shape);
    ck->first_chunk[id] = *at;
    if (box_elems(&whole) == 0)
        return true;
    if (*at >= ck->info.n_chunks || ck->chunks[*at].box.ndim != t->ndim)
        return false;
    for (int a = 0; a < t->ndim; a++)
        if (ck->chunks[*at].box.ext[a] > t->shape[a])
            return false;
    struct box_grid grid = box_grid_tiles(t->ndim, t->shape, ck->chunks[*at].box.ext);
    if (grid.n > ck->info.n_chunks - *at)
        return false;
    for (int64_t i = 0; i < grid.n; i++) {
        const struct shard_chunk *k = &ck->chunks[*at + i];
        struct box tile = box_grid_tile(&grid, i);
        if (k->tensor != id || !box_equal(&tile, &k->box) ||
            k->raw_bytes != box_elems(&tile) * (int64_t)dtype_bytes(t->dtype))
            return false;
    }
    *at += grid.n;
    return true;
}

static enum status check_coverage(struct ckpt *ck, struct diag *diag)
{
    int64_t at = 0;
    ck->first_chunk = arena_array(&ck->arena, int64_t, ck->info.n_tensors + 1);
    for (int64_t id = 0; id < ck->info.n_tensors; id++)
        if (!take_chunks(ck, id, &at))
            return diag_set(
                    diag, ST_DATA,
                    "damaged checkpoint (%s): the chunks of tensor '%s' (%s) do "
                    "not cover it once",
                    ck->info.path, ck->tensors[id].name,
                    ckpt_kind_name(ck->tensors[id].kind));
    ck->first_chunk[ck->info.n_tensors] = at;
    if (at != ck->info.n_chunks)
        return damaged(ck->info.path, "chunks that belong to no tensor", diag);
    return ST_OK;
}

static int compare_names(const void *a, const void *b, void *arg)
{
    const struct ckpt_tensor *t = arg;
    const struct ckpt_tensor *x = &t[*(const int64_t *)a];
    const struct ckpt_tensor *y = &t[*(const int64_t *)b];
    int c = strcmp(x->name, y->name);
    return c != 0 ? c : (int)x->kind - (int)y->kind;
}

static enum status sort_names(struct ckpt *ck, struct diag *diag)
{
    int64_t n = ck->info.n_tensors;
    ck->by_name = arena_array(&ck->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++)
        ck->by_name[i] = i;
    qsort_r(ck->by_name, (size_t)n, sizeof(*ck->by_name), compare_names, ck->tensors);
    for (int64_t i = 1; i < n; i++)
        if (compare_names(&ck->by_name[i - 1], &ck->by_name[i], ck->tensors) == 0)
            return damaged(ck->info.path, "a tensor appears twice", diag);
    return ST_OK;
}

enum status ckpt_open(const char *path, struct ckpt **out, struct diag *diag)
{
    struct ckpt *ck = mem_alloc(sizeof(*ck));
    size_t n_path = strlen(path);
    while (n_path > 1 && path[n_path - 1] == '/')
        n_path--;
    ck->info.path = path = arena_strndup(&ck->arena, path, n_path);
    enum status st;
    TRY_GOTO(read_manifest(ck, path, diag), fail);
    for (int64_t i = 0; i < ck->info.n_files; i++)
        TRY_GOTO(open_file(ck, i, diag), fail);
    if (!ck->state || !ck->chunks) {
        st = damaged(path, "the manifest lists no index.zst or no state.json", diag);
        goto fail;
    }
    TRY_GOTO(check_coverage(ck, diag), fail);
    TRY_GOTO(sort_names(ck, diag), fail);
    *out = ck;
    return ST_OK;
fail:
    ckpt_close(ck);
    return st;
}

void ckpt_close(struct ckpt *ck)
{
    if (!ck)
        return;
    for (int64_t i = 0; ck->fds && i < ck->info.n_files; i++)
        if (ck->fds[i] >= 0)
            file_close_read(ck->fds[i]);
    arena_release(&ck->arena);
    mem_free(ck);
}

/* Looking things up. */

const struct ckpt_info *ckpt_get_info(const struct ckpt *ck)
{
    return &ck->info;
}

const char *ckpt_state_json(const struct ckpt *ck)
{
    return ck->state;
}

const struct ckpt_tensor *ckpt_tensor_info(const struct ckpt *ck, int64_t i)
{
    ASSERT(i >= 0 && i < ck->info.n_tensors);
    return &ck->tensors[i];
}

const struct shard_chunk *ckpt_tensor_chunks(const struct ckpt *ck, int64_t i,
                                             int64_t *n)
{
    ASSERT(i >= 0 && i < ck->info.n_tensors);
    *n = ck->first_chunk[i + 1] - ck->first_chunk[i];
    return ck->chunks + ck->first_chunk[i];
}

int64_t ckpt_find(const struct ckpt *ck, enum ckpt_kind kind, const char *name)
{
    int64_t low = 0;
    int64_t high = ck->info.n_tensors;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        const struct ckpt_tensor *t = &ck->tensors[ck->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0)
            c = (int)kind - (int)t->kind;
        if (c == 0)
            return ck->by_name[mid];
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

static void shape_text(const struct ckpt_tensor *t, struct str *out)
{
    str_printf(out, "%s[", dtype_name(t->dtype));
    for (int a = 0; a < t->ndim; a++)
        str_printf(out, "%s%lld", a ? "," : "", (long long)t->shape[a]);
    str_addc(out, ']');
}

static enum status compare_one(const struct ckpt *ck, const struct ckpt_tensor *have,
                               const struct ckpt_tensor *want, struct diag *diag)
{
    bool same = have->dtype == want->dtype && have->ndim == want->ndim;
    for (int a = 0; same && a < have->ndim; a++)
        same = have->shape[a] == want->shape[a];
    if (same)
        return ST_OK;
    struct str got = {0};
    struct str wanted = {0};
    shape_text(have, &got);
    shape_text(want, &wanted);
    diag_set(diag, ST_DATA,
             "checkpoint is of another model (%s): tensor '%s' (%s): got %s, wanted %s",
             ck->info.path, want->name, ckpt_kind_name(want->kind), str_get(&got),
             str_get(&wanted));
    str_free(&got);
    str_free(&wanted);
    return ST_DATA;
}

enum status ckpt_match(const struct ckpt *ck, const struct ckpt_tensor *want,
                       int64_t n_want, struct diag *diag)
{
    bool kinds[CKPT_KIND_COUNT] = {false};
    bool *used = mem_alloc((size_t)ck->info.n_tensors + 1);
    enum status st = ST_OK;
    for (int64_t i = 0; i < n_want && st == ST_OK; i++) {
        kinds[want[i].kind] = true;
        int64_t id = ckpt_find(ck, want[i].kind, want[i].name);
        if (id < 0) {
            st = diag_set(diag, ST_DATA, "checkpoint lacks tensor '%s' (%s) (%s)",
                          want[i].name, ckpt_kind_name(want[i].kind), ck->info.path);
            break;
        }
        used[id] = true;
        st = compare_one(ck, &ck->tensors[id], &want[i], diag);
    }
    for (int64_t id = 0; id < ck->info.n_tensors && st == ST_OK; id++)
        if (kinds[ck->tensors[id].kind] && !used[id])
            st = diag_set(
                    diag, ST_DATA,
                    "checkpoint has a tensor that the model lacks, '%s' (%s) (%s)",
                    ck->tensors[id].name, ckpt_kind_name(ck->tensors[id].kind),
                    ck->info.path);
    mem_free(used);
    return st;
}

/* Reading boxes. */

struct job {
    const struct ckpt_part *part;
    const struct shard_chunk *chunk;
};

struct read_run {
    const struct ckpt *ck;
    struct shard_crew *crew;
    VEC(struct job) jobs;
    int64_t *failed; /* [threads]: the first job that failed, or -1 */
    enum status *st;
    struct diag *diags;
};

enum status ckpt_chunk_error(const struct ckpt *ck, const struct shard_chunk *k,
                             enum status st, struct diag *diag)
{
    char box[128];
    const struct ckpt_tensor *t = &ck->tensors[k->tensor];
    diag_context(diag, "tensor '%s' (%s) %s", t->name, ckpt_kind_name(t->kind),
                 box_text(&k->box, box, sizeof(box)));
    return st;
}

static enum status read_job(struct read_run *r, int lane, const struct job *job,
                            struct diag *diag)
{
    const struct shard_chunk *k = job->chunk;
    const struct ckpt_part *part = job->part;
    enum dtype dtype = r->ck->tensors[k->tensor].dtype;
    size_t elem = dtype_bytes(dtype);
    int fd = r->ck->fds[k->file];
    const char *path = r->ck->paths[k->file];
    struct box common;
    if (!box_intersect(&k->box, &part->box, &common))
        return ST_OK;
    if (box_equal(&common, &k->box) && box_is_run(&part->box, &common))
        return shard_read_chunk(r->crew, lane, fd, path, k, dtype,
                                (char *)part->dst +
                                        (size_t)box_index(&part->box, &common) * elem,
                                diag);
    const void *raw;
    TRY(shard_read_chunk_scratch(r->crew, lane, fd, path, k, dtype, &raw, diag));
    box_copy(&common, elem, raw, &k->box, part->dst, &part->box);
    return ST_OK;
}

static void read_lane(void *arg, int thread, int n_threads)
{
    struct read_run *r = arg;
    for (int64_t i = thread; i < r->jobs.n; i += n_threads) {
        const struct job *job = &r->jobs.data[i];
        enum status st = read_job(r, thread, job, &r->diags[thread]);
        if (st == ST_OK)
            continue;
        r->st[thread] = ckpt_chunk_error(r->ck, job->chunk, st, &r->diags[thread]);
        r->failed[thread] = i;
        return;
    }
}

static void add_jobs(struct read_run *r, const struct ckpt_part *part)
{
    int64_t n;
    const struct shard_chunk *k = ckpt_tensor_chunks(r->ck, part->tensor, &n);
    for (int64_t i = 0; i < n; i++) {
        struct box common;
        struct job job = {part, &k[i]};
        if (box_intersect(&k[i].box, &part->box, &common))
            vec_push(&r->jobs, job);
    }
}

/* The error of the earliest job, whatever thread met it. */
static enum status first_error(const struct read_run *r, int n, struct diag *diag)
{
    int first = -1;
    for (int i = 0; i < n; i++)
        if (r->failed[i] >= 0 && (first < 0 || r->failed[i] < r->failed[first]))
            first = i;
    if (first < 0)
        return ST_OK;
    if (diag)
        *diag = r->diags[first];
    return r->st[first];
}

enum status ckpt_read(const struct ckpt *ck, const struct ckpt_part *parts,
                      int64_t n_parts, struct shard_crew *crew, struct diag *diag)
{
    struct arena a = {0};
    int n = shard_crew_threads(crew);
    struct read_run r = {.ck = ck, .crew = crew};
    r.failed = arena_array(&a, int64_t, n);
    r.st = arena_array(&a, enum status, n);
    r.diags = arena_array(&a, struct diag, n);
    for (int i = 0; i < n; i++)
        r.failed[i] = -1;
    for (int64_t i = 0; i < n_parts; i++)
        add_jobs(&r, &parts[i]);
    shard_crew_run(crew, read_lane, &r);
    enum status st = first_error(&r, n, diag);
    vec_free(&r.jobs);
    arena_release(&a);
    return st;
}

enum status ckpt_read_tensor(const struct ckpt *ck, enum ckpt_kind kind,
                             const char *name, struct shard_crew *crew, void *dst,
                             struct diag *diag)
{
    int64_t id = ckpt_find(ck, kind, name);
    if (id < 0)
        return diag_set(diag, ST_DATA, "checkpoint lacks tensor '%s' (%s) (%s)", name,
                        ckpt_kind_name(kind), ck->info.path);
    const struct ckpt_tensor *t = &ck->tensors[id];
    struct ckpt_part part = {id, box_whole(t->ndim, t->shape), dst};
    return ckpt_read(ck, &part, 1, crew, diag);
}
