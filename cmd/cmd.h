/* The command line: commands, their options, and what they are given. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include "core/str.h"

/* `key=value`, or `--set key=value`, in the order given. */
struct cmd_override {
    const char *key;
    const char *value;
};

/* Arguments of an option that may be given several times. */
struct cmd_list {
    const char **items;
    int n;
};

/* A command line, read. Strings are argv's, but for override keys; cmd_args_free. */
struct cmd_args {
    const struct cmd *command; /* NULL where none is named */
    const char **positional;   /* what is neither option nor key=value */
    int n_positional;
    struct cmd_override *overrides;
    int n_overrides;
    bool help, version;
    bool json;              /* one JSON document on stdout */
    bool quiet;             /* warnings and errors only */
    bool verbose;           /* -v */
    bool dry_run;           /* resolve, validate, print; write nothing */
    bool print_config;      /* print the resolved configuration */
    bool dump_program;      /* print the program of a step */
    bool man_options;       /* `angel help`: the options section of angel-config(5) */
    bool tensors;           /* ckpt inspect: a line per tensor */
    bool deep;              /* ckpt verify: decode every chunk */
    const char *completion; /* `angel help`: a shell; NULL where not given */
    const char *report;     /* the folder of a run to report on; NULL where not given */
    const char *tolerance;  /* ckpt diff: a number; NULL where not given */
    const char *keep;       /* ckpt prune: a number; NULL where not given */
    struct cmd_list allow_changes; /* --allow-change KEY */
    struct arena arena;
};

/* Runs a command; prints its own diagnostic. Returns the process's exit code. */
typedef int (*cmd_run_fn)(struct cmd_args *args);

struct cmd {
    const char *name;
    cmd_run_fn run;
    const char *usage;   /* what follows the name: "RUN.yaml [key=value ...]" */
    const char *summary; /* a line of `angel --help` */
    const char *about;   /* the text of `angel help NAME` */
    bool takes_config;   /* key=value arguments, and the options of a run */
    const char *later;   /* why the command is not in this build; NULL where it is */
};

/* All commands, those that are not in this build included. */
const struct cmd *cmd_table(int *n);

/* Reads the command line. in: argv without the program's name. errors: ST_CONFIG for
 * what is unknown (with a suggestion); ST_UNAVAILABLE for what is not in this build. */
MUST_CHECK enum status cmd_args_parse(int argc, char **argv, struct cmd_args *args,
                                      struct diag *diag);
void cmd_args_free(struct cmd_args *args);

/* An option as help shows it. */
struct cmd_option {
    const char *name;
    const char *value; /* the name of its argument; NULL for none */
    const char *help;
};

/* Option i of those that help shows for `command` (NULL: those of all commands). out:
 * *out; false when there are no more. */
bool cmd_args_option(const struct cmd *command, size_t i, struct cmd_option *out);

/* Options of a command (NULL: those of all), as lines of help. */
void cmd_args_print_help(const struct cmd *command, struct str *out);

/* Prints the diagnostic as every error is printed; returns the exit code. */
int cmd_fail(enum status st, const struct diag *diag);

/* What `angel` prints when asked for nothing, for help in general, or for one command.
 * */
void cmd_print_short_help(struct str *out);
void cmd_print_command_help(const struct cmd *command, struct str *out);

int cmd_pretrain(struct cmd_args *args);
int cmd_ckpt(struct cmd_args *args);
int cmd_help(struct cmd_args *args);

#endif
