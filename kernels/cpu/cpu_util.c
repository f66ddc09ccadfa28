#include "kernels/cpu/cpu_util.h"

struct span_run {
    const struct kernel_call *c;
    int64_t items;
    int64_t unit;
    cpu_span_fn fn;
};

static void span_thread(void *arg, int thread, int n_threads)
{
    const struct span_run *r = arg;
    int64_t begin, end;
    pool_share(r->items, r->unit, thread, n_threads, &begin, &end);
    if (begin < end)
        r->fn(r->c, begin, end, thread);
}

void cpu_run_spans(const struct kernel_call *c, int64_t items, int64_t unit,
                   cpu_span_fn fn)
{
    if (items <= 0)
        return;
    if (items <= unit) {
        fn(c, 0, items, 0);
        return;
    }
    struct span_run r = {c, items, unit, fn};
    pool_run(c->pool, span_thread, &r);
}
