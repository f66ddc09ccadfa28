/* The program of a training step: flat, immutable arrays that verify, pack, simulate and
 * execute all read.
 *
 *   values    a typed, shaped range of bytes inside a storage; a view is just a value
 *   storages  a run of bytes with a lifetime class and a pool; gets its offsets by packing
 *   ops       kind, operands (inputs then outputs), attributes, stream, origin
 *   segments  a run of ops that is emitted once (forward, backward, optimizer, ...)
 *   calls     the schedule: which segment runs when, for which micro-batch and slot
 *
 * Nothing here is a pointer, so a program can be hashed, printed, compared and saved.
 * Whatever changes from step to step (learning rate, step number) is read from values of
 * class PARAMS or INPUT. Ids are indices; NONE_ID means none.
 *
 * Order: ops of one stream run in sequence; an op may wait for events that other ops
 * signal. "Happens before" (core/order.h) is defined by that alone, never by op index.
 */
#ifndef CORE_PROGRAM_H
#define CORE_PROGRAM_H

#include "core/dtype.h"
#include "core/status.h"
#include "core/vec.h"

#define VALUE_DIMS_MAX 4
#define OP_IN_MAX      8
#define OP_OUT_MAX     4

/* Dimensions of the mesh of ranks. */
enum mesh_dim {
    MESH_TP,  /* tensor */
    MESH_CP,  /* context */
    MESH_DP,  /* data */
    MESH_PP,  /* pipeline */
    MESH_EP,  /* expert */
    MESH_ETP, /* expert-tensor */
    MESH_DIMS
};

/* How a value is laid out over one mesh dimension: 0..3 is the axis it is sharded on. */
#define LAYOUT_REPLICATED 255
#define LAYOUT_PARTIAL    254 /* to be summed over the ranks of the dimension */

enum storage_class {
    SC_PARAM,      /* weights the model computes with */
    SC_GRAD,       /* gradient accumulators */
    SC_OPTIM,      /* master weights and moments */
    SC_CONST,      /* made once by the set-up calls */
    SC_PARAMS,     /* the params block: what changes from step to step */
    SC_INPUT,      /* batches, one copy per micro-batch */
    SC_OUTPUT,     /* read by the host after the step */
    SC_ACTIVATION, /* written in one segment, read in another; one copy per slot */
    SC_WORKSPACE,  /* lives inside one segment */
    SC_COMM,       /* staging of communication */
    SC_COUNT
};

enum pool_kind {
    POOL_DEVICE,
    POOL_PINNED,
    POOL_HOST,
    POOL_FILE,
    POOL_COUNT
};

/* What indexes the copies of a storage. */
enum slotting {
    SLOT_NONE,        /* one copy */
    SLOT_CALL,        /* one per slot the schedule hands out */
    SLOT_MICRO_BATCH, /* one per micro-batch */
};

/* The groups of ranks that communication ops name; a rank is in at most one of a kind.
 * Ops of different streams never share a group. */
enum comm_group {
    GROUP_TENSOR,      /* tensor parallel, on the compute stream */
    GROUP_TENSOR_GRAD, /* the same ranks, for gradients of replicated weights */
    GROUP_KV,          /* ranks that hold the same key/value heads */
    GROUP_DATA,        /* copies of the same weights */
    GROUP_FORWARD,     /* pipeline stages, activations */
    GROUP_BACKWARD,    /* pipeline stages, gradients */
    GROUP_TIED, /* the stages of the embedding and of the head that it is tied to */
    GROUP_WORLD,
    GROUP_COUNT
};

/* Streams; programs use as many as they need. */
enum prog_stream {
    STREAM_COMPUTE,
    STREAM_DATA, /* reductions of gradients, gathering of weights */
    STREAM_SEND_FORWARD,
    STREAM_RECV_FORWARD,
    STREAM_SEND_BACKWARD,
    STREAM_RECV_BACKWARD,
    STREAM_COUNT
};

