#!/bin/sh
# Which lines and branches of gradckpt.h the tests run: clang's source-based coverage on x86-64, merged over
# `make test` and those checks of `make check` that run other lines. Prints a table by floor, then every
# line and every side of a branch that nothing ran. Takes some 10 minutes on two cores.
# Checks for symbols fail in such a build ("no heap"); other failures are real.
#
#     sh tests/coverage.sh               all of it
#     sh tests/coverage.sh NAME...       only these programs (test_core), added to what ran before
#     sh tests/coverage.sh report        no programs: the figures of what ran before
#
# A branch is a condition that comes out true, or false; one that the compiler folds is not counted, nor is
# what this build leaves out (#if). A function compiled for several instruction sets counts as run when one is.
B=build/coverage
CLANG=${CLANG:-clang}
JOBS=${JOBS:-2}
version=$($CLANG -dumpversion | sed 's/\..*//')
tool() # tool NAME: the one that belongs to this clang
{
    for t in "$(dirname "$(command -v "$CLANG")")/$1" "$1-$version" "/usr/lib/llvm-$version/bin/$1" "$1"; do
        command -v "$t" && return
    done
    echo "coverage.sh: no $1" >&2
    exit 1
}
cov=$(tool llvm-cov) && profdata=$(tool llvm-profdata) || exit 1

# A copy of the tree, so that build/ keeps its own programs; and compilers that instrument.
root=$(pwd)
[ $# -gt 0 ] && [ -d $B/tree ] || rm -rf $B
mkdir -p $B/tree $B/bin $B/raw
for c in "$CLANG" "$CLANG++"; do
    path=$(command -v "$c") || continue
    printf '#!/bin/sh\nexec %s -fprofile-instr-generate -fcoverage-mapping "$@"\n' "$path" > "$B/bin/$(basename "$c")"
    chmod +x "$B/bin/$(basename "$c")"
done
LLVM_PROFILE_FILE=$root/$B/raw/%p-%m.profraw
PATH=$root/$B/bin:$PATH
export LLVM_PROFILE_FILE PATH
run() # run what a line says, in the copy
{
    echo "== $*"
    (cd $B/tree && "$@")
}
merge() # raw profiles are large: one file at a time
{
    ls $B/raw | grep -q . || return 0
    find $B/raw -name '*.profraw' > $B/list
    [ ! -f $B/all.profdata ] || echo $B/all.profdata >> $B/list
    "$profdata" merge -sparse -f $B/list -o $B/new.profdata && mv $B/new.profdata $B/all.profdata &&
        rm -f $B/raw/*.profraw
}

if [ "$1" != report ]; then
    cp -R Makefile README.md LICENSE gradckpt.h docs examples tests $B/tree
    if [ $# -gt 0 ]; then
        for name; do
            run make -s "build/$name" CC="$CLANG" CFLAGS='-O1 -std=gnu99' LOOKS= && run "build/$name"
        done
    else
        TRIES=all run make test CC="$CLANG" CFLAGS='-O1 -std=gnu99' LOOKS= JOBS="$JOBS"
        merge
        # what other builds run: soft fma, gpt with threads, plain C kernels (which need an fma at compile
        # time), no OpenMP, refusals with fast kernels, no heap
        CC=$CLANG run sh tests/check_all.sh hash-clang,-O2,-DGCKPT_FORCE_SOFT_FMA threads-gpt
        run make -s -B build/test_kernels CC="$CLANG" CFLAGS='-O1 -mfma -std=gnu99' && run build/test_kernels 10
        run "$CLANG" -O1 -std=gnu99 -I. tests/whole/test_refusals.c -lm -o build/refusals_fast &&
            run build/refusals_fast
        run "$CLANG" -O1 -std=gnu99 -I. tests/compile/no_heap.c -o build/no_heap && run build/no_heap
    fi
    merge
fi

# Every instrumented program; the first goes without -object.
objects=
for f in $(find $B/tree/build -type f -perm -100 ! -name '*.sh'); do
    "$cov" export -summary-only -instr-profile $B/all.profdata "$f" > /dev/null 2>&1 && objects="$objects -object $f"
done
objects=${objects# -object }
# shellcheck disable=SC2086
"$cov" show -show-branches=count -show-instantiations=false -use-color=false -instr-profile $B/all.profdata $objects \
    $B/tree/gradckpt.h > $B/show.txt 2> $B/show.err

awk -v total=0 '
function known(count) { return count != "" }
FNR == NR { # the header: floors, and which function a line is in
    if (match($0, /^( \*|\/\*) >>[a-z]+/)) {
        name = substr($0, RSTART, RLENGTH)
        sub(/.*>>/, "", name)
        if (!(name in begun))
            order[++floors] = name
        begun[name] = 1
    }
    if ($0 ~ /^[a-zA-Z].*\(/ && $0 !~ /;$/) {
        at = $0
        sub(/\(.*/, "", at)
        sub(/.*[ *]/, "", at)
    }
    floor[FNR] = order[floors]
    within[FNR] = at
    code[FNR] = $0
    next
}
match($0, /^ *[0-9]+\| *[0-9.]*[kMGTPEZ]?\|/) {
    split($0, part, "|")
    line = part[1] + 0
    gsub(/ /, "", part[2])
    if (known(part[2]) && !(line in seen)) {
        seen[line] = 1
        hit[line] = part[2] != "0"
    }
}
/Branch \([0-9]+:[0-9]+\): \[True: / {
    match($0, /\([0-9]+:[0-9]+\)/)
    place = substr($0, RSTART + 1, RLENGTH - 2)
    split($0, part, /True: |, False: |\]/)
    if (!(place in sides)) {
        sides[place] = 0
        places[++branches] = place
    }
    yes[place] = yes[place] || part[2] != "0"
    no[place] = no[place] || part[3] != "0"
}
END {
    for (line in seen) {
        s = floor[line]
        lines[s]++
        lines_hit[s] += hit[line]
    }
    for (i = 1; i <= branches; i++) {
        split(places[i], part, ":")
        s = floor[part[1]]
        all[s] += 2
        all_hit[s] += yes[places[i]] + no[places[i]]
        if (!yes[places[i]] || !no[places[i]]) {
            gap[part[1]] = gap[part[1]] " " part[2] \
                (!yes[places[i]] && !no[places[i]] ? "" : yes[places[i]] ? " never false" : " never true") ";"
        }
    }
    printf "%-14s%8s%10s%10s%12s\n", "floor", "lines", "run %", "branches", "taken %"
    for (i = 1; i <= floors; i++) {
        s = order[i]
        if (!lines[s])
            continue
        printf "%-14s%8d%10.2f%10d%12.2f\n", s, lines[s], 100 * lines_hit[s] / lines[s], all[s],
            all[s] ? 100 * all_hit[s] / all[s] : 100
        t[1] += lines[s]; t[2] += lines_hit[s]; t[3] += all[s]; t[4] += all_hit[s]
    }
    printf "%-14s%8d%10.2f%10d%12.2f\n\n", "all", t[1], 100 * t[2] / t[1], t[3], 100 * t[4] / t[3]
    print "Not run, and branches that went one way (columns):"
    for (line = 1; line <= FNR * 100 && line in code; line++)
        if ((line in seen && !hit[line]) || line in gap)
            printf "%s %d %s: %s%s\n", (line in seen && !hit[line]) ? "line  " : "branch", line, within[line], code[line],
                line in gap ? "   <-" gap[line] : ""
}' gradckpt.h $B/show.txt > $B/coverage.txt
sed '/^$/q' $B/coverage.txt
echo "every line and side that nothing ran: $B/coverage.txt"
