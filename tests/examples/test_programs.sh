#!/bin/sh
# Tests programs through their command lines: the README's and the manual's programs, the examples, and gpt with its
# options, JSON output, weight hashes, reported bytes, files and failures. It needs build/gpt and the other examples. LINKED is the command
# that compiles and links programs that use public names only (make test adds build/libsrc.o, also for C++).
CC=${CC:-cc}
LINKED=${LINKED:-$CC -I.}
work=build/programs
. tests/checks.sh

# field FILE EVENT KEY: prints the value of KEY in the first line with this event
field()
{
    sed -n "s/^{\"event\":\"$2\".*\"$3\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$1" | head -n 1
}

has_cxx=0
for CXX in ${CXX:-} c++ g++ clang++; do
    if printf 'int main() { return 0; }\n' > "$work/t.cpp" && "$CXX" "$work/t.cpp" -o "$work/t" 2>/dev/null
    then
        has_cxx=1
        break
    fi
done

# linked_cxx: the command for C++ files, which has only those options of LINKED that its object and libraries need
linked_cxx="$CXX -std=c++11 -I."
for word in $LINKED; do
    case $word in -DGRADCKPT_IMPLEMENTED | -fopenmp | -L* | -l*) linked_cxx="$linked_cxx $word" ;; esac
done
of_cxx()                # of_cxx FILE OUTPUT: compiles a C++ file
{
    object=
    for word in $LINKED; do
        case $word in *.o) object="$object $word" ;; esac
    done
    $linked_cxx -Wall -Wextra -pedantic -Werror -O0 -c "$1" -o "$2.o" && $linked_cxx "$2.o" $object -o "$2"
}

# ---- the README's program and its output -------------------------------------------------------------
# block FENCE N: prints the README's N-th block that begins with this fence
block()
{
    awk -v fence="$1" -v n="$2" '$0 == "```" fence { on = ++k == n; next } /^```$/ { on = 0 } on' README.md
}
block c 1 > "$work/readme.c"
block text 1 > "$work/readme.out"
check "README has a program and its output" test -s "$work/readme.c" -a -s "$work/readme.out"
check "README's program is examples/quickstart.c" cmp "$work/readme.c" examples/quickstart.c
lines_of README.md
check "gradckpt.c compiles as README says" run_line "$(line README.md 'cc .*-c ') -fsyntax-only"
cp "$work/readme.c" "$work/page/program.c"
page_flags="$page_flags -std=c99 -Wall -Wextra -pedantic -Werror"
check "README's program compiles by the line of the page, as C99, and prints what README says" \
    prints "$work/readme.out" "$(line README.md 'cc .*program.c gradckpt.o')"
for begin in 'cc .*-c ' 'cc .*program.c gradckpt.o'; do
    page_line=$(line README.md "$begin" | sed 's/ && .*//')
    check "the manual has the same line: $page_line" grep -q "\`$page_line\`" gradckpt.h
done
if [ $has_cxx -eq 1 ]; then
    cp "$work/readme.c" "$work/readme.cpp"
    check "README's program compiles as C++11" of_cxx "$work/readme.cpp" "$work/readme_cxx"
    check "README's program runs as C++" sh -c "$work/readme_cxx > $work/readme_cxx.out"
    check "C++ prints the same" diff "$work/readme.out" "$work/readme_cxx.out"
fi

# ---- the manual's program ------------------------------------------------------------------------------
{
    printf '#define GRADCKPT_IMPLEMENTATION\n'
    sed -n '/^ \* 1\. A first program/,/^ \*    It prints/s/^ \*        \(.*\)/\1/p' gradckpt.h
} > "$work/manual.c"
tr -s '\n *' '   ' < gradckpt.h | sed -n 's/.* It prints "\([^"]*\)".*/\1/p' > "$work/manual.out"
echo >> "$work/manual.out"
check "the manual has a program and its output" test -s "$work/manual.c" -a -s "$work/manual.out"
check "the manual's program compiles as C99" $LINKED -std=c99 -Wall -Wextra -pedantic -Werror "$work/manual.c" -o "$work/manual_c"
check "the manual's program prints what the manual says" sh -c "$work/manual_c | diff $work/manual.out -"
sed 's/budget = 40000/budget = 0/' "$work/manual.c" > "$work/manual_free.c"
check "the manual's program compiles without its budget" $LINKED -std=c99 "$work/manual_free.c" -o "$work/manual_free"
check "the manual's program takes the manual's bytes without its budget" sh -c "tr -s '\n *' '   ' < gradckpt.h |
    grep -q \"Without the budget it takes \$($work/manual_free | sed 's/ bytes, 0 %.*//') bytes\""
if [ $has_cxx -eq 1 ]; then
    cp "$work/manual.c" "$work/manual.cpp"
    check "the manual's program compiles as C++11" of_cxx "$work/manual.cpp" "$work/manual_cxx"
    check "the manual's program runs as C++" sh -c "$work/manual_cxx | diff $work/manual.out -"
fi

# ---- the other examples --------------------------------------------------------------------------------
check "quickstart prints what README says" sh -c "build/quickstart | diff $work/readme.out -"
check "bytes finds the textbook's 192" sh -c "build/bytes | grep -q '192'"
check "steps draws four strategies" sh -c "build/steps $work/steps.svg > $work/steps.out &&
    grep -q '</svg>' $work/steps.svg && grep -q 'store-all *9 forwards, at most 9 tensors' $work/steps.out &&
    grep -q 'memory-poor *37 forwards, at most 3 tensors' $work/steps.out"
check "steps: a path that cannot be written" fails_with 1 "cannot write" build/steps /nonexistent/s.svg
check "graph draws two graphs" sh -c "build/graph $work/neuron.svg $work/graph.svg &&
    grep -q '>gradient -3.547<' $work/neuron.svg && grep -q '>linear_cross_entropy<' $work/graph.svg"
check "graph: a path that cannot be written" fails_with 1 "cannot write" build/graph /nonexistent/n.svg "$work/g.svg"
check "accumulation runs" sh -c "build/accumulation $work/curves.svg > $work/accumulation.out"
check "accumulation: equal bits for every cut" grep -q 'equal bits' "$work/accumulation.out"
check "accumulation: the mean of means ends with too much loss" test "$(grep -c '0\.1[0-9]* too much' \
    "$work/accumulation.out")" = 2
check "accumulation draws curves" grep -q '</svg>' "$work/curves.svg"
check "accumulation: three equal gradients, the naive ones differ" sh -c "
    sed -n 's/^\(sum, one\|mean of\|sum, never\).* \([0-9a-f]\{16\}\)\$/\2/p' $work/accumulation.out |
    head -n 6 | awk '{ h[NR] = \$1 } END { exit !(h[1] == h[2] && h[2] == h[3] && h[4] != h[1] && h[5] != h[1] && h[4] != h[5]) }'"
! in_turn 3 || check "accumulation: a path that cannot be written" fails_with 1 "cannot write" \
    build/accumulation /nonexistent/curves.svg

