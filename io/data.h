/* The training data: sources of text, cut into samples, in an order that is a pure
 * function of (seed, epoch, global sample number).
 *
 * Sample k of a source is the tokens k*seq_len .. (k+1)*seq_len of its stream: seq_len
 * inputs and, shifted by one, seq_len labels. What is left at the end is dropped.
 *
 * Order. Global samples are numbered 0, 1, 2, ... without end; batches are ranges of
 * them, so batch size, ranks and steps do not matter.
 * - No source has a weight: an epoch is all N samples of all sources, and global sample g
 *   is sample P(g mod N) of them, P a bijection keyed by (seed, epoch g / N).
 * - Otherwise the sources are interleaved in blocks of DATA_BLOCK_SAMPLES. Every block
 *   has the same number of samples of each source: its share of the block, rounded by
 *   largest remainder. A bijection keyed by (seed, block) places them in the block. The
 *   k-th sample that is drawn from a source with N samples is P(k mod N) with P keyed by
 *   (seed, source, k / N): each source has epochs of its own.
 *   Shares: the weights over their sum when all sources have one; else the weights
 *   themselves, whose sum must be below 1, and sources without one share the rest in
 *   proportion to their numbers of samples.
 * Without shuffling, P is the identity (blocks are still interleaved).
 */
#ifndef IO_DATA_H
#define IO_DATA_H

#include "io/text_source.h"

#define DATA_BLOCK_SAMPLES 4096

struct data;

struct data_source {
    const char *path;
    double weight; /* 0: none given */
};

struct data_options {
    const struct data_source *train; /* [n_train] */
    int64_t n_train;
    const struct data_source *valid; /* [n_valid]; may be none */
    int64_t n_valid;

    /* Instead of `valid`: this part of every training source's samples, at least one,
     * taken from its end, is never trained on, but for its first token: that is the last
     * label before it. 0: none. Held-out samples have no weights. */
    double valid_fraction;

    const struct tokenizer *tokenizer;
    const char *text_field;
    int64_t seq_len; /* tokens */
    int64_t vocab;   /* ids the model knows */
    uint64_t seed;
    bool shuffle;

    /* Documents in a sequence are apart: positions restart, and an end-of-document token
     * has no label (what follows it is another document). */
    bool mask_documents;
};

enum data_split {
    DATA_TRAIN,
    DATA_VALID,
    DATA_SPLITS
};

/* Opens all sources. in: options, copied. out: *out, to be closed by the caller. errors:
 * ST_CONFIG for options that do not go together (weights, a vocabulary smaller than the
 * tokenizer's, a source shorter than one sample), ST_DATA for a source without text, and
 * those of text_source_open. */
MUST_CHECK enum status data_open(const struct data_options *options, struct data **out,
                                 struct diag *diag);
void data_close(struct data *d);

/* Draws samples in another order, that of data segment `segment` (0: the first, as after
 * data_open). A run whose sources change goes on in a new segment, so that it does not
 * begin with what it has just seen. Before any reader. */
void data_set_segment(struct data *d, uint64_t segment);

/* Samples in one pass over all sources of the split; 0: there is no such split. */
int64_t data_samples(const struct data *d, enum data_split split);

struct data_source_info {
    const char *path;
    struct text_counts counts; /* of the whole source */
    int64_t n_samples;         /* in this split */
    double share;              /* of the samples drawn; sums to 1 over the sources */
};

int64_t data_sources(const struct data *d, enum data_split split);
struct data_source_info data_source_info(const struct data *d, enum data_split split,
                                         int64_t source);

/* The fingerprint of a source's token stream (text_source_identity): reads it once. */
MUST_CHECK enum status data_identity(const struct data *d, enum data_split split,
                                     int64_t source, uint64_t *out, struct diag *diag);

/* Where a global sample comes from. */
struct data_place {
    int64_t source;
    int64_t epoch;  /* of the source, or of all sources when none has a weight */
    int64_t sample; /* of the source, counted from the begin of its stream */
};
struct data_place data_locate(const struct data *d, enum data_split split,
                              int64_t sample);

/* The caller's arrays for n samples of T = seq_len tokens, all i32[n, T]. */
struct data_arrays {
    int32_t *tokens;
    int32_t *labels;     /* the next token; -1 where nothing is trained */
    int32_t *positions;  /* 0..T-1, or from the document's begin on (mask_documents) */
    int32_t *doc_starts; /* the index in 0..T-1 at which the token's document begins
                          * within the sequence; 0 without mask_documents */
};

/* Fetches global samples first..first+n-1. out: arrays; *n_trained, labels that are not
 * -1. errors: as text_source_read. threads: any number. */
MUST_CHECK enum status data_fetch(const struct data *d, enum data_split split,
                                  int64_t first, int64_t n,
                                  const struct data_arrays *out, int64_t *n_trained,
                                  struct diag *diag);

#endif
