/* Reverse-mode differentiation of a program: the backward pass is derived, never written
 * per model.
 *
 * differentiate() walks a forward segment's ops in reverse and lets each op's gradient
 * rule (core/op_grad.c) emit its gradient ops into a new segment. Rules give input and
 * weight gradients separately, and emit neither where nobody needs it (frozen weights,
 * token ids).
 *
 * Where a gradient lives follows from where its value lives: the gradient of a view is
 * the same view of its base's gradient, and the gradient of a value written in place
 * shares bytes with the gradient of the value it overwrote.
 */
#ifndef CORE_DIFF_H
#define CORE_DIFF_H

#include "core/op.h"

struct diff;

/* What to differentiate. Value ids come in pairs of arrays. Hooks may be NULL. */
struct diff_options {
    uint32_t segment; /* a finished forward segment */
    const char *name; /* of the new segment */
    /* With `within`: the ops from op_begin to the end of the open segment instead; their
     * gradients follow in that segment, those of weights with those of inputs. */
    bool within;
    uint32_t op_begin;
    /* Gradients that come from outside: that of output[i] is seed[i]. A loss f32[T] may
     * have the scalar f32[1] as its seed: the same for every token. */
    const uint32_t *output, *seed;
    uint32_t n_outputs;
    /* Gradients of weight[i] are added to grad[i]. A weight that is read twice gets both
     * contributions in its one accumulator; a tied parameter that must accumulate apart
     * is two weights with two accumulators. */
    const uint32_t *weight, *grad;
    uint32_t n_weights;
    /* An input whose gradient is wanted although no weight made it, or NONE_ID. */
    uint32_t input;
    uint32_t input_grad; /* where it is written, or NONE_ID: anywhere */
    /* No gradient overwrites another one's bytes, so that the gradients of weights can
     * be computed in a segment of their own, later. */
    bool out_of_place;
    /* Partial products of a tensor-parallel weight stay in f32 until they are summed. */
    bool wide_partials;
    /* Called inside of the new segment: at its start (it may fill in seeds), when the walk goes from the ops of
     * one layer to those of another (-1: of none), and before its end, with the gradient
     * of `input`. */
    void (*begin)(void *arg, struct diff *d);
    void (*change_layer)(void *arg, struct diff *d, int32_t from, int32_t to);
    void (*end)(void *arg, struct diff *d, uint32_t input_grad);
    void *arg;
};

/* Options with every id "none". */
struct diff_options diff_options_init(void);

/* Returns the new segment; of `within` NONE_ID. */
uint32_t differentiate(struct program *p, const struct diff_options *o);

/* ------------------------------------------------------- for the rules in op_grad.c */

struct program *diff_program(struct diff *d);

/* Whether a gradient must flow into `value`. */
bool diff_needs(struct diff *d, uint32_t value);

/* The finished gradient of `value`, or NONE_ID when nothing flowed into it. */
uint32_t diff_grad(struct diff *d, uint32_t value);

/* The accumulator of a weight, or NONE_ID (not a weight, or frozen). */
uint32_t diff_weight(struct diff *d, uint32_t value);

/* From now on rules read `now` where the forward pass read `then`: the same weight, made
 * again. */
void diff_replace(struct diff *d, uint32_t then, uint32_t now);

/* What rules read for a value of the forward pass. */
uint32_t diff_now(struct diff *d, uint32_t value);

/* Where the gradient of a value must be written, or NONE_ID. */
uint32_t diff_place_given(struct diff *d, uint32_t value);

/* Whether a product with this weight makes terms of a sum over ranks that stays in f32. */
bool diff_sums_wide(struct diff *d, uint32_t weight);

/* A new op_args with phase and the layer of the op that is being differentiated. */
struct op_args diff_args(struct diff *d, enum op_kind kind, enum op_phase phase);

/* Emits `a`, whose outputs are contributions to the gradients of to[0..n_out-1] (NONE_ID:
 * nobody needs it). Adds to what is there already. */
void diff_emit(struct diff *d, struct op_args *a, const uint32_t *to);

/* Emits `a`, whose single output is the accumulator `grad` itself. */
void diff_emit_weight(struct diff *d, struct op_args *a, uint32_t grad);

/* The gradient `g` flows into `value` unchanged. */
void diff_pass(struct diff *d, uint32_t value, uint32_t g);

/* Whether the gradient of `value` may overwrite its bytes: one reader, and a producer
 * whose own gradient does not read its output. */
bool diff_may_overwrite(struct diff *d, uint32_t value);

/* Makes the gradient of `value` live in the bytes of `value`. Before it is written. */
void diff_place_over(struct diff *d, uint32_t value);

/* The op of the forward segment that wrote `value`, or NONE_ID. */
uint32_t diff_producer(struct diff *d, uint32_t value);

#endif
