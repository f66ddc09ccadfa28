/* Communicators of ranks that a launcher started: this program under mpirun, with one
 * host or several that it makes believe; and errors of the start. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/hash.h"
#include "parallel/comm_mpi.h"
#include "tests/lib/comm_suite.h"
#include "tests/lib/run_child.h"

#define LARGEST   9001
#define RANKS_MAX 8

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

/* ---- what a rank does under mpirun ---- */

static struct comm *open_all(struct comm_world *w, const char *name)
{
    int all[RANKS_MAX];
    struct diag diag = {0};
    struct comm *c;
    for (int i = 0; i < w->size; i++)
        all[i] = i;
    SUITE_CHECK(w->ops->group(w, all, w->size, name, &c, &diag) == ST_OK, &diag);
    return c;
}

static void say(int rank, const char *text)
{
    char line[1200];
    int n = snprintf(line, sizeof(line), "[%d] %s\n", rank, text);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(9);
}

static int end_stopped(struct comm_world *w, struct comm *c, const struct diag *diag)
{
    say(w->rank, diag->text);
    if (c)
        c->ops->close(c);
    w->ops->close(w);
    return 11;
}

static int do_suite(struct comm_world *w)
{
    char text[64];
    uint64_t hash = comm_suite(w, w->rank % 2 ? SUITE_SHARED : SUITE_PRIVATE, LARGEST);
    snprintf(text, sizeof(text), "hash %016" PRIx64, hash);
    say(w->rank, text);
    w->ops->close(w);
    return 0;
}

static int do_fast(struct comm_world *w)
{
    w->any_order = true;
    return do_suite(w);
}

/* The library's sums of four members differ from those in order: they are used. Times are
 * of the second call, when connections are there. */
static int do_differ(struct comm_world *w)
{
    struct diag diag = {0};
    int64_t n = 300000;
    float *x = mem_alloc((size_t)n * sizeof(float));
    uint64_t hash[2];
    for (int fast = 0; fast < 2; fast++) {
        w->any_order = fast;
        struct comm *c = open_all(w, "group");
        double begin = 0;
        for (int round = 0; round < 2; round++) {
            for (int64_t i = 0; i < n; i++)
                x[i] = 1.0F / (float)(1 + i % 977 + 31 * w->rank);
            begin = now_s();
            SUITE_CHECK(c->ops->all_reduce(c, x, n, DT_F32, COMM_SUM, &diag) == ST_OK,
                        &diag);
        }
        char text[64];
        snprintf(text, sizeof(text), "%s: %.1f ms", fast ? "fast" : "ordered",
                 1e3 * (now_s() - begin));
        say(w->rank, text);
        hash[fast] = hash64(x, (size_t)n * sizeof(float));
        c->ops->close(c);
    }
    mem_free(x);
    say(w->rank, hash[0] != hash[1] ? "other bits" : "equal bits");
    w->ops->close(w);
    return 0;
}

static int do_late(struct comm_world *w)
{
    struct diag diag = {0};
    struct comm *c = open_all(w, "data group 2");
    float x = 1;
    w->deadline_s = 1;
    if (w->rank == 1)
        pause_s(3);
    SUITE_CHECK(c->ops->all_reduce(c, &x, 1, DT_F32, COMM_SUM, &diag) == ST_STOPPED,
                &diag);
    return end_stopped(w, c, &diag);
}

/* A member that is late for a sum of the library. */
static int do_late_fast(struct comm_world *w)
{
    struct diag diag = {0};
    w->any_order = true;
    struct comm *c = open_all(w, "data group 2");
    float *x = mem_alloc(4 << 20);
    enum status st;
    do {
        st = c->ops->all_reduce(c, x, 1 << 20, DT_F32, COMM_SUM, &diag);
        w->deadline_s = 1;
        if (w->rank == 1 && st == ST_OK)
            pause_s(3);
    } while (st == ST_OK);
    mem_free(x);
    SUITE_CHECK(st == ST_STOPPED, &diag);
    return end_stopped(w, c, &diag);
}

