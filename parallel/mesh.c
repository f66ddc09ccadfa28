#include "parallel/mesh.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/str.h"

static const struct {
    const char *key;
    const char *word;
} dim_names[MESH_PLACES] = {
        [MESH_TP] = {"tp", "tensor"},        [MESH_CP] = {"cp", "context"},
        [MESH_DP] = {"dp", "data"},          [MESH_PP] = {"pp", "pipeline"},
        [MESH_EP] = {"ep", "expert"},        [MESH_ETP] = {"etp", "expert-tensor"},
        [MESH_EDP] = {"edp", "expert-data"},
};

/* Logical order, fastest first. */
static const int dense_dims[MESH_DENSE_DIMS] = {MESH_TP, MESH_CP, MESH_DP, MESH_PP};
static const int expert_dims[MESH_DENSE_DIMS] = {MESH_ETP, MESH_EP, MESH_EDP, MESH_PP};

const char *mesh_dim_key(int dim)
{
    ASSERT(dim >= 0 && dim < MESH_PLACES);
    return dim_names[dim].key;
}

const char *mesh_dim_word(int dim)
{
    ASSERT(dim >= 0 && dim < MESH_PLACES);
    return dim_names[dim].word;
}

/* -------------------------------------------------------------------- what is legal */

/* No number up to MESH_RANKS_MAX has more divisors. */
#define DIVISORS_MAX 240

static int list_divisors(int64_t n, int64_t out[DIVISORS_MAX])
{
    int count = 0;
    for (int64_t d = 1; d <= n; d++)
        if (n % d == 0)
            out[count++] = d;
    return count;
}

static double ratio_distance(int64_t a, int64_t b)
{
    return fabs(log((double)a / (double)b));
}

/* The dense degrees nearest to `got` that make the world: changes count by their ratio,
 * and a change of the data degree counts least. */
static void nearest_degrees(const int64_t got[MESH_DIMS], int64_t world,
                            int64_t best[MESH_DENSE_DIMS])
{
    int64_t div[DIVISORS_MAX];
    int n_div = list_divisors(world, div);
    double least = INFINITY;
    for (int k = 0; k < n_div * n_div * n_div; k++) {
        int64_t t = div[k % n_div], c = div[k / n_div % n_div];
        int64_t p = div[k / n_div / n_div];
        if (world % t || world / t % c || world / t / c % p)
            continue;
        int64_t n = world / t / c / p;
        double far = ratio_distance(t, got[MESH_TP]) + ratio_distance(c, got[MESH_CP]) +
                     ratio_distance(p, got[MESH_PP]) +
                     ratio_distance(n, got[MESH_DP]) / 64;
        if (far >= least)
            continue;
        least = far;
        memcpy(best, (int64_t[]){t, c, n, p}, MESH_DENSE_DIMS * sizeof(*best));
    }
}

static enum status check_world(const int64_t degree[MESH_DIMS], int64_t world,
                               bool rest, struct diag *diag)
{
    double product = 1; /* exact as far as it matters, and never overflows */
    for (int i = 0; i < MESH_DENSE_DIMS; i++)
        product *= (double)degree[dense_dims[i]];
    if (product == (double)world)
        return ST_OK;
    if (rest)
        diag_set(diag, ST_CONFIG,
                 "the parallel degrees do not divide the ranks (parallel): got "
                 "tp %lld x cp %lld x pp %lld, wanted a divisor of %lld",
                 (long long)degree[MESH_TP], (long long)degree[MESH_CP],
                 (long long)degree[MESH_PP], (long long)world);
    else
        diag_set(diag, ST_CONFIG,
                 "the parallel degrees do not make the world (parallel): got "
                 "tp %lld x cp %lld x dp %lld x pp %lld = %.0f, wanted %lld ranks",
                 (long long)degree[MESH_TP], (long long)degree[MESH_CP],
                 (long long)degree[MESH_DP], (long long)degree[MESH_PP], product,
                 (long long)world);
    int64_t near[MESH_DENSE_DIMS] = {0};
    nearest_degrees(degree, world, near);
    diag_hint(
            diag,
            "nearest for %lld rank%s: tp %lld, cp %lld, dp %lld, pp %lld; as asked, it "
            "takes %s%.0f rank%s",
            (long long)world, world == 1 ? "" : "s", (long long)near[0],
            (long long)near[1], (long long)near[2], (long long)near[3],
            rest ? "a multiple of " : "", product, product == 1 ? "" : "s");
    return ST_CONFIG;
}

