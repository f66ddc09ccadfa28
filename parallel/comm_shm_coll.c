/* Collectives through shared memory. */
#include <string.h>

#include "parallel/comm_shm_private.h"
#include "parallel/comm_sum.h"

/* One call: what this member gives and gets. */
struct job {
    struct call call;
    const void *src; /* of src_elems; NULL where there are none */
    int64_t src_elems;
    void *dst;
    const int64_t *send_count; /* of an all-to-all */
    const int64_t *recv_count; /* pieces of dst; of a reduce-scatter, of src */
    size_t elem_bytes;
};

/* Elements [begin, end) of the members' data; shm_comm.src points to element `begin`. */
struct window {
    int64_t begin, end;
};

enum path {
    PATH_POST,   /* all data lie in the posts */
    PATH_DIRECT, /* all data can be read in place */
    PATH_STAGED,
};

static int64_t *counts_of(const struct shm_comm *c, int member, unsigned slot)
{
    int64_t *all = (int64_t *)((char *)c->group + c->at.counts);
    return all + ((int64_t)slot * c->base.size + member) * c->base.size;
}

static char *stage_of(const struct shm_comm *c, int member, unsigned slot)
{
    return (char *)c->group + c->at.stage +
           ((int64_t)slot * c->base.size + member) * STAGE_BYTES;
}

static bool is_missing(void *arg, int place)
{
    const struct shm_comm *c = arg;
    for (int i = 0; i < c->base.size; i++)
        if (c->place[i] == place)
            return !region_reached(atomic_load(&shm_member(c, i)->arrived), c->round);
    return false;
}

/* Waits for all members. */
static enum status meet(struct shm_comm *c, const struct call *call, struct diag *diag)
{
    struct region *r = &c->world->region;
    struct region_word *meeting = &c->group->meeting;
    unsigned n = (unsigned)c->base.size, target = ++c->round * n;
    atomic_store_explicit(&shm_member(c, c->base.rank)->arrived, c->round,
                          memory_order_release);
    if (atomic_fetch_add(&meeting->value, 1) + 1 == target) {
        region_wake(r, meeting);
        return ST_OK;
    }
    int died = -1;
    enum wait_end end = region_wait(r, meeting, target, *c->world->deadline_s,
                                    is_missing, c, &died);
    return end == WAIT_REACHED ? ST_OK : shm_fail(c, call, end, died, -1, diag);
}

static void write_post(struct shm_comm *c, const struct job *j, unsigned slot)
{
    struct shm_member *m = shm_member(c, c->base.rank);
    struct post *p = &m->slot[slot].post;
    size_t bytes = (size_t)j->src_elems * j->elem_bytes;
    *p = (struct post){.call = j->call, .src_elems = j->src_elems};
    if (bytes <= POST_BYTES) {
        p->flags = POST_INLINE;
        if (bytes)
            memcpy(m->slot[slot].data, j->src, bytes);
    } else if (region_share(&c->world->region, j->src, (int64_t)bytes, &p->share)) {
        p->flags = POST_SHARED;
    }
    if (j->send_count)
        memcpy(counts_of(c, c->base.rank, slot), j->send_count,
               (size_t)c->base.size * sizeof(int64_t));
}

/* Looks at all posts: that they match, and how the data go. */
static enum status read_posts(struct shm_comm *c, const struct job *j, unsigned slot,
                              enum path *path, struct diag *diag)
{
    unsigned all = POST_INLINE, any = POST_INLINE | POST_SHARED;
    bool reachable = true;
    for (int i = 0; i < c->base.size; i++) {
        struct shm_member *m = shm_member(c, i);
        const struct post *p = &m->slot[slot].post;
        if (!call_matches(&j->call, &p->call) ||
            (j->recv_count && j->send_count &&
             counts_of(c, i, slot)[c->base.rank] != j->recv_count[i]))
            return shm_mismatch(c, &j->call, i, &p->call, diag);
        c->src[i] = p->flags & POST_SHARED ? region_shared(&c->world->region, p->share)
                                           : m->slot[slot].data;
        all &= p->flags;
        reachable = reachable && (p->flags & any);
    }
    *path = all ? PATH_POST : reachable ? PATH_DIRECT : PATH_STAGED;
    return ST_OK;
}

