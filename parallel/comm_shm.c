#include "parallel/comm_shm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/str.h"
#include "parallel/comm_shm_private.h"

/* ---- groups ---- */

static struct shm_layout layout_of(int n, bool shared)
{
    uint64_t m = (uint64_t)n;
    struct shm_layout l = {.packet_bytes = shared ? STREAM_BYTES : EAGER_BYTES};
    uint64_t packet = sizeof(struct packet) + (uint64_t)l.packet_bytes;
    l.ring_bytes = sizeof(struct ring) + RING_PACKETS * packet;
    l.place = sizeof(struct shm_group);
    l.member = (l.place + m * sizeof(int) + 63) / 64 * 64;
    l.counts = l.member + m * sizeof(struct shm_member);
    l.ring = (l.counts + 2 * m * m * sizeof(int64_t) + 63) / 64 * 64;
    l.stage = l.ring + m * m * l.ring_bytes;
    l.bytes = l.stage + (shared ? 2 * m * (uint64_t)STAGE_BYTES : 0);
    return l;
}

/* Memory of an own group of as many members that all have closed, or new memory. */
static uint64_t take_group(struct shm_world *w, int n, const struct shm_layout *l)
{
    struct region *r = &w->region;
    struct region_rank *own = &r->head->rank[r->me];
    unsigned n_entries = atomic_load(&own->entries_posted.value);
    for (unsigned i = 0; i < n_entries; i++) {
        struct shm_group *g = region_at(r, own->entries[i].offset);
        int all = n;
        if (g->n == n && atomic_compare_exchange_strong(&g->n_closed, &all, 0)) {
            memset(g, 0, l->stage);
            return own->entries[i].offset;
        }
    }
    return region_take(r, l->bytes, 4096);
}

static enum status post_group(struct shm_world *w, const int *members, int n,
                              const char *name, const struct region_entry *key,
                              uint64_t *offset, struct diag *diag)
{
    struct region *r = &w->region;
    struct region_rank *own = &r->head->rank[r->me];
    struct shm_layout l = layout_of(n, r->head->shared);
    unsigned at = atomic_load(&own->entries_posted.value);
    *offset = at < REGION_GROUPS_MAX ? take_group(w, n, &l) : 0;
    if (!*offset)
        return diag_set(diag, ST_NO_FIT,
                        "no room for %s of %d ranks in the memory that ranks share: %u "
                        "groups are there",
                        name, n, at);
    struct shm_group *g = region_at(r, *offset);
    g->n = n;
    snprintf(g->name, sizeof(g->name), "%s", name);
    memcpy((char *)g + l.place, members, (size_t)n * sizeof(int));
    own->entries[at] = *key;
    own->entries[at].offset = *offset;
    atomic_fetch_add(&own->entries_posted.value, 1);
    region_wake(r, &own->entries_posted);
    return ST_OK;
}

static bool is_place(void *arg, int place)
{
    return *(const int *)arg == place;
}

static enum status find_group(struct shm_world *w, const int *members, const char *name,
                              const struct region_entry *key, uint64_t *offset,
                              struct diag *diag)
{
    struct region *r = &w->region;
    struct region_rank *first = &r->head->rank[members[0]];
    unsigned seen = 0;
    for (;;) {
        unsigned n = atomic_load(&first->entries_posted.value);
        for (; seen < n; seen++) {
            const struct region_entry *e = &first->entries[seen];
            if (e->members_hash != key->members_hash || e->ordinal != key->ordinal)
                continue;
            *offset = e->offset;
            return ST_OK;
        }
        int died, place = members[0];
        enum wait_end end = region_wait(r, &first->entries_posted, n + 1,
                                        *w->deadline_s, is_place, &place, &died);
        if (end == WAIT_REACHED)
            continue;
        char why[STOP_TEXT_BYTES + 64];
        if (end == WAIT_STOPPED) {
            region_stop_reason(r, why, sizeof(why));
            return diag_set(diag, ST_STOPPED, "opening %s (rank %d) ended: %s", name,
                            r->head->rank[r->me].world_rank, why);
        }
        snprintf(why, sizeof(why), "opening %s: rank %d %s", name, first->world_rank,
                 end == WAIT_DEADLINE ? "did not arrive in time" : "is no more");
        region_stop(r, r->head->rank[r->me].world_rank, why);
        return diag_set(diag, ST_STOPPED, "%s", why);
    }
}

