#include "io/data.h"

#include <math.h>
#include <string.h>

#include "core/arena.h"
#include "core/rng.h"
#include "io/feistel.h"

/* Streams of the data order among all streams of random numbers of a seed. */
#define STREAM_DATA    ((uint64_t)0x64617461 << 32)
#define STREAM_COMMON  ((uint64_t)1 << 24)
#define STREAM_BLOCK   ((uint64_t)2 << 24)
#define STREAM_SEGMENT ((uint64_t)4 << 24)
#define STREAM_SOURCE  ((uint64_t)3 << 24) /* plus the source's number */
#define STREAM_VALID   ((uint64_t)1 << 28)
#define SOURCES_MAX    (1 << 20)

/* The part of a source that belongs to a split. */
struct part {
    struct text_source *source;
    int64_t first_sample;
    int64_t n_samples;
    double share;
    int64_t quota; /* samples a block, when the split has weights */
};

struct split {
    struct part *parts;
    int64_t n_parts;
    int64_t n_samples;
    bool has_weights;
    uint64_t stream;
};

struct data {
    struct arena arena;
    struct data_options options; /* its lists are not kept */
    uint64_t order_seed;         /* the seed, or what a data segment makes of it */
    struct text_source **sources;
    int64_t n_sources;
    struct split splits[DATA_SPLITS];
};

static enum status check_options(const struct data_options *o, struct diag *diag)
{
    if (o->n_train < 1 || o->n_train + o->n_valid > SOURCES_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "wrong number of data sources (data.train): got %lld, wanted 1 to %d",
                (long long)o->n_train, SOURCES_MAX);
    if (o->seq_len < 1 || o->seq_len > INT32_MAX)
        return diag_set(
                diag, ST_CONFIG,
                "wrong sequence length (data.seq_len): got %lld, wanted at least 1",
                (long long)o->seq_len);
    if (!(o->valid_fraction >= 0.0 && o->valid_fraction < 1.0))
        return diag_set(
                diag, ST_CONFIG,
                "wrong held-out part (data.valid_fraction): got %g, wanted 0 or "
                "more and below 1",
                o->valid_fraction);
    if (o->valid_fraction > 0.0 && o->n_valid > 0)
        return diag_set(diag, ST_CONFIG,
                        "two sets of validation data (data.valid and "
                        "data.valid_fraction): got both, wanted one of them");
    if (o->tokenizer->vocab_size > o->vocab)
        return diag_set(diag, ST_CONFIG,
                        "the model's vocabulary is too small (model.vocab): got %lld, "
                        "wanted at least %lld for tokenizer '%s'",
                        (long long)o->vocab, (long long)o->tokenizer->vocab_size,
                        o->tokenizer->name);
    return ST_OK;
}

static enum status fail_empty(const struct text_source *s, int64_t need,
                              struct diag *diag)
{
    struct text_counts c = text_source_counts(s);
    enum status st =
            diag_set(diag, ST_DATA, "no text (%s): got 0 tokens, wanted at least %lld",
                     text_source_path(s), (long long)need);
    if (c.skipped_binary + c.skipped_hidden + c.skipped_empty + c.skipped_other > 0)
        diag_hint(diag,
                  "left out: %lld binary, %lld hidden, %lld empty, %lld other files",
                  (long long)c.skipped_binary, (long long)c.skipped_hidden,
                  (long long)c.skipped_empty, (long long)c.skipped_other);
    return st;
}

/* The samples of a source, which must be at least min_samples. */
static enum status count_samples(const struct data *d, const struct text_source *s,
                                 int64_t min_samples, int64_t *out, struct diag *diag)
{
    int64_t t = d->options.seq_len, tokens = text_source_counts(s).tokens;
    int64_t need = min_samples * t + 1;
    if (tokens == 0)
        return fail_empty(s, need, diag);
    if (tokens < need) {
        enum status st = diag_set(
                diag, ST_CONFIG,
                "data is too short for sequences of %lld tokens (%s): got %lld tokens, "
                "wanted at least %lld%s",
                (long long)t, text_source_path(s), (long long)tokens, (long long)need,
                min_samples > 1 ? " to train and hold out a sequence each" : "");
        if (tokens > min_samples)
            diag_hint(diag, "data.seq_len=%lld is the longest that fits",
                      (long long)((tokens - 1) / min_samples));
        return st;
    }
    *out = (tokens - 1) / t;
    return ST_OK;
}

