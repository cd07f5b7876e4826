#!/bin/sh
# Tests the editions of the header (src/EDITIONS): each compiles without a warning, trains to the bits of the whole header,
# has at most the lines of tests/compile/editions.txt, and has no line of a part that it lacks. The whole header without
# one part at a time compiles as well (with CHECK_ALL: trains). A use of a missing function does not compile, and the
# compiler's message names the part.
#
#     sh tests/compile/editions.sh          checks all
#     sh tests/compile/editions.sh lines    prints the lines of each edition, as tests/compile/editions.txt has them
CC=${CC:-cc}
B=build/check/editions
W="-Wall -Wextra -Wunused-function -Wundef -Werror"
mkdir -p $B
rm -f $B/host
editions=$(awk '$1 == "edition" { print $2 }' src/EDITIONS)
parts=$(awk '$1 == "part" && $2 != "host" { print $2 }' src/EDITIONS)
bad=0
fail() { echo "FAIL $*"; bad=1; }

# edition NAME EDITION [PARTS]: writes $B/NAME/gradckpt.h
edition()
{
    mkdir -p "$B/$1" && sh src/header.sh src "$2" "$3" > "$B/$1/gradckpt.h"
}

# trains NAME: checks that features.c, compiled with edition NAME, trains to the bits of the whole header
trains()
{
    $CC -std=gnu99 -O0 $W -I"$B/$1" -I. tests/compile/features.c -lm -o "$B/$1/train" && "$B/$1/train" > "$B/$1/train.txt" &&
        same_bits forward "$B/$1/train.txt" && same_bits trained "$B/$1/train.txt"
}

# same_bits WHAT FILE: compares the hashes of WHAT in FILE with those of the whole header: without attention, one of two
same_bits()
{
    none=' with attention'
    ! grep -q '^ATTENTION' "$2" || none=none
    [ "$(grep "^$1" "$2")" = "$(grep "^$1" $B/whole.txt | grep -v "$none")" ]
}

# runs NAME MODEL: checks that tests/firmware/device.c, compiled with edition NAME, trains a model of host.c with a plan
# that the whole header has printed, to the bits of the whole header
runs()
{
    [ -f $B/host ] ||
        $CC -std=gnu99 -O1 -w -I. -Itests/firmware tests/firmware/host.c -DGRADCKPT_IMPLEMENTATION -lm -o $B/host || return 1
    $B/host run - "$2" > $B/host.txt && $B/host c small "$2" > $B/small.h &&
        $CC -std=gnu99 -O1 $W -ffp-contract=off -I"$B/$1" -I$B -Itests/firmware -DTABLE='"small.h"' tests/firmware/device.c \
            -lm -o "$B/$1/device" && "$B/$1/device" > "$B/$1/device.txt" && diff $B/host.txt "$B/$1/device.txt"
}

for each in $editions; do
    edition "$each" "$each" || exit 1
    lines=$(wc -l < "$B/$each/gradckpt.h")
    echo "$each $lines"
    limit=$(awk -v e="$each" '$1 == e { print $2 }' tests/compile/editions.txt)
    [ "$1" = lines ] || [ "$lines" -le "${limit:-0}" ] || fail "edition $each has $lines lines; ${limit:-0} are allowed"
    [ "$1" = lines ] || [ "$lines" -eq "${limit:-0}" ] || echo "lower tests/compile/editions.txt: $each $lines"
done
[ "$1" != lines ] || exit 0

$CC -std=gnu99 -O0 $W -I. tests/compile/features.c -lm -o $B/whole && $B/whole > $B/whole.txt || exit 1
for each in $editions; do
    case $each in
    mcu) runs mcu no_attention && edition mcu-attention mcu attention && runs mcu-attention attention ;;
    core) trains core && edition core-attention core attention && trains core-attention ;;
    *) trains "$each" ;;
    esac && echo "edition $each: ok" || fail "edition $each"
done
for part in $parts; do
    edition without full "-$part" || exit 1
    for switch in $(sed -n "s/^part $part  *\(.*\) :.*/\1/p" src/EDITIONS); do
        ! grep -n "^#if.*$switch\|^#elif.*$switch" $B/without/gradckpt.h || fail "full without $part mentions $switch"
    done
    if [ -n "$CHECK_ALL" ]; then
        trains without
    else
        $CC -std=gnu99 -fsyntax-only $W -I$B/without -I. tests/compile/features.c
    fi && echo "full without $part: ok" || fail "full without $part"
done
printf '#include "gradckpt.h"\n#include "examples/gradcheck.h"\n' > $B/use.c
$CC -std=gnu99 -fsyntax-only -I$B/core -I. $B/use.c || fail "gradcheck.h with edition core"
echo '#include "gradckpt.h"
void *f(gckpt_tensor *x) { return gckpt_gru(x, x, x, x, x); }' > $B/use.c
! $CC -std=c99 -fsyntax-only -I$B/core $B/use.c 2> $B/use.txt && grep -q 'gckpt_gru_needs_part_recurrent' $B/use.txt ||
    fail "a use of gckpt_gru in edition core"
! sh src/header.sh src none > /dev/null 2> $B/use.txt && grep -q 'no edition is named none' $B/use.txt || fail "an unknown edition"
! sh src/header.sh src core nopart > /dev/null 2> $B/use.txt && grep -q 'no part is named nopart' $B/use.txt || fail "an unknown part"
exit $bad
