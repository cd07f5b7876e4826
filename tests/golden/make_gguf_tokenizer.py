#!/usr/bin/env python3
"""Writes tests/golden/gguf_tokenizer/: two small tokenizers as GGUF files, and the tokens that the tokenizers package
gives texts with the same tokenizers in the forms of model families. The gguf package writes the files, with the keys
that llama.cpp's convert_hf_to_gguf.py gives such models (get_vocab_base, _create_vocab_sentencepiece). Versions:
tokenizers 0.23, transformers 5.23, sentencepiece 0.2.3, gguf 0.19.

    python3 tests/golden/make_gguf_tokenizer.py
    python3 tests/golden/make_gguf_tokenizer.py DIR N [SEED]    DIR/K/model.gguf and cases.jsonl for 40 random ones,
                                                                N texts each (then build/test_gguf_tokenizer DIR/*)

bpe.gguf is byte-level BPE, spm.gguf SentencePiece's; other forms use the same file with some keys that the test
changes. Each line of bpe.jsonl and spm.jsonl is one of
    {"text" or "hex": .., "ids": [..], "plain": [..], "template": [..]}
        tokens by the unchanged file, as in tokenizer/cases.jsonl; FORM ids, FORM plain and FORM template are the tokens
        by another form, if they differ from "ids"
    {"decode": [..], "text": ..}    by the unchanged file"""
import io
import json
import os
import random
import sys
import tempfile
import gguf
import sentencepiece
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

TO = sys.argv[1] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_tokenizer")
N = int(sys.argv[2]) if len(sys.argv) > 2 else 0
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 33
with tempfile.TemporaryDirectory() as scratch:  # imports its texts and designs; its output is discarded
    sys.argv = ["make_tokenizer.py", scratch, "0", "1"]
    import make_tokenizer as mt
random.seed(SEED)
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def looks_special(text):
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or text.startswith("<|") and text.endswith("|>")


# == byte-level ====================================================================================
PRES = {  # tokenizer.ggml.pre: (normalizer, pre_tokenizer, ignore_merges)
    "gpt-2": (None, mt.byte_level(), False),
    "llama-bpe": (None, mt.sequence("pretokenizers", mt.split(mt.LLAMA3), mt.byte_level(regex=False)), True),
    "qwen2": ({"type": "NFC"}, mt.sequence("pretokenizers", mt.split(mt.QWEN2), mt.byte_level(regex=False)), False),
    "gpt-4o": (None, mt.sequence("pretokenizers", mt.split(mt.EXPRESSIONS[0]), mt.byte_level(regex=False)), False),
    "tekken": (None, mt.sequence("pretokenizers", mt.split(mt.EXPRESSIONS[1]), mt.byte_level(regex=False)), True),
    "qwen35": ({"type": "NFC"}, mt.sequence("pretokenizers", mt.split(mt.EXPRESSIONS[2]), mt.byte_level(regex=False)), False),
    "smollm": (None, mt.sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, mt.byte_level()), False),
}


def byte_form(made, pre, begins=False, ends=False):
    ids = made["model"]["vocab"] | {one["content"]: one["id"] for one in made["added_tokens"]}
    normalizer, splitter, whole = PRES[pre]
    after = mt.template(ids, [BOS] if begins else [], [EOS] if ends else [])
    return made | {"normalizer": normalizer, "pre_tokenizer": splitter, "model": made["model"] | {"ignore_merges": whole},
                   "post_processor": after if begins or ends else None}


def byte_keys(made, size):
    """Returns the keys as get_vocab_base computes them, with `size` tokens."""
    of = Tokenizer.from_str(json.dumps(made | {"post_processor": None}))
    names = {number: name for name, number in of.get_vocab().items()}
    added = {one["id"]: one for one in made["added_tokens"]}
    tokens, types = [], []
    for i in range(size):
        text, kind = names.get(i, f"[PAD{i}]"), NORMAL if i in names else UNUSED
        if i in added:
            text = of.decode(of.encode(text).ids, skip_special_tokens=False)
            kind = CONTROL if added[i]["special"] or looks_special(text) else USER
            text = text.replace("▁", " ") if kind == USER else text
        tokens.append(text)
        types.append(kind)
    return tokens, types


def write_byte(path, made, pre, more, filler=0):
    tokens, types = byte_keys(made, Tokenizer.from_str(json.dumps(made)).get_vocab_size() + filler)
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in made["model"]["merges"]])
    w.add_bos_token_id(tokens.index(BOS))
    w.add_eos_token_id(tokens.index(EOS))
    finish(w, more)


