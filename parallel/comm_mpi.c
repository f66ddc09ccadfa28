#include "parallel/comm_mpi.h"

#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/hash.h"
#include "core/log.h"
#include "core/opt.h"
#include "core/str.h"
#include "parallel/comm_mpi_private.h"
#include "parallel/comm_self.h"

#define SPIN_NS   20000
#define SLEEP_NS  20000 /* first sleep between two looks; it doubles up to: */
#define SLEEP_MAX 500000
#define DEATH_NS  200000000
#define LINGER_NS 1000000000 /* of a world that stopped, so that all can say why */

/* ---- requests ---- */

static enum status mpi_error(struct mpi_world *w, int code, const char *what,
                             struct diag *diag)
{
    char text[MPI_TEXT_BYTES] = "";
    int n = 0;
    (void)w->lib.Error_string(code, text, &n);
    return diag_set(diag, ST_UNAVAILABLE, "MPI cannot %s (rank %d): %.300s", what,
                    w->base.rank, text);
}

static struct region *host_region(struct mpi_world *w)
{
    return comm_shm_region(w->host);
}

/* An error of the library between ranks: the world ends. */
static enum status broken(struct mpi_world *w, int code, const char *what,
                          struct diag *diag)
{
    struct diag own = {0};
    (void)mpi_error(w, code, what, &own);
    region_stop(host_region(w), w->base.rank, own.text);
    return diag_set(diag, ST_STOPPED, "%s", own.text);
}

enum status mpi_start_send(struct mpi_world *w, const void *buf, int64_t bytes, int to,
                           int tag, struct mpi_transfer *t, struct diag *diag)
{
    ASSERT(bytes >= 0 && bytes <= INT_MAX);
    t->rank = to;
    pthread_mutex_lock(&w->lock);
    int code =
            w->lib.Isend(buf, (int)bytes, w->lib.byte, to, tag, w->comm, &t->request);
    pthread_mutex_unlock(&w->lock);
    return code ? broken(w, code, "send", diag) : ST_OK;
}

enum status mpi_start_recv(struct mpi_world *w, void *buf, int64_t bytes, int from,
                           int tag, struct mpi_transfer *t, struct diag *diag)
{
    ASSERT(bytes >= 0 && bytes <= INT_MAX);
    t->rank = from;
    pthread_mutex_lock(&w->lock);
    int code =
            w->lib.Irecv(buf, (int)bytes, w->lib.byte, from, tag, w->comm, &t->request);
    pthread_mutex_unlock(&w->lock);
    return code ? broken(w, code, "receive", diag) : ST_OK;
}

static void *mpi_type(struct mpi_world *w, enum dtype dtype)
{
    return dtype == DT_F32 ? w->lib.float32
                           : (dtype == DT_F64 ? w->lib.float64 : w->lib.int32);
}

bool mpi_can_sum(enum dtype dtype)
{
    return dtype == DT_F32 || dtype == DT_F64 || dtype == DT_I32;
}

enum status mpi_start_sum(struct mpi_world *w, const struct mpi_sum *s,
                          struct mpi_transfer *t, struct diag *diag)
{
    void *type = mpi_type(w, s->dtype);
    t->rank = MPI_ALL_MEMBERS;
    pthread_mutex_lock(&w->lock);
    int code = s->pieces ? w->lib.Ireduce_scatter(s->src, s->dst, s->pieces, type,
                                                  w->lib.sum, s->comm, &t->request)
                         : w->lib.Iallreduce(s->src, s->dst, s->n, type, w->lib.sum,
                                             s->comm, &t->request);
    pthread_mutex_unlock(&w->lock);
    return code ? broken(w, code, "add", diag) : ST_OK;
}

