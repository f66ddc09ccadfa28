/* The ranks of a run: of a launcher, threads of this process, or the one that there is. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/load_config.h"
#include "cmd/run.h"
#include "cmd/signals.h"
#include "core/hash.h"
#include "core/log.h"
#include "io/file.h"
#include "parallel/comm_mpi.h"
#include "parallel/comm_shm.h"

#define THREAD_RANKS_MAX 256
#define LEAVE_S          5   /* for the others to end, once a rank has failed */
#define START_S          600 /* longest wait for another rank to come up */

/* What became of one rank. */
struct outcome {
    enum status st;
    bool agreed; /* all ranks know the error: one of them says it */
    struct diag diag;
};

/* A rank that is a thread. */
struct rank_thread {
    struct crew *crew;
    struct config config; /* its own, with the strings of the crew's */
    struct comm_world *world;
    struct outcome outcome;
    pthread_t thread;
    bool started, done;
};

/* The ranks of this process, and who waits for them. */
struct crew {
    struct cmd_args *args;
    const struct run_hooks *hooks;
    const struct config *config;
    struct str text; /* what the first rank prints */
    struct rank_thread *ranks;
    int n;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_done;
    bool failed;
};

/* --------------------------------------------------------------------- what ended it */

static bool has_failed(const struct outcome *o)
{
    return o->st != ST_OK;
}

/* The first error that is a rank's own; else the first that tells of another rank. */
static const struct outcome *worst_of(const struct crew *k)
{
    const struct outcome *worst = NULL;
    for (int i = 0; i < k->n; i++) {
        const struct outcome *o = &k->ranks[i].outcome;
        if (!k->ranks[i].done || !has_failed(o))
            continue;
        if (!worst || (worst->st == ST_STOPPED && o->st != ST_STOPPED))
            worst = o;
    }
    return worst;
}

static void say_rank(int rank, const struct diag *diag)
{
    struct diag d = *diag;
    char own[32];
    int n = snprintf(own, sizeof(own), "rank %d: ", rank);
    if (strncmp(d.text, own, (size_t)n) != 0)
        diag_context(&d, "rank %d", rank);
    log_diag(&d);
}

/* Errors that all know are said once; else each rank says where it was. */
static int say_outcomes(const struct crew *k)
{
    const struct outcome *worst = worst_of(k);
    if (!worst)
        return 0;
    if (worst->agreed) {
        log_diag(&worst->diag);
        return status_exit_code(worst->st);
    }
    for (int i = 0; i < k->n; i++) {
        const struct rank_thread *t = &k->ranks[i];
        struct diag silent = {0};
        if (t->done && has_failed(&t->outcome)) {
            say_rank(i, &t->outcome.diag);
        } else if (!t->done) {
            diag_set(&silent, ST_STOPPED, "does not answer");
            say_rank(i, &silent);
        }
    }
    return status_exit_code(worst->st);
}

/* -------------------------------------------------------------------- ranks as threads */

static void *rank_main(void *arg)
{
    struct rank_thread *t = arg;
    struct crew *k = t->crew;
    bool first = t->world->rank == 0;
    struct str unused = {0};
    if (!first)
        log_set_thread_level(LOG_ERROR);
    t->outcome.st =
            run_rank(&t->config, k->args, k->hooks, t->world,
                     first ? &k->text : &unused, &t->outcome.agreed, &t->outcome.diag);
    str_free(&unused);
    t->world->ops->close(t->world);
    pthread_mutex_lock(&k->lock);
    t->done = true;
    k->n_done++;
    k->failed |= has_failed(&t->outcome);
    pthread_cond_signal(&k->changed);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* Signals are for the main thread. */
static int start_rank(struct rank_thread *t)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&t->thread, NULL, rank_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    t->started = err == 0;
    return err;
}

/* Waits for all; once one has failed, no longer than the others need to notice. False:
 * some did not end. */
