#include "parallel/verify_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/str.h"

/* ----------------------------------------------------------------------------- lists */

static void clock_join(struct rank_clock *a, const struct rank_clock *b)
{
    for (int i = 0; i < RANK_STREAMS_MAX; i++)
        a->done[i] = MAX(a->done[i], b->done[i]);
}

void rank_events_wait(struct rank_events *r, uint32_t stream, uint32_t signal)
{
    ASSERT(stream < RANK_STREAMS_MAX);
    if (signal < r->signals.n)
        clock_join(&r->stream[stream], &r->signals.data[signal]);
}

void rank_events_add(struct rank_events *r, const struct comm_event *event)
{
    ASSERT(event->stream < RANK_STREAMS_MAX);
    struct rank_clock *c = &r->stream[event->stream];
    struct comm_event e = *event;
    memcpy(e.after, c->done, sizeof(e.after));
    vec_push(&r->events, e);
    c->done[e.stream]++;
}

void rank_events_signal(struct rank_events *r, uint32_t stream, uint32_t signal)
{
    ASSERT(stream < RANK_STREAMS_MAX);
    while (r->signals.n <= signal)
        vec_push(&r->signals, (struct rank_clock){{0}});
    r->signals.data[signal] = r->stream[stream];
}

void rank_events_free(struct rank_events *r)
{
    vec_free(&r->events);
    vec_free(&r->signals);
    *r = (struct rank_events){0};
}

/* What a kind has beside dtype and count. */
static const struct {
    const char *name;
    bool reduces;
    bool has_peer;
    bool is_message;
} kinds[COMM_EVENT_KINDS] = {
        [COMM_ALL_REDUCE] = {"all-reduce", true, false, false},
        [COMM_ALL_GATHER] = {"all-gather", false, false, false},
        [COMM_REDUCE_SCATTER] = {"reduce-scatter", true, false, false},
        [COMM_ALL_TO_ALL] = {"all-to-all", false, false, false},
        [COMM_BROADCAST] = {"broadcast", false, true, false},
        [COMM_BARRIER] = {"barrier", false, false, false},
        [COMM_SEND] = {"send", false, true, true},
        [COMM_RECV] = {"receive", false, true, true},
};

const char *comm_event_kind_name(enum comm_event_kind kind)
{
    ASSERT((int)kind >= 0 && kind < COMM_EVENT_KINDS);
    return kinds[kind].name;
}

const char *comm_event_words(const struct comm_event *e, int peer, char *buf, size_t n)
{
    static const char *const reductions[] = {
            [COMM_SUM] = " (sum)", [COMM_MAX] = " (max)"};
    static const char *const preps[COMM_EVENT_KINDS] = {
            [COMM_BROADCAST] = "from", [COMM_SEND] = "to", [COMM_RECV] = "from"};
    const char *how = kinds[e->kind].reduces ? reductions[e->reduction] : "";
    char end[32] = "";
    if (kinds[e->kind].has_peer)
        snprintf(end, sizeof(end), " %s rank %d", preps[e->kind], peer);
    if (e->kind == COMM_BARRIER)
        snprintf(buf, n, "%s", kinds[e->kind].name);
    else
        snprintf(buf, n, "%s%s of %lld %s%s", kinds[e->kind].name, how,
                 (long long)e->count, dtype_name(e->dtype), end);
    return buf;
}

/* ------------------------------------------------------------------------ comparisons */

static bool same_collective(const struct comm_event *a, const struct comm_event *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->count == b->count &&
           (!kinds[a->kind].reduces || a->reduction == b->reduction) &&
           (!kinds[a->kind].has_peer || a->peer == b->peer);
}

static bool same_message(const struct comm_event *a, const struct comm_event *b)
{
    return a->dtype == b->dtype && a->count == b->count;
}

