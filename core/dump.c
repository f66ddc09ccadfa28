#include "core/dump.h"

#include <inttypes.h>

#include "core/op.h"

static void add_dims(const struct prog_value *v, struct str *out)
{
    str_printf(out, "%s[", dtype_name((enum dtype)v->dtype));
    for (int i = 0; i < v->ndim; i++)
        str_printf(out, "%s%" PRId64, i ? "," : "", v->dim[i]);
    str_add(out, "]");
    if (!value_is_contiguous(v))
        str_printf(out, "/%" PRId64, v->ld);
}

static void add_layout(const struct program *p, const struct prog_value *v,
                       struct str *out)
{
    static const char *const dim_name[] = {"tp", "cp", "dp", "pp", "ep", "etp"};
    for (int d = 0; d < MESH_DIMS; d++) {
        if (p->mesh_degree[d] == 1 || v->layout[d] == LAYOUT_REPLICATED)
            continue;
        if (v->layout[d] == LAYOUT_PARTIAL)
            str_printf(out, " %s:partial", dim_name[d]);
        else
            str_printf(out, " %s:%d", dim_name[d], v->layout[d]);
    }
}

static void add_value(const struct program *p, uint32_t id, bool with_shape,
                      struct str *out)
{
    const struct prog_value *v = &p->values.data[id];
    str_printf(out, "%%%u:%s", id, prog_name(p, v->name));
    if (!with_shape)
        return;
    str_add(out, " ");
    add_dims(v, out);
    add_layout(p, v, out);
}

static void add_attrs(const struct program *p, const struct prog_op *op,
                      struct str *out)
{
    for (uint32_t i = 0; i < op->n_attrs; i++) {
        const struct prog_attr *a = &p->attrs.data[op->attr_first + i];
        enum attr_key key = (enum attr_key)a->key;
        if (attr_is_double(key))
            str_printf(out, " %s=%.9g", attr_name(key), a->v.f);
        else if (key == ATTR_OUT_DTYPE)
            str_printf(out, " %s=%s", attr_name(key), dtype_name((enum dtype)a->v.i));
        else
            str_printf(out, " %s=%" PRId64, attr_name(key), a->v.i);
    }
}

static void dump_op(const struct program *p, uint32_t o, struct str *out)
{
    const struct prog_op *op = &p->ops.data[o];
    str_printf(out, "  %5u  ", o);
    bool any = false;
    for (int i = 0; i < op->n_out; i++) {
        uint32_t v = op_out(p, op, i);
        if (v == NONE_ID)
            continue;
        str_add(out, any ? ", " : "");
        add_value(p, v, true, out);
        any = true;
    }
    str_printf(out, " = %s", op_desc((enum op_kind)op->kind)->name);
    for (int i = 0; i < op->n_in; i++) {
        str_add(out, i ? ", " : " ");
        add_value(p, op_in(p, op, i), false, out);
    }
    add_attrs(p, op, out);
    str_printf(out, "  {%s", phase_name((enum op_phase)op->phase));
    if (op->layer >= 0)
        str_printf(out, ", layer %d", (int)op->layer);
    if (op->recompute)
        str_add(out, ", recompute");
    if (op->stream)
        str_printf(out, ", stream %u", op->stream);
    for (uint32_t i = 0; i < op->n_waits; i++)
        str_printf(out, ", wait %u", p->waits.data[op->wait_first + i]);
    if (op->signal != NONE_ID)
        str_printf(out, ", signal %u", op->signal);
    if (op->predicate != NONE_ID)
        str_printf(out, ", if %%%u", op->predicate);
    str_add(out, "}\n");
}

static void dump_storages(const struct program *p, struct str *out)
{
    for (int c = 0; c < SC_COUNT; c++) {
        int64_t bytes = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->storages.n; i++) {
            const struct prog_storage *s = &p->storages.data[i];
            if (s->cls != c)
                continue;
            bytes += s->bytes * MAX((int64_t)s->n_copies, 1);
            n++;
        }
        char size[32];
        if (n)
            str_printf(out, "storages %-10s %6u  %s\n",
                       storage_class_name((enum storage_class)c), n,
                       text_bytes(bytes, size, sizeof(size)));
    }
}

static void dump_calls(const struct program *p, struct str *out)
{
    str_add(out, "schedule\n");
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const struct prog_call *c = &p->calls.data[i];
        str_printf(out, "  %5u  %-5s %s micro_batch %u slot %u\n", i,
                   c->phase == CALL_SETUP ? "setup" : "step",
                   prog_name(p, p->segments.data[c->segment].name), c->micro_batch,
                   c->slot);
    }
}

void program_dump_text(const struct program *p, struct str *out)
{
    str_printf(out,
               "program %016" PRIx64 ": %u ops, %u values, %u storages, %u segments\n",
               program_hash(p), p->ops.n, p->values.n, p->storages.n, p->segments.n);
    dump_storages(p, out);
    for (uint32_t s = 0; s < p->segments.n; s++) {
        const struct prog_segment *seg = &p->segments.data[s];
        str_printf(out, "segment %s\n", prog_name(p, seg->name));
        for (uint32_t o = seg->op_begin; o < seg->op_end; o++)
            dump_op(p, o, out);
    }
    dump_calls(p, out);
}

