# Prints the reference, one HTML page, from the declarations of gradckpt.h, its manual and PyTorch's names in docs/ops.md:
#
#     awk -v css=FILE -v js=FILE -f docs/reference/reference.awk docs/ops.md gradckpt.h > index.html
#
# The comment above a declaration describes it and the declarations that follow without a comment or an empty line
# between them; a comment after a declaration, on its line, describes only that one. Functions without a text are errors.
function escape(s)
{
    gsub(/&/, "\\&amp;", s)
    gsub(/</, "\\&lt;", s)
    gsub(/>/, "\\&gt;", s)
    return s
}
function trim(s) { sub(/^[ \n]+/, "", s); sub(/[ \n]+$/, "", s); return s }
function link(name, shown,    at)
{
    at = name
    sub(/\..*/, "", at)
    if (name in known)
        return "<a href=\"#" name "\">" shown "</a>"
    if (at in known)
        return "<a href=\"#" at "\">" shown "</a>"
    return shown
}
# Makes links of names of the header, of "manual, 9" and of files of the repository; "manual, 5c" leads to
# docs/numerics.md.
function linked(s, code,    out, word, before)
{
    out = ""
    while (match(s, /(gckpt|GCKPT|GRADCKPT)_[A-Za-z0-9_]+(\.[a-z0-9_]+)*|E_[A-Z]+|manual, [0-9]+[a-z]?|(docs|examples|tests)\/[a-z0-9_\/.-]+\.(md|h|c|svg|cu|sh)/)) {
        before = substr(s, RSTART - 1, RSTART > 1)
        word = substr(s, RSTART, RLENGTH)
        out = out escape(substr(s, 1, RSTART - 1))
        s = substr(s, RSTART + RLENGTH)
        if (before ~ /[A-Za-z0-9_]/)
            out = out escape(word)
        else if (word ~ /^manual.*[a-z]$/)
            out = out "<a href=\"../../docs/numerics.md\">" word "</a>"
        else if (word ~ /^manual/)
            out = out "<a href=\"#manual-" substr(word, 9) "\">" word "</a>"
        else if (word ~ /\//)
            out = out "<a href=\"../../" word "\">" word "</a>"
        else if (word ~ /^E_/)
            out = out (code ? word : "<code>" link("GCKPT_" word, word) "</code>")
        else
            out = out (code ? link(word, word) : "<code>" link(word, word) "</code>")
    }
    return out escape(s)
}
# Returns a cell of a Markdown table, with `code`, [links](..) and \|, as HTML.
function markdown(s,    out, part, n, i)
{
    gsub(/\001/, "|", s)
    while (match(s, /\[[^]]*\]\([^)]*\)/))
        s = substr(s, 1, RSTART - 1) substr(s, RSTART + 1, index(substr(s, RSTART), "]") - 2) substr(s, RSTART + RLENGTH)
    n = split(s, part, "`")
    for (i = 1; i <= n; i++)
        out = out (i % 2 ? linked(part[i], 0) : "<code>" linked(part[i], 1) "</code>")
    return out
}
function paragraphs(s,    part, n, i, out)
{
    n = split(s, part, "\n\n")
    for (i = 1; i <= n; i++)
        if (part[i] != "")
            out = out "<p>" linked(part[i], 0) "</p>\n"
    return out
}

# ---- docs/ops.md: PyTorch's name for each op, the last column of its tables ----
FILENAME ~ /ops\.md$/ {
    gsub(/\\\|/, "\001")
    if (/^\| `gckpt_/) {
        n = split($0, cell, / *\| */)
        name = cell[2]
        gsub(/`|\(.*/, "", name)
        pytorch[name] = cell[n - 1]
    }
    next
}
function row_of(name) { return "<dl class=\"op\"><dt>PyTorch</dt><dd>" markdown(pytorch[name]) "</dd></dl>" }

