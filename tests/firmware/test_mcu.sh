#!/bin/sh
# Runs examples/mcu in QEMU: every job on every board whose tools are installed. Checks that losses and weights are those of
# the same source on this machine, and that the stack suffices. Writes the tables build/mcu/tables.md, which make mcu records
# in docs/benchmarks/device.tsv. LINKED is the command that compiles programs of public names (in make mcu, linked with
# build/gradckpt.o).
#
#     sh tests/firmware/test_mcu.sh                         all
#     sh tests/firmware/test_mcu.sh run BOARD JOB LEVEL     builds and runs one: build/mcu/BOARD.JOB.out, or
#                                                           where LEVEL is not Os, build/mcu/BOARD.JOB.LEVEL.out
CC=${CC:-cc}
LINKED=${LINKED:-$CC -O1 -I.}
jobs="gpt64 gpt256 lora keyword stream power microgpt anomaly mobilenet"
boards=${BOARDS:-mps2-an385 mps2-an386 mps2-an500 mps3-an547 virt}
level=Os                              # of optimisation; others are tried
levels=${LEVELS-O2 O3}                # here,
level_boards="mps2-an386 mps3-an547"  # there,
level_jobs=${SHOW:+${jobs% mobilenet}} # and with these jobs, for the table all whose weights leave flash for -O3's code
level_jobs=${level_jobs:-microgpt}
work=build/mcu
inference_budget=16384 # bytes of flash on a Cortex-M4F: the whole firmware of a job that trains nothing
stack_budget=2700 # bytes: what is between this and the linker's stack is for interrupts and for what a job adds
portable='^(loss|right|weights|normal|anomalous|outputs) ' # lines that are the same on every board
warnings="-std=gnu99 -Wall -Wextra -Werror -Wno-unused-function -DGCKPT_STATIC"
in=examples/mcu

ram()                   # ram JOB: what its linker is given
{
    case $1 in
    gpt64) echo 64K ;;
    microgpt) echo 73K ;;
    gpt256) echo 256K ;;
    lora) echo 36K ;;
    power) echo 32K ;;
    keyword) echo 14K ;;
    stream) echo 21K ;;
    anomaly) echo 6K ;;
    mobilenet) echo 218K ;;
    esac
}

here()                  # here BOARD JOB: whether it is run there; a step of mobilenet is a third of 1e9 instructions
{
    case $2.$1 in
    mobilenet.mps2-an500 | mobilenet.mps3-an547) ;;
    mobilenet.*) return 1 ;;
    esac
}

board()                 # board NAME: its core, compiler, QEMU
{
    cross="arm-none-eabi-gcc -mthumb -specs=nano.specs"
    qemu=qemu-system-arm start=cortex_m flash=0 ram=0x20000000 hz=25000000 watchdog=0x40008000 slow=25000000
    case $1 in
    mps2-an385) core="Cortex-M0's code, on an M3" cross="$cross -mcpu=cortex-m0" ;;
    mps2-an386) core=Cortex-M4F cross="$cross -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16" ;;
    mps2-an500) core=Cortex-M7 cross="$cross -mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-d16" ;;
    mps3-an547) core=Cortex-M55 cross="$cross -mcpu=cortex-m55 -mfloat-abi=hard"
        hz=32000000 watchdog=0x4802e000 slow=32768 ;;
    virt) core="RISC-V RV32IMAFC" cross="riscv64-unknown-elf-gcc -march=rv32imafc -mabi=ilp32f"
        cross="$cross -specs=picolibc.specs" qemu="qemu-system-riscv32 -bios none"
        start=riscv flash=0x80000000 ram=0x80100000 ;;
    esac
    cross="$cross -$level -DGCKPT_SMALL -ffunction-sections -fdata-sections -DBOARD_HZ=${hz}u -DWATCHDOG=${watchdog}u
        -DWATCHDOG_HZ=${slow}u $warnings -I. -I$work -nostartfiles -T $in/mcu.ld -Wl,--gc-sections
        -Wl,--defsym=flash_at=$flash,--defsym=flash_size=512K,--defsym=ram_at=$ram"
    qemu="$qemu -M $1 -nographic -monitor none -serial none -icount shift=0
        -semihosting-config enable=on,target=native"
}

