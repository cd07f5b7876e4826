#!/usr/bin/env python3
"""Measures whether the tests notice wrong code: makes mutants of src/, one small change each, and runs the tests.

    python3 tests/mutants/mutants.py --layer plan --count 20 --seed 1
    python3 tests/mutants/mutants.py --file src/bf16/kernels.c --count 10 --minutes 5
    python3 tests/mutants/mutants.py --count 600 --jobs 2    all layers, by WEIGHTS, two mutants at a time
    python3 tests/mutants/mutants.py --again --rest          survivors, by today's tests and those of other layers
    python3 tests/mutants/mutants.py --file src/plan/tensors.c --line 62 --tests test_offload   one line, by one test
    python3 tests/mutants/mutants.py --layer kernels --widest    code of AVX-512 only, if the processor has it
    python3 tests/mutants/mutants.py --table                 by layer: tried, killed, explained, open, the same object
    python3 tests/mutants/mutants.py --survivors             survivors to be read, as entries of explained.txt
    python3 tests/mutants/mutants.py --stale                 entries of explained.txt whose mutant src/ no longer has

A mutant is made in a copy (build/mutants/tree; src/ is never touched), compiled as the Makefile compiles that file, and
linked before build/libsrc.a, whose own object of it is then omitted. For a function of a header, the files that name it
are compiled; for num, the tests that include it; for kernels, the widest instruction set of this machine (--widest
selects what no narrower one compiles), and AMX as test_amx has it, its instructions written out. Code that this machine
does not compile (AVX-512 or NEON elsewhere, other systems) is not tried. If the object has the same bytes, nothing is
run. Otherwise the tests of the file's layer and of tests/integration run in build/mutants/run, those first that have
killed most mutants of the layer in the least time, for --total seconds of their normal time. The first that fails,
crashes, or takes over 5 times its time kills the mutant.

build/mutants/results.tsv keeps the results, so that an interrupted run continues: the same layer and seed select the
same mutants. A mutant that some tests have not seen (--total, --tests) is "open", a survivor until --again. A mutant
that does not compile is not counted. tests/mutants/explained.txt lists survivors that somebody has read: those whose
change cannot be observed or need not be tested, and, with "open", those that need a test or a longer look, which
--survivors and --again know without build/. Needs Python's own library, make and a C compiler; one run at a time.
"""
import argparse
import collections
import concurrent.futures
import fcntl
import os
import random
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
AT = "build/mutants"
RESULTS = AT + "/results.tsv"
EXPLAINED = "tests/mutants/explained.txt"
# Without --layer or --file, mutants are selected from all layers in these proportions.
WEIGHTS = {"base": 2, "num": 2, "store": 2, "graph": 1, "ops": 4, "cpu": 5, "plan": 6, "search": 5, "planner": 3,
           "run": 6, "check": 1, "files": 5, "export": 2, "kernels": 5}
# Folders with the tests of a layer, where they are not in the folder of the same name.
FOLDERS = {"kernels": ["cpu", "bf16", "ops", "attention", "images", "recurrent", "quant"], "cpu": ["cpu", "bf16", "ops"],
           "base": ["graph", "store"], "num": ["num", "cpu"], "check": ["run", "store"], "planner": ["tools", "search"],
           "notes": ["files"], "training": ["run"]}
# A test that includes files of src/: these files are compiled as a part of the test, so it is linked without their
# objects.
TEST_AMX = "tests/bf16/test_amx.c", ["-Itests", "-Ibuild/api", "-DPLAN_CHECK_LINKED"], "build/o/test_amx.o"
TIMES = 5           # times its normal time: then a test is stopped
LEAST = 2           # seconds that any test may take
MEMORY = 12 << 30   # bytes of addresses that a test may have
FILE = 8 << 30      # bytes of a file that it may write
STOPPED = threading.Event()     # later results do not count: compilers and tests may have been stopped as well


