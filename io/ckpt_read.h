/* An opened checkpoint, for the reader and the verifier. */
#ifndef IO_CKPT_READ_H
#define IO_CKPT_READ_H

#include "io/ckpt.h"

struct ckpt {
    struct arena arena; /* holds everything below */
    struct ckpt_info info;
    const char *state;
    struct ckpt_file *files; /* [n_files] */
    const char **paths;      /* [n_files] */
    int *fds;                /* [n_files]: open shards, else -1 */
    struct ckpt_tensor *tensors;
    struct shard_chunk *chunks; /* by tensor, then grid order */
    int64_t *first_chunk;       /* [n_tensors + 1] */
    int64_t *by_name;           /* [n_tensors]: ids sorted by name and kind */
};

/* Puts tensor and box in front of a chunk's error; returns st. */
enum status ckpt_chunk_error(const struct ckpt *ck, const struct shard_chunk *k,
                             enum status st, struct diag *diag);

#endif
