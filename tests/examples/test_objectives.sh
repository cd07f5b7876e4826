#!/bin/sh
# Tests build/finetune with --objective dpo and distill through the command line: losses, bytes, budgets, resuming,
# references, teachers, and combinations of options that must be refused.
work=build/objectives
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

small="--model $work/small"
head -c 30000 README.md > "$work/text"
awk 'BEGIN { for (i = 0; i < 60; i++) printf("{\"prompt\": \"%d+%d=\", \"chosen\": \"%d%s, good\", \"rejected\": \"%d, %sbad\"}\n",
    i, i % 7, i + i % 7, i % 3 ? "" : ", a longer one", i, i % 2 ? "" : "very ") }' > "$work/pairs.jsonl"
build/finetune --new 2x32x4x64 $small > "$work/stdout"
build/finetune --new llama:3x48x4x2x64 --model "$work/big" --seed 2 > "$work/stdout"
build/finetune --new 2x32x4x64x300 --model "$work/other" > "$work/stdout"
build/finetune --new 2x32x4x24 --model "$work/short" > "$work/stdout"
run="$small --threads 1 --batch 4 --lr 1e-2 --warmup 2 --json -"
dpo="$run --data $work/pairs.jsonl --objective dpo --epochs 2 --eval-every 10"
distill="$run --data $work/text --objective distill --teacher $work/big --context 40 --eval-iters 4 --eval-every 8"

# ---- DPO: chosen answers become likelier, bytes equal the planned ones, and a stopped run resumes ----------
for method in lora full; do
    a="$work/$method.a"
    b="$work/$method.b"
    build/finetune $dpo --method $method --save "$a" > "$a.json" 2> "$work/stderr"
    check "dpo, $method: $(tail -n 1 "$work/stderr")" less "$(field "$a.json" end after)" 0.68
    check "dpo, $method: it begins at log 2" test "$(field "$a.json" end before)" = 0.693147182
    check "dpo, $method: rewards of the chosen are greater" less 0.9 "$(field "$a.json" eval rewards\\/accuracies)"
    check "dpo, $method: a margin is their difference" less 0 "$(field "$a.json" eval rewards\\/margins)"
    check "dpo, $method: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    build/finetune $dpo --method $method --epochs 1 --save "$b" > "$b.json" 2> "$work/stderr"
    build/finetune --resume "$b" --epochs 2 --json - > "$b.json" 2> "$work/stderr"
    check "dpo, $method: resumed to the same bits" test "$(field "$b.json" end weights_hash)" = \
        "$(field "$a.json" end weights_hash)"
done
build/finetune $dpo --epochs 0 --steps 1 --store int4 > "$work/int4.json" 2> "$work/stderr"
check "dpo, --store int4: the pairs choose the numbers of model and reference" \
    test "$(grep -c "^store  int4 of $work/small: its numbers were chosen by [1-9][0-9]* tokens" "$work/stderr")" = 2 -a \
    "$(field "$work/int4.json" end before)" = 0.693147182
check "dpo: --min-lr above its rate" fails_with 2 "min-lr 0.0001: .* the learning rate, which is 2e-05 by --method lora" \
    build/finetune $small --data "$work/pairs.jsonl" --objective dpo --min-lr 1e-4
check "--resume with another objective" fails_with 2 "was made with --objective dpo" build/finetune --resume "$work/lora.a" \
    --objective next-token
build/finetune $dpo --epochs 0 --steps 1 --budget 1 > "$work/stdout" 2> "$work/stderr"
check "a budget too small names what is needed" grep -q 'at least [1-9][0-9]* bytes; training needs [0-9]*, its reference [0-9]*' "$work/stderr"
least=$(sed -n 's/.*at least \([0-9]*\) bytes; training.*/\1/p' "$work/stderr")
check "the least budget named is enough: $least" build/finetune $dpo --epochs 0 --steps 1 --budget "${least:-1}"
check "a budget of a byte less is refused" \
    fails_with 1 "at least $least bytes" build/finetune $dpo --budget $((least - 1))
