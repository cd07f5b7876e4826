#!/bin/sh
# Tests build/classify through the command line: training of texts, words and pairs by each method, budgets, evaluation,
# prediction, adapters, and data and options that must be refused.
work=build/classify_test
. tests/checks.sh

# ---- models of golden/encoders with a tokenizer of whole words ----
words="the a tea song train garden dog is was wonderful lovely great terrible awful bad and very my old new"
printf '%s' "$words" | awk '{ printf("{\"version\": \"1.0\", \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, \"strip_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"added_tokens\": [");
    printf("{\"id\": 0, \"content\": \"[UNK]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 2, \"content\": \"[CLS]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}, {\"id\": 3, \"content\": \"[SEP]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}], ");
    printf("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[CLS]\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"[CLS]\": {\"id\": \"[CLS]\", \"ids\": [2], \"tokens\": [\"[CLS]\"]}, \"[SEP]\": {\"id\": \"[SEP]\", \"ids\": [3], \"tokens\": [\"[SEP]\"]}}}, ");
    printf("\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_per_word\": 100, \"vocab\": {\"[UNK]\": 0, \"[PAD]\": 1, \"[CLS]\": 2, \"[SEP]\": 3");
    for (i = 1; i <= NF; i++) printf(", \"%s\": %d", $i, i + 3);
    print "}}}" }' > "$work/tokenizer.json"
for model in bert_embed bert mpnet modernbert llama_score gpt2_score; do
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
build/classify --model "$work/bert_embed" --task embed --data "$work/pairs.jsonl" --validation "$work/pairs.jsonl" $run \
    --lr 1e-2 --save "$work/vectors" > "$work/stdout" 2>&1
check "pairs: $(grep eval "$work/stdout")" grep -q "^eval .*32 pairs" "$work/stdout"
check "pairs: the file of the pooling" grep -q '"pooling_mode_mean_tokens": true' "$work/vectors/1_Pooling/config.json"
build/classify --model "$work/vectors" --task embed --predict "$work/lines" > "$work/stdout" 2>&1
check "pairs: two vectors of 16 numbers" test "$(tr -dc ,\\n < "$work/stdout" | tr '\n' :)" = ,,,,,,,,,,,,,,,:,,,,,,,,,,,,,,,:

# ---- refused ----
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
check "build/finetune refuses an encoder" fails_with 1 "bert is an encoder" build/finetune --model "$work/bert" \
    --data "$work/texts.jsonl"
report classify
