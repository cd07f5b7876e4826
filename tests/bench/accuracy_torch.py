#!/usr/bin/env python3
"""accuracy_torch.py - what build/accuracy measures, by PyTorch; and its layer norm of rows far from
zero (tests/num/test_accuracy.c has ours). docs/benchmarks/accuracy.tsv has both.

    python3 tests/bench/accuracy_torch.py
"""
import numpy as np
import torch

COLUMNS = 16


def draws(n):
    """2 n numbers in [0,1) by the generator of accuracy.c, taken in turns."""
    state, out = np.uint64(1), np.empty(2 * n, np.float32)
    low = np.uint64(0xFFFFFFFF)
    for i in range(2 * n):
        state = state * np.uint64(1664525) + np.uint64(1013904223) & low
        out[i] = np.float32(int(state) >> 8) / np.float32(16777216)
    return out[0::2], out[1::2]


def worst(got, want):
    return float(np.abs(got.detach().double().numpy() / want - 1).max())


def measure(rows, equal):
    if equal:
        x = np.tile(np.float32(0.1) * np.arange(1, COLUMNS + 1, dtype=np.float32), (rows, 1))
        g = np.full((rows, COLUMNS), 0.3, np.float32)
    else:
        x, g = (d.reshape(rows, COLUMNS) for d in draws(rows * COLUMNS))
        x = np.float32(1) + x
    zeros = lambda *size: torch.zeros(*size, requires_grad=True)
    bias, weight, table = zeros(COLUMNS), zeros(COLUMNS, COLUMNS), zeros(1, COLUMNS)
    gain = torch.ones(COLUMNS, requires_grad=True)
    into = torch.from_numpy(x)
    y = torch.nn.functional.linear(into, weight, bias) + into * gain
    y = y + torch.nn.functional.embedding(torch.zeros(rows, dtype=torch.long), table)
    y.backward(torch.from_numpy(g))
    g, x = g.astype(np.float64), x.astype(np.float64)
    print("%8d %-6s  bias %.1e  gain %.1e  weight %.1e  table %.1e" % (
        rows, "equal" if equal else "random", worst(bias.grad, g.sum(0)),
        worst(gain.grad, (g * x).sum(0)), worst(weight.grad, g.T @ x), worst(table.grad[0], g.sum(0))))


def far_rows():
    at = np.arange(64 * 96).reshape(64, 96)
    x = (1e4 + 5 * np.sin(at * 0.7) * np.cos(at // 96 + at % 96 * 31)).astype(np.float32)
    y = torch.nn.functional.layer_norm(torch.from_numpy(x), (96,)).double().numpy()
    x = x.astype(np.float64)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    print("layer norm, mean 1e4: off by %.1e deviations" % np.abs(y - want).max())


def units(got, want):
    """Units of the last place of floats next to `want`, the most of all."""
    exponent = np.maximum(np.frexp(want)[1], -125)
    return float((np.abs(got.detach().double().numpy() - want) / np.ldexp(1.0, exponent - 24)).max())


def curve(name, op, value, slope, step=61):
    apart = [0.0, 0.0]
    for first in range(0, 1 << 32, step << 20):
        bits = np.arange(first, min(first + (step << 20), 1 << 32), step, dtype=np.uint64)
        x = torch.from_numpy(bits.astype(np.uint32).view(np.float32).copy())
        x = torch.where(torch.isfinite(x), x, torch.zeros(())).requires_grad_()
        y = op(x)
        y.sum().backward()
        wide = x.detach().double().numpy()
        apart = [max(apart[0], units(y, value(wide))), max(apart[1], units(x.grad, slope(wide)))]
    print("%-8s  %.2f units of the last place, gradient %.2f" % (name, *apart))


def main():
    torch.set_num_threads(1)
    print("PyTorch", torch.__version__)
    sigmoid = lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))
    curve("sin", torch.sin, np.sin, np.cos)
    curve("cos", torch.cos, np.cos, lambda x: -np.sin(x))
    curve("softplus", torch.nn.functional.softplus,
          lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), sigmoid)
    for equal in (True, False):
        for rows in (1000, 10000, 100000, 1000000):
            measure(rows, equal)
    far_rows()


main()
