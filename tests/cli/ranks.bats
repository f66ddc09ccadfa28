#!/usr/bin/env bats
# Runs of several ranks from the command line: threads, and processes under mpirun, where it
# is installed.

load common

setup() {
    dir=$BATS_TEST_TMPDIR
    cp -r core/log.h core/log.c core/pool.h core/pool.c core/str.c core/opt.c "$dir"
    mkdir "$dir/text"
    mv "$dir"/*.[ch] "$dir/text"
    small=(pretrain 'model={vocab: 257, layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 48}'
        data.train="$dir/text" data.seq_len=32 data.valid_fraction=0.1
        train.global_batch=8 train.micro_batch=1 train.steps=8 train.eval_every=4
        train.eval_batches=1 train.threads=1 train.schedule.warmup=2
        train.optimizer.lr=3e-3 checkpoint.every=4 log.every=1)
}

# mpirun as root and with more ranks than processors.
mpi() { # ranks, arguments of angel
    local n=$1
    shift
    code=0
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 \
        mpirun --oversubscribe -np "$n" "$ANGEL" "$@" \
        >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" </dev/null || code=$?
    out=$(cat "$BATS_TEST_TMPDIR/out")
    err=$(cat "$BATS_TEST_TMPDIR/err")
}

need_mpi() {
    command -v mpirun >/dev/null || skip 'no mpirun on this machine'
}

digest() { # folder of checkpoints, step
    jq -r .tensor_digest "$1/step-$(printf %012d "$2")/manifest.json"
}

losses() { # folder
    jq -r 'select(.kind == "train" or .kind == "eval") | "\(.step) \(.loss) \(.grad_norm)"' \
        "$1/metrics.jsonl"
}

@test "ranks as threads: one log, one summary, the bits of one rank for a pipeline" {
    angel "${small[@]}" checkpoint.dir="$dir/one"
    code_is 0
    angel "${small[@]}" checkpoint.dir="$dir/pp" --threads-ranks 4 parallel.pp=4
    code_is 0
    has "$err" 'layout      4 ranks: tp 1 x pp 4 x dp 1, 1f1b, layers '
    [ "$(grep -c '^step 8/8  loss' <<<"$err")" = 1 ]
    [ "$(grep -c '^done ' <<<"$out")" = 1 ]
    [ "$(digest "$dir/pp" 8)" = "$(digest "$dir/one" 8)" ]
    [ "$(losses "$dir/pp")" = "$(losses "$dir/one")" ]
    [ "$(jq -s 'map(select(.kind == "summary")) | length' "$dir/pp/metrics.jsonl")" = 1 ]
    angel ckpt verify --deep "$dir/pp"
    code_is 0
    angel ckpt diff "$dir/pp" "$dir/one"
    code_is 0
}

@test "a dry run tells of layout, groups and every rank's bytes, and writes nothing" {
    angel "${small[@]}" checkpoint.dir="$dir/dry" --dry-run --json \
        parallel.tp=2 parallel.pp=2 parallel.dp=2
    code_is 0
    jq -e '.ranks == 8 and .layout.tp == 2 and .layout.zero == 1 and
           (.layout.groups | map("\(.kind) \(.groups)x\(.ranks)") ==
               ["tensor 4x2", "data 4x2", "pipeline 4x2"]) and
           (.memory_of_ranks | length == 8 and all(.param > 0 and .arena_bytes > 0)) and
           (.layout.layers_per_stage | add == 4)' <<<"$out"
    angel "${small[@]}" checkpoint.dir="$dir/dry" --dry-run --threads-ranks 2
    code_is 0
    has "$out" 'layout      2 ranks: tp 1 x pp 1 x dp 2, zero 1'
    has "$out" 'groups      1 data groups of 2'
    has "$out" 'with the most bytes'
    [ ! -e "$dir/dry" ]
    # A whole model of ZeRO 3 holds less on each rank than one of ZeRO 1.
    for zero in 1 2 3; do
        angel "${small[@]}" model=configs/models/llama-60m.yaml --dry-run --json \
            train.micro_batch=2 parallel.dp=4 parallel.zero=$zero \
            parallel.zero_accumulate="$([ $zero = 1 ] && echo local || echo sharded)"
        code_is 0
        jq '.memory_of_ranks | map(.arena_bytes) | max' <<<"$out"
    done >"$dir/bytes"
    [ "$(sort -rn "$dir/bytes")" = "$(cat "$dir/bytes")" ]
}

@test "layouts that cannot be are refused before anything is written" {
    angel "${small[@]}" checkpoint.dir="$dir/bad" parallel.tp=2
    refuses 2 'a layout of 2 ranks (parallel): got the one rank of this process'
    has "$err" '--threads-ranks 2 makes them threads'
    angel "${small[@]}" checkpoint.dir="$dir/bad" parallel.tp=3 --threads-ranks 3
    refuses 2 'attention cannot be split (parallel.tp): got 3 ranks'
    has "$err" 'nearest that work: parallel.tp=2 or 4'
    angel "${small[@]}" checkpoint.dir="$dir/bad" parallel.pp=8 --threads-ranks 8
    refuses 2 'wanted at least one layer for each of the pp x vpp stages'
    angel "${small[@]}" checkpoint.dir="$dir/bad" parallel.dp=3 --threads-ranks 3
    refuses 2 'wanted dp x micro_batch to divide global_batch'
    angel "${small[@]}" checkpoint.dir="$dir/bad" --threads-ranks 0
    refuses 2 "--threads-ranks (command line): got '0', wanted 1 to 256"
    angel "${small[@]}" checkpoint.dir="$dir/bad" --threads-ranks two
    refuses 2 "got 'two'"
    angel "${small[@]}" checkpoint.dir="$dir/bad" memory.device=100KiB --threads-ranks 2
    refuses 71 'does not fit'
    [ ! -e "$dir/bad" ]
}

@test "mpirun: processes give the bits of threads, also when resumed under the other" {
    need_mpi
    for layout in "2 parallel.tp=2" "4 parallel.pp=2 parallel.zero=3" \
        "4 parallel.tp=2 parallel.pp=2 parallel.schedule=zb"; do
        read -ra words <<<"$layout"
        rm -rf "$dir"/threads "$dir"/mpi "$dir"/half
        angel "${small[@]}" checkpoint.dir="$dir/threads" --threads-ranks "${words[@]}"
        code_is 0
        mpi "${words[0]}" "${small[@]}" checkpoint.dir="$dir/mpi" "${words[@]:1}"
        code_is 0
        [ "$(grep -c '^step 8/8  loss' <<<"$err")" = 1 ]
        [ "$(grep -c '^done ' <<<"$out")" = 1 ]
        [ "$(digest "$dir/mpi" 8)" = "$(digest "$dir/threads" 8)" ]
        [ "$(losses "$dir/mpi")" = "$(losses "$dir/threads")" ]
        mpi "${words[0]}" "${small[@]}" checkpoint.dir="$dir/half" "${words[@]:1}" \
            checkpoint.resume="$dir/threads/step-000000000004"
        code_is 0
        [ "$(digest "$dir/half" 8)" = "$(digest "$dir/threads" 8)" ]
    done
    # without degrees: data parallelism over all
    mpi 2 "${small[@]}" checkpoint.dir="$dir/auto"
    code_is 0
    has "$err" 'layout      2 ranks: tp 1 x pp 1 x dp 2, zero 1'
}

@test "mpirun: one error of all ranks is one line" {
    need_mpi
    mpi 2 "${small[@]}" checkpoint.dir="$dir/bad" parallel.tp=3
    code_is 2
    [ "$(grep -c '^angel: ' <<<"$err")" = 1 ]
    has "$err" 'wanted a divisor of 2'
    mpi 2 "${small[@]}" checkpoint.dir="$dir/bad" train.stepz=3
    code_is 2
    [ "$(grep -c '^angel: ' <<<"$err")" = 1 ]
    has "$err" 'did you mean'
    mpi 2 "${small[@]}" checkpoint.dir="$dir/bad" --threads-ranks 2
    [ "$code" != 0 ]
    has "$err" 'leave out --threads-ranks, or the launcher'
    [ ! -e "$dir/bad" ]
}

@test "mpirun: ranks with other configurations are found before the first step" {
    need_mpi
    cat >"$dir/differ" <<'END'
#!/bin/sh
exec "$ANGEL" "$@" train.seed=$((7 + OMPI_COMM_WORLD_RANK / 2))
END
    chmod +x "$dir/differ"
    code=0
    export ANGEL
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 \
        mpirun --oversubscribe -np 3 "$dir/differ" "${small[@]}" \
        checkpoint.dir="$dir/run" >"$dir/out" 2>"$dir/err" || code=$?
    err=$(cat "$dir/err")
    out=
    code_is 2
    has "$err" 'the ranks differ (train.seed): got another one on rank 2 than on rank 0'
    [ ! -e "$dir/run" ]
}

@test "mpirun: a killed rank ends the job; the others say what they waited for" {
    need_mpi
    cat >"$dir/die" <<'END'
#!/bin/sh
# Rank 1 ends itself some seconds after it began.
[ "$OMPI_COMM_WORLD_RANK" = 1 ] && { sleep 3; kill -9 $$; } &
exec "$ANGEL" "$@"
END
    chmod +x "$dir/die"
    code=0
    export ANGEL
    start=$SECONDS
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 \
        mpirun --oversubscribe -np 3 "$dir/die" "${small[@]}" parallel.pp=3 \
        checkpoint.dir="$dir/run" train.steps=1000000 train.eval_every=0 \
        log.every=1000000 >"$dir/out" 2>"$dir/err" || code=$?
    err=$(cat "$dir/err")
    out=
    [ "$code" != 0 ]
    [ $((SECONDS - start)) -lt 15 ]
    for rank in 0 2; do
        grep "^angel: rank $rank: .*rank 1 died" <<<"$err" || fail "rank $rank said nothing"
    done
    # and the run goes on
    step=$(ls "$dir/run" | sed -n 's/^step-0*//p' | sort -n | tail -1)
    [ "$step" -ge 4 ]
    mpi 3 "${small[@]}" parallel.pp=3 checkpoint.dir="$dir/run" \
        train.steps=$((step + 2)) train.eval_every=0 --allow-change train.steps
    code_is 0
    has "$err" 'resumed '
}

@test "mpirun: a signal to one rank stops all, after the same step" {
    need_mpi
    cat >"$dir/stop" <<'END'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" = 1 ] && { sleep 2; kill -TERM $$; } &
exec "$ANGEL" "$@"
END
    chmod +x "$dir/stop"
    code=0
    export ANGEL
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 120 \
        mpirun --oversubscribe -np 2 "$dir/stop" "${small[@]}" parallel.tp=2 \
        checkpoint.dir="$dir/run" train.steps=1000000 train.eval_every=0 \
        checkpoint.every=0 log.every=1000000 >"$dir/out" 2>"$dir/err" || code=$?
    err=$(cat "$dir/err")
    out=
    code_is 75
    [ "$(grep -c '^angel: stopped by Terminated after step' <<<"$err")" = 1 ]
    [ "$(ls "$dir/run" | grep -c '^step-')" = 1 ]
}
