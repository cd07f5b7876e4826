"""Checks the kernels of gradckpt_cuda.cu as nvcc compiles them, without a device. An interpreter of PTX repeats
launches that the shim has recorded, and the results are compared.

    python3 tests/cuda/ptx/check.py PTX PROGRAM DUMP [PROGRAM DUMP ..] [-w] [-k NAME] [-n N] [-v]

PTX is nvcc's output. PROGRAM was built with tests/cuda/cuda_shim.h; DUMP is a folder of launches that this program
recorded (GCKPT_SHIM_DUMP). machine.py runs each launch again from the PTX, on the recorded memory. Then all memory must
equal the shim's, bit for bit, except that all NaN are equal (as float32, or as each of two bf16). A kernel of the PTX
without any launch is a failure, unless NEVER gives a reason. Finally, faults are put into kernels, and each fault must
be found (FAULTS).
    -w       checks only the kernels that differ for sm_90a (OTHER), with WGMMA_FAULTS; without -w, all other kernels
    -k NAME  checks only kernels whose names contain NAME, and puts no faults into them
    -n N     runs at most N launches of each kernel
    -v       prints a line for each instance of a template instead of a line for all
Prints a table; the exit status is 1 if anything is wrong."""
import collections
import os
import re
import struct
import subprocess
import sys
import time
import numpy as np
from machine import Launch
from program import Module, Unknown, Wrong

# Kernels that need no launch: (a pattern of names, the reason).
NEVER = []
# Kernels whose code for sm_90a is another than for other devices, for which those with wgmma are empty.
OTHER = r"wgmma|self_test"
SYNC, OF_WARP, NOTHING = r"\bbar\.sync", "bar.warp.sync -1", "membar.gl"
# Each fault: (description, pattern of instructions, pattern within these, replacement).
FAULTS = [
    ("a matrix is not transposed", r"ldmatrix.*\.trans\.", r"\.trans\.", "."),
    ("two registers of the first fragment are exchanged", r"mma\.sync",
     r"\{(%\w+), ?(%\w+), ?(%\w+), ?(%\w+)\}, \{(%\w+), ?(%\w+)\}", r"{\1,\3,\2,\4}, {\5,\6}"),
    ("two registers of the second fragment are exchanged", r"mma\.sync", r"\{(%\w+), ?(%\w+)\}", r"{\2,\1}"),
    ("a fma takes its factors' sum", r"fma\.rn\.f32", r"fma\.rn\.f32 (%\w+), (\w+|%\w+), (\w+|%\w+), .*",
     r"add.rn.f32 \1, \2, \3"),
    ("a barrier of a warp for one of a block", SYNC, r".*", OF_WARP),
    ("cp.async is not waited for", r"cp\.async\.wait_group \d", r"\d", "7"),
    ("a store of 4 bytes behind", r"st\.global\.(f|u)32", r"\[(%\w+)(\+\d+)?\]", r"[\1+1048576]"),
    ("a shared load of 4 bytes behind", r"ld\.shared\.f32", r"\[(%\w+)(\+\d+)?\]", r"[\1+262144]"),
    ("a shuffle from the wrong lane", r"shfl\.sync\.bfly", r"bfly", "idx"),
]
WGMMA_FAULTS = [
    ("a wgmma is not waited for", r"wgmma\.wait_group\.sync\.aligned 0", r"0$", "7"),
    ("one more group of wgmma runs than before", r"wgmma\.wait_group\.sync\.aligned 1", r"1$", "2"),
    ("registers are not fenced before wgmma", r"wgmma\.fence", r".*", NOTHING),
    ("the operands of wgmma are exchanged", r"wgmma\.mma_async", r"\}, ?(%\w+), ?(%\w+),", r"}, \2, \1,"),
    ("the second operand of wgmma has the other major", r"wgmma\.mma_async", r"([01])$", lambda x: str(1 - int(x[1]))),
    ("an mbarrier is not waited for", r"mbarrier\.try_wait", r"mbarrier\S* ([%\w]+),.*", r"setp.eq.u32 \1, 0, 0"),
    ("an mbarrier is waited for once", r"^@!.*\bbra.*@", r".*", NOTHING),
    ("an mbarrier expects less", r"arrive\.expect_tx", r"[%\w]+$", "64"),
    ("an initialised mbarrier is not fenced", r"fence\.(mbarrier_init|proxy)", r".*", NOTHING),
    ("coordinates of a box are exchanged", r"cp\.async\.bulk\.tensor", r"\{([%\w]+), ?([%\w]+)", r"{\2, \1"),
    ("a barrier of a warp for one of a block", SYNC, r".*", OF_WARP),
    ("a block does not wait for what another hands over", r"ld\.acquire", r"ld\S* (%\w+), .*", r"mov.b32 \1, 1"),
    ("a block hands over without .release", r"st\.release", r"\.release\.gpu", ""),
]
FEW = 100000
Recorded = collections.namedtuple("Recorded", "path name grid block dynamic arguments before after")


