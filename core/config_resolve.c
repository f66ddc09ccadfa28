#include <math.h>
#include <string.h>

#include "core/config.h"

#define WARMUP_STEPS_DEFAULT 100
#define STEPS_DEFAULT        1000

/* Where a key was given, for messages. */
static const char *where(struct config *c, const char *key)
{
    struct opt_store s = config_store(c);
    return opt_where(&s, key);
}

static int layer(struct config *c, const char *key)
{
    return c->origins[opt_find_index(config_table(), key)].layer;
}

/* Divisors of n nearest to `got` from below and above. */
static void nearest_divisors(int64_t n, int64_t got, int64_t *below, int64_t *above)
{
    *below = 1;
    *above = n;
    for (int64_t d = 1; d <= n / d; d++) {
        if (n % d)
            continue;
        int64_t pair[2] = {d, n / d};
        for (int i = 0; i < 2; i++) {
            if (pair[i] <= got)
                *below = MAX(*below, pair[i]);
            else
                *above = MIN(*above, pair[i]);
        }
    }
}

static void hint_divisors(int64_t n, int64_t got, const char *key, struct diag *diag)
{
    int64_t below, above;
    nearest_divisors(n, got, &below, &above);
    if (got > n)
        diag_hint(diag, "nearest that works: %s=%lld", key, (long long)n);
    else
        diag_hint(diag, "nearest that work: %s=%lld or %lld", key, (long long)below,
                  (long long)above);
}

/* ---- model ---- */

