#!/usr/bin/env python3
"""Writes golden.h: PyTorch's results for every op, and for two short trainings of a small GPT.

    python3 tests/golden/make_golden.py > tests/golden/golden.h

Inputs are rounded to float32 first; everything else is computed in float64 and printed with 9 digits. Seeds
are fixed: the file changes only with this script. Needs torch, 2.0 or newer."""
import math
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
random = torch.Generator().manual_seed(20240601)


def normal(*shape, scale=1.0):
    """Random values that are exactly representable as float32."""
    return (torch.randn(*shape, generator=random) * scale).float().double()


def integers(low, high, *shape):
    return torch.randint(low, high, shape, generator=random)


def print_array(kind, name, tensor):
    values = tensor.detach().reshape(-1).tolist()
    print(f"static const {kind} {name}[{len(values)}] = {{")
    line = ""
    for v in values:
        if kind == "int32_t":
            word = str(int(v))
        else:
            word = f"{v:.9g}"
            word += "f" if ("." in word or "e" in word) else ".0f"
        if len(line) + len(word) > 96:
            print("    " + line.rstrip())
            line = ""
        line += word + ", "
    print("    " + line.rstrip(", ") + "\n};")


def shape_words(tensor):
    sizes = list(tensor.shape)
    return f"{len(sizes)}, {{ " + ", ".join(str(s) for s in sizes + [0] * (4 - len(sizes))) + " }"


# == one case per op ===============================================================================
# A case has inputs (kind, tensor): kind 'x' has a batch axis (2 rows), 'p' is a parameter, 'i' is int32 with a batch
# axis. The gradients printed are those of sum(out * r); a loss returns (sum, count), and its gradients are those of
# the sum.
B = 2


