#!/bin/sh
# Installs the Debian packages that building and testing need, those that are missing.
# As root, or through sudo. Does nothing, and needs no network, where all are there.
set -eu

packages='
    gcc libc6-dev make binutils
    libyaml-dev libzstd-dev libxxhash-dev
    libcmocka-dev bats jq zstd mandoc
    openmpi-bin
'

list() { # one name a space
    echo $*
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "deps: this system has no apt-get; install what these Debian packages hold:" >&2
    echo "deps:   $(list $packages)" >&2
    echo "deps: then 'make' builds and 'make check-fast' tests" >&2
    exit 1
fi

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $packages 2>/dev/null |
    sed -n 's/ installed$//p') || true
missing=
for package in $packages; do
    printf '%s\n' "$installed" | grep -qxF "$package" || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "deps: all packages are installed"
    exit 0
fi

echo "deps: installing$missing"
as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: not root, and there is no sudo; as root run:" >&2
        echo "deps:   apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
$as_root apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $missing </dev/null
