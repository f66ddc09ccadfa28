#!/bin/sh
# Writes the options of the program into angel-config(5).
#
#   man-options.sh ANGEL
set -eu
page=man/angel-config.5
scratch=$(mktemp)
trap 'rm -f "$scratch" "$scratch.options"' EXIT
"$1" help --man-options >"$scratch.options"
grep -qx '\.\\" options begin' "$page" && grep -qx '\.\\" options end' "$page" || {
    echo "man-options: $page has no lines '.\\\" options begin' and '.\\\" options end'" >&2
    exit 1
}
awk -v options="$scratch.options" '
    /^\.\\" options end$/ { inside = 0 }
    !inside { print }
    /^\.\\" options begin$/ {
        inside = 1
        while ((getline line < options) > 0)
            print line
    }' "$page" >"$scratch"
cat "$scratch" >"$page"
