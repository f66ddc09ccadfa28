/* A training run: what `angel pretrain` sets up, does step by step, and leaves behind.
 *
 *   run_launch.c  the ranks: of a launcher, or threads of this process
 *   run_ranks.c   what they tell each other beside the programs
 *   run_plan.c    model, layout, programs, memory: everything that is known before launch
 *   run_state.c   parameters and position: initial values, checkpoints, resume
 *   run_guard.c   updates that are left out: not finite, or spikes
 *   run_loop.c    steps, evaluation, stopping
 *   run_monitor.c figures beside the train lines, alarms, TensorBoard, Prometheus
 *   run_report.c  banner, dry run, summary
 */
#ifndef CMD_RUN_H
#define CMD_RUN_H

#include "cmd/cmd.h"
#include "cmd/run_guard.h"
#include "cmd/run_ranks.h"
#include "core/config.h"
#include "core/exec.h"
#include "io/ckpt.h"
#include "io/metrics.h"
#include "io/reader.h"
#include "memory/pack.h"
#include "parallel/layout.h"

/* Batches in the reader's ring: one in use, two read ahead. */
#define RUN_READER_SLOTS 3

/* A program with what runs it. */
struct run_program {
    int64_t global_batch; /* sequences of a step */
    struct lowered low;
    struct mem_report report;
    struct exec *exec;
    double model_flops; /* of a step */
};

/* Where training stands. */
struct run_position {
    int64_t step;           /* completed updates */
    int64_t samples;        /* consumed from the first step on */
    int64_t tokens;         /* samples * seq_len */
    int64_t segment_sample; /* value of `samples` at which the data segment began */
    uint64_t data_id;       /* fingerprint of sources, weights, order */
};

/* Where reading ahead stands; the reader's thread alone touches it. */
struct run_ahead {
    int64_t samples;
    int64_t tokens;
};

/* What a rank holds, for tables of all ranks. */
struct run_sheet {
    int64_t arena_bytes, scratch_bytes, reader_bytes;
    int64_t class_bytes[SC_COUNT]; /* at the peak */
};

struct run;

/* What a test looks at and meddles with; NULL members, and no hooks at all, in a run. */
struct run_hooks {
    struct durable *durable; /* of the checkpoint directory and of every save */
    int durable_rank;        /* the rank that has it */
    double peak_flops;       /* in place of measuring it, which takes time; 0: none */
    /* Called on every rank before each computation of a step: `attempt` is 1 when it is
     * repeated. */
    void (*before_compute)(void *arg, struct run *r, int attempt);
    void *arg;
};

struct run {
    struct config *config; /* borrowed; resolved, and settled by run_plan */
    const struct cmd_args *args;
    const struct run_hooks *hooks; /* NULL but in tests */
    struct run_ranks ranks;
    struct layout layout;
    struct lower_layout place; /* of this rank */
    struct run_sheet *sheets;  /* [ranks.size] */
    struct model model;
    int64_t n_params;
    int64_t micro_batch;
    enum memory_activations activations;
    int64_t monitor_every; /* steps; 0: never, as always with several ranks */
    int64_t device_limit_bytes;
    bool device_limit_given;
    struct backend *backend;
    struct pool *pool; /* the backend's compute threads */
    int n_threads;
    /* One per distinct global batch; behind them, where monitors look at steps, as many
     * with probes. */
    struct run_program *train;
    int n_train, n_plain;
    struct run_program eval;
    bool has_eval;
    int64_t scratch_bytes;
    struct exec_memory memory;
    double peak_flops; /* of the precision, measured */

    struct data *data;
    struct reader *reader;
    struct run_ahead ahead;
    struct metrics *metrics;
    struct run_monitor *monitor;
    struct ckpt_lock *lock;
    struct run_position at;
    struct guard guard;
    int64_t last_saved_step; /* -1: none */
    int64_t metrics_lost;    /* lines that could not be written: said once */
    int64_t save_tried_step; /* the last one, whether it worked or not */
    double start_s;          /* monotonic clock at the start of this attempt */
    double train_s;          /* spent in steps */
    int64_t train_tokens;    /* of this attempt */
    double last_loss, last_eval_loss;
    bool evaluated;   /* last_eval_loss is set */
    bool save_failed; /* the last save did not work: said once, retried at the next */
    bool eval_unfinished; /* a stop cut the last evaluation short */
    int stop_signal;      /* that all ranks stop by; 0: none */
    const char *resumed_from;
    struct arena arena;
};

