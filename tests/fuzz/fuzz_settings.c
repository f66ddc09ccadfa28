/* Settings of the command line: a line of the input is one key=value. */
#include <string.h>

#include "cmd/load_config.h"
#include "tests/fuzz/fuzz.h"

#define SETTINGS_MAX 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct arena a = {0};
    struct config c = {0};
    struct diag diag = {0};
    struct cmd_override set[SETTINGS_MAX] = {
            {"model", "configs/models/llama-tiny.yaml"}};
    int n_set = 1;
    char *text = arena_strndup(&a, (const char *)data, n);
    while (text && *text && n_set < SETTINGS_MAX) {
        char *end = strchr(text, '\n'), *equals = strchr(text, '=');
        if (end)
            *end = '\0';
        if (equals && (!end || equals < end)) {
            *equals = '\0';
            set[n_set++] = (struct cmd_override){text, equals + 1};
        }
        text = end ? end + 1 : NULL;
    }
    if (load_config(&c, NULL, set, n_set, &diag) != ST_OK)
        FUZZ_WANT(diag.text[0] && !strchr(diag.text, '\n'));
    config_free(&c);
    arena_release(&a);
    return 0;
}
