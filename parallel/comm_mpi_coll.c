/* Groups across hosts.
 *
 * Every call begins with a round of headers (what each member calls, and small data), and
 * goes on in rounds of pieces: a member has a piece for every other and gets one from it.
 * Pieces between hosts go by MPI, those on a host through shared memory, all of them from
 * and into buffers of the group's own: when a call ends early the caller's buffers are
 * free at once, whatever MPI still does. A reduction sends every share to the member
 * that sums it, in the members' order, and gathers the sums.
 *
 * A gathered piece crosses to each other host once: to one of its members, who passes it
 * on there.
 *
 * In a group of any order the library adds what does not fit into headers. */
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "parallel/comm_mpi_private.h"
#include "parallel/comm_sum.h"

#define HEADER_BYTES 1024
#define HEADER_DATA  (HEADER_BYTES - 64)
/* A piece between two members in a round: within these, so that a round of all is about
 * ROUND_BYTES. */
#define PIECE_MIN    ((int64_t)32 << 10)
#define PIECE_MAX    ((int64_t)1 << 20)
#define ROUND_BYTES  ((int64_t)8 << 20)
#define MESSAGE_PART ((int64_t)1 << 20)

struct header {
    struct call call;
    int64_t n_to_you; /* elements of an all-to-all */
    int64_t longest;  /* bytes of its longest piece at this member */
    uint64_t has_data;
    uint64_t pad;
    unsigned char data[HEADER_DATA];
};
_Static_assert(sizeof(struct header) == HEADER_BYTES, "a header is full");

struct piece {
    char *at;
    int64_t bytes;
};

struct mpi_comm {
    struct comm base;
    struct arena arena; /* owns the tables below */
    struct mpi_world *world;
    struct comm *host; /* the members on this host, or NULL when there is no other */
    int tag;           /* of collectives; of messages the next */
    void *library; /* the library's communicator of the members; NULL: sums in order */
    int n_host;
    int *rank;        /* [n] world ranks */
    int *host_index;  /* [n] in `host`, -1 for members elsewhere */
    int *host_member; /* [n_host] which member */
    int64_t piece_bytes;
    int64_t pool_bytes;
    char *pool;                            /* all that follows lies in it */
    struct header *header_out, *header_in; /* [n] */
    char *stage_out, *stage_in;            /* [n] of piece_bytes */
    char *pack_out, *pack_in;              /* [n_host] of piece_bytes */
    char *send_part, *recv_part;           /* of messages */
    struct header *send_header, *recv_header;
    struct piece *out, *in;        /* [n] of the round */
    struct piece *parts;           /* [n] of a gather */
    int *delegate;                 /* [n] who takes its pieces here */
    bool *sends_to;                /* [n] takes this member's pieces */
    const void **src;              /* [n] */
    struct mpi_transfer *transfer; /* [2n] */
    int64_t *host_out, *host_in;   /* [n_host] */
    int64_t *offset;               /* [n + 1] */
    int *elems;                    /* [n] */
};

/* ---- rounds ---- */

static enum status host_failed(struct mpi_comm *c, const char *what, enum status st,
                               struct diag *diag)
{
    if (diag)
        diag_context(diag, "%s in %s", what, c->base.name);
    return st;
}

/* The pieces between members of this host: packed, exchanged, and found again. */
static enum status exchange_on_host(struct mpi_comm *c, const char *what,
                                    struct diag *diag)
{
    if (!c->host)
        return ST_OK;
    int64_t at = 0;
    for (int i = 0; i < c->n_host; i++) {
        int m = c->host_member[i];
        bool self = m == c->base.rank;
        c->host_out[i] = self ? 0 : c->out[m].bytes / 2;
        c->host_in[i] = self ? 0 : c->in[m].bytes / 2;
        if (c->host_out[i])
            memcpy(c->pack_out + at, c->out[m].at, (size_t)c->out[m].bytes);
        at += 2 * c->host_out[i];
    }
    enum status st = c->host->ops->all_to_all(c->host, c->pack_out, c->host_out,
                                              c->pack_in, c->host_in, DT_BF16, diag);
    if (st != ST_OK)
        return host_failed(c, what, st, diag);
    at = 0;
    for (int i = 0; i < c->n_host; i++) {
        if (c->host_in[i])
            c->in[c->host_member[i]].at = c->pack_in + at;
        at += 2 * c->host_in[i];
    }
    return ST_OK;
}

