#!/usr/bin/env python3
"""four_bits.py - what frozen matrices lose in 4 bits a weight, by format.

    make build/finetune
    python3 tests/bench/four_bits.py

Trains three models from new weights (by examples/finetune.c, bytes as tokens), stores their matrices in
each format and evaluates them on the last tenth of the text, which they have not seen. Prints the table
of docs/finetuning.md: bits a weight, and of each model how much the loss rises and, in parentheses, the
error of the weights relative to their root mean square. Groups lie along the last axis. Scales are
binary16, but where "double" says otherwise: then a byte each, relative to their mean, with a binary32
scale for 256 (Dettmers et al. 2023, as is NF4). "best of" tries so many scales and keeps the one of
least squared error. Needs numpy and safetensors."""
import argparse
import json
import os
import shutil
import subprocess
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

MODELS = (("GPT-2 4x256", "4x256x4x256", 500), ("Llama 4x256", "llama:4x256x4x2x256", 500),
          ("Llama 5x384", "llama:5x384x6x2x256", 350))
# Quantiles of a normal distribution, from appendix E of the paper.
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)
INTEGERS = np.arange(-8, 8).astype(np.float32)


def nearest(levels, x, scale):
    """x as the nearest levels times scale (one for each row of x)."""
    between = (levels[1:] + levels[:-1]) / 2
    y = x / np.where(scale == 0, 1, scale)
    return levels[np.searchsorted(between, y)] * scale


def greatest(x):
    """Of each row, the value of greatest magnitude, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)


def best(levels, x, scales):
    """The nearest of each row by that of these scales which has the least squared error."""
    kept = least = None
    for scale in scales:
        y = nearest(levels, x, scale.astype(np.float16).astype(np.float32))
        error = ((y - x) ** 2).sum(1, keepdims=True)
        better = True if kept is None else error < least
        kept = y if kept is None else np.where(better, y, kept)
        least = error if least is None else np.minimum(error, least)
    return kept


def integers(*steps):
    """Integers -8..7 whose scale is the greatest value divided by one of these."""
    return lambda x: best(INTEGERS, x, [greatest(x) / k for k in steps])


def normal(*factors):
    """NF4 with the greatest magnitude times one of these as scale."""
    return lambda x: best(NF4, x, [np.abs(greatest(x)) * f for f in factors])


def double(levels):
    """Scales in a byte each."""
    def by(x):
        scale = np.abs(greatest(x)) / levels[-1]
        some = np.concatenate([scale, np.repeat(scale[-1:], -len(scale) % 256, 0)]).reshape(-1, 256)
        off = some - scale.mean()
        unit = np.maximum(np.abs(off).max(1, keepdims=True) / 127, 1e-30)
        some = np.rint(off / unit) * unit + scale.mean()
        return nearest(levels, x, some.reshape(-1, 1)[:len(scale)].astype(np.float32))
    return by


def between(x):
    """16 steps from the least value to the greatest, both binary16."""
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    step = ((high - low) / 15).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    return np.clip(np.rint((x - low) / np.where(step == 0, 1, step)), 0, 15) * step + low


SOME, MORE = (-8, -8.5, -9, -7.5, -7), (-8, -7, -7.25, -7.5, -7.75, -8.25, -8.5, -8.75, -9, -9.5, 7,
                                        7.5, 8, 8.5)
FACTORS = (1, 0.95, 0.9, 0.85, 1.05)
FORMATS = (
    ("integers, 32, greatest / -8 (Q4_0)", 4.5, 32, integers(-8)),
    ("integers, 32, best of 5", 4.5, 32, integers(*SOME)),
    ("integers, 32, best of 14", 4.5, 32, integers(*MORE)),
    ("integers -7..7, 32", 4.5, 32, lambda x: best(INTEGERS[1:], x, [np.abs(greatest(x)) / 7])),
    ("integers, 64, greatest / -8", 4.25, 64, integers(-8)),
    ("integers, 64, best of 14", 4.25, 64, integers(*MORE)),
    ("integers -7..7, 64, double", 4.127, 64, double(INTEGERS[1:])),
    ("integers and a least value, 32 (Q4_1)", 5, 32, between),
    ("NF4, 32", 4.5, 32, normal(1)),
    ("NF4, 32, best of 5", 4.5, 32, normal(*FACTORS)),
    ("NF4, 64", 4.25, 64, normal(1)),
    ("NF4, 64, best of 5", 4.25, 64, normal(*FACTORS)),
    ("NF4, 64, double (QLoRA)", 4.127, 64, double(NF4)),
)


def finetune(o, *options):
    """Events of a run."""
    run = subprocess.run([o.program, "--threads", "1", "--json", "-", *options], capture_output=True,
                         text=True, check=False)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def loss(o, model, *options):
    events = finetune(o, "--model", model, "--data", o.held, "--eval", "--context", "256", *options)
    return next(e["val_loss"] for e in events if e["event"] == "eval")


def train(o, name, shape, steps):
    folder = os.path.join(o.folder, name.replace(" ", "-"))
    if not os.path.exists(os.path.join(folder, "tuned", "config.json")):
        finetune(o, "--model", folder, "--new", shape, "--method", "full", "--data", o.text, "--lr", "2e-3",
                 "--min-lr", "2e-4", "--warmup", "40", "--batch", "16", "--context", "256", "--steps",
                 str(steps), "--eval-every", "0", "--save", os.path.join(folder, "tuned"))
    return os.path.join(folder, "tuned")


def stored(folder, into, size, by):
    """Writes the model with its matrices stored so; returns their relative error."""
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    error = whole = 0.0
    for name, x in tensors.items():
        if x.ndim != 2 or x.shape[1] % size != 0 or "wpe" in name:
            continue
        y = by(x.astype(np.float32).reshape(-1, size)).reshape(x.shape).astype(np.float32)
        error, whole = error + ((y - x) ** 2).sum(), whole + (x ** 2).sum()
        tensors[name] = y
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into)
    save_file(tensors, os.path.join(into, "model.safetensors"), {"format": "pt"})
    return float(np.sqrt(error / whole))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    a.add_argument("--program", default="build/finetune")
    a.add_argument("--text", default="examples/shakespeare.txt")
    a.add_argument("--folder", default="build/four_bits", help="for the models; trained if not there")
    o = a.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    o.held, again = os.path.join(o.folder, "held.txt"), os.path.join(o.folder, "stored")
    with open(o.text, "rb") as f, open(o.held, "wb") as held:
        text = f.read()
        held.write(text[len(text) - len(text) // 10:])
    models = [train(o, *m) for m in MODELS]
    whole = [loss(o, m) for m in models]
    print("| groups of, scale | bits | " + " | ".join(m[0] for m in MODELS) + " |\n|---|---|"
          + "---|" * len(MODELS))
    print("| *as floats: the loss* | 32 | " + " | ".join(f"{x:.4f}" for x in whole) + " |", flush=True)
    for name, bits in (("int8", 8), ("int4", 4.5)):
        rises = (loss(o, m, "--store", name) - x for m, x in zip(models, whole))
        print(f"| **--store {name}** | {bits} | " + " | ".join(f"{r:+.4f}" for r in rises) + " |", flush=True)
    for name, bits, size, by in FORMATS:
        cells = []
        for m, x in zip(models, whole):
            error = stored(m, again, size, by)
            cells.append(f"{loss(o, again) - x:+.4f} ({100 * error:.1f} %)")
        print(f"| {name} | {bits} | " + " | ".join(cells) + " |", flush=True)
    shutil.rmtree(again, ignore_errors=True)


if __name__ == "__main__":
    main()
