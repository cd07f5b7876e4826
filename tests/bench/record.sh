#!/bin/sh
# Records the Markdown tables that a benchmark has printed as rows of docs/benchmarks/TOPIC.tsv:
#
#     sh tests/bench/record.sh TOPIC TABLE.md [PREFIX]
#
# Each cell with a number becomes a row. Its case is PREFIX, the heading above the table, the label of the row and the
# heading of the column (except "value"), separated by ": ". The label of a row is its first cell and the cells
# without a number that follow it; an empty first cell repeats the one above. A second number in a cell gets " (2)"
# after its case. The new rows replace the rows of the topic that have the same PREFIX; without PREFIX, all rows.
#
# The date is today, the commit HEAD. In the environment: PROCESSOR (default: the name that lscpu prints) and THREADS
# (default: OMP_NUM_THREADS or the number of processors), both "-" for values that only depend on plans; RUNS
# (default: -); ROWS, an extended regular expression that the label of a row must match; LOG (default:
# docs/benchmarks), the folder.
[ $# -ge 2 ] && [ -f "$2" ] || { sed -n 's/^#     //p' "$0" >&2; exit 2; }
topic=$1 table=$2 prefix=$3
log=${LOG:-docs/benchmarks}/$topic.tsv
processor=${PROCESSOR:-$(LC_ALL=C lscpu 2> /dev/null | sed -n 's/^Model name: *//p' | head -n 1)}
threads=${THREADS:-${OMP_NUM_THREADS:-$(getconf _NPROCESSORS_ONLN 2> /dev/null)}}
commit=$(git rev-parse HEAD 2> /dev/null | cut -c 1-8)
header=$(printf 'case\tvalue\tunit\tdate\tcommit\tprocessor\tthreads\truns')
mkdir -p "${log%/*}" && touch "$log" || exit 1
{
    echo "$header"
    prefix=$prefix awk -F '\t' 'FNR > 1 && ENVIRON["prefix"] != "" && index($1, ENVIRON["prefix"] ": ") != 1' "$log"
} > "$log.new"
prefix=$prefix wanted=$ROWS tail=$(printf '%s\t%s\t%s\t%s\t%s' "$(date +%Y-%m-%d)" "${commit:--}" "${processor:--}" \
    "${threads:--}" "${RUNS:--}") awk '
    function clean(text) {
        gsub(/[*`]|<[^>]*>/, "", text)
        gsub(/\t/, " ", text)
        gsub(/^ +| +$/, "", text)
        while (match(text, /[0-9],[0-9][0-9][0-9]([^0-9]|$)/))
            text = substr(text, 1, RSTART) substr(text, RSTART + 2)
        return text
    }
    function is_unit(text) { return text ~ /^(ns|us|ms|s|%|bytes|bits|KB|MB|GB|KiB|MiB|GiB|lines|nats|ulp|GFLOP\/s|GB\/s|Mb\/s|tokens\/s)$/ }
    function ends_with(text,    n, word) { # returns the unit after the last comma, as in "GPT-2, MB", or ""
        n = split(text, word, /, */)
        return n > 1 && is_unit(word[n]) ? word[n] : ""
    }
    function unit_in(text,    n, word, i) { # returns the last unit in a heading, or ""
        n = split(text, word, /[ ,()]+/)
        for (i = n; i > 0; i--)
            if (is_unit(word[i]))
                return word[i]
        return ""
    }
    # Returns the unit of a column: the unit at the end of its heading, or else at the start of it, or else the unit in
    # the title of the table, or else a unit within the heading, or within the heading of the first column.
    function unit_of(heading,    word) {
        split(heading, word, " ")
        return ends_with(heading) != "" ? ends_with(heading) : is_unit(word[1]) ? word[1] : title_unit != "" ? title_unit : \
            unit_in(heading) != "" ? unit_in(heading) : unit_in(column[1])
    }
    function join(a, b) { return a == "" ? b : b == "" ? a : a ": " b }
    function emit(name, value, unit) {
        times[name]++
        printf "%s\t%s\t%s\t%s\n", name (times[name] > 1 ? " #" times[name] : ""), value, unit == "" ? "-" : unit, ENVIRON["tail"]
        rows++
    }
    /^#/ { title = $0; sub(/^#+ */, "", title); title = clean(title); title_unit = ends_with(title) }
    !/^\|/ { in_table = 0; next }
    {
        line = $0
        sub(/^\| */, "", line)
        sub(/ *\| *$/, "", line)
        cells = split(line, cell, / *\| */)
        for (i = 1; i <= cells; i++)
            cell[i] = clean(cell[i])
        if (!in_table) {
            for (i = 1; i <= cells; i++)
                column[i] = cell[i]
            in_table = 1
            above = ""
            next
        }
        if (line ~ /^[-: |]+$/)
            next
        first = cell[1] == "" ? above : cell[1]
        above = first
        if (first ~ /^[0-9.]+$/)
            first = column[1] " " first
        for (i = 2; i <= cells && cell[i] !~ /^[-+<]? *[0-9]/; i++)
            if (cell[i] != "")
                first = first ", " cell[i]
        if (ENVIRON["wanted"] != "" && first !~ ENVIRON["wanted"])
            next
        for (; i <= cells; i++) {
            rest = cell[i]
            for (n = 1; match(rest, /[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/); n++) {
                before = substr(rest, 1, RSTART - 1)
                value = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                if (before ~ /[A-Za-z_]$/ || rest ~ /^[A-Za-z_]/) # part of a name
                    continue
                split(rest, word, /[ ,;()]+/)
                unit = word[rest ~ /^ / ? 2 : 1]
                if (!is_unit(unit))
                    unit = n > 1 ? "" : unit_of(column[i])
                name = column[i] == "value" ? "" : column[i]
                name = join(join(ENVIRON["prefix"], title), join(first, name))
                emit(name (n > 1 ? " (" n ")" : ""), value, unit)
            }
        }
    }
    END { exit !rows }' "$table" >> "$log.new" || { echo "$table has no table with numbers" >&2; rm "$log.new"; exit 1; }
mv "$log.new" "$log"
