/* Loaded before a program, makes one of its allocations fail: memory from the C library,
 * whoever asks for it, anonymous mappings and threads of the program itself.
 *
 *     LD_PRELOAD=fail_alloc.so FAIL_ALLOC=17 PROGRAM      the 17th fails
 *     LD_PRELOAD=fail_alloc.so FAIL_ALLOC=17+ PROGRAM     the 17th and all that follow
 *     LD_PRELOAD=fail_alloc.so FAIL_ALLOC_COUNT=FILE PROGRAM
 *                                    none fails; writes how many there were
 */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What glibc calls its own. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static atomic_long n_calls;
static long fail_first, fail_last; /* 0: none */
static const char *count_path;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("FAIL_ALLOC");
    count_path = getenv("FAIL_ALLOC_COUNT");
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    atomic_store(&n_calls, 0);
    fail_last = n > 0 && *end == '+' ? __LONG_MAX__ : n;
    fail_first = n;
}

__attribute__((destructor)) static void end(void)
{
    long n = atomic_load(&n_calls);
    FILE *f = count_path ? fopen(count_path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", n);
        fclose(f);
    }
}

static bool fails(void)
{
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    return fail_first > 0 && n >= fail_first && n <= fail_last;
}

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes)
{
    return fails() ? no_memory() : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? no_memory() : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return fails() ? no_memory() : __libc_realloc(p, bytes);
}

void *reallocarray(void *p, size_t n, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(n, bytes, &all) || fails())
        return no_memory();
    return __libc_realloc(p, all);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return fails() ? no_memory() : __libc_memalign(align, bytes);
}

void *memalign(size_t align, size_t bytes)
{
    return fails() ? no_memory() : __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    void *p = fails() ? NULL : __libc_memalign(align, bytes);
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

typedef void *(*mmap_fn)(void *, size_t, int, int, int, off_t);

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    static mmap_fn next;
    if ((flags & MAP_ANONYMOUS) && fails()) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "mmap");
        memcpy(&next, &found, sizeof(next));
    }
    return next(at, bytes, protection, flags, fd, offset);
}

typedef int (*thread_fn)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
                         void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                   void *arg)
{
    static thread_fn next;
    if (fails())
        return EAGAIN;
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        memcpy(&next, &found, sizeof(next));
    }
    return next(thread, attr, run, arg);
}
