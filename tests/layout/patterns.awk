# Counts sentence patterns that a reader must decode, in prose: pages outside code blocks, all of .txt, comments of C; and
# comments of scripts that begin a line (sh, Python, awk, Makefile). Usage: awk -f patterns.awk FILE...; -v show=1 prints the
# lines. One line per file and a total with a number for each pattern.
function prose(line,   text, open, close_) {
    if (FILENAME ~ /\.md$/) {
        if (line ~ /^[ ]*```/) { fence = !fence; return "" }
        return fence || line ~ /^    / ? "" : line
    }
    if (FILENAME ~ /\.txt$/) return line
    if (FILENAME ~ /\.(sh|py|awk)$|(Makefile|run|budgets|MANIFEST|DEPS)$/) return line ~ /^[ \t]*#/ ? line : ""
    text = ""
    while (line != "") {
        if (inside) {
            close_ = index(line, "*/")
            if (!close_) return text " " line
            text = text " " substr(line, 1, close_ - 1); line = substr(line, close_ + 2); inside = 0
        } else {
            open = index(line, "/*")
            if (!open) { open = index(line, "//"); return open ? text " " substr(line, open + 2) : text }
            line = substr(line, open + 2); inside = 1
        }
    }
    return text
}
function count(text, pattern,   n, rest) {
    rest = text; n = 0
    while (match(rest, pattern)) { n++; rest = substr(rest, RSTART + (RLENGTH > 0 ? RLENGTH : 1)) }
    return n
}
BEGIN {
    p[1] = "(^|[.;:] +)(What|Who|Of|That of|Those of) [a-z]"                       # headless openings
    p[2] = "(^|[ (])(what|who) (is|are|has|have|had|was|were|the|a|runs|reads|makes|stands|remains|does|needs|only|it|they|one|nobody|others) "
    p[3] = "(^|[ (])beside([ ,.;:)]|$)"
    p[4] = "(^|[ (])behind([ ,.;:)]|$)"
    p[5] = "(^|[ (;.])(0|1|2|-1|NULL): [a-z]"                                      # 1: ..; 0: ..
    p[6] = "(^|[ (])but for([ ,.;:)]|$)"
    p[7] = "(^|[ (])so many([ ,.;:)]|$)"
    p[8] = "(^|[ (])anew([ ,.;:)]|$)"
    p[9] = "(^|[ (])of (its|their|one's|yours|ours|mine) own([ ,.;:)]|$)|(^|[ (])of (yours|ours)([ ,.;:)]|$)"
    p[10] = ", too([ ,.;:)]|$)"
    p[11] = "(there is|there are) none([ ,.;:)]|$)|(is|are) had([ ,.;:)]|$)|to be had([ ,.;:)]|$)"
    p[12] = "(^|[ (])(is|are|was|were) asked([ ,.;:)]|$)|(^|[ (])asks for([ ,.;:)]|$)"
    p[13] = "(^|[ (])of (before|then|now|today|old)([ ,.;:)]|$)"
    p[14] = "(^|[ (])(stands|stand) (there|here|at|in|beside|behind|before|once|twice)([ ,.;:)]|$)"
    patterns = 14
}
FNR == 1 { if (seen) report(); file = FILENAME; n = fence = inside = 0; seen = 1 }
{
    text = prose($0)
    if (text == "") next
    for (i = 1; i <= patterns; i++) {
        k = count(text, p[i]); n += k; kind[i] += k
        if (k && show) printf "%s:%d: (%d) %s\n", FILENAME, FNR, i, text
    }
}
function report() { total += n; if (!show) printf "%6d %s\n", n, file }
END { if (seen) report(); printf "%6d all;", total; for (i = 1; i <= patterns; i++) printf " %d: %d", i, kind[i]; print "" }
