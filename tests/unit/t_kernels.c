/* Every tuned row of the CPU tables against the reference in double: odd shapes, pitched
 * views, f32 and bf16, in place; bits equal for 1, 2 and 3 threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/cpu_table.h"
#include "tests/lib/op_case.h"

#define ACT_ATTR(a) .attr = {{ATTR_ACT, false, a}}, .n_attrs = 1

static const struct op_spec specs[] = {
        {.label = "silu",
         .kind = OP_ACT,
         .in = {"cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_SILU),
         .n_inplace = 1},
        {.label = "gelu",
         .kind = OP_ACT,
         .in = {"cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU),
         .n_inplace = 1},
        {.label = "gelu_tanh",
         .kind = OP_ACT,
         .in = {"cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU_TANH)},
        {.label = "silu_dx",
         .kind = OP_ACT_DX,
         .in = {"cTF", "cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_SILU),
         .n_inplace = 1},
        {.label = "gelu_dx",
         .kind = OP_ACT_DX,
         .in = {"cTF", "cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU)},
        {.label = "gelu_tanh_dx",
         .kind = OP_ACT_DX,
         .in = {"cTF", "cTF wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU_TANH)},
        {.label = "glu_silu",
         .kind = OP_GLU,
         .in = {"cTG"},
         .out = {"cTF"},
         ACT_ATTR(ACT_SILU)},
        {.label = "glu_gelu",
         .kind = OP_GLU,
         .in = {"cTG"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU)},
        {.label = "glu_gelu_tanh",
         .kind = OP_GLU,
         .in = {"cTG wide"},
         .out = {"cTF"},
         ACT_ATTR(ACT_GELU_TANH)},
        {.label = "glu_dx_silu",
         .kind = OP_GLU_DX,
         .in = {"cTF", "cTG"},
         .out = {"cTG"},
         ACT_ATTR(ACT_SILU),
         .inplace = 1,
         .n_inplace = 1},
        {.label = "glu_dx_gelu",
         .kind = OP_GLU_DX,
         .in = {"cTF", "cTG"},
         .out = {"cTG"},
         ACT_ATTR(ACT_GELU)},
        {.label = "glu_dx_gelu_tanh",
         .kind = OP_GLU_DX,
         .in = {"cTF", "cTG"},
         .out = {"cTG"},
         ACT_ATTR(ACT_GELU_TANH)},
        {.label = "add",
         .kind = OP_ADD,
         .in = {"cTH", "cTH"},
         .out = {"cTH"},
         .n_inplace = 1},
        {.label = "add_bias",
         .kind = OP_ADD_BIAS,
         .in = {"cTN", "fN"},
         .out = {"cTN"},
         .n_inplace = 1},
        {.label = "softcap",
         .kind = OP_SOFTCAP,
         .in = {"cTF wide"},
         .out = {"cTF"},
         .attr = {{ATTR_CAP, true, 3}},
         .n_attrs = 1,
         .n_inplace = 1},
        {.label = "softcap_dx",
         .kind = OP_SOFTCAP_DX,
         .in = {"cTF", "cTF"},
         .out = {"cTF"},
         .attr = {{ATTR_CAP, true, 30}},
         .n_attrs = 1,
         .n_inplace = 1},
        {.label = "cast", .kind = OP_CAST, .in = {"cTH"}, .out = {"hTH"}},
        {.label = "cast_f32", .kind = OP_CAST, .in = {"cTH"}, .out = {"fTH"}},
        {.label = "rope",
         .kind = OP_ROPE,
         .in = {"cTAD", "iT below-T", "fTP2"},
         .out = {"cTAD"},
         .n_inplace = 1},
        {.label = "rope_inverse",
         .kind = OP_ROPE,
         .in = {"cTAD", "iT below-T", "fTP2"},
         .out = {"cTAD"},
         .attr = {{ATTR_INVERSE, false, 1}},
         .n_attrs = 1},
        {.label = "rmsnorm",
         .kind = OP_RMSNORM,
         .in = {"cTH offset", "fH"},
         .out = {"cTH", "fT"},
         .attr = {{ATTR_EPS, true, 1e-5}},
         .n_attrs = 1,
         .reduce = 'H'},
        {.label = "rmsnorm_heads",
         .kind = OP_RMSNORM,
         .in = {"cTAD", "fD"},
         .out = {"cTAD", "fTA"},
         .attr = {{ATTR_EPS, true, 1e-6}, {ATTR_PLUS_ONE, false, 1}},
         .n_attrs = 2,
         .reduce = 'D'},
        {.label = "rmsnorm_dx",
         .kind = OP_RMSNORM_DX,
         .in = {"cTH", "cTH", "fH", "fT positive"},
         .out = {"cTH"},
         .reduce = 'H'},
        {.label = "rmsnorm_dx_acc",
         .kind = OP_RMSNORM_DX,
         .in = {"cTAD", "cTAD", "fD", "fTA positive", "cTAD"},
         .out = {"cTAD"},
         .attr = {{ATTR_PLUS_ONE, false, 1}},
         .n_attrs = 1,
         .reduce = 'D',
         .inplace = 4,
         .n_inplace = 1},
        {.label = "rmsnorm_dw",
         .kind = OP_RMSNORM_DW,
         .in = {"cTH", "cTH", "fT positive", "fH"},
         .out = {"fH"},
         .reduce = 'T',
         .inplace = 3,
         .n_inplace = 1},
        {.label = "rmsnorm_dw_heads",
         .kind = OP_RMSNORM_DW,
         .in = {"cTAD", "cTAD", "fTA positive", "fD"},
         .out = {"fD"},
         .reduce = 'T'},
        {.label = "layernorm",
         .kind = OP_LAYERNORM,
         .in = {"cTH offset", "fH", "fH"},
         .out = {"cTH", "fT", "fT"},
         .attr = {{ATTR_EPS, true, 1e-2}},
         .n_attrs = 1,
         .reduce = 'H'},
        {.label = "layernorm_dx",
         .kind = OP_LAYERNORM_DX,
         .in = {"cTH", "cTH", "fH", "fT", "fT positive"},
         .out = {"cTH"},
         .reduce = 'H'},
        {.label = "layernorm_dx_acc",
         .kind = OP_LAYERNORM_DX,
         .in = {"cTH", "cTH", "fH", "fT", "fT positive", "cTH"},
         .out = {"cTH"},
         .reduce = 'H',
         .inplace = 5,
         .n_inplace = 1},
        {.label = "layernorm_dw",
         .kind = OP_LAYERNORM_DW,
         .in = {"cTH", "cTH", "fT", "fT positive", "fH", "fH"},
         .out = {"fH", "fH"},
         .reduce = 'T',
         .inplace = 4,
         .n_inplace = 2},
        {.label = "embed",
         .kind = OP_EMBED,
         .in = {"cVH", "iT below-V"},
         .out = {"cTH"},
         .attr = {{ATTR_SCALE, true, 1.7}},
         .n_attrs = 1},
        {.label = "embed_begin",
         .kind = OP_EMBED,
         .in = {"cNH", "iT below-V"},
         .out = {"cTH"},
         .attr = {{ATTR_BEGIN, false, 1}},
         .n_attrs = 1,
         .zero_ok = true},
        {.label = "embed_dw_begin",
         .kind = OP_EMBED_DW,
         .in = {"cTH", "iT below-V", "fNH"},
         .out = {"fNH"},
         .attr = {{ATTR_BEGIN, false, 3}},
         .n_attrs = 1,
         .reduce = 'T',
         .inplace = 2,
         .n_inplace = 1},
        {.label = "embed_dw",
         .kind = OP_EMBED_DW,
         .in = {"cTH", "iT below-V", "fVH"},
         .out = {"fVH"},
         .attr = {{ATTR_SCALE, true, 1.7}},
         .n_attrs = 1,
         .reduce = 'T',
         .inplace = 2,
         .n_inplace = 1},
        {.label = "linear_db",
         .kind = OP_LINEAR_DB,
         .in = {"cTN", "fN"},
         .out = {"fN"},
         .reduce = 'T',
         .inplace = 1,
         .n_inplace = 1},
        {.label = "xent",
         .kind = OP_XENT,
         .in = {"fTV wide", "iT label"},
         .out = {"fT", "fT"},
         .reduce = 'V'},
        {.label = "xent_stats",
         .kind = OP_XENT_STATS,
         .in = {"fTN wide", "iT label"},
         .out = {"f1T3"},
         .attr = {{ATTR_BEGIN, false, 5}},
         .n_attrs = 1,
         .reduce = 'N'},
        {.label = "xent_dx_begin",
         .kind = OP_XENT_DX,
         .in = {"fTN", "fT lse", "iT label", "f1"},
         .out = {"fTN"},
         .attr = {{ATTR_BEGIN, false, 2}},
         .n_attrs = 1,
         .n_inplace = 1,
         .zero_ok = true},
        {.label = "xent_dx",
         .kind = OP_XENT_DX,
         .in = {"fTV", "fT lse", "iT label", "f1"},
         .out = {"fTV"},
         .n_inplace = 1},
        {.label = "xent_dx_bf16",
         .kind = OP_XENT_DX,
         .in = {"fTV", "fT lse", "iT label", "f1"},
         .out = {"hTV"}},
        {.label = "sum",
         .kind = OP_SUM,
         .in = {"fT wide", "d1"},
         .out = {"d1"},
         .inplace = 1,
         .n_inplace = 1,
         .exact = true},
        {.label = "norm_sq",
         .kind = OP_NORM_SQ,
         .in = {"fTH"},
         .out = {"dB"},
         .flat = true,
         .exact = true},
        {.label = "adamw",
         .kind = OP_ADAMW,
         .in = {"fTH", "fTH", "fTH positive", "fTH", "f1", "fU hyper"},
         .out = {"fTH", "fTH", "fTH"},
         .attr = {{ATTR_DECAY, false, 1}},
         .n_attrs = 1,
         .inplace = 0,
         .n_inplace = 3,
         .flat = true,
         .exact = true},
        {.label = "adamw_copy",
         .kind = OP_ADAMW,
         .in = {"fTH", "fTH", "fTH positive", "fTH", "f1", "fU hyper"},
         .out = {"fTH", "fTH", "fTH", "cTH"},
         .inplace = 0,
         .n_inplace = 3,
         .flat = true,
         .exact = true},
        {.label = "stats",
         .kind = OP_STATS,
         .in = {"cTH wide"},
         .out = {"d4"},
         .flat = true,
         .exact = true},
        {.label = "adamw_stats",
         .kind = OP_ADAMW_STATS,
         .in = {"fTH", "fTH positive", "fU hyper"},
         .out = {"d4"},
         .flat = true,
         .exact = true},
        {.label = "zero", .kind = OP_ZERO, .out = {"cTF"}, .exact = true},
};

static const struct op_dims shapes[] = {
        {.T = 1, .S = 1, .H = 1, .N = 1, .A = 1, .D = 2, .F = 1, .V = 2},
        {.T = 3, .S = 3, .H = 17, .N = 3, .A = 2, .D = 6, .F = 16, .V = 61},
        {.T = 17, .S = 17, .H = 255, .N = 65, .A = 3, .D = 34, .F = 31, .V = 61},
        {.T = 70, .S = 35, .H = 64, .N = 129, .A = 4, .D = 64, .F = 100, .V = 512},
        {.T = 200, .S = 50, .H = 257, .N = 48, .A = 2, .D = 16, .F = 47, .V = 50},
        {.T = 5, .S = 5, .H = 2048, .N = 1000, .A = 5, .D = 128, .F = 1500, .V = 9},
        {.T = 2, .S = 2, .H = 3, .N = 2, .A = 1, .D = 4, .F = 2, .V = 50257},
};

#define N_POOLS 3

struct fixture {
    struct pool *pool[N_POOLS]; /* of 1, 2, 3 threads */
    uint32_t isa;
};

