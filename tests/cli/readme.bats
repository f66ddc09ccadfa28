#!/usr/bin/env bats
# What README.md says is so: its commands run, in its order, and its table of what works
# is true. A command that is marked with <!-- run --> runs as it stands, on a small model.

root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
ANGEL=${ANGEL:-$root/angel}
export ANGEL

need() { # command ...
    local c
    for c in "$@"; do
        command -v "$c" >/dev/null || skip "$c is not installed"
    done
}

# Writes the marked blocks into block-01, block-02, ...
extract_blocks() { # folder
    awk -v folder="$1" '
        /^<!-- run -->$/ { marked = 1; next }
        marked && /^```sh$/ { file = sprintf("%s/block-%02d", folder, ++n); marked = 0; next }
        /^```/ { if (file) close(file); file = ""; next }
        marked && NF { print "mark without a block, line " NR > "/dev/stderr"; exit 1 }
        file { print > file }' "$root/README.md"
}

# A folder that looks like the root of the sources, whose ./angel trains small models.
make_place() { # folder
    local name
    for name in configs core io memory kernels parallel cmd man; do
        ln -s "$root/$name" "$1/$name"
    done
    cat >"$1/angel" <<'END'
#!/bin/bash
small=(model.layers=2 model.hidden=64 model.ffn=64 data.seq_len=64)
case " $* " in
*' pretrain '*llama3-* | *' ckpt '* | *' help '*) small=() ;;
esac
exec "$ANGEL" "$@" "${small[@]}"
END
    chmod +x "$1/angel"
}

@test "the commands of README.md run" {
    need jq zstd
    local place=$BATS_TEST_TMPDIR/place block
    mkdir -p "$place" "$BATS_TEST_TMPDIR/blocks"
    extract_blocks "$BATS_TEST_TMPDIR/blocks"
    make_place "$place"
    cd "$place"
    for block in "$BATS_TEST_TMPDIR"/blocks/block-*; do
        echo "--- $(basename "$block")"
        cat "$block"
        bash -euo pipefail "$block" >"$block.out" 2>&1 || {
            echo "exit status $?, output:"
            tail -20 "$block.out"
            return 1
        }
    done
    [ "$(ls "$BATS_TEST_TMPDIR"/blocks/*.out | wc -l)" -ge 12 ]

    # What the text says that they print.
    cd "$BATS_TEST_TMPDIR/blocks"
    grep -q '^step 150/150 ' block-01.out
    grep -q '^nothing to do: step 150 of 150 is done$' block-02.out
    [ "$(grep -c '^\[[0-9]*,[0-9.]*\]$' block-03.out)" = 3 ]
    grep -q 'every chunk decodes to its hash' block-04.out
    grep -q '8030261248 parameters' block-05.out
    grep -q '= attention .*{forward, layer 0}' block-06.out
    grep -q '^step 100/100 ' block-07.out
    grep -q '^resumed     step 100 of 150 ' block-09.out
}

@test "the loss of the tour falls" {
    need jq
    make_place "$BATS_TEST_TMPDIR"
    cd "$BATS_TEST_TMPDIR"
    ./angel pretrain configs/runs/tiny-text.yaml data.train=core train.steps=60 \
        train.global_batch=8 train.schedule.warmup=5 log.every=1 --quiet
    run jq -s 'map(select(.kind == "train").loss) | .[0] - .[-1] > 0.5' \
        runs/tiny-text/metrics.jsonl
    [ "$output" = true ]
}

@test "what README.md calls not yet answers with exit status 69" {
    local words
    while read -r words; do
        # shellcheck disable=SC2086
        run "$ANGEL" $words
        echo "angel $words: $status: $output"
        [ "$status" = 69 ]
        [[ $output == angel:* ]]
    done <<END
finetune run.yaml
plan run.yaml
bench all
pretrain data.tokenizer=tokenizer.json
pretrain model=$root/configs
pretrain parallel.cp=2
pretrain parallel.ep=2
pretrain parallel.grad_comm=int8
pretrain device=cuda
pretrain model.moe.experts=8
END
}

@test "README.md names make targets, files and pages that are there" {
    local name
    for name in $(grep -o '`make [a-z-]*`\|^    make [a-z]*' "$root/README.md" |
        sed 's/.*make \([a-z-]*\).*/\1/'); do
        grep -q "^$name:" "$root/Makefile" || { echo "make $name?"; return 1; }
    done
    for name in $(grep -o 'configs/[a-z]*/[a-z0-9.-]*\.yaml\|man/[a-z-]*\.[1-9]' \
        "$root/README.md"); do
        [ -f "$root/$name" ] || { echo "$name?"; return 1; }
    done
    for name in $(grep -o '`man angel[a-z-]*`' "$root/README.md" | tr -d '`' |
        cut -d' ' -f2); do
        ls "$root/man/$name".[1-9]
    done
}
