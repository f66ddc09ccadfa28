/* The programs of all ranks of many layouts: each is well-formed, its waits order every
 * use of its bytes, it packs, and the ranks' communication fits together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "core/op.h"
#include "core/verify.h"
#include "memory/pack.h"
#include "parallel/mesh.h"
#include "parallel/verify_ranks.h"
#include "tests/lib/layouts.h"

static void check_rank(const struct model *m, const struct layout_case *c, int rank,
                       enum dtype compute)
{
    struct lowered low;
    struct mem_report report;
    struct diag diag = {0};
    struct lower_options o;
    layout_options(c, rank, compute, &o);
    enum status st = lower_model(m, &o, &low, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: lower: %s", c->name, rank, diag.text);
    st = program_verify(&low.program, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: verify: %s", c->name, rank, diag.text);
    struct pack_options po = pack_options_default();
    st = pack_program(&low.program, &po, &report, &diag);
    if (st == ST_OK)
        st = program_verify_packed(&low.program, &diag);
    if (st != ST_OK)
        fail_msg("%s rank %d: pack: %s", c->name, rank, diag.text);
    mem_report_free(&report);
    lowered_free(&low);
}

/* --------------------------------------------------------------------- ranks together */

#define RANKS_MAX  16
#define GROUPS_MAX (GROUP_COUNT * RANKS_MAX)

/* All groups of a job: kinds one behind the other, of each all its groups. */
struct job {
    struct arena arena;
    struct event_group groups[GROUPS_MAX];
    struct rank_events events[RANKS_MAX];
    int n;
};

static void find_groups(const struct model *m, const struct layout_case *c, int rank,
                        struct job *j, uint32_t id[GROUP_COUNT])
{
    static const unsigned dims[GROUP_COUNT] = {
            [GROUP_TENSOR] = MESH_TENSOR,     [GROUP_TENSOR_GRAD] = MESH_TENSOR,
            [GROUP_DATA] = MESH_REPLICA,      [GROUP_FORWARD] = MESH_PIPELINE,
            [GROUP_BACKWARD] = MESH_PIPELINE, [GROUP_WORLD] = MESH_WORLD,
    };
    const int64_t degree[MESH_DIMS] = {
            [MESH_TP] = c->tp, [MESH_CP] = 1, [MESH_DP] = c->dp,
            [MESH_PP] = c->pp, [MESH_EP] = 1, [MESH_ETP] = 1};
    struct mesh mesh;
    struct diag diag = {0};
    assert_int_equal(mesh_create(&mesh, degree, layout_world(c), NULL, &diag), ST_OK);
    for (int g = 0; g < GROUP_COUNT; g++) {
        struct mesh_group group;
        if (g == GROUP_KV)
            mesh_group_kv(&mesh, m->config.kv_heads, rank, &j->arena, &group);
        else if (g == GROUP_TIED)
            mesh_group_ends(&mesh, rank, &j->arena, &group);
        else
            mesh_group(&mesh, dims[g], rank, &j->arena, &group);
        id[g] = (uint32_t)(g * RANKS_MAX + (group.n > 1 ? group.index : 0));
        if (group.n > 1)
            j->groups[id[g]] = (struct event_group){arena_strdup(&j->arena, group.name),
                                                    group.members, group.n};
    }
}

static void add_rank(const struct model *m, const struct layout_case *c, int rank,
                     struct job *j)
{
    uint32_t id[GROUP_COUNT];
    struct lowered low;
    struct lower_options o;
    struct diag diag = {0};
    layout_options(c, rank, DT_F32, &o);
    if (lower_model(m, &o, &low, &diag) != ST_OK)
        fail_msg("%s: %s", c->name, diag.text);
    find_groups(m, c, rank, j, id);
    rank_events_list(&low.program, CALL_SETUP, id, &j->events[rank]);
    rank_events_list(&low.program, CALL_STEP, id, &j->events[rank]);
    j->n += (int)j->events[rank].events.n;
    lowered_free(&low);
}

/* Collectives agree, messages meet, and nothing waits in a circle. */
static void test_ranks_fit(void **state)
{
    int n_events = 0;
    (void)state;
    for (int i = 0; i < n_layout_cases; i++) {
        const struct layout_case *c = &layout_cases[i];
        for (int k = 0; k < LAYOUT_MODELS; k++) {
            struct job *j = mem_alloc(sizeof(*j));
            struct model m;
            struct diag diag = {0};
            int n = layout_world(c);
            layout_model(c, k, &m);
            for (int g = 0; g < GROUPS_MAX; g++)
                j->groups[g].name = "none";
            for (int rank = 0; rank < n; rank++)
                add_rank(&m, c, rank, j);
            if (verify_ranks(j->events, n, j->groups, GROUPS_MAX, &diag) != ST_OK)
                fail_msg("%s: %s", c->name, diag.text);
            n_events += j->n;
            for (int rank = 0; rank < n; rank++)
                rank_events_free(&j->events[rank]);
            arena_release(&j->arena);
            mem_free(j);
            model_free(&m);
        }
    }
    print_message("  %d layouts, %d events fit together\n", n_layout_cases * 2,
                  n_events);
}

