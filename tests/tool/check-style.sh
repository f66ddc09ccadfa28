#!/bin/sh
# What a compiler and clang-format do not check: sizes, banned functions, words, names.
# Prints "file:line: ..." for each.
#
#   check-style.sh [ROOT]
set -eu
cd "${1:-.}"
all=$(find core io memory kernels parallel cmd tests -type f \( -name '*.[ch]' -o \
    -name '*.inc' -o -name '*.def' \) 2>/dev/null | sort) || true
[ -n "$all" ] || { echo "check-style: no sources here" >&2; exit 1; }
wrong=0

# Code without comments, strings and character constants, for what follows.
awk '
function complain(line, text) {
    printf "%s:%d: %s\n", file, line, text
    n_wrong++
}

# Text of a line with comments dropped and quotes emptied. State: in_comment.
function code_of(s,    out, c, two, quote) {
    out = ""
    while (s != "") {
        two = substr(s, 1, 2)
        if (in_comment) {
            c = index(s, "*/")
            if (!c)
                return out
            s = substr(s, c + 2)
            in_comment = 0
        } else if (two == "/*") {
            in_comment = 1
            s = substr(s, 3)
        } else if (two == "//") {
            return out
        } else if (match(s, /^"([^"\\]|\\.)*"/) || match(s, /^\047([^\047\\]|\\.)*\047/)) {
            quote = substr(s, 1, 1)
            out = out quote quote
            s = substr(s, RLENGTH + 1)
        } else if (match(s, /^[^"\047\/]+/)) {
            out = out substr(s, 1, RLENGTH)
            s = substr(s, RLENGTH + 1)
        } else {
            out = out substr(s, 1, 1)
            s = substr(s, 2)
        }
    }
    return out
}

function calls(code, names) {
    return code ~ "(^|[^A-Za-z0-9_.>])(" names ")[ \t]*\\("
}

function end_file() {
    if (file == "")
        return
    if (file ~ /\.h$/ && n_lines > 400)
        complain(n_lines, "header of " n_lines " lines, wanted at most 400")
    if (file ~ /\.(c|inc)$/ && n_lines > 1000)
        complain(n_lines, "file of " n_lines " lines, wanted at most 1000")
}

FNR == 1 {
    end_file()
    file = FILENAME
    in_comment = 0
    body_begin = 0
    is_test = file ~ /^tests\//
}

{
    n_lines = FNR
    if ($0 ~ /[ \t]$/)
        complain(FNR, "white space at the end of the line")
    if ($0 ~ /\t/)
        complain(FNR, "a tab, wanted spaces")
    if ($0 ~ /(^|[^A-Za-z_])(TODO|FIXME|XXX|HACK)([^A-Za-z_X]|$)/)
        complain(FNR, "a note to come back: do it or leave it")
    if ($0 ~ /^[ \t]*#[ \t]*if[ \t]+0/)
        complain(FNR, "code that is switched off")
    if ($0 ~ /[\/](home|root|work|Users)\/[A-Za-z0-9_.]/)
        complain(FNR, "a path of one machine")
    code = code_of($0)
    if (calls(code, "strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atoll|atof|strtok|tmpnam|alloca"))
        complain(FNR, "banned function")
    if (!is_test && file != "core/opt.c" && calls(code, "getenv|secure_getenv"))
        complain(FNR, "getenv outside core/opt.c")
    if (!is_test && file != "core/arena.c" && \
        calls(code, "malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf"))
        complain(FNR, "allocation outside core/arena.c")
    # A function body opens and closes in column one.
    if ($0 == "{")
        body_begin = FNR
    if ($0 == "}" && body_begin) {
        if (FNR - body_begin - 1 > 120)
            complain(body_begin, "function of " FNR - body_begin - 1 " lines, wanted at most 120")
        body_begin = 0
    }
}

END {
    end_file()
    if (n_wrong)
        exit 1
}
' $all || wrong=1

# x.c and x.h in one folder are one module; the same base name elsewhere is confusing.
echo "$all" | grep '\.[ch]$' | sed 's/\.[ch]$//' | sort -u |
    awk -F/ '{ if ($NF in seen) { print $0 ": the base name of " seen[$NF] " too"; wrong = 1 }
               seen[$NF] = $0 }
             END { exit wrong }' || wrong=1

[ "$wrong" = 0 ] || exit 1
echo "check-style: $(echo "$all" | wc -l) files in order"
