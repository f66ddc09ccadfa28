/* Streams of the CPU backend: stream 0 runs on the caller's thread, every other one on a
 * thread of its own that takes commands (run an op, record an event, wait for one) from a
 * bounded queue and sleeps when that is empty. */
#ifndef KERNELS_CPU_CPU_STREAMS_H
#define KERNELS_CPU_CPU_STREAMS_H

#include "kernels/kernel.h"

/* The threads of the streams but 0, made when the first program asks for them. Programs
 * share them. Zero-initialise. */
struct cpu_workers {
    struct cpu_worker **worker; /* [n]; [0] is NULL */
    uint32_t n;
};

/* Ends the threads. in: no program's streams are open. */
void cpu_workers_release(struct cpu_workers *w);

/* in: the threads of kernels of stream 0 (borrowed) and the workers, which grow to the
 *     program's streams.
 * errors: ST_UNAVAILABLE when a thread cannot be started. */
MUST_CHECK enum status cpu_streams_open(struct cpu_workers *w, struct pool *pool,
                                        const struct program *prog,
                                        struct backend_streams **out,
                                        struct diag *diag);

/* As core/backend.h says. */
void cpu_streams_close(struct backend_streams *s);
void cpu_streams_launch(struct backend_streams *s, uint32_t chosen,
                        const struct launch *l);
void cpu_streams_record(struct backend_streams *s, uint8_t stream, uint32_t event);
void cpu_streams_wait(struct backend_streams *s, uint8_t stream, uint32_t event);
enum status cpu_streams_sync(struct backend_streams *s, struct diag *diag);

#endif
