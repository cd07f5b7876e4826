#!/bin/sh
# build.sh OUT: the playground as one HTML file. Needs clang and wasm-ld.
set -e
case $1 in /*) out=$1 ;; *) out=$PWD/$1 ;; esac
mkdir -p "$(dirname "$out")"
cd "$(dirname "$0")"
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
# wasm TARGET PROGRAM OPTIONS...: compiles PROGRAM.c
wasm()
{
    target=$1 program=$2
    shift 2
    ${WASM_CC:-clang} "--target=$target" -mbulk-memory -std=gnu99 "$@" -ffreestanding -nostdlib -Ilibc -I../.. \
        -Wl,--no-entry -Wl,-z,stack-size=1048576 -Wl,--strip-all "$program.c" -o "$programs/$program"
}
wasm wasm32 engine -O2
wasm wasm64 fits -Oz
# Replaces a line "@FILE" by that file, "@engine" and "@fits" by the program as text.
awk -v programs="$programs" '
    /^@(engine|fits)$/ {
        command = "base64 -w 0 " programs "/" substr($0, 2)
        while ((command | getline line) > 0) print line
        print ""
        next
    }
    /^@/ { file = substr($0, 2); while ((getline line < file) > 0) print line; close(file); next }
    { print }' page.html > "$out"
