#include "parallel/comm_region.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/pool.h"

#define MAGIC        UINT64_C(0x316e6f6967657261)
#define HUGE_BYTES   ((uint64_t)2 << 20)
#define SPIN_NS      20000
#define SPIN_FULL_NS 2000 /* with more ranks than processors */
#define SLICE_NS     50000000
#define DEATH_NS     200000000

/* Addresses, not memory: pages are had by writing to them. */
#define THREADS_BYTES ((uint64_t)4 << 30)
#define STATE_BYTES   ((uint64_t)64 << 30)

int64_t region_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- memory ---- */

static uint64_t physical_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : STATE_BYTES;
}

/* Maps `bytes` at an address that huge pages can have. */
static void *map_aligned(uint64_t bytes, int fd)
{
    int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    char *raw = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    uint64_t skip = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    char *at = raw + skip;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) ==
        MAP_FAILED) {
        munmap(raw, bytes + HUGE_BYTES);
        return NULL;
    }
    if (skip)
        munmap(raw, skip);
    munmap(at + bytes, HUGE_BYTES - skip);
    (void)madvise(at, bytes, MADV_DONTDUMP);
    return at;
}

static enum status no_region(const char *what, struct diag *diag)
{
    return diag_set(diag, ST_NO_FIT,
                    "cannot share memory between ranks (%s): system says %s", what,
                    strerror(errno));
}

enum status region_create(int n_ranks, const int *world_rank, bool shared,
                          struct region_head **head, int *fd, struct diag *diag)
{
    ASSERT(n_ranks >= 1);
    uint64_t own =
            sizeof(struct region_head) + (uint64_t)n_ranks * sizeof(struct region_rank);
    uint64_t bytes = shared ? STATE_BYTES + 2 * physical_bytes() : THREADS_BYTES;
    bytes = (bytes + own + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    *fd = -1;
    if (shared) {
        *fd = memfd_create("angel-ranks", MFD_CLOEXEC);
        if (*fd < 0)
            return no_region("memfd_create", diag);
        if (ftruncate(*fd, (off_t)bytes) != 0) {
            close(*fd);
            return no_region("ftruncate", diag);
        }
    }
    struct region_head *h = map_aligned(bytes, *fd);
    if (!h) {
        if (shared)
            close(*fd);
        return no_region("mmap", diag);
    }
    h->bytes = bytes;
    h->n_ranks = n_ranks;
    h->shared = shared;
    h->stop_rank = -1;
    atomic_store(&h->used_bytes, (own + 4095) / 4096 * 4096);
    for (int i = 0; i < n_ranks; i++)
        h->rank[i].world_rank = world_rank[i];
    h->magic = MAGIC;
    *head = h;
    return ST_OK;
}

enum status region_map(int pid, int fd, struct region_head **head, int *own_fd,
                       struct diag *diag)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    *own_fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat s;
    if (*own_fd < 0)
        return diag_set(diag, ST_UNAVAILABLE,
                        "cannot open the memory that process %d shares (%s): system "
                        "says %s",
                        pid, path, strerror(errno));
    struct region_head *h = NULL;
    if (fstat(*own_fd, &s) == 0 && (uint64_t)s.st_size > sizeof(*h))
        h = map_aligned((uint64_t)s.st_size, *own_fd);
    if (h && h->magic == MAGIC && h->bytes == (uint64_t)s.st_size) {
        *head = h;
        return ST_OK;
    }
    if (h)
        munmap(h, (size_t)s.st_size);
    close(*own_fd);
    return diag_set(diag, ST_UNAVAILABLE,
                    "cannot map the memory that process %d shares (%s)", pid, path);
}

void region_drop(struct region_head *head, int fd)
{
    munmap(head, head->bytes);
    if (fd >= 0)
        close(fd);
}

void region_join(struct region *r, struct region_head *head, int fd, int me)
{
    ASSERT(me >= 0 && me < head->n_ranks);
    *r = (struct region){.head = head, .base = (char *)head, .me = me, .fd = fd};
    r->spin_ns = head->n_ranks <= pool_cpus_available() ? SPIN_NS : SPIN_FULL_NS;
    atomic_store(&head->rank[me].pid, (int)getpid());
    atomic_store(&head->rank[me].state, RANK_JOINED);
}

