#include <math.h>
#include <stdio.h>

#include "cmd/cmd_ckpt.h"
#include "core/vec.h"
#include "io/json.h"

/* What became of one tensor. */
struct tensor_diff {
    const char *name;
    const char *kind;
    const char *problem; /* not comparable: why; else NULL */
    double max_abs;      /* NaN where either holds a NaN */
    double max_rel;      /* |a - b| over the larger of |a| and |b| */
    int64_t n_differ;    /* elements */
    int64_t n_elems;
    bool fails;
};

struct differ {
    const struct ckpt_request *request;
    const struct ckpt *a;
    const struct ckpt *b;
    VEC(struct tensor_diff) rows;
    void *buf[2]; /* a chunk's box of each */
    size_t buf_bytes;
};

/* Equal numbers differ by nothing, infinities included; a NaN differs from all, also from
 * a NaN, and stays. */
static void compare_elem(struct tensor_diff *r, double x, double y)
{
    if (x == y)
        return;
    double abs = fabs(x - y);
    double rel = abs / fmax(fabs(x), fabs(y));
    r->n_differ++;
    if (isnan(abs) || abs > r->max_abs)
        r->max_abs = isnan(r->max_abs) ? r->max_abs : abs;
    if (isnan(rel) || rel > r->max_rel)
        r->max_rel = isnan(r->max_rel) ? r->max_rel : rel;
}

static enum status compare_box(struct differ *d, const struct box *box, int64_t id_a,
                               int64_t id_b, enum dtype dtype, struct tensor_diff *r,
                               struct diag *diag)
{
    int64_t n = box_elems(box);
    size_t bytes = (size_t)n * dtype_bytes(dtype);
    for (int i = 0; i < 2 && bytes > d->buf_bytes; i++) {
        mem_free(d->buf[i]);
        d->buf[i] = mem_realloc(NULL, bytes);
    }
    d->buf_bytes = MAX(d->buf_bytes, bytes);
    struct ckpt_part a = {id_a, *box, d->buf[0]};
    struct ckpt_part b = {id_b, *box, d->buf[1]};
    TRY(ckpt_read(d->a, &a, 1, d->request->crew, diag));
    TRY(ckpt_read(d->b, &b, 1, d->request->crew, diag));
    for (int64_t i = 0; i < n; i++)
        compare_elem(r, dtype_get(d->buf[0], dtype, i), dtype_get(d->buf[1], dtype, i));
    return ST_OK;
}

static bool same_form(const struct ckpt_tensor *a, const struct ckpt_tensor *b)
{
    bool same = a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->shape[i] == b->shape[i];
    return same;
}

static enum status compare_tensor(struct differ *d, int64_t id_a, struct diag *diag)
{
    const struct ckpt_tensor *t = ckpt_tensor_info(d->a, id_a);
    struct tensor_diff r = {.name = t->name, .kind = ckpt_kind_name(t->kind)};
    struct box whole = box_whole(t->ndim, t->shape);
    int64_t id_b = ckpt_find(d->b, t->kind, t->name);
    int64_t n = 0;
    const struct shard_chunk *k = ckpt_tensor_chunks(d->a, id_a, &n);
    r.n_elems = box_elems(&whole);
    if (id_b < 0)
        r.problem = "only in the first";
    else if (!same_form(t, ckpt_tensor_info(d->b, id_b)))
        r.problem = "another shape or type";
    for (int64_t i = 0; i < n && !r.problem; i++)
        TRY(compare_box(d, &k[i].box, id_a, id_b, t->dtype, &r, diag));
    r.fails = r.problem || !(r.max_abs <= d->request->tolerance);
    vec_push(&d->rows, r);
    return ST_OK;
}