static void test_programs(void **state)
{
    (void)state;
    for (int i = 0; i < n_layout_cases; i++) {
        const struct layout_case *c = &layout_cases[i];
        for (int k = 0; k < LAYOUT_MODELS; k++) {
            struct model m;
            layout_model(c, k, &m);
            for (int rank = 0; rank < layout_world(c); rank++) {
                check_rank(&m, c, rank, DT_F32);
                if (rank == 0)
                    check_rank(&m, c, rank, DT_BF16);
            }
            model_free(&m);
        }
    }
    print_message("  %d layouts\n", n_layout_cases);
}

/* --------------------------------------------------------------------------- volumes */

/* Bytes that a step sends over the groups of one kind, counted from the program. */
static double wire_bytes(const struct program *p, enum comm_group group)
{
    double bytes = 0;
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_call *call = &p->calls.data[c];
        const struct prog_segment *seg = &p->segments.data[call->segment];
        for (uint32_t o = seg->op_begin; o < seg->op_end; o++) {
            const struct prog_op *op = &p->ops.data[o];
            if (call->phase == CALL_STEP && op_kind_is_comm((enum op_kind)op->kind) &&
                op_attr_i(p, op, ATTR_GROUP, -1) == group)
                bytes += op_cost(p, op).bytes_wire;
        }
    }
    return bytes;
}

struct volume {
    struct layout_case c;
    int rank;
    enum comm_group group;
    double (*want)(const struct model *m, const struct layout_case *c);
};

static double tokens_of(const struct layout_case *c)
{
    return (double)c->micro_batch * LAYOUT_SEQ_LEN;
}

static double micro_batches(const struct layout_case *c)
{
    return (double)LAYOUT_SEQUENCES / c->dp / c->micro_batch;
}

/* Parameters of matrices in layers, of the ends, and all. */
static double matrix_elems(const struct model *m, bool layers, bool ends)
{
    double n = 0;
    for (uint32_t i = 0; i < m->n_params; i++) {
        bool inside = m->params[i].layer >= 0;
        if (m->params[i].ndim == 2 && ((inside && layers) || (!inside && ends)))
            n += (double)param_elems(&m->params[i]);
    }
    return n;
}

static double all_elems(const struct model *m)
{
    double n = 0;
    for (uint32_t i = 0; i < m->n_params; i++)
        n += (double)param_elems(&m->params[i]);
    return n;
}

/* Tensor and sequence parallel, f32: in each layer two gathers and two scatters forward
 * and the same backward (nothing is gathered again when activations are kept); embedding
 * and head one each way; three statistics a token of the loss. */
static double want_tensor(const struct model *m, const struct layout_case *c)
{
    double w = (c->tp - 1.0) / c->tp, x = tokens_of(c) * (double)m->config.hidden * 4;
    double stats = c->tp * tokens_of(c) * 3 * 4;
    return micro_batches(c) * w * ((8.0 * LAYOUT_LAYERS + 4) * x + stats);
}

/* The same with saved inputs gathered again: two more a layer. */
static double want_tensor_again(const struct model *m, const struct layout_case *c)
{
    double w = (c->tp - 1.0) / c->tp, x = tokens_of(c) * (double)m->config.hidden * 4;
    return want_tensor(m, c) + micro_batches(c) * w * 2.0 * LAYOUT_LAYERS * x;
}

static double want_ddp(const struct model *m, const struct layout_case *c)
{
    return 2 * 4 * all_elems(m) * (c->dp - 1) / c->dp;
}

/* Gradients reduced once and f32 weights gathered once a step. */
static double want_zero1(const struct model *m, const struct layout_case *c)
{
    return (4 + 4) * all_elems(m) * (c->dp - 1) / c->dp;
}

static double want_zero2_sharded(const struct model *m, const struct layout_case *c)
{
    return (micro_batches(c) * 4 + 4) * all_elems(m) * (c->dp - 1) / c->dp;
}

/* Matrices of layers are gathered for the forward and for the backward pass of every
 * micro-batch, embedding and head once; vectors once a step. */
static double want_zero3(const struct model *m, const struct layout_case *c)
{
    double vectors = all_elems(m) - matrix_elems(m, true, true);
    double gathers = micro_batches(c) * (2 * matrix_elems(m, true, false) +
                                         matrix_elems(m, false, true)) +
                     vectors;
    return 4 * (all_elems(m) + gathers) * (c->dp - 1) / c->dp;
}

