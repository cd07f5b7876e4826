# Checks that the output of a program contains the numbers of the answer in order; other numbers may come between them.
# Prints the first difference.
#
#     awk -v words='yes no' -f docs/course/tools/compare.awk EXPECTED PRINTED
#
# In a line of the answer, only the text after the first colon counts, or the whole line if it has no colon: numbers,
# hashes (16 digits of 0-9a-f), inf, nan and the given words. A number with decimals may differ by one in the last place.
function kind_of(s)
{
    if (length(s) == 16 && s !~ /[^0-9a-f]/)
        return "hash"
    if (tolower(s) ~ /^[-+]?(inf|infinity|nan)$/)
        return "odd"
    return s ~ /^[-+]?[0-9.]/ ? "number" : s in counts ? "word" : ""
}
# Appends the tokens of a line that count to at[n + 1], ..; returns their number
function tokens(s, at, n,    t)
{
    while (match(s, /[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[A-Za-z0-9_]*|-?[A-Za-z_][A-Za-z0-9_]*/)) {
        t = substr(s, RSTART, RLENGTH)
        s = substr(s, RSTART + RLENGTH)
        if (kind_of(t) == "" && t ~ /^-/)
            t = substr(t, 2)
        if (kind_of(t) != "")
            at[++n] = kind_of(t) == "odd" ? tolower(t) : t
    }
    return n
}
function alike(want, got,    k, digits, off)
{
    k = kind_of(want)
    if (k != kind_of(got))
        return 0
    if (k != "number") {
        sub(/^-nan/, "nan", got)
        sub(/^-nan/, "nan", want)
        sub(/infinity$/, "inf", got)
        return want == got
    }
    digits = 0
    if (want ~ /^[-+]?[0-9]*\.[0-9]+[A-Za-z]*$/) {
        digits = want
        sub(/^[^.]*\./, "", digits)
        sub(/[A-Za-z]+$/, "", digits)
        digits = length(digits)
    }
    off = want - got
    off = off < 0 ? -off : off
    if (want ~ /[0-9][eE]/)
        return off <= 0.01 * (want < 0 ? -want : want)
    return off <= (digits ? 1.0001 * 10 ^ -digits : 0)
}
BEGIN {
    n = split(words, list, " ")
    for (i = 1; i <= n; i++)
        counts[list[i]] = 1
    wants = gots = 0
}
{ sub(/\r$/, "") }
FNR == NR {
    whole = $0
    all = tokens($0, rest, all)
    if (index($0, ":"))
        $0 = substr($0, index($0, ":") + 1)
    first = wants + 1
    wants = tokens($0, want, wants)
    for (i = first; i <= wants; i++)
        line_of[i] = whole
    next
}
{ gots = tokens($0, got, gots); printed = printed || /[^ \t]/ }
END {
    if (!printed) {
        print "it prints nothing"
        exit 1
    }
    if (!wants) {
        print "the answer prints nothing that counts"
        exit 2
    }
    if (gots > 3 * all + 20) {
        print "it prints " gots " numbers, where the answer has " all ": which of them are meant?"
        exit 1
    }
    for (k = 1; k <= wants; k++) {
        from = at
        while (++at <= gots && !alike(want[k], got[at]))
            ;
        if (at <= gots)
            continue
        line = line_of[k]
        gsub(/^ +| +$/, "", line)
        printf "%s is expected, as in the line \"%s\"; ", want[k], line
        if (from >= gots)
            print k == 1 ? "no number is printed" : "nothing comes behind " got[gots]
        else
            print (k == 1 ? "the first is " : "behind " got[from] " comes ") got[from + 1]
        exit 1
    }
}
