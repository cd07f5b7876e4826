#!/usr/bin/env python3
"""Writes the files that tests/files/test_axes.c and docs/from-pytorch.md read: cnn.safetensors, a small
convolutional net as PyTorch saves it; cnn_hwio.safetensors, the same after the code in docs/from-pytorch.md
has put its axes into gradckpt's order; cnn.h, the net's results for some images, and the loss with class
weights and label smoothing of docs/from-pytorch.md.

    python3 tests/golden/make_cnn.py
"""
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5))
with torch.no_grad():
    net(torch.randn(8, 3, 2, 4) + 0.5)  # gives running statistics, and a batch count of 1
    net.eval()
    x = (torch.arange(48) * 37 % 23 - 11).float().reshape(2, 3, 2, 4) / 8
    y = net(x)
sd = net.state_dict()
save_file(sd, "tests/golden/cnn.safetensors")
sd["0.weight"] = sd["0.weight"].permute(2, 3, 1, 0).contiguous()
sd["4.weight"] = sd["4.weight"].view(5, 3, 2, 4).permute(0, 2, 3, 1).reshape(5, -1)
save_file(sd, "tests/golden/cnn_hwio.safetensors", metadata={"convolution_axes": "HWIO"})
with open("tests/golden/cnn.h", "w") as f:
    f.write("/* Written by make_cnn.py with PyTorch %s. */\n" % torch.__version__)
    for name, t in (("x", x), ("y", y)):
        f.write("static const float golden_cnn_%s[%d] = { /* %s */\n" % (name, t.numel(), tuple(t.shape)))
        values = ["%.9gf" % v if "." in "%.9g" % v else "%.9g.0f" % v for v in t.flatten().tolist()]
        for i in range(0, len(values), 8):
            f.write("    " + " ".join(v + "," for v in values[i:i + 8]) + "\n")
        f.write("};\n")
    x = torch.tensor([[2, 0.5, -1], [0.1, 1.2, 0.3], [-0.4, 0.2, 1.5], [1, 1, -0.5]])
    w = torch.tensor([0.5, 1, 3])
    loss = F.cross_entropy(x, torch.tensor([0, 1, 2, 0]), weight=w, label_smoothing=0.1).item()
    f.write("#define GOLDEN_CLASS_LOSS %.9g /* class weights with label smoothing */\n" % loss)
