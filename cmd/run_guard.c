#include "cmd/run_guard.h"

#include <math.h>
#include <string.h>

#define SPREAD_MIN 1e-3 /* of the mean: a flat loss is not all spikes */

static const char *const reason_names[] = {
        [GUARD_NONE] = "none",
        [GUARD_NONFINITE] = "not finite",
        [GUARD_LOSS_SPIKE] = "loss spike",
        [GUARD_NORM_SPIKE] = "gradient norm spike",
};
_Static_assert(ARRAY_LEN(reason_names) == GUARD_REASON_COUNT, "one name per reason");

const char *guard_reason_name(enum guard_reason reason)
{
    ASSERT(reason < GUARD_REASON_COUNT);
    return reason_names[reason];
}

void guard_free(struct guard *g)
{
    vec_free(&g->skips);
    *g = (struct guard){0};
}

static int64_t window_count(const struct guard_window *w)
{
    return MIN(w->n, GUARD_WINDOW);
}

/* Mean and deviation of a window that is long enough. */
static bool window_spread(const struct guard_window *w, double *mean, double *spread)
{
    int64_t n = window_count(w);
    if (n < GUARD_WINDOW_MIN)
        return false;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += w->x[i];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (w->x[i] - *mean) * (w->x[i] - *mean);
    *spread = MAX(sqrt(squares / (double)(n - 1)), SPREAD_MIN * fabs(*mean));
    return true;
}

double guard_limit(const struct guard_window *w, double z)
{
    double mean, spread;
    return z > 0 && window_spread(w, &mean, &spread) ? mean + z * spread : 0;
}

double guard_score(const struct guard_window *w, double x)
{
    double mean, spread;
    if (!window_spread(w, &mean, &spread))
        return 0;
    if (!isfinite(x))
        return INFINITY;
    return spread > 0 ? (x - mean) / spread : 0;
}

static void window_add(struct guard_window *w, double x)
{
    w->x[w->n++ % GUARD_WINDOW] = x;
}

void guard_accept(struct guard *g, double loss, double norm)
{
    window_add(&g->loss, loss);
    window_add(&g->norm, norm);
    g->skips_in_row = 0;
}

void guard_skip_step(struct guard *g, const struct guard_skip *skip)
{
    vec_push(&g->skips, *skip);
    g->skips_in_row++;
}

/* Slot by slot: sums run over slots, so their order must come back too. */
static void window_write(const struct guard_window *w, const char *key,
                         struct json_writer *out)
{
    json_key(out, key);
    json_begin_array(out);
    for (int64_t i = 0; i < window_count(w); i++)
        json_f64(out, w->x[i]);
    json_end_array(out);
}

static void field_i64(struct json_writer *w, const char *key, int64_t value)
{
    json_key(w, key);
    json_i64(w, value);
}

void guard_write(const struct guard *g, struct json_writer *w)
{
    json_begin_object(w);
    field_i64(w, "applied", g->loss.n);
    field_i64(w, "skips_in_row", g->skips_in_row);
    window_write(&g->loss, "loss", w);
    window_write(&g->norm, "grad_norm", w);
    json_key(w, "skipped");
    json_begin_array(w);
    for (uint32_t i = 0; i < g->skips.n; i++) {
        const struct guard_skip *s = &g->skips.data[i];
        json_begin_object(w);
        field_i64(w, "step", s->step);
        field_i64(w, "first_sample", s->first_sample);
        field_i64(w, "n_samples", s->n_samples);
        json_key(w, "reason");
        json_string(w, guard_reason_name(s->reason));
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

static enum status window_parse(struct guard_window *w, int64_t n,
                                const struct json *object, const char *key,
                                const char *where, struct diag *diag)
{
    const struct json *list;
    TRY(json_get_array(object, key, where, &list, diag));
    *w = (struct guard_window){.n = n};
    bool good = n >= 0 && list->n_items == window_count(w);
    for (int64_t i = 0; good && i < list->n_items; i++) {
        good = list->items[i].type == JSON_NUMBER;
        w->x[i] = list->items[i].f64;
    }
    if (!good)
        return diag_set(diag, ST_DATA, "%s (%s): got %lld values, wanted %lld numbers",
                        key, where, (long long)list->n_items,
                        (long long)(n < 0 ? 0 : window_count(w)));
    return ST_OK;
}

static enum status skip_parse(struct guard *g, const struct json *object,
                              const char *where, struct diag *diag)
{
    struct guard_skip s = {0};
    const char *reason;
    TRY(json_get_i64(object, "step", where, &s.step, diag));
    TRY(json_get_i64(object, "first_sample", where, &s.first_sample, diag));
    TRY(json_get_i64(object, "n_samples", where, &s.n_samples, diag));
    TRY(json_get_string(object, "reason", where, &reason, diag));
    for (int i = GUARD_NONE + 1; i < GUARD_REASON_COUNT; i++)
        if (strcmp(reason, reason_names[i]) == 0)
            s.reason = (enum guard_reason)i;
    if (s.reason == GUARD_NONE)
        return diag_set(diag, ST_DATA,
                        "reason (%s): got '%s', wanted one that this build knows",
                        where, reason);
    vec_push(&g->skips, s);
    return ST_OK;
}

enum status guard_parse(struct guard *g, const struct json *object, const char *where,
                        struct diag *diag)
{
    int64_t applied;
    const struct json *skipped;
    guard_free(g);
    TRY(json_get_i64(object, "applied", where, &applied, diag));
    TRY(json_get_i64(object, "skips_in_row", where, &g->skips_in_row, diag));
    TRY(window_parse(&g->loss, applied, object, "loss", where, diag));
    TRY(window_parse(&g->norm, applied, object, "grad_norm", where, diag));
    TRY(json_get_array(object, "skipped", where, &skipped, diag));
    for (int64_t i = 0; i < skipped->n_items; i++)
        TRY(skip_parse(g, &skipped->items[i], where, diag));
    return ST_OK;
}
