#include "core/agree.h"

#include <string.h>

#include "core/arena.h"

enum status comm_gather(struct comm *c, const void *mine, void *all, size_t bytes,
                        struct diag *diag)
{
    ASSERT(bytes % sizeof(int32_t) == 0);
    if (!c) {
        memcpy(all, mine, bytes);
        return ST_OK;
    }
    int64_t *count = mem_alloc((size_t)c->size * sizeof(*count));
    for (int i = 0; i < c->size; i++)
        count[i] = (int64_t)(bytes / sizeof(int32_t));
    enum status st = c->ops->all_gather(c, mine, all, count, DT_I32, diag);
    mem_free(count);
    return st;
}

/* The lowest member that failed, or -1. */
static enum status find_failed(struct comm *c, enum status st, int *from,
                               enum status *theirs, struct diag *diag)
{
    int32_t mine = (int32_t)st, *all = mem_alloc((size_t)c->size * sizeof(*all));
    enum status sent = comm_gather(c, &mine, all, sizeof(mine), diag);
    *from = -1;
    for (int i = c->size - 1; sent == ST_OK && i >= 0; i--)
        if (all[i] != ST_OK)
            *from = i;
    if (*from >= 0)
        *theirs = (enum status)all[*from];
    mem_free(all);
    return sent;
}

enum status comm_agree(struct comm *c, enum status st, bool *shared, struct diag *diag)
{
    struct diag said = {0};
    int from;
    if (shared)
        *shared = !c && st != ST_OK;
    if (!c || st == ST_STOPPED)
        return st;
    if (st != ST_OK && diag)
        said = *diag;
    TRY(find_failed(c, st, &from, &st, diag));
    if (from < 0)
        return ST_OK;
    TRY(c->ops->broadcast(c, &said, sizeof(said) / sizeof(int32_t), DT_I32, from,
                          diag));
    if (diag)
        *diag = said;
    if (from > 0)
        diag_context(diag, "rank %d", from);
    if (shared)
        *shared = true;
    return st;
}
