#!/usr/bin/env python3
"""Writes recurrent.h: results and gradients of PyTorch's nn.GRU, nn.LSTM and gather; of rows with lengths, which
nn.GRU and nn.LSTM take as packed sequences; of a GRU with the reset gate before the product, composed of
PyTorch's functions and compared with onnxruntime's GRU; and of the gated delta rule, whose loop in float64 is
first compared with that of transformers (torch_recurrent_gated_delta_rule).

    python3 tests/golden/make_recurrent.py > tests/golden/recurrent.h

Inputs are rounded to float32 first; everything else is computed in float64 and printed with 9 digits.
PyTorch's weights (G,I) are printed transposed. The two biases of nn.LSTM are only ever added, so their
sum is printed, rounded first. Needs torch, 2.0 or newer, transformers, 5.24 or newer, onnx and onnxruntime."""
import numpy as np
import onnx
import onnxruntime
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
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


def before(layer, x, h):
    """Returns the next h of a GRU whose reset gate comes before the product, from x (B,1,I) and h (B,H)."""
    wx, wh = layer.weight_ih_l0.T, layer.weight_hh_l0.T
    p, a = x[:, 0] @ wx + layer.bias_ih_l0, h @ wh[:, : 2 * H] + layer.bias_hh_l0[: 2 * H]
    r, z = torch.sigmoid(p[:, : 2 * H] + a).chunk(2, 1)
    n = torch.tanh(p[:, 2 * H :] + (r * h) @ wh[:, 2 * H :] + layer.bias_hh_l0[2 * H :])
    return n + z * (h - n)


def by_onnx(layer, x, h, lengths):
    """Returns the outputs of onnxruntime's GRU with linear_before_reset = 0, whose gates are in the order z, r, n."""
    order = [g * H + i for g in (1, 0, 2) for i in range(H)]
    w = [p.detach().float().numpy()[order] for p in (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0,
                                                     layer.bias_hh_l0)]
    feeds = {"X": x.detach().float().numpy().swapaxes(0, 1), "W": w[0][None], "R": w[1][None],
             "B": np.concatenate(w[2:])[None], "L": np.array(lengths, np.int32), "h": h.detach().float().numpy()[None]}
    kinds = {np.dtype(np.float32): 1, np.dtype(np.int32): 6}
    node = onnx.helper.make_node("GRU", list(feeds), ["Y"], hidden_size=H, linear_before_reset=0)
    graph = onnx.helper.make_graph(
        [node], "gru", [onnx.helper.make_tensor_value_info(k, kinds[v.dtype], v.shape) for k, v in feeds.items()],
        [onnx.helper.make_tensor_value_info("Y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    y = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    return torch.tensor(y[:, 0].swapaxes(0, 1))


def packed(layer, x, first, lengths):
    """Returns nn.GRU's or nn.LSTM's outputs h and last states of rows with lengths."""
    rows = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    out, last = layer(rows, first)
    return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0], last


def check(name, layer, out, state, x, lengths, is_before):
    """Compares the outputs of a case with those of packed sequences or of onnxruntime."""
    lstm = isinstance(layer, torch.nn.LSTM)
    first = None if not state else tuple(s[None] for s in state) if lstm else state[0][None]
    if is_before:
        y = by_onnx(layer, x, state[0], lengths or [x.shape[1]] * B)
        assert torch.allclose(out.float(), y, rtol=1e-5, atol=1e-6), name
    elif lengths:
        y, last = packed(layer, x, first, lengths)
        assert torch.allclose(out[..., :H], y, rtol=1e-12, atol=1e-14), name
        for i, h in enumerate(last if lstm else [last]):
            for b in range(B):
                assert torch.allclose(out[b, lengths[b] - 1, i * H : (i + 1) * H], h[0, b], rtol=1e-12), name


def case(name, module, steps, biases, start, lengths=None, is_before=False):
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
        if is_before:
            h = before(layer, x[:, t : t + 1], h)
        else:
            out, last = layer(x[:, t : t + 1], first)
            h, c = (last[0][0], last[1][0]) if lstm else (last[0], None)
        outs.append(torch.cat([h, c], 1) if lstm else h)
    out = torch.stack(outs, 1)
    if lengths:
        out = out * (torch.arange(steps) < torch.tensor(lengths)[:, None])[..., None]
    check(name, layer, out, state, x, lengths, is_before)
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
    given = "NULL"
    if lengths:
        given = name + "_lengths"
        print(f"static const int32_t {given}[{B}] = {{ {', '.join(map(str, lengths))} }};")
    return (f"    {{ \"{name}\", {int(lstm)}, {steps}, {int(biases)}, {int(start)}, {int(is_before)}, {given}, "
            f"{name}_out,\n      {name}_r, {{ "
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
    return (f"    {{ \"{name}\", {RULE}, {T}, {heads}, {key_heads}, 0, NULL,\n      {name}_out, {name}_r, {{ "
            + ", ".join(f"{{ {name}_{l}, {name}_{l}_grad }}" for l, _ in leaves) + " } }")


RULE = 2
print("/* recurrent.h - written by make_recurrent.py with PyTorch in float64; do not edit. */")
print("#ifndef GOLDEN_RECURRENT_H\n#define GOLDEN_RECURRENT_H")
print(f"enum {{ RECURRENT_ROWS = {B}, RECURRENT_INPUTS = {I}, RECURRENT_UNITS = {H} }};")
rows = [case("gru", torch.nn.GRU, T, True, False), case("gru_started", torch.nn.GRU, 3, True, True),
        case("gru_bare", torch.nn.GRU, T, False, False), case("lstm", torch.nn.LSTM, T, True, False),
        case("lstm_started", torch.nn.LSTM, 3, True, True),
        case("lstm_bare", torch.nn.LSTM, 1, False, False)]
random = torch.get_rng_state()
rows += [case("gru_lengths", torch.nn.GRU, T, True, True, [3, 5]),
         case("lstm_lengths", torch.nn.LSTM, T, True, True, [4, 1]),
         case("gru_before", torch.nn.GRU, T, True, True, None, True),
         case("gru_before_lengths", torch.nn.GRU, T, True, True, [5, 2], True)]
torch.set_rng_state(random)
rows += [delta("delta_rule", 2, 1), delta("delta_rule_own", 1, 1)]
print("""typedef struct {
    const float *values, *gradient; /* of sum(out * r) */
} recurrent_leaf;
static const struct {
    const char *name;
    int lstm, steps, biases, started, reset_before; /* lstm: 2 for the gated delta rule, whose heads and key_heads follow steps */
    const int32_t *lengths; /* of each row, or NULL */
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