check "--plan says the same" fails_with 1 "at least $least bytes" build/finetune $dpo --budget 1 --plan
hash=$(field "$work/lora.a.json" end weights_hash)
build/finetune $dpo --budget 500K --threads 2 > "$work/budget.json" 2> "$work/stderr"
check "dpo in half a megabyte: the same bits" test "$(field "$work/budget.json" end weights_hash)" = "$hash"
check "dpo: measured bytes are within 500K" less "$(field "$work/budget.json" end bytes_measured)" 512001
build/finetune $dpo --micro-batch 1 > "$work/micro.json" 2> "$work/stderr"
check "a pair at a time: the same bits" test "$(field "$work/micro.json" end weights_hash)" = "$hash"

# ---- DPO's reference model, and evaluation ----------------------------------------------------------------
evaluate="$small --data $work/pairs.jsonl --objective dpo --eval --json -"
build/finetune $evaluate > "$work/eval.json" 2> "$work/stderr"
check "--eval of the reference itself" test "$(field "$work/eval.json" eval val_loss)" = 0.693147182 -a \
    "$(field "$work/eval.json" eval rewards\\/margins)" = 0
build/finetune $evaluate --adapter "$work/lora.a" > "$work/eval.json" 2> "$work/stderr"
check "--eval of an adapter compares with the model without it" \
    less 0.1 "$(field "$work/eval.json" eval rewards\\/margins)"
build/finetune $evaluate --adapter "$work/lora.a" --reference "$work/lora.a" > "$work/eval.json" 2> "$work/stderr"
check "--reference may be an adapter" test "$(field "$work/eval.json" eval val_loss)" = 0.693147182
build/finetune $small --adapter "$work/lora.a" --export-gguf "$work/lora.gguf" > "$work/stdout"
build/finetune $evaluate --adapter "$work/lora.a" --reference "$work/lora.gguf" > "$work/eval.json" 2> "$work/stderr"
check "--eval of the reference as a GGUF gives the same loss" \
    test "$(field "$work/eval.json" eval val_loss)" = 0.693147182
check "--plan: no such reference" fails_with 1 "reference: .*none/config.json: cannot open it" build/finetune $dpo --plan \
    --reference "$work/none"
check "--plan: the reference's bytes" sh -c "build/finetune $dpo --plan --reference $work/lora.gguf 2>&1 |
    grep -q '^reference .*lora.gguf: .*, [1-9][0-9]* bytes'"
build/finetune $evaluate --reference "$work/full.a" > "$work/eval.json" 2> "$work/stderr"
check "or a model" less "$(field "$work/eval.json" eval rewards\\/margins)" -0.1
build/finetune $dpo --adapter "$work/lora.a" --epochs 0 --steps 0 > "$work/again.json" 2> "$work/stderr"
check "a training with --adapter begins as its own reference" test "$(field "$work/again.json" end before)" = 0.693147182
build/finetune $run --data "$work/text" --method prompt --size 40 --context 16 --eval-every 0 --steps 1 \
    --save "$work/virtual" > "$work/stdout" 2>&1
check "--reference that takes positions" fails_with 2 \
    "context 30: allowed is at most 24; the reference takes 40 of the model's 64 positions" build/finetune $evaluate \
    --reference "$work/virtual" --context 30
build/finetune $evaluate --reference "$work/virtual" > "$work/eval.json" 2> "$work/stderr"
check "it leaves the others: $(tail -n 1 "$work/stderr")" test -n "$(field "$work/eval.json" eval val_loss)"
check "--reference of fewer positions" fails_with 1 "has a vocabulary of 257 tokens and 24 positions" build/finetune $evaluate \
    --reference "$work/short"

# ---- distillation -----------------------------------------------------------------------------------------
for method in lora full; do
    a="$work/$method.c"
    b="$work/$method.d"
    build/finetune $distill --method $method --steps 16 --save "$a" > "$a.json" 2> "$work/stderr"
    check "distill, $method: $(tail -n 1 "$work/stderr")" less "$(field "$a.json" end after)" "$(field "$a.json" end before)"
    check "distill, $method: bytes as planned" test "$(field "$a.json" plan bytes)" = "$(field "$a.json" end bytes_measured)"
    build/finetune $distill --method $method --steps 8 --save "$b" > "$b.json" 2> "$work/stderr"
    build/finetune --resume "$b" --steps 16 --json - > "$b.json" 2> "$work/stderr"
    check "distill, $method: resumed to the same bits" test "$(field "$b.json" end weights_hash)" = \
        "$(field "$a.json" end weights_hash)"
    check "distill, $method: and the losses of before count" test "$(field "$b.json" end before)" = "$(field "$a.json" end before)"
    check "distill, $method: the teacher is not saved" sh -c "! grep -aq teacher[.]l $a/*.safetensors"
