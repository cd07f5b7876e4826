#!/usr/bin/env python3
"""Trains the network of examples/cnn.c with PyTorch: the same layers, initial distributions, data,
batches and hyperparameters, for the comparison in docs/benchmarks/learning.tsv. No test runs it.

    python3 tests/golden/cnn.py [seeds] [epochs]        prints each seed's best epoch"""
import math
import re
import sys
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
WIDTH, BATCH, LR, DECAY, VALIDATION = 16, 64, 3e-3, 0.05, 360


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.shortcut = nn.Conv2d(i, o, 1, stride, bias=False) if i != o else nn.Identity()

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.shortcut(x))


def network():
    w = WIDTH
    return nn.Sequential(nn.Conv2d(1, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(),
                         Block(w, w, 1), Block(w, 2 * w, 2), Block(2 * w, 4 * w, 2),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, 10))


def digits():
    """Reads examples/digits.h and scales the pixels as examples/images.h does."""
    with open("examples/digits.h") as f:
        rows = re.findall(r'"([A-Q]{64}[0-9])"', f.read())
    x = torch.tensor([[ord(c) - 65 for c in r[:64]] for r in rows], dtype=torch.float64)
    trained = x[:-VALIDATION]
    x = ((x - trained.mean()) / trained.std(unbiased=False)).float().reshape(-1, 1, 8, 8)
    return x, torch.tensor([int(r[64]) for r in rows])


def train(seed, epochs):
    torch.manual_seed(seed)
    x, y = digits()
    net, n = network(), len(x) - VALIDATION
    optimiser = torch.optim.AdamW([
        {"params": [p for p in net.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0}], lr=LR)
    steps, step, best = n // BATCH, 0, (math.inf, 0.0)
    for epoch in range(epochs):
        net.train()
        order = torch.randperm(n)
        for i in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = LR * 0.5 * (1 + math.cos(math.pi * step / (steps * epochs)))
            rows = order[i * BATCH:(i + 1) * BATCH]
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
            step += 1
        net.eval()
        with torch.no_grad():
            out = net(x[n:])
        loss = F.cross_entropy(out, y[n:]).item()
        right = (out.argmax(1) == y[n:]).double().mean().item()
        best = min(best, (loss, right))
    return best


seeds, epochs = (int(a) for a in (sys.argv[1:] + ["5", "12"][len(sys.argv) - 1:]))
all_right = []
for seed in range(seeds):
    loss, right = train(seed, epochs)
    all_right.append(100 * right)
    print(f"seed {seed}: validation {loss:.4f}, {100 * right:.1f} % right", flush=True)
print(f"mean {sum(all_right) / seeds:.2f} %")
