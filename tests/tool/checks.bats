#!/usr/bin/env bats
# The checks find what they are for: each on a tree with one fault planted.

setup() {
    tools=$PWD/tests/tool
    tree=$BATS_TEST_TMPDIR/tree
    mkdir -p "$tree"/{core,io,memory,kernels/cuda,parallel,cmd,tests}
    cd "$tree"
    printf '#include "core/a.h"\n#include "core/b.h"\n#include <stdio.h>\n' >core/a.c
    printf 'int a(void);\n' >core/a.h
}

# A file, its text, and what the check says of it.
finds() { # check, file, text, complaint
    printf '%b' "$3" >"$2"
    run "$tools/$1"
    rm "$2"
    echo "$1 of $2: $status $output"
    [ "$status" = 1 ]
    [[ $output == *"$2:"*"$4"* ]]
}

allows() { # check, file, text
    printf '%b' "$3" >"$2"
    run "$tools/$1"
    rm "$2"
    echo "$1 of $2: $status $output"
    [ "$status" = 0 ]
}

@test "check-layers finds includes that go up or aside" {
    run "$tools/check-layers.sh"
    [ "$status" = 0 ]
    finds check-layers.sh core/x.c '#include "io/file.h"\n' 'core includes io/file.h'
    finds check-layers.sh io/x.c '#include "memory/pack.h"\n' 'io includes'
    finds check-layers.sh memory/x.c '#include "kernels/kernel.h"\n' 'memory includes'
    finds check-layers.sh kernels/x.c '#include "io/file.h"\n' 'kernels includes'
    finds check-layers.sh parallel/x.c '#include "kernels/k.h"\n' 'parallel includes'
    finds check-layers.sh parallel/x.c '  #  include "cmd/cmd.h"\n' 'parallel includes'
    finds check-layers.sh cmd/x.c '#include "tests/lib/tmp.h"\n' 'cmd includes'
    finds check-layers.sh core/x.h '#include "a.h"\n' 'a path from the root'
    finds check-layers.sh kernels/cuda/x.cu '#include "io/file.h"\n' 'kernels includes'
    allows check-layers.sh parallel/x.c '#include "memory/pack.h"\n#include "core/a.h"\n'
    allows check-layers.sh cmd/x.c '#include "io/f.h"\n#include "parallel/l.h"\n'
}

@test "check-layers finds libraries named where they are not wrapped" {
    finds check-layers.sh io/x.c '#include <yaml.h>\n' '<yaml.h>'
    finds check-layers.sh cmd/x.c '#include <zstd.h>\n' '<zstd.h>'
    finds check-layers.sh parallel/x.c '#include <mpi.h>\n' '<mpi.h>'
    finds check-layers.sh kernels/x.c '#include <cuda_runtime.h>\n' '<cuda_runtime.h>'
    finds check-layers.sh core/x.c '#include <omp.h>\n' '<omp.h>'
    allows check-layers.sh io/yaml.c '#include <yaml.h>\n'
    allows check-layers.sh io/x.c '#include <zstd.h>\n'
    allows check-layers.sh parallel/comm_mpi.c '#include <mpi.h>\n'
    allows check-layers.sh kernels/cuda/x.cu '#include <cublasLt.h>\n'
}

@test "check-style finds banned functions, not their names in text" {
    run "$tools/check-style.sh"
    [ "$status" = 0 ]
    for f in strcpy sprintf atoi strtok; do
        finds check-style.sh core/x.c "x = 1;\n$f(a, b);\n" '2: banned'
        finds check-style.sh tests/x.c "$f (a, b);\n" 'banned'
        allows check-style.sh core/x.c "// $f(a)\n/* more\n $f(b) */ \"$f(c)\";\nmy_$f(d);\n"
    done
    finds check-style.sh io/x.c "p = '\"'; q = malloc(3); r = '\"';\n" 'allocation'
    finds check-style.sh io/x.c 'free(p);\n' 'allocation'
    finds check-style.sh io/x.c 'getenv("X");\n' 'getenv'
    allows check-style.sh core/arena.c 'free(malloc(3));\n'
    allows check-style.sh core/opt.c 'getenv("X");\n'
    allows check-style.sh tests/x.c 'free(p);\n'
    allows check-style.sh io/x.c 'vec_free(p); a->free(p); b.free(p);\n'
}

@test "check-style finds what is too long" {
    body() { seq "$1" | sed 's/.*/    x();/'; }
    finds check-style.sh core/x.c "void f(void)\n{\n$(body 121)\n}\n" '2: function of 121'
    allows check-style.sh core/x.c "void f(void)\n{\n$(body 120)\n}\n"
    finds check-style.sh core/x.c "$(body 1001)\n" 'file of 1001'
    allows check-style.sh core/x.c "$(body 1000)\n"
    finds check-style.sh core/x.h "$(body 401)\n" 'header of 401'
    allows check-style.sh core/x.h "$(body 400)\n"
}

