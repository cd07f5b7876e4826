#!/usr/bin/env python3
"""Writes convolutions.h: PyTorch's convolutions and their gradients, channels last, for test_convolutions.c.

    python3 tests/golden/make_convolutions.py > tests/golden/convolutions.h

All numbers are small multiples of 1/64, so every result is exact in float32, in any order of addition. Needs
torch (1.13 was used)."""
import torch
import torch.nn.functional as F

# each case: shape of x, (B,H,W,I) or (B,T,I); O; kernel; stride, padding, dilation, groups, output_padding (None if
# not transposed)
CASES = [
    ((2, 5, 6, 3), 4, (3, 2), (2, 2), (1, 1), (1, 1), 1, None),
    ((1, 7, 5, 4), 6, (2, 3), (1, 2), (2, 1), (2, 1), 2, None),
    ((2, 4, 4, 5), 5, (3, 3), (1, 1), (1, 1), (1, 1), 5, None),
    ((2, 9, 4), 6, (3,), (2,), (1,), (1,), 2, None),
    ((2, 3, 4, 3), 2, (3, 2), (1, 1), (1, 0), (1, 1), 1, (0, 0)),
    ((1, 3, 3, 4), 6, (3, 3), (2, 3), (1, 1), (1, 2), 2, (1, 2)),
    ((2, 4, 3, 4), 4, (4, 4), (2, 2), (1, 1), (1, 1), 4, (0, 0)),
    ((2, 5, 4), 2, (3,), (2,), (1,), (1,), 2, (1,)),
]


def numbers(step, *shape):
    count = 1
    for size in shape:
        count *= size
    return ((torch.arange(count) * step % 23 - 11).double() / 8).reshape(shape)


def last(t):
    return t.movedim(1, -1)


print("/* Written by make_convolutions.py with PyTorch; do not edit. */")
names = []
for i, (size, o, kernel, stride, padding, dilation, groups, more) in enumerate(CASES):
    axes, c = len(kernel), size[-1]
    x = numbers(37, *size).requires_grad_()
    w = numbers(29, *kernel, o // groups if more else c // groups, c if more else o).requires_grad_()
    b = numbers(5, o).requires_grad_()
    torch_w = w.permute(axes + 1, axes, *range(axes))  # from gradckpt's order to (O,I,..), or (I,O,..) if transposed
    f = getattr(F, f"conv_transpose{axes}d" if more else f"conv{axes}d")
    options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    if more:
        options["output_padding"] = more
    y = last(f(x.movedim(-1, 1), torch_w, b, **options))
    y.backward(numbers(31, *y.shape))
    for name, t in (("y", y), ("dx", x.grad), ("dw", w.grad), ("db", b.grad)):
        values = ["%.9g" % v for v in t.detach().flatten().tolist()]
        print("static const double golden_%s%d[%d] = {" % (name, i, len(values)))
        for k in range(0, len(values), 10):
            print("    " + ", ".join(values[k:k + 10]) + ",")
        print("};")
    two = lambda t, usual: "{ %d, %d }" % (usual if axes == 1 else t[0], t[-1])
    names.append("    { %d, %d, { %s }, %d, { %s }, %d, { %s }, { { 0, 0 }, %s, %s, %s, %d, %s, 0, 0 },\n"
                 "      golden_y%d, golden_dx%d, golden_dw%d, golden_db%d }," % (
                     axes, more is not None, ", ".join(map(str, size)), axes + 2, ", ".join(map(str, w.shape)), o,
                     ", ".join(map(str, y.shape)), two(stride, 0), two(padding, 0), two(dilation, 0), groups,
                     two(more or (0, 0), 0), i, i, i, i))
print("static const struct {\n    int axes, transposed;\n    int64_t x[4];\n    int n;\n    int64_t w[4], o, y[4];\n"
      "    gckpt_window window;\n    const double *values, *dx, *dw, *db;\n} golden_convolutions[] = {")
print("\n".join(names))
print("};")
