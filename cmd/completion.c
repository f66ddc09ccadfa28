#include "cmd/completion.h"

#include <string.h>

#include "core/config.h"

/* Both scripts: functions that print words, from the tables; then the shell's own part.
 * A word @file, @folder or @yaml stands for files of that kind. */

/* ---- tables ---- */

static bool is_offered(const struct opt *o)
{
    return o->type != OPT_SUBTREE && !(o->flags & OPT_HIDDEN);
}

static void add_options(const struct cmd *command, struct str *out)
{
    struct cmd_option o;
    str_printf(out, "    %s) echo '", command ? command->name : "''");
    for (size_t i = 0; cmd_args_option(command, i, &o); i++)
        str_printf(out, "%s%s", i ? " " : "", o.name);
    str_add(out, "' ;;\n");
}

/* What may follow an option that takes an argument, for the few that say it. */
static void add_arguments(struct str *out)
{
    static const struct {
        const char *value, *words;
    } kinds[] = {{"DIR", "@folder"}, {"KEY", "@key"}, {"KEY=VALUE", "@setting"}};
    int n;
    const struct cmd *table = cmd_table(&n);
    str_add(out, "_angel_argument() {\n    case $1 in\n");
    for (int c = 0; c < n; c++) {
        struct cmd_option o;
        for (size_t i = 0; !table[c].later && cmd_args_option(&table[c], i, &o); i++) {
            const char *words = "";
            for (size_t k = 0; o.value && k < ARRAY_LEN(kinds); k++) {
                if (strcmp(kinds[k].value, o.value) == 0)
                    words = kinds[k].words;
            }
            if (o.value)
                str_printf(out, "    %s) echo '%s' ;;\n", o.name, words);
        }
    }
    str_add(out, "    *) return 1 ;;\n    esac\n}\n\n");
}

/* "inspect|verify ..." of a usage: the words before the first space; else nothing. */
static void add_actions(const struct cmd *command, struct str *out)
{
    size_t n = strcspn(command->usage, " ");
    if (!memchr(command->usage, '|', n) || command->usage[0] == '[')
        return;
    str_printf(out, "    %s) echo '", command->name);
    for (size_t i = 0; i < n; i++)
        str_addc(out, command->usage[i] == '|' ? ' ' : command->usage[i]);
    str_add(out, "' ;;\n");
}

static void add_commands(struct str *out)
{
    int n;
    const struct cmd *table = cmd_table(&n);
    bool first = true;
    str_add(out, "_angel_commands() {\n    echo '");
    for (int i = 0; i < n; i++) {
        if (!table[i].later)
            str_printf(out, "%s%s", first ? "" : " ", table[i].name);
        first &= table[i].later != NULL;
    }
    str_add(out, "'\n}\n\n_angel_options() {\n    case $1 in\n");
    for (int i = 0; i < n; i++) {
        if (!table[i].later)
            add_options(&table[i], out);
    }
    add_options(NULL, out);
    str_add(out, "    esac\n}\n\n_angel_actions() {\n    case $1 in\n");
    for (int i = 0; i < n; i++) {
        if (!table[i].later)
            add_actions(&table[i], out);
    }
    str_add(out, "    esac\n}\n\n");
    add_arguments(out);
}

/* Mappings at the top: `model=FILE.yaml`. */
static bool begins_mapping(const struct opt_table *t, uint32_t i, size_t *n)
{
    const char *key = t->rows[i].key, *dot = strchr(key, '.');
    *n = dot ? (size_t)(dot - key) : 0;
    for (uint32_t j = 0; dot && j < i; j++) {
        if (strncmp(t->rows[j].key, key, *n + 1) == 0)
            return false;
    }
    return dot != NULL;
}

static void add_keys(const struct opt_table *t, struct str *out)
{
    size_t n;
    str_add(out, "_angel_keys() {\n    cat <<'END'\n");
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (begins_mapping(t, i, &n))
            str_printf(out, "%.*s\n", (int)n, t->rows[i].key);
        if (is_offered(&t->rows[i]))
            str_printf(out, "%s\n", t->rows[i].key);
    }
    str_add(out, "END\n}\n\n");
}

