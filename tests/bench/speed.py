#!/usr/bin/env python3
"""speed.py - fills in the section of docs/speed.md on the processor that it runs on.

    make speed                          some 15 minutes
    make speed SPEED=--quick            one short round, nothing compiled, into build/speed.md only
    make speed PYTHON=venv/bin/python3  by a python3 that has PyTorch 2
    python3 tests/bench/speed.py --help

For each model build/bench (fp32, bf16) and PyTorch (eager, compiled; fp32, bf16 weights, autocast)
take turns, round by round, each in its own process. The output has medians of the rounds, and ratios
of PyTorch's time to that of build/bench in the same round. PyTorch runs with the settings
that peer_torch.py mostly finds best: MKL as on Intel, malloc kept, fused AdamW, sdpa. A way of bf16
that so far took 1.25 times as long as the better of its kind is left out of a round, and what is
compiled of every second one: compiling takes longest. Without PyTorch its columns stay empty.
"""
import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import peer_torch

PAGE, COPY = os.path.join("docs", "speed.md"), os.path.join("build", "speed.md")
MODELS = {"gpt2-b4": "GPT-2 124M, B4 x T64", "gpt2-t1024": "GPT-2 124M, B1 x T1024",
          "gpt-384": "6 layers, dim 384, B16 x T256", "gpt-192": "6 layers, dim 192, B16 x T256"}
OURS = {"fp32": [], "bf16": ["--bf16"]}
# what is compared: kind: its ways, of which the better one counts
EAGER = {("fp32", "eager"): ("fp32",), ("bf16", "eager"): ("bf16", "autocast")}
COMPILED = {(p, "compile"): ways for (p, _), ways in EAGER.items()}
WORDS = {"fp32": "", "bf16": " weights", "autocast": " autocast"}


def processor():
    """Its kind, as a heading, and its name."""
    about = {}
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                about.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = about.get("model name") or platform.processor() or platform.machine()
    flags = about.get("flags", "").split()
    vendor, family = about.get("vendor_id"), about.get("cpu family")
    widest = next((text for flag, text in (("avx512_bf16", "AVX-512 with bf16 dot products"),
                                           ("avx512f", "AVX-512"), ("avx2", "AVX2"))
                   if flag in flags), "neither")
    if vendor == "AuthenticAMD":
        zen = {"23": "Zen, Zen 2", "25": "Zen 4" if "avx512f" in flags else "Zen 3", "26": "Zen 5"}
        return "AMD %s, %s" % (zen.get(family, "family " + str(family)), widest), name
    if vendor == "GenuineIntel":
        return "Intel with " + ("AMX" if "amx_bf16" in flags else widest), name
    return platform.machine() + ", " + name, name


def median(values):
    return "%.0f" % statistics.median(values)


def seconds(runs):
    return statistics.median(r["seconds"] for r in runs if r) if any(runs) else float("inf")


class Row:
    """A model: runs of ours, and of PyTorch by (kind, way), one a round; None: left out, failed."""
    def __init__(self, model):
        self.model, self.ours, self.theirs, self.profile = model, {p: [] for p in OURS}, {}, ""

    def round(self, runner, kinds, setting, compiled):
        for precision, options in OURS.items():
            run = runner.ours(self.model, options)
            if run is None:
                sys.exit("speed: build/bench --only %s %s fails" % (self.model, " ".join(options)))
            with open(os.path.join(runner.folder, "bench.json")) as f:
                run["machine"] = json.load(f)
            self.ours[precision].append(run)
            for kind, ways in kinds.items():
                for way in ways if kind[0] == precision else ():
                    runs = self.theirs.setdefault((kind, way), [])
                    asked = dict(setting, model=self.model, precision=way, compile=kind[1])
                    good = not runs or seconds(runs) <= 1.25 * seconds(self.better(kind)[1])
                    wanted = good and (compiled or kind in EAGER)
                    runs.append(runner.torch(asked) if wanted else None)

    def better(self, kind):
        """The way of that kind that was not left out, or is faster, and its runs."""
        found = [(way, runs) for (k, way), runs in self.theirs.items() if k == kind]
        return min(found, key=lambda f: (f[1].count(None), seconds(f[1]))) if found else ("", [])

    def beside(self, kind):
        """PyTorch's time over ours of the same round, and its ms."""
        way, runs = self.better(kind)
        pairs = [(b["seconds"], b["seconds"] / a["seconds"])
                 for a, b in zip(self.ours[kind[0]], runs) if b]
        if not pairs:
            return ""
        ms, ratios = zip(*pairs)
        spread = " (%.2f to %.2f)" % (min(ratios), max(ratios)) if len(ratios) > 1 else ""
        return "%.2f%s; %.0f%s" % (statistics.median(ratios), spread,
                                   1e3 * statistics.median(ms), WORDS[way])

    def ms(self, precision, of_peak):
        text = median([1e3 * r["seconds"] for r in self.ours[precision]])
        return text + (", %s %%" % median([r["percent"] for r in self.ours[precision]])
                       if of_peak else "")

    def profiled(self, runner):
        """Where a bf16 step's time goes: what takes 2 % and more."""
        out = subprocess.run([peer_torch.BENCH, "--only", self.model, "--bf16", "--profile",
                              "--threads", str(runner.threads), "--seconds",
                              "%g" % (runner.seconds / 5), "--json", os.devnull],
                             env=runner.plain, stdout=subprocess.PIPE).stdout.decode()
        found = re.findall(r"^\| ([\w-]+) \| (\w+) \| \d+ \| [\d.]+ \| ([\d.]+) %", out, re.M)
        self.profile = ", ".join("%s %s %s" % (op, part, share) for op, part, share in found
                                 if float(share) >= 2)


