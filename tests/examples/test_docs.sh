#!/bin/sh
# Tests the pages of docs/:
#     - exercises.md: each ```c block is a program that compiles by the page's command and prints the ```text block after it.
#     - from-pytorch.md: all its blocks are one program, except for two nets (A ResNet, An LSTM), each a program of its
#       own whose first block has functions. Their numbers and files are those of PyTorch.
#     - tasks.md: its blocks are one program.
#     - ops.md: it is generated from src/api.h and has every op of the header.
#     - all pages: links lead to existing files and headings, and marks such as `>>plan` are in the header.
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
lines_of docs/exercises.md
answers=$(line docs/exercises.md 'cc .*answer')
count=0
for program in "$work"/*.c; do
    name=${program%.c}
    count=$((count + 1))
    cp "$program" "$work/page/answer.c"
    check "exercise ${name##*/}: compiles by the line of the page, and prints what the page says" prints "$name.text" "$answers"
done
check "every exercise has an answer" test "$count" -ge 12 -a "$count" = "$(grep -c '^## ' docs/exercises.md)"

# blocks KIND [SECTION]: prints the ```KIND blocks of from-pytorch.md that are in sections whose heading begins with
# SECTION. Without SECTION, prints the blocks outside the sections of the two nets.
blocks()
{
    awk -v kind="$1" -v want="$2" '
        /^## / { here = want ? index($0, "## " want) == 1 : !/^## An? (ResNet|LSTM)/ }
        $0 == "```" kind { on = here; n++; next }
        /^```/ { on = 0 }
        on' docs/from-pytorch.md tests/golden/pytorch_programs.md
}

{
    printf '#include "gradckpt.h"\n#include "gradcheck.h"\n#include "layers.h"\n#include "tests/golden/cnn.h"\nint main(void)\n{\n'
    printf 'static float x_data[512][64], logits[512][10];\nstatic int32_t y_data[512];\n'
    printf 'for (int i = 0; i < 32768; i++)\n    x_data[i / 64][i %% 64] = (float)(i * 7 %% 31) / 31;\n'
    printf 'for (int i = 0; i < 512; i++)\n    y_data[i] = i %% 10;\n'
    blocks c
    printf 'int ok = small && top && b && dx && dw && logits[511][9] != 0 && gckpt_store_step(s) == 10;\n'
    printf 'const void *all[] = { s, g, e, v };\nfor (int i = 0; i < 4; i++)\n'
    printf '    if (gckpt_error(all[i]) != GCKPT_OK)\n        ok = !puts(gckpt_error_text(all[i]));\n'
    cat << 'END'
float pixels[48];
const int channels_last[] = { 0, 2, 3, 1 };
layers_permute(golden_cnn_x, gckpt_shape4(2, 3, 2, 4), channels_last, pixels);
gckpt_fetch_spec last = { z, 0 };
gckpt_feed feed = { gckpt_id(images), pixels };
gckpt_plan_desc one = { .mode = GCKPT_INFERENCE, .fetch.specs = &last, .fetch.count = 1 };
gckpt_plan *cnn_plan = gckpt_plan_new(cnn, NULL, 0, &one);
gckpt_exec *cnn_exec = gckpt_exec_new(cnn_plan, ours, NULL);
gckpt_forward(cnn_exec, &feed, 1, 2, NULL);
const float *got = gckpt_fetch(cnn_exec, gckpt_id(z), 0);
for (int i = 0; i < 10; i++)
    if (!got || got[i] - golden_cnn_y[i] > 1e-6f || golden_cnn_y[i] - got[i] > 1e-6f)
        ok = !printf("output %d of the net: %g, PyTorch's %g\n", i, got ? got[i] : 0, golden_cnn_y[i]);
if (r.loss - GOLDEN_CLASS_LOSS > 1e-7 || GOLDEN_CLASS_LOSS - r.loss > 1e-7)
    ok = !printf("class weights with label smoothing: %.9g, PyTorch's %.9g\n", r.loss, GOLDEN_CLASS_LOSS);
gckpt_exec_free(cnn_exec), gckpt_plan_free(cnn_plan), gckpt_graph_free(cnn);
gckpt_exec_free(loss_exec), gckpt_plan_free(loss_plan), gckpt_graph_free(few);
gckpt_store_free(ours), gckpt_store_free(none);
END
    printf 'gckpt_exec_free(e), gckpt_exec_free(v), gckpt_exec_free(d), gckpt_plan_free(p);\n'
    printf 'gckpt_plan_free(small), gckpt_plan_free(forward), gckpt_plan_free(top);\n'
    printf 'gckpt_plan_free(q), gckpt_plan_free(b), gckpt_graph_free(g), gckpt_store_free(s);\n'
    printf 'return !ok;\n}\n'
} > "$work/pytorch.c"
blocks text > "$work/pytorch.text"
check "from-pytorch: compiles" $LINKED $FLAGS "$work/pytorch.c" -o "$work/pytorch" -lm
check "from-pytorch: runs" sh -c "$work/pytorch > $work/pytorch.out"
check "from-pytorch: prints what the page says" diff "$work/pytorch.text" "$work/pytorch.out"

# net NAME SECTION MODEL DATA: builds and runs the program of a net. Checks that PyTorch's file gives PyTorch's logits
# and is saved with the same names, shapes and bytes, and that the trained weights give PyTorch's logits.
net()
{
    awk -v want="$2" -v to="$work/$1" '
        /^## / { here = index($0, "## " want) == 1; n = 0 }
        /^```c$/ { on = here; n++; next }
        /^```/ { on = 0 }
        on { print > (to (n == 1 ? ".functions" : ".body")) }' docs/from-pytorch.md tests/golden/pytorch_programs.md
    {
        printf '#include "gradckpt.h"\n#include "layers.h"\n#include "tests/golden/nets.h"\n'
        cat "$work/$1.functions"
        cat << 'END'
static int checked(const char *from, const char *to, const void *x_data, const gckpt_tensor *like, int classes,
                   const float *want)
{
    const gckpt_file_desc names = { .rename = layers_pytorch_name };
    gckpt_store *s = gckpt_store_new(NULL), *file[2] = { gckpt_store_new(NULL), gckpt_store_new(NULL) };
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_node in;
    gckpt_graph_node(gckpt_graph_of(like), gckpt_id(like), &in);
    gckpt_tensor *x = gckpt_input(g, "x", in.type, in.shape);
    gckpt_fetch_spec pick = { model(x), 0 };
    gckpt_plan_desc desc = { .mode = GCKPT_INFERENCE, .fetch.specs = &pick, .fetch.count = 1 };
    int ok = layers_pytorch_load(s, from) == GCKPT_OK && layers_pytorch_save(s, to) == GCKPT_OK;
    gckpt_plan *p = gckpt_plan_new(g, NULL, 0, &desc);
    gckpt_exec *e = gckpt_exec_new(p, s, NULL);
    gckpt_feed feed = { gckpt_id(x), x_data };
    ok = ok && gckpt_forward(e, &feed, 1, 8, NULL) == GCKPT_OK;
    const float *y = ok ? gckpt_fetch(e, gckpt_id(pick.tensor), 0) : NULL;
    double far = y ? 0 : 1;
    for (int i = 0; y && i < 8 * classes; i++) {
        const double off = (double)y[i] - (double)want[i];
        far = off > far ? off : -off > far ? -off : far;
    }
    fprintf(stderr, "%s: logits %.2g from PyTorch's, %s\n", from, far, gckpt_error_text(s));
    gckpt_parameter a, b; /* of the two files */
    for (int i = 0; i < 2; i++)
        ok = gckpt_store_load(file[i], i ? to : from, &names) == GCKPT_OK && ok;
    ok = ok && gckpt_store_count(file[0]) == gckpt_store_count(file[1]) && gckpt_store_count(s) > 9;
    for (int i = 0; ok && gckpt_store_get(file[0], i, &a) == GCKPT_OK; i++) {
        ok = gckpt_store_get(file[1], gckpt_store_find(file[1], a.name), &b) == GCKPT_OK && a.shape.n == b.shape.n;
        for (int k = 0; ok && k < a.shape.n; k++)
            ok = a.shape.d[k] == b.shape.d[k];
        ok = ok && memcmp(a.values, b.values, sizeof(float) * (size_t)a.elements) == 0;
        if (!ok)
            fprintf(stderr, "%s is not in %s as in %s\n", a.name, to, from);
    }
    gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);
    gckpt_store_free(file[0]), gckpt_store_free(file[1]);
    return ok && far < 5e-6;
}

int main(void)
{
static int32_t y_data[8];
END
        printf 'enum { CLASSES = sizeof golden_%s_before / 32 };\n%s\n' "$1" "$4"
        printf 'for (int i = 0; i < 8; i++)\n    y_data[i] = i %% CLASSES;\n'
        cat "$work/$1.body"
        printf 'int ok = checked("tests/golden/%s.safetensors", "build/%s_before.safetensors", x_data, x,\n' "$1" "$1"
        printf '                 CLASSES, golden_%s_before) &\n' "$1"
        printf '         checked("build/%s_after.safetensors", "%s/%s_again.safetensors", x_data, x,\n' "$1" "$work" "$1"
        printf '                 CLASSES, golden_%s_after);\n' "$1"
        printf 'gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);\n'
        printf 'return !ok;\n}\n'
    } | sed "s/ model(x)/ $3/" > "$work/$1.c"
    blocks text "$2" > "$work/$1.text"
    lines="$(grep -c . "$work/$1.functions") and $(grep -c . "$work/$1.body") lines"
    check "from-pytorch: $2: $lines" grep -q -e "gradckpt.h: $lines" -e "with gradckpt.h have $lines" docs/from-pytorch.md tests/golden/pytorch_programs.md
    awk '/golden_'"$1"'_losses/ { on = 1; next } /}/ { on = 0 } on' tests/golden/nets.h | tr -d 'f,' |
        awk '{ for (i = 1; i <= NF; i++) printf "%s%.4f", n++ ? " " : "", $i } END { print "" }' > "$work/$1.want"
    check "from-pytorch: $2: compiles" $LINKED $FLAGS "$work/$1.c" -o "$work/$1"
    check "from-pytorch: $2: logits, and files there and back" sh -c "$work/$1 > $work/$1.out"
    check "from-pytorch: $2: prints what the page says" diff "$work/$1.text" "$work/$1.out"
    check "from-pytorch: $2: as PyTorch prints" diff "$work/$1.text" "$work/$1.want"
}
net resnet 'A ResNet' 'resnet(x, 2, 1, 6, 5)' 'static float x_data[8 * 16 * 16 * 3];
for (int i = 0; i < 8 * 16 * 16 * 3; i++)
    x_data[i] = (float)(i * 7919 % 1009) / 504 - 1;'
net lstm 'An LSTM' 'words(x)' 'static int32_t x_data[8 * 12];
for (int i = 0; i < 8 * 12; i++)
    x_data[i] = i * 7919 % 1009 % 20;'

# ---- tasks.md: its C blocks are one program. Blocks that begin with a function or an #include come before main. The
# first of the remaining blocks declares variables; each further block becomes a block in main that begins with these
# declarations. The expected output is the text blocks and the comments "prints ..", in the order of the page. ----
awk -v text_file="$work/tasks.text" '
    /^```c$/ { on = first = 1; text = ""; next }
    /^```text$/ { shown = 1; next }
    /^```/ && on {
        if (file)
            top = top text
        else if (begin == "")
            begin = text
        else
            body = body "    {\n" begin "(void)r, (void)o, (void)data, (void)feeds, (void)adamw;\n" text \
                "gckpt_exec_free(e), gckpt_plan_free(p), gckpt_graph_free(g), gckpt_store_free(s);\n    }\n"
        on = 0
    }
    /^```/ { shown = 0 }
    shown { output = output $0 "\n" }
    on && first { file = /^(#include|static [^=;]*$)|^static (volatile|float)/; first = 0 }
    on { text = text $0 "\n" }
    on && / \/\* prints .* \*\/$/ {
        line = $0
        gsub(/.* \/\* prints | \*\/$/, "", line)
        output = output line "\n"
    }
    END {
        printf "%s\nint main(void)\n{\n%s    return 0;\n}\n", top, body
        printf "%s", output > text_file
    }
' docs/tasks.md > "$work/tasks.c"
check "tasks: compiles" $LINKED $FLAGS "$work/tasks.c" -o "$work/tasks" -lm
mkdir "$work/here"
check "tasks: runs" sh -c "cd $work/here && ../tasks > ../tasks.out"
check "tasks: prints what the page says" diff "$work/tasks.text" "$work/tasks.out"
check "tasks: the log has each epoch once" \
    test "$(cut -d, -f1 "$work/here/log.csv" | tr '\n' ' ')" = "epoch 1 2 3 4 5 "
check "tasks: there are some" test "$(grep -c '^## ' docs/tasks.md)" -ge 25

# ---- docs/ops.md: generated from src/api.h; it has exactly the builders of api-ops and api-losses in gradckpt.h ----
check "ops.md: the generator" sh -c "awk -f docs/reference/ops.awk docs/reference/ops.txt gradckpt.h > $work/ops.md"
check "ops.md agrees with src/api.h: run make ops-page" diff docs/ops.md "$work/ops.md"
sed -n '/^gckpt_sum_loss/!p' docs/reference/ops.txt > "$work/ops.txt"
check "ops.md: an op that ops.txt lacks is refused" fails_with 1 'no line for gckpt_sum_loss' \
    awk -f docs/reference/ops.awk "$work/ops.txt" gradckpt.h
sed -n '/^\/\* >>api-ops/,/^\/\* >>api-segments/p' gradckpt.h | tr -s '\n ' '  ' |
    grep -o 'GCKPT_API gckpt_tensor \*gckpt_[a-z0-9_]*([^)]*)' |
    sed 's/.*\*\(gckpt_[a-z0-9_]*(\)/\1/; s/[^(,]*[ *]\([a-z0-9]*\)\([,)]\)/\1\2/g; s/,/, /g' | sort > "$work/header.ops"
grep -o '^| `gckpt_[^`]*`' docs/ops.md | tr -d '|` ' | sed 's/,/, /g' | sort > "$work/page.ops"
check "the header has ops" test "$(wc -l < "$work/header.ops")" -gt 50
check "ops.md has every op of the header, and no other" diff "$work/header.ops" "$work/page.ops"

# ---- make reference: every function of the API has a text; links and ids are right ----
reference()             # reference HEADER PAGE: writes the reference of the header to the page
{
    awk -v css=docs/reference/page.css -v js=docs/reference/page.js -f docs/reference/reference.awk docs/ops.md "$1" > "$2"
}
check "make reference" reference gradckpt.h "$work/reference.html"
sed -n '/^#ifndef GRADCKPT_H/,/^#endif \/\* GRADCKPT_H/p' gradckpt.h | tr -s '\n ' '  ' |
    grep -oE '(GCKPT_API|extern) [^;("]*gckpt_[a-z0-9_]*\(' | sed 's/.*[ *]\(gckpt_[a-z0-9_]*\)(/\1/' | sort > "$work/header.calls"
awk '
    /^<article>/ { n = text = 0 }
    /^<h4 id="[^"]*" data-k="function"/ { split($0, at, "\""); name[++n] = at[2]; own[n] = 0 }
    /<p>/ { line = $0; gsub(/<[^>]*>/, "", line) }
    /<p>/ && line ~ /[A-Za-z0-9]/ { if (/^<div class="own"/) own[n] = 1; else if (!/class="(part|of)"/) text = 1 }
    /^<\/article>/ { for (i = 1; i <= n; i++) if (text || own[i]) print name[i] }
' "$work/reference.html" | sort > "$work/page.calls"
check "the header has calls" test "$(wc -l < "$work/header.calls")" -gt 150
check "the reference has every call of the header, with a text" diff "$work/header.calls" "$work/page.calls"
grep -o ' id="[^"]*"' "$work/reference.html" | sed 's/.*="//; s/"//' | sort > "$work/ids"
check "an id stands once" test -z "$(uniq -d "$work/ids")"
grep -o 'href="#[^"]\{1,\}"' "$work/reference.html" | sed 's/.*#//; s/"//' | sort -u > "$work/links"
check "links of the reference lead to ids that exist" \
    test -z "$(sort -u "$work/ids" | comm -13 - "$work/links" | tee "$work/log")"
check "the reference has more than 200 links" test "$(wc -l < "$work/links")" -gt 200
for link in $(grep -o 'href="../../[^"]*"' "$work/reference.html" | sed 's/.*"..\/..\///; s/"//' | sort -u); do
    check "the reference: $link is there" test -e "$link"
done
awk '{ print } /^GCKPT_API int gckpt_threads/ { print "\nGCKPT_API int gckpt_mute(void);" }' gradckpt.h > "$work/mute.h"
check "a call without a text is refused" fails_with 1 'gckpt_mute has no text' reference "$work/mute.h" "$work/mute.html"

# ---- examples/README.md: the table of files ----
check "examples/index.sh" sh -c "sh examples/index.sh > $work/index"
awk '$0 == "<!-- -->" { on = 0 } on { print } $0 == "<!-- make index -->" { on = 1 }' examples/README.md | sed '$d' > "$work/index.page"
check "examples/README.md is what its files say: run make index" diff "$work/index.page" "$work/index"
check "the table of examples/README.md has every header and program" \
    test "$(ls examples/*.[ch] examples/optimisers/*.h | wc -l)" -eq "$(grep -c '^| \[' "$work/index")"
mkdir -p "$work/examples"
cp examples/index.sh "$work/examples"
echo 'int x;' | tee "$work/examples/new.h" > "$work/examples/new.c"
check "a new file that does not say what it is is refused" fails_with 1 'examples/new.h does not begin' sh "$work/examples/index.sh"

# ---- programs for a device: their make rules create the folder build/ in a fresh clone ----
mkdir "$work/fresh"
for file in *; do
    [ "$file" = build ] || ln -s "$PWD/$file" "$work/fresh"
done
fresh() { (cd "$work/fresh" && MAKEFLAGS= make -n "$@" > make.txt && grep 'mkdir -p build' make.txt); }
for program in launches bench-cuda bench-shim predict-cuda; do
    check "a fresh clone: make build/$program makes its folder" fresh build/$program NVCC=nvcc
done
# archs KNOWN...: prints the -gencode options of make cuda for an nvcc that knows only these architectures
archs()
{
    printf '#!/bin/sh\n[ "$1" = --list-gpu-arch ] && printf "compute_%%s\\n" %s\n' "$*" > "$work/nvcc"
    chmod +x "$work/nvcc"
    MAKEFLAGS= make -nB build/gradckpt_cuda.o NVCC="$PWD/$work/nvcc" | grep -o ' arch=[a-z0-9_,=]*' | tr -d '\n'
}
says() { want=$1; shift; [ "$("$@" | tee "$work/archs")" = "$want" ]; }
check "make cuda: an nvcc of all devices" \
    says ' arch=compute_80,code=sm_80 arch=compute_90a,code=sm_90a arch=compute_100,code=sm_100 arch=compute_120,code=sm_120 arch=compute_80,code=compute_80' \
    archs 75 80 90 100 120
check "make cuda: an nvcc that does not know the newest" \
    says ' arch=compute_80,code=sm_80 arch=compute_90a,code=sm_90a arch=compute_80,code=compute_80' archs 50 80 86 90

# ---- make help: 80 columns; make help-all has every target ----
make -s help > "$work/help"
make -s help-all > "$work/help_all"
check "make help names 15 targets in 80 columns" sh -c "! grep '.\{81\}' $work/help_all && [ \$(grep -c '^  make ' $work/help) -eq 15 ]"
sed -n '/^\.PHONY: /,/[^\\]$/p' Makefile | tr -s ' \\' '\n' | grep -vx '.PHONY:\|always\|help\|help-all\|' | while read -r target; do
    grep -q "^  make $target " "$work/help_all" || echo "$target"
done > "$work/targets"
check "make help-all names every target" sh -c "cat $work/targets; [ ! -s $work/targets ]"

# ---- numbers in pages agree with the source, and tests/figures.sh finds a fault of each kind ----
check "numbers agree" sh tests/figures.sh
mkdir "$work/numbers"
ln -s "$PWD"/* "$work/numbers"
rm "$work/numbers/docs" "$work/numbers/README.md"
wrong() # wrong FILE LINE TEXT: checks that figures.sh prints TEXT if LINE is added to FILE
{
    rm -rf "$work/numbers/docs"
    cp -r docs README.md "$work/numbers"
    if [ "$1" = README.md ]; then # here LINE comes first, since figures.sh reads the first occurrence
        { echo "$2"; cat README.md; } > "$work/numbers/README.md"
    else
        echo "$2" >> "$work/numbers/$1"
    fi
    ! (cd "$work/numbers" && sh tests/figures.sh) > "$work/numbers.txt" 2>&1 && grep -e "$3" "$work/numbers.txt"
}
while IFS='|' read -r file line text; do
    case $file in \#*) continue ;; esac
    line=${line# }
    ! in_turn 6 || check "a wrong number: ${line% }" wrong "${file% }" "${line% }" "${text# }"
done < tests/figures_faults.txt

for page in docs/*.md; do
    check "README.md names $page" grep -q "]($page)" README.md
done

# ---- links of pages lead to existing files and headings ----
pages="README.md docs/*.md docs/course/*.md examples/README.md"
awk '
    function slug(s) { # the anchor of a heading on GitHub
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
            if (to ~ /^https?:|\/build\//) # skips other sites and generated files
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
check "links of pages lead to files and headings that exist" sh -c "! grep -v ' links$' $work/links.txt"
for mark in $(grep -ohE '`>>[a-z/_-]+`' README.md docs/*.md docs/course/*.md | tr -d '`' | sort -u); do
    check "pages name $mark" grep -qE "^( \*|/\*) $mark(:| \*/| --)" gradckpt.h
done
for part in $(grep -ohE 'PARTS="[^"]*"' README.md docs/*.md src/header.awk Makefile | tr -d '"' | sed 's/PARTS=//' | tr ' ' '\n' | sort -u); do
    check "part $part of a page" grep -qE "^part ${part#-} " src/EDITIONS
done
report docs
