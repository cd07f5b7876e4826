"""Each op of the manual, forward and backward (contract.py has what they are made of)."""
import math
import numpy as np
from contract import *
import contract as K


class Call:
    """x: values of inputs (None for what is not given); a: attributes; y: the result; aux: what forward leaves."""

    def __init__(self, x, a, shape):
        self.x, self.a, self.shape, self.y, self.aux = x, a, shape, None, {}


OPS = {}


def op(name):
    def add(c):
        OPS[name] = c
        return c
    return add


# ---- elementwise ----
def curve(name, forward, slope):
    """slope(c): the gradient is g slope, an fma where it is added."""
    class C:
        pass
    C.forward = staticmethod(forward)
    C.backward = staticmethod(lambda c, g: [Product(g, slope(c))])
    OPS[name] = C


def picked(name, forward, taken):
    class C:
        pass
    C.forward = staticmethod(forward)
    C.backward = staticmethod(lambda c, g: [Select(taken(c), g)])
    OPS[name] = C


picked("relu", lambda c: np.where(c.x[0] > 0, c.x[0], F(0)), lambda c: c.y > 0)
curve("leaky_relu", lambda c: np.where(c.x[0] > 0, c.x[0], c.a[0] * c.x[0]),
      lambda c: np.where(c.x[0] > 0, F(1), c.a[0]))
curve("exp", lambda c: exp(c.x[0]), lambda c: c.y)
curve("tanh", lambda c: tanh(c.x[0]), lambda c: fma(-c.y, c.y, F(1)))
curve("sigmoid", lambda c: sigmoid(c.x[0]), lambda c: fma(-c.y, c.y, c.y))


def silu_slope(c):
    s = sigmoid(c.x[0])
    return fma(c.x[0] * s, F(1) - s, s)


curve("silu", lambda c: c.x[0] / (F(1) + exp(-c.x[0])), silu_slope)
curve("softplus", lambda c: np.maximum(c.x[0], F(0)) + log1p(exp(-np.abs(c.x[0]))),
      lambda c: K.curves.slope("softplus", c.x[0]))
curve("sin", lambda c: sin(c.x[0]), lambda c: cos(c.x[0]))
curve("cos", lambda c: cos(c.x[0]), lambda c: -sin(c.x[0]))
curve("abs", lambda c: np.abs(c.x[0]), lambda c: np.sign(c.x[0]))
curve("gelu_erf", lambda c: K.curves.of("gelu_erf", c.x[0]), lambda c: K.curves.slope("gelu_erf", c.x[0]))
curve("reciprocal", lambda c: F(1) / c.x[0], lambda c: -(c.y * c.y))
curve("scale", lambda c: c.a[0] * c.x[0], lambda c: c.a[0])
picked("clamp", lambda c: np.where(np.isnan(c.x[0]), c.x[0], np.minimum(np.maximum(c.x[0], c.a[0]), c.a[1])),
       lambda c: (c.x[0] > c.a[0]) & (c.x[0] < c.a[1]))


def power(x, e):
    if e in (1, 2, 3):
        return {1: x, 2: x * x, 3: x * x * x}[int(e)]
    return K.curves.of("pow", x, word(e))


curve("pow", lambda c: power(c.x[0], c.a[0]), lambda c: c.a[0] * power(c.x[0], c.a[0] - F(1)))

def ratio(name, forward, gradient):
    class C:
        pass
    C.forward = staticmethod(forward)
    C.backward = staticmethod(lambda c, g: [Value(gradient(c, g))])
    OPS[name] = C


ratio("log", lambda c: log(c.x[0]), lambda c, g: g / c.x[0])
ratio("sqrt", lambda c: np.sqrt(c.x[0]), lambda c, g: g / (F(2) * c.y))

GELU_A, GELU_B = F(math.sqrt(2 / math.pi)), F(math.sqrt(2 / math.pi) * 0.044715)


def gelu_inner(x):
    return x * fma(GELU_B, x * x, GELU_A)


def gelu_slope(c):
    x = c.x[0]
    t = tanh(gelu_inner(x))
    return fma(F(0.5) * x * fma(-t, t, F(1)), fma(F(3) * GELU_B, x * x, GELU_A), F(0.5) * (F(1) + t))


def gelu(c):
    h = F(0.5) * c.x[0]
    return fma(h, tanh(gelu_inner(c.x[0])), h)


curve("gelu", gelu, gelu_slope)


def two(name, forward, backward):
    class C:
        pass
    C.forward = staticmethod(lambda c: forward(c.x[0], c.x[1]))
    C.backward = staticmethod(lambda c, g: [broadcast_gradient(*([p[0], x.shape] + list(p[1:])))
                                            for p, x in zip(backward(c, g), c.x)])
    OPS[name] = C


two("add", lambda a, b: a + b, lambda c, g: [(g,), (g,)])
two("sub", lambda a, b: a - b, lambda c, g: [(g,), (-g,)])
two("mul", lambda a, b: a * b, lambda c, g: [(g, c.x[1]), (g, c.x[0])])
two("div", lambda a, b: a / b, lambda c, g: [(g / c.x[1],), (g, -c.y / c.x[1])])


