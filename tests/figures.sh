#!/bin/sh
# Figures that stand in several places, in the README, the manual, docs/, the Makefile: they agree with each other and, where
# that can be counted here, with what they tell of. A line for each that does not, with what to run; the exit status is 1.
#
#     sh tests/figures.sh         what is text
#     sh tests/figures.sh gpt     and the bytes of the README's first table, by build/gpt; of DIR/gpt with a second word DIR
bad=0

# flat FILE: its text in one line, without the manual's stars
flat() { sed 's/^ \* *//' "$1" | tr -s '\n ' '  '; }

# tells FILE PATTERN: what stands between \( and \) of the pattern, the first time
tells()
{
    flat "$1" | grep -o -e "$(echo "$2" | sed 's/\\[()]//g')" | sed -n "1s~^$2\$~\1~p"
}

# words for numbers
number()
{
    i=0
    for word in zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen; do
        case $(echo "$1" | tr 'A-Z' 'a-z') in "$word") echo $i; return ;; esac
        i=$((i + 1))
    done
    echo "$1" | tr -d ,
}

# agree WHAT HOW FIGURE...: all are the same, and none is missing; HOW: what makes them so
agree()
{
    what=$1
    how=$2
    shift 2
    first=$(number "$1")
    for figure; do
        [ -n "$figure" ] && [ "$(number "$figure")" = "$first" ] && continue
        said=
        for each; do
            said="$said, ${each:-nothing}"
        done
        echo "figures: $what: ${said#, }: $how"
        bad=1
        return
    done
}

# rounds FIGURE LONGER: the longer figure has the first one's digits
rounds() { echo "$1 $2" | awk '{ n = index($1, "."); n = n ? length($1) - n : 0; printf "%." n "f\n", $2 }'; }

count() { ls "$@" 2> /dev/null | wc -l | tr -d ' '; }

# ---- versions ----
version=$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' src/api.h)
minor=${version%.*}
agree "the version" "src/api.h has it" "$version" "$(tells src/manual.txt 'gradckpt.h - v\([0-9.]*[0-9]\) -')" \
    "$(tells docs/CHANGELOG.md '# \([0-9.]*\): changes since')" "$(tells docs/building.md 'requires=gradckpt/\([0-9.]*\)')"
agree "the minor version" "src/api.h has it" "$minor" "$(tells docs/building.md 'find_package(gradckpt \([0-9.]*\) REQUIRED')" \
    "$(tells docs/building.md "version: '>=\([0-9.]*\)'")"
agree "the contract" "src/api.h has it" "$(tells src/api.h 'define GCKPT_CONTRACT \([0-9]*\)')" \
    "$(tells docs/CHANGELOG.md 'numeric contract is version \([0-9]*\)')"

