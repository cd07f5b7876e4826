#!/usr/bin/env python3
"""Writes recurrent.h: results and gradients of PyTorch's nn.GRU, nn.LSTM and gather, and of the gated delta rule,
whose loop in float64 is first compared with that of transformers (torch_recurrent_gated_delta_rule).

    python3 tests/golden/make_recurrent.py > tests/golden/recurrent.h

Inputs are rounded to float32 first; everything else is computed in float64 and printed with 9 digits.
PyTorch's weights (G,I) are printed transposed. The two biases of nn.LSTM are only ever added, so their
sum is printed, rounded first. Needs torch, 2.0 or newer, and transformers, 5.24 or newer."""
import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

torch.set_default_dtype(torch.float64)
torch.manual_seed(20261123)
B, T, I, H = 2, 5, 3, 4


def normal(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).float().double()


def number(v):
    word = f"{v:.9g}"
    return word + ("f" if "." in word or "e" in word else ".0f")


def array(name, tensor):
    words = [number(v) for v in tensor.detach().reshape(-1).tolist()]
    print(f"static const float {name}[{len(words)}] = {{")
    line = "   "
    for word in words:
        if len(line) + len(word) > 97:
            print(line)
            line = "   "
        line += f" {word},"
    print(line[:-1] + "\n};")


def case(name, module, steps, biases, start):
    """Runs a layer with weights in gradckpt's layout; the loss is sum(out * r), for an LSTM including
    cells."""
    lstm = module is torch.nn.LSTM
    layer = module(I, H, batch_first=True, bias=biases)
    with torch.no_grad():
        for key, p in layer.named_parameters():
            p.copy_(normal(*p.shape, scale=0.7))
        if lstm and biases:
            layer.bias_hh_l0.zero_()
    x = normal(B, steps, I).requires_grad_()
    state = [normal(B, H).requires_grad_() for _ in range(2 if lstm else 1)] if start else []
    r = normal(B, steps, 2 * H if lstm else H)
    h, c, outs = (state + [None, None])[0], (state + [None, None])[1], []
    for t in range(steps):  # step by step, since nn.LSTM returns only the last cells
        first = None if h is None else (h[None], c[None]) if lstm else h[None]
        out, last = layer(x[:, t : t + 1], first)
        h, c = (last[0][0], last[1][0]) if lstm else (last[0], None)
        outs.append(torch.cat([h, c], 1) if lstm else h)
    out = torch.stack(outs, 1)
    (out * r).sum().backward()
    leaves = [("x", x, False), ("wx", layer.weight_ih_l0, True), ("wh", layer.weight_hh_l0, True)]
    if biases:
        leaves.append(("bx", layer.bias_ih_l0, False))
    if biases and not lstm:
        leaves.append(("bh", layer.bias_hh_l0, False))
    leaves += [(("h0", "c0")[i], s, False) for i, s in enumerate(state)]
    for leaf, value, turned in leaves:
        array(f"{name}_{leaf}", value.T if turned else value)
        array(f"{name}_{leaf}_grad", value.grad.T if turned else value.grad)
    array(f"{name}_out", out)
    array(f"{name}_r", r)
    return (f"    {{ \"{name}\", {int(lstm)}, {steps}, {int(biases)}, {int(start)}, {name}_out, "
            f"{name}_r,\n      {{ "
            + ", ".join(f"{{ {name}_{l}, {name}_{l}_grad }}" for l, _, _ in leaves) + " } }")


def delta(name, heads, key_heads):
    """Runs the gated delta rule with I columns of a key and H / heads of a value."""
    with torch.random.fork_rng():
        torch.manual_seed(20261130)
        q, k = (normal(B, T, I).requires_grad_() for _ in range(2))
        v = normal(B, T, H).requires_grad_()
        decay = (-normal(B, T, heads).abs()).requires_grad_()
        beta = torch.sigmoid(normal(B, T, heads)).float().double().requires_grad_()
        r = normal(B, T, H)
    split = [x.reshape(B, T, n, -1) for x, n in ((q, key_heads), (k, key_heads), (v, heads))]
    qs, ks = (x.repeat_interleave(heads // key_heads, 2) for x in split[:2])
    state, outs = torch.zeros(B, heads, qs.shape[3], split[2].shape[3]), []
    for t in range(T):
        state = state * decay[:, t].exp()[..., None, None]
        left = split[2][:, t] - (ks[:, t, :, :, None] * state).sum(2)
        state = state + ks[:, t, :, :, None] * (beta[:, t, :, None] * left)[:, :, None]
        outs.append((qs[:, t, :, :, None] * state).sum(2) / qs.shape[3] ** 0.5)
    out = torch.stack(outs, 1)
    oracle = torch_recurrent_gated_delta_rule(*split, g=decay, beta=beta)[0]
    assert (out - oracle).abs().max() < 1e-6
    out = out.reshape(B, T, H)
    (out * r).sum().backward()
    leaves = [("q", q), ("k", k), ("v", v), ("decay", decay), ("beta", beta)]
    for leaf, value in leaves:
        array(f"{name}_{leaf}", value)
        array(f"{name}_{leaf}_grad", value.grad)
    array(f"{name}_out", out)
    array(f"{name}_r", r)
    return (f"    {{ \"{name}\", {RULE}, {T}, {heads}, {key_heads}, {name}_out, {name}_r,\n      {{ "
            + ", ".join(f"{{ {name}_{l}, {name}_{l}_grad }}" for l, _ in leaves) + " } }")


RULE = 2
print("/* recurrent.h - written by make_recurrent.py with PyTorch in float64; do not edit. */")
print("#ifndef GOLDEN_RECURRENT_H\n#define GOLDEN_RECURRENT_H")
print(f"enum {{ RECURRENT_ROWS = {B}, RECURRENT_INPUTS = {I}, RECURRENT_UNITS = {H} }};")
rows = [case("gru", torch.nn.GRU, T, True, False), case("gru_started", torch.nn.GRU, 3, True, True),
        case("gru_bare", torch.nn.GRU, T, False, False), case("lstm", torch.nn.LSTM, T, True, False),
        case("lstm_started", torch.nn.LSTM, 3, True, True),
        case("lstm_bare", torch.nn.LSTM, 1, False, False), delta("delta_rule", 2, 1),
        delta("delta_rule_own", 1, 1)]
print("""typedef struct {
    const float *values, *gradient; /* of sum(out * r) */
} recurrent_leaf;
static const struct {
    const char *name;
    int lstm, steps, biases, started; /* lstm: 2 for the gated delta rule, whose heads and key_heads follow steps */
    const float *out, *r;
    recurrent_leaf leaf[7]; /* x, wx, wh, the biases, the initial state; or q, k, v, decay, beta */
} recurrent_cases[] = {""")
print(",\n".join(rows) + "\n};")
x, index = normal(B, 6, I).requires_grad_(), torch.tensor([[5, 0, 5, 2], [1, 1, 1, 0]])
r = normal(B, 4, I)
out = torch.gather(x, 1, index[:, :, None].expand(-1, -1, I))
(out * r).sum().backward()
for name, value in (("x", x), ("out", out), ("r", r), ("grad", x.grad)):
    array("gather_" + name, value)
words = ", ".join(str(i) for i in index.reshape(-1).tolist())
print(f"static const int32_t gather_index[{index.numel()}] = {{ {words} }};")
print("#endif")
