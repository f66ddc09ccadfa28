/* Memory for host tables: arenas, and the only callers of malloc in the tree.
 *
 * Tables (programs, models, configurations) live in arenas or growing vectors. They are
 * small beside the tensors, so running out here ends the process with exit code 71 and
 * one line; the large pools that hold tensors are mapped by pages_map, which reports.
 */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include "core/status.h"

struct arena_block;

/* A bump allocator: allocations live until arena_release. Zero-initialise to start. */
struct arena {
    struct arena_block *head;
    size_t bytes_total;
};

/* Zeroed memory, aligned to 16. */
void *arena_alloc(struct arena *a, size_t bytes);

/* Room for n elements, zeroed; the product is checked. */
#define arena_array(a, type, n)                                                        \
    ((type *)arena_alloc_array((a), (int64_t)(n), sizeof(type)))
void *arena_alloc_array(struct arena *a, int64_t n, size_t elem_bytes);

/* A copy of the string (arena_strndup: of its first n bytes), NUL-terminated. */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);

/* Frees everything; the arena can be used again. */
void arena_release(struct arena *a);

/* malloc/realloc/free that end the process with exit code 71 when memory is short.
 * mem_realloc(NULL, n) allocates; new memory of mem_alloc is zeroed. */
void *mem_alloc(size_t bytes);
void *mem_realloc(void *p, size_t bytes);
void mem_free(void *p);

/* Allocations that the calling thread made through this file so far: a check that a step
 * makes none. */
uint64_t mem_allocations(void);

/* Maps `bytes` of zeroed, 2 MiB-aligned memory with huge pages advised, for pools that
 * hold tensors. out: *out the address. errors: ST_NO_FIT with size and reason. */
MUST_CHECK enum status pages_map(size_t bytes, void **out, struct diag *diag);
void pages_unmap(void *p, size_t bytes);

#endif
