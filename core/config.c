#include "core/config.h"

#include <string.h>

/* The offset of a member, and a compile error where its type is not what the row's type
 * stores there. Enums are stored as unsigned. */
#define AT(strukt, member, type)                                                       \
    (offsetof(struct strukt, member) +                                                 \
     0 * sizeof(_Generic(((struct strukt *)0)->member, type : 1)))
#define AT_LIST(member)                                                                \
    (offsetof(struct config, member) +                                                 \
     0 * sizeof(char[sizeof(((struct config *)0)->member) == sizeof(struct opt_list)   \
                             ? 1                                                       \
                             : -1]))

static const struct opt_choice act_choices[] = {
        {"swiglu", NULL}, {"geglu", NULL}, {"gelu", NULL}, {"gelu_tanh", NULL}, {0}};
static const struct opt_choice norm_choices[] = {
        {"rmsnorm", NULL}, {"layernorm", NULL}, {0}};
static const struct opt_choice norm_order_choices[] = {
        {"pre", NULL}, {"post", NULL}, {"sandwich", NULL}, {"residual", NULL}, {0}};
static const struct opt_choice position_choices[] = {
        {"rope", NULL}, {"learned", NULL}, {"none", NULL}, {0}};
static const struct opt_choice rope_choices[] = {
        {"none", NULL}, {"linear", NULL}, {"llama3", NULL}, {"yarn", NULL}, {0}};
static const struct opt_choice qk_norm_choices[] = {
        {"none", NULL}, {"head", NULL}, {"full", NULL}, {0}};
static const struct opt_choice bias_choices[] = {
        {"none", NULL}, {"qkv", NULL}, {"all", NULL}, {0}};
static const struct opt_choice tokenizer_choices[] = {{"bytes", NULL}, {0}};
static const struct opt_choice precision_choices[] = {
        {"fp32", NULL}, {"bf16", NULL}, {0}};
static const struct opt_choice optimizer_choices[] = {{"adamw", NULL}, {0}};
static const struct opt_choice schedule_choices[] = {
        {"cosine", NULL}, {"linear", NULL}, {"constant", NULL}, {"wsd", NULL}, {0}};
static const struct opt_choice nonfinite_choices[] = {
        {"skip", NULL}, {"stop", NULL}, {0}};
static const struct opt_choice zero_accumulate_choices[] = {
        {"local", NULL}, {"sharded", NULL}, {0}};
static const struct opt_choice pipeline_choices[] = {
        {"auto", NULL}, {"1f1b", NULL}, {"interleaved", NULL}, {"zb", NULL}, {0}};
static const struct opt_choice tp_comm_choices[] = {
        {"fp32", NULL}, {"bf16", NULL}, {0}};
static const struct opt_choice reductions_choices[] = {
        {"ordered", NULL}, {"fast", NULL}, {0}};
static const struct opt_choice activations_choices[] = {
        {"keep", NULL},
        {"selective", NULL},
        {"recompute", NULL},
        {"auto", NULL},
        {"offload", "offload of activations is not in this build"},
        {0}};
static const struct opt_choice device_choices[] = {
        {"auto", NULL}, {"cpu", NULL}, {"cuda", "this build has no CUDA backend"}, {0}};

static const struct opt source_rows[] = {
        {.key = "path",
         .type = OPT_PATH,
         .flags = OPT_PRIMARY | OPT_NEEDED,
         .offset = AT(config_source, path, const char *),
         .default_text = "",
         .help = "A file or a folder."},
        {.key = "weight",
         .type = OPT_REAL,
         .flags = OPT_AUTO,
         .offset = AT(config_source, weight, double),
         .default_text = "auto",
         .min = 1e-9,
         .max = 1e9,
         .help = "Its share of the samples; auto: in proportion to its size."},
};
static const struct opt_table source_table = {
        .rows = source_rows,
        .n_rows = ARRAY_LEN(source_rows),
        .struct_bytes = sizeof(struct config_source),
};

static const struct opt batch_rows[] = {
        {.key = "until_tokens",
         .type = OPT_COUNT,
         .offset = AT(config_batch, until_tokens, int64_t),
         .default_text = "0",
         .min = 0,
         .max = 1e18,
         .unit = "tokens",
         .help = "Trained tokens at which the stage ends."},
        {.key = "global_batch",
         .type = OPT_COUNT,
         .flags = OPT_PRIMARY | OPT_NEEDED,
         .offset = AT(config_batch, global_batch, int64_t),
         .min = 1,
         .max = 1073741824,
         .unit = "sequences",
         .help = "Sequences of one update."},
};
static const struct opt_table batch_table = {
        .rows = batch_rows,
        .n_rows = ARRAY_LEN(batch_rows),
        .struct_bytes = sizeof(struct config_batch),
};

