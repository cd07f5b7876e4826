#!/usr/bin/env python3
"""speed.py - measures steps of this library and of PyTorch on this processor.

    make speed                          takes about 15 minutes and records docs/benchmarks/speed.tsv
    make speed SPEED=--quick            one short round, nothing compiled; only writes build/speed.md
    make speed PYTHON=venv/bin/python3  uses a python3 that has PyTorch 2
    python3 tests/bench/speed.py --help

For each model, build/bench (fp32, bf16) and PyTorch (eager, compiled; fp32, bf16 weights, autocast)
run alternately, round by round, each in a process. The results are medians over the rounds. PyTorch
runs with the settings that peer_torch.py mostly finds best: MKL as on Intel, malloc kept, fused
AdamW, sdpa. A bf16 setting that so far took 1.25 times as long as the better one of its kind is left
out of a round, and compiled models are left out of every second round, since compiling takes longest.
Without PyTorch its columns stay empty.
"""
import argparse
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

TABLE = os.path.join("build", "speed.md")
MODELS = {"gpt2-b4": "GPT-2 124M, B4 x T64", "gpt2-t1024": "GPT-2 124M, B1 x T1024",
          "gpt-384": "6 layers, dim 384, B16 x T256", "gpt-192": "6 layers, dim 192, B16 x T256"}
OURS = {"fp32": [], "bf16": ["--bf16"]}
# (precision, eager or compiled): the settings of PyTorch; of each kind, the faster one is compared
EAGER = {("fp32", "eager"): ("fp32",), ("bf16", "eager"): ("bf16", "autocast")}
COMPILED = {(p, "compile"): ways for (p, _), ways in EAGER.items()}


def processor():
    """Returns the prefix of this processor's cases in the log, and its name."""
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
    if about.get("vendor_id") == "AuthenticAMD":
        zen = {"25": "Zen 4" if "avx512f" in flags else "Zen 3", "26": "Zen 5"}
        return zen.get(about.get("cpu family"), name), name
    return "AMX" if "amx_bf16" in flags else name, name


def median(values):
    return "%.0f" % statistics.median(values)


def seconds(runs):
    return statistics.median(r["seconds"] for r in runs if r) if any(runs) else float("inf")


class Row:
    """A model with its runs, one a round: ours, and PyTorch's by (kind, setting); None if left out."""
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
        """Returns the faster setting of a kind, preferably one that was never left out, and its runs."""
        found = [(way, runs) for (k, way), runs in self.theirs.items() if k == kind]
        return min(found, key=lambda f: (f[1].count(None), seconds(f[1]))) if found else ("", [])

    def theirs_ms(self, kind):
        """Returns the median of PyTorch's times, or ""."""
        good = [1e3 * r["seconds"] for r in self.better(kind)[1] if r]
        return median(good) + " ms" if good else ""

    def ours_ms(self, precision):
        return median([1e3 * r["seconds"] for r in self.ours[precision]]) + " ms"

    def profiled(self, runner):
        """Notes the ops that take at least 2 % of a bf16 step."""
        out = subprocess.run([peer_torch.BENCH, "--only", self.model, "--bf16", "--profile",
                              "--threads", str(runner.threads), "--seconds",
                              "%g" % (runner.seconds / 5), "--json", os.devnull],
                             env=runner.plain, stdout=subprocess.PIPE).stdout.decode()
        found = re.findall(r"^\| ([\w-]+) \| (\w+) \| \d+ \| [\d.]+ \| ([\d.]+) %", out, re.M)
        self.profile = ", ".join("%s %s %s" % (op, part, share) for op, part, share in found
                                 if float(share) >= 2)


def beyond(runs):
    good = [1e-6 * peer_torch.beyond(r) for r in runs if r]
    return median(good) + " MB" if good else ""


def tables(rows, prefix):
    """Returns the tables that record.sh reads, and the profiles."""
    machine = [r["machine"] for row in rows for r in row.ours["bf16"]]
    cases = []
    for r in rows:
        for p in OURS:
            runs = [("ours", r.ours_ms(p), r.ours[p])]
            runs += [("PyTorch " + how, r.theirs_ms((p, kind)), r.better((p, kind))[1])
                     for how, kind in (("eager", "eager"), ("compiled", "compile"))]
            for who, ms, all_runs in runs:
                cases.append((MODELS[r.model] + ": %s, %s" % (who, p), ms))
                cases.append((MODELS[r.model] + ": %s, %s, beyond 16 bytes a parameter" % (who, p),
                              beyond(all_runs)))
            # on other processors, bf16 products are not computed by dot products only
            if p == "fp32" or prefix.startswith("Zen"):
                cases.append((MODELS[r.model] + ": ours, %s, of peak" % p,
                              median([run["percent"] for run in r.ours[p]]) + " %"))
    peak = {k: median([m[k] for m in machine]) for k in ("fma_gflops", "dot_gflops", "read_gbs")}
    cases += [("peak of fp32", peak["fma_gflops"] + " GFLOP/s"),
              ("peak of bf16 dot products", peak["dot_gflops"] + " GFLOP/s"),
              ("memory, reading", peak["read_gbs"] + " GB/s")]
    lines = ["| case | value |", "|---|--:|"]
    lines += ["| %s | %s |" % c for c in cases if c[1] and not c[1].startswith("0 GF")]
    lines += ["", "Shares of a bf16 step's time, percent:", ""]
    return "\n".join(lines + ["- %s: %s" % (MODELS[r.model], r.profile) for r in rows]) + "\n"


def main():
    parser = argparse.ArgumentParser(description="steps of gradckpt and of PyTorch")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=5, help="at most (default 5)")
    parser.add_argument("--minutes", type=float, default=15,
                        help="starts no further round that would end later (default 15)")
    parser.add_argument("--seconds", type=float, default=4, help="of steps per run (default 4)")
    parser.add_argument("--limit", type=float, default=1200,
                        help="seconds after which a run of PyTorch is left out (default 1200); its "
                             "bf16 is slow without AVX-512")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--quick", action="store_true",
                        help="one round of a second per run, nothing compiled or recorded")
    options = parser.parse_args()
    if min(options.rounds, options.threads, options.seconds, options.limit) <= 0:
        parser.error("--rounds, --threads, --seconds and --limit must be above 0")
    if options.quick:
        options.rounds, options.seconds = 1, 1
    kinds = EAGER if options.quick or options.no_compile else {**EAGER, **COMPILED}
    try:
        peer_torch.versions()
    except SystemExit as missing:
        kinds = {}
        print(missing)
    prefix, name = processor()
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
                print("round %d, %s: %s fp32, %s bf16; eager %s, %s; compiled %s, %s" % (
                    (n + 1, row.model) + tuple(row.ours_ms(p) for p in OURS) +
                    tuple(row.theirs_ms(k) or "-" for k in list(EAGER) + list(COMPILED))), flush=True)
            last = time.time() - since
        for row in rows:
            row.profiled(runner)
    text = tables(rows, prefix)
    with open(TABLE, "w") as f:
        f.write(text)
    print("\n" + text + "\n%.1f minutes" % ((time.time() - begun) / 60))
    if not options.quick:
        subprocess.run(["sh", "tests/bench/record.sh", "speed", TABLE, prefix], check=True,
                       env=dict(os.environ, THREADS=str(options.threads), PROCESSOR=name,
                                RUNS=str(len(rows[0].ours["fp32"]))))


if __name__ == "__main__":
    main()