@test "check-style finds notes, dead code, tabs, and names used twice" {
    local later=TO later_too=FIX
    finds check-style.sh core/x.c "/* ${later}DO: more */\n" '1: a note'
    finds check-style.sh core/x.c "/* ${later_too}ME */\n" 'a note'
    finds check-style.sh core/x.c '#if 0\n#endif\n' 'switched off'
    finds check-style.sh core/x.c '\tx();\n' 'a tab'
    finds check-style.sh core/x.c 'x(); \n' 'white space'
    : >io/a.h
    run "$tools/check-style.sh"
    [ "$status" = 1 ]
    [ "$output" = 'io/a: the base name of core/a too' ]
}

@test "run-tests counts, names failures, and fails" {
    mkdir progs
    prog() { printf '#!/bin/sh\n%b' "$2" >"progs/$1" && chmod +x "progs/$1"; }
    prog good 'echo "[  PASSED  ] 2 test(s)."\necho "[  PASSED  ] 3 test(s)."\n'
    prog bad 'echo "[  FAILED  ] one"\necho "[  PASSED  ] 1 test(s)."\necho "[  FAILED  ] 1 test(s), listed below:"\nexit 1\n'
    prog crash 'echo "[  PASSED  ] 1 test(s)."\nkill -SEGV $$\n'
    prog mute 'exit 0\n'
    prog slow 'sleep 60\n'
    printf '@test "a" { true; }\n@test "b" { false; }\n@test "c" { skip; }\n' >progs/t.bats
    unset CHECK_RESULTS
    run "$tools/run-tests.sh" log progs/good
    [ "$status" = 0 ]
    [ "${lines[-1]}" = '5 passed, 0 failed' ]
    TIMEOUT_S=1 run "$tools/run-tests.sh" log progs/*
    echo "$output"
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '8 passed, 5 failed, 1 skipped' ]
    for name in 'bad: one' 'crash: exit status 139' 'mute: ran no test' 't.bats: b' \
        'slow: stopped after 1 s'; do
        [[ $output == *"  $name"* ]]
    done
    BUILD_STATUS=2 run "$tools/run-tests.sh" log progs/good
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '5 passed, 1 failed' ]
}

@test "run-parts runs all parts, sums up, and fails when one does" {
    cat >Makefile <<END
good:
	@echo "2 0 1" >>\$\$CHECK_RESULTS
plain:
	@true
bad:
	@false
units:
	@echo "3 1 0" >>\$\$CHECK_RESULTS; echo "! t_x: y" >>\$\$CHECK_RESULTS; false
nested:
	@$tools/run-parts.sh good bad
END
    unset CHECK_RESULTS MAKEFLAGS MAKELEVEL MFLAGS
    run "$tools/run-parts.sh" good plain
    [ "$status" = 0 ]
    [ "${lines[-1]}" = '3 passed, 0 failed, 1 skipped' ]
    run "$tools/run-parts.sh" bad units nested good
    echo "$output"
    [ "$status" = 1 ]
    [ "${lines[-1]}" = '7 passed, 3 failed, 2 skipped' ]
    [[ $output == *'bad: exit status 2'* ]]
    [[ $output == *'units: t_x: y'* ]]
    [[ $output == *'nested: bad: exit status 2'* ]]
    [ "$(grep -cE '^[0-9]+ passed, [0-9]+ failed' <<<"$output")" = 1 ]
}

# A program that computes as threads, and hangs as a rank of a launcher.
hanging_program() {
    cat >"$BATS_TEST_TMPDIR/hangs" <<END
#!/bin/sh
[ -z "\$OMPI_COMM_WORLD_RANK" ] || exec sleep 1000
exec "${ANGEL:-$top/angel}" "\$@"
END
    chmod +x "$BATS_TEST_TMPDIR/hangs"
}

# What the process of a check made and has left, in one line; nothing where all is gone.
left_by() { # process
    ip netns list 2>/dev/null | grep -o "^angel-$1-[ab]" || true
    ls -d "/etc/netns/angel-$1-"* "/dev/shm/angel-check-$1-"* 2>/dev/null || true
    pgrep -f "checkpoint.dir=$TMPDIR" || true
}

@test "check-hosts leaves nothing behind when it fails, and when it is ended" {
    command -v mpirun >/dev/null && [ "$(id -u)" = 0 ] &&
        ip netns add "angel-probe-$$" 2>/dev/null || skip 'no hosts can be made here'
    ip netns del "angel-probe-$$"
    top=${tools%/tests/tool}
    hanging_program
    export TMPDIR=$BATS_TEST_TMPDIR/t TIMEOUT_S=2
    mkdir "$TMPDIR"
    unset CHECK_RESULTS
    for end in alone TERM; do
        "$tools/check-hosts.sh" "$BATS_TEST_TMPDIR/hangs" quick \
            >"$BATS_TEST_TMPDIR/log" 2>&1 3>&- &
        check=$!
        [ "$end" = alone ] || { sleep 2 && kill -"$end" "$check"; }
        code=0
        wait "$check" || code=$?
        cat "$BATS_TEST_TMPDIR/log"
        echo "$end: $code, left: $(left_by "$check")"
        [ "$code" != 0 ]
        [ -z "$(left_by "$check")" ]
        [ -z "$(ls -A "$TMPDIR")" ]
    done
}
