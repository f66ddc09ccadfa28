/* A run's configuration from its file, the files that names, and the command line. */
#ifndef CMD_LOAD_CONFIG_H
#define CMD_LOAD_CONFIG_H

#include "cmd/cmd.h"
#include "core/config.h"

/* Layers of opt_origin: a higher one overrides. */
enum {
    LAYER_DEFAULT,
    LAYER_FILE,
    LAYER_COMMAND_LINE,
};

/* Reads run_file (NULL for none), then n overrides, and resolves. A key whose value
 * names a YAML file takes that file's mapping: looked for from the current folder, then
 * beside the file that names it, then, for configs/..., where angel is installed.
 * out: c, from config_init inside; config_free in any case. errors: ST_NOT_FOUND,
 * ST_IO, ST_CONFIG, ST_UNAVAILABLE, each with the place. */
MUST_CHECK enum status load_config(struct config *c, const char *run_file,
                                   const struct cmd_override *overrides, int n,
                                   struct diag *diag);

/* The same without config_resolve, for what reads only a part of the configuration. */
MUST_CHECK enum status load_config_raw(struct config *c, const char *run_file,
                                       const struct cmd_override *overrides, int n,
                                       struct diag *diag);

/* Reads a configuration from text as config_print writes it (a checkpoint keeps one).
 * in: name, what messages call it. */
MUST_CHECK enum status load_config_text(struct config *c, const char *text, size_t n,
                                        const char *name, struct diag *diag);

/* load_config of a command that takes at most one positional argument, RUN.yaml. */
MUST_CHECK enum status load_config_args(struct config *c, const struct cmd_args *args,
                                        struct diag *diag);

#endif
