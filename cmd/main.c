#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "core/log.h"

static int run(struct cmd_args *args)
{
    struct str text = {0};
    if (args->quiet)
        log_set_level(LOG_WARN);
    if (args->verbose)
        log_set_level(LOG_DEBUG);
    if (args->version)
        str_add(&text, cmd_build_text());
    else if (args->help && args->command)
        cmd_print_command_help(args->command, &text);
    else if (args->help || !args->command)
        cmd_print_short_help(&text);
    else
        return args->command->run(args);
    bool asked = args->version || args->help;
    fputs(str_get(&text), asked ? stdout : stderr);
    str_free(&text);
    return asked ? 0 : status_exit_code(ST_CONFIG);
}

/* With a standard descriptor closed, the next file opened would take its number, and log
 * lines would go into a checkpoint: /dev/null takes it, where reads find the end and
 * writes fail as they did. */
static void hold_std_descriptors(void)
{
    int fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDONLY);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv)
{
    hold_std_descriptors();
    struct cmd_args args;
    struct diag diag = {0};
    enum status st = cmd_args_parse(argc - (argc > 0), argv + (argc > 0), &args, &diag);
    int code = st == ST_OK ? run(&args) : cmd_fail(st, &diag);
    cmd_args_free(&args);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        diag_set(&diag, ST_IO, "cannot write (stdout): system says %s",
                 strerror(errno));
        code = cmd_fail(ST_IO, &diag);
    }
    return code;
}
