"""A second implementation of docs/numerics.md, written from the page's text alone, in Python with numpy.

Arrays are float32. A contribution to a gradient is an object of class Value, Product, Some, Chain or Sums, since its
bits depend on whether it is stored, is added, or continues a chain (clauses a, c, e, f). unary.py has exp, log, tanh,
erf, sin, cos and pow. The library runs as a separate process (class Program)."""
import subprocess
import threading
import numpy as np

F = np.float32
D = np.float64
np.seterr(all="ignore")


# ---- a. arithmetic ----
def f32(x):
    return np.asarray(x, dtype=F)


def fma(a, b, c):
    """Returns a b + c, rounded once. The product is exact in binary64; the sum is rounded to odd in binary64, then to
    binary32."""
    return odd_sum(np.multiply(a, b, dtype=D), np.asarray(c, dtype=D)).astype(F)


def odd_sum(p, c):
    """Returns p + c in binary64, rounded to odd."""
    s = np.asarray(p + c)
    t = s - p
    e = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    odd = (e != 0) & ((bits & 1) == 0) & np.isfinite(s)
    if odd.any():
        s = np.where(odd, bits + np.where((e > 0) == (s > 0), 1, -1), bits).view(D)
    return s


def rounded(a, b):
    return fma(a, b, F(0))


def chain(a, b, start):
    """Clause c: returns start + a b for shapes (..,M,K) and (..,K,N). Each element is one chain, with terms in
    ascending order."""
    s = start
    for k in range(a.shape[-1]):
        s = fma(a[..., :, k, None], b[..., None, k, :], s)
    return np.array(np.broadcast_to(s, np.broadcast_shapes(a.shape[:-1] + (1,), b.shape[:-2] + (1, b.shape[-1]),
                                                           np.shape(start))), dtype=F)


