#!/bin/sh
# Draws the layers of src/ from its MANIFEST and DEPS, for docs/architecture.md (make architecture): sh
# tests/layout/layers.sh src. The row of a layer has the number of lines that its files may have, the number of
# functions that its layer header may declare, and the numbers of the layers whose headers it may include; the column
# of a layer shows the layers that use it.
dir=$1
awk '
    /^#/ || NF == 0 { next }
    FILENAME ~ /MANIFEST$/ && $1 ~ /\/$/ { name[++layers] = substr($1, 1, length($1) - 1); number[name[layers]] = layers; next }
    FILENAME ~ /MANIFEST$/ { if (index($1, "/")) lines[layers] += $2; next }
    {
        if (!($1 in number))
            other[++others] = $1
        header[$1] = $2
        for (i = 3; i <= NF; i++)
            may[$1, number[$i]] = 1
    }
    function draw(row, who, own,    k) {
        for (k = 1; k < own || k < layers && own == 0; k++)
            row = row sprintf("%3s", may[who, k] ? k : ".")
        sub(/ *$/, "", row)
        print row
    }
    END {
        print "```text"
        print "    layer      lines  header  uses the headers of"
        for (i = 1; i <= layers; i++)
            draw(sprintf("%3d %-9s%7d%8d ", i, name[i], lines[i], header[name[i]]), name[i], i)
        for (i = 1; i <= others; i++)
            draw(sprintf("%3s %-24s ", "", other[i]), other[i], 0)
        print "```"
    }' "$dir/MANIFEST" "$dir/DEPS"
