#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "core/log.h"
#include "core/vec.h"

/* Which commands an option belongs to. */
enum scope {
    SCOPE_ALL,
    SCOPE_RUN,  /* commands that take a configuration */
    SCOPE_CKPT, /* `angel ckpt` */
    SCOPE_HELP, /* `angel help`, and in no help text */
};

struct option {
    const char *name;
    enum scope scope;
    size_t offset; /* of a bool in cmd_args, or with `value` of its text; 0: --set */
    const char *value; /* the name of the option's argument; NULL for none */
    const char *help;
    const char *later; /* why it is not in this build */
    bool is_list;      /* `offset` is of a cmd_list: may be given several times */
};

#define FLAG(member) offsetof(struct cmd_args, member)

static const struct option options[] = {
        {"--set", SCOPE_RUN, 0, "KEY=VALUE", "the same as a bare KEY=VALUE", NULL,
         false},
        {"--dry-run", SCOPE_RUN, FLAG(dry_run), NULL,
         "check everything, print parameters and memory, write nothing", NULL, false},
        {"--print-config", SCOPE_RUN, FLAG(print_config), NULL,
         "print the resolved configuration as YAML, which is the same run again", NULL,
         false},
        {"--dump-program", SCOPE_RUN, FLAG(dump_program), NULL,
         "print the program of a training step", NULL, false},
        {"--tensors", SCOPE_CKPT, FLAG(tensors), NULL, "inspect: a line per tensor",
         NULL, false},
        {"--deep", SCOPE_CKPT, FLAG(deep), NULL, "verify: decode every chunk", NULL,
         false},
        {"--tolerance", SCOPE_CKPT, FLAG(tolerance), "X",
         "diff: largest absolute difference to accept (0)", NULL, false},
        {"--keep", SCOPE_CKPT, FLAG(keep), "N", "prune: keep the newest N", NULL,
         false},
        {"--json", SCOPE_ALL, FLAG(json), NULL, "print one JSON document on stdout",
         NULL, false},
        {"--quiet", SCOPE_ALL, FLAG(quiet), NULL, "log warnings and errors only", NULL,
         false},
        {"-v", SCOPE_ALL, FLAG(verbose), NULL, "log more", NULL, false},
        {"--help", SCOPE_ALL, FLAG(help), NULL, "print help and leave", NULL, false},
        {"--version", SCOPE_ALL, FLAG(version), NULL,
         "print version and build, and leave", NULL, false},
        {"--man-options", SCOPE_HELP, FLAG(man_options), NULL, NULL, NULL, false},
        {"--completion", SCOPE_HELP, FLAG(completion), "SHELL", NULL, NULL, false},
        {"--profile", SCOPE_RUN, 0, "N", NULL, "traces are not in this build", false},
        {"--report", SCOPE_RUN, FLAG(report), "DIR",
         "write DIR/report.html from the metrics and checkpoints in DIR, and leave",
         NULL, false},
        {"--prepare", SCOPE_RUN, 0, NULL, NULL, "tokenising ahead is not in this build",
         false},
        {"--allow-change", SCOPE_RUN, FLAG(allow_changes), "KEY",
         "resume although KEY changed the run's mathematics", NULL, true},
        {"--threads-ranks", SCOPE_RUN, 0, "N", NULL, "this build trains on one rank",
         false},
};

static bool applies(const struct option *o, const struct cmd *command)
{
    if (o->scope == SCOPE_ALL)
        return true;
    if (o->scope == SCOPE_HELP)
        return command && strcmp(command->name, "help") == 0;
    if (o->scope == SCOPE_CKPT)
        return command && strcmp(command->name, "ckpt") == 0;
    return command && command->takes_config;
}

static const struct option *find_option(const char *name, const struct cmd *command)
{
    if (strcmp(name, "-h") == 0)
        name = "--help";
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        if (applies(&options[i], command) && strcmp(options[i].name, name) == 0)
            return &options[i];
    }
    return NULL;
}

static enum status unknown_option(const char *got, const struct cmd *command,
                                  struct diag *diag)
{
    VEC(const char *) names = {0};
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        if (applies(&options[i], command) && options[i].help)
            vec_push(&names, options[i].name);
    }
    const char *near = text_nearest(got, names.data, names.n);
    vec_free(&names);
    diag_set(diag, ST_CONFIG,
             "unknown option (command line): got '%s', wanted one of angel%s%s --help",
             got, command ? " " : "", command ? command->name : "");
    if (near)
        diag_hint(diag, "did you mean %s?", near);
    return ST_CONFIG;
}

