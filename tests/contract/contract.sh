#!/bin/sh
# contract.sh OBJECT [NETS [SEED]] - compares the library with a second implementation of docs/numerics.md, in Python
# with numpy. First PyTorch's golden values are compared, then random nets, bit for bit. OBJECT is the compiled library.
# Without numpy, the script prints that it skips, and succeeds.
set -e
here=$(cd "$(dirname "$0")" && pwd)
if ! python3 -c 'import numpy' 2>/dev/null; then
    echo "contract: skipped (no python3 with numpy)"
    exit 0
fi
program=$(mktemp)
trap 'rm -f "$program"' EXIT
${CC:-cc} -std=c99 -O1 -I"$here/../.." "$here/dump.c" "$1" ${LIBS:--lm} -o "$program"
python3 "$here/golden.py" "$program"
python3 "$here/check.py" "$program" "${2:-300}" "${3:-1}"
for broken in -e -b -r; do # breaks check.py: order of sums, chains of a block, ties of bf16
    if python3 "$here/check.py" "$program" 20 1 $broken > /dev/null; then
        echo "contract: the check passes although the implementation was broken by $broken"
        exit 1
    fi
done
