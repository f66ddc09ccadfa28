#include "cmd/report_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/load_config.h"
#include "cmd/progress.h"
#include "cmd/report_read.h"
#include "core/log.h"
#include "core/opt.h"
#include "io/ckpt.h"
#include "io/file.h"

#define EVENTS_SHOWN 200

static const char style[] =
        ":root{--bg:#fbfbfa;--ink:#1d2126;--dim:#68707a;--line:#dfe2e5;--card:#fff;"
        "--c0:#2563a8;--c1:#c2571a;--bad:#b3261e;--mark:#8a63b8}"
        "@media(prefers-color-scheme:dark){:root{--bg:#14171a;--ink:#e4e7ea;"
        "--dim:#98a1ab;--line:#2c3238;--card:#1b1f23;--c0:#6cb0f5;--c1:#f0a060;"
        "--bad:#ff8a80;--mark:#b99be0}}"
        "*{box-sizing:border-box}"
        "body{margin:0 auto;max-width:1240px;padding:24px 20px 48px;background:var(--bg);"
        "color:var(--ink);font:15px/1.5 system-ui,sans-serif}"
        "h1{font-size:24px;margin:0}h2{font-size:17px;margin:32px 0 10px}"
        "p{margin:6px 0}.e{min-width:110px}.dim{color:var(--dim)}.bad{color:var(--bad)}"
        ".tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));"
        "gap:10px;margin-top:18px}"
        ".tile,figure,table,pre{background:var(--card);border:1px solid var(--line);"
        "border-radius:8px}"
        ".tile{padding:10px 14px}.tile b{display:block;font-size:20px;"
        "font-variant-numeric:tabular-nums}.tile span{color:var(--dim);font-size:13px}"
        ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,"
        "480px),1fr));gap:14px}"
        "figure{margin:0;padding:10px 12px 4px}figcaption{font-size:14px;min-height:21px}"
        ".at{float:right;color:var(--dim);font-variant-numeric:tabular-nums}"
        "svg{width:100%;height:auto;display:block}svg text{font-size:11px;"
        "fill:var(--dim)}path{fill:none;stroke-width:1.6;stroke-linejoin:round}"
        "path.s0{stroke:var(--c0)}path.s1{stroke:var(--c1)}circle.s0{fill:var(--c0)}"
        "circle.s1{fill:var(--c1)}.grid{stroke:var(--line)}.axis{stroke:var(--dim)}"
        ".mark{stroke:var(--mark);stroke-width:1.5;stroke-dasharray:4 3}"
        ".cursor{stroke:var(--dim);visibility:hidden}"
        ".key{margin-left:10px;color:var(--dim)}.key:before{content:\"\";display:"
        "inline-block;width:12px;height:3px;margin-right:5px;vertical-align:middle}"
        ".k0:before{background:var(--c0)}.k1:before{background:var(--c1)}"
        "table{border-collapse:separate;border-spacing:0;width:100%;font-size:14px}"
        "th,td{text-align:left;padding:5px 12px;border-bottom:1px solid var(--line);"
        "overflow-wrap:anywhere}tr:last-child td{border-bottom:0}"
        "th{color:var(--dim);font-weight:500}td.n,th.n{text-align:right;"
        "font-variant-numeric:tabular-nums;white-space:nowrap}"
        "pre{padding:12px 14px;overflow-x:auto;font-size:13px;white-space:pre-wrap;"
        "overflow-wrap:anywhere}.bar{height:10px;background:var(--c0);border-radius:3px;"
        "min-width:1px}"
        "@media print{body{max-width:none}}";

/* Reading values off a chart; the page is complete without it. */
static const char script[] =
        "document.querySelectorAll('figure').forEach(f=>{const s=f.querySelector('svg'),"
        "at=f.querySelector('.at'),c=f.querySelector('.cursor'),"
        "[l,r,x1]=s.dataset.x.split(' ').map(Number),"
        "ps=[...f.querySelectorAll('path[data-v]')].map(p=>({n:p.dataset.name,"
        "v:p.dataset.v.split(',').filter(Boolean).map(t=>t.split(':').map(Number))}));"
        "s.onmousemove=e=>{const b=s.getBoundingClientRect(),"
        "x=((e.clientX-b.left)/b.width*560-l)/(r-l)*x1;let t='',px;"
        "ps.forEach(p=>{let q;p.v.forEach(v=>{if(!q||Math.abs(v[0]-x)<Math.abs(q[0]-x))"
        "q=v});if(q){if(px===undefined){px=q[0];t='step '+px}t+='  '+q[1]}});"
        "at.textContent=t;const cx=l+px/x1*(r-l);c.setAttribute('x1',cx);"
        "c.setAttribute('x2',cx);c.style.visibility='visible'};"
        "s.onmouseleave=()=>{at.textContent='';c.style.visibility='hidden'}})";