# ---- j. random numbers ----
def philox(counter, key):
    """Returns the random words that Philox4x32-10 makes from counters (4, n) and a key of 64 bits."""
    x = [np.asarray(w, dtype=np.uint64) for w in counter]
    k = [key & 0xffffffff, key >> 32]
    low = np.uint64(0xffffffff)
    for _ in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [(b >> np.uint64(32)) ^ x[1] ^ np.uint64(k[0]), b & low,
             (a >> np.uint64(32)) ^ x[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return x


# ---- l. bf16 ----
TINY = F(2.0 ** -126)
EVEN = np.uint32(1)  # mask of the last kept bit, which decides at a tie; 0 with option -r


def bf16(x):
    """Rounds to bf16, to nearest with ties to even; subnormals become zeros of their sign (l3)."""
    u = np.ascontiguousarray(f32(x)).view(np.uint32)
    near = ((u + np.uint32(0x7fff) + ((u >> np.uint32(16)) & EVEN)) & np.uint32(0xffff0000)).view(F)
    near = np.where(np.isnan(x), F(np.nan), near)
    return np.where(np.abs(x) < TINY, np.copysign(F(0), x), near).astype(F)


def flushed(x):
    return np.where(np.abs(x) < TINY, np.copysign(F(0), x), x)


def flushing_fma(a, b, c):
    """fma that flushes (l6): subnormal operands count as zeros, and results below 2^-126 after rounding become
    zeros."""
    p = np.multiply(flushed(a), flushed(b), dtype=D)
    s = odd_sum(p, np.asarray(flushed(c), dtype=D))
    return np.where(np.abs(s) < 2.0 ** -126 * (1 - 2.0 ** -25), np.copysign(F(0), s).astype(F), s.astype(F))


class Element:
    """An element of a product in a bf16 plan (l5): terms are added in blocks of 32, in two chains for each block."""

    CHAINS = 2

    def __init__(self, start):
        self.e, self.block, self.sums = f32(start), None, None

    def end(self):
        if self.block is not None:
            self.e = flushed(flushed(self.e) + flushed(self.sums[0] + self.sums[1]))
            self.block = None
        return self.e

    def link(self, place, a, b, there=True):
        """Adds term number `place`, the product a b. Elements where `there` is false keep their chain."""
        if place // 32 != self.block:
            self.end()
            self.block, self.sums = place // 32, [np.zeros(1, F), np.zeros(1, F)]
        s = self.sums[place % self.CHAINS]
        self.sums[place % self.CHAINS] = np.where(there, flushing_fma(a, b, s), s)


def shape_of_product(a, b, start):
    return np.broadcast_shapes(a.shape[:-1] + (1,), b.shape[:-2] + (1, b.shape[-1]), np.shape(start))


def product(a, b, start, half, links=0):
    """Like `chain`, but as in bf16 plans if `half` is true. If terms are rows of a batch (l7), `links` is the number of
    terms in an entry of the batch, else 0."""
    if not half:
        return chain(a, b, start)
    a, b, n = bf16(a), bf16(b), a.shape[-1]
    shape = shape_of_product(a, b, start)
    if links and links < 32:
        s = start
        for k in range(n):
            s = flushing_fma(a[..., :, k, None], b[..., None, k, :], s)
        return np.array(np.broadcast_to(s, shape), dtype=F)
    element, links = Element(start), links or max(n, 1)
    for k in range(n):
        if k % links == 0:
            element.end()
        element.link(k % links, a[..., :, k, None], b[..., None, k, :])
    return np.array(np.broadcast_to(element.end(), shape), dtype=F)


# ---- d. sums within a row ----
def fold(lanes):
    for h in (16, 8, 4, 2, 1):
        lanes = lanes[..., :h] + lanes[..., h:2 * h]
    return lanes[..., 0]


def row_sum(x):
    lanes = np.zeros(x.shape[:-1] + (32,), F)
    for i in range(0, x.shape[-1], 32):
        n = min(32, x.shape[-1] - i)
        lanes[..., :n] = lanes[..., :n] + x[..., i:i + n]
    return fold(lanes)


def row_dot(x, y):
    x, y = np.broadcast_arrays(x, y)
    lanes = np.zeros(x.shape[:-1] + (32,), F)
    for i in range(0, x.shape[-1], 32):
        n = min(32, x.shape[-1] - i)
        lanes[..., :n] = fma(x[..., i:i + n], y[..., i:i + n], lanes[..., :n])
    return fold(lanes)


class Program:
    """The program dump.c, linked with the library, as a separate process."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def talk(self, text):
        def tell():
            self.process.stdin.write(text)
            self.process.stdin.flush()
        writer = threading.Thread(target=tell)  # a thread, because both pipes may be full
        writer.start()
        lines = []
        while True:
            line = self.process.stdout.readline()
            if line == "":
                raise RuntimeError("the program is gone: " + "\n".join(lines[-3:]))
            if line == "end\n":
                writer.join()
                return lines
            lines.append(line.rstrip("\n"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def hexes(x):
    return " ".join("%08x" % w for w in np.ascontiguousarray(x).reshape(-1).view(np.uint32))


def unhex(text):
    return np.frombuffer(bytes.fromhex(text), dtype=">u4").astype(np.uint32).view(F)


def word(x):
    return int(np.asarray(x, dtype=F).reshape(1).view(np.uint32)[0])


program = None


# ---- n. quantised parameters ----
def packed(x, storage):
    """Returns a parameter's values as ops see them. storage is a gckpt_storage: 0 F32, 1 BF16, 2 F16, 3 I8, 4 I4."""
    if storage == 1:
        return bf16(x)
    if storage == 2:
        return x.astype(np.float16).astype(F)
    if storage == 0 or x.ndim < 2:
        return x
    short = -x.shape[-1] % 32
    blocks = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, short)]).reshape(-1, 32)  # zeros do not change a scale
    if storage == 3 or short:
        scale = (np.abs(blocks).max(-1, keepdims=True) / F(127)).astype(np.float16).astype(F)
        q = np.clip(np.rint(blocks / scale), -127, 127) + F(0)  # an integer has no -0, so + 0 removes it
        return (np.where(scale > 0, q, F(0)) * scale).reshape(*x.shape[:-1], -1)[..., :x.shape[-1]]
    least, most = np.minimum(blocks.min(-1), F(0)), np.maximum(blocks.max(-1), F(0))
    best, error = np.zeros(blocks.shape, F), np.full(len(blocks), np.inf)
    for i, k in enumerate([*range(15, 0, -1), 15, 15.5, 16, 16.5, 17, 18]):
        scale = ((most - least) / F(k)).astype(np.float16).astype(F)[:, None]
        share = -least / np.where(most > least, most - least, F(1)) * F(16 * min(k, 15))
        zero = np.where(scale > 0, np.rint(share)[:, None], F(0))
        q = np.clip(np.rint(blocks / np.where(scale > 0, scale, F(1)) + zero / F(16)), 0, 15)
        y = (F(16) * np.where(scale > 0, q, F(0)) - zero) * (scale / F(16))
        e = (blocks - y).astype(D) ** 2
        for h in (16, 8, 4, 2, 1):
            e = e[:, :h] + e[:, h:2 * h]
        better = e[:, 0] < (np.where(e[:, 0] > 0, 0, error) if i < 15 else error)
        best, error = np.where(better[:, None], y, best), np.where(better, e[:, 0], error)
    return best.reshape(x.shape)


