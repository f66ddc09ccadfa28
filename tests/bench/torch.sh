#!/bin/bash
# Side by side with PyTorch: the same model, weights and batches, runs taken in turns.
#
#   tests/bench/torch.sh [MODEL [SEQUENCES [SEQ_LEN [PRECISION [ROUNDS]]]]]
#   tests/bench/torch.sh gpt2-124m 4 256 fp32 3
#
# Prints tokens/s of every round and the ratio of the medians. PYTHON names a Python with
# torch (python3); STEPS the steps of a round (8); TEXT what is trained on (core). PyTorch
# runs at its best settings: as many threads, memory kept (no page faults), fused
# attention, foreach AdamW.
set -eu
cd "$(dirname "$0")/../.."
model=${1:-llama-60m} sequences=${2:-4} seq_len=${3:-512} precision=${4:-fp32} rounds=${5:-3}
python=${PYTHON:-python3} steps=${STEPS:-8} text=${TEXT:-core}
threads=$(nproc)

"$python" -c 'import torch' 2>/dev/null || {
    echo "torch.sh: $python has no torch: nothing to compare with (PYTHON=... names another)" >&2
    exit 69
}
make -s build/release/angel build/release/tests/tool/dump_run
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

run=("model=configs/models/$model.yaml" "data.train=$text" "data.seq_len=$seq_len"
     "train.global_batch=$sequences" "train.micro_batch=$sequences" "train.steps=$steps"
     train.schedule.warmup=1 checkpoint.every=0 log.every=1 log.monitor_every=0
     "train.precision=$precision")
build/release/tests/tool/dump_run "$tmp/dump" "${run[@]}" "checkpoint.dir=$tmp/none"

median() { # of the numbers on stdin, without the first (a warm-up)
    tail -n +2 | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'
}

angel() {
    rm -rf "$tmp/run"
    build/release/angel pretrain "${run[@]}" "checkpoint.dir=$tmp/run" --quiet >/dev/null
    sed -n 's/.*"kind":"train".*"tokens_per_s":\([0-9.e+]*\).*/\1/p' \
        "$tmp/run/metrics.jsonl" | median
}

torch() {
    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE MALLOC_MMAP_THRESHOLD_=100000000000 \
        MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456 \
        GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
        "$python" tests/gold/torch_train.py --init "$tmp/dump/init.gold" \
        --batches "$tmp/dump/batches.gold" --steps "$steps" --lr 3e-4 --min-lr 3e-5 \
        --warmup 1 --threads "$threads" --precision "$precision" |
        sed -n 's/.*"s": \([0-9.e+-]*\).*/\1/p' |
        awk -v n="$((sequences * seq_len))" '{ print n / $1 }' | median
}

echo "$model, $sequences x $seq_len tokens, $precision, $threads threads, $steps steps a round"
for ((i = 1; i <= rounds; i++)); do
    a=$(angel) t=$(torch)
    echo "$a" >>"$tmp/a"
    echo "$t" >>"$tmp/t"
    printf 'round %d  angel %8.0f tokens/s  PyTorch %8.0f tokens/s  %.2f x\n' "$i" "$a" "$t" \
        "$(awk -v a="$a" -v t="$t" 'BEGIN { print a / t }')"
done
both() { sort -g "$1" | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
awk -v a="$(both "$tmp/a")" -v t="$(both "$tmp/t")" \
    'BEGIN { printf "median   angel %8.0f tokens/s  PyTorch %8.0f tokens/s  %.2f x\n", a, t, a / t }'