static void hash_event(struct hash_chain *h, const struct comm_event *e)
{
    bool message = kinds[e->kind].is_message;
    int64_t words[] = {
            message ? 0 : e->kind,
            e->dtype,
            kinds[e->kind].reduces ? e->reduction : 0,
            kinds[e->kind].has_peer && !message ? e->peer : -1,
            e->count,
    };
    hash_chain_add(h, words, sizeof(words));
}

uint64_t rank_events_hash(const struct rank_events *r, uint32_t group)
{
    struct hash_chain h = {0};
    for (uint32_t i = 0; i < r->events.n; i++) {
        const struct comm_event *e = &r->events.data[i];
        if (e->group == group && !kinds[e->kind].is_message)
            hash_event(&h, e);
    }
    return h.value;
}

uint64_t rank_events_hash_messages(const struct rank_events *r, uint32_t group,
                                   enum comm_event_kind kind, int32_t peer)
{
    struct hash_chain h = {0};
    for (uint32_t i = 0; i < r->events.n; i++) {
        const struct comm_event *e = &r->events.data[i];
        if (e->group == group && e->kind == kind && e->peer == peer)
            hash_event(&h, e);
    }
    return h.value;
}

/* ---------------------------------------------------------------------------- the job */

/* One event of one rank, with what it is sorted by. Events of a group that must follow
 * each other in all ranks stand together: `side` tells the lists that are compared. */
struct use {
    uint32_t group;
    int32_t from; /* messages: sending and receiving member; collectives: -1 */
    int32_t to;
    int32_t side; /* messages: 0 sends, 1 receives; collectives: the member */
    int rank;
    uint32_t index; /* of the event in its rank's list */
};

struct job {
    const struct rank_events *ranks;
    const struct event_group *groups;
    int n_ranks, n_groups;
    uint32_t n_uses;
    struct use *uses; /* sorted */
    struct diag *diag;
};

/* Uses [begin, end) of one side. */
struct side {
    uint32_t begin, end;
};

static const struct comm_event *event_of(const struct job *j, const struct use *u)
{
    return &j->ranks[u->rank].events.data[u->index];
}

/* "rank 2: send of 64 f32 to rank 3 (call 4, op 17)" */
static const char *use_words(const struct job *j, int rank, const struct comm_event *e,
                             char *buf, size_t n)
{
    char what[128];
    int peer = e->peer >= 0 ? j->groups[e->group].members[e->peer] : -1;
    comm_event_words(e, peer, what, sizeof(what));
    snprintf(buf, n, "rank %d: %s (call %u, op %u)", rank, what, e->call, e->op);
    return buf;
}

static int member_of(const struct event_group *g, int rank)
{
    for (int i = 0; i < g->n; i++)
        if (g->members[i] == rank)
            return i;
    return -1;
}

static enum status out_of_range(const struct job *j, int rank, uint32_t index,
                                const char *what, long long got, long long below)
{
    return diag_set(
            j->diag, ST_INTERNAL,
            "an event out of range (rank %d, event %u): got %s %lld, wanted 0 to "
            "%lld",
            rank, index, what, got, below - 1);
}