/* The key of the next group with these members. */
static struct region_entry next_key(struct shm_world *w, const int *members, int n)
{
    uint64_t hash = hash64(members, (size_t)n * sizeof(int));
    for (uint32_t i = 0; i < w->opened.n; i++)
        if (w->opened.data[i].members_hash == hash) {
            w->opened.data[i].ordinal++;
            return w->opened.data[i];
        }
    struct region_entry first = {.members_hash = hash};
    vec_push(&w->opened, first);
    return first;
}

static struct shm_comm *comm_of_group(struct shm_world *w, struct shm_group *g,
                                      const int *members, int n, const char *name)
{
    struct shm_comm *c = mem_alloc(sizeof(*c));
    size_t m = (size_t)n, name_bytes = strlen(name) + 1;
    c->world = w;
    c->group = g;
    c->at = layout_of(n, w->region.head->shared);
    c->place = mem_alloc(m * sizeof(int));
    memcpy(c->place, members, m * sizeof(int));
    c->n_sent = mem_alloc(m * sizeof(unsigned));
    c->n_taken = mem_alloc(m * sizeof(unsigned));
    c->src = mem_alloc(m * sizeof(void *));
    c->shifted = mem_alloc(m * sizeof(void *));
    c->dst = mem_alloc(m * sizeof(void *));
    c->offset = mem_alloc((m + 1) * sizeof(int64_t));
    char *own_name = mem_alloc(name_bytes);
    memcpy(own_name, name, name_bytes);
    c->base = (struct comm){.ops = &shm_ops, .name = own_name, .rank = -1, .size = n};
    for (int i = 0; i < n; i++)
        if (members[i] == w->region.me)
            c->base.rank = i;
    return c;
}

static enum status shm_group_open(struct comm_world *base, const int *members, int n,
                                  const char *name, struct comm **out,
                                  struct diag *diag)
{
    struct shm_world *w = (struct shm_world *)base;
    struct region_head *h = w->region.head;
    ASSERT(n >= 1);
    for (int i = 0; i < n; i++)
        ASSERT(members[i] >= 0 && members[i] < h->n_ranks);
    struct region_entry key = next_key(w, members, n);
    uint64_t offset = 0;
    if (members[0] == w->region.me)
        TRY(post_group(w, members, n, name, &key, &offset, diag));
    else
        TRY(find_group(w, members, name, &key, &offset, diag));
    struct shm_group *g = region_at(&w->region, offset);
    struct shm_comm *c = comm_of_group(w, g, members, n, name);
    ASSERT(c->base.rank >= 0);
    *out = &c->base;
    if (strncmp(g->name, name, sizeof(g->name) - 1) == 0)
        return ST_OK;
    char why[STOP_TEXT_BYTES];
    snprintf(why, sizeof(why),
             "groups are opened in different orders: rank %d opens %s, rank %d %s",
             h->rank[w->region.me].world_rank, name, h->rank[members[0]].world_rank,
             g->name);
    region_stop(&w->region, h->rank[w->region.me].world_rank, why);
    c->base.ops->close(&c->base);
    *out = NULL;
    return diag_set(diag, ST_INTERNAL, "%s", why);
}

void shm_close(struct comm *base)
{
    struct shm_comm *c = (struct shm_comm *)base;
    atomic_fetch_add(&c->group->n_closed, 1);
    mem_free(c->place);
    mem_free(c->n_sent);
    mem_free(c->n_taken);
    mem_free(c->src);
    mem_free(c->shifted);
    mem_free(c->dst);
    mem_free(c->offset);
    mem_free((char *)(uintptr_t)base->name);
    mem_free(c);
}

