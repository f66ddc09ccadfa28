/* Programs on several streams: random ones under random delays equal the same programs on
 * one stream; failures, queues, times, and programs that share a backend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/arena.h"
#include "core/rng.h"
#include "core/verify.h"
#include "core/waits.h"
#include "memory/pack.h"
#include "tests/lib/prog_rig.h"

#define N_KEPT   5 /* values that outlive a step */
#define N_RECENT 6 /* results that later ops may read */
#define ROWS     8
#define COLS     64
#define ELEMS    (ROWS * COLS)

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_us(uint64_t us)
{
    struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------------- random programs */

/* All kept values lie in one storage, so that parts of it may be read together. */
struct random_program {
    struct program p;
    uint32_t all, kept[N_KEPT];
    uint64_t seed, n_drawn;
    uint32_t n_streams; /* 1: the same program, all of it on stream 0 */
    uint32_t recent[N_RECENT];
    uint32_t n_recent;
};

static uint32_t draw(struct random_program *r, uint32_t below)
{
    return (uint32_t)(rng_u64(r->seed, 9, r->n_drawn++) % below);
}

/* The stream is drawn whether it is used or not: both programs are drawn alike. */
static uint8_t draw_stream(struct random_program *r)
{
    uint32_t s = draw(r, 60);
    return (uint8_t)(s % r->n_streams);
}

static uint32_t draw_value(struct random_program *r)
{
    uint32_t i = draw(r, N_KEPT + N_RECENT);
    if (i < N_KEPT)
        return r->kept[i];
    return r->n_recent ? r->recent[(i - N_KEPT) % r->n_recent] : r->kept[0];
}

static uint32_t emit(struct random_program *r, enum op_kind kind, uint32_t x,
                     uint32_t y, uint32_t to)
{
    struct op_args a = op_args_init(kind, PHASE_FORWARD, 0);
    op_args_in(&a, x);
    if (kind == OP_ADD)
        op_args_in(&a, y);
    else
        op_args_attr_f(&a, ATTR_CAP, 2);
    a.out[0] = to;
    a.stream = draw_stream(r);
    program_op(&r->p, &a);
    return a.out[0];
}

static uint32_t half(struct random_program *r, uint32_t whole, uint32_t which)
{
    int64_t dim[2] = {ROWS / 2, COLS};
    const struct prog_value v = r->p.values.data[whole];
    return program_value(&r->p, v.storage, v.byte_offset + which * ELEMS * 2, DT_F32, 2,
                         dim, "half");
}

/* Adds two values and puts the sum, bounded, into a fresh value, a kept one or half of
 * one. */
static void emit_random(struct random_program *r)
{
    uint32_t x = draw_value(r), y = draw_value(r), what = draw(r, 4);
    uint32_t sum = emit(r, OP_ADD, x, y, NONE_ID), kept = r->kept[draw(r, N_KEPT)];
    uint32_t which = draw(r, 2);
    if (what == 0) {
        emit(r, OP_SOFTCAP, sum, NONE_ID, kept);
    } else if (what == 1) {
        uint32_t part = half(r, kept, which);
        emit(r, OP_SOFTCAP, half(r, draw_value(r), 1 - which), NONE_ID, part);
    } else {
        uint32_t fresh = emit(r, OP_SOFTCAP, sum, NONE_ID, NONE_ID);
        r->recent[(r->n_recent++) % N_RECENT] = fresh;
        r->n_recent = MIN(r->n_recent, (uint32_t)N_RECENT);
        emit(r, OP_SOFTCAP, fresh, NONE_ID, r->kept[draw(r, N_KEPT)]);
    }
}

static uint32_t random_segment(struct random_program *r, const char *name, int n_ops)
{
    r->n_recent = 0;
    program_segment_begin(&r->p, name);
    for (int i = 0; i < n_ops; i++)
        emit_random(r);
    return program_segment_end(&r->p);
}

static void random_build(struct random_program *r, uint64_t seed, uint32_t n_streams)
{
    int64_t all[2] = {N_KEPT * ROWS, COLS}, dim[2] = {ROWS, COLS};
    *r = (struct random_program){.seed = seed, .n_streams = n_streams};
    program_init(&r->p);
    uint32_t s =
            program_storage(&r->p, SC_OPTIM, SLOT_NONE, N_KEPT * ELEMS * 4, "kept");
    r->all = program_value(&r->p, s, 0, DT_F32, 2, all, "kept");
    for (int i = 0; i < N_KEPT; i++)
        r->kept[i] =
                program_value(&r->p, s, i * ELEMS * 4, DT_F32, 2, dim, "kept.%d", i);
    uint32_t a = random_segment(r, "a", 12), b = random_segment(r, "b", 9);
    uint32_t n_calls = 2 + draw(r, 5);
    for (uint32_t i = 0; i < n_calls; i++)
        program_call(&r->p, CALL_STEP, draw(r, 2) ? a : b, i, draw(r, 2));
    program_call(&r->p, CALL_STEP, a, 0, 0);
    program_call(&r->p, CALL_STEP, b, 0, 0);
    program_seal(&r->p);
    program_add_waits(&r->p);
}

/* ----------------------------------------------------------------------------- runs */

/* Many ops start late: some a little, some after other threads had their turn, a few much
 * later. */
struct delays {
    uint64_t seed;
    atomic_uint n;
};

static enum status delay(void *arg, const struct launch *l, struct diag *diag)
{
    struct delays *d = arg;
    (void)l;
    (void)diag;
    uint64_t u = rng_u64(d->seed, 10, atomic_fetch_add(&d->n, 1));
    if (u % 64 == 0)
        sleep_us(50);
    else if (u % 8 == 1)
        sched_yield();
    else if (u % 4 == 2)
        for (volatile uint64_t i = 0; i < (u >> 8) % 8192; i++)
            ;
    return ST_OK;
}

static void need(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), diag->text);
}

