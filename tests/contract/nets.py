"""A net that is sent to dump.c and computed a second time by docs/numerics.md."""
import numpy as np
import contract as K
from contract import F, D, hexes, unhex, word
from ops import OPS, Call

VIEWS = ("reshape",)
# Builders that make several ops. Each of their nodes is computed by the node's op, not by the builder's name.
INNER = {"positions", "positions_at", "conv1d", "conv1d_transposed", "global_average_pool", "gru", "lstm"}


def int_word(i):
    return int(i) & 0xffffffff


class Net:
    """A net as a list of tensors with numbers from 0. batch: rows of a step; rows: rows of a micro-batch."""

    def __init__(self, rows, batch, isa=0, threads=1):
        self.rows, self.batch = rows, batch
        self.made, self.text, self.terms = [], ["net %d %d" % (isa, threads)], []
        self.mode, self.optimiser, self.virtual_ranks, self.precision, self.fetches = 1, 0, 1, 0, 7
        self.hyper = dict(lr=F(0.01), decay=F(0), beta1=F(0), beta2=F(0), eps=F(0), momentum=F(0), clip=F(0))

    def add(self, **k):
        self.made.append(k)
        return len(self.made) - 1

    def input(self, values):
        kind = {"float32": "f", "int32": "i", "uint8": "u"}[values.dtype.name]
        shape = (self.rows,) + values.shape[1:]
        i = self.add(kind="input", values=values, shape=shape)
        self.text.append("input i%d %s %d %s" % (i, kind, len(shape), " ".join(map(str, shape))))
        return i

    def param(self, values, frozen=0):
        """Adds a parameter. frozen is 0 for a trained parameter, 1 for a frozen one, or 1 + the gckpt_storage to which
        it is quantised."""
        i = self.add(kind="param", values=values, shape=values.shape, frozen=frozen)
        self.text.append("param p%d %d %s %d %s" % (i, values.ndim, " ".join(map(str, values.shape)), frozen,
                                                   hexes(values)))
        return i

    def running(self, values, momentum):
        i = self.add(kind="param", values=values, shape=values.shape, frozen=0, momentum=momentum)
        self.text.append("running p%d %d %s %08x %s" % (i, values.ndim, " ".join(map(str, values.shape)),
                                                        word(momentum), hexes(values)))
        return i

    def constant(self, values):
        kind = {"float32": "f", "int32": "i"}[values.dtype.name]
        i = self.add(kind="constant", values=values, shape=values.shape)
        self.text.append("const c%d %s %d %s %s" % (i, kind, values.ndim, " ".join(map(str, values.shape)),
                                                   hexes(values)))
        return i

    def op(self, builder, inputs, *attributes):
        """Adds an op. Floating-point attributes must have the type F, whole numbers the type int."""
        words = [word(a) if isinstance(a, F) else int_word(a) for a in attributes]
        i = self.add(kind="op", builder=builder, inputs=inputs, attributes=attributes, shape=None)
        self.text.append("op %s %d %s" % (builder, len(inputs), " ".join(map(str, inputs)) +
                                          "".join(" %08x" % w for w in words)))
        return i

    def term(self, i, weight=F(1), regulariser=0):
        self.terms.append((i, F(weight), regulariser))

    def script(self, steps):
        lines = list(self.text)
        lines += ["term %d %08x %d" % (i, word(w), r) for i, w, r in self.terms]
        lines.append("plan %d %d %d %d %d %d" % (self.mode, self.batch, self.optimiser, self.virtual_ranks,
                                                 self.precision, self.fetches))
        feeds = ""
        for m in self.made:
            if m["kind"] == "input":
                v = m["values"]
                feeds += " " + hexes(v if v.dtype != np.uint8 else v.astype(np.int32))
        h = self.hyper
        hyper = " ".join("%08x" % word(h[k]) for k in ("lr", "decay", "beta1", "beta2", "eps", "momentum", "clip"))
        lines += ["step %d %s%s" % (self.batch, hyper, feeds)] * steps
        return "\n".join(lines + ["end", ""])


