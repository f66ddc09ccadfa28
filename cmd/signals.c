#include "cmd/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/status.h"

/* Lock-free, so that a handler may write it while ranks on other threads read. */
static atomic_int stop_signal;

static void on_stop(int signal)
{
    if (atomic_load(&stop_signal) && signal == SIGINT) {
        static const char text[] =
                "\nangel: left at once on a second interrupt; the last "
                "checkpoint is kept\n";
        ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);
        (void)n; /* nothing can be done about it here */
        _exit(130);
    }
    atomic_store(&stop_signal, signal);
}

/* What the parent had ignored (nohup, a shell's background job) stays ignored. */
static void catch_stop(int signal)
{
    struct sigaction was, stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigemptyset(&stop.sa_mask);
    if (sigaction(signal, NULL, &was) == 0 && was.sa_handler == SIG_IGN)
        return;
    sigaction(signal, &stop, NULL);
}

void signals_install(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    catch_stop(SIGINT);
    catch_stop(SIGTERM);
    catch_stop(SIGHUP);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

int signals_stop_requested(void)
{
    return atomic_load(&stop_signal);
}
