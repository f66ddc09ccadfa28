#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/opt_private.h"
#include "core/vec.h"

#define HELP_WIDTH  88
#define HELP_INDENT 34

/* ---- rows in words ---- */

static const struct {
    const char *word;   /* in help: "count" */
    const char *phrase; /* in errors: "a count such as 1000, 4k or 10B" */
} type_words[] = {
        [OPT_BOOL] = {"bool", "true or false"},
        [OPT_COUNT] = {"count", "a count such as 1000, 4k, 4M or 10B"},
        [OPT_BYTES] = {"size", "a size such as 512MiB, 40GiB or 1TB"},
        [OPT_REAL] = {"number", "a number such as 0.1 or 3e-4"},
        [OPT_REALS] = {"numbers", "numbers"},
        [OPT_SECONDS] = {"time", "a time such as 30s, 5min or 2h"},
        [OPT_ENUM] = {"choice", "a choice"},
        [OPT_TEXT] = {"text", "text"},
        [OPT_PATH] = {"path", "a path"},
        [OPT_LIST] = {"list", "a list"},
        [OPT_SUBTREE] = {"mapping", "a mapping"},
};

size_t opt_choice_names(const struct opt *o, const char **names)
{
    size_t n = 0;
    for (unsigned i = 0; o->choices[i].name; i++) {
        if (o->choices[i].later)
            continue;
        ASSERT(n < OPT_CHOICES_MAX);
        names[n++] = o->choices[i].name;
    }
    return n;
}

static void add_choices(const struct opt *o, const char *between, const char *last,
                        struct str *out)
{
    const char *names[OPT_CHOICES_MAX];
    size_t n = opt_choice_names(o, names);
    for (size_t i = 0; i < n; i++)
        str_printf(out, "%s%s", i == 0 ? "" : i + 1 < n ? between : last, names[i]);
}

static void add_fields(const struct opt *o, struct str *out)
{
    for (uint32_t i = 0; i < o->fields->n_rows; i++)
        str_printf(out, "%s%s", i ? ", " : "", o->fields->rows[i].key);
}

static void add_number(double v, struct str *out)
{
    char buf[40];
    if (v == floor(v) && fabs(v) < 1e15) {
        str_printf(out, "%.0f", v);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buf, sizeof(buf), "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    str_add(out, buf);
}

/* Bounds of a row in words; false when it has none to speak of. */
static bool add_bounds(const struct opt *o, struct str *out)
{
    bool low = o->min > OPT_NO_MIN, high = o->max < OPT_NO_MAX;
    if (!low && !high)
        return false;
    if (low && high && o->min == o->max) {
        add_number(o->min, out);
        return true;
    }
    str_add(out, low && high ? "" : low ? "at least " : "at most ");
    if (low)
        add_number(o->min, out);
    str_add(out, low && high ? " to " : "");
    if (high)
        add_number(o->max, out);
    return true;
}

void opt_describe_wanted(const struct opt *o, bool bounds, struct str *out)
{
    if (o->type == OPT_ENUM) {
        add_choices(o, ", ", " or ", out);
    } else if (o->type == OPT_LIST) {
        str_add(out, "a list of mappings with ");
        add_fields(o, out);
    } else if (o->type == OPT_REALS) {
        str_printf(out, "a list of %d numbers", o->n_elems);
        if (bounds) {
            str_add(out, ", each ");
            add_bounds(o, out);
        }
    } else if (!bounds || !add_bounds(o, out)) {
        str_add(out, type_words[o->type].phrase);
    }
    if ((o->flags & OPT_AUTO) && o->type != OPT_LIST && o->type != OPT_ENUM)
        str_add(out, " or auto");
}

/* ---- suggestions ---- */

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static bool same_parent(const char *a, const char *b)
{
    size_t n = (size_t)(last_part(a) - a);
    return n == (size_t)(last_part(b) - b) && strncmp(a, b, n) == 0;
}

struct names {
    VEC(const char *) full;
    VEC(const char *) last;
};

/* The full key whose last part is nearest to that of `key`; siblings only, where asked.
 * */
static const char *nearest_last(const struct opt_table *t, const char *key,
                                bool siblings)
{
    struct names names = {0};
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const char *full = t->rows[i].key;
        if ((t->rows[i].flags & OPT_HIDDEN) || (siblings && !same_parent(full, key)))
            continue;
        vec_push(&names.full, full);
        vec_push(&names.last, last_part(full));
    }
    const char *near = text_nearest(last_part(key), names.last.data, names.last.n);
    const char *found = NULL;
    for (uint32_t i = 0; near && !found && i < names.last.n; i++) {
        if (names.last.data[i] == near)
            found = names.full.data[i];
    }
    vec_free(&names.full);
    vec_free(&names.last);
    return found;
}

