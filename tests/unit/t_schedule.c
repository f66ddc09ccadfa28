/* Pipeline schedules: every call once, slots, order, and the simulated times and memory
 * against the closed formulas. Then schedules that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "parallel/schedule_sim.h"

struct job {
    uint32_t p, v, m;
    struct schedule *stages;
    double *cost_s[3]; /* forward, input, weight */
    struct schedule_cost cost;
};

static void job_init(struct job *j, enum schedule_kind kind, uint32_t p, uint32_t v,
                     uint32_t m)
{
    struct diag d = {0};
    *j = (struct job){.p = p, .v = v, .m = m};
    j->stages = mem_alloc(p * sizeof(*j->stages));
    for (uint32_t i = 0; i < p; i++)
        if (schedule_build(kind, p, v, m, i, &j->stages[i], &d) != ST_OK)
            fail_msg("%s", d.text);
    for (int k = 0; k < 3; k++) {
        j->cost_s[k] = mem_alloc(p * v * sizeof(double));
        for (uint32_t u = 0; u < p * v; u++)
            j->cost_s[k][u] = 1;
    }
    j->cost = (struct schedule_cost){j->cost_s[0], j->cost_s[1], j->cost_s[2], 0};
}

static void job_free(struct job *j)
{
    for (uint32_t i = 0; i < j->p; i++)
        schedule_free(&j->stages[i]);
    mem_free(j->stages);
    for (int k = 0; k < 3; k++)
        mem_free(j->cost_s[k]);
}

static void simulate(const struct job *j, struct schedule_result *r)
{
    struct diag d = {0};
    if (schedule_simulate(j->stages, &j->cost, r, &d) != ST_OK)
        fail_msg("p %u v %u m %u: %s", j->p, j->v, j->m, d.text);
}

/* Chunks a kind is tested with. */
static uint32_t chunks_min(enum schedule_kind kind)
{
    return kind == SCHEDULE_INTERLEAVED ? 2 : 1;
}

static uint32_t chunks_max(enum schedule_kind kind)
{
    return kind == SCHEDULE_INTERLEAVED ? 4 : 1;
}

#define STAGES_TESTED        8
#define MICRO_BATCHES_TESTED 26

/* Each part of each chunk: micro-batches 0, 1, 2, ... in order, each once. */
static void check_once_in_order(const struct schedule *s)
{
    uint32_t next[PART_COUNT][8] = {{0}};
    for (uint32_t i = 0; i < s->items.n; i++) {
        const struct schedule_item *item = &s->items.data[i];
        assert_true(item->chunk < s->n_chunks);
        assert_int_equal(item->micro_batch, next[item->part][item->chunk]++);
    }
    bool split = schedule_splits_backward(s->kind);
    for (uint32_t c = 0; c < s->n_chunks; c++) {
        assert_int_equal(next[PART_FORWARD][c], s->n_micro_batches);
        assert_int_equal(next[PART_BACKWARD][c], split ? 0 : s->n_micro_batches);
        assert_int_equal(next[PART_BACKWARD_INPUT][c], split ? s->n_micro_batches : 0);
        assert_int_equal(next[PART_BACKWARD_WEIGHT][c], split ? s->n_micro_batches : 0);
    }
}

/* A slot holds one micro-batch from its forward to its last part, and there are no more
 * slots than the most that are held at once. */
static void check_slots(const struct schedule *s)
{
    uint32_t holder[8][64], held[8] = {0}, most[8] = {0};
    memset(holder, 255, sizeof(holder));
    assert_int_equal(s->n_slots.n, s->n_chunks);
    for (uint32_t i = 0; i < s->items.n; i++) {
        const struct schedule_item *item = &s->items.data[i];
        uint32_t c = item->chunk, *h = &holder[c][item->slot];
        assert_true(item->slot < s->n_slots.data[c]);
        if (item->part == PART_FORWARD) {
            assert_int_equal(*h, NONE_ID);
            *h = item->micro_batch;
            held[c]++;
            most[c] = MAX(most[c], held[c]);
            continue;
        }
        assert_int_equal(*h, item->micro_batch);
        if (item->part != PART_BACKWARD_INPUT) {
            *h = NONE_ID;
            held[c]--;
        }
    }
    for (uint32_t c = 0; c < s->n_chunks; c++)
        assert_int_equal(s->n_slots.data[c], most[c]);
}

