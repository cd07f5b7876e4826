#!/bin/sh
# Writes examples/quickstart.c and what it prints into README.md, between its ```c and ```text fences.
build/quickstart > build/quickstart.out || exit 1
awk '
    /^```c$/ { print; while ((getline line < "examples/quickstart.c") > 0) print line; skip = 1; next }
    /^```text$/ { print; while ((getline line < "build/quickstart.out") > 0) print line; skip = 1; next }
    /^```$/ { skip = 0 }
    !skip
' README.md > build/README.md && cp build/README.md README.md
