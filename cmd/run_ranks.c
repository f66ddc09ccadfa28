#include "cmd/run_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/run.h"
#include "core/agree.h"
#include "core/hash.h"
#include "core/op.h"
#include "core/vec.h"
#include "parallel/verify_ranks.h"

#define PATIENCE        10 /* times the deadline, while ranks have unequal work */
#define WHOLE_RANKS_MAX 64 /* jobs up to this size are verified event by event */

bool run_is_first(const struct run *r)
{
    return r->ranks.rank == 0;
}

static bool alone(const struct run *r)
{
    return r->ranks.size == 1;
}

enum status run_ranks_open(struct run *r, struct comm_world *world, struct diag *diag)
{
    struct run_ranks *k = &r->ranks;
    *k = (struct run_ranks){.world = world, .size = 1};
    if (!world || world->size == 1)
        return ST_OK;
    k->rank = world->rank;
    k->size = world->size;
    int *members = mem_alloc((size_t)k->size * sizeof(*members));
    for (int i = 0; i < k->size; i++)
        members[i] = i;
    enum status st =
            world->ops->group(world, members, k->size, "control", &k->control, diag);
    mem_free(members);
    return st;
}

void run_ranks_close(struct run *r)
{
    struct run_ranks *k = &r->ranks;
    for (int g = 0; g < GROUP_COUNT; g++)
        if (k->groups[g])
            k->groups[g]->ops->close(k->groups[g]);
    if (k->control)
        k->control->ops->close(k->control);
    *k = (struct run_ranks){.rank = k->rank, .size = k->size, .agreed = k->agreed};
}

void run_be_patient(struct run *r, bool patient)
{
    if (r->ranks.world)
        r->ranks.world->deadline_s = r->ranks.deadline_s * (patient ? PATIENCE : 1);
}

/* -------------------------------------------------------------------------- words */

enum status run_broadcast(struct run *r, void *x, size_t bytes, struct diag *diag)
{
    if (alone(r))
        return ST_OK;
    size_t n = (bytes + 3) / 4;
    int32_t *words = mem_alloc(n * 4);
    memcpy(words, x, bytes);
    enum status st = r->ranks.control->ops->broadcast(r->ranks.control, words,
                                                      (int64_t)n, DT_I32, 0, diag);
    memcpy(x, words, bytes);
    mem_free(words);
    return st;
}

static enum status reduce(struct run *r, double *x, int64_t n, enum comm_reduction how,
                          struct diag *diag)
{
    struct comm *c = r->ranks.control;
    return alone(r) ? ST_OK : c->ops->all_reduce(c, x, n, DT_F64, how, diag);
}

enum status run_sum(struct run *r, double *x, int64_t n, struct diag *diag)
{
    return reduce(r, x, n, COMM_SUM, diag);
}

enum status run_max(struct run *r, double *x, int64_t n, struct diag *diag)
{
    return reduce(r, x, n, COMM_MAX, diag);
}

enum status run_gather(struct run *r, const void *mine, void *all, size_t bytes,
                       struct diag *diag)
{
    return comm_gather(r->ranks.control, mine, all, bytes, diag);
}

enum status run_agree(struct run *r, enum status st, struct diag *diag)
{
    return comm_agree(r->ranks.control, st, &r->ranks.agreed, diag);
}

enum status run_exchange(struct run *r, const struct run_word *mine,
                         struct run_word *sum, int *from, struct diag *diag)
{
    *sum = *mine;
    *from = 0;
    if (alone(r))
        return ST_OK;
    int n = r->ranks.size;
    struct run_word *all = mem_alloc((size_t)n * sizeof(*all));
    enum status st = run_gather(r, mine, all, sizeof(*mine), diag);
    *sum = (struct run_word){0};
    for (int i = n - 1; st == ST_OK && i >= 0; i--) {
        sum->n_trained += all[i].n_trained;
        if (all[i].stop_signal)
            sum->stop_signal = all[i].stop_signal;
        if (all[i].status != ST_OK) {
            sum->status = all[i].status;
            *from = i;
        }
    }
    mem_free(all);
    return st;
}

