#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: a small byte-level BPE tokenizer as tokenizer.json and as vocab.json and
merges.txt; cases.jsonl, the tokens that the tokenizers package (0.23 was used) gives many texts with it; and
in subfolders the same for small tokenizers in the form of each family of models.

    python3 tests/golden/make_tokenizer.py
    python3 tests/golden/make_tokenizer.py DIR N [SEED]    all of them in DIR, and 40 of random form: N texts
                                                           each (then build/test_tokenizer DIR/*)

A line of cases.jsonl is one of
    {"text" or "hex": .., "ids": [..], "plain": [..], "files": [..]}
        the tokens of a text by tokenizer.json; with special tokens read as ordinary text; by the two other
        files (if these differ from "ids"). Bytes that are not UTF-8 are in hexadecimal.
    {"text": .., "ids": [..], "template": [..]}    with the tokens of the template as well
    {"decode": [..], "text": ..}    the text of tokens, with U+FFFD for bytes that are not UTF-8
    {"step": I, "sizes": [..], "text": ..}    bytes of each piece after step I of the pre-tokenizers
    {"classes": [..], "hash": ..}   letters, numbers and spaces of all code points; FNV-1a of the classes
    {"composed": N, "hash": ..}     code points that NFC changes; FNV-1a of the code points that each becomes"""
import base64
import collections
import io
import json
import math
import os
import random
import sys
import sentencepiece
from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer") if len(sys.argv) < 3 else sys.argv[1]
TEXT = """A model that is too large for the memory is trained by keeping some activations and computing
the others again. It's what checkpointing does: we've fewer bytes, they're paid for in time, and you'll
see that the gradient isn't changed. The planner keeps what is dear and recomputes what is cheap. Don't
measure once; I'd measure the time of a step again and again, for I'm told that's how it's done.
    for (int i = 0; i < 1024; i++)
        sum += weights[i] * inputs[i];
In 2016 and in 2024 the same numbers: 1, 10, 100, 1000, 0.125 and 3.14159.
Ein Modell, das zu groß für den Speicher ist, wird trotzdem trainiert. Où est la mémoire? Está aquí.
Модель обучается в пределах памяти. Память ограничена, время тоже. 模型的内存不够用。机器学习需要内存。
メモリが足りないモデルを学習する。 모델이 메모리보다 크다. المعلم يقرأ الكتاب. המורה קורא את הספר.
four\r\n\r\n\r\n\r\nlines\v\v\v\f\f\fend\u00a0\u00a0\u00a0\u00a0.\t\t\t\t+
""" * 3

# == the tokenizer =================================================================================
added = [("<|endoftext|>", True, False), ("<|user|>", True, False), ("<|user|>:", False, False),
         ("|><|", False, False), ("sum +=", False, True), ("user", False, True), ("é", False, False)]
hf = Tokenizer(models.BPE())
hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
hf.decoder = decoders.ByteLevel()
hf.post_processor = processors.ByteLevel(trim_offsets=False)
hf.train_from_iterator([TEXT], trainers.BpeTrainer(
    vocab_size=600, min_frequency=1, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
HERE += "/gpt2" if len(sys.argv) > 2 else ""
os.makedirs(HERE, exist_ok=True)
hf.model.save(HERE)
files = Tokenizer(models.BPE.from_file(HERE + "/vocab.json", HERE + "/merges.txt"))
files.pre_tokenizer, files.decoder = hf.pre_tokenizer, hf.decoder
files.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
for text, special, normalized in added:
    token = AddedToken(text, normalized=normalized, special=special)
    (hf.add_special_tokens if special else hf.add_tokens)([token])
hf.save(HERE + "/tokenizer.json", pretty=False)

# == texts =========================================================================================
texts = [b"", TEXT[:700].encode(), TEXT[700:1000].encode()]
for text in ["don't I'm they're we've you'll she'd it's", "DON'T I'M THEY'RE WE'VE YOU'LL SHE'D IT'S",
             "'s't're've'm'll'd", "' s 'sx 'rex 'r 'v 'l x's 's", "don\u2019t it\u2019s", "''s !'s 1's",
             "a b  c   d    e", "  lead", "trail  ", " ", "  ", "   ", "\n", "\n\n", "a\n\nb", "a \n b",
             "\t\tx", "\r\nx\r\n", "x\r\n\r\n\r\ny", "\v\v x\f\f", " \t \n ", "x\u00a0y", "x\u00a0\u00a0y", "x \u00a0y", "x\u00a0 y",
             "\u3000x", "x\u2028y", "\u2003\u2003x", "\u1680x", "\u202fx\u205f", "\x85x", "\x1cx\x1f",
             "\u200bx\u200b", "\ufeffx", "\u180ex", "\x00x\x00", "1234567890", "x1y2 3z", "1 2  3",
             "٣٤٥ ५६७ ৪৫", "½ ¾ Ⅷ ⅷ ② ㉑ ²³", "\U0001d7d8\U0001d7d9", "e\u0301te\u0301", "\u0301\u0301x",
             "नमस्ते दुनिया", "ภาษาไทย", "தமிழ்", "Ελληνικά ΆΈ", "Ωmega", "ǅ ʰ ª º", "ẞ ß", "ﬁ ﬀ",
             "👨‍👩‍👧‍👦 family", "👍🏽👍🏿", "🇩🇪🇫🇷", "❤️ ☺️", "1️⃣ #️⃣", "🏴\U000e0067\U000e0062\U000e007f",
             "\U0001f600x\U0001f600", "\U00020000\U0002a6df", "\U0001e900\U0001e922", "\U00010d40",
             "\u1c89\ua7cb\U000105c0", "\ue000\U000f0000\U0010ffff", "\ufffd", "\uffff\ufffe", "\u0378",
             "#$%&*()[]{}", "a.b,c;d:e", "http://x.org/a_b?c=d&e=%20", "x += 1; // sum", "_a_ __b__",
             "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>",
             "<|endoftext|", "<|endoftext|>|>", "<|user|>", "<|user|>:", "<|user|>: hi", "<|user|><|user|>",
             "x|><|y", "<|user|><|endoftext|>", "sum += user", "the sum +=1", "asum +=", "user<|user|>user",
             "users", "é", "né", "née\u0301", "u\u0301ser", "a" * 70, "ab" * 40, "the" * 30, "ма" * 30,
             " " * 40 + "x", "\n" * 30, "'" * 30, "0" * 40, "-" * 40, "ä" * 30, "学" * 20]:
    texts.append(text.encode())
texts += [b"\xff", b"a\x80b", b"\xc3", b"\xc3x", b"\xc0\x80", b"\xe2\x82", b"\xe2\x82x", b"\xe0\x80\x80",
          b"\xed\xa0\x80", b"\xed\xa0\x80\xed\xb0\x80", b"\xf0\x9f\x98", b"\xf0\x9f\x98x", b"\xf0\x80\x80\x80",
          b"\xf4\x90\x80\x80", b"\xf5x", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41",
          b"the \xfeend", b" \x80", b"<|end\xffoftext|>", b"\xef\xbf", b"x\xc3\xa9\xc3"]
random.seed(13)


def character(low, high):
    while True:
        code = random.randrange(low, high)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


blocks = [(32, 127), (32, 127), (0, 256), (0x300, 0x370), (0x370, 0x600), (0x900, 0x1000), (0x2000, 0x2070),
          (0x2070, 0x2c00), (0x3000, 0x3200), (0x4e00, 0xa000), (0xac00, 0xd7a4), (0, 0x3000), (0xa000, 0x10000),
          (0x10000, 0x1f000), (0x1f000, 0x1fb00), (0, 0x110000)]
pieces = [" ", "  ", "\n", "\t", "\u00a0", "'s", "'ll", "'RE", "the", " the", " a", "1", "20", "user",
          "<|endoftext|>", "<|user|>", "|><|", "sum +=", "é", " память", "内存", "学", "!", "..."]
for _ in range(350):
    chosen = random.sample(blocks, 2)
    text = "".join(character(*random.choice(chosen)) if random.random() < 0.5 else random.choice(pieces)
                   for _ in range(random.randint(2, 14))).encode()
    if random.random() < 0.2:
        at = random.randrange(len(text))
        text = text[:at] + bytes([random.randrange(128, 256)]) + text[at + random.randint(0, 2):]
    texts.append(text)

# == expected results ==============================================================================
with open(HERE + "/cases.jsonl", "w", encoding="utf-8") as out:
    def line(value):
        out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    for text in texts:
        string = text.decode("utf-8", errors="replace")
        case = {"text": string} if string.encode() == text else {"hex": text.hex()}
        case["ids"] = hf.encode(string).ids
        hf.encode_special_tokens = True
        others = {"plain": hf.encode(string).ids, "files": files.encode(string).ids}
        hf.encode_special_tokens = False
        line(case | {key: ids for key, ids in others.items() if ids != case["ids"]})
    for _ in range(100):
        ids = [random.choice([random.randrange(hf.get_vocab_size()), random.randrange(1, 257)])
               for _ in range(random.randint(1, 8))]
        line({"decode": ids, "text": hf.decode(ids, skip_special_tokens=False)})
    counts, hashed = [0, 0, 0], 0xcbf29ce484222325
    for code in range(0x110000):
        kind = 0
        if not 0xD800 <= code < 0xE000:
            joins = [len(hf.pre_tokenizer.pre_tokenize_str(c + chr(code))) == 1 for c in "a1!"]
            kind = 1 if joins[0] else 2 if joins[1] else 0 if joins[2] else 3
        if kind:
            counts[kind - 1] += 1
        hashed = (hashed ^ kind) * 0x100000001b3 % 2**64
    line({"classes": counts, "hash": f"{hashed:016x}"})

# == hostile texts =================================================================================
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\n\r\n", "\v", "\f", "\x1c", "\x85", "\u00a0", "\u1680",
          "\u180e", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", "▁", "▁▁"]
WORDS = ["'s", "'S", "'ll", "'LL", "'lL", "'Re", "'re", "'ve", "'VE", "'d", "'M", "'t", "'\u017f", "'x", "''s", "\u2019s",
         "the", " the", "Don't", "DON'T", "memory", " память", "内存", "学", "モデル", "größer", "0", "12", "123", "1234", " 7",
         "٣٤٥", "५६", "½", "²", "Ⅷ", "\U0001d7d8", "\U00011de1", "\U00016ff4", "!", "...", "(", ")\n", "\"\r\n",
         "<0x0A>", "<0xE2>", "<unk>", "\x00", "\x7f", "\ufffd", "\uffff", "\U0010ffff"]
MARKS = ["e\u0301", "e\u0301t", "\u00e9", "A\u030a", "\u212b", "\u00c5", "a\u0323\u0302", "a\u0305\u0301", "\u1100\u0301\u1161", "a\u0302\u0323", "\u1ead", "\u0344",
         "\u0340", "\u0374", "\u037e", "\u0387", "q\u0307\u0323", "\u0301", "\u0323", "\u0345", "\u03b1\u0345\u0313", "\u0958",
         "\u0928\u093c", "\u09c7\u09be", "\u0b47\u0b56", "\u0f71\u0f72\u0f74", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8",
         "\uac01\u11a8", "\u1161\u11a8", "\u1112\u1175\u11c2", "가", "모델", "\u2126", "\uf900", "\ufb1f", "\ufb2c", "\u2adc",
         "\U0001d15e", "\U0001d160", "\U00011099\U000110ba", "\U0002f800", "か\u3099", "は\u309a", "ガ", "\u0cc6\u0cc2\u0cd5",
         "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪🇫🇷", "❤\ufe0f", "1\ufe0f\u20e3", "\U0001f600"]


def hostile(specials):
    lists = [SPACES, WORDS, MARKS, specials, "abcdeithno", [character(*random.choice(blocks)) for _ in range(3)]]
    chosen = random.sample(lists, random.randint(1, 4))
    text = "".join(random.choice(random.choice(chosen)) for _ in range(random.choice([3, 3, 6, 6, 12])))
    text = text * random.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 3])
    if random.random() < 0.02:  # more combining marks in a row than insertion sort handles
        text += "".join(chr(random.choice([0x301, 0x323, 0x345, 0x31b, 0x5b0, 0x3099, 0x334])) for _ in range(24))
    data = text.encode()
    if random.random() < 0.1 and data:
        at = random.randrange(len(data))
        data = data[:at] + bytes([random.randrange(128, 256)]) + data[at + random.randint(0, 2):]
    return data


# == the families ==================================================================================
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(what, by):
    return {"type": "Replace", "pattern": {"String": what}, "content": by}


def metaspace(scheme, whole):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": not whole}


def token(content, special=True, normalized=False, lstrip=False, rstrip=False):
    return {"content": content, "single_word": False, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special}


def template(ids, before, behind=()):
    parts = [[{"SpecialToken": {"id": name, "type_id": 0}} for name in names] for names in (before, behind)]
    single = parts[0] + [{"Sequence": {"id": "A", "type_id": 0}}] + parts[1]
    specials = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *behind)}
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": specials}


def design(size, first, added, normalizer, splitter, decoder, after, alphabet=None, model=None, unlike=None):
    """Returns a tokenizer.json. It is trained to `size` tokens, which begin with `first`, with another
    pre-tokenizer (`unlike`) than its own, so that a test shows where its own one splits. `added` are tokens
    of token(); those that are not in the vocabulary get the ids after it."""
    trained = Tokenizer(models.BPE())
    helper = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": unlike or LINES, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []}}))
    trained.pre_tokenizer = helper.pre_tokenizer
    random.seed(len(added))
    texts = [hostile(["1234", "x = 20;\n"]).decode("utf-8", errors="replace") for _ in range(500)]
    trained.train_from_iterator([TEXT] + texts, trainers.BpeTrainer(
        vocab_size=size, min_frequency=1, special_tokens=first, show_progress=False,
        initial_alphabet=alphabet or CHARACTERS, limit_alphabet=len(alphabet or CHARACTERS)))
    of = json.loads(trained.to_str())["model"]
    ids = dict(of["vocab"])
    for one in added:
        ids.setdefault(one["content"], len(ids))
    of |= {"dropout": None, "unk_token": None, "byte_fallback": False, "fuse_unk": False, "ignore_merges": False}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": ids[one["content"]], **one} for one in added], "normalizer": normalizer,
            "pre_tokenizer": splitter, "post_processor": after and after(ids), "decoder": decoder,
            "model": of | (model or {})}


def drop_merges(made, every):
    made["model"]["merges"] = [m for i, m in enumerate(made["model"]["merges"]) if i % every]
    return made


LINES = sequence("pretokenizers", {"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False},
                 byte_level(False, False))
CHARACTERS = sorted(set(c for c in TEXT if ord(c) < 0x500 and c != " ") |
                    set("▁\u0301\u0323\u1100\u1161가内存学👨\u200d\u00e1\u1ea1"))
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
KNOWN = [c for c in LETTERS if c not in "ÀÁõö÷øùúûüýþÿ"]  # without the bytes that never occur in UTF-8
SPM = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
SPM_DECODER = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BEFORE = ["<unk>", "<s>", "</s>"]
families = {
    "llama3": drop_merges(design(
        420, ["♞"], [token("<|begin_of_text|>"), token("<|eot_id|>"), token("<|reserved_special_token_0|>"),
                  token("<|start_header_id|>")], None,
        sequence("pretokenizers", split(LLAMA3), byte_level(regex=False)), byte_level(True),
        lambda ids: sequence("processors", byte_level(True), template(ids, ["<|begin_of_text|>"])),
        LETTERS, {"ignore_merges": True}), 5),
    "qwen2": design(
        420, [], [token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>"), token("<think>", False),
                  token("e\u0301t", False, True), token("Å", True, True)], {"type": "NFC"},
        sequence("pretokenizers", split(QWEN2), byte_level(regex=False)), byte_level(),
        lambda ids: byte_level(), LETTERS),
    "smollm2": design(
        420, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        [token("<|endoftext|>"), token("<|im_start|>"), token("<|im_end|>"), token("<jupyter>", True, False, True)],
        None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()), byte_level(),
        None, KNOWN),
    "llama2": design(
        520, BEFORE + BYTES, [token("<unk>"), token("<s>"), token("</s>"), token("<pad>", True, True),
                              token("the", False, True, False, True)],
        sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), None,
        sequence("decoders", *SPM_DECODER, STRIP), lambda ids: template(ids, ["<s>"]), None, SPM,
        metaspace("always", False)),
    "mistral": design(
        520, BEFORE + BYTES, [token("<unk>"), token("<s>"), token("</s>"), token("[INST]"), token("[/INST]")],
        None, metaspace("first", True), sequence("decoders", *SPM_DECODER, STRIP),
        lambda ids: template(ids, ["<s>"], ["</s>"]), None, SPM, metaspace("always", False)),
    "gemma": design(
        520, ["<pad>", "<eos>", "<bos>", "<unk>"] + BYTES + ["▁▁", "▁▁▁", "\n\n"],
        [token("<pad>"), token("<eos>"), token("<bos>"), token("<unk>"), token("<start_of_turn>"),
         token("<end_of_turn>"), token("\n\n", False), token("▁▁", False), token("▁▁▁", False)],
        replace(" ", "▁"), {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                            "invert": False},
        sequence("decoders", *SPM_DECODER), lambda ids: template(ids, ["<bos>"]), None, SPM,
        metaspace("never", False)),
}
families["odd"] = drop_merges(design(  # has every feature that the others lack
    440, BEFORE + BYTES[:0xc3] + BYTES[0xd0:0xe2],
    [token("<s>", True, False, True, True), token("ab", False, False, False, True), token("n", False, True, True),
                         token("e\u0301", True, True), token("☃")],
    sequence("normalizers", {"type": "NFC"}, replace("th", "x y"), replace("\u200b", ""),
             {"type": "Prepend", "prepend": "e"}),
    sequence("pretokenizers", metaspace("always", False), {"type": "Digits", "individual_digits": False},
             {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False},
             {"type": "Split", "pattern": {"String": "e"}, "behavior": "MergedWithNext", "invert": False}),
    sequence("decoders", *SPM_DECODER[:2]), lambda ids: template(ids, ["<s>", "<unk>"], ["</s>", "<s>"]), None,
    SPM | {"fuse_unk": False}, metaspace("always", True)), 9)
families["prefix"] = design(
    400, BEFORE, [token("<s>", True, False, True, True), token("ab", False, True)], None,
    sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, split(GPT2), byte_level(True, True)),
    byte_level(), None, [c for c in KNOWN if c not in ".!\"0"], {"unk_token": "<unk>", "fuse_unk": True})


def frequent(words, count, mark=""):
    """Returns the `count` most frequent parts of words, of up to 6 characters, with `mark` before those that do not
    begin a word."""
    parts = collections.Counter()
    for word in words:
        parts.update((mark if at else "") + word[at:end] for at in range(len(word))
                     for end in range(at + 1, min(at + 7, len(word) + 1)))
    return sorted(parts, key=lambda part: (-parts[part], part))[:count]


def wordpiece(size, normalizer, splitter, after, mask, model=None):
    """Returns a tokenizer.json with the model WordPiece, as design() does for BPE."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    text = normalizers.BertNormalizer().normalize_str(TEXT)
    words = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)]
    ids = {name: i for i, name in enumerate(specials + frequent(words, size - 5, "##"))}
    added = [token(name, lstrip=mask and name == "[MASK]") for name in specials]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": ids[one["content"]], **one} for one in added], "normalizer": normalizer,
            "pre_tokenizer": splitter, "post_processor": after(ids),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": ids} | (model or {})}


def bert(lower=True, accents=None):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": accents,
            "lowercase": lower}




def charsmap(rules):
    """Returns the precompiled_charsmap of SentencePiece, in base64, that replaces each key of `rules` by its value:
    a double array trie, in which the children of a node at p are at p ^ offset ^ byte, and the texts."""
    trie, texts = {}, b""
    for key, value in rules.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(texts)
        texts += value.encode() + b"\0"
    units, used, waiting = {0: 0}, {0}, [(0, trie)]
    while waiting:
        at, node = waiting.pop(0)
        base = next(b for b in range(1, 1 << 20) if b not in used and all(b ^ byte not in units for byte in node))
        used.add(base)
        units[at] |= (at ^ base) << 10 | (256 if 0 in node else 0)
        for byte, child in node.items():
            units[base ^ byte] = byte if byte else child | 1 << 31
            if byte:
                waiting.append((base ^ byte, child))
    array = b"".join(units.get(i, 1).to_bytes(4, "little") for i in range(max(units) // 256 * 256 + 256))
    return base64.b64encode(len(array).to_bytes(4, "little") + array + texts).decode()


def unigram(count, normalizer, splitter, decoder, after, added, scores, model=None):
    """Returns a tokenizer.json with the model Unigram: the `count` most frequent parts of TEXT's words, the
    i-th with the score scores(i)."""
    words = ["▁" + word for word in TEXT.replace("\n", " ").split(" ")]
    vocab = [[name, 0.0] for name in ("<s>", "<pad>", "</s>", "<unk>")]
    vocab += [[part, scores(i)] for i, part in enumerate(frequent(words, count))]
    vocab += [[name, 0.0] for name in BYTES if (model or {}).get("byte_fallback")]
    ids = {name: i for i, (name, _) in enumerate(vocab)}
    for one in added:
        ids.setdefault(one["content"], len(ids))
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": ids[one["content"]], **one} for one in added], "normalizer": normalizer,
            "pre_tokenizer": splitter, "post_processor": after(ids), "decoder": decoder,
            "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False} | (model or {})}


families["mistral"]["model"]["merges"] = [" ".join(m) for m in families["mistral"]["model"]["merges"]]

families["bert"] = wordpiece(400, bert(), {"type": "BertPreTokenizer"},
                             lambda ids: template(ids, ["[CLS]"], ["[SEP]"]), False)
families["cased"] = wordpiece(  # MPNet's, and every option that the one above lacks
    300, sequence("normalizers", bert(False, False) | {"handle_chinese_chars": False}, {"type": "NFD"}, {"type": "Lowercase"}),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}),
    lambda ids: {"type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]}, True,
    {"max_input_chars_per_word": 6})

RULES = {"A": "a", "T": "t", "I": "i", "\t": " ", "\n": " ", "\r": " ", "\r\n": " ", "\u00a0": " ", "\u3000": " ", "\x7f": "",
         "\u200b": "", "½": "1\u20442", "²": "2", "Ⅷ": "VIII", "e\u0301": "é", "\u00e9": "e", "か\u3099": "が", "学": "學"}
RULES = dict(sorted(RULES.items(), key=lambda rule: rule[0].encode()))
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPECIALS = [token("<s>"), token("<pad>"), token("</s>"), token("<unk>")]
families["xlmr"] = unigram(
    440, {"type": "Precompiled", "precompiled_charsmap": charsmap(RULES)},
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always", False)), METASPACE,
    lambda ids: {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                 "add_prefix_space": True}, SPECIALS + [token("<mask>", lstrip=True)], lambda i: round(-math.log(i + 3), 4))
families["t5"] = unigram(  # and every option that the one above lacks; scores with many ties
    360, sequence("normalizers", {"type": "Strip", "strip_left": False, "strip_right": True}, {"type": "Lowercase"}),
    metaspace("first", True), sequence("decoders", *SPM_DECODER, STRIP), lambda ids: template(ids, [], ["</s>"]), SPECIALS,
    lambda i: -float(len(str(i))), {"byte_fallback": True})

CONTRACTIONS, REST = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD = r"[^\r\n\p{L}\p{N}]?"
EXPRESSIONS = [
    f"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?|\\p{{N}}{{1,3}}{REST}",  # o200k
    f"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\\p{{N}}{REST}",  # tekken
    QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+"),  # Qwen3.5
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",  # cl100k
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+", "[一-龥\u3040-ゟ゠-ヿ]+",  # DeepSeek
    r"(a|e(?:t|l)?h)\p{Lu}?|\p{Nd}+(?=\S)|\p{Lt}\S|\p{M}{2,}|\d{2}\z"]  # features that those above lack
families["regex"] = design(
    400, [], [token("<|endoftext|>")],
    sequence("normalizers", {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
             {"type": "Replace", "pattern": {"Regex": r"\A▁|[\t\n]\s*"}, "content": "▁▁"}),
    sequence("pretokenizers", *map(split, EXPRESSIONS), split(LLAMA3) | {"behavior": "Removed", "invert": True},
             byte_level(regex=False)), byte_level(), None, LETTERS)

# == random forms ===================================================================================
def random_design():
    """Returns a tokenizer with random features, among all supported ones."""
    def some(choices, most):
        return [random.choice(choices) for _ in range(random.randint(0, most))]

    patterns = [" ", "a", "th", "▁", "e\u0301", "  ", "\n"]
    normal = some([{"type": "NFC"}, {"type": "Prepend", "prepend": random.choice(["▁", " ", "a"])},
                   replace(random.choice(patterns), random.choice(["▁", "", " ", "x y", "e"]))], 3)
    schemes = ["never", "always", *([] if normal else ["first"])]
    splits = some([split(GPT2), split(LLAMA3), split(QWEN2), {"type": "Digits", "individual_digits": True},
                   {"type": "Digits", "individual_digits": False}, metaspace(random.choice(schemes), random.random() < 0.5),
                   {"type": "Split", "pattern": {"String": random.choice(patterns)}, "invert": False,
                    "behavior": random.choice(["Isolated", "MergedWithPrevious", "MergedWithNext"])}], 3)
    spm = random.random() < 0.6
    if not spm:
        splits.append(byte_level(random.random() < 0.5, random.random() < 0.5))
    odd = [token(random.choice(["the", "<s>", "ab", "e\u0301", "▁a", " a", "\n", "n"]), random.random() < 0.5,
                 random.random() < 0.5, random.random() < 0.3, random.random() < 0.3) for _ in range(2)]
    for one in odd:  # no token may become empty
        one["normalized"] &= not any(step.get("content") == "" for step in normal)
    odd = [one for i, one in enumerate(odd) if one["content"] not in [two["content"] for two in odd[:i]]]
    if spm:
        some_bytes = [byte for byte in BYTES if random.random() < random.choice([1, 1, 0.9])]
        made = design(500, BEFORE + some_bytes, odd, None, None,
                      sequence("decoders", *SPM_DECODER, *([STRIP] if random.random() < 0.5 else [])),
                      random.choice([None, lambda ids: template(ids, ["<s>"], ["</s>", "<s>"])]), None,
                      {"unk_token": random.choice(["<unk>", None]), "fuse_unk": random.random() < 0.5,
                       "byte_fallback": random.random() < 0.7}, metaspace("always", random.random() < 0.2))
    else:
        made = design(400, BEFORE, odd, None, None, byte_level(),
                      random.choice([None, lambda ids: template(ids, ["<s>"], ["</s>", "<s>"])]),
                      [c for c in LETTERS if random.random() < random.choice([1, 0.97])], {"unk_token": random.choice(["<unk>", None])},
                      random.choice([byte_level(), LINES]))
    made["model"]["ignore_merges"] = random.random() < 0.3
    made["normalizer"] = sequence("normalizers", *normal) if len(normal) != 1 else normal[0]
    made["pre_tokenizer"] = splits[0] if len(splits) == 1 else sequence("pretokenizers", *splits) if splits else None
    return drop_merges(made, 7) if random.random() < 0.5 else made


def put_design(folder, made, count):
    os.makedirs(folder, exist_ok=True)
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    with open(folder + "/tokenizer.json", "w", encoding="utf-8") as out:
        out.write(text)
    of = Tokenizer.from_str(text)
    specials = [one["content"] for one in made["added_tokens"]]
    specials += [part for one in specials for part in (" " + one, one + " ", one[:-1])]
    cases = [b"", b" ", b"a", "\u200b".encode(), "♞".encode(), b"!...!", TEXT[:100].encode()] + [hostile(specials) for _ in range(count)]
    with open(folder + "/cases.jsonl", "w", encoding="utf-8") as out:
        def line(value):
            out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

        for data in cases:
            string = data.decode("utf-8", errors="replace")
            case = {"text": string} if string.encode() == data else {"hex": data.hex()}
            try:
                case["ids"] = of.encode(string, add_special_tokens=False).ids
            except BaseException:  # the package panics if white space after a token belongs to another token
                continue
            of.encode_special_tokens = True
            others = {"plain": of.encode(string, add_special_tokens=False).ids}
            of.encode_special_tokens = False
            if len(data) < 20:
                others["template"] = of.encode(string).ids
            line(case | {key: ids for key, ids in others.items() if ids != case["ids"]})
            if random.random() < 0.1 or not data:
                line({"decode": case["ids"], "text": of.decode(case["ids"], skip_special_tokens=False)})
        steps, i = made["pre_tokenizer"] or {}, -1
        for step in steps.get("pretokenizers", [steps]):
            i += 2 if step.get("split") else 1  # a Metaspace that splits counts as two steps
            if step.get("type") not in ("Split", "Digits"):
                continue
            by = Tokenizer.from_str(json.dumps(made | {"pre_tokenizer": step})).pre_tokenizer
            for _ in range(count // 3):
                string = hostile(["ab", " a", "\ra", "\na", "'\u017fa", "e"]).decode("utf-8", errors="replace")
                sizes = [len(string[at:end].encode()) for _, (at, end) in by.pre_tokenize_str(string)]
                line({"step": i, "sizes": sizes, "text": string})
        for _ in range(count // 7):
            ids = [random.choice([random.randrange(of.get_vocab_size()), random.randrange(3, 259)])
                   for _ in range(random.randint(1, 8))]
            line({"decode": ids, "text": of.decode(ids, skip_special_tokens=False)})


def put_model(name, options, rules):
    """Writes a tokenizer.model of sentencepiece (0.2.3 was used), and the tokens of sentencepiece itself, or with
    `rules` (normalization) those of its conversion by transformers (5.24), whose normalizer differs a little."""
    from transformers.convert_slow_tokenizer import SpmConverter, import_protobuf
    folder, model = f"{HERE}/{name}", io.BytesIO()
    os.makedirs(folder, exist_ok=True)
    if rules:
        with open(HERE + "/rules.tsv", "w", encoding="utf-8") as out:
            for one, other in rules.items():
                out.write(" ".join(f"{ord(c):X}" for c in one) + "\t" + " ".join(f"{ord(c):X}" for c in other) + "\n")
        options |= {"normalization_rule_tsv": HERE + "/rules.tsv"}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.replace("\r", " ").split("\n")), model_writer=model, minloglevel=2, **options)
    if rules:
        os.remove(HERE + "/rules.tsv")
    with open(folder + "/tokenizer.model", "wb") as out:
        out.write(model.getvalue())
    proto = import_protobuf().ModelProto.FromString(model.getvalue())
    package = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    made = rules and SpmConverter.build_tokenizer_from_spm_proto(
        proto, [(piece.piece, piece.score) for piece in proto.pieces])
    random.seed(20)
    with open(folder + "/cases.jsonl", "w", encoding="utf-8") as out:
        for i in range(170):
            text = ["", " ", "a", TEXT[:300]][i] if i < 4 else hostile(["x"]).decode("utf-8", errors="replace")
            if "<unk>" in text or "<0x" in text:  # sentencepiece does not search for these
                continue
            ids = made.encode(text).ids if rules else package.encode(text)
            case = {"text": text, "ids": ids} | ({"template": [1] + ids} if i % 10 == 0 else {})
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
            if i % 10 == 1:
                back = made.decode(ids, skip_special_tokens=False) if rules else package.decode(ids)
                case = {"decode": ids, "text": back.replace(" \u2047 ", "<unk>")}
                out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


if len(sys.argv) > 2:
    random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    for name, made in families.items():
        put_design(f"{sys.argv[1]}/{name}", made, int(sys.argv[2]))
    for k in range(40):
        put_design(f"{sys.argv[1]}/random{k}", random_design(), int(sys.argv[2]))
else:
    put_model("spm", {"model_type": "bpe", "vocab_size": 480, "byte_fallback": True, "normalization_rule_name": "identity",
                      "remove_extra_whitespaces": False, "character_coverage": 0.98}, None)
    put_model("spm_unigram", {"model_type": "unigram", "vocab_size": 400, "hard_vocab_limit": False, "character_coverage": 0.98, "num_threads": 1},
              {"T": "t", "A": "a", "\t": " ", "\n": " ", "\u00a0": " ", "½": "1/2"})
    random.seed(32)
    for name, made in families.items():
        put_design(HERE + "/" + name, made, 118)
    with open(HERE + "/qwen2/cases.jsonl", "a", encoding="utf-8") as out:
        hashed, changed = 0xcbf29ce484222325, 0
        for code in range(0x110000):
            composed = "" if 0xD800 <= code < 0xE000 else normalizers.NFC().normalize_str(chr(code))
            changed += composed != chr(code) and composed != ""
            for one in composed:
                hashed = (hashed ^ ord(one)) * 0x100000001b3 % 2**64
        out.write(json.dumps({"composed": changed, "hash": f"{hashed:016x}"}) + "\n")
