"""Compares the second implementation of docs/numerics.md with PyTorch, values and gradients: tests/golden/golden.h,
special.h, recurrent.h, moves.h, norms.h, convolutions.h and attention.h.

    python3 tests/contract/golden.py PROGRAM        PROGRAM is dump.c, linked with the library (for the graph)
Exits with 1 if a number differs by more than 1e-5 of the greatest number of its tensor (at least 1). For special values
(NaN, infinities, signed zeros, subnormals) the limit is 4 units in the last place from PyTorch, and no bit from the
library, in fp32 and bf16."""
import os
import re
import sys
import numpy as np
import contract as K
import nets
from contract import F
from nets import Again, Net, Dump, compare
from ops import OPS, Call



class Used(dict):
    """A dictionary that remembers the keys whose values were read."""

    def __init__(self, values):
        dict.__init__(self, values)
        self.keys_read = set()

    def __getitem__(self, key):
        self.keys_read.add(key)
        return dict.__getitem__(self, key)


# The name and the kind of each op of one input without attributes.
UNARY = re.findall(r"X\((\w+), \w+, (\w+),", open(os.path.join(os.path.dirname(__file__), "../unary.h")).read())

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def arrays(text):
    """Returns a dictionary of the arrays that the text of a header defines."""
    out = {}
    for kind, name, body in re.findall(r"static const (float|int32_t|int|double) (\w+)\[\d*\] = \{([^}]*)\}", text):
        values = [v.strip().rstrip("f") for v in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(",") if v.strip()]
        values = [v.replace("INFINITY", "inf").replace("NAN", "nan") for v in values]
        dtype = {"float": F, "int32_t": np.int32, "int": np.int32, "double": np.float64}[kind]
        out[name] = np.array([float(v) for v in values]).astype(dtype)
    return out


# Cases: builder, attributes, and numbers of the inputs (-1 for none).
OTHER = {
    "mul_same": ("mul", (), (0, 0)), "scale": ("scale", (F(-2.5),), None), "layernorm": ("layernorm", (F(1e-5),), None),
    "rmsnorm": ("rmsnorm", (F(1e-5),), None), "linear_no_bias": ("linear", (), (0, 1, -1)),
    "matmul_shared": ("matmul", (), None), "attention_causal": ("attention", (2, 0, 1, 0, F(0), F(0)), (0, 1, 2, -1)),
    "attention_cross": ("attention", (3, 0, 0, 0, F(0), F(0)), (0, 1, 2, -1)),
    "attention_same": ("attention", (1, 0, 1, 0, F(0), F(0)), (0, 0, 0, -1)),
    "attention_more_keys": ("attention", (2, 0, 1, 0, F(0), F(0)), (0, 1, 2, -1)),
    "rotary": ("rotary", (2, F(10000), 0, 0, F(0), 0), None),
    "permute": ("permute", (4, 0, 2, 3, 1), None),
    "slice": ("slice", (1, 1, 4), None), "concat": ("concat", (1,), (0, 1, 0)),
    "reshape": ("reshape", (2, 2, 12), None),
    "sum": ("sum", (1,), None), "mean": ("mean", (2,), None),
    "cross_entropy_weights": ("cross_entropy_with", (F(0),), None),
    "cross_entropy_smoothed": ("cross_entropy_with", (F(0.1),), (0, 1, -1)),
    "cross_entropy_with": ("cross_entropy_with", (F(0.25),), None), "huber": ("huber", (F(0.5),), (0, 1, -1)),
    "huber_weights": ("huber", (F(0.5),), None), "layernorm_eps": ("layernorm", (F(2.0 ** -6),), None),
    "rmsnorm_eps": ("rmsnorm", (F(2.0 ** -6),), None),
    "matmul_left": ("matmul", (), None), "matmul_broadcast": ("matmul", (), None),
    "matmul_transposed_broadcast": ("matmul_transposed", (), None), "matmul_row": ("matmul", (), None),
    "matmul_column": ("matmul", (), None),
    "rotary_with": ("rotary", (2, F(0), 0, 4, F(1.25), 2, F(0.5), F(0.0625)), None),
}


