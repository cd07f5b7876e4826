#!/bin/sh
# Checks prose against tests/layout/prose.txt: sh tests/layout/prose.sh [ROOT]. Prints a line for each violation; then the exit
# status is 1. `sh tests/layout/prose.sh . show` prints the numbers of all groups in addition.
#   - A group of files has at most as many hits of patterns.awk (sentences that a reader must decode) as its line says.
#   - A page has at most as many lines as its line says, and every page of docs/ has a line.
# The CHANGELOG quotes old names, golden values and texts to train on are data: their patterns are not counted.
cd "${1:-.}" || exit 1
limits=tests/layout/prose.txt
find README.md Makefile .ci src examples tests docs -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \
    -o -name '*.ino' -o -name '*.sh' -o -name '*.py' -o -name '*.awk' -o -name '*.md' -o -name manual.txt -o -name Makefile \
    -o -name run -o -name budgets -o -name MANIFEST -o -name DEPS \) ! -path '*/golden/*' ! -path '*/corpus/*' \
    ! -path '*/regressions/*' ! -path '*/data/*' ! -name patterns.awk | LC_ALL=C sort |
    xargs awk -f tests/layout/patterns.awk |
    awk -v limits="$limits" -v show="${2:-}" '
    function matches(file, globs,    i, n, glob) {
        n = split(globs, glob, " ")
        for (i = 1; i <= n; i++) {
            gsub(/\./, "\\.", glob[i])
            gsub(/\*/, ".*", glob[i])
            if (file ~ "^" glob[i] "$")
                return 1
        }
        return 0
    }
    BEGIN {
        while ((getline line < limits) > 0) {
            if (line ~ /^#/ || split(line, field, / *\| */) < 2)
                continue
            if (field[3] != "") {
                group[++groups] = field[1]
                most[groups] = field[2]
                globs[groups] = field[3]
            } else
                allowed[field[1]] = field[2]
        }
    }
    NF == 2 && $1 ~ /^[0-9]+$/ {
        for (i = 1; i <= groups && !matches($2, globs[i]); i++)
            ;
        if (i > groups)
            fault($2 ": no group of " limits " has it")
        if ($2 !~ /CHANGELOG/)
            hits[i] += $1
        if ($2 ~ /^docs\/.*\.md$/ && !($2 in allowed))
            fault($2 ": this page has no line in " limits ": write into an existing page")
    }
    function fault(text) { print text; bad++ }
    END {
        for (i = 1; i <= groups; i++) {
            if (hits[i] > most[i])
                fault(group[i] ": " hits[i] " hits of patterns.awk, " most[i] " are allowed; awk -v show=1 -f tests/layout/patterns.awk FILE... prints them")
            if (show)
                printf "%-10s %5d of %d\n", group[i], hits[i], most[i]
        }
        for (page in allowed) {
            lines = 0
            while ((status = (getline line < page)) > 0)
                lines++
            if (status < 0)
                fault(page ": there is no such page, but " limits " has a line for it")
            close(page)
            if (allowed[page] != "any" && lines > allowed[page])
                fault(page ": " lines " lines, " allowed[page] " are allowed")
            all += lines
        }
        exit bad > 0
    }'
