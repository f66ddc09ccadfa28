/* What a run tells people: banner, dry run, summary. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/progress.h"
#include "cmd/run.h"
#include "core/log.h"
#include "core/op.h"
#include "io/json.h"

static const char *precision_name(const struct run *r)
{
    return r->config->train.precision == PRECISION_BF16 ? "bf16" : "fp32";
}

static const char *activations_name(enum memory_activations a)
{
    static const char *const names[] = {[ACTIVATIONS_KEEP] = "keep",
                                        [ACTIVATIONS_SELECTIVE] = "selective",
                                        [ACTIVATIONS_RECOMPUTE] = "recompute"};
    ASSERT((size_t)a < ARRAY_LEN(names));
    return names[a];
}

/* The program that needs most memory: the pool is as large as it wants. */
static const struct mem_pool *largest_pool(const struct run *r)
{
    const struct mem_pool *best = &r->train[0].report.pool[POOL_DEVICE];
    for (int i = 1; i < r->n_train; i++) {
        const struct mem_pool *p = &r->train[i].report.pool[POOL_DEVICE];
        if (p->top_bytes > best->top_bytes)
            best = p;
    }
    return best;
}

static int64_t arena_bytes(const struct run *r)
{
    return r->train[0].low.program.pool_bytes[POOL_DEVICE];
}

static const char *peak_op_text(const struct run *r, char *buf, size_t n)
{
    const struct program *p = &r->train[0].low.program;
    uint32_t id = r->train[0].report.pool[POOL_DEVICE].peak_op;
    if (id == NONE_ID) {
        snprintf(buf, n, "none");
        return buf;
    }
    const struct prog_op *op = &p->ops.data[id];
    const char *name = op_desc((enum op_kind)op->kind)->name;
    if (op->layer >= 0)
        snprintf(buf, n, "%s of layer %d (%s)", name, (int)op->layer,
                 phase_name((enum op_phase)op->phase));
    else
        snprintf(buf, n, "%s (%s)", name, phase_name((enum op_phase)op->phase));
    return buf;
}

static void add_model_line(const struct run *r, struct str *out)
{
    const struct config_model *m = &r->config->model;
    char count[32];
    str_printf(out,
               "model       %" PRId64 " parameters (%s): %" PRId64
               " layers, hidden %" PRId64 ", %" PRId64 " heads (%" PRId64
               " key/value), ffn %" PRId64 ", vocab %" PRId64 "\n",
               r->n_params, text_count((double)r->n_params, count, sizeof(count)),
               m->layers, m->hidden, m->heads, m->kv_heads, m->ffn, m->vocab);
}

static void add_batch_line(const struct run *r, struct str *out)
{
    const struct config *c = r->config;
    const struct run_program *p = run_main_program(r);
    str_printf(out,
               "step        %" PRId64 " tokens = %" PRId64 " sequences of %" PRId64
               ", in %u micro-batches of %" PRId64 "%s; %" PRId64 " steps; %s\n",
               p->global_batch * c->data.seq_len, p->global_batch, c->data.seq_len,
               p->low.program.n_micro_batches, r->micro_batch,
               c->parallel.dp > 1 ? " on each data rank" : "", c->train.steps,
               precision_name(r));
}

/* One line of the table of memory: of this rank, and of the largest one where there are
 * several. */
static void add_bytes(const struct run *r, struct str *out, const char *name,
                      int64_t mine, int64_t largest, const char *note)
{
    char size[32], most[32];
    str_printf(out, "  %-12s %12s", name, text_bytes(mine, size, sizeof(size)));
    if (r->ranks.size > 1)
        str_printf(out, " %12s", text_bytes(largest, most, sizeof(most)));
    str_printf(out, "%s\n", note);
}

static void add_memory(const struct run *r, struct str *out)
{
    char size[32], peak[96], head[32];
    int rank;
    const struct run_sheet *mine = &r->sheets[r->ranks.rank];
    const struct run_sheet *most = run_largest_sheet(r, &rank);
    str_printf(out, "memory      %s in one arena, peak at %s, activations: %s",
               text_bytes(arena_bytes(r), size, sizeof(size)),
               peak_op_text(r, peak, sizeof(peak)), activations_name(r->activations));
    if (r->train[0].low.n_recomputed)
        str_printf(out, " (%u ops computed again)", r->train[0].low.n_recomputed);
    str_addc(out, '\n');
    if (r->ranks.size > 1) {
        snprintf(head, sizeof(head), "rank %d", rank);
        str_printf(out, "  %-12s %12s %12s  with the most bytes\n", "of", "rank 0",
                   head);
        add_bytes(r, out, "arena", mine->arena_bytes, most->arena_bytes, "");
    }
    for (int c = 0; c < SC_COUNT; c++)
        if (mine->class_bytes[c] > 0 || most->class_bytes[c] > 0)
            add_bytes(r, out, storage_class_name((enum storage_class)c),
                      mine->class_bytes[c], most->class_bytes[c], "");
    add_bytes(r, out, "scratch", mine->scratch_bytes, most->scratch_bytes,
              "  beside the arena: packing buffers of the kernels");
    add_bytes(r, out, "reader", mine->reader_bytes, most->reader_bytes,
              "  beside the arena: batches read ahead");
}