static int do_give_up(struct comm_world *w)
{
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    float x = 1;
    enum status st = c->ops->barrier(c, &diag);
    if (w->rank == 1) {
        pause_s(0.3);
        w->ops->give_up(w, "the disk is full");
        st = c->ops->barrier(c, &diag);
    } else {
        double begin = now_s();
        st = c->ops->recv(c, &x, 1, DT_F32, 1, &diag);
        SUITE_CHECK(now_s() - begin < 2, &diag);
    }
    SUITE_CHECK(st == ST_STOPPED, &diag);
    return end_stopped(w, c, &diag);
}

static int do_mismatch(struct comm_world *w)
{
    struct diag diag = {0};
    struct comm *c = open_all(w, "tensor group 7");
    float x[100] = {0};
    enum status st =
            c->ops->all_reduce(c, x, w->rank == 1 ? 99 : 100, DT_F32, COMM_SUM, &diag);
    SUITE_CHECK(st == ST_INTERNAL || st == ST_STOPPED, &diag);
    return end_stopped(w, c, &diag);
}

/* A message of another size; the sender is not told, so it may go on. */
static int do_message(struct comm_world *w)
{
    struct diag diag = {0};
    struct comm *c = open_all(w, "stages");
    float *x = mem_alloc(4 << 20);
    enum status st = ST_OK;
    if (w->rank == 0)
        st = c->ops->send(c, x, 1 << 20, DT_F32, 1, &diag);
    else if (w->rank == 1)
        st = c->ops->recv(c, x, 77, DT_F32, 0, &diag);
    if (st == ST_OK)
        st = c->ops->barrier(c, &diag);
    SUITE_CHECK(st == (w->rank == 1 ? ST_INTERNAL : ST_STOPPED), &diag);
    return end_stopped(w, c, &diag);
}

static int do_die(struct comm_world *w)
{
    struct diag diag = {0};
    struct comm *c = open_all(w, "group");
    enum status st = c->ops->barrier(c, &diag);
    if (w->rank == 1)
        raise(SIGKILL);
    while (st == ST_OK)
        st = c->ops->barrier(c, &diag);
    return end_stopped(w, c, &diag);
}

/* Threads of a rank: one sends, one receives, one reduces in another group. */
struct lane {
    struct comm_world *w;
    struct comm *c;
};

#define LANE_ELEMS  400000
#define LANE_ROUNDS 12

static void *send_lane(void *p)
{
    struct lane *l = p;
    struct diag diag = {0};
    int next = (l->c->rank + 1) % l->c->size;
    int32_t *x = mem_alloc(LANE_ELEMS * sizeof(int32_t));
    for (int round = 0; round < LANE_ROUNDS; round++) {
        int64_t n = round % 3 == 0 ? LANE_ELEMS : round * 7;
        for (int64_t i = 0; i < n; i++)
            x[i] = (int32_t)(l->w->rank * 1000 + round + i);
        SUITE_CHECK(l->c->ops->send(l->c, x, n, DT_I32, next, &diag) == ST_OK, &diag);
    }
    mem_free(x);
    return NULL;
}

static void *reduce_lane(void *p)
{
    struct lane *l = p;
    struct diag diag = {0};
    for (int round = 0; round < 5 * LANE_ROUNDS; round++) {
        int32_t x[700];
        for (int i = 0; i < 700; i++)
            x[i] = l->w->rank + round + i;
        SUITE_CHECK(l->c->ops->all_reduce(l->c, x, 700, DT_I32, COMM_SUM, &diag) ==
                            ST_OK,
                    &diag);
        int n = l->c->size;
        for (int i = 0; i < 700; i++)
            SUITE_CHECK(x[i] == n * (n - 1) / 2 + n * (round + i), NULL);
    }
    return NULL;
}