/* ------------------------------------------------------------------ configurations */

static uint64_t row_hash(const struct opt_table *t, uint32_t row, const void *base)
{
    struct opt_table one = *t;
    one.rows = &t->rows[row];
    one.n_rows = 1;
    return opt_hash(&one, base, 0);
}

/* The first row of the table in which a rank differs from rank 0. */
static enum status compare_rows(struct run *r, const uint64_t *all, uint32_t n,
                                struct diag *diag)
{
    const struct opt_table *t = config_table();
    for (int rank = 1; rank < r->ranks.size; rank++) {
        const uint64_t *theirs = all + (size_t)rank * n;
        for (uint32_t i = 0; i < n; i++) {
            if (theirs[i] == all[i])
                continue;
            const char *key = i < t->n_rows ? t->rows[i].key : "the build";
            return diag_set(diag, ST_CONFIG,
                            "the ranks differ (%s): got another one on rank %d than on "
                            "rank 0, wanted the same program and configuration on all",
                            key, rank);
        }
    }
    return ST_OK;
}

enum status run_ranks_compare(struct run *r, struct diag *diag)
{
    if (alone(r))
        return ST_OK;
    const struct opt_table *t = config_table();
    uint32_t n = t->n_rows + 1;
    uint64_t *mine = mem_alloc(n * sizeof(*mine));
    uint64_t *all = mem_alloc((size_t)r->ranks.size * n * sizeof(*all));
    for (uint32_t i = 0; i < t->n_rows; i++)
        mine[i] = row_hash(t, i, r->config);
    const char *build = cmd_build_text();
    mine[t->n_rows] = hash64(build, strlen(build));
    enum status st = run_gather(r, mine, all, n * sizeof(*mine), diag);
    if (st == ST_OK)
        st = compare_rows(r, all, n, diag);
    r->ranks.agreed = st == ST_CONFIG;
    mem_free(mine);
    mem_free(all);
    return st;
}

/* -------------------------------------------------------------------------- groups */

/* All groups, in the order in which every rank opens them. */
static void find_group(const struct run *r, enum comm_group g, struct arena *a,
                       struct mesh_group *out)
{
    static const unsigned dims[GROUP_COUNT] = {
            [GROUP_TENSOR] = MESH_TENSOR,     [GROUP_TENSOR_GRAD] = MESH_TENSOR,
            [GROUP_DATA] = MESH_REPLICA,      [GROUP_FORWARD] = MESH_PIPELINE,
            [GROUP_BACKWARD] = MESH_PIPELINE, [GROUP_WORLD] = MESH_WORLD,
    };
    const struct mesh *m = &r->layout.mesh;
    if (g == GROUP_KV)
        mesh_group_kv(m, r->model.config.kv_heads, r->ranks.rank, a, out);
    else if (g == GROUP_TIED)
        mesh_group_ends(m, r->ranks.rank, a, out);
    else
        mesh_group(m, dims[g], r->ranks.rank, a, out);
}

enum status run_ranks_groups(struct run *r, struct diag *diag)
{
    struct run_ranks *k = &r->ranks;
    struct arena a = {0};
    enum status st = ST_OK;
    if (k->world)
        k->world->any_order = r->config->parallel.reductions == REDUCTIONS_FAST;
    for (int g = 0; g < GROUP_COUNT && st == ST_OK && !alone(r); g++) {
        struct mesh_group group;
        char name[96];
        find_group(r, (enum comm_group)g, &a, &group);
        if (group.n < 2)
            continue;
        snprintf(name, sizeof(name), "%s (%s)", group.name,
                 comm_group_name((enum comm_group)g));
        st = k->world->ops->group(k->world, group.members, group.n, name, &k->groups[g],
                                  diag);
    }
    arena_release(&a);
    return st;
}

