#!/bin/sh
# Tests the program build/finetune through its command line: a new model, every method, resuming, prompts and answers,
# the table of methods, budgets, quantised weights, samples, files and failures.
work=build/finetuned
. tests/checks.sh

# field FILE EVENT KEY: prints the value of KEY in the last line with this event
field()
{
    sed -n "s/^{\"event\":\"$2\".*\"$3\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$1" | tail -n 1
}

# less A B: checks that the number A is less than B
less()
{
    awk "BEGIN { exit !($1 < $2) }"
}

# says PATTERN ARGUMENT..: checks that finetune succeeds and prints a line that matches PATTERN
says()
{
    pattern=$1
    shift
    build/finetune "$@" > "$work/stdout" 2>&1 && cat "$work/stdout" && grep -q -e "$pattern" "$work/stdout"
}

model="--model $work/tiny"
head -c 40000 gradckpt.h > "$work/text"
head -c 40000 examples/shakespeare.txt > "$work/play"
head -c 3000 LICENSE > "$work/general"
awk 'BEGIN { for (i = 0; i < 120; i++) printf("{\"prompt\": \"%d+%d=\", \"answer\": \"%d%s\"}\n", i, i % 7,
    i + i % 7, i % 3 ? "" : ", which is a longer answer") }' > "$work/sums.jsonl"
run="$model --threads 1 --context 24 --batch 4 --lr 1e-2 --warmup 2 --json -"
text="$run --data $work/text --retention-data $work/general --eval-iters 4"

# ---- options and a new model -----------------------------------------------------------------------------
check "--help" sh -c "build/finetune --help | grep -q 'fine-tunes a language model'"
check "--help: what takes folders, and what both" sh -c "build/finetune --help > $work/help && grep -q -e '--save DIR' $work/help &&
    grep -q -e '--model PATH ' $work/help && grep -q -e '--reference PATH .*FILE.gguf' $work/help"
check "--help: a usage line, an example, headings" sh -c "grep -q '^Usage: finetune --model DIR --data FILE' $work/help &&
    grep -q '^    finetune --model .* --save' $work/help && grep -q '^Data and output:' $work/help &&
    grep -q '^LoRA:' $work/help && ! grep -q '^Others:' $work/help"
check "--help: 80 columns, each option once" sh -c "! grep -q '.\{81\}' $work/help &&
    grep -o '^  --[a-z0-9-]*' $work/help | sort > $work/options && [ \$(wc -l < $work/options) -gt 70 ] &&
    [ \$(sort -u $work/options | wc -l) -eq \$(wc -l < $work/options) ]"
check "without --model" fails_with 2 "a folder with a GPT-2" build/finetune --data "$work/text"
check "--new" build/finetune --new 2x32x4x48 $model
check "--new says what it made" says "^new    $work/talks: llama, [0-9]* parameters, .*; chat template: chatml\$" \
    --new llama:2x32x4x2x256 --chat chatml --model "$work/talks"
check "--new without a template" says "^new    $work/mute: gpt2, .*; chat template: none (--new .. --chat chatml adds one)" \
    --new 1x16x2x32 --model "$work/mute"
check "--new with another template" sh -c "build/finetune --new 1x16x2x64 --chat gemma --model $work/gemma > $work/stdout 2>&1 &&
    grep -q 'chat template: gemma' $work/stdout && grep -q start_of_turn $work/gemma/chat_template.jinja"
check "--new with an unknown template" fails_with 2 "--chat klingon: allowed is chatml, .*; or none" \
    build/finetune --new 1x16x2x32 --chat klingon --model "$work/x"
echo '{"messages": [{"role": "user", "content": "Which tea is green?"}, {"role": "assistant", "content": "Sencha."}]}' > "$work/tea.jsonl"
check "README's chats train --new's model" says "^chats  by the model's chat_template.jinja" --model "$work/talks" \
    --data "$work/tea.jsonl" --eval-every 0 --steps 2 --save "$work/talks.tuned"
check "README's chats: the trained adapter answers" says "^chats  by the model" --model "$work/talks" --adapter "$work/talks.tuned" --generate --sample 3 --prompt Tea?
check "--plan: what the process needs" says "^       process or container: [0-9]* MB, with data and up to 30 MB" $model \
    --data "$work/text" --plan
check "--store int4 says what it costs" says "^note   --store int4 raises the loss .* by 0.03 nats per token, with" $model --data "$work/text" \
    --store int4 --plan
check "--store int4 without data says what that costs" says "by 0.3 nats per token, since no --data" $model --store int4 --generate \
    --prompt Tea --sample 1
check "--store int4 says that a GGUF is not Q4_0" sh -c "build/finetune --model tests/golden/gguf/llama-q8_0.gguf --data $work/text \
    --store int4 --plan 2> $work/stderr | grep -q '^note   --store int4 rounds this GGUF again'"
check "--store int4 says nothing of a GGUF that is Q4_0, whose numbers stay" sh -c "! build/finetune \
    --model tests/golden/gguf/gpt2-q4_0.gguf --data $work/text --store int4 --plan 2>&1 | grep '^note   --store int4'"
check "--store int4 of an evaluation: the --validation data choose its numbers" says "by 0.03 nats per token, with" $model \
    --validation "$work/general" --eval --context 24 --eval-iters 1 --store int4
for file in model.safetensors vocab.json chat_template.jinja; do
    cp -r "$work/talks" "$work/loop"
    ln -sf "$file" "$work/loop/$file"
    check "a file that cannot be opened is not taken for missing: $file" fails_with 1 "$file.*Too many levels of" \
        build/finetune --model "$work/loop" --data "$work/tea.jsonl" --eval-every 0 --steps 1
    rm -r "$work/loop"
done
check "a new model has its files" test -s "$work/tiny/config.json" -a -s "$work/tiny/model.safetensors" -a \
    -s "$work/tiny/vocab.json" -a -s "$work/tiny/merges.txt"
echo '{"max_length": 7}' > "$work/tiny/generation_config.json"
printf '\012\005\012\003<s>' > "$work/tiny/tokenizer.model"
sed -i.old 's/"model_type"/"resid_pdrop": 0.0, "pad_token_id": 7, "later": {"a": [1e-3, null]}, "model_type"/' \
    "$work/tiny/config.json"
rm "$work/tiny/config.json.old"
check "--new over a model" fails_with 2 "is there already" build/finetune --new 2x32x4x48 $model
check "--new of nonsense" fails_with 2 "allowed is LAYERSxDIM" build/finetune --new 2x33x4x48 --model "$work/x"
check "--will-it-fit with a config.json alone" sh -c "build/finetune --will-it-fit tests/golden/gpt2/bare/config.json --method lora \
    --context 48 | grep -q '^lora  *int8  *[0-9]*-[0-9]*$'"
check "--will-it-fit within a budget" sh -c "build/finetune --will-it-fit tests/golden/gpt2/bare --budget 300K |
    grep -q '^lora  *f32  *no: ...$' && build/finetune --will-it-fit tests/golden/gpt2/bare --budget 300K | grep -q '^lora  *int4  *yes, +'"
for n in "" "--threads 1" "--threads 3" "--optimiser adam8bit" "--optimiser muon --threads 2" "--optimiser apollo-mini"; do
    bytes=$(build/finetune $model --data "$work/text" --context 24 --batch 2 --micro-batch 1 $n --plan |
        sed -n 's/^plan .* \([0-9]*\) bytes$/\1/p')
    check "--will-it-fit $n: the bytes of a training's plan without recomputing" test "$(build/finetune --will-it-fit "$work/tiny" \
        --method lora --store f32 --context 24 --batch 2 $n | sed -n 's/^lora .*-\([0-9]*\)$/\1/p')" = $(((bytes + 999) / 1000))
done
check "--will-it-fit for more context than there is" fails_with 2 "allowed is 1 to 64, the model's context" \
    build/finetune --will-it-fit tests/golden/gpt2/bare --context 65
check "without --data" fails_with 2 "to train on" build/finetune $model
check "--model that does not exist" \
    fails_with 1 "config.json: cannot open it" build/finetune --model "$work/none" --data "$work/text"
check "--data that does not exist" fails_with 1 "none: cannot open it" build/finetune $model --data "$work/none"
check "an unknown method" fails_with 2 "llama, prefix, prompt or all" build/finetune $model --method x
check "more context than the model has" fails_with 2 "allowed is 1 to 48" build/finetune $text --context 49
check "prefix tuning leaves less" fails_with 2 "allowed is 1 to 38; the model has 48 positions, and the method" \
    build/finetune $text --context 39 --method prefix
check "half a byte" fails_with 2 "budget 0.5: allowed is bytes" build/finetune $model --data "$work/text" --budget 0.5
own_rate="$model --data $work/text --context 24 --plan"
check "--min-lr above --lr" fails_with 2 "min-lr 0.01: allowed is at most --lr 0.001" build/finetune $own_rate --lr 1e-3 --min-lr 1e-2
check "--min-lr above the method's own rate" fails_with 2 \
    "min-lr 0.01: allowed is at most the learning rate, which is 0.001 by --method lora" build/finetune $own_rate --min-lr 1e-2
check "or that of one of all methods" fails_with 2 "which is 5e-05 by --method full" build/finetune $own_rate --min-lr 1e-4 \
    --method all --save "$work/x"
check "--min-lr at the method's own rate" build/finetune $own_rate --min-lr 1e-3
check "without --save: a note says that the weights will be lost" \
    sh -c "build/finetune $text --steps 1 2>&1 | grep -q '^note   the trained weights will be lost; to keep them, give --save DIR'"
check "--data too short for training" fails_with 1 "too few for training" sh -c "printf abc > $work/abc &&
    build/finetune $model --data $work/abc"
check "a target that does not exist" fails_with 1 'target "c_x" matches no layer; allowed are attn.c_attn,' \
    build/finetune $text --targets c_attn,c_x
check "--targets all-linear" test "$(build/finetune $text --plan --targets all-linear 2> "$work/stderr" |
    sed -n 's/.*"trained":\([0-9]*\).*/\1/p')" = $((2 * 8 * (32 * 4 + 32 * 2 + 32 * 5 + 32 * 5)))

# ---- files that are no text; byte order marks ------------------------------------------------------------
refused()
{
    printf "$3" > "$work/$1"
    check "--data $1" fails_with 1 "$2" build/finetune $model --data "$work/$1"
}
refused utf16 "it is in UTF-16, by its byte order mark: save it as UTF-8" '\377\376h\000i\000'
refused zeros "byte 2 is 0: this is not text" 'h\000i\000'
refused zip "a zip archive.*, not text; unpack it" 'PK\003\004abcd'
refused array.json "an array of JSON, not text; write FILE.jsonl with an item on each line: {.prompt" '[{"prompt": "a", "answer": "b"}]'
refused lines.json "name the file FILE.jsonl" '{"prompt": "a", "answer": "b"}\n'
refused array.jsonl ":1: the line has an array: expected one object per line" '[\n{"prompt": "a", "answer": "b"}]'
check "--data of weights" fails_with 1 "this is weights (safetensors), not text" build/finetune $model \
    --data "$work/tiny/model.safetensors"
check "--validation of an archive" fails_with 1 "validation: .*a zip archive" build/finetune $model \
    --data "$work/text" --validation "$work/zip"
for mark in '' '\357\273\277'; do
    printf "${mark}Gr\303\274\303\237 Gott, \344\275\240\345\245\275 [1] {}\nabc\nabc\nabc\nabc\nabc\n" > "$work/marked"
    build/finetune $model --data "$work/marked" --context 24 --plan | sed -n 's/^data .*: \([0-9]* tokens\),.*/\1/p'
