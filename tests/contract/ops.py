"""The ops of docs/numerics.md, forward and backward, written with the primitives of contract.py."""
import math
import numpy as np
from contract import *
import unary
from unary import exp, log, log1p, sigmoid, tanh, wave


class Call:
    """A call of an op. x: values of the inputs (None for a missing one); a: attributes; y: the result; saved: values
    saved for the backward; half: whether the plan is a bf16 plan."""

    def __init__(self, x, a, shape, half=False):
        self.x, self.a, self.shape, self.y, self.saved, self.half = x, a, shape, None, {}, half


OPS = {}


def op(name):
    def add(c):
        OPS[name] = c
        return c
    return add


# ---- elementwise ----
def curve(name, forward, slope):
    """Defines a unary elementwise op. slope(c) is its derivative; the gradient is the product g slope (r2)."""
    class C:
        pass
    C.forward = staticmethod(forward)
    C.backward = staticmethod(lambda c, g: [Product(g, slope(c))])
    OPS[name] = C


def masked(name, forward, taken):
    class C:
        pass
    C.forward = staticmethod(forward)
    C.backward = staticmethod(lambda c, g: [Select(taken(c), g)])
    OPS[name] = C


masked("relu", lambda c: np.where(F(0) > c.x[0], F(0), c.x[0]), lambda c: c.y > 0)
curve("leaky_relu", lambda c: np.where(c.x[0] > 0, c.x[0], c.a[0] * c.x[0]),
      lambda c: np.where(c.y > 0, F(1), c.a[0]))
curve("exp", lambda c: exp(c.x[0]), lambda c: c.y)
curve("tanh", lambda c: tanh(c.x[0]), lambda c: fma(-c.y, c.y, F(1)))
curve("sigmoid", lambda c: sigmoid(c.x[0]), lambda c: fma(-c.y, c.y, c.y))


def silu_slope(c):
    s = sigmoid(c.x[0])
    return fma(c.x[0] * s, F(1) - s, s)


SELU = F(1.05070102), F(1.75809932)  # scale, and scale alpha


def elu(x, high, low):
    return np.where(x < 0, -low * unary.less_than_1(-np.minimum(F(20), -np.minimum(F(0), x))), high * x)


def elu_slope(x, high, low):
    return np.where(x > 0, high, low * exp(np.minimum(F(0), x)))


def mish_terms(x):
    c = np.maximum(F(-105), np.minimum(F(20), x))
    w = exp(c)
    d = fma(w, w + F(2), F(2))
    return rounded(w, w + F(2)) / d, c, w, d


def mish_slope(x):
    t, c, w, d = mish_terms(x)
    return fma(F(4) * c * w / d, (F(1) + w) / d, t)


curve("silu", lambda c: c.x[0] / (F(1) + exp(-c.x[0])), silu_slope)
curve("softplus", lambda c: np.maximum(c.x[0], F(0)) + log1p(exp(-np.abs(c.x[0]))),
      lambda c: unary.less_than_1(-np.minimum(F(20), c.y)))
curve("elu", lambda c: elu(c.x[0], F(1), c.a[0]), lambda c: elu_slope(c.x[0], F(1), c.a[0]))
curve("selu", lambda c: elu(c.x[0], *SELU), lambda c: elu_slope(c.x[0], *SELU))
curve("mish", lambda c: c.x[0] * mish_terms(c.x[0])[0], lambda c: mish_slope(c.x[0]))
curve("hardswish", lambda c: c.x[0] * np.minimum(F(6), np.maximum(F(0), c.x[0] + F(3))) / F(6),
      lambda c: np.where(c.x[0] <= -3, F(0), np.where(c.x[0] >= 3, F(1), c.x[0] / F(3) + F(0.5))))
curve("sin", lambda c: wave(c.x[0], 0), lambda c: wave(c.x[0], 1))
curve("cos", lambda c: wave(c.x[0], 1), lambda c: wave(c.x[0], 2))
curve("abs", lambda c: np.abs(c.x[0]), lambda c: np.where(c.x[0] > 0, F(1), np.where(c.x[0] < 0, F(-1), F(0))))


def gelu_erf(c):
    h = F(0.5) * c.x[0]
    return fma(h, unary.erf(unary.ROOT_HALF * c.x[0]), h)


def gelu_erf_slope(c):
    x = c.x[0]
    return fma(unary.ROOT_2_PI * x, exp(F(-0.5) * x * x), fma(F(0.5), unary.erf(unary.ROOT_HALF * x), F(0.5)))


curve("gelu_erf", gelu_erf, gelu_erf_slope)
curve("reciprocal", lambda c: F(1) / c.x[0], lambda c: -(c.y * c.y))
curve("scale", lambda c: c.a[0] * c.x[0], lambda c: c.a[0])
masked("clamp", lambda c: np.where(c.x[0] < c.a[0], c.a[0], np.where(c.x[0] > c.a[1], c.a[1], c.x[0])),
       lambda c: (c.x[0] > c.a[0]) & (c.x[0] < c.a[1]))


def power(x, e):
    if e in (1, 2, 3):
        return {1: x, 2: x * x, 3: x * x * x}[int(e)]
    return unary.general_power(x, e)


curve("pow", lambda c: F(1) / c.x[0] if c.a[0] == -1 else power(c.x[0], c.a[0]),
      lambda c: -(c.y * c.y) if c.a[0] == -1 else c.a[0] * power(c.x[0], c.a[0] - F(1)))

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
two("prelu", lambda a, b: np.where(a > 0, a, b * a),
    lambda c, g: [(g, np.where(c.x[0] > 0, F(1), c.x[1])), (np.where(c.x[0] > 0, F(0), g), np.where(c.x[0] > 0, F(0), c.x[0]))])
two("div", lambda a, b: a / b, lambda c, g: [(g / c.x[1],), (g, -(c.x[0] / c.x[1]) / c.x[1])])


def extreme(name, forward, sign):
    class C:
        pass

    def backward(c, g):
        a, b = c.x
        first, second = (a > b, a < b) if sign > 0 else (a < b, a > b)
        half = np.where(a == b, F(0.5) * g, g)  # both inputs get g if one of them is NaN
        return [broadcast_gradient(np.where(second, F(0), half), a.shape),
                broadcast_gradient(np.where(first, F(0), half), b.shape)]
    C.forward = staticmethod(lambda c: forward(c.x[0], c.x[1]))
    C.backward = staticmethod(backward)
    OPS[name] = C


extreme("maximum", lambda a, b: np.where((a >= b) | np.isnan(a), a, b), 1)
extreme("minimum", lambda a, b: np.where((a <= b) | np.isnan(a), a, b), -1)


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
        at = (slice(None),) * axis + (slice(begin, end),)

        def go(s, fresh=False):
            s = s.copy()
            s[at] = g if fresh else s[at] + g
            return s
        return [Part(go, c.x[0].shape)]


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
        e = exp(x - np.where(m == -np.inf, F(0), m))
        s = row_sum(e)[..., None]
        return e / np.where(s == 0, F(1), s)

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
        c.saved = {"h": h, "r": r}
        if c.x[1] is None:
            return h if c.x[2] is None else fma(d, r, c.x[2])
        return h * c.x[1] if c.x[2] is None else fma(h, c.x[1], c.x[2])

    def backward(c, g):
        h, n = c.saved["h"], F(c.x[0].shape[-1])
        u = g if c.x[1] is None else rounded(g, c.x[1])
        a, b = (row_sum(u) / n)[..., None], (row_dot(u, h) / n)[..., None]
        flat = lambda x: x.reshape(-1, x.shape[-1])
        return [Product(c.saved["r"], fma(-h, b, u - a)), Sums(flat(rounded(g, h))), Sums(flat(g))]


