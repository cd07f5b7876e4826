# Prints each function that a file of src/ uses before a later file of MANIFEST defines it: "USER uses FUNCTION of FILE".
# Input: src/MANIFEST, then the .c and .h files of src/. Files are in MANIFEST's order in gradckpt.h, so where nothing is printed,
# no files call one another in a cycle. Names in comments, texts and directives do not count, nor do stubs of headers.
function path_of(name) { sub(/^.*src\//, "", name); return name }
FNR == NR {
    if (!/^#/ && NF > 1 && $1 !~ /\/$/ && $3 != "separate")
        place[$1] = ++places
    next
}
FNR == 1 {
    file = path_of(FILENAME)
    is_header = file ~ /\.h$/
    head = ""
    comment = 0
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
    if (text ~ /^#/ || is_header)
        next
    while (match(text, /\(gckpti?_[a-z0-9_]+\)\(/)) # a name in parentheses: no macro
        text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + 1, RLENGTH - 3) substr(text, RSTART + RLENGTH - 1)
    if (text ~ /^[A-Za-z_]/ && text !~ /^typedef|^(static )?(const )?(struct|enum|union) [a-z_0-9]* *\{/)
        head = " "                                 # of a definition, or of a prototype, which a ; ends
    if (head != "") {
        head = head text " "
        if (match(head, /[{;=]/)) {
            if (substr(head, RSTART, 1) == "{" && match(head, /[A-Za-z_0-9]+\)?\(/)) {
                name = substr(head, RSTART, RLENGTH - 1)
                sub(/\)/, "", name)
                if (name ~ /^gckpti?_/ && !(name in defined))
                    defined[name] = file
            }
            head = ""
        }
    }
    while (match(text, /gckpti?_[a-z_0-9]+/)) {
        uses[file, substr(text, RSTART, RLENGTH)] = 1
        text = substr(text, RSTART + RLENGTH)
    }
}
END {
    for (key in uses) {
        split(key, part, SUBSEP)
        if ((part[2] in defined) && defined[part[2]] != part[1] && part[1] in place && place[defined[part[2]]] > place[part[1]])
            print part[1] " uses " part[2] " of " defined[part[2]]
    }
}
