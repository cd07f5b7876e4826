"""Writes layers.h: PyTorch's results for the layers of examples/layers.h, whose names and shapes the
classes here repeat.

    python3 tests/golden/make_layers.py > tests/golden/layers.h
"""
import torch
from torch import nn
import torch.nn.functional as F
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM


def fill(name, t):
    """Sets the values of a parameter as tests/examples/test_train.c does."""
    i = torch.arange(t.numel())
    t.copy_(((i * 37 + len(name) * 11) % 101 - 50).reshape(t.shape) / 100)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(c), Attention(c), nn.LayerNorm(c), MLP(c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 2, c // 2).transpose(1, 2) for y in self.attn.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.h = nn.Embedding(5, 8), nn.ModuleList([Block(8)])
        self.conv, self.bn = nn.Conv2d(2, 5, 3, 2, 1, bias=False), nn.BatchNorm2d(5)
        self.gru, self.mlp = nn.GRU(8, 6, batch_first=True), nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 3)])

    def forward(self, tokens):
        x = self.h[0](self.wte(tokens))
        y, image = self.gru(x)[0], x.reshape(2, 3, 4, 2).permute(0, 3, 1, 2)  # channels last
        image = self.bn(self.conv(image)).permute(0, 2, 3, 1)
        return x, y[:, -1], self.mlp[1](F.relu(self.mlp[0](y[:, -1]))), y, image


net = Net().eval()
with torch.no_grad():
    for name, parameter in net.named_parameters():
        fill(name, parameter.permute(2, 3, 1, 0) if parameter.dim() == 4 else parameter)
    for name in ("running_mean", "running_var"):
        fill("bn." + name, getattr(net.bn, name))
    net.bn.running_var.abs_().add_(0.5)
    outputs = net(torch.tensor([[0, 3, 1], [4, 2, 2]]))
    config = LlamaConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                         vocab_size=5, rms_norm_eps=1e-5)
    llama = LlamaForCausalLM(config).eval().model
    for name, parameter in llama.named_parameters():
        fill("model." + name, parameter)
    turn = llama.rotary_emb(outputs[0], torch.arange(3)[None])
    mask = torch.full((3, 3), float("-inf")).triu(1)[None, None]
    y = llama.layers[0](outputs[0], attention_mask=mask, position_embeddings=turn)
    outputs += (y[0] if isinstance(y, tuple) else y,)
class More(nn.Module):
    def __init__(self):
        super().__init__()
        self.c2 = nn.Conv2d(2, 4, 3, (2, 1), (1, 2), (1, 2), groups=2)
        self.gn, self.up = nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)
        self.fc = nn.Linear(6 * 4 * 8, 3)
        self.c1, self.up1 = nn.Conv1d(8, 4, 2, padding=1, groups=2, bias=False), nn.ConvTranspose1d(4, 6, 3, 2)
        self.fc1 = nn.Linear(6 * 9, 3)
        self.lstm, self.deep = nn.LSTM(8, 6, batch_first=True), nn.LSTM(8, 6, 2, batch_first=True)

    def forward(self, x):
        image, signal = x.reshape(2, 3, 4, 2).permute(0, 3, 1, 2), self.c1(x.permute(0, 2, 1))
        norm, long = self.gn(self.c2(image)), self.up1(signal)
        up = self.up(norm)
        return (norm.permute(0, 2, 3, 1), up.permute(0, 2, 3, 1), self.fc(up.flatten(1)), long.permute(0, 2, 1),
                self.fc1(long.flatten(1)), self.lstm(x)[0][:, -1], self.deep(x)[0])


more = More().eval()
with torch.no_grad():
    for name, t in more.named_parameters():
        fill(name, t.permute(2, 3, 1, 0) if t.dim() == 4 else t.permute(2, 1, 0) if t.dim() == 3 else t)
    outputs += more(outputs[0])
print("/* Written by make_layers.py with PyTorch %s. */" % torch.__version__)
for name, t in zip(("block", "gru", "mlp", "gru_all", "image", "llama", "groupnorm", "up", "flat", "signal",
                    "flat_signal", "lstm", "lstm_all"), outputs):
    print("static const float golden_%s[%d] = {" % (name, t.numel()))
    values = ["%.9gf" % x if "." in "%.9g" % x or "e" in "%.9g" % x else "%.9g.0f" % x for x in t.flatten().tolist()]
    for i in range(0, len(values), 6):
        print("    " + " ".join(v + "," for v in values[i:i + 6]))
    print("};")
