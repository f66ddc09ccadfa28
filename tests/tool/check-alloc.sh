#!/bin/bash
# Lets allocations fail, one at a time and all from one on, and looks at how the program
# and the unit tests of the library end: with a message and exit status 71, or another
# status that tells no lie; never in a crash, a hang, or with a checkpoint that is not
# valid. What a run leaves is gone on with, without failures, to the same bits.
#
#   check-alloc.sh BUILD_FOLDER [every]     (build/release)
#
# With `every`, each allocation of the program fails in turn, and more of the tests'.
# JOBS: how many at once (all processors).
set -u
build=$1
preload=$PWD/$build/fail_alloc.so
angel=$PWD/$build/angel
tests='json yaml opt config cmd_args codec shard text_source data reader metrics
    tensorboard prometheus report file model order pack ckpt'

# The command line of a small run into a folder, in `run`.
pretrain_into() {
    run=("$angel" pretrain model.vocab=257 model.layers=1 model.hidden=16 model.heads=2
        model.kv_heads=1 model.ffn=24 "data.train=$scratch/text.jsonl.zst"
        data.seq_len=16 data.valid_fraction=0.1 train.global_batch=4
        train.micro_batch=2 train.schedule.warmup=2 train.threads=2 train.steps=2
        train.eval_every=1 train.eval_batches=1 "checkpoint.dir=$1"
        checkpoint.every=1 log.every=1 log.monitor_every=1
        "log.tensorboard=$1/tb" "log.prometheus=$1/prom")
}

# Runs a command with one failing allocation. in: FAIL_ALLOC, output file, command.
failing() {
    local at=$1 out=$2
    shift 2
    timeout -k 1 30 env FAIL_ALLOC="$at" LD_PRELOAD="$preload" "$@" \
        >"$out" 2>&1 </dev/null
}

fault() { # what, exit status, output
    echo "$1: exit status $2"
    tail -5 "$3" | sed 's/^/    /'
}

# Statuses that a failing allocation may have; all but 0 with a message. A reader that
# says damaged (65) or not found (66) where memory was short would be wrong.
ends_well() { # exit status, output
    case $1 in
    0) return 0 ;;
    69 | 71 | 73 | 74) grep -q '^angel: ' "$2" ;;
    *) return 1 ;;
    esac
}

# A folder that a failing run left: what is in it is whole, and the run goes on from it.
check_folder() { # FAIL_ALLOC, folder
    local code=0
    if ls -d "$2"/step-* >/dev/null 2>&1; then
        "$angel" ckpt verify "$2" >"$2/out" 2>&1 || fault "verify after $1" $? "$2/out"
    fi
    [ $((${1%+} % 3)) = 0 ] || return
    "${run[@]}" >"$2/out" 2>&1 </dev/null || fault "going on after $1" $? "$2/out"
    "$angel" ckpt diff "$2" "$scratch/whole" >"$2/out" 2>&1 ||
        fault "other bits after $1" $? "$2/out"
}

one_pretrain() { # FAIL_ALLOC
    local folder=$scratch/run-$1 code=0
    pretrain_into "$folder"
    mkdir -p "$folder"
    failing "$1" "$folder/out" "${run[@]}" || code=$?
    ends_well "$code" "$folder/out" || fault "pretrain, allocation $1" "$code" "$folder/out"
    check_folder "$1" "$folder"
    rm -rf "$folder"
}

one_command() { # FAIL_ALLOC, command line ...
    local at=$1 out code=0
    out=$(mktemp -p "$scratch")
    shift
    failing "$at" "$out" "$@" || code=$?
    ends_well "$code" "$out" || fault "${*:2:2}, allocation $at" "$code" "$out"
    rm -f "$out"
}

# A test may fail: it wants the status that there is without failures. cmocka reports a
# crash as an exception, and ends with 255 where its own memory is short.
one_test() { # FAIL_ALLOC, test
    local out code=0
    out=$(mktemp -p "$scratch")
    failing "$1" "$out" "$PWD/$build/tests/unit/t_$2" || code=$?
    if [ "$code" -ge 124 ] && [ "$code" != 255 ] ||
        grep -qE 'exception|a bug in angel \([^t]' "$out"; then
        fault "t_$2, allocation $1" "$code" "$out"
    fi
    rm -f "$out"
}

if [ -n "${ALLOC_SCRATCH:-}" ]; then # from xargs, below
    scratch=$ALLOC_SCRATCH
    shift
    "$@"
    exit 0
fi

base=${TMPDIR:-/tmp}
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || base=/dev/shm
scratch=$(mktemp -d -p "$base") || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/tmp"
export ALLOC_SCRATCH=$scratch TMPDIR=$scratch/tmp

allocations() { # command line ...: how many it makes
    env FAIL_ALLOC_COUNT="$scratch/count" LD_PRELOAD="$preload" "$@" >/dev/null 2>&1 \
        </dev/null
    cat "$scratch/count"
}

# Numbers 1..n: all, or k of them, the first ten and the rest spread out; every fourth
# with all allocations behind it failing too.
places() { # n, k
    awk -v n="$1" -v k="$2" 'BEGIN {
        if (k > n) k = n
        for (i = 1; i <= k; i++) {
            at = k == n || i <= 10 ? i : 10 + int((i - 10) * (n - 10) / (k - 10))
            print at (i % 4 ? "" : "+")
        }
    }'
}

for i in $(seq 200); do
    echo "{\"text\": \"line $i of some words, $((i * i)) and more of them\"}"
done | zstd -q >"$scratch/text.jsonl.zst" || exit 1
pretrain_into "$scratch/whole"
n_run=$(allocations "${run[@]}")
[ -d "$scratch/whole/step-000000000002" ] || { echo "check-alloc: no run"; exit 1; }
verify=("$angel" ckpt verify --deep "$scratch/whole")
report=("$angel" pretrain --report "$scratch/whole")
n_verify=$(allocations "${verify[@]}")
n_report=$(allocations "${report[@]}")

k_run=50 k_command=15 k_test=6
[ "${2:-}" != every ] || k_run=$n_run k_command=100000 k_test=150
{
    places "$n_run" "$k_run" | sed 's/^/one_pretrain /'
    places "$n_verify" "$k_command" | sed "s|.*|one_command & ${verify[*]}|"
    places "$n_report" "$k_command" | sed "s|.*|one_command & ${report[*]}|"
    for t in $tests; do
        places "$(allocations "$PWD/$build/tests/unit/t_$t")" "$k_test" |
            sed "s/.*/one_test & $t/"
    done
} >"$scratch/list"
xargs -P "${JOBS:-$(nproc)}" -L 1 "$0" "$build" <"$scratch/list" >"$scratch/faults" 2>&1

n=$(wc -l <"$scratch/list")
[ "$n" -gt 100 ] || { echo "check-alloc: counted no allocations"; exit 1; }
bad=$(grep -c ': exit status ' "$scratch/faults")
cat "$scratch/faults"
echo "check-alloc: $n failing allocations (a run makes $n_run), $bad ended badly"
[ ! -s "$scratch/faults" ]
