#!/bin/sh
# Counts the lines and files of src/ that mention a feature outside the feature's folder (mentions.awk): sh
# tests/layout/mentions.sh DIR. The exit status is 1 if a count is above the one in tests/layout/mentions.txt, or below it:
# then the number there must be lowered. MANIFEST and EDITIONS, where features are listed, do not count.
here=$(dirname "$0")
awk -f "$here/mentions.awk" "$here/mentions.txt" $(find "$1" -name cuda -prune -o -name '*.[ch]' -print | sort) | awk '
    FNR == NR { if (!/^#/ && NF) { lines[$1] = $2; files[$1] = $3 } next }
    { printf "%s: %d lines in %d files\n", $1, $2, $3 }
    $2 > lines[$1] || $3 > files[$1] { bad = bad $1 ": " lines[$1] " lines in " files[$1] " files are allowed (mentions.txt)\n" }
    $2 < lines[$1] || $3 < files[$1] { bad = bad $1 ": lower mentions.txt to " $2 " lines in " $3 " files\n" }
    END {
        printf "%s", bad
        exit bad != ""
    }' "$here/mentions.txt" -
