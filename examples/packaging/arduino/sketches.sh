# Functions of arduino/archive.sh and platformio/archive.sh: sketches with current plans, and the programs that print them.

# sketch NAME PROGRAM: writes plan.h of a sketch, by a program of extras/, and parts.h, which omits the parts of the header
# that this plan does not need
sketch()
{
    at=$to/examples/$1
    prints "$to/extras/$2.c" "$at/plan.h" || return 1
    echo "// The parts of gradckpt.h that no plan of plan.h needs." > "$at/parts.h"
    parts "$at/plan.h" >> "$at/parts.h"
}

# sketches FOLDER: puts all sketches into FOLDER/examples, and the programs, two of them from examples/mcu, into FOLDER/extras
sketches()
{
    to=$1
    jobs=examples/mcu
    mkdir -p "$to" && cp -R examples/packaging/arduino/examples examples/packaging/arduino/extras "$to" &&
        cp examples/weights.h $jobs/board.h $jobs/keyword.[ch] $jobs/anomaly.[ch] "$to/extras" &&
        sed 's,"\.\./weights\.h","weights.h",' $jobs/job.h > "$to/extras/job.h" &&
        cp $jobs/keyword.h "$to/examples/Keywords" && cp $jobs/anomaly.h "$to/examples/Anomaly" &&
        sketch Blink blink && sketch Keywords keyword && sketch Anomaly anomaly
}
