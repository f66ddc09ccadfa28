#!/usr/bin/env bats
# The command line: help, errors, exit codes, streams.

load common

tiny=(model=configs/models/llama-tiny.yaml data.train=core/)

@test "no arguments: usage on stderr, exit 2" {
    angel
    code_is 2
    [ -z "$out" ]
    has "$err" 'usage: angel COMMAND'
}

@test "--help, -h and help print the same on stdout" {
    angel --help
    code_is 0
    has "$out" 'usage: angel COMMAND'
    [ -z "$err" ]
    first=$out
    angel -h
    [ "$out" = "$first" ]
    angel help
    [ "$out" = "$first" ]
}

@test "--version names version, variant, compiler and flags" {
    angel --version
    code_is 0
    [ -z "$err" ]
    [[ $out =~ ^angel\ [0-9]+\.[0-9]+\.[0-9]+ ]]
    [[ $out =~ build\ (release|debug|asan|tsan):\ gcc\ [0-9.]+.*-std=c11\ -O ]]
}

@test "every command has help, the same both ways" {
    for c in pretrain ckpt help; do
        angel "$c" --help
        code_is 0
        has "$out" "usage: angel $c"
        first=$out
        angel help "$c"
        code_is 0
        [ "$out" = "$first" ]
    done
}

@test "every option in help is taken" {
    for c in pretrain ckpt help; do
        angel "$c" --help
        options=$(sed -n '/^options:/,/^$/s/^  \(-[-a-z]*\).*/\1/p' <<<"$out")
        [ -n "$options" ]
        for o in $options; do
            angel "$c" "$o" --help
            lacks "$err" 'unknown option'
            lacks "$err" 'not in this build'
        done
    done
}

@test "help options lists every key; of one group; of one key" {
    angel help options
    code_is 0
    for key in model.vocab data.train train.steps checkpoint.resume log.every; do
        has "$out" "$key"
    done
    angel help options train
    has "$out" 'train.steps'
    lacks "$out" 'model.vocab'
    angel help options train.steps
    has "$out" 'train.steps'
    lacks "$out" 'train.seed'
    angel help options trian
    refuses 2 trian
}

@test "unknown command, option, topic: a suggestion, exit 2" {
    angel pretrian
    refuses 2 pretrian
    has "$err" 'did you mean angel pretrain?'
    angel pretrain --dry-rum
    refuses 2 dry-rum
    has "$err" '--dry-run'
    angel help ckptt
    refuses 2 ckptt
    has "$err" 'ckpt'
}

@test "unknown key, on the command line and in a file: a suggestion, exit 2" {
    angel pretrain "${tiny[@]}" train.stepps=3
    refuses 2 train.stepps
    has "$err" 'train.steps'
    cat >"$BATS_TEST_TMPDIR/run.yaml" <<END
model: configs/models/llama-tiny.yaml
data:
  train: core/
  seq_length: 3
END
    angel pretrain "$BATS_TEST_TMPDIR/run.yaml"
    refuses 2 'run.yaml:4'
    has "$err" 'seq_len'
}

@test "bad values: exit 2, and the key is named" {
    for bad in train.eval_batches=0 train.steps=many model.layers=-1 train.precision=fp64 \
        data.valid_fraction=2 train.optimizer.betas=0.9 model.tied=perhaps \
        memory.device=3parsecs model.heads=3; do
        angel pretrain "${tiny[@]}" "$bad" --dry-run
        refuses 2 "${bad%%=*}"
    done
}

@test "a missing model or training text is asked for" {
    angel pretrain data.train=core/
    refuses 2 model
    angel pretrain model=configs/models/llama-tiny.yaml
    refuses 2 data.train
}

@test "missing files: exit 66, and the nearest name" {
    angel pretrain configs/runs/tiny-txt.yaml
    refuses 66 tiny-txt.yaml
    has "$err" 'tiny-text.yaml'
    angel pretrain model=configs/models/lama-tiny.yaml data.train=core/
    refuses 66 lama-tiny.yaml
    angel pretrain model=configs/models/llama-tiny.yaml data.train=no-such-folder/ \
        checkpoint.dir="$BATS_TEST_TMPDIR/run"
    refuses 66 no-such-folder
    angel ckpt verify "$BATS_TEST_TMPDIR/none"
    refuses 66 none
}

@test "what is not in this build: exit 69, and it says so" {
    for c in finetune plan bench; do
        angel "$c"
        refuses 69 'not in this build'
        angel help "$c"
        refuses 69 'not in this build'
    done
    angel --help
    lacks "$out" finetune
    for later in device=cuda parallel.cp=2 parallel.param_comm=int8 cluster=c.yaml; do
        angel pretrain "${tiny[@]}" "$later" --dry-run
        refuses 69 "${later%%=*}"
    done
}

@test "--print-config fed back is the same configuration" {
    for file in configs/runs/*.yaml; do
        angel pretrain "$file" train.steps=321 model.layers=3 \
            train.global_batch='[{until_tokens: 1M, global_batch: 8}, {global_batch: 16}]' \
            data.train='[core/, {path: io/, weight: 0.5}]' --print-config
        code_is 0
        [ -z "$err" ]
        printf '%s\n' "$out" >"$BATS_TEST_TMPDIR/again.yaml"
        first=$out
        angel pretrain "$BATS_TEST_TMPDIR/again.yaml" --print-config
        code_is 0
        [ "$out" = "$first" ]
        has "$out" 'steps: 321'
    done
}

@test "every preset loads" {
    for file in configs/models/*.yaml; do
        angel pretrain model="$file" data.train=core/ --print-config
        code_is 0
    done
}

@test "--set KEY=VALUE is a bare KEY=VALUE" {
    angel pretrain "${tiny[@]}" train.seed=7 --print-config
    first=$out
    angel pretrain "${tiny[@]}" --set train.seed=7 --print-config
    code_is 0
    [ "$out" = "$first" ]
    angel pretrain "${tiny[@]}" --set
    refuses 2 --set
    angel pretrain "${tiny[@]}" --set train.seed
    refuses 2 train.seed
}

@test "no escape sequences when it is no terminal" {
    for env in NO_COLOR=1 TERM=xterm-256color; do
        env "$env" "$ANGEL" pretrain "${tiny[@]}" --dry-run \
            >"$BATS_TEST_TMPDIR/all" 2>&1 </dev/null
        ! grep -q $'[\033\r]' "$BATS_TEST_TMPDIR/all"
    done
}

@test "a full disk under stdout: exit 74" {
    [ -e /dev/full ] || skip 'no /dev/full'
    code=0
    "$ANGEL" --help >/dev/full 2>"$BATS_TEST_TMPDIR/err" || code=$?
    err=$(cat "$BATS_TEST_TMPDIR/err")
    code_is 74
    has "$err" 'angel: '
}

@test "the binary needs the C library alone" {
    case $ANGEL in */asan/* | */tsan/*) skip 'a sanitizer is linked' ;; esac
    ! ldd "$ANGEL" | grep -v -e linux-vdso -e 'libc\.so' -e 'libm\.so' -e ld-linux \
        -e libpthread -e libdl -e librt
}