enum status mpi_open_library_group(struct mpi_world *w, const int *ranks, int n,
                                   int tag, void **comm, struct diag *diag)
{
    void *all = NULL, *some = NULL;
    pthread_mutex_lock(&w->lock);
    int code = w->lib.Comm_group(w->comm, &all);
    if (!code)
        code = w->lib.Group_incl(all, n, ranks, &some);
    if (!code)
        code = w->lib.Comm_create_group(w->comm, some, tag, comm);
    if (!code)
        code = w->lib.Comm_set_errhandler(*comm, w->lib.errors_return);
    if (all)
        (void)w->lib.Group_free(&all);
    if (some)
        (void)w->lib.Group_free(&some);
    pthread_mutex_unlock(&w->lock);
    return code ? broken(w, code, "open a group", diag) : ST_OK;
}

void mpi_close_library_group(struct mpi_world *w, void **comm)
{
    pthread_mutex_lock(&w->lock);
    (void)w->lib.Comm_free(comm);
    pthread_mutex_unlock(&w->lock);
}

/* Sends the reason to all ranks of other hosts: once, by the rank that stopped first on
 * this host. */
static void tell_hosts(void *arg)
{
    struct mpi_world *w = arg;
    if (atomic_exchange(&w->told, true))
        return;
    struct region_head *h = host_region(w)->head;
    w->stop_out.rank = h->stop_rank;
    snprintf(w->stop_out.text, sizeof(w->stop_out.text), "%s", h->stop_text);
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->base.size; i++)
        if (w->host_of[i] != w->host_of[w->base.rank])
            (void)w->lib.Isend(&w->stop_out, sizeof(w->stop_out), w->lib.byte, i,
                               TAG_STOP, w->comm, &w->stop_sends[i]);
    pthread_mutex_unlock(&w->lock);
}

/* Looks whether a rank of another host gave up. Also moves what is under way. */
static void poll_stop(void *arg)
{
    struct mpi_world *w = arg;
    int came = 0;
    pthread_mutex_lock(&w->lock);
    if (w->stop_recv != w->lib.request_null)
        (void)w->lib.Test(&w->stop_recv, &came, NULL);
    pthread_mutex_unlock(&w->lock);
    if (!came)
        return;
    atomic_store(&w->told, true); /* the sender tells everyone */
    w->stop_in.text[sizeof(w->stop_in.text) - 1] = '\0';
    region_stop(host_region(w), w->stop_in.rank, w->stop_in.text);
}

enum status mpi_enter(struct mpi_world *w, const char *what, const char *where,
                      struct diag *diag)
{
    if (!region_is_stopped(host_region(w)))
        return ST_OK;
    char why[STOP_TEXT_BYTES + 64];
    region_stop_reason(host_region(w), why, sizeof(why));
    return diag_set(diag, ST_STOPPED, "%s in %s (rank %d) ended: %s", what, where,
                    w->base.rank, why);
}

/* Tests all that is under way. Returns how many are, or -1 with the code of an error. */
static int test_all(struct mpi_world *w, struct mpi_transfer *t, int n, int *code)
{
    int left = 0;
    *code = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < n && !*code; i++) {
        int done = 1;
        if (t[i].request != w->lib.request_null)
            *code = w->lib.Test(&t[i].request, &done, NULL);
        left += !done;
    }
    pthread_mutex_unlock(&w->lock);
    return *code ? -1 : left;
}

/* "rank 5", "ranks 1, 5": whose transfers are not done. */
static void print_missing(struct mpi_world *w, const struct mpi_transfer *t, int n,
                          struct str *out)
{
    int late[CALL_RANKS_NAMED], n_late = 0;
    for (int i = 0; i < n && n_late < CALL_RANKS_NAMED; i++) {
        bool named = t[i].request == w->lib.request_null;
        for (int k = 0; k < n_late && !named; k++)
            named = late[k] == t[i].rank;
        if (!named)
            late[n_late++] = t[i].rank;
    }
    if (n_late == 1 && late[0] == MPI_ALL_MEMBERS)
        str_add(out, "another member");
    else
        call_name_ranks(late, n_late, out);
}

