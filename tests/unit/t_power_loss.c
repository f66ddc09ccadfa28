/* A power cut during a save. The changes of the file system that a save makes are recorded;
 * then the disk is rebuilt as a cut could have left it: of what was not flushed, anything
 * may be there or not, in any order, and a write may be there in part. The newest
 * checkpoint that is found must be whole.
 *
 * What is promised: bytes of a file once it was flushed, names in a folder once the folder
 * was, and that a rename or an exchange happens as one. Nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/log.h"
#include "core/rng.h"
#include "core/vec.h"
#include "io/file.h"
#include "tests/lib/run_child.h"

#define N_FLOATS    5000
#define NO_NODE     UINT32_MAX
#define RANDOM_CUTS 8

/* ---- the file system as a save leaves it ---- */

struct entry {
    const char *name;
    uint32_t node; /* NO_NODE: the name is gone */
};

struct node {
    bool is_dir;
    uint8_t *data; /* of a file, as it was before the save */
    size_t bytes;
    VEC(struct entry) entries; /* of a folder: now, all changes done */
    VEC(struct entry) before;  /* of a folder: before the save */
};

/* One change, in terms of nodes: names move, nodes stay what they are. */
struct change {
    enum durable_op op;
    uint32_t folder;       /* whose names change, or that is flushed */
    uint32_t file;         /* whose bytes change, or that is flushed */
    struct entry names[2]; /* what the names then stand for */
    int n_names;
    int64_t offset;
    uint8_t *data;
    size_t bytes;
};

struct disk {
    struct arena arena;
    const char *root;       /* of the real folder */
    VEC(struct node) nodes; /* 0 is the root */
    VEC(struct change) changes;
};

static uint32_t add_node(struct disk *d, bool is_dir)
{
    struct node n = {.is_dir = is_dir};
    vec_push(&d->nodes, n);
    return d->nodes.n - 1;
}

static void set_name(struct node *folder, struct entry e)
{
    for (uint32_t i = 0; i < folder->entries.n; i++)
        if (strcmp(folder->entries.data[i].name, e.name) == 0) {
            folder->entries.data[i].node = e.node;
            return;
        }
    vec_push(&folder->entries, e);
}

static uint32_t find_name(const struct node *folder, const char *name)
{
    for (uint32_t i = 0; i < folder->entries.n; i++)
        if (strcmp(folder->entries.data[i].name, name) == 0)
            return folder->entries.data[i].node;
    return NO_NODE;
}

static void load(struct disk *d, uint32_t id, const char *path)
{
    char **names = NULL;
    int64_t n = 0;
    if (file_list_folder(&d->arena, path, &names, &n, NULL) != ST_OK)
        fail_msg("cannot list %s", path);
    for (int64_t i = 0; i < n; i++) {
        char below[1200];
        snprintf(below, sizeof(below), "%s/%s", path, names[i]);
        bool is_dir = file_is_folder(below);
        uint32_t child = add_node(d, is_dir);
        struct entry e = {names[i], child};
        vec_push(&d->nodes.data[id].before, e);
        set_name(&d->nodes.data[id], e);
        if (is_dir) {
            load(d, child, below);
            continue;
        }
        struct str text = {0};
        if (file_read_all(below, (int64_t)MIB, &text, NULL) != ST_OK)
            fail_msg("cannot read %s", below);
        d->nodes.data[child].bytes = text.n;
        d->nodes.data[child].data = arena_alloc(&d->arena, text.n + 1);
        memcpy(d->nodes.data[child].data, str_get(&text), text.n);
        str_free(&text);
    }
}

/* The node of a path and the folder and name it stands under. */
static uint32_t resolve(struct disk *d, const char *path, uint32_t *folder,
                        const char **name)
{
    uint32_t at = 0;
    size_t n = strlen(d->root);
    assert_memory_equal(path, d->root, n);
    *folder = NO_NODE;
    *name = "";
    for (path += n; *path == '/'; path += n) {
        path++;
        n = strcspn(path, "/");
        *folder = at;
        *name = arena_strndup(&d->arena, path, n);
        assert_true(at != NO_NODE);
        at = find_name(&d->nodes.data[at], *name);
    }
    return at;
}

static void change_names(struct disk *d, struct change *c)
{
    for (int i = 0; i < c->n_names; i++)
        set_name(&d->nodes.data[c->folder], c->names[i]);
}

