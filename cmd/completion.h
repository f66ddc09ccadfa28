/* Scripts that complete command lines in bash and zsh, made of the program's tables. */
#ifndef CMD_COMPLETION_H
#define CMD_COMPLETION_H

#include "cmd/cmd.h"

/* `angel help --completion SHELL`: appends the script. errors: ST_CONFIG for another
 * shell than bash and zsh. */
MUST_CHECK enum status completion_print(const char *shell, struct str *out,
                                        struct diag *diag);

#endif
