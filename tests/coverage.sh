#!/bin/sh
# Measures which lines and branches of src/ the tests run: clang's source-based coverage on x86-64, merged over `make
# test` with all its tries and over the tests of other builds. Every program is linked with the files of src/, each
# compiled by itself. Prints a table by layer, then each line and each side of a branch that no test ran; if
# tests/uncovered.txt gives a reason for a line, the line is marked with the reason. Fails if the share of lines or
# branches that ran or have a reason is below LINES or BRANCHES %, which may only be raised, or if a line with a
# reason ran. The aim is 100 and 98. The shares without reasons are printed as well.
# Kernels of AVX-512 and AMX are emulated by tests/cpu/avx512.h on every processor with AVX2. Reasons that begin
# with "this processor" apply to some processors only; on another processor the line may run.
# Takes some 35 minutes on two cores; with ITERATIONS= in the environment less, since each test then makes as few tries
# as in make test. Checks for symbols fail in such a build ("no heap"); other failures are real.
#
#     sh tests/coverage.sh               all of it
#     sh tests/coverage.sh NAME...       runs only these programs (such as test_core), and adds their coverage
#     sh tests/coverage.sh avx512        adds only the kernels of AVX-512 and AMX; cuda: only a backend like CUDA's;
#                                        builds: only the tests of other builds
#     sh tests/coverage.sh report        runs nothing, and prints the figures of the runs before
#
# A branch is a condition that is true, or one that is false; a condition that the compiler folds is not counted. Code
# that this build excludes (#if) and assertions are not counted either. A function compiled for several instruction
# sets counts as run if one version is run. With clang 18 or newer (CLANG=clang-19), MC/DC is measured as well:
# whether each condition of a decision decided alone in some test.
LINES=99.8
BRANCHES=98.2
B=build/coverage
CLANG=${CLANG:-clang}
JOBS=${JOBS:-2}
version=$($CLANG -dumpversion | sed 's/\..*//')
tool() # tool NAME: the one that belongs to this clang
{
    for t in "/usr/lib/llvm-$version/bin/$1" "$1-$version" "$(dirname "$(command -v "$CLANG")")/$1" "$1"; do
        command -v "$t" && return
    done
    echo "coverage.sh: no $1" >&2
    exit 1
}
cov=$(tool llvm-cov) && profdata=$(tool llvm-profdata) || exit 1
mcdc=
[ "$version" -lt 18 ] || mcdc=-fcoverage-mcdc

