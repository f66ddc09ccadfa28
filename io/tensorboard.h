/* TensorBoard event files: scalars by step.
 *
 * A file is a sequence of records, each a length, a checksum of it, a message and a
 * checksum of that; the messages are protobuf, of which the few fields in use are
 * written here. Every record is handed to the system at once, so that a reader sees the
 * newest.
 * source: TensorFlow's record_writer and event.proto, for the format.
 */
#ifndef IO_TENSORBOARD_H
#define IO_TENSORBOARD_H

#include "core/status.h"

struct tensorboard;

struct tensorboard_scalar {
    const char *tag; /* a slash groups charts: "loss/train" */
    double value;    /* stored as a float; NaN and infinities are allowed */
};

/* Makes the folder and in it a new file, events.out.tfevents.TIME.HOST.PID. in: the step
 * a resumed run begins at: readers drop points that an earlier file has beyond it; -1
 * for a fresh run. errors: ST_CREATE, ST_IO. */
MUST_CHECK enum status tensorboard_open(const char *folder, int64_t resumed_step,
                                        struct tensorboard **out, struct diag *diag);
void tensorboard_close(struct tensorboard *t);
const char *tensorboard_path(const struct tensorboard *t);

/* Appends one event with n scalars. errors: ST_IO; the run may go on without it. */
MUST_CHECK enum status tensorboard_write(struct tensorboard *t, int64_t step,
                                         const struct tensorboard_scalar *scalars,
                                         size_t n, struct diag *diag);

/* CRC-32C (Castagnoli) of the bytes, and the masked form that records carry. */
uint32_t tensorboard_crc(const void *data, size_t bytes);
uint32_t tensorboard_masked_crc(const void *data, size_t bytes);

#endif