static void test_calls(void **state)
{
    (void)state;
    int n = 0;
    for (enum schedule_kind kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (uint32_t p = 1; p <= STAGES_TESTED; p++)
            for (uint32_t v = chunks_min(kind); v <= chunks_max(kind); v++)
                for (uint32_t m = 1; m <= MICRO_BATCHES_TESTED; m++, n++) {
                    struct job j;
                    job_init(&j, kind, p, v, m);
                    for (uint32_t i = 0; i < p; i++) {
                        check_once_in_order(&j.stages[i]);
                        check_slots(&j.stages[i]);
                    }
                    job_free(&j);
                }
    printf("  %d schedules\n", n);
}

/* Dependencies and message order hold for any costs: the simulator refuses what does not
 * fit, and the longest path bounds the time from below. */
static void test_any_costs(void **state)
{
    (void)state;
    int n = 0;
    for (enum schedule_kind kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (uint32_t p = 1; p <= STAGES_TESTED; p++)
            for (uint32_t v = chunks_min(kind); v <= chunks_max(kind); v++)
                for (uint32_t m = 1; m <= MICRO_BATCHES_TESTED; m++, n++) {
                    struct job j;
                    struct schedule_result r;
                    double path_s = 0;
                    job_init(&j, kind, p, v, m);
                    for (int k = 0; k < 3; k++)
                        for (uint32_t u = 0; u < p * v; u++)
                            j.cost_s[k][u] = 0.1 + (double)(rng_u64((uint64_t)n,
                                                                    (uint64_t)k, u) %
                                                            1000) /
                                                           1000;
                    for (uint32_t u = 0; u < p * v; u++)
                        path_s += j.cost_s[0][u] + j.cost_s[1][u];
                    j.cost.message_s = 0.3;
                    simulate(&j, &r);
                    assert_true(r.makespan_s >= path_s);
                    for (uint32_t i = 0; i < p; i++)
                        assert_true(r.stages.data[i].busy_s <= r.makespan_s + 1e-9);
                    assert_true(r.bubble_fraction >= -1e-12 && r.bubble_fraction < 1);
                    schedule_result_free(&r);
                    job_free(&j);
                }
    printf("  %d schedules with random costs\n", n);
}

/* 1F1B: bubble (p-1)(F+B+W), stage i (from 0) has min(m, p-i) in flight. */
static void test_1f1b_formula(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= STAGES_TESTED; p++)
        for (uint32_t m = 1; m <= MICRO_BATCHES_TESTED; m++) {
            struct job j;
            struct schedule_result r;
            job_init(&j, SCHEDULE_1F1B, p, 1, m);
            simulate(&j, &r);
            assert_true(r.makespan_s == 3.0 * (m + p - 1));
            assert_true(r.bubble_fraction ==
                        1 - 3.0 * m * p / (p * (3.0 * (m + p - 1))));
            for (uint32_t i = 0; i < p; i++)
                assert_int_equal(r.stages.data[i].peak_in_flight, MIN(m, p - i));
            schedule_result_free(&r);
            job_free(&j);
        }
}

/* Interleaved: bubble (p-1)(F+B+W)/v of a stage, which is (p-1)(F+B+W) of a chunk; rank i
 * has min(m*v, 2(p-1-i) + (v-1)p + 1) in flight. Where p does not divide m the groups are
 * of up to ceil(m / floor(m/p)), which takes the place of p in the second formula. */
static void test_interleaved_formula(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t p = 1; p <= STAGES_TESTED; p++)
        for (uint32_t v = 2; v <= 4; v++)
            for (uint32_t m = 1; m <= MICRO_BATCHES_TESTED; m++) {
                struct job j;
                struct schedule_result r;
                uint32_t n_groups = MAX(1, m / p),
                         group = (m + n_groups - 1) / n_groups;
                job_init(&j, SCHEDULE_INTERLEAVED, p, v, m);
                simulate(&j, &r);
                if (m % p == 0)
                    assert_int_equal(group, p);
                double formula_s = 3.0 * (v * m + p - 1);
                if (m >= p && r.makespan_s != formula_s)
                    fail_msg("p %u v %u m %u: %g, wanted %g", p, v, m, r.makespan_s,
                             formula_s);
                if (m < p)
                    worst = MAX(worst, r.makespan_s / (3.0 * (m + p - 1) * v));
                for (uint32_t i = 0; i < p; i++)
                    assert_int_equal(r.stages.data[i].peak_in_flight,
                                     MIN(m * v, 2 * (p - 1 - i) + (v - 1) * group + 1));
                schedule_result_free(&r);
                job_free(&j);
            }
    printf("  fewer micro-batches than stages: at most %.3f of the time of 1f1b\n",
           worst);
    assert_true(worst <= 1);
}