/* One round. in: out[n], and bytes of in[n]; pieces are of even sizes, and those from and
 * to this member itself are ignored. out: in[n].at, valid until the next round. Pieces
 * that lie in stage_out are sent from there. */
static enum status exchange(struct mpi_comm *c, const char *what, struct diag *diag)
{
    struct mpi_world *w = c->world;
    int n_transfers = 0;
    for (int i = 0; i < c->base.size; i++) {
        if (c->host_index[i] >= 0 || c->in[i].bytes == 0)
            continue;
        c->in[i].at = c->stage_in + i * c->piece_bytes;
        TRY(mpi_start_recv(w, c->in[i].at, c->in[i].bytes, c->rank[i], c->tag,
                           &c->transfer[n_transfers++], diag));
    }
    for (int i = 0; i < c->base.size; i++) {
        if (c->host_index[i] >= 0 || c->out[i].bytes == 0)
            continue;
        char *stage = c->stage_out + i * c->piece_bytes;
        memcpy(stage, c->out[i].at, (size_t)c->out[i].bytes);
        TRY(mpi_start_send(w, stage, c->out[i].bytes, c->rank[i], c->tag,
                           &c->transfer[n_transfers++], diag));
    }
    TRY(exchange_on_host(c, what, diag));
    return mpi_wait(w, c->transfer, n_transfers, what, c->base.name, diag);
}

/* ---- headers ---- */

struct job {
    struct call call;
    const void *src;
    void *dst;
    const int64_t *send_count, *recv_count; /* see comm_shm_coll */
    int64_t data_bytes; /* of src, to travel in the header when it is small */
    int64_t longest;
    size_t elem_bytes;
    char what[CALL_TEXT_BYTES];
};

static enum status mismatch(struct mpi_comm *c, const struct job *j, int other,
                            const struct call *theirs, struct diag *diag)
{
    char text[CALL_TEXT_BYTES], why[STOP_TEXT_BYTES];
    call_print(theirs, text);
    snprintf(why, sizeof(why),
             "calls do not match in %s: rank %d calls %s, rank %d %s%s", c->base.name,
             c->world->base.rank, j->what, c->rank[other], text,
             strcmp(text, j->what) == 0 ? " with other counts" : "");
    region_stop(comm_shm_region(c->world->host), c->world->base.rank, why);
    return diag_set(diag, ST_INTERNAL, "%s", why);
}

/* Exchanges what all call. out: *small whether all data came along; then src[] is it. */
static enum status meet(struct mpi_comm *c, struct job *j, bool *small,
                        struct diag *diag)
{
    bool fits = j->data_bytes <= HEADER_DATA;
    j->elem_bytes = dtype_bytes((enum dtype)j->call.dtype);
    call_print(&j->call, j->what);
    TRY(mpi_enter(c->world, j->what, c->base.name, diag));
    for (int i = 0; i < c->base.size; i++) {
        struct header *h = &c->header_out[i];
        *h = (struct header){.call = j->call, .has_data = fits};
        h->n_to_you = j->send_count ? j->send_count[i] : 0;
        h->longest = j->longest;
        if (fits && j->data_bytes)
            memcpy(h->data, j->src, (size_t)j->data_bytes);
        c->out[i] = (struct piece){(char *)h, HEADER_BYTES};
        c->in[i] = (struct piece){(char *)h, HEADER_BYTES};
    }
    TRY(exchange(c, j->what, diag));
    *small = true;
    for (int i = 0; i < c->base.size; i++) {
        struct header *h = &c->header_in[i];
        memcpy(h, i == c->base.rank ? (char *)&c->header_out[i] : c->in[i].at,
               HEADER_BYTES);
        if (!call_matches(&j->call, &h->call) ||
            (j->send_count && h->n_to_you != j->recv_count[i]))
            return mismatch(c, j, i, &h->call, diag);
        *small = *small && h->has_data;
        c->src[i] = h->data;
    }
    return ST_OK;
}

