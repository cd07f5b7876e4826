#!/bin/sh
# build.sh OUT: the playground as one HTML file. Needs clang and wasm-ld.
set -e
case $1 in /*) out=$1 ;; *) out=$PWD/$1 ;; esac
mkdir -p "$(dirname "$out")"
cd "$(dirname "$0")"
wasm=$(mktemp)
trap 'rm -f "$wasm"' EXIT
${WASM_CC:-clang} --target=wasm32 -mbulk-memory -std=gnu99 -O2 -ffreestanding -nostdlib -Ilibc -I../.. \
    -Wl,--no-entry -Wl,-z,stack-size=1048576 -Wl,--strip-all engine.c -o "$wasm"
# Replaces a line "@FILE" by that file and "@engine" by the program as text.
awk -v wasm="$wasm" '
    /^@engine$/ { command = "base64 -w 0 " wasm; while ((command | getline line) > 0) print line; print ""; next }
    /^@/ { file = substr($0, 2); while ((getline line < file) > 0) print line; close(file); next }
    { print }' page.html > "$out"