class Row:
    """Results of a kernel: launches, instructions, seconds, and number of wrong launches. sample is the launch into
    which faults are put: the largest with at most FEW instructions."""

    def __init__(self):
        self.launches = self.ran = self.wrong = 0
        self.seconds, self.sample = 0.0, None


def readable(names):
    """Returns {mangled name: name of the template instance}, written in the same way for nvcc and g++: without
    namespaces and parameters."""
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    out = []
    for text in shown.splitlines():
        text = re.sub(r"\(anonymous namespace\)::|_(INTERNAL|GLOBAL)_\w+::|^void ", "", text)
        text = re.sub(r"&\(?(\w+)(\([^()]*\)\))?\)?", r"\1", text)
        text = re.sub(r"\((\w+::)*\w+\)(\d)", r"\2", text)      # removes the type of an enumerator
        deep = 0
        for end, letter in enumerate(text + "("):
            deep += (letter == "<") - (letter == ">")
            if letter == "(" and not deep:
                break
        out.append(text[:end])
    return dict(zip(names, out))


def symbols_of(program):
    """Returns {address relative to cuda_shim: kernel name as from readable()} for a program."""
    lines = [x.split() for x in subprocess.run(["nm", program], capture_output=True, text=True, check=True)
             .stdout.splitlines()]
    places = {x[2]: int(x[0], 16) for x in lines if len(x) == 3}
    names = readable([name for name in places if "_kernel" in name or "_GLOBAL_" in name])
    return {places[name] - places["cuda_shim"]: shown for name, shown in names.items()}


def recorded(path, symbols):
    with open(path, "rb") as file:
        head = file.readline().decode().split(None, 9)
        numbers = [int(x) for x in head[:9]]
        arguments = [file.read(*struct.unpack("<Q", file.read(8))) for _ in range(numbers[8])]
        sizes = {}
        while True:
            at, = struct.unpack("<Q", file.read(8))
            if not at:
                break
            sizes[at], = struct.unpack("<Q", file.read(8))
        before = {at: np.full(size, 0xff, np.uint8) for at, size in sizes.items() if size}
        chunks(file, before)
        after = {at: content.copy() for at, content in before.items()}
        chunks(file, after)
    return Recorded(path, symbols[numbers[0]], tuple(numbers[1:4]), tuple(numbers[4:7]), numbers[7], arguments, before,
                    after)


def chunks(file, memory):
    """Reads chunks of memory from a recorded launch into `memory`."""
    bases = np.array(sorted(memory), np.uint64)
    while True:
        at, = struct.unpack("<Q", file.read(8))
        if not at:
            return
        size, = struct.unpack("<Q", file.read(8))
        base = int(bases[np.searchsorted(bases, at, "right") - 1])
        memory[base][at - base:at - base + size] = np.frombuffer(file.read(size), np.uint8)