static const char *nearest_full(const struct opt_table *t, const char *key)
{
    VEC(const char *) names = {0};
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (!(t->rows[i].flags & OPT_HIDDEN))
            vec_push(&names, t->rows[i].key);
    }
    const char *near = text_nearest(key, names.data, names.n);
    vec_free(&names);
    return near;
}

const char *opt_suggest(const struct opt_table *t, const char *key)
{
    const char *near = nearest_last(t, key, true);
    for (uint32_t i = 0; !near && i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if (!(o->flags & OPT_HIDDEN) && strcmp(last_part(o->key), last_part(key)) == 0)
            near = o->key;
    }
    if (!near)
        near = nearest_full(t, key);
    return near ? near : nearest_last(t, key, false);
}

/* ---- values as YAML ---- */

/* Printed bare, the text reads back as itself: no character of YAML's grammar, not
 * null. */
static bool is_plain(const char *text)
{
    if (!*text || *text == '-' || strcasecmp(text, "null") == 0)
        return false;
    for (const char *p = text; *p; p++) {
        if (!isalnum((unsigned char)*p) && !strchr("_./+-", *p))
            return false;
    }
    return true;
}

static void add_text(const char *text, struct str *out)
{
    if (is_plain(text)) {
        str_add(out, text);
        return;
    }
    str_addc(out, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            str_printf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7f)
            str_printf(out, "\\x%02x", *p);
        else
            str_addc(out, (char)*p);
    }
    str_addc(out, '"');
}

static void add_count(const struct opt *o, int64_t v, struct str *out)
{
    static const struct {
        int shift;
        const char *unit;
    } units[] = {{40, "TiB"}, {30, "GiB"}, {20, "MiB"}};
    if ((o->flags & OPT_AUTO) && (double)v == opt_auto_number(o)) {
        str_add(out, "auto");
        return;
    }
    for (size_t i = 0; o->type == OPT_BYTES && v && i < ARRAY_LEN(units); i++) {
        if (v % ((int64_t)1 << units[i].shift) == 0) {
            str_printf(out, "%lld%s", (long long)(v >> units[i].shift), units[i].unit);
            return;
        }
    }
    str_printf(out, "%lld", (long long)v);
}

static void add_reals(const struct opt *o, const void *at, struct str *out)
{
    double v[OPT_REALS_MAX];
    memcpy(v, at, (size_t)o->n_elems * sizeof(double));
    str_addc(out, '[');
    for (int i = 0; i < o->n_elems; i++) {
        str_add(out, i ? ", " : "");
        add_number(v[i], out);
    }
    str_addc(out, ']');
}

static bool is_default(const struct opt *o, const void *base)
{
    struct str text = {0};
    opt_print_value(o, base, &text);
    bool same = o->default_text && strcmp(str_get(&text), o->default_text) == 0;
    str_free(&text);
    return same;
}

/* A bare scalar will do where the fields but the primary one are at their defaults. */
static bool is_bare(const struct opt_table *fields, const void *base)
{
    bool bare = true;
    for (uint32_t i = 0; i < fields->n_rows; i++) {
        const struct opt *f = &fields->rows[i];
        bare &= (f->flags & OPT_PRIMARY) || is_default(f, base);
    }
    return bare;
}

static void add_element(const struct opt_table *fields, const void *base,
                        struct str *out)
{
    bool bare = is_bare(fields, base);
    str_add(out, bare ? "" : "{");
    for (uint32_t i = 0; i < fields->n_rows; i++) {
        const struct opt *f = &fields->rows[i];
        if (!bare)
            str_printf(out, "%s%s: ", i ? ", " : "", f->key);
        if (!bare || (f->flags & OPT_PRIMARY))
            opt_print_value(f, base, out);
    }
    str_add(out, bare ? "" : "}");
}