/* ------------------------------------------------------------------------------ tiles */

static void add_tile(struct str *h, const char *value, const char *name)
{
    str_add(h, "<div class=\"tile\"><b>");
    svg_text(h, value);
    str_add(h, "</b><span>");
    svg_text(h, name);
    str_add(h, "</span></div>\n");
}

/* The last finite y of a curve, or NaN. */
static double last_of(const struct report_data *d, enum report_curve curve)
{
    const report_points *p = &d->curve[curve];
    for (size_t i = p->n; i-- > 0;)
        if (isfinite(p->data[i].y))
            return p->data[i].y;
    return NAN;
}

static void add_number_tile(struct str *h, const struct report_data *d,
                            enum report_curve curve, const char *name)
{
    char buf[64];
    double x = last_of(d, curve);
    if (!isfinite(x))
        return;
    if (curve == CURVE_MFU)
        snprintf(buf, sizeof(buf), "%.1f %%", 100 * x);
    else if (curve == CURVE_SPEED)
        text_count(x, buf, sizeof(buf));
    else
        snprintf(buf, sizeof(buf), "%.4f", x);
    add_tile(h, buf, name);
}

static int64_t start_i64(const struct report_data *d, const char *key)
{
    const struct json *v = d->start ? json_find(d->start, key) : NULL;
    return v && v->type == JSON_NUMBER && v->is_i64 ? v->i64 : 0;
}

static const char *start_text(const struct report_data *d, const char *key)
{
    const struct json *v = d->start ? json_find(d->start, key) : NULL;
    return v && v->type == JSON_STRING ? v->text : NULL;
}

static void add_tiles(struct str *h, const struct report_data *d)
{
    char buf[64], part[32];
    int64_t planned = start_i64(d, "steps");
    str_add(h, "<div class=\"tiles\">\n");
    if (planned > 0)
        snprintf(buf, sizeof(buf), "%" PRId64 " / %" PRId64, d->step, planned);
    else
        snprintf(buf, sizeof(buf), "%" PRId64, d->step);
    add_tile(h, buf, "steps");
    add_tile(h, text_count((double)d->tokens, buf, sizeof(buf)), "trained tokens");
    add_number_tile(h, d, CURVE_LOSS, "loss");
    add_number_tile(h, d, CURVE_EVAL, "held-out loss");
    add_number_tile(h, d, CURVE_SPEED, "tokens per second, last");
    add_number_tile(h, d, CURVE_MFU, "MFU, last");
    add_tile(h, progress_duration(d->elapsed_s, part, sizeof(part)),
             "time, all attempts");
    snprintf(buf, sizeof(buf), "%" PRId64, d->attempt);
    add_tile(h, buf, d->attempt == 1 ? "attempt" : "attempts");
    if (start_i64(d, "parameters") > 0)
        add_tile(h, text_count((double)start_i64(d, "parameters"), buf, sizeof(buf)),
                 "parameters");
    if (d->n_skipped > 0) {
        snprintf(buf, sizeof(buf), "%" PRId64, d->n_skipped);
        add_tile(h, buf, "updates left out");
    }
    str_add(h, "</div>\n");
}

/* ----------------------------------------------------------------------------- charts */