static int record(void *arg, const struct durable_event *e)
{
    struct disk *d = arg;
    struct change c = {.op = e->op, .folder = NO_NODE, .file = NO_NODE};
    const char *name, *to_name;
    uint32_t folder, to_folder, node = resolve(d, e->path, &folder, &name),
                                to = NO_NODE;
    if (e->to) {
        to = resolve(d, e->to, &to_folder, &to_name);
        assert_int_equal(folder, to_folder);
    }
    c.folder = folder;
    switch (e->op) {
    case DURABLE_MKDIR:
    case DURABLE_CREATE:
        if (node == NO_NODE)
            c.names[c.n_names++] =
                    (struct entry){name, add_node(d, e->op == DURABLE_MKDIR)};
        else
            c.file = node; /* emptied */
        break;
    case DURABLE_WRITE:
        c.file = node;
        c.offset = e->offset;
        c.bytes = e->bytes;
        c.data = arena_alloc(&d->arena, e->bytes);
        memcpy(c.data, e->data, e->bytes);
        break;
    case DURABLE_FSYNC: c.file = node; break;
    case DURABLE_FSYNC_DIR: c.folder = node; break;
    case DURABLE_RENAME:
        c.names[c.n_names++] = (struct entry){name, NO_NODE};
        c.names[c.n_names++] = (struct entry){to_name, node};
        break;
    case DURABLE_EXCHANGE:
        c.names[c.n_names++] = (struct entry){name, to};
        c.names[c.n_names++] = (struct entry){to_name, node};
        break;
    case DURABLE_UNLINK:
    case DURABLE_RMDIR: c.names[c.n_names++] = (struct entry){name, NO_NODE}; break;
    case DURABLE_OP_COUNT: fail(); break;
    }
    change_names(d, &c);
    vec_push(&d->changes, c);
    return 0;
}

static void disk_free(struct disk *d)
{
    for (uint32_t i = 0; i < d->nodes.n; i++) {
        vec_free(&d->nodes.data[i].entries);
        vec_free(&d->nodes.data[i].before);
    }
    vec_free(&d->nodes);
    vec_free(&d->changes);
    arena_release(&d->arena);
}

/* ---- the disk after a cut ---- */

enum cut {
    CUT_DROP_ALL, /* nothing that was not flushed */
    CUT_KEEP_ALL,
    CUT_DROP_BYTES, /* names, without the bytes */
    CUT_DROP_NAMES, /* bytes, without the names */
    CUT_RANDOM,     /* this and above: a draw for each change */
};

/* Whether change i is on the disk for certain when the first n happened. */
static bool is_flushed(const struct disk *d, uint32_t i, uint32_t n)
{
    const struct change *c = &d->changes.data[i];
    for (uint32_t j = i + 1; j < n; j++) {
        const struct change *f = &d->changes.data[j];
        if (c->n_names > 0 && f->op == DURABLE_FSYNC_DIR && f->folder == c->folder)
            return true;
        if (c->n_names == 0 && f->op == DURABLE_FSYNC && f->file == c->file)
            return true;
    }
    return false;
}

/* The part of a change that is there: 0 none, 1 all. */
static double kept(const struct disk *d, uint32_t i, uint32_t n, int cut)
{
    const struct change *c = &d->changes.data[i];
    if (is_flushed(d, i, n) || cut == CUT_KEEP_ALL)
        return 1;
    if (cut == CUT_DROP_ALL)
        return 0;
    if (cut == CUT_DROP_BYTES)
        return c->n_names > 0;
    if (cut == CUT_DROP_NAMES)
        return c->n_names == 0;
    uint64_t u = rng_u64(n, (uint64_t)cut, i);
    if (u % 3 == 0)
        return 0;
    return u % 3 == 1 || c->n_names > 0 ? 1 : (double)(u >> 11) * 0x1p-53;
}

struct image {
    struct str bytes;
    VEC(struct entry) entries;
};

static void image_name(struct image *m, struct entry e)
{
    for (uint32_t i = 0; i < m->entries.n; i++)
        if (strcmp(m->entries.data[i].name, e.name) == 0) {
            m->entries.data[i].node = e.node;
            return;
        }
    vec_push(&m->entries, e);
}

