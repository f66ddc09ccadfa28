/* A model lowered, packed and ready to run: what tests of whole models share. */
#ifndef TESTS_LIB_RIG_H
#define TESTS_LIB_RIG_H

#include "core/exec.h"
#include "kernels/cpu/cpu_backend.h"
#include "memory/pack.h"
#include "parallel/lower.h"

struct rig_options {
    enum lower_purpose purpose;
    enum dtype compute;
    int64_t sequences; /* of one micro-batch */
    int64_t seq_len;
    uint32_t n_micro_batches;
    enum memory_activations activations;
    int n_threads;
    bool reference;
    uint32_t isa_mask;   /* 0: all */
    bool check;          /* guard bands behind every storage */
    bool monitor;        /* with probes */
    bool optimizer_only; /* the step is the optimizer alone: gradients are injected */
};

struct rig {
    struct model model;
    struct lowered low;
    struct mem_report report;
    struct backend *backend;
    struct exec_memory memory;
    struct exec *exec;
};

/* Fails the test with the diagnostic on any error. Runs the set-up calls: call
 * rig_set_params first where they matter, then rig_setup. */
void rig_create(struct rig *r, const struct config_model *m,
                const struct rig_options *o);
void rig_destroy(struct rig *r);

/* Writes a parameter's master from f32; rig_get reads any value as f32 (contiguous). */
void rig_set_param(struct rig *r, uint32_t param, const float *values);
void rig_init_params(struct rig *r, uint64_t seed);
void rig_set(struct rig *r, uint32_t value, const float *values);
void rig_get(struct rig *r, uint32_t value, float *out);
void rig_setup(struct rig *r);

/* Arrays of one micro-batch: i32[sequences * seq_len]. */
void rig_write_batch(struct rig *r, uint32_t micro_batch, const int32_t *tokens,
                     const int32_t *labels, const int32_t *positions,
                     const int32_t *doc_start);
/* The params block for step t (from 1). */
void rig_write_hyper(struct rig *r, int64_t t, double lr, double inv_tokens,
                     double clip);
void rig_step(struct rig *r);
double rig_loss_sum(struct rig *r);

/* Bits of all masters and moments (or gradients), as one hash. */
uint64_t rig_hash_state(struct rig *r);
uint64_t rig_hash_grads(struct rig *r);

/* A deterministic batch: tokens below vocab, documents of varying length, some labels -1.
 * Returns the number of trained labels. out arrays: i32[n * seq_len]. */
int64_t rig_random_batch(uint64_t seed, int64_t n, int64_t seq_len, int64_t vocab,
                         int32_t *tokens, int32_t *labels, int32_t *positions,
                         int32_t *doc_start);

#endif