/* Opens the listed sources as the parts of a split, each with all its samples. */
static enum status open_split(struct data *d, enum data_split which,
                              const struct data_source *list, int64_t n,
                              struct diag *diag)
{
    struct split *split = &d->splits[which];
    struct text_options o = {d->options.tokenizer, d->options.text_field};
    int64_t min_samples = which == DATA_TRAIN && d->options.valid_fraction > 0 ? 2 : 1;
    split->parts = arena_array(&d->arena, struct part, n);
    split->n_parts = n;
    for (int64_t i = 0; i < n; i++) {
        struct part *p = &split->parts[i];
        TRY(text_source_open(list[i].path, &o, &p->source, diag));
        d->sources[d->n_sources++] = p->source;
        TRY(count_samples(d, p->source, min_samples, &p->n_samples, diag));
        split->n_samples += p->n_samples;
    }
    return ST_OK;
}

/* Moves the last valid_fraction of each training part to the validation split. */
static void hold_out(struct data *d)
{
    struct split *train = &d->splits[DATA_TRAIN], *valid = &d->splits[DATA_VALID];
    valid->n_parts = train->n_parts;
    valid->parts = arena_array(&d->arena, struct part, valid->n_parts);
    for (int64_t i = 0; i < valid->n_parts; i++) {
        struct part *t = &train->parts[i], *v = &valid->parts[i];
        double wish = floor(d->options.valid_fraction * (double)t->n_samples);
        int64_t n = MIN(MAX((int64_t)wish, 1), t->n_samples - 1);
        t->n_samples -= n;
        *v = (struct part){
                .source = t->source, .first_sample = t->n_samples, .n_samples = n};
        train->n_samples -= n;
        valid->n_samples += n;
    }
}

/* Sums the weights. out: *sum; *n_given, how many sources have one. */
static enum status sum_weights(const struct data_source *list, int64_t n, double *sum,
                               int64_t *n_given, struct diag *diag)
{
    *sum = 0.0;
    *n_given = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(list[i].weight >= 0.0 && isfinite(list[i].weight)))
            return diag_set(
                    diag, ST_CONFIG,
                    "wrong weight of a data source (%s): got %g, wanted a number "
                    "above 0",
                    list[i].path, list[i].weight);
        *sum += list[i].weight;
        *n_given += list[i].weight > 0.0;
    }
    if (*n_given > 0 && *n_given < n && *sum >= 1.0)
        return diag_set(
                diag, ST_CONFIG,
                "weights leave nothing for sources without one (data.train): got "
                "a sum of %g, wanted below 1",
                *sum);
    return ST_OK;
}

/* Rounds shares of a block to whole samples by largest remainder; ties go to the
 * source that comes first. */
static void set_quotas(struct split *split)
{
    int64_t left = DATA_BLOCK_SAMPLES;
    for (int64_t i = 0; i < split->n_parts; i++) {
        struct part *p = &split->parts[i];
        p->quota = (int64_t)floor(p->share * DATA_BLOCK_SAMPLES);
        left -= p->quota;
    }
    ASSERT(left >= 0);
    /* A part that got its extra sample has a negative remainder. */
    for (; left > 0; left--) {
        struct part *best = &split->parts[0];
        double most = -2.0;
        for (int64_t i = 0; i < split->n_parts; i++) {
            struct part *p = &split->parts[i];
            double rest = p->share * DATA_BLOCK_SAMPLES - (double)p->quota;
            if (rest > most) {
                most = rest;
                best = p;
            }
        }
        best->quota++;
    }
}