static bool wait_for_ranks(struct crew *k)
{
    struct timespec until = {0};
    bool all = true;
    pthread_mutex_lock(&k->lock);
    while (k->n_done < k->n && all) {
        if (!k->failed) {
            pthread_cond_wait(&k->changed, &k->lock);
            continue;
        }
        if (until.tv_sec == 0) {
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += LEAVE_S;
        }
        all = pthread_cond_timedwait(&k->changed, &k->lock, &until) != ETIMEDOUT;
    }
    pthread_mutex_unlock(&k->lock);
    return all;
}

/* A thread that never ends cannot be ended: the process leaves as it is. */
NORETURN static void leave_now(struct crew *k)
{
    pthread_mutex_lock(&k->lock); /* nobody is done any more: kept until the end */
    int code = say_outcomes(k);
    for (int i = 0; i < k->n; i++)
        if (k->ranks[i].done)
            pthread_join(k->ranks[i].thread, NULL);
    fflush(NULL);
    _exit(code);
}

static enum status start_ranks(struct crew *k, struct diag *diag)
{
    struct comm_world **world = mem_alloc((size_t)k->n * sizeof(struct comm_world *));
    enum status st = comm_threads_create(k->n, world, diag);
    for (int i = 0; i < k->n && st == ST_OK; i++) {
        struct rank_thread *t = &k->ranks[i];
        *t = (struct rank_thread){.crew = k, .config = *k->config, .world = world[i]};
        t->config.arena = (struct arena){0};
        world[i]->deadline_s = START_S;
    }
    for (int i = 0; i < k->n && st == ST_OK; i++) {
        int err = start_rank(&k->ranks[i]);
        if (err)
            st = diag_set(
                    diag, ST_UNAVAILABLE,
                    "cannot start the thread of rank %d (--threads-ranks): system "
                    "says %s",
                    i, strerror(err));
    }
    mem_free(world);
    return st;
}

static int run_threads(struct cmd_args *args, const struct run_hooks *hooks,
                       const struct config *config, int n)
{
    struct crew k = {.args = args,
                     .hooks = hooks,
                     .config = config,
                     .n = n,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .changed = PTHREAD_COND_INITIALIZER};
    struct diag diag = {0};
    k.ranks = mem_alloc((size_t)n * sizeof(*k.ranks));
    if (start_ranks(&k, &diag) != ST_OK) {
        log_diag(&diag);
        fflush(NULL);
        _exit(status_exit_code(
                ST_UNAVAILABLE)); /* ranks that run wait for the others */
    }
    if (!wait_for_ranks(&k))
        leave_now(&k);
    for (int i = 0; i < n; i++) {
        pthread_join(k.ranks[i].thread, NULL);
        arena_release(&k.ranks[i].config.arena);
    }
    fputs(str_get(&k.text), stdout);
    str_free(&k.text);
    int code = say_outcomes(&k);
    mem_free(k.ranks);
    return code;
}

/* ------------------------------------------------------------- one rank of the process */

static int run_alone(struct cmd_args *args, const struct run_hooks *hooks,
                     struct config *config, struct comm_world *world)
{
    struct outcome o = {0};
    struct str text = {0};
    int rank = world ? world->rank : 0;
    o.st = run_rank(config, args, hooks, world, &text, &o.agreed, &o.diag);
    fputs(str_get(&text), stdout);
    str_free(&text);
    if (!has_failed(&o))
        return 0;
    if (!o.agreed)
        say_rank(rank, &o.diag);
    else if (rank == 0)
        log_diag(&o.diag);
    return status_exit_code(o.st);
}

/* --------------------------------------------------------------------------- launching */

static enum status read_thread_ranks(const struct cmd_args *args, int *n,
                                     struct diag *diag)
{
    int64_t got = 1;
    *n = 1;
    if (!args->threads_ranks)
        return ST_OK;
    if (opt_parse_count(args->threads_ranks, &got, diag) != ST_OK || got < 1 ||
        got > THREAD_RANKS_MAX)
        return diag_set(diag, ST_CONFIG,
                        "--threads-ranks (command line): got '%s', wanted 1 to %d",
                        args->threads_ranks, THREAD_RANKS_MAX);
    *n = (int)got;
    if (comm_launched_ranks() == 1)
        return ST_OK;
    diag_set(diag, ST_CONFIG,
             "--threads-ranks (command line): got %d ranks as threads of a rank that a "
             "launcher started, wanted one of them",
             *n);
    diag_hint(diag, "leave out --threads-ranks, or the launcher");
    return ST_CONFIG;
}