static const struct cmd *find_command(const char *name)
{
    int n;
    const struct cmd *table = cmd_table(&n);
    for (int i = 0; i < n; i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    return NULL;
}

static enum status unknown_command(const char *got, struct diag *diag)
{
    int n;
    const struct cmd *table = cmd_table(&n);
    VEC(const char *) names = {0};
    for (int i = 0; i < n; i++) {
        if (!table[i].later)
            vec_push(&names, table[i].name);
    }
    const char *near = text_nearest(got, names.data, names.n);
    vec_free(&names);
    size_t n_got = strlen(got);
    diag_set(diag, ST_CONFIG,
             "unknown command (command line): got '%s', wanted one of angel --help",
             got);
    if (near)
        diag_hint(diag, "did you mean angel %s?", near);
    else if (n_got > 5 && strcmp(got + n_got - 5, ".yaml") == 0)
        diag_hint(diag, "did you mean angel pretrain %s?", got);
    return ST_CONFIG;
}

/* The length of a key at the front of KEY=VALUE, or 0. */
static size_t key_bytes(const char *arg)
{
    size_t n = strspn(arg, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_.[]");
    return arg[n] == '=' ? n : 0;
}

/* Vectors while reading; what cmd_args points to when done. */
struct reading {
    struct cmd_args *args;
    VEC(const char *) positional;
    VEC(struct cmd_override) overrides;
};

static enum status add_override(struct reading *r, const char *text, struct diag *diag)
{
    size_t n = key_bytes(text);
    if (!n)
        return diag_set(diag, ST_CONFIG,
                        "bad setting (command line): got '%s', wanted key=value", text);
    struct cmd_override o = {arena_strndup(&r->args->arena, text, n), text + n + 1};
    vec_push(&r->overrides, o);
    return ST_OK;
}

/* A list grows by copies in the arena: it holds a few keys at most. */
static void list_add(struct cmd_args *args, struct cmd_list *list, const char *text)
{
    const char **items = arena_array(&args->arena, const char *, list->n + 1);
    for (int i = 0; i < list->n; i++)
        items[i] = list->items[i];
    items[list->n++] = text;
    list->items = items;
}

/* in: *i, the option's place; out: *i, the last place it used. */
static enum status take_option(struct reading *r, int argc, char **argv, int *i,
                               struct diag *diag)
{
    struct cmd_args *args = r->args;
    const char *arg = argv[*i];
    const char *equals = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    const char *name =
            equals ? arena_strndup(&args->arena, arg, (size_t)(equals - arg)) : arg;
    const struct option *o = find_option(name, args->command);
    if (!o)
        return unknown_option(name, args->command, diag);
    if (o->later)
        return diag_set(diag, ST_UNAVAILABLE,
                        "%s (command line): %s: got the option, wanted it left out",
                        name, o->later);
    if (!o->value) {
        if (equals)
            return diag_set(diag, ST_CONFIG,
                            "%s (command line): got a value '%s', wanted none", name,
                            equals + 1);
        *(bool *)((char *)args + o->offset) = true;
        return ST_OK;
    }
    if (!equals && *i + 1 == argc)
        return diag_set(diag, ST_CONFIG, "%s (command line): got nothing, wanted %s",
                        name, o->value);
    const char *text = equals ? equals + 1 : argv[++*i];
    if (o->offset == 0)
        return add_override(r, text, diag);
    if (o->is_list)
        list_add(args, (struct cmd_list *)((char *)args + o->offset), text);
    else
        *(const char **)((char *)args + o->offset) = text;
    return ST_OK;
}

static enum status take_args(struct reading *r, int argc, char **argv,
                             struct diag *diag)
{
    struct cmd_args *args = r->args;
    bool options_end = false;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!options_end && strcmp(arg, "--") == 0) {
            options_end = true;
        } else if (!options_end && arg[0] == '-' && arg[1]) {
            TRY(take_option(r, argc, argv, &i, diag));
        } else if (!args->command) {
            args->command = find_command(arg);
            if (!args->command)
                return unknown_command(arg, diag);
            if (args->command->later)
                return diag_set(diag, ST_UNAVAILABLE,
                                "%s (command line): %s: got '%s', wanted a command "
                                "of angel --help",
                                arg, args->command->later, arg);
        } else if (args->command->takes_config && key_bytes(arg)) {
            TRY(add_override(r, arg, diag));
        } else {
            vec_push(&r->positional, arg);
        }
    }
    return ST_OK;
}

enum status cmd_args_parse(int argc, char **argv, struct cmd_args *args,
                           struct diag *diag)
{
    *args = (struct cmd_args){0};
    struct reading r = {.args = args};
    enum status st = take_args(&r, argc, argv, diag);
    args->positional = r.positional.data;
    args->n_positional = (int)r.positional.n;
    args->overrides = r.overrides.data;
    args->n_overrides = (int)r.overrides.n;
    return st;
}

void cmd_args_free(struct cmd_args *args)
{
    mem_free(args->positional);
    mem_free(args->overrides);
    arena_release(&args->arena);
    *args = (struct cmd_args){0};
}

bool cmd_args_option(const struct cmd *command, size_t i, struct cmd_option *out)
{
    for (size_t k = 0; k < ARRAY_LEN(options); k++) {
        const struct option *o = &options[k];
        if (!applies(o, command) || !o->help || i-- > 0)
            continue;
        *out = (struct cmd_option){o->name, o->value, o->help};
        return true;
    }
    return false;
}

void cmd_args_print_help(const struct cmd *command, struct str *out)
{
    struct cmd_option o;
    for (size_t i = 0; cmd_args_option(command, i, &o); i++) {
        int n = (int)strlen(o.name) + (o.value ? (int)strlen(o.value) + 1 : 0);
        str_printf(out, "  %s%s%s%*s%s\n", o.name, o.value ? " " : "",
                   o.value ? o.value : "", MAX(20 - n, 1), "", o.help);
    }
}

int cmd_fail(enum status st, const struct diag *diag)
{
    log_diag(diag);
    return status_exit_code(st);
}
