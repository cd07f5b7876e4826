#!/bin/sh
# Runs lesson 8's relay: a training that begins natively, continues in WebAssembly under node, on a Cortex-M4F in QEMU and
# on two MPI ranks, and ends natively. The last checkpoint must have the bytes of a training on one machine. Then each of
# these machines, and CUDA on a simulated device, repeats a part of a ledger of that training, and must refuse a
# ledger in which one bit of one weight is wrong. The native machine replaces one whose tools are missing. Writes
# build/relay/relay.svg, a picture; build/relay/ledger and checkpoints for the playground's page.
#
#     sh docs/course/tools/relay.sh
#
# LINKED: command that compiles and links a program of gradckpt.h. CUDA_SHIM: object of gradckpt_cuda.cu for the CPU's
# simulation of CUDA. MACHINES: the machines to use, of native wasm mcu mpi cuda. WORK: another folder than build/relay.
linked=${LINKED:-${CC:-cc} -O1 -std=gnu99 -I. -DGRADCKPT_IMPLEMENTED build/gradckpt.o -fopenmp}
objects=$(echo "$linked" | tr ' ' '\n' | grep '[.][oa]$') # after sources, as a library must be
flags=$(echo "$linked" | tr ' ' '\n' | grep -v '[.][oa]$' | tr '\n' ' ')
shim=${CUDA_SHIM:-build/shim/gradckpt_cuda.o}
cxx=${CXX:-g++}
work=${WORK:-build/relay}
steps=12        # of each part
all=60
export OMP_NUM_THREADS=1
root=$PWD
failed=0
rm -rf "$work"
mkdir -p "$work/board"

fails() { echo "FAIL: $1"; failed=1; }

name()                  # name MACHINE
{
    case $1 in
    native) echo "native" ;;
    wasm) echo "WebAssembly" ;;
    mcu) echo "Cortex-M4F" ;;
    mpi) echo "2 MPI ranks" ;;
    cuda) echo "CUDA, simulated" ;;
    esac
}

# lacks MACHINE: prints the packages (of Debian) to install for a machine; fails if nothing is missing
lacks()
{
    packages=
    case $1 in
    wasm)
        command -v node > $work/log || packages="$packages nodejs"
        command -v wasm-ld > $work/log || packages="$packages lld"
        echo 'int main(void) { return 0; }' > $work/t.c
        clang --target=wasm32-wasi $work/t.c -o $work/t.wasm 2> $work/log ||
            packages="$packages clang wasi-libc libclang-rt-14-dev-wasm32" ;;
    mcu)
        command -v qemu-system-arm > $work/log || packages="$packages qemu-system-arm"
        echo '#include <string.h>' > $work/t.c
        arm-none-eabi-gcc -c $work/t.c -o $work/t.o 2> $work/log ||
            packages="$packages gcc-arm-none-eabi libnewlib-arm-none-eabi" ;;
    mpi)
        mpirun --version 2> $work/log | grep -q 'Open MPI' || packages="$packages openmpi-bin"
        command -v mpicc > $work/log || packages="$packages libopenmpi-dev" ;;
    cuda)
        [ -f "$shim" ] || { echo "$shim is missing: make $shim builds it"; return 0; }
        command -v ${cxx%% *} > $work/log || packages="$packages g++" ;;
    esac
    [ "$packages" ] && echo "install$packages"
}

build()                 # build MACHINE
{
    source=docs/course/relay.c
    case $1 in
    native) $flags $source $objects -lm -o $work/native ;;
    wasm)
        # -O0 compiles in seconds, and has the same bits
        clang --target=wasm32-wasi -std=gnu99 -O0 -w -I. -DGRADCKPT_IMPLEMENTATION -D_WASI_EMULATED_PROCESS_CLOCKS \
            $source -lwasi-emulated-process-clocks -o $work/relay.wasm ;;
    mcu)
        $flags -w -DPLAN examples/mcu/relay.c $objects -lm -o $work/plan && $work/plan > $work/relay_plan.h &&
            arm-none-eabi-gcc -mthumb -specs=nano.specs -mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16 -Os \
                -std=gnu99 -Wall -Wextra -Wno-unused-function -DGCKPT_STATIC -DBOARD_HZ=25000000u -DWATCHDOG=0x40008000u \
                -DWATCHDOG_HZ=25000000u -I. -I$work -ffunction-sections -fdata-sections -nostartfiles \
                -T examples/mcu/mcu.ld -Wl,--gc-sections,--defsym=flash_at=0,--defsym=flash_size=512K \
                -Wl,--defsym=ram_at=0x20000000,--defsym=ram_size=256K,--defsym=stack_size=16K \
                -Wl,--defsym=board_ledger=0x80000 examples/mcu/relay.c examples/mcu/semihosting.c \
                examples/mcu/cortex_m.c -o $work/relay.elf ;;
    mpi) OMPI_CC=${flags%% *} mpicc ${flags#* } -DRELAY_MPI $source $objects -lm -o $work/relay-mpi ;;
    cuda)
        $flags -w -DRELAY_CUDA -c $source -o $work/relay-cuda.o &&
            $cxx $work/relay-cuda.o "$shim" $objects -fopenmp -lm -pthread -o $work/relay-cuda ;;
    esac
}