def extreme(name, forward, sign):
    class C:
        pass

    def backward(c, g):
        a, b = c.x
        d = (a - b) * F(sign)
        half = F(0.5) * g
        return [broadcast_gradient(np.where(d > 0, g, np.where(d < 0, F(0), half)), a.shape),
                broadcast_gradient(np.where(d < 0, g, np.where(d > 0, F(0), half)), b.shape)]
    C.forward = staticmethod(lambda c: forward(c.x[0], c.x[1]))
    C.backward = staticmethod(backward)
    OPS[name] = C


extreme("maximum", np.maximum, 1)
extreme("minimum", np.minimum, -1)


@op("where")
class Where:
    def forward(c):
        return np.where(c.x[0] != 0, c.x[1], c.x[2]).astype(F)

    def backward(c, g):
        taken = np.broadcast_to(c.x[0] != 0, g.shape)
        return [None, broadcast_gradient(np.where(taken, g, F(0)), c.x[1].shape),
                broadcast_gradient(np.where(taken, F(0), g), c.x[2].shape)]


# ---- moves ----
@op("reshape")
class Reshape:
    def forward(c):
        return c.x[0].reshape(c.shape)

    def backward(c, g):
        return [Value(g.reshape(c.x[0].shape))]


@op("detach")
class Detach:
    def forward(c):
        return c.x[0]

    def backward(c, g):
        return [None]


@op("permute")
class Permute:
    def forward(c):
        return np.ascontiguousarray(np.transpose(c.x[0], c.a[1:]))

    def backward(c, g):
        return [Value(np.transpose(g, np.argsort(c.a[1:])))]


@op("slice")
class Slice:
    def forward(c):
        axis, begin, end = c.a
        return np.take(c.x[0], range(begin, end), axis)

    def backward(c, g):
        axis, begin, end = c.a
        before, after = list(c.x[0].shape), list(c.x[0].shape)
        before[axis], after[axis] = begin, c.x[0].shape[axis] - end
        return [Value(np.concatenate([np.zeros(before, F), g, np.zeros(after, F)], axis))]


@op("concat")
class Concat:
    def forward(c):
        return np.concatenate(c.x, c.a[0])

    def backward(c, g):
        at, out = 0, []
        for x in c.x:
            n = x.shape[c.a[0]]
            out.append(Value(np.take(g, range(at, at + n), c.a[0])))
            at += n
        return out


@op("sum")
class Sum:
    def forward(c):
        x = c.x[0]
        axis = c.a[0] % x.ndim
        if axis == x.ndim - 1:
            return row_sum(x)
        s = np.zeros(x.shape[:axis] + x.shape[axis + 1:], F)
        for i in range(x.shape[axis]):
            s = s + np.take(x, i, axis)
        return s

    def backward(c, g):
        return [Value(np.broadcast_to(np.expand_dims(g, c.a[0]), c.x[0].shape))]


@op("mean")
class Mean:
    def forward(c):
        return Sum.forward(c) / F(c.x[0].shape[c.a[0]])

    def backward(c, g):
        g = np.expand_dims(g / F(c.x[0].shape[c.a[0]]), c.a[0])
        return [Value(np.broadcast_to(g, c.x[0].shape))]


# ---- rows ----
@op("softmax")
class Softmax:
    def forward(c):
        x = c.x[0]
        m = x.max(-1, keepdims=True)
        e = exp(x - m)
        return e / row_sum(e)[..., None]

    def backward(c, g):
        return [Product(c.y, g - row_dot(g, c.y)[..., None])]


@op("log_softmax")
class LogSoftmax:
    def forward(c):
        x = c.x[0]
        m = x.max(-1, keepdims=True)
        return (x - m) - log(row_sum(exp(x - m)))[..., None]

    def backward(c, g):
        return [Value(fma(-exp(c.y), row_sum(g)[..., None], g))]


@op("layernorm")
class Layernorm:
    def forward(c):
        x, n = c.x[0], F(c.x[0].shape[-1])
        first = x[..., :1]
        d = x - (first + (row_sum(x - first) / n)[..., None])
        d = d - (row_sum(d) / n)[..., None]
        r = (F(1) / np.sqrt(row_dot(d, d) / n + c.a[0]))[..., None]
        h = d * r
        c.aux = {"h": h, "r": r}
        if c.x[1] is None:
            return h if c.x[2] is None else fma(d, r, c.x[2])
        return h * c.x[1] if c.x[2] is None else fma(h, c.x[1], c.x[2])

    def backward(c, g):
        h, n = c.aux["h"], F(c.x[0].shape[-1])
        u = g if c.x[1] is None else rounded(g, c.x[1])
        a, b = (row_sum(u) / n)[..., None], (row_dot(u, h) / n)[..., None]
        flat = lambda x: x.reshape(-1, x.shape[-1])
        return [Product(c.aux["r"], fma(-h, b, u - a)), Sums(flat(rounded(g, h))), Sums(flat(g))]


