/* metrics.jsonl as a report reads it: the page is made, whatever the numbers are. */
#include "cmd/report_html.h"
#include "tests/fuzz/fuzz.h"

/* The command line is not linked, and nothing here comes to it. */
int cmd_fail(enum status st, const struct diag *diag)
{
    (void)st;
    fuzz_fail(diag->text, __FILE__, __LINE__);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char buf[FUZZ_PATH_BYTES];
    struct str html = {0};
    struct diag diag = {0};
    (void)fuzz_file("metrics.jsonl", data, n, buf);
    if (report_html(fuzz_folder(), &html, &diag) != ST_OK)
        FUZZ_WANT(diag.text[0]);
    str_free(&html);
    return 0;
}