check "strategies runs" sh -c "build/strategies 9 > $work/strategies.out"
check "strategies: the same bits" grep -q 'are the same bits' "$work/strategies.out"
check "strategies: eight rows, one loss" sh -c "
    sed -n '/^strategy/,/^\$/p' $work/strategies.out | awk 'NR > 1 && NF > 5 { n++; h[\$NF] = 1 }
        END { for (i in h) kinds++; exit !(n == 8 && kinds == 1) }'"
check "strategies: not a number of layers" fails_with 2 "banana: allowed is" build/strategies banana
check "strategies on a full disk" sh -c "test ! -w /dev/full || ! build/strategies 4 > /dev/full"

# ---- simulate: plans of many ranks -----------------------------------------------------------------------
check "simulate --help" sh -c "build/simulate --help | grep -q -e '--ranks TEXT'"
check "simulate: what is no power of two" fails_with 2 "powers of two" build/simulate --ranks 8,12
check "simulate: --virtual-ranks" fails_with 2 "a power of two" build/simulate --ranks 8 --virtual-ranks 12
check "simulate: a network that is too slow" fails_with 2 "1e-6" build/simulate --ranks 8 --bandwidth 1e-300
check "simulate: fewer virtual ranks than ranks" fails_with 1 "set desc.ranks.virtual_ranks to 8 or more" build/simulate --ranks 8 --virtual-ranks 4 --model gpt2
check "simulate: a path that cannot be written" fails_with 1 "nonexistent" build/simulate --json /nonexistent/s.json
check "simulate: a table" sh -c "build/simulate --model gpt2 --ranks 8,32 --network 10gb > $work/simulate.md"
check "simulate: eight plans" test "$(grep -c '^| [38]' "$work/simulate.md")" = 8
check "simulate: what does not fit" sh -c "build/simulate --model gpt2 --ranks 8 --budget 100MB --network 10gb --shard none |
    grep -q 'needs [0-9]'"
check "simulate: JSON" sh -c "build/simulate --model gpt2 --ranks 1,64 --shard values --bandwidth 5 --latency 3 \
    --json - > $work/simulate.json"
# A single rank sends nothing and does not wait; 64 ranks send bytes.
check "simulate: one rank" grep -q '"ranks":1,.*"exposed":0,"communication_seconds":0,"bytes_sent":0,' "$work/simulate.json"
check "simulate: 64 ranks" grep -q '"ranks":64,.*"network":"given".*"bytes_sent":[1-9]' "$work/simulate.json"

# ---- cnn: the same weights in fewer bytes; files in the formats of other data sets ----------------------
cnn="build/cnn --width 4 --batch 32 --epochs 1"
check "cnn --help" sh -c "build/cnn --help | grep -q -e '--data FILE'"
check "cnn: an option's wrong value" fails_with 2 "allowed is" build/cnn --epochs banana
check "cnn reads digits" sh -c "$cnn > $work/cnn.all && grep -q '^1797 images of 8 x 8 x 1' $work/cnn.all &&
    grep -q 'kept: epoch 1: .*[4-9][0-9]\.[0-9] % right' $work/cnn.all"
bytes=$(sed -n 's/^in \([0-9]*\) bytes.*/\1/p' "$work/cnn.all")
check "cnn in fewer bytes" sh -c "$cnn --budget $((${bytes:-0} * 3 / 4)) > $work/cnn.few"
check "cnn in fewer bytes: the same weights" test "$(sed 's/.*bytes; //' "$work/cnn.few")" = \
    "$(sed 's/.*bytes; //' "$work/cnn.all")"
check "cnn in fewer bytes: they are fewer" test "$(sed -n 's/^in \([0-9]*\) bytes.*/\1/p' "$work/cnn.few")" \
    -lt "${bytes:-0}"
check "cnn: too few bytes" fails_with 1 "is too small" $cnn --budget 1K
# Random shifts of images give other weights. These must be the same with a smaller budget, and when training continues
# from a saved file.
again="$cnn --augment --epochs 3"
check "cnn --augment" sh -c "$again > $work/cnn.shifted"
check "cnn --augment: other weights" test "$(sed -n 's/.*bytes; //p' "$work/cnn.shifted")" != \
    "$(sed -n 's/.*bytes; //p' "$work/cnn.all")"
check "cnn --augment in fewer bytes" sh -c "$again --budget $((${bytes:-0} * 3 / 4)) --log $work/cnn.csv > $work/cnn.few"
check "cnn --augment in fewer bytes: the same" test "$(grep kept: "$work/cnn.few")" = "$(grep kept: "$work/cnn.shifted")"
check "cnn --save" sh -c "$again --save $work/cnn.st > $work/cnn.saved"
check "cnn --save: goes on from the file" sh -c "$again --save $work/cnn.st --log $work/cnn.gone > $work/cnn.gone.out &&
    [ \$(grep -c '^epoch' $work/cnn.gone.out) = 0 ]"
check "cnn --save: the same weights" test "$(sed -n 's/.*bytes; //p' "$work/cnn.gone.out")" = \
    "$(sed -n 's/.*bytes; //p' "$work/cnn.shifted")"
check "cnn --log: a head and a line an epoch" test "$(cut -d, -f1 "$work/cnn.csv" | tr '\n' ' ')" = "epoch 1 2 3 "
check "cnn: a log that is none" fails_with 1 "is not the log of a training" $cnn --log "$work/cnn.all"
# pixels FROM BYTES: prints BYTES characters of the header, from number FROM on, as bytes 1 and 2
pixels()
{
    tail -c "+$1" gradckpt.h | head -c "$2" | LC_ALL=C tr '\000-\100\101-\377' '[\001*65][\002*191]'
}
mkdir -p "$work/cifar" "$work/mnist"
pixels 1 $((40 * 3073)) > "$work/cifar/data_batch_1.bin"
pixels 200000 $((5 * 3073)) > "$work/cifar/test_batch.bin"
check "cnn mirrors colours" sh -c "$cnn --data $work/cifar --augment > $work/cnn.colours"
check "cnn reads CIFAR-10's format" sh -c "$cnn --data $work/cifar | grep '^45 images of 32 x 32 x 3, 5 of them'"
for part in train t10k; do
    rows=$(test $part = train && echo 40 || echo 5)
    { printf '\000\000\010\003\000\000\000\0'"$(printf %o "$rows")"'\000\000\000\034\000\000\000\034'
        pixels 1 $((rows * 784)); } > "$work/mnist/$part-images-idx3-ubyte"
    { printf '\000\000\010\001\000\000\000\0'"$(printf %o "$rows")"; pixels 1 "$rows"; } \
        > "$work/mnist/$part-labels-idx1-ubyte"
