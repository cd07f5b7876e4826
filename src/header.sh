#!/bin/sh
# Puts a header together from the files that DIR/ORDER lists, in that order: sh src/header.sh src > gradckpt.h
# Says what is wrong and fails: a file that is missing, listed twice or not listed; a static name in two files.
dir=$1
{
    find "$dir" -type f | sed "s,^$dir/,/ ," | sort
    sed 's/^/+ /' "$dir/ORDER"
} | awk -v dir="$dir" '
    function wrong(text) { print "src/header.sh: " text > "/dev/stderr"; bad = 1 }
    # A static function or table with a body, at file scope; what macros paste names for is not seen.
    function look(line, file) {
        if (line ~ /^static [^=]*gckpti_[a-z0-9_]+(\[[^]]*\])* *[(=]/) {
            name = substr(line, match(line, /gckpti_[a-z0-9_]+(\[[^]]*\])* *[(=]/))
            sub(/[^a-z0-9_].*/, "", name)
        }
        if (name == "" || line !~ /;$|^\{|= *\{/)
            return
        if (line !~ /;$/ && name in home && home[name] != file)
            wrong("static " name " is in " dir "/" home[name] " and in " dir "/" file)
        if (line !~ /;$/)
            home[name] = file
        name = ""
    }
    $1 == "/" { if ($2 ~ /\.(c|h|txt)$/) there[$2] = 1; next }
    $2 ~ /^#/ || NF < 2 { next }
    listed[$2]++ { wrong(dir "/ORDER lists " $2 " twice"); next }
    !($2 in there) { wrong(dir "/ORDER lists " $2 ", which is not there"); next }
    {
        while ((getline line < (dir "/" $2)) > 0) {
            look(line, $2)
            print line
        }
        close(dir "/" $2)
    }
    END {
        for (file in there)
            if (!listed[file])
                wrong(dir "/" file " is not in " dir "/ORDER")
        exit bad
    }'
