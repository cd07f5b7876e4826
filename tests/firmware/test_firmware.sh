#!/bin/sh
# Compiles plans printed as C constants into programs like firmware: as C99 and C++11, without warnings, heap, stdio,
# graph and planner, with all constants in read-only memory. Checks that they give the bits of the plan made at run time.
# tests/firmware/ has the programs for host and device.
#
# LINKED is the command that compiles programs of public names (in make test, linked with build/gradckpt.o). A printed plan
# needs the implementation in its file, so each program below compiles that, by default only the functions that it uses
# (GCKPT_STATIC). ALL_PROGRAMS=1 (make check) runs all programs, otherwise one of each kind. WIDE=1 (make check-all) adds all
# languages with all macros, builds without GCKPT_STATIC, and the fast kernels.
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I.}
ALL_PROGRAMS=${ALL_PROGRAMS:-$ITERATIONS}
work=build/firmware
. tests/checks.sh
warnings="-Wall -Wextra -pedantic -Wconversion -Wsign-conversion -Wshadow -Wdouble-promotion -Wcast-qual
    -Wcast-align -Wundef -Werror"

# linked SYMBOLS: prints the functions that nm lists, without the suffixes that gcc gives to copies
linked() { awk '$(NF - 1) ~ /^[Tt]$/ { sub(/\..*/, "", $NF); print $NF }' "$1" | sort -u; }

# none_of SYMBOLS ALLOWED FILE..: checks that no function defined in these source files is linked, except those that match
# ALLOWED. Takes the names from the files, so that it follows renames.
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
    none_of "$work/symbols" 'plan_(name|free|rank_rows|copy)|has_running|backend_id|copy_array|counted_input|(has|is)_single_norm|hash_(fields|plan_node)|ins_node|operands_of|planned_[a-z]*|vrank_first_row' \
        src/planner/*.c src/search/*.c src/files/*.c src/export/*.c src/graph/*.c src/plan/*.c
}

fails_saying() # fails_saying PATTERN command...
{
    pattern=$1
    shift
    ! "$@" > "$work/said" 2>&1 && grep -q -e "$pattern" "$work/said"
}

# without TABLE: prints the options that leave out the parts which this plan does not need, from the comment in TABLE
without()
{
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sed 's/^/-D/'
}

one=-DGCKPT_STATIC
[ -z "$WIDE" ] || one=

# frames FILE MOST STEP: checks by -fstack-usage that each function of FILE takes at most MOST bytes of stack, and that the
# chain of calls of a step, from gckpt_step to attention's backward, takes at most STEP.
frames()
{
    sort -t"$(printf '\t')" -k2nr "$1" | head -n 12
    awk -F'\t' -v most="$2" -v step="$3" '
        { name = $1; sub(/.*:/, "", name); sub(/\..*/, "", name) }
        name ~ /^gckpti?_/ && $2 > most { print name " takes " $2 " bytes, " most " is allowed"; bad = 1 }
        name ~ /^(gckpt_step|gckpti_(run_instructions|run_op|attention_backward|plain_attention))$/ { sum += $2; n++ }
        END { print "a step: " sum; exit bad || n < 4 || sum > step }' "$1"
}

# -ffp-contract=off is for the op in model.h; the header needs no such option.
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
cxx="${CXX:-c++} -std=c++11 -x c++" c="$CC -std=c99 -Wstrict-prototypes"
device()                # device LANGUAGE OUTPUT macro..
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
# Several printed plans in one program: of other graphs, damaged ones, and two of one graph.
check "host prints another lowering" sh -c "$work/host c chosen auto > $work/input_hash.h && grep -q ' 1, .. lowering ..' $work/input_hash.h"
check "host trains with weights in flash" sh -c "$work/host run - quantised > $work/want_quantised"
check "and prints that plan" sh -c "$work/host c quantised quantised > $work/quantised.h"
check "host trains with virtual ranks" sh -c "$work/host run - virtual_ranks > $work/want_vranks && ! cmp -s $work/want $work/want_vranks"
check "and prints that plan" sh -c "$work/host c virtual_ranks virtual_ranks > $work/virtual_ranks.h"
check "and others of its graph" sh -c "$work/host c twice1 > $work/twice1.h && $work/host c twice2 > $work/twice2.h"
"$work/host" c wrong | sed 's/gckpti_op_rmsnorm/gckpti_op_layernorm/' > "$work/wrong.h"
if whole; then
    check "device compiles them" $CC -std=c99 $warnings $include $one -UTABLE tests/firmware/several_plans.c -o "$work/tables"
    check "another lowering trains to the same bits" sh -c "$work/tables chosen | cmp - $work/want"
    check "weights in flash do" sh -c "$work/tables quantised | cmp - $work/want_quantised"
    check "virtual ranks do" sh -c "$work/tables virtual_ranks | cmp - $work/want_vranks"
    check "a plan for others is refused" fails_saying "stored as I8, the plan was made for F32" "$work/tables" small
    check "a changed table is refused" fails_saying "hash" "$work/tables" wrong
    check "two tables of one graph" "$work/tables" two
