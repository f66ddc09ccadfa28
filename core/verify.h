/* The verifier: what must hold before a program is packed, simulated or executed. Broken
 * programs are bugs of what made them, so the status is ST_INTERNAL; the text names the
 * op ("op linear@3 in segment forward"), the value and what is wrong.
 */
#ifndef CORE_VERIFY_H
#define CORE_VERIFY_H

#include "core/program.h"

/* Checks a sealed program:
 * structure  ids and counts in range; segments and calls; values inside their storages;
 *            views inside their bases; attributes; operand and result shapes, dtypes and
 *            layouts as the op table's rules say; writing in place only as the op's row
 *            allows; workspace used by one segment only
 * flow       every byte that is read has been written, by what is read and not by
 *            something that has overwritten it; conflicting accesses of different streams
 *            are ordered; every op and every transient storage is of use */
MUST_CHECK enum status program_verify(const struct program *p, struct diag *diag);

/* Checks a packed program, after program_verify: offsets inside the pools, persistent
 * storages apart from all others, and no storage copy written over by another one while
 * its bytes are still needed, in any order that streams and events allow. */
MUST_CHECK enum status program_verify_packed(const struct program *p,
                                             struct diag *diag);

/* ---------------------------------------------- shared by the files of the verifier */

/* "linear@3", or "clip" for ops of no layer, into buf. Returns buf. */
const char *verify_op_label(const struct program *p, uint32_t op, char *buf, size_t n);

/* The name of the segment that an op is in. */
const char *verify_segment_of(const struct program *p, uint32_t op);

enum status verify_structure(const struct program *p, struct diag *diag);
enum status verify_flow(const struct program *p, struct diag *diag);

#endif
