#!/bin/sh
# Tests ledgers of build/gpt and build/finetune and their audits by build/audit: equal under other budgets, modes,
# micro-batches and threads; other data, weights, options and damaged ledgers are refused; runs that were interrupted,
# resumed or stopped by a full disk.
work=build/audits
. tests/checks.sh

text="--data $work/text"
head -c 9000 README.md > "$work/text"
gpt="build/gpt $text --layers 2 --dim 32 --context 16 --batch 8 --warmup 3 --eval-every 0 --threads 1"
a="$work/a.ledger"

# hash_of COMMAND..: prints the weights' hash that a program reports
hash_of() { "$@" 2> "$work/stderr" | sed -n 's/.*weights \([0-9a-f]*\)$/\1/p'; }
# equal STEPS COMMAND..: succeeds if an audit reports that these steps are equal
equal()
{
    steps=$1
    shift
    "$@" > "$work/stdout" 2> "$work/stderr"
    status=$?
    cat "$work/stdout" "$work/stderr"
    [ $status -eq 0 ] && grep -q "^audit  equal: .*steps $steps\$" "$work/stdout"
}
# says PATTERN COMMAND..: succeeds if the command does and prints a line that matches
says()
{
    pattern=$1
    shift
    "$@" > "$work/stdout" 2> "$work/stderr"
    status=$?
    cat "$work/stdout" "$work/stderr"
    [ $status -eq 0 ] && grep -q -e "$pattern" "$work/stdout"
}
# patch FILE AT HEX: overwrites bytes of a file
patch() { printf "\\$(printf %o "0x$3")" | dd of="$1" bs=1 seek="$2" conv=notrunc 2> "$work/log"; }

# ---- a ledger does not change the training, and its records do not depend on the machine -----------------------
plain=$(hash_of $gpt --steps 30)
with=$(hash_of $gpt --steps 30 --ledger "$a" --ledger-every 4 --save "$work/a.st" --save-every 10)
check "a ledger changes no weight" test -n "$plain" -a "$plain" = "$with"
cp "$work/a.st" "$work/30.st"
check "the summary names the last step" says 'steps 0 to 30, 1 run$' build/audit "$a"
check "from the seed" equal '0 to 30' build/audit "$a" --step all
check "one step" equal '0 to 4' build/audit "$a" --step 3 --budget 830K
for how in "--budget 820K" "--checkpoint optimal --micro-batch 2" "--checkpoint segments --micro-batch 1 --threads 3" \
    "--checkpoint memory-poor" "--checkpoint sqrt --micro-batch 4 --threads 2"; do
    check "$how" equal '0 to 12' build/audit "$a" --step 5-12 $how
done
for kind in adam8bit muon apollo-mini; do
    hash=$(hash_of $gpt --steps 6 --optimiser $kind --ledger "$work/$kind.ledger" --ledger-every 3)
    check "--optimiser $kind: its state is in the ledger" test -n "$hash" -a \
        "$(grep -ac '^tensor state0 [0-9]* bytes' "$work/$kind.ledger")" -gt 20
    check "--optimiser $kind: an audit with another plan" equal '0 to 6' build/audit "$work/$kind.ledger" --step all \
        --checkpoint memory-poor --micro-batch 2 --threads 2
done
build/gpt --resume "$work/a.st" --steps 40 --ledger "$work/later.ledger" --save "$work/40.st" > "$work/stdout"
check "a new ledger of a resumed run" equal '30 to 40' build/audit "$work/later.ledger" --step all --from "$work/30.st"
check "it needs the checkpoint" fails_with 1 "begins at step 30: give the file saved at that step" \
    build/audit "$work/later.ledger" --step all
check "--from is of a later step" fails_with 2 "is of step 40, which is not before it" \
    build/audit "$work/later.ledger" --step 33 --from "$work/40.st"
check "a step that the ledger does not have" fails_with 1 'the last record of .* is of step 40' \
    build/audit "$work/later.ledger" --step 50 --from "$work/30.st"
