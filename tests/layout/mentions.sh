#!/bin/sh
# Counts the lines and files of src/ that mention a feature outside the feature's folder (mentions.awk): sh
# tests/layout/mentions.sh DIR [MENTIONS.TXT]. The exit status is 1 if a count is above the one in tests/layout/mentions.txt, or below it:
# then the number there must be lowered; also if a declared use, or a table of mentions.awk, does not exist. MANIFEST and
# EDITIONS, where features are listed, do not count.
here=$(cd "$(dirname "$0")" && pwd)
uses=${2:-$here/mentions.txt}
(cd "$1" && awk -f "$here/mentions.awk" - $(find . -name cuda -prune -o -name '*.[ch]' -print | sort)) < "$uses" | awk '
    FNR == NR { if (!/^#/ && NF) { lines[$1] = $2; files[$1] = $3 } next }
    $1 == "uses" { if (!$4) bad = bad $2 " does not use " $3 ": remove the line of mentions.txt\n"; next }
    $1 == "core" { bad = bad $2 " is a folder of the core, which may not mention a feature (mentions.txt)\n"; next }
    $1 == "table" { bad = bad "there is no table " $2 " (mentions.awk)\n"; next }
    { printf "%s: %d lines in %d files\n", $1, $2, $3 }
    $2 > lines[$1] || $3 > files[$1] { bad = bad $1 ": " lines[$1] " lines in " files[$1] " files are allowed (mentions.txt)\n" }
    $2 < lines[$1] || $3 < files[$1] { bad = bad $1 ": lower mentions.txt to " $2 " lines in " $3 " files\n" }
    END {
        printf "%s", bad
        exit bad != ""
    }' "$uses" -