static int do_lanes(struct comm_world *w)
{
    struct diag diag = {0};
    struct lane ring = {w, open_all(w, "ring")}, group = {w, open_all(w, "group")};
    pthread_t sender, reducer;
    SUITE_CHECK(pthread_create(&sender, NULL, send_lane, &ring) == 0, NULL);
    SUITE_CHECK(pthread_create(&reducer, NULL, reduce_lane, &group) == 0, NULL);
    int last = (ring.c->rank + ring.c->size - 1) % ring.c->size;
    int32_t *x = mem_alloc(LANE_ELEMS * sizeof(int32_t));
    for (int round = 0; round < LANE_ROUNDS; round++) {
        int64_t n = round % 3 == 0 ? LANE_ELEMS : round * 7;
        SUITE_CHECK(ring.c->ops->recv(ring.c, x, n, DT_I32, last, &diag) == ST_OK,
                    &diag);
        for (int64_t i = 0; i < n; i++)
            SUITE_CHECK(x[i] == (int32_t)(last * 1000 + round + i), NULL);
    }
    mem_free(x);
    pthread_join(sender, NULL);
    pthread_join(reducer, NULL);
    ring.c->ops->close(ring.c);
    group.c->ops->close(group.c);
    w->ops->close(w);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(struct comm_world *w);
} parts[] = {
        {"suite", do_suite},       {"late", do_late},           {"give-up", do_give_up},
        {"mismatch", do_mismatch}, {"message", do_message},     {"die", do_die},
        {"programs", do_suite},    {"lanes", do_lanes},         {"fast", do_fast},
        {"differ", do_differ},     {"late-fast", do_late_fast},
};

/* usage: t_mpi PART RANKS-PER-HOST */
static int run_part(const char *name, const char *ranks_per_host)
{
    struct comm_world *w;
    struct diag diag = {0};
    char build[32] = "angel 1";
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (strcmp(name, "programs") == 0)
        snprintf(build, sizeof(build), "angel %s", rank ? rank : "");
    struct comm_open_options o = {.build = build,
                                  .deadline_s = 60,
                                  .ranks_per_host =
                                          (int)strtol(ranks_per_host, NULL, 10)};
    enum status st = comm_world_open(&o, &w, &diag);
    if (st != ST_OK) {
        say(rank ? (int)strtol(rank, NULL, 10) : 0, diag.text);
        return status_exit_code(st);
    }
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcmp(name, parts[i].name) == 0)
            return parts[i].run(w);
    return 99;
}

/* ---- mpirun ---- */

static bool have_mpirun(void)
{
    return system("mpirun --version >/dev/null 2>&1") == 0;
}

static void need_mpirun(void)
{
    if (have_mpirun())
        return;
    printf("mpirun is not here (Debian: openmpi-bin): SKIPPED\n");
    skip();
}

/* Runs this program under mpirun. Returns its exit status; *text what all printed. */
static int launch(struct tmp *t, const char *part, int n, int ranks_per_host,
                  const char **text)
{
    char ranks[16], per_host[16], self[512] = "";
    snprintf(ranks, sizeof(ranks), "%d", n);
    snprintf(per_host, sizeof(per_host), "%d", ranks_per_host);
    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    const char *out = tmp_path(t, "out");
    pid_t pid = child_fork();
    if (pid == 0) {
        int fd = open(out, O_CREAT | O_TRUNC | O_WRONLY, 0600);
        if (fd < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
            _exit(97);
        setenv("TMPDIR", t->path, 1);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* the library's own */
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
        execlp("mpirun", "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca",
               "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "-np", ranks,
               self, part, per_host, (char *)NULL);
        _exit(97);
    }
    int code = child_wait(pid);
    *text = child_text(t, out);
    return code;
}

static void expect_words(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("wanted '%s' in:\n%s", words, text);
}

static void suite_of_thread(struct comm_world *w, int rank, void *arg)
{
    ((uint64_t *)arg)[rank] = comm_suite(w, SUITE_SHARED, LARGEST);
}

/* Ranks, and how many of them count as a host. */
static const int hosts[][2] = {{2, 0}, {2, 1}, {4, 2}, {3, 1}, {5, 3}};

/* Runs the suite as `part`, and compares every rank's hash with that of threads. */
static void compare_suites(const char *part)
{
    struct tmp t;
    tmp_create(&t);
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        uint64_t hash[RANKS_MAX];
        const char *text;
        int n = hosts[i][0];
        comm_on_threads(n, suite_of_thread, hash);
        double begin = now_s();
        int code = launch(&t, part, n, hosts[i][1], &text);
        printf("%s of %d ranks, %d a host: %.1f s\n", part, n, hosts[i][1],
               now_s() - begin);
        if (code != 0)
            fail_msg("exit status %d:\n%s", code, text);
        for (int r = 0; r < n; r++) {
            char line[64];
            snprintf(line, sizeof(line), "[%d] hash %016" PRIx64 "\n", r, hash[r]);
            expect_words(text, line);
        }
    }
    tmp_remove(&t);
}

