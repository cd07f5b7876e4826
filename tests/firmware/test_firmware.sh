#!/bin/sh
# Compiles plans printed as C constants into programs like firmware: as C99 and C++11, without warnings, without heap,
# stdio, graph and planner, and with all constants in read-only memory. The programs must give the bits of a plan made
# at run time. The sources for host and device are in tests/firmware/.
#
# LINKED is the command that compiles programs that use public names only (in make test, linked with build/gradckpt.o).
# A printed plan needs the implementation in its own file, so each program below compiles the implementation, by default
# only the functions that it uses (GCKPT_STATIC). ALL_PROGRAMS=1 (make check) runs all programs instead of one of each
# kind. WIDE=1 (make check-all) adds all languages with all macros, builds without GCKPT_STATIC, and the fast kernels.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I.}
ALL_PROGRAMS=${ALL_PROGRAMS:-$ITERATIONS}
work=build/firmware
. tests/checks.sh
warnings="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wcast-qual
    -Wcast-align -Wundef -Werror"

# linked SYMBOLS: prints the functions in nm's output, without the suffixes that gcc gives to copies of a function
linked() { awk '$(NF - 1) ~ /^[Tt]$/ { sub(/\..*/, "", $NF); print $NF }' "$1" | sort -u; }

# none_of SYMBOLS ALLOWED FILE..: checks that none of the functions defined in these source files is linked, except
# functions that match ALLOWED. The names are read from the files, so that the check follows renames.
none_of()
{
    symbols=$1 allowed=$2
    shift 2
    for file; do
        sed -nE 's/^(GCKPTI_FN|GCKPT_API|static).*[ *]\(?(gckpti?_[a-z0-9_]+)\)?\(.*/\2/p' "$file" > "$work/functions"
        [ -s "$work/functions" ] || { echo "$file defines no function"; return 1; }
        sort -u "$work/functions" > "$work/defined"
        ! linked "$symbols" | comm -12 - "$work/defined" | grep -vE "^gckpti?_($allowed)$" || return 1
    done
}

# planless PROGRAM: checks that neither planner, graph nor files are linked. Writes nm's output to $work/symbols.
planless()
{
    nm "$1" > "$work/symbols" && [ "$(linked "$work/symbols" | grep -c '^gckpti_')" -gt 10 ] || return 1
    ! linked "$work/symbols" | grep -E '^gckpti_(sink_|print$|fast_)' || return 1
    none_of "$work/symbols" 'plan_(name|free|rank_rows)|has_running|fail' src/planner/*.c src/search/*.c src/files/*.c \
        src/export/c.c src/graph/*.c src/tools/frontier.c $(ls src/plan/*.c | grep -v 'plan/types.c\|plan/plan.c')
}

fails_saying() # fails_saying PATTERN COMMAND...: checks that the command fails and prints a line that matches PATTERN
{
    pattern=$1
    shift
    ! "$@" > "$work/said" 2>&1 && grep -q -e "$pattern" "$work/said"
}

# without TABLE: prints the options that omit the features which the plan does not need, taken from the comment in TABLE
without()
{
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sed 's/^/-D/'
}

one=-DGCKPT_STATIC
[ -z "$WIDE" ] || one=

# frames FILE MOST STEP: checks by -fstack-usage that no function in FILE takes more than MOST bytes of stack, and that
# the chain of calls of a step, from gckpt_step to attention's backward, takes at most STEP bytes.
frames()
{
    sort -t"$(printf '\t')" -k2nr "$1" | head -n 12
    awk -F'\t' -v most="$2" -v step="$3" '
        { name = $1; sub(/.*:/, "", name); sub(/\..*/, "", name) }
        name ~ /^gckpti?_/ && $2 > most { print name " takes " $2 " bytes, " most " is allowed"; bad = 1 }
        name ~ /^(gckpt_step|gckpti_(run_instructions|run_op|run_attention|attention_output|attention_gradients))$/ { sum += $2; n++ }
        END { print "a step: " sum; exit bad || n < 4 || sum > step }' "$1"
}

