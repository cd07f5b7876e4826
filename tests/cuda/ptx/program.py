"""Parses PTX into kernels with parameters, registers, memory and instructions."""
import collections
import re

Instruction = collections.namedtuple("Instruction", "line guard unless parts operands")


class Unknown(Exception):
    """Raised for an instruction, modifier or type that the model does not support."""


class Wrong(Exception):
    """Raised if a kernel does something forbidden, such as an invalid access or a race."""


COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
# A kernel ends at a brace that a directive or the end of the file follows; blocks within it are followed by more.
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{}]*)\n\{\n(.*?)\n\}\n(?=\s*(?:\.(?!pragma|loc|reg)|\Z))", re.S)
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr\s+)?(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?"
                       r"([\w$]+)(?:\[(\d+)\])?\s*$")
TABLE = re.compile(r"^(?:\.visible |\.weak )?\.(?:global|const) \.align \d+ \.(\w+) ([\w$]+)(?:\[(\d+)\])?"
                   r"(?: = \{?([^;}]*)\}?)?;", re.M)
PLACE = re.compile(r"\.(?:shared|local)\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?")
DYNAMIC = re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[\]")
GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
TARGET = re.compile(r"(\bbra(?:\.uni)?\s+)([\w$]+)$")
# Registers of a wgmma: its result, and its first operand if that is in registers
FRAGMENTS = re.compile(r"\bwgmma\.mma_async\S*\s+(\{[^{}]*\})\s*,\s*(\{[^{}]*\})?")


def bits_of(kind):
    """Returns the bits of a type: 32 for "s32" and "bf16x2", 1 for a predicate."""
    if kind == "pred":
        return 1
    digits = re.sub(r"\D", "", kind.replace("x2", ""))
    if not digits:
        raise Unknown("type " + kind)
    return int(digits) * (2 if kind.endswith("x2") else 1)


def parts_of(text, around="{[", until="}]"):
    """Splits a text at commas, except commas within brackets."""
    out, deep, start = [], 0, 0
    for at, letter in enumerate(text):
        deep += (letter in around) - (letter in until)
        if letter == "," and not deep:
            out.append(text[start:at].strip())
            start = at + 1
    return out + [text[start:].strip()] if text.strip() else out


def listed(text):
    """Returns the list of registers in braces, or a list of the single register."""
    return parts_of(text[1:-1]) if text.startswith("{") else [text]


class Kernel:
    """A kernel, parsed when it is first used. registers: bits by name; shared and local variables; labels; code as
    text; fragments: by register, the tuples of registers of wgmma instructions that it is in."""

    def __init__(self, name, parameters, body):
        self.name, self.body, self.code, self.built = name, body, None, None
        self.parameters = []
        for text in parts_of(parameters):
            found = PARAMETER.match(text)
            if not found:
                raise Unknown("parameter " + text)
            kind, at, count = found.groups()
            self.parameters.append((at, bits_of(kind) // 8 * int(count or 1)))

    def read(self):
        if self.code is not None:
            return
        self.registers, self.shared, self.local, self.labels = {}, {}, {}, {}
        self.static = self.local_bytes = 0
        self.code, self.blocks, blocks, branches = [], 0, [""], []
        for text in self.body.split(";"):
            self.statement(" ".join(text.split()), blocks, branches)
        for at, around in branches:     # a branch goes to the label in the innermost block around it that has such one
            name = TARGET.search(self.code[at])[2]
            label = next(name + block for block in reversed(around) if name + block in self.labels)
            self.code[at] = TARGET.sub(lambda found: found[1] + label, self.code[at])
        self.fragments = collections.defaultdict(set)
        for found in FRAGMENTS.finditer("\n".join(self.code)):
            for fragment in (tuple(listed(text)) for text in found.groups() if text):
                for name in fragment:
                    self.fragments[name].add(fragment)

    def statement(self, text, blocks, branches):
        """Reads a statement, with labels and braces before it. blocks: suffixes of labels in the blocks around it;
        branches: (number of the instruction, blocks around it)."""
        while True:
            text = text.lstrip()
            label = re.match(r"(\$?[\w$]+):\s*", text)
            if text.startswith("{"):
                self.blocks += 1
                blocks.append("@%d" % self.blocks)
                text = text[1:]
            elif text.startswith("}"):
                blocks.pop()
                text = text[1:]
            elif label:
                self.labels[label.group(1) + blocks[-1]] = len(self.code)
                text = text[label.end():]
            else:
                break
        if text.startswith(".reg"):
            self.declare(text)
        elif text.startswith((".shared", ".local")):
            self.place(text)
        elif text and not text.startswith((".pragma", ".loc")):
            if TARGET.search(text):
                branches.append((len(self.code), list(blocks)))
            self.code.append(text)

    def declare(self, text):
        _, kind, names = text.split(None, 2)
        for name in parts_of(names):
            many = re.match(r"(%[\w$]+)<(\d+)>", name)
            for each in [many.group(1) + str(i) for i in range(int(many.group(2)))] if many else [name]:
                if self.registers.setdefault(each, bits_of(kind[1:])) != bits_of(kind[1:]):
                    raise Unknown("two registers %s of different types, in blocks of %s" % (each, self.name))

    def place(self, text):
        align, kind, name, count = PLACE.match(text).groups()
        size, align = bits_of(kind) // 8 * int(count or 1), int(align)
        if text.startswith(".shared"):
            self.shared[name] = self.static = (self.static + align - 1) // align * align
            self.static += size
        else:
            self.local[name] = self.local_bytes = (self.local_bytes + align - 1) // align * align
            self.local_bytes += size

    def changed(self, number, line):
        """Returns a copy of the kernel in which one line is replaced."""
        other = Kernel(self.name, "", "")
        other.__dict__.update(self.__dict__)
        other.built = None
        other.code = list(self.code)
        other.code[number] = line
        return other


def instruction(text):
    line, guard = text, GUARD.match(text)
    text = text[guard.end():] if guard else text
    name, _, rest = text.partition(" ")
    return Instruction(line, guard and guard.group(2), bool(guard and guard.group(1)), name.split("."), parts_of(rest))


class Module:
    """A PTX file: kernels by name, tables as bytes by name, and dynamic shared memory: alignments by name."""

    def __init__(self, path):
        with open(path) as file:
            text = COMMENT.sub("", file.read())
        self.kernels = {found[1]: Kernel(found[1], found[2], found[4]) for found in ENTRY.finditer(text)}
        self.tables = {}
        for kind, name, count, values in TABLE.findall(text):
            size = bits_of(kind) // 8
            numbers = [int(v, 0) for v in values.split(",")] if values else []
            numbers += [0] * (int(count or 1) - len(numbers))
            self.tables[name] = b"".join((v & (1 << 8 * size) - 1).to_bytes(size, "little") for v in numbers)
        self.dynamic = {name: int(align) for align, name in DYNAMIC.findall(text)}
        if len(self.kernels) != len(re.findall(r"\.entry\s", text)) or re.search(r"^\.func", text, re.M):
            raise Unknown("a kernel or function that was not read")
