#!/usr/bin/env python3
"""Writes optimisers.h: losses and weights of 20 steps by the optimisers of examples/optimisers, from their authors' code.

    python3 tests/golden/optimisers.py MUON APOLLO

MUON and APOLLO are checkouts of github.com/KellerJordan/Muon and github.com/zhuhanqing/APOLLO; bitsandbytes 0.50.2
and PyTorch 2.15 are installed. All in float32. Three things differ from the authors' programs:
 - bitsandbytes' kernel for processors looks codes up in a table of 65,536 equal steps, which cannot tell the small codes
   apart; here the code is the nearest one, by its own path for other types (and as its kernels for devices do);
 - Muon's Newton-Schulz iteration runs in float32 instead of bfloat16;
 - APOLLO's projection is that of apollo_mini.h instead of torch.randn.
The script prints how far the unchanged programs are from these, and torch.optim.Muon from muon.py."""
import math
import os
import sys

import numpy as np
import torch

ROWS, STEPS, CLASSES = 32, 20, 8
SHAPES = {"one": (48, 128), "two": (128, 64), "three": (64, 64), "out": (64, CLASSES)}  # (in,out)
LR = {"adamw": 2e-3, "adam8bit": 2e-3, "muon": 0.02, "apollo_mini": 0.01}
OTHERS = {"muon": 0.125, "apollo_mini": 0.25}  # factor of the rate of biases and of the last layer
DECAY, GAP, SEED = 0.1, 8, 7


class Random:
    """Whole numbers from 0 to 127, by the generator of tests/util.h."""
    def __init__(self):
        self.state = 1

    def __call__(self, shape):
        out = np.empty(int(np.prod(shape)), np.float32)
        for i in range(out.size):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
            out[i] = (self.state >> 33) % 128
        return torch.from_numpy(out.reshape(shape))


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) % 2 ** 64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2 ** 64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2 ** 64
    return z ^ (z >> 31)


def nearly_normal(n, seed):
    """apollo_mini_normal"""
    out = []
    for i in range(n):
        total = -12 * 65535 // 2
        for k in range(3):
            z = mix(seed ^ mix(3 * i + k))
            total += sum(z >> (16 * j) & 65535 for j in range(4))
        out.append(total / 65536)
    return torch.tensor(out)


class InOut(torch.nn.Linear):
    """A linear layer whose weights are (in,out), as here: blocks of 256 elements follow the order of memory."""
    def __init__(self, rows, columns):
        super().__init__(columns, rows)
        self.bias = torch.nn.Parameter(torch.zeros(columns))

    def forward(self, x):
        return x @ self.weight + self.bias


class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        for name, (rows, columns) in SHAPES.items():
            setattr(self, name, layer(rows, columns))

    def forward(self, x):
        for name in ("one", "two", "three"):
            x = torch.tanh(getattr(self, name)(x))
        return self.out(x)


def values(net, name):
    """Returns a view of a layer's weights (in,out)."""
    layer = getattr(net, name)
    return layer.weight.data if isinstance(layer, InOut) else layer.weight.data.T


def start(layer):
    """Returns the net and the batches: weights and inputs are multiples of powers of two, so exact everywhere."""
    random, net = Random(), Net(layer)
    for name, shape in SHAPES.items():
        values(net, name).copy_((random(shape) - 64) / 256)
        getattr(net, name).bias.data.zero_()
    x = (random((STEPS, ROWS, SHAPES["one"][0])) - 64) / 64
    return net, x, x[:, :, :CLASSES].argmax(-1)


def train(optimisers_of, layer=torch.nn.Linear):
    net, xs, ys = start(layer)
    optimisers, losses = optimisers_of(net), []
    for x, y in zip(xs, ys):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        net.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        losses.append(loss.item())
    weights = [values(net, name).numpy().copy() for name in SHAPES]
    return np.array(losses), weights, [getattr(net, name).bias.detach().numpy().copy() for name in SHAPES]


def hidden(net):
    return [getattr(net, name).weight for name in SHAPES if name != "out"]


def others(net, factor, name):
    """Groups of the parameters that are not hidden matrices: decay is for matrices only."""
    return [{"params": [net.out.weight], "lr": LR[name] * factor, "weight_decay": DECAY},
            {"params": [getattr(net, n).bias for n in SHAPES], "lr": LR[name] * factor, "weight_decay": 0.0}]


def all_groups(net):
    return [{"params": [getattr(net, n).weight for n in SHAPES], "weight_decay": DECAY},
            {"params": [getattr(net, n).bias for n in SHAPES], "weight_decay": 0.0}]


def adamw(net):
    return [torch.optim.AdamW(all_groups(net), lr=LR["adamw"])]


def adam8bit(net):
    import bitsandbytes
    return [bitsandbytes.optim.AdamW8bit(all_groups(net), lr=LR["adam8bit"])]