# The op in model.h needs -ffp-contract=off; the header does not.
include="-ffp-contract=off -I. -Itests/firmware -DTABLE=\"small.h\" -I$work"
check "host compiles" $LINKED -std=c99 -O1 $warnings $include tests/firmware/host.c -o "$work/host"
check "host trains" sh -c "$work/host run > $work/want"
check "host prints the plan" sh -c "$work/host c small > $work/small.h"
check "host refuses a name that is no C identifier" fails_saying "#error" "$work/host" c "not a name"

sections="-Os -ffunction-sections -fdata-sections -Wl,--gc-sections -fno-pie -no-pie"
printf 'int main(void) { return 0; }\n' > "$work/t.c"
$CC $sections "$work/t.c" -o "$work/t" 2> /dev/null || sections=-Os
cxx="${CXX:-c++} -std=c++11 -x c++" c="$CC -std=c99 -Wstrict-prototypes"
device()                # device LANGUAGE OUTPUT MACRO..: compiles device.c
{
    language=$1 to=$2
    shift 2
    $language "$work/t.c" -o "$work/t" 2> /dev/null || return
    check "device compiles: $language $*" $language $sections $warnings $include $(without "$work/small.h") "$@" \
        tests/firmware/device.c -o "$to"
    check "device trains to the same bits: $language $*" sh -c "$to > $work/got && cmp $work/got $work/want"
}
if [ -n "$WIDE" ]; then
    device "$cxx" "$work/device"
    for language in "$cxx" "$c"; do
        device "$language" "$work/device_small" -DGCKPT_SMALL
        device "$language" "$work/device_small" -DGCKPT_NO_TEXT
    done
    device "$c" "$work/device_fast" -DFAST
fi
[ -z "$WIDE$ALL_PROGRAMS" ] || device "$c" "$work/device"
[ -z "$WIDE$ALL_PROGRAMS" ] || device "$cxx" "$work/device_small" -DGCKPT_NO_TEXT -DGCKPT_STATIC
device "$c" "$work/device_small" -DGCKPT_SMALL -DGCKPT_STATIC

whole() { [ -n "$WIDE$ALL_PROGRAMS" ]; }
# Tests programs with several printed plans: plans of different graphs, damaged plans, and two plans of one graph.
check "host prints another lowering" sh -c "$work/host c chosen auto > $work/input_hash.h && grep -q ' 1, .. lowering ..' $work/input_hash.h"
check "host trains with weights in flash" sh -c "$work/host run - quantised > $work/want_quantised"
check "host prints a plan for weights in flash" sh -c "$work/host c quantised quantised > $work/quantised.h"
check "host trains with virtual ranks" sh -c "$work/host run - virtual_ranks > $work/want_vranks && ! cmp -s $work/want $work/want_vranks"
check "host prints a plan with virtual ranks" sh -c "$work/host c virtual_ranks virtual_ranks > $work/virtual_ranks.h"
check "host prints two plans of one graph" \
    sh -c "$work/host c twice1 > $work/twice1.h && $work/host c twice2 > $work/twice2.h"
"$work/host" c wrong | sed 's/gckpti_op_rmsnorm/gckpti_op_layernorm/' > "$work/wrong.h"
if whole; then
    check "several_plans.c compiles" \
        $CC -std=c99 $warnings $include $one -UTABLE tests/firmware/several_plans.c -o "$work/tables"
    check "several_plans: a plan with another lowering trains to the same bits" \
        sh -c "$work/tables chosen | cmp - $work/want"
    check "several_plans: weights in flash train to the host's bits" sh -c "$work/tables quantised | cmp - $work/want_quantised"
    check "several_plans: virtual ranks train to the host's bits" sh -c "$work/tables virtual_ranks | cmp - $work/want_vranks"
    check "several_plans: a plan for weights of another storage is refused" \
        fails_saying "stored as F16, the plan was made for F32" "$work/tables" small
    check "several_plans: a changed plan is refused" fails_saying "hash" "$work/tables" wrong
    check "several_plans: two plans of one graph have the same hash" "$work/tables" two
fi
check "GCKPT_SMALL has one virtual rank" fails_saying "GCKPT_SMALL is for plans without virtual ranks" $CC -std=c99 $include -DGCKPT_SMALL -UTABLE \
    '-DTABLE="virtual_ranks.h"' -DPLAN=virtual_ranks -fsyntax-only tests/firmware/device.c

