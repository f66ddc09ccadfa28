#include "cmd/cmd.h"

#ifndef ANGEL_VERSION
#error "the makefile says which version this is"
#endif

const char *cmd_build_text(void)
{
    return "angel " ANGEL_VERSION "\nbuild " ANGEL_BUILD "\n";
}