check "the number of steps between records is chosen by time" \
    says '^ledger a record every [1-9][0-9]* steps*: [0-9.]* % of the time$' $gpt --steps 40 --ledger "$work/auto.ledger"
check "a record of the run, of each step, and an end" says '^ledger 8 records' \
    $gpt --steps 6 --ledger "$work/every.ledger" --ledger-every 1
check "all are equal" equal '0 to 6' build/audit "$work/every.ledger" --step all --threads 2

# ---- what differs is refused, by name ---------------------------------------------------------------------------
sed 's/a/b/' "$work/text" > "$work/other"
check "other data" fails_with 1 'states "data [0-9a-f]* [0-9]* bytes", but this run has .*give the data of the training' \
    build/audit "$a" --step 3 --data "$work/other"
$gpt --steps 30 --lr 0.002 --save "$work/bad.st" > "$work/stdout"
check "a checkpoint of another training" \
    fails_with 1 'record 0, step 30: the first tensor that differs is values 256x32 wte' \
    build/audit "$work/later.ledger" --step all --from "$work/bad.st"
cp "$a" "$work/b.ledger"
patch "$work/b.ledger" 5000 7
check "a damaged record" fails_with 1 'record [0-9]* is damaged: its hash is wrong' build/audit "$work/b.ledger"
head -c 7000 "$a" > "$work/b.ledger"
check "a record that is cut off" fails_with 1 'record [0-9]* is not complete: .*resume it' build/audit "$work/b.ledger"
: > "$work/empty"
check "an empty ledger" fails_with 1 'record 0 is missing: the ledger is empty$' build/audit "$work/empty"
mkfifo "$work/pipe"
check "a device" fails_with 1 'a ledger is a file, not a pipe or a device' build/audit /dev/null
check "a pipe" fails_with 1 'a ledger is a file, not a pipe or a device' build/audit "$work/pipe"
check "a pipe to write" fails_with 1 'a ledger is a file, not a pipe or a device' $gpt --steps 1 --ledger "$work/pipe"
check "no ledger" fails_with 1 'No such file' build/audit "$work/none"
if [ -w /dev/full ]; then
    check "a report on a full disk" fails_with 1 "standard output" sh -c "build/audit $a > /dev/full"
fi
check "no name" fails_with 2 'give the ledger first' build/audit
check "a wrong range" fails_with 2 'allowed is a step from 1, a range' build/audit "$a" --step 9-3
check "step 0" fails_with 2 'allowed is a step from 1, a range' build/audit "$a" --step 0
check "a negative step" fails_with 2 'allowed is a step from 1, a range' build/audit "$a" --step -5
check "a program that repeats nothing" fails_with 1 '/bin/true did not report that steps 0 to 4 are equal' \
    build/audit "$a" --step 3 --program /bin/true
check "a wrong key" fails_with 2 'a key is 64 hexadecimal digits' build/audit "$a" --key 12
check "not signed" fails_with 1 'record 0 is not signed' build/audit "$a" --key "$(printf '%064d' 0)"
check "--audit with another seed" fails_with 1 'states "option seed 1", but this run has "option seed 2"' \
    $gpt --steps 30 --audit "$a" --seed 2
check "--audit saves nothing" fails_with 2 'saves nothing' $gpt --audit "$a" --save "$work/x.st"
check "--audit and --ledger" fails_with 2 'exclude each other' $gpt --audit "$a" --ledger "$work/x"
check "--ledger-key alone" fails_with 2 'needs --ledger as well' $gpt --ledger-key "$work/x"
check "--audit-until alone" fails_with 2 'needs --audit as well' $gpt --audit-until 3
check "the ledger is not the data" fails_with 2 'ledger .*is also --data' $gpt --ledger "$work/text"
check "a ledger of another training" fails_with 1 'has no record of step 30' build/gpt --resume "$work/30.st" \
    --save "$work/x.st" --steps 40 --ledger "$work/every.ledger"
check "a file that is no ledger is not changed" fails_with 1 "record 0 does not begin as a record does" \
    $gpt --ledger "$work/other"