static void add_values(const struct opt *o, struct str *out)
{
    const struct opt *first = o->type == OPT_LIST ? &o->fields->rows[0] : o;
    str_printf(out, "    %s) echo '", o->key);
    size_t before = out->n;
    if (o->type == OPT_BOOL)
        str_add(out, "true false ");
    for (size_t i = 0; o->type == OPT_ENUM && o->choices[i].name; i++) {
        if (!o->choices[i].later)
            str_printf(out, "%s ", o->choices[i].name);
    }
    if (o->flags & OPT_AUTO && o->type != OPT_ENUM)
        str_add(out, "auto ");
    else if (o->type == OPT_PATH && o->default_text && *o->default_text)
        str_printf(out, "%s ", o->default_text);
    if (first->type == OPT_PATH)
        str_add(out, "@file ");
    if (out->n > before)
        out->s[--out->n] = '\0'; /* the last space */
    str_add(out, "' ;;\n");
}

static void add_all_values(const struct opt_table *t, struct str *out)
{
    size_t n;
    str_add(out, "_angel_values() {\n    case $1 in\n");
    for (uint32_t i = 0; i < t->n_rows; i++) {
        if (begins_mapping(t, i, &n))
            str_printf(out, "    %.*s) echo '@yaml' ;;\n", (int)n, t->rows[i].key);
        if (is_offered(&t->rows[i]))
            add_values(&t->rows[i], out);
    }
    str_add(out, "    esac\n}\n\n");
}

/* ---- shells ---- */

static const char bash_part[] =
        "# Words, or files of a kind, that begin with $1. A reply follows $2, which\n"
        "# readline has already.\n"
        "_angel_reply() { # begin, words ...\n"
        "    local begin=$1 word plain=()\n"
        "    shift\n"
        "    for word in \"$@\"; do\n"
        "        case $word in\n"
        "        @file) COMPREPLY+=($(compgen -f -- \"$begin\")) ;;\n"
        "        @folder) COMPREPLY+=($(compgen -d -- \"$begin\")) ;;\n"
        "        @yaml)\n"
        "            COMPREPLY+=($(compgen -d -- \"$begin\")\n"
        "                $(compgen -f -X '!*.yaml' -- \"$begin\")\n"
        "                $(compgen -f -X '!*.yml' -- \"$begin\"))\n"
        "            ;;\n"
        "        *) plain+=(\"$word\") ;;\n"
        "        esac\n"
        "    done\n"
        "    case \" $* \" in\n"
        "    *' @'*) compopt -o filenames 2>/dev/null ;;\n"
        "    esac\n"
        "    COMPREPLY+=($(compgen -W \"${plain[*]}\" -- \"$begin\"))\n"
        "}\n"
        "\n"
        "# key=value in $1: keys, or what may follow the equals sign.\n"
        "_angel_setting() {\n"
        "    local value=${1#*=}\n"
        "    if [ \"$value\" = \"$1\" ]; then\n"
        "        compopt -o nospace 2>/dev/null\n"
        "        COMPREPLY+=($(compgen -S = -W \"$(_angel_keys)\" -- \"$1\"))\n"
        "        return\n"
        "    fi\n"
        "    _angel_reply \"$value\" $(_angel_values \"${1%%=*}\")\n"
        "    case $COMP_WORDBREAKS in\n"
        "    *=*) ;;\n"
        "    *) COMPREPLY=(\"${COMPREPLY[@]/#/${1%%=*}=}\") ;;\n"
        "    esac\n"
        "}\n"
        "\n"
        "_angel() {\n"
        "    local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT} cur words word\n"
        "    local command='' actions='' before='' argument\n"
        "    COMPREPLY=()\n"
        "    cur=${line##*[[:space:]]}\n"
        "    read -ra words <<<\"${line%\"$cur\"}\"\n"
        "    for word in \"${words[@]:1}\"; do\n"
        "        before=$word\n"
        "        case \" $(_angel_commands) \" in\n"
        "        *\" $word \"*) command=${command:-$word} ;;\n"
        "        esac\n"
        "    done\n"
        "    case $cur in\n"
        "    --set=*) cur=${cur#--set=} before=--set ;;\n"
        "    --report=*) cur=${cur#--report=} before=--report ;;\n"
        "    --allow-change=*) cur=${cur#--allow-change=} before=--allow-change ;;\n"
        "    esac\n"
        "    if argument=$(_angel_argument \"$before\"); then\n"
        "        case $argument in\n"
        "        @setting) _angel_setting \"$cur\" ;;\n"
        "        @key) _angel_reply \"$cur\" $(_angel_keys) ;;\n"
        "        *) _angel_reply \"$cur\" $argument ;;\n"
        "        esac\n"
        "        return\n"
        "    fi\n"
        "    case $command:$cur in\n"
        "    *:-*) _angel_reply \"$cur\" $(_angel_options \"$command\") ;;\n"
        "    :*) _angel_reply \"$cur\" $(_angel_commands) ;;\n"
        "    help:*)\n"
        "        case $before in\n"
        "        help) _angel_reply \"$cur\" $(_angel_commands) options ;;\n"
        "        options) _angel_reply \"$cur\" $(_angel_keys) ;;\n"
        "        esac\n"
        "        ;;\n"
        "    *)\n"
        "        actions=$(_angel_actions \"$command\")\n"
        "        if [ -n \"$actions\" ]; then\n"
        "            [ \"$before\" != \"$command\" ] || _angel_reply \"$cur\" $actions\n"
        "            [ \"$before\" = \"$command\" ] || _angel_reply \"$cur\" @folder\n"
        "            return\n"
        "        fi\n"
        "        _angel_setting \"$cur\"\n"
        "        case $cur in\n"
        "        *=*) ;;\n"
        "        *) _angel_reply \"$cur\" @yaml ;;\n"
        "        esac\n"
        "        ;;\n"
        "    esac\n"
        "}\n"
        "\n"
        "complete -F _angel angel\n";