# ---- counted ----
small=$(count examples/small/*.c examples/small/*.cpp)
agree "programs of make small" "examples/small, and digits.c with them" $((small + 1)) \
    "$(tells Makefile 'make small \([a-z]*\) small')" "$(tells docs/testing.md '| \([a-z]*\) small programs')"
agree "small programs" "examples/small" "$small" "$(tells README.md 'builds and runs \([a-z]*\) more programs')"
agree "lines of a small program" "tests/examples/test_small.sh" \
    "$(tells tests/examples/test_small.sh 'has fewer than \([0-9]*\) lines')" "$(tells README.md 'each under \([0-9]*\) lines')" \
    "$(tells docs/README.md 'programs below \([0-9]*\) lines')"
agree "scripts of make test" "SCRIPTS in the Makefile" "$(sed -n 's/^SCRIPTS = //p' Makefile | wc -w | tr -d ' ')" \
    "$(tells docs/testing.md 'the examples and \([a-z]*\) scripts')"
agree "exercises" "docs/exercises.md" "$(grep -c '^## ' docs/exercises.md)" "$(tells docs/exercises.md '\([A-Za-z]*\) questions with')" \
    "$(tells docs/README.md '\([a-z]*\) questions, with')"
agree "lessons of the course" "docs/course" "$(count docs/course/[0-9]*.md)" "$(tells README.md 'of \([a-z]*\) lessons')" \
    "$(tells docs/course/README.md '\([A-Za-z]*\) lessons of')" "$(tells docs/README.md '\([a-z]*\) lessons with')"
agree "boards" "tests/firmware/test_mcu.sh" "$(tells tests/firmware/test_mcu.sh 'boards=${BOARDS:-\([^}]*\)}' | wc -w | tr -d ' ')" \
    "$(tells README.md 'on \([a-z]*\) emulated microcontrollers')" "$(tells README.md 'on \([a-z]*\) microcontroller boards')" \
    "$(tells docs/device.md 'firmware for \([a-z]*\) boards')" "$(tells docs/testing.md 'firmware on \([a-z]*\) boards')"
agree "what nvcc compiles for" "CUDA_WANTED in the Makefile" "$(sed -n 's/^CUDA_WANTED = //p' Makefile)" \
    "$(tells README.md 'compiles it for \(sm_[0-9]*, sm_[0-9]* and sm_[0-9]*\)' | tr -dc '0-9 ' | tr -s ' ')"
agree "images of digits" "examples/digits.h" "$(tells examples/digits.h 'enum { DIGITS = \([0-9]*\)')" \
    "$(tells examples/digits.h 'digits.h - \([0-9,]*\) handwritten')"
agree "lines of backend.h, to tens" "tests/backend.h" "$(wc -l < tests/backend.h | awk '{ print int($1 / 10 + 0.5) * 10 }')" \
    "$(tells docs/architecture.md 'is one of \([0-9]*\) lines whose memory')"
agree "lines of convolution.h, to tens" "examples/convolution.h" \
    "$(wc -l < examples/convolution.h | awk '{ print int($1 / 10 + 0.5) * 10 }')" "$(tells docs/user-ops.md 'in \([0-9]*\) lines to')"
agree "the MB of Shakespeare" "examples/shakespeare.txt" "$(wc -c < examples/shakespeare.txt | awk '{ printf "%.1f\n", $1 / 1e6 }')" \
    "$(tells README.md 'trains it on \([0-9.]*\) MB of Shakespeare')" "$(tells docs/learning.md 'tiny Shakespeare text (\([0-9.]*\) MB')"

# ---- limits that are checked elsewhere ----
agree "what make check may take" "all in tests/budgets" "$(tells tests/budgets 'all \([0-9]*\) test [0-9]')" \
    "$(tells docs/testing.md 'their sum is the budget of `.ci/run`, \([0-9]*\) units')"
agree "the stack of a job of firmware" "tests/firmware/test_mcu.sh" "$(tells tests/firmware/test_mcu.sh 'stack_budget=\([0-9]*\)')" \
    "$(tells docs/device.md 'takes more than \([0-9,]*\) bytes')"
stack=$(tells src/manual.txt ', \([0-9]*\) KiB in firmware')
[ "${stack:-0}" -gt 0 ] && [ $((stack * 1024)) -ge "$(tells tests/firmware/test_mcu.sh 'stack_budget=\([0-9]*\)')" ] ||
    { echo "figures: the manual's stack of firmware, ${stack:-none} KiB, is less than tests/firmware/test_mcu.sh allows"; bad=1; }
agree "the MB of make shakespeare" "the Makefile" "$(tells Makefile '--budget \([0-9]*\)MB --steps')" \
    "$(tells Makefile 'on Shakespeare, in \([0-9]*\) MB')" "$(tells README.md 'of Shakespeare in \([0-9]*\) MB')" \
    "$(tells docs/learning.md '## In ten minutes, in \([0-9]*\) MB')"
agree "the CMake that is asked for" "examples/packaging/program" \
    "$(tells examples/packaging/program/CMakeLists.txt 'cmake_minimum_required(VERSION \([0-9.]*\))')" \
    "$(tells docs/building.md 'CMake \([0-9.]*\) or newer')"

# ---- the status on a GPU: one line, that of docs/gpu.md, with figures of docs/benchmarks/gpu.tsv ----
status=$(tells docs/gpu.md '\*\*Status on a GPU:\*\* \([^<]*\) <!-- status -->')
agree "the status on a GPU" "docs/gpu.md has the line" "$status" "$(tells README.md '\*\*Status on a GPU:\*\* \([^<]*\) <!-- status -->')"
gpu() { awk -F '\t' -v name="$1" '$1 == name { print $2 }' docs/benchmarks/gpu.tsv; }
thousands() { echo "$1" | tr -d , | awk '{ printf "%.0f,000\n", $1 / 1000 }'; }
status_has() { tells docs/gpu.md "Status on a GPU:[^<]*[ (]$1"; }
agree "checks of exact mode on the H200" "docs/benchmarks/gpu.tsv" "$(gpu 'exact mode on the device: checks of test_cuda and cuda_*')" \
    "$(status_has '\([0-9,]*\) checks')"
agree "tokens/s of fast mode on the H200" "docs/benchmarks/gpu.tsv" "$(status_has '\([0-9,]*\) tokens a second')" \
    "$(thousands "$(gpu 'GPT-2 124M bf16 fast, 32 rows: gradckpt')")"
agree "tokens/s of compiled PyTorch on the H200" "docs/benchmarks/gpu.tsv" "$(status_has 'PyTorch trains it at \([0-9,]*\)[ .]')" \
    "$(thousands "$(gpu 'GPT-2 124M bf16 fast, 32 rows: PyTorch compiled')")"
for page in README.md docs/*.md; do
    [ $page = docs/CHANGELOG.md ] || ! flat $page |
        grep -oiE '(not|never) run on a device|no device has (run|measured)[^.]*|bits on a device are not|not confirmed on devices?' ||
        { echo "figures: $page: another status on a GPU than docs/gpu.md's line"; bad=1; }
done

# ---- measured, and quoted twice ----
agree "seconds to compile" "measure, at -O2" "$(tells README.md 'gcc 12 some \([0-9]*\) seconds')" "$(tells src/manual.txt 'takes gcc 12 some \([0-9]*\) s')"
agree "seconds to compile without kernels" "measure, with GCKPT_NO_FAST" "$(tells README.md 'server, \([0-9]*\) with .GCKPT_NO_FAST')" \
    "$(tells src/manual.txt 'with NO_FAST \([0-9]*\) s at')"
loss=$(tells docs/learning.md 'and of \([0-9.]*[0-9]\) at the end')
agree "the loss of make shakespeare" "make shakespeare" "$(tells README.md 'a validation loss of \([0-9.]*[0-9]\)')" "$(rounds 0.00 "$loss")"
agree "Shakespeare, all windows at once" "make shakespeare without --micro-batch and --budget" \
    "$(tells README.md 'of Shakespeare in [0-9]* MB (\([0-9]*\) MB')" "$(rounds 0 "$(tells docs/learning.md 'at once take \([0-9.]*\) MB')")"
peft=$(tells docs/finetuning.md '| PyTorch + peft | | \([0-9,]*\) MB')
agree "PyTorch + peft, MB" "tests/bench/finetune.py" "$(tells README.md 'peft take in \([0-9,]*\) MB')" "$peft"
lora=$(grep '^| LoRA, int8 weights, budget' docs/finetuning.md | head -n 1)
agree "LoRA of SmolLM2, MB resident" "tests/bench/finetune.py" "$(tells README.md 'as int8, \([0-9]*\) MB resident')" \
    "$(echo "$lora" | awk -F '|' '{ sub(/ MB.*/, "", $4); sub(/^ */, "", $4); print $4 }')"
