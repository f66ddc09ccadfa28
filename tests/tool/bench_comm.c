/* Latency and bandwidth of the communicators over sizes. Ranks are threads, processes of
 * this host (forked; private: with buffers that others cannot read), or, under mpirun, its
 * processes (mpi; hosts: each as a host of its own).
 * usage: bench_comm [threads|processes|private|mpi|hosts [ranks [part of a call's name]]]
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "parallel/comm_mpi.h"
#include "parallel/comm_shm.h"

#define RANKS_MAX 64
#define BYTES_MAX ((int64_t)64 << 20)
#define BATCH_NS  20000000.0
#define N_BATCHES 9

struct bench {
    struct comm_world *w;
    struct comm *c;
    char *src, *dst;
    int64_t count[RANKS_MAX];
    struct diag diag;
};

typedef enum status (*call_fn)(struct bench *b, int64_t n);

static enum status call_all_reduce(struct bench *b, int64_t n)
{
    return b->c->ops->all_reduce(b->c, b->src, n, DT_F32, COMM_SUM, &b->diag);
}

static enum status call_all_reduce_bf16(struct bench *b, int64_t n)
{
    return b->c->ops->all_reduce(b->c, b->src, 2 * n, DT_BF16, COMM_SUM, &b->diag);
}

static void split(struct bench *b, int64_t n)
{
    for (int i = 0; i < b->c->size; i++)
        b->count[i] = n / b->c->size + (i < n % b->c->size);
}

static enum status call_all_gather(struct bench *b, int64_t n)
{
    split(b, n);
    return b->c->ops->all_gather(b->c, b->src, b->dst, b->count, DT_F32, &b->diag);
}

static enum status call_reduce_scatter(struct bench *b, int64_t n)
{
    split(b, n);
    return b->c->ops->reduce_scatter(b->c, b->src, b->dst, b->count, DT_F32, &b->diag);
}

static enum status call_broadcast(struct bench *b, int64_t n)
{
    return b->c->ops->broadcast(b->c, b->src, n, DT_F32, 0, &b->diag);
}

/* There and back between the first two ranks: two messages. */
static enum status call_ping_pong(struct bench *b, int64_t n)
{
    struct comm *c = b->c;
    if (c->rank > 1 || c->size < 2)
        return ST_OK;
    if (c->rank == 0)
        TRY(c->ops->send(c, b->src, n, DT_F32, 1, &b->diag));
    TRY(c->ops->recv(c, b->dst, n, DT_F32, 1 - c->rank, &b->diag));
    if (c->rank == 1)
        TRY(c->ops->send(c, b->src, n, DT_F32, 0, &b->diag));
    return ST_OK;
}

static const struct {
    const char *name;
    call_fn fn;
} calls[] = {
        {"all-reduce f32", call_all_reduce}, {"all-reduce bf16", call_all_reduce_bf16},
        {"all-gather", call_all_gather},     {"reduce-scatter", call_reduce_scatter},
        {"broadcast", call_broadcast},       {"ping-pong", call_ping_pong},
};

static void need(enum status st, const struct diag *diag)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "%s\n", diag->text);
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static double batch_ns(struct bench *b, call_fn fn, int64_t n, int64_t reps)
{
    need(b->c->ops->barrier(b->c, &b->diag), &b->diag);
    double begin = now_ns();
    for (int64_t i = 0; i < reps; i++)
        need(fn(b, n), &b->diag);
    return (now_ns() - begin) / (double)reps;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *b, size_t call, int64_t bytes)
{
    double times[N_BATCHES];
    int64_t reps = 1;
    (void)batch_ns(b, calls[call].fn, bytes / 4, 2);
    if (b->c->rank == 0) {
        double once = batch_ns(b, calls[call].fn, bytes / 4, 1);
        reps = MAX(1, (int64_t)(BATCH_NS / once));
        reps = MIN(reps, 20000);
    } else {
        (void)batch_ns(b, calls[call].fn, bytes / 4, 1);
    }
    int32_t all = (int32_t)reps;
    need(b->c->ops->broadcast(b->c, &all, 1, DT_I32, 0, &b->diag), &b->diag);
    for (int i = 0; i < N_BATCHES; i++)
        times[i] = batch_ns(b, calls[call].fn, bytes / 4, all);
    if (b->c->rank != 0)
        return;
    qsort(times, N_BATCHES, sizeof(times[0]), by_value);
    printf("%-16s %10lld bytes  best %10.2f us  median %10.2f us  %7.2f GB/s (best)\n",
           calls[call].name, (long long)bytes, times[0] / 1e3,
           times[N_BATCHES / 2] / 1e3, (double)bytes / times[0]);
}

