#include "cmd/load_config.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/vec.h"
#include "io/tok.h"
#include "io/yaml.h"

#define COMMAND_LINE "command line"

/* One source of settings: which layer it is, and what its places are called. */
struct source {
    struct config *config;
    struct opt_store store;
    int layer;
    const char *file; /* "" for the command line */
};

static enum status apply_reference(const struct source *src, const char *key,
                                   const char *value, const char *where,
                                   struct diag *diag);

/* ---- paths ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static bool names_yaml(const char *value)
{
    return ends_with(value, ".yaml") || ends_with(value, ".yml");
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* The base name without its extension: "tiny" of "runs/tiny.yaml". */
static const char *run_name(struct arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    const char *dot = strrchr(base, '.');
    return arena_strndup(a, base,
                         dot && dot > base ? (size_t)(dot - base) : strlen(base));
}

/* The file in the folder of `named_by`, or in one above it. False: in none. */
static bool find_upwards(const char *name, const char *named_by, struct str *path)
{
    int n = (int)strlen(named_by);
    for (;;) {
        while (n > 0 && named_by[n - 1] != '/')
            n--;
        if (n == 0)
            return false;
        str_clear(path);
        str_printf(path, "%.*s%s", n, named_by, name);
        if (exists(str_get(path)))
            return true;
        n--; /* past the slash */
    }
}

/* Where the file is: as named, beside the file that names it or in a folder above, or
 * where presets are installed. The name itself where it is nowhere. */
static const char *find_file(struct arena *a, const char *name, const char *named_by)
{
    struct str path = {0};
    const char *found = name;
    if (!exists(name) && name[0] != '/') {
        bool beside = find_upwards(name, named_by, &path);
#ifdef ANGEL_DATADIR
        if (!beside && strncmp(name, "configs/", 8) == 0) {
            str_clear(&path);
            str_printf(&path, "%s/%s", ANGEL_DATADIR, name);
            beside = exists(str_get(&path));
        }
#endif
        if (beside)
            found = arena_strdup(a, str_get(&path));
    }
    str_free(&path);
    return found;
}

/* Adds what the folder of a missing file has that is named alike. */
static void hint_similar(struct arena *a, const char *path, struct diag *diag)
{
    const char *slash = strrchr(path, '/');
    int n_folder = slash ? (int)(slash - path) + 1 : 0;
    DIR *dir = opendir(slash ? arena_strndup(a, path, (size_t)n_folder) : ".");
    if (!dir)
        return;
    VEC(const char *) names = {0};
    for (struct dirent *e; (e = readdir(dir));) {
        if (names_yaml(e->d_name))
            vec_push(&names, arena_strdup(a, e->d_name));
    }
    closedir(dir);
    const char *near = text_nearest(path + n_folder, names.data, names.n);
    if (near)
        diag_hint(diag, "did you mean %.*s%s?", n_folder, path, near);
    vec_free(&names);
}

/* ---- items ---- */

/* "model", "layers" make "model.layers"; "data.train", "[0]" make "data.train[0]". */
static const char *join_key(struct arena *a, const char *prefix, const char *key)
{
    if (!*prefix || !*key)
        return *prefix ? prefix : key;
    struct str joined = {0};
    str_printf(&joined, "%s%s%s", prefix, *key == '[' ? "" : ".", key);
    const char *out = arena_strdup(a, str_get(&joined));
    str_free(&joined);
    return out;
}

static const char *place(const struct source *src, int line)
{
    if (!*src->file)
        return COMMAND_LINE;
    struct str where = {0};
    str_printf(&where, "%s:%d", src->file, line);
    const char *out = arena_strdup(&src->config->arena, str_get(&where));
    str_free(&where);
    return out;
}

static bool is_reference(const struct source *src, const char *key, const char *value)
{
    return value && strcmp(value, "auto") != 0 &&
           opt_is_mapping(src->store.table, key) &&
           opt_find(src->store.table, key) == NULL;
}