/* Bytes [at, at + piece) of a run of `bytes`. */
static int64_t part_of(int64_t bytes, int64_t at, int64_t piece)
{
    return MAX(0, MIN(piece, bytes - at));
}

static void no_pieces(struct mpi_comm *c)
{
    for (int i = 0; i < c->base.size; i++)
        c->out[i] = c->in[i] = (struct piece){NULL, 0};
}

static void prefix_sums(struct mpi_comm *c, const int64_t *count)
{
    for (int i = 0; i < c->base.size; i++)
        c->offset[i + 1] = c->offset[i] + count[i];
}

/* ---- gathering ---- */

static bool same_host(const struct mpi_comm *c, int a, int b)
{
    return c->world->host_of[c->rank[a]] == c->world->host_of[c->rank[b]];
}

/* The member that takes the pieces of member `from` for the host of member `near`. */
static int delegate_of(const struct mpi_comm *c, int from, int near)
{
    int n = 0;
    for (int i = 0; i < c->base.size; i++)
        n += same_host(c, i, near);
    int wanted = from % n;
    for (int i = 0; i < c->base.size; i++)
        if (same_host(c, i, near) && wanted-- == 0)
            return i;
    BUG("no delegate of member %d", from);
}

/* One round of a gather: member i's part of bytes[i] at dst[i], this member's already in
 * its place. First across hosts to delegates, then on each host. */
static enum status gather_round(struct mpi_comm *c, const char *what,
                                const struct piece *part, struct diag *diag)
{
    int me = c->base.rank, n = c->base.size;
    no_pieces(c);
    for (int i = 0; i < n; i++) {
        if (same_host(c, i, me))
            continue;
        if (c->sends_to[i])
            c->out[i] = part[me];
        if (c->delegate[i] == me)
            c->in[i].bytes = part[i].bytes;
    }
    TRY(exchange(c, what, diag));
    for (int i = 0; i < n; i++)
        if (c->in[i].bytes)
            memcpy(part[i].at, c->in[i].at, (size_t)part[i].bytes);
    if (!c->host)
        return ST_OK;
    /* On the host: for every member of the group, its holder passes the part on. */
    for (int i = 0; i < n; i++) {
        int holder = c->delegate[i];
        if (part[i].bytes == 0)
            continue;
        enum status st = c->host->ops->broadcast(c->host, part[i].at, part[i].bytes / 2,
                                                 DT_BF16, c->host_index[holder], diag);
        if (st != ST_OK)
            return host_failed(c, what, st, diag);
    }
    return ST_OK;
}

/* ---- sums of the library ---- */

static bool adds_in_library(const struct mpi_comm *c, const struct job *j)
{
    return c->library && j->call.how == COMM_SUM &&
           mpi_can_sum((enum dtype)j->call.dtype);
}

/* From stage_out into stage_in. */
static enum status library_sum(struct mpi_comm *c, const struct job *j, int64_t n,
                               const int *pieces, struct diag *diag)
{
    struct mpi_sum sum = {.comm = c->library,
                          .src = c->stage_out,
                          .dst = c->stage_in,
                          .n = (int)n,
                          .pieces = pieces,
                          .dtype = (enum dtype)j->call.dtype};
    TRY(mpi_start_sum(c->world, &sum, c->transfer, diag));
    return mpi_wait(c->world, c->transfer, 1, j->what, c->base.name, diag);
}

static enum status library_all_reduce(struct mpi_comm *c, const struct job *j,
                                      struct diag *diag)
{
    int64_t es = (int64_t)j->elem_bytes, window = c->piece_bytes * c->base.size / es;
    for (int64_t at = 0; at < j->call.n; at += window) {
        int64_t n = MIN(window, j->call.n - at);
        char *buf = (char *)j->dst + at * es;
        memcpy(c->stage_out, buf, (size_t)(n * es));
        TRY(library_sum(c, j, n, NULL, diag));
        memcpy(buf, c->stage_in, (size_t)(n * es));
    }
    return ST_OK;
}

