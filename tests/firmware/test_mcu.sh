#!/bin/sh
# Runs examples/mcu in QEMU: every job on every board whose tools are installed. Losses and weights must be those of the
# same source compiled for this machine, and the stack must suffice. The script writes the tables build/mcu/tables.md,
# which make mcu records in docs/benchmarks/device.tsv. LINKED is the command that compiles programs that use public
# names only (in make mcu, linked with build/gradckpt.o).
#
#     sh tests/firmware/test_mcu.sh                      runs every job on every board
#     sh tests/firmware/test_mcu.sh run BOARD JOB LEVEL  builds and runs one job, at optimisation level LEVEL; writes
#                                                        its output to build/mcu/BOARD.JOB.out or, if LEVEL is not
#                                                        Os, to build/mcu/BOARD.JOB.LEVEL.out
CC=${CC:-cc}
LINKED=${LINKED:-$CC -O1 -I.}
jobs="gpt64 gpt256 lora keyword stream power microgpt anomaly mobilenet"
boards=${BOARDS:-mps2-an385 mps2-an386 mps2-an500 mps3-an547 virt}
level=Os                              # optimisation level of the main runs
levels=${LEVELS-O2 O3}                # further optimisation levels,
level_boards="mps2-an386 mps3-an547"  # tried on these boards
level_jobs=${SHOW:+${jobs% mobilenet}} # and with these jobs; for the tables, all whose code at -O3 fits
level_jobs=${level_jobs:-microgpt}
work=build/mcu
inference_budget=16384 # bytes of flash on a Cortex-M4F for the whole firmware of a job that only infers
cuts="3 2777 11533 17310 23063" # points of power cuts: all, or (make check) one that the commit draws
[ "$SHOW$CHECK_ALL" ] || cuts=$(echo "$cuts" | cut -d' ' -f$((${SEED:-0} / 5 % 5 + 1)))
ends=$(echo "$cuts" | awk '{ print NF + 1 }') # runs that complete a training: one per cut, and one after kills
stack_budget=2700 # bytes; the rest of mcu.ld's stack is for interrupts and for code that users add
portable='^(loss|right|weights|normal|anomalous|outputs) ' # output lines that must be equal on every board
warnings="-std=gnu99 -Wall -Wextra -Werror -Wno-unused-function -DGCKPT_STATIC"
in=examples/mcu

ram()                   # ram JOB: prints the bytes of RAM that the job's linker script gets
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

# here BOARD JOB: whether to run the job there; a step of mobilenet takes 3e8 instructions, and one of gpt256 2e9 without
# an FPU, where gpt64 and microgpt run the same ops
here()
{
    case $2.$1 in
    mobilenet.mps2-an500 | mobilenet.mps3-an547) ;;
    mobilenet.*) return 1 ;;
    gpt256.mps2-an385) [ "$SHOW" ] || return 1 ;;
    esac
}

board()                 # board NAME: sets the board's core, compiler and QEMU command
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

# without TABLE: prints the options that omit the features which no plan in TABLE needs, taken from the plans' comments
without()
{
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort | uniq -c |
        awk -v plans="$(grep -c ', printed by gckpt_plan_c: ' "$1")" '$1 == plans { print "-D" $2 }'
}

build()                 # build JOB RAM OUTPUT OPTION...: compiles and links the firmware of a job
{
    job=$1 size=$2 to=$3
    shift 3
    $cross $(without "$work/${job}_plan.h") "$@" -Wl,--defsym=ram_size="$size" "$in/$job.c" $in/semihosting.c $in/$start.c -o "$to"
}

named()                 # named BOARD JOB LEVEL: prints the name of this run's files
{
    echo "$1.$2$([ "$3" = Os ] || echo ".$3")"
}

run()                   # run BOARD JOB LEVEL: builds and runs a job
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

# lean BOARD: checks that the firmware has neither heap nor stdio; for the M0, that it has no instruction that an M0
# lacks; for the M55, that it has no vector arithmetic, which would flush subnormals to 0
lean()
{
    tools=${cross%%gcc *}
    ! "${tools}nm" "$elf" | grep -E ' _?(malloc|realloc|free|sbrk|fopen|fwrite|write|abort|[a-z]*printf)(_r)?$' || return 1
    case $1 in
    mps2-an385) "${tools}readelf" -A "$elf" | grep -q v6S-M ;;
    mps3-an547) ! "${tools}objdump" -d "$elf" | grep -E '[.]f32[[:space:]]+q[0-7]' ;;
    esac
}

erased()                # writes flash.bin, the whole flash memory in its erased state
{
    head -c 32768 /dev/zero | tr '\000' '\377' > flash.bin
}

