#!/bin/bash
# Ranks as threads against ranks as processes under mpirun: the same layouts, trained both
# ways, must give the same losses, norms and checkpoints, bit for bit; and a run of them
# goes on from a checkpoint, and ends when a rank is killed or stopped.
#
#   check-mpi.sh ANGEL [quick]
set -euo pipefail
name=check-mpi
angel=$(realpath "$1")
quick=${2:-}
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tool/ranks-lib.bash
. tests/tool/ranks-lib.bash

mpirun=$(command -v mpirun) || skip "there is no mpirun (apt-get install openmpi-bin)"
command -v jq >/dev/null || skip "there is no jq (apt-get install jq)"

dir=$(mktemp -d)
# Open MPI's shared memory in a folder of ours: what killed ranks leave is seen, and goes.
shm=$(mktemp -d -p /dev/shm angel-check-$$-XXXXXX 2>/dev/null || mktemp -d)
clean() {
    kill_all "$dir"
    rm -rf "$dir" "$shm"
}
trap clean EXIT
as_root=()
[ "$(id -u)" != 0 ] || as_root=(--allow-run-as-root)

launch() { # RANKS ARGUMENTS...
    TMPDIR=$dir timeout -k 5 "${TIMEOUT_S:-120}" "$mpirun" "${as_root[@]}" --oversubscribe \
        --mca btl_vader_backing_directory "$shm" -np "$1" \
        "$angel" pretrain "${@:2}" </dev/null
}

threads() { # RANKS ARGUMENTS...
    timeout -k 5 "${TIMEOUT_S:-120}" "$angel" pretrain --threads-ranks "$@" </dev/null
}

# Five steps; what is said is shown where it fails.
train() { # threads|launch FOLDER RANKS KEYS...
    rm -rf "$2"
    "$1" "$3" "${five[@]}" checkpoint.dir="$2" "${@:4}" >"$dir/log" 2>&1 ||
        { cat "$dir/log" && return 1; }
}

# ---- layouts ----

# ranks, precision, layout; the first two are the quick ones
layouts=(
    "2 fp32 parallel.tp=2"
    "4 bf16 parallel.pp=2 parallel.dp=2 parallel.zero=1"
    "2 fp32 parallel.dp=2 parallel.zero=0"
    "2 bf16 parallel.tp=2"
    "2 fp32 parallel.pp=2 parallel.schedule=zb"
    "2 bf16 parallel.pp=2 parallel.vpp=2 parallel.schedule=interleaved"
    "3 fp32 parallel.pp=3 parallel.layers_per_stage=1,2,1"
    "4 fp32 parallel.tp=2 parallel.dp=2 parallel.reductions=fast"
    "4 fp32 parallel.dp=4 parallel.zero=2"
    "2 bf16 parallel.dp=2 parallel.zero=3"
    "2 fp32 parallel.dp=2 parallel.zero=3 parallel.zero_accumulate=sharded"
    "8 fp32 parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=1 parallel.schedule=zb"
    "8 bf16 parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=3"
)
[ -z "$quick" ] || layouts=("${layouts[@]:0:2}")

seconds_since() { # BEGIN
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
}

printf '%-7s %-5s %-9s %7s %7s  %-22s %s\n' ranks type 'last loss' threads mpirun \
    'losses, norms, states' layout
for layout in "${layouts[@]}"; do
    read -r n precision keys <<<"$layout"
    read -ra words <<<"$keys train.precision=$precision"
    begin=$EPOCHREALTIME
    ran=ok
    train threads "$dir/threads" "$n" "${words[@]}" || ran=
    by_threads=$(seconds_since "$begin")
    begin=$EPOCHREALTIME
    train launch "$dir/mpi" "$n" "${words[@]}" || ran=
    by_mpi=$(seconds_since "$begin")
    compare "$dir/threads" "$dir/mpi"
    loss=$(figures "$dir/mpi" 4 | jq '.[1] * 1e5 | round / 1e5')
    printf '%-7s %-5s %-9s %5s s %5s s  %-22s %s\n' "$n" "$precision" "$loss" \
        "$by_threads" "$by_mpi" "${difference:-equal}" "$keys"
    count "$n ranks, $precision, $keys" "$(holds [ "$ran:$difference" = ok: ])"