fi
check "GCKPT_SMALL has one virtual rank" fails_saying "and have one virtual rank" $CC -std=c99 $include -DGCKPT_SMALL -UTABLE \
    '-DTABLE="virtual_ranks.h"' -DPLAN=virtual_ranks -fsyntax-only tests/firmware/device.c

# Weights in flash that kernels read without copying them.
check "a forward over stored weights" $LINKED -std=c99 -O1 $warnings -I. tests/firmware/quantised.c -o "$work/stored"
check "is printed" sh -c "$work/stored > $work/want_stored && $work/stored c > $work/stored.h"
if whole; then
    check "is compiled small" $CC -std=c99 -O0 $warnings -Wno-unused-function -I. -I$work -DDEVICE '-DTABLE="stored.h"' \
        $(without "$work/stored.h") tests/firmware/quantised.c -o "$work/device_stored"
    check "to the same bits" sh -c "$work/device_stored | cmp - $work/want_stored"
fi

# A store's parameters of every storage, printed as C: all bits are equal, in C and C++, also in a build without quantisation.
for set in ALL FLOATS; do
    check "weights: $set" $LINKED -std=c99 -O0 $warnings -D$set tests/firmware/weights.c -o "$work/weights"
    check "are printed" sh -c "$work/weights c > $work/weights_$set.h && $work/weights > $work/want_weights_$set"
    (cat "$work/want_weights_$set" && echo again && cat "$work/want_weights_$set") > "$work/want_weights"
    for language in "$c" ${WIDE:+"$cxx"}; do
        [ $set = ALL ] && without= || without="-DGCKPT_NO_QUANT -DGCKPT_SMALL"
        whole || [ $set = FLOATS ] || continue
        check "are compiled: $language $without" $language -O0 $warnings $one -Wno-unused-function -I. -I$work -DDEVICE \
            "-DTABLE=\"weights_$set.h\"" $without tests/firmware/weights.c -o "$work/device_weights"
        check "and bound, every bit" sh -c "$work/device_weights | diff - $work/want_weights"
    done
done
! whole || check "with GCKPT_NO_QUANT quantised ones are refused" fails_saying "weights small: some are quantised: compile without GCKPT_NO_QUANT" \
    $CC -std=c99 -I. -I$work -DDEVICE -DGCKPT_NO_QUANT '-DTABLE="weights_ALL.h"' -fsyntax-only tests/firmware/weights.c
! whole || check "weights are C++11, too" $cxx $warnings -Wno-unused-function -I. -I$work -DDEVICE '-DTABLE="weights_ALL.h"' -fsyntax-only \
    tests/firmware/weights.c
sed 's/GCKPT_PLAN_FORMAT != [0-9]*/GCKPT_PLAN_FORMAT != 0/' "$work/weights_ALL.h" > "$work/old_weights.h"
! whole || check "weights of another version are refused" fails_saying "print them again" $CC -std=c99 -I. -I$work -DDEVICE \
    '-DTABLE="old_weights.h"' -fsyntax-only tests/firmware/weights.c

