#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/cmd_ckpt.h"
#include "core/log.h"
#include "io/json.h"

/* inspect. */

struct kind_sum {
    int64_t n_tensors;
    int64_t n_elems;
    int64_t raw_bytes;
    int64_t stored_bytes;
};

static struct kind_sum sum_tensor(const struct ckpt *ck, int64_t i)
{
    const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
    struct box whole = box_whole(t->ndim, t->shape);
    struct kind_sum s = {.n_tensors = 1, .n_elems = box_elems(&whole)};
    int64_t n = 0;
    const struct shard_chunk *k = ckpt_tensor_chunks(ck, i, &n);
    s.raw_bytes = s.n_elems * (int64_t)dtype_bytes(t->dtype);
    for (int64_t c = 0; c < n; c++)
        s.stored_bytes += shard_chunk_bytes(&k[c]);
    return s;
}

static void sum_kinds(const struct ckpt *ck, struct kind_sum kinds[CKPT_KIND_COUNT])
{
    memset(kinds, 0, CKPT_KIND_COUNT * sizeof(*kinds));
    for (int64_t i = 0; i < ckpt_get_info(ck)->n_tensors; i++) {
        struct kind_sum s = sum_tensor(ck, i);
        struct kind_sum *k = &kinds[ckpt_tensor_info(ck, i)->kind];
        k->n_tensors += s.n_tensors;
        k->n_elems += s.n_elems;
        k->raw_bytes += s.raw_bytes;
        k->stored_bytes += s.stored_bytes;
    }
}

static double percent(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 100.0;
}

static void text_kinds(const struct ckpt *ck, struct str *out)
{
    struct kind_sum kinds[CKPT_KIND_COUNT];
    char raw[32];
    char stored[32];
    char count[32];
    sum_kinds(ck, kinds);
    str_printf(out, "\n%-12s %8s %10s %12s %12s\n", "kind", "tensors", "elements",
               "bytes", "stored");
    for (int k = 0; k < CKPT_KIND_COUNT; k++) {
        const struct kind_sum *s = &kinds[k];
        if (s->n_tensors > 0)
            str_printf(out, "%-12s %8lld %10s %12s %12s  %.1f %%\n",
                       ckpt_kind_name((enum ckpt_kind)k), (long long)s->n_tensors,
                       text_count((double)s->n_elems, count, sizeof(count)),
                       text_bytes(s->raw_bytes, raw, sizeof(raw)),
                       text_bytes(s->stored_bytes, stored, sizeof(stored)),
                       percent(s->stored_bytes, s->raw_bytes));
    }
}

static void text_tensors(const struct ckpt *ck, struct str *out)
{
    str_printf(out, "\n%-12s %-5s %7s %7s  %s\n", "kind", "type", "chunks", "stored",
               "tensor");
    for (int64_t i = 0; i < ckpt_get_info(ck)->n_tensors; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
        struct kind_sum s = sum_tensor(ck, i);
        int64_t n = 0;
        ckpt_tensor_chunks(ck, i, &n);
        str_printf(out, "%-12s %-5s %7lld %5.1f %%  %s [", ckpt_kind_name(t->kind),
                   dtype_name(t->dtype), (long long)n,
                   percent(s.stored_bytes, s.raw_bytes), t->name);
        for (int a = 0; a < t->ndim; a++)
            str_printf(out, "%s%lld", a ? "," : "", (long long)t->shape[a]);
        str_add(out, "]\n");
    }
}

/* The plain values of the state; what is deeper is in --json. */
static void text_state(const struct json *state, struct str *out)
{
    str_add(out, "\nstate\n");
    for (int64_t i = 0; i < state->n_items; i++) {
        const struct json *v = &state->items[i];
        bool line = v->type == JSON_STRING && !memchr(v->text, '\n', v->n_text);
        if (v->type == JSON_NUMBER || line)
            str_printf(out, "  %-20s %s\n", v->key, v->text);
        else if (v->type == JSON_BOOL)
            str_printf(out, "  %-20s %s\n", v->key, v->is_true ? "true" : "false");
    }
}