def table(what, of_fp32, of_bf16, rows):
    head = [what, "ours fp32" + of_fp32, "PyTorch eager", "compiled",
            "ours bf16" + of_bf16, "PyTorch eager", "compiled"]
    lines = [head, ["---"] + ["--:"] * (len(head) - 1)] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def beyond(runs):
    good = [1e-6 * peer_torch.beyond(r) for r in runs if r]
    return median(good) if good else ""


def section(rows, kind, name, torch, options):
    machine = [r["machine"] for row in rows for r in row.ours["bf16"]]
    peak = {k: median([m[k] for m in machine])
            for k in ("fma_gflops", "dot_gflops", "read_gbs", "triad_gbs")}
    with open("gradckpt.h") as f:
        contract = re.search(r"define GCKPT_CONTRACT +(\d+)", f.read()).group(1)
    # Elsewhere products do not go by dot products, or not by these alone.
    by_dots = kind.startswith("AMD") and peak["dot_gflops"] != "0"
    rounds = len(rows[0].ours["fp32"])
    plural = lambda n, word: "%d %s%s" % (n, word, "" if n == 1 else "s")
    out = ["## %s\n\n" % kind,
           "%s, contract %s, %s with %s, %s. Peaks: %s GFLOP/s fp32,\n" % (
               datetime.date.today(), contract, name, plural(os.cpu_count() or 1, "processor"),
               plural(options.threads, "thread"), peak["fma_gflops"]),
           "%s of bf16 dot products, " % peak["dot_gflops"] if peak["dot_gflops"] != "0" else "",
           "memory %s GB/s reading, %s triad. Medians of %s; %s.\n\n" % (
               peak["read_gbs"], peak["triad_gbs"], plural(rounds, "round"),
               "PyTorch " + torch if torch else "there is no PyTorch")]
    if any(not any(r.better(kind)[1]) for r in rows for kind in EAGER if torch):
        out[-1] = "%s;\nno run of it that took more than %g seconds.\n\n" % (
            out[-1][:-3], options.limit)
    out.append(table("ms a step", ", of peak", ", of dot peak" if by_dots else "", [
        [MODELS[r.model]] + [cell for p in OURS for cell in (
            r.ms(p, p == "fp32" or by_dots), r.beside((p, "eager")), r.beside((p, "compile")))]
        for r in rows]))
    out.append("\n" + table("MB beyond 16 bytes a parameter", "", "", [
        [MODELS[r.model]] + [beyond(runs) for p in OURS for runs in (
            r.ours[p], r.better((p, "eager"))[1], r.better((p, "compile"))[1])] for r in rows]))
    out.append("\nWhere a bf16 step's time goes, percent:\n\n")
    out += ["- %s: %s\n" % (MODELS[r.model], r.profile) for r in rows]
    return "".join(out)


def write(page, kind, text):
    """In place of the section of that kind; a new one goes behind the others."""
    with open(page) as f:
        old = f.read()
    begin, end = "<!-- make speed: %s -->\n" % kind, "<!-- -->\n"
    known = begin in old
    at = old.index(begin) if known else old.rindex("<!-- make speed: ")
    to = old.index(end, at) + len(end)
    with open(page, "w") as f:
        f.write((old[:at] if known else old[:to] + "\n") + begin + text + end + old[to:])


def main():
    parser = argparse.ArgumentParser(description="a processor's section of docs/speed.md")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=5, help="at most (default 5)")
    parser.add_argument("--minutes", type=float, default=15,
                        help="no round begins that would end after (default 15); the first does")
    parser.add_argument("--seconds", type=float, default=4, help="of steps a run (default 4)")
    parser.add_argument("--limit", type=float, default=1200,
                        help="of a run of PyTorch, in seconds: what takes longer is left out (its "
                             "bf16 does where there is no AVX-512; default 1200)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--quick", action="store_true",
                        help="one round of a second a run, nothing compiled; only build/speed.md")
    options = parser.parse_args()
    if min(options.rounds, options.threads, options.seconds, options.limit) <= 0:
        parser.error("--rounds, --threads, --seconds and --limit must be above 0")
    if options.quick:
        options.rounds, options.seconds = 1, 1
    kinds = EAGER if options.quick or options.no_compile else {**EAGER, **COMPILED}
    try:
        torch = peer_torch.versions()
    except SystemExit as missing:
        torch, kinds = None, {}
        print(missing)
    kind, name = processor()
    rows, begun, last = [Row(m) for m in options.models], time.time(), 0
    with tempfile.TemporaryDirectory() as folder:
        runner = peer_torch.Runner(folder, options.threads, options.seconds, options.limit)
        best = {axis: list(names)[0] for axis, names in runner.axes.items()}
        best.update(mkl=list(runner.axes["mkl"])[-1], allocator="malloc kept", checkpoint=False,
                    attention="sdpa", optimizer="fused", threads=options.threads)
        for n in range(options.rounds):
            since = time.time()
            if n > 0 and since + last - begun > 60 * options.minutes:
                break
            for row in rows:
                row.round(runner, kinds, best, n % 2 == 0)
                print("round %d, %s: %s ms fp32, %s bf16; eager %s, %s; compiled %s, %s" % (
                    (n + 1, row.model) + tuple(row.ms(p, False) for p in OURS) +
                    tuple(row.beside(k) or "-" for k in list(EAGER) + list(COMPILED))), flush=True)
            last = time.time() - since
        for row in rows:
            row.profiled(runner)
    text = section(rows, kind, name, torch, options)
    with open(COPY, "w") as f:
        f.write(text)
    print("\n" + text + "\n%.1f minutes" % ((time.time() - begun) / 60))
    if not options.quick:
        write(PAGE, kind, text)


if __name__ == "__main__":
    main()
