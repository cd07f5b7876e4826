#!/bin/sh
# Runs lessons, exercises and submissions; make calls it:
#
#     course.sh prepare            extracts the exercises of the pages into build/class
#     course.sh lesson N           compiles and runs the program of lesson N
#     course.sh starters FOLDER    writes exercise-N.c for each exercise, unless the file exists
#     course.sh exercise N FILE    compiles and runs FILE; prints whether it is right, or the differences
#     course.sh grade FOLDER       checks FOLDER/STUDENT/exercise-N.c; writes a table, and a log for each student
#
# LINKED: command that compiles and links a program of gradckpt.h. LIMIT, MEGABYTES: limits of a program, 10 seconds and
# 1024 by default; 0 MEGABYTES is no limit. ONLY: exercises to grade, "3.1 3.2"; by default those with a file. AT: folder
# for the results. Submissions run with your rights: run untrusted ones in a container, or as a separate user.
at=${AT:-build/class}
seconds=${LIMIT:-10}
megabytes=${MEGABYTES:-1024}
tools=docs/course/tools
: "${LINKED:=${CC:-cc} -O0 -std=gnu99 -fopenmp -I. -DGRADCKPT_IMPLEMENTED build/gradckpt.o}"
export OMP_NUM_THREADS=1 # as many processors as there are change no number, only memory and time

prepare()
{
    mkdir -p "$at/starters" "$at/grades" "$at/tries"
    rm -f "$at"/[0-9]*.text "$at"/starters/exercise-*.c
    awk -v to="$at" -f "$tools/pages.awk" docs/course/[0-9]-*.md docs/exercises.md docs/course/scratch/exercises.md > "$at/list.new" &&
        ${CC:-cc} -O1 -o "$at/run" "$tools/run.c" && mv "$at/list.new" "$at/list"
}

known()                 # known NUMBER
{
    grep -q "^$1 " "$at/list" || {
        echo "there is no exercise $1; there are: $(cut -d ' ' -f 1 "$at/list" | tr '\n' ' ')" >&2
        exit 2
    }
}

# tried SOURCE PROGRAM VALUES..: compiles SOURCE with macros of these values; the compiler's messages are in PROGRAM.says
tried()
{
    source=$1
    program=$2
    shift 2
    for value; do
        shift
        set -- "$@" "-D$value"
    done
    (
        ulimit -v 2097152 2> /dev/null # a compiler may begin others, so run cannot limit it
        exec "$at/run" 60 0 256 . "$program.says" $LINKED -Idocs/course -Iexamples "$@" "$source" -o "$program" -lm
    ) > "$program.ended"
}

