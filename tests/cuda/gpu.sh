#!/bin/sh
# gpu.sh - runs every test and benchmark that needs a CUDA device, in stages of at most nine minutes, and writes one
# report, build/gpu.md.
#
#     make gpu                                 all stages
#     make gpu STAGES="build right"            only these stages
#     REPORT=FOLDER make gpu STAGES=fast       also copies the report of each part to FOLDER when it ends
#     sh tests/cuda/gpu.sh [STAGE...]          all stages, or only these
#
#     build     compiles the programs with nvcc for this machine's device (JOBS=16)
#     right     runs the tests; trains a small GPT to the same bits as on the processor
#     fast      measures products, bandwidth, arrays of over 2^31 elements; GPT-2 124M in fp32 and bf16
#     beside    measures GPT-2 124M with PyTorch 2, eager and compiled; skipped if PyTorch is missing
#     profile   measures time, flops and bytes of each instruction, and five budgets with predictions; runs nsys if found
#
# If a part of a stage fails or exceeds its time, the report says so and the next parts still run. A part for which its
# stage has no time left is skipped. The exit status is 1 if anything failed. With ON=shim, the same stages run on the
# processor, with small sizes and the programs of make shim-programs, which tests this script without a device.
cd "$(dirname "$0")/../.." || exit 1
B=build
R=$B/gpu.md
ON=${ON:-cuda}
STAGE=540 # seconds for a stage
failed=0
parts=0
mkdir -p $B/gpu ${REPORT:+"$REPORT"} || exit 1

say()                   # say TEXT...: adds each TEXT as a paragraph to the report
{
    printf '%s\n' "$@" "" >> $R
}

part()                  # part NAME SECONDS COMMAND...: runs COMMAND, adds the last lines of its output to the report
{
    name=$1
    most=$2
    shift 2
    parts=$((parts + 1))
    left=$((until - $(date +%s)))
    [ "$most" -le "$left" ] || most=$left
    begin=$(date +%s)
    status="skipped: no time left in its stage"
    : > $B/gpu/out
    if [ "$most" -gt 5 ]; then
        timeout "$most" "$@" > $B/gpu/out 2>&1
        status=$?
        [ $status = 0 ] && status="done" || status="FAILED, exit status $status"
        status="$status in $(($(date +%s) - begin)) s"
    fi
    {
        printf '### %s\n\n`%s`: %s\n\n```\n' "$name" "$*" "$status"
        tail -n 60 $B/gpu/out
        printf '```\n\n'
    } > $B/gpu/part
    cat $B/gpu/part >> $R
    [ -z "$REPORT" ] || cp $B/gpu/part "$REPORT/$(printf %02d $parts)-$stage.md"
    case $status in done*) ;; *) failed=$((failed + 1)) ;; esac
    echo "$stage: $name: $status"
}

value()                 # value KEY: prints the number of KEY in the last JSON line that the previous part printed
{
    sed -n 's/.*"'"$1"'":"\{0,1\}\([0-9a-f.e+-]*\).*/\1/p' $B/gpu/out | tail -n 1
}

keep()                  # keep NAME BYTES_KEY: stores tokens per second and bytes of the previous part
{
    v=$(value tokens_per_second)
    [ -z "$v" ] || echo "$v tokens/s, $(value "$2") bytes" > "$B/gpu/$ON-$1"
}

kept()
{
    cat "$B/gpu/$ON-$1" 2> /dev/null || echo "not run"
}

GPT2="--layers 12 --heads 12 --dim 768 --context 1024 --vocabulary 50257 --eval-every 0 --warmup 1 --device cuda --json -"
SMALL="--steps 20 --eval-every 0 --json -"
large= sizes="12 768 1024 4 1 12 50257" b32=16 b16=32
if [ "$ON" = shim ]; then
    GPT2="--layers 1 --heads 2 --dim 32 --context 16 --eval-every 0 --warmup 1 --device cuda --json -"
    SMALL="--layers 1 --heads 2 --dim 32 --context 16 --batch 10 --steps 2 --eval-every 0 --json -"
    large=small sizes="1 32 16 2 1 2 65" b32=2 b16=2
fi