done > "$work/counts"
check "a byte order mark is no token" test "$(tr '\n' ' ' < "$work/counts")" = "47 tokens 47 tokens "
check "--data in another encoding: a note counts the replaced bytes" \
    sh -c "printf 'Gr\\374\\337 Gott, wie geht es dir in dieser schoenen Zeit und Welt?' > $work/latin &&
    build/finetune $model --data $work/latin --context 24 --plan | grep -q '^note   --data: 2 bytes are not UTF-8 and replaced by U+FFFD'"
check "--device cuda without one" fails_with 2 "make build/finetune-cuda builds one" build/finetune $text --device cuda
check "--store of what is trained" fails_with 2 "only frozen matrices can be" build/finetune $text --method full --store int8

# ---- every method: the loss falls, bytes equal the planned ones, and a stopped run resumes to the same bits
for method in full last head bias new-blocks lora houlsby llama prefix prompt; do
    a="$work/$method.a"
    b="$work/$method.b"
    lr=1e-2
    [ $method = prompt ] && lr=0.3
    how="$text --method $method --lr $lr --eval-every 8 --dropout 0.1"
    build/finetune $how --steps 20 --save "$a" > "$a.json" 2> "$work/stderr"
    check "$method: $(tail -n 1 "$work/stderr")" test -n "$(field "$a.json" end weights_hash)"
    check "$method: the loss falls" less "$(field "$a.json" end after)" "$(field "$a.json" end before)"
    check "$method: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    build/finetune $how --steps 8 --save "$b" > "$b.json" 2> "$work/stderr"
    build/finetune --resume "$b" --steps 20 --json - > "$b.json" 2> "$work/stderr"
    check "$method: resumed to the same bits" test "$(field "$b.json" end weights_hash)" = \
        "$(field "$a.json" end weights_hash)"
    check "$method: and to the same files" sh -c "for f in $a/*; do cmp \$f $b/\${f##*/} || exit 1; done"
done
check "the options are the first event" sh -c "head -n 1 $work/lora.a.json |
    grep -q '^{\"event\":\"options\",\"program\":\"finetune\",\"begin\":0,.*\"method\":\"lora\",.*\"micro-batch\":\"auto\"'"
check "model files have no options of finetune; training.safetensors has" \
    sh -c "! grep -aq option. $work/*.a/adapter_model.safetensors \
    $work/full.a/model.safetensors && grep -aq option.lr $work/lora.a/training.safetensors"
check "a saved config.json keeps the keys that finetune does not know" \
    sh -c "grep -q '\"resid_pdrop\": 0.0' $work/full.a/config.json &&
    grep -q '\"pad_token_id\": 7' $work/full.a/config.json && grep -q '\"later\": {\"a\": .1e-3, null.}' $work/full.a/config.json &&
    cmp $work/tiny/generation_config.json $work/full.a/generation_config.json"
check "a saved model has the tokenizer's files" sh -c "for name in vocab.json merges.txt tokenizer.model; do
    cmp $work/tiny/\$name $work/full.a/\$name || exit 1; done"
check "a model that was tuned in full is a model" sh -c "build/finetune --model $work/full.a --data $work/text \
    --threads 1 --context 24 --eval-every 0 --steps 1 --json - > $work/again.json 2> $work/stderr"
build/finetune $text --method lora --adapter "$work/lora.a" --steps 0 > "$work/adapter.json" 2> "$work/stderr"
check "--adapter begins where it was saved: at the least loss" test "$(field "$work/adapter.json" end before)" = \
    "$(sed -n 's/^{"event":"eval".*"val_loss":\([^,]*\).*/\1/p' "$work/lora.a.json" | sort -g | head -n 1)"
check "--adapter of another method" fails_with 1 "it was trained by --method lora" build/finetune $text --method prefix \
    --adapter "$work/lora.a"
check "--adapter with a size of its own" fails_with 2 "its adapter_config.json determines" build/finetune $text \
    --adapter "$work/lora.a" --size 4
for method in prefix prompt; do
    with="$model --threads 1 --data $work/text --method $method --eval-every 0 --steps 1"
    build/finetune $with --size 30 --context 16 --save "$work/virtual" > "$work/stdout" 2>&1
    check "$method, --adapter: its positions are left free" sh -c "build/finetune $with --adapter $work/virtual \
        > $work/stdout && grep -q '^data .* rows of 18,' $work/stdout"
    check "$method, --adapter: more context than it leaves" fails_with 2 \
        "context 19: allowed is at most 18; the adapter takes 30 of the model's 48 positions" \
        build/finetune $with --adapter "$work/virtual" --context 19
    build/finetune $with --size 2 --context 16 --save "$work/virtual" > "$work/stdout" 2>&1
    check "$method, --adapter: and no more" sh -c "build/finetune $with --adapter $work/virtual --plan > $work/stdout &&
        grep -q '^data .* rows of 46,' $work/stdout"
done
check "--resume of another method" fails_with 2 "was made with --method lora" build/finetune --resume "$work/lora.a" \
    --method full
check "--resume of nothing" fails_with 1 "No such file" build/finetune --resume "$work/none"
head -c 700 "$work/lora.a/training.safetensors" > "$work/short"
check "--resume of a part" fails_with 1 "resume" build/finetune --resume "$work/short"
cp "$work/text" "$work/changing"
build/finetune $run --data "$work/changing" --eval-iters 1 --steps 2 --save "$work/changed" > "$work/stdout" 2>&1
echo more >> "$work/changing"
check "--resume with other data" fails_with 1 "has changed since the run began; to continue with its present content, give --data" \
    build/finetune --resume "$work/changed" --steps 3
check "--resume with the text given: as it is now" sh -c "build/finetune --resume $work/changed --steps 3 \
    --data $work/changing > $work/stdout"

# ---- other validation data: the best result on the old data no longer counts, so the current weights are saved
i=0
while [ $((i += 1)) -le 1000 ]; do printf 'abc '; done > "$work/easy"
build/finetune $run --data "$work/easy" --validation "$work/easy" --retention-data "$work/general" --eval-iters 1 --steps 6 \
    --save "$work/moved" > "$work/moved.json" 2> "$work/stderr"
cp "$work/moved/adapter_model.safetensors" "$work/moved.best"
cp -r "$work/moved" "$work/older"
LC_ALL=C sed -i.old 's/"rows\.\([vg]\)/"lost.\1/g' "$work/older/training.safetensors" # as older versions
rm "$work/older/training.safetensors.old"
kept() # kept FOLDER OPTION...: finetune --resume --plan does not say that the validation data has changed
{
    folder=$1
    shift
    build/finetune --resume "$work/$folder" --plan "$@" > "$work/stdout" || return 1
    ! grep -q 'the validation data has changed' "$work/stdout"
}
gone()
{
    ! kept "$@" && grep -q '^note   the validation data has changed, so the best loss so far, [0-9.]*, no longer counts' "$work/stdout"
}
check "the best counts where nothing changes" kept moved
check "or is given again" kept moved --validation "$work/easy" --eval-iters 1 --context 24
check "or only what is learned changes" kept moved --data "$work/text"
check "--resume with another --validation does not count the best so far" gone moved --validation "$work/general"
check "--resume with another --context does not count the best so far" gone moved --context 16
check "--resume with another --eval-iters does not count the best so far" gone moved --eval-iters 2
check "--bf16" gone moved --bf16
check "--resume of a file of older versions counts the best so far" kept older
check "--resume of an older file with another --context does not" gone older --context 24
cp "$work/easy" "$work/text2"
printf 'and so on, x, y, z and others of that kind' | cat - "$work/text2" > "$work/easy"
check "--validation that has grown" gone moved --data "$work/text"
cp -r "$work/moved" "$work/waits"
build/finetune --resume "$work/waits" --data "$work/text" --eval-every 1000000 --steps 1000000000 --json - \
    > "$work/waits.json" 2> "$work/stderr" &
pid=$!
wait_for "$work/waits.json" '"event":"step"'
kill -INT $pid
wait $pid
check "other validation data: saved weights stay until the first evaluation" sh -c "test $? -eq 130 &&
    cmp $work/moved.best $work/waits/adapter_model.safetensors &&
    ! cmp -s $work/moved/training.safetensors $work/waits/training.safetensors"
build/finetune --resume "$work/moved" --data "$work/text" --validation "$work/text" --steps 7 --sample 4 > "$work/stdout" 2>&1
check "other validation data: the best weights on it are saved" \
    sh -c "! cmp -s $work/moved.best $work/moved/adapter_model.safetensors"
now=$(sed -n 's/^step 7: validation loss \([0-9.]*\).*/\1/p' "$work/stdout")
check "other validation data: \"saved\" reports the new loss" grep -q "^saved .* loss ${now:-none}," "$work/stdout"
check "other validation data: \"loss\" has no value from before" grep -q "^loss   ${now:-none} after" "$work/stdout"
check "unchanged --retention-data: its loss from before is reported" grep -q "^retention [0-9.]* before" "$work/stdout"
build/finetune $text --eval-every 0 --steps 1 --save "$work/unjudged" > "$work/stdout" 2> "$work/stderr"
check "without an evaluation, the last step's weights are saved" grep -q "^saved .*unjudged: weights of the last step, [1-9]" "$work/stderr"

build/finetune $text --eval-every 0 --steps 1000000000 --save "$work/stopped" > "$work/stopped.json" 2> "$work/stderr" &
pid=$!
wait_for "$work/stopped.json" '"event":"step"'
sleep 0.3
kill -TERM $pid
wait $pid
check "an interrupt cancels the step and saves" test $? -eq 130 -a -s "$work/stopped/training.safetensors"
build/finetune --new llama:2x256x4x4x256 --model "$work/chosen" > "$work/stdout"
build/finetune --model "$work/chosen" --data "$work/text" --store int4 --eval-every 0 --steps 1000000000 --context 16 --threads 1 \
    --json "$work/chosen.json" > "$work/stdout" 2> "$work/stderr.int4" &
pid=$!
tenths=0
until [ -e "$work/chosen.json" ] || [ $tenths -eq 600 ]; do
    sleep 0.1
    tenths=$((tenths + 1))