/* The rank's events are well-formed. in: stream_events[RANK_STREAMS_MAX] of the rank. */
static enum status check_event(const struct job *j, int rank, uint32_t index,
                               const uint32_t *stream_events)
{
    const struct comm_event *e = &j->ranks[rank].events.data[index];
    if (e->kind >= COMM_EVENT_KINDS)
        return out_of_range(j, rank, index, "kind", e->kind, COMM_EVENT_KINDS);
    if (e->dtype >= DT_COUNT)
        return out_of_range(j, rank, index, "dtype", e->dtype, DT_COUNT);
    if (kinds[e->kind].reduces && e->reduction > COMM_MAX)
        return out_of_range(j, rank, index, "reduction", e->reduction, COMM_MAX + 1);
    if (e->stream >= RANK_STREAMS_MAX)
        return out_of_range(j, rank, index, "stream", e->stream, RANK_STREAMS_MAX);
    if (e->group >= (uint32_t)j->n_groups)
        return out_of_range(j, rank, index, "group", e->group, j->n_groups);
    if (e->count < 0)
        return out_of_range(j, rank, index, "count", e->count, INT64_MAX);
    const struct event_group *g = &j->groups[e->group];
    if (kinds[e->kind].has_peer && (e->peer < 0 || e->peer >= g->n))
        return out_of_range(j, rank, index, "member", e->peer, g->n);
    if (!kinds[e->kind].has_peer && e->peer != -1)
        return diag_set(
                j->diag, ST_INTERNAL,
                "an event out of range (rank %d, event %u): got member %d for %s, "
                "wanted -1",
                rank, index, e->peer, kinds[e->kind].name);
    for (int s = 0; s < RANK_STREAMS_MAX; s++)
        if (e->after[s] > stream_events[s])
            return out_of_range(j, rank, index, "number of events to wait for",
                                e->after[s], stream_events[s] + 1LL);
    int self = member_of(g, rank);
    char buf[256];
    if (self < 0)
        return diag_set(j->diag, ST_INTERNAL,
                        "a rank in a group that is not its own (%s): %s", g->name,
                        use_words(j, rank, e, buf, sizeof(buf)));
    if (kinds[e->kind].is_message && e->peer == self)
        return diag_set(j->diag, ST_INTERNAL, "a message to oneself (%s): %s", g->name,
                        use_words(j, rank, e, buf, sizeof(buf)));
    return ST_OK;
}

static enum status check_events(struct job *j)
{
    for (int r = 0; r < j->n_ranks; r++) {
        const struct rank_events *list = &j->ranks[r];
        uint32_t stream_events[RANK_STREAMS_MAX] = {0};
        for (uint32_t i = 0; i < list->events.n; i++)
            if (list->events.data[i].stream < RANK_STREAMS_MAX)
                stream_events[list->events.data[i].stream]++;
        for (uint32_t i = 0; i < list->events.n; i++)
            TRY(check_event(j, r, i, stream_events));
        j->n_uses += list->events.n;
    }
    return ST_OK;
}

static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    int64_t key[][2] = {{x->group, y->group},
                        {x->from, y->from},
                        {x->to, y->to},
                        {x->side, y->side},
                        {x->index, y->index}};
    for (size_t i = 0; i < ARRAY_LEN(key); i++)
        if (key[i][0] != key[i][1])
            return key[i][0] < key[i][1] ? -1 : 1;
    return 0;
}

static void sort_uses(struct job *j)
{
    uint32_t n = 0;
    j->uses = mem_alloc(j->n_uses * sizeof(*j->uses));
    for (int r = 0; r < j->n_ranks; r++)
        for (uint32_t i = 0; i < j->ranks[r].events.n; i++) {
            const struct comm_event *e = &j->ranks[r].events.data[i];
            int self = member_of(&j->groups[e->group], r);
            bool recv = e->kind == COMM_RECV;
            struct use u = {e->group, -1, -1, self, r, i};
            if (kinds[e->kind].is_message) {
                u.from = recv ? e->peer : self;
                u.to = recv ? self : e->peer;
                u.side = recv;
            }
            j->uses[n++] = u;
        }
    qsort(j->uses, n, sizeof(*j->uses), compare_uses);
}

/* All uses of one sequence, [begin, end): a group's collectives, or the messages from one
 * member to another. */
static uint32_t sequence_end(const struct job *j, uint32_t begin)
{
    const struct use *a = &j->uses[begin];
    uint32_t end = begin;
    while (end < j->n_uses && j->uses[end].group == a->group &&
           j->uses[end].from == a->from && j->uses[end].to == a->to)
        end++;
    return end;
}

static struct side find_side(const struct job *j, uint32_t begin, uint32_t end,
                             int32_t side)
{
    struct side s = {begin, begin};
    while (s.begin < end && j->uses[s.begin].side < side)
        s.begin++;
    s.end = s.begin;
    while (s.end < end && j->uses[s.end].side == side)
        s.end++;
    return s;
}

