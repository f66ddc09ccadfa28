#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/hash.h"
#include "core/log.h"
#include "core/str.h"
#include "core/vec.h"
#include "io/ckpt_save.h"
#include "io/file.h"
#include "io/json.h"

/* Checks. */

static int compare_tensors(const void *a, const void *b)
{
    const struct ckpt_tensor *x = *(const struct ckpt_tensor *const *)a;
    const struct ckpt_tensor *y = *(const struct ckpt_tensor *const *)b;
    int c = strcmp(x->name, y->name);
    return c != 0 ? c : (int)x->kind - (int)y->kind;
}

static enum status check_unique(struct saver *s, struct diag *diag)
{
    int64_t n = s->save->n_tensors;
    const struct ckpt_tensor **t =
            arena_array(&s->arena, const struct ckpt_tensor *, n);
    for (int64_t i = 0; i < n; i++)
        t[i] = &s->save->tensors[i];
    qsort(t, (size_t)n, sizeof(*t), compare_tensors);
    for (int64_t i = 1; i < n; i++)
        if (compare_tensors(&t[i - 1], &t[i]) == 0)
            return diag_set(diag, ST_CONFIG, "tensor given twice (%s, %s)", t[i]->name,
                            ckpt_kind_name(t[i]->kind));
    return ST_OK;
}

static enum status check_tensor(struct saver *s, const struct ckpt_tensor *t,
                                struct diag *diag)
{
    ASSERT(t->ndim >= 0 && t->ndim <= BOX_MAX_NDIM);
    int64_t bytes = (int64_t)dtype_bytes(t->dtype);
    for (int a = 0; a < t->ndim; a++)
        if (t->shape[a] < 0 || t->shape[a] >= UINT32_MAX ||
            !mul_i64(bytes, t->shape[a], &bytes))
            return diag_set(diag, ST_CONFIG,
                            "tensor does not fit a checkpoint (%s): got extent %lld of "
                            "axis %d, wanted below 2^32",
                            t->name, (long long)t->shape[a], a);
    if (!add_i64(s->raw_bytes, bytes, &s->raw_bytes))
        return diag_set(diag, ST_CONFIG, "tensors do not fit a checkpoint (%s)",
                        t->name);
    return ST_OK;
}

enum status saver_check(struct saver *s, struct diag *diag)
{
    const struct ckpt_save *save = s->save;
    if (save->step < 0 || save->step > CKPT_STEP_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "step does not fit a checkpoint's name: got %lld, wanted 0..%lld",
                (long long)save->step, (long long)CKPT_STEP_MAX);
    for (int64_t i = 0; i < save->n_tensors; i++)
        TRY(check_tensor(s, &save->tensors[i], diag));
    TRY(check_unique(s, diag));
    struct json *state;
    return json_parse(&s->arena, save->state_json, strlen(save->state_json),
                      "state.json", JSON_STRICT, &state, diag);
}

/* Planning. */

void saver_make_uuid(struct saver *s)
{
    ssize_t n = getrandom(s->uuid, sizeof(s->uuid), 0);
    ASSERT(n == (ssize_t)sizeof(s->uuid)); /* up to 256 bytes never come short */
}

void saver_make_paths(struct saver *s)
{
    for (int i = 0; i < SHARD_UUID_BYTES; i++)
        snprintf(s->uuid_text + 2 * i, 3, "%02x", s->uuid[i]);
    char step[CKPT_NAME_BYTES];
    struct str tmp = {0};
    ckpt_step_name(s->save->step, step);
    s->final = ckpt_join(&s->arena, s->save->dir, step);
    str_printf(&tmp, CKPT_TMP_PREFIX "%s-%s", step, s->uuid_text);
    s->tmp = ckpt_join(&s->arena, s->save->dir, str_get(&tmp));
    str_free(&tmp);
}

int64_t saver_tensor_bytes(const struct ckpt_tensor *t)
{
    struct box whole = box_whole(t->ndim, t->shape);
    return box_elems(&whole) * (int64_t)dtype_bytes(t->dtype);
}