static const char zsh_part[] =
        "_angel_add() { # words ...\n"
        "    local word plain=()\n"
        "    for word in \"$@\"; do\n"
        "        case $word in\n"
        "        @file) _files ;;\n"
        "        @folder) _files -/ ;;\n"
        "        @yaml) _files -g '*.(yaml|yml)' ;;\n"
        "        *) plain+=(\"$word\") ;;\n"
        "        esac\n"
        "    done\n"
        "    (( $#plain )) && compadd -a plain\n"
        "}\n"
        "\n"
        "_angel_setting() {\n"
        "    if compset -P '*='; then\n"
        "        _angel_add ${=\"$(_angel_values \"${${IPREFIX%=}#*=}\")\"}\n"
        "    else\n"
        "        compadd -S = -q -- ${(f)\"$(_angel_keys)\"}\n"
        "    fi\n"
        "}\n"
        "\n"
        "_angel() {\n"
        "    local word command='' before='' argument actions\n"
        "    for word in \"${(@)words[2,CURRENT-1]}\"; do\n"
        "        before=$word\n"
        "        case \" $(_angel_commands) \" in\n"
        "        *\" $word \"*) command=${command:-$word} ;;\n"
        "        esac\n"
        "    done\n"
        "    if [[ $PREFIX == --(set|report|allow-change)=* ]]; then\n"
        "        before=${PREFIX%%=*}\n"
        "        compset -P 1 '*='\n"
        "    fi\n"
        "    if argument=$(_angel_argument \"$before\"); then\n"
        "        case $argument in\n"
        "        @setting) _angel_setting ;;\n"
        "        @key) compadd -- ${(f)\"$(_angel_keys)\"} ;;\n"
        "        *) _angel_add ${=argument} ;;\n"
        "        esac\n"
        "        return\n"
        "    fi\n"
        "    case $command:$PREFIX in\n"
        "    *:-*) compadd -- ${=\"$(_angel_options \"$command\")\"} ;;\n"
        "    :*) compadd -- ${=\"$(_angel_commands)\"} ;;\n"
        "    help:*)\n"
        "        case $before in\n"
        "        help) compadd -- ${=\"$(_angel_commands)\"} options ;;\n"
        "        options) compadd -- ${(f)\"$(_angel_keys)\"} ;;\n"
        "        esac\n"
        "        ;;\n"
        "    *)\n"
        "        actions=$(_angel_actions \"$command\")\n"
        "        if [[ -n $actions && $before == $command ]]; then\n"
        "            compadd -- ${=actions}\n"
        "        elif [[ -n $actions ]]; then\n"
        "            _files -/\n"
        "        else\n"
        "            local setting=$PREFIX\n"
        "            _angel_setting\n"
        "            [[ $setting == *=* ]] || _angel_add @yaml\n"
        "        fi\n"
        "        ;;\n"
        "    esac\n"
        "}\n"
        "\n"
        "_angel \"$@\"\n";

enum status completion_print(const char *shell, struct str *out, struct diag *diag)
{
    bool zsh = strcmp(shell, "zsh") == 0;
    if (!zsh && strcmp(shell, "bash") != 0)
        return diag_set(diag, ST_CONFIG,
                        "no such shell (command line): got '%s', wanted bash or zsh",
                        shell);
    str_printf(out,
               "%s# Completion of angel(1) for %s. `make completion` writes it.\n\n",
               zsh ? "#compdef angel\n" : "", shell);
    add_commands(out);
    add_keys(config_table(), out);
    add_all_values(config_table(), out);
    str_add(out, zsh ? zsh_part : bash_part);
    return ST_OK;
}
