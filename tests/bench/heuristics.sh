#!/bin/sh
# Recomputes the table of tests/bench/heuristics.md. For each row, compiles the search without one heuristic,
# and plans the row's network and budget with and without it, or runs the row's test, which has to fail.
#
#     make build/ablate build/test_baseline && sh tests/bench/heuristics.sh > TABLE
#
# Fails if a heuristic is worth less than 0.5 % of a step, if a test passes without it, or if a script edits nothing.
compile=$(cat build/options)
parts=build/heuristics
search=$(awk '$1 ~ /\/$/ { layer = $1 } layer == "search/" && $1 ~ /\.[ch]$/ { print "#include \"" $1 "\"" }' src/MANIFEST)
mkdir -p $parts

# cost PROGRAM NETWORK BUDGET: prints the cost that tests/bench/ablate.c finds
cost()
{
    "$1" --only "$2" "$3" | sed 's/.*,//'
}

# worth NETWORK BUDGET: prints the worth of the heuristic that $parts/edited.o lacks
worth()
{
    case $1 in
    test_*)
        $compile -o $parts/without "build/o/$1.o" build/plan_check.o $parts/edited.o build/libsrc.a -lm || return
        $parts/without > $parts/log 2>&1 || echo "the test fails" ;;
    *)
        $compile -o $parts/without build/o/ablate.o $parts/edited.o build/libsrc.a -lm || return
        echo "$(cost build/ablate "$1" "$2") $(cost $parts/without "$1" "$2")" |
            awk 'NF == 2 && $1 > -0.5 && $2 < -0.5 { print "no plan" }
                 NF == 2 && $1 > -0.5 && $2 - $1 >= 0.005 * (1 + $1) { printf "%.1f %%\n", 100 * ($2 - $1) / (1 + $1) }' ;;
    esac
}

status=0
while IFS= read -r line; do
    off=$(printf '%s\n' "$line" | sed -n 's/^|.*`\(.*\)`.*|$/\1/p')
    if [ -z "$off" ]; then
        printf '%s\n' "$line"
        continue
    fi
    file=$(printf '%s\n' "$line" | sed 's/ | `.*//; s/.*| //')
    network=$(printf '%s\n' "$line" | sed 's/.*` | //; s/ |.*//')
    budget=$(printf '%s\n' "$line" | sed 's/.*` | [^|]* | //; s/ |.*//')
    mkdir -p "$parts/${file%/*}"
    sed "$off" "src/$file" > "$parts/$file"
    is=
    ! cmp -s "src/$file" "$parts/$file" && echo "$search" | $compile -w -I$parts -Isrc -c -o $parts/edited.o -x c - &&
        is=$(worth "$network" "$budget")
    rm "$parts/$file"
    printf '%s\n' "$line" | sed "s/ [^|]* |\$/ ${is:-nothing} |/"
    [ -n "$is" ] || status=1
done < tests/bench/heuristics.md
exit $status
