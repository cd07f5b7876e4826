#!/bin/sh
# What a check takes, in user and system seconds, beside what it may. Machines differ, so a second is nothing to hold a
# check to: the unit is one compilation of version 0.1's header by gcc -O2, made in the same run. tests/budgets says
# how many units a check may take; it fails above 1.3 times that, since machines are noisy, too.
#
#     sh tests/times.sh clear                 forget what was noted
#     sh tests/times.sh unit                  measure the unit, once more: their mean is used
#     sh tests/times.sh run NAME COMMAND...   run a command, and note what it took as NAME
#     sh tests/times.sh compiled NAME OPTIONS...  gcc with these options compiles the header and version 0.1's, twice: in
#                                             parts of the latter, beside what tests/budgets lets NAME take
#     sh tests/times.sh table                 what was noted, the most first; fails where it is too much
#     sh tests/times.sh show                  the same, and judges nothing: of some checks, of which one may have made
#                                             what others share
#
# Without gcc or without the project's history there is no unit: the table then has seconds, and judges nothing.
notes=build/times
first=21f81e5 # version 0.1

note()          # note NAME: a line of the seconds, user and system, that the children of this shell took so far
{
    times > $notes/now.$$ # not in a pipe: that would be another shell
    tr 'ms' '  ' < $notes/now.$$ |
        awk -v name="$1" 'NR == 2 { printf "%s %.2f\n", name, 60 * $1 + $2 + 60 * $3 + $4 }' >> "$notes/$1"
    rm -f $notes/now.$$
}

took()          # took DIR OPTIONS...: the seconds, user and system, in which gcc compiles the header of that folder
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
    for turn in 1 2; do
        echo "$(took . "$@") $(took $old "$@")"
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
            if (/^# Only make check-all/) rest = 1
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
