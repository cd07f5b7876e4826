#!/bin/sh
# Fuzzes everything that reads bytes: runs the targets tests/fuzz/fuzz_NAME.c with clang's libFuzzer, under the
# address and undefined behaviour sanitizers; these also report a number that does not fit the type to which it is
# converted.
#
#     sh tests/fuzz/fuzz.sh SECONDS [NAME...]     each target (or those named) for SECONDS; with 0, only the
#                                                 inputs of earlier findings
#     sh tests/fuzz/fuzz.sh keep [NAME...]        keeps the fewest inputs of build/fuzz/NAME with the same
#                                                 coverage, for the next runs
#                                                 (FUZZ_OPTIONS=-use_counters=0: counts edges, not how often they ran)
#     FUZZ_SAN=memory sh tests/fuzz/fuzz.sh ...   under the memory sanitizer instead
#     FUZZ_OPTIONS="-runs=1000000" sh ...         libFuzzer's options, for all of them
#     FUZZ_TRACE=1 sh ...                         traces comparisons in targets and puts the operands into inputs,
#                                                 at a third of the speed; by default only dictionaries and mutators
#                                                 provide words
#
# A target includes gradckpt.h (GRADCKPT_IMPLEMENTED), is linked with the files of src/ that it uses, and begins with
# a description of its input and of the rules that it checks. If the environment variable FUZZ_SEEDS names a folder, a
# target's LLVMFuzzerInitialize writes seeds there, made by the present library, and exits. tests/fuzz/NAME.dict is
# the dictionary of a target, if it has one. The inputs of earlier findings, tests/fuzz/regressions/NAME, run first,
# each time. The corpus build/fuzz/NAME grows from run to run; it starts from the kept corpus
# tests/fuzz/corpus/NAME.tar.xz. The input of a new finding is left in build/fuzz/NAME.found; add its smallest form to
# tests/fuzz/regressions/NAME, and a test of the fix to the other tests. Timeouts are in wall-clock time: on a busy
# machine, use FUZZ_OPTIONS=-timeout=300. The environment variable FUZZ_DIR names a folder in memory for the files of
# this run.
#
# The table at the end has for each target: executions of this run, and of all runs (build/fuzz/NAME.SANITIZER.runs);
# executions a second; edges covered at the beginning and at the end; the number of the execution, counted over all
# runs, that last covered a new edge; how many of the last 10^6 executions covered a new edge (from
# build/fuzz/NAME.SANITIZER.grew); features (ft); inputs of the corpus; findings. The exit status is 1 if there are
# findings, and 77 if libFuzzer is missing.
B=build/fuzz
CLANG=${CLANG:-clang}
seconds=$1
case $seconds in
keep) ;;
'' | *[!0-9]*)
    sed -n 's/^# \{0,1\}//; 2,11p' "$0"
    exit 2 ;;
esac
shift
san=${FUZZ_SAN:-address}
case $san in
address) sanitizers=address,undefined,float-cast-overflow kernels= ;;
memory) sanitizers=memory kernels=-DGCKPT_NO_FAST ;; # it does not know which bytes vector code writes
*)
    echo "fuzz.sh: FUZZ_SAN=$san is neither address nor memory"
    exit 2 ;;
esac
compiled="-std=gnu99 -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all $kernels"
options="$compiled -Ibuild/api -I. -Isrc -Itests -Iexamples"
untraced=-fno-sanitize-coverage=trace-cmp
[ -z "${FUZZ_TRACE:-}" ] || untraced=
mkdir -p $B

printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
    'int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);' \
    'int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) { return (void)bytes, (void)size, 0; }' > $B/can.$$.c
can=1
"$CLANG" -fsanitize=fuzzer,$sanitizers $B/can.$$.c -o $B/can.$$ > /dev/null 2>&1 && $B/can.$$ -runs=1 > /dev/null 2>&1 || can=0
rm -f $B/can.$$ $B/can.$$.c
[ $can = 1 ] || {
    echo "skip: no clang with libFuzzer and -fsanitize=$sanitizers (CLANG=$CLANG)"
    exit 77
}

# Compiles each file of src/ separately, so that a target is linked only with the files that it uses. Comparisons in
# these files are never traced, since the comparisons within sums and products would be traced as well.
libsrc=$B/$san/libsrc.a
MAKEFLAGS= make -s OBJ_DIR=$B/$san CC="$CLANG" WARNINGS= OPENMP= \
    CFLAGS="$compiled -fsanitize=$sanitizers -fsanitize-coverage=inline-8bit-counters,pc-table" \
    $libsrc build/api/gradckpt.h || exit 1

