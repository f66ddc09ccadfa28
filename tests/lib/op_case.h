/* Runs one op by any kernel row, with operands described in a line of text.
 *
 * An operand is "<dtype><axes>": dtype c (the case's compute dtype), f (f32), d (f64) or
 * i (i32), h (bf16); each axis a letter of `struct op_dims`, or G = 2F, P = D/2, B blocks
 * of the gradient norm, U the params block, 1 to 4. A word after it says how an input is
 * filled (fill_table in op_case.c); without one, with standard normals. */
#ifndef TESTS_LIB_OP_CASE_H
#define TESTS_LIB_OP_CASE_H

#include "kernels/kernel.h"
#include "tests/lib/compare.h"

struct op_dims {
    int64_t T; /* tokens */
    int64_t S; /* tokens of a sequence; T is a multiple */
    int64_t H; /* hidden width */
    int64_t N; /* outer width of a product */
    int64_t A; /* heads */
    int64_t K; /* key/value heads */
    int64_t D; /* head width */
    int64_t F; /* feed-forward width */
    int64_t V; /* vocabulary */
};

struct op_attr_spec {
    enum attr_key key;
    bool is_double;
    double value; /* or the dimension S for ATTR_SEQ */
};

struct op_spec {
    const char *label;
    enum op_kind kind;
    const char *in[OP_IN_MAX + 1]; /* NULL ends the list */
    const char *out[OP_OUT_MAX + 1];
    struct op_attr_spec attr[4];
    int n_attrs;
    char reduce;    /* axis that is summed over; 0: none */
    int8_t inplace; /* output i may overwrite input inplace + i for i < n_inplace */
    int8_t n_inplace;
    bool flat;    /* no pitch */
    bool exact;   /* equal bits to the reference */
    bool zero_ok; /* a result may be all zeros */
};

/* A spec with operands in memory. op_case_release frees them. */
struct op_case {
    const struct op_spec *spec;
    struct op_dims dims;
    struct program prog; /* holds the attributes */
    struct prog_op op;
    int n_in, n_out;
    struct guarded in[OP_IN_MAX];
    enum dtype dtype;
    int64_t pitch; /* elements between rows */
};

struct op_case op_case_make(const struct op_spec *s, const struct op_dims *d,
                            enum dtype dtype, int64_t pitch);
void op_case_release(struct op_case *c);

/* The results of one run. op_result_release frees them. */
struct op_result {
    struct guarded out[OP_OUT_MAX];
    bool intact; /* canaries of outputs and scratch, and the inputs' bytes */
};

/* wide: float outputs are f64, whatever the spec says. in_place: outputs overwrite their
 * inputs as the spec allows (on copies). */
struct op_result op_case_run(const struct op_case *c, const struct kernel_row *row,
                             struct pool *pool, bool wide, bool in_place);
void op_result_release(const struct op_case *c, struct op_result *r);

/* Seconds of the fastest of `n_runs` runs, with outputs made once. out: *bytes that the
 * operands have together. */
double op_case_time(const struct op_case *c, const struct kernel_row *row,
                    struct pool *pool, int n_runs, double *bytes);

/* A launch without addresses, as a backend binds it. */
struct launch op_case_describe(const struct op_case *c);

bool op_results_equal_bits(const struct op_case *c, const struct op_result *a,
                           const struct op_result *b);

/* Tolerance of output i. */
struct tol op_case_tol(const struct op_case *c, int i);

#endif
