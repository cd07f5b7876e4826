#!/bin/sh
# Runs tests/layout/layout.sh on src/ and src/cuda/, and checks that each of its rules fails on a copy that breaks it (make
# test runs some of the copies). Checks docs/architecture.md: its drawing is up to date, and every layer, name and file in it
# exists. With python3, checks that each entry of tests/mutants/explained.txt is a mutant of a line of src/.
work=build/layout
. tests/checks.sh

check "src/ is in order" sh tests/layout/layout.sh src
check "the words of names and prose" sh tests/layout/words.sh
check "sentences and pages" sh tests/layout/prose.sh
check "files call only files above them" sh tests/layout/order.sh src
check "features outside their folders" sh tests/layout/mentions.sh src
check "src/cuda/ is in order" sh tests/layout/layout.sh src/cuda

# broken NAME TEXT COMMAND...: checks that layout.sh prints TEXT in a copy of src (or $of) that the command changes
of=src
broken()
{
    [ $of = src/cuda ] || in_turn 5 || return 0
    name=$1
    text=$2
    shift 2
    rm -rf "$work/src"
    cp -r src "$work/src"
    (cd "$work/$of" && "$@")
    check "$name" reports "$text"
}
reports() { sh tests/layout/layout.sh "$work/$of" > "$work/violations" && return 1; grep -q "$1" "$work/violations" || { cat "$work/violations"; return 1; }; }

change() { sed "$2" "$1" > changed && mv changed "$1"; }
higher() { change plan/schedule.c '1s,^,#include "run/run.h"\
,'; }
internal() { change search/bound.c '1s,^,#include "plan/internal.h"\
,'; }
up() { change DEPS 's/^base .*/base 33 num/'; }
long() { yes '' | head -n 100 >> plan/tensors.c; }
longer() { { echo 'void f(void)'; echo '{'; yes '    ;' | head -n 80; echo '}'; } >> ${1:-plan/tensors.c}; }
broad() { change MANIFEST 's/60, [0-9]* of/60, 0 of/'; }
wide() { echo 'GCKPTI_FN int gckpti_more(void);' >> search/search.h; }
callable() { echo 'GCKPT_API int gckpt_more(void);' >> api.h; }
all() { change MANIFEST 's/^# All together: at most [0-9]*/# All together: at most 100/'; }
missing() { rm plan/tensors.c; }
twice() { echo 'plan/tensors.c 3' >> MANIFEST; }
extra() { echo > plan/new.c; }
again() { printf 'static int gckpti_recompute_dropped(void)\n{\n    return 0;\n}\n' >> plan/model.c; }
bare() { change cpu/products.c '/^#if GCKPTI_HAS_FAST/d'; }
tested_within() { echo 'static const int gckpti_early = GCKPTI_WITH_RANKS;' >> plan/tensors.c; }
tested() { printf '#ifdef GCKPT_NO_FILES\n#endif\n' >> plan/tensors.c; }
public() { printf 'static int gckpti_early(void)\n{\n    return gckpt_store_write(0, 0, 0, NULL);\n}\n' >> num/sums.c; }
inside() { change DEPS 's/^gradckpt_cuda.cu .*/gradckpt_cuda.cu 0 base/'; }
cuda_long() { yes '' | head -n 100 >> device/replay.cu; }
cuda_few() { { echo 'void f(void)'; echo '{'; yes '    ;' | head -n 65; echo '}'; } >> fast/linear.cu; }
cuda_extra() { echo > fast/new.cu; }
cuda_large() { change MANIFEST 's,^fast/attention.cu .*,fast/attention.cu 460,'; }
same() { sh src/header.sh "$of" > "$work/generated" && sh tests/layout/layout.sh "$of" "$work/generated"; }
edited() { echo >> "$work/generated"; ! sh tests/layout/layout.sh "$of" "$work/generated" > "$work/violations" && grep -q "is not what $of/ gives" "$work/violations"; }

