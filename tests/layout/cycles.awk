# Prints the cycles among the files of each folder of src/. A cycle is a set of files of which each one calls all
# others, directly or through other files. Input: the .c and .h files of src/, as src/FOLDER/FILE. Output: a line for
# each cycle, "FOLDER: N files: FILE ..". The graph of a folder has a node for each .c file, and one for each function
# that a header defines (static inline). An edge leads from a node to each node that defines a function whose name
# occurs in it.
function add_node(name) {
    nodes[folder, ++count[folder]] = name
    return name
}
FNR == 1 {
    n = split(FILENAME, path, "/")
    folder = path[n - 1]
    if (!(folder in count))
        folders[++all_folders] = folder
    is_header = path[n] ~ /\.h$/
    node = is_header ? "" : add_node(path[n])
    head = ""
}
{
    text = $0
    gsub(/"([^"\\]|\\.)*"/, "", text)
    if (comment) {
        if (!sub(/^.*\*\//, "", text))
            next
        comment = 0
    }
    gsub(/\/\*([^*]|\*[^\/])*\*\//, "", text)
    if (sub(/\/\*.*/, "", text))
        comment = 1
    if (text ~ /^#/)
        next
    if (text ~ /^[A-Za-z_]/ && text !~ /^typedef|^(static )?(const )?(struct|enum|union) [a-z_0-9]* *\{/)
        head = " "                                 # of a definition, or of a prototype, which a ; ends
    if (head != "") {
        head = head text " "
        if (match(head, /[{;=]/)) {
            if (substr(head, RSTART, 1) == "{" && match(head, /[A-Za-z_0-9]+\(/)) {
                name = substr(head, RSTART, RLENGTH - 1)
                if (is_header)
                    node = add_node(name)
                if (!is_header || !((folder, name) in defined)) # a stub in a header yields to the function it stands in for
                    defined[folder, name] = node
            }
            head = ""
        }
    }
    while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
        if (node != "")
            uses[folder, node, substr(text, RSTART, RLENGTH)] = 1
        text = substr(text, RSTART + RLENGTH)
    }
    if (is_header && $0 ~ /^}|}$/ && $0 !~ /^ .*}$/)
        node = ""
}
END {
    for (key in uses) {
        split(key, part, SUBSEP)
        if ((part[1], part[3]) in defined)
            reaches[part[1], part[2], defined[part[1], part[3]]] = 1
    }
    for (f = 1; f <= all_folders; f++) {
        folder = folders[f]
        n = count[folder]
        for (k = 1; k <= n; k++)                   # Warshall's closure
            for (i = 1; i <= n; i++)
                for (j = 1; j <= n; j++)
                    if ((folder, nodes[folder, i], nodes[folder, k]) in reaches &&
                        (folder, nodes[folder, k], nodes[folder, j]) in reaches)
                        reaches[folder, nodes[folder, i], nodes[folder, j]] = 1
        for (i = 1; i <= n; i++) {
            a = nodes[folder, i]
            if ((folder, a) in seen || a !~ /\.c$/)
                continue
            list = a
            size = 1
            for (j = i + 1; j <= n; j++) {
                b = nodes[folder, j]
                if (b ~ /\.c$/ && (folder, a, b) in reaches && (folder, b, a) in reaches) {
                    seen[folder, b] = 1
                    list = list " " b
                    size++
                }
            }
            if (size > 1)
                print folder ": " size " files: " list
        }
    }
}
