#!/bin/sh
# Runs test programs and scripts, one after another, and adds up their "name: N passed, N failed" lines.
# A program that prints no such line, or ends badly although it counts no failure, is one failure.
# The last line is "N passed, N failed"; the exit status is 1 when anything failed.
#
#     sh tests/run.sh build/test_ops tests/test_programs.sh
passed=0
failed=0
mkdir -p build
for program in "$@"; do
    name=$(basename "$program" .sh)
    log=build/$name.log
    case $program in
    *.sh) sh "$program" > "$log" 2>&1 ;;
    *) "./$program" > "$log" 2>&1 ;;
    esac
    status=$?
    line=$(grep -E '^[^:]+: [0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        tail -n 20 "$log"
        echo "$name: no result (exit status $status)"
        failed=$((failed + 1))
        continue
    fi
    p=$(echo "$line" | sed 's/.*: \([0-9]*\) passed, .*/\1/')
    f=$(echo "$line" | sed 's/.* passed, \([0-9]*\) failed/\1/')
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        line="$line, but its exit status is $status"
    fi
    [ "$f" -eq 0 ] || grep -v '^[^:]*: [0-9]* passed, [0-9]* failed$' "$log" | tail -n 40
    echo "$line"
    passed=$((passed + p))
    failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