/* A sequence may come from one stream of a rank alone, or its order would be chance. */
static enum status check_stream(const struct job *j, struct side s)
{
    for (uint32_t i = s.begin + 1; i < s.end; i++) {
        const struct comm_event *a = event_of(j, &j->uses[i - 1]);
        const struct comm_event *b = event_of(j, &j->uses[i]);
        char x[256], y[256];
        if (a->stream != b->stream)
            return diag_set(j->diag, ST_INTERNAL,
                            "a group is used from two streams (%s): stream %u, %s; "
                            "stream %u, %s",
                            j->groups[a->group].name, a->stream,
                            use_words(j, j->uses[i].rank, a, x, sizeof(x)), b->stream,
                            use_words(j, j->uses[i].rank, b, y, sizeof(y)));
    }
    return ST_OK;
}

/* ----------------------------------------------------------------- equal collectives */

static bool equal_at(const struct job *j, struct side a, uint32_t i, struct side b,
                     uint32_t k)
{
    return a.begin + i < a.end && b.begin + k < b.end &&
           same_collective(event_of(j, &j->uses[a.begin + i]),
                           event_of(j, &j->uses[b.begin + k]));
}

/* Whether b from `at` on is a without a's event there. */
static bool lacks_one(const struct job *j, struct side a, struct side b, uint32_t at)
{
    if (a.end - a.begin != b.end - b.begin + 1)
        return false;
    for (uint32_t i = at; b.begin + i < b.end; i++)
        if (!equal_at(j, a, i + 1, b, i))
            return false;
    return true;
}

/* Says what two members do at the first position where they differ. */
static enum status collectives_differ(const struct job *j, const struct event_group *g,
                                      struct side a, int rank_a, struct side b,
                                      int rank_b)
{
    uint32_t at = 0;
    char x[256], y[256];
    while (equal_at(j, a, at, b, at))
        at++;
    snprintf(x, sizeof(x), "rank %d: nothing more", rank_a);
    snprintf(y, sizeof(y), "rank %d: nothing more", rank_b);
    if (a.begin + at < a.end)
        use_words(j, rank_a, event_of(j, &j->uses[a.begin + at]), x, sizeof(x));
    if (b.begin + at < b.end)
        use_words(j, rank_b, event_of(j, &j->uses[b.begin + at]), y, sizeof(y));
    diag_set(j->diag, ST_INTERNAL, "members disagree (%s, its collective %u): %s; %s",
             g->name, at + 1, x, y);
    if (lacks_one(j, a, b, at))
        diag_hint(j->diag, "rank %d lacks this one, and agrees after it", rank_b);
    else if (lacks_one(j, b, a, at))
        diag_hint(j->diag, "rank %d has one too many there, and agrees after it",
                  rank_b);
    else if (equal_at(j, a, at, b, at + 1) && equal_at(j, a, at + 1, b, at))
        diag_hint(j->diag, "rank %d has this one and the next the other way round",
                  rank_b);
    return ST_INTERNAL;
}

static bool sides_equal(const struct job *j, struct side a, struct side b)
{
    if (a.end - a.begin != b.end - b.begin)
        return false;
    for (uint32_t i = 0; a.begin + i < a.end; i++)
        if (!equal_at(j, a, i, b, i))
            return false;
    return true;
}

/* The member that most others agree with: the one that is odd is then named as such. */
static int common_member(const struct job *j, const struct side *sides, int n)
{
    int best = 0, most = 0;
    for (int i = 0; i < n && most <= n / 2; i++) {
        int same = 0;
        for (int k = 0; k < n; k++)
            same += sides_equal(j, sides[i], sides[k]);
        if (same > most) {
            most = same;
            best = i;
        }
    }
    return best;
}

