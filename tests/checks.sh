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

# with_tries: true with ITERATIONS set (make check): all cases are run
with_tries() { [ -n "$ITERATIONS" ]; }

# in_turn N: true for every N-th call, beginning at one that SEED chooses, so that successive commits run all cases; if
# with_tries, always
turns=${SEED:-1}
in_turn()
{
    turns=$((turns + 1))
    with_tries || [ $((turns % $1)) -eq 0 ]
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

# ---- compile lines as pages tell them, run in $work/told, where cc is the compiler that is tested ----
# line PAGE BEGIN: the first line of a page's code that begins so
line() { sed -n "s/^    \($2.*\)/\1/p" "$1" | head -n 1; }

told()
{
    (
        cc() { command $told_cc "$@" $told_last; }
        cd "$work/told" && eval "$1"
    )
}

# prints FILE LINE: what that line runs prints this
prints() { told "$2" > "$work/printed" && diff "$1" "$work/printed"; }

# told_by PAGE: there are the repository's files, and gradckpt.o: that of LINKED, or what the page's lines make
told_by()
{
    object=''
    for word in $LINKED; do
        case $word in
        *.o) object=$word ;;
        -I. | -DGRADCKPT_IMPLEMENT*) ;; # as the page has it
        -l* | -L*) told_last="$told_last $word" ;;
        *) told_cc="$told_cc $word" ;;
        esac
    done
    mkdir "$work/told"
    ln -s "$PWD/gradckpt.h" "$PWD/docs" "$PWD/examples" "$work/told"
    check "$1 makes gradckpt.c" told "$(line "$1" printf)"
    check "$1: it is the implementation" sh -c "sed 1d tests/compile/implementation.c | cmp - $work/told/gradckpt.c"
    check "$1 compiles it as the README does" [ "$(line "$1" 'cc .*-c ')" = "$(line README.md 'cc .*-c ')" ]
    if [ "$object" ]; then
        cp "$object" "$work/told/gradckpt.o"
    else
        check "$1: it compiles" told "$(line "$1" 'cc .*-c ')"
    fi
}

report()
{
    echo "$1: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
