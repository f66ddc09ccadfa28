/* Several ranks write one checkpoint.
 *
 * Chunks are the tiles of each tensor's grid, whatever the ranks hold of it: a checkpoint
 * says nothing of who wrote it. A tile is written by the rank that holds most of it; what
 * others hold of it they send. All ranks work out the same plan from the list of all pieces.
 *
 * Tiles are written in rounds: in each, every writer gets some tens of MiB of its tiles.
 */
#include <stdio.h>
#include <string.h>

#include "core/agree.h"
#include "io/ckpt_save.h"

#define ROUND_BYTES ((int64_t)32 << 20)

/* A piece as others know it. Plain words: it travels. */
struct known_piece {
    int64_t tensor;
    struct box box;
    int64_t rank;
    int64_t index; /* among its rank's */
};
_Static_assert(sizeof(struct known_piece) % sizeof(int32_t) == 0, "travels as words");

struct tile {
    uint32_t tensor; /* id: place in the order */
    int64_t number;  /* among all tiles: place in the index */
    struct box box;
    int32_t writer;
    uint32_t shard;
};

struct together {
    struct saver s;
    struct comm *comm;
    const struct ckpt_save *save;
    struct known_piece *pieces; /* [n_pieces] of all ranks, by tensor id */
    int64_t n_pieces;
    int64_t *first_piece;   /* [n_tensors + 1] by tensor id */
    VEC(struct tile) tiles; /* in the order of the index */
    int64_t *queue;         /* [tiles] by writer, in the order of tiles */
    int64_t *queue_first;   /* [size + 1] */
    /* The shard files of this rank. */
    struct shard_table table;
    struct shard_writer *writer; /* open, or NULL */
    uint32_t open_shard;
    struct out_file file;
    VEC(struct out_file) files;
    VEC(uint32_t) file_shards;
};

/* ------------------------------------------------------------------------- the pieces */