# ---- parsing C, as far as needed: tokens, and the places of functions ----
TOKEN = re.compile(r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<hash>^[ ]*\#[^\n]*(?:\\\n[^\n]*)*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)|(?P<name>[A-Za-z_]\w*)
    |(?P<op>\.\.\.|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|[^\s\w])""",
                   re.S | re.M | re.X)
Token = collections.namedtuple("Token", "kind text start end")
Mutant = collections.namedtuple("Mutant", "file line function operator before after start end text")
WORDS = {"if", "for", "while", "switch", "return", "sizeof", "else", "do", "case", "default", "break", "continue",
         "goto", "defined", "typedef", "struct", "enum", "union", "extern", "static", "const"}


def tokens_of(text, start=0, end=None):
    """Returns the tokens without comments. The body of a #define is split into tokens; another # line is one token."""
    out = []
    at, end = start, len(text) if end is None else end
    while at < end:
        found = TOKEN.search(text, at, end)
        if not found:
            break
        at = found.end()
        if found.lastgroup != "comment":
            out.append(Token(found.lastgroup, found.group(), found.start(), found.end()))
    return out


def pairs_of(tokens):
    """Returns for each bracket the index of its partner."""
    pair, stack = {}, []
    for i, t in enumerate(tokens):
        if t.text in ("(", "[", "{"):
            stack.append(i)
        elif t.text in (")", "]", "}") and stack:
            pair[i] = stack.pop()
            pair[pair[i]] = i
    return pair


def functions_of(text):
    """Yields (name, tokens, is it code) for bodies of functions, initialisers of tables and bodies of macros."""
    tokens = tokens_of(text)
    pair = pairs_of(tokens)
    i = head = 0
    while i < len(tokens):
        t = tokens[i]
        if t.kind == "hash":
            macro = re.match(r" *# *define +(\w+)(\([^)]*\))?(.*)", t.text, re.S)
            if macro and macro.group(3).strip(" \\\n"):
                body = t.start + macro.start(3)
                yield macro.group(1), tokens_of(text.replace("\\\n", " \n"), body, t.end), False
            head = i + 1
        elif t.text == ";":
            head = i + 1
        elif t.text == "{" and i in pair:
            before = [tokens[k] for k in range(head, i) if not any(
                a < k <= pair[a + 1] for a in range(head, i) if tokens[a].text == "__attribute__")]
            before = [t for t in before if t.text != "__attribute__"]
            names = [b.text for b in before if b.kind == "name"]
            called = [b.text for b, after in zip(before, before[1:]) if b.kind == "name" and after.text in "([=)"]
            if names and names[0] not in ("struct", "enum", "union", "typedef") and called:
                name = called[1] if called[0] == "V" and len(called) > 1 else called[0]
                yield name, tokens[i:pair[i] + 1], before[-1].text != "="
            i = pair[i]
            head = i + 1
        i += 1


# ---- operators of mutation: each yields (start, end, replacement) ----
SWITCH = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SUMS = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "+=": "-=", "-=": "+=", "*=": "+=", "<<": ">>", ">>": "<<",
        "&": "|", "|": "&", "|=": "&=", "&=": "|=", "++": "--", "--": "++"}
LOGIC = {"&&": "||", "||": "&&"}


def spaced(text, t):
    return text[t.start - 1].isspace() and text[t.end:t.end + 1].isspace()


def of_operators(text, tokens):
    for t in tokens:
        if t.kind != "op":
            continue
        if t.text in SWITCH and spaced(text, t):
            yield "relation", t.start, t.end, SWITCH[t.text]
        elif t.text in LOGIC and spaced(text, t):
            yield "logic", t.start, t.end, LOGIC[t.text]
        elif t.text in SUMS and (spaced(text, t) or t.text in ("++", "--")):
            yield "arithmetic", t.start, t.end, SUMS[t.text]


def of_constants(text, tokens):
    for i, t in enumerate(tokens):
        if t.kind != "number" or (tokens[i - 1].text == "[" and i + 2 < len(tokens) and
                                  tokens[i + 1].text == "]" and tokens[i + 2].text in ";,="):
            continue        # a longer array behaves the same
        whole = re.fullmatch(r"(0[xX](?=[0-9a-fA-F])|(?=\d+[uUlL]*$))([0-9a-fA-F]+)([uUlL]*)", t.text)
        if whole:
            base, digits, suffix = whole.group(1) or "", whole.group(2), whole.group(3)
            n = int(digits, 16 if base else 10)
            for other in (n + 1, n - 1):
                if other >= 0:
                    shown = "%s%x" % (base, other) if base else str(other)
                    yield "bits" if base else "constant", t.start, t.end, shown + suffix
        elif "x" not in t.text.lower():
            number = re.fullmatch(r"([0-9.]+)((?:[eE][-+]?\d+)?[fFlL]?)", t.text)
            if number:
                digits = number.group(1)
                last = max(k for k, c in enumerate(digits) if c.isdigit())
                changed = digits[:last] + str((int(digits[last]) + 1) % 10) + digits[last + 1:]
                yield "constant", t.start, t.end, changed + number.group(2)


def split(tokens, start, end, at):
    """Parts of tokens[start:end] between `at` outside of brackets, as (first, last) places in the text."""
    deep, first, parts = 0, start, []
    for i in range(start, end + 1):
        if i == end or (tokens[i].text == at and deep == 0):
            if i > first:
                parts.append((tokens[first].start, tokens[i - 1].end))
            first = i + 1
        elif tokens[i].text in "([{":
            deep += 1
        elif tokens[i].text in ")]}":
            deep -= 1
    return parts