static enum status compare_all(struct differ *d, struct diag *diag)
{
    int64_t n_a = ckpt_get_info(d->a)->n_tensors;
    int64_t n_b = ckpt_get_info(d->b)->n_tensors;
    for (int64_t i = 0; i < n_a; i++)
        TRY(compare_tensor(d, i, diag));
    for (int64_t i = 0; i < n_b; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_info(d->b, i);
        struct tensor_diff r = {.name = t->name,
                                .kind = ckpt_kind_name(t->kind),
                                .problem = "only in the second",
                                .fails = true};
        if (ckpt_find(d->a, t->kind, t->name) < 0)
            vec_push(&d->rows, r);
    }
    return ST_OK;
}

static int64_t count_failing(const struct differ *d)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < d->rows.n; i++)
        n += d->rows.data[i].fails;
    return n;
}

static void print_text(const struct differ *d, struct str *out)
{
    int64_t n_equal = 0;
    str_printf(out, "%-12s %-12s %-18s %s\n", "max abs", "max rel", "elements",
               "tensor that differs");
    for (uint32_t i = 0; i < d->rows.n; i++) {
        const struct tensor_diff *r = &d->rows.data[i];
        if (r->problem) {
            str_printf(out, "%-12s %-12s %-18s %s (%s): %s\n", "-", "-", "-", r->name,
                       r->kind, r->problem);
        } else if (r->n_differ > 0) {
            char part[64];
            snprintf(part, sizeof(part), "%lld/%lld", (long long)r->n_differ,
                     (long long)r->n_elems);
            str_printf(out, "%-12.4g %-12.4g %-18s %s (%s)%s\n", r->max_abs, r->max_rel,
                       part, r->name, r->kind, r->fails ? "" : ", within tolerance");
        }
        n_equal += !r->problem && r->n_differ == 0;
    }
    str_printf(out, "%lld of %u tensors equal, %lld above tolerance %g\n",
               (long long)n_equal, d->rows.n, (long long)count_failing(d),
               d->request->tolerance);
}

static void print_json(const struct differ *d, struct str *out)
{
    struct json_writer w = {.out = out, .indent = 1};
    json_begin_object(&w);
    json_key(&w, "a");
    json_string(&w, ckpt_get_info(d->a)->path);
    json_key(&w, "b");
    json_string(&w, ckpt_get_info(d->b)->path);
    json_key(&w, "tolerance");
    json_f64(&w, d->request->tolerance);
    json_key(&w, "failing");
    json_i64(&w, count_failing(d));
    json_key(&w, "tensors");
    json_begin_array(&w);
    for (uint32_t i = 0; i < d->rows.n; i++) {
        const struct tensor_diff *r = &d->rows.data[i];
        json_begin_object(&w);
        json_key(&w, "name");
        json_string(&w, r->name);
        json_key(&w, "kind");
        json_string(&w, r->kind);
        json_key(&w, "problem");
        json_string(&w, r->problem);
        json_key(&w, "max_abs");
        json_f64(&w, r->max_abs);
        json_key(&w, "max_rel");
        json_f64(&w, r->max_rel);
        json_key(&w, "differing");
        json_i64(&w, r->n_differ);
        json_key(&w, "elements");
        json_i64(&w, r->n_elems);
        json_key(&w, "fails");
        json_bool(&w, r->fails);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    str_addc(out, '\n');
}

enum status ckpt_diff(const struct ckpt_request *request, const struct ckpt *a,
                      const struct ckpt *b, struct str *out, struct diag *diag)
{
    struct differ d = {.request = request, .a = a, .b = b};
    enum status st = compare_all(&d, diag);
    int64_t n = count_failing(&d);
    if (st == ST_OK && request->json)
        print_json(&d, out);
    else if (st == ST_OK)
        print_text(&d, out);
    if (st == ST_OK && n > 0)
        st = diag_set(diag, ST_CHECK,
                      "checkpoints differ (%s, %s): got %lld of %u tensors above "
                      "tolerance %g, wanted none",
                      ckpt_get_info(a)->path, ckpt_get_info(b)->path, (long long)n,
                      d.rows.n, request->tolerance);
    mem_free(d.buf[0]);
    mem_free(d.buf[1]);
    vec_free(&d.rows);
    return st;
}
