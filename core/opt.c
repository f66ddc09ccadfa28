#include "core/opt.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/opt_private.h"

/* What came of reading one value. */
enum parse {
    PARSE_OK,
    PARSE_TYPE,  /* not of the row's type */
    PARSE_RANGE, /* of the type, out of bounds */
    PARSE_LATER, /* a choice that this build does not have */
};

struct unit {
    const char *name;
    int64_t factor;
};

static const struct unit count_units[] = {
        {"", 1},           {"k", 1000},       {"K", 1000},          {"M", 1000000},
        {"B", 1000000000}, {"G", 1000000000}, {"T", 1000000000000},
};

static const struct unit byte_units[] = {
        {"", 1},
        {"B", 1},
        {"KiB", (int64_t)1 << 10},
        {"MiB", (int64_t)1 << 20},
        {"GiB", (int64_t)1 << 30},
        {"TiB", (int64_t)1 << 40},
        {"KB", 1000},
        {"kB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
};

static const struct {
    const char *name;
    double seconds;
} second_units[] = {{"", 1},     {"ms", 1e-3}, {"s", 1},
                    {"min", 60}, {"h", 3600},  {"d", 86400}};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Takes the digits at *text into *value; counts them. False when the value overflows.
 * */
static bool take_digits(const char **text, int64_t *value, int *n_digits)
{
    const char *p = *text;
    for (; is_digit(*p); p++, (*n_digits)++) {
        if (!mul_i64(*value, 10, value) || !add_i64(*value, *p - '0', value))
            return false;
    }
    *text = p;
    return true;
}

static bool scale_by_ten(int64_t *value, int64_t exponent)
{
    for (; exponent > 0 && *value; exponent--) {
        if (!mul_i64(*value, 10, value))
            return false;
    }
    for (; exponent < 0; exponent++) {
        if (*value % 10)
            return false;
        *value /= 10;
    }
    return true;
}

/* Reads DIGITS[.DIGITS][eN][unit] as an exact integer: "1.5M", "1e6", "40GiB". */
static bool parse_exact(const char *text, const struct unit *units, size_t n_units,
                        int64_t *out)
{
    const char *p = text;
    bool negative = *p == '-';
    p += negative;
    int64_t value = 0, exponent = 0;
    int n_whole = 0, n_fraction = 0, n_exponent = 0;
    if (!take_digits(&p, &value, &n_whole))
        return false;
    if (*p == '.') {
        p++;
        if (!take_digits(&p, &value, &n_fraction))
            return false;
    }
    if (n_whole + n_fraction == 0)
        return false;
    if ((*p == 'e' || *p == 'E') &&
        (is_digit(p[1]) || (p[1] == '+' && is_digit(p[2])))) {
        p += p[1] == '+' ? 2 : 1;
        if (!take_digits(&p, &exponent, &n_exponent) || exponent > 18)
            return false;
    }
    if (*p == ' ')
        p++;
    for (size_t i = 0; i < n_units; i++) {
        if (strcmp(p, units[i].name) != 0)
            continue;
        if (!mul_i64(value, units[i].factor, &value) ||
            !scale_by_ten(&value, exponent - n_fraction))
            return false;
        *out = negative ? -value : value;
        return true;
    }
    return false;
}

enum status opt_parse_count(const char *text, int64_t *out, struct diag *diag)
{
    if (parse_exact(text, count_units, ARRAY_LEN(count_units), out))
        return ST_OK;
    return diag_set(diag, ST_CONFIG,
                    "not a count: got '%s', wanted one such as 1000, 4M", text);
}

enum status opt_parse_bytes(const char *text, int64_t *out, struct diag *diag)
{
    if (parse_exact(text, byte_units, ARRAY_LEN(byte_units), out))
        return ST_OK;
    return diag_set(diag, ST_CONFIG, "not a size: got '%s', wanted one such as 40GiB",
                    text);
}

/* A finite decimal number up to *end; no hexadecimal, no "inf", no leading space. */
static bool parse_real_prefix(const char *text, double *out, const char **end)
{
    const char *p = text + (*text == '-' || *text == '+');
    if (!is_digit(*p) && !(*p == '.' && is_digit(p[1])))
        return false;
    if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X'))
        return false;
    char *stop;
    errno = 0;
    double v = strtod(text, &stop);
    if (!isfinite(v))
        return false;
    *out = v;
    *end = stop;
    return true;
}

static bool parse_real(const char *text, double *out)
{
    const char *end;
    return parse_real_prefix(text, out, &end) && *end == '\0';
}

static bool parse_seconds(const char *text, double *out)
{
    const char *end;
    double v;
    if (!parse_real_prefix(text, &v, &end))
        return false;
    if (*end == ' ')
        end++;
    for (size_t i = 0; i < ARRAY_LEN(second_units); i++) {
        if (strcmp(end, second_units[i].name) == 0) {
            *out = v * second_units[i].seconds;
            return true;
        }
    }
    return false;
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const words[2][3] = {{"false", "no", "off"},
                                            {"true", "yes", "on"}};
    for (int value = 0; value < 2; value++) {
        for (size_t i = 0; i < ARRAY_LEN(words[0]); i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value;
                return true;
            }
        }
    }
    return false;
}

