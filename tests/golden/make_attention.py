"""Writes attention.h: attention with shared key heads and with lengths of the rows' keys, computed by
PyTorch's scaled_dot_product_attention in binary64. tests/attention/test_attention.c computes the inputs by
the same formula.

    python3 tests/golden/make_attention.py > tests/golden/attention.h
"""
import torch
import torch.nn.functional as F


def numbers(seed, *shape):
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (((n * 37 + seed * 11) % 101 - 50) / 32).reshape(shape)


def show(name, t):
    print("static const double golden_%s[%d] = { /* %s */" % (name, t.numel(), tuple(t.shape)))
    values = ["%.17g" % x for x in t.flatten().tolist()]
    for i in range(0, len(values), 5):
        print("    " + ", ".join(values[i:i + 5]) + ",")
    print("};")


print("/* attention.h - written by make_attention.py with PyTorch %s; do not edit. */" % torch.__version__)
D = 3
# each case: B, T, S, heads, key_heads, causal, lengths
for name, b, t, s, heads, key_heads, causal, lengths in (
        ("shared", 2, 3, 5, 4, 2, False, None),
        ("shared_causal", 1, 4, 4, 3, 1, True, None),
        ("lengths", 3, 3, 5, 2, 2, False, (5, 1, 3)),
        ("both", 3, 4, 4, 4, 2, True, (2, 4, 1))):
    q, k, v = [numbers(i, b, x, h * D).requires_grad_() for i, x, h in
               ((1, t, heads), (2, s, key_heads), (3, s, key_heads))]
    split = [x.view(b, -1, h, D).transpose(1, 2) for x, h in ((q, heads), (k, key_heads), (v, key_heads))]
    mask = torch.ones(b, 1, t, s, dtype=torch.bool)
    if causal:
        mask = mask.tril()
    if lengths:
        mask = mask & (torch.arange(s) < torch.tensor(lengths)[:, None])[:, None, None]
    out = F.scaled_dot_product_attention(*split, attn_mask=mask, enable_gqa=True)
    out = out.transpose(1, 2).reshape(b, t, heads * D)
    out.backward(numbers(4, b, t, heads * D))
    for what, x in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
        show("attention_%s_%s" % (name, what), x)

# each case: B, T, S, heads, key_heads, causal, window, cap, scale; computed as in transformers' eager attention of
# Gemma 2
for name, b, t, s, heads, key_heads, causal, window, cap, scale in (
        ("window", 1, 6, 6, 2, 1, True, 3, None, None),
        ("capped", 1, 3, 5, 2, 2, False, None, 1.5, None),
        ("window_capped", 2, 5, 5, 2, 1, True, 2, 2.0, 0.75)):
    q, k, v = [numbers(i, b, x, h * D).requires_grad_() for i, x, h in
               ((1, t, heads), (2, s, key_heads), (3, s, key_heads))]
    wide = [x.view(b, -1, h, D).transpose(1, 2) for x, h in ((q, heads), (k, key_heads), (v, key_heads))]
    wide = [x.repeat_interleave(heads // x.shape[1], 1) for x in wide]
    scores = wide[0] @ wide[1].transpose(2, 3) * (scale or D ** -0.5)
    if cap:
        scores = torch.tanh(scores / cap) * cap
    if causal:
        i, j = torch.arange(t)[:, None] + s - t, torch.arange(s)
        scores = scores.masked_fill((j > i) | (i - j >= (window or s)), -float("inf"))
    out = (scores.softmax(-1) @ wide[2]).transpose(1, 2).reshape(b, t, heads * D)
    out.backward(numbers(4, b, t, heads * D))
    for what, x in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)):
        show("attention_%s_%s" % (name, what), x)

# B, T, S, heads, key_heads; the mask (heads,T,S), which is trained, hides a key of head 1 from query 0
for name, b, t, s, heads, key_heads in (("biased", 2, 3, 5, 4, 2), ("biased_once", 2, 3, 5, 2, 2)):
    q, k, v = [numbers(i, b, x, h * D).requires_grad_() for i, x, h in
               ((1, t, heads), (2, s, key_heads), (3, s, key_heads))]
    mask = numbers(5, heads if heads != key_heads else 1, t, s)
    mask[-1, 0, 2] = -float("inf")
    mask.requires_grad_()
    split = [x.view(b, -1, h, D).transpose(1, 2) for x, h in ((q, heads), (k, key_heads), (v, key_heads))]
    out = F.scaled_dot_product_attention(*split, attn_mask=mask, enable_gqa=True)
    out = out.transpose(1, 2).reshape(b, t, heads * D)
    out.backward(numbers(4, b, t, heads * D))
    for what, x in (("out", out.detach()), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad), ("dmask", mask.grad)):
        show("attention_%s_%s" % (name, what), x)