static enum status library_reduce_scatter(struct mpi_comm *c, const struct job *j,
                                          int64_t most, struct diag *diag)
{
    int64_t es = (int64_t)j->elem_bytes;
    for (int64_t at = 0; at < most; at += c->piece_bytes) {
        char *to = c->stage_out;
        for (int i = 0; i < c->base.size; i++) {
            int64_t bytes = part_of(j->recv_count[i] * es, at, c->piece_bytes);
            c->elems[i] = (int)(bytes / es);
            if (bytes)
                memcpy(to, (const char *)j->src + c->offset[i] * es + at,
                       (size_t)bytes);
            to += bytes;
        }
        int own = c->elems[c->base.rank];
        TRY(library_sum(c, j, 0, c->elems, diag));
        if (own)
            memcpy((char *)j->dst + at, c->stage_in, (size_t)(own * es));
    }
    return ST_OK;
}

/* ---- the calls ---- */

static void reduce_into(struct mpi_comm *c, const struct job *j, void *dst, int64_t n)
{
    comm_reduce(&dst, 1, c->src, c->base.size, n, (enum dtype)j->call.dtype,
                (enum comm_reduction)j->call.how);
}

/* A window of an all-reduce: shares to their members, sums, sums to all. */
static enum status reduce_window(struct mpi_comm *c, struct job *j, char *buf,
                                 int64_t n, struct diag *diag)
{
    int me = c->base.rank, size = c->base.size;
    int64_t es = (int64_t)j->elem_bytes, share = ceil_div_i64(n, size);
    share = round_up_i64(share, 2);
    int64_t own = part_of(n, share * me, share) * es;
    for (int i = 0; i < size; i++) {
        c->out[i].at = buf + share * i * es;
        c->out[i].bytes = part_of(n, share * i, share) * es;
        c->in[i].bytes = own;
    }
    TRY(exchange(c, j->what, diag));
    for (int i = 0; i < size; i++)
        c->src[i] = i == me ? buf + share * me * es : c->in[i].at;
    if (own)
        reduce_into(c, j, buf + share * me * es, own / es);
    for (int i = 0; i < size; i++)
        c->parts[i] =
                (struct piece){buf + share * i * es, part_of(n, share * i, share) * es};
    return gather_round(c, j->what, c->parts, diag);
}

static enum status mpi_all_reduce(struct comm *base, void *buf, int64_t n,
                                  enum dtype dtype, enum comm_reduction how,
                                  struct diag *diag)
{
    ASSERT(n >= 0 && comm_can_reduce(dtype, how));
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct job j = {.src = buf, .dst = buf};
    j.call = (struct call){.kind = CALL_ALL_REDUCE,
                           .dtype = (uint16_t)dtype,
                           .how = (uint16_t)how,
                           .n = n};
    j.data_bytes = n * (int64_t)dtype_bytes(dtype);
    bool small;
    TRY(meet(c, &j, &small, diag));
    if (small) {
        if (n)
            reduce_into(c, &j, buf, n);
        return ST_OK;
    }
    if (adds_in_library(c, &j))
        return library_all_reduce(c, &j, diag);
    int64_t es = (int64_t)j.elem_bytes;
    int64_t window = (c->piece_bytes / es - 2) * base->size;
    for (int64_t at = 0; at < n; at += window)
        TRY(reduce_window(c, &j, (char *)buf + at * es, MIN(window, n - at), diag));
    return ST_OK;
}

static int64_t longest(const int64_t *count, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = MAX(most, count[i]);
    return most;
}

static enum status mpi_all_gather(struct comm *base, const void *src, void *dst,
                                  const int64_t *count, enum dtype dtype,
                                  struct diag *diag)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct job j = {.src = src, .dst = dst, .recv_count = count};
    j.call = call_of_pieces(CALL_ALL_GATHER, dtype, count, base->size);
    int64_t es = (int64_t)dtype_bytes(dtype), most = longest(count, base->size) * es;
    j.data_bytes = count[base->rank] * es;
    prefix_sums(c, count);
    char *own = (char *)dst + c->offset[base->rank] * es;
    bool small;
    TRY(meet(c, &j, &small, diag));
    for (int i = 0; small && i < base->size; i++)
        if (count[i])
            memmove((char *)dst + c->offset[i] * es, i == base->rank ? src : c->src[i],
                    (size_t)(count[i] * es));
    if (small)
        return ST_OK;
    if (own != src && j.data_bytes)
        memcpy(own, src, (size_t)j.data_bytes);
    for (int64_t at = 0; at < most; at += c->piece_bytes) {
        for (int i = 0; i < base->size; i++)
            c->parts[i] = (struct piece){(char *)dst + c->offset[i] * es + at,
                                         part_of(count[i] * es, at, c->piece_bytes)};
        TRY(gather_round(c, j.what, c->parts, diag));
    }
    return ST_OK;
}