static bool in_bounds(const struct opt *o, double v)
{
    return v >= o->min && v <= o->max;
}

double opt_auto_number(const struct opt *o)
{
    return in_bounds(o, 0) ? -1 : 0;
}

static enum parse set_count(const struct opt *o, void *at, const char *text)
{
    int64_t v = 0;
    bool bytes = o->type == OPT_BYTES;
    bool is_auto = (o->flags & OPT_AUTO) && strcmp(text, "auto") == 0;
    if (is_auto)
        v = (int64_t)opt_auto_number(o);
    else if (!parse_exact(text, bytes ? byte_units : count_units,
                          bytes ? ARRAY_LEN(byte_units) : ARRAY_LEN(count_units), &v))
        return PARSE_TYPE;
    if (!is_auto && !in_bounds(o, (double)v))
        return PARSE_RANGE;
    memcpy(at, &v, sizeof(v));
    return PARSE_OK;
}

static enum parse set_real(const struct opt *o, void *at, const char *text)
{
    double v = 0;
    bool is_auto = (o->flags & OPT_AUTO) && strcmp(text, "auto") == 0;
    if (is_auto)
        v = opt_auto_number(o);
    else if (!(o->type == OPT_SECONDS ? parse_seconds(text, &v) : parse_real(text, &v)))
        return PARSE_TYPE;
    if (!is_auto && !in_bounds(o, v))
        return PARSE_RANGE;
    memcpy(at, &v, sizeof(v));
    return PARSE_OK;
}

/* "[0.9, 0.95]", with or without brackets. */
static enum parse set_reals(const struct opt *o, void *at, const char *text)
{
    double v[OPT_REALS_MAX];
    const char *p = text + (*text == '[');
    for (int i = 0; i < o->n_elems; i++) {
        p += strspn(p, " ");
        if (!parse_real_prefix(p, &v[i], &p))
            return PARSE_TYPE;
        p += strspn(p, " ");
        if (i + 1 < o->n_elems && *p++ != ',')
            return PARSE_TYPE;
    }
    if (strcmp(p, *text == '[' ? "]" : "") != 0)
        return PARSE_TYPE;
    for (int i = 0; i < o->n_elems; i++) {
        if (!in_bounds(o, v[i]))
            return PARSE_RANGE;
    }
    memcpy(at, v, (size_t)o->n_elems * sizeof(double));
    return PARSE_OK;
}

static enum parse set_enum(const struct opt *o, void *at, const char *text)
{
    for (unsigned i = 0; o->choices[i].name; i++) {
        if (strcmp(text, o->choices[i].name) != 0)
            continue;
        if (o->choices[i].later)
            return PARSE_LATER;
        memcpy(at, &i, sizeof(i));
        return PARSE_OK;
    }
    if ((o->flags & OPT_AUTO) && strcmp(text, "auto") == 0)
        return set_enum(o, at, o->default_text);
    return o->later ? PARSE_LATER : PARSE_TYPE;
}

static enum parse set_text(const struct opt *o, void *at, const char *text,
                           struct arena *arena)
{
    if ((o->flags & OPT_AUTO) && strcmp(text, "auto") == 0)
        text = "";
    const char *copy = arena_strdup(arena, text);
    memcpy(at, &copy, sizeof(copy));
    return PARSE_OK;
}

