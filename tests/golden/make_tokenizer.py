#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: a small byte-level BPE tokenizer as tokenizer.json and as vocab.json
and merges.txt, and cases.jsonl: what the tokenizers package (0.23 was used) makes of many texts with it.

    python3 tests/golden/make_tokenizer.py

A line of cases.jsonl is one of
    {"text" or "hex": .., "ids": [..], "plain": [..], "files": [..]}
        the tokens of a text by tokenizer.json; with special tokens taken for text; by the two other
        files (where these differ from "ids"). Bytes that are no UTF-8 stand in hexadecimal.
    {"decode": [..], "text": ..}    the text of tokens, with U+FFFD for what is no UTF-8
    {"classes": [..], "hash": ..}   letters, numbers and spaces of all code points; FNV-1a of the classes"""
import json
import os
import random
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
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
          "<|endoftext|>", "<|user|>", "|><|", "sum +=", "é", " память", "内存", "!", "..."]
for _ in range(350):
    chosen = random.sample(blocks, 2)
    text = "".join(character(*random.choice(chosen)) if random.random() < 0.5 else random.choice(pieces)
                   for _ in range(random.randint(2, 14))).encode()
    if random.random() < 0.2:
        at = random.randrange(len(text))
        text = text[:at] + bytes([random.randrange(128, 256)]) + text[at + random.randint(0, 2):]
    texts.append(text)

# == what they become ==============================================================================
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
