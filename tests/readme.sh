#!/bin/sh
# Writes examples/quickstart.c, digits.c and what they print into README.md: its ```c and ```text fences, in
# this order.
for program in quickstart digits; do
    build/$program > build/$program.out || exit 1
done
awk '
    function put(file) { print; while ((getline line < file) > 0) print line; skip = 1 }
    BEGIN { split("quickstart digits", name, " ") }
    /^```c$/ { put("examples/" name[++programs] ".c"); next }
    /^```text$/ { put("build/" name[++outputs] ".out"); next }
    /^```$/ { skip = 0 }
    !skip
' README.md > build/README.md && cp build/README.md README.md
