#!/bin/sh
# Tests examples/digits.c and the programs in examples/small. Each program has fewer than 80 lines (digits: 45),
# compiles without a warning with gcc and clang, if they are installed, and exits with status 0, which shows that
# training reached the result that the program claims. With SHOW=1 (make small), shows the output of the programs.
#
# LINKED is the command that compiles programs of public names (in make test, linked with build/gradckpt.o).
CC=${CC:-cc}
LINKED=${LINKED:-$CC -O2 -I. -DGRADCKPT_IMPLEMENTATION=}
work=build/small
. tests/checks.sh

warnings="-Wall -Wextra -Werror"
for CXX in ${CXX:-} c++ g++ clang++ none; do
    if printf 'int main() { return 0; }\n' > "$work/t.cpp" && "$CXX" -std=c++17 "$work/t.cpp" -o "$work/t" 2> /dev/null
    then
        break
    fi
done
linked_cxx=$(echo "$LINKED" | sed "s|^[^ ]*|$CXX|; s/-std=[^ ]*//; s/-Wstrict-prototypes//")

# run NAME: runs a program, with its output in NAME.out
run()
{
    check "$1 learns" sh -c "$work/$1 > $work/$1.out 2> $work/$1.err || { cat $work/$1.out $work/$1.err; exit 1; }"
    [ -z "$SHOW" ] || { echo "---- $1"; cat "$work/$1.out"; }
}

# compiles FILE OPTIONS: compiles and links the file with every installed compiler
compiles()
{
    file=$1
    name=$(basename "${file%.*}")
    shift
    case $file in
    *.cpp) others="g++ clang++" language=-std=c++17 link=$linked_cxx ;;
    *) others="gcc clang" language=-std=c99 link=$LINKED ;;
    esac
    for other in $others; do
        command -v "$other" > /dev/null || continue
        check "$file compiles by $other" "$other" $language $warnings -fsyntax-only \
            -DGRADCKPT_IMPLEMENTED -I. "$@" "$file"
    done
    check "$file compiles" $link $language $warnings -I. "$@" "$file" -o "$work/$name" -lm
}

check "digits.c has 45 lines at most" test "$(wc -l < examples/digits.c)" -le 45
for file in examples/digits.c examples/small/*.c examples/small/*.cpp; do
    name=$(basename "${file%.*}")
    check "$file has fewer than 80 lines" test "$(wc -l < "$file")" -lt 80
    if [ "$name" = device ]; then # the host prints the plan; the program for the device compiles its own implementation
        compiles "$file" -DHOST
        check "the host prints the plan" sh -c "$work/device > $work/device_plan.h"
        check "device.c compiles for the device" $CC -std=c99 -O0 $warnings -Wno-unused-function \
            -DGCKPT_STATIC -I. "-I$work" "$file" -o "$work/device"
    elif [ "${file%.cpp}" != "$file" ] && [ "$CXX" = none ]; then
        continue
    else
        compiles "$file"
    fi
    run "$name"
done
check "gru: two budgets, the same weights" sh -c "[ \$(sed 's/.*weights //' $work/gru.out | sort -u | wc -l) = 1 ]"

report small
