#!/bin/sh
# Compares the numbers in README.md, docs/, the manual and `make help` with the source, with each other and with
# docs/benchmarks/. Prints a line for each number that is wrong; the exit status is then 1.
#
#     sh tests/figures.sh             all checks of text
#     sh tests/figures.sh gpt [DIR]   also the bytes in the first table of README.md, measured by DIR/gpt (default: build/gpt)
#
# A fact is a phrase with one number, such as "N parts can be left out". The phrase may occur on any page; every
# occurrence must have the number of the source, and at least one page must contain the phrase.
#
# A measured figure is followed by a marker, NUMBER UNIT<!-- TOPIC: CASE -->, where CASE is a row of
# docs/benchmarks/TOPIC.tsv.
bad=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "figures: $*"; bad=1; }

pages() { ls README.md docs/*.md docs/course/*.md examples/README.md 2> /dev/null | grep -v '^docs/benchmarks\.md$'; }

# Prints the text of a file in one line, without the stars of a comment.
flat() { sed 's/^ \* *//' "$1" | tr -s '\n\t ' '   '; }

# get FILE PATTERN: prints the part of the file's text that is between \( and \) in the pattern, at its first match.
get() { flat "$1" | grep -o -e "$(echo "$2" | sed 's/\\[()]//g')" | sed -n "1s~^$2\$~\1~p"; }

count() { ls "$@" 2> /dev/null | wc -l | tr -d ' '; }

# logged TOPIC CASE: prints the value of a measured case of docs/benchmarks/TOPIC.tsv.
logged() { awk -F '\t' -v name="$2" '$1 == name { print $2 }' "docs/benchmarks/$1.tsv" 2> /dev/null; }

round() { awk -v x="$1" 'BEGIN { if (x != "") printf "%.0f\n", x }'; }

for page in $(pages); do
    printf '%s\t%s\n' "$page" "$(flat "$page")"
done > "$work/pages"
for file in src/manual.txt; do
    printf '%s\t%s\n' "$file" "$(flat "$file")"
done >> "$work/pages"
printf 'Makefile\t%s\n' "$(sed -n '/^define HELP/,/^endef/p' Makefile | tr -s '\n ' '  ')" >> "$work/pages"

# fact SOURCE VALUE PHRASE [optional | PAGES]: compares the numbers in all occurrences of PHRASE, an extended regular
# expression with @ in place of the number, with VALUE. With "optional", no page has to contain the phrase. PAGES is an
# extended regular expression that limits the check to some pages.
fact()
{
    [ -n "$2" ] || { fail "$1 has no value for \"$3\""; return; }
    awk -F '\t' -v source="$1" -v value="$2" -v phrase="$3" -v optional="$4" '
    BEGIN {
        split("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen", words, " ")
        for (i in words)
            number[words[i]] = i - 1
        at = index(phrase, "@")
        before = substr(phrase, 1, at - 1)
        after = substr(phrase, at + 1)
        pattern = before "([A-Za-z]+|[0-9]([0-9.,]*[0-9])?)" after
    }
    {
        text = optional == "optional" || $1 ~ optional ? $2 : ""
        while (match(text, pattern)) {
            said = given = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            sub("^" before, "", given)
            if (after != "")
                sub(after "$", "", given)
            given = tolower(given)
            gsub(/,/, "", given)
            if (given in number)
                given = number[given]
            if (given !~ /^[0-9]/)
                continue
            found = 1
            if (given != value) {
                print "figures: " $1 ": \"" said "\", but " source " has " value
                bad = 1
            }
        }
    }
    END {
        if (!found && optional != "optional") {
            print "figures: no page says \"" phrase "\" (" value " in " source ")"
            bad = 1
        }
        exit bad
    }' "$work/pages" || bad=1
}

# same WHAT VALUE VALUE: checks that the two values are equal and not empty.
same() { [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: ${2:-nothing}, ${3:-nothing}"; }

# ---- versions ----
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' src/api.h)
contract=$(get src/api.h 'define GCKPT_CONTRACT *\([0-9]*\)')
same "the version in src/api.h and in the manual's title" "$version" "$(get src/manual.txt 'gradckpt.h - v\([0-9.]*[0-9]\) -')"
same "the version in src/api.h and in the CHANGELOG's title" "$version" "$(get docs/CHANGELOG.md '# \([0-9.]*\): changes since')"
fact src/api.h "$version" 'requires=gradckpt/@'
fact src/api.h "${version%.*}" 'find_package\(gradckpt @ REQUIRED'
fact src/api.h "${version%.*}" "version: '>=@'"
fact src/api.h "$(get src/api.h 'define GCKPT_PLAN_FORMAT *\([0-9]*\)')" '[Pp]lan format @'
fact src/api.h "$(get src/api.h 'define GCKPT_PLAN_FORMAT *\([0-9]*\)')" '[Pp]lans of format @' optional
fact src/api.h "$contract" '[Cc]ontract version @'
fact src/api.h "$contract" 'contract is version @' optional
same 'the contract in src/api.h and in the example of src/files/files.h' "$contract" \
    "$(get src/files/files.h '"contract":"\([0-9]*\)"')"
fact examples/packaging/program "$(get examples/packaging/program/CMakeLists.txt 'cmake_minimum_required(VERSION \([0-9.]*\))')" \
    'CMake @ or newer'
fact "CUDA_WANTED in the Makefile" "$(sed -n 's/^CUDA_WANTED = \([0-9]*\).*/\1/p' Makefile)" 'sm_@, sm_[0-9]+a?, sm_[0-9]+ and sm_[0-9]+'
fact "CUDA_WANTED in the Makefile" "$(sed -n 's/^CUDA_WANTED = .* \([0-9]*\)$/\1/p' Makefile)" 'sm_[0-9]+a?, sm_[0-9]+ and sm_@'

# ---- counts ----
parts=$(sh tests/compile/features.sh parts docs/building.md)
fact "the table in docs/building.md" "$(echo $parts | wc -w | tr -d ' ')" '@ parts can be left out'
for switch in $(grep '^part' src/EDITIONS | grep -o 'GCKPT_NO_[A-Z0-9_]*' | sort -u); do
    grep -q "^| .$switch[\`(]" docs/building.md || fail "the tables in docs/building.md do not have $switch"
done
fact "examples/small with digits.c" $(($(count examples/small/*.c examples/small/*.cpp) + 1)) '@ small programs'
fact tests/examples/test_small.sh "$(get tests/examples/test_small.sh 'has fewer than \([0-9]*\) lines')" '[Ee]ach under @ lines'
fact "SCRIPTS in the Makefile" "$(sed -n 's/^SCRIPTS = //p' Makefile | wc -w | tr -d ' ')" 'the examples and @ scripts'
fact docs/exercises.md "$(grep -c '^## ' docs/exercises.md)" '@ (questions|exercises) with'
fact docs/course "$(count docs/course/[0-9]*.md)" '@ lessons' README.md
fact tests/firmware/test_mcu.sh "$(get tests/firmware/test_mcu.sh 'boards=${BOARDS:-\([^}]*\)}' | wc -w | tr -d ' ')" '@ emulated boards'
fact tests/firmware/test_mcu.sh "$(grep -o 'mobilenet\.mp[a-z0-9-]*' tests/firmware/test_mcu.sh | sort -u | wc -l | tr -d ' ')" \
    'MobileNetV2 on @' optional
same "images of digits in examples/digits.h" "$(get examples/digits.h 'enum { DIGITS = \([0-9]*\)')" \
    "$(get examples/digits.h 'digits.h - \([0-9,]*\) handwritten' | tr -d ,)"

# ---- limits that other checks keep ----
stack=$(get tests/firmware/test_mcu.sh 'stack_budget=\([0-9]*\)')
fact tests/budgets "$(get tests/budgets ' all \([0-9]*\) test [0-9]')" 'budget of @ units'
fact tests/firmware/test_mcu.sh "$stack" 'at most @ bytes of stack'
kib=$(get src/manual.txt '[ ,]\([0-9]*\) in firmware')
[ "${kib:-0}" -gt 0 ] && [ $((kib * 1024)) -ge "${stack:-0}" ] ||
    fail "src/manual.txt: a stack of ${kib:-no} KiB in firmware is less than the limit in tests/firmware/test_mcu.sh"
fact "make shakespeare" "$(get Makefile '--budget \([0-9]*\)MB --steps')" 'Shakespeare in @ MB'
fact examples/shakespeare.txt "$(wc -c < examples/shakespeare.txt | awk '{ printf "%.1f\n", $1 / 1e6 }')" '@ MB of Shakespeare' optional

# ---- values measured by hand, in texts that cannot have markers: a message of the Makefile ----
fact "docs/benchmarks/features.tsv" "$(round "$(logged features 'the whole: gcc 12 -O2')")" 'gcc 12 compiles it in about @ s'
fact "docs/benchmarks/features.tsv" "$(round "$(logged features 'the whole with GCKPT_NO_FAST: gcc 12 -O2')")" \
    'about @ s with `?(GCKPT_)?NO_FAST' optional
seconds=$(get Makefile "echo 'compiling gradckpt.h, about \([0-9]*\) s")
same "seconds to compile in features.tsv and in the Makefile's message" \
    "$(round "$(logged features 'gradckpt.o: gcc 12 -O2')")" "$seconds"

# ---- the status on a GPU: docs/gpu.md and README.md must have the same sentence ----
status=$(get docs/gpu.md '\*\*Status on a GPU:\*\* \([^<]*\) <!-- status -->')
same "the status on a GPU in docs/gpu.md and README.md" "$status" \
    "$(get README.md '\*\*Status on a GPU:\*\* \([^<]*\) <!-- status -->')"
thousands() { awk -v x="$1" 'BEGIN { if (x != "") printf "%.0f000\n", x / 1000 }'; }
fact docs/benchmarks/gpu.tsv "$(logged gpu 'exact mode on the device: checks of test_cuda and cuda_*')" '\(@ checks, 0 failed\)'
fact docs/benchmarks/gpu.tsv "$(thousands "$(logged gpu 'GPT-2 124M bf16 fast, 32 rows: gradckpt')")" 'trains at @ tokens a second'
fact docs/benchmarks/gpu.tsv "$(thousands "$(logged gpu 'GPT-2 124M bf16 fast, 32 rows: PyTorch compiled')")" \
    'compiled PyTorch trains it at @'
other='(not|never) run on a device|no device has (run|measured)[^.]*|bits on a device are not|not confirmed on devices?'
grep -v '^docs/CHANGELOG' "$work/pages" | grep -oiE "$other" | while read -r text; do
    echo "figures: another status on a GPU than that of docs/gpu.md: \"$text\""
done > "$work/status"
[ ! -s "$work/status" ] || { cat "$work/status"; bad=1; }

# ---- markers ----
LC_ALL=C awk -F '\t' '
    function fault(text) { print "figures: " page ": " text; bad = 1 }
    function power(n,    p) { for (p = 1; n > 0; n--) p *= 10; for (; n < 0; n++) p /= 10; return p }
    # Returns the largest error of a number that is rounded to its shown digits; zeros at the end of an integer are rounded
    # digits as well, except the first two digits.
    function precision(shown,    digits, zeros) {
        if (match(shown, /e/))
            return precision(substr(shown, 1, RSTART - 1)) * 10 ^ substr(shown, RSTART + 1)
        if (match(shown, /\./))
            return 0.5 * power(RSTART - length(shown))
        sub(/^-/, "", shown)
        zeros = match(shown, /0+$/) ? RLENGTH : 0
        digits = length(shown)
        return 0.5 * power(zeros > digits - 2 ? (digits > 2 ? digits - 2 : 0) : zeros)
    }
    FILENAME ~ /\.tsv$/ {
        topic = FILENAME
        sub(/.*\//, "", topic)
        sub(/\.tsv$/, "", topic)
        topics[topic] = 1
        value[topic, $1] = $2
        unit[topic, $1] = $3
        next
    }
    {
        page = $1
        text = $2
        while (match(text, /[A-Za-z0-9%)*]<!-- [a-z]+: /)) {
            start = RSTART
            before = substr(text, 1, start)
            topic = substr(text, start + 6, RLENGTH - 8)
            text = substr(text, start + RLENGTH)
            end = index(text, " -->")
            name = substr(text, 1, end - 1)
            text = substr(text, end + 4)
            if (!((topic, name) in value)) {
                fault(topic in topics ? "docs/benchmarks/" topic ".tsv has no case \"" name "\"" : "there is no docs/benchmarks/" topic ".tsv")
                continue
            }
            before = substr(before, length(before) > 60 ? length(before) - 59 : 1)
            shown = ""
            while (match(before, /-?[0-9][0-9,]*(\.[0-9]+)?(e[-+]?[0-9]+)?/)) {
                shown = substr(before, RSTART, RLENGTH)
                before = substr(before, RSTART + RLENGTH)
            }
            gsub(/,/, "", shown)
            gsub(/[ *`]/, "", before)
            if (shown == "")
                fault("no number before the marker of \"" name "\"")
            else if ((value[topic, name] - shown) ^ 2 > (1.000001 * precision(shown)) ^ 2)
                fault("\"" shown "\", but " topic ": " name " is " value[topic, name])
            if (before ~ /^(ns|us|ms|s|%|bytes|KB|MB|GB|KiB|MiB|GiB)$/ && before != unit[topic, name])
                fault("\"" shown " " before "\", but " topic ": " name " is in " unit[topic, name])
        }
    }
    END { exit bad }' docs/benchmarks/*.tsv "$work/pages" || bad=1

# ---- the log docs/benchmarks.md is up to date, and is the only page that names processors and dates ----
LC_ALL=C awk -f tests/bench/log.awk docs/benchmarks/*.tsv > "$work/benchmarks.md" || bad=1
cmp -s "$work/benchmarks.md" docs/benchmarks.md || fail "docs/benchmarks.md is not what its files give: make benchmarks"
for page in $(pages); do
    dates='\b20[0-9][0-9]-[01][0-9]-[0-3][0-9]\b|'
    [ "$page" != docs/CHANGELOG.md ] || dates=
    grep -nE "$dates"'\b(EPYC|Xeon|Ryzen|Zen [0-9]|Core i[0-9])' "$page" | sed "s,^\([0-9]*\):.*,figures: $page:\1: a processor or a date: only docs/benchmarks.md has them,"
done > "$work/dated"
[ ! -s "$work/dated" ] || { cat "$work/dated"; bad=1; }

# ---- the first table of README.md has rows | text | BYTES MB | .. | `$G OPTIONS` |, with G="build/gpt .." in a line
# above ----
if [ "$1" = gpt ]; then
    grep '^|.*MB.*`\$G' README.md > "$work/rows"
    [ -s "$work/rows" ] || fail "README.md has no rows with MB and a command that begins with \$G"
    while IFS='|' read -r _ what quoted rest; do
        G=${2:-build}/$(get README.md 'G="build/\([^"]*\)"' | sed 's/--steps [0-9]*/--steps 1/')
        command=$(echo "$rest" | sed 's/.*`\(\$G[^`]*\)`.*/\1/')
        mb=$(eval "$command --json -" 2> /dev/null | sed -n 's/.*"bytes_measured":\([0-9]*\).*/\1/p' | awk '{ printf "%.1f\n", $1 / 1e6 }')
        same "README.md,$what" "$(echo "$quoted" | tr -dc '0-9.')" "$mb"
    done < "$work/rows"
fi
exit $bad
