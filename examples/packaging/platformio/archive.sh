# Makes gradckpt-platformio-VERSION.tar.gz, a PlatformIO library with the Arduino sketches (boards.sh).
. examples/packaging/pack.sh
. examples/packaging/arduino/sketches.sh
here=examples/packaging/platformio
library=$1/platformio/gradckpt
mkdir -p "$library/src" && cp gradckpt.h "$library/src" && cp LICENSE "$library" &&
    cp examples/packaging/arduino/README.md "$library" && sketches "$library" &&
    sed "s|@version@|$version|" $here/library.json > "$library/library.json" &&
    pack "$1/gradckpt-platformio-$version.tar.gz" "$library"
