#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/report_html.h"
#include "cmd/run.h"
#include "core/dump.h"
#include "core/log.h"
#include "core/opt.h"
#include "core/vec.h"
#include "io/file.h"

/* Prints what was asked for instead of training. */
static void print_only(const struct run *r, const struct cmd_args *args,
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
    if (run_is_first(r))
        run_print_banner(r);
    if (r->at.step >= r->config->train.steps)
        log_info("nothing to do: step %lld of %lld is done", (long long)r->at.step,
                 (long long)r->config->train.steps);
    return run_train(r, diag);
}

/* What there is to print instead of training, on the first rank. out: *done, that was
 * all. */
static enum status print_instead(struct run *r, struct str *out, bool *done,
                                 struct diag *diag)
{
    *done = r->args->dump_program || r->args->dry_run;
    if (!*done)
        return ST_OK;
    if (run_is_first(r))
        print_only(r, r->args, out);
    return r->args->dry_run ? run_agree(r, dry_run_fit(r, diag), diag) : ST_OK;
}

enum status run_rank(struct config *config, struct cmd_args *args,
                     const struct run_hooks *hooks, struct comm_world *world,
                     struct str *out, bool *agreed, struct diag *diag)
{
    struct run r = {.config = config,
                    .args = args,
                    .hooks = hooks,
                    .start_s = run_now_s(),
                    .last_loss = (double)NAN,
                    .last_eval_loss = (double)NAN};
    bool done = false;
    enum status st = run_ranks_open(&r, world, diag);
    if (st == ST_OK)
        st = run_plan(&r, diag);
    if (st == ST_OK)
        st = print_instead(&r, out, &done, diag);
    if (st == ST_OK && !done) {
        st = train(&r, diag);
        bool told = r.train_tokens > 0 && !args->quiet;
        if (st == ST_OK && (args->json || told) && run_is_first(&r))
            run_print_summary(&r, args->json, out);
    }
    if (st != ST_OK && !r.ranks.agreed && world)
        world->ops->give_up(world, diag->text);
    *agreed = r.ranks.agreed || r.ranks.size == 1;
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
    struct diag diag = {0};
    if (args->report)
        return report_html_command(args);
    enum status st = check_allowed_keys(args, &diag);
    return st == ST_OK ? run_launch(args, hooks) : cmd_fail(st, &diag);
}

int cmd_pretrain(struct cmd_args *args)
{
    return run_pretrain(args, NULL);
}