/* The divisor of n that is nearest to x by ratio. */
static int64_t nearest_divisor(int64_t n, int64_t x)
{
    int64_t div[DIVISORS_MAX], best = 1;
    int n_div = list_divisors(n, div);
    for (int i = 0; i < n_div; i++)
        if (ratio_distance(div[i], x) < ratio_distance(best, x))
            best = div[i];
    return best;
}

static enum status check_experts(const int64_t degree[MESH_DIMS], struct diag *diag)
{
    int64_t stage = degree[MESH_TP] * degree[MESH_CP] * degree[MESH_DP];
    int64_t x = degree[MESH_ETP], e = degree[MESH_EP], product;
    if (mul_i64(x, e, &product) && stage % product == 0)
        return ST_OK;
    diag_set(
            diag, ST_CONFIG,
            "the expert degrees do not divide the ranks of a stage (parallel): got "
            "etp %lld x ep %lld, wanted a divisor of tp %lld x cp %lld x dp %lld = %lld",
            (long long)x, (long long)e, (long long)degree[MESH_TP],
            (long long)degree[MESH_CP], (long long)degree[MESH_DP], (long long)stage);
    int64_t near_x = nearest_divisor(stage, x);
    diag_hint(diag, "nearest: etp %lld, ep %lld", (long long)near_x,
              (long long)nearest_divisor(stage / near_x, e));
    return ST_CONFIG;
}

static bool order_is_whole(const enum mesh_dim order[MESH_DENSE_DIMS])
{
    unsigned seen = 0;
    for (int i = 0; i < MESH_DENSE_DIMS; i++)
        seen |= MESH_BIT(order[i]);
    return seen == MESH_WORLD;
}

enum status mesh_create(struct mesh *m, const int64_t degree[MESH_DIMS], int64_t world,
                        const enum mesh_dim order[MESH_DENSE_DIMS], struct diag *diag)
{
    int64_t d[MESH_DIMS];
    bool rest = degree[MESH_DP] == MESH_REST;
    memcpy(d, degree, sizeof(d));
    if (world < 1 || world > MESH_RANKS_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "impossible number of ranks (parallel): got %lld, wanted 1 to %d",
                (long long)world, MESH_RANKS_MAX);
    for (int i = 0; i < MESH_DIMS; i++)
        if (d[i] < 1 && !(i == MESH_DP && rest))
            return diag_set(diag, ST_CONFIG,
                            "impossible %s degree (parallel.%s): got %lld, wanted at "
                            "least 1",
                            mesh_dim_word(i), mesh_dim_key(i), (long long)d[i]);
    if (rest) {
        int64_t others;
        bool fits = mul_i64(d[MESH_TP], d[MESH_CP], &others) &&
                    mul_i64(others, d[MESH_PP], &others);
        d[MESH_DP] = fits && world % others == 0 ? world / others : 1;
    }
    TRY(check_world(d, world, rest, diag));
    TRY(check_experts(d, diag));
    *m = (struct mesh){.world = (int)world};
    for (int i = 0; i < MESH_DIMS; i++)
        m->degree[i] = (int)d[i];
    m->degree[MESH_EDP] =
            (int)(d[MESH_TP] * d[MESH_CP] * d[MESH_DP] / (d[MESH_ETP] * d[MESH_EP]));
    for (int i = 0; i < MESH_DENSE_DIMS; i++)
        m->order[i] = order ? order[i] : (enum mesh_dim)dense_dims[i];
    ASSERT(order_is_whole(m->order));
    return ST_OK;
}