void region_leave(struct region *r)
{
    struct region_head *h = r->head;
    atomic_store(&h->rank[r->me].state, RANK_LEFT);
    for (int i = 0; r->pidfd && i < h->n_ranks; i++)
        if (r->pidfd[i] >= 0)
            close(r->pidfd[i]);
    mem_free(r->pidfd);
    mem_free(r->freed);
    if (h->shared || atomic_fetch_sub(&h->n_open, 1) == 1)
        munmap(h, h->bytes);
    if (r->fd >= 0)
        close(r->fd);
}

uint64_t region_take(struct region *r, uint64_t bytes, uint64_t align)
{
    atomic_ullong *used = &r->head->used_bytes;
    unsigned long long seen = atomic_load(used);
    for (;;) {
        uint64_t at = (seen + align - 1) / align * align;
        if (bytes > r->head->bytes || at > r->head->bytes - bytes)
            return 0;
        if (atomic_compare_exchange_weak(used, &seen, at + bytes))
            return at;
    }
}

bool region_share(const struct region *r, const void *at, int64_t bytes, uint64_t *out)
{
    uintptr_t a = (uintptr_t)at, base = (uintptr_t)r->base;
    *out = r->head->shared ? a - base : a;
    return !r->head->shared ||
           (a >= base && a + (uint64_t)bytes <= base + r->head->bytes);
}

void *region_shared(const struct region *r, uint64_t share)
{
    return r->head->shared ? r->base + share : (char *)(uintptr_t)share;
}

/* A freed range of at least so many bytes, the smallest there is. */
static uint64_t take_freed(struct region *r, int64_t bytes)
{
    int best = -1;
    for (int i = 0; i < r->n_freed; i++)
        if (r->freed[i].bytes >= bytes &&
            (best < 0 || r->freed[i].bytes < r->freed[best].bytes))
            best = i;
    if (best < 0)
        return 0;
    struct region_range *f = &r->freed[best];
    uint64_t at = (uint64_t)f->offset;
    f->offset += bytes;
    f->bytes -= bytes;
    if (f->bytes == 0)
        *f = r->freed[--r->n_freed];
    return at;
}

void *region_alloc(struct region *r, int64_t bytes)
{
    ASSERT(bytes >= 0);
    if (!r->head->shared) {
        void *p;
        return pages_map((size_t)bytes, &p, NULL) == ST_OK ? p : NULL;
    }
    int64_t want = round_up_i64(MAX(bytes, 1), (int64_t)HUGE_BYTES);
    uint64_t at = take_freed(r, want);
    if (!at)
        at = region_take(r, (uint64_t)want, HUGE_BYTES);
    if (!at)
        return NULL;
    (void)madvise(region_at(r, at), (size_t)want, MADV_HUGEPAGE);
    return region_at(r, at);
}

void region_release(struct region *r, void *p, int64_t bytes)
{
    if (!p)
        return;
    if (!r->head->shared) {
        pages_unmap(p, (size_t)bytes);
        return;
    }
    int64_t size = round_up_i64(MAX(bytes, 1), (int64_t)HUGE_BYTES);
    if (madvise(p, (size_t)size, MADV_REMOVE) != 0)
        return; /* the pages stay, so the range cannot be handed out as zeroed */
    if (r->n_freed == r->cap_freed) {
        r->cap_freed = MAX(2 * r->cap_freed, 8);
        r->freed = mem_realloc(r->freed, (size_t)r->cap_freed * sizeof(*r->freed));
    }
    r->freed[r->n_freed++] = (struct region_range){(char *)p - r->base, size};
}

/* ---- giving up ---- */

void region_stop(struct region *r, int world_rank, const char *why)
{
    struct region_head *h = r->head;
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&h->stop, &none, 1))
        return;
    h->stop_rank = world_rank;
    snprintf(h->stop_text, sizeof(h->stop_text), "%s", why);
    atomic_store(&h->stop, 2);
    if (r->on_stop)
        r->on_stop(r->hook_arg);
}

bool region_is_stopped(const struct region *r)
{
    return atomic_load(&r->head->stop) != 0;
}

