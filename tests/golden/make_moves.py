#!/usr/bin/env python3
"""Writes moves.h: PyTorch's pad, max, argmax, topk and interpolate for test_moves.c.

    python3 tests/golden/make_moves.py > tests/golden/moves.h

Computed in float32, in which interpolate computes source positions, from small multiples of 1/16, channels
last. Needs torch (2.15 was used)."""
import torch
import torch.nn.functional as F

HOW = [("nearest", None), ("bilinear", False), ("bilinear", True)]


def numbers(step, *shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 23 - 11).float() / 16).reshape(shape)


def show(name, kind, values):
    print("static const %s golden_%s[%d] = {" % (kind, name, len(values)))
    for i in range(0, len(values), 10):
        print("    " + ", ".join(values[i:i + 10]) + ",")
    print("};")


def case(name, x, f):
    x = x.clone().requires_grad_()
    y = f(x)
    (y * numbers(17, *y.shape)).sum().backward()
    show(name, "double", ["%.8g" % v for t in (y, x.grad) for v in t.detach().flatten().tolist()])


def upsample(x, size, how):
    y = F.interpolate(x.permute(0, 3, 1, 2), size=size, mode=HOW[how][0], align_corners=HOW[how][1])
    return y.permute(0, 2, 3, 1)


def top_k(x, axis, k):
    """Returns the k largest elements and their indices, of equal ones the first; topk leaves that order open."""
    values, indices = (v.narrow(axis, 0, k) for v in x.sort(dim=axis, descending=True, stable=True))
    assert torch.equal(values, x.topk(k, axis).values)
    return values, indices


print("/* moves.h - written by make_moves.py with PyTorch; do not edit. */")
x = numbers(19, 2, 3, 4, 2)
case("pad", x, lambda x: F.pad(x, (0, 0, 1, 3), value=0.5))
case("pad_last", x, lambda x: F.pad(x, (2, 0), value=-1.25))
case("reflect", x, lambda x: F.pad(x.permute(0, 1, 3, 2).reshape(1, 12, 4), (3, 2), "reflect")
     .reshape(2, 3, 2, 9).permute(0, 1, 3, 2))
case("replicate", x, lambda x: F.pad(x.reshape(2, 3, 8).permute(0, 2, 1), (2, 4), "replicate")
     .permute(0, 2, 1).reshape(2, 9, 4, 2))
case("max", x, lambda x: x.max(dim=1).values)      # only 23 different values, so some maxima occur twice
case("max_last", numbers(19, 2, 30), lambda x: x.max(dim=-1).values)
show("argmax", "int", ["%d" % v for v in x.argmax(dim=2).flatten().tolist()])
show("argmax_last", "int", ["%d" % v for v in numbers(19, 2, 30).argmax(dim=-1).flatten().tolist()])
case("top_k", x, lambda x: top_k(x, 2, 3)[0])
case("top_k_last", numbers(19, 2, 30), lambda x: top_k(x, -1, 7)[0])
show("top_k_indices", "int", ["%d" % v for v in top_k(numbers(19, 2, 30), -1, 7)[1].flatten().tolist()])
for how in range(3):
    case("larger%d" % how, x, lambda x: upsample(x, (5, 7), how))
    case("smaller%d" % how, x, lambda x: upsample(x, (2, 3), how))
    case("one%d" % how, x, lambda x: upsample(x, (1, 4), how))
    case("twice%d" % how, x, lambda x: upsample(x, (6, 8), how))

# The source positions of upsampling: upsampling the line 0, 1, .. returns them. For the first two sizes, the nearest
# pixels depend on whether positions are computed in float32 or in integers.
pairs = [(26, 22), (4, 166), (7, 3), (100, 33)]
for k, (m, n) in enumerate(pairs):
    line = torch.arange(m).float().reshape(1, 1, m, 1)
    for how in range(0 if k < 2 else 1, 1 if k < 2 else 3):
        show("places_%d_%d_%d" % (m, n, how), "double",
             ["%.8g" % v for v in upsample(line, (1, n), how).flatten().tolist()])
