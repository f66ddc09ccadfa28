/* Stopping on request: the process's only signal state.
 *
 * The first SIGINT, SIGTERM or SIGHUP asks the run to stop at the end of its step; a
 * second SIGINT leaves at once with exit code 130. A write to a closed pipe or beyond a
 * file-size limit is an error of that write, not a signal.
 */
#ifndef CMD_SIGNALS_H
#define CMD_SIGNALS_H

#include <stdbool.h>

void signals_install(void);

/* The number of the signal that asked to stop, or 0. */
int signals_stop_requested(void);

#endif