[ $# -gt 0 ] || set -- $(ls tests/fuzz/fuzz_*.c | sed 's,.*/fuzz_\(.*\)\.c,\1,')
# A reader must not allocate memory for data that a file only claims to have, so an allocation of 512 MB is a finding.
# A failed allocation is an error that the library must handle. Freed blocks are soon reused, and stacks of
# allocations are not kept, which saves time and memory; to see these stacks for a finding, set
# ASAN_OPTIONS=malloc_context_size=30.
export ASAN_OPTIONS="allocator_may_return_null=1:malloc_context_size=1:quarantine_size_mb=4:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# FUZZ_DIR: the folder for the files of targets; in memory if the system has such a folder
FUZZ_DIR=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d) || exit 1
export FUZZ_DIR
trap 'rm -rf "$FUZZ_DIR"' EXIT
trap 'exit 130' HUP INT TERM
rows=
findings=0
for name; do
    at=$B/$name
    log=$B/$name.log
    target=$B/fuzz_$name.$san${FUZZ_TRACE:+.traced}
    echo "fuzz.sh: $name"
    [ -f "$target" ] && [ -z "$(find "$0" tests/fuzz/*.[ch] tests/*.h examples/*.h $libsrc -newer "$target")" ] || {
        # functions of libc or of the library that the target replaces: those for which it declares __real_NAME
        wrapped=$("$CLANG" $options -DGRADCKPT_IMPLEMENTED -E "tests/fuzz/fuzz_$name.c" |
            sed -n 's/^[^ ].*__real_\([a-z_]*\)(.*);$/-Wl,--wrap=\1/p')
        once=$(sed -n 's,^#include "once.h",-Isrc tests/fuzz/once.c,p' "tests/fuzz/fuzz_$name.c")
        "$CLANG" $options -fsanitize=fuzzer,$sanitizers $untraced -DGRADCKPT_IMPLEMENTED "tests/fuzz/fuzz_$name.c" \
            $once $libsrc -lm -lpthread $wrapped -o "$target" || exit 1
    }
    rm -rf "$at.seeds"
    mkdir -p "$at" "$at.seeds" "$at.found"
    touch "$at.began"
    FUZZ_SEEDS=$at.seeds "$target" -runs=0 > "$log" 2>&1 || {
        cat "$log"
        echo "fuzz.sh: $name did not write its seeds"
        exit 1
    }
    kept=tests/fuzz/corpus/$name.tar.xz
    rm -rf "$at.kept"
    mkdir "$at.kept"
    [ ! -f "$kept" ] || tar -C "$at.kept" -xJf "$kept" || exit 1
    if [ "$seconds" = keep ]; then
        rm -rf "$at.fewest" # of an earlier call that did not end
        mkdir -p "$at.fewest" tests/fuzz/corpus
        "$target" -set_cover_merge=1 $FUZZ_OPTIONS "$at.fewest" "$at" "$at.seeds" "$at.kept" > "$log" 2>&1 || {
            tail -n 40 "$log"
            exit 1
        }
        (cd "$at.fewest" && tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf - *) |
            xz -9e > "$kept" || exit 1
        rm -rf "$at.fewest"
        echo "    $(tail -n 1 "$log"): $(wc -c < "$kept") bytes"
        continue
    fi
    past=$(ls -d "tests/fuzz/regressions/$name"/* 2> /dev/null)
    dict=
    [ ! -f "tests/fuzz/$name.dict" ] || dict=-dict=tests/fuzz/$name.dict
    set -- "$target" -artifact_prefix="$at.found/" -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=20 -entropic=0 \
        -reload=0 -print_final_stats=1 $dict $FUZZ_OPTIONS
    for input in $past; do
        "$@" -runs=1 "$input" > "$log" 2>&1 || {
            tail -n 40 "$log"
            echo "FINDING $name, once more: $input"
            findings=$((findings + 1))
        }
    done
    if [ "$seconds" -gt 0 ]; then # status 72: the user interrupted libFuzzer
        "$@" -max_total_time="$seconds" "$at" "$at.seeds" "$at.kept" ${past:+"tests/fuzz/regressions/$name"} > "$log" 2>&1 ||
            [ $? -eq 72 ] || {
            findings=$((findings + 1))
            grep -v '^#[0-9]' "$log" | tail -n 60
            echo "FINDING $name: $(sed -n '/SUMMARY/{p;q;}' "$log")"
        }
        new=$(find "$at.found" -type f -newer "$at.began")
        [ -z "$new" ] || echo "    its input: $new"
        runs=$(awk '/^stat::number_of_executed_units/ { print $2 }' "$log")
        before=$(cat "$at.$san.runs" 2> /dev/null || echo 0)
        all=$((before + ${runs:-0}))
        echo "$all" > "$at.$san.runs"
        # the number of the last execution that covered an edge which neither corpus nor seeds cover
        awk -v before="$before" '
            /^#[0-9]/ {
                for (i = 2; i < NF; i++)
                    if ($i == "cov:" && $(i + 1) > cov) {
                        cov = $(i + 1)
                        if (begun) print before + substr($1, 2), cov
                    }
                begun = begun || $2 == "INITED"
            }' "$log" >> "$at.$san.grew"
        rows="$rows$(awk -v name="$name" -v all="$all" -v inputs="$(ls "$at" | wc -l)" -v found="$(echo $new | wc -w)" '
            FILENAME ~ /\.grew$/ { last = $1; lately += $1 > all - 1000000; next }
            /^#[0-9]/ {
                for (i = 2; i < NF; i++)
                    if ($i == "cov:" && $(i + 1) > cov) cov = $(i + 1)
                    else if ($i == "ft:" && $(i + 1) > ft) ft = $(i + 1)
                if ($2 == "INITED") began = cov
            }
            /^stat::number_of_executed_units/ { runs = $2 }
            /^stat::average_exec_per_sec/ { rate = $2 }
            END {
                printf "%-12s %11d %11d %8d %6d %6d %10d %6d", name, runs, all, rate, began, cov, last, lately
                printf " %7d %7d %8d", ft, inputs, found
            }' "$at.$san.grew" "$log")
"
    fi
done
[ -z "$rows" ] || printf '\n%-12s %11s %11s %8s %6s %6s %10s %6s %7s %7s %8s\n%s' target executions in\ all a\ second \
    begin cov last\ new lately ft corpus findings "$rows"
echo "fuzz: $findings findings"
[ "$findings" -eq 0 ]
