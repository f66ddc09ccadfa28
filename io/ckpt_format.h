/* What the writer and the reader of checkpoints share: names, records, tables. */
#ifndef IO_CKPT_FORMAT_H
#define IO_CKPT_FORMAT_H

#include "io/ckpt.h"

#define CKPT_COMMIT_BYTES  64
#define CKPT_STEP_MAX      999999999999
#define CKPT_NAME_BYTES    64 /* room for a step's name, also with prefix and uuid */
#define CKPT_HASH_TEXT     33 /* 32 hexadecimal digits and the end */
#define CKPT_TMP_PREFIX    ".tmp-"
#define CKPT_TRASH_PREFIX  ".trash-"
#define CKPT_MANIFEST_MAX  ((int64_t)GIB)
#define CKPT_DEFAULT_SHARD ((int64_t)4 << 30)

struct ckpt_commit {
    uint32_t version_major;
    uint32_t version_minor;
    int64_t manifest_bytes;
    uint64_t manifest_hash[2];
    int64_t step;
};

/* The COMMIT record. ckpt_commit_get: false when it is no valid record; a record of a
 * newer version is valid if its hash is. */
void ckpt_commit_put(const struct ckpt_commit *c, uint8_t out[CKPT_COMMIT_BYTES]);
bool ckpt_commit_get(const uint8_t in[CKPT_COMMIT_BYTES], struct ckpt_commit *out);

/* "step-000000012000" of a step in 0..CKPT_STEP_MAX, and back (-1: no such name). */
const char *ckpt_step_name(int64_t step, char buf[CKPT_NAME_BYTES]);
int64_t ckpt_step_of(const char *name);

/* XXH3-128 as xxh128sum prints it. */
const char *ckpt_hash_text(const uint64_t hash[2], char buf[CKPT_HASH_TEXT]);

/* Files whose name begins with "model-" hold weights alone. */
bool ckpt_kind_is_model(enum ckpt_kind kind);
bool ckpt_kind_is_non_negative(enum ckpt_kind kind);

/* false when the name is unknown. */
bool ckpt_kind_find(const char *name, enum ckpt_kind *out);
bool ckpt_dtype_find(const char *name, enum dtype *out);

/* dir/name in the arena. */
const char *ckpt_join(struct arena *a, const char *dir, const char *name);

#endif
