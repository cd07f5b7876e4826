#!/usr/bin/env python3
"""Writes convolution.h: PyTorch's conv2d with stride 2 and padding 1, and its gradients, for
test_user_ops.c.

    python3 tests/golden/make_convolution.py > tests/golden/convolution.h

All numbers are small multiples of 1/64, so every result is exact in float32, in any order of addition.
Needs torch (1.13 was used)."""
import torch


def numbers(step, *shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 23 - 11).double() / 8).reshape(shape)


x, w, b = numbers(37, 2, 3, 5, 6), numbers(29, 4, 3, 3, 2), numbers(5, 4)
for t in (x, w, b):
    t.requires_grad_()
y = torch.nn.functional.conv2d(x, w, b, stride=2, padding=1)
y.backward(numbers(31, *y.shape))
print("/* convolution.h - written by make_convolution.py with PyTorch; do not edit. */")
for name, t in (("y", y), ("dx", x.grad), ("dw", w.grad), ("db", b.grad)):
    values = ["%.9g" % v for v in t.detach().flatten().tolist()]
    print("static const double golden_%s[%d] = { /* %s */" % (name, len(values), tuple(t.shape)))
    for i in range(0, len(values), 8):
        print("    " + ", ".join(values[i:i + 8]) + ",")
    print("};")
