#!/bin/sh
# Prints the tables of examples/README.md (make index) from the files: the first sentence of each file's head, the files
# that it includes, directly or not, and its number of lines to two digits. Fails if a head does not begin "NAME - ".
cd "$(dirname "$0")" || exit 1
LC_ALL=C awk '
    FNR == 1 { files[++n] = FILENAME; head = ""; open = first = 1 }
    { lines[FILENAME]++ }
    open { # the comment at the top
        s = $0
        open = !sub(/ *\*\/.*/, "", s)
        sub(/^(\/\*| \*) ?/, "", s)
        first = first && s != ""
        head = head (head == "" ? "" : " ") s
        text[FILENAME] = head
        if (first)
            says[FILENAME] = head
    }
    /^ *# *include "/ && !/mpi\.h/ { split($0, at, "\""); sub(/.*\//, "", at[2]); includes[FILENAME] = includes[FILENAME] " " at[2] }
    /gckpt_[a-z]/ && !/^ \*|^\/\*/ { calls[FILENAME] = 1 }
    function needs(file,    part, m, i) {
        m = split(includes[file], part, " ")
        for (i = 1; i <= m; i++)
            if (!(part[i] in seen)) {
                seen[part[i]] = 1
                if (part[i] != "gradckpt.h")
                    wanted = wanted (wanted == "" ? "" : ", ") part[i]
                needs(part[i])
            }
    }
    function rounded(n,    unit) {
        for (unit = 1; n / unit >= 100; unit *= 10)
            ;
        return int(n / unit + 0.5) * unit
    }
    function row(file,    s, what) {
        what = says[file]
        if (sub("^" file " - ", "", what) == 0) {
            print "examples/" file " does not begin with: " file " - description" > "/dev/stderr"
            bad = 1
        }
        if (match(what, /[a-z0-9)]\. [A-Z]/)) # no initial, nor "et al. 2023"
            what = substr(what, 1, RSTART)
        if (match(what, /[:,] (a file )?to copy|: public calls|; model.h includes|, which includes/))
            what = substr(what, 1, RSTART - 1)
        sub(/\.$/, "", what)
        split("", seen)
        wanted = ""
        seen[file] = 1
        needs(file)
        s = calls[file] || "gradckpt.h" in seen ? "gradckpt.h" : ""
        s = s (s != "" && wanted != "" ? ", " : "") wanted
        if (file == "mpi.h")
            s = s ", MPI"
        else if (file == "nccl.h")
            s = s ", NCCL"
        else if (text[file] ~ /POSIX/ || "session.h" in seen)
            s = s (s == "" ? "" : ", ") "POSIX"
        return "| [" file "](" file ") | " what " | " (s == "" ? "the C library" : s) " | " rounded(lines[file]) " |"
    }
    END {
        for (kind = 1; kind <= 2; kind++) {
            if (kind == 2)
                print ""
            print (kind == 1 ? "| file to copy" : "| program") " | purpose | needs | lines |\n|---|---|---|--:|"
            for (i = 1; i <= n; i++)
                if (substr(files[i], length(files[i])) == (kind == 1 ? "h" : "c"))
                    print row(files[i])
        }
        exit bad
    }' *.h $(ls optimisers/*.h 2> /dev/null) *.c