static const struct {
    const char *title, *unit;
    enum report_curve curve[2]; /* the same twice: one series */
    const char *names[2];
    bool percent, may_log;
} charts[] = {
        {"Loss",
         "nats per token",
         {CURVE_LOSS, CURVE_EVAL},
         {"training", "held out"},
         false,
         false},
        {"Gradient norm",
         "before clipping",
         {CURVE_GRAD_NORM, CURVE_GRAD_NORM},
         {""},
         false,
         true},
        {"Learning rate", "", {CURVE_LR, CURVE_LR}, {""}, false, false},
        {"Speed", "tokens per second", {CURVE_SPEED, CURVE_SPEED}, {""}, false, false},
        {"MFU",
         "model flops over the device's peak",
         {CURVE_MFU, CURVE_MFU},
         {""},
         true,
         false},
        {"Largest loss of a token",
         "nats",
         {CURVE_MAX_TOKEN_LOSS, CURVE_MAX_TOKEN_LOSS},
         {""},
         false,
         false},
        {"Update over weight",
         "rms, largest of all tensors",
         {CURVE_UPDATE_RATIO, CURVE_UPDATE_RATIO},
         {""},
         false,
         true},
        {"Residual stream",
         "rms behind the last layer",
         {CURVE_RESIDUAL, CURVE_RESIDUAL},
         {""},
         false,
         true},
        {"Scores",
         "largest magnitude",
         {CURVE_ATTN_LSE, CURVE_LOGITS},
         {"attention, log-sum-exp", "output logits"},
         false,
         true},
};

static struct svg_series series_of(const struct report_data *d, enum report_curve curve,
                                   const char *name)
{
    const report_points *p = &d->curve[curve];
    return (struct svg_series){name, p->data, p->n, p->n > 0 && p->n <= 40};
}

static void add_charts(struct str *h, const struct report_data *d)
{
    str_add(h, "<h2>Curves by step</h2>\n<div class=\"charts\">\n");
    for (size_t i = 0; i < ARRAY_LEN(charts); i++) {
        struct svg_series s[2];
        size_t n = 0;
        for (int k = 0; k < 2; k++)
            if ((k == 0 || charts[i].curve[1] != charts[i].curve[0]) &&
                d->curve[charts[i].curve[k]].n > 0)
                s[n++] = series_of(d, charts[i].curve[k], charts[i].names[k]);
        struct svg_chart c = {.title = charts[i].title,
                              .unit = charts[i].unit,
                              .series = s,
                              .n_series = n,
                              .marks = d->attempts.data,
                              .n_marks = d->attempts.n,
                              .x_max = (double)d->step,
                              .percent = charts[i].percent,
                              .may_log = charts[i].may_log};
        svg_chart_add(h, &c);
    }
    str_add(h, "</div>\n");
    if (d->attempts.n > 0)
        str_add(h, "<p class=\"dim\">Dashed lines: a new attempt begins; what the one "
                   "before it did beyond that step was done again.</p>\n");
}

/* ----------------------------------------------------------------------------- tables */

static void add_ckpts(struct str *h, const struct report_data *d)
{
    char size[32];
    str_add(h, "<h2>Checkpoints</h2>\n");
    if (d->ckpts.n == 0) {
        str_add(h, "<p class=\"dim\">None was saved.</p>\n");
        return;
    }
    str_add(h, "<table><tr><th class=\"n\">step</th><th class=\"n\">attempt</th>"
               "<th class=\"n\">size</th><th class=\"n\">of raw</th>"
               "<th class=\"n\">saved in</th></tr>\n");
    for (size_t i = 0; i < d->ckpts.n; i++) {
        const struct report_ckpt *c = &d->ckpts.data[i];
        str_printf(h,
                   "<tr><td class=\"n\">%" PRId64 "</td><td class=\"n\">%" PRId64
                   "</td><td class=\"n\">%s</td><td class=\"n\">%.0f %%</td>"
                   "<td class=\"n\">%.2f s</td></tr>\n",
                   c->step, c->attempt, text_bytes(c->bytes, size, sizeof(size)),
                   100 * c->ratio, c->save_s);
    }
    str_add(h, "</table>\n");
}

