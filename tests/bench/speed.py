#!/usr/bin/env python3
"""speed.py - measures steps of this library and of PyTorch on this processor.

    make speed                          takes about 45 minutes and records docs/benchmarks/{speed,nets,ops}.tsv
    make speed SPEED=--quick            one short round, nothing compiled; only writes build/*.md
    make speed SPEED=--check            only checks that both train the same nets and run the same ops
    make speed PYTHON=venv/bin/python3  uses a python3 that has PyTorch 2
    python3 tests/bench/speed.py --help

Nets and ops: build/nets and nets.py run alternately, for a tenth of a second each, in two processes that
wait for each other. Both begin with the same parameters and inputs; their numbers of parameters must be
equal, and their first losses, to 1e-4 of them. A ratio is the median of PyTorch's time divided by ours over the
pairs; with it come the ends of its 95 % interval, by the binomial distribution. The ratio counts if at
least 15 pairs put the interval on one side of the number that it is compared with; otherwise it is
undecided. PyTorch is eager, with images as channels_last or contiguous, whichever is faster.

Models of bf16 and torch.compile: for each, build/bench (fp32, bf16) and PyTorch (eager, compiled;
fp32, bf16 weights, autocast) run alternately, round by round, each in a process. The results are
medians over the rounds. PyTorch runs with the settings that peer_torch.py mostly finds best: MKL as
on Intel, malloc kept, fused AdamW, sdpa. A bf16 setting that so far took 1.25 times as long as the
better one of its kind is left out of a round, and compiled models are left out of every second round,
since compiling takes longest.

Without PyTorch, only our models are measured.
"""
import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

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
        kind = zen.get(about.get("cpu family"))
        return (kind, "%s (%s)" % (name, kind)) if kind else (name, name)
    return "AMX" if "amx_bf16" in flags else name, name


def median(values):
    return "%.0f" % statistics.median(values)


def seconds(runs):
    return statistics.median(r["seconds"] for r in runs if r) if any(runs) else float("inf")


# ---- nets and ops ----------------------------------------------------------------------------------
NETS = os.path.join("build", "nets")
WITHIN = "SPEED_WITHIN"  # set in a process that has the environment for PyTorch, and measures nets and ops in forks
if WITHIN in os.environ:
    import nets
COLUMNS = ("PyTorch / ours", "low", "high", "ours, ms", "PyTorch, ms", "ours, MB", "PyTorch, MB")


class Peer:
    """A process that trains a net and runs steps when it is asked to."""
    def __init__(self, name, requests, answers):
        self.name, self.requests, self.answers = name, requests, answers
        self.first = self.read()

    def read(self):
        line = self.answers.readline()
        if not line:
            sys.exit("speed: %s ended" % self.name)
        return [float(word) for word in line.split()]

    def ask(self, steps):
        self.requests.write("%d\n" % steps)
        self.requests.flush()

    def turn(self, steps):
        """Returns the seconds of a step, and the peak of memory in bytes."""
        self.ask(steps)
        return self.read()


