#!/bin/sh
# Tests docs/course/scratch/train.c. It has at most 600 lines and compiles without warnings as C99. Its losses of every
# step and its final weights have the bits of gradckpt.h, for four schedules, a list from a file, three splits of the
# batch, rows with unequal numbers of targets, other sizes and weight decay. The mean of means has other bits. Wrong
# schedules are refused. The pages name functions that it has. With ITERATIONS (make check), it also trains lesson 5's 150
# steps.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I. -DGRADCKPT_IMPLEMENTATION=}
work=build/from_scratch
. tests/checks.sh
source=docs/course/scratch/train.c
check "train.c has at most 600 lines" test "$(wc -l < $source)" -le 600
check "train.c has at most 100 columns" awk 'length > 100 { print FILENAME ":" NR; bad = 1 } END { exit bad }' $source
check "train.c includes nothing but C" sh -c "! grep '#include' $source | grep -v '<[a-z]*\.h>'"
for other in gcc clang; do
    ! command -v $other > /dev/null || check "train.c: no warnings by $other" $other -std=c99 -pedantic -Wall -Wextra \
        -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wstrict-prototypes -Werror -fsyntax-only $source
done

# The command of the file's first comment, where the compiler has its options
options=$(sed -n 's/^ \*     cc \(.*\) train.c -o train -lm .*/\1/p' $source)
check "train.c tells how to compile it" test "$options"
if $CC $options -o "$work/train" $source -lm 2> "$work/log"; then native=$options; else
    native=$(echo "$options" | sed 's/-march=native//')
fi
check "scratch_train compiles" $CC $native tests/examples/scratch_train.c -o "$work/train" -lm
check "scratch_header compiles" $LINKED -O1 tests/examples/scratch_header.c -o "$work/header" -lm
export OMP_NUM_THREADS=1

# Each line: a name; options of both programs, where M is the number of rows at once.
while read -r name options; do
    "$work/header" $(echo "$options" | sed 's/M/4/') > "$work/want"
    check "$name: gradckpt.h prints losses" sh -c "test \$(grep -c '^loss -*0x' $work/want) = ${options##* }"
    for rows in 1 2 4; do
        for plan in all none halves roots; do
            "$work/train" $plan $(echo "$options" | sed "s/M/$rows/") > "$work/got" 2> "$work/$plan.bytes"
            check "$name: $plan, $rows rows at once: the bits of gradckpt.h" diff "$work/want" "$work/got"
        done
    done
    # bytes PLAN: prints what the plan needs
    bytes() { sed 's/ .*//' "$work/$1.bytes"; }
    check "$name: keeping nothing needs less than segments, these less than all" \
        test "$(bytes none)" -lt "$(bytes halves)" -a "$(bytes halves)" -lt "$(bytes all)"
    check "$name: the square-root rule needs less than all" test "$(bytes roots)" -lt "$(bytes all)"
done << 'END'
lesson 2 2 32 32 8 M 0 0 0 3
unequal 2 2 32 32 8 M 1 0 0 2
sizes 1 3 24 48 4 M 1 0 0 2
decay 1 2 16 64 4 M 0 10 0 3
END

# The mean of means, which both programs can minimise, has other bits for each split.
for rows in 2 4 8; do
    "$work/header" 2 2 32 32 8 $rows 1 0 1 2 > "$work/fault$rows"
    "$work/train" halves 2 2 32 32 8 $rows 1 0 1 2 > "$work/got" 2> "$work/log"
    check "the mean of means, $rows rows at once: the bits of gradckpt.h with the same fault" diff "$work/fault$rows" "$work/got"
done
check "the mean of means depends on the split" sh -c "test \$(sort -u $work/fault2 $work/fault4 $work/fault8 | wc -l) = 3"
"$work/train" halves 2 2 32 32 8 2 1 0 0 2 2> "$work/log" | tail -n 1 > "$work/got"
check "the mean of means has other bits than one division" sh -c "! cmp -s $work/got $work/fault2"

# A list of entries from a file: one block, which keeps everything; then lists with errors
awk 'BEGIN {
    for (i = 0; i < 18; i++)
        print "f", i
    for (i = 17; i >= 0; i--)
        print "b", i
}' > "$work/list"
one='1 2 32 32 8 2 0 0 0 2'
"$work/header" $one > "$work/want"
"$work/train" "$work/list" $one > "$work/got" 2> "$work/log"
check "a list from a file: the bits of gradckpt.h" diff "$work/want" "$work/got"
check "train.c reads the same list" sh -c "$CC $native $source -o $work/main -lm && { sed 's/^b 17/f 2\n&/' $work/list |
    $work/main 1 2; test \$? = 1; }"
# refused NAME SED: the list, changed by a sed script, is refused
refused()
{
    sed "$2" "$work/list" > "$work/wrong"
    check "a list: $1" fails_with 1 'entry [0-9]* of the schedule' "$work/train" "$work/wrong" $one
}
refused "a tensor that is not live" 's/^b 17/x 16\n&/'
refused "a tensor that is live" 's/^b 17/f 4\n&/'
refused "backwards in the wrong order" '/^b 17/d'
refused "no last backward" '/^b 0$/d'
refused "an op that is not there" 's/^f 17/f 18/'
refused "no entries" d

# Pages name functions: a lesson in the sentence after the link to train.c, the README in its tables.
names() # names PAGE
{
    { tr '\n' ' ' < "$1" | grep -o 'scratch/train.c)[^.]*\.'; grep '^|' "$1"; } | grep -o '`[a-z_0-9]*`' | tr -d '`' | sort -u
}
for page in docs/course/[0-9]*.md docs/course/scratch/README.md; do
    check "$page names functions of train.c" test "$(names "$page")"
    for name in $(names "$page"); do
        check "$page: train.c has $name" grep -Eq "[ *]$name(\(|;| = \{)" $source
    done
done

if with_tries; then
    "$work/header" 2 2 32 32 8 4 0 0 0 150 > "$work/want"
    for plan in all none halves roots; do
        "$work/train" $plan 2 2 32 32 8 8 0 0 0 150 > "$work/got" 2> "$work/log"
        check "lesson 5, 150 steps, $plan" diff "$work/want" "$work/got"
    done
    check "lesson 5: the hash of the page" grep -q "weights $(tail -n 1 "$work/want")" docs/course/5-gpt.md
    check "train.c has no undefined behaviour" sh -c "$CC -std=c99 -O1 -ffp-contract=off -fsanitize=address,undefined \
        -fno-sanitize-recover=all tests/examples/scratch_train.c -o $work/sane -lm && $work/sane none 2 2 32 32 8 2 1 0 0 1"
fi
report from_scratch
