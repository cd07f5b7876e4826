#!/bin/sh
# Summarises the logs of make test. Each log ends with "exit status N". The last line "name: N passed, N failed" of a
# log counts; a program that printed no such line, or ended with an error although it counted no failure, counts as
# one failure.
#
#     sh tests/run.sh each build/test_ops.log     prints its line; after a failure its messages and how to run it alone
#     sh tests/run.sh sum build/*.log             prints the failures, then "N passed, N failed"; the exit status is 1
#                                                 after any failure
what=$1
shift

counts='^[^:]+: [0-9]+ passed, [0-9]+ failed$'

# read_log LOG: sets name and line, and p and f, the numbers of checks that passed and failed
read_log()
{
    name=$(basename "$1" .log)
    [ -f "$1" ] || echo "not built" > "$1"
    status=$(sed -n 's/^exit status //p' "$1" | tail -n 1)
    line=$(grep -E "$counts" "$1" | tail -n 1)
    p=$(echo "$line" | sed -n 's/.*: \([0-9]*\) passed, .*/\1/p')
    f=$(echo "$line" | sed -n 's/.* passed, \([0-9]*\) failed/\1/p')
    if [ -z "$line" ]; then
        p=0
        f=1
        line="$name: no result${status:+, exit status $status}"
    elif [ "$status" != 0 ] && [ "$f" -eq 0 ]; then
        f=1
        line="$line, but its exit status is $status"
    fi
}

# alone LOG: prints the command that runs the test again
alone()
{
    program=${1%.log}
    case $program in
    *.[0-3]) echo "rm $1; make $1" ;; # of the CUDA shim, in one of its schedules
    *) [ -f "$program" ] && echo "make $program && ${SEED:+SEED=$SEED }$program" || echo "rm $1; make $1${SEED:+ SEED=$SEED}" ;; # or a script
    esac
}

case $what in
each)
    read_log "$1"
    if [ "$f" -gt 0 ]; then # in one piece: others print beside it
        said=$(grep -v -E "$counts|^exit status" "$1" | tail -n 40 | sed 's/^/    /')
        line="${said:+$said
}$line
    alone: $(alone "$1")"
    fi
    echo "$line" ;;
sum)
    passed=0
    failed=0
    for log in "$@"; do
        read_log "$log"
        [ "$f" -eq 0 ] || echo "failed: $line ($log)"
        passed=$((passed + p))
        failed=$((failed + f))
    done
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] ;;
esac
