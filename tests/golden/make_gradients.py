#!/usr/bin/env python3
"""Writes gradients.h: PyTorch's gradients of inputs for test_gradients.c.

    python3 tests/golden/make_gradients.py > tests/golden/gradients.h

In float64, from small multiples of 1/16. Needs torch (2.15 was used)."""
import torch
import torch.nn.functional as F


def numbers(step, *shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 23 - 11).double() / 16).reshape(shape)


def leaf(t):
    return t.clone().requires_grad_()


def show(name, t):
    values = ["%.9g" % v for v in t.detach().flatten().tolist()]
    print("static const double golden_%s[%d] = { /* %s */" % (name, len(values), tuple(t.shape)))
    for i in range(0, len(values), 8):
        print("    " + ", ".join(values[i:i + 8]) + ",")
    print("};")


print("/* gradients.h - written by make_gradients.py with PyTorch; do not edit. */")

# A classifier of rows of 8 values in 5 classes; targets below 0 are not counted; k is a constant.
x, k = leaf(numbers(37, 6, 8)), leaf(numbers(13, 8))
w1, b1, gain, w2 = numbers(29, 8, 10), numbers(5, 10), 1 + numbers(7, 10), numbers(31, 10, 5)
h = F.gelu(F.layer_norm((x * k + k) @ w1 + b1, (10,), gain), approximate="tanh")
loss = F.cross_entropy(h @ w2, torch.tensor([0, 3, -1, 4, 1, 1]), ignore_index=-1, reduction="sum")
loss.backward()
show("classes_loss", loss.reshape(1))
show("classes_dx", x.grad)
show("classes_dk", k.grad)

# Causal self-attention with two heads over x (two rows of 5 positions with 6 columns), and a squared error of x plus
# its result against y.
x, y = leaf(numbers(19, 2, 5, 6)), leaf(numbers(11, 2, 5, 6))
w = numbers(3, 6, 18)
q, key, v = [t.reshape(2, 5, 2, 3).transpose(1, 2) for t in (x @ w).split(6, dim=2)]
a = F.scaled_dot_product_attention(q, key, v, is_causal=True).transpose(1, 2).reshape(2, 5, 6)
loss = ((x + a - y) ** 2).sum()
loss.backward()
show("attention_loss", loss.reshape(1))
show("attention_dx", x.grad)
show("attention_dy", y.grad)
