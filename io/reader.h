/* Reading ahead: a thread that prepares batches while the trainer computes.
 *
 * Batches are prepared in order into a ring of slots. The trainer holds one slot at a
 * time; the thread fills the others. What a batch holds is a function of its number
 * alone, so a reader that is created at batch i gives what one gives that came there.
 */
#ifndef IO_READER_H
#define IO_READER_H

#include "io/data.h"

struct reader;

/* The global samples of batch `batch`: *first and *n >= 1; false: there is no such batch
 * and the thread ends. Called from the reader's thread, batch by batch. */
typedef bool (*reader_range_fn)(void *arg, int64_t batch, int64_t *first, int64_t *n);

struct reader_options {
    const struct data *data; /* lives as long as the reader */
    enum data_split split;
    int64_t seq_len;     /* the data's */
    int64_t max_samples; /* of any batch */
    int n_slots;         /* 2 to 8: one in use, the others read ahead */
    int64_t first_batch;
    reader_range_fn range;
    void *range_arg;
};

struct reader_batch {
    int64_t batch;
    int64_t first_sample;
    int64_t n_samples;
    int64_t n_trained;         /* labels that are not -1 */
    struct data_arrays arrays; /* i32[n_samples, seq_len] */
};

/* How often and how long reader_next had to wait for data. The first batch, for which
 * nobody can have read ahead, is apart. */
struct reader_stats {
    int64_t n_batches;
    int64_t n_waits;
    int64_t wait_ns;
    int64_t first_wait_ns;
};

/* Starts the thread. errors: ST_UNAVAILABLE when it cannot be started. */
MUST_CHECK enum status reader_create(const struct reader_options *options,
                                     struct reader **out, struct diag *diag);

/* Gives the next batch and takes back the one before. out: *out, the reader's, until the
 * next call; NULL after the last batch. errors: what the thread met in reading this
 * batch, with its diagnostic; the same again on later calls. threads: one caller. */
MUST_CHECK enum status reader_next(struct reader *r, const struct reader_batch **out,
                                   struct diag *diag);

struct reader_stats reader_stats(const struct reader *r);

/* Bytes of the slots, for the list of memory beside the arenas. */
int64_t reader_bytes(int n_slots, int64_t max_samples, int64_t seq_len);

/* Ends the thread (after the batch it is reading) and frees everything. */
void reader_destroy(struct reader *r);

#endif
