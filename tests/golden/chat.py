#!/usr/bin/env python3
"""Compares examples/chat.h with Jinja. Needs jinja2, build/test_chat and a folder of published chat templates
(FOLDER/*.jinja), none of which is part of this repository:

    python3 tests/golden/chat.py FOLDER              prints the known templates and the table for chat.h
    python3 tests/golden/chat.py FOLDER golden       writes tests/golden/chat.jsonl, chats rendered by Jinja
    python3 tests/golden/chat.py FOLDER wide > FILE  prints 200 random chats, for build/test_chat FILE
    python3 tests/golden/chat.py tokens              writes tests/golden/chat_tokens.jsonl: texts of build/test_chat
                                                     in tokens of the tokenizers package (needs no FOLDER); run it
                                                     when tests/golden/tokenizer/* have changed

A template has one of chat.h's formats if both render the same text for many random chats: with and without a
system message, with messages out of order, odd white space and special tokens in them. If Jinja drops a
message (Mistral's system message, unless the user's is the last), chat.h refuses the chat."""
import glob
import json
import os
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

FORMATS = ["chatml", "chatml-begin", "qwen2", "qwen2.5", "qwen3", "smollm2", "llama3", "llama3.1", "gemma", "gemma3",
           "mistral", "mistral-0.1", "mistral-v1", "mistral-v3", "mistral-nemo", "zephyr", "mistral-v7", "llama2"]
WORDS = ["hi", "  two words ", "", "\n", "a\nb\n\n", " lead", "trail ", "{{x}}", "ü 你好 é", "<|im_end|>", "tab\t",
         "\r\nx\x0b", "\u00a0\u2003x\u3000", "\x1cy\x1f", "[INST] z", "</s>", "1 + 2 = 3.", "\u200b", "a</think>\nb",
         "<tool_response>q</tool_response>"]


