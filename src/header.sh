#!/bin/sh
# Concatenates the files of a folder in the order of its MANIFEST:
#     sh src/header.sh src > gradckpt.h
#     sh src/header.sh src/cuda > gradckpt_cuda.cu
# A subfolder with a MANIFEST of its own is not included.
#
# A line of MANIFEST is a folder ("plan/") with its description for the table of contents, or a file with its budget of
# lines and, in the third column, the #if that encloses the whole file (-: none; separate: the file is only for compiling
# the files by themselves, and is left out here). Also left out: includes of other files of the folder (#include "..."
# except "gradckpt.h"), #pragma once, and code under #ifdef GCKPTI_SEPARATE_TU. Each file is marked by its name (>>).
# @undef@ becomes an #undef of each private macro that is still defined there, except those that gradckpt_cuda.cu uses.
# Fails, with a message, for a file that is missing, listed twice or not listed, or not enclosed by its #if; and for a
# function or table of file scope (static, GCKPTI_FN, GCKPTI_DATA) that two files define.
dir=$1
[ -f "$dir/MANIFEST" ] || { echo "src/header.sh: $dir has no MANIFEST: sh src/header.sh src > gradckpt.h" >&2; exit 1; }
{
    find "$dir"/* -type d -exec test -f '{}/MANIFEST' ';' -prune -o \
        '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' ')' -print | sed "s,^$dir/,/ ," | sort
    sed 's/^/+ /' "$dir/MANIFEST"
} | awk -v dir="$dir" '
    function fail(text) { print "src/header.sh: " text > "/dev/stderr"; bad = 1 }
    # The name that marks a file; none for a layer header (num/num.h), internal.h and config.h.
    function stem(file,    at, is_layer_header) {
        split(file, at, /[\/.]/)
        is_layer_header = at[2] == at[1] && at[3] ~ /^(h|cuh)$/
        return index(file, "/") && !is_layer_header && at[2] !~ /^(internal|config)$/ ? at[2] : ""
    }
    function put(line) { text[++lines] = line; count[part]++ }
    # Records the private macros, in order, and whether each is still defined.
    function note_macro(line,    word) {
        gsub(/^ *# */, "", line)
        if (part == "" || line !~ /^(define|undef) +(GCKPTI|gckpti)_/)
            return
        split(line, word, /[ (]+/)
        is_defined[word[2]] = word[1] == "define"
        if (is_defined[word[2]] && !listed_macro[word[2]]++)
            macro[++macros] = word[2]
    }
    function put_undefs(    i) {
        for (i = 1; i <= macros; i++)
            if (is_defined[macro[i]] && macro[i] != "GCKPTI_TICKS_PER_RADIAN")
                put("#undef " macro[i])
    }
    # Checks that no other file defines the same name (names that macros paste are not checked).
    function check_duplicate(line, file) {
        if (line ~ /^(static|GCKPTI_FN|GCKPTI_DATA) [^=]*gckpti_[a-z0-9_]+\)?(\[[^]]*\])* *[(=]/) {
            name = substr(line, match(line, /gckpti_[a-z0-9_]+\)?(\[[^]]*\])* *[(=]/))
            sub(/[^a-z0-9_].*/, "", name)
        }
        if (name == "" || line !~ /;$|^\{|[{}]$/)
            return
        if (line !~ /;$/ && in_else)
            ; # a stub for a part that is left out
        else if (line !~ /;$/ && name in defined_in && defined_in[name] != file)
            fail("static " name " is in " dir "/" defined_in[name] " and in " dir "/" file)
        if (line !~ /;$/ && !in_else)
            defined_in[name] = file
        name = ""
    }
    function place(file, condition,    line, separate, depth, blank) {
        blank = 1 # none at the beginning, and no two
        name = ""
        if (stem(file) != "" && !marked[part, stem(file)]++)
            put("/* >>" part "/" stem(file) " */")
        while ((getline line < (dir "/" file)) > 0) {
            if (condition != "" && line ~ /^#if/) {
                if (line != condition)
                    fail(dir "/" file " does not begin with " condition ", as MANIFEST says")
                condition = ""
            }
            if (line == "#ifdef GCKPTI_SEPARATE_TU" || line == "#ifndef GCKPTI_SEPARATE_TU") {
                separate = line
                depth = 0
                continue
            }
            depth += (line ~ /^#if/) - (line ~ /^#endif/)
            if (line ~ /^#if.*GCKPT_(NO_|SMALL)/)
                part_at = depth
            else if (line ~ /^#else/ && depth == part_at)
                in_else = 1
            else if (line ~ /^#endif/ && depth < part_at)
                in_else = part_at = 0
            if (separate != "" && depth < 0)
                separate = ""
            else if (separate != "#ifdef GCKPTI_SEPARATE_TU" && (line !~ /^#include "|^#pragma once$/ || line == "#include \"gradckpt.h\"") && !(blank && line == "")) {
                check_duplicate(line, file)
                note_macro(line)
                if (line == "@undef@")
                    put_undefs()
                else
                    put(line)
                blank = line == ""
            }
        }
        if (condition != "")
            fail(dir "/" file " does not begin with " condition ", as MANIFEST says")
        if (!blank)
            put("")
        close(dir "/" file)
    }
    $1 == "/" { present[$2] = 1; next }
    $2 ~ /^#/ || NF < 2 { next }
    $2 ~ /\/$/ {
        folders[++n] = part = substr($2, 1, length($2) - 1)
        words[part] = $0
        sub(/^\+ *[^ ]+ */, "", words[part])
        next
    }
    listed[$2]++ { fail(dir "/MANIFEST lists " $2 " twice"); next }
    !($2 in present) && system("test -f " dir "/" $2) { fail(dir "/MANIFEST lists " $2 ", which is not there"); next }
    $4 == "separate" { next }
    {
        if (!index($2, "/"))
            part = ""
        else if (index(files_of[part] " ", " " stem($2) " ") == 0)
            files_of[part] = files_of[part] " " stem($2)
        condition = ""
        for (i = 4; i <= NF && $4 != "-"; i++)
            condition = condition (i > 4 ? " " : "") $i
        place($2, condition)
    }
    function contents(    i, k, m, row, file) {
        for (i = 1; i <= n; i++) {
            row = "     >>" folders[i]
            printf " *%-16s %-74s%6d\n", row, words[folders[i]], count[folders[i]]
            m = split(files_of[folders[i]], file, " ")
            row = ""
            for (k = 1; k <= m; k++) {
                if (length(row) + length(file[k]) > 74) {
                    print " *                " row ","
                    row = ""
                }
                row = row (row == "" ? " " : ", ") file[k]
            }
            if (row != "")
                print " *                " row
        }
    }
    END {
        for (file in present)
            if (!listed[file])
                fail(dir "/" file " is not in " dir "/MANIFEST")
        while (text[lines] == "")
            lines--
        for (i = 1; i <= lines && !bad; i++)
            if (text[i] == "@contents@")
                contents()
            else
                print text[i]
        exit bad
    }'
