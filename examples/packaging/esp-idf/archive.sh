#!/bin/sh
# Makes gradckpt-esp-idf-VERSION.tar.gz, a component of ESP-IDF to unpack into a project's components/.
#
#     sh examples/packaging/esp-idf/archive.sh FOLDER
. examples/packaging/module.sh
in=$of/esp-idf
made=$1/esp-idf/gradckpt
rm -rf "$made"
regression "$made/examples/regression/main" || exit 1
put "$made" LICENSE $in/CMakeLists.txt $in/Kconfig $of/cmake/gradckpt.c &&
    put "$made/include" gradckpt.h &&
    awk -v style=esp-idf -v on=NO_FAST -f $of/kconfig.awk docs/building.md > "$made/Kconfig.parts" &&
    filled $in/idf_component.yml "$made/idf_component.yml" &&
    { [ -z "$URL" ] || echo "url: $URL" >> "$made/idf_component.yml"; } &&
    filled $in/README.md "$made/README.md" &&
    put "$made/examples/regression" $in/regression/CMakeLists.txt &&
    filled $in/regression/README.md "$made/examples/regression/README.md" &&
    filled $in/regression/sdkconfig.defaults "$made/examples/regression/sdkconfig.defaults" &&
    put "$made/examples/regression/main" $in/regression/main/CMakeLists.txt $in/regression/main/main.c &&
    put "$made/examples/regression/host" $of/regression/plan.c &&
    pack "$1/gradckpt-esp-idf-$version.tar.gz" "$made"
