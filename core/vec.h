/* Growing arrays. `VEC(T) v = {0};` then vec_push(&v, item), v.data[i], v.n, vec_free. */
#ifndef CORE_VEC_H
#define CORE_VEC_H

#include "core/arena.h"

#define VEC(T)                                                                         \
    struct {                                                                           \
        T *data;                                                                       \
        uint32_t n;                                                                    \
        uint32_t cap;                                                                  \
    }

/* Doubles the room; returns the new data pointer. `cap` is updated. */
void *vec_grow(void *data, uint32_t *cap, size_t elem_bytes);

#define vec_push(v, item)                                                              \
    do {                                                                               \
        if ((v)->n == (v)->cap)                                                        \
            (v)->data = vec_grow((v)->data, &(v)->cap, sizeof(*(v)->data));            \
        (v)->data[(v)->n++] = (item);                                                  \
    } while (0)

#define vec_free(v)                                                                    \
    do {                                                                               \
        mem_free((v)->data);                                                           \
        (v)->data = NULL;                                                              \
        (v)->n = (v)->cap = 0;                                                         \
    } while (0)

#endif
