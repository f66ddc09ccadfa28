#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/load_config.h"
#include "cmd/report_html.h"
#include "cmd/run.h"
#include "cmd/signals.h"
#include "core/dump.h"
#include "core/log.h"
#include "core/opt.h"
#include "core/vec.h"
#include "io/file.h"

/* Prints what was asked for instead of training. True when that was all. */
static bool print_only(const struct run *r, const struct cmd_args *args,
                       struct str *out)
{
    const struct program *p = &run_main_program(r)->low.program;
    if (args->dump_program) {
        if (args->json)
            program_dump_json(p, out);
        else
            program_dump_text(p, out);
    }
    if (args->dry_run)
        run_print_dry_run(r, args->json, out);
    return args->dump_program || args->dry_run;
}

/* A dry run does not open the data, but says what is not there. */
static void warn_missing(const char *key, const char *path)
{
    if (path[0] && !file_exists(path))
        log_warn("%s: no such file or folder: %s", key, path);
}

static void warn_missing_data(const struct config *c)
{
    for (int64_t i = 0; i < c->data.train.n; i++)
        warn_missing("data.train", c->data.train.items[i].path);
    warn_missing("data.valid", c->data.valid);
    warn_missing("init", c->init);
}

/* A dry run tells of machines other than this one too: only a limit that was asked for
 * makes it end with the status of what does not fit. */
static enum status dry_run_fit(const struct run *r, struct diag *diag)
{
    struct diag fit = {0};
    warn_missing_data(r->config);
    enum status st = run_check_fit(r, &fit);
    if (st == ST_OK || r->device_limit_given) {
        *diag = fit;
        return st;
    }
    log_warn("%s", fit.text);
    return ST_OK;
}

static enum status train(struct run *r, struct diag *diag)
{
    TRY(run_open(r, diag));
    run_print_banner(r);
    if (r->at.step >= r->config->train.steps)
        log_info("nothing to do: step %lld of %lld is done", (long long)r->at.step,
                 (long long)r->config->train.steps);
    return run_train(r, diag);
}

static enum status pretrain(struct config *config, struct cmd_args *args,
                            const struct run_hooks *hooks, struct str *out,
                            struct diag *diag)
{
    struct run r = {.config = config,
                    .args = args,
                    .hooks = hooks,
                    .start_s = run_now_s(),
                    .last_loss = (double)NAN,
                    .last_eval_loss = (double)NAN};
    if (!args->dry_run && !args->dump_program)
        signals_install();
    enum status st = run_plan(&r, diag);
    if (st == ST_OK && print_only(&r, args, out)) {
        if (args->dry_run)
            st = dry_run_fit(&r, diag);
    } else if (st == ST_OK) {
        st = train(&r, diag);
        bool told = r.train_tokens > 0 && !args->quiet;
        if (st == ST_OK && (args->json || told))
            run_print_summary(&r, args->json, out);
    }
    run_close(&r);
    return st;
}

/* A key that is misspelt must not pass for one that did not change. */
static enum status check_allowed_keys(const struct cmd_args *args, struct diag *diag)
{
    const struct opt_table *t = config_table();
    for (int i = 0; i < args->allow_changes.n; i++) {
        const char *key = args->allow_changes.items[i];
        if (opt_find(t, key))
            continue;
        VEC(const char *) names = {0};
        for (uint32_t row = 0; row < t->n_rows; row++)
            vec_push(&names, t->rows[row].key);
        const char *near = text_nearest(key, names.data, names.n);
        diag_set(diag, ST_CONFIG,
                 "--allow-change (command line): got '%s', wanted a key of the "
                 "configuration",
                 key);
        if (near)
            diag_hint(diag, "did you mean %s?", near);
        vec_free(&names);
        return ST_CONFIG;
    }
    return ST_OK;
}

int run_pretrain(struct cmd_args *args, const struct run_hooks *hooks)
{
    struct config config = {0};
    struct diag diag = {0};
    struct str text = {0};
    if (args->report)
        return report_html_command(args);
    enum status st = check_allowed_keys(args, &diag);
    if (st == ST_OK)
        st = load_config_args(&config, args, &diag);
    if (st == ST_OK && args->print_config)
        config_print(&config, &text);
    else if (st == ST_OK)
        st = pretrain(&config, args, hooks, &text, &diag);
    fputs(str_get(&text), stdout);
    str_free(&text);
    config_free(&config);
    return st == ST_OK ? 0 : cmd_fail(st, &diag);
}

int cmd_pretrain(struct cmd_args *args)
{
    return run_pretrain(args, NULL);
}