static int group_setup(void **state)
{
    static struct fixture f;
    struct diag diag = {0};
    for (int i = 0; i < N_POOLS; i++)
        if (pool_create(i + 1, &f.pool[i], &diag) != ST_OK)
            return -1;
    f.isa = cpu_isa_detect();
    *state = &f;
    return 0;
}

static int group_teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < N_POOLS; i++)
        pool_destroy(f->pool[i]);
    return 0;
}

static const struct kernel_row *reference_row(enum op_kind kind)
{
    bool is_reference;
    const struct kernel_row *row;
    for (size_t i = 0; (row = cpu_table_at(i, &is_reference)); i++)
        if (is_reference && row->kind == kind)
            return row;
    fail_msg("no reference row for %s", op_desc(kind)->name);
    return NULL;
}

/* What one spec has shown over all shapes. */
struct tally {
    int n_cases;
    double worst;
    char worst_where[128];
};

static void describe(const struct op_case *c, const struct kernel_row *row, char *text,
                     size_t size)
{
    snprintf(text, size, "%s by %s, %s, T %lld H %lld V %lld, pitch %lld",
             c->spec->label, row->name, dtype_name(c->dtype), (long long)c->dims.T,
             (long long)c->dims.H, (long long)c->dims.V, (long long)c->pitch);
}

