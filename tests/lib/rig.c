#include "tests/lib/rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/hash.h"
#include "core/hyper.h"
#include "core/rng.h"
#include "core/verify.h"

#define GUARD_BYTES 64

static void need(enum status st, const struct diag *diag)
{
    if (st != ST_OK)
        fail_msg("%s: %s", status_name(st), diag->text);
}

/* Drops every call of a step but the optimizer's. */
static void keep_optimizer(struct program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const struct prog_call *c = &p->calls.data[i];
        const char *name = prog_name(p, p->segments.data[c->segment].name);
        if (c->phase == CALL_SETUP || strcmp(name, "optimizer") == 0)
            p->calls.data[n++] = *c;
    }
    p->calls.n = n;
}

void rig_create(struct rig *r, const struct config_model *m,
                const struct rig_options *o)
{
    struct diag diag = {0};
    memset(r, 0, sizeof(*r));
    model_create(m, &r->model);
    struct lower_options lo = {.purpose = o->purpose,
                               .compute = o->compute,
                               .sequences = o->sequences,
                               .seq_len = o->seq_len,
                               .n_micro_batches = MAX(o->n_micro_batches, 1u),
                               .activations = o->activations,
                               .monitor = o->monitor};
    need(lower_model(&r->model, &lo, &r->low, &diag), &diag);
    if (o->optimizer_only)
        keep_optimizer(&r->low.program);
    else
        need(program_verify(&r->low.program, &diag), &diag);
    struct pack_options po = pack_options_default();
    po.guard_bytes = o->check ? GUARD_BYTES : 0;
    need(pack_program(&r->low.program, &po, &r->report, &diag), &diag);
    if (!o->optimizer_only)
        need(program_verify_packed(&r->low.program, &diag), &diag);
    struct cpu_backend_options bo = {.n_threads = MAX(o->n_threads, 1),
                                     .reference_only = o->reference,
                                     .isa_mask =
                                             o->isa_mask ? o->isa_mask : CPU_ISA_ALL};
    need(cpu_backend_create(&bo, &r->backend, &diag), &diag);
    int64_t scratch;
    need(exec_scratch(r->backend, &r->low.program, &scratch, &diag), &diag);
    need(exec_memory_create(r->backend, r->low.program.pool_bytes, scratch, &r->memory,
                            &diag),
         &diag);
    struct exec_options eo = {.check = o->check,
                              .guard_bytes = o->check ? GUARD_BYTES : 0};
    need(exec_create(&r->low.program, &r->memory, &eo, &r->exec, &diag), &diag);
}

void rig_destroy(struct rig *r)
{
    exec_destroy(r->exec);
    exec_memory_release(&r->memory);
    r->backend->ops->destroy(r->backend);
    mem_report_free(&r->report);
    lowered_free(&r->low);
    model_free(&r->model);
}

/* Writes or reads a float value of any dtype through f32. */
static void convert(struct rig *r, uint32_t value, const float *in, float *out)
{
    struct view v = exec_view(r->exec, value, 0);
    int64_t n = value_elems(&r->low.program.values.data[value]);
    for (int64_t i = 0; i < n; i++) {
        if (in)
            dtype_set(v.data, v.dtype, i, (double)in[i]);
        else
            out[i] = (float)dtype_get(v.data, v.dtype, i);
    }
}

void rig_set_param(struct rig *r, uint32_t param, const float *values)
{
    convert(r, r->low.params[param].master, values, NULL);
}

void rig_set(struct rig *r, uint32_t value, const float *values)
{
    convert(r, value, values, NULL);
}

void rig_get(struct rig *r, uint32_t value, float *out)
{
    convert(r, value, NULL, out);
}

void rig_init_params(struct rig *r, uint64_t seed)
{
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        int64_t n = param_elems(&r->model.params[i]);
        float *w = mem_alloc((size_t)n * sizeof(*w));
        param_init_values(&r->model.params[i], seed, 0, n, w);
        rig_set_param(r, i, w);
        mem_free(w);
    }
}