/* Monotonic seconds. */
double run_now_s(void);

/* Settles the layout for the ranks that there are, micro_batch and activations where they
 * are `auto`; lowers, verifies and packs the programs of this rank. Nothing is allocated
 * but tables. errors: ST_CONFIG; ST_NO_FIT only from run_check_fit. */
MUST_CHECK enum status run_plan(struct run *r, struct diag *diag);

/* errors: ST_NO_FIT with the shortfall and what would make it fit. */
MUST_CHECK enum status run_check_fit(const struct run *r, struct diag *diag);

/* Bytes outside the arenas. */
int64_t run_reader_bytes(const struct run *r);

/* The sheet of the rank that holds most. */
const struct run_sheet *run_largest_sheet(const struct run *r, int *rank);

/* The program of the next step: of its global batch, with probes where monitors are due. */
struct run_program *run_program_next(struct run *r);

/* The program of most steps: the largest global batch, with probes only where every step
 * has them. */
const struct run_program *run_main_program(const struct run *r);

/* Obtains memory, opens data and the checkpoint directory, and sets parameters: from the
 * newest valid checkpoint, from `init`, or at random. */
MUST_CHECK enum status run_open(struct run *r, struct diag *diag);
void run_close(struct run *r);

/* Steps until the end or a stop. errors: ST_STOPPED after a signal (saved), ST_DIVERGED. */
MUST_CHECK enum status run_train(struct run *r, struct diag *diag);

/* Saves a checkpoint of the present position. errors: ST_IO, ST_CREATE; ST_DIVERGED when
 * the state holds a number that is not finite: such a state is never saved. */
MUST_CHECK enum status run_save(struct run *r, struct diag *diag);

/* errors: ST_DIVERGED naming the first parameter or moment that is not finite. */
MUST_CHECK enum status run_state_check_finite(const struct run *r, struct diag *diag);

/* Finds what would make saves fail: writes and removes a file in checkpoint.dir, and warns
 * where the file system, or the limit on the size of files, has no room for a checkpoint.
 * errors: ST_CREATE. */
MUST_CHECK enum status run_probe_output(const struct run *r, struct diag *diag);

/* Parameters and position (run_state.c). */
MUST_CHECK enum status run_state_begin(struct run *r, struct diag *diag);

/* All of `angel pretrain`: reads the configuration, trains, prints. in: hooks, NULL but in
 * tests. Returns the process's exit code. */
int run_pretrain(struct cmd_args *args, const struct run_hooks *hooks);

/* One attempt of one rank: plans, trains, prints what the first rank has to say into *out.
 * in: world, or NULL for one rank alone; config, this rank's own. out: *agreed, whether
 * all ranks know the error. */
MUST_CHECK enum status run_rank(struct config *config, struct cmd_args *args,
                                const struct run_hooks *hooks, struct comm_world *world,
                                struct str *out, bool *agreed, struct diag *diag);

/* Starts the ranks that the command line or the launcher ask for, and prints what ended
 * them. Returns the process's exit code. */
int run_launch(struct cmd_args *args, const struct run_hooks *hooks);

/* The micro-batch of the checkpoint that the run will go on from; 0 when there is none
 * that tells. `auto` keeps to it: another one would change the order of sums. */
int64_t run_state_micro_batch(const struct run *r);

/* Adds a line to metrics.jsonl; a failure is said once and the run goes on. */
void run_metric(struct run *r, const char *kind, const struct metrics_field *fields,
                size_t n);

/* Text for people. */
void run_print_banner(const struct run *r);
void run_print_dry_run(const struct run *r, bool json, struct str *out);
void run_print_summary(const struct run *r, bool json, struct str *out);

#endif
