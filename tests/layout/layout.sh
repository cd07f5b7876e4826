#!/bin/sh
# What must hold of src/ (src/cuda/) as text: sh tests/layout/layout.sh DIR [GENERATED]. A line for each thing that does not,
# and status 1.
#   - a file keeps to its budget of lines (MANIFEST), and none but a .h to more than 450; all of them to the sum in MANIFEST's last line
#   - a function has at most 60 lines, but for as many as MANIFEST's last line says, which have at most 70; at most 6 parameters,
#     but for as many as it says, too
#   - a file includes only its folder's headers, doors (folder/folder.h) that its folder may use (DEPS), and base/test_hooks.h;
#     a folder uses only folders that stand above it in MANIFEST
#   - a door declares no more functions than DEPS says
#   - a public function is called only from its own floor and those above it
#   - a line has at most 100 columns, and no tab
#   - what may be left out (GCKPT_NO_FILES, ..) is asked for at files as a whole (MANIFEST) and in headers, nowhere else
#   - gradckpt_cuda.cu uses private names of the doors of its line only
#   - GENERATED is what `sh src/header.sh DIR` puts together, and nothing is wrong with that (missing, twice, ...)
dir=$1
made=$(mktemp)
says=$(mktemp)
trap 'rm -f "$made" "$says"' EXIT
{
    sh src/header.sh "$dir" 2>&1 > "$made"
    [ -z "$2" ] || cmp -s "$made" "$2" || echo "$2 is not what $dir/ gives: change $dir/, then make header"
    files=$(find "$dir"/* -type d -exec test -f '{}/MANIFEST' ';' -prune -o -type f ! -name '*.sh' ! -name MANIFEST ! -name DEPS -print | sort)
    [ ! -f "$dir/DEPS" ] || files="$dir/DEPS gradckpt_cuda.cu $files" # src/cuda has none: each file may use those before it
    for file in "$dir/MANIFEST" $files; do
        echo "=== ${file#"$dir"/}"
        cat "$file"
    done | awk '
    function is_code(file) { return file ~ /\.(c|cu|cuh)$/ }
    function parameters(head,  i, c, deep, n) { # of the last parentheses of a function'"'"'s head: commas, and 1
        for (i = length(head); i > 0; i--) {
            c = substr(head, i, 1)
            deep += c == ")"
            deep -= c == "("
            n += c == "," && deep == 1
            if (c == "(" && deep == 0)
                break
        }
        return n + 1
    }
    function is_door(file) { return file ~ /\.h$/ && file !~ /\/(internal|test_hooks|separate_tu)\.h$/ } # and what it includes
    /^=== / && NF == 2 { file = $2; lines[file] = 0; part = file; sub(/\/.*/, "", part); next }
    { lines[file]++ }
    file ~ /\.[ch]$|\.txt$/ && (length($0) > 100 || /\t/) { print file ":" lines[file] ": more than 100 columns, or a tab" }
    file ~ /\.c$/ && /GCKPTI_WITH_/ { print file ":" lines[file] ": GCKPTI_WITH_.. is for headers" }
    file == "MANIFEST" && /^# All together/ { sum = $6; long = $9; broad = $15; next }
    (file == "MANIFEST" || file == "DEPS") && (/^#/ || NF == 0) { next }
    file == "MANIFEST" && $1 ~ /\/$/ { sub(/\/$/, "", $1); floor[$1] = ++floors; next }
    file == "MANIFEST" {
        budget[$1] = $2
        all += $2
        for (i = 3; i <= NF; i++)
            stands[$1] = stands[$1] (i > 3 ? " " : "") $i
        next
    }
    file == "DEPS" {
        declared[$1] = $2
        for (i = 3; i <= NF; i++) {
            may[$1, $i] = 1
            if (!($i in floor) || ($1 in floor && floor[$i] >= floor[$1] && $1 != "kernels"))
                print "DEPS: " $1 " may not use " $i ", which does not stand above it in MANIFEST"
        }
        next
    }
    file == "gradckpt_cuda.cu" { cuda = cuda "\n" $0; next }
    /^#include "/ && (file != "begin.cuh" || $2 != "\"gradckpt.h\"") {
        split($2, at, "[\"/]")
        to = at[2]
        if (to != part && at[3] != to ".h" && $2 != "\"base/test_hooks.h\"" && $2 != "\"api.h\"")
            print file ":" lines[file] ": " $2 " is not a door"
        else if (to != part && $2 != "\"api.h\"" && !((part, to) in may))
            print file ":" lines[file] ": " part " may not use " to " (DEPS)"
    }
    file ~ /\.c$/ && (/GCKPTI_WITH_/ || (/^# *(el)?if.*GCKPT_NO_/ && !/GCKPT_NO_TEXT/)) && $0 != stands[file] {
        print file ":" lines[file] ": asks for a part that may be left out; only whole files (MANIFEST) and headers do"
    }
    /^(GCKPTI_[A-Z]+ )?GCKPTI_FN / && is_door(file) { doors[part]++ }
    is_code(file) && /^[A-Za-z_].*\(/ { head = "" }
    is_code(file) { head = head $0 }
    is_code(file) && $0 == "{" {
        begun = lines[file]
        broader += parameters(head) > 6
    }
    is_code(file) && $0 == "}" && begun {
        size = lines[file] - begun + 1
        longer += size > 60
        if (size > 70)
            print file ":" begun ": a function of " size " lines; 70 are possible"
        begun = 0
    }
    file ~ /\// {                               # names: where doors have them, where public functions stand and are used
        text = $0
        gsub(/"([^"\\]|\\.)*"/, "", text)
        gsub(/\/\*.*\*\//, "", text)
        if (text ~ /^ \*|^\/\*/)
            next
        body = text ~ /^GCKPT_API / && text !~ /;/
        first = 1
        gsub(/gckpt_result\(/, "(", text)
        while (match(text, /gckpti?_[A-Za-z0-9_]+|GCKPTI_[A-Z0-9_]+/)) {
            name = substr(text, RSTART, RLENGTH)
            called = substr(text, RSTART + RLENGTH, 1) == "("
            text = substr(text, RSTART + RLENGTH)
            if (is_door(file))
                door[name] = door[name] " " part
            if (name ~ /^gckpt_/ && called && body && first)
                home[name] = part
            else if (name ~ /^gckpt_/ && called)
                used[name] = used[name] " " part
            first = first && !called
        }
    }
    END {
        for (f in lines) {
            if (f in budget && lines[f] > budget[f])
                print f " has " lines[f] " lines, its budget is " budget[f] " (MANIFEST)"
            if (f in budget && budget[f] > 450 && is_code(f))
                print f " may have " budget[f] " lines (MANIFEST); 450 are possible"
        }
        if (all > sum)
            print "the budgets of MANIFEST are " all " lines, " sum " are possible"
        if (longer > long)
            print longer " functions have more than 60 lines, " long " are possible"
        if (broader > broad)
            print broader " functions have more than 6 parameters, " broad " are possible"
        for (f in doors)
            if (doors[f] > declared[f])
                print "the door of " f " declares " doors[f] " functions, DEPS lets it " declared[f]
        for (name in home) {
            n = split(used[name], by, " ")
            for (i = 1; i <= n; i++)
                if (floor[by[i]] < floor[home[name]] && !(name in said)) {
                    print by[i] " calls " name ", which stands on floor " home[name]
                    said[name] = 1
                }
        }
        while (match(cuda, /gckpti_[a-z0-9_]+/)) {
            name = substr(cuda, RSTART, RLENGTH)
            cuda = substr(cuda, RSTART + RLENGTH)
            if (!(name in door) || name in said)
                continue
            n = split(door[name], of, " ")
            fits = 0
            for (i = 1; i <= n; i++)
                fits = fits || (("gradckpt_cuda.cu", of[i]) in may)
            if (!fits)
                print "gradckpt_cuda.cu uses " name " of" door[name] ", which DEPS does not let it"
            said[name] = 1
        }
    }'
} > "$says"
sort -u "$says"
[ ! -s "$says" ]
