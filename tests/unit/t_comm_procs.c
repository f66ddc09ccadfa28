/* Communicators of ranks that are processes of one host: results, and ranks that are
 * killed or stopped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "parallel/comm_shm.h"
#include "tests/lib/comm_suite.h"
#include "tests/lib/run_child.h"

#define RANKS_MAX 4
#define LARGEST   70001

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_s(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* What the processes tell the test, in memory they share. */
struct told {
    uint64_t hash[RANKS_MAX];
    double ended_s[RANKS_MAX];
    char text[RANKS_MAX][1024];
};

struct ranks {
    int n;
    pid_t pid[RANKS_MAX];
    struct told *told;
};

typedef void (*proc_fn)(struct comm_world *w, int rank, struct told *told, int arg);

static void start_ranks(struct ranks *r, int n, proc_fn fn, int arg)
{
    struct diag diag = {0};
    struct region_head *head;
    int fd, world_rank[RANKS_MAX];
    for (int i = 0; i < n; i++)
        world_rank[i] = i;
    r->n = n;
    r->told = mmap(NULL, sizeof(*r->told), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r->told != MAP_FAILED);
    assert_int_equal(region_create(n, world_rank, true, &head, &fd, &diag), ST_OK);
    pid_t parent = getpid();
    for (int i = 0; i < n; i++) {
        r->pid[i] = child_fork();
        if (r->pid[i])
            continue;
        /* Odd ranks map the memory anew, at another address, as strangers do. */
        struct region_head *mine = head;
        int own_fd = fd;
        if (i % 2)
            SUITE_CHECK(region_map(parent, fd, &mine, &own_fd, &diag) == ST_OK, &diag);
        struct comm_world *w;
        SUITE_CHECK(comm_shm_join(mine, own_fd, i, 20, &w, &diag) == ST_OK, &diag);
        w->deadline_s = 0;
        fn(w, i, r->told, arg);
        w->ops->close(w);
        _exit(0);
    }
    while (atomic_load(&head->rank[n - 1].state) == RANK_ABSENT)
        pause_s(0.001);
    munmap(head, head->bytes);
    close(fd);
}

static void wait_ranks(struct ranks *r, int killed)
{
    for (int i = 0; i < r->n; i++)
        assert_int_equal(child_wait(r->pid[i]), i == killed ? -SIGKILL : 0);
}

static void end_ranks(struct ranks *r)
{
    munmap(r->told, sizeof(*r->told));
}

static struct comm *open_all(struct comm_world *w)
{
    int all[RANKS_MAX];
    struct diag diag = {0};
    struct comm *c;
    for (int i = 0; i < w->size; i++)
        all[i] = i;
    SUITE_CHECK(w->ops->group(w, all, w->size, "data group 1", &c, &diag) == ST_OK,
                &diag);
    return c;
}

/* ---- results ---- */

static void suite_of_process(struct comm_world *w, int rank, struct told *told, int arg)
{
    told->hash[rank] = comm_suite(w, (enum suite_memory)arg, LARGEST);
}

static void suite_of_thread(struct comm_world *w, int rank, void *arg)
{
    ((uint64_t *)arg)[rank] = comm_suite(w, SUITE_SHARED, LARGEST);
}

static void processes_equal_threads(void **state)
{
    (void)state;
    static const enum suite_memory memory[] = {SUITE_PRIVATE, SUITE_SHARED,
                                               SUITE_MIXED};
    for (int n = 2; n <= 3; n++) {
        uint64_t hash[RANKS_MAX];
        comm_on_threads(n, suite_of_thread, hash);
        for (size_t m = 0; m < ARRAY_LEN(memory); m++) {
            struct ranks r;
            start_ranks(&r, n, suite_of_process, (int)memory[m]);
            wait_ranks(&r, -1);
            for (int i = 0; i < n; i++)
                assert_true(r.told->hash[i] == hash[i]);
            end_ranks(&r);
        }
    }
}

static void memory_of_process(struct comm_world *w, int rank, struct told *told,
                              int arg)
{
    (void)rank, (void)told, (void)arg;
    char *last = NULL;
    for (int i = 0; i < 50; i++) {
        int64_t bytes = (5 + i % 3) * (int64_t)MIB + 17;
        char *p = w->ops->alloc(w, bytes);
        SUITE_CHECK(p && (uintptr_t)p % (2 * MIB) == 0, NULL);
        for (int64_t k = 0; k < bytes; k += 4096)
            SUITE_CHECK(p[k] == 0, NULL);
        memset(p, 0x77, (size_t)bytes);
        w->ops->release(w, p, bytes);
        SUITE_CHECK(!last || i % 3 || p == last, NULL); /* ranges are used again */
        last = i % 3 ? last : p;
    }
}

