/* The communication events of a rank, from its program. */
#include "core/op.h"
#include "parallel/verify_ranks.h"

static bool event_of(const struct program *p, const struct prog_op *op,
                     struct comm_event *e)
{
    static const struct {
        enum op_kind op;
        enum comm_event_kind event;
        bool by_output; /* the whole is what comes out */
    } kinds[] = {
            {OP_ALL_GATHER, COMM_ALL_GATHER, true},
            {OP_REDUCE_SCATTER, COMM_REDUCE_SCATTER, false},
            {OP_ALL_REDUCE, COMM_ALL_REDUCE, false},
            {OP_SEND, COMM_SEND, false},
            {OP_RECV, COMM_RECV, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (kinds[i].op != (enum op_kind)op->kind)
            continue;
        uint32_t id = kinds[i].by_output ? op_out(p, op, 0) : op_in(p, op, 0);
        const struct prog_value *v = &p->values.data[id];
        *e = (struct comm_event){.kind = (uint8_t)kinds[i].event,
                                 .dtype = v->dtype,
                                 .reduction = COMM_SUM,
                                 .stream = op->stream,
                                 .group = (uint32_t)op_attr_i(p, op, ATTR_GROUP, 0),
                                 .peer = (int32_t)op_attr_i(p, op, ATTR_PEER, -1),
                                 .count = value_elems(v)};
        return true;
    }
    ASSERT(!op_kind_is_comm((enum op_kind)op->kind));
    return false;
}

void rank_events_list(const struct program *p, enum call_phase phase,
                      const uint32_t id[GROUP_COUNT], struct rank_events *out)
{
    for (uint32_t c = 0; c < p->calls.n; c++) {
        const struct prog_call *call = &p->calls.data[c];
        const struct prog_segment *s = &p->segments.data[call->segment];
        for (uint32_t o = s->op_begin; o < s->op_end && call->phase == phase; o++) {
            const struct prog_op *op = &p->ops.data[o];
            struct comm_event e;
            for (int w = 0; w < op->n_waits; w++)
                rank_events_wait(out, op->stream,
                                 p->waits.data[op->wait_first + (uint32_t)w]);
            if (event_of(p, op, &e)) {
                e.call = c;
                e.op = o;
                e.group = id[e.group];
                rank_events_add(out, &e);
            }
            if (op->signal != NONE_ID)
                rank_events_signal(out, op->stream, op->signal);
        }
    }
}
