/* Opening the MPI library. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "parallel/comm_mpi_private.h"

#define HOW_TO_GET                                                                      \
    "install Open MPI on every host (Debian and Ubuntu: openmpi-bin; Fedora and RHEL: " \
    "openmpi), or set ANGEL_MPI_LIBRARY to its libmpi.so.40"

static enum status not_open_mpi(void *handle, const char *file, const char *missing,
                                struct diag *diag)
{
    char text[MPI_TEXT_BYTES] = "";
    int n = 0;
    int (*version)(char *, int *);
    void *symbol = dlsym(handle, "MPI_Get_library_version");
    memcpy(&version, &symbol, sizeof(version));
    if (version)
        (void)version(text, &n);
    text[strcspn(text, "\n\r")] = '\0';
    diag_set(
            diag, ST_UNAVAILABLE,
            "the MPI library (%s) is not one that can be used: got '%.200s' without %s, "
            "wanted Open MPI 4 or 5",
            file, *text ? text : "no version", missing);
    diag_hint(diag, HOW_TO_GET);
    return ST_UNAVAILABLE;
}

static enum status bind(void *handle, const char *file, struct mpi_lib *lib,
                        struct diag *diag)
{
    /* The objects first: another MPI lacks them, and tells its version. */
#define MPI_BIND(name, symbol)                                                         \
    lib->name = dlsym(handle, symbol);                                                 \
    if (!lib->name)                                                                    \
        return not_open_mpi(handle, file, symbol, diag);
    MPI_OBJECTS(MPI_BIND)
#undef MPI_BIND
    void *found;
#define MPI_BIND(name, args)                                                           \
    found = dlsym(handle, "MPI_" #name);                                               \
    if (!found)                                                                        \
        return not_open_mpi(handle, file, "MPI_" #name, diag);                         \
    memcpy(&lib->name, &found, sizeof(found));
    MPI_FUNCTIONS(MPI_BIND)
#undef MPI_BIND
    return ST_OK;
}

enum status mpi_lib_open(struct mpi_lib *lib, const char *file, struct diag *diag)
{
    static const char *const usual[] = {"libmpi.so.40", "libmpi.so",
                                        "/usr/lib64/openmpi/lib/libmpi.so.40"};
    bool given = file && *file;
    char reason[256] = "";
    for (size_t i = 0; i < (given ? 1 : ARRAY_LEN(usual)); i++) {
        const char *name = given ? file : usual[i];
        /* Plug-ins of some builds look for the library's symbols: RTLD_GLOBAL. */
        void *handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
        if (handle)
            return bind(handle, name, lib, diag);
        if (!*reason)
            snprintf(reason, sizeof(reason), "%s", dlerror());
    }
    diag_set(
            diag, ST_UNAVAILABLE,
            "several ranks were started, and the MPI library that connects them cannot "
            "be opened (%s): %s",
            given ? file : usual[0], reason);
    diag_hint(diag, HOW_TO_GET);
    return ST_UNAVAILABLE;
}