static void launched_ranks_equal_threads(void **state)
{
    (void)state;
    need_mpirun();
    compare_suites("suite");
}

/* The library adds across hosts, nobody else: on one host the bits are those in order. */
static void sums_of_the_library_are_near(void **state)
{
    (void)state;
    need_mpirun();
    compare_suites("fast");
    struct tmp t;
    tmp_create(&t);
    for (int per_host = 0; per_host <= 1; per_host++) {
        const char *text;
        int code = launch(&t, "differ", 4, per_host, &text);
        if (code != 0)
            fail_msg("exit status %d:\n%s", code, text);
        expect_words(text, per_host ? "] other bits" : "] equal bits");
        printf("%d a host:\n%s", per_host, text);
    }
    tmp_remove(&t);
}

static void threads_of_a_rank_use_their_groups(void **state)
{
    (void)state;
    need_mpirun();
    struct tmp t;
    tmp_create(&t);
    for (int per_host = 0; per_host <= 2; per_host++) {
        const char *text;
        int code = launch(&t, "lanes", 3, per_host, &text);
        if (code != 0)
            fail_msg("exit status %d:\n%s", code, text);
    }
    tmp_remove(&t);
}

/* How a part must end, on one host and on several. */
static const struct ending {
    const char *part;
    int n;
    const char *words[3];
} endings[] = {
        {"late",
         3,
         {"all-reduce (sum) of 1 f32 in data group 2",
          "rank 1 did not arrive within 1 s", "[0] "}},
        {"late-fast",
         3,
         {"in data group 2", "rank 1 did not arrive within 1 s", "[2] "}},
        {"give-up", 3, {"rank 1 gave up: the disk is full", "[0] ", "[2] "}},
        {"mismatch",
         2,
         {"tensor group 7", "all-reduce (sum) of 99 f32",
          "all-reduce (sum) of 100 f32"}},
        {"message",
         2,
         {"stages", "rank 1 calls receive of 77 f32 from rank 0",
          "send of 1048576 f32 to rank 1"}},
        {"programs",
         2,
         {"the ranks run different programs", "rank 0 has 'angel 0'",
          "rank 1 has 'angel 1'"}},
};

static void waits_end_with_a_reason(void **state)
{
    (void)state;
    need_mpirun();
    struct tmp t;
    tmp_create(&t);
    for (size_t i = 0; i < ARRAY_LEN(endings); i++)
        for (int per_host = 0; per_host <= 1; per_host++) {
            const struct ending *e = &endings[i];
            const char *text;
            double begin = now_s();
            int code = launch(&t, e->part, e->n, per_host, &text);
            double took = now_s() - begin;
            printf("%s, %d ranks, %d a host: %.1f s\n", e->part, e->n, per_host, took);
            if (code == 0)
                fail_msg("wanted another exit status than 0:\n%s", text);
            for (size_t k = 0; k < ARRAY_LEN(e->words); k++)
                expect_words(text, e->words[k]);
        }
    tmp_remove(&t);
}

static void a_killed_rank_ends_the_job(void **state)
{
    (void)state;
    need_mpirun();
    struct tmp t;
    tmp_create(&t);
    for (int per_host = 0; per_host <= 1; per_host++) {
        const char *text;
        double begin = now_s();
        int code = launch(&t, "die", 3, per_host, &text);
        double took = now_s() - begin;
        printf("a killed rank, %d a host: all over after %.1f s\n", per_host, took);
        assert_int_not_equal(code, 0);
        assert_true(took < 15);
    }
    tmp_remove(&t);
}

