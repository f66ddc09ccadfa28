/* The mesh: places, groups in logical order, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/mesh.h"

static struct mesh make(int tp, int cp, int dp, int pp, int ep, int etp,
                        const enum mesh_dim *order)
{
    int64_t degree[MESH_DIMS] = {
            [MESH_TP] = tp, [MESH_CP] = cp, [MESH_DP] = dp,
            [MESH_PP] = pp, [MESH_EP] = ep, [MESH_ETP] = etp,
    };
    struct mesh m;
    struct diag d = {0};
    if (mesh_create(&m, degree, tp * cp * dp * pp, order, &d) != ST_OK)
        fail_msg("%s", d.text);
    return m;
}

static const enum mesh_dim orders[][MESH_DENSE_DIMS] = {
        {MESH_TP, MESH_CP, MESH_DP, MESH_PP},
        {MESH_PP, MESH_DP, MESH_CP, MESH_TP},
        {MESH_TP, MESH_PP, MESH_CP, MESH_DP},
        {MESH_DP, MESH_TP, MESH_PP, MESH_CP},
};

static void assert_members(const struct mesh_group *g, int n, const int *want)
{
    assert_int_equal(g->n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(g->members[i], want[i]);
}

#define MEMBERS(g, ...)                                                                \
    assert_members((g), (int)ARRAY_LEN(((int[]){__VA_ARGS__})), (int[]){__VA_ARGS__})

static void test_default_order(void **state)
{
    (void)state;
    struct mesh m = make(2, 2, 2, 2, 1, 1, NULL);
    struct arena a = {0};
    struct mesh_group g;
    int coord[MESH_PLACES];
    mesh_place(&m, 13, coord);
    assert_int_equal(coord[MESH_TP], 1);
    assert_int_equal(coord[MESH_CP], 0);
    assert_int_equal(coord[MESH_DP], 1);
    assert_int_equal(coord[MESH_PP], 1);
    mesh_group(&m, MESH_TENSOR, 13, &a, &g);
    MEMBERS(&g, 12, 13);
    assert_int_equal(g.place, 1);
    assert_string_equal(g.name, "tensor group 6");
    mesh_group(&m, MESH_CONTEXT, 13, &a, &g);
    MEMBERS(&g, 13, 15);
    mesh_group(&m, MESH_DATA, 13, &a, &g);
    MEMBERS(&g, 9, 13);
    assert_string_equal(g.name, "data group 5");
    mesh_group(&m, MESH_PIPELINE, 13, &a, &g);
    MEMBERS(&g, 5, 13);
    mesh_group(&m, MESH_REPLICA, 13, &a, &g);
    MEMBERS(&g, 9, 11, 13, 15);
    assert_int_equal(g.place, 2);
    assert_string_equal(g.name, "context-data group 3");
    mesh_group(&m, MESH_WORLD, 13, &a, &g);
    assert_int_equal(g.n, 16);
    assert_int_equal(g.place, 13);
    assert_string_equal(g.name, "world group");
    arena_release(&a);
}

/* Data outermost in logic and fastest in place: members stay in logical order. */
static void test_other_order(void **state)
{
    (void)state;
    struct mesh m = make(2, 1, 2, 2, 1, 1, orders[1]);
    struct arena a = {0};
    struct mesh_group g;
    int coord[MESH_PLACES];
    mesh_place(&m, 3, coord); /* pp 1, dp 1, tp 0 */
    assert_int_equal(coord[MESH_PP], 1);
    assert_int_equal(coord[MESH_DP], 1);
    assert_int_equal(coord[MESH_TP], 0);
    mesh_group(&m, MESH_TENSOR, 3, &a, &g);
    MEMBERS(&g, 3, 7);
    mesh_group(&m, MESH_WORLD, 3, &a, &g);
    MEMBERS(&g, 0, 4, 2, 6, 1, 5, 3, 7);
    assert_int_equal(g.place, 6);
    arena_release(&a);
}