/* ZB-H1: bubble (p-1)(F+B-W) where B >= W, and at most p micro-batches in flight. */
static void test_zb_formula(void **state)
{
    (void)state;
    static const double costs[][3] = {{1, 1, 1}, {2, 2, 1}, {1, 2, 1}, {4, 4, 3}};
    for (size_t k = 0; k < ARRAY_LEN(costs); k++)
        for (uint32_t p = 1; p <= STAGES_TESTED; p++)
            for (uint32_t m = p; m <= 3 * MICRO_BATCHES_TESTED; m++) {
                struct job j;
                struct schedule_result r;
                job_init(&j, SCHEDULE_ZB_H1, p, 1, m);
                for (uint32_t u = 0; u < p; u++)
                    for (int part = 0; part < 3; part++)
                        j.cost_s[part][u] = costs[k][part];
                const double *c = costs[k];
                double want_s =
                        m * (c[0] + c[1] + c[2]) + (p - 1) * (c[0] + c[1] - c[2]);
                simulate(&j, &r);
                if (r.makespan_s != want_s)
                    fail_msg("F %g B %g W %g p %u m %u: %g, wanted %g", c[0], c[1],
                             c[2], p, m, r.makespan_s, want_s);
                for (uint32_t i = 0; i < p; i++)
                    assert_int_equal(r.stages.data[i].peak_in_flight, MIN(m, p));
                schedule_result_free(&r);
                job_free(&j);
            }
}

/* With few micro-batches too, never slower than 1F1B and never more than p in flight. */
static void test_zb_few(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= STAGES_TESTED; p++)
        for (uint32_t m = 1; m <= 2 * p; m++) {
            struct job zb, plain;
            struct schedule_result r, q;
            job_init(&zb, SCHEDULE_ZB_H1, p, 1, m);
            job_init(&plain, SCHEDULE_1F1B, p, 1, m);
            simulate(&zb, &r);
            simulate(&plain, &q);
            if (r.makespan_s > q.makespan_s)
                fail_msg("p %u m %u: %g, 1f1b takes %g", p, m, r.makespan_s,
                         q.makespan_s);
            for (uint32_t i = 0; i < p; i++)
                assert_int_equal(r.stages.data[i].peak_in_flight, MIN(m, p));
            schedule_result_free(&r);
            schedule_result_free(&q);
            job_free(&zb);
            job_free(&plain);
        }
}