static void add_events(struct str *h, const struct report_data *d)
{
    str_add(h, "<h2>Events</h2>\n");
    if (d->events.n == 0) {
        str_add(h, "<p class=\"dim\">None.</p>\n");
        return;
    }
    size_t first = d->events.n > EVENTS_SHOWN ? d->events.n - EVENTS_SHOWN : 0;
    if (first > 0)
        str_printf(h,
                   "<p class=\"dim\">The last %d of %zu; all are in metrics.jsonl."
                   "</p>\n",
                   EVENTS_SHOWN, (size_t)d->events.n);
    str_add(h, "<table><tr><th class=\"n\">step</th><th class=\"n\">attempt</th>"
               "<th>event</th><th></th></tr>\n");
    for (size_t i = first; i < d->events.n; i++) {
        const struct report_event *e = &d->events.data[i];
        str_printf(h,
                   "<tr><td class=\"n\">%" PRId64 "</td><td class=\"n\">%" PRId64
                   "</td><td class=\"%s\">",
                   e->step, e->attempt, e->alarm ? "e bad" : "e");
        svg_text(h, e->what);
        str_add(h, "</td><td>");
        svg_text(h, e->detail);
        str_add(h, "</td></tr>\n");
    }
    str_add(h, "</table>\n");
}

static void add_memory_row(struct str *h, const char *name, int64_t bytes, int64_t most)
{
    char size[32];
    str_add(h, "<tr><td>");
    svg_text(h, name);
    str_printf(
            h,
            "</td><td class=\"n\">%s</td><td style=\"width:60%%\"><div class=\"bar\" "
            "style=\"width:%.1f%%\"></div></td></tr>\n",
            text_bytes(bytes, size, sizeof(size)),
            100.0 * (double)bytes / (double)MAX(most, 1));
}

static void add_memory(struct str *h, const struct report_data *d)
{
    char key[64], size[32];
    int64_t most = MAX(start_i64(d, "scratch_bytes"), start_i64(d, "reader_bytes"));
    if (start_i64(d, "arena_bytes") == 0)
        return;
    for (int c = 0; c < SC_COUNT; c++) {
        snprintf(key, sizeof(key), "%s_bytes",
                 storage_class_name((enum storage_class)c));
        most = MAX(most, start_i64(d, key));
    }
    str_printf(h,
               "<h2>Memory plan</h2>\n<p>%s in one arena; by class at the peak, and "
               "what lies beside the arena.</p>\n<table>\n",
               text_bytes(start_i64(d, "arena_bytes"), size, sizeof(size)));
    for (int c = 0; c < SC_COUNT; c++) {
        snprintf(key, sizeof(key), "%s_bytes",
                 storage_class_name((enum storage_class)c));
        if (start_i64(d, key) > 0)
            add_memory_row(h, storage_class_name((enum storage_class)c),
                           start_i64(d, key), most);
    }
    add_memory_row(h, "scratch, beside the arena", start_i64(d, "scratch_bytes"), most);
    add_memory_row(h, "reader, beside the arena", start_i64(d, "reader_bytes"), most);
    str_add(h, "</table>\n");
}

/* ---------------------------------------------------------------------- configuration */

static void add_differences(struct str *h, const struct config *c)
{
    const struct opt_table *t = config_table();
    struct config plain;
    uint32_t *rows = mem_alloc(t->n_rows * sizeof(*rows));
    config_init(&plain);
    uint32_t n = opt_diff(t, &plain, c, 0, rows);
    str_add(h, "<table><tr><th>key</th><th>value</th><th>default</th></tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        const struct opt *o = &t->rows[rows[i]];
        struct str is = {0}, was = {0};
        opt_print_value(o, c, &is);
        opt_print_value(o, &plain, &was);
        str_add(h, "<tr><td>");
        svg_text(h, o->key);
        str_add(h, "</td><td>");
        svg_text(h, str_get(&is));
        str_add(h, "</td><td class=\"dim\">");
        svg_text(h, o->default_text ? str_get(&was) : "must be given");
        str_add(h, "</td></tr>\n");
        str_free(&is);
        str_free(&was);
    }
    str_add(h, "</table>\n");
    config_free(&plain);
    mem_free(rows);
}

/* What the newest checkpoint of the folder says of its configuration. */
static enum status saved_config(const char *folder, struct config *c, int64_t *step,
                                struct diag *diag)
{
    struct ckpt *ck;
    struct arena a = {0};
    TRY(ckpt_open_newest(folder, INT64_MAX, &ck, diag));
    *step = ckpt_get_info(ck)->step;
    const char *text = ckpt_state_json(ck), *yaml;
    struct json *state;
    enum status st =
            json_parse(&a, text, strlen(text), folder, JSON_STRICT, &state, diag);
    if (st == ST_OK)
        st = json_get_string(state, "config", folder, &yaml, diag);
    if (st == ST_OK)
        st = load_config_text(c, yaml, strlen(yaml), folder, diag);
    arena_release(&a);
    ckpt_close(ck);
    return st;
}