static void run(struct comm_world *w, bool shared, const char *part)
{
    struct bench b = {.w = w};
    int all[RANKS_MAX];
    for (int i = 0; i < w->size; i++)
        all[i] = i;
    need(w->ops->group(w, all, w->size, "all ranks", &b.c, &b.diag), &b.diag);
    b.src = shared ? w->ops->alloc(w, BYTES_MAX) : mem_alloc((size_t)BYTES_MAX);
    b.dst = shared ? w->ops->alloc(w, BYTES_MAX) : mem_alloc((size_t)BYTES_MAX);
    for (int64_t i = 0; i < BYTES_MAX / 4; i++)
        ((float *)b.src)[i] = 1e-30f * (float)(i % 1000);
    memset(b.dst, 1, (size_t)BYTES_MAX);
    for (size_t c = 0; c < ARRAY_LEN(calls); c++)
        for (int64_t bytes = 4; bytes <= BYTES_MAX; bytes *= 16)
            if (!part || strstr(calls[c].name, part))
                measure(&b, c, bytes);
    b.c->ops->close(b.c);
}

struct thread_arg {
    struct comm_world *w;
    const char *part;
};

static void *thread_main(void *p)
{
    struct thread_arg *a = p;
    run(a->w, true, a->part);
    a->w->ops->close(a->w);
    return NULL;
}

static int on_threads(int n, const char *part)
{
    struct comm_world *w[RANKS_MAX];
    struct thread_arg a[RANKS_MAX];
    pthread_t t[RANKS_MAX];
    struct diag diag = {0};
    need(comm_threads_create(n, w, &diag), &diag);
    for (int i = 0; i < n; i++) {
        a[i] = (struct thread_arg){w[i], part};
        if (pthread_create(&t[i], NULL, thread_main, &a[i]) != 0)
            return 1;
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    return 0;
}

static int on_processes(int n, bool shared, const char *part)
{
    int rank[RANKS_MAX], fd, me = 0;
    struct region_head *head;
    struct diag diag = {0};
    for (int i = 0; i < n; i++)
        rank[i] = i;
    need(region_create(n, rank, true, &head, &fd, &diag), &diag);
    for (int i = 1; i < n && me == 0; i++)
        if (fork() == 0)
            me = i;
    struct comm_world *w;
    need(comm_shm_join(head, fd, me, 10, &w, &diag), &diag);
    run(w, shared, part);
    w->ops->close(w);
    while (me == 0 && wait(NULL) > 0)
        ;
    return 0;
}

static int under_mpirun(bool hosts, const char *part)
{
    struct comm_world *w;
    struct diag diag = {0};
    struct comm_open_options o = {.deadline_s = 60, .ranks_per_host = hosts};
    need(comm_world_open(&o, &w, &diag), &diag);
    run(w, true, part);
    w->ops->close(w);
    return 0;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "threads";
    int n = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2;
    const char *part = argc > 3 ? argv[3] : NULL;
    if (n < 1 || n > RANKS_MAX)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(how, "threads") == 0)
        return on_threads(n, part);
    if (strcmp(how, "mpi") == 0 || strcmp(how, "hosts") == 0)
        return under_mpirun(strcmp(how, "hosts") == 0, part);
    return on_processes(n, strcmp(how, "private") != 0, part);
}