static void check_output(const struct op_case *c, const struct kernel_row *row,
                         const struct op_result *got, const struct op_result *want,
                         int i, struct tally *tally)
{
    /* A single label of -1 has the loss 0; zero fills with zeros. */
    bool zero_ok = c->spec->kind == OP_ZERO || c->spec->zero_ok;
    struct comparison r = compare_views(&got->out[i].view, &want->out[i].view,
                                        op_case_tol(c, i), zero_ok);
    char where[128], line[256];
    describe(c, row, where, sizeof(where));
    if (r.verdict == VERDICT_FAIL) {
        comparison_print(&r, line, sizeof(line));
        fail_msg("%s, output %d: %s", where, i, line);
    }
    if (r.worst_ratio > tally->worst) {
        tally->worst = r.worst_ratio;
        snprintf(tally->worst_where, sizeof(tally->worst_where), "%s", where);
    }
}

/* One row on one case: canaries, threads, in place, values. */
static void check_row(const struct fixture *f, const struct op_case *c,
                      const struct kernel_row *row, const struct op_result *want,
                      struct tally *tally)
{
    char where[128];
    describe(c, row, where, sizeof(where));
    struct op_result first = op_case_run(c, row, f->pool[0], false, false);
    if (!first.intact)
        fail_msg("%s wrote outside its output", where);
    for (int i = 0; i < c->n_out; i++)
        check_output(c, row, &first, want, i, tally);
    for (int p = 1; p < N_POOLS; p++) {
        struct op_result other = op_case_run(c, row, f->pool[p], false, false);
        if (!other.intact || !op_results_equal_bits(c, &first, &other))
            fail_msg("%s: %d threads give other bits", where, p + 1);
        op_result_release(c, &other);
    }
    if (c->spec->n_inplace &&
        c->in[c->spec->inplace].view.dtype == first.out[0].view.dtype) {
        struct op_result other = op_case_run(c, row, f->pool[1], false, true);
        if (!other.intact || !op_results_equal_bits(c, &first, &other))
            fail_msg("%s: in place gives other bits", where);
        op_result_release(c, &other);
    }
    op_result_release(c, &first);
    tally->n_cases++;
}

