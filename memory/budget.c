#include "memory/budget.h"

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

enum status budget_check(int64_t needed_bytes, int64_t limit_bytes, const char *whose,
                         const struct budget_option *options, int n, struct diag *diag)
{
    char need[32], limit[32], lack[32];
    if (needed_bytes <= limit_bytes)
        return ST_OK;
    diag_set(diag, ST_NO_FIT,
             "the run does not fit in memory (%s): got %s, wanted %s, %s more", whose,
             text_bytes(limit_bytes, limit, sizeof(limit)),
             text_bytes(needed_bytes, need, sizeof(need)),
             text_bytes(needed_bytes - limit_bytes, lack, sizeof(lack)));
    hint_options(options, n, limit_bytes, diag);
    return ST_NO_FIT;
}