static enum status mpi_reduce_scatter(struct comm *base, const void *src, void *dst,
                                      const int64_t *count, enum dtype dtype,
                                      struct diag *diag)
{
    ASSERT(comm_can_reduce(dtype, COMM_SUM));
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct job j = {.src = src, .dst = dst, .recv_count = count};
    j.call = call_of_pieces(CALL_REDUCE_SCATTER, dtype, count, base->size);
    int64_t es = (int64_t)dtype_bytes(dtype), most = longest(count, base->size) * es;
    int me = base->rank;
    j.data_bytes = j.call.n * es;
    prefix_sums(c, count);
    bool small;
    TRY(meet(c, &j, &small, diag));
    if (small) {
        for (int i = 0; i < base->size; i++)
            c->src[i] = (const char *)c->src[i] + c->offset[me] * es;
        if (count[me])
            reduce_into(c, &j, dst, count[me]);
        return ST_OK;
    }
    if (adds_in_library(c, &j))
        return library_reduce_scatter(c, &j, most, diag);
    for (int64_t at = 0; at < most; at += c->piece_bytes) {
        int64_t own = part_of(count[me] * es, at, c->piece_bytes);
        for (int i = 0; i < base->size; i++) {
            c->out[i].at = (char *)(uintptr_t)src + c->offset[i] * es + at;
            c->out[i].bytes = part_of(count[i] * es, at, c->piece_bytes);
            c->in[i].bytes = own;
        }
        TRY(exchange(c, j.what, diag));
        for (int i = 0; i < base->size; i++)
            c->src[i] = i == me ? c->out[i].at : c->in[i].at;
        if (own)
            reduce_into(c, &j, (char *)dst + at, own / es);
    }
    return ST_OK;
}

static enum status mpi_all_to_all(struct comm *base, const void *src,
                                  const int64_t *send_count, void *dst,
                                  const int64_t *recv_count, enum dtype dtype,
                                  struct diag *diag)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct job j = {.src = src,
                    .dst = dst,
                    .send_count = send_count,
                    .recv_count = recv_count,
                    .data_bytes = INT64_MAX};
    j.call = call_of_pieces(CALL_ALL_TO_ALL, dtype, send_count, base->size);
    j.call.counts = 0; /* they differ by member, and are checked pair by pair */
    int64_t es = (int64_t)dtype_bytes(dtype);
    bool small;
    j.longest =
            MAX(longest(send_count, base->size), longest(recv_count, base->size)) * es;
    TRY(meet(c, &j, &small, diag));
    /* As many rounds as the longest piece of any member needs. */
    int64_t most = 0;
    for (int i = 0; i < base->size; i++)
        most = MAX(most, c->header_in[i].longest);
    for (int64_t at = 0; at < most; at += c->piece_bytes) {
        const char *from = src;
        char *to = dst;
        for (int i = 0; i < base->size; i++) {
            int64_t out = part_of(send_count[i] * es, at, c->piece_bytes);
            c->out[i] = (struct piece){(char *)(uintptr_t)from + at, out};
            c->in[i].bytes = part_of(recv_count[i] * es, at, c->piece_bytes);
            from += send_count[i] * es;
        }
        TRY(exchange(c, j.what, diag));
        for (int i = 0; i < base->size; i++) {
            const char *piece = i == base->rank ? c->out[i].at : c->in[i].at;
            if (c->in[i].bytes)
                memcpy(to + at, piece, (size_t)c->in[i].bytes);
            to += recv_count[i] * es;
        }
    }
    return ST_OK;
}

