#!/bin/sh
# Tests build/classify through the command line: training of texts, words and pairs by each method, budgets, evaluation,
# prediction, adapters, and data and options that must be refused.
work=build/classify_test
. tests/checks.sh

# ---- models of golden/encoders with a tokenizer of whole words ----
words="the a tea song train garden dog is was wonderful lovely great terrible awful bad and very my old new"
printf '%s' "$words" | awk '{ printf("{\"version\": \"1.0\", \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"added_tokens\": [");
    printf("{\"id\": 0, \"content\": \"[UNK]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 2, \"content\": \"[CLS]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 3, \"content\": \"[SEP]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}], ");
    printf("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], \"pair\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 1}}], \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [2], \"tokens\": [\"[CLS]\"]}, \"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [3], \"tokens\": [\"[SEP]\"]}}}, ");
    printf("\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": {\"[UNK]\": 0, \"[PAD]\": 1, \"[CLS]\": 2, \"[SEP]\": 3");
    for (i = 1; i <= NF; i++) printf(", \"%s\": %d", $i, i + 3);
    print "}}}" }' > "$work/tokenizer.json"
for model in bert_embed bert bert_number mpnet modernbert llama_score gpt2_score; do
    cp -R tests/golden/encoders/$model "$work/$model"
    cp "$work/tokenizer.json" "$work/$model"
done
awk 'BEGIN { split("tea song train garden dog", n); split("wonderful lovely great", g); split("terrible awful bad", b)
    for (i = 0; i < 40; i++)
        printf("{\"text\": \"%s %s is %s%s\", \"label\": \"%s\"}\n", i % 3 ? "the" : "my old", n[i % 5 + 1],
            i % 4 ? "" : "very ", i % 2 ? g[i % 3 + 1] : b[i % 3 + 1], i % 2 ? "good" : "bad") }' > "$work/texts.jsonl"
awk 'BEGIN { split("tea song train garden dog", n)
    for (i = 0; i < 24; i++)
        printf("{\"tokens\": [\"the\", \"old\", \"%s\", \"is\", \"lovely\"], \"tags\": [\"O\", \"B-X\", \"I-X\", \"O\", \"O\"]}\n",
            n[i % 5 + 1]) }' > "$work/words.jsonl"
awk 'BEGIN { split("tea song train garden dog my new bad", n)
    for (i = 0; i < 32; i++)
        printf("{\"anchor\": \"the %s is great\", \"positive\": \"a %s\"}\n", n[i % 8 + 1], n[i % 8 + 1]) }' > "$work/pairs.jsonl"
printf 'the tea is lovely\nmy old dog is very awful\n' > "$work/lines"
run="--batch 8 --epochs 6 --threads 1"
texts="$run --data $work/texts.jsonl --validation $work/texts.jsonl"

# right FILE: succeeds if the evaluation found everything right
right() { grep -q "^eval .* accuracy 1.0000" "$1"; }

# ---- texts: each method learns; a budget, micro-batches and threads give the same bits -------------------------------
for method in full lora last head; do
    build/classify --model "$work/bert_embed" $texts --method $method --lr 2e-2 --epochs 40 --save "$work/$method" \
        > "$work/$method.txt" 2>&1
    least='accuracy 1.0000'
    [ $method = head ] && least='accuracy 0.[7-9]'
    check "$method: $(grep eval "$work/$method.txt")" grep -q "^eval .*$least" "$work/$method.txt"
    from="--model $work/$method"
    [ $method = lora ] && from="--model $work/bert_embed --adapter $work/lora"
    build/classify $from --predict "$work/lines" > "$work/predicted" 2>&1
    check "$method: predictions" test "$(sed 's/, "score".*//' "$work/predicted" | tr '\n' ' ')" = \
        '{"label": "good" {"label": "bad" '
    build/classify $from --data "$work/texts.jsonl" --eval > "$work/stdout" 2>&1
    check "$method: --eval of what was saved" test "$(grep ^eval "$work/stdout")" = "$(grep ^eval "$work/$method.txt")"