static void shared_memory_is_zeroed_and_used_again(void **state)
{
    (void)state;
    struct ranks r;
    start_ranks(&r, 1, memory_of_process, 0);
    wait_ranks(&r, -1);
    end_ranks(&r);
}

/* ---- killed and stopped ---- */

/* Rank 1 does not arrive (arg 0), or is ended somewhere in the traffic (arg 1). */
static void wait_for_all(struct comm_world *w, int rank, struct told *told, int arg)
{
    struct diag diag = {0};
    struct comm *c = open_all(w);
    int64_t n = 1 << 18, bytes = n * 4;
    float *buf = w->ops->alloc(w, bytes);
    enum status st = c->ops->barrier(c, &diag);
    w->deadline_s = arg == 2 ? 1.0 : 0;
    if (rank == 1 && arg != 1)
        pause_s(arg == 2 ? 0.5 : 100);
    while (st == ST_OK)
        st = c->ops->all_reduce(c, buf, n, DT_F32, COMM_SUM, &diag);
    told->ended_s[rank] = now_s();
    snprintf(told->text[rank], sizeof(told->text[rank]), "%s", diag.text);
    SUITE_CHECK(st == ST_STOPPED, &diag);
    c->ops->close(c);
}

static void expect_words(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("wanted '%s' in: %s", words, text);
}

static void a_killed_rank_ends_the_others(void **state)
{
    (void)state;
    for (int arg = 0; arg <= 1; arg++) {
        struct ranks r;
        start_ranks(&r, 3, wait_for_all, arg);
        pause_s(0.4);
        double begin = now_s();
        kill(r.pid[1], SIGKILL);
        pause_s(0.01);
        /* Not reaped here: a process that has ended is noticed all the same. */
        while (waitpid(r.pid[0], NULL, WNOHANG) == 0 && now_s() - begin < 9)
            pause_s(0.02);
        assert_int_equal(child_wait(r.pid[2]), 0);
        assert_int_equal(child_wait(r.pid[1]), -SIGKILL);
        double late = MAX(r.told->ended_s[0], r.told->ended_s[2]) - begin;
        printf("a killed rank ends the others after %.2f s: %s\n", late,
               r.told->text[0]);
        assert_true(late > 0 && late < 2);
        for (int i = 0; i <= 2; i += 2) {
            expect_words(r.told->text[i], "all-reduce (sum) of 262144 f32");
            expect_words(r.told->text[i], "data group 1");
            expect_words(r.told->text[i], "rank 1 died");
        }
        end_ranks(&r);
    }
}

static void a_stopped_rank_is_named_at_the_deadline(void **state)
{
    (void)state;
    struct ranks r;
    start_ranks(&r, 3, wait_for_all, 2);
    pause_s(0.2);
    kill(r.pid[1], SIGSTOP);
    double begin = now_s();
    while ((r.told->ended_s[0] == 0 || r.told->ended_s[2] == 0) && now_s() - begin < 9)
        pause_s(0.02);
    double late = MAX(r.told->ended_s[0], r.told->ended_s[2]) - begin;
    printf("a stopped rank ends the others after %.2f s: %s\n", late, r.told->text[2]);
    kill(r.pid[1], SIGCONT);
    wait_ranks(&r, -1);
    assert_true(late > 0 && late < 2);
    for (int i = 0; i < 3; i++)
        expect_words(r.told->text[i], "rank 1 did not arrive within 1 s");
    end_ranks(&r);
}

/* ---- nothing is left ---- */

static int count_names(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void nothing_is_left_behind(void **state)
{
    (void)state;
    struct ranks r;
    int fds = count_names("/proc/self/fd");
    start_ranks(&r, 2, wait_for_all, 1);
    pause_s(0.2);
    char link[64], target[256];
    snprintf(link, sizeof(link), "/proc/%d/maps", (int)r.pid[0]);
    /* The memory has no name in any folder. */
    FILE *f = fopen(link, "r");
    bool seen = false;
    while (f && fgets(target, sizeof(target), f))
        seen = seen || strstr(target, "/memfd:angel-ranks (deleted)");
    if (f)
        fclose(f);
    assert_true(seen);
    kill(r.pid[0], SIGKILL);
    kill(r.pid[1], SIGKILL);
    child_wait(r.pid[0]);
    child_wait(r.pid[1]);
    end_ranks(&r);
    assert_int_equal(count_names("/proc/self/fd"), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(processes_equal_threads),
            cmocka_unit_test(shared_memory_is_zeroed_and_used_again),
            cmocka_unit_test(a_killed_rank_ends_the_others),
            cmocka_unit_test(a_stopped_rank_is_named_at_the_deadline),
            cmocka_unit_test(nothing_is_left_behind),
    };
    return cmocka_run_group_tests_name("comm_procs", tests, NULL, NULL);
}