static void add_list(const struct opt *o, const void *at, struct str *out)
{
    struct opt_list l;
    memcpy(&l, at, sizeof(l));
    bool alone = l.n == 1 && is_bare(o->fields, l.items);
    str_add(out, alone ? "" : "[");
    for (int64_t i = 0; i < l.n; i++) {
        str_add(out, i ? ", " : "");
        add_element(o->fields, (char *)l.items + (size_t)i * o->fields->struct_bytes,
                    out);
    }
    str_add(out, alone ? "" : "]");
}

void opt_print_value(const struct opt *o, const void *base, struct str *out)
{
    const void *at = (const char *)base + o->offset;
    union {
        bool flag;
        int64_t count;
        double real;
        unsigned choice;
        const char *text;
    } v;
    switch (o->type) {
    case OPT_BOOL:
        memcpy(&v.flag, at, sizeof(v.flag));
        str_add(out, v.flag ? "true" : "false");
        return;
    case OPT_COUNT:
    case OPT_BYTES:
        memcpy(&v.count, at, sizeof(v.count));
        add_count(o, v.count, out);
        return;
    case OPT_REAL:
    case OPT_SECONDS:
        memcpy(&v.real, at, sizeof(v.real));
        if ((o->flags & OPT_AUTO) && v.real == opt_auto_number(o))
            str_add(out, "auto");
        else
            add_number(v.real, out);
        return;
    case OPT_ENUM:
        memcpy(&v.choice, at, sizeof(v.choice));
        str_add(out, o->choices[v.choice].name);
        return;
    case OPT_TEXT:
    case OPT_PATH:
        memcpy(&v.text, at, sizeof(v.text));
        if ((o->flags & OPT_AUTO) && !*v.text)
            str_add(out, "auto");
        else
            add_text(v.text, out);
        return;
    case OPT_REALS: add_reals(o, at, out); return;
    case OPT_LIST: add_list(o, at, out); return;
    case OPT_SUBTREE: break;
    }
    BUG("option %s has no value", o->key);
}

/* How many leading bytes of `key` name mappings that `before` is in too. */
static size_t shared_mappings(const char *before, const char *key)
{
    size_t shared = 0;
    for (size_t i = 0; before[i] && before[i] == key[i]; i++) {
        if (key[i] == '.')
            shared = i + 1;
    }
    return shared;
}

static bool is_printed(const struct opt *o)
{
    return !(o->flags & OPT_HIDDEN) && o->type != OPT_SUBTREE;
}

void opt_print_yaml(const struct opt_table *t, const void *base, struct str *out)
{
    const char *before = "";
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if (!is_printed(o))
            continue;
        size_t begin = shared_mappings(before, o->key);
        int depth = 0;
        for (size_t c = 0; c < begin; c++)
            depth += o->key[c] == '.';
        const char *part = o->key + begin;
        for (const char *dot; (dot = strchr(part, '.')); part = dot + 1, depth++)
            str_printf(out, "%*s%.*s:\n", 2 * depth, "", (int)(dot - part), part);
        str_printf(out, "%*s%s: ", 2 * depth, "", part);
        opt_print_value(o, base, out);
        str_addc(out, '\n');
        before = o->key;
    }
}

/* ---- help ---- */

static const struct opt_group *group_of(const struct opt_table *t, const char *key)
{
    const struct opt_group *best = NULL;
    for (uint32_t i = 0; i < t->n_groups; i++) {
        const struct opt_group *g = &t->groups[i];
        if (strncmp(key, g->prefix, strlen(g->prefix)) == 0 &&
            (!best || strlen(g->prefix) > strlen(best->prefix)))
            best = g;
    }
    return best;
}

static bool is_number(const struct opt *o)
{
    return o->type == OPT_COUNT || o->type == OPT_BYTES || o->type == OPT_REAL ||
           o->type == OPT_REALS || o->type == OPT_SECONDS;
}