done
build/classify --model "$work/bert" --new-head $texts --save "$work/a" > "$work/a.txt" 2>&1
build/classify --model "$work/bert" --new-head $texts --save "$work/b" --micro-batch 1 --threads 2 > "$work/stdout" 2>&1
check "micro-batches and threads: the same bits" cmp "$work/a/model.safetensors" "$work/b/model.safetensors"
build/classify --model "$work/bert" --new-head $texts --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr")
build/classify --model "$work/bert" --new-head $texts --save "$work/b" --budget "${least:-1}" > "$work/stdout" 2>&1
check "the least budget that the error names ($least): the same bits" cmp "$work/a/model.safetensors" "$work/b/model.safetensors"
build/classify --model "$work/bert_embed" --adapter "$work/lora" --merge --save "$work/merged" > "$work/stdout" 2>&1
check "a merged adapter" sh -c "build/classify --model $work/merged --predict $work/lines | grep -c good | grep -qx 1"
for model in mpnet modernbert llama_score gpt2_score; do
    build/classify --model "$work/$model" --new-head $texts --lr 2e-2 --epochs 12 --save "$work/b" > "$work/stdout" 2>&1
    check "$model: $(grep eval "$work/stdout")" right "$work/stdout"
done

# ---- words and pairs ----
build/classify --model "$work/bert_embed" --task tokens --data "$work/words.jsonl" $run --lr 1e-2 --save "$work/b" \
    > "$work/stdout" 2>&1
check "words: $(grep eval "$work/stdout")" grep -q "accuracy 1.0000, F1 1.0000 (entities)" "$work/stdout"
build/classify --model "$work/b" --task tokens --predict "$work/lines" > "$work/stdout" 2>&1
check "words: a tag for each" test "$(head -n 1 "$work/stdout" | tr -dc ,)" = ,,,
printf 'the \342\200\213 \001 \342\200\213 \001 lovely \001 tea \001\n' > "$work/gaps" # zero-width spaces and control characters
build/classify --model "$work/b" --task tokens --predict "$work/gaps" > "$work/stdout" 2>&1
check "words without tokens: $(cat "$work/stdout")" test "$(sed 's/"[OBIX-]*"/t/g' "$work/stdout")" = \
    '{"tags": [t, null, null, null, null, t, null, t]}'
build/classify --model "$work/bert_embed" --task embed --data "$work/pairs.jsonl" --validation "$work/pairs.jsonl" $run \
    --lr 1e-2 --save "$work/vectors" > "$work/stdout" 2>&1
check "pairs: $(grep eval "$work/stdout")" grep -q "^eval .*32 pairs" "$work/stdout"
check "pairs: the file of the pooling" grep -q '"pooling_mode_mean_tokens": true' "$work/vectors/1_Pooling/config.json"
build/classify --model "$work/vectors" --task embed --predict "$work/lines" > "$work/stdout" 2>&1
check "pairs: two vectors of 16 numbers" test "$(tr -dc ,\\n < "$work/stdout" | tr '\n' :)" = ,,,,,,,,,,,,,,,:,,,,,,,,,,,,,,,:

# ---- pairs of texts, numbers, and stored matrices ----
awk 'BEGIN { split("lovely great old new", n); split("terrible awful bad", b)
    for (i = 0; i < 40; i++)
        printf("{\"premise\": \"the %s tea\", \"hypothesis\": \"my dog is %s\", \"label\": %d}\n", n[i % 4 + 1],
            i % 2 ? n[i % 2 + 1] : b[i % 3 + 1], i % 2) }' > "$work/nli.jsonl"
build/classify --model "$work/bert_embed" $run --data "$work/nli.jsonl" --validation "$work/nli.jsonl" --lr 2e-2 \
    --epochs 30 --save "$work/b" > "$work/stdout" 2>&1
check "two texts: $(grep eval "$work/stdout")" right "$work/stdout"
printf 'the old tea\tmy dog is awful\nthe tea\tmy dog is great\n' > "$work/tabs"
build/classify --model "$work/b" --predict "$work/tabs" > "$work/stdout" 2>&1
check "two texts: predictions" test "$(sed 's/, "score".*//' "$work/stdout" | tr -d '\n')" = '{"label": "0"{"label": "1"'
sed 's/premise/a/; s/hypothesis/b/; s/label/c/' "$work/nli.jsonl" > "$work/abc.jsonl"
build/classify --model "$work/b" --data "$work/abc.jsonl" --fields text=a,pair=b,label=c --eval > "$work/stdout" 2>&1
check "--fields: $(grep eval "$work/stdout")" right "$work/stdout"
# the numbers are transformers' for the tokens of the tokenizers package, cut off at 10 (longest_first)
printf 'the tea is lovely\ta song\r\nmy old dog is very awful\tthe train was bad\ntea\tmy old dog is very awful and bad\n' > "$work/tabs"
build/classify --model "$work/bert_number" --task score --length 10 --predict "$work/tabs" > "$work/stdout" 2>&1
check "numbers of transformers: $(cat "$work/stdout")" awk -F '[:}]' 'BEGIN { split("0.371379939 0.227181592 0.302309009", w, " ") }
    { d = $2 - w[NR]; bad += d > 2e-7 || d < -2e-7 } END { exit bad || NR != 3 }' "$work/stdout"
