#!/bin/bash
# Runs test programs (cmocka) and bats files side by side, prints the output of those that
# fail, and counts. The exit status is 0 when every test passed.
#
#   run-tests.sh LOG_FOLDER TEST ...
#
# JOBS: how many at once (all processors). TIMEOUT_S: for each (600). RUN_UNDER: a command
# in front of test programs. BUILD_STATUS: not 0 when making the tests failed, which
# counts as a failure. CHECK_RESULTS: a file that the counts are added to (run-parts.sh).
set -u
logs=$1
shift
mkdir -p "$logs"
jobs=${JOBS:-$(nproc)}
timeout_s=${TIMEOUT_S:-600}

# Verbose output where asked for: VERBOSE=1 prints passing tests' output too.
verbose=${VERBOSE:-0}

log_of() {
    echo "$logs/$(basename "$1").log"
}

run_one() { # test: leaves LOG and LOG.status, "exit-status seconds"
    local log status begin=$EPOCHREALTIME
    log=$(log_of "$1")
    rm -f "$log.status"
    case $1 in
    *.bats) timeout -k 10 "$timeout_s" bats --tap "$1" >"$log" 2>&1 </dev/null ;;
    *) timeout -k 10 "$timeout_s" ${RUN_UNDER:-} "$1" >"$log" 2>&1 </dev/null ;;
    esac
    status=$?
    echo "$status $(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" \
        >"$log.status"
}

# Prints "passed failed skipped" of a log. cmocka: a summary for each group. bats: TAP.
count() { # test, log
    case $1 in
    *.bats)
        awk '/^ok .*# skip/ { s++; next } /^ok / { p++ } /^not ok / { f++ }
             /^1\.\.[0-9]+$/ { plan = substr($0, 4) }
             END { missing = plan - p - f - s
                   print p + 0, f + (missing > 0 ? missing : 0), s + 0 }' "$2"
        ;;
    *)
        awk '/^\[  PASSED  \] [0-9]+ test/ { p += $4 }
             /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
             /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
             END { print p + 0, f + 0, s + 0 }' "$2"
        ;;
    esac
}

# The names of what failed in a log, "! file: test".
failures() { # test, log
    case $1 in
    *.bats) sed -n "s|^not ok [0-9]* |! $(basename "$1"): |p" "$2" ;;
    *)
        sed -n "s/^\[  FAILED  \] \([A-Za-z_][A-Za-z0-9_]*\)\$/! $(basename "$1"): \1/p" \
            "$2" | sort -u
        ;;
    esac
}

passed=0 failed=0 skipped=0
list=''

report() { # test
    local log status seconds p f s names
    log=$(log_of "$1")
    read -r status seconds <"$log.status"
    read -r p f s <<<"$(count "$1" "$log")"
    names=$(failures "$1" "$log")
    if [ "$status" = 124 ] || [ "$status" = 137 ]; then
        f=$((f + 1))
        names+=${names:+$'\n'}"! $(basename "$1"): stopped after $timeout_s s"
    elif [ "$status" != 0 ] && [ "$f" = 0 ]; then
        f=1
        names+=${names:+$'\n'}"! $(basename "$1"): exit status $status"
    elif [ $((p + f + s)) = 0 ]; then
        f=1
        names+=${names:+$'\n'}"! $(basename "$1"): ran no test"
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-24s %7.2f s  %3d passed' "$(basename "$1")" "$seconds" "$p"
    [ "$f" = 0 ] || printf ', %d failed' "$f"
    [ "$s" = 0 ] || printf ', %d skipped' "$s"
    printf '\n'
    if [ "$f" != 0 ] || [ "$verbose" != 0 ]; then
        sed 's/^/    /' "$log"
    fi
    [ -z "$names" ] || list+=$names$'\n'
}

running=0
for test in "$@"; do
    if [ "$running" -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
    fi
    run_one "$test" &
    running=$((running + 1))
done
wait
for test in "$@"; do
    report "$test"
done
if [ "${BUILD_STATUS:-0}" != 0 ]; then
    failed=$((failed + 1))
    list+="! building the tests"$'\n'
fi

summary="$passed passed, $failed failed"
[ "$skipped" = 0 ] || summary+=", $skipped skipped"
if [ -n "${CHECK_RESULTS:-}" ]; then
    echo "$passed $failed $skipped" >>"$CHECK_RESULTS"
    printf '%s' "$list" >>"$CHECK_RESULTS"
    echo "of these tests: $summary"
else
    [ -z "$list" ] || printf 'failed:\n%s' "$list" | sed 's/^!/ /'
    echo "$summary"
fi
[ "$failed" = 0 ]
