#!/bin/sh
# A plan printed as a C constant, compiled into a program like a firmware: as C99 and as C++11, without a
# warning, without heap, stdio, graph and planner, everything constant in read-only memory; the same bits as
# the plan made at run time. tests/firmware/ has host and device.
#
# LINKED compiles what only uses the header's public names (make test: against build/gradckpt.o).
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I.}
work=build/firmware
. tests/checks.sh
warnings="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wcast-qual
    -Wcast-align -Wundef -Werror"

# planless PROGRAM: neither planner, graph nor files are linked; what is: $work/symbols
planless()
{
    nm "$1" > "$work/symbols" || return 1
    ! grep -E ' [Tt] (gckpt_(plan_new|plan_read|plan_c|fit|apply|graph|param$|input|linear|add|store_(read|write|save))|gckpti_(planner|find|make|layout|place|block|lifetime|encode|drop_|order|share|emit|c_|json|sink|search|fast))' "$work/symbols" |
        grep -v -E ' gckpti_(find|block_of|find_gradient|find_pick|share)$'
}

fails_saying() # fails_saying PATTERN command...
{
    pattern=$1
    shift
    ! "$@" > "$work/said" 2>&1 && grep -q -e "$pattern" "$work/said"
}

# -ffp-contract=off: for the op that model.h brings; the header sees to itself.
include="-ffp-contract=off -I. -Itests/firmware -DTABLE=\"small.h\" -I$work"
check "host compiles" $LINKED -std=c99 -O1 $warnings $include tests/firmware/host.c -o "$work/host"
check "host trains" sh -c "$work/host run > $work/want"
check "host prints the plan" sh -c "$work/host c small > $work/small.h"
check "host saves the plan" sh -c "$work/host file > $work/small.plan"
check "and trains with what it saved" sh -c "$work/host read < $work/small.plan | cmp - $work/want"
check "another name is refused" fails_saying "#error" "$work/host" c "not a name"

sections="-Os -ffunction-sections -fdata-sections -Wl,--gc-sections -fno-pie -no-pie"
printf 'int main(void) { return 0; }\n' > "$work/t.c"
$CC $sections "$work/t.c" -o "$work/t" 2> /dev/null || sections=-Os
for language in "${CXX:-c++} -std=c++11 -x c++" "$CC -std=c99 -Wstrict-prototypes"; do
    $language "$work/t.c" -o "$work/t" 2> /dev/null || continue
    check "device compiles: $language" $language $sections $warnings $include tests/firmware/device.c -o "$work/device"
    check "device trains to the same bits: $language" sh -c "$work/device > $work/got && cmp $work/got $work/want"
done
for language in "${CXX:-c++} -std=c++11 -x c++" "$CC -std=c99 -Wstrict-prototypes"; do
    $language "$work/t.c" -o "$work/t" 2> /dev/null || continue
    for small in -DGCKPT_SMALL "-DGCKPT_SMALL -DGCKPT_STATIC" -DGCKPT_NO_TEXT; do
        check "device compiles: $language $small" $language $sections $warnings $include $small \
            tests/firmware/device.c -o "$work/device_small"
        check "device trains to the same bits: $language $small" \
            sh -c "$work/device_small > $work/got && cmp $work/got $work/want"
    done
done
check "host prints another form" sh -c "$work/host c small auto > $work/auto.h && grep -q 'UINT64_C([0-9]*), { 1, 0, 0 },' $work/auto.h"
check "device compiles it" $CC -std=c99 $warnings $include -UTABLE '-DTABLE="auto.h"' tests/firmware/device.c -o "$work/device_auto"
check "and trains to the same bits" sh -c "$work/device_auto | cmp - $work/want"
check "host trains with weights in flash" sh -c "$work/host run - packed > $work/want_packed"
check "and prints that plan" sh -c "$work/host c small packed > $work/packed.h"
check "device compiles it" $CC -std=c99 $warnings $include -UTABLE '-DTABLE="packed.h"' -DPACKED=1 \
    tests/firmware/device.c -o "$work/device_packed"
check "and trains to the same bits" sh -c "$work/device_packed | cmp - $work/want_packed"
check "device compiles it without the weights" $CC -std=c99 $warnings $include -UTABLE '-DTABLE="small.h"' -DPACKED=1 \
    tests/firmware/device.c -o "$work/device_wrong"
check "a plan for others is refused" fails_saying "stored as I8, the plan was made for F32" "$work/device_wrong"
check "host trains with leaves" sh -c "$work/host run - leaves > $work/want_leaves && ! cmp -s $work/want $work/want_leaves"
check "and prints that plan" sh -c "$work/host c small leaves > $work/leaves.h"
check "device compiles it" $CC -std=c99 $warnings $include -UTABLE '-DTABLE="leaves.h"' \
    tests/firmware/device.c -o "$work/device_leaves"
check "and trains to the same bits" sh -c "$work/device_leaves | cmp - $work/want_leaves"
check "GCKPT_SMALL has no leaves" fails_saying "and have one leaf" $CC -std=c99 $include -DGCKPT_SMALL -UTABLE \
    '-DTABLE="leaves.h"' tests/firmware/device.c -o "$work/device_leaves"
check "device compiles with the fast kernels left in" $CC -std=c99 $warnings $include -DFAST \
    tests/firmware/device.c -o "$work/device_fast"
check "device trains to the same bits" sh -c "$work/device_fast | cmp - $work/want"

