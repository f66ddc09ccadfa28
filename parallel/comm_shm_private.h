/* What the files of the shared-memory communicator share. */
#ifndef PARALLEL_COMM_SHM_PRIVATE_H
#define PARALLEL_COMM_SHM_PRIVATE_H

#include "core/vec.h"
#include "parallel/comm_call.h"
#include "parallel/comm_shm.h"

/* Data up to this size travels in the post. */
#define POST_BYTES 2048
/* Window of staged data, for each member twice. */
#define STAGE_BYTES ((int64_t)256 << 10)
/* Work on others' memory between two looks at whether a rank gave up. */
#define DIRECT_BYTES ((int64_t)1 << 20)

/* Ring of a pair: packets, and the bytes of one for threads and for processes. */
#define RING_PACKETS   4
#define EAGER_BYTES    1024
#define STREAM_BYTES   ((int64_t)32 << 10)
#define GROUP_NAME_MAX 64

enum post_flag {
    POST_INLINE = 1, /* the data lies in the post */
    POST_SHARED = 2, /* `share` tells where */
    POST_STREAM = 4, /* a message in several packets */
};

struct post {
    struct call call;
    uint64_t share;
    int64_t src_elems; /* of this member's data */
    uint32_t flags;
};

/* A member's part of a group. Posts alternate, so that a post is overwritten only when
 * all members are one meeting further. */
struct shm_member {
    _Alignas(64) atomic_uint arrived; /* meetings */
    atomic_uint busy;                 /* threads at work on others' memory */
    struct {
        _Alignas(64) struct post post;
        _Alignas(64) unsigned char data[POST_BYTES];
    } slot[2];
};

struct packet {
    _Alignas(64) struct post post;
    _Alignas(64) unsigned char data[];
};

struct ring {
    struct region_word sent, taken; /* packets */
    _Alignas(64) unsigned char packets[];
};

/* A group in shared memory; behind it its members, their send counts, the rings and the
 * windows, at the offsets of struct shm_layout. */
struct shm_group {
    struct region_word meeting; /* arrivals of all members */
    atomic_int n_closed;
    int n;
    char name[GROUP_NAME_MAX];
};

struct shm_layout {
    uint64_t place, member, counts, ring, stage, bytes;
    int64_t packet_bytes; /* of data */
    uint64_t ring_bytes;
};

struct shm_world {
    struct comm_world base;
    struct region region;
    const double *deadline_s; /* of this world, or of the one that it is part of */
    VEC(struct region_entry) opened; /* how often each list of members was opened */
};

struct shm_comm {
    struct comm base;
    struct shm_world *world;
    struct shm_group *group;
    struct shm_layout at;
    int *place;                 /* [n] in the region */
    unsigned round;             /* meetings so far */
    unsigned n_calls;           /* collectives so far */
    unsigned *n_sent, *n_taken; /* [n] packets to and from each */
    const void **src;           /* [n] the members' data of the current call */
    const void **shifted;       /* [n] */
    void **dst;                 /* [n] */
    int64_t *offset;            /* [n + 1] first elements of pieces */
};

static inline struct shm_member *shm_member(const struct shm_comm *c, int i)
{
    return (struct shm_member *)((char *)c->group + c->at.member) + i;
}

static inline int shm_world_rank(const struct shm_comm *c, int i)
{
    return c->world->region.head->rank[c->place[i]].world_rank;
}

/* ST_OK, or ST_STOPPED with the reason when a rank gave up. */
enum status shm_enter(struct shm_comm *c, const struct call *call, struct diag *diag);

/* Ends a call whose wait did not: gives up for the whole world where nobody has, lets
 * others finish with this rank's memory. in: peer, the member waited for, or -1 for those
 * that are not at the meeting. Returns ST_STOPPED. */
enum status shm_fail(struct shm_comm *c, const struct call *call, enum wait_end end,
                     int died, int peer, struct diag *diag);

/* Ends the world over calls that do not match. Returns ST_INTERNAL. */
enum status shm_mismatch(struct shm_comm *c, const struct call *mine, int other,
                         const struct call *theirs, struct diag *diag);

/* Marks this rank as at work on others' memory; false when a rank gave up. */
bool shm_busy_begin(struct shm_comm *c);
void shm_busy_end(struct shm_comm *c);

extern const struct comm_ops shm_ops;

enum status shm_send(struct comm *c, const void *buf, int64_t n, enum dtype dtype,
                     int to, struct diag *diag);
enum status shm_recv(struct comm *c, void *buf, int64_t n, enum dtype dtype, int from,
                     struct diag *diag);
void shm_close(struct comm *c);

#endif
