#!/bin/sh
# Tests builds that omit features by GCKPT_NO_* switches (manual, 4; docs/building.md). Such a feature is a "part".
#
#     sh tests/compile/features.sh check OBJECT  checks the builds; OBJECT is the whole header, compiled by gcc -O2
#     sh tests/compile/features.sh table         measures the lines, compile time and code that a part adds
#     sh tests/compile/features.sh parts PAGE    prints the names of the parts, from the table in docs/building.md
# "check" compiles the header without one part at a time, without warnings; editions.sh compiles it without the parts
# that are in src/EDITIONS. It runs the build without any part and the builds of the sets gpt and tuning: each must
# define the functions that its header declares and train to the bits of the whole header. With CHECK_ALL, it also runs
# the builds without one part. The check fails if the code of a set is larger than the set's limit in KB.
CC=${CC:-gcc}
B=build/check/parts
W="-Wall -Wextra -Wunused-function -Wundef -Werror"
mkdir -p $B
names_in() { sed -n 's/^| `GCKPT_NO_\([A-Z0-9_]*\)` .*/\1/p' "$1" | grep -vx 'HEAP\|STDIO\|FAST\|TEXT'; } # no parts: these four
parts=$(names_in docs/building.md)
# Parts that change kernels. All other parts are tested with GCKPT_NO_FAST, which compiles faster.
in_kernels="ACTIVATIONS TRAINING BF16 QUANT ATTENTION RECURRENT IMAGES LOSSES AMX AVX512 AVX2"

# The largest allowed size of the whole header in KB, compiled by gcc -O2 for x86-64. A change that needs more raises
# the number in a separate commit. The check also fails if docs/benchmarks/features.tsv differs from the measured size
# by more than 3 %.
all_in_kb=860

# Each set is a kind of program: the parts that it omits, its description, and the most KB of .text that the rest may
# have (gcc -O2, x86-64).
sets="gpt tuning firmware"
gpt="TILES EXPORT NOTES FRONTIER RECURRENT IMAGES LOSSES RANKS CACHES QUANT BF16"
gpt_is="A GPT trained in fp32, within a budget"
gpt_kb=552
tuning="TILES EXPORT FRONTIER RECURRENT IMAGES LOSSES RANKS BF16"
tuning_is="Fine-tuning: quantised weights, LoRA, files, generation"
tuning_kb=605
firmware="TILES EXPORT FILES NOTES FRONTIER SEARCH RECURRENT IMAGES LOSSES RANKS FETCH CACHES DEBUG QUANT BF16"
firmware_is="A device that trains what was planned elsewhere, without fetching or generating"
firmware_kb=123

macros()                # macros PART...: prints the options that omit these parts
{
    for part; do
        printf -- '-DGCKPT_NO_%s ' "$part"
    done
    [ "$*" != "$firmware" ] || printf -- '-DGCKPT_SMALL -Os '
}

text_kb()               # text_kb OBJECT: prints the KB of .text
{
    size "$1" | awk 'NR == 2 { printf "%.0f\n", $1 / 1000 }'
}

# there OPTIONS...: prints the parts that a build with these options has, i.e. whose switch the header leaves undefined.
there()
{
    for part in $parts; do
        printf '#ifndef GCKPT_NO_%s\nthere %s\n#endif\n' "$part" "$part"
    done | { echo '#include "gradckpt.h"'; cat; } | $CC -E -P -I. "$@" - | sed -n 's/^there //p' | sort
}

# names OBJECT OPTIONS...: checks that the object defines exactly the functions that the header declares.
names()
{
    object=$1
    shift
    $CC -E -P "$@" gradckpt.h | tr '\n' ' ' | sed 's/[;{}]/\n/g' |
        sed -n 's/^ *extern [^(]*[ *]\(gckpt_[a-z0-9_]*\)(.*/\1/p' | grep -v '^gckpt_cuda_' |
        sort -u > "$object.declared"
    nm "$object" | awk '$2 == "T" && /gckpt_/ { print $3 }' | sort -u > "$object.defined"
    test -s "$object.declared" && diff "$object.declared" "$object.defined"
}

# same_bits WHAT FILE: compares the hashes of WHAT in FILE with those of the whole header: without attention, one of two
same_bits()
{
    none=' with attention'
    ! grep -q '^ATTENTION' "$2" || none=none
    [ "$(grep "^$1" "$2")" = "$(grep "^$1" $B/whole.txt | grep -v "$none")" ]
}

# trains NAME OPTIONS...: checks that a program built with these options trains to the bits of the whole header.
trains()
{
    at=$B/$1
    shift
    $CC -std=gnu99 -O0 $W "$@" -I. -c tests/compile/features.c -o "$at.o" && $CC "$at.o" -lm -o "$at" &&
        "$at" > "$at.txt" || { cat "$at.txt"; return 1; }
    names "$at.o" "$@" || return 1
    same_bits forward "$at.txt" || return 1
    ! grep -q '^TRAINING' "$at.txt" || same_bits trained "$at.txt" || return 1
    grep -v '^forward\|^trained' "$at.txt" | sort > "$at.has"
    there "$@" | grep -vx 'AMX\|AVX512\|AVX2' | diff - "$at.has"
}