def of_heads(text, tokens, pair):
    """Conditions and loops."""
    for i, t in enumerate(tokens[:-1]):
        if tokens[i + 1].text != "(" or i + 1 not in pair:
            continue
        close = pair[i + 1]
        inner = text[tokens[i + 1].end:tokens[close].start]
        if t.text in ("if", "while"):
            yield "negated", tokens[i + 1].end, tokens[close].start, "!(%s)" % inner
        if t.text == "if":
            yield "body", tokens[i + 1].end, tokens[close].start, "(%s) && 0" % inner
        if t.text == "for":
            parts = split(tokens, i + 2, close, ";")
            if len(parts) == 3:
                (a, b), (c, d), _ = parts
                if re.search(r"= 0$", text[a:b]):
                    yield "loop", b - 1, b, "1"
                if re.search(r" <=? ", text[c:d]) and "&&" not in text[c:d] and "||" not in text[c:d]:
                    yield "loop", d, d, " - 1"
        elif t.kind == "name" and t.text not in WORDS and not re.search("(?i)max|min|assert", t.text):
            parts = split(tokens, i + 2, close, ",")
            for (a, b), (c, d) in zip(parts, parts[1:]):
                if text[a:b] != text[c:d]:
                    yield "arguments", a, d, text[c:d] + text[b:c] + text[a:b]


DECLARED = re.compile(r"(?:\w+ )*[A-Za-z_]\w*(?: +\**| *\*+ *)[A-Za-z_]\w* *(?:=|;|\[|,|\()")


def of_statements(text, tokens, pair):
    heads = {pair[i + 1] for i, t in enumerate(tokens[:-1])
             if t.text in ("if", "for", "while", "switch") and tokens[i + 1].text == "(" and i + 1 in pair}
    for i, t in enumerate(tokens[:-1]):
        if not (t.text in ("{", "}", ";", "else", "do") or i in heads) or tokens[i + 1].text in ("{", "}", ";"):
            continue
        first = tokens[i + 1]
        end = i + 1
        while end < len(tokens) and tokens[end].text != ";":
            end = pair[end] + 1 if tokens[end].text in "([{" and end in pair else end + 1
        if end >= len(tokens) or any(b.text == "{" for b in tokens[i + 1:end]):
            continue
        said = text[first.start:tokens[end].end]
        if first.text == "return" and end > i + 2:
            yield "result", tokens[i + 2].start, tokens[end].start, "!(%s)" % text[tokens[i + 2].start:tokens[end].start]
        elif first.text in ("break", "continue") or (first.text not in WORDS and first.kind in ("name", "op") and
                                                     not DECLARED.match(said)):
            if not (t.text == ";" and inside_for(tokens, pair, i)):
                yield "removed", first.start, tokens[end].start, "\n" * said.count("\n")


def inside_for(tokens, pair, i):
    deep = 0
    while i >= 0:
        if tokens[i].text in (")", "]", "}"):
            i = pair.get(i, 0)
        elif tokens[i].text == "(":
            return True
        elif tokens[i].text == "{":
            return False
        i -= 1
    return False


def one_line(text):
    return re.sub(r"\s+", " ", text.replace("\\\n", " ")).strip()


def mutants_of(file):
    """All mutants of a file, by operator."""
    with open(file, encoding="utf-8") as f:
        text = f.read()
    by_operator = collections.defaultdict(list)
    met = collections.Counter()
    for name, tokens, code in functions_of(text):
        pair = pairs_of(tokens)
        asserted = [(tokens[i].start, tokens[pair[i + 1]].end) for i, t in enumerate(tokens[:-1])
                    if re.search("(?i)assert", t.text) and i + 1 in pair]
        found = list(of_operators(text, tokens)) + list(of_constants(text, tokens))
        if code:
            found += list(of_heads(text, tokens, pair)) + list(of_statements(text, tokens, pair))
        lines = collections.Counter()       # the same line again in the same function: "name 2"
        which = {}
        for operator, start, end, instead in sorted(found, key=lambda m: m[1:]):
            if any(a <= start < b for a, b in asserted):
                continue
            first = text.rfind("\n", 0, start) + 1
            last = text.find("\n", end)
            before = one_line(text[first:last])
            after = one_line(text[first:start] + instead + text[end:last])
            if before == after:
                continue
            if (first, last) not in which:
                lines[before] += 1
                which[first, last] = lines[before]
            where = name if which[first, last] == 1 else "%s %d" % (name, which[first, last])
            mutant = Mutant(file, text.count("\n", 0, start) + 1, where, operator, before, after, start, end, instead)
            if met[key_of(mutant)] == 0:
                by_operator[operator].append(mutant)
            met[key_of(mutant)] += 1
    return by_operator, text


def key_of(m):
    return m.file, m.function, m.before, m.after


# ---- builds ----
def make(*targets):
    subprocess.run(["make", "-s", "-j1"] + list(targets), check=True,
                   env=dict(os.environ, MAKEFLAGS=""), stdout=sys.stderr)