# What is in the device just compiled as C: no planner, no graph, no files, only the rows of the plan's ops; no
# writable constant.
if [ "$sections" != -Os ] && command -v nm > /dev/null; then
    check "no planner, graph or files in it" planless "$work/device"
    sed -n 's/.* gckpti_op_//p' "$work/symbols" | sort > "$work/rows"
    printf '%s\n' add attention dropout embed linear linear_cross_entropy mul rmsnorm slice sum_loss > "$work/want_rows"
    check "the rows of its ops only" diff "$work/want_rows" "$work/rows"
    check "the table is there" grep -q ' [Rr] gckpti_small_list$' "$work/symbols"
    check "and all of it read-only" sh -c "! grep -E '[^Rr] (small|gckpti_(small|op)_[a-z_0-9]*)$' $work/symbols"
    check "nothing for leaves and ranks" sh -c "! grep -E ' [TtRr] gckpti_(crew|exchange|merge|tree|meet|run_reduce|ranked)' $work/symbols"
    check "no heap" sh -c "! grep -E ' U (malloc|realloc|calloc|free)(@|$)' $work/symbols"
fi

# Three ops link three ops.
check "a model of three ops" $LINKED -std=c99 -O1 $warnings -I. -DSET=0 tests/firmware/flash.c -o "$work/host0"
check "is printed" sh -c "$work/host0 > $work/small0.h"
check "is compiled" $CC -std=c99 $sections $warnings -I. -I$work -DDEVICE -DSET=0 '-DTABLE="small0.h"' \
    tests/firmware/flash.c -o "$work/device0"
check "trains in its blocks" "$work/device0"
if [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device0" | sed -n 's/.* gckpti_op_//p' | sort > "$work/rows0"
    printf '%s\n' linear mean_squared_error relu > "$work/want_rows0"
    check "links three" diff "$work/want_rows0" "$work/rows0"
    check "and no planner" planless "$work/device0"
fi
check "is compiled small" $CC -std=c99 $sections $warnings -I. -I$work -DDEVICE -DGCKPT_SMALL -DSET=0 '-DTABLE="small0.h"' \
    tests/firmware/flash.c -o "$work/device0"
check "trains in its blocks" "$work/device0"
if [ "$sections" != -Os ] && command -v nm > /dev/null; then
    check "links nothing for other types, memories and backends, and to debug" sh -c "nm $work/device0 > $work/symbols0 &&
        ! grep -E ' [Tt] gckpti_(see|look|hash_planned|cpu_convert|unpack|packed|borrow|run_on_host|copy_far|text|.*_shape\$|.*_flops)' \
        $work/symbols0 | grep -v -E ' gckpti_(node|same)_shape$'"
fi

# What a transformer takes of flash, with the compiler of make size. A limit that needs a reason to grow.
if bytes=$(sh tests/size.sh bytes 2 2> /dev/null); then
    echo "transformer: bytes of code and of constants: $bytes"
    check "a transformer takes at most 23200 bytes of code and 5600 of constants" \
        awk "BEGIN { split(\"$bytes\", n); exit !(n[1] > 0 && n[1] <= 23200 && n[2] <= 5600) }"
fi

# A plan with caches.
check "a model that generates" $CC -std=c99 -O0 $warnings -I. tests/firmware/talk.c -o "$work/talk"
check "generates" sh -c "$work/talk > $work/spoken && [ \$(grep -c '^1 ' $work/spoken) = 3 ]"
check "its plan is printed" sh -c "$work/talk c > $work/talk.h"
check "is compiled" $CC -std=c99 -O0 $warnings -I. -I$work '-DTABLE="talk.h"' tests/firmware/talk.c -o "$work/talk_device"
check "and generates the same" sh -c "$work/talk_device | cmp - $work/spoken"

# A table of another time.
sed 's/GCKPT_PLAN_FORMAT != [0-9]*/GCKPT_PLAN_FORMAT != 0/' "$work/small.h" > "$work/old.h"
check "a table of another version says so" fails_saying "print it again" $CC -std=c99 $include -UTABLE \
    '-DTABLE="old.h"' -fsyntax-only tests/firmware/device.c
sed 's/SIZE_MAX \/ 16 < [0-9]*/SIZE_MAX \/ 16 < SIZE_MAX/' "$work/small.h" > "$work/huge.h"
check "so does one that is too large" fails_saying "too large for this machine" $CC -std=c99 $include -UTABLE \
    '-DTABLE="huge.h"' -fsyntax-only tests/firmware/device.c
sed 's/gckpti_op_rmsnorm/gckpti_op_layernorm/' "$work/small.h" > "$work/wrong.h"
check "a changed table compiles" $CC -std=c99 -DGCKPT_STATIC $include -UTABLE '-DTABLE="wrong.h"' tests/firmware/device.c -o "$work/wrong"
check "and is refused" fails_saying "hash" "$work/wrong"
for i in 1 2; do
    "$work/host" c twice$i > "$work/twice$i.h"
done
printf '#define GRADCKPT_IMPLEMENTATION\n#include "gradckpt.h"\n#include "model.h"\n#include "twice1.h"\n#include "twice2.h"\nint main(void) { model_data(0); return model_flash(NULL) == GCKPT_OK || gckpt_plan_hash(&twice1) != gckpt_plan_hash(&twice2); }\n' > "$work/twice.c"
check "two tables in one program" $CC -std=c99 -DGCKPT_NO_FAST $warnings $include "$work/twice.c" -o "$work/twice"
check "of one graph" "$work/twice"

report firmware