done
check "cnn reads MNIST's format" sh -c "$cnn --data $work/mnist | grep '^45 images of 28 x 28 x 1, 5 of them'"
mkdir -p "$work/mixed"
cp "$work"/mnist/train-* "$work/cifar/test_batch.bin" "$work/mixed"
check "cnn: images of two sizes" fails_with 1 "32 x 32 x 3 after images of 28 x 28 x 1" $cnn --data "$work/mixed"
check "cnn: no such folder" fails_with 1 "has neither data_batch_1.bin nor" build/cnn --data /nonexistent
head -c 4000 "$work/cifar/test_batch.bin" > "$work/cifar/data_batch_2.bin"
check "cnn: half a row of CIFAR-10" fails_with 1 "data_batch_2.bin: not CIFAR-10's format" build/cnn --data "$work/cifar"
tail -c 4000 gradckpt.h | head -c 3073 > "$work/cifar/data_batch_2.bin"
check "cnn: a label that is none" fails_with 1 "data_batch_2.bin: row 40 has label" build/cnn --data "$work/cifar"
for name in images-idx3 labels-idx1; do
    cp "$work/mnist/t10k-$name-ubyte" "$work/mnist/saved"
    head -c 12 "$work/mnist/saved" > "$work/mnist/t10k-$name-ubyte"
    check "cnn: MNIST's $name cut off" fails_with 1 "t10k-images-idx3-ubyte: " build/cnn --data "$work/mnist"
    cp "$work/mnist/saved" "$work/mnist/t10k-$name-ubyte"
done
rm "$work/mnist/t10k-labels-idx1-ubyte"
check "cnn: no labels" fails_with 1 "MNIST's t10k-images-idx3-ubyte and its labels" build/cnn --data "$work/mnist"

# ---- gpt: options ----------------------------------------------------------------------------------------
small="--layers 3 --heads 2 --dim 32 --context 32 --batch 8 --threads 1"
check "--help" sh -c "build/gpt --help > $work/help && tr -s ' \n' ' ' < $work/help > $work/flat"
for name in layers heads dim context batch micro-batch tune-seconds steps lr min-lr warmup weight-decay beta1 beta2 clip \
    dropout seed threads tie checkpoint budget plan frontier timeline save resume sample samples temperature top-k top-p prompt data validation eval-every eval-iters save-every json help; do
    check "--help names --$name" grep -q -e "--$name " "$work/help"
done
for option in layers heads dim context batch micro-batch tune-seconds steps lr min-lr warmup weight-decay beta1 beta2 clip \
    dropout seed threads tie checkpoint budget sample samples temperature top-k top-p eval-every eval-iters save-every; do
    check "--$option wants a value" fails_with 2 "needs a value" build/gpt --$option
    check "--$option banana" fails_with 2 "allowed is" build/gpt --$option banana
    check "--$option ''" fails_with 2 "allowed is" build/gpt --$option ''
    check "--$option -1" fails_with 2 "allowed is" build/gpt --$option -1
    check "--$option 1x" fails_with 2 "allowed is" build/gpt --$option 1x
    check "--$option nan" fails_with 2 "allowed is" build/gpt --$option nan
    check "--$option 1e99" fails_with 2 "allowed is" build/gpt --$option 1e99
done
check "-h is --help" sh -c "build/gpt -h | cmp - $work/help"
check "--help says what 20M is, and that the last one counts" sh -c "grep -q '20M (20 . 2^20)' $work/flat &&
    grep -q 'given twice, the last one counts' $work/flat"
check "--help: 80 columns, each option once, all in groups" sh -c "! grep -q '.\{81\}' $work/help &&
    grep -o '^  --[a-z0-9-]*' $work/help | sort > $work/options && [ -s $work/options ] &&
    [ \$(sort -u $work/options | wc -l) -eq \$(wc -l < $work/options) ] &&
    grep -q '^Reports:' $work/help && ! grep -q '^Others:' $work/help"
check "an unknown option" fails_with 2 "^gpt: --banana: unknown option; see --help\$" build/gpt --banana 3
check "a stray word" fails_with 2 "^gpt: banana: unknown option; see --help\$" build/gpt banana
for pair in stesp:steps stpes:steps step:steps temp:temperature top_k:top-k LR:lr learning-rate: budgte:budget \
    microbatch:micro-batch weight_decay:weight-decay q: eval:eval-every check-point:checkpoint ccntext:context; do
    near=${pair#*:}
    check "--${pair%:*} is near ${near:-nothing}" fails_with 2 "unknown option; ${near:+did you mean --$near? }see --help\$" \
        build/gpt --${pair%:*} 1
    check "--${pair%:*}=1 is near ${near:-nothing}" \
        fails_with 2 "unknown option; ${near:+did you mean --$near? }see --help\$" build/gpt --${pair%:*}=1
done
check "-steps and steps are near --steps" sh -c "for word in -steps steps; do
    build/gpt \$word 3 2>&1 | grep -q 'unknown option; did you mean --steps? see --help' || exit 1; done"
check "a flag takes no value" fails_with 2 "^gpt: --plan=1: --plan takes no value\$" build/gpt --plan=1
check "--name= is an empty value" fails_with 2 "allowed is" build/gpt --steps=
check "--data= is no file" fails_with 2 "allowed is a file" build/gpt --data=
# sized OPTION...: prints the budget that gpt uses with these options
sized()
{
    build/gpt $small --steps 0 --eval-every 0 --json - "$@" 2> "$work/stderr" | sed -n 's/.*"event":"options".*"budget":\([0-9]*\).*/\1/p'
}
for pair in 9000000:9000000 9000000b:9000000 9MB:9000000 9mb:9000000 9Mb:9000000 9MiB:9437184 9mib:9437184 9M:9437184 \
    9m:9437184 8789.0625KiB:9000000 9000KB:9000000 9000k:9216000 0.25GB:250000000 0.25G:268435456 0.25GiB:268435456; do
    check "--budget ${pair%:*}" test "$(sized --budget "${pair%:*}")" = "${pair#*:}"
done
check "--budget=9MB, and of two the last" test "$(sized --budget 1 --budget=9MB)" = 9000000
for size in 9MiBx 9iB 9MBB 9TB 9Mi 9i 9M9 MB; do
    check "--budget $size" fails_with 2 "20MB (20 . 10^6), 20MiB or 20M (20 . 2^20)" build/gpt --budget $size
done
check "heads that do not divide dim" fails_with 2 "^gpt: --dim 32 with --heads 5: allowed is a --dim of 2 \* --heads, 10," build/gpt --dim 32 --heads 5
check "micro-batch above batch" fails_with 2 "at most --batch" build/gpt --batch 4 --micro-batch 5
check "min-lr above lr" fails_with 2 "at most --lr" build/gpt --lr 1e-4 --min-lr 1e-3
check "--layers 0" fails_with 2 "from 1 to" build/gpt --layers 0
check "--tie 2" fails_with 2 "from 0 to 1" build/gpt --tie 2
check "--checkpoint lists its modes" fails_with 2 "auto, store-all, memory-poor, segments, sqrt or optimal" \
    build/gpt --checkpoint all

# ---- gpt: JSON -------------------------------------------------------------------------------------------
number='-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?'
check "--json -" sh -c "build/gpt $small --steps 20 --eval-every 10 --sample 5 --json - > $work/a.json"
check "options event" grep -qE "^\{\"event\":\"options\",\"program\":\"gpt\",\"begin\":0,\"layers\":3,.*\"lr\":0.001,.*\"save\":null,.*\"min-lr\":0.001,.*\"device\":\"cpu\",.*\"json\":\"-\",\"log\":null,\"help\":false\}\$" "$work/a.json"
check "plan event" grep -qE "^\{\"event\":\"plan\",\"bytes\":[0-9]+,\"cost\":[0-9]+,\"overhead\":$number,\"recompute\":$number,\"checkpoint\":\"store-all\",\"micro_batch\":8,\"parameters\":[0-9]+,\"budget\":0(,\"[a-z]+_bytes\":[0-9]+){7},\"ranks\":1,\"lower_bound\":[0-9]+,\"gap\":0,\"proven_bytes\":[0-9]+\}\$" "$work/a.json"
check "step events" test "$(grep -cE "^\{\"event\":\"step\",\"step\":[0-9]+,\"loss\":$number,\"grad_norm\":$number,\"lr\":$number,\"targets\":256,\"seconds\":$number,\"tokens_per_second\":$number,\"elapsed\":$number\}\$" "$work/a.json")" -eq 20
check "eval events" test "$(grep -cE "^\{\"event\":\"eval\",\"step\":[12]0,\"val_loss\":$number,\"elapsed\":$number\}\$" "$work/a.json")" -eq 2
check "end event" grep -qE "^\{\"event\":\"end\",\"step\":20,\"bytes_measured\":[0-9]+,\"weights_hash\":\"[0-9a-f]{16}\",\"seconds\":$number,\"skipped\":0\}\$" "$work/a.json"
check "the learning rate warms up" test "$(field "$work/a.json" step lr)" = 1.00000007e-05
check "--json - prints nothing else on standard output" test "$(wc -l < "$work/a.json")" -eq 25
check "--json FILE" sh -c "build/gpt $small --steps 3 --json $work/b.json > $work/b.out"
check "--json FILE has options, plan, steps, eval, end" test "$(wc -l < "$work/b.json")" -eq 7
# 3 layers of width 32 on 32 tokens, 256 classes: a row's forward has 2 T (12 C^2 layers + C V) + 4 T^2 C layers FLOPs, its
# backward twice as many
check "--peak-tflops: the MFU in events, log and progress" sh -c "build/gpt $small --steps 2 --eval-every 0 --peak-tflops 0.5 \
    --log $work/mfu.csv --json $work/mfu.json > $work/mfu.out && grep -q 'tokens/s, MFU [0-9.e-]* %' $work/mfu.out &&
    head -n 1 $work/mfu.csv | grep -q 'seconds,tokens_per_second,mfu\$' &&
    tail -n 1 $work/mfu.csv | awk -F, '{ flops = 8 * 3 * (2 * 32 * (12 * 32 * 32 * 3 + 32 * 256) + 4 * 32 * 32 * 32 * 3)
        is = \$9 * \$7 * 0.5e12 / flops; exit !(is > 0.99999 && is < 1.00001) }' &&
    test \"\$(sed -n 's/.*\"mfu\":\([^,]*\),.*/\1/p' $work/mfu.json | tail -n 1)\" = \"\$(tail -n 1 $work/mfu.csv | cut -d, -f 9)\""