/* What lies before a write that is there, and was not written, reads as zeros. */
static void image_write(struct image *m, const struct change *c, double part)
{
    size_t n = part < 1 ? (size_t)(part * (double)c->bytes) : c->bytes;
    while (m->bytes.n < (size_t)c->offset)
        str_addc(&m->bytes, '\0');
    for (size_t i = 0; i < n; i++) {
        size_t at = (size_t)c->offset + i;
        if (at < m->bytes.n)
            m->bytes.s[at] = (char)c->data[i];
        else
            str_addc(&m->bytes, (char)c->data[i]);
    }
}

static struct image *make_images(const struct disk *d, uint32_t n, int cut)
{
    struct image *m = mem_alloc(d->nodes.n * sizeof(*m));
    for (uint32_t i = 0; i < d->nodes.n; i++) {
        const struct node *x = &d->nodes.data[i];
        for (size_t b = 0; b < x->bytes; b++)
            str_addc(&m[i].bytes, (char)x->data[b]);
        for (uint32_t e = 0; e < x->before.n; e++)
            vec_push(&m[i].entries, x->before.data[e]);
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct change *c = &d->changes.data[i];
        double part = kept(d, i, n, cut);
        for (int k = 0; part > 0 && k < c->n_names; k++)
            image_name(&m[c->folder], c->names[k]);
        if (part > 0 && c->op == DURABLE_WRITE)
            image_write(&m[c->file], c, part);
        else if (part > 0 && c->op == DURABLE_CREATE && c->n_names == 0)
            str_clear(&m[c->file].bytes);
    }
    return m;
}

static void write_out(const struct disk *d, const struct image *m, uint32_t id,
                      const char *path)
{
    if (mkdir(path, 0777) != 0)
        fail_msg("cannot make %s", path);
    for (uint32_t i = 0; i < m[id].entries.n; i++) {
        const struct entry *e = &m[id].entries.data[i];
        char below[1200];
        snprintf(below, sizeof(below), "%s/%s", path, e->name);
        if (e->node == NO_NODE)
            continue;
        if (d->nodes.data[e->node].is_dir) {
            write_out(d, m, e->node, below);
            continue;
        }
        FILE *f = fopen(below, "wb");
        const struct str *bytes = &m[e->node].bytes;
        assert_non_null(f);
        assert_int_equal(fwrite(str_get(bytes), 1, bytes->n, f), bytes->n);
        assert_int_equal(fclose(f), 0);
    }
}

