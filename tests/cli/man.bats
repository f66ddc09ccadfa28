#!/usr/bin/env bats
# The manual and the program say the same.

root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
ANGEL=${ANGEL:-$root/angel}
cd "$root"

# The options that a page names, and those that a help text lists; one a line.
page_options() { # page ...
    cat "$@" | grep -oE '(^|[^A-Za-z])Fl (Fl )?[a-z][a-z-]*' |
        sed 's/^[^F]*//; s/^Fl Fl /--/; s/^Fl /-/' | sort -u
}

help_options() { # word ...
    "$ANGEL" "$@" | sed -n 's/^  \(--\{0,1\}[a-z][a-z-]*\).*/\1/p' | grep '^-' | sort -u
}

commands() {
    "$ANGEL" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'
}

missing() { # wanted, there: lines of the first that are not in the second
    comm -23 <(sort -u <<<"$1") <(sort -u <<<"$2") | grep . || true
}

@test "the pages are in order for mandoc" {
    command -v mandoc >/dev/null || skip "mandoc is not installed"
    run mandoc -T lint -W warning man/*.[1-9]
    echo "$output"
    [ "$status" = 0 ]
    [ -z "$output" ]
}

@test "every command is in angel(1), every option in its command's page" {
    local c page left common
    common=$(help_options --help)
    [ "$(wc -l <<<"$common")" -ge 5 ]
    left=$(missing "$common" "$(page_options man/angel.1)")
    [ -z "$left" ] || { echo "angel(1) lacks: $left"; return 1; }
    for c in $(commands); do
        grep -q "^\.It Cm $c\$" man/angel.1 || { echo "angel(1) lacks $c"; return 1; }
        page=man/angel-$c.1
        [ "$c" != help ] || page=man/angel.1
        left=$(missing "$(missing "$(help_options help "$c")" "$common")" \
            "$(page_options "$page")")
        [ -z "$left" ] || { echo "$page lacks: $left"; return 1; }
    done
}

@test "every option of a page is an option of the program" {
    local c page left all
    all=$(help_options --help; echo -h)
    for c in $(commands); do
        page=man/angel-$c.1
        [ -f "$page" ] || continue
        left=$(missing "$(page_options "$page")" "$all
$(help_options help "$c")")
        [ -z "$left" ] || { echo "$page names: $left"; return 1; }
    done
    all+=$(for c in $(commands); do echo; help_options help "$c"; done)
    left=$(missing "$(page_options man/angel.1)" "$all")
    [ -z "$left" ] || { echo "angel(1) names: $left"; return 1; }
}

@test "the exit statuses of the program are those of angel(1)" {
    local codes listed
    codes=$(sed -n 's/^ *\[ST_[A-Z_]*\] = {\([0-9]*\),.*/\1/p' core/status.c | sort -u)
    [ "$(wc -l <<<"$codes")" -ge 10 ]
    listed=$(sed -n '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/s/^\.It \([0-9]*\)$/\1/p' \
        man/angel.1 | sort -u)
    diff <(echo "$codes") <(echo "$listed")
    for page in man/angel-pretrain.1 man/angel-ckpt.1; do
        listed=$(sed -n '/^\.Sh EXIT STATUS/,$s/^\.It \([0-9]*\)$/\1/p' "$page")
        [ -z "$(missing "$listed" "$codes")" ]
    done
}

@test "the keys in angel-config(5) are those of the program" {
    run diff <(sed -n '/^\.\\" options begin$/,/^\.\\" options end$/p' \
        man/angel-config.5 | sed '1d;$d') <("$ANGEL" help --man-options)
    echo "$output"
    [ "$status" = 0 ]
}

@test "keys in the text of the manual and the README exist" {
    local known key
    known=$("$ANGEL" help options | sed -n 's/^  \([a-z_][a-z_.]*\).*/\1/p')
    [ "$(wc -l <<<"$known")" -ge 60 ]
    for key in $(cat man/angel*.[1-9] README.md | sed 's/\\-/-/g' | grep -oE \
        '(^|[^a-z/._-])(model|data|train|memory|checkpoint|log)\.[a-z_]+(\.[a-z_]+)*' |
        sed 's/^[^a-z]//' | sort -u); do
        case $key in
        # Answered with exit status 69, and said to be so; files.
        model.moe | memory.disk | log.tensorboard | *.[ch]) continue ;;
        esac
        grep -q "^${key//./\\.}\(\.\|\$\)" <<<"$known" || {
            echo "no such key: $key"
            return 1
        }
    done
}

