#!/bin/sh
# src/ holds to what tests/layout/layout.sh asks for, and each rule is seen to fail on a copy that breaks it.
# So is src/cuda/, which gradckpt_cuda.cu is put together from. docs/architecture.md has the drawing that src/ gives, its floors, and no names or files that are not there.
# Survivors of mutants that are explained (python3) are of lines that src/ has. make test runs some of the copies.
work=build/house
. tests/checks.sh

check "src/ is in order" sh tests/layout/layout.sh src
check "src/cuda/ is in order" sh tests/layout/layout.sh src/cuda

# broken NAME WORDS COMMAND...: in a copy that the command changes, layout.sh says these words; of: src or src/cuda
of=src
broken()
{
    in_turn 5 || return 0
    name=$1
    words=$2
    shift 2
    rm -rf "$work/src"
    cp -r src "$work/src"
    (cd "$work/$of" && "$@")
    check "$name" said "$words"
}
said() { sh tests/layout/layout.sh "$work/$of" > "$work/says" && return 1; grep -q "$1" "$work/says" || { cat "$work/says"; return 1; }; }

change() { sed "$2" "$1" > changed && mv changed "$1"; }
climb() { change plan/schedule.c '1s,^,#include "run/run.h"\
,'; }
own() { change search/bound.c '1s,^,#include "plan/internal.h"\
,'; }
up() { change DEPS 's/^base .*/base 33 num/'; }
long() { yes '' | head -n 100 >> plan/types.c; }
longer() { { echo 'void f(void)'; echo '{'; yes '    ;' | head -n 80; echo '}'; } >> ${1:-plan/types.c}; }
broad() { change MANIFEST 's/60, [0-9]* of/60, 0 of/'; }
wide() { echo 'GCKPTI_FN int gckpti_more(void);' >> search/search.h; }
all() { change MANIFEST 's/^# All together: at most [0-9]*/# All together: at most 100/'; }
missing() { rm plan/types.c; }
twice() { echo 'plan/types.c 3' >> MANIFEST; }
extra() { echo > plan/new.c; }
again() { printf 'static int gckpti_recompute_dropped(void)\n{\n    return 0;\n}\n' >> plan/model.c; }
bare() { change cpu/rows.c '/^#if GCKPTI_HAS_FAST/d'; }
asked_within() { echo 'static const int gckpti_early = GCKPTI_WITH_RANKS;' >> plan/types.c; }
asked() { printf '#ifdef GCKPT_NO_FILES\n#endif\n' >> plan/types.c; }
public() { printf 'static int gckpti_early(void)\n{\n    return gckpt_store_write(0, 0, 0);\n}\n' >> num/sums.c; }
inside() { change DEPS 's/^gradckpt_cuda.cu .*/gradckpt_cuda.cu 0 base/'; }
cuda_long() { yes '' | head -n 100 >> device/replay.cu; }
cuda_few() { change MANIFEST 's/ and [0-9]* functions/ and 0 functions/'; }
cuda_extra() { echo > fast/new.cu; }
cuda_large() { change MANIFEST 's,^fast/attention.cu .*,fast/attention.cu 460,'; }
same() { sh src/header.sh "$of" > "$work/made" && sh tests/layout/layout.sh "$of" "$work/made"; }
edited() { echo >> "$work/made"; ! sh tests/layout/layout.sh "$of" "$work/made" > "$work/says" && grep -q "is not what $of/ gives" "$work/says"; }

broken "a climb" 'plan/schedule.c:1: plan may not use run (DEPS)' climb
broken "another folder's own header" '"plan/internal.h" is not a door' own
broken "DEPS against MANIFEST" 'base may not use num, which does not stand above it' up
broken "a file above its budget" 'plan/types.c has .* lines, its budget is' long
broken "a long function" 'plan/types.c:.*: a function of 82 lines' longer
broken "functions of many parameters" '[0-9] functions have more than 6 parameters, 0 are possible' broad
broken "a door above its budget" 'the door of search declares .* functions, DEPS lets it' wide
broken "all above their budget" 'the budgets of MANIFEST are .* lines, 100 are possible' all
broken "a file that is missing" 'lists plan/types.c, which is not there' missing
broken "a file listed twice" 'lists plan/types.c twice' twice
broken "a file that is not listed" 'plan/new.c is not in' extra
broken "a name used twice" 'static gckpti_recompute_dropped is in' again
broken "a file without its condition" 'cpu/rows.c does not begin with' bare
broken "a part asked for within a file" 'plan/types.c:.*: asks for a part' asked
broken "a part asked for within a function" 'plan/types.c:.*: asks for a part' asked_within
broken "a public function of a floor above" 'num calls gckpt_store_write, which stands on floor files' public
broken "insides that CUDA has no door to" 'gradckpt_cuda.cu uses .* which DEPS does not let it' inside
check "what is put together is the same" same
check "a header that was edited" edited

