# For archive.sh of arduino/ and platformio/: sketches with the plans that gradckpt.h prints now, beside what prints them.

# sketch NAME PROGRAM: plan.h by a program of extras/, and parts.h, what of the header that leaves out
sketch()
{
    at=$to/examples/$1
    prints "$to/extras/$2.c" "$at/plan.h" &&
        { echo "// What of gradckpt.h no plan of plan.h needs, as their comments list it."; parts "$at/plan.h"; } > "$at/parts.h"
}

# sketches FOLDER: all of them, into FOLDER/examples; the programs go to FOLDER/extras
sketches()
{
    to=$1
    mkdir -p "$to" && cp -R examples/packaging/arduino/examples examples/packaging/arduino/extras "$to" || return 1
    sketch Blink blink
}
