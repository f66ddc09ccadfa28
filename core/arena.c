#include "core/arena.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK_BYTES_MIN ((size_t)64 << 10)
#define ALIGN_BYTES     ((size_t)16)
#define HUGE_BYTES      ((size_t)2 << 20)

struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t bytes;
    _Alignas(16) unsigned char data[];
};

/* Per thread, so that counting needs no lock and other threads do not disturb it. */
static _Thread_local uint64_t n_allocations;

uint64_t mem_allocations(void)
{
    return n_allocations;
}

/* Any thread may come here, several at once, holding any lock: no handlers of exit(), no
 * lock of a stream, no memory. */
NORETURN static void out_of_memory(size_t bytes)
{
    char text[128];
    int n = snprintf(text, sizeof(text),
                     "%sangel: out of memory for tables (host): wanted %zu bytes\n",
                     isatty(STDERR_FILENO) ? "\n" : "", bytes);
    ssize_t written = write(STDERR_FILENO, text, (size_t)n);
    (void)written; /* nothing can be done about it here */
    _exit(status_exit_code(ST_NO_FIT));
}

void *mem_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    n_allocations++;
    if (!p)
        out_of_memory(bytes);
    return p;
}

void *mem_realloc(void *p, size_t bytes)
{
    void *q = realloc(p, bytes ? bytes : 1);
    n_allocations++;
    if (!q)
        out_of_memory(bytes);
    return q;
}

void mem_free(void *p)
{
    free(p);
}

static struct arena_block *block_new(struct arena *a, size_t bytes)
{
    size_t want = MAX(bytes, BLOCK_BYTES_MIN);
    struct arena_block *b = mem_alloc(sizeof(*b) + want);
    b->bytes = want;
    b->next = a->head;
    a->head = b;
    a->bytes_total += want;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    size_t need = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (need < bytes)
        out_of_memory(bytes);
    struct arena_block *b = a->head;
    if (!b || b->bytes - b->used < need)
        b = block_new(a, need);
    void *p = b->data + b->used;
    b->used += need;
    return p;
}

void *arena_alloc_array(struct arena *a, int64_t n, size_t elem_bytes)
{
    int64_t bytes;
    if (n < 0 || !mul_i64(n, (int64_t)elem_bytes, &bytes))
        out_of_memory(SIZE_MAX);
    return arena_alloc(a, (size_t)bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

void arena_release(struct arena *a)
{
    struct arena_block *b = a->head;
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
    a->head = NULL;
    a->bytes_total = 0;
}

enum status pages_map(size_t bytes, void **out, struct diag *diag)
{
    size_t want = (MAX(bytes, 1) + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    /* One huge page more than wanted, so that an aligned range lies inside. */
    unsigned char *raw = mmap(NULL, want + HUGE_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return diag_set(diag, ST_NO_FIT,
                        "cannot map memory (host): wanted %zu bytes, system says %s",
                        bytes, strerror(errno));
    size_t skip = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (skip)
        munmap(raw, skip);
    munmap(raw + skip + want, HUGE_BYTES - skip);
    (void)madvise(raw + skip, want,
                  MADV_HUGEPAGE); /* advice only: small pages also work */
    *out = raw + skip;
    return ST_OK;
}

void pages_unmap(void *p, size_t bytes)
{
    if (p)
        munmap(p, (MAX(bytes, 1) + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
}
