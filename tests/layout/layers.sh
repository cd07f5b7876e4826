#!/bin/sh
# Draws the floors of src/ from its MANIFEST and DEPS, for docs/architecture.md (make architecture): sh tests/layout/layers.sh src
# A row is a floor: the lines that its files may have, the functions that its door may declare, and by number the floors
# whose doors its files may include; a column shows who uses that floor.
dir=$1
awk '
    /^#/ || NF == 0 { next }
    FILENAME ~ /MANIFEST$/ && $1 ~ /\/$/ { name[++floors] = substr($1, 1, length($1) - 1); number[name[floors]] = floors; next }
    FILENAME ~ /MANIFEST$/ { if (index($1, "/")) lines[floors] += $2; next }
    {
        if (!($1 in number))
            beside[++others] = $1
        door[$1] = $2
        for (i = 3; i <= NF; i++)
            may[$1, number[$i]] = 1
    }
    function draw(row, who, own,    k) {
        for (k = 1; k < own || k < floors && own == 0; k++)
            row = row sprintf("%3s", may[who, k] ? k : ".")
        sub(/ *$/, "", row)
        print row
    }
    END {
        print "```text"
        print "    floor      lines  door   uses the doors of"
        for (i = 1; i <= floors; i++)
            draw(sprintf("%3d %-9s%7d%6d ", i, name[i], lines[i], door[name[i]]), name[i], i)
        for (i = 1; i <= others; i++)
            draw(sprintf("%3s %-22s ", "", beside[i]), beside[i], 0)
        print "```"
    }' "$dir/MANIFEST" "$dir/DEPS"