done

# ---- resume ----

# From step 3 of a run of one layout under another. The layouts that share a data and a
# tensor degree go on with the same bits, the others with nearly the same losses: which
# they have only when each step reads the samples that it would have read.
resumes=(
    "2 parallel.dp=2;2 parallel.dp=2;equal"
    "2 parallel.dp=2;2 parallel.pp=2;near"
    "2 parallel.dp=2;2 parallel.dp=2 parallel.zero=3;equal"
    "4 parallel.dp=2 parallel.pp=2;2 parallel.dp=2;equal"
    "2 parallel.dp=2;4 parallel.dp=4;near"
    "4 parallel.dp=2 parallel.tp=2;4 parallel.pp=4;near"
)
[ -z "$quick" ] || resumes=("${resumes[@]:0:2}")

for case in "${resumes[@]}"; do
    IFS=';' read -r from to want <<<"$case"
    read -ra first <<<"$from"
    read -ra second <<<"$to"
    ran=ok
    train launch "$dir/whole" "${first[@]}" || ran=
    train launch "$dir/part" "${second[@]}" \
        checkpoint.resume="$dir/whole/step-000000000003" || ran=
    compare "$dir/whole" "$dir/part" 3
    distance=$(loss_distance "$dir/part" "$dir/whole" 3)
    if [ "$want" = equal ]; then
        status=$(holds [ "$ran:$difference" = ok: ])
    else
        status=$(awk -v ran="$ran" -v d="$distance" 'BEGIN { print !(ran && d <= 1e-5) }')
    fi
    check "resumed at step 3: $from -> $to: ${difference:- equal} (loss $distance)" \
        "$status"
done

# ---- the comparison can fail ----

train threads "$dir/threads" 2 parallel.tp=2
train threads "$dir/other" 2 parallel.tp=2 train.seed=99
compare "$dir/threads" "$dir/other"
check "another seed differs in:$difference" \
    "$(holds [ "$difference" = ' losses checkpoints' ])"
distance=$(loss_distance "$dir/threads" "$dir/other" 3)
check "and is not near: loss $distance" "$(awk -v d="$distance" 'BEGIN { print !(d > 1e-4) }')"
train threads "$dir/other" 2 parallel.tp=2 data.shuffle=false \
    --allow-change data.shuffle checkpoint.resume="$dir/threads/step-000000000003"
distance=$(loss_distance "$dir/other" "$dir/threads" 3)
check "resumed with other samples is not near: loss $distance" \
    "$(awk -v d="$distance" 'BEGIN { print !(d > 1e-4) }')"
: >"$dir/other/metrics.jsonl"
compare "$dir/other" "$dir/other"
check "runs without metrics are not equal:$difference" \
    "$(holds [ "$difference" = ' no-metrics' ])"

# ---- ranks killed and stopped ----

trouble "rank 1 of 3 killed" 3 1 kill_it 'angel: rank [02]: .*rank 1 died' parallel.pp=3
trouble "rank 1 of 2 stopped, deadline 2 s" 2 1 stop_it \
    'angel: rank 0: .*rank 1 did not arrive within 2 s' parallel.tp=2 \
    parallel.deadline_s=2
if [ -z "$quick" ]; then
    trouble "rank 0 of 2 killed" 2 0 kill_it 'angel: rank 1: .*rank 0 died' parallel.dp=2
    trouble "rank 0 of 4 stopped, deadline 2 s" 4 0 stop_it \
        'angel: rank [123]: .*rank 0 did not arrive within 2 s' parallel.dp=2 \
        parallel.pp=2 parallel.zero=3 parallel.deadline_s=2
fi
left=$(find "$shm" -type f | wc -l)
check "segments of shared memory left behind: $left" "$(holds [ "$left" = 0 ])"

finish