/* A dry run needs no ranks but those that the layout asks for. */
static enum status dry_run_ranks(const struct cmd_args *args,
                                 const struct config *config, int *n, struct diag *diag)
{
    int64_t asked = layout_ranks_asked(config);
    if (!(args->dry_run || args->dump_program) || args->threads_ranks)
        return ST_OK;
    if (asked > THREAD_RANKS_MAX)
        return diag_set(diag, ST_CONFIG,
                        "--dry-run (command line): got a layout of %" PRId64
                        " ranks, wanted at most %d: each of them is planned here",
                        asked, THREAD_RANKS_MAX);
    *n = (int)asked;
    return ST_OK;
}

/* Version and build, and the bytes of the program: ranks of different ones do not talk. */
static void build_text(struct str *out)
{
    struct str program = {0};
    struct diag unused = {0};
    uint64_t hash = 0;
    if (file_read_all("/proc/self/exe", INT64_MAX, &program, &unused) == ST_OK)
        hash = hash64(str_get(&program), program.n);
    str_printf(out, "%s%016" PRIx64, cmd_build_text(), hash);
    str_free(&program);
}

/* With the ranks of a launcher: the first one that fails tells the others. */
static int launch_world(struct cmd_args *args, const struct run_hooks *hooks)
{
    struct str build = {0};
    build_text(&build);
    struct comm_open_options o = {.build = str_get(&build), .deadline_s = START_S};
    struct comm_world *world = NULL;
    struct config config = {0};
    struct diag diag = {0};
    enum status st = comm_world_open(&o, &world, &diag);
    str_free(&build);
    if (st != ST_OK)
        return cmd_fail(st, &diag);
    if (world->rank > 0)
        log_set_thread_level(LOG_ERROR);
    st = load_config_args(&config, args, &diag);
    int code = 0;
    if (st != ST_OK) {
        world->ops->give_up(world, diag.text);
        code = world->rank == 0 ? cmd_fail(st, &diag) : status_exit_code(st);
    } else if (args->print_config) {
        struct str text = {0};
        config_print(&config, &text);
        if (world->rank == 0)
            fputs(str_get(&text), stdout);
        str_free(&text);
    } else {
        code = run_alone(args, hooks, &config, world);
    }
    fflush(NULL);
    world->ops->close(world);
    config_free(&config);
    return code;
}

static int launch_here(struct cmd_args *args, const struct run_hooks *hooks, int n)
{
    struct config config = {0};
    struct diag diag = {0};
    int code = 0;
    enum status st = load_config_args(&config, args, &diag);
    if (st == ST_OK)
        st = dry_run_ranks(args, &config, &n, &diag);
    if (st != ST_OK) {
        code = cmd_fail(st, &diag);
    } else if (args->print_config) {
        struct str text = {0};
        config_print(&config, &text);
        fputs(str_get(&text), stdout);
        str_free(&text);
    } else {
        code = n > 1 ? run_threads(args, hooks, &config, n)
                     : run_alone(args, hooks, &config, NULL);
    }
    config_free(&config);
    return code;
}

int run_launch(struct cmd_args *args, const struct run_hooks *hooks)
{
    struct diag diag = {0};
    int n;
    enum status st = read_thread_ranks(args, &n, &diag);
    if (st != ST_OK)
        return cmd_fail(st, &diag);
    if (!args->dry_run && !args->dump_program && !args->print_config)
        signals_install();
    return comm_launched_ranks() == 1 ? launch_here(args, hooks, n)
                                      : launch_world(args, hooks);
}