#define ROW(k, t, off, f, d, ...)                                                      \
    {                                                                                  \
        .key = (k), .type = (t), .offset = (off), .flags = (f), .default_text = (d),   \
        __VA_ARGS__                                                                    \
    }
#define NUMBER(k, t, off, f, d, lo, hi, u, h, ...)                                     \
    ROW(k, t, off, f, d, .min = (lo), .max = (hi), .unit = (u), .help = (h),           \
        __VA_ARGS__)

#define BOOL(k, m, f, d, h) ROW(k, OPT_BOOL, AT(config, m, bool), f, d, .help = (h)),
#define COUNT(k, m, f, d, lo, hi, u, h)                                                \
    NUMBER(k, OPT_COUNT, AT(config, m, int64_t), f, d, lo, hi, u, h),
#define SIZE(k, m, f, d, lo, hi, u, h)                                                 \
    NUMBER(k, OPT_BYTES, AT(config, m, int64_t), f, d, lo, hi, u, h),
#define REAL(k, m, f, d, lo, hi, u, h)                                                 \
    NUMBER(k, OPT_REAL, AT(config, m, double), f, d, lo, hi, u, h),
#define REALS(k, m, f, d, lo, hi, u, h)                                                \
    NUMBER(k, OPT_REALS, AT(config, m[0], double), f, d, lo, hi, u, h,                 \
           .n_elems = sizeof(((struct config *)0)->m) / sizeof(double)),
#define CHOICE_LATER(k, m, f, d, c, l, h)                                              \
    ROW(k, OPT_ENUM, AT(config, m, unsigned), f, d, .choices = (c), .later = (l),      \
        .help = (h)),
#define CHOICE(k, m, f, d, c, h) CHOICE_LATER(k, m, f, d, c, NULL, h)
#define TEXT(k, m, f, d, h)                                                            \
    ROW(k, OPT_TEXT, AT(config, m, const char *), f, d, .help = (h)),
#define PATH(k, m, f, d, h)                                                            \
    ROW(k, OPT_PATH, AT(config, m, const char *), f, d, .help = (h)),
#define LIST(k, m, f, d, t, h)                                                         \
    ROW(k, OPT_LIST, AT_LIST(m), f, d, .fields = &(t), .help = (h)),
#define SECONDS(k, m, f, d, lo, hi, h)                                                 \
    NUMBER(k, OPT_SECONDS, AT(config, m, double), f, d, lo, hi, NULL, h),
#define DEGREE(k, m, one, l, h)                                                        \
    NUMBER(k, OPT_COUNT, AT(config, m, int64_t), OPT_PLAN | OPT_AUTO | OPT_HIDDEN,     \
           #one, one, one, NULL, h, .later = (l)),
#define LATER(k, l) ROW(k, OPT_SUBTREE, 0, OPT_HIDDEN, NULL, .later = (l)),

static const struct opt config_rows[] = {
#include "core/config_options.def"
};

static const struct opt_group config_groups[] = {
        {"model.", "Model", "the architecture"},
        {"model.rope_scaling.", "Rotary scaling", "rotations for longer contexts"},
        {"data.", "Data", "what is trained on"},
        {"train.", "Training", "length, batches, precision, evaluation"},
        {"train.optimizer.", "Optimizer", "how weights are updated"},
        {"train.schedule.", "Schedule", "the learning rate over the run"},
        {"parallel.", "Ranks", "how several ranks share the work"},
        {"memory.", "Memory", "limits, and what is kept"},
        {"checkpoint.", "Checkpoints", "saving and resuming"},
        {"log.", "Log", "what is written about the run"},
        {"", "General", "where weights come from and where the run computes"},
};

static const struct opt_table table = {
        .rows = config_rows,
        .n_rows = ARRAY_LEN(config_rows),
        .groups = config_groups,
        .n_groups = ARRAY_LEN(config_groups),
        .struct_bytes = sizeof(struct config),
};

const struct opt_table *config_table(void)
{
    return &table;
}

struct opt_store config_store(struct config *c)
{
    return (struct opt_store){&table, c, &c->arena, c->origins};
}

void config_init(struct config *c)
{
    *c = (struct config){.name = "run"};
    c->origins = arena_array(&c->arena, struct opt_origin, table.n_rows);
    struct opt_store s = config_store(c);
    opt_set_defaults(&s);
}

void config_free(struct config *c)
{
    arena_release(&c->arena);
    *c = (struct config){0};
}

void config_print(const struct config *c, struct str *out)
{
    struct config shown = *c;
    if (shown.train.tokens > 0)
        shown.train.steps = 0; /* they follow from the tokens */
    opt_print_yaml(&table, &shown, out);
}
