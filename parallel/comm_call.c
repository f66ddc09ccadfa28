#include "parallel/comm_call.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/hash.h"

static const char *const kind_name[] = {
        [CALL_NONE] = "no call",
        [CALL_BARRIER] = "barrier",
        [CALL_ALL_REDUCE] = "all-reduce",
        [CALL_ALL_GATHER] = "all-gather",
        [CALL_REDUCE_SCATTER] = "reduce-scatter",
        [CALL_ALL_TO_ALL] = "all-to-all",
        [CALL_BROADCAST] = "broadcast",
        [CALL_SEND] = "send",
        [CALL_RECV] = "receive",
        [CALL_GROUP] = "opening",
};
_Static_assert(ARRAY_LEN(kind_name) == CALL_KIND_COUNT, "one name per kind");

static const char *const how_name[] = {[COMM_SUM] = "sum", [COMM_MAX] = "max"};

const char *call_print(const struct call *c, char *text)
{
    const char *kind = c->kind < CALL_KIND_COUNT ? kind_name[c->kind] : "unknown call";
    const char *dtype = c->dtype < DT_COUNT ? dtype_name(c->dtype) : "unknown type";
    const char *how = c->how < ARRAY_LEN(how_name) ? how_name[c->how] : "unknown";
    size_t n = CALL_TEXT_BYTES;
    if (c->kind == CALL_NONE || c->kind == CALL_BARRIER || c->kind == CALL_GROUP)
        snprintf(text, n, "%s", kind);
    else if (c->kind == CALL_ALL_REDUCE)
        snprintf(text, n, "%s (%s) of %" PRId64 " %s", kind, how, c->n, dtype);
    else if (c->kind == CALL_BROADCAST)
        snprintf(text, n, "%s of %" PRId64 " %s from member %d", kind, c->n, dtype,
                 c->root);
    else if (c->kind == CALL_SEND || c->kind == CALL_RECV)
        snprintf(text, n, "%s of %" PRId64 " %s %s rank %d", kind, c->n, dtype,
                 c->kind == CALL_SEND ? "to" : "from", c->root);
    else
        snprintf(text, n, "%s of %" PRId64 " %s in all", kind, c->n, dtype);
    return text;
}

void call_name_ranks(const int *rank, int n, struct str *out)
{
    for (int i = 0; i < n; i++)
        str_printf(out, i ? ", %d" : (n > 1 ? "ranks %d" : "rank %d"), rank[i]);
}

bool call_matches(const struct call *a, const struct call *b)
{
    bool same_n = a->n == b->n || a->kind == CALL_ALL_TO_ALL;
    return a->kind == b->kind && a->dtype == b->dtype && a->how == b->how &&
           a->root == b->root && same_n && a->counts == b->counts;
}

struct call call_of_pieces(enum call_kind kind, enum dtype dtype, const int64_t *count,
                           int n_members)
{
    struct call c = {.kind = (uint16_t)kind, .dtype = (uint16_t)dtype};
    for (int i = 0; i < n_members; i++) {
        ASSERT(count[i] >= 0);
        c.n += count[i];
    }
    c.counts = hash64(count, (size_t)n_members * sizeof(*count));
    return c;
}
