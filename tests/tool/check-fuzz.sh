#!/bin/bash
# Builds the fuzz targets with clang and runs each for a while, side by side; skipped,
# aloud, where clang or its libFuzzer is missing.
#
#   check-fuzz.sh [NAME ...]     (targets tests/fuzz/fuzz_NAME.c; all)
#
# FUZZ_SECONDS: for each target (3). FUZZ_CC: the compiler (clang). JOBS: how many at once
# (all processors). An input that fails is kept in build/fuzz/artifacts, and run again by
#   build/fuzz/tests/fuzz/fuzz_NAME FILE
# Inputs that reach new code gather in build/fuzz/corpus/NAME.
set -u
seconds=${FUZZ_SECONDS:-3}
cc=${FUZZ_CC:-clang}
jobs=${JOBS:-$(nproc)}
make=${MAKE:-make}
out=build/fuzz

# Bounds of one input: what any configuration or small file may take.
limits=(-rss_limit_mb=1536 -malloc_limit_mb=640 -timeout=10)

count() { # passed, failed, skipped
    [ -z "${CHECK_RESULTS:-}" ] || echo "$1 $2 $3" >>"$CHECK_RESULTS"
}

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }' \
    >"$scratch/probe.c"
if ! command -v "$cc" >/dev/null ||
    ! "$cc" -fsanitize=fuzzer,address,undefined "$scratch/probe.c" -o "$scratch/probe" \
        2>"$scratch/log"; then
    echo "check-fuzz: SKIPPED, for want of clang with libFuzzer (Debian: clang)"
    count 0 0 1
    exit 0
fi

names=${*:-$(ls tests/fuzz/fuzz_*.c | sed 's/.*fuzz_\(.*\)\.c/\1/')}
programs=()
for name in $names; do
    programs+=("$out/tests/fuzz/fuzz_$name")
done
if ! "$make" --no-print-directory V=fuzz FUZZ_CC="$cc" "${programs[@]}"; then
    echo "check-fuzz: the targets do not build"
    count 0 1 0
    exit 1
fi

# Words of a configuration, for the mutations.
mkdir -p "$out/artifacts"
grep -oE '"[a-z_][a-z0-9_.]*"' core/config_options.def | sort -u >"$out/words.dict"
printf '%s\n' '"auto"' '"null"' '"{path: "' '"weight: "' '"[0]"' >>"$out/words.dict"

run_one() { # name: leaves its exit status in $scratch/NAME.status
    mkdir -p "$out/corpus/$1"
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 \
        UBSAN_OPTIONS=print_stacktrace=1 \
        "$out/tests/fuzz/fuzz_$1" "${limits[@]}" -max_total_time="$seconds" \
        -max_len=4096 -dict="$out/words.dict" -artifact_prefix="$out/artifacts/$1-" \
        -print_final_stats=1 "$out/corpus/$1" "tests/fuzz/corpus/$1" \
        >"$scratch/$1.log" 2>&1 </dev/null
    echo $? >"$scratch/$1.status"
}

running=0
for name in $names; do
    if [ "$running" -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
    fi
    run_one "$name" &
    running=$((running + 1))
done
wait

passed=0 failed=0
for name in $names; do
    log=$scratch/$name.log
    if [ "$(cat "$scratch/$name.status")" = 0 ]; then
        passed=$((passed + 1))
        printf 'fuzz_%-10s %9d inputs, %s\n' "$name" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(sed -n 's/.*\(cov: [0-9]*\).*/\1/p' "$log" | tail -1)"
    else
        failed=$((failed + 1))
        printf 'fuzz_%-10s failed:\n' "$name"
        tail -60 "$log" | sed 's/^/    /'
        [ -z "${CHECK_RESULTS:-}" ] || echo "! fuzz_$name" >>"$CHECK_RESULTS"
    fi
done
count "$passed" "$failed" 0
[ "$failed" = 0 ]