awk 'BEGIN { split("lovely great terrible awful bad", n)
    for (i = 0; i < 40; i++) printf("{\"text\": \"the tea is %s\", \"label\": %g}\n", n[i % 5 + 1], i % 5 / 4) }' > "$work/numbers.jsonl"
build/classify --model "$work/bert" --new-head --task score $run --data "$work/numbers.jsonl" --validation "$work/numbers.jsonl" \
    --lr 1e-2 --epochs 12 --save "$work/b" > "$work/stdout" 2>&1
check "numbers: $(grep eval "$work/stdout")" grep -q "^eval .*correlation 0.9[5-9]" "$work/stdout"
build/classify --model "$work/b" --task score --data "$work/numbers.jsonl" --eval > "$work/predicted" 2>&1
check "numbers: --eval of what was saved" test "$(grep ^eval "$work/predicted")" = "$(grep ^eval "$work/stdout")"
build/classify --model "$work/bert" --new-head $texts --method lora --lr 2e-2 --epochs 40 --save "$work/two" > "$work/stdout" 2>&1
build/classify --model "$work/bert" --adapter "$work/two" --seed 9 --data "$work/texts.jsonl" --eval > "$work/predicted" 2>&1
check "an adapter's new head of two classes replaces that of three: $(cat "$work/predicted")" \
    sh -c "grep -q 'accuracy 1.0000' $work/predicted && test \"\$(grep ^eval $work/stdout)\" = \"\$(cat $work/predicted)\""
for store in bf16 int8 int4; do
    build/classify --model "$work/bert_embed" $texts --method lora --lr 2e-2 --epochs 40 --store $store --save "$work/stored" \
        > "$work/stdout" 2>&1
    check "--store $store: $(grep eval "$work/stdout")" right "$work/stdout"
    build/classify --model "$work/bert_embed" --adapter "$work/stored" --store $store --data "$work/texts.jsonl" --eval > "$work/predicted" 2>&1
    check "--store $store: the adapter" test "$(grep ^eval "$work/predicted")" = "$(grep ^eval "$work/stdout")"
done
for method in head last; do
    build/classify --model "$work/bert_embed" $texts --method $method --store bf16 --save "$work/b" > "$work/stdout" 2>&1
    check "--store bf16: $method" grep -q "^saved" "$work/stdout"
    build/classify --model "$work/b" --data "$work/texts.jsonl" --eval > "$work/predicted" 2>&1
    check "--store bf16: $method: --eval of what was saved" test "$(grep ^eval "$work/predicted")" = "$(grep ^eval "$work/stdout")"
done
cp -R "$work/bert_number" "$work/lines_of" # its tokenizer takes a line as one word
sed 's/"normalizer": {[^}]*}, "pre_tokenizer": {[^}]*}/"normalizer": null, "pre_tokenizer": null/' "$work/tokenizer.json" \
    > "$work/lines_of/tokenizer.json"
printf 'song\ntea\n' > "$work/song"
printf '\357\273\277song\r\ntea\r\n' > "$work/windows"
build/classify --model "$work/lines_of" --task score --predict "$work/song" > "$work/stdout" 2>&1
build/classify --model "$work/lines_of" --task score --predict "$work/windows" > "$work/predicted" 2>&1
check "lines of Windows" sh -c "grep -q score $work/stdout && cmp $work/stdout $work/predicted"