/* ---- the start ---- */

static enum status open_with(const char *library, struct comm_world **w,
                             struct diag *diag)
{
    struct comm_open_options o = {.library = library};
    return comm_world_open(&o, w, diag);
}

static void has(const struct diag *diag, const char *words)
{
    if (!strstr(diag->text, words) && !strstr(diag->hint, words))
        fail_msg("wanted '%s' in: %s / %s", words, diag->text, diag->hint);
}

static void without_a_launcher_there_is_one_rank(void **state)
{
    (void)state;
    struct comm_world *w;
    struct diag diag = {0};
    assert_int_equal(comm_launched_ranks(), 1);
    assert_int_equal(open_with("/nowhere/libmpi.so", &w, &diag), ST_OK);
    assert_int_equal(w->size, 1);
    int place, n;
    comm_host_ranks(w, &place, &n);
    assert_true(place == 0 && n == 1);
    w->ops->close(w);
    /* Nor is the library needed for a launcher's one rank. */
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    assert_int_equal(open_with("/nowhere/libmpi.so", &w, &diag), ST_OK);
    w->ops->close(w);
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

static void a_missing_library_is_told(void **state)
{
    (void)state;
    struct comm_world *w;
    struct diag diag = {0};
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_int_equal(comm_launched_ranks(), 2);
    assert_int_equal(open_with("/nowhere/libmpi.so.40", &w, &diag), ST_UNAVAILABLE);
    has(&diag, "several ranks were started");
    has(&diag, "/nowhere/libmpi.so.40");
    has(&diag, "openmpi-bin");
    setenv("ANGEL_MPI_LIBRARY", "/elsewhere/libmpi.so.40", 1);
    assert_int_equal(open_with(NULL, &w, &diag), ST_UNAVAILABLE);
    has(&diag, "/elsewhere/libmpi.so.40");
    unsetenv("ANGEL_MPI_LIBRARY");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

static void another_mpi_is_told(void **state)
{
    (void)state;
    struct comm_world *w;
    struct diag diag = {0};
    struct tmp t;
    char command[1200];
    tmp_create(&t);
    const char *source = tmp_write_text(
            &t, "other.c",
            "int MPI_Get_library_version(char *s, int *n);\n"
            "int MPI_Get_library_version(char *s, int *n)\n"
            "{ const char *v = \"MPICH Version: 4.0.2\\nmore\"; int i = 0;\n"
            "  for (; v[i]; i++) s[i] = v[i]; s[i] = 0; *n = i; return 0; }\n");
    const char *library = tmp_path(&t, "libmpi.so.12");
    snprintf(command, sizeof(command), "gcc -shared -fPIC -o %s %s", library, source);
    assert_int_equal(system(command), 0);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_int_equal(open_with(library, &w, &diag), ST_UNAVAILABLE);
    has(&diag, "MPICH Version: 4.0.2");
    has(&diag, "wanted Open MPI");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    /* Its launcher, which would otherwise start many jobs of one rank. */
    setenv("PMI_SIZE", "2", 1);
    assert_int_equal(open_with(NULL, &w, &diag), ST_UNAVAILABLE);
    has(&diag, "2 ranks were started by a launcher that is not Open MPI's");
    unsetenv("PMI_SIZE");
    tmp_remove(&t);
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return run_part(argv[1], argv[2]);
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(without_a_launcher_there_is_one_rank),
            cmocka_unit_test(a_missing_library_is_told),
            cmocka_unit_test(another_mpi_is_told),
            cmocka_unit_test(launched_ranks_equal_threads),
            cmocka_unit_test(sums_of_the_library_are_near),
            cmocka_unit_test(threads_of_a_rank_use_their_groups),
            cmocka_unit_test(waits_end_with_a_reason),
            cmocka_unit_test(a_killed_rank_ends_the_job),
    };
    return cmocka_run_group_tests_name("mpi", tests, NULL, NULL);
}