/* Every set of dimensions cuts the world into groups: each rank once, all members agree
 * on the group, and its index is its own. */
static void check_partition(const struct mesh *m, unsigned dims)
{
    struct arena a = {0};
    int *index_of = arena_array(&a, int, m->world);
    int *seen = arena_array(&a, int, m->world);
    int n_groups = 0;
    for (int r = 0; r < m->world; r++) {
        struct mesh_group g, h;
        mesh_group(m, dims, r, &a, &g);
        assert_int_equal(g.members[g.place], r);
        index_of[r] = g.index;
        n_groups = m->world / g.n;
        assert_true(g.index >= 0 && g.index < n_groups);
        for (int i = 0; i < g.n; i++) {
            mesh_group(m, dims, g.members[i], &a, &h);
            assert_int_equal(h.place, i);
            assert_int_equal(h.index, g.index);
            assert_string_equal(h.name, g.name);
            assert_memory_equal(h.members, g.members, (size_t)g.n * sizeof(int));
        }
        if (g.place == 0)
            seen[g.index]++;
    }
    for (int i = 0; i < n_groups; i++)
        assert_int_equal(seen[i], 1);
    arena_release(&a);
}

static void test_partitions(void **state)
{
    (void)state;
    static const int degrees[][6] = {
            {1, 1, 1, 1, 1, 1}, {3, 1, 2, 2, 1, 1}, {2, 3, 2, 2, 4, 1},
            {2, 2, 4, 1, 2, 4}, {4, 1, 3, 2, 6, 2}, {1, 5, 2, 3, 10, 1},
    };
    static const int dense[] = {MESH_TP, MESH_CP, MESH_DP, MESH_PP};
    static const int expert[] = {MESH_ETP, MESH_EP, MESH_EDP, MESH_PP};
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(degrees); i++)
        for (size_t o = 0; o < ARRAY_LEN(orders); o++) {
            const int *d = degrees[i];
            struct mesh m = make(d[0], d[1], d[2], d[3], d[4], d[5], orders[o]);
            assert_int_equal(m.degree[MESH_ETP] * m.degree[MESH_EP] *
                                     m.degree[MESH_EDP] * m.degree[MESH_PP],
                             m.world);
            for (unsigned set = 0; set < 16; set++, n += 2) {
                unsigned a = 0, b = 0;
                for (int k = 0; k < 4; k++) {
                    a |= set >> k & 1 ? MESH_BIT(dense[k]) : 0;
                    b |= set >> k & 1 ? MESH_BIT(expert[k]) : 0;
                }
                check_partition(&m, a);
                check_partition(&m, b);
            }
        }
    printf("  %d partitions of up to 24 ranks\n", n);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t o = 0; o < ARRAY_LEN(orders); o++) {
        struct mesh m = make(2, 3, 4, 5, 6, 2, orders[o]);
        for (int r = 0; r < m.world; r++) {
            int coord[MESH_PLACES];
            mesh_place(&m, r, coord);
            assert_int_equal(mesh_rank(&m, coord), r);
            assert_int_equal(mesh_rank_expert(&m, coord), r);
        }
    }
}

/* The world has no factor e, and pipelines are the same for dense and expert parts. Who
 * is whose expert neighbour does not change with the placement. */
