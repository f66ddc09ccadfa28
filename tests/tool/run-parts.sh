#!/bin/bash
# Runs make targets one after the other, all of them even when one fails; prints the time
# of each, what failed, and at the end the sum of their tests: "N passed, M failed".
#
#   run-parts.sh TARGET ...      (MAKE, JOBS: from the environment)
#
# A part writes its tests into $CHECK_RESULTS, a line "passed failed skipped" and lines
# "! name" of what failed (run-tests.sh does). A part that writes none counts as one test.
# Run as a part itself, this script does the same, so that parts can have parts.
set -u
make=${MAKE:-make}
outer=${CHECK_RESULTS:-}
results=$(mktemp)
trap 'rm -f "$results"' EXIT
export CHECK_RESULTS=$results

# Under `make -jN` the jobs come from there.
jobs=()
case " ${MAKEFLAGS:-} " in
*jobserver*) ;;
*) jobs=("-j${JOBS:-$(nproc)}") ;;
esac

passed=0 failed=0 skipped=0
table='' list=''

add_part() { # name, exit status, seconds
    local p=0 f=0 s=0 a b c n=0 names=''
    while read -r a b c; do
        if [ "$a" = '!' ]; then
            names+="  $1: $b${c:+ $c}"$'\n'
            continue
        fi
        p=$((p + a)) f=$((f + b)) s=$((s + c)) n=$((n + 1))
    done <"$results"
    if [ "$2" != 0 ] && [ "$f" = 0 ]; then
        f=$((f + 1))
        names+="  $1: exit status $2"$'\n'
    elif [ "$n" = 0 ]; then
        p=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    table+=$(printf '%-16s %5d s   %d passed, %d failed, %d skipped' \
        "$1" "$3" "$p" "$f" "$s")$'\n'
    list+=$names
}

begin=$SECONDS
for part in "$@"; do
    printf '\n== %s\n' "$part"
    : >"$results"
    part_begin=$SECONDS
    "$make" -k --no-print-directory "${jobs[@]}" "$part"
    status=$?
    add_part "$part" "$status" $((SECONDS - part_begin))
    printf '== %s: %d s\n' "$part" $((SECONDS - part_begin))
done

printf '\n%s' "$table"
printf '%-16s %5d s\n' all $((SECONDS - begin))
[ -z "$list" ] || printf 'failed:\n%s' "$list"

summary="$passed passed, $failed failed"
[ "$skipped" = 0 ] || summary+=", $skipped skipped"
if [ -n "$outer" ]; then
    echo "$passed $failed $skipped" >>"$outer"
    printf '%s' "$list" | sed 's/^  /! /' >>"$outer"
    printf 'in these parts: %s\n' "$summary"
else
    printf '\n%s\n' "$summary"
fi
[ "$failed" = 0 ]