/* ---- what a member does with a window ---- */

static void reduce_window(struct shm_comm *c, const struct job *j, struct window w)
{
    void *dst = (char *)j->dst + (size_t)w.begin * j->elem_bytes;
    comm_reduce(&dst, 1, c->src, c->base.size, w.end - w.begin,
                (enum dtype)j->call.dtype, (enum comm_reduction)j->call.how);
}

static void reduce_scatter_window(struct shm_comm *c, const struct job *j,
                                  struct window w)
{
    int64_t first = c->offset[c->base.rank];
    int64_t lo = MAX(w.begin, first), hi = MIN(w.end, c->offset[c->base.rank + 1]);
    if (lo >= hi)
        return;
    for (int i = 0; i < c->base.size; i++)
        c->shifted[i] =
                (const char *)c->src[i] + (size_t)(lo - w.begin) * j->elem_bytes;
    void *dst = (char *)j->dst + (size_t)(lo - first) * j->elem_bytes;
    comm_reduce(&dst, 1, c->shifted, c->base.size, hi - lo, (enum dtype)j->call.dtype,
                COMM_SUM);
}

static void all_gather_window(struct shm_comm *c, const struct job *j, struct window w)
{
    int n = c->base.size;
    for (int step = 0; step < n; step++) {
        int i = (c->base.rank + step) % n;
        int64_t hi = MIN(w.end, j->recv_count[i]);
        if (w.begin >= hi)
            continue;
        char *dst = (char *)j->dst + (size_t)(c->offset[i] + w.begin) * j->elem_bytes;
        if (dst != c->src[i])
            memcpy(dst, c->src[i], (size_t)(hi - w.begin) * j->elem_bytes);
    }
}

static void all_to_all_window(struct shm_comm *c, const struct job *j, struct window w)
{
    int n = c->base.size, me = c->base.rank;
    unsigned slot = c->n_calls & 1;
    for (int step = 0; step < n; step++) {
        int i = (me + step) % n;
        const int64_t *sent = counts_of(c, i, slot);
        int64_t first = 0;
        for (int k = 0; k < me; k++)
            first += sent[k];
        int64_t lo = MAX(w.begin, first), hi = MIN(w.end, first + sent[me]);
        if (lo >= hi)
            continue;
        memcpy((char *)j->dst + (size_t)(c->offset[i] + lo - first) * j->elem_bytes,
               (const char *)c->src[i] + (size_t)(lo - w.begin) * j->elem_bytes,
               (size_t)(hi - lo) * j->elem_bytes);
    }
}

static void broadcast_window(struct shm_comm *c, const struct job *j, struct window w)
{
    if (c->base.rank == j->call.root)
        return;
    memcpy((char *)j->dst + (size_t)w.begin * j->elem_bytes, c->src[j->call.root],
           (size_t)(w.end - w.begin) * j->elem_bytes);
}

typedef void (*window_fn)(struct shm_comm *c, const struct job *j, struct window w);

static const window_fn window_of_kind[CALL_KIND_COUNT] = {
        [CALL_ALL_REDUCE] = reduce_window,
        [CALL_REDUCE_SCATTER] = reduce_scatter_window,
        [CALL_ALL_GATHER] = all_gather_window,
        [CALL_ALL_TO_ALL] = all_to_all_window,
        [CALL_BROADCAST] = broadcast_window,
};

/* ---- the paths ---- */

