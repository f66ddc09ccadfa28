/* What core/opt.c and core/opt_print.c share. */
#ifndef CORE_OPT_PRIVATE_H
#define CORE_OPT_PRIVATE_H

#include "core/opt.h"

enum {
    OPT_REALS_MAX = 8,
    OPT_CHOICES_MAX = 16,
};

/* What a row takes, in words: "a count, at least 1", "swiglu, geglu or gelu". in:
 * bounds,
 * whether to give only the bounds. */
void opt_describe_wanted(const struct opt *o, bool bounds, struct str *out);

/* The names of available choices. out: names[OPT_CHOICES_MAX]; returns how many. */
size_t opt_choice_names(const struct opt *o, const char **names);

/* The number that stands for `auto`: 0, or -1 where 0 is in bounds. */
double opt_auto_number(const struct opt *o);

/* The key nearest to an unknown one, or NULL. */
const char *opt_suggest(const struct opt_table *t, const char *key);

#endif
