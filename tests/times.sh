#!/bin/sh
# Compares the user and system time of each check with its budget. Since machines differ, budgets are multiples of a
# unit: one compilation of the header of version 0.1 by gcc -O2, measured in the same run. tests/budgets has the
# budgets; since times vary, a check fails only above 1.3 times its budget.
#
#     sh tests/times.sh clear                 deletes the recorded times
#     sh tests/times.sh unit                  measures the unit; the mean of all measurements is used
#     sh tests/times.sh run NAME COMMAND...   runs a command and records its time as NAME
#     sh tests/times.sh compiled NAME OPTIONS...  compiles the header in folder HEADER (default .) and version
#                                             0.1's by gcc with these options, twice, and compares the ratio of their times with
#                                             the budget of NAME
#     sh tests/times.sh table                 prints the recorded times, longest first; fails if one is above its limit
#     sh tests/times.sh show                  prints the same table and never fails: for some of the checks, of which one may
#                                             have built files that others share
#
# Without gcc or the project's history there is no unit; the table then has seconds, and no check fails.
notes=build/times
first=21f81e5 # version 0.1

note()          # note NAME: records the user and system seconds of this shell's children so far
{
    times > $notes/now.$$ # not in a pipe, which would be another shell
    tr 'ms' '  ' < $notes/now.$$ |
        awk -v name="$1" 'NR == 2 { printf "%s %.2f\n", name, 60 * $1 + $2 + 60 * $3 + $4 }' >> "$notes/$1"
    rm -f $notes/now.$$
}

took()          # took DIR OPTIONS...: prints the user and system seconds that gcc takes to compile the header in DIR
{
    at=$1
    shift
    sh -c '"$@" && times' sh gcc "$@" -w "-I$at" -c tests/compile/implementation.c -o build/compiled.$$ |
        tr 'ms' '  ' | awk 'NR == 2 { print 60 * $1 + $2 + 60 * $3 + $4 }'
}

command=$1
[ $# -eq 0 ] || shift
case $command in
clear)
    rm -rf $notes ;;
unit)
    at=build/unit.$$
    mkdir -p $at $notes
    if git show $first:gradckpt.h > $at/gradckpt.h 2> $at/said && command -v gcc > $at/said; then
        printf '#define GRADCKPT_IMPLEMENTATION\n#include "gradckpt.h"\n' > $at/unit.c
        gcc -O2 -std=gnu99 -c $at/unit.c -o $at/unit.o && note unit
    else
        echo "no unit: it needs gcc and the project's history"
    fi
    rm -rf $at ;;
run)
    mkdir -p $notes
    name=$1
    shift
    rm -f "$notes/$name"
    "$@"
    status=$?
    note "$name"
    exit $status ;;
compiled)
    name=$1
    shift
    old=build/compiled-$first
    mkdir -p $old
    if ! git show $first:gradckpt.h > $old/gradckpt.h 2> $old/said || ! command -v gcc > $old/said; then
        echo "skip: no unit: it needs gcc and the project's history"
        exit 0
    fi
    for run in 1 2; do
        echo "$(took "${HEADER:-.}" "$@") $(took $old "$@")"
    done | awk -v name="$name" '
        FILENAME != "-" { if ($1 == name) may = $2; next }
        NF != 2 { exit }
        { if (FNR == 1 || $1 < new) new = $1; if (FNR == 1 || $2 < old) old = $2; turns++ }
        END {
            if (turns < 2) { print "it does not compile"; exit 1 }
            printf "%s: %.2f s, version 0.1 %.2f s: %.2f times as long, of %.1f\n", name, new, old, new / old, may
            exit new > 1.3 * may * old
        }' tests/budgets - ;;
table | show)
    cat $notes/* | sort -k 2,2nr | awk -v judged=$([ $command = show ]; echo $?) '
        FILENAME != "-" {
            if (/^# .*only make check-all/) rest = 1
            if ($1 !~ /^#/ && NF == 2) may[$1] = $2
            if ($1 !~ /^#/ && NF == 2 && !rest && $1 != "all") parts += $2
            next
        }
        $1 == "unit" { unit += $2; units++; next }
        { name[++n] = $1; took[n] = $2; all += $2; seen[$1] = 1 }
        END {
            if (units) printf "unit: version 0.1 compiled by gcc -O2, %.2f s, the mean of %d\n", unit /= units, units
            else print "skipped: there is no unit, so no time is judged"
            if ("test" in seen) { # all of .ci/run
                name[++n] = "all"
                took[n] = all
            }
            for (i = 1; i <= n; i++) {
                verdict = ""
                if (units && judged && !(name[i] in may)) verdict = "FAIL: it has no line in tests/budgets"
                else if (units && judged && took[i] > 1.3 * may[name[i]] * unit) verdict = "FAIL: more than 1.3 times as much"
                bad += verdict != ""
                printf "%7.1f s", took[i]
                if (units) printf "%7.1f units of %5.1f", took[i] / unit, may[name[i]]
                print "  " name[i] "  " verdict
            }
            if (judged && (parts - may["all"]) ^ 2 > 1e-6) {
                printf "FAIL: the parts in tests/budgets sum to %.1f, \"all\" is %.1f\n", parts, may["all"]
                bad++
            }
            exit bad > 0
        }' tests/budgets - ;;
*)
    sed -n 's/^#     //p' "$0"
    exit 2 ;;
esac
