/* Option tables: one row per option drives the command line, YAML, help, the manual
 * page, the printed configuration, and the comparison of two configurations.
 *
 * A row names a dotted key, a type, a place in a plain struct, a default as text (read
 * by the same parser as what users write), bounds and one sentence. A row of type
 * OPT_LIST has a table of its own for the fields of its elements.
 *
 * This is also the only reader of the environment.
 */
#ifndef CORE_OPT_H
#define CORE_OPT_H

#include <math.h>

#include "core/str.h"

/* No upper or lower bound. */
#define OPT_NO_MAX HUGE_VAL
#define OPT_NO_MIN (-HUGE_VAL)

/* The type says how text is read and what lies at the row's offset. */
enum opt_type {
    OPT_BOOL,    /* bool: true false yes no on off */
    OPT_COUNT,   /* int64_t: decimal, with k M B T (powers of 1000) */
    OPT_BYTES,   /* int64_t: KiB MiB GiB TiB, KB MB GB TB, or bare bytes */
    OPT_REAL,    /* double */
    OPT_REALS,   /* double[n_elems]: "[0.9, 0.95]" */
    OPT_SECONDS, /* double seconds: ms s min h d, or bare seconds */
    OPT_ENUM,    /* an enum (unsigned), from `choices` */
    OPT_TEXT,    /* const char *, never NULL */
    OPT_PATH,    /* const char *, never NULL */
    OPT_LIST,    /* struct opt_list of elements that `fields` describes */
    OPT_SUBTREE, /* nothing: every key below is recognised, and answered by `later` */
};

enum {
    OPT_AUTO = 1 << 0, /* the word `auto` is a value too: stored as "", 0, or -1 where 0
                             is in bounds; of an OPT_ENUM it is the default */
    OPT_MATHS = 1 << 1,   /* another value changes the mathematics of a run */
    OPT_HIDDEN = 1 << 2,  /* in no help, no manual and no printed configuration */
    OPT_PLAN = 1 << 3,    /* shapes the program: layout, memory, micro-batches */
    OPT_PRIMARY = 1 << 4, /* a list's field that a bare scalar element means */
    OPT_NEEDED = 1 << 5,  /* a list's field that every element must give */
    OPT_COMMAS = 1 << 6,  /* OPT_TEXT: a list is taken as its elements with commas */
};

/* The value of a choice is its place in the list. `later`, where set, says why a choice
 * is recognised and not available. A row of NULLs ends the list. */
struct opt_choice {
    const char *name;
    const char *later;
};

struct opt {
    const char *key;
    enum opt_type type;
    unsigned flags;
    size_t offset;
    const char *default_text;
    double min, max; /* bounds of a number, included */
    const char *unit;
    const char *help;
    const struct opt_choice *choices; /* OPT_ENUM */
    int n_elems;                      /* OPT_REALS */
    const struct opt_table *fields;   /* OPT_LIST */
    /* Why other values than those in bounds are not available (ST_UNAVAILABLE rather
     * than ST_CONFIG); NULL for a plain range. */
    const char *later;
};

/* A heading: rows whose key starts with `prefix` (the longest match counts). */
struct opt_group {
    const char *prefix; /* "train.optimizer."; "" takes what no other group does */
    const char *title;
    const char *about;
};

struct opt_table {
    const struct opt *rows;
    uint32_t n_rows;
    const struct opt_group *groups;
    uint32_t n_groups;
    size_t struct_bytes; /* of the struct that the rows' offsets lie in */
};

/* What lies at the offset of an OPT_LIST row; the struct there has a typed pointer. */
struct opt_list {
    void *items;
    int64_t n;
};

/* Where a row's value was given. Layers are ordered: a higher one overrides. */
struct opt_origin {
    const char *where; /* "run.yaml:7", "command line"; NULL for the default */
    int layer;         /* 0 for the default */
};

/* A struct with its table: the target of all functions that set. Plain,
 * owns nothing. */