broken "a higher layer's header" 'plan/schedule.c:1: plan may not use run (DEPS)' higher
broken "another folder's internal.h" '"plan/internal.h" is not a layer header' internal
broken "DEPS against MANIFEST" 'base may not use num, which is not above it' up
broken "a file above its budget" 'plan/tensors.c has .* lines, its budget is' long
broken "a long function" 'plan/tensors.c:.*: a function of 82 lines' longer
broken "functions of many parameters" '[0-9] functions have more than 6 parameters, 0 are allowed' broad
broken "a layer header above its budget" 'the layer header of search declares .* functions, DEPS allows' wide
broken "public functions above their number" 'api.h declares [0-9]* public functions, [0-9]* are allowed' callable
broken "all above their budget" 'the budgets of MANIFEST are .* lines, 100 are allowed' all
broken "a file that is missing" 'lists plan/tensors.c, which is not there' missing
broken "a file listed twice" 'lists plan/tensors.c twice' twice
broken "a file that is not listed" 'plan/new.c is not in' extra
broken "a name used twice" 'static gckpti_recompute_dropped is in' again
broken "a file without its condition" 'cpu/products.c does not begin with' bare
broken "a part tested for within a file" 'plan/tensors.c:.*: tests whether' tested
broken "a part tested for within a function" 'plan/tensors.c:.*: tests whether' tested_within
broken "a public function of a higher layer" 'num calls gckpt_store_write, which is defined in the higher layer files' public
broken "private names that CUDA may not use" 'gradckpt_cuda.cu uses .* which DEPS does not allow' inside
check "the generated header is up to date" same
check "a header that was edited" edited

of=src/cuda
broken "CUDA: a file above its budget" 'device/replay.cu has .* lines, its budget is' cuda_long
broken "CUDA: a file that may be too long" 'fast/attention.cu may have 460 lines' cuda_large
broken "CUDA: all above their budget" 'the budgets of MANIFEST are .* lines, 100 are allowed' all
broken "CUDA: a long function" 'fast/linear.cu:.*: a function of 82 lines' longer fast/linear.cu
broken "CUDA: more functions of some length" '[0-9] functions have more than 60 lines, 0 are allowed' cuda_few
broken "CUDA: functions of many parameters" '[0-9] functions have more than 6 parameters, 0 are allowed' broad
broken "CUDA: a file that is not listed" 'fast/new.cu is not in' cuda_extra
check "the generated CUDA file is up to date" same
check "CUDA's file, edited" edited
of=src

