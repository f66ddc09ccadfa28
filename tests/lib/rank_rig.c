#include "tests/lib/rank_rig.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/arena.h"
#include "core/exec.h"
#include "core/hyper.h"
#include "core/rng.h"
#include "core/verify.h"
#include "kernels/cpu/cpu_backend.h"
#include "memory/pack.h"
#include "parallel/comm_shm.h"
#include "parallel/mesh.h"
#include "tests/lib/rig.h"

#define GUARD_BYTES 64
#define DEADLINE_S  120

/* One rank: a thread, with all that a process would have. */
struct rank {
    const struct layout_case *c;
    const struct model *m;
    const struct rank_rig_options *o;
    struct outcome *out;
    struct comm_world *world;
    struct comm *groups[GROUP_COUNT];
    struct lower_options lo;
    struct lowered low;
    struct backend *backend;
    struct exec_memory memory;
    struct exec *exec;
    enum status st;
    struct diag diag;
};

void outcome_free(struct outcome *o)
{
    for (int i = 0; i < 2; i++) {
        mem_free(o->grads[i]);
        mem_free(o->moments[i]);
    }
    mem_free(o->masters);
}

bool outcome_equal(const struct outcome *a, const struct outcome *b)
{
    size_t bytes = (size_t)a->n * sizeof(float);
    bool same = a->n == b->n && memcmp(a->loss, b->loss, sizeof(a->loss)) == 0 &&
                memcmp(a->norm, b->norm, sizeof(a->norm)) == 0 &&
                memcmp(a->masters, b->masters, bytes) == 0;
    for (int i = 0; i < 2 && same; i++)
        same = memcmp(a->grads[i], b->grads[i], bytes) == 0 &&
               memcmp(a->moments[i], b->moments[i], bytes) == 0;
    return same;
}

enum status rank_rig_groups(const struct layout_case *c, const struct model *m,
                            struct comm_world *w, struct comm **groups,
                            struct diag *diag)
{
    static const struct {
        enum comm_group group;
        unsigned dims;
    } plain[] = {
            {GROUP_TENSOR, MESH_TENSOR},     {GROUP_TENSOR_GRAD, MESH_TENSOR},
            {GROUP_DATA, MESH_REPLICA},      {GROUP_FORWARD, MESH_PIPELINE},
            {GROUP_BACKWARD, MESH_PIPELINE}, {GROUP_WORLD, MESH_WORLD},
    };
    struct arena a = {0};
    struct mesh mesh;
    struct mesh_group g;
    const int64_t degree[MESH_DIMS] = {
            [MESH_TP] = c->tp, [MESH_CP] = 1, [MESH_DP] = c->dp,
            [MESH_PP] = c->pp, [MESH_EP] = 1, [MESH_ETP] = 1};
    enum status st = mesh_create(&mesh, degree, w->size, NULL, diag);
    for (size_t i = 0; i < ARRAY_LEN(plain) && st == ST_OK; i++) {
        mesh_group(&mesh, plain[i].dims, w->rank, &a, &g);
        if (g.n > 1)
            st = w->ops->group(w, g.members, g.n, comm_group_name(plain[i].group),
                               &groups[plain[i].group], diag);
    }
    if (st == ST_OK)
        mesh_group_kv(&mesh, m->config.kv_heads, w->rank, &a, &g);
    if (st == ST_OK && g.n > 1)
        st = w->ops->group(w, g.members, g.n, "kv", &groups[GROUP_KV], diag);
    if (st == ST_OK)
        mesh_group_ends(&mesh, w->rank, &a, &g);
    if (st == ST_OK && g.n > 1)
        st = w->ops->group(w, g.members, g.n, "ends", &groups[GROUP_TIED], diag);
    arena_release(&a);
    return st;
}

/* Where element e of a parameter's box lies in the logical tensor. */
static int64_t logical(const struct rank *r, uint32_t param, int64_t e)
{
    const struct lowered_param *p = &r->low.params[param];
    const struct param *row = &r->m->params[param];
    if (row->ndim == 1)
        return p->begin[0] + e;
    return (p->begin[0] + e / p->dim[1]) * row->dim[1] + p->begin[1] + e % p->dim[1];
}

static int64_t first_elem(const struct model *m, uint32_t param)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < param; i++)
        at += param_elems(&m->params[i]);
    return at;
}