# Tests weights in flash that kernels read without a copy in the arena.
check "quantised.c compiles for the host" \
    $LINKED -std=c99 -O1 $warnings -I. tests/firmware/quantised.c -o "$work/stored"
check "quantised.c prints its results and its plan" \
    sh -c "$work/stored > $work/want_stored && $work/stored c > $work/stored.h"
if whole; then
    check "quantised.c compiles for a device" \
        $CC -std=c99 -O0 $warnings -Wno-unused-function -I. -I$work -DDEVICE '-DTABLE="stored.h"' \
        $(without "$work/stored.h") tests/firmware/quantised.c -o "$work/device_stored"
    check "quantised.c gives the same bits on a device" sh -c "$work/device_stored | cmp - $work/want_stored"
fi

# Tests a store with parameters in every storage, printed as C: a program that restores them, compiled as C or C++, must
# have all bits. FLOATS is a store without quantised parameters, for a build without quantisation.
for set in ALL FLOATS; do
    check "weights.c compiles with $set" \
        $LINKED -std=c99 -O0 $warnings -D$set tests/firmware/weights.c -o "$work/weights"
    check "weights.c prints its weights with $set" \
        sh -c "$work/weights c > $work/weights_$set.h && $work/weights > $work/want_weights_$set"
    (cat "$work/want_weights_$set" && echo again && cat "$work/want_weights_$set") > "$work/want_weights"
    for language in "$c" ${WIDE:+"$cxx"}; do
        [ $set = ALL ] && without= || without="-DGCKPT_NO_QUANT -DGCKPT_SMALL"
        whole || [ $set = FLOATS ] || continue
        check "weights.c compiles for a device: $language $without" \
            $language -O0 $warnings $one -Wno-unused-function -I. -I$work -DDEVICE \
            "-DTABLE=\"weights_$set.h\"" $without tests/firmware/weights.c -o "$work/device_weights"
        check "weights.c restores every bit with $set" sh -c "$work/device_weights | diff - $work/want_weights"
    done
done
! whole || check "weights: without quantisation, quantised parameters are refused" \
    fails_saying "weights small: some are quantised: compile without GCKPT_NO_QUANT" \
    $CC -std=c99 -I. -I$work -DDEVICE -DGCKPT_NO_QUANT '-DTABLE="weights_ALL.h"' -fsyntax-only tests/firmware/weights.c
! whole || check "printed weights compile as C++11" \
    $cxx $warnings -Wno-unused-function -I. -I$work -DDEVICE '-DTABLE="weights_ALL.h"' -fsyntax-only \
    tests/firmware/weights.c

# A build without a feature must refuse printed plans that need the feature.
check "host prints a plan of bf16" sh -c "$work/host c bf16 bf16 > $work/bf16.h"
lacks()                 # lacks TABLE WHAT MACRO: a build with MACRO must refuse the plan, which has WHAT
{
    check "a build with $3 refuses a plan that has $2" \
        fails_saying "has $2: compile without $3" $CC -std=c99 $include -D$3 \
        -UTABLE "-DTABLE=\"$1.h\"" -DPLAN=$1 -fsyntax-only tests/firmware/device.c
}
lacks bf16 "precision GCKPT_BF16" GCKPT_NO_BF16
lacks quantised "quantised parameters" GCKPT_NO_QUANT
lacks virtual_ranks "virtual ranks" GCKPT_NO_RANKS
lacks small attention GCKPT_NO_ATTENTION
lacks small gradients GCKPT_NO_TRAINING
if [ -n "$WIDE$ALL_PROGRAMS" ]; then
    check "host compiles without bf16 and quantisation" \
        $CC -std=c99 -O0 $include -DGCKPT_NO_FAST -DGCKPT_NO_BF16 -DGCKPT_NO_QUANT tests/firmware/host.c \
        -lm -o "$work/lean"
    check "host without bf16 and quantisation trains to the same bits" sh -c "$work/lean run | cmp - $work/want"
    check "host without bf16 refuses to plan in bf16" \
        fails_saying "this build leaves out precision GCKPT_BF16 (GCKPT_NO_BF16)" "$work/lean" run - bf16
fi