done
kill -INT $pid
wait $pid
check "an interrupt while the data choose int4's numbers" test $? -eq 130
check "an interrupt prints \"stopping\"" grep -q '^stopping' "$work/stderr"
check "an interrupted run can be resumed" build/finetune --resume "$work/stopped" --steps 1
build/finetune $text --eval-every 0 --steps 9 --save "$work/often" --save-every 4 > "$work/often.json" 2> "$work/stderr"
check "--save-every changes nothing" test "$(field "$work/often.json" end weights_hash)" = \
    "$(build/finetune $text --eval-every 0 --steps 9 2> "$work/stderr" | sed -n 's/.*"weights_hash":"\([^"]*\).*/\1/p')"
check "--save-every wants --save" fails_with 2 "needs --save" build/finetune $text --save-every 4
build/finetune $text --eval-every 0 --steps 100000 --save "$work/killed" --save-every 3 --json "$work/killed.json" \
    > "$work/stdout" 2> "$work/stderr" &
pid=$!
wait_for "$work/killed.json" '"step":9,'
kill -KILL $pid
wait $pid 2> "$work/log"
at=$(tr ',' '\n' < "$work/killed/training.safetensors" | sed -n 's/.*"step":"\([0-9]*\)".*/\1/p' | head -n 1)
check "--save-every: killed, its file is whole, of step ${at:-none}" test "${at:-1}" -ge 3 -a $((${at:-1} % 3)) -eq 0
check "and goes on, with each step once in its log" sh -c "build/finetune --resume $work/killed --steps $((${at:-1} + 2)) \
    --json $work/killed.json > $work/stdout && test \$(grep -c '\"event\":\"step\"' $work/killed.json) -eq $((${at:-1} + 2)) &&
    test \$(grep '\"event\":\"step\"' $work/killed.json | cut -d, -f2 | sort -u | wc -l) -eq $((${at:-1} + 2)) &&
    ! grep -v '^{\"event\":.*}\$' $work/killed.json"
cp -r "$work/lora.a" "$work/worse"
rm -f "$work/stopped.json" # the old log has the line that wait_for waits for
build/finetune --resume "$work/worse" --lr 10 --eval-every 1000000 --steps 1000000000 --json - > "$work/stopped.json" \
    2> "$work/stderr" &
pid=$!
wait_for "$work/stopped.json" '"step":2[2-9]'
kill -INT $pid
wait $pid
check "an interrupt leaves what evaluated best" sh -c "test $? -eq 130 &&
    cmp $work/lora.a/adapter_model.safetensors $work/worse/adapter_model.safetensors &&
    ! cmp -s $work/lora.a/training.safetensors $work/worse/training.safetensors"
build/finetune $text --adapter "$work/lora.a" --steps 0 --sample 12 --prompt 'The ' 2>&1 > "$work/stdout" |
    LC_ALL=C awk '/^step/ { on = 0 } on; /^sample before/ { on = 1 }' > "$work/of.best"
cp -r "$work/lora.a" "$work/worst"
build/finetune --resume "$work/worst" --lr 10 --steps 21 --sample 12 --prompt 'The ' > "$work/stdout" 2>&1
LC_ALL=C awk 'on; /^sample after/ { on = 1 }' "$work/stdout" > "$work/of.worst"
check "samples are made from the saved weights, not from the last step" sh -c "grep -aq 'The ' $work/of.best &&
    cmp $work/of.best $work/of.worst && grep -aq '^note   the samples are made from the saved weights' $work/stdout"
check "--resume into another folder: the best from there on" sh -c "build/finetune --resume $work/lora.a --lr 10 \
    --steps 21 --save $work/elsewhere > $work/stdout && test -s $work/elsewhere/adapter_model.safetensors"
check "--resume of a run that is done" sh -c "build/finetune --resume $work/lora.a > $work/stdout &&
    grep -q 'loss [0-9.]*, [1-9][0-9]* bytes' $work/stdout && grep -q '^note   [0-9]* steps are done and' $work/stdout"
build/finetune $text --eval-every 0 --steps 1 --save "$work/usual" > "$work/stdout" 2>&1
check "--resume with --size, which the run began without, is refused" fails_with 2 "was made with --size 0" \
    build/finetune --resume "$work/usual" --size 4
check "or method" fails_with 2 "was made with --method lora" build/finetune --resume "$work/usual" --method bias
check "or a flag that was not given" fails_with 2 "was made without --rslora" \
    build/finetune --resume "$work/usual" --rslora
check "whose value is nothing" fails_with 2 "^finetune: --dora: [^ ]* was made without --dora; leave" \
    build/finetune --resume "$work/usual" --dora
check "--resume with --adapter is refused" fails_with 2 "was made without --adapter; omit the option" \
    build/finetune --resume "$work/usual" --adapter "$work/lora.a"
check "--resume with --new is refused" \
    fails_with 2 "omit one of them" build/finetune --resume "$work/usual" --new 2x32x4x48 --model "$work/x"
check "--resume of an adapter's weights" fails_with 1 "the file was not written by a training; give the training.safetensors" \
    build/finetune --resume "$work/usual/adapter_model.safetensors"
cp -r "$work/tiny" "$work/base"
build/finetune $text --model "$work/base" --eval-every 2 --steps 2 --save "$work/based" > "$work/stdout" 2>&1
check "--resume of the same base" build/finetune --resume "$work/based" --steps 3
cp "$work/full.a/model.safetensors" "$work/base"
check "--resume: a base with the same sizes but other weights is refused" \
    fails_with 1 "/base no longer has the weights that the run began with; to continue with the present ones, give --model" \
    build/finetune --resume "$work/based" --steps 4
check "--resume with --model: the other base is used, and old losses do not count" \
    sh -c "build/finetune --resume $work/based --steps 4 --model $work/base \
    > $work/stdout && grep -q '^note   --model has changed, so the best loss so far, [0-9.]*, no longer' $work/stdout &&
    ! grep -q '^loss .* before' $work/stdout && build/finetune --resume $work/based --steps 5"
check "--resume with what was not evaluated before" sh -c "build/finetune --resume $work/usual --steps 2 \
    --eval-every 1 > $work/stdout && grep -q '^loss   [0-9.]* after' $work/stdout"

# ---- plans do not change bits; budgets ---------------------------------------------------------------------
hash=$(field "$work/lora.a.json" end weights_hash)
how="$text --method lora --eval-every 8 --dropout 0.1 --steps 20"
for plan in "--micro-batch 1" "--micro-batch 2 --checkpoint memory-poor" "--micro-batch 3 --checkpoint segments"; do
    build/finetune $how $plan > "$work/plan.json" 2> "$work/stderr"
    check "lora with $plan: the same bits" test "$(field "$work/plan.json" end weights_hash)" = "$hash"
done
build/finetune $how --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr")
build/finetune $how --budget "${least:-1}" > "$work/plan.json" 2> "$work/stderr"
check "the least budget named is enough, for the same bits" test "$(field "$work/plan.json" end weights_hash)" = "$hash"
check "a small budget costs work, and finetune says how much" \
    sh -c "test '$(field "$work/plan.json" plan cost)' -gt '$(field "$work/lora.a.json" plan cost)' &&
    grep -q '^cost .* units per step, [1-9][0-9.]* % more than without recomputation' $work/stderr"
check "a small budget is not exceeded" test "$(field "$work/plan.json" end bytes_measured)" -le "${least:-0}"
check "a budget too small for samples" fails_with 1 "sampling needs" build/finetune $how --budget "${least:-1}" \
    --sample 4 --samples 64
how="$text --method full --context 8 --eval-every 0 --steps 3 --clip 0"
build/finetune $how > "$work/a.json" 2> "$work/stderr"
build/finetune $how --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr")
build/finetune $how --budget "${least:-1}" > "$work/b.json" 2> "$work/b.out"
check "full in the least bytes: the same bits" test -n "$(field "$work/b.json" end weights_hash)" -a \
    "$(field "$work/a.json" end weights_hash)" = "$(field "$work/b.json" end weights_hash)"
check "the least budget has updates in the backward" grep -q 'updates in the backward' "$work/b.out"
how="$text --method lora --eval-every 8 --dropout 0.1 --steps 20"
whole=$(field "$work/lora.a.json" plan parameter_bytes)
for store in bf16 f16 int8 int4; do
    build/finetune $how --store $store > "$work/plan.json" 2> "$work/stderr"
    check "--store $store: the loss falls" \
        less "$(field "$work/plan.json" end after)" "$(field "$work/plan.json" end before)"
    check "--store $store keeps less" test "$(field "$work/plan.json" plan parameter_bytes)" -lt "$whole"
    check "--store $store: bytes as planned" test "$(field "$work/plan.json" plan bytes)" = \
        "$(field "$work/plan.json" end bytes_measured)"
done
check "--store int4 says before training what it costs on the data" grep -q "^store  int4 costs [+-][0-9.]* per token of this data (int8: " \
    "$work/stderr"
check "--store int4: the data choose its numbers" grep -q "^store  int4 of .*: its numbers were chosen by 4[0-9]* tokens of the data" \
    "$work/stderr"
build/finetune $how --map > "$work/plan.json" 2> "$work/stderr"
check "--map: the same training" test "$(field "$work/plan.json" end after)" = "$(field "$work/lora.a.json" end after)"
check "--map: weights that are not counted" test "$(field "$work/plan.json" plan parameter_bytes)" -lt 20000
check "--map of what is packed" fails_with 2 "omit --store int8" build/finetune $text --map --store int8
check "--plan prints the plan and saves nothing" \
    sh -c "build/finetune $text --plan --save $work/unmade | grep -c event | grep -q '^2$' &&
    test ! -e $work/unmade"
check "--timeline" sh -c "build/finetune $text --plan --timeline $work/plan.svg > $work/stdout && grep -q lora $work/plan.svg"

# ---- prompts and answers ----------------------------------------------------------------------------------
build/finetune $run --data "$work/sums.jsonl" --method full --steps 40 --eval-every 20 --clip 1 > "$work/sums.json" \
    2> "$work/sums.out"
check "answers are learned" less "$(field "$work/sums.json" end after)" "$(field "$work/sums.json" end before)"
check "a token's loss is not the mean of the rows'" sh -c "grep -q 'per token, mean of rows' $work/sums.out &&
    test '$(field "$work/sums.json" eval val_loss)' != '$(field "$work/sums.json" eval mean_of_means)'"
check "rows that are too long" sh -c "build/finetune $run --data $work/sums.jsonl --context 8 --plan 2>&1 |
    grep -q '^note   [0-9]* rows are too long'"
printf '{"prompt": "a", "answer": "b"}\n{"prompt": 1, "answer": "b"}\n' > "$work/bad.jsonl"
check "a prompt that is no text" fails_with 1 "bad.jsonl:2: prompt: expected a string" build/finetune $model \
    --data "$work/bad.jsonl"
printf '{"prompt": "a"}\n' > "$work/bad.jsonl"
check "an answer that is missing" fails_with 1 "bad.jsonl:1: expected {.prompt.: .*, .completion" build/finetune $model --data "$work/bad.jsonl"
mkdir -p "$work/endless"
cp "$work/tiny/"* "$work/endless"
sed -i.old 's/"eos_token_id": 256/"eos_token_id": 50256/' "$work/endless/config.json"
sed -i.old 's/, "<|endoftext|>": 256//' "$work/endless/vocab.json"
printf '{"prompt": "a", "answer": "b"}\n{"prompt": "a", "answer": ""}\n' > "$work/bad.jsonl"
check "an empty answer is skipped if the model has no end token" \
    says "^note   --data: 1 line has an empty text or answer and is skipped" \
    --model "$work/endless" --data "$work/bad.jsonl" --eval-every 0 --plan
check "an empty answer is trained to end at once" \
    says "^note   --data: 1 answer is empty; only its end is trained, as in TRL" $model \
    --data "$work/bad.jsonl" --eval-every 0 --plan
printf '{"text": "a\\ud83d"}\n{"text": "b\\udc00\\ud800"}\n' > "$work/half.jsonl"
check "half of a surrogate pair" says "^note   --data: 3 unpaired surrogates .* replaced by U+FFFD" $model \
    --data "$work/half.jsonl" --eval-every 0 --plan
printf '{"prompt": "a", "chosen": "b", "rejected": "b"}\n{"prompt": "a", "chosen": "b", "rejected": "c"}\n' > "$work/same.jsonl"
check "a pair of one answer" says "^note   --data: 1 pair has the same answer twice and trains nothing" $model \
    --objective dpo --data "$work/same.jsonl" --eval-every 0 --plan
cp "$work/text" "$work/table.csv"
check "a table is learned as text" says "^note   --data: .*table.csv is read as plain text, .*FILE.jsonl" $model \
    --data "$work/table.csv" --plan
printf '{"prompt": "a", "answer"\n' > "$work/bad.jsonl"
check "a line of data that is not JSON" fails_with 1 "bad.jsonl:1: " build/finetune $model --data "$work/bad.jsonl"

# ---- chats, kinds of lines, and the tokens trained on ---------------------------------------------------------
awk 'BEGIN { for (i = 0; i < 60; i++) printf("{\"messages\": [{\"role\": \"user\", \"content\": \"%d+%d\"}, {\"role\": \"assistant\", \"content\": \"%d%s\"}]}\n",
    i, i % 7, i + i % 7, i % 9 ? "" : ", which is a longer answer"); for (i = 0; i < 9; i++) {
    printf("{\"instruction\": \"add\", \"input\": \"%d %d\", \"output\": \"%d\"}\n{\"text\": \"abc %d\"}\n", i, i, 2 * i, i)
    printf("{\"prompt\": \"a\", \"completion\": \"b <|endoftext|>\"}\n") } }' > "$work/chats.jsonl"
