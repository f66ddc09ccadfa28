/* Activation recompute as a transformation of the program.
 *
 * A saved value is written by the forward segment and read by the backward segment, so
 * its bytes are taken until then. Recompute clones the ops that make it into the backward
 * segment, just before the first use, from values that stay saved. The same ops run on
 * the same values, so the bits are equal; what it costs shows in the printed program.
 *
 *   keep       every saved value stays
 *   selective  stay: products, attention with its log-sum-exp, the residual stream, and
 *              all outside of layers; again: norms, activation functions, rotations
 *   full       stay: what crosses from one layer to the next, and all outside of layers
 *
 * Storages are kept or made again as a whole: values written in place over a kept one
 * stay with it, and a chain of values in one storage is cloned into one fresh storage.
 *
 * Storages of class comm through which forward and backward pass weights in turn are not
 * cloned: a clone reads the forward pass's value of such a storage, and the caller puts
 * the value in its place that the backward segment made there.
 */
#ifndef MEMORY_REMAT_H
#define MEMORY_REMAT_H

#include "core/program.h"

enum remat_mode {
    REMAT_KEEP,
    REMAT_SELECTIVE,
    REMAT_FULL,
};

/* Applies a mode to every pair of a segment with forward ops and one with gradient ops,
 * and seals the program (again). Before streams are assigned and before packing.
 * out: *n_recomputed the ops that were added. */
void remat_apply(struct program *p, enum remat_mode mode, uint32_t *n_recomputed);

/* Flops of one step that are spent on recomputed ops. */
double remat_flops(const struct program *p);

/* Bytes of one copy of all values saved from forward to backward. */
int64_t remat_saved_bytes(const struct program *p);

#endif
