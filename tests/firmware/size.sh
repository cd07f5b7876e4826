#!/bin/sh
# make size: prints a Markdown table of the flash (text), memory and stack that firmware takes
# (docs/benchmarks/device.tsv). The rows are the trainings of tests/firmware/flash.c, then the jobs of examples/mcu, if
# QEMU and a compiler for the jobs are installed. All programs are compiled for a Cortex-M4 with FPU at -Os and linked,
# including the C library and libgcc. The stack of the trainings is measured by qemu-arm, with the same Thumb-2 code on
# a Cortex-A; each job measures its stack itself. The script needs arm-none-eabi-gcc with newlib, or
# arm-linux-gnueabihf-gcc (then without C library and libgcc). For the stack it needs arm-linux-gnueabihf-gcc and
# qemu-arm.
#
#     sh tests/firmware/size.sh            prints the table
#     sh tests/firmware/size.sh bytes SET  prints the bytes of gradckpt.h's code and constants in one training; writes
#                                 the stack frames of its functions to build/size/device-flash.su
CC=${CC:-cc}
work=build/size
mkdir -p "$work"
common="-std=c99 -Os -fno-pie -mthumb -mfloat-abi=hard -ffunction-sections -fdata-sections -Wl,--gc-sections
    -DGCKPT_STATIC -DDEVICE -Wno-unused-function -I. -I$work"
alone="-nostdlib -static -Wl,--unresolved-symbols=ignore-all -Wl,-e,main"

echo "int main(void) { return 0; }" > "$work/t.c"
cross=none
if arm-none-eabi-gcc -specs=nano.specs -nostartfiles -Wl,-e,main "$work/t.c" -o "$work/t" 2> /dev/null; then
    cross=arm-none-eabi- whole="-specs=nano.specs -specs=nosys.specs -nostartfiles -Wl,-e,main"
elif arm-linux-gnueabihf-gcc "$work/t.c" -o "$work/t" 2> /dev/null; then
    cross=arm-linux-gnueabihf- whole=$alone
else
    echo "size: neither arm-none-eabi-gcc nor arm-linux-gnueabihf-gcc" >&2
    exit 77
fi

# without TABLE: prints the options that omit the features which the plan does not need, taken from the comment in TABLE
without()
{
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sed 's/^/-D/'
}

# compiled SET FILE OPTION...: compiles and links flash.c's training SET
compiled()
{
    which=$1 file=$2
    shift 2
    "${cross}gcc" $common -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 "-DSET=$which" "-DTABLE=\"small$which.h\"" "$@" \
        tests/firmware/flash.c -o "$file" 2> "$file.log" || { cat "$file.log" >&2 && exit 1; }
}

# device SET FILE OPTION...: compiles and links flash.c's training SET without the features that its plan does not need
device() { compiled "$@" $(without "$work/small$1.h"); }

# sections FILE: prints the bytes of code and of constants
sections()
{
    "${cross}size" -A "$1" | awk '/^\.(text|ARM)/ { t += $2 } /^\.(rodata|data)/ { d += $2 } END { print t + 0, d + 0 }'
}

# table SET: writes the plan of SET as C to small<SET>.h; the command in LINKED, if set, compiles the program that
# prints it
table()
{
    [ -n "$LINKED" ] || [ -f "$work/gradckpt.o" ] || {
        printf '#define GRADCKPT_IMPLEMENTATION\n#include "gradckpt.h"\n' > "$work/gradckpt.c"
        $CC -std=c99 -O0 -DGCKPT_NO_FAST -I. -c "$work/gradckpt.c" -o "$work/gradckpt.o" || exit 1
    }
    ${LINKED:-$CC -I. -DGRADCKPT_IMPLEMENTED "$work/gradckpt.o"} -std=c99 "-DSET=$1" tests/firmware/flash.c -lm \
        -o "$work/host" && "$work/host" > "$work/small$1.h" || exit 1
}

rm -f "$work/gradckpt.o"
if [ "$1" = bytes ]; then
    table "$2"
    device "$2" "$work/device" -DGCKPT_SMALL -fstack-usage $alone
    sections "$work/device"
    exit 0
fi

# sums FILE: prints text, data and bss, as the command `size` does
sums() { "${cross}size" "$1" | awk 'NR == 2 { print $1 " | " $2 " | " $3 }'; }

echo "| training, bytes | code | constants | of them the plan | text, all | data | bss | stack | text without GCKPT_SMALL |"
echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
for set in "0 dense layers, relu, mean squared error, SGD" "1 the same, cross-entropy, AdamW" "2 transformer, AdamW" \
    "3 transformer that generates" "6 autoencoder 16-8-3-8-16 that is run only" "4 two convolutions, AdamW" "5 GRU, AdamW"; do
    n=${set%% *}
    table "$n"
    device "$n" "$work/alone$n" -DGCKPT_SMALL $alone
    device "$n" "$work/small$n" -DGCKPT_SMALL $whole
    device "$n" "$work/large$n" $whole
    plan=$("${cross}nm" -S --size-sort "$work/alone$n" | awk '/ [rRdD] (small$|gckpti_small_)/ { print $2 }' |
        while read -r hex; do echo $((0x$hex)); done | awk '{ n += $1 } END { print n }')
    stack=?
    if command -v qemu-arm > /dev/null && arm-linux-gnueabihf-gcc $common -march=armv7-a -mfpu=vfpv4 -static \
        -D_GNU_SOURCE -DGCKPT_SMALL $(without "$work/small$n.h") -DSTACK "-DSET=$n" "-DTABLE=\"small$n.h\"" tests/firmware/flash.c -o "$work/stack" 2> "$work/stack.log"; then
        stack=$(qemu-arm "$work/stack") || exit 1
    fi
    echo "| ${set#* } | $(sections "$work/alone$n" | sed 's/ / | /') | $plan | $(sums "$work/small$n") | $stack |" \
        "$("${cross}size" "$work/large$n" | awk 'NR == 2 { print $1 }') |"
done

compiled 0 "$work/more" -UTABLE -DPLANS $whole
echo "| the first, with graph and the planner | | | | | | | | $("${cross}size" "$work/more" | awk 'NR == 2 { print $1 }') |"

# The jobs of examples/mcu.
[ ! -f tests/firmware/test_mcu.sh ] || sh tests/firmware/test_mcu.sh > "$work/mcu.log" 2>&1
for elf in build/mcu/mps2-an386.*.elf; do
    case $elf in *.O[0-9].elf) continue ;; esac # other optimisation levels are in the tables of make mcu
    job=${elf#build/mcu/mps2-an386.}
    [ -f "$elf" ] && echo "| examples/mcu, ${job%.elf} | $(sections "$elf" | sed 's/ / | /') | | $(sums "$elf") |" \
        "$(awk '$1 == "stack" { print $2 }' "${elf%.elf}.out") | |"
done
exit 0