/* One activation (or gradient) of the rank's tokens for every micro-batch and chunk. */
static double want_pipeline(const struct model *m, const struct layout_case *c)
{
    return micro_batches(c) * tokens_of(c) / c->tp * (double)m->config.hidden * 4 *
           c->chunks;
}

static void test_volumes(void **state)
{
    static const struct volume volumes[] = {
            {{.name = "tp 2", .tp = 2, .pp = 1, .dp = 1, .micro_batch = 2},
             1,
             GROUP_TENSOR,
             want_tensor},
            {{.name = "tp 4", .tp = 4, .pp = 1, .dp = 1, .micro_batch = 4},
             3,
             GROUP_TENSOR,
             want_tensor},
            {{.name = "tp 2, selective",
              .tp = 2,
              .pp = 1,
              .dp = 1,
              .micro_batch = 2,
              .activations = ACTIVATIONS_SELECTIVE},
             0,
             GROUP_TENSOR,
             want_tensor_again},
            {{.name = "dp 2", .tp = 1, .pp = 1, .dp = 2, .micro_batch = 2},
             1,
             GROUP_DATA,
             want_ddp},
            {{.name = "dp 4, zero 1",
              .tp = 1,
              .pp = 1,
              .dp = 4,
              .zero = 1,
              .micro_batch = 1},
             2,
             GROUP_DATA,
             want_zero1},
            {{.name = "dp 2, zero 2, sharded",
              .tp = 1,
              .pp = 1,
              .dp = 2,
              .zero = 2,
              .micro_batch = 1,
              .sharded = true},
             1,
             GROUP_DATA,
             want_zero2_sharded},
            {{.name = "dp 2, zero 3",
              .tp = 1,
              .pp = 1,
              .dp = 2,
              .zero = 3,
              .micro_batch = 2},
             0,
             GROUP_DATA,
             want_zero3},
            {{.name = "pp 2, forward",
              .tp = 1,
              .pp = 2,
              .chunks = 1,
              .dp = 1,
              .micro_batch = 1},
             0,
             GROUP_FORWARD,
             want_pipeline},
            {{.name = "tp 2, pp 2, backward",
              .tp = 2,
              .pp = 2,
              .chunks = 1,
              .dp = 1,
              .micro_batch = 2},
             3,
             GROUP_BACKWARD,
             want_pipeline},
            {{.name = "pp 2, vpp 3, forward",
              .tp = 1,
              .pp = 2,
              .chunks = 3,
              .dp = 1,
              .schedule = SCHEDULE_INTERLEAVED,
              .micro_batch = 1},
             0,
             GROUP_FORWARD,
             want_pipeline},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(volumes); i++) {
        const struct volume *v = &volumes[i];
        struct model m;
        struct lowered low;
        struct lower_options o;
        struct diag diag = {0};
        layout_model(&v->c, LAYOUT_LLAMA, &m);
        layout_options(&v->c, v->rank, DT_F32, &o);
        if (lower_model(&m, &o, &low, &diag) != ST_OK)
            fail_msg("%s: %s", v->c.name, diag.text);
        double got = wire_bytes(&low.program, v->group), want = v->want(&m, &v->c);
        print_message("  %-24s %s group: %.0f bytes sent, formula %.0f\n", v->c.name,
                      comm_group_name(v->group), got, want);
        assert_true(got > 0 && !(got - want > 0.5) && !(want - got > 0.5));
        lowered_free(&low);
        model_free(&m);
    }
}

/* Recompute reads the weights that the backward pass gathers anyway: nothing is gathered
 * for it alone. */
static void test_recompute_of_gathered_weights(void **state)
{
    (void)state;
    for (int i = 0; i < n_layout_cases; i++) {
        const struct layout_case *c = &layout_cases[i];
        struct model m;
        struct lowered low;
        struct lower_options o;
        struct diag diag = {0};
        if (c->zero < 3 || c->activations != ACTIVATIONS_RECOMPUTE)
            continue;
        layout_model(c, LAYOUT_LLAMA, &m);
        layout_options(c, 0, DT_F32, &o);
        assert_int_equal(lower_model(&m, &o, &low, &diag), ST_OK);
        const struct program *p = &low.program;
        int n_gathers = 0, n_again = 0;
        for (uint32_t k = 0; k < p->ops.n; k++) {
            const struct prog_op *op = &p->ops.data[k];
            bool gathers = op->kind == OP_ALL_GATHER &&
                           op_attr_i(p, op, ATTR_GROUP, -1) == GROUP_DATA;
            n_gathers += gathers;
            n_again += gathers && op->recompute;
        }
        print_message("  %-50s %d gathers, %d of them for recompute\n", c->name,
                      n_gathers, n_again);
        assert_true(n_gathers > 0 && n_again == 0);
        lowered_free(&low);
        model_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_programs), cmocka_unit_test(test_ranks_fit),
            cmocka_unit_test(test_recompute_of_gathered_weights),
            cmocka_unit_test(test_volumes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