# A printed plan or a file that needs a part which this build leaves out is refused.
check "host prints a plan of bf16" sh -c "$work/host c bf16 bf16 > $work/bf16.h"
lacks()                 # lacks TABLE WHAT MACRO
{
    check "without $3 a table of $2 is refused" fails_saying "has $2: compile without $3" $CC -std=c99 $include -D$3 \
        -UTABLE "-DTABLE=\"$1.h\"" -DPLAN=$1 -fsyntax-only tests/firmware/device.c
}
lacks bf16 "precision GCKPT_BF16" GCKPT_NO_BF16
lacks quantised "quantised parameters" GCKPT_NO_QUANT
lacks virtual_ranks "virtual ranks" GCKPT_NO_RANKS
lacks small gradients GCKPT_NO_TRAINING
if [ -n "$WIDE$ALL_PROGRAMS" ]; then
    check "host without both" $CC -std=c99 -O0 $include -DGCKPT_NO_FAST -DGCKPT_NO_BF16 -DGCKPT_NO_QUANT tests/firmware/host.c \
        -lm -o "$work/lean"
    check "it trains in fp32 to the same bits" sh -c "$work/lean run | cmp - $work/want"
    check "and plans nothing else" fails_saying "which this build leaves out (GCKPT_NO_BF16)" "$work/lean" run - bf16
    check "nor reads such a file" fails_saying "which this build leaves out (GCKPT_NO_BF16)" \
        sh -c "$work/host file - bf16 | $work/lean read"
    check "nor one of quantised parameters" fails_saying "stored as I8, which this build leaves out (GCKPT_NO_QUANT)" \
        sh -c "$work/host file - quantised | $work/lean read"
fi

# Symbols of the device's program, compiled as C without GCKPT_STATIC: no planner, graph or files, only the plan's ops, and no
# writable constants.
if [ -n "$WIDE$ALL_PROGRAMS" ] && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    check "no planner, graph or files in it" planless "$work/device"
    sed -n 's/.* [RrDdBb] gckpti_op_//p' "$work/symbols" | sort > "$work/ops"
    printf '%s\n' add attention dropout embed linear linear_cross_entropy mul rmsnorm slice sum_loss > "$work/want_ops"
    check "its ops only" diff "$work/want_ops" "$work/ops"
    check "the table is there" grep -q ' [Rr] gckpti_small_ins$' "$work/symbols"
    check "and all of it read-only" sh -c "! grep -E '[^RrTt] (small|gckpti_(small|op)_[a-z_0-9]*)$' $work/symbols"
    check "nothing for virtual ranks and ranks" none_of "$work/symbols" none src/store/ranks.c src/run/group.c src/run/exchange.c src/run/micro_batches.c
    check "no heap" sh -c "! grep -E ' U (malloc|realloc|calloc|free)(@|$)' $work/symbols"
fi

# A plan of three ops links three ops.
check "a model of three ops" $LINKED -std=c99 -O1 $warnings -I. -DSET=0 tests/firmware/flash.c -o "$work/host0"
check "is printed" sh -c "$work/host0 > $work/small0.h"
if whole; then
    check "is compiled" $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DSET=0 '-DTABLE="small0.h"' \
        $(without "$work/small0.h") tests/firmware/flash.c -o "$work/device0"
    check "trains in its blocks" "$work/device0"
fi
if whole && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device0" | sed -n 's/.* [RrDdBb] gckpti_op_//p' | sort > "$work/ops0"
    printf '%s\n' linear mean_squared_error relu > "$work/want_ops0"
    check "links three" diff "$work/want_ops0" "$work/ops0"
    check "and no planner" planless "$work/device0"
fi
check "is compiled small" $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DGCKPT_SMALL -DSET=0 \
    '-DTABLE="small0.h"' $(without "$work/small0.h") \
    tests/firmware/flash.c -o "$work/device0"
