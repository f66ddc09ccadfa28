#include "parallel/stages.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/str.h"
#include "core/vec.h"

/* What cuts are judged by. */
struct balance {
    const struct stages_cost *cost;
    double *before; /* [n_layers + 1] time of the layers before this one */
    int64_t n_layers;
    int64_t n_virtual;
};

/* Layers [begin, end) as virtual stage u. Every time that is compared comes from here. */
static double time_of(const struct balance *b, int64_t u, int64_t begin, int64_t end)
{
    double t = b->before[end] - b->before[begin];
    if (u == 0)
        t += b->cost->embedding;
    if (u == b->n_virtual - 1)
        t += b->cost->head;
    return t;
}

/* row[end]: the least time of the slowest of stages 0..u over layers [0, end). prev is the
 * row of u - 1. The best begin of stage u moves only forwards as end grows: prev rises
 * with it, the stage's own time falls, and adding a layer at the end lifts only the
 * latter. */
static void slowest_row(const struct balance *b, int64_t u, const double *prev,
                        double *row)
{
    int64_t begin = 0;
    for (int64_t end = 0; end <= b->n_layers; end++) {
        double best = fmax(prev[begin], time_of(b, u, begin, end));
        while (begin < end) {
            double next = fmax(prev[begin + 1], time_of(b, u, begin + 1, end));
            if (next > best)
                break;
            best = next;
            begin++;
        }
        row[end] = best;
    }
}

/* The least time of the slowest stage. */
static double slowest_time(const struct balance *b)
{
    size_t n = (size_t)b->n_layers + 1;
    double *rows = mem_alloc(2 * n * sizeof(*rows));
    double *prev = rows, *row = rows + n;
    for (int64_t end = 0; end <= b->n_layers; end++)
        prev[end] = time_of(b, 0, 0, end);
    for (int64_t u = 1; u < b->n_virtual; u++) {
        slowest_row(b, u, prev, row);
        double *swap = prev;
        prev = row;
        row = swap;
    }
    double t = prev[b->n_layers];
    mem_free(rows);
    return t;
}

/* row[end]: the least sum of squares of stages 0..u over layers [0, end), none of them
 * slower than `most`; first[end] where stage u begins then. */
static void squares_row(const struct balance *b, int64_t u, double most,
                        const double *prev, double *row, int32_t *first)
{
    for (int64_t end = 0; end <= b->n_layers; end++) {
        row[end] = INFINITY;
        for (int64_t begin = end; begin >= 0; begin--) {
            double t = time_of(b, u, begin, end);
            if (t > most)
                break;
            double sum = prev[begin] + t * t;
            /* Sums that differ by rounding alone are equal. */
            if (sum < row[end] * (1 - 1e-12) ||
                (row[end] == INFINITY && sum < row[end])) {
                row[end] = sum;
                first[end] = (int32_t)begin;
            }
        }
    }
}

static void cut_layers(const struct balance *b, double most, int64_t *layers)
{
    size_t n = (size_t)b->n_layers + 1;
    double *rows = mem_alloc(2 * n * sizeof(*rows));
    int32_t *first = mem_alloc((size_t)b->n_virtual * n * sizeof(*first));
    double *prev = rows, *row = rows + n;
    for (size_t end = 0; end < n; end++)
        prev[end] = end == 0 ? 0 : INFINITY; /* no stage has no layers */
    for (int64_t u = 0; u < b->n_virtual; u++) {
        squares_row(b, u, most, prev, row, first + (size_t)u * n);
        double *swap = prev;
        prev = row;
        row = swap;
    }
    ASSERT(prev[b->n_layers] < INFINITY);
    int64_t end = b->n_layers;
    for (int64_t u = b->n_virtual - 1; u >= 0; u--) {
        int64_t begin = first[(size_t)u * n + (size_t)end];
        layers[u] = end - begin;
        end = begin;
    }
    ASSERT(end == 0);
    mem_free(rows);
    mem_free(first);
}

static enum status check_sizes(int64_t n_layers, int64_t n_stages, int64_t n_chunks,
                               struct diag *diag)
{
    int64_t n_virtual;
    if (n_layers < 1 || n_layers > STAGES_LAYERS_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "impossible number of layers (model.layers): got %lld, wanted 1 "
                "to %d",
                (long long)n_layers, STAGES_LAYERS_MAX);
    if (n_stages < 1 || n_chunks < 1 || !mul_i64(n_stages, n_chunks, &n_virtual) ||
        n_virtual > STAGES_VIRTUAL_MAX)
        return diag_set(diag, ST_CONFIG,
                        "impossible number of virtual stages (parallel): got pp %lld x "
                        "vpp %lld, wanted 1 to %d",
                        (long long)n_stages, (long long)n_chunks, STAGES_VIRTUAL_MAX);
    return ST_OK;
}

enum status stages_balance(const struct stages_cost *cost, int64_t n_layers,
                           int64_t n_stages, int64_t n_chunks, int64_t *layers,
                           struct diag *diag)
{
    TRY(check_sizes(n_layers, n_stages, n_chunks, diag));
    struct balance b = {
            .cost = cost,
            .n_layers = n_layers,
            .n_virtual = n_stages * n_chunks,
            .before = mem_alloc(((size_t)n_layers + 1) * sizeof(double)),
    };
    ASSERT(isfinite(cost->embedding) && cost->embedding >= 0);
    ASSERT(isfinite(cost->head) && cost->head >= 0);
    for (int64_t i = 0; i < n_layers; i++) {
        ASSERT(isfinite(cost->layer[i]) && cost->layer[i] >= 0);
        b.before[i + 1] = b.before[i] + cost->layer[i];
    }
    cut_layers(&b, slowest_time(&b), layers);
    mem_free(b.before);
    return ST_OK;
}

