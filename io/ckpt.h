/* Checkpoints: named tensors and a state text, written so that a reader finds a whole
 * checkpoint or none, and read back by tensor and box. No rank appears anywhere.
 *
 *     DIR/LATEST                    the newest step's name (a hint; readers scan)
 *     DIR/.lock                     held while a job writes here
 *     DIR/step-000000012000/
 *         COMMIT                    64 bytes, written last: hash of the manifest
 *         manifest.json             tensors, files with sizes and hashes
 *         index.zst                 the chunk table of all shards
 *         model-00000-of-00002.azs  weights
 *         optim-00000-of-00004.azs  everything else
 *         state.json                step, tokens, data position, ... (the caller's text)
 *     DIR/.tmp-step-...             being written; removed by the next job
 *     DIR/.trash-step-...           being removed
 */
#ifndef IO_CKPT_H
#define IO_CKPT_H

#include "core/arena.h"
#include "core/comm.h"
#include "core/pool.h"
#include "io/box.h"
#include "io/durable.h"
#include "io/shard.h"

#define CKPT_VERSION_MAJOR 1
#define CKPT_VERSION_MINOR 0

enum ckpt_kind {
    CKPT_WEIGHT,
    CKPT_MASTER, /* fp32 copies of bf16 weights */
    CKPT_EXP_AVG,
    CKPT_EXP_AVG_SQ,
    CKPT_OTHER,
    CKPT_KIND_COUNT
};

const char *ckpt_kind_name(enum ckpt_kind kind);

/* A tensor by its logical name and shape. Name and kind together are unique: moments have
 * the name and shape of their weight. */
struct ckpt_tensor {
    const char *name;
    enum ckpt_kind kind;
    enum dtype dtype;
    int ndim; /* 0..4 */
    int64_t shape[BOX_MAX_NDIM];
    int split_axis;   /* the axis that ranks cut, or -1: see box_grid_chunks */
    const void *data; /* dtype[shape]; used when writing alone */
};

/* Writing. */

struct ckpt_lock;

/* Takes a checkpoint directory for one job: creates it where it is missing, locks it, and
 * removes what a killed job left half done. out: *lock, to be given back with
 * ckpt_unlock. errors: ST_CREATE when another process holds it (named in the text) or it
 * cannot be written; ST_IO. */
MUST_CHECK enum status ckpt_lock(const char *dir, struct durable *d,
                                 struct ckpt_lock **lock, struct diag *diag);
void ckpt_unlock(struct ckpt_lock *lock);

/* A box of a tensor that one of several writers has. */
struct ckpt_piece {
    int64_t tensor; /* index in ckpt_save.tensors */
    struct box box;
    const void *data; /* dtype[box], row-major */
};

struct ckpt_save {
    const char *dir; /* the directory of checkpoints, made where it is missing */
    int64_t step;
    const struct ckpt_tensor *tensors; /* [n_tensors], in the order they are written */
    int64_t n_tensors;
    const char *state_json;  /* a JSON object: everything beside tensors */
    const char *tool;        /* the program and its version, for the reader's eye */
    int keep;                /* keep the newest N; 0 for all */
    bool raw;                /* store without compressing */
    int64_t shard_raw_bytes; /* a shard file holds about this much; 0: 4 GiB */
    struct pool *pool;       /* threads to compress with, or NULL */
    struct durable *durable; /* hooks of tests, or NULL */

    /* Several ranks write one checkpoint together: each gives pieces, and the pieces of all
     * cover every tensor once. All else is the same on all ranks; state_json, keep and tool
     * are read on the first one. NULL: one writer, whose tensors have data. */
    struct comm *comm;
    const struct ckpt_piece *pieces;
    int64_t n_pieces;
};

struct ckpt_saved {
    int64_t raw_bytes;  /* of the tensors */
    int64_t file_bytes; /* on disk */
    int64_t n_chunks;
    int64_t n_removed; /* older checkpoints that retention removed */
    uint64_t digest;   /* sum of the chunks' hashes */
};

/* Writes and publishes DIR/step-N (with several writers, chunk by chunk the same bytes as
 * one would), replacing an old one of that step in one move. On any
 * error nothing of it stays and older checkpoints are as they were; an error of retention
 * alone is logged, not returned. errors: ST_CREATE, ST_IO with path and reason; ST_CONFIG
 * for tensors that a checkpoint cannot hold (a name twice, an extent of 2^32). Several
 * writers have all the same status; ST_STOPPED where one was lost. */
MUST_CHECK enum status ckpt_write(const struct ckpt_save *save, struct ckpt_saved *out,
                                  struct diag *diag);

/* Removes checkpoints older than the `keep` newest valid ones; never the newest valid one
 * nor `protect_step` (-1 for none). in: keep >= 1. errors: ST_IO, ST_NOT_FOUND. */
MUST_CHECK enum status ckpt_prune(const char *dir, int keep, int64_t protect_step,
                                  struct durable *d, int64_t *n_removed,
                                  struct diag *diag);

/* Reading. */