# ---- GGUF files that llama.cpp's converter writes: the results and the training of the folder ----
gguf=tests/golden/gguf/encoders
printf 'the tea is lovely\nmy old dog was bad\n the  songs\n' > "$work/song"
printf 'the tea is lovely\tmy dog\n the  songs\tnew\n' > "$work/tabs"
for name in bert_embed bert distilbert roberta xlm_roberta modernbert; do
    rm -rf "$work/folder" && cp -R tests/golden/encoders/$name "$work/folder"
    cp "$gguf/$name.json" "$work/folder/tokenizer.json"
    for lines in song tabs; do
        task=classify more=
        case $name in bert*) task=embed ;; esac # the converter leaves out the pooler of BERT's classifier
        [ $name = bert_embed ] && more="--pooling cls" # as the file's key says
        build/classify --model "$work/folder" --task $task $more --predict "$work/$lines" > "$work/stdout" 2>&1
        build/classify --model "$gguf/$name.gguf" --task $task --predict "$work/$lines" > "$work/predicted" 2>&1
        check "$name.gguf: $task of $lines" sh -c "grep -q '^{' $work/stdout && cmp $work/stdout $work/predicted"
    done
done
for from in "$gguf/distilbert.gguf" "$work/distilbert"; do
    rm -rf "$work/distilbert" "$work/a" && cp -R tests/golden/encoders/distilbert "$work"
    cp "$gguf/distilbert.json" "$work/distilbert/tokenizer.json"
    build/classify --model "$from" --new-head $texts --epochs 1 --save "$work/a" > "$work/stdout" 2>&1
    build/classify --model "$work/a" --predict "$work/song" > "$work/predicted" 2>&1
    [ "$from" = "$work/distilbert" ] || cp "$work/predicted" "$work/b.txt"
    check "distilbert: training of $from" sh -c "grep -q label $work/predicted && cmp $work/predicted $work/b.txt"
done
check "a GGUF without BERT's pooler" fails_with 1 "without the pooler.*give its folder" build/classify \
    --model "$gguf/bert.gguf" --predict "$work/song"
LC_ALL=C sed 's/\(bert.pooling_type\x04\x00\x00\x00\)\x02/\1\x03/' "$gguf/bert_embed.gguf" > "$work/last.gguf"
check "pooling of the last token" fails_with 1 "key bert.pooling_type is 3: only the mean" build/classify \
    --model "$work/last.gguf" --task embed --predict "$work/song"

# ---- refused ----
check "--store with all weights" fails_with 2 "only frozen matrices" build/classify --model "$work/bert_embed" --store int8 \
    --data "$work/texts.jsonl"
check "--store with --save" fails_with 2 "give --method lora" build/classify --model "$work/bert_embed" --store int4 \
    --method head --data "$work/texts.jsonl" --save "$work/b"
check "--fields" fails_with 2 "where KEY is text, pair or label" build/classify --model "$work/bert_embed" \
    --data "$work/texts.jsonl" --fields prompt=a
check "a number for a classifier" fails_with 1 "has 3 classes" build/classify --model "$work/bert" --task score \
    --predict "$work/lines"
check "embeddings: too few bytes" fails_with 1 "a smaller --batch" build/classify --model "$work/bert_embed" --task embed \
    --data "$work/pairs.jsonl" --budget 1000
cp -R "$work/bert" "$work/words"
awk '{ for (i = 24; i < 51; i++) more = more ", \"x" i "\": " i; sub(/}}}$/, more "}}}"); print; more = "" }' "$work/tokenizer.json" \
    > "$work/words/tokenizer.json"
printf 'the x50\n' > "$work/song"
check "a tokenizer of another model" fails_with 1 "token 50 (of 51), but the embedding has 48 rows" build/classify \
    --model "$work/words" --predict "$work/song"
printf '{"text": "the tea", "label": "good"}\n{"text": "the tea"}\n' > "$work/wrong"
check "a line without a label" fails_with 1 "wrong:2: .*label" build/classify --model "$work/bert_embed" --data "$work/wrong"
printf '{"tokens": ["the", "tea"], "tags": ["O", "B-X"]}\n{"tokens": ["the", "tea"], "tags": ["O"]}\n' > "$work/wrong"
check "as many tags as words" fails_with 1 "2 tokens but 1 tags" build/classify --model "$work/bert_embed" --task tokens \
    --data "$work/wrong"
printf '{"text": "the tea", "label": "odd"}\n' > "$work/wrong"
check "another class" fails_with 1 '"odd" is none of the classes bad, good; --new-head' build/classify --model "$work/full" \
    --data "$work/wrong"
check "no classifier" fails_with 1 "has no classifier for --task classify" build/classify --model "$work/bert_embed" \
    --predict "$work/lines"