# spoken FILE LINE TEXT: checks that words.sh prints TEXT if LINE is added to FILE
spoken()
{
    in_turn 3 || return 0
    rm -rf "$work/tree" && mkdir -p "$work/tree/docs" "$work/tree/examples" "$work/tree/.ci" && cp -r src "$work/tree" &&
        mkdir -p "$work/tree/tests/layout" && cp tests/layout/* "$work/tree/tests/layout" && cp README.md Makefile "$work/tree"
    echo "$2" >> "$work/tree/$1"
    check "a word in $1" silent "$3"
}
silent() { ! sh tests/layout/words.sh "$work/tree" > "$work/words_found" && grep -q "$1" "$work/words_found"; }
while IFS='|' read -r file line text; do
    case $file in \#*) ;; *) spoken ${file% } "$(echo "${line# }" | tr '!' '|')" "${text# }" ;; esac
done < tests/layout/words_faults.txt
# prosaic NAME TEXT COMMAND...: checks that prose.sh prints TEXT in a copy of the prose that the command changes
prosaic()
{
    name=$1
    text=$2
    shift 2
    rm -rf "$work/tree" && mkdir -p "$work/tree/examples" "$work/tree/.ci" "$work/tree/tests" && cp -r src docs "$work/tree" &&
        cp -r tests/layout "$work/tree/tests" && cp README.md Makefile "$work/tree"
    (cd "$work/tree" && "$@")
    check "$name" reports_prose "$text"
}
reports_prose() { ! sh tests/layout/prose.sh "$work/tree" > "$work/prose" && grep -q "$1" "$work/prose"; }
hit() { for i in 1 2 3 4 5 6 7 8 9; do printf '%s\n' "$2" "$2" "$2" "$2" "$2" "$2" "$2" "$2" "$2"; done >> "$1"; }
prosaic "a headless clause in the README" '^README: 81 hits' hit README.md 'It copies what is needed.'
prosaic "fragments in api.h" '^api.h: 81 hits' hit src/api.h '/* flag; 1: copy, else none */'
prosaic "fragments in src" '^src: [0-9]* hits' hit src/plan/tensors.c '/* flag; 1: copy, else none */'
prosaic "fragments in scripts" '^scripts: [0-9]* hits' hit Makefile '# 1: copy'
prosaic "fragments in tests" '^tests: [0-9]* hits' hit tests/layout/order.sh '# 1: copy'
prosaic "a page that is too long" '^docs/gpu.md: .* lines, 90 are allowed' hit docs/gpu.md 'It is fast.'
prosaic "a page without a line" '^docs/new.md: this page has no line' cp README.md docs/new.md
prosaic "a page that is gone" '^docs/gpu.md: there is no such page' rm docs/gpu.md

knotted() # a call of a function in a later file is reported
{
    rm -rf "$work/src" && cp -r src "$work/src" &&
        echo 'static void gckpti_knot(void) { gckpti_assign_offsets(0, 0); }' >> "$work/src/plan/tensors.c" &&
        ! sh tests/layout/order.sh "$work/src" > "$work/order" &&
        grep -q '^plan/tensors.c uses gckpti_assign_offsets of plan/place.c' "$work/order"
}
check "a call of a later file" knotted

uses=tests/layout/mentions.txt
mentioned() # mentioned FILE LINE TEXT: mentions.sh prints TEXT if the file of a copy of src/ has this line, too
{
    rm -rf "$work/src" && cp -r src "$work/src" && echo "$2" >> "$work/src/$1" &&
        ! sh tests/layout/mentions.sh "$work/src" $uses > "$work/mentions" && grep -q "$3" "$work/mentions"
}
check "a feature mentioned elsewhere" mentioned plan/place.c '/* Ranks. */' '^dist: 0 lines in 0 files are allowed'
check "a feature in code" mentioned search/moves.c 'static int x(gckpt_exec *e) { return e->caches.rows; }' '^cache: 0 lines'
check "a use that nothing declares" mentioned export/c.c '/* Quantised. */' '^quant: 0 lines'
uses=$work/uses.txt
{ cat tests/layout/mentions.txt && echo 'uses images recurrent' && echo 'uses plan dist'; } > $uses
check "a declared use that is none" mentioned num/random.h '' '^images does not use recurrent'
check "a use by the core" mentioned num/random.h '' '^plan is a folder of the core'

drawn() # drawn DIR: make architecture would not change the page
{
    sh tests/layout/layers.sh "$1" > "$work/layers.md" && cp $page "$work/drawn.md" &&
        sh tests/table.sh 'make architecture' "$work/layers.md" "$work/drawn.md" && diff $page "$work/drawn.md"
}
known() # known PAGE: it has a row for each layer, and every name and file in it exists, except the op that it adds
{
    awk '$1 ~ /\/$/ { sub("/", "", $1); print $1 }' src/MANIFEST | while read -r layer; do
        grep -q "^| \[$layer\](../src/$layer/" "$1" || echo "no row for $layer"
    done > "$work/unknown"
    grep -oE '\b(gckpti?_[a-z0-9_]+|GCKPTI?_[A-Z0-9_]+)' "$1" | grep -vE 'softsign|_$' | sort -u > "$work/named"
    comm -23 "$work/named" "$work/words" | sed 's/^/no name /' >> "$work/unknown"
    grep -oE '([a-z_]+/)*[a-z_]+\.(c|h|sh|cu|txt|py)\b' "$1" | sort -u | while read -r file; do
        [ -f "$file" ] || [ -f "src/$file" ] || find src tests examples -name "$file" | grep -q . || echo "no file $file"
    done >> "$work/unknown"
    tr '\n' ' ' < "$1" | grep -oE '`gckpti?_[a-z0-9_]+`, ?[a-z]+/[a-z_]+\.c|`gckpti?_[a-z0-9_]+` \([a-z]+/[a-z_]+\.c' | tr -d '`,(' |
        while read -r name file; do
            grep -qE "^(GCKPT|static).*\\b$name\\)?[([]" "src/$file" || echo "no $name in $file"
        done >> "$work/unknown"
    cat "$work/unknown"
    [ ! -s "$work/unknown" ]
}
# absent DIR: fails, and prints them, if comments of DIR or pages have names of functions that no code of DIR has
absent()
{
    find "$1" -type f -exec cat '{}' + > "$work/source"
    grep -vE '^ *(/\*|\*( |$))' "$work/source" | tr -cs 'A-Za-z0-9_' '[\n*]' | sort -u > "$work/code"
    find README.md docs -name '*.md' ! -name CHANGELOG.md -exec cat "$work/source" '{}' + |
        grep -oE '\bgckpt_[a-z0-9_]+' | sort -u | comm -23 - "$work/code" | grep . && return 1
    return 0
}
left_over() { rm -rf "$work/src" && cp -r src "$work/src" && echo ' * and gckpt_gone. */' >> "$work/src/api.h" && absent "$work/src"; }
stale() { sed "$2" $page > "$work/stale.md"; known "$work/stale.md" | grep -qx "$1"; }
redrawn() { ! drawn "$work/src" && grep -q '^ *[0-9]* files .*  1  \.  3 ' "$work/drawn.md"; }
gone() { change search/stages.c "s/int u = p->prologue; u < p->nodes; u++/int v = 0; v < p->nodes; v++/" && rm tiles/group.c; }
forgotten() { ! python3 "$work/tests/mutants/mutants.py" --stale > "$work/forgotten" && grep -q "$1 $2" "$work/forgotten"; }
less() { change DEPS 's/^files .*/files 23 base store/'; }

page=docs/architecture.md
find src -type f -exec cat '{}' + | tr -cs 'A-Za-z0-9_' '[\n*]' | sort -u > "$work/words"
check "the page has the drawing of MANIFEST and DEPS: make architecture" drawn src
rm -rf "$work/src" && cp -r src "$work/src" && (cd "$work/src" && less)
check "another DEPS is another drawing" redrawn
check "layers, names and files of the page exist" known $page
check "public names in comments and on pages exist" absent src
left_over > "$work/gone"
check "a function that is gone" grep -qx gckpt_gone "$work/gone"
check "a layer without a row" stale 'no row for search' '/^| \[search\]/d'
check "a name that does not exist" stale 'no name gckpti_finished_step' 's/gckpti_finish_step/gckpti_finished_step/'
check "a name in another file" stale 'no gckpti_assign_offsets in plan/lowered.c' 's,plan/place.c,plan/lowered.c,'
check "a file that does not exist" stale 'no file plan/places.c' 's,plan/place.c,plan/places.c,'
if python3 -c 'import fcntl' 2> "$work/python"; then
    check "each entry of tests/mutants/explained.txt is a mutant of src/" python3 tests/mutants/mutants.py --stale
    ! with_tries || { mkdir -p "$work/tests" && cp -r tests/mutants "$work/tests" && (cd "$work/src" && gone); }
    ! with_tries || check "an entry whose line is gone" forgotten search/stages.c gckpti_find_borders
    ! with_tries || check "an entry whose file is gone" forgotten tiles/group.c gckpti_find_row_ops
else
    echo "skipped: mutants/explained.txt, which needs python3"
fi

# every op has a case in the tests of CUDA's kernels, where those of tests/unary.h come from the list; cuda_methods.c runs
# cache, in test_generation
on_cuda()
{
    sed -n '/^#define GCKPTI_OPS/,/[^\\]$/p' "$1" | grep -o ' X([a-z_0-9]*,' | tr -d ' X(,' > "$work/ops"
    [ "$(wc -l < "$work/ops")" -gt 50 ] || return 1
    while read -r op; do
        grep -q "gckpti_op_$op\>" tests/cuda/cuda_*.c || grep -q "X($op," tests/unary.h || [ $op = cache ] || echo "$op: no case"
    done < "$work/ops" > "$work/no_case"
    cat "$work/no_case"
    [ ! -s "$work/no_case" ]
}
check "the tests of CUDA's kernels have every op" on_cuda src/ops/ops.h
sed 's/X(huber, /X(softsign, CORE) &/' src/ops/ops.h > "$work/more.h"
unlisted() { ! on_cuda "$1" > "$work/said" && [ "$(cat "$work/said")" = "softsign: no case" ]; }
check "an op without a case" unlisted "$work/more.h"
report layout