# without TABLE: prints the options that leave out the parts which none of its plans needs, from their comments
without()
{
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort | uniq -c |
        awk -v plans="$(grep -c ', printed by gckpt_plan_c: ' "$1")" '$1 == plans { print "-D" $2 }'
}

build()                 # build JOB RAM OUTPUT options..
{
    job=$1 size=$2 to=$3
    shift 3
    $cross $(without "$work/${job}_plan.h") "$@" -Wl,--defsym=ram_size="$size" "$in/$job.c" $in/semihosting.c $in/$start.c -o "$to"
}

named()                 # named BOARD JOB LEVEL: its files
{
    echo "$1.$2$([ "$3" = Os ] || echo ".$3")"
}

run()                   # run BOARD JOB LEVEL
{
    level=$3
    board "$1"
    name=$(named "$1" "$2" "$3")
    elf=$PWD/$work/$name.elf
    mkdir -p "$work/$name"
    build "$2" "$(ram "$2")" "$elf" && lean "$1" && cd "$work/$name" && erased && timeout 200 $qemu -kernel "$elf" || return 1
    case $2.$level in
    power.Os) cut_off ;;
    stream.Os) timeout 100 $qemu,arg=stream,arg=1 -kernel "$elf" > hung.out 2>&1 && sed 's/^/hung: /' hung.out ;;
    esac
}

# lean BOARD: checks that the firmware has neither heap nor stdio; on the M0 no instruction that an M0 lacks, and on the M55
# no vector arithmetic, which would flush subnormals to 0
lean()
{
    tools=${cross%%gcc *}
    ! "${tools}nm" "$elf" | grep -E ' _?(malloc|realloc|free|sbrk|fopen|fwrite|write|abort|[a-z]*printf)(_r)?$' || return 1
    case $1 in
    mps2-an385) "${tools}readelf" -A "$elf" | grep -q v6S-M ;;
    mps3-an547) ! "${tools}objdump" -d "$elf" | grep -E '[.]f32[[:space:]]+q[0-7]' ;;
    esac
}

erased()                # flash.bin, all of it
{
    head -c 32768 /dev/zero | tr '\000' '\377' > flash.bin
}

# Cuts the power twice in a row at some of the points that tests/examples/test_power_cut.c tries in full, and kills QEMU at
# arbitrary times. Training resumes each time, and the last run completes it.
cut_off()
{
    qemu=$(echo "$qemu" | sed 's/-icount shift=0//')
    for cut in 3 2777 11533 17310 23063; do
        erased
        for arg in $cut $((cut * 7 % 23071)); do
            timeout 100 $qemu,arg=power,arg=$arg -kernel "$elf" > cut.out 2>&1
            status=$?
            [ $status = 75 ] || { [ $status = 0 ] && [ $arg != $cut ]; } || return 1
        done
        timeout 100 $qemu -kernel "$elf" > "end.$cut.out" 2>&1 || return 1
    done
    erased
    for instant in 0.1 0.2 0.3 0.2; do
        timeout -s KILL $instant $qemu -kernel "$elf" > cut.out 2>&1
    done
    timeout 100 $qemu -kernel "$elf" > "end.killed.out" 2>&1 || return 1
    grep -h '^weights' end.*.out | sort | uniq -c | sed 's/^ */ends: /'
}

value()                 # value WHAT FILE..: of its line, the largest
{
    what=$1
    shift
    sed -n "s/^$what //p" "$@" | sort -n | tail -n 1
}

