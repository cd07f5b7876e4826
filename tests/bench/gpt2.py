#!/usr/bin/env python3
"""gpt2.py - a training step of GPT-2 in PyTorch, to set ours against: tokens a second and peak bytes.

    python3 tests/bench/gpt2.py --precision bf16 --batch 32 --context 1024 --compile

The model is that of examples/gpt.c (rotary positions, tied head, gelu by tanh, separate q, k, v), random
weights, random tokens; AdamW, fused where there is a GPU; gradients clipped at norm 1; one line of JSON.
What PyTorch does best here is left on: scaled_dot_product_attention, fused AdamW, TF32 off for fp32 (its
products would not be fp32's).
"""
import argparse
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        a = self.ln_1(x)
        q, k, v = (f(a).view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.wte = nn.Embedding(o.vocabulary, o.dim)
        self.blocks = nn.ModuleList(Block(o.dim, o.heads) for _ in range(o.layers))
        self.ln_f = nn.LayerNorm(o.dim)
        size = o.dim // o.heads
        angle = torch.outer(torch.arange(o.context).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    a = argparse.ArgumentParser()
    for name, value in (("layers", 12), ("heads", 12), ("dim", 768), ("context", 1024), ("vocabulary", 50257),
                        ("batch", 32), ("micro-batch", 0), ("steps", 20)):
        a.add_argument("--" + name, type=int, default=value)
    a.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    a.add_argument("--compile", action="store_true")
    o = a.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = GPT(o).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=device == "cuda")
    step_model = torch.compile(model) if o.compile else model
    micro = o.micro_batch or o.batch
    tokens = torch.randint(o.vocabulary, (o.batch, o.context + 1), device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step():
        optimiser.zero_grad(set_to_none=True)
        for i in range(0, o.batch, micro):
            part = tokens[i:i + micro]
            with torch.autocast(device, torch.bfloat16, enabled=o.precision == "bf16"):
                loss = step_model(part[:, :-1], part[:, 1:])
            (loss * (len(part) / o.batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    for _ in range(5):
        step()
    wait()
    times = []
    for _ in range(o.steps):
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    times.sort()
    seconds = times[len(times) // 2]
    json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
               "precision": o.precision, "compiled": o.compile, "batch": o.batch, "micro_batch": micro,
               "seconds": seconds, "tokens_per_second": o.batch * o.context / seconds,
               "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
               "reserved_bytes": torch.cuda.max_memory_reserved() if device == "cuda" else 0}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
