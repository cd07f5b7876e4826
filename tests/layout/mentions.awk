# Counts the lines of src/ that mention a feature outside the feature's folder. Input: mentions.txt, then the files of src/.
# Output: FEATURE LINES FILES, in the order of mentions.txt. Comments count: a reader of the core should not meet the feature.
FNR == NR {
    if (!/^#/ && NF) {
        feature[++features] = $1
        pattern[features] = $4
    }
    next
}
{
    split(FILENAME, path, "/")
    for (i = 1; i <= features; i++)
        if (path[2] != feature[i] && tolower($0) ~ pattern[i]) {
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
}