chats="$model --threads 1 --batch 4 --lr 1e-2 --warmup 2 --json - --context 40 --data $work/chats.jsonl --eval-every 0"
own="--user-turn U:{}\\n --assistant-turn A:{}<|endoftext|>\\n"
check "a chat without a template: both remedies" fails_with 1 "chats.jsonl:1: a chat, but the model has no template; --chat NAME .*; or --user-turn" \
    build/finetune $chats
cp -r "$work/tiny" "$work/chatty"
cp tests/golden/chat_template.jinja "$work/chatty"
build/finetune $chats --model "$work/chatty" --plan > "$work/stdout" 2> "$work/stderr"
check "the folder's template is run" grep -q "^chats  by the model's chat_template.jinja" "$work/stderr"
echo "{% include 'x' %}" >> "$work/chatty/chat_template.jinja"
check "a chat template that cannot be run is refused by its construct" \
    fails_with 1 "the model's chat_template.jinja cannot be used: line [0-9]*, column 4: unknown tag {% include %}.*; --chat" \
    build/finetune $chats --model "$work/chatty"
check "--chat none of chats" fails_with 1 "chats.jsonl:1: a chat, but the model has no template; --chat NAME" \
    build/finetune $chats --model "$work/chatty" --chat none
check "--chat NAME replaces the model's template" \
    sh -c "build/finetune $chats --model $work/chatty --chat llama3 --plan 2>&1 | grep -q '^chats  llama3; the model has no end-of-turn token'"
check "--fields names the keys" sh -c "sed 's/\"prompt\"/\"q\"/; s/\"completion\"/\"a\"/' $work/chats.jsonl | grep '\"q\"' > $work/fields.jsonl &&
    build/finetune $model --fields prompt=q,completion=a --data $work/fields.jsonl --plan"
printf '{"text": "one"}\n{"text": "t\\ud800o"}\n' > "$work/half.jsonl"
check "half of a surrogate pair is replaced, with its line" says "^note   --data: 1 unpaired surrogate .* replaced by U+FFFD, first in line 2; " \
    $model --data "$work/half.jsonl" --plan
check "--fields of nonsense" fails_with 2 "--fields quest=q: expected KEY=NAME" build/finetune $chats --fields quest=q
check "--chat of nonsense" fails_with 2 "klingon: allowed is chatml, .*; or none" build/finetune $chats --chat klingon
check "--user-turn without --assistant-turn is refused" \
    fails_with 2 "must be given together" build/finetune $chats --user-turn '{}'
check "--user-turn and --chat" fails_with 2 "omit one of them" build/finetune $chats $own --chat gemma
check "--user-turn without a place" fails_with 2 "expected {} in the place of the message" build/finetune $chats --user-turn x --assistant-turn '{}'
check "special tokens that are spelled out are counted" sh -c "build/finetune $chats '--user-turn=U:{}\\n' \
    '--assistant-turn=A:{}<|endoftext|>\\n' --plan 2>&1 | grep -q '^note   --data: 9 special tokens are spelled out and read as text'"
check "--special-tokens reads them as special tokens" \
    sh -c "build/finetune $chats --chat chatml --special-tokens --plan 2>&1 | grep -q 'read as such (--special'"
build/finetune $chats $own --steps 30 --sample 6 --prompt 1+1 --save "$work/chat.a" > "$work/chat.json" 2> "$work/chat.out"
check "a prompt is a turn of the user: $(tail -n 1 "$work/chat.out")" sh -c "grep -aq '^chats  own\$' $work/chat.out &&
    grep -aqx '1+1' $work/chat.out && test -n '$(field "$work/chat.json" end weights_hash)'"
check "a sample's cache is as long as prompt and sample" grep -aq '^cache  14 tokens' "$work/chat.out"
printf '{"conversation": []}\n' > "$work/bad.jsonl"
check "a line of data with unknown keys" \
    fails_with 1 'bad.jsonl:1: expected {"prompt": "..", "completion": ".."}, {"messages"' build/finetune $model \
    --data "$work/bad.jsonl"

# ---- rows grouped by length: the same bits, and every row once an epoch --------------------------------------
build/finetune $chats $own --steps 11 --save "$work/chat.b" > "$work/stdout" 2> "$work/stderr"
build/finetune --resume "$work/chat.b" --steps 30 --sample 0 --json - > "$work/chatb.json" 2> "$work/stderr"
check "rows of like length: resumed to the same bits" sh -c "cmp $work/chat.a/adapter_model.safetensors $work/chat.b/adapter_model.safetensors &&
    test '$(field "$work/chat.json" end weights_hash)' = '$(field "$work/chatb.json" end weights_hash)'"
awk 'BEGIN { srand(1); for (i = 0; i < 120; i++) { n = i == 77 ? 90 : int(5 - 19 * log(1 - rand() * 0.98)); printf("{\"prompt\": \"q\", \"answer\": \"")
    for (k = 0; k < n - 1; k++) printf("%c", 97 + (i + k) % 20); printf("\"}\n") } }' > "$work/ragged.jsonl"
check "--new with more context" build/finetune --new 1x16x2x96 --model "$work/wide"
ragged="--model $work/wide --threads 1 --method full --batch 4 --clip 0 --data $work/ragged.jsonl --eval-every 0 --json -"
build/finetune $ragged --validation "$work/sums.jsonl" --epochs 1 --lr 1e-9 > "$work/grouped.json" 2> "$work/grouped.out"
build/finetune $ragged --validation "$work/sums.jsonl" --epochs 1 --lr 1e-9 --no-shuffle > "$work/padded.json" 2> "$work/stderr"
less_work=$(field "$work/grouped.json" plan tokens_computed_per_real)
check "computed tokens a real one: $less_work, $(field "$work/grouped.json" plan tokens_computed_per_real_unsorted) padded to the longest" \
    less "${less_work:-9}" 1.15
check "padded to the longest there are many more" less 3 "$(field "$work/grouped.json" plan tokens_computed_per_real_unsorted)"
check "--no-shuffle has one plan" sh -c "! grep -q tokens_computed_per_real $work/padded.json && grep -q '^rows   in batches of similar length, [1-9][0-9]* plans' $work/grouped.out"
whole() # whole FILE: prints the number of steps, the number of targets, and the sum of losses over targets
{
    sed -n 's/^{"event":"step".*"loss":\([^,]*\).*"targets":\([0-9]*\).*/\1 \2/p' "$1" |
        awk '{ n += $2; sum += $1 * $2 } END { printf("%d %d %.3f\n", NR, n, sum) }'
}
check "an epoch has every row once: $(whole "$work/grouped.json")" test "$(whole "$work/grouped.json")" = "$(whole "$work/padded.json")"
build/finetune $ragged --batch 16 --micro-batch 4 --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\).*/\1/p' "$work/stderr")
build/finetune $ragged --batch 16 --budget "${least:-1}" --epochs 1 > "$work/plan.json" 2> "$work/stderr"
check "grouped rows: measured bytes are within the budget" \
    test "$(field "$work/plan.json" end bytes_measured)" -le "${least:-0}"
check "grouped rows: the planned bytes are within $least" test "$(field "$work/plan.json" plan bytes)" -le "${least:-0}"
build/finetune $ragged --batch 7 --epochs 2 > "$work/two.json" 2> "$work/stderr"
check "--epochs: the last step of each is smaller" test "$(grep -c '"event":"step"' "$work/two.json")" -eq 36
check "--epochs and --steps" fails_with 2 "give one of them" build/finetune $ragged --epochs 2 --steps 3
build/finetune $ragged --batch 7 --epochs 1 --save "$work/epoch" > "$work/stdout" 2> "$work/stderr"
build/finetune --resume "$work/epoch" --epochs 2 --json - > "$work/more.json" 2> "$work/stderr"
check "--resume with more --epochs gives the weights of one run" \
    test "$(field "$work/more.json" end weights_hash)" = "$(field "$work/two.json" end weights_hash)"

# ---- log, early stopping, accuracy -----------------------------------------------------------------------
printf '{"prompt": "2+2=", "answer": "4"}\n{"prompt": "3+3=", "answer": "6"}\n' > "$work/adds.jsonl"
adds="$model --threads 1 --method full --data $work/adds.jsonl --validation $work/adds.jsonl --batch 2 --eval-every 10 --lr 1e-2"
build/finetune $adds --steps 60 --save "$work/adds" --log "$work/adds.csv" > "$work/stdout" 2> "$work/stderr"
check "--log: a line for each step, and one before the first" sh -c "test \$(wc -l < $work/adds.csv) -eq 62 &&
    head -n 1 $work/adds.csv | grep -q '^step,tokens,loss,lr,grad_norm,val_loss,seconds,tokens_per_second\$' &&
    sed -n 2p $work/adds.csv | grep -q '^0,,,,,[0-9.]*,,\$' && sed -n 12p $work/adds.csv | grep -q '^10,10,[^,]*,0.00999[^,]*,[^,]*,[0-9.]*,'"
build/finetune $adds --steps 25 --save "$work/adds.b" --log "$work/addsb.csv" > "$work/stdout" 2> "$work/stderr"
echo 26,unfinished >> "$work/addsb.csv"
build/finetune --resume "$work/adds.b" --steps 60 --log "$work/addsb.csv" > "$work/stdout" 2> "$work/stderr"
cut -d, -f 1-5 "$work/adds.csv" > "$work/adds.1"
check "--log --resume: as in one run, no step twice" sh -c "cut -d, -f 1-5 $work/addsb.csv | cmp - $work/adds.1"
check "--log of another file" fails_with 1 "log: $work/text is not the log" build/finetune $adds --steps 1 --log "$work/text"
check "--log to a pipe does not wait" sh -c "build/finetune $adds --steps 1 --log /dev/stdout 2>&1 | cat > $work/stdout;
    grep -q 'stdout is not the log' $work/stdout"
check "--log without training" fails_with 2 "omit it without --data" build/finetune $model --generate --log "$work/x.csv"
stale="$run --data $work/text --eval-iters 2 --eval-every 2 --lr 1 --steps 90 --patience 3"
build/finetune $stale --save "$work/stale" > "$work/stale.json" 2> "$work/stale.out"
ended=$(field "$work/stale.json" end step)
check "--patience ends at step $ended" sh -c "less() { awk \"BEGIN { exit !(\$1 < \$2) }\"; }; less ${ended:-90} 90 &&
    grep -q '^early stop after step $ended: 3 evaluations without a loss below' $work/stale.out"
check "--patience keeps the best weights" test "$(build/finetune $model --adapter "$work/stale" --data "$work/text" --validation "$work/text" \
    --context 24 --eval > "$work/stdout" 2>&1; grep -c '^eval ' "$work/stdout")" = 1
build/finetune $stale --steps $((ended - 4)) --save "$work/stale.b" > "$work/stdout" 2> "$work/stderr"
build/finetune --resume "$work/stale.b" --steps 90 --json - > "$work/staleb.json" 2> "$work/stderr"
check "--patience: a resumed run continues the count" sh -c "test '$(field "$work/staleb.json" end weights_hash)' = '$(field "$work/stale.json" end weights_hash)' &&
    test '$(field "$work/staleb.json" end step)' = '$ended'"
check "--patience: a run that has ended stays ended" says "^note   the training has ended: 3 evaluations .*give --patience 4 or more, or 0" --resume "$work/stale"
check "--patience without evaluations" fails_with 2 "eval-every above 0" build/finetune $text --patience 2 --eval-every 0
printf '{"prompt": "2+2=", "answer": " 4\\n"}\n{"prompt": "3+3=", "answer": "6"}\n{"prompt": "3+3=", "answer": "7"}\n' > "$work/match.jsonl"
check "--accuracy: answers, without white space" says "^accuracy 3 answers: exact match 0.6667 (standard error 0.3333)" \
    --model "$work/adds" --accuracy "$work/match.jsonl"