enum status mesh_parse_order(const char *text, enum mesh_dim out[MESH_DENSE_DIMS],
                             struct diag *diag)
{
    int n = 0;
    const char *at = text;
    bool good = true;
    while (good && n < MESH_DENSE_DIMS) {
        size_t len = strcspn(at, ",");
        int dim = 0;
        while (dim < MESH_DENSE_DIMS &&
               (strlen(mesh_dim_key(dense_dims[dim])) != len ||
                strncmp(mesh_dim_key(dense_dims[dim]), at, len) != 0))
            dim++;
        good = dim < MESH_DENSE_DIMS;
        if (good)
            out[n++] = (enum mesh_dim)dense_dims[dim];
        at += len;
        if (*at != ',')
            break;
        at++;
    }
    if (good && n == MESH_DENSE_DIMS && *at == 0 && at[-1] != ',' &&
        order_is_whole(out))
        return ST_OK;
    return diag_set(
            diag, ST_CONFIG,
            "not an order of ranks (parallel): got '%s', wanted each of tp, cp, "
            "dp and pp once, fastest first, as in 'tp,cp,dp,pp'",
            text);
}

static bool tp_splits_heads(int64_t tp, int64_t heads, int64_t kv_heads)
{
    return heads % tp == 0 && (kv_heads % tp == 0 || tp % kv_heads == 0);
}

enum status mesh_check_heads(int64_t tp, int64_t heads, int64_t kv_heads,
                             struct diag *diag)
{
    ASSERT(tp >= 1 && heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0);
    if (tp_splits_heads(tp, heads, kv_heads))
        return ST_OK;
    int64_t below = MIN(tp, heads), above = tp;
    while (!tp_splits_heads(below, heads, kv_heads))
        below--;
    while (above <= heads && !tp_splits_heads(above, heads, kv_heads))
        above++;
    diag_set(
            diag, ST_CONFIG,
            "attention cannot be split (parallel.tp): got %lld ranks for %lld query and "
            "%lld key-value heads, wanted a divisor of the query heads that divides the "
            "key-value heads or is a multiple of them",
            (long long)tp, (long long)heads, (long long)kv_heads);
    if (above <= heads)
        diag_hint(diag, "nearest: parallel.tp=%lld or parallel.tp=%lld",
                  (long long)below, (long long)above);
    else
        diag_hint(diag, "nearest: parallel.tp=%lld", (long long)below);
    return ST_CONFIG;
}

/* ------------------------------------------------------------------ places and ranks */

/* A number from digits, and back: dims[0] is the fastest. */
static int number_of(const struct mesh *m, const int dims[MESH_DENSE_DIMS], int n,
                     const int *coord)
{
    int number = 0;
    for (int i = n - 1; i >= 0; i--)
        number = number * m->degree[dims[i]] + coord[dims[i]];
    return number;
}

static void digits_of(const struct mesh *m, const int dims[MESH_DENSE_DIMS], int n,
                      int number, int *coord)
{
    for (int i = 0; i < n; i++) {
        coord[dims[i]] = number % m->degree[dims[i]];
        number /= m->degree[dims[i]];
    }
}

void mesh_place(const struct mesh *m, int rank, int coord[MESH_PLACES])
{
    ASSERT(rank >= 0 && rank < m->world);
    int left = rank;
    for (int i = 0; i < MESH_DENSE_DIMS; i++) {
        coord[m->order[i]] = left % m->degree[m->order[i]];
        left /= m->degree[m->order[i]];
    }
    /* Experts fold over the logical number in the stage, not over the rank, so that the
     * placement does not change who computes what. */
    digits_of(m, expert_dims, MESH_DENSE_DIMS - 1,
              number_of(m, dense_dims, MESH_DENSE_DIMS - 1, coord), coord);
}

int mesh_rank(const struct mesh *m, const int coord[MESH_PLACES])
{
    int rank = 0;
    for (int i = MESH_DENSE_DIMS - 1; i >= 0; i--) {
        int dim = m->order[i];
        ASSERT(coord[dim] >= 0 && coord[dim] < m->degree[dim]);
        rank = rank * m->degree[dim] + coord[dim];
    }
    return rank;
}