check "counts of one are printed in the singular" \
    sh -c "build/gpt $small --layers 1 --heads 1 --steps 1 --eval-every 0 > $work/one &&
    grep -q '^model  1 layer, 1 head, ' $work/one && grep -q '^plan .* 1 thread:' $work/one &&
    grep -q '^end    1 step, ' $work/one && grep -q '^model  3 layers, 2 heads, ' $work/b.out &&
    grep -q '^end    3 steps, ' $work/b.out"
check "the loss falls" sh -c "build/gpt $small --steps 120 --warmup 10 --lr 3e-3 --json - 2>/dev/null |
    sed -n 's/.*\"loss\":\([0-9.]*\).*/\1/p' | awk 'NR == 1 { a = \$1 } { b = \$1 } END { exit !(a > 5 && b < 4) }'"

# ---- gpt: one hash and exact bytes for every plan and micro-batch --------------------------------------
for setting in "--tie 1 --dropout 0" "--tie 0 --dropout 0" "--tie 1 --dropout 0.2" "--tie 0 --dropout 0.2"; do
    hash=
    for mode in store-all memory-poor segments sqrt; do
        for micro in 1 2 3 4 8; do
            in_turn 3 || continue
            run="$setting --checkpoint $mode --micro-batch $micro"
            build/gpt $small $run --steps 6 --eval-every 0 --json - > "$work/h.json" 2> "$work/stderr"
            h=$(field "$work/h.json" end weights_hash)
            hash=${hash:-$h}
            check "hash with $run: $h, not $hash" test -n "$h" -a "$h" = "$hash"
            check "bytes with $run" test -n "$h" -a "$(field "$work/h.json" plan bytes)" = \
                "$(field "$work/h.json" end bytes_measured)"
            check "checkpoint named with $run" test "$(field "$work/h.json" plan checkpoint)" = "$mode"
        done
    done
    echo "gpt $setting: $hash"
done

# ---- gpt: --optimiser ------------------------------------------------------------------------------------
for kind in adam8bit muon apollo-mini; do
    own="$small --optimiser $kind --eval-every 0"
    build/gpt $own --steps 4 --json - > "$work/h.json" 2> "$work/stderr"
    h=$(field "$work/h.json" end weights_hash)
    build/gpt $own --steps 2 --micro-batch 2 --checkpoint memory-poor --threads 2 --save "$work/own" > "$work/stdout" 2>&1
    build/gpt --resume "$work/own" --steps 4 --json - > "$work/i.json" 2> "$work/stderr"
    check "--optimiser $kind: a resumed run of another plan has hash $h" test -n "$h" -a "$(field "$work/i.json" end weights_hash)" = "$h" \
        -a "$(field "$work/a.json" end weights_hash)" != "$h"
    check "--optimiser $kind: bytes" test "$(field "$work/i.json" plan bytes)" = "$(field "$work/i.json" end bytes_measured)"
    check "--optimiser $kind takes less state" test "$(field "$work/h.json" plan state_bytes)" -lt "$(field "$work/a.json" plan state_bytes)"
done
check "--resume with another optimiser" fails_with 2 "was made with --optimiser apollo-mini" build/gpt --resume "$work/own" --optimiser muon
build/gpt $small --optimiser muon --micro-batch auto --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.* at least \([0-9]*\).*/\1/p' "$work/stderr")
build/gpt $small --optimiser muon --micro-batch auto --budget "$least" --steps 2 --eval-every 0 --json - > "$work/h.json" 2> "$work/stderr"
check "--optimiser muon: all bytes are in --budget" test "$(field "$work/h.json" plan bytes)" -le "$least" \
    -a "$(field "$work/h.json" end bytes_measured)" = "$(field "$work/h.json" plan bytes)"
check "--optimiser muon: not a byte less" fails_with 1 "at least $least" build/gpt $small --optimiser muon --micro-batch auto --budget $((least - 1))