static enum status apply_item(const struct source *src, const char *prefix,
                              const struct yaml_item *item, struct diag *diag)
{
    const char *key = join_key(&src->config->arena, prefix, item->key);
    const char *where = place(src, item->line);
    const struct opt_table *t = src->store.table;
    if (item->kind == YAML_SEQUENCE)
        return opt_begin_sequence(&src->store, key, item->n, where, src->layer, diag);
    if (item->kind == YAML_NULL && opt_is_mapping(t, key))
        return ST_OK; /* `train:` with nothing below is an empty mapping */
    if (item->kind != YAML_MAPPING)
        return opt_set(&src->store, key, item->value, where, src->layer, diag);
    /* Entries of a mapping follow; an empty one must at least stand where one may. */
    if (item->n || opt_is_mapping(t, key) || strchr(key, '['))
        return ST_OK;
    return opt_set(&src->store, key, NULL, where, src->layer, diag);
}

/* References first: a file's mapping is the ground that single keys are set on. */
static enum status apply_doc(const struct source *src, const char *prefix,
                             const struct yaml_doc *doc, struct diag *diag)
{
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < doc->n; i++) {
            const struct yaml_item *item = &doc->items[i];
            const char *key = join_key(&src->config->arena, prefix, item->key);
            bool refers =
                    item->kind == YAML_SCALAR && is_reference(src, key, item->value);
            if (refers && pass == 0)
                TRY(apply_reference(src, key, item->value, place(src, item->line),
                                    diag));
            if (!refers && pass == 1)
                TRY(apply_item(src, prefix, item, diag));
        }
    }
    return ST_OK;
}

static enum status apply_file(const struct source *src, const char *prefix,
                              struct diag *diag)
{
    struct yaml_doc doc;
    TRY(yaml_doc_read_file(src->file, &doc, diag));
    enum status st = ST_OK;
    if (doc.n && !*doc.items[0].key)
        st = diag_set(diag, ST_CONFIG,
                      "not a configuration (%s:%d): got %s, wanted a "
                      "mapping",
                      src->file, doc.items[0].line,
                      doc.items[0].kind == YAML_SEQUENCE ? "a list" : "a single value");
    if (st == ST_OK)
        st = apply_doc(src, prefix, &doc, diag);
    yaml_doc_free(&doc);
    return st;
}

/* `model: FILE`: the mapping at `key` becomes what the file holds. */
static enum status apply_reference(const struct source *src, const char *key,
                                   const char *value, const char *where,
                                   struct diag *diag)
{
    struct arena *a = &src->config->arena;
    struct source inner = *src;
    inner.file = find_file(a, value, src->file);
    struct stat info;
    if (stat(inner.file, &info) == 0 && S_ISDIR(info.st_mode))
        return diag_set(
                diag, ST_UNAVAILABLE,
                "%s (%s): folders of other libraries are not read by this build: "
                "got '%s', wanted a YAML file",
                key, where, value);
    if (!names_yaml(value))
        return opt_set(&src->store, key, value, where, src->layer, diag);
    opt_reset_mapping(&src->store, key);
    enum status st = apply_file(&inner, key, diag);
    if (st == ST_NOT_FOUND) {
        diag_set(diag, st, "%s (%s): got '%s', wanted a file that is there", key, where,
                 value);
        hint_similar(a, value, diag);
    }
    if (st == ST_OK && strcmp(src->config->name, "run") == 0)
        src->config->name = run_name(a, value);
    return st;
}

/* ---- the command line ---- */

/* A value that opens a list or mapping is YAML; any other is text as it stands. */
static enum status apply_override(const struct source *src,
                                  const struct cmd_override *o, struct diag *diag)
{
    if (*o->value != '[' && *o->value != '{')
        return opt_set(&src->store, o->key, o->value, COMMAND_LINE, src->layer, diag);
    struct yaml_doc doc;
    TRY(yaml_doc_read_text(o->value, strlen(o->value), o->key, &doc, diag));
    enum status st = apply_doc(src, o->key, &doc, diag);
    yaml_doc_free(&doc);
    return st;
}

