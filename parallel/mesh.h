/* The mesh of ranks: which rank stands where, and which ranks form a group.
 *
 * A rank has a place in tensor (t), context (c), data (n) and pipeline (p) order, and the
 * world has t*c*n*p ranks. Expert-tensor (x), expert (e) and expert-data (y) places fold
 * over the t*c*n ranks of one stage, x*e*y of them: the expert degrees make the world no
 * larger. All groups list their members in logical order, tensor fastest, then context,
 * data, pipeline, whatever physical order the ranks have: sums in group order are the same
 * under every placement.
 */
#ifndef PARALLEL_MESH_H
#define PARALLEL_MESH_H

#include "core/program.h"

/* Expert-data: what expert and expert-tensor places leave of a stage. It is a dimension
 * of ranks alone; values are never laid out over it. */
#define MESH_EDP    MESH_DIMS
#define MESH_PLACES (MESH_DIMS + 1)

/* Dimensions that make the world. */
#define MESH_DENSE_DIMS 4

/* A degree of data parallelism that takes what the other dimensions leave. */
#define MESH_REST 0

/* Sets of dimensions. A set holds dense dimensions (tensor, context, data, pipeline) or
 * expert ones (expert-tensor, expert, expert-data, pipeline), not both. */
#define MESH_BIT(dim) (1u << (dim))
#define MESH_TENSOR   MESH_BIT(MESH_TP)
#define MESH_CONTEXT  MESH_BIT(MESH_CP)
#define MESH_DATA     MESH_BIT(MESH_DP)
#define MESH_PIPELINE MESH_BIT(MESH_PP)
#define MESH_REPLICA  (MESH_CONTEXT | MESH_DATA) /* ranks that sum dense gradients */
#define MESH_WORLD    (MESH_TENSOR | MESH_CONTEXT | MESH_DATA | MESH_PIPELINE)

#define MESH_RANKS_MAX (1 << 20)

struct mesh {
    int world;
    int degree[MESH_PLACES];
    enum mesh_dim order[MESH_DENSE_DIMS]; /* of the ranks, fastest first */
};

/* A group of ranks that one rank belongs to. */
struct mesh_group {
    int n;
    int place;    /* of this rank among the members */
    int index;    /* of the group among all groups of its kind */
    int *members; /* [n] world ranks in logical order; of the caller's arena */
    char name[64];
};

/* Makes the mesh. in: degree[MESH_DIMS], data may be MESH_REST; world: ranks there are;
 * order: of the ranks, fastest first, or NULL for tensor, context, data, pipeline. errors:
 * ST_CONFIG for a degree below 1, degrees that do not make the world, and expert degrees
 * that do not divide a stage; the hint names the nearest degrees that work. */
MUST_CHECK enum status mesh_create(struct mesh *m, const int64_t degree[MESH_DIMS],
                                   int64_t world,
                                   const enum mesh_dim order[MESH_DENSE_DIMS],
                                   struct diag *diag);

/* Reads an order, fastest first: "tp,cp,dp,pp". errors: ST_CONFIG when a name is unknown,
 * missing or there twice. */
MUST_CHECK enum status mesh_parse_order(const char *text,
                                        enum mesh_dim out[MESH_DENSE_DIMS],
                                        struct diag *diag);

/* Whether a tensor degree can split attention: it divides the query heads, and divides
 * the key-value heads or is a multiple of them. errors: ST_CONFIG, with the nearest degree
 * that works. */
MUST_CHECK enum status mesh_check_heads(int64_t tp, int64_t heads, int64_t kv_heads,
                                        struct diag *diag);

/* The option's name of a dimension: "tp"; and its word in messages: "tensor". dim may be
 * MESH_EDP. */
const char *mesh_dim_key(int dim);
const char *mesh_dim_word(int dim);

/* Where a rank stands in every dimension, expert ones included. */
void mesh_place(const struct mesh *m, int rank, int coord[MESH_PLACES]);

/* The rank at a place; only the four dense coordinates are read. */
int mesh_rank(const struct mesh *m, const int coord[MESH_PLACES]);

/* The rank at expert coordinates; expert-tensor, expert, expert-data and pipeline are
 * read. */
int mesh_rank_expert(const struct mesh *m, const int coord[MESH_PLACES]);

/* The group of `rank` over a set of dimensions: the ranks that differ from it in these
 * alone. ownership: the members lie in the arena. */
void mesh_group(const struct mesh *m, unsigned dims, int rank, struct arena *a,
                struct mesh_group *out);

/* The members of rank's tensor group that hold the same key-value heads; one where the
 * tensor degree is at most kv_heads. in: degrees that mesh_check_heads accepts. */
void mesh_group_kv(const struct mesh *m, int64_t kv_heads, int rank, struct arena *a,
                   struct mesh_group *out);

/* The first and the last stage of rank's pipeline, which both hold a tied embedding: two
 * members, or one where there is one stage. n is 0 for ranks of other stages. */
void mesh_group_ends(const struct mesh *m, int rank, struct arena *a,
                     struct mesh_group *out);

#endif