/* A kind of groups: how many there are, of how many ranks each. */
struct group_kind {
    const char *name;
    int n, of;
};

static int list_group_kinds(const struct run *r, struct group_kind out[GROUP_COUNT])
{
    const struct mesh *m = &r->layout.mesh;
    int tp = m->degree[MESH_TP], kv = (int)r->model.config.kv_heads;
    const struct group_kind all[] = {
            {"tensor", 0, tp},
            {"key-value", 0, tp > kv ? tp / kv : 1},
            {"data", 0, m->degree[MESH_DP]},
            {"pipeline", 0, m->degree[MESH_PP]},
    };
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].of > 1)
            out[n++] =
                    (struct group_kind){all[i].name, m->world / all[i].of, all[i].of};
    if (r->model.config.tied && m->degree[MESH_PP] > 1)
        out[n++] = (struct group_kind){"tied-ends", m->world / m->degree[MESH_PP], 2};
    return n;
}

static void add_layout(const struct run *r, struct str *out)
{
    struct group_kind groups[GROUP_COUNT];
    const char *many = r->n_threads == 1 ? "" : "s";
    if (r->ranks.size == 1) {
        str_printf(out, "layout      one rank, %d compute thread%s on the CPU\n",
                   r->n_threads, many);
        return;
    }
    str_printf(out, "layout      %d ranks: ", r->ranks.size);
    layout_print(&r->layout, r->config, out);
    str_printf(out, "; %d compute thread%s each\n", r->n_threads, many);
    int n = list_group_kinds(r, groups);
    str_add(out, "groups      ");
    for (int i = 0; i < n; i++)
        str_printf(out, "%s%d %s groups of %d", i ? ", " : "", groups[i].n,
                   groups[i].name, groups[i].of);
    str_addc(out, '\n');
    if (r->config->parallel.reductions == REDUCTIONS_FAST)
        str_add(out,
                "reductions  fast: across hosts MPI adds in its own order; the bits "
                "depend on it\n");
}

void run_print_banner(const struct run *r)
{
    struct str text = {0};
    char rate[32];
    add_model_line(r, &text);
    add_batch_line(r, &text);
    add_layout(r, &text);
    add_memory(r, &text);
    str_printf(
            &text,
            "peak        %sflop/s in %s, measured by a loop in registers; MFU = model "
            "flops / seconds / peak\n",
            text_count(r->peak_flops, rate, sizeof(rate)), precision_name(r));
    str_printf(&text, "output      checkpoints in %s, metrics in %s",
               r->config->checkpoint.dir, r->config->log.jsonl);
    log_info("%s", str_get(&text));
    str_free(&text);
    if (r->resumed_from)
        log_info("resumed     step %" PRId64 " of %" PRId64 " from %s", r->at.step,
                 r->config->train.steps, r->resumed_from);
}

static void key_i64(struct json_writer *w, const char *key, int64_t value)
{
    json_key(w, key);
    json_i64(w, value);
}