static void add_config(struct str *h, const char *folder)
{
    struct config c;
    struct diag diag = {0};
    int64_t step;
    str_add(h, "<h2>Configuration</h2>\n");
    config_init(&c);
    enum status st = saved_config(folder, &c, &step, &diag);
    if (st == ST_OK) {
        str_printf(h,
                   "<p>What differs from the defaults, as the checkpoint of step "
                   "%" PRId64 " has it.</p>\n",
                   step);
        add_differences(h, &c);
    } else {
        str_add(h, "<p class=\"dim\">No checkpoint of this folder tells it: ");
        svg_text(h, diag.text);
        str_add(h, "</p>\n");
    }
    config_free(&c);
}

static void add_resume(struct str *h, const struct report_data *d)
{
    const char *command = start_text(d, "command"), *folder = start_text(d, "folder");
    if (!command)
        return;
    str_add(h, "<h2>To go on</h2>\n<p>The same command goes on from the newest valid "
               "checkpoint:</p>\n<pre>");
    if (folder) {
        str_add(h, "cd ");
        svg_text(h, folder);
        str_addc(h, '\n');
    }
    svg_text(h, command);
    str_add(h, "</pre>\n");
}

/* ------------------------------------------------------------------------------- page */

static void add_head(struct str *h, const char *folder, const struct report_data *d)
{
    str_add(h, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
               "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
               "<meta name=\"color-scheme\" content=\"light dark\"><title>");
    svg_text(h, folder);
    str_printf(h, ": angel</title><style>%s</style></head>\n<body>\n<h1>", style);
    svg_text(h, folder);
    str_add(h, "</h1>\n");
    const struct json *status = d->summary ? json_find(d->summary, "status") : NULL;
    const struct json *attempt = d->summary ? json_find(d->summary, "attempt") : NULL;
    bool ended = attempt && attempt->i64 == d->attempt;
    str_add(h, "<p class=\"dim\">");
    if (ended && status && status->type == JSON_STRING) {
        bool ok = strcmp(status->text, "ok") == 0;
        str_add(h, ok ? "Finished" : "Ended: ");
        if (!ok)
            svg_text(h, status->text);
    } else {
        str_add(h, "No end of the last attempt is recorded: it runs, or was killed");
    }
    const char *host = start_text(d, "host");
    if (host) {
        str_add(h, ", on ");
        svg_text(h, host);
        str_printf(h, ", %" PRId64 " threads, ", start_i64(d, "threads"));
        svg_text(h, start_text(d, "precision") ? start_text(d, "precision") : "");
    }
    str_add(h, ".</p>\n");
}

enum status report_html(const char *folder, struct str *html, struct diag *diag)
{
    struct report_data d;
    struct str path = {0};
    str_printf(&path, "%s/metrics.jsonl", folder);
    enum status st = report_read(str_get(&path), &d, diag);
    if (st == ST_NOT_FOUND)
        diag_hint(diag, "the folder of a run: its checkpoint.dir, where log.jsonl is");
    str_free(&path);
    TRY(st);
    add_head(html, folder, &d);
    add_tiles(html, &d);
    add_charts(html, &d);
    add_ckpts(html, &d);
    add_events(html, &d);
    add_memory(html, &d);
    add_config(html, folder);
    add_resume(html, &d);
    str_printf(html, "<script>%s</script>\n</body></html>\n", script);
    report_data_free(&d);
    return ST_OK;
}

int report_html_command(const struct cmd_args *args)
{
    struct str html = {0}, path = {0};
    struct diag diag = {0};
    enum status st = report_html(args->report, &html, &diag);
    str_printf(&path, "%s/report.html", args->report);
    if (st == ST_OK)
        st = file_write_atomic(str_get(&path), html.s, html.n, &diag);
    if (st == ST_OK)
        printf("%s\n", str_get(&path));
    str_free(&html);
    str_free(&path);
    return st == ST_OK ? 0 : cmd_fail(st, &diag);
}
