/* Messages through shared memory: a ring of packets for each ordered pair of members.
 *
 * A small message lies in its packet, and the sender goes on. The packet of a large one
 * says where the receiver can read it, and the sender waits until it has. Where it cannot
 * be read in place it goes through the ring piece by piece. */
#include <string.h>

#include "parallel/comm_shm_private.h"

static struct ring *ring_of(const struct shm_comm *c, int from, int to)
{
    char *rings = (char *)c->group + c->at.ring;
    return (struct ring *)(rings +
                           ((uint64_t)from * (uint64_t)c->base.size + (uint64_t)to) *
                                   c->at.ring_bytes);
}

static struct packet *packet_of(const struct shm_comm *c, struct ring *ring, unsigned i)
{
    uint64_t bytes = sizeof(struct packet) + (uint64_t)c->at.packet_bytes;
    return (struct packet *)(ring->packets + i % RING_PACKETS * bytes);
}

/* A wait of one message: the call in words, and the other member. */
struct message {
    struct shm_comm *c;
    struct call call;
    int peer;
    size_t elem_bytes;
};

static bool is_peer(void *arg, int place)
{
    const struct message *m = arg;
    return m->c->place[m->peer] == place;
}

static enum status wait_word(struct message *m, struct region_word *word,
                             unsigned target, struct diag *diag)
{
    struct shm_comm *c = m->c;
    int died = -1;
    enum wait_end end = region_wait(&c->world->region, word, target,
                                    *c->world->deadline_s, is_peer, m, &died);
    return end == WAIT_REACHED ? ST_OK
                               : shm_fail(c, &m->call, end, died, m->peer, diag);
}

static void grow_word(struct message *m, struct region_word *word)
{
    atomic_fetch_add(&word->value, 1);
    region_wake(&m->c->world->region, word);
}

static enum status start(struct message *m, struct comm *base, enum call_kind kind,
                         int64_t n, enum dtype dtype, int peer, struct diag *diag)
{
    ASSERT(n >= 0 && peer >= 0 && peer < base->size && peer != base->rank);
    struct shm_comm *c = (struct shm_comm *)base;
    *m = (struct message){.c = c, .peer = peer, .elem_bytes = dtype_bytes(dtype)};
    m->call = (struct call){.kind = (uint16_t)kind,
                            .dtype = (uint16_t)dtype,
                            .root = shm_world_rank(c, peer),
                            .n = n};
    return shm_enter(c, &m->call, diag);
}

/* Posts one packet with `bytes` of data. */
static enum status put_packet(struct message *m, struct ring *ring, const void *data,
                              int64_t bytes, uint32_t flags, uint64_t share,
                              struct diag *diag)
{
    struct shm_comm *c = m->c;
    unsigned *sent = &c->n_sent[m->peer];
    TRY(wait_word(m, &ring->taken, *sent - (RING_PACKETS - 1), diag));
    struct packet *p = packet_of(c, ring, *sent);
    p->post = (struct post){
            .call = m->call, .share = share, .src_elems = m->call.n, .flags = flags};
    p->post.call.root = shm_world_rank(c, c->base.rank);
    if (bytes)
        memcpy(p->data, data, (size_t)bytes);
    (*sent)++;
    grow_word(m, &ring->sent);
    return ST_OK;
}

enum status shm_send(struct comm *base, const void *buf, int64_t n, enum dtype dtype,
                     int to, struct diag *diag)
{
    struct message m;
    TRY(start(&m, base, CALL_SEND, n, dtype, to, diag));
    struct shm_comm *c = m.c;
    struct ring *ring = ring_of(c, base->rank, to);
    int64_t bytes = n * (int64_t)m.elem_bytes, piece = c->at.packet_bytes;
    if (bytes <= EAGER_BYTES)
        return put_packet(&m, ring, buf, bytes, POST_INLINE, 0, diag);
    uint64_t share;
    if (region_share(&c->world->region, buf, bytes, &share)) {
        TRY(put_packet(&m, ring, NULL, 0, POST_SHARED, share, diag));
        return wait_word(&m, &ring->taken, c->n_sent[to], diag);
    }
    for (int64_t at = 0; at < bytes; at += piece)
        TRY(put_packet(&m, ring, (const char *)buf + at, MIN(piece, bytes - at),
                       POST_STREAM, 0, diag));
    return ST_OK;
}

/* Copies from the sender's memory, in parts, unless a rank gives up. */
static bool pull(struct shm_comm *c, char *dst, const char *src, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += DIRECT_BYTES) {
        if (!shm_busy_begin(c))
            return false;
        memcpy(dst + at, src + at, (size_t)MIN(DIRECT_BYTES, bytes - at));
        shm_busy_end(c);
    }
    return true;
}

static enum status check_packet(struct message *m, const struct post *p,
                                struct diag *diag)
{
    if (p->call.n == m->call.n && p->call.dtype == m->call.dtype)
        return ST_OK;
    struct call theirs = p->call;
    theirs.root = shm_world_rank(m->c, m->c->base.rank);
    return shm_mismatch(m->c, &m->call, m->peer, &theirs, diag);
}

enum status shm_recv(struct comm *base, void *buf, int64_t n, enum dtype dtype,
                     int from, struct diag *diag)
{
    struct message m;
    TRY(start(&m, base, CALL_RECV, n, dtype, from, diag));
    struct shm_comm *c = m.c;
    struct ring *ring = ring_of(c, from, base->rank);
    unsigned *taken = &c->n_taken[from];
    int64_t bytes = n * (int64_t)m.elem_bytes, piece = c->at.packet_bytes, at = 0;
    do {
        TRY(wait_word(&m, &ring->sent, *taken + 1, diag));
        const struct packet *p = packet_of(c, ring, *taken);
        TRY(check_packet(&m, &p->post, diag));
        bool streamed = p->post.flags & POST_STREAM;
        int64_t part = streamed ? MIN(piece, bytes - at) : bytes;
        if (p->post.flags & POST_SHARED) {
            if (!pull(c, buf, region_shared(&c->world->region, p->post.share), part))
                return shm_fail(c, &m.call, WAIT_STOPPED, -1, from, diag);
        } else if (part) {
            memcpy((char *)buf + at, p->data, (size_t)part);
        }
        at += part;
        (*taken)++;
        grow_word(&m, &ring->taken);
    } while (at < bytes);
    return ST_OK;
}
