#!/bin/sh
# make flash: the table of docs/device.md, in Markdown: what trainings take of flash (text and constants of
# a Cortex-M4 with its FPU, without the C library and libgcc), memory and stack (measured by qemu-arm on a
# Cortex-A build of the same Thumb-2 code). Needs arm-linux-gnueabihf-gcc; qemu-arm for the stack.
CC=${CC:-cc}
CROSS=${CROSS:-arm-linux-gnueabihf-}
work=build/flash
rm -rf "$work"
mkdir -p "$work"
common="-std=c99 -Os -fno-pie -mthumb -mfloat-abi=hard -ffunction-sections -fdata-sections -Wl,--gc-sections -I. -I$work"
device="${CROSS}gcc $common -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -nostdlib -static -Wl,--unresolved-symbols=ignore-all -Wl,-e,main"

# sections FILE: bytes of code, bytes of constants
sections()
{
    "${CROSS}size" -A "$1" | awk '/^\.text/ { t = $2 } /^\.(rodata|data)/ { d += $2 } END { printf "%d | %d", t, d }'
}

echo "int main(void) { return 0; }" > "$work/t.c"
if ! ${CROSS}gcc "$work/t.c" -o "$work/t" 2> /dev/null; then
    echo "flash: no ${CROSS}gcc" >&2
    exit 1
fi
printf '#define GRADCKPT_IMPLEMENTATION\n#include "gradckpt.h"\n' > "$work/gradckpt.c"
$CC -std=c99 -O1 -I. -c "$work/gradckpt.c" -o "$work/gradckpt.o" || exit 1
echo "| training | code | constants | of them the plan | store block | executor block | stack |"
echo "|---|--:|--:|--:|--:|--:|--:|"
for set in "0 dense layers, relu, mean squared error, SGD" "1 the same, cross-entropy, AdamW" \
    "2 transformer, AdamW" "3 transformer that generates"; do
    n=${set%% *}
    $CC -std=c99 -I. -DGRADCKPT_IMPLEMENTED -DSET=$n tests/firmware/flash.c "$work/gradckpt.o" -lm -o "$work/host" && "$work/host" > "$work/small$n.h" || exit 1
    $device -DDEVICE -DSET=$n "-DTABLE=\"small$n.h\"" tests/firmware/flash.c -o "$work/device$n" || exit 1
    plan=$("${CROSS}nm" -S --size-sort "$work/device$n" | awk '/ [rRdD] (small$|gckpti_small_)/ { print $2 }' |
        while read -r hex; do echo $((0x$hex)); done | awk '{ n += $1 } END { print n }')
    block() { sed -n "s/#define small_$1_bytes //p" "$work/small$n.h"; }
    stack=?
    if command -v qemu-arm > /dev/null; then
        ${CROSS}gcc $common -march=armv7-a -mfpu=vfpv4 -static -D_GNU_SOURCE -DDEVICE -DSTACK -DSET=$n "-DTABLE=\"small$n.h\"" \
            tests/firmware/flash.c -o "$work/stack$n" && stack=$(qemu-arm "$work/stack$n") || exit 1
    fi
    echo "| ${set#* } | $(sections "$work/device$n") | $plan | $(block store) | $(block exec) | $stack |"
done
$device -DDEVICE -DSET=0 -DREADS tests/firmware/flash.c -o "$work/reads" || exit 1
echo "| the first, with graph and a plan from a file | $(sections "$work/reads") | | | | |"
$device -DDEVICE -DSET=0 -DPLANS tests/firmware/flash.c -o "$work/plans" || exit 1
echo "| the first, with graph and planner | $(sections "$work/plans") | | | | |"
