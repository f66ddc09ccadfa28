# What the command-line tests share.

# ANGEL: the binary to test.
: "${ANGEL:=$PWD/angel}"

# Runs angel; leaves its exit status in $code and its streams in $out and $err.
angel() {
    code=0
    "$ANGEL" "$@" >"$BATS_TEST_TMPDIR/out" 2>"$BATS_TEST_TMPDIR/err" </dev/null || code=$?
    out=$(cat "$BATS_TEST_TMPDIR/out")
    err=$(cat "$BATS_TEST_TMPDIR/err")
}

fail() {
    printf '%s\n' "$*" "exit status: ${code:-}" "stdout: ${out:-}" "stderr: ${err:-}" >&2
    return 1
}

code_is() {
    [ "$code" = "$1" ] || fail "wanted exit status $1"
}

has() { # text, what it must hold
    case $1 in
    *"$2"*) ;;
    *) fail "wanted '$2' in it" ;;
    esac
}

lacks() {
    case $1 in
    *"$2"*) fail "wanted no '$2' in it" ;;
    esac
}

# An error: exit status, nothing on stdout, "angel: ..." on stderr holding the text.
refuses() { # exit status, text
    code_is "$1"
    [ -z "$out" ] || fail 'wanted an empty stdout'
    case $err in
    'angel: '*) ;;
    *) fail "wanted 'angel: ...'" ;;
    esac
    has "$err" "$2"
}