/* Between a piece's values and the logical array of all parameters. */
static void move_piece(struct rank *r, const struct lowered_piece *p, uint32_t value,
                       float *all, bool in)
{
    struct view v = exec_view(r->exec, value, 0);
    float *at = all + first_elem(r->m, p->param);
    float *x = v.data;
    for (int64_t e = 0; e < p->n; e++) {
        float *y = &at[logical(r, p->param, p->first + e)];
        if (in)
            x[e] = *y;
        else
            *y = x[e];
    }
}

/* Whole pieces are on every rank of the data group; one of them tells. */
static bool tells(const struct rank *r, const struct lowered_piece *p)
{
    bool cut = r->c->zero > 0 && r->c->dp > 1;
    return r->low.params[p->param].first_copy &&
           (cut || r->lo.layout.coord[MESH_DP] == 0);
}

static void collect(struct rank *r, float *all, size_t member)
{
    for (uint32_t i = 0; i < r->low.n_pieces; i++) {
        const struct lowered_piece *p = &r->low.pieces[i];
        uint32_t value;
        memcpy(&value, (const char *)p + member, sizeof(value));
        if (tells(r, p))
            move_piece(r, p, value, all, false);
    }
}

static void init_params(struct rank *r)
{
    float *all = mem_alloc((size_t)r->out->n * sizeof(*all));
    for (uint32_t i = 0; i < r->m->n_params; i++)
        param_init_values(&r->m->params[i], 7, 0, param_elems(&r->m->params[i]),
                          all + first_elem(r->m, i));
    for (uint32_t i = 0; i < r->low.n_pieces; i++)
        move_piece(r, &r->low.pieces[i], r->low.pieces[i].master, all, true);
    mem_free(all);
}

/* 0 to n - 1, in an order of its own for every seed but 0. */
static void permute(uint64_t seed, uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = seed ? (uint32_t)(rng_u64(seed, 2, i) % (i + 1)) : i;
        order[i] = order[k];
        order[k] = i;
    }
}

/* The rank's sequences of the global batch of a step. Returns its trained tokens; the
 * scale of the loss is of all. */
static int64_t write_batch(struct rank *r, int step)
{
    static const int64_t len = LAYOUT_SEQ_LEN;
    int32_t b[4][LAYOUT_SEQUENCES * LAYOUT_SEQ_LEN];
    int batch = r->o->batches ? step % r->o->batches : step;
    int64_t trained = rig_random_batch((uint64_t)batch + 100, LAYOUT_SEQUENCES, len,
                                       r->m->config.vocab, b[0], b[1], b[2], b[3]);
    int64_t first = (int64_t)r->lo.layout.coord[MESH_DP] * LAYOUT_SEQUENCES / r->c->dp;
    uint32_t order[LAYOUT_SEQUENCES];
    permute(r->o->permutation, order, r->lo.n_micro_batches);
    for (uint32_t mb = 0; mb < r->lo.n_micro_batches; mb++) {
        int64_t at = first + (int64_t)order[mb] * r->c->micro_batch;
        const uint32_t to[4] = {r->low.tokens, r->low.labels, r->low.positions,
                                r->low.doc_start};
        for (int i = 0; i < 4; i++)
            exec_write(r->exec, to[i], mb, b[i] + at * len);
    }
    return trained;
}

static void write_hyper(struct rank *r, int t, int64_t trained)
{
    const double b1 = 0.9, b2 = 0.95;
    float h[HYPER_COUNT] = {[HYPER_LR] = 1e-3f,
                            [HYPER_BETA1] = (float)b1,
                            [HYPER_BETA2] = (float)b2,
                            [HYPER_ONE_BETA1] = (float)(1 - b1),
                            [HYPER_ONE_BETA2] = (float)(1 - b2),
                            [HYPER_EPS] = 1e-8f,
                            [HYPER_DECAY] = 0.1f,
                            [HYPER_CORRECT1] = (float)(1 / (1 - pow(b1, t))),
                            [HYPER_CORRECT2] = (float)(1 / (1 - pow(b2, t))),
                            [HYPER_CLIP] = 1,
                            [HYPER_INV_TOKENS] = (float)(1 / (double)trained)};
    exec_write(r->exec, r->low.hyper, 0, h);
}

