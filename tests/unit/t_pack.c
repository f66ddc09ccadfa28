/* Packing: random programs against a brute force, the lower bound, programs that share
 * an arena, guards, and a 405B-sized program in time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/rng.h"
#include "core/verify.h"
#include "memory/pack.h"
#include "tests/lib/toy_program.h"

static void must(enum status st, const struct diag *d)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), d->text);
}

/* A random graph of additions over vectors of four lengths. */
static void random_program(struct program *p, uint64_t seed)
{
    enum {
        N_LEN = 4,
        N_OPS = 60
    };
    uint32_t pool[N_LEN][N_OPS + 1], n[N_LEN] = {0};
    program_init(p);
    for (int i = 0; i < N_LEN; i++) {
        int64_t len = 8 + (int64_t)(rng_u64(seed, 1, (uint64_t)i) % 500);
        uint32_t s = program_storage(p, SC_INPUT, SLOT_NONE, len * 4, "in%d", i);
        pool[i][n[i]++] = program_value(p, s, 0, DT_F32, 1, &len, "in%d", i);
    }
    program_segment_begin(p, "all");
    for (uint32_t o = 0; o < N_OPS; o++) {
        uint32_t k = (uint32_t)(rng_u64(seed, 2, o) % N_LEN);
        struct op_args a = op_args_init(OP_ADD, PHASE_FORWARD, (int32_t)(o % 5));
        op_args_in(&a, pool[k][rng_u64(seed, 3, o) % n[k]]);
        op_args_in(&a, pool[k][rng_u64(seed, 4, o) % n[k]]);
        program_op(p, &a);
        pool[k][n[k]++] = a.out[0];
    }
    for (int i = 0; i < N_LEN; i++) {
        struct op_args a = op_args_init(OP_ADD, PHASE_FORWARD, -1);
        struct prog_value v = p->values.data[pool[i][0]];
        uint32_t s = program_storage(p, SC_OUTPUT, SLOT_NONE, v.dim[0] * 4, "out%d", i);
        op_args_in(&a, pool[i][n[i] - 1]);
        op_args_in(&a, pool[i][n[i] / 2]);
        a.out[0] = program_value(p, s, 0, DT_F32, 1, v.dim, "out%d", i);
        program_op(p, &a);
    }
    program_call(p, CALL_STEP, program_segment_end(p), 0, 0);
    program_seal(p);
}

/* Of one segment on one stream: first and last op that uses a storage. */
static bool brute_life(const struct program *p, uint32_t storage, uint32_t *first,
                       uint32_t *last)
{
    bool any = false;
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        for (int i = 0; i < op->n_in + op->n_out; i++) {
            uint32_t v = op_in(p, op, i);
            if (v == NONE_ID || p->values.data[v].storage != storage)
                continue;
            *first = any ? *first : o;
            *last = o;
            any = true;
        }
    }
    return any;
}

static int check_apart(const struct program *p, bool isolated)
{
    int n_shared = 0;
    for (uint32_t a = 0; a < p->storages.n; a++) {
        for (uint32_t b = 0; b < a; b++) {
            uint32_t fa = 0, la = UINT32_MAX, fb = 0, lb = UINT32_MAX;
            const struct prog_storage *sa = &p->storages.data[a],
                                      *sb = &p->storages.data[b];
            bool ta = !storage_class_is_persistent((enum storage_class)sa->cls);
            bool tb = !storage_class_is_persistent((enum storage_class)sb->cls);
            if ((ta && !brute_life(p, a, &fa, &la)) ||
                (tb && !brute_life(p, b, &fb, &lb)))
                continue;
            int64_t oa = p->offsets.data[sa->offset_first];
            int64_t ob = p->offsets.data[sb->offset_first];
            bool share = oa < ob + sb->bytes && ob < oa + sa->bytes;
            n_shared += share;
            if (share && (isolated || (fa <= lb && fb <= la)))
                fail_msg("%s and %s share bytes", prog_name(p, sa->name),
                         prog_name(p, sb->name));
        }
    }
    return n_shared;
}

static void test_random_programs(void **state)
{
    (void)state;
    double worst = 0, sum = 0;
    int n = 100, n_shared = 0;
    for (int i = 0; i < n; i++) {
        struct program p;
        struct diag d = {0};
        struct mem_report r = {0};
        struct pack_options o = pack_options_default();
        random_program(&p, (uint64_t)i);
        must(program_verify(&p, &d), &d);
        must(pack_program(&p, &o, &r, &d), &d);
        must(program_verify_packed(&p, &d), &d);
        n_shared += check_apart(&p, false);
        const struct mem_pool *m = &r.pool[POOL_DEVICE];
        assert_true(m->pool_bytes >= m->bound_bytes);
        assert_true(m->top_bytes <= m->pool_bytes);
        double ratio = (double)(m->pool_bytes - m->persistent_bytes) /
                       (double)(m->bound_bytes - m->persistent_bytes);
        worst = ratio > worst ? ratio : worst;
        sum += ratio / n;
        mem_report_free(&r);
        program_free(&p);
    }
    print_message("packed / lower bound: mean %.4f, worst %.4f\n", sum, worst);
    assert_true(n_shared > 0);
    assert_true(worst <= 1.25);
}