done
check "the teacher is said, and not counted with what learns" sh -c "build/finetune $distill --plan --json - > $work/json \
    2> $work/stdout; grep -q '^teacher .*: llama, [0-9]* parameters, matrices as f32' $work/stdout &&
    grep -q '^method lora: trains 2048 of 37792 parameters' $work/stdout"
build/finetune $distill --steps 16 --teacher-store int8 > "$work/int8.json" 2> "$work/stderr"
check "--teacher-store int8: fewer bytes" less "$(field "$work/int8.json" end bytes_measured)" \
    "$(field "$work/lora.c.json" end bytes_measured)"
build/finetune $distill --steps 1 --teacher-store int4 > "$work/int4.json" 2> "$work/stderr"
check "--teacher-store int4: the data choose its numbers" \
    grep -q "^store  int4 of $work/big: its numbers were chosen by [1-9][0-9]* tokens" "$work/stderr"
build/finetune $distill --steps 16 --budget 700K > "$work/budget.json" 2> "$work/stderr"
check "distill in few bytes: the same bits" test "$(field "$work/budget.json" end weights_hash)" = \
    "$(field "$work/lora.c.json" end weights_hash)"
check "distill: measured bytes of both models are within 700K" \
    less "$(field "$work/budget.json" end bytes_measured)" 716801
check "distill in a byte" fails_with 1 "needs at least" build/finetune $distill --budget 1

# ---- combinations of options that must be refused ---------------------------------------------------------
check "dpo without pairs" fails_with 1 "pairs are lines of FILE.jsonl" build/finetune $small --data "$work/text" --objective dpo
echo '{"prompt": "a", "completion": "b"}' > "$work/prompts.jsonl"
check "dpo of prompts" fails_with 1 'prompts.jsonl:1: "chosen" is missing' build/finetune $small \
    --data "$work/prompts.jsonl" --objective dpo
check "pairs without dpo" fails_with 1 "the line has a pair of answers, which only --objective dpo uses" build/finetune $small \
    --data "$work/pairs.jsonl"
check "dpo with --retention-data" fails_with 2 "retention-data is a text" build/finetune $dpo --retention-data "$work/text"
check "--beta without dpo" fails_with 2 "beta belongs to --objective dpo" build/finetune $run --data "$work/text" --beta 1
check "--teacher without distill" fails_with 2 "teacher belongs to --objective distill" build/finetune $dpo --teacher "$work/big"
check "distill without a teacher" fails_with 2 "needs --teacher DIR" build/finetune $run --data "$work/text" --objective distill
check "a teacher of another vocabulary" fails_with 1 "a vocabulary of 300 tokens, the model that learns one of 257" \
    build/finetune $distill --teacher "$work/other"
check "a teacher of fewer positions" fails_with 1 "has 24 positions, rows 40" build/finetune $distill --teacher "$work/short"
cp -r "$work/big" "$work/others"
sed -e 's/"b"/"swap"/; s/"c"/"b"/; s/"swap"/"c"/' "$work/big/vocab.json" > "$work/others/vocab.json"
check "a teacher of other tokens" fails_with 1 'token 98 is "c" there, and "b" in --model' build/finetune $distill \
    --teacher "$work/others"
rm "$work/others/vocab.json"
check "a teacher without a tokenizer" build/finetune $distill --teacher "$work/others" --steps 1 --eval-every 0
check "--teacher that does not exist" \
    fails_with 1 "teacher: .*none.*config.json" build/finetune $distill --teacher "$work/none"
check "--export-gguf over the teacher" fails_with 2 "it is also --teacher" build/finetune $distill --save "$work/x" \
    --teacher tests/golden/gguf/llama-q8_0.gguf --export-gguf tests/golden/gguf/llama-q8_0.gguf
check "--save over the teacher" fails_with 2 "it is also --teacher" build/finetune $distill --save "$work/big"
report objectives
