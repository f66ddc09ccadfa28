/* Writes what a run would train on, so that another trainer can do the same run:
 *
 *     dump_run OUT_DIR [RUN.yaml] key=value ...
 *
 * OUT_DIR/init.gold     the model description and every parameter's initial value
 * OUT_DIR/batches.gold  tokens, labels, positions, doc_start of every step, and of the
 *                       held-out sequences, each i32 [batches, sequences, seq_len]
 *
 * The format is that of tests/gold/make_gold.py; tests/gold/torch_train.py reads it. */
#include <stdio.h>
#include <string.h>

#include "cmd/load_config.h"
#include "core/log.h"
#include "core/model.h"
#include "io/data.h"
#include "io/file.h"

enum gold_dtype {
    GOLD_WRITE_F32 = 0,
    GOLD_WRITE_I32 = 1,
    GOLD_WRITE_TEXT = 3,
};

static bool put(FILE *f, const void *data, size_t bytes)
{
    return fwrite(data, 1, bytes, f) == bytes;
}

static bool put_u32(FILE *f, uint32_t x)
{
    return put(f, &x, sizeof(x));
}

/* The head of an entry; its data follow. */
static bool put_entry(FILE *f, const char *name, enum gold_dtype dtype, int ndim,
                      const int64_t *dim)
{
    bool ok = put_u32(f, (uint32_t)strlen(name)) && put(f, name, strlen(name)) &&
              put_u32(f, dtype) && put_u32(f, (uint32_t)ndim);
    for (int i = 0; ok && i < ndim; i++)
        ok = put(f, &dim[i], sizeof(dim[i]));
    return ok;
}

static FILE *open_gold(struct arena *a, const char *dir, const char *name, uint32_t n)
{
    size_t bytes = strlen(dir) + strlen(name) + 2;
    char *path = arena_alloc(a, bytes);
    snprintf(path, bytes, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (f && !(put(f, "ANGELGLD", 8) && put_u32(f, 1) && put_u32(f, n))) {
        fclose(f);
        return NULL;
    }
    return f;
}

/* The model's keys, one `key: value` line each. */
static void model_text(const struct config *c, struct str *out)
{
    const struct opt_table *t = config_table();
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if (strncmp(o->key, "model.", 6) != 0 || strchr(o->key + 6, '.') ||
            o->type == OPT_SUBTREE)
            continue;
        str_printf(out, "%s: ", o->key + 6);
        opt_print_value(o, c, out);
        str_addc(out, '\n');
    }
}

static bool write_init(struct arena *a, const char *dir, const struct config *c)
{
    struct model m;
    struct str text = {0};
    model_create(&c->model, &m);
    model_text(c, &text);
    FILE *f = open_gold(a, dir, "init.gold", m.n_params + 1);
    int64_t n_text = (int64_t)text.n;
    bool ok = f && put_entry(f, "config", GOLD_WRITE_TEXT, 1, &n_text) &&
              put(f, text.s, text.n);
    for (uint32_t i = 0; ok && i < m.n_params; i++) {
        const struct param *p = &m.params[i];
        int64_t n = param_elems(p);
        float *w = mem_alloc((size_t)n * sizeof(*w));
        param_init_values(p, (uint64_t)c->train.seed, 0, n, w);
        ok = put_entry(f, p->name, GOLD_WRITE_F32, p->ndim, p->dim) &&
             put(f, w, (size_t)n * sizeof(*w));
        mem_free(w);
    }
    str_free(&text);
    model_free(&m);
    return f && fclose(f) == 0 && ok;
}

/* Four entries: one array of the data each. Reads the batches once per array, so that
 * only one batch is held. */
static bool write_split(FILE *f, const struct data *d, enum data_split split,
                        const char *prefix, int64_t n_batches, int64_t batch,
                        int64_t seq, struct diag *diag)
{
    static const char *const names[] = {"tokens", "labels", "positions", "doc_start"};
    int64_t n = batch * seq, trained;
    int64_t dim[3] = {n_batches, batch, seq};
    int32_t *host = mem_alloc((size_t)n * 4 * sizeof(*host));
    struct data_arrays arrays = {host, host + n, host + 2 * n, host + 3 * n};
    bool ok = true;
    for (int k = 0; ok && k < 4; k++) {
        char name[32];
        snprintf(name, sizeof(name), "%s%s", prefix, names[k]);
        ok = put_entry(f, name, GOLD_WRITE_I32, 3, dim);
        for (int64_t b = 0; ok && b < n_batches; b++)
            ok = data_fetch(d, split, b * batch, batch, &arrays, &trained, diag) ==
                         ST_OK &&
                 put(f, host + k * n, (size_t)n * sizeof(*host));
    }
    mem_free(host);
    return ok;
}

static bool write_batches(struct arena *a, const char *dir, const struct config *c,
                          const struct data *d, struct diag *diag)
{
    int64_t batch = config_global_batch(c, 0), seq = c->data.seq_len;
    int64_t n_valid =
            MIN(c->train.eval_batches * batch, data_samples(d, DATA_VALID)) / batch;
    FILE *f = open_gold(a, dir, "batches.gold", n_valid > 0 ? 8 : 4);
    bool ok = f && write_split(f, d, DATA_TRAIN, "", c->train.steps, batch, seq, diag);
    if (ok && n_valid > 0)
        ok = write_split(f, d, DATA_VALID, "valid_", n_valid, batch, seq, diag);
    return f && fclose(f) == 0 && ok;
}

static enum status dump(struct arena *a, const char *dir, struct config *c,
                        struct diag *diag)
{
    struct data_source train[64], valid = {c->data.valid, 0};
    struct data_options o = {.train = train,
                             .n_train = MIN(c->data.train.n, (int64_t)ARRAY_LEN(train)),
                             .valid = &valid,
                             .n_valid = c->data.valid[0] != '\0',
                             .valid_fraction = c->data.valid_fraction,
                             .tokenizer = tok_bytes(),
                             .text_field = c->data.text_field,
                             .seq_len = c->data.seq_len,
                             .vocab = c->model.vocab,
                             .seed = (uint64_t)c->train.seed,
                             .shuffle = c->data.shuffle,
                             .mask_documents = c->data.mask_documents};
    struct data *d;
    for (int64_t i = 0; i < o.n_train; i++)
        train[i] = (struct data_source){c->data.train.items[i].path,
                                        c->data.train.items[i].weight};
    TRY(file_make_folder(dir, diag));
    TRY(data_open(&o, &d, diag));
    bool ok = write_init(a, dir, c) && write_batches(a, dir, c, d, diag);
    data_close(d);
    return ok ? ST_OK : diag_set(diag, ST_IO, "cannot write the files (%s)", dir);
}

int main(int argc, char **argv)
{
    struct cmd_args args;
    struct config c;
    struct diag diag = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: dump_run OUT_DIR [RUN.yaml] key=value ...\n");
        return status_exit_code(ST_CONFIG);
    }
    const char *dir = argv[1];
    char command[] = "pretrain";
    argv[1] = command;
    enum status st = cmd_args_parse(argc - 1, argv + 1, &args, &diag);
    if (st == ST_OK)
        st = load_config_args(&c, &args, &diag);
    struct arena a = {0};
    if (st == ST_OK)
        st = dump(&a, dir, &c, &diag);
    arena_release(&a);
    if (st != ST_OK)
        log_diag(&diag);
    config_free(&c);
    cmd_args_free(&args);
    return status_exit_code(st);
}