@op("rmsnorm")
class Rmsnorm:
    def forward(c):
        x, n = c.x[0], F(c.x[0].shape[-1])
        r = (F(1) / np.sqrt(row_dot(x, x) / n + c.a[0]))[..., None]
        c.saved = {"h": x * r, "r": r}
        return c.saved["h"] if c.x[1] is None else c.saved["h"] * c.x[1]

    def backward(c, g):
        h, n = c.saved["h"], F(c.x[0].shape[-1])
        u = g if c.x[1] is None else rounded(g, c.x[1])
        return [Product(c.saved["r"], fma(-h, (row_dot(u, h) / n)[..., None], u)),
                Sums(rounded(g, h).reshape(-1, h.shape[-1]))]


# ---- products ----
def flat(x):
    return x.reshape(-1, x.shape[-1])


def links_of(x):
    """Returns T, the number of rows in an entry of the batch (l7)."""
    return int(np.prod(x.shape[1:-1]))


class LinearBase:
    transposed = False

    @classmethod
    def forward(k, c):
        w = c.x[1].T if k.transposed else c.x[1]
        x = flat(c.x[0])
        start = np.zeros(w.shape[1], F) if c.x[2] is None else c.x[2]
        return product(x, w, np.broadcast_to(start, (x.shape[0], w.shape[1])), c.half).reshape(c.shape)

    @classmethod
    def backward(k, c, g):
        w = c.x[1] if k.transposed else c.x[1].T
        x, g = flat(c.x[0]), flat(g)
        left, right = (g, x) if k.transposed else (x, g)
        return [Chain(lambda s: product(g, w, s.reshape(x.shape), c.half).reshape(s.shape), c.x[0].shape),
                Chain(lambda s: product(left.T, right, s, c.half, links_of(c.x[0])), c.x[1].shape), Sums(g)]


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
        a, b = c.x[:2]
        b = np.swapaxes(b, -1, -2) if k.transposed else b
        start = np.zeros(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]), F)
        return product(a, b, start, c.half)

    @classmethod
    def backward(k, c, g):
        a, b = c.x[:2]
        bt = b if k.transposed else np.swapaxes(b, -1, -2)
        if b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
            return k.broadcast_backward(a, b, bt, c.half, g)
        shared = b.ndim == 2 and a.ndim > 2
        l, r = (flat(a), flat(g)) if shared else (a, g)
        l, r = (r, l) if k.transposed else (l, r)
        links = links_of(a) if shared or a.ndim == 2 else a.shape[-2]
        return [Chain(lambda s: product(g, bt, s, c.half), a.shape),
                Chain(lambda s: product(np.swapaxes(l, -1, -2), r, s, c.half, links), b.shape)]


    @classmethod
    def broadcast_backward(k, a, b, bt, half, g):
        """Continues the chains of a matrix that serves several results through these, in row-major order."""
        lead = g.shape[:-2]
        whole = [np.broadcast_to(x, lead + x.shape[-2:]) for x in (a, bt)]
        l, r = (g, whole[0]) if k.transposed else (whole[0], g)

        def go(s, left, right, links):
            s = s.copy()
            for at in np.ndindex(lead):
                own = at[len(at) - s.ndim + 2:]
                own = tuple(0 if s.shape[i] == 1 else j for i, j in enumerate(own))
                s[own] = product(left[at], right[at], s[own], half, *links)
            return s
        return [Chain(lambda s: go(s, g, whole[1], ()), a.shape),
                Chain(lambda s: go(s, np.swapaxes(l, -1, -2), r, (a.shape[-2],)), b.shape)]


@op("broadcast_matmul")  # a node of a product of vectors
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


# ---- losses: forward returns a binary32 loss for each row, and a count; backward gets the scale of clause e6 ----
@op("cross_entropy")
class CrossEntropy:
    def parts(z):
        m = np.full(z.shape[:-1], -np.inf, F)
        s = np.zeros(z.shape[:-1], F)
        for i in range(0, z.shape[-1], 1024):
            t = z[..., i:i + 1024]
            new = np.maximum(m, t.max(-1))
            s = fma(s, exp(m - new), row_sum(exp(t - new[..., None])))
            m = new
        return m, log(s)

    def forward(c):
        z, t = flat(c.x[0]), c.x[1].reshape(-1)
        m, l = CrossEntropy.parts(z)
        c.saved = {"m": m, "l": l}
        at = z[np.arange(len(t)), np.maximum(t, 0)]
        loss = l - (at - m)
        return np.where(t >= 0, loss, F(0)), int((t >= 0).sum())

    def backward(c, scale):
        z, t = flat(c.x[0]), c.x[1].reshape(-1)
        m, l = CrossEntropy.parts(z)
        p = exp((z - m[:, None]) - l[:, None])
        one = (np.arange(z.shape[-1]) == t[:, None]).astype(F)
        d = Product(scale, (p - one).reshape(c.x[0].shape))
        return [Some((t >= 0).reshape(c.x[0].shape[:-1] + (1,)), d, c.x[0].shape), None]


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