check "--accuracy of a text" fails_with 1 "rows of prompts and answers" build/finetune --model "$work/adds" --accuracy "$work/play"
# The sums of log-probabilities are transformers' (5.24, float64), for the same weights.
printf '{"question": "Which tea is green?", "choices": ["Sencha", "Earl Grey", "Gr\\u00fcn"], "answer": 0}\n%s\n' \
    '{"question": "Two and two:", "choices": ["five", "four"], "answer": "four"}' > "$work/choices.jsonl"
build/finetune --model "$work/talks" --chat none --threads 1 --accuracy "$work/choices.jsonl" --json - > "$work/choices.json" 2> "$work/stderr"
check "--accuracy: sums of log-probabilities equal transformers'" sh -c "sed -n 's/.*\"logps\":\\[\\([^]]*\\).*/\\1/p' $work/choices.json | tr ',' '\\n' |
    awk '{ split(\"-38.95238348695247 -55.70692902931887 -33.056265934346015 -28.0762555213718 -27.9799370973204\", want, \" \")
        d = \$1 - want[NR]; if (d > 1e-5 || d < -1e-5) exit 1 } END { exit NR != 5 }'"
check "--accuracy: acc, acc_norm" grep -q '"count":2,"acc":0.5,"acc_norm":0.5,"acc_token":0.5' "$work/choices.json"
check "--accuracy with a chat template" says "^accuracy 2 questions: acc [01]" --model "$work/talks" --accuracy "$work/choices.jsonl"
printf '{"question": "Which tea is green?", "choices": {"text": ["Sencha", "Earl Grey", "Gr\\u00fcn"], "label": ["1", "2", "3"]}, "answerKey": "1"}\n%s\n' \
    '{"question": "Two and two:", "choices": {"text": ["five", "four"], "label": ["A", "B"]}, "answerKey": "B"}' > "$work/arc.jsonl"
build/finetune --model "$work/talks" --chat none --threads 1 --accuracy "$work/arc.jsonl" --json - 2> "$work/stderr" | grep -v accuracy > "$work/arc.json"
check "--accuracy: ARC's choices are the same questions" sh -c "grep logps $work/choices.json | cut -d: -f2- > $work/a.json && grep logps $work/arc.json | cut -d: -f2- | cmp - $work/a.json"
echo '{"question": "a", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "answerKey": "C"}' > "$work/x.jsonl"
check "--accuracy: ARC's answer that is no label" fails_with 1 "x.jsonl:1: .answerKey. must be one of the choices. labels" \
    build/finetune --model "$work/talks" --accuracy "$work/x.jsonl"
echo '{"question": "a", "choices": ["b", "c"], "answer": "d"}' > "$work/x.jsonl"
check "--accuracy: an answer that is no choice" fails_with 1 "x.jsonl:1: .answer. must be the index or the text of a choice" \
    build/finetune --model "$work/talks" --accuracy "$work/x.jsonl"

# ---- a chat ----------------------------------------------------------------------------------------------
talk() # talk OPTION..: chats with a model through a pipe
{
    build/finetune --interactive --threads 1 --json "$work/talk.json" "$@" > "$work/talk.out" 2> "$work/talk.err"
}
counts() # prints the tokens of each chat, and how many were computed
{
    sed -n 's/.*"answer","tokens":\([0-9]*\),"computed":\([0-9]*\).*"forgotten":\([0-9]*\).*/\1 \2 \3/p' "$work/talk.json" | tr '\n' ';'
}
printf 'Hi\nAnd\\\nyou?\n/reset\n\nHi\nAnd\\\nyou?\n/what\n/exit\nHi\n' | talk --model "$work/talks" --sample 8 --temperature 0
check "--interactive: only new tokens are computed: $(counts)" test "$(counts)" = "52 52 0;129 70 0;52 1 0;129 70 0;"
check "--interactive: a chat on the cache has the answers of a new one" sh -c "test -s $work/talk.out &&
    head -c \$((\$(wc -c < $work/talk.out) / 2)) $work/talk.out > $work/half && cat $work/half $work/half | cmp - $work/talk.out"
check "--interactive: notes go to standard error" sh -c "grep -q '^(Commands: /reset' $work/talk.err && ! grep -q '^(' $work/talk.out"
printf 'Tea?\n' | talk --model "$work/talks" --adapter "$work/talks.tuned" --sample 20 --temperature 1 --system Short.
build/finetune --model "$work/talks" --adapter "$work/talks.tuned" --threads 1 --generate --sample 20 --temperature 1 --system Short. \
    --prompt Tea? > "$work/stdout" 2> "$work/stderr"
check "--interactive: the answer of --generate" sh -c "grep -v '^chats ' $work/stdout | cmp - $work/talk.out"
(for i in 1 2 3 4; do echo "Message $i is this one"; done; head -c 400 "$work/play" | tr '\n' ' '; echo; echo Hi) |
    talk --model "$work/talks" --sample 8 --temperature 0
check "--interactive: a full context forgets the oldest messages: $(counts)" sh -c "grep -q '^(The context of 256 tokens is full: forgot the oldest' $work/talk.err &&
    grep -q '^(the message was left out: .* of a context of 256.*; shorten one of them' $work/talk.err && test \$(grep -c '\"forgotten\":[1-9]' $work/talk.json) -ge 1 &&
    test \$(grep -c '\"event\":\"answer\"' $work/talk.json) -eq 5"
check "--interactive without a template" fails_with 2 "has no chat template that is known; name one with --chat" build/finetune $model --interactive
check "--system without a place" fails_with 2 "system: the chat template.* user and assistant must alternate" build/finetune --model "$work/talks" --chat mistral --system x --interactive
check "--interactive with --chat none" fails_with 2 "needs a chat template; omit --chat none" \
    build/finetune --model "$work/talks" --interactive --chat none
check "--interactive with --eval" \
    fails_with 2 "interactive only chats; omit --data, --resume, --save, --eval" build/finetune $model --interactive --eval
check "--interactive with --data" fails_with 2 "interactive only chats; omit --data" build/finetune $text --interactive
build/finetune --new llama:8x128x4x2x8192 --chat chatml --model "$work/slow" > "$work/stdout"
rm -f "$work/fifo"
mkfifo "$work/fifo"
build/finetune --model "$work/slow" --interactive --context 8192 --sample 8000 --temperature 0 --threads 1 --json "$work/talk.json" \
    < "$work/fifo" > "$work/talk.out" 2> "$work/talk.err" &
talker=$!
trap "" PIPE # if the talker has ended, its check fails, not this script
exec 9> "$work/fifo"
echo Hi >&9
wait_for "$work/talk.out" .
kill -INT $talker
wait_for "$work/talk.err" '^(Stopped.)'
echo /exit >&9 2> "$work/stderr" || true
exec 9>&-
trap - PIPE
wait $talker
check "--interactive: Ctrl-C ends an answer, not the chat" test $? -eq 0
check "--interactive: a stopped answer is reported" grep -q '"event":"answer".*"end":"interrupt"' "$work/talk.json"

# ---- GGUF ------------------------------------------------------------------------------------------------
gguf=tests/golden/gguf
check "--export-gguf: of a GGUF and of a folder the same" sh -c "
    build/finetune --model $gguf/llama-q8_0.gguf --adapter $gguf/lora.gguf --export-gguf $work/a.gguf &&
    build/finetune --model tests/golden/llama/gqa --adapter tests/golden/llama/lora --export-gguf $work/b.gguf &&
    cmp $work/a.gguf $work/b.gguf"
check "--export-gguf prints what it exported" \
    sh -c "build/finetune $model --adapter $work/lora.a --export-gguf $work/c.gguf |
    grep -q '^exported $work/c.gguf: LoRA .*, [1-9][0-9]* bytes\$'"
check "--export-gguf of a run that is done" sh -c "build/finetune --resume $work/lora.a --export-gguf $work/d.gguf > $work/stdout &&
    grep -q '^exported $work/d.gguf' $work/stdout && cmp $work/c.gguf $work/d.gguf"
check "a GGUF that is a model as --adapter" fails_with 1 "adapter: .*is a model; an adapter is expected" \
    build/finetune --model tests/golden/llama/gqa --adapter $gguf/llama-q8_0.gguf --export-gguf "$work/x.gguf"
check "a GGUF without a tokenizer that is known" fails_with 1 "folder in Hugging Face's format has a tokenizer" \
    build/finetune --model $gguf/llama-q8_0.gguf --generate
check "--save of a name of a file" fails_with 2 "save $work/x.gguf: writes a folder" build/finetune $text --save "$work/x.gguf"
check "--export-gguf over the model" fails_with 2 "it is also --model" \
    build/finetune --model $gguf/llama-q8_0.gguf --adapter $gguf/lora.gguf --export-gguf $gguf/llama-q8_0.gguf
check "--export-gguf of another name" fails_with 2 "its name must end in .gguf" build/finetune $model --export-gguf "$work/x"
check "--export-gguf of another method" fails_with 2 "needs --method lora with --save, or with --merge" \
    build/finetune $text --save "$work/x" --export-gguf "$work/x.gguf" --method houlsby
check "--export-gguf: a whole model reloads to the same losses" sh -c "
    build/finetune --model $work/talks --adapter $work/talks.tuned --merge $work/talks.whole --export-gguf $work/whole.gguf --gguf-type f32 |
        grep -q '^exported $work/whole.gguf: a whole model as f32' &&
    build/finetune --model $work/talks.whole --eval --data $work/text --context 24 --eval-iters 4 | grep '^eval ' > $work/whole.folder &&
    build/finetune --model $work/whole.gguf --eval --data $work/text --context 24 --eval-iters 4 | grep '^eval ' > $work/whole.file &&
    cmp $work/whole.folder $work/whole.file"
check "--export-gguf: after training all weights, with the tokenizer and the chat template" sh -c "
    build/finetune --model $work/talks --data $work/tea.jsonl --method full --eval-every 0 --steps 1 --export-gguf $work/full.gguf --gguf-type q8_0 &&
    build/finetune --model $work/full.gguf --generate --prompt Tea? --sample 3 | grep -q \"^chats  by the model's tokenizer.chat_template\""
check "--gguf-type of LoRA" fails_with 2 "needs --export-gguf of a whole model" build/finetune $text --save "$work/x" \
    --export-gguf "$work/x.gguf" --gguf-type q8_0
check "--export-gguf of biases" fails_with 2 "a GGUF holds LoRA's A and B only; omit" \
    build/finetune $text --bias all --save "$work/x" --export-gguf "$work/x.gguf"