static void inspect_text(const struct ckpt_request *r, const struct ckpt *ck,
                         const struct json *state, struct str *out)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    char raw[32];
    char stored[32];
    str_printf(out, "checkpoint  %s\nstep        %lld\n", info->path,
               (long long)info->step);
    str_printf(out, "written     %s by %s, uuid %s\n", info->created,
               info->tool[0] ? info->tool : "an unnamed program", info->uuid);
    str_printf(out, "tensors     %lld in %lld chunks, digest %016llx\n",
               (long long)info->n_tensors, (long long)info->n_chunks,
               (unsigned long long)info->digest);
    str_printf(out, "size        %s in %lld files for %s of tensors (%.1f %%)\n",
               text_bytes(info->file_bytes, stored, sizeof(stored)),
               (long long)info->n_files, text_bytes(info->raw_bytes, raw, sizeof(raw)),
               percent(info->file_bytes, info->raw_bytes));
    text_kinds(ck, out);
    if (r->tensors)
        text_tensors(ck, out);
    text_state(state, out);
}

static void json_value(struct json_writer *w, const struct json *v)
{
    switch (v->type) {
    case JSON_NULL: json_null(w); return;
    case JSON_BOOL: json_bool(w, v->is_true); return;
    case JSON_NUMBER:
        if (v->is_i64)
            json_i64(w, v->i64);
        else
            json_f64(w, v->f64);
        return;
    case JSON_STRING: json_string_n(w, v->text, v->n_text); return;
    case JSON_ARRAY:
        json_begin_array(w);
        for (int64_t i = 0; i < v->n_items; i++)
            json_value(w, &v->items[i]);
        json_end_array(w);
        return;
    case JSON_OBJECT:
        json_begin_object(w);
        for (int64_t i = 0; i < v->n_items; i++) {
            json_key(w, v->items[i].key);
            json_value(w, &v->items[i]);
        }
        json_end_object(w);
        return;
    }
    BUG("json type %d", (int)v->type);
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

static void json_kinds(struct json_writer *w, const struct ckpt *ck)
{
    struct kind_sum kinds[CKPT_KIND_COUNT];
    sum_kinds(ck, kinds);
    json_key(w, "kinds");
    json_begin_object(w);
    for (int k = 0; k < CKPT_KIND_COUNT; k++) {
        if (kinds[k].n_tensors == 0)
            continue;
        json_key(w, ckpt_kind_name((enum ckpt_kind)k));
        json_begin_object(w);
        key_i64(w, "tensors", kinds[k].n_tensors);
        key_i64(w, "elements", kinds[k].n_elems);
        key_i64(w, "raw_bytes", kinds[k].raw_bytes);
        key_i64(w, "stored_bytes", kinds[k].stored_bytes);
        json_end_object(w);
    }
    json_end_object(w);
}

static void json_tensors(struct json_writer *w, const struct ckpt *ck)
{
    json_key(w, "tensors");
    json_begin_array(w);
    for (int64_t i = 0; i < ckpt_get_info(ck)->n_tensors; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_info(ck, i);
        struct kind_sum s = sum_tensor(ck, i);
        json_begin_object(w);
        key_string(w, "name", t->name);
        key_string(w, "kind", ckpt_kind_name(t->kind));
        key_string(w, "dtype", dtype_name(t->dtype));
        json_key(w, "shape");
        json_begin_array(w);
        for (int a = 0; a < t->ndim; a++)
            json_i64(w, t->shape[a]);
        json_end_array(w);
        key_i64(w, "raw_bytes", s.raw_bytes);
        key_i64(w, "stored_bytes", s.stored_bytes);
        json_end_object(w);
    }
    json_end_array(w);
}

static void inspect_json(const struct ckpt_request *r, const struct ckpt *ck,
                         const struct json *state, struct str *out)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    char digest[17];
    snprintf(digest, sizeof(digest), "%016llx", (unsigned long long)info->digest);
    struct json_writer w = {.out = out, .indent = 1};
    json_begin_object(&w);
    key_string(&w, "path", info->path);
    key_i64(&w, "step", info->step);
    key_string(&w, "created", info->created);
    key_string(&w, "tool", info->tool);
    key_string(&w, "uuid", info->uuid);
    key_string(&w, "tensor_digest", digest);
    key_i64(&w, "n_tensors", info->n_tensors);
    key_i64(&w, "n_chunks", info->n_chunks);
    key_i64(&w, "raw_bytes", info->raw_bytes);
    key_i64(&w, "file_bytes", info->file_bytes);
    json_kinds(&w, ck);
    if (r->tensors)
        json_tensors(&w, ck);
    json_key(&w, "state");
    json_value(&w, state);
    json_end_object(&w);
    str_addc(out, '\n');
}