struct opt_store {
    const struct opt_table *table;
    void *base;
    struct arena *arena;        /* owns every string and list of the struct */
    struct opt_origin *origins; /* [table->n_rows], or NULL: not kept */
};

/* Sets every row to its default. A default that cannot be read is a BUG (a table is
 * held right by opt_table_check in a test). */
void opt_set_defaults(const struct opt_store *s);

/* Sets the option `key` from text. in: key may reach into a list
 * ("data.train[1].weight": an index equal to the length appends), or be a mapping whose
 * rows all take `auto`, with that word; text, NULL for a YAML null; where, e.g.
 * "run.yaml:7". errors: ST_CONFIG for an unknown key (with a suggestion), a wrong type
 * or range; ST_UNAVAILABLE for a row or choice that has `later`; each names the key and
 * `where`. */
MUST_CHECK enum status opt_set(const struct opt_store *s, const char *key,
                               const char *text, const char *where, int layer,
                               struct diag *diag);

/* Announces a sequence of n elements for `key`: empties a list, so that opt_set
 * appends, and checks the count of OPT_REALS. errors: as opt_set. */
MUST_CHECK enum status opt_begin_sequence(const struct opt_store *s, const char *key,
                                          int64_t n, const char *where, int layer,
                                          struct diag *diag);

/* Sets the rows below the mapping `key` back to their defaults: what another file's
 * mapping replaces. */
void opt_reset_mapping(const struct opt_store *s, const char *key);

/* Checks that elements of lists have their needed fields. errors: ST_CONFIG. */
MUST_CHECK enum status opt_check_lists(const struct opt_store *s, struct diag *diag);

/* The row of exactly this key, or NULL; and its place in the table (NONE_ID). */
const struct opt *opt_find(const struct opt_table *t, const char *key);
uint32_t opt_find_index(const struct opt_table *t, const char *key);

/* True when `key` is a mapping of the table: "train" where "train.steps" is a row. */
bool opt_is_mapping(const struct opt_table *t, const char *key);

/* Where a row's value was given, in words: "run.yaml:7", "command line", "default". */
const char *opt_where(const struct opt_store *s, const char *key);

/* The row's value as YAML (lists in flow form, text quoted where it must be) that reads
 * back to the same value. */
void opt_print_value(const struct opt *o, const void *base, struct str *out);

/* All rows but hidden ones as YAML block mappings. */
void opt_print_yaml(const struct opt_table *t, const void *base, struct str *out);

/* Help, as plain text of at most 88 columns: the groups whose prefix starts with
 * `prefix` ("" for all). Returns the number of rows printed. */
int opt_print_help(const struct opt_table *t, const char *prefix, struct str *out);

/* The same as man(7) source, for the options section of the manual page. */
void opt_print_roff(const struct opt_table *t, struct str *out);

/* Rows whose flags have all of `flags` and whose values differ. out:
 * rows[table->n_rows],
 * the places of those rows; returns how many. */
uint32_t opt_diff(const struct opt_table *t, const void *a, const void *b,
                  unsigned flags, uint32_t *rows);

/* A fingerprint of keys and values of the rows that have all of `flags`. */
uint64_t opt_hash(const struct opt_table *t, const void *base, unsigned flags);

/* Finds faults of the table itself: duplicate keys, a default that is unreadable or out
 * of bounds, a missing sentence or group, a mapping that is left and entered again.
 * errors: ST_INTERNAL, naming the row. */
MUST_CHECK enum status opt_table_check(const struct opt_table *t, struct diag *diag);

/* Readers of single values, as rows of OPT_COUNT and OPT_BYTES use them: exact, or an
 * error. errors: ST_CONFIG. */
MUST_CHECK enum status opt_parse_count(const char *text, int64_t *out,
                                       struct diag *diag);
MUST_CHECK enum status opt_parse_bytes(const char *text, int64_t *out,
                                       struct diag *diag);

/* The environment variable, or NULL when it is unset or empty. */
const char *opt_env(const char *name);

#endif
