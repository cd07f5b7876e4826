#!/usr/bin/env python3
"""Writes tokenizer/pairs.jsonl: pairs of texts as the tokenizers package encodes them, with the small tokenizers of
make_tokenizer.py.

    python3 tests/golden/make_pairs.py

A line has the folder of a tokenizer, two texts, the most tokens (truncation longest_first), the tokens and their
types. Version: tokenizers 0.23."""
import json
import os
import random

from tokenizers import Tokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
FOLDERS = ("bert", "cased", "xlmr", "llama3", "mistral", "qwen2", "t5")
WORDS = "the model is too large a b memory 1 it's".split()
random.seed(20261130)

with open(os.path.join(HERE, "pairs.jsonl"), "w") as out:
    for folder in FOLDERS:
        tokenizer = Tokenizer.from_file(os.path.join(HERE, folder, "tokenizer.json"))
        special = tokenizer.num_special_tokens_to_add(True)
        for case in range(14):
            texts = [" ".join(random.choices(WORDS, k=random.randint(0, 6))) for _ in range(2)]
            most = special + random.randint(0, 20)
            if case == 0:
                most = 512
            tokenizer.enable_truncation(most, strategy="longest_first")
            pair = tokenizer.encode(*texts)
            json.dump({"tokenizer": folder, "texts": texts, "most": most, "ids": pair.ids, "types": pair.type_ids}, out)
            out.write("\n")