# ---- gradckpt.h: the manual, then the declarations ----
/^#ifndef GRADCKPT_H/ { part = "api"; next }
/^#endif \/\* GRADCKPT_H \*\// { part = "done" }
part == "" && FNR == 1 { version = $4; sub(/^v/, "", version) }
part == "" && /^ \* You set/ { part = "intro" }
part == "intro" && /^ \* == MANUAL/ { part = "manual"; next }
part == "manual" && /^ \* == CONTENTS/ { part = "between" }
part == "intro" { sub(/^ \* ?/, ""); intro[++intros] = $0 }
part == "manual" { sub(/^ \* ?/, ""); manual[++manuals] = $0 }
part == "api" { line[++lines] = $0 }
function fail(text) { print "docs/reference: " text > "/dev/stderr"; bad = 1 }

# Returns the text of the comment that begins in line i, column `where`; sets `last` to its last line, `behind` to the code
# after it.
function comment(i, where,    s, out)
{
    s = substr(line[i], where + 2)
    while (!index(s, "*/")) {
        out = out s "\n"
        s = line[++i]
        sub(/^ *\*($|[^\/])/, "\004&", s)
        if (sub(/^\004 *\* ?/, "", s) == 0)
            sub(/^\004/, "", s)
    }
    last = i
    behind = substr(s, index(s, "*/") + 2)
    out = out substr(s, 1, index(s, "*/") - 1)
    gsub(/\n *\n/, "\n\n", out)
    return trim(filled(out))
}
# Joins the lines of each paragraph.
function filled(s)
{
    gsub(/\n\n/, "\005", s)
    gsub(/ *\n */, " ", s)
    gsub(/\005 */, "\n\n", s)
    return s
}
function put_text(kind, s) { kinds[++items] = kind; texts[items] = s; without[items] = condition() }
function condition(    i, out)
{
    for (i = 1; i <= depth; i++)
        if (under[i] ~ /^GCKPT_NO_/)
            out = out (out == "" ? "" : " ") under[i]
    return out
}
# Returns the name that a declaration declares; sets `kind`.
function name_of(code)
{
    if (code ~ /^#define/) {
        match(code, /GCKPT_[A-Z0-9_]+/)
        kind = "macro"
    } else if (code ~ /^(GCKPT_API|extern)/) {
        match(code, /gckpt_[a-z0-9_]+\(/)
        RLENGTH--
        kind = "function"
    } else if (code ~ /\{/ && code ~ /^typedef/) {
        kind = code ~ /^typedef enum/ ? "enum" : "struct"
        match(code, /[a-z0-9_]+;$/)
        RLENGTH--
    } else if (code ~ /^struct/) {
        match(code, /gckpt_[a-z0-9_]+/)
        kind = "struct"
    } else if (code ~ /^enum/) {
        kind = "enum"
        return ""
    } else if (match(code, /\(\*gckpt_[a-z0-9_]+\)/)) {
        RSTART += 2
        RLENGTH -= 3
        kind = "function type"
    } else {
        match(code, /[a-z0-9_]+;$/)
        RLENGTH--
        kind = "type"
    }
    return substr(code, RSTART, RLENGTH)
}
# Adds the declaration in lines first..end; `own` is the comment after it.
function put(first, end, code, own,    name)
{
    name = name_of(code)
    if (name ~ /^GCKPT_(RESULT_ENUM|API)$/ || code ~ /GRADCKPT_H/)
        return
    put_text("decl", own)
    names[items] = name
    codes[items] = code
    sorts[items] = kind
    starts[items] = first
    ends[items] = end
    if (name != "")
        known[name] = kind
    if (kind == "enum" || kind == "struct")
        fields(items, first, end)
    if (name == "GCKPT_RESULTS")
        results(first, end)
}
# Adds the fields of a struct or enum: the comment before each, its code, and the comment after it.
function fields(item, first, end,    i, s, at, lead, code, own, n)
{
    code = lead = ""
    for (i = first; i <= end; i++) {
        s = line[i]
        if (i == first)
            s = substr(s, index(s, "{") + 1)
        if (i == end && match(s, /\} *[a-z0-9_]*;/))
            s = substr(s, 1, RSTART - 1)
        while ((s = trim(s)) != "") {
            at = index(s, "/*")
            if (at == 1) { # a comment before the next field or after the last one
                line[i] = s
                own = comment(i, 1)
                i = last
                s = behind
                if (code != "" || !fresh)
                    lead = own
                if (code == "" && fresh && n > 0)
                    field_own[item, n] = own
                fresh = 0
                continue
            }
            if (at > 0) {
                code = code " " substr(s, 1, at - 1)
                s = substr(s, at)
            } else {
                code = code " " s
                s = ""
            }
            n = cut(item, n, code, lead)
            if (rest_of != code)
                lead = ""
            code = rest_of
        }
        fresh = 0
    }
    if (trim(code) != "" && sorts[item] == "enum")
        n = cut(item, n, code ",", lead)
    field_count[item] = n
}
# Moves complete fields (up to a semicolon, in an enum up to a comma) from code to the item; sets rest_of to the remainder.
# A field of a sub-struct gets the sub-struct's name as its prefix: "ranks.overlap".
function cut(item, n, code, lead,    sep, i, c, deep, one)
{
    sep = sorts[item] == "enum" ? "," : ";"
    one = ""
    for (i = 1; i <= length(code); i++) {
        c = substr(code, i, 1)
        deep += (c == "(") - (c == ")")
        if (c == sep && deep == 0 && trim(one) ~ /^\}/) {
            sub(/^[ }]*/, "", one)
            for (; inner <= n; inner++) {
                field_prefix[item, inner] = trim(one) "."
                know_field(item, field_code[item, inner], trim(one) ".")
            }
            inner = 0
            one = ""
        } else if (c == sep && deep == 0) {
            if (sub(/^ *struct *\{/, "", one))
                inner = n + 1
            field_code[item, ++n] = trim(one) (sep == ";" ? ";" : "")
            field_lead[item, n] = lead
            lead = ""
            fresh = 1
            if (!inner)
                know_field(item, one)
            one = ""
        } else
            one = one c
    }
    rest_of = trim(one)
    return n
}
function know_field(item, code, prefix)
{
    if (sorts[item] == "enum") {
        match(code, /GCKPT_[A-Z0-9_]+/)
        known[substr(code, RSTART, RLENGTH)] = "value"
        return
    }
    if (match(code, /\(\*[a-z_]+\)/))
        known[names[item] "." prefix substr(code, RSTART + 2, RLENGTH - 3)] = "field"
    else {
        gsub(/\[[^]]*\]|;/, "", code)
        gsub(/^.*[ *]/, "", code)
        known[names[item] "." prefix trim(code)] = "field"
    }
}
# Adds each X(NAME, "text") of GCKPT_RESULTS as a value of gckpt_result.
function results(first, end,    i, s, n)
{
    for (i = first; i <= end; i++)
        if (match(line[i], /X\([A-Z_]+, "/)) {
            s = substr(line[i], RSTART + 2)
            result_name[++result_count] = "GCKPT_" substr(s, 1, index(s, ",") - 1)
            known[result_name[result_count]] = "value"
            s = substr(s, index(s, "\"") + 1)
            result_text[result_count] = substr(s, 1, index(s, "\"") - 1)
        }
}
function parse(    i, s, first, code, own, at, deep, c, k)
{
    for (i = 1; i <= lines; i++) {
        s = line[i]
        if (s ~ /^ *$/)
            put_text("gap", "")
        else if (s ~ /^\/\*/) {
            s = comment(i, 1)
            i = last
            if (s ~ /^>>api/)
                put_text("section", s)
            else if (s ~ /^---- /)
                put_text("heading", substr(s, 6))
            else
                put_text("lead", s)
        } else if (s ~ /^#(if|ifdef|ifndef) /) {
            under[++depth] = s ~ /^#ifndef GCKPT_(NO_|SMALL)/ ? substr(s, 9) : s
            sub(/ .*/, "", under[depth])
            if (s !~ /^#ifndef GCKPT_(NO_|SMALL)/) { # no switch
                for (k = 1; k > 0 && i < lines; k += (s ~ /^#if/) - (s ~ /^#endif/))
                    s = line[++i]
                depth--
            }
        } else if (s ~ /^#endif/)
            depth--
        else if (s ~ /^#(undef|pragma|include)/)
            continue
        else {
            first = i
            code = ""
            deep = 0
            for (;;) { # until the declaration ends; comments are removed
                own = ""
                s = line[i]
                while ((at = index(s, "/*")) > 0) {
                    code = code " " substr(s, 1, at - 1)
                    k = i
                    if (k > first || at > 1)
                        own = comment_at(k, s, at)
                    i = last
                    s = behind
                }
                code = trim(code " " s)
                gsub(/  +/, " ", code)
                c = code
                deep = gsub(/\{/, "", c)
                c = code
                deep -= gsub(/\}/, "", c)
                if (line[first] ~ /^#define/ ? code !~ /\\$/ : deep == 0 && code ~ /;$/)
                    break
                i++
            }
            gsub(/ *\\ */, " ", code)
            put(first, i, code, own)
        }
    }
}
function comment_at(i, s, at,    was, out)
{
    was = line[i]
    line[i] = s
    out = comment(i, at)
    line[i] = was
    return out
}

# ---- output ----
function title_of(s) { sub(/^>>/, "", s); sub(/^api-?/, "", s); return s }
function slug(s) { s = tolower(s); gsub(/[^a-z0-9]+/, "-", s); return s }
function code_of(code, name)
{
    sub(/^(GCKPT_API|extern) /, "", code)
    code = linked(code, 1)
    if (name != "")
        sub("<a href=\"#" name "\">" name "</a>", "<b>" name "</b>", code)
    return code
}
function span_id(name) { return name == "" ? "" : " id=\"" name "\" data-k=\"" known[name] "\"" }
function emit_fields(item,    i, j, k, own, lead)
{
    if (field_count[item] == 0)
        return
    print "<table>"
    for (i = 1; i <= field_count[item]; i = j) {
        lead = field_lead[item, i]
        j = i + 1
        if (lead != "" && (field_own[item, i] != "" || lead ~ /:$/)) {
            print "<tr><td class=\"lead\" colspan=\"2\">" paragraphs(lead) "</td></tr>"
            lead = ""
        }
        if (lead != "" || field_own[item, i] == "")
            while (j <= field_count[item] && field_lead[item, j] == "" && field_own[item, j] == "")
                j++
        own = field_own[item, i] != "" ? field_own[item, i] : lead
        print "<tr><td>"
        for (k = i; k < j; k++)
            print field_line(item, k)
        print "</td><td>" paragraphs(own) "</td></tr>"
    }
    print "</table>"
}
function field_line(item, k,    code, name)
{
    code = field_code[item, k]
    if (sorts[item] == "enum") {
        match(code, /GCKPT_[A-Z0-9_]+/)
        name = substr(code, RSTART, RLENGTH)
        return "<code" span_id(name) ">" code_of(code, name) "</code>"
    }
    name = code
    if (match(name, /\(\*[a-z_]+\)/))
        name = substr(name, RSTART + 2, RLENGTH - 3)
    else {
        gsub(/\[[^]]*\]|;/, "", name)
        # a declaration of several fields gets the name of the last; a search finds the others by the text
        gsub(/^.*[ *]/, "", name)
        if ((item, k) in field_prefix) {
            code = substr(code, 1, length(code) - length(name) - 1) field_prefix[item, k] name ";"
            name = field_prefix[item, k] name
        }
    }
    return "<code" span_id(names[item] "." name) ">" linked(code, 1) "</code>"
}
function head_of(item,    kind, name)
{
    kind = sorts[item]
    name = names[item]
    if (kind == "struct")
        return "struct <b>" name "</b>"
    if (kind == "enum")
        return "enum" (name == "" ? "" : " <b>" name "</b>")
    if (name == "GCKPT_RESULTS")
        return "#define <b>GCKPT_RESULTS</b>(X)"
    return code_of(codes[item], name)
}
# Prints declarations a..b with the text above them.
function emit_block(a, b, lead,    i, part)
{
    if (lead ~ /:$/) { # it describes all declarations that follow
        print "<p class=\"over\">" linked(lead, 0) "</p>"
        lead = ""
    }
    print "<article>"
    for (i = a; i <= b; i++) {
        if (sorts[i] == "type" && names[i] in defined)
            continue
        print "<h4" span_id(names[i]) "><code>" head_of(i) "</code></h4>"
        if (texts[i] != "")
            print "<div class=\"own\">" paragraphs(texts[i]) "</div>"
        if (sorts[i] == "function" && texts[i] == "" && lead == "")
            fail(names[i] " has no text in gradckpt.h")
        part = without[i]
    }
    if (lead != "")
        print paragraphs(lead)
    for (i = a; i <= b; i++) {
        if (sorts[i] == "struct" || (sorts[i] == "enum" && names[i] != "gckpt_result"))
            emit_fields(i)
        if (names[i] == "gckpt_result")
            emit_results()
        if (sorts[i] == "function" && names[i] in pytorch)
            print (a < b ? "<p class=\"of\"><code>" names[i] "</code></p>" : "") row_of(names[i])
    }
    if (part != "")
        print "<p class=\"part\">not with " linked(part, 0) "</p>"
    print "</article>"
}
function emit_results(    i)
{
    print "<table>"
    for (i = 1; i <= result_count; i++)
        print "<tr><td><code" span_id(result_name[i]) "><b>" result_name[i] "</b></code></td><td><p>" escape(result_text[i]) "</p></td></tr>"
    print "</table>"
}
function emit_section(s,    head, text)
{
    head = s
    text = ""
    if (match(s, /-----+/)) {
        text = trim(substr(s, RSTART + RLENGTH))
        head = trim(substr(s, 1, RSTART - 1))
    }
    sub(/^>>api: /, "", head)
    head = title_of(head)
    gsub(/-/, " ", head)
    print (open_section++ ? "</section>\n" : "") "<section><h2 id=\"" slug(head) "\" data-k=\"section\">" \
        toupper(substr(head, 1, 1)) substr(head, 2) "</h2>"
    if (text != "")
        print paragraphs(text)
}
# Prints a heading within a section, "HEADING: text ---- text of the next declaration"; returns the latter text.
function emit_heading(s,    at, head, rest)
{
    at = index(s, " ----")
    rest = at ? trim(substr(s, at + 5)) : s
    head = at ? substr(s, 1, at - 1) : s
    sub(/\. *$/, "", head)
    match(head, /[:.,]/)
    if (!RSTART)
        RSTART = length(head) + 1
    print "<h3>" toupper(substr(head, 1, 1)) escape(substr(head, 2, RSTART - 2)) "</h3>"
    if (at && RSTART <= length(head))
        print paragraphs(head ".")
    return rest
}
function emit_api(    i, j, lead)
{
    lead = ""
    for (i = 1; i <= items; i = j) {
        j = i + 1
        if (kinds[i] == "gap")
            lead = ""
        else if (kinds[i] == "section") {
            emit_section(texts[i])
            lead = ""
        } else if (kinds[i] == "heading")
            lead = emit_heading(texts[i])
        else if (kinds[i] == "lead")
            lead = texts[i]
        else {
            if (lead != "" && texts[i] != "") # a comment above, and one after each declaration
                while (j <= items && kinds[j] == "decl" && texts[j] != "")
                    j++
            else if (texts[i] == "")
                while (j <= items && kinds[j] == "decl" && texts[j] == "" && without[j] == without[i] &&
                       (sorts[j] == "function" || sorts[j] == "macro" || sorts[j - 1] == "function type"))
                    j++
            emit_block(i, j - 1, lead)
            # keep the text if an #ifndef divides the group of declarations, but not for another type
            if (kinds[j] != "decl" || texts[i] != "" || texts[j] != "" || sorts[j] ~ /struct|enum/)
                lead = ""
        }
    }
    print "</section>"
}
# ---- the manual: sections, switches, code ----
function end_text()
{
    if (open_text == "pre")
        print "</pre>"
    else if (open_text != "")
        print (open_text == "switch" ? linked(held, 0) "</dd>" : linked(held, 0) "</p>")
    open_text = held = ""
}
function begin_text(kind, tag) { end_text(); open_text = kind; printf "%s", tag }
function emit_manual(    i, s, chapter, name, word, before, list)
{
    print "<section><h2 id=\"manual\" data-k=\"section\">Manual</h2>"
    for (i = 1; i <= manuals; i++) {
        s = manual[i]
        word = trim(s)
        sub(/ .*/, "", word)
        if (s ~ /^[0-9]+\. /) {
            end_text()
            if (list)
                print "</dl>"
            list = 0
            chapter = s
            sub(/\..*/, "", chapter)
            print "<h3 id=\"manual-" chapter "\" data-k=\"manual\">" linked(s, 0) "</h3>"
        } else if (s ~ /^ *$/) {
            if (open_text == "pre" && manual[i + 1] ~ /^       /)
                print ""
            else
                end_text()
        } else if (chapter == 4 && s ~ /^   (GCKPT|GRADCKPT)_/) {
            end_text()
            name = s ~ /\[[IA]\]/ && index(s, "]") < 34 ? trim(substr(s, 1, index(s, "]"))) : word
            if (!list)
                print "<dl class=\"switches\">"
            list = 1
            print "<dt" (word ~ /,$/ ? "" : " id=\"" word "\" data-k=\"switch\"") "><code>" name "</code></dt>"
            begin_text("switch", "<dd>")
            held = trim(substr(trim(s), length(name) + 1))
        } else if (open_text == "switch" && s ~ /^          /)
            held = held " " trim(s)
        else if (s ~ /^       / && chapter != 4) {
            if (open_text != "pre")
                begin_text("pre", "<pre>")
            print linked(substr(s, 8), 1)
        } else {
            before = i > 1 ? manual[i - 1] : ""
            if (open_text == "switch" || open_text == "pre" || open_text == "" || word ~ /^\([0-9]\)$/ ||
                (open_text == "text" && length(before) + length(word) + 1 < 97)) {
                if (list && open_text == "switch") {
                    end_text()
                    print "</dl>"
                    list = 0
                }
                begin_text("text", "<p>")
            }
            held = held (held == "" ? "" : " ") trim(s)
        }
    }
    end_text()
    print "</section>"
}
function note_switches(    i, s)
{
    for (i = 1; i <= manuals; i++)
        if (match(manual[i], /^   (GCKPT|GRADCKPT)_[A-Z0-9_]+( |$)/)) {
            s = trim(substr(manual[i], RSTART, RLENGTH))
            if (!(s in known))
                known[s] = "switch"
        }
}
function include(file,    s)
{
    while ((getline s < file) > 0)
        print s
    close(file)
}
END {
    parse()
    note_switches()
    for (i = 1; i <= items; i++)
        if (kinds[i] == "decl" && sorts[i] == "struct")
            defined[names[i]] = 1
    print "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">"
    print "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    print "<title>gradckpt.h " version ": reference</title>\n<style>"
    include(css)
    print "</style>\n<header><h1><a href=\"#\">gradckpt.h</a> <small>" version "</small></h1>"
    print "<div id=\"search\"><input id=\"q\" type=\"search\" placeholder=\"Search: a name, PyTorch's, a word\" aria-label=\"Search\""
    print " autocomplete=\"off\" spellcheck=\"false\" role=\"combobox\" aria-expanded=\"false\" aria-controls=\"found\">"
    print "<ul id=\"found\" role=\"listbox\" hidden></ul></div></header>"
    print "<nav id=\"contents\" aria-label=\"Contents\"></nav>\n<main>"
    print "<section><h2 id=\"top\">Reference</h2>"
    for (i = 1; i <= intros; i++)
        held = held (intro[i] ~ /^ *(DOES.*)?$/ ? "\n\n" : " ") intro[i]
    print paragraphs(filled(held))
    held = ""
    print "</section>"
    emit_api()
    emit_manual()
    print "<p class=\"made\">From the declarations and the manual of gradckpt.h and the tables of <a href=\"../../docs/ops.md\">docs/ops.md</a>, by <code>make reference</code>.</p>"
    print "</main>\n<script>"
    include(js)
    print "</script>\n</html>"
    exit bad
}
