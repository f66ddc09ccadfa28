#!/usr/bin/env bats
# The test of the manual finds what it is for: each run on a copy of the pages with one
# fault planted.

root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)

setup() {
    export ANGEL=${ANGEL:-$root/angel}
    tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree/tests/cli" "$tree/core"
    cp -r "$root"/man "$root"/cmd "$root"/configs "$root"/README.md "$tree"
    cp "$root"/core/status.c "$tree/core"
    cp "$root"/tests/cli/man.bats "$tree/tests/cli"
    cd "$tree"
}

check() { # words of the test's name
    run bats --filter "$1" tests/cli/man.bats
    echo "$output"
}

found() {
    [ "$status" != 0 ] && [[ $output == *'not ok'* ]]
}

# Changes a file by a sed command, which must do something, and wants the test to fail.
finds() { # words of the test's name, file, sed command
    cp "$2" "$BATS_TEST_TMPDIR/kept"
    sed -i "$3" "$2"
    ! cmp -s "$2" "$BATS_TEST_TMPDIR/kept"
    check "$1"
    cp "$BATS_TEST_TMPDIR/kept" "$2"
    found || { echo "not found: $3"; return 1; }
}

# A program whose output of one help command is changed by a sed command.
fake() { # help command, sed command
    printf '#!/bin/bash\ncase $* in\n"%s") "%s" "$@" | sed "%s" ;;\n*) exec "%s" "$@" ;;\nesac\n' \
        "$1" "$root/angel" "$2" "$root/angel" >"$BATS_TEST_TMPDIR/angel"
    chmod +x "$BATS_TEST_TMPDIR/angel"
    export ANGEL=$BATS_TEST_TMPDIR/angel
}

@test "the manual as it is passes (its parser test runs by itself)" {
    check "every|exit|keys"
    [ "$status" = 0 ]
}

@test "an option that a page lacks, or the program lacks" {
    finds 'every command is in' man/angel-ckpt.1 '/Fl Fl deep/d'
    finds 'every command is in' man/angel-pretrain.1 '/Fl Fl allow-change/d'
    finds 'every command is in' man/angel.1 '/It Cm ckpt/d'
    finds 'every option of a page' man/angel-ckpt.1 's/Fl Fl deep/Fl Fl deeper/'
    fake 'help ckpt' 's/^  --deep/  --new-one  text\n&/'
    check 'every command is in'
    found
    fake 'help ckpt' '/^  --deep/d'
    check 'every option of a page'
    found
}

@test "an exit status that a page or the program lacks" {
    finds 'exit statuses of' man/angel.1 '/^\.It 71$/d'
    finds 'exit statuses of' man/angel.1 's/^\.It 71$/.It 72/'
    finds 'exit statuses of' core/status.c 's/\[ST_NO_FIT\] = {71/[ST_NO_FIT] = {72/'
    finds 'exit status in the text' man/angel-internals.7 '$aThe exit status 99 is new.'
}

@test "a key, default, choice or bound that differs" {
    local name='keys in angel-config'
    finds "$name" man/angel-config.5 '/^\.B train\.steps/d'
    finds "$name" man/angel-config.5 's/default 200)/default 300)/'
    finds "$name" man/angel-config.5 's/swiglu|/silu|/'
    finds "$name" man/angel-config.5 's/1 to 4096/1 to 8192/'
    finds 'the parser takes' man/angel-config.5 's/1 to 4096/1 to 8192/'
    finds 'the parser takes' man/angel-config.5 's/1 to 4096, default auto/1 to 4096, default 0/'
    finds 'keys in the text' README.md '$aSet train.no_such_key to 3.'
}