class Dump:
    """The parsed output of dump.c."""

    def __init__(self, lines):
        self.nodes, self.ids, self.steps, self.errors = {}, {}, [], []
        for line in lines:
            w = line.split()
            if w[0] == "made":
                self.ids[int(w[1])] = int(w[2])
            elif w[0] == "error":
                self.errors.append(line)
            elif w[0] == "node":
                n = int(w[6])
                self.nodes[int(w[1])] = dict(op=w[2], loss=int(w[3]), batch_invariant=int(w[4]), type=int(w[5]),
                                             shape=tuple(map(int, w[7:7 + n])), inputs=list(map(int, w[8 + n:])))
            elif w[0] == "report":
                self.steps.append(dict(loss=w[1], norm=w[2], count=int(w[3]), value={}, grad={}, param={}, state={},
                                       term={}))
            elif w[0] in ("value", "grad", "param"):
                self.steps[-1][w[0]][int(w[1])] = unhex(w[2])
            elif w[0] == "term":
                self.steps[-1]["term"][int(w[1])] = (w[2], int(w[3]))
            elif w[0] == "state":
                self.steps[-1]["state"][int(w[3]), int(w[1])] = unhex(w[4])


def double_hex(x):
    return "%016x" % int(np.asarray(x, dtype=D).reshape(1).view(np.uint64)[0])


