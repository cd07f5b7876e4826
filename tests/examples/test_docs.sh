#!/bin/sh
# Tests the pages of docs/ against what they tell of. exercises.md: each ```c block is a program, compiles by the
# line that the page tells, and prints the ```text block behind it. from-pytorch.md: its blocks together are one. ops.md: the header's builders.
# README.md: every page. Links lead somewhere, and so do marks of the header (>>plan).
CC=${CC:-cc}
LINKED=${LINKED:-$CC -DGRADCKPT_IMPLEMENTATION= -I.}
work=build/docs
. tests/checks.sh
FLAGS='-O0 -Wall -Wextra -Iexamples'

awk -v work="$work" '
    /^## / { n++ }
    /^```(c|text)$/ { file = work "/" n ($0 == "```c" ? ".c" : ".text"); next }
    /^```/ { file = "" }
    file { print > file }
' docs/exercises.md
told_by docs/exercises.md
answers=$(line docs/exercises.md 'cc .*answer')
count=0
for program in "$work"/*.c; do
    name=${program%.c}
    count=$((count + 1))
    cp "$program" "$work/told/answer.c"
    check "exercise ${name##*/}: compiles as told, and prints what the page says" prints "$name.text" "$answers"
done
check "every exercise has an answer" test "$count" -ge 12 -a "$count" = "$(grep -c '^## ' docs/exercises.md)"

{
    printf '#include "gradckpt.h"\n#include "layers.h"\n#include "tests/golden/cnn.h"\nint main(void)\n{\n'
    printf 'static float x_data[512][64], logits[512][10];\nstatic int32_t y_data[512];\n'
    printf 'for (int i = 0; i < 32768; i++)\n    x_data[i / 64][i %% 64] = (float)(i * 7 %% 31) / 31;\n'
    printf 'for (int i = 0; i < 512; i++)\n    y_data[i] = i %% 10;\n'
    awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' docs/from-pytorch.md
    printf 'int ok = small && top && b && dx && dw && logits[511][9] != 0 && gckpt_store_step(s) == 10;\n'
    printf 'const void *all[] = { s, g, e, v };\nfor (int i = 0; i < 4; i++)\n'
    printf '    if (gckpt_error(all[i]) != GCKPT_OK)\n        ok = !puts(gckpt_error_text(all[i]));\n'
    cat << 'END'
float pixels[48];
layers_permute(golden_cnn_x, gckpt_shape4(2, 3, 2, 4), columns, pixels);
gckpt_pick last = { z, 0 };
gckpt_feed feed = { gckpt_id(images), pixels };
gckpt_plan_desc one = { .mode = GCKPT_INFERENCE, .fetch = &last, .fetches = 1 };
gckpt_plan *cnn_plan = gckpt_plan_new(cnn, NULL, 0, &one);
gckpt_exec *cnn_exec = gckpt_exec_new(cnn_plan, ours, NULL);
gckpt_forward(cnn_exec, &feed, 1, 2, NULL);
const float *got = gckpt_fetch(cnn_exec, gckpt_id(z), 0);
for (int i = 0; i < 10; i++)
    if (!got || got[i] - golden_cnn_y[i] > 1e-6f || golden_cnn_y[i] - got[i] > 1e-6f)
        ok = !printf("output %d of the net: %g, PyTorch's %g\n", i, got ? got[i] : 0, golden_cnn_y[i]);
gckpt_exec_free(cnn_exec), gckpt_plan_free(cnn_plan), gckpt_graph_free(cnn);
gckpt_store_free(ours), gckpt_store_free(theirs);
END
    printf 'gckpt_exec_free(e), gckpt_exec_free(v), gckpt_exec_free(d), gckpt_plan_free(p);\n'
    printf 'gckpt_plan_free(small), gckpt_plan_free(forward), gckpt_plan_free(top);\n'
    printf 'gckpt_plan_free(q), gckpt_plan_free(b), gckpt_graph_free(g), gckpt_store_free(s);\n'
    printf 'return !ok;\n}\n'
} > "$work/pytorch.c"
awk '/^```text$/ { on = 1; next } /^```/ { on = 0 } on' docs/from-pytorch.md > "$work/pytorch.text"
check "from-pytorch: compiles" $LINKED $FLAGS "$work/pytorch.c" -o "$work/pytorch"
check "from-pytorch: runs" sh -c "$work/pytorch > $work/pytorch.out"
check "from-pytorch: prints what the page says" diff "$work/pytorch.text" "$work/pytorch.out"

# ---- tasks.md: its pieces are one program; those that begin with a function or an #include stand before main, the first
# of the others at the beginning of each piece ----
awk '
    /^```c$/ { on = first = 1; text = ""; next }
    /^```/ && on {
        if (file)
            top = top text
        else if (begin == "")
            begin = text
        else
            body = body "    {\n" begin text "gckpt_store_free(s), (void)r, (void)o, (void)data;\n    }\n"
        on = 0
    }
    on && first { file = /^(#include|static [^=;]*$)/; first = 0 }
    on { text = text $0 "\n" }
    END { printf "%s\nint main(void)\n{\n%s    return 0;\n}\n", top, body }
' docs/tasks.md > "$work/tasks.c"
awk '/^```text$/ { on = 1; next } /^```/ { on = 0 } on' docs/tasks.md > "$work/tasks.text"
check "tasks: compiles" $LINKED $FLAGS "$work/tasks.c" -o "$work/tasks" -lm
mkdir "$work/here"
check "tasks: runs" sh -c "cd $work/here && ../tasks > ../tasks.out"
check "tasks: prints what the page says" diff "$work/tasks.text" "$work/tasks.out"
check "tasks: there are some" test "$(grep -c '^## ' docs/tasks.md)" -ge 25

# docs/ops.md has the builders of sections api-ops and api-losses, with their arguments, and no other.
sed -n '/^\/\* >>api-ops/,/^\/\* >>api-segments/p' gradckpt.h | tr -s '\n ' '  ' |
    grep -o 'GCKPT_API gckpt_tensor \*gckpt_[a-z0-9_]*([^)]*)' |
    sed 's/.*\*\(gckpt_[a-z0-9_]*(\)/\1/; s/[^(,]*[ *]\([a-z0-9]*\)\([,)]\)/\1\2/g; s/,/, /g' | sort > "$work/header.ops"
grep -o '^| `gckpt_[^`]*`' docs/ops.md | tr -d '|` ' | sed 's/,/, /g' | sort > "$work/page.ops"
check "the header has ops" test "$(wc -l < "$work/header.ops")" -gt 50
check "ops.md has every op of the header, and no other" diff "$work/header.ops" "$work/page.ops"

# ---- make reference: each call of the header's API with a text; links and ids ----
reference()             # reference HEADER PAGE
{
    awk -v css=docs/reference/page.css -v js=docs/reference/page.js -f docs/reference/reference.awk docs/ops.md "$1" > "$2"
}
check "make reference" reference gradckpt.h "$work/reference.html"
sed -n '/^#ifndef GRADCKPT_H/,/^#endif \/\* GRADCKPT_H/p' gradckpt.h | tr -s '\n ' '  ' |
    grep -oE '(GCKPT_API|extern) [^;(]*gckpt_[a-z0-9_]*\(' | sed 's/.*[ *]\(gckpt_[a-z0-9_]*\)(/\1/' | sort > "$work/header.calls"
awk '
    /^<article>/ { n = text = 0 }
    /^<h4 id="[^"]*" data-k="function"/ { split($0, at, "\""); name[++n] = at[2]; own[n] = 0 }
    /<p>/ { line = $0; gsub(/<[^>]*>/, "", line) }
    /<p>/ && line ~ /[A-Za-z0-9]/ { if (/^<div class="own"/) own[n] = 1; else if (!/class="(part|of)"/) text = 1 }
    /^<\/article>/ { for (i = 1; i <= n; i++) if (text || own[i]) print name[i] }
' "$work/reference.html" | sort > "$work/page.calls"
check "the header has calls" test "$(wc -l < "$work/header.calls")" -gt 200
check "the reference has every call of the header, with a text" diff "$work/header.calls" "$work/page.calls"
grep -o ' id="[^"]*"' "$work/reference.html" | sed 's/.*="//; s/"//' | sort > "$work/ids"
check "an id stands once" test -z "$(uniq -d "$work/ids")"
grep -o 'href="#[^"]\{1,\}"' "$work/reference.html" | sed 's/.*#//; s/"//' | sort -u > "$work/links"
check "links of the reference lead somewhere" test -z "$(sort -u "$work/ids" | comm -13 - "$work/links" | tee "$work/log")"
check "it has links" test "$(wc -l < "$work/links")" -gt 200
for link in $(grep -o 'href="../../[^"]*"' "$work/reference.html" | sed 's/.*"..\/..\///; s/"//' | sort -u); do
    check "the reference: $link is there" test -e "$link"
done
awk '{ print } /^GCKPT_API int gckpt_threads/ { print "\nGCKPT_API int gckpt_mute(void);" }' gradckpt.h > "$work/mute.h"
check "a call without a text is refused" fails_with 1 'gckpt_mute has no text' reference "$work/mute.h" "$work/mute.html"

# ---- examples/README.md: each file, what it is, needs, and its lines ----
check "examples/index.sh" sh -c "sh examples/index.sh > $work/index"
awk '$0 == "<!-- -->" { on = 0 } on { print } $0 == "<!-- make index -->" { on = 1 }' examples/README.md | sed '$d' > "$work/index.page"
check "examples/README.md is what its files say: run make index" diff "$work/index.page" "$work/index"
check "it has every header and program" test "$(ls examples/*.[ch] | wc -l)" -eq "$(grep -c '^| \[' "$work/index")"
mkdir -p "$work/examples"
cp examples/index.sh "$work/examples"
echo 'int x;' | tee "$work/examples/new.h" > "$work/examples/new.c"
check "a new file that does not say what it is is refused" fails_with 1 'examples/new.h does not begin' sh "$work/examples/index.sh"

# ---- figures that stand in several places; one that is changed is seen ----
check "figures agree" sh tests/figures.sh
mkdir "$work/figures"
ln -s "$PWD"/* "$work/figures"
rm "$work/figures/README.md"
sed 's/MB of Shakespeare in 16 MB/MB of Shakespeare in 17 MB/' README.md > "$work/figures/README.md"
check "figures that do not are named" sh -c "cd $work/figures && ! sh tests/figures.sh > ../figures.txt && grep 'the MB of make shakespeare: 16, 16, 17, 16' ../figures.txt"

for page in docs/*.md; do
    name=${page#docs/}
    check "docs/README.md names $name" test "$name" = README.md -o \
        "$(grep -c "]($name)" docs/README.md)" -gt 0
done

# ---- links of pages: the file is there, and the heading ----
pages="README.md docs/*.md docs/course/*.md examples/README.md"
awk '
    function slug(s) { # as web pages of repositories make one of a heading
        s = tolower(s)
        gsub(/[^a-z0-9 _-]/, "", s)
        gsub(/ /, "-", s)
        return s
    }
    FNR == 1 { code = 0; folder = FILENAME; sub(/[^\/]*$/, "", folder) }
    /^```/ { code = !code }
    code { next }
    /^#+ / { s = $0; sub(/^#+ /, "", s); heading[FILENAME "#" slug(s)] = 1 }
    {
        s = $0
        while (match(s, /\]\([^) ]*\)/)) {
            to = substr(s, RSTART + 2, RLENGTH - 3)
            s = substr(s, RSTART + RLENGTH)
            if (to ~ /^https?:|\/build\//) # what make playground makes
                continue
            to = to ~ /^#/ ? FILENAME to : folder to
            while (sub(/[a-z]+\/\.\.\//, "", to))
                ;
            if (!(to in from))
                order[++n] = to
            from[to] = FILENAME
        }
    }
    END {
        for (i = 1; i <= n; i++) {
            file = order[i]
            sub(/#.*/, "", file)
            if (system("test -e " file) != 0)
                print from[order[i]] ": " file " is not there"
            else if (order[i] ~ /#/ && !(order[i] in heading))
                print from[order[i]] ": " order[i] " has no such heading"
        }
        print n " links"
    }' $pages > "$work/links.txt"
check "pages have links" sh -c "tail -n 1 $work/links.txt | grep -E '^[1-9][0-9]+ links'"
check "links of pages lead somewhere" sh -c "! grep -v ' links$' $work/links.txt"
for mark in $(grep -ohE '`>>[a-z/_-]+`' README.md docs/*.md docs/course/*.md | tr -d '`' | sort -u); do
    check "pages name $mark" grep -qE "^( \*|/\*) $mark(:| \*/| --)" gradckpt.h
done
report docs