static enum parse set_scalar(const struct opt *o, void *base, const char *text,
                             struct arena *arena)
{
    void *at = (char *)base + o->offset;
    bool flag;
    switch (o->type) {
    case OPT_BOOL:
        if (!parse_bool(text, &flag))
            return PARSE_TYPE;
        memcpy(at, &flag, sizeof(flag));
        return PARSE_OK;
    case OPT_COUNT:
    case OPT_BYTES: return set_count(o, at, text);
    case OPT_REAL:
    case OPT_SECONDS: return set_real(o, at, text);
    case OPT_REALS: return set_reals(o, at, text);
    case OPT_ENUM: return set_enum(o, at, text);
    case OPT_TEXT:
    case OPT_PATH: return set_text(o, at, text, arena);
    case OPT_LIST:
    case OPT_SUBTREE: break;
    }
    BUG("option %s has no scalar", o->key);
}

#define SHOWN_BYTES 80

/* What a user wrote, fit for one line of a message: short, without control characters.
 * */
static const char *shown(const char *text, char buf[SHOWN_BYTES])
{
    size_t n = text ? strlen(text) : 0;
    snprintf(buf, SHOWN_BYTES, "%.*s%s", SHOWN_BYTES - 4, text ? text : "",
             n > SHOWN_BYTES - 4 ? "..." : "");
    for (char *p = buf; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    return buf;
}

/* The diagnostic of a value that could not be set. `key` is as the user wrote it. */
static enum status value_error(const struct opt *o, const char *key, const char *text,
                               const char *where, enum parse why, struct diag *diag)
{
    struct str want = {0};
    opt_describe_wanted(o, why == PARSE_RANGE, &want);
    const char *later = NULL;
    if (why == PARSE_LATER) {
        later = o->later;
        for (unsigned i = 0; o->choices[i].name; i++) {
            if (strcmp(text, o->choices[i].name) == 0)
                later = o->choices[i].later;
        }
    }
    if (why == PARSE_RANGE)
        later = o->later;
    enum status st = later ? ST_UNAVAILABLE : ST_CONFIG;
    char buf[SHOWN_BYTES];
    diag_set(diag, st, "%s (%s): %s%sgot '%s', wanted %s", key, where,
             later ? later : "", later ? ": " : "", shown(text, buf), str_get(&want));
    if (why == PARSE_TYPE && o->type == OPT_ENUM) {
        const char *names[OPT_CHOICES_MAX];
        size_t n = opt_choice_names(o, names);
        const char *near = text_nearest(text, names, n);
        if (near)
            diag_hint(diag, "did you mean %s?", near);
    }
    str_free(&want);
    return st;
}

static enum status set_checked(const struct opt_store *s, const struct opt *o,
                               const char *key, const char *text, const char *where,
                               struct diag *diag)
{
    bool is_text = o->type == OPT_TEXT || o->type == OPT_PATH;
    enum parse why = PARSE_OK;
    if (!text && !is_text) {
        text = "";
        why = PARSE_TYPE;
    } else {
        why = set_scalar(o, s->base, text ? text : "", s->arena);
    }
    return why == PARSE_OK ? ST_OK : value_error(o, key, text, where, why, diag);
}

/* ---- keys ---- */

/* A key taken apart: the row, and what follows its name ("", ".a", "[1]",
 * "[1].weight"). */
struct target {
    uint32_t index;
    const struct opt *opt;
    const char *rest;
};

uint32_t opt_find_index(const struct opt_table *t, const char *key)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (strcmp(t->rows[i].key, key) == 0)
            return i;
    }
    return NONE_ID;
}

const struct opt *opt_find(const struct opt_table *t, const char *key)
{
    uint32_t i = opt_find_index(t, key);
    return i == NONE_ID ? NULL : &t->rows[i];
}

static bool is_below(const struct opt *o, const char *mapping)
{
    size_t n = strlen(mapping);
    return strncmp(o->key, mapping, n) == 0 && o->key[n] == '.';
}

bool opt_is_mapping(const struct opt_table *t, const char *key)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (is_below(&t->rows[i], key))
            return true;
    }
    return false;
}

/* The row that the key names or reaches into. */
static bool find_target(const struct opt_table *t, const char *key, struct target *out)
{
    for (uint32_t i = 0; i < t->n_rows; i++) {
        size_t n = strlen(t->rows[i].key);
        if (strncmp(t->rows[i].key, key, n) == 0 && strchr(".[", key[n])) {
            *out = (struct target){i, &t->rows[i], key + n};
            return true;
        }
    }
    return false;
}