static void test_experts(void **state)
{
    (void)state;
    struct mesh m = make(2, 1, 4, 2, 4, 1, NULL);
    struct arena a = {0};
    struct mesh_group g;
    assert_int_equal(m.world, 16);
    assert_int_equal(m.degree[MESH_EDP], 2);
    mesh_group(&m, MESH_BIT(MESH_EP), 9, &a, &g);
    MEMBERS(&g, 8, 9, 10, 11);
    assert_string_equal(g.name, "expert group 2");
    mesh_group(&m, MESH_BIT(MESH_EDP), 9, &a, &g);
    MEMBERS(&g, 9, 13);
    assert_string_equal(g.name, "expert-data group 5");
    m = make(2, 1, 4, 2, 2, 4, NULL);
    mesh_group(&m, MESH_BIT(MESH_ETP), 9, &a, &g);
    MEMBERS(&g, 8, 9, 10, 11);
    mesh_group(&m, MESH_BIT(MESH_EP), 9, &a, &g);
    MEMBERS(&g, 9, 13);
    struct mesh other = make(2, 1, 4, 2, 2, 4, orders[3]);
    for (int r = 0; r < m.world; r++) {
        int here[MESH_PLACES], there[MESH_PLACES];
        mesh_place(&m, r, here);
        mesh_place(&other, mesh_rank(&other, here), there);
        assert_memory_equal(here, there, sizeof(here));
    }
    arena_release(&a);
}

static void test_kv_replicas(void **state)
{
    (void)state;
    struct mesh m = make(8, 1, 2, 1, 1, 1, NULL);
    struct arena a = {0};
    struct mesh_group g;
    mesh_group_kv(&m, 2, 14, &a, &g);
    MEMBERS(&g, 12, 13, 14, 15);
    assert_int_equal(g.place, 2);
    assert_string_equal(g.name, "key-value group 3");
    mesh_group_kv(&m, 4, 3, &a, &g);
    MEMBERS(&g, 2, 3);
    assert_int_equal(g.index, 1);
    mesh_group_kv(&m, 1, 3, &a, &g);
    assert_int_equal(g.n, 8);
    mesh_group_kv(&m, 16, 3, &a, &g);
    MEMBERS(&g, 3);
    arena_release(&a);
}

static void test_ends(void **state)
{
    (void)state;
    struct mesh m = make(2, 1, 1, 3, 1, 1, NULL);
    struct arena a = {0};
    struct mesh_group g;
    mesh_group_ends(&m, 1, &a, &g);
    MEMBERS(&g, 1, 5);
    assert_int_equal(g.place, 0);
    mesh_group_ends(&m, 4, &a, &g);
    MEMBERS(&g, 0, 4);
    assert_int_equal(g.place, 1);
    assert_string_equal(g.name, "tied-ends group 0");
    mesh_group_ends(&m, 3, &a, &g);
    assert_int_equal(g.n, 0);
    m = make(2, 1, 1, 1, 1, 1, NULL);
    mesh_group_ends(&m, 1, &a, &g);
    MEMBERS(&g, 1);
    arena_release(&a);
}

static void assert_refused(const int64_t *degree, int64_t world, const char *text,
                           const char *hint)
{
    struct mesh m;
    struct diag d = {0};
    assert_int_equal(mesh_create(&m, degree, world, NULL, &d), ST_CONFIG);
    if (!strstr(d.text, text) || !strstr(d.hint, hint))
        fail_msg("got '%s' / '%s', wanted '%s' / '%s'", d.text, d.hint, text, hint);
}

/* tp, cp, dp, pp, ep, etp: the order of enum mesh_dim. */
#define DEGREES(...) ((const int64_t[MESH_DIMS]){__VA_ARGS__})