fits()                  # fits SET [OBJECT]: checks that .text of the set is within its budget
{
    eval "left=\$$1 most=\$$1_kb"
    object=${2:-$B/$1-size.o}
    [ "$2" ] || $CC -std=gnu99 -O2 -w $(macros $left) -I. -c tests/compile/implementation.c -o "$object" || return 1
    kb=$(text_kb "$object")
    echo "$1: $kb KB of .text, the budget is $most"
    [ "$kb" -le "$most" ]
}

compiles()              # compiles NAME OPTIONS...: checks that the header compiles without a warning
{
    shift
    $CC -std=gnu99 -fsyntax-only $W "$@" -I. tests/compile/features.c
}

check()                 # check OBJECT: runs all checks
{
    bad=0
    left_out=compiles
    [ -z "$CHECK_ALL" ] || left_out=trains
    : > $B/whole.txt
    $CC -std=gnu99 -O0 $W -I. tests/compile/features.c -lm -o $B/whole && $B/whole > $B/whole.txt || return 1
    for part in $parts; do
        [ -n "$CHECK_ALL" ] || ! grep -q "GCKPT_NO_$part\b" src/EDITIONS || continue # tests/compile/editions.sh compiles these
        fast=-DGCKPT_NO_FAST
        case " $in_kernels " in *" $part "*) fast= ;; esac
        $left_out "$part" $fast "-DGCKPT_NO_$part" && echo "without $part: ok" || { echo "FAIL without $part"; bad=1; }
    done
    trains all $(macros $parts) && echo "without all: ok" || { echo "FAIL without all"; bad=1; }
    $left_out rest $(macros $(echo "$parts" | grep -vx TRAINING)) && echo "without all but training: ok" ||
        { echo "FAIL without all but training"; bad=1; }
    for set in $sets; do
        eval "left=\$$set"
        [ $set = firmware ] || trains $set $(macros $left) || { echo "FAIL $set"; bad=1; }
        fits $set || { echo "FAIL $set is too large"; bad=1; }
    done
    all_in= fits all_in "$1" || { echo "FAIL the whole is too large"; bad=1; }
    logged=$(awk -F '\t' '$1 == "the whole: code" { print $2 }' docs/benchmarks/features.tsv)
    [ $((kb * 100)) -le $((${logged:-0} * 103)) ] && [ $((kb * 103)) -ge $((${logged:-0} * 100)) ] ||
        { echo "FAIL docs/benchmarks/features.tsv has ${logged:-no} KB, measured are $kb KB: make features"; bad=1; }
    return $bad
}

# measure NAME OPTIONS...: sets s to the seconds to compile, k to KB of .text, l to lines of code in the header.
measure()
{
    object=$B/$1-size.o
    shift
    s=$( (
        $CC -std=gnu99 -O2 -w "$@" -I. -c tests/compile/implementation.c -o "$object"
        times
    ) | tr 'ms' '  ' | awk 'NR == 2 { printf "%.2f", 60 * $1 + $2 + 60 * $3 + $4 }')
    k=$(text_kb "$object")
    l=$($CC -E -DGRADCKPT_IMPLEMENTATION "$@" gradckpt.h | awk '
        /^# [0-9]+ "/ { line = $2; here = /"gradckpt.h"/; next }
        { if (here && /[^ ]/) seen[line] = 1; line++ }
        END { for (i in seen) n++; print n }')
}

row()                   # row NAME: prints a table row with the figures that `measure` has set
{
    echo "| $1 | $s s | $l | $k KB |"
}

# Prints the tables that make features records: one with builds, one with what each part adds. Compile times of two
# builds that differ by less than 15 % count as equal.
table()
{
    echo "| build | gcc $($CC -dumpversion) -O2 | lines | code |"
    echo '|---|--:|--:|--:|'
    measure whole
    whole="$s $k $l"
    row 'the whole'
    measure whole -DGCKPT_NO_FAST
    row 'the whole with GCKPT_NO_FAST'
    for set in $sets; do
        eval "left=\$$set"
        measure $set $(macros $left)
        row "set $set"
    done
    measure all $(macros $parts)
    row 'all parts left out'
    measure whole -ffp-contract=off -fPIC -fopenmp
    row gradckpt.o
    echo
    echo '| part | lines | time to compile | code | left out with it |'
    echo '|---|--:|--:|--:|---|'
    n=0
    for part in $parts; do
        if [ $((n += 1)) -gt 1 ] && [ $((n % 3)) -eq 1 ]; then # repeated, since a machine's speed changes with time
            measure whole
            whole="$s $k $l"
        fi
        measure "$part" "-DGCKPT_NO_$part"
        others=$(there "-DGCKPT_NO_$part" > $B/there; echo "$parts" | sort | comm -23 - $B/there | grep -vx "$part" | tr '\n' ' ')
        echo "$whole $s $k $l $part $others" | awk '{
            saved = 100 * ($1 - $4) / $1
            saved = saved < 15 ? "-" : sprintf("%.0f %%", saved)
            printf "| saved by GCKPT_NO_%s | %d | %s | %d KB |", $7, $3 - $6, saved, $2 - $5
            for (i = 8; i <= NF; i++) printf " %s", $i
            print " |" }'
    done
    for set in $sets; do
        eval "left=\$$set is=\$${set}_is"
        printf '\nSet %s, %s:\n\n```text\n' "$set" "$is"
        echo $(macros $left) | fold -s -w 100 | sed 's/ *$//'
        echo '```'
    done
}

case $1 in
check | table) "$@" ;;
parts) names_in "$2" ;;
*) sed -n '2,12s/^# //p' "$0"; exit 2 ;;
esac