check "a decoder has no vectors" fails_with 2 "is a decoder" build/classify --model "$work/gpt2_score" --task embed \
    --predict "$work/lines"
check "rows without space for a text" fails_with 1 "take 2; give --length 3 or more" build/classify --length 2 \
    --model "$work/bert_embed" --task embed --predict "$work/lines"
printf '{"text": "the tea", "label": "odd"}\n' > "$work/wrong"
check "one class" fails_with 1 "number of classes: 1; .*: add rows" build/classify --model "$work/bert_embed" \
    --data "$work/wrong"
cp -R "$work/bert_embed" "$work/nan"
{ head -c 21000 "$work/bert_embed/model.safetensors"
    tail -c +21001 "$work/bert_embed/model.safetensors" | LC_ALL=C tr '\000-\377' '\377'; } > "$work/nan/model.safetensors"
check "weights that are not finite" fails_with 1 "a result is not finite" build/classify --model "$work/nan" --task embed \
    --predict "$work/lines"
refused() { # refused WHAT STATUS MESSAGE LINES-OF-DATA [options]: a file of data, which must not change, is refused
    printf "$4" > "$work/wrong" && cp "$work/wrong" "$work/wrong.old"
    what=$1 status=$2 message=$3
    shift 4
    check "$what" fails_with "$status" "$message" build/classify --model "$work/bert_embed" --data "$work/wrong" "$@"
    check "$what: the file is as before" cmp "$work/wrong" "$work/wrong.old"
}
refused "other keys" 1 'wrong:1: the line has no "text".*--fields.*(the line has "review", "stars")' '{"review": "a", "stars": 3}\n'
refused "an empty label" 1 "wrong:1: a label is empty" '{"text": "the tea", "label": ""}\n'
refused "a number as label" 1 "score trains numbers" '{"text": "the tea", "label": 1.5}\n'
refused "a table" 1 "wrong:1: the line is no JSON: expected one object per line: {.*label" 'text,label\na,b\n'
refused "no lines" 1 "has no lines: expected {" '\n'
refused "data that is not UTF-8" 1 "wrong:1: expected UTF-8, found byte 0xff" '{"text": "\377", "label": "a"}\n'
rows='{"text": "tea", "label": "a"}\n{"text": "dog", "label": "b"}\n'
refused "--log over the data" 2 "it is also --data" "$rows" --log "$work/wrong"
refused "--checkpoint over the data" 2 "it is also --data" "$rows" --checkpoint "$work/wrong"
refused "--save over the model" 2 "it is also --model" "$rows" --save "$work/bert_embed"
refused "--save next to an adapter" 2 "contains an adapter; give another folder" "$rows" --save "$work/lora"
refused "a number that no float has" 1 "wrong:1: label: expected a number from" '{"text": "tea", "label": 1e300}\n' --task score
refused "--micro-batch of embeddings" 2 "compares all rows of a batch" "$rows" --task embed --micro-batch 4
refused "--save to a file" 2 "is a file; give a folder" "$rows" --save "$work/wrong"
printf 'the tea\n\377\n' > "$work/song"
check "lines that are not UTF-8" fails_with 1 "song:2: the line is not in UTF-8" build/classify --model "$work/bert_embed" \
    --task embed --predict "$work/song"
printf 'the tea\n\0\n' > "$work/song"
check "lines with zero bytes" fails_with 1 "song:2: the line is not in UTF-8, or has a zero byte" build/classify \
    --model "$work/bert_embed" --task embed --predict "$work/song"
check "--predict is a folder" fails_with 1 "cannot read it: Is a directory" build/classify --model "$work/bert" --predict "$work/bert"
[ ! -e /dev/full ] || check "no space for the predictions" sh -c \
    "build/classify --model $work/bert --predict $work/lines 2>&1 > /dev/full | grep -q 'cannot print'"
check "prediction: too few bytes" fails_with 1 "budget 1 bytes is too small" build/classify --model "$work/bert" --budget 1 \
    --predict "$work/lines"
check "--model is a file" fails_with 2 "is a file; give the folder" build/classify --model "$work/song" --predict "$work/lines"
check "build/finetune refuses an encoder" fails_with 1 "bert is an encoder" build/finetune --model "$work/bert" \
    --data "$work/texts.jsonl"
report classify