static enum status mpi_broadcast(struct comm *base, void *buf, int64_t n,
                                 enum dtype dtype, int root, struct diag *diag)
{
    ASSERT(n >= 0 && root >= 0 && root < base->size);
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct job j = {.src = buf, .dst = buf};
    j.call = (struct call){
            .kind = CALL_BROADCAST, .dtype = (uint16_t)dtype, .root = root, .n = n};
    int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    j.data_bytes = base->rank == root ? bytes : 0;
    bool small;
    TRY(meet(c, &j, &small, diag));
    if (small) {
        if (n && base->rank != root)
            memcpy(buf, c->src[root], (size_t)bytes);
        return ST_OK;
    }
    for (int64_t at = 0; at < bytes; at += c->piece_bytes) {
        for (int i = 0; i < base->size; i++)
            c->parts[i] = (struct piece){(char *)buf + at, 0};
        c->parts[root].bytes = part_of(bytes, at, c->piece_bytes);
        TRY(gather_round(c, j.what, c->parts, diag));
    }
    return ST_OK;
}

static enum status mpi_barrier(struct comm *base, struct diag *diag)
{
    struct job j = {.call = {.kind = CALL_BARRIER, .dtype = DT_I32}};
    bool small;
    return meet((struct mpi_comm *)base, &j, &small, diag);
}

/* ---- messages ---- */

static enum status transfer_one(struct mpi_comm *c, void *buf, int64_t bytes, int peer,
                                bool sends, const char *what, struct diag *diag)
{
    struct mpi_world *w = c->world;
    struct mpi_transfer t;
    TRY((sends ? mpi_start_send(w, buf, bytes, c->rank[peer], c->tag + 1, &t, diag)
               : mpi_start_recv(w, buf, bytes, c->rank[peer], c->tag + 1, &t, diag)));
    return mpi_wait(w, &t, 1, what, c->base.name, diag);
}

static enum status mpi_send(struct comm *base, const void *buf, int64_t n,
                            enum dtype dtype, int to, struct diag *diag)
{
    ASSERT(n >= 0 && to >= 0 && to < base->size && to != base->rank);
    struct mpi_comm *c = (struct mpi_comm *)base;
    if (c->host_index[to] >= 0)
        return c->host->ops->send(c->host, buf, n, dtype, c->host_index[to], diag);
    struct header *h = c->send_header;
    *h = (struct header){.call = {.kind = CALL_SEND,
                                  .dtype = (uint16_t)dtype,
                                  .root = c->rank[to],
                                  .n = n}};
    char what[CALL_TEXT_BYTES];
    TRY(mpi_enter(c->world, call_print(&h->call, what), base->name, diag));
    int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    h->has_data = bytes <= HEADER_DATA;
    if (h->has_data && bytes)
        memcpy(h->data, buf, (size_t)bytes);
    TRY(transfer_one(c, h, HEADER_BYTES, to, true, what, diag));
    for (int64_t at = 0; !h->has_data && at < bytes; at += MESSAGE_PART) {
        int64_t part = MIN(MESSAGE_PART, bytes - at);
        memcpy(c->send_part, (const char *)buf + at, (size_t)part);
        TRY(transfer_one(c, c->send_part, part, to, true, what, diag));
    }
    return ST_OK;
}

static enum status mpi_recv(struct comm *base, void *buf, int64_t n, enum dtype dtype,
                            int from, struct diag *diag)
{
    ASSERT(n >= 0 && from >= 0 && from < base->size && from != base->rank);
    struct mpi_comm *c = (struct mpi_comm *)base;
    if (c->host_index[from] >= 0)
        return c->host->ops->recv(c->host, buf, n, dtype, c->host_index[from], diag);
    struct job j = {.call = {.kind = CALL_RECV,
                             .dtype = (uint16_t)dtype,
                             .root = c->rank[from],
                             .n = n}};
    TRY(mpi_enter(c->world, call_print(&j.call, j.what), base->name, diag));
    struct header *h = c->recv_header;
    TRY(transfer_one(c, h, HEADER_BYTES, from, false, j.what, diag));
    if (h->call.n != n || h->call.dtype != (uint16_t)dtype)
        return mismatch(c, &j, from, &h->call, diag);
    int64_t bytes = n * (int64_t)dtype_bytes(dtype);
    if (h->has_data && bytes)
        memcpy(buf, h->data, (size_t)bytes);
    for (int64_t at = 0; !h->has_data && at < bytes; at += MESSAGE_PART) {
        int64_t part = MIN(MESSAGE_PART, bytes - at);
        TRY(transfer_one(c, c->recv_part, part, from, false, j.what, diag));
        memcpy((char *)buf + at, c->recv_part, (size_t)part);
    }
    return ST_OK;
}