static enum status check_collectives(const struct job *j, uint32_t begin, uint32_t end)
{
    const struct event_group *g = &j->groups[j->uses[begin].group];
    struct side *sides = mem_alloc((size_t)g->n * sizeof(*sides));
    enum status st = ST_OK;
    uint32_t from = begin;
    for (int i = 0; i < g->n; i++) {
        sides[i] = find_side(j, from, end, i);
        from = sides[i].end;
    }
    for (int i = 0; i < g->n && st == ST_OK; i++)
        st = check_stream(j, sides[i]);
    int common = common_member(j, sides, g->n);
    for (int i = 0; i < g->n && st == ST_OK; i++)
        if (!sides_equal(j, sides[common], sides[i]))
            st = collectives_differ(j, g, sides[common], g->members[common], sides[i],
                                    g->members[i]);
    mem_free(sides);
    return st;
}

static enum status check_messages(const struct job *j, uint32_t begin, uint32_t end)
{
    const struct use *first = &j->uses[begin];
    const struct event_group *g = &j->groups[first->group];
    int from = g->members[first->from], to = g->members[first->to];
    struct side send = find_side(j, begin, end, 0), recv = find_side(j, begin, end, 1);
    uint32_t n = MAX(send.end - send.begin, recv.end - recv.begin);
    TRY(check_stream(j, send));
    TRY(check_stream(j, recv));
    for (uint32_t i = 0; i < n; i++) {
        char x[256], y[256];
        snprintf(x, sizeof(x), "rank %d: no send to rank %d", from, to);
        snprintf(y, sizeof(y), "rank %d: no receive from rank %d", to, from);
        bool has_send = send.begin + i < send.end, has_recv = recv.begin + i < recv.end;
        const struct comm_event *a =
                has_send ? event_of(j, &j->uses[send.begin + i]) : NULL;
        const struct comm_event *b =
                has_recv ? event_of(j, &j->uses[recv.begin + i]) : NULL;
        if (a && b && same_message(a, b))
            continue;
        if (a)
            use_words(j, from, a, x, sizeof(x));
        if (b)
            use_words(j, to, b, y, sizeof(y));
        return diag_set(j->diag, ST_INTERNAL,
                        "send and receive do not meet (%s, message %u from rank %d to "
                        "rank %d): %s; %s",
                        g->name, i + 1, from, to, x, y);
    }
    return ST_OK;
}

static enum status check_sequences(const struct job *j)
{
    for (uint32_t begin = 0; begin < j->n_uses;) {
        uint32_t end = sequence_end(j, begin);
        TRY(j->uses[begin].from < 0 ? check_collectives(j, begin, end)
                                    : check_messages(j, begin, end));
        begin = end;
    }
    return ST_OK;
}

/* --------------------------------------------------------------------------- deadlock */

/* What must come together: a collective of all members, or a send and its receive. */
struct meeting {
    uint32_t first; /* into run.taker */
    uint32_t need;
    uint32_t arrived;
};

struct stream_run {
    uint32_t first; /* into run.event */
    uint32_t n;
    uint32_t done;
    bool arrived; /* the event after the done ones has started and waits for others */
};

struct run {
    const struct job *j;
    VEC(struct meeting) meetings;
    const struct use **taker;  /* [n_uses] by meeting */
    uint32_t *meeting_of;      /* [n_uses] by rank_first[rank] + index */
    uint32_t *rank_first;      /* [n_ranks + 1] */
    uint32_t *event;           /* [n_uses] index in its rank, by rank and stream */
    struct stream_run *stream; /* [n_ranks * RANK_STREAMS_MAX] */
    VEC(int) todo;             /* ranks to look at */
};

/* Joins the k-th uses of all sides of a sequence. */
static void make_meetings(struct run *r, uint32_t begin, uint32_t end,
                          uint32_t *n_takers)
{
    const struct use *u = r->j->uses;
    uint32_t per_side = 0;
    while (begin + per_side < end && u[begin + per_side].side == u[begin].side)
        per_side++;
    uint32_t n_sides = (end - begin) / per_side;
    for (uint32_t k = 0; k < per_side; k++) {
        vec_push(&r->meetings, ((struct meeting){*n_takers, n_sides, 0}));
        for (uint32_t s = 0; s < n_sides; s++) {
            const struct use *at = &u[begin + s * per_side + k];
            r->taker[(*n_takers)++] = at;
            r->meeting_of[r->rank_first[at->rank] + at->index] = r->meetings.n - 1;
        }
    }
}

