#!/usr/bin/env python3
"""Writes gguf_tokenizer/bert.gguf and t5.gguf, with the keys that llama.cpp's converter gives the tokenizers
tokenizer/bert (WordPiece) and tokenizer/xlmr (Unigram), and the tokens that the tokenizers package gives texts:
bert.jsonl and t5.jsonl, in the form of make_gguf_tokenizer.py. Versions: tokenizers 0.23, gguf 0.19.

    python3 tests/golden/make_gguf_words.py

GGUF has no key for lstrip, so the token <mask> of xlmr absorbs no white space here. Scores are rounded to
float, which is their type in GGUF."""
import base64
import json
import os
import sys

import numpy
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
import gguf  # the package, not gguf.py in this folder

NORMAL, UNKNOWN, CONTROL = 1, 2, 3
TO = os.path.join(HERE, "gguf_tokenizer")


def read(name):
    with open(os.path.join(HERE, "tokenizer", name, "tokenizer.json"), encoding="utf-8") as file:
        made = json.load(file)
    for one in made["added_tokens"]:
        one["lstrip"] = one["rstrip"] = False
    return made


def texts(name):
    with open(os.path.join(HERE, "tokenizer", name, "cases.jsonl"), encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    return [case["text"] for case in cases if "ids" in case and "text" in case][:160]


def write_cases(name, made, strings):
    of = Tokenizer.from_str(json.dumps(made))
    with open(os.path.join(TO, name + ".jsonl"), "w", encoding="utf-8") as out:
        for string in strings:
            case = {"text": string, "ids": of.encode(string, add_special_tokens=False).ids}
            others = {"template": of.encode(string).ids} if len(string.encode()) < 20 else {}
            of.encode_special_tokens = True
            others["plain"] = of.encode(string, add_special_tokens=False).ids
            of.encode_special_tokens = False
            case |= {key: ids for key, ids in others.items() if ids != case["ids"]}
            out.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def finish(w, tokens, types):
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def write_bert():
    made = read("bert")
    special = {one["id"]: one["content"] for one in made["added_tokens"]}
    names = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    w = gguf.GGUFWriter(os.path.join(TO, "bert.gguf"), "bert")
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("default")
    for key, name in (("bos", "[CLS]"), ("seperator", "[SEP]"), ("unknown", "[UNK]"), ("padding", "[PAD]")):
        w.add_uint32(f"tokenizer.ggml.{key}_token_id", names.index(name))
    finish(w, [n if i in special else n[2:] if n.startswith("##") else "\u2581" + n for i, n in enumerate(names)],
           [CONTROL if i in special else NORMAL for i in range(len(names))])
    write_cases("bert", made, texts("bert"))


def write_t5():
    made = read("xlmr")
    made["model"]["vocab"] = [[name, float(numpy.float32(score))] for name, score in made["model"]["vocab"]]
    tokens = made["model"]["vocab"] + [["<mask>", 0.0]]
    special = {one["id"] for one in made["added_tokens"]}
    assert len(tokens) - 1 in special
    w = gguf.GGUFWriter(os.path.join(TO, "t5.gguf"), "bert")
    w.add_tokenizer_model("t5")
    w.add_tokenizer_pre("default")
    w.add_token_scores([score for _, score in tokens])
    w.add_add_space_prefix(True)
    w.add_remove_extra_whitespaces(True)
    w.add_precompiled_charsmap(base64.b64decode(made["normalizer"]["precompiled_charsmap"]))
    w.add_bos_token_id(0)
    w.add_eos_token_id(2)
    w.add_unk_token_id(3)
    w.add_add_bos_token(True)
    w.add_add_eos_token(True)
    finish(w, [name for name, _ in tokens],
           [UNKNOWN if i == 3 else CONTROL if i in special else NORMAL for i in range(len(tokens))])
    write_cases("t5", made, texts("xlmr"))


write_bert()
write_t5()