@op("rmsnorm")
class Rmsnorm:
    def forward(c):
        x, n = c.x[0], F(c.x[0].shape[-1])
        r = (F(1) / np.sqrt(row_dot(x, x) / n + c.a[0]))[..., None]
        c.aux = {"h": x * r, "r": r}
        return c.aux["h"] if c.x[1] is None else c.aux["h"] * c.x[1]

    def backward(c, g):
        h, n = c.aux["h"], F(c.x[0].shape[-1])
        u = g if c.x[1] is None else rounded(g, c.x[1])
        return [Product(c.aux["r"], fma(-h, (row_dot(u, h) / n)[..., None], u)),
                Sums(rounded(g, h).reshape(-1, h.shape[-1]))]


# ---- products ----
def flat(x):
    return x.reshape(-1, x.shape[-1])


class LinearBase:
    transposed = False

    @classmethod
    def forward(k, c):
        w = c.x[1].T if k.transposed else c.x[1]
        x = flat(c.x[0])
        start = np.zeros(w.shape[1], F) if c.x[2] is None else c.x[2]
        return chain(x, w, np.broadcast_to(start, (x.shape[0], w.shape[1]))).reshape(c.shape)

    @classmethod
    def backward(k, c, g):
        w = c.x[1] if k.transposed else c.x[1].T
        x, g = flat(c.x[0]), flat(g)
        left, right = (g, x) if k.transposed else (x, g)
        return [Chain(lambda s: chain(g, w, s.reshape(x.shape)).reshape(s.shape), c.x[0].shape),
                Chain(lambda s: chain(left.T, right, s), c.x[1].shape), Sums(g)]


@op("linear")
class Linear(LinearBase):
    pass


@op("linear_transposed")
class LinearTransposed(LinearBase):
    transposed = True


class MatmulBase:
    transposed = False

    @classmethod
    def forward(k, c):
        a, b = c.x
        b = np.swapaxes(b, -1, -2) if k.transposed else b
        return chain(a, b, np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]), F))

    @classmethod
    def backward(k, c, g):
        a, b = c.x
        bt = b if k.transposed else np.swapaxes(b, -1, -2)
        shared = b.ndim == 2 and a.ndim > 2
        l, r = (flat(a), flat(g)) if shared else (a, g)
        l, r = (r, l) if k.transposed else (l, r)
        return [Chain(lambda s: chain(g, bt, s), a.shape),
                Chain(lambda s: chain(np.swapaxes(l, -1, -2), r, s), b.shape)]


@op("matmul")
class Matmul(MatmulBase):
    pass


@op("matmul_transposed")
class MatmulTransposed(MatmulBase):
    transposed = True


@op("embed")
class Embed:
    def forward(c):
        return c.x[0][c.x[1]]

    def backward(c, g):
        index, g = c.x[1].reshape(-1), flat(g)

        def go(s):
            s = s.copy()
            for i, row in zip(index, g):
                s[i] = s[i] + row
            return s
        return [Chain(go, c.x[0].shape), None]


# ---- losses: forward gives (a binary32 loss for each row, count); backward has the scale of the sum ----
@op("cross_entropy")
class CrossEntropy:
    def parts(z):
        m = np.full(z.shape[:-1], -np.inf, F)
        s = np.zeros(z.shape[:-1], F)
        for i in range(0, z.shape[-1], 1024):
            t = z[..., i:i + 1024]
            new = np.maximum(m, t.max(-1))
            s = s * np.where(new == m, F(1), exp(m - new)) if i else s
            s = s + row_sum(exp(t - new[..., None]))
            m = new
        return m, log(s)

    def forward(c):
        z, t = flat(c.x[0]), c.x[1].reshape(-1)
        m, l = CrossEntropy.parts(z)
        c.aux = {"m": m, "l": l}
        at = z[np.arange(len(t)), np.maximum(t, 0)]
        loss = l - (at - m)
        return np.where(t >= 0, loss, F(0)), int((t >= 0).sum())

    def backward(c, scale):
        z, t = flat(c.x[0]), c.x[1].reshape(-1)
        m, l = CrossEntropy.parts(z)
        p = exp((z - m[:, None]) - l[:, None])
        one = (np.arange(z.shape[-1]) == t[:, None]).astype(F)
        d = np.where((t >= 0)[:, None], p - one, F(0))
        return [Product(scale, d.reshape(c.x[0].shape)), None]


@op("mean_squared_error")
class MeanSquaredError:
    def forward(c):
        d = c.x[0] - c.x[1]
        d = d.reshape(d.shape[0], -1)
        return row_dot(d, d), d.size

    def backward(c, scale):
        d = c.x[0] - c.x[1]
        return [Product(F(2) * scale, d), Product(F(-2) * scale, d)]


@op("sum_loss")
class SumLoss:
    def forward(c):
        x = c.x[0].reshape(c.x[0].shape[0] if c.x[0].ndim else 1, -1)
        return row_sum(x), x.size

    def backward(c, scale):
        return [Value(np.full(c.x[0].shape, scale, F))]