/* Why an op is there. */
enum op_phase {
    PHASE_SETUP,
    PHASE_FORWARD,
    PHASE_DGRAD, /* gradients of inputs */
    PHASE_WGRAD, /* gradients of weights */
    PHASE_OPTIM,
    PHASE_COUNT
};

enum op_kind {
#define OP(kind, ...) OP_##kind,
#include "core/ops.def"
#undef OP
    OP_KIND_COUNT
};

/* Attribute names; a value is an integer or a double as attr_is_double says. */
enum attr_key {
    ATTR_EPS,              /* double */
    ATTR_PLUS_ONE,         /* 1: the norm multiplies by (1 + weight) */
    ATTR_SCALE,            /* double */
    ATTR_CAP,              /* double, soft cap; 0 off */
    ATTR_WINDOW,           /* keys visible to a query; 0 all */
    ATTR_SEQ,              /* tokens per sequence */
    ATTR_ACT,              /* enum act_kind */
    ATTR_INVERSE,          /* 1: rotate backwards */
    ATTR_OUT_DTYPE,        /* enum dtype of output 0 */
    ATTR_DECAY,            /* 1: weight decay applies */
    ATTR_DIM,              /* a dimension that no input shows */
    ATTR_ROWS,             /* a row count that no input shows */
    ATTR_ROPE_TYPE,        /* enum rope_scaling_type */
    ATTR_ROPE_THETA,       /* double */
    ATTR_ROPE_FACTOR,      /* double */
    ATTR_ROPE_LOW,         /* double: low_freq_factor, or beta_slow */
    ATTR_ROPE_HIGH,        /* double: high_freq_factor, or beta_fast */
    ATTR_ROPE_ORIGINAL,    /* original_max_positions */
    ATTR_ROPE_ATTN_FACTOR, /* double, multiplies cos and sin */
    ATTR_GROUP,            /* enum comm_group */
    ATTR_MEMBER,           /* this rank's place in the group */
    ATTR_MEMBERS,          /* the group's size */
    ATTR_PEER,             /* the other member of a message */
    ATTR_CUTS,  /* first of members + 1 borders in cuts; absent: equal parts */
    ATTR_BEGIN, /* the first row of a sharded vocabulary that is here */
    ATTR_COUNT
};

/* Element-wise functions of `act` (and gates of `glu`). */
enum act_kind {
    ACT_SILU,
    ACT_GELU,      /* exact: x * Phi(x) */
    ACT_GELU_TANH, /* GPT-2's tanh form */
    ACT_COUNT
};

enum rope_scaling_type {
    ROPE_NONE,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_TYPE_COUNT
};

/* Values of rank >= 2 are rows of dim[0] with a pitch of `ld` elements; the other axes
 * are contiguous. A view into columns of a wider buffer has ld > dim[1]*dim[2]*... */
struct prog_value {
    uint32_t name; /* offset into names */
    uint32_t storage;
    int64_t byte_offset;
    int64_t dim[VALUE_DIMS_MAX];
    int64_t ld;
    uint8_t ndim;
    uint8_t dtype; /* enum dtype */
    uint8_t layout[MESH_DIMS];
    uint32_t base;       /* the value this is a view of, or NONE_ID */
    uint32_t inplace_of; /* the value whose bytes this one overwrites, or NONE_ID */
    uint32_t extent;     /* i32[1] value with the rows in use, or NONE_ID: all */
    uint32_t pad;        /* no hidden padding: programs are hashed as bytes */
};

struct prog_storage {
    uint32_t name;
    uint8_t cls;  /* enum storage_class */
    uint8_t pool; /* enum pool_kind */
    uint8_t slotting;
    uint8_t pad;
    int64_t bytes;         /* of one copy */
    uint32_t offset_first; /* into offsets: n_copies entries, filled by packing */
    uint32_t n_copies;
};

