#!/bin/bash
# Trains a small Llama on this repository's own text, in two parts: the second goes on
# from the checkpoint of the first. About a minute on two cores.
#
#   demo.sh ANGEL      (DEMO_DIR: where it writes, build/demo; DEMO_STEPS: 200 300)
set -eu
angel=$1
dir=${DEMO_DIR:-build/demo}
read -r first all <<<"${DEMO_STEPS:-200 300}"
run=(pretrain configs/runs/demo.yaml "checkpoint.dir=$dir" "log.jsonl=$dir/metrics.jsonl")

say() {
    printf '\n-- %s\n' "$*"
}

show() { # runs a command that a user could give
    printf '$ %s\n' "$*"
    "$@"
}

case $dir in
build/demo | /tmp/*) rm -rf "$dir" ;;
esac

say "first part: $first updates, from random weights"
show "$angel" "${run[@]}" "train.steps=$first"

say "the same again, longer: it goes on from the checkpoint at $first"
show "$angel" "${run[@]}" "train.steps=$all" --allow-change train.steps

say 'the checkpoint: every byte checked, and what it holds'
show "$angel" ckpt verify "$dir"
show "$angel" ckpt inspect "$dir"

say "the loss, as $dir/metrics.jsonl has it"
jq -r 'select(.kind == "train" or .kind == "eval") |
       "\(.attempt) \(.kind) \(.step) \(.loss)"' "$dir/metrics.jsonl" |
    awk '$4 + 0 > 0 {
             bar = ""
             for (i = 0; i < $4 * 8; i++)
                 bar = bar "#"
             printf "%-5s step %4d  part %d  %.3f %s\n", $2, $3, $1, $4, bar
         }'
jq -es '[.[] | select(.kind == "train") | .loss] | length > 1 and first > last' \
    "$dir/metrics.jsonl" >/dev/null || {
    echo 'demo: the loss did not fall' >&2
    exit 1
}

cat <<END

The loss fell, and the run went on where it had stopped. Next:
  $angel pretrain configs/runs/tiny-text.yaml data.train=FOLDER   your own text
  $angel pretrain model=configs/models/llama3-405b.yaml data.train=core/ --dry-run
  $angel help options                                            every key of a run
  man man/angel-pretrain.1                                        the manual
END
