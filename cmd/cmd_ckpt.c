#include "cmd/cmd.h"

int cmd_ckpt(struct cmd_args *args)
{
    struct diag diag;
    return cmd_fail(
            diag_set(&diag, ST_UNAVAILABLE,
                     "angel %s (command line): not in this build: got it, wanted "
                     "another command",
                     args->command->name),
            &diag);
}
