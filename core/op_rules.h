/* The rules that rows of core/ops.def name. Only core/op.c and the files that define
 * them include this. */
#ifndef CORE_OP_RULES_H
#define CORE_OP_RULES_H

#include "core/op.h"

/* clang-format off: one rule a line */
#define SHAPE_RULES(X)                                                                 \
    X(shape_rope_table)                                                                \
    X(shape_embed)                                                                     \
    X(shape_embed_dw)                                                                  \
    X(shape_same1)                                                                     \
    X(shape_same2)                                                                     \
    X(shape_linear)                                                                    \
    X(shape_linear_dx)                                                                 \
    X(shape_linear_dw)                                                                 \
    X(shape_linear_db)                                                                 \
    X(shape_rmsnorm)                                                                   \
    X(shape_norm_dx)                                                                   \
    X(shape_rmsnorm_dw)                                                                \
    X(shape_layernorm)                                                                 \
    X(shape_layernorm_dw)                                                              \
    X(shape_rope)                                                                      \
    X(shape_attention)                                                                 \
    X(shape_attention_dx)                                                              \
    X(shape_glu)                                                                       \
    X(shape_glu_dx)                                                                    \
    X(shape_xent)                                                                      \
    X(shape_xent_dx)                                                                   \
    X(shape_sum)                                                                       \
    X(shape_cast)                                                                      \
    X(shape_norm_sq)                                                                   \
    X(shape_clip)                                                                      \
    X(shape_adamw)                                                                     \
    X(shape_add_bias)                                                                  \
    X(shape_xent_stats)                                                                \
    X(shape_all_gather)                                                                \
    X(shape_reduce_scatter)                                                            \
    X(shape_all_reduce)                                                                \
    X(shape_send)                                                                      \
    X(shape_stats)                                                                     \
    X(shape_adamw_stats)
#define LAYOUT_RULES(X)                                                                \
    X(layout_norm_sq)                                                                  \
    X(layout_const)                                                                    \
    X(layout_embed)                                                                    \
    X(layout_wgrad)                                                                    \
    X(layout_linear_same)                                                              \
    X(layout_linear)                                                                   \
    X(layout_linear_dx)                                                                \
    X(layout_norm)                                                                     \
    X(layout_norm_dx)                                                                  \
    X(layout_tokenwise)                                                                \
    X(layout_attention)                                                                \
    X(layout_attention_dx)                                                             \
    X(layout_pointwise)                                                                \
    X(layout_xent)                                                                     \
    X(layout_add_bias)                                                                 \
    X(layout_xent_stats)                                                               \
    X(layout_all_gather)                                                               \
    X(layout_reduce_scatter)                                                           \
    X(layout_all_reduce)                                                               \
    X(layout_send)                                                                     \
    X(layout_xent_dx)
#define COST_RULES(X)                                                                  \
    X(cost_none)                                                                       \
    X(cost_pointwise)                                                                  \
    X(cost_tokens_reduce)                                                              \
    X(cost_linear)                                                                     \
    X(cost_linear_dx)                                                                  \
    X(cost_linear_dw)                                                                  \
    X(cost_norm)                                                                       \
    X(cost_comm)                                                                       \
    X(cost_attention)                                                                  \
    X(cost_attention_dx)                                                               \
    X(cost_stats)
#define GRAD_RULES(X)                                                                  \
    X(grad_embed)                                                                      \
    X(grad_add)                                                                        \
    X(grad_linear)                                                                     \
    X(grad_rmsnorm)                                                                    \
    X(grad_layernorm)                                                                  \
    X(grad_rope)                                                                       \
    X(grad_attention)                                                                  \
    X(grad_glu)                                                                        \
    X(grad_act)                                                                        \
    X(grad_softcap)                                                                    \
    X(grad_add_bias)                                                                   \
    X(grad_all_gather)                                                                 \
    X(grad_reduce_scatter)                                                             \
    X(grad_xent)
/* clang-format on */

#define X(name) const char *name(const struct op_ctx *c, struct op_shape *out);
SHAPE_RULES(X)
#undef X
#define X(name)                                                                        \
    const char *name(const struct op_ctx *c, const uint8_t *in, uint8_t *out);
LAYOUT_RULES(X)
#undef X
#define X(name) void name(const struct op_ctx *c, struct op_cost *cost);
COST_RULES(X)
#undef X
#define X(name) void name(struct diff *d, uint32_t op);
GRAD_RULES(X)
#undef X

#endif
