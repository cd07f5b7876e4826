#!/usr/bin/env python3
"""peer_torch.py - the models of build/bench in PyTorch, beside build/bench, in one run.

    make build/bench
    python3 tests/bench/peer_torch.py --models gpt-384 --json build/peer.json

For each model PyTorch's best settings are searched first: MKL's code path, allocator and huge
pages, how waiting threads behave, attention, optimiser. Then PyTorch (eager and compiled, fp32 and
bf16, with and without torch.utils.checkpoint) and build/bench take turns, round by round, each time
in a process of its own; medians of the rounds are compared. Settings that were found are used again
with --settings and the JSON file of an earlier run. Memory is the resident peak (VmHWM);
"beyond" is what a process has above 16 bytes a parameter (weight, gradient, two moments) and, for
PyTorch, above what it has after its import, so that its libraries do not count.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# sizes by name: layers, heads, dim, context, batch, vocabulary, inputs (nonzero for an MLP)
MODELS = {
    "gpt2-b4": (12, 12, 768, 64, 4, 50257, 0),
    "gpt2-t1024": (12, 12, 768, 1024, 1, 50257, 0),
    "gpt-192": (6, 6, 192, 256, 16, 256, 0),
    "gpt-384": (6, 6, 384, 256, 16, 256, 0),
    "nano": (4, 4, 128, 64, 12, 65, 0),
    "mlp": (0, 0, 128, 1, 128, 10, 784),
}
SMALL = ("nano", "mlp")
BENCH = os.path.join("build", "bench")
REMEDY = "this needs PyTorch 2: %s -m pip install torch" % sys.executable


# ---- one setting, which runs in a separate process -------------------------------------------------
def status(key):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return 0


def make_model(torch, setting):
    """The model as a function of (input, target) that returns the loss."""
    nn, F = torch.nn, torch.nn.functional
    L, H, C, T, B, V, inputs = MODELS[setting["model"]]
    manual = setting["attention"] == "manual"

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
            self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
            self.fc, self.out = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
            if manual:
                mask = torch.ones(T, T, dtype=torch.bool).tril()
                self.register_buffer("mask", mask, persistent=False)

        def forward(self, x):
            B = x.shape[0]
            q, k, v = (t.view(B, T, H, C // H).transpose(1, 2)
                       for t in self.qkv(self.norm1(x)).split(C, dim=2))
            if manual:
                a = (q @ k.transpose(-2, -1)) * (C // H) ** -0.5
                a = a.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
            else:
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).reshape(B, T, C))
            return x + self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.places = nn.Embedding(V, C), nn.Embedding(T, C)
            self.blocks = nn.ModuleList([Block() for _ in range(L)])
            self.norm = nn.LayerNorm(C)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, 0, 0.02)

        def forward(self, tokens, target):
            x = self.table(tokens) + self.places.weight
            for b in self.blocks:
                if setting["checkpoint"]:
                    x = torch.utils.checkpoint.checkpoint(b, x, use_reentrant=False)
                else:
                    x = b(x)
            logits = F.linear(self.norm(x), self.table.weight)  # tied
            return F.cross_entropy(logits.view(-1, V).float(), target.view(-1))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(inputs, C), nn.Linear(C, V)

        def forward(self, x, target):
            return F.cross_entropy(self.b(F.relu(self.a(x))).float(), target)

    if inputs:
        return MLP(), torch.rand(B, inputs), torch.randint(0, V, (B,))
    return GPT(), torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T))


def child(setting):
    import torch
    import torch.utils.checkpoint
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(1)
    torch.ones(256, 256) @ torch.ones(256, 256)
    base = status("VmHWM")
    model, x, target = make_model(torch, setting)
    precision = setting["precision"]
    if precision == "bf16":
        model = model.bfloat16()
        if x.is_floating_point():
            x = x.bfloat16()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    kind = {"fused": {"fused": True}, "foreach": {"foreach": True},
            "loop": {"foreach": False}}[setting["optimizer"]]
    adamw = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                               {"params": vectors, "weight_decay": 0.0}], lr=1e-4, **kind)
    run = model
    if setting["compile"] != "eager":
        torch._dynamo.config.cache_size_limit = 64
        run = torch.compile(model, mode=None if setting["compile"] == "compile" else
                            "max-autotune-no-cudagraphs")
    # with one thread, takes the processor time of the process, which other programs do not change
    now = time.process_time if setting["own_clock"] else time.perf_counter
    times, start = [], 0
    while len(times) < 5 or (now() - start < setting["seconds"] and len(times) < 2000):
        t = now()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast"):
            loss = run(x, target)
        adamw.zero_grad(set_to_none=True)
        loss.backward()
        adamw.step()
        times.append(now() - t)
        if len(times) == 2:
            start = now()
    print(json.dumps({
        "seconds": statistics.median(times[2:]),  # the first two create memory and state
        "resident": status("VmHWM"),
        "base": base,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss.item(),
        "steps": len(times) - 2,
    }))


# ---- the settings from which the fastest is searched -----------------------------------------------
def library(name):
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
                   "/usr/lib", "/usr/local/lib"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return None


def intel_shim(folder):
    """MKL has its AVX-512 kernels for Intel's processors only; this library, loaded before it, says
    that this is one. Without a compiler, or on an Intel processor: None."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    try:
        with open("/proc/cpuinfo") as f:
            foreign = "AuthenticAMD" in f.read()
    except OSError:
        foreign = False
    if not foreign or compiler is None:
        return None
    source, made = os.path.join(folder, "intel.c"), os.path.join(folder, "intel.so")
    with open(source, "w") as f:
        f.write("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    done = subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source])
    return made if done.returncode == 0 else None


def environments(folder):
    """axis: name: (variables, libraries to load first); the first of each is the default"""
    glibc = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000",
             "MALLOC_TOP_PAD_": "268435456"}
    axes = {
        "waiting": {
            "default": ({}, []),
            "active": ({"OMP_WAIT_POLICY": "active"}, []),
            "passive": ({"OMP_WAIT_POLICY": "passive"}, []),
        },
        "mkl": {"mkl": ({}, [])},
        "allocator": {
            "malloc": ({}, []),
            "malloc kept": (glibc, []),
            "malloc kept, huge pages": (dict(glibc, GLIBC_TUNABLES="glibc.malloc.hugetlb=1"), []),
        },
    }
    shim = intel_shim(folder)
    if shim:
        axes["mkl"]["mkl as on Intel"] = ({}, [shim])
    for name, file, variables in (
            ("jemalloc", "libjemalloc.so.2", {}),
            ("jemalloc kept, huge pages", "libjemalloc.so.2",
             {"MALLOC_CONF": "thp:always,metadata_thp:auto,dirty_decay_ms:-1,muzzy_decay_ms:-1"}),
            ("tcmalloc", "libtcmalloc_minimal.so.4", {})):
        if library(file):
            axes["allocator"][name] = (variables, [library(file)])
    if library("libiomp5.so"):
        axes["waiting"]["Intel's OpenMP"] = ({"KMP_BLOCKTIME": "1"}, [library("libiomp5.so")])
    return axes