static void layout_json(const struct run *r, struct json_writer *w)
{
    const struct config_parallel *p = &r->config->parallel;
    struct group_kind groups[GROUP_COUNT];
    json_key(w, "layout");
    json_begin_object(w);
    key_i64(w, "tp", p->tp);
    key_i64(w, "pp", p->pp);
    key_i64(w, "vpp", p->vpp);
    key_i64(w, "dp", p->dp);
    key_i64(w, "zero", p->zero);
    json_key(w, "schedule");
    json_string(w, schedule_name(r->layout.schedule));
    json_key(w, "layers_per_stage");
    json_begin_array(w);
    for (int64_t i = 0; i < p->pp * p->vpp; i++)
        json_i64(w, r->layout.chunk_layers[i]);
    json_end_array(w);
    json_key(w, "groups");
    json_begin_array(w);
    for (int i = 0, n = list_group_kinds(r, groups); i < n; i++) {
        json_begin_object(w);
        json_key(w, "kind");
        json_string(w, groups[i].name);
        key_i64(w, "groups", groups[i].n);
        key_i64(w, "ranks", groups[i].of);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

static void sheets_json(const struct run *r, struct json_writer *w)
{
    json_key(w, "memory_of_ranks");
    json_begin_array(w);
    for (int i = 0; i < r->ranks.size; i++) {
        const struct run_sheet *s = &r->sheets[i];
        json_begin_object(w);
        key_i64(w, "rank", i);
        key_i64(w, "arena_bytes", s->arena_bytes);
        key_i64(w, "scratch_bytes", s->scratch_bytes);
        key_i64(w, "reader_bytes", s->reader_bytes);
        for (int c = 0; c < SC_COUNT; c++)
            key_i64(w, storage_class_name((enum storage_class)c), s->class_bytes[c]);
        json_end_object(w);
    }
    json_end_array(w);
}

static void dry_run_json(const struct run *r, struct str *out)
{
    const struct mem_pool *pool = largest_pool(r);
    char peak[96];
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_object(&w);
    json_key(&w, "parameters");
    json_i64(&w, r->n_params);
    json_key(&w, "tokens_per_step");
    json_i64(&w, run_main_program(r)->global_batch * r->config->data.seq_len);
    json_key(&w, "micro_batch");
    json_i64(&w, r->micro_batch);
    json_key(&w, "activations");
    json_string(&w, activations_name(r->activations));
    json_key(&w, "model_flops_per_step");
    json_f64(&w, run_main_program(r)->model_flops);
    json_key(&w, "ranks");
    json_i64(&w, r->ranks.size);
    layout_json(r, &w);
    json_key(&w, "memory");
    json_begin_object(&w);
    json_key(&w, "arena_bytes");
    json_i64(&w, arena_bytes(r));
    json_key(&w, "lower_bound_bytes");
    json_i64(&w, pool->bound_bytes);
    json_key(&w, "scratch_bytes");
    json_i64(&w, r->scratch_bytes);
    json_key(&w, "reader_bytes");
    json_i64(&w, run_reader_bytes(r));
    json_key(&w, "peak_op");
    json_string(&w, peak_op_text(r, peak, sizeof(peak)));
    json_key(&w, "class_bytes");
    json_begin_object(&w);
    for (int c = 0; c < SC_COUNT; c++) {
        json_key(&w, storage_class_name((enum storage_class)c));
        json_i64(&w, pool->class_bytes[c]);
    }
    json_end_object(&w);
    json_end_object(&w);
    sheets_json(r, &w);
    json_end_object(&w);
    str_addc(out, '\n');
}

void run_print_dry_run(const struct run *r, bool json, struct str *out)
{
    if (json) {
        dry_run_json(r, out);
        return;
    }
    char flops[32];
    add_model_line(r, out);
    add_batch_line(r, out);
    add_layout(r, out);
    add_memory(r, out);
    str_printf(out, "flops       %sflop of the model a step\n",
               text_count(run_main_program(r)->model_flops, flops, sizeof(flops)));
}

/* Seconds by kind of op over all training programs, largest first. */
static void add_times(const struct run *r, struct str *out)
{
    double s[OP_KIND_COUNT] = {0}, total = 0;
    for (int i = 0; i < r->n_train; i++) {
        const struct program *p = &r->train[i].low.program;
        for (uint32_t o = 0; o < p->ops.n; o++) {
            double seconds;
            uint64_t runs;
            exec_op_time(r->train[i].exec, o, &seconds, &runs);
            s[p->ops.data[o].kind] += seconds;
            total += seconds;
        }
    }
    str_printf(out, "time by kind of op (%.1f s of %.1f s in steps)\n", total,
               r->train_s);
    for (;;) {
        int best = 0;
        for (int k = 1; k < OP_KIND_COUNT; k++)
            if (s[k] > s[best])
                best = k;
        if (total <= 0 || s[best] <= 0.001 * total)
            break;
        str_printf(out, "  %-14s %8.2f s  %5.1f %%\n",
                   op_desc((enum op_kind)best)->name, s[best], 100.0 * s[best] / total);
        s[best] = 0;
    }
}

static void summary_json(const struct run *r, struct str *out)
{
    struct reader_stats stats = reader_stats(r->reader);
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_object(&w);
    json_key(&w, "step");
    json_i64(&w, r->at.step);
    json_key(&w, "tokens");
    json_i64(&w, r->at.tokens);
    json_key(&w, "elapsed_s");
    json_f64(&w, run_now_s() - r->start_s);
    json_key(&w, "tokens_per_s");
    json_f64(&w, (double)r->train_tokens / r->train_s);
    json_key(&w, "loss");
    json_f64(&w, r->last_loss);
    json_key(&w, "eval_loss");
    if (r->has_eval && r->config->train.eval_every > 0)
        json_f64(&w, r->last_eval_loss);
    else
        json_null(&w);
    json_key(&w, "data_waits");
    json_i64(&w, stats.n_waits);
    json_key(&w, "checkpoints");
    json_string(&w, r->config->checkpoint.dir);
    json_end_object(&w);
    str_addc(out, '\n');
}

void run_print_summary(const struct run *r, bool json, struct str *out)
{
    if (json) {
        summary_json(r, out);
        return;
    }
    char took[32], rate[32];
    double wall = run_now_s() - r->start_s;
    str_printf(out, "done        step %" PRId64 " in %s", r->at.step,
               progress_duration(wall, took, sizeof(took)));
    if (r->train_s > 0)
        str_printf(
                out, ", %s tokens/s",
                text_count((double)r->train_tokens / r->train_s, rate, sizeof(rate)));
    str_printf(out, "; loss %.4f", r->last_loss);
    if (r->has_eval && r->config->train.eval_every > 0)
        str_printf(out, ", held-out loss %.4f", r->last_eval_loss);
    struct reader_stats stats = reader_stats(r->reader);
    str_printf(out,
               "\ndata        %" PRId64 " of %" PRId64 " batches were waited for\n",
               stats.n_waits, stats.n_batches);
    if (r->args->verbose)
        add_times(r, out);
    str_printf(out, "next        angel ckpt inspect %s\n", r->config->checkpoint.dir);
}