static void write_kept(struct exec *e, const struct random_program *r)
{
    float *x = mem_alloc(N_KEPT * ELEMS * sizeof(*x));
    rng_normal(r->seed, 3, 0, N_KEPT * ELEMS, x);
    exec_write(e, r->all, 0, x);
    mem_free(x);
}

#define STEPS 3

/* The kept values after some steps. */
static void run_program(struct random_program *r, bool check, float *out)
{
    struct prog_rig rig;
    struct diag diag = {0};
    struct delays d = {.seed = r->seed};
    struct launch_hooks hooks = {delay, NULL, &d};
    struct exec_options o = {.check = check, .guard_bytes = check ? 64 : 0};
    o.hooks = r->n_streams > 1 ? &hooks : NULL;
    need(program_verify(&r->p, &diag), &diag);
    need(prog_rig_open(&rig, &r->p, r->n_streams > 3 ? 2 : 1, &o, &diag), &diag);
    need(program_verify_packed(&r->p, &diag), &diag);
    write_kept(rig.exec, r);
    uint64_t before = mem_allocations();
    for (int i = 0; i < STEPS; i++)
        need(exec_run(rig.exec, CALL_STEP, &diag), &diag);
    assert_int_equal(mem_allocations(), before);
    exec_read(rig.exec, r->all, 0, out);
    prog_rig_close(&rig);
}

/* Takes one wait away after the other. Returns how many verify does not miss. */
static uint32_t count_needless(struct program *p)
{
    struct diag diag = {0};
    uint32_t n = 0;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        struct prog_op *op = &p->ops.data[o];
        for (uint32_t i = 0; i < op->n_waits; i++) {
            uint32_t *first = &p->waits.data[op->wait_first], *it = first + i;
            uint32_t kept = *first, removed = *it;
            *it = kept;
            *first = removed;
            op->wait_first++;
            op->n_waits--;
            n += program_verify(p, &diag) == ST_OK;
            op->wait_first--;
            op->n_waits++;
            *it = removed;
            *first = kept;
        }
    }
    return n;
}

static void streams_equal_one_stream(void **state)
{
    (void)state;
    static float one[N_KEPT * ELEMS], many[N_KEPT * ELEMS];
    struct random_program *r = mem_alloc(sizeof(*r));
    uint32_t n_waits = 0, needless = 0;
    for (uint64_t seed = 1; seed <= 15; seed++) {
        random_build(r, seed, 1);
        assert_int_equal(r->p.waits.n, 0);
        run_program(r, false, one);
        program_free(&r->p);
        random_build(r, seed, 2 + (uint32_t)seed % 5);
        run_program(r, seed % 3 == 0, many);
        if (memcmp(one, many, sizeof(one)) != 0)
            fail_msg("seed %d: other bits on %u streams", (int)seed, r->n_streams);
        n_waits += r->p.waits.n;
        needless += count_needless(&r->p);
        program_free(&r->p);
    }
    print_message("  %u waits, %u of them needless\n", n_waits, needless);
    assert_true(needless * 50 < n_waits);
    mem_free(r);
}

