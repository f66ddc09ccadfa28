#include "kernels/cpu/gemm.h"

/* A view as rows of a pitch: all axes but the first together. */
static int64_t view_width(const struct view *v)
{
    int64_t n = 1;
    for (int i = 1; i < v->ndim; i++)
        n *= v->dim[i];
    return n;
}

static struct gemm_operand operand(const struct view *v, bool k_contiguous)
{
    return (struct gemm_operand){v->data, v->ld, v->dtype, k_contiguous};
}

/* linear: y[T,N] = x[T,K] w[N,K]^T + bias. */
static struct gemm_args args_linear(const struct launch *l)
{
    struct gemm_args g = {.m = l->in[0].dim[0], .n = l->in[1].dim[0]};
    g.k = view_width(&l->in[0]);
    g.a = operand(&l->in[0], true);
    g.b = operand(&l->in[1], true);
    if (l->op->n_in > 2)
        g.bias = l->in[2].data;
    return g;
}

/* linear_dx: dx[T,K] = dy[T,N] w[N,K] + acc; the inner dimension is N. */
static struct gemm_args args_linear_dx(const struct launch *l)
{
    struct gemm_args g = {.m = l->in[0].dim[0], .n = view_width(&l->in[1])};
    g.k = l->in[1].dim[0];
    g.a = operand(&l->in[0], true);
    g.b = operand(&l->in[1], false);
    if (l->op->n_in > 2) {
        g.addend = l->in[2].data;
        g.ld_addend = l->in[2].ld;
        g.addend_dtype = l->in[2].dtype;
    }
    return g;
}

/* linear_dw: g[N,K] += dy[T,N]^T x[T,K]; the inner dimension is T. */
static struct gemm_args args_linear_dw(const struct launch *l)
{
    struct gemm_args g = {.m = view_width(&l->in[0]), .n = view_width(&l->in[1])};
    g.k = l->in[0].dim[0];
    g.a = operand(&l->in[0], false);
    g.b = operand(&l->in[1], false);
    g.addend = l->in[2].data;
    g.ld_addend = l->in[2].ld;
    g.addend_dtype = l->in[2].dtype;
    return g;
}

typedef struct gemm_args (*args_fn)(const struct launch *l);

static struct gemm_args launch_args(const struct launch *l, const struct gemm_isa *isa)
{
    static const args_fn by_kind[OP_KIND_COUNT] = {
            [OP_LINEAR] = args_linear,
            [OP_LINEAR_DX] = args_linear_dx,
            [OP_LINEAR_DW] = args_linear_dw,
    };
    struct gemm_args g = by_kind[l->op->kind](l);
    g.isa = isa;
    g.out = l->out[0].data;
    g.ld_out = l->out[0].ld;
    g.out_dtype = l->out[0].dtype;
    g.scratch = l->scratch;
    return g;
}

static bool takes_dtype(enum dtype t)
{
    return t == DT_F32 || t == DT_BF16;
}

/* f32 and bf16 in any mix; the bias is f32. */
static bool accepts_any(const struct launch *l)
{
    bool is_linear = l->op->kind == OP_LINEAR;
    for (int i = 0; i < l->op->n_in; i++)
        if (!takes_dtype(l->in[i].dtype))
            return false;
    if (is_linear && l->op->n_in > 2 && l->in[2].dtype != DT_F32)
        return false;
    return takes_dtype(l->out[0].dtype);
}

/* Intel's vector units do the bf16 dot at half the rate of f32 multiply-adds or less (87
 * against 177 GFLOP/s per core measured), so widening to f32 is the faster way there; on
 * AMD's the dot has twice the rate. A fixed rule, since a timing could fall differently
 * from run to run. */
static bool bf16_dot_is_fast(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

static bool accepts_bf16(const struct launch *l)
{
    return accepts_any(l) && l->in[0].dtype == DT_BF16 && l->in[1].dtype == DT_BF16;
}

static bool accepts_bf16_dot(const struct launch *l)
{
    return accepts_bf16(l) && bf16_dot_is_fast();
}

#define GEMM_ISA_DEFINE(name)                                                          \
    static int64_t scratch_##name(const struct launch *l, int n_threads)               \
    {                                                                                  \
        struct gemm_args g = launch_args(l, &gemm_isa_##name);                         \
        return gemm_scratch_bytes(&g, n_threads);                                      \
    }                                                                                  \
    static void run_##name(const struct kernel_call *c)                                \
    {                                                                                  \
        struct gemm_args g = launch_args(c->l, &gemm_isa_##name);                      \
        gemm_run(&g, c->pool);                                                         \
    }

GEMM_ISA_DEFINE(portable)
#if defined(__x86_64__)
GEMM_ISA_DEFINE(avx2)
GEMM_ISA_DEFINE(avx512)
GEMM_ISA_DEFINE(avx512bf16)
GEMM_ISA_DEFINE(amx)
#endif

#define GEMM_ROWS(isa_bits, accepts, name)                                             \
    {OP_LINEAR, "linear_" #name, isa_bits, accepts, scratch_##name, run_##name},       \
            {OP_LINEAR_DX, "linear_dx_" #name, isa_bits,                               \
             accepts,      scratch_##name,     run_##name},                            \
    {                                                                                  \
        OP_LINEAR_DW, "linear_dw_" #name, isa_bits, accepts, scratch_##name,           \
                run_##name                                                             \
    }

/* In order of preference. */
static const struct kernel_row rows[] = {
#if defined(__x86_64__)
        GEMM_ROWS(ISA_AVX512 | ISA_AVX512_BF16 | ISA_AMX_BF16, accepts_bf16, amx),
        GEMM_ROWS(ISA_AVX512 | ISA_AVX512_BF16, accepts_bf16_dot, avx512bf16),
        GEMM_ROWS(ISA_AVX512, accepts_any, avx512),
        GEMM_ROWS(ISA_AVX2, accepts_any, avx2),
#endif
        GEMM_ROWS(0, accepts_any, portable),
};

const struct kernel_table kernels_gemm = {rows, ARRAY_LEN(rows)};
