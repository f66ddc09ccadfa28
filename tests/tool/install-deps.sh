#!/bin/sh
# Installs the Debian packages that building and testing need, those that are missing.
# As root, or through sudo. Does nothing, and needs no network, where all are there.
#
#   install-deps.sh [optional]
#
# With `optional`, also what single checks are skipped without: clang for the fuzz
# targets, zsh for its completion. Where those cannot be had, nothing fails.
set -eu

packages='
    gcc libc6-dev make binutils
    libyaml-dev libzstd-dev libxxhash-dev
    libcmocka-dev bats jq zstd mandoc
    openmpi-bin
'
optional=
[ "${1:-}" != optional ] || optional='clang libclang-rt-14-dev zsh'

list() { # one name a space
    echo $*
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "deps: this system has no apt-get; install what these Debian packages hold:" >&2
    echo "deps:   $(list $packages)" >&2
    echo "deps: then 'make' builds and 'make check-fast' tests" >&2
    exit 1
fi

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages $optional \
    2>/dev/null | sed -n 's/ installed$//p') || true

missing_of() { # package ...
    for package in "$@"; do
        printf '%s\n' "$installed" | grep -qxF "$package" || printf ' %s' "$package"
    done
}

missing=$(missing_of $packages)
wished=$(missing_of $optional)
if [ -z "$missing$wished" ]; then
    echo "deps: all packages are installed"
    exit 0
fi

echo "deps: installing$missing$wished"
as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: not root, and there is no sudo; as root run:" >&2
        echo "deps:   apt-get install$missing$wished" >&2
        [ -n "$missing" ] || exit 0
        exit 1
    fi
    as_root=sudo
fi

install() { # package ...
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$@" </dev/null
}

$as_root apt-get update -q || [ -z "$missing" ]
[ -z "$missing" ] || install $missing
[ -z "$wished" ] || install $wished ||
    echo "deps: without$wished; the checks that want them are skipped"