/* -------------------------------------------------------------------------- failures */

struct failing {
    uint32_t op;
    const struct program *p;
    atomic_uint n_runs;
};

static enum status fail_at(void *arg, const struct launch *l, struct diag *diag)
{
    struct failing *f = arg;
    if ((uint32_t)(l->op - f->p->ops.data) == f->op)
        return diag_set(diag, ST_IO, "op %u cannot go on", f->op);
    atomic_fetch_add(&f->n_runs, 1);
    return ST_OK;
}

/* An op of any stream fails: the run ends with its status, and stays ended. */
static void a_failure_ends_the_run(void **state)
{
    (void)state;
    struct random_program *r = mem_alloc(sizeof(*r));
    random_build(r, 77, 4);
    for (uint32_t o = 0; o < r->p.ops.n; o += 7) {
        struct failing f = {.op = o, .p = &r->p};
        struct launch_hooks hooks = {fail_at, NULL, &f};
        struct exec_options eo = {.hooks = &hooks};
        struct prog_rig rig;
        struct diag diag = {0};
        need(prog_rig_open(&rig, &r->p, 1, &eo, &diag), &diag);
        write_kept(rig.exec, r);
        char want[64];
        snprintf(want, sizeof(want), "op %u cannot go on", o);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(exec_run(rig.exec, CALL_STEP, &diag), ST_IO);
            assert_string_equal(diag.text, want);
            unsigned n_runs = atomic_exchange(&f.n_runs, 0);
            assert_true(i == 0 || n_runs == 0);
        }
        prog_rig_close(&rig);
    }
    program_free(&r->p);
    mem_free(r);
}

/* ------------------------------------------------------------------- queues and times */

/* x of stream 1 goes through `n` ops of that stream; then stream 0 copies it to y. */
static void chain_build(struct program *p, int n, uint32_t *x, uint32_t *y)
{
    int64_t dim[1] = {1};
    program_init(p);
    uint32_t s = program_storage(p, SC_OPTIM, SLOT_NONE, 8, "s");
    *x = program_value(p, s, 0, DT_F32, 1, dim, "x");
    *y = program_value(p, s, 4, DT_F32, 1, dim, "y");
    program_segment_begin(p, "chain");
    for (int i = 0; i <= n; i++) {
        struct op_args a = op_args_init(OP_ADD, PHASE_FORWARD, 0);
        op_args_in(&a, *x);
        op_args_in(&a, *x);
        a.out[0] = i < n ? *x : *y;
        a.stream = i < n;
        program_op(p, &a);
    }
    program_call(p, CALL_STEP, program_segment_end(p), 0, 0);
    program_seal(p);
    program_add_waits(p);
}

static enum status sleep_first(void *arg, const struct launch *l, struct diag *diag)
{
    (void)diag;
    if (l->op == ((const struct program *)arg)->ops.data)
        sleep_us(50000);
    return ST_OK;
}

struct chain {
    struct program p;
    struct prog_rig rig;
    struct launch_hooks hooks;
    uint32_t x, y;
};

static void chain_open(struct chain *c, int n)
{
    struct diag diag = {0};
    chain_build(&c->p, n, &c->x, &c->y);
    c->hooks = (struct launch_hooks){sleep_first, NULL, &c->p};
    struct exec_options o = {.hooks = &c->hooks};
    need(prog_rig_open(&c->rig, &c->p, 1, &o, &diag), &diag);
}

/* Returns the seconds that the ops took together. */
static double chain_run(struct chain *c, float *y)
{
    struct diag diag = {0};
    float one = 1;
    double sum = 0;
    exec_times_clear(c->rig.exec);
    exec_write(c->rig.exec, c->x, 0, &one);
    need(exec_run(c->rig.exec, CALL_STEP, &diag), &diag);
    exec_read(c->rig.exec, c->y, 0, y);
    for (uint32_t i = 0; i < c->p.ops.n; i++) {
        double s;
        uint64_t runs;
        exec_op_time(c->rig.exec, i, &s, &runs);
        assert_int_equal(runs, 1);
        assert_true(s > 0);
        sum += s;
    }
    return sum;
}

static void chain_close(struct chain *c)
{
    prog_rig_close(&c->rig);
    program_free(&c->p);
}

/* More commands than a queue holds, behind one that takes long. */
static void long_queues(void **state)
{
    (void)state;
    struct chain c;
    float y;
    chain_open(&c, 1000);
    chain_run(&c, &y);
    assert_true(y > 3e38f); /* 2^1001: infinite */
    chain_close(&c);
}