/* "swiglu|geglu, default swiglu": type, unit, bounds and default of a row. */
static void add_facts(const struct opt *o, struct str *out)
{
    if (o->type == OPT_ENUM)
        add_choices(o, "|", "|", out);
    else
        str_add(out, type_words[o->type].word);
    if ((o->flags & OPT_AUTO) && o->type != OPT_ENUM)
        str_add(out, " or auto");
    if (o->unit)
        str_printf(out, ", %s", o->unit);
    if (is_number(o) && (o->min > OPT_NO_MIN || o->max < OPT_NO_MAX)) {
        str_add(out, o->min == o->max ? ", only " : ", ");
        add_bounds(o, out);
    }
    if (!o->default_text)
        str_add(out, ", needed");
    else if (*o->default_text)
        str_printf(out, ", default %s", o->default_text);
}

/* Adds words from column `at` on, breaking lines before HELP_WIDTH. */
static void add_wrapped(const char *text, int at, struct str *out)
{
    int column = at;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > at && column + 1 + n > HELP_WIDTH) {
            str_printf(out, "\n%*s", at, "");
            column = at;
        } else if (column > at) {
            str_addc(out, ' ');
            column++;
        }
        str_add_n(out, text, (size_t)n);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    str_addc(out, '\n');
}

static void add_help_row(const struct opt *o, struct str *out)
{
    struct str text = {0};
    str_printf(&text, "%s (", o->help);
    add_facts(o, &text);
    str_addc(&text, ')');
    int n = (int)strlen(o->key) + 2;
    str_printf(out, "  %s", o->key);
    if (n + 1 < HELP_INDENT)
        str_printf(out, "%*s", HELP_INDENT - n, "");
    else
        str_printf(out, "\n%*s", HELP_INDENT, "");
    add_wrapped(str_get(&text), HELP_INDENT, out);
    str_free(&text);
}

int opt_print_help(const struct opt_table *t, const char *prefix, struct str *out)
{
    int n_printed = 0;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        if (strncmp(t->groups[g].prefix, prefix, strlen(prefix)) != 0)
            continue;
        bool headed = false;
        for (uint32_t i = 0; i < t->n_rows; i++) {
            const struct opt *o = &t->rows[i];
            if (!is_printed(o) || group_of(t, o->key) != &t->groups[g])
                continue;
            if (!headed)
                str_printf(out, "%s%s: %s\n", out->n ? "\n" : "", t->groups[g].title,
                           t->groups[g].about);
            headed = true;
            add_help_row(o, out);
            n_printed++;
        }
    }
    return n_printed;
}

/* Text as roff: backslashes and hyphens escaped, no line that begins as a request. */
static void add_roff(const char *text, struct str *out)
{
    if (*text == '.' || *text == '\'')
        str_add(out, "\\&");
    for (; *text; text++) {
        if (*text == '\\')
            str_add(out, "\\e");
        else if (*text == '-')
            str_add(out, "\\-");
        else
            str_addc(out, *text);
    }
}

static void add_roff_row(const struct opt *o, struct str *out)
{
    struct str facts = {0};
    add_facts(o, &facts);
    str_add(out, ".TP\n.B ");
    add_roff(o->key, out);
    str_addc(out, '\n');
    add_roff(o->help, out);
    str_add(out, "\n(");
    add_roff(str_get(&facts), out);
    str_add(out, ")\n");
    str_free(&facts);
}

void opt_print_roff(const struct opt_table *t, struct str *out)
{
    for (uint32_t g = 0; g < t->n_groups; g++) {
        str_add(out, ".SS ");
        add_roff(t->groups[g].title, out);
        str_addc(out, '\n');
        add_roff(t->groups[g].about, out);
        str_addc(out, '\n');
        for (uint32_t i = 0; i < t->n_rows; i++) {
            const struct opt *o = &t->rows[i];
            if (is_printed(o) && group_of(t, o->key) == &t->groups[g])
                add_roff_row(o, out);
        }
    }
}

/* ---- comparing ---- */