/* ---- opening ---- */

static void mpi_close(struct comm *base)
{
    struct mpi_comm *c = (struct mpi_comm *)base;
    struct comm_world *w = &c->world->base;
    if (c->host)
        c->host->ops->close(c->host);
    /* MPI may still work on what was under way when the world stopped. */
    bool stopped = region_is_stopped(comm_shm_region(c->world->host));
    if (c->pool && !stopped)
        w->ops->release(w, c->pool, c->pool_bytes);
    if (c->library && !stopped)
        mpi_close_library_group(c->world, &c->library);
    arena_release(&c->arena);
    mem_free(c);
}

static const struct comm_ops mpi_ops = {
        .all_reduce = mpi_all_reduce,
        .all_gather = mpi_all_gather,
        .reduce_scatter = mpi_reduce_scatter,
        .all_to_all = mpi_all_to_all,
        .broadcast = mpi_broadcast,
        .send = mpi_send,
        .recv = mpi_recv,
        .barrier = mpi_barrier,
        .close = mpi_close,
};

static struct mpi_comm *make(struct mpi_world *w, const int *members, int n,
                             const char *name)
{
    struct mpi_comm *c = mem_alloc(sizeof(*c));
    c->world = w;
    c->base = (struct comm){.ops = &mpi_ops, .rank = -1, .size = n};
    struct arena *a = &c->arena;
    c->base.name = arena_strdup(a, name);
    c->rank = arena_array(a, int, n);
    c->host_index = arena_array(a, int, n);
    c->host_member = arena_array(a, int, n);
    c->delegate = arena_array(a, int, n);
    c->sends_to = arena_array(a, bool, n);
    c->out = arena_array(a, struct piece, n);
    c->in = arena_array(a, struct piece, n);
    c->parts = arena_array(a, struct piece, n);
    c->src = arena_array(a, const void *, n);
    c->transfer = arena_array(a, struct mpi_transfer, 2 * n);
    c->host_out = arena_array(a, int64_t, n);
    c->host_in = arena_array(a, int64_t, n);
    c->offset = arena_array(a, int64_t, n + 1);
    c->elems = arena_array(a, int, n);
    for (int i = 0; i < n; i++) {
        c->rank[i] = members[i];
        c->host_index[i] = -1;
        if (members[i] == w->base.rank)
            c->base.rank = i;
    }
    ASSERT(c->base.rank >= 0);
    for (int i = 0; i < n; i++)
        if (same_host(c, i, c->base.rank)) {
            c->host_index[i] = c->n_host;
            c->host_member[c->n_host++] = i;
        }
    for (int i = 0; i < n; i++) {
        bool here = same_host(c, i, c->base.rank);
        c->delegate[i] = here ? i : delegate_of(c, i, c->base.rank);
        c->sends_to[i] = !here && delegate_of(c, c->base.rank, i) == i;
    }
    return c;
}

static void *cut(char **at, int64_t bytes)
{
    char *here = *at;
    *at += bytes;
    return here;
}

