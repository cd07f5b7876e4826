# Counts the lines of src/ that mention a feature outside the feature's folder. Input: mentions.txt, then the files of src/.
# A file of another feature's folder that exists only if both do, and is named for it (bf16/attention.c), belongs to both.
# Comments count: a reader of the core should not meet the feature. These lines do not count, and no others:
#   - An #include: a list of files.
#   - Public declarations, which are the files named api.h.
#   - What a string literal says: a text for users, which may name the remedy.
#   - Rows of the tables by which features attach: the macros GCKPTI_.. listed in `tables`; the arrays modules[] and
#     passes[]; the struct gckpti_kernels; in any struct of a header, the members under the #ifndef of a part (its state).
#   - What mentions.txt calls words of another meaning. Among them are the flags of op descriptors that say which operands
#     may be bf16 (GCKPT_TAKES_BF16), and the number format BF16, in which the core and the part quant store values.
#   - Mentions of a feature by another module that builds on it, which a line `uses` of mentions.txt declares.
# Output: FEATURE LINES FILES, in the order of mentions.txt; then "uses MODULE FEATURE LINES" for each declared use; then
# "table NAME" for a table that is not in src/, and "core MODULE" for a use by a folder of the core.
BEGIN {
    split("KINDS OPS PARTS PART_USES PLAN_NUMBERS KINDS_OUTSIDE INFO_NUMBERS EXEC_USES EXEC_STRUCTS KERNELS", names, " ")
    for (i in names)
        tables["GCKPTI_" names[i]] = 1
    tables["modules[]"] = tables["passes[]"] = tables["gckpti_kernels"] = 1
    core = "^(base|num|store|graph|ops|cpu|kernels|plan|planner|search|run|training|schedules|files)$"
}
FNR == NR {
    if ($1 == "uses") {
        uses[++use_count] = $2 " " $3
        lines_of_use[$2 " " $3] = 0
    } else if (!/^#/ && NF) {
        feature[++features] = $1
        pattern[features] = $4
        other[features] = $5
    }
    next
}
FNR == 1 { end = in_struct = state = 0 }
FILENAME ~ /\/api\.h$/ || /^#include / { next }
# The rows of a table end with the line that matches `end`.
end { if ($0 ~ end) end = 0; next }
match($0, /^#define GCKPTI_[A-Z_]+\(/) {
    name = substr($0, 9, RLENGTH - 9)
    if (name in tables) {
        found[name] = 1
        if (/\\$/)
            end = "[^\\\\]$"
        next
    }
}
match($0, /\*const (modules|passes)\[\]/) { found[substr($0, RSTART + 7, RLENGTH - 7)] = 1; end = "[}];$"; next }
/^\/\* The table of kernels of an instruction set / { found["gckpti_kernels"] = 1; end = "^[}] gckpti_kernels;"; next }
FILENAME ~ /\.h$/ && /^(typedef )?struct[^;]*[{]/ { in_struct = 1 }
/^[}]/ { in_struct = 0 }
in_struct && /^#ifndef GCKPT_NO_/ { state = 1 }
state { if (/^#endif/) state = 0; next }
{
    split(FILENAME, path, "/")
    line = tolower($0)
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    for (i = 1; i <= features; i++) {
        if (path[2] == feature[i] || path[3] ~ "^" feature[i] "[._]")
            continue
        text = line
        if (other[i] != "")
            gsub(other[i], "", text)
        if (text !~ pattern[i])
            continue
        if ((path[2] " " feature[i]) in lines_of_use) {
            lines_of_use[path[2] " " feature[i]]++
            continue
        }
        lines[i]++
        if (!((i, FILENAME) in seen)) {
            seen[i, FILENAME] = 1
            files[i]++
        }
    }
}
END {
    for (i = 1; i <= features; i++)
        print feature[i], lines[i] + 0, files[i] + 0
    for (i = 1; i <= use_count; i++) {
        print "uses", uses[i], lines_of_use[uses[i]]
        split(uses[i], path, " ")
        if (path[1] ~ core)
            print "core", path[1]
    }
    for (name in tables)
        if (!(name in found))
            print "table", name
}