/* -------------------------------------------------------------------- verification */

/* The job's number of a group: kinds one behind the other, of each all its groups. */
static uint32_t group_id(const struct run *r, enum comm_group g, int index)
{
    return (uint32_t)g * (uint32_t)r->ranks.size + (uint32_t)index;
}

/* What a rank says of its groups and of the messages to its neighbours. */
struct rank_print {
    uint64_t collectives[GROUP_COUNT];
    uint64_t messages[2][2][2]; /* forward or backward; next or before; sent or taken */
    int32_t index[GROUP_COUNT]; /* of its group among those of the kind; -1: none */
    int32_t neighbour[2];       /* world ranks */
};

static void print_events(const struct run *r, const struct rank_events *events,
                         const struct mesh_group *groups, struct rank_print *out)
{
    static const enum comm_group ways[2] = {GROUP_FORWARD, GROUP_BACKWARD};
    memset(out, 0, sizeof(*out));
    for (int g = 0; g < GROUP_COUNT; g++) {
        out->index[g] = groups[g].n > 1 ? groups[g].index : -1;
        out->collectives[g] = rank_events_hash(
                events, group_id(r, (enum comm_group)g, out->index[g]));
    }
    const struct mesh_group *line = &groups[GROUP_FORWARD];
    for (int side = 0; side < 2 && line->n > 1; side++) {
        int step = side ? line->n - 1 : 1, peer = (line->place + step) % line->n;
        out->neighbour[side] = line->members[peer];
        for (int w = 0; w < 2; w++) {
            uint32_t id = group_id(r, ways[w], groups[ways[w]].index);
            out->messages[w][side][0] =
                    rank_events_hash_messages(events, id, COMM_SEND, peer);
            out->messages[w][side][1] =
                    rank_events_hash_messages(events, id, COMM_RECV, peer);
        }
    }
}

static enum status differ(int a, int b, const char *group, const char *what,
                          struct diag *diag)
{
    return diag_set(
            diag, ST_INTERNAL,
            "the programs of the ranks do not fit together (%s): got other %s on "
            "rank %d than on rank %d",
            group, what, a, b);
}

/* Rank i against those before it in its groups, and against its neighbours. */
static enum status compare_print(const struct rank_print *all, int i, bool line,
                                 struct diag *diag)
{
    const struct rank_print *me = &all[i];
    for (int g = 0; g < GROUP_COUNT; g++)
        for (int j = 0; j < i && me->index[g] >= 0; j++)
            if (all[j].index[g] == me->index[g] &&
                all[j].collectives[g] != me->collectives[g])
                return differ(i, j, comm_group_name((enum comm_group)g), "collectives",
                              diag);
    for (int side = 0; side < 2 && line; side++) {
        int j = me->neighbour[side];
        for (int w = 0; w < 2; w++)
            if (me->messages[w][side][0] != all[j].messages[w][!side][1])
                return differ(i, j, comm_group_name(w ? GROUP_BACKWARD : GROUP_FORWARD),
                              "messages sent", diag);
    }
    return ST_OK;
}

static enum status verify_prints(struct run *r, const struct rank_events *events,
                                 const struct mesh_group *groups, struct diag *diag)
{
    struct rank_print mine;
    struct rank_print *all = mem_alloc((size_t)r->ranks.size * sizeof(*all));
    print_events(r, events, groups, &mine);
    enum status st = run_gather(r, &mine, all, sizeof(mine), diag);
    bool line = r->layout.mesh.degree[MESH_PP] > 1;
    for (int i = 0; st == ST_OK && i < r->ranks.size; i++) {
        st = compare_print(all, i, line, diag);
        r->ranks.agreed |= st != ST_OK;
    }
    mem_free(all);
    return st;
}

