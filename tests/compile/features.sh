#!/bin/sh
# Parts that can be left out (manual, 4; docs/parts.md).
#
#     sh tests/compile/features.sh check OBJECT  each part left out alone compiles without a warning. All left out and two
#                                         usual sets do, too; they define what they declare, train to the same bits, and have
#                                         the parts that they should have. With CHECK_ALL, so does each part left out alone.
#                                         OBJECT: the whole header by gcc -O2
#     sh tests/compile/features.sh table     what each saves of lines, time to compile, and code: the tables of docs/parts.md
#
# A budget of KB of code stands with each set; the check fails above it.
CC=${CC:-gcc}
B=build/check/parts
W="-Wall -Wextra -Wunused-function -Wundef -Werror"
mkdir -p $B
parts=$(sed -n '/^ \*    Parts: /,/^ \*    OpenMP /s/^ \*    GCKPT_NO_\([A-Z0-9]*\) .*/\1/p' gradckpt.h)
in_kernels="TRAINING BF16 QUANT RECURRENT IMAGES LOSSES AMX AVX512 AVX2" # the others are left out of a build without fast kernels: sooner

# The largest size of the complete header in KB, by gcc -O2 on x86-64. A change that needs more raises it in a commit of
# its own. The check also fails if docs/parts.md differs from the measured size by more than 3 %.
all_in_kb=890

# Usual sets: what a program of its kind leaves out, and KB of .text that the rest may have (gcc -O2, x86-64).
sets="gpt tuning firmware"
gpt="TILES PRINT CHECK EXPORT NOTES FIT FRONTIER RECURRENT IMAGES LOSSES RANKS CACHES QUANT BF16"
gpt_is="A GPT trained in fp32, within a budget"
gpt_kb=552
tuning="TILES PRINT CHECK EXPORT FIT FRONTIER RECURRENT IMAGES LOSSES RANKS BF16"
tuning_is="Fine-tuning: quantised weights, LoRA, files, generation"
tuning_kb=605
firmware="TILES PRINT CHECK EXPORT FILES NOTES FIT FRONTIER SEARCH RECURRENT IMAGES LOSSES RANKS FETCH CACHES DEBUG QUANT BF16"
firmware_is="A device that trains what was planned elsewhere, without fetching or generating"
firmware_kb=123

macros()                # macros PART...
{
    for part; do
        printf -- '-DGCKPT_NO_%s ' "$part"
    done
    [ "$*" != "$firmware" ] || printf -- '-DGCKPT_SMALL -Os '
}

text_kb()               # text_kb OBJECT
{
    size "$1" | awk 'NR == 2 { printf "%.0f\n", $1 / 1000 }'
}

# The parts that are there with these options: what the header has left of the list, as the compiler sees it.
there()
{
    for part in $parts; do
        printf '#ifndef GCKPT_NO_%s\nthere %s\n#endif\n' "$part" "$part"
    done | { echo '#include "gradckpt.h"'; cat; } | $CC -E -P -I. "$@" - | sed -n 's/^there //p' | sort
}

# What is declared is defined, and nothing else: names OBJECT options...
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

# trains NAME options...: a build does, to the bits of the whole one
trains()
{
    at=$B/$1
    shift
    $CC -std=gnu99 -O0 $W "$@" -I. -c tests/compile/features.c -o "$at.o" && $CC "$at.o" -lm -o "$at" &&
        "$at" > "$at.txt" || { cat "$at.txt"; return 1; }
    names "$at.o" "$@" || return 1
    [ "$(grep '^forward' "$at.txt")" = "$(grep '^forward' $B/whole.txt)" ] || return 1
    ! grep -q '^TRAINING' "$at.txt" || [ "$(grep '^trained' "$at.txt")" = "$(grep '^trained' $B/whole.txt)" ] || return 1
    grep -v '^forward\|^trained' "$at.txt" | sort > "$at.has"
    there "$@" | grep -vx 'AMX\|AVX512\|AVX2' | diff - "$at.has"
}

