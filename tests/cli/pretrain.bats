#!/usr/bin/env bats
# Training runs from end to end, of a model that trains in seconds.

load common

setup() {
    dir=$BATS_TEST_TMPDIR/run
    small=(pretrain 'model={vocab: 512, layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}'
        data.train=core/ data.seq_len=32 data.valid_fraction=0.02
        train.global_batch=4 train.schedule.warmup=2 train.schedule.decay_steps=1
        train.schedule.type=constant train.optimizer.lr=3e-3 train.eval_every=10
        train.eval_batches=2 train.threads=2
        checkpoint.every=10 checkpoint.dir="$dir" log.every=1)
}

# What a run computed, without times.
losses() { # file
    jq -r 'select(.kind == "train") | "\(.step) \(.tokens) \(.loss) \(.grad_norm) \(.lr)"' \
        "$1"
}

@test "a run trains, records, saves, and its loss falls" {
    angel "${small[@]}" train.steps=40
    code_is 0
    has "$err" 'step 40/40'
    metrics=$dir/metrics.jsonl
    # line by line: each is a document of its own
    n=0
    while read -r line; do
        jq -e '(.kind | IN("train", "eval", "ckpt", "event", "summary")) and
               (.step | type == "number") and (.tokens | type == "number") and
               (.elapsed_s >= 0) and (.attempt == 1)' <<<"$line" >/dev/null ||
            fail "bad line $line"
        n=$((n + 1))
    done <"$metrics"
    [ "$n" -ge 45 ]
    jq -es '[.[] | select(.kind == "train")] | length == 40 and
            all(has("loss") and has("grad_norm") and has("lr") and has("step_s") and
                has("tokens_per_s") and has("mfu")) and
            (first.loss > last.loss + 0.5) and (map(.step) == [range(1; 41)]) and
            (last.tokens > 40 * 100 and last.tokens <= 40 * 128)' "$metrics"
    tail -n 1 "$metrics" | jq -e '.kind == "summary" and .step == 40'
    jq -es 'any(.kind == "eval") and any(.kind == "ckpt")' "$metrics"
    angel ckpt verify "$dir"
    code_is 0
    angel ckpt inspect "$dir" --json
    code_is 0
    jq -e . <<<"$out" >/dev/null
}

@test "a finished run given again trains nothing more" {
    angel "${small[@]}" train.steps=10
    code_is 0
    angel "${small[@]}" train.steps=10
    code_is 0
    [ "$(jq -s '[.[] | select(.kind == "train")] | length' "$dir/metrics.jsonl")" = 10 ]
}

@test "a run in two parts is the run in one, bit for bit" {
    angel "${small[@]}" train.steps=20 checkpoint.dir="$BATS_TEST_TMPDIR/one"
    code_is 0
    angel "${small[@]}" train.steps=10
    code_is 0
    angel "${small[@]}" train.steps=20 --allow-change train.steps
    code_is 0
    diff <(losses "$BATS_TEST_TMPDIR/one/metrics.jsonl") <(losses "$dir/metrics.jsonl")
    jq -es 'map(.attempt) | unique == [1, 2]' "$dir/metrics.jsonl"
    angel ckpt diff "$BATS_TEST_TMPDIR/one" "$dir"
    code_is 0
}

@test "auto keeps its micro-batch when the memory changes: the same bits, or refused" {
    angel "${small[@]}" train.steps=20 checkpoint.dir="$BATS_TEST_TMPDIR/one"
    angel "${small[@]}" train.steps=20
    rm -r "$dir/step-000000000020"
    # a new run would take smaller micro-batches here, and so add in another order
    angel "${small[@]}" train.steps=20 memory.device=1200KiB \
        checkpoint.dir="$BATS_TEST_TMPDIR/anew" --dry-run
    has "$out" 'in 2 micro-batches of 2'
    angel "${small[@]}" train.steps=20 memory.device=1200KiB
    code_is 71
    # recompute changes no bits
    angel "${small[@]}" train.steps=20 memory.device=1400KiB
    code_is 0
    has "$err" 'activations: recompute'
    angel ckpt diff "$BATS_TEST_TMPDIR/one" "$dir"
    code_is 0
}

@test "a finished run, given again, ends its metrics with a summary" {
    angel "${small[@]}" train.steps=10
    angel "${small[@]}" train.steps=10 --json
    code_is 0
    jq -e '.step == 10 and .loss == null' <<<"$out"
    tail -n 1 "$dir/metrics.jsonl" | jq -e '.kind == "summary" and .attempt == 2'
}

@test "other weights differ: ckpt diff exits 1" {
    angel "${small[@]}" train.steps=10
    angel "${small[@]}" train.steps=10 train.seed=2 \
        checkpoint.dir="$BATS_TEST_TMPDIR/other"
    code_is 0
    angel ckpt diff "$dir" "$BATS_TEST_TMPDIR/other"
    code_is 1
}