# own_gguf FILE: writes a GGUF of a Llama with one block, Q8_0 matrices, one token for each byte, and a head that is not
# tied to the embeddings
own_gguf()
{
    awk 'function byte(b) { printf("\\%03o", b); at++ }
        function number(n, bytes) { for (; bytes > 0; bytes--) { byte(n % 256); n = int(n / 256) } }
        function text(s) { number(length(s), 8); printf("%s", s); at += length(s) }
        function key(name, type) { text(name); number(type, 4) }
        function whole(name, n) { key(name, 4); number(n, 4) }
        function words(name, s) { key(name, 8); text(s) }
        function fill() { while (at % 32) byte(0) }
        function tensor(name, columns, rows) { text(name); number(rows ? 2 : 1, 4); number(columns, 8)
            if (rows) number(rows, 8)
            number(rows ? 8 : 0, 4); number(offset, 8); size[++tensors] = rows * columns / 32
            offset += rows ? int((size[tensors] * 34 + 31) / 32) * 32 : 4 * columns }
        BEGIN { printf("GGUF"); at = 4; number(3, 4); number(12, 8); number(10, 8)
            words("general.architecture", "llama"); words("tokenizer.ggml.model", "llama")
            whole("llama.block_count", 1); whole("llama.embedding_length", 32); whole("llama.feed_forward_length", 64)
            whole("llama.context_length", 48); whole("llama.attention.head_count", 4)
            key("llama.attention.layer_norm_rms_epsilon", 6); number(925353388, 4) # 1e-5
            key("tokenizer.ggml.tokens", 9); number(8, 4); number(259, 8); text("<unk>"); text("<s>"); text("</s>")
            for (i = 0; i < 256; i++) text(sprintf("<0x%02X>", i))
            key("tokenizer.ggml.scores", 9); number(6, 4); number(259, 8); for (i = 0; i < 259; i++) number(0, 4)
            tensor("token_embd.weight", 32, 259); tensor("output.weight", 32, 259); tensor("output_norm.weight", 32)
            tensor("blk.0.attn_norm.weight", 32); tensor("blk.0.ffn_norm.weight", 32)
            tensor("blk.0.attn_q.weight", 32, 32); tensor("blk.0.attn_k.weight", 32, 32)
            tensor("blk.0.attn_v.weight", 32, 32); tensor("blk.0.attn_output.weight", 32, 32)
            tensor("blk.0.ffn_gate.weight", 32, 64); tensor("blk.0.ffn_up.weight", 32, 64)
            tensor("blk.0.ffn_down.weight", 64, 32)
            for (i = 1; i <= tensors; i++) { fill()
                for (k = 0; k < 32 && !size[i]; k++) number(1065353216, 4) # 1
                for (k = 0; k < size[i]; k++) { number(7168, 2) # 2^-8
                    for (j = 0; j < 32; j++) byte(((i + k) * 37 + j * 29 + k * j) % 101 + (j % 2 ? 155 : 0)) } } }' > "$work/octal"
    printf "$(cat "$work/octal")" > "$1"
}
own_gguf "$work/own.gguf"
owns="--model $work/own.gguf --threads 1 --context 24 --batch 4 --lr 1e-2 --data $work/text --eval-iters 2 --eval-every 4 --json -"
build/finetune $owns --method head --steps 8 --save "$work/own.head" > "$work/own.json" 2> "$work/stderr"
check "--method head of a GGUF with a table for it: $(tail -n 1 "$work/stderr")" less "$(field "$work/own.json" end after)" \
    "$(field "$work/own.json" end before)"
check "a trained head is the only part in floats" test "$(field "$work/own.json" plan parameter_bytes)" -lt 65536
check "a trained head is saved and loaded" \
    sh -c "build/finetune --model $work/own.gguf --method head --adapter $work/own.head \
    --generate --threads 1 --sample 3"
build/finetune $owns --method last --steps 1 --eval-every 0 --save "$work/own.last" > "$work/stdout" 2>&1
check "--store int8 quantises the other matrices of a GGUF" build/finetune $owns --method head --store int8 --steps 1
check "an adapter of matrices that a GGUF has quantised is refused" \
    fails_with 1 "load the model as F32 (--store f32)" build/finetune \
    --model "$work/own.gguf" --adapter "$work/own.last" --generate
check "--method all of such a GGUF" sh -c "build/finetune $owns --method all --steps 1 --eval-every 0 --save $work/own.all \
    > $work/all.out 2>&1 && test \$(grep -c '^| [a-z-]* | [0-9]' $work/all.out) -eq 9"
check "--map of a GGUF" fails_with 2 "omit it" build/finetune --model $gguf/llama-q8_0.gguf --map --generate

# ---- --eval, --generate, --merge, --export, --keep ----------------------------------------------------------
evaluated() { field "$1" eval val_loss; }
on="--threads 1 --data $work/sums.jsonl --context 24"
build/finetune $model $on --eval --json - > "$work/eval.json" 2> "$work/eval.out"
check "--eval: $(cat "$work/eval.out")" grep -q "^eval   120 rows: loss [0-9.]* per token, mean of rows' means [0-9.]*, perplexity [0-9]" "$work/eval.out"
build/finetune $model --threads 1 --validation "$work/sums.jsonl" --context 24 --eval --json - > "$work/evalp.json" 2> "$work/stderr"
check "--eval --validation without --data evaluates the whole file" \
    test "$(evaluated "$work/eval.json")" = "$(evaluated "$work/evalp.json")"
check "--validation that does not exist: the error names it" \
    fails_with 1 "validation: .*none: cannot open it" build/finetune $model --validation "$work/none" --eval
build/finetune $model $on --data "$work/text" --validation "$work/sums.jsonl" --eval --json - > "$work/evalp.json" 2> "$work/stderr"
check "beside --data the same" test "$(evaluated "$work/eval.json")" = "$(evaluated "$work/evalp.json")"
check "perplexity is e to the loss" sh -c "awk 'BEGIN { x = $(field "$work/eval.json" eval perplexity) / exp($(evaluated "$work/eval.json")); exit !(x > 0.9999 && x < 1.0001) }'"
build/finetune $model $on --eval --no-shuffle --json - > "$work/evalp.json" 2> "$work/stderr"
check "--eval: padded to the longest the same" test "$(evaluated "$work/eval.json")" = "$(evaluated "$work/evalp.json")"
build/finetune $model $on --batch 8 --lr 3e-2 --eval-every 5 --steps 15 --save "$work/kept" --keep both --merge "$work/merged" --json - \
    > "$work/kept.json" 2> "$work/kept.out"
check "perplexity beside validation losses" grep -q '^step 5: validation loss .*, perplexity [0-9]' "$work/kept.out"
check "--keep both: the last beside the best" sh -c "test -s $work/kept/last/adapter_model.safetensors -a -s $work/kept/adapter_model.safetensors &&
    grep -q '^saved  .*kept/last: weights of the last step' $work/kept.out"
build/finetune $model $on --batch 8 --lr 3e-2 --eval-every 5 --steps 15 --save "$work/lasting" --keep last > "$work/stdout" 2> "$work/stderr"
check "--keep last" cmp "$work/lasting/adapter_model.safetensors" "$work/kept/last/adapter_model.safetensors"
check "--keep without --save" fails_with 2 "needs --save DIR" build/finetune $text --keep last
build/finetune $model $on --eval --adapter "$work/kept" --json - > "$work/eval1.json" 2> "$work/stderr"
build/finetune --model "$work/merged" $on --eval --json - > "$work/eval2.json" 2> "$work/stderr"
check "--merge: the merged model's loss $(evaluated "$work/eval2.json")" sh -c "awk 'BEGIN { x = $(evaluated "$work/eval1.json") - $(evaluated "$work/eval2.json"); exit !(x < 1e-5 && x > -1e-5) }' &&
    test '$(evaluated "$work/eval1.json")' != '$(evaluated "$work/eval.json")'"
check "--merge of an adapter" sh -c "build/finetune $model --adapter $work/kept --merge $work/merged2 &&
    cmp $work/merged/model.safetensors $work/merged2/model.safetensors && test -s $work/merged2/vocab.json &&
    cmp $work/tiny/tokenizer.model $work/merged2/tokenizer.model"
check "a head that differs from what config.json ties it to is the head" sh -c "build/finetune $model --adapter $work/head.a \
    --method head --merge $work/untied && sed -i.old 's/\"tie_word_embeddings\": false/\"tie_word_embeddings\": true/' \
    $work/untied/config.json && build/finetune --model $work/untied --data $work/text --context 24 --plan > $work/stdout &&
    grep -q '^note .*lm_head.weight differs from wte.weight' $work/stdout"
check "--merge of a name of a file" fails_with 2 "merge $work/x.gguf: writes a folder" build/finetune $model \
    --adapter "$work/kept" --merge "$work/x.gguf"
cp -r "$work/kept" "$work/kept.gguf"
cp -r "$work/merged" "$work/merged.gguf"
check "a folder whose name ends in .gguf is loaded as a folder" \
    sh -c "build/finetune $model --adapter $work/kept.gguf --generate --sample 3 &&
    build/finetune --model $work/merged.gguf --generate --sample 3"
check "--model of a file" fails_with 2 "is a file; give the folder that contains config.json" \
    build/finetune --model "$work/tiny/model.safetensors" --generate
check "--adapter of a file" fails_with 2 "is a file; give the folder that contains adapter_config.json" \
    build/finetune $model --adapter "$work/kept/adapter_model.safetensors" --generate
check "--model of an adapter" fails_with 2 "contains an adapter, .*; give it with --adapter" build/finetune --model "$work/kept" --generate
check "--adapter of a model" fails_with 2 "contains a whole model; give it with --model" build/finetune $model --adapter "$work/tiny" --generate
check "--export bf16" sh -c "build/finetune $model --adapter $work/kept --merge $work/merged3 --export bf16 &&
    grep -aq BF16 $work/merged3/model.safetensors && build/finetune --model $work/merged3 --generate --sample 3"
check "--export of an adapter" fails_with 2 "needs a whole model (--method full or --merge)" build/finetune $text --export bf16
check "--merge of nothing" fails_with 2 "needs --adapter DIR" build/finetune $model --merge "$work/x"
check "--merge of packed weights" fails_with 2 "omit --store" build/finetune $model --adapter "$work/kept" --merge "$work/x" --store int8
for method in last head bias new-blocks; do
    build/finetune $model $on --eval --method $method --adapter "$work/$method.a" --json - > "$work/eval1.json" 2> "$work/stderr"
    build/finetune $model --method $method --adapter "$work/$method.a" --merge "$work/whole" > "$work/stdout" 2>&1
    build/finetune --model "$work/whole" $on --eval --json - > "$work/eval2.json" 2> "$work/stderr"
    check "--merge of $method: a whole model, of loss $(evaluated "$work/eval2.json")" \
        test "$(evaluated "$work/eval1.json")" = "$(evaluated "$work/eval2.json")"
    rm -rf "$work/whole"
done
build/finetune $model $on --method last --lr 1e-2 --steps 4 --eval-every 0 --save "$work/lasts" --merge "$work/whole" > "$work/stdout" 2>&1
check "--merge of last, trained" sh -c "build/finetune $model --method last --adapter $work/lasts --merge $work/whole2 &&
    cmp $work/whole/model.safetensors $work/whole2/model.safetensors"
check "--merge of houlsby" fails_with 2 "houlsby cannot be merged into weights; load them with --adapter, in this program only" \
    build/finetune $text --merge "$work/x" --method houlsby
check "--merge of prefix is refused" \
    fails_with 2 "load them with --adapter, in this program and in peft" build/finetune $text --merge "$work/x" --method prefix
check "--merge of full is refused" \
    fails_with 2 "save writes a whole model" build/finetune $text --merge "$work/x" --method full
check "--merge of all is refused" \
    fails_with 2 "takes one method" build/finetune $text --merge "$work/x" --method all --save "$work/all"
check "--map of bf16, trained" fails_with 1 "load the model as F32 (omit --map)" build/finetune $text \
    --model "$work/merged3" --map --method full
check "--merge over the model" fails_with 2 "it is also --model" build/finetune $model --adapter "$work/kept" --merge "$work/tiny"
build/finetune $model --generate --prompt 'The ' --sample 9 --threads 1 > "$work/generated" 2>&1
check "--generate continues" grep -aq '^The ' "$work/generated"
cp tests/golden/chat_template.jinja "$work/chatty"
build/finetune --model "$work/chatty" --generate --prompt 'The ' --sample 9 --threads 1 > "$work/generated" 2>&1
check "--generate answers by a template" sh -c "grep -aq '^chats  by the model' $work/generated && ! grep -aq '^The ' $work/generated"
check "--chat none: it continues" sh -c "build/finetune --model $work/chatty --generate --prompt 'The ' --sample 9 --chat none | grep -aq '^The '"
check "--map of bf16: evaluates and generates" sh -c "build/finetune --model $work/merged3 $on --eval --map &&
    build/finetune --model $work/merged3 --generate --map --prompt 'The ' --sample 3 | grep -aq '^The '"
cp -r "$work/tiny" "$work/strange"
echo "{% include 'x' %}" > "$work/strange/chat_template.jinja"
check "--generate says that the chat template cannot be used" \
    sh -c "build/finetune --model $work/strange --generate --prompt 'The ' \
    --sample 3 | grep -aq 'cannot be used, line 1, .*: --prompt is continued' && ! build/finetune --model $work/strange --generate \
    --sample 3 --chat none | grep -aq 'cannot be used'"