/* Appends the tensors of one group to the order, and shards that hold them. */
static void plan_group(struct saver *s, bool model, int64_t *n_ordered)
{
    const struct ckpt_save *save = s->save;
    int64_t limit =
            save->shard_raw_bytes > 0 ? save->shard_raw_bytes : CKPT_DEFAULT_SHARD;
    struct out_shard open = {*n_ordered, *n_ordered};
    int64_t held = 0;
    for (int64_t i = 0; i < save->n_tensors; i++) {
        const struct ckpt_tensor *t = &save->tensors[i];
        if (ckpt_kind_is_model(t->kind) != model)
            continue;
        if (open.end > open.first && held + saver_tensor_bytes(t) > limit) {
            vec_push(&s->shards, open);
            open.first = open.end;
            held = 0;
        }
        s->order[open.end++] = i;
        held += saver_tensor_bytes(t);
    }
    if (open.end > open.first)
        vec_push(&s->shards, open);
    *n_ordered = open.end;
}

void saver_order(struct saver *s)
{
    int64_t n = 0;
    s->order = arena_array(&s->arena, int64_t, s->save->n_tensors);
    plan_group(s, true, &n);
    s->n_model_shards = s->shards.n;
    plan_group(s, false, &n);
    ASSERT(n == s->save->n_tensors);
}

/* Writing. */

static const char *shard_name(struct saver *s, uint32_t shard)
{
    char name[CKPT_NAME_BYTES];
    bool model = shard < s->n_model_shards;
    uint32_t first = model ? 0 : s->n_model_shards;
    uint32_t n = model ? s->n_model_shards : s->shards.n - s->n_model_shards;
    snprintf(name, sizeof(name), "%s-%05u-of-%05u.azs", model ? "model" : "optim",
             shard - first, n);
    return arena_strdup(&s->arena, name);
}

static enum status add_tensors(struct saver *s, struct shard_writer *w,
                               const struct out_shard *which, struct diag *diag)
{
    for (int64_t id = which->first; id < which->end; id++) {
        const struct ckpt_tensor *t = &s->save->tensors[s->order[id]];
        struct shard_tensor one = {
                .id = (uint32_t)id,
                .dtype = t->dtype,
                .non_negative = ckpt_kind_is_non_negative(t->kind),
                .split_axis = t->split_axis,
                .ndim = t->ndim,
                .data = t->data,
        };
        memcpy(one.shape, t->shape, sizeof(one.shape));
        TRY(shard_add(w, &one, diag));
    }
    return ST_OK;
}

static enum status write_shard(struct saver *s, uint32_t shard, struct diag *diag)
{
    struct out_file f = {.name = shard_name(s, shard), .is_shard = true};
    const char *path = ckpt_join(&s->arena, s->tmp, f.name);
    struct shard_head head = {.shard = shard, .n_shards = s->shards.n};
    memcpy(head.uuid, s->uuid, sizeof(head.uuid));
    struct shard_writer *w = NULL;
    uint32_t first = s->table.n;
    TRY(shard_create(s->save->durable, path, &head, s->crew, &s->table, s->save->raw,
                     &w, diag));
    enum status st = add_tensors(s, w, &s->shards.data[shard], diag);
    if (st != ST_OK) {
        shard_abandon(w);
        return st;
    }
    TRY(shard_finish(w, &f.bytes, f.hash, diag));
    f.n_chunks = s->table.n - first;
    vec_push(&s->files, f);
    return ST_OK;
}

static enum status write_small(struct saver *s, const char *name, const void *data,
                               size_t bytes, struct diag *diag)
{
    struct out_file f = {.name = name, .bytes = (int64_t)bytes};
    hash128(data, bytes, f.hash);
    vec_push(&s->files, f);
    return durable_write_file(s->save->durable, ckpt_join(&s->arena, s->tmp, name),
                              data, bytes, diag);
}

static enum status write_index(struct saver *s, struct diag *diag)
{
    size_t raw_bytes = (size_t)s->table.n * SHARD_RECORD_BYTES;
    uint8_t *raw = mem_alloc(raw_bytes + 1);
    uint8_t *frame = mem_alloc(frame_bound(raw_bytes));
    for (uint32_t i = 0; i < s->table.n; i++)
        shard_record_put(&s->table.data[i], raw + (size_t)i * SHARD_RECORD_BYTES);
    size_t n = frame_encode(shard_crew_codec(s->crew), raw, raw_bytes, frame);
    enum status st = write_small(s, "index.zst", frame, n, diag);
    mem_free(raw);
    mem_free(frame);
    return st;
}