check "not by a byte" test "$(sed 's/a/b/' "$work/text" | cksum)" = "$(cksum < "$work/other")"

# ---- forged ledgers, whose hashes are computed again, and forged checkpoints ------------------------------------------
cat > "$work/forge.py" <<'END'
import hashlib, json, struct, sys
def load(path):
    bytes_, records, at = open(path, 'rb').read(), [], 0
    while at < len(bytes_):
        size, count = struct.unpack_from('<Q', bytes_, at + 16)[0], struct.unpack_from('<H', bytes_, at + 84)[0]
        text = at + 192 + 32 * count
        records.append([bytearray(bytes_[at:at + 192]), bytearray(bytes_[at + 192:text]), bytes_[text:at + size - 96]])
        at += size
    return records
def save(path, records):
    previous, out = bytes(32), b''
    for i, (head, digests, text) in enumerate(records):
        struct.pack_into('<Q', head, 16, 288 + len(digests) + len(text))
        struct.pack_into('<Q', head, 24, i)
        head[88:120] = previous
        head[184:192] = hashlib.sha256(head[:184]).digest()[:8]
        previous = hashlib.sha256(head + digests + text).digest()
        out += head + digests + text + previous + bytes(64)
    open(path, 'wb').write(out)
def put(record, at, kind, value): struct.pack_into(kind, record[0], at, value)
def copy(record): return [bytearray(record[0]), bytearray(record[1]), record[2]]
source, target, how = sys.argv[1:4]
if how == 'notes':
    data = open(source, 'rb').read()
    n = struct.unpack_from('<Q', data)[0]
    head = json.loads(data[8:8 + n])
    head['__metadata__'].update(a.split('=', 1) for a in sys.argv[4:])
    text = json.dumps(head).encode()
    text += b' ' * (-len(text) % 8)
    open(target, 'wb').write(struct.pack('<Q', len(text)) + text + data[8 + n:])
    sys.exit()
r = load(source)
if how == 'line': r[0][2] = r[0][2].replace(sys.argv[4].encode(), sys.argv[5].encode().decode('unicode_escape').encode())
elif how == 'after': r[-2][0][32:48] = struct.pack('<QQ', 2**64 - 1, 2**64 - 1); r[-1][0][32:48] = r[-2][0][32:48]
elif how == 'digest': r[int(sys.argv[4])][1][int(sys.argv[5])] ^= 1
elif how == 'field': put(r[int(sys.argv[4])], int(sys.argv[5]), '<B', 77)
elif how == 'replaced': # a false history, which a later run replaces
    r = [copy(x) for x in r[:-1]] + r
    r[2][1][0] ^= 1
elif how == 'again': # the last run has the options of the first one
    [x for x in r if x[0][12] == 1][-1][2] = r[0][2]
