# For archive.sh of arduino/ and platformio/: sketches with the plans that gradckpt.h prints now, and what prints them.

# sketch NAME PROGRAM: plan.h by a program of extras/, and parts.h, what of the header that leaves out
sketch()
{
    at=$to/examples/$1
    prints "$to/extras/$2.c" "$at/plan.h" || return 1
    echo "// What of gradckpt.h no plan of plan.h needs, as their comments list it." > "$at/parts.h"
    parts "$at/plan.h" >> "$at/parts.h"
}

# sketches FOLDER: all of them, into FOLDER/examples; the programs, two of them jobs of examples/mcu, to FOLDER/extras
sketches()
{
    to=$1
    jobs=examples/mcu
    mkdir -p "$to" && cp -R examples/packaging/arduino/examples examples/packaging/arduino/extras "$to" &&
        cp $jobs/job.h $jobs/board.h $jobs/keyword.[ch] $jobs/anomaly.[ch] "$to/extras" &&
        cp $jobs/keyword.h "$to/examples/Keywords" && cp $jobs/anomaly.h "$to/examples/Anomaly" &&
        sketch Blink blink && sketch Keywords keyword && sketch Anomaly anomaly
}