/* Written out by hand: p 2, m 3. */
static void test_by_hand(void **state)
{
    (void)state;
    static const struct {
        enum schedule_kind kind;
        uint32_t stage;
        const char *calls; /* part, chunk if several, micro-batch, slot */
    } cases[] = {
            {SCHEDULE_1F1B, 0, "F00 F11 B00 F20 B11 B20"},
            {SCHEDULE_1F1B, 1, "F00 B00 F10 B10 F20 B20"},
            {SCHEDULE_ZB_H1, 0, "F00 F11 I00 W00 F20 I11 W11 I20 W20"},
            {SCHEDULE_ZB_H1, 1, "F00 I00 F11 I11 W00 F20 I20 W11 W20"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct schedule s;
        struct diag d = {0};
        char got[256] = "";
        size_t n = 0;
        assert_int_equal(schedule_build(cases[i].kind, 2, 1, 3, cases[i].stage, &s, &d),
                         ST_OK);
        for (uint32_t k = 0; k < s.items.n; k++) {
            const struct schedule_item *item = &s.items.data[k];
            n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%c%u%u", k ? " " : "",
                                  "FBIW"[item->part], item -> micro_batch,
                                  item -> slot);
        }
        assert_string_equal(got, cases[i].calls);
        schedule_free(&s);
    }
}

static void test_interleaved_by_hand(void **state)
{
    (void)state;
    struct schedule s;
    struct diag d = {0};
    char got[256] = "";
    size_t n = 0;
    assert_int_equal(schedule_build(SCHEDULE_INTERLEAVED, 2, 2, 2, 1, &s, &d), ST_OK);
    for (uint32_t k = 0; k < s.items.n; k++) {
        const struct schedule_item *item = &s.items.data[k];
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%c%u.%u", k ? " " : "",
                              "FBIW"[item->part], item -> chunk, item -> micro_batch);
    }
    assert_string_equal(got, "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1");
    schedule_free(&s);
}

/* A slow last stage: the step is bound by it, m T_max + the others' first and last pass. */
static void test_uneven(void **state)
{
    (void)state;
    struct job j;
    struct schedule_result r;
    job_init(&j, SCHEDULE_1F1B, 4, 1, 32);
    for (int k = 0; k < 3; k++)
        j.cost_s[k][3] = 1.5;
    simulate(&j, &r);
    printf("  last stage 1.5 times as slow: %.1f\n", r.makespan_s);
    assert_true(r.makespan_s == 32 * 4.5 + 3 * 3.0);
    schedule_result_free(&r);
    for (int k = 0; k < 3; k++) {
        j.cost_s[k][3] = 1;
        j.cost_s[k][0] = 1.5;
    }
    simulate(&j, &r);
    printf("  first stage 1.5 times as slow: %.1f\n", r.makespan_s);
    assert_true(r.makespan_s >= 32 * 4.5 && r.makespan_s < 32 * 4.5 + 3 * 3.0);
    schedule_result_free(&r);
    job_free(&j);
}

/* One micro-batch through four stages: six messages, each waited for. */
static void test_messages_take_time(void **state)
{
    (void)state;
    struct job j;
    struct schedule_result r;
    job_init(&j, SCHEDULE_1F1B, 4, 1, 1);
    j.cost.message_s = 0.25;
    simulate(&j, &r);
    assert_true(r.makespan_s == 12 + 6 * 0.25);
    schedule_result_free(&r);
    job_free(&j);
}

static void assert_wrong(struct job *j, const char *text)
{
    struct diag d = {0};
    struct schedule_result r;
    assert_int_equal(schedule_simulate(j->stages, &j->cost, &r, &d), ST_INTERNAL);
    if (!strstr(d.text, text))
        fail_msg("got '%s', wanted '%s'", d.text, text);
    printf("  %s\n", d.text);
    schedule_result_free(&r);
    job_free(j);
}

static void swap_items(struct schedule *s, uint32_t a, uint32_t b)
{
    struct schedule_item item = s->items.data[a];
    s->items.data[a] = s->items.data[b];
    s->items.data[b] = item;
}