elif how == 'end': r[0][2] += b'\nmore\n'
save(target, r)
END
forge() { python3 "$work/forge.py" "$@"; }
f="$work/forged.ledger"
e="$work/every.ledger"
if command -v python3 > "$work/log"; then
    forge "$e" "$f" line nothing nothing
    check "the forger repeats a ledger" cmp "$e" "$f"
    cp "$work/text" "$work/victim"
    for note in option.plan= option.summary= option.profile= option.help= "option.json=$work/victim" \
        "option.timeline=$work/victim" "option.frontier=$work/victim" option.lr=0.5 option.steps=1; do
        forge "$work/30.st" "$work/n.st" notes "$note"
        check "a checkpoint with $note" equal '30 to 40' build/audit "$work/later.ledger" --step all --from "$work/n.st"
    done
    check "it overwrites no file" cmp "$work/text" "$work/victim"
    forge "$work/30.st" "$work/n.st" notes skipped=4
    check "a checkpoint that states skipped steps" fails_with 1 'record 0 has 30 batches, but the checkpoint was saved after 34' \
        build/audit "$work/later.ledger" --step all --from "$work/n.st"
    forge "$e" "$f" line 'contract' 'flag prompt x\ncontract'
    check "a flag that takes a value" fails_with 1 'states an option that an audit does not take: flag prompt' build/audit "$f" --step all
    forge "$e" "$f" line 'option seed 1' 'flag seed 1'
    check "a flag of another kind" fails_with 1 'does not take: flag seed' build/audit "$f" --step all
    forge "$e" "$f" line 'contract' 'option bf16 1\ncontract'
    check "an option that is a flag" fails_with 1 'does not take: option bf16' build/audit "$f" --step all
    forge "$e" "$f" line 'file data' 'file json x\nfile data'
    check "an unknown file" fails_with 1 'does not take: file json' build/audit "$f" --step all
    forge "$e" "$f" replaced
    check "a history that was replaced" fails_with 1 'record 2, step 2: the first tensor that differs' build/audit "$f" --step all
    forge "$e" "$f" after
    check "a step after the last one" fails_with 1 'record 6 is after step 6, the last that its run states' \
        build/audit "$f" --step all
    forge "$e" "$f" line 'tensor values 256x32 wte' 'tensor values 32x256 wte'
    check "a shape" fails_with 1 'states "tensor values 32x256 wte"' build/audit "$f" --step all
    forge "$e" "$f" end
    check "text after an empty line" fails_with 1 'record 0 states "", but this run has ""' build/audit "$f" --step all
    for at in 40 48 56 120; do
        forge "$e" "$f" field 0 $at
        check "byte $at of record 0" fails_with 1 'record 0 begins a training' build/audit "$f"
        forge "$e" "$f" field 7 $at
        check "byte $at of the end" fails_with 1 'record 7 ends another run' build/audit "$f"
    done
    forge "$e" "$f" line 'layers 2' 'layers \x1b[2J2'
    check "control characters in an option" fails_with 1 'does not take: option layers .x1b.2J2' build/audit "$f" --step all
    forge "$e" "$f" line 'loss mean' 'loss \x1b[2Jmean'
    check "control characters" says '^loss     .x1b.2Jmean' build/audit "$f"
fi

# ---- signatures, where libsodium is installed ------------------------------------------------------------------------
if $gpt --steps 4 --ledger "$work/s.ledger" --ledger-key "$work/key" > "$work/stdout" 2> "$work/stderr"; then
    key=$(sed -n 's/^ledger signed with the key \([0-9a-f]*\)$/\1/p' "$work/stdout")
    check "signed" equal '0 to 4' build/audit "$work/s.ledger" --step all --key "$key"
    check "by another key" fails_with 1 'is signed with another key' build/audit "$work/s.ledger" --key "$(printf '%064d' 1)"
    check "the secret key is not for others" test "$(ls -l "$work/key" | cut -c1-10)" = "-rw-------"
    size=$(wc -c < "$work/s.ledger")
    patch "$work/s.ledger" $((size - 3)) 55
    check "a wrong signature" fails_with 1 'record [0-9]* has a wrong signature' build/audit "$work/s.ledger"
    check "the key is not the file to save" fails_with 2 'save .*newkey: it is also --ledger-key' \
        $gpt --steps 1 --ledger "$work/n.ledger" --ledger-key "$work/newkey" --save "$work/newkey"
    check "nor the events" fails_with 2 'json .*newkey: it is also --ledger-key' \
        $gpt --steps 1 --ledger "$work/n.ledger" --ledger-key "$work/newkey" --json "$work/newkey"
    check "a new key for an old ledger" fails_with 1 'was begun without a key' \
        build/gpt --resume "$work/30.st" --steps 31 --save "$work/x.st" --ledger "$a" --ledger-key "$work/newkey"
    check "a ledger with a wrong key" fails_with 1 'is not a key' \
        $gpt --steps 1 --ledger "$work/n.ledger" --ledger-key README.md
    check "nothing remains" test ! -e "$work/newkey" -a ! -e "$work/n.ledger"
else
    check "without libsodium a key is refused" grep -q 'signing needs libsodium' "$work/stderr"