ATTENTION = ("sdpa", "manual")
OPTIMIZER = ("fused", "foreach", "loop")


class Runner:
    def __init__(self, folder, threads, seconds, limit=1200):
        self.folder, self.threads, self.seconds, self.limit = folder, threads, seconds, limit
        self.axes = environments(folder)
        self.plain = {k: v for k, v in os.environ.items()
                      if not k.startswith(("OPENBLAS_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_",
                                           "LD_PRELOAD", "GLIBC_TUNABLES"))}

    def environment(self, setting):
        """The environment of a run of PyTorch with this setting."""
        env, preload = dict(self.plain, OMP_NUM_THREADS=str(setting["threads"])), []
        for axis, choices in self.axes.items():
            variables, libraries = choices[setting[axis]]
            env.update(variables)
            preload += libraries
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        return env

    def our_environment(self):
        return dict(self.plain, OMP_WAIT_POLICY=os.environ.get("OMP_WAIT_POLICY", "passive"))

    def torch(self, setting):
        """One run of PyTorch; None when it fails (some settings are not available everywhere) or
        takes longer than the limit, in seconds."""
        arguments = dict(setting, seconds=self.seconds, own_clock=self.threads == 1)
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child",
                                   json.dumps(arguments)],
                                  env=self.environment(setting), stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=self.limit)
            return json.loads(done.stdout.decode().strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            return None

    def ours(self, model, options):
        """One run of build/bench; None when it fails (a budget below the least)."""
        out = os.path.join(self.folder, "bench.json")
        done = subprocess.run([BENCH, "--only", model, "--threads", str(self.threads), "--seconds",
                               "%g" % (self.seconds / 5), "--json", out] + options,
                              env=self.our_environment(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE)
        if done.returncode != 0:
            return None
        with open(out) as f:
            return json.load(f)["results"][0]


def beyond(r):
    """Bytes above 16 a parameter, libraries not counted."""
    return r["resident"] - r.get("base", 0) - 16 * r["parameters"]


def describe(setting):
    words = [setting["compile"], setting["precision"]]
    words += ["checkpoint"] if setting["checkpoint"] else []
    words += [setting[k] for k in ("mkl", "allocator", "waiting", "attention", "optimizer")]
    words += ["%d threads" % setting["threads"]]
    return ", ".join(words)


def search(runner, model, rounds, log):
    """The fastest eager fp32 setting, axis by axis, the candidates of an axis taking turns."""
    best = {"model": model, "precision": "fp32", "compile": "eager", "checkpoint": False,
            "attention": ATTENTION[0], "optimizer": OPTIMIZER[0], "threads": runner.threads}
    axes = dict({k: list(v) for k, v in runner.axes.items()}, optimizer=list(OPTIMIZER))
    if runner.threads > 1 and model in SMALL:
        axes["threads"] = [runner.threads, 1]  # waking threads may cost more than they bring
    for axis, names in runner.axes.items():
        best[axis] = next(iter(names))
    if model != "mlp":
        axes["attention"] = list(ATTENTION)
    default = dict(best)
    for axis, names in axes.items():
        found = {}
        for _ in range(rounds if len(names) > 1 else 0):
            for name in names:
                r = runner.torch(dict(best, **{axis: name}))
                if r:
                    found[name] = min(r["seconds"], found.get(name, r["seconds"]))
        for name, seconds in found.items():
            log("  %-9s  %-26s %10.2f ms" % (axis, name, 1e3 * seconds))
        if found:
            best[axis] = min(found, key=found.get)
    return default, best


def variants(default, best, model, compiled):
    """name: setting of what is compared"""
    out = {"default": default, "best": best}
    kinds = [("", {})] + ([("compiled ", {"compile": "compile"}),
                           ("autotuned ", {"compile": "max-autotune"})] if compiled else [])
    for prefix, how in kinds:
        if how:
            out[prefix + "fp32"] = dict(best, **how)
        if model != "mlp" and prefix != "autotuned ":
            out[prefix + "fp32, checkpoint"] = dict(best, checkpoint=True, **how)
        out[prefix + "bf16 autocast"] = dict(best, precision="autocast", **how)
        out[prefix + "bf16 weights"] = dict(best, precision="bf16", **how)
    return out


def our_options(runner, best):
    """name: options of build/bench; budgets leave a half and a quarter of what PyTorch's best
    takes beyond 16 bytes a parameter."""
    out = {"ours": []}
    probe = runner.torch(best)
    for part, name in ((2, "half"), (4, "quarter")) if probe else ():
        budget = 16 * probe["parameters"] + max(0, beyond(probe)) // part
        out["ours, a %s beyond" % name] = ["--budget", str(budget)]
    text = subprocess.run([BENCH, "--help"], stdout=subprocess.PIPE).stdout.decode()
    if "--bf16" in text:
        out["ours, bf16"] = ["--bf16"]
    return out


def compare(runner, model, known, options, log):
    rounds = 1 if options.quick else options.repeats
    if model in known:
        log(model)
        default, best = known[model]["default"], known[model]["best"]
    else:
        log("%s: searching PyTorch's settings" % model)
        default, best = search(runner, model, 1 if options.quick else 2, log)
    log("  best: " + describe(best))
    settings = variants(default, best, model, not options.no_compile)
    ours = our_options(runner, best)
    runs = {name: [] for name in list(ours) + list(settings)}
    for n in range(rounds):
        for name in runs:
            if n > 0 and runs[name][0] is None:
                continue  # not available here
            runs[name].append(runner.ours(model, ours[name]) if name in ours
                              else runner.torch(settings[name]))
    rows = {name: combine(r) for name, r in runs.items()}
    table(rows, log)
    return {"model": model, "default": default, "best": best, "rows": rows,
            "ratios": ratios(rows, settings, log)}


def fastest(rows, settings, wanted):
    good = {n: r for n, r in rows.items() if r and n in settings and wanted(settings[n])}
    return min(good, key=lambda n: good[n]["seconds"]) if good else None


def ratios(rows, settings, log):
    out = {}
    pairs = (
        ("fp32", "ours", lambda s: s["precision"] == "fp32" and not s["checkpoint"]),
        ("fp32, half", "ours, a half beyond",
         lambda s: s["precision"] == "fp32" and not s["checkpoint"]),
        ("checkpoint", "ours, a quarter beyond", lambda s: s["checkpoint"]),
        ("bf16", "ours, bf16", lambda s: s["precision"] != "fp32"),
    )
    for what, mine, wanted in pairs:
        theirs = fastest(rows, settings, wanted)
        if theirs is None or not rows.get(mine):
            continue
        a, b = rows[mine], rows[theirs]
        out[what] = {"theirs": theirs, "time": b["seconds"] / a["seconds"],
                     "beyond": beyond(a) / beyond(b), "resident": a["resident"] / b["resident"]}
        log("  %s: %.2f times as fast as '%s' with %.2f of its memory beyond, %.2f of all"
            % (mine, out[what]["time"], theirs, out[what]["beyond"], out[what]["resident"]))
    return out


def combine(runs):
    """Medians of a setting's runs; None when it is not available."""
    good = [r for r in runs if r]
    if not good:
        return None
    keys = ("seconds", "resident", "base", "parameters", "loss", "percent")
    middle = {k: statistics.median(r[k] for r in good) for k in keys if k in good[0]}
    return dict(middle, all=[r["seconds"] for r in good])


def table(rows, log):
    log("  %-34s %10s %9s %10s" % ("", "ms a step", "peak MB", "beyond MB"))
    for name, r in rows.items():
        if r is None:
            log("  %-34s %10s" % (name, "-"))
            continue
        note = "  %.1f %% of peak" % r["percent"] if "percent" in r else ""
        log("  %-34s %10.2f %9.1f %10.1f%s" % (name, 1e3 * r["seconds"], 1e-6 * r["resident"],
                                               1e-6 * beyond(r), note))


def versions():
    """PyTorch's version, or the end with what is missing."""
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit("peer_torch: %s (%s)" % (REMEDY, (done.stderr.decode().strip().splitlines() or
                                                   ["it does not start"])[-1]))
    version = done.stdout.decode().strip().splitlines()[-1]
    if int(version.split(".")[0]) < 2:
        sys.exit("peer_torch: PyTorch %s is too old; %s" % (version, REMEDY))
    return version


def main():
    parser = argparse.ArgumentParser(description="build/bench beside PyTorch 2 on the same models")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=4, help="of steps a run (default 4)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default all)")
    parser.add_argument("--quick", action="store_true", help="one round of search and of runs")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--settings", help="take the best settings from this earlier --json file")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    if options.repeats < 1 or options.threads < 1 or options.seconds <= 0:
        parser.error("--repeats, --threads and --seconds must be above 0")
    if not os.access(BENCH, os.X_OK):
        sys.exit("peer_torch: there is no %s here: make %s" % (BENCH, BENCH))
    version = versions()
    log = lambda line: print(line, flush=True)
    log("PyTorch %s, %d threads, %d rounds of %g s" % (version, options.threads,
                                                     1 if options.quick else options.repeats,
                                                     options.seconds))
    results, known = [], {}
    if options.settings:
        with open(options.settings) as f:
            known = {m["model"]: m for m in json.load(f)["models"]}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(folder, options.threads, options.seconds)
        for model in options.models:
            results.append(compare(runner, model, known, options, log))
            if options.json:
                with open(options.json, "w") as f:
                    json.dump({"torch": version, "threads": options.threads, "models": results}, f,
                              indent=1)


if __name__ == "__main__":
    main()
