#!/bin/sh
# Checks the words of names and prose against tests/layout/words.txt: sh tests/layout/words.sh [ROOT]. Prints a line
# for each fault; if there is one, the exit status is 1.
#   - A word of the first list occurs nowhere: names, comments, texts, scripts and pages of ROOT, except the CHANGELOG (old
#     names), the lists themselves, and data (golden values, texts to train on, seeds of the fuzzers).
#   - A word of the second list has several senses. Each name in src/ that contains it is listed once, under its sense.
# Names are split at '_', at digits and before capitals after small letters: gckpti_freeBlocks3 is gckpti, free, blocks.
cd "${1:-.}" || exit 1
lists=tests/layout/words.txt
files=$(find src tests examples docs README.md Makefile .ci -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \
    -o -name '*.cpp' -o -name '*.ino' -o -name '*.sh' -o -name '*.py' -o -name '*.awk' -o -name '*.js' -o -name '*.mjs' \
    -o -name '*.md' -o -name '*.txt' -o -name Makefile -o -name MANIFEST -o -name DEPS -o -name budgets -o -name run \) \
    ! -path "$lists" ! -path tests/layout/words_faults.txt ! -path docs/CHANGELOG.md ! -path '*/golden/*.h' ! -path '*/golden/*.txt' ! -path '*/corpus/*' \
    ! -path '*/regressions/*' ! -name 'shakespeare*' ! -path '*/data/*' ! -path tests/golden/make_tokenizer.py | LC_ALL=C sort)
{
    # shellcheck disable=SC2086 # no name has a space
    LC_ALL=C awk -v lists="$lists" '
    function split_words(text) { # in small letters, between single spaces
        while (match(text, /[a-z][A-Z]/))
            text = substr(text, 1, RSTART) " " substr(text, RSTART + 1)
        gsub(/[^A-Za-z]+/, " ", text)
        return " " tolower(text) " "
    }
    function is_form(word, w) { return word == w || word == w "s" || word == w "ed" || word == w "ing" || word == w "er" }
    function check_name(name,    words, n, part, i, w) {
        if (name in known)
            return
        known[name] = 1
        n = split(split_words(name), part, " ")
        for (i = 1; i <= n; i++)
            for (w in senses)
                if (is_form(part[i], w)) {
                    found[w, name] = 1
                    if (!((w, name) in listed))
                        fault(FILENAME ":" FNR ": name \"" name "\" contains \"" w "\": list it under its sense in " lists)
                }
    }
    function fault(text) { print text; bad++ }
    FILENAME == lists {
        if (/^#/ || !/\|/)
            next
        n = split($0, field, / *\| */)
        if (n == 2) {
            n = split(field[1], word, " ")
            for (i = 1; i <= n; i++)
                instead[word[i]] = field[2]
        } else {
            senses[field[1]] = 1
            n = split(field[3], word, " ")
            for (i = 1; i <= n; i++) {
                if ((field[1], word[i]) in listed)
                    fault(lists ":" FNR ": \"" word[i] "\" is listed twice under \"" field[1] "\"")
                listed[field[1], word[i]] = FNR
            }
        }
        next
    }
    FNR == 1 { comment = 0; is_source = FILENAME ~ /^src\/.*\.(c|h|cu|cuh)$/ }
    {
        n = split(split_words($0), word, " ")
        for (i = 1; i <= n; i++)
            if (word[i] in instead)
                fault(FILENAME ":" FNR ": \"" word[i] "\": use the word of the field (" instead[word[i]] ")")
        if (!is_source)
            next
        text = $0
        if (comment) {
            if (!sub(/^.*\*\//, "", text))
                next
            comment = 0
        }
        gsub(/"([^"\\]|\\.)*"/, "", text)
        gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "", text)
        sub(/\/\/.*/, "", text)
        if (sub(/\/\*.*/, "", text))
            comment = 1
        while (match(text, /[A-Za-z_][A-Za-z_0-9]*/)) {
            check_name(substr(text, RSTART, RLENGTH))
            text = substr(text, RSTART + RLENGTH)
        }
    }
    END {
        for (key in listed)
            if (!(key in found)) {
                split(key, part, SUBSEP)
                fault(lists ":" listed[key] ": no name \"" part[2] "\" in src/ (under \"" part[1] "\")")
            }
        exit bad > 0
    }' $lists $files
}