# ---- gpt: --micro-batch auto ----------------------------------------------------------------------------
# auto BUDGET OPTION...: trains with --micro-batch auto within BUDGET ("least": the smallest budget possible), and
# prints "micro-batch hash"
auto()
{
    limit=$1
    shift
    if [ "$limit" = least ]; then
        build/gpt $small --micro-batch auto --budget 1 "$@" 2> "$work/stderr"
        limit=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr" | head -n 1)
    fi
    build/gpt $small --micro-batch auto --budget "$limit" --steps 20 --eval-every 10 "$@" \
        --json - > "$work/auto.json" 2>> "$work/stderr"
    test "$(field "$work/auto.json" plan bytes)" = "$(field "$work/auto.json" end bytes_measured)" &&
        test "$(field "$work/auto.json" plan budget)" = "$limit" || return 1
    test "$limit" = 0 || test "$(field "$work/auto.json" plan bytes)" -le "$limit" || return 1
    echo "$(field "$work/auto.json" plan micro_batch) $(field "$work/auto.json" end weights_hash)"
}
for clip in 1 0; do
    in_turn 2 || continue
    build/gpt $small --clip $clip --steps 20 --eval-every 10 --json - > "$work/h.json" 2> "$work/stderr"
    h=$(field "$work/h.json" end weights_hash)
    least=$(auto least --clip $clip)
    free=$(auto 0 --clip $clip)
    check "--micro-batch auto: $free, whole without a limit" test -n "$h" -a "$free" = "8 $h"
    check "--micro-batch auto: $least, the same hash in the least bytes" test "${least#* }" = "$h"
    check "a small micro-batch in the least bytes: $least" test "${least% *}" -lt 8
    timed=$(auto 0 --clip $clip --tune-seconds 0.2)
    check "--tune-seconds: $timed, the same hash" test "${timed#* }" = "$h" -a "$(grep -c '"trial"' "$work/auto.json")" -ge 1
done
check "--micro-batch auto with too few bytes" fails_with 1 "at least" \
    build/gpt $small --micro-batch auto --budget 1
check "--tune-seconds chooses the micro-batch" fails_with 2 "micro-batch auto" build/gpt --tune-seconds 1 --micro-batch 2
check "auto is no number of layers" fails_with 2 "allowed is" build/gpt --layers auto
check "--micro-batch names auto" fails_with 2 "or auto" build/gpt --micro-batch x

# ---- gpt: save, resume, sample -------------------------------------------------------------------------
run="$small --seed 7 --eval-every 0 --json -"
build/gpt $run --steps 12 --save "$work/whole.safetensors" > "$work/whole.json" 2>> "$work/stderr"
build/gpt $run --steps 5 --save "$work/part.safetensors" > "$work/part.json" 2>> "$work/stderr"
check "resume" sh -c "build/gpt $run --steps 12 --resume $work/part.safetensors \
    --save $work/resumed.safetensors > $work/resumed.json"
check "a resumed run goes on at its step" test "$(field "$work/resumed.json" step step)" = 6
check "a resumed run has the same weights" test -n "$(field "$work/whole.json" end weights_hash)" -a \
    "$(field "$work/resumed.json" end weights_hash)" = "$(field "$work/whole.json" end weights_hash)"
check "a resumed run saves the same file" cmp "$work/whole.safetensors" "$work/resumed.safetensors"
check "--resume with another --dim is refused" fails_with 2 "made with --dim 32; leave the option out" \
    build/gpt $small --dim 64 --resume "$work/part.safetensors"
cp "$work/part.safetensors" "$work/alone.safetensors"
check "resume needs no other option but more steps" sh -c "build/gpt --resume $work/alone.safetensors --steps 12 \
    --json - > $work/resumed.json"
check "--resume alone gives the same weights" test "$(field "$work/resumed.json" end weights_hash)" = \
    "$(field "$work/whole.json" end weights_hash)"
check "--resume alone saves to the same file" cmp "$work/whole.safetensors" "$work/alone.safetensors"
sed 's/"option.heads":"2"/"option.heads":"x"/' "$work/part.safetensors" > "$work/noted.safetensors"
check "a note that is no number of heads" fails_with 1 "its --heads x is not allowed here" \
    build/gpt --resume "$work/noted.safetensors"
head -c 20000 gradckpt.h > "$work/learned"
build/gpt $run --steps 2 --data "$work/learned" --save "$work/learned.safetensors" > "$work/learned.json"
echo more >> "$work/learned"
check "--resume: data that has changed is refused" fails_with 1 "has changed since the run began; to continue with its present content, give --data" \
    build/gpt --steps 3 --resume "$work/learned.safetensors"
check "--resume with --data accepts changed data" \
    build/gpt --steps 3 --resume "$work/learned.safetensors" --data "$work/learned"
head -c 1000 "$work/part.safetensors" > "$work/short.safetensors"
check "a truncated file is refused" fails_with 1 "resume" build/gpt $small --resume "$work/short.safetensors"
check "a missing file is refused" fails_with 1 "resume" build/gpt $small --resume "$work/none.safetensors"
check "sample twice" sh -c "
    for i in 1 2; do
        build/gpt $small --resume $work/whole.safetensors --steps 0 --sample 50 --prompt 'the ' --eval-every 0 |
            sed -n '/^sample/,/^end/{/^end/d;p;}' > $work/sample\$i || exit 1
    done"
check "the same options give the same sample" cmp "$work/sample1" "$work/sample2"
check "the sample begins with its prompt" grep -q '^the ' "$work/sample1"
# sampled OPTION...: prints the samples of the weights in whole.safetensors with these options
sampled()
{
    build/gpt $small --resume "$work/whole.safetensors" --steps 0 --eval-every 0 --sample 100 --prompt 'the ' "$@" |
        sed -n '/^sample/,/^end/{/^end/d;p;}'
}
sampled --temperature 0 > "$work/greedy"
sampled --top-k 1 > "$work/top1"
sampled --top-p 0.0001 --seed 8 > "$work/top_p"
check "temperature 0, the first of k and the first of p are the likeliest bytes" sh -c "
    cmp $work/greedy $work/top1 && cmp $work/greedy $work/top_p && test \$(wc -c < $work/greedy) -gt 100"
sampled --samples 3 > "$work/three"
sampled --temperature 2 > "$work/hot"
check "--samples 3 begins with the sample of --samples 1" sh -c "test \$(grep -ac '^sample' $work/three) -eq 3 &&
    head -n \$(wc -l < $work/sample1) $work/three | head -c 40 | cmp -n 40 - $work/sample1 && ! cmp -s $work/hot $work/sample1"
build/gpt $run --steps 4 --eval-every 4 --eval-iters 2 > "$work/some.json" 2>> "$work/stderr"
build/gpt $run --steps 4 --eval-every 4 --eval-iters 100000 > "$work/more.json" 2>> "$work/stderr"
build/gpt $run --steps 4 --eval-every 4 > "$work/all.json" 2>> "$work/stderr"
check "--eval-iters looks at some, or at all" sh -c "
    test '$(field "$work/more.json" eval val_loss)' = '$(field "$work/all.json" eval val_loss)' &&
    test -n '$(field "$work/some.json" eval val_loss)' &&
    test '$(field "$work/some.json" eval val_loss)' != '$(field "$work/all.json" eval val_loss)'"