# Checks the symbols of the device's program, compiled as C without GCKPT_STATIC: it must have no planner, graph or
# files, only the ops of the plan, and no writable constants.
if [ -n "$WIDE$ALL_PROGRAMS" ] && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    check "device links no planner, graph or files" planless "$work/device"
    sed -n 's/.* [RrDdBb] gckpti_op_//p' "$work/symbols" | sort > "$work/ops"
    printf '%s\n' add attention dropout embed linear linear_cross_entropy mul rmsnorm slice sum_loss > "$work/want_ops"
    check "device links only the ops of its plan" diff "$work/want_ops" "$work/ops"
    check "device has the instructions of its plan as constants" grep -q ' [Rr] gckpti_small_ins$' "$work/symbols"
    check "device has all its constants in read-only memory" \
        sh -c "! grep -E '[^RrTt] (small|gckpti_(small|op)_[a-z_0-9]*)$' $work/symbols"
    check "device links nothing for ranks and virtual ranks" \
        none_of "$work/symbols" none src/dist/shards.c src/dist/group.c src/dist/exchange.c src/dist/micro_batches.c src/dist/plan.c
    check "device links no heap" sh -c "! grep -E ' U (malloc|realloc|calloc|free)(@|$)' $work/symbols"
fi

# A program with a plan of three ops must link only these three ops.
check "flash.c compiles with a model of three ops" \
    $LINKED -std=c99 -O1 $warnings -I. -DSET=0 tests/firmware/flash.c -o "$work/host0"
check "three ops: the plan is printed" sh -c "$work/host0 > $work/small0.h"
if whole; then
    check "three ops: device compiles" \
        $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DSET=0 '-DTABLE="small0.h"' \
        $(without "$work/small0.h") tests/firmware/flash.c -o "$work/device0"
    check "three ops: device trains within its memory" "$work/device0"
fi
if whole && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device0" | sed -n 's/.* [RrDdBb] gckpti_op_//p' | sort > "$work/ops0"
    printf '%s\n' linear mean_squared_error relu > "$work/want_ops0"
    check "three ops: device links exactly three ops" diff "$work/want_ops0" "$work/ops0"
    check "three ops: device links no planner" planless "$work/device0"
fi
check "three ops: device compiles with GCKPT_SMALL" \
    $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DGCKPT_SMALL -DSET=0 \
    '-DTABLE="small0.h"' $(without "$work/small0.h") \
    tests/firmware/flash.c -o "$work/device0"