per_board()             # per_board WHAT TITLE: a table of it
{
    printf '\n### %s\n\n| %s |' "$2" "$2"
    for board in $found; do
        board "$board"
        printf ' %s |' "$core"
    done
    printf '\n|---|'
    for board in $found; do
        printf -- '--:|'
    done
    for job in $jobs; do
        printf '\n| %s |' "$job"
        for board in $found; do
            printf ' %s |' "$(here "$board" "$job" && value "$1" "$work/$board.$job.out")"
        done
    done
    echo
}

per_level()             # per_level WHAT TITLE: a table of it
{
    printf '\n### %s\n\n| %s |' "$2" "$2"
    rule='|---|'
    for board in $level_boards; do
        board "$board"
        for level in Os $levels; do
            printf ' %s, -%s |' "$core" "$level"
            rule="$rule--:|"
        done
    done
    printf '\n%s' "$rule"
    for job in $level_jobs; do
        printf '\n| %s |' "$job"
        for board in $level_boards; do
            for level in Os $levels; do
                printf ' %s |' "$(here "$board" "$job" && value "$1" "$work/$(named "$board" "$job" "$level").out")"
            done
        done
    done
    echo
}

tables()
{
    printf '\n| job | RAM there | RAM taken, bytes | of it stack at most, bytes | loss of the first and the last step | hash, on each board |\n'
    printf '|---|--:|--:|--:|--:|---|\n'
    for job in $jobs; do
        echo "| $job | $(ram "$job" | tr -d K) KB | $(value ram $work/*."$job.out") | $(value stack $work/*."$job.out") |" \
            "$(value loss "$work/$job.want")$(sed -n 's/^right \([0-9]*\)$/none: \1 of 64 rows right/p' "$work/$job.want") |" \
            "$(value '\(weights\|outputs\)' "$work/$job.want") |"
    done
    per_board stack "bytes of stack"
    per_board flash "bytes of flash"
    per_board instructions "instructions a step"
    [ -z "$SHOW" ] || per_level instructions "instructions a step, by level"
    [ -z "$SHOW" ] || per_level flash "bytes of flash, by level"
}

if [ "$1" = run ]; then
    out=$PWD/$work/$(named "$2" "$3" "$4").out
    run "$2" "$3" "$4" > "$out" 2>&1 || echo "exit status $?" >> "$out"
    exit 0
fi
. tests/checks.sh

# The boards whose tools are installed.
found=
for board in $boards; do
    board "$board"
    printf '#include <string.h>\nint f(void) { return 0; }\n' > "$work/t.c"
    if ! command -v "${qemu%% *}" > /dev/null; then
        echo "skip: $board (no ${qemu%% *})"
    elif ! $cross -c "$work/t.c" -o "$work/t.o" 2> /dev/null; then
        echo "skip: $board (no ${cross%% *} with a C library)"
    else
        found="$found $board"
    fi
done
[ -z "$BOARDS" ] || [ "$found" ] || exit 77

# One limit for the stack of every job: the linker script's and the manual's.
check "the manual (6) says what mcu.ld gives to the stack" sh -c "grep -q '^stack_size = .*: 3K;' $in/mcu.ld &&
    tr -s '\\n *' '   ' < gradckpt.h | grep -q '3 KiB in firmware (GCKPT_SMALL'"

# Prints the plans and runs them on the host.
for job in $jobs; do
    check "$job plans" sh -c "$LINKED -std=gnu99 -DPLAN $in/$job.c -lm -o $work/$job.plan && $work/$job.plan > $work/${job}_plan.h"
    check "$job compiles here" $CC -O1 $warnings -I. -I$work $in/$job.c $in/host.c -o "$work/$job"
    check "$job runs here" sh -c "cd $work && head -c 32768 /dev/zero | tr '\\000' '\\377' > flash.bin && ./$job | grep -E '$portable' > $job.want"
    check "$job learns" awk '/^loss/ { learned = $3 < $2 } /^right 64$/ { learned = 1 } END { exit !learned }' "$work/$job.want"