static enum status run_steps(struct rank *r)
{
    int n = r->o->steps ? r->o->steps : RANK_RIG_STEPS;
    for (int step = 0; step < n; step++) {
        int64_t trained = write_batch(r, step);
        write_hyper(r, step + 1, trained);
        TRY(exec_run(r->exec, CALL_STEP, &r->diag));
        if (r->world->rank == 0) {
            float norm;
            double loss;
            exec_read(r->exec, r->low.loss_sum, 0, &loss);
            exec_read(r->exec, r->low.grad_norm, 0, &norm);
            r->out->loss[step] = loss / (double)trained;
            r->out->norm[step] = (double)norm;
        }
        if (step == 0)
            collect(r, r->out->grads[0], offsetof(struct lowered_piece, grad));
    }
    collect(r, r->out->grads[1], offsetof(struct lowered_piece, grad));
    collect(r, r->out->masters, offsetof(struct lowered_piece, master));
    collect(r, r->out->moments[0], offsetof(struct lowered_piece, exp_avg));
    collect(r, r->out->moments[1], offsetof(struct lowered_piece, exp_avg_sq));
    return ST_OK;
}

static enum status prepare(struct rank *r)
{
    struct mem_report report;
    struct pack_options po = pack_options_default();
    TRY(lower_model(r->m, &r->lo, &r->low, &r->diag));
    if (r->o->spoil)
        r->o->spoil(&r->low, r->world->rank, r->o->arg);
    else
        TRY(program_verify(&r->low.program, &r->diag));
    po.guard_bytes = r->o->check ? GUARD_BYTES : 0;
    TRY(pack_program(&r->low.program, &po, &report, &r->diag));
    mem_report_free(&report);
    struct cpu_backend_options bo = {.n_threads = 1, .isa_mask = CPU_ISA_ALL};
    TRY(cpu_backend_create(&bo, &r->backend, &r->diag));
    int64_t scratch;
    TRY(exec_scratch(r->backend, &r->low.program, &scratch, &r->diag));
    TRY(exec_memory_create(r->backend, r->low.program.pool_bytes, scratch, &r->memory,
                           &r->diag));
    TRY(rank_rig_groups(r->c, r->m, r->world, r->groups, &r->diag));
    struct exec_options eo = {.check = r->o->check,
                              .guard_bytes = r->o->check ? GUARD_BYTES : 0};
    memcpy(eo.groups, r->groups, sizeof(eo.groups));
    TRY(exec_create(&r->low.program, &r->memory, &eo, &r->exec, &r->diag));
    init_params(r);
    return exec_run(r->exec, CALL_SETUP, &r->diag);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    r->st = prepare(r);
    if (r->st == ST_OK)
        r->st = run_steps(r);
    if (r->st != ST_OK)
        r->world->ops->give_up(r->world, r->diag.text);
    return NULL;
}

static void rank_release(struct rank *r)
{
    exec_destroy(r->exec);
    if (r->backend) {
        exec_memory_release(&r->memory);
        r->backend->ops->destroy(r->backend);
    }
    for (int g = 0; g < GROUP_COUNT; g++)
        if (r->groups[g])
            r->groups[g]->ops->close(r->groups[g]);
    r->world->ops->close(r->world);
    lowered_free(&r->low);
}

void rank_rig_run(const struct layout_case *c, const struct model *m,
                  const struct rank_rig_options *o, struct outcome *out)
{
    int n = layout_world(c), failed = -1;
    struct rank *rank = mem_alloc((size_t)n * sizeof(*rank));
    struct comm_world **world = mem_alloc((size_t)n * sizeof(struct comm_world *));
    pthread_t *thread = mem_alloc((size_t)n * sizeof(*thread));
    struct diag diag = {0};
    memset(out, 0, sizeof(*out));
    out->n = first_elem(m, m->n_params);
    for (int i = 0; i < 2; i++) {
        out->grads[i] = mem_alloc((size_t)out->n * sizeof(float));
        out->moments[i] = mem_alloc((size_t)out->n * sizeof(float));
    }
    out->masters = mem_alloc((size_t)out->n * sizeof(float));
    if (comm_threads_create(n, world, &diag) != ST_OK)
        fail_msg("%s", diag.text);
    for (int i = 0; i < n; i++) {
        rank[i] = (struct rank){.c = c, .m = m, .o = o, .out = out, .world = world[i]};
        world[i]->deadline_s = DEADLINE_S;
        layout_options(c, i, o->compute, &rank[i].lo);
        assert_int_equal(pthread_create(&thread[i], NULL, rank_main, &rank[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) {
        if (rank[i].st != ST_OK && failed < 0) {
            failed = i;
            diag = rank[i].diag;
        }
        rank_release(&rank[i]);
    }
    mem_free(rank);
    mem_free(world);
    mem_free(thread);
    if (failed >= 0)
        fail_msg("%s, rank %d: %s", c->name, failed, diag.text);
}