static enum status end_wait(struct mpi_world *w, struct mpi_transfer *t, int n,
                            const char *what, const char *where, const char *reason,
                            struct diag *diag)
{
    struct region *r = host_region(w);
    struct str missing = {0};
    char why[STOP_TEXT_BYTES + 64];
    print_missing(w, t, n, &missing);
    if (region_is_stopped(r)) {
        region_stop_reason(r, why, sizeof(why));
        diag_set(diag, ST_STOPPED, "%s in %s (rank %d) ended, waiting for %s: %s", what,
                 where, w->base.rank, str_get(&missing), why);
    } else {
        snprintf(why, sizeof(why), "%s in %s (rank %d): %s did not arrive%s", what,
                 where, w->base.rank, str_get(&missing), reason);
        region_stop(r, w->base.rank, why);
        diag_set(diag, ST_STOPPED, "%s", why);
    }
    str_free(&missing);
    return ST_STOPPED;
}

static void pause_ns(int64_t ns)
{
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

enum status mpi_wait(struct mpi_world *w, struct mpi_transfer *t, int n,
                     const char *what, const char *where, struct diag *diag)
{
    struct region *r = host_region(w);
    int64_t begin = region_now_ns(), checked = begin, sleep = SLEEP_NS;
    double deadline_s = w->base.deadline_s;
    char reason[256];
    int code, left;
    while ((left = test_all(w, t, n, &code)) != 0) {
        int64_t now = region_now_ns();
        if (left < 0) {
            (void)mpi_error(w, code, "go on", diag);
            snprintf(reason, sizeof(reason), ": %.200s",
                     diag ? diag->text : "MPI error");
            return end_wait(w, t, n, what, where, reason, diag);
        }
        poll_stop(w);
        if (region_is_stopped(r))
            return end_wait(w, t, n, what, where, "", diag);
        if (deadline_s > 0 && (double)(now - begin) > deadline_s * 1e9) {
            snprintf(reason, sizeof(reason), " within %g s", deadline_s);
            return end_wait(w, t, n, what, where, reason, diag);
        }
        int dead = -1;
        if (now - checked > DEATH_NS) {
            checked = now;
            dead = region_find_dead(r);
        }
        if (dead >= 0) {
            snprintf(reason, sizeof(reason), ": rank %d died (process %d is no more)",
                     r->head->rank[dead].world_rank,
                     atomic_load(&r->head->rank[dead].pid));
            return end_wait(w, t, n, what, where, reason, diag);
        }
        if (now - begin < SPIN_NS) {
            sched_yield();
            continue;
        }
        pause_ns(sleep);
        sleep = MIN(2 * sleep, SLEEP_MAX);
    }
    return ST_OK;
}

/* ---- the world ---- */

static bool on_this_host(const struct mpi_world *w, int rank)
{
    return w->host_of[rank] == w->host_of[w->base.rank];
}

static enum status world_group(struct comm_world *base, const int *members, int n,
                               const char *name, struct comm **out, struct diag *diag)
{
    struct mpi_world *w = (struct mpi_world *)base;
    bool local = true;
    int *place = mem_alloc((size_t)n * sizeof(int));
    for (int i = 0; i < n; i++) {
        ASSERT(members[i] >= 0 && members[i] < base->size);
        local = local && on_this_host(w, members[i]);
        place[i] = w->place_of[members[i]];
    }
    enum status st = local ? w->host->ops->group(w->host, place, n, name, out, diag)
                           : mpi_group_open(w, members, n, name, out, diag);
    mem_free(place);
    return st;
}

static void *world_alloc(struct comm_world *base, int64_t bytes)
{
    struct comm_world *host = ((struct mpi_world *)base)->host;
    return host->ops->alloc(host, bytes);
}

static void world_release(struct comm_world *base, void *at, int64_t bytes)
{
    struct comm_world *host = ((struct mpi_world *)base)->host;
    host->ops->release(host, at, bytes);
}

static void world_give_up(struct comm_world *base, const char *why)
{
    struct mpi_world *w = (struct mpi_world *)base;
    region_stop(host_region(w), base->rank, why);
}

/* A world that stopped: lets the reason reach other hosts, and the ranks of this one see
 * it, before the launcher ends all because one has ended. */
static void linger(struct mpi_world *w)
{
    struct region_head *h = host_region(w)->head;
    int64_t begin = region_now_ns();
    atomic_store(&h->rank[host_region(w)->me].state, RANK_LEFT);
    bool waits = true;
    while (waits && region_now_ns() - begin < LINGER_NS) {
        waits = false;
        pthread_mutex_lock(&w->lock);
        for (int i = 0; i < w->base.size; i++) {
            int done = 1;
            if (w->stop_sends[i] != w->lib.request_null)
                (void)w->lib.Test(&w->stop_sends[i], &done, NULL);
            waits = waits || !done;
        }
        pthread_mutex_unlock(&w->lock);
        for (int i = 0; i < h->n_ranks; i++)
            waits = waits || atomic_load(&h->rank[i].state) == RANK_JOINED;
        if (h->n_ranks < w->base.size)
            waits = waits || region_now_ns() - begin < LINGER_NS / 4;
        if (waits)
            pause_ns(2000000);
    }
}

static void world_free(struct mpi_world *w)
{
    if (w->host)
        w->host->ops->close(w->host);
    mem_free(w->host_of);
    mem_free(w->place_of);
    mem_free(w->stop_sends);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

static void world_close(struct comm_world *base)
{
    struct mpi_world *w = (struct mpi_world *)base;
    if (region_is_stopped(host_region(w))) {
        linger(w);
        struct comm_world *host = w->host;
        host->ops->close(host);
        return; /* MPI may still read what is under way: all of it stays */
    }
    host_region(w)->poll = NULL;
    pthread_mutex_lock(&w->lock);
    (void)w->lib.Cancel(&w->stop_recv);
    int done = 0;
    for (int i = 0; i < 1000 && !done; i++)
        if (w->lib.Test(&w->stop_recv, &done, NULL) != 0)
            break;
    (void)w->lib.Finalize();
    pthread_mutex_unlock(&w->lock);
    world_free(w);
}

static const struct comm_world_ops world_ops = {
        .group = world_group,
        .alloc = world_alloc,
        .release = world_release,
        .give_up = world_give_up,
        .close = world_close,
};

void comm_host_ranks(const struct comm_world *base, int *place, int *n)
{
    *place = 0;
    *n = 1;
    if (base->ops != &world_ops)
        return;
    const struct mpi_world *w = (const struct mpi_world *)base;
    *place = w->place_of[base->rank];
    *n = 0;
    for (int i = 0; i < base->size; i++)
        *n += on_this_host(w, i);
}

/* ---- start ---- */

#define START(w, call, what)                                                           \
    do {                                                                               \
        int code_ = (w)->lib.call;                                                     \
        if (code_ != 0)                                                                \
            return mpi_error((w), code_, (what), diag);                                \
    } while (0)

/* What must be alike on all ranks. */
struct ticket {
    char build[120];
    uint64_t program; /* the linker's hash of it, or 0 */
};

/* Finds the build id that the linker left in the program's notes. */
static int find_build_id(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        const char *at = (const char *)info->dlpi_addr + p->p_vaddr;
        const char *end = at + p->p_memsz;
        while (p->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            memcpy(&note, at, sizeof(note));
            const char *name = at + sizeof(note);
            const char *text = name + (note.n_namesz + 3) / 4 * 4;
            if (note.n_type == NT_GNU_BUILD_ID && text + note.n_descsz <= end) {
                *(uint64_t *)out = hash64(text, note.n_descsz);
                return 1;
            }
            at = text + (note.n_descsz + 3) / 4 * 4;
        }
    }
    return 1; /* the first object is the program: look at no other */
}

static enum status compare_programs(struct mpi_world *w, const char *build,
                                    struct diag *diag)
{
    struct ticket own = {.program = 0}, *all;
    snprintf(own.build, sizeof(own.build), "%s", build ? build : "");
    (void)dl_iterate_phdr(find_build_id, &own.program);
    all = mem_alloc((size_t)w->base.size * sizeof(*all));
    int code = w->lib.Allgather(&own, sizeof(own), w->lib.byte, all, sizeof(own),
                                w->lib.byte, w->comm);
    enum status st = code ? mpi_error(w, code, "gather", diag) : ST_OK;
    for (int i = 1; i < w->base.size && st == ST_OK; i++) {
        if (memcmp(&all[i], &all[0], sizeof(own)) == 0)
            continue;
        st = diag_set(diag, ST_CONFIG,
                      "the ranks run different programs: rank 0 has '%s' (%016" PRIx64
                      "), rank %d has '%s' (%016" PRIx64 "), wanted the same on all",
                      all[0].build, all[0].program, i, all[i].build, all[i].program);
        diag_hint(diag, "start the same file of angel on every host");
    }
    mem_free(all);
    return st;
}

static enum status gather_ints(struct mpi_world *w, void *comm, const int *own, int n,
                               int *all, struct diag *diag)
{
    int bytes = n * (int)sizeof(int);
    START(w, Allgather(own, bytes, w->lib.byte, all, bytes, w->lib.byte, comm),
          "gather");
    return ST_OK;
}

/* Makes or maps the memory of the host's ranks. out: *ok false where this rank cannot. */
static enum status share_region(struct mpi_world *w, void *comm, int me, int n,
                                const int *world_rank, struct region_head **head,
                                int *fd, bool *ok, struct diag *diag)
{
    int where[2] = {(int)getpid(), -1};
    if (me == 0 && region_create(n, world_rank, true, head, fd, diag) == ST_OK)
        where[1] = *fd;
    START(w, Bcast(where, sizeof(where), w->lib.byte, 0, comm), "broadcast");
    int mine = where[1] >= 0;
    if (mine && me > 0)
        mine = region_map(where[0], where[1], head, fd, diag) == ST_OK;
    int *all = mem_alloc((size_t)n * sizeof(int));
    enum status st = gather_ints(w, comm, &mine, 1, all, diag);
    *ok = st == ST_OK;
    for (int i = 0; i < n; i++)
        *ok = *ok && all[i];
    if (!*ok && me == 0)
        log_warn("the ranks of this host cannot share memory and exchange by MPI: %s",
                 diag && !mine ? diag->text : "a rank cannot map it");
    if (!*ok && mine)
        region_drop(*head, *fd);
    mem_free(all);
    return st;
}

static enum status join_alone(struct mpi_world *w, double deadline_s, struct diag *diag)
{
    struct region_head *head;
    int fd;
    TRY(region_create(1, &w->base.rank, false, &head, &fd, diag));
    atomic_store(&head->n_open, 1);
    return comm_shm_join(head, fd, 0, deadline_s, &w->host, diag);
}

/* Joins the ranks of this host; where memory cannot be shared, every rank is a
 * host of its own. */
static enum status join_host(struct mpi_world *w, const struct comm_open_options *o,
                             struct diag *diag)
{
    void *comm;
    int me, n, size = w->base.size;
    START(w,
          Comm_split_type(w->comm, MPI_SPLIT_SHARED, w->base.rank, w->lib.info_null,
                          &comm),
          "split the ranks by host");
    if (o->ranks_per_host > 0)
        START(w,
              Comm_split(comm, w->base.rank / o->ranks_per_host, w->base.rank, &comm),
              "split the ranks");
    START(w, Comm_rank(comm, &me), "tell the rank");
    START(w, Comm_size(comm, &n), "tell the size");
    int *world_rank = mem_alloc((size_t)n * sizeof(int));
    int *pairs = mem_alloc(2 * (size_t)size * sizeof(int));
    struct region_head *head = NULL;
    int fd = -1;
    bool shared = n > 1;
    enum status st = gather_ints(w, comm, &w->base.rank, 1, world_rank, diag);
    if (st == ST_OK && shared)
        st = share_region(w, comm, me, n, world_rank, &head, &fd, &shared, diag);
    if (st == ST_OK)
        st = shared ? comm_shm_join(head, fd, me, o->deadline_s, &w->host, diag)
                    : join_alone(w, o->deadline_s, diag);
    if (st == ST_OK) {
        int own[2] = {shared ? world_rank[0] : w->base.rank, shared ? me : 0};
        st = gather_ints(w, w->comm, own, 2, pairs, diag);
    }
    for (int i = 0; i < size; i++) {
        w->host_of[i] = pairs[2 * i];
        w->place_of[i] = pairs[2 * i + 1];
    }
    mem_free(world_rank);
    mem_free(pairs);
    return st;
}

static enum status start_mpi(struct mpi_world *w, const struct comm_open_options *o,
                             struct diag *diag)
{
    int provided = 0;
    START(w, Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED_, &provided), "start");
    if (provided < MPI_THREAD_SERIALIZED_)
        return diag_set(diag, ST_UNAVAILABLE,
                        "the MPI library has no threads: got level %d, wanted %d "
                        "(MPI_THREAD_SERIALIZED)",
                        provided, MPI_THREAD_SERIALIZED_);
    START(w, Comm_set_errhandler(w->lib.world, w->lib.errors_return), "start");
    START(w, Comm_rank(w->lib.world, &w->base.rank), "tell the rank");
    START(w, Comm_size(w->lib.world, &w->base.size), "tell the size");
    START(w, Comm_dup(w->lib.world, &w->comm), "start");
    START(w, Comm_set_errhandler(w->comm, w->lib.errors_return), "start");
    size_t n = (size_t)w->base.size;
    w->host_of = mem_alloc(n * sizeof(int));
    w->place_of = mem_alloc(n * sizeof(int));
    w->stop_sends = mem_alloc(n * sizeof(void *));
    for (size_t i = 0; i < n; i++)
        w->stop_sends[i] = w->lib.request_null;
    TRY(compare_programs(w, o->build, diag));
    TRY(join_host(w, o, diag));
    START(w,
          Irecv(&w->stop_in, sizeof(w->stop_in), w->lib.byte, MPI_ANY_SOURCE_VALUE,
                TAG_STOP, w->comm, &w->stop_recv),
          "receive");
    struct region *r = host_region(w);
    r->poll = poll_stop;
    r->on_stop = tell_hosts;
    r->hook_arg = w;
    comm_shm_follow_deadline(w->host, &w->base.deadline_s);
    return ST_OK;
}