def start_ours(runner, name, threads, path):
    process = subprocess.Popen([NETS, name, str(threads), path], env=runner.our_environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
    return Peer(NETS, process.stdin, process.stdout)


def start_torch(name, threads, path, layout):
    """A fork of this process, since PyTorch takes seconds to import."""
    (asked, requests), (answers, answered) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(requests)
        os.close(answers)
        sys.stdin, sys.stdout = os.fdopen(asked), os.fdopen(answered, "w")
        try:
            nets.serve(name, threads, path, layout)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(asked)
    os.close(answered)
    return Peer("nets.py", os.fdopen(requests, "w"), os.fdopen(answers))


def target(kind, name):
    """The ratio that is wanted."""
    return 1.1 if kind == "net" else 1.2 if re.match("conv.*(groups|depthwise)", name) else 0.95


def verdict(ratios, wanted):
    """Returns the median, the ends of its 95 % interval, and whether the wanted ratio is reached."""
    n, tail, k = len(ratios), 0.0, 0
    while tail + math.comb(n, k) * 0.5 ** n <= 0.025:
        tail += math.comb(n, k) * 0.5 ** n
        k += 1
    ordered = sorted(ratios)
    low, high = ordered[max(0, k - 1)], ordered[min(n - 1, n - k)]
    said = "undecided" if n < 15 or low < wanted <= high else "reached" if low >= wanted else "missed"
    return statistics.median(ratios), low, high, said


def start_peers(runner, name, threads):
    """Returns our process and PyTorch's, one for each layout, after checking that they compute the same."""
    path = os.path.join(runner.folder, "net")
    ours, theirs = start_ours(runner, name, threads, path), []
    for layout in ("contiguous", "channels_last"):
        theirs.append(start_torch(name, threads, path, layout))
        (parameters, loss), (their_parameters, their_loss, images) = ours.first, theirs[-1].first
        if parameters != their_parameters or not abs(loss - their_loss) <= 1e-4 * abs(loss):
            sys.exit("speed: %s: %d parameters and loss %.7g, but %d and %.7g in PyTorch (%s)" % (
                name, parameters, loss, their_parameters, their_loss, layout))
        if not images:
            break
    os.remove(path)
    return ours, theirs


def compare(runner, kind, name, threads, options):
    """Returns the values of COLUMNS for a net or an op, and the verdict."""
    ours, theirs = start_peers(runner, name, threads)
    steps = {p: max(1, min(1000, round(options.turn / p.turn(1)[0]))) for p in [ours] + theirs}
    best = min(theirs, key=lambda p: min(p.turn(steps[p])[0] for _ in range(3))) if len(theirs) > 1 else theirs[0]
    for p in theirs:
        if p is not best:
            p.ask(0)
    times, memory = {ours: [], best: []}, {}
    for n in range(options.pairs):
        for p in (ours, best) if n % 2 else (best, ours):
            seconds, memory[p] = p.turn(steps[p])
            times[p].append(seconds)
    ours.ask(0)
    best.ask(0)
    *ratio, said = verdict([b / a for a, b in zip(times[ours], times[best])], target(kind, name))
    return (["%.2f" % r for r in ratio] + ["%.4g" % (1e3 * statistics.median(times[p])) for p in (ours, best)] +
            ["%.1f" % (1e-6 * memory[p]) for p in (ours, best)]), said


def check_nets(runner, names):
    for name in names:
        ours, theirs = start_peers(runner, name, 1)
        print("%s: %d parameters, loss %.7g" % ((name,) + tuple(ours.first)), flush=True)
        for p in [ours] + theirs:
            p.ask(0)


def measure_nets(runner, kind, names, threads, options, label, processor_name):
    """Writes a row of build/nets-THREADS.md, or of ops, for each name, and records the table."""
    path = os.path.join("build", "%ss-%d.md" % (kind, threads))
    with open(path, "w") as f:
        print("| %s | %s |\n|---%s|" % (kind, " | ".join(COLUMNS), "|--:" * len(COLUMNS)), file=f)
        for name in names:
            values, said = compare(runner, kind, name, threads, options)
            print("| %s | %s |" % (name, " | ".join(values)), file=f, flush=True)
            print("%s, %s: %s (%s to %s), %s: ours %s ms, PyTorch %s ms; %s MB, %s MB" % (
                (label, name) + tuple(values[:3]) + (said,) + tuple(values[3:])), flush=True)
    if not (options.quick or options.only):
        subprocess.run(["sh", "tests/bench/record.sh", kind + "s", path, label], check=True,
                       env=dict(os.environ, THREADS=str(threads), PROCESSOR=processor_name, RUNS=str(options.pairs)))


def measure_all_nets(runner, options, prefix, processor_name):
    listed = subprocess.run([NETS, "list"], stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    for kind in ("net", "op"):
        names = [n for k, n in (line.split(";") for line in listed) if k == kind and re.search(options.only, n)]
        if kind + "s" not in options.what:
            continue
        if options.check:
            check_nets(runner, names)
            continue
        for threads in sorted({1, options.threads}):
            label = "%s, %d thread%s" % (prefix, threads, "s" if threads > 1 else "")
            label += options.label and ", " + options.label
            measure_nets(runner, kind, names, threads, options, label, processor_name)


# ---- models: bf16, torch.compile -------------------------------------------------------------------
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


def measure_models(runner, setting, kinds, options, prefix, processor_name):
    rows, begun, last = [Row(m) for m in options.models], time.time(), 0
    for n in range(options.rounds):
        since = time.time()
        if n > 0 and since + last - begun > 60 * options.minutes:
            break
        for row in rows:
            row.round(runner, kinds, setting, n % 2 == 0)
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
                       env=dict(os.environ, THREADS=str(options.threads), PROCESSOR=processor_name,
                                RUNS=str(len(rows[0].ours["fp32"]))))


def main():
    parser = argparse.ArgumentParser(description="steps of gradckpt and of PyTorch")
    parser.add_argument("--what", nargs="+", choices=("nets", "ops", "models"), default=("nets", "ops", "models"))
    parser.add_argument("--check", action="store_true", help="compare parameters and first losses of nets and ops only")
    parser.add_argument("--only", default="", help="nets and ops with names that this pattern matches; records nothing")
    parser.add_argument("--pairs", type=int, default=21, help="of turns of a net or op (default 21)")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds, at least a step (default 0.1)")
    parser.add_argument("--waiting", choices=("default", "active", "passive"), default="default",
                        help="how PyTorch's threads wait for nets and ops; while other programs use the "
                             "processors, it takes many times as long unless this is passive")
    parser.add_argument("--label", default="", help="records rows of nets and ops with this label, e.g. before")
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
        options.rounds, options.seconds, options.pairs = 1, 1, 3
    kinds = EAGER if options.quick or options.no_compile else {**EAGER, **COMPILED}
    try:
        WITHIN in os.environ or peer_torch.versions()
    except SystemExit as missing:
        if options.check:
            raise
        kinds, options.what = {}, [what for what in options.what if what == "models"]
        print(missing)
    prefix, name = processor()
    with tempfile.TemporaryDirectory() as folder:
        runner = peer_torch.Runner(folder, options.threads, options.seconds, options.limit)
        best = {axis: list(names)[0] for axis, names in runner.axes.items()}
        best.update(mkl=list(runner.axes["mkl"])[-1], allocator="malloc kept", checkpoint=False,
                    attention="sdpa", optimizer="fused", threads=options.threads)
        if WITHIN in os.environ:
            return measure_all_nets(runner, options, prefix, name)
        if set(options.what) != {"models"}:
            env = dict(runner.environment(dict(best, waiting=options.waiting)), **{WITHIN: "1"})
            status = subprocess.run([sys.executable] + sys.argv, env=env).returncode
            if status != 0:
                sys.exit(status)
        if "models" in options.what and not options.check:
            measure_models(runner, best, kinds, options, prefix, name)


if __name__ == "__main__":
    main()
