/* `angel ckpt`: looking into checkpoints. */
#ifndef CMD_CMD_CKPT_H
#define CMD_CMD_CKPT_H

#include "core/str.h"
#include "io/ckpt.h"

/* What is asked for, apart from where it is printed. */
struct ckpt_request {
    const char *verb;         /* inspect, verify, diff, prune */
    const char *const *paths; /* [n_paths] */
    int n_paths;
    bool json;
    bool tensors;     /* inspect: a line per tensor */
    bool deep;        /* verify: decode every chunk */
    double tolerance; /* diff: of absolute differences */
    int keep;         /* prune; 0 when not given */
    struct shard_crew *crew;
};

/* Answers a request. out: text or, with json, one JSON document; some also where the
 * status is not ST_OK. errors: ST_CONFIG for usage; ST_DATA for damage; ST_CHECK when
 * checkpoints differ by more than the tolerance; ST_NOT_FOUND, ST_IO. */
MUST_CHECK enum status ckpt_answer(const struct ckpt_request *request, struct str *out,
                                   struct diag *diag);

/* The difference of two checkpoints; errors and output as ckpt_answer. */
MUST_CHECK enum status ckpt_diff(const struct ckpt_request *request,
                                 const struct ckpt *a, const struct ckpt *b,
                                 struct str *out, struct diag *diag);

#endif
