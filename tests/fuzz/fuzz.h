/* What the fuzz targets share. A target is a file fuzz_NAME.c with one
 * LLVMFuzzerTestOneInput; its seeds lie in tests/fuzz/corpus/NAME. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "core/str.h"

/* Called by libFuzzer for each input. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Ends the process as a crash that libFuzzer records with its input. */
NORETURN void fuzz_fail(const char *what, const char *file, int line);

/* What must hold whatever the input is. */
#define FUZZ_WANT(x) ((x) ? (void)0 : fuzz_fail(#x, __FILE__, __LINE__))

/* A folder below $TMPDIR, made at the first call; who runs the target removes it. */
const char *fuzz_folder(void);

/* Makes the file `name` of that folder hold n bytes. out: returns its path in buf. */
#define FUZZ_PATH_BYTES 512
const char *fuzz_file(const char *name, const void *data, size_t n,
                      char buf[FUZZ_PATH_BYTES]);

#endif