static enum status answer_inspect(const struct ckpt_request *r, const struct ckpt *ck,
                                  struct str *out, struct diag *diag)
{
    struct arena a = {0};
    struct json *state;
    const char *text = ckpt_state_json(ck);
    enum status st =
            json_parse(&a, text, strlen(text), "state.json", JSON_STRICT, &state, diag);
    if (st == ST_OK)
        (r->json ? inspect_json : inspect_text)(r, ck, state, out);
    arena_release(&a);
    return st;
}

/* verify. */

struct findings {
    bool json;
    struct str *out;
    struct json_writer *w;
};

static void add_finding(void *arg, const char *text)
{
    struct findings *f = arg;
    if (f->json)
        json_string(f->w, text);
    else
        str_printf(f->out, "damaged: %s\n", text);
}

static enum status answer_verify(const struct ckpt_request *r, const struct ckpt *ck,
                                 struct str *out, struct diag *diag)
{
    const struct ckpt_info *info = ckpt_get_info(ck);
    char size[32];
    int64_t n = 0;
    struct json_writer w = {.out = out, .indent = 1};
    struct findings f = {r->json, out, &w};
    if (r->json) {
        json_begin_object(&w);
        key_string(&w, "path", info->path);
        key_i64(&w, "step", info->step);
        json_key(&w, "deep");
        json_bool(&w, r->deep);
        json_key(&w, "damage");
        json_begin_array(&w);
    }
    enum status st = ckpt_verify(ck, r->deep, r->crew, add_finding, &f, &n, diag);
    if (r->json) {
        json_end_array(&w);
        json_end_object(&w);
        str_addc(out, '\n');
    } else if (st == ST_OK) {
        str_printf(out, "%s: %s in %lld files agree with their hashes%s\n", info->path,
                   text_bytes(info->file_bytes, size, sizeof(size)),
                   (long long)info->n_files,
                   r->deep ? ", every chunk decodes to its hash" : "");
    }
    return st;
}

/* Requests. */

static enum status open_named(const char *path, struct ckpt **out, struct diag *diag)
{
    bool searched = false;
    TRY(ckpt_open_any(path, out, &searched, diag));
    if (searched)
        log_info("newest valid checkpoint of %s: step %lld", path,
                 (long long)ckpt_get_info(*out)->step);
    return ST_OK;
}

/* What is to be checked must not be passed over because it is damaged. */
static enum status open_for_verify(const char *path, struct ckpt **out,
                                   struct diag *diag)
{
    bool searched = false;
    TRY(ckpt_open_last(path, out, &searched, diag));
    if (searched)
        log_info("newest checkpoint of %s: step %lld", path,
                 (long long)ckpt_get_info(*out)->step);
    return ST_OK;
}

static enum status answer_diff(const struct ckpt_request *r, const struct ckpt *ck,
                               struct str *out, struct diag *diag)
{
    struct ckpt *other;
    TRY(open_named(r->paths[1], &other, diag));
    enum status st = ckpt_diff(r, ck, other, out, diag);
    ckpt_close(other);
    return st;
}

static enum status answer_prune(const struct ckpt_request *r, struct str *out,
                                struct diag *diag)
{
    struct ckpt_lock *lock;
    int64_t n = 0;
    if (r->keep < 1)
        return diag_set(diag, ST_CONFIG,
                        "angel ckpt prune (command line): got no --keep of 1 or more, "
                        "wanted --keep N");
    struct arena a = {0};
    int64_t *steps;
    int64_t n_steps = 0;
    enum status st = ckpt_list_steps(&a, r->paths[0], &steps, &n_steps, diag);
    arena_release(&a);
    TRY(st);
    if (n_steps == 0)
        return diag_set(diag, ST_NOT_FOUND, "no checkpoint found (%s)", r->paths[0]);
    TRY(ckpt_lock(r->paths[0], NULL, &lock, diag));
    st = ckpt_prune(r->paths[0], r->keep, -1, NULL, &n, diag);
    ckpt_unlock(lock);
    if (r->json)
        str_printf(out, "{\"removed\": %lld}\n", (long long)n);
    else
        str_printf(out, "%s: %lld checkpoint%s removed\n", r->paths[0], (long long)n,
                   n == 1 ? "" : "s");
    return st;
}