static enum status set_shares(struct split *split, const struct data_source *list,
                              struct diag *diag)
{
    double sum = 0.0;
    int64_t n_given = 0, n = split->n_parts, unweighted = 0;
    TRY(sum_weights(list, n, &sum, &n_given, diag));
    split->has_weights = n_given > 0;
    for (int64_t i = 0; i < n; i++)
        unweighted += list[i].weight > 0.0 ? 0 : split->parts[i].n_samples;
    double scale = n_given == n ? sum : 1.0;
    double rest = n_given == n ? 0.0 : 1.0 - sum;
    for (int64_t i = 0; i < n; i++) {
        struct part *p = &split->parts[i];
        p->share = list[i].weight > 0.0
                           ? list[i].weight / scale
                           : rest * (double)p->n_samples / (double)unweighted;
    }
    if (!split->has_weights)
        return ST_OK;
    set_quotas(split);
    for (int64_t i = 0; i < n; i++) {
        if (split->parts[i].quota == 0)
            return diag_set(
                    diag, ST_CONFIG,
                    "weight is too small (%s): got a share of %g, which is none of "
                    "%d samples; wanted at least %g",
                    list[i].path, split->parts[i].share, DATA_BLOCK_SAMPLES,
                    1.0 / DATA_BLOCK_SAMPLES);
    }
    return ST_OK;
}

static void share_by_samples(struct split *split)
{
    for (int64_t i = 0; i < split->n_parts; i++)
        split->parts[i].share =
                (double)split->parts[i].n_samples / (double)split->n_samples;
}

static enum status open_all(struct data *d, const struct data_options *o,
                            struct diag *diag)
{
    d->sources = arena_array(&d->arena, struct text_source *, o->n_train + o->n_valid);
    d->splits[DATA_TRAIN].stream = STREAM_DATA;
    d->splits[DATA_VALID].stream = STREAM_DATA | STREAM_VALID;
    TRY(open_split(d, DATA_TRAIN, o->train, o->n_train, diag));
    if (o->valid_fraction > 0.0) {
        hold_out(d);
        share_by_samples(&d->splits[DATA_VALID]);
    }
    TRY(set_shares(&d->splits[DATA_TRAIN], o->train, diag));
    if (o->n_valid == 0)
        return ST_OK;
    TRY(open_split(d, DATA_VALID, o->valid, o->n_valid, diag));
    return set_shares(&d->splits[DATA_VALID], o->valid, diag);
}