static void test_refused(void **state)
{
    (void)state;
    assert_refused(DEGREES(2, 1, 3, 1, 1, 1), 8,
                   "tp 2 x cp 1 x dp 3 x pp 1 = 6, wanted 8 ranks",
                   "nearest for 8 ranks: tp 2, cp 1, dp 4, pp 1; as asked, it takes 6 "
                   "ranks");
    assert_refused(DEGREES(3, 1, MESH_REST, 1, 1, 1), 8,
                   "tp 3 x cp 1 x pp 1, wanted a divisor of 8",
                   "tp 4, cp 1, dp 2, pp 1; as asked, it takes a multiple of 3 ranks");
    assert_refused(DEGREES(1, 1, 1, 1, 1, 1), 2, "= 1, wanted 2 ranks", "dp 2, pp 1");
    assert_refused(DEGREES(0, 1, 1, 1, 1, 1), 1, "impossible tensor degree", "");
    assert_refused(DEGREES(1, 1, -1, 1, 1, 1), 1, "(parallel.dp): got -1", "");
    assert_refused(DEGREES(1, 1, 1, 1, 0, 1), 1, "impossible expert degree", "");
    assert_refused(DEGREES(1, 1, 1, 1, 1, 1), 0, "number of ranks", "");
    assert_refused(DEGREES(1, 1, 1, 1, 1, 1), INT64_MAX, "number of ranks", "");
    assert_refused(DEGREES(INT64_MAX, INT64_MAX, 1, 4, 1, 1), 6, "wanted 6 ranks",
                   "nearest for 6 ranks");
    assert_refused(DEGREES(2, 1, 4, 2, 3, 1), 16,
                   "etp 1 x ep 3, wanted a divisor of tp 2 x cp 1 x dp 4 = 8",
                   "etp 1, ep 4");
    assert_refused(DEGREES(2, 1, 4, 2, INT64_MAX, 4), 16, "a divisor of", "ep 2");
}

static void test_rest(void **state)
{
    (void)state;
    struct mesh m;
    struct diag d = {0};
    assert_int_equal(mesh_create(&m, DEGREES(2, 1, MESH_REST, 3, 1, 1), 24, NULL, &d),
                     ST_OK);
    assert_int_equal(m.degree[MESH_DP], 4);
}

static void test_heads(void **state)
{
    (void)state;
    struct diag d = {0};
    assert_int_equal(mesh_check_heads(4, 32, 8, &d), ST_OK);
    assert_int_equal(mesh_check_heads(16, 32, 8, &d), ST_OK);
    assert_int_equal(mesh_check_heads(3, 12, 12, &d), ST_OK);
    assert_int_equal(mesh_check_heads(5, 12, 12, &d), ST_CONFIG);
    assert_non_null(strstr(d.hint, "parallel.tp=4 or parallel.tp=6"));
    assert_int_equal(mesh_check_heads(64, 32, 8, &d), ST_CONFIG);
    assert_string_equal(d.hint, "nearest: parallel.tp=32");
    /* 12 query heads, 4 of keys: 6 ranks would cut a key-value head's readers. */
    assert_int_equal(mesh_check_heads(6, 12, 4, &d), ST_CONFIG);
    assert_non_null(strstr(d.hint, "parallel.tp=4 or parallel.tp=12"));
}

static void test_order_text(void **state)
{
    (void)state;
    enum mesh_dim order[MESH_DENSE_DIMS];
    struct diag d = {0};
    assert_int_equal(mesh_parse_order("pp,dp,cp,tp", order, &d), ST_OK);
    assert_memory_equal(order, orders[1], sizeof(order));
    static const char *const wrong[] = {"",
                                        "tp",
                                        "tp,cp,dp",
                                        "tp,cp,dp,pp,",
                                        "tp,cp,dp,pp,ep",
                                        "tp,tp,dp,pp",
                                        "tp,cp,dp,ep",
                                        "tp cp dp pp",
                                        ",tp,cp,dp,pp",
                                        "tp,,cp,dp"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        if (mesh_parse_order(wrong[i], order, &d) != ST_CONFIG)
            fail_msg("taken: '%s'", wrong[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_default_order), cmocka_unit_test(test_other_order),
            cmocka_unit_test(test_partitions),    cmocka_unit_test(test_round_trip),
            cmocka_unit_test(test_experts),       cmocka_unit_test(test_kv_replicas),
            cmocka_unit_test(test_ends),          cmocka_unit_test(test_refused),
            cmocka_unit_test(test_rest),          cmocka_unit_test(test_heads),
            cmocka_unit_test(test_order_text),
    };
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