/* Cuts the buffers out of one allocation. */
static enum status make_pool(struct mpi_comm *c, struct diag *diag)
{
    int64_t n = c->base.size, host = c->n_host;
    int64_t piece = MIN(MAX(ROUND_BYTES / n, PIECE_MIN), PIECE_MAX) / 64 * 64;
    c->piece_bytes = piece;
    c->pool_bytes = 2 * ((n + 1) * HEADER_BYTES + (n + host) * piece + MESSAGE_PART);
    c->pool = c->world->base.ops->alloc(&c->world->base, c->pool_bytes);
    if (!c->pool)
        return diag_set(diag, ST_NO_FIT,
                        "no memory for the buffers of %s: wanted %lld bytes",
                        c->base.name, (long long)c->pool_bytes);
    char *at = c->pool;
    c->header_out = cut(&at, n * HEADER_BYTES);
    c->header_in = cut(&at, n * HEADER_BYTES);
    c->send_header = cut(&at, HEADER_BYTES);
    c->recv_header = cut(&at, HEADER_BYTES);
    c->stage_out = cut(&at, n * piece);
    c->stage_in = cut(&at, n * piece);
    c->pack_out = cut(&at, host * piece);
    c->pack_in = cut(&at, host * piece);
    c->send_part = cut(&at, MESSAGE_PART);
    c->recv_part = cut(&at, MESSAGE_PART);
    ASSERT(at == c->pool + c->pool_bytes);
    return ST_OK;
}

/* What the first member tells the others of a group. */
struct invitation {
    uint64_t members_hash;
    int32_t tag;
    char name[64];
};

static enum status invite(struct mpi_comm *c, struct invitation *own, struct diag *diag)
{
    struct mpi_world *w = c->world;
    struct call call = {.kind = CALL_GROUP};
    char what[CALL_TEXT_BYTES];
    call_print(&call, what);
    TRY(mpi_enter(w, what, c->base.name, diag));
    int n = c->base.size;
    struct invitation *in = (struct invitation *)c->recv_part;
    if (c->base.rank != 0) {
        TRY(mpi_start_recv(w, in, sizeof(*in), c->rank[0], TAG_GROUP, &c->transfer[0],
                           diag));
        TRY(mpi_wait(w, c->transfer, 1, what, c->base.name, diag));
        if (in->members_hash == own->members_hash && strcmp(in->name, own->name) == 0) {
            c->tag = in->tag;
            return ST_OK;
        }
        char why[STOP_TEXT_BYTES];
        snprintf(why, sizeof(why),
                 "groups are opened in different orders: rank %d opens %s, rank %d %s",
                 w->base.rank, own->name, c->rank[0], in->name);
        region_stop(comm_shm_region(w->host), w->base.rank, why);
        return diag_set(diag, ST_INTERNAL, "%s", why);
    }
    c->tag = TAG_FIRST_GROUP + 2 * (w->n_groups++ * w->base.size + w->base.rank);
    own->tag = c->tag;
    memcpy(c->send_part, own, sizeof(*own));
    for (int i = 1; i < n; i++)
        TRY(mpi_start_send(w, c->send_part, sizeof(*own), c->rank[i], TAG_GROUP,
                           &c->transfer[i - 1], diag));
    return mpi_wait(w, c->transfer, n - 1, what, c->base.name, diag);
}

/* The library's call has no deadline: all members meet first. */
static enum status open_library(struct mpi_comm *c, struct diag *diag)
{
    if (!c->world->base.any_order)
        return ST_OK;
    TRY(mpi_barrier(&c->base, diag));
    return mpi_open_library_group(c->world, c->rank, c->base.size, c->tag, &c->library,
                                  diag);
}

enum status mpi_group_open(struct mpi_world *w, const int *members, int n,
                           const char *name, struct comm **out, struct diag *diag)
{
    struct mpi_comm *c = make(w, members, n, name);
    struct invitation own = {.members_hash = hash64(members, (size_t)n * sizeof(int))};
    snprintf(own.name, sizeof(own.name), "%s", name);
    int *place = arena_array(&c->arena, int, c->n_host);
    for (int i = 0; i < c->n_host; i++)
        place[i] = w->place_of[members[c->host_member[i]]];
    enum status st = make_pool(c, diag);
    if (st == ST_OK)
        st = invite(c, &own, diag);
    if (st == ST_OK && c->n_host > 1)
        st = w->host->ops->group(w->host, place, c->n_host, name, &c->host, diag);
    if (st == ST_OK)
        st = open_library(c, diag);
    if (st != ST_OK) {
        mpi_close(&c->base);
        return st;
    }
    *out = &c->base;
    return ST_OK;
}
