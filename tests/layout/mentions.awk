# Counts the lines of src/ that mention a feature outside the feature's folder. Input: mentions.txt, then the files of src/.
# A file of another feature's folder that exists only if both do, and is named for it (bf16/attention.c), belongs to both.
# Output: FEATURE LINES FILES, in the order of mentions.txt. Comments count: a reader of the core should not meet the feature.
# The tables by which features attach do not count: modules, passes, kinds of instructions, ops, parts.
FNR == NR {
    if (!/^#/ && NF) {
        feature[++features] = $1
        pattern[features] = $4
        other[features] = $5
    }
    next
}
FILENAME ~ /\/(run\/modules|plan\/passes)\.h$/ { next }
table || /^#define GCKPTI_(KINDS|ALL_OPS|OPS|PARTS|PART_USES)\(/ {
    table = /\\$/
    next
}
{
    split(FILENAME, path, "/")
    for (i = 1; i <= features; i++) {
        if (path[2] == feature[i] || path[3] ~ "^" feature[i] "[._]")
            continue
        line = tolower($0)
        if (other[i] != "")
            gsub(other[i], "", line)
        if (line ~ pattern[i]) {
            lines[i]++
            if (!((i, FILENAME) in seen)) {
                seen[i, FILENAME] = 1
                files[i]++
            }
        }
    }
}
END {
    for (i = 1; i <= features; i++)
        print feature[i], lines[i] + 0, files[i] + 0
}