agree "LoRA of SmolLM2, of PyTorch's time" "tests/bench/finetune.py" "$(tells README.md 'and \([0-9.]*\) of the time that PyTorch')" \
    "$(echo "$lora" | awk -F '|' '{ gsub(/ /, "", $7); print $7 }')"
agree "the least of SmolLM2, MB" "tests/bench/finetune.py" "$(tells README.md '(\([0-9]*\) MB planned at the least')" \
    "$(grep '^| smollm2-135m | 512' docs/finetuning.md | head -n 1 | awk -F '|' '{ sub(/ MB.*/, "", $6); sub(/^ */, "", $6); print $6 }')"

cell()                  # cell HEADING ROW COLUMN: of the table of docs/device.md that begins with the heading
{
    awk -F '|' -v head="| $1 |" -v row=" $2 " -v n="$3" 'index($0, head) == 1 { on = 1 } /^$/ { on = 0 }
        on && $2 == row { gsub(/ /, "", $n); print $n }' docs/device.md
}
agree "keyword's RAM" "make mcu" "$(cell job keyword 4)" "$(tells docs/device.md '\*\*Figures\*\*: \([0-9,]*\) bytes of RAM')"
agree "keyword's stack" "make mcu" "$(cell job keyword 5)" "$(tells docs/device.md 'bytes of RAM, \([0-9,]*\) of them stack')"
agree "microgpt's RAM" "make mcu" "$(cell job microgpt 4)" "$(tells docs/device.md '| about 100 KB | \([0-9,]*\) bytes')"
agree "microgpt's flash" "make mcu" "$(cell 'bytes of flash' microgpt 4)" \
    "$(tells docs/device.md 'names, C library | not said | \([0-9,]*\) bytes')"
agree "microgpt's instructions" "make mcu" "$(cell 'instructions a step' microgpt 4)" \
    "$(tells docs/device.md '| instructions a step | not said | \([0-9,]*\) |')"

least()                 # least STORAGE: of Llama-3.2-1B's shape, GB
{
    sed -n '/^| Llama-3.2-1B, weights as/,/^$/p' docs/finetuning.md | awk -F '|' -v s=" $1 " '$2 == s { printf "%.2f\n", $4 / 1000 }'
}
agree "the least of Llama-3.2-1B's shape as int8, GB" "make lora-memory" "$(tells README.md 'takes \([0-9.]*\) GB at least as int8')" "$(least int8)"
agree "the least of Llama-3.2-1B's shape as int4, GB" "make lora-memory" "$(tells README.md 'and \([0-9.]*\) GB as int4')" "$(least int4)"

# ---- what a program says ----
if [ "$1" = gpt ]; then
    grep '^| .*MB.*`\$G' README.md | while IFS='|' read -r _ what quoted _ command _; do
        G=${2:-build}/$(tells README.md 'G="build/\([^"]*\)"' | sed 's/--steps [0-9]*/--steps 1/')
        mb=$(eval "$(echo "$command" | tr -d '`')" --json - 2> /dev/null | sed -n 's/.*"bytes_measured":\([0-9]*\).*/\1/p' | awk '{ printf "%.1f\n", $1 / 1e6 }')
        bad=0
        agree "README, $what" "the line above the table" "$(echo "$quoted" | tr -dc '0-9.')" "$mb"
        [ "$bad" -eq 0 ] || exit 1
    done || bad=1
fi
exit $bad
