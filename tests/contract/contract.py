"""The numeric contract (manual, 5) again, from its text alone, in Python with numpy.

Arrays are float32. What a gradient adds to what is there comes as one of the classes Value, Product, Chain and
Sums: a sum may store, add, or go on, and the bits depend on which (5a, 5c, 5e, 5f).
exp, log, tanh, erf, sin, cos and pow are polynomials that the text does not print ("step for step"): their values are
asked of the library, by public calls (Curves), and are held against float64 apart."""
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
    """a b + c, rounded once: the product is exact in binary64, their sum is rounded to odd there, then to binary32."""
    p = np.multiply(a, b, dtype=D)
    c = np.asarray(c, dtype=D)
    s = np.asarray(p + c)
    t = s - p
    e = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    odd = (e != 0) & ((bits & 1) == 0) & np.isfinite(s)
    if odd.any():
        s = np.where(odd, bits + np.where((e > 0) == (s > 0), 1, -1), bits).view(D)
    return s.astype(F)


def rounded(a, b):
    return fma(a, b, F(0))


def chain(a, b, start):
    """c. sum over the last axis of a and the first but one of b, ascending: (..,M,K), (..,K,N)."""
    s = start
    for k in range(a.shape[-1]):
        s = fma(a[..., :, k, None], b[..., None, k, :], s)
    return np.array(np.broadcast_to(s, np.broadcast_shapes(a.shape[:-1] + (1,), b.shape[:-2] + (1, b.shape[-1]),
                                                           np.shape(start))), dtype=F)


# ---- d. reductions within a row ----
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


# ---- b. curves ----
class Curves:
    """Elementwise functions, by the library's public calls in a process of their own (dump.c)."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def talk(self, text):
        def tell():
            self.process.stdin.write(text)
            self.process.stdin.flush()
        writer = threading.Thread(target=tell)  # both pipes may be full
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

    def of(self, name, x, *words):
        x = np.ascontiguousarray(x, dtype=F)
        n = x.size
        if n == 0:
            return x
        rows = min(n, 256)
        lines = self.talk("net 0 1\ninput x f 1 %d\nop %s 1 0%s\nplan 7 %d 0 1 0 2\nforward %d %s\nend\n" %
                          (rows, name, "".join(" %08x" % w for w in words), n, n, hexes(x)))
        for line in lines:
            if line.startswith("value"):
                return unhex(line.split()[2]).reshape(x.shape)
        raise RuntimeError("\n".join(lines))

    def slope(self, name, x, *words):
        """The gradient of what `name` makes of x, where 1 comes in."""
        x = np.ascontiguousarray(x, dtype=F)
        n = x.size
        if n == 0:
            return x
        rows = min(n, 256)
        lines = self.talk("net 0 1\ninput x f 1 %d\nop %s 1 0%s\nop sum_loss 1 1\nterm 2 3f800000 0\n"
                          "plan 1 %d 1 1 0 4\nstep %d 0 0 0 0 0 0 0 %s\nend\n" %
                          (rows, name, "".join(" %08x" % w for w in words), n, n, hexes(x)))
        for line in lines:
            if line.startswith("grad 0 "):
                return unhex(line.split()[2]).reshape(x.shape)
        raise RuntimeError("\n".join(lines))


def hexes(x):
    return " ".join("%08x" % w for w in np.ascontiguousarray(x).reshape(-1).view(np.uint32))


def unhex(text):
    return np.frombuffer(bytes.fromhex(text), dtype=">u4").astype(np.uint32).view(F)


def word(x):
    return int(np.asarray(x, dtype=F).reshape(1).view(np.uint32)[0])


curves = None


def exp(x):
    return curves.of("exp", x)


def log(x):
    return curves.of("log", x)


def tanh(x):
    return curves.of("tanh", x)


def sin(x):
    return curves.of("sin", x)


def cos(x):
    return curves.of("cos", x)


def log1p(x):
    """b. log(1 + x), x from 0 to 1."""
    u = F(1) + x
    return np.where(u == 1, x, log(u) * (x / (u - F(1))))


def sigmoid(x):
    return F(1) / (F(1) + exp(-x))


# ---- what a gradient gets ----
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


class Select(Value):
    """x where it was taken; elsewhere 0."""

    def __init__(self, taken, x):
        self.taken, self.x = taken, np.where(taken, x, F(0))


class Chain:
    """go(start): what continues from there."""

    def __init__(self, go, shape):
        self.go, self.shape = go, shape

    def store(self):
        return self.go(np.zeros(self.shape, F))

    def add(self, s):
        return self.go(s)


class Sums:
    """e. compensated: rows of contributions, one after the other."""

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
    """Contributions x (of a result's shape) to an operand of `shape`: rows by the axes that it was repeated along."""
    pad = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = [i for i in range(x.ndim) if pad[i] == 1 and x.shape[i] != 1]
    kept = [i for i in range(x.ndim) if i not in axes]
    if not axes:
        return None
    rows = np.transpose(x, axes + kept)
    n = int(np.prod([x.shape[i] for i in axes]))
    return Sums(rows.reshape((n,) + tuple(shape)))


def broadcast_gradient(x, shape, a=None):
    """x, or the product x a, to an operand that may have been repeated."""
    full = x if a is None else np.broadcast_arrays(x, a)[0]
    if tuple(shape) == full.shape:
        return Value(x) if a is None else Product(x, a)
    sums = repeated(x if a is None else rounded(x, a), shape)
    if sums is not None:
        return sums
    x = x.reshape(shape)
    return Value(x) if a is None else Product(x, np.broadcast_to(a, full.shape).reshape(shape))