check "three ops: device trains with GCKPT_SMALL within its memory" "$work/device0"
if [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device0" > "$work/symbols0"
    check "GCKPT_SMALL links nothing for other types, memories, backends and debugging" none_of "$work/symbols0" none \
        src/bf16/convert.c src/tools/debug.c src/devices/host.c src/bf16/run.c src/quant/run.c src/quant/rows.c
    check "GCKPT_SMALL links no texts, shape rules and operation counts" \
        sh -c "! grep -E ' [Tt] gckpti_(text|.*_shape|.*_flops|hash_)' \
        $work/symbols0 | grep -v -E ' gckpti_(node|same|planned)_shape'"
fi

# A build without a feature that a plan needs must report an error.
left_out()              # left_out SET OP PART: a build without PART must refuse the plan of SET, which has op OP
{
    check "flash.c compiles with a model that has $2" \
        $LINKED -std=c99 -O0 $warnings -I. "-DSET=$1" tests/firmware/flash.c -o "$work/host$1"
    check "a model with $2: the plan is printed" sh -c "$work/host$1 > $work/small$1.h"
    check "a model with $2 is refused with GCKPT_NO_$3" fails_saying "it has $2: compile without GCKPT_NO_$3" \
        $CC -std=c99 -fsyntax-only -I. -I$work -DDEVICE "-DSET=$1" "-DTABLE=\"small$1.h\"" "-DGCKPT_NO_$3" \
        tests/firmware/flash.c
}
left_out 4 conv2d IMAGES
left_out 5 gru RECURRENT

# An inference plan must run in a build without training, and must link no training code.
trains='backward|deriv|grad|update|init_values|philox|normal|clip|finite|squares|adamw|momentum|state'
check "flash.c compiles with an autoencoder" \
    $LINKED -std=c99 -O1 $warnings -I. -DSET=6 tests/firmware/flash.c -o "$work/host6"
check "autoencoder: the plan is printed" sh -c "$work/host6 > $work/small6.h"
check "autoencoder: the plan needs no training" grep -q 'It runs with .*GCKPT_NO_TRAINING,' "$work/small6.h"
if whole; then
    check "autoencoder: device compiles with GCKPT_SMALL" \
        $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DGCKPT_SMALL -DSET=6 \
        '-DTABLE="small6.h"' $(without "$work/small6.h") tests/firmware/flash.c -o "$work/device6"
    check "autoencoder: device reproduces its input" "$work/device6"
fi
if whole && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device6" > "$work/symbols6"
    check "autoencoder: device links no training code" \
        sh -c "! grep -E ' [TtRr] gckpti_[a-z0-9_]*($trains)' $work/symbols6"
    check "autoencoder: device links no update" none_of "$work/symbols6" none src/training/update.c src/training/step.c
fi

# Limits for the flash and the stack of a transformer with the compiler of make size, and for its stack with this
# machine's compiler. Raise them only for a reason.
if whole && bytes=$(sh tests/firmware/size.sh bytes 2 2> /dev/null); then
    echo "transformer: bytes of code and of constants: $bytes"
    check "a transformer takes at most 22650 bytes of code and 5600 of constants" \
        awk "BEGIN { split(\"$bytes\", n); exit !(n[1] > 0 && n[1] <= 22650 && n[2] <= 5600) }"
    check "the frames of its step on a Cortex-M4" frames build/size/device-flash.su 900 1900
    bytes=$(sh tests/firmware/size.sh bytes 6)
    echo "autoencoder that is run only: bytes of code and of constants: $bytes"
    check "an autoencoder that is run only takes at most 8850 bytes of code and 2250 of constants" \
        awk "BEGIN { split(\"$bytes\", n); exit !(n[1] > 0 && n[1] <= 8850 && n[2] <= 2250) }"
fi
check "flash.c compiles with a transformer" \
    $LINKED -std=c99 -O1 $warnings -I. -DSET=2 tests/firmware/flash.c -o "$work/host2"
check "transformer: the plan is printed" sh -c "$work/host2 > $work/small2.h"
usage=-fstack-usage
$CC $usage -c "$work/t.c" -o "$work/t.o" 2> /dev/null || usage=
check "transformer: device compiles" \
    $c -Os $usage -Wno-unused-function -I. -I$work -DDEVICE -DGCKPT_SMALL -DGCKPT_STATIC \
    -DSTACK -D_GNU_SOURCE -DSET=2 '-DTABLE="small2.h"' $(without "$work/small2.h") -c tests/firmware/flash.c -o "$work/device2.o"
check "transformer: device is linked" $CC "$work/device2.o" -o "$work/device2"
check "transformer: device takes at most 4 KiB of stack here, with pointers of 8 bytes" \
    sh -c "$work/device2 > $work/stack && cat $work/stack && test \$(cat $work/stack) -le 4096"
[ ! -f "$work/device2.su" ] || check "the frames of its step" frames "$work/device2.su" 1400 2800

# A plan whose attention has caches.
check "generate.c compiles for the host" $LINKED -std=c99 -O0 $warnings tests/firmware/generate.c -o "$work/talk"
check "generate.c generates on the host" sh -c "$work/talk > $work/spoken && [ \$(grep -c '^1 ' $work/spoken) = 3 ]"
check "generate.c prints its plan" sh -c "$work/talk c > $work/generation.h"
if whole; then
    check "generate.c compiles without training" $CC -std=c99 -O0 $warnings $one -I. -I$work '-DTABLE="generation.h"' \
        $(without "$work/generation.h") tests/firmware/generate.c -o "$work/talk_device"
    check "generate.c generates the same on a device" sh -c "$work/talk_device | cmp - $work/spoken"
fi
for part in FETCH CACHES; do
    check "generate.c is refused with GCKPT_NO_$part" \
        fails_saying "compile without GCKPT_NO_$part" $CC -std=c99 -I. -I$work '-DTABLE="generation.h"' \
        -DGCKPT_NO_$part -fsyntax-only tests/firmware/generate.c
done

# A plan printed by another version must be refused.
sed 's/GCKPT_PLAN_FORMAT != [0-9]*/GCKPT_PLAN_FORMAT != 0/' "$work/small.h" > "$work/old.h"
check "a printed plan of another version is refused" fails_saying "print it again" $CC -std=c99 $include -UTABLE \
    '-DTABLE="old.h"' -fsyntax-only tests/firmware/device.c
sed 's/SIZE_MAX \/ 16 < [0-9]*/SIZE_MAX \/ 16 < SIZE_MAX/' "$work/small.h" > "$work/huge.h"
check "a printed plan too large for the machine is refused" \
    fails_saying "too large for this machine" $CC -std=c99 $include -UTABLE \
    '-DTABLE="huge.h"' -fsyntax-only tests/firmware/device.c

# ---- files that users copy: compilers must not fuse the program's own products and sums; a build of a file with two
# plans omits only the features that neither plan needs ----
for file in examples/packaging/cmake/gradckptConfig.cmake examples/packaging/meson/meson.build \
    examples/packaging/esp-idf/CMakeLists.txt examples/packaging/zephyr/zephyr/CMakeLists.txt \
    examples/packaging/arduino/examples/*/*.ino README.md docs/device.md docs/tasks.md; do
    check "$file: products and sums are not fused" grep -q 'fp-contract=off' "$file"
done
check "pkg-config: products and sums are not fused" \
    sh -c "MAKEFLAGS= make -n install | grep -q 'Cflags: .*-ffp-contract=off'"
copied=$work/copied
cp -R examples/mcu/minimal "$copied"
commands() { MAKEFLAGS= make -nB -C "$copied" GRADCKPT="$PWD" "$@"; }
options() { commands "$1" | sed -n '/gcc \|cc /,/ main\.c /p' | tr ' ' '\n' | grep -E '^-(O|std=|m|f)'; }
printf 'float data(float a, float b, float c);\nfloat data(float a, float b, float c) { return a * b + c; }\n' > "$work/data.c"
unfused()               # unfused COMPILER OPTION...: checks that a product and a sum compile to two instructions
{
    "$@" -S -o "$work/data.s" "$work/data.c" && ! grep -iE 'v?fn?m(add|la|a)' "$work/data.s"
}
for compiler in "$CC -mfma" "$CC" aarch64-linux-gnu-gcc "arm-none-eabi-gcc -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"; do
    $compiler -O2 -std=gnu99 -c "$work/data.c" -o "$work/data.o" 2> /dev/null || continue # not installed
    check "minimal's program for the host does not fuse: $compiler" unfused $compiler $(options host) -O2
    check "minimal's firmware does not fuse: $compiler" unfused $compiler $(options build/minimal.elf | grep -v '^-m')
    check "examples do not fuse: $compiler" unfused $compiler \
        $(MAKEFLAGS= make -nB build/quickstart | grep ' examples/quickstart\.c' | tr ' ' '\n' | grep -E '^-(O|std=|f[^o])')
done
listed() { sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort; }
leaves_out()            # leaves_out FILE: checks that minimal's Makefile omits exactly the features listed in FILE
{
    commands host | grep -o 'GCKPT_NO_[A-Z0-9_]*' | sort | diff - "$1"
}
listed "$copied/plan.h" > "$work/parts1"
listed "$work/small6.h" > "$work/parts6"
comm -12 "$work/parts1" "$work/parts6" > "$work/parts"
check "the two plans need different features" test -s "$work/parts" -a \
    "$(cat "$work/parts1" "$work/parts6" | sort -u | wc -l)" -gt "$(wc -l < "$work/parts")"
check "minimal with one plan omits the features that the plan does not need" leaves_out "$work/parts1"
grep '^ \* It runs with\|, printed by gckpt_plan_c: ' "$work/small6.h" >> "$copied/plan.h"
check "minimal with two plans omits the features that neither plan needs" leaves_out "$work/parts"
grep ', printed by gckpt_plan_c: ' "$work/small6.h" >> "$copied/plan.h"
check "minimal with a plan that needs all features omits none" leaves_out /dev/null

report firmware