stage()
{
    stage=$1
    until=$(($(date +%s) + STAGE))
    case $stage in
    build)
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1 | tr -d .)
        say "## Built"
        if [ "$ON" = shim ]; then
            part "make shim-programs" $STAGE make -s shim-programs
            part "A step of ResNet-18, of a GRU: copies to the host" 60 $B/launches others
        else
            part "make gpu-programs" $STAGE make -s -j"${JOBS:-16}" gpu-programs ${capability:+CUDA_ARCHS="$capability"}
        fi ;;
    right)
        say "## Right: the same bits as on the processor"
        for test in tests/cuda/test_cuda.c tests/cuda/cuda_*.c; do
            test=$(basename "$test" .c)
            part "$test" 120 "$B/$ON/$test"
        done
        part "Weights of a small GPT, on the processor" 120 $B/gpt-$ON $SMALL --micro-batch 5
        cpu=$(value weights_hash)
        part "The same on the device, with smaller micro-batches and the optimiser state on the host" 120 \
            $B/gpt-$ON $SMALL --micro-batch 2 --device cuda --offload-state
        gpu=$(value weights_hash)
        if [ -n "$cpu" ] && [ "$cpu" = "$gpu" ]; then
            say "Equal bits: weights $cpu."
        else
            say "DIFFERENT BITS: weights $cpu on the processor, $gpu on the device."
            failed=$((failed + 1))
        fi ;;
    fast)
        say "## Fast: kernels compared with the limits of the device and with cuBLAS"
        part "Products and bandwidth" 150 $B/bench-$ON $large
        part "Arrays of over 2^31 elements" 60 $B/bench-$ON $large large
        say "## GPT-2 124M (12 layers, 12 heads, dim 768, context 1024, 50257 tokens), random weights"
        part "fp32, exact, batch $b32" 120 $B/gpt-$ON $GPT2 --batch $b32 --steps 6
        keep ours32 bytes_measured
        part "bf16, exact, batch $b16" 90 $B/gpt-$ON $GPT2 --batch $b16 --steps 6 --bf16
        part "bf16, fast, batch $b16" 90 $B/gpt-$ON $GPT2 --batch $b16 --steps 12 --bf16-fast
        keep ours16 bytes_measured ;;
    beside)
        say "## PyTorch, the same model"
        P="python3 tests/bench/gpt2.py"
        python3 -c "import torch; assert torch.cuda.is_available()" 2> /dev/null || {
            say "Skipped: PyTorch with CUDA is missing."
            echo "beside: skipped, PyTorch with CUDA is missing"
            return
        }
        part "PyTorch, fp32, eager, batch 16" 90 $P --precision fp32 --batch 16 --steps 4
        keep eager32 peak_bytes
        part "PyTorch, bf16, eager, batch 32" 90 $P --batch 32
        keep eager16 peak_bytes
        part "PyTorch, bf16, compiled, batch 32" 240 $P --batch 32 --compile
        keep compiled16 peak_bytes ;;
    profile)
        say "## Where the time goes"
        part "fp32, by instruction" 120 $B/gpt-$ON $GPT2 --batch $b32 --steps 3 --profile
        part "bf16, fast, by instruction" 120 $B/gpt-$ON $GPT2 --batch $b16 --steps 3 --bf16-fast --profile
        part "Five budgets: predicted and measured" 150 $B/predict-$ON $sizes
        if command -v nsys > /dev/null; then
            part "bf16, fast, by kernel (nsys)" 150 nsys profile --force-overwrite true -o $B/gpu/nsys --stats=true \
                $B/gpt-$ON $GPT2 --batch $b16 --steps 4 --bf16-fast
        fi ;;
    *)
        echo "gpu.sh: unknown stage $stage; use build, right, fast, beside or profile"
        exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- build right fast beside profile
{
    echo "# The CUDA backend on a device"
    echo
    echo "Written by \`make gpu\` on $(date -u +%Y-%m-%d), at $(git rev-parse --short HEAD 2> /dev/null ||
        echo "an unknown commit"), stages: $*."
    echo
} > $R
stage=device until=$(($(date +%s) + 60))
[ "$ON" = shim ] && part "The shim" 60 uname -m ||
    part "The device" 60 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
for each; do
    stage "$each"
done
say "## In one table"
say "| | gradckpt | PyTorch eager | PyTorch compiled |" "|---|---|---|---|" \
    "| fp32, batch $b32 | $(kept ours32) | $(kept eager32) | not run |" \
    "| bf16, batch $b16 | $(kept ours16) | $(kept eager16) | $(kept compiled16) |"
say "gradckpt: tokens per second of the last step; measured peak bytes of parameters, state and arena." \
    "PyTorch: tokens per second of the median step; peak of allocated bytes."
[ -z "$REPORT" ] || cp $R "$REPORT/gpu.md"
echo "$R: $failed failed"
[ "$failed" = 0 ]