static void test_guards_and_isolation(void **state)
{
    (void)state;
    struct program p;
    struct diag d = {0};
    random_program(&p, 7);
    struct pack_options o = {.align_bytes = 64, .guard_bytes = 128, .isolate = true};
    must(pack_program(&p, &o, NULL, &d), &d);
    check_apart(&p, true);
    for (uint32_t a = 0; a < p.storages.n; a++)
        for (uint32_t b = 0; b < p.storages.n; b++) {
            const struct prog_storage *sa = &p.storages.data[a];
            int64_t oa = p.offsets.data[sa->offset_first];
            int64_t ob = p.offsets.data[p.storages.data[b].offset_first];
            assert_true(oa % 64 == 0 || oa < 0);
            if (a != b && oa >= 0 && ob >= oa)
                assert_true(ob >= oa + sa->bytes + 128);
        }
    program_free(&p);
}

/* Programs of one run agree on persistent offsets, whatever their transients. */
static void test_programs_share_an_arena(void **state)
{
    (void)state;
    struct program p[3];
    struct program *list[3] = {&p[0], &p[1], &p[2]};
    struct diag d = {0};
    struct pack_options o = pack_options_default();
    for (uint32_t i = 0; i < 3; i++) {
        struct toy t = toy_small();
        t.micro_batches = 1 + 2 * i;
        toy_program(&p[i], &t);
    }
    must(pack_programs(list, 3, &o, NULL, &d), &d);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(p[i].pool_bytes[POOL_DEVICE], p[0].pool_bytes[POOL_DEVICE]);
        for (uint32_t s = 0; s < p[0].storages.n; s++) {
            const struct prog_storage *st = &p[0].storages.data[s];
            if (storage_class_is_persistent((enum storage_class)st->cls))
                assert_int_equal(p[0].offsets.data[st->offset_first],
                                 p[i].offsets.data[p[i].storages.data[s].offset_first]);
        }
        must(program_verify_packed(&p[i], &d), &d);
    }
    p[1].storages.data[p[1].values.data[op_in(&p[1], &p[1].ops.data[1], 0)].storage]
            .bytes += 64; /* the embedding table */
    assert_int_equal(pack_programs(list, 3, &o, NULL, &d), ST_INTERNAL);
    assert_non_null(strstr(d.text, "embed.-1"));
    for (int i = 0; i < 3; i++)
        program_free(&p[i]);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_large_program_in_time(void **state)
{
    (void)state;
    struct program p;
    struct diag d = {0};
    struct mem_report r = {0};
    struct pack_options o = pack_options_default();
    struct toy t = {.layers = 126,
                    .hidden = 16384,
                    .heads = 128,
                    .kv_heads = 8,
                    .head_dim = 128,
                    .ffn = 53248,
                    .vocab = 128256,
                    .tokens = 65536,
                    .seq = 8192,
                    .micro_batches = 512};
    toy_program(&p, &t);
    double t0 = seconds();
    must(program_verify(&p, &d), &d);
    double t1 = seconds();
    must(pack_program(&p, &o, &r, &d), &d);
    double t2 = seconds();
    must(program_verify_packed(&p, &d), &d);
    double t3 = seconds();
    const struct mem_pool *m = &r.pool[POOL_DEVICE];
    print_message("126 layers, %u ops, %u storages: verify %.3f s, pack %.3f s, verify "
                  "packed %.3f s; %.1f GiB, bound %.1f GiB\n",
                  p.ops.n, p.storages.n, t1 - t0, t2 - t1, t3 - t2,
                  (double)m->pool_bytes / (double)GIB,
                  (double)m->bound_bytes / (double)GIB);
    assert_true(m->pool_bytes >= m->bound_bytes);
    assert_true((double)m->pool_bytes < 1.05 * (double)m->bound_bytes);
    assert_int_equal(r.layers.n, 127);
    assert_true(t3 - t0 < 5.0); /* generous: machines are shared */
    mem_report_free(&r);
    program_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_random_programs),
            cmocka_unit_test(test_guards_and_isolation),
            cmocka_unit_test(test_programs_share_an_arena),
            cmocka_unit_test(test_large_program_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
