"""Trains random nets by the library and by a second implementation of docs/numerics.md; every bit must be the same.

    python3 tests/contract/check.py PROGRAM [NETS [SEED]] [-v] [-h] [-x] [-e] [-b] [-r]

PROGRAM is dump.c, linked with the library.
    -v   prints all differences, and how often each builder occurred
    -h   skips nets with fp32 plans
    -x   stops at the first net that the second implementation cannot compute
These options break the second implementation, to show that the check can fail:
    -e   sums in another order
    -b   computes a block of a bf16 plan's product as one chain
    -r   rounds ties of bf16 down
Prints op and place of the first difference of each net; the last line has the counts. Exits with 1 if a net differs."""
import sys
import time
import numpy as np
import contract as K
import golden
import unary
import nets
from contract import F, hexes, unhex
from nets import Net, Dump, compare

SMALL = 360
CURVES = [name for name, kind in golden.UNARY if kind in ("SMOOTH", "KINKED")] + ["softmax", "log_softmax"]


class Draw:
    """A random net, drawn from a seed. Its tensors have the shape (rows, .., ..). The class names them by their numbers
    and remembers their shapes."""

    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.met = {}
        rows = int(self.r.integers(1, 4))
        batch = rows * int(self.r.integers(1, 3)) + int(self.r.integers(0, rows))
        self.t, self.c = int(self.r.integers(2, 6)), int(self.r.choice([2, 4, 6, 8, 33]))
        self.more = more = np.random.default_rng([seed, 1])
        self.tiny = more.integers(0, 8) == 0
        if more.integers(0, 12) == 0:
            self.t, self.c = int(more.choice([32, 33, 64, 70])), 2 * int(more.integers(1, 3))
        self.net = n = Net(rows, batch, threads=int(self.r.integers(1, 3)))
        self.c = 32 if self.c == 33 and more.integers(0, 2) else self.c
        n.precision = int(more.choice([0, 0, 0, 1, 1, 1]))
        self.one = more.integers(0, 6) == 0  # if true, a step has one micro-batch, so ops may mix rows
        if self.one:
            n.batch = batch = rows
        n.mode = int(self.r.choice([1, 2, 4]))
        n.optimiser = int(self.r.integers(0, 3))
        n.virtual_ranks = int(self.r.choice([1, 1, 1, 2, 4]))
        n.fetches = 7 if self.chance(50) else 1
        n.virtual_ranks = 1 if self.one else n.virtual_ranks
        n.hyper.update(lr=F(0.01), decay=F(self.r.choice([0, 0.1])), clip=F(self.r.choice([0, 0.5])),
                       momentum=F(self.r.choice([0, 0.5])))
        self.pool = []
        x = n.input(self.normal(batch, self.t, self.c))
        self.pool.append((x, (self.t, self.c)))
        self.tokens = n.input(self.r.integers(0, 7, (batch, self.t)).astype(np.int32))
        self.targets = n.input(self.r.integers(-1, 5, (batch, self.t)).astype(np.int32))
        self.lengths = n.input(self.r.integers(0, self.t + 1, (batch,)).astype(np.int32))
        self.bytes = n.input(self.r.integers(0, 256, (batch, self.t, self.c)).astype(np.uint8))
        self.weights = []
        self.made(self.net.op("add", [x, self.weight(self.c)]), (self.t, self.c))
        for _ in range(int(self.r.integers(3, 9))):
            self.grow()
        self.losses()

    def normal(self, *shape):
        x = self.r.standard_normal(shape).astype(F)
        return x * F(10.0 ** self.r.integers(-38, 2)) if self.tiny else x

    def chance(self, percent):
        return self.r.integers(0, 100) < percent

    def op(self, name, inputs, *attributes):
        self.met[name] = self.met.get(name, 0) + 1
        return self.net.op(name, inputs, *attributes)

    def made(self, i, shape):
        self.pool.append((i, tuple(shape)))

    def weight(self, *shape):
        """Returns a parameter of this shape (a new one, or one used before), or a function of parameters."""
        fits = [i for i, s in self.weights if s == shape]
        if fits and self.chance(40):
            return int(self.r.choice(fits))
        if self.chance(15):
            a = self.weight(*shape)
            i = self.op(*[("tanh", [a]), ("mul", [a, a]), ("scale", [a], F(0.7)),
                          ("add", [a, self.net.param(self.normal(*shape))])][self.r.integers(0, 4)])
        else:
            frozen = int(self.chance(10)) or 5 * (self.more.integers(0, 5) == 0 and shape[-1] % 32 == 0)
            i = self.net.param(self.normal(*shape) * F(0.5), frozen and int(self.more.integers(1, 6)))
        self.weights.append((i, shape))
        return i

    def pick(self):
        return self.pool[int(self.r.integers(max(0, len(self.pool) - 4), len(self.pool)))]

    def partner(self, shape):
        """Returns a second operand that broadcasts with tensor x: a tensor of the batch or a parameter."""
        kind = int(self.r.integers(0, 5))
        if kind == 0:
            return self.weight(shape[-1])
        if kind == 1:
            return self.weight(*(shape[:-1] + (1,)))
        fits = [i for i, s in self.pool if len(s) == len(shape) and all(a == b or a == 1 for a, b in zip(s, shape))]
        return int(self.r.choice(fits)) if fits else self.weight(*shape)

    def grow(self):
        x, s = self.pick()
        kinds = [f for f in dir(self) if f.startswith("grow_")]
        getattr(self, kinds[int(self.r.integers(0, len(kinds)))])(x, s)

    def grow_curve(self, x, s):
        self.made(self.op(str(self.r.choice(CURVES)), [x]), s)

    def grow_positive(self, x, s):
        y = self.op("softplus", [x])
        k = int(self.r.integers(0, 5))
        if k == 0:
            self.made(self.op("log", [y]), s)
        elif k == 1:
            self.made(self.op("sqrt", [y]), s)
        elif k == 2:
            self.made(self.op("pow", [y], F(self.r.choice([0.5, 1, 2, 3, 1.7]))), s)
        elif k == 3:
            self.made(self.op("reciprocal", [y]), s)
        else:
            self.made(self.op("div", [x, self.op("exp", [self.op("tanh", [y])])]), s)

    def grow_scalar(self, x, s):
        k = int(self.r.integers(0, 4))
        if k == 0:
            self.made(self.op("scale", [x], F(0.8)), s)
        elif k == 1:
            self.made(self.op(str(self.more.choice(["leaky_relu", "elu"])), [x], F(0.2)), s)
        elif k == 2:
            self.made(self.op("clamp", [x], F(-0.7), F(0.9)), s)
        else:
            self.made(self.op("detach", [x]), s)

    def grow_two(self, x, s):
        self.made(self.op(str(self.r.choice(["add", "sub", "mul", "maximum", "minimum", "prelu"])), [x, self.partner(s)]), s)

    def grow_where(self, x, s):
        self.made(self.op("where", [self.op("relu", [x]), x, self.partner(s)]), s)

    def grow_linear(self, x, s):
        o = int(self.r.choice([1, 3, self.c, 34]))
        if s[:-1] and int(np.prod(s[:-1])) * o > SMALL:
            o = 3
        turned = self.chance(50)
        w = self.weight(o, s[-1]) if turned else self.weight(s[-1], o)
        y = self.op("linear_transposed" if turned else "linear", [x, w, self.weight(o) if self.chance(60) else -1])
        self.made(y, s[:-1] + (o,))

    def grow_matmul(self, x, s):
        fits = [(i, p) for i, p in self.pool if len(p) == 2 == len(s)]
        for i, p in fits:
            if p[1] == s[1] and self.chance(50):
                return self.made(self.op("matmul_transposed", [x, i]), (s[0], p[0]))
            if p[0] == s[1] and self.chance(50):
                return self.made(self.op("matmul", [x, i]), (s[0], p[1]))
        if len(s) >= 3 and self.chance(30):  # broadcasts
            if self.chance(50):
                return self.made(self.op("matmul", [self.weight(3, s[-2]), x]), s[:-2] + (3, s[-1]))
            return self.made(self.op("matmul_transposed", [x, self.weight(1, 3, s[-1])]), s[:-1] + (3,))
        if len(s) >= 2:
            self.made(self.op("matmul", [x, self.weight(s[-1], 3)]), s[:-1] + (3,))

    def grow_norm(self, x, s):
        c = s[-1]
        gain, bias = (self.weight(c) if self.chance(60) else -1 for _ in range(2))
        if self.chance(50):
            self.made(self.op("layernorm", [x, gain, bias], F(1e-5)), s)
        else:
            self.made(self.op("rmsnorm", [x, gain], F(1e-3)), s)

    def grow_embed(self, x, s):
        self.made(self.op("embed", [self.weight(7, self.c), self.tokens]), (self.t, self.c))

    def grow_positions(self, x, s):
        if len(s) == 2:
            self.made(self.op("positions", [x, self.weight(s[0] + 1, s[1])]), s)

    def grow_shape(self, x, s):
        k = int(self.r.integers(0, 6))
        if k == 0 and len(s) == 2:
            self.made(self.op("permute", [x], 3, 0, 2, 1), (s[1], s[0]))
        elif k == 1:
            n = int(np.prod(s))
            self.made(self.op("reshape", [x], 2, self.net.rows, n), (n,))
        elif k == 2 and s[-1] > 1:
            self.made(self.op("slice", [x], len(s), 1, s[-1]), s[:-1] + (s[-1] - 1,))
        elif k == 3:
            y = self.partner(s)
            if any(i == y and p == s for i, p in self.pool) and 2 * np.prod(s) <= SMALL:
                self.made(self.op("concat", [x, y], len(s)), s[:-1] + (2 * s[-1],))
        else:
            if len(s) >= 2:
                axis = int(self.r.integers(1, len(s) + 1))
                self.made(self.op(str(self.r.choice(["sum", "mean"])), [x], axis), s[:axis - 1] + s[axis:])

    def grow_attention(self, x, s):
        if len(s) != 2 or s[1] % 2:
            return
        t, c = s
        heads = 2
        shared = int(self.chance(40))
        wide = c // 2 if shared else c
        k, v = (self.op("linear", [x, self.weight(c, wide), -1]) for _ in range(2))
        if self.chance(30):
            mask = self.weight(*[(t, t), (t,), (2, t, t), (1, 2, 1, t)][self.r.integers(0, 4)])
            cap, scale = F(1.5 if self.chance(30) else 0), F(0.4 if self.chance(30) else 0)
            return self.made(self.op("masked_attention", [x, k, v, mask], heads, shared, cap, scale), s)
        causal = int(self.chance(50))
        lengths = self.lengths if t >= self.t and self.chance(40) else -1
        window = 2 if causal and self.chance(40) else 0
        cap, scale = F(1.5 if self.chance(30) else 0), F(0.4 if self.chance(30) else 0)
        self.made(self.op("attention", [x, k, v, lengths], heads, shared, causal, window, cap, scale), s)

    def grow_rotary(self, x, s):
        if len(s) == 2 and s[1] % 4 == 0:
            y = self.op("rotary", [x], 2, F(0), int(self.r.integers(0, 9)) * int(self.chance(50)), 0, F(0), 0)
            if self.chance(50):  # sine is 0 at position 0, where some gradients are -0
                y = self.op("relu", [self.op("scale", [y], F(-1))])
            self.made(y, s)

    def grow_dropout(self, x, s):
        self.made(self.op("dropout", [x], F(0.3)), s)

    def grow_bytes(self, x, s):
        self.made(self.op("from_u8", [self.bytes], F(1 / 255), F(-0.5)), (self.t, self.c))

    def grow_ends(self, x, s):
        k = int(self.r.integers(0, 4))
        if k == 0 and np.prod(s) * 2 <= SMALL:
            mode = int(self.more.integers(0, 3)) if s[-1] > 2 else 0
            self.made(self.op("pad", [x], len(s), 1, 2, mode, F(0.3)), s[:-1] + (s[-1] + 3,))
        elif k == 1 and len(s) >= 2:
            if self.more.integers(0, 2):
                self.made(self.op("top_k", [x], 1, 1 + s[0] // 2), (1 + s[0] // 2,) + s[1:])
            else:
                self.made(self.op("max", [x], 1), s[1:])
        elif k == 2 and len(s) >= 2:
            w = self.weight(max(s[-1], 2), self.c)
            i = self.op("argmax", [x], len(s))
            if self.more.integers(0, 2):
                self.made(self.op("embed", [w, self.op("top_k_indices", [x], len(s), 2 if s[-1] > 1 else 1)]),
                          s[:-1] + (2 if s[-1] > 1 else 1, self.c))
            if len(s) == 2:
                self.made(self.op("embed", [w, i]), (s[0], self.c))
        elif k == 3 and len(s) == 2 and s[0] >= self.t:
            low = self.net.input(self.r.integers(0, self.t, (self.net.batch, 3)).astype(np.int32))
            self.made(self.op("gather", [x, low]), (3, s[1]))

    def window(self, size=(0, 0), stride=(0, 0), padding=(0, 0), dilation=(0, 0), more=(0, 0), groups=0):
        return tuple(w[i] for i in range(2) for w in (size, stride, padding, dilation, more)) + (groups,)

    def grow_image(self, x, s):
        if len(s) != 2 or s[1] % 2:
            return
        t, c = s
        k = int(self.r.integers(0, 7))
        if k == 0:
            o = 4
            y = self.op("conv1d", [x, self.weight(3, c // 2, o), self.weight(o) if self.chance(50) else -1],
                        *self.window(padding=(0, 1), groups=2))
            return self.made(y, (t, o))
        if k == 1:
            y = self.op("conv1d_transposed", [x, self.weight(2, 3, c), -1], *self.window(stride=(0, 2)))
            return self.made(y, (2 * t, 3))
        i = self.op("reshape", [x], 4, self.net.rows, t, c // 2, 2)
        gain, bias = (self.weight(2) if self.chance(50) else -1 for _ in range(2))
        if k == 2:
            groups = int(self.r.integers(1, 3)) if t * c > 2 else 1  # groupnorm refuses groups with a single value
            y, p = self.op("groupnorm", [i, gain, bias], groups, F(1e-5 if t % 2 else 1e-3)), (t, c // 2, 2)
        elif k == 3:
            name = "max_pool" if self.chance(50) else "average_pool"
            if t < 2 or self.more.integers(0, 2):
                y, p = self.op(name, [i], *self.window((2, 1), (1, 1), (1, 0)), 0, 0), (t + 1, c // 2, 2)
            else:  # taps 2 apart; the last of the windows, 3 apart, may end after the padding
                window = self.window((2, 1), (3, 1), (1, 0), (2, 1))
                p = -(-(t - 1) // 3) + 1
                p -= 3 * (p - 1) >= t + 1
                y, p = self.op(name, [i], *window, 1, int(name[0] == "a" and c > 2)), (p, c // 2, 2)
        elif k == 4:
            y, p = self.op("global_average_pool", [i]), (2,)
        elif k == 5:
            y = self.op("conv2d_transposed", [i, self.weight(2, 3, 3, 2), self.weight(3) if self.chance(50) else -1],
                        *self.window(stride=(1, 2), padding=(1, 1), more=(0, 1)))
            p = (t - 1, c, 3)
        else:
            y = self.op("conv2d", [i, self.weight(2, 1, 2, 3), -1], *self.window(stride=(2, 1), padding=(1, 0)))
            p = (t // 2 + 1, c // 2, 3)
        self.made(y, p)

    def grow_recurrent(self, x, s):
        if len(s) != 2 or s[0] * s[1] > SMALL:
            return
        t, c = s
        u = int(self.r.integers(1, 5))
        w = self.weight(c, 3 * u), self.weight(3 * u) if self.chance(50) else -1
        first = self.op("slice", [x], 1, 0, 1)
        first = self.op("slice", [self.op("reshape", [first], 2, self.net.rows, c)], 1, 0, 1)
        states = [-1 if self.chance(50) else self.op("linear", [first, self.weight(1, u), -1])]
        lengths = self.lengths if t >= self.t and self.chance(40) else -1
        if self.chance(50):
            y = self.op("gru", [x, w[0], w[1], self.weight(u, 3 * u), self.weight(3 * u) if self.chance(50) else -1,
                                states[0], lengths], int(self.chance(50)))
            return self.made(y, (t, u))
        states.append(-1 if states[0] < 0 else self.op("tanh", [states[0]]))
        y = self.op("lstm", [x, self.weight(c, 4 * u), self.weight(u, 4 * u), self.weight(4 * u)
                             if self.chance(50) else -1] + states + [lengths])
        self.made(y, (t, 2 * u))

    def grow_delta_rule(self, x, s):
        if len(s) != 2 or s[0] * s[1] > SMALL:
            return
        t, c = s
        shared, heads = self.r.choice([(1, 1), (1, 2), (2, 2), (2, 4)])
        wide = int(shared * self.r.integers(1, 5)), int(heads * self.r.choice([1, 2, 3, 33]))
        q, k, v = (self.op("linear", [x, self.weight(c, n), -1]) for n in (wide[0], wide[0], wide[1]))
        k = self.op("scale", [q if self.chance(20) else k], F(0.25))  # large keys would let the state grow
        decay = self.op("linear", [x, self.weight(c, int(heads)), -1])
        beta = self.op("sigmoid", [decay]) if self.chance(80) else decay
        scale = F(0.4 if self.chance(30) else 0)
        self.made(self.op("delta_rule", [q, k, v, decay, beta], int(heads), int(shared), scale), (t, wide[1]))

    def grow_batchnorm(self, x, s):
        if len(s) < 2 or np.prod(s[:-1]) < 2:  # refused: one value per channel, in a micro-batch of one row
            return
        c = s[-1]
        gain, bias = (self.weight(c) if self.chance(60) else -1 for _ in range(2))
        mean = self.net.running(self.normal(c), F(0.1))
        variance = self.net.running(np.abs(self.normal(c)), F(0.25))
        self.made(self.op("batchnorm", [x, gain, bias, mean, variance], F(1e-3 if c % 3 else 1e-5)), s)

    def grow_upsample(self, x, s):
        if len(s) != 2 or s[1] % 2 or s[0] * s[1] > SMALL // 8:
            return
        i = self.op("reshape", [x], 4, self.net.rows, s[0], s[1] // 2, 2)
        h, w = int(self.r.integers(1, 2 * s[0])), int(self.r.integers(1, s[1] + 1))
        self.made(self.op("upsample", [i], h, w, int(self.r.integers(0, 3))), (h, w, 2))

    def flat(self, x, s):
        n = int(np.prod(s))
        return self.op("reshape", [x], 2, self.net.rows, n), n

    def losses(self):
        for k in range(int(self.r.integers(1, 4))):
            x, s = self.pool[-1] if k == 0 else self.pick()
            self.net.term(self.loss(x, s), F(1 if self.chance(50) else 0.3))
        if self.chance(30) and self.weights:
            w = self.weights[int(self.r.integers(0, len(self.weights)))][0]
            self.net.term(self.op("sum_loss", [self.op("mul", [w, w])]), F(0.01), 1)

    def loss(self, x, s):
        kinds = [f for f in dir(self) if f.startswith("loss_")]
        return getattr(self, kinds[int(self.r.integers(0, len(kinds)))])(x, s)

    def logits(self, x, s):
        if self.t >= 32 and len(s) == 2 and s[0] == self.t:
            return self.op("linear", [x, self.weight(s[1], 5), -1])
        f, n = self.flat(x, s)
        if self.t >= 32:
            y = self.op("linear", [f, self.weight(n, 5), -1])
            return self.op("add", [self.op("reshape", [y], 3, self.net.rows, 1, 5), self.weight(self.t, 5)])
        y = self.op("linear", [f, self.weight(n, self.t * 5), -1])
        return self.op("reshape", [y], 3, self.net.rows, self.t, 5)

    def loss_classes(self, x, s):
        return self.op("cross_entropy", [self.logits(x, s), self.targets])

    def scales(self, x, s, n):
        """Returns the tensor of a loss's weights, which have the first n axes of x, or -1 for none."""
        if self.chance(40):
            return -1
        for axis in range(len(s), n, -1):
            x = self.op("mean", [x], axis)
        return self.op("sigmoid", [x])

    def loss_weighed_classes(self, x, s):
        z = self.logits(x, s)
        return self.op("cross_entropy_with", [z, self.targets, self.scales(z, (self.t, 5), 1)], F(0.125))

    def loss_soft(self, x, s):
        z = self.logits(x, s)
        return self.op("soft_cross_entropy", [z, self.op("softmax", [z]), self.scales(z, (self.t, 5), 1)])

    def loss_linear_classes(self, x, s):
        z, w = self.logits(x, s), self.weight(6, 5)
        if self.chance(50):
            return self.op("linear_cross_entropy", [z, w, self.targets])
        return self.op("linear_cross_entropy_with", [z, w, self.targets], F(2.5))

    def loss_elements(self, x, s):
        y = self.op("sigmoid", [x])
        w = self.scales(x, s, int(self.r.integers(0, len(s) + 1)))
        k = int(self.r.integers(0, 3))
        if k == 0:
            return self.op("binary_cross_entropy", [x, y, w])
        return self.op("huber", [x, y, w], F(0.7)) if k == 1 else self.op("mean_squared_error_with", [x, y, w])

    def loss_square(self, x, s):
        fits = [i for i, p in self.pool if p == s]
        return self.op("mean_squared_error", [x, int(self.r.choice(fits))])

    def loss_sum(self, x, s):
        return self.op("sum_loss", [self.op("mul", [x, x])])


def cached(seed):
    """Compares attention over caches, a few positions in each call, with one call over all positions. Returns the
    number of differences."""
    r = np.random.default_rng([seed, 2])
    rows, t, heads, shared = (int(r.integers(1, k)) for k in (3, 6, 4, 2))
    calls = int(r.integers(2, 7)) if seed % 8 else -(-150 // t)
    d, precision, first = 2 * int(r.integers(1, 4)), int(r.choice([0, 1])), int(r.integers(0, 3))
    shared = heads if shared else 1
    window = int(r.integers(1, 9)) if r.integers(0, 2) else 0
    ring = window > 0 and r.integers(0, 2) == 1
    prefix = int(r.integers(0, 3)) if not ring else 0
    cap = F(r.choice([0, 2]))
    values = {k: r.standard_normal(s).astype(F) for k, s in dict(
        x=(rows, calls * t, 4), before=(rows, max(prefix, 1), shared * d), q=(4, heads * d), k=(4, shared * d),
        v=(4, shared * d), table=(first + calls * t + 2, 4)).items()}

    def net(parts):
        n = Net(rows, rows)
        n.precision, n.mode, n.fetches = precision, 7, 2
        each = calls * t // parts
        x = n.input(values["x"][:, :each])
        before = n.input(values["before"])
        x = n.op("positions_at", [x, n.param(values["table"])], first)
        q, k, v = (n.op("linear", [x, n.param(values[w]), -1]) for w in "qkv")
        q = n.op("rotary", [q], heads, F(0), first, 0, F(0), 0)
        k = n.op("rotary", [k], shared, F(0), first, 0, F(0), 0)
        if parts > 1 and ring:
            k, v = (n.op("cache_window", [i], calls * t + 1, window) for i in (k, v))
        elif parts > 1:
            k, v = (n.op("cache", [i], calls * t + 1) for i in (k, v))
        if prefix:
            k, v = (n.op("concat", [before, i], 1) for i in (k, v))
        return n, n.op("attention", [q, k, v, -1], heads, shared, 1, window, cap, F(0)), each

    def run(n, feeds):
        lines = n.script(0).split("\n")[:-2]
        lines += ["forward %d %s" % (rows, " ".join(map(hexes, f))) for f in feeds]
        return Dump(K.program.talk("\n".join(lines + ["end", ""])))
    whole, y, _ = net(1)
    dump = run(whole, [])
    if dump.errors:
        return dump.errors
    again = nets.Again(whole, dump)
    again.forward()
    want = again.values[dump.ids[y]]
    pieces, y, each = net(calls)
    dump = run(pieces, [(values["x"][:, i * each:(i + 1) * each], values["before"]) for i in range(calls)])
    out = list(dump.errors)
    for i, s in enumerate(dump.steps):
        wrong = nets.same(s["value"][y], want[:, i * each:(i + 1) * each])
        out += ["caches, call %d: %s" % (i, wrong)] if wrong else []
    return out if len(dump.steps) == calls else out + ["caches: %d calls, not %d" % (len(dump.steps), calls)]


def initial(seed):
    """Checks initial values and quantised values."""
    r = np.random.default_rng([seed, 3])
    name, n, by = "w%d.bias" % seed, int(r.integers(1, 65)), [F(r.choice([0, 1, 0.02])) for _ in range(3)]
    lines = K.program.talk("net 0 1\ndraw %s 1 %d %s\nend\n" % (name, n, hexes(by)))
    wrong = nets.same(unhex(next(x for x in lines if x[:5] == "value").split()[2]), unary.drawn(name, n, *by))
    out = ["initial values %s: %s" % (by, wrong)] if wrong else []
    x = r.standard_normal((4, 64)).astype(F) * F(10.0 ** r.integers(-44, 3))
    if r.integers(0, 3) == 0:
        x = np.round(x * F(4)) / F(4) * (r.random(x.shape) < 0.3)
    for storage in range(1, 5):
        net = Net(1, 1)
        y = net.op("scale", [net.param(x.astype(F), storage + 1)], F(1))
        net.term(net.op("sum_loss", [net.op("mul", [net.input(np.ones((1, 1), F)), net.param(np.ones(1, F))])]))
        net.fetches = 2
        dump = Dump(K.program.talk(net.script(1)))
        wrong = dump.errors or nets.same(dump.steps[0]["value"][y], K.packed(x.astype(F), storage))
        out += ["packed as %d: %s" % (storage, wrong)] if wrong else []
    return out


def left_out(seed):
    """Checks gradients that are -0. Maxima, rows without a target and rows of weight 0 must add nothing to such a
    gradient; all other rows add +0, which makes it +0."""
    r = np.random.default_rng([seed, 4])
    shape = (int(r.integers(1, 4)), int(r.integers(2, 5)), int(r.integers(2, 40)))
    n = Net(shape[0], shape[0])
    n.precision, n.fetches = int(r.integers(0, 2)), 7
    x, t = (n.op("add", [n.input(r.standard_normal(shape).astype(F)), n.param(r.standard_normal(shape[2]).astype(F))])
            for _ in range(2))
    targets = n.input(r.integers(-1, shape[2], shape[:2]).astype(np.int32))
    weights = n.input(r.choice([0, -0.0, 1, 2], shape[:2]).astype(F))
    kind = seed % 5
    if kind < 2:
        y = n.op("max", [x], 1 + kind)
        n.term(n.op("sum_loss", [n.op("mul", [y, y])]))
    elif kind == 2:
        n.term(n.op("cross_entropy", [x, targets]))
    elif kind == 3:
        n.term(n.op("cross_entropy_with", [x, targets, weights], F(r.choice([0, 0.125]))))
    else:
        n.term(n.op("soft_cross_entropy", [x, t, weights]))
    for i in (x, t):
        n.term(n.op("sum_loss", [n.op("scale", [i], F(-0.0))]))
    dump = Dump(K.program.talk(n.script(1)))
    wrong = dump.errors or compare(n, dump, 1)
    return ["left out, %d: %s" % (kind, wrong[0])] if wrong else []


def large(seed):
    """Checks large sizes: more classes than a chunk of 1024, with a tied embedding; more keys than two tiles of 64,
    also as values; 8 virtual ranks with desc.batch of 9 rows; scores of -inf."""
    r = np.random.default_rng([seed, 5])
    kind = seed % 4
    rows, batch, classes, c, t = (2, 9, 40, 8, 3) if kind == 2 else (2, 3, 1030, 8, 3)
    n = Net(rows, batch)
    n.precision, n.fetches, n.optimiser, n.virtual_ranks = seed // 4 % 2, 7, seed % 3, 8 if kind == 2 else 1
    n.mode = int(r.choice([1, 2, 4]))

    def normal(*shape):
        return r.standard_normal(shape).astype(F)
    table = n.param(normal(classes, c) * F(0.7))
    targets = n.input(r.integers(-1, classes, (batch, t)).astype(np.int32))
    if kind == 1:
        x, z, w = n.input(normal(batch, t, c)), n.input(normal(batch, 150, c)), n.param(normal(c, c))
        q, k = n.op("linear", [x, w, -1]), n.op("linear_transposed", [z, w, -1])
        x = n.op("add", [n.op("attention", [q, k, k, -1], heads, 0, heads % 2, 0, F(0), F(0)) for heads in (1, 2)])
    elif kind == 3:
        x, w = n.input(normal(batch, t, c)), n.param(normal(c, c))
        mask = np.where(r.random((batch, t, t)) < 0.5, F(-np.inf), F(0))
        mask[0, 0] = F(-np.inf)
        x = n.op("linear", [x, w, -1])
        s = n.op("softmax", [n.op("add", [n.op("matmul_transposed", [x, x]), n.input(mask.astype(F))])])
        x = n.op("matmul", [s, x])
    else:
        x = n.op("embed", [table, n.input(r.integers(0, classes, (batch, t)).astype(np.int32))])
    n.term(n.op("linear_cross_entropy", [x, table, targets]))
    y = n.op("linear_transposed", [x, table, -1])
    n.term(n.op("cross_entropy", [y, targets]), F(0.5))
    n.term(n.op("cross_entropy_with", [y, targets, -1], F(0.125)), F(0.25))
    dump = Dump(K.program.talk(n.script(2)))
    wrong = dump.errors or compare(n, dump, 2)
    return ["large, %d: %s" % (kind, wrong[0])] if wrong else []


def main():
    args = [a for a in sys.argv[1:] if a[0] != "-"]
    flags = "".join(a for a in sys.argv[1:] if a[0] == "-")
    count = int(args[1]) if len(args) > 1 else 300
    first = int(args[2]) if len(args) > 2 else 1
    if "e" in flags:
        K.row_sum = nets.K.row_sum = lambda x: x.sum(-1, dtype=F)
        import ops
        ops.row_sum = K.row_sum
    if "b" in flags:
        K.Element.CHAINS = 1
    if "r" in flags:
        K.EVEN = np.uint32(0)
    program = K.Program(args[0])
    K.program = program
    met, agree, halves, differ, refused, idle, bits, apart = {}, 0, 0, 0, 0, 0, 0, 0
    began = time.time()
    for seed in range(first, first + count):
        d = Draw(seed)
        if "h" in flags and d.net.precision == 0:
            count -= 1
            continue
        dump = Dump(program.talk(d.net.script(2)))
        if dump.errors and "nothing to train" in dump.errors[0]:
            idle += 1
            continue
        if dump.errors:
            refused += 1
            print("net %d: %s" % (seed, dump.errors[0]))
            continue
        for k, v in d.met.items():
            met[k] = met.get(k, 0) + v
        try:
            wrong = compare(d.net, dump, len(dump.steps))
        except Exception as error:
            if "x" in flags:
                raise
            wrong = ["%s: %s" % (type(error).__name__, error)]
        bits += sum(x.size for s in dump.steps for k in ("value", "grad", "param", "state")
                    for x in s[k].values())
        if wrong:
            differ += 1
            print("net %d: %s" % (seed, "\n    ".join(w[:300] for w in wrong[:8 if "v" in flags else 1])))
        else:
            agree += 1
            halves += d.net.precision > 0
        if seed % 8 == 0:
            apart += 1
            wrong = cached(seed // 8) + initial(seed) + left_out(seed // 8)
            wrong += large(seed // 24) if seed % 24 == 0 else []
            differ += bool(wrong)
            print("\n".join("net %d, %s" % (seed, w) for w in wrong[:1])) if wrong else None
    program.close()
    if "v" in flags:
        print(" ".join("%s:%d" % k for k in sorted(met.items())))
    print("contract: %d nets, %d agree bit for bit, %d of them in bf16, %d differ, %d refused, %d train nothing; "
          "%d builders, %d values; %d nets of caches, initial or quantised values, omitted inputs, large sizes; %.0f s" %
          (count, agree, halves, differ, refused, idle, len(met), bits, apart, time.time() - began))
    return 1 if differ or refused else 0


if __name__ == "__main__":
    sys.exit(main())
