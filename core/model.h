/* The parameter table of a model: every parameter by logical name and global shape.
 *
 * Initialisation, weight decay, gradient reduction and norm, optimizer sharding,
 * checkpoints, memory formulas and foreign names all come from this one table.
 */
#ifndef CORE_MODEL_H
#define CORE_MODEL_H

#include "core/config.h"

enum param_kind {
    PARAM_MATRIX,
    PARAM_EMBEDDING,
    PARAM_NORM,
    PARAM_BIAS,
    PARAM_KIND_COUNT
};

enum param_init {
    INIT_NORMAL, /* N(0, init_std) */
    INIT_ZERO,
    INIT_ONE,
};

/* Which ranks hold copies of a parameter: the mesh dimensions over which its gradient is
 * summed. Dense parameters: context and data; experts (later): expert-data. */
enum replica_group {
    REPLICA_DENSE,
    REPLICA_EXPERT,
};

/* What a parameter is to its layer; with the layer it identifies the row. */
enum param_role {
    ROLE_EMBED,
    ROLE_POS_EMBED,
    ROLE_ATTN_NORM,
    ROLE_ATTN_NORM_BIAS,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_O,
    ROLE_O_BIAS,
    ROLE_ATTN_POST_NORM,
    ROLE_ATTN_POST_NORM_BIAS,
    ROLE_FFN_NORM,
    ROLE_FFN_NORM_BIAS,
    ROLE_GATE,
    ROLE_UP,
    ROLE_GATE_BIAS,
    ROLE_UP_BIAS,
    ROLE_DOWN,
    ROLE_DOWN_BIAS,
    ROLE_FFN_POST_NORM,
    ROLE_FFN_POST_NORM_BIAS,
    ROLE_FINAL_NORM,
    ROLE_FINAL_NORM_BIAS,
    ROLE_HEAD,
    ROLE_COUNT
};

struct param {
    const char *name; /* logical: "layers.3.attn.q.weight" */
    enum param_role role;
    int32_t layer; /* -1: none */
    int ndim;
    int64_t dim[2];
    enum param_kind kind;
    enum param_init init;
    double init_std;
    int8_t parallel_axis; /* the axis tensor parallelism splits; -1: replicated */
    int8_t expert_axis;   /* the axis expert parallelism splits; -1: none */
    enum replica_group replica;
    /* Rows with the same fuse number lie back to back in one storage, so that one product
     * serves them (q, k, v; gate and up). Each row has its own number otherwise. */
    uint32_t fuse;
};

struct model {
    struct config_model config;
    struct param *params; /* in table order */
    uint32_t n_params;
    struct arena arena; /* owns names and rows */
};

/* Builds the table of a resolved description. */
void model_create(const struct config_model *config, struct model *out);
void model_free(struct model *m);

/* The row with this role and layer, or NULL. */
const struct param *model_param(const struct model *m, enum param_role role,
                                int32_t layer);

int64_t param_elems(const struct param *p);

/* All parameters; errors: ST_CONFIG when the count overflows 64 bits. */
MUST_CHECK enum status model_count_params(const struct model *m, int64_t *out,
                                          struct diag *diag);

/* Whether weight decay applies to a row under these settings. */
bool param_decays(const struct param *p, const struct config_optimizer *o);

/* Elements first..first+n-1 of a parameter's initial value: a function of the seed, the
 * logical name and the element alone. out: f32[n]. */
void param_init_values(const struct param *p, uint64_t seed, int64_t first, int64_t n,
                       float *out);

#endif