/* ------------------------------------------------------------------------------ JSON */

static void json_values(const struct program *p, struct str *out)
{
    str_add(out, "\"values\": [");
    for (uint32_t i = 0; i < p->values.n; i++) {
        const struct prog_value *v = &p->values.data[i];
        str_printf(
                out,
                "%s\n  {\"id\": %u, \"name\": \"%s\", \"dtype\": \"%s\", \"shape\": [",
                i ? "," : "", i, prog_name(p, v->name),
                dtype_name((enum dtype)v->dtype));
        for (int d = 0; d < v->ndim; d++)
            str_printf(out, "%s%" PRId64, d ? ", " : "", v->dim[d]);
        str_printf(out,
                   "], \"ld\": %" PRId64 ", \"storage\": %u, \"byte_offset\": %" PRId64,
                   v->ld, v->storage, v->byte_offset);
        str_add(out, "}");
    }
    str_add(out, "],\n");
}

static void json_storages(const struct program *p, struct str *out)
{
    str_add(out, "\"storages\": [");
    for (uint32_t i = 0; i < p->storages.n; i++) {
        const struct prog_storage *s = &p->storages.data[i];
        str_printf(out,
                   "%s\n  {\"id\": %u, \"name\": \"%s\", \"class\": \"%s\", \"bytes\": "
                   "%" PRId64 ", \"offsets\": [",
                   i ? "," : "", i, prog_name(p, s->name),
                   storage_class_name((enum storage_class)s->cls), s->bytes);
        for (uint32_t c = 0; c < s->n_copies; c++)
            str_printf(out, "%s%" PRId64, c ? ", " : "",
                       p->offsets.data[s->offset_first + c]);
        str_add(out, "]}");
    }
    str_add(out, "],\n");
}

static void json_ids(const char *key, const struct program *p, const struct prog_op *op,
                     int first, int n, struct str *out)
{
    str_printf(out, ", \"%s\": [", key);
    for (int i = 0; i < n; i++) {
        uint32_t v = op_in(p, op, first + i);
        if (v == NONE_ID)
            str_printf(out, "%snull", i ? ", " : "");
        else
            str_printf(out, "%s%u", i ? ", " : "", v);
    }
    str_add(out, "]");
}

static void json_attrs(const struct program *p, const struct prog_op *op,
                       struct str *out)
{
    str_add(out, ", \"attrs\": {");
    for (uint32_t i = 0; i < op->n_attrs; i++) {
        const struct prog_attr *a = &p->attrs.data[op->attr_first + i];
        enum attr_key key = (enum attr_key)a->key;
        str_printf(out, "%s\"%s\": ", i ? ", " : "", attr_name(key));
        if (attr_is_double(key))
            str_printf(out, "%.17g", a->v.f);
        else
            str_printf(out, "%" PRId64, a->v.i);
    }
    str_add(out, "}");
}

static void json_ops(const struct program *p, struct str *out)
{
    str_add(out, "\"ops\": [");
    for (uint32_t o = 0; o < p->ops.n; o++) {
        const struct prog_op *op = &p->ops.data[o];
        struct op_cost cost = op_cost(p, op);
        str_printf(
                out,
                "%s\n  {\"id\": %u, \"kind\": \"%s\", \"phase\": \"%s\", \"layer\": %d, "
                "\"stream\": %u, \"recompute\": %s",
                o ? "," : "", o, op_desc((enum op_kind)op->kind)->name,
                phase_name((enum op_phase)op->phase), (int)op->layer, op->stream,
                op->recompute ? "true" : "false");
        json_ids("in", p, op, 0, op->n_in, out);
        json_ids("out", p, op, op->n_in, op->n_out, out);
        json_attrs(p, op, out);
        str_printf(
                out,
                ", \"flops\": %.17g, \"bytes_read\": %.17g, \"bytes_written\": %.17g}",
                cost.flops, cost.bytes_read, cost.bytes_written);
    }
    str_add(out, "],\n");
}

void program_dump_json(const struct program *p, struct str *out)
{
    str_printf(out, "{\"hash\": \"%016" PRIx64 "\",\n", program_hash(p));
    json_values(p, out);
    json_storages(p, out);
    json_ops(p, out);
    str_add(out, "\"segments\": [");
    for (uint32_t s = 0; s < p->segments.n; s++) {
        const struct prog_segment *seg = &p->segments.data[s];
        str_printf(out, "%s\n  {\"name\": \"%s\", \"op_begin\": %u, \"op_end\": %u}",
                   s ? "," : "", prog_name(p, seg->name), seg->op_begin, seg->op_end);
    }
    str_add(out, "],\n\"calls\": [");
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const struct prog_call *c = &p->calls.data[i];
        str_printf(out,
                   "%s\n  {\"phase\": \"%s\", \"segment\": %u, \"micro_batch\": %u, "
                   "\"slot\": %u}",
                   i ? "," : "", c->phase == CALL_SETUP ? "setup" : "step", c->segment,
                   c->micro_batch, c->slot);
    }
    str_add(out, "]}\n");
}