# Works in a copy of the tree, so that build/ keeps its programs, with a compiler that counts executions.
root=$(pwd)
[ $# -gt 0 ] && [ -d $B/tree ] || rm -rf $B
mkdir -p $B/tree $B/bin $B/raw
# Counters are atomic, so that threads count exactly, except in files in which atomic counters would take long.
cat > $B/bin/counting << end
#!/bin/sh
case " \$* " in
    *src/num/* | *src/ops/* | *src/cpu/* | *src/kernels/* | *tests/cpu/*) ;;
    *) set -- -fprofile-update=atomic "\$@" ;;
esac
exec $(command -v "$CLANG") -fprofile-instr-generate -fcoverage-mapping $mcdc "\$@"
end
chmod +x $B/bin/counting
LLVM_PROFILE_FILE=$root/$B/raw/%p-%m.profraw
PATH=$root/$B/bin:$PATH
export LLVM_PROFILE_FILE PATH
run() # run COMMAND...: runs the command in the copy of the tree
{
    echo "== $*"
    (cd $B/tree && "$@")
}
merge() # merges the raw profiles into one file and deletes them, since they are large
{
    find $B/raw -name '*.profraw' > $B/list
    [ -s $B/list ] || return 0
    [ ! -f $B/all.profdata ] || echo $B/all.profdata >> $B/list
    "$profdata" merge -sparse -failure-mode=all -f $B/list -o $B/new.profdata && mv $B/new.profdata $B/all.profdata &&
        rm -f $B/raw/*.profraw
}
make() # make TARGET...: runs make so that tests of public names are linked with the files of src/, too
{
    run env MAKEFLAGS= make FROM=src CC=counting WARNINGS=-w JOBS="$JOBS" "$@"
}
# with NAME OPTIONS 'TEST' ARGUMENTS...: builds the files of src/ with OPTIONS, and builds and runs a test with them,
# which may have further options
with()
{
    at=build/$1
    options="-O1 -std=gnu99 $2"
    test=$3
    shift 3
    make -s -j"$JOBS" AT=$at CFLAGS="$options" OPENMP= $at/libsrc.a &&
        run counting $options -w -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED $test $at/libsrc.a -lm -lpthread -o $at/test &&
        run $at/test "$@"
}
# runs tests with the kernels of AVX-512 compiled for AVX2 (as sh tests/check_all.sh avx512 does)
emulated()
{
    avx512="-O1 -std=gnu99 -w -include tests/cpu/avx512.h -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED"
    run counting $avx512 -DGCKPTI_ISA=3 -c src/kernels/all.c -o build/avx512.o &&
        run counting $avx512 -c src/cpu/kernels.c -o build/avx512-choice.o || return
    for test in "cpu/test_kernels.c 30" "bf16/test_bf16.c all" "bf16/test_amx.c quick" "integration/test_hash.c all" \
        "quant/test_pack.c " "ops/test_special.c " "ops/test_user_ops.c " "num/test_numerics.c "; do
        objects="build/avx512.o build/avx512-choice.o"
        case $test in *amx*) objects= ;; esac # its own
        program=build/avx512-$(basename "${test% *}" .c)
        # shellcheck disable=SC2086
        run counting $avx512 "tests/${test% *}" $objects build/libsrc.a -lm -lpthread -o "$program" &&
            run "$program" ${test#* }
    done
}
# runs the tests of CUDA on a substitute for a GPU, a backend that captures micro-batches and has fast kernels; only
# lines of src/ are counted, not lines of the backend
shimmed()
{
    command -v g++ > /dev/null || return 0
    shim="-ffp-contract=off -mfma -DGCKPT_CUDA_SHIM -DGCKPT_CUDA_SLOT_BYTES=4096 -I."
    cxx="g++ -std=c++17 -O1 $shim -include tests/cuda/cuda_shim.h"
    run $cxx -x c++ -c gradckpt_cuda.cu -o build/cuda.o &&
        run $cxx -Itests/cuda -c tests/cuda/nccl_transport.cpp -o build/nccl_engine.o || return
    for name in test_cuda cuda_fast nccl_ranks; do
        run counting -O1 -std=gnu99 -w $shim -Isrc -Itests -DGRADCKPT_IMPLEMENTED tests/cuda/$name.c build/cuda.o \
            build/nccl_engine.o build/libsrc.a -lstdc++ -lm -lpthread -o build/$name &&
            run env CUDA_SHIM_SCHEDULE=1 CUDA_SHIM_LAZY=1 build/$name 1 1
    done
}

# runs tests in other builds: soft fma, plain C kernels (which need an fma at compile time), no heap
builds()
{
    with soft -DGCKPT_FORCE_SOFT_FMA tests/integration/test_hash.c
    with plain -mfma tests/cpu/test_kernels.c 10
    with plain -mfma tests/bf16/test_bf16.c quick
    with heapless -DGCKPT_NO_HEAP tests/compile/no_heap.c
    left=$(printf -- '-DGCKPT_NO_%s ' FAST SEARCH RANKS FETCH CACHES DEBUG TILES QUANT BF16)
    with fewer "$left" '-include plan/plan.h tests/compile/features.c'
}

if [ "$1" != report ]; then
    git ls-files | xargs cp --parents -u -t $B/tree
    if [ "$1" = avx512 ]; then
        emulated
    elif [ "$1" = builds ]; then
        builds
    elif [ "$1" = cuda ]; then
        shimmed
    elif [ $# -gt 0 ]; then
        for name; do
            make -s CFLAGS='-O1 -std=gnu99' "build/$name" && run "build/$name"
        done
    else
        ITERATIONS=${ITERATIONS-all} make CFLAGS='-O1 -std=gnu99' test
        merge
        builds
        emulated
        shimmed
    fi
fi
merge

# The list of all instrumented programs, for llvm-cov: the first one without -object.
objects=
for f in $(find $B/tree/build -type f -perm -100 ! -name '*.sh' ! -name '*.o'); do
    "$cov" export -summary-only -instr-profile $B/all.profdata "$f" > /dev/null 2>&1 && objects="$objects -object $f"
done
objects=${objects# -object }
# shellcheck disable=SC2086
"$cov" show -show-branches=count -show-instantiations=false -use-color=false -instr-profile $B/all.profdata $objects \
    $(find $B/tree/src -name '*.[ch]') > $B/show.txt 2> $B/show.err

awk -v lines_limit=$LINES -v limit=$BRANCHES -v mcdc="$mcdc" '
function known(count) { return count != "" }
function ran(count) { return count != "0" && count !~ /E$/ } # 18.4E: -1, of threads at once
function of_line(file, at) {            # the key of the reason that a line has
    if ((file SUBSEP code[at]) in listed)
        return file SUBSEP code[at]
    if ((file " " function_of[at] SUBSEP code[at]) in listed)
        return file " " function_of[at] SUBSEP code[at]
    return file " " function_of[at] SUBSEP "*"
}
function of_side(file, at, column, way,    i, key) { # the reason why a condition never comes out so
    key = of_line(file, at)
    if (key in listed && !hit[at])
        return listed[key]
    for (i = 1; i <= side_reasons; i++)
        if (side_way[i] == way && index(substr(raw[at], column), side_code[i]) == 1 &&
            (side_at[i] == "*" || side_at[i] == file || side_at[i] == file " " function_of[at])) {
            side_used[i] = 1
            return side_why[i]
        }
    return ""
}
function note_side(place, at, column, way,    file, why) {
    file = place
    sub(SUBSEP ".*", "", file)
    why = of_side(file, at, column, way)
    excused += why != ""
    return " never " way (why == "" ? "" : " (" why ")")
}
FILENAME == "tests/uncovered.txt" {     # FILE: code of the line: why
    if (/^#/ || !NF)
        next
    split($0, part, / ::: /)
    sub(/^ +/, "", part[2])
    if (match(part[2], / never (true|false)$/)) {
        side_at[++side_reasons] = part[1]
        side_code[side_reasons] = substr(part[2], 1, RSTART - 1)
        side_way[side_reasons] = substr(part[2], RSTART + 7)
        side_why[side_reasons] = part[3]
    } else
        listed[part[1] SUBSEP part[2]] = part[3]
    next
}
FILENAME == "src/MANIFEST" {
    if (sub("/$", "", $1))
        order[++layers] = $1
    next
}
/^[^ ].*\.[ch]:$/ {
    file = $0
    sub(/:$/, "", file)
    sub(/.*\/tree\/src\//, "", file)
    if (!(file in number)) {
        number[file] = ++files
        name[files] = file
    }
    next
}
match($0, /^ *[0-9]+\| *[0-9.]*[kMGTPEZ]?\|/) {
    split($0, part, "|")
    line = part[1] + 0
    gsub(/ /, "", part[2])
    at = file SUBSEP line
    text = substr($0, RLENGTH + 1)
    if (text ~ /^[a-zA-Z].*\(/ && text !~ /;$/) {
        within = text
        sub(/\(.*/, "", within)
        sub(/.*[ *]/, "", within)
        if (match(text, /\(gckpti_[a-z0-9_]+\)\(/)) # (gckpti_reserve)(..): a macro, too
            within = substr(text, RSTART + 1, RLENGTH - 3)
    }
    raw[at] = text
    sub(/^ +/, "", text)
    code[at] = text
    function_of[at] = within
    last[file] = line > last[file] ? line : last[file]
    if (known(part[2]) && !(at in seen)) {
        seen[at] = 1
        hit[at] = ran(part[2])
    }
    next
}
/Branch \([0-9]+:[0-9]+\): \[True: / {
    match($0, /\([0-9]+:[0-9]+\)/)
    place = file SUBSEP substr($0, RSTART + 1, RLENGTH - 2)
    split($0, part, /True: |, False: |\]/)
    split(place, part2, /:/)
    if (code[part2[1]] ~ /assert\(/)
        next
    if (!(place in sides)) {
        sides[place] = 0
        places[++branches] = place
    }
    sub(/[, ]+$/, "", part[2])
    yes[place] = yes[place] || ran(part[2])
    no[place] = no[place] || ran(part[3])
}
END {
    for (at in seen) {
        split(at, part, SUBSEP)
        s = part[1]
        sub(/\/.*/, "", s)
        lines[s]++
        lines_hit[s] += hit[at]
    }
    for (i = 1; i <= branches; i++) {
        split(places[i], part, /:/)
        s = places[i]
        sub(/\/.*/, "", s)
        all[s] += 2
        all_hit[s] += yes[places[i]] + no[places[i]]
        if (!yes[places[i]] || !no[places[i]])
            gap[part[1]] = gap[part[1]] " " part[2] \
                (yes[places[i]] ? "" : note_side(places[i], part[1], part[2], "true")) \
                (no[places[i]] ? "" : note_side(places[i], part[1], part[2], "false")) ";"
    }
    printf "%-14s%8s%10s%10s%12s\n", "layer", "lines", "run %", "branches", "taken %"
    for (i = 1; i <= layers; i++) {
        s = order[i]
        if (!lines[s])
            continue
        printf "%-14s%8d%10.2f%10d%12.2f\n", s, lines[s], 100 * lines_hit[s] / lines[s], all[s],
            all[s] ? 100 * all_hit[s] / all[s] : 100
        t[1] += lines[s]; t[2] += lines_hit[s]; t[3] += all[s]; t[4] += all_hit[s]
    }
    if (!t[3]) { print "nothing was counted"; exit 1 }
    printf "%-14s%8d%10.2f%10d%12.2f\n\n", "all", t[1], 100 * t[2] / t[1], t[3], 100 * t[4] / t[3]
    for (f = 1; f <= files; f++)
        for (line = 1; line <= last[name[f]]; line++) {
            at = name[f] SUBSEP line
            missed = (at in seen) && !hit[at]
            key = of_line(name[f], at)
            why = key in listed ? listed[key] : ""
            if (missed)
                used[key] = 1
            if (missed && why == "")
                left++
            if (missed || at in gap)
                printf "%s %s:%d %s: %s%s%s\n", missed ? "line  " : "branch", name[f], line, function_of[at], code[at],
                    at in gap ? "   <-" gap[at] : "", why == "" ? "" : "   (" why ")"
        }
    for (at in listed)
        if (!(at in used)) {
            split(at, part, SUBSEP)
            print "tests/uncovered.txt: is run, or is no more: " part[1] ": " part[2]
            stale++
        }
    for (i = 1; i <= side_reasons; i++)
        if (!side_used[i] && side_why[i] !~ /^this processor/) {
            print "tests/uncovered.txt: comes out so, or is no more: " side_at[i] ": " side_code[i] " never " side_way[i]
            stale++
        }
    good = 100 * (1 - left / t[1])
    taken = 100 * (t[4] + excused) / t[3]
    printf "\n%d lines that nothing ran have no reason in tests/uncovered.txt: %.2f %% of lines run or have one, %s are " \
        "asked; %d sides of branches: %.2f %% are taken (%.2f %%) or have one, %s are\n",
        left, good, lines_limit, t[3] - t[4] - excused, taken, 100 * t[4] / t[3], limit
    exit stale > 0 || good < lines_limit || taken < limit
}' tests/uncovered.txt src/MANIFEST $B/show.txt > $B/coverage.txt
status=$?
sed '/^$/q' $B/coverage.txt
tail -n 1 $B/coverage.txt
if [ -n "$mcdc" ]; then # of numerics, layout, readers of files
    # shellcheck disable=SC2086
    "$cov" report -show-mcdc-summary -show-region-summary=false -instr-profile $B/all.profdata $objects \
        $(find $B/tree/src/num $B/tree/src/files -name '*.[ch]') $B/tree/src/plan/place.c \
        > $B/mcdc.txt 2>> $B/show.err
    sed -n '1p;$p' $B/mcdc.txt
fi
echo "every line and side that nothing ran: $B/coverage.txt"
exit $status