done

check "keyword recognises more than before it learned" awk '/^right before/ { before = $3 } /^right after/ { after = $3 }
    END { exit !(after > 2 * before) }' "$work/keyword.want"

# gpt256 with all activations kept: the same weights, but more than 256 KB.
check "gpt256 plans with all kept" sh -c "$LINKED -std=gnu99 -DPLAN -DSTORE_ALL $in/gpt256.c -lm -o $work/all.plan &&
    $work/all.plan > $work/gpt256_all_plan.h"
check "compiles here" $CC -O1 $warnings -DSTORE_ALL -I. -I$work $in/gpt256.c $in/host.c -o "$work/all"
check "computes the same here" sh -c "$work/all | diff $work/gpt256.want -"
overflows()             # overflows BOARD
{
    board "$1"
    ! build gpt256 256K "$work/all.elf" -DSTORE_ALL 2> "$work/all.err" && grep "region .RAM. overflowed" "$work/all.err"
}
for board in $found; do
    check "and does not fit $board" overflows "$board"
    [ -z "$SHOW" ] || sed -n "s/.*\(region .RAM. over.*\)/gpt256 with all kept, in 256 KB: \1/p" "$work/all.err"
    break
done

# The four files to copy: their plan equals the one that the library prints; copied, they build and give the same results.
minimal=$work/minimal
copied()                # copied TARGET: as somebody makes it who has put the header elsewhere
{
    MAKEFLAGS= make -s -C "$minimal" GRADCKPT="$PWD" HOST="$CC -O1 -std=gnu99 -Wno-unused-function" \
        CFLAGS="-Os -std=gnu99 -Wall -Wextra -Werror -Wno-unused-function" "$@"
}
learns_here() { copied host > "$work/minimal.want" && grep '^weights' "$work/minimal.want"; }
learns_there() { copied && copied qemu > "$work/minimal.out" 2>&1 && diff "$work/minimal.out" "$work/minimal.want"; }
cp -R $in/minimal "$minimal" && rm -rf "$minimal/build"
check "minimal has four files" [ "$(LC_ALL=C ls "$minimal" | tr '\n' ' ')" = "Makefile chip.ld main.c plan.h " ]
check "minimal's plan is today's (make -C $in/minimal plan)" sh -c "$LINKED -std=gnu99 -DPLAN $in/minimal/main.c -lm \
    -o $work/minimal.plan && $work/minimal.plan > $work/minimal.h && grep -v ' network of main.c: ' $in/minimal/plan.h |
    diff - $work/minimal.h"
