#!/bin/sh
# Tests docs/course/. A lesson's program is short, compiles with the command in the course's README, and prints the
# first text block of its lesson. For each exercise of the course and of docs/exercises.md, the given answer must pass
# the exercise's check, also with the check's second set of values, and must print the text block after it. The starter
# must compile and fail the check, and so must a program that hangs, crashes or prints a constant. Grading a folder of
# submissions must give the expected table; slides and links must be right. Without ITERATIONS (make test), only one
# exercise out of six is tested.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I. -DGRADCKPT_IMPLEMENTATION=}
work=build/course
. tests/checks.sh
lines_of docs/course/README.md
lesson=$(line docs/course/README.md 'cc .*neuron') answers=$(line docs/course/README.md 'cc .*answer')
check "docs/course/README.md tells how to compile both" test -n "$lesson" -a -n "$answers"

for page in docs/course/[0-9]-*.md; do
    name=${page#docs/course/?-} number=${page#docs/course/}
    name=${name%.md} number=${number%%-*}
    check "lesson $number: its program has fewer than 80 lines" test "$(wc -l < "docs/course/$name.c")" -lt 80
    awk '/^```text$/ { on = 1; next } /^```/ && on { exit } on' "$page" > "$work/$name.text"
    check "lesson $number: compiles by the line of the page, and prints what the page says" \
        prints "$work/$name.text" "$(echo "$lesson" | sed "s/neuron/$name/g")"
    check "docs/course/README.md names lesson $number" grep -q "(${page#docs/course/})" docs/course/README.md
    check "lesson $number leads to the playground" grep -qE '\(../../build/playground.html#[^)]*\)' "$page"
    for heading in Questions Exercises 'Read with it'; do
        check "lesson $number: $heading" grep -qx "## $heading" "$page"
    done
done
for page in docs/course/*.md; do
    for link in $(grep -o '\]([^)#]*' "$page" | sed 's/^](//; /playground.html$/d' | sort -u); do
        check "$page: $link is there" test -e "docs/course/$link"
    done
done

# ---- the planner from scratch ----
scratch=docs/course/scratch
check "plan.c has at most 250 lines" test "$(wc -l < $scratch/plan.c)" -le 250
check "plan.c names how to compile it" grep -q '^ \*     cc -std=c99 -O2 plan.c -o plan' $scratch/plan.c
check "plan.c is C99, without warnings" $CC -std=c99 -pedantic -Wall -Wextra -Werror $scratch/plan.c -o "$work/plan"
sed -n '/^    bytes/,/rule:/s/^    //p' $scratch/exercises.md > "$work/plan.text"
check "plan.c prints what $scratch/exercises.md says" sh -c "$work/plan | diff $work/plan.text -"
check "plan.c checks the schedule that it prints" sh -c "$work/plan 12 7 40 | grep -q '^checked: 39 bytes, work 231\$'"
check "plan.c: too few bytes" sh -c "$work/plan 12 7 9 | grep -q '^9 bytes are too few\$'"
check "plan.c: too many ops" fails_with 2 'OPS, 1 to 32' "$work/plan" 33

if command -v python3 > /dev/null; then
    questions() { python3 tests/examples/questions.py $scratch/plan.c "$1" > "$work/questions.$1"; }
    check "questions.py asks about plan.c" questions 1
    check "questions.py: 30 questions" test "$(grep -c '^[0-9]*\. ' "$work/questions.1")" = 30
    check "questions.py: another seed" questions 2
    check "questions.py: it asks other questions" sh -c "! cmp '$work/questions.1' '$work/questions.2'"
    sed -n 's/^    \([0-9]*\): \(.*\)/\1 \2/p' "$work/questions.1" > "$work/places"
    check "questions.py: each names a line as it is" awk -v file=$scratch/plan.c '
        BEGIN { while ((getline line < file) > 0) { sub(/^ +/, "", line); text[++n] = line } }
        { at = $1; sub(/^[0-9]+ /, ""); if ($0 != text[at]) { print at ": " $0; bad = 1 } }
        END { exit bad || NR != 30 }' "$work/places"
fi

# ---- exercises ----
[ "$object" ] || LINKED="$CC -I. -DGRADCKPT_IMPLEMENTED $work/page/gradckpt.o"
export LIMIT=10 AT=$work/class LINKED="$LINKED -O0 -w"
course() { sh docs/course/tools/course.sh "$@"; }
# says WORDS NUMBER FILE: the check of exercise NUMBER on FILE ends with WORDS, and its status is 0 only if the answer
# is right
says()
{
    course exercise "$2" "$3" > "$work/said"
    [ $? -eq "$([ "$1" = right ]; echo $?)" ] && tail -n 1 "$work/said" | grep -qx "exercise $2: $1" || {
        cat "$work/said"
        return 1
    }
}
because() { grep -qe "$1" "$work/said" || { cat "$work/said"; return 1; }; }
check "course.sh prepare" course prepare
check "each lesson has two exercises" \
    test "$(grep -c '^[0-9]\.[12] ' "$AT/list")" = $((2 * $(ls docs/course/[0-9]-*.md | wc -l)))
check "the list has every heading of both exercises.md" \
    test "$(grep -c '^[0-9]* ' "$AT/list")" = "$(cat docs/exercises.md docs/course/scratch/exercises.md | grep -c '^## ')"
cp "$AT/1.1.c" "$work/page/answer.c"
check "an answer compiles by the line of the page, and prints what the page says" prints "$AT/1.1.text" "$answers"
for number in 14 15; do
    cp "$AT/$number.c" "$work/page/answer.c"
    check "exercise $number: compiles by the line of its page, and prints what the page says" \
        prints "$AT/$number.text" "$(line $scratch/exercises.md 'cc .*answer')"
done
while read -r number page; do
    in_turn 6 || continue
    check "exercise $number: the answer is right" says right "$number" "$AT/$number.c"
    sed -n '/^    /s///p' "$work/said" > "$work/here.text"
    check "exercise $number: and prints what $page says" diff "$AT/$number.text" "$work/here.text"
    check "exercise $number: is tried twice" because '^with .*: right, too'
    check "exercise $number: a constant would not do: other values have other numbers" \
        sh -c "! awk -f docs/course/tools/compare.awk $AT/$number.text $AT/$number.with.text"
    sed 's/not written yet/soon/' "$AT/starters/exercise-$number.c" > "$work/starter.c"
    check "exercise $number: the starter is not" says 'not yet right' "$number" "$work/starter.c"
    check "exercise $number: it prints something" because soon
    check "exercise $number: what is missing is said" because 'is expected, as in the line'
done < "$AT/list"
sed 's,/[*] yours,/* ours,' docs/course/4-accumulation.md > "$work/4-accumulation.md"
mkdir -p "$work/bare/starters"
check "a page without a part to write is refused" fails_with 1 'exercise 4.1 has no part from' \
    awk -v to="$work/bare" -f docs/course/tools/pages.awk "$work/4-accumulation.md"
starter=$AT/starters/exercise-4.1.c
check "an unchanged starter is \"not begun\"" says 'not begun' 4.1 "$starter"
sed 's/puts.*/sleep(100);/; s/#include <stdio.h>/&\n#include <unistd.h>/' "$starter" > "$work/waits.c"
export LIMIT=1
check "a program that waits" says 'time out' 4.1 "$work/waits.c"
sed 's/puts.*/puts(fork() == 0 ? "begun" : "alone");/; s/#include <stdio.h>/&\n#include <unistd.h>/' \
    "$starter" > "$work/forks.c"
check "a program that begins another" says 'not yet right' 4.1 "$work/forks.c"
check "a program that begins another: only the first process runs" \
    sh -c "grep alone '$work/said' && ! grep begun '$work/said'"
printf '#include "/dev/zero"\n' > "$work/zero.c"
check "a file that never ends" says 'does not compile' 4.1 "$work/zero.c"
check "an exercise that does not exist is refused" \
    fails_with 2 'there is no exercise 99; there are: 1.1 ' course exercise 99 "$starter"
check "a file that does not exist is refused" fails_with 2 'make starters writes it' course exercise 4.1 "$work/none.c"

# ---- make starters, make grade ----
check "course.sh starters writes starters" course starters "$work/mine"
echo mine > "$work/mine/exercise-1.c"
check "course.sh starters can be repeated" course starters "$work/mine"
check "course.sh does not overwrite a student's file" grep -qx mine "$work/mine/exercise-1.c"
if with_tries; then
check "submissions.sh makes a folder of submissions" sh tests/examples/submissions.sh "$work/their work" "$AT"
check "make grade" sh -c "sh docs/course/tools/course.sh grade '$work/their work' > $work/table"
cat > "$work/want" << 'END'
| student | 3.1 | 4.1 | 4.2 | passed |
|---|---|---|---|---|
| Ada | pass | pass | pass | 3 of 3 |
| Ben B.  | does not compile | pass | wrong | 1 of 3 |
| Cy, "C" \| jr | not begun | wrong | crashed | 0 of 3 |
| Dora | wrong | time out | too much output | 0 of 3 |
| Emil | pass | missing | pass | 2 of 3 |
| Fay | missing | missing | missing | 0 of 3 |
END
check "the table" sh -c "grep '^|' $work/table | diff $work/want -"
check "grades.csv quotes names as spreadsheets expect" \
    grep -qx '"Cy, ""C"" | jr",not begun,wrong,crashed,0 of 3' "$AT/grades.csv"
# logged STUDENT WORDS: the log of the student has a line with WORDS
logged() { grep -qe "$2" "$AT/grades/$1.log" || { cat "$AT/grades/$1.log"; return 1; }; }
check "why: does not compile" logged 'Ben B. ' 'exercise-3.1.c:[0-9]*:.*error'
check "why: wrong" logged 'Ben B. ' '^26 is expected, as in the line .*; behind 23 comes 23$'
check "why: a constant" logged 'Cy, "C" | jr' '^with ONE=2.5 NINE=1.5: 1.60 is expected'
check "why: crashed" logged 'Cy, "C" | jr' '^it crashed: a read or write where it has no memory'
check "why: prints nothing" logged Dora '^it prints nothing'
check "why: time out" logged Dora '^it had not ended after 1 seconds'
check "why: too much output" logged Dora '^it printed more than 64 KB'
check "other files are named" logged Emil '^not looked at: .*/notes.txt'
fi
check "a folder without any" fails_with 2 'no folder in .* has an exercise-N.c' course grade docs

# ---- make slides ----
slides()
{
    awk -v css=docs/course/tools/slides.css -v js=docs/course/tools/slides.js -f docs/course/tools/slides.awk "$@" \
        > "$work/slides.html"
}
check "make slides" slides docs/course/[0-9]-*.md
want=$(cat docs/course/[0-9]-*.md | awk '
    /^<!-- slide/ { n += split($0, part, "|") }
    /^# / || /^\*\*In the playground/ || /^\*\*(First|Second)\.\*\*/ { n++ }
    /^## Questions/ { n += 2 }
    END { print n + 1 }')
check "slides: $want of them" test "$(grep -c '^<section ' "$work/slides.html")" = "$want" -a "$want" -ge 70
check "slides: each has a heading and something below it" awk '
    /^<section/ { n = 0 }
    /^<(h2|p|ol|ul|pre)/ { n++ }
    /^<\/section/ && n < 2 { print "an empty slide, line " NR; bad = 1 }
    END { exit bad }' "$work/slides.html"
grep -o ' id="[^"]*"' "$work/slides.html" | sed 's/.*="//; s/"//' | sort > "$work/ids"
check "slides: an id stands once" test -z "$(uniq -d "$work/ids")"
for link in $(grep -o 'href="[^"]*"' "$work/slides.html" | sed 's/^href="//; s/"$//' | sort -u); do
    case $link in
    '#'*) check "slides: $link is there" grep -qx "${link#?}" "$work/ids" ;;
    playground.html#*) ;; # a page that make playground writes
    *) check "slides: $link is there" test -e "build/${link%%#*}" ;;
    esac
done
check "slides ask for nothing from any network" \
    sh -c "! grep -E '(src|href)=\"?https?:|@import|url\\(' $work/slides.html"
sed 's/<!-- slide 1-4:/<!-- slide 1-40:/' docs/course/1-neuron.md > "$work/1-neuron.md"
check "slides: a sentence that is not there is refused" \
    fails_with 1 '1-neuron.md:.*there is no sentence 5' slides "$work/1-neuron.md"
sed 's/<!-- code neuron.c "/&no /' docs/course/1-neuron.md > "$work/1-neuron.md"
cp docs/course/neuron.c "$work"
check "slides: lines that are not there are refused" \
    fails_with 1 'neuron.c has no 2 lines from' slides "$work/1-neuron.md"
report course
