# Writes the lessons as slides in one HTML file, for build/:
#
#     awk -v css=FILE -v js=FILE -f docs/course/tools/slides.awk docs/course/[0-9]-*.md > build/slides.html
#
# A comment before a paragraph or a block selects the text for slides:
#
#     <!-- slide: Title -->                a slide with the next paragraph or block
#     <!-- slide 1,3-4: Title | 5: Title --> slides with these sentences of the next paragraph, a line each
#     <!-- and 2 -->                       these sentences on the same slide; without a number all of them
#     <!-- code neuron.c "words" 5 -->     five lines of the program on the same slide, from the first with these words
#
# The title, the playground, questions, answers and exercises of a lesson have slides without a comment. Fails if a
# comment names a sentence or a line that does not exist.
function fail(what) { print where ":" row ": " what > "/dev/stderr"; bad = 1 }
function escape(s)
{
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    gsub(/>/, "\\&gt;", s)
    return s
}
# Returns the link of a page in docs/course as a link of build/slides.html
function target(to)
{
    if (to ~ /^https?:/)
        return to
    to = "docs/course/" to
    while (sub(/[a-z]+\/\.\.\//, "", to))
        ;
    return sub(/^build\//, "", to) ? to : "../" to
}
function styled(s,    out, at)
{
    s = escape(s)
    while (match(s, /\*\*[^*]+\*\*/))
        s = substr(s, 1, RSTART - 1) "<b>" substr(s, RSTART + 2, RLENGTH - 4) "</b>" substr(s, RSTART + RLENGTH)
    while (match(s, /\*[A-Za-z][^*]*[A-Za-z.']\*/))
        s = substr(s, 1, RSTART - 1) "<em>" substr(s, RSTART + 1, RLENGTH - 2) "</em>" substr(s, RSTART + RLENGTH)
    while (match(s, /\[[^]]*\]\([^)]*\)/)) {
        at = substr(s, RSTART, RLENGTH)
        out = index(at, "](")
        at = "<a href=\"" target(substr(at, out + 2, length(at) - out - 2)) "\">" substr(at, 2, out - 2) "</a>"
        s = substr(s, 1, RSTART - 1) at substr(s, RSTART + RLENGTH)
    }
    return s
}
# Converts a line of Markdown: code between `..` unchanged, the rest with links, *em* and **b**
function markdown(s,    part, n, i, out)
{
    n = split(s, part, "`")
    for (i = 1; i <= n; i++)
        out = out (i % 2 ? part[i] : "\001" i "\001")
    out = styled(out)
    for (i = 2; i <= n; i += 2) {
        s = "<code>" escape(part[i]) "</code>"
        gsub(/&/, "\\\\&", s)
        sub("\001" i "\001", s, out)
    }
    return out
}
function begin_slide(title, kind)
{
    close_slide()
    slides++
    slide_number++
    print "<section id=\"" lesson "-" slide_number "\"" (kind ? " class=\"" kind "\"" : "") ">\n<h2>" markdown(title) "</h2>"
    within = 1
}
function close_slide()
{
    if (within)
        printf "<footer>%s<span>%d</span></footer>\n</section>\n",
            lesson ? "<a href=\"#0-1\">" markdown(name) "</a>" : "", slides
    within = 0
}
function block(text,    n, i, line, wide)
{
    sub(/\n$/, "", text)
    n = split(text, line, "\n")
    for (i = 1; i <= n; i++)
        wide = length(line[i]) > wide ? length(line[i]) : wide
    print "<pre style=\"--n:" n ";--w:" wide "\">" escape(text) "</pre>"
}
# Stores the sentences of a paragraph in sentence[1], ..; returns their number
function sentences(s,    n)
{
    n = 0
    while (match(s, /[.?!][)*"]* +[A-Z*`(\[0-9]/)) {
        sentence[++n] = substr(s, 1, RSTART + RLENGTH - 2)
        s = substr(s, RSTART + RLENGTH - 1)
    }
    sentence[++n] = s
    return n
}
function bullets(which, text,    n, part, parts, i, k, range)
{
    n = sentences(text)
    parts = split(which, part, ",")
    print "<ul>"
    for (i = 1; i <= parts; i++) {
        split(part[i], range, "-")
        for (k = range[1] + 0; k <= (range[2] ? range[2] : range[1]) + 0; k++) {
            if (k < 1 || k > n)
                fail("there is no sentence " k)
            sub(/ +$/, "", sentence[k])
            print "<li>" markdown(sentence[k]) "</li>"
        }
    }
    print "</ul>"
}
# Writes the slides that a comment requests of the paragraph or block after it
function give(text, kind,    n, spec, i, which, title)
{
    if (asked == "")
        return
    n = split(asked, spec, / *\| */)
    asked = ""
    for (i = 1; i <= n; i++) {
        which = title = spec[i]
        sub(/:.*/, "", which)
        sub(/^[^:]*: */, "", title)
        gsub(/[^0-9,-]/, "", which)
        if (!same)
            begin_slide(title)
        if (kind == "block")
            block(text)
        else if (which != "")
            bullets(which, text)
        else
            print "<p>" markdown(text) "</p>"
    }
}
function code(words, lines, from,    file, s, n, text, least, i, got)
{
    file = where
    sub(/[^\/]*$/, "", file)
    file = file from
    least = 99
    while ((getline s < file) > 0) {
        if (!n && !index(s, words))
            continue
        if (n++ == lines)
            break
        got[n] = s
        match(s, /^ */)
        if (s != "" && RLENGTH < least)
            least = RLENGTH
    }
    close(file)
    if (n < lines)
        fail(from " has no " lines " lines from \"" words "\" on")
    for (i = 1; i <= lines; i++)
        text = text substr(got[i], least + 1) "\n"
    block(text)
}
# Ends the paragraph or list that has been read
function finish(    text, i)
{
    text = para
    para = ""
    if (items) {
        print "<ol>"
        for (i = 1; i <= items; i++)
            print "<li>" markdown(item[i]) "</li>"
        print "</ol>"
        items = 0
        return
    }
    if (text == "")
        return
    if (section == "" && text ~ /^\*\*In the playground:\*\*/) {
        sub(/^\*\*In the playground:\*\* */, "", text)
        begin_slide("In the playground", "play")
        print "<p>" markdown(text) "</p>"
    } else if (section == "Exercises" && !answer && text ~ /^\*\*(First|Second)\.\*\*/) {
        sub(/^\*\*[A-Za-z]*\.\*\* */, "", text)
        begin_slide("Exercise " lesson "." ++exercise)
        print "<p>" markdown(text) "</p>\n<p class=\"try\"><code>make exercise-" lesson "." exercise "</code></p>"
    } else if (section == "")
        give(text, "")
}

# All pages are read before the first slide is written, because it lists them.
{ line[++lines] = $0; of[lines] = FILENAME; number[lines] = FNR }
FNR == 1 { headings[++lessons] = substr($0, 3) }
END {
    head()
    lesson = slide_number = 0
    begin_slide("Training in a byte budget", "title")
    print "<ol>"
    for (i = 1; i <= lessons; i++) {
        text = headings[i]
        sub(/^[0-9]+\. /, "", text)
        print "<li><a href=\"#" i "-1\">" markdown(text) "</a></li>"
    }
    print "</ol>\n<p class=\"keys\">Arrows, space or a swipe turn the pages; 1 to " lessons " go to a lesson, 0 here;"
    print "d: light or dark; printing gives a page each.</p>"
    for (at = 1; at <= lines; at++)
        read(line[at])
    close_slide()
    print "</main>"
    tail()
    exit bad
}
function read(s,    title, part)
{
    where = of[at]
    row = number[at]
    if (row == 1) {
        lesson = where
        sub(/.*\//, "", lesson)
        lesson += 0
        section = para = asked = ""
        exercise = answer = fence = items = 0
    }
    if (fence) {
        if (s ~ /^```/) {
            fence = 0
            if (section == "")
                give(kept, "block")
        } else
            kept = kept s "\n"
        return
    }
    if (s ~ /^# /) {
        close_slide()
        name = substr(s, 3)
        slide_number = 0
        title = name
        sub(/^[0-9]+\. /, "", title)
        begin_slide(title, "title")
        print "<p class=\"lesson\">Lesson " lesson "</p>\n<p><code>make lesson-" lesson "</code></p>"
    } else if (s ~ /^## /) {
        finish()
        section = substr(s, 4)
        if (section == "Questions")
            begin_slide("Questions")
    } else if (s ~ /^```/) {
        finish()
        fence = 1
        kept = ""
    } else if (s ~ /^<details>/) {
        finish()
        answer = 1
        if (section == "Questions")
            begin_slide("Answers", "answers")
    } else if (s ~ /^<\/details>/) {
        finish()
        answer = 0
    } else if (s ~ /^<!-- slide/) {
        finish()
        asked = s
        same = 0
        sub(/^<!-- slide */, "", asked)
        sub(/ *-->$/, "", asked)
    } else if (s ~ /^<!-- and/) {
        finish()
        asked = s ":"
        same = 1
        sub(/^<!-- and/, "", asked)
        sub(/ *-->/, "", asked)
    } else if (s ~ /^<!-- code /) {
        finish()
        split(s, part, "\"")
        match(part[1], /[a-z]+\.[ch]/)
        code(part[2], part[3] + 0, substr(part[1], RSTART, RLENGTH))
    } else if (s ~ /^<!--/) {
        return
    } else if (s == "") {
        if (section != "Questions")
            finish()
    } else if (section == "Questions" && s ~ /^[0-9]+\. /) {
        sub(/^[0-9]+\. /, "", s)
        item[++items] = s
    } else if (section == "Questions" && items) {
        sub(/^ +/, "", s)
        item[items] = item[items] " " s
    } else
        para = para (para == "" ? "" : " ") s
}
function put(file,    s)
{
    while ((getline s < file) > 0)
        print s
    close(file)
}
function head()
{
    print "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"
    print "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    print "<title>Training in a byte budget: slides</title>\n<style>"
    put(css)
    print "</style>\n</head>\n<body>\n<main tabindex=\"0\" aria-label=\"Slides\">"
}
function tail()
{
    print "<script>"
    put(js)
    print "</script>\n</body>\n</html>"
}
