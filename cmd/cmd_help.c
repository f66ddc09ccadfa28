#include <stdio.h>
#include <string.h>

#include "cmd/completion.h"
#include "core/config.h"

static const struct cmd commands[] = {
        {.name = "pretrain",
         .run = cmd_pretrain,
         .usage = "[RUN.yaml] [key=value ...]",
         .summary = "train a model from scratch, or go on from its newest checkpoint",
         .about = "Trains the model that RUN.yaml describes. A key=value overrides\n"
                  "what the file says, and reaches into files that it names:\n"
                  "\n"
                  "  angel pretrain configs/runs/tiny-text.yaml data.train=notes/\n"
                  "  angel pretrain model=configs/models/llama-tiny.yaml data.train=a/",
         .takes_config = true},
        {.name = "ckpt",
         .run = cmd_ckpt,
         .usage = "inspect|verify|diff|prune PATH ...",
         .summary = "look into checkpoints, check them, compare two, remove old ones",
         .about =
                 "  angel ckpt inspect PATH [--tensors]    what a checkpoint holds\n"
                 "  angel ckpt verify PATH [--deep]        check every byte of it\n"
                 "  angel ckpt diff A B [--tolerance X]    compare the tensors of two\n"
                 "  angel ckpt prune DIR --keep N          remove all but the newest N\n"
                 "\n"
                 "PATH is a checkpoint (step-...), or a directory of them: then the newest\n"
                 "valid one is taken."},
        {.name = "help",
         .run = cmd_help,
         .usage = "[COMMAND | options [KEY]]",
         .summary = "help on a command, or on the keys of a configuration",
         .about =
                 "Without an argument, lists the commands. `angel help options` lists\n"
                 "every key of a configuration; `angel help options train` those\n"
                 "below train."},
        {.name = "finetune", .later = "fine-tuning is not in this build"},
        {.name = "plan", .later = "planning of layouts is not in this build"},
        {.name = "bench", .later = "benchmarks are not in this build"},
};

const struct cmd *cmd_table(int *n)
{
    *n = (int)ARRAY_LEN(commands);
    return commands;
}

void cmd_print_short_help(struct str *out)
{
    str_add(out, "usage: angel COMMAND [option ...] [argument ...]\n\ncommands:\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (!commands[i].later)
            str_printf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    str_add(out, "\noptions of every command:\n");
    cmd_args_print_help(NULL, out);
    str_add(out, "\n`angel help COMMAND` says more; the manual is man angel.\n");
}

void cmd_print_command_help(const struct cmd *command, struct str *out)
{
    str_printf(out, "usage: angel %s %s\n\n%s\n\noptions:\n", command->name,
               command->usage, command->about);
    cmd_args_print_help(command, out);
    if (!command->takes_config)
        return;
    str_add(out, "\nkeys, in RUN.yaml or as key=value:\n");
    opt_print_help(config_table(), "", out);
}

/* `angel help options [KEY]`: the groups below KEY; for a single key, its row. */
static enum status print_options(const char *key, struct str *out, struct diag *diag)
{
    const struct opt_table *t = config_table();
    if (opt_print_help(t, key, out) > 0)
        return ST_OK;
    const struct opt *o = opt_find(t, key);
    if (o) {
        struct opt_table one = *t;
        one.rows = o;
        one.n_rows = 1;
        if (opt_print_help(&one, "", out) > 0)
            return ST_OK;
    }
    diag_set(diag, ST_CONFIG,
             "no such key (command line): got '%s', wanted a key of a configuration",
             key);
    diag_hint(diag, "`angel help options` lists every key");
    return ST_CONFIG;
}

static enum status print_topic(const struct cmd_args *args, struct str *out,
                               struct diag *diag)
{
    const char *topic = args->positional[0];
    if (strcmp(topic, "options") == 0)
        return print_options(args->n_positional > 1 ? args->positional[1] : "", out,
                             diag);
    const char *names[ARRAY_LEN(commands) + 1];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        const struct cmd *c = &commands[i];
        if (!c->later)
            names[n++] = c->name;
        if (strcmp(c->name, topic) != 0)
            continue;
        if (c->later)
            return diag_set(diag, ST_UNAVAILABLE,
                            "%s (command line): %s: got '%s', wanted a command of "
                            "angel --help",
                            topic, c->later, topic);
        cmd_print_command_help(c, out);
        return ST_OK;
    }
    names[n++] = "options";
    diag_set(diag, ST_CONFIG,
             "no such topic (command line): got '%s', wanted a command or "
             "options",
             topic);
    const char *near = text_nearest(topic, names, n);
    if (near)
        diag_hint(diag, "did you mean angel help %s?", near);
    return ST_CONFIG;
}

int cmd_help(struct cmd_args *args)
{
    struct str out = {0};
    struct diag diag = {0};
    enum status st = ST_OK;
    if (args->man_options)
        opt_print_roff(config_table(), &out);
    else if (args->completion)
        st = completion_print(args->completion, &out, &diag);
    else if (args->n_positional == 0)
        cmd_print_short_help(&out);
    else
        st = print_topic(args, &out, &diag);
    fputs(str_get(&out), stdout);
    str_free(&out);
    return st == ST_OK ? 0 : cmd_fail(st, &diag);
}