@test "changed mathematics are refused on resuming, by name" {
    angel "${small[@]}" train.steps=10
    angel "${small[@]}" train.steps=10 train.optimizer.lr=1e-3
    code_is 2
    [ -z "$out" ] || fail 'wanted an empty stdout'
    # all that differs is listed before the error
    grep -q '^changed since the checkpoint: train.optimizer.lr from 0.003 to 0.001$' \
        <<<"$err" || fail 'wanted the list of changes'
    grep -q '^angel: train.optimizer.lr ' <<<"$err" || fail "wanted 'angel: ...'"
    has "$err" '--allow-change train.optimizer.lr'
}

@test "a damaged newest checkpoint: verify exits 65, the run goes on from the one before" {
    angel "${small[@]}" train.steps=20
    code_is 0
    shard=$(find "$dir/step-000000000020" -type f -size +4k | sort | head -n 1)
    [ -n "$shard" ]
    printf 'damage' | dd of="$shard" bs=1 seek=2000 conv=notrunc status=none
    angel ckpt verify "$dir/step-000000000020"
    code_is 65
    angel "${small[@]}" train.steps=20
    code_is 0
    has "$err" 'step-000000000020'
    [ "$(jq -s '[.[] | select(.kind == "train" and .attempt == 2)] | first.step' \
        "$dir/metrics.jsonl")" = 11 ]
}

@test "verify of a directory does not pass over a newest checkpoint that is cut short" {
    angel "${small[@]}" train.steps=20
    angel ckpt verify "$dir"
    code_is 0
    shard=$(find "$dir/step-000000000020" -name 'model-*' | head -n 1)
    truncate -s 0 "$shard"
    angel ckpt verify "$dir"
    code_is 65
    has "$err" 'step-000000000020'
    angel ckpt inspect "$dir" # shows what a run would go on from
    code_is 0
    has "$out" 'step-000000000010'
}

@test "SIGTERM stops after the step with exit 75, and the run goes on from there" {
    "$ANGEL" "${small[@]}" train.steps=100000 >"$BATS_TEST_TMPDIR/out" \
        2>"$BATS_TEST_TMPDIR/err" </dev/null 3>&- &
    pid=$!
    for _ in $(seq 300); do
        grep -q '^step ' "$BATS_TEST_TMPDIR/err" && break
        sleep 0.1
    done
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    err=$(cat "$BATS_TEST_TMPDIR/err")
    code_is 75
    stopped=$(jq -s 'map(.step) | max' "$dir/metrics.jsonl")
    angel ckpt verify "$dir"
    code_is 0
    angel "${small[@]}" train.steps=$((stopped + 2)) --allow-change train.steps
    code_is 0
    [ "$(jq -s '[.[] | select(.kind == "train" and .attempt == 2)] | first.step' \
        "$dir/metrics.jsonl")" = $((stopped + 1)) ]
}

@test "--dry-run prints parameters and memory and writes nothing" {
    angel "${small[@]}" train.steps=40 --dry-run
    code_is 0
    has "$out$err" parameters
    [ ! -e "$dir" ]
    angel "${small[@]}" train.steps=40 --dry-run --json
    code_is 0
    jq -e . <<<"$out" >/dev/null
    [ ! -e "$dir" ]
}

@test "--dry-run of 405 billion parameters takes a moment: less than three seconds" {
    case $ANGEL in */asan/* | */tsan/*) skip 'a sanitizer is slower' ;; esac
    begin=$EPOCHREALTIME
    angel pretrain model=configs/models/llama3-405b.yaml data.train=core/ --dry-run
    end=$EPOCHREALTIME
    has "$out$err" 405853388800
    echo "took $begin .. $end"
    # processor time would be fairer on a busy machine; this leaves room for one
    awk -v a="$begin" -v b="$end" 'BEGIN { exit !(b - a < 3) }'
}

@test "--dump-program prints text, and JSON with --json" {
    angel "${small[@]}" --dump-program
    code_is 0
    has "$out" 'program '
    has "$out" 'segment '
    has "$out" ' = linear '
    has "$out" 'schedule'
    first=$out
    angel "${small[@]}" --dump-program
    [ "$out" = "$first" ]
    angel "${small[@]}" --dump-program --json
    code_is 0
    jq -e '(.ops | length > 50) and (.values | length > 50) and has("calls")' <<<"$out"
    [ ! -e "$dir" ]
}

@test "--quiet leaves warnings and errors only" {
    angel "${small[@]}" train.steps=2 --quiet
    code_is 0
    [ -z "$err" ] || fail 'wanted an empty stderr'
}

@test "a folder that cannot be made: exit 73" {
    : >"$BATS_TEST_TMPDIR/file"
    angel "${small[@]}" train.steps=2 checkpoint.dir="$BATS_TEST_TMPDIR/file/run"
    code_is 73
    has "$err" 'angel: '
}

@test "a model that does not fit: exit 71 before launch" {
    angel "${small[@]}" train.steps=2 memory.device=64KiB
    code_is 71
    has "$err" 'angel: '
    [ ! -e "$dir/step-000000000002" ]
}