def close(name, got, want, ulps, terms=0):
    """terms: size of the terms that cancel in each number, to which an error is relative"""
    got, want = np.asarray(got, dtype=np.float64).reshape(-1), np.asarray(want, dtype=np.float64).reshape(-1)
    odd = ~np.isfinite(want) | ~np.isfinite(got)
    by = 1e-5 * max(1, np.abs(want[~odd]).max(initial=0)) if not ulps else \
        4 * np.maximum(np.maximum(np.abs(want), terms)[~odd] * 2.0 ** -23, 2.0 ** -149)
    fits = np.array_equal(got[odd], want[odd], equal_nan=True) and (np.abs(got[~odd] - want[~odd]) <= by).all()
    if not fits:
        k = int(np.argmax(~(np.isclose(got, want, rtol=1e-6, atol=0, equal_nan=True))))
        print("%s: element %d: %.9g, PyTorch %.9g" % (name, k, got[k], want[k]))
    return bool(fits)


def evaluated(net):
    net.optimiser = 1
    dump = Dump(K.program.talk(net.script(0)))
    again = Again(net, dump)
    again.forward()
    sums, counts, loss, by = again.scales()
    again.backward({dump.ids[r]: F(1) for r, w, k in net.terms})
    return again, dump, sums, counts


def golden():
    text = open(os.path.join(HERE, "golden.h")).read()
    data = arrays(text)
    table = text[text.index("golden_case golden_cases[] = {"):]
    table = table[:table.index("\n};")]
    tensor = r'\{ (?:"(\w+)"|0), (?:\'(\w)\'|0), (\d), \{ ([\d, ]+) \}, (\w+), (\w+), (\w+) \}'
    case = re.compile(r'\{ "(\w+)", (\d), \{ ' + r",\s*".join([tensor] * 3) + r' \},\s*' + tensor +
                      r', (\w+), ([-\d.e]+), (\d+) \}')
    done = wrong = 0
    for m in case.finditer(table):
        g = m.groups()
        name, n = g[0], int(g[1])
        ins = [g[2 + 7 * k:9 + 7 * k] for k in range(n)]
        out, r, total, count = g[23:30], g[30], float(g[31]), int(g[32])
        shapes = [tuple(map(int, t[3].split(",")))[:int(t[2])] for t in ins]
        rows = next(s[0] for t, s in zip(ins, shapes) if t[1] != "p")
        net = Net(rows, rows)
        refs = []
        for t, s in zip(ins, shapes):
            v = data[t[4] if t[1] != "i" else t[5]].reshape(s)
            refs.append(net.param(v) if t[1] == "p" else net.input(v))
        if all(t[1] != "p" for t in ins):
            refs_used = [net.op("add", [i, net.param(np.zeros(s[1:], F))]) if t[1] == "x" else i
                         for i, t, s in zip(refs, ins, shapes)]
        else:
            refs_used = refs
        builder, attributes, which = OTHER.get(name, (name, (), None))
        y = net.op(builder, [refs_used[i] if i >= 0 else -1 for i in which or range(n)] +
                   ([-1] if builder in ("soft_cross_entropy",) and n == 2 else []), *attributes)
        loss = y
        if int(out[2]):
            shape = tuple(map(int, out[3].split(",")))[:int(out[2])]
            loss = net.op("sum_loss", [net.op("mul", [y, net.input(data[r].reshape(shape))])])
        net.term(loss)
        again, dump, sums, counts = evaluated(net)
        if dump.errors and "nothing to train" not in dump.errors[0]:
            print(name, dump.errors)
        ok = True
        if int(out[2]):
            ok &= close(name, again.values[dump.ids[y]], data[out[4]], 0)
        else:
            ok &= close(name + " loss", [sums[0], counts[0]], [total, count], 0)
        for i, t in zip(refs, ins):
            if t[1] != "i" and t[6] != "0":
                ok &= close(name + " gradient of " + t[0], again.grad[dump.ids[i]], data[t[6]], 0)
        done += 1
        wrong += not ok
    return done, wrong