fi

# ---- interrupted, resumed, without space -----------------------------------------------------------------------------
build/gpt --resume "$work/30.st" --save "$work/r.st" --steps 36 --ledger "$a" > "$work/stdout" 2> "$work/stderr"
check "resumed: the ledger goes on" equal '30 to 36' build/audit "$a" --step all --from "$work/30.st"
check "resumed: steps of the second run need its checkpoint" fails_with 1 'step 36 is of a run with other options' \
    build/audit "$a" --step 35
build/gpt --resume "$work/30.st" --save "$work/r.st" --steps 34 --ledger "$a" --lr 0.01 > "$work/stdout" 2> "$work/stderr"
check "resumed twice from one checkpoint, with other options" equal '30 to 34' \
    build/audit "$a" --step 31-34 --from "$work/30.st"
check "all records are not compared then" \
    fails_with 1 '2 records of runs with other options were not compared, first record 12 of step 31; a later run' \
    build/audit "$a" --step all --from "$work/30.st"
check "nor from the seed" fails_with 1 'were not compared, first record 11 of step 30' build/audit "$a" --step all
$gpt --steps 6 --ledger "$work/aba.ledger" --save "$work/aba.st" > "$work/stdout"
build/gpt --resume "$work/aba.st" --steps 8 --lr 0.02 --ledger "$work/aba.ledger" > "$work/stdout"
cp "$work/aba.st" "$work/8.st"
build/gpt --resume "$work/aba.st" --steps 6 --lr 0.001 --ledger "$work/aba.ledger" > "$work/stdout"
build/gpt --resume "$work/aba.st" --steps 10 --lr 0.001 --ledger "$work/aba.ledger" > "$work/stdout"
check "runs with other options" \
    fails_with 1 'were not compared, first record .* of step 6; audit them from a checkpoint' build/audit "$work/aba.ledger" --step all
if command -v python3 > "$work/log"; then
    forge "$work/aba.ledger" "$f" again
    check "other options, then the first ones: no false alarm" \
        fails_with 1 'were not compared, first record .* of step 6; audit them from a checkpoint' build/audit "$f" --step all
fi
check "the last run" equal '8 to 10' build/audit "$work/aba.ledger" --step 9-10 --from "$work/8.st"
check "three runs" says ' 3 runs$' build/audit "$a"
$gpt --steps 100000 --ledger "$work/i.ledger" --save "$work/i.st" > "$work/i.out" 2>&1 &
child=$!
wait_for "$work/i.out" '^ledger a record'
check "a training that runs has no end" fails_with 1 'is missing, an end: the training is not finished' build/audit "$work/i.ledger"
check "unless it may" build/audit "$work/i.ledger" --unfinished
kill -INT $child
wait $child
step=$(sed -n 's/^end    \([0-9]*\) step.*/\1/p' "$work/i.out")
check "interrupted: the ledger has an end" build/audit "$work/i.ledger"
check "interrupted: it continues" build/gpt --resume "$work/i.st" --steps $((step + 3)) --ledger "$work/i.ledger"
cp "$work/30.st" "$work/f.st"
(
    trap '' XFSZ
    ulimit -f 24
    $gpt --steps 200 --ledger "$work/full.ledger" --ledger-every 1
) > "$work/stdout" 2> "$work/stderr"
(
    trap '' XFSZ
    $gpt --steps 10 --ledger "$work/kept.ledger" --ledger-every 1 --save "$work/kept.st"
    cp "$work/kept.st" "$work/before.st"
    ulimit -f 118
    build/gpt --resume "$work/kept.st" --steps 200 --ledger "$work/kept.ledger" --ledger-every 1
) > "$work/stdout" 2> "$work/kept"
check "a checkpoint with a record is not replaced by one without" cmp "$work/before.st" "$work/kept.st"
check "and that is said" grep -q -- '--save .*kept.st: not replaced, because this step has no record' "$work/kept"
check "the ledger goes on from it" build/gpt --resume "$work/kept.st" --steps 12 --ledger "$work/kept.ledger"
check "and is whole" build/audit "$work/kept.ledger"
check "a full disk ends the training" grep -q -- '--ledger .*full.ledger: File too large; its [0-9]* records are whole' "$work/stderr"
check "and leaves whole records" build/audit "$work/full.ledger" --unfinished