# expected NUMBER VALUES..: prints the name of the file with the answer's output
expected()
{
    number=$1
    shift
    [ $# -gt 0 ] || { echo "$at/$number.text"; return; }
    text=$at/$number.with.text
    if [ ! -s "$text" ]; then
        made=$at/tries/answer.$$
        mkdir -p "$made"
        {
            tried "$at/$number.c" "$made/answer" "$@" &&
                "$at/run" 60 0 256 "$made" "$made/text" "$PWD/$made/answer" > "$made/ended"
        } || {
            cat "$made/answer.says" >&2
            echo "the answer of exercise $number fails with $*" >&2
            exit 2
        }
        mv "$made/text" "$text"
        rm -rf "$made"
    fi
    echo "$text"
}

printed()
{
    [ -s "$1" ] || return
    head -n 30 "$1" | cut -c 1-200 | LC_ALL=C tr -cd '\t\n\40-\176\200-\377' | sed 's/^/    /'
}

# judge NUMBER FILE: prints messages; the last line is one of: pass, not begun, does not compile, time out, crashed,
# too much output, wrong
judge()
{
    folder=$at/tries/try.$$
    rm -rf "$folder"
    mkdir -p "$folder/here"
    tr -d '\r' < "$2" > "$folder/exercise-$1.c"
    decided "$1" "$folder"
    rm -rf "$folder"
}
decided()               # decided NUMBER FOLDER
{
    number=$1
    try=$2
    theirs=$try/exercise-$number.c
    with=''
    if cmp -s "$theirs" "$at/starters/exercise-$number.c"; then
        echo "it is the starter as it was: write your part where it says so"
        echo "not begun"
        return
    fi
    values=$(cat "$at/$number.with")
    for others in '' ${values:+"$values"}; do
        [ -z "$others" ] || with="with $others: "
        if ! tried "$theirs" "$try/program" $others; then
            if [ "$others" ] && [ "$(cat "$try/program.ended")" != time ]; then
                echo "${with}it does not compile; the starter's #ifndef, #define, #endif let other values be tried"
            elif [ "$(cat "$try/program.ended")" = time ]; then
                echo "compiling it takes more than a minute"
            else
                echo "it does not compile:"
            fi
            sed "s|$try/||g" "$try/program.says" > "$try/says"
            printed "$try/says"
            echo "does not compile"
            return
        fi
        sed "s|$try/||g" "$try/program.says" > "$try/says"
        [ "$others" ] || printed "$try/says"
        "$at/run" "$seconds" "$megabytes" 64 "$try/here" "$try/text" "$PWD/$try/program" > "$try/ended"
        case $(cat "$try/ended") in
        time) verdict="time out" why="it had not ended after $seconds seconds, or three times as many by the clock" ;;
        output) verdict="too much output" why="it printed more than 64 KB and was ended" ;;
        signal*SEGV) verdict=crashed why="it crashed: a read or write where it has no memory (NULL? behind an array?)" ;;
        signal*FPE) verdict=crashed why="it crashed: an integer was divided by 0" ;;
        signal*) verdict=crashed why="it crashed: $(cat "$try/ended")" ;;
        *) verdict='' ;;
        esac
        if [ -z "$verdict" ]; then
            text=$(expected "$number" $others) || exit 2
            awk -v words="$(cat "$at/$number.words")" -f "$tools/compare.awk" "$text" "$try/text" > "$try/why" ||
                { verdict=wrong why=$(cat "$try/why"); }
        fi
        case "$verdict $(cat "$try/ended")" in
        wrong\ status*) why="$why (and main returned $(sed 's/status //' "$try/ended"))" ;;
        esac
        if [ "$verdict" ]; then
            echo "$with$why"
            [ ! -s "$try/text" ] || echo "it printed:"
            printed "$try/text"
            echo "$verdict"
            return
        fi
        [ "$others" ] || { echo "it printed:"; printed "$try/text"; }
    done
    [ -z "$with" ] || echo "${with}right, too"
    echo pass
}

lesson()
{
    for page in docs/course/"$1"-*.md; do
        [ -f "$page" ] || {
            echo "there is no lesson $1; lessons are" docs/course/[0-9]-*.md >&2
            exit 2
        }
        name=${page#docs/course/*-}
        program=$at/tries/${name%.md}
        tried "docs/course/${name%.md}.c" "$program" || { cat "$program.says"; exit 1; }
        head -n 1 "$page" | sed 's/# /lesson /'
        "$program" || exit 1
        echo "the page: $page; its program: docs/course/${name%.md}.c; its exercises: make exercise-$1.1, exercise-$1.2"
    done
}

starters()
{
    mkdir -p "$1" || exit 1
    for starter in "$at"/starters/exercise-*.c; do
        file=$1/${starter##*/}
        [ ! -e "$file" ] || { echo "$file is there already and stays"; continue; }
        cp "$starter" "$file" || exit 1
    done
    echo "$(ls "$1" | grep -c '^exercise-.*\.c$') exercises are in $1: edit one, then for example: make exercise-3.1$2"
}

exercise()
{
    known "$1"
    [ -f "$2" ] || {
        echo "there is no $2: make starters writes it; FILE=.. names another" >&2
        exit 2
    }
    judge "$1" "$2" > "$at/tries/said.$$"
    verdict=$(tail -n 1 "$at/tries/said.$$")
    sed '$d' "$at/tries/said.$$"
    rm -f "$at/tries/said.$$"
    case $verdict in
    pass) echo "exercise $1: right" ;;
    wrong) echo "exercise $1: not yet right" ;;
    *) echo "exercise $1: $verdict" ;;
    esac
    [ "$verdict" = pass ]
}

