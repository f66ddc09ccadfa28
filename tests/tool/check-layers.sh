#!/bin/sh
# Floors: a folder includes only floors below it and itself, and each outside library is
# named only where it is wrapped. Prints "file:line: ..." for what breaks that.
#
#   check-layers.sh [ROOT]
set -eu
cd "${1:-.}"
files=$(find core io memory kernels parallel cmd -name '*.[ch]' -o -name '*.inc' -o \
    -name '*.cu' -o -name '*.cuh' 2>/dev/null | sort) || true
[ -n "$files" ] || { echo "check-layers: no sources here" >&2; exit 1; }

awk '
BEGIN {
    may["core"] = " core "
    may["io"] = " core io "
    may["memory"] = " core memory "
    may["kernels"] = " core kernels "
    may["parallel"] = " core memory parallel "
    may["cmd"] = " core io memory kernels parallel cmd "

    # Outside headers (by prefix of what stands in <>), and the files that may name them.
    where["yaml.h"] = "^io/yaml\\.c$"
    where["zstd"] = "^io/"
    where["zdict.h"] = "^io/"
    where["xxhash.h"] = "^core/hash\\.c$"
    where["mpi"] = "^parallel/(comm_mpi|launch)\\.[ch]$"
    where["nccl"] = "^kernels/cuda/"
    where["cuda"] = "^kernels/cuda/"
    where["cublas"] = "^kernels/cuda/"
    where["omp.h"] = "^$"
    where["cmocka.h"] = "^$"
}

function complain(text) {
    printf "%s:%d: %s\n", FILENAME, FNR, text
    n_wrong++
}

/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    target = part[2]
    split(FILENAME, folder, "/")
    if (target !~ "/") {
        complain("include \"" target "\": wanted a path from the root")
        next
    }
    split(target, into, "/")
    if (index(may[folder[1]], " " into[1] " ") == 0)
        complain(folder[1] " includes " target ": wanted one of" may[folder[1]])
}

/^[ \t]*#[ \t]*include[ \t]*</ {
    name = $0
    sub(/^[^<]*</, "", name)
    sub(/>.*/, "", name)
    for (prefix in where)
        if (index(name, prefix) == 1 && FILENAME !~ where[prefix])
            complain("<" name "> is not for this file")
}

END {
    if (n_wrong)
        exit 1
}
' $files
echo "check-layers: $(echo "$files" | wc -l) files in order"