struct prog_op {
    uint16_t kind; /* enum op_kind */
    uint8_t phase; /* enum op_phase */
    uint8_t stream;
    int32_t layer;          /* -1: none */
    uint32_t operand_first; /* inputs then outputs, in operands */
    uint8_t n_in;
    uint8_t n_out;
    uint8_t n_attrs;
    uint8_t n_waits;
    uint32_t attr_first;
    uint32_t wait_first; /* into waits: event ids */
    uint32_t signal;     /* event id signalled when the op is done, or NONE_ID */
    uint32_t predicate;  /* i32[1] value: the op runs when it is not zero; or NONE_ID */
    uint8_t recompute;   /* 1: a clone that memory/remat made */
    uint8_t pad[3];
};

struct prog_attr {
    uint32_t key; /* enum attr_key */
    uint32_t pad;
    union {
        int64_t i;
        double f;
    } v;
};

struct prog_segment {
    uint32_t name;
    uint32_t op_begin;
    uint32_t op_end;
};

enum call_phase {
    CALL_SETUP, /* once, before the first step */
    CALL_STEP,  /* every step, in order */
};

struct prog_call {
    uint32_t segment;
    uint32_t phase; /* enum call_phase */
    uint32_t micro_batch;
    uint32_t slot;
};

/* A program owns its arrays; program_free releases them. After program_seal it is const. */
struct program {
    VEC(struct prog_value) values;
    VEC(struct prog_storage) storages;
    VEC(struct prog_op) ops;
    VEC(uint32_t) operands;
    VEC(struct prog_attr) attrs;
    VEC(uint32_t) waits;
    VEC(struct prog_segment) segments;
    VEC(struct prog_call) calls;
    VEC(int64_t) cuts;    /* borders of uneven shards, in rows of the whole */
    VEC(int64_t) offsets; /* bytes from the start of the pool; -1 before packing */
    VEC(char) names;
    uint32_t n_events;
    uint32_t n_streams;
    uint32_t n_slots;
    uint32_t n_micro_batches;
    int32_t mesh_degree[MESH_DIMS];
    int64_t pool_bytes[POOL_COUNT]; /* filled by packing */
};

void program_free(struct program *p);

/* Operand access. in: i < n_in (or n_out). An absent optional output is NONE_ID. */
static inline uint32_t op_in(const struct program *p, const struct prog_op *op, int i)
{
    return p->operands.data[op->operand_first + (uint32_t)i];
}

static inline uint32_t op_out(const struct program *p, const struct prog_op *op, int i)
{
    return p->operands.data[op->operand_first + op->n_in + (uint32_t)i];
}

static inline const char *prog_name(const struct program *p, uint32_t name)
{
    return p->names.data + name;
}

/* Attribute of an op, or the given default when it has none. */
int64_t op_attr_i(const struct program *p, const struct prog_op *op, enum attr_key key,
                  int64_t absent);
double op_attr_f(const struct program *p, const struct prog_op *op, enum attr_key key,
                 double absent);
const char *attr_name(enum attr_key key);
bool attr_is_double(enum attr_key key);

/* Sizes. elems: product of dims. span: bytes from the first to past the last element. */
int64_t value_elems(const struct prog_value *v);
int64_t value_span_bytes(const struct prog_value *v);
int64_t value_row_elems(const struct prog_value *v); /* product of dims but the first */
bool value_is_contiguous(const struct prog_value *v);

const char *storage_class_name(enum storage_class c);

/* Names of groups ("tensor") and streams ("compute"); the mesh dimensions whose ranks a
 * group joins, as bits. Groups of GROUP_KV and GROUP_TIED join parts of a dimension and
 * have none. */
const char *comm_group_name(enum comm_group g);
uint32_t comm_group_dims(enum comm_group g);
const char *stream_name(enum prog_stream s);

/* Whether ops of the kind communicate. */
bool op_kind_is_comm(enum op_kind kind);

/* Rows of the whole at which member m's part of a collective starts (m may be the number
 * of members: the end). in: `rows` of the whole. */