# handed_in STUDENT NUMBER: prints the file's name, or nothing; accepts a file in a subfolder if it is the only one
handed_in()
{
    file=$1/exercise-$2.c
    [ -f "$file" ] || file=$(find "$1" -type f -name "exercise-$2.c" | awk '{ s = $0 } END { if (NR == 1) print s }')
    [ -n "$file" ] && [ -f "$file" ] && [ ! -L "$file" ] && echo "$file"
}

grade()
{
    folder=${1%/}
    numbers=$ONLY
    [ -d "$folder" ] || {
        echo "there is no folder $folder: make grade DIR=FOLDER, with a folder for each student in it" >&2
        exit 2
    }
    if [ -z "$numbers" ]; then
        for number in $(cut -d ' ' -f 1 "$at/list"); do
            [ -z "$(find "$folder" -mindepth 2 -name "exercise-$number.c" | head -n 1)" ] || numbers="$numbers $number"
        done
    fi
    for number in $numbers; do known "$number"; done
    [ -n "$numbers" ] || { echo "no folder in $folder has an exercise-N.c" >&2; exit 2; }
    rm -f "$at"/grades/*
    for student in "$folder"/*/; do
        student=${student%/}
        [ ! -L "$student" ] || continue
        name=${student##*/}
        log=$at/grades/$name.log
        passed=0
        of=0
        {
            echo "$name"
            find "$student" -type f ! -name 'exercise-*.c' | sed "s|^|not looked at: |"
        } > "$log"
        printf '%s\t' "$name"
        for number in $numbers; do
            of=$((of + 1))
            printf '\n-- exercise %s\n' "$number" >> "$log"
            if handed=$(handed_in "$student" "$number"); then
                judge "$number" "$handed" > "$at/tries/said.$$"
                verdict=$(tail -n 1 "$at/tries/said.$$")
                { echo "$handed"; cat "$at/tries/said.$$"; } >> "$log"
                rm -f "$at/tries/said.$$"
            else
                verdict=missing
                echo missing >> "$log"
            fi
            [ "$verdict" != pass ] || passed=$((passed + 1))
            printf '%s\t' "$verdict"
        done
        printf '%s\n' "$passed of $of"
    done > "$at/grades.tsv"
    table $numbers < "$at/grades.tsv"
    echo "the same for a spreadsheet: $at/grades.csv; what was said of each: $at/grades/STUDENT.log"
}
table()                 # table NUMBERS..: writes lines with tabs as Markdown and as CSV
{
    awk -v numbers="$*" -v csv="$at/grades.csv" -F '\t' '
        function quoted(s) # and no formula
        {
            gsub(/"/, "\"\"", s)
            return s ~ /^[-=+@]/ ? "\"\047" s "\"" : s ~ /[",]/ ? "\"" s "\"" : s
        }
        BEGIN {
            n = split(numbers, number, " ")
            head = "student"
            line = "| student |"
            rule = "|---|"
            for (i = 1; i <= n; i++) {
                head = head "," number[i]
                line = line " " number[i] " |"
                rule = rule "---|"
            }
            print head ",passed" > csv
            print line " passed |\n" rule "---|"
        }
        {
            row = quoted($1)
            for (i = 2; i <= NF; i++)
                row = row "," $i
            print row > csv
            gsub(/\|/, "\\|")
            gsub(/\t/, " | ")
            print "| " $0 " |"
        }' | tee "$at/grades.md"
}

case $1 in
prepare | lesson | starters | exercise | grade) "$@" ;;
*) sed -n '2,/^at=/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