def different(a, b):
    """Returns the offsets of the 4-byte words in which a and b differ, except words that are NaN in both: as float32,
    as part of a float64, or as each of two bf16."""
    at = np.nonzero(a != b)[0]
    if not len(at):
        return at
    words = np.unique(at // 4)
    room = (len(a) + 7) // 8 * 8
    x, y = (np.concatenate([v, np.zeros(room - len(v), np.uint8)]) for v in (a, b))
    wide = np.isnan(x.view(np.float64)[words // 2]) & np.isnan(y.view(np.float64)[words // 2])
    x, y = x.view(np.uint32)[words], y.view(np.uint32)[words]
    same = np.isnan(x.view(np.float32)) & np.isnan(y.view(np.float32)) | wide
    halves = np.ones(len(words), bool)
    for shift in (0, 16):
        p, q = x >> np.uint32(shift) & np.uint32(0xffff), y >> np.uint32(shift) & np.uint32(0xffff)
        halves &= (p == q) | ((p & 0x7fff) > 0x7f80) & ((q & 0x7fff) > 0x7f80)
    return words[~(same | halves)] * 4


def run(module, kernel, of):
    """Runs a recorded launch. Returns the number of instructions, and an error text or None."""
    try:
        launch = Launch(module, kernel, of.grid, of.block, of.dynamic, of.arguments, of.before.items())
        ran = launch.run()
    except (Wrong, Unknown) as error:
        return 0, "%s: %s" % (type(error).__name__, error)
    for base, content in of.after.items():
        here = launch.memory.piece(base)
        at = different(here, content)
        if len(at):
            word = slice(int(at[0]), int(at[0]) + 4)
            return ran, "%d words differ, the first is %s, of the shim %s" % (
                len(at), here[word].tobytes()[::-1].hex(), content[word].tobytes()[::-1].hex())
    return ran, None


def run_all(module, pairs, rows, names, most):
    """Runs all launches of the kernels that have a Row in `rows`, and fills the rows. Prints errors as they occur."""
    kernels = {shown: name for name, shown in names.items()}
    if len(kernels) != len(names):
        raise Unknown("kernels of one name")
    for program, folder in pairs:
        symbols = symbols_of(program)
        for file in sorted(os.listdir(folder)):
            of = recorded(os.path.join(folder, file), symbols)
            if of.name not in kernels:
                raise Unknown("a kernel that the PTX has not: " + of.name)
            name = kernels[of.name]
            if name in rows and rows[name].launches < most:
                add(rows[name], module, module.kernels[name], of,
                    lambda of=of.path, symbols=symbols: recorded(of, symbols))


def add(row, module, kernel, of, again):
    """Runs one launch and adds its results to the row. again() reads the launch once more from its file."""
    began = time.process_time()
    ran, wrong = run(module, kernel, of)
    row.launches += 1
    row.ran += ran
    row.seconds += time.process_time() - began
    if wrong:
        row.wrong += 1
        print("WRONG %s, %s, grid %s: %s" % (of.name, of.path, of.grid, wrong), flush=True)
    elif not row.sample or ran < row.sample[0] > FEW or row.sample[0] < ran <= FEW:
        row.sample = ran, again


def seeded(module, rows, names, faults):
    """Puts each of the faults into kernels. Returns the number of faults that are not found."""
    missed = 0
    for fault, where, what, by in faults:
        said = seed(module, rows, names, where, what, by)
        print("fault: %s: %s" % (fault, said or "NOT FOUND"), flush=True)
        missed += not said
    return missed


def seed(module, rows, names, where, what, by, kernels=12, places=6):
    """Puts a fault into kernels that ran such an instruction, beginning with the kernel whose sample is shortest.
    Returns the first error that the fault causes, or None."""
    having = [name for name, row in rows.items() if row.sample and any(
        re.search(where, line) for line in module.kernels[name].code)]
    for name in sorted(having, key=lambda n: rows[n].sample[0])[:kernels]:
        kernel, of = module.kernels[name], rows[name].sample[1]()
        ran = [i for i, text in enumerate(kernel.code) if re.search(where, text) and kernel.built.built[i]]
        for number in ran[:places]:
            line = re.sub(what, by, kernel.code[number], count=1)
            if line == kernel.code[number]:
                continue
            _, wrong = run(module, kernel.changed(number, line), of)
            if wrong and not wrong.startswith("Unknown"):
                return "%s: %s" % (names[name], wrong)
    return None


def table(rows, names, each):
    """Prints the results of each kernel: of all instances of a template together, or (if `each`) of each instance."""
    groups = collections.OrderedDict()
    for name, row in rows.items():
        groups.setdefault(names[name] if each else names[name].partition("<")[0], []).append(row)
    print("%-44s %9s %8s %12s %7s %s" % ("kernel", "instances", "launches", "instructions", "seconds", "differences"))
    for name, of in groups.items():
        print("%-44s %9s %8d %12d %7.1f %d" % (
            name, "%d/%d" % (sum(r.launches > 0 for r in of), len(of)), sum(r.launches for r in of),
            sum(r.ran for r in of), sum(r.seconds for r in of), sum(r.wrong for r in of)))
    print("all: %d of %d kernels, %d launches, %d instructions, %.0f s, %d differences" % (
        sum(r.launches > 0 for r in rows.values()), len(rows), sum(r.launches for r in rows.values()),
        sum(r.ran for r in rows.values()), sum(r.seconds for r in rows.values()),
        sum(r.wrong for r in rows.values())))


def option(arguments, name, otherwise):
    if name not in arguments:
        return otherwise
    at = arguments.index(name)
    value = arguments[at + 1]
    del arguments[at:at + 2]
    return value


def main(arguments):
    each, wgmma = "-v" in arguments, "-w" in arguments
    arguments = [a for a in arguments if a not in ("-v", "-w")]
    only, most = option(arguments, "-k", ""), int(option(arguments, "-n", 1 << 30))
    module = Module(arguments[0])
    names = readable(list(module.kernels))
    rows = {name: Row() for name in names if only in names[name] and bool(re.search(OTHER, names[name])) == wgmma}
    run_all(module, list(zip(arguments[1::2], arguments[2::2])), rows, names, most)
    table(rows, names, each)
    bad = sum(row.wrong for row in rows.values())
    missing = [names[name] for name, row in rows.items() if not row.launches]
    for name in missing:
        why = reason(name)
        print("never launched: %s: %s" % (name, why or "WITHOUT A REASON"))
        bad += not why
    if only:
        return bad > 0
    for name in rows:
        if names[name] not in missing and reason(names[name]):
            print("NEVER has what is launched: " + names[name])
            bad += 1
    return bad + seeded(module, rows, names, WGMMA_FAULTS if wgmma else FAULTS) > 0


def reason(name):
    return next((why for pattern, why in NEVER if re.fullmatch(pattern, name)), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