uint32_t opt_diff(const struct opt_table *t, const void *a, const void *b,
                  unsigned flags, uint32_t *rows)
{
    struct str in_a = {0}, in_b = {0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if ((o->flags & flags) != flags || o->type == OPT_SUBTREE)
            continue;
        str_clear(&in_a);
        str_clear(&in_b);
        opt_print_value(o, a, &in_a);
        opt_print_value(o, b, &in_b);
        if (strcmp(str_get(&in_a), str_get(&in_b)) != 0)
            rows[n++] = i;
    }
    str_free(&in_a);
    str_free(&in_b);
    return n;
}

uint64_t opt_hash(const struct opt_table *t, const void *base, unsigned flags)
{
    struct hash_chain h = {0};
    struct str text = {0};
    for (uint32_t i = 0; i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if ((o->flags & flags) != flags || o->type == OPT_SUBTREE)
            continue;
        str_clear(&text);
        opt_print_value(o, base, &text);
        hash_chain_add(&h, o->key, strlen(o->key));
        hash_chain_add(&h, str_get(&text), text.n);
    }
    str_free(&text);
    return h.value;
}

/* ---- the table itself ---- */

static enum status check_row(const struct opt_table *t, const struct opt *o,
                             struct diag *diag)
{
    size_t n = o->help ? strlen(o->help) : 0;
    bool hidden = (o->flags & OPT_HIDDEN) || o->type == OPT_SUBTREE;
    if (!hidden && (n == 0 || o->help[n - 1] != '.'))
        return diag_set(diag, ST_INTERNAL, "option %s: wanted one help sentence",
                        o->key);
    if (!hidden && t->n_groups && !group_of(t, o->key))
        return diag_set(diag, ST_INTERNAL, "option %s: in no group", o->key);
    if (o->type == OPT_SUBTREE && !o->later)
        return diag_set(diag, ST_INTERNAL, "option %s: wanted a reason", o->key);
    if (o->type == OPT_ENUM && (!o->choices || !o->choices[0].name))
        return diag_set(diag, ST_INTERNAL, "option %s: no choices", o->key);
    if (!o->default_text && o->type != OPT_COUNT && o->type != OPT_LIST &&
        o->type != OPT_SUBTREE)
        return diag_set(diag, ST_INTERNAL, "option %s: wanted a default", o->key);
    if (o->type == OPT_REALS && (o->n_elems < 1 || o->n_elems > OPT_REALS_MAX))
        return diag_set(diag, ST_INTERNAL, "option %s: bad element count", o->key);
    if (o->type == OPT_LIST && (!o->fields || !o->fields->struct_bytes))
        return diag_set(diag, ST_INTERNAL, "option %s: no fields", o->key);
    if (!(o->min <= o->max))
        return diag_set(diag, ST_INTERNAL, "option %s: least above most", o->key);
    return ST_OK;
}

/* Rows of one mapping stand together, so that YAML is printed without opening it twice.
 * */
static enum status check_order(const struct opt_table *t, uint32_t i, struct diag *diag)
{
    const char *key = t->rows[i].key;
    for (uint32_t j = 0; j < i; j++) {
        const char *other = t->rows[j].key;
        if (strcmp(other, key) == 0)
            return diag_set(diag, ST_INTERNAL, "option %s: two rows", key);
        if (shared_mappings(other, key) > shared_mappings(t->rows[i - 1].key, key))
            return diag_set(diag, ST_INTERNAL, "option %s: apart from %s", key, other);
    }
    return ST_OK;
}

/* Reads every default as if a user had written it. */
static enum status check_defaults(const struct opt_table *t, struct diag *diag)
{
    struct arena arena = {0};
    struct opt_store s = {t, arena_alloc(&arena, t->struct_bytes), &arena, NULL};
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < t->n_rows; i++) {
        const struct opt *o = &t->rows[i];
        if (o->default_text && o->type != OPT_SUBTREE)
            st = opt_set(&s, o->key, o->default_text, "default", 0, diag);
        if (st == ST_OK && o->type == OPT_LIST)
            st = opt_table_check(o->fields, diag);
    }
    arena_release(&arena);
    return st == ST_OK ? ST_OK : ST_INTERNAL;
}

enum status opt_table_check(const struct opt_table *t, struct diag *diag)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        TRY(check_row(t, &t->rows[i], diag));
        TRY(check_order(t, i, diag));
    }
    return check_defaults(t, diag);
}
