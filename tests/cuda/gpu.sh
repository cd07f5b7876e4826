#!/bin/sh
# Everything that needs a CUDA device, in one report: build/gpu.md (make gpu). About nine minutes.
# A part that fails, or runs out of its time, says so in the report and the others go on; the exit
# status is the number of parts that failed. FAST=1 leaves out what is compared with PyTorch.
#
#     make gpu            on a machine with a device, nvcc and, to compare with, PyTorch 2
#     sh tests/cuda/gpu.sh     where make gpu-programs has built them
cd "$(dirname "$0")/.." || exit 1
B=build
R=$B/gpu.md
failed=0
mkdir -p $B/gpu

part()                  # part NAME SECONDS COMMAND...: its output, fenced, into the report
{
    name=$1
    seconds=$2
    shift 2
    start=$(date +%s)
    timeout "$seconds" "$@" > "$B/gpu/out" 2>&1
    status=$?
    {
        echo "### $name"
        echo
        echo "\`$*\`: $([ $status = 0 ] && echo "done" || echo "FAILED, exit status $status") in $(($(date +%s) - start)) s"
        echo
        echo '```'
        tail -n 60 "$B/gpu/out"
        echo '```'
        echo
    } >> $R
    [ $status = 0 ] || failed=$((failed + 1))
    echo "$name: $([ $status = 0 ] && echo "done" || echo FAILED)"
}

value()                 # value KEY: the number of that key in the last JSON line of the part before
{
    sed -n 's/.*"'"$1"'":\([0-9.e+]*\).*/\1/p' $B/gpu/out | tail -n 1
}

GPT2="--layers 12 --heads 12 --dim 768 --context 1024 --vocabulary 50257 --eval-every 0 --warmup 1 --device cuda --json -"
{
    echo "# The CUDA backend on a device"
    echo
    echo "Written by \`make gpu\` on $(date -u +%Y-%m-%d), at $(git rev-parse --short HEAD 2>/dev/null || echo "an unknown commit")."
    echo
} > $R

part "The device" 60 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv
echo "## Right: the same bits as on the processor" >> $R
echo >> $R
for test in $B/cuda/*; do
    [ -x "$test" ] && part "$(basename "$test")" 120 "$test"
done
part "Weights of a small GPT, on the processor" 120 $B/gpt-cuda --steps 20 --eval-every 0 --micro-batch 5 --json -
cpu=$(sed -n 's/.*"weights_hash":"\([0-9a-f]*\)".*/\1/p' $B/gpu/out)
part "The same on the device, in fewer bytes" 120 $B/gpt-cuda --steps 20 --eval-every 0 --micro-batch 4 --budget 24M --device cuda --json -
gpu=$(sed -n 's/.*"weights_hash":"\([0-9a-f]*\)".*/\1/p' $B/gpu/out)
if [ -n "$cpu" ] && [ "$cpu" = "$gpu" ]; then
    echo "Equal bits: weights $cpu." >> $R
else
    echo "DIFFERENT BITS: weights $cpu on the processor, $gpu on the device." >> $R
    failed=$((failed + 1))
fi
{
    echo
    echo "## Fast: kernels beside the device's own limits and cuBLAS"
    echo
} >> $R
part "Products and bandwidth" 150 $B/bench-cuda
{
    echo "## GPT-2 124M (12 layers, 12 heads, dim 768, context 1024, 50257 tokens), random weights"
    echo
} >> $R
part "fp32, exact, batch 16" 90 $B/gpt-cuda $GPT2 --batch 16 --steps 6
ours32="$(value tokens_per_second) tokens/s, $(value bytes_measured) bytes"
part "bf16, fast, batch 32" 90 $B/gpt-cuda $GPT2 --batch 32 --steps 12 --bf16-fast
ours16="$(value tokens_per_second) tokens/s, $(value bytes_measured) bytes"
part "Five budgets: predicted beside measured" 150 $B/predict-cuda 12 768 1024 4 1 12 50257
if [ -z "$FAST" ]; then
    P="python3 tests/bench/gpt2.py"
    part "PyTorch, fp32, eager, batch 16" 90 $P --precision fp32 --batch 16 --steps 4
    eager32="$(value tokens_per_second) tokens/s, $(value peak_bytes) bytes"
    part "PyTorch, bf16, eager, batch 32" 90 $P --batch 32
    eager16="$(value tokens_per_second) tokens/s, $(value peak_bytes) bytes"
    part "PyTorch, bf16, compiled, batch 32" 180 $P --batch 32 --compile
    compiled16="$(value tokens_per_second) tokens/s, $(value peak_bytes) bytes"
fi
{
    echo "## In one table"
    echo
    echo "| | ours | PyTorch eager | PyTorch compiled |"
    echo "|---|---|---|---|"
    echo "| fp32, batch 16 | $ours32 | ${eager32:-not run} | not run |"
    echo "| bf16, batch 32 | $ours16 | ${eager16:-not run} | ${compiled16:-not run} |"
    echo
    echo "Ours: the last step's tokens a second; bytes of parameters, state and arena, the highest that was touched."
    echo "PyTorch: the median step; the peak of what it allocated."
} >> $R
echo "$R: $failed failed"
exit "$failed"
