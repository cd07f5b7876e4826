#!/bin/sh
# Tests docs/course/: its programs are short, compile and print what the first text block of their lesson says; so do
# the answers, each a c block with the text block behind it. Links lead somewhere.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -DGRADCKPT_IMPLEMENTATION -I.}
work=build/course
. tests/checks.sh
FLAGS='-O1 -Wall -Wextra -Idocs/course'

for page in docs/course/[1-6]-*.md; do
    name=${page#docs/course/?-} number=${page#docs/course/}
    name=${name%.md} number=${number%%-*}
    check "lesson $number: its program has fewer than 80 lines" test "$(wc -l < "docs/course/$name.c")" -lt 80
    rm -f "$work/answer$number"-*
    awk -v first="$work/$name.text" -v answer="$work/answer$number" '
        /^```c$/ { file = answer "-" ++n ".c"; next }
        /^```text$/ { file = n ? answer "-" n ".text" : first; next }
        /^```/ { file = "" }
        file { print > file }
    ' "$page"
    check "lesson $number: compiles" $LINKED $FLAGS "docs/course/$name.c" -o "$work/$name"
    check "lesson $number: prints what the page says" sh -c "$work/$name | diff $work/$name.text -"
    check "lesson $number: has two answers" test -e "$work/answer$number-2.text"
    for answer in "$work/answer$number"-*.c; do
        answer=${answer%.c}
        check "$answer compiles" $LINKED $FLAGS "$answer.c" -o "$answer"
        check "$answer prints what the page says" sh -c "$answer | diff $answer.text -"
    done
    check "docs/course/README.md names lesson $number" grep -q "(${page#docs/course/})" docs/course/README.md
done
for page in docs/course/*.md; do
    for link in $(grep -o '\]([^)#]*' "$page" | sed 's/^](//; /playground.html$/d' | sort -u); do
        check "$page: $link is there" test -e "docs/course/$link"
    done
done
report course