# ---- h. attention ----
@op("attention")
class Attention:
    """Attention, computed one query after the other, for all rows and heads at once."""

    def heads(c):
        heads, shared = c.a[0], c.a[1] or c.a[0]
        b, t, width = c.x[0].shape
        d = width // heads
        q = c.x[0].reshape(b, t, heads, d).transpose(0, 2, 1, 3)
        k, v = (x.reshape(b, x.shape[1], shared, d).transpose(0, 2, 1, 3) for x in c.x[1:3])
        return (bf16(q), bf16(k), bf16(v), heads // shared) if c.half else (q, k, v, heads // shared)

    def factors(c, d):
        cap, scale = c.a[4], c.a[5] if c.a[5] != 0 else F(1) / np.sqrt(F(d))
        return (scale / cap if cap != 0 else scale), cap

    def seen(c, s, t):
        """Returns three numbers for query t of s keys: the first visible key, the end of the causal keys, and, for each
        row, the end of the visible keys."""
        causal, window = c.a[2], c.a[3]
        last = s - c.x[0].shape[1] + t + 1 if causal else s
        first = max(0, last - window) if window and window < s else 0
        lengths = np.full(c.x[0].shape[0], last) if len(c.x) < 4 or c.x[3] is None else np.minimum(c.x[3], last)
        return first, last, lengths

    def scores(c, q, k, t):
        """Returns the first key of query t, the scores (b,h,keys) of its keys, and which of these keys are visible."""
        first, last, lengths = Attention.seen(c, k.shape[2], t)
        factor, cap = Attention.factors(c, q.shape[-1])
        keys = k[:, :, first:last]
        s = product(q[:, :, t:t + 1], np.swapaxes(keys, -1, -2), np.zeros(keys.shape[:2] + (1, last - first), F),
                    c.half)[:, :, 0]
        s = rounded(s, factor)
        if cap != 0:
            s = cap * tanh(s)
        see = np.broadcast_to((np.arange(first, last) < lengths[:, None])[:, None], s.shape)
        return first, np.where(see, s, F(-np.inf)), see

    def over(c, s, links):
        """Continues chains from s. links is a list of terms: place, operands a and b, and a mask of the elements that
        get the term."""
        if not c.half:
            for j, a, b, there in links:
                s = np.where(there, fma(a, b, s), s)
            return s
        element = Element(s)
        for j, a, b, there in links:
            element.link(j, bf16(a), b, there)
        s = np.broadcast_to(element.end(), s.shape)
        return np.where(s == 0, F(0), s)

    def forward(c):
        q, k, v, share = Attention.heads(c)
        k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        out, top, total = np.zeros(q.shape, F), np.zeros(q.shape[:3], F), np.zeros(q.shape[:3], F)
        for t in range(q.shape[2]):
            first, s, see = Attention.scores(c, q, k, t)
            m, l = np.full(s.shape[:2], -np.inf, F), np.zeros(s.shape[:2], F)
            o = np.zeros(s.shape[:2] + (v.shape[-1],), F)
            lead = first % 64
            s = np.concatenate([np.full(s.shape[:2] + (lead,), -np.inf, F), s], -1)
            see = np.concatenate([np.zeros(see.shape[:2] + (lead,), bool), see], -1)
            first -= lead
            for i in range(0, s.shape[2], 64):
                tile, there = s[:, :, i:i + 64], see[:, :, i:i + 64]
                new = np.maximum(m, tile.max(-1))
                zero = np.where(np.isinf(new), F(0), new)
                e = np.where(there, exp(tile - zero[..., None]), F(0))
                f = np.where(np.isinf(m), F(1), exp(m - zero))
                l, o = fma(l, f, row_sum(e)), o * f[..., None]
                o = Attention.over(c, o, [(j, e[:, :, j, None], v[:, :, first + i + j], there[:, :, j, None])
                                          for j in range(tile.shape[2])])
                m = new
            top[:, :, t], total[:, :, t] = np.where(np.isinf(m), F(0), m), np.where(l == 0, F(1), l)
            out[:, :, t] = o / total[:, :, t, None]
        c.saved = {"l": top + log(total)}
        return out.transpose(0, 2, 1, 3).reshape(c.shape)

    def backward(c, g):
        q, k, v, share = Attention.heads(c)
        b, heads, t, d = q.shape
        g = g.reshape(b, t, heads, d).transpose(0, 2, 1, 3)
        y = c.y.reshape(b, t, heads, d).transpose(0, 2, 1, 3)
        big_k, big_v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        factor, cap = Attention.factors(c, d)
        ds, p, see = (np.zeros((b, heads, t, k.shape[2]), x) for x in (F, F, bool))
        for i in range(t):
            first, s, there = Attention.scores(c, q, big_k, i)
            at = slice(first, first + s.shape[2])
            e = np.where(there, exp(s - c.saved["l"][:, :, i, None]), F(0))
            vs = big_v[:, :, at]
            dp = product(g[:, :, i:i + 1], np.swapaxes(vs, -1, -2), np.zeros((b, heads, 1, s.shape[2]), F),
                         c.half)[:, :, 0]
            u = dp - row_dot(g[:, :, i], y[:, :, i])[..., None]
            if cap != 0:
                z = np.where(there, s, F(0)) * (F(1) / cap)
                u = u * fma(-z, z, F(1))
            scale = factor * cap if cap != 0 and c.a[5] == 0 else c.a[5] if cap != 0 else factor
            if c.a[5] == 0:
                scale = F(1) / np.sqrt(F(d))
            p[:, :, i, at] = e
            ds[:, :, i, at] = np.where(there, rounded(e * u, scale), F(0))
            see[:, :, i, at] = there

        def out(go, x, n):
            """Returns a Chain for input x with n heads; go continues s in the shape (b,n,rows,d)."""
            return Chain(lambda s: go(s.reshape(x.shape[0], x.shape[1], n, d).transpose(0, 2, 1, 3))
                         .transpose(0, 2, 1, 3).reshape(s.shape), x.shape)

        def query(s):
            return Attention.over(c, s, [(j, ds[:, :, :, j, None], big_k[:, :, None, j], see[:, :, :, j, None])
                                         for j in range(k.shape[2])])

        def key(of, x):
            def go(s):
                for h in range(share):
                    s = Attention.over(c, s, [(i, of[:, h::share, i, :, None], x[:, h::share, i, None],
                                               see[:, h::share, i, :, None]) for i in range(t)])
                return s
            return go
        return [out(query, c.x[0], heads), out(key(ds, q), c.x[1], k.shape[1]), out(key(p, g), c.x[2], k.shape[1]),
                None]


@op("masked_attention")
class MaskedAttention:
    """Attention with a mask that is added to the scores; in f32 in every plan."""

    def parts(c):
        heads, shared, cap, scale = c.a
        whole = Call(c.x[:3], (heads, shared, 0, 0, cap, scale), c.shape)
        q, k, v, share = Attention.heads(whole)
        k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        factor, cap = Attention.factors(whole, q.shape[-1])
        s = rounded(chain(q, np.swapaxes(k, -1, -2), np.zeros(q.shape[:3] + (k.shape[2],), F)), factor)
        s = cap * tanh(s) if cap != 0 else s
        return whole, q, k, v, share, s, s + np.broadcast_to(c.x[3], s.shape)

    def forward(c):
        whole, q, k, v, share, s, masked = MaskedAttention.parts(c)
        m, l = np.full(s.shape[:3], -np.inf, F), np.zeros(s.shape[:3], F)
        o = np.zeros(q.shape, F)
        for i in range(0, s.shape[3], 64):
            tile = masked[..., i:i + 64]
            new = np.maximum(m, tile.max(-1))
            zero = np.where(np.isinf(new), F(0), new)
            e = exp(tile - zero[..., None])
            f = np.where(np.isinf(m), F(1), exp(m - zero))
            l, o = fma(l, f, row_sum(e)), o * f[..., None]
            o = chain(e, v[:, :, i:i + 64], o)
            m = new
        top, total = np.where(np.isinf(m), F(0), m), np.where(l == 0, F(1), l)
        c.saved = {"l": top + log(total)}
        return (o / total[..., None]).transpose(0, 2, 1, 3).reshape(c.shape)

    def backward(c, g):
        whole, q, k, v, share, s, masked = MaskedAttention.parts(c)
        b, heads, t, d = q.shape
        g = g.reshape(b, t, heads, d).transpose(0, 2, 1, 3)
        y = c.y.reshape(b, t, heads, d).transpose(0, 2, 1, 3)
        p = exp(masked - c.saved["l"][..., None])
        u = chain(g, np.swapaxes(v, -1, -2), np.zeros(s.shape, F)) - row_dot(g, y)[..., None]
        cap, scale = c.a[2], c.a[3] if c.a[3] != 0 else F(1) / np.sqrt(F(d))
        z = s * (F(1) / cap) if cap != 0 else None
        ds = rounded(p * (u if cap == 0 else u * fma(-z, z, F(1))), scale)

        def out(go, x, n):
            return Chain(lambda s: go(s.reshape(x.shape[0], x.shape[1], n, d).transpose(0, 2, 1, 3))
                         .transpose(0, 2, 1, 3).reshape(s.shape), x.shape)

        def key(of, x):
            def go(s):
                for h in range(share):
                    s = chain(np.swapaxes(of[:, h::share], -1, -2), x[:, h::share], s)
                return s
            return go

        def mask(start):
            sums = start.copy().reshape((1,) * (4 - start.ndim) + start.shape)
            for i, j in np.ndindex(b, heads):
                for t0, s0 in np.ndindex((t + 63) // 64, (s.shape[3] + 63) // 64):
                    for a in range(t0 * 64, min(t, t0 * 64 + 64)):
                        for e in range(s0 * 64, min(s.shape[3], s0 * 64 + 64)):
                            at = tuple(0 if n == 1 else w for n, w in zip(sums.shape, (i, j, a, e)))
                            sums[at] = fma(p[i, j, a, e], u[i, j, a, e], sums[at])
            return sums.reshape(start.shape)
        return [out(lambda s: chain(ds, k, s), c.x[0], heads), out(key(ds, q), c.x[1], heads // share),
                out(key(p, g), c.x[2], heads // share), Chain(mask, c.x[3].shape)]


# ---- further losses ----
@op("linear_cross_entropy")
class LinearCrossEntropy:
    def logits(c):
        x, w = flat(c.x[0]), c.x[1]
        z = product(x, w.T, np.zeros((x.shape[0], w.shape[0]), F), c.half)
        cap = c.a[0] if c.a else F(0)
        return cap * tanh(z * (F(1) / cap)) if cap != 0 else z

    def forward(c):
        inner = Call([LinearCrossEntropy.logits(c), c.x[2]], (), ())
        return CrossEntropy.forward(inner)

    def backward(c, scale):
        z = LinearCrossEntropy.logits(c)
        cap = c.a[0] if c.a else F(0)
        d = CrossEntropy.backward(Call([z, c.x[2]], (), ()), scale)[0]
        d = np.where(d.taken, d.what.b, F(0))
        if cap != 0:
            y = z * (F(1) / cap)
            d = d * fma(-y, y, F(1))
        d = scale * d
        x, w = flat(c.x[0]), c.x[1]
        t = c.x[2].reshape(-1) >= 0

        def rows(s):
            s = s.reshape(x.shape)
            return np.where(t[:, None], product(d, w, s, c.half), s).reshape(c.x[0].shape)

        def table(s):
            return product(d.T, x, s, True, links_of(c.x[0])) if c.half else chain(d[t].T, x[t], s)
        return [Chain(rows, c.x[0].shape), Chain(table, w.shape), None]


OPS["linear_cross_entropy_with"] = LinearCrossEntropy


def weights_of(w, n):
    """Returns the weights of a loss, one for each of n rows or elements, or None if the loss has no weights."""
    return None if w is None else np.repeat(w.reshape(-1), n // max(w.size, 1))


@op("cross_entropy_with")
class CrossEntropyWith:
    def forward(c):
        z, t, e = flat(c.x[0]), c.x[1].reshape(-1), c.a[0]
        m, l = CrossEntropy.parts(z)
        s = l[:, None] - (z - m[:, None])
        at = s[np.arange(len(t)), np.maximum(t, 0)]
        loss = at if e == 0 else fma(e / F(z.shape[-1]), row_sum(s), rounded(F(1) - e, at))
        c.saved = {"loss": loss}
        w = weights_of(c.x[2], len(t))
        if w is not None:
            loss = w * loss
        return np.where((t >= 0) & (True if w is None else w != 0), loss, F(0)), int((t >= 0).sum())

    def backward(c, scale):
        z, t, e = flat(c.x[0]), c.x[1].reshape(-1), c.a[0]
        m, l = CrossEntropy.parts(z)
        p = exp((z - m[:, None]) - l[:, None])
        one = np.arange(z.shape[-1]) == t[:, None]
        share = e / F(z.shape[-1])
        d = np.where(one, p - (share + (F(1) - e)), p - share) if e != 0 else p - one.astype(F)
        w = weights_of(c.x[2], len(t))
        by = scale if w is None else (scale * w)[:, None]
        there = (t >= 0) & (True if w is None else w != 0)
        d = Product(np.broadcast_to(by, d.shape).reshape(c.x[0].shape), d.reshape(c.x[0].shape))
        out = [Some(there.reshape(c.x[0].shape[:-1] + (1,)), d, c.x[0].shape), None]
        if w is not None:
            loss = np.where(t >= 0, c.saved["loss"], F(0)).reshape(c.x[2].size, len(t) // max(c.x[2].size, 1))
            out.append(Product(scale, row_sum(loss).reshape(c.x[2].shape)))
        return out


@op("soft_cross_entropy")
class SoftCrossEntropy:
    def forward(c):
        z, t = flat(c.x[0]), flat(c.x[1])
        m, l = CrossEntropy.parts(z)
        s = l[:, None] - (z - m[:, None])
        loss = row_dot(t, np.where(t != 0, s, F(0)))
        c.saved = {"loss": loss, "s": s}
        w = weights_of(c.x[2], len(z))
        return loss if w is None else np.where(w != 0, w * loss, F(0)), len(z)

    def backward(c, scale):
        z, t = flat(c.x[0]), flat(c.x[1])
        m, l = CrossEntropy.parts(z)
        p = exp((z - m[:, None]) - l[:, None])
        w = weights_of(c.x[2], len(z))
        by = scale if w is None else (scale * w)[:, None]
        shape = c.x[0].shape
        full = np.broadcast_to(by, z.shape).reshape(shape)
        there = True if w is None else (w != 0).reshape(shape[:-1] + (1,))
        out = [Some(there, Product(full, fma(row_sum(t)[:, None], p, -t).reshape(shape)), shape),
               Some(there, Product(full, (l[:, None] - (z - m[:, None])).reshape(shape)), shape)]
        if w is not None:
            n = c.x[2].size
            lost = row_sum(c.saved["loss"].reshape(n, len(z) // max(n, 1)))
            out.append(Product(scale, lost.reshape(c.x[2].shape)))
        return out


def elementwise_loss(name, factors, gradients):
    """Defines an elementwise loss. factors(c): the operands a and b of clause i5 for each element. gradients(c): the
    loss's derivatives for prediction and target."""
    class C:
        def forward(c):
            n = c.x[0].size
            a, b = (x.reshape(-1) for x in factors(c))
            w = weights_of(c.x[2], n)
            if w is not None:
                a, b = np.where(w != 0, w * a, F(0)), np.where(w != 0, b, F(0))
            entries = c.x[0].shape[0]
            a, b = a.reshape(entries, n // max(entries, 1)), b.reshape(entries, n // max(entries, 1))
            return row_dot(a, b), n

        def backward(c, scale):
            n, shape = c.x[0].size, c.x[0].shape
            w = weights_of(c.x[2], n)
            by = np.ones(n, F) if w is None else w
            out = [Product(scale, (by * d.reshape(-1)).reshape(shape)) for d in gradients(c)]
            if w is not None:
                a, b = (x.reshape(c.x[2].size, n // max(c.x[2].size, 1)) for x in factors(c))
                out.append(Product(scale, row_dot(a, b).reshape(c.x[2].shape)))
            return out
    OPS[name] = C


def square(c):
    d = c.x[0] - c.x[1]
    return d, d


elementwise_loss("mean_squared_error_with", square,
                 lambda c: (F(2) * (c.x[0] - c.x[1]), F(-2) * (c.x[0] - c.x[1])))


def huber(c):
    d, k = c.x[0] - c.x[1], c.a[0]
    small = np.abs(d) < k
    return np.where(small, F(0.5) * d, k), np.where(small, d, np.abs(d) - F(0.5) * k)


def huber_slope(c):
    d, k = c.x[0] - c.x[1], c.a[0]
    s = np.where(np.abs(d) < k, d, np.where(d > 0, k, -k))
    return s, -s


elementwise_loss("huber", huber, huber_slope)


def binary(c):
    x, t = c.x[0], c.x[1]
    l = fma(-x, t, np.maximum(x, F(0))) + log1p(exp(-np.abs(x)))
    return np.ones(x.shape, F), l


elementwise_loss("binary_cross_entropy", binary, lambda c: (sigmoid(c.x[0]) - c.x[1], -c.x[0]))


# ---- further moves ----
@op("from_u8")
class FromU8:
    def forward(c):
        return fma(c.x[0].astype(F), c.a[0], c.a[1])

    def backward(c, g):
        return [None]


class Ends(Value):
    """A gradient x, to whose entries of an axis the gradients of their copies are then added in order."""

    def __init__(self, x, copies, axis):
        self.x, self.copies, self.axis = x, copies, axis

    def store(self):
        return self.copied(np.array(self.x, F))

    def add(self, s):
        return self.copied(s + self.x)

    def copied(self, s):
        s = np.moveaxis(np.array(s), self.axis, 0)
        for place, g in self.copies:
            s[place] = s[place] + g
        return np.moveaxis(s, 0, self.axis)


@op("pad")
class Pad:
    def forward(c):
        axis, before, after, mode, value = c.a
        widths = [(before, after) if i == axis else (0, 0) for i in range(c.x[0].ndim)]
        return np.pad(c.x[0], widths, ["constant", "reflect", "edge"][mode],
                      **({} if mode else {"constant_values": value}))

    def backward(c, g):
        axis, before, after, mode, _ = c.a
        g = np.moveaxis(g, axis, 0)
        inner = np.moveaxis(g[before:len(g) - after], 0, axis)
        places = np.pad(np.arange(len(g) - before - after), (before, after), ["constant", "reflect", "edge"][mode])
        ends = [k for k in range(len(g)) if mode and not before <= k < len(g) - after]
        return [Ends(inner, [(places[k], g[k]) for k in ends], axis)]


@op("max")
class Max:
    def forward(c):
        x, axis = c.x[0], c.a[0]  # the first of equal maxima: 0 equals -0, and numpy's max may return either
        y = np.take_along_axis(x, np.expand_dims(x.argmax(axis), axis), axis)
        return y.reshape(np.delete(x.shape, axis).tolist())

    def backward(c, g):
        x, axis = c.x[0], c.a[0]
        first = np.expand_dims(x.argmax(axis), axis)
        taken = np.expand_dims(np.arange(x.shape[axis]), tuple(range(1, x.ndim - axis))) == first
        return [Some(taken, Value(np.broadcast_to(np.expand_dims(g, axis), x.shape)), x.shape)]


def largest(x, axis, k):
    """Returns the indices of the k largest elements in descending order: NaN first, of equal ones the first."""
    nan = np.isnan(x)
    return np.take(np.lexsort((-np.where(nan, F(0), x), ~nan), axis=axis), np.arange(k), axis)


@op("top_k")
class TopK:
    def forward(c):
        return np.take_along_axis(c.x[0], largest(c.x[0], c.a[0], c.a[1]), c.a[0])

    def backward(c, g):
        x, axis = c.x[0], c.a[0]
        at, values, taken = largest(x, axis, c.a[1]), np.zeros(x.shape, F), np.zeros(x.shape, bool)
        np.put_along_axis(values, at, g, axis)
        np.put_along_axis(taken, at, True, axis)
        return [Some(taken, Value(values), x.shape)]


@op("top_k_indices")
class TopKIndices:
    def forward(c):
        return largest(c.x[0], c.a[0], c.a[1]).astype(np.int32)

    def backward(c, g):
        return [None]


@op("argmax")
class Argmax:
    def forward(c):
        return c.x[0].argmax(c.a[0]).astype(np.int32)

    def backward(c, g):
        return [None]


@op("gather")
class Gather:
    def forward(c):
        return np.stack([x[i] for x, i in zip(c.x[0], c.x[1])]) if len(c.x[0]) else np.zeros(c.shape, F)

    def backward(c, g):
        def go(s):
            s = s.copy()
            for b in range(len(s)):
                for m, i in enumerate(c.x[1][b]):
                    s[b, i] = s[b, i] + g[b, m]
            return s
        return [Chain(go, c.x[0].shape), None]


# ---- j. dropout ----
@op("dropout")
class Dropout:
    def keep(c, shape):
        n = int(np.prod(shape))
        each = n // max(shape[0], 1)
        i = np.arange(n, dtype=np.uint64) + np.uint64(getattr(c, "row", 0) * each)
        q = i // np.uint64(4)
        words = philox([q & np.uint64(0xffffffff), q >> np.uint64(32), np.full(n, c.id), np.full(n, c.step)], 0)
        u = np.choose((i % np.uint64(4)).astype(int), words) >> np.uint64(8)
        return (u.astype(F) * F(2.0 ** -24) >= c.a[0]).reshape(shape)

    def forward(c):
        return np.where(Dropout.keep(c, c.x[0].shape), c.x[0] * (F(1) / (F(1) - c.a[0])), F(0))

    def backward(c, g):
        return [Product(np.where(Dropout.keep(c, c.x[0].shape), g, F(0)), F(1) / (F(1) - c.a[0]))]


# ---- o. convolutions ----
def pair(a, j):
    """Returns field j of a gckpt_window, in the order of dump.c, for rows and for columns."""
    return a[j], a[5 + j]


class Window:
    """The taps of a window over an image (h, w). For each tap: its image rows at the p result rows, and its image
    columns at the q result columns."""

    def __init__(self, a, h, w, size, p, q):
        stride, pad, dil = ([v or 1 for v in pair(a, 1)], pair(a, 2), [v or 1 for v in pair(a, 3)])
        self.taps = []
        for i in range(size[0]):
            for j in range(size[1]):
                y = np.arange(p) * stride[0] - pad[0] + i * dil[0]
                x = np.arange(q) * stride[1] - pad[1] + j * dil[1]
                self.taps.append((i, j, y, x))
        self.h, self.w = h, w
        self.stride, self.pad, self.dil, self.p, self.q = stride, pad, dil, p, q

    def gather(self, x, tap):
        """Returns the pixels that the tap meets, (B,P,Q,C), with +0 outside the image."""
        i, j, ys, xs = tap
        there = ((ys >= 0) & (ys < self.h))[:, None] & ((xs >= 0) & (xs < self.w))[None, :]
        got = x[:, np.clip(ys, 0, self.h - 1)][:, :, np.clip(xs, 0, self.w - 1)]
        return np.where(there[None, :, :, None], got, F(0))

    def back(self, g, tap):
        """Returns, for each pixel (B,H,W,O), the element of g at the place where the tap meets the pixel, and whether
        it meets the pixel (o2)."""
        i, j = tap[:2]
        y = np.arange(self.h) + self.pad[0] - i * self.dil[0]
        x = np.arange(self.w) + self.pad[1] - j * self.dil[1]
        met = (y % self.stride[0] == 0)[:, None] & (x % self.stride[1] == 0)[None, :]
        y, x = y // self.stride[0], x // self.stride[1]
        there = ((y >= 0) & (y < self.p))[:, None] & ((x >= 0) & (x < self.q))[None, :] & met
        got = g[:, np.clip(y, 0, self.p - 1)][:, :, np.clip(x, 0, self.q - 1)]
        return np.where(there[None, :, :, None], got, F(0)), met[None, :, :, None]


def image(x):
    return x if x.ndim == 4 else x[:, None]


def kernel(w):
    return w if w.ndim == 4 else w[None]


def by_groups(x, groups):
    return x.reshape(x.shape[:-1] + (groups, x.shape[-1] // groups))


def correlate(win, x, w, groups, s):
    """Continues chains from s (B,P,Q,O) over taps and, for each tap, over the channels of a group of x (o1). w is
    (KH,KW,I/groups,O)."""
    s = by_groups(s, groups)
    for tap in win.taps:
        v = by_groups(win.gather(x, tap), groups)
        k = by_groups(w[tap[0], tap[1]], groups)
        for c in range(v.shape[-1]):
            s = fma(v[..., c, None], k[c], s)
    return s.reshape(s.shape[:3] + (s.shape[3] * s.shape[4],))


def transpose(win, g, w, groups, s):
    """Continues chains from s (B,H,W,I) over the taps that meet a pixel and, for each tap, over the channels of g
    (o2)."""
    s = by_groups(s, groups)
    for tap in win.taps:
        v, met = win.back(g, tap)
        v = by_groups(v, groups)
        k = by_groups(w[tap[0], tap[1]], groups)
        for o in range(v.shape[-1]):
            s = np.where(met[..., None], fma(v[..., o, None], np.swapaxes(k[..., o], 0, 1), s), s)
    return s.reshape(s.shape[:3] + (s.shape[3] * s.shape[4],))


def taps_gradient(win, x, g, groups, s):
    """Continues chains from s, the gradient of w, over the rows of the batch and, for each row, over places (o3)."""
    s = s.copy()
    for tap in win.taps:
        v, u = by_groups(win.gather(x, tap), groups), by_groups(g, groups)
        i, j = tap[:2]
        k = by_groups(s[i, j], groups)
        for b in range(v.shape[0]):
            for p in range(v.shape[1]):
                for q in range(v.shape[2]):
                    k = fma(v[b, p, q].T[:, :, None], u[b, p, q][None], k)
        s[i, j] = k.reshape(s[i, j].shape)
    return s


class ConvBase:
    transposed = False

    @classmethod
    def window(k, c):
        x, w, y = image(c.x[0]), kernel(c.x[1]), (c.shape if len(c.shape) == 4 else (c.shape[0], 1) + c.shape[1:])
        a, b = (y, x.shape) if k.transposed else (x.shape, y)
        return Window(c.a, a[1], a[2], w.shape[:2], b[1], b[2]), x, w, c.a[10] or 1, y

    @classmethod
    def forward(k, c):
        win, x, w, groups, y = k.window(c)
        start = np.zeros(y, F) if c.x[2] is None else np.broadcast_to(c.x[2], y)
        return (transpose if k.transposed else correlate)(win, x, w, groups, start).reshape(c.shape)

    @classmethod
    def backward(k, c, g):
        win, x, w, groups, y = k.window(c)
        big = g.reshape(y)
        back = correlate if k.transposed else transpose
        pair_of = (big, x) if k.transposed else (x, big)
        return [Chain(lambda s: back(win, big, w, groups, s.reshape(x.shape)).reshape(s.shape), c.x[0].shape),
                Chain(lambda s: taps_gradient(win, *pair_of, groups, s.reshape(w.shape)).reshape(s.shape),
                      c.x[1].shape),
                Sums(flat(g))]


for _n in ("conv2d", "conv1d"):
    OPS[_n] = type(_n, (ConvBase,), {})
    OPS[_n + "_transposed"] = type(_n + "_transposed", (ConvBase,), {"transposed": True})


# ---- q. pools, norms of images ----
class PoolBase:
    @staticmethod
    def window(c):
        x = image(c.x[0])
        y = c.shape if len(c.shape) == 4 else (c.shape[0], 1) + c.shape[1:]
        size = [v or 1 for v in pair(c.a, 0)]
        a = list(c.a)
        a[1], a[6] = a[1] or size[0], a[6] or size[1]
        return Window(a, x.shape[1], x.shape[2], size, y[1], y[2]), x, y

    @staticmethod
    def divisor(c, win):
        """Returns K (1,P,Q,1): the taps within x or, unless padding is excluded (attribute 12), within padded x."""
        low, high = ((0, 0), (win.h, win.w)) if c.a[12] else (
            (-win.pad[0], -win.pad[1]), (win.h + win.pad[0], win.w + win.pad[1]))
        k = np.zeros((win.p, win.q), F)
        for i, j, y, x in win.taps:
            k = k + (((y >= low[0]) & (y < high[0]))[:, None] & ((x >= low[1]) & (x < high[1]))[None, :])
        return k.astype(F)[None, :, :, None]


@op("max_pool")
class MaxPool(PoolBase):
    def best(c):
        win, x, y = PoolBase.window(c)
        m, at = np.full(y, -np.inf, F), np.full(y, -1)
        for k, tap in enumerate(win.taps):
            there = ((tap[2] >= 0) & (tap[2] < win.h))[:, None] & ((tap[3] >= 0) & (tap[3] < win.w))[None, :]
            v = win.gather(x, tap)
            better = there[None, :, :, None] & ((v > m) | (at < 0))
            m, at = np.where(better, v, m), np.where(better, k, at)
        return win, x, y, m, at

    def forward(c):
        return MaxPool.best(c)[3].reshape(c.shape)

    def backward(c, g):
        win, x, y, m, at = MaxPool.best(c)
        g = g.reshape(y)

        def go(s):
            s = s.reshape(x.shape).copy()
            for p in range(y[1]):
                for q in range(y[2]):
                    for b in range(y[0]):
                        for k in range(y[3]):
                            tap = win.taps[at[b, p, q, k]]
                            s[b, tap[2][p], tap[3][q], k] += g[b, p, q, k]
            return s.reshape(c.x[0].shape)
        return [Chain(go, c.x[0].shape)]


@op("average_pool")
class AveragePool(PoolBase):
    def forward(c):
        win, x, y = PoolBase.window(c)
        s = np.zeros(y, F)
        for tap in win.taps:
            s = s + win.gather(x, tap)
        return (s / PoolBase.divisor(c, win)).reshape(c.shape)

    def backward(c, g):
        win, x, y = PoolBase.window(c)
        each = g.reshape(y) / PoolBase.divisor(c, win)

        def go(s):
            s = s.reshape(x.shape)
            for tap in win.taps[::-1]:  # the places that meet a pixel, in ascending order
                v, met = win.back(each, tap)
                s = np.where(met, s + v, s)
            return s.reshape(c.x[0].shape)
        return [Chain(go, c.x[0].shape)]


def place_sums(x):
    """Sums (B,N,C) over places N by clause e1; returns (B,C)."""
    return Sums(np.swapaxes(x, 0, 1)).store() if x.shape[1] else np.zeros((x.shape[0], x.shape[2]), F)


@op("groupnorm")
class Groupnorm:
    def over(x, groups):
        """Sums (B,N,C) over places N, then over the channels of a group; returns (B,1,C)."""
        s = row_sum(by_groups(place_sums(x), groups))
        return np.repeat(s, x.shape[2] // groups, 1)[:, None]

    def forward(c):
        groups = c.a[0]
        x = c.x[0].reshape(c.x[0].shape[0], int(np.prod(c.x[0].shape[1:-1])), c.x[0].shape[-1])
        n = F(x.shape[1] * x.shape[2] // groups)
        first = np.repeat(by_groups(x[:, 0], groups)[..., 0], x.shape[2] // groups, 1)[:, None]
        m = first + Groupnorm.over(x - first, groups) / n
        d = x - m
        r = F(1) / np.sqrt(Groupnorm.over(rounded(d, d), groups) / n + c.a[1])
        h = d * r
        c.saved = {"h": h, "r": r}
        gain, bias = c.x[1], c.x[2]
        if gain is None:
            return (h if bias is None else fma(d, r, bias)).reshape(c.shape)
        return (h * gain if bias is None else fma(h, gain, bias)).reshape(c.shape)

    def backward(c, g):
        h, r, groups = c.saved["h"], c.saved["r"], c.a[0]
        g = g.reshape(h.shape)
        n = F(h.shape[1] * h.shape[2] // groups)
        bias, gain = place_sums(g), place_sums(rounded(g, h))
        u = g if c.x[1] is None else rounded(g, c.x[1])

        def over(s):
            s = by_groups(s, groups)
            s = row_sum(s) if c.x[1] is None else row_dot(s, by_groups(c.x[1], groups))
            return np.repeat(s, h.shape[2] // groups, 1)[:, None] / n
        a, b = over(bias), over(gain)
        return [Product(np.broadcast_to(r, h.shape).reshape(c.x[0].shape), fma(-h, b, u - a).reshape(c.x[0].shape)),
                Sums(gain), Sums(bias)]


# ---- rotary ----
@op("rotary")
class Rotary:
    def table(c):
        heads, base, first, turned, scale, given = c.a[:6]
        t, half = c.x[0].shape[1], (turned or c.x[0].shape[2] // heads) // 2
        c_, s_ = unary.rotary_table(t, half, base if base != 0 else F(10000), first, c.a[6:] if given else None,
                                     scale if scale != 0 else F(1))
        return c_, s_, half

    def turn(c, x, sign):
        cos_, sin_, half = c.saved["t"] if "t" in c.saved else Rotary.table(c)
        c.saved["t"] = (cos_, sin_, half)
        sin_ = fma(sin_, F(sign), F(0))  # a sine of 0 must be +0 in both directions
        b, t, width = x.shape
        v = x.reshape(b, t, c.a[0], width // c.a[0]).transpose(0, 2, 1, 3)
        p, q, rest = v[..., :half], v[..., half:2 * half], v[..., 2 * half:]
        y = np.concatenate([fma(p, cos_, -(q * sin_)), fma(q, cos_, p * sin_), rest], -1)
        return y.transpose(0, 2, 1, 3).reshape(x.shape)

    def forward(c):
        return Rotary.turn(c, c.x[0], 1)

    def backward(c, g):
        return [Value(Rotary.turn(c, g, -1))]


# ---- clause p: recurrent layers. Their inputs are p (the product x wx + bias), wh, bias or None, h0 or None, for lstm
# c0 or None, and lengths or None ----
def over_gates(a, wh, s):
    """Continues chains from s (B,H) over all gates of a and wh (p2)."""
    return chain(a, wh.T, s)


class Recurrent:
    @staticmethod
    def put(x, slope):
        """Returns da, and the operands of the product that is the gradient of p."""
        return x * slope, (x, slope)

    @staticmethod
    def lengths(c, k):
        """Returns the steps of each row as (B,1)."""
        b, t, _ = c.x[0].shape
        return (np.full(b, t) if len(c.x) <= k or c.x[k] is None else c.x[k])[:, None]

    @staticmethod
    def masked(mask, gates):
        """Returns da and the products of a step, +0 in rows that it pads."""
        zero = F(0)
        return [np.where(mask, q[0], zero) for q in gates], [tuple(np.where(mask, v, zero) for v in q[1]) for q in gates]

    @staticmethod
    def gradients(c, das, products, hs, first, resets=None):
        """Returns the contributions to all inputs. das and products are lists by step t, then by gate; hs are the
        values of h before each step, and resets, if the reset gate comes before the product, those times r."""
        a = np.concatenate([np.concatenate(d, -1)[:, None] for d in das], 1)
        x, y = (np.concatenate([np.concatenate([p[k] for p in q], -1)[:, None] for q in products], 1) for k in range(2))
        h, reset = (None if v is None else flat(np.concatenate([w[:, None] for w in v], 1)) for v in (hs, resets))

        def weights(s):
            if reset is None:
                return chain(h.T, flat(a), s)
            n = 2 * h.shape[1]
            return np.concatenate([chain(h.T, flat(a)[:, :n], s[:, :n]), chain(reset.T, flat(a)[:, n:], s[:, n:])], 1)

        out = [Product(x, y), Chain(weights, c.x[1].shape), Sums(flat(a))]
        return out + [Value(v) for v in first]


def gru_forward(c, before):
    p, wh, bias, h0 = c.x[:4]
    b, t, g = p.shape
    n = g // 3
    h = np.zeros((b, n), F) if h0 is None else h0
    c.saved, out = {k: np.zeros((b, t, n), F) for k in ("r", "z", "n", "a")}, np.zeros((b, t, n), F)
    start = np.broadcast_to(np.zeros(g, F) if bias is None else bias, (b, g))
    for i in range(t):
        q, mask = p[:, i], i < Recurrent.lengths(c, 4)
        a = chain(h, wh[:, :2 * n], start[:, :2 * n])
        r, z = sigmoid(q[:, :n] + a[:, :n]), sigmoid(q[:, n:2 * n] + a[:, n:])
        kept = r * h if before else chain(h, wh[:, 2 * n:], start[:, 2 * n:])
        m = q[:, 2 * n:] + chain(kept, wh[:, 2 * n:], start[:, 2 * n:]) if before else fma(r, kept, q[:, 2 * n:])
        m = tanh(m)
        h = np.where(mask, fma(z, h - m, m), h)
        for k, v in zip("rzna", (r, z, m, kept)):
            c.saved[k][:, i] = np.where(mask, v, F(0))
        out[:, i] = np.where(mask, h, F(0))
    return out


def gru_backward(c, g, before):
    p, wh, bias, h0 = c.x[:4]
    b, t, n = g.shape
    d = zero = np.zeros((b, n), F)
    das, products, hs = [], [], []
    lengths = Recurrent.lengths(c, 4)
    for i in range(t)[::-1]:
        r, z, m, a = (c.saved[k][:, i] for k in "rzna")
        h, mask = c.y[:, i - 1] if i else zero if h0 is None else h0, i < lengths
        u = g[:, i] + d
        dn, pn = Recurrent.put(u * (F(1) - z), fma(-m, m, F(1)))
        e = chain(dn, wh[:, 2 * n:].T, zero) if before else dn
        dr, pr = Recurrent.put(e * (h if before else a), fma(-r, r, r))
        dz, pz = Recurrent.put(u * (h - m), fma(-z, z, z))
        da, product = Recurrent.masked(mask, [(dr, pr), (dz, pz), (dn if before else dn * r, pn)])
        das.insert(0, da)
        products.insert(0, product)
        hs.insert(0, np.where(mask, h, F(0)))
        some = 2 if before else 3
        start = fma(e, r, u * z) if before else u * z
        d = np.where(mask, over_gates(np.concatenate(da[:some], -1), wh[:, :some * n], start), F(0))
    return Recurrent.gradients(c, das, products, hs, [d], [c.saved["a"][:, i] for i in range(t)] if before else None)


@op("gru")
class Gru:
    def forward(c):
        return gru_forward(c, False)

    def backward(c, g):
        return gru_backward(c, g, False)


@op("gru_reset_before")
class GruResetBefore:
    def forward(c):
        return gru_forward(c, True)

    def backward(c, g):
        return gru_backward(c, g, True)


@op("lstm")
class Lstm:
    def forward(c):
        p, wh, bias, h0, c0 = c.x[:5]
        b, t, g = p.shape
        n = g // 4
        h, cell = (np.zeros((b, n), F) if v is None else v for v in (h0, c0))
        c.saved, out = {k: np.zeros((b, t, n), F) for k in "ifgo"}, np.zeros((b, t, 2 * n), F)
        for k in range(t):
            mask = k < Recurrent.lengths(c, 5)
            a = chain(h, wh, p[:, k])
            i, f, o = (sigmoid(a[:, j * n:(j + 1) * n]) for j in (0, 1, 3))
            m = tanh(a[:, 2 * n:3 * n])
            cell = np.where(mask, fma(f, cell, i * m), cell)
            h = np.where(mask, o * tanh(cell), h)
            for name, v in zip("ifgo", (i, f, m, o)):
                c.saved[name][:, k] = v
            out[:, k] = np.where(mask, np.concatenate([h, cell], -1), F(0))
        return out

    def backward(c, g):
        p, wh, bias, h0, c0 = c.x[:5]
        b, t, n = g.shape[0], g.shape[1], g.shape[2] // 2
        d = e = zero = np.zeros((b, n), F)
        das, products, hs = [], [], []
        for k in range(t)[::-1]:
            mask = k < Recurrent.lengths(c, 5)
            i, f, m, o = (c.saved[name][:, k] for name in "ifgo")
            h, cell = (c.y[:, k - 1, :n], c.y[:, k - 1, n:]) if k else (zero if h0 is None else h0,
                                                                         zero if c0 is None else c0)
            u, s = g[:, k, :n] + d, tanh(c.y[:, k, n:])
            w = fma(u * o, fma(-s, s, F(1)), e) + g[:, k, n:]
            gates = [Recurrent.put(w * m, fma(-i, i, i)), Recurrent.put(w * cell, fma(-f, f, f)),
                     Recurrent.put(w * i, fma(-m, m, F(1))), Recurrent.put(u * s, fma(-o, o, o))]
            da, product = Recurrent.masked(mask, gates)
            das.insert(0, da)
            products.insert(0, product)
            hs.insert(0, np.where(mask, h, F(0)))
            e, d = (np.where(mask, v, F(0)) for v in (w * f, over_gates(np.concatenate(da, -1), wh, zero)))
        return Recurrent.gradients(c, das, products, hs, [d, e])


@op("delta_rule")
class DeltaRule:
    """The gated delta rule (p4, p5), for all rows of the batch at once."""

    def split(x, heads):
        return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads)

    def parts(c, h):
        """Returns q, k, v, exp(decay) and beta of head h."""
        heads, shared = c.a[0], c.a[1] or c.a[0]
        q, k = (DeltaRule.split(x, shared)[:, :, h // (heads // shared)] for x in c.x[:2])
        v = DeltaRule.split(c.x[2], heads)[:, :, h]
        return q, k, v, exp(c.x[3][:, :, h]), c.x[4][:, :, h]

    def scale(c, k):
        return c.a[2] if c.a[2] != 0 else F(1) / np.sqrt(F(k.shape[-1]))

    def along_keys(k, s):
        """Returns chains of k s over the rows of the state s (B,K,D)."""
        return chain(k[:, None], s, np.zeros((s.shape[0], 1, s.shape[2]), F))[:, 0]

    def states(c, h):
        """Returns, of each step: e times the state before it, r, the state."""
        q, k, v, e, beta = DeltaRule.parts(c, h)
        s, steps = np.zeros((k.shape[0], k.shape[2], v.shape[2]), F), []
        for t in range(k.shape[1]):
            before = e[:, t, None, None] * s
            r = v[:, t] - DeltaRule.along_keys(k[:, t], before)
            s = fma(k[:, t, :, None], (beta[:, t, None] * r)[:, None], before)
            steps.append((before, r, s))
        return steps

    def forward(c):
        out = []
        for h in range(c.a[0]):
            q = DeltaRule.parts(c, h)[0]
            out.append(np.stack([DeltaRule.scale(c, q) * DeltaRule.along_keys(q[:, t], s)
                                 for t, (_, _, s) in enumerate(DeltaRule.states(c, h))], 1))
        return np.concatenate(out, -1)

    def backward(c, g):
        heads, shared = c.a[0], c.a[1] or c.a[0]
        group = heads // shared
        g = DeltaRule.split(g, heads)
        dq, dk = ([[] for _ in range(shared)] for _ in range(2))
        dv, ddecay, dbeta = [], [], []
        for h in range(heads):
            q, k, v, e, beta = DeltaRule.parts(c, h)
            d = np.zeros((k.shape[0], k.shape[2], v.shape[2]), F)
            steps = []
            for t, (before, r, s) in list(enumerate(DeltaRule.states(c, h)))[::-1]:
                u, b, w = DeltaRule.scale(c, q) * g[:, t, h], beta[:, t, None], beta[:, t, None] * r
                d = fma(q[:, t, :, None], u[:, None], d)
                x = DeltaRule.along_keys(k[:, t], d)
                y = -b * x
                first = row_dot(d, w[:, None])
                d = fma(k[:, t, :, None], y[:, None], d)
                total = np.zeros(d.shape[0], F)
                for row in row_dot(d, before).T:
                    total = total + row
                steps.insert(0, (row_dot(s, u[:, None]), first, row_dot(before, y[:, None]), x, total, row_dot(x, r)))
                d = e[:, t, None, None] * d
            of = [np.stack(x, 1) for x in zip(*steps)]
            dq[h // group].append(of[0])
            dk[h // group] += of[1:3]
            dv.append(of[3])
            ddecay.append(of[4])
            dbeta.append(of[5])
        beta = np.repeat(c.x[4], dv[0].shape[-1], -1)

        def several(parts):
            return Several([Value(np.concatenate(x, -1)) for x in zip(*parts)])
        return [several(dq), several(dk), Product(np.concatenate(dv, -1), beta), Value(np.stack(ddecay, -1)),
                Value(np.stack(dbeta, -1))]


# ---- q. batch norm, upsample ----
@op("batchnorm")
class Batchnorm:
    """Batch norm of x with gain, bias, running mean and running variance. Each micro-batch is normalised separately."""

    def forward(c):
        y, saved = [], []
        for p, q in c.micro:
            x = c.x[0][p:q].reshape(1, -1, c.x[0].shape[-1])
            n = F(x.shape[1])
            first = x[:, :1]
            m = first + place_sums(x - first)[:, None] / n
            d = x - m
            v = place_sums(rounded(d, d))[:, None] / n
            r = F(1) / np.sqrt(v + c.a[0])
            h = d * r
            gain, bias = c.x[1], c.x[2]
            if gain is None:
                t = h if bias is None else fma(d, r, bias)
            else:
                t = h * gain if bias is None else fma(h, gain, bias)
            y.append(t.reshape(c.x[0][p:q].shape))
            saved.append((h.reshape(y[-1].shape), *(np.repeat(k[0], q - p, 0) for k in (r, m, v))))
        c.saved = dict(zip(("h", "r", "mean", "variance"), map(np.concatenate, zip(*saved))))
        return np.concatenate(y)

    def backward(c, g):
        none, gain = np.zeros((0, g.shape[-1]), F), c.x[1]  # a virtual rank may have no rows
        dx, sums = [g[:0]], ([none], [none], [none], [none])
        each = np.ones(1, F) if gain is None else gain  # with a single channel, its sum by clause d2
        for p, q in c.micro:
            h, r = c.saved["h"][p:q], c.saved["r"][p]
            n, rows = F(h.size // h.shape[-1]), F(q - p)
            h, k = h.reshape(1, -1, h.shape[-1]), g[p:q].reshape(1, -1, h.shape[-1])
            s, t = place_sums(k), place_sums(rounded(k, h))
            u = k if gain is None else rounded(k, gain)
            a, b = (row_dot(v[..., None], each[:, None])[:, None] / n for v in (s, t))
            unbiased = n / (n - F(1)) if n > 1 else F(0)
            dx.append(fma(-h, b, u - a).reshape(g[p:q].shape))
            for into, x in zip(sums, (t, s, rounded(rows, c.saved["mean"][p])[None],
                                      rounded(rows, c.saved["variance"][p] * unbiased)[None])):
                into.append(x)
        r = c.saved["r"].reshape((len(g),) + (1,) * (g.ndim - 2) + g.shape[-1:])
        return [Product(np.broadcast_to(r, g.shape), np.concatenate(dx))] + [Sums(np.concatenate(x)) for x in sums]


@op("upsample")
class Upsample:
    def taps(size, to, how):
        """Returns a list of pairs (row, weight) for each of the `to` results (q4)."""
        out = []
        for i in range(to):
            if how == 0:
                out.append([(int(np.floor(F(i) * (F(size) / F(to)))), F(1))])
                continue
            if how == 1:
                p = np.maximum(F(size) / F(to) * (F(i) + F(0.5)) - F(0.5), F(0))
            else:
                p = F(i) * (F(size - 1) / F(to - 1)) if to > 1 else F(0)
            at = int(np.floor(p))
            f = p - F(at)
            out.append([(at, F(1) - f)] + ([(min(at + 1, size - 1), f)] if f != 0 else []))
        return out

    def all(c):
        height, width, how = c.a
        x = c.x[0]
        for i, rows in enumerate(Upsample.taps(x.shape[1], height, how)):
            for j, columns in enumerate(Upsample.taps(x.shape[2], width, how)):
                yield i, j, [(p, q, a * b) for p, a in rows for q, b in columns]

    def forward(c):
        y = np.zeros(c.shape, F)
        for i, j, taps in Upsample.all(c):
            for p, q, w in taps:
                y[:, i, j] = c.x[0][:, p, q] if c.a[2] == 0 else fma(c.x[0][:, p, q], w, y[:, i, j])
        return y

    def backward(c, g):
        def go(s):
            s = s.copy()
            for i, j, taps in Upsample.all(c):
                for p, q, w in taps:
                    s[:, p, q] = fma(w, g[:, i, j], s[:, p, q])
            return s
        return [Chain(go, c.x[0].shape)]
