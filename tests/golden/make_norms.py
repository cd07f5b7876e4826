#!/usr/bin/env python3
"""Writes norms.h: PyTorch's pools, group norm and batch norm for test_buffers.c.

    python3 tests/golden/make_norms.py > tests/golden/norms.h

In float64, from small multiples of 1/16, channels last. Needs torch (2.15 was used)."""
import torch
import torch.nn.functional as F


def numbers(step, *shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 23 - 11).double() / 16).reshape(shape)


def leaf(t):
    return t.clone().requires_grad_()


def show(name, *tensors):
    values = ["%.9g" % v for t in tensors for v in t.detach().flatten().tolist()]
    print("static const double golden_%s[%d] = {" % (name, len(values)))
    for i in range(0, len(values), 8):
        print("    " + ", ".join(values[i:i + 8]) + ",")
    print("};")


def first(t):  # channels first
    return t.movedim(-1, 1)


def last(t):
    return t.movedim(1, -1)


print("/* norms.h - written by make_norms.py with PyTorch; do not edit. */")

# Prints the result y of an op of x (and of gain and bias), and the gradients of sum(y r).
def case(name, x, f, *leaves):
    y = last(f(first(x), *leaves))
    (y * numbers(17, *y.shape)).sum().backward()
    show(name, y, x.grad, *[t.grad for t in leaves])


case("max", leaf(numbers(19, 2, 5, 6, 3)), lambda x: F.max_pool2d(x, (3, 2), (2, 2), (1, 0)))
case("max_1d", leaf(numbers(13, 2, 7, 4)), lambda x: F.max_pool1d(x, 3, 1, 1))
case("average", leaf(numbers(19, 2, 5, 6, 3)), lambda x: F.avg_pool2d(x, (2, 3), (1, 2), (0, 1)))
case("average_1d", leaf(numbers(13, 2, 7, 4)), lambda x: F.avg_pool1d(x, 2))
case("max_ceil", leaf(numbers(19, 2, 5, 6, 3)), lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 1), (1, 2), True))
case("max_dilated", leaf(numbers(13, 2, 9, 4)), lambda x: F.max_pool1d(x, 3, 1, 1, 2))
case("average_ceil", leaf(numbers(19, 2, 5, 6, 3)), lambda x: F.avg_pool2d(x, (2, 3), (2, 2), (1, 1), True))
case("average_inside", leaf(numbers(19, 2, 5, 6, 3)),
     lambda x: F.avg_pool2d(x, (2, 3), (2, 2), (1, 1), True, False))
case("average_inside_1d", leaf(numbers(13, 2, 7, 4)), lambda x: F.avg_pool1d(x, 3, 2, 1, False, False))
case("global", leaf(numbers(19, 2, 5, 6, 3)), lambda x: F.adaptive_avg_pool2d(x, 1))
gain, bias = lambda c: leaf(1 + numbers(7, c)), lambda c: leaf(numbers(5, c))
case("group", leaf(numbers(19, 2, 5, 6, 8)), lambda x, g, b: F.group_norm(x, 2, g, b), gain(8), bias(8))
case("group_bias", leaf(numbers(19, 3, 4, 6)), lambda x, b: F.group_norm(x, 3, None, b), bias(6))
case("group_none", leaf(numbers(19, 3, 40)), lambda x: F.group_norm(x, 1))
case("batch", leaf(numbers(19, 2, 5, 6, 8)),
     lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True), gain(8), bias(8))
case("group_eps", leaf(numbers(19, 3, 4, 6)), lambda x, g, b: F.group_norm(x, 2, g, b, 1e-6), gain(6), bias(6))
case("batch_eps", leaf(numbers(19, 6, 4)),
     lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True, eps=1e-3), gain(4), bias(4))
case("batch_none", leaf(numbers(19, 6, 4)), lambda x: F.batch_norm(x, None, None, training=True))

# Three steps of SGD with a net of two batch norms; a step has 6 rows, in micro-batches of 4 and 2. Running statistics
# change once a step, towards the mean over micro-batches, weighted by rows. Then prints the loss in inference.
B, H, W, I, C = 6, 4, 5, 3, 4
x, t = numbers(37, 3, B, H, W, I), numbers(11, 3, B, C)
p = [leaf(numbers(29, I, C)), leaf(1 + numbers(7, C)), leaf(numbers(5, C)), leaf(numbers(3, C, C))]
running = [torch.zeros(C).double(), torch.ones(C).double(), torch.zeros(C).double(), torch.ones(C).double()]


def net(x, statistics, training):
    h = F.batch_norm(first(x @ p[0]), statistics[0], statistics[1], p[1], p[2], training, 1.0)
    h = F.max_pool2d(torch.tanh(h), 2, 2)
    h = F.batch_norm(first(last(h) @ p[3]), statistics[2], statistics[3], None, None, training, 1.0)
    return (h * h).mean((2, 3))


losses = []
for step in range(3):
    seen = [torch.zeros(C).double() for _ in running]
    total = 0
    for begin, end in (0, 4), (4, 6):
        measured = [torch.zeros(C).double() for _ in running]
        loss = ((net(x[step, begin:end], measured, True) - t[step, begin:end]) ** 2).sum() / (B * C)
        loss.backward()
        total += loss.item()
        for s, m in zip(seen, measured):
            s += m * (end - begin) / B
    with torch.no_grad():
        for q in p:
            q -= 0.25 * q.grad
            q.grad = None
        for r, s, m in zip(running, seen, (0.25, 0.25, 0.5, 0.5)):
            r += m * (s - r)
    losses.append(total)
losses.append(((net(x[0], running, False) - t[0]) ** 2).mean().item())
show("losses", torch.tensor(losses).double())
show("parameters", *p)
show("running", *running)
