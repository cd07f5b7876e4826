#!/bin/sh
# Concatenates the files of a folder in the order of its MANIFEST:
#     sh src/header.sh src > gradckpt.h
#     sh src/header.sh src/cuda > gradckpt_cuda.cu
#     sh src/header.sh src EDITION [PARTS] > gradckpt.h    an edition of src/EDITIONS, with and without parts ("dist -losses")
# A subfolder that has a MANIFEST is not included.
#
# An edition has no line of the parts that it lacks: their switches (GCKPT_NO_RANKS) count as defined in every #if. A block
# at the top defines these switches, and each public function of the parts as a macro whose use does not compile. It has no
# private function, type or macro that nothing uses.
#
# A line of MANIFEST is a folder ("plan/") with its description for the table of contents, or a file with its budget of
# lines and, in the third column, the #if that must enclose the whole file ("-" or nothing if there is no #if). A file
# marked "separate" only serves to compile each file by itself and is left out, as are includes of other files of the
# folder (#include "..." except "gradckpt.h"), #pragma once, code under #ifdef GCKPTI_SEPARATE_TU, prototypes of private
# functions that are defined before their uses (their comments move to the definitions), each #endif that an #if of the
# same condition follows, and each GCKPTI_COLD_END that a GCKPTI_COLD_BEGIN follows. A comment with its name (>>) begins
# each file. src/api.h is completed by the api.h files of features that it includes. Lines between @PARTS@ and @end@ are
# for editions that have these parts. Fails, with a message, for a file that is missing, listed twice,
# not listed or not enclosed by its #if; and for a function or table (static, GCKPTI_FN, GCKPTI_DATA) that two files define.
dir=$1 edition=$2 parts=$3
[ -f "$dir/MANIFEST" ] || { echo "src/header.sh: $dir has no MANIFEST: sh src/header.sh src > gradckpt.h" >&2; exit 1; }
{
    find "$dir"/* -type d -exec test -f '{}/MANIFEST' ';' -prune -o \
        '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' ')' -print | sed "s,^$dir/,/ ," | sort
    [ -z "$edition" ] || sed 's/^/= /' "$dir/EDITIONS"
    sed 's/^/+ /' "$dir/MANIFEST"
} | awk -v dir="$dir" -v edition="$edition" -v wanted="$parts" -v commit="$(git -C "$dir" rev-parse --short=12 HEAD 2> /dev/null)" -f "$(dirname "$0")/header.awk"
