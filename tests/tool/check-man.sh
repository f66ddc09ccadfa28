#!/bin/sh
# Manual pages: mandoc finds no fault, every page that is named is there, and the options
# in angel-config(5) are those of the program.
#
#   check-man.sh ANGEL PAGE ...
set -eu
angel=$1
shift
[ $# -gt 0 ] || { echo "check-man: no pages" >&2; exit 1; }
wrong=0

mandoc -T lint -W warning "$@" || wrong=1

for page in "$@"; do
    for name in $(sed -n 's/^\.Xr \(angel[a-z-]*\) \([1-9]\).*/\1.\2/p' "$page" |
        sort -u); do
        [ -f "man/$name" ] || {
            echo "$page: names $name, which is not there"
            wrong=1
        }
    done
done

# Between these two lines stands what `angel help --man-options` prints.
page=man/angel-config.5
[ -f "$page" ] || { echo "$page: is not there"; exit 1; }
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
sed -n '/^\.\\" options begin$/,/^\.\\" options end$/p' "$page" | sed '1d;$d' >"$scratch"
if ! "$angel" help --man-options | diff -u "$scratch" - >"$scratch.diff"; then
    echo "$page: options differ from the program's; 'make man-options' writes them:"
    head -40 "$scratch.diff"
    wrong=1
fi
rm -f "$scratch.diff"

[ "$wrong" = 0 ] || exit 1
echo "check-man: $# pages in order"