def nearest_codes():
    """Replaces the table of bitsandbytes by its own path for types that have no kernel."""
    from bitsandbytes.backends.cpu import ops

    def quantise(a, code, absmax, out, block):
        for b in range(0, a.numel(), block):
            part = a.flatten()[b:b + block]
            absmax[b // block] = part.abs().max()
            scaled = torch.clamp(part * (1 / absmax[b // block]), -1, 1)
            out.view(-1)[b:b + block] = (scaled.unsqueeze(-1) - code).abs().argmin(-1).to(torch.uint8)
    ops._quant_blockwise_fp32_direct = quantise


def muon(module):
    def make(net):
        return [module.SingleDeviceMuon([{"params": hidden(net)}], lr=LR["muon"], weight_decay=DECAY),
                torch.optim.AdamW(others(net, OTHERS["muon"], "muon"))]
    return make


def torch_muon(net):
    return [torch.optim.Muon(hidden(net), lr=LR["muon"], weight_decay=DECAY),
            torch.optim.AdamW(others(net, OTHERS["muon"], "muon"))]


def apollo(module, projector):
    def make(net):
        group = {"params": hidden(net), "rank": 1, "proj": "random", "scale_type": "tensor", "scale": 128,
                 "update_proj_gap": GAP, "proj_type": "std", "weight_decay": DECAY}
        made = [module.AdamW([group] + others(net, OTHERS["apollo_mini"], "apollo_mini"), lr=LR["apollo_mini"])]
        if projector:
            state = made[0].state
            for name in SHAPES:
                if name != "out":
                    state[getattr(net, name).weight]["seed"] = (name + ".w", 0)
        return made
    return make


def own_projection(module):
    """Replaces torch.randn by apollo_mini_normal: a seed is the parameter's name and the number of the projection."""
    def randn(shape, seed, device=None, dtype=None):
        value = mix(SEED + seed[1])
        for c in seed[0].encode():
            value = mix(value ^ c)
        return nearly_normal(math.prod(shape), value).reshape(shape)
    module.stable_randn = randn
    module.next_seed = lambda seed: (seed[0], seed[1] + 1)


def compare(text, a, b):
    far = max(np.abs(p - q).max() for p, q in zip(a[1] + a[2], b[1] + b[2]))
    print(f"{text}: losses differ by at most {np.abs(a[0] - b[0]).max():.2g}, weights by {far:.2g}")


def array(values):
    return ",\n    ".join(", ".join(f"{float(v):.9g}" for v in values[i:i + 8]) for i in range(0, len(values), 8))


def main():
    sys.path[:0] = sys.argv[1:3]
    import muon as muon_module
    import importlib
    package = os.path.join(sys.argv[2], "apollo_torch")
    sys.path.insert(0, sys.argv[2])
    import types
    parent = types.ModuleType("apollo_torch")  # without __init__, which needs a device
    parent.__path__ = [package]
    sys.modules["apollo_torch"] = parent
    apollo_module = importlib.import_module("apollo_torch.apollo")
    torch.set_num_threads(1)
    runs = {"adamw": train(adamw)}
    table = train(adam8bit, InOut)
    nearest_codes()
    runs["adam8bit"] = train(adam8bit, InOut)
    compare("bitsandbytes' table of codes and the nearest code", table, runs["adam8bit"])
    bf16 = train(muon(muon_module))
    compare("muon.py and torch.optim.Muon, both bfloat16", bf16, train(torch_muon))
    torch.Tensor.bfloat16 = lambda tensor: tensor.clone()
    runs["muon"] = train(muon(muon_module))
    compare("muon.py in bfloat16 and float32", bf16, runs["muon"])
    theirs = train(apollo(apollo_module, 0))
    own_projection(sys.modules["apollo_torch.random_projector"])
    runs["apollo_mini"] = train(apollo(apollo_module, 1))
    compare("APOLLO's normal numbers and those of apollo_mini.h", theirs, runs["apollo_mini"])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimisers.h")
    with open(path, "w") as out:
        out.write("/* optimisers.h - written by optimisers.py with the authors' code; do not edit. */\n"
                  "#ifndef GOLDEN_OPTIMISERS_H\n#define GOLDEN_OPTIMISERS_H\n\n"
                  f"enum {{ GOLDEN_ROWS = {ROWS}, GOLDEN_STEPS = {STEPS}, GOLDEN_GAP = {GAP}, GOLDEN_SEED = {SEED} }};\n"
                  f"static const float golden_decay = {DECAY}f;\n"
                  "typedef struct {\n    const char *name;\n    float lr, others; /* others: factor of the rate of biases and "
                  "of the last layer */\n    double losses[GOLDEN_STEPS];\n    double first[4][8], length[4]; /* of the four "
                  "matrices: the first values, the norm */\n    double bias[4]; /* norms */\n} golden_run;\n"
                  "static const golden_run golden_runs[] = {\n")
        for name, (losses, weights, biases) in runs.items():
            first = ",\n      ".join("{ " + array(w.flatten()[:8].tolist()) + " }" for w in weights)
            lengths = array([np.linalg.norm(w.astype(np.float64)) for w in weights])
            bias = array([np.linalg.norm(b.astype(np.float64)) for b in biases])
            out.write(f"  {{ \"{name}\", {LR[name]}f, {float(OTHERS.get(name, 1))}f,\n    {{ {array(losses)} }},\n"
                      f"    {{ {first} }},\n    {{ {lengths} }},\n    {{ {bias} }} }},\n")
        out.write("};\n#endif\n")


if __name__ == "__main__":
    main()