def recurrent():
    data = arrays(open(os.path.join(HERE, "recurrent.h")).read())
    shapes = {"x": (2, -1, 3), "wx": (3, -1), "wh": (4, -1), "bx": (-1,), "bh": (-1,), "h0": (2, 4), "c0": (2, 4)}
    done = wrong = 0
    for name in [k + more for k in ("gru", "lstm") for more in ("", "_started", "_bare", "_lengths")] + [
            "gru_before", "gru_before_lengths", "delta_rule", "delta_rule_own", "gather"]:
        net, refs = Net(2, 2), {}
        if name == "gather":
            refs["x"] = net.input(data["gather_x"].reshape(2, -1, 3))
            y = net.op("gather", [refs["x"], net.input(data["gather_index"].reshape(2, -1))])
        elif name[0] == "d":
            heads = 2 if name == "delta_rule" else 1
            for k, n in (("q", 3), ("k", 3), ("v", 4), ("decay", heads), ("beta", heads)):
                refs[k] = net.input(data[name + "_" + k].reshape(2, -1, n))
            y = net.op("delta_rule", list(refs.values()), heads, 1, F(0))
        else:
            order = ("x", "wx", "bx", "wh", "bh", "h0") if name[0] == "g" else ("x", "wx", "wh", "bx", "h0", "c0")
            for k in order:
                if name + "_" + k in data:
                    v = data[name + "_" + k].reshape(shapes[k])
                    refs[k] = net.input(v) if k in ("x", "h0", "c0") else net.param(v)
            given = data.get(name + "_lengths")
            lengths = [] if name[0] == "d" else [-1 if given is None else net.input(given.astype(np.int32))]
            y = net.op("delta_rule" if name[0] == "d" else name.split("_")[0], [refs.get(k, -1) for k in order] + lengths,
                       *[int("before" in name)] * (name[0] == "g"))
        shape = (2, -1, {"gru": 4, "lstm": 8, "delta": 4, "gather": 3}[name.split("_")[0]])
        r = data[name + "_r"].reshape(shape)
        net.term(net.op("sum_loss", [net.op("mul", [y, net.input(r)])]))
        if name[0] in "dg" and name[:3] != "gru":
            net.param(np.zeros(1, F))
        again, dump, _, _ = evaluated(net)
        ok = close(name, again.values[dump.ids[y]], data[name + "_out"], 0)
        for k, i in refs.items():
            gradient = data["gather_grad" if name == "gather" else name + "_" + k + "_grad"]
            ok &= close(name + " gradient of " + k, again.grad[dump.ids[i]], gradient, 0)
        done += 1
        wrong += not ok
    return done, wrong


def numbers(step, shape, by=16):
    """Returns the inputs from which the Python scripts made moves.h, norms.h and convolutions.h."""
    return ((np.arange(np.prod(shape)) * step % 23 - 11) / by).astype(F).reshape(shape)


def against(want, name, builder, inputs, attributes, r, shape):
    """Compares a builder with the numbers `want`: its result, then all gradients. Each input is None or a pair: its
    values, and "x" if it is fed, "p" for a parameter, "r" for running statistics, or "-" for no gradient. r(shape) is
    the array that multiplies the result in the loss."""
    rows = inputs[0][0].shape[0]
    net = Net(rows, rows)
    refs = [-1 if v is None else net.param(v[0]) if v[1] == "p" else net.running(v[0], F(0.1)) if v[1] == "r" else
            net.input(v[0]) for v in inputs]
    y = net.op(builder, refs, *attributes)
    net.term(net.op("sum_loss", [net.op("mul", [net.op("mul", [y, net.input(r(shape))]), net.param(np.ones(1, F))])]))
    again, dump, _, _ = evaluated(net)
    got = [again.values[dump.ids[y]]] + [again.grad[dump.ids[i]] for i, v in zip(refs, inputs) if v and v[1] in "xp"]
    return close(name, np.concatenate([g.reshape(-1) for g in got]), want, 0)


def window(size=(0, 0), stride=(0, 0), padding=(0, 0), dilation=(0, 0), more=(0, 0), groups=0):
    return tuple(w[i] for i in range(2) for w in (size, stride, padding, dilation, more)) + (groups,)


def counted(results):
    results = list(results)
    return len(results), results.count(False)


