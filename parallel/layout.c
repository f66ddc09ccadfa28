#include "parallel/layout.h"

#include <inttypes.h>
#include <string.h>

#include "parallel/stages.h"

#define DEADLINE_S     60
#define NEAREST_FAR    (1 << 16) /* how far a nearest legal value is looked for */
#define FLOPS_PER_ELEM 6 /* of a product's weight, a token: 2 forward, 4 backward */

/* Where a key was given, for messages. */
static const char *where(struct config *c, const char *key)
{
    struct opt_store s = config_store(c);
    return opt_where(&s, key);
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* What divides every global batch of the run. */
static int64_t common_batch(const struct config *c)
{
    int64_t g = 0;
    for (int64_t i = 0; i < c->train.global_batch.n; i++)
        g = gcd(c->train.global_batch.items[i].global_batch, g);
    return g;
}

/* A rule about one degree, alone: so that the nearest legal value can be looked for. */
typedef bool (*degree_rule_fn)(const struct config *c, int64_t degree);

/* Sets the hint to the nearest degrees that a rule takes. */
static void hint_nearest(const struct config *c, const char *key, int64_t got,
                         degree_rule_fn rule, struct diag *diag)
{
    int64_t below = got - 1, above = got + 1;
    while (below >= 1 && !rule(c, below))
        below--;
    while (above <= got + NEAREST_FAR && !rule(c, above))
        above++;
    bool has_above = above <= got + NEAREST_FAR;
    if (below >= 1 && has_above)
        diag_hint(diag, "nearest that work: %s=%" PRId64 " or %" PRId64, key, below,
                  above);
    else if (below >= 1 || has_above)
        diag_hint(diag, "nearest that works: %s=%" PRId64, key,
                  below >= 1 ? below : above);
}

/* ------------------------------------------------------------------------- tensor */

/* Sequences of a micro-batch if they are given, else the most that there can be. */
static int64_t micro_batch_at_most(const struct config *c, int64_t dp)
{
    return c->train.micro_batch ? c->train.micro_batch : common_batch(c) / MAX(dp, 1);
}

static bool splits_tokens(const struct config *c, int64_t tp)
{
    int64_t m = micro_batch_at_most(c, c->parallel.dp);
    return m * c->data.seq_len % tp == 0;
}

static bool takes_tensor(const struct config *c, int64_t tp)
{
    const struct config_model *m = &c->model;
    struct diag unused = {0};
    return tp == 1 || (mesh_check_heads(tp, m->heads, m->kv_heads, &unused) == ST_OK &&
                       m->ffn % tp == 0 && m->vocab >= tp &&
                       m->qk_norm != QK_NORM_FULL && splits_tokens(c, tp));
}

static enum status tensor_error(struct config *c, const char *key, int64_t got,
                                const char *wanted, struct diag *diag)
{
    diag_set(diag, ST_CONFIG,
             "parallel.tp (%s) and %s (%s): got %" PRId64 " and %" PRId64
             ", wanted tp to divide %s",
             where(c, "parallel.tp"), key, where(c, key), c->parallel.tp, got, wanted);
    hint_nearest(c, "parallel.tp", c->parallel.tp, takes_tensor, diag);
    return ST_CONFIG;
}

static enum status check_tensor(struct config *c, struct diag *diag)
{
    const struct config_model *m = &c->model;
    int64_t tp = c->parallel.tp;
    if (takes_tensor(c, tp))
        return ST_OK;
    enum status st = mesh_check_heads(tp, m->heads, m->kv_heads, diag);
    if (st != ST_OK) {
        hint_nearest(c, "parallel.tp", tp, takes_tensor, diag);
        return st;
    }
    if (m->ffn % tp)
        return tensor_error(c, "model.ffn", m->ffn, "the feed-forward width", diag);
    if (m->qk_norm == QK_NORM_FULL) {
        diag_set(diag, ST_CONFIG,
                 "parallel.tp (%s) and model.qk_norm (%s): got %" PRId64
                 " and full, wanted tp 1: the norm needs a token's whole projection",
                 where(c, "parallel.tp"), where(c, "model.qk_norm"), tp);
        diag_hint(diag, "nearest that works: parallel.tp=1");
        return ST_CONFIG;
    }
    if (m->vocab < tp)
        return diag_set(diag, ST_CONFIG,
                        "parallel.tp (%s) and model.vocab (%s): got %" PRId64
                        " and %" PRId64 ", wanted a vocabulary of at least tp",
                        where(c, "parallel.tp"), where(c, "model.vocab"), tp, m->vocab);
    diag_set(diag, ST_CONFIG,
             "parallel.tp (%s), train.micro_batch (%s), data.seq_len (%s): got %" PRId64
             ", %" PRId64 " and %" PRId64
             ", wanted tp to divide the tokens of a micro-batch",
             where(c, "parallel.tp"), where(c, "train.micro_batch"),
             where(c, "data.seq_len"), tp, micro_batch_at_most(c, c->parallel.dp),
             c->data.seq_len);
    hint_nearest(c, "parallel.tp", tp, takes_tensor, diag);
    return ST_CONFIG;
}

/* --------------------------------------------------------------------------- data */

bool layout_takes_micro_batch(const struct config *c, int64_t micro_batch)
{
    int64_t dp = MAX(c->parallel.dp, 1), tp = MAX(c->parallel.tp, 1);
    return common_batch(c) % (dp * micro_batch) == 0 &&
           micro_batch * c->data.seq_len % tp == 0;
}

static bool takes_data(const struct config *c, int64_t dp)
{
    int64_t g = common_batch(c), least = MAX(c->train.micro_batch, 1);
    return dp <= g / least && g % (dp * least) == 0;
}

static enum status check_data(struct config *c, struct diag *diag)
{
    int64_t dp = c->parallel.dp, m = c->train.micro_batch;
    if (takes_data(c, dp))
        return ST_OK;
    int64_t worst = c->train.global_batch.items[0].global_batch;
    for (int64_t i = 0; i < c->train.global_batch.n; i++) {
        int64_t g = c->train.global_batch.items[i].global_batch;
        if (g < dp * MAX(m, 1) || g % (dp * MAX(m, 1))) {
            worst = g;
            break;
        }
    }
    if (m)
        diag_set(
                diag, ST_CONFIG,
                "parallel.dp (%s), train.micro_batch (%s), train.global_batch (%s): got "
                "%" PRId64 ", %" PRId64 " and %" PRId64
                ", wanted dp x micro_batch to divide global_batch: every data rank "
                "computes as many whole micro-batches",
                where(c, "parallel.dp"), where(c, "train.micro_batch"),
                where(c, "train.global_batch"), dp, m, worst);
    else
        diag_set(diag, ST_CONFIG,
                 "parallel.dp (%s) and train.global_batch (%s): got %" PRId64
                 " and %" PRId64
                 ", wanted dp to divide global_batch: every data rank trains as many "
                 "sequences",
                 where(c, "parallel.dp"), where(c, "train.global_batch"), dp, worst);
    hint_nearest(c, "parallel.dp", dp, takes_data, diag);
    return ST_CONFIG;
}

static enum status check_zero(struct config *c, struct diag *diag)
{
    const struct config_parallel *p = &c->parallel;
    bool open = p->zero < 0; /* auto follows */
    if (p->zero_accumulate == ZERO_ACCUMULATE_LOCAL || p->zero >= 2 || p->dp == 1 ||
        open)
        return ST_OK;
    diag_set(diag, ST_CONFIG,
             "parallel.zero_accumulate (%s) and parallel.zero (%s): got sharded and "
             "%" PRId64 ", wanted zero 2 or 3, which keep parts of the gradients",
             where(c, "parallel.zero_accumulate"), where(c, "parallel.zero"), p->zero);
    diag_hint(diag, "nearest that works: parallel.zero=2");
    return ST_CONFIG;
}

/* ----------------------------------------------------------------------- pipeline */

static const char *const schedule_keys[] = {
        [PIPELINE_AUTO] = "auto",
        [PIPELINE_1F1B] = "1f1b",
        [PIPELINE_INTERLEAVED] = "interleaved",
        [PIPELINE_ZB] = "zb",
};

static enum status check_schedule(struct config *c, struct diag *diag)
{
    struct config_parallel *p = &c->parallel;
    if (p->schedule == PIPELINE_AUTO)
        p->schedule = p->vpp > 1 ? PIPELINE_INTERLEAVED : PIPELINE_1F1B;
    if (p->vpp > 1 && p->pp == 1) {
        diag_set(diag, ST_CONFIG,
                 "parallel.vpp (%s) and parallel.pp (%s): got %" PRId64
                 " and 1, wanted virtual stages of a pipeline of at least 2 stages",
                 where(c, "parallel.vpp"), where(c, "parallel.pp"), p->vpp);
        diag_hint(diag, "nearest that works: parallel.vpp=1");
        return ST_CONFIG;
    }
    bool chunks = p->schedule == PIPELINE_INTERLEAVED;
    if (chunks == (p->vpp > 1))
        return ST_OK;
    diag_set(diag, ST_CONFIG,
             "parallel.schedule (%s) and parallel.vpp (%s): got %s and %" PRId64
             ", wanted %s",
             where(c, "parallel.schedule"), where(c, "parallel.vpp"),
             schedule_keys[p->schedule], p->vpp,
             chunks ? "vpp of at least 2 for interleaved"
                    : "vpp 1 but for interleaved");
    diag_hint(diag, "nearest that works: %s",
              chunks ? "parallel.vpp=2" : "parallel.schedule=interleaved");
    return ST_CONFIG;
}

/* Flops of a token, forward and backward, by part of the model. */
static void model_costs(const struct config *c, double *layer, struct stages_cost *out)
{
    const struct config_model *m = &c->model;
    double q = (double)(m->heads * m->head_dim),
           kv = (double)(m->kv_heads * m->head_dim);
    double h = (double)m->hidden, f = (double)m->ffn;
    bool gated = m->act == MODEL_ACT_SWIGLU || m->act == MODEL_ACT_GEGLU;
    for (int64_t i = 0; i < m->layers; i++) {
        bool whole = m->window == 0 || (i + 1) % m->window_every == 0;
        whole &= m->window == 0 || m->window_every > 1;
        double keys = (double)c->data.seq_len / 2;
        if (!whole)
            keys = MIN(keys, (double)m->window);
        layer[i] = FLOPS_PER_ELEM *
                   (h * (2 * q + 2 * kv) + (gated ? 3 : 2) * h * f + 2 * q * keys);
    }
    *out = (struct stages_cost){
            .layer = layer,
            .embedding = 0,
            .head = FLOPS_PER_ELEM * h * (double)m->vocab,
    };
}

/* With `auto` a virtual stage without a layer is a mistake; a list may have zeros. */
static bool takes_stages(const struct config *c, int64_t pp)
{
    return pp * c->parallel.vpp <= c->model.layers;
}

static bool takes_chunks(const struct config *c, int64_t vpp)
{
    return c->parallel.pp * vpp <= c->model.layers;
}

static enum status check_stages(struct config *c, struct arena *a, struct layout *out,
                                struct diag *diag)
{
    const struct config_parallel *p = &c->parallel;
    bool is_auto = !p->layers_per_stage[0];
    int64_t n = p->pp * p->vpp;
    if (is_auto && !takes_stages(c, p->pp) && n > 1) {
        diag_set(diag, ST_CONFIG,
                 "parallel.pp (%s), parallel.vpp (%s), model.layers (%s): got %" PRId64
                 ", %" PRId64 " and %" PRId64
                 ", wanted at least one layer for each of the pp x vpp stages",
                 where(c, "parallel.pp"), where(c, "parallel.vpp"),
                 where(c, "model.layers"), p->pp, p->vpp, c->model.layers);
        if (p->vpp > 1 && p->pp <= c->model.layers)
            hint_nearest(c, "parallel.vpp", p->vpp, takes_chunks, diag);
        else
            hint_nearest(c, "parallel.pp", p->pp, takes_stages, diag);
        return ST_CONFIG;
    }
    struct stages_cost cost;
    int64_t *layers = arena_array(a, int64_t, n);
    model_costs(c, arena_array(a, double, c->model.layers), &cost);
    enum status st = stages_read(is_auto ? "auto" : p->layers_per_stage, &cost,
                                 c->model.layers, p->pp, p->vpp, layers, diag);
    if (st != ST_OK) {
        if (!is_auto)
            diag_context(diag, "parallel.layers_per_stage (%s)",
                         where(c, "parallel.layers_per_stage"));
        return st;
    }
    out->chunk_layers = arena_array(a, int32_t, n);
    for (int64_t i = 0; i < n; i++)
        out->chunk_layers[i] = (int32_t)layers[i];
    return ST_OK;
}

/* ---------------------------------------------------------------------- all of it */

bool layout_is_open(const struct config *c)
{
    return c->parallel.tp == 0 && c->parallel.pp == 0 && c->parallel.dp == 0;
}

int64_t layout_ranks_asked(const struct config *c)
{
    const struct config_parallel *p = &c->parallel;
    int64_t n;
    if (!mul_i64(MAX(p->tp, 1), MAX(p->pp, 1), &n) || !mul_i64(n, MAX(p->dp, 1), &n))
        return INT64_MAX;
    return n;
}

/* What does not depend on the choice of degrees. */
static void settle_rest(struct config_parallel *p)
{
    int64_t *degrees[] = {&p->tp, &p->pp, &p->vpp, &p->cp, &p->ep, &p->etp};
    for (size_t i = 0; i < ARRAY_LEN(degrees); i++)
        *degrees[i] = MAX(*degrees[i], 1);
}

static enum status make_mesh(struct config *c, int64_t world, struct layout *out,
                             struct diag *diag)
{
    struct config_parallel *p = &c->parallel;
    const int64_t degree[MESH_DIMS] = {
            [MESH_TP] = p->tp, [MESH_CP] = p->cp, [MESH_DP] = p->dp,
            [MESH_PP] = p->pp, [MESH_EP] = p->ep, [MESH_ETP] = p->etp};
    enum mesh_dim order[MESH_DENSE_DIMS];
    if (p->order[0]) {
        enum status st = mesh_parse_order(p->order, order, diag);
        if (st != ST_OK) {
            diag_context(diag, "parallel.order (%s)", where(c, "parallel.order"));
            return st;
        }
    }
    int64_t asked = layout_ranks_asked(c);
    if (world == 1 && asked > 1) {
        diag_set(diag, ST_CONFIG,
                 "a layout of %" PRId64 " ranks (parallel): got the one rank of this "
                 "process, wanted as many as tp %" PRId64 " x pp %" PRId64
                 " x dp %" PRId64,
                 asked, p->tp, p->pp, MAX(p->dp, 1));
        diag_hint(diag,
                  "--threads-ranks %" PRId64
                  " makes them threads of the process, mpirun "
                  "-np %" PRId64 " processes",
                  asked, asked);
        return ST_CONFIG;
    }
    TRY(mesh_create(&out->mesh, degree, world, p->order[0] ? order : NULL, diag));
    p->dp = out->mesh.degree[MESH_DP];
    if (p->zero < 0)
        p->zero = p->dp == 1                                      ? 0
                  : p->zero_accumulate == ZERO_ACCUMULATE_SHARDED ? 2
                                                                  : 1;
    return ST_OK;
}

static enum status check_all(struct config *c, int64_t world, struct arena *a,
                             struct layout *out, struct diag *diag)
{
    static const enum schedule_kind kinds[] = {
            [PIPELINE_1F1B] = SCHEDULE_1F1B,
            [PIPELINE_INTERLEAVED] = SCHEDULE_INTERLEAVED,
            [PIPELINE_ZB] = SCHEDULE_ZB_H1,
    };
    settle_rest(&c->parallel);
    TRY(make_mesh(c, world, out, diag));
    TRY(check_data(c, diag));
    TRY(check_tensor(c, diag));
    TRY(check_schedule(c, diag));
    TRY(check_stages(c, a, out, diag));
    out->schedule = kinds[c->parallel.schedule];
    out->n_chunks = (int32_t)c->parallel.vpp;
    return ST_OK;
}

/* Degrees left open: as much data parallelism as goes, then tensor. Keeps the first error:
 * that of the layout that was wanted most. */
static enum status choose(struct config *c, int64_t world, int choice, struct arena *a,
                          struct layout *out, struct diag *diag)
{
    const struct config_parallel asked = c->parallel;
    struct diag first = {0}, d;
    enum status st_first = ST_OK;
    bool any = false;
    for (int64_t dp = world; dp >= 1; dp--) {
        for (int64_t tp = world / dp; tp >= 1 && world % dp == 0; tp--) {
            if (world / dp % tp)
                continue;
            c->parallel = asked;
            c->parallel.dp = dp;
            c->parallel.tp = tp;
            c->parallel.pp = world / dp / tp;
            enum status st = check_all(c, world, a, out, &d);
            if (st == ST_OK && choice-- == 0)
                return ST_OK;
            any |= st == ST_OK;
            if (st != ST_OK && st_first == ST_OK) {
                st_first = st;
                first = d;
            }
        }
    }
    c->parallel = asked;
    if (any)
        return diag_set(diag, ST_NOT_FOUND, "no further layout");
    *diag = first;
    diag_context(diag, "no layout for %lld ranks", (long long)world);
    return st_first;
}

enum status layout_resolve(struct config *c, int64_t world, int choice, struct arena *a,
                           struct layout *out, struct diag *diag)
{
    struct diag unused;
    memset(out, 0, sizeof(*out));
    diag = diag ? diag : &unused;
    TRY(check_zero(c, diag));
    if (layout_is_open(c) && world > 1)
        return choose(c, world, choice, a, out, diag);
    if (choice > 0)
        return diag_set(diag, ST_NOT_FOUND, "no further layout");
    return check_all(c, world, a, out, diag);
}

void layout_of_rank(const struct layout *l, const struct config *c, int rank,
                    struct lower_layout *out)
{
    int coord[MESH_PLACES];
    mesh_place(&l->mesh, rank, coord);
    *out = (struct lower_layout){.chunks = l->n_chunks,
                                 .zero = (int32_t)c->parallel.zero,
                                 .accumulate_sharded = c->parallel.zero_accumulate ==
                                                       ZERO_ACCUMULATE_SHARDED,
                                 .tp_bf16 = c->parallel.tp_comm == TP_COMM_BF16,
                                 .schedule = l->schedule,
                                 .chunk_layers = l->chunk_layers};
    for (int d = 0; d < MESH_DIMS; d++) {
        out->degree[d] = l->mesh.degree[d];
        out->coord[d] = coord[d];
    }
}

double layout_deadline_s(const struct config *c)
{
    return c->parallel.deadline_s < 0 ? DEADLINE_S : c->parallel.deadline_s;
}

void layout_print(const struct layout *l, const struct config *c, struct str *out)
{
    const struct config_parallel *p = &c->parallel;
    str_printf(out, "tp %" PRId64 " x pp %" PRId64 " x dp %" PRId64, p->tp, p->pp,
               p->dp);
    if (p->dp > 1)
        str_printf(out, ", zero %" PRId64 "%s", p->zero,
                   p->zero_accumulate == ZERO_ACCUMULATE_SHARDED ? " (sharded sums)"
                                                                 : "");
    if (p->pp == 1)
        return;
    str_printf(out, ", %s, layers ", schedule_name(l->schedule));
    for (int64_t i = 0; i < p->pp * p->vpp; i++)
        str_printf(out, "%s%d", i ? "+" : "", (int)l->chunk_layers[i]);
}