# ---- make shakespeare: the target's command keeps its promises when run for two steps
MAKEFLAGS= make --no-print-directory -n shakespeare | sed -n '/build\/gpt --data/,$p' > "$work/shakespeare"
check "make shakespeare names its text and a budget" grep -q -e '--data examples/shakespeare.txt .*' "$work/shakespeare"
check "examples/shakespeare.txt has the known checksum" \
    sh -c "cksum < examples/shakespeare.txt | grep -q '^1901475708 1115394\$'"
check "make shakespeare begins, in its budget" sh -c "{ tr -d '\\\\\n' < $work/shakespeare; echo ' --steps 2 \
    --eval-iters 1 --sample 20 --save $work/verse --json $work/verse.json'; } > $work/verse.sh &&
    sh $work/verse.sh > $work/verse.out && grep -q '^ROMEO:' $work/verse.out"
check "make shakespeare stays within its budget" test "$(field "$work/verse.json" end bytes_measured)" -le 16000000

# ---- gpt: a log that a resumed training continues, saving every few steps, interrupts
once="build/gpt $small --steps 12 --eval-every 6 --save $work/log.safetensors --json $work/log.json"
$once --steps 7 > "$work/stdout" 2>> "$work/stderr"
cp "$work/log.safetensors" "$work/log7.safetensors"
$once --resume "$work/log.safetensors" > "$work/stdout" 2>> "$work/stderr"
# whole_log FILE STEPS: checks that every line is a JSON object, and that each step occurs once and in order
whole_log()
{
    awk -v last="$2" '!/^[{]"event":"[a-z]+".*[}]$/ { bad = 1 }
        /^[{]"event":"step"/ { split($0, a, /[:,]/); if (a[4] != ++n) bad = 1 } END { exit bad || n != last }' "$1"
}
check "--json with --resume continues the log" whole_log "$work/log.json" 12
check "a resumed log has the options of both runs" \
    sh -c "grep -c '\"event\":\"options\"' $work/log.json | grep -q '^2\$' &&
    grep -q '\"begin\":7' $work/log.json"
check "a resumed log has the ends of both runs" test "$(grep -c '"event":"end"' "$work/log.json")" -eq 2
cp "$work/log7.safetensors" "$work/log.safetensors"
printf '{"event":"step","st' >> "$work/log.json" # an incomplete line, as a killed process leaves it
$once --resume "$work/log.safetensors" --steps 9 > "$work/stdout" 2>> "$work/stderr"
check "a log of later steps is cut where an earlier file goes on" whole_log "$work/log.json" 9
printf 'abc' > "$work/tiny"
check "a text is no log" fails_with 2 "the file has no events of this program to continue" $once --resume "$work/log.safetensors" \
    --json "$work/tiny"
check "a refused --json file is unchanged" grep -q '^abc$' "$work/tiny"
check "without --resume, --json starts a new log" sh -c "$once --steps 2 > $work/stdout"
check "a new log begins with step 1" whole_log "$work/log.json" 2
build/gpt $run --steps 10 --save-every 4 --save "$work/often.safetensors" > "$work/often.json" 2>> "$work/stderr"
check "--save-every changes nothing" test "$(field "$work/often.json" end weights_hash)" = \
    "$(build/gpt $run --steps 10 2>> "$work/stderr" | sed -n 's/.*"weights_hash":"\([^"]*\).*/\1/p')"
check "--save-every wants --save" fails_with 2 "needs --save" build/gpt --save-every 5
rm -f "$work/killed.safetensors" "$work/killed.json"
build/gpt $small --steps 100000 --eval-every 0 --save-every 3 --save "$work/killed.safetensors" \
    --json "$work/killed.json" > "$work/stdout" 2>> "$work/stderr" &
wait_for "$work/killed.json" '"step":9,'
kill -KILL $!
wait $! 2>> "$work/stderr"
at=$(tr ',' '\n' < "$work/killed.safetensors" | sed -n 's/.*"step":"\([0-9]*\)".*/\1/p' | head -n 1)
check "--save-every: killed, its file is whole, of step ${at:-none}" test "${at:-1}" -ge 3 -a $((${at:-1} % 3)) -eq 0
check "a killed run resumes from its file" \
    build/gpt --resume "$work/killed.safetensors" --steps $((${at:-1} + 2)) --json "$work/killed.json"
check "a killed and resumed run has a complete log" whole_log "$work/killed.json" $((${at:-1} + 2))
# interrupted SIGNAL PATTERN OPTION...: runs gpt and sends it the signal as soon as the log has PATTERN. Sets $took to
# the seconds until gpt ends after that, and $status to its exit status.
interrupted()
{
    signal=$1 pattern=$2
    shift 2
    rm -f "$work/stopped.json"
    build/gpt "$@" --json "$work/stopped.json" > "$work/stdout" 2> "$work/stderr" &
    pid=$!
    wait_for "$work/stopped.json" "$pattern"
    took=$(date +%s)
    kill -$signal $pid
    (sleep 60; kill -KILL $pid) > /dev/null 2>&1 &
    wait $pid
    status=$?
    kill $! 2> "$work/log"
    took=$(($(date +%s) - took))
}
for signal in INT TERM; do
    interrupted $signal '"step":5,' $small --steps 100000 --eval-every 0 --save "$work/stopped.safetensors"
    at=$(field "$work/stopped.json" end step)
    check "SIG$signal: exit status $status after step ${at:-none}" test "$status" -eq 130 -a "${at:-0}" -ge 5
    check "SIG$signal: an answer, and what goes on" sh -c "grep -q '^stopping' $work/stderr &&
        grep -q '^interrupted; continue with --resume .*stopped.safetensors' $work/stdout"
    check "SIG$signal: the weights are those of whole steps" test "$(field "$work/stopped.json" end weights_hash)" = \
        "$(build/gpt $small --steps "${at:-1}" --eval-every 0 --json - 2> "$work/log" |
            sed -n 's/.*"weights_hash":"\([^"]*\).*/\1/p')"
    check "SIG$signal: and so is the file" sh -c "build/gpt --resume $work/stopped.safetensors --steps 0 --json - |
        grep -q '\"weights_hash\":\"$(field "$work/stopped.json" end weights_hash)\"'"
done
rm -f "$work/stopped.safetensors"
interrupted INT '"event":"plan"' --layers 6 --dim 512 --context 512 --batch 512 --micro-batch 1 --threads 1 \
    --steps 2 --eval-every 0 --save "$work/stopped.safetensors" # a step of this model takes minutes
check "an interrupt within a step: ended in $took seconds" test "$status" -eq 130 -a "$took" -lt 20 -a \
    "$(field "$work/stopped.json" end step)" = 0
check "a run stopped within its first step saves nothing" test ! -e "$work/stopped.safetensors"
interrupted INT '"event":"step"' --layers 6 --dim 256 --context 256 --batch 1 --steps 1 --eval-every 1 --threads 1
check "an interrupt within an evaluation" test "$status" -eq 130 -a -z "$(field "$work/stopped.json" eval step)"
mkfifo "$work/slow"
sleep 60 > "$work/slow" &
sleeping=$!
build/gpt --data "$work/slow" > "$work/stdout" 2> "$work/stderr" &
reading=$!
sleep 0.2
kill -INT $reading
wait_for "$work/stderr" stopping
kill -INT $reading
wait $reading
check "a second interrupt ends the program at once" test $? -eq 130
kill $sleeping
build/gpt $run --steps 50 --warmup 0 --lr 10 --weight-decay 100 > "$work/lost.json" 2> "$work/stderr"
check "gradients that stay not finite end the run" test $? -eq 1 -a "$(grep -c '"skip"' "$work/lost.json")" -ge 10
check "a run with gradients that are not finite says what helps" grep -q 'no longer finite.*lower --lr' "$work/stderr"

# ---- gpt: failures ---------------------------------------------------------------------------------------
check "--data that is missing" fails_with 1 "No such file" build/gpt --data "$work/none"
check "--data that is a folder" fails_with 1 "directory" build/gpt --data "$work"
check "--data that is too short" fails_with 1 "too few" build/gpt --data "$work/tiny"
: > "$work/empty"
check "--data that is empty" fails_with 1 "too few" build/gpt --data "$work/empty"
cp build/gpt "$work/gpt"
mkdir -p "$work/alone/in/here"
cp build/gpt "$work/alone/in/here/gpt"
check "without --data, gpt needs the header's text" fails_with 1 "data FILE" sh -c "cd $work/alone/in && ./here/gpt"
check "a tiny budget" fails_with 1 "at least" build/gpt --budget 1000
least=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr" | head -n 1)
for mode in memory-poor sqrt; do
    build/gpt $small --plan --checkpoint $mode --threads 1 > "$work/poor" 2> "$work/stderr"
    check "--checkpoint $mode: a note if a step has more than 3 times the least cost" \
        test "$(grep -c '^note .* times the least cost' "$work/poor")" = "$([ $mode = sqrt ] && echo 0 || echo 1)"
done
check "the least budget named is enough" sh -c "build/gpt --steps 2 --eval-every 0 --budget ${least:-0} --json - > $work/least.json"
check "the least budget is not exceeded" test "$(field "$work/least.json" end bytes_measured)" -le "${least:-0}"
check "--save into no folder" fails_with 1 "save" build/gpt $small --steps 2 --save /nonexistent/w
check "--json into no folder" fails_with 1 "json" build/gpt $small --json /nonexistent/j
check "standard output closed" fails_with 1 "standard output" sh -c "build/gpt $small --steps 2 >&-"
if [ -w /dev/full ]; then
    check "standard output full" fails_with 1 "standard output" sh -c "build/gpt $small --steps 2 > /dev/full"
    check "--help on a full disk" fails_with 1 "standard output" sh -c "build/gpt --help > /dev/full"
    check "--plan on a full disk" fails_with 1 "standard output" sh -c "build/gpt $small --plan > /dev/full"
    check "--json on a full disk" fails_with 1 "/dev/full" build/gpt $small --steps 2 --json /dev/full
    check "--frontier on a full disk" fails_with 1 "/dev/full" build/gpt $small --frontier /dev/full
    check "--timeline on a full disk" fails_with 1 "/dev/full" build/gpt $small --timeline /dev/full
fi
check "--timeline draws the plan" sh -c "build/gpt $small --plan --timeline $work/plan.svg > $work/plan &&
    grep -q '</svg>' $work/plan.svg && grep -q h.1.mlp.fc $work/plan.svg"
check "--summary: layers, the parameters of the model line, nothing trained" sh -c "build/gpt $small --steps 3 --summary \
    --save $work/untrained > $work/summary && [ ! -e $work/untrained ] && ! grep -q '^end' $work/summary &&
    grep -q '^h.0-2.mlp.fc  *linear  *(8,32,128)  *3  *12,672 ' $work/summary && grep -q '^loss .*shared' $work/summary &&
    [ \$(sed -n 's/^all  *\([0-9,]*\) .*/\1/p' $work/summary | tr -d ,) -eq \
      \$(sed -n 's/^model .*: \([0-9]*\) parameters/\1/p' $work/summary) ]"
check "--profile: milliseconds by op and by layer, which add up, nothing saved" sh -c "build/gpt $small --micro-batch auto \
    --budget 900K --profile --summary --save $work/untrained > $work/profile && [ ! -e $work/untrained ] &&
    grep -q '^linear .*[0-9]' $work/profile && grep -q '^h.0-2.attn.q .*[0-9]' $work/profile &&
    ms=\$(sed -n 's/^mean of 5 steps: \([0-9.]*\) ms.*/\1/p' $work/profile) && [ -n \"\$ms\" ] &&
    [ \$(grep -c \"^all .* \$ms 100.0\" $work/profile) -eq 2 ]"
check "--timeline FILE.json writes a trace" sh -c "build/gpt $small --steps 1 --timeline $work/plan.json &&
    grep -q traceEvents $work/plan.json && tail -n 1 $work/plan.json | grep -q '^]}'"
printf '#include "gradckpt.h"\n#include "pictures.h"\nint main(void) { return pictures_plan(NULL, NULL, NULL) == 0; }\n' \
    > "$work/pictures.c" && cp "$work/pictures.c" "$work/pictures.cpp"
printf '#include "lm.h"\nint main(void) { return session_end(lm_start("test")); }\n' > "$work/session.cpp"
if [ $has_cxx -eq 1 ]; then
    check "lm.h, session.h and options.h compile as C++11" "$CXX" -std=c++11 -Wall -Wextra -Wno-unused-function \
        -Wno-unused-variable -fsyntax-only -I. -Iexamples "$work/session.cpp"
fi
check "pictures.h compiles as C99, whatever of it is used" $CC -std=c99 -Wall -Wextra -pedantic -Werror \
    -Wconversion -Wsign-conversion -fsyntax-only -I. -Iexamples "$work/pictures.c"
printf '#include "gradckpt.h"\n#include "print.h"\nint main(void) { return print_plan(NULL, NULL, NULL) == 0; }\n' \
    > "$work/print.c" && cp "$work/print.c" "$work/print.cpp"
check "print.h compiles as C99, whatever of it is used" $CC -std=c99 -Wall -Wextra -pedantic -Werror \
    -Wconversion -Wsign-conversion -fsyntax-only -I. -Iexamples "$work/print.c"
if [ $has_cxx -eq 1 ]; then
    check "print.h compiles as C++11" "$CXX" -std=c++11 -Wall -Wextra -pedantic -Werror -fsyntax-only -I. \
        -Iexamples "$work/print.cpp"
fi
if [ $has_cxx -eq 1 ]; then
    check "pictures.h compiles as C++11" "$CXX" -std=c++11 -Wall -Wextra -pedantic -Werror -fsyntax-only -I. \
        -Iexamples "$work/pictures.cpp"
fi
printf '#include "tokenizer.h"\nint main(void) { return unicode_class(0); }\n' \
    > "$work/tokenizer.c" && cp "$work/tokenizer.c" "$work/tokenizer.cpp"
check "tokenizer.h compiles as C99" $CC -std=c99 -Wall -Wextra -pedantic -Werror -Wconversion \
    -Wsign-conversion -fsyntax-only -Iexamples "$work/tokenizer.c"
if [ $has_cxx -eq 1 ]; then
    check "tokenizer.h compiles as C++11" "$CXX" -std=c++11 -Wall -Wextra -pedantic -Werror -Wconversion \
        -Wsign-conversion -fsyntax-only -Iexamples "$work/tokenizer.cpp"
fi
check "--timeline into no folder" fails_with 1 "timeline" build/gpt $small --timeline /nonexistent/t.svg
check "--plan prints and stops" sh -c "build/gpt $small --plan > $work/plan && grep -q forward $work/plan &&
    grep -q '^micro-batch .* of a batch of ' $work/plan"
check "--plan marks what the budget gets" sh -c "grep -q '^> is what a budget' $work/plan &&
    test \"\$(grep -c ' > |' $work/plan)\" -eq 1 && grep -q ' memory-poor\$' $work/plan"
check "--frontier draws every budget" sh -c "build/gpt $small --plan --checkpoint sqrt \
    --frontier $work/frontier.svg > $work/plan && grep -q '</svg>' $work/frontier.svg"
check "--frontier FILE.json, with a micro-batch that was chosen" sh -c "build/gpt $small --steps 1 \
    --micro-batch auto --frontier $work/frontier.json && grep -q '\"complete\":true' $work/frontier.json"
check "--frontier FILE: text, and in the plan event" sh -c "build/gpt $small --steps 1 --eval-every 0 \
    --frontier $work/frontier.txt --json - > $work/c.json 2> $work/stderr &&
    grep -q '^What bytes cost' $work/frontier.txt && grep -qE \
    '^.\"event\":\"plan\".*,\"frontier\":.([[][0-9]+,$number],)*[[][0-9]+,$number]]}\$' $work/c.json"
check "--frontier into no folder" fails_with 1 "frontier" build/gpt $small --frontier /nonexistent/f.svg
check "--plan with --json - keeps standard output for JSON" sh -c "
    test \"\$(build/gpt $small --plan --json - 2>/dev/null | wc -l)\" -eq 2"

# ---- gpt: files that must not be overwritten, and outputs that are opened before training ---------------
files=$work/files
rm -rf "$files"
mkdir -p "$files/sub"
head -c 20000 gradckpt.h > "$files/text"
cp "$files/text" "$files/copy"
tail -c 2000 "$files/text" > "$files/tail"
cp "$work/part.safetensors" "$files/part"
ln -s ../text "$files/sub/link"
ln "$files/text" "$files/hard"
ln -s part "$files/resumed"
endless="$small --steps 1000000000 --eval-every 0"        # fails at once, or would run for ever
for name in text sub/link sub/../text hard; do
    for option in save json timeline frontier; do
        check "--$option $name is --data" fails_with 2 "also --data" \
            timeout 60 build/gpt $endless --data "$files/text" --$option "$files/$name"
    done
done
for option in json timeline frontier; do
    check "--$option is --resume" fails_with 2 "also --resume" \
        timeout 60 build/gpt $endless --resume "$files/part" --$option "$files/resumed"
    check "--$option is --save" fails_with 2 "also --" timeout 60 build/gpt $endless \
        --$option "$files/new" --save "$files/sub/../new"
    check "--$option into no folder, at once" fails_with 1 "$option /nonexistent/x: No such file" \
        timeout 60 build/gpt $endless --$option /nonexistent/x
done
check "--json is --timeline" fails_with 2 "also --json" timeout 60 build/gpt $endless \
    --json "$files/new" --timeline "$files/new"
check "the text is unharmed" cmp "$files/text" "$files/copy"
check "the resumed file is unharmed" cmp "$files/part" "$work/part.safetensors"
check "refused outputs leave no file" sh -c "cd $files && test \"\$(echo *)\" = 'copy hard part resumed sub tail text'"
check "--save into no folder, at once" fails_with 1 "save /nonexistent/x: No such file" \
    timeout 60 build/gpt $endless --save /nonexistent/x
check "--save over a folder, at once" fails_with 1 "a folder" timeout 60 build/gpt $endless --save "$files"
mkfifo "$files/fifo"
check "--save over a pipe, at once" fails_with 1 "pipe" timeout 60 build/gpt $endless --save "$files/fifo"
check "--save over what was resumed, through a link" build/gpt $small --steps 6 --eval-every 0 \
    --resume "$files/resumed" --save "$files/resumed"
check "--save through a link keeps the link" test -h "$files/resumed" -a ! -h "$files/part"
check "--save through a link replaces the link's target" sh -c "! cmp -s $files/part $work/part.safetensors"
check "--bf16-fast without a device" fails_with 2 "add --device cuda, or give --bf16 instead" build/gpt --bf16-fast --data README.md
check "--device cuda without a CUDA build is refused" \
    fails_with 2 "make build/gpt-cuda builds one" build/gpt --device cuda --data README.md
check "several outputs on one device" build/gpt $small --steps 1 --eval-every 0 --json /dev/null \
    --timeline /dev/null
check "--data that has no end" fails_with 1 "a device" sh -c "ulimit -v 2000000; timeout 60 build/gpt \
    $endless --data /dev/zero"
check "--data from standard input, with --validation" sh -c "head -c 18000 $files/text |
    build/gpt $small --steps 4 --eval-every 4 --data - --validation $files/tail --json - > $work/piped.json &&
    build/gpt $small --steps 4 --eval-every 4 --data $files/text --json - > $work/whole.json"
check "--data - with --validation has the loss of the whole file" \
    test -n "$(field "$work/piped.json" eval val_loss)" -a \
    "$(field "$work/piped.json" eval val_loss)" = "$(field "$work/whole.json" eval val_loss)"
check "--validation that is missing" fails_with 1 "validation .*No such file" build/gpt --validation "$work/none"
check "--validation that is empty" fails_with 1 "too few" build/gpt --validation "$work/empty"
check "--json is --validation" fails_with 2 "also --validation" build/gpt $small --validation "$files/tail" \
    --json "$files/tail"
check "--prompt from standard input" sh -c "printf 'the ' | build/gpt $small --resume $work/whole.safetensors \
    --steps 0 --sample 50 --prompt - --eval-every 0 | sed -n '/^sample/,/^end/{/^end/d;p;}' | cmp - $work/sample1"
check "--prompt from standard input is not saved as an option" \
    sh -c "printf 'the ' | build/gpt $small --steps 1 --eval-every 0 --prompt - \
    --save $work/prompted --data $files/text && build/gpt --resume $work/prompted --steps 2 < /dev/null"
check "standard input is read once" fails_with 2 "standard input is --prompt already" sh -c "
    echo text | build/gpt $small --data - --prompt -"
check "--data from a pipe" sh -c "cat $files/text | build/gpt $small --steps 1 --data /dev/stdin"
sed 's/"contract":"[0-9]*"/"contract":"0"/' "$work/part.safetensors" > "$files/contract"
check "a file of another contract" sh -c "build/gpt $small --steps 6 --eval-every 0 \
    --resume $files/contract > $files/out && grep -q '^note .*contract 0, this library of' $files/out"
check "--help says when --save saves" sh -c "build/gpt --help | tr -s ' \n' ' ' | grep -q -e '--save .*with each evaluation'"

report programs