def moves():
    data = arrays(open(os.path.join(HERE, "moves.h")).read())
    x, line = numbers(19, (2, 3, 4, 2)), numbers(19, (2, 30))

    def cases():
        def one(name, builder, v, attributes, shape):
            return against(data["golden_" + name], name, builder, [(v, "x")], attributes, lambda s: numbers(17, s),
                           shape)
        yield one("pad", "pad", x, (2, 1, 3, 0, F(0.5)), (2, 3, 8, 2))
        yield one("pad_last", "pad", x, (3, 2, 0, 0, F(-1.25)), (2, 3, 4, 4))
        yield one("reflect", "pad", x, (2, 3, 2, 1, F(0)), (2, 3, 9, 2))
        yield one("replicate", "pad", x, (1, 2, 4, 2, F(0)), (2, 9, 4, 2))
        yield one("max", "max", x, (1,), (2, 4, 2))
        yield one("max_last", "max", line, (1,), (2,))
        yield one("top_k", "top_k", x, (2, 3), (2, 3, 3, 2))
        yield one("top_k_last", "top_k", line, (1, 7), (2, 7))
        for how in range(3):
            for name, size in (("larger", (5, 7)), ("smaller", (2, 3)), ("one", (1, 4)), ("twice", (6, 8))):
                yield one("%s%d" % (name, how), "upsample", x, size + (how,), (2,) + size + (2,))
        for name, op, v, attributes in (("argmax", "argmax", x, (2,)), ("argmax_last", "argmax", line, (1,)),
                                        ("top_k_indices", "top_k_indices", line, (1, 7))):
            yield bool((OPS[op].forward(Call([v], attributes, None)).reshape(-1) == data["golden_" + name]).all())
        for m, n in ((26, 22), (4, 166), (7, 3), (100, 33)):
            for how in range(3):
                name = "golden_places_%d_%d_%d" % (m, n, how)
                if name in data:
                    c = Call([np.arange(m).astype(F).reshape(1, 1, m, 1)], (1, n, how), (1, 1, n, 1))
                    yield close(name, OPS["upsample"].forward(c), data[name], 0)
    return counted(cases())


def norms():
    data = arrays(open(os.path.join(HERE, "norms.h")).read())
    image, line, eight = numbers(19, (2, 5, 6, 3)), numbers(13, (2, 7, 4)), numbers(19, (2, 5, 6, 8))

    def gain(c):
        return (F(1) + numbers(7, (c,)), "p")

    def bias(c):
        return (numbers(5, (c,)), "p")

    def running(c):
        return [(np.zeros(c, F), "r"), (np.ones(c, F), "r")]
    return counted(
        against(data["golden_" + name], name, builder, inputs, attributes, lambda s: numbers(17, s), shape)
        for name, builder, inputs, attributes, shape in (
            ("max", "max_pool", [(image, "x")], window((3, 2), (2, 2), (1, 0)) + (0, 0), (2, 3, 3, 3)),
            ("max_1d", "max_pool", [(line, "x")], window((0, 3), (0, 1), (0, 1)) + (0, 0), (2, 7, 4)),
            ("average", "average_pool", [(image, "x")], window((2, 3), (1, 2), (0, 1)) + (0, 0), (2, 4, 3, 3)),
            ("average_1d", "average_pool", [(line, "x")], window((0, 2)) + (0, 0), (2, 3, 4)),
            ("max_ceil", "max_pool", [(image, "x")], window((3, 2), (2, 3), (1, 1), (1, 2)) + (1, 0), (2, 3, 3, 3)),
            ("max_dilated", "max_pool", [(numbers(13, (2, 9, 4)), "x")],
             window((0, 3), (0, 1), (0, 1), (0, 2)) + (0, 0), (2, 7, 4)),
            ("average_ceil", "average_pool", [(image, "x")], window((2, 3), (2, 2), (1, 1)) + (1, 0), (2, 3, 4, 3)),
            ("average_inside", "average_pool", [(image, "x")], window((2, 3), (2, 2), (1, 1)) + (1, 1), (2, 3, 4, 3)),
            ("average_inside_1d", "average_pool", [(line, "x")], window((0, 3), (0, 2), (0, 1)) + (0, 1), (2, 4, 4)),
            ("global", "global_average_pool", [(image, "x")], (), (2, 3)),
            ("group", "groupnorm", [(eight, "x"), gain(8), bias(8)], (2, F(1e-5)), eight.shape),
            ("group_bias", "groupnorm", [(numbers(19, (3, 4, 6)), "x"), None, bias(6)], (3, F(1e-5)), (3, 4, 6)),
            ("group_none", "groupnorm", [(numbers(19, (3, 40)), "x"), None, None], (1, F(1e-5)), (3, 40)),
            ("batch", "batchnorm", [(eight, "x"), gain(8), bias(8)] + running(8), (F(1e-5),), eight.shape),
            ("batch_none", "batchnorm", [(numbers(19, (6, 4)), "x"), None, None] + running(4), (F(1e-5),), (6, 4)),
            ("group_eps", "groupnorm", [(numbers(19, (3, 4, 6)), "x"), gain(6), bias(6)], (2, F(1e-6)), (3, 4, 6)),
            ("batch_eps", "batchnorm", [(numbers(19, (6, 4)), "x"), gain(4), bias(4)] + running(4), (F(1e-3),),
             (6, 4))))


