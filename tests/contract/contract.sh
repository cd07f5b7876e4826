#!/bin/sh
# contract.sh OBJECT [NETS [SEED]] - the numeric contract written a second time, from its text, in Python
# with numpy: PyTorch's goldens, then random nets, to the bit. OBJECT: the library, compiled. Without numpy
# nothing runs, and it says so.
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
for broken in -e -b -r; do # sums in another order, one chain a block, ties of bf16
    if python3 "$here/check.py" "$program" 20 1 $broken > /dev/null; then
        echo "contract: the check does not see a reading that is broken ($broken)"
        exit 1
    fi
done
