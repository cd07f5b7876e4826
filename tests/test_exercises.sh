#!/bin/sh
# Tests pages with programs in them. docs/exercises.md: each ```c block is a program, and prints the
# ```text block behind it. docs/from-pytorch.md: the blocks together are one program, in order, which
# runs; those that begin with "static" stand before its main.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -DGRADCKPT_IMPLEMENTATION -I.}
work=build/exercises
. tests/checks.sh
FLAGS='-O0 -Wall -Wextra -Iexamples'

awk -v work="$work" '
    /^## / { n++ }
    /^```(c|text)$/ { file = work "/" n ($0 == "```c" ? ".c" : ".text"); next }
    /^```/ { file = "" }
    file { print > file }
' docs/exercises.md
count=0
for program in "$work"/*.c; do
    name=${program%.c}
    count=$((count + 1))
    check "exercise ${name##*/}: compiles" $LINKED $FLAGS "$program" -o "$name"
    check "exercise ${name##*/}: runs" sh -c "$name > $name.out"
    check "exercise ${name##*/}: prints what the page says" diff "$name.text" "$name.out"
done
check "every exercise has an answer" test "$count" -ge 12 -a "$count" = "$(grep -c '^## ' docs/exercises.md)"
report exercises