def finish(w, more):
    for name, value in more.items():
        getattr(w, "add_" + name)(value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


# == SentencePiece =================================================================================
def train(size, users, controls, texts):
    """Trains a model; returns text, score and kind of each piece."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["".join(c for c in text if c in " \n" or c in mt.CHARACTERS) for text in texts]), model_writer=out, model_type="bpe", vocab_size=size, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=users, control_symbols=controls, split_digits=True, hard_vocab_limit=False,
        allow_whitespace_only_pieces=True, minloglevel=2)
    of = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    kind = lambda i: UNKNOWN if of.is_unknown(i) else CONTROL if of.is_control(i) else BYTE if of.is_byte(i) else NORMAL
    return [(of.id_to_piece(i), of.get_score(i), kind(i)) for i in range(of.vocab_size())]


def spm_form(pieces, added, form, begins=True, ends=False):
    """Returns a tokenizer.json as Hugging Face converts such a model. form: prepend (Llama 2), first (Mistral) or
    never (Gemma)."""
    ids = {text: i for i, (text, _, _) in enumerate(pieces)}
    scores = {text: score for text, score, _ in pieces}
    merges = generate_merges(ids, scores)
    for one in added:
        ids.setdefault(one["content"], len(ids))
    normalizer, splitter = mt.replace(" ", "▁"), None
    if form == "prepend":
        normalizer = mt.sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, normalizer)
    elif form == "first":
        normalizer, splitter = None, mt.metaspace("first", True)
    after = mt.template(ids, ["<s>"] if begins else [], ["</s>"] if ends else [])
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": ids[one["content"]], **one} for one in sorted(added, key=lambda a: ids[a["content"]])],
            "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": after if begins or ends else None,
            "decoder": mt.sequence("decoders", *mt.SPM_DECODER, *([] if form == "never" else [mt.STRIP])),
            "model": {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "ignore_merges": False, "vocab": ids, "merges": [list(m) for m in merges]} | mt.SPM}


def write_spm(path, pieces, made, more, scored=True, filler=0):
    """Writes keys as _create_vocab_sentencepiece does, with the added tokens of `made` as added_tokens_decoder; if
    not scored, as LlamaHfVocab does without a tokenizer.model."""
    tokens, scores, types = map(list, zip(*pieces))
    for one in made["added_tokens"]:
        if one["id"] == len(tokens):
            tokens.append(""), scores.append(0.0), types.append(UNUSED)
        text, i = one["content"], one["id"]
        if text == "<unk>":
            continue
        types[i] = CONTROL if one["special"] or looks_special(text) else USER
        tokens[i] = text if types[i] == CONTROL else text.replace("▁", " ")
        scores[i] = -1000.0
    for i in range(len(tokens), len(tokens) + filler):
        tokens.append(f"[PAD{i}]"), scores.append(-10000.0), types.append(UNUSED)
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_scores(scores if scored else [-1000.0] * len(tokens))
    w.add_token_types(types)
    w.add_bos_token_id(tokens.index("<s>"))
    w.add_eos_token_id(tokens.index("</s>"))
    w.add_unk_token_id(tokens.index("<unk>"))
    finish(w, more)


# == texts =========================================================================================
def some_texts(count, specials):
    marks = specials + [part for one in specials for part in (" " + one, one + " ", one[:-1])]
    return [b"", b" ", "  ▁ ▁▁".encode(), "♞".encode(), b"!...!\n\n\n\n\n", mt.TEXT[:100].encode(),
            " ".join(specials).encode()] + [mt.hostile(marks) for _ in range(count)]


def write_cases(path, forms, texts, most=20):
    """forms: {name: tokenizer.json}; the first form is that of the unchanged file."""
    of = {name: Tokenizer.from_str(json.dumps(made)) for name, made in forms.items()}
    first = next(iter(of))
    with open(path, "w", encoding="utf-8") as out:
        for data in texts:
            string = data.decode("utf-8", errors="replace")
            case = {"text": string} if string.encode() == data else {"hex": data.hex()}
            case["ids"] = of[first].encode(string, add_special_tokens=False).ids
            for name, one in of.items():
                before = "" if name == first else name + " "
                others = {"ids": one.encode(string, add_special_tokens=False).ids}
                if len(data) < most:
                    others["template"] = one.encode(string).ids
                one.encode_special_tokens = True
                others["plain"] = one.encode(string, add_special_tokens=False).ids
                one.encode_special_tokens = False
                case |= {before + key: ids for key, ids in others.items() if ids != case["ids"]}
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
        for _ in range(len(texts) // 5):
            ids = [random.randrange(of[first].get_vocab_size()) for _ in range(random.randint(1, 8))]
            out.write(json.dumps({"decode": ids, "text": of[first].decode(ids, skip_special_tokens=False)},
                                 ensure_ascii=False, separators=(",", ":")) + "\n")


def write_random(folder, k):
    global BOS, EOS
    random.seed(SEED * 1000 + k)  # each design sets the seed again
    os.makedirs(folder, exist_ok=True)
    begins, ends = random.random() < 0.6, random.random() < 0.3
    more = {"add_bos_token": begins, "add_eos_token": ends}
    filler = random.choice([0, 0, 3])
    if random.random() < 0.5:
        BOS, EOS = "<|begin|>", "<|end|>"
        some = random.sample([mt.token("the", False), mt.token("<think>", False), mt.token("e\u0301t", False),
                              mt.token("\n\n", False), mt.token(" a", False), mt.token("[X]"), mt.token("<|x|>")], 3)
        made = mt.design(random.choice([330, 400, 450]), random.choice([[], ["♞"], ["<|end|>"]]),
                         [mt.token(BOS), mt.token(EOS)] + some, None, None, mt.byte_level(True), None,
                         [c for c in mt.LETTERS if random.random() < random.choice([1, 0.97])], None,
                         random.choice([mt.byte_level(), mt.LINES]))
        made = mt.drop_merges(made, 7) if random.random() < 0.5 else made
        pre = random.choice(list(PRES))
        write_byte(folder + "/model.gguf", made, pre, more, filler)
        made, specials = byte_form(made, pre, begins, ends), [one["content"] for one in made["added_tokens"]]
    else:
        form = random.choice(["prepend", "first", "never"])
        users = random.sample(["▁▁", "▁▁▁", "▁▁▁▁", "\n", "\n\n", "<b>", "the", "▁a", "é"], random.randint(0, 9))
        texts = mt.TEXT.split("\n") + [mt.hostile(["x = 20;\n"]).decode("utf-8", "replace") for _ in range(300)]
        pieces = train(random.choice([420, 500, 700]), users, ["[INST]", "[/INST]"] if form == "first" else [], texts)
        added = [mt.token("<unk>"), mt.token("<s>"), mt.token("</s>")] + [mt.token(one, False) for one in users]
        added += [mt.token("[INST]"), mt.token("[/INST]")] if form == "first" else []
        added += random.choice([[], [mt.token("<|turn|>"), mt.token("<x>", False)]])
        made = spm_form(pieces, added, form, begins, ends)
        write_spm(folder + "/model.gguf", pieces, made, more | {"add_space_prefix": form != "never"},
                  users or random.random() < 0.7, filler)
        specials = [one["content"] for one in added]
    random.seed(SEED * 1000 + k)
    write_cases(folder + "/cases.jsonl", {"": made}, some_texts(N, specials))


if N > 0:
    for k in range(40):
        write_random(f"{TO}/{k}", k)
else:
    os.makedirs(TO, exist_ok=True)
    BOS, EOS = "<|begin|>", "<|end|>"
    base = mt.design(400, ["♞"], [mt.token(BOS), mt.token(EOS), mt.token("<think>", False), mt.token("\n\n\n", False)], None,
                     None, mt.byte_level(True), None, mt.LETTERS)
    base = mt.drop_merges(base, 5)
    write_byte(TO + "/bpe.gguf", base, "llama-bpe", {"add_bos_token": True, "eot_token_id": base["added_tokens"][2]["id"]}, 2)
    chosen = some_texts(16, [one["content"] for one in base["added_tokens"]])
    write_cases(TO + "/bpe.jsonl", {"llama-bpe": byte_form(base, "llama-bpe", True)} |
                {pre: byte_form(base, pre, pre == "gpt-2", pre == "gpt-2") for pre in (*PRES,) if pre != "llama-bpe"}, chosen)
    random.seed(SEED)
    lines = mt.TEXT.split("\n") + [mt.hostile(["x = 20;\n"]).decode("utf-8", "replace") for _ in range(300)]
    symbols = ["▁▁", "▁▁▁", "\n\n", "<b>"]
    pieces = train(480, symbols, ["[INST]"], lines)
    extra = [mt.token("<unk>"), mt.token("<s>"), mt.token("</s>"), mt.token("[INST]"), mt.token("<x>", False)]
    extra += [mt.token(one, False) for one in symbols]
    made = {form: spm_form(pieces, extra, form, True, form == "never") for form in ("first", "prepend", "never")}
    for one in made["prepend"]["added_tokens"]:
        one["special"] &= one["content"] != "[INST]"  # by this the test tells the forms prepend and first apart
    write_spm(TO + "/spm.gguf", pieces, made["first"], {"add_space_prefix": True, "add_bos_token": True}, True, 2)
    chosen = some_texts(16, [one["content"] for one in extra])
    write_cases(TO + "/spm.jsonl", made, chosen)