static uint64_t digest_of(const struct shard_table *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->n; i++)
        sum += t->data[i].hash;
    return sum;
}

static void key_string(struct json_writer *w, const char *key, const char *value)
{
    json_key(w, key);
    json_string(w, value);
}

static void key_i64(struct json_writer *w, const char *key, int64_t value)
{
    json_key(w, key);
    json_i64(w, value);
}

static void manifest_tensors(struct json_writer *w, const struct saver *s)
{
    json_key(w, "tensors");
    json_begin_array(w);
    for (int64_t id = 0; id < s->save->n_tensors; id++) {
        const struct ckpt_tensor *t = &s->save->tensors[s->order[id]];
        json_begin_object(w);
        key_i64(w, "id", id);
        key_string(w, "name", t->name);
        key_string(w, "kind", ckpt_kind_name(t->kind));
        key_string(w, "dtype", dtype_name(t->dtype));
        json_key(w, "shape");
        json_begin_array(w);
        for (int a = 0; a < t->ndim; a++)
            json_i64(w, t->shape[a]);
        json_end_array(w);
        key_i64(w, "split_axis", t->split_axis);
        json_end_object(w);
    }
    json_end_array(w);
}

static void manifest_files(struct json_writer *w, const struct saver *s)
{
    char hash[CKPT_HASH_TEXT];
    json_key(w, "files");
    json_begin_array(w);
    for (uint32_t i = 0; i < s->files.n; i++) {
        const struct out_file *f = &s->files.data[i];
        json_begin_object(w);
        key_string(w, "name", f->name);
        key_i64(w, "bytes", f->bytes);
        key_string(w, "xxh3_128", ckpt_hash_text(f->hash, hash));
        if (f->is_shard)
            key_i64(w, "chunks", f->n_chunks);
        json_end_object(w);
    }
    json_end_array(w);
}

static void manifest_text(const struct saver *s, struct str *out)
{
    char created[32];
    char digest[17];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(digest, sizeof(digest), "%016llx",
             (unsigned long long)digest_of(&s->table));

    struct json_writer w = {.out = out, .indent = 1};
    json_begin_object(&w);
    key_string(&w, "format", "azc");
    json_key(&w, "version");
    json_begin_array(&w);
    json_i64(&w, CKPT_VERSION_MAJOR);
    json_i64(&w, CKPT_VERSION_MINOR);
    json_end_array(&w);
    key_i64(&w, "step", s->save->step);
    key_string(&w, "uuid", s->uuid_text);
    key_string(&w, "created", created);
    key_string(&w, "tool", s->save->tool ? s->save->tool : "");
    key_i64(&w, "raw_bytes", s->raw_bytes);
    key_i64(&w, "chunks", s->table.n);
    key_string(&w, "tensor_digest", digest);
    manifest_files(&w, s);
    manifest_tensors(&w, s);
    json_end_object(&w);
    str_addc(out, '\n');
}

static enum status write_commit(struct saver *s, const struct str *manifest,
                                struct diag *diag)
{
    struct ckpt_commit c = {.version_major = CKPT_VERSION_MAJOR,
                            .version_minor = CKPT_VERSION_MINOR,
                            .manifest_bytes = (int64_t)manifest->n,
                            .step = s->save->step};
    hash128(manifest->s, manifest->n, c.manifest_hash);
    uint8_t record[CKPT_COMMIT_BYTES];
    ckpt_commit_put(&c, record);
    return durable_write_file(s->save->durable, ckpt_join(&s->arena, s->tmp, "COMMIT"),
                              record, sizeof(record), diag);
}

/* COMMIT comes when all the rest is on the device, names included. */
static enum status write_manifest_and_commit(struct saver *s, struct diag *diag)
{
    struct str text = {0};
    struct durable *d = s->save->durable;
    manifest_text(s, &text);
    enum status st;
    TRY_GOTO(durable_write_file(d, ckpt_join(&s->arena, s->tmp, "manifest.json"),
                                text.s, text.n, diag),
             out);
    TRY_GOTO(durable_sync_dir(d, s->tmp, diag), out);
    TRY_GOTO(write_commit(s, &text, diag), out);
    TRY_GOTO(durable_sync_dir(d, s->tmp, diag), out);
out:
    str_free(&text);
    return st;
}