check "minimal learns here" learns_here
forgets()               # forgets TARGET EDIT TEXT: what somebody sees who has forgotten something
{
    cp $in/minimal/*.[ch] $in/minimal/Makefile "$minimal" && (cd "$minimal" && eval "$2") &&
        ! copied $1 > "$work/minimal.says" 2>&1 && grep -- "$3" "$work/minimal.says"
}
another="sed 's/HIDDEN = 12/HIDDEN = 13/' main.c > m && mv m main.c"
check "minimal: another network, the old plan" forgets host "$another" "another network; run make plan"
check "minimal: no plan" forgets host "rm plan.h" "plan.h is missing; run make plan"
check "minimal: no header there" forgets "host GRADCKPT=/nowhere" true "/nowhere has no gradckpt.h; copy it"
check "minimal: does not learn" forgets host "sed 's/lr(0.05f)/lr(1e-9f)/' main.c > m && mv m main.c" "^not learned"
check "minimal: wrong feeds" forgets host "sed 's/feeds, 2, ROWS/feeds, 1, ROWS/' main.c > m && mv m main.c" \
    "^gckpt_result [1-9]"
cp $in/minimal/main.c $in/minimal/plan.h "$minimal"
case "$found " in
*" mps2-an386 "*) check "minimal learns the same on the chip" learns_there ;;
esac

# A stack overflow is reported whether the job ends (it then used the whole stack) or not.
runs_over()             # runs_over BOARD BYTES
{
    board "$1"
    build microgpt "$(ram microgpt)" "$PWD/$work/over.elf" -Wl,--defsym=stack_size="$2" || return 1
    timeout 200 $qemu -kernel "$PWD/$work/over.elf" > "$work/over.out" 2>&1
    test $? = 98 && grep "the stack has run over" "$work/over.out"
}

# One line BOARD JOB LEVEL for each further optimisation level to try
besides()
{
    for board in $level_boards; do
        case " $found " in *" $board "*) ;; *) continue ;; esac
        for job in $level_jobs; do
            here "$board" "$job" || continue
            for level in $levels; do
                echo "$board $job $level"
            done
        done
    done
}

{
    for board in $found; do
        for job in $jobs; do
            ! here "$board" "$job" || echo "$board $job Os"
        done
    done
    besides
} | xargs -P "${JOBS:-$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)}" -n 3 sh "$0" run

same()                  # same BOARD JOB LEVEL: it ran, and what it computed is what the host did
{
    out=$work/$(named "$1" "$2" "$3").out
    cat "$out"
    ! grep -q '^exit status' "$out" && grep -E "$portable" "$out" | diff "$work/$2.want" -
}

for job in $jobs; do
    for board in $found; do
        here "$board" "$job" || continue
        check "$board $job" same "$board" "$job" Os
        stack=$(value stack "$work/$board.$job.out")
        check "$board $job takes ${stack:-?} bytes of stack, $stack_budget at most" \
            test "${stack:-$((stack_budget + 1))}" -le "$stack_budget"
        flash=$(value flash "$work/$board.$job.out")
        [ "$board $job" != "mps2-an386 anomaly" ] || check "$board $job takes ${flash:-?} bytes of flash, $inference_budget at most" \
            test "${flash:-$((inference_budget + 1))}" -le "$inference_budget"
        [ $job != stream ] || check "$board $job hangs, is reset by the watchdog and ends so" \
            sh -c "grep -q '^hung: reset by the watchdog' $work/$board.$job.out &&
                grep -q '^hung: $(grep '^weights' "$work/$job.want")' $work/$board.$job.out"
        [ $job != power ] || check "$board $job ends so, whatever is cut off" \
            grep -q "^ends: 6 $(grep '^weights' "$work/$job.want")" "$work/$board.$job.out"
        [ $job = microgpt ] || continue
        all=$(((${stack:-0} + 15) / 16 * 16))
        [ $board != mps2-an385 ] || all= # a minute, and nothing of the core in it
        for bytes in $all 2048 1024; do
            check "$board $job says so when its stack has only $bytes bytes" runs_over "$board" "$bytes"
        done
    done
done
besides > "$work/besides"
while read -r board job level; do
    check "$board $job by -$level" same "$board" "$job" "$level"
done < "$work/besides"

# Vector instructions of an M55 flush subnormals to 0, so gcc -O3 must not vectorise loops.
keeps_subnormals()
{
    level=O3
    board mps3-an547
    $cross -Wl,--defsym=ram_size=64K tests/firmware/subnormals.c -I$in $in/semihosting.c $in/$start.c \
        -o "$work/subnormals.elf" && timeout 100 $qemu -kernel "$PWD/$work/subnormals.elf"
}
case " $found " in
*" mps3-an547 "*) check "mps3-an547 keeps subnormals, by -O3" keeps_subnormals ;;
esac
level=Os
tables > "$work/tables.md"
if [ -n "$SHOW" ]; then
    cat "$work/tables.md"
    [ "$failed" -gt 0 ] || [ "$(echo $found)" != "$boards" ] || PROCESSOR=- THREADS=- sh tests/bench/record.sh device "$work/tables.md" mcu
fi
report mcu