/* The groups of all ranks, each once. */
static int list_groups(const struct run *r, struct arena *a, struct event_group *out)
{
    int n = GROUP_COUNT * r->ranks.size;
    for (int i = 0; i < n; i++)
        out[i] = (struct event_group){.name = "none"};
    for (int rank = 0; rank < r->ranks.size; rank++) {
        struct run other = {.layout = r->layout, .model = r->model};
        other.ranks = (struct run_ranks){.rank = rank, .size = r->ranks.size};
        for (int g = 0; g < GROUP_COUNT; g++) {
            struct mesh_group group;
            find_group(&other, (enum comm_group)g, a, &group);
            if (group.n > 0)
                out[group_id(r, (enum comm_group)g, group.index)] =
                        (struct event_group){arena_strdup(a, group.name), group.members,
                                             group.n};
        }
    }
    return n;
}

/* The first rank gets the events of all. */
static enum status collect_events(struct run *r, struct rank_events *mine,
                                  struct rank_events *all, struct diag *diag)
{
    struct comm *c = r->ranks.control;
    int64_t bytes = (int64_t)mine->events.n * (int64_t)sizeof(struct comm_event);
    if (r->ranks.rank > 0) {
        int32_t n = (int32_t)mine->events.n;
        TRY(c->ops->send(c, &n, 1, DT_I32, 0, diag));
        return n ? c->ops->send(c, mine->events.data, bytes / 4, DT_I32, 0, diag)
                 : ST_OK;
    }
    all[0] = *mine;
    for (int i = 1; i < r->ranks.size; i++) {
        int32_t n;
        TRY(c->ops->recv(c, &n, 1, DT_I32, i, diag));
        for (int32_t e = 0; e < n; e++)
            vec_push(&all[i].events, (struct comm_event){0});
        if (n)
            TRY(c->ops->recv(c, all[i].events.data,
                             n * (int64_t)sizeof(struct comm_event) / 4, DT_I32, i,
                             diag));
    }
    return ST_OK;
}

static enum status verify_whole(struct run *r, struct rank_events *mine,
                                struct diag *diag)
{
    int n = r->ranks.size;
    struct arena a = {0};
    struct rank_events *all = arena_array(&a, struct rank_events, n);
    struct event_group *groups = arena_array(&a, struct event_group, GROUP_COUNT * n);
    enum status st = collect_events(r, mine, all, diag);
    if (st == ST_OK && run_is_first(r))
        st = verify_ranks(all, n, groups, list_groups(r, &a, groups), diag);
    for (int i = 1; i < n; i++)
        rank_events_free(&all[i]);
    arena_release(&a);
    return st == ST_STOPPED ? st : run_agree(r, st, diag);
}

static enum status verify_phase(struct run *r, const struct program *p,
                                enum call_phase phase, struct diag *diag)
{
    struct arena a = {0};
    struct mesh_group groups[GROUP_COUNT];
    uint32_t id[GROUP_COUNT];
    struct rank_events events = {0};
    for (int g = 0; g < GROUP_COUNT; g++) {
        find_group(r, (enum comm_group)g, &a, &groups[g]);
        id[g] = group_id(r, (enum comm_group)g, groups[g].index);
    }
    rank_events_list(p, phase, id, &events);
    enum status st = verify_prints(r, &events, groups, diag);
    if (st == ST_OK && r->ranks.size <= WHOLE_RANKS_MAX)
        st = verify_whole(r, &events, diag);
    rank_events_free(&events);
    arena_release(&a);
    return st;
}

enum status run_ranks_verify(struct run *r, struct diag *diag)
{
    for (int i = 0; i < r->n_train + r->has_eval && !alone(r); i++) {
        const struct run_program *p = i < r->n_train ? &r->train[i] : &r->eval;
        TRY(verify_phase(r, &p->low.program, CALL_SETUP, diag));
        TRY(verify_phase(r, &p->low.program, CALL_STEP, diag));
    }
    return ST_OK;
}