# ---- contributions to a gradient ----
class Value:
    def __init__(self, x):
        self.x = x

    def store(self):
        return np.array(self.x, dtype=F)

    def add(self, s):
        return s + self.x


class Product:
    def __init__(self, a, b):
        self.a, self.b = a, b

    def store(self):
        return f32(self.a * self.b)

    def add(self, s):
        return fma(self.a, self.b, s)


class Several:
    """Contributions that follow each other, the first of which may be stored."""

    def __init__(self, parts):
        self.parts = parts

    def store(self):
        s = self.parts[0].store()
        for part in self.parts[1:]:
            s = part.add(s)
        return s

    def add(self, s):
        for part in self.parts:
            s = part.add(s)
        return s


class Select(Value):
    """A contribution that is x where an element was taken, and +0 elsewhere (r1)."""

    def __init__(self, taken, x):
        self.taken, self.x = taken, np.where(taken, x, F(0))


class Some:
    """A contribution to some elements of a gradient. It adds nothing to the other elements; if it is stored, these are
    +0 (f1)."""

    def __init__(self, taken, what, shape):
        self.taken, self.what, self.shape = taken, what, shape

    def store(self):
        return np.where(self.taken, self.what.store(), F(0))

    def add(self, s):
        return np.where(self.taken, self.what.add(s), s)


class Chain:
    """A contribution that is a chain: go(start) continues the chain from start and returns the result."""

    def __init__(self, go, shape):
        self.go, self.shape = go, shape

    def store(self):
        return self.go(np.zeros(self.shape, F))

    def add(self, s):
        return self.go(s)


class Part(Chain):
    """A chain for a part of the elements: go(start, fresh). If `fresh` is true the chain is stored, and all other
    elements are +0."""

    def store(self):
        return self.go(np.zeros(self.shape, F), True)


class Sums:
    """A contribution that is a compensated sum (e1) over rows, in order."""

    def __init__(self, rows):
        self.rows = rows

    def store(self):
        return self.add(np.zeros(self.rows.shape[1:], F))

    def add(self, s):
        low = np.zeros(s.shape, F)
        for x in self.rows:
            y = x - low
            t = s + y
            low = (t - s) - y
            s = t
        return s


def repeated(x, shape):
    """Sums the contributions x, which have the shape of an op's result, over the axes along which an operand of `shape`
    was repeated. Returns None if the operand was not repeated."""
    pad = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = [i for i in range(x.ndim) if pad[i] == 1 and x.shape[i] != 1]
    kept = [i for i in range(x.ndim) if i not in axes]
    if not axes:
        return None
    rows = np.transpose(x, axes + kept)
    n = int(np.prod([x.shape[i] for i in axes]))
    return Sums(rows.reshape((n,) + tuple(shape)))


def broadcast_gradient(x, shape, a=None):
    """Returns the contribution x, or the product x a, to an operand that broadcasting may have repeated."""
    full = x if a is None else np.broadcast_arrays(x, a)[0]
    if tuple(shape) == full.shape:
        return Value(x) if a is None else Product(x, a)
    sums = repeated(x if a is None else rounded(x, a), shape)
    if sums is not None:
        return sums
    x = x.reshape(shape)
    return Value(x) if a is None else Product(x, np.broadcast_to(a, full.shape).reshape(shape))