class Generation(jinja2.ext.Extension):
    """Implements {% generation %}, which marks answers and renders nothing."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def environment():
    """Creates an environment with the settings of transformers."""
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    return env


def render(template, messages, asks):
    """Returns the rendered chat, or None if the template refuses it."""
    try:
        return template.render(messages=messages, tools=None, documents=None, bos_token="<BOS>", eos_token="<EOS>",
                               add_generation_prompt=asks)
    except Exception:  # the template's error, or Python's for a chat that it does not expect
        return None


def chats(count, seed):
    """Returns a random chat: most alternate between user and assistant, some do not."""
    draw = random.Random(seed)

    def said():
        return "".join(draw.choice(WORDS) for _ in range(draw.randint(0, 3)))

    out = []
    for i in range(count):
        system, turns, odd = draw.random() < 0.4, draw.randint(1, 6), draw.random() < 0.15
        roles = ["user" if k % 2 == 0 else "assistant" for k in range(turns)]
        if odd:
            roles = [draw.choice(["system", "user", "assistant"]) for _ in range(turns)]
        elif system:
            roles = ["system"] + roles
        out.append(([{"role": r, "content": said()} for r in roles], draw.random() < 0.5))
    return out


def ours(format_name, some):
    lines = "".join(json.dumps({"format": format_name, "messages": m, "asks": a}) + "\n" for m, a in some)
    done = subprocess.run(["build/test_chat", "render"], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n")[:len(some)]]


def fnv(data, h):
    for byte in data:
        h = (h ^ byte) * 1099511628211 % 2**64
    return h


def known(folder):
    """Returns {format: [(template text, file)]}."""
    some = chats(400, 1)
    want = {name: ours(name, some) for name in FORMATS}
    found = {name: {} for name in FORMATS}
    for path in sorted(glob.glob(folder + "/*.jinja")):
        text = open(path, newline="").read()
        try:
            template = environment().from_string(text)
        except Exception:
            continue
        got = [render(template, m, a) for m, a in some]
        fits = []
        for name in FORMATS:
            same = [w == g for w, g in zip(want[name], got)]
            dropped = [w is None for w in want[name]]
            if all(s or d for s, d in zip(same, dropped)) and sum(g is not None for g in got) > 50:
                fits.append((sum(dropped), name))
        if fits:  # prefer the format that refuses the fewest chats
            stripped = text[:-1] if text.endswith("\n") else text
            found[min(fits)[1]].setdefault(stripped, os.path.basename(path))
    return found


TOKENS = [("smollm2", ["chatml", "smollm2", "qwen2.5"], "<|endoftext|>", "<|endoftext|>"),
          ("qwen2", ["qwen2", "qwen3"], "<|endoftext|>", "<|endoftext|>"),
          ("llama3", ["llama3", "llama3.1"], "<|begin_of_text|>", "<|eot_id|>"),
          ("gemma", ["gemma", "gemma3"], "<bos>", "<eos>"),
          ("mistral", ["mistral", "mistral-v1", "mistral-v3", "mistral-nemo"], "<s>", "</s>"),
          ("llama2", ["zephyr", "chatml"], "<s>", "</s>"), ("mistral", ["mistral-v7"], "<s>", "</s>"),
          ("llama2", ["llama2"], "<s>", "</s>")]
PLAIN = ["the memory", "A model, 2024!", " it's", "groß 模型 ", "1000", "\n\nfour", "память", "  two", "x\n", "user"]


def tokens():
    """Writes chats whose answers can be tokenised separately, and that contain no special tokens in their
    text."""
    from tokenizers import Tokenizer
    draw = random.Random(4)
    with open("tests/golden/chat_tokens.jsonl", "w") as to:
        for folder, names, bos, eos in TOKENS:
            tokenizer = Tokenizer.from_file("tests/golden/tokenizer/%s/tokenizer.json" % folder)
            for name in names:
                def encode(chats):
                    texts = [t.replace("<BOS>", bos).replace("<EOS>", eos) for t in ours(name, chats)]
                    return [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]

                for i in range(8):
                    tries, apart = 0, False
                    while not apart:  # until no token spans the border before an answer
                        tries += 1
                        roles = ["user", "assistant", "user", "assistant", "user"][:1 + i % 5 if tries < 300 else 1]
                        messages = [{"role": r, "content": "".join(draw.choice(PLAIN) for _ in range(draw.randint(1, 3)))}
                                    for r in roles]
                        for m in messages:
                            if m["role"] == "assistant":
                                m["content"] = m["content"].lstrip() or "yes"
                        asks = i % 2 == 0
                        begins = [(messages[:k], True) for k in range(1, len(messages), 2)]
                        ids, *before = encode([(messages, asks)] + begins)
                        apart = all(ids[:len(x)] == x for x in before)
                    to.write(json.dumps({"folder": folder, "format": name, "bos": bos, "eos": eos, "messages": messages,
                                         "asks": asks, "ids": ids}, ensure_ascii=False) + "\n")


def main():
    if sys.argv[1:] == ["tokens"]:
        tokens()
        return
    found = known(sys.argv[1])
    if len(sys.argv) == 2:
        for name in FORMATS:
            for text, path in sorted(found[name].items(), key=lambda x: len(x[0])):
                data = text.encode()
                print('    { %d, { 0x%016x, 0x%016x }, "%s" },' %
                      (len(data), fnv(data, 14695981039346656037), fnv(data, 0x9e3779b97f4a7c15), name))
                print(len(data), name, path, file=sys.stderr)
        return
    to = open("tests/golden/chat.jsonl", "w") if sys.argv[2] == "golden" else sys.stdout
    for name in FORMATS:
        if not found[name]:
            sys.exit("no template of the format " + name)
        some = chats(14 if sys.argv[2] == "golden" else 200, 2)
        refused = ours(name, some)
        for i, text in enumerate(sorted(found[name])):
            if i > 0 and sys.argv[2] == "golden":
                break
            template = environment().from_string(text)
            for (m, a), r in zip(some, refused):
                line = render(template, m, a) if r is not None else None
                to.write(json.dumps({"format": name, "messages": m, "asks": a, "text": line},
                                    ensure_ascii=False) + "\n")


main()