static int64_t longest_source(const struct shm_comm *c, unsigned slot)
{
    int64_t n = 0;
    for (int i = 0; i < c->base.size; i++)
        n = MAX(n, shm_member(c, i)->slot[slot].post.src_elems);
    return n;
}

static void shift_sources(struct shm_comm *c, int64_t bytes)
{
    for (int i = 0; i < c->base.size; i++)
        c->src[i] = (const char *)c->src[i] + bytes;
}

/* Every member reads its part of the others' data in place. */
static enum status work_direct(struct shm_comm *c, const struct job *j, unsigned slot,
                               struct diag *diag)
{
    int64_t n = longest_source(c, slot), step = DIRECT_BYTES / (int64_t)j->elem_bytes;
    bool go = true;
    for (int64_t at = 0; at < n && go; at += step) {
        go = shm_busy_begin(c);
        if (!go)
            break;
        window_of_kind[j->call.kind](c, j, (struct window){at, MIN(at + step, n)});
        shm_busy_end(c);
        shift_sources(c, step * (int64_t)j->elem_bytes);
    }
    return go ? meet(c, &j->call, diag)
              : shm_fail(c, &j->call, WAIT_STOPPED, -1, -1, diag);
}

/* Every member reduces its share of the elements from and into all buffers. */
static enum status reduce_direct(struct shm_comm *c, const struct job *j,
                                 struct diag *diag)
{
    int64_t n = j->call.n, unit = (int64_t)(64 / j->elem_bytes), size = c->base.size;
    int64_t share = round_up_i64(ceil_div_i64(n, size), unit);
    int64_t at = MIN(share * c->base.rank, n), end = MIN(at + share, n);
    int64_t step = DIRECT_BYTES / (int64_t)j->elem_bytes;
    bool go = true;
    for (; at < end && go; at += step) {
        for (int i = 0; i < c->base.size; i++) {
            c->shifted[i] = (const char *)c->src[i] + (size_t)at * j->elem_bytes;
            c->dst[i] = (char *)(uintptr_t)c->shifted[i];
        }
        go = shm_busy_begin(c);
        if (!go)
            break;
        comm_reduce(c->dst, c->base.size, c->shifted, c->base.size, MIN(step, end - at),
                    (enum dtype)j->call.dtype, (enum comm_reduction)j->call.how);
        shm_busy_end(c);
    }
    return go ? meet(c, &j->call, diag)
              : shm_fail(c, &j->call, WAIT_STOPPED, -1, -1, diag);
}

/* All copy a window of their data where others can read it, meet, and read. The windows
 * alternate: the one that is written was read before the last meeting, and so the call
 * needs no meeting at its end. */
static enum status work_staged(struct shm_comm *c, const struct job *j, unsigned slot,
                               struct diag *diag)
{
    int64_t n = longest_source(c, slot), step = STAGE_BYTES / (int64_t)j->elem_bytes;
    unsigned half = 0;
    for (int64_t at = 0; at < n; at += step, half ^= 1) {
        struct window w = {at, MIN(at + step, n)};
        int64_t own = MIN(w.end, j->src_elems) - at;
        if (own > 0)
            memcpy(stage_of(c, c->base.rank, half),
                   (const char *)j->src + (size_t)at * j->elem_bytes,
                   (size_t)own * j->elem_bytes);
        TRY(meet(c, &j->call, diag));
        for (int i = 0; i < c->base.size; i++)
            c->src[i] = stage_of(c, i, half);
        window_of_kind[j->call.kind](c, j, w);
    }
    return ST_OK;
}

