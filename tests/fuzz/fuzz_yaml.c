/* A run file: read, resolved, printed, and read again as the same run. */
#include <string.h>

#include "cmd/load_config.h"
#include "io/yaml.h"
#include "tests/fuzz/fuzz.h"

/* What was read has the shape that its readers rely on. */
static void check_doc(const struct yaml_doc *doc)
{
    for (uint32_t i = 0; i < doc->n; i++) {
        const struct yaml_item *item = &doc->items[i];
        FUZZ_WANT(item->key && item->line >= 1);
        FUZZ_WANT((item->kind == YAML_SCALAR) == (item->value != NULL));
        FUZZ_WANT(item->n >= 0 && item->n <= doc->n);
    }
}

static void check_config(const char *text, size_t n)
{
    struct config c = {0}, again = {0};
    struct str first = {0}, second = {0};
    struct diag diag = {0};
    if (load_config_text(&c, text, n, "input", &diag) == ST_OK) {
        config_print(&c, &first);
        enum status st =
                load_config_text(&again, str_get(&first), first.n, "again", &diag);
        FUZZ_WANT(st == ST_OK);
        config_print(&again, &second);
        FUZZ_WANT(strcmp(str_get(&first), str_get(&second)) == 0);
    } else {
        FUZZ_WANT(diag.text[0] && !strchr(diag.text, '\n'));
    }
    str_free(&first);
    str_free(&second);
    config_free(&c);
    config_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct yaml_doc doc;
    struct diag diag = {0};
    const char *text = (const char *)data;
    if (yaml_doc_read_text(text, n, "input", &doc, &diag) == ST_OK) {
        check_doc(&doc);
        yaml_doc_free(&doc);
    } else {
        FUZZ_WANT(diag.text[0]);
    }
    check_config(text, n);
    return 0;
}