static int64_t sum_of(const int64_t *x, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* Sorted by tensor, in the order of ranks and of each rank's pieces. */
static void sort_pieces(struct together *t, const struct known_piece *from)
{
    int64_t n_tensors = t->save->n_tensors;
    int64_t *id = mem_alloc((size_t)(n_tensors + 1) * sizeof(*id));
    int64_t *at = mem_alloc((size_t)(n_tensors + 1) * sizeof(*at));
    for (int64_t i = 0; i < n_tensors; i++)
        id[t->s.order[i]] = i;
    for (int64_t i = 0; i < t->n_pieces; i++)
        t->first_piece[id[from[i].tensor] + 1]++;
    for (int64_t i = 0; i < n_tensors; i++) {
        t->first_piece[i + 1] += t->first_piece[i];
        at[i] = t->first_piece[i];
    }
    for (int64_t i = 0; i < t->n_pieces; i++) {
        int64_t tensor = id[from[i].tensor];
        t->pieces[at[tensor]] = from[i];
        t->pieces[at[tensor]++].tensor = tensor;
    }
    mem_free(id);
    mem_free(at);
}

static enum status share_pieces(struct together *t, struct diag *diag)
{
    static const int64_t words = sizeof(struct known_piece) / sizeof(int32_t);
    struct arena *a = &t->s.arena;
    int64_t *count = arena_array(a, int64_t, t->comm->size);
    int64_t mine = t->save->n_pieces;
    TRY(comm_gather(t->comm, &mine, count, sizeof(mine), diag));
    t->n_pieces = sum_of(count, t->comm->size);
    struct known_piece *own = arena_array(a, struct known_piece, mine);
    struct known_piece *all = arena_array(a, struct known_piece, t->n_pieces);
    for (int64_t i = 0; i < mine; i++) {
        own[i].tensor = t->save->pieces[i].tensor;
        own[i].box = t->save->pieces[i].box;
        own[i].rank = t->comm->rank;
        own[i].index = i;
    }
    for (int i = 0; i < t->comm->size; i++)
        count[i] *= words;
    TRY(t->comm->ops->all_gather(t->comm, own, all, count, DT_I32, diag));
    t->pieces = arena_array(a, struct known_piece, t->n_pieces);
    t->first_piece = arena_array(a, int64_t, t->save->n_tensors + 1);
    sort_pieces(t, all);
    return ST_OK;
}

/* --------------------------------------------------------------------------- the plan */

static const struct ckpt_tensor *tensor_of(const struct together *t, int64_t id)
{
    return &t->save->tensors[t->s.order[id]];
}

/* The rank that holds most of the tile; of equal ones the lowest. held[size] is zero
 * before and after. */
static enum status choose_writer(struct together *t, struct tile *tile, int64_t *held,
                                 struct diag *diag)
{
    int64_t covered = 0;
    int best = 0;
    for (int64_t i = t->first_piece[tile->tensor]; i < t->first_piece[tile->tensor + 1];
         i++) {
        struct box common;
        const struct known_piece *p = &t->pieces[i];
        if (!box_intersect(&p->box, &tile->box, &common))
            continue;
        int64_t n = box_elems(&common), *h = &held[p->rank];
        covered += n;
        *h += n;
        if (*h > held[best] || (*h == held[best] && p->rank < best))
            best = (int)p->rank;
    }
    memset(held, 0, (size_t)t->comm->size * sizeof(*held));
    tile->writer = best;
    if (covered == box_elems(&tile->box))
        return ST_OK;
    char text[128];
    return diag_set(diag, ST_INTERNAL,
                    "the ranks do not hold a tensor once (%s %s): got %lld elements of "
                    "%lld",
                    tensor_of(t, tile->tensor)->name,
                    box_text(&tile->box, text, sizeof(text)), (long long)covered,
                    (long long)box_elems(&tile->box));
}

static enum status list_tiles(struct together *t, struct diag *diag)
{
    int64_t *held = arena_array(&t->s.arena, int64_t, t->comm->size);
    for (int64_t id = 0; id < t->save->n_tensors; id++) {
        const struct ckpt_tensor *x = tensor_of(t, id);
        struct box_grid grid = box_grid_chunks(x->ndim, x->shape, dtype_bytes(x->dtype),
                                               x->split_axis);
        for (int64_t i = 0; i < grid.n; i++) {
            struct tile tile = {.tensor = (uint32_t)id,
                                .number = t->tiles.n,
                                .box = box_grid_tile(&grid, i)};
            TRY(choose_writer(t, &tile, held, diag));
            vec_push(&t->tiles, tile);
        }
    }
    return ST_OK;
}

static void make_queues(struct together *t)
{
    int n = t->comm->size;
    t->queue = arena_array(&t->s.arena, int64_t, t->tiles.n);
    t->queue_first = arena_array(&t->s.arena, int64_t, n + 1);
    int64_t *at = arena_array(&t->s.arena, int64_t, n);
    for (uint32_t i = 0; i < t->tiles.n; i++)
        t->queue_first[t->tiles.data[i].writer + 1]++;
    for (int r = 0; r < n; r++) {
        t->queue_first[r + 1] += t->queue_first[r];
        at[r] = t->queue_first[r];
    }
    for (uint32_t i = 0; i < t->tiles.n; i++)
        t->queue[at[t->tiles.data[i].writer]++] = i;
}

static int64_t tile_bytes(const struct together *t, const struct tile *tile)
{
    return box_elems(&tile->box) *
           (int64_t)dtype_bytes(tensor_of(t, tile->tensor)->dtype);
}

/* Numbers the shard files: each writer's tiles of one group, cut at the limit. */
static void number_shards(struct together *t, bool model)
{
    int64_t limit = t->save->shard_raw_bytes > 0 ? t->save->shard_raw_bytes
                                                 : CKPT_DEFAULT_SHARD;
    for (int r = 0; r < t->comm->size; r++) {
        int64_t held = 0;
        bool open = false;
        for (int64_t q = t->queue_first[r]; q < t->queue_first[r + 1]; q++) {
            struct tile *tile = &t->tiles.data[t->queue[q]];
            int64_t bytes = tile_bytes(t, tile);
            if (ckpt_kind_is_model(tensor_of(t, tile->tensor)->kind) != model)
                continue;
            if (!open || held + bytes > limit) {
                vec_push(&t->s.shards, (struct out_shard){0});
                held = 0;
                open = true;
            }
            held += bytes;
            tile->shard = t->s.shards.n - 1;
        }
    }
    if (model)
        t->s.n_model_shards = t->s.shards.n;
}

/* -------------------------------------------------------------------------- the rounds */

/* Which tiles of each writer's queue a round takes: [begin, end). */
struct round {
    int64_t *begin, *end; /* [size] */
};

static bool next_round(const struct together *t, struct round *r)
{
    bool any = false;
    for (int w = 0; w < t->comm->size; w++) {
        int64_t bytes = 0, q = r->begin[w] = r->end[w];
        while (q < t->queue_first[w + 1] && (bytes < ROUND_BYTES))
            bytes += tile_bytes(t, &t->tiles.data[t->queue[q++]]);
        r->end[w] = q;
        any |= q > r->begin[w];
    }
    return any;
}

/* Words that a part of a tile takes on its way. */
static int64_t part_words(const struct together *t, uint32_t tensor,
                          const struct box *part)
{
    int64_t bytes = box_elems(part) * (int64_t)dtype_bytes(tensor_of(t, tensor)->dtype);
    return ceil_div_i64(bytes, (int64_t)sizeof(int32_t));
}

/* What is done with each part of a round's tiles that one rank sends to another. */
typedef void (*part_fn)(struct together *t, void *arg, const struct tile *tile,
                        int64_t slot, const struct known_piece *piece,
                        const struct box *part);

/* All parts that go from others to writer w, by tile, in the order of pieces. slot: of the
 * tile among the writer's tiles of the round. */
static void each_part(struct together *t, const struct round *r, int w, part_fn fn,
                      void *arg)
{
    for (int64_t q = r->begin[w]; q < r->end[w]; q++) {
        const struct tile *tile = &t->tiles.data[t->queue[q]];
        for (int64_t i = t->first_piece[tile->tensor];
             i < t->first_piece[tile->tensor + 1]; i++) {
            struct box part;
            if (box_intersect(&t->pieces[i].box, &tile->box, &part))
                fn(t, arg, tile, q - r->begin[w], &t->pieces[i], &part);
        }
    }
}

/* Buffers of one round on this rank. */
struct exchange {
    int64_t *send, *recv; /* [size] words */
    int64_t *recv_at;     /* [size] the next word of each sender */
    int32_t *out, *in;    /* what is sent, what comes */
    int64_t out_at;
    int writer; /* the one whose parts are gone through */
    void **raw; /* [tiles of this rank] where it is put together */
};

static void count_part(struct together *t, void *arg, const struct tile *tile,
                       int64_t slot, const struct known_piece *piece,
                       const struct box *part)
{
    struct exchange *x = arg;
    int me = t->comm->rank;
    (void)slot;
    if (piece->rank == x->writer)
        return;
    if (piece->rank == me)
        x->send[x->writer] += part_words(t, tile->tensor, part);
    if (x->writer == me)
        x->recv[piece->rank] += part_words(t, tile->tensor, part);
}

static void pack_part(struct together *t, void *arg, const struct tile *tile,
                      int64_t slot, const struct known_piece *piece,
                      const struct box *part)
{
    struct exchange *x = arg;
    (void)slot;
    if (piece->rank == x->writer || piece->rank != t->comm->rank)
        return;
    const struct ckpt_piece *own = &t->save->pieces[piece->index];
    box_copy(part, dtype_bytes(tensor_of(t, tile->tensor)->dtype), own->data, &own->box,
             x->out + x->out_at, part);
    x->out_at += part_words(t, tile->tensor, part);
}

static void place_part(struct together *t, void *arg, const struct tile *tile,
                       int64_t slot, const struct known_piece *piece,
                       const struct box *part)
{
    struct exchange *x = arg;
    size_t elem = dtype_bytes(tensor_of(t, tile->tensor)->dtype);
    if (piece->rank == t->comm->rank) {
        const struct ckpt_piece *own = &t->save->pieces[piece->index];
        box_copy(part, elem, own->data, &own->box, x->raw[slot], &tile->box);
        return;
    }
    int64_t *at = &x->recv_at[piece->rank];
    box_copy(part, elem, x->in + *at, part, x->raw[slot], &tile->box);
    *at += part_words(t, tile->tensor, part);
}

/* Parts come to this rank from all that hold some of its tiles. */
static enum status exchange(struct together *t, const struct round *r,
                            struct exchange *x, struct diag *diag)
{
    int n = t->comm->size, me = t->comm->rank;
    for (x->writer = 0; x->writer < n; x->writer++)
        each_part(t, r, x->writer, count_part, x);
    x->out = mem_alloc((size_t)(sum_of(x->send, n) + 1) * sizeof(*x->out));
    x->in = mem_alloc((size_t)(sum_of(x->recv, n) + 1) * sizeof(*x->in));
    for (x->writer = 0; x->writer < n; x->writer++)
        each_part(t, r, x->writer, pack_part, x);
    TRY(t->comm->ops->all_to_all(t->comm, x->out, x->send, x->in, x->recv, DT_I32,
                                 diag));
    for (int i = 1; i < n; i++)
        x->recv_at[i] = x->recv_at[i - 1] + x->recv[i - 1];
    x->writer = me;
    each_part(t, r, me, place_part, x);
    return ST_OK;
}

/* ---------------------------------------------------------------------------- writing */

static const char *shard_name(struct together *t, uint32_t shard)
{
    char name[CKPT_NAME_BYTES];
    bool model = shard < t->s.n_model_shards;
    uint32_t first = model ? 0 : t->s.n_model_shards;
    uint32_t n = model ? t->s.n_model_shards : t->s.shards.n - t->s.n_model_shards;
    snprintf(name, sizeof(name), "%s-%05u-of-%05u.azs", model ? "model" : "optim",
             shard - first, n);
    return arena_strdup(&t->s.arena, name);
}

static enum status finish_shard(struct together *t, struct diag *diag)
{
    if (!t->writer)
        return ST_OK;
    struct shard_writer *w = t->writer;
    t->writer = NULL;
    TRY(shard_finish(w, &t->file.bytes, t->file.hash, diag));
    t->file.n_chunks += t->table.n;
    vec_push(&t->files, t->file);
    vec_push(&t->file_shards, t->open_shard);
    return ST_OK;
}

static enum status begin_shard(struct together *t, uint32_t shard, struct diag *diag)
{
    if (t->writer && t->open_shard == shard)
        return ST_OK;
    TRY(finish_shard(t, diag));
    struct shard_head head = {.shard = shard, .n_shards = t->s.shards.n};
    memcpy(head.uuid, t->s.uuid, sizeof(head.uuid));
    t->file = (struct out_file){.name = shard_name(t, shard),
                                .is_shard = true,
                                .n_chunks = -(int64_t)t->table.n};
    t->open_shard = shard;
    return shard_create(t->save->durable,
                        ckpt_join(&t->s.arena, t->s.tmp, t->file.name), &head,
                        t->s.crew, &t->table, t->save->raw, &t->writer, diag);
}

/* This rank's tiles of a round, those of one file at a time. */
static enum status write_tiles(struct together *t, const struct round *r,
                               void *const *raw, struct diag *diag)
{
    int me = t->comm->rank;
    int64_t n = r->end[me] - r->begin[me];
    struct shard_tile *out = mem_alloc((size_t)(n + 1) * sizeof(*out));
    for (int64_t i = 0; i < n; i++) {
        const struct tile *tile = &t->tiles.data[t->queue[r->begin[me] + i]];
        const struct ckpt_tensor *x = tensor_of(t, tile->tensor);
        out[i] = (struct shard_tile){.tensor = tile->tensor,
                                     .dtype = x->dtype,
                                     .non_negative = ckpt_kind_is_non_negative(x->kind),
                                     .box = tile->box,
                                     .data = raw[i]};
    }
    enum status st = ST_OK;
    for (int64_t i = 0, end; i < n && st == ST_OK; i = end) {
        uint32_t shard = t->tiles.data[t->queue[r->begin[me] + i]].shard;
        for (end = i + 1; end < n; end++)
            if (t->tiles.data[t->queue[r->begin[me] + end]].shard != shard)
                break;
        st = begin_shard(t, shard, diag);
        if (st == ST_OK)
            st = shard_add_tiles(t->writer, out + i, end - i, diag);
    }
    mem_free(out);
    return st;
}

/* One round. A rank that cannot write goes on exchanging: others need its parts. out:
 * *own, what became of this rank's writing. Returns the status of the exchange. */
static enum status do_round(struct together *t, const struct round *r, enum status *own,
                            struct diag *own_diag, struct diag *diag)
{
    int n = t->comm->size, me = t->comm->rank;
    int64_t n_tiles = r->end[me] - r->begin[me], bytes = 0;
    int64_t *counts = mem_alloc((size_t)n * 3 * sizeof(*counts));
    struct exchange x = {.send = counts, .recv = counts + n, .recv_at = counts + 2 * n};
    x.raw = mem_alloc((size_t)(n_tiles + 1) * sizeof(void *));
    for (int64_t i = 0; i < n_tiles; i++)
        bytes += round_up_i64(tile_bytes(t, &t->tiles.data[t->queue[r->begin[me] + i]]),
                              64);
    char *memory = mem_alloc((size_t)bytes + 1);
    for (int64_t i = 0, at = 0; i < n_tiles; i++) {
        x.raw[i] = memory + at;
        at += round_up_i64(tile_bytes(t, &t->tiles.data[t->queue[r->begin[me] + i]]),
                           64);
    }
    enum status st = exchange(t, r, &x, diag);
    if (st == ST_OK && *own == ST_OK)
        *own = write_tiles(t, r, x.raw, own_diag);
    mem_free(memory);
    mem_free(x.raw);
    mem_free(x.out);
    mem_free(x.in);
    mem_free(counts);
    return st;
}

static enum status write_rounds(struct together *t, struct diag *diag)
{
    int n = t->comm->size;
    struct round r = {.begin = arena_array(&t->s.arena, int64_t, n),
                      .end = arena_array(&t->s.arena, int64_t, n)};
    enum status own = ST_OK;
    struct diag own_diag = {0};
    for (int w = 0; w < n; w++)
        r.end[w] = t->queue_first[w];
    while (next_round(t, &r))
        TRY(do_round(t, &r, &own, &own_diag, diag));
    if (own == ST_OK)
        own = finish_shard(t, &own_diag);
    *diag = own_diag;
    return comm_agree(t->comm, own, NULL, diag);
}

/* ------------------------------------------------------------------------- publishing */

/* A shard file, as its writer tells of it. */
struct told_file {
    uint64_t shard;
    int64_t bytes, n_chunks;
    uint64_t hash[2];
};

/* The files and chunk records of one rank, as words. */
static enum status tell_first(struct together *t, struct diag *diag)
{
    const struct comm_ops *ops = t->comm->ops;
    int32_t n[2] = {(int32_t)t->files.n, (int32_t)t->table.n};
    size_t bytes = t->files.n * sizeof(struct told_file) +
                   (size_t)t->table.n * SHARD_RECORD_BYTES;
    uint8_t *words = mem_alloc(bytes + 1), *at = words;
    for (uint32_t i = 0; i < t->files.n; i++, at += sizeof(struct told_file)) {
        const struct out_file *f = &t->files.data[i];
        struct told_file told = {t->file_shards.data[i],
                                 f->bytes,
                                 f->n_chunks,
                                 {f->hash[0], f->hash[1]}};
        memcpy(at, &told, sizeof(told));
    }
    for (uint32_t i = 0; i < t->table.n; i++, at += SHARD_RECORD_BYTES)
        shard_record_put(&t->table.data[i], at);
    enum status st = ops->send(t->comm, n, 2, DT_I32, 0, diag);
    if (st == ST_OK && bytes > 0)
        st = ops->send(t->comm, words, (int64_t)bytes / 4, DT_I32, 0, diag);
    mem_free(words);
    return st;
}

/* Takes in what rank `from` wrote: chunk i of its shards is tile i of its queue. */
static enum status take_told(struct together *t, int from, const uint8_t *at,
                             uint32_t n_files, uint32_t n_chunks, struct diag *diag)
{
    if ((int64_t)n_chunks != t->queue_first[from + 1] - t->queue_first[from])
        return diag_set(diag, ST_INTERNAL, "rank %d wrote %u chunks, wanted %lld", from,
                        n_chunks,
                        (long long)(t->queue_first[from + 1] - t->queue_first[from]));
    for (uint32_t i = 0; i < n_files; i++, at += sizeof(struct told_file)) {
        struct told_file f;
        memcpy(&f, at, sizeof(f));
        t->s.files.data[f.shard] =
                (struct out_file){.name = shard_name(t, (uint32_t)f.shard),
                                  .bytes = f.bytes,
                                  .hash = {f.hash[0], f.hash[1]},
                                  .n_chunks = f.n_chunks,
                                  .is_shard = true};
    }
    for (uint32_t i = 0; i < n_chunks; i++, at += SHARD_RECORD_BYTES)
        TRY(shard_record_get(at, &t->s.table.data[t->queue[t->queue_first[from] + i]],
                             diag));
    return ST_OK;
}

static enum status hear_one(struct together *t, int from, struct diag *diag)
{
    const struct comm_ops *ops = t->comm->ops;
    int32_t n[2];
    TRY(ops->recv(t->comm, n, 2, DT_I32, from, diag));
    size_t bytes =
            (size_t)n[0] * sizeof(struct told_file) + (size_t)n[1] * SHARD_RECORD_BYTES;
    uint8_t *words = mem_alloc(bytes + 1);
    enum status st = ST_OK;
    if (bytes > 0)
        st = ops->recv(t->comm, words, (int64_t)bytes / 4, DT_I32, from, diag);
    if (st == ST_OK)
        st = take_told(t, from, words, (uint32_t)n[0], (uint32_t)n[1], diag);
    mem_free(words);
    return st;
}

/* The first rank's own, in the same form. */
static void take_own(struct together *t)
{
    for (uint32_t i = 0; i < t->files.n; i++)
        t->s.files.data[t->file_shards.data[i]] = t->files.data[i];
    for (uint32_t i = 0; i < t->table.n; i++)
        t->s.table.data[t->queue[t->queue_first[0] + i]] = t->table.data[i];
}

static enum status hear_all(struct together *t, struct diag *diag)
{
    for (uint32_t i = 0; i < t->s.shards.n; i++)
        vec_push(&t->s.files, (struct out_file){0});
    for (uint32_t i = 0; i < t->tiles.n; i++)
        vec_push(&t->s.table, (struct shard_chunk){0});
    take_own(t);
    for (int i = 1; i < t->comm->size; i++)
        TRY(hear_one(t, i, diag));
    return ST_OK;
}

/* --------------------------------------------------------------------------- together */

/* The first rank makes the directory; all know its name. */
static enum status begin(struct together *t, struct diag *diag)
{
    bool first = t->comm->rank == 0;
    enum status st = saver_check(&t->s, diag);
    if (st == ST_OK && first)
        saver_make_uuid(&t->s);
    TRY(comm_agree(t->comm, st, NULL, diag));
    TRY(t->comm->ops->broadcast(t->comm, t->s.uuid, SHARD_UUID_BYTES / 4, DT_I32, 0,
                                diag));
    saver_make_paths(&t->s);
    saver_order(&t->s);
    t->s.shards.n = 0; /* they are cut anew, by writers */
    t->s.crew = shard_crew_create(t->save->pool);
    return comm_agree(t->comm, first ? saver_begin(&t->s, diag) : ST_OK, NULL, diag);
}

static enum status plan_together(struct together *t, struct diag *diag)
{
    TRY(share_pieces(t, diag));
    TRY(comm_agree(t->comm, list_tiles(t, diag), NULL, diag));
    make_queues(t);
    number_shards(t, true);
    number_shards(t, false);
    return ST_OK;
}

/* Every shard is on the device by now: what makes a checkpoint of them is the first rank's
 * alone. */
static enum status publish(struct together *t, struct ckpt_saved *out,
                           struct diag *diag)
{
    enum status st = ST_OK;
    if (t->comm->rank > 0)
        TRY(tell_first(t, diag));
    else
        st = hear_all(t, diag);
    if (st == ST_OK && t->comm->rank == 0)
        st = saver_publish(&t->s, diag);
    if (st == ST_OK && t->comm->rank == 0)
        st = durable_sync_dir(t->save->durable, t->save->dir, diag);
    if (st == ST_OK && t->comm->rank == 0)
        saver_tidy(&t->s, out);
    TRY(comm_agree(t->comm, st, NULL, diag));
    return t->comm->ops->broadcast(t->comm, out, sizeof(*out) / 4, DT_I32, 0, diag);
}

static enum status all_steps(struct together *t, struct ckpt_saved *out,
                             struct diag *diag)
{
    TRY(begin(t, diag));
    enum status st = plan_together(t, diag);
    if (st == ST_OK)
        st = write_rounds(t, diag);
    if (st == ST_OK)
        st = publish(t, out, diag);
    return st;
}

enum status ckpt_write_together(const struct ckpt_save *save, struct ckpt_saved *out,
                                struct diag *diag)
{
    struct diag unused;
    struct together t = {.s = {.save = save}, .comm = save->comm, .save = save};
    memset(out, 0, sizeof(*out));
    enum status st = all_steps(&t, out, diag ? diag : &unused);
    if (t.writer)
        shard_abandon(t.writer);
    if (st != ST_OK && save->comm->rank == 0 && t.s.tmp)
        saver_discard(&t.s);
    vec_free(&t.tiles);
    vec_free(&t.table);
    vec_free(&t.files);
    vec_free(&t.file_shards);
    saver_free(&t.s);
    return st;
}