/* ---- calls that end early ---- */

static enum status say_stopped(struct shm_comm *c, const struct call *call,
                               const char *waited_for, struct diag *diag)
{
    char text[CALL_TEXT_BYTES], why[STOP_TEXT_BYTES + 64];
    region_stop_reason(&c->world->region, why, sizeof(why));
    return diag_set(diag, ST_STOPPED, "%s in %s (rank %d) ended%s%s: %s",
                    call_print(call, text), c->base.name,
                    shm_world_rank(c, c->base.rank),
                    *waited_for ? ", waiting for " : "", waited_for, why);
}

enum status shm_enter(struct shm_comm *c, const struct call *call, struct diag *diag)
{
    if (region_is_stopped(&c->world->region))
        return say_stopped(c, call, "", diag);
    return ST_OK;
}

/* "rank 5", "ranks 1, 5": the peer, or the members that are not at the meeting. */
static void print_missing(struct shm_comm *c, int peer, struct str *out)
{
    int late[CALL_RANKS_NAMED], n = 0;
    for (int i = 0; i < c->base.size && n < CALL_RANKS_NAMED; i++) {
        bool there = region_reached(atomic_load(&shm_member(c, i)->arrived), c->round);
        if (peer >= 0 ? i == peer : !there)
            late[n++] = shm_world_rank(c, i);
    }
    call_name_ranks(late, n, out);
}

/* Threads share their memory: it may go only when nobody works on it. */
static void let_others_finish(struct shm_comm *c)
{
    if (c->world->region.head->shared)
        return;
    for (int i = 0; i < c->base.size; i++)
        while (i != c->base.rank && atomic_load(&shm_member(c, i)->busy))
            usleep(20);
}

enum status shm_fail(struct shm_comm *c, const struct call *call, enum wait_end end,
                     int died, int peer, struct diag *diag)
{
    struct region *r = &c->world->region;
    struct str missing = {0};
    print_missing(c, peer, &missing);
    enum status st = ST_STOPPED;
    if (end == WAIT_STOPPED || region_is_stopped(r)) {
        st = say_stopped(c, call, str_get(&missing), diag);
    } else {
        char text[CALL_TEXT_BYTES], why[STOP_TEXT_BYTES];
        char what[96];
        if (end == WAIT_DEADLINE)
            snprintf(what, sizeof(what), "did not arrive within %g s",
                     *c->world->deadline_s);
        else if (end == WAIT_LEFT)
            snprintf(what, sizeof(what), "did not arrive: rank %d left",
                     r->head->rank[died].world_rank);
        else
            snprintf(what, sizeof(what),
                     "did not arrive: rank %d died (process %d is no more)",
                     r->head->rank[died].world_rank,
                     atomic_load(&r->head->rank[died].pid));
        snprintf(why, sizeof(why), "%s in %s (rank %d): %s %s", call_print(call, text),
                 c->base.name, shm_world_rank(c, c->base.rank), str_get(&missing),
                 what);
        region_stop(r, shm_world_rank(c, c->base.rank), why);
        diag_set(diag, ST_STOPPED, "%s", why);
    }
    str_free(&missing);
    let_others_finish(c);
    return st;
}

enum status shm_mismatch(struct shm_comm *c, const struct call *mine, int other,
                         const struct call *theirs, struct diag *diag)
{
    char a[CALL_TEXT_BYTES], b[CALL_TEXT_BYTES], why[STOP_TEXT_BYTES];
    call_print(mine, a);
    call_print(theirs, b);
    snprintf(why, sizeof(why),
             "calls do not match in %s: rank %d calls %s, rank %d %s%s", c->base.name,
             shm_world_rank(c, c->base.rank), a, shm_world_rank(c, other), b,
             strcmp(a, b) == 0 ? " with other counts" : "");
    region_stop(&c->world->region, shm_world_rank(c, c->base.rank), why);
    let_others_finish(c);
    return diag_set(diag, ST_INTERNAL, "%s", why);
}