int64_t op_cut(const struct program *p, const struct prog_op *op, int64_t rows,
               int64_t m);

const char *phase_name(enum op_phase p);
/* Classes whose bytes keep their meaning between steps; packed first, in table order. */
bool storage_class_is_persistent(enum storage_class c);

/* A fingerprint over all arrays: equal programs on all ranks have equal hashes. */
uint64_t program_hash(const struct program *p);

/* ------------------------------------------------------------------------- building */

/* Everything an op is given. in/out hold value ids; an `out` of NONE_ID makes a fresh
 * value (the op's shape rule says its dtype, shape and layout), OUT_ABSENT leaves an
 * optional output away. */
#define OUT_ABSENT (UINT32_MAX - 1)

struct op_args {
    enum op_kind kind;
    enum op_phase phase;
    int32_t layer;
    int n_in;
    uint32_t in[OP_IN_MAX];
    uint32_t out[OP_OUT_MAX];
    int n_attrs;
    struct prog_attr attrs[12];
    uint32_t predicate;
    uint8_t stream;
};

/* An op_args with everything set to "none". */
struct op_args op_args_init(enum op_kind kind, enum op_phase phase, int32_t layer);
void op_args_in(struct op_args *a, uint32_t value);
void op_args_attr_i(struct op_args *a, enum attr_key key, int64_t v);
void op_args_attr_f(struct op_args *a, enum attr_key key, double v);

/* A new, empty program: one stream, one slot, degrees 1. */
void program_init(struct program *p);

/* Interns a name; names.data may move. */
uint32_t program_name(struct program *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A storage of `bytes` with one copy (or one per micro-batch or slot: copies are made by
 * program_seal). */
uint32_t program_storage(struct program *p, enum storage_class cls,
                         enum slotting slotting, int64_t bytes, const char *fmt, ...)
        PRINTF_LIKE(5, 6);

/* A contiguous value at byte_offset of a storage. Replicated layout. */
uint32_t program_value(struct program *p, uint32_t storage, int64_t byte_offset,
                       enum dtype dtype, int ndim, const int64_t *dim, const char *fmt,
                       ...) PRINTF_LIKE(7, 8);

/* A view of `base`: columns col_begin.. of each row, reshaped to the given dims (dim[0]
 * must be the base's row count), layout as the base's. */
uint32_t program_view_cols(struct program *p, uint32_t base, int64_t col_begin,
                           int ndim, const int64_t *dim, const char *fmt, ...)
        PRINTF_LIKE(6, 7);

/* A view of `base`: `rows` rows from row_begin on, layout as the base's. */
uint32_t program_view_rows(struct program *p, uint32_t base, int64_t row_begin,
                           int64_t rows, const char *fmt, ...) PRINTF_LIKE(5, 6);

/* The same bytes as `v` under a new value that an op writes in place. */
uint32_t program_value_inplace(struct program *p, uint32_t v, const char *fmt, ...)
        PRINTF_LIKE(3, 4);

/* Appends an op to the open segment; fills a->out with the ids made. Shapes that an op
 * cannot take are a BUG here (verify reports them for programs from elsewhere). */
void program_op(struct program *p, struct op_args *a);

void program_segment_begin(struct program *p, const char *name);
uint32_t program_segment_end(struct program *p);
void program_call(struct program *p, enum call_phase phase, uint32_t segment,
                  uint32_t micro_batch, uint32_t slot);

/* Moves the ops of PHASE_WGRAD, in their order, out of the last segment into a new one of
 * the given name. in: a backward pass without in-place sums (struct diff_options). Returns
 * the new segment. */
uint32_t program_split_weights(struct program *p, uint32_t segment, const char *name);

/* Finishes a program: removes ops whose results nobody reads and optional outputs without
 * a reader; classes fresh storages as activation (crosses segments) or workspace; counts
 * slots and micro-batches from the calls and makes the offsets table. */
void program_seal(struct program *p);

#endif
