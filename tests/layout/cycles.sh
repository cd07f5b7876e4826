#!/bin/sh
# Prints the cycles among the files of each folder of DIR (see cycles.awk): sh tests/layout/cycles.sh DIR. The exit
# status is 1 if a folder has more cycles, or more files in them, than tests/layout/cycles.txt allows; also if it has
# fewer, since the numbers in that list must then be lowered.
found=$(awk -f "$(dirname "$0")/cycles.awk" "$1"/*/*.[ch]) || exit 1
echo "$found"
echo "$found" | awk '
    FNR == NR { if (!/^#/) { cycles[$1] = $2; files[$1] = $3 } next }
    NF { sub(":", "", $1); has[$1]++; size[$1] += $2 }
    END {
        for (f in has)
            if (has[f] > cycles[f] + 0 || size[f] > files[f] + 0)
                bad = bad f ": " has[f] " cycles of " size[f] " files; " cycles[f] + 0 " of " files[f] + 0 " are allowed (cycles.txt)\n"
        for (f in cycles)
            if (has[f] + 0 < cycles[f] || size[f] + 0 < files[f])
                bad = bad f ": only " has[f] + 0 " cycles of " size[f] + 0 " files: lower cycles.txt\n"
        printf "%s", bad
        exit bad != ""
    }' "$(dirname "$0")/cycles.txt" -