static void list_streams(struct run *r)
{
    uint32_t n = 0;
    for (int rank = 0; rank < r->j->n_ranks; rank++)
        for (uint32_t s = 0; s < RANK_STREAMS_MAX; s++) {
            const struct rank_events *list = &r->j->ranks[rank];
            struct stream_run *stream = &r->stream[rank * RANK_STREAMS_MAX + (int)s];
            stream->first = n;
            for (uint32_t i = 0; i < list->events.n; i++)
                if (list->events.data[i].stream == s)
                    r->event[n++] = i;
            stream->n = n - stream->first;
        }
}

static void run_init(struct run *r, const struct job *j)
{
    size_t n = j->n_uses, n_ranks = (size_t)j->n_ranks;
    uint32_t n_takers = 0;
    *r = (struct run){.j = j};
    r->taker = mem_alloc(n * sizeof(*r->taker));
    r->meeting_of = mem_alloc(n * sizeof(*r->meeting_of));
    r->rank_first = mem_alloc((n_ranks + 1) * sizeof(*r->rank_first));
    r->event = mem_alloc(n * sizeof(*r->event));
    r->stream = mem_alloc(n_ranks * RANK_STREAMS_MAX * sizeof(*r->stream));
    for (int i = 0; i < j->n_ranks; i++)
        r->rank_first[i + 1] = r->rank_first[i] + j->ranks[i].events.n;
    for (uint32_t begin = 0; begin < j->n_uses;) {
        uint32_t end = sequence_end(j, begin);
        make_meetings(r, begin, end, &n_takers);
        begin = end;
    }
    list_streams(r);
    for (int i = j->n_ranks - 1; i >= 0; i--)
        vec_push(&r->todo, i);
}

static void run_free(struct run *r)
{
    vec_free(&r->meetings);
    mem_free(r->taker);
    mem_free(r->meeting_of);
    mem_free(r->rank_first);
    mem_free(r->event);
    mem_free(r->stream);
    vec_free(&r->todo);
}

static struct stream_run *stream_at(const struct run *r, int rank, uint32_t stream)
{
    return &r->stream[rank * RANK_STREAMS_MAX + (int)stream];
}

/* The event that a stream is at; it has one. */
static uint32_t head_of(const struct run *r, const struct stream_run *s)
{
    return r->event[s->first + s->done];
}

/* A stream that an event still waits for, or -1. */
static int blocking_stream(const struct run *r, int rank, const struct comm_event *e)
{
    for (uint32_t s = 0; s < RANK_STREAMS_MAX; s++)
        if (s != e->stream && stream_at(r, rank, s)->done < e->after[s])
            return (int)s;
    return -1;
}

static void finish_meeting(struct run *r, const struct meeting *m)
{
    for (uint32_t i = 0; i < m->need; i++) {
        const struct use *u = r->taker[m->first + i];
        struct stream_run *s = stream_at(r, u->rank, event_of(r->j, u)->stream);
        s->done++;
        s->arrived = false;
        vec_push(&r->todo, u->rank);
    }
}

/* Lets every stream of a rank arrive at its next event if it can. */
static void visit_rank(struct run *r, int rank)
{
    for (uint32_t k = 0; k < RANK_STREAMS_MAX; k++) {
        struct stream_run *s = stream_at(r, rank, k);
        if (s->done == s->n || s->arrived)
            continue;
        uint32_t index = head_of(r, s);
        if (blocking_stream(r, rank, &r->j->ranks[rank].events.data[index]) >= 0)
            continue;
        struct meeting *m =
                &r->meetings.data[r->meeting_of[r->rank_first[rank] + index]];
        s->arrived = true;
        if (++m->arrived == m->need)
            finish_meeting(r, m);
    }
}

/* Waits told in full: a diagnostic is one line. */
#define WAITS_TOLD_MAX 4

