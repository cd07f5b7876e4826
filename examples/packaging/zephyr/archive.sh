#!/bin/sh
# Makes gradckpt-zephyr-VERSION.tar.gz, a module of Zephyr.
#
#     sh examples/packaging/zephyr/archive.sh FOLDER
. examples/packaging/module.sh
in=$of/zephyr
made=$1/zephyr/gradckpt
sample=$made/samples/regression
rm -rf "$made"
regression "$sample/src" || exit 1
put "$made" LICENSE &&
    filled $in/README.md "$made/README.md" &&
    put "$made/include" gradckpt.h &&
    put "$made/src" $of/cmake/gradckpt.c &&
    put "$made/zephyr" $in/zephyr/module.yml $in/zephyr/CMakeLists.txt $in/zephyr/Kconfig &&
    awk -v style=zephyr -v on='NO_FAST NO_STDIO' -f $of/kconfig.awk docs/building.md > "$made/zephyr/Kconfig.parts" &&
    put "$sample" $in/regression/CMakeLists.txt &&
    filled $in/regression/README.md "$sample/README.md" &&
    filled $in/regression/prj.conf "$sample/prj.conf" &&
    filled $in/regression/sample.yaml "$sample/sample.yaml" &&
    put "$sample/src" $in/regression/src/main.c &&
    put "$sample/host" $of/regression/plan.c &&
    pack "$1/gradckpt-zephyr-$version.tar.gz" "$made"
