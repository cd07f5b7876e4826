# Functions for tests that are scripts. A script sets `work` to a folder that only this script uses, reads this file,
# calls check, and ends with: report NAME
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

# fails_with STATUS PATTERN command...: succeeds if the command ends with the status and prints a line to stderr that
# matches
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

# with_tries: succeeds if ITERATIONS is set (make check), so that all cases are to be run
with_tries() { [ -n "$ITERATIONS" ]; }

# in_turn N: succeeds in every N-th call, beginning at one that SEED chooses, so that successive commits run all
# cases; in every call if with_tries
turns=${SEED:-1}
in_turn()
{
    turns=$((turns + 1))
    with_tries || [ $((turns % $1)) -eq 0 ]
}

# wait_for FILE PATTERN: waits until a line of the file matches, for at most a minute
wait_for()
{
    tenths=0
    until grep -q -e "$2" "$1" 2> /dev/null || [ $tenths -eq 600 ]; do
        sleep 0.1
        tenths=$((tenths + 1))
    done
}

# ---- runs the compile lines that pages contain, in $work/page, where cc stands for the compiler under test ----
# line PAGE BEGIN: prints the first line of code in the page that begins with BEGIN
line() { sed -n "s/^    \($2.*\)/\1/p" "$1" | head -n 1; }

run_line()
{
    (
        cc() { command $page_cc "$@" $page_flags; }
        cd "$work/page" && eval "$1"
    )
}

# prints FILE LINE: succeeds if the command LINE prints the contents of FILE
prints() { run_line "$2" > "$work/printed" && diff "$1" "$work/printed"; }

# lines_of PAGE: runs the commands of a page in a folder with the repository's files and gradckpt.o, which is the
# object in LINKED or the one that the page's commands make
lines_of()
{
    object=''
    for word in $LINKED; do
        case $word in
        *.o) object=$word ;;
        -I. | -DGRADCKPT_IMPLEMENT*) ;; # as the page has it
        -l* | -L*) page_flags="$page_flags $word" ;;
        *) page_cc="$page_cc $word" ;;
        esac
    done
    mkdir "$work/page"
    ln -s "$PWD/gradckpt.h" "$PWD/docs" "$PWD/examples" "$work/page"
    check "$1 makes gradckpt.c" run_line "$(line "$1" printf)"
    check "$1: it is the implementation" sh -c "sed 1d tests/compile/implementation.c | cmp - $work/page/gradckpt.c"
    check "$1 compiles it as the README does" [ "$(line "$1" 'cc .*-c ')" = "$(line README.md 'cc .*-c ')" ]
    if [ "$object" ]; then
        cp "$object" "$work/page/gradckpt.o"
    else
        check "$1: it compiles" run_line "$(line "$1" 'cc .*-c ')"
    fi
}

report()
{
    echo "$1: $passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
