#!/bin/sh
# Concatenates the files of a folder in the order of its MANIFEST:
#     sh src/header.sh src > gradckpt.h
#     sh src/header.sh src/cuda > gradckpt_cuda.cu
#     sh src/header.sh src EDITION [PARTS] > gradckpt.h    an edition of src/EDITIONS, with and without parts ("dist -losses")
# A subfolder with a MANIFEST of its own is not included.
#
# An edition has no line of the parts that it lacks: their switches (GCKPT_NO_RANKS) count as defined in every #if. A block
# at the top defines these switches, and each public function of the parts as a macro whose use does not compile.
#
# A line of MANIFEST is a folder ("plan/") with its description for the table of contents, or a file with its budget of
# lines and, in the third column, the #if that encloses the whole file (-: none; separate: the file is only for compiling
# the files by themselves, and is left out here). Also left out: includes of other files of the folder (#include "..."
# except "gradckpt.h"), #pragma once, and code under #ifdef GCKPTI_SEPARATE_TU. Each file is marked by its name (>>).
# @undef@ becomes an #undef of each private macro that is still defined there, except those that gradckpt_cuda.cu uses.
# Fails, with a message, for a file that is missing, listed twice or not listed, or not enclosed by its #if; and for a
# function or table of file scope (static, GCKPTI_FN, GCKPTI_DATA) that two files define.
dir=$1 edition=$2 parts=$3
[ -f "$dir/MANIFEST" ] || { echo "src/header.sh: $dir has no MANIFEST: sh src/header.sh src > gradckpt.h" >&2; exit 1; }
{
    find "$dir"/* -type d -exec test -f '{}/MANIFEST' ';' -prune -o \
        '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' ')' -print | sed "s,^$dir/,/ ," | sort
    [ -z "$edition" ] || sed 's/^/= /' "$dir/EDITIONS"
    sed 's/^/+ /' "$dir/MANIFEST"
} | awk -v dir="$dir" -v edition="$edition" -v wanted="$parts" -v commit="$(git -C "$dir" rev-parse --short=12 HEAD 2> /dev/null)" '
    function fail(text) { print "src/header.sh: " text > "/dev/stderr"; bad = 1 }
    # Chooses the parts of the edition, from the lines of EDITIONS.
    function choose_parts(    i, k, n, at, has, name) {
        if (!(edition in parts_of))
            fail("no edition is named " edition "; src/EDITIONS has: " edition_names)
        n = split(parts_of[edition] " " wanted, at, " ")
        for (i = 1; i <= n; i++) {
            name = at[i]
            sub(/^-/, "", name)
            if (!(name in switches_of) && name != "all")
                fail("no part is named " name "; src/EDITIONS has: " part_names)
            has[at[i]] = 1
        }
        for (i = 1; i <= part_count; i++)
            if (("-" part_name[i]) in has)
                delete has[part_name[i]]
            else if ("all" in has)
                has[part_name[i]] = 1
        for (i = 1; i <= part_count; i++)
            if (part_name[i] in has)
                present_parts = present_parts " " part_name[i]
            else {
                missing_parts = missing_parts " " part_name[i]
                n = split(switches_of[part_name[i]], at, " ")
                for (k = 1; k <= n; k++) {
                    undefined[at[k]] = part_name[i]
                    defines[++define_count] = at[k]
                }
            }
    }
    # Returns 1 or 0 if an operand of an #if is known in this edition, else "".
    function known(operand,    not, name) {
        gsub(/ /, "", operand)
        not = sub(/^!/, "", operand)
        if (operand in undefined)
            return not ? 1 : 0 # a macro that is 0 (GCKPTI_HAS_FAST)
        if (operand !~ /^defined\([A-Z0-9_]+\)$/)
            return ""
        name = substr(operand, 9, length(operand) - 9)
        return name in undefined ? (not ? 0 : 1) : ""
    }
    # Splits an expression at the operators && or || that no parentheses enclose; returns the number of operands.
    function operands(text, operator, list,    i, c, deep, n, at) {
        for (i = at = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            deep += (c == "(") - (c == ")")
            if (!deep && substr(text, i, 2) == operator) {
                list[++n] = substr(text, at, i - at)
                at = i += 2
            }
        }
        list[++n] = substr(text, at)
        return n
    }
    # Returns an #if expression without the operands that are known in this edition: 1, 0, or what is left.
    function simplified(text, operator,    list, n, i, value, left, decided) {
        if (operator == "")
            operator = "||"
        decided = operator == "||"
        n = operands(text, operator, list)
        for (i = 1; i <= n; i++) {
            value = operator == "||" ? simplified(list[i], "&&") : known(list[i])
            if (value == "")
                value = list[i]
            if (value == decided && value ~ /^[01]$/)
                return decided
            gsub(/^ +| +$/, "", value)
            if (value !~ /^[01]$/)
                left = left (left == "" ? "" : " " operator " ") value
        }
        return left == "" ? !decided : left
    }
    # Returns 1 if the edition has this line. Resolves conditionals; changes `line` where part of a condition remains.
    function in_edition(    text, value) {
        if (line !~ /^ *# *(if|elif|else|endif)/)
            return !hidden
        text = line
        gsub(/^ *# *| *\/\*.*\*\/ *$/, "", text)
        if (text ~ /^if/) {
            outer[++nested] = hidden
            if (text ~ /^ifn?def /)
                text = (text ~ /^ifdef/ ? "if " : "if !") "defined(" substr(text, text ~ /^ifdef/ ? 7 : 8) ")"
            text = substr(text, 4)
            value = simplified(text)
            kept[nested] = taken[nested] = 0
            if (value ~ /^[01]$/) {
                taken[nested] = value
                if (!hidden && !value)
                    hidden_by = part_in(text)
                hidden = hidden || !value
                return 0
            }
            kept[nested] = 1
            if (value != text)
                line = "#if " value
            return !hidden
        }
        if (text ~ /^elif/) {
            value = simplified(substr(text, 6))
            if (taken[nested] == 1 || value == "0") {
                hidden = 1
                return 0
            }
            hidden = outer[nested]
            if (value == "1") {
                taken[nested] = 1
                line = "#else"
                return kept[nested] && !hidden
            }
            if (value != substr(text, 6) || !kept[nested])
                line = (kept[nested] ? "#elif " : "#if ") value
            kept[nested] = 1
            return !hidden
        }
        if (text ~ /^else/) {
            hidden = outer[nested] || taken[nested] == 1
            return kept[nested] && !hidden && taken[nested] != 1
        }
        hidden = outer[nested]
        return kept[nested--] && !hidden
    }
    # Returns the first part that a condition mentions.
    function part_in(text,    name) {
        while (match(text, /GCKPTI?_[A-Z0-9_]+/)) {
            name = substr(text, RSTART, RLENGTH)
            if (name in undefined)
                return undefined[name]
            text = substr(text, RSTART + RLENGTH)
        }
    }
    # Notes a public function that the edition lacks, for the error that its use gets.
    function note_missing(text,    name) {
        if (part != "" || text !~ /^GCKPT_API /)
            return
        name = substr(text, match(text, /gckpt_[a-z0-9_]+\(/), RLENGTH - 1)
        if (name in missing_at)
            return
        missing_function[++missing_count] = name
        missing_part[missing_count] = hidden_by
        missing_at[name] = 1
    }
    # The name that marks a file; none for a layer header (num/num.h), internal.h and config.h.
    function stem(file,    at, is_layer_header) {
        split(file, at, /[\/.]/)
        is_layer_header = at[2] == at[1] && at[3] ~ /^(h|cuh)$/
        if (!index(file, "/") || is_layer_header || at[2] ~ /^(internal|config)$/)
            return ""
        return at[1] == part ? at[2] : at[1] "/" at[2] # of a module in this layer
    }
    function put(line) { text[++lines] = line; count[part]++ }
    function put_lines(several,    at, n, i) {
        n = split(several, at, "\n")
        for (i = 1; i <= n || i == 1; i++)
            put(at[i])
    }
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
    # Appends a file; the mark of its name and its entry in the table of contents come with its first line.
    function place(file, condition,    line_count, separate, depth, blank, more) {
        blank = 1 # none at the beginning, and no two
        name = ""
        line_count = lines
        while ((getline line < (dir "/" file)) > 0) {
            as_written = line
            while (edition != "" && line ~ /^ *# *(el)?if.*\\$/ && (getline more < (dir "/" file)) > 0) {
                as_written = as_written "\n" more
                sub(/ *\\$/, "", line)
                sub(/^ */, " ", more)
                joined = line = line more
            }
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
            if (separate != "" && depth < 0) {
                separate = ""
                continue
            }
            if (separate == "#ifdef GCKPTI_SEPARATE_TU" || (line ~ /^#include "|^#pragma once$/ && line != "#include \"gradckpt.h\""))
                continue
            if (edition != "" && !in_edition()) {
                if (hidden)
                    note_missing(line)
                continue
            }
            if (blank && line == "")
                continue
            if (lines == line_count && stem(file) != "") {
                if (!marked[part, stem(file)]++)
                    put("/* >>" (stem(file) ~ /\// ? "" : part "/") stem(file) " */")
                if (index(files_of[part] " ", " " stem(file) " ") == 0)
                    files_of[part] = files_of[part] " " stem(file)
            }
            check_duplicate(line, file)
            note_macro(line)
            if (line == "@undef@")
                put_undefs()
            else
                put_lines(line == joined ? as_written : line)
            blank = line == ""
        }
        if (condition != "")
            fail(dir "/" file " does not begin with " condition ", as MANIFEST says")
        if (!blank)
            put("")
        close(dir "/" file)
    }
    $1 == "=" && $2 == "part" {
        part_name[++part_count] = $3
        part_names = part_names " " $3
        for (i = 4; i <= NF && $i != ":"; i++)
            switches_of[$3] = switches_of[$3] " " $i
        next
    }
    $1 == "=" && $2 == "edition" {
        edition_names = edition_names " " $3
        for (i = 4; i <= NF; i++)
            parts_of[$3] = parts_of[$3] " " $i
        next
    }
    $1 == "=" { next }
    $1 == "+" && edition != "" && !chosen++ { choose_parts() }
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
    # The first lines of an edition.
    function edition_head(    i, version, at) {
        for (i = 1; i <= lines; i++)
            if (split(text[i], at, " ") > 2 && at[2] ~ /^GCKPT_VERSION_/)
                version = version (version == "" ? "" : ".") at[3]
        print "/* gradckpt.h, edition " edition ", version " version (commit == "" ? "" : ", commit " commit)
        print " * has the parts:" present_parts
        print " * lacks the parts:" missing_parts
        print " * Another edition, in the source tree: make header EDITION=core PARTS=\"dist bf16\" */"
    }
    # Switches of the parts that the edition lacks, and their functions as macros that do not compile.
    function edition_macros(    i) {
        for (i = 1; i <= define_count; i++)
            if (defines[i] !~ /^GCKPTI/)
                print "#undef " defines[i] "\n#define " defines[i]
        if (missing_count)
            print "/* Functions of parts that this edition lacks; a use of one does not compile. */"
        for (i = 1; i <= missing_count; i++)
            print "#define " missing_function[i] "(...) " missing_function[i] "_needs_part_" missing_part[i]
    }
    END {
        for (file in present)
            if (!listed[file])
                fail(dir "/" file " is not in " dir "/MANIFEST")
        while (text[lines] == "")
            lines--
        if (edition != "" && !bad)
            edition_head()
        for (i = 1; i <= lines && !bad; i++) {
            if (text[i] == "@contents@")
                contents()
            else
                print text[i]
            if (edition != "" && text[i] == "#define GRADCKPT_H")
                edition_macros()
        }
        exit bad
    }'