double stages_time(const struct stages_cost *cost, const int64_t *layers,
                   int64_t n_virtual, double *time)
{
    double slowest = 0;
    int64_t layer = 0;
    for (int64_t u = 0; u < n_virtual; u++) {
        time[u] = u == 0 ? cost->embedding : 0;
        for (int64_t i = 0; i < layers[u]; i++)
            time[u] += cost->layer[layer++];
        time[u] += u == n_virtual - 1 ? cost->head : 0;
        slowest = fmax(slowest, time[u]);
    }
    return slowest;
}

/* ------------------------------------------------------------------------------ lists */

/* Long lists are left away: a hint is one line. */
#define HINT_NUMBERS_MAX 64

static void hint_balanced(const struct stages_cost *cost, int64_t n_layers,
                          int64_t n_stages, int64_t n_chunks, struct diag *diag)
{
    int64_t n = n_stages * n_chunks, layers[HINT_NUMBERS_MAX];
    if (n > HINT_NUMBERS_MAX) {
        diag_hint(diag, "parallel.layers_per_stage=auto balances them");
        return;
    }
    if (stages_balance(cost, n_layers, n_stages, n_chunks, layers, diag) != ST_OK)
        return;
    struct str text = {0};
    for (int64_t u = 0; u < n; u++)
        str_printf(&text, "%s%lld", u ? "," : "", (long long)layers[u]);
    diag_hint(diag, "balanced, as auto cuts them: parallel.layers_per_stage=%s",
              str_get(&text));
    str_free(&text);
}

static enum status list_problem(int64_t n_layers, int64_t n_stages, int64_t n_chunks,
                                const int64_t *list, int64_t n, struct diag *diag)
{
    static const char what[] =
            "layers do not fit the stages (parallel.layers_per_stage)";
    int64_t sum = 0;
    if (n != n_stages * n_chunks)
        return diag_set(diag, ST_CONFIG,
                        "%s: got %lld number%s, wanted pp %lld x vpp %lld = %lld", what,
                        (long long)n, n == 1 ? "" : "s", (long long)n_stages,
                        (long long)n_chunks, (long long)(n_stages * n_chunks));
    for (int64_t i = 0; i < n; i++) {
        if (list[i] < 0 || list[i] > n_layers)
            return diag_set(
                    diag, ST_CONFIG, "%s: got %lld as number %lld, wanted 0 to %lld",
                    what, (long long)list[i], (long long)(i + 1), (long long)n_layers);
        sum += list[i];
    }
    if (sum != n_layers)
        return diag_set(diag, ST_CONFIG, "%s: got %lld in all, wanted the model's %lld",
                        what, (long long)sum, (long long)n_layers);
    return ST_OK;
}

enum status stages_check(const struct stages_cost *cost, int64_t n_layers,
                         int64_t n_stages, int64_t n_chunks, const int64_t *list,
                         int64_t n, struct diag *diag)
{
    TRY(check_sizes(n_layers, n_stages, n_chunks, diag));
    enum status st = list_problem(n_layers, n_stages, n_chunks, list, n, diag);
    if (st != ST_OK)
        hint_balanced(cost, n_layers, n_stages, n_chunks, diag);
    return st;
}

/* A number and what may stand behind it; *at moves on. */
static bool read_number(const char **at, int64_t *out)
{
    char *end;
    *at += strspn(*at, " ");
    errno = 0;
    long long v = strtoll(*at, &end, 10);
    if (end == *at || errno)
        return false;
    *out = v;
    *at = end + strspn(end, " ");
    return true;
}

/* "1,2" or "[1, 2]"; more numbers than there are places are counted and dropped. */
static bool read_list(const char *text, int64_t *list, int64_t most, int64_t *n)
{
    const char *at = text + strspn(text, " ");
    bool bracket = *at == '[';
    at += bracket;
    for (*n = 0;; at++) {
        int64_t v;
        if (!read_number(&at, &v))
            return false;
        if (*n < most)
            list[*n] = v;
        ++*n;
        if (*at != ',')
            break;
    }
    if (bracket && *at++ != ']')
        return false;
    return at[strspn(at, " ")] == 0;
}

enum status stages_read(const char *text, const struct stages_cost *cost,
                        int64_t n_layers, int64_t n_stages, int64_t n_chunks,
                        int64_t *layers, struct diag *diag)
{
    int64_t n;
    TRY(check_sizes(n_layers, n_stages, n_chunks, diag));
    if (strcmp(text, "auto") == 0)
        return stages_balance(cost, n_layers, n_stages, n_chunks, layers, diag);
    if (read_list(text, layers, n_stages * n_chunks, &n))
        return stages_check(cost, n_layers, n_stages, n_chunks, layers, n, diag);
    diag_set(
            diag, ST_CONFIG,
            "not a list of layers (parallel.layers_per_stage): got '%s', wanted 'auto' "
            "or whole numbers with commas",
            text);
    hint_balanced(cost, n_layers, n_stages, n_chunks, diag);
    return ST_CONFIG;
}