enum status saver_begin(struct saver *s, struct diag *diag)
{
    TRY(durable_mkdir(s->save->durable, s->save->dir, diag));
    return durable_mkdir(s->save->durable, s->tmp, diag);
}

static enum status write_shards(struct saver *s, struct diag *diag)
{
    for (uint32_t i = 0; i < s->shards.n; i++)
        TRY(write_shard(s, i, diag));
    return ST_OK;
}

enum status saver_publish(struct saver *s, struct diag *diag)
{
    TRY(write_index(s, diag));
    TRY(write_small(s, "state.json", s->save->state_json, strlen(s->save->state_json),
                    diag));
    TRY(write_manifest_and_commit(s, diag));
    char aside[CKPT_NAME_BYTES];
    snprintf(aside, sizeof(aside), CKPT_TRASH_PREFIX "%s", s->uuid_text);
    return durable_replace_dir(s->save->durable, s->tmp, s->final,
                               ckpt_join(&s->arena, s->save->dir, aside), diag);
}

void saver_discard(struct saver *s)
{
    struct diag unused = {0};
    if (durable_remove_tree(s->save->durable, s->tmp, &unused) != ST_OK)
        log_warn("cannot remove the unfinished checkpoint: %s", unused.text);
}

static enum status write_latest(struct saver *s, struct diag *diag)
{
    struct durable *d = s->save->durable;
    char line[CKPT_NAME_BYTES + 1];
    char step[CKPT_NAME_BYTES];
    int n = snprintf(line, sizeof(line), "%s\n", ckpt_step_name(s->save->step, step));
    const char *tmp = ckpt_join(&s->arena, s->save->dir, CKPT_TMP_PREFIX "LATEST");
    TRY(durable_write_file(d, tmp, line, (size_t)n, diag));
    TRY(durable_rename(d, tmp, ckpt_join(&s->arena, s->save->dir, "LATEST"), diag));
    return durable_sync_dir(d, s->save->dir, diag);
}

/* The checkpoint is safe: what fails now costs a hint or disk space, no data. */
static void tidy(struct saver *s, int64_t *n_removed)
{
    struct diag diag = {0};
    if (write_latest(s, &diag) != ST_OK)
        log_warn("checkpoint is written, its LATEST hint is not: %s", diag.text);
    if (durable_remove_tree(s->save->durable, s->tmp, &diag) != ST_OK)
        log_warn("checkpoint is written, the one it replaces is still there: %s",
                 diag.text);
    if (s->save->keep > 0 && ckpt_prune(s->save->dir, s->save->keep, s->save->step,
                                        s->save->durable, n_removed, &diag) != ST_OK)
        log_warn("checkpoint is written, older ones are still there: %s", diag.text);
}

static void report(const struct saver *s, struct ckpt_saved *out)
{
    out->raw_bytes = s->raw_bytes;
    out->n_chunks = s->table.n;
    out->digest = digest_of(&s->table);
    for (uint32_t i = 0; i < s->files.n; i++)
        out->file_bytes += s->files.data[i].bytes;
}

void saver_tidy(struct saver *s, struct ckpt_saved *out)
{
    report(s, out);
    tidy(s, &out->n_removed);
}

void saver_free(struct saver *s)
{
    shard_crew_destroy(s->crew);
    vec_free(&s->table);
    vec_free(&s->shards);
    vec_free(&s->files);
    arena_release(&s->arena);
}

enum status ckpt_write(const struct ckpt_save *save, struct ckpt_saved *out,
                       struct diag *diag)
{
    if (save->comm)
        return ckpt_write_together(save, out, diag);
    struct saver s = {.save = save};
    memset(out, 0, sizeof(*out));
    enum status st = saver_check(&s, diag);
    if (st == ST_OK) {
        saver_make_uuid(&s);
        saver_make_paths(&s);
        saver_order(&s);
        s.crew = shard_crew_create(save->pool);
        st = saver_begin(&s, diag);
        if (st == ST_OK)
            st = write_shards(&s, diag);
        if (st == ST_OK)
            st = saver_publish(&s, diag);
        if (st != ST_OK)
            saver_discard(&s);
        /* Renamed, but not known to be on the device: older ones must stay. */
        if (st == ST_OK)
            st = durable_sync_dir(save->durable, save->dir, diag);
    }
    if (st == ST_OK)
        saver_tidy(&s, out);
    saver_free(&s);
    return st;
}