static enum status unknown_key(const struct opt_table *t, const char *key,
                               const char *asked, const char *where, struct diag *diag)
{
    char buf[SHOWN_BYTES];
    enum status st = diag_set(diag, ST_CONFIG,
                              "unknown key (%s): got '%s', wanted a key of "
                              "angel-config(5)",
                              where, shown(asked, buf));
    const char *near = opt_suggest(t, key);
    size_t n_front = strlen(asked) - strlen(key);
    if (near)
        diag_hint(diag, "did you mean %.*s%s?", (int)n_front, asked, near);
    else
        diag_hint(diag, "`angel help options` lists every key");
    return st;
}

static enum status not_a_mapping(const struct opt *o, const char *key,
                                 const char *where, struct diag *diag)
{
    struct str want = {0};
    opt_describe_wanted(o, false, &want);
    enum status st = diag_set(diag, ST_CONFIG, "%s (%s): got the key '%s', wanted %s",
                              o->key, where, key, str_get(&want));
    str_free(&want);
    return st;
}

static void note_origin(const struct opt_store *s, uint32_t index, const char *where,
                        int layer)
{
    if (s->origins)
        s->origins[index] = (struct opt_origin){arena_strdup(s->arena, where), layer};
}

/* ---- lists ---- */

static struct opt_list list_get(const struct opt *o, const void *base)
{
    struct opt_list l;
    memcpy(&l, (const char *)base + o->offset, sizeof(l));
    return l;
}

static void list_put(const struct opt *o, void *base, struct opt_list l)
{
    memcpy((char *)base + o->offset, &l, sizeof(l));
}

static struct opt_store element_store(const struct opt_store *s, const struct opt *o,
                                      struct opt_list l, int64_t i)
{
    size_t bytes = o->fields->struct_bytes;
    return (struct opt_store){o->fields, (char *)l.items + (size_t)i * bytes, s->arena,
                              NULL};
}

/* Room doubles whenever the length is a power of two, so no capacity is stored. */
static void list_append(const struct opt_store *s, const struct opt *o)
{
    struct opt_list l = list_get(o, s->base);
    size_t bytes = o->fields->struct_bytes;
    if ((l.n & (l.n - 1)) == 0) {
        void *items = arena_alloc_array(s->arena, l.n ? 2 * l.n : 1, bytes);
        if (l.n)
            memcpy(items, l.items, (size_t)l.n * bytes);
        l.items = items;
    }
    l.n++;
    list_put(o, s->base, l);
    struct opt_store element = element_store(s, o, l, l.n - 1);
    opt_set_defaults(&element);
}

static const struct opt *primary_field(const struct opt *o)
{
    for (uint32_t i = 0; i < o->fields->n_rows; i++) {
        if (o->fields->rows[i].flags & OPT_PRIMARY)
            return &o->fields->rows[i];
    }
    BUG("option %s has no primary field", o->key);
}

/* Takes "[12]" off *rest. */
static bool take_index(const char **rest, int64_t *index)
{
    const char *p = *rest;
    int n_digits = 0;
    *index = 0;
    if (*p++ != '[' || !take_digits(&p, index, &n_digits) || n_digits == 0 ||
        *p++ != ']')
        return false;
    *rest = p;
    return true;
}

static enum status set_in_list(const struct opt_store *s, const struct target *target,
                               const char *key, const char *text, const char *where,
                               struct diag *diag)
{
    const struct opt *o = target->opt;
    const char *rest = target->rest;
    int64_t index = 0;
    if (*rest == '\0')
        list_put(o, s->base, (struct opt_list){0});
    else if (!take_index(&rest, &index))
        return not_a_mapping(o, key, where, diag);
    struct opt_list l = list_get(o, s->base);
    if (index > l.n)
        return diag_set(diag, ST_CONFIG,
                        "%s (%s): got an index past the list, wanted at "
                        "most %lld",
                        key, where, (long long)l.n);
    if (index == l.n)
        list_append(s, o);
    struct opt_store element = element_store(s, o, list_get(o, s->base), index);
    if (*rest == '\0')
        return set_checked(&element, primary_field(o), key, text, where, diag);
    const struct opt *field = *rest == '.' ? opt_find(o->fields, rest + 1) : NULL;
    if (!field)
        return unknown_key(o->fields, rest + (*rest == '.'), key, where, diag);
    return set_checked(&element, field, key, text, where, diag);
}