# cut_off: cuts the power twice in a row, at some of the points that tests/examples/test_power_cut.c tries completely,
# and kills QEMU at arbitrary times. Training must resume each time, and the last run must complete it.
cut_off()
{
    qemu=$(echo "$qemu" | sed 's/-icount shift=0//')
    for cut in $cuts; do
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

value()                 # value WHAT FILE..: prints the largest number in the files' lines that begin with WHAT
{
    what=$1
    shift
    sed -n "s/^$what //p" "$@" | sort -n | tail -n 1
}

per_board()             # per_board WHAT TITLE: prints a table of WHAT with a column for each board
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

per_level()             # per_level WHAT TITLE: prints a table of WHAT with a column for each optimisation level
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

# Finds the boards whose tools are installed.
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

# The linker script and the manual must give the same limit for the stack of every job.
check "the manual (6) says what mcu.ld gives to the stack" sh -c "grep -q '^stack_size = .*: 3K;' $in/mcu.ld &&
    tr -s '\\n *' '   ' < gradckpt.h | grep -q '6 without it, 3 in firmware'"

# Prints the plan of each job, then runs each job on the host.
for job in $jobs; do
    check "$job plans" sh -c "$LINKED -std=gnu99 -DPLAN $in/$job.c -lm -o $work/$job.plan && $work/$job.plan > $work/${job}_plan.h"
    check "$job compiles here" $CC -O1 $warnings -I. -I$work $in/$job.c $in/host.c -o "$work/$job"
    check "$job runs here" sh -c "cd $work && head -c 32768 /dev/zero | tr '\\000' '\\377' > flash.bin && ./$job | grep -E '$portable' > $job.want"
    check "$job learns" awk '/^loss/ { learned = $3 < $2 } /^right 64$/ { learned = 1 } END { exit !learned }' "$work/$job.want"
done

check "keyword recognises more than before it learned" awk '/^right before/ { before = $3 } /^right after/ { after = $3 }
    END { exit !(after > 2 * before) }' "$work/keyword.want"

# The job gpt256 with a plan that keeps all activations must give the same weights, and needs more than 256 KB.
check "gpt256 with all activations kept: the plan is printed" \
    sh -c "$LINKED -std=gnu99 -DPLAN -DSTORE_ALL $in/gpt256.c -lm -o $work/all.plan &&
    $work/all.plan > $work/gpt256_all_plan.h"
check "gpt256 with all activations kept compiles here" \
    $CC -O1 $warnings -DSTORE_ALL -I. -I$work $in/gpt256.c $in/host.c -o "$work/all"
check "gpt256 with all activations kept computes the same here" sh -c "$work/all | diff $work/gpt256.want -"
overflows()             # overflows BOARD: checks that this firmware does not fit into 256 KB
{
    board "$1"
    ! build gpt256 256K "$work/all.elf" -DSTORE_ALL 2> "$work/all.err" && grep "region .RAM. overflowed" "$work/all.err"
}
for board in $found; do
    check "gpt256 with all activations kept does not fit $board" overflows "$board"
    [ -z "$SHOW" ] || sed -n "s/.*\(region .RAM. over.*\)/gpt256 with all kept, in 256 KB: \1/p" "$work/all.err"
    break
done

# examples/mcu/minimal, four files for users to copy: its plan must equal the plan that the library prints, and a copy
# of the files must build and give the same results.
minimal=$work/minimal
copied()                # copied TARGET: runs make in the copy, as a user does who has gradckpt.h in another folder
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
forgets()               # forgets TARGET EDIT TEXT: make TARGET must fail with TEXT after EDIT, a user's mistake
{
    cp $in/minimal/*.[ch] $in/minimal/Makefile "$minimal" && (cd "$minimal" && eval "$2") &&
        ! copied $1 > "$work/minimal.says" 2>&1 && grep -- "$3" "$work/minimal.says"
}
another="sed 's/HIDDEN = 12/HIDDEN = 13/' main.c > m && mv m main.c"
check "minimal: another network, the old plan" forgets host "$another" "another network; run make plan"
check "minimal: no plan" forgets host "rm plan.h" "plan.h is missing; run make plan"
check "minimal: GRADCKPT without gradckpt.h" forgets "host GRADCKPT=/nowhere" true "/nowhere has no gradckpt.h; copy it"
check "minimal: does not learn" forgets host "sed 's/lr(0.05f)/lr(1e-9f)/' main.c > m && mv m main.c" "^not learned"
check "minimal: wrong feeds" forgets host "sed 's/feeds, 2, ROWS/feeds, 1, ROWS/' main.c > m && mv m main.c" \
    "^gckpt_result [1-9]"
cp $in/minimal/main.c $in/minimal/plan.h "$minimal"
case "$found " in
*" mps2-an386 "*) check "minimal learns the same on the chip" learns_there ;;
esac

# A stack overflow must be reported, whether the job still reaches its end (having used the whole stack) or not.
runs_over()             # runs_over BOARD BYTES: runs a job with a stack of BYTES, which is too small
{
    board "$1"
    build microgpt "$(ram microgpt)" "$PWD/$work/over.elf" -Wl,--defsym=stack_size="$2" || return 1
    timeout 200 $qemu -kernel "$PWD/$work/over.elf" > "$work/over.out" 2>&1
    test $? = 98 && grep "the stack has run over" "$work/over.out"
}

# Prints a line "BOARD JOB LEVEL" for each run with a further optimisation level.
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

same()                  # same BOARD JOB LEVEL: checks that the job ran, and that its results are those of the host
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
        [ $job != stream ] || check "$board $job hangs, is reset by the watchdog, and ends with the same weights" \
            sh -c "grep -q '^hung: reset by the watchdog' $work/$board.$job.out &&
                grep -q '^hung: $(grep '^weights' "$work/$job.want")' $work/$board.$job.out"
        [ $job != power ] || check "$board $job ends so, whatever is cut off" \
            grep -q "^ends: $ends $(grep '^weights' "$work/$job.want")" "$work/$board.$job.out"
        [ $job = microgpt ] || continue
        sizes="$(((${stack:-0} + 15) / 16 * 16)) 2048 1024"
        [ $board != mps2-an385 ] || sizes=1024 # the others take a minute and use no feature of this core
        for bytes in $sizes; do
            check "$board $job says so when its stack has only $bytes bytes" runs_over "$board" "$bytes"
        done
    done
done
besides > "$work/besides"
while read -r board job level; do
    check "$board $job by -$level" same "$board" "$job" "$level"
done < "$work/besides"

# On an M55, vector instructions flush subnormals to 0, so gcc -O3 must not vectorise loops.
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
