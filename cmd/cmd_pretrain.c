#include <stdio.h>

#include "cmd/load_config.h"

int cmd_pretrain(struct cmd_args *args)
{
    struct config config;
    struct diag diag = {0};
    enum status st = load_config_args(&config, args, &diag);
    struct str text = {0};
    if (st == ST_OK && args->print_config) {
        config_print(&config, &text);
    } else if (st == ST_OK) {
        const struct config_model *m = &config.model;
        str_printf(
                &text,
                "model: %lld layers, hidden %lld, %lld heads of %lld (%lld key-value), "
                "ffn %lld, vocab %lld\n",
                (long long)m->layers, (long long)m->hidden, (long long)m->heads,
                (long long)m->head_dim, (long long)m->kv_heads, (long long)m->ffn,
                (long long)m->vocab);
    }
    fputs(str_get(&text), stdout);
    str_free(&text);
    config_free(&config);
    return st == ST_OK ? 0 : cmd_fail(st, &diag);
}
