"""Defines the effect of each PTX instruction on all lanes of a machine together. An instruction is translated when it
runs for the first time.

These follow the PTX manual: integers, comparisons, conversions, shifts, shuffles and votes (a lane that is read must be
active), cp.async with groups of each thread, ldmatrix, and the fragments of mma. Floating-point operations, including
fma, are those of IEEE with one rounding (.rn); NaN results have a device's bits, 0x7fffffff. Where devices differ or
the manual leaves a choice, the model does this:
    mma             a sequential fma over k, as in tests/cuda/cuda_shim.h; a device adds in another order
    ex2.approx.ftz  exp2f of the C library, subnormal inputs and results are 0; a device may differ by 2 ulp
    rcp.approx.ftz  the rounded quotient, subnormal inputs and results are 0; a device may differ by 1 ulp
    atom, red       in the order of lanes
Any other modifier or instruction raises Unknown, so that no instruction runs as one that merely looks similar."""
import re
import numpy as np
import hopper
from arithmetic import (FLOAT, NAN, SIGNED, UNSIGNED, add_products, divided, exp2_approx, flushed, greater, round_fma,
                        to_bf16)
from program import Unknown, Wrong, bits_of, instruction, listed

# Kinds of instructions. POLL: threads repeat such an instruction until others have stored or arrived; its function
# returns the lanes that have to execute it again after a change.
PLAIN, BRANCH, EXIT, BARRIER, POLL = range(5)
SPACES = ("global", "shared", "local", "param", "const")
WINDOWS = {"shared": 1 << 40, "local": 1 << 41, "global": 0, "param": 0, "const": 0}
LANES = 32
LANE, GROUP, WITHIN = np.arange(LANES), np.arange(LANES) // 4, np.arange(LANES) % 4 * 2
# Modifiers that have no effect in this model.
HARMLESS = {"rn", "lo", "uni", "sync", "aligned", "nc", "to", "cta", "relaxed", "gpu", "cg"}
SPECIAL = re.compile(r"%laneid|%n?(tid|ctaid)\.[xyz]")
SHARED_ACCESS = re.compile(r"\b(?:ld|st|atom|red)\.shared\.(?:(?:add|or)\.)?(?:v(\d)\.)?([a-z]\d+)\s")


class Steps:
    """The instructions of a kernel, each translated when it runs for the first time. An entry is (kind, guard, whether
    the guard is negated, function or branch target)."""

    def __init__(self, kernel, symbols):
        self.kernel, self.symbols, self.built = kernel, symbols, [None] * len(kernel.code)

    def __getitem__(self, at):
        if self.built[at] is None:
            i = instruction(self.kernel.code[at])
            self.built[at] = step_of(Builder(self.kernel, self.symbols, i), i)
        return self.built[at]

    def __len__(self):
        return len(self.built)


def steps_of(kernel, symbols):
    if kernel.built is None or kernel.built.symbols != symbols:
        kernel.built = Steps(kernel, symbols)
    return kernel.built


def step_of(builder, instruction):
    name = instruction.parts[0]
    act = None
    if name == "bra":
        kind, act = BRANCH, builder.kernel.labels[instruction.operands[0]]
    elif name in ("ret", "exit"):
        kind = EXIT
    elif name in ("bar", "barrier") and "warp" not in instruction.parts:
        if instruction.parts != ["bar", "sync"] or instruction.operands != ["0"]:
            raise Unknown(instruction.line)
        kind = BARRIER
    else:
        build = getattr(builder, "op_" + name, None)
        if not build:
            raise Unknown(instruction.line)
        act = build(*instruction.operands)
        kind = POLL if builder.polls else PLAIN
        builder.check_modifiers()
    return kind, instruction.guard, instruction.unless, act