static enum status set_in_reals(const struct opt_store *s, const struct target *target,
                                const char *key, const char *text, const char *where,
                                struct diag *diag)
{
    const char *rest = target->rest;
    int64_t index;
    if (!take_index(&rest, &index) || *rest != '\0' || index >= target->opt->n_elems)
        return not_a_mapping(target->opt, key, where, diag);
    struct opt one = *target->opt;
    one.type = OPT_REAL;
    one.offset += (size_t)index * sizeof(double);
    return set_checked(s, &one, key, text, where, diag);
}

/* An element of a list that is kept as text: it goes behind those before it. */
static enum status set_in_commas(const struct opt_store *s, const struct target *target,
                                 const char *key, const char *text, const char *where,
                                 struct diag *diag)
{
    const char *rest = target->rest, *before;
    int64_t index;
    if (!take_index(&rest, &index) || *rest != '\0')
        return not_a_mapping(target->opt, key, where, diag);
    memcpy(&before, (const char *)s->base + target->opt->offset, sizeof(before));
    struct str all = {0};
    str_printf(&all, "%s%s%s", before, *before ? "," : "", text ? text : "");
    enum status st = set_checked(s, target->opt, key, str_get(&all), where, diag);
    str_free(&all);
    return st;
}

enum status opt_begin_sequence(const struct opt_store *s, const char *key, int64_t n,
                               const char *where, int layer, struct diag *diag)
{
    struct target target;
    if (!find_target(s->table, key, &target))
        return opt_is_mapping(s->table, key)
                       ? diag_set(diag, ST_CONFIG,
                                  "%s (%s): got a list, wanted a mapping", key, where)
                       : unknown_key(s->table, key, key, where, diag);
    const struct opt *o = target.opt;
    if (o->type == OPT_SUBTREE)
        return opt_set(s, key, "[...]", where, layer, diag);
    bool commas = o->type == OPT_TEXT && (o->flags & OPT_COMMAS);
    bool takes_list =
            o->type == OPT_LIST || commas || (o->type == OPT_REALS && n == o->n_elems);
    if (!takes_list || *target.rest != '\0') {
        struct str want = {0};
        opt_describe_wanted(o, false, &want);
        diag_set(diag, ST_CONFIG, "%s (%s): got a list of %lld, wanted %s", key, where,
                 (long long)n, str_get(&want));
        str_free(&want);
        return ST_CONFIG;
    }
    if (o->type == OPT_LIST)
        list_put(o, s->base, (struct opt_list){0});
    if (commas)
        TRY(set_checked(s, o, key, "", where, diag));
    note_origin(s, target.index, where, layer);
    return ST_OK;
}

static bool field_is_empty(const struct opt *o, const void *base)
{
    const char *at = (const char *)base + o->offset;
    int64_t count = 0;
    const char *text = NULL;
    if (o->type == OPT_TEXT || o->type == OPT_PATH) {
        memcpy(&text, at, sizeof(text));
        return !text || !*text;
    }
    memcpy(&count, at, sizeof(count));
    return count == 0;
}

static enum status check_element(const struct opt_store *s, const struct opt *o,
                                 int64_t index, struct diag *diag)
{
    struct opt_store element = element_store(s, o, list_get(o, s->base), index);
    for (uint32_t f = 0; f < o->fields->n_rows; f++) {
        const struct opt *field = &o->fields->rows[f];
        if ((field->flags & OPT_NEEDED) && field_is_empty(field, element.base))
            return diag_set(diag, ST_CONFIG, "%s[%lld] (%s): got no %s, wanted one",
                            o->key, (long long)index, opt_where(s, o->key), field->key);
    }
    return ST_OK;
}

enum status opt_check_lists(const struct opt_store *s, struct diag *diag)
{
    for (uint32_t i = 0; i < s->table->n_rows; i++) {
        const struct opt *o = &s->table->rows[i];
        int64_t n = o->type == OPT_LIST ? list_get(o, s->base).n : 0;
        for (int64_t e = 0; e < n; e++)
            TRY(check_element(s, o, e, diag));
    }
    return ST_OK;
}

