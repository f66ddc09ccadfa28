#include "memory/budget.h"

#include <inttypes.h>

#include "core/verify.h"

static const char *const pool_names[] = {
        [POOL_DEVICE] = "device",
        [POOL_PINNED] = "pinned",
        [POOL_HOST] = "host",
        [POOL_FILE] = "file",
};
_Static_assert(ARRAY_LEN(pool_names) == POOL_COUNT, "one name per pool");

const char *pool_kind_name(enum pool_kind pool)
{
    ASSERT(pool < POOL_COUNT);
    return pool_names[pool];
}

/* The largest option that is at most `below` and not above the limit, or NULL. */
static const struct budget_option *next_fitting(const struct budget_option *options,
                                                int n, int64_t limit_bytes,
                                                const struct budget_option *after)
{
    const struct budget_option *best = NULL;
    for (int i = 0; i < n; i++) {
        const struct budget_option *o = &options[i];
        bool later = !after || o->bytes < after->bytes ||
                     (o->bytes == after->bytes && o > after);
        if (o->bytes <= limit_bytes && later && (!best || o->bytes > best->bytes))
            best = o;
    }
    return best;
}

static void hint_options(const struct budget_option *options, int n,
                         int64_t limit_bytes, struct diag *diag)
{
    char bytes[32];
    struct str text = {0};
    const struct budget_option *o = NULL;
    while ((o = next_fitting(options, n, limit_bytes, o)) != NULL)
        str_printf(&text, "%s%s (%s)", text.n ? ", or " : "it fits with ", o->change,
                   text_bytes(o->bytes, bytes, sizeof(bytes)));
    for (int i = 0; i < n && text.n == 0; i++)
        if (!o || options[i].bytes < o->bytes)
            o = &options[i];
    if (o)
        str_printf(&text, "nearest is %s, which needs %s", o->change,
                   text_bytes(o->bytes, bytes, sizeof(bytes)));
    if (text.n > 0)
        diag_hint(diag, "%s", text.s);
    str_free(&text);
}

enum status budget_check(enum pool_kind pool, int64_t arena_bytes, int64_t other_bytes,
                         int64_t limit_bytes, const struct budget_option *options,
                         int n, struct diag *diag)
{
    char need[32], limit[32], lack[32];
    int64_t needed = arena_bytes + other_bytes;
    if (limit_bytes == 0 || needed <= limit_bytes)
        return ST_OK;
    diag_set(diag, ST_NO_FIT, "%s memory does not suffice: got %s, wanted %s (%s more)",
             pool_kind_name(pool), text_bytes(limit_bytes, limit, sizeof(limit)),
             text_bytes(needed, need, sizeof(need)),
             text_bytes(needed - limit_bytes, lack, sizeof(lack)));
    hint_options(options, n, limit_bytes, diag);
    return ST_NO_FIT;
}

void budget_table(struct str *out, const struct program *p, const struct mem_report *r,
                  enum pool_kind pool)
{
    const struct mem_pool *m = &r->pool[pool];
    char at_peak[32], apart[32], label[64];
    str_printf(out, "%s memory  at the peak  unshared\n", pool_kind_name(pool));
    for (int c = 0; c < SC_COUNT; c++) {
        if (m->unshared_bytes[c] == 0)
            continue;
        str_printf(out, "  %-12s %12s %12s\n",
                   storage_class_name((enum storage_class)c),
                   text_bytes(m->class_bytes[c], at_peak, sizeof(at_peak)),
                   text_bytes(m->unshared_bytes[c], apart, sizeof(apart)));
    }
    str_printf(out, "  %-12s %12s (no packing needs less than %s)\n", "arena",
               text_bytes(m->pool_bytes, at_peak, sizeof(at_peak)),
               text_bytes(m->bound_bytes, apart, sizeof(apart)));
    if (m->peak_op != NONE_ID)
        str_printf(out, "  most is in use at op %s of segment %s\n",
                   verify_op_label(p, m->peak_op, label, sizeof(label)),
                   verify_segment_of(p, m->peak_op));
}
