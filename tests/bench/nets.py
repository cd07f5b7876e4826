"""nets.py - the nets and ops of build/nets in PyTorch (eager, fp32), for tests/bench/speed.py.

serve(NAME, THREADS, FILE, LAYOUT) does what `build/nets NAME THREADS FILE` does, except that it reads the FILE that
build/nets has written: parameters and inputs. LAYOUT is that of images: contiguous or channels_last. The first line that
it prints also says whether there are images.
"""
import sys
import time

import torch
import torch.nn.functional as F


def peak():
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


class Net:
    """Inputs and parameters. The first pass takes them from the file, in the order of their creation, and turns them
    from the layout of build/nets into PyTorch's; further passes use them again in the same order."""
    def __init__(self, path, channels_last):
        with open(path, "rb") as f:
            number = lambda: int.from_bytes(f.read(8), sys.byteorder)
            self.inputs, self.arrays = ([bytearray(f.read(4 * number())) for _ in range(number())] for _ in range(2))
        self.values, self.next, self.leaves, self.parameters = [], 0, [], 0
        self.format = torch.channels_last if channels_last else torch.contiguous_format

    def contiguous(self, t):
        return t.contiguous(memory_format=self.format) if t.dim() == 4 else t.contiguous()

    def take(self, make):
        if self.next == len(self.values):
            self.values.append(make())
        self.next += 1
        return self.values[self.next - 1]

    def array(self, shape):
        return torch.frombuffer(self.arrays.pop(0), dtype=torch.float32).view(shape)  # fails for another size

    def leaf(self, t):
        self.leaves.append(self.contiguous(t).requires_grad_())
        return self.leaves[-1]

    def fed(self, *shape, kind=torch.float32, grad=False):
        """An input; images are (B,H,W,C) in the file and (B,C,H,W) here."""
        def make():
            t = torch.frombuffer(self.inputs.pop(0), dtype=kind).view(shape)
            t = t.permute(0, 3, 1, 2) if len(shape) == 4 else t.long() if kind == torch.int32 else t
            return self.leaf(t) if grad else self.contiguous(t)
        return self.take(make)

    def param(self, shape, turned=lambda t: t):
        """A parameter; `turned` changes it from the file's layout to PyTorch's."""
        def make():
            t = self.leaf(turned(self.array(shape)))
            self.parameters += t.numel()
            return t
        return self.take(make)

    def vector(self, n):
        return self.param((n,))

    # ---- layers: each creates its parameters in the order of nets.c ----
    def linear(self, x, out, image=0):
        """If `image` is not 0, x is made of images (C,image,image), and w of images (image,image,C)."""
        def turned(w):
            if image:
                w = w.view(image, image, -1, out).permute(2, 0, 1, 3).reshape(-1, out)
            return w.t()
        w = self.param((x.shape[-1], out), turned=turned)
        return F.linear(x, w, self.vector(out))

    def conv(self, x, out, size, stride=1, groups=1):
        w = self.param((size, size, x.shape[1] // groups, out), turned=lambda t: t.permute(3, 2, 0, 1))
        return F.conv2d(x, w, None, stride, size // 2 if stride < size else 0, 1, groups)

    def upward(self, x, out):
        w = self.param((2, 2, out, x.shape[1]), turned=lambda t: t.permute(3, 2, 0, 1))
        return F.conv_transpose2d(x, w, self.vector(out), 2)

    def batchnorm(self, x):
        c = x.shape[1]
        gain, bias = self.vector(c), self.vector(c)
        running = self.take(lambda: (torch.zeros(c), torch.ones(c)))
        return F.batch_norm(x, *running, gain, bias, training=True)

    def layernorm(self, x):
        c = x.shape[-1]
        return F.layer_norm(x, (c,), self.vector(c), self.vector(c))

    def groupnorm(self, x, groups):
        return F.group_norm(x, groups, self.vector(x.shape[1]), self.vector(x.shape[1]))

    def recurrent(self, x, hidden, gates):
        w = [self.param((n, gates * hidden), turned=lambda t: t.t()) for n in (x.shape[2], hidden)]
        b = self.vector(gates * hidden)
        zeros = self.take(lambda: torch.zeros(1, x.shape[0], hidden))
        if gates == 3:
            return torch.gru(x, zeros, w + [b, self.vector(3 * hidden)], True, 1, 0.0, True, False, True)[0]
        none = self.take(lambda: torch.zeros(4 * hidden))  # PyTorch has two biases
        return torch.lstm(x, (zeros, zeros), w + [b, none], True, 1, 0.0, True, False, True)[0]

    def attention(self, x, heads, causal):
        B, T, C = x.shape

        def make():  # one layer for q, k and v, whose weights and biases alternate in the file
            pairs = [(self.array((C, C)).t(), self.array((C,))) for _ in range(3)]
            self.parameters += 3 * (C * C + C)
            return [self.leaf(torch.cat(p)) for p in zip(*pairs)]
        q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2)
                   for t in F.linear(x, *self.take(make)).split(C, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return a.transpose(1, 2).reshape(B, T, C)

    def classified(self, x):
        """The cross-entropy of (.., classes), or of images (B,classes,H,W)."""
        shape = (x.shape[0],) + tuple(x.shape[2:]) if x.dim() == 4 else tuple(x.shape[:-1])
        target = self.fed(*shape, kind=torch.int32)
        if x.dim() == 3:
            return F.cross_entropy(x.view(-1, x.shape[-1]), target.view(-1))
        return F.cross_entropy(x, target)

    # ---- nets ----
    def normed(self, x, *window):
        return self.batchnorm(self.conv(x, *window))

    def joined(self, h, x, stride):
        if stride > 1 or x.shape[1] != h.shape[1]:
            x = self.normed(x, h.shape[1], 1, stride)
        return F.relu(h + x, inplace=True)

    def pooled(self, x, classes):
        return self.classified(self.linear(x.mean((2, 3)), classes))

    def resnet18(self, batch, size, classes):
        x = self.fed(batch, size, size, 3)
        x = F.relu(self.normed(x, 64, 7, 2) if size > 64 else self.normed(x, 64, 3), inplace=True)
        if size > 64:
            x = F.max_pool2d(x, 3, 2, 1)
        for i in range(8):
            stride, out = 2 if i in (2, 4, 6) else 1, 64 << i // 2
            h = self.normed(F.relu(self.normed(x, out, 3, stride), inplace=True), out, 3)
            x = self.joined(h, x, stride)
        return self.pooled(x, classes)

    def resnext(self):
        x = F.relu(self.normed(self.fed(8, 32, 32, 3), 64, 3), inplace=True)
        for i in range(6):
            stride, width = 2 if i in (2, 4) else 1, 128 << i // 2
            h = F.relu(self.normed(x, width, 1), inplace=True)
            h = self.normed(F.relu(self.normed(h, width, 3, stride, 32), inplace=True), 2 * width, 1)
            x = self.joined(h, x, stride)
        return self.pooled(x, 10)

    def mobilenet(self):
        stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
        x = F.relu6(self.normed(self.fed(16, 96, 96, 3), 32, 3, 2), inplace=True)
        for expansion, out, blocks, first in stages:
            for k in range(blocks):
                width, stride, h = x.shape[1] * expansion, 1 if k else first, x
                if expansion > 1:
                    h = F.relu6(self.normed(h, width, 1), inplace=True)
                h = F.relu6(self.normed(h, width, 3, stride, width), inplace=True)
                h = self.normed(h, out, 1)
                x = x + h if stride == 1 and x.shape[1] == out else h
        return self.pooled(F.relu6(self.normed(x, 1280, 1), inplace=True), 1000)

    def unet(self):
        def two(x, out):
            for _ in range(2):
                x = F.relu(self.normed(x, out, 3), inplace=True)
            return x
        x, skips = self.fed(4, 128, 128, 3), []
        for i in range(3):
            skips.append(two(x, 32 << i))
            x = F.max_pool2d(skips[-1], 2)
        x = two(x, 256)
        for i in (2, 1, 0):
            x = two(torch.cat((skips[i], self.upward(x, 32 << i)), 1), 32 << i)
        w = self.param((32, 2), turned=lambda t: t.t().reshape(2, 32, 1, 1))
        return self.classified(F.conv2d(x, w, self.vector(2)))

    def small_conv(self):
        x = F.max_pool2d(F.relu(self.conv(self.fed(64, 28, 28, 1), 32, 3), inplace=True), 2)
        x = F.max_pool2d(F.relu(self.conv(x, 64, 3), inplace=True), 2)
        x = F.relu(self.linear(x.flatten(1), 128, 7), inplace=True)
        return self.classified(self.linear(x, 10))

    def mlp(self):
        x = self.fed(256, 64)
        for _ in range(3):
            x = F.relu(self.linear(x, 256), inplace=True)
        return self.classified(self.linear(x, 2))

    def blocks(self, x, layers, heads, causal):
        C = x.shape[-1]
        for _ in range(layers):
            x = x + self.linear(self.attention(self.layernorm(x), heads, causal), C)
            h = self.linear(self.layernorm(x), 4 * C)
            x = x + self.linear(F.gelu(h, approximate="tanh" if causal else "none"), C)
        return self.layernorm(x)

    def vit(self):
        x = self.conv(self.fed(8, 224, 224, 3), 192, 16, 16).flatten(2).transpose(1, 2)
        x = x + self.param((196, 192))
        return self.classified(self.linear(self.blocks(x, 12, 3, False).mean(1), 1000))

    def words(self, layers, heads, dim, length, batch, count, causal):
        table = self.param((count, dim))
        x = F.embedding(self.fed(batch, length, kind=torch.int32), table) + self.param((length, dim))
        return self.classified(F.linear(self.blocks(x, layers, heads, causal), table))

    def sequences(self, gates):
        return self.classified(self.linear(self.recurrent(self.fed(32, 64, 128), 256, gates), 10))

    # ---- single ops ----
    def x(self, *shape):
        return self.fed(*shape, grad=True)

    def cube(self):
        return self.x(32, 128, 256)

    def square(self, batch, size, channels):
        return self.x(batch, size, size, channels)

    def attended(self, heads):
        q, k, v = (self.x(1, 2048, 512).view(1, 2048, heads, -1).transpose(1, 2) for _ in range(3))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, 2048, 512)


NETS = {
    "ResNet-18, 32 x 32, B16": lambda n: n.resnet18(16, 32, 10),
    "ResNet-18, 224 x 224, B2": lambda n: n.resnet18(2, 224, 1000),
    "MobileNetV2, 96 x 96, B16": lambda n: n.mobilenet(),
    "U-Net of 4 levels, 128 x 128, B4": lambda n: n.unet(),
    "ResNeXt of 32 groups, 32 x 32, B8": lambda n: n.resnext(),
    "conv net 1-32-64, 28 x 28, B64": lambda n: n.small_conv(),
    "LSTM 128-256, T64, B32": lambda n: n.sequences(4),
    "GRU 128-256, T64, B32": lambda n: n.sequences(3),
    "ViT-tiny, 224/16, B8": lambda n: n.vit(),
    "BERT of 4 x 256, T128, B16": lambda n: n.words(4, 4, 256, 128, 16, 8000, False),
    "MLP 64-256-256-256-2, B256": lambda n: n.mlp(),
    "GPT of 6 x 192, T256, B16": lambda n: n.words(6, 6, 192, 256, 16, 256, True),
    "GPT of 6 x 384, T256, B16": lambda n: n.words(6, 6, 384, 256, 16, 256, True),
    "GPT-2 124M, T64, B4": lambda n: n.words(12, 12, 768, 64, 4, 50257, True),
}
OPS = {
    "sum, last axis": lambda n: n.cube().sum(2),
    "sum, middle axis": lambda n: n.cube().sum(1),
    "mean, middle axis": lambda n: n.cube().mean(1),
    "max, last axis": lambda n: n.cube().max(2).values,
    "max, middle axis": lambda n: n.cube().max(1).values,
    "permute, last two axes": lambda n: n.cube().permute(0, 2, 1).contiguous(),
    "slice, last axis": lambda n: n.cube()[:, :, 3:250].contiguous(),
    "pad, last axis": lambda n: F.pad(n.cube(), (3, 1)),
    "product with a column": lambda n: n.x(4096, 256) * n.x(4096, 1),
    "linear, 256-1, 4096 rows": lambda n: n.linear(n.x(4096, 256), 1),
    "linear, 1024-1024, 1 row": lambda n: n.linear(n.x(1, 1024), 1024),
    "linear, 256-1024, 512 rows": lambda n: n.linear(n.x(512, 256), 1024),
    "conv 3 x 3, 32 groups": lambda n: n.conv(n.square(8, 32, 128), 128, 3, 1, 32),
    "conv 3 x 3, depthwise": lambda n: n.conv(n.square(8, 48, 96), 96, 3, 1, 96),
    "conv 3 x 3, depthwise, stride 2": lambda n: n.conv(n.square(8, 48, 96), 96, 3, 2, 96),
    "conv 7 x 7, depthwise": lambda n: n.conv(n.square(8, 14, 192), 192, 7, 1, 192),
    "conv 7 x 7, stem, stride 2": lambda n: n.conv(n.fed(2, 224, 224, 3), 64, 7, 2),
    "conv 3 x 3, stem": lambda n: n.conv(n.fed(16, 32, 32, 3), 64, 3),
    "conv 3 x 3, stem, stride 2": lambda n: n.conv(n.fed(16, 96, 96, 3), 32, 3, 2),
    "conv 16 x 16, patches": lambda n: n.conv(n.fed(8, 224, 224, 3), 192, 16, 16),
    "conv 3 x 3, 64-64": lambda n: n.conv(n.square(8, 32, 64), 64, 3),
    "conv 1 x 1, 24-144": lambda n: n.conv(n.square(16, 24, 24), 144, 1),
    "conv 1 x 1, 144-32": lambda n: n.conv(n.square(16, 12, 144), 32, 1),
    "bilinear upsampling": lambda n: F.interpolate(n.square(4, 32, 64), (64, 64), mode="bilinear"),
    "max pool 2 x 2": lambda n: F.max_pool2d(n.square(8, 64, 64), 2),
    "max pool 3 x 3, stride 2": lambda n: F.max_pool2d(n.square(8, 64, 64), 3, 2, 1),
    "average pool 2 x 2": lambda n: F.avg_pool2d(n.square(8, 64, 64), 2),
    "batchnorm": lambda n: n.batchnorm(n.square(8, 32, 64)),
    "groupnorm, 8 groups": lambda n: n.groupnorm(n.square(8, 32, 64), 8),
    "layernorm": lambda n: n.layernorm(n.x(2048, 256)),
    "softmax": lambda n: n.x(2048, 256).softmax(1),
    "gelu": lambda n: F.gelu(n.x(2048, 1024)),
    "cross-entropy, 2 classes": lambda n: n.classified(n.x(65536, 2)),
    "cross-entropy, 8000 classes": lambda n: n.classified(n.x(512, 8000)),
    "attention, T2048": lambda n: n.attended(8),
    "LSTM, T64, B32": lambda n: n.recurrent(n.x(32, 64, 128), 256, 4),
    "GRU, T64, B32": lambda n: n.recurrent(n.x(32, 64, 128), 256, 3),
}


def warm_up():
    """Loads what PyTorch loads late, so that the memory of a net does not include it."""
    w = torch.ones(256, 3, 16, 16).requires_grad_()
    F.conv2d(torch.ones(1, 3, 64, 64), w, stride=16).flatten(2).softmax(1).square().sum().backward()
    torch.optim.AdamW([w], fused=True).step()


def train(net, build):
    """The function of a step of a net, after the first step, and the first loss."""
    loss = build(net)
    adamw = torch.optim.AdamW(net.leaves, lr=1e-6, weight_decay=0, fused=True)

    def step():
        net.next = 0
        loss = build(net)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
    step()
    return step, loss.item()


def differentiate(net, build):
    """The function of a forward and a backward of an op, and the mean of its squared results, or its loss."""
    y = build(net).detach()
    g = None if y.dim() == 0 else net.contiguous(2 * y)

    def step():
        net.next = 0
        for t in torch.autograd.grad(build(net), net.leaves, g):
            net.contiguous(t)
    step()
    return step, (y if y.dim() == 0 else (y.double() ** 2).mean()).item()


def serve(name, threads, path, layout):
    torch.set_num_threads(threads)
    warm_up()
    now = time.process_time if threads == 1 else time.perf_counter
    net = Net(path, layout == "channels_last")
    base = peak()
    build, start = (NETS[name], train) if name in NETS else (OPS[name], differentiate)
    step, loss = start(net, build)
    if net.arrays or net.inputs:
        sys.exit("nets.py: %s: build/nets has more parameters or inputs" % name)
    print(net.parameters, loss, int(any(t.dim() == 4 for t in net.values if torch.is_tensor(t))), flush=True)
    while steps := int(sys.stdin.readline() or 0):  # 0, or the end of the file, ends it
        begun = now()
        for _ in range(steps):
            step()
        print((now() - begun) / steps, peak() - base, flush=True)