static bool row_is_usable(const struct fixture *f, const struct kernel_row *row,
                          const struct op_case *c)
{
    struct launch l = op_case_describe(c);
    return row->kind == c->spec->kind && !(row->isa & ~f->isa) &&
           (!row->accepts || row->accepts(&l));
}

static void check_case(const struct fixture *f, const struct op_case *c,
                       struct tally *tally)
{
    const struct kernel_row *reference = reference_row(c->spec->kind), *row;
    struct op_result want =
            op_case_run(c, reference, f->pool[0], !c->spec->exact, false);
    assert_true(want.intact);
    int n_tuned = 0;
    bool is_reference;
    for (size_t i = 0; (row = cpu_table_at(i, &is_reference)); i++) {
        if (!row_is_usable(f, row, c))
            continue;
        check_row(f, c, row, &want, tally);
        n_tuned += !is_reference;
    }
    if (n_tuned == 0)
        fail_msg("%s has no tuned row for %s", c->spec->label, dtype_name(c->dtype));
    op_result_release(c, &want);
}

static void rows_match_reference(void **state)
{
    const struct fixture *f = *state;
    for (size_t s = 0; s < ARRAY_LEN(specs); s++) {
        struct tally tally = {0};
        for (size_t i = 0; i < ARRAY_LEN(shapes) * 4; i++) {
            enum dtype t = i & 1 ? DT_BF16 : DT_F32;
            struct op_case c =
                    op_case_make(&specs[s], &shapes[i / 4], t, i & 2 ? 5 : 0);
            check_case(f, &c, &tally);
            op_case_release(&c);
        }
        print_message("%-18s %3d runs, worst %.3f of the limit (%s)\n", specs[s].label,
                      tally.n_cases, tally.worst, tally.worst_where);
    }
}

/* One source for AVX-512 and AVX2: the same bits. */
static void wide_and_narrow_registers_agree(void **state)
{
    const struct fixture *f = *state;
    if (!(f->isa & ISA_AVX512)) {
        print_message("no AVX-512 here: nothing to compare with AVX2\n");
        skip();
    }
    const struct kernel_row *a = tuned_avx512_table.rows, *b = tuned_avx2_table.rows;
    assert_int_equal(tuned_avx512_table.n_rows, tuned_avx2_table.n_rows);
    for (size_t s = 0; s < ARRAY_LEN(specs) * ARRAY_LEN(shapes); s++) {
        const struct op_spec *spec = &specs[s / ARRAY_LEN(shapes)];
        const struct op_dims *dims = &shapes[s % ARRAY_LEN(shapes)];
        struct op_case c = op_case_make(spec, dims, DT_BF16, 3);
        for (size_t r = 0; r < tuned_avx512_table.n_rows; r++) {
            if (!row_is_usable(f, &a[r], &c))
                continue;
            struct op_result x = op_case_run(&c, &a[r], f->pool[1], false, false);
            struct op_result y = op_case_run(&c, &b[r], f->pool[2], false, false);
            if (!op_results_equal_bits(&c, &x, &y))
                fail_msg("%s: %s and %s differ", spec->label, a[r].name, b[r].name);
            op_result_release(&c, &x);
            op_result_release(&c, &y);
        }
        op_case_release(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(rows_match_reference),
            cmocka_unit_test(wide_and_narrow_registers_agree),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