/* What stream 0 waits is no op's time. Tried again where the machine stood still. */
static void waiting_is_counted_apart(void **state)
{
    (void)state;
    struct chain c;
    double ops = 1;
    float y;
    chain_open(&c, 10);
    for (int i = 0; i < 10 && ops > 0.04; i++) {
        ops = chain_run(&c, &y);
        assert_true(y == 2048);
        print_message("  11 ops took %.6f s, stream 0 waited %.6f s\n", ops,
                      exec_wait_time(c.rig.exec));
        assert_true(exec_wait_time(c.rig.exec) > 0.045);
    }
    assert_true(ops < 0.04);
    exec_times_clear(c.rig.exec);
    assert_true(exec_wait_time(c.rig.exec) == 0);
    chain_close(&c);
}

/* Threads of streams without work sleep. */
static void idle_streams_sleep(void **state)
{
    (void)state;
    struct random_program *r = mem_alloc(sizeof(*r));
    struct prog_rig rig;
    struct diag diag = {0};
    struct exec_options o = {0};
    random_build(r, 5, 6);
    need(prog_rig_open(&rig, &r->p, 2, &o, &diag), &diag);
    need(exec_run(rig.exec, CALL_STEP, &diag), &diag);
    sleep_us(1000);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    sleep_us(200000);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    print_message("  %.6f s of processor in 0.2 s\n", cpu);
    assert_true(cpu < 0.02);
    prog_rig_close(&rig);
    program_free(&r->p);
    mem_free(r);
}

/* ------------------------------------------------------------- programs that share */

/* Steps of two programs by turns, on one backend and one memory; program i is on at most
 * n_streams[i] streams. out: the values that both keep. */
static void run_by_turns(const uint32_t n_streams[2], float *out)
{
    struct random_program *r = mem_alloc(2 * sizeof(*r));
    struct cpu_backend_options bo = {.n_threads = 2, .isa_mask = CPU_ISA_ALL};
    struct delays d = {.seed = 4};
    struct launch_hooks hooks = {delay, NULL, &d};
    struct exec_options o = {.hooks = n_streams[0] > 1 ? &hooks : NULL};
    struct pack_options po = pack_options_default();
    struct backend *b;
    struct exec_memory m;
    struct exec *e[2];
    struct diag diag = {0};
    int64_t bytes[POOL_COUNT] = {0}, scratch = 0;
    need(cpu_backend_create(&bo, &b, &diag), &diag);
    for (int i = 0; i < 2; i++) {
        int64_t more;
        random_build(&r[i], 31 + (uint64_t)i, n_streams[i]);
        need(pack_program(&r[i].p, &po, NULL, &diag), &diag);
        need(exec_scratch(b, &r[i].p, &more, &diag), &diag);
        scratch = MAX(scratch, more);
        for (int k = 0; k < POOL_COUNT; k++)
            bytes[k] = MAX(bytes[k], r[i].p.pool_bytes[k]);
    }
    need(exec_memory_create(b, bytes, scratch, &m, &diag), &diag);
    for (int i = 0; i < 2; i++)
        need(exec_create(&r[i].p, &m, &o, &e[i], &diag), &diag);
    write_kept(e[0], &r[0]);
    for (int i = 0; i < 7; i++)
        need(exec_run(e[i % 3 == 0], CALL_STEP, &diag), &diag);
    exec_read(e[0], r[0].all, 0, out);
    for (int i = 0; i < 2; i++) {
        exec_destroy(e[i]);
        program_free(&r[i].p);
    }
    exec_memory_release(&m);
    b->ops->destroy(b);
    mem_free(r);
}

static void programs_share_a_backend(void **state)
{
    (void)state;
    static float one[N_KEPT * ELEMS], many[N_KEPT * ELEMS];
    run_by_turns((uint32_t[]){1, 1}, one);
    run_by_turns((uint32_t[]){5, 3}, many);
    assert_memory_equal(one, many, sizeof(one));
    run_by_turns((uint32_t[]){2, 4}, many);
    assert_memory_equal(one, many, sizeof(one));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(streams_equal_one_stream),
            cmocka_unit_test(a_failure_ends_the_run),
            cmocka_unit_test(long_queues),
            cmocka_unit_test(waiting_is_counted_apart),
            cmocka_unit_test(idle_streams_sleep),
            cmocka_unit_test(programs_share_a_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
