# Makes gradckpt-arduino-VERSION.zip, an Arduino library (boards.sh).
. examples/packaging/pack.sh
. examples/packaging/arduino/sketches.sh
here=examples/packaging/arduino
library=$1/arduino/gradckpt
url=${URL:-https://example.org/gradckpt}
mkdir -p "$library/src" && cp gradckpt.h "$library/src" && cp LICENSE $here/README.md "$library" &&
    sketches "$library" &&
    sed "s|@version@|$version|; s|@url@|$url|" $here/library.properties > "$library/library.properties" &&
    awk -f $here/keywords.awk gradckpt.h > "$library/keywords.txt" && pack "$1/gradckpt-arduino-$version.zip" "$library"