static void rebuild(const struct disk *d, uint32_t n, int cut, const char *path)
{
    struct diag diag = {0};
    struct image *m = make_images(d, n, cut);
    if (file_remove_tree(path, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    write_out(d, m, 0, path);
    for (uint32_t i = 0; i < d->nodes.n; i++) {
        str_free(&m[i].bytes);
        vec_free(&m[i].entries);
    }
    mem_free(m);
}

/* ---- checkpoints whose numbers say which step they belong to ---- */

static void fill(float *x, int64_t step)
{
    rng_normal((uint64_t)step, 3, 0, N_FLOATS, x);
}

static void save_step(const char *dir, int64_t step, int keep, struct durable *durable)
{
    static float x[N_FLOATS];
    struct diag diag = {0};
    struct ckpt_saved saved;
    fill(x, step);
    const struct ckpt_tensor t[] = {
            {"w", CKPT_WEIGHT, DT_F32, 2, {50, N_FLOATS / 50}, 0, x},
            {"w", CKPT_EXP_AVG, DT_F32, 2, {50, N_FLOATS / 50}, 0, x}};
    struct ckpt_save save = {.dir = dir,
                             .step = step,
                             .tensors = t,
                             .n_tensors = 2,
                             .state_json = "{\"step\": 0}",
                             .keep = keep,
                             .durable = durable};
    if (ckpt_write(&save, &saved, &diag) != ST_OK)
        fail_msg("%s", diag.text);
}

/* The step of the newest checkpoint that is found; its numbers must be that step's. */
static int64_t newest(const char *dir)
{
    static float want[N_FLOATS], got[N_FLOATS];
    static const enum ckpt_kind kinds[] = {CKPT_WEIGHT, CKPT_EXP_AVG};
    struct ckpt *ck;
    struct diag diag = {0};
    if (ckpt_open_newest(dir, INT64_MAX, &ck, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    int64_t step = ckpt_get_info(ck)->step;
    struct shard_crew *crew = shard_crew_create(NULL);
    fill(want, step);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (ckpt_read_tensor(ck, kinds[i], "w", crew, got, &diag) != ST_OK)
            fail_msg("%s", diag.text);
        assert_memory_equal(want, got, sizeof(want));
    }
    shard_crew_destroy(crew);
    ckpt_close(ck);
    return step;
}

/* ---- cuts everywhere ---- */

static void check_cut(const struct disk *d, uint32_t n, int cut, int64_t step,
                      const char *path, int64_t seen[2])
{
    struct diag diag = {0};
    struct ckpt_lock *lock;
    rebuild(d, n, cut, path);
    int64_t found = newest(path);
    bool done = n == d->changes.n;
    if (found != step && (found != 20 || done))
        fail_msg("cut after %u of %u changes (%d): the newest is of step %lld", n,
                 d->changes.n, cut, (long long)found);
    seen[found == step]++;
    if (cut != CUT_DROP_ALL && cut != CUT_RANDOM)
        return;
    /* The next job starts, clears up, saves. */
    if (ckpt_lock(path, NULL, &lock, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    assert_int_equal(newest(path), found);
    save_step(path, 40, 1, NULL);
    assert_int_equal(newest(path), 40);
    ckpt_unlock(lock);
}

static void cut_everywhere(int64_t step, int keep)
{
    struct tmp tmp;
    struct disk d = {0};
    int64_t seen[2] = {0}, trials = 0;
    tmp_create(&tmp);
    d.root = tmp_path(&tmp, "disk");
    const char *path = tmp_path(&tmp, "after");
    save_step(d.root, 10, 0, NULL);
    save_step(d.root, 20, 0, NULL);
    add_node(&d, true);
    load(&d, 0, d.root);
    struct durable durable = {.hook = record, .arg = &d};
    save_step(d.root, step, keep, &durable);
    for (uint32_t n = 0; n <= d.changes.n; n++)
        for (int cut = 0; cut < CUT_RANDOM + RANDOM_CUTS; cut++, trials++)
            check_cut(&d, n, cut, step, path, seen);
    print_message(
            "step %lld, keep %d: %u changes, %lld cuts; the newest was the old one "
            "%lld times, the new one %lld times\n",
            (long long)step, keep, d.changes.n, (long long)trials, (long long)seen[0],
            (long long)seen[1]);
    assert_true(seen[1] > 0 && (step == 20 || seen[0] > 0));
    disk_free(&d);
    tmp_remove(&tmp);
}

static void test_new_step(void **state)
{
    (void)state;
    cut_everywhere(30, 1);
}

static void test_same_step(void **state)
{
    (void)state;
    cut_everywhere(20, 2);
}

/* The rebuilding must be able to do harm: a save without its flushes loses to a cut. */
static int record_without_flushes(void *arg, const struct durable_event *e)
{
    bool flush = e->op == DURABLE_FSYNC || e->op == DURABLE_FSYNC_DIR;
    return flush ? 0 : record(arg, e);
}

static void test_flushes_matter(void **state)
{
    struct tmp tmp;
    struct disk d = {0};
    (void)state;
    tmp_create(&tmp);
    d.root = tmp_path(&tmp, "disk");
    const char *path = tmp_path(&tmp, "after");
    save_step(d.root, 20, 0, NULL);
    add_node(&d, true);
    load(&d, 0, d.root);
    struct durable durable = {.hook = record_without_flushes, .arg = &d};
    save_step(d.root, 30, 0, &durable);
    int n_lost = 0;
    for (int cut = 0; cut < CUT_RANDOM + RANDOM_CUTS; cut++) {
        rebuild(&d, d.changes.n, cut, path);
        n_lost += newest(path) != 30;
    }
    print_message("without flushes %d of %d cuts lose the checkpoint\n", n_lost,
                  CUT_RANDOM + RANDOM_CUTS);
    assert_true(n_lost > CUT_RANDOM + RANDOM_CUTS - 4);
    disk_free(&d);
    tmp_remove(&tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_new_step),
            cmocka_unit_test(test_same_step),
            cmocka_unit_test(test_flushes_matter),
    };
    child_use_memory();
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