static void test_wrong_schedules(void **state)
{
    (void)state;
    struct job j;
    job_init(&j, SCHEDULE_1F1B, 2, 1, 3);
    swap_items(&j.stages[0], 0, 1);
    assert_wrong(&j, "stage 1 takes the input of the forward of micro-batch 0, chunk 0 "
                     "from stage 0, which sent that of micro-batch 1");

    /* Stage 0 wants a gradient before it sent what that is of. */
    job_init(&j, SCHEDULE_1F1B, 2, 1, 3);
    swap_items(&j.stages[0], 1, 2); /* F0 B0 F1 F2 B1 B2 */
    swap_items(&j.stages[1], 1, 2); /* F0 F1 B0 B1 F2 B2 */
    assert_wrong(&j, "cannot go on (pipeline): stage 0 waits for the input of the "
                     "backward of micro-batch 0, chunk 0; stage 1 waits for the input "
                     "of the forward of micro-batch 1");

    job_init(&j, SCHEDULE_ZB_H1, 2, 1, 3);
    swap_items(&j.stages[0], 2, 3);
    assert_wrong(&j, "the weight backward of micro-batch 0, chunk 0 on stage 0, wanted "
                     "after the input backward");

    job_init(&j, SCHEDULE_1F1B, 2, 1, 3);
    j.stages[1].items.data[2] = j.stages[1].items.data[0];
    assert_wrong(&j, "a call twice (pipeline): the forward of micro-batch 0");

    job_init(&j, SCHEDULE_ZB_H1, 2, 1, 3);
    j.stages[0].items.n--;
    assert_wrong(&j, "stage 0 has 8, wanted 9");

    job_init(&j, SCHEDULE_1F1B, 2, 1, 3);
    j.stages[1].items.n -= 2;
    j.stages[0].items.n -= 1;
    assert_wrong(&j, "a message that nobody takes (pipeline): stage 0 sent it for "
                     "micro-batch 2");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        enum schedule_kind kind;
        int64_t p, v, m;
        const char *text, *hint;
    } cases[] = {
            {SCHEDULE_1F1B, 2, 2, 4, "got 2 per stage, wanted 1",
             "parallel.schedule=interleaved"},
            {SCHEDULE_ZB_H1, 2, 2, 4, "schedule zb does not take", "parallel.vpp=1"},
            {SCHEDULE_INTERLEAVED, 2, 1, 4, "wanted at least 2",
             "parallel.schedule=1f1b"},
            {SCHEDULE_1F1B, 0, 1, 4, "pipeline stages", ""},
            {SCHEDULE_1F1B, 2, 0, 4, "chunks per stage", ""},
            {SCHEDULE_1F1B, 2, 1, 0, "micro-batches", ""},
            {SCHEDULE_1F1B, 2, 1, INT64_MAX, "micro-batches", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct schedule s;
        struct diag d = {0};
        assert_int_equal(schedule_build(cases[i].kind, cases[i].p, cases[i].v,
                                        cases[i].m, 0, &s, &d),
                         ST_CONFIG);
        if (!strstr(d.text, cases[i].text) || !strstr(d.hint, cases[i].hint))
            fail_msg("got '%s' / '%s'", d.text, d.hint);
        schedule_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_calls),
            cmocka_unit_test(test_any_costs),
            cmocka_unit_test(test_1f1b_formula),
            cmocka_unit_test(test_interleaved_formula),
            cmocka_unit_test(test_zb_formula),
            cmocka_unit_test(test_zb_few),
            cmocka_unit_test(test_by_hand),
            cmocka_unit_test(test_interleaved_by_hand),
            cmocka_unit_test(test_uneven),
            cmocka_unit_test(test_messages_take_time),
            cmocka_unit_test(test_wrong_schedules),
            cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