static enum status check_given(struct config *c, struct diag *diag)
{
    const struct config_model *m = &c->model;
    const struct {
        const char *key;
        int64_t value;
    } needed[] = {{"vocab", m->vocab},
                  {"layers", m->layers},
                  {"hidden", m->hidden},
                  {"heads", m->heads},
                  {"ffn", m->ffn}};
    for (size_t i = 0; i < ARRAY_LEN(needed); i++) {
        if (needed[i].value)
            continue;
        diag_set(diag, ST_CONFIG,
                 "model.%s (configuration): got nothing, wanted a count",
                 needed[i].key);
        diag_hint(diag, "model=configs/models/llama-tiny.yaml gives a whole model");
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status resolve_heads(struct config *c, struct diag *diag)
{
    struct config_model *m = &c->model;
    if (!m->kv_heads)
        m->kv_heads = m->heads;
    if (m->heads % m->kv_heads) {
        diag_set(diag, ST_CONFIG,
                 "model.kv_heads (%s) and model.heads (%s): got %lld and %lld, wanted "
                 "heads a multiple of kv_heads",
                 where(c, "model.kv_heads"), where(c, "model.heads"),
                 (long long)m->kv_heads, (long long)m->heads);
        hint_divisors(m->heads, m->kv_heads, "model.kv_heads", diag);
        return ST_CONFIG;
    }
    if (!m->head_dim && m->hidden % m->heads) {
        diag_set(diag, ST_CONFIG,
                 "model.hidden (%s) and model.heads (%s): got %lld and %lld, wanted "
                 "hidden a multiple of heads, or model.head_dim given",
                 where(c, "model.hidden"), where(c, "model.heads"),
                 (long long)m->hidden, (long long)m->heads);
        hint_divisors(m->hidden, m->heads, "model.heads", diag);
        return ST_CONFIG;
    }
    if (!m->head_dim)
        m->head_dim = m->hidden / m->heads;
    if (m->attn_scale == 0)
        m->attn_scale = 1.0 / sqrt((double)m->head_dim);
    return ST_OK;
}

static enum status resolve_position(struct config *c, struct diag *diag)
{
    struct config_model *m = &c->model;
    if (m->position == POSITION_ROPE && m->head_dim % 2) {
        diag_set(diag, ST_CONFIG,
                 "model.head_dim (%s) and model.position (%s): got %lld and rope, "
                 "wanted an even head_dim",
                 where(c, "model.head_dim"), where(c, "model.position"),
                 (long long)m->head_dim);
        diag_hint(diag, "nearest that work: model.head_dim=%lld or %lld",
                  (long long)MAX(m->head_dim - 1, 2), (long long)m->head_dim + 1);
        return ST_CONFIG;
    }
    if (!m->max_positions)
        m->max_positions = c->data.seq_len;
    if (m->position == POSITION_LEARNED && c->data.seq_len > m->max_positions) {
        diag_set(diag, ST_CONFIG,
                 "data.seq_len (%s) and model.max_positions (%s): got %lld and %lld, "
                 "wanted seq_len within the learned positions",
                 where(c, "data.seq_len"), where(c, "model.max_positions"),
                 (long long)c->data.seq_len, (long long)m->max_positions);
        diag_hint(diag, "nearest that works: data.seq_len=%lld",
                  (long long)m->max_positions);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status resolve_rope_scaling(struct config *c, struct diag *diag)
{
    struct rope_scaling *r = &c->model.rope_scaling;
    if (r->attention_factor == 0)
        r->attention_factor = r->type == ROPE_YARN ? 0.1 * log(r->factor) + 1.0 : 1.0;
    if (r->type == ROPE_NONE)
        return ST_OK;
    if (c->model.position != POSITION_ROPE) {
        diag_set(diag, ST_CONFIG,
                 "model.rope_scaling.type (%s) and model.position (%s): got a scaling "
                 "without rotations, wanted position rope",
                 where(c, "model.rope_scaling.type"), where(c, "model.position"));
        diag_hint(diag, "nearest that works: model.rope_scaling.type=none");
        return ST_CONFIG;
    }
    if (r->type == ROPE_LLAMA3 && r->high_freq_factor <= r->low_freq_factor)
        return diag_set(diag, ST_CONFIG,
                        "model.rope_scaling.low_freq_factor (%s) and high_freq_factor "
                        "(%s): got %g and %g, wanted low below high",
                        where(c, "model.rope_scaling.low_freq_factor"),
                        where(c, "model.rope_scaling.high_freq_factor"),
                        r->low_freq_factor, r->high_freq_factor);
    if (r->type == ROPE_YARN && r->beta_fast <= r->beta_slow)
        return diag_set(
                diag, ST_CONFIG,
                "model.rope_scaling.beta_fast (%s) and beta_slow (%s): got %g and "
                "%g, wanted fast above slow",
                where(c, "model.rope_scaling.beta_fast"),
                where(c, "model.rope_scaling.beta_slow"), r->beta_fast, r->beta_slow);
    return ST_OK;
}

static enum status check_variants(struct config *c, struct diag *diag)
{
    const struct config_model *m = &c->model;
    if (m->norm_plus_one && m->norm != NORM_RMSNORM) {
        diag_set(
                diag, ST_CONFIG,
                "model.norm_plus_one (%s) and model.norm (%s): got true and layernorm, "
                "wanted rmsnorm",
                where(c, "model.norm_plus_one"), where(c, "model.norm"));
        diag_hint(diag, "nearest that works: model.norm_plus_one=false");
        return ST_CONFIG;
    }
    if (m->window_every > 1 && m->window == 0) {
        diag_set(
                diag, ST_CONFIG,
                "model.window_every (%s) and model.window (%s): got %lld and 0, wanted "
                "a window",
                where(c, "model.window_every"), where(c, "model.window"),
                (long long)m->window_every);
        diag_hint(diag, "nearest that works: model.window_every=1");
        return ST_CONFIG;
    }
    return ST_OK;
}

enum status config_resolve_model(struct config *c, struct diag *diag)
{
    TRY(check_given(c, diag));
    TRY(resolve_heads(c, diag));
    TRY(resolve_position(c, diag));
    TRY(resolve_rope_scaling(c, diag));
    return check_variants(c, diag);
}

/* ---- length and batches ---- */

static const struct config_batch *stage_at(const struct config *c, int64_t tokens)
{
    const struct config_batches *b = &c->train.global_batch;
    ASSERT(b->n >= 1);
    int64_t i = 0;
    while (i + 1 < b->n && tokens >= b->items[i].until_tokens)
        i++;
    return &b->items[i];
}

int64_t config_global_batch(const struct config *c, int64_t tokens)
{
    return stage_at(c, tokens)->global_batch;
}

int64_t config_global_batch_max(const struct config *c)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->train.global_batch.n; i++)
        most = MAX(most, c->train.global_batch.items[i].global_batch);
    return most;
}

/* Steps of the stage at `tokens` until it ends or `target` tokens are reached. */
static int64_t steps_in_stage(const struct config *c, const struct config_batch *stage,
                              int64_t tokens, int64_t target)
{
    bool last = stage == &c->train.global_batch.items[c->train.global_batch.n - 1];
    int64_t end = last ? target : MIN(stage->until_tokens, target);
    int64_t per_step = stage->global_batch * c->data.seq_len;
    return (end - tokens - 1) / per_step + 1;
}

int64_t config_tokens_after(const struct config *c, int64_t step)
{
    int64_t tokens = 0;
    while (step > 0) {
        const struct config_batch *stage = stage_at(c, tokens);
        int64_t n = MIN(steps_in_stage(c, stage, tokens, INT64_MAX), step);
        tokens += n * stage->global_batch * c->data.seq_len;
        step -= n;
    }
    return tokens;
}

static int64_t steps_for_tokens(const struct config *c, int64_t target)
{
    int64_t tokens = 0, steps = 0;
    while (tokens < target) {
        const struct config_batch *stage = stage_at(c, tokens);
        int64_t n = steps_in_stage(c, stage, tokens, target);
        tokens += n * stage->global_batch * c->data.seq_len;
        steps += n;
    }
    return steps;
}

static enum status check_ramp(struct config *c, struct diag *diag)
{
    const struct config_batches *b = &c->train.global_batch;
    const char *at = where(c, "train.global_batch");
    if (b->n == 0)
        return diag_set(diag, ST_CONFIG,
                        "train.global_batch (%s): got an empty list, "
                        "wanted a count or stages",
                        at);
    for (int64_t i = 0; i < b->n; i++) {
        bool last = i + 1 == b->n;
        int64_t until = b->items[i].until_tokens;
        int64_t before = i ? b->items[i - 1].until_tokens : 0;
        if (last && until)
            return diag_set(
                    diag, ST_CONFIG,
                    "train.global_batch[%lld] (%s): got until_tokens %lld in the "
                    "last stage, wanted none: it has no end",
                    (long long)i, at, (long long)until);
        if (!last && until <= before)
            return diag_set(
                    diag, ST_CONFIG,
                    "train.global_batch[%lld] (%s): got until_tokens %lld, wanted "
                    "more than %lld, where the stage begins",
                    (long long)i, at, (long long)until, (long long)before);
    }
    return ST_OK;
}

static enum status check_micro_batch(struct config *c, struct diag *diag)
{
    const struct config_batches *b = &c->train.global_batch;
    int64_t micro = c->train.micro_batch;
    for (int64_t i = 0; micro && i < b->n; i++) {
        int64_t global = b->items[i].global_batch;
        if (global % micro == 0)
            continue;
        diag_set(diag, ST_CONFIG,
                 "train.micro_batch (%s) and train.global_batch (%s): got %lld and "
                 "%lld, wanted micro_batch to divide global_batch",
                 where(c, "train.micro_batch"), where(c, "train.global_batch"),
                 (long long)micro, (long long)global);
        hint_divisors(global, micro, "train.micro_batch", diag);
        return ST_CONFIG;
    }
    return ST_OK;
}

/* Of two fields that exclude each other, the one of the higher layer counts; equal
 * layers are an error. in: both are set. out: *second_wins. */
static enum status exclude(struct config *c, const char *first, const char *second,
                           bool *second_wins, struct diag *diag)
{
    int a = layer(c, first), b = layer(c, second);
    *second_wins = b >= a;
    if (a != b || a == 0)
        return ST_OK;
    diag_set(diag, ST_CONFIG, "%s (%s) and %s (%s): got both, wanted one of them",
             first, where(c, first), second, where(c, second));
    diag_hint(diag, "leave out %s", second);
    return ST_CONFIG;
}

static enum status resolve_length(struct config *c, struct diag *diag)
{
    struct config_train *t = &c->train;
    bool tokens_win = true;
    if (t->steps && t->tokens)
        TRY(exclude(c, "train.steps", "train.tokens", &tokens_win, diag));
    if (t->tokens && tokens_win) {
        t->steps = steps_for_tokens(c, t->tokens);
        return ST_OK;
    }
    t->tokens = 0;
    if (!t->steps)
        t->steps = STEPS_DEFAULT;
    int64_t most;
    if (!mul_i64(config_global_batch_max(c) * c->data.seq_len, t->steps, &most) ||
        most > INT64_MAX / 2)
        return diag_set(
                diag, ST_CONFIG,
                "train.steps (%s), train.global_batch (%s), data.seq_len (%s): got "
                "more tokens than can be counted, wanted at most %lld",
                where(c, "train.steps"), where(c, "train.global_batch"),
                where(c, "data.seq_len"), (long long)(INT64_MAX / 2));
    return ST_OK;
}

/* ---- schedule, data, places ---- */

static enum status resolve_schedule(struct config *c, struct diag *diag)
{
    struct config_schedule *s = &c->train.schedule;
    const struct config_optimizer *o = &c->train.optimizer;
    int64_t steps = c->train.steps;
    if (s->warmup < 0)
        s->warmup = MIN(WARMUP_STEPS_DEFAULT, steps / 10);
    if (s->min_lr < 0)
        s->min_lr = o->lr / 10;
    if (!s->decay_steps && s->type == SCHEDULE_WSD)
        s->decay_steps = MIN(MAX(steps / 10, 1), MAX(steps - s->warmup, 1));
    if (s->warmup > steps) {
        diag_set(diag, ST_CONFIG,
                 "train.schedule.warmup (%s) and train.steps (%s): got %lld and %lld, "
                 "wanted warmup within the run",
                 where(c, "train.schedule.warmup"), where(c, "train.steps"),
                 (long long)s->warmup, (long long)steps);
        diag_hint(diag, "nearest that works: train.schedule.warmup=%lld",
                  (long long)steps);
        return ST_CONFIG;
    }
    if (s->type == SCHEDULE_WSD && s->decay_steps > steps - s->warmup) {
        diag_set(diag, ST_CONFIG,
                 "train.schedule.decay_steps (%s) and train.schedule.warmup (%s): got "
                 "%lld and %lld, wanted both within the %lld steps of the run",
                 where(c, "train.schedule.decay_steps"),
                 where(c, "train.schedule.warmup"), (long long)s->decay_steps,
                 (long long)s->warmup, (long long)steps);
        diag_hint(diag, "nearest that works: train.schedule.decay_steps=%lld",
                  (long long)(steps - s->warmup));
        return ST_CONFIG;
    }
    if (s->type != SCHEDULE_CONSTANT && s->min_lr > o->lr) {
        diag_set(diag, ST_CONFIG,
                 "train.schedule.min_lr (%s) and train.optimizer.lr (%s): got %g and "
                 "%g, wanted min_lr at most lr",
                 where(c, "train.schedule.min_lr"), where(c, "train.optimizer.lr"),
                 s->min_lr, o->lr);
        diag_hint(diag, "nearest that works: train.schedule.min_lr=%g", o->lr);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status resolve_data(struct config *c, struct diag *diag)
{
    struct config_data *d = &c->data;
    if (d->train.n == 0) {
        diag_set(diag, ST_CONFIG,
                 "data.train (configuration): got nothing, wanted text to "
                 "train on");
        diag_hint(diag, "data.train=FOLDER names a folder of text files");
        return ST_CONFIG;
    }
    bool fraction_wins = false;
    if (*d->valid && d->valid_fraction > 0) {
        TRY(exclude(c, "data.valid", "data.valid_fraction", &fraction_wins, diag));
        if (fraction_wins)
            d->valid = "";
        else
            d->valid_fraction = 0;
    }
    return ST_OK;
}

static void resolve_places(struct config *c)
{
    struct str path = {0};
    if (!*c->checkpoint.dir) {
        str_printf(&path, "runs/%s", c->name);
        c->checkpoint.dir = arena_strdup(&c->arena, str_get(&path));
    }
    if (!*c->log.jsonl) {
        str_clear(&path);
        str_printf(&path, "%s/metrics.jsonl", c->checkpoint.dir);
        c->log.jsonl = arena_strdup(&c->arena, str_get(&path));
    }
    str_free(&path);
}

enum status config_resolve(struct config *c, struct diag *diag)
{
    struct opt_store s = config_store(c);
    TRY(opt_check_lists(&s, diag));
    TRY(config_resolve_model(c, diag));
    TRY(resolve_data(c, diag));
    TRY(check_ramp(c, diag));
    TRY(check_micro_batch(c, diag));
    TRY(resolve_length(c, diag));
    TRY(resolve_schedule(c, diag));
    resolve_places(c);
    return ST_OK;
}