bool shm_busy_begin(struct shm_comm *c)
{
    struct shm_member *m = shm_member(c, c->base.rank);
    atomic_fetch_add(&m->busy, 1);
    if (!region_is_stopped(&c->world->region))
        return true;
    atomic_fetch_sub(&m->busy, 1);
    return false;
}

void shm_busy_end(struct shm_comm *c)
{
    atomic_fetch_sub(&shm_member(c, c->base.rank)->busy, 1);
}

/* ---- worlds ---- */

static void *shm_alloc(struct comm_world *w, int64_t bytes)
{
    return region_alloc(&((struct shm_world *)w)->region, bytes);
}

static void shm_release(struct comm_world *w, void *at, int64_t bytes)
{
    region_release(&((struct shm_world *)w)->region, at, bytes);
}

static void shm_give_up(struct comm_world *base, const char *why)
{
    struct region *r = &((struct shm_world *)base)->region;
    region_stop(r, r->head->rank[r->me].world_rank, why);
}

static void shm_world_close(struct comm_world *base)
{
    struct shm_world *w = (struct shm_world *)base;
    region_leave(&w->region);
    vec_free(&w->opened);
    mem_free(w);
}

static const struct comm_world_ops shm_world_ops = {
        .group = shm_group_open,
        .alloc = shm_alloc,
        .release = shm_release,
        .give_up = shm_give_up,
        .close = shm_world_close,
};

static struct shm_world *join_world(struct region_head *head, int fd, int place)
{
    struct shm_world *w = mem_alloc(sizeof(*w));
    region_join(&w->region, head, fd, place);
    w->base = (struct comm_world){
            .ops = &shm_world_ops, .rank = place, .size = head->n_ranks};
    w->deadline_s = &w->base.deadline_s;
    return w;
}

enum status comm_threads_create(int n, struct comm_world **world, struct diag *diag)
{
    ASSERT(n >= 1);
    int *rank = mem_alloc((size_t)n * sizeof(int));
    for (int i = 0; i < n; i++)
        rank[i] = i;
    struct region_head *head;
    int fd;
    enum status st = region_create(n, rank, false, &head, &fd, diag);
    mem_free(rank);
    if (st != ST_OK)
        return st;
    atomic_store(&head->n_open, n);
    for (int i = 0; i < n; i++)
        world[i] = &join_world(head, -1, i)->base;
    return ST_OK;
}

enum status comm_shm_join(struct region_head *head, int fd, int place,
                          double deadline_s, struct comm_world **out, struct diag *diag)
{
    struct shm_world *w = join_world(head, fd, place);
    w->base.deadline_s = deadline_s;
    int64_t begin = region_now_ns();
    for (int i = 0; i < head->n_ranks; i++) {
        while (atomic_load(&head->rank[i].state) == RANK_ABSENT) {
            usleep(500);
            if (deadline_s <= 0 || (double)(region_now_ns() - begin) < deadline_s * 1e9)
                continue;
            diag_set(
                    diag, ST_STOPPED,
                    "start of the ranks of this host (rank %d): rank %d did not arrive "
                    "within %g s",
                    head->rank[place].world_rank, head->rank[i].world_rank, deadline_s);
            shm_world_close(&w->base);
            return ST_STOPPED;
        }
    }
    region_watch(&w->region);
    *out = &w->base;
    return ST_OK;
}

struct region *comm_shm_region(struct comm_world *world)
{
    ASSERT(world->ops == &shm_world_ops);
    return &((struct shm_world *)world)->region;
}

void comm_shm_follow_deadline(struct comm_world *world, const double *deadline_s)
{
    ASSERT(world->ops == &shm_world_ops);
    ((struct shm_world *)world)->deadline_s = deadline_s;
}
