#!/bin/bash
# Ranks as threads against ranks as processes under mpirun: the same layouts, trained both
# ways, must give the same losses, norms and checkpoints, bit for bit.
#
#   check-mpi.sh ANGEL [quick]
set -euo pipefail
angel=$(realpath "$1")
quick=${2:-}
cd "$(dirname "$0")/../.."

mpirun=$(command -v mpirun) || {
    echo "check-mpi: skipped, there is no mpirun (apt-get install openmpi-bin)"
    [ -z "${CHECK_RESULTS:-}" ] || echo "0 0 1" >>"$CHECK_RESULTS"
    exit 0
}
launch=("$mpirun" --oversubscribe)
[ "$(id -u)" != 0 ] || launch+=(--allow-run-as-root)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

common=('model={vocab: 257, layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}'
    data.train=core/ data.seq_len=32 train.global_batch=8 train.micro_batch=1
    train.steps=5 train.threads=1 checkpoint.every=5 checkpoint.resume=never log.every=1)

# ranks, precision, layout; the first two are the quick ones
layouts=(
    "2 fp32 parallel.tp=2"
    "4 fp32 parallel.pp=2 parallel.dp=2 parallel.zero=1"
    "2 bf16 parallel.tp=2"
    "4 fp32 parallel.tp=4"
    "2 fp32 parallel.pp=2 parallel.schedule=zb"
    "2 fp32 parallel.pp=2 parallel.vpp=2 parallel.schedule=interleaved"
    "3 fp32 parallel.pp=3 parallel.layers_per_stage=1,2,1"
    "4 fp32 parallel.dp=4 parallel.zero=2"
    "2 bf16 parallel.dp=2 parallel.zero=3"
    "2 fp32 parallel.dp=2 parallel.zero=3 parallel.zero_accumulate=sharded"
    "8 fp32 parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=1"
    "8 bf16 parallel.tp=2 parallel.pp=2 parallel.dp=2 parallel.zero=3"
)
[ -z "$quick" ] || layouts=("${layouts[@]:0:2}")

# What a run computed: loss and norm of every step.
figures() {
    jq -c 'select(.kind == "train") | [.step, .loss, .grad_norm]' "$1/metrics.jsonl"
}

one() { # DIR RANKS PRECISION KEYS...: under no launcher, or under $LAUNCH
    local to=$1 n=$2 precision=$3
    shift 3
    if [ -n "${LAUNCH:-}" ]; then
        "${launch[@]}" -np "$n" "$angel" pretrain "${common[@]}" "$@" \
            train.precision="$precision" checkpoint.dir="$to" --quiet </dev/null
    else
        "$angel" pretrain "${common[@]}" "$@" train.precision="$precision" \
            checkpoint.dir="$to" --threads-ranks "$n" --quiet
    fi
}

failed=0
for layout in "${layouts[@]}"; do
    read -r n precision keys <<<"$layout"
    rm -rf "$dir/threads" "$dir/mpi"
    # shellcheck disable=SC2086
    one "$dir/threads" "$n" "$precision" $keys
    # shellcheck disable=SC2086
    LAUNCH=1 one "$dir/mpi" "$n" "$precision" $keys
    same=equal
    diff <(figures "$dir/threads") <(figures "$dir/mpi") || same=DIFFERENT
    "$angel" ckpt diff "$dir/threads" "$dir/mpi" >/dev/null 2>&1 || same=DIFFERENT
    [ "$same" = equal ] || failed=$((failed + 1))
    printf '%s ranks %s %-70s %s\n' "$n" "$precision" "$keys" "$same"
done
# The comparison can fail: another seed.
one "$dir/other" 2 fp32 parallel.tp=2 train.seed=99
one "$dir/threads.2" 2 fp32 parallel.tp=2
if "$angel" ckpt diff "$dir/other" "$dir/threads.2" >/dev/null 2>&1; then
    echo "check-mpi: another seed gives the same checkpoint"
    failed=$((failed + 1))
fi
echo "$((${#layouts[@]} - failed)) passed, $failed failed"
[ -z "${CHECK_RESULTS:-}" ] ||
    echo "$((${#layouts[@]} - failed)) $failed 0" >>"$CHECK_RESULTS"
[ "$failed" = 0 ]