def convolutions():
    text = open(os.path.join(HERE, "convolutions.h")).read()
    data = arrays(text)
    pairs = r"\{ (\d+), (\d+) \}"
    row = re.compile(r"\{ (\d), (\d), \{ ([\d, ]+) \}, (\d), \{ ([\d, ]+) \}, (\d+), \{ ([\d, ]+) \}, \{ " +
                     r",\s*".join([pairs] * 4) + r", (\d+), " + pairs + r", 0, 0 \},\s*golden_y(\d+)")

    def cases():
        for m in row.finditer(text):
            g = m.groups()
            x, w, y = (tuple(map(int, g[i].split(","))) for i in (2, 4, 6))
            p = [tuple(map(int, g[i:i + 2])) for i in (7, 9, 11, 13, 16)]
            builder = "conv%sd" % g[0] + ("_transposed" if g[1] == "1" else "")
            want = np.concatenate([data["golden_%s%s" % (k, g[18])] for k in ("y", "dx", "dw", "db")])
            yield against(want, builder + " " + g[18], builder,
                          [(numbers(37, x, 8), "x"), (numbers(29, w, 8), "p"), (numbers(5, (int(g[5]),), 8), "p")],
                          window(p[0], p[1], p[2], p[3], p[4], int(g[15])), lambda s: numbers(31, s, 8), y)
    return counted(cases())


def attention():
    data = arrays(open(os.path.join(HERE, "attention.h")).read())

    def of(seed, *shape):
        return ((((np.arange(np.prod(shape)) * 37 + seed * 11) % 101) - 50) / 32).astype(F).reshape(shape)

    def cases():
        for name, b, t, s, heads, shared, causal, lengths, window_, cap, scale in (
                ("shared", 2, 3, 5, 4, 2, 0, None, 0, 0, 0), ("shared_causal", 1, 4, 4, 3, 1, 1, None, 0, 0, 0),
                ("lengths", 3, 3, 5, 2, 2, 0, (5, 1, 3), 0, 0, 0), ("both", 3, 4, 4, 4, 2, 1, (2, 4, 1), 0, 0, 0),
                ("window", 1, 6, 6, 2, 1, 1, None, 3, 0, 0), ("capped", 1, 3, 5, 2, 2, 0, None, 0, 1.5, 0),
                ("window_capped", 2, 5, 5, 2, 1, 1, None, 2, 2, 0.75)):
            want = np.concatenate([data["golden_attention_%s_%s" % (name, k)] for k in ("out", "dq", "dk", "dv")])
            given = (np.array(lengths, dtype=np.int32), "-") if lengths else None
            inputs = [(of(1, b, t, heads * 3), "x"), (of(2, b, s, shared * 3), "x"), (of(3, b, s, shared * 3), "x")]
            yield against(want, "attention " + name, "attention", inputs + [given],
                          (heads, shared, causal, window_, F(cap), F(scale)), lambda k: of(4, *k), (b, t, heads * 3))
        for name, heads, shared, masks in ("biased", 4, 2, 4), ("biased_once", 2, 2, 1):
            want = np.concatenate([data["golden_attention_%s_%s" % (name, k)] for k in ("out", "dq", "dk", "dv", "dmask")])
            mask = of(5, masks, 3, 5)
            mask[-1, 0, 2] = -np.inf
            inputs = [(of(1, 2, 3, heads * 3), "x"), (of(2, 2, 5, shared * 3), "x"), (of(3, 2, 5, shared * 3), "x")]
            yield against(want, "attention " + name, "masked_attention", inputs + [(mask, "p")],
                          (heads, shared, F(0), F(0)), lambda k: of(4, *k), (2, 3, heads * 3))
    return counted(cases())


