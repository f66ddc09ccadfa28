/* A report of a run as one HTML page that needs nothing else: charts, events, memory,
 * configuration, and the command that goes on. */
#ifndef CMD_REPORT_HTML_H
#define CMD_REPORT_HTML_H

#include "cmd/cmd.h"

/* Makes the page from DIR/metrics.jsonl and, where there are any, the checkpoints in
 * DIR. out: *html, appended. errors: ST_NOT_FOUND without metrics, ST_DATA for a line
 * that is no JSON (the last one may be unfinished), ST_IO. */
MUST_CHECK enum status report_html(const char *folder, struct str *html,
                                   struct diag *diag);

/* `angel pretrain --report DIR`: writes DIR/report.html and prints its path. Returns the
 * exit code. */
int report_html_command(const struct cmd_args *args);

#endif
