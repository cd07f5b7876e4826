#!/bin/sh
# Adds up the "name: N passed, N failed" lines of logs, each of which ends with "exit status N" (make test).
# A program that printed no such line, or ended badly although it counted no failure, is one failure.
# The last line is "N passed, N failed"; the exit status is 1 when anything failed.
#
#     sh tests/run.sh build/test_ops.log build/test_programs.log
passed=0
failed=0
for log in "$@"; do
    name=$(basename "$log" .log)
    [ -f "$log" ] || echo "not built" > "$log"
    status=$(sed -n 's/^exit status //p' "$log" | tail -n 1)
    line=$(grep -E '^[^:]+: [0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        tail -n 20 "$log"
        echo "$name: no result"
        failed=$((failed + 1))
        continue
    fi
    p=$(echo "$line" | sed 's/.*: \([0-9]*\) passed, .*/\1/')
    f=$(echo "$line" | sed 's/.* passed, \([0-9]*\) failed/\1/')
    if [ "$status" != 0 ] && [ "$f" -eq 0 ]; then
        f=1
        line="$line, but its exit status is $status"
    fi
    [ "$f" -eq 0 ] || grep -v -E '^[^:]*: [0-9]* passed, [0-9]* failed$|^exit status' "$log" | tail -n 40
    echo "$line"
    passed=$((passed + p))
    failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
