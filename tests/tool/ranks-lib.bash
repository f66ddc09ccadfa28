# What the checks of runs under mpirun share: check-mpi.sh and check-hosts.sh.
#
# From the caller: $name of the check, $angel the program, $dir a folder of its own, and a
# function launch RANKS ARGUMENTS... that runs angel under mpirun.

n_passed=0 n_failed=0

skip() { # WHY
    echo "$name: SKIPPED, $1"
    [ -z "${CHECK_RESULTS:-}" ] || echo "0 0 1" >>"$CHECK_RESULTS"
    exit 0
}

# Prints the counts, hands them on, and is the exit status.
finish() {
    echo "$n_passed passed, $n_failed failed"
    [ -z "${CHECK_RESULTS:-}" ] || echo "$n_passed $n_failed 0" >>"$CHECK_RESULTS"
    [ "$n_failed" = 0 ]
}

count() { # WHAT STATUS
    if [ "$2" = 0 ]; then
        n_passed=$((n_passed + 1))
        return
    fi
    n_failed=$((n_failed + 1))
    [ -z "${CHECK_RESULTS:-}" ] || echo "! $1" >>"$CHECK_RESULTS"
}

check() { # WHAT STATUS
    count "$@"
    [ "$2" = 0 ] && printf 'ok      %s\n' "$1" || printf 'FAILED  %s\n' "$1"
}

# A condition as a status: check "it holds" "$(holds [ 1 = 1 ])"
holds() {
    "$@" && echo 0 || echo 1
}

# A small model whose vocabulary no degree divides, on the sources of this program.
model=('model={vocab: 257, layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64}'
    data.train=core/ data.seq_len=32 train.global_batch=8 train.micro_batch=1
    train.threads=1 train.optimizer.lr=3e-3 train.schedule.warmup=1 log.every=1)
five=("${model[@]}" train.steps=5 checkpoint.every=3 checkpoint.resume=never)

# What a run computed: step, loss and norm of each step after one, all their digits.
figures() { # FOLDER FIRST
    jq -c --argjson first "$2" \
        'select(.kind == "train" and .step > $first) | [.step, .loss, .grad_norm]' \
        "$1/metrics.jsonl"
}

# How two runs of five steps differ, in $difference: empty where all bits are equal. Two
# runs that computed nothing are not equal.
compare() { # FOLDER FOLDER [FIRST]
    local first=${3:-0} a b
    difference=
    a=$(figures "$1" "$first") && b=$(figures "$2" "$first") || a=
    [ "$(wc -l <<<"$a")" = $((5 - first)) ] || difference+=' no-metrics'
    [ "$a" = "$b" ] || difference+=' losses'
    "$angel" ckpt diff "$1/step-000000000005" "$2/step-000000000005" >/dev/null 2>&1 ||
        difference+=' checkpoints'
}

# The largest relative distance of two runs' losses after a step; 1 where one has none.
loss_distance() { # FOLDER FOLDER FIRST
    paste <(figures "$1" "$3") <(figures "$2" "$3") | tr -d '[]' | tr '\t' ',' |
        awk -F, -v n=$((5 - $3)) '{ d = ($2 - $5) / $5; if (d < 0) d = -d
            if (!(d <= worst)) worst = d
            if ($1 != $4) n = -1 }
            END { printf "%.1e\n", NR == n ? worst : 1 }'
}

# The process that is a rank of the run in a folder; nothing where there is none.
process_of() { # RANK FOLDER
    local p pid
    for p in /proc/[0-9]*; do
        pid=${p#/proc/}
        { grep -qzxF "checkpoint.dir=$2" "$p/cmdline" &&
            grep -qzxF "OMPI_COMM_WORLD_RANK=$1" "$p/environ" &&
            [ "$(readlink "$p/exe")" = "$angel" ] && echo "$pid"; } 2>/dev/null || true
    done
}

# All processes of runs in a folder, the launcher's too. The brackets keep the search itself
# out.
processes_of() { # FOLDER
    grep -lz "^[c]heckpoint.dir=$1\(/\|\$\)" /proc/[0-9]*/cmdline 2>/dev/null |
        cut -d/ -f3 || true
}

ranks_of() { # FOLDER
    local pid
    for pid in $(processes_of "$1"); do
        [ "$(readlink "/proc/$pid/exe")" != "$angel" ] || echo "$pid"
    done
}

kill_all() { # FOLDER
    processes_of "$1" | xargs -r kill -9 2>/dev/null || true
}

# Whether all of a run is gone, soon.
is_gone() { # FOLDER
    for _ in $(seq 20); do
        [ -n "$(processes_of "$1")" ] || return 0
        sleep 0.1
    done
    return 1
}

# Lets a long run go wrong in its first steps: it must end within 10 s, not well, say the
# rank's name in words that match, and leave no process. With LAUNCHER_STAYS=1 the ranks
# alone must end, and the launcher is ended here.
trouble() { # WHAT RANKS RANK ACT WORDS KEYS...: ACT gets the rank's process
    local what=$1 n=$2 rank=$3 act=$4 words=$5 to=$dir/trouble job victim begin took
    local code=0 wrong=
    shift 5
    rm -rf "$to" "$dir/log"
    launch "$n" "${model[@]}" train.steps=1000000 checkpoint.every=0 \
        checkpoint.resume=never checkpoint.dir="$to" "$@" >"$dir/log" 2>&1 &
    job=$!
    for _ in $(seq 300); do
        ! grep -q '^step 2/' "$dir/log" 2>/dev/null || break
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    victim=$(process_of "$rank" "$to")
    begin=$EPOCHREALTIME
    [ -n "$victim" ] && "$act" "$victim" || kill_all "$to"
    if [ -n "${LAUNCHER_STAYS:-}" ]; then
        for _ in $(seq 120); do
            [ -n "$(ranks_of "$to")" ] || break
            sleep 0.1
        done
        [ -z "$(ranks_of "$to")" ] || wrong+=' ranks are left'
        kill_all "$to"
    fi
    wait "$job" || code=$?
    took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    [ -n "$victim" ] || wrong+=' no such process'
    [ "$code" != 0 ] || wrong+=' it ended well'
    awk -v t="$took" 'BEGIN { exit !(t <= 10) }' || wrong+=' too late'
    grep -qE "$words" "$dir/log" || wrong+=' no word of it'
    is_gone "$to" || wrong+=' processes are left'
    [ -z "$wrong" ] || tail -n 30 "$dir/log"
    grep -E "$words" "$dir/log" | head -n 1 | cut -c 1-150 | sed 's/^/        /' || true
    check "$what: over after $took s, exit status $code${wrong:+, but:$wrong}" \
        "$(holds [ -z "$wrong" ])"
}

kill_it() { kill -KILL "$1"; }
stop_it() { kill -STOP "$1"; }