def special():
    text = open(os.path.join(HERE, "special.h")).read()
    data = arrays(text)
    done = wrong = 0
    for name, a, b, inputs, n, cancels, x0, x1, d0, d1, g, y in re.findall(
            r'\{ "(\w+)", \{ ([^,]+), ([^}]+) \}, (\d), (\d+), (\d),\s*\{ (\w+), (\w+) \}, '
            r'\{ (\w+), (\w+) \},\s*(\w+), (\w+) \}',
            text):
        by = tuple(F(v.strip().rstrip("f").replace("INFINITY", "inf")) for v in (a, b))
        by = by[:{"pow": 1, "leaky_relu": 1, "elu": 1, "clamp": 2, "scale": 1}.get(name, 0)]
        net = Net(1, 1)
        refs = [net.input(data[x].reshape(1, -1)) for x in (x0, x1)[:int(inputs)]]
        if name == "where":
            refs = [net.input((np.arange(int(n)) % 2 == 0).astype(F).reshape(1, -1))] + refs
        z = net.op(name, refs, *by)
        net.term(net.op("sum_loss", [net.op("mul", [z, net.input(data[g].reshape(1, -1))])]))
        again, dump, _, _ = evaluated(net)
        ok = True
        if name != "where":
            size = np.fmin(np.abs(data[x0]), 20)  # a greater x leaves one of the terms
            ok &= close("special " + name, again.values[dump.ids[z]], data[y], 1, size * (int(cancels) & 1))
            size = np.fmax(size, 1) * np.abs(data[g]) * (int(cancels) >> 1)
            for r, d in zip(refs, (d0, d1)):
                ok &= close("special " + name + " gradient", again.grad[dump.ids[r]], data[d], 1, size)
        bits = [] if name == "where" else compare(net, Dump(K.program.talk(net.script(1))), 1)
        net.precision = 1
        bits = [w for w in bits + compare(net, Dump(K.program.talk(net.script(1))), 1) if "loss" not in w]
        for w in bits[:1]:
            print("special %s, to the bit: %s" % (name, w))
        done += name != "where"
        wrong += not ok or bool(bits)
    return done, wrong


def odd():
    """Compares elementwise ops with the library, on special values, in fp32 and in bf16."""
    x = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 1.2e-38, 3e38, -3e38, 88.7,
                  -87.4, -103.9, 9.1, 131073, -2e10], dtype=F).reshape(1, -1)

    def cases():
        for name, _ in UNARY:
            net = Net(1, 1)
            net.optimiser = 1
            net.term(net.op("sum_loss", [net.op("mul", [net.op(name, [net.input(x)]), net.param(np.ones(1, F))])]))
            wrong = []
            for net.precision in (0, 1):
                wrong += [w for w in compare(net, Dump(K.program.talk(net.script(1))), 1)
                          if "loss" not in w and "norm" not in w]  # their NaN may have any sign
            print("%s, to the bit: %s" % (name, wrong[0])) if wrong else None
            yield not wrong
    return counted(cases())


# Ops without golden values, which check.py compares: PyTorch draws other random numbers, or has no such op.
NOT_GOLDEN = ["detach", "dropout", "from_u8", "cache", "delta_state"]


def not_compared():
    """Returns the ops of GCKPTI_OPS (gradckpt.h) of which no golden value has been compared."""
    text = open(os.path.join(HERE, "..", "..", "gradckpt.h")).read()
    ops = re.findall(r"X\((\w+), [A-Z_]+\)", re.search(r"#define GCKPTI_OPS\(X\)(.*?[^\\])\n", text, re.S).group(1))
    assert len(ops) > 50
    return [op for op in ops if op not in OPS.keys_read]


def main():
    global OPS
    OPS = nets.OPS = Used(OPS)
    K.program = K.Program(sys.argv[1])
    said = [(read.__name__ + ".h", read())
            for read in (golden, special, recurrent, moves, norms, convolutions, attention)]
    missing = not_compared()
    if missing != NOT_GOLDEN:
        print("golden values lack: %s; expected: %s" % (" ".join(missing), " ".join(NOT_GOLDEN)))
    n, off = odd()
    K.program.close()
    print("contract: special values of %d functions, %d off" % (n, off))
    print("contract compared with PyTorch: " + "; ".join("%d cases of %s, %d off" % (n, name, off) for name, (n, off) in said))
    return 1 if missing != NOT_GOLDEN or off or any(wrong or not n for name, (n, wrong) in said) else 0


if __name__ == "__main__":
    sys.exit(main())