static void tell_wait(const struct run *r, int rank, const struct comm_event *e,
                      const char *what, int number, int step, struct str *text)
{
    char buf[256];
    if (step == WAITS_TOLD_MAX)
        str_add(text, "; ...");
    if (step < WAITS_TOLD_MAX)
        str_printf(text, "%s%s of %s on stream %d waits for %s %d", step ? "; " : "",
                   use_words(r->j, rank, e, buf, sizeof(buf)),
                   r->j->groups[e->group].name, e->stream, what, number);
}

/* What a stuck stream waits for: another stream of its rank, or the stream of another rank
 * whose event is missing. Moves *rank and *stream there and says so. */
static void follow_wait(const struct run *r, int *rank, uint32_t *stream, int step,
                        struct str *text)
{
    const struct stream_run *s = stream_at(r, *rank, *stream);
    uint32_t index = head_of(r, s);
    const struct comm_event *e = &r->j->ranks[*rank].events.data[index];
    int other = blocking_stream(r, *rank, e);
    if (other >= 0) {
        tell_wait(r, *rank, e, "stream", other, step, text);
        *stream = (uint32_t)other;
        return;
    }
    const struct meeting *m =
            &r->meetings.data[r->meeting_of[r->rank_first[*rank] + index]];
    for (uint32_t i = 0; i < m->need; i++) {
        const struct use *u = r->taker[m->first + i];
        uint32_t k = event_of(r->j, u)->stream;
        const struct stream_run *t = stream_at(r, u->rank, k);
        if (t->arrived && head_of(r, t) == u->index)
            continue;
        tell_wait(r, *rank, e, "rank", u->rank, step, text);
        *rank = u->rank;
        *stream = k;
        return;
    }
    BUG("an event that waits for nothing");
}

/* Follows waits from a stuck stream until they come round, then tells the circle. */
static enum status tell_circle(const struct run *r, int rank, uint32_t stream)
{
    size_t n_streams = (size_t)r->j->n_ranks * RANK_STREAMS_MAX;
    bool *seen = mem_alloc(n_streams);
    struct str text = {0};
    int steps = 0;
    while (!seen[rank * RANK_STREAMS_MAX + (int)stream]) {
        seen[rank * RANK_STREAMS_MAX + (int)stream] = true;
        follow_wait(r, &rank, &stream, 0, &text);
    }
    str_clear(&text);
    int begin_rank = rank;
    uint32_t begin_stream = stream;
    do {
        follow_wait(r, &rank, &stream, steps, &text);
        steps++;
    } while (rank != begin_rank || stream != begin_stream);
    diag_set(r->j->diag, ST_INTERNAL, "ranks wait for each other (a circle of %d): %s",
             steps, str_get(&text));
    str_free(&text);
    mem_free(seen);
    return ST_INTERNAL;
}

static enum status check_end(const struct run *r)
{
    for (int rank = 0; rank < r->j->n_ranks; rank++)
        for (uint32_t k = 0; k < RANK_STREAMS_MAX; k++) {
            const struct stream_run *s = stream_at(r, rank, k);
            if (s->done < s->n)
                return tell_circle(r, rank, k);
        }
    return ST_OK;
}

static enum status check_progress(const struct job *j)
{
    struct run r;
    run_init(&r, j);
    while (r.todo.n) {
        int rank = r.todo.data[--r.todo.n];
        visit_rank(&r, rank);
    }
    enum status st = check_end(&r);
    run_free(&r);
    return st;
}

enum status verify_ranks(const struct rank_events *ranks, int n_ranks,
                         const struct event_group *groups, int n_groups,
                         struct diag *diag)
{
    struct job j = {.ranks = ranks,
                    .groups = groups,
                    .n_ranks = n_ranks,
                    .n_groups = n_groups,
                    .diag = diag};
    TRY(check_events(&j));
    sort_uses(&j);
    enum status st = check_sequences(&j);
    if (st == ST_OK)
        st = check_progress(&j);
    mem_free(j.uses);
    return st;
}