of=src/cuda
broken "CUDA: a file above its budget" 'device/replay.cu has .* lines, its budget is' cuda_long
broken "CUDA: a file that may be too long" 'fast/attention.cu may have 460 lines' cuda_large
broken "CUDA: all above their budget" 'the budgets of MANIFEST are .* lines, 100 are possible' all
broken "CUDA: a long function" 'fast/linear.cu:.*: a function of 82 lines' longer fast/linear.cu
broken "CUDA: more functions of some length" '[0-9] functions have more than 60 lines, 0 are possible' cuda_few
broken "CUDA: functions of many parameters" '[0-9] functions have more than 6 parameters, 0 are possible' broad
broken "CUDA: a file that is not listed" 'fast/new.cu is not in' cuda_extra
check "what CUDA's file is put together from is the same" same
check "CUDA's file, edited" edited
of=src

drawn() # drawn DIR: what make architecture would make of the page is the page
{
    sh tests/layout/layers.sh "$1" > "$work/floors.md" && cp $page "$work/drawn.md" &&
        sh tests/table.sh 'make architecture' "$work/floors.md" "$work/drawn.md" && diff $page "$work/drawn.md"
}
known() # known PAGE: it has a row for each floor, and no name or file that is not there, but for the op that it adds
{
    awk '$1 ~ /\/$/ { sub("/", "", $1); print $1 }' src/MANIFEST | while read -r floor; do
        grep -q "^| \[$floor\](../src/$floor/" "$1" || echo "no row for $floor"
    done > "$work/unknown"
    grep -oE '\b(gckpti?_[a-z0-9_]+|GCKPTI?_[A-Z0-9_]+)' "$1" | grep -vE 'softsign|_$' | sort -u > "$work/named"
    comm -23 "$work/named" "$work/words" | sed 's/^/no name /' >> "$work/unknown"
    grep -oE '([a-z]+/)*[a-z_]+\.(c|h|sh|cu|txt|py)\b' "$1" | sort -u | while read -r file; do
        [ -f "$file" ] || [ -f "src/$file" ] || find src tests -name "$file" | grep -q . || echo "no file $file"
    done >> "$work/unknown"
    tr '\n' ' ' < "$1" | grep -oE '`gckpti?_[a-z0-9_]+`, ?[a-z]+/[a-z_]+\.c|`gckpti?_[a-z0-9_]+` \([a-z]+/[a-z_]+\.c' | tr -d '`,(' |
        while read -r name file; do
            grep -qE "^(GCKPT|static).*\\b$name\\)?\\(" "src/$file" || echo "no $name in $file"
        done >> "$work/unknown"
    cat "$work/unknown"
    [ ! -s "$work/unknown" ]
}
stale() { sed "$2" $page > "$work/stale.md"; known "$work/stale.md" | grep -qx "$1"; }
redrawn() { ! drawn "$work/src" && grep -q '^ *[0-9]* files .*  1  \.  3 ' "$work/drawn.md"; }
gone() { change search/bound.c 's/which < GCKPTI_FULL - 1 ?/which + 1 < GCKPTI_FULL ?/' && rm plan/fused_op.c; }
forgotten() { ! python3 "$work/tests/mutants/mutants.py" --stale > "$work/forgotten" && grep -q "$1 $2" "$work/forgotten"; }
less() { change DEPS 's/^files .*/files 23 base store/'; }

page=docs/architecture.md
find src -type f -exec cat '{}' + | tr -cs 'A-Za-z0-9_' '[\n*]' | sort -u > "$work/words"
check "the page has the drawing of MANIFEST and DEPS: make architecture" drawn src
rm -rf "$work/src" && cp -r src "$work/src" && (cd "$work/src" && less)
check "another DEPS is another drawing" redrawn
check "floors, names and files of the page are there" known $page
check "a floor without a row" stale 'no row for search' '/^| \[search\]/d'
check "a name that is not there" stale 'no name gckpti_finished_step' 's/gckpti_finish_step/gckpti_finished_step/'
check "a name in another file" stale 'no gckpti_assign_offsets in plan/lowered.c' 's,plan/place.c,plan/lowered.c,'
check "a file that is not there" stale 'no file plan/places.c' 's,plan/place.c,plan/places.c,'
if python3 -c 'import fcntl' 2> "$work/python"; then
    check "each entry of tests/mutants/explained.txt is of a mutant of src/" python3 tests/mutants/mutants.py --stale
    ! with_tries || { mkdir -p "$work/tests" && cp -r tests/mutants "$work/tests" && (cd "$work/src" && gone); }
    ! with_tries || check "an entry whose line is gone" forgotten search/bound.c gckpti_cuts
    ! with_tries || check "an entry whose file is gone" forgotten plan/fused_op.c gckpti_find_row_ops
else
    echo "skipped: no python3, which knows what is explained of mutants"
fi
report house
