#!/usr/bin/env python3
"""Writes the expected results for the two nets of docs/from-pytorch.md, which tests/examples/test_docs.sh
compares: a small ResNet with torchvision's names and a small LSTM classifier as PyTorch saves them
(resnet.safetensors, lstm.safetensors), and nets.h with logits, the losses of ten steps and the logits after
these.

    python3 tests/golden/make_nets.py             writes them
    python3 tests/golden/make_nets.py FOLDER      strictly loads the files that the page's programs saved there, and
compares
"""
import sys
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = None
        if stride > 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, stages, blocks, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = stages
        for i in range(stages):
            o, stride = width << i, 1 + (i > 0)
            rest = [Block(o, o, 1) for _ in range(blocks - 1)]
            setattr(self, f"layer{i + 1}", nn.Sequential(Block(o // stride, o, stride), *rest))
        self.fc = nn.Linear(o, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.lstm(self.embed(x))[0][:, -1])


def data(shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape) * 7919 % 1009


def steps(net, opt, x, y):
    """Returns logits, ten losses, and logits after the ten steps."""
    net.eval()
    with torch.no_grad():
        results = [net(x).flatten().tolist(), []]
    net.train()
    for _ in range(10):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        results[1].append(loss.item())
    net.eval()
    with torch.no_grad():
        return results + [net(x).flatten().tolist()]


torch.manual_seed(34)
resnet, words = ResNet(2, 1, 6, 5), Words()
photos = data((8, 16, 16, 3)).float().div(504).sub(1).permute(0, 3, 1, 2)
tokens, eight = data((8, 12)) % 20, torch.arange(8)
with torch.no_grad():
    resnet(2 * photos + 0.5)  # gives running statistics, and a batch count of 1
files = ("resnet", resnet), ("lstm", words)
if len(sys.argv) < 2:
    for name, net in files:
        save_file(net.state_dict(), f"tests/golden/{name}.safetensors")
golden = (("resnet", steps(resnet, torch.optim.SGD(resnet.parameters(), lr=0.05, momentum=0.9), photos, eight % 5)),
          ("lstm", steps(words, torch.optim.AdamW(words.parameters(), lr=0.01, weight_decay=0), tokens, eight % 3)))
if len(sys.argv) < 2:
    with open("tests/golden/nets.h", "w") as f:
        f.write("/* Written by make_nets.py with PyTorch %s. */\n" % torch.__version__)
        for name, results in golden:
            for part, values in zip(("before", "losses", "after"), results):
                f.write("static const float golden_%s_%s[%d] = {\n" % (name, part, len(values)))
                values = ["%.9gf" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g.0f" % v for v in values]
                for i in range(0, len(values), 6):
                    f.write("    " + " ".join(v + "," for v in values[i:i + 6]) + "\n")
                f.write("};\n")
for (name, net), x, (_, results) in zip(files, (photos, tokens), golden):
    for part, at in (("before", 0), ("after", 2)):
        if len(sys.argv) > 1:
            net.load_state_dict(load_file(f"{sys.argv[1]}/{name}_{part}.safetensors"))
            net.eval()
            with torch.no_grad():
                far = (net(x).flatten() - torch.tensor(results[at])).abs().max().item()
            print(f"{name}, {part} the steps: loaded strictly, logits within {far:.2g} of PyTorch's own")
    print(name, "losses", " ".join("%.4f" % v for v in results[1]))
