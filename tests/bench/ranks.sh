#!/bin/bash
# Two ranks of one thread against one rank of two threads, the same global batch, on
# llama-60m: tokens a second as ratios of runs that take turns.
#
#   tests/bench/ranks.sh [ANGEL [ROUNDS [STEPS]]]
set -euo pipefail
angel=${1:-./angel}
rounds=${2:-3}
steps=${3:-4}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

common=(model=configs/models/llama-60m.yaml data.train=core/ data.seq_len=256
    train.global_batch=8 train.micro_batch=1 train.steps="$steps" train.seed=7
    checkpoint.resume=never log.every=1)
names=(one dp tp pp zb)
declare -A layout=(
    [one]="train.threads=2"
    [dp]="--threads-ranks 2 train.threads=1 parallel.dp=2"
    [tp]="--threads-ranks 2 train.threads=1 parallel.tp=2"
    [pp]="--threads-ranks 2 train.threads=1 parallel.pp=2"
    [zb]="--threads-ranks 2 train.threads=1 parallel.pp=2 parallel.schedule=zb"
)

# Seconds of each step but the first, one a line.
run() {
    rm -rf "$dir/run"
    # shellcheck disable=SC2086
    "$angel" pretrain "${common[@]}" ${layout[$1]} checkpoint.dir="$dir/run" --quiet
    jq -r 'select(.kind == "train" and .step > 1) | .step_s' "$dir/run/metrics.jsonl" \
        >> "$dir/$1"
}

median() {
    sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

for _ in $(seq "$rounds"); do
    for name in "${names[@]}"; do
        run "$name"
    done
done
one=$(median "$dir/one")
for name in "${names[@]}"; do
    printf '%-4s median step %7.3f s   %5.1f %% of one rank of two threads\n' "$name" \
        "$(median "$dir/$name")" \
        "$(awk -v a="$one" -v b="$(median "$dir/$name")" 'BEGIN { print 100 * a / b }')"
done