struct ckpt;

struct ckpt_file {
    const char *name;
    int64_t bytes;
    uint64_t hash[2]; /* XXH3-128 */
    bool is_shard;
};

struct ckpt_info {
    const char *path;
    int64_t step;
    const char *uuid;
    const char *created; /* UTC, ISO 8601 */
    const char *tool;
    int64_t n_tensors;
    int64_t n_chunks;
    int64_t raw_bytes;
    int64_t file_bytes;
    uint64_t digest;
    const struct ckpt_file *files; /* [n_files]; shard i of a chunk is files[i] */
    int64_t n_files;
};

/* Opens DIR/step-N and checks its structure: COMMIT, manifest and index hashes, files
 * present and of their size, every tensor covered exactly once by chunks. Tensor data are
 * checked when they are read. errors: ST_DATA naming what is damaged, missing or newer;
 * ST_NOT_FOUND; ST_IO. */
MUST_CHECK enum status ckpt_open(const char *path, struct ckpt **out,
                                 struct diag *diag);
void ckpt_close(struct ckpt *ck);

/* Opens the newest checkpoint of a directory that passes ckpt_open, of steps below
 * `below_step` (INT64_MAX for all). Each one that does not is named in a warning. A reader
 * that finds damaged data later asks again below that step. errors: ST_NOT_FOUND when
 * there is none; the text says how many were damaged. */
MUST_CHECK enum status ckpt_open_newest(const char *dir, int64_t below_step,
                                        struct ckpt **out, struct diag *diag);

/* A step directory, or the newest one of a directory of checkpoints, valid or not: a
 * damaged one is an error here, not passed over. out: *searched, whether it was the
 * latter. errors: as ckpt_open; ST_NOT_FOUND. */
MUST_CHECK enum status ckpt_open_last(const char *path, struct ckpt **out,
                                      bool *searched, struct diag *diag);

/* The same as ckpt_open_any, without a word about damaged ones: for a look ahead. */
MUST_CHECK enum status ckpt_open_quietly(const char *path, struct ckpt **out,
                                         struct diag *diag);

/* A step directory, or the newest valid one of a directory of checkpoints. out:
 * *searched, whether it was the latter. */
MUST_CHECK enum status ckpt_open_any(const char *path, struct ckpt **out,
                                     bool *searched, struct diag *diag);

const struct ckpt_info *ckpt_get_info(const struct ckpt *ck);

/* The state text as it was given to ckpt_write. */
const char *ckpt_state_json(const struct ckpt *ck);

/* Tensor i of info->n_tensors (data is NULL), and its chunks in grid order. */
const struct ckpt_tensor *ckpt_tensor_info(const struct ckpt *ck, int64_t i);
const struct shard_chunk *ckpt_tensor_chunks(const struct ckpt *ck, int64_t i,
                                             int64_t *n);

/* The tensor's index, or -1. */
int64_t ckpt_find(const struct ckpt *ck, enum ckpt_kind kind, const char *name);

/* Compares what a model wants with what is here: every wanted tensor must be there with
 * its shape and dtype, and nothing of the wanted kinds may be left over. errors: ST_DATA
 * naming the first tensor that differs. */
MUST_CHECK enum status ckpt_match(const struct ckpt *ck, const struct ckpt_tensor *want,
                                  int64_t n_want, struct diag *diag);

/* One box to be read. */
struct ckpt_part {
    int64_t tensor;
    struct box box; /* inside the tensor's shape */
    void *dst;      /* dtype[box], row-major */
};

/* Reads boxes, checking every chunk's hash. in: crew (its threads share the chunks).
 * errors: ST_DATA naming tensor, box, file and offset; ST_IO. dst is then undefined. */
MUST_CHECK enum status ckpt_read(const struct ckpt *ck, const struct ckpt_part *parts,
                                 int64_t n_parts, struct shard_crew *crew,
                                 struct diag *diag);

/* A whole tensor by name. errors: as ckpt_read; ST_DATA when it is not there. */
MUST_CHECK enum status ckpt_read_tensor(const struct ckpt *ck, enum ckpt_kind kind,
                                        const char *name, struct shard_crew *crew,
                                        void *dst, struct diag *diag);

/* Called once per damage with a text that names file, tensor and offset. */
typedef void (*ckpt_damage_fn)(void *arg, const char *text);

/* Checks every file against its hash, and with `deep` (or where a file's hash differs)
 * decodes every chunk. out: *n_damaged. errors: ST_DATA when something is damaged. */
MUST_CHECK enum status ckpt_verify(const struct ckpt *ck, bool deep,
                                   struct shard_crew *crew, ckpt_damage_fn fn,
                                   void *arg, int64_t *n_damaged, struct diag *diag);

/* The steps in a directory of checkpoints, greatest first, valid or not. out: *steps in
 * the arena. errors: ST_NOT_FOUND, ST_IO. */
MUST_CHECK enum status ckpt_list_steps(struct arena *a, const char *dir,
                                       int64_t **steps, int64_t *n, struct diag *diag);

#endif