enum status data_open(const struct data_options *options, struct data **out,
                      struct diag *diag)
{
    TRY(check_options(options, diag));
    struct data *d = mem_alloc(sizeof(*d));
    d->options = *options;
    d->options.train = d->options.valid = NULL;
    data_set_segment(d, 0);
    enum status st = open_all(d, options, diag);
    if (st != ST_OK) {
        data_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

void data_close(struct data *d)
{
    if (!d)
        return;
    for (int64_t i = 0; i < d->n_sources; i++)
        text_source_close(d->sources[i]);
    arena_release(&d->arena);
    mem_free(d);
}

int64_t data_samples(const struct data *d, enum data_split split)
{
    return d->splits[split].n_samples;
}

int64_t data_sources(const struct data *d, enum data_split split)
{
    return d->splits[split].n_parts;
}

static const struct part *part_at(const struct data *d, enum data_split split,
                                  int64_t source)
{
    ASSERT(source >= 0 && source < d->splits[split].n_parts);
    return &d->splits[split].parts[source];
}

struct data_source_info data_source_info(const struct data *d, enum data_split split,
                                         int64_t source)
{
    const struct part *p = part_at(d, split, source);
    return (struct data_source_info){text_source_path(p->source),
                                     text_source_counts(p->source), p->n_samples,
                                     p->share};
}

void data_set_segment(struct data *d, uint64_t segment)
{
    uint64_t seed = d->options.seed;
    d->order_seed =
            segment == 0 ? seed : rng_u64(seed, STREAM_DATA | STREAM_SEGMENT, segment);
}

enum status data_identity(const struct data *d, enum data_split split, int64_t source,
                          uint64_t *out, struct diag *diag)
{
    return text_source_identity(part_at(d, split, source)->source, out, diag);
}

/* Image of i in the bijection on 0..n-1 of this stream and epoch. */
static int64_t shuffled(const struct data *d, int64_t n, uint64_t stream, int64_t epoch,
                        int64_t i)
{
    if (!d->options.shuffle)
        return i;
    struct feistel f = feistel_make(n, d->order_seed, stream, epoch);
    return feistel_map(&f, i);
}

static struct data_place locate_common(const struct data *d, const struct split *s,
                                       int64_t g)
{
    struct data_place at = {.epoch = g / s->n_samples};
    int64_t i = shuffled(d, s->n_samples, s->stream | STREAM_COMMON, at.epoch,
                         g % s->n_samples);
    while (i >= s->parts[at.source].n_samples)
        i -= s->parts[at.source++].n_samples;
    at.sample = s->parts[at.source].first_sample + i;
    return at;
}

static struct data_place locate_weighted(const struct data *d, const struct split *s,
                                         int64_t g)
{
    int64_t block = g / DATA_BLOCK_SAMPLES;
    struct feistel f = feistel_make(DATA_BLOCK_SAMPLES, d->order_seed,
                                    s->stream | STREAM_BLOCK, block);
    int64_t i = feistel_map(&f, g % DATA_BLOCK_SAMPLES);
    int64_t source = 0;
    while (i >= s->parts[source].quota)
        i -= s->parts[source++].quota;
    const struct part *p = &s->parts[source];
    int64_t k = block * p->quota + i;
    struct data_place at = {.source = source, .epoch = k / p->n_samples};
    uint64_t stream = (s->stream | STREAM_SOURCE) + (uint64_t)source;
    at.sample = p->first_sample +
                shuffled(d, p->n_samples, stream, at.epoch, k % p->n_samples);
    return at;
}

struct data_place data_locate(const struct data *d, enum data_split split,
                              int64_t sample)
{
    const struct split *s = &d->splits[split];
    ASSERT(s->n_samples > 0 && sample >= 0);
    return s->has_weights ? locate_weighted(d, s, sample) : locate_common(d, s, sample);
}

/* Reads the tokens and labels of one sample, i32[T] each. */
static enum status read_sample(const struct data *d, const struct text_source *source,
                               int64_t sample, int32_t *tokens, int32_t *labels,
                               struct diag *diag)
{
    int64_t t = d->options.seq_len, offset = sample * t;
    TRY(text_source_read(source, offset, 1, (uint32_t *)tokens, diag));
    TRY(text_source_read(source, offset + 1, t, (uint32_t *)labels, diag));
    memcpy(tokens + 1, labels, (size_t)(t - 1) * sizeof(*tokens));
    return ST_OK;
}

/* Fills positions and document starts of one sample, takes labels away where there is
 * nothing to predict, and returns how many are left. */
static int64_t mark_documents(const struct data *d, const int32_t *tokens,
                              int32_t *labels, int32_t *positions, int32_t *doc_starts)
{
    int32_t t = (int32_t)d->options.seq_len, start = 0;
    int64_t trained = t;
    int32_t eod = (int32_t)d->options.tokenizer->eod;
    for (int32_t i = 0; i < t; i++) {
        positions[i] = i - start;
        doc_starts[i] = start;
        if (d->options.mask_documents && tokens[i] == eod) {
            labels[i] = -1;
            trained--;
            start = i + 1;
        }
    }
    return trained;
}

enum status data_fetch(const struct data *d, enum data_split split, int64_t first,
                       int64_t n, const struct data_arrays *out, int64_t *n_trained,
                       struct diag *diag)
{
    int64_t t = d->options.seq_len;
    *n_trained = 0;
    for (int64_t i = 0; i < n; i++) {
        struct data_place at = data_locate(d, split, first + i);
        const struct text_source *source = d->splits[split].parts[at.source].source;
        int32_t *tokens = out->tokens + i * t, *labels = out->labels + i * t;
        TRY(read_sample(d, source, at.sample, tokens, labels, diag));
        *n_trained += mark_documents(d, tokens, labels, out->positions + i * t,
                                     out->doc_starts + i * t);
    }
    return ST_OK;
}