typedef enum status (*answer_fn)(const struct ckpt_request *r, const struct ckpt *ck,
                                 struct str *out, struct diag *diag);

static const struct {
    const char *name;
    int n_paths;
    enum status (*open)(const char *path, struct ckpt **out, struct diag *diag);
    answer_fn answer; /* given the first path's checkpoint; NULL for prune */
} verbs[] = {
        {"inspect", 1, open_named, answer_inspect},
        {"verify", 1, open_for_verify, answer_verify},
        {"diff", 2, open_named, answer_diff},
        {"prune", 1, NULL, NULL},
};

static enum status unknown_verb(const char *got, struct diag *diag)
{
    const char *names[ARRAY_LEN(verbs)];
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        names[i] = verbs[i].name;
    if (strcmp(got, "convert") == 0)
        return diag_set(diag, ST_UNAVAILABLE,
                        "angel ckpt convert (command line): conversion is not in this "
                        "build");
    diag_set(
            diag, ST_CONFIG,
            "angel ckpt (command line): got '%s', wanted inspect, verify, diff or prune",
            got);
    const char *near = text_nearest(got, names, ARRAY_LEN(names));
    if (near)
        diag_hint(diag, "did you mean angel ckpt %s?", near);
    return ST_CONFIG;
}

enum status ckpt_answer(const struct ckpt_request *r, struct str *out,
                        struct diag *diag)
{
    size_t v = 0;
    while (v < ARRAY_LEN(verbs) && strcmp(verbs[v].name, r->verb) != 0)
        v++;
    if (v == ARRAY_LEN(verbs))
        return unknown_verb(r->verb, diag);
    if (r->n_paths != verbs[v].n_paths)
        return diag_set(diag, ST_CONFIG,
                        "angel ckpt %s (command line): got %d paths, wanted %d",
                        r->verb, r->n_paths, verbs[v].n_paths);
    if (!verbs[v].answer)
        return answer_prune(r, out, diag);
    struct ckpt *ck;
    TRY(verbs[v].open(r->paths[0], &ck, diag));
    enum status st = verbs[v].answer(r, ck, out, diag);
    ckpt_close(ck);
    return st;
}

/* The command line. */

static enum status read_numbers(const struct cmd_args *args, struct ckpt_request *r,
                                struct diag *diag)
{
    char *end;
    if (args->tolerance) {
        r->tolerance = strtod(args->tolerance, &end);
        if (end == args->tolerance || *end || !(r->tolerance >= 0) ||
            isinf(r->tolerance))
            return diag_set(
                    diag, ST_CONFIG,
                    "--tolerance (command line): got '%s', wanted a number from 0",
                    args->tolerance);
    }
    if (args->keep) {
        long keep = strtol(args->keep, &end, 10);
        if (end == args->keep || *end || keep < 1 || keep > 1000000)
            return diag_set(diag, ST_CONFIG,
                            "--keep (command line): got '%s', wanted 1 to 1000000",
                            args->keep);
        r->keep = (int)keep;
    }
    return ST_OK;
}

static enum status answer_args(const struct cmd_args *args, struct str *out,
                               struct diag *diag)
{
    if (args->n_positional < 1)
        return unknown_verb("nothing", diag);
    struct ckpt_request r = {
            .verb = args->positional[0],
            .paths = args->positional + 1,
            .n_paths = args->n_positional - 1,
            .json = args->json,
            .tensors = args->tensors,
            .deep = args->deep,
    };
    struct pool *pool;
    TRY(read_numbers(args, &r, diag));
    TRY(pool_create(pool_cpus_available(), &pool, diag));
    r.crew = shard_crew_create(pool);
    enum status st = ckpt_answer(&r, out, diag);
    shard_crew_destroy(r.crew);
    pool_destroy(pool);
    return st;
}

int cmd_ckpt(struct cmd_args *args)
{
    struct diag diag = {0};
    struct str out = {0};
    enum status st = answer_args(args, &out, &diag);
    fputs(str_get(&out), stdout);
    str_free(&out);
    if (st == ST_OK)
        return status_exit_code(ST_OK);
    fflush(stdout); /* the findings come before the verdict */
    return cmd_fail(st, &diag);
}