awk 'BEGIN { for (i = 0; i < 20; i++) printf("{\"instruction\": \"add %d\", \"output\": \"%d\"}\n", i, i + 1) }' > "$work/adds.jsonl"
check "a template that cannot be used: the note names instructions as well" \
    sh -c "build/finetune --model $work/strange --plan --data $work/adds.jsonl | grep -aq 'cannot be used, .*: instructions'"
head -n 1 "$work/sums.jsonl" > "$work/single.jsonl"
check "data of a single row is refused" \
    fails_with 1 "has 1 row of [0-9]* tokens, too few .*; give --validation FILE or" \
    build/finetune $model --data "$work/single.jsonl"
check "an adapter of another method" fails_with 1 "it was trained by --method bias; add that option" \
    build/finetune $model --adapter "$work/bias.a" --generate
check "a model that is no folder" fails_with 1 "give a folder; hf download" build/finetune --model some/name --generate
check "--eval without data" fails_with 2 "to evaluate with" build/finetune $model --eval
check "--eval of a model that --new has just made is refused" \
    fails_with 2 "to evaluate with" build/finetune --new 1x16x2x8 --model "$work/x" --eval
check "--generate with --data" fails_with 2 "only continues --prompt" build/finetune $text --generate
check "--eval with --save" fails_with 2 "--eval does not train" build/finetune $text --eval --save "$work/x"

# ---- tokens in order: training on a .bin file of tokens equals training on the same bytes as text ----------
head -c 4000 "$work/text" | od -An -v -to1 | awk '{ for (i = 1; i <= NF; i++) printf("\\%s\\000", $i) }' > "$work/octal"
printf "$(cat "$work/octal")" > "$work/tokens.bin"
head -c 4000 "$work/text" > "$work/start"
for kind in start tokens.bin; do
    build/finetune $run --data "$work/$kind" --no-shuffle --eval-every 0 --steps 6 > "$work/$kind.json" 2> "$work/stderr"
done
check "a .bin file: $(tail -n 1 "$work/stderr")" test -n "$(field "$work/tokens.bin.json" end weights_hash)" -a \
    "$(field "$work/tokens.bin.json" end weights_hash)" = "$(field "$work/start.json" end weights_hash)"
build/finetune $run --data "$work/start" --eval-every 0 --steps 6 > "$work/mixed.json" 2> "$work/stderr"
check "--no-shuffle is another order" test "$(field "$work/mixed.json" end weights_hash)" != \
    "$(field "$work/start.json" end weights_hash)"
check "tokens beyond the vocabulary are refused" \
    fails_with 1 "the vocabulary has 257" sh -c "printf '\377\377' > $work/far.bin &&
    build/finetune $model --data $work/far.bin"

# ---- samples ----------------------------------------------------------------------------------------------
for i in 1 2; do
    build/finetune $run --data "$work/text" --method prefix --eval-every 0 --steps 2 --sample 12 --samples 2 \
        --prompt 'The ' > "$work/stdout" 2> "$work/samples$i"
done
check "samples before and after, begun by the prompt" sh -c "
    test \$(grep -ac '^sample before' $work/samples1) -eq 2 && test \$(grep -ac '^sample after' $work/samples1) -eq 2 &&
    test \$(grep -ac '^The ' $work/samples1) -ge 4"
check "two runs print the same samples" sh -c "grep -av tokens/s $work/samples1 | grep -av '^end' > $work/s1
    grep -av tokens/s $work/samples2 | grep -av '^end' | cmp - $work/s1"

check "--prompt from standard input" sh -c "printf 'The ' | build/finetune $run --data $work/text --method prefix \
    --eval-every 0 --steps 2 --sample 12 --samples 2 --prompt - > $work/stdout 2> $work/samples3 &&
    grep -av tokens/s $work/samples3 | grep -av '^end' | cmp - $work/s1"
for from in text -; do
    [ $from = text ] && from=$work/text
    build/finetune $run --data "$from" --validation "$work/general" --eval-every 6 --steps 6 < "$work/text" \
        > "$work/from.json" 2> "$work/stderr"
    echo "$(field "$work/from.json" end weights_hash) $(field "$work/from.json" eval val_loss)" > "$work/from$((i += 1))"
done
check "--data from standard input" sh -c "grep -q '^[0-9a-f]* [0-9]' $work/from3 && cmp $work/from3 $work/from4"
check "standard input is read once" fails_with 2 "standard input is --prompt already" sh -c "
    echo text | build/finetune $run --data - --prompt -"
check "a misspelt option" fails_with 2 "unknown option; did you mean --method? see --help" build/finetune --metod=lora

# ---- all methods ------------------------------------------------------------------------------------------
check "--method all" sh -c "build/finetune $model --threads 1 --context 24 --batch 4 --data $work/text \
    --retention-data $work/general --eval-iters 2 --eval-every 5 --steps 5 --method all --save $work/all \
    --memory-svg $work/all.svg > $work/all.out"
check "--method all: a table of ten rows" test "$(grep -c '^| [a-z-]* | [0-9]* | [0-9]* | [0-9.]* s | [0-9]* |' \
    "$work/all.out")" -eq 10
check "--method all: a picture" sh -c "grep -q '</svg>' $work/all.svg && grep -q houlsby $work/all.svg"
check "--method all: a folder each" test -s "$work/all/lora/adapter_model.safetensors" -a \
    -s "$work/all/full/model.safetensors"
check "--method all: each can go on" sh -c "build/finetune --resume $work/all/lora --steps 6 > $work/stdout &&
    grep -q '^method lora: ' $work/stdout && grep -q ' rows of 24,' $work/stdout"
check "--method all: nothing packed" fails_with 2 "only frozen matrices can be" build/finetune $text --method all \
    --save "$work/packed" --store int8
check "--method all without --save" fails_with 2 "needs --save" build/finetune $text --method all
check "--memory-svg without --method all is refused" \
    fails_with 2 "method all" build/finetune $text --memory-svg "$work/x.svg"

# ---- a Llama: the same options, with the kind of model taken from config.json ------------------------------
llama="--model $work/llama"
check "--new llama:" build/finetune --new llama:2x32x4x2x48 $llama
check "--new llama: of nonsense" fails_with 2 "llama:LAYERSxDIMxHEADSxKVHEADSxCONTEXT" build/finetune \
    --new llama:2x32x4x3x48 --model "$work/x"
check "--new llama: without the heads of keys" fails_with 2 "llama:LAYERSxDIMxHEADSxKVHEADSxCONTEXT" build/finetune \
    --new llama:2x32x4x48 --model "$work/x"
check "the new Llama's config.json has its key heads" grep -q '"num_key_value_heads": 2' "$work/llama/config.json"
learns="$llama --threads 1 --context 24 --batch 4 --lr 1e-2 --warmup 2 --json - --data $work/text --eval-iters 4"
for method in full last head new-blocks lora houlsby llama prefix prompt; do
    a="$work/l$method.a"
    b="$work/l$method.b"
    lr=1e-2
    [ $method = prompt ] && lr=0.3
    how="$learns --method $method --lr $lr --eval-every 8 --dropout 0.1"
    build/finetune $how --steps 20 --save "$a" > "$a.json" 2> "$work/stderr"
    check "llama, $method: the loss falls; $(tail -n 1 "$work/stderr")" less "$(field "$a.json" end after)" \
        "$(field "$a.json" end before)"
    check "llama, $method: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    build/finetune $how --steps 8 --save "$b" > "$b.json" 2> "$work/stderr"
    build/finetune --resume "$b" --steps 20 --micro-batch 1 --json - > "$b.json" 2> "$work/stderr"
    check "llama, $method: resumed to the same bits, in other micro-batches" test \
        "$(field "$b.json" end weights_hash)" = "$(field "$a.json" end weights_hash)"
done
check "llama: no biases" fails_with 1 "this Llama has no biases to train; choose another method" build/finetune $learns --method bias
check "llama: targets of a GPT-2" fails_with 1 "allowed are self_attn.q_proj, self_attn.k_proj" build/finetune $learns \
    --targets c_attn
check "llama: LoRA trains q_proj and v_proj by default" test "$(build/finetune $learns --plan 2> "$work/stderr" |
    sed -n 's/.*"trained":\([0-9]*\).*/\1/p')" = $((2 * 8 * (32 + 32 + 32 + 16)))
check "llama: all-linear" test "$(build/finetune $learns --plan --targets all-linear 2> "$work/stderr" |
    sed -n 's/.*"trained":\([0-9]*\).*/\1/p')" = $((2 * 8 * (64 + 48 + 48 + 64 + 3 * (32 + 96))))
build/finetune $learns --method lora --eval-every 8 --dropout 0.1 --steps 20 --map > "$work/plan.json" 2> "$work/stderr"
check "llama, --map: the same training" test "$(field "$work/plan.json" end after)" = "$(field "$work/llora.a.json" end after)"
for store in bf16 f16 int8 int4; do
    build/finetune $learns --method lora --store $store --steps 20 > "$work/plan.json" 2> "$work/stderr"
    check "llama, --store $store: the loss falls" \
        less "$(field "$work/plan.json" end after)" "$(field "$work/plan.json" end before)"
done
build/finetune $learns --method lora --store int4 --steps 10 --save "$work/lint4" > "$work/stdout" 2> "$work/stderr"
build/finetune --resume "$work/lint4" --steps 20 --json - > "$work/resumed.json" 2> "$work/stderr"
check "llama, --store int4: the same numbers after --resume" test "$(field "$work/plan.json" end weights_hash)" = \
    "$(field "$work/resumed.json" end weights_hash)"
check "--resume with other data: they would choose other numbers of int4" fails_with 1 \
    "or other rows choose its int4 numbers, by --data" build/finetune --resume "$work/lint4" --steps 30 --data "$work/play"
build/finetune $learns --method lora --store int4 --steps 20 --budget 1 > "$work/stdout" 2> "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\),.*/\1/p' "$work/stderr")
build/finetune $learns --method lora --store int4 --steps 20 --budget "${least:-1}" > "$work/small.json" 2> "$work/stderr"
check "llama, --store int4: the same numbers within another budget" test "$(field "$work/plan.json" end weights_hash)" = \
    "$(field "$work/small.json" end weights_hash)"
check "llama, --store int4: a note if the choice of numbers takes more than the budget" \
    grep -q '^store  int4 of .* in [0-9]* bytes, more than --budget$' "$work/stderr"
check "llama: a fully tuned model is loaded as a model" sh -c "build/finetune --model $work/lfull.a --data $work/text \
    --threads 1 --context 24 --eval-every 0 --steps 1 --sample 8 --prompt 'The ' > $work/stdout &&
    test \$(grep -ac '^The ' $work/stdout) -eq 2"
check "llama, --method all leaves bias out" sh -c "build/finetune $llama --threads 1 --context 24 --batch 4 --data \
    $work/text --eval-iters 2 --eval-every 2 --steps 2 --method all --save $work/lall > $work/all.out &&
    grep -q '^note   --method bias is skipped' $work/all.out && test \$(grep -c '^| [a-z-]* | [0-9]' $work/all.out) -eq 9"
sed -i.old 's/"eos_token_id": 256/"eos_token_id": [256, 10, 32]/' "$work/llama/config.json"
build/finetune $llama --threads 1 --data "$work/text" --context 24 --eval-every 0 --steps 0 --sample 40 --samples 8 \
    --temperature 3 --prompt 'The' > "$work/stdout" 2> "$work/stderr"
check "llama: a sample ends at any of its ends" sh -c "test \$(grep -ac '^The' $work/stdout) -ge 8 &&
    ! grep -a '^The.* ' $work/stdout"