static enum status run(struct shm_comm *c, struct job *j, struct diag *diag)
{
    TRY(shm_enter(c, &j->call, diag));
    unsigned slot = ++c->n_calls & 1;
    enum path path = PATH_STAGED;
    j->elem_bytes = dtype_bytes((enum dtype)j->call.dtype);
    for (int i = 0; j->recv_count && i < c->base.size; i++)
        c->offset[i + 1] = c->offset[i] + j->recv_count[i];
    write_post(c, j, slot);
    TRY(meet(c, &j->call, diag));
    TRY(read_posts(c, j, slot, &path, diag));
    if (path == PATH_POST) {
        int64_t n = longest_source(c, slot);
        if (n > 0)
            window_of_kind[j->call.kind](c, j, (struct window){0, n});
        return ST_OK;
    }
    if (path == PATH_STAGED)
        return work_staged(c, j, slot, diag);
    if (j->call.kind == CALL_ALL_REDUCE)
        return reduce_direct(c, j, diag);
    return work_direct(c, j, slot, diag);
}

/* ---- the calls ---- */

static enum status shm_all_reduce(struct comm *base, void *buf, int64_t n,
                                  enum dtype dtype, enum comm_reduction how,
                                  struct diag *diag)
{
    ASSERT(n >= 0 && comm_can_reduce(dtype, how));
    struct job j = {.src = buf, .src_elems = n, .dst = buf};
    j.call = (struct call){.kind = CALL_ALL_REDUCE,
                           .dtype = (uint16_t)dtype,
                           .how = (uint16_t)how,
                           .n = n};
    return run((struct shm_comm *)base, &j, diag);
}

static enum status shm_all_gather(struct comm *base, const void *src, void *dst,
                                  const int64_t *count, enum dtype dtype,
                                  struct diag *diag)
{
    struct job j = {.src = src,
                    .src_elems = count[base->rank],
                    .dst = dst,
                    .recv_count = count};
    j.call = call_of_pieces(CALL_ALL_GATHER, dtype, count, base->size);
    return run((struct shm_comm *)base, &j, diag);
}

static enum status shm_reduce_scatter(struct comm *base, const void *src, void *dst,
                                      const int64_t *count, enum dtype dtype,
                                      struct diag *diag)
{
    ASSERT(comm_can_reduce(dtype, COMM_SUM));
    struct job j = {.src = src, .dst = dst, .recv_count = count};
    j.call = call_of_pieces(CALL_REDUCE_SCATTER, dtype, count, base->size);
    j.src_elems = j.call.n;
    return run((struct shm_comm *)base, &j, diag);
}

static enum status shm_all_to_all(struct comm *base, const void *src,
                                  const int64_t *send_count, void *dst,
                                  const int64_t *recv_count, enum dtype dtype,
                                  struct diag *diag)
{
    struct job j = {
            .src = src, .dst = dst, .send_count = send_count, .recv_count = recv_count};
    j.call = call_of_pieces(CALL_ALL_TO_ALL, dtype, send_count, base->size);
    j.call.counts = 0; /* they differ by member, and are checked pair by pair */
    j.src_elems = j.call.n;
    return run((struct shm_comm *)base, &j, diag);
}

static enum status shm_broadcast(struct comm *base, void *buf, int64_t n,
                                 enum dtype dtype, int root, struct diag *diag)
{
    ASSERT(n >= 0 && root >= 0 && root < base->size);
    struct job j = {.src = buf, .src_elems = base->rank == root ? n : 0, .dst = buf};
    j.call = (struct call){
            .kind = CALL_BROADCAST, .dtype = (uint16_t)dtype, .root = root, .n = n};
    return run((struct shm_comm *)base, &j, diag);
}

static enum status shm_barrier(struct comm *base, struct diag *diag)
{
    struct job j = {.call = {.kind = CALL_BARRIER, .dtype = DT_I32}};
    return run((struct shm_comm *)base, &j, diag);
}

const struct comm_ops shm_ops = {
        .all_reduce = shm_all_reduce,
        .all_gather = shm_all_gather,
        .reduce_scatter = shm_reduce_scatter,
        .all_to_all = shm_all_to_all,
        .broadcast = shm_broadcast,
        .send = shm_send,
        .recv = shm_recv,
        .barrier = shm_barrier,
        .close = shm_close,
};
