#!/bin/sh
# Checks src/ (or src/cuda/) as text: sh tests/layout/layout.sh DIR [GENERATED]. Prints a line for each violation; then the
# exit status is 1. The rules:
#   - A file has at most as many lines as its budget in MANIFEST, and only a .h may have more than 450. The sum of the
#     budgets is at most the number in MANIFEST's last line.
#   - A function has at most 60 lines and 6 parameters. MANIFEST's last line says how many functions may exceed each
#     number; none has more than 70 lines.
#   - A file includes only headers of its folder, layer headers (folder/folder.h) that DEPS allows its folder, and
#     base/test_hooks.h. A folder uses only folders above it in MANIFEST.
#   - api.h declares at most as many public functions as MANIFEST's last line but one says.
#   - A layer header declares at most as many functions as DEPS says.
#   - Only a public function's own layer and higher layers call it.
#   - A line has at most 100 columns, and no tab.
#   - Only whole files (MANIFEST) and headers test whether an optional part is present (GCKPT_NO_FILES, ..).
#   - gradckpt_cuda.cu uses private names of the layer headers in its line of DEPS only.
#   - GENERATED is what `sh src/header.sh DIR` prints, and that reports no error (a file missing, listed twice, ...).
dir=$1
generated=$(mktemp)
violations=$(mktemp)
trap 'rm -f "$generated" "$violations"' EXIT
{
    sh src/header.sh "$dir" 2>&1 > "$generated"
    [ -z "$2" ] || cmp -s "$generated" "$2" || echo "$2 is not what $dir/ gives: change $dir/, then make header"
    files=$(find "$dir"/* -type d -exec test -f '{}/MANIFEST' ';' -prune -o -type f ! -name '*.sh' ! -name MANIFEST ! -name DEPS -print | sort)
    [ ! -f "$dir/DEPS" ] || files="$dir/DEPS gradckpt_cuda.cu $files" # src/cuda has no DEPS: a file may use those before it
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
    function is_layer_header(file) { return file ~ /\.h$/ && file !~ /\/(internal|test_hooks|separate_tu)\.h$/ } # and the headers that it includes
    # A file belongs to the layer under which MANIFEST lists it; its folder is that layer, or a module.
    /^=== / && NF == 2 {
        file = $2
        lines[file] = 0
        part = file
        sub(/\/.*/, "", part)
        if (file in layer_of)
            part = layer_of[file]
        next
    }
    { lines[file]++ }
    file ~ /\.[ch]$|\.txt$/ && (length($0) > 100 || /\t/) { print file ":" lines[file] ": more than 100 columns, or a tab" }
    file ~ /\.c$/ && /GCKPTI_WITH_/ { print file ":" lines[file] ": GCKPTI_WITH_.. is for headers" }
    file == "MANIFEST" && /^# Public functions: at most/ { public_most = $6 + 0; next }
    file == "MANIFEST" && /^# All together/ { sum = $6; long = $9; broad = $15; next }
    (file == "MANIFEST" || file == "DEPS") && (/^#/ || NF == 0) { next }
    file == "MANIFEST" && $1 ~ /\/$/ { sub(/\/$/, "", $1); layer[$1] = ++layers; heading = $1; next }
    file == "MANIFEST" {
        budget[$1] = $2
        if (index($1, "/"))
            layer_of[$1] = heading
        all += $2
        for (i = 3; i <= NF; i++)
            condition[$1] = condition[$1] (i > 3 ? " " : "") $i
        next
    }
    file == "DEPS" {
        allowed[$1] = $2
        for (i = 3; i <= NF; i++) {
            may[$1, $i] = 1
            if (!($i in layer) || ($1 in layer && layer[$i] >= layer[$1] && $1 != "kernels"))
                print "DEPS: " $1 " may not use " $i ", which is not above it in MANIFEST"
        }
        next
    }
    file == "gradckpt_cuda.cu" { cuda = cuda "\n" $0; next }
    /^#include "/ && file != "api.h" && $2 != "\"num/isa_end.h\"" && (file !~ /^(begin\.cuh|common\/warp\.cu)$/ || $2 != "\"gradckpt.h\"") && $2 !~ /\.c"$/ { # kernels/all.c includes .c files
        split($2, at, "[\"/]")
        to = (at[2] "/" at[3]) in layer_of ? layer_of[at[2] "/" at[3]] : at[2]
        if (to != part && at[3] != at[2] ".h" && at[3] !~ /^(isa|plain_begin|plain_end|loops|rows|cpu|kernels)\.h$/ && $2 != "\"base/test_hooks.h\"" && $2 != "\"api.h\"")
            print file ":" lines[file] ": " $2 " is not a layer header"
        else if (to != part && $2 != "\"api.h\"" && !((part, to) in may))
            print file ":" lines[file] ": " part " may not use " to " (DEPS)"
    }
    file ~ /\.c$/ && (/GCKPTI_WITH_/ || (/^# *(el)?if.*GCKPT_NO_/ && !/GCKPT_NO_TEXT/)) && $0 != condition[file] {
        print file ":" lines[file] ": tests whether an optional part is present; only whole files (MANIFEST) and headers may"
    }
    file ~ /(^|\/)api\.h$/ && /^GCKPT_API / { public++ }
    /^(GCKPTI_[A-Z]+ )?GCKPTI_FN / && is_layer_header(file) { declarations[part]++ }
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
            print file ":" begun ": a function of " size " lines; 70 are allowed"
        begun = 0
    }
    file ~ /\// {                               # names: the layer headers that have them; where public functions are defined and used
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
            if (is_layer_header(file))
                header_of[name] = header_of[name] " " part
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
                print f " may have " budget[f] " lines (MANIFEST); 450 are allowed"
        }
        if (all > sum)
            print "the budgets of MANIFEST are " all " lines, " sum " are allowed"
        if (longer > long)
            print longer " functions have more than 60 lines, " long " are allowed"
        if (broader > broad)
            print broader " functions have more than 6 parameters, " broad " are allowed"
        if (public > public_most)
            print "api.h declares " public " public functions, " public_most " are allowed"
        for (f in declarations)
            if (declarations[f] > allowed[f])
                print "the layer header of " f " declares " declarations[f] " functions, DEPS allows " allowed[f]
        for (name in home) {
            n = split(used[name], callers, " ")
            for (i = 1; i <= n; i++)
                if (layer[callers[i]] < layer[home[name]] && !(name in reported)) {
                    print callers[i] " calls " name ", which is defined in the higher layer " home[name]
                    reported[name] = 1
                }
        }
        while (match(cuda, /gckpti_[a-z0-9_]+/)) {
            name = substr(cuda, RSTART, RLENGTH)
            cuda = substr(cuda, RSTART + RLENGTH)
            if (!(name in header_of) || name in reported)
                continue
            n = split(header_of[name], of, " ")
            fits = 0
            for (i = 1; i <= n; i++)
                fits = fits || (("gradckpt_cuda.cu", of[i]) in may)
            if (!fits)
                print "gradckpt_cuda.cu uses " name " of" header_of[name] ", which DEPS does not allow"
            reported[name] = 1
        }
    }'
} > "$violations"
sort -u "$violations"
[ ! -s "$violations" ]
