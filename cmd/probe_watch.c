#include "cmd/probe_watch.h"

#include <math.h>

/* Below these a magnitude is nothing to worry about, however it grew. */
static const double growth_floor[] = {
        [PROBE_PARAM] = 1,      [PROBE_GRAD] = 1,     [PROBE_EXP_AVG] = 1,
        [PROBE_EXP_AVG_SQ] = 1, [PROBE_UPDATE] = 1,   [PROBE_RESIDUAL] = 100,
        [PROBE_ATTN_LSE] = 100, [PROBE_LOGITS] = 100,
};
_Static_assert(ARRAY_LEN(growth_floor) == PROBE_KIND_COUNT, "one floor per kind");

struct probe_watch {
    const struct model *model;
    const struct lowered_probe *probes;
    uint32_t n;
    uint32_t n_looks; /* that the ring holds */
    uint64_t n_taken;
    struct probe_figures *ring; /* [n_looks][n] */
    uint64_t *quiet_until;      /* [n]: looks */
};

struct probe_watch *probe_watch_create(const struct model *m,
                                       const struct lowered_probe *probes, uint32_t n,
                                       int64_t monitor_every)
{
    struct probe_watch *w = mem_alloc(sizeof(*w));
    *w = (struct probe_watch){.model = m, .probes = probes, .n = n};
    w->n_looks = (uint32_t)MAX(WATCH_STEPS / monitor_every, 1);
    w->ring = mem_alloc(w->n_looks * (size_t)n * sizeof(*w->ring));
    w->quiet_until = mem_alloc(n * sizeof(*w->quiet_until));
    return w;
}

void probe_watch_destroy(struct probe_watch *w)
{
    if (!w)
        return;
    mem_free(w->ring);
    mem_free(w->quiet_until);
    mem_free(w);
}

static bool may_collapse(const struct probe_watch *w, const struct lowered_probe *p)
{
    if (p->kind == PROBE_PARAM)
        return w->model->params[p->index].ndim >= 2;
    return p->kind == PROBE_RESIDUAL;
}

/* The rule that figures break, or NULL. `was` is NULL at the first look. */
static const char *broken_rule(const struct probe_watch *w,
                               const struct lowered_probe *p,
                               const struct probe_figures *is,
                               const struct probe_figures *was,
                               struct probe_alarm *alarm)
{
    *alarm = (struct probe_alarm){.now = is->rms, .before = was ? was->rms : 0};
    if (!isfinite(is->rms))
        return was && !isfinite(was->rms) ? NULL : "non-finite";
    if (!was)
        return NULL;
    if (may_collapse(w, p) && is->rms * WATCH_FACTOR < was->rms)
        return "collapse";
    alarm->now = is->absmax;
    alarm->before = was->absmax;
    bool grew = is->absmax > WATCH_FACTOR * was->absmax;
    return grew && is->absmax > growth_floor[p->kind] ? "growth" : NULL;
}

uint32_t probe_watch_look(struct probe_watch *w, const struct probe_figures *now,
                          struct probe_alarm *alarms)
{
    uint32_t n = 0;
    struct probe_figures *slot = w->ring + (w->n_taken % w->n_looks) * w->n;
    const struct probe_figures *oldest = NULL;
    if (w->n_taken >= w->n_looks)
        oldest = slot;
    else if (w->n_taken > 0)
        oldest = w->ring;
    for (uint32_t i = 0; i < w->n; i++) {
        struct probe_alarm *a = &alarms[n];
        const char *rule =
                broken_rule(w, &w->probes[i], &now[i], oldest ? &oldest[i] : NULL, a);
        if (!rule || w->n_taken < w->quiet_until[i])
            continue;
        w->quiet_until[i] = w->n_taken + w->n_looks;
        a->rule = rule;
        a->probe = i;
        n++;
    }
    for (uint32_t i = 0; i < w->n; i++)
        slot[i] = now[i];
    w->n_taken++;
    return n;
}