/* ---- setting ---- */

static void set_default(const struct opt_store *s, uint32_t index)
{
    const struct opt *o = &s->table->rows[index];
    struct diag diag;
    enum status st = ST_OK;
    if (s->origins)
        s->origins[index] = (struct opt_origin){0};
    if (o->type == OPT_SUBTREE)
        return;
    if (o->type == OPT_LIST)
        list_put(o, s->base, (struct opt_list){0});
    if (!o->default_text) { /* what must be given is 0 until it is */
        if (o->type == OPT_COUNT)
            memset((char *)s->base + o->offset, 0, sizeof(int64_t));
        return;
    }
    if (o->type == OPT_LIST)
        st = set_in_list(s, &(struct target){index, o, ""}, o->key, o->default_text,
                         "default", &diag);
    else
        st = set_checked(s, o, o->key, o->default_text, "default", &diag);
    if (st != ST_OK)
        BUG("%s", diag.text);
}

void opt_set_defaults(const struct opt_store *s)
{
    for (uint32_t i = 0; i < s->table->n_rows; i++)
        set_default(s, i);
}

void opt_reset_mapping(const struct opt_store *s, const char *key)
{
    for (uint32_t i = 0; i < s->table->n_rows; i++) {
        if (is_below(&s->table->rows[i], key))
            set_default(s, i);
    }
}

/* `mapping: auto`: every row below takes the word. */
static enum status set_mapping(const struct opt_store *s, const char *key,
                               const char *text, const char *where, int layer,
                               struct diag *diag)
{
    bool is_auto = text && strcmp(text, "auto") == 0;
    const struct opt *sample = NULL;
    bool all_take = true;
    for (uint32_t i = 0; i < s->table->n_rows; i++) {
        const struct opt *o = &s->table->rows[i];
        if (!is_below(o, key) || o->type == OPT_SUBTREE)
            continue;
        sample = sample ? sample : o;
        all_take &= (o->flags & OPT_AUTO) != 0;
    }
    if (!is_auto || !all_take) {
        char buf[SHOWN_BYTES];
        diag_set(diag, ST_CONFIG, "%s (%s): got '%s', wanted a mapping%s", key, where,
                 shown(text, buf), all_take ? " or auto" : "");
        if (sample)
            diag_hint(diag, "its first key is %s", sample->key);
        return ST_CONFIG;
    }
    for (uint32_t i = 0; i < s->table->n_rows; i++) {
        const struct opt *o = &s->table->rows[i];
        if (!is_below(o, key) || o->type == OPT_SUBTREE)
            continue;
        TRY(set_checked(s, o, o->key, text, where, diag));
        note_origin(s, i, where, layer);
    }
    return ST_OK;
}

enum status opt_set(const struct opt_store *s, const char *key, const char *text,
                    const char *where, int layer, struct diag *diag)
{
    struct target target;
    if (!find_target(s->table, key, &target)) {
        if (opt_is_mapping(s->table, key))
            return set_mapping(s, key, text, where, layer, diag);
        return unknown_key(s->table, key, key, where, diag);
    }
    const struct opt *o = target.opt;
    char buf[SHOWN_BYTES];
    if (o->type == OPT_SUBTREE)
        return diag_set(diag, ST_UNAVAILABLE,
                        "%s (%s): %s: got '%s', wanted the key left out", key, where,
                        o->later, shown(text, buf));
    if (o->type == OPT_LIST)
        TRY(set_in_list(s, &target, key, text, where, diag));
    else if (*target.rest == '\0')
        TRY(set_checked(s, o, key, text, where, diag));
    else if (o->type == OPT_REALS)
        TRY(set_in_reals(s, &target, key, text, where, diag));
    else if (o->type == OPT_TEXT && (o->flags & OPT_COMMAS))
        TRY(set_in_commas(s, &target, key, text, where, diag));
    else
        return not_a_mapping(o, key, where, diag);
    note_origin(s, target.index, where, layer);
    return ST_OK;
}

const char *opt_where(const struct opt_store *s, const char *key)
{
    uint32_t i = opt_find_index(s->table, key);
    if (i == NONE_ID)
        BUG("no option %s", key);
    return s->origins && s->origins[i].where ? s->origins[i].where : "default";
}

const char *opt_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}