# ---- DoRA, whole modules, some layers -----------------------------------------------------------------------
for base in tiny llama; do
    names=lm_head,ln_f
    [ $base = llama ] && names=embed_tokens,norm
    dora="--model $work/$base --threads 1 --context 24 --batch 4 --lr 1e-2 --warmup 2 --data $work/text --eval-iters 4 --dora \
        --modules-to-save $names --layers-to-transform 1 --targets all-linear --lora-dropout 0.1 --eval-every 8"
    a="$work/$base.dora"
    b="$work/$base.dora.b"
    build/finetune $dora --steps 20 --save "$a" --merge "$a.merged" --json - > "$a.json" 2> "$work/stderr"
    check "$base, --dora: the loss falls; $(tail -n 1 "$work/stderr")" less "$(field "$a.json" end after)" \
        "$(field "$a.json" end before)"
    check "$base, --dora: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    build/finetune $dora --steps 8 --save "$b" > "$work/stdout" 2> "$work/stderr"
    build/finetune --resume "$b" --steps 20 --micro-batch 1 --json - > "$b.json" 2> "$work/stderr"
    check "$base, --dora: resumed to the same bits, in other micro-batches" sh -c "cmp $a/adapter_model.safetensors \
        $b/adapter_model.safetensors && test '$(field "$b.json" end weights_hash)' = '$(field "$a.json" end weights_hash)'"
    check "$base, --dora: adapter_config.json has the keys of peft" \
        sh -c "grep -q '\"use_dora\": true' $a/adapter_config.json &&
        grep -q '\"modules_to_save\": .\"${names%,*}\", \"${names#*,}\"' $a/adapter_config.json &&
        grep -q '\"layers_to_transform\": .1.' $a/adapter_config.json &&
        grep -aq '${names%,*}.weight' $a/adapter_model.safetensors && grep -aq magnitude_vector $a/adapter_model.safetensors"
    on="--threads 1 --data $work/text --context 24 --eval --eval-iters 4 --json -"
    build/finetune --model "$work/$base" --adapter "$a" $on > "$work/eval1.json" 2> "$work/stderr"
    build/finetune --model "$a.merged" $on > "$work/eval2.json" 2> "$work/stderr"
    check "$base, --dora: merged the same, $(evaluated "$work/eval2.json")" sh -c "awk 'BEGIN { x = $(evaluated "$work/eval1.json") - $(evaluated "$work/eval2.json"); exit !(x < 1e-5 && x > -1e-5) }'"
    build/finetune $dora --store int8 --steps 20 --save "$b" --json - > "$b.json" 2> "$work/stderr"
    check "$base, --dora --store int8 learns" less "$(field "$b.json" end after)" "$(field "$b.json" end before)"
    check "$base, --dora --store int8: bytes as planned" test "$(field "$b.json" plan bytes)" = \
        "$(field "$b.json" end bytes_measured)"
    check "$base, --dora --store int8: its adapter generates" sh -c "build/finetune --model $work/$base --store int8 \
        --adapter $b --generate --threads 1 --sample 6 --prompt 'The ' | grep -aq '^The '"
done
build/finetune $learns --modules-to-save embed_tokens --ensure-weight-tying --steps 4 --save "$work/tied" > "$work/stdout" 2> "$work/stderr"
check "--ensure-weight-tying: under both names" sh -c "grep -aq lm_head.weight $work/tied/adapter_model.safetensors &&
    grep -q '\"ensure_weight_tying\": true' $work/tied/adapter_config.json && build/finetune $llama --adapter $work/tied \
    --generate --threads 1 --sample 3"
check "--ensure-weight-tying of what is not tied" sh -c "build/finetune $text --modules-to-save ln_f --ensure-weight-tying --plan 2>&1 |
    grep -q '^note   --ensure-weight-tying has no effect: --modules-to-save names neither lm_head nor wte'"
check "--dora of another method" fails_with 2 "dora needs --method lora, not bias" build/finetune $text --method bias --dora
check "--targets of another method" fails_with 2 "targets needs --method lora, not houlsby" build/finetune $text \
    --method houlsby --targets c_attn
check "--size of head" fails_with 2 "size needs --method lora, houlsby, .*, not head" build/finetune $text --method head --size 4
check "--hidden of prompt" fails_with 2 "hidden needs --method prefix" build/finetune $text --method prompt --hidden 4
check "--layers of houlsby" fails_with 2 "layers needs --method last, new-blocks or llama" build/finetune $text \
    --method houlsby --layers 1
check "--method all takes options of each" build/finetune $text --method all --save "$work/x" --plan --alpha 4 --hidden 4 --layers 1
check "--resume with --dora" fails_with 2 "was made without --dora" build/finetune --resume "$work/usual" --dora
check "--layers of lora" fails_with 2 "give --layers-to-transform, such as 4-7" build/finetune $text --layers 2
check "--layers-to-transform of nonsense" fails_with 1 "the model has layers 0 to 1" build/finetune $text --layers-to-transform 0,2
check "--modules-to-save of nonsense" fails_with 1 "heads. is no module; allowed are wte, lm_head, ln_f" build/finetune $text \
    --modules-to-save wte,heads,head
check "--ensure-weight-tying without --modules-to-save is refused" \
    fails_with 2 "needs --modules-to-save" build/finetune $text --ensure-weight-tying
check "--adapter with --dora" fails_with 2 "its adapter_config.json determines" build/finetune $text --adapter "$work/lora.a" --dora
check "--method all --dora" sh -c "build/finetune $model --threads 1 --context 24 --batch 4 --data $work/text --plan --dora \
    --eval-every 0 --method all --save $work/none > $work/all.out && grep -c '^| [a-z-]* | [0-9]' $work/all.out | grep -q '^10\$'"

# ---- other batches of a resumed run; errors name damaged files -----------------------------------------------
rm -rf "$work/recut"
build/finetune $ragged --batch 4 --epochs 1 --save "$work/recut" > "$work/stdout" 2> "$work/stderr"
build/finetune --resume "$work/recut" --batch 8 --epochs 3 --json - > "$work/more.json" 2> "$work/stderr"
check "--resume --batch --epochs: the new steps make 3 epochs" \
    sh -c "grep -q '^note   from step 30 on, a step has 8 rows instead of 4: 60 steps make 3 epochs' \
    $work/stderr && test \$(grep -c '\"event\":\"step\"' $work/more.json) -eq 30"
build/finetune --resume "$work/recut" --epochs 4 --json - > "$work/more.json" 2> "$work/stderr"
check "--resume after --resume --batch keeps the new batch" \
    sh -c "! grep -q '^note   from step' $work/stderr && test \$(grep -c '\"event\":\"step\"' $work/more.json) -eq 15"
build/finetune --resume "$work/recut" --batch 2 --steps 80 --json - > "$work/more.json" 2> "$work/stderr"
check "--resume --batch --steps makes exactly that many steps" \
    sh -c "grep -q '^note   from step 75 on, a step has 2 rows instead of 8\$' $work/stderr &&
    test \$(grep -c '\"event\":\"step\"' $work/more.json) -eq 5"
printf '\037\213\010\000abcdefgh' > "$work/zipped.jsonl"
check "a gzip file of the name .jsonl" fails_with 1 "zipped.jsonl: this is a gzip archive, not text; unpack it: gunzip" \
    build/finetune $model --data "$work/zipped.jsonl"
cp -r "$work/tiny" "$work/broken"
sed 's/data_fnv1a/note_fnv1a/' "$work/broken/model.safetensors" > "$work/unhashed" && # without the data's hash
    mv "$work/unhashed" "$work/broken/model.safetensors"
printf '\000\000\300\177' | dd of="$work/broken/model.safetensors" bs=1 conv=notrunc 2> "$work/log" \
    seek=$(($(wc -c < "$work/broken/model.safetensors") - 4))
for how in "--eval-every 0" "--eval-every 0 --store bf16" "--eval-every 1" "--method full --clip 0 --eval-every 0"; do
    check "weights of NaN, $how" fails_with 1 'not finite: "[a-z0-9_.]*" has an infinite value or NaN; its file' build/finetune $text \
        --model "$work/broken" $how
done

# ---- Gemma 2 and 3: windows, caps ---------------------------------------------------------------------------
check "--new gemma2: of nonsense" fails_with 2 "gemma2: and gemma3: as llama:" build/finetune --new gemma2:300x32x4x2x48 \
    --model "$work/x"
for gemma in gemma2:3x32x4x2x48 gemma3:7x32x4x2x48; do
    name=${gemma%%:*}
    fresh="--model $work/$name"
    a="$work/$name.a"
    learns="--threads 1 --context 48 --batch 4 --lr 1e-2 --warmup 2 --json - --eval-iters 4"
    check "--new $name:" build/finetune --new $gemma $fresh
    check "$name: its config.json" grep -q '"sliding_window": 24' "$work/$name/config.json"
    build/finetune $fresh $learns --data "$work/text" --method full --steps 12 --save "$a" > "$a.json" 2> "$work/stderr"
    check "$name: the loss falls" less "$(field "$a.json" end after)" "$(field "$a.json" end before)"
    check "$name: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    # This text is fixed and repeats more than the header, whose contents change, so the loss falls more reliably.
    build/finetune --model "$a" $learns --data "$work/play" --method lora --targets all-linear --store int8 --steps 24 --save "$a.lora" \
        > "$a.json" 2> "$work/stderr"
    check "$name: lora on what was saved, int8" less "$(field "$a.json" end after)" "$(field "$a.json" end before)"
    check "$name: generates" sh -c "build/finetune --model $a --adapter $a.lora --threads 1 --generate --sample 30 --prompt 'The ' \
        > $work/stdout && grep -aq '^The ' $work/stdout"
done

# ---- files that must not be overwritten --------------------------------------------------------------------
cp "$work/tiny/model.safetensors" "$work/model.copy"
check "--save over the model" fails_with 2 "it is also --model" build/finetune $text --save "$work/tiny/"
check "--save into no folder" fails_with 1 "save /nonexistent/x" build/finetune $text --save /nonexistent/x
check "--save over a file" fails_with 1 "save" build/finetune $text --save "$work/text"
mkdir -p "$work/blocked/adapter_config.json"
check "--save where a folder is in the way" fails_with 1 "adapter_config.json: .*the older file is unchanged" build/finetune $text \
    --steps 1 --save "$work/blocked"
# full SAYS ARGUMENT..: runs finetune with a file-size limit of 8 blocks, which the model's weights exceed like a full
# disk, and checks that the error matches SAYS
full()
{
    says=$1
    shift
    (trap '' XFSZ; ulimit -f 8; exec build/finetune "$@") > /dev/null 2> "$work/stderr"
    cat "$work/stderr"
    grep -q -e "$says" "$work/stderr"
}
check "a first --save on a full disk says that no file exists" \
    full "fresh/model.safetensors: .*; no file of this name exists" $text --method full --steps 1 \
    --save "$work/fresh"
build/finetune $text --steps 1 --method full --save "$work/older" > "$work/stdout" 2> "$work/stderr"
cp "$work/older/model.safetensors" "$work/older.copy"
check "a second --save on a full disk leaves the older file" \
    full "older/model.safetensors: .*; the older file is unchanged" $text --method full --steps 1 \
    --save "$work/older"
check "the older file has its old bytes" cmp "$work/older/model.safetensors" "$work/older.copy"
check "--json over the data" fails_with 2 "also --data" build/finetune $text --json "$work/text"
check "the model is unharmed" cmp "$work/tiny/model.safetensors" "$work/model.copy"
check "no temporary file is left next to saved files" sh -c "! ls $work/*/* | grep -e tmp -e '[.]try'"
if [ -w /dev/full ]; then
    check "standard output full" fails_with 1 "standard output" sh -c "build/finetune $text --steps 1 > /dev/full"
    check "--will-it-fit on a full disk" fails_with 1 "standard output" sh -c \
        "build/finetune --will-it-fit $work/tiny > /dev/full"
fi

report finetune