def compiler():
    """The words of a compilation, as the Makefile keeps them, without warnings (they make no code)."""
    with open("build/options", encoding="utf-8") as f:
        words = f.read().split()
    return [w for w in words if not w.startswith("-W") and w != "-pedantic"]


def object_of(test):
    return "build/o/%s.o" % test.partition(":")[0]


def is_here(flag):
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return flag in f.read().split()
    except OSError:
        return False


def widest_isa():
    return 3 if is_here("avx512bw") else 2 if is_here("avx2") else 0


def of_kernels(isa=None):
    isa = widest_isa() if isa is None else isa
    return "src/kernels/all.c", ["-DGCKPTI_ISA=%d" % isa], "build/src/kernels/%d.o" % isa


class Builder:
    """Objects and programs of one file of src/, in a folder of build/mutants."""

    def __init__(self, file, at):
        self.file, self.at = file, at
        self.words = compiler()
        self.with_ld = self.words + ["-fuse-ld=" + n for n in ("lld", "gold") if shutil.which("ld." + n)][:1]
        self.copy = at + "/tree/" + file[len("src/"):]
        os.makedirs(os.path.dirname(self.copy), exist_ok=True)
        self.objects, self.own = self.wanted(), {}

    def wanted(self):
        """(source, options, object of libsrc.a, or of a test): what a change in the file changes."""
        if self.file == "src/bf16/amx.c":
            return [TEST_AMX]
        if self.file.startswith("src/kernels/"):
            return [of_kernels()]
        if self.file.endswith(".c"):
            by_itself = self.copy, [], "build/" + self.file[:-1] + "o"
            return [by_itself, TEST_AMX] if self.file == "src/cpu/kernels.c" else [by_itself]
        return None         # a header: see objects_of

    def objects_of(self, mutant):
        """For a header: the files that name the mutant's function, or a function or macro of a header that names it."""
        if self.objects:
            return self.objects
        names = {mutant.function.split()[0]}
        names |= {"gckpti_" + n for n in names}     # num: V(name) of one lane
        bodies = []
        for folder, _, files in os.walk("src"):
            for name in sorted(files):
                if name.endswith(".h") and "/cuda" not in folder:
                    with open(folder + "/" + name, encoding="utf-8") as f:
                        bodies += [(n, {t.text for t in tokens if t.kind in ("name", "hash")})
                                   for n, tokens, _ in functions_of(f.read())]
        grown = True
        while grown:
            grown = False
            for name, said in bodies:
                if name not in names and said & names:
                    names |= {name, "gckpti_" + name}
                    grown = True
        found = []
        word = re.compile(r"\b(?:%s)\b" % "|".join(sorted(names)))
        for layer, files in layers().items():
            for file in files:
                if not file.endswith(".c") or layer == "kernels":
                    continue
                with open(file, encoding="utf-8") as f:
                    if word.search(f.read()):
                        found.append((file, [], "build/" + file[:-1] + "o"))
        if any(word.search(open(f, encoding="utf-8").read()) for f in layers()["kernels"]):
            found.insert(0, of_kernels())       # most mutants that do not compile fail there
        return found

    def readers(self):
        """For a header: a file that includes it, and the kernels."""
        found = []
        for files in layers().values():
            for file in files:
                depends = "build/" + file[:-1] + "o.d"
                if os.path.exists(depends) and " %s " % self.file in open(depends, encoding="utf-8").read():
                    return [(file, [], ""), of_kernels()]
        return found + [of_kernels()]

    def regions(self, text, widest):
        """[(where it begins, is it compiled here)] of the parts of a file that #if and its like make; `widest`: and is it
        not compiled for the narrower instruction set."""
        marks = [m.end() for m in re.finditer(r"^ *# *(?:if|el|end)(?:[^\n]*\\\n)*[^\n]*\n", text, re.M)]
        parts = [text[a:b] for a, b in zip([0] + marks, marks + [len(text)])]
        with open(self.copy, "w", encoding="utf-8") as f:
            f.write("".join("%s\nGCKPTI_REGION_%d\n" % (part, n) for n, part in enumerate(parts[:-1], 1)) + parts[-1])
        sources = self.objects or self.readers()
        try:
            seen = {"0"} | self.marks_in(sources)
            if widest:
                seen -= {"0"} | self.marks_in([s for s in sources if s[0] != of_kernels()[0] and s is not TEST_AMX] +
                                              [of_kernels(isa) for isa in range(widest_isa()) if isa != 1])
        finally:
            os.remove(self.copy)
        return [(mark, str(n) in seen) for n, mark in enumerate([0] + marks)]

    def marks_in(self, sources):
        seen = set()
        for source, options, _ in sources:
            said = subprocess.run(self.words + ["-I%s/tree" % self.at, "-Isrc", "-E", "-P"] + options + [source],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
            seen |= set(re.findall(r"GCKPTI_REGION_(\d+)", said.decode("utf-8", "replace")))
        return seen

    def build(self, mutant, text):
        """Objects that differ from those of libsrc.a; None where it does not compile."""
        with open(self.copy, "w", encoding="utf-8") as f:
            f.write(text[:mutant.start] + mutant.text + text[mutant.end:])
        made = []
        try:
            for n, (source, options, there) in enumerate(self.objects_of(mutant)):
                level = "-O2" if re.match("build/(src/(num|ops|cpu|kernels)|o)/", there) else "-O1"
                words = [level if w == "-O2" else w for w in self.words]
                out = "%s/mutant-%d.o" % (self.at, n)
                done = subprocess.run(words + ["-I%s/tree" % self.at, "-Isrc", "-fmacro-prefix-map=%s/tree/=src/" % self.at,
                                               "-Werror=incompatible-pointer-types", "-Werror=int-conversion"] + options +
                                      ["-c", "-o", out, source], stderr=subprocess.DEVNULL, timeout=600)
                if done.returncode:
                    return None
                with open(out, "rb") as a, open(there, "rb") as b:
                    if a.read() != b.read():
                        made.append(out)
                        if there.startswith("build/o/"):
                            self.own[os.path.basename(there)[:-2]] = out
            for test in tests_in("num") if made and re.match(r"src/num/.*\.h$", self.file) else []:
                words = ["-O0" if w == "-O2" else w for w in self.words]    # it has num's functions in itself
                self.own[test] = "%s/%s.o" % (self.at, test)
                if subprocess.run(words + ["-I%s/tree" % self.at, "-Isrc", "-Ibuild/api", "-Itests", "-DPLAN_CHECK_LINKED",
                                           "-c", "-o", self.own[test], "tests/num/%s.c" % test]).returncode:
                    return None
        finally:
            os.remove(self.copy)
        return made

    def link(self, test, objects):
        """Whether the test links with them: one that has the mutant's file in itself does not, but by own."""
        out = self.at + "/run/program"
        name = test.partition(":")[0]
        if name in self.own and self.own[name] in objects:
            objects = []
        elif objects:
            objects = [o for o in objects if o not in self.own.values()]
            if not objects:
                return False
        extra = ["build/ref.o"] if name == "test_ops" else []
        return subprocess.run(self.with_ld + ["-o", out, self.own.get(name, object_of(test))] + objects + extra +
                              ["build/plan_check.o", "build/libsrc.a", "-lm", "-pthread"],
                              stderr=subprocess.DEVNULL).returncode == 0


# ---- test runs ----
FAILED = re.compile(rb"^[\w./-]+\.[ch]:\d+: ", re.M)
COUNTS = re.compile(rb"^[^:\n]+: \d+ passed, 0 failed$", re.M)


def prepare_folder(at):
    """Makes the folder in which programs run: links to the tree, and a separate build/."""
    shutil.rmtree(at + "/tree", ignore_errors=True)     # a mutant left there would be in all that follow
    at += "/run"
    os.makedirs(at + "/build/o", exist_ok=True)
    for name in os.listdir("."):
        if name not in ("build", ".git") and not os.path.lexists(at + "/" + name):
            os.symlink(os.path.join(ROOT, name), at + "/" + name)
    if not os.path.lexists(at + "/build/api") and os.path.exists("build/api"):
        os.symlink(os.path.join(ROOT, "build/api"), at + "/build/api")


def run(at, test, seconds=None, most=600):
    """Runs program in at/run: (why it is dead or None, seconds of the processor). `test`: test_bf16:kernels has the
    argument kernels; `seconds`: what it normally takes."""
    if seconds is not None:
        most = max(LEAST, int(TIMES * seconds + 1))
    limits = "ulimit -S -t %d; ulimit -H -t %d; ulimit -c 0; ulimit -v %d; ulimit -f %d; exec ./program %s" % \
        (most, most + 5, MEMORY >> 10, FILE >> 9, test.partition(":")[2])
    child = subprocess.Popen(["sh", "-c", limits], cwd=at + "/run", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
    crowd = max(1, os.getloadavg()[0] / os.cpu_count())     # other programs use the processors as well
    end = time.monotonic() + (4 * most + 20) * crowd
    said, why = b"", None
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while why is None:
            if not ready.select(max(0, end - time.monotonic())):
                why = "hangs"
                break
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                break
            said = (said + piece)[-1000000:]
            if seconds is not None and FAILED.search(said):
                why = "fails"
    try:
        os.killpg(child.pid, signal.SIGKILL if why else 0)
    except OSError:
        pass
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    child.stdout.close()
    taken = used.ru_utime + used.ru_stime
    if why is None and os.WIFSIGNALED(status):
        why = "too slow" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else \
            "crashes (%s)" % signal.Signals(os.WTERMSIG(status)).name
    elif why is None and (status or not COUNTS.search(said)):
        why = "fails"
    return why, taken, said


class Times:
    """The time of each test, run alone with the unchanged libsrc.a; it must pass. -n means more than n seconds."""

    def __init__(self, most):
        self.most = most
        self.path = AT + "/times.tsv"
        self.known, self.locks = {}, collections.defaultdict(threading.Lock)
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                for line in f:
                    test, seconds, stamp = line.rstrip("\n").split("\t")
                    self.known[test] = float(seconds), stamp

    def of(self, test, at):
        with self.locks[test]:
            return self.measured(test, at)

    def measured(self, test, at):
        stamp = str(max(os.path.getmtime(p) for p in (object_of(test), "build/libsrc.a", "build/plan_check.o")))
        seconds, known = self.known.get(test, (0, ""))
        if known != stamp or -self.most < seconds < 0:
            if not Builder("src/base/text.c", at).link(test, []):
                sys.exit("%s does not link" % test)
            why, taken, said = run(at, test, most=int(min(self.most, 600)) + 1)
            if why in ("too slow", "hangs") and self.most < 600:
                why, taken = None, -self.most
            if why or FAILED.search(said):
                sys.stderr.buffer.write(said[-4000:])
                sys.exit("%s: %s before anything was changed" % (test, why or "prints a failure"))
            self.known[test] = taken, stamp
            with open(self.path, "a", encoding="utf-8") as f:
                f.write("%s\t%.3f\t%s\n" % (test, taken, stamp))
            print("%s: %.1f s" % (test, taken), file=sys.stderr)
        return self.known[test][0] if self.known[test][0] >= 0 else 1e9


def tests_in(folder):
    names = os.listdir("tests/" + folder) if os.path.isdir("tests/" + folder) else []
    return sorted(n[:-2] for n in names if re.fullmatch(r"test_\w+\.c", n))


def tests_for(file, rest):
    """Returns (the tests of its layer, the other tests to run)."""
    layer = file.split("/")[1]
    folders = FOLDERS.get(layer, [layer])
    first = [t for folder in folders for t in tests_in(folder)]
    others = tests_in("integration")
    if rest:
        others += [t for d in sorted(os.listdir("tests")) if os.path.isdir("tests/" + d) and d not in ("cuda", "integration")
                   for t in tests_in(d) if t not in first]
    return first, others


# ---- known mutants ----
def read_explained(of_open=False):
    """{key: reason} of explained.txt: `FILE FUNCTION`, `- line`, `+ line`, `= why`; or of those that are open there."""
    known, place, before, after = {}, None, None, None
    if not os.path.exists(EXPLAINED):
        return known
    with open(EXPLAINED, encoding="utf-8") as f:
        for line in f:
            line = line.rstrip("\n")
            if line.startswith("src/"):
                place = tuple(line.split(" ", 1))
            elif line.startswith("- "):
                before = line[2:]
            elif line.startswith("+ "):
                after = line[2:]
            elif line.startswith("= ") and line.startswith("= open") == of_open:
                known[place + (before, after)] = line[2:]
    return known


FIELDS = "file line function operator before after verdict test seconds".split()
Result = collections.namedtuple("Result", FIELDS)


def read_results():
    known = {}
    if os.path.exists(RESULTS):
        with open(RESULTS, encoding="utf-8") as f:
            for line in f:
                r = Result(*line.rstrip("\n").split("\t"))
                if r.file != "file":
                    known[key_of(r)] = r
    return known


def write_result(mutant, verdict, test, seconds):
    new = not os.path.exists(RESULTS)
    with open(RESULTS, "a", encoding="utf-8") as f:
        if new:
            f.write("\t".join(FIELDS) + "\n")
        f.write("\t".join(str(x) for x in (*mutant[:6], verdict, test, "%.1f" % seconds)) + "\n")


def layers():
    """{layer: files}, by src/MANIFEST; headers without bodies have no mutants and do no harm."""
    out = collections.OrderedDict()
    with open("src/MANIFEST", encoding="utf-8") as f:
        for line in f:
            word = line.split()[0] if line.split() else ""
            if word.endswith("/"):
                out[word[:-1]] = []
            elif "/" in word and os.path.basename(word) not in ("test_hooks.c", "test_hooks.h", "separate_tu.h", "all.c"):
                out[word.split("/")[0]].append("src/" + word)
    return out


# ---- a campaign ----
def drawn(files, seed):
    """Mutants of these files in a random order: a file by its size, an operator, a place."""
    rng = random.Random("%s %s" % (seed, " ".join(files)))
    left = {}
    for file in files:
        by_operator, text = mutants_of(file)
        if by_operator:
            left[file] = by_operator, text
    while left:
        file = rng.choices(list(left), [left[f][1].count("\n") for f in left])[0]
        by_operator, text = left[file]
        operator = rng.choice(sorted(by_operator))
        places = by_operator[operator]
        yield places.pop(rng.randrange(len(places))), text
        if not places:
            del by_operator[operator]
        if not by_operator:
            del left[file]


class Campaign:
    """Mutants in the order in which they are drawn, --jobs of them at work, each job in a separate folder."""

    def __init__(self, rest, total, only, until, jobs, widest):
        self.rest, self.total, self.only, self.until, self.widest = rest, total, only, until, widest
        self.times, self.results, self.explained = Times(total), read_results(), read_explained()
        self.made, self.regions, self.lock = set(), {}, threading.Lock()
        self.idle = [AT] + ["%s/job%d" % (AT, n) for n in range(2, jobs + 1)]
        for at in self.idle:
            prepare_folder(at)

    def judge(self, mutant, text, at):
        """(verdict, test)"""
        builder = Builder(mutant.file, at)
        try:
            objects = builder.build(mutant, text)
        except subprocess.TimeoutExpired:
            return "no build", ""
        if objects is None:
            return "no build", ""
        if not objects:
            return "same object", ""
        left_out, linked, spent = False, False, 0
        for test in self.in_order(mutant.file, at):
            if spent + self.times.of(test, at) > self.total:
                left_out = True
                continue
            spent += self.times.of(test, at)
            if not builder.link(test, objects):
                continue
            linked = True
            why, _, _ = run(at, test, self.times.of(test, at))
            if why:
                return "killed", "%s %s" % (test, why)
        return "open" if left_out or self.only else "survived" if linked else "no build", ""

    def in_order(self, file, at):
        """The tests for a mutant of this file: first the layer's own, and of these first the ones that kill most per second."""
        first, others = (self.only, []) if self.only else tests_for(file, self.rest)
        with self.lock:
            missing = [t for t in first + others if t not in self.made]
            if missing:
                make(*{object_of(t) for t in missing})
                self.made.update(missing)
            layer = file.split("/")[1]
            kills = collections.Counter(r.test.split()[0] for r in self.results.values()
                                        if r.verdict == "killed" and r.file.split("/")[1] == layer)
        order = sorted(first + others, key=lambda t: self.times.locks[t].locked())     # other jobs measure the locked ones
        times = {t: self.times.of(t, at) for t in order}
        return sorted(first + others, key=lambda t: (0.3 + times[t]) / ((3 if t in first else 1) + kills[t]))

    def is_compiled(self, mutant, text):
        """Whether this machine compiles the mutant's part of the file, which may be for another instruction set."""
        if mutant.file not in self.regions:
            self.regions[mutant.file] = Builder(mutant.file, AT + "/look").regions(text, self.widest)
        return [here for at, here in self.regions[mutant.file] if at <= mutant.start][-1]

    def one(self, mutant, text):
        """The verdict, and whether it counts as tried."""
        with self.lock:
            known, at = self.results.get(key_of(mutant)), self.idle.pop()
        if known is None:
            if key_of(mutant) in self.explained:
                verdict, test, seconds = "survived", "", 0
            else:
                began = time.monotonic()
                verdict, test = self.judge(mutant, text, at)
                seconds = time.monotonic() - began
            with self.lock:
                if STOPPED.is_set():
                    return False
                write_result(mutant, verdict, test, seconds)
                self.results[key_of(mutant)] = known = Result(*[str(x) for x in mutant[:6]], verdict, test,
                                                              str(seconds))
                print("%-11s %s:%d %s: %s%s" % (verdict, mutant.file, mutant.line, mutant.operator, test,
                                                " [%.0f s]" % seconds), flush=True)
                if verdict in ("survived", "open"):
                    print("    - %s\n    + %s" % (mutant.before, mutant.after), flush=True)
        with self.lock:
            self.idle.append(at)
        return known.verdict in ("killed", "survived", "open")

    def all(self, mutants, count=sys.maxsize):
        """Tries `count` mutants. Starts none that might be one too many, so any number of jobs tries the same mutants."""
        tried, at_work = 0, set()
        with concurrent.futures.ThreadPoolExecutor(len(self.idle)) as pool:
            mutants, room = iter(mutants), len(self.idle)
            while True:
                while len(at_work) < room and tried + len(at_work) < count and time.monotonic() < self.until:
                    drawn_one = next(mutants, None)
                    if drawn_one is None:
                        break
                    at_work.add(pool.submit(self.one, *drawn_one))
                if not at_work:
                    return
                done, at_work = concurrent.futures.wait(at_work, return_when=concurrent.futures.FIRST_COMPLETED)
                tried += sum(job.result() for job in done)

    def files(self, files, count, seed):
        self.all(((m, text) for m, text in drawn(files, seed) if self.is_compiled(m, text)), count)

    def again(self, files, line):
        """Tries survivors without an explanation again; only those of one line if `line` is given."""
        wanted = {k for k, r in self.results.items() if r.verdict in ("survived", "open") and k not in self.explained}
        wanted |= {k for k in read_explained(of_open=True) if k not in self.results}
        for file in [f for f in files if any(k[0] == f for k in wanted)]:
            by_operator, text = mutants_of(file)
            asked = [m for places in by_operator.values() for m in places
                     if key_of(m) in wanted and line in (None, m.line)]
            for m in asked:
                self.results.pop(key_of(m), None)
            self.all((m, text) for m in asked)


def table():
    explained = read_explained()
    by_layer = collections.defaultdict(collections.Counter)
    for r in read_results().values():
        verdict = "explained" if r.verdict in ("survived", "open") and key_of(r) in explained else r.verdict
        for layer in (r.file.split("/")[1], "all"):
            by_layer[layer][verdict] += 1
    print("| layer | tried | killed | explained | open | same object |\n|---|--:|--:|--:|--:|--:|")
    for layer in list(layers()) + ["all"]:
        c = by_layer[layer]
        print("| %s | %d | %d | %d | %d | %d |" % (layer, c["killed"] + c["explained"] + c["survived"] + c["open"],
                                                   c["killed"], c["explained"], c["survived"] + c["open"],
                                                   c["same object"]))


def survivors():
    explained = read_explained()
    for r in read_results().values():
        if r.verdict in ("survived", "open") and key_of(r) not in explained:
            print("%s %s\n- %s\n+ %s\n= open: (line %s, %s)\n" %
                  (r.file, r.function, r.before, r.after, r.line, r.operator))
    for key, why in read_explained(of_open=True).items():
        if key not in read_results():
            print("%s %s\n- %s\n+ %s\n= %s\n" % (*key, why))


def stale():
    """Prints the entries of explained.txt that match no mutant of the present src/. Returns their number."""
    entries = list(read_explained()) + list(read_explained(of_open=True))
    there = {}
    for file in {file for file, *_ in entries}:
        there[file] = {key_of(m) for places in mutants_of(file)[0].values() for m in places} \
            if os.path.exists(file) else set()
    gone = [key for key in entries if key not in there[key[0]]]
    for key in gone:
        print("%s: src/ has no such mutant:\n%s %s\n- %s\n+ %s" % (EXPLAINED, *key))
    return len(gone)


def stop(*_):
    STOPPED.set()
    sys.exit("stopped")


def main():
    os.chdir(ROOT)
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--layer", help="a folder of src/")
    ask.add_argument("--file", help="a file of src/")
    ask.add_argument("--line", type=int, help="all mutants of that line of --file; with --again what survived there")
    ask.add_argument("--count", type=int, default=20, help="mutants to try")
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--minutes", type=float, default=1e6, help="when to stop")
    ask.add_argument("--jobs", type=int, default=1, help="mutants at work at the same time")
    ask.add_argument("--total", type=float, help="seconds of tests that a mutant meets; 20, all with --rest or --tests")
    ask.add_argument("--tests", type=lambda names: names.split(","), help="by these alone, as test_lowered,test_bf16:kernels (its argument)")
    ask.add_argument("--widest", action="store_true", help="of kernels: what no narrower instruction set compiles")
    ask.add_argument("--again", action="store_true", help="survivors once more")
    ask.add_argument("--rest", action="store_true", help="by the tests of other layers, too")
    ask.add_argument("--table", action="store_true")
    ask.add_argument("--survivors", action="store_true")
    ask.add_argument("--stale", action="store_true")
    options = ask.parse_args()
    if options.stale:
        sys.exit(stale() > 0)
    if options.table or options.survivors:
        (table if options.table else survivors)()
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"       # as the Makefile
    os.makedirs(AT, exist_ok=True)
    lock = open(AT + "/lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("another run is at work in " + AT)
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, stop)
    make("build/libsrc.a", "build/plan_check.o", "build/ref.o", TEST_AMX[2])
    total = options.total or (1e6 if options.rest or options.tests else 20)
    campaign = Campaign(options.rest, total, options.tests, time.monotonic() + 60 * options.minutes,
                        options.jobs, options.widest)
    all_files = layers()
    if options.layer and options.layer not in all_files:
        sys.exit("no layer " + options.layer)
    chosen = [options.file] if options.file else all_files[options.layer] if options.layer else \
        [f for files in all_files.values() for f in files]
    if options.again:
        campaign.again(chosen, options.line)
    elif options.line:
        by_operator, text = mutants_of(options.file)
        campaign.all((m, text) for places in by_operator.values() for m in places if m.line == options.line)
    elif options.file or options.layer:
        campaign.files(chosen, options.count, options.seed)
    else:
        share = options.count / sum(WEIGHTS.values())
        for layer in sorted(all_files, key=lambda f: -WEIGHTS[f]):
            campaign.files(all_files[layer], round(WEIGHTS[layer] * share), options.seed)
    table()


if __name__ == "__main__":
    main()
