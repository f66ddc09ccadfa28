#!/usr/bin/env bats
# Completion of command lines in bash and zsh.

load common

root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
scripts=$root/configs/completion

setup() {
    cd "$BATS_TEST_TMPDIR"
    mkdir -p notes runs/step-1
    touch run.yaml notes.txt notes/a.yaml
}

# What bash offers behind a line, sorted, in one line.
offers() { # line
    bash --norc -c '
        . "$1"
        COMP_LINE=$2 COMP_POINT=${#2}
        read -ra COMP_WORDS <<<"${2//=/ = }"
        [ "${2: -1}" != " " ] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _angel angel "${COMP_WORDS[COMP_CWORD]}" ""
        printf "%s\n" "${COMPREPLY[@]}"
    ' bash "$scripts/angel.bash" "$1" | sort -u | paste -sd ' '
}

offers_are() { # line, words
    local got
    got=$(offers "$1")
    [ "$got" = "$2" ] || { echo "'$1': got '$got', wanted '$2'"; return 1; }
}

offers_have() { # line, words ...
    local got line=$1 word
    got=$(offers "$line")
    shift
    for word in "$@"; do
        case " $got " in
        *" $word "*) ;;
        *) echo "'$line': got '$got', wanted '$word'"; return 1 ;;
        esac
    done
}

@test "the scripts are those of the program" {
    diff "$scripts/angel.bash" <("$ANGEL" help --completion bash)
    diff "$scripts/_angel" <("$ANGEL" help --completion zsh)
    bash -n "$scripts/angel.bash"
    angel help --completion fish
    refuses 2 "got 'fish'"
}

@test "bash offers commands, actions and the options of each" {
    offers_are 'angel ' 'ckpt help pretrain'
    offers_are 'angel pre' 'pretrain'
    offers_are 'angel ckpt ' 'diff inspect prune verify'
    offers_are 'angel ckpt --t' '--tensors --tolerance'
    offers_are 'angel pretrain --dr' '--dry-run'
    offers_are 'angel pretrain --te' ''
    offers_are 'angel --ver' '--version'
    offers_are 'angel help p' 'pretrain'
    offers_are 'angel help options train.st' 'train.steps'
}

@test "bash offers files where files are wanted" {
    offers_are 'angel ckpt verify r' 'runs'
    offers_are 'angel ckpt diff runs r' 'runs'
    offers_are 'angel pretrain r' 'run.yaml runs'
    offers_are 'angel pretrain notes/' 'notes/a.yaml'
    offers_are 'angel pretrain --report r' 'runs'
    offers_are 'angel pretrain run.yaml data.train=not' 'notes notes.txt'
    offers_are 'angel pretrain model=r' 'run.yaml runs'
    offers_have 'angel pretrain checkpoint.resume=' auto notes run.yaml
}

@test "bash offers keys and the values of choices" {
    offers_are 'angel pretrain model.ac' 'model.act='
    offers_are 'angel pretrain model.act=s' 'swiglu'
    offers_are 'angel pretrain --set model.act=s' 'swiglu'
    offers_are 'angel pretrain --set=model.act=s' 'swiglu'
    offers_are 'angel pretrain --quiet run.yaml train.prec' 'train.precision='
    offers_are 'angel pretrain train.precision=' 'bf16 fp32'
    offers_are 'angel pretrain model.tied=' 'false true'
    offers_are 'angel pretrain --allow-change train.st' 'train.steps'
    offers_are 'angel pretrain no.such=' ''
}

# Every key of `help options`, every choice of its help line.
@test "every key is offered, with the choices that help names" {
    local key choices got n=0
    while read -r key choices; do
        n=$((n + 1))
        offers_have "angel pretrain $key" "$key="
        case $choices in
        *'|'*)
            got=$(offers "angel pretrain $key=")
            [ "$got" = "$(tr '|' '\n' <<<"$choices" | sort | paste -sd ' ')" ] ||
                { echo "$key: got '$got', wanted '$choices'"; return 1; }
            ;;
        esac
    done < <("$ANGEL" help options | tr '\n' ' ' | sed 's/  \([a-z_]\+\(\.[a-z_]\+\)*\)  /\n\1 /g' |
        sed -n 's/^\([a-z_.]*\) .*(\([a-z0-9_|-]*\)[,)].*/\1 \2/p')
    echo "$n keys"
    [ "$n" -ge 60 ]
}

@test "zsh completes in a terminal" {
    command -v zsh >/dev/null || skip "zsh is not installed"
    zsh -n "$scripts/_angel"
    while read -r line; do
        timeout 30 zsh -f "$root/tests/cli/complete.zsh" "$scripts" "$BATS_TEST_TMPDIR" \
            "${line%%|*}" "${line##*|}" </dev/null
    done <<'END'
angel pret|pretrain
angel ckpt ver|verify
angel ckpt verify ru|runs
angel pretrain --dr|--dry-run
angel pretrain run.yaml model.ac|model.act=
angel pretrain model.act=sw|swiglu
angel pretrain --set model.act=sw|swiglu
angel pretrain --set=train.precision=b|bf16
angel pretrain --allow-change train.st|train.steps
angel pretrain data.train=notes.|notes.txt
END
}