int mesh_rank_expert(const struct mesh *m, const int coord[MESH_PLACES])
{
    int at[MESH_PLACES] = {0};
    at[MESH_PP] = coord[MESH_PP];
    digits_of(m, dense_dims, MESH_DENSE_DIMS - 1,
              number_of(m, expert_dims, MESH_DENSE_DIMS - 1, coord), at);
    return mesh_rank(m, at);
}

/* ----------------------------------------------------------------------------- groups */

static void group_name(unsigned dims, int index, char *name, size_t n)
{
    if (dims == MESH_WORLD) {
        snprintf(name, n, "world group");
        return;
    }
    size_t at = 0;
    for (int dim = 0; dim < MESH_PLACES; dim++)
        if (dims & MESH_BIT(dim))
            at += (size_t)snprintf(name + at, n - at, "%s%s", at ? "-" : "",
                                   mesh_dim_word(dim));
    snprintf(name + at, n - at, "%sgroup %d", at ? " " : "", index);
}

void mesh_group(const struct mesh *m, unsigned dims, int rank, struct arena *a,
                struct mesh_group *out)
{
    unsigned expert = MESH_BIT(MESH_ETP) | MESH_BIT(MESH_EP) | MESH_BIT(MESH_EDP);
    bool is_expert = dims & expert;
    const int *all = is_expert ? expert_dims : dense_dims;
    int inside[MESH_DENSE_DIMS], outside[MESH_DENSE_DIMS], n_in = 0, n_out = 0;
    unsigned known = 0;
    for (int i = 0; i < MESH_DENSE_DIMS; i++) {
        known |= MESH_BIT(all[i]);
        if (dims & MESH_BIT(all[i]))
            inside[n_in++] = all[i];
        else
            outside[n_out++] = all[i];
    }
    ASSERT((dims & ~known) == 0);
    int coord[MESH_PLACES];
    mesh_place(m, rank, coord);
    *out = (struct mesh_group){.n = 1};
    for (int i = 0; i < n_in; i++)
        out->n *= m->degree[inside[i]];
    out->place = number_of(m, inside, n_in, coord);
    out->index = number_of(m, outside, n_out, coord);
    out->members = arena_array(a, int, out->n);
    for (int i = 0; i < out->n; i++) {
        digits_of(m, inside, n_in, i, coord);
        out->members[i] = is_expert ? mesh_rank_expert(m, coord) : mesh_rank(m, coord);
    }
    group_name(dims, out->index, out->name, sizeof(out->name));
}

void mesh_group_kv(const struct mesh *m, int64_t kv_heads, int rank, struct arena *a,
                   struct mesh_group *out)
{
    struct mesh_group tensor;
    mesh_group(m, MESH_TENSOR, rank, a, &tensor);
    int64_t tp = tensor.n;
    ASSERT(kv_heads >= 1 && (kv_heads % tp == 0 || tp % kv_heads == 0));
    int n = (int)(tp > kv_heads ? tp / kv_heads : 1);
    *out = (struct mesh_group){
            .n = n,
            .place = tensor.place % n,
            .index = tensor.index * (tensor.n / n) + tensor.place / n,
            .members = tensor.members + tensor.place / n * n,
    };
    snprintf(out->name, sizeof(out->name), "key-value group %d", out->index);
}

void mesh_group_ends(const struct mesh *m, int rank, struct arena *a,
                     struct mesh_group *out)
{
    struct mesh_group pipe;
    mesh_group(m, MESH_PIPELINE, rank, a, &pipe);
    *out = (struct mesh_group){.index = pipe.index};
    if (pipe.place != 0 && pipe.place != pipe.n - 1)
        return;
    out->n = pipe.n == 1 ? 1 : 2;
    out->place = pipe.place == 0 ? 0 : 1;
    out->members = arena_array(a, int, out->n);
    out->members[0] = pipe.members[0];
    out->members[out->n - 1] = pipe.members[pipe.n - 1];
    snprintf(out->name, sizeof(out->name), "tied-ends group %d", out->index);
}