fits()                  # fits SET [OBJECT]: its .text keeps to its budget
{
    eval "left=\$$1 most=\$$1_kb"
    object=${2:-$B/$1-size.o}
    [ "$2" ] || $CC -std=gnu99 -O2 -w $(macros $left) -I. -c tests/compile/implementation.c -o "$object" || return 1
    kb=$(text_kb "$object")
    echo "$1: $kb KB of .text, $most are possible"
    [ "$kb" -le "$most" ]
}

compiles()              # compiles NAME options...: without a warning
{
    shift
    $CC -std=gnu99 -fsyntax-only $W "$@" -I. tests/compile/features.c
}

check()                 # check OBJECT
{
    bad=0
    left_out=compiles
    [ -z "$CHECK_ALL" ] || left_out=trains
    : > $B/whole.txt
    $CC -std=gnu99 -O0 $W -I. tests/compile/features.c -lm -o $B/whole && $B/whole > $B/whole.txt || return 1
    for part in $parts; do
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
    documented=$(sed -n 's/.*The whole: .* lines of code, \([0-9]*\) KB of .*/\1/p' docs/parts.md)
    [ $((kb * 100)) -le $((${documented:-0} * 103)) ] && [ $((kb * 103)) -ge $((${documented:-0} * 100)) ] ||
        { echo "FAIL docs/parts.md says ${documented:-no} KB, measured are $kb KB: make features"; bad=1; }
    return $bad
}

# measure NAME options...: seconds, KB of .text and lines (of code, in the header) as $s, $k and $l
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

table()
{
    measure whole
    whole="$s $k $l"
    machine=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | head -n 1)
    echo "gcc -O2 (the firmware: -Os -DGCKPT_SMALL), ${machine:-this machine}. The whole: $l lines of code, $k KB of .text."
    echo
    echo '| left out alone | lines | time to compile | KB of .text | goes with it |'
    echo '|---|--:|--:|--:|---|'
    n=0
    for part in $parts; do
        if [ $((n += 1)) -gt 1 ] && [ $((n % 3)) -eq 1 ]; then # machines drift
            measure whole
            whole="$s $k $l"
        fi
        measure "$part" "-DGCKPT_NO_$part"
        others=$(there "-DGCKPT_NO_$part" > $B/there; echo "$parts" | sort | comm -23 - $B/there | grep -vx "$part" | tr '\n' ' ')
        echo "$whole $s $k $l $part $others" | awk '{
            saved = 100 * ($1 - $4) / $1
            saved = saved < 15 ? "under 15 %" : sprintf("%.0f %%", saved) # less is noise
            printf "| `GCKPT_NO_%s` | %d | %s | %d |", $7, $3 - $6, saved, $2 - $5
            for (i = 8; i <= NF; i++) printf " %s", $i
            print " |" }'
    done
    echo
    echo '| a build | lines | time to compile | KB of .text |'
    echo '|---|--:|--:|--:|'
    echo "$whole" | awk '{ printf "| the whole | %d | 1 | %d |\n", $3, $2 }'
    for set in $sets; do
        eval "left=\$$set is=\$${set}_is"
        measure $set $(macros $left)
        echo "$whole $s $k $l" | awk -v is="$is" '{ printf "| %s | %d | %.2f | %d |\n", is, $6, $4 / $1, $5 }'
    done
    measure all $(macros $parts)
    echo "$whole $s $k $l" | awk '{ printf "| all left out, and nothing else | %d | %.2f | %d |\n", $6, $4 / $1, $5 }'
    for set in $sets; do
        eval "left=\$$set is=\$${set}_is"
        printf '\n%s:\n\n```text\n' "$is"
        echo $(macros $left) | fold -s -w 100 | sed 's/ *$//'
        echo '```'
    done
}

case $1 in
check | table) "$@" ;;
*) sed -n '2,8s/^# //p' "$0"; exit 2 ;;
esac