def attention(q, k, v, heads, causal):
    b, t, c = q.shape
    s = k.shape[1]
    q, k, v = (z.reshape(b, -1, heads, c // heads).transpose(1, 2) for z in (q, k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // heads)
    if causal:
        scores = scores.masked_fill(torch.ones(t, s).triu(1).bool(), -math.inf)
    return (scores.softmax(3) @ v).transpose(1, 2).reshape(b, t, c)


def rotary(x, heads, base):
    """Rotates as GPT-NeoX does: columns i and i + D/2 by the angle position * base^(-2i/D)."""
    b, t, c = x.shape
    d = c // heads
    x = x.reshape(b, t, heads, d)
    angle = torch.arange(t)[:, None] * base ** (-2.0 * torch.arange(d // 2) / d)
    cos, sin = angle.cos()[None, :, None, :], angle.sin()[None, :, None, :]
    a, z = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - z * sin, a * sin + z * cos], 3).reshape(b, t, c)


def rmsnorm(x, gain):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long(),
                           ignore_index=-1, reduction="sum")


targets = integers(0, 7, B, 3)
targets[0, 1] = -1
X, P, I = "x", "p", "i"
cases = [
    ("add", [(X, normal(B, 3, 4)), (P, normal(4))], torch.add),
    ("sub", [(X, normal(B, 3, 1)), (P, normal(3, 4))], torch.sub),
    ("mul", [(X, normal(B, 3, 4)), (P, normal(3, 1))], torch.mul),
    ("mul_same", [(X, normal(B, 5))], lambda x: x * x),
    ("scale", [(X, normal(B, 5))], lambda x: -2.5 * x),
    ("relu", [(X, normal(B, 9))], F.relu),
    ("gelu", [(X, normal(B, 9, scale=2))], lambda x: F.gelu(x, approximate="tanh")),
    ("gelu_erf", [(X, normal(B, 9, scale=2))], F.gelu),
    ("silu", [(X, normal(B, 9, scale=3))], F.silu),
    ("tanh", [(X, normal(B, 9))], torch.tanh),
    ("sigmoid", [(X, normal(B, 9, scale=3))], torch.sigmoid),
    ("softmax", [(X, normal(B, 2, 7, scale=2))], lambda x: x.softmax(-1)),
    ("layernorm", [(X, normal(B, 3, 6)), (P, normal(6)), (P, normal(6))],
     lambda x, g, b: F.layer_norm(x, (6,), g, b, 1e-5)),
    ("rmsnorm", [(X, normal(B, 3, 6)), (P, normal(6))], rmsnorm),
    ("linear", [(X, normal(B, 3, 5)), (P, normal(5, 4)), (P, normal(4))],
     lambda x, w, b: x @ w + b),
    ("linear_transposed", [(X, normal(B, 3, 5)), (P, normal(4, 5)), (P, normal(4))], F.linear),
    ("linear_no_bias", [(X, normal(B, 5)), (P, normal(5, 4))], lambda x, w: x @ w),
    ("matmul", [(X, normal(B, 3, 5)), (X, normal(B, 5, 4))], torch.matmul),
    ("matmul_shared", [(X, normal(B, 3, 5)), (P, normal(5, 4))], torch.matmul),
    ("matmul_transposed", [(X, normal(B, 3, 5)), (X, normal(B, 4, 5))],
     lambda a, b: a @ b.transpose(-1, -2)),
    ("embed", [(P, normal(6, 4)), (I, integers(0, 6, B, 5))], lambda t, i: t[i]),
    ("positions", [(X, normal(B, 3, 4)), (P, normal(5, 4))], lambda x, t: x + t[: x.shape[1]]),
    ("attention_causal", [(X, normal(B, 5, 8)), (X, normal(B, 5, 8)), (X, normal(B, 5, 8))],
     lambda q, k, v: attention(q, k, v, 2, True)),
    ("attention_cross", [(X, normal(B, 3, 6)), (X, normal(B, 5, 6)), (X, normal(B, 5, 6))],
     lambda q, k, v: attention(q, k, v, 3, False)),
    ("attention_same", [(X, normal(B, 4, 6))], lambda x: attention(x, x, x, 1, True)),
    ("rotary", [(X, normal(B, 5, 8))], lambda x: rotary(x, 2, 10000.0)),
    ("permute", [(X, normal(B, 3, 2, 4))], lambda x: x.permute(0, 2, 3, 1)),
    ("slice", [(X, normal(B, 5, 4))], lambda x: x[:, 1:4]),
    ("concat", [(X, normal(B, 2, 4)), (X, normal(B, 3, 4))], lambda a, b: torch.cat([a, b, a], 1)),
    ("reshape", [(X, normal(B, 3, 4))], lambda x: x.reshape(B, 12)),
    ("sum", [(X, normal(B, 3, 4))], lambda x: x.sum(1)),
    ("mean", [(X, normal(B, 3, 4))], lambda x: x.mean(2)),
    ("cross_entropy", [(X, normal(B, 3, 7, scale=3)), (I, targets)],
     lambda x, t: (cross_entropy(x, t), int((t >= 0).sum()))),
    ("linear_cross_entropy", [(X, normal(B, 3, 4)), (P, normal(7, 4)), (I, targets)],
     lambda x, w, t: (cross_entropy(x @ w.T, t), int((t >= 0).sum()))),
    ("mean_squared_error", [(X, normal(B, 3, 4)), (X, normal(B, 3, 4))],
     lambda a, b: (F.mse_loss(a, b, reduction="sum"), a.numel())),
    ("sum_loss", [(X, normal(B, 3, 4))], lambda x: (x.sum(), x.numel())),
]

print("/* golden.h - written by make_golden.py with PyTorch in float64; do not edit. */")
print("#ifndef GOLDEN_H\n#define GOLDEN_H\n#include <stdint.h>\n")
print("""typedef struct {
    const char *name;
    char kind;                  /* x: batch axis; p: parameter; i: int32, batch axis; o: output */
    int n, d[4];
    const float *values;
    const int32_t *index;
    const float *gradient;      /* of sum(out * r), or of the loss's sum */
} golden_tensor;
typedef struct {
    const char *name;
    int inputs;
    golden_tensor in[3];
    golden_tensor out;          /* n is 0 for a loss */
    const float *r;
    double sum;
    int64_t count;
} golden_case;
typedef struct {                /* a parameter of the GPT */
    golden_tensor initial;      /* with the gradient of step 1, divided by the tokens */
    double norm, norm_accumulated;  /* of the weights after both trainings */
} golden_parameter;
""")
table = []


def print_case(name, inputs, function):
    tensors, row = [], []
    for j, (kind, value) in enumerate(inputs):
        tensors.append(value.clone().requires_grad_() if kind != I else value)
    out = function(*tensors)
    loss = isinstance(out, tuple)
    if loss:
        out[0].backward()
    else:
        r = normal(*out.shape)
        (out * r).sum().backward()
    for j, (kind, _) in enumerate(inputs):
        t, array = tensors[j], f"golden_{name}_{j}"
        print_array("int32_t" if kind == I else "float", array, t)
        if kind != I:
            print_array("float", array + "_grad", t.grad)
        row.append(f"{{ \"{kind}{j}\", '{kind}', {shape_words(t)}, " + (
            f"0, {array}, 0 }}" if kind == I else f"{array}, 0, {array}_grad }}"))
    row += ["{ 0, 0, 0, { 0, 0, 0, 0 }, 0, 0, 0 }"] * (3 - len(inputs))
    body = ",\n      ".join(row)
    if loss:
        table.append(f"    {{ \"{name}\", {len(inputs)}, {{ {body} }},\n"
                     f"      {{ \"loss\", 'o', 0, {{ 0, 0, 0, 0 }}, 0, 0, 0 }}, 0, "
                     f"{out[0].item():.17g}, {out[1]} }}")
    else:
        print_array("float", f"golden_{name}_out", out)
        print_array("float", f"golden_{name}_r", r)
        table.append(f"    {{ \"{name}\", {len(inputs)}, {{ {body} }},\n"
                     f"      {{ \"out\", 'o', {shape_words(out)}, golden_{name}_out, 0, 0 }}, "
                     f"golden_{name}_r, 0, 0 }}")


for case in cases:
    print_case(*case)
# The cases below draw from another seed, so that they do not change the values of the cases above.
rest = random.get_state()
random.manual_seed(20261121)
seen = torch.arange(7)[None, :] <= torch.arange(3)[:, None] + 4  # the last query sees all keys
print_case("attention_more_keys",
           [(X, normal(B, 3, 8)), (X, normal(B, 7, 8)), (X, normal(B, 7, 8))],
           lambda *qkv: F.scaled_dot_product_attention(
               *(z.unflatten(2, (2, 4)).transpose(1, 2) for z in qkv), attn_mask=seen
           ).transpose(1, 2).flatten(2))


def entropy(x, t, w, **options):
    """Returns the weighted sum over rows, and the number of rows that are not ignored."""
    v = x.shape[-1]
    hard = t.dim() < x.dim()
    rows = F.cross_entropy(x.reshape(-1, v), t.reshape(-1).long() if hard else t.reshape(-1, v),
                           reduction="none", ignore_index=-1, **options).reshape(x.shape[:-1])
    w = w.reshape(w.shape + (1,) * (rows.dim() - w.dim()))
    return (rows * w).sum(), int((t >= 0).sum()) if hard else rows.numel()


def weighted(rows, w):
    return (rows * w.reshape(w.shape + (1,) * (rows.dim() - w.dim()))).sum(), rows.numel()


# Losses with weights. Elementwise losses are also tested at their kinks, where the difference is delta or 0.
random.manual_seed(20261122)
one = torch.ones(B)
apart, near = normal(B, 3, 4), normal(B, 3, 4)
near[0, 0] = apart[0, 0] + torch.tensor([0.5, -0.5, 0, 2])
apart, near = apart.float().double(), near.float().double()
apart[0, 0] = near[0, 0] - torch.tensor([0.5, -0.5, 0, 2])
logits = normal(B, 3, 4, scale=4)
logits[0, 0] = torch.tensor([0, -0.0, 90, -1000])
for case in [
    ("cross_entropy_weights", [(X, normal(B, 3, 7, scale=3)), (I, targets), (X, normal(B, 3))],
     entropy),
    ("cross_entropy_smoothed", [(X, normal(B, 3, 7, scale=3)), (I, targets)],
     lambda x, t: entropy(x, t, one, label_smoothing=0.1)),
    ("cross_entropy_with", [(X, normal(B, 3, 7, scale=3)), (I, targets), (X, normal(B))],
     lambda x, t, w: entropy(x, t, w, label_smoothing=0.25)),
    ("soft_cross_entropy", [(X, normal(B, 3, 7, scale=3)), (X, normal(B, 3, 7)), (X, normal(B))],
     entropy),
    ("mean_squared_error_with", [(X, normal(B, 3, 4)), (X, normal(B, 3, 4)), (X, normal(B, 3))],
     lambda x, y, w: weighted(F.mse_loss(x, y, reduction="none"), w)),
    ("huber", [(X, near), (X, apart)],
     lambda x, y: weighted(F.huber_loss(x, y, reduction="none", delta=0.5), one)),
    ("huber_weights", [(X, normal(B, 3, 4)), (X, normal(B, 3, 4)), (X, normal(B, 3, 4))],
     lambda x, y, w: weighted(F.huber_loss(x, y, reduction="none", delta=0.5), w)),
    ("binary_cross_entropy", [(X, logits), (X, normal(B, 3, 4).sigmoid().float().double()),
                              (X, normal(B, 3))],
     lambda x, y, w: weighted(F.binary_cross_entropy_with_logits(x, y, reduction="none"), w)),
]:
    print_case(*case)
# PyTorch's mean with class weights divides by the sum of the weights of the rows, not by their number.
classes = (normal(7) ** 2 + 0.25).float().double()
logits = normal(B, 3, 7, scale=3).requires_grad_()
mean = F.cross_entropy(logits.reshape(-1, 7), targets.reshape(-1).long(), weight=classes,
                       ignore_index=-1)
mean.backward()
for name, values in (("logits", logits), ("classes", classes), ("gradient", logits.grad)):
    print_array("float", "golden_weighted_mean_" + name, values)
print_array("int32_t", "golden_weighted_mean_targets", targets)
print(f"static const double golden_weighted_mean = {mean.item():.17g};")
# Norms with another epsilon than the default, and rotary positions on a part of each head with given frequencies.
random.manual_seed(20261123)


def part(x, heads, frequencies, scale):
    """Rotates the first 2 len(frequencies) columns of each head; cos and sin are scaled."""
    r = 2 * len(frequencies)
    x = x.unflatten(2, (heads, -1))
    angle = torch.arange(x.shape[1])[:, None] * torch.tensor(frequencies).float().double()
    cos, sin = scale * angle.cos()[None, :, None, :], scale * angle.sin()[None, :, None, :]
    a, z = x[..., : r // 2], x[..., r // 2 : r]
    return torch.cat([a * cos - z * sin, a * sin + z * cos, x[..., r:]], 3).flatten(2)


for case in [
    ("layernorm_eps", [(X, normal(B, 3, 6, scale=0.1)), (P, normal(6)), (P, normal(6))],
     lambda x, g, b: F.layer_norm(x, (6,), g, b, 2.0 ** -6)),
    ("rmsnorm_eps", [(X, normal(B, 3, 6, scale=0.1)), (P, normal(6))],
     lambda x, g: F.rms_norm(x, (6,), g, 2.0 ** -6)),
    ("rotary_with", [(X, normal(B, 5, 12))], lambda x: part(x, 2, [0.5, 0.0625], 1.25)),
]:
    print_case(*case)
for case in [  # products of broadcast operands, and of vectors
    ("matmul_left", [(P, normal(3, 5)), (X, normal(B, 5, 4))], torch.matmul),
    ("matmul_broadcast", [(X, normal(B, 1, 3, 5)), (P, normal(2, 5, 4))], torch.matmul),
    ("matmul_row", [(P, normal(5)), (X, normal(B, 5, 4))], torch.matmul),
    ("matmul_column", [(X, normal(B, 3, 5)), (P, normal(5))], torch.matmul),
    ("matmul_transposed_broadcast", [(P, normal(2, 3, 5)), (X, normal(B, 1, 4, 5))],
     lambda a, b: a @ b.transpose(-1, -2)),
]:
    print_case(*case)
random.set_state(rest)
print("static const golden_case golden_cases[] = {\n" + ",\n".join(table) + "\n};\n")

# == a small GPT ===================================================================================
LAYERS, DIM, HEADS, VOCAB, CONTEXT, STEPS = 2, 16, 2, 29, 12, 10
LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-3, 0.9, 0.999, 1e-8, 0.1, 1.0


def initial_weights():
    # q, k, v have no bias: the gradient of a key's bias is 0 except for rounding, which Adam amplifies.
    w = {"wte": normal(VOCAB, DIM, scale=0.4), "wpe": normal(CONTEXT, DIM, scale=0.2)}
    for i in range(LAYERS):
        w[f"h{i}.ln1.gain"] = 1 + normal(DIM, scale=0.1)
        w[f"h{i}.ln1.bias"] = normal(DIM, scale=0.1)
        for part in ("q", "k", "v"):
            w[f"h{i}.{part}"] = normal(DIM, DIM, scale=0.3)
        w[f"h{i}.proj.w"] = normal(DIM, DIM, scale=0.2)
        w[f"h{i}.proj.b"] = normal(DIM, scale=0.1)
        w[f"h{i}.ln2.gain"] = 1 + normal(DIM, scale=0.1)
        w[f"h{i}.ln2.bias"] = normal(DIM, scale=0.1)
        w[f"h{i}.up.w"] = normal(DIM, 4 * DIM, scale=0.25)
        w[f"h{i}.up.b"] = normal(4 * DIM, scale=0.1)
        w[f"h{i}.down.w"] = normal(4 * DIM, DIM, scale=0.1)
        w[f"h{i}.down.b"] = normal(DIM, scale=0.1)
    w["ln.gain"] = 1 + normal(DIM, scale=0.1)
    w["ln.bias"] = normal(DIM, scale=0.1)
    return {name: value.float().double() for name, value in w.items()}


def gpt_loss(w, tokens, targets):
    """Returns the sum of the cross-entropy over tokens with a target."""
    x = w["wte"][tokens] + w["wpe"]
    for i in range(LAYERS):
        h = f"h{i}."
        a = F.layer_norm(x, (DIM,), w[h + "ln1.gain"], w[h + "ln1.bias"], 1e-5)
        a = attention(a @ w[h + "q"], a @ w[h + "k"], a @ w[h + "v"], HEADS, True)
        x = x + a @ w[h + "proj.w"] + w[h + "proj.b"]
        a = F.layer_norm(x, (DIM,), w[h + "ln2.gain"], w[h + "ln2.bias"], 1e-5)
        a = F.gelu(a @ w[h + "up.w"] + w[h + "up.b"], approximate="tanh")
        x = x + a @ w[h + "down.w"] + w[h + "down.b"]
    x = F.layer_norm(x, (DIM,), w["ln.gain"], w["ln.bias"], 1e-5)
    return cross_entropy(x @ w["wte"].T, targets)


def train(start, tokens, targets, micro):
    """Trains with torch.optim.AdamW; gradients are summed over micro-batches and divided once. Clips by hand,
    because torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm."""
    w = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimiser = torch.optim.AdamW([
        {"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0}],
        lr=LR, betas=(BETA1, BETA2), eps=EPS)
    count = int((targets >= 0).sum())
    losses, norms, first = [], [], {}
    for step in range(STEPS):
        optimiser.zero_grad()
        total = 0.0
        for row in range(0, len(tokens), micro):
            loss = gpt_loss(w, tokens[row:row + micro], targets[row:row + micro])
            loss.backward()
            total += loss.item()
        for p in w.values():
            p.grad /= count
        norm = math.sqrt(sum(float((p.grad ** 2).sum()) for p in w.values()))
        if step == 0:
            first = {name: p.grad.clone() for name, p in w.items()}
        if norm > CLIP:
            for p in w.values():
                p.grad *= CLIP / norm
        optimiser.step()
        losses.append(total / count)
        norms.append(norm)
    return losses, norms, first, {name: float(p.detach().norm()) for name, p in w.items()}


weights = initial_weights()
tokens = integers(0, VOCAB, 4, CONTEXT)
targets = torch.roll(tokens, -1, 1)
losses, norms, gradients, final = train(weights, tokens, targets, 4)
tokens2 = integers(0, VOCAB, 8, CONTEXT)
targets2 = torch.roll(tokens2, -1, 1)
targets2[torch.rand(8, CONTEXT, generator=random) < 0.3] = -1
targets2[2] = -1                                                        # a row without any target
targets2[5, 1:] = -1
losses2, norms2, _, final2 = train(weights, tokens2, targets2, 3)   # micro-batches of 3, 3, 2 rows

print(f"enum {{ GOLDEN_LAYERS = {LAYERS}, GOLDEN_DIM = {DIM}, GOLDEN_HEADS = {HEADS},\n"
      f"       GOLDEN_VOCAB = {VOCAB}, GOLDEN_CONTEXT = {CONTEXT}, GOLDEN_STEPS = {STEPS},\n"
      f"       GOLDEN_ROWS = 4, GOLDEN_ROWS_ACCUMULATED = 8,\n"
      f"       GOLDEN_COUNT_ACCUMULATED = {int((targets2 >= 0).sum())} }};")
print_array("int32_t", "golden_tokens", tokens)
print_array("int32_t", "golden_targets", targets)
print_array("int32_t", "golden_tokens_accumulated", tokens2)
print_array("int32_t", "golden_targets_accumulated", targets2)
for name, values in (("losses", losses), ("norms", norms), ("losses_accumulated", losses2),
                     ("norms_accumulated", norms2)):
    print(f"static const double golden_{name}[GOLDEN_STEPS] = {{ " + ",\n    ".join(
        f"{v:.17g}" for v in values) + " };")
rows = []
for name, value in weights.items():
    array = "golden_gpt_" + name.replace(".", "_")
    print_array("float", array, value)
    print_array("float", array + "_grad", gradients[name])
    rows.append(f"    {{ {{ \"{name}\", 'p', {shape_words(value)}, {array}, 0, {array}_grad }},\n"
                f"      {final[name]:.17g}, {final2[name]:.17g} }}")
print("static const golden_parameter golden_parameters[] = {\n" + ",\n".join(rows) + "\n};")
print("#endif")