check "trains in its blocks" "$work/device0"
if [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device0" > "$work/symbols0"
    check "links nothing for other types, memories and backends, and to debug" none_of "$work/symbols0" none \
        src/cpu/convert.c src/run/debug.c src/run/host.c src/run/mixed.c src/run/profile.c src/run/quant.c src/store/quant.c
    check "no texts, rules of shapes and counts of operations" sh -c "! grep -E ' [Tt] gckpti_(text|.*_shape|.*_flops|hash_)' \
        $work/symbols0 | grep -v -E ' gckpti_(node|same|planned)_shape'"
fi

# A build without a part that a plan needs reports an error.
left_out()              # left_out SET OP PART
{
    check "a model with $2" $LINKED -std=c99 -O0 $warnings -I. "-DSET=$1" tests/firmware/flash.c -o "$work/host$1"
    check "is printed" sh -c "$work/host$1 > $work/small$1.h"
    check "and needs GCKPT_NO_$3 not to be" fails_saying "it has $2: compile without GCKPT_NO_$3" \
        $CC -std=c99 -fsyntax-only -I. -I$work -DDEVICE "-DSET=$1" "-DTABLE=\"small$1.h\"" "-DGCKPT_NO_$3" \
        tests/firmware/flash.c
}
left_out 4 conv2d IMAGES
left_out 5 gru RECURRENT

# An inference plan runs in a build without training, and links no training code.
trains='backward|deriv|grad|update|init_values|philox|normal|clip|finite|squares|adamw|momentum|state'
check "an autoencoder" $LINKED -std=c99 -O1 $warnings -I. -DSET=6 tests/firmware/flash.c -o "$work/host6"
check "is printed" sh -c "$work/host6 > $work/small6.h"
check "and needs no training" grep -q 'It runs with GCKPT_NO_TRAINING,' "$work/small6.h"
if whole; then
    check "is compiled small" $CC -std=c99 $sections $warnings $one -I. -I$work -DDEVICE -DGCKPT_SMALL -DSET=6 \
        '-DTABLE="small6.h"' $(without "$work/small6.h") tests/firmware/flash.c -o "$work/device6"
    check "gives its row back" "$work/device6"
fi
if whole && [ "$sections" != -Os ] && command -v nm > /dev/null; then
    nm "$work/device6" > "$work/symbols6"
    check "links nothing that trains" sh -c "! grep -E ' [TtRr] gckpti_[a-z0-9_]*($trains)' $work/symbols6"
    check "no update" none_of "$work/symbols6" none src/run/update.c src/run/train.c
fi

# Limits of a transformer's flash and stack with the compiler of make size, and of its stack with this machine's compiler.
# They grow only for a reason.
if whole && bytes=$(sh tests/firmware/size.sh bytes 2 2> /dev/null); then
    echo "transformer: bytes of code and of constants: $bytes"
    check "a transformer takes at most 22700 bytes of code and 5600 of constants" \
        awk "BEGIN { split(\"$bytes\", n); exit !(n[1] > 0 && n[1] <= 22700 && n[2] <= 5600) }"
    check "the frames of its step on a Cortex-M4" frames build/size/device-flash.su 900 1900
    bytes=$(sh tests/firmware/size.sh bytes 6)
    echo "autoencoder that is run only: bytes of code and of constants: $bytes"
    check "an autoencoder that is run only takes at most 8850 bytes of code and 2250 of constants" \
        awk "BEGIN { split(\"$bytes\", n); exit !(n[1] > 0 && n[1] <= 8850 && n[2] <= 2250) }"
fi
check "a transformer" $LINKED -std=c99 -O1 $warnings -I. -DSET=2 tests/firmware/flash.c -o "$work/host2"
check "is printed" sh -c "$work/host2 > $work/small2.h"
usage=-fstack-usage
$CC $usage -c "$work/t.c" -o "$work/t.o" 2> /dev/null || usage=
check "firmware compiles it" $c -Os $usage -Wno-unused-function -I. -I$work -DDEVICE -DGCKPT_SMALL -DGCKPT_STATIC \
    -DSTACK -D_GNU_SOURCE -DSET=2 '-DTABLE="small2.h"' $(without "$work/small2.h") -c tests/firmware/flash.c -o "$work/device2.o"
check "is linked" $CC "$work/device2.o" -o "$work/device2"
check "takes at most 4 KiB of stack here, with pointers of 8 bytes" \
    sh -c "$work/device2 > $work/stack && cat $work/stack && test \$(cat $work/stack) -le 4096"
[ ! -f "$work/device2.su" ] || check "the frames of its step" frames "$work/device2.su" 1400 2800

# A plan with caches.
check "a model that generates" $LINKED -std=c99 -O0 $warnings tests/firmware/generate.c -o "$work/talk"
check "generates" sh -c "$work/talk > $work/spoken && [ \$(grep -c '^1 ' $work/spoken) = 3 ]"
check "its plan is printed" sh -c "$work/talk c > $work/generation.h"
if whole; then
    check "is compiled without training" $CC -std=c99 -O0 $warnings $one -I. -I$work '-DTABLE="generation.h"' \
        $(without "$work/generation.h") tests/firmware/generate.c -o "$work/talk_device"
    check "and generates the same" sh -c "$work/talk_device | cmp - $work/spoken"
fi
for part in FETCH CACHES; do
    check "not without what it needs" fails_saying "compile without GCKPT_NO_$part" $CC -std=c99 -I. -I$work '-DTABLE="generation.h"' \
        -DGCKPT_NO_$part -fsyntax-only tests/firmware/generate.c
done

# A plan printed by another version is refused.
sed 's/GCKPT_PLAN_FORMAT != [0-9]*/GCKPT_PLAN_FORMAT != 0/' "$work/small.h" > "$work/old.h"
check "a table of another version says so" fails_saying "print it again" $CC -std=c99 $include -UTABLE \
    '-DTABLE="old.h"' -fsyntax-only tests/firmware/device.c
sed 's/SIZE_MAX \/ 16 < [0-9]*/SIZE_MAX \/ 16 < SIZE_MAX/' "$work/small.h" > "$work/huge.h"
check "so does one that is too large" fails_saying "too large for this machine" $CC -std=c99 $include -UTABLE \
    '-DTABLE="huge.h"' -fsyntax-only tests/firmware/device.c

# ---- files that users copy: compilers do not fuse the program's own arithmetic; a file with two plans leaves out only the
# parts that neither needs ----
for file in examples/packaging/cmake/gradckptConfig.cmake examples/packaging/meson/meson.build \
    examples/packaging/esp-idf/CMakeLists.txt examples/packaging/zephyr/zephyr/CMakeLists.txt \
    examples/packaging/arduino/examples/*/*.ino README.md docs/device.md docs/tasks.md; do
    check "$file: products and sums are not fused" grep -q 'fp-contract=off' "$file"
done
check "so in pkg-config" sh -c "MAKEFLAGS= make -n install | grep -q 'Cflags: .*-ffp-contract=off'"
copied=$work/copied
cp -R examples/mcu/minimal "$copied"
commands() { MAKEFLAGS= make -nB -C "$copied" GRADCKPT="$PWD" "$@"; }
options() { commands "$1" | sed -n '/gcc \|cc /,/ main\.c /p' | tr ' ' '\n' | grep -E '^-(O|std=|m|f)'; }
printf 'float data(float a, float b, float c);\nfloat data(float a, float b, float c) { return a * b + c; }\n' > "$work/data.c"
unfused()               # unfused COMPILER option...: the product and the sum are two instructions
{
    "$@" -S -o "$work/data.s" "$work/data.c" && ! grep -iE 'v?fn?m(add|la|a)' "$work/data.s"
}
for compiler in "$CC -mfma" "$CC" aarch64-linux-gnu-gcc "arm-none-eabi-gcc -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"; do
    $compiler -O2 -std=gnu99 -c "$work/data.c" -o "$work/data.o" 2> /dev/null || continue # neither is everywhere
    check "minimal computes the same data: $compiler" unfused $compiler $(options host) -O2
    check "minimal's firmware does: $compiler" unfused $compiler $(options build/minimal.elf | grep -v '^-m')
    check "so do the examples: $compiler" unfused $compiler \
        $(MAKEFLAGS= make -nB build/quickstart | grep ' examples/quickstart\.c' | tr ' ' '\n' | grep -E '^-(O|std=|f[^o])')
done
listed() { sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort; }
leaves_out()            # leaves_out FILE: minimal's Makefile, those parts
{
    commands host | grep -o 'GCKPT_NO_[A-Z0-9]*' | sort | diff - "$1"
}
listed "$copied/plan.h" > "$work/parts1"
listed "$work/small6.h" > "$work/parts6"
comm -12 "$work/parts1" "$work/parts6" > "$work/parts"
check "two plans have parts that only one needs" test -s "$work/parts" -a \
    "$(cat "$work/parts1" "$work/parts6" | sort -u | wc -l)" -gt "$(wc -l < "$work/parts")"
check "one plan: its parts are left out" leaves_out "$work/parts1"
grep '^ \* It runs with\|, printed by gckpt_plan_c: ' "$work/small6.h" >> "$copied/plan.h"
check "two plans: those that both can do without" leaves_out "$work/parts"
grep ', printed by gckpt_plan_c: ' "$work/small6.h" >> "$copied/plan.h"
check "a plan that needs all: none" leaves_out /dev/null

report firmware
