#include "kernels/cpu/attn.h"

#define DIM_MAX 256

int64_t attn_forward_scratch_elems(const struct attn_args *a)
{
    int64_t tile = ATTN_BLOCK * attn_pitch(a), group = a->n_heads / a->n_kv;
    int64_t padded = round_up_i64(a->seq, ATTN_BLOCK) * attn_pitch(a);
    return tile + 2 * padded + ATTN_BLOCK * ATTN_BLOCK +
           group * (2 * tile + 2 * ATTN_BLOCK);
}

int64_t attn_backward_scratch_elems(const struct attn_args *a)
{
    int64_t pitch = attn_pitch(a);
    return 4 * round_up_i64(a->seq, ATTN_BLOCK) * pitch + 5 * ATTN_BLOCK * pitch +
           2 * ATTN_BLOCK * ATTN_BLOCK + 2 * ATTN_BLOCK;
}

#define AMX_PANEL 32

static int64_t amx_head_bytes(const struct attn_args *a, int64_t rows,
                              size_t elem_bytes)
{
    return rows * round_up_i64(a->dim, AMX_PANEL) * (int64_t)elem_bytes;
}

int64_t attn_amx_state_bytes(const struct attn_args *a)
{
    return amx_head_bytes(a, ATTN_BLOCK, 2) + amx_head_bytes(a, ATTN_BLOCK, 4) +
           2 * ATTN_BLOCK * 4;
}

int64_t attn_amx_forward_bytes(const struct attn_args *a)
{
    int64_t padded = round_up_i64(a->seq, ATTN_BLOCK), group = a->n_heads / a->n_kv;
    return 2 * amx_head_bytes(a, padded, 2) + amx_head_bytes(a, ATTN_BLOCK, 4) +
           ATTN_BLOCK * ATTN_BLOCK * (2 * ATTN_TERMS + 4) +
           group * attn_amx_state_bytes(a);
}

int64_t attn_amx_backward_bytes(const struct attn_args *a)
{
    int64_t padded = round_up_i64(a->seq, ATTN_BLOCK);
    return 3 * amx_head_bytes(a, padded, 2) + 2 * amx_head_bytes(a, padded, 4) +
           4 * amx_head_bytes(a, ATTN_BLOCK, 2) + 2 * amx_head_bytes(a, ATTN_BLOCK, 4) +
           ATTN_BLOCK * ATTN_BLOCK * (3 * 2 * ATTN_TERMS + 2 * 4) + 2 * ATTN_BLOCK * 4;
}

static struct attn_view heads(const struct view *v)
{
    return (struct attn_view){v->data, v->ld, v->dtype};
}

static void args_attrs(const struct launch *l, const struct view *q,
                       const struct view *k, struct attn_args *a)
{
    int64_t tokens = q->dim[0];
    a->seq = op_attr_i(l->prog, l->op, ATTR_SEQ, tokens);
    a->n_seqs = tokens / a->seq;
    a->n_heads = q->dim[1];
    a->n_kv = k->dim[1];
    a->dim = q->dim[2];
    a->window = op_attr_i(l->prog, l->op, ATTR_WINDOW, 0);
    a->scale = (float)op_attr_f(l->prog, l->op, ATTR_SCALE, 1.0);
    a->cap = (float)op_attr_f(l->prog, l->op, ATTR_CAP, 0.0);
    a->q = heads(q);
    a->k = heads(k);
    a->scratch = l->scratch;
}

static struct attn_args args_forward(const struct launch *l)
{
    struct attn_args a = {0};
    args_attrs(l, &l->in[0], &l->in[1], &a);
    a.v = heads(&l->in[2]);
    a.doc_start = l->in[3].data;
    a.o = heads(&l->out[0]);
    a.lse = l->out[1].data;
    a.ld_lse = l->out[1].ld;
    return a;
}

static struct attn_args args_backward(const struct launch *l)
{
    struct attn_args a = {0};
    args_attrs(l, &l->in[1], &l->in[2], &a);
    a.d_o = heads(&l->in[0]);
    a.v = heads(&l->in[3]);
    a.o = heads(&l->in[4]);
    a.lse = l->in[5].data;
    a.ld_lse = l->in[5].ld;
    a.doc_start = l->in[6].data;
    a.dq = heads(&l->out[0]);
    a.dk = heads(&l->out[1]);
    a.dv = heads(&l->out[2]);
    return a;
}