static int env_count(const char *name)
{
    const char *text = opt_env(name);
    return text ? (int)strtol(text, NULL, 10) : 0;
}

int comm_launched_ranks(void)
{
    int n = env_count("OMPI_COMM_WORLD_SIZE");
    if (n > 0)
        return n;
    return opt_env("PMIX_RANK") ? 0 : MAX(env_count("PMI_SIZE"), 1);
}

enum status comm_world_open(const struct comm_open_options *o, struct comm_world **out,
                            struct diag *diag)
{
    if (comm_launched_ranks() == 1) {
        *out = comm_self_create();
        (*out)->deadline_s = o->deadline_s;
        return ST_OK;
    }
    if (!opt_env("OMPI_COMM_WORLD_SIZE") && !opt_env("PMIX_RANK")) {
        diag_set(diag, ST_UNAVAILABLE,
                 "%d ranks were started by a launcher that is not Open MPI's (PMI_SIZE "
                 "is set, OMPI_COMM_WORLD_SIZE and PMIX_RANK are not)",
                 comm_launched_ranks());
        diag_hint(diag, "start with Open MPI's mpirun, or srun --mpi=pmix");
        return ST_UNAVAILABLE;
    }
    const char *file =
            o->library && *o->library ? o->library : opt_env("ANGEL_MPI_LIBRARY");
    struct mpi_world *w = mem_alloc(sizeof(*w));
    pthread_mutex_init(&w->lock, NULL);
    w->base.ops = &world_ops;
    enum status st = mpi_lib_open(&w->lib, file, diag);
    if (st == ST_OK)
        st = start_mpi(w, o, diag);
    if (st != ST_OK) {
        world_free(w);
        return st;
    }
    w->base.deadline_s = o->deadline_s;
    *out = &w->base;
    return ST_OK;
}
