#!/usr/bin/env python3
"""Writes tokenizer/tekken/: a small tekken.json, Mistral's own format, and cases.jsonl, the tokens that
mistral-common's Tekkenizer gives texts. Versions: mistral-common 1.13, tiktoken 0.14, tokenizers 0.23.

    python3 tests/golden/make_tekken.py

The vocabulary is trained by the tokenizers package. Its last tokens are beyond default_vocab_size, and some
tokens have no merges, as in Mistral's file, so that only a whole piece of a text becomes such a token."""
import base64
import json
import os
import random

from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "tokenizer", "tekken")
PATTERN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
           r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS, SIZE = 30, 30 + 256 + 200
random.seed(7)


def texts():
    with open(os.path.join(HERE, "tokenizer", "cases.jsonl"), encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    return [case["text"] for case in cases if "text" in case and "ids" in case]


def train(some):
    of = Tokenizer(models.BPE())
    of.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    of.train_from_iterator(some, trainers.BpeTrainer(vocab_size=256 + 210, show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made = json.loads(of.to_str())["model"]
    letters = {chr(c): b for b, c in zip(*alphabet())}
    merged = [bytes(letters[c] for c in "".join(pair)) for pair in made["merges"]]
    whole = ["größer".encode(), b" ======", "☃☃".encode()]
    tokens = [bytes([b]) for b in range(256)]
    for token in merged[:60] + whole + merged[60:]:
        tokens += [] if token in tokens else [token]
    return tokens


def alphabet():
    """Returns the bytes, and the characters with which the tokenizers package names them."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in seen]
    return seen + others, seen + [256 + i for i in range(len(others))]


def shown(token):
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def main():
    os.makedirs(FOLDER, exist_ok=True)
    some = texts()
    tokens = train([one for one in some if len(one) > 30])
    path = os.path.join(FOLDER, "tekken.json")
    with open(path, "w") as file:
        json.dump({"config": {"pattern": PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": SIZE,
                              "default_num_special_tokens": SPECIALS, "version": "v3"},
                   "vocab": [{"rank": i, "token_bytes": base64.b64encode(token).decode(),
                              "token_str": shown(token)} for i, token in enumerate(tokens)]}, file, indent=0)
    of = Tekkenizer.from_file(path)
    letters = "aae =☃öß\n1T"
    some = some[:130] + ["".join(random.choice(letters) for _ in range(40)) for _ in range(30)]
    some += ["größer ====== ☃☃☃", "=" * 23, "a" * 37]
    with open(os.path.join(FOLDER, "cases.jsonl"), "w", encoding="utf-8") as out:
        for text in some:
            ids = of.encode(text, bos=False, eos=False)
            case = {"text": text, "ids": ids, "template": of.encode(text, bos=True, eos=False)}
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