static enum status apply_overrides(const struct source *src,
                                   const struct cmd_override *overrides, int n,
                                   struct diag *diag)
{
    for (int i = 0; i < n; i++) {
        const struct cmd_override *o = &overrides[i];
        if (is_reference(src, o->key, o->value) && !strchr("[{", *o->value))
            TRY(apply_reference(src, o->key, o->value, COMMAND_LINE, diag));
    }
    for (int i = 0; i < n; i++) {
        const struct cmd_override *o = &overrides[i];
        if (!is_reference(src, o->key, o->value) || strchr("[{", *o->value))
            TRY(apply_override(src, o, diag));
    }
    return ST_OK;
}

/* ---- loading ---- */

/* What spans the configuration and the tokenizer that it names. */
static enum status check_vocab(struct config *c, struct diag *diag)
{
    int64_t least = tok_bytes()->vocab_size;
    if (c->model.vocab >= least)
        return ST_OK;
    struct opt_store s = config_store(c);
    diag_set(diag, ST_CONFIG,
             "model.vocab (%s) and data.tokenizer (%s): got %lld and bytes, wanted a "
             "vocabulary of at least %lld",
             opt_where(&s, "model.vocab"), opt_where(&s, "data.tokenizer"),
             (long long)c->model.vocab, (long long)least);
    diag_hint(diag, "nearest that works: model.vocab=%lld", (long long)least);
    return ST_CONFIG;
}

static enum status resolve(struct config *c, struct diag *diag)
{
    TRY(config_resolve(c, diag));
    return check_vocab(c, diag);
}

enum status load_config_raw(struct config *c, const char *run_file,
                            const struct cmd_override *overrides, int n,
                            struct diag *diag)
{
    config_init(c);
    struct source src = {c, config_store(c), LAYER_FILE, ""};
    if (run_file) {
        src.file = find_file(&c->arena, run_file, "");
        c->name = run_name(&c->arena, run_file);
        enum status st = apply_file(&src, "", diag);
        if (st == ST_NOT_FOUND && !exists(src.file))
            hint_similar(&c->arena, run_file, diag);
        TRY(st);
    }
    src.file = "";
    src.layer = LAYER_COMMAND_LINE;
    return apply_overrides(&src, overrides, n, diag);
}

enum status load_config(struct config *c, const char *run_file,
                        const struct cmd_override *overrides, int n, struct diag *diag)
{
    TRY(load_config_raw(c, run_file, overrides, n, diag));
    return resolve(c, diag);
}

enum status load_config_text(struct config *c, const char *text, size_t n,
                             const char *name, struct diag *diag)
{
    config_init(c);
    struct source src = {c, config_store(c), LAYER_FILE, name};
    struct yaml_doc doc;
    TRY(yaml_doc_read_text(text, n, name, &doc, diag));
    enum status st = apply_doc(&src, "", &doc, diag);
    yaml_doc_free(&doc);
    TRY(st);
    return resolve(c, diag);
}

enum status load_config_args(struct config *c, const struct cmd_args *args,
                             struct diag *diag)
{
    *c = (struct config){0};
    if (args->n_positional > 1)
        return diag_set(
                diag, ST_CONFIG,
                "too many arguments (command line): got '%s' after '%s', wanted "
                "one RUN.yaml",
                args->positional[1], args->positional[0]);
    if (args->n_positional == 0 && args->n_overrides == 0) {
        diag_set(diag, ST_CONFIG,
                 "no run given (command line): got nothing, wanted RUN.yaml or "
                 "key=value");
        diag_hint(diag, "angel %s configs/runs/tiny-text.yaml data.train=FOLDER",
                  args->command->name);
        return ST_CONFIG;
    }
    return load_config(c, args->n_positional ? args->positional[0] : NULL,
                       args->overrides, args->n_overrides, diag);
}
