#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/opt.h"

static char folder[FUZZ_PATH_BYTES / 2];

void fuzz_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: wanted %s\n", file, line, what);
    abort();
}

const char *fuzz_folder(void)
{
    const char *base = opt_env("TMPDIR");
    if (!folder[0]) {
        snprintf(folder, sizeof(folder), "%s/fuzz-XXXXXX", base ? base : "/tmp");
        FUZZ_WANT(mkdtemp(folder));
    }
    return folder;
}

const char *fuzz_file(const char *name, const void *data, size_t n,
                      char buf[FUZZ_PATH_BYTES])
{
    snprintf(buf, FUZZ_PATH_BYTES, "%s/%s", fuzz_folder(), name);
    int fd = open(buf, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FUZZ_WANT(fd >= 0);
    for (size_t at = 0; at < n;) {
        ssize_t r = write(fd, (const char *)data + at, n - at);
        FUZZ_WANT(r > 0 || errno == EINTR);
        at += r > 0 ? (size_t)r : 0;
    }
    FUZZ_WANT(close(fd) == 0);
    return buf;
}