void rig_setup(struct rig *r)
{
    struct diag diag = {0};
    need(exec_run(r->exec, CALL_SETUP, &diag), &diag);
}

void rig_write_batch(struct rig *r, uint32_t mb, const int32_t *tokens,
                     const int32_t *labels, const int32_t *positions,
                     const int32_t *doc_start)
{
    exec_write(r->exec, r->low.tokens, mb, tokens);
    exec_write(r->exec, r->low.labels, mb, labels);
    exec_write(r->exec, r->low.positions, mb, positions);
    exec_write(r->exec, r->low.doc_start, mb, doc_start);
}

void rig_write_hyper(struct rig *r, int64_t t, double lr, double inv_tokens,
                     double clip)
{
    const double b1 = 0.9, b2 = 0.95;
    float h[HYPER_COUNT] = {
            [HYPER_LR] = (float)lr,
            [HYPER_BETA1] = (float)b1,
            [HYPER_BETA2] = (float)b2,
            [HYPER_ONE_BETA1] = (float)(1 - b1),
            [HYPER_ONE_BETA2] = (float)(1 - b2),
            [HYPER_EPS] = 1e-8f,
            [HYPER_DECAY] = 0.1f,
            [HYPER_CORRECT1] = (float)(1 / (1 - pow(b1, (double)t))),
            [HYPER_CORRECT2] = (float)(1 / (1 - pow(b2, (double)t))),
            [HYPER_CLIP] = (float)clip,
            [HYPER_INV_TOKENS] = (float)inv_tokens,
    };
    exec_write(r->exec, r->low.hyper, 0, h);
}

void rig_step(struct rig *r)
{
    struct diag diag = {0};
    need(exec_run(r->exec, CALL_STEP, &diag), &diag);
}

double rig_loss_sum(struct rig *r)
{
    double loss;
    exec_read(r->exec, r->low.loss_sum, 0, &loss);
    return loss;
}

static void hash_value(struct rig *r, uint32_t value, struct hash_chain *h)
{
    if (value == NONE_ID)
        return;
    const struct prog_value *v = &r->low.program.values.data[value];
    hash_chain_add(h, exec_view(r->exec, value, 0).data, (size_t)value_span_bytes(v));
}

uint64_t rig_hash_state(struct rig *r)
{
    struct hash_chain h = {0};
    for (uint32_t i = 0; i < r->model.n_params; i++) {
        hash_value(r, r->low.params[i].master, &h);
        hash_value(r, r->low.params[i].exp_avg, &h);
        hash_value(r, r->low.params[i].exp_avg_sq, &h);
    }
    return h.value;
}

uint64_t rig_hash_grads(struct rig *r)
{
    struct hash_chain h = {0};
    for (uint32_t i = 0; i < r->model.n_params; i++)
        hash_value(r, r->low.params[i].grad, &h);
    return h.value;
}

int64_t rig_random_batch(uint64_t seed, int64_t n, int64_t seq_len, int64_t vocab,
                         int32_t *tokens, int32_t *labels, int32_t *positions,
                         int32_t *doc_start)
{
    int64_t trained = 0;
    for (int64_t i = 0; i < n * seq_len; i++) {
        int64_t t = i % seq_len;
        uint64_t u = rng_u64(seed, 1, (uint64_t)i);
        bool starts = t == 0 || u % 11 == 0;
        doc_start[i] = starts ? (int32_t)t : doc_start[i - 1];
        positions[i] = (int32_t)t - doc_start[i];
        tokens[i] = (int32_t)((u >> 8) % (uint64_t)vocab);
        labels[i] = (u >> 40) % 7 == 0 ? -1 : (int32_t)((u >> 24) % (uint64_t)vocab);
        trained += labels[i] >= 0;
    }
    return trained;
}
