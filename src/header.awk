# The program of header.sh. Input: "/ FILE" for each file present, "= LINE" of EDITIONS, "+ LINE" of MANIFEST.
function fail(text) { print "src/header.sh: " text > "/dev/stderr"; bad = 1 }
# Finds the parts that the edition has, with the changes of PARTS ("dist -losses").
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
            if (types_of[part_name[i]] != "") {
                lacks_types = lacks_types " " types_of[part_name[i]]
                lacks_part = part_name[i]
            }
            n = split(switches_of[part_name[i]], at, " ")
            for (k = 1; k <= n; k++) {
                undefined[at[k]] = part_name[i]
                if (sub(/^GCKPT_NO_/, "", at[k])) {
                    zero_without["GCKPTI_WITH_" at[k]] = zero_without["GCKPTI_RUNS_" at[k]] = part_name[i]
                    at[k] = "GCKPT_NO_" at[k]
                }
                defines[++define_count] = at[k]
            }
        }
}
# Returns 1 or 0 if an operand of an #if is known in this edition, else "".
function known(operand,    not, name) {
    gsub(/ /, "", operand)
    if (("kernels/" in undefined) && operand ~ /^GCKPTI_ISA(<|>=|==)-?[0-9]$/) # only plain floats are left
        return operand ~ /<|-1/ ? 1 : 0
    if (("GCKPTI_AVX512" in undefined) && operand ~ /^GCKPTI_ISA(>=|==)3$/)
        return 0
    not = sub(/^!/, "", operand)
    if (operand in undefined || (operand in zero_without && are_missing(zero_without[operand])))
        return not ? 1 : 0 # a macro that is 0 (GCKPTI_HAS_FAST)
    name = operand
    gsub(/^defined\(|\)$/, "", name)
    if ((name in is_fixed) && !(name in undefined))
        return not ? 1 : 0
    if (operand !~ /^defined\([A-Z0-9_]+\)$/ || !(name in undefined))
        return ""
    return (name ~ /_NO_|^GCKPT_/) == !not ? 1 : 0
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
# Returns the name that marks a file, or "" for a layer header (num/num.h), internal.h and config.h.
function stem(file,    at, is_layer_header) {
    split(file, at, /[\/.]/)
    is_layer_header = at[2] == at[1] && at[3] ~ /^(h|cuh)$/
    if (!index(file, "/") || is_layer_header || at[2] ~ /^(internal|config)$/)
        return ""
    return at[1] == part ? at[2] : at[1] "/" at[2] # of a module in this layer
}
function put(line) { text[++lines] = line; part_of[lines] = part; count[part]++ }
function put_lines(several,    at, n, i) {
    n = split(several, at, "\n")
    for (i = 1; i <= n || i == 1; i++)
        put(at[i])
}
# Checks that no other file defines the name that a line defines (names that macros paste are not checked).
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
# Reads the next line of a file into `line`. A feature's api.h is read where src/api.h includes it. Returns 0 at the end.
function next_line(path,    at) {
    if (feature_api != "") {
        if ((getline line < feature_api) > 0)
            return 1
        close(feature_api)
        feature_api = absent_part = ""
    }
    if ((getline line < path) <= 0)
        return 0
    if (line !~ /^#include "[a-z0-9_]+\/api\.h"$/)
        return 1
    split(line, at, "\"")
    included[at[2]] = 1
    feature_api = dir "/" at[2]
    sub(/\/.*/, "", at[2])
    absent_part = index(missing_parts " ", " " at[2] " ") ? at[2] : ""
    return next_line(path)
}
# Returns 1 for a line of a comment in the api.h of a part that the edition lacks: only its types remain, whose members
# are 0. A line that names the part stands for the first such comment.
function is_of_absent_part(    first) {
    first = !in_absent
    if (absent_part == "" || !(in_absent || line ~ /^ *\/\*/))
        return 0
    in_absent = line !~ /\*\/ *$/
    if (first && !noted_absent[absent_part]++)
        put("/* Members of the following types are 0: this edition lacks the part " absent_part ". */")
    return 1
}
# Returns 1 if a line implies a switch (GCKPT_NO_..) that the edition defines anyway, at its top.
function is_defined_above(    word) {
    split(line, word, " ")
    return line ~ /^#(undef|define) GCKPT_NO_[A-Z0-9_]+$/ && word[2] in undefined
}
# Appends a file; the mark of its name and its entry in the table of contents come with its first line.
function place(file, condition,    line_count, separate, depth, blank, more, at, n) {
    blank = 1 # leaves out blank lines at the beginning, and all but the first of several
    name = ""
    line_count = lines
    while (next_line(dir "/" file)) {
        as_written = line
        while (edition != "" && line ~ /^ *# *(el)?if.*\\$/ && (getline more < (dir "/" file)) > 0) {
            as_written = as_written "\n" more
            sub(/ *\\$/, "", line)
            sub(/^ */, " ", more)
            joined = line = line more
        }
        if (line ~ /^@[a-z ]+@$/ && line != "@contents@") { # @parts@ .. @end@: text for editions with all
            for_others = 0
            for (n = split(substr(line, 2, length(line) - 2), at, " "); n > 0; n--)
                for_others = for_others || index(missing_parts " ", " " at[n] " ")
            continue
        }
        if (for_others)
            continue
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
        if ((blank && line == "") || (edition != "" && (is_of_absent_part() || is_defined_above())))
            continue
        if (lines == line_count && stem(file) != "") {
            if (!marked[part, stem(file)]++)
                put("/* >>" (stem(file) ~ /\// ? "" : part "/") stem(file) " */")
        }
        check_duplicate(line, file)
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
    switches_of[$3] = "" # a part of public functions only has none
    for (i = 4; i <= NF && $i != ":"; i++)
        if (sub(/^[*]/, "", $i))
            types_of[$3] = types_of[$3] " " $i
        else
            switches_of[$3] = switches_of[$3] " " $i
    next
}
$1 == "=" && $2 == "edition" {
    edition_names = edition_names " " $3
    for (i = 4; i <= NF; i++)
        parts_of[$3] = parts_of[$3] " " $i
    next
}
$1 == "=" && $2 == "calls" {
    for (i = 4; i <= NF; i++)
        part_of_call[$i] = $3
    next
}
$1 == "=" && $2 == "zero" {
    for (i = 4; i <= NF; i++)
        zero_without[$i] = $3
    next
}
$1 == "=" && $2 == "fixed" {
    for (i = 4; i <= NF; i++) {
        fixed_in[$3] = fixed_in[$3] " " $i
        if ($3 == edition) {
            is_fixed[$i] = is_zero[$i] = 1
            if (sub(/^GCKPT_NO_/, "", $i))
                is_zero["!GCKPTI_RUNS_" $i] = 1
        }
    }
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
$2 in included { next }
$2 ~ /\/api\.h$/ { fail(dir "/api.h does not include " $2); next }
$4 == "separate" || (part "/") in undefined { next }
{
    if (!index($2, "/"))
        part = ""
    condition = ""
    for (i = 4; i <= NF && $4 != "-"; i++)
        condition = condition (i > 4 ? " " : "") $i
    place($2, condition)
}
# ---- an edition has no statement under a condition that is 0 without a part ----
# Returns 1 if the edition lacks all parts of a list, a+b+c, or all parts whose switches a file tests, plan/passes.h.
function are_missing(list,    at, n, tested) {
    if (list ~ /\//) {
        if (list in lacks_all) # place may be reading the file
            return lacks_all[list]
        for (n = 1; (getline tested < (dir "/" list)) > 0;)
            if (split(tested, at, " ") == 2 && at[1] == "#ifndef" && !(at[2] in undefined))
                n = 0
        close(dir "/" list)
        return lacks_all[list] = n
    }
    for (n = split(list, at, "+"); n > 0 && index(missing_parts " ", " " at[n] " "); n--)
        ;
    return n == 0
}
# Returns 1 if an operand of the conjunction in "if (..)" is a constant that EDITIONS lists as 0 in this edition.
function is_dead(head,    list, n, i) {
    if (head !~ /^ *if \(.*\)( \{)?$/)
        return 0
    sub(/^ *if \(/, "", head)
    sub(/\)( \{)?$/, "", head)
    if (operands(head, "||", list) > 1)
        return 0
    for (n = operands(head, "&&", list); n > 0; n--) {
        i = list[n]
        gsub(/ /, "", i)
        if (i in is_zero)
            return 1
        sub(/\(.*\)$/, "", i) # a call: the function's name
        if (i in is_zero)
            return 1
    }
    return 0
}
# Notes the private functions that are macros here because a part is missing: is_stub, those without an effect, whose body
# only discards arguments or is a constant; is_zero, those whose body is 0; is_identity, those whose body is their last
# argument. A name under an #if, or with another definition, is no such function: the edition may have the part.
function note_stubs(    i, name, body, depth, counts, nested, forms, stub) {
    for (i = 1; i <= lines; i++) {
        if (text[i] ~ /^ *# *if/)
            nested += counts[++depth] = text[i] !~ /GRADCKPT_(H|IMPLEMENTATION)|GCKPTI_ISA/
        else if (text[i] ~ /^ *# *endif/)
            nested -= counts[depth--]
        if (text[i] !~ /^(# *define|static|GCKPT[A-Z_]*) .*gckpti_[a-z0-9_]+\(/)
            continue
        match(text[i], /gckpti_[a-z0-9_]+\(/)
        name = substr(text[i], RSTART, RLENGTH - 1)
        forms[name]++
        body = text[i]
        if (nested || !sub(/^#define gckpti_[a-z0-9_]+\([a-z_, .]*\) +/, "", body) || body ~ /\\$/)
            continue
        stub[name] = body == "0" ? 2 : body == "(result)" && text[i] ~ /, result\) / ? 3 : 1
        gsub(/\(void\)(\([a-z_]+\)|0)(, )?/, "", body)
        if (stub[name] < 3 && body !~ /^\(?(0|GCKPT_OK)?\)?$/)
            delete stub[name]
    }
    for (name in stub)
        if (forms[name] == 1 && stub[name] == 3)
            is_identity[name] = 1
        else if (forms[name] == 1) {
            is_stub[name] = 1
            if (stub[name] == 2)
                is_zero[name] = 1
        }
}
# Returns 1 if each variable in lines from..to of a function is used in another line than its declaration.
function are_used(from, to,    i, begin, end, line, word, uses_of, asked) {
    for (begin = from; text[begin] != "{"; begin--)
        ;
    for (; text[begin - 1] != "" && text[begin - 1] != "}"; begin--)
        ;
    for (end = to; text[end] != "}"; end++)
        ;
    for (i = begin; i <= end; i++) {
        line = " " text[i]
        gsub(/"([^"\\]|\\.)*"|(->|\.)[a-z0-9_]+|[a-z0-9_]+\(/, " ", line)
        while (match(line, /[^A-Za-z0-9_][a-z][a-z0-9_]*/)) {
            word = substr(line, RSTART + 1, RLENGTH - 1)
            line = substr(line, RSTART + RLENGTH)
            if (i >= from && i <= to)
                asked[word] = 1
            else
                uses_of[word]++
        }
    }
    for (word in asked)
        if (word != "void" && uses_of[word] < 2)
            return 0
    return 1
}
# Drops the statements that only call such a function, unless they depend on a condition, and "result = f(.., result);".
function drop_calls_of_stubs(    i, k, name, before) {
    for (i = 2; i <= lines; i++) {
        before = text[i - 1]
        sub(/ *\/\*.*\*\/$/, "", before)
        if (text[i] ~ /^ +result = gckpti_[a-z_]+\(.*, result\);$/ && before ~ /([;{}]|@dead@)$/) {
            name = text[i]
            gsub(/^ +result = |\(.*/, "", name)
            if (name in is_identity)
                text[i] = "@dead@"
            continue
        }
        if (text[i] !~ /^ +(\(void\))?gckpti_[a-z0-9_]+\(/ || before !~ /([;{}:]|@dead@)$|^$/)
            continue
        name = text[i]
        gsub(/^ +(\(void\))?|\(.*/, "", name)
        for (k = i; name in is_stub && text[k] !~ /;( *\/\*.*\*\/)?$/; k++)
            ;
        if (name in is_stub && k < i + 3 && text[k] ~ /\);/ && text[i] text[k] !~ /\+\+|--| = / && are_used(i, k))
            while (i <= k)
                text[i++] = "@dead@"
        i = k
    }
}
# Drops each "if" without "else" whose condition is such a conjunction, with its statement and the comment beside it.
function drop_dead_statements(    i, k, head, indent, ends) {
    note_stubs()
    for (i = 1; i <= lines; i++) {
        if (text[i] !~ /^ *if \(/ || text[i] ~ /\\$/)
            continue
        head = text[i]
        sub(/ *\/\*.*\*\/$/, "", head)
        for (k = i; head !~ /\)( \{)?$/ && k < i + 4; k++)
            head = head text[k + 1]
        if (!is_dead(head))
            continue
        match(text[i], /^ */)
        indent = substr(text[i], 1, RLENGTH)
        if (head ~ /\{$/) {
            for (k++; text[k] !~ "^" indent "}"; k++)
                ;
            ends = text[k] == indent "}"
        } else {
            ends = text[k + 1] !~ /^ *(if|for|while|switch|do)[ (]|[{}]/
            for (k++; ends && text[k] !~ /;( *\/\*.*\*\/)?$/; k++)
                ;
        }
        if (ends && text[k + 1] !~ "^" indent "else")
            for (; i <= k; i++)
                text[i] = "@dead@"
        i = k
    }
    drop_calls_of_stubs()
    drop_shape_rules()
    for (i = 1; i <= lines && index(missing_parts " ", " tiles "); i++)
        gsub(/gckpti_[a-z0-9_]+_field,/, "NULL,", text[i]) # in descriptors: which rows an op reads, for row tiles
    k = 0
    for (i = 1; i <= lines; i++)
        if (text[i] == "@dead@")
            count[part_of[i]]--
        else {
            text[++k] = text[i]
            part_of[k] = part_of[i]
        }
    lines = k
}
# Marks builders, and the shape rules that macros define, if the edition has no graphs.
function drop_shape_rules(    i, in_rule) {
    for (i = 1; i <= lines && lacks_types != ""; i++) {
        in_rule = in_rule || text[i] ~ /^    GCKPTI_UNUSED static gckpt_result gckpti_##name##_shape\(gckpt_call \*call\) +\\$/
        if (!in_rule && text[i] !~ /^GCKPTI_(BINARY_)?BUILDER(_0)?\(.*\)$/)
            continue
        in_rule = in_rule && text[i] !~ /^    \}( +\\)?$/
        text[i] = "@dead@"
    }
}
# ---- an edition has no private function that nothing calls, and no public one whose prototype names a type that it lacks ----
# Sets first_of, last_of and name_of for each function definition, from its comment on; prototype_of for each prototype.
function find_functions(    i, k, name, head, begin) {
    for (i = 1; i <= lines; i++) {
        if (text[i] !~ /^(GCKPTI_OWN_FRAME |GCKPTI_UNUSED static|GCKPTI_FN|GCKPTI_INLINE|GCKPTI_NOINLINE|GCKPTI_KERNEL|GCKPTI_ISA_NOINLINE|GCKPT_API|static )/)
            continue
        head = text[i]
        for (k = i; head !~ /[;{=]/ && k < i + 8; k++)
            head = head " " text[k + 1]
        if (match(head, /V\([a-z0-9_]+\)\(/))
            head = substr(head, 1, RSTART - 1) "gckpti_" substr(head, RSTART + 2, RLENGTH - 4) substr(head, RSTART + RLENGTH - 1)
        if (head !~ /^[^={]*[;{]/ || !match(head, /gckpti?_[a-z0-9_]+\)?\(/))
            continue
        name = substr(head, RSTART, RLENGTH - 1)
        if (name == "gckpt_result") # gckpt_result(name)(..)
            name = match(head, /\(gckpti?_[a-z0-9_]+\)/) ? substr(head, RSTART + 1, RLENGTH - 2) : ""
        sub(/\)/, "", name)
        begin = comment_before(i)
        if (head ~ /^[^{]*;/) {
            prototypes[name] = prototypes[name] " " i ":" k
            while (i <= k)
                in_prototype[i++] = 1
            i = k
            public_head[name] = head ~ /^GCKPT_API/ ? head : public_head[name]
        } else {
            while (text[k] !~ /}$/ || (text[k] != "}" && k > i && text[i] !~ /}$/))
                k++
            first_of[++functions] = begin
            head_of[functions] = i
            last_of[functions] = k
            name_of[functions] = name
            is_public[functions] = head ~ /^GCKPT_API/
        }
        i = k
    }
}
# Returns the first line of the comment directly above line i, or i.
function comment_before(i,    k) {
    if (text[i - 1] !~ /^(\/\*| \*)(.*[^*])?\*\/$|^ \*\/$/ || text[i - 1] ~ /^\/\* (-----|>>)|---- \*\/$/)
        return i
    for (k = i - 1; text[k] !~ /^\/\*/; k--)
        ;
    return text[k] ~ /^\/\* ----/ ? i : k
}
# Returns the line without the rows X(op, PART) of parts that the edition lacks.
function without_absent_rows(line,    rest, row) {
    for (rest = ""; match(line, /X\([a-z0-9_]+, [A-Z_]+\)/); line = substr(line, RSTART + RLENGTH)) {
        row = substr(line, RSTART, RLENGTH)
        rest = rest substr(line, 1, RSTART - 1)
        sub(/^.*, /, "", row)
        sub(/\)$/, "", row)
        if (!(("GCKPT_NO_" row) in undefined))
            rest = rest substr(line, RSTART, RLENGTH)
    }
    return rest line
}
# Notes the names in lines from..to as used by function u (0: by text between functions). A macro that pastes names uses every
# function of that form.
function note_uses(from, to, u,    i, line, in_comment, word, n, at) {
    for (i = from; i <= to; i++) {
        line = text[i]
        if (i in in_prototype)
            continue
        gsub(/"([^"\\]|\\.)*"/, "", line)
        if (in_comment && !sub(/^.*\*\//, "", line))
            continue
        in_comment = 0
        gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
        if (sub(/\/\*.*/, "", line))
            in_comment = 1
        if (line ~ /GCKPTI_([A-Z_]+_)?DESC[A-Z_]*\(/ || in_desc) { # shape rules and costs, which only the planner calls
            in_desc = line !~ /\);/ && line !~ /[^\\,(|]$/
            if (lacks_types != "")
                gsub(/gckpti_[a-z0-9_]+_(shape|flops|flops_backward|field)/, "", line)
        }
        while (match(line, /V\([a-z0-9_#]+\)/)) # num/isa.h
            line = substr(line, 1, RSTART - 1) "gckpti_" substr(line, RSTART + 2, RLENGTH - 3) " " substr(line, RSTART + RLENGTH)
        if (u == 0 && line ~ /^[A-Z_0-9]+\(|\\$/) # a word of a list can become a name by gckpti_##name
            for (n = split(without_absent_rows(line), at, /[^a-z0-9_]+/); n > 0; n--)
                uses[0] = uses[0] " gckpti_" at[n]
        while (match(line, /gckpti_[a-z0-9_]*##[a-z]+(##[a-z0-9_]+)?/)) {
            word = substr(line, RSTART, RLENGTH)
            line = substr(line, 1, RSTART - 1) " " substr(line, RSTART + RLENGTH)
            gsub(/##[a-z]+(##)?/, "[a-z0-9_]+", word)
            if (word != "gckpti_[a-z0-9_]+" && (lacks_types == "" || word !~ /_shape$/))
                pasted[word] = 1
        }
        while (match(line, /gckpti?_[a-z0-9_]+/)) {
            word = substr(line, RSTART, RLENGTH)
            line = substr(line, RSTART + RLENGTH)
            uses[u] = uses[u] " " word
        }
    }
}
function keep_function(name) {
    if ((name in index_of) && is_public[index_of[name]] >= 0 && !kept_function[name]++)
        queue[++queued] = name
}
function drop_lines(from, to,    i) {
    for (i = from; i <= to; i++)
        if (!(i in dropped)) {
            dropped[i] = 1
            count[part_of[i]]--
        }
}
function drop_prototypes(name,    n, i, at, span) {
    n = split(prototypes[name], at, " ")
    for (i = 1; i <= n; i++) {
        split(at[i], span, ":")
        drop_lines(comment_before(span[1]), span[2])
    }
}
function miss_function(name) {
    if (name in missing_at)
        return
    missing_at[name] = 1
    missing_function[++missing_count] = name
    missing_part[missing_count] = (name in part_of_call) ? part_of_call[name] : lacks_part
    sub(/\+.*/, "", missing_part[missing_count])
    if (("kernels/" in undefined) && switches_of[missing_part[missing_count]] == "") # calls about graphs, plans and ops
        missing_part[missing_count] = "host"
}
function drop_unused(    f, i, k, n, at, name, gone, form, gone_names, gone_count) {
    find_functions()
    for (f = 1; f <= functions; f++) {
        gone = 0
        n = split(lacks_types, at, " ")
        for (i = 1; i <= n && is_public[f]; i++)
            gone += public_head[name_of[f]] ~ ("[^a-z_]" at[i] "[^a-z_]")
        if (gone) {
            is_public[f] = -1
            miss_function(name_of[f])
        } else if ((name_of[f] in part_of_call) && are_missing(part_of_call[name_of[f]]))
            is_public[f] = 0
        index_of[name_of[f]] = f
    }
    for (name in public_head) {                    # of macros that define functions, or of files that are left out
        gone = 0
        n = split(lacks_types, at, " ")
        for (i = 1; i <= n && !(name in index_of); i++)
            gone += public_head[name] ~ ("[^a-z_]" at[i] "[^a-z_]")
        if (gone)
            gone_names[++gone_count] = name
    }
    for (i = 2; i <= gone_count; i++)              # in an order that does not depend on awk
        for (k = i; k > 1 && gone_names[k - 1] > gone_names[k]; k--) {
            name = gone_names[k]
            gone_names[k] = gone_names[k - 1]
            gone_names[k - 1] = name
        }
    for (k = 1; k <= gone_count; k++) {
        miss_function(gone_names[k])
        drop_prototypes(gone_names[k])
    }
    k = 1
    for (f = 1; f <= functions; f++) {             # text between functions
        note_uses(k, head_of[f] - 1, 0)
        note_uses(head_of[f], last_of[f], name_of[f]) # a V(name) can have several definitions
        k = last_of[f] + 1
    }
    note_uses(k, lines, 0)
    for (f = 1; f <= functions; f++) {
        if (is_public[f] == 1)
            keep_function(name_of[f])
        for (form in pasted)
            if (name_of[f] ~ ("^" form "$") && (lacks_types == "" || name_of[f] !~ /_flops_backward$/))
                keep_function(name_of[f])
    }
    n = split(uses[0], at, " ")
    for (i = 1; i <= n; i++)
        keep_function(at[i])
    for (k = 1; k <= queued; k++) {
        n = split(uses[queue[k]], at, " ")
        for (i = 1; i <= n; i++)
            keep_function(at[i])
    }
    for (f = 1; f <= functions; f++) {
        name = name_of[f]
        if (kept_function[name])
            continue
        if (name in part_of_call)
            miss_function(name)
        drop_lines(first_of[f], last_of[f])
        drop_prototypes(name)
    }
}
# ---- there is no prototype of a private function that is defined before its uses ----
# Sets mentions[name] to the lines that name each private function; a line of a macro counts as a use on every line.
function note_mentions(    i, line, name, in_macro) {
    for (i = 1; i <= lines; i++) {
        if (i in dropped)
            continue
        line = code_of(i)
        in_macro = line ~ /^ *#/ || (in_macro && text[i - 1] ~ /\\$/)
        sub(/^ *# *define +gckpti_[a-z0-9_]+/, "", line) # in place of the function, where a part is missing
        while (match(line, /gckpti_[a-z0-9_]+/)) {
            name = substr(line, RSTART, RLENGTH)
            line = substr(line, RSTART + RLENGTH)
            if (in_macro)
                in_macros[name] = 1
            mentions[name] = mentions[name] " " i
        }
    }
    for (i = 1; i <= functions; i++)
        definitions[name_of[i]]++
}
# Returns 1 if a line between from and to names the function.
function named_between(name, from, to,    n, at) {
    for (n = split(mentions[name], at, " "); n > 0; n--)
        if (at[n] > from && at[n] < to && !(at[n] in in_prototype))
            return 1
    return 0
}
# Drops the prototypes that their definitions make unnecessary; moves their comments to the definitions.
function drop_needless_prototypes(    f, name, span, begin, i) {
    note_mentions()
    for (f = 1; f <= functions; f++) {
        name = name_of[f]
        if (head_of[f] in dropped || is_public[f] || definitions[name] > 1 || name in in_macros)
            continue
        if (split(prototypes[name], span, /[ :]/) != 3 || span[3] > head_of[f] || text[head_of[f]] ~ /V\(/)
            continue
        if (text[span[2]] !~ /^(GCKPTI_FN|static) / || text[span[3]] !~ /\);$/ || named_between(name, span[3] + 0, head_of[f]))
            continue
        begin = comment_before(span[2] + 0)
        for (i = begin; i < span[2]; i++)
            comment_of[first_of[f]] = comment_of[first_of[f]] text[i] "\n"
        drop_lines(begin, span[3] + 0)
    }
}
# Drops each file ("/* >>base/sort */" and comments) and each layer that has no code left. Where both are in one file,
# GCKPTI_COLD_BEGIN and _END do not count as code.
function drop_empty_files(    i, begin, is_full, has_code, cold) {
    for (i = 1; i <= lines + 1; i++) {
        if (i > lines || text[i] ~ /^\/\* >>/ || text[i + 1] ~ /^ \* >>/) {
            if (begin && !is_full && !cold)
                drop_lines(begin, i - 1)
            begin = text[i] ~ /^\/\* >>/ ? i : 0
            is_full = cold = 0
        }
        if (text[i] ~ /^GCKPTI_COLD_/)
            cold += text[i] ~ /BEGIN/ ? 1 : -1
        else if (i <= lines && code_of(i) != "" && !(i in dropped))
            is_full = has_code[part_of[i]] = 1
    }
    for (i = 1; i <= lines; i++)
        if (part_of[i] != "" && !(part_of[i] in has_code))
            drop_lines(i, i)
}
# Drops the headings that no code or comment follows before the next heading, and those that name another file
# ("---- store/arrays.c ----"): its definitions are in the same text.
function drop_empty_headings(    i, last) {
    for (i = 1; i <= lines; i++) {
        if (i in dropped || text[i] == "")
            continue
        if (last && text[i] ~ /^\/\* (---- .*---- \*\/$|>>|====)/)
            drop_lines(last, last)
        if (text[i] ~ /^\/\* ---- [a-z_]+\/[a-z_]+\.[ch] ---- \*\/$/)
            drop_lines(i, i)
        last = !(i in dropped) && text[i] ~ /^\/\* ---- .*---- \*\/$/ ? i : 0
    }
}
# ---- an edition has no type, private macro or constant that nothing uses ----
# Returns line i without comments and strings; lines are read in order.
function code_of(i,    line) {
    line = text[i]
    gsub(/"([^"\\]|\\.)*"/, "", line)
    if (code_comment && !sub(/^.*\*\//, "", line))
        return ""
    code_comment = 0
    gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
    if (sub(/\/\*.*/, "", line))
        code_comment = 1
    return line
}
# Returns the last line of the type, constants or private macro that line i begins, or 0 if it begins none.
function declaration_end(i,    k) {
    if (text[i] ~ /^#define (GCKPTI|gckpti)_/) {
        for (k = i; text[k] ~ /\\$/; k++)
            ;
        return k
    }
    if (text[i] !~ /^(typedef |struct [a-z0-9_]+ \{|enum (gckpti_[a-z0-9_]+ )?\{)/ || (part_of[i] == "" && lacks_types == "" && text[i] ~ /^enum/))
        return 0
    for (k = i; text[k] !~ (text[i] ~ /\{[^}]*$/ ? "^}" : ";( *\\/\\*.*)?$"); k++)
        ;
    return text[k] ~ /[^a-z_]V\(|[A-Z]S;/ ? 0 : k # a type of each instruction set
}
# Notes the names that declaration d defines: those of its macro, its type, and its constants.
function note_names(d, code,    word, is_enum) {
    if (sub(/^ *#define +/, "", code)) {
        match(code, /^[A-Za-z0-9_]+/)
        declared[substr(code, 1, RLENGTH)] = declared[substr(code, 1, RLENGTH)] " " d
        return
    }
    is_enum = code ~ /^ *(typedef )?enum/
    if (is_enum)
        gsub(/=[^,}]*/, "", code)
    while (match(code, /(gckpt|GCKPT)i?I?_[A-Za-z0-9_]+/)) {
        word = substr(code, RSTART, RLENGTH)
        code = substr(code, RSTART + RLENGTH)
        if (is_enum || code ~ /^(;|\(|\)\(|\[| \{)/ || code == "")
            declared[word] = declared[word] " " d
    }
}
function need_words(words,    at, n, i, k, m, d, name) {
    n = split(words, at, " ")
    for (i = 1; i <= n; i++)
        if (!needed[at[i]]++) {
            if (at[i] ~ /^GCKPTI_[A-Z_]+_$/) # GCKPTI_BUILDER_##n needs all macros that begin so
                for (name in declared)
                    if (index(name, at[i]) == 1)
                        need_words(name)
            m = split(declared[at[i]], d, " ")
            for (k = 1; k <= m; k++)
                if (!used_declaration[d[k]]++)
                    waiting[++waits] = d[k]
        }
}
function drop_declarations(    i, k, d, code, all, all_of, end, live) {
    for (i = 1; i <= lines; i++) {
        code = i in dropped ? "" : code_of(i)
        if (i > end && !(i in dropped) && (end = declaration_end(i))) {
            from_line[++d] = i
            to_line[d] = end
            all = ""
        }
        if (i <= end) {
            all = all " " code
            if (i == end)
                note_names(d, all)
        }
        gsub(/^#undef.*/, "", code)
        all_of = code
        while (code ~ /GCKPTI_OF\(/ && match(all_of, /, [a-z_]+\)/)) { # GCKPTI_OF(b, fill) may be gckpti_cpu_fill
            words_in[i <= end ? d : 0] = words_in[i <= end ? d : 0] " gckpti_cpu_" substr(all_of, RSTART + 2, RLENGTH - 3)
            all_of = substr(all_of, RSTART + RLENGTH)
        }
        while (match(code, /(gckpt|GCKPT)[A-Za-z0-9_]+/)) {
            words_in[i <= end ? d : 0] = words_in[i <= end ? d : 0] " " substr(code, RSTART, RLENGTH)
            code = substr(code, RSTART + RLENGTH)
        }
    }
    need_words(words_in[0])
    for (k = 1; k <= waits; k++)
        need_words(words_in[waiting[k]])
    for (i = 1; i <= d; i++)
        if (!used_declaration[i])
            drop_lines(comment_before(from_line[i]), to_line[i])
    for (i = 1; i <= lines; i++)
        if (text[i] ~ /^#undef (GCKPTI|gckpti)_/ && !(substr(text[i], 8) in needed))
            drop_lines(i, i)
    drop_empty_conditionals()
}
# Removes dropped lines from the text, and resets the tables of names that belong to them.
function forget_dropped(    i, k) {
    for (i = 1; i <= lines; i++)
        if (!(i in dropped)) {
            text[++k] = text[i]
            part_of[k] = part_of[i]
        }
    lines = k
    functions = queued = waits = 0
    split("", dropped)
    split("", prototypes)
    split("", in_prototype)
    split("", index_of)
    split("", uses)
    split("", pasted)
    split("", kept_function)
    split("", declared)
    split("", words_in)
    split("", needed)
    split("", used_declaration)
}
# Drops each #if whose branches are all empty; makes an #ifdef of an #ifndef whose first branch is.
function drop_empty_conditionals(    i, deep) {
    for (i = 1; i <= lines; i++) {
        if (i in dropped || text[i] == "")
            continue
        if (text[i] == "#else" && !is_full[deep] && sub(/^#ifndef /, "#ifdef ", text[begun_at[deep]]))
            drop_lines(i, i)
        if (text[i] ~ /^ *# *if/) {
            begun_at[++deep] = i
            is_full[deep] = 0
        } else if (text[i] ~ /^ *# *endif/) {
            if (!is_full[deep])
                drop_lines(begun_at[deep], i)
            else
                is_full[deep - 1] = 1
            deep--
        } else if (text[i] !~ /^ *# *el/)
            is_full[deep] = 1
    }
}
# Drops each #endif and #if between which there are only comments and blank lines, if both conditions are the same.
function merge_conditionals(    i, deep, condition, end) {
    for (i = 1; i <= lines; i++) {
        if ((i in dropped) || text[i] == "" || text[i] ~ /^(\/\*| \*|\/\/)/)
            continue
        if (text[i] ~ /^ *# *if/) {
            if (end && text[i] == condition[deep + 1] && text[i] !~ /\\$/) {
                drop_lines(end, end)
                drop_lines(i, i)
                deep++
            } else
                condition[++deep] = text[i]
        } else if (text[i] ~ /^ *# *el/)
            condition[deep] = ""
        end = text[i] ~ /^ *# *endif/ ? i : 0
        if (end)
            deep--
    }
}
# Drops each GCKPTI_COLD_END and the next GCKPTI_COLD_BEGIN between which there are only comments and blank lines.
function merge_cold(    i, end) {
    for (i = 1; i <= lines; i++) {
        if ((i in dropped) || text[i] == "" || text[i] ~ /^(\/\*| \*|\/\/)/)
            continue
        if (end && text[i] ~ /^GCKPTI_COLD_BEGIN/) {
            drop_lines(end, end)
            drop_lines(i, i)
        }
        end = text[i] ~ /^GCKPTI_COLD_END/ ? i : 0
    }
}
function contents(    i) {
    for (i = 1; i <= n; i++)
        if (count[folders[i]])
            printf " *%-16s %-74s%6d\n", "     >>" folders[i], words[folders[i]], count[folders[i]]
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
function edition_macros(    i, n, at, head) {
    print "#define GCKPT_EDITION \"" edition "\""
    for (i = 1; i <= define_count; i++)
        if (defines[i] ~ /^GCKPT_/)
            print "#undef " defines[i] "\n#define " defines[i]
    n = split(fixed_in[edition], at, " ")
    for (i = 1; i <= n; i++)
        if (at[i] ~ /^GCKPT_/ && !(at[i] in undefined))
            head = head (head == "" ? "" : " || ") "defined(" at[i] ")"
    if (head != "")
        print "#if " head "\n#error \"gradckpt.h: edition " edition " was made without this option\"\n#endif"
    if (missing_count)
        print "/* Functions of parts that this edition lacks; a use of one does not compile. */"
    for (i = 1; i <= missing_count; i++)
        if (missing_part[i] != "host") # without graphs, tensors have no use anyway
            print "#define " missing_function[i] "(...) " missing_function[i] "_needs_part_" missing_part[i]
}
END {
    for (file in present)
        if (!listed[file])
            fail(dir "/" file " is not in " dir "/MANIFEST")
    while (text[lines] == "")
        lines--
    if (edition != "" && !bad) {
        if (missing_parts != "") {
            for (name in zero_without)
                if (are_missing(zero_without[name]))
                    is_zero[name] = 1
            drop_dead_statements()
            drop_unused()
            drop_declarations()
            forget_dropped() # functions that only dropped macros and types use
            drop_unused()
            drop_declarations()
        }
        edition_head()
    }
    if (!bad) {
        if (missing_parts == "")
            find_functions()
        drop_needless_prototypes()
        drop_empty_conditionals()
        if (missing_parts != "")
            drop_empty_files()
        drop_empty_headings()
        merge_conditionals()
        merge_cold()
    }
    for (i = 1; i <= lines && !bad; i++) {
        if (i in dropped)
            continue
        if (text[i] == "") {
            blank = 1
            continue
        }
        if (blank && !opens && text[i] !~ /^#e/) # one, and none at the ends of an #if
            print ""
        blank = 0
        opens = text[i] ~ /^(#if|\/\* >>)/
        printf "%s", comment_of[i]
        if (text[i] == "@contents@")
            contents()
        else
            print text[i]
        if (edition != "" && text[i] == "#define GRADCKPT_H")
            edition_macros()
    }
    exit bad
}