static bool takes_dtype(const struct view *v)
{
    return v->dtype == DT_F32 || v->dtype == DT_BF16;
}

static bool accepts_forward(const struct launch *l)
{
    for (int i = 0; i < 3; i++)
        if (!takes_dtype(&l->in[i]) || l->in[i].ndim != 3)
            return false;
    return takes_dtype(&l->out[0]) && l->in[0].dim[2] <= DIM_MAX;
}

static bool accepts_backward(const struct launch *l)
{
    for (int i = 0; i < 5; i++)
        if (!takes_dtype(&l->in[i]) || l->in[i].ndim != 3)
            return false;
    for (int i = 0; i < 3; i++)
        if (!takes_dtype(&l->out[i]))
            return false;
    return l->in[5].dtype == DT_F32 && l->in[1].dim[2] <= DIM_MAX;
}

static int64_t scratch_forward(const struct launch *l, int n_threads)
{
    struct attn_args a = args_forward(l);
    return attn_forward_scratch_elems(&a) * (int64_t)sizeof(float) * n_threads;
}

static int64_t scratch_backward(const struct launch *l, int n_threads)
{
    struct attn_args a = args_backward(l);
    return attn_backward_scratch_elems(&a) * (int64_t)sizeof(float) * n_threads;
}

static bool all_bf16(const struct view *v, int n)
{
    for (int i = 0; i < n; i++)
        if (v[i].dtype != DT_BF16)
            return false;
    return true;
}

static bool accepts_amx_forward(const struct launch *l)
{
    return accepts_forward(l) && all_bf16(l->in, 3);
}

static bool accepts_amx_backward(const struct launch *l)
{
    return accepts_backward(l) && all_bf16(l->in, 4);
}

static int64_t scratch_amx_forward(const struct launch *l, int n_threads)
{
    struct attn_args a = args_forward(l);
    return attn_amx_forward_bytes(&a) * n_threads;
}

static int64_t scratch_amx_backward(const struct launch *l, int n_threads)
{
    struct attn_args a = args_backward(l);
    return attn_amx_backward_bytes(&a) * n_threads;
}

struct attn_job {
    struct attn_args args;
    attn_fn fn;
};

static void attn_thread(void *p, int thread, int n_threads)
{
    const struct attn_job *job = p;
    job->fn(&job->args, thread, n_threads);
}

#define ATTN_ISA_DEFINE(name)                                                          \
    static void forward_##name(const struct kernel_call *c)                            \
    {                                                                                  \
        struct attn_job job = {args_forward(c->l), attn_isa_##name.forward};           \
        pool_run(c->pool, attn_thread, &job);                                          \
    }                                                                                  \
    static void backward_##name(const struct kernel_call *c)                           \
    {                                                                                  \
        struct attn_job job = {args_backward(c->l), attn_isa_##name.backward};         \
        pool_run(c->pool, attn_thread, &job);                                          \
    }

ATTN_ISA_DEFINE(portable)
#if defined(__x86_64__)
ATTN_ISA_DEFINE(avx2)
ATTN_ISA_DEFINE(avx512)
ATTN_ISA_DEFINE(amx)
#endif

#define ATTN_ROWS(isa_bits, name)                                                      \
    {OP_ATTENTION,    "attention_" #name, isa_bits,                                    \
     accepts_forward, scratch_forward,    forward_##name},                             \
    {                                                                                  \
        OP_ATTENTION_DX, "attention_dx_" #name, isa_bits, accepts_backward,            \
                scratch_backward, backward_##name                                      \
    }

#define ISA_AMX (ISA_AVX512 | ISA_AVX512_BF16 | ISA_AMX_BF16)

/* In order of preference. */
static const struct kernel_row rows[] = {
#if defined(__x86_64__)
        {OP_ATTENTION, "attention_amx", ISA_AMX, accepts_amx_forward,
         scratch_amx_forward, forward_amx},
        {OP_ATTENTION_DX, "attention_dx_amx", ISA_AMX, accepts_amx_backward,
         scratch_amx_backward, backward_amx},
        ATTN_ROWS(ISA_AVX512, avx512),
        ATTN_ROWS(ISA_AVX2, avx2),
#endif
        ATTN_ROWS(0, portable),
};

const struct kernel_table kernels_attention = {rows, ARRAY_LEN(rows)};