def smallest_of_shared(kernel):
    """Returns the size in bytes of the kernel's smallest access to shared memory."""
    least = 16
    for count, kind in SHARED_ACCESS.findall(kernel.body):
        least = min(least, bits_of(kind) // 8 * int(count or 1))
    return least


COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


class Builder(hopper.Instructions):
    """Translates one instruction. op_NAME(operands) returns a function of a machine that executes it."""

    def __init__(self, kernel, symbols, instruction):
        self.kernel, self.symbols, self.instruction, self.polls = kernel, symbols, instruction, False
        self.parts, self.kind = instruction.parts, instruction.parts[-1]
        self.met = {self.parts[0], self.kind} | HARMLESS

    def check_modifiers(self):
        more = set(self.parts) - self.met
        if more:
            raise Unknown("%s: .%s" % (self.instruction.line, " .".join(sorted(more))))

    def has(self, modifier):
        self.met.add(modifier)
        return modifier in self.parts

    def one_of(self, modifiers, otherwise=None):
        return next((m for m in modifiers if self.has(m)), otherwise)

    # ---- operands ----
    def get(self, text, kind):
        """Returns a function of a machine that reads an operand as a value of type `kind`."""
        bits = bits_of(kind)
        as_type = FLOAT[bits] if kind[0] == "f" else SIGNED[bits] if kind[0] == "s" else UNSIGNED[bits]
        fragments = self.kernel.fragments.get(text)
        if fragments:
            def act(m):
                m.asynchronous.touch(fragments)
                return m.registers[text].view(as_type)
            return act
        if text in self.kernel.registers:
            if self.kernel.registers[text] == bits:
                return lambda m: m.registers[text].view(as_type)
            return lambda m: m.registers[text].astype(UNSIGNED[bits]).view(as_type)
        if SPECIAL.fullmatch(text):
            return lambda m: m.special[text].astype(UNSIGNED[bits]).view(as_type)
        value = np.full(1, self.constant(text) & (1 << bits) - 1, np.uint64).astype(UNSIGNED[bits]).view(as_type)
        return lambda m: value

    def constant(self, text):
        if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", text):
            return int(text[2:], 16)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return int(text.rstrip("U"), 0)
        if text == "WARP_SZ":
            return LANES
        if text not in self.symbols:
            raise Unknown("%s: %s" % (self.instruction.line, text))
        return self.symbols[text]

    def put(self, text):
        """Returns a function of a machine and values that writes the values to a register. Signed values keep their
        sign."""
        if text == "_":
            return lambda m, value: None
        bits = self.kernel.registers[text]
        own, fragments = UNSIGNED[bits], self.kernel.fragments.get(text)

        def act(m, value):
            if fragments:
                m.asynchronous.touch(fragments)
            if value.dtype.kind == "f":
                value = value.view(UNSIGNED[8 * value.dtype.itemsize])
            if value.dtype != own:
                value = value.astype(own)
            if not m.all:
                value = np.where(m.mask, value, m.registers[text])
            elif len(value) != m.lanes:
                value = np.full(m.lanes, value[0], own)
            m.registers[text] = value
        return act

    def address(self, text):
        """Returns a function of a machine that computes the address [register or name + offset]."""
        base, offset = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]", text).groups()
        offset = int(offset or "0", 0)
        get = self.get(base, "u64")
        narrow = self.kernel.registers.get(base) == 32
        mask = np.uint64(0xffffffff if narrow else 0xffffffffffffffff)
        offset = np.uint64(offset & 0xffffffffffffffff)
        return lambda m: np.broadcast_to((get(m) + offset) & mask, m.lanes)

    def result(self, to, function, *operands):
        """Returns a function of a machine that executes to = function(values of the operands)."""
        put, kind = self.put(to), self.kind
        gets = [self.get(o, kind) for o in operands]
        bits = bits_of(kind)
        if kind[0] != "f":
            return lambda m: put(m, function(*[g(m) for g in gets]))

        def act(m):
            value = function(*[g(m) for g in gets])
            odd = value != value
            if odd.any():
                value = np.where(odd, NAN[bits], value.view(UNSIGNED[bits]))
            put(m, value)
        return act

    # ---- moves ----
    def op_mov(self, to, source):
        if to.startswith("{"):
            return self.unpack(listed(to), source)
        if source.startswith("{"):
            return self.pack(to, listed(source))
        put, get = self.put(to), self.get(source, self.kind)
        return lambda m: put(m, get(m))

    def unpack(self, names, source):
        bits = bits_of(self.kind)
        each = bits // len(names)
        puts, get = [self.put(n) for n in names], self.get(source, "b%d" % bits)

        def act(m):
            value = get(m)
            for i, put in enumerate(puts):
                put(m, (value >> UNSIGNED[bits](each * i)).astype(UNSIGNED[each]))
        return act

    def pack(self, to, names):
        bits = bits_of(self.kind)
        each = bits // len(names)
        put, gets = self.put(to), [self.get(n, "b%d" % each) for n in names]

        def act(m):
            value = 0
            for i, get in enumerate(gets):
                value = value | get(m).astype(UNSIGNED[bits]) << UNSIGNED[bits](each * i)
            put(m, value)
        return act

    def op_cvta(self, to, source):
        put, get = self.put(to), self.get(source, "u64")
        step = np.uint64(WINDOWS[self.one_of(SPACES)])
        if "to" in self.parts:
            return lambda m: put(m, get(m) - step)
        return lambda m: put(m, get(m) + step)

    def vector(self):
        return int(self.one_of(("v2", "v4"), "v1")[1:])

    def op_ld(self, to, source):
        space, count, bits = self.one_of(SPACES, "generic"), self.vector(), bits_of(self.kind)
        puts, at, signed = [self.put(n) for n in listed(to)], self.address(source), self.kind[0] == "s"

        def act(m):
            for put, value in zip(puts, m.load(space, at(m), bits, count)):
                put(m, value.view(SIGNED[bits]) if signed else value)
        return self.acquiring(at, act) if self.has("acquire") else act

    def op_st(self, to, source):
        space, bits = self.one_of(SPACES, "generic"), bits_of(self.kind)
        at, gets = self.address(to), [self.get(n, "b%d" % bits) for n in listed(source)]
        if self.vector() != len(gets):
            raise Unknown(self.instruction.line)
        def act(m):
            m.store(space, at(m), bits, [g(m) for g in gets])
        return self.releasing(at, act) if self.has("release") else act

    def op_selp(self, to, yes, no, which):
        which = self.get(which, "pred")
        return self.result_bits(to, lambda m, a, b: np.where(which(m), a, b), yes, no)

    def result_bits(self, to, function, *operands):
        """Returns a function of a machine that executes to = function(bits of the operands), whatever their type."""
        put = self.put(to)
        gets = [self.get(o, "b%d" % bits_of(self.kind)) for o in operands]
        return lambda m: put(m, function(m, *[g(m) for g in gets]))

    # ---- arithmetic ----
    def rounding(self):
        if self.kind[0] == "f" and "rn" not in self.parts:
            raise Unknown(self.instruction.line)

    def op_add(self, to, a, b):
        self.rounding()
        return self.result(to, np.add, a, b)

    def op_sub(self, to, a, b):
        self.rounding()
        return self.result(to, np.subtract, a, b)

    def op_mul(self, to, a, b):
        if self.has("wide"):
            return self.wide(to, a, b)
        if self.has("hi"):
            return self.high(to, a, b)
        self.rounding()
        return self.result(to, np.multiply, a, b)

    def op_mad(self, to, a, b, c):
        if self.has("wide"):
            return self.wide(to, a, b, c)
        if "lo" not in self.parts:
            raise Unknown(self.instruction.line)
        return self.result(to, lambda x, y, z: x * y + z, a, b, c)

    def wide(self, to, a, b, c=None):
        bits = 2 * bits_of(self.kind)
        kind = self.kind[0] + str(bits)
        own = SIGNED[bits] if kind[0] == "s" else UNSIGNED[bits]
        put, first, second = self.put(to), self.get(a, self.kind), self.get(b, self.kind)
        third = self.get(c or "0", kind)
        return lambda m: put(m, first(m).astype(own) * second(m).astype(own) + third(m))

    def high(self, to, a, b):
        bits = bits_of(self.kind)

        def top(x, y):
            x, y = np.broadcast_arrays(x, y)
            whole = [int(p) * int(q) >> bits & (1 << bits) - 1 for p, q in zip(x.tolist(), y.tolist())]
            return np.array(whole, UNSIGNED[bits])
        return self.result(to, top, a, b)

    def op_div(self, to, a, b):
        if self.kind[0] == "f":
            self.rounding()
            return self.result(to, np.divide, a, b)
        return self.quotient(to, a, b, False)

    def op_rem(self, to, a, b):
        return self.quotient(to, a, b, True)

    def quotient(self, to, a, b, rest):
        put, first, second = self.put(to), self.get(a, self.kind), self.get(b, self.kind)

        def act(m):
            x, y = np.broadcast_arrays(first(m), second(m))
            zero = y == 0
            if (zero & (m.mask if len(y) == m.lanes else True)).any():
                raise Wrong("division by 0")
            put(m, divided(x, np.where(zero, y.dtype.type(1), y), rest))
        return act

    def op_fma(self, to, a, b, c):
        self.rounding()
        if self.kind != "f32":
            raise Unknown(self.instruction.line)
        return self.result(to, round_fma, a, b, c)

    def op_min(self, to, a, b):
        return self.result(to, (lambda x, y: greater(x, y, True)) if self.kind[0] == "f" else np.minimum, a, b)

    def op_max(self, to, a, b):
        return self.result(to, (lambda x, y: greater(x, y, False)) if self.kind[0] == "f" else np.maximum, a, b)

    def op_neg(self, to, a):
        if self.kind[0] == "f":
            sign = UNSIGNED[bits_of(self.kind)](1 << bits_of(self.kind) - 1)
            return self.result_bits(to, lambda m, x: x ^ sign, a)
        return self.result(to, np.negative, a)

    def op_abs(self, to, a):
        if self.kind[0] == "f":
            rest = UNSIGNED[bits_of(self.kind)]((1 << bits_of(self.kind) - 1) - 1)
            return self.result_bits(to, lambda m, x: x & rest, a)
        return self.result(to, np.abs, a)

    def op_sqrt(self, to, a):
        self.rounding()
        return self.result(to, np.sqrt, a)

    def op_rcp(self, to, a):
        if self.has("approx") and self.has("ftz") and self.kind == "f32":
            return self.result(to, lambda x: flushed(np.float32(1) / flushed(x)), a)
        self.rounding()
        return self.result(to, lambda x: x.dtype.type(1) / x, a)

    def op_ex2(self, to, a):
        if not (self.has("approx") and self.has("ftz") and self.kind == "f32"):
            raise Unknown(self.instruction.line)
        return self.result(to, exp2_approx, a)

    # ---- bits ----
    def op_and(self, to, a, b):
        return self.result(to, LOGIC[self.parts[0]], a, b)

    op_or = op_xor = op_and

    def op_not(self, to, a):
        return self.result(to, np.invert, a)

    def op_shl(self, to, a, by):
        bits = bits_of(self.kind)
        by = self.get(by, "u32")
        return self.result_bits(to, lambda m, x: np.where(
            by(m) >= bits, UNSIGNED[bits](0), x << np.minimum(by(m), bits - 1).astype(UNSIGNED[bits])), a)

    def op_shr(self, to, a, by):
        bits, put, get, by = bits_of(self.kind), self.put(to), self.get(a, self.kind), self.get(by, "u32")

        def act(m):
            x, steps = get(m), by(m)
            out = x >> np.minimum(steps, bits - 1).astype(x.dtype)
            put(m, out if x.dtype.kind == "i" else np.where(steps >= bits, x.dtype.type(0), out))
        return act

    def op_bfi(self, to, a, b, start, count):
        bits = bits_of(self.kind)
        start, count = self.get(start, "u32"), self.get(count, "u32")
        if bits not in (32, 64):
            raise Unknown(self.instruction.line)

        def into(m, x, y):
            at, n = start(m).astype(np.uint64) & np.uint64(255), count(m).astype(np.uint64) & np.uint64(255)
            one = np.uint64(1)
            ones = np.where(n >= 64, ~np.uint64(0), (one << np.minimum(n, np.uint64(63))) - one)
            here = np.where(at >= 64, np.uint64(0), ones << np.minimum(at, np.uint64(63)))
            moved = x.astype(np.uint64) << np.minimum(at, np.uint64(63))
            return (y.astype(np.uint64) & ~here | moved & here).astype(UNSIGNED[bits])
        return self.result_bits(to, into, a, b)

    def op_prmt(self, to, a, b, which):
        which = self.get(which, "b32")

        def pick(m, x, y):
            both = x.astype(np.uint64) | y.astype(np.uint64) << np.uint64(32)
            selector, out = which(m).astype(np.uint64), np.uint64(0)
            for i in range(4):
                one = selector >> np.uint64(4 * i) & np.uint64(15)
                byte = both >> np.uint64(8) * (one & np.uint64(7)) & np.uint64(255)
                byte = np.where(one & np.uint64(8), (byte >> np.uint64(7)) * np.uint64(255), byte)
                out = out | byte << np.uint64(8 * i)
            return out.astype(np.uint32)
        return self.result_bits(to, pick, a, b)

    # ---- comparisons and conversions ----
    def op_setp(self, to, a, b):
        test = self.parts[1]
        self.met.add(test)
        put, first, second = self.put(to), self.get(a, self.kind), self.get(b, self.kind)
        if self.kind[0] != "f":
            compare = COMPARE[test]
            return lambda m: put(m, compare(first(m), second(m)))

        def act(m):
            x, y = first(m), second(m)
            odd = np.isnan(x) | np.isnan(y)
            if test in ("nan", "num"):
                put(m, odd if test == "nan" else ~odd)
            elif len(test) == 3:
                put(m, COMPARE[test[:2]](x, y) | odd)
            else:
                put(m, COMPARE[test](x, y) & ~odd)
        return act

    def op_cvt(self, to, *sources):
        into, of = self.parts[-2:]
        self.met.add(into)
        put, gets = self.put(to), [self.get(s, of) for s in sources]
        if into == "bf16x2":
            return lambda m: put(m, to_bf16(gets[0](m)) << np.uint32(16) | to_bf16(gets[1](m)))
        if into[0] == "f" and of[0] == "f" and bits_of(into) == bits_of(of):
            raise Unknown(self.instruction.line)
        if into[0] != "f" and of[0] == "f":
            if not self.has("rzi"):
                raise Unknown(self.instruction.line)
            return lambda m: put(m, self.truncated(gets[0](m), into))
        own = (FLOAT if into[0] == "f" else SIGNED if into[0] == "s" else UNSIGNED)[bits_of(into)]

        def act(m):
            value = gets[0](m).astype(own)
            if into[0] == "f":
                bits = bits_of(into)
                value = np.where(np.isnan(value), NAN[bits], value.view(UNSIGNED[bits]))
            put(m, value)
        return act

    def truncated(self, x, into):
        """Converts to integers, rounding towards 0. Values that are too large become the largest integer. NaN becomes
        0; for 64 bits, only its highest bit is set."""
        bits, signed = bits_of(into), into[0] == "s"
        own = (SIGNED if signed else UNSIGNED)[bits]
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        y = np.trunc(x.astype(np.float64))
        odd, above, below = np.isnan(y), y >= 2.0 ** (bits - signed), y < low
        out = np.where(odd | above | below, 0, y).astype(own)
        out = np.where(above, own(high), np.where(below, own(low), out))
        highest = np.array(1 << bits - 1, UNSIGNED[bits]).view(own)
        return np.where(odd, highest if 64 in (bits, 8 * x.dtype.itemsize) else own(0), out)

    # ---- between the lanes of a warp ----
    def op_shfl(self, to, a, by, clamp, named):
        mode = self.one_of(("up", "down", "bfly", "idx"))
        names = to.split("|")
        puts = [self.put(n) for n in names]
        get, by, clamp, named = (self.get(x, "b32") for x in (a, by, clamp, named))

        def act(m):
            here = m.members(named(m)).reshape(-1)
            lane, c = m.every % LANES, clamp(m).astype(np.int64)
            b, value = by(m).astype(np.int64) & 31, np.broadcast_to(get(m), m.lanes)
            segment, limit = c >> 8 & 31, c & 31
            first = lane & segment
            last = first | limit & ~segment
            source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | b & ~segment}[mode]
            inside = source >= last if mode == "up" else source <= last
            source = m.every - lane + np.where(inside, source, lane)
            if (m.mask & ~here[source]).any():
                raise Wrong("reads a lane that is not here")
            puts[0](m, value[source])
            for put in puts[1:]:
                put(m, inside)
        return act

    def op_vote(self, to, a, named):
        mode = self.one_of(("any", "all", "ballot"))
        put, named, unless = self.put(to), self.get(named, "b32"), a.startswith("!")
        get = self.get(a.lstrip("!"), "pred")

        def act(m):
            here = m.members(named(m))
            yes = (get(m) ^ unless).reshape(-1, LANES)
            if mode == "ballot":
                out = ((yes & here).astype(np.uint64) << LANE.astype(np.uint64)).sum(1).astype(np.uint32)
            else:
                out = (yes & here).any(1) if mode == "any" else (yes | ~here).all(1)
            put(m, np.repeat(out, LANES))
        return act

    def op_bar(self, named):
        """bar.warp.sync"""
        self.met.add("warp")
        named = self.get(named, "b32")

        def act(m):
            m.members(named(m))
            m.meet(m.active(), False)
        return act

    # ---- cp.async and tensor cores ----
    def op_cp(self, *operands):
        if self.parts[1] != "async":
            raise Unknown(self.instruction.line)
        if "bulk" in self.parts:
            return self.tensor_load(*operands)
        self.met.add("async")
        if self.has("commit_group"):
            return self.commit
        if self.has("wait_group"):
            but = int(operands[0])
            return lambda m: m.arrive(but)
        if self.has("wait_all"):
            return lambda m: m.arrive(None)
        if self.parts != ["cp", "async", "cg", "shared", "global"]:
            raise Unknown(self.instruction.line)
        self.met.update(self.parts)
        to, source, count = self.address(operands[0]), self.address(operands[1]), int(operands[2])
        valid = self.get(operands[3] if len(operands) > 3 else operands[2], "u32")
        return lambda m: m.copy_later(to(m), source(m), np.broadcast_to(valid(m), m.lanes), count)

    @staticmethod
    def commit(m):
        m.groups[m.mask] += 1

    def op_ldmatrix(self, to, source):
        """ldmatrix: matrix i has 8 rows of 8 words of 16 bits; lane 8 i + j provides the address of row j."""
        if set(self.parts) - {"trans"} != {"ldmatrix", "sync", "aligned", "m8n8", "x4", "shared", "b16"}:
            raise Unknown(self.instruction.line)
        self.met.update(self.parts)
        puts, at, turned = [self.put(n) for n in listed(to)], self.address(source), "trans" in self.parts

        def act(m):
            m.whole_warps()
            words = np.stack(m.load("shared", at(m), 16, 8), 1).reshape(-1, 4, 8, 8)
            if turned:
                words = words.transpose(0, 1, 3, 2)
            pairs = np.ascontiguousarray(words).view(np.uint32).reshape(-1, 4, LANES)
            for i, put in enumerate(puts):
                put(m, np.ascontiguousarray(pairs[:, i]).reshape(-1))
        return act

    def op_mma(self, to, a, b, c):
        """mma. In a fragment, lane 4 g + t has row g or column g, and each register has two terms, from number 2 t
        on."""
        if self.parts[1:] != "sync aligned m16n8k16 row col f32 bf16 bf16 f32".split():
            raise Unknown(self.instruction.line)
        self.met.update(self.parts)
        puts = [self.put(n) for n in listed(to)]
        first, second = [[self.get(n, "b32") for n in listed(x)] for x in (a, b)]
        third = [self.get(n, "f32") for n in listed(c)]

        def act(m):
            m.whole_warps()
            warps = m.lanes // LANES
            x, y = np.zeros((warps, 16, 16), np.float32), np.zeros((warps, 16, 8), np.float32)
            z = np.zeros((warps, 16, 8), np.float32)
            for half in range(2):
                for i, get in enumerate(first):
                    x[:, GROUP + i % 2 * 8, WITHIN + half + i // 2 * 8] = half_of(get(m), half, warps)
                for i, get in enumerate(second):
                    y[:, WITHIN + half + i * 8, GROUP] = half_of(get(m), half, warps)
            for i, get in enumerate(third):
                z[:, GROUP + i // 2 * 8, WITHIN + i % 2] = np.broadcast_to(get(m), m.lanes).reshape(warps, LANES)
            z = add_products(x, y, z)
            for i, put in enumerate(puts):
                put(m, np.ascontiguousarray(z[:, GROUP + i // 2 * 8, WITHIN + i % 2]).reshape(-1))
        return act

    def op_atom(self, to, at, value):
        space, bits = self.one_of(SPACES, "generic"), bits_of(self.kind)
        combine = np.add if self.has("add") else np.bitwise_or if self.has("or") else None
        if not combine or self.kind[0] == "f":
            raise Unknown(self.instruction.line)
        put, at, get = self.put(to), self.address(at), self.get(value, self.kind)
        return lambda m: put(m, m.atomic(combine, space, at(m), bits, get(m)))

    def op_red(self, at, value):
        return self.op_atom("_", at, value)


def half_of(pairs, half, warps):
    """Returns the first or the second bf16 in each lane's register, as float32."""
    pairs = np.broadcast_to(pairs, warps * LANES)
    word = pairs & np.uint32(0xffff0000) if half else pairs << np.uint32(16)
    return word.view(np.float32).reshape(warps, LANES)