# on MACHINE ARGUMENTS..: runs relay.c's program with its arguments, FROM TO STEPS or audit LEDGER FROM STEPS; names are
# of files in $work
on()
{
    machine=$1
    shift
    case $machine in
    native) (cd $work && ./native "$@") ;;
    cuda) (cd $work && ./relay-cuda "$@") ;;
    wasm) (cd $work && node --no-warnings --no-turbo-fast-api-calls "$root/tests/wasi.mjs" relay.wasm "$@") ;;
    mpi)
        (cd $work && timeout 100 mpirun $([ "$(id -u)" -ne 0 ] || echo --allow-run-as-root) --oversubscribe -n 2 \
            ./relay-mpi "$@") ;;
    mcu) board "$@" ;;
    esac
}

# board ARGUMENTS..: gives the checkpoint to the board in flash.bin, after its size; a ledger lies in its flash
board()
{
    ledger=
    if [ "$1" = audit ]; then
        ledger="-device loader,file=../$2,addr=0x80000,force-raw=on"
        from=$3 to= count=$4
    else
        from=$1 to=$2 count=$3
    fi
    bytes=0
    [ "$from" = - ] || bytes=$(($(wc -c < $work/$from)))
    {
        printf "$(printf '\\%03o' $((bytes % 256)) $((bytes / 256 % 256)) $((bytes / 65536)) 0)"
        [ "$from" = - ] || cat $work/$from
    } > $work/board/flash.bin
    (cd $work/board && timeout 100 qemu-system-arm -M mps2-an386 -nographic -monitor none -serial none \
        -semihosting-config enable=on,target=native,arg=relay,arg="$count" $ledger -kernel "$root/$work/relay.elf") || return 1
    [ -z "$to" ] || tail -c +5 $work/board/flash.bin | head -c $(od -A n -t u4 -N 4 $work/board/flash.bin) > $work/$to
}

# train MACHINE FROM TO STEPS: prints the steps, and adds them to $work/steps.txt
train()
{
    on "$1" "$2" "$3" "$4" > $work/out 2>&1 || { cat $work/out; fails "$(name "$1") does not train"; }
    sed -n "s/^step \([0-9]*\), loss \([0-9.]*\), weights \([0-9a-f]*\)$/\1 \2 \3 $(name "$1")/p" $work/out > $work/part
    cat $work/part >> $work/steps.txt
    awk -v name="$(name "$1")" 'NR == 1 { first = $1 } { last = $1; loss = $2; weights = $3 }
        END { printf "steps %2d to %2d  %-15s  loss %s, weights %s\n", first, last, name, loss, weights }' $work/part
}

# audit MACHINE FIRST: repeats a part of the ledger, which begins after step FIRST; then it must refuse one that has a
# wrong bit there, and a damaged one
audit()
{
    from=$2.safetensors
    [ "$2" -gt 0 ] || from=-
    said="steps $(($2 + 1)) to $(($2 + steps)): every record is true"
    on "$1" audit ledger "$from" $steps > $work/out 2>&1 && grep -qx "$said" $work/out ||
        { cat $work/out; fails "$(name "$1") refuses the ledger"; return; }
    printf '%-15s  %s' "$(name "$1")" "$said"
    wrong=$(($2 + steps / 2))
    on native record wrong $all $wrong > $work/out 2>&1 || fails "the wrong ledger"
    refusal="record $wrong, step $wrong: the first tensor that differs is values 256x16 table 0"
    ! on "$1" audit wrong "$from" $steps > $work/out 2>&1 && grep -q "$refusal" $work/out ||
        { cat $work/out; fails "$(name "$1") does not find the wrong record"; return; }
    ! on "$1" audit damaged "$from" $steps > $work/out 2>&1 && grep -q "record 30 is damaged" $work/out ||
        { cat $work/out; fails "$(name "$1") accepts a damaged ledger"; return; }
    echo "; a wrong bit is found at step $wrong"
    echo "$(($2 + 1)) $(($2 + steps)) $wrong $(name "$1")" >> $work/audits.txt
}

here=
for machine in ${MACHINES:-native wasm mcu mpi cuda}; do
    if why=$(lacks $machine); then
        echo "skip: $(name $machine): $why"
    elif build $machine > $work/out 2>&1; then
        here="$here $machine"
    else
        cat $work/out
        fails "$(name $machine) does not compile"
    fi
done

# ---- the relay ----
at=0 from=-
for machine in native wasm mcu mpi native; do
    case " $here " in *" $machine "*) ;; *) machine=native ;; esac
    train $machine $from $((at + steps)).safetensors $steps
    at=$((at + steps)) from=$at.safetensors
done
on native - one.safetensors $all > $work/one.txt || fails "one machine does not train"
sed 's/^step //; s/, loss / /; s/, weights / /' $work/one.txt > $work/one
cut -d ' ' -f 1-3 $work/steps.txt | cmp $work/one - || fails "a step differs from that of one machine"
cmp $work/one.safetensors $work/$all.safetensors || fails "the last checkpoint is not that of one machine"
[ $failed = 0 ] && echo "one machine     the same 60 losses and hashes, and a last checkpoint with the same bytes"

# ---- the audits ----
at=0
on native record ledger $all 0 || fails "no ledger"
cp $work/ledger $work/damaged # another byte in the middle, in record 30
printf '\377\377' | dd of=$work/damaged bs=1 seek=$(($(wc -c < $work/ledger) / 2)) conv=notrunc 2> $work/log
for machine in native wasm mcu mpi cuda; do
    case " $here " in *" $machine "*) audit $machine $at ;; esac
    at=$((at + steps))
done

# ---- the picture ----
if [ $failed = 0 ]; then
    ${CC:-cc} -O1 -std=gnu99 -Wall -Wextra -Iexamples docs/course/tools/relay_picture.c -o $work/picture &&
        $work/picture $work/steps.txt $work/audits.txt > $work/relay.svg || fails "no picture"
    echo "$work/relay.svg shows it"
fi
exit $failed
