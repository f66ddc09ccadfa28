#!/usr/bin/env bats
# The files of configs/ can be read, and their comments are true.

root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
ANGEL=${ANGEL:-$root/angel}
cd "$root"

@test "every run of configs/runs resolves, and prints a configuration that resolves alike" {
    local run_file printed=$BATS_TEST_TMPDIR/printed.yaml
    for run_file in configs/runs/*.yaml; do
        echo "$run_file"
        "$ANGEL" pretrain "$run_file" --print-config >"$printed"
        "$ANGEL" pretrain "$printed" --print-config | diff "$printed" -
        "$ANGEL" pretrain "$run_file" --dry-run >/dev/null
    done
}

@test "every model of configs/models has the parameters that its first line says" {
    command -v jq >/dev/null || skip "jq is not installed"
    local model said got
    for model in configs/models/*.yaml; do
        said=$(sed -n '1s/.*: \([0-9,]*\) parameters\..*/\1/p' "$model" | tr -d ,)
        got=$("$ANGEL" pretrain model="$model" data.train=x data.seq_len=512 \
            --dry-run --json 2>/dev/null | jq .parameters)
        echo "$model: says $said, has $got"
        [ -n "$said" ] && [ "$said" = "$got" ]
    done
}
