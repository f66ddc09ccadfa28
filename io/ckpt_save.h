/* A checkpoint being written, for the writer alone and the writers together. */
#ifndef IO_CKPT_SAVE_H
#define IO_CKPT_SAVE_H

#include "io/ckpt_format.h"

#define CKPT_UUID_TEXT (2 * SHARD_UUID_BYTES + 1)

struct out_file {
    const char *name;
    int64_t bytes;
    uint64_t hash[2];
    int64_t n_chunks;
    bool is_shard;
};

/* Which tensors, [first, end) of the order, go to which shard. */
struct out_shard {
    int64_t first;
    int64_t end;
};

struct saver {
    const struct ckpt_save *save;
    struct arena arena;
    struct shard_crew *crew;
    struct shard_table table; /* all chunks, by tensor, then grid order */
    int64_t *order;           /* [n_tensors]: the caller's index of tensor id i */
    VEC(struct out_shard) shards;
    uint32_t n_model_shards;
    VEC(struct out_file) files;
    uint8_t uuid[SHARD_UUID_BYTES];
    char uuid_text[CKPT_UUID_TEXT];
    const char *tmp;   /* DIR/.tmp-step-N-uuid */
    const char *final; /* DIR/step-N */
    int64_t raw_bytes;
};

/* Checks what is to be saved and counts its bytes; makes the uuid; the names that follow
 * from it. */
MUST_CHECK enum status saver_check(struct saver *s, struct diag *diag);
void saver_make_uuid(struct saver *s);
void saver_make_paths(struct saver *s);

/* The order of tensors: those of model files first. */
void saver_order(struct saver *s);

int64_t saver_tensor_bytes(const struct ckpt_tensor *t);

/* Makes the directory of checkpoints and the one that is written to. */
MUST_CHECK enum status saver_begin(struct saver *s, struct diag *diag);

/* Index, state, manifest, COMMIT, and the name under which readers find it. in: table and
 * files of all shards. */
MUST_CHECK enum status saver_publish(struct saver *s, struct diag *diag);

/* Removes what is unfinished. */
void saver_discard(struct saver *s);

/* After saver_publish: retention and the figures. */
void saver_tidy(struct saver *s, struct ckpt_saved *out);

void saver_free(struct saver *s);

/* Writes save->pieces of all members of save->comm. As ckpt_write. */
MUST_CHECK enum status ckpt_write_together(const struct ckpt_save *save,
                                           struct ckpt_saved *out, struct diag *diag);

#endif
