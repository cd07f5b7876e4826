# For tests that are scripts, which set `work`, a folder of their own, and end with: report NAME
passed=0
failed=0
rm -rf "$work"
mkdir -p "$work"

# check "what" command...: passes when the command succeeds
check()
{
    what=$1
    shift
    if "$@" > "$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $what"
        tail -n 15 "$work/log"
    fi
}

# fails_with STATUS PATTERN command...: ends with the status and says the pattern on stderr
fails_with()
{
    want=$1
    pattern=$2
    shift 2
    "$@" > "$work/stdout" 2> "$work/stderr"
    status=$?
    cat "$work/stderr"
    [ "$status" -eq "$want" ] && grep -q -e "$pattern" "$work/stderr"
}

# wait_for FILE PATTERN: until it is there, a minute at most
wait_for()
{
    tenths=0
    until grep -q -e "$2" "$1" 2> /dev/null || [ $tenths -eq 600 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
}

report()
{
    echo "$1: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