class Again:
    """The net, computed by this program."""

    def __init__(self, net, dump):
        self.net, self.dump = net, dump
        self.by_id = {dump.ids[r]: r for r in range(len(net.made))}
        self.nodes = dump.nodes
        self.values = {}
        self.state, self.updates = {}, 0
        for r, m in enumerate(net.made):
            if m["kind"] == "param":
                self.values[dump.ids[r]] = K.packed(m["values"], max(m["frozen"] - 1, 0))

    def base(self, i):
        while self.nodes[i]["op"] in VIEWS:
            i = self.nodes[i]["inputs"][0]
        return i

    def half(self, i):
        """Returns whether the value of tensor i is stored as bf16 (l1)."""
        return self.net.precision > 0 and not self.nodes[i]["batch_invariant"] and self.nodes[i]["op"] != "input"

    def kept(self, i, x):
        """Returns x, the value or gradient of tensor i, rounded as it is stored."""
        return K.bf16(x) if self.half(i) and self.nodes[i]["type"] == 0 else x

    def rows_of(self, shape, batch_invariant, batch):
        if batch_invariant or not shape:
            return shape
        return (shape[0] // self.net.rows * batch,) + tuple(shape[1:])

    def call(self, i, batch):
        node = self.nodes[i]
        if i not in self.by_id:
            return self.inner(i, batch)
        made = self.net.made[self.by_id[i]]
        if made["builder"] in INNER or (made["builder"] == "matmul" and node["op"] == "reshape"):
            return self.inner(i, batch)
        x = [None if r < 0 else self.values[self.dump.ids[r]] for r in made["inputs"]]
        c = Call(x, made["attributes"], self.rows_of(node["shape"], node["batch_invariant"], batch), self.half(i))
        c.ids = [None if r < 0 else self.dump.ids[r] for r in made["inputs"]]
        c.builder, c.id, c.step = made["builder"], i, self.updates
        c.micro = [m for a, b in self.virtual_ranks() for m in self.micro(a, b)]
        return c

    def inner(self, i, batch):
        """Returns the call of one of the ops that a builder has made."""
        node = self.nodes[i]
        made = self.net.made[self.by_id[min(j for j in self.by_id if j >= i)]]
        first = made["attributes"][0] if made["builder"] == "positions_at" else 0
        attributes = (0, first, first + node["shape"][0]) if node["op"] == "slice" else made["attributes"]
        if made["builder"] == "global_average_pool":
            attributes = (1,)
        ids = list(node["inputs"])
        if node["op"] in ("gru", "gru_reset_before", "lstm"):  # p, wh, bias, h0, c0, lengths; None for a missing one
            gru = node["op"] != "lstm"
            given = [True, True, gru and made["inputs"][4] >= 0]
            given += [made["inputs"][5 if gru else 4] >= 0] * (1 if gru else 2) + [made["inputs"][6] >= 0]
            ids = [ids.pop(0) if k else None for k in given]
        ids += [None] * (3 - len(ids))
        c = Call([None if j is None else self.values[j] for j in ids], attributes,
                 self.rows_of(node["shape"], node["batch_invariant"], batch), self.half(i))
        c.ids, c.builder = ids, node["op"]
        if made["builder"] == "conv1d_transposed" and node["op"][:4] == "conv":
            c.builder = "conv2d_transposed"
        return c

    def forward(self):
        self.calls = {}
        for r, m in enumerate(self.net.made):
            if m["kind"] in ("input", "constant"):
                self.values[self.dump.ids[r]] = m["values"]
        for i in sorted(self.nodes):
            if self.nodes[i]["op"] in ("input", "param", "constant"):
                continue
            c = self.calls[i] = self.call(i, self.net.batch)
            c.y = OPS[c.builder].forward(c)
            if not self.nodes[i]["loss"]:
                c.y = np.asarray(c.y, dtype=c.y.dtype).reshape(c.shape)
                if self.nodes[i]["op"] not in VIEWS:
                    c.y = self.kept(i, c.y)
                self.values[i] = c.y

    def scales(self):
        sums, counts = [], []
        virtual_ranks = self.net.virtual_ranks
        for r, w, reg in self.net.terms:
            c = self.calls[self.dump.ids[r]]
            rows, count = c.y
            if reg:
                parts = [rows]
            else:
                each = len(rows) // self.net.batch
                parts = [rows[a * each:b * each] for a, b in self.virtual_ranks()]
            tree = []
            for part in parts:
                s = 0.0
                for x in part:
                    s = s + float(x)
                tree.append(s)
            while len(tree) > 1:
                tree = [tree[j] + tree[j + 1] for j in range(0, len(tree), 2)]
            sums.append(tree[0])
            counts.append(count)
        n = counts[0]
        loss = 0.0
        scale = {}
        for (r, w, reg), s, k in zip(self.net.terms, sums, counts):
            own = 1 if reg else k
            if own:
                loss = loss + float(w) * (s / own)
                scale[self.dump.ids[r]] = F(float(w) * n / own)
            else:
                scale[self.dump.ids[r]] = F(0)
        return sums, counts, loss, scale

    def virtual_ranks(self):
        g, batch = self.net.virtual_ranks, self.net.batch
        vrank = [r * g // batch for r in range(batch)]
        return [(sum(1 for x in vrank if x < k), sum(1 for x in vrank if x <= k)) for k in range(g)]

    def micro(self, a, b):
        """Returns the micro-batches of rows a to b - 1, the rows of a virtual rank."""
        return [(p, min(p + self.net.rows, b)) for p in range(a, b, self.net.rows)]

    def part(self, c, i, a, b):
        """Returns the call c of tensor i, restricted to rows a to b - 1."""
        if self.nodes[i]["batch_invariant"]:
            return c

        def cut(x, j):
            if x is None or (j is not None and self.nodes[j]["batch_invariant"]):
                return x
            each = x.shape[0] // self.net.batch
            return x[a * each:b * each]
        p = Call([cut(x, j) for x, j in zip(c.x, c.ids)], c.a, None, c.half)
        p.ids, p.builder = c.ids, c.builder
        p.y = c.y if self.nodes[i]["loss"] else cut(c.y, None)
        p.row, p.id, p.step = a, getattr(c, "id", 0), getattr(c, "step", 0)
        p.micro = [(q - a, r - a) for q, r in self.micro(a, b)]
        p.saved = {k: cut(v, None) if getattr(v, "ndim", 0) and v.shape[0] % self.net.batch == 0 else v
                 for k, v in c.saved.items()}
        each = c.shape[0] // self.net.batch if c.shape else 0
        p.shape = ((b - a) * each,) + tuple(c.shape[1:]) if c.shape else c.shape
        return p

    def contributions(self, i, g, c, into):
        """Calls into(target, contribution, whether the op has had this target before) for each gradient that tensor i
        with gradient g sends to its inputs."""
        seen = set()
        for j, k in zip(c.ids, OPS[c.builder].backward(c, g)):
            if j is None or k is None or self.nodes[j]["type"] != 0:
                continue
            t = self.base(j)
            into(t, k, t in seen)
            seen.add(t)

    def backward(self, scale):
        grads, uses = [], []
        order = [i for i in sorted(self.nodes, reverse=True)
                 if self.nodes[i]["op"] not in ("input", "param", "constant") + VIEWS]
        for a, b in self.virtual_ranks():
            grad, use = {}, {}
            for i in order:
                if self.nodes[i]["batch_invariant"]:
                    continue
                g = scale.get(i) if self.nodes[i]["loss"] else grad.get(i)
                if g is None:
                    continue
                c = self.part(self.calls[i], i, a, b)

                def into(t, k, again):
                    shape = self.rows_of(self.nodes[t]["shape"], self.nodes[t]["batch_invariant"], b - a)
                    if self.nodes[t]["batch_invariant"]:
                        use.setdefault(t, []).append(self.add(k, np.zeros(shape, F)))
                        return
                    if t not in grad:
                        grad[t] = k.store().reshape(shape)
                    elif again:
                        grad[t] = grad[t] + k.store().reshape(shape)
                    else:
                        grad[t] = self.add(k, grad[t])
                    grad[t] = self.kept(t, grad[t])
                self.contributions(i, g, c, into)
            grads.append(grad)
            total = {}
            for t, list_of in use.items():
                s = list_of[0]
                for x in list_of[1:]:
                    s = s + x
                total[t] = s
            uses.append(total)
        while len(uses) > 1:
            uses = [{t: uses[j][t] + uses[j + 1][t] for t in uses[j]} for j in range(0, len(uses), 2)]
        total = uses[0]
        for i in order:
            if not self.nodes[i]["batch_invariant"]:
                continue
            g = scale.get(i) if self.nodes[i]["loss"] else total.get(i)
            if g is None:
                continue

            def into(t, k, again):
                shape = self.nodes[t]["shape"]
                x = self.add(k, np.zeros(shape, F))
                total[t] = total[t] + x if t in total else x
            self.contributions(i, g, self.calls[i], into)
        self.grad = {t: np.concatenate([g[t] for g in grads]) for t in grads[0]}
        self.grad.update(total)

    def add(self, k, s):
        """Adds contribution number k to s. The result has the shape of s."""
        shape = getattr(k, "shape", None)
        if shape is None:
            shape = k.x.shape if hasattr(k, "x") else np.broadcast_shapes(np.shape(k.a), np.shape(k.b)) \
                if hasattr(k, "a") else k.rows.shape[1:]
        return np.asarray(k.add(s.reshape(shape)), dtype=F).reshape(s.shape)

    def step(self):
        """Runs a step. Returns its results in the form of Dump.steps."""
        self.forward()
        sums, counts, loss, scale = self.scales()
        n = counts[0]
        out = dict(count=n, term={k: (double_hex(s), c) for k, (s, c) in enumerate(zip(sums, counts))}, value={},
                   grad={}, param={}, state={}, loss=double_hex(loss if n else 0))
        params = [r for r, m in enumerate(self.net.made) if m["kind"] == "param"]
        if n:
            self.backward(scale)
            self.update(params, n, out)
        else:  # a step that changes nothing
            out["state"] = {(k, s): v for k, r in enumerate(params)
                            for s, v in enumerate(self.state.get(self.dump.ids[r], []))}
        for r in range(len(self.net.made)):
            i = self.dump.ids[r]
            if self.net.made[r]["kind"] == "op" and not self.nodes[i]["loss"]:
                out["value"][r] = self.values[i]
            b = self.base(i)
            if n and b in self.grad and r not in out["grad"]:
                out["grad"][r] = self.grad[b]
        for k, r in enumerate(params):
            out["param"][k] = self.values[self.dump.ids[r]]
        return out

    def update(self, params, n, out):
        total = 0.0
        g, moved = {}, []
        for r in params:
            m, i = self.net.made[r], self.dump.ids[r]
            if m["frozen"] or i not in self.grad:
                continue
            if "momentum" in m:
                mean = out["grad"][r] = self.grad[i] / F(self.net.batch)
                moved.append((i, K.fma(m["momentum"], mean, K.fma(-m["momentum"], self.values[i], self.values[i]))))
                continue
            g[r] = out["grad"][r] = self.grad[i] / F(n)
            flat = g[r].reshape(-1)
            square = 0.0
            for k in range(0, flat.size, 4096):
                square = square + float(K.row_dot(flat[k:k + 4096], flat[k:k + 4096]))
            total = total + square
        norm = float(np.sqrt(D(total)))
        out["norm"] = double_hex(norm)
        h = self.net.hyper
        self.updates += bool(g or moved)  # a step that changes no parameter is not counted
        for i, v in moved:
            self.values[i] = v
        for k, r in enumerate(params):
            if r not in g:
                continue
            i = self.dump.ids[r]
            x = g[r]
            if h["clip"] > 0 and norm > float(h["clip"]):
                x = x * F(float(h["clip"]) / norm)
            decay = h["decay"] if self.values[i].ndim >= 2 else F(0)
            w, state = OPTIMISERS[self.net.optimiser](self.values[i], x, self.state.get(i), h, decay, self.updates)
            self.values[i], self.state[i] = w, state
            for s, v in enumerate(state):
                out["state"][k, s] = v


def sgd(w, g, state, h, decay, step):
    return K.fma(-h["lr"], g, K.fma(-(h["lr"] * decay), w, w)), []


def momentum(w, g, state, h, decay, step):
    mu = h["momentum"] if h["momentum"] != 0 else F(0.9)
    m = K.fma(mu, state[0], g) if state else K.fma(mu, np.zeros(w.shape, F), g)
    return K.fma(-h["lr"], m, K.fma(-(h["lr"] * decay), w, w)), [m]


def adamw(w, g, state, h, decay, step):
    b1 = h["beta1"] if h["beta1"] else F(0.9)
    b2 = h["beta2"] if h["beta2"] else F(0.999)
    eps = h["eps"] if h["eps"] else F(1e-8)
    m, v = state or [np.zeros(w.shape, F), np.zeros(w.shape, F)]
    m = K.fma(b1, m, (F(1) - b1) * g)
    v = K.fma(b2, v, (F(1) - b2) * (g * g))
    lr, by = F(float(h["lr"]) / (1 - float(b1) ** step)), F(1 / (1 - float(b2) ** step))
    w = K.fma(-(h["lr"] * decay), w, w)
    return K.fma(-lr, m / (np.sqrt(v * by) + eps), w), [m, v]


OPTIMISERS = {0: adamw, 1: sgd, 2: momentum}


def same(a, b):
    a, b = np.asarray(a, dtype=F).reshape(-1), np.asarray(b, dtype=F).reshape(-1)
    if a.size != b.size:
        return "%d elements, %d by the text" % (a.size, b.size)
    u, v = np.ascontiguousarray(a).view(np.uint32), np.ascontiguousarray(b).view(np.uint32)
    wrong = (u != v) & ~(np.isnan(a) & np.isnan(b))
    if not wrong.any():
        return None
    k = int(np.argmax(wrong))
    return "element %d: %08x (%.9g), by the text %08x (%.9g); %d of %d differ" % (
        k, u[k], a[k], v[k], b[k], wrong.sum(), a.size)


def same_sum(a, b):
    """Returns whether two numbers of a step, a double in hexadecimal or a tuple with one, are equal. All NaN are equal."""
    def plain(x):
        whole = x if isinstance(x, tuple) else (x,)
        return tuple("nan" if isinstance(h, str) and len(h) == 16 and int(h, 16) & (1 << 63) - 1 > 0x7ff << 52 else h
                     for h in whole)
    return plain(a) == plain(b)


def name_of(net, r):
    m = net.made[r]
    if m["kind"] != "op":
        return "%s %d" % (m["kind"], r)
    return "%s %d of %s" % (m["builder"], r, m["inputs"])


def compare(net, dump, steps):
    """Returns the differences in the first step that has any, in the order of computation."""
    out = []
    if dump.errors:
        return ["error: " + e for e in dump.errors]
    again = Again(net, dump)
    for s in range(steps):
        mine, theirs = again.step(), dump.steps[s]
        for r in sorted(theirs["value"]):
            d = same(theirs["value"][r], mine["value"][r])
            if d:
                out.append("step %d, value of %s: %s" % (s, name_of(net, r), d))
        for k in theirs["term"]:
            if not same_sum(theirs["term"][k], mine["term"][k]):
                out.append("step %d, loss %d (%s): %s, by the text %s" % (s, k, name_of(net, net.terms[k][0]),
                                                                          theirs["term"][k], mine["term"][k]))
        if not same_sum(theirs["loss"], mine["loss"]):
            out.append("step %d, reported loss: %s, by the text %s" % (s, theirs["loss"], mine["loss"]))
        for r in sorted(theirs["grad"], reverse=True):
            zero = None if mine["count"] else np.abs(theirs["grad"][r])  # without any target, gradients are 0
            d = same(zero, np.zeros(zero.size, F)) if zero is not None else \
                same(theirs["grad"][r], mine["grad"][r]) if r in mine["grad"] else "none by the text"
            if d:
                out.append("step %d, gradient of %s: %s" % (s, name_of(net, r), d))
        if mine["count"] and not same_sum(theirs["norm"], mine["norm"]):
            out.append("step %d, norm: %s, by the text %s" % (s, theirs["norm"], mine["norm"]))
        for key in ("state", "param"):
            for k in sorted(theirs[key]):
                d = same(theirs[key][k], mine[key].get(k, np.zeros(0 if mine["count"] else theirs[key][k].size, F)))
                if d:
                    out.append("step %d, %s %s: %s" % (s, key, k, d))
        if out:
            return out
    return out
