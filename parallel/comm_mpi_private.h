/* Open MPI's interface, without its header, and what the files of comm_mpi share. */
#ifndef PARALLEL_COMM_MPI_PRIVATE_H
#define PARALLEL_COMM_MPI_PRIVATE_H

#include <pthread.h>

#include "core/arena.h"
#include "parallel/comm_call.h"
#include "parallel/comm_mpi.h"
#include "parallel/comm_shm.h"

/* Handles are addresses of Open MPI's objects, the predefined ones data symbols. */
struct mpi_status {
    int source, tag, error, cancelled;
    size_t count;
};

#define MPI_ANY_SOURCE_VALUE   (-1)
#define MPI_THREAD_SERIALIZED_ 2
#define MPI_SPLIT_SHARED       0
#define MPI_TEXT_BYTES         8192

/* One row a function: name, arguments. All return int. */
#define MPI_FUNCTIONS(F)                                                               \
    F(Get_library_version, (char *text, int *n))                                       \
    F(Init_thread, (int *argc, char ***argv, int wanted, int *provided))               \
    F(Initialized, (int *flag))                                                        \
    F(Finalize, (void))                                                                \
    F(Comm_rank, (void *comm, int *rank))                                              \
    F(Comm_size, (void *comm, int *size))                                              \
    F(Comm_dup, (void *comm, void **out))                                              \
    F(Comm_split_type, (void *comm, int type, int key, void *info, void **out))        \
    F(Comm_split, (void *comm, int color, int key, void **out))                        \
    F(Comm_set_errhandler, (void *comm, void *handler))                                \
    F(Error_string, (int code, char *text, int *n))                                    \
    F(Allgather, (const void *src, int n, void *type, void *dst, int n_dst,            \
                  void *dst_type, void *comm))                                         \
    F(Bcast, (void *buf, int n, void *type, int root, void *comm))                     \
    F(Isend, (const void *buf, int n, void *type, int to, int tag, void *comm,         \
              void **request))                                                         \
    F(Irecv,                                                                           \
      (void *buf, int n, void *type, int from, int tag, void *comm, void **request))   \
    F(Comm_group, (void *comm, void **group))                                          \
    F(Group_incl, (void *group, int n, const int *ranks, void **out))                  \
    F(Group_free, (void **group))                                                      \
    F(Comm_create_group, (void *comm, void *group, int tag, void **out))               \
    F(Comm_free, (void **comm))                                                        \
    F(Iallreduce, (const void *src, void *dst, int n, void *type, void *op,            \
                   void *comm, void **request))                                        \
    F(Ireduce_scatter, (const void *src, void *dst, const int *n, void *type,          \
                        void *op, void *comm, void **request))                         \
    F(Test, (void **request, int *flag, struct mpi_status *status))                    \
    F(Cancel, (void **request))

/* One row a predefined object: name, symbol. */
#define MPI_OBJECTS(O)                                                                 \
    O(world, "ompi_mpi_comm_world")                                                    \
    O(byte, "ompi_mpi_byte")                                                           \
    O(float32, "ompi_mpi_float")                                                       \
    O(float64, "ompi_mpi_double")                                                      \
    O(int32, "ompi_mpi_int32_t")                                                       \
    O(sum, "ompi_mpi_op_sum")                                                          \
    O(request_null, "ompi_request_null")                                               \
    O(info_null, "ompi_mpi_info_null")                                                 \
    O(errors_return, "ompi_mpi_errors_return")

struct mpi_lib {
#define MPI_FIELD(name, args) int(*name) args;
    MPI_FUNCTIONS(MPI_FIELD)
#undef MPI_FIELD
#define MPI_FIELD(name, symbol) void *name;
    MPI_OBJECTS(MPI_FIELD)
#undef MPI_FIELD
};

/* Opens the library; it stays open. in: file, NULL for the usual places. errors:
 * ST_UNAVAILABLE. */
MUST_CHECK enum status mpi_lib_open(struct mpi_lib *lib, const char *file,
                                    struct diag *diag);

/* The message of a rank that gives up. */
struct stop_message {
    int32_t rank;
    char text[STOP_TEXT_BYTES];
};

struct mpi_world {
    struct comm_world base;
    struct mpi_lib lib;
    pthread_mutex_t lock;    /* around every call of the library */
    void *comm;              /* of all ranks, our own */
    struct comm_world *host; /* the ranks of this host, by place */
    int *host_of;            /* [size] the lowest rank of each rank's host */
    int *place_of;           /* [size] on its host */
    int32_t n_groups;        /* opened as first member */
    void *stop_recv;         /* request of the next stop message */
    struct stop_message stop_in, stop_out;
    void **stop_sends; /* [size] */
    atomic_bool told;  /* the other hosts know that the world has stopped */
};

/* Tags: 2 of a group each; below, two of the world. */
enum {
    TAG_STOP,
    TAG_GROUP,
    TAG_FIRST_GROUP,
};

/* Bytes that travel between two ranks: the request and the other's rank; of a collective
 * of the library, which does not tell whom it waits for, MPI_ALL_MEMBERS. */
#define MPI_ALL_MEMBERS (-1)

struct mpi_transfer {
    void *request;
    int rank;
};

enum status mpi_start_send(struct mpi_world *w, const void *buf, int64_t bytes, int to,
                           int tag, struct mpi_transfer *t, struct diag *diag);
enum status mpi_start_recv(struct mpi_world *w, void *buf, int64_t bytes, int from,
                           int tag, struct mpi_transfer *t, struct diag *diag);

/* The sum of n[size] elements of the members of the library's communicator, in whatever
 * order it likes: to all of them; or, n[i] elements one behind the other, to member i. */
struct mpi_sum {
    void *comm;
    const void *src;
    void *dst; /* apart from src */
    int n;
    const int *pieces; /* [size] instead of n, or NULL */
    enum dtype dtype;  /* as mpi_can_sum */
};
bool mpi_can_sum(enum dtype dtype);
enum status mpi_start_sum(struct mpi_world *w, const struct mpi_sum *s,
                          struct mpi_transfer *t, struct diag *diag);

/* A communicator of the library for these ranks, all of which call it at this moment:
 * there is no deadline. */
enum status mpi_open_library_group(struct mpi_world *w, const int *ranks, int n,
                                   int tag, void **comm, struct diag *diag);
void mpi_close_library_group(struct mpi_world *w, void **comm);

/* Waits for transfers, sleeping between looks. in: what and where, for messages ("all-reduce
 * of ...", "data group 3"). errors: ST_STOPPED, having given up for the world. */
enum status mpi_wait(struct mpi_world *w, struct mpi_transfer *t, int n,
                     const char *what, const char *where, struct diag *diag);

/* ST_STOPPED with the reason when a rank gave up. */
enum status mpi_enter(struct mpi_world *w, const char *what, const char *where,
                      struct diag *diag);

/* A group across hosts. */
enum status mpi_group_open(struct mpi_world *w, const int *members, int n,
                           const char *name, struct comm **out, struct diag *diag);

#endif