# ---- fine-tuning ---------------------------------------------------------------------------------------------------
build/finetune --new 2x32x2x32 --model "$work/model" > "$work/stdout"
tune="build/finetune --model $work/model $text --batch 4 --eval-every 0 --threads 1 --method lora --size 2"
plain=$(hash_of $tune --steps 12)
with=$(hash_of $tune --steps 12 --ledger "$work/t.ledger" --ledger-every 3 --save "$work/tuned" --save-every 6)
check "finetune: a ledger changes no weight" test -n "$plain" -a "$plain" = "$with"
check "finetune: from its model" equal '0 to 12' build/audit "$work/t.ledger" --step all --micro-batch 1 --threads 2
check "finetune: resumed" build/finetune --resume "$work/tuned" --steps 18 --ledger "$work/t.ledger" --save "$work/more"
check "finetune: from a checkpoint" equal '12 to 18' build/audit "$work/t.ledger" --step all \
    --from "$work/tuned/training.safetensors" --budget 900K
build/finetune --new 2x32x2x32 --seed 2 --model "$work/changed" > "$work/stdout"
check "finetune: another model" fails_with 1 'record 0, step 0: the first tensor that differs is values 257x32 wte.weight' \
    build/audit "$work/t.ledger" --step 3 --model "$work/changed"
awk 'BEGIN { for (i = 0; i < 20; i++) printf("{\"prompt\": \"%d=\", \"chosen\": \"%d\", \"rejected\": \"no %d\"}\n", i, i, i) }' \
    > "$work/pairs.jsonl"
check "dpo" build/finetune --model "$work/model" --objective dpo --data "$work/pairs.jsonl" --steps 4 --batch 2 \
    --eval-every 0 --ledger "$work/d.ledger" --ledger-every 2
check "dpo: equal" equal '0 to 4' build/audit "$work/d.ledger" --step all --micro-batch 1
check "finetune: data from a pipe" fails_with 2 'reads --data again' $tune --data - --ledger "$work/x"
check "--method all" fails_with 2 'method all trains several times' $tune --method all --save "$work/all" --ledger "$work/x"
check "finetune: --from a folder" equal '12 to 18' build/audit "$work/t.ledger" --step all --from "$work/tuned"
build/finetune --model "$work/model" --data "$work/pairs.jsonl" --objective dpo --steps 2 --batch 2 --eval-every 0 \
    --ledger "$work/c.ledger" --save "$work/c" > "$work/stdout"
check "finetune: resumed with the same options" build/finetune --resume "$work/c" --steps 2 --ledger "$work/c.ledger"
check "finetune: its context is the same" equal '0 to 2' build/audit "$work/c.ledger" --step all
check "finetune: data from another pipe" fails_with 2 'give a file instead of a pipe' $tune --data "$work/pipe" --ledger "$work/x"
cp -R "$work/tuned" "$work/forged"
if command -v python3 > "$work/log"; then
    forge "$work/tuned/training.safetensors" "$work/forged/training.safetensors" notes position=8
    check "finetune: a checkpoint at another row" \
        fails_with 1 'has 12 batches, but the checkpoint was saved after 2' \
        build/audit "$work/t.ledger" --step all --from "$work/forged"
    forge "$work/tuned/training.safetensors" "$work/forged/training.safetensors" notes "option.model=$work/changed"
    check "finetune: a checkpoint that names another model" equal '12 to 18' \
        build/audit "$work/t.ledger" --step all --from "$work/forged"
fi
check "finetune: other frozen weights" fails_with 1 'step 12: the first tensor that differs is values 257x32 wte.weight' \
    build/audit "$work/t.ledger" --step all --from "$work/tuned" --model "$work/changed"
report test_audit
