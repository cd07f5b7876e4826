#!/bin/sh
# Tests docs/course/: its programs are short, compile by the line that its README tells, and print what the first text
# block of their lesson says; so do the answers, each a c block with the text block behind it. Links lead somewhere.
CC=${CC:-cc}
LINKED=${LINKED:-$CC}
work=build/course
. tests/checks.sh
told_by docs/course/README.md
lesson=$(line docs/course/README.md 'cc .*neuron') answers=$(line docs/course/README.md 'cc .*answer')
check "docs/course/README.md tells how to compile both" test -n "$lesson" -a -n "$answers"

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
    check "lesson $number: compiles as told, and prints what the page says" \
        prints "$work/$name.text" "$(echo "$lesson" | sed "s/neuron/$name/g")"
    check "lesson $number: has two answers" test -e "$work/answer$number-2.text"
    for answer in "$work/answer$number"-*.c; do
        answer=${answer%.c}
        cp "$answer.c" "$work/told/answer.c"
        check "$answer compiles as told, and prints what the page says" prints "$answer.text" "$answers"
    done
    check "docs/course/README.md names lesson $number" grep -q "(${page#docs/course/})" docs/course/README.md
done
for page in docs/course/*.md; do
    for link in $(grep -o '\]([^)#]*' "$page" | sed 's/^](//; /playground.html$/d' | sort -u); do
        check "$page: $link is there" test -e "docs/course/$link"
    done
done
report course