@test "every field of metrics.jsonl is in angel-pretrain(1)" {
    local name
    for name in $(grep -ohE 'METRICS_[A-Z0-9]+\("[a-z_0-9]+"' cmd/*.c |
        sed 's/.*"\(.*\)"/\1/' | sort -u) kind step tokens elapsed_s attempt nonfinite; do
        grep -qE "Va ([a-z_]+ , )*$name( |\$)" man/angel-pretrain.1 || {
            echo "no word of $name"
            return 1
        }
    done
}

# Keys of angel-config(5) with what it says of each, a line a key: "KEY FACTS", where
# FACTS are "count or auto, tokens, 1 to 100, default 10".
page_facts() {
    sed -n '/^\.\\" options begin$/,/^\.\\" options end$/p' man/angel-config.5 |
        sed 's/\\-/-/g' | awk '/^\.B / { key = $2 } /^\(.*\)$/ { print key, $0 }' |
        sed 's/ (\(.*\))$/ \1/'
}

# Whether the program takes key=value, as far as type and bounds of the key go: what it
# says of the key and others together does not count.
takes() { # key, value
    local said
    said=$("$ANGEL" pretrain model=configs/models/llama-tiny.yaml data.train=README.md \
        --print-config "$1=$2" 2>&1 >/dev/null </dev/null) || true
    [[ $said != "angel: $1 (command line): "*"got '$2', wanted "* ]]
}

@test "the parser takes the types, bounds, choices and defaults of angel-config(5)" {
    local key facts kind low high value n=0 n_bounds=0
    wrong() { echo "$key ($facts): $1"; return 1; }
    while read -r key facts; do
        n=$((n + 1))
        kind=${facts%%,*}
        case $facts in
        *default*)
            value=${facts##*default }
            takes "$key" "$value" || wrong "does not take its default $value"
            ;;
        esac
        case $kind in text* | path* | list*) continue ;; esac
        ! takes "$key" xyzzy || wrong 'takes xyzzy'
        case $kind in *'or auto') takes "$key" auto || wrong 'does not take auto' ;; esac
        case $kind in
        numbers*) continue ;;
        bool*) kind='true|false' ;;
        count* | size* | number* | time*) kind= ;;
        esac
        for value in ${kind//|/ }; do
            takes "$key" "$value" || wrong "does not take $value"
        done
        low=$(sed -n 's/.*, \(at least \)\{0,1\}\([0-9.e+-]*\)\( to [0-9.e+-]*\)\{0,1\}, default.*/\2/p
            s/.*, \([0-9.e+-]*\) to [0-9.e+-]*, needed$/\1/p' <<<"$facts")
        high=$(sed -n 's/.* to \([0-9.e+-]*\), \(default.*\|needed\)$/\1/p' <<<"$facts")
        [ -n "$low" ] || { [ -n "$kind" ] || wrong 'has no bounds'; continue; }
        n_bounds=$((n_bounds + 1))
        takes "$key" "$low" || wrong "does not take $low"
        ! takes "$key" "$(awk -v x="$low" 'BEGIN { printf "%.17g", x - 1 }')" ||
            wrong "takes less than $low"
        [ -n "$high" ] || continue
        takes "$key" "${high/e+/e}" || wrong "does not take $high"
        ! takes "$key" "$(awk -v x="$high" 'BEGIN { printf "%.17g", x * 1.5 + 1 }' |
            sed 's/e+/e/')" || wrong "takes more than $high"
    done < <(page_facts)
    echo "$n keys, $n_bounds with bounds"
    [ "$n" -ge 75 ] && [ "$n_bounds" -ge 40 ]
    [ "$n" = "$("$ANGEL" help options | grep -cE '^  [a-z_][a-z_.]*( |$)')" ]
}

@test "every exit status in the text of a page is one of angel(1)" {
    local codes page code
    codes=$(sed -n '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/s/^\.It \([0-9]*\)$/\1/p' \
        man/angel.1)
    for page in man/angel*.[1-9] README.md; do
        for code in $(tr '\n' ' ' <"$page" | grep -oE '[Ee]xit (status|code) [0-9]+' |
            grep -oE '[0-9]+'); do
            grep -qx "$code" <<<"$codes" || { echo "$page names $code"; return 1; }
        done
    done
}
