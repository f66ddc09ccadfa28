#include "parallel/comm_self.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/arena.h"
#include "parallel/comm_sum.h"

struct self_world {
    struct comm_world base;
    atomic_uint stop; /* 0, 1 being written, 2 written */
    char why[512];
};

struct self_comm {
    struct comm base;
    struct self_world *world;
};

static enum status enter(const struct comm *c, struct diag *diag)
{
    struct self_world *w = ((const struct self_comm *)c)->world;
    unsigned stop = atomic_load(&w->stop);
    if (stop == 0)
        return ST_OK;
    return diag_set(diag, ST_STOPPED, "a call in %s ended: rank 0 gave up: %s", c->name,
                    stop == 2 ? w->why : "");
}

static void copy(void *dst, const void *src, int64_t n, enum dtype dtype)
{
    if (n && dst != src)
        memmove(dst, src, (size_t)n * dtype_bytes(dtype));
}

static enum status self_all_reduce(struct comm *c, void *buf, int64_t n,
                                   enum dtype dtype, enum comm_reduction how,
                                   struct diag *diag)
{
    (void)buf;
    ASSERT(n >= 0 && comm_can_reduce(dtype, how));
    return enter(c, diag);
}

static enum status self_all_gather(struct comm *c, const void *src, void *dst,
                                   const int64_t *count, enum dtype dtype,
                                   struct diag *diag)
{
    TRY(enter(c, diag));
    copy(dst, src, count[0], dtype);
    return ST_OK;
}

static enum status self_reduce_scatter(struct comm *c, const void *src, void *dst,
                                       const int64_t *count, enum dtype dtype,
                                       struct diag *diag)
{
    ASSERT(comm_can_reduce(dtype, COMM_SUM));
    return self_all_gather(c, src, dst, count, dtype, diag);
}

static enum status self_all_to_all(struct comm *c, const void *src,
                                   const int64_t *send_count, void *dst,
                                   const int64_t *recv_count, enum dtype dtype,
                                   struct diag *diag)
{
    TRY(enter(c, diag));
    if (send_count[0] != recv_count[0])
        return diag_set(
                diag, ST_INTERNAL,
                "calls do not match in %s: rank 0 sends %lld elements to itself "
                "and wants %lld",
                c->name, (long long)send_count[0], (long long)recv_count[0]);
    copy(dst, src, recv_count[0], dtype);
    return ST_OK;
}

static enum status self_broadcast(struct comm *c, void *buf, int64_t n,
                                  enum dtype dtype, int root, struct diag *diag)
{
    (void)buf, (void)dtype;
    ASSERT(n >= 0 && root == 0);
    return enter(c, diag);
}

static enum status self_send(struct comm *c, const void *buf, int64_t n,
                             enum dtype dtype, int to, struct diag *diag)
{
    (void)buf, (void)n, (void)dtype, (void)diag;
    BUG("a message in %s from member 0 of 1 to member %d", c->name, to);
}

static enum status self_recv(struct comm *c, void *buf, int64_t n, enum dtype dtype,
                             int from, struct diag *diag)
{
    (void)buf, (void)n, (void)dtype, (void)diag;
    BUG("a message in %s to member 0 of 1 from member %d", c->name, from);
}

static enum status self_barrier(struct comm *c, struct diag *diag)
{
    return enter(c, diag);
}

static void self_close(struct comm *c)
{
    mem_free((char *)(uintptr_t)c->name);
    mem_free(c);
}

static const struct comm_ops self_ops = {
        .all_reduce = self_all_reduce,
        .all_gather = self_all_gather,
        .reduce_scatter = self_reduce_scatter,
        .all_to_all = self_all_to_all,
        .broadcast = self_broadcast,
        .send = self_send,
        .recv = self_recv,
        .barrier = self_barrier,
        .close = self_close,
};

static enum status self_group(struct comm_world *w, const int *members, int n,
                              const char *name, struct comm **out, struct diag *diag)
{
    (void)diag;
    ASSERT(n == 1 && members[0] == 0);
    struct self_comm *c = mem_alloc(sizeof(*c));
    size_t bytes = strlen(name) + 1;
    char *own = mem_alloc(bytes);
    memcpy(own, name, bytes);
    c->base = (struct comm){.ops = &self_ops, .name = own, .rank = 0, .size = 1};
    c->world = (struct self_world *)w;
    *out = &c->base;
    return ST_OK;
}

static void *self_alloc(struct comm_world *w, int64_t bytes)
{
    (void)w;
    void *p;
    return pages_map((size_t)bytes, &p, NULL) == ST_OK ? p : NULL;
}

static void self_release(struct comm_world *w, void *at, int64_t bytes)
{
    (void)w;
    pages_unmap(at, (size_t)bytes);
}

static void self_give_up(struct comm_world *base, const char *why)
{
    struct self_world *w = (struct self_world *)base;
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&w->stop, &none, 1))
        return;
    snprintf(w->why, sizeof(w->why), "%s", why);
    atomic_store(&w->stop, 2);
}

static void self_world_close(struct comm_world *w)
{
    mem_free(w);
}

static const struct comm_world_ops self_world_ops = {
        .group = self_group,
        .alloc = self_alloc,
        .release = self_release,
        .give_up = self_give_up,
        .close = self_world_close,
};

struct comm_world *comm_self_create(void)
{
    struct self_world *w = mem_alloc(sizeof(*w));
    w->base = (struct comm_world){.ops = &self_world_ops, .rank = 0, .size = 1};
    return &w->base;
}
