#!/bin/sh
# Writes examples/quickstart.c and its output into README.md: into its first ```c and its first ```text fence.
build/quickstart > build/quickstart.out || exit 1
awk '
    function put(file) { print; while ((getline line < file) > 0) print line; skip = 1 }
    /^```c$/ && !programs++ { put("examples/quickstart.c"); next }
    /^```text$/ && !outputs++ { put("build/quickstart.out"); next }
    /^```$/ { skip = 0 }
    !skip
' README.md > build/README.md && cp build/README.md README.md