const char *region_stop_reason(const struct region *r, char *text, size_t n)
{
    struct region_head *h = r->head;
    for (int i = 0; i < 1000 && atomic_load(&h->stop) == 1; i++)
        usleep(10);
    if (atomic_load(&h->stop) != 2)
        snprintf(text, n, "another rank gave up");
    else if (h->stop_rank >= 0)
        snprintf(text, n, "rank %d gave up: %s", h->stop_rank, h->stop_text);
    else
        snprintf(text, n, "%s", h->stop_text);
    return text;
}

/* ---- waiting ---- */

void region_watch(struct region *r)
{
    struct region_head *h = r->head;
    if (!h->shared)
        return;
    r->pidfd = mem_alloc((size_t)h->n_ranks * sizeof(int));
    for (int i = 0; i < h->n_ranks; i++) {
        r->pidfd[i] = -1;
        if (i != r->me)
            r->pidfd[i] = (int)syscall(SYS_pidfd_open, atomic_load(&h->rank[i].pid), 0);
    }
}

/* Whether the process ended. A handle is readable from then on, also while the process
 * waits to be reaped. */
static bool process_died(const struct region *r, int place)
{
    int fd = r->pidfd[place];
    if (fd >= 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
    }
    int pid = atomic_load(&r->head->rank[place].pid);
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

int region_find_dead(const struct region *r)
{
    struct region_head *h = r->head;
    for (int i = 0; r->pidfd && i < h->n_ranks; i++)
        if (i != r->me && atomic_load(&h->rank[i].state) == RANK_JOINED &&
            process_died(r, i))
            return i;
    return -1;
}

/* The place of a rank that is needed and left, or -1. */
static int find_left(const struct region *r, region_needed_fn needed, void *arg)
{
    struct region_head *h = r->head;
    for (int i = 0; needed && i < h->n_ranks; i++)
        if (atomic_load(&h->rank[i].state) == RANK_LEFT && needed(arg, i))
            return i;
    return -1;
}

static void futex_sleep(struct region *r, struct region_word *word, unsigned target)
{
    struct timespec slice = {0, SLICE_NS};
    int op = r->head->shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
    atomic_fetch_add(&word->sleepers, 1);
    unsigned seen = atomic_load(&word->value);
    if (!region_reached(seen, target))
        syscall(SYS_futex, &word->value, op, seen, &slice, NULL, 0);
    atomic_fetch_sub(&word->sleepers, 1);
}

void region_wake(struct region *r, struct region_word *word)
{
    if (atomic_load(&word->sleepers) == 0)
        return;
    int op = r->head->shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE;
    syscall(SYS_futex, &word->value, op, INT_MAX, NULL, NULL, 0);
}

static bool has_reached(struct region_word *word, unsigned target)
{
    return region_reached(atomic_load_explicit(&word->value, memory_order_acquire),
                          target);
}

static bool spin(struct region_word *word, unsigned target, int64_t until_ns)
{
    do {
        for (int i = 0; i < 16; i++) {
            if (has_reached(word, target))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        sched_yield(); /* who is waited for may want this processor */
    } while (region_now_ns() < until_ns);
    return false;
}

enum wait_end region_wait(struct region *r, struct region_word *word, unsigned target,
                          double deadline_s, region_needed_fn needed, void *arg,
                          int *died)
{
    if (has_reached(word, target))
        return WAIT_REACHED;
    int64_t begin = region_now_ns(), checked = begin;
    if (spin(word, target, begin + r->spin_ns))
        return WAIT_REACHED;
    for (;;) {
        futex_sleep(r, word, target);
        if (has_reached(word, target))
            return WAIT_REACHED;
        if (r->poll)
            r->poll(r->hook_arg);
        if (region_is_stopped(r))
            return WAIT_STOPPED;
        int64_t now = region_now_ns();
        if (deadline_s > 0 && (double)(now - begin) > deadline_s * 1e9)
            return WAIT_DEADLINE;
        if (now - checked < DEATH_NS)
            continue;
        checked = now;
        if ((*died = region_find_dead(r)) >= 0 && !has_reached(word, target))
            return WAIT_DIED;
        if ((*died = find_left(r, needed, arg)) >= 0 && !has_reached(word, target))
            return WAIT_LEFT;
    }
}
