# gradckpt-arduino-VERSION.zip: an Arduino library (boards.sh). Its sketches get the plans that are printed now.
. examples/packaging/pack.sh
here=examples/packaging/arduino
to=$1/arduino/gradckpt
mkdir -p "$to/src" && cp gradckpt.h "$to/src" && cp LICENSE "$here/README.md" "$to" && cp -R "$here/examples" "$here/extras" "$to" &&
    sed "s|@version@|$version|; s|@url@|${URL:-https://example.org/gradckpt}|" "$here/library.properties" > "$to/library.properties" &&
    awk -f $here/keywords.awk gradckpt.h > "$to/keywords.txt" || exit 1
# sketch NAME: its plan by extras/, and what of the header that leaves out
sketch()
{
    at=$to/examples/$1
    prints "$here/extras/$2.c" "$at/plan.h" &&
        { echo "// What of gradckpt.h no plan of plan.h needs, as their comments list it."; parts "$at/plan.h"; } > "$at/parts.h"
}
sketch Blink blink && pack "$1/gradckpt-arduino-$version.zip" "$to"
