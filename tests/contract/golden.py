"""The reading of the contract beside PyTorch: each op of tests/golden/golden.h, recurrent.h and special.h, values and
gradients.

    python3 tests/contract/golden.py PROGRAM        PROGRAM: dump.c with the library (asked for the graph)
Ends with 1 if one is off by more than 1e-5 of its tensor's greatest (or of 1); of special values (NaN, infinities,
signed zeros, subnormals) by more than 4 units in the last place, or from the library's own by a bit."""
import os
import re
import sys
import numpy as np
import contract as K
from contract import F
from nets import Again, Net, Told, compare

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")


def arrays(text):
    """Every array of a header, by name."""
    out = {}
    for kind, name, body in re.findall(r"static const (float|int32_t|double) (\w+)\[\d*\] = \{([^}]*)\}", text):
        values = [v.strip().rstrip("f") for v in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(",") if v.strip()]
        values = [v.replace("INFINITY", "inf").replace("NAN", "nan") for v in values]
        dtype = {"float": F, "int32_t": np.int32, "double": np.float64}[kind]
        out[name] = np.array([float(v) for v in values]).astype(dtype)
    return out


# name: builder, attributes, which inputs (-1: none)
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
    "rotary_with": ("rotary", (2, F(0), 0, 4, F(1.25), 2, F(0.5), F(0.0625)), None),
}


def close(name, got, want, ulps):
    got, want = np.asarray(got, dtype=np.float64).reshape(-1), np.asarray(want, dtype=np.float64).reshape(-1)
    odd = ~np.isfinite(want) | ~np.isfinite(got)
    by = 1e-5 * max(1, np.abs(want[~odd]).max(initial=0)) if not ulps else \
        4 * np.maximum(np.abs(want[~odd]) * 2.0 ** -23, 2.0 ** -149)
    fits = np.array_equal(got[odd], want[odd], equal_nan=True) and (np.abs(got[~odd] - want[~odd]) <= by).all()
    if not fits:
        k = int(np.argmax(~(np.isclose(got, want, rtol=1e-6, atol=0, equal_nan=True))))
        print("%s: element %d: %.9g, PyTorch %.9g" % (name, k, got[k], want[k]))
    return bool(fits)


def evaluated(net):
    net.optimiser = 1
    told = Told(K.program.talk(net.script(0)))
    again = Again(net, told)
    again.forward()
    sums, counts, loss, by = again.scales()
    again.backward({told.ids[r]: F(1) for r, w, k in net.terms})
    return again, told, sums, counts


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
        again, told, sums, counts = evaluated(net)
        if told.errors and "picked" not in told.errors[0]:
            print(name, told.errors)
        ok = True
        if int(out[2]):
            ok &= close(name, again.values[told.ids[y]], data[out[4]], 0)
        else:
            ok &= close(name + " loss", [sums[0], counts[0]], [total, count], 0)
        for i, t in zip(refs, ins):
            if t[1] != "i" and t[6] != "0":
                ok &= close(name + " gradient of " + t[0], again.grad[told.ids[i]], data[t[6]], 0)
        done += 1
        wrong += not ok
    return done, wrong


def recurrent():
    data = arrays(open(os.path.join(HERE, "recurrent.h")).read())
    shapes = {"x": (2, -1, 3), "wx": (3, -1), "wh": (4, -1), "bx": (-1,), "bh": (-1,), "h0": (2, 4), "c0": (2, 4)}
    done = wrong = 0
    for name in [k + more for k in ("gru", "lstm") for more in ("", "_started", "_bare")] + ["gather"]:
        net, refs = Net(2, 2), {}
        if name == "gather":
            refs["x"] = net.input(data["gather_x"].reshape(2, -1, 3))
            y = net.op("gather", [refs["x"], net.input(data["gather_index"].reshape(2, -1))])
        else:
            order = ("x", "wx", "bx", "wh", "bh", "h0") if name[0] == "g" else ("x", "wx", "wh", "bx", "h0", "c0")
            for k in order:
                if name + "_" + k in data:
                    v = data[name + "_" + k].reshape(shapes[k])
                    refs[k] = net.input(v) if k in ("x", "h0", "c0") else net.param(v)
            y = net.op(name.split("_")[0], [refs.get(k, -1) for k in order])
        shape = (2, -1, {"gru": 4, "lstm": 8, "gather": 3}[name.split("_")[0]])
        r = data[name + "_r"].reshape(shape)
        net.term(net.op("sum_loss", [net.op("mul", [y, net.input(r)])]))
        if name == "gather":
            net.param(np.zeros(1, F))
        again, told, _, _ = evaluated(net)
        ok = close(name, again.values[told.ids[y]], data[name + "_out"], 0)
        for k, i in refs.items():
            gradient = data["gather_grad" if name == "gather" else name + "_" + k + "_grad"]
            ok &= close(name + " gradient of " + k, again.grad[told.ids[i]], gradient, 0)
        done += 1
        wrong += not ok
    return done, wrong


def special():
    text = open(os.path.join(HERE, "special.h")).read()
    data = arrays(text)
    done = wrong = 0
    for name, a, b, inputs, n, x0, x1, d0, d1, g, y in re.findall(
            r'\{ "(\w+)", \{ ([^,]+), ([^}]+) \}, (\d), (\d+),\s*\{ (\w+), (\w+) \}, '
            r'\{ (\w+), (\w+) \},\s*(\w+), (\w+) \}',
            text):
        by = tuple(F(v.strip().rstrip("f").replace("INFINITY", "inf")) for v in (a, b))
        by = by[:{"pow": 1, "leaky_relu": 1, "clamp": 2, "scale": 1}.get(name, 0)]
        net = Net(1, 1)
        refs = [net.input(data[x].reshape(1, -1)) for x in (x0, x1)[:int(inputs)]]
        if name == "where":
            refs = [net.input((np.arange(int(n)) % 2 == 0).astype(F).reshape(1, -1))] + refs
        z = net.op(name, refs, *by)
        net.term(net.op("sum_loss", [net.op("mul", [z, net.input(data[g].reshape(1, -1))])]))
        again, told, _, _ = evaluated(net)
        ok = True
        if name != "where":
            ok &= close("special " + name, again.values[told.ids[z]], data[y], 1)
            for r, d in zip(refs, (d0, d1)):
                ok &= close("special " + name + " gradient", again.grad[told.ids[r]], data[d], 1)
        bits = [] if name == "where" else compare(net, Told(K.program.talk(net.script(1))), 1)
        bits = [w for w in bits if "loss" not in w]
        for w in bits[:1]:
            print("special %s, to the bit: %s" % (name, w))
        done += name != "where"
        wrong += not ok or bool(bits)
    return done, wrong


def main():
    K.program = K.Program(sys.argv[1])
    said = [(name, read()) for name, read in (("golden.h", golden), ("recurrent.h", recurrent), ("special.h", special))]
    K.program.close()
    print("contract beside PyTorch: " + "; ".join("%d cases of %s, %d off" % (n, name, off) for name, (n, off) in said))
    return 1 if any(off or not n for name, (n, off) in said) else 0


if __name__ == "__main__":
    sys.exit(main())
