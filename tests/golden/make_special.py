#!/usr/bin/env python3
"""Writes special.h: PyTorch's results, in float32, for elementwise ops at kinks, poles and ties, at NaN, infinities,
zeros of both signs and subnormals, and at ordinary values. The ops of one input without attributes, and their names
in PyTorch, are those of tests/unary.h.

    python3 tests/golden/make_special.py > tests/golden/special.h

Excludes arguments for which C's pow, on which gckpt_pow is based, differs from PyTorch's: exponents of
one half, which PyTorch computes as roots, at -0 and -inf; and relu at NaN, where PyTorch's gradient is g (numerics.md,
r1), and mish at infinities, where it is NaN, and where exp(x) is subnormal. Needs torch, 2.15 or newer: earlier versions of clamp treat the limits differently."""
import itertools
import math
import os
import re
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
random = torch.Generator().manual_seed(20261121)
inf, nan = math.inf, math.nan
SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.5, 1e-40, -1e-40,
           1e-20, 3e38, -3e38, 88.9, -104.5, 16777217.0]


def normal(n):
    return (torch.randn(n, generator=random) * 2).tolist()


def word(v):
    if math.isnan(v):
        return "NAN"
    if math.isinf(v):
        return "-INFINITY" if v < 0 else "INFINITY"
    text = f"{v:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def array(name, values):
    print(f"static const float {name}[{len(values)}] = {{")
    line = ""
    for v in values:
        if len(line) + len(word(v)) > 94:
            print("    " + line.rstrip())
            line = ""
        line += word(v) + ", "
    print("    " + line.rstrip(", ") + "\n};")


table = []
# Bits: 1 if terms of the size of x or 1 cancel in the value, 2 if they cancel in the gradient.
CANCELS = {"gelu": 3, "gelu_erf": 3, "silu": 2, "tanh": 2, "mish": 2, "hardswish": 2}


def case(name, function, inputs, by=(0.0, 0.0)):
    x = [torch.tensor(v, dtype=torch.float32, requires_grad=True) for v in inputs]
    y = function(*x)
    n = y.numel()
    g = torch.tensor(([1.0, -2.0, 0.75, 1.0] * n)[:n])
    y.backward(g)
    label = f"special_{len(table)}"
    for i, t in enumerate(x):
        array(f"{label}_x{i}", t.tolist())
        array(f"{label}_d{i}", t.grad.tolist())
    array(f"{label}_g", g.tolist())
    array(f"{label}_y", y.tolist())
    second = [f"{label}_{p}1" if len(x) > 1 else "NULL" for p in "xd"]
    table.append(f"    {{ \"{name}\", {{ {word(by[0])}, {word(by[1])} }}, {len(x)}, {n}, {CANCELS.get(name, 0)},\n"
                 f"      {{ {label}_x0, {second[0]} }}, {{ {label}_d0, {second[1]} }},\n"
                 f"      {label}_g, {label}_y }}")


print("/* special.h - written by make_special.py with PyTorch; do not edit. */")
print("#ifndef SPECIAL_H\n#define SPECIAL_H\n#include <math.h>\n#include <stddef.h>\n")
print("""typedef struct {
    const char *name;
    float by[2]; /* attributes */
    int inputs, n;
    int cancels; /* bits: 1 if terms of the size of x or 1 cancel in the value, 2 if in the gradient */
    const float *x[2], *d[2]; /* inputs and their gradients */
    const float *g, *y;       /* the gradient of the result, the result */
} special_case;
""")
one = SPECIAL + normal(11)
rows = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unary.h")).read()
large = [v + d for v in (20.0, -20.0, -90.0, 17.4) for d in (-0.5, 0.0, 0.5)] + \
    [131072.0, 131073.0, -1e6, 1e10, -1e30] + [50 * v for v in normal(11)]
for name, call in re.findall(r'X\((\w+), .*"(.*)"\)', rows):  # call: "torch.exp" or "F.gelu(approximate='tanh')"
    f, _, more = call.partition("(")
    values = [v for v in one + large if name != "relu" or not math.isnan(v)]
    values = [v for v in values if name != "mish" or not (math.isinf(v) or -104 < v < -87)]
    case(name, lambda x: eval(f"{f}(x, {more or ')'}", {"torch": torch, "F": F, "x": x}), [values])
for e in (1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, 2.5, -1.5, 1 / 3, 0.5, -0.5, 7.0):
    values = one
    if abs(e) == 0.5:
        values = [v for v in one if v != -inf and not (v == 0 and math.copysign(1, v) < 0)]
    e = torch.tensor(e).item()  # the nearest float32
    case("pow", lambda x: x.pow(e), [values], (e, 0.0))
for low, high in ((-1.0, 2.0), (0.0, inf), (-inf, 0.5), (-inf, inf), (1.0, 1.0), (-0.0, 0.0)):
    case("clamp", lambda x: x.clamp(low, high), [one], (low, high))
pairs = list(itertools.product([nan, inf, -inf, 0.0, -0.0, 1.0, -2.0, 1e-40, 3e38], repeat=2))
a = [p[0] for p in pairs] + normal(11)
b = [p[1] for p in pairs] + normal(11)
for name, f in (("div", torch.div), ("maximum", torch.maximum), ("minimum", torch.minimum)):
    case(name, f, [a, b])
case("prelu", lambda x, w: F.prelu(x[None], w)[0], [a, b])
case("log_softmax", lambda x: x.log_softmax(0), [normal(37)])
case("log_softmax", lambda x: x.log_softmax(0), [[1e4, -1e4, 9990.0, 0.0, -inf]])
for slope in (0.0, 0.01, 1.5):
    slope = torch.tensor(slope).item()
    case("leaky_relu", lambda x: F.leaky_relu(x, slope), [one], (slope, 0.0))
for alpha in (1.0, 0.3):
    alpha = torch.tensor(alpha).item()
    case("elu", lambda x: F.elu(x, alpha), [one], (alpha, 0.0))
case("where", lambda a, b: torch.where(a != 0, a, b), [a, b])
print("static const special_case special_cases[] = {\n" + ",\n".join(table) + "\n};\n#endif")
